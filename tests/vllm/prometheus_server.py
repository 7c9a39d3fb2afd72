"""PrometheusServer: a real Prometheus that scrapes one address, and what it answers."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
from served_model import PATIENCE, free_port, wait_for

EVERY_SECONDS = 2  # a scrape of a busy machine takes long


class PrometheusServer:
    """Runs until it is stopped.

    Parameters
    ----------
    binary : str
        Path of the program.
    target : str
        Host and port whose ``/metrics`` it reads.
    folder : path
        For its configuration and data.
    """

    def __init__(self, binary: str, target: str, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        config = folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {EVERY_SECONDS}s, scrape_timeout: {EVERY_SECONDS}s}}\n"
            f"scrape_configs: [{{job_name: vllm, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        self._process = subprocess.Popen(
            [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={self.address}", "--log.level=error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for(lambda: self._ready() and self.ask("up == 1"), "a Prometheus that has scraped its target")
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool:
        try:
            return httpx.get(f"http://{self.address}/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that answer a query; an error if Prometheus doesn't understand it."""
        answer = httpx.get(f"http://{self.address}/api/v1/query", params={"query": query}, timeout=PATIENCE)
        assert answer.status_code == 200, (query, answer.text)
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def value(self, query: str) -> float:
        """The one value that answers a query."""
        (series,) = self.ask(query)
        return float(series["value"][1])

    def catch_up(self) -> None:
        """Wait until a scrape has ended that began after this call."""
        now = time.time()
        wait_for(lambda: self.ask(f"timestamp(up) > {now} and up == 1"), "the next scrape")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60)
