"""Runs a benchmark in a small form, so that none of them rots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def rows_of(name: str, *arguments: str) -> list[dict[str, Any]]:
    """The rows that ``python -m benchmarks.NAME --small`` reports."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--small", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows
