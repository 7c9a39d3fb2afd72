"""AcceptanceBandit: learns by trial what a draft slot should cost, without any model of the machine."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policies.position_limit import PositionLimit
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import LITTLE_PREFILL, Decision, FloatArray, StepTime, StepView

CHEAPEST, DEAREST = 0.03, 0.95  # prices, in tokens a slot
KNOTS = 11  # batch sizes 1, 2, 4, ..., 1024
LEVEL_MEAN, LEVEL_SD = -4.0, 3.0  # log seconds of a step: any machine's
LEVEL_STEP_SD = 0.5  # by which batch sizes differ in it
ELASTICITY_AT_ONE, ELASTICITY_PER_KNOT = 0.1, 0.06  # a fuller machine has less arithmetic to give away
ELASTICITY_SD, LOCAL_SD = 0.2, 0.3  # of the whole curve's, and by how much each piece of it differs
PIECES = np.log([1.0, 1.2, 1.5, 1.85, 2.3, 3.0, 4.0, 5.5, 9.0])  # ends of the curve's pieces, in log growth
SHAPE_SD = 0.04  # of what an arm's log seconds owe to anything but positions: the draft's depth
ARM_REACH, KNOT_REACH = 0.5, 1.5  # arms and knots over which these are alike
NOISE_SD = 0.04  # of a block's mean log seconds, before any was seen
NOISE_BLOCKS, NOISE_MEMORY = 10.0, 60.0  # that this guess counts for at first; that any count for later
OUTLIER = 3.0  # deviations to which a surprise is clipped
TRUST_TOKENS = 2000.0  # realised tokens at which an arm's record weighs as much as the estimate's word
RECORD_KEPT = 0.995  # of the record, per block
IN_FLIGHT = 64  # steps remembered while their time is awaited
BOLDNESS = 0.5  # by which a draw's deviation is shortened
CALM_BLOCKS = 8  # after a trial that still play what is believed best
GIVEN_UP_AT = 0.05  # log goodput that a block may lie below what is to be had, and 1.5 deviations of noise more


@dataclass(slots=True)
class _Block:
    """A few steps at one arm, and what came of those that were timed."""

    arm: int
    knot: float  # log2 of the batch size
    to_be_had: float  # log goodput that some arm most likely has at least
    trial: bool = False
    planned: int = 0
    timed: int = 0
    expected: float = 0.0  # tokens
    tokens: float = 0.0
    log_seconds: float = 0.0
    log_growth: float = 0.0  # positions over those at depth 0
    log_expected: float = 0.0  # tokens
    given_up: bool = False


@dataclass(slots=True)
class _Awaited:
    """A decision whose time is awaited; the controller numbers the decision after it was made."""

    decision: Decision
    block: _Block
    expected: float
    prefill_tokens: int


class AcceptanceBandit(DepthPolicy):
    """Tries prices for a draft slot, measures the goodput that each brings, and settles on the best.

    An arm is a price, in tokens a slot. A sequence drafts on as long as the chance that the next draft
    survives, times its weight, is at least the price: at 0.05 nearly everything is drafted, at 0.6 only
    what will probably be accepted, and the last arm ("off") nothing. One price for all sequences is what
    an optimal split has anyway (see `allocate`), so all that is left to learn of a machine is its price.
    It depends on how full the machine is, and so it is learned by batch size.

    An arm is played for a block of steps, since a single step says too little; only a block that falls clearly
    short of what is to be had is given up at once. The reward is the block's goodput, tokens over measured
    seconds, with two changes that make it less noisy. The tokens are those that were *expected* of the drafts,
    times the arm's long-run ratio of realised to expected ones: luck in a few steps is no merit of the arm,
    being misled about acceptance is. And expected tokens and positions of *every* arm are known before one is
    chosen, so only the seconds are left to learn.

    What is believed of the log seconds of arm a at batch size b is Gaussian::

        level[b] + curve[b](positions / positions at depth 0) + shape[b, a]

    The curve is made of straight pieces on log paper, whose slopes are nearly free of each other: real
    machines have stairs and cliffs, and one of them says little about the rest. The shape is small, and
    learns what an arm's depths cost the drafter. Neighbouring batch sizes are believed to be alike, so one
    that was never seen begins with what its neighbours taught; between powers of two it interpolates. To
    choose, one draw from this belief is taken for granted (Thompson sampling, its deviation halved: the whole
    of it tries more than it learns): arms that may be best are tried, others soon are not. Where the guard has
    switched speculation off and tries it again, and for some blocks after that, the arm is played that is believed
    best of those that draft: nothing is drawn. Old blocks fade. A surprise is clipped, so that one stalled step ruins
    no arm. Since a leap may end below a cliff, a step gets at most 1.5 times the positions of any step that went well;
    and since a price buys now more, now less, and straight pieces don't know where the edge is, for some time fewer
    than those that fell (:class:`PositionLimit`).

    The survival that the price is held against is the mean. A draw from its posterior would draft what is
    uncertain now and then, but the controller's ledger pays for that already, and cheap arms do it besides:
    drawing it too cost 1 to 3 % on replayed traffic. Steps that carry more of a prefill than a tenth of a position
    for each sequence, or that were overruled, are played but not learned from: their seconds say little about the
    price of a slot. Two steps may be in flight.

    A price says what a position is worth and nothing of how deep to draft: where the drafter is so slow that
    a draft more for anyone costs the whole batch dearly, a fixed depth can beat every price, and
    `roofline-budget`, which knows the draft's cost, both.

    Source: Thompson (1933); linear contextual bandits (Agrawal and Goyal, "Thompson Sampling for Contextual
    Bandits with Linear Payoffs", 2013); time-varying Gaussian-process bandits (Bogunovic et al., 2016).
    BanditSpec (2025) chooses among drafters and depths for a whole batch; here the arms are prices.

    Parameters
    ----------
    prices : int
        Prices tried, on a logarithmic grid from 0.03 to 0.95 tokens a slot; "off" comes on top.
    block : int
        Steps at one arm.
    discount : float
        What a block still counts for after the next one, in (0, 1]: 0.99 looks back over some 100 blocks.
    """

    needs_cost = False

    def __init__(self, prices: int = 9, block: int = 4, discount: float = 0.99) -> None:
        self.prices = prices
        self.block = block
        self.discount = discount

    def reset(self, max_depth: int, seed: int) -> None:
        """Forget everything; ValueError for parameters out of their range."""
        if self.prices < 2:
            raise ValueError(f"prices is {self.prices}; there must be 2 or more to choose from")
        if self.block < 1:
            raise ValueError(f"block is {self.block}; it must be 1 step or more")
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount is {self.discount}; it must be over 0 and at most 1")
        self.rng_ = np.random.default_rng(seed)
        self.prices_ = np.append(np.geomspace(CHEAPEST, DEAREST, self.prices), np.inf)
        self._believe()
        self.noise_ = NOISE_SD**2  # variance of a block's mean log seconds
        self.blocks_ = np.zeros((KNOTS, len(self.prices_)), dtype=np.int64)
        self.realised_ = np.zeros(len(self.prices_))  # tokens, fading
        self.expected_ = np.zeros(len(self.prices_))
        self.limit_ = PositionLimit()
        self.ranking_: dict[int, tuple[FloatArray, FloatArray]] = {}  # by knot: log goodput and deviation
        self._block: _Block | None = None  # being played
        self._timing: _Block | None = None  # being timed
        self._played: tuple[_Block, float, int] | None = None
        self._awaited: deque[_Awaited] = deque(maxlen=IN_FLIGHT)
        self._calm = 0  # blocks that are still to be chosen without a draw

    def _believe(self) -> None:
        """Set up the belief: for each knot the arms' shapes, the level, the elasticity."""
        arms, knots, pieces = len(self.prices_), np.arange(KNOTS), len(PIECES) - 1
        self._width = width = arms + 1 + pieces
        drifting, level = np.zeros((width, width)), np.zeros((width, width))
        drifting[:arms, :arms] = SHAPE_SD**2 * _alike(np.arange(arms), ARM_REACH)
        drifting[arms + 1 :, arms + 1 :] = ELASTICITY_SD**2 + LOCAL_SD**2 * np.eye(pieces)
        level[arms, arms] = 1.0
        spread = np.kron(_alike(knots, KNOT_REACH), drifting)
        levels = LEVEL_SD**2 * np.ones((KNOTS, KNOTS)) + LEVEL_STEP_SD**2 * np.eye(KNOTS)
        self.covariance_ = spread + np.kron(levels, level)
        prior = np.zeros((KNOTS, width))
        prior[:, arms] = LEVEL_MEAN
        prior[:, arms + 1 :] = (ELASTICITY_AT_ONE + ELASTICITY_PER_KNOT * knots)[:, None]
        self._prior = prior.ravel()
        self.mean_ = self._prior.copy()
        # With every block, all but the levels goes a little way back to the prior.
        keep = np.full((KNOTS, width), math.sqrt(self.discount))
        keep[:, arms] = 1.0
        self._keep = keep.ravel()
        self._keep_both = np.outer(self._keep, self._keep)
        self._refresh = (1.0 - self.discount) * spread

    # Playing

    def decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Decision:
        """Choose, and remember the decision until its time is known; see :meth:`DepthPolicy.decide`."""
        decision = super().decide(view, acceptance, cost)
        if self._played is not None:
            self._awaited.append(_Awaited(decision, *self._played))
        return decision

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        self._played = None
        sequences, weight = view.sequences, view.weight
        if weight is None:
            weight = np.ones(sequences)
        mean = acceptance.mean().T * weight  # [K, B]
        position = np.arange(len(mean))[:, None]
        offered = position < view.limit
        knot = min(math.log2(max(sequences, 1)), KNOTS - 1.0)
        budget = self.limit_.drafts(sequences, view.prefill_tokens)
        block = self._block
        over = block is None or block.given_up or block.planned >= self.block or abs(knot - block.knot) > 0.5
        if block is None or over or view.trial > block.trial:
            if view.trial and self._timing is not None:  # no more steps of it are under way
                self._learn(self._timing)
                self._timing = None
            self._calm = CALM_BLOCKS if view.trial else max(self._calm - 1, 0)
            arm, to_be_had = self._choose(knot, mean[offered], budget, sequences, float(weight.sum()), view.trial)
            block = self._block = _Block(arm, knot, to_be_had, view.trial)

        bought = (mean >= self.prices_[block.arm]) & offered
        depth = bought.sum(axis=0)
        if int(depth.sum()) > budget:
            best = np.argsort(-np.where(bought, mean, 0.0), axis=None, kind="stable")[:budget]
            depth = np.bincount(best % sequences, minlength=sequences)
        expected = view.base_tokens + float(mean[position < depth].sum())
        if sequences and view.prefill_tokens <= LITTLE_PREFILL * sequences:
            block.planned += 1
            self._played = (block, expected, view.prefill_tokens)
        return Allocation(depth, expected_tokens=expected)

    def _choose(
        self, knot: float, offered: FloatArray, budget: int, sequences: int, base_tokens: float, trial: bool
    ) -> tuple[int, float]:
        """Draw what may be true of every arm's goodput; return the best of the draw, and what is to be had."""
        arms = len(self.prices_)
        rising = np.sort(offered)
        brought = np.concatenate(([0.0], rising[::-1].cumsum()))
        slots = np.minimum(len(rising) - np.searchsorted(rising, self.prices_), budget)
        ratio = (self.realised_ + TRUST_TOKENS) / (self.expected_ + TRUST_TOKENS)
        tokens = np.log((base_tokens + brought[slots]) * ratio)
        growth = np.log1p(slots / max(sequences, 1))
        parts = self._parts(knot)
        index = np.concatenate([np.arange(start, start + self._width) for start, _ in parts])
        seen = np.zeros((arms, len(index)))  # what each arm's log seconds are made of
        for number, (_, share) in enumerate(parts):
            start = number * self._width
            seen[np.arange(arms), start + np.arange(arms)] = share
            seen[:, start + arms] = share
            seen[:, start + arms + 1 : start + self._width] = share * _through(growth)
        goodput = tokens - seen @ self.mean_[index]
        # Only of these knots: products of the whole state would wake numpy's threads, which then spin for a
        # while on the cores that the engine's pass needs.
        covariance = seen @ self.covariance_[np.ix_(index, index)] @ seen.T
        # The arms' common level decides nothing; without it the factor is well conditioned.
        centre = np.eye(arms) - 1.0 / arms
        values, vectors = np.linalg.eigh(centre @ covariance @ centre)
        spread = vectors * np.sqrt(np.maximum(values, 0.0))
        deviation = np.sqrt((spread**2).sum(axis=1))
        self.ranking_[round(knot)] = (goodput, deviation)
        # The level counts for no arm against another, but for whether a measured one falls short.
        known = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
        if self._calm:
            # Off is what a trial is held against: it would show nothing.
            tried = np.where(slots > 0, goodput, -np.inf) if trial and slots.any() else goodput
            arm = int(tried.argmax())
        else:
            arm = int((goodput + BOLDNESS * (spread @ self.rng_.standard_normal(arms))).argmax())
        return arm, float((goodput - known).max())

    def _parts(self, knot: float) -> list[tuple[int, float]]:
        """Where the state of the knots around this one begins, and their shares in it."""
        low = int(knot)
        share = knot - low
        return [(low * self._width, 1.0 - share)] + ([((low + 1) * self._width, share)] if share else [])

    # Learning

    def observe_time(self, time: StepTime) -> AcceptanceBandit:
        """Add a step's seconds to its block, and learn from the block when it is complete."""
        found = next((step for step in self._awaited if step.decision.step == time.step), None)
        if found is None:
            return self
        self._awaited.remove(found)
        decision, block = found.decision, found.block
        sequences = len(decision.depth)
        most = sequences + int(decision.depth.sum()) + found.prefill_tokens
        as_planned = time.sequences == sequences and time.positions <= most
        if decision.decided_by != "policy" or not as_planned or not time.step_seconds > 0 or block.given_up:
            return self
        if self._timing is not None and self._timing is not block:
            self._learn(self._timing)  # the rest of it got no time
        self._timing = block
        block.timed += 1
        block.expected += found.expected
        block.tokens += time.tokens if time.tokens > 0 else found.expected
        block.log_seconds += math.log(time.step_seconds)
        block.log_growth += math.log(time.positions / sequences)
        block.log_expected += math.log(found.expected)
        if block.timed == self.block or self._falls_short(block):
            self._learn(block)
            self._timing = None
        self.limit_.observe(time.positions, time.step_seconds, paid=not block.given_up)
        return self

    def _falls_short(self, block: _Block) -> bool:
        """Whether a block is worse than what is to be had by more than noise: then it is not played to its end."""
        arm = block.arm
        ratio = (self.realised_[arm] + TRUST_TOKENS) / (self.expected_[arm] + TRUST_TOKENS)
        reached = (block.log_expected - block.log_seconds) / block.timed + math.log(ratio)
        noise = math.sqrt(self.noise_ * self.block / block.timed)
        block.given_up = reached < block.to_be_had - GIVEN_UP_AT - 1.5 * noise
        return block.given_up

    def _learn(self, block: _Block) -> None:
        """One step of a Kalman filter on the block's mean log seconds."""
        arm, arms = block.arm, len(self.prices_)
        self.limit_.age()
        self.realised_ *= RECORD_KEPT
        self.expected_ *= RECORD_KEPT
        self.realised_[arm] += block.tokens
        self.expected_[arm] += block.expected
        self.blocks_[round(block.knot), arm] += 1
        self.covariance_ *= self._keep_both
        self.covariance_ += self._refresh
        self.mean_ = self._prior + self._keep * (self.mean_ - self._prior)

        growth = _through(np.array(block.log_growth / block.timed))
        index: list[int] = []
        parts: list[FloatArray] = []
        for start, share in self._parts(block.knot):
            index += [start + arm, *range(start + arms, start + self._width)]
            parts.append(share * np.concatenate(([1.0, 1.0], growth)))
        seen = np.concatenate(parts)
        with_all = seen @ self.covariance_[index]  # covariance of the observation with the state
        known = float(with_all[index] @ seen)
        noise = self.noise_ * self.block / block.timed
        surprise = block.log_seconds / block.timed - float(self.mean_[index] @ seen)
        bound = OUTLIER * math.sqrt(known + noise)
        surprise = min(max(surprise, -bound), bound)
        if known < 10 * noise:  # else it tells of the machine, not of the noise
            excess = (surprise**2 - known) * block.timed / self.block
            weight = 1.0 / min(NOISE_BLOCKS + float(self.blocks_.sum()), NOISE_MEMORY)
            self.noise_ += weight * (max(excess, 0.01 * self.noise_) - self.noise_)
        self.mean_ += with_all * (surprise / (known + noise))
        self.covariance_ -= np.outer(with_all, with_all / (known + noise))

    def state(self) -> dict[str, object]:
        """The belief, the noise and the arms' records."""
        learned = {name: getattr(self, name) for name in (*_LEARNED_ARRAYS, "noise_")}
        return {**learned, "largest_": self.limit_.largest}

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned; ValueError when it was learned with other prices."""
        arrays = {}
        for name in _LEARNED_ARRAYS:
            own, saved = getattr(self, name), np.asarray(state.get(name))
            if saved.shape != own.shape:
                raise ValueError(
                    f"saved {name} has shape {saved.shape}, not {own.shape}: it was learned with other prices"
                )
            arrays[name] = saved.astype(own.dtype)
        noise, largest = state.get("noise_"), state.get("largest_")
        if not isinstance(noise, (int, float)) or not isinstance(largest, (int, np.integer)):
            raise ValueError(f"saved noise_ and largest_ must be numbers, not {noise!r} and {largest!r}")
        for name, array in arrays.items():
            setattr(self, name, array)
        self.noise_, self.limit_.largest = float(noise), int(largest)

    def __repr__(self) -> str:
        text = super().__repr__()
        if not getattr(self, "ranking_", None):
            return text
        lines = [text, f"{'batch':>6} {'price':>6} {'tokens/s':>9} {'sd':>6} {'blocks':>7}"]
        for knot, (goodput, deviation) in sorted(self.ranking_.items()):
            for arm in np.argsort(-goodput, kind="stable"):
                price = f"{self.prices_[arm]:.2f}" if arm < self.prices else "off"
                lines.append(
                    f"{2**knot:>6} {price:>6} {math.exp(goodput[arm]):>9,.1f} {deviation[arm]:>6.1%} "
                    f"{self.blocks_[knot, arm]:>7}"
                )
        return "\n".join(lines)


_LEARNED_ARRAYS = ("mean_", "covariance_", "realised_", "expected_", "blocks_")


def _alike(place: np.ndarray, reach: float) -> FloatArray:
    """Correlations that fall off with distance, as a bell."""
    return np.asarray(np.exp(-0.5 * ((place[:, None] - place) / reach) ** 2))


def _through(growth: FloatArray) -> FloatArray:
    """How far a log growth reaches into each piece of the curve, [..., pieces]; the last goes on for ever."""
    ends = np.append(PIECES[1:-1], np.inf)
    return np.clip(growth[..., None], PIECES[:-1], ends) - PIECES[:-1]
