"""The distributed salvage makes the store, and names the losses, of `oberth store salvage`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.campaigns import examples
from tests.rigs.damage import foreign_bytes

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


@settings(max_examples=examples("tests/spark/pipelines/test_salvage.py::test_damaged_logs"))
@given(
    damage=foreign_bytes(900_000, 3000),
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


@pytest.mark.parametrize("name", ["4-5-4", "4-ours-5-4-5", "5-4-ours"])
@pytest.mark.parametrize("range_size", [3000, 1 << 20])
@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
def test_stores_of_mixed_lines(name: str, range_size: int, at: float, tmp_path: Path) -> None:
    """Tags are in the Index in stretches, and stay so around a lost record."""
    mixed = Path(__file__).parents[2] / "golden" / "mixed"
    with tarfile.open(mixed / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / name
    with StoreReader(root) as reader:
        tagged = [each.commit_log_offset for each in reader.messages() if each.tags]
        before = index_entries(reader)
    lost = tagged[int(len(tagged) * at)]
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(lost)
        file.write(bytes(40))
    with StoreReader(root) as reader:
        expected = salvage_here(reader, str(tmp_path / "here"))
    found = salvage(InProcess(), str(root), str(tmp_path / "there"), range_size=range_size)
    assert comparable(found) == comparable(expected)
    assert files(tmp_path / "there") == files(tmp_path / "here")
    with StoreReader(tmp_path / "there") as reader:
        assert index_entries(reader) == [each for each in before if each[0] != lost]


def test_entries_of_a_lost_record_do_not_count_for_another(
    golden_pristine: Golden, tmp_path: Path
) -> None:
    """In one task's range the lost record's one entry makes up in number for that of a tag."""
    root = tmp_path / "store"
    shutil.copytree(golden_pristine("crash-4.9.7").root, root)
    lost = 359_909
    with StoreReader(root) as reader:
        before = index_entries(reader)
        lost_bytes = reader.record_at(lost).record_size
    with (root / "commitlog" / f"{262_144:020}").open("r+b") as file:
        file.seek(lost - 262_144 + lost_bytes // 2)
        file.write(b"damaged")
    salvage(InProcess(), str(root), str(tmp_path / "saved"), range_size=20_000)
    wanted = [each for each in before if each[0] != lost]
    with StoreReader(tmp_path / "saved") as reader:
        # Behind the last entry of the Index that the crash left there are more records.
        assert index_entries(reader)[: len(wanted)] == wanted


def index_entries(reader: StoreReader) -> list[tuple[int, int]]:
    return [
        (entry.commit_log_offset, entry.key_hash)
        for view in reader.index_files()
        for entry in view.entries()
    ]


class Late(InProcess):
    """Copies of segments are killed when they are whole, and made again when the queues are."""

    def __init__(self) -> None:
        self._copy: Callable[[], list[Any]] = list
        self.late = 0

    def run(self, function: Any, items: Any, *, what: str, done: Any = None) -> list[Any]:
        if what == "copy segments":
            self._copy = lambda: [function(item) for item in items]
            for item in items:
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(os, "replace", self._killed)
                    with pytest.raises(InterruptedError):
                        function(item)
        elif what == "write queues":
            self.late += len(self._copy())
        return super().run(function, items, what=what, done=done)

    def _killed(self, *_: str) -> None:
        raise InterruptedError


def test_a_late_attempt_at_a_copy_undoes_nothing(golden_pristine: Golden, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden_pristine("basic-5.5.0").root, root)
    with StoreReader(root) as reader:
        lost = [each.commit_log_offset for each in reader.messages()][20]
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(lost)
        file.write(bytes(40))
    with StoreReader(root) as reader:
        expected = salvage_here(reader, str(tmp_path / "here"))
    assert expected.lost
    tasks = Late()
    found = salvage(tasks, str(root), str(tmp_path / "there"))
    assert tasks.late > 0
    assert comparable(found) == comparable(expected)
    assert files(tmp_path / "there") == files(tmp_path / "here")


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
