"""The entries of an experiment file: traces, arrivals and machines, as a user writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from adaptive_spec.replay.machine_file import CurveFile, DraftFile, RooflineFile
from adaptive_spec.tuning_file import InconsistentError, Location, Problem, Section, nearest, sentence

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
FilePath = Annotated[Path, Field(strict=False)]
Numbers = Annotated[tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...], Field(strict=False, min_length=1)]

DSPARK = "dspark-glm-5.2"


# -------------------------------------------------------------------- traces


class AcceptanceEntry(Section):
    """Synthetic survival: of a published drafter, of one acceptance for every draft, or by position.

    Attributes
    ----------
    survival : str or list of float, optional
        ``dspark-glm-5.2``, or the chance that draft k and all before it are accepted, for k = 1..K.
    acceptance : float, optional
        The same chance for every draft, in the place of `survival`.
    """

    survival: Literal["dspark-glm-5.2"] | Numbers | None = None
    acceptance: Annotated[float, Field(ge=0.0, le=1.0)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> AcceptanceEntry:
        if (self.survival is None) == (self.acceptance is None):
            raise ValueError(f"give either survival ({DSPARK}, or a list) or acceptance (one chance for every draft)")
        return self


class ShiftEntry(AcceptanceEntry):
    """From a step on, all sequences have another acceptance, and nobody is told.

    Attributes
    ----------
    step : int
        Steps after which it happens.
    """

    step: Count


class SyntheticSettings(AcceptanceEntry):
    """Generated texts; see :class:`~adaptive_spec.replay.synthetic.SyntheticAcceptance`."""

    sequences: Count = 64
    output_tokens: Annotated[int, Field(ge=2)] = 200
    prompt_tokens: Count = 128
    heterogeneity: NotNegative = 0.7
    wander: NotNegative = 0.5
    persistence: Share = 0.9
    seed: Annotated[int, Field(ge=0)] = 0
    shift: ShiftEntry | None = None


class SyntheticTrace(Section):
    """``synthetic: {survival: dspark-glm-5.2, sequences: 64}``."""

    synthetic: SyntheticSettings
    name: str | None = None


class RecordedTrace(Section):
    """``file: traces/lookup.parquet``, written by ``adaptive-spec record``.

    Attributes
    ----------
    categories : list of str, optional
        Those kinds of prompt alone.
    """

    file: FilePath
    name: str | None = None
    categories: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None


# -------------------------------------------------------------------- arrivals


class _Bounded(Section):
    """Arrivals, and how long a run under them lasts where it differs from the experiment's `run`."""

    name: str | None = None
    steps: Count | None = None
    tokens: Count | None = None
    seconds: Positive | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> _Bounded:
        given = [key for key in ("steps", "tokens", "seconds") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"a run is bounded once; leave out {given[1]}, or {given[0]}")
        return self


class ClosedArrivals(_Bounded):
    """``closed: [1, 8, 64]``: constant numbers of requests, each a load of its own."""

    closed: Count | Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
    random_offsets: bool = True

    @property
    def levels(self) -> tuple[int, ...]:
        """The numbers of requests."""
        return (self.closed,) if isinstance(self.closed, int) else self.closed


class PoissonArrivals(_Bounded):
    """``poisson: 4.5``: requests a second; several in a list."""

    poisson: Positive | Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)]

    @property
    def rates(self) -> tuple[float, ...]:
        """Requests per second."""
        return (self.poisson,) if isinstance(self.poisson, float) else self.poisson


class Bursts(Section):
    """A rate that switches; see :class:`~adaptive_spec.replay.arrivals.OnOffBursts`."""

    on_requests_per_second: Positive
    off_requests_per_second: NotNegative = 0.0
    mean_on_seconds: Positive
    mean_off_seconds: Positive


class BurstArrivals(_Bounded):
    """``bursts: {on_requests_per_second: 20, mean_on_seconds: 2, mean_off_seconds: 8}``."""

    bursts: Bursts


class Switching(Section):
    """See :class:`~adaptive_spec.replay.arrivals.SwitchingConcurrency`."""

    levels: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
    seconds_each: Positive


class SwitchingArrivals(_Bounded):
    """``switching: {levels: [8, 64], seconds_each: 2}``."""

    switching: Switching


class AzureRequests(_Bounded):
    """``azure: azure_llm_2023_code.csv``; it may end by itself, so it needs no bound."""

    azure: FilePath
    time_scale: Positive = 1.0
    max_context_tokens: Count | None = None


ArrivalEntry = ClosedArrivals | PoissonArrivals | BurstArrivals | SwitchingArrivals | AzureRequests
ARRIVALS: dict[str, type[ArrivalEntry]] = {
    "closed": ClosedArrivals,
    "poisson": PoissonArrivals,
    "bursts": BurstArrivals,
    "switching": SwitchingArrivals,
    "azure": AzureRequests,
}


# -------------------------------------------------------------------- machines


class _MachineChanges(Section):
    """What is set otherwise than in the machine's file.

    Attributes
    ----------
    draft_share, draft_idle_share : float, optional
        A drafter that takes this share of a pass over one position a sequence for each depth; Dr(0) as such a share.
    """

    noise: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    num_kv_blocks: Count | None = None
    prefill_elsewhere: bool | None = None
    draft_share: NotNegative | None = None
    draft_idle_share: NotNegative | None = None

    @model_validator(mode="after")
    def _idle_of_a_draft(self) -> _MachineChanges:
        if self.draft_idle_share is not None and self.draft_share is None:
            raise ValueError("draft_idle_share belongs to draft_share; give both, or neither")
        return self


class MachineFromFile(_MachineChanges):
    """``file: machines/b300.json``; see :class:`~adaptive_spec.replay.machine_file.MachineFile`."""

    file: FilePath
    name: str | None = None


class InlineMachine(_MachineChanges):
    """A machine's own keys, beside ``verify``, in the place of a file."""

    name: str
    source: str = "given in the experiment file"
    verify: Annotated[CurveFile | RooflineFile, Field(discriminator="kind")]
    draft: DraftFile = DraftFile()


TraceEntry = RecordedTrace | SyntheticTrace
MachineEntry = MachineFromFile | InlineMachine
TRACES: dict[str, type[TraceEntry]] = {"file": RecordedTrace, "synthetic": SyntheticTrace}
MACHINES: dict[str, type[MachineEntry]] = {"file": MachineFromFile, "verify": InlineMachine}

Entry = TypeVar("Entry", bound=Section)


def parse_entries(key: str, items: Any, kinds: dict[str, type[Entry]]) -> tuple[Entry, ...]:
    """Read a list of entries, of each of which one key says what it is.

    Raises
    ------
    InconsistentError
        With everything that is wrong, each with its place.
    """
    if not isinstance(items, list) or not items:
        raise InconsistentError([Problem((key,), f"must be a list of at least one entry, each with {_one_of(kinds)}")])
    entries: list[Entry] = []
    problems: list[Problem] = []
    for number, item in enumerate(items):
        found = [word for word in kinds if isinstance(item, dict) and word in item]
        if len(found) != 1:
            problems.append(Problem((key, number), f"an entry has one of the keys {_one_of(kinds)}, not {_told(item)}"))
            continue
        try:
            entries.append(kinds[found[0]].model_validate_json(json.dumps(item), strict=True))
        except ValidationError as error:
            problems += entry_problems(error, kinds[found[0]], (key, number))
    if problems:
        raise InconsistentError(problems)
    return tuple(entries)


def entry_problems(error: ValidationError, model: type[Section], place: Location) -> list[Problem]:
    """What pydantic found in one entry, in a user's words; of alternatives for one value it is told once."""
    problems: dict[Location, Problem] = {}
    for item in error.errors():
        fields: Any = model.model_fields
        inner: list[str | int] = []
        for part in item["loc"]:
            if not inner or isinstance(part, int) or part in fields or item["type"] in ("extra_forbidden", "missing"):
                inner.append(part)
            section = fields.get(part).annotation if isinstance(part, str) and part in fields else None
            if section is not None:
                fields = getattr(section, "model_fields", getattr(_optional(section), "model_fields", {}))
        location = (*place, *inner)
        if item["type"] == "extra_forbidden":
            said = "unknown key" + (nearest(str(item["loc"][-1]), fields) if fields else "; leave it out")
        else:
            said = sentence(item)
        problems.setdefault(location, Problem(location, said))
    return list(problems.values())


def _optional(annotation: Any) -> Any:
    """The section of an annotation `Section | None`."""
    return next((part for part in getattr(annotation, "__args__", ()) if hasattr(part, "model_fields")), None)


def _one_of(kinds: Sequence[str] | dict[str, Any]) -> str:
    words = list(kinds)
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def _told(item: Any) -> str:
    return "the keys " + ", ".join(map(str, item)) if isinstance(item, dict) else repr(item)
