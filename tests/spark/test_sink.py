"""Frames and streams written to a store by Spark and read back by Spark, with a JVM."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SMALL = {"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "500", "maxIndexNum": "2000"}


def _frame(spark: SparkSession, first: int, last: int) -> Any:
    return spark.range(first, last, 1, 3).selectExpr(
        "concat('T', id % 2) as topic",
        "encode(repeat(cast(id as string), 10), 'utf-8') as value",
        "concat('k', id) as key",
        "if(id % 3 = 0, null, concat('tag', id % 3)) as tags",
        "map('n', cast(id as string)) as properties",
        "timestamp_millis(1700000000000 + id) as timestamp",
    )


def _read(spark: SparkSession, root: Path) -> list[tuple[Any, ...]]:
    frame = spark.read.format("rocketmq").option("includeProperties", "true").load(str(root))
    rows = frame.selectExpr(
        "topic", "cast(value as string) v", "cast(key as string) k", "tags", "properties['n'] n"
    ).collect()
    return sorted(tuple(row) for row in rows)


def _expected(first: int, last: int) -> list[tuple[Any, ...]]:
    return sorted(
        (f"T{n % 2}", str(n) * 10, f"k{n}", f"tag{n % 3}" if n % 3 else None, str(n))
        for n in range(first, last)
    )


def _write(frame: Any, root: Path, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("rocketmq").mode(mode).option("path", str(root))
    for name, value in {**SMALL, **options}.items():
        writer = writer.option(name, value)
    writer.save()


def test_a_frame_becomes_a_store(spark: SparkSession, tmp_path: Path) -> None:
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.verify import verify

    root = tmp_path / "store"
    _write(_frame(spark, 0, 500), root)
    assert _read(spark, root) == _expected(0, 500)
    _write(_frame(spark, 500, 600), root, loadId="once")
    _write(_frame(spark, 500, 600), root, loadId="once")
    assert _read(spark, root) == _expected(0, 600)
    with StoreReader(str(root), SMALL) as reader:
        assert not verify(reader, threads=1).damage
    [row] = (
        spark.read.format("rocketmq").load(str(root)).where("key = cast('k77' as binary)").collect()
    )
    assert bytes(row.value) == b"77" * 10
    _write(_frame(spark, 7, 9), root, mode="overwrite")
    assert _read(spark, root) == _expected(7, 9)


def test_a_failing_row_leaves_the_store_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "store"
    _write(_frame(spark, 0, 50), root)
    bad = _frame(spark, 50, 90).selectExpr(
        "if(value = encode(repeat('77', 10), 'utf-8'), 'not/a topic', topic) as topic", "value"
    )
    with pytest.raises(Exception, match="not/a topic"):
        _write(bad, root)
    assert _read(spark, root) == _expected(0, 50)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_options_of_the_sink_are_checked(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nearest known one is compression"):
        _write(_frame(spark, 0, 2), tmp_path / "store", compresion="zstd")
    with pytest.raises(Exception, match="no column 'colour'"):
        _write(spark.sql("select 'x' as value, 'red' as colour"), tmp_path / "store", topic="T")
    assert not (tmp_path / "store").exists()


def test_a_stream_is_written_once_also_when_commits_are_forgotten(
    spark: SparkSession, growing_store: Any, tmp_path: Path
) -> None:
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"

    def run() -> None:
        query = (
            spark.readStream.format("rocketmq")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40")
            .load(str(growing_store.root))
            .select("topic", "value", "key", "tags", "partition")
            .writeStream.format("rocketmq")
            .options(**SMALL)
            .option("path", str(target))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    for number in range(100):
        growing_store.append("A", number % 3, b"%d" % number, keys=f"k{number}")
    run()
    # The sink has committed the last batch, Spark does not know it.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    shutil.rmtree(checkpoint / "commits" / f".{newest.name}.crc", ignore_errors=True)
    for number in range(100, 110):
        growing_store.append("A", number % 3, b"%d" % number, keys=f"k{number}")
    run()
    rows = spark.read.format("rocketmq").load(str(target)).collect()
    assert sorted(int(row.value) for row in rows) == list(range(110))
    for queue in range(3):
        bodies = [
            int(row.value)
            for row in sorted(rows, key=lambda row: row.offset)
            if row.partition == queue
        ]
        assert bodies == sorted(bodies)


def test_a_stream_with_its_whole_result_in_each_batch_is_refused(
    spark: SparkSession, growing_store: Any, tmp_path: Path
) -> None:
    growing_store.append("A", 0, b"1")
    query = (
        spark.readStream.format("rocketmq")
        .option("startingOffsets", "earliest")
        .load(str(growing_store.root))
        .groupBy("topic")
        .count()
        .selectExpr("topic", "cast(count as string) as value")
        .writeStream.format("rocketmq")
        .options(**SMALL)
        .outputMode("complete")
        .option("path", str(tmp_path / "counts"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(Exception, match="output mode complete: a store is only appended to"):
        query.start().awaitTermination(120)
    assert not (tmp_path / "counts").exists()


def _tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] not in ("lock", "config", "oberth")
    }


def test_a_load_in_tasks_writes_what_a_sink_writes(spark: SparkSession, tmp_path: Path) -> None:
    from oberth.spark.pipelines.bulk_load import load

    one, two = tmp_path / "one", tmp_path / "two"
    for first, last in ((0, 900), (900, 1000)):
        frame = _frame(spark, first, last)
        _write(frame, one)
        report = load(frame, str(two), SMALL)
        assert (report.rows, report.repeated) == (last - first, False)
    assert _tree(one) == _tree(two)
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}
    again = {**SMALL, "loadId": "x"}
    assert load(_frame(spark, 0, 30), str(two), again).rows == 30
    assert load(_frame(spark, 0, 30), str(two), again).repeated
    assert load(_frame(spark, 0, 5), str(two), SMALL, batch=("q", 7)).rows == 5
    assert load(_frame(spark, 0, 5), str(two), SMALL, batch=("q", 7)).repeated
    assert load(_frame(spark, 0, 40), str(two), SMALL, overwrite=True).log_start == 0
    assert _read(spark, two) == _expected(0, 40)


def test_a_load_in_tasks_says_what_is_wrong_with_a_row(spark: SparkSession, tmp_path: Path) -> None:
    from oberth.errors import IllegalNameError, OptionError
    from oberth.spark.pipelines.bulk_load import load

    root = tmp_path / "store"
    frame = spark.range(20).selectExpr("if(id = 7, '', 'T') as topic", "'x' as value")
    with pytest.raises(IllegalNameError):
        load(frame, str(root))
    with pytest.raises(OptionError, match="price"):
        load(frame, str(root), {"price": "1"})
    assert not list(tmp_path.iterdir())
