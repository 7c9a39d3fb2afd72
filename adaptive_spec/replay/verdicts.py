"""Verdicts: what finished cells say of the policies, in four tables: runs, gains, duels and splits."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaptive_spec.replay.cell import Cell
from adaptive_spec.replay.comparison import Finished, metrics_of
from adaptive_spec.replay.contestant import BY_LOAD, Contestant
from adaptive_spec.replay.experiment import BootstrapEntry
from adaptive_spec.replay.gain_split import split_gain
from adaptive_spec.replay.metrics import RunMetrics
from adaptive_spec.replay.paired import Interval, PairedBootstrap, Sums, text_sums

Row = dict[str, Any]


@dataclass(frozen=True)
class SettingKey:
    """A trace, arrivals and a machine, by their names."""

    trace: str
    arrivals: str
    machine: str

    def __str__(self) -> str:
        return f"{self.trace}, {self.arrivals}, {self.machine}"


@dataclass
class Standing:
    """The runs of one policy in one setting, over all seeds.

    Attributes
    ----------
    contestant : Contestant
    goodput, user : Sums
        Tokens by text and seed over the seconds that steps took; the same of single users, decoding alone.
    runs : dict of int to dict
        Results by seed.
    measure : str
        What policies are ranked by: ``goodput``; or ``tokens_per_second_per_user`` where requests come by themselves,
        since an open system that keeps up yields what arrives, whatever its policy.
    """

    contestant: Contestant
    goodput: Sums
    user: Sums
    runs: dict[int, dict[str, Any]]
    measure: str = "goodput"

    @property
    def score(self) -> Sums:
        """What it is ranked by."""
        return self.goodput if self.measure == "goodput" else self.user

    @property
    def pooled(self) -> RunMetrics:
        """Tokens and seconds over all seeds."""
        parts = [metrics_of(result) for result in self.runs.values()]
        return replace(
            parts[0],
            tokens=sum(part.tokens for part in parts),
            seconds=sum(part.seconds for part in parts),
            off_saving_seconds=sum(part.off_saving_seconds for part in parts),
        )

    def mean(self, name: str) -> float:
        """Mean of a number over the seeds."""
        return math.fsum(result["row"][name] for result in self.runs.values()) / len(self.runs)


class Verdicts:
    """The tables.

    Parameters
    ----------
    finished : sequence of Finished
        In the plan's order.
    bootstrap : BootstrapEntry

    Attributes
    ----------
    standings : dict of SettingKey to dict of str to Standing
    runs : list of dict
        One row a cell: names, and what :meth:`RunMetrics.summary` tells.
    gains : list of dict
        This table and the next ones say in ``synthetic`` what a trace was generated from; it is empty for a recording.
        One row for each setting and policy: goodput and its interval, and the ratio of what the setting is judged by
        (``measure``, see :class:`Standing`) to the best fixed depth in hindsight and to no speculation, paired over
        texts and seeds.
    duels : list of dict
        One row for each setting, policy of ours and rival (peers, ablations, the best fixed depth, none): the ratio,
        and whether it is a gain, a loss, or no difference within the interval.
    splits : list of dict
        One row for each setting and policy: the gain over the best fixed depth in three parts
        (:mod:`.gain_split`), where ``best-by-load`` took part.
    """

    def __init__(self, finished: Sequence[Finished], bootstrap: BootstrapEntry) -> None:
        self._bootstrap = bootstrap
        self.standings = _standings(finished)
        self.runs = [_run_row(item) for item in finished]
        self.gains: list[Row] = []
        self.duels: list[Row] = []
        self.splits: list[Row] = []
        for key, standings in self.standings.items():
            self._judge(key, standings)

    def _judge(self, key: SettingKey, standings: dict[str, Standing]) -> None:
        first = next(iter(standings.values()))
        texts, seeds = first.goodput.amount.shape
        options = self._bootstrap
        draws = PairedBootstrap(texts, seeds, options.draws, options.level, options.seed)
        best, none = best_fixed_of(standings), standings["none"]
        synthetic = next(iter(first.runs.values()))["synthetic"]
        named: Row = {"trace": key.trace, "synthetic": synthetic, "arrivals": key.arrivals, "machine": key.machine}
        for standing in standings.values():
            self.gains.append({
                **named,
                "policy": standing.contestant.name,
                "kind": standing.contestant.kind,
                **_told("goodput", draws.rate(standing.goodput)),
                **_told("tokens_per_second_per_user", draws.rate(standing.user)),
                "measure": standing.measure,
                **_told("ratio_to_best_fixed", draws.ratio(standing.score, best.score)),
                "best_fixed": best.contestant.name,
                **_told("ratio_to_none", draws.ratio(standing.score, none.score)),
                **{name: standing.mean(name) for name in _MEANS},
            })  # fmt: skip
        ours = [s for s in standings.values() if s.contestant.kind == "ours"]
        peers = [s for s in standings.values() if s.contestant.kind == "peer" or s in (best, none)]
        for own in ours:
            for rival in [*peers, *(s for s in standings.values() if s.contestant.ablates(own.contestant))]:
                ratio = draws.ratio(own.score, rival.score)
                self.duels.append({
                    **named,
                    "policy": own.contestant.name,
                    "rival": rival.contestant.name,
                    "rival_is_best_fixed": rival is best,
                    "measure": own.measure,
                    **_told("ratio", ratio),
                    "verdict": "gain" if ratio.over else "loss" if ratio.under else "no difference",
                })  # fmt: skip
        self._split(named, standings)

    def _split(self, named: Row, standings: dict[str, Standing]) -> None:
        fixed = {s.contestant.depth: s.pooled for s in standings.values() if s.contestant.depth is not None}
        table = next((s for s in standings.values() if s.contestant.spec["kind"] == BY_LOAD), None)
        if table is None:
            return
        for standing in standings.values():
            if standing.contestant.kind == "fixed":
                continue
            parts = split_gain(standing.pooled, fixed, table.pooled)
            self.splits.append({
                **named,
                "policy": standing.contestant.name,
                "kind": standing.contestant.kind,
                "best_depth": parts.best_depth,
                "log_gain": parts.total,
                "log_from_load": parts.load,
                "log_from_requests": parts.requests,
                "log_from_not_drafting": parts.not_drafting,
            })  # fmt: skip

    @property
    def losses(self) -> list[Row]:
        """Duels that were lost, or of which the estimate alone says so, the worst first."""
        behind = [row for row in self.duels if row["ratio"] < 1.0]
        return sorted(behind, key=lambda row: (row["verdict"] != "loss", row["ratio"]))

    def tables(self) -> dict[str, list[Row]]:
        """All tables by name."""
        return {"runs": self.runs, "gains": self.gains, "duels": self.duels, "splits": self.splits}

    def write(self, folder: Path) -> list[Path]:
        """Write every table as Parquet and CSV; the same cells give the same bytes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        written = []
        for name, rows in self.tables().items():
            if not rows:
                continue
            columns = list(dict.fromkeys(column for row in rows for column in row))
            with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            table = pa.table({column: [row.get(column) for row in rows] for column in columns})
            pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
            written += [folder / f"{name}.parquet", folder / f"{name}.csv"]
        return written


_MEANS = (
    "acceptance_length", "mean_depth", "off_share", "mean_sequences", "ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50",
    "tpot_p95", "tpot_p99", "attainment", "extra_flops",
)  # fmt: skip


def best_fixed_of(standings: Mapping[str, Standing]) -> Standing:
    """The fixed depth with the highest score in hindsight; the shallower of equals."""
    fixed = sorted((s for s in standings.values() if s.contestant.depth is not None), key=_depth)
    return max(fixed, key=lambda standing: standing.score.rate)


def _depth(standing: Standing) -> int:
    assert standing.contestant.depth is not None
    return standing.contestant.depth


def _standings(finished: Sequence[Finished]) -> dict[SettingKey, dict[str, Standing]]:
    grouped: dict[SettingKey, dict[str, list[Finished]]] = {}
    for item in finished:
        cell = item.cell
        key = SettingKey(cell.trace, cell.arrivals, cell.machine)
        grouped.setdefault(key, {}).setdefault(cell.policy, []).append(item)
    standings: dict[SettingKey, dict[str, Standing]] = {}
    for key, policies in grouped.items():
        standings[key] = {}
        for name, items in policies.items():
            runs = {item.cell.seed: item.result for item in items}
            texts = {seed: result["texts"] for seed, result in runs.items()}
            standings[key][name] = Standing(
                items[0].contestant,
                text_sums(texts, "tokens", "seconds"),
                text_sums(texts, "decode_tokens", "user_seconds"),
                runs,
                _measure(items[0].cell),
            )
    return standings


def _measure(cell: Cell) -> str:
    kind = json.loads(cell.made_from)["arrivals"]["kind"]
    return "goodput" if kind in ("closed", "switching") else "tokens_per_second_per_user"


def _run_row(item: Finished) -> Row:
    cell, result = item.cell, item.result
    return {
        "policy": cell.policy,
        "kind": item.contestant.kind,
        "trace": cell.trace,
        "arrivals": cell.arrivals,
        "machine": cell.machine,
        "seed": cell.seed,
        **result["row"],
        "synthetic": result["synthetic"],
        "policy_after_run": result["policy"].partition("\n")[0],
        "cell": cell.key,
    }


def _told(name: str, interval: Interval) -> Row:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
