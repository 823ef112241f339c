"""A group under one seed: nothing acknowledged is lost when masters die, and a seed replays.

Runs are processes of their own, since a seed only replays with a fixed order of sets.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RUN_TIMEOUT_S = 1500
MODULE = ["-m", "oberth.testing.failover"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


@pytest.mark.crash
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_acknowledged_survives_failovers(seed: int) -> None:
    done = run(*MODULE, "--seed", str(seed), "--seconds", "25")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {seed} holds" in done.stdout
    assert "broker killed" in done.stdout
    assert ", 0 acknowledged" not in done.stdout


@pytest.mark.crash
def test_a_seed_replays() -> None:
    first, second = (run(*MODULE, "--seed", "3", "--seconds", "8").stdout for _ in range(2))
    assert "seed 3 holds" in first
    assert first == second
