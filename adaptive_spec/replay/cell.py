"""Cell: one run of a comparison, described by plain data, so that any worker gets the same numbers from it."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import adaptive_spec
from adaptive_spec.policy import policy_class
from adaptive_spec.replay.arrivals import Arrivals, ClosedConcurrency, OnOffBursts, Poisson, SwitchingConcurrency
from adaptive_spec.replay.azure_arrivals import AzureArrivals
from adaptive_spec.replay.cell_record import Calibration, Course, Strips, TextShares
from adaptive_spec.replay.contestant import controller_factory
from adaptive_spec.replay.experiment_entries import SyntheticSettings
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.machine_file import MachineFile
from adaptive_spec.replay.metrics import RunMetrics, ServiceLevel, note_first_token
from adaptive_spec.replay.simulator import Shift, Simulation
from adaptive_spec.replay.synthetic import DSPARK_GLM_5_2, SyntheticAcceptance, constant_acceptance
from adaptive_spec.replay.trace import Trace

if TYPE_CHECKING:
    from adaptive_spec.experiments.baselines import Offline

SCHEMA = 1
_CODE = ("*.py", "cost/*.py", "serving/*.py", "replay/*.py")
_CODE_BESIDE = ("policies", "experiments.baselines", "experiments.ablations")
_LIBRARIES = ("numpy", "scikit-learn")
_DSPARK_SOURCE = "survival of a DSpark draft on GLM-5.2, vLLM pull request 52992"


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes
    ----------
    policy, trace, arrivals, machine : str
        What these are called; no part of the key.
    seed : int
    made_from : str
        JSON: everything that its numbers depend on, files by their digests.
    files : tuple of (str, str)
        Digest and path of each file.
    """

    policy: str
    trace: str
    arrivals: str
    machine: str
    seed: int
    made_from: str
    files: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Hash of what it is made from: it names the finished cell."""
        return hashlib.sha256(self.made_from.encode()).hexdigest()[:24]

    def __str__(self) -> str:
        return f"{self.policy} on {self.trace}, {self.arrivals}, {self.machine}, seed {self.seed}"


def canonical(data: Any) -> str:
    """Plain data as JSON, the same for equal data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Digest of the code that a run's numbers come from: figures of two versions are never mixed."""
    root = Path(adaptive_spec.__file__).parent
    files = {path for pattern in _CODE for path in root.glob(pattern)}
    for name in _CODE_BESIDE:
        module = __import__(f"adaptive_spec.{name}", fromlist=["__file__"])
        path = Path(str(module.__file__))
        files |= set(path.parent.glob("*.py")) if path.name == "__init__.py" else {path}
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: (path.parent.name, path.name)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


@lru_cache
def policy_digest(name: str) -> str:
    """Digest of the module that a policy's class stands in, which may be of another package; empty for no name."""
    source = inspect.getsourcefile(policy_class(name)) if name else None
    return file_digest(Path(source)) if source else ""


@lru_cache(maxsize=1)
def library_versions() -> dict[str, str]:
    """Of the libraries that numbers come from; one that isn't installed is left out."""
    found = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def file_digest(path: Path) -> str:
    """Digest of a file's bytes; OSError if it can't be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24]


# -------------------------------------------------------------------- what a cell runs on


@dataclass(frozen=True, eq=False)
class Texts:
    """A trace, split by text.

    Attributes
    ----------
    training, served : Trace
    offline : Offline
        What peers may be tuned on.
    shifts : tuple of Shift
    """

    training: Trace
    served: Trace
    offline: Offline
    shifts: tuple[Shift, ...] = ()


@lru_cache(maxsize=4)
def load_texts(spec: str, path: str, max_depth: int) -> Texts:
    """The texts of a cell's trace, kept for the next cells of this process.

    Parameters
    ----------
    spec : str
        JSON of its settings and its split.
    path : str
        Of a recorded one's file.
    max_depth : int
        K.

    Raises
    ------
    ValueError
        If the trace can't serve.
    """
    from adaptive_spec.experiments.baselines import Offline

    settings = json.loads(spec)
    split = settings["split"]
    shifts: tuple[Shift, ...] = ()
    if "synthetic" in settings:
        entry = SyntheticSettings.model_validate_json(json.dumps(settings["synthetic"]), strict=True)
        acceptance = _acceptance(entry, entry, max_depth)
        trace = acceptance.trace(
            entry.sequences, entry.output_tokens, prompt_tokens=entry.prompt_tokens, seed=entry.seed
        )
    else:
        trace = Trace.load(path)
        if settings.get("categories"):
            wanted = settings["categories"]
            present = sorted(set(trace.category.tolist()))
            if missing := [name for name in wanted if name not in present]:
                raise ValueError(f"{path}: no text is of the category {missing[0]!r}; there are {', '.join(present)}")
            trace = trace.select(_mask(trace, wanted))
    if trace.max_depth < max_depth:
        raise ValueError(
            f"{path or 'the synthetic trace'}: recorded to K = {trace.max_depth}, but max_depth is {max_depth}; lower "
            "it, or record deeper"
        )
    training, served = trace.split(split["training_share"], split["seed"])
    if "synthetic" in settings and entry.shift is not None:
        after = _acceptance(entry.shift, entry, max_depth)
        shifts = (Shift(entry.shift.step, after.shifted(served, entry.seed)),)
    return Texts(training, served, Offline(training, served, max_depth), shifts)


def _mask(trace: Trace, categories: list[str]) -> Any:
    return [index for index, name in enumerate(trace.category.tolist()) if name in categories]


def _acceptance(wanted: Any, entry: SyntheticSettings, max_depth: int) -> SyntheticAcceptance:
    if wanted.acceptance is not None:
        survival, source = constant_acceptance(wanted.acceptance, max_depth), f"acceptance {wanted.acceptance:g}"
    elif isinstance(wanted.survival, str):
        survival, source = DSPARK_GLM_5_2[:max_depth], _DSPARK_SOURCE
    else:
        survival, source = tuple(wanted.survival[:max_depth]), "survival given in the experiment file"
    if len(survival) < max_depth:
        raise ValueError(f"survival has {len(survival)} positions, but max_depth is {max_depth}; give as many")
    return SyntheticAcceptance(survival, source, entry.heterogeneity, entry.wander, entry.persistence)


def make_machine(spec: Mapping[str, Any], path: str) -> Machine:
    """The machine of a cell; MachineError or ValueError if it isn't a good one."""
    if "inline" in spec:
        inline = spec["inline"]
        if path:  # of the model's config.json
            inline = {**inline, "verify": {**inline["verify"], "model": str(Path(path).resolve())}}
        machine = MachineFile.model_validate(inline).machine(Path(path))
    else:
        machine = Machine.load(path)
    changes = dict(spec["changes"])
    share, idle = changes.pop("draft_share", None), changes.pop("draft_idle_share", None)
    machine = replace(machine, **changes)
    return machine if share is None else machine.with_sequential_draft(share, idle or 0.0)


def make_arrivals(spec: Mapping[str, Any], path: str) -> Arrivals:
    """The arrivals of a cell."""
    kind, given = spec["kind"], {key: value for key, value in spec.items() if key not in ("kind", "digest")}
    if kind == "closed":
        return ClosedConcurrency(**given)
    if kind == "poisson":
        return Poisson(**given)
    if kind == "bursts":
        return OnOffBursts(**given)
    if kind == "switching":
        return SwitchingConcurrency(tuple(given["levels"]), given["seconds_each"])
    return AzureArrivals(path, **given)


# -------------------------------------------------------------------- the run


def run_cell(made_from: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Run a cell.

    Parameters
    ----------
    made_from : str
        See :class:`Cell`.
    files : mapping of str to str
        Paths, by digest.

    Returns
    -------
    dict
        ``row``: numbers by name; ``texts``, ``course``, ``loads``, ``calibration``, ``strips``: see
        :mod:`.cell_record`; ``policy``, ``trace_told``, ``synthetic``, ``source``: words.
    """
    spec = json.loads(made_from)
    given = spec["trace"]
    texts = load_texts(canonical({**given, "split": spec["split"]}), files.get(given.get("digest"), ""), spec["K"])
    machine = make_machine(spec["machine"], files.get(spec["machine"].get("digest"), ""))
    arrivals = make_arrivals(spec["arrivals"], files.get(spec["arrivals"].get("digest"), ""))
    policy = controller_factory(spec["policy"], texts.offline)
    simulation = Simulation(texts.served, policy, arrivals, machine, seed=spec["seed"], shifts=texts.shifts)
    promised = {key: value for key, value in spec["service_level"].items() if value is not None}
    metrics = RunMetrics(machine.draft_cost, machine.parameters, ServiceLevel(**promised))
    calibrated = spec["policy"]["kind"] in ("tuned", "ablation")
    record = _play(simulation, metrics, spec["run"], Calibration(spec["K"]) if calibrated else None)
    faults = simulation.controller.fallback.faults
    row = metrics.summary() | {
        "off_saving_seconds": metrics.off_saving_seconds,
        "faults": sum(faults.values()),
        "run_steps": simulation.steps,
        "run_seconds": simulation.clock.now,
    }
    return {
        "row": row,
        "loads": {str(number): asdict(bucket) for number, bucket in sorted(metrics.by_load.items())},
        "policy": repr(simulation.controller.policy),
        "trace_told": texts.served.describe(),
        "synthetic": texts.served.info.synthetic,
        "source": machine.source,
        **record,
    }


def _play(
    simulation: Simulation, metrics: RunMetrics, bound: Mapping[str, Any], calibration: Calibration | None
) -> dict[str, Any]:
    """Take a run to its bound; what is counted begins where the warm-up's share of the bound is over."""
    clock, runner, trace = simulation.clock, simulation.runner, simulation.trace
    shares, course, strips = TextShares(trace), Course(), Strips(trace)
    name = next((key for key in ("steps", "tokens", "seconds") if bound.get(key) is not None), None)
    end = float("inf") if name is None else float(bound[name])
    warm = 0.0 if name is None else bound["warmup"] * end
    if name == "steps":
        warm = float(int(warm))
    offered = trace.offered.astype(np.int64)
    tokens = 0
    began: float | None = None

    def stands() -> float:
        return float({"steps": simulation.steps, "tokens": tokens}.get(name or "", clock.now))

    while stands() < end:
        before = clock.now
        counted = stands() >= warm
        if counted and began is None:
            began = before
        report = simulation.step()
        if report is None:
            break
        tokens += report.num_tokens
        course.add(simulation.steps, tokens, clock.now)
        if not counted:
            for sequence in report.started:
                note_first_token(sequence, clock.now)
            continue
        metrics.observe(report, clock.now)
        shares.add(report, runner.present_places, report.time.step_seconds)
        strips.add(report)
        if calibration is not None and report.sequences:
            calibration.add(report, runner.present_runs, offered[runner.present_places])
    metrics.observe_unfinished(simulation.unfinished, clock.now)
    metrics.seconds = clock.now - began if began is not None else 0.0
    return {
        "texts": shares.record(),
        "course": course.record(),
        "strips": strips.record(),
        "calibration": None if calibration is None else calibration.record(),
    }
