"""vLLM's OpenAI server, started for real: many clients at once, wrong wishes, edits while it runs, Prometheus."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_scenes import NGRAM, PATIENT, PROMPTS

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from prometheus_server import PrometheusServer
from served_model import ServedModel, wait_for

ROOT = Path(__file__).resolve().parents[2]
TUNING = """
max_depth: 4
mode: {mode}
policy: {policy}
learned: {{file: '{folder}/learned.npz', save_every_seconds: 1.0}}
reload: {{check_every_seconds: 0.05}}
"""
ROOFLINE = "{name: roofline-budget}"
OVERRIDES: list[dict[str, Any]] = [
    {},
    {"adaptive_spec.depth": 0},
    {"adaptive_spec.depth": 4},
    {"adaptive_spec.max_depth": 2},
    {"adaptive_spec.weight": 3.0},
    {"adaptive_spec.off": True},
    {"adaptive_spec.depth": 2, "adaptive_spec.weight": 0.5},
    {"adaptive_spec.max_depth": 40, "of_another_plugin": "x"},
]
CLIENTS = 32


def tuning(folder: Path, mode: str = "on", policy: str = ROOFLINE) -> str:
    return TUNING.format(folder=folder, mode=mode, policy=policy) + PATIENT


@pytest.fixture(scope="module")
def served(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    folder = tmp_path_factory.mktemp("served")
    server = ServedModel(models[0], folder, tuning(folder), NGRAM)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def wave(server: ServedModel, texts: list[list[int]]) -> None:
    """32 clients at once: of four, one hangs up on its way; the others must get these texts.

    All are greedy: where one of a batch samples, vLLM's sampler for a CPU (0.32) divides the logits of all drafts by
    temperatures that it never wrote, with the plugin or without.
    """
    clients: list[dict[str, Any]] = []
    for i in range(CLIENTS):
        client = {"prompt": PROMPTS[i % len(PROMPTS)], "vllm_xargs": OVERRIDES[i % len(OVERRIDES)], "max_tokens": 40}
        if i % 4 == 3:
            client |= {"max_tokens": 130, "leave_after": 1 + i % 7, "ignore_eos": True}
        clients.append(client)
    answers = server.stream_all(clients)
    for i, (client, tokens) in enumerate(zip(clients, answers, strict=True)):
        if "leave_after" in client:
            assert client["leave_after"] <= len(tokens) < 130
        else:
            assert tokens == texts[i % len(PROMPTS)], client


def check_counts(server: ServedModel) -> None:
    """Once all is quiet, nothing is left, nothing failed, and our counts are vLLM's to the token."""
    sums, series = server.settled(), server.samples()
    assert sums["vllm:kv_cache_usage_perc"] == 0
    assert sums["adaptive_spec:personal_sequences"] == 0
    assert sums["adaptive_spec:faults_total"] == 0
    assert sums["adaptive_spec:requests_total"] == server.begun
    assert sums["adaptive_spec:verified_tokens_total"] == sums["vllm:spec_decode_num_draft_tokens_total"]
    assert sums["adaptive_spec:accepted_tokens_total"] == sums["vllm:spec_decode_num_accepted_tokens_total"]
    by_position = "accepted_tokens_per_pos_total"
    assert series[f"adaptive_spec:{by_position}"] == series[f"vllm:spec_decode_num_{by_position}"]
    wasted = sums["adaptive_spec:drafted_tokens_total"] - sums["adaptive_spec:accepted_tokens_total"]
    assert sums["adaptive_spec:wasted_tokens_total"] == wasted


def test_thirty_two_clients_with_wishes_of_their_own(served: ServedModel, reference: dict[str, Any]) -> None:
    assert served.settled()["adaptive_spec:tuning_generation"] == 1
    wave(served, reference["policy"]["texts"])
    check_counts(served)
    sums, series = served.metrics(), served.samples()
    assert sums["adaptive_spec:verified_tokens_total"] > 0
    assert sums["adaptive_spec:accepted_tokens_total"] > 0
    assert series["adaptive_spec:decisions_total"]["override"] > 0
    ended = series["vllm:request_success_total"]
    assert ended["length"] + ended["stop"] < served.begun  # those who hung up were let go before their end
    assert "adaptive depth is on" in served.log


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"adaptive_spec.depth": 99}, "adaptive_spec.depth is 99; this server drafts 0 to 4 tokens"),
        ({"adaptive_spec.max_dpeth": 2}, "adaptive_spec.max_dpeth is unknown; did you mean 'max_depth'"),
        (
            {"adaptive_spec.weight": "heavy"},
            "adaptive_spec.weight is 'heavy'; it must be a number over 0 and at most 1000",
        ),
        ({"adaptive_spec.depth": [1, 2]}, "adaptive_spec.depth is [1, 2]; it must be a whole number from 0 up"),
    ],
    ids=["too deep", "unknown", "no number", "a list"],
)
def test_a_wrong_wish_is_answered_with_400(
    served: ServedModel, said: dict[str, Any], answer: str, stream: bool
) -> None:
    before = served.settled()
    refused = served.ask(vllm_xargs=said, stream=stream)
    assert refused.status_code == 400, refused.text
    assert answer in refused.json()["error"]["message"]
    assert served.ask(vllm_xargs={"adaptive_spec.depth": 4}).status_code == 200
    after = served.settled()
    assert after["adaptive_spec:requests_total"] == before["adaptive_spec:requests_total"] + 1


def test_an_edited_tuning_file_takes_effect_while_it_serves(served: ServedModel, reference: dict[str, Any]) -> None:
    texts, generation = reference["policy"]["texts"], served.settled()["adaptive_spec:tuning_generation"]
    served.edit(tuning(served.folder, "off"))
    served.serve_until("adaptive_spec:tuning_generation", generation + 1)
    drafted = served.settled()["vllm:spec_decode_num_draft_tokens_total"]
    wave(served, texts)
    assert served.settled()["vllm:spec_decode_num_draft_tokens_total"] == drafted
    assert served.samples()["adaptive_spec:mode"] == {"on": 0, "shadow": 0, "off": 1}

    rejections = served.metrics()["adaptive_spec:tuning_rejections_total"]
    served.edit(tuning(served.folder, "on") + "max_dpeth: 3\n")
    served.serve_until("adaptive_spec:tuning_rejections_total", rejections + 1)
    wave(served, texts)
    sums = served.settled()
    assert sums["adaptive_spec:tuning_generation"] == generation + 1
    assert sums["vllm:spec_decode_num_draft_tokens_total"] == drafted  # the old settings still hold
    said = [line for line in served.log.splitlines() if "max_dpeth" in line and "did you mean" in line]
    assert len([line for line in said if "tuning.yaml" in line]) == 1, said

    served.edit(tuning(served.folder, "on", "{name: fixed, depth: 3}"))
    served.serve_until("adaptive_spec:tuning_generation", generation + 2)
    depths = served.samples()["adaptive_spec:depth_bucket"]
    wave(served, texts)
    check_counts(served)
    after = served.samples()["adaptive_spec:depth_bucket"]
    assert after["3.0"] - after["2.0"] > depths["3.0"] - depths["2.0"]
    assert served.metrics()["vllm:spec_decode_num_draft_tokens_total"] > drafted


def test_a_real_prometheus_reads_it_and_the_dashboard_has_data(
    served: ServedModel, reference: dict[str, Any], tmp_path: Path
) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus isn't installed (Debian: apt-get install prometheus)")
    served.edit(tuning(served.folder, "shadow"))
    generation = served.settled()["adaptive_spec:tuning_generation"]
    served.serve_until("adaptive_spec:tuning_generation", generation + 1)
    prometheus = PrometheusServer(binary, f"127.0.0.1:{served.port}", tmp_path)
    try:
        wave(served, reference["policy"]["texts"])
        served.settled()
        prometheus.catch_up()
        series = prometheus.value('count({__name__=~"adaptive_spec:.+"})')
        served.edit(tuning(served.folder, "on"))
        served.serve_until("adaptive_spec:tuning_generation", generation + 2)
        for _ in range(2):
            prometheus.catch_up()
            wave(served, reference["policy"]["texts"])
        check_counts(served)
        prometheus.catch_up()
        for ours, theirs in (("verified", "draft"), ("accepted", "accepted")):
            ours, theirs = f"adaptive_spec:{ours}_tokens_total", f"vllm:spec_decode_num_{theirs}_tokens_total"
            assert prometheus.value(f"{ours} - on(model_name, engine) {theirs}") == 0
            assert prometheus.value(ours) == served.metrics()[ours] > 0
        # Clients come and go, whatever their wishes, and no series comes with them.
        assert prometheus.value('count({__name__=~"adaptive_spec:.+"})') == series <= 200
        assert 25 <= prometheus.value('count(group by (__name__) ({__name__=~"adaptive_spec:.+"}))') <= 60
        dashboard = json.loads((ROOT / "vllm_plugin" / "grafana_dashboard.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        queries += [note["expr"] for note in dashboard["annotations"]["list"] if "expr" in note]
        assert len(queries) > 25
        for query in queries:
            filled = query.replace("$__rate_interval", "5m").replace("$__interval", "5m")
            filled = filled.replace("$model_name", "tiny").replace("$engine", ".*")
            assert "$" not in filled, query
            answer = prometheus.ask(filled)
            assert answer, query
            assert any(row["value"][1] != "NaN" for row in answer), query
    finally:
        prometheus.stop()


def test_the_end_saves_what_was_learned(served: ServedModel) -> None:
    file = served.folder / "learned.npz"
    assert served.ask().status_code == 200
    served.settled()
    wait_for(file.exists, "what was learned")
    saved = file.stat().st_mtime_ns
    served.stop()
    assert file.stat().st_mtime_ns > saved
