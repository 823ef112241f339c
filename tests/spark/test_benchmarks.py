"""The Spark benchmarks run small, so that they cannot rot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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


@pytest.mark.slow
def test_the_drill_of_kills_runs_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.spark.kills import main

    small = ["--only", "export-delta", "--count", "1", "--rows", "500", "--dir", str(tmp_path)]
    assert main(small) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["wrong"] for row in rows[:-1]] == ["", ""]
    assert rows[-1]["rounds"] == 2
