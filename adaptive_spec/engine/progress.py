"""A progress bar over requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import MofNCompleteColumn, Progress


@contextmanager
def request_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar over requests, or none."""
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), transient=True, disable=not shown) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda finished: progress.advance(task, finished)
