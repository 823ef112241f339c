"""A cluster under one seed: nothing acknowledged is lost, a seed replays, what is wrong is seen.

Runs are processes of their own, since a seed only replays with a fixed order of sets.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs.campaigns import rounds

from oberth.broker.config_file import ConfigFile
from oberth.client.transactions import LocalTransactionState
from oberth.errors import OptionError
from oberth.testing.simulated_loop import Machine, simulated
from oberth.testing.simulation import Ledger, MachineDisk, Sent, Simulation, _BrokerLife

RUN_TIMEOUT_S = 1500


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oberth.testing.simulation", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S
    )


@pytest.mark.crash
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_what_was_acknowledged_survives_bad_luck(seed: int) -> None:
    done = run("--seed", str(seed), "--seconds", "25")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {seed} holds" in done.stdout


@pytest.mark.crash
def test_a_seed_replays() -> None:
    seconds = str(rounds("tests/testing/test_simulation.py::test_a_seed_replays"))
    first, second = (run("--seed", "11", "--seconds", seconds).stdout for _ in range(2))
    assert "seed 11 holds" in first
    assert first == second


@pytest.mark.crash
def test_a_broker_that_acknowledges_too_early_is_caught() -> None:
    """With asynchronous flush a power cut takes acknowledged messages: some seed must see it.

    What was sent within the five seconds between two checkpoints is at stake: most cuts take some.
    """
    settings = ("flushDiskType=ASYNC_FLUSH", "flushIntervalCommitLog=60000")
    for seed in range(1, 20):
        given = ("--seed", str(seed), "--seconds", "15", *(f"--set={each}" for each in settings))
        done = run(*given)
        if done.returncode:
            # Only the first faults are shown, and what was not consumed comes before them.
            assert "was acknowledged and is not stored" in run("--json", *given).stdout
            assert f"--seed {seed} --seconds=15 --set={' --set='.join(settings)}" in done.stdout
            return
    pytest.fail("no seed saw a loss")


def test_a_setting_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    with simulated(7) as loop, pytest.raises(OptionError, match="did you mean maxHashSlotNum"):
        Simulation(loop, tmp_path, 1.0, {"maxHashSlot": "50"})


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_configuration_files_come_whole_out_of_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: float
) -> None:
    """They lie on the disk that loses power: what was synced, or what was written after it."""
    with simulated(7) as loop:
        monkeypatch.setattr(loop, "spawn", lambda machine, work: work.close())
        simulation = Simulation(loop, tmp_path, 1.0, {})
        config = tmp_path / "broker-a-0" / "config"
        disk = MachineDisk()
        file = ConfigFile(config / "topics.json", disk)
        file.write_document({"text": "old" * 20_000}, sync=True)
        file.write_document({"text": "new" * 20_000})
        simulation.brokers["broker-a"] = _BrokerLife(Machine("broker-a"), disk, config.parent)
        simulation.start_broker("broker-a", keep=keep)
    found: list[dict[str, str]] = []
    copy = ConfigFile(tmp_path / "broker-a-1" / "config" / "topics.json")
    assert copy.load(found.append)
    text = found[0]["text"]
    assert text in ("old" * 20_000, "new" * 20_000)
    if keep != 0.5:
        assert text == ("new" if keep else "old") * 20_000


def ledger_of(*messages: Sent) -> Ledger:
    ledger = Ledger()
    for sent in messages:
        ledger.add(sent)
    return ledger


def test_ledger_names_what_was_lost() -> None:
    ledger = ledger_of(Sent("a", "plain", acknowledged=True), Sent("b", "plain"))
    assert ledger.missing("push") == ledger.missing("pop") == ["a"]
    ledger.consume("push", "a", 1)
    assert ledger.faults() == ["pop: lost a"]


def test_ledger_names_what_was_never_sent() -> None:
    ledger = Ledger()
    ledger.consume("push", "ghost", 1)
    assert ledger.faults() == ["push: never sent, consumed ghost"]


def test_ledger_names_what_came_early() -> None:
    ledger = ledger_of(Sent("a", "delayed", due_ms=100))
    ledger.consume("push", "a", 97)
    assert ledger.faults() == ["push: a came 3 ms early"]


@pytest.mark.parametrize("verdict", [None, LocalTransactionState.ROLLBACK_MESSAGE])
def test_ledger_names_what_was_not_committed(verdict: LocalTransactionState | None) -> None:
    ledger = ledger_of(Sent("a", "transaction", verdict=verdict, acknowledged=True))
    assert not ledger.missing("push")
    ledger.consume("push", "a", 1)
    assert "a was consumed" in ledger.faults()[0]


def test_ledger_names_what_came_out_of_order() -> None:
    ledger = ledger_of(
        *(Sent(f"p-{n}", "ordered", key="k", acknowledged=True) for n in (1, 2, 10)),
    )
    for n in (1, 10, 2, 1, 10):  # again later is no fault, for the first time later is
        ledger.consume("push", f"p-{n}", 1)
    assert ledger.faults() == ["push: p-2 came after p-10"]
