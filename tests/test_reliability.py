"""The campaign's command: what it sums up, what it reports, and that a fault is not passed over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import __main__ as all_benchmarks
from benchmarks import reliability

HOLDS: dict[str, Any] = {
    "sent": 9, "acknowledged": 7, "checked": 20, "lost": 0,
    "luck": {"broker killed": 2, "power cut": 1, "network parted": 3}, "faults": [],
}  # fmt: skip


def answer(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> list[Sequence[str]]:
    """Every run ends with this; gives what was run."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> dict[str, Any]:
        commands.append(command)
        seed = command[command.index("--seed") + 1] if "--seed" in command else "0"
        if command[0] == "benchmarks.group":
            Path(command[1]).mkdir()
            seed = command[2]
        return {**found, "seed": int(seed)}

    monkeypatch.setattr(reliability, "run", run)
    return commands


def test_every_part_runs_and_is_summed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    commands = answer(monkeypatch, {**HOLDS, "counts": {}, "honest": {"messages": 5}})
    out = tmp_path / "kept" / "report.md"
    reliability.main(["--small", "--jobs", "2", "--seed", "40", "--out", str(out)])
    assert [each[0] for each in commands] == [
        "oberth.testing.failover",
        "oberth.testing.failover",
        "oberth.testing.pair",
        "oberth.testing.simulation",
        "benchmarks.group",
        "benchmarks.fuzz",
        "benchmarks.soak",
    ]
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert json.loads(out.with_suffix(".json").read_text("utf-8")) == report
    first = report["parts"][0]
    assert first["seeds"] == [40, 41]
    assert (first["kills"], first["cuts"], first["partitions"]) == (4, 2, 6)
    assert (first["acknowledged"], first["checked"], first["lost"]) == (14, 40, 0)
    text = out.read_text("utf-8")
    assert text in shown.err
    assert "| failover | 2 | 40 to 41 | 4 | 2 | 6 | 14 | 40 | 0 |" in text
    assert "| all | 7 |  | 12 | 6 | 18 |" in text
    assert "broker killed 12, network parted 18, power cut 6." in text
    assert text.endswith("Nothing was wrong.\n")


def test_a_fault_is_told_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer(monkeypatch, {**HOLDS, "lost": 1, "faults": ["a: acknowledged at T 3 and lost"]})
    out = tmp_path / "report.md"
    with pytest.raises(SystemExit) as ended:
        reliability.main(["--small", "--jobs", "1", "--only", "failover", "--out", str(out)])
    assert ended.value.code == 1
    text = out.read_text("utf-8")
    assert (
        "* python -m oberth.testing.failover --seed 1 --seconds 15 --json: "
        "a: acknowledged at T 3 and lost" in text
    )
    assert "Nothing was wrong" not in text


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("print('{}'); raise SystemExit(3)", "ended with 3"),
        ("raise ValueError('no')", "ended with 1: ValueError: no"),
        ('print(\'{"complaints": ["memory grew"]}\'); raise SystemExit(1)', "memory grew"),
    ],
)
def test_a_run_that_ends_badly_is_a_fault(
    program: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(program)
    monkeypatch.setattr(reliability, "ROOT", tmp_path)
    assert reliability.run(["broken"])["faults"] == [fault]


def test_a_part_goes_on_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer(monkeypatch, HOLDS)
    now = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: float(next(now)))
    monkeypatch.setattr(reliability, "time", clock)  # and no other thread's
    part = reliability.Part("simulation", 0.5)
    reliability.simulation(part, reliability.Plan(False, 0.1, 7, 1))
    assert part.seeds == [7, 8, 9]
    assert [each[4] for each in commands] == ["60"] * 3


def test_small_runs_of_it_are_among_the_benchmarks() -> None:
    assert "reliability" in all_benchmarks.names()
    assert "group" not in all_benchmarks.names()
