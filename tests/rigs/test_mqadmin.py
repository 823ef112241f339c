"""What differs between any two runs of mqadmin is left out; what a person would miss is not."""

from __future__ import annotations

import pytest
from tests.rigs.mqadmin import CommandRun, compare, normalise


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"broker-a   1   SEND_OK   {32 * 'A'}", f"broker-a 0 SEND_OK {32 * 'B'}"),
        ("queueId=1], queueOffset=0, recallHandle=x", "queueId=3], queueOffset=14, recallHandle=x"),
        ("broker-a  0  true  4", "broker-a  0  true  445"),
        ("at 2026-01-01 10:00:00,5", "at 2027-02-03 11:22:33,123"),
        ("%RETRY%AdminIdle  broker-a  0  0  0  0  0  N/A\nTotal: 4", "Total: 4"),
    ],
)  # fmt: skip
def test_chance_and_time_are_left_out(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("broker-a 1 SEND_OK x", "broker-b 1 SEND_OK x"),
        ("broker-a 0 true 4", "broker-a 0 false 4"),
        ("AdminTopic broker-a 0 14", "AdminTopic broker-a 0 15"),
        ("%RETRY%AdminGroup broker-a 0 0", ""),
    ],
)
def test_what_counts_is_not(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_verdicts() -> None:
    def run(
        label: str, *, ok: bool | None = True, output: str = "", detail: str = ""
    ) -> CommandRun:
        return CommandRun(label, label, ok, True, detail, output, "")

    theirs = [
        run("a", output="x"), run("b", output="x"), run("c"), run("d", ok=False, detail="no"),
        run("e", ok=False, detail="no"), run("f", ok=False), run("g", ok=None), run("h"),
    ]  # fmt: skip
    ours = [
        run("a", output="x"), run("b", output="y"), run("c", ok=False),
        run("d", ok=False, detail="no"), run("e", ok=False, detail="never"), run("f"), run("g"),
    ]  # fmt: skip
    assert compare(theirs, ours) == {
        "a": "equal",
        "b": "differs",
        "c": "fails",
        "d": "both fail",
        "e": "fails otherwise",
        "f": "only ours works",
        "g": "no such command",
        "h": "fails",
    }
