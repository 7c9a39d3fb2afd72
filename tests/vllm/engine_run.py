"""Runs a real vLLM engine on a CPU through a set of scenes and prints what came of each: one engine a process.

    python engine_run.py SETTINGS.json

vLLM's worker on a CPU starts once in a process, so tests call this file; it prints one line of JSON behind RESULT.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler is in this process, to be looked into

import numpy as np

from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import StepView

MARK = "RESULT "
SUPERVISORS = ("guard", "watchdog", "explorer")
JSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "sure": {"type": "boolean"}},
    "required": ["name", "sure"],
    "additionalProperties": False,
}


class RandomDepths(DepthPolicy):
    """Another depth for every sequence at every step."""

    explores = False
    needs_cost = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.random = np.random.default_rng(seed)

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: Any) -> Allocation:
        return Allocation(self.random.integers(0, view.limit + 1))


class Raises(DepthPolicy):
    """A policy that never works."""

    needs_cost = False

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: Any) -> Allocation:
        raise ZeroDivisionError("by design")


class LastToken:
    """A drafter of one's own, for vLLM's method custom_class: the text goes on as it ended."""

    def __init__(self, config: Any) -> None:
        self.k = config.speculative_config.num_speculative_tokens

    def load_model(self, *_: Any, **__: Any) -> None: ...

    def propose(self, sampled: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[tokens[-1]] * self.k if tokens else [] for tokens in sampled]


def force_asynchronous_scheduling() -> None:
    """vLLM switches it off on a CPU, though its V1 runner can do it there."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check(cls: Any, config: Any) -> None:
        original(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check)


class Watched:
    """An engine, and what its scheduler and drafter do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        if settings["asynchronous"]:
            force_asynchronous_scheduling()
        self.llm = LLM(**settings["engine"], speculative_config=settings["speculative"])
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.control = getattr(self.scheduler, "depth_control", None)
        self.count: Counter[str] = Counter()
        self.asked: Counter[int] = Counter()
        runner = core.model_executor.driver_worker.worker.model_runner
        model = getattr(getattr(runner, "drafter", None), "model", None)
        if model is not None:
            model.register_forward_hook(lambda *_: self.count.update(draft_passes=1))
        self._watch()

    def _watch(self) -> None:
        free, schedule = self.scheduler._free_request, self.scheduler.schedule

        def freeing(request: Any, *args: Any, **kwargs: Any) -> Any:
            metrics = request.spec_decode_metrics
            if metrics is not None:
                self.count["drafted"] += metrics.num_draft_tokens
                self.count["accepted"] += sum(j * n for j, n in enumerate(metrics.histogram))
            self.count["preemptions"] += request.num_preemptions
            return free(request, *args, **kwargs)

        def scheduling(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            if output.num_scheduled_tokens:
                self.count["steps"] += 1
                self.asked[output.num_spec_tokens_to_schedule] += 1
                for request in output.scheduled_new_reqs:
                    self.count["cached"] += request.num_computed_tokens
                    self.count["chunked"] += output.num_scheduled_tokens[request.req_id] < len(request.prompt_token_ids)
                self.count["ragged"] += len(set(map(len, output.scheduled_spec_decode_tokens.values()))) > 1
            return output

        self.scheduler._free_request, self.scheduler.schedule = freeing, scheduling

    def generate(
        self, prompts: list[str] | list[list[int]], extra: list[dict[str, Any]] | None = None, **params: Any
    ) -> list[list[int]]:
        """Greedy texts, as tokens; prompts are texts or tokens."""
        given = {"temperature": 0, "max_tokens": 40, **params}
        made = [self._params(given, None if extra is None else extra[i]) for i in range(len(prompts))]
        asked = [prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(asked, made, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    @staticmethod
    def _params(given: dict[str, Any], extra: dict[str, Any] | None) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        structured = {key: given[key] for key in ("regex", "json") if key in given}
        plain = {key: value for key, value in given.items() if key not in structured}
        if structured:
            plain["structured_outputs"] = StructuredOutputsParams(**structured)
        return SamplingParams(**plain, extra_args=extra)

    def with_aborts(self, prompts: list[str]) -> list[list[int]]:
        """Every other request is aborted on its way; the texts of the others."""
        engine = self.llm.llm_engine
        texts: dict[str, list[int]] = {}
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, self._params({"temperature": 0, "max_tokens": 40}, None))
        step = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    texts[output.request_id] = list(output.outputs[0].token_ids)
            step += 1
            if step % 3 == 0 and (place := 2 * (step // 3) - 1) < len(prompts):
                engine.abort_request([str(place)])
        return [texts[str(i)] for i in range(0, len(prompts), 2)]

    def report(self, texts: list[list[int]]) -> dict[str, Any]:
        """What the scene brought; the counts begin anew."""
        result: dict[str, Any] = {"texts": texts, "asked": sorted(self.asked.items()), **self.count}
        self.count.clear()
        self.asked.clear()
        control = self.control
        if control is not None:
            result |= {
                "verified": control.verified,
                "our_accepted": control.accepted,
                "faults": sum(control.faults.values()),
                "left": len(control.requests) + len(control.controller),
            }
            control.verified = control.accepted = 0
        return result


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """All scenes of one engine."""
    engine = Watched(settings)
    prompts, k = settings["prompts"], 4
    results: dict[str, Any] = {"scheduler": type(engine.scheduler).__name__}
    for scene in settings["scenes"]:
        control = engine.control
        policy = None if control is None else control.controller.policy
        extra: list[dict[str, Any]] | None = None
        if scene in ("mixed", "deepest", "off") and control is not None:
            extra = {
                "mixed": [{"adaptive_spec.depth": i % (k + 1)} for i in range(len(prompts))],
                "deepest": [{"adaptive_spec.depth": k}] * len(prompts),
                "off": [{"adaptive_spec.off": True}] * len(prompts),
            }[scene]
        supervisors = {} if control is None else {name: getattr(control.controller, name) for name in SUPERVISORS}
        if scene == "changing" and control is not None:
            control.controller.policy = RandomDepths()
            for name in supervisors:  # they would overrule it, by what drafts bring on a tiny model
                setattr(control.controller, name, None)
        if scene == "raising" and control is not None:
            control.controller.policy = Raises()
        if scene == "aborts":
            texts = engine.with_aborts(prompts)
        elif scene == "regex":
            texts = engine.generate(prompts, regex="[a-z]{3,8}( [a-z]{2,6}){2,4}")
        elif scene == "json":
            texts = engine.generate(prompts, json=JSON_SCHEMA)
        elif scene == "hooks failing" and control is not None:
            original, control.controller.plan = control.controller.plan, None
            texts = engine.generate(prompts)
            control.controller.plan = original
        elif scene == "wrong override":
            texts = []
            try:
                engine.generate(prompts[:1], [{"adaptive_spec.depth": 99}])
            except Exception as error:  # vLLM's own kind, which its server answers with 400
                results["refusal"] = str(error)
        else:
            texts = engine.generate(prompts, extra)
        results[scene] = engine.report(texts)
        if control is not None:
            control.faults.clear()
            control.controller.policy = policy
            for name, part in supervisors.items():
                setattr(control.controller, name, part)
    return results


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    os.environ.update(given["environment"])
    print(MARK + json.dumps(run(given)), flush=True)
