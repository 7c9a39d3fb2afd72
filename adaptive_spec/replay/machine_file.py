"""MachineFile: the JSON form of a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adaptive_spec.cost import CurveCost, DraftCost, ModelGeometry, Profile, Roofline, hardware
from adaptive_spec.replay.machine import Machine


class MachineError(ValueError):
    """A machine file that can't be used; one line that names the file, and each key with what is wrong."""


Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Table = Annotated[Mapping[int, Milliseconds], Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CurveFile(_Part):
    """A measured curve: milliseconds of a pass by its positions.

    `interpolation` and `staircase_until` as in :class:`~adaptive_spec.cost.profile.Profile`, and so are
    `ms_per_context_token` (for each KV token of a pass) and `ms_per_attention_pair` (for each position and KV token
    that it attends to), in milliseconds.
    """

    kind: Literal["curve"]
    ms_by_positions: Table
    interpolation: Literal["staircase", "linear"] = "staircase"
    staircase_until: Count | None = None
    ms_per_context_token: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    ms_per_attention_pair: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def cost(self, folder: Path, draft_cost: DraftCost) -> CurveCost:
        """The cost that it describes."""
        points = sorted(self.ms_by_positions.items())
        return Profile(
            [n for n, _ in points],
            [ms / 1e3 for _, ms in points],
            interpolation=self.interpolation,
            staircase_until=self.staircase_until,
            context_seconds_per_token=self.ms_per_context_token / 1e3,
            attention_seconds_per_pair=self.ms_per_attention_pair / 1e3,
            draft_cost=draft_cost,
        )


class RooflineFile(_Part):
    """A curve on paper: an entry of the hardware table and a model.

    `model` is the path of a ``config.json`` (relative to the machine file) or ``{"parameters": N}`` for a dense
    model of that size.
    """

    kind: Literal["roofline"]
    hardware: str
    model: str | Mapping[Literal["parameters"], Annotated[float, Field(gt=0)]]
    dtype: str = "bfloat16"
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0
    memory_efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0
    compute_efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0

    def cost(self, folder: Path, draft_cost: DraftCost) -> CurveCost:
        """The cost that it describes."""
        if isinstance(self.model, str):
            geometry = ModelGeometry.from_config(folder / self.model)
        else:
            geometry = ModelGeometry.dense(self.model["parameters"])
        return Roofline(
            hardware(self.hardware),
            geometry,
            self.dtype,
            self.smoothing,
            memory_efficiency=self.memory_efficiency,
            compute_efficiency=self.compute_efficiency,
            draft_cost=draft_cost,
        )


class DraftFile(_Part):
    """What drafting costs: ``free``; ``sequential`` (`ms` for each depth) or ``parallel`` (`ms` for any depth).

    `ms` is a number or, by the number of sequences, an object; `idle_ms` is Dr(0), in the same form.
    """

    kind: Literal["free", "sequential", "parallel"] = "free"
    ms: Annotated[float, Field(ge=0)] | Mapping[int, Annotated[float, Field(ge=0)]] = 0.0
    idle_ms: Annotated[float, Field(ge=0)] | Mapping[int, Annotated[float, Field(ge=0)]] = 0.0

    def draft_cost(self) -> DraftCost:
        """The cost that it describes."""
        if self.kind == "free":
            if self.ms or self.idle_ms:
                raise ValueError("draft.ms and draft.idle_ms belong to kind sequential or parallel; free costs nothing")
            return DraftCost.free()
        tables = [item for item in (self.ms, self.idle_ms) if isinstance(item, Mapping)]
        known = tuple(sorted(tables[0])) if tables else (1,)
        if any(tuple(sorted(table)) != known for table in tables):
            raise ValueError("draft.ms and draft.idle_ms must be given at the same numbers of sequences")

        def seconds(item: float | Mapping[int, float]) -> tuple[float, ...]:
            return tuple((item[n] if isinstance(item, Mapping) else item) / 1e3 for n in known)

        none = (0.0,) * len(known)
        start, each = (none, seconds(self.ms)) if self.kind == "sequential" else (seconds(self.ms), none)
        return DraftCost(known, idle=seconds(self.idle_ms), start=start, each=each)


class MachineFile(_Part):
    """The schema of a machine file, JSON::

        {"name": "one GPU", "source": "measured on ..., 2026",
         "verify": {"kind": "curve", "ms_by_positions": {"1": 5.1, "64": 7.9, "512": 15.0}, "staircase_until": 512},
         "draft": {"kind": "sequential", "ms": 0.3, "idle_ms": 0.3},
         "num_kv_blocks": 20000, "max_num_batched_tokens": 8192}

    ``verify`` may also be ``{"kind": "roofline", "hardware": "H200-SXM", "model": "config.json"}``. Without ``draft``
    drafting is free. All other keys are fields of :class:`Machine`, with its defaults.
    """

    name: str
    source: str
    verify: Annotated[CurveFile | RooflineFile, Field(discriminator="kind")]
    draft: DraftFile = DraftFile()
    num_kv_blocks: Count | None = None
    block_size: Count = 16
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 8192
    max_prefill_chunk: Count | None = None
    prefill_elsewhere: bool = False
    parameters: Annotated[float, Field(gt=0)] | None = None
    noise: Annotated[float, Field(ge=0, le=1)] = 0.0

    def machine(self, path: Path) -> Machine:
        """The machine that it describes."""
        cost = self.verify.cost(path.parent, self.draft.draft_cost())
        fields = {name: getattr(self, name) for name in _SAME_FIELDS}
        if self.parameters is None and isinstance(cost, Roofline):
            fields["parameters"] = float(cost.geometry.multiplied_parameters)
        return Machine(cost=cost, **fields)


_SAME_FIELDS = tuple(name for name in MachineFile.model_fields if name not in ("verify", "draft"))


def read_machine(path: Path, staircase_until: int | None = None) -> Machine:
    """Read a machine file, or a bare step-cost curve; MachineError if it is neither, OSError if it can't be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MachineError(f"{path}: not valid JSON: {error}") from error
    try:
        if isinstance(content, dict) and "verify_ms_by_tokens" in content:
            cost = Profile.from_file(path, staircase_until)
            return Machine(path.stem, cost, source=str(content.get("source", "")))
        if staircase_until is not None:
            raise MachineError(f"{path}: a machine file says staircase_until itself, under verify")
        return MachineFile.model_validate(content).machine(path)
    except MachineError:
        raise
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors())
        raise MachineError(f"{path}: {told}") from error
    except (ValueError, KeyError, OSError) as error:
        told = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        raise MachineError(told if told.startswith(str(path)) else f"{path}: {told}") from error
