"""Iceberg tables whose files are joined and whose snapshots are forgotten keep every row.

The upkeep is killed at each of its steps, in turn; after each kill the union with the log is the
log read whole, and strangers read the tables. Tasks run in this process.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.rigs.campaigns import rounds

pytest.importorskip("pyspark")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType
from tests.rigs.killed_upkeep import kept_up_until_killed

from oberth.errors import OptionError
from oberth.spark.lake import open_lake
from oberth.spark.options import parse_read_options
from oberth.spark.pipelines.export.compaction import compact, expire
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.iceberg_upkeep import neighbours
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.export.tables import IcebergTables
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQReader

COLUMNS = "value,topic,partition,offset,tags,properties,timestamp,physicalOffset,bodyError"
SETTINGS = ExportSettings("iceberg", partition_by=("tags",))
STEPS_MIN = 20
"""Of an upkeep that can be killed."""


def read(root: Path, **options: str) -> list[dict[str, Any]]:
    given = parse_read_options({"path": str(root), **options}, streaming=False)
    reader = RocketMQReader(given, struct_type(parse_columns(COLUMNS)))
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            rows += batch.to_pylist()
    return sorted(rows, key=lambda row: int(row["physicalOffset"]))


def whole(root: Path) -> list[dict[str, Any]]:
    return read(root, readOrder="commitlog")


class Lake:
    """A store, and its Iceberg tables in many small files."""

    def __init__(self, store: Any, into: Path) -> None:
        self.store, self.into = store, into
        self.count = 0

    def grow(self, count: int, settings: ExportSettings = SETTINGS) -> None:
        for _ in range(count):
            tags = ("", "red", "blue")[self.count % 3]
            properties = {"n": str(self.count)}
            self.store.append("A", 0, b"%d" % self.count, tags=tags, properties=properties)
            self.count += 1
        export(InProcess(), str(self.store.root), str(self.into), settings)

    def table(self) -> Any:
        catalog = SqlCatalog("oberth", uri=f"sqlite:///{self.into}/catalog.db")
        table = catalog.load_table("oberth.A")
        catalog.close()
        return table

    def named(self) -> list[str]:
        """The files that the newest snapshot has."""
        plan = self.table().scan().plan_files()
        return sorted(task.file.file_path.removeprefix("file://") for task in plan)

    def check(self) -> None:
        """Strangers have each row once, and the union is the log."""
        expected = Counter(b"%d" % number for number in range(self.count))
        rows = self.table().scan().to_arrow()
        assert Counter(rows.column("value").to_pylist()) == expected
        query = "select value from read_parquet($files)"
        found = duckdb.execute(query, {"files": self.named()}).fetchall()
        assert Counter(row[0] for row in found) == expected
        assert read(self.store.root, lake=str(self.into)) == whole(self.store.root)


@pytest.mark.timeout(900)  # with all its kills, beside other tests
def test_killed_at_each_step(growing_store: Any, tmp_path: Path) -> None:
    lake = Lake(growing_store, tmp_path / "lake")
    lake.grow(6)
    count = rounds("tests/spark/pipelines/test_iceberg_upkeep.py::test_killed_at_each_step")
    step = STEPS_MIN // count
    assert step
    kills = 0
    while True:
        lake.grow(3)
        done = kept_up_until_killed(str(lake.into), kills)
        lake.check()
        if done:
            break
        kills += step
    assert kills >= STEPS_MIN
    assert len(lake.named()) == 3  # a partition each
    assert [str(path) for path in sorted((lake.into / "A").glob("*.parquet"))] == lake.named()
    assert len(lake.table().snapshots()) == 1
    lake.grow(3)
    lake.check()
    assert export(InProcess(), str(growing_store.root), str(lake.into), SETTINGS).batches == 0


def test_sizes_partitions_and_time_travel(growing_store: Any, tmp_path: Path) -> None:
    lake = Lake(growing_store, tmp_path / "lake")
    for _ in range(3):
        lake.grow(6)
    before = lake.table().current_snapshot().snapshot_id
    assert compact(str(lake.into), 1) == 0  # none is smaller
    assert compact(str(lake.into), 1 << 20) == 9
    assert compact(str(lake.into), 1 << 20) == 0
    lake.check()
    red = lake.table().scan(row_filter="tags = 'red'")
    assert len(list(red.plan_files())) == 1
    assert len(red.to_arrow()) == 6
    # What was joined stays readable for as long as its snapshot is kept.
    assert expire(str(lake.into), 1.0) == 0
    assert len(lake.table().scan(snapshot_id=before).to_arrow()) == 18
    assert expire(str(lake.into), 0.0) > 9
    lake.check()


def test_only_what_is_old_and_ours_is_deleted(growing_store: Any, tmp_path: Path) -> None:
    lake = Lake(growing_store, tmp_path / "lake")
    lake.grow(3)
    directory = lake.into / "A"
    old, new, other = (
        directory / "part-00000009-x.parquet", directory / "joined-x.parquet", directory / "notes",
    )  # fmt: skip
    for path in (old, new, other):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    assert expire(str(lake.into), 1.0) == 1
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)
    lake.check()


def test_young_files_of_a_table_without_snapshots_stay(growing_store: Any, tmp_path: Path) -> None:
    """They may be those of another engine's first commit."""
    lake = Lake(growing_store, tmp_path / "lake")
    lake.grow(3)
    catalog = SqlCatalog("oberth", uri=f"sqlite:///{lake.into}/catalog.db")
    place = f"file://{lake.into}/B"
    made = catalog.create_table("oberth.B", schema=lake.table().schema(), location=place)
    catalog.close()
    metadata = Path(made.metadata_location.removeprefix("file://"))
    young, old = lake.into / "B" / "part-young.parquet", metadata.parent / "old.avro"
    for path in (young, old, metadata.parent / "young.avro"):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    os.utime(metadata, (1, 1))
    assert expire(str(lake.into), 1.0) == 1
    assert (young.exists(), old.exists(), metadata.exists()) == (True, False, True)
    assert len(list(metadata.parent.iterdir())) == 2


class LowerCatalog(SqlCatalog):
    """Names are in lower case here, whatever they are asked for by, as in Hive, Glue and Unity."""

    def load_table(self, identifier: Any) -> Any:
        return super().load_table(tuple(each.lower() for each in identifier))

    def create_table(self, identifier: Any, *arguments: Any, **more: Any) -> Any:
        lower = tuple(each.lower() for each in identifier)
        return super().create_table(lower, *arguments, **more)


def test_a_catalog_that_lowers_names(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, into, settings = str(growing_store.root), tmp_path / "lake", ExportSettings("iceberg")
    bodies: list[bytes] = []

    def add(topic: str) -> None:
        bodies.append(b"%d" % len(bodies))
        growing_store.append(topic, 0, bodies[-1])

    def killed(step: str) -> None:
        if step == "finish":
            raise KeyboardInterrupt

    monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog", LowerCatalog)
    add("OrderTopic")
    add("plain")
    export(InProcess(), root, str(into), settings)
    add("OrderTopic")
    with pytest.raises(KeyboardInterrupt):
        export(InProcess(), root, str(into), settings, step=killed)
    export(InProcess(), root, str(into), settings)
    assert [row["value"] for row in read(growing_store.root, lake=str(into))] == bodies
    assert {file.topic for file in open_lake(str(into)).files} == {"OrderTopic", "plain"}
    assert compact(str(into), 1 << 20) == 2
    catalog = SqlCatalog("oberth", uri=f"sqlite:///{into}/catalog.db")
    assert sorted(catalog.list_tables("oberth")) == [("oberth", "ordertopic"), ("oberth", "plain")]
    found = catalog.load_table("oberth.ordertopic").scan().to_arrow()
    assert sorted(found.column("value").to_pylist()) == [b"0", b"2"]
    catalog.close()
    # A topic that differs in case alone cannot be there too; what is there stays readable.
    add("ORDERTOPIC")
    with pytest.raises(OptionError, match="export into another namespace"):
        export(InProcess(), root, str(into), settings)
    assert [row["value"] for row in read(growing_store.root, lake=str(into))] == bodies


def test_topics_that_differ_in_case_alone(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the catalog tells them apart, one whose table a kill prevented is not the other."""
    root, into, settings = str(growing_store.root), tmp_path / "lake", ExportSettings("iceberg")
    growing_store.append("t", 0, b"1")
    export(InProcess(), root, str(into), settings)
    growing_store.append("T", 0, b"2")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTables, "_commit_table", killed)
        with pytest.raises(KeyboardInterrupt):
            export(InProcess(), root, str(into), settings)
    assert export(InProcess(), root, str(into), settings).rows == 1
    assert {file.topic for file in open_lake(str(into)).files} == {"t", "T"}


def test_a_tag_of_another_engine_stays(growing_store: Any, tmp_path: Path) -> None:
    lake = Lake(growing_store, tmp_path / "lake")
    for _ in range(3):
        lake.grow(3)
    table = lake.table()
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "audited").commit()
    assert compact(str(lake.into), 1 << 20) == 9
    assert expire(str(lake.into), 0.0) > 0
    assert len(lake.table().snapshots()) == 2
    assert len(lake.table().scan(snapshot_id=first).to_arrow()) == 3
    lake.check()


def test_columns_of_another_engine_stay(growing_store: Any, tmp_path: Path) -> None:
    lake = Lake(growing_store, tmp_path / "lake")
    lake.grow(3)
    table = lake.table()
    with table.update_schema() as change:
        change.add_column("weight", LongType())
    lake.grow(3)
    assert compact(str(lake.into), 1 << 20) == 6
    rows = lake.table().scan().to_arrow()
    assert rows.column("weight").to_pylist() == [None] * 6
    lake.check()


def test_a_commit_of_another_engine_wins(
    growing_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(growing_store, tmp_path / "lake")
    for _ in range(2):
        lake.grow(3)
    real, once = SqlCatalog.commit_table, [True]

    def overtaken(self: Any, *arguments: Any) -> Any:
        if once.pop() if once else False:
            lake.table().delete("tags = 'red'")
        return real(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    assert compact(str(lake.into), 1 << 20) == 0
    tags = lake.table().scan().to_arrow().column("tags").to_pylist()
    assert sorted(str(each) for each in tags) == ["None"] * 2 + ["blue"] * 2
    assert list((lake.into / "A").glob("joined-*")) == []
    assert compact(str(lake.into), 1 << 20) == 4


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({}, []),
        ({"a": 1}, []),
        ({"b": 4, "a": 4, "c": 4}, [["a", "b"]]),
        ({"a": 9, "b": 9, "c": 1, "d": 1}, [["b", "c"]]),
    ],
)
def test_neighbours(sizes: dict[str, int], found: list[list[str]]) -> None:
    assert neighbours(sizes, 10) == found
