"""The demonstration of `make run` ends well, with a few thousand flights instead of all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_demonstration_holds() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "flights.py"), "--count", "4000", "--no-spark"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything holds" in done.stdout
    assert "acknowledged and lost: 0" in done.stdout
