"""DepthPolicy, the base of every policy, and the registry that finds policies by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.step import Decision, FloatArray, IntArray, Outcome, StepTime, StepView, Tipping

ENTRY_POINT_GROUP = "adaptive_spec.policies"


class SurvivalEstimate(Protocol):
    """The chance that draft k and all before it are accepted, for each sequence of a step.

    Every array has shape (B, K), lies in (0, 1] and never rises along k.
    """

    def mean(self) -> FloatArray:
        """Posterior mean."""
        ...

    def sample(self, rng: np.random.Generator) -> FloatArray:
        """One draw from the posterior, coherent over the positions of a sequence."""
        ...

    def upper(self) -> FloatArray:
        """Optimistic estimate: the survival that could plausibly still be true."""
        ...


@dataclass(slots=True)
class Allocation:
    """What a policy chose: a depth for each sequence, and, where it knows, why it stopped there.

    Attributes
    ----------
    depth : int array, shape (B,)
        0 <= depth <= view.limit.
    draft_depth : int, optional
        The most tokens to ask of the drafter; the deepest depth if None.
    tipping : Tipping, optional
        Where it stopped buying.
    expected_tokens, expected_seconds : float
        NaN: let :meth:`DepthPolicy.decide` work them out.
    """

    depth: IntArray
    draft_depth: int | None = None
    tipping: Tipping | None = None
    expected_tokens: float = float("nan")
    expected_seconds: float = float("nan")


class DepthPolicy(ABC):
    """Chooses the depth of every sequence of a step.

    Write a policy by subclassing: store the constructor's arguments untouched under their own names
    (they are the hyper-parameters; :meth:`get_params` reads them), keep what is learned in attributes
    that end in ``_`` and are made by :meth:`reset`, and choose in :meth:`_decide`. Register the class in
    the entry-point group ``adaptive_spec.policies``; the tuning file then names it. The contract is
    scikit-learn's for parameters and river's for the public method around a private one.

    Attributes
    ----------
    explores : bool
        Whether the exploration ledger may deepen this policy's choice, and the guard and watchdog may
        overrule it. Baselines with a depth set by hand say False.
    needs_cost : bool
        Whether :meth:`_decide` reads `cost`.
    """

    explores: bool = True
    needs_cost: bool = True

    def reset(self, max_depth: int, seed: int) -> None:  # noqa: B027 - a stateless policy has nothing to reset
        """Forget everything and start anew for depths 0..`max_depth`; ValueError for parameters that can't serve it."""

    def add(self, row: int) -> None:  # noqa: B027 - most policies keep nothing of single sequences
        """A fresh sequence takes this row: whatever was kept of the one before it no longer holds."""

    def decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Decision:
        """Choose the depths of a step and record what is expected of them.

        Parameters
        ----------
        view : StepView
            What is known of the step. Its `weight` is filled in.
        acceptance : SurvivalEstimate
            What each sequence's next drafts are worth.
        cost : StepCost or None
            What the step costs; None where the deployment has no cost model.

        Returns
        -------
        Decision
            With `step` 0: the controller numbers it.
        """
        if self.needs_cost and cost is None:
            raise ValueError(f"policy {type(self).__name__} needs a cost model, and this controller has none")
        return self._decision(self._decide(view, acceptance, cost), view)

    def revise(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Decision:
        """Lower the depths of a planned step, in `view.limit`, now that its batch is known.

        The depths stand as they are unless a policy has reason to lower them (:meth:`_revise`).
        """
        return self._decision(self._revise(view, acceptance, cost), view)

    def _decision(self, choice: Allocation, view: StepView) -> Decision:
        if not isinstance(choice, Allocation):
            raise TypeError(f"{type(self).__name__}._decide returned {type(choice).__name__}, not an Allocation")
        depth = choice.depth
        draft_depth = choice.draft_depth
        if draft_depth is None:
            draft_depth = int(depth.max()) if len(depth) else 0
        return Decision(
            step=0,
            row=view.row,
            depth=depth,
            draft_depth=draft_depth,
            expected_tokens=choice.expected_tokens,
            expected_seconds=choice.expected_seconds,
            tipping=choice.tipping,
        )

    @abstractmethod
    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        """Choose; see :meth:`decide`."""

    def _revise(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        """Choose again with the planned depths as limits; must not learn anything from being asked twice."""
        return Allocation(view.limit.copy())

    def observe(self, outcome: Outcome) -> DepthPolicy:
        """Learn from what came of a step's drafts."""
        return self

    def observe_time(self, time: StepTime) -> DepthPolicy:
        """Learn from how long a step took and what it yielded."""
        return self

    def state(self) -> dict[str, object]:
        """What was learned, as plain numbers, strings, lists and arrays."""
        return {}

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned; ValueError when it doesn't fit."""
        if state:
            raise ValueError(f"{type(self).__name__} learns nothing, but the saved state has {sorted(state)}")

    def get_params(self) -> dict[str, Any]:
        """The hyper-parameters, by name."""
        return {
            name: getattr(self, name) for name in inspect.signature(type(self).__init__).parameters if name != "self"
        }

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({arguments})"


def policy_names() -> list[str]:
    """Names of every installed policy, sorted."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)})


def policy_class(name: str) -> type[DepthPolicy]:
    """Find an installed policy by its entry-point name.

    Raises
    ------
    KeyError
        If none has that name; the message lists those there are.
    TypeError
        If what the entry point names is no DepthPolicy.
    """
    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
    if not found:
        raise KeyError(f"no policy is called {name!r}; installed are {', '.join(policy_names())}")
    cls = found[0].load()
    if not (isinstance(cls, type) and issubclass(cls, DepthPolicy)):
        raise TypeError(f"entry point {found[0].value!r} of policy {name!r} is no subclass of DepthPolicy")
    return cls


def make_policy(name: str, **params: Any) -> DepthPolicy:
    """Construct an installed policy; TypeError names the parameters it knows if one is unknown."""
    cls = policy_class(name)
    known = [p for p in inspect.signature(cls.__init__).parameters if p != "self"]
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise TypeError(f"policy {name!r} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return cls(**params)
