"""Fuzzing and churn run small: nothing to complain of, and the commands cannot rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.campaigns import rounds

pytestmark = pytest.mark.slow


def report_of(*arguments: str) -> dict[str, Any]:
    """What a benchmark printed; its complaints are the message of the failure."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["complaints"], done.returncode) == ([], 0)
    return report


def test_frames_of_any_kind_change_nothing_for_an_honest_client() -> None:
    count = rounds(
        "tests/broker/test_fuzz_and_soak.py"
        "::test_frames_of_any_kind_change_nothing_for_an_honest_client"
    )
    report = report_of("benchmarks.fuzz", "--frames", str(count), "--seed", "7")
    assert report["frames"] == count
    assert report["honest"]["messages"] > 50


def test_frames_at_a_gate_and_over_tls_change_nothing_either() -> None:
    report = report_of("benchmarks.fuzz", "--small", "--seed", "8", "--acl", "--tls")
    assert report["frames"] == 3000
    assert report["honest"]["messages"] > 50


def test_a_life_leaves_nothing_behind() -> None:
    report = report_of("benchmarks.soak", "--small")
    assert report["counts"]["lives"] > 1
    assert report["verify"] == []
