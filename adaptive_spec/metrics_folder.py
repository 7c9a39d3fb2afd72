"""MetricsFolder: metrics of one process on the ``/metrics`` endpoint of another, by files in a shared folder.

vLLM answers ``/metrics`` in its API server, from prometheus_client's registry of that process; its scheduler, and so
its depths, live in the engine core's process. The engine core writes files in the format of prometheus_client's
multiprocess mode. Where vLLM runs in that mode itself (several API servers, or ``PROMETHEUS_MULTIPROC_DIR`` set by
hand) it reads them with its own; otherwise :func:`offer_folder` lets the API server's registry read a folder of ours.

prometheus_client itself maps its files into memory, where a page that a full disk has no room for ends the process by a
signal. These are written by plain writes, so a full disk is an OSError.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Set
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from adaptive_spec.metrics import MetricsCollector

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from adaptive_spec.upkeep import Upkeep

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's own
VARIABLE = "ADAPTIVE_SPEC_METRICS_DIR"
HEADER = 8  # bytes before the first key

_folder: tempfile.TemporaryDirectory[str] | None = None  # goes with this process


def offer_folder(registry: CollectorRegistry) -> None:
    """Let a registry read what the processes write that this one will start.

    To be called in the process that answers ``/metrics``, before it starts the others: they find the folder in
    the environment. A second call does nothing, nor does one in such a process, nor in prometheus_client's
    multiprocess mode.

    Raises
    ------
    OSError
        If no temporary folder can be made; nothing is offered then.
    """
    global _folder
    if _folder is not None or folder_offered() is not None:
        return
    from prometheus_client.multiprocess import MultiProcessCollector

    _folder = tempfile.TemporaryDirectory(prefix="adaptive-spec-metrics-")
    os.environ[VARIABLE] = _folder.name
    registry.register(MultiProcessCollector(None, _folder.name))  # type: ignore[no-untyped-call]


def folder_offered() -> Path | None:
    """The folder that whoever answers ``/metrics`` reads; None if nobody does."""
    name = os.environ.get(MULTIPROCESS) or os.environ.get(VARIABLE)
    return Path(name) if name and os.path.isdir(name) else None


class SeriesFile:
    """Values by key, in a file of the layout of prometheus_client's ``MmapedDict``.

    A header with the bytes in use; then each key, padded with blanks, its value and the time of it.

    Parameters
    ----------
    path : path
        The file; whatever was there is replaced, in one go, by a file without values.

    Raises
    ------
    OSError
        If it can't be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = bytearray(HEADER)
        self._positions: dict[str, int] = {}
        self._file = self._begin()

    def _begin(self) -> IO[bytes]:
        """Put a new file with what there is in the place of the old one, and return it."""
        new = self._path.with_suffix(".new")  # readers look for *.db, and never find half a header
        file = open(new, "wb", buffering=0)  # noqa: SIM115
        try:
            self._write_to(file)
            os.replace(new, self._path)
        except BaseException:
            file.close()
            new.unlink(missing_ok=True)
            raise
        return file

    def set(self, key: str, value: float, now: float) -> None:
        """Set a value, to be written with the others."""
        if key not in self._positions:
            encoded = key.encode()
            blanks = b" " * (8 - (len(encoded) + 4) % 8)
            self._content += struct.pack("i", len(encoded)) + encoded + blanks + bytes(16)
            self._positions[key] = len(self._content) - 16
        struct.pack_into("dd", self._content, self._positions[key], value, now)

    def retain(self, keys: Set[str]) -> None:
        """Forget all other keys, for readers too.

        Raises
        ------
        OSError
            If there is no room for a file without them; readers keep those that there were.
        """
        if self._positions.keys() <= keys:
            return
        content, positions = self._content, self._positions
        self._content, self._positions = bytearray(HEADER), {}
        for key, position in positions.items():
            if key in keys:
                self.set(key, *struct.unpack_from("dd", content, position))
        old, self._file = self._file, self._begin()
        old.close()

    def write(self) -> None:
        """Bring the file up to date; readers know of new keys only once all of them are there.

        Raises
        ------
        OSError
            If there is no room for a new key; readers keep those that there were.
        """
        self._write_to(self._file)

    def _write_to(self, file: IO[bytes]) -> None:
        struct.pack_into("i", self._content, 0, len(self._content))
        content = bytes(self._content)
        for position, part in ((HEADER, content[HEADER:]), (0, content[:HEADER])):
            file.seek(position)
            while part:
                part = part[file.write(part) :]

    def close(self) -> None:
        """Close the file; it stays for the readers."""
        self._file.close()


class MetricsFolder:
    """Writes a deployment's metrics to a folder, as prometheus_client's multiprocess mode reads them.

    Parameters
    ----------
    deployment : Upkeep
        Whose metrics.
    folder : path
        An existing folder; this process gets files of its own in it.

    Raises
    ------
    OSError
        If they can't be written.
    """

    def __init__(self, deployment: Upkeep, folder: str | Path) -> None:
        self._collector = MetricsCollector()
        self._collector.deployments.append(deployment)
        # An underscore would end the name's part that tells processes apart.
        name = f"adaptive-spec-{deployment.engine}-{os.getpid()}".replace("_", "-")
        self._files = {
            kind: SeriesFile(Path(folder) / f"{prefix}_{name}.db")
            for kind, prefix in (("counter", "counter"), ("histogram", "histogram"), ("gauge", "gauge_mostrecent"))
        }
        self._keys: dict[tuple[str, str, tuple[str, ...]], str] = {}

    def write(self) -> None:
        """Bring the files up to date; OSError if there is no room for what is new."""
        now = time.time()
        gauges: set[str] = set()
        for family in self._collector.collect():
            file = self._files[family.type]
            below: dict[tuple[str, ...], float] = {}  # the bucket before, of each histogram
            for sample in family.samples:
                if family.type == "histogram":
                    if sample.name.endswith("_count"):  # the reader's own sum of all buckets
                        continue
                    own = tuple(value for label, value in sample.labels.items() if label != "le")
                    if sample.name.endswith("_bucket"):  # cumulative here, single there
                        value, below[own] = sample.value - below.get(own, 0.0), sample.value
                    else:
                        value = sample.value
                else:
                    value = sample.value
                key = self._key(family, sample)
                file.set(key, value, now)
                if family.type == "gauge":
                    gauges.add(key)
        self._files["gauge"].retain(gauges)  # a policy that was changed for another, say; counters stay
        for file in self._files.values():
            file.write()

    def _key(self, family: Any, sample: Any) -> str:
        from prometheus_client.mmap_dict import mmap_key

        name = (family.name, sample.name, tuple(sample.labels.values()))
        if name not in self._keys:
            self._keys[name] = mmap_key(
                family.name, sample.name, list(sample.labels), list(sample.labels.values()), family.documentation
            )
        return self._keys[name]

    def close(self) -> None:
        """Write the last state, and close the files; the counters stay for the reader."""
        self.write()
        for file in self._files.values():
            file.close()
        self._files = {}
