"""What a wheel installs, what an import loads, and which way imports point."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import adaptive_spec

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "adaptive_spec"
TENANTS = ("serving", "engine", "replay", "cli", "policies", "kernels", "experiments", "vllm_plugin")
HEAVY = ("torch", "numba", "vllm", "sklearn", "transformers", "triton", "prometheus_client")
DEFERRED = {"numba", "prometheus_client"}  # which the core may import when it is asked for, within a function

needs_checkout = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree")


def core_files() -> list[Path]:
    return sorted([*CORE.glob("*.py"), *(CORE / "cost").glob("*.py"), *(CORE / "loops").glob("*.py")])


def python(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, so that no build folder is left in the tree."""
    source = tmp_path_factory.mktemp("source") / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    out = tmp_path_factory.mktemp("wheel")
    # The build backend is asked directly: no network, no second environment.
    code = f"import setuptools.build_meta as backend; print(backend.build_wheel({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@needs_checkout
def test_a_wheel_installs_nothing_at_top_level_but_adaptive_spec(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"adaptive_spec"}


@needs_checkout
def test_a_wheel_holds_every_module_of_the_mapped_folders(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("policies", "kernels", "experiments"):
        for path in (ROOT / folder).glob("*.py"):
            assert f"adaptive_spec/{folder}/{path.name}" in names
    for path in CORE.rglob("*.py"):
        assert f"adaptive_spec/{path.relative_to(CORE).as_posix()}" in names, "pyproject.toml lacks its package"
    assert "adaptive_spec/experiments/demo_prompts.jsonl" in names
    assert "adaptive_spec/py.typed" in names


@needs_checkout
def test_an_unpacked_wheel_works_far_from_the_sources(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, '.');"
        "from adaptive_spec.config import TuningConfig; import adaptive_spec, adaptive_spec.policies.fixed;"
        "print(adaptive_spec.__file__, TuningConfig().policy.name)"
    )
    where, policy = python(code, tmp_path).split()
    assert Path(where).is_relative_to(tmp_path)
    assert policy == "roofline-budget"


@pytest.mark.parametrize(
    "module", ["adaptive_spec", "adaptive_spec.config", "adaptive_spec.controller", "adaptive_spec.cli"]
)
def test_the_core_and_the_command_load_nothing_heavy(
    module: str, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    code = (
        f"import time, sys; began = time.perf_counter(); import {module}; seconds = time.perf_counter() - began;"
        f"print(seconds, *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    seconds, *loaded = python(code, tmp_path).split()
    record_property("import_seconds", float(seconds))
    print(f"import {module}: {float(seconds):.3f} s")
    assert not loaded


def test_every_core_module_loads_nothing_heavy(tmp_path: Path) -> None:
    """Save for the compiled loops, which are loaded when the first of them is used."""
    paths = [path for path in core_files() if path.parent.name != "loops" or path.stem == "__init__"]
    modules = ["adaptive_spec." + ".".join(path.relative_to(CORE).with_suffix("").parts) for path in paths]
    modules = [name.removesuffix(".__init__") for name in modules]
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules!r}];"
        f"print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    assert python(code, tmp_path) == ""


@pytest.mark.parametrize("path", core_files(), ids=lambda path: path.relative_to(CORE).as_posix())
def test_the_core_imports_no_tenant(path: Path) -> None:
    allowed = {"numpy", "pydantic", "yaml", "adaptive_spec"} | set(sys.stdlib_module_names)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # Within functions, and under `if TYPE_CHECKING`.
    deferred = {
        id(node)
        for part in ast.walk(tree)
        if isinstance(part, ast.FunctionDef) or (isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write the import in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            permitted = parts[0] in allowed or (id(node) in deferred and parts[0] in DEFERRED)
            assert permitted, f"line {node.lineno} imports {name}"
            assert not (parts[0] == "adaptive_spec" and parts[1:2] and parts[1] in TENANTS), (
                f"line {node.lineno} imports {name}, a tenant"
            )


@needs_checkout
def test_the_folders_name_kernels_does_no_harm_at_the_root() -> None:
    code = (
        "import kernels, sys; from importlib.metadata import version, PackageNotFoundError\n"
        "print(sorted(name for name in vars(kernels) if not name.startswith('__')))\n"
        "print(hasattr(kernels, '__version__'), sorted(set(sys.modules) & {'torch', 'numba', 'triton'}))"
    )
    public, rest = python(code, ROOT).splitlines()
    assert public == "[]"
    assert rest == "False []"


@needs_checkout
def test_transformers_is_not_misled_by_the_folder_kernels() -> None:
    pytest.importorskip("transformers")
    code = (
        "from transformers.utils import import_utils\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "check = getattr(import_utils, 'is_kernels_available', lambda: False)\n"
        "LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,"
        " num_attention_heads=2, num_key_value_heads=2))\n"
        "print(bool(check()))"
    )
    assert python(code, ROOT).splitlines()[-1] == "False"


def test_the_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert version("adaptive-spec") == adaptive_spec.__version__
