"""The guard: speculation never slower than off, and the watchdog over the drafter's acceptance."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adaptive_spec import loops
from adaptive_spec.cost.base import StepCost
from adaptive_spec.explore import Ledger
from adaptive_spec.off_block import OffBlock
from adaptive_spec.off_seconds import OffSeconds
from adaptive_spec.step import IntArray, StepTime, StepView

logger = logging.getLogger(__name__)

# Slowdowns (and gains) that the sequential tests look for, in logs: a test for 1 % alone would take a hundred
# blocks to see a 30 % loss, one for 30 % alone would never see 1 %.
EFFECTS = (0.01, 0.03, 0.1, 0.3, 1.0)

# A wrong switch to on is soon noticed, and costs no more than what the trials cost that would prevent it.
TRIAL_ERROR_RATE = 0.1

CONFIRMING_STEPS = 3  # off-steps in a row before speculation is switched off
SOON = 8  # speculating steps to an off-step at a load without one, or after one that surprised

# Steps without speculation that may be lost: by a block before it ends early, while on, in one step of it, in a trial;
# and by a course of blocks, the fewer sequences the more, since luck weighs more.
LOSS_ALLOWED = 4.0
STEP_LOSS_ALLOWED = 6.0
TRIAL_LOSS_ALLOWED = 1.0
COURSE_LOSS_ALLOWED, COURSE_SEQUENCES = 11.0, 8
COURSE_KEPT = 0.995  # of it, per step without speculation
IN_FLIGHT = 8  # trials whose time is awaited
MOST_PREFILL = 0.95  # of a step's seconds, that are taken for its prefill's
FIRST_BLOCK = 3  # steps, after which what is believed of off is measured

FIRST_WAIT = 32  # steps from switching off to the first trial
NOISE_FLOOR = 0.02**2  # variance of a block's log ratio that is always reckoned with
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
    """What the guard wants of one step: whether the policy may speculate, if only on trial, and why not otherwise."""

    speculate: bool
    trial: bool = False
    decided_by: str = "policy"
    reason: str = ""


def _off(decided_by: str, reason: str) -> Verdict:
    return Verdict(speculate=False, decided_by=decided_by, reason=reason)


class Guard:
    """Switches speculation off while it is slower than this engine at depth 0.

    The tokens of a step at depth 0 are known beforehand, so only its seconds have to be learned, from off-steps
    (:class:`~adaptive_spec.off_seconds.OffSeconds`). Steps that speculate are compared in blocks with the
    off-seconds of the same tokens; each block's log(goodput on / goodput off) feeds a bank of CUSUM tests. A block
    that loses much ends early: what a wrong policy may cost before it is stopped is counted in steps without
    speculation, not in blocks. While on, off-steps keep the off-seconds fresh; while off, single on-steps make up
    trial blocks. Both are paid from the exploration ledger. What is known of off may be old, so before it switches
    off, and once after its first block, the guard measures a few off-steps in a row, which cost nothing if the
    test was right.

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
        Speculating steps that one comparison pools at most; single steps are too noisy.
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
        error_rate: float = 0.01,
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
        self._off = OffSeconds()
        self._block = OffBlock(block_steps)
        self._variance = 0.01  # of a whole block's log ratio: starts at (10 %)²
        self._last: tuple[float, int] | None = None  # log ratio and steps of the last block
        self._course = (0.0, 0.0)  # since it last was ahead: its steps' seconds and tokens over those of off
        self._since_off = 0  # speculating steps since the last off-step
        self._interval = 32  # speculating steps between off-steps
        self._wait = 0  # steps until the next trial block may begin
        self._backoff = 2 * FIRST_WAIT
        self._loss = 0.0  # tokens that a speculating step loses against off, running
        self._paid: deque[float] = deque(maxlen=IN_FLIGHT)  # for the trials under way
        self._measuring = 0  # off-steps in a row that are still to come
        self._asked: tuple[float, StepView, float] | None = None  # by a block: its ratio, last step and off-seconds
        self._changed: deque[float] = deque(maxlen=max_switches_per_minute)

    def verdict(self, view: StepView, cost: StepCost, goodput: float) -> Verdict:
        """Say whether this step may speculate; `goodput` (tokens per second) prices an off-step."""
        self._off.believe(view, cost)
        if self._measuring:
            return _off("off-step", "the guard makes sure of what a step takes without speculation")
        if self.on:
            if self._since_off >= (self._interval if self._off.knows(view) else SOON):
                price = max(goodput * self._off.at(view, cost) - view.base_tokens, 0.0)
                # Half the purse stays with the probes.
                if math.isfinite(price) and 2 * price <= self.ledger.balance and self.ledger.affords(price):
                    self.ledger.pay(price)
                    self._since_off = 0
                    return _off("off-step", "the guard measures a step without speculation")
            return Verdict(True)
        self._loss *= LOSS_KEPT  # it was measured in a world that may have changed since
        if self._wait > 0:
            self._wait -= 1
        elif self._may_change(2) and self.ledger.affords(self._loss):
            self.ledger.pay(self._loss)
            self._paid.append(self._loss)
            return Verdict(True, trial=True)
        return _off("guard", "speculation was measured slower than off")

    def observe(self, time: StepTime, view: StepView, cost: StepCost, speculated: bool) -> None:
        """Learn from the seconds and tokens of a step; `view` is the one that it was planned from."""
        seconds = time.step_seconds
        if not (seconds > 0 and math.isfinite(seconds) and time.tokens > 0) or not view.sequences:
            return
        paid = self._paid.popleft() if view.trial and self._paid else 0.0
        if not speculated:
            slower, more = self._course
            self._course = COURSE_KEPT * slower, COURSE_KEPT * more
            self.ledger.pay(-paid)  # of a trial in which the policy itself chose not to
            self._off.observe(view, cost, seconds)
            if self._off.surprised:
                self._interval = SOON
            if self._measuring:
                self._measuring -= 1
                if not self._measuring:
                    self._measured(cost)
            return
        off_tokens = view.base_tokens - view.sampling_prefills
        if not off_tokens > 0:  # all that decoded went away meanwhile, which says nothing of drafts
            self.ledger.pay(-paid)
            return
        off = self._off.at(view, cost)
        self._since_off += 1
        # What a prefill adds to the step is done whatever is decided, and its token comes anyway. Counted in,
        # it would make a second's loss look small beside the step's seconds.
        prefill = off * min(cost.prefill_share(view), MOST_PREFILL)
        tokens = max(time.tokens - view.sampling_prefills, 0.05 * off_tokens)
        slowness = max(seconds - prefill, 0.05 * seconds) / (off - prefill)
        loss = max(slowness * off_tokens - tokens, 0.0)
        weight = min(2.0 - 2.0 * prefill / off, 1.0)  # whole, while at least half of the step is its decoding
        if self.on:
            self._loss += 0.05 * weight * (loss - self._loss)
        else:  # a trial: pay what it really cost
            self.ledger.pay(loss - paid)
            self._loss += 0.5 * (loss - self._loss)
        size = (time.positions - view.prefill_tokens) / view.decode_positions
        self._block.add(slowness, tokens / off_tokens, size, off - prefill, off_tokens, weight)
        steps = len(self._block)
        slower, more = self._block.totals()
        lost = slower - more
        if steps >= (self._block.steps if self._off.steps else FIRST_BLOCK) or lost > self._patience(steps):
            if lost > LOSS_ALLOWED:  # what a policy costs that has just gone wrong is not what it used to cost
                self._loss = max(self._loss, lost / steps * off_tokens)
            slower, more = self._course[0] + slower, self._course[1] + more
            self._course = (slower, more) if slower > more else (0.0, 0.0)
            self._judge(self._block.take(), steps, view, off)

    def _patience(self, steps: int) -> float:
        """Off-steps that a block of so many steps may lose before it ends early."""
        if not self.on:
            return TRIAL_LOSS_ALLOWED
        return LOSS_ALLOWED if steps > 1 else STEP_LOSS_ALLOWED

    def _measured(self, cost: StepCost) -> None:
        """The off-steps that a block asked for were taken: is it still a loss?"""
        if self._asked is None:  # they were the first: what was lost until then was only believed
            self._course = (0.0, 0.0)
            return
        y, view, off = self._asked
        self._asked = None
        y += math.log(self._off.at(view, cost) / off)
        if y < -self.margin:
            self._switch(False, y)
        else:
            self._test.reset()
            self._course = (0.0, 0.0)

    def _judge(self, y: float, steps: int, view: StepView, off: float) -> None:
        """Take one block's log(goodput on / goodput off); its last step, `view`, would take `off` seconds off."""
        share = steps / self._block.steps
        if self._last is not None:
            # Successive differences: a level far from zero is no noise, and a change of level little. The floor
            # below keeps a quiet clock's first blocks from being taken for certainty.
            last, before = self._last
            square = (y - last) ** 2 * steps * before / (steps + before) / self._block.steps
            self._variance += 0.1 * (min(square, 4 * max(self._variance, NOISE_FLOOR), 0.1) - self._variance)
        self._last = (y, steps)
        variance = max(self._variance, NOISE_FLOOR) / share
        if self.on:
            slower, more = self._course
            # The test wants certainty, which luck may put off for long: meanwhile a course may lose no more than this.
            bled = slower - more > COURSE_LOSS_ALLOWED * max(1.0, math.sqrt(COURSE_SEQUENCES / view.sequences))
            if self._test.add(-y - self.margin, variance) or bled:
                if self._may_change(1):
                    y = min(y, math.log(more / slower)) if bled else y
                    self._measuring, self._asked = CONFIRMING_STEPS, (y, view, off)
                return
            if not self._off.steps:
                self._measuring = CONFIRMING_STEPS
            # The surer the gain, the rarer the off-steps, until they cost a tenth of a percent: off may have been
            # measured in a slow phase, and what seems to be gained since then is nothing of the kind.
            sure = y > 0.1 and not self._test.statistic.any() and not self._off.surprised
            most = min(max(32, int(1024 * (1.0 - math.exp(-y)))), 512)
            self._interval = min(self._interval * 2, most) if sure else max(self._interval // 2, 32)
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
        self._block.clear()
        self._last = None
        self._wait, self._backoff = (0 if on else FIRST_WAIT), 2 * FIRST_WAIT
        self._interval = 32
        logger.info("guard: speculation %s; it runs at %.3f x the goodput of off", "on" if on else "off", math.exp(y))

    def state(self) -> dict[str, object]:
        """What a trial may cost. Seconds without speculation are measured anew, and so is whether it pays."""
        return {"loss": self._loss}

    def restore(self, state: dict[str, object]) -> None:
        """Take over a saved guard; it begins switched on, whatever was found in the machine's earlier hour."""
        self._loss = float(state["loss"])  # type: ignore[arg-type]


class Watchdog:
    """Notices when the population's acceptance collapses: a broken drafter, a model swap.

    A CUSUM test on first drafts, of "a part of the usual rate" against "none to speak of". The part is a quarter
    for one sequence, whose text may be a hard one for long, and up to half for many. Drafts of one step are
    correlated and weigh ``n / (1 + (n - 1) correlation)``. Tripped, it asks for depth 0 and lets
    the ledger's probes look for the recovery with the same test turned round. A third of the threshold is enough for
    that: probes are few, and a false recovery is noticed in a few steps.

    Parameters
    ----------
    threshold : float
        Log-likelihood ratio at which it trips; at a third of it, it recovers.
    correlation : float
        Correlation of the drafts of one step.
    memory_drafts : int
        First drafts over which the usual rate is averaged.
    """

    def __init__(self, threshold: float = 10.0, correlation: float = 0.05, memory_drafts: int = 5000) -> None:
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
        n, successes = loops.first_drafts(loops.whole(verified), loops.whole(accepted))
        if not n:
            return False
        weight = 1.0 / (1.0 + (n - 1) * self.correlation)
        low, high = 0.01, max((0.5 - 0.25 / math.sqrt(n)) * self.usual, 0.04)
        failure, success = math.log((1 - low) / (1 - high)), math.log(low / high)
        evidence = weight * (successes * success + (n - successes) * failure)
        if self.tripped:
            self._statistic = max(0.0, self._statistic - evidence)
        else:
            self._statistic = max(0.0, self._statistic + evidence)
            self._drafts = min(self._drafts + weight * n, self.memory_drafts)
            self.usual += (successes / n - self.usual) * weight * n / (self._drafts + 20)
        if self._statistic < (self.threshold / 3 if self.tripped else self.threshold):
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
