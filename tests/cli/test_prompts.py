"""Prompt files, mixes of them, and policies as they are written on a command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive_spec.cli.failure import CommandError, UsageError
from adaptive_spec.cli.policy_argument import fixed_depth, split_list, tuning_for
from adaptive_spec.cli.prompts import Prompt, mix, others, read_prompts, settling
from adaptive_spec.config import TuningConfig
from adaptive_spec.experiments.demo import demo_prompts


def test_jsonl_holds_turns_or_a_prompt_and_perhaps_a_category(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    lines = [{"category": "chat", "turns": ["Hello\u2028there", "again"]}, {"prompt": "Bye"}, {"turns": ["x"], "id": 3}]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n", encoding="utf-8")
    assert read_prompts(path) == [Prompt("Hello\u2028there", "chat"), Prompt("Bye", "mixed"), Prompt("x", "mixed")]


def test_text_holds_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\r\n\r\ntwo\n")
    assert read_prompts(path) == [Prompt("one", "lines"), Prompt("two", "lines")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"turns": ["a"]}\n{"turns"', r":2: is no JSON"),
        (b'["a"]', r":1: must be an object"),
        (b'{"text": "a"}', r":1: must be an object with \"turns\""),
        (b'{"turns": []}', r":1: \"turns\" must be a list of texts"),
        (b'{"turns": "abc"}', r":1: \"turns\" must be a list of texts"),
        (b'{"prompt": 3}', r":1: \"turns\" must be a list of texts"),
        (b'{"turns": [" "]}', r":1: the prompt is empty"),
        (b'{"prompt": "a\\ud800"}', r":1: holds half of a surrogate pair"),
        (b'{"prompt": "a", "category": "\\udc00"}', r":1: holds half of a surrogate pair"),
        (b'{"turns": ["\xff"]}', r"is not UTF-8 text \(byte 12\)"),
        (b"\n\n", r"holds no prompt"),
    ],
)
def test_a_bad_prompt_file_is_one_line_with_its_place(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=said) as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_mix_takes_evenly_from_the_files_and_depends_on_the_seed_alone() -> None:
    files = [[Prompt(f"{name}{i}", name) for i in range(count)] for name, count in (("a", 50), ("b", 50), ("c", 3))]
    taken = mix(files, 23, seed=5)
    counts = {name: sum(prompt.category == name for prompt in taken) for name in "abc"}
    assert counts == {"a": 10, "b": 10, "c": 3}
    assert len(set(taken)) == 23
    assert taken == mix(files, 23, seed=5)
    assert taken != mix(files, 23, seed=6)
    assert len(mix(files, 1000, seed=0)) == 103


def test_the_demo_brings_two_prompts_of_each_kind() -> None:
    prompts = demo_prompts()
    kinds = ["code", "maths", "summary", "editing", "translation", "chat"]
    assert [prompt.category for prompt in prompts] == [kind for kind in kinds for _ in range(2)]


@pytest.mark.parametrize(
    ("argument", "name", "params"),
    [
        ("fixed:4", "fixed", {"depth": 4}),
        ("fixed:depth=4", "fixed", {"depth": 4}),
        ("roofline-budget", "roofline-budget", {}),
        ("roofline-budget:run", "roofline-budget", {"horizon": "run"}),
        (
            "roofline-budget:horizon=run;depth_levels=[2, 4]",
            "roofline-budget",
            {"horizon": "run", "depth_levels": [2, 4]},
        ),
        ("batch-threshold:table=[[1, null, 3]]", "batch-threshold", {"table": [[1, None, 3]]}),
    ],
)
def test_a_policy_argument(argument: str, name: str, params: dict[str, object]) -> None:
    tuning = tuning_for(argument, TuningConfig(seed=7))
    assert (tuning.mode, tuning.seed, tuning.policy.name, tuning.policy.params) == ("on", 7, name, params)


def test_none_is_speculation_off_whatever_the_tuning() -> None:
    assert tuning_for("none", TuningConfig(max_depth=4)).mode == "off"
    assert tuning_for("fixed:2", TuningConfig(mode="off")).mode == "on"


def test_batch_threshold_has_a_table_to_begin_with() -> None:
    assert tuning_for("batch-threshold").policy.params["table"]


def test_a_table_to_begin_with_fits_any_max_depth() -> None:
    table = tuning_for("batch-threshold", TuningConfig(max_depth=3)).policy.params["table"]
    assert [row[2] for row in table] == [3, 3, 2, 0]


def test_a_bare_name_keeps_the_tuning_s_own_arguments() -> None:
    table = [[1, None, 3]]
    own = TuningConfig.model_validate({"policy": {"name": "batch-threshold", "table": table}})
    assert tuning_for("batch-threshold", own).policy.params == {"table": table}
    run = TuningConfig.model_validate({"policy": {"name": "roofline-budget", "horizon": "run"}})
    assert tuning_for("roofline-budget", run).policy.params == {"horizon": "run"}
    assert tuning_for("roofline-budget:depth_levels=[2]", run).policy.params == {"depth_levels": [2]}
    assert tuning_for("batch-threshold", run).policy.params["table"] != table


def test_a_single_depth_may_be_as_deep_as_the_tuning_allows() -> None:
    assert fixed_depth("fixed:12", TuningConfig(max_depth=16)) == 12


def test_which_arguments_are_single_depths() -> None:
    assert [fixed_depth(a) for a in ("none", "fixed:3", "roofline-budget", "batch-threshold")] == [0, 3, None, None]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("fixd:3", "no policy is called 'fixd'"),
        ("none:3", "no policy is called 'none'"),
        ("fixed", "needs the argument depth"),
        ("fixed:9", "drafts 0 to 8"),
        ("fixed:deep", "must be a valid integer"),
        ("fixed:depth=2;4", "is no KEY=VALUE"),
        ("fixed:[", "is no value"),
        ("roofline-budget:horizn=run", "no such argument"),
        ("", "no policy is called ''"),
    ],
)
def test_a_bad_policy_argument_is_wrong_use(argument: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        tuning_for(argument)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_lists_split_at_commas_outside_brackets() -> None:
    assert split_list("none, fixed:2,batch-threshold:[[1, null, 3]],") == [
        "none",
        "fixed:2",
        "batch-threshold:[[1, null, 3]]",
    ]


def test_prompts_to_settle_on_are_none_of_those_measured_and_none_twice() -> None:
    files = [[Prompt(f"{name}{i % 9}", name) for i in range(12)] for name in "ab"]
    measured = mix(files, 6, 0)
    chosen = settling(files, measured, 8, 0)
    texts = [prompt.text for prompt in chosen]
    assert len(set(texts)) == len(texts) == 8
    assert not {prompt.text for prompt in measured} & set(texts)
    assert {prompt.category for prompt in chosen} == {"a", "b"}
    left = others(files, measured, chosen)
    assert sum(map(len, left)) == 18 - 6 - 8
    assert settling(files, measured, 100, 0) != []
    assert len(settling(files, measured, 100, 0)) == 12
