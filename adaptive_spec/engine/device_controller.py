"""DeviceController: a controller whose depths are chosen, and whose outcomes are counted, on a device."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import torch

from adaptive_spec.controller import Controller
from adaptive_spec.cost import Profile
from adaptive_spec.engine.device_acceptance import DeviceAcceptance
from adaptive_spec.engine.device_budget import DeviceBudget
from adaptive_spec.policies.roofline_budget import RooflineBudget
from adaptive_spec.step import StepView

Place: TypeAlias = Literal["host", "device"]
WINDOW_STEPS = 4
WARM_BATCHES = (1, 3, 16)  # kernels are compiled apart for 1, for multiples of 16, and for the rest


class DeviceController(Controller):
    """A :class:`~adaptive_spec.controller.Controller` for engines that keep the host out of the way.

    Survival, allocation and the sums of acceptance are worked out on the device; the Newton step that the sums feed,
    the cost model, exploration, guard, watchdog and fallback stay on the host, and see what they always see.

    Parameters
    ----------
    plain : Controller
        Taken over with all that it holds, before its first sequence; it is used up.
    device : torch.device
    window_steps : int
        Steps between two Newton steps.

    Raises
    ------
    ValueError
        If its policy can't allocate on a device: only ``roofline-budget`` does.
    """

    def __init__(self, plain: Controller, device: torch.device, window_steps: int) -> None:
        vars(self).update(vars(plain))
        self.device = device
        self.window_steps = window_steps
        self._move(self)
        self._warm_up()

    def adopt(self, other: Controller) -> list[str]:
        """As the base's; the other one's parts are moved to the device first."""
        self._move(other)
        anew = super().adopt(other)
        self._warm_up()
        return anew

    def _move(self, controller: Controller) -> None:
        """Let a controller's policy and acceptance model work on the device."""
        controller.policy = DeviceBudget(_movable(controller), self.device)
        controller.acceptance = DeviceAcceptance(controller.acceptance, self.device, self.window_steps)

    def _warm_up(self) -> None:
        """Have the kernels compiled: a policy that compiled them in a step would be taken for a slow one."""
        acceptance = self.acceptance
        assert isinstance(acceptance, DeviceAcceptance)
        policies = [_unused_policy(acceptance.max_depth, self.device, priced) for priced in (False, True)]
        cost = Profile([1], [1.0])
        for batch in WARM_BATCHES if self.device.type == "cuda" else WARM_BATCHES[:1]:
            zeros, ones = np.zeros(batch, dtype=np.int64), np.ones(batch, dtype=np.int64)
            view = StepView(zeros, ones, ones, np.zeros((batch, len(self.evidence))))
            for policy in policies:
                policy.revise(view, acceptance.estimate(zeros, zeros), cost)
            acceptance.count(zeros, zeros, ones, ones)


def _unused_policy(max_depth: int, device: torch.device, priced: bool) -> DeviceBudget:
    """A policy that decides for no one; it allocates by a price, as the run's horizon does after its first step."""
    plain = RooflineBudget(horizon="run" if priced else "step")
    plain.reset(max_depth, 0)
    if priced:
        plain.tokens_ = plain.seconds_ = 1.0
    return DeviceBudget(plain, device)


def _movable(controller: Controller) -> RooflineBudget:
    """The controller's policy; ValueError if it can't allocate on a device."""
    policy = controller.policy
    if type(policy) is not RooflineBudget:
        raise ValueError(
            f"allocation on the device serves the policy roofline-budget; {policy!r} chooses on the host: "
            "leave allocate out, or choose roofline-budget"
        )
    return policy


def check_place(allocate: str) -> None:
    """Raise ValueError if depths can't be chosen there, whatever the policy."""
    if allocate not in get_args(Place):
        raise ValueError(f"allocate is {allocate!r}; it must be one of {', '.join(get_args(Place))}")


def place_controller(controller: Controller, allocate: str, device: torch.device) -> Controller:
    """The controller, moved to the device where `allocate` is ``device``; ``host`` leaves it as it is.

    Raises
    ------
    ValueError
        If there is no such place, or the policy can't allocate there.
    """
    check_place(allocate)
    if allocate == "host" or not controller.enabled:
        return controller
    _movable(controller)
    if controller.cost is None:  # without a drafter there is nothing to choose
        return controller
    return DeviceController(controller, device, WINDOW_STEPS)
