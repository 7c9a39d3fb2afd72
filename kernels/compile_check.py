"""Compiles every kernel for GPUs that need not be there, and fails on spills and on too many registers.

    python -m adaptive_spec.kernels.compile_check [--targets cuda:90,hip:gfx942] [--jobs 2] [--json FILE]

Nothing is listed by hand: the launchers themselves are called, on tensors of the shapes and types that an engine
would bring, and each launch is recorded instead of run, with the specialisation that Triton would choose for it
(integers that are 1 or divisible by 16, aligned pointers). Then all distinct ones are compiled, in processes of
their own and without Triton's interpreter.

What is spilled ptxas reports for NVIDIA, and the assembly's metadata for AMD. On sm_90
every kernel that reads logits must load 16 bytes at once.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Case = Callable[[], object]

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")
# 128 threads with more than this many registers each leave a multiprocessor (65,536) fewer than two programs.
REGISTERS_MOST = {"cuda": 255, "hip": 512}
REGISTERS_OF_ROWS = 128  # kernels that read logits: 256 threads, and still two programs a multiprocessor
READS_LOGITS = ("greedy_kernel", "match_kernel", "threshold_kernel", "row_stats_kernel", "residual_kernel")
# Constants that tell specialisations of a kernel apart.
TELLING = ("ROWS", "HEAD_DIM", "SPLIT", "DRAFT", "DEPTHS", "PRICED", "EFFECT", "HALF", "NORM")


@dataclass(frozen=True)
class Specialisation:
    """One way in which a kernel is compiled."""

    module: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]  # by 16
    options: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The kernel, the types that it works on, and its constants."""
        types = sorted({kind[1:] for _, kind in self.signature if kind in ("*bf16", "*fp16")}) or ["fp32"]
        parts = types + [f"{key.lower()} {value}" for key, value in self.constants if key in TELLING]
        if self.kernel in READS_LOGITS and ("row_stride" not in self.divisible):
            parts.append("unaligned")
        return f"{self.kernel}[{', '.join(parts)}]"


@dataclass
class Compiled:
    """What the compiler says of one specialisation on one target."""

    target: str
    name: str
    seconds: float
    registers: int
    spills: int  # bytes stored and loaded, or registers and bytes (AMD)
    shared: int
    wide_loads: int
    fault: str = ""


def record() -> list[Specialisation]:
    """Call every launcher as an engine would, and return the distinct specialisations."""
    from adaptive_spec.kernels import compile_cases

    return recording(compile_cases.cases())


def recording(cases: Iterable[Case]) -> list[Specialisation]:
    """Return the distinct specialisations that are launched by calls, which are recorded instead of run."""
    import torch
    from triton.runtime.jit import JITFunction

    names = {
        torch.float32: "fp32",
        torch.float64: "fp64",
        torch.bfloat16: "bf16",
        torch.float16: "fp16",
        torch.int32: "i32",
        torch.int64: "i64",
        torch.bool: "i1",
    }
    found: dict[Specialisation, None] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        values = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        constexpr = {parameter.name for parameter in self.params if parameter.is_constexpr}
        general = {parameter.name for parameter in self.params if parameter.do_not_specialize}
        signature, constants, divisible = [], [], []
        for name in self.arg_names:
            value = values.pop(name)
            if name in constexpr or value is None or (isinstance(value, int) and value == 1 and name not in general):
                constants.append((name, value))
                signature.append((name, "constexpr"))
                continue
            if isinstance(value, torch.Tensor):
                signature.append((name, "*" + names[value.dtype]))
                divisible.append(name)
            elif isinstance(value, float):
                signature.append((name, "fp32"))
            else:
                signature.append((name, "i32" if -(1 << 31) <= value < 1 << 31 else "i64"))
                if value % 16 == 0 and name not in general:
                    divisible.append(name)
        module = self.fn.__module__.rsplit(".", 1)[1]
        found[
            Specialisation(
                module,
                self.fn.__name__,
                tuple(signature),
                tuple(constants),
                tuple(divisible),
                tuple(sorted(values.items())),
            )
        ] = None

    original = JITFunction.run
    JITFunction.run = run
    try:
        for case in cases:
            case()
    finally:
        JITFunction.run = original
    return list(found)


def compile_one(work: tuple[Specialisation, str]) -> Compiled:
    """Compile one specialisation for one target."""
    from importlib import import_module

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    one, target = work
    kind, architecture = target.split(":")
    gpu = GPUTarget("cuda", int(architecture), 32) if kind == "cuda" else GPUTarget("hip", architecture, 64)
    kernel = getattr(import_module(f"adaptive_spec.kernels.{one.module}"), one.kernel)
    place = {name: index for index, name in enumerate(kernel.arg_names)}
    constants = dict(one.constants)
    if kind == "hip" and "PRECISION" in constants:
        constants["PRECISION"] = "ieee"  # what launch.dot_precision says there
    source = ASTSource(
        fn=kernel,
        signature=dict(one.signature),
        constexprs={(place[name],): value for name, value in constants.items()},
        attrs={(place[name],): [["tt.divisibility", 16]] for name in one.divisible},
    )
    began = time.process_time()
    options = {name: value for name, value in one.options if kind == "cuda" or name != "maxnreg"}
    log = io.StringIO()  # where ptxas says what it spilled
    try:
        with redirect_stdout(log):
            compiled = triton.compile(source, target=gpu, options=options)
    except Exception as error:
        return Compiled(target, one.name, time.process_time() - began, 0, 0, 0, 0, f"{type(error).__name__}: {error}")
    registers, spills, wide = _nvidia(compiled, log.getvalue()) if kind == "cuda" else _amd(compiled)
    result = Compiled(
        target, one.name, time.process_time() - began, registers, spills, int(compiled.metadata.shared), wide
    )
    result.fault = _fault(result, one, kind, architecture)
    return result


def _fault(result: Compiled, one: Specialisation, kind: str, architecture: str) -> str:
    most = REGISTERS_OF_ROWS if one.kernel in READS_LOGITS else REGISTERS_MOST[kind]
    aligned = "row_stride" in one.divisible
    if result.spills:
        return f"spills {result.spills}"
    if result.registers > most:
        return f"{result.registers} registers; at most {most} are allowed"
    if (kind, architecture) == ("cuda", "90") and one.kernel in READS_LOGITS and aligned and not result.wide_loads:
        return "logits are not loaded 16 bytes at once"
    return ""


def _nvidia(compiled: Any, log: str) -> tuple[int, int, int]:
    """Registers, bytes of spilled ones, and loads of 16 bytes.

    The stack alone says too little: it holds what the hardware needs to reconverge nested branches, too.
    """
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise RuntimeError(f"ptxas reports no registers: {log[-300:]!r}")
    wide = len(re.findall(r"ld\.global\S*\.v4\.\w+", compiled.asm["ptx"]))
    return int(registers.group(1)), sum(map(int, spills.groups())), wide


def _amd(compiled: Any) -> tuple[int, int, int]:
    """Vector registers, those kept in memory, and loads of 16 bytes; scalar ones spill to vector registers."""
    text = compiled.asm["amdgcn"]
    counts = {}
    for name in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size"):
        match = re.search(rf"\.{name}:\s*(\d+)", text)
        if match is None:
            raise RuntimeError(f"the assembly's metadata has no {name}")
        counts[name] = int(match.group(1))
    spills = counts["vgpr_spill_count"] + counts["private_segment_fixed_size"]
    return counts["vgpr_count"], spills, len(re.findall(r"(?:global|buffer)_load_dwordx4", text))


def _clear_of_interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise SystemExit("compile_check compiles: unset TRITON_INTERPRET")


def _rows(results: list[Compiled]) -> Iterator[str]:
    names = list(dict.fromkeys(result.name for result in results))
    targets = list(dict.fromkeys(result.target for result in results))
    cell: dict[tuple[str, str], Compiled] = {}
    for result in results:  # of several of one name the one that needs most
        other = cell.get((result.name, result.target))
        if other is None or (bool(result.fault), result.registers) > (bool(other.fault), other.registers):
            cell[result.name, result.target] = result
    yield "| kernel | " + " | ".join(targets) + " |"
    yield "| --- |" + " ---: |" * len(targets)
    for name in names:
        texts = []
        for target in targets:
            result = cell[name, target]
            text = f"{result.registers}"
            if result.shared:
                text += f", {result.shared / 1024:.1f} KiB"
            texts.append("FAILED" if result.fault else text)
        yield f"| `{name}` | " + " | ".join(texts) + " |"


def main(arguments: list[str] | None = None) -> int:
    """Compile, print the table of registers and shared memory, and return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="Compile every kernel without a GPU.")
    parser.add_argument("--targets", default=",".join(TARGETS), help="of the form cuda:90 or hip:gfx942")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args(arguments)
    _clear_of_interpreter()
    import triton

    wanted = [one for one in record() if options.only in one.name]
    work = [(one, target) for target in options.targets.split(",") for one in wanted]
    with tempfile.TemporaryDirectory(prefix="compile_check_") as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # nothing is taken from an earlier run
        os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            results = list(pool.map(compile_one, work, chunksize=1))
    for row in _rows(results):
        print(row)
    faults = [result for result in results if result.fault]
    for result in faults:
        print(f"{result.target} {result.name}: {result.fault}", file=sys.stderr)
    seconds = sum(result.seconds for result in results)
    print(f"\ntriton {triton.__version__}: {len(results)} compiled in {seconds:.0f} CPU seconds, {len(faults)} faults")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
