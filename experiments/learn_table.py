"""Learns the frozen n-gram table of the corpus_ngram drafter from prompts, texts and a model's own outputs.

    python -m adaptive_spec.experiments.learn_table prompts.jsonl --model smollm2 --table table.npz
    python -m adaptive_spec.experiments.learn_table --outputs outputs.jsonl --vocab-size 49152 --table table.npz

Of all sources, the target's own outputs to prompts like those to come teach the most. Inputs, by their ending:

- ``.jsonl``: one JSON value a line. An object with ``turns`` (a list of user turns, as in Spec-Bench) gives the
  model's chat prompt of the first turn; a list of numbers, or an object with ``output`` and perhaps ``prompt``
  (lists of numbers), is taken as token ids.
- anything else: plain UTF-8 text, tokenised whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from adaptive_spec.engine.drafters.ngram_table import NgramTable


class Tokenizer(Protocol):
    """What is needed of the model's tokeniser (:class:`adaptive_spec.engine.tokenizer.Tokenizer`)."""

    chat_template: str | None
    fingerprint: str

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> str: ...


def read_sequences(path: Path, tokenizer: Tokenizer | None) -> Iterator[list[int]]:
    """Yield the token-id sequences of one file; ValueError names the file, the line and what would be right."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if path.suffix != ".jsonl":
        yield _needed(tokenizer, str(path)).encode(text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error})") from None
        if isinstance(row, dict) and "output" in row:
            yield _token_ids(row.get("prompt", []), where) + _token_ids(row["output"], where)
        elif isinstance(row, dict) and "turns" in row:
            turns = row["turns"]
            if not (isinstance(turns, list) and turns and isinstance(turns[0], str)):
                raise ValueError(f"{where}: `turns` must be a list of texts")
            yield _prompt(_needed(tokenizer, where), turns[0])
        elif isinstance(row, list):
            yield _token_ids(row, where)
        else:
            raise ValueError(
                f"{where}: must be a list of token ids, or an object with `turns`, or with `output` token ids"
            )


def _token_ids(value: Any, where: str) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise ValueError(f"{where}: token ids must be a list of whole numbers")
    return value


def _prompt(tokenizer: Tokenizer, turn: str) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer.encode(turn)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": turn}])
    return tokenizer.encode(chat, add_special_tokens=False)


def _needed(tokenizer: Tokenizer | None, where: str) -> Tokenizer:
    if tokenizer is None:
        raise ValueError(f"{where}: this is text, and needs --model to be tokenised")
    return tokenizer


def learn_table(
    inputs: list[Path],
    tokenizer: Tokenizer | None = None,
    vocab_size: int | None = None,
    vocab_fingerprint: str = "",
    order: int = 4,
    min_count: int = 1,
    max_entries: int = 1_000_000,
) -> NgramTable:
    """Learn a table from files.

    Parameters
    ----------
    inputs : list of Path
        See the module's first lines.
    tokenizer : Tokenizer, optional
        Needed where the inputs hold text.
    vocab_size, vocab_fingerprint : int, str
        Of the model's vocabulary; the fingerprint is the tokeniser's, where there is one.
    order, min_count, max_entries : int
        See :meth:`NgramTable.learn`.

    Raises
    ------
    OSError, ValueError
        If a file can't be read or is not as it should be; nothing was written then.
    """
    if not inputs:
        raise ValueError("nothing to learn from: name at least one text, prompt or outputs file")
    if tokenizer is not None:
        vocab_fingerprint = tokenizer.fingerprint
    if vocab_size is None:
        raise ValueError("the vocabulary's size is not known: give --model or --vocab-size")
    sequences = [sequence for path in inputs for sequence in read_sequences(path, tokenizer)]
    return NgramTable.learn(sequences, vocab_size, vocab_fingerprint, order, min_count, max_entries)


def main(
    table: Annotated[Path, typer.Option(help="The file to write.")],
    texts: Annotated[list[Path] | None, typer.Argument(help="Prompt files (.jsonl) and plain texts.")] = None,
    outputs: Annotated[list[Path] | None, typer.Option(help="The target's own outputs, as token ids (.jsonl).")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokeniser to use, as `adaptive-spec generate` takes it.")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary of token-id files, without --model.")] = None,
    vocab_fingerprint: Annotated[str, typer.Option(help="Fingerprint of that vocabulary.")] = "",
    order: Annotated[int, typer.Option(help="Tokens in the longest contexts.")] = 4,
    min_count: Annotated[int, typer.Option(help="Leave out contexts seen less often.")] = 1,
    max_entries: Annotated[int, typer.Option(help="The most contexts to keep.")] = 1_000_000,
) -> None:
    """Learn an n-gram table for the corpus_ngram drafter."""
    try:
        tokenizer = None
        if model is not None:
            from adaptive_spec.engine.model import load_model  # brings torch, which token ids don't need

            target, tokenizer = load_model(model)
            vocab_size = target.config.vocab_size
        learned = learn_table(
            [*(texts or []), *(outputs or [])], tokenizer, vocab_size, vocab_fingerprint, order, min_count, max_entries
        )
        learned.save(table)
    except (OSError, ValueError) as error:
        typer.echo(f"learn_table: {error}", err=True)
        raise typer.Exit(1) from None
    size = table.stat().st_size / 1e6
    typer.echo(f"{table}: {len(learned):,} contexts of up to {learned.order} tokens, {size:.1f} MB")


if __name__ == "__main__":
    typer.run(main)
