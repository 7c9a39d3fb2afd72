"""EngineProcess: a vLLM engine in a process of its own, which runs prompts under one setting after another.

Settings that differ in depths alone share an engine: it is loaded once, and between two runs, when no request is
left, its scheduler is handed another table of depths, or the plugin's control. A table stands where vLLM's own
Dynamic SD has it (``dynamic_sd_lookup``), and without the control the scheduler is vLLM's, untouched: a fixed depth
is a table that says the same for every batch. No speculation at all needs an engine that has none configured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

MARK = "RESULT "
Schedule = list[tuple[int, int, int]]


class EngineProcess:
    """An engine to talk to; use it as a context manager.

    Parameters
    ----------
    engine : dict
        Arguments of ``vllm.LLM``.
    speculative : dict, optional
        vLLM's ``speculative_config``; None for none.
    tuning : path, optional
        The plugin's tuning file; needs `speculative`.
    log : path
        Where vLLM's log goes.
    environment : dict, optional
        Variables beside this process's own.

    Raises
    ------
    RuntimeError
        With the end of the log, when the engine doesn't start or a run fails.

    Attributes
    ----------
    pid : int
        Of the engine's process, which ends with this one, however that ends.
    started : dict
        What the engine said of itself.
    """

    def __init__(
        self,
        engine: dict[str, Any],
        speculative: dict[str, Any] | None,
        *,
        log: Path,
        tuning: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.log = log
        variables = {name: value for name, value in os.environ.items() if name != "ADAPTIVE_SPEC_CONFIG"}
        variables |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(environment or {})}
        if tuning is not None:
            variables["ADAPTIVE_SPEC_CONFIG"] = str(tuning)
        self._log: IO[str] = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "adaptive_spec.experiments.vllm_engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=variables,
        )
        self.pid = self._process.pid
        self.started = self.ask({"engine": engine, "speculative": speculative})

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        concurrency: int,
        max_tokens: int,
        *,
        schedule: Schedule | None = None,
        mode: str | None = None,
        load: Path | None = None,
        save: Path | None = None,
        warm: bool = False,
    ) -> dict[str, Any]:
        """Answer prompts, so many at a time, and say what it took.

        Parameters
        ----------
        prompts : sequence of sequence of int
            Tokens.
        concurrency, max_tokens : int
            Requests in flight; tokens of an answer at most.
        schedule : list of (first, last, depth), optional
            Depths by batch size, by vLLM's own scheduler.
        mode : str, optional
            The plugin's, ``on`` or ``off``; None leaves the plugin out.
        load, save : path, optional
            What the plugin has learned before, and is to leave behind.
        warm : bool
            Whether to run one prompt before the clock starts.

        Returns
        -------
        dict
            ``seconds``, ``tokens``, ``steps``, ``drafted``, ``accepted``, ``threads`` (torch's).
        """
        return self.ask(
            {
                "prompts": prompts,
                "concurrency": concurrency,
                "max_tokens": max_tokens,
                "schedule": schedule,
                "mode": mode,
                "load": None if load is None else str(load),
                "save": None if save is None else str(save),
                "warm": warm,
            }
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; why is said below
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                if "error" in answer:
                    raise RuntimeError(f"the engine failed: {answer['error']}; its log is {self.log}")
                return answer
            self._log.write(line)
        self._log.flush()
        end = self.log.read_text().strip().splitlines()[-5:]
        raise RuntimeError(f"the engine ended; the last lines of {self.log}:\n" + "\n".join(end))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        if self._process.poll() is None:
            try:
                self._process.stdin.close()
                self._process.wait(timeout=60)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._log.close()


class Engine:
    """The engine itself, in its process.

    Parameters
    ----------
    engine, speculative
        As :class:`EngineProcess` has them.
    """

    def __init__(self, engine: dict[str, Any], speculative: dict[str, Any] | None) -> None:
        from vllm import LLM

        given = dict(engine)
        if speculative is not None:
            given["speculative_config"] = speculative
        self.llm = LLM(**given)
        self.scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        self.control = getattr(self.scheduler, "depth_control", None)
        self._parent = os.getppid()
        self._steps = 0
        schedule = self.scheduler.schedule

        def counting(*args: Any, **kwargs: Any) -> Any:
            self._steps += 1
            return schedule(*args, **kwargs)

        self.scheduler.schedule = counting
        self._drafted = self._accepted = 0
        count = self.scheduler.make_spec_decoding_stats

        def reading(stats: Any, num_draft_tokens: int, num_accepted_tokens: int, **more: Any) -> Any:
            self._drafted += num_draft_tokens
            self._accepted += num_accepted_tokens
            return count(stats, num_draft_tokens=num_draft_tokens, num_accepted_tokens=num_accepted_tokens, **more)

        self.scheduler.make_spec_decoding_stats = reading

    def set(self, schedule: Schedule | None, mode: str | None, load: str | None) -> None:
        """Choose who gives the depths in the runs to come."""
        scheduler = self.scheduler
        if hasattr(scheduler, "depth_control"):
            scheduler.depth_control = None if mode is None else self.control
        if mode is not None:
            if self.control is None:
                raise ValueError("this engine was started without a tuning file")
            self.control.retune(mode, 1.0)
            if load is not None:
                self.control.controller.load(load)
            return
        scheduler.dynamic_sd_lookup = None
        if schedule is not None:
            from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

            scheduler.dynamic_sd_lookup = build_dynamic_sd_schedule_lookup(
                [tuple(entry) for entry in schedule],
                vllm_max_batch_size=scheduler.scheduler_config.max_num_seqs,
                vllm_num_speculative_tokens=scheduler.num_spec_tokens,
            )

    def run(self, prompts: list[list[int]], concurrency: int, max_tokens: int) -> dict[str, Any]:
        """Answer prompts, `concurrency` at a time; greedy, to the end of the text or `max_tokens`."""
        import torch
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self.llm.llm_engine
        self._steps = self._drafted = self._accepted = 0
        waiting = deque(enumerate(prompts))
        under_way = tokens = 0
        began = time.perf_counter()
        while waiting or under_way:
            if os.getppid() != self._parent:
                raise SystemExit("whoever asked for these prompts has ended")
            while waiting and under_way < concurrency:
                place, prompt = waiting.popleft()
                params = SamplingParams(
                    temperature=0.0,
                    max_tokens=max_tokens,
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                engine.add_request(str(place), {"prompt_token_ids": prompt}, params)
                under_way += 1
            for output in engine.step():
                if output.finished:
                    under_way -= 1
                    tokens += len(output.outputs[0].token_ids)
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "tokens": tokens,
            "steps": self._steps,
            "drafted": self._drafted,
            "accepted": self._accepted,
            "threads": torch.get_num_threads(),
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what :meth:`EngineProcess.run` asks for."""
        self.set(request["schedule"], request["mode"], request["load"])
        prompts = request["prompts"]
        if request["warm"]:
            self.run(prompts[:1], 1, 8)
            self.set(request["schedule"], request["mode"], request["load"])
        result = self.run(prompts, request["concurrency"], request["max_tokens"])
        control = None if request["mode"] is None else self.control
        if control is not None:
            if control.faults:
                raise RuntimeError(f"the plugin's hooks failed: {dict(control.faults)}")
            if request["save"] is not None:
                control.controller.save(request["save"])
        return result


def main() -> None:
    """Start the engine that the first line of the standard input describes, and answer the lines that follow."""
    engine: Engine | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if engine is None:
                engine = Engine(request["engine"], request["speculative"])
                answer: dict[str, Any] = {"scheduler": type(engine.scheduler).__name__}
            else:
                answer = engine.answer(request)
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print("\n" + MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
