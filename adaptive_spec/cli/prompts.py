"""Prompt: what is asked of the model, read from JSONL or text files."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_spec.cli.failure import CommandError


@dataclass(slots=True, frozen=True)
class Prompt:
    """One prompt.

    Attributes
    ----------
    text : str
        What is asked.
    category : str
        What kind of prompt it is; the file's name where the file doesn't say.
    """

    text: str
    category: str


def read_prompts(path: Path) -> list[Prompt]:
    """Read a file of prompts.

    ``.jsonl``: one JSON object a line, with ``turns`` (a list, of which the first is asked) or ``prompt``,
    and perhaps ``category``. Any other file: one prompt a line. Empty lines are skipped.

    Raises
    ------
    CommandError
        One line that names the file and the line.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CommandError(f"{path}: can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            prompts.append(
                _from_json(line, path.stem, where) if path.suffix == ".jsonl" else Prompt(line.strip(), path.stem)
            )
    if not prompts:
        raise CommandError(f"{path}: holds no prompt; write one a line")
    return prompts


def _from_json(line: str, stem: str, where: str) -> Prompt:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise CommandError(f"{where}: is no JSON: {error.msg} (column {error.colno})") from error
    if not isinstance(entry, dict) or not ("turns" in entry or "prompt" in entry):
        raise CommandError(f'{where}: must be an object with "turns" (a list of texts) or "prompt" (a text)')
    turns = entry["turns"] if "turns" in entry else [entry["prompt"]]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise CommandError(f'{where}: "turns" must be a list of texts, and "prompt" a text')
    if not turns[0].strip():
        raise CommandError(f"{where}: the prompt is empty; write something or take the line out")
    prompt = Prompt(turns[0], str(entry.get("category", stem)))
    if not (is_text(prompt.text) and is_text(prompt.category)):
        raise CommandError(f"{where}: holds half of a surrogate pair (\\ud800 to \\udfff); write whole characters")
    return prompt


def is_text(text: str) -> bool:
    """Whether all of it are characters; a half of a surrogate pair is none, and can't be printed."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def mix(files: Sequence[Sequence[Prompt]], count: int, seed: int) -> list[Prompt]:
    """Take `count` prompts evenly from files, or all if there are fewer, shuffled by `seed`.

    File after file gives one, in turn, until there are enough; a file that has run out is passed over.
    """
    draw = random.Random(seed)
    queues = [draw.sample(list(prompts), len(prompts)) for prompts in files]
    taken: list[Prompt] = []
    while len(taken) < count and any(queues):
        for queue in queues:
            if queue and len(taken) < count:
                taken.append(queue.pop())
    draw.shuffle(taken)
    return taken


def others(files: Sequence[Sequence[Prompt]], *held_out: Sequence[Prompt]) -> list[list[Prompt]]:
    """The prompts of each file, each text once, without any text that one of the sets `held_out` holds."""
    seen = {prompt.text for prompts in held_out for prompt in prompts}
    left: list[list[Prompt]] = []
    for prompts in files:
        kept = []
        for prompt in prompts:
            if prompt.text not in seen:
                seen.add(prompt.text)
                kept.append(prompt)
        left.append(kept)
    return left


def settling(files: Sequence[Sequence[Prompt]], measured: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """`count` prompts to settle on: evenly from the files by `seed`, none of whose texts is among those measured."""
    return mix(others(files, measured), count, seed)
