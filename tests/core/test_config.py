"""The tuning file: what it reads, what it writes, and what it says of mistakes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import TuningConfig, TuningError
from adaptive_spec.explore import Ledger
from adaptive_spec.fallback import Fallback
from adaptive_spec.guard import Guard, Watchdog
from adaptive_spec.policies.batch_threshold import BatchThreshold
from adaptive_spec.policies.roofline_budget import RooflineBudget
from adaptive_spec.policy import policy_names
from adaptive_spec.tuning_file import TuningFile, write_yaml


def errors(text: str) -> list[str]:
    with pytest.raises(TuningError) as caught:
        TuningConfig.parse(text, "t.yaml")
    return str(caught.value).splitlines()


def test_empty_text_is_the_default() -> None:
    assert TuningConfig.parse("") == TuningConfig()
    assert TuningConfig.parse("# nothing\n") == TuningConfig()
    assert TuningConfig().policy.name == "roofline-budget"


def test_defaults_are_those_of_the_classes_that_use_them() -> None:
    config = TuningConfig()
    ledger, clock = Ledger(), lambda: 0.0
    for section, made in (
        (config.exploration, ledger),
        (config.watchdog, Watchdog()),
        (config.fallback, Fallback(clock=clock)),
    ):
        for name in type(section).model_fields:
            if name not in {"enabled", "time_budget_ms"}:
                assert getattr(section, name) == getattr(made, name), name
    assert config.fallback.time_budget_ms == pytest.approx(1e3 * Fallback(clock=clock).time_budget_seconds)
    # Every key of these sections is an argument of the class, or this raises TypeError.
    Guard(ledger, clock=clock, **config.guard.model_dump(exclude={"enabled"}))
    AcceptanceModel(8, **config.acceptance.model_dump(exclude={"evidence"}))


@settings(deadline=None, max_examples=50)
@given(
    mode=st.sampled_from(["on", "off"]),
    max_depth=st.integers(1, 64),
    share=st.floats(0.001, 0.5),
    prior=st.floats(0.01, 0.99),
    evidence=st.none() | st.just(("matched_length", "age")),
    policy=st.sampled_from(
        [
            {"name": "fixed", "depth": 1},
            {"name": "batch-threshold", "table": [[1, 4, 1], [5, None, 0]], "off_above": 9},
            {"name": "acceptance-bandit", "discount": 0.9},
            {"name": "roofline-budget", "depth_levels": (1,), "horizon": "run"},
        ]
    ),
)
def test_round_trip(
    mode: Any, max_depth: int, share: float, prior: float, evidence: Any, policy: dict[str, Any]
) -> None:
    config = TuningConfig.model_validate(
        {
            "mode": mode,
            "max_depth": max_depth,
            "policy": policy,
            "exploration": {"share": share, "floor_share": share / 2},
            "acceptance": {"prior": prior, "evidence": evidence},
        }
    )
    assert TuningConfig.parse(config.dump()) == config
    assert TuningConfig.parse(config.dump()).dump() == config.dump()


def test_on_and_off_are_words_to_us_and_booleans_to_others() -> None:
    assert TuningConfig.parse("mode: off").mode == "off"
    assert TuningConfig.model_validate({"mode": yaml.safe_load("mode: on")["mode"]}).mode == "on"


def test_numbers_in_scientific_notation_are_numbers() -> None:
    assert TuningConfig.parse("guard: {error_rate: 1e-3}").guard.error_rate == 1e-3


@pytest.mark.parametrize("text", ["on", "off", "yes", "1e-3", "null", "12", "~", "true", "", "1.5", "a: b"])
def test_words_that_look_like_something_else_survive_writing(text: str) -> None:
    assert TuningFile(write_yaml({"word": text})).data == {"word": text}


PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126))


@settings(deadline=None, max_examples=50)
@given(lines=st.lists(st.one_of(st.text(" "), st.tuples(st.text(" "), PRINTABLE).map("#".join))))
def test_a_file_with_nothing_in_it_is_refused(lines: list[str]) -> None:
    """It was likely cut short, by a full disk say, and isn't to switch everything on at the next start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuning.yaml"
        path.write_text("\n".join(lines))
        with pytest.raises(TuningError) as caught:
            TuningConfig.load(path)
        assert str(caught.value) == (
            f"{path}: is empty; write at least the settings that differ from the defaults, as `mode: on`"
        )
        for settings_that_are_meant in ("mode: on", "{}"):
            path.write_text("\n".join([*lines, settings_that_are_meant]))
            assert TuningConfig.load(path) == TuningConfig()


def test_load_reads_a_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text("max_depth: 4\npolicy: {name: fixed, depth: 2}\n", encoding="utf-8")
    assert TuningConfig.load(path).policy.params == {"depth": 2}
    with pytest.raises(TuningError, match=r"missing\.yaml: can't be read: No such file"):
        TuningConfig.load(tmp_path / "missing.yaml")
    path.write_bytes(b"seed: \xff\xfe")
    with pytest.raises(TuningError, match=r"deployment\.yaml: is not UTF-8"):
        TuningConfig.load(path)


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    (line,) = errors("seed: 1\nexploration:\n  shore: 0.1\n")
    assert line.startswith("t.yaml:3: exploration.shore: unknown key; did you mean 'share'?")
    (line,) = errors("zzz: 1")
    assert line.startswith("t.yaml:1: zzz: unknown key; known: mode, share, max_depth")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("max_depth: eight", "t.yaml:1: max_depth:", 'must be a valid integer, not "eight"'),
        ("max_depth: '8'", "t.yaml:1: max_depth:", "integer"),
        ("max_depth: 0", "t.yaml:1: max_depth:", "greater than or equal to 1, not 0"),
        ("seed: -1", "t.yaml:1: seed:", "greater than or equal to 0"),
        ("mode: maybe", "t.yaml:1: mode:", "'on', 'shadow' or 'off'"),
        ("guard: {enabled: 1}", "t.yaml:1: guard.enabled:", "boolean"),
        ("acceptance:\n  prior: 1.0", "t.yaml:2: acceptance.prior:", "less than 1"),
        ("acceptance: {forgetting: .nan}", "t.yaml:1: acceptance.forgetting:", ""),
        ("acceptance: {half_life_steps: .inf}", "t.yaml:1: acceptance.half_life_steps:", "finite"),
        ("acceptance: {evidence: [matched]}", "t.yaml:1: acceptance.evidence:", "did you mean 'matched_length'?"),
        ("exploration: {share: 0.01, floor_share: 0.1}", "t.yaml:1: exploration.floor_share:", "over"),
        ("fallback: 3", "t.yaml:1: fallback:", ""),
        ("fallback: {depth: 9}", "t.yaml:1: fallback.depth:", "9 is over max_depth 8; lower it"),
        ("policy: {name: fixed, depth: 9}", "t.yaml:1: policy.depth:", "drafts 0 to 8 tokens"),
        ("policy: {name: fixed, depth: deep}", "t.yaml:1: policy.depth:", "must be a valid integer"),
        ("policy: {name: fixed, depth: 2.5}", "t.yaml:1: policy.depth:", "must be a valid integer"),
        ("policy: {name: fixed}", "t.yaml:1: policy:", "needs the argument depth"),
        ("policy:\n  name: fixd\n  depth: 1", "t.yaml:2: policy.name:", "did you mean 'fixed'?"),
        ("policy:\n  name: roofline-budget\n  horizn: run", "t.yaml:3: policy.horizn:", "did you mean 'horizon'?"),
        (
            "policy:\n  name: batch-threshold\n  table: [[1, 8, 4], [6, null, 2]]",
            "t.yaml:3: policy.table:",
            "overlaps",
        ),
        ("cost: {source: roofline}", "t.yaml:1: cost.source:", "needs the key hardware"),
        ("cost: {source: file}", "t.yaml:1: cost.source:", "needs the key file"),
        (
            "cost: {hardware: H100}",
            "t.yaml:1: cost.hardware:",
            "belongs to source: roofline, but the source is profile",
        ),
        ("cost: {source: roofline, hardware: H10}", "t.yaml:1: cost.hardware:", "H100"),
        ("cost: {source: roofline, hardware: A100-SXM-80GB, dtype: fp8}", "t.yaml:1: cost.dtype:", "no peak for fp8"),
        ("seed: 1\nseed: 2", "t.yaml:2: seed:", "given twice, first in line 1"),
        ("- 1\n- 2", "t.yaml:1:", "is a mapping"),
        ("seed: [1,\n", "t.yaml:2:", "no YAML"),
        ("seed: &a [*a]", "t.yaml", ""),
        ("seed: !!python/object:os.system x", "t.yaml:1", "no YAML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, place: str, said: str) -> None:
    lines = errors(text)
    assert len(lines) == 1, lines
    assert lines[0].startswith(place)
    assert said in lines[0]


def test_everything_that_is_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
    lines = errors(
        "sed: 3\npolicy:\n  name: fixed\n  depth: 99\n  deep: 1\ncost:\n  source: roofline\n"
        "acceptance:\n  prior: 2\nfallback:\n  depth: 12\n"
    )
    assert [line.split(": ")[1] for line in lines] == [
        "sed",
        "policy.depth",
        "policy.deep",
        "cost.source",
        "acceptance.prior",
        "fallback.depth",
    ]


def test_a_mistaken_part_brings_no_verdict_on_the_whole() -> None:
    # With the hardware's name lost, "roofline needs a hardware" would mislead; so would "over max_depth 8".
    (line,) = errors("cost: {source: roofline, hardwear: H100}")
    assert "did you mean 'hardware'" in line
    (line,) = errors("max_depth: -12\npolicy: {name: fixed, depth: 12}")
    assert line.startswith("t.yaml:1: max_depth:")


def test_in_python_too_it_is_a_value_error() -> None:
    with pytest.raises(ValidationError, match="over max_depth"):
        TuningConfig.model_validate({"max_depth": 2, "fallback": {"depth": 3}})
    with pytest.raises(ValidationError, match="frozen"):
        TuningConfig().seed = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="numbers, words, lists"):
        TuningConfig.model_validate({"policy": {"name": "fixed", "depth": object()}})


def test_the_policy_is_made_with_its_arguments() -> None:
    config = TuningConfig.parse("policy: {name: batch-threshold, table: [[1, 4, 8], [5, null, 2]]}")
    policy = config.policy.make(config.max_depth, config.seed)
    assert isinstance(policy, BatchThreshold)
    assert policy.table == [(1, 4, 8), (5, None, 2)]
    assert isinstance(TuningConfig().policy.make(8, 0), RooflineBudget)
    with pytest.raises(TuningError, match=r"policy\.depth: depth is 8"):
        TuningConfig.parse("policy: {name: fixed, depth: 8}").policy.make(4, 0)


def test_every_installed_policy_can_be_named() -> None:
    required = {"fixed": "depth: 1", "batch-threshold": "table: [[1, null, 1]]"}
    for name in policy_names():
        arguments = required.get(name)
        TuningConfig.parse(f"policy: {{name: {name}{', ' + arguments if arguments else ''}}}")


def test_reading_a_tuning_loads_no_heavy_library() -> None:
    code = (
        "import sys; from adaptive_spec.config import TuningConfig; TuningConfig.parse('seed: 1');"
        "print(sorted({'torch', 'numba', 'vllm', 'sklearn', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
