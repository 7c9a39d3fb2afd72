"""Contestant: one policy of a comparison, found by name, as plain data that any worker can build it from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.policy import make_policy, policy_names
from adaptive_spec.policy_argument import tuning_for
from adaptive_spec.replay.controllers import BareController, ControllerFactory, ReplaySetting, TunedController
from adaptive_spec.replay.machine_file import CurveFile, RooflineFile
from adaptive_spec.tuning_file import nearest

if TYPE_CHECKING:
    from adaptive_spec.experiments.baselines import Offline

Curve = Annotated[CurveFile | RooflineFile, Field(discriminator="kind")]
Kind = Literal["ours", "ablation", "peer", "fixed", "yardstick"]
BY_LOAD = "best-by-load"
HINDSIGHT = ("clairvoyant", "signal-ceiling", BY_LOAD)
NOT_ADAPTIVE = ("fixed", "batch-threshold")
_FIXED = re.compile(r"fixed[-:](\d+)")


@dataclass(frozen=True)
class Contestant:
    """A policy that takes part.

    Attributes
    ----------
    name : str
        What it is called in tables.
    kind : str
        ``ours``; ``ablation``: ours without one of its parts; ``peer``; ``fixed``: one depth for all; ``yardstick``:
        knows more than an engine can.
    spec : mapping
        Plain data from which :func:`controller_factory` builds it.
    """

    name: str
    kind: Kind
    spec: Mapping[str, Any]

    @property
    def depth(self) -> int | None:
        """The depth of a fixed one."""
        return int(self.spec["depth"]) if self.kind == "fixed" else None

    def ablates(self, whole: Contestant) -> bool:
        """Whether it is an ablation of this policy."""
        if self.kind != "ablation" or whole.kind != "ours":
            return False
        own, other = (contestant.spec["tuning"]["policy"]["name"] for contestant in (self, whole))
        return bool(own == other)


def fixed(depth: int) -> Contestant:
    """One depth for all sequences; 0 is called none."""
    return Contestant(f"fixed-{depth}" if depth else "none", "fixed", {"kind": "fixed", "depth": depth})


def with_table(contestant: Contestant, table: Sequence[Sequence[int | None]]) -> Contestant:
    """``best-by-load`` with its table out of runs of fixed depths: (first, last, depth)."""
    return replace(contestant, spec={**contestant.spec, "table": [list(row) for row in table]})


def find_contestant(
    name: str, argument: str, tuning: TuningConfig, believed: CurveFile | RooflineFile | None = None
) -> Contestant:
    """Find a policy.

    Parameters
    ----------
    name : str
        What to call it.
    argument : str
        A baseline, an ablation, or one of the installed policies with its arguments.
    tuning : TuningConfig
        Settings of ours, and of ablations; its `max_depth` is K.
    believed : CurveFile or RooflineFile, optional
        The curve that one of ours takes the machine's for; it then counts as an ablation.

    Raises
    ------
    ValueError
        If there is no such policy, or it can't serve with these arguments.
    """
    from adaptive_spec.experiments.ablations import ablations
    from adaptive_spec.experiments.baselines import baselines

    peers = baselines(tuning.max_depth)
    match = _FIXED.fullmatch(argument)
    if believed is not None and argument.partition(":")[0] not in policy_names():
        raise ValueError(f"{name}: believed belongs to a policy of ours, not to {argument!r}; leave it out")
    if argument == "none" or (match and int(match[1]) <= tuning.max_depth):
        found = fixed(int(match[1]) if match else 0)
        return Contestant(name if name != argument else found.name, "fixed", found.spec)
    if argument == BY_LOAD:
        return Contestant(name, "yardstick", {"kind": BY_LOAD})
    if argument in peers:
        kind: Kind = "yardstick" if argument in HINDSIGHT else "peer"
        return Contestant(name, kind, {"kind": "baseline", "name": argument})
    if argument in ablations():
        return Contestant(name, "ablation", {"kind": "ablation", "name": argument, "tuning": _plain(tuning)})
    installed = policy_names()
    word = argument.partition(":")[0]
    if word not in installed:
        known = [*installed, *(p for p in peers if not p.startswith("fixed-")), "fixed-K", BY_LOAD, *ablations()]
        raise ValueError(f"no policy is called {word!r}{nearest(word, known)}")
    spec = {"kind": "tuned", "tuning": _plain(tuning_for(argument, tuning))}
    if believed is not None:
        return Contestant(name, "ablation", spec | {"believed": believed.model_dump(mode="json")})
    return Contestant(name, "peer" if word in NOT_ADAPTIVE else "ours", spec)


def _plain(tuning: TuningConfig) -> dict[str, Any]:
    return tuning.model_dump(mode="json")


def controller_factory(spec: Mapping[str, Any], offline: Offline) -> ControllerFactory:
    """Build what makes a run's controller from a contestant's plain data.

    Parameters
    ----------
    spec : mapping
        Of a :class:`Contestant`.
    offline : Offline
        What a peer may be tuned on.
    """
    from adaptive_spec.experiments.ablations import ablations
    from adaptive_spec.experiments.baselines import baselines

    depth = offline.max_depth
    if spec["kind"] == "fixed":
        return BareController(make_policy("fixed", depth=spec["depth"]), depth)
    if spec["kind"] == BY_LOAD:
        return BareController(make_policy("batch-threshold", table=[tuple(row) for row in spec["table"]]), depth)
    if spec["kind"] == "baseline":
        make = baselines(depth)[spec["name"]]
        return BareController(lambda setting: make(offline, setting), depth)
    tuning = TuningConfig.model_validate(spec["tuning"], strict=False)
    if "believed" in spec:
        return _Believing(tuning, TypeAdapter(Curve).validate_python(spec["believed"]))
    return ablations()[spec["name"]](tuning) if spec["kind"] == "ablation" else TunedController(tuning)


@dataclass(frozen=True)
class _Believing:
    """The controller of a tuning that takes every machine's curve for another one; of the draft's cost it knows."""

    tuning: TuningConfig
    curve: CurveFile | RooflineFile

    def __call__(self, setting: ReplaySetting) -> Controller:
        believed = self.curve.cost(Path(), setting.machine.draft_cost)
        return TunedController(self.tuning, believed)(setting)
