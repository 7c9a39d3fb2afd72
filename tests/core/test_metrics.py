"""The Prometheus metrics: what they say, that they parse, and each way by which they are given out."""

from __future__ import annotations

import gc
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest
from scraped import K, deploy, samples, scrape, value

from adaptive_spec.metrics import FAULTS, METRICS, PREFIX, register, unregister
from adaptive_spec.metrics_server import MetricsServer
from adaptive_spec.step import Decision
from adaptive_spec.step_counts import DECIDED_BY, KINDS_KEPT

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


def test_what_is_scraped_is_what_was_counted() -> None:
    upkeep = deploy()
    upkeep.counts.count_request(True)
    upkeep.counts.count_request(False)
    upkeep.controller.fallback.faults.update({"not an array": 2, "a new kind": 1})
    upkeep.counts.count_fault("hook")
    found = scrape(upkeep)
    counts = upkeep.counts
    for depth in range(K + 1):
        assert value(found, "depth_bucket", le=f"{depth}.0") == counts.depth[: depth + 1].sum()
    assert value(found, "depth_bucket", le="+Inf") == value(found, "depth_count") == counts.depth.sum() == 5 * 120
    assert value(found, "depth_sum") == counts.depth @ np.arange(K + 1)
    assert value(found, "shadow_depth_count") == 0
    rows, columns = np.indices((K + 1, K + 1))
    assert value(found, "verified_tokens_total") == (counts.outcomes * rows).sum() > 0
    assert value(found, "accepted_tokens_total") == (counts.outcomes * columns).sum() > 0
    assert value(found, "drafted_tokens_total") == counts.drafted
    assert value(found, "wasted_tokens_total") == counts.drafted - (counts.outcomes * columns).sum()
    for k in range(K):
        assert value(found, "verified_tokens_per_pos_total", position=k) == counts.outcomes[k + 1 :].sum()
        assert value(found, "accepted_tokens_per_pos_total", position=k) == counts.outcomes[:, k + 1 :].sum()
        reached = counts.outcomes[k + 1 :, k:].sum()
        assert value(found, "reached_tokens_per_pos_total", position=k) == reached
    assert sum(value(found, "steps_total", decided_by=name) for name in DECIDED_BY) == 120
    assert sum(value(found, "decisions_total", decided_by=name) for name in DECIDED_BY) == 600
    assert value(found, "decisions_total", decided_by="explore") > 0
    assert value(found, "decision_seconds_bucket", le="0.0002") == 0
    assert value(found, "decision_seconds_bucket", le="0.0005") == 120
    assert value(found, "decision_seconds_sum") == pytest.approx(120 * 3e-4)
    assert value(found, "faults_total", kind="not_an_array") == 2
    assert value(found, "faults_total", kind="other") == 1
    assert value(found, "faults_total", kind="outside_hook") == 1
    assert value(found, "requests_total", adapted="true") == value(found, "requests_total", adapted="false") == 1
    assert value(found, "sequences") == 5
    assert [value(found, "mode", mode=mode) for mode in ("on", "shadow", "off")] == [1, 0, 0]
    assert value(found, "policy_info", policy="roofline-budget") == 1
    assert value(found, "tuning_generation") == 1
    assert value(found, "guard_on") == 1
    assert value(found, "exploration_earned_tokens") > value(found, "exploration_spent_tokens") > 0


def test_shadow_depths_are_told_apart() -> None:
    upkeep = deploy(steps=0, mode="shadow")
    depth = np.array([1, 3, 4])
    adapted, verified = np.array([False, True, False]), np.array([4, 3, 3])
    upkeep.counts.count_decision(Decision(1, np.arange(3), depth, 4), adapted=adapted)
    upkeep.counts.count_shadow_outcome(depth, adapted, verified, np.array([2, 3, 0]))
    found = scrape(upkeep)
    assert value(found, "depth_sum") == 3
    assert value(found, "shadow_depth_sum") == 5
    assert value(found, "shadow_verified_tokens_total") == 1 + 3
    assert value(found, "shadow_accepted_tokens_total") == 1
    assert value(found, "mode", mode="shadow") == 1


def test_parts_that_a_deployment_has_not_are_left_out() -> None:
    found = scrape(
        deploy(steps=1, guard={"enabled": False}, watchdog={"enabled": False}, exploration={"enabled": False})
    )
    names = {name for name, _ in found}
    assert not [name for name in names if re.search("guard|watchdog|exploration|state_", name)]


def test_several_engines_share_a_registry_and_names_must_differ() -> None:
    first, second = deploy(rank=0), deploy(rank=1, seed=2, steps=50)
    registry = CollectorRegistry()
    register(first, registry)
    register(second, registry)
    found = samples(generate_latest(registry))
    assert value(found, "depth_count") == 600
    assert value(found, "depth_count", engine=1) == 250
    with pytest.raises(ValueError, match="'tiny', engine '0', are given out already"):
        register(deploy(steps=0), registry)
    unregister(first, registry)
    assert {dict(labels)["engine"] for _, labels in samples(generate_latest(registry))} == {"1"}
    register(deploy(steps=0), registry)


def test_the_number_of_series_is_bounded() -> None:
    upkeep = deploy(max_depth=64, steps=0)
    before = len(scrape(upkeep))
    rng = np.random.default_rng(0)
    for number in range(200):
        upkeep.counts.count_fault(f"fault {number}")
        upkeep.controller.fallback.faults[f"fault {number}"] += 1
        upkeep.controller.counts[f"reason {number}"] += 1
        decision = Decision(number, np.arange(9), rng.integers(0, 65, 9), 64, decided_by=f"stranger {number}")
        upkeep.counts.count_decision(decision, rng.random())
        upkeep.counts.count_request(bool(number % 2))
    assert len(scrape(upkeep)) <= before + KINDS_KEPT
    assert before < 500
    assert len(FAULTS) == len(set(FAULTS))


def test_every_name_and_help_is_in_the_style() -> None:
    for kind, name, labels, text, _ in METRICS:
        assert re.fullmatch("[a-z_]+", name)
        assert not name.endswith(("_total", "_count", "_bucket", "_sum"))
        assert text.endswith(".")
        assert kind in ("counter", "gauge", "histogram")
        assert not {"model_name", "engine"} & set(labels)


def test_nothing_is_imported_before_metrics_are_asked_for(tmp_path: Path) -> None:
    code = (
        "import sys, adaptive_spec.upkeep, adaptive_spec.metrics, adaptive_spec.metrics_folder\n"
        "from adaptive_spec.config import TuningConfig; from adaptive_spec.deployment import make_controller\n"
        "tuning = TuningConfig(); upkeep = adaptive_spec.upkeep.Upkeep(make_controller(tuning, cost=None), tuning)\n"
        "upkeep.tick(1.0); upkeep.close()\n"
        "print('prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---------------------------------------------------------------- a port of its own


def fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_port_in_the_tuning_file_serves_and_is_closed_again() -> None:
    port = free_port()
    upkeep = deploy(metrics={"port": port, "host": "127.0.0.1"})
    assert samples(fetch(port)) == scrape(upkeep)
    with pytest.raises(ValueError, match=rf"metrics\.port: {port} can't be opened on 127\.0\.0\.1: .*in use"):
        deploy(steps=0, metrics={"port": port, "host": "127.0.0.1"})
    upkeep.close()
    upkeep.close()
    with pytest.raises(OSError, match="refused"):
        fetch(port)
    again = deploy(steps=0, rank=0, metrics={"port": port, "host": "127.0.0.1"})
    del again
    gc.collect()
    with pytest.raises(OSError, match="refused"):  # whoever forgets to close it leaves nothing behind
        fetch(port)
    assert deploy(steps=0, metrics={"port": port, "enabled": False}).server is None


def test_engines_side_by_side_take_ports_side_by_side() -> None:
    port = free_port()
    upkeep = deploy(rank=1, steps=3, metrics={"port": port - 1, "host": "127.0.0.1"})
    assert value(samples(fetch(port)), "depth_count", engine=1) == 15
    upkeep.close()


def test_scrapes_while_steps_are_counted_are_consistent() -> None:
    upkeep = deploy(steps=0)
    server = MetricsServer(upkeep, 0, "127.0.0.1")
    rng = np.random.default_rng(0)
    stop = time.thread_time() + 0.7
    last: dict = {}
    scrapes = 0
    while time.thread_time() < stop:
        depth = rng.integers(0, K + 1, 64)
        upkeep.counts.count_decision(Decision(1, np.arange(64), depth, K), 1e-4)
        upkeep.counts.count_outcome(depth, depth, np.minimum(depth, rng.integers(0, K + 1, 64)))
        if rng.random() < 0.02:
            found = samples(fetch(server.port))
            scrapes += 1
            assert value(found, "depth_count") == value(found, "depth_bucket", le="+Inf")
            for key, count in found.items():
                if key[0].endswith("_total"):
                    assert count >= last.get(key, 0.0)
            last = found
    server.close()
    assert scrapes > 3


# ---------------------------------------------------------------- those who read them


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    path = ROOT / "vllm_plugin" / "grafana_dashboard.json"
    if not path.exists():
        pytest.skip("needs the source tree")
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) >= 10
    upkeep = deploy(learned={"file": "unused.npz"}, steps=1)
    upkeep.keeper.saved_at = 0.0
    upkeep._end.detach()  # nothing is to be saved
    there = {name.removeprefix(PREFIX) for name, _ in scrape(upkeep)}
    every = set()
    for query in queries:
        # Either spelling: an endpoint that answers in the OpenMetrics format may turn the colon into an underscore.
        asked = set(re.findall(r"adaptive_spec\[:_\](\w+)", query))
        assert asked, query
        assert asked <= there, query
        assert query.count("adaptive_spec") == query.count("adaptive_spec[:_]")
        every |= asked
    assert every >= {"depth_bucket", "faults_total", "tuning_generation", "shadow_depth_sum", "requests_total"}
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    cells = [(x, y) for panel in dashboard["panels"] for x, y in covered(**panel["gridPos"])]
    assert len(set(cells)) == len(cells)  # no panel lies on another
    assert max(x for x, _ in cells) < 24
    families = {name for _, name, *_ in METRICS}
    shown = {
        name for name in families for asked in every if re.fullmatch(f"{name}(_total|_bucket|_sum|_count)?", asked)
    }
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    (left_out,) = re.findall(r"grafana_dashboard\.json` shows them all but (.*?)\.\s", text, re.DOTALL)
    assert {name.removesuffix("_total") for name in re.findall(r"`(\w+)`", left_out)} == families - shown


def covered(x: int, y: int, w: int, h: int) -> list[tuple[int, int]]:
    """The cells of Grafana's grid that a panel covers."""
    return [(x + i, y + j) for i in range(w) for j in range(h)]


def test_every_metric_stands_in_the_table_of_the_document() -> None:
    path = ROOT / "docs" / "operating.md"
    if not path.exists():
        pytest.skip("needs the source tree")
    listed: set[str] = set()
    for row in re.findall(r"^\| (`adaptive_spec:.*?) \|", path.read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`(?:adaptive_spec:)?([\w{},]+)`", row):
            first, *braces = re.split(r"[{}]", name)
            middles, last = (braces[0].split(","), braces[1]) if braces else ([""], "")
            listed |= {first + middle + last for middle in middles}
    assert listed == {name + ("_total" if kind == "counter" else "") for kind, name, *_ in METRICS}


def test_a_real_prometheus_scrapes_it(tmp_path: Path) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    upkeep = deploy(metrics={"port": free_port(), "host": "127.0.0.1"})
    dashboard = ROOT / "vllm_plugin" / "grafana_dashboard.json"
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: adaptive\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{upkeep.server.port}']}}]\n"
    )
    server = subprocess.Popen(
        [binary, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        expected = value(scrape(upkeep), "depth_count")
        (result,) = ask(port, PREFIX + "depth_count")
        assert float(result["value"][1]) == expected
        assert result["metric"]["model_name"] == "tiny"
        assert {row["metric"]["le"] for row in ask(port, PREFIX + "depth_bucket")} > {"0.0", "4.0", "+Inf"}
        (up,) = ask(port, "up")
        assert up["value"][1] == "1"
        if dashboard.exists():
            for panel in json.loads(dashboard.read_text(encoding="utf-8"))["panels"]:
                for target in panel.get("targets", []):
                    query = target["expr"].replace("$__rate_interval", "1m").replace("$model_name", ".*")
                    ask(port, query.replace("$engine", ".*"), rows=False)  # Prometheus understands the query
    finally:
        server.terminate()
        server.wait(20)
        upkeep.close()


def ask(port: int, query: str, rows: bool = True) -> list[dict]:
    """Prometheus's answer to a query; waits until it has one where `rows` are expected."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                result = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 400:  # it doesn't parse
                raise AssertionError(f"{query}: {error.read().decode()}") from error
            result = []
        except OSError:
            result = None
        if result or (result is not None and not rows):
            return list(result)
        time.sleep(0.1)
    raise AssertionError(f"no answer to {query}")
