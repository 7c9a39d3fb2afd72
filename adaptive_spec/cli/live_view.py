"""LiveView: the answers as they grow on a terminal, each with the strip of its depths."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from adaptive_spec.cli.strip import LEGEND

if TYPE_CHECKING:
    from adaptive_spec.cli.generate import Answer

REDRAWS_PER_SECOND = 8


class LiveView:
    """Shows answers while they are made; a context manager.

    Parameters
    ----------
    answers : sequence of Answer
        Changed elsewhere; :meth:`update` shows them as they are.
    max_depth : int
        Depth of a full block.
    console : Console, optional
        Where to.
    """

    def __init__(self, answers: Sequence[Answer], max_depth: int, console: Console | None = None) -> None:
        self.answers = answers
        self.max_depth = max_depth
        self.console = Console() if console is None else console
        self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
        self._began = self._drawn = time.perf_counter()

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        for answer in self.answers:  # whole, and past the terminal's height
            if len(self.answers) > 1:
                self.console.rule(Text(" ".join(answer.prompt.split())[:70]), align="left")
            self.console.print(Text(answer.text))
            self.console.print(answer.strip.render(self.max_depth))
        self.console.print(Text(LEGEND, style="bright_black"))

    def update(self) -> None:
        """Show what has changed, a few times a second at most."""
        now = time.perf_counter()
        if now - self._drawn >= 1 / REDRAWS_PER_SECOND:
            self._drawn = now
            self._live.update(self.view(now - self._began), refresh=True)

    def view(self, seconds: float) -> RenderableType:
        """The picture after so many seconds."""
        width = self.console.width
        table = Table(box=None, show_header=True, header_style="bright_black", pad_edge=False, expand=True)
        table.add_column("prompt", max_width=max(12, width // 4), no_wrap=True, overflow="ellipsis")
        table.add_column("tokens", justify="right")
        table.add_column("length", justify="right")
        table.add_column("depths", ratio=1, no_wrap=True)
        room = max(10, width - max(12, width // 4) - 20)
        for answer in self.answers:
            length = answer.strip.acceptance_length
            table.add_row(
                Text(" ".join(answer.prompt.split())),
                str(answer.tokens),
                f"{length:.2f}" if length == length else "",
                answer.strip.render(self.max_depth, last=room),
            )
        tokens = sum(answer.tokens for answer in self.answers)
        steps = sum(len(answer.strip.depth) for answer in self.answers)
        accepted = sum(sum(answer.strip.accepted) for answer in self.answers)
        told = f", acceptance length {1 + accepted / steps:.2f}" if steps else ""
        status = Text(f"{tokens} tokens, {tokens / max(seconds, 1e-9):.1f} tokens/s{told}", style="bold")
        if len(self.answers) > 1:
            return Group(table, status)
        rows = max(3, self.console.height - 6)
        lines = Text(self.answers[0].text).wrap(self.console, width)[-rows:]
        return Group(*lines, table, status)
