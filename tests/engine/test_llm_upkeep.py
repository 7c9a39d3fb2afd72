"""What the engine does beside its steps: metrics, an edited tuning file, what was learned."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tiny_llama import make_tiny_llm, write_tiny_llama

from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
PROMPTS = ["abcabcabc", "hello", "a b c a b", "defdef"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def test_every_step_is_counted_once(folder: Path) -> None:
    llm = make_tiny_llm(folder, max_num_seqs=3)
    outputs = llm.generate(PROMPTS, GREEDY)
    counts = llm.upkeep.counts
    stats = [output.stats for output in outputs]
    verified, accepted = np.indices(counts.outcomes.shape)
    assert counts.drafted == sum(each.drafted for each in stats)
    assert (counts.outcomes * verified).sum() == sum(each.verified for each in stats)
    assert (counts.outcomes * accepted).sum() == sum(each.accepted for each in stats)
    assert counts.depth.sum() == sum(len(each.depths) for each in stats)
    assert counts.requests == {True: 4, False: 0}
    assert counts.seconds.sum() == sum(counts.steps.values()) > 0
    assert 0 < counts.total_seconds < 60


def test_a_preempted_sequence_is_one_request(folder: Path) -> None:
    llm = make_tiny_llm(folder, num_kv_blocks=8, max_num_seqs=4)
    preempted = []
    llm.observer = lambda report: preempted.extend(report.preempted)
    llm.generate(["abc" * 6, "hello" * 3, "defdef"], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    assert preempted
    assert llm.upkeep.counts.requests[True] == 3


def test_the_engine_serves_its_metrics(folder: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tuning = TuningConfig.model_validate({"metrics": {"port": port, "host": "127.0.0.1"}})
    llm = make_tiny_llm(folder, tuning=tuning)
    llm.generate(PROMPTS, GREEDY)

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = list(parser.text_string_to_metric_families(answer.read().decode()))
        assert {s.labels["model_name"] for family in families for s in family.samples} == {str(folder)}
        return {s.name: s.value for family in families for s in family.samples if len(s.labels) == 2}

    found = scrape()
    assert found["adaptive_spec:drafted_tokens_total"] == llm.upkeep.counts.drafted > 0
    assert found["adaptive_spec:depth_count"] == llm.upkeep.counts.depth.sum()
    llm.set_policy(tuning)  # the same port again
    assert scrape()["adaptive_spec:depth_count"] == 0
    llm.close()
    with pytest.raises(OSError, match="refused"):
        scrape()
    assert llm.generate("abc", GREEDY)[0].outputs[0].token_ids  # it goes on without


def test_an_edited_tuning_file_takes_effect_between_steps(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "tuning.yaml"
    reload = "reload: {check_every_seconds: 1}\n"
    file.write_text(reload + "policy: {name: fixed, depth: 2}\n")
    llm = make_tiny_llm(folder, tuning=file)
    now = [0.0]
    llm.clock = lambda: now[0]  # whole seconds pass between steps
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    stock = make_tiny_llm(folder, tuning=TuningConfig(mode="off")).generate("abcabcabc", params)[0].outputs[0].text
    texts = {
        5: reload + "policy: {name: fixed, depth: 4}\n",
        10: reload + "policy: {name: fixed, deep: 4}\n",  # a mistake
        15: reload + "max_depth: 3\n",  # what can't change
        20: reload + "mode: off\n",
        25: reload + "policy: {name: fixed, depth: 1}\n",
    }
    most = []
    llm.add_request("a", "abcabcabc", params)
    llm.observer = lambda report: most.append(None if report.decision is None else report.decision.depth.max())
    text = ""
    for step in range(30):
        if step in texts:
            file.write_text(texts[step])
        now[0] += 1.0
        text += "".join(news.outputs[0].text for news in llm.step())
    assert len(text) > 25
    assert stock.startswith(text)
    assert set(most[1:5]) <= {0, 1, 2}
    assert max(most[8:20]) == 4
    assert set(most[23:26]) == {0}
    assert set(most[28:]) <= {0, 1}
    assert (llm.upkeep.generation, llm.upkeep.rejections) == (4, 2)
    assert llm.tuning.policy.params == {"depth": 1}


def test_an_engine_that_started_off_has_nothing_to_switch_on(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text("mode: off\nreload: {check_every_seconds: 1.0e-9}\n")
    llm = make_tiny_llm(folder, tuning=file)
    file.write_text("mode: on\nreload: {check_every_seconds: 1.0e-9}\n")
    assert llm.generate("abcabc", GREEDY)[0].stats.verified == 0
    assert "mode: is off and can't become on in a running engine, since no drafter was started" in caplog.text


def test_a_second_engine_goes_on_where_the_first_stopped(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "learned.npz"
    tuning = TuningConfig.model_validate({"learned": {"file": str(path)}})
    first = make_tiny_llm(folder, tuning=tuning)
    first.generate(PROMPTS * 4, GREEDY)
    known = first.controller.acceptance.population.beta.copy()
    first.close()
    second = make_tiny_llm(folder, tuning=tuning)
    assert second.upkeep.keeper.warm
    np.testing.assert_array_equal(second.controller.acceptance.population.beta, known)
    other = write_tiny_llama(tmp_path / "other", seed=5)  # another model: a cold start, and the file is kept
    third = make_tiny_llm(other, tuning=tuning)
    assert not third.upkeep.keeper.warm
    third.close()
    assert (tmp_path / "learned.npz.refused").exists()


def test_what_was_learned_is_saved_when_nobody_closes_the_engine(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "learned.npz"
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from tiny_llama import make_tiny_llm\n"
        "from adaptive_spec.config import TuningConfig\n"
        "from adaptive_spec.engine.sampling_params import SamplingParams\n"
        f"tuning = TuningConfig.model_validate({{'learned': {{'file': {str(path)!r}}}}})\n"
        f"llm = make_tiny_llm(Path({str(folder)!r}), tuning=tuning)\n"
        "llm.generate('abcabc', SamplingParams(temperature=0, max_tokens=9))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    llm = make_tiny_llm(folder, tuning=TuningConfig.model_validate({"learned": {"file": str(path)}}))
    assert llm.upkeep.keeper.warm


@pytest.mark.parametrize(("settings", "said"), [({"mode": "shadow"}, "mode: shadow"), ({"share": 0.5}, "share: 0.5")])
def test_what_needs_an_engine_with_a_depth_of_its_own_is_refused(
    folder: Path, tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make_tiny_llm(folder, tuning=TuningConfig.model_validate(settings))
    file = tmp_path / "tuning.yaml"
    file.write_text("reload: {check_every_seconds: 0.1}\n", encoding="utf-8")
    llm = make_tiny_llm(folder, tuning=file)
    file.write_text(f"reload: {{check_every_seconds: 0.1}}\n{said}\n", encoding="utf-8")
    for second in range(5):
        llm.upkeep.tick(1e9 + second)
    assert llm.tuning.mode == "on"
    assert llm.tuning.share == 1.0
