"""What chooses the depths in a replay: factories of controllers, one fresh controller for each run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Online, StepCost
from adaptive_spec.deployment import MEASURED_DEVIATION, make_controller
from adaptive_spec.policy import DepthPolicy
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.replay.machine import Machine
from adaptive_spec.step import IntArray


@dataclass(frozen=True)
class ReplaySetting:
    """What a controller may be built from.

    Attributes
    ----------
    machine : Machine
    evidence : tuple of str
        What the trace offers, ``age`` last.
    max_depth : int
        K of the trace.
    clock : VirtualClock
    seed : int
        Of the run.
    present_runs : callable
        For clairvoyant baselines alone: drafts of the sequences of the step that is being decided, in the view's order,
        that would be accepted and bring a token.
    present_places : callable
        For yardsticks alone: their places in the trace's flat arrays.
    """

    machine: Machine
    evidence: tuple[str, ...]
    max_depth: int
    clock: VirtualClock
    seed: int
    present_runs: Callable[[], IntArray]
    present_places: Callable[[], IntArray]


class ControllerFactory(Protocol):
    """Makes the controller of a run."""

    def __call__(self, setting: ReplaySetting, /) -> Controller:
        """A controller with nothing learned, on the setting's clock."""
        ...


def believed_cost(setting: ReplaySetting, believed: StepCost | None, memory_steps: float | None) -> StepCost:
    """The cost model that a controller begins with: the machine's own curve unless another one is believed.

    Parameters
    ----------
    believed : StepCost, optional
        A wrong or a paper curve; it is copied.
    memory_steps : float, optional
        Of its online correction; None: it is never corrected.
    """
    base = copy.deepcopy(setting.machine.cost if believed is None else believed)
    return base if memory_steps is None else Online(base, memory_steps=memory_steps, local_deviation=MEASURED_DEVIATION)


@dataclass(frozen=True)
class TunedController:
    """The controller that a tuning describes: guard, exploration and online cost correction as it says.

    Attributes
    ----------
    tuning : TuningConfig
        Its `cost` section counts for the online correction only; its seed is replaced by the run's. With ``mode: off``
        nothing is drafted.
    believed : StepCost, optional
        What the controller takes the machine's cost for; the truth if None.
    """

    tuning: TuningConfig
    believed: StepCost | None = None

    def __call__(self, setting: ReplaySetting) -> Controller:
        """Build it; ValueError if the tuning asks for evidence that the trace lacks, or for depths over its K."""
        tuning = self.tuning.model_copy(update={"seed": setting.seed})
        if tuning.max_depth > setting.max_depth:
            raise ValueError(
                f"max_depth is {tuning.max_depth}, but the trace was recorded to {setting.max_depth}; lower it, or "
                "record deeper"
            )
        wanted = tuning.acceptance.evidence
        known = setting.evidence
        if wanted is not None:
            if unknown := [name for name in wanted if name not in known]:
                raise ValueError(f"acceptance.evidence asks for {unknown[0]!r}; the trace offers {', '.join(known)}")
            known = tuple(name for name in known if name in wanted)
        online = tuning.cost.online
        cost = believed_cost(setting, self.believed, online.memory_steps if online.enabled else None)
        return make_controller(tuning, cost=cost, evidence=known, clock=setting.clock)


@dataclass(frozen=True)
class BareController:
    """A policy alone: no guard, no watchdog, no exploration. So baselines run, as their makers have them.

    Attributes
    ----------
    policy : DepthPolicy, or callable
        Copied for each run; or a function of the :class:`ReplaySetting` that makes one (a clairvoyant needs it).
    max_depth : int
        K.
    memory_steps : float, optional
        Of the online correction of the cost model; None: the policy sees the curve as it was measured.
    believed : StepCost, optional
        What the policy takes the machine's cost for; the truth if None.
    evidence : tuple of str, optional
        Those columns that the policy's view is to have; all that the trace offers if None.
    """

    policy: DepthPolicy | Callable[[ReplaySetting], DepthPolicy]
    max_depth: int
    memory_steps: float | None = None
    believed: StepCost | None = None
    evidence: tuple[str, ...] | None = field(default=None)

    def __call__(self, setting: ReplaySetting) -> Controller:
        """Build it."""
        own = self.policy
        policy = copy.deepcopy(own) if isinstance(own, DepthPolicy) else own(setting)
        evidence = setting.evidence if self.evidence is None else self.evidence
        cost = believed_cost(setting, self.believed, self.memory_steps)
        acceptance = AcceptanceModel(self.max_depth, evidence)
        return Controller(policy, acceptance, cost=cost, seed=setting.seed, clock=setting.clock)
