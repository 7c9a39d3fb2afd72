"""DeviceBudget: the roofline-budget policy, its allocation made on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaptive_spec.allocate import allocate
from adaptive_spec.engine.device_survival import DeviceSurvival
from adaptive_spec.engine.staging import Staging
from adaptive_spec.kernels import backend, ops
from adaptive_spec.policies.roofline_budget import RooflineBudget
from adaptive_spec.policy import Allocation, SurvivalEstimate
from adaptive_spec.step import DeferredTipping, FloatArray, IntArray, Tipping


class DeviceBudget(RooflineBudget):
    """:class:`~adaptive_spec.policies.roofline_budget.RooflineBudget` by :func:`adaptive_spec.kernels.ops.allocate`.

    The host hands over prices and limits, and reads depths and survival back in one copy: drafters on the host, and
    the shape of the pass, need them.

    Parameters
    ----------
    plain : RooflineBudget
        Its settings are taken over, and its running goodput; it is used up.
    device : torch.device
    """

    def __init__(self, plain: RooflineBudget, device: torch.device) -> None:
        if plain.depth_levels is not None or plain.uniform:
            raise ValueError(
                "allocation on the device knows no depth_levels and no uniform depths; leave them out of the policy, "
                "or allocate on the host"
            )
        vars(self).update(vars(plain))
        self.device = device
        self._staging = Staging(device)

    def get_params(self) -> dict[str, Any]:
        """Those of the policy that it stands for."""
        return {name: getattr(self, name) for name in ("horizon", "objective", "depth_levels", "uniform")}

    def _split(
        self,
        acceptance: SurvivalEstimate,
        weight: FloatArray,
        limit: IntArray,
        base_tokens: float,
        verify_seconds: FloatArray,
        draft_seconds: FloatArray,
    ) -> Allocation:
        assert isinstance(acceptance, DeviceSurvival)
        survival, price = acceptance.tensor, self._price()
        sequences, depths = survival.shape
        # The device looks at limits itself; prices beyond the slots on offer are never asked for.
        prices = np.full(sequences * depths + 1, verify_seconds[-1], dtype=np.float32)
        prices[: len(verify_seconds)] = verify_seconds
        floats = (weight.astype(np.float32), prices, draft_seconds.astype(np.float32))
        limits, *words = self._staging.put(
            np.minimum(limit, depths).astype(np.int32), *(values.view(np.int32) for values in floats)
        )
        weights, verify, draft = (word.view(torch.float32) for word in words)
        with backend.trusted():
            chosen = ops.allocate(survival, weights, limits, base_tokens, verify, draft, price=price)
        # Depths are small: float32 holds them as they are.
        read = torch.cat((chosen.draft_depth.float(), chosen.depth.float(), survival.flatten())).cpu().numpy()
        draft_depth, depth = int(read[0]), read[1 : sequences + 1].astype(np.int64)
        acceptance.hand_over(read[sequences + 1 :].reshape(sequences, depths))
        mean = acceptance.mean()

        def tipping() -> Tipping:
            exact = allocate(mean, weight, limit, base_tokens, verify_seconds, draft_seconds, price=price).tipping
            assert exact is not None
            return exact

        return Allocation(
            depth=depth,
            draft_depth=draft_depth,
            tipping=DeferredTipping(tipping),
            expected_tokens=base_tokens + float(weight @ (mean * (np.arange(depths) < depth[:, None])).sum(axis=1)),
            expected_seconds=float(verify_seconds[int(depth.sum())]) + float(draft_seconds[draft_depth]),
        )
