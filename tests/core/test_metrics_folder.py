"""Metrics that another process's endpoint gives out, by files in a folder; and folders that are full, or gone."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from scraped import K, deploy, samples, scrape, value

from adaptive_spec import metrics_folder
from adaptive_spec.config import TuningConfig
from adaptive_spec.deployment import make_controller
from adaptive_spec.metrics import FAULTS
from adaptive_spec.metrics_folder import MetricsFolder
from adaptive_spec.step_counts import KINDS_KEPT
from adaptive_spec.upkeep import Upkeep
from adaptive_spec.vllm_plugin import plugin


@pytest.fixture
def no_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics_folder, "_folder", None)
    for name in (metrics_folder.MULTIPROCESS, metrics_folder.VARIABLE):
        monkeypatch.setenv(name, "")
    yield
    if metrics_folder._folder is not None:
        metrics_folder._folder.cleanup()


@pytest.mark.usefixtures("no_folder")
def test_the_registry_of_another_process_gives_out_what_is_written() -> None:
    registry = CollectorRegistry()
    assert metrics_folder.folder_offered() is None
    metrics_folder.offer_folder(registry)
    metrics_folder.offer_folder(registry)
    folder = metrics_folder.folder_offered()
    assert folder is not None
    upkeeps = [deploy(rank=rank, seed=rank, steps=30) for rank in range(2)]
    folders = [MetricsFolder(upkeep, folder) for upkeep in upkeeps]
    for each in folders:
        each.write()
        each.write()  # no sum of both
    expected = scrape(*upkeeps)
    found = samples(generate_latest(registry))
    assert found == {key: pytest.approx(count) for key, count in expected.items()}
    upkeeps[0].counts.count_request(True)
    folders[0].close()
    assert value(samples(generate_latest(registry)), "requests_total", adapted="true") == 1


@pytest.mark.usefixtures("no_folder")
def test_a_restarted_engine_adds_to_counters_and_replaces_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    metrics_folder.offer_folder(registry)
    folder = metrics_folder.folder_offered()
    for pid, steps in ((100001, 10), (100002, 20)):
        monkeypatch.setattr("adaptive_spec.metrics_folder.os.getpid", lambda pid=pid: pid)
        MetricsFolder(deploy(steps=steps), folder).close()
    found = samples(generate_latest(registry))
    assert value(found, "depth_count") == 5 * 30
    assert value(found, "depth_bucket", le="+Inf") == 5 * 30
    assert value(found, "sequences") == 5
    assert value(found, "tuning_generation") == 1


@pytest.mark.usefixtures("no_folder")
def test_the_multiprocess_mode_of_the_endpoint_is_used_where_it_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics_folder.MULTIPROCESS, str(tmp_path))
    metrics_folder.offer_folder(CollectorRegistry())
    assert metrics_folder._folder is None
    assert metrics_folder.folder_offered() == tmp_path
    config = TuningConfig(max_depth=K)
    controller = make_controller(config, cost=None)
    upkeep = Upkeep(controller, config, model_name="tiny", folder=tmp_path)
    controller.add("a")
    upkeep.tick(1.0)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    assert value(samples(generate_latest(registry)), "sequences") == 1
    controller.add("b")
    upkeep.tick(1.5)  # not due yet
    assert value(samples(generate_latest(registry)), "sequences") == 1
    upkeep.close()
    assert value(samples(generate_latest(registry)), "sequences") == 2


@pytest.mark.usefixtures("no_folder")
def test_a_folder_that_vanishes_harms_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = TuningConfig(max_depth=K)
    upkeep = Upkeep(make_controller(config, cost=None), config, folder=tmp_path)
    for file in upkeep._folder._files.values():
        file.close()
    for now in (1.0, 2.0, 3.0):
        upkeep.tick(now)
    assert len(caplog.records) == 1
    upkeep.close()


def read(folder: Path) -> dict[tuple[str, frozenset], float]:
    """What an endpoint that reads the folder gives out."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    return samples(generate_latest(registry))


def test_files_are_there_in_full_however_many_series_there_are(tmp_path: Path) -> None:
    """At the greatest depth, with faults of all kinds and a long name; and more that come later."""
    upkeep = deploy(steps=0, max_depth=64, learned={"file": str(tmp_path / "learned.npz")})
    upkeep.model_name = "a-model/" + "ü" * 300
    upkeep.controller.fallback.faults.update(dict.fromkeys(FAULTS, 1))
    folder = MetricsFolder(upkeep, tmp_path)
    assert read(tmp_path) == {}
    folder.write()
    assert read(tmp_path) == scrape(upkeep)
    for number in range(KINDS_KEPT):
        upkeep.counts.count_fault(f"fault {number} of a hook with a long name")
    upkeep.counts.count_request()
    folder.close()
    found = read(tmp_path)
    assert found == scrape(upkeep)
    assert sum(labels.isdisjoint({("kind", "raised")}) for _, labels in found) > 400
    files = list(tmp_path.glob("*.db"))
    assert len(files) == len(list(tmp_path.iterdir())) == 3
    for file in files:
        status = file.stat()
        assert status.st_blocks * 512 >= status.st_size  # no holes
    assert max(file.stat().st_size for file in files) > 1 << 17
    upkeep._end.detach()  # nothing is to be saved


def test_gauges_with_nothing_more_to_tell_go_and_counters_stay(tmp_path: Path) -> None:
    """After an edited tuning: another policy, without a guard."""
    file, served = tmp_path / "tuning.yaml", tmp_path / "served"
    served.mkdir()
    upkeep = deploy(steps=20)
    upkeep = Upkeep(upkeep.controller, upkeep.tuning, file=file, model_name="tiny", folder=served)
    upkeep.tick(0.0)
    first = read(served)
    assert first == scrape(upkeep)
    assert {dict(labels)["policy"] for name, labels in first if name.endswith("policy_info")} == {"roofline-budget"}
    assert any(name.endswith("guard_on") for name, _ in first)
    file.write_text(f"max_depth: {K}\npolicy: {{name: fixed, depth: 2}}\nguard: {{enabled: false}}\n")
    for now in range(5, 30, 5):
        upkeep.tick(float(now))
    assert upkeep.generation == 2
    found = read(served)
    told = scrape(upkeep)
    assert {key: found[key] for key in told} == told
    more = {name for name, _ in found.keys() - told.keys()}
    assert "adaptive_spec:guard_switches_total" in more
    assert all(name.endswith("_total") for name in more)
    assert {dict(labels)["policy"] for name, labels in found if name.endswith("policy_info")} == {"fixed"}
    upkeep.close()


def test_readers_find_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two writes, be they cut short."""
    upkeep = deploy(steps=5)
    expected, states = scrape(upkeep), []
    opened = open

    def halting(*arguments, **options):
        file = opened(*arguments, **options)

        def write(content: bytes) -> int:
            written = file.write(content[:5000])
            states.append(read(tmp_path))
            return written

        return SimpleNamespace(seek=file.seek, write=write, close=file.close)

    monkeypatch.setattr(metrics_folder, "open", halting, raising=False)
    folder = MetricsFolder(upkeep, tmp_path)
    folder.write()
    monkeypatch.undo()
    assert len(states) > 10
    assert states[0] == {}
    for state in states:
        assert {key: expected[key] for key in state}.keys() == state.keys()
    assert states[-1] == read(tmp_path) == expected
    folder.close()


ENGINE = """
import logging, os, sys
from adaptive_spec.config import TuningConfig
from adaptive_spec.deployment import make_controller
from adaptive_spec.upkeep import Upkeep

def fill():
    with open(os.path.join(sys.argv[1], "other"), "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass

logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
if sys.argv[2] == "start":
    fill()
tuning = TuningConfig(max_depth=64)
upkeep = Upkeep(make_controller(tuning, cost=None), tuning, folder=sys.argv[1])
fill()
for now in range(5):
    if now == 3 and sys.argv[2] == "later":
        for kind in range(15):
            upkeep.counts.count_fault(str(kind) * 500)
    upkeep.controller.add(str(now))
    upkeep.tick(float(now))
upkeep.close()
print("served on with", len(upkeep.controller), "sequences")
"""


@pytest.mark.parametrize("full", ["start", "later", "series"])
def test_a_full_disk_costs_the_metrics_and_nothing_else(small_disk: Path, full: str) -> None:
    """Full at the start; before there are more series; and after all of them were written."""
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(small_disk), full], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done  # a page of a mapped file that can't be had is a signal
    *told, last = done.stdout.splitlines()
    assert last == "served on with 5 sequences"
    assert not done.stderr
    if full == "series":  # writing over what is there takes no room
        assert not told
    else:
        (line,) = told
        assert line.startswith("ERROR metrics can't be written")
        assert "No space left" in line
    found = read(small_disk)
    if full == "start":
        assert found == {}
    else:
        sequences = frozenset({"model_name": "", "engine": "0"}.items())
        assert found["adaptive_spec:sequences", sequences] == (3 if full == "later" else 5)


@pytest.mark.parametrize("bytes_", [0, 4, 10_000])
def test_no_room_for_a_file_costs_the_metrics_and_nothing_else(
    tmp_path: Path, bytes_: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = TuningConfig(max_depth=64)
    controller = make_controller(config, cost=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))
    try:
        upkeep = Upkeep(controller, config, folder=tmp_path)
        for now in range(3):
            upkeep.tick(float(now))
        upkeep.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "metrics can't be written" in record.message
    assert "File too large" in record.message
    assert read(tmp_path) == {}
    assert not list(tmp_path.glob("*.new"))


def test_a_folder_that_is_gone_when_an_engine_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = TuningConfig(max_depth=K)
    upkeep = Upkeep(make_controller(config, cost=None), config, folder=tmp_path / "gone")
    upkeep.tick(0.0)
    upkeep.close()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "No such file" in record.message


@pytest.mark.usefixtures("no_folder")
def test_a_server_starts_without_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text("mode: on\n")
    monkeypatch.setenv(plugin.VARIABLE, str(file))
    monkeypatch.setattr(plugin, "_check_overrides_before_streams", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(method="ngram", num_speculative_tokens=8),
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=False),
        additional_config={},
    )
    assert plugin._with_adaptive_scheduler(lambda arguments: config, None) is config
    assert config.scheduler_config.scheduler_cls
    assert metrics_folder.folder_offered() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "without its metrics on /metrics" in record.message
