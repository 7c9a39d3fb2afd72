"""A policy of a separate package is found through its entry point, with nothing of ours touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "third_party_package"
PROGRAM = """
import numpy as np
from adaptive_spec.policy import make_policy, policy_names
from adaptive_spec.step import StepView

print(",".join(policy_names()))
policy = make_policy("halving", divisor=3)
policy.reset(8, seed=0)
limit = np.array([8, 3, 0])
view = StepView(np.arange(3), limit, limit, np.zeros((3, 0)), np.ones(3))
decision = policy.decide(view, None, None)
print(decision.depth.tolist(), decision.draft_depth, repr(policy))
try:
    make_policy("halving", factor=2)
except TypeError as error:
    print(error)
"""


def run(program: str, path: Path | None) -> list[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_installed_package_brings_its_policy(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source)  # a build leaves files behind
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        + ["--disable-pip-version-check", "--target", str(target), str(source)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    names, decided, refused = run(PROGRAM, target)
    ours = ["acceptance-bandit", "batch-threshold", "fixed", "roofline-budget"]
    assert names.split(",") == sorted([*ours, "halving"])
    assert decided == "[2, 1, 0] 2 Halving(divisor=3)"
    assert refused == "policy 'halving' has no parameter 'factor'; it has divisor"
    # Without it, it is gone, and whoever asks for it is told what there is.
    missing = (
        "from adaptive_spec.policy import policy_class\ntry: policy_class('halving')\nexcept KeyError as e: print(e)"
    )
    (said,) = run(missing, None)
    assert "no policy is called 'halving'" in said
    assert "roofline-budget" in said
