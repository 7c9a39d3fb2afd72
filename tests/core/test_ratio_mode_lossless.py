"""The output distribution is the target's, whatever the controller decides; and the test can fail."""

from __future__ import annotations

import numpy as np
import pytest
from ratio_oracle import first_tokens

from adaptive_spec.acceptance import AcceptanceModel, EvidenceFeature
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Profile
from adaptive_spec.explore import Ledger
from adaptive_spec.policy import make_policy

# Seconds of 1, 2, 3 positions: the design's counterexample. For two sequences, a curve on which both pay
# together and neither alone.
ONE = Profile([1, 2, 3], [1.0, 2.0, 1 / 0.45], interpolation="linear")
TWO = Profile([2, 3, 4, 5, 6], [1.0, 2.0, 2.2, 2.4, 2.5], interpolation="linear")
FIRST_DRAFT = EvidenceFeature("first_draft", (0.5,))


def controller(cost: Profile, *, retrospective: bool) -> Controller:
    evidence = [FIRST_DRAFT] if retrospective else []
    return Controller(
        make_policy("roofline-budget"),
        AcceptanceModel(2, evidence, sequence_effect=False),
        cost=cost,
        ledger=Ledger(0.02, 0.01),
        seed=1,
    )


@pytest.mark.parametrize("retrospective", [False, True])
def test_first_token_is_the_targets(retrospective: bool) -> None:
    tokens = first_tokens(controller(ONE, retrospective=retrospective), 1, 100_000, 7, retrospective=retrospective)
    share_of_a = float((tokens == 0).mean())
    interval = 4 * np.sqrt(0.7 * 0.3 / tokens.size)
    if retrospective:
        assert share_of_a == pytest.approx(0.85, abs=0.02)  # as worked out in the design
    else:
        assert abs(share_of_a - 0.7) < interval


@pytest.mark.parametrize("retrospective", [False, True])
def test_parallel_sequences_stay_independent(retrospective: bool) -> None:
    tokens = first_tokens(controller(TWO, retrospective=retrospective), 2, 50_000, 3, retrospective=retrospective)
    correlation = float(np.corrcoef(tokens.T)[0, 1])
    interval = 4 / np.sqrt(len(tokens))
    if retrospective:
        assert correlation > 2 * interval
    else:
        assert abs(correlation) < interval
        assert abs(float((tokens == 0).mean()) - 0.7) < 4 * np.sqrt(0.7 * 0.3 / tokens.size)
