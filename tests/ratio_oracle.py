"""A ratio-mode sampler of ten lines on a two-token world, driven through a Controller: the losslessness oracle.

The world is the counterexample of the design: the target's first token is A with chance .7, the draft's with
.5; the second draft is accepted with chance .9 after A and never after B. Whoever lets a draft's identity
decide whether it is verified moves the output distribution.
"""

from __future__ import annotations

import numpy as np

from adaptive_spec.controller import Controller
from adaptive_spec.step import Outcome, StepTime, StepView

A, B = 0, 1
# Chance of token A, by the tokens before: () the first position, then after A, after B.
TARGET = {(): 0.7, (A,): 0.6, (B,): 1.0}
DRAFT = {(): 0.5, (A,): 0.5, (B,): 0.0}


def draw(rng: np.random.Generator, chance_of_a: float) -> int:
    """Draw a token."""
    return A if rng.random() < chance_of_a else B


def drafts_of(rng: np.random.Generator) -> tuple[int, int]:
    """Draw the two draft tokens of one sequence."""
    first = draw(rng, DRAFT[()])
    return first, draw(rng, DRAFT[(first,)])


def verify(rng: np.random.Generator, drafts: tuple[int, ...]) -> tuple[int, int]:
    """Verify drafts by the ratio rule (Leviathan et al. 2023); the first token emitted, and the number accepted."""
    for k, token in enumerate(drafts):
        p, q = TARGET[drafts[:k]], DRAFT[drafts[:k]]
        p_token, q_token = (p, q) if token == A else (1 - p, 1 - q)
        if rng.random() * q_token >= p_token:  # rejected: draw from the residual max(p - q, 0)
            token = A if p > q else B
            return (token if k == 0 else drafts[0]), k
    if drafts:
        return drafts[0], len(drafts)
    return draw(rng, TARGET[()]), 0


def first_tokens(controller: Controller, sequences: int, steps: int, seed: int, *, retrospective: bool) -> np.ndarray:
    """First token that each of `sequences` emits in each of `steps` steps, shape (steps, sequences).

    Every step begins at the world's start. `retrospective` draws the drafts before the decision and shows
    their first token to the controller as evidence, which is what an engine must never do.
    """
    rng = np.random.default_rng(seed)
    ids = list(range(sequences))
    for id in ids:
        controller.add(id)
    row = controller.rows(ids)
    tokens = np.zeros((steps, sequences), dtype=np.int64)
    context = np.zeros(sequences, dtype=np.int64)
    limit = np.full(sequences, 2)
    for step in range(steps):
        drafts = [drafts_of(rng) for _ in ids] if retrospective else []
        evidence = np.array([[float(pair[0])] for pair in drafts]) if retrospective else np.zeros((sequences, 0))
        decision = controller.plan(StepView(row, limit, context, evidence))
        if not retrospective:
            drafts = [drafts_of(rng) for _ in ids]
        accepted = np.zeros(sequences, dtype=np.int64)
        for i in ids:
            tokens[step, i], accepted[i] = verify(rng, drafts[i][: decision.depth[i]])
        controller.observe(Outcome(decision.step, ids, decision.depth, decision.depth, accepted))
        assert controller.cost is not None
        positions = sequences + int(decision.depth.sum())
        seconds = float(controller.cost.verify(np.array([positions]), 0.0, sequences)[0])
        controller.observe_time(
            StepTime(
                decision.step, positions, sequences, 0, decision.draft_depth,
                tokens=float(sequences + accepted.sum()),
                verify_seconds=seconds, draft_seconds=0.0, step_seconds=seconds,
            )
        )  # fmt: skip
    return tokens
