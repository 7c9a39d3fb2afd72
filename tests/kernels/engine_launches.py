"""Which specialisations of the kernels the engine launches that the compile check doesn't compile; run as a script.

Records what the engine launches instead of running it, in a process without Triton's interpreter: passes over all
sizes, verification in every mode, allocation and statistics, for models of the geometry of the compile check's cases.
Prints those that are missing, one a line, and how many were seen.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import torch

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import Profile
from adaptive_spec.deployment import make_controller
from adaptive_spec.engine.device_controller import DeviceController
from adaptive_spec.engine.drafters.draft_sampler import DraftRows, DraftSampler
from adaptive_spec.engine.measure import measure_profile
from adaptive_spec.engine.model import Model
from adaptive_spec.engine.model_config import ModelConfig
from adaptive_spec.engine.packing import pack
from adaptive_spec.engine.passes import Passes
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.staging import Staging
from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.engine.verifier import Verifier
from adaptive_spec.kernels import backend, compile_cases, compile_check
from adaptive_spec.step import Outcome, StepView

CPU = torch.device("cpu")
BLOCKS = 512


def model_of(dtype: torch.dtype, head_dim: int, vocabulary: int, heads: int = 32, kv_heads: int = 8) -> Model:
    """A model of one thin layer, with heads and vocabulary of full size."""
    hidden = 32
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    at = "model.layers.0."
    shapes = {
        "model.embed_tokens": (vocabulary, hidden),
        "model.norm": (hidden,),
        at + "input_layernorm": (hidden,),
        at + "post_attention_layernorm": (hidden,),
        at + "self_attn.q_proj": (heads * head_dim, hidden),
        at + "self_attn.k_proj": (kv_heads * head_dim, hidden),
        at + "self_attn.v_proj": (kv_heads * head_dim, hidden),
        at + "self_attn.o_proj": (hidden, heads * head_dim),
        **{at + f"mlp.{name}_proj": (hidden, hidden) for name in ("gate", "up", "down")},
    }
    tensors = {f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    return Model(ModelConfig.from_hf(raw, {}, "here"), tensors, dtype=dtype)


def run_passes(model: Model, max_depth: int) -> None:
    """Passes of every size: captured, too large to be, and with chunks of prompts among them."""
    cache = model.new_kv_cache(BLOCKS, 16)
    passes = Passes(model, cache, max_depth)
    for sequences, width in ((1, 1), (1, max_depth + 1), (3, 2), (16, 1), (16, max_depth + 1), (64, 3), (20, 30)):
        table = np.zeros((sequences, 3), dtype=np.int32)
        rows = np.arange(sequences)
        batch = pack(
            np.zeros(sequences * width, dtype=np.int64), np.zeros(sequences, dtype=np.int64),
            np.full(sequences, width), table, rows, 16,
        )  # fmt: skip
        passes.forward(batch)


def verify(logits: torch.Tensor, draft_logits: torch.Tensor) -> None:
    """Verification of one batch in every mode."""
    sequences = len(logits) - len(draft_logits)
    drafted = np.zeros(sequences, dtype=np.int64)
    drafted[0] = len(draft_logits)
    draft = np.zeros(len(draft_logits), dtype=np.int32)
    for kind in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5, "top_p": 0.9}):
        request = SimpleNamespace(sampling_params=SamplingParams(**kind), seed=1)
        texts = [
            SimpleNamespace(id=i, request=request, sample_index=0, num_output_tokens=3, min_tokens=0)
            for i in range(sequences)
        ]
        for drawn_from in (None, draft_logits):
            Verifier(CPU).verify(logits, texts, drafted, draft, drawn_from)


def draw(logits: torch.Tensor) -> None:
    """A draft model's draws, in every mode."""
    for how in (TextSampling(), TextSampling(temperature=1.0), TextSampling(temperature=1.0, top_k=5, top_p=0.9)):
        for mode in ("match", "coupled", "ratio"):
            rows = DraftRows.of([how] * len(logits), [1] * len(logits), mode, Staging(CPU))
            DraftSampler(mode, rows, logits.shape[1]).draw(logits, 0)


def allocate(max_depth: int, evidence: tuple[str, ...], price: bool, effect: bool) -> None:
    """Steps of a controller on the device, for batches of several sizes."""
    settings = {
        "max_depth": max_depth,
        "policy": {"name": "roofline-budget", "horizon": "run" if price else "step"},
        "acceptance": {"sequence_effect": effect},
        "fallback": {"time_budget_ms": 60000.0},
        "exploration": {"enabled": False},
        "guard": {"enabled": False},
        "watchdog": {"enabled": False},
    }
    plain = make_controller(TuningConfig.model_validate(settings), cost=Profile([1], [1.0]), evidence=evidence)
    controller = DeviceController(plain, CPU, window_steps=10**9)
    for number, batch in enumerate((1, 3, 64)):
        ids = [f"{number}/{i}" for i in range(batch)]
        for id in ids:
            controller.add(id)
        full = np.full(batch, max_depth)
        view = StepView(controller.rows(ids), full, full, np.zeros((batch, len(evidence))))
        policy = controller.policy
        if price:
            policy.tokens_, policy.seconds_ = 10.0, 1.0
        decision = controller.plan(view)
        assert not controller.fallback.faults, controller.fallback.faults
        controller.acceptance.count(view.row, np.zeros(batch, dtype=np.int64), full, full)
        controller.observe(Outcome(decision.step, ids, decision.depth, decision.depth, 0 * decision.depth))


def launch_all() -> None:
    """All that an engine launches."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for head_dim in (64, 96, 128):
            run_passes(model_of(dtype, head_dim, 64), 8)
            run_passes(model_of(dtype, head_dim, 64), 4)
        small = model_of(dtype, 64, 64, heads=9, kv_heads=3)
        for max_depth in (1, 4, 8):
            run_passes(small, max_depth)
        measure_profile(small, most_positions=40, block_size=16, repeats=1, clock=iter(range(10**6)).__next__)
        for vocabulary in (compile_cases.VOCABULARY, compile_cases.ODD_VOCABULARY):
            logits = torch.zeros((140, vocabulary), dtype=dtype)
            for rows in (1, 3, 40, 140):
                for sequences in {max(1, rows - 20), -(-rows // 3) + rows // 2, rows}:
                    verify(logits[:rows], torch.zeros((rows - sequences, vocabulary), dtype=dtype))
                draw(logits[:rows])
    for price in (False, True):
        for effect in (False, True):
            allocate(8, ("matched_length", "age"), price, effect)
            allocate(4, (), price, effect)


def main() -> int:
    """Print what is missing, and how many were seen; 1 if any is."""
    known = set(compile_check.record())
    with backend.use("triton"):
        launched = set(compile_check.recording([launch_all]))
    missing = sorted((one.name, str(one)) for one in launched - known)
    for line in missing:
        print(*line)
    print(f"{len(launched)} launched, {len(missing)} of them not compiled")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
