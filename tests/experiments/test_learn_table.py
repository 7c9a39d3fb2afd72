"""The command that learns an n-gram table: what it reads, and what it says of what it can't read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from adaptive_spec.engine.drafters.ngram_table import NgramTable
from adaptive_spec.experiments.learn_table import learn_table, main


class Letters:
    """A tokeniser of one token per character; a chat prompt begins with 0 and ends with 1."""

    chat_template: str | None = "{}"
    fingerprint = "letters"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [2] * add_special_tokens + [ord(letter) for letter in text]

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return "\0" + "".join(message["content"] for message in messages) + "\1"


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_learns_from_prompts_texts_and_outputs_alike(tmp_path: Path) -> None:
    prompts = write(tmp_path / "prompts.jsonl", {"turns": ["abc", "not this"], "category": "x"})
    text = tmp_path / "plain.txt"
    text.write_text("hello", encoding="utf-8")
    outputs = write(tmp_path / "outputs.jsonl", [5, 6, 7], {"prompt": [8, 9], "output": [5, 6]}, {"output": [3, 4]})
    table = learn_table([prompts, text, outputs], Letters(), 128, order=2)
    sequences = [[0, 97, 98, 99, 1], [2, 104, 101, 108, 108, 111], [5, 6, 7], [8, 9, 5, 6], [3, 4]]
    assert table.fingerprint == NgramTable.learn(sequences, 128, "letters", order=2).fingerprint

    bare = Letters()
    bare.chat_template = None
    again = learn_table([prompts], bare, 128, order=2)
    assert again.fingerprint == NgramTable.learn([[2, 97, 98, 99]], 128, "letters", order=2).fingerprint


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not JSON"),
        ('{"turns": "abc"}', "line 2: `turns` must be a list of texts"),
        ('{"output": ["a"]}', "line 2: token ids must be a list of whole numbers"),
        ("[1, true]", "line 2: token ids must be a list of whole numbers"),
        ('{"prompt": [1]}', "line 2: must be a list of token ids"),
        ("3", "line 2: must be a list of token ids"),
    ],
)
def test_names_the_line_that_is_wrong(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"[1, 2]\n{row}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        learn_table([path], Letters(), 128)
    assert str(path) in str(caught.value)


def test_text_needs_a_tokeniser_and_ids_a_vocabulary(tmp_path: Path) -> None:
    prompts = write(tmp_path / "prompts.jsonl", {"turns": ["abc"]})
    with pytest.raises(ValueError, match="needs --model"):
        learn_table([prompts], vocab_size=10)
    with pytest.raises(ValueError, match="give --model or --vocab-size"):
        learn_table([prompts], Letters())
    with pytest.raises(ValueError, match="name at least one"):
        learn_table([], Letters(), 128)
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"not UTF-8 text \(byte 3\)"):
        learn_table([latin], Letters(), 128)


def test_the_command_writes_a_table_that_loads_and_leaves_nothing_behind_on_failure(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(main)
    outputs = write(tmp_path / "outputs.jsonl", [5, 6, 7, 5, 6, 8])
    path = tmp_path / "table.npz"
    good = ["--outputs", str(outputs), "--table", str(path), "--vocab-fingerprint", "f"]
    result = CliRunner().invoke(app, [*good, "--vocab-size", "9"])
    assert result.exit_code == 0, result.output
    before = path.read_bytes()
    assert NgramTable.load(path).vocab_fingerprint == "f"
    result = CliRunner().invoke(app, [*good, "--vocab-size", "8"])
    assert result.exit_code == 1
    assert "token 8 is outside the vocabulary of 8 tokens" in result.output
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outputs.jsonl", "table.npz"]
