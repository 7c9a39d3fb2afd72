"""UCBSpec and EXP3Spec: BanditSpec's two bandits over speculation lengths."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.awaited import Awaited
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import LITTLE_PREFILL, Decision, FloatArray, Outcome, StepTime, StepView

Reward = Literal["throughput", "length"]


class BanditSpec(DepthPolicy):
    """Plays one speculation length for the whole batch each step, and learns which is the best.

    The paper's algorithms are for arms of any kind (drafters, trees, lengths) and a reward Y in [1, L + 1],
    the tokens of a step. Among lengths the longest always has the largest Y, so where its arms are lengths
    (section 6.2) the reward is the throughput, tokens per second; how that enters formulas made for
    [1, L + 1] it doesn't say. Here Y is the throughput relative to the mean throughput of length 0, which
    is 1 for length 0 and at most L + 1. With `reward` ``length`` the algorithms are the paper's to the letter.

    A batch's Y is the mean over its sequences. There is one bandit, which never starts anew: the paper
    restarts it with every text or batch of texts, a server's batch has no end. It knows nothing of the
    batch size. Steps that carry prefills, which the paper's batches have not, are played but not learned from, unless
    they carry at most 0.1 prompt positions for each decoding sequence, the threshold of ``acceptance-bandit``: where
    prompts are computed elsewhere every new request leaves one, and a large batch would hardly ever learn.

    Source: Hou et al., "BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms" (ICML 2025, arXiv
    2505.15141v2), Algorithms 3, 4, 5 and section 6.2; repository sail-sg/BanditSpec. The repository's
    ``ucb_length_spec_generate`` differs from the paper: lengths 1 to 4, without 0, and a bonus that is the same for
    all arms. The paper stands here. EXP3Spec over lengths is not in the paper's experiments.

    Parameters
    ----------
    lengths : sequence of int, optional
        The arms; 0 to K if None, as in section 6.2. The throughput needs length 0 among them.
    reward : {"throughput", "length"}
        See above.
    """

    explores = False
    needs_cost = False

    def __init__(self, lengths: Sequence[int] | None = None, reward: Reward = "throughput") -> None:
        self.lengths = lengths
        self.reward = reward

    def reset(self, max_depth: int, seed: int) -> None:
        """Forget everything; ValueError for lengths outside 0..K, fewer than two, or an unknown reward."""
        lengths = list(range(max_depth + 1)) if self.lengths is None else sorted(set(self.lengths))
        if len(lengths) < 2 or lengths[0] < 0 or lengths[-1] > max_depth:
            raise ValueError(f"lengths are {lengths}; give two or more, each in 0..{max_depth}")
        if self.reward not in get_args(Reward):
            raise ValueError(f"reward is {self.reward!r}; there are {' and '.join(map(repr, get_args(Reward)))}")
        if self.reward == "throughput" and lengths[0] != 0:
            raise ValueError(f"lengths are {lengths}; the throughput is relative to length 0, which must be among them")
        self.lengths_ = lengths
        self.longest_ = lengths[-1]  # L
        self.rng_ = np.random.default_rng(seed)
        self.plays_ = np.zeros(len(lengths))
        self.total_ = np.zeros(len(lengths))  # of tokens a second, or of tokens a sequence
        self.rounds_ = 0  # learned from
        self._started = 0
        self._awaited: Awaited[tuple[int, float, bool]] = Awaited()
        self._playing = (0, 1.0, False)

    def decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Decision:
        """Choose, and remember the arm until its reward is known."""
        decision = super().decide(view, acceptance, cost)
        self._awaited.keep(decision, self._playing)
        return decision

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        self._started += 1
        arm, chance = self._choose()
        self._playing = (arm, chance, view.prefill_tokens <= LITTLE_PREFILL * view.sequences)
        return Allocation(np.minimum(view.limit, self.lengths_[arm]))

    def observe(self, outcome: Outcome) -> BanditSpec:
        """Learn from the tokens of a step, where they are the reward."""
        if self.reward == "length" and len(outcome.accepted):
            self._reward(outcome.step, float(outcome.accepted.mean()) + 1.0)
        return self

    def observe_time(self, time: StepTime) -> BanditSpec:
        """Learn from the tokens per second of a step, where they are the reward."""
        if self.reward == "throughput" and time.tokens > 0 and time.step_seconds > 0:
            self._reward(time.step, time.tokens / time.step_seconds)
        return self

    def _reward(self, step: int, value: float) -> None:
        found = self._awaited.take(step)
        if found is None:
            return
        decision, (arm, chance, learn) = found
        if learn and decision.decided_by == "policy":
            self.plays_[arm] += 1
            self.total_[arm] += value
            self.rounds_ += 1
            self._learn(arm, chance, value / self._unit())

    def _unit(self) -> float:
        """What a reward of 1 is: a token, or the mean throughput of length 0, of everything before it was played."""
        if self.reward == "length":
            return 1.0
        if self.plays_[0]:
            return float(self.total_[0] / self.plays_[0])
        return float(self.total_.sum() / self.plays_.sum())

    @abstractmethod
    def _choose(self) -> tuple[int, float]:
        """The next arm, and the chance that it had."""

    @abstractmethod
    def _learn(self, arm: int, chance: float, reward: float) -> None:
        """Take in the reward Y of a play."""


class UCBSpec(BanditSpec):
    """Plays the length with the largest upper confidence bound (Algorithm 4); see :class:`BanditSpec`.

    Each length once, then the largest mean + (L / 2) sqrt((1 + n) / n^2 (1 + 2 log(A t^2 sqrt(1 + n) / delta)))
    with n plays of the length, t of all, A lengths.

    Parameters
    ----------
    lengths, reward
        See :class:`BanditSpec`.
    delta : float
        The confidence parameter; 1/2 is what the paper's theorem takes.
    """

    def __init__(self, lengths: Sequence[int] | None = None, reward: Reward = "throughput", delta: float = 0.5) -> None:
        super().__init__(lengths, reward)
        self.delta = delta

    def reset(self, max_depth: int, seed: int) -> None:
        """As :meth:`BanditSpec.reset`; ValueError for a delta outside (0, 1)."""
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta is {self.delta}; it must lie between 0 and 1")
        super().reset(max_depth, seed)

    def bounds(self) -> FloatArray:
        """Upper confidence bound of each length; infinite for one that was never played."""
        n = np.maximum(self.plays_, 1.0)
        mean = self.total_ / n / (self._unit() if self.rounds_ else 1.0)
        log = np.log(len(n) * max(self.rounds_, 1) ** 2 * np.sqrt(1.0 + n) / self.delta)
        radius = self.longest_ / 2.0 * np.sqrt((1.0 + n) / n**2 * (1.0 + 2.0 * log))
        return np.where(self.plays_ > 0, mean + radius, np.inf)

    def _choose(self) -> tuple[int, float]:
        if self._started <= len(self.lengths_):
            return self._started - 1, 1.0
        return int(self.bounds().argmax()), 1.0

    def _learn(self, arm: int, chance: float, reward: float) -> None:
        """The plays and totals say it all."""


class EXP3Spec(BanditSpec):
    """Draws the length by exponential weights of its estimated loss (Algorithm 5); see :class:`BanditSpec`.

    A play with chance p loses (L + 1 - Y) / (L p); the weights are exp(-eta_t * sum of losses) with
    eta_t = sqrt(log A / (t A)) for A lengths, t being the round to come.
    """

    def reset(self, max_depth: int, seed: int) -> None:
        """See :meth:`BanditSpec.reset`."""
        super().reset(max_depth, seed)
        self.losses_ = np.zeros(len(self.lengths_))

    def chances(self) -> FloatArray:
        """The chance of each length in the next round."""
        arms = len(self.lengths_)
        rate = np.sqrt(np.log(arms) / ((self.rounds_ + 1) * arms))
        weight = np.exp(-rate * (self.losses_ - self.losses_.min()))
        return np.asarray(weight / weight.sum())

    def _choose(self) -> tuple[int, float]:
        chances = self.chances()
        arm = int(self.rng_.choice(len(chances), p=chances))
        return arm, float(chances[arm])

    def _learn(self, arm: int, chance: float, reward: float) -> None:
        # A throughput may leave [1, L + 1] by noise, and fall below 1 where a length is slower than none.
        best = self.longest_ + 1.0
        self.losses_[arm] += (best - min(max(reward, 0.0), best)) / (self.longest_ * chance)
