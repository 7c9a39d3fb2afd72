"""TuningConfig: everything that one deployment sets, to and from its YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from adaptive_spec.cost.hardware import hardware
from adaptive_spec.evidence import EVIDENCE
from adaptive_spec.policy_config import PolicyConfig
from adaptive_spec.tuning_file import InconsistentError, Problem, Section, TuningError, TuningFile, nearest, write_yaml
from adaptive_spec.upkeep_config import LearnedConfig, MetricsConfig, ReloadConfig

__all__ = [
    "AcceptanceConfig",
    "CostConfig",
    "ExplorationConfig",
    "FallbackConfig",
    "GuardConfig",
    "LearnedConfig",
    "MetricsConfig",
    "OnlineCostConfig",
    "PolicyConfig",
    "ReloadConfig",
    "TuningConfig",
    "TuningError",
    "WatchdogConfig",
]

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
OpenProbability = Annotated[float, Field(gt=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
FilePath = Annotated[Path, Field(strict=False)]


class OnlineCostConfig(Section):
    """Correction of the cost model from observed steps.

    Attributes
    ----------
    enabled : bool
        Whether observed steps correct the cost model.
    memory_steps : float
        Steps over which the curve may change by its noise; more is steadier, less follows faster.
    """

    enabled: bool = True
    memory_steps: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 100.0


class CostConfig(Section):
    """Where the seconds of a step come from.

    Attributes
    ----------
    source : str
        ``profile``: timed on the engine when it starts; ``file``: a profile that was saved before;
        ``roofline``: worked out from the machine and the model.
    file : path
        The saved profile, for ``source: file``.
    hardware : str
        Entry of the hardware table, for ``source: roofline``.
    geometry_file : path
        The model's ``config.json``, for ``source: roofline``; null takes the loaded model's.
    dtype : str
        Type of the weights and the arithmetic, for ``source: roofline``.
    smoothing_share : float
        Half-width of the rounded knee between memory and compute, as a share of the ridge point; 0 is sharp.
    interpolation : str
        Between the points of ``source: profile``: ``linear``, or ``staircase`` (the next larger point, as where an
        engine pads to captured graphs).
    """

    source: Literal["profile", "roofline", "file"] = "profile"
    file: FilePath | None = None
    hardware: str | None = None
    geometry_file: FilePath | None = None
    dtype: str | None = None
    smoothing_share: Probability = 0.0
    interpolation: Literal["linear", "staircase"] = "linear"
    online: OnlineCostConfig = OnlineCostConfig()

    @model_validator(mode="after")
    def _belong_together(self) -> CostConfig:
        owner = {
            "file": ("file",),
            "hardware": ("roofline",),
            "geometry_file": ("roofline",),
            "dtype": ("roofline",),
            "smoothing_share": ("roofline",),
            "interpolation": ("profile",),
        }
        problems = [
            Problem(
                ("cost", key),
                f"belongs to source: {' or '.join(sources)}, but the source is {self.source}; leave it out",
            )
            for key, sources in owner.items()
            if self.source not in sources and getattr(self, key) != type(self).model_fields[key].default
        ]
        for source, key in (("file", "file"), ("roofline", "hardware")):
            if self.source == source and getattr(self, key) is None:
                problems.append(Problem(("cost", "source"), f"source: {source} needs the key {key} beside it"))
        if self.source == "roofline" and self.hardware is not None:
            try:
                machine = hardware(self.hardware)
            except KeyError as error:
                problems.append(Problem(("cost", "hardware"), str(error.args[0])))
            else:
                if (dtype := self.dtype or "bfloat16") not in machine.flops_per_second:
                    message = f"{machine.name} has no peak for {dtype}{nearest(dtype, machine.flops_per_second)}"
                    problems.append(Problem(("cost", "dtype"), message))
        if problems:
            raise InconsistentError(problems)
        return self


class AcceptanceConfig(Section):
    """What a draft is worth before and while it is observed; see :mod:`adaptive_spec.acceptance`.

    Attributes
    ----------
    prior : float
        Acceptance that is assumed of a draft never seen; optimistic, since who stops drafting stops learning.
    prior_weight : float
        Observations that the prior counts for.
    half_life_steps : float
        Steps after which an unobserved cell is half back at its prior.
    correlation : float
        Correlation of the observations that one step makes of one cell.
    forgetting : float
        Factor per step on what is known of a sequence; 1 forgets nothing.
    sequence_effect : bool
        Whether each sequence has a level of its own beside the population's.
    evidence : list of str, optional
        The drafter's evidence features to use; null uses all that it offers, an empty list none.
    """

    prior: OpenProbability = 0.85
    prior_weight: Positive = 20.0
    half_life_steps: Positive = 2000.0
    correlation: Probability = 0.05
    forgetting: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    sequence_effect: bool = True
    evidence: Annotated[tuple[str, ...], Field(strict=False)] | None = None

    @field_validator("evidence")
    @classmethod
    def _known_evidence(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in EVIDENCE:
                raise ValueError(f"no evidence is called {name!r}{nearest(name, EVIDENCE)}")
        if names is not None and len(set(names)) < len(names):
            raise ValueError("an evidence feature is named twice")
        return names


class ExplorationConfig(Section):
    """The one ledger that pays for every probe and every off-step.

    Attributes
    ----------
    enabled : bool
        Whether anything is explored.
    share : float
        The most of the goodput that exploration may cost.
    floor_share : float
        What is spent where all is known and fresh.
    memory_steps : int
        Steps whose earnings the ledger can hold.
    """

    enabled: bool = True
    share: Annotated[float, Field(ge=0.0, le=0.5)] = 0.01
    floor_share: Annotated[float, Field(ge=0.0, le=0.5)] = 0.001
    memory_steps: Count = 2000

    @model_validator(mode="after")
    def _floor_below_share(self) -> ExplorationConfig:
        if self.floor_share > self.share:
            message = f"{self.floor_share} is over exploration.share {self.share}; lower it or raise the share"
            raise InconsistentError([Problem(("exploration", "floor_share"), message)])
        return self


class GuardConfig(Section):
    """Never slower than off; see :mod:`adaptive_spec.guard`.

    Attributes
    ----------
    enabled : bool
        Whether the guard may switch speculation off.
    margin : float
        Share of goodput by which speculation may fall behind before it counts as slower.
    error_rate : float
        Chance of a wrong switch per run of the test.
    block_steps : int
        Speculating steps that one comparison pools.
    max_switches_per_minute : int
        Changes of state allowed in any minute.
    """

    enabled: bool = True
    margin: OpenProbability = 0.01
    error_rate: OpenProbability = 0.01
    block_steps: Count = 8
    max_switches_per_minute: Annotated[int, Field(ge=2)] = 6


class WatchdogConfig(Section):
    """Sees that the population's acceptance has collapsed; see :mod:`adaptive_spec.guard`.

    Attributes
    ----------
    enabled : bool
        Whether it watches.
    threshold : float
        Log-likelihood ratio at which it trips; at a third of it, it recovers.
    correlation : float
        Correlation of the drafts of one step.
    memory_drafts : int
        First drafts over which the usual acceptance is averaged.
    """

    enabled: bool = True
    threshold: Positive = 10.0
    correlation: Probability = 0.05
    memory_drafts: Count = 5000


class FallbackConfig(Section):
    """What happens when a policy is faulty.

    Attributes
    ----------
    depth : int
        Depth of every sequence in the step that a faulty policy would have decided.
    time_budget_ms : float
        Milliseconds after which a decision counts as a fault.
    bench_after_faults : int
        Faults in a row after which the policy is benched.
    retry_after_steps : int
        Steps after which a benched policy is tried again.
    """

    depth: Annotated[int, Field(ge=0)] = 0
    time_budget_ms: Positive = 20.0
    bench_after_faults: Count = 5
    retry_after_steps: Count = 1000


class TuningConfig(Section):
    """The settings of one deployment.

    Attributes
    ----------
    mode : str
        ``on``; ``shadow``: decides and reports, but leaves the engine's own depth; ``off``: depth 0 for every
        sequence, whatever the policy.
    share : float
        Share of the requests that are adapted, chosen by their ids; the others keep the engine's own depth.
    max_depth : int
        K: the most draft tokens of one sequence in one step.
    seed : int
        Seed of every random choice.
    policy, cost, acceptance, exploration, guard, watchdog, fallback, learned, metrics, reload
        The sections; see their classes.

    Raises
    ------
    pydantic.ValidationError
        (a ValueError) from the constructor; :meth:`load` and :meth:`parse` raise :class:`TuningError`.
    """

    mode: Literal["on", "shadow", "off"] = "on"
    share: Probability = 1.0
    max_depth: Annotated[int, Field(ge=1, le=64)] = 8
    seed: Annotated[int, Field(ge=0)] = 0
    policy: PolicyConfig = PolicyConfig()
    cost: CostConfig = CostConfig()
    acceptance: AcceptanceConfig = AcceptanceConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    guard: GuardConfig = GuardConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    fallback: FallbackConfig = FallbackConfig()
    learned: LearnedConfig = LearnedConfig()
    metrics: MetricsConfig = MetricsConfig()
    reload: ReloadConfig = ReloadConfig()

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_1_1_words(cls, value: Any) -> Any:
        """Other YAML readers take the words on and off for booleans."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _possible(self) -> TuningConfig:
        self._check_depths(self.max_depth)
        return self

    def _check_depths(self, max_depth: int) -> None:
        problems = self.policy.build(max_depth, self.seed)[1]
        if self.fallback.depth > max_depth:
            message = f"{self.fallback.depth} is over max_depth {max_depth}; lower it or raise max_depth"
            problems.append(Problem(("fallback", "depth"), message, depends=("max_depth",)))
        if problems:
            raise InconsistentError(problems)

    def with_max_depth(self, max_depth: int) -> TuningConfig:
        """Return the same tuning with another `max_depth`.

        Raises
        ------
        InconsistentError
            If other settings name depths beyond it.
        """
        self._check_depths(max_depth)
        return self.model_copy(update={"max_depth": max_depth})

    @classmethod
    def load(cls, path: str | Path) -> TuningConfig:
        """Read a deployment's YAML file.

        Raises
        ------
        TuningError
            One line for each thing that is wrong: file, line, key, what was wrong and what would be right. An empty
            file is wrong, too: after it was cut short, it isn't to mean the defaults.
        """
        file = TuningFile.read(path)
        file.refuse_empty()
        return file.validate(cls)

    @classmethod
    def parse(cls, text: str, name: str = "tuning") -> TuningConfig:
        """Read YAML text; errors call it `name`, otherwise as :meth:`load`. Empty text is the defaults."""
        return TuningFile(text, name).validate(cls)

    def dump(self) -> str:
        """Return the whole tuning as YAML text, which :meth:`parse` reads back as an equal object."""
        return write_yaml(self.model_dump(mode="json"))
