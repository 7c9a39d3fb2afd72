"""The file that holds what a controller has learned: a .npz of nested dicts, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

FORMAT = "adaptive-spec-state"
VERSION = 1


def write_state(path: str | Path, state: Mapping[str, object]) -> None:
    """Write nested dicts of numbers, strings, lists and arrays.

    The file appears under its name only once it is complete, so that a reader or a crash never meets half
    of one.
    """
    path = Path(path)
    arrays: dict[str, np.ndarray] = {}
    tree = _strip(state, "", arrays)
    header = json.dumps({"format": FORMAT, "version": VERSION, "state": tree})
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, __header__=np.array(header), **arrays)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def read_state(path: str | Path) -> dict[str, object]:
    """Read what :func:`write_state` wrote; ValueError says what is wrong with a file that is damaged or foreign."""
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["__header__"]))
            arrays = {name: file[name] for name in file.files if name != "__header__"}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: not a state file of adaptive-spec, or damaged ({error}); start without it"
        ) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{path}: not a state file of adaptive-spec; start without it")
    if header.get("version") != VERSION:
        raise ValueError(
            f"{path}: state file of version {header.get('version')}, this adaptive-spec reads version {VERSION}; "
            "start without it, or with the version that wrote it"
        )
    state = _fill(header["state"], "", arrays)
    assert isinstance(state, dict)
    return state


def _strip(value: object, name: str, arrays: dict[str, np.ndarray]) -> object:
    """Move the arrays out of nested dicts, leaving a mark where each stood."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, Mapping):
        return {str(key): _strip(item, f"{name}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _fill(value: object, name: str, arrays: dict[str, np.ndarray]) -> object:
    if isinstance(value, dict):
        if set(value) == {"__array__"}:
            return arrays[value["__array__"]]
        return {key: _fill(item, f"{name}/{key}", arrays) for key, item in value.items()}
    return value
