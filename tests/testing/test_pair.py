"""A master and its slave under one seed: what a power cut of one of them takes comes back."""

from __future__ import annotations

import re

import pytest
from tests.testing.test_failover import run

MODULE = ["-m", "oberth.testing.pair"]


@pytest.mark.crash
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [("ASYNC", (6, 10, 19)), ("SYNC", (16, 13, 25)), ("SYNC, acting", (28, 7, 4))],
)
def test_what_was_acknowledged_survives_power_cuts(kind: str, seeds: tuple[int, ...]) -> None:
    """A seed's luck changes with the code: up to three, until a slave was damaged in one."""
    for seed in seeds:
        done = run(*MODULE, "--seed", str(seed), "--seconds", "60")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"seed {seed} holds ({kind})" in done.stdout
        if re.search("slave damaged [1-9]", done.stdout):
            return
    pytest.fail("no seed damaged a slave")
