"""Overrides: what a request says of its own speculation, in ``extra_args`` or ``vllm_xargs``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaptive_spec.tuning_file import nearest

PREFIX = "adaptive_spec."
KEYS = ("max_depth", "depth", "weight", "off")
_MEANT = "adaptivespec"  # letters with which a key begins that is meant for the plugin, however it is written
_LOOKED_AT = 40  # of the characters of a key
HEAVIEST = 1000.0  # weight; one client's must not drown everybody else's in goodput and policy


@dataclass(frozen=True)
class Overrides:
    """Settings of one request.

    Attributes
    ----------
    max_depth : int, optional
        The deepest that it may be drafted; over K means K.
    depth : int, optional
        Draft it to exactly this depth wherever its length allows.
    weight : float
        Worth of one of its tokens, over 0 and at most 1000; a request of weight 2 is drafted as if its tokens
        counted twice.
    off : bool
        No drafts for this request.
    """

    max_depth: int | None = None
    depth: int | None = None
    weight: float = 1.0
    off: bool = False

    @property
    def cap(self) -> int | None:
        """The deepest depth allowed, None for no limit of its own."""
        return 0 if self.off else self.max_depth

    @property
    def pin(self) -> int | None:
        """The depth that it is pinned to, None if it isn't."""
        return None if self.off else self.depth

    @classmethod
    def parse(cls, extra_args: Mapping[str, Any] | None, max_depth: int | None = None) -> Overrides:
        """Read the keys that begin with ``adaptive_spec.``; everything else is somebody else's.

        A key that only resembles one of them, such as ``adaptive-spec.depth``, is a mistake and refused.

        Parameters
        ----------
        extra_args : mapping, optional
            ``SamplingParams.extra_args``, which ``vllm_xargs`` of an HTTP request becomes.
        max_depth : int, optional
            The deepest that this server drafts: its tuning's ``max_depth`` or vLLM's K, whichever is less. A pinned
            depth beyond it is refused.

        Raises
        ------
        ValueError
            If a key is unknown or a value impossible; the message is meant for the client.
        """
        if not extra_args:
            return NONE
        given = {}
        for key, value in extra_args.items():
            if key.startswith(PREFIX):
                given[key[len(PREFIX) :]] = value
            elif _is_meant(key):
                raise ValueError(f"{key[:_LOOKED_AT]} is unknown{nearest(key.lower(), [PREFIX + own for own in KEYS])}")
        if not given:
            return NONE
        for key in given:
            if key not in KEYS:
                raise ValueError(f"{PREFIX}{key} is unknown{nearest(key, KEYS)}")
        cap, pin = _count(given, "max_depth"), _count(given, "depth")
        if pin is not None and cap is not None and pin > cap:
            raise ValueError(f"{PREFIX}depth is {pin}, over {PREFIX}max_depth {cap}; lower it or leave one out")
        if pin is not None and max_depth is not None and pin > max_depth:
            raise ValueError(f"{PREFIX}depth is {pin}; this server drafts 0 to {max_depth} tokens (its max_depth)")
        return cls(cap, pin, _weight(given), _flag(given, "off"))


NONE = Overrides()


def _is_meant(key: str) -> bool:
    """Whether a key without the prefix seems to be meant to have it."""
    return "".join(filter(str.isalpha, key[:_LOOKED_AT])).lower().startswith(_MEANT)


def _count(given: Mapping[str, Any], key: str) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < 0:
        raise ValueError(f"{PREFIX}{key} is {value!r}; it must be a whole number from 0 up")
    return int(value)


def _weight(given: Mapping[str, Any]) -> float:
    value = given.get("weight", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value <= HEAVIEST):
        raise ValueError(f"{PREFIX}weight is {value!r}; it must be a number over 0 and at most {HEAVIEST:g}")
    return float(value)


def _flag(given: Mapping[str, Any], key: str) -> bool:
    value = given.get(key, False)
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if isinstance(value, (bool, int)) and value in (0, 1):  # JSON's true may arrive as 1
        return bool(value)
    raise ValueError(f"{PREFIX}{key} is {value!r}; it must be true or false")
