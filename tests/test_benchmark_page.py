"""Benchmarks that cannot flatter: turns of a machine that moved are shown, and do not count."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import __main__ as all_benchmarks
from benchmarks import connections, page
from benchmarks.calm import TRIES, Calm, Watch, look, moved
from benchmarks.report import Row, emit, take_turns

CALM = Calm(0.99, 1000.0)
BUSY = Calm(0.5, 1000.0)
SLOW = Calm(0.99, 700.0)


def test_a_machine_that_moved() -> None:
    assert moved(CALM, CALM) is None
    assert moved(CALM, Calm(0.95, 900.0)) is None
    assert "50% of the cores before" in (moved(BUSY, CALM) or "")
    assert "50% of the cores after" in (moved(CALM, BUSY) or "")
    assert "from 1e+03 to 700" in (moved(CALM, SLOW) or "")


def test_a_look_at_this_machine() -> None:
    calm = look(0.01)
    assert calm.share > 0
    assert calm.speed > 0
    assert set(calm.as_json()) == {"share", "speed"}


def test_turns_that_do_not_count_are_taken_again_and_kept(tmp_path: Path) -> None:
    looks = iter([CALM, BUSY, CALM, CALM, CALM, CALM, *[SLOW, CALM] * TRIES])
    watch = Watch(lambda: next(looks))
    table = {"rate": Row("rate", "1/s", 1.0)}
    taken: list[str] = []

    def measure(kind: str, place: Path, add: Callable[[str, float], None]) -> None:
        assert not place.exists()
        place.mkdir(parents=True)
        taken.append(kind)
        add("rate", float(len(taken)))

    assert take_turns(["a", "b", "c"], 1, table, measure, parent=tmp_path, watch=watch) == {}
    assert taken == ["a", "a", "b", *["c"] * TRIES]
    assert table["rate"].figures == {"a": [2.0], "b": [3.0]}
    assert [turn["thrown_away"] is None for turn in watch.turns] == [
        False, True, True, *[False] * TRIES,
    ]  # fmt: skip
    assert watch.turns[0]["figures"] == [("rate", 1.0)]


def test_a_rate_that_stands_still() -> None:
    assert not connections.stands_still([100.0, 100.0])
    assert not connections.stands_still([100.0, 120.0, 100.0])
    assert connections.stands_still([10.0, 100.0, 104.0, 101.0])


def test_the_page_has_every_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row("rate", "1/s", 2.0), Row("memory", "MB", limit=80, lower_is_better=True)]
    for side, figures in (("apache", (10.0, 12.0)), ("ours", (31.0, 29.0))):
        for figure in figures:
            rows[0].add(side, figure)
    rows[1].add("ours", 90.0)
    turn = {"kind": "ours", "figures": [("rate", 31.0)], "before": CALM.as_json()}
    turns: list[dict[str, Any]] = [
        {**turn, "after": CALM.as_json(), "thrown_away": None},
        {
            **turn,
            "after": BUSY.as_json(),
            "thrown_away": "other work had 50% of the cores after it",
        },
    ]
    emit("rates", rows, ours="ours", rival="apache", skipped={"apache-4": "no Java"}, turns=turns)
    report = capsys.readouterr().out
    text = page.page([json.loads(report)], ["broken"])
    assert "| rate | 1/s | apache: 11.0; ours: 30.0 | 2.727 | ≥ 2.0 | met |" in text
    assert "apache: 10.0, 12.0; ours: 31.0, 29.0" in text
    assert "| ≤ 80 | **not met** |" in text
    assert "| 1 | ours | 0.99 → 0.99 | 1,000 → 1,000 | yes | rate 31 |" in text
    assert "| no: other work had 50% of the cores after it |" in text
    assert "Skipped: apache-4: no Java" in text
    assert "is not here: broken" in text

    # Each benchmark is a process; one that fails is told, and the others are on the page.
    commands = []

    def run(command: list[str], **_: object) -> Any:
        commands.append(command[1:])
        fails = command[2] == "benchmarks.broker"
        return type("Done", (), {"stdout": "" if fails else report, "returncode": int(fails)})

    monkeypatch.setattr(subprocess, "run", run)
    out = tmp_path / "build" / "page.md"
    with pytest.raises(SystemExit, match="failed: broker"):
        page.main(["--small", "--out", str(out), "connections", "broker"])
    assert commands == [
        ["-m", "benchmarks.connections", "--small"],
        ["-m", "benchmarks.broker", "--small"],
    ]
    assert "## rates" in out.read_text("utf-8")
    assert json.loads(out.with_suffix(".json").read_text("utf-8")) == [json.loads(report)]


def test_the_page_is_no_benchmark_itself() -> None:
    assert {"connections", "broker"} <= set(all_benchmarks.names())
    assert not {"page", "calm"} & set(all_benchmarks.names())
    assert set(page.NAMES) <= set(all_benchmarks.names())
