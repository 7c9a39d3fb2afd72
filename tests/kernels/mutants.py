"""Faults put into the kernels on purpose: each must make a test fail.

    python tests/kernels/mutants.py [--only NAME]

Each fault is one replacement in a copy of the package, on which the interpreter's tests are run. Prints one line a
fault, and returns 1 if any survives. Takes some minutes; not part of the test suite.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """One fault: in `file`, `good` becomes `bad`; `tests` should fail."""

    name: str
    file: str
    good: str
    bad: str
    tests: str


VERIFY, ATTENTION, DEPTHS, NOISE, ROTARY = (
    f"test_triton_{part}.py" for part in ("verify", "attention", "depths", "noise", "rotary")
)
MUTANTS = (
    Mutant(
        "the bound of the noise is half a nat too low",
        "triton_noise.py",
        "32 * 0.6931471805599453 + 1e-3",
        "32 * 0.6931471805599453 - 0.5",
        VERIFY + " " + NOISE,
    ),
    Mutant("the hash loses a round", "triton_noise.py", "h = (h ^ (h >> A2)) * F2\n", "h = h * F2\n", NOISE),
    Mutant(
        "ties go to the higher token",
        "float_order.py",
        "(token ^ TOKEN_MOST).to(tl.int64)",
        "token.to(tl.int64)",
        VERIFY,
    ),
    Mutant("NaN is not cleaned", "float_order.py", "tl.where(x == x, x, NEG_INF)", "x", VERIFY),
    Mutant("the last tile of a split is left out", "verify.py", "first + tiles, ", "first + tiles - 1, ", VERIFY),
    Mutant(
        "all rows of a sequence share one position",
        "verify.py",
        "tl.load(position_ptr + b) + j, MATCH_STREAM",
        "tl.load(position_ptr + b), MATCH_STREAM",
        VERIFY,
    ),
    Mutant(
        "a draft after a refused one counts",
        "verify.py",
        "tl.min(tl.where((j < depth) & (token == drafted), WIDTH, j), axis=0)",
        "tl.sum(((j < depth) & (token == drafted)).to(tl.int32), axis=0)",
        VERIFY,
    ),
    Mutant(
        "drafts are packed with the rows' offsets",
        "verify.py",
        "draft_ptr + first - b + j",
        "draft_ptr + first + j",
        VERIFY,
    ),
    Mutant("top-k keeps one token less", "truncation.py", "axis=0) >= k", "axis=0) > k", VERIFY),
    Mutant("top-k on the row keeps one token less", "truncation.py", "pivot, BLOCK) >= k", "pivot, BLOCK) > k", VERIFY),
    Mutant(
        "top-p is taken of all tokens",
        "truncation.py",
        "mass = tl.where(key >= k_key, ",
        "mass = tl.where(key >= key, ",
        VERIFY,
    ),
    Mutant(
        "the nucleus' bound is too high",
        "truncation.py",
        "bound = peak + tl.log(share) - FLOOR_MARGIN",
        "bound = peak + tl.log(share) + 6.0",
        VERIFY,
    ),
    Mutant(
        "a refused draft's probability is not taken off", "ratio.py", "left = tl.exp(x) - q", "left = tl.exp(x)", VERIFY
    ),
    Mutant(
        "drafts are always accepted",
        "ratio.py",
        "low_word(k0, high)) * q <= p)",
        "low_word(k0, high)) * q <= 2.0)",
        VERIFY,
    ),
    Mutant(
        "splits of a row's sum are not rescaled", "ratio.py", "total * tl.exp(top - peak[:, None])", "total", VERIFY
    ),
    Mutant(
        "a query sees the next one's key",
        "attention.py",
        "t[None, :] <= last[:, None]",
        "t[None, :] <= last[:, None] + 1",
        ATTENTION,
    ),
    Mutant("old sums are not faded", "attention.py", "sums = sums * fade[:, None]", "sums = sums", ATTENTION),
    Mutant(
        "splits are merged without their maxima",
        "attention.py",
        "weight = tl.exp2(top - tl.max(top, axis=0))",
        "weight = tl.where(is_split, 1.0, 0.0)",
        ATTENTION,
    ),
    Mutant(
        "heads of a group are mixed up",
        "attention.py",
        "head = kv * GROUP + m % GROUP",
        "head = kv + (m % GROUP) * (HEADS // GROUP)",
        ATTENTION,
    ),
    Mutant("a negative slot is written", "attention.py", "if slot < 0:", "if slot < -1:", ATTENTION),
    Mutant(
        "ties are ranked by the sequence first",
        "allocate.py",
        "(f[None, :] < e[:, None])",
        "(f[None, :] > e[:, None])",
        DEPTHS,
    ),
    Mutant("a cap lets one deeper slot in", "allocate.py", "(depth <= cap)", "(depth <= cap + 1)", DEPTHS),
    Mutant(
        "prices beyond nine slots are not looked up",
        "allocate.py",
        "seconds = tl.load(verify_seconds_ptr + count, ",
        "seconds = tl.load(verify_seconds_ptr + tl.minimum(count, 9), ",
        DEPTHS,
    ),
    Mutant(
        "limits are not looked at",
        "allocate.py",
        "return tl.where(k < tl.load(limit_ptr + b, mask=mask, other=0), worth, -1.0)",
        "return worth",
        DEPTHS,
    ),
    Mutant(
        "drafts beyond the first refused are judged",
        "accept_stats.py",
        "judged = tl.minimum(accepted + 1, ",
        "judged = tl.maximum(accepted + 1, ",
        DEPTHS,
    ),
    Mutant(
        "survival is the product of means",
        "accept_stats.py",
        "survival = (mean * 4.0 + low + high) * SIXTH",
        "survival = mean",
        DEPTHS,
    ),
    Mutant("the second half turns the other way", "rotary.py", "b * cos + a * sin", "b * cos - a * sin", ROTARY),
    Mutant("keys get the norm of queries", "rotary.py", "mask & (h >= queries)[:, None]", "mask & is_query", ROTARY),
)


def killed(mutant: Mutant) -> bool:
    """Whether the tests fail on a copy with this fault."""
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        tree = Path(folder)
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "adaptive_spec", tree / "adaptive_spec", ignore=skip)
        shutil.copytree(ROOT / "policies", tree / "adaptive_spec" / "policies", ignore=skip)
        shutil.copytree(ROOT / "kernels", tree / "adaptive_spec" / "kernels", ignore=skip)
        shutil.copytree(ROOT / "tests" / "kernels", tree / "tests", ignore=skip)
        path = tree / "adaptive_spec" / "kernels" / mutant.file
        source = path.read_text()
        if mutant.good not in source:
            raise SystemExit(f"{mutant.name}: {mutant.file} has no {mutant.good!r}")
        path.write_text(source.replace(mutant.good, mutant.bad))
        # The copy comes before an editable installation, whose finder is asked only for what is not on the path.
        code = (
            f"import sys; sys.path.insert(0, {str(tree)!r}); import adaptive_spec, pytest;"
            f"assert adaptive_spec.__file__.startswith({str(tree)!r}), adaptive_spec.__file__;"
            f"from adaptive_spec.kernels import ops; assert ops.__file__.startswith({str(tree)!r}), ops.__file__;"
            f"sys.exit(pytest.main(['-x', '-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *(str(tree / "tests" / name) for name in mutant.tests.split())],
            cwd=tree,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        )
        if done.returncode < 0:  # wild pointers crash the interpreter
            return True
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutant.name}: the tests could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.returncode == 1


def main() -> int:
    """Run all mutants and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    options = parser.parse_args()
    survivors = 0
    chosen = [mutant for mutant in MUTANTS[options.first :] if options.only in mutant.name]
    for mutant in chosen:
        dead = killed(mutant)
        survivors += not dead
        print(f"{'killed  ' if dead else 'SURVIVED'} {mutant.file}: {mutant.name}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
