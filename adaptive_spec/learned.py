"""What a controller has learned, part by part: collected for saving, and taken over only whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from adaptive_spec.policy import DepthPolicy

COUNTED = {"guard": "switches", "watchdog": "trips"}  # counts that go on whatever becomes of what was learned


class Learner(Protocol):
    """A part of the controller that learns."""

    def state(self) -> dict[str, object]:
        """What it has learned."""
        ...

    def restore(self, state: dict[str, object]) -> None:
        """Take it over; ValueError if it doesn't fit."""
        ...


def collect(identity: Mapping[str, object], policy: DepthPolicy, learners: Mapping[str, Learner]) -> dict[str, object]:
    """All that was learned, as nested dicts of numbers, strings and arrays, and whose it is."""
    return {
        "identity": dict(identity),
        "policy": {"name": type(policy).__name__, "state": policy.state()},
        **{name: part.state() for name, part in learners.items()},
    }


def take_over(
    state: Mapping[str, object], identity: Mapping[str, object], policy: DepthPolicy, learners: Mapping[str, Learner]
) -> None:
    """Give every part what :func:`collect` took from it; another policy than the saved one starts anew.

    Raises
    ------
    ValueError
        If the state is another deployment's or doesn't fit; every part is then as it was.
    """
    saved = _mapping(state, "identity")
    for name in sorted(identity.keys() | saved.keys()):
        if identity.get(name) != saved.get(name):
            raise ValueError(
                f"the saved state was learned with {name} {saved.get(name)!r}, this controller has "
                f"{identity.get(name)!r}; start without it, or with the deployment that it belongs to"
            )
    before = collect(identity, policy, learners)
    try:
        _restore(state, policy, learners)
    except (KeyError, TypeError, ValueError) as error:
        _restore(before, policy, learners)
        raise ValueError(f"the saved state doesn't fit this controller: {error}") from error


def carry_over(
    policy: DepthPolicy,
    learners: Mapping[str, Learner],
    new_policy: DepthPolicy,
    new_learners: Mapping[str, Learner],
) -> list[str]:
    """Give fresh parts, one by one, what the parts that they replace have learned.

    Returns
    -------
    list of str
        Names of the fresh parts that begin anew, since it didn't fit them.
    """
    anew = []
    for name, part in new_learners.items():
        old = learners.get(name)
        if old is part:
            continue
        if old is None or not _took(part, old):
            anew.append(name)
        if old is not None and name in COUNTED:
            setattr(part, COUNTED[name], getattr(old, COUNTED[name]))
    if type(policy) is not type(new_policy) or not _took(new_policy, policy):
        anew.append("policy")
    return anew


def _took(part: Learner, old: Learner) -> bool:
    """Whether a part could take over what an old one learned; else it is as it was."""
    before = part.state()
    try:
        part.restore(old.state())
    except (KeyError, TypeError, ValueError):
        part.restore(before)
        return False
    return True


def _restore(state: Mapping[str, object], policy: DepthPolicy, learners: Mapping[str, Learner]) -> None:
    for name, part in learners.items():
        if name in state:
            part.restore(dict(_mapping(state, name)))
    saved = _mapping(state, "policy")
    if saved["name"] == type(policy).__name__:
        policy.restore(dict(_mapping(saved, "state")))


def _mapping(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = state.get(name)
    if not isinstance(value, Mapping):
        raise ValueError(f"the saved state has no table {name!r}")
    return value
