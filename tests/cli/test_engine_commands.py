"""`generate` and `bench` on a real engine with a tiny model: what they print, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import ENGINE, refused, run_json

from adaptive_spec.cli import bench, generate, main, turns
from adaptive_spec.cli.engine_options import chat_prompt

pytest.importorskip("torch")


def test_generate_tells_text_depths_and_speed(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "a bad cab, a bad cab, a b", "--model", str(tiny_model), "--max-tokens", "40", *ENGINE]
    document = run_json([*arguments, "--policy", "fixed:4"], capsys)
    (answer,) = document["answers"]
    assert 1 <= answer["tokens"] <= 40
    assert document["tokens"] == answer["tokens"]
    assert len(answer["depth"]) == len(answer["accepted"])
    assert answer["tokens"] <= 1 + sum(answer["accepted"]) + len(answer["depth"])
    assert max(answer["depth"]) <= 4
    assert sum(answer["depth"]) > 0, "this text repeats itself"
    without = run_json([*arguments, "--policy", "none"], capsys)["answers"][0]
    assert without["text"] == answer["text"], "speculation never changes the text"
    assert set(without["depth"]) <= {0}


def test_generate_answers_every_prompt_of_a_file(
    tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "--file", str(prompt_file), "--model", str(tiny_model), "--max-tokens", "12", *ENGINE]
    document = run_json(arguments, capsys)
    assert len(document["answers"]) == 6
    assert [answer["prompt"][0] for answer in document["answers"]] == list("abcdef")
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.count("--- ") == 6
    assert out.splitlines()[-1].startswith("roofline-budget: ")
    assert "\x1b" not in out, "no colours where nobody looks"


def test_generate_samples_by_seed(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def text(seed: int) -> str:
        arguments = ["generate", "a bad cab", "--model", str(tiny_model), "--max-tokens", "30", "--no-chat"]
        arguments += ["--temperature", "1.0", "--seed", str(seed), *ENGINE]
        answer: str = run_json(arguments, capsys)["answers"][0]["text"]
        return answer

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_bench_compares_policies(tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--file", str(prompt_file), "--model", str(tiny_model), "--max-tokens", "20", *ENGINE]
    arguments += ["--concurrency", "1,3", "--policies", "none,fixed:2,roofline-budget", "--rounds", "2"]
    document = run_json([*arguments, "--num-prompts", "4", "--settle", "8"], capsys)
    assert document["setting"]["num_prompts"] == {"all": 4}
    assert document["setting"]["settled_on"] == 2
    results = document["results"]
    assert [(row["concurrency"], row["policy"]) for row in results] == [
        (level, policy) for level in (1, 3) for policy in ("none", "fixed:2", "roofline-budget")
    ]
    for row in results:
        assert row["rounds"] == len(row["decode_tokens_per_second_by_round"]) == 2
        assert row["drafted"] >= row["verified"] >= row["accepted"]
        assert row["decode_tokens_per_second"] > 0
        assert row["best_fixed"] in ("none", "fixed:2")
        # Every answer has 20 tokens, the first of which comes with the prefill; the last step may emit more
        # than is kept, so steps times length is at least the other 19.
        assert row["acceptance_length"] >= 1
        if row["policy"] == "none":
            assert row["drafted"] == 0
            assert row["ratio_to_reference"]["value"] == 1
        if row["policy"] == "fixed:2":
            assert row["drafted"] > 0
    assert set(document["geometric_mean_decode_tokens_per_second"]["all"]) == {"none", "fixed:2", "roofline-budget"}


def test_a_bench_that_is_interrupted_reports_the_rounds_done(
    tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = 0

    def take_turns(*arguments: Any, **named: Any) -> Any:
        nonlocal played
        played += 1
        if played > 2:
            raise KeyboardInterrupt
        return turns.take_turns(*arguments, **named)

    monkeypatch.setattr(bench, "take_turns", take_turns)
    arguments = ["bench", "--file", str(prompt_file), "--model", str(tiny_model), "--max-tokens", "20", *ENGINE]
    document = run_json([*arguments, "--concurrency", "2", "--rounds", "5", "--policies", "none,fixed:2"], capsys)
    assert {result["rounds"] for result in document["results"]} == {2}
    assert any("interrupted after round 2 of all, 2 in flight" in warning for warning in document["warnings"])
    for result in document["results"]:
        (decided, again) = result["decided_by_by_round"]
        assert sum(decided.values()) > 0
        assert decided == again
        assert result["drafted_by_round"][0] == result["drafted"]
    played = 2
    assert main([*arguments, "--concurrency", "2", "--policies", "none,fixed:2"]) != 0, "nothing to report"


def test_bench_by_category_prints_a_table_each(
    tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "--file", str(prompt_file), "--model", str(tiny_model), "--max-tokens", "8", *ENGINE]
    arguments += ["--concurrency", "2", "--policies", "none,fixed:2", "--rounds", "1", "--by-category"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "a, 2 in flight, 1 round" in out
    assert "b, 2 in flight, 1 round" in out


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (["--max-tokens", "0"], 2, "max_tokens"),
        (["--temperature", "-1"], 2, "temperature"),
        (["--temperature", "nan"], 2, "temperature"),
        (["--top-p", "0"], 2, "top_p"),
        (["--policy", "fixd:3"], 2, "no policy is called 'fixd'"),
        (["--drafter", "psychic"], 2, "there are corpus_ngram"),
        (["--drafter-arg", "table"], 2, "write KEY=VALUE"),
        (["--drafter-arg", "tabel=x.npz", "--drafter", "corpus_ngram"], 2, "did you mean 'table'?"),
        (["--drafter-arg", "table=missing.npz", "--drafter", "corpus_ngram"], 1, "missing.npz"),
        (["--drafter", "draft_model"], 2, "--drafter draft_model: needs --drafter-arg model=..."),
        (["--drafter", "draft_model", "--drafter-arg", "model=./missing.gguf"], 1, "missing.gguf"),
        (["--sampling", "ratio"], 2, "drafter 'prompt_lookup' draws nothing"),
        (["--sampling", "rejection"], 2, "must be one of match, coupled, ratio"),
        (["--tuning", "missing.yaml"], 1, "missing.yaml: can't be read"),
        (["--model", "./missing.gguf"], 1, "missing.gguf"),
        (["--dtype", "float12"], 2, "--dtype: dtype 'float12' is not supported on cpu"),
        (["--drafter-arg", "min_match=abc"], 2, "--drafter-arg min_match=abc: should be a valid integer"),
        (["--num-kv-blocks", "1000000000000"], 1, "lower num_kv_blocks"),
        (["--num-kv-blocks", "1", "--max-tokens", "200"], 1, "KV"),
        (["--max-model-len", "8"], 1, "model's length"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    change: list[str], code: int, said: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "a bad cab, a bad cab", "--model", str(tiny_model), *ENGINE, *change]
    got, line = refused(arguments, capsys)
    assert said in line
    assert got == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either a PROMPT or --file"),
        (["  "], "the prompt is empty"),
        (["a\udcff"], "the prompt is no UTF-8 text"),
        (["x", "--file", "y.txt"], "give either a PROMPT or --file"),
    ],
)
def test_wrong_use_of_generate(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = refused(["generate", *arguments], capsys)
    assert code == 2
    assert said in line


def test_files_that_are_not_what_they_should_be(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("caf\xe9".encode("latin-1"))
    code, line = refused(["generate", "--file", str(latin), "--model", str(tiny_model)], capsys)
    assert code == 1
    assert line == f"adaptive-spec: {latin}: is not UTF-8 text (byte 3); save it as UTF-8"

    corrupt = tmp_path / "corrupt"
    shutil.copytree(tiny_model, corrupt)
    weights = corrupt / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, line = refused(["generate", "a cab", "--model", str(corrupt), *ENGINE], capsys)
    assert code == 1
    assert "corrupt" in line

    (corrupt / "config.json").write_text('{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}')
    code, line = refused(["generate", "a cab", "--model", str(corrupt), *ENGINE], capsys)
    assert code == 1
    assert "mamba" in line.lower()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--device", "tpu"], "--device: device 'tpu' is unknown; known are cpu, cuda, and cuda:N"),
        (["--device", "cuda:99"], "--device: device 'cuda:99' is not there"),
        (["--allocate", "moon"], "--allocate: allocate is 'moon'; it must be one of host, device"),
    ],
)
@pytest.mark.parametrize("command", [["generate", "a cab"], ["bench", "--file", "FILE"], ["record", "--file", "FILE"]])
def test_places_that_are_not_there(
    command: list[str],
    option: list[str],
    said: str,
    prompt_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(prompt_file) if word == "FILE" else word for word in command]
    if command[0] == "record":
        words.insert(1, str(tmp_path / "trace.parquet"))
        if option[0] == "--allocate":
            return  # it records with speculation off
    code, line = refused([*words, *option], capsys)
    assert code == 2
    assert said in line


def test_depths_may_be_chosen_on_the_device(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "a bad cab, a bad cab, a b", "--model", str(tiny_model), "--max-tokens", "30", *ENGINE]
    host = run_json(arguments, capsys)["answers"][0]
    device = run_json([*arguments, "--device", "cpu", "--allocate", "device"], capsys)["answers"][0]
    assert device["text"] == host["text"]
    assert sum(device["depth"]) > 0
    code, line = refused([*arguments, "--allocate", "device", "--policy", "fixed:2"], capsys)
    assert code == 1
    assert "allocation on the device serves the policy roofline-budget" in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--concurrency", "0"], "--concurrency 0"),
        (["--concurrency", "a"], "--concurrency a"),
        (["--rounds", "0"], "--rounds 0"),
        (["--rounds", "many"], "--rounds many"),
        (["--policies", ","], "--policies is empty"),
        (["--policies", "none,nothing"], "no policy is called 'nothing'"),
    ],
)
def test_wrong_use_of_bench(
    change: list[str], said: str, prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = refused(["bench", "--file", str(prompt_file), *change], capsys)
    assert code == 2
    assert said in line


def test_the_seed_of_generate_is_the_policy_s(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []
    serve = generate._serve

    def watch(llm: Any, *arguments: Any) -> None:
        seeds.append((llm.tuning.seed, llm.seed))
        serve(llm, *arguments)

    monkeypatch.setattr(generate, "_serve", watch)
    tuning = tmp_path / "tuning.yaml"
    tuning.write_text("seed: 3\n", encoding="utf-8")
    arguments = ["generate", "a bad cab", "--model", str(tiny_model), "--max-tokens", "5", *ENGINE]
    for more in ([], ["--seed", "9"], ["--tuning", str(tuning)], ["--tuning", str(tuning), "--seed", "9"]):
        run_json([*arguments, *more], capsys)
    assert seeds == [(0, 0), (9, 9), (3, 3), (9, 9)]


def test_answers_that_finished_are_printed_beside_one_that_failed(
    tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from adaptive_spec.engine.detokenizer import Detokenizer

    push = Detokenizer.push
    broken: list[Detokenizer] = []

    def push_or_break(self: Detokenizer, token: int) -> str | None:
        broken.append(self)
        if self is broken[0]:
            raise ZeroDivisionError("bytes")
        return push(self, token)

    monkeypatch.setattr(Detokenizer, "push", push_or_break)
    arguments = ["generate", "--file", str(prompt_file), "--model", str(tiny_model), "--max-tokens", "5", *ENGINE]
    assert main([*arguments, "--json"]) == 1
    out, err = capsys.readouterr()
    assert [answer["finish_reason"] for answer in json.loads(out)["answers"]].count("error") == 1
    last = err.splitlines()[-1]
    assert last.startswith("adaptive-spec: 'a bad cab, a bad cab.': the answer failed")
    assert "ZeroDivisionError: bytes" in last


def test_without_a_drafter_no_policy_is_named(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "a bad cab", "--model", str(tiny_model), "--max-tokens", "5", *ENGINE]
    assert run_json([*arguments, "--drafter", "none"], capsys)["policy"] == "none"
    assert run_json(arguments, capsys)["policy"] == "roofline-budget"


def test_a_chat_template_s_start_token_is_the_only_one(tiny_model: Path, tmp_path: Path) -> None:
    from tiny_llama import make_tiny_llm
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    folder = tmp_path / "starting"
    shutil.copytree(tiny_model, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="a $A", special_tokens=[("a", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = {"chat_template": "{% for m in messages %}a{{ m['content'] }}{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(template), encoding="utf-8")
    llm = make_tiny_llm(folder)
    assert llm.tokenizer.encode("bc") == [0, 1, 2]
    assert chat_prompt(llm, "bc", True) == [0, 1, 2]
    assert chat_prompt(llm, "bc", False) == "bc"


def test_files_of_a_model_that_are_no_mappings(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(tiny_model, folder)
    arguments = ["generate", "a cab", "--model", str(folder), *ENGINE]
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    code, line = refused(arguments, capsys)
    assert code == 1
    assert line == f"adaptive-spec: model {folder}: has no chat template; ask it with --no-chat"
    (folder / "tokenizer_config.json").write_text("[]", encoding="utf-8")
    code, line = refused(arguments, capsys)
    assert code == 1
    assert "tokenizer_config.json: holds a list; it must be a JSON object" in line
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": "x"}), encoding="utf-8")
    code, line = refused(arguments, capsys)
    assert code == 1
    assert "quantization_config is 'x'; it must be a mapping" in line
