"""MeasuredCells: what long measurements have brought so far, kept on disk cell by cell; ratios with their intervals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from adaptive_spec.cli.comparison import Ratio

Key = tuple[str, int, int]


class MeasuredCells:
    """Goodputs by setting, concurrency and round; a measurement that was broken off goes on where it ended.

    Parameters
    ----------
    file : path
        One line of JSON a cell; made if it isn't there.
    described : dict
        What is measured, and how. A file of something else is refused.

    Raises
    ------
    ValueError
        If the file is of another measurement, or is none.
    """

    def __init__(self, file: Path, described: dict[str, Any]) -> None:
        self.file = file
        self.cells: dict[Key, dict[str, Any]] = {}
        described = json.loads(json.dumps(described))
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(described) + "\n")
            return
        text = file.read_text()
        whole = text[: text.rfind("\n") + 1]  # a killed command may have left the last line torn off
        lines = whole.splitlines()
        try:
            before = json.loads(lines[0]) if lines else None
            rows = [json.loads(line) for line in lines[1:]]
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}: is no file of measured cells: {error.msg}; name another") from None
        if before != described:
            raise ValueError(f"{file}: holds another measurement ({before}); name another file, or remove it")
        if whole != text:
            file.write_text(whole)  # or the next cell would go on in the torn line
        for row in rows:
            self.cells[row["setting"], row["concurrency"], row["round"]] = row

    def add(self, setting: str, concurrency: int, round: int, result: dict[str, Any]) -> None:
        """Keep a cell; `result` has ``tokens`` and ``seconds``."""
        row = {"setting": setting, "concurrency": concurrency, "round": round, **result}
        self.cells[setting, concurrency, round] = row
        with self.file.open("a") as out:
            out.write(json.dumps(row) + "\n")

    def __contains__(self, key: Key) -> bool:
        return key in self.cells

    def goodput(self, setting: str, concurrency: int) -> float:
        """Tokens per second over all rounds; NaN if there is none."""
        rows = [cell for (s, c, _), cell in self.cells.items() if (s, c) == (setting, concurrency)]
        seconds = sum(row["seconds"] for row in rows)
        return sum(row["tokens"] for row in rows) / seconds if seconds else math.nan

    def rounds(self, setting: str, other: str, concurrency: int) -> list[int]:
        """Rounds in which both settings were measured."""
        mine = {r for s, c, r in self.cells if (s, c) == (setting, concurrency)}
        return sorted(mine & {r for s, c, r in self.cells if (s, c) == (other, concurrency)})

    def ratio(self, setting: str, other: str, concurrency: int) -> Ratio | None:
        """Goodput over another's, from paired rounds; None where there is no round that both have."""
        rounds = self.rounds(setting, other, concurrency)
        if not rounds:
            return None
        over, under = ([self._of(name, concurrency, round) for round in rounds] for name in (setting, other))
        return Ratio.paired(over, under)

    def _of(self, setting: str, concurrency: int, round: int) -> float:
        cell = self.cells[setting, concurrency, round]
        return float(cell["tokens"] / cell["seconds"])
