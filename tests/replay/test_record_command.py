"""`adaptive-spec record`: a model's traces, another engine's rows, and what is refused."""

from __future__ import annotations

import json

import pytest
from tiny_llama import write_tiny_llama

from adaptive_spec.cli import main
from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.drafters import make_drafter
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.replay.recorder import RecordedPrompt, record, why_not_recordable
from adaptive_spec.replay.trace import Trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "abcabcabc" * 2, "category": "chat"}, {"prompt": "ab cd ab cd", "category": "code"}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_prompts_are_recorded(folder, prompts, tmp_path, capsys):
    output = tmp_path / "trace.parquet"
    arguments = ["record", str(output), "--file", str(prompts), "--model", str(folder), "--no-chat", "--depth", "5"]
    assert main([*arguments, "--max-tokens", "30", "--ignore-eos"]) == 0
    assert "recorded trace: 2 sequences of 2 texts" in capsys.readouterr().out
    trace = Trace.load(output)
    assert trace.max_depth == 5
    assert sorted(trace.category) == ["chat", "code"]
    assert sorted(trace.task) == ["prompts/0", "prompts/1"]
    assert trace.output_tokens.tolist() == [30, 30]
    assert trace.evidence_names == ("matched_length", "agreement")
    assert trace.info.sampling == {"mode": "greedy"}
    assert trace.info.dtype == "float32"
    assert "prompt_lookup" in trace.info.drafter
    assert str(tmp_path) not in trace.info.command
    assert trace.info.command.startswith("adaptive-spec record trace.parquet --file prompts.jsonl")


def test_sampled_texts_carry_their_seeds(folder, prompts, tmp_path, capsys):
    output = tmp_path / "trace.parquet"
    arguments = ["record", str(output), "--file", str(prompts), "--model", str(folder), "--no-chat", "--json"]
    assert main([*arguments, "--max-tokens", "20", "--temperature", "0.8", "--seed", "7"]) == 0
    told = json.loads(capsys.readouterr().out)
    trace = Trace.load(output)
    assert told["sequences"] == 2
    assert told["survival"] == pytest.approx(trace.survival().tolist(), abs=1e-4)
    assert trace.seed.tolist() == [7, 8]
    assert trace.info.sampling == {"mode": "match", "temperature": 0.8, "top_p": 1.0, "top_k": 0}


def test_foreign_rows_become_a_trace_and_say_what_was_derived(tmp_path, capsys):
    log, output = tmp_path / "log.csv", tmp_path / "trace.parquet"
    log.write_text("sequence,position,offered,accepted\n1,1,4,2\n1,4,4,1\n")
    assert main(["record", str(output), "--from", str(log)]) == 0
    said = capsys.readouterr().out
    assert "60% of the runs derived" in said
    assert "note: positions that the log did not visit" in said
    assert Trace.load(output).run.tolist() == [2, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "either --file"),
        (["--file", "PROMPTS", "--from", "x.csv"], 2, "either --file"),
        (["--from", "missing.csv"], 1, "missing.csv: there is no such file"),
        (["--file", "PROMPTS", "--drafter", "none"], 1, "isn't known to draft as a function of the text"),
        (["--file", "PROMPTS", "--drafter", "corpus_ngram", "--drafter-arg", "online=true"], 1, "learns online"),
        (["--file", "PROMPTS", "--temperature", "-1"], 2, "temperature"),
        (["--file", "missing.jsonl"], 1, "missing.jsonl: can't be read"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_one_line(arguments, code, told, folder, prompts, tmp_path, capsys):
    output = tmp_path / "trace.parquet"
    given = [str(prompts) if argument == "PROMPTS" else argument for argument in arguments]
    assert main(["record", str(output), "--model", str(folder), "--no-chat", *given]) == code
    said = capsys.readouterr().err.strip().splitlines()
    assert told in said[-1]
    assert not output.exists()


def test_a_folder_that_is_missing_is_told_before_the_work(tmp_path, capsys):
    assert main(["record", str(tmp_path / "no" / "t.parquet"), "--from", "x.csv"]) == 2
    assert "make it first" in capsys.readouterr().err


def test_the_recorder_refuses_what_a_trace_cannot_hold(folder):
    llm = LLM(folder, dtype="float32", tuning=TuningConfig(mode="off"))
    prompt = [RecordedPrompt([1, 2, 3])]
    for params, told in (
        (SamplingParams(temperature=0.7), "without a seed"),
        (SamplingParams(temperature=0.0, n=2), "n over 1"),
        (SamplingParams(temperature=0.0, stop="x"), "stop strings"),
    ):
        with pytest.raises(ValueError, match=told):
            record(llm, prompt, params)
    with pytest.raises(ValueError, match="no prompt"):
        record(llm, [])
    with pytest.raises(ValueError, match="max_depth 300"):
        record(llm, prompt, max_depth=300)
    with pytest.raises(ValueError, match="prompt 1: "):
        record(llm, [*prompt, RecordedPrompt([99])])
    assert not llm.has_unfinished
    assert why_not_recordable(make_drafter("prompt_lookup")) is None


def test_recording_leaves_the_engine_as_it_was(folder):
    tuning = TuningConfig.model_validate({"max_depth": 3, "policy": {"name": "fixed", "depth": 2}})
    llm = LLM(folder, dtype="float32", tuning=tuning)
    a = record(llm, [RecordedPrompt([1, 2, 3] * 4, "c")], SamplingParams(temperature=0.0, max_tokens=20), max_depth=4)
    assert llm.tuning == tuning
    assert llm.generate([[1, 2, 3] * 4], SamplingParams(temperature=0.0, max_tokens=20))[0].stats.verified > 0
    b = record(llm, [RecordedPrompt([1, 2, 3] * 4, "c")], SamplingParams(temperature=0.0, max_tokens=20), max_depth=4)
    assert (a.run == b.run).all()
    deeper = record(llm, [RecordedPrompt([1, 2, 3] * 4)], SamplingParams(temperature=0.0, max_tokens=20), max_depth=9)
    assert (deeper.run.clip(max=4) == a.run).all()  # a deeper recording says the same of shallow drafts
