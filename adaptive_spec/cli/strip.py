"""Strip: the depths that a sequence had, step by step, as one line of blocks coloured by what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
NO_DRAFT = "·"
LEGEND = "one sign a step, · no draft, ▁ to █ shallow to deep; green: all accepted, yellow: some, red: none"


class DecodedSequence(Protocol):
    """What a strip needs to know of a sequence."""

    @property
    def id(self) -> int: ...


class DecodedStep(Protocol):
    """What a strip needs to know of a step: a serving StepReport, say."""

    @property
    def sequences(self) -> Sequence[DecodedSequence]: ...
    @property
    def verified(self) -> NDArray[np.int64]: ...
    @property
    def accepted(self) -> NDArray[np.int64]: ...


@dataclass(slots=True)
class Strip:
    """Depths and accepted drafts of one sequence, step by step."""

    depth: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, depth: int, accepted: int) -> None:
        """Take in one step; ValueError if more was accepted than verified."""
        if not 0 <= accepted <= depth:
            raise ValueError(f"{accepted} drafts accepted of {depth} verified")
        self.depth.append(depth)
        self.accepted.append(accepted)

    @property
    def acceptance_length(self) -> float:
        """Tokens a step: accepted drafts and the bonus token (NaN without a step)."""
        return 1 + sum(self.accepted) / len(self.depth) if self.depth else float("nan")

    @property
    def acceptance(self) -> float:
        """Share of the verified drafts that were accepted (NaN if none was verified)."""
        verified = sum(self.depth)
        return sum(self.accepted) / verified if verified else float("nan")

    def plain(self, max_depth: int, last: int | None = None) -> str:
        """The strip as bare characters; only the `last` steps if given."""
        start = 0 if last is None else max(0, len(self.depth) - last)
        return "".join(block(depth, max_depth) for depth in self.depth[start:])

    def render(self, max_depth: int, last: int | None = None) -> Text:
        """The strip in colour; only the `last` steps if given."""
        start = 0 if last is None else max(0, len(self.depth) - last)
        text = Text(no_wrap=last is not None, overflow="fold")
        for depth, accepted in zip(self.depth[start:], self.accepted[start:], strict=True):
            text.append(block(depth, max_depth), style=colour(depth, accepted))
        return text


def block(depth: int, max_depth: int) -> str:
    """The character of a depth: a dot for 0, then the taller the deeper, full at `max_depth`."""
    if depth <= 0:
        return NO_DRAFT
    level = -(-min(depth, max_depth) * len(BLOCKS) // max_depth)
    return BLOCKS[level - 1]


def colour(depth: int, accepted: int) -> str:
    """The colour of a step by how many of its drafts were accepted."""
    if depth <= 0:
        return "bright_black"
    return "green" if accepted == depth else "yellow" if accepted else "red"


class StripRecorder:
    """Keeps the strip of every sequence that it sees decoding; an observer of steps."""

    def __init__(self) -> None:
        self.strips: dict[int, Strip] = {}

    def __call__(self, step: DecodedStep) -> None:
        """Take in one step."""
        for sequence, depth, accepted in zip(
            step.sequences, step.verified.tolist(), step.accepted.tolist(), strict=True
        ):
            self.strips.setdefault(sequence.id, Strip()).add(depth, accepted)
