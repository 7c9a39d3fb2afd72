"""CommandError: why a command ends before its time, in one line, and with which exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """A command that can't go on; `exit_code` is 1 if it failed, 2 if it was used wrongly."""

    exit_code = 1


class UsageError(CommandError):
    """A command that was used wrongly."""

    exit_code = 2


@contextmanager
def failing(what: str, usage: bool = False) -> Iterator[None]:
    """Report what a library refuses within this block in one line that begins with `what`.

    Only the errors by which libraries refuse input are caught; a fault of our own keeps its traceback.
    """
    kind = UsageError if usage else CommandError
    prefix = f"{what}: " if what else ""
    try:
        yield
    except CommandError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("adaptive_spec"):
            raise
        raise CommandError(
            f"{prefix}needs the module {error.name}; install it with: pip install 'adaptive-spec[engine]'"
        ) from error
    except (OSError, ValueError, KeyError, MemoryError) as error:
        told = error.args[0] if isinstance(error, KeyError) and error.args else error
        text = str(told) or type(error).__name__
        raise kind(prefix + (text if "\n" not in text else _one_line(text))) from error


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
