"""A master and its slave under one seed: what a power cut of one of them takes comes back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

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


def test_of_an_asynchronous_master_goes_what_its_slave_lacks_and_no_more() -> None:
    for seed in (5, 6, 20):
        done = run(*MODULE, "--seed", str(seed), "--seconds", "60")
        assert done.returncode == 0, done.stdout + done.stderr
        if re.search("not replicated [1-9]", done.stdout):
            return
    pytest.fail("no seed lost a message")


def test_the_history_of_a_pair_is_judged() -> None:
    """In a run in which the master loses power, and sends go over to its slave."""
    done = run(*MODULE, "--seed", "3", "--seconds", "15", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (found["seed"], found["lost"], found["faults"]) == (3, 0, [])
    assert 0 < found["acknowledged"] < found["sent"]
    assert found["checked"] > found["acknowledged"]


LOSES: Final = """
import logging, sys
from pathlib import Path
from oberth.testing.failover import TOPIC
from oberth.testing.pair import Pair
from oberth.testing.simulated_loop import simulated
from oberth.testing.simulation import show_and_exit

logging.disable()
with simulated(1) as loop:
    pair = Pair(loop, Path(sys.argv[1]), 0)
    pair.history.sent("one", pair.history.begin(), queue=TOPIC, offset=10**6)
    faults = loop.run_until_complete(pair.run())
show_and_exit(str(faults), faults, None)
"""


def test_a_lost_message_of_a_pair_is_a_fault(tmp_path: Path) -> None:
    done = run("-c", LOSES, str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "one: acknowledged at " in done.stdout
    assert "1000000 and lost" in done.stdout
