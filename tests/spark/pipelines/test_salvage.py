"""The distributed salvage makes the store, and names the losses, of `oberth store salvage`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.cli.main import oberth
from oberth.spark.pipelines.salvage import losses_frame, salvage
from oberth.spark.pipelines.tasks import InProcess
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.salvage import salvage as salvage_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def comparable(report: Any) -> Any:
    values = report.to_json()
    del values["seconds"]
    del values["rebuilt"]["seconds"]
    values["rebuilt"]["standIns"].sort(key=str)
    return values


@settings(max_examples=15)
@given(
    damage=st.lists(
        st.tuples(
            st.integers(0, 900_000),
            st.one_of(st.binary(min_size=1, max_size=30), st.integers(1, 3000).map(bytes)),
        ),
        min_size=1,
        max_size=5,
    ),
    range_size=st.integers(5000, 200_000),
)
def test_damaged_logs(
    golden_pristine: Golden,
    tmp_path_factory: pytest.TempPathFactory,
    damage: list[tuple[int, bytes]],
    range_size: int,
) -> None:
    base = tmp_path_factory.mktemp("damaged")
    root = base / "store"
    shutil.copytree(golden_pristine("crash-5.5.0").root, root)
    for position, data in damage:
        for path in (root / "commitlog").iterdir():
            at = position - int(path.name)
            if 0 <= at < path.stat().st_size - len(data):
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(data)
    with StoreReader(root) as reader:
        expected = salvage_here(reader, str(base / "here"))
    found = salvage(InProcess(), str(root), str(base / "there"), range_size=range_size)
    assert comparable(found) == comparable(expected)
    assert files(base / "there") == files(base / "here")
    shutil.rmtree(base)


@pytest.mark.spark
def test_on_spark(spark: SparkSession, golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("flipped-bit-5.5.0")
    into = str(tmp_path / "salvaged")
    done = CliRunner().invoke(
        oberth, ["spark", "salvage", str(store.root), "--into", into, "--json"]
    )
    assert done.exit_code == 0, done.output
    assert [lost["start"] for lost in json.loads(done.stdout)["lost"]] == [46535]
    with StoreReader(store.root) as reader:
        report = salvage_here(reader, str(tmp_path / "here"))
    assert files(tmp_path / "salvaged") == files(tmp_path / "here")
    [row] = losses_frame(spark, report).collect()
    assert (row.start, row.commitLogOffset, row.reason) == (46535, 46535, report.lost[0].reason)
