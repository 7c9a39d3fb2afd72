"""Drafts of a model in every sampling mode: the text, or its distribution, is the target's, whatever the depths."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chi2_contingency
from test_lossless import COST, ENGINES, MAX_DEPTH, POLICIES, RandomDepths, count_near_ties, requests, tuning
from tiny_drafts import next_logits

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Profile
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.sampling_mode import SAMPLING_MODES
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.experiments import sampled_modes
from adaptive_spec.policy import Allocation, DepthPolicy
from adaptive_spec.serving.loop import StepReport

PROMPT = [3, 7, 7, 1, 9, 4]


def make_llm(folder: Path, draft: Path | None, **settings) -> LLM:
    drafter = {"drafter": None} if draft is None else {"drafter": "draft_model", "drafter_config": {"model": draft}}
    settings = {"block_size": 8, "num_kv_blocks": 400, "max_num_batched_tokens": 256, **drafter, **settings}
    return LLM(folder, tuning=TuningConfig(mode="off"), dtype="float32", cost=Profile(*COST), **settings)


def use_policy(llm: LLM, policy: DepthPolicy) -> None:
    llm.set_policy(tuning("fixed", depth=MAX_DEPTH))
    llm.controller = llm.loop.controller = Controller(policy, AcceptanceModel(MAX_DEPTH, llm.runner.evidence), seed=3)


@pytest.fixture(scope="module")
def reference(target: Path):
    return make_llm(target, None, max_num_seqs=1, enable_prefix_caching=False).generate(*requests())


# -- match and coupled mode: the text itself ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "engine"),
    [
        ("match", "batch-16"),
        ("match", "preempting"),
        ("coupled", "batch-16"),
        ("coupled", "preempting"),
        ("coupled", "small-chunks"),
        ("coupled", "no-prefix-caching"),
    ],
)
def test_text_is_the_same_whatever_the_depths(sampling: str, engine: str, target, similar, reference) -> None:
    llm = make_llm(target, similar, sampling=sampling, **ENGINES[engine])
    prompts, params = requests()
    near_ties = accepted = rejected = preemptions = tokens = 0
    for name in ("off", "fixed-3", "roofline-budget", "random"):
        POLICIES[name](llm)
        outputs = llm.generate(prompts, params)
        assert llm.runner.fault is None
        near_ties += count_near_ties(llm, reference, outputs, params)
        stats = [output.stats for output in outputs]
        accepted += sum(s.accepted for s in stats)
        rejected += sum(s.verified - s.accepted for s in stats)
        preemptions += sum(s.preemptions for s in stats)
        tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
        for pool in (llm.scheduler.pool, llm.drafter._memory.pool) if name != "off" else (llm.scheduler.pool,):
            assert pool.num_free == pool.num_blocks
    assert near_ties <= 0.001 * tokens
    assert accepted > 200
    assert rejected > 200
    assert (preemptions > 0) == (engine == "preempting")


def test_aborted_requests_harm_no_other(target, similar, reference) -> None:
    llm = make_llm(target, similar, max_num_seqs=6, num_kv_blocks=40)
    use_policy(llm, RandomDepths())
    prompts, params = requests()
    text = {}
    for i, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
        llm.add_request(str(i), prompt, own)
        text[str(i)] = []
    for step in range(1000):
        if step % 7 == 3:
            llm.abort_request(str((step * 5) % 16 // 2 * 2))  # the even ones
        for news in llm.step():
            text[news.request_id] += news.outputs[0].token_ids
        if not llm.has_unfinished:
            break
    assert llm.runner.fault is None
    same = sum(text[str(i)] == reference[i].outputs[0].token_ids for i in range(1, 16, 2))
    assert same >= 7  # one near-tie at most
    assert any(len(text[str(i)]) < len(reference[i].outputs[0].token_ids) for i in range(0, 16, 2))
    pool = llm.drafter._memory.pool
    assert pool.num_free == pool.num_blocks


def test_an_edited_tuning_file_leaves_the_text_alone(target, similar, reference, tmp_path) -> None:
    file = tmp_path / "tuning.yaml"
    form = "max_depth: 6\nreload: {{check_every_seconds: 0.001}}\npolicy: {{name: {}}}\n"
    file.write_text(form.format("fixed, depth: 2"))
    llm = make_llm(target, similar)
    now = 0.0

    def clock():
        nonlocal now
        now += 0.001
        return now

    llm = LLM(
        target, drafter="draft_model", drafter_config={"model": similar}, tuning=file, dtype="float32",
        cost=Profile(*COST), block_size=8, num_kv_blocks=400, clock=clock,
    )  # fmt: skip
    prompts, params = requests()
    edits = iter(["fixed, depth: 5", "fixed, depth: 0", "roofline-budget"])
    steps = 0

    def edit(report):
        nonlocal steps
        steps += 1
        if steps % 8 == 0 and (words := next(edits, None)):
            file.write_text(form.format(words))

    llm.observer = edit
    outputs = llm.generate(prompts, params)
    assert llm.upkeep.generation > 2
    assert count_near_ties(llm, reference, outputs, params) <= 1
    assert {5, 0, 2} <= {depth for output in outputs for depth in output.stats.depths}


# -- a draft equal to the target ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["match", "coupled", "ratio"])
def test_a_draft_model_equal_to_the_target_is_always_accepted(sampling: str, target) -> None:
    llm = make_llm(target, target, sampling=sampling)
    prompts, params = requests()
    if sampling == "match":  # whose drafts are greedy
        params = [SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=i % 2 == 0) for i in range(16)]
    params[5] = SamplingParams(max_tokens=40, min_tokens=30, seed=5, temperature=0.0 if sampling == "match" else 1.3)
    for policy in ("fixed-4", "random"):
        POLICIES[policy](llm)
        reports: list[StepReport] = []
        llm.observer = reports.append
        llm.generate(prompts, params)
        assert sum(int(report.verified.sum()) for report in reports) > 300
        assert all((report.accepted == report.verified).all() for report in reports)


# -- ratio mode: the distribution --------------------------------------------------------------------------


def distributions(logits: torch.Tensor, cut: SamplingParams) -> np.ndarray:
    """What a row of logits is sampled by, row by row, [rows, V]."""
    x = logits.double() / cut.temperature
    if cut.top_k:
        x[x < x.topk(cut.top_k, dim=1).values[:, -1:]] = -math.inf
    probability = x.softmax(1).numpy().copy()
    for row in probability:
        order = np.argsort(-row)
        above = np.cumsum(row[order]) - row[order]
        row[order[above >= cut.top_p]] = 0.0
    return probability / probability.sum(1, keepdims=True)


def distribution(model, tokens: list[int], cut: SamplingParams) -> np.ndarray:
    return distributions(next_logits(model, tokens), cut)[0]


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 1.5, "top_p": 0.9, "top_k": 8}])
def test_two_tokens_of_ratio_mode_follow_the_targets_distribution(sampling, target, similar) -> None:
    """Chi-square over the two tokens after the first, at depths 0, 1 and 2 in one batch, given the first."""
    llm = make_llm(target, similar, sampling="ratio", max_num_seqs=64, max_num_batched_tokens=1024)
    use_policy(llm, RandomDepths())
    samples = 4000
    params = SamplingParams(n=samples, max_tokens=4, ignore_eos=True, seed=11, **sampling)
    output = llm.generate([PROMPT], params)[0]
    assert llm.runner.fault is None
    depths = Counter(own.stats.depths[0] for own in output.outputs)
    assert min(depths[0], depths[1], depths[2]) > samples // 5
    assert samples // 4 < output.stats.accepted < 0.9 * output.stats.verified
    cut = SamplingParams(**sampling)
    triples = Counter(tuple(own.token_ids[:3]) for own in output.outputs)
    first = Counter(own.token_ids[0] for own in output.outputs)
    statistic, freedom, rest, rest_expected = 0.0, 0, 0, 0.0
    for a, times in first.items():
        if times < 60:
            continue
        second = distribution(llm.model, [*PROMPT, a], cut)
        for b in np.flatnonzero(second).tolist():
            third = distribution(llm.model, [*PROMPT, a, b], cut)
            for c in range(len(third)):
                expected, got = times * second[b] * third[c], triples[a, b, c]
                assert expected > 0 or not got
                if expected >= 5:
                    statistic += (got - expected) ** 2 / expected
                    freedom += 1
                else:
                    rest, rest_expected = rest + got, rest_expected + expected
        freedom -= 1
    statistic += (rest - rest_expected) ** 2 / rest_expected
    p_value = float(chi2.sf(statistic, freedom + 1))
    print(f"\n{sampling}: chi-square {statistic:.1f} with {freedom + 1} degrees of freedom, p = {p_value:.3f}")
    assert freedom > 20
    assert p_value > 1e-4


class AsTheNeighbourWent(DepthPolicy):
    """Drafts for a sequence only where its neighbour's last drafts were accepted: as entangled as a policy can be."""

    explores = False
    needs_cost = False

    def _decide(self, view, acceptance, cost):
        went = view.evidence[:, 0]
        neighbour = np.arange(len(went)) ^ 1
        neighbour[neighbour >= len(went)] = len(went) - 1
        return Allocation(np.where((went < 0) | (went[neighbour] > 0), view.limit, 0))


def test_two_sequences_of_ratio_mode_stay_independent(target, similar) -> None:
    llm = make_llm(target, similar, sampling="ratio", max_num_seqs=64, max_num_batched_tokens=1024)
    use_policy(llm, AsTheNeighbourWent())
    params = SamplingParams(n=4000, max_tokens=6, ignore_eos=True, seed=5, temperature=1.3)
    output = llm.generate([PROMPT], params)[0]
    assert llm.runner.fault is None
    depths = Counter(depth for own in output.outputs for depth in own.stats.depths[1:2])
    assert depths[0] > 200
    assert depths.total() - depths[0] > 200
    texts = [own.token_ids for own in output.outputs]
    for at in (1, 3, 5):
        common = [token for token, _ in Counter(text[at] for text in texts).most_common(5)]
        table = np.zeros((6, 6))
        for one, other in zip(texts[::2], texts[1::2], strict=True):
            table[tuple(common.index(text[at]) if text[at] in common else 5 for text in (one, other))] += 1
        p_value = chi2_contingency(table).pvalue
        print(f"\ntoken {at} of two neighbours: p = {p_value:.3f}")
        assert p_value > 1e-4


# -- acceptance, mode by mode ------------------------------------------------------------------------------


def test_acceptance_of_each_mode_is_what_theory_says(target, similar) -> None:
    """At depth 1, in every context: min(p, q) summed for ratio mode; p of the likeliest draft for match mode; and for
    coupled mode between (1 - TV) / (1 + TV) and 1 - TV (Daliri, Musco and Suresh 2024)."""
    for heat in (0.7, 1.3):
        measured = {}
        for sampling in ("match", "coupled", "ratio"):
            llm = make_llm(target, similar, sampling=sampling)
            llm.set_policy(tuning("fixed", depth=1))
            judged = defaultdict(list)  # of each text: output positions of drafts, and whether they were accepted

            def watch(report, judged=judged):
                for text, depth, gained in zip(report.sequences, report.verified, report.emitted, strict=True):
                    if depth:
                        judged[text].append((len(text.tokens) - int(gained), int(gained) - 1))

            llm.observer = watch
            params = [SamplingParams(max_tokens=40, ignore_eos=True, seed=i, temperature=heat) for i in range(16)]
            llm.generate(requests()[0], params)
            cut = SamplingParams(temperature=heat)
            p, q = (
                np.concatenate(
                    [
                        distributions(next_logits(model, text.tokens, len(text.tokens)), cut)[[at - 1 for at, _ in own]]
                        for text, own in judged.items()
                    ]
                )
                for model in (llm.model, llm.drafter.model)
            )
            accepted = [went for own in judged.values() for _, went in own]
            overlap = np.minimum(p, q).sum(1)
            lower = overlap / (2 - overlap)
            expected = {"match": p[np.arange(len(p)), q.argmax(1)], "ratio": overlap, "coupled": overlap}[sampling]
            share = float(np.mean(accepted))
            spread = 4 * math.sqrt(0.25 / len(p))
            measured[sampling] = share
            print(f"\nT = {heat}, {sampling}: {share:.3f} accepted of {len(p)}, theory {expected.mean():.3f}", end="")
            if sampling == "coupled":
                print(f" at most, {lower.mean():.3f} at least", end="")
                assert lower.mean() - spread < share < expected.mean() + spread
            else:
                assert abs(share - expected.mean()) < spread
        assert measured["match"] < measured["ratio"]
    print()


def test_the_command_that_measures_it(target, tmp_path, capsys) -> None:
    folder = tmp_path / "long"
    shutil.copytree(target, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 4096  # the demo's prompts, at one token a letter
    (folder / "config.json").write_text(json.dumps(config))
    arguments = {"model": str(folder), "temperatures": "0,1", "depth": 3, "max_tokens": 12, "max_model_len": 4096}
    sampled_modes.main(**arguments, left_out=1, dtype="float32", seed=0, draft=None, as_json=True)
    pruned = json.loads(capsys.readouterr().out)
    assert pruned["draft"].endswith("without 1 layers")
    rows = {(row["temperature"], row["sampling"]): row for row in pruned["results"]}
    assert len(rows) == 6
    greedy = [rows[0.0, mode] for mode in SAMPLING_MODES]
    assert len({(row["tokens_per_step"], *row["acceptance"]) for row in greedy}) == 1
    assert 1 < greedy[0]["tokens_per_step"] < 4
    sampled_modes.main(**arguments, left_out=1, dtype="float32", seed=0, draft=str(folder), as_json=False)
    told = capsys.readouterr().out
    assert told.count("100.0%") >= 5 * 3  # the model as its own draft, but for the likeliest drafts of match mode
