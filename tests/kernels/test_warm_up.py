"""What is warmed up before the first step is all that the steps launch afterwards."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import Profile
from adaptive_spec.deployment import make_controller, retune
from adaptive_spec.engine.device_controller import DeviceController
from adaptive_spec.engine.drafters.draft_sampler import DraftRows, DraftSampler
from adaptive_spec.engine.model import Model
from adaptive_spec.engine.model_config import ModelConfig
from adaptive_spec.engine.packing import pack
from adaptive_spec.engine.passes import Passes
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.staging import Staging
from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.engine.verifier import Verifier
from adaptive_spec.engine.warm_up import warm_up, warm_up_drafting, warm_up_passes

VOCABULARY = 50


def tiny_model(device: torch.device, dtype: torch.dtype = torch.float32) -> Model:
    """A model of one layer of zeros, with a tied head."""
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    at = "model.layers.0."
    shapes = {"model.embed_tokens": (VOCABULARY, 16), "model.norm": (16,)}
    shapes |= {at + f"{name}_layernorm": (16,) for name in ("input", "post_attention")}
    shapes |= {at + f"self_attn.{name}_proj": (16 if name in "kv" else 32, 16) for name in "qkv"}
    shapes |= {at + "self_attn.o_proj": (16, 32)}
    shapes |= {at + f"mlp.{name}_proj": (16, 16) for name in ("gate", "up", "down")}
    tensors = {f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    return Model(ModelConfig.from_hf(raw, {}, "here"), tensors, dtype=dtype, device=str(device))


@pytest.fixture
def launched(monkeypatch):
    """The kernels that are launched, each with its constants."""
    from adaptive_spec.kernels import verify

    seen: set[tuple[object, ...]] = set()
    kind = type(verify.greedy_kernel)
    run = kind.run

    def noting(self, *args, **kwargs):
        constants = {name: value for name, value in kwargs.items() if name.isupper()}
        seen.add((self.fn.__name__, *sorted(constants.items())))
        return run(self, *args, **kwargs)

    monkeypatch.setattr(kind, "run", noting)
    return seen


def prompt_pass(passes: Passes, sequences: int, blocks: int) -> None:
    """600 rows of prompts, more than any captured pass has."""
    zeros = np.zeros(sequences, dtype=np.int64)
    table = np.zeros((sequences, blocks), dtype=np.int32)
    tokens = np.zeros(600, dtype=np.int64)
    passes.forward(pack(tokens, zeros, zeros + 600 // sequences, table, zeros[:1], 16))


def verify(model: Model, depth: int, ratio: bool) -> None:
    """Verification of a batch of two, greedily, sampled and truncated."""
    logits = torch.zeros((depth + 2, VOCABULARY), device=model.device)
    for kind in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5, "top_p": 0.9}):
        request = SimpleNamespace(sampling_params=SamplingParams(**kind), seed=1)
        texts = [
            SimpleNamespace(id=i, request=request, sample_index=0, num_output_tokens=3, min_tokens=0) for i in range(2)
        ]
        draft = np.zeros(depth, dtype=np.int32)
        drafted = np.array([depth, 0])
        Verifier(model.device).verify(logits, texts, drafted, draft, logits[:depth] if ratio else None)


def test_prompts_launch_nothing_new(kernels, launched):
    model = tiny_model(kernels)
    passes = Passes(model, model.new_kv_cache(70, 16), 4)
    before = passes.cache.k.clone()
    warm_up_passes(passes)
    assert torch.equal(passes.cache.k, before)
    warm = set(launched)
    for sequences, blocks in ((1, 40), (20, 2)):  # keys split, and not
        prompt_pass(passes, sequences, blocks)
    assert launched <= warm, f"launched later: {sorted(map(str, launched - warm))}"


@pytest.mark.parametrize(("mode", "max_depth"), [("match", 0), ("match", 8), ("ratio", 20)])
def test_a_targets_verification_launches_nothing_new(kernels, launched, mode, max_depth):
    model = tiny_model(kernels)
    warm_up(Passes(model, model.new_kv_cache(70, 16), max_depth), max_depth, mode)
    warm = set(launched)
    assert "attention_kernel" in {name for name, *_ in warm}
    for depth in {0, min(3, max_depth), max_depth}:
        verify(model, depth, mode == "ratio")
    assert launched <= warm, f"launched later: {sorted(map(str, launched - warm))}"


@pytest.mark.parametrize("mode", ["match", "coupled", "ratio"])
def test_a_draft_models_draws_launch_nothing_new(kernels, launched, mode):
    model = tiny_model(kernels)
    warm_up_drafting(Passes(model, model.new_kv_cache(70, 16), 1), VOCABULARY, mode)
    warm = set(launched)
    assert "attention_kernel" in {name for name, *_ in warm}
    for kind in (TextSampling(), TextSampling(temperature=0.7), TextSampling(temperature=0.7, top_k=3, top_p=0.9)):
        rows = DraftRows.of([kind] * 3, [5] * 3, mode, Staging(model.device))
        DraftSampler(mode, rows, VOCABULARY).draw(torch.zeros((3, VOCABULARY), device=model.device), 1)
    assert launched <= warm, f"launched later: {sorted(map(str, launched - warm))}"


def test_nothing_is_warmed_up_where_passes_are_not_padded(launched):
    model = tiny_model(torch.device("cpu"))
    warm_up(Passes(model, model.new_kv_cache(4, 16), 4), 4, "match")
    assert not launched


# -- allocation ---------------------------------------------------------------------------------------------


def tuning(horizon: str, effect: bool) -> TuningConfig:
    return TuningConfig.model_validate(
        {
            "max_depth": 4,
            "policy": {"name": "roofline-budget", "horizon": horizon},
            "acceptance": {"sequence_effect": effect},
        }
    )


@pytest.mark.parametrize("horizon", ["step", "run"])
def test_a_controller_is_warmed_up_with_and_without_a_price(kernels, launched, horizon):
    plain = make_controller(tuning(horizon, effect=False), cost=Profile([1], [1.0]))
    controller = DeviceController(plain, kernels, window_steps=4)
    assert np.isnan(controller.policy.goodput_)  # what is warmed up teaches nothing
    for kernel in ("price_kernel", "choose_kernel"):
        priced = {dict(constants)["PRICED"] for name, *constants in launched if name == kernel}
        assert priced == {False, True}
    # Edited settings may bring other kernels.
    launched.clear()
    retune(controller, tuning("run", effect=True))
    effects = {dict(constants).get("EFFECT") for name, *constants in launched if name == "survival_kernel"}
    assert effects == {True}
    assert controller.acceptance.population.step == 0


# -- memory -------------------------------------------------------------------------------------------------


def test_a_cache_goes_with_its_last_user_and_what_was_captured_with_it(kernels):
    """No cycle keeps it until the collector comes by: a GPU's memory would be full of earlier engines."""
    model = tiny_model(kernels)
    cache = model.new_kv_cache(8, 16)
    passes = Passes(model, cache, 2)
    assert passes.prepare(2, 2) > 0
    left = [weakref.ref(cache), weakref.ref(cache.captured)]
    gc.disable()
    try:
        del cache, passes
        assert [one() for one in left] == [None, None]
    finally:
        gc.enable()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: only there a pass is captured in a CUDA graph")
def test_graphs_share_their_memory(device):
    """The largest comes first; those after it, which each fit what it left, take none of their own."""
    model = tiny_model(device)
    passes = Passes(model, model.new_kv_cache(8, 16), 8)
    passes.prepare(16, 8)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    assert Passes(model, passes.cache, 4).prepare(16, 4) > 10
    assert torch.cuda.memory_reserved() == before


def test_a_tied_head_is_the_embedding_itself(device):
    """In float16 no backend lays weights out anew."""
    model = tiny_model(device, torch.float16)
    assert model._head._weight.data_ptr() == model._embedding.data_ptr()
