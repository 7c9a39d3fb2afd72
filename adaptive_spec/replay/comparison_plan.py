"""ComparisonPlan: every cell of an experiment, from what it names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive_spec.replay.cell import (
    SCHEMA,
    Cell,
    canonical,
    code_digest,
    file_digest,
    library_versions,
    make_machine,
    policy_digest,
)
from adaptive_spec.replay.contestant import BY_LOAD, Contestant, find_contestant, fixed, policy_of
from adaptive_spec.replay.experiment import Experiment, entry_name
from adaptive_spec.replay.experiment_entries import (
    AzureRequests,
    BurstArrivals,
    ClosedArrivals,
    InlineMachine,
    MachineEntry,
    PoissonArrivals,
    RecordedTrace,
    SwitchingArrivals,
    TraceEntry,
)

_CHANGES = ("noise", "max_num_seqs", "max_num_batched_tokens", "num_kv_blocks", "prefill_elsewhere", "draft_share",
            "draft_idle_share")  # fmt: skip


@dataclass(frozen=True)
class Load:
    """One arrival process.

    Attributes
    ----------
    name : str
    spec : mapping
        Plain data for :func:`.cell.make_arrivals`.
    run : mapping
        Its bound and warm-up.
    concurrency : int, optional
        Of a closed one.
    """

    name: str
    spec: Mapping[str, Any]
    run: Mapping[str, Any]
    concurrency: int | None = None
    path: str = ""


@dataclass(frozen=True)
class _Part:
    name: str
    spec: Mapping[str, Any]
    path: str = ""


class ComparisonPlan:
    """The cells of an experiment.

    Parameters
    ----------
    experiment : Experiment

    Attributes
    ----------
    contestants : list of Contestant
        Fixed depths first, then the others in the experiment's order.
    traces, machines : list
    loads : list of Load

    Raises
    ------
    ValueError
        If a policy, a file or a setting isn't good; the message names it.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.contestants = self._contestants()
        self.traces = [_trace(entry) for entry in experiment.traces]
        self.machines = [_machine(entry) for entry in experiment.machines]
        self.loads = [load for entry in experiment.arrivals for load in _loads(entry, experiment)]
        names = [load.name for load in self.loads]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise ValueError(f"arrivals {name!r} are there twice; leave one out, or name one of them")
        for part in self.machines:
            most = make_machine(part.spec, part.path).max_num_seqs
            for load in self.loads:
                if load.concurrency is not None and load.concurrency > most:
                    raise ValueError(
                        f"{load.name} requests at once are over max_num_seqs {most} of machine {part.name}; set its "
                        "max_num_seqs"
                    )

    def _contestants(self) -> list[Contestant]:
        found: dict[str, Contestant] = {}
        for depth in self.experiment.depths:
            found[fixed(depth).name] = fixed(depth)
        for number, entry in enumerate(self.experiment.policies):
            tuning = self.experiment.tuning_of(entry)
            contestant = find_contestant(entry.name, entry.policy, tuning, entry.believed)
            if entry.tuning and "tuning" not in contestant.spec:
                raise ValueError(
                    f"policies[{number}].tuning: belongs to a policy of ours or an ablation, not to {entry.policy!r}; "
                    "leave it out"
                )
            found.setdefault(contestant.name, contestant)
        return list(found.values())

    @property
    def independent(self) -> list[Contestant]:
        """Those that can run at once; ``best-by-load`` needs the runs of the fixed depths first."""
        return [contestant for contestant in self.contestants if contestant.spec["kind"] != BY_LOAD]

    @property
    def tabled(self) -> list[Contestant]:
        """``best-by-load``, if it takes part."""
        return [contestant for contestant in self.contestants if contestant.spec["kind"] == BY_LOAD]

    def settings(self) -> Iterator[tuple[_Part, Load, _Part]]:
        """Every trace, load and machine that all policies meet together."""
        for trace in self.traces:
            for machine in self.machines:
                for load in self.loads:
                    yield trace, load, machine

    def cells(self, contestants: Sequence[Contestant]) -> list[Cell]:
        """The cells of these policies, in the order of settings, policies and seeds."""
        return [
            self.cell(contestant, trace, load, machine, seed)
            for trace, load, machine in self.settings()
            for contestant in contestants
            for seed in self.experiment.seeds
        ]

    def cell(self, contestant: Contestant, trace: _Part, load: Load, machine: _Part, seed: int) -> Cell:
        """One cell."""
        made_from = canonical({
            "schema": SCHEMA,
            "code": code_digest(),
            "libraries": library_versions(),
            "policy_code": policy_digest(policy_of(contestant.spec)),
            "policy": contestant.spec,
            "K": self.experiment.max_depth,
            "trace": trace.spec,
            "split": self.experiment.split.model_dump(mode="json"),
            "arrivals": load.spec,
            "run": load.run,
            "machine": machine.spec,
            "service_level": self.experiment.service_level.model_dump(mode="json"),
            "seed": seed,
        })  # fmt: skip
        files = tuple((str(part.spec["digest"]), part.path) for part in (trace, load, machine) if "digest" in part.spec)
        return Cell(contestant.name, trace.name, load.name, machine.name, seed, made_from, files)


def _trace(entry: TraceEntry) -> _Part:
    if isinstance(entry, RecordedTrace):
        spec = {"digest": _digest(entry.file), "categories": entry.categories and list(entry.categories)}
        return _Part(entry_name(entry), spec, str(entry.file))
    return _Part(entry_name(entry), {"synthetic": entry.synthetic.model_dump(mode="json")})


def _machine(entry: MachineEntry) -> _Part:
    changes = {key: value for key in _CHANGES if (value := getattr(entry, key)) is not None}
    name = entry_name(entry)
    if isinstance(entry, InlineMachine):
        inline = entry.model_dump(mode="json", include={"name", "source", "verify", "draft"})
        model = inline["verify"].get("model")
        if isinstance(model, str):  # a file, of which the content counts and not the place
            inline["verify"]["model"] = ""
            return _Part(name, {"inline": inline, "changes": changes, "digest": _digest(Path(model))}, model)
        return _Part(name, {"inline": inline, "changes": changes})
    digest = _digest(entry.file)
    try:  # a roofline's model stands in a file of its own
        model = json.loads(entry.file.read_text(encoding="utf-8"))["verify"]["model"]
    except (ValueError, KeyError, TypeError):
        model = None
    spec: dict[str, Any] = {"digest": digest, "changes": changes | {"name": name}}
    if isinstance(model, str):
        spec["model"] = _digest(entry.file.parent / model)
    return _Part(name, spec, str(entry.file))


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise ValueError(f"{path}: can't be read: {error.strerror or error}") from error


def _loads(entry: Any, experiment: Experiment) -> Iterator[Load]:
    run = experiment.run.bounded_by(entry).model_dump(mode="json")
    named = entry.name
    if isinstance(entry, ClosedArrivals):
        for level in entry.levels:
            spec = {"kind": "closed", "concurrency": level, "random_offsets": entry.random_offsets}
            yield Load(f"{named} {level}" if named else str(level), spec, run, level)
    elif isinstance(entry, PoissonArrivals):
        for rate in entry.rates:
            name = f"{named} {rate:g}/s" if named else f"Poisson {rate:g}/s"
            yield Load(name, {"kind": "poisson", "requests_per_second": rate}, run)
    elif isinstance(entry, BurstArrivals):
        bursts = entry.bursts
        name = f"bursts {bursts.on_requests_per_second:g}/{bursts.off_requests_per_second:g} per s"
        yield Load(named or name, {"kind": "bursts", **bursts.model_dump()}, run)
    elif isinstance(entry, SwitchingArrivals):
        levels = list(entry.switching.levels)
        spec = {"kind": "switching", "levels": levels, "seconds_each": entry.switching.seconds_each}
        yield Load(named or "switching " + "/".join(map(str, levels)), spec, run)
    elif isinstance(entry, AzureRequests):
        spec = {"kind": "azure", "digest": _digest(entry.azure), "time_scale": entry.time_scale,
                "max_context_tokens": entry.max_context_tokens}  # fmt: skip
        yield Load(named or entry.azure.stem, spec, run, path=str(entry.azure))
