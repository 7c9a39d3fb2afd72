"""Compiled functions are kept on disk, and a disk that is full, or files that are torn, cost time and no more."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest

from adaptive_spec import compiled_cache

SOURCE = """
from numba import types
from adaptive_spec.compiled import compiled, compiled_for_c

@compiled()
def inner(x):
    return x + {more}

@compiled()
def lazy(x):
    return 2 * x

@compiled("int64(int64)")
def twice(x):
    return inner(inner(x))

@compiled_for_c(types.int64(types.int64))
def thrice(x):
    return inner(inner(inner(x)))
"""
NAMES = ("inner", "lazy", "twice", "thrice")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "last byte": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "random": lambda content: np.random.default_rng(len(content)).bytes(len(content)),
    "another pickle": lambda content: pickle.dumps(numba.__version__) + pickle.dumps([1, 2, 3]),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that numba keeps in what it compiles, and that no warning spoke of."""
    folder = tmp_path / "kept"
    keep_in(folder, monkeypatch)
    return folder


def keep_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    monkeypatch.setattr(compiled_cache, "_warned", False)


def load(path: Path, more: int = 1) -> ModuleType:
    """Load the functions and use them, as a process of its own would."""
    source = SOURCE.format(more=more)
    if not path.exists() or path.read_text() != source:
        path.write_text(source)
    spec = importlib.util.spec_from_file_location("small_functions", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["small_functions"] = module  # unpickling asks for it
    spec.loader.exec_module(module)
    assert (module.twice(5), module.lazy(5), module.thrice.ctypes(5)) == (5 + 2 * more, 10, 5 + 3 * more)
    return module


def hits(module: ModuleType) -> list[int]:
    """How many of each function's compilations were loaded."""
    numbers = [getattr(module, name) for name in NAMES]
    return [each.cache_hits if name == "thrice" else sum(each.stats.cache_hits.values())
            for name, each in zip(NAMES, numbers, strict=True)]  # fmt: skip


def test_what_was_compiled_is_loaded(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert hits(load(tmp_path / "small.py")) == [0, 0, 0, 0]
    files = [path.name for path in folder.rglob("*.nb?")]
    assert all(sum(f".{name}-" in file for file in files) == 2 for name in NAMES)
    again = load(tmp_path / "small.py")
    assert hits(again)[1:] == [1, 1, 1]
    with pytest.raises(TypeError, match="No matching definition"):
        again.twice("a text")
    assert not caplog.records


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_torn_files_are_compiled_anew_and_begun_anew(
    folder: Path, tmp_path: Path, damage: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path / "small.py")
    files = list(folder.rglob("*" + suffix))
    assert len(files) == len(NAMES)
    for file in files:
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    load(tmp_path / "small.py")
    (record,) = caplog.records  # one, for all of them
    assert record.levelno == logging.WARNING
    assert str(folder) in record.message
    assert hits(load(tmp_path / "small.py"))[1:] == [1, 1, 1]


def test_a_full_disk_keeps_nothing(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(OSError), open(small_disk / "other", "wb", buffering=0) as other:
        while other.write(bytes(4096)):
            pass
    keep_in(small_disk, monkeypatch)
    load(tmp_path / "small.py")
    (record,) = caplog.records
    assert str(small_disk) in record.message
    assert "No space left" in record.message


def test_a_folder_that_fills_later_still_gives_what_it_has(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path / "small.py")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_save_index", full)
    assert hits(load(tmp_path / "small.py"))[1:] == [1, 1, 1]
    assert not caplog.records
    load(tmp_path / "changed.py", more=4)
    next(folder.rglob("small.twice-*.nbi")).write_bytes(b"")  # nor can it be begun anew
    load(tmp_path / "small.py")
    assert len(caplog.records) == 1


def test_what_is_wrong_with_the_function_itself_is_raised(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        "from adaptive_spec.compiled import compiled\n@compiled('int64(int64)')\ndef wrong(x):\n    return x.nothing\n"
    )
    spec = importlib.util.spec_from_file_location("wrong", path)
    with pytest.raises(numba.core.errors.TypingError, match="nothing"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert not caplog.records


def test_engines_start_from_a_torn_cache(tmp_path: Path) -> None:
    """The loops themselves, in processes of their own: the second compiles them anew, the third loads them."""
    code = "from adaptive_spec import loops; loops.load()"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def said() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=True
        )
        return done.stderr.splitlines()

    assert not said()
    files = sorted(tmp_path.rglob("*.nb?"))
    assert len(files) > 10
    for number, file in enumerate(files):
        os.truncate(file, file.stat().st_size * (number % 3) // 3)
    (line,) = said()
    assert str(tmp_path) in line
    assert not said()
