"""A master and its slave under one seed: what a power cut of one of them takes comes back."""

from __future__ import annotations

import re

import pytest
from tests.testing.test_failover import run

MODULE = ["-m", "oberth.testing.pair"]


@pytest.mark.crash
@pytest.mark.parametrize(("seed", "kind"), [(6, "ASYNC"), (13, "SYNC"), (7, "SYNC, acting")])
def test_what_was_acknowledged_survives_power_cuts(seed: int, kind: str) -> None:
    done = run(*MODULE, "--seed", str(seed), "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {seed} holds ({kind}" in done.stdout
    assert re.search("slave damaged [1-9]", done.stdout)
