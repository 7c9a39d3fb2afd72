"""View: what a report shows, picked out of a comparison: panels, loads, and who is highlighted in which colour."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from adaptive_spec.replay.comparison_folder import ComparisonRecord
from adaptive_spec.replay.contestant import BY_LOAD
from adaptive_spec.replay.report.style import SERIES
from adaptive_spec.replay.verdicts import Row, SettingKey, Standing, Verdicts, best_fixed_of

BEST = "best fixed depth"
HIGHLIGHTED = 8


@dataclass(frozen=True)
class Panel:
    """A trace on a machine: one plot of each kind.

    Attributes
    ----------
    trace, machine : str
    synthetic : str
        What the acceptance was generated from; empty for a recording.
    """

    trace: str
    machine: str
    synthetic: str

    def __str__(self) -> str:
        return f"{self.trace} on {self.machine}"


class View:
    """A comparison, as its figures look at it.

    Parameters
    ----------
    record : ComparisonRecord

    Attributes
    ----------
    record : ComparisonRecord
    verdicts : Verdicts
    concurrency : dict of str to int
        Of the closed arrivals, by their names.
    """

    def __init__(self, record: ComparisonRecord) -> None:
        self.record = record
        self.verdicts = Verdicts(record.finished, record.bootstrap)
        self.concurrency: dict[str, int] = {}
        self.loads: list[str] = []
        for item in record.finished:
            name, spec = item.cell.arrivals, json.loads(item.cell.made_from)["arrivals"]
            if name not in self.loads:
                self.loads.append(name)
            if spec["kind"] == "closed":
                self.concurrency[name] = int(spec["concurrency"])
        self.synthetic = {item.cell.trace: str(item.result["synthetic"]) for item in record.finished}
        self._gains = {
            (SettingKey(r["trace"], r["arrivals"], r["machine"]), r["policy"]): r for r in self.verdicts.gains
        }

    @cached_property
    def panels(self) -> list[Panel]:
        """Every trace on every machine."""
        names = dict.fromkeys((key.trace, key.machine) for key in self.verdicts.standings)
        return [Panel(trace, machine, self.synthetic[trace]) for trace, machine in names]

    @cached_property
    def closed(self) -> list[str]:
        """The closed loads, the smallest first."""
        return sorted(self.concurrency, key=lambda name: self.concurrency[name])

    @property
    def open(self) -> list[str]:
        """All other arrivals."""
        return [name for name in self.loads if name not in self.concurrency]

    def standings(self, panel: Panel, load: str) -> dict[str, Standing]:
        """All policies in one setting."""
        return self.verdicts.standings[SettingKey(panel.trace, load, panel.machine)]

    def gain(self, panel: Panel, load: str, policy: str) -> Row:
        """The row of a policy in one setting."""
        return self._gains[SettingKey(panel.trace, load, panel.machine), policy]

    def best(self, panel: Panel, load: str) -> Row:
        """The row of the best fixed depth in hindsight."""
        return self.gain(panel, load, best_fixed_of(self.standings(panel, load)).contestant.name)

    # ---------------------------------------------------------------- who is shown how

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kind of each policy, by name, in the plan's order."""
        return {item.contestant.name: item.contestant.kind for item in self.record.finished}

    @cached_property
    def ours(self) -> list[str]:
        """Our policies."""
        return [name for name, kind in self.kinds.items() if kind == "ours"]

    @cached_property
    def _specs(self) -> dict[str, Any]:
        return {item.contestant.name: item.contestant.spec for item in self.record.finished}

    @cached_property
    def highlighted(self) -> dict[str, str]:
        """Style of each policy that has a colour: ours first, then the strongest peers, one yardstick, ablations."""
        strength: dict[str, list[float]] = {}
        for row in self.verdicts.gains:
            strength.setdefault(row["policy"], []).append(math.log(max(row["ratio_to_best_fixed"], 1e-9)))
        ranked = sorted(self.kinds, key=lambda name: -sum(strength[name]) / len(strength[name]))
        yardsticks = [n for n in self.kinds if self.kinds[n] == "yardstick" and self._specs[n]["kind"] != BY_LOAD]
        preferred = [
            *self.ours[:3],
            *[name for name in ("signal-ceiling", "clairvoyant") if name in yardsticks][:2],
            *[name for name in ranked if self.kinds[name] == "peer"],
            *[name for name in ranked if self.kinds[name] == "ablation"],
        ]
        chosen = list(dict.fromkeys(preferred))[: HIGHLIGHTED - 2]  # the best fixed depth and none have a line too
        styles: dict[str, str] = {}
        for name in chosen:
            shape = " thick" if name in self.ours else " dots" if self.kinds[name] == "yardstick" else ""
            styles[name] = f"s{len(styles) % SERIES + 1}{shape}"
        return styles

    def style(self, name: str) -> str:
        """Style of a policy's line; grey for most."""
        if name == "none":
            return "soft dash"
        if name == BEST:
            return "ink dash"
        return self.highlighted.get(name, "quiet")

    @property
    def others(self) -> list[str]:
        """Those that are grey."""
        return [name for name in self.kinds if name not in self.highlighted and name != "none"]

    @property
    def drawn(self) -> list[str]:
        """All policies, the grey ones first, so that the others lie on top."""
        return [*self.others, "none", *reversed(list(self.highlighted))]

    @property
    def synthetic_note(self) -> str:
        """What a caption must say of synthetic traces; empty if there are none."""
        names = [name for name, source in self.synthetic.items() if source]
        if not names:
            return ""
        return f"Acceptance of {', '.join(names)} is synthetic: generated, not recorded."
