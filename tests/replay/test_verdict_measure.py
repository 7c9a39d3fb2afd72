"""What policies are ranked by: goodput under a constant load, the speed of single users where requests come alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from quick_experiment import data

from adaptive_spec.cli.compare_table import gains_table
from adaptive_spec.replay.comparison import Comparison
from adaptive_spec.replay.experiment import Experiment
from adaptive_spec.replay.verdicts import Verdicts


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    asked = data(
        policies=["roofline-budget", "turbospec"],
        seeds=1,
        arrivals=[{"closed": 6}, {"name": "random", "poisson": 40.0, "seconds": 1.5}],
    )
    experiment = Experiment.parse(asked)
    folder: Path = tmp_path_factory.mktemp("run")
    return Verdicts(Comparison(experiment, folder).run(), experiment.bootstrap)


def test_each_setting_is_judged_by_what_differs_in_it(verdicts: Verdicts) -> None:
    for arrivals, measure in (("6", "goodput"), ("random 40/s", "tokens_per_second_per_user")):
        rows = {row["policy"]: row for row in verdicts.gains if row["arrivals"] == arrivals}
        assert {row["measure"] for row in rows.values()} == {measure}
        fixed = {name: row[measure] for name, row in rows.items() if row["kind"] == "fixed"}
        best = max(fixed, key=lambda name: fixed[name])
        assert rows["none"]["best_fixed"] == best
        for row in rows.values():
            assert row["ratio_to_best_fixed"] == pytest.approx(row[measure] / fixed[best])
            assert row["ratio_to_none"] == pytest.approx(row[measure] / fixed["none"])
        duel = next(row for row in verdicts.duels if (row["arrivals"], row["rival"]) == (arrivals, "turbospec"))
        assert duel["measure"] == measure
        assert duel["ratio"] == pytest.approx(rows["roofline-budget"][measure] / rows["turbospec"][measure])


def test_the_table_says_what_it_ranks_by(verdicts: Verdicts) -> None:
    def title(arrivals: str, closed: bool) -> str:
        return str(gains_table(verdicts.gains, ("made", arrivals, "small"), closed, True).title)

    assert "per user" not in title("6", True)
    assert title("random 40/s", False).endswith("; ratios of tokens/s per user")
