"""The records that flow through one step: what is known, what was decided, what came of it, how long it took."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaptive_spec import loops

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
SequenceId: TypeAlias = Hashable

NAN = float("nan")
LITTLE_PREFILL = 0.1  # prompt positions for each decoding sequence, up to which a step's seconds tell of its depths


@dataclass
class StepView:
    """What is known of a step before its first draft token is drawn.

    Arrays run over the B decoding sequences of the step, in the engine's order.

    Attributes
    ----------
    row : int array, shape (B,)
        The controller's slot of each sequence, from :meth:`Controller.rows`.
    limit : int array, shape (B,)
        The most draft tokens that each sequence may have in this step: K, tokens still to produce
        minus one, model length, drafts on offer where they are known.
    context : int array, shape (B,)
        Tokens that each sequence has in the KV cache.
    evidence : float array, shape (B, F)
        What the drafter knows of its offer, one column per evidence feature of the acceptance model
        (F may be 0). Only facts that were known before the step's first draw belong here: whether a
        draft is verified may depend on nothing drawn after it, or the output distribution moves.
    weight : float array, shape (B,), optional
        Worth of one token of each sequence. ``None`` lets the controller fill in the weights that the
        sequences were added with.
    prefill_tokens : int
        Positions that the same pass carries for prompts.
    sampling_prefills : int
        Prefills that end in this step, and so yield a token each.
    lag : int
        Positions that the drafter has to catch up on before it can draft (0 for table drafters).
    carried_drafts : int
        Drafts that the pass carries whatever is decided: those of pinned sequences, and of probes.
    trial : bool
        Whether speculation is switched off, and this step is to show what it would bring: no step to try things out
        in. The controller says so.
    """

    row: IntArray
    limit: IntArray
    context: IntArray
    evidence: FloatArray
    weight: FloatArray | None = None
    prefill_tokens: int = 0
    sampling_prefills: int = 0
    lag: int = 0
    carried_drafts: int = 0
    trial: bool = False

    @property
    def sequences(self) -> int:
        """Number of decoding sequences, B."""
        return len(self.row)

    @property
    def base_positions(self) -> int:
        """Positions that the pass carries anyway: one per decoding sequence, prefill, carried drafts (T0)."""
        return self.decode_positions + self.prefill_tokens

    @property
    def decode_positions(self) -> int:
        """Those of them that are no prompt's: one per decoding sequence, carried drafts."""
        return len(self.row) + self.carried_drafts

    @cached_property
    def total_context(self) -> float:
        """KV tokens that the pass reads, over all decoding sequences."""
        return float(np.add.reduce(self.context))

    @cached_property
    def base_tokens(self) -> float:
        """Worth of the tokens that the pass yields at depth 0 (G0)."""
        if self.weight is None:
            return float(len(self.row) + self.sampling_prefills)
        return float(np.add.reduce(self.weight)) + self.sampling_prefills

    def select(self, keep: BoolArray | IntArray) -> StepView:
        """Return the view of some of the sequences; the prefill stays."""
        return replace(
            self,
            row=self.row[keep],
            limit=self.limit[keep],
            context=self.context[keep],
            evidence=self.evidence[keep],
            weight=None if self.weight is None else self.weight[keep],
        )

    def carrying(self, depth: IntArray) -> StepView:
        """Return the view in which sequences with `depth` >= 0 have that depth already, as positions of the pass."""
        carried = depth >= 0
        limit = np.where(carried, 0, self.limit)
        limit.flags.writeable = False
        return replace(self, limit=limit, carried_drafts=self.carried_drafts + int(depth[carried].sum()))


@dataclass(slots=True, frozen=True)
class Tipping:
    """Where an allocation stopped buying, so that the reason holds on a staircase too.

    Attributes
    ----------
    floor : float
        Worth, in tokens, of the last slot bought (NaN if none was).
    next : float
        Worth of the best slot refused (NaN if every slot on offer was bought).
    slots : int
        Size of the refused block that came nearest to paying for itself (0 if none was refused).
    tokens : float
        Worth that this block would have brought.
    seconds : float
        What it would have cost, drafting included.
    price : float
        Goodput of the step as decided, tokens per second: what a second must bring. What a prefill adds to
        the step does not count, neither its seconds nor its token.
    draft_seconds : float
        The part of `seconds` that drafting deeper would have cost.
    horizon_price : float
        The price that was used in the decision, where it is not the step's own goodput
        (``horizon: run``); otherwise equal to `price`.
    """

    floor: float
    next: float
    slots: int
    tokens: float
    seconds: float
    price: float
    draft_seconds: float
    horizon_price: float

    @property
    def required(self) -> float:
        """Tokens that the refused block would have had to bring."""
        return self.horizon_price * self.seconds

    @property
    def decided_by_draft(self) -> bool:
        """Whether the block would have paid if drafting deeper were free."""
        return self.slots > 0 and self.tokens > self.horizon_price * (self.seconds - self.draft_seconds)

    def sentence(self) -> str:
        """Say in one sentence what tipped the decision."""
        if self.slots == 0:
            return "every slot on offer was bought"
        if self.tokens > self.required * (1 + 1e-9):
            return f"{self.slots} slots that would have paid lie between the depth levels that were compared"
        block, they = ("slot brings", "it") if self.slots == 1 else (f"{self.slots} slots bring", "they")
        text = (
            f"the next {block} {self.tokens:.2f} tokens for {self.seconds * 1e3:.2f} ms; "
            f"at {self.horizon_price:,.0f} tokens/s {they} would have to bring {self.required:.2f}"
        )
        if self.decided_by_draft:
            text += f" (drafting deeper costs {self.draft_seconds * 1e3:.2f} ms of that: the draft's cost decided)"
        return text


class DeferredTipping(Tipping):
    """A :class:`Tipping` that is worked out when it is first read, off the hot path.

    Parameters
    ----------
    compute : callable
        Returns the facts; it is called once at most, and then let go with all that it holds.
    """

    __slots__ = ("_compute",)
    _compute: Callable[[], Tipping] | None

    def __init__(self, compute: Callable[[], Tipping]) -> None:
        object.__setattr__(self, "_compute", compute)

    def __getattr__(self, name: str) -> float:
        # Python comes here only for a slot that isn't filled: the first read of any of the facts.
        names = [fact.name for fact in fields(Tipping)]
        if name not in names or self._compute is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        computed = self._compute()
        for fact in names:
            object.__setattr__(self, fact, getattr(computed, fact))
        object.__setattr__(self, "_compute", None)
        return float(getattr(computed, name))


@dataclass(slots=True)
class Decision:
    """How deep every sequence speculates in one step.

    Attributes
    ----------
    step : int
        Number of the step; outcomes and times refer to it.
    row : int array, shape (B,)
        The controller's slots, as in the view.
    depth : int array, shape (B,)
        Draft tokens to verify for each sequence.
    draft_depth : int
        The most tokens that the drafter is asked for per sequence; 0 asks for none.
    expected_tokens : float
        Worth that the step is expected to yield.
    expected_seconds : float
        Seconds that it is expected to take (NaN where there is no cost model).
    decided_by : str
        ``policy``, or what overruled it: ``fallback``, ``guard``, ``watchdog``, ``off-step``, ``limits``, ``off``.
    tipping : Tipping, optional
        Where the policy stopped buying.
    explored : bool array, shape (B,)
        Sequences that were drafted deeper than the policy chose, to learn.
    reason : str
        Why, when `decided_by` is not ``policy``.
    pinned : int
        Sequences whose depth their owner has set.
    """

    step: int
    row: IntArray
    depth: IntArray
    draft_depth: int
    expected_tokens: float = NAN
    expected_seconds: float = NAN
    decided_by: str = "policy"
    tipping: Tipping | None = None
    explored: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    reason: str = ""
    survival: FloatArray | None = None  # [B, K], the mean estimate the decision saw
    pinned: int = 0

    def explain(self, i: int) -> str:
        """Say in one sentence why sequence `i` of the step has its depth."""
        depth = int(self.depth[i])
        text = f"sequence {i}: depth {depth}"
        if len(self.explored) and self.explored[i]:
            return text + ", a probe paid from the exploration ledger"
        if self.decided_by != "policy":
            return text + f", decided by the {self.decided_by}" + (f": {self.reason}" if self.reason else "")
        if self.survival is not None and self.tipping is not None:
            if depth:
                text += f", its last draft survives with chance {self.survival[i, depth - 1]:.2f}"
            if depth < self.survival.shape[1]:
                text += f", the next would with {self.survival[i, depth]:.2f}"
        if self.tipping is not None:
            text += "; " + self.tipping.sentence()
        return text


@dataclass(slots=True)
class Outcome:
    """What came of a decision's drafts.

    Always ``accepted <= verified <= min(depth, drafted)`` and ``drafted <= draft_depth``.

    Attributes
    ----------
    step : int
        The decision that this answers.
    ids : sequence of ids, length B
        Any subset of the decision's sequences, in any order.
    drafted, verified, accepted : int array, shape (B,)
        Drafts made, drafts that the target judged (cut ones, by a grammar say, are not), drafts kept.
    row : int array, shape (B,), optional
        Rows of the sequences; policies always find it filled in. An engine that answers all of a decision's
        sequences in its order may hand in ``decision.row``, which spares looking the ids up.
    """

    step: int
    ids: Sequence[SequenceId]
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    row: IntArray | None = None

    def check(self, depth: IntArray) -> None:
        """ValueError if the counts contradict each other or the depths that were decided, shape (B,)."""
        drafted, verified, accepted = self.drafted, self.verified, self.accepted
        if loops.in_order(*(loops.whole(counts) for counts in (accepted, verified, drafted, depth))):
            return
        raise ValueError(
            f"outcome of step {self.step} breaks 0 <= accepted <= verified <= min(depth, drafted): accepted "
            f"{accepted.tolist()}, verified {verified.tolist()}, drafted {drafted.tolist()}, depth {depth.tolist()}"
        )


@dataclass(slots=True)
class StepTime:
    """What a pass really carried and took; apart from :class:`Outcome`, since engines learn it at another moment.

    Attributes
    ----------
    step : int
        The decision that this pass carried out.
    positions : int
        Tokens in the target pass.
    sequences : int
        Decoding sequences in it.
    context : int
        Sum of the KV tokens that it read.
    draft_depth : int
        Depth that was drafted to.
    tokens : float
        Worth of the tokens that the step yielded, prefills that ended included (NaN: not known).
    lag : int
        Positions that the drafter caught up on.
    prefill_tokens, sampling_prefills : int, optional
        Positions of prompts that the pass carried, and prefills that ended in it; None: as in the decision's view.
    verify_seconds, draft_seconds, step_seconds : float
        Seconds; NaN where the engine can't tell.
    """

    step: int
    positions: int
    sequences: int
    context: int
    draft_depth: int
    tokens: float = NAN
    lag: int = 0
    prefill_tokens: int | None = None
    sampling_prefills: int | None = None
    verify_seconds: float = NAN
    draft_seconds: float = NAN
    step_seconds: float = NAN
