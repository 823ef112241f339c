"""Reading with Spark: our source over a store against Spark's Kafka source over a broker.

One session reads both, in turns, warm. Rows are the same number with bodies of the same size; both
sides read key, value, topic, partition, offset and timestamp. The count per topic and tag is put
beside the sum of all value lengths: Kafka's own count() is answered from offsets and reads nothing.

    python -m benchmarks.spark.source_vs_kafka --mb 1024 --sizes 1024,128
    python -m benchmarks.spark.source_vs_kafka --small --no-kafka
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.report import Row, emit
from benchmarks.spark.kafka import KafkaNode, connector_jars, kafka_node
from benchmarks.spark.stores import build, touch
from oberth.errors import PeerUnavailableError

TRUST = "index"  # of stores that this has just made
COLUMNS = "key,value,topic,partition,offset,timestamp"
OURS, RIVAL = "oberth", "kafka"
READ_BARS = {1024: 2.5, 128: 2.5}


def _timed(action: Callable[[], Any]) -> float:
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def _bytes_read(root: Path, key: str) -> int:
    """Bytes of files that planning and tasks read to find the one message with a key."""
    from pyspark.sql.datasource import EqualTo

    from oberth.spark.options import parse_read_options
    from oberth.spark.partitions import RocketMQPartition
    from oberth.spark.schemas import parse_columns, struct_type
    from oberth.spark.source import RocketMQReader
    from oberth.spark.storage import LocalStorage

    total = found = 0
    read_into = LocalStorage.read_into

    def counted(storage: LocalStorage, path: str, position: int, target: memoryview) -> int:
        nonlocal total
        total += (got := read_into(storage, path, position, target))
        return got

    options = parse_read_options({"path": str(root), "trust": TRUST}, streaming=False)
    reader = RocketMQReader(options, struct_type(parse_columns("*")))
    reader.accept_filters([EqualTo(("key",), key.encode())])
    with patch.object(LocalStorage, "read_into", counted):
        partitions = reader.partitions()
    for partition in partitions:
        assert isinstance(partition, RocketMQPartition)
        before = sum(store.storage.bytes_read for store in partition.stores.values())
        batches = reader.piece_reader(partition).read(partition.pieces)
        found += sum(batch.num_rows for batch in batches)
        total += sum(store.storage.bytes_read for store in partition.stores.values()) - before
    assert found == 1, (key, found)
    return total


def _measure(
    spark: Any, root: Path, node: KafkaNode | None, size: int, rows: int, args: Any
) -> Any:
    from pyspark.sql import functions as f

    from oberth.spark.transforms import count_by_tag

    def ours() -> Any:
        reader = spark.read.format("rocketmq").option("columns", COLUMNS)
        return reader.option("readOrder", args.order).load(str(root))

    def theirs() -> Any:
        assert node is not None
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", node.servers)
        frame = reader.option("startingOffsets", "earliest").option("subscribe", f"t{size}").load()
        return frame.select(*COLUMNS.split(","))

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def count() -> None:
        total = sum(row["count"] for row in count_by_tag(spark, str(root)).collect())
        assert total == rows, (total, rows)

    def key() -> None:
        wanted = f"cast('k{rows // 2}' as binary)"
        reader = spark.read.format("rocketmq").option("pushdown", "true").option("trust", TRUST)
        found = reader.load(str(root)).where(f"key = {wanted}").collect()
        assert len(found) == 1, found

    kib = f"{size} B"
    read = Row(f"batch read to noop, {kib}", "rows/s", bar=READ_BARS.get(size))
    counted = Row(f"count per topic and tag, {kib}", "rows/s", bar=10.0)
    looked = Row(f"one key, {kib}", "s", limit=1.0, lower_is_better=True)
    share = Row(f"  bytes read of the store's, {kib}", "", limit=0.01, lower_is_better=True)
    log_bytes = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
    share.add(OURS, _bytes_read(root, f"k{rows // 2}") / log_bytes)
    assert ours().count() == rows
    for turn in range(args.runs + args.warm):
        sides: list[tuple[str, Row, Callable[[], None]]] = [
            (OURS, read, lambda: noop(ours())),
            (OURS, counted, count),
        ]
        if node is not None:
            sides += [
                (RIVAL, read, lambda: noop(theirs())),
                (RIVAL, counted, lambda: theirs().agg(f.sum(f.length("value"))).collect()),
            ]
        for side, row, action in sides if turn % 2 == 0 else reversed(sides):
            seconds = _timed(action)
            if turn >= args.warm:
                row.add(side, rows / seconds)
        seconds = _timed(key)
        if turn >= args.warm:
            looked.add(OURS, seconds)
    return [read, counted, looked, share]


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="bytes of bodies per size, in MB")
    parser.add_argument("--sizes", default="1024,128", help="bytes of a body")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--order", default="commitlog", choices=["commitlog", "queue"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", help="where stores are made; a temporary directory otherwise")
    parser.add_argument("--no-kafka", action="store_true", help="without the rival")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args(argv)
    if args.small:
        args.mb, args.runs, args.warm, args.no_kafka = 8, 1, 0, True
    base = Path(args.dir or tempfile.mkdtemp(prefix="oberth-bench-"))
    with contextlib.ExitStack() as stack:
        if not args.dir:
            stack.callback(shutil.rmtree, base, ignore_errors=True)
        node, jars = None, []
        if not args.no_kafka:
            try:
                jars = connector_jars()
                node = stack.enter_context(kafka_node(base / "kafka"))
            except PeerUnavailableError as why:
                sys.stderr.write(f"without Kafka: {why}\n")
        from oberth.spark.runtime import build_session

        config = {
            "spark.driver.memory": "4g",
            "spark.sql.python.filterPushdown.enabled": "true",
            "spark.python.unix.domain.socket.enabled": "true",
        }
        if jars:
            config["spark.jars"] = ",".join(map(str, jars))
        from pyspark.sql import SparkSession

        was_there = SparkSession.getActiveSession() is not None
        spark = build_session(args.master, app_name="bench", config=config, quick=args.small)
        if not was_there:
            stack.callback(spark.stop)
        rows: list[Row] = []
        for size in map(int, args.sizes.split(",")):
            count = args.mb * 1_000_000 // size
            root = base / f"store-{size}"
            build(root, count, size, args.seed)
            if node is not None:
                node.fill(f"t{size}", 8, count, size)
            touch(root)
            rows += _measure(spark, root, node, size, count, args)
            shutil.rmtree(root)
        emit("spark_source_vs_kafka", rows, OURS, RIVAL, master=args.master, mb=args.mb)


if __name__ == "__main__":
    main()
