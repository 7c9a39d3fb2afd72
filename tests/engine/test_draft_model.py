"""The draft model: it drafts what its model writes, whatever it missed, with as few passes as there are drafts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_drafts import next_logits, write_renamed
from tiny_llama import EOS, MAX_LENGTH, VOCABULARY, make_tiny_llm, write_tiny_llama

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import DraftCost
from adaptive_spec.engine.drafters import make_drafter
from adaptive_spec.engine.drafters.draft_model import DraftModel
from adaptive_spec.engine.drafters.draft_sampler import truncate
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.kernels import noise
from adaptive_spec.kernels.reference import match_scores

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
KINDS = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 0.9, "top_k": 4},
    {"temperature": 1.2, "top_k": 12, "top_p": 0.9},
)


def started(folder: Path, *, num_blocks: int = 200, sampling: str = "match", **arguments: int) -> DraftModel:
    drafter = DraftModel(folder, dtype="float32", **arguments)
    drafter.start(num_blocks=num_blocks, block_size=8, max_num_seqs=8, vocab_size=VOCABULARY, sampling=sampling)
    return drafter


def limits(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# -- what it drafts ----------------------------------------------------------------------------------------


def check_draft(model, tokens: list[int], draft: list[int], how: TextSampling, mode: str) -> torch.Tensor:
    """Assert that each draft is what the definition says after those before it; return the logits, [drafts, V]."""
    logits = next_logits(model, [*tokens, *draft[:-1]], len(draft))
    for j, (row, token) in enumerate(zip(logits, draft, strict=True)):
        position = len(tokens) - how.num_prompt_tokens + j
        if position < how.min_tokens:
            row[list(how.stops)] = -torch.inf
        heat = 0.0 if mode == "match" else how.temperature
        scores = match_scores(row, heat, how.top_k, how.top_p, how.seed, how.sample_index, position)
        if heat and mode == "ratio":
            key = noise.row_key(*torch.tensor([how.seed, how.sample_index, position]), stream=noise.DRAFT_STREAM)
            drawn = row / heat + noise.gumbel(key, torch.arange(len(row)))
            scores = torch.where(scores > -torch.inf, drawn, -torch.inf)
        assert token == int(scores.argmax())
    return logits


@pytest.mark.parametrize("mode", ["match", "coupled", "ratio"])
@pytest.mark.parametrize("num_blocks", [200, 24])
def test_it_drafts_what_its_model_would_write(mode: str, num_blocks: int, similar: Path) -> None:
    """Any depths, any of the drafts accepted, texts that come, wait and go; with few blocks, texts lose theirs."""
    drafter = started(similar, num_blocks=num_blocks, sampling=mode)
    model = drafter.model
    rng = np.random.default_rng(4)
    texts: dict[int, list[int]] = {}
    how: dict[int, TextSampling] = {}
    short = checked = 0
    for step in range(48):
        if step % 6 == 0:
            texts[step] = rng.integers(0, VOCABULARY, rng.integers(1, 40)).tolist()
            how[step] = TextSampling(
                **KINDS[len(how) % len(KINDS)], seed=step, sample_index=step % 3, num_prompt_tokens=len(texts[step]),
                min_tokens=10, stops=(3, EOS),
            )  # fmt: skip
            drafter.add(step, texts[step])
            drafter.sample_as(step, how[step])
        if len(texts) > 6:
            gone = int(rng.choice(list(texts)))
            drafter.remove(gone)
            del texts[gone]
        ids = [id for id in texts if rng.random() < 0.7]
        if not ids:
            continue
        offer = drafter.offer(ids, rng.integers(0, 5, len(ids)))
        short += int((offer.count == 0).sum())
        depth = rng.integers(0, offer.count + 1)
        passes = drafter.passes
        cu, tokens = drafter.draft(ids, depth)
        assert drafter.passes - passes == depth.max()
        assert np.diff(cu).tolist() == depth.tolist()
        for i, id in enumerate(ids):
            draft = tokens[cu[i] : cu[i + 1]].tolist()
            if draft:
                logits = check_draft(model, texts[id], draft, how[id], mode)
            if draft and mode == "ratio":
                drawn_from = drafter.draft_logits[cu[i] : cu[i + 1]]
                kept = drawn_from > -torch.inf
                torch.testing.assert_close(drawn_from[kept], logits[kept], atol=1e-4, rtol=1e-4)
                assert kept[range(len(draft)), draft].all()
            checked += len(draft)
            accepted = draft[: rng.integers(0, len(draft) + 1)]
            new = [*accepted, int(rng.integers(0, VOCABULARY))]
            drafter.extend(id, new)
            texts[id] += new
    assert checked > 100
    for id in texts:
        drafter.remove(id)
    pool = drafter._memory.pool
    assert pool.num_free == pool.num_blocks


def test_drafting_again_without_news_gives_the_same(similar: Path) -> None:
    drafter = started(similar)
    drafter.add("a", [1, 2, 3, 4])
    drafter.offer(["a"], limits(4))
    first = drafter.draft(["a"], limits(4))[1].tolist()
    assert drafter.draft(["a"], limits(4))[1].tolist() == first
    assert drafter.draft(["a"], limits(2))[1].tolist() == first[:2]
    drafter.extend("a", [*first[:1], 9])
    assert drafter.draft(["a"], limits(0))[1].tolist() == []
    drafter.offer(["a"], limits(2))
    after = drafter.draft(["a"], limits(2))[1].tolist()
    check_draft(drafter.model, [1, 2, 3, 4, first[0], 9], after, TextSampling(), "match")


def test_what_the_noise_may_not_draw_is_cut_off() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 30, generator=generator).mul(2).round(decimals=1)  # with ties
    logits[7, 3:9] = torch.nan
    logits[8, 4:] = -torch.inf
    heat = torch.rand(40, generator=generator) + 0.3
    top_k = torch.randint(0, 12, (40,), generator=generator).int()
    top_p = torch.where(torch.rand(40, generator=generator) < 0.3, 1.0, torch.rand(40, generator=generator))
    got = truncate(logits, heat, top_k, top_p)
    for row in range(40):
        kept = match_scores(logits[row], float(heat[row]), int(top_k[row]), float(top_p[row])) > -torch.inf
        assert torch.equal(got[row] > -torch.inf, kept)
        assert torch.equal(got[row][kept], logits[row][kept])


# -- the contract ------------------------------------------------------------------------------------------


def test_unknown_and_duplicate_ids_and_too_deep_drafts_are_named(similar: Path) -> None:
    drafter = started(similar)
    drafter.add("a", [1, 2])
    with pytest.raises(ValueError, match="'a' was already added"):
        drafter.add("a", [1])
    for call in (
        lambda: drafter.extend("b", [1]),
        lambda: drafter.remove("b"),
        lambda: drafter.sample_as("b", TextSampling()),
        lambda: drafter.offer(["a", "b"], limits(1, 1)),
        lambda: drafter.draft(["b"], limits(0)),
    ):
        with pytest.raises(KeyError, match="knows no sequence 'b'"):
            call()
    drafter.offer(["a"], limits(2))
    with pytest.raises(ValueError, match="'a' can't be drafted 3 deep: this step's offer is 2"):
        drafter.draft(["a"], limits(3))
    drafter.extend("a", [4])
    with pytest.raises(ValueError, match="offer is 0"):
        drafter.draft(["a"], limits(1))
    with pytest.raises(RuntimeError, match="ratio mode"):
        _ = drafter.draft_logits
    with pytest.raises(RuntimeError, match="no KV cache yet"):
        DraftModel(similar, dtype="float32").offer([], limits())


def test_offers_end_where_the_models_length_and_the_cache_do(similar: Path) -> None:
    drafter = started(similar, num_blocks=60)
    drafter.add("long", [1] * (MAX_LENGTH - 3))
    drafter.add("full", [1] * (MAX_LENGTH + 1))
    assert drafter.offer(["long", "full"], limits(9, 9)).count.tolist() == [4, 0]
    assert len(drafter.draft(["long"], limits(4))[1]) == 4
    tight = started(similar, num_blocks=3)
    tight.add("a", [1] * 12)
    tight.add("b", [2] * 12)
    assert tight.offer(["a", "b"], limits(9, 9)).count.tolist() == [9, 0]  # 12 + 8 tokens are three blocks of 8
    assert tight.offer(["b"], limits(9)).count.tolist() == [9]  # the idle one lost its own
    assert tight.offer(["b"], limits(20)).count.tolist() == [13]


def test_texts_that_lag_behind_take_turns_and_hold_up_nobody(similar: Path) -> None:
    drafter = started(similar, max_catch_up=50, catch_up_steps=10)
    for id, length in (("a", 31), ("b", 41), ("c", 91)):
        drafter.add(id, [1] * length)
    ids = ["a", "b", "c"]
    counts = []
    for _ in range(3):  # nobody is drafted for: the depths were 0
        offer = drafter.offer(ids, limits(2, 2, 2))
        counts.append(offer.count.tolist())
        assert drafter.lag(ids) == {0: 3, 1: 4, 2: 9}[offer.count.tolist().index(2)]
    assert counts == [[2, 0, 0], [0, 2, 0], [0, 0, 2]]
    drafter.draft(["c"], limits(2))
    assert drafter.caught_up == 90
    drafter.extend("c", [1])
    counts = [drafter.offer(ids, limits(2, 2, 2)).count.tolist() for _ in range(2)]
    assert counts == [[2, 0, 2], [0, 2, 2]]
    assert drafter.lag(["c"]) == 0


def test_the_last_acceptance_is_its_evidence(similar: Path) -> None:
    drafter = started(similar)
    drafter.add("a", [1, 2, 3])
    assert drafter.offer(["a"], limits(3)).evidence.tolist() == [[-1.0]]
    draft = drafter.draft(["a"], limits(3))[1].tolist()
    drafter.extend("a", [*draft[:2], 0])
    assert drafter.offer(["a"], limits(3)).evidence.tolist() == [[2.0]]
    drafter.extend("a", [0])  # nothing was drafted
    assert drafter.offer(["a"], limits(3)).evidence.tolist() == [[2.0]]


# -- in the engine -----------------------------------------------------------------------------------------


def test_its_passes_are_the_deepest_depth_of_each_step(target: Path, similar: Path) -> None:
    llm = make_tiny_llm(target, drafter="draft_model", drafter_config={"model": similar}, dtype="float32")
    drafter = llm.drafter
    steps = []

    def watch(report):
        nonlocal before
        deepest = int(report.drafted.max(initial=0))
        steps.append((deepest, drafter.passes - before, report.time.lag))
        before = drafter.passes

    before = 0
    llm.observer = watch
    params = [
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, extra_args={"adaptive_spec.depth": depth})
        for depth in (0, 1, 4)
    ]
    llm.generate(["abc", "defde", "hello"], params)
    assert [passes for _, passes, _ in steps] == [deepest for deepest, _, _ in steps]
    assert steps[1] == (4, 4, 5 + 5)  # the two prompts that are drafted for are caught up on
    assert all(lag <= 2 for _, _, lag in steps[2:])
    for depth, own in zip((0, 1, 4), params, strict=True):
        steps.clear()
        llm.generate("abcabc", own)
        assert [passes for _, passes, _ in steps] == [deepest for deepest, _, _ in steps]
        assert max(deepest for deepest, _, _ in steps) == depth
    llm.observer = None
    passes = drafter.passes
    llm.set_policy(TuningConfig(mode="off"))
    llm.generate("abc", GREEDY)
    assert drafter.passes == passes


def test_another_vocabulary_is_refused(target: Path, tmp_path: Path) -> None:
    stranger = write_renamed(tmp_path / "stranger", target)
    with pytest.raises(ValueError, match="stranger has another vocabulary than the target model"):
        make_tiny_llm(target, drafter="draft_model", drafter_config={"model": stranger})
    llm = make_tiny_llm(target)
    had = llm.drafter
    with pytest.raises(ValueError, match="another vocabulary"):
        llm.set_policy(None, DraftModel(stranger))
    assert llm.drafter is had
    assert llm.sampling == "match"


def test_padded_vocabularies_of_other_sizes_go_together(target: Path, tmp_path: Path) -> None:
    """Families pad the logits of their models to different sizes; the tokens are the same."""
    for own, other in ((40, 28), (28, 40)):
        big = write_tiny_llama(tmp_path / f"target{own}", vocabulary=own)
        small = write_tiny_llama(tmp_path / f"draft{other}", vocabulary=other)
        for folder in (big, small):  # the tokenizer knows no padding
            (folder / "tokenizer.json").write_bytes((target / "tokenizer.json").read_bytes())
        for sampling in ("coupled", "ratio"):
            llm = make_tiny_llm(
                big, drafter="draft_model", drafter_config={"model": small}, sampling=sampling, dtype="float32"
            )
            llm.set_policy(TuningConfig.model_validate({"policy": {"name": "fixed", "depth": 3}}))
            output = llm.generate("abcabc", SamplingParams(temperature=1.5, max_tokens=60, ignore_eos=True, seed=1))[0]
            assert llm.runner.fault is None
            assert output.stats.verified > 60


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"drafter": "draft_model"}, TypeError, "needs its parameter 'model'"),
        ({"drafter": "prompt_lookup", "sampling": "ratio"}, ValueError, "'prompt_lookup' draws nothing"),
        ({"drafter": "none", "sampling": "coupled"}, ValueError, "'none' draws nothing"),
        ({"drafter": None, "sampling": "ratio"}, ValueError, "there is no drafter"),
        ({"sampling": "rejection"}, ValueError, "must be one of match, coupled, ratio"),
    ],
)
def test_what_does_not_go_together_is_refused(target: Path, settings, error, message) -> None:
    with pytest.raises(error, match=message):
        make_tiny_llm(target, **settings)


def test_the_sampling_mode_suits_the_drafter(target: Path, similar: Path) -> None:
    draft = {"drafter": "draft_model", "drafter_config": {"model": similar}}
    assert make_tiny_llm(target).sampling == "match"
    assert make_tiny_llm(target, **draft).sampling == "coupled"
    assert make_tiny_llm(target, **draft, sampling="match").sampling == "match"
    llm = make_tiny_llm(target)
    llm.set_policy(None, make_drafter("draft_model", model=similar))
    assert llm.sampling == llm.runner.sampling == "coupled"


def test_its_memory_is_counted(target: Path, similar: Path) -> None:
    settings = {"num_kv_blocks": None, "kv_cache_memory_bytes": 2**19, "dtype": "float32"}
    alone = make_tiny_llm(target, **settings)
    both = make_tiny_llm(target, **settings, drafter="draft_model", drafter_config={"model": similar})
    assert both.scheduler.pool.num_blocks == alone.scheduler.pool.num_blocks // 2
    assert both.drafter._memory.pool.num_blocks == both.scheduler.pool.num_blocks


def test_engines_share_what_was_loaded_and_timed(target: Path, similar: Path) -> None:
    settings = {"drafter": "draft_model", "drafter_config": {"model": similar}, "cost": None}
    first = make_tiny_llm(target, **settings)
    second = make_tiny_llm(first, **settings)
    assert second.drafter is not first.drafter
    assert second.drafter.model is first.drafter.model
    assert second._pricing.draft_costs is first._pricing.draft_costs
    assert len(first._pricing.draft_costs) == 1


# -- what it costs -----------------------------------------------------------------------------------------


def test_its_passes_are_timed_by_depth_and_number_of_texts(similar: Path) -> None:
    drafter = started(similar, max_catch_up=200)
    now = 0.0
    forward = drafter.model.forward

    def slow(batch, cache):
        nonlocal now
        now += 1.0 + 0.25 * len(batch.kv_len) + 0.125 * (len(batch.tokens) - len(batch.kv_len))
        return forward(batch, cache)

    drafter.model.forward = slow
    try:
        cost = drafter.measure(lambda: now)
    finally:
        del drafter.model.forward
    assert cost.sequences == (1, 2, 4, 8)
    assert cost.each == (1.25, 1.5, 2.0, 3.0)
    assert cost.idle == cost.start == (0.0,) * 4
    assert cost.catch_up == 0.0
    assert cost.lag_position == pytest.approx(0.125)
    assert drafter._texts == {}
    assert drafter._memory.pool.num_free == 200


def test_timing_goes_as_far_as_the_cache(similar: Path) -> None:
    drafter = started(similar, num_blocks=40)
    assert drafter.measure(iter(range(1000)).__next__).sequences == (1, 2)
    assert started(similar, num_blocks=2).measure(iter(range(1000)).__next__).sequences == (1,)


def test_the_cost_model_knows_what_drafting_costs(target: Path, similar: Path, tmp_path: Path) -> None:
    draft = {"drafter": "draft_model", "drafter_config": {"model": similar}, "cost": None}
    depth = np.arange(4)
    cost = make_tiny_llm(target, **draft).controller.cost
    assert cost is not None
    seconds = cost.draft(depth, 3)
    assert seconds[0] == 0.0
    assert seconds[1] > 0.0
    np.testing.assert_allclose(seconds, depth * seconds[1])
    assert cost.draft(depth, 3, lag=100)[0] == 0.0
    file = tmp_path / "curve.json"
    tuning = TuningConfig.model_validate({"cost": {"source": "file", "file": str(file), "online": {"enabled": False}}})
    file.write_text('{"verify_ms_by_tokens": {"1": 10, "64": 20}}')
    assert make_tiny_llm(target, **draft, tuning=tuning).controller.cost.draft(depth, 3)[1] > 0.0
    file.write_text('{"verify_ms_by_tokens": {"1": 10, "64": 20}, "draft_ms_per_depth_by_requests": {"1": 3}}')
    told = make_tiny_llm(target, **draft, tuning=tuning).controller.cost
    np.testing.assert_allclose(told.draft(depth, 3), [0.0, 0.003, 0.006, 0.009])
    assert make_tiny_llm(target, cost=None).controller.cost.draft(depth, 3).tolist() == [0.0] * 4
    assert DraftCost.free().seconds(depth, 3).tolist() == [0.0] * 4
