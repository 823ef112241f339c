"""The kernels' benchmark runs small and reports every row, so that it cannot rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_it_runs_small() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", "--small", "--bytes", "200000"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["rows"]) == 10
    assert all(set(row["medians"]) <= {"compiled", "reference"} for row in report["rows"])
