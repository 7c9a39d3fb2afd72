"""The guard: speculation never slower than off, and the watchdog over the drafter's acceptance."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.explore import Ledger
from adaptive_spec.step import IntArray, StepTime, StepView

logger = logging.getLogger(__name__)

# Slowdowns (and gains) that the sequential tests look for: a test for 1 % alone would take a hundred
# blocks to see a 30 % loss, one for 30 % alone would never see 1 %.
EFFECTS = (0.01, 0.03, 0.1, 0.3)

# A wrong switch to on is soon noticed, and costs no more than what the trials cost that would prevent it.
TRIAL_ERROR_RATE = 0.1

CONFIRMING_STEPS = 3  # off-steps in a row before speculation is switched off

NO_DEPTH = np.zeros(1, dtype=np.int64)
LOSS_KEPT = 0.997  # per step; half is left after some 230 steps


class SequentialTest:
    """A bank of one-sided CUSUM tests on a Gaussian mean, one for each size of effect (Page 1954).

    For an effect d the statistic rises by ``d (y - d/2) / s²`` with every observation y of variance s²,
    and never falls under zero. The bank fires when any statistic passes ``log(len(effects) / error_rate)``.
    """

    def __init__(self, error_rate: float, effects: tuple[float, ...] = EFFECTS) -> None:
        self.effects = np.asarray(effects)
        self.threshold = math.log(len(effects) / error_rate)
        self.statistic = np.zeros(len(effects))

    def add(self, y: float, variance: float) -> bool:
        """Take one observation in; whether the test has fired."""
        self.statistic = np.maximum(0.0, self.statistic + self.effects * (y - self.effects / 2) / variance)
        return bool(self.statistic.max() >= self.threshold)

    def reset(self) -> None:
        """Begin anew."""
        self.statistic[:] = 0.0


@dataclass(slots=True)
class Verdict:
    """What the guard wants of one step: whether the policy may speculate, and why not otherwise."""

    speculate: bool
    decided_by: str = "policy"
    reason: str = ""


class Guard:
    """Switches speculation off while it is slower than this engine at depth 0.

    The tokens of a step at depth 0 are known beforehand, so only its seconds have to be learned: they are
    the cost model's ``V(T0) + Dr(0)`` times one scale, pooled over all loads, that off-steps measure. Steps
    that speculate are compared in blocks with the off-seconds of the same tokens; each block's
    log(goodput on / goodput off) feeds a bank of CUSUM tests. While on, off-steps keep the scale fresh;
    while off, single on-steps make up trial blocks. Both are paid from the exploration ledger. What is
    known of off may be old, so before it switches off the guard measures a few off-steps in a row, which cost
    nothing if the test was right.

    Parameters
    ----------
    ledger : Ledger
        The one purse of all exploration.
    clock : callable
        Seconds; limits how often the state may change.
    margin : float
        Loss against off that is left alone, as a share.
    error_rate : float
        Chance of a false switch per run of the test.
    block_steps : int
        Speculating steps that one comparison pools; single steps are too noisy. Where they lose more than
        half, half as many do.
    max_switches_per_minute : int
        Changes of state allowed in any minute; speculation is not tried again until it could be switched
        off again too.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        margin: float = 0.01,
        error_rate: float = 0.001,
        block_steps: int = 8,
        max_switches_per_minute: int = 6,
    ) -> None:
        if not 0 < margin < 1:
            raise ValueError(f"guard margin is {margin}; it must lie between 0 and 1")
        if not 0 < error_rate < 1:
            raise ValueError(f"guard error_rate is {error_rate}; it must lie between 0 and 1")
        if block_steps < 1:
            raise ValueError(f"guard block_steps is {block_steps}; it must be 1 or more")
        if max_switches_per_minute < 2:
            raise ValueError(f"guard max_switches_per_minute is {max_switches_per_minute}; it must be 2 or more")
        self.ledger = ledger
        self.clock = clock
        self.margin = margin
        self.max_switches_per_minute = max_switches_per_minute
        self.on = True
        self.switches = 0
        self._test = SequentialTest(error_rate)
        self._trial_test = SequentialTest(TRIAL_ERROR_RATE)
        self._block = _Block(block_steps)
        self._log_scale = 0.0  # log of measured over modelled seconds of an off-step
        self._off_steps = 0
        self._variance = 0.01  # of a block's log ratio: starts at (10 %)²
        self._last_y = math.nan
        self._since_off = 0  # speculating steps since the last off-step
        self._interval = 32  # speculating steps between off-steps
        self._wait = 0  # steps until the next trial block may begin
        self._backoff = 16
        self._loss = 0.0  # tokens that a speculating step loses against off, running
        self._paid = 0.0  # for the trial under way
        self._confirming = 0  # off-steps still to come before a switch to off
        self._on_y = 0.0  # log ratio of the block that asked for it
        self._reference: tuple[StepView, float] | None = None  # its last step, and the off-seconds it was judged by
        self._slower: list[float] = []  # logs of confirming off-steps over those seconds
        self._changed: deque[float] = deque(maxlen=max_switches_per_minute)

    def verdict(self, view: StepView, cost: StepCost, goodput: float) -> Verdict:
        """Say whether this step may speculate; `goodput` (tokens per second) prices an off-step."""
        if self._confirming:
            return Verdict(False, "off-step", "the guard makes sure before it switches off")
        if self.on:
            if self._since_off >= self._interval:
                price = max(goodput * self._off_seconds(view, cost) - view.base_tokens, 0.0)
                # Half the purse stays with the probes.
                if math.isfinite(price) and 2 * price <= self.ledger.balance and self.ledger.affords(price):
                    self.ledger.pay(price)
                    self._since_off = 0
                    return Verdict(False, "off-step", "the guard measures a step without speculation")
            return Verdict(True)
        self._loss *= LOSS_KEPT  # it was measured in a world that may have changed since
        if self._wait > 0:
            self._wait -= 1
        elif self._may_change(2) and self.ledger.affords(self._loss):
            self.ledger.pay(self._loss)
            self._paid = self._loss
            return Verdict(True)
        return Verdict(False, "guard", "speculation was measured slower than off")

    def observe(self, time: StepTime, view: StepView, cost: StepCost, speculated: bool) -> None:
        """Learn from the seconds and tokens of a step; `view` is the one that it was planned from."""
        seconds = time.step_seconds
        if not (seconds > 0 and math.isfinite(seconds) and time.tokens > 0) or not view.sequences:
            return
        off = self._off_seconds(view, cost)
        if not speculated:
            ratio = math.log(seconds / off)
            if self._confirming and self._reference is not None:
                judged_by, known = self._reference
                self._confirm(ratio + math.log(self._off_seconds(judged_by, cost) / known))
            self._off_steps += 1
            # One stalled step moves the scale no further than a 25 % one would.
            self._log_scale += max(0.02, 1.0 / (1 + self._off_steps)) * min(max(ratio, -0.25), 0.25)
            return
        self._since_off += 1
        # What a prefill adds to the step is done whatever is decided, and its token comes anyway. Counted in,
        # it would make a second's loss look small beside the step's seconds.
        prefill = self._prefill_seconds(view, cost)
        off_tokens = view.base_tokens - view.sampling_prefills
        tokens = max(time.tokens - view.sampling_prefills, 0.05 * off_tokens)
        slowness = max(seconds - prefill, 0.05 * seconds) / (off - prefill)
        loss = max(slowness * off_tokens - tokens, 0.0)
        self._loss += 0.2 * (loss - self._loss)
        if not self.on:  # a trial: pay what it really cost
            self._loss = max(self._loss, loss)
            self.ledger.pay(loss - self._paid)
            self._paid = loss
        y = self._block.add(slowness, tokens / off_tokens, off - prefill)
        if y is not None:
            self._judge(y, view, off)

    def _confirm(self, slower: float) -> None:
        """Take one of the off-steps that decide whether speculation is switched off.

        `slower` is the log of how much longer it took than the block's off-seconds would have it; by that,
        speculation is better than the block said.
        """
        self._slower.append(slower)
        self._confirming -= 1
        if self._confirming:
            return
        middle = sorted(self._slower)[len(self._slower) // 2]
        self._slower = []
        if self._on_y + middle < -self.margin:
            self._switch(False, self._on_y + middle)
        else:
            self._test.reset()

    def _off_seconds(self, view: StepView, cost: StepCost) -> float:
        """Seconds of this step at depth 0: the model's, corrected by what off-steps showed."""
        verify = float(cost.verify_range(view.base_positions, 1, view.total_context, view.sequences)[0])
        draft = float(cost.draft(NO_DEPTH, view.sequences, view.lag)[0])
        return (verify + draft) * math.exp(self._log_scale)

    def _prefill_seconds(self, view: StepView, cost: StepCost) -> float:
        """Seconds that a prefill adds to this step at depth 0."""
        if not view.prefill_tokens:
            return 0.0
        decoding = view.base_positions - view.prefill_tokens
        without = float(cost.verify_range(decoding, 1, view.total_context, view.sequences)[0])
        added = float(cost.verify_range(view.base_positions, 1, view.total_context, view.sequences)[0]) - without
        return max(added, 0.0) * math.exp(self._log_scale)

    def _judge(self, y: float, view: StepView, off: float) -> None:
        """Take one block's log(goodput on / goodput off); its last step, `view`, would take `off` seconds off."""
        if math.isfinite(self._last_y):
            # Successive differences: a level far from zero is no noise. The floor below keeps a quiet
            # clock's first blocks from being taken for certainty.
            self._variance += 0.1 * (min(0.5 * (y - self._last_y) ** 2, 0.1) - self._variance)
        self._last_y = y
        variance = max(self._variance, 0.02**2)
        if self.on:
            if self._test.add(-y - self.margin, variance):
                if self._may_change(1):
                    self._confirming, self._on_y, self._reference = CONFIRMING_STEPS, y, (view, off)
                return
            # The surer the gain, the rarer the off-steps, down to a floor that sees drift.
            sure = y > 0.1 and not self._test.statistic.any()
            self._interval = min(self._interval * 2, 512) if sure else max(self._interval // 2, 32)
        elif self._trial_test.add(y, variance):
            self._switch(True, y)
        elif y <= 0:  # else promising: go on trying without a wait
            self._wait = self._backoff
            self._backoff = min(self._backoff * 2, 512)
            self._trial_test.reset()

    def _may_change(self, changes: int) -> bool:
        now = self.clock()
        recent = sum(now - at < 60.0 for at in self._changed)
        return recent + changes <= self.max_switches_per_minute

    def _switch(self, on: bool, y: float) -> None:
        if not self._may_change(1):
            return
        self.on = on
        self.switches += 1
        self._changed.append(self.clock())
        self._test.reset()
        self._trial_test.reset()
        self._last_y = math.nan
        self._backoff = 16
        self._interval = 32
        self._wait = 0 if on else self._backoff
        logger.info("guard: speculation %s; it runs at %.3f x the goodput of off", "on" if on else "off", math.exp(y))

    def state(self) -> dict[str, object]:
        """The learned scale and the state of the switch."""
        return {"on": self.on, "log_scale": self._log_scale, "off_steps": self._off_steps, "loss": self._loss}

    def restore(self, state: dict[str, object]) -> None:
        """Take over a saved guard."""
        self.on = bool(state["on"])
        self._log_scale = float(state["log_scale"])  # type: ignore[arg-type]
        self._off_steps = int(state["off_steps"])  # type: ignore[call-overload]
        self._loss = float(state["loss"])  # type: ignore[arg-type]


class _Block:
    """Pools speculating steps into one comparison with off, that one stalled step can't decide."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._slowness: list[float] = []  # seconds over the off-seconds of the same step
        self._gain: list[float] = []  # tokens over the off-tokens of the same step
        self._off: list[float] = []  # off-seconds

    def add(self, slowness: float, gain: float, off: float) -> float | None:
        """Take in a step; log(goodput on / goodput off) of the block once it is full."""
        self._slowness.append(slowness)
        self._gain.append(gain)
        self._off.append(off)
        n = len(self._off)
        if n < self.steps and (n < self.steps // 2 or self._ratio() > 0.5):
            return None
        ratio = self._ratio()
        self._slowness, self._gain, self._off = [], [], []
        return math.log(ratio)

    def _ratio(self) -> float:
        # A step over twice as slow as the median one is a stall (paging, another process), which neither
        # state is to blame for.
        most = 2.0 * sorted(self._slowness)[len(self._slowness) // 2]
        on = sum(min(slow, most) * off for slow, off in zip(self._slowness, self._off, strict=True))
        return sum(gain * off for gain, off in zip(self._gain, self._off, strict=True)) / on


class Watchdog:
    """Notices when the population's acceptance collapses: a broken drafter, a model swap.

    A CUSUM test on first drafts, of "a quarter of the usual rate" against "none to speak of"; drafts of one
    step are correlated and weigh ``n / (1 + (n - 1) correlation)``. Tripped, it asks for depth 0 and lets
    the ledger's probes look for the recovery with the same test turned round.

    Parameters
    ----------
    threshold : float
        Log-likelihood ratio at which it trips, and recovers.
    correlation : float
        Correlation of the drafts of one step.
    memory_drafts : int
        First drafts over which the usual rate is averaged.
    """

    def __init__(self, threshold: float = 6.0, correlation: float = 0.05, memory_drafts: int = 5000) -> None:
        if not threshold > 0:
            raise ValueError(f"watchdog threshold is {threshold}; it must be over 0")
        if not 0 <= correlation <= 1:
            raise ValueError(f"watchdog correlation is {correlation}; it must lie in 0..1")
        if memory_drafts < 1:
            raise ValueError(f"watchdog memory_drafts is {memory_drafts}; it must be 1 or more")
        self.threshold = threshold
        self.correlation = correlation
        self.memory_drafts = memory_drafts
        self.tripped = False
        self.trips = 0
        self.usual = 0.5
        self._drafts = 0.0
        self._statistic = 0.0

    def observe(self, verified: IntArray, accepted: IntArray) -> bool:
        """Take in one step's outcome; whether the state changed."""
        n = int(np.count_nonzero(verified))
        if not n:
            return False
        successes = int(np.count_nonzero(accepted))
        weight = 1.0 / (1.0 + (n - 1) * self.correlation)
        low, high = 0.01, max(0.25 * self.usual, 0.04)
        failure, success = math.log((1 - low) / (1 - high)), math.log(low / high)
        evidence = weight * (successes * success + (n - successes) * failure)
        if self.tripped:
            self._statistic = max(0.0, self._statistic - evidence)
        else:
            self._statistic = max(0.0, self._statistic + evidence)
            self._drafts = min(self._drafts + weight * n, self.memory_drafts)
            self.usual += (successes / n - self.usual) * weight * n / (self._drafts + 20)
        if self._statistic < self.threshold:
            return False
        self.tripped = not self.tripped
        self._statistic = 0.0
        if self.tripped:
            self.trips += 1
            logger.warning(
                "watchdog: drafts are hardly accepted any more (usually %.0f %%); depth 0 until probes recover",
                100 * self.usual,
            )
        else:
            logger.warning("watchdog: drafts are accepted again; speculation goes on")
        return True

    def state(self) -> dict[str, object]:
        """The usual rate, and whether it is tripped."""
        return {"tripped": self.tripped, "usual": self.usual, "drafts": self._drafts}

    def restore(self, state: dict[str, object]) -> None:
        """Take over a saved watchdog."""
        self.tripped = bool(state["tripped"])
        self.usual = float(state["usual"])  # type: ignore[arg-type]
        self._drafts = float(state["drafts"])  # type: ignore[arg-type]
