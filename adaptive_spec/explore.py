"""The exploration ledger: the one purse from which probes and the guard's off-steps are paid."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import SurvivalEstimate
from adaptive_spec.step import Decision, IntArray, StepView

LOOK_EVERY = 8  # steps


class Ledger:
    """Earns a share of every token, and lets exploration spend no more than it has.

    Worth is counted in tokens. What was spent never exceeds `share` of what was earned on; the purse is
    capped at what `memory_steps` steps bring, so that a quiet day doesn't pay for a wild one, but never
    below the last price that it had to refuse.

    Parameters
    ----------
    share : float
        Most of the goodput that exploration may cost, 0..1.
    floor_share : float
        What may be spent although nothing seems worth knowing, 0..`share`.
    memory_steps : int
        Steps whose earnings the purse can hold.
    """

    def __init__(self, share: float = 0.01, floor_share: float = 0.001, memory_steps: int = 2000) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"exploration share is {share}; it must lie in 0..1")
        if not 0 <= floor_share <= share:
            raise ValueError(f"exploration floor_share is {floor_share}; it must lie in 0..share ({share})")
        if memory_steps < 1:
            raise ValueError(f"exploration memory_steps is {memory_steps}; it must be 1 or more")
        self.share = share
        self.floor_share = floor_share
        self.memory_steps = memory_steps
        self.earned = 0.0
        self.spent = 0.0
        self.balance = 0.0
        self.floor_balance = 0.0
        self._refused = 0.0

    def earn(self, tokens: float) -> None:
        """Put aside the share of one step's tokens."""
        self.earned += tokens
        hold = self.memory_steps * tokens
        self.balance = min(self.balance + self.share * tokens, max(self.share * hold, self._refused))
        self.floor_balance = min(
            self.floor_balance + self.floor_share * tokens, max(self.floor_share * hold, self._refused)
        )

    def affords(self, price: float, *, floor: bool = False) -> bool:
        """Whether `price` tokens can be paid, out of the floor alone if nothing is known to be worth it."""
        purse = min(self.balance, self.floor_balance) if floor else self.balance
        if price <= purse:
            return True
        self._refused = price
        return False

    def pay(self, price: float) -> None:
        """Spend `price` tokens; a probe that cost more than was thought may leave one probe's debt behind."""
        self.spent += price
        self.balance -= price
        self.floor_balance -= min(price, self.floor_balance)

    def state(self) -> dict[str, object]:
        """What was earned and spent."""
        return {
            "earned": self.earned,
            "spent": self.spent,
            "balance": self.balance,
            "floor_balance": self.floor_balance,
        }

    def restore(self, state: dict[str, object]) -> None:
        """Take over a saved ledger."""
        self.earned = float(state["earned"])  # type: ignore[arg-type]
        self.spent = float(state["spent"])  # type: ignore[arg-type]
        self.balance = float(state["balance"])  # type: ignore[arg-type]
        self.floor_balance = float(state["floor_balance"])  # type: ignore[arg-type]


class Explorer:
    """Deepens the drafts of a few sequences where knowing their worth could change the decision.

    Who stops drafting stops learning: only under-drafting loses information, since a step of depth k shows
    every position before k too. A probe drafts a sequence to its limit. Its price is what the step is
    expected to lose by it: the goodput times its seconds, less the tokens that it is expected to bring.
    A sequence is worth a probe when its next slot would not be bought at the mean estimate but would be at
    a plausible (upper) one; where no sequence is, probes are blind and come out of the ledger's floor. Where the
    watchdog waits for a broken drafter, single drafts answer, and none is expected to be accepted.

    It looks at every eighth step only, and then probes up to a sixteenth of the batch.

    Parameters
    ----------
    ledger : Ledger
        Pays.
    rng : numpy Generator
        Chooses among equals.
    """

    def __init__(self, ledger: Ledger, rng: np.random.Generator) -> None:
        self.ledger = ledger
        self.rng = rng
        self.probes = 0
        self._step = 0

    def deepen(
        self,
        decision: Decision,
        view: StepView,
        acceptance: SurvivalEstimate,
        cost: StepCost,
        goodput: float,
        *,
        needed: bool = False,
    ) -> Decision:
        """Return `decision`, with some sequences drafted to their limits if that is affordable and worth it.

        Parameters
        ----------
        decision, view
            The step as decided.
        acceptance
            Its estimate.
        cost
            Prices the probes.
        goodput : float
            Tokens that a second is worth; NaN: not known yet, nothing is probed.
        needed : bool
            The watchdog waits for a recovery: the whole purse is open.
        """
        self._step += 1
        if self._step % LOOK_EVERY or not goodput > 0:
            return decision
        depth, limit = decision.depth, view.limit
        open_ = np.flatnonzero(depth < limit)
        if not len(open_):
            return decision
        extra = (limit - depth)[open_]
        if needed:
            extra = np.minimum(extra, 1)
        probed = depth[open_] + extra
        used = view.base_positions + int(depth.sum())
        most = max(1, view.sequences // 16)
        curve = cost.verify_range(used, most * int(extra.max()) + 1, view.total_context, view.sequences)
        deepest = max(int(probed.max()), decision.draft_depth)
        draft = cost.draft(np.arange(deepest + 1), view.sequences, view.lag)
        draft = draft - draft[decision.draft_depth]
        weight = np.ones(len(open_)) if view.weight is None else view.weight[open_]
        # What the first extra slot could plausibly bring, less its share of what the probe costs.
        slot = (np.maximum(curve[extra] - curve[0], 0.0) + np.maximum(draft[probed], 0.0)) / extra
        worth = acceptance.upper()[open_, depth[open_]] * weight - goodput * slot
        order = self.rng.permutation(len(open_))
        order = order[np.argsort(-worth[order], kind="stable")]
        useful = order if needed else order[worth[order] > 0]
        known = not len(useful)
        chosen = (useful if len(useful) else order[:1])[:most]
        mean = acceptance.mean()
        while len(chosen):
            rows = open_[chosen]
            brought = (weight[c] * mean[i, depth[i] : probed[c]].sum() for c, i in zip(chosen, rows, strict=True))
            gain = 0.0 if needed else float(sum(brought))
            deepest = max(decision.draft_depth, int(probed[chosen].max()))
            seconds = float(curve[int(extra[chosen].sum())] - curve[0] + draft[deepest])
            price = max(goodput * seconds - gain, 0.0)
            if self.ledger.affords(price, floor=known):
                self.ledger.pay(price)
                self.probes += len(chosen)
                return self._deepened(decision, rows, probed[chosen], deepest, gain, seconds)
            chosen = chosen[: len(chosen) // 2]
        return decision

    @staticmethod
    def _deepened(
        decision: Decision, rows: IntArray, probed: IntArray, draft_depth: int, gain: float, seconds: float
    ) -> Decision:
        decision.depth = decision.depth.copy()
        decision.depth[rows] = probed
        decision.draft_depth = draft_depth
        decision.explored = np.zeros(len(decision.depth), dtype=bool)
        decision.explored[rows] = True
        decision.expected_tokens += gain
        decision.expected_seconds += seconds
        return decision
