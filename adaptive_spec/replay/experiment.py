"""Experiment: what is to be compared, read from a YAML file or from a command line's flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError, field_validator, model_validator

from adaptive_spec.config import TuningConfig
from adaptive_spec.replay.experiment_entries import (
    ARRIVALS,
    MACHINES,
    TRACES,
    ArrivalEntry,
    AzureRequests,
    Count,
    InlineMachine,
    MachineEntry,
    Positive,
    Share,
    TraceEntry,
    entry_problems,
    parse_entries,
)
from adaptive_spec.replay.machine_file import CurveFile, RooflineFile
from adaptive_spec.tuning_file import InconsistentError, Location, Problem, Section, TuningFile

ALL_FIXED = "all"


AsPlain = PlainSerializer(lambda entries: [entry.model_dump(mode="json") for entry in entries], when_used="json")


class RunEntry(Section):
    """How long every run lasts, and what of it is not counted.

    Attributes
    ----------
    steps : int, optional
    tokens : int, optional
        Output tokens. A run of so many tokens meets the same texts whatever the policy; one of so many steps
        meets more of them under a faster policy.
    seconds : float, optional
        Of the virtual clock: for open arrivals.
    warmup : float
        Share that isn't counted.
    """

    steps: Count | None = None
    tokens: Count | None = None
    seconds: Positive | None = None
    warmup: Share = 0.2

    @model_validator(mode="after")
    def _one_bound(self) -> RunEntry:
        given = [key for key in ("steps", "tokens", "seconds") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"a run is bounded once; leave out {given[1]}, or {given[0]}")
        return self

    def bounded_by(self, entry: ArrivalEntry) -> RunEntry:
        """With the bound of these arrivals, if they have one of their own."""
        own = {key: getattr(entry, key) for key in ("steps", "tokens", "seconds")}
        return self if all(v is None for v in own.values()) else self.model_copy(update=own)

    @property
    def bounded(self) -> bool:
        """Whether it ends."""
        return not (self.steps is None and self.tokens is None and self.seconds is None)


class SplitEntry(Section):
    """How every trace is split by text: peers that train do so on one part, and everybody is scored on the other.

    Attributes
    ----------
    training_share : float
        Of the texts.
    seed : int
    """

    training_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    seed: Annotated[int, Field(ge=0)] = 0


class ServiceEntry(Section):
    """What requests are promised; see :class:`~adaptive_spec.replay.metrics.ServiceLevel`."""

    ttft_seconds: Positive | None = None
    tpot_seconds: Positive | None = None


class BootstrapEntry(Section):
    """The intervals: draws, level, and the seed of the draws; see :mod:`.paired`."""

    draws: Annotated[int, Field(ge=100)] = 2000
    level: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    seed: Annotated[int, Field(ge=0)] = 0


class PolicyEntry(Section):
    """A policy with a name of its own and settings of its own.

    Attributes
    ----------
    name : str
    policy : str
        As in the list of plain names.
    tuning : mapping
        Keys of a tuning file, which replace those of the experiment's `tuning` section by section.
    believed : mapping, optional
        As ``verify`` of a machine: what one of our policies takes every machine's curve for, rightly or not. Its
        online correction, if it is on, learns from there.
    """

    name: str
    policy: str
    tuning: dict[str, Any] = Field(default_factory=dict)
    believed: Annotated[CurveFile | RooflineFile, Field(discriminator="kind")] | None = None

    @model_validator(mode="after")
    def _no_file_beside(self) -> PolicyEntry:
        if isinstance(self.believed, RooflineFile) and isinstance(self.believed.model, str):
            raise ValueError("believed.model is a path; give {parameters: N}, or a measured curve")
        return self


def _policies(items: Any) -> tuple[PolicyEntry, ...]:
    if not isinstance(items, list) or not items:
        raise InconsistentError([Problem(("policies",), "must be a list of at least one policy")])
    entries: list[PolicyEntry] = []
    problems: list[Problem] = []
    for number, item in enumerate(items):
        given = {"name": item, "policy": item} if isinstance(item, str) else item
        if not isinstance(given, dict):
            problems.append(Problem(("policies", number), f"must be a name, or name, policy and tuning, not {item!r}"))
            continue
        try:
            entries.append(PolicyEntry.model_validate_json(json.dumps(given), strict=True))
        except ValidationError as error:
            problems += entry_problems(error, PolicyEntry, ("policies", number))
            continue
        if entries[-1].name in (entry.name for entry in entries[:-1]):
            problems.append(
                Problem(("policies", number), f"{entries[-1].name!r} is there twice; give one another name")
            )
    if problems:
        raise InconsistentError(problems)
    return tuple(entries)


def _set_elsewhere(tuning: Mapping[str, Any], place: Location) -> list[Problem]:
    """Keys of a tuning that an experiment says in another place, where they would be overruled."""
    where = {"policy": "name the policy under policies", "max_depth": "set the experiment's own max_depth"}
    return [Problem((*place, key), f"has no effect here; {where[key]}") for key in where if key in tuning]


class Experiment(Section):
    """What is to be compared: policies x traces x arrivals x machines x seeds.

    Attributes
    ----------
    title, description : str
        Of the report.
    policies : list
        Names, or mappings of name, policy and tuning: ours with their arguments (``roofline-budget:horizon=run``),
        the peers and yardsticks of ``adaptive_spec.experiments.baselines``, the ablations of
        ``adaptive_spec.experiments.ablations``, and ``best-by-load`` (the best uniform depth for each load, in
        hindsight).
    fixed_depths : "all" or list of int
        Fixed depths that are run beside them, 0 always among them: what "the best fixed depth" is chosen from.
    max_depth : int
        K.
    seeds : int or list of int
        A number n means 0..n - 1.
    traces, arrivals, machines : list
        See :mod:`.experiment_entries`.
    run, split, service_level, bootstrap
        See their classes.
    tuning : mapping
        Keys of a tuning file, for all of our policies.
    """

    title: str = "Comparison"
    description: str = ""
    policies: Annotated[tuple[PolicyEntry, ...], PlainValidator(_policies), AsPlain] = ()
    fixed_depths: Any = ALL_FIXED
    max_depth: Annotated[int, Field(ge=1, le=64)] = 8
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)] = (0,)
    traces: Annotated[
        tuple[TraceEntry, ...], PlainValidator(lambda items: parse_entries("traces", items, TRACES)), AsPlain
    ] = ()
    arrivals: Annotated[
        tuple[ArrivalEntry, ...], PlainValidator(lambda items: parse_entries("arrivals", items, ARRIVALS)), AsPlain
    ] = ()
    machines: Annotated[
        tuple[MachineEntry, ...], PlainValidator(lambda items: parse_entries("machines", items, MACHINES)), AsPlain
    ] = ()
    run: RunEntry = RunEntry(steps=2000)
    split: SplitEntry = SplitEntry()
    service_level: ServiceEntry = ServiceEntry()
    bootstrap: BootstrapEntry = BootstrapEntry()
    tuning: dict[str, Any] = Field(default_factory=dict)

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return tuple(range(value))
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        problems = [
            Problem((key,), "must be given: a list of at least one entry")
            for key in ("policies", "traces", "arrivals", "machines")
            if not getattr(self, key)
        ]
        depths = self.fixed_depths
        if depths != ALL_FIXED:
            listed = isinstance(depths, list) and all(isinstance(d, int) and 0 <= d <= self.max_depth for d in depths)
            if not listed:
                message = f"must be {ALL_FIXED!r} or a list of depths 0..{self.max_depth}, not {depths!r}"
                problems.append(Problem(("fixed_depths",), message, depends=("max_depth",)))
        for number, entry in enumerate(self.arrivals):
            if not (self.run.bounded_by(entry).bounded or isinstance(entry, AzureRequests)):
                message = "these arrivals never end; give steps, tokens or seconds here or in run"
                problems.append(Problem(("arrivals", number), message, depends=("run",)))
        for key in ("traces", "machines"):
            names = [entry_name(entry) for entry in getattr(self, key)]
            for number, name in enumerate(names):
                if name in names[:number]:
                    message = f"{name!r} is there twice; give one of them another name"
                    problems.append(Problem((key, number), message))
        problems += _set_elsewhere(self.tuning, ("tuning",))
        for number, policy in enumerate(self.policies):
            problems += _set_elsewhere(policy.tuning, ("policies", number, "tuning"))
        if problems:
            raise InconsistentError(problems)
        return self

    @property
    def depths(self) -> tuple[int, ...]:
        """The fixed depths that are run, 0 among them."""
        if self.fixed_depths == ALL_FIXED:
            return tuple(range(self.max_depth + 1))
        return tuple(sorted({0, *self.fixed_depths}))

    def tuning_of(self, entry: PolicyEntry) -> TuningConfig:
        """The tuning of one of our policies, still with the default policy; ValueError if it isn't a good one."""
        merged = dict(self.tuning)
        for key, value in entry.tuning.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if both else value
        file = TuningFile("", f"tuning of {entry.name}")
        file.data = {**merged, "max_depth": self.max_depth}
        return file.validate(TuningConfig)

    @classmethod
    def load(cls, path: str | Path) -> Experiment:
        """Read an experiment file; paths in it are relative to its folder.

        Raises
        ------
        TuningError
            One line for each thing that is wrong: file, line, key, what was wrong and what would be right.
        """
        return TuningFile.read(path).validate(cls).beside(Path(path).parent)

    @classmethod
    def parse(cls, data: Mapping[str, Any], name: str = "experiment") -> Experiment:
        """Read plain data; errors call it `name`, otherwise as :meth:`load`."""
        file = TuningFile("", name)
        file.data = dict(data)
        return file.validate(cls)

    def beside(self, folder: Path) -> Experiment:
        """With all paths relative to a folder."""
        changed: dict[str, Any] = {}
        for key, field in (("traces", "file"), ("machines", "file"), ("arrivals", "azure")):
            changed[key] = tuple(
                entry.model_copy(update={field: folder / getattr(entry, field)}) if hasattr(entry, field) else entry
                for entry in getattr(self, key)
            )
        changed["machines"] = tuple(_model_beside(entry, folder) for entry in changed["machines"])
        return self.model_copy(update=changed)

    def with_azure(self, path: Path) -> Experiment:
        """With this file of arrivals in the place of the one that it names; ValueError if it names none."""
        arrivals = tuple(
            entry.model_copy(update={"azure": path}) if isinstance(entry, AzureRequests) else entry
            for entry in self.arrivals
        )
        if not any(isinstance(entry, AzureRequests) for entry in arrivals):
            raise ValueError(f"{self.title!r} has no arrivals in Azure's format that {path} could stand for")
        return self.model_copy(update={"arrivals": arrivals})


def _model_beside(entry: MachineEntry, folder: Path) -> MachineEntry:
    """With the path of a roofline's model relative to a folder."""
    if (
        isinstance(entry, InlineMachine)
        and isinstance(entry.verify, RooflineFile)
        and isinstance(entry.verify.model, str)
    ):
        verify = entry.verify.model_copy(update={"model": str(folder / entry.verify.model)})
        return entry.model_copy(update={"verify": verify})
    return entry


def entry_name(entry: TraceEntry | MachineEntry) -> str:
    """What a trace or a machine is called: its name, or that of its file."""
    if entry.name is not None:
        return entry.name
    return Path(entry.file).stem if hasattr(entry, "file") else "synthetic"
