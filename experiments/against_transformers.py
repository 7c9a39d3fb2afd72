"""The engine without speculation against transformers' `generate`: same weights, dtype and threads, one sequence.

    python -m adaptive_spec.experiments.against_transformers

Both answer the demo's prompts greedily, in turn, round by round; the tokens of the first answer to each prompt
are left out of the timing with its prefill. Needs transformers.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from adaptive_spec.cli.comparison import Ratio
from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.weights import Checkpoint, read_checkpoint
from adaptive_spec.experiments.demo import demo_prompts


def reference_model(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The same checkpoint as a transformers model."""
    import transformers

    c = checkpoint.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        max_position_embeddings=c.max_model_len,
        rms_norm_eps=c.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tie_word_embeddings,
        eos_token_id=None,  # both go on to the last token
    )
    model: Any = transformers.LlamaForCausalLM(config)
    missing = model.load_state_dict(checkpoint.tensors, strict=False).missing_keys
    if set(missing) - {"lm_head.weight"}:
        raise ValueError(f"transformers' model lacks {sorted(missing)}")
    model.tie_weights()
    return model.to(dtype).eval()


def main(
    rounds: Annotated[int, typer.Option(min=2, help="Rounds over all prompts.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, max=12, help="Of the demo's prompts.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of every answer.")] = 64,
    model: Annotated[str, typer.Option(help="A checkpoint of the plain Llama architecture.")] = "smollm2",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time both, side by side."""
    llm = LLM(model, drafter=None, tuning=TuningConfig(mode="off"), max_num_seqs=1, max_model_len=1024)
    theirs = reference_model(read_checkpoint(model), llm.model.dtype)
    texts = []
    for prompt in demo_prompts()[:prompts]:
        chat = llm.tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}])
        texts.append(llm.tokenizer.encode(chat, add_special_tokens=False))

    def ours(text: list[int], count: int) -> None:
        llm.reset_prefix_cache()
        llm.generate([text], SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True))

    @torch.inference_mode()
    def generate(text: list[int], count: int) -> None:
        ids = torch.tensor([text])
        theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)

    def seconds_per_token(run: Any, text: list[int]) -> float:
        begin = time.perf_counter()
        run(text, 1)
        middle = time.perf_counter()
        run(text, max_tokens)
        return (time.perf_counter() - middle - (middle - begin)) / (max_tokens - 1)

    threads = torch.get_num_threads()
    for run in (ours, generate):
        run(texts[0], 4)
    engine: list[float] = []
    reference: list[float] = []
    for _ in track(range(rounds), "rounds", transient=True):
        own, other = [], []
        for text in texts:
            own.append(seconds_per_token(ours, text))
            other.append(seconds_per_token(generate, text))
        engine.append(sum(own) / len(own))
        reference.append(sum(other) / len(other))
    assert torch.get_num_threads() == threads, "torch's thread count changed during the run"
    ratio = Ratio.paired(reference, engine)
    result = {
        "dtype": str(llm.model.dtype),
        "threads": threads,
        "engine_ms_per_token": 1e3 * median(engine),
        "transformers_ms_per_token": 1e3 * median(reference),
        "speed_ratio": ratio.value,
        "interval": [ratio.low, ratio.high],
    }
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        print(
            f"{result['dtype']}, {threads} threads, one sequence: {result['engine_ms_per_token']:.1f} ms a token, "
            f"transformers {result['transformers_ms_per_token']:.1f}; {ratio.value:.2f} times as fast "
            f"[{ratio.low:.2f}, {ratio.high:.2f}]"
        )


if __name__ == "__main__":
    typer.run(main)
