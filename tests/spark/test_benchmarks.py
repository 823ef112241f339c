"""The Spark benchmarks run small, so that they cannot rot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["source_vs_kafka", "load_vs_apache", "cost_model", "cost_grid"])
def test_it_runs_small(
    spark: SparkSession,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    module = __import__(f"benchmarks.spark.{name}", fromlist=["main"])
    module.main(["--small"])
    report = json.loads(capsys.readouterr().out)
    assert report["rows"]
    # Constants can come out as nothing where so little is measured.
    low = -1 if name == "cost_model" else 0
    ours = "measured" if name == "cost_grid" else "oberth"
    assert all(row["medians"][ours] > low for row in report["rows"])
    assert f"benchmarks.spark.{name}" in sys.modules


LIVE = [
    "continuous-delta", "continuous-iceberg", "stream-delta", "stream-iceberg", "lake-delta",
    "lake-iceberg",
]  # fmt: skip
ON_A_CLUSTER = ["redrive", "load", "sink"]
KILLS = 1
"""Of each pipeline, some fifteen seconds each, more on a busy machine; the command has 20."""


Drill = Callable[..., list[Any]]


@pytest.fixture
def drill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Drill:
    """Runs the drill of kills; its rounds, the calm one before the kills included."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))

    def run(name: str, kills: int, *words: str) -> list[Any]:
        from benchmarks.spark.kills import main

        status = main(["--only", name, "--count", str(kills), "--dir", str(tmp_path), *words])
        *rows, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row for row in rows if row["wrong"]] == []
        assert (status, last["rounds"]) == (0, len(rows))
        return rows

    return run


@pytest.mark.slow
@pytest.mark.timeout(900)  # commands that start Spark anew, beside other tests
def test_the_drill_of_kills_runs_small(drill: Drill) -> None:
    assert len(drill("export-delta", 1, "--rows", "500")) >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LIVE)
def test_tables_of_live_topics_have_every_message_once_whatever_is_killed(
    drill: Drill, name: str
) -> None:
    rows = drill(name, KILLS, "--seed", "51")
    assert sum(bool(row["victim"]) for row in rows) == KILLS


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_nothing_is_missing_whatever_is_killed_on_a_cluster(drill: Drill, name: str) -> None:
    """Executors of their own, second copies of slow tasks, and tasks that are tried again."""
    rows = drill(name, KILLS, "--cluster", "--rows", "5000", "--seed", "52")
    assert sum(bool(row["victim"]) for row in rows) == KILLS
