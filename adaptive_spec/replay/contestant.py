"""Contestant: one policy of a comparison, found by name, as plain data that any worker can build it from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.policy import DepthPolicy, make_policy, policy_names
from adaptive_spec.policy_argument import NONE, tuning_for
from adaptive_spec.replay.baseline_argument import baseline_arguments
from adaptive_spec.replay.controllers import BareController, ControllerFactory, ReplaySetting, TunedController
from adaptive_spec.replay.machine_file import CurveFile, RooflineFile
from adaptive_spec.tuning_file import nearest

if TYPE_CHECKING:
    from adaptive_spec.experiments.baselines import Offline
    from adaptive_spec.experiments.baselines.confidence import ConfidenceTable

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


def policy_of(spec: Mapping[str, Any]) -> str:
    """The installed policy that a contestant's plain data names; empty where the code is all this package's."""
    return str(spec["tuning"]["policy"]["name"]) if "tuning" in spec else ""


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
        A baseline or one of the installed policies, with its arguments, or an ablation.
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
    installed = policy_names()
    match = _FIXED.fullmatch(argument)
    word, _, rest = argument.partition(":")
    if believed is not None and word not in installed:
        raise ValueError(f"{name}: believed belongs to a policy of ours, not to {argument!r}; leave it out")
    if match and int(match[1]) > tuning.max_depth:
        raise ValueError(f"{name}: {argument!r} is deeper than max_depth {tuning.max_depth}; raise that, or lower this")
    if rest and (word in (NONE, BY_LOAD) or word in ablations()):
        raise ValueError(f"{name}: {word!r} takes no arguments; leave out {rest!r}")
    if argument == NONE or match:
        found = fixed(int(match[1]) if match else 0)
        return Contestant(name if name != argument else found.name, "fixed", found.spec)
    if argument == BY_LOAD:
        return Contestant(name, "yardstick", {"kind": BY_LOAD})
    if word in peers:
        return _baseline(name, argument, peers[word], tuning.max_depth)
    if argument in ablations():
        return Contestant(name, "ablation", {"kind": "ablation", "name": argument, "tuning": _plain(tuning)})
    if word not in installed:
        known = [*installed, *(p for p in peers if not p.startswith("fixed-")), "fixed-K", BY_LOAD, *ablations()]
        raise ValueError(f"no policy is called {word!r}{nearest(word, known)}")
    spec = {"kind": "tuned", "tuning": _plain(tuning_for(argument, tuning))}
    if believed is not None:
        return Contestant(name, "ablation", spec | {"believed": believed.model_dump(mode="json")})
    return Contestant(name, "peer" if word in NOT_ADAPTIVE else "ours", spec)


def _baseline(name: str, argument: str, make: Callable[..., DepthPolicy], max_depth: int) -> Contestant:
    """A peer or a yardstick; its arguments stay as they were written, since JSON has no numbers for keys."""
    word = argument.partition(":")[0]
    kind: Kind = "yardstick" if word in HINDSIGHT else "peer"
    spec = {"kind": "baseline", "name": word}
    arguments = baseline_arguments(argument)
    if not arguments:
        return Contestant(name, kind, spec)
    try:
        make(_NothingSeen(max_depth), None, **arguments).reset(max_depth, 0)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: {argument!r}: {error}") from error
    return Contestant(name, kind, {**spec, "argument": argument})


@dataclass(frozen=True)
class _NothingSeen:
    """In the place of texts to tune on, where a baseline is made only to see whether its arguments are good."""

    max_depth: int
    ngram: bool = False

    @property
    def confidence(self) -> ConfidenceTable:
        from adaptive_spec.experiments.baselines.confidence import ConfidenceTable

        return ConfidenceTable(np.full((1, self.max_depth), 0.5), None)


def confidence_note(contestants: Iterable[Contestant]) -> str:
    """What must be said of the peers that read a draft's confidence; empty if there are none."""
    from adaptive_spec.experiments.baselines import reads_confidence

    names = [c.name for c in contestants if c.spec["kind"] == "baseline" and reads_confidence(c.spec["name"])]
    if not names:
        return ""
    return (
        f"Made for a draft's confidence: {', '.join(dict.fromkeys(names))}. Traces hold none; in its place they get "
        "the same stand-in, a calibrated table over matched length, fitted on the texts for peers that train."
    )


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
        make, arguments = baselines(depth)[spec["name"]], baseline_arguments(spec.get("argument", spec["name"]))
        return BareController(lambda setting: make(offline, setting, **arguments), depth)
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
