"""What every test may rely on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests/*.py oracles are imported by name

# Each of several workers would start as many threads as there are cores, and they would wait for one another. Tests
# that are about threads set their number themselves.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _workers > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // _workers, 1)))
