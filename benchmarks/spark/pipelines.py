"""Pipelines on Spark: dispatch, verify, export, lakes, streaming dispatch, SQL; how they scale.

Dispatch stands against Apache's own rebuild in process (StoreBench, without the start of its JVM),
export and Spark's own writer against Spark's Kafka source written to Parquet by Spark, a table over
log and lake against Spark's Parquet reader on the same files; the others against a figure. The
scaling rows have no bar: they are the constants of the cost model in docs/spark.md.

    python -m benchmarks.spark.pipelines --mb 1024 --only dispatch,verify
    python -m benchmarks.spark.pipelines --only scale --masters 1,2,4
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.peers.load import store_bench
from benchmarks.report import Row, emit
from benchmarks.spark.cost_model import tree_cpu_s
from benchmarks.spark.kafka import connector_jars, kafka_node
from benchmarks.spark.source_vs_kafka import COLUMNS
from benchmarks.spark.stores import TOPIC, build, touch
from benchmarks.store_vs_apache import drop_derived
from oberth.errors import PeerUnavailableError

OURS, RIVAL = "oberth", "rival"
GROUPS = ("dispatch", "verify", "audit", "export", "lake", "live", "follow", "sql", "scale")
DISPATCH_BARS = {128: 2.0, 1024: 1.5}
EXPORT_BAR = 4.0
WRITE_BAR = 2.0
LAKE_BAR = 0.9
LIVE_RATE = 10_000
LIVE_BODY = 128
_UNIT_SIZE = 20
_TIMEOUT_S = 900
_POLL_S = 0.001
_SLICE = 4 << 20
_SCALE_RANGE = 32 << 20
"""The same tasks for every number of cores, several for each."""


def _wait_until(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came of it in {timeout_s:.0f} s")
        time.sleep(0.2)


def _added(table: Path, since_s: float) -> Iterator[tuple[float, Path]]:
    """Files that a Delta table got since then, but for those that were joined, and when."""
    for version in (table / "_delta_log").glob("*.json"):
        committed_s = version.stat().st_mtime
        if committed_s < since_s:
            continue
        for line in version.read_text().splitlines():
            added = json.loads(line).get("add")
            if added and added["dataChange"]:
                yield committed_s, table / added["path"]


def _count(table: Path, since_s: float) -> int:
    """Rows that a Delta table got since then."""
    import pyarrow.parquet as pq

    return sum(int(pq.read_metadata(path).num_rows) for _, path in _added(table, since_s))


def _delays_s(table: Path, since_s: float) -> list[float]:
    """Of each row of a Delta table stored since then: how long until its commit."""
    import pyarrow.parquet as pq

    found: list[float] = []
    for committed_s, path in _added(table, since_s):
        times = pq.read_table(path, columns=["timestamp"])["timestamp"].to_pylist()
        stored_s = [each.timestamp() for each in times]
        found += [committed_s - each for each in stored_s if each >= since_s]
    return found


def _timed(action: Callable[..., Any], *arguments: Any) -> float:
    begun = time.monotonic()
    action(*arguments)
    return time.monotonic() - begun


class Bench:
    """One session, one directory."""

    def __init__(self, spark: Any, base: Path, args: argparse.Namespace, kafka: Any) -> None:
        from oberth.spark.pipelines.tasks import OnSpark

        self.spark = spark
        self.tasks = OnSpark(spark)
        self.base = base
        self.args = args
        self.kafka = kafka
        self.rows: list[Row] = []
        self.skipped: dict[str, str] = {}

    def row(self, what: str, unit: str, **options: Any) -> Row:
        """A new line of the report."""
        self.rows.append(Row(what, unit, **options))
        return self.rows[-1]

    def rounds(self) -> range:
        """Warm ones and those that count."""
        return range(-self.args.warm, self.args.runs)

    def empty(self, name: str) -> Path:
        """A directory that does not exist."""
        path = self.base / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def of_size(self, size: int) -> None:
        """What is measured for each size of a body."""
        count = self.args.mb * 1_000_000 // size
        root = self.base / f"store-{size}"
        log_bytes = build(root, count, size, seed=1)
        touch(root)
        if "dispatch" in self.args.only:
            self.dispatch(root, size, count)
        if "verify" in self.args.only:
            self.verify(root, size, log_bytes)
        if "audit" in self.args.only:
            self.audit(root, size, log_bytes)
        if "export" in self.args.only:
            self.export(root, size, count, log_bytes)
            self.write(root, size, count)
        if "lake" in self.args.only:
            self.lake(root, size, count, log_bytes)
        shutil.rmtree(root)

    def dispatch(self, root: Path, size: int, count: int) -> None:
        """Queues and index from the log."""
        from oberth.spark.pipelines.dispatch import dispatch

        row = self.row(f"dispatch, {size} B", "rows/s", bar=DISPATCH_BARS.get(size))
        for turn in self.rounds():
            into = self.empty("into")
            seconds = _timed(dispatch, self.tasks, str(root), str(into))
            shutil.rmtree(into)
            if turn < 0:
                continue
            row.add(OURS, count / seconds)
            if self.args.no_apache:
                continue
            try:
                drop_derived(root)
                found = store_bench("open", root, 0, size, "async", 1)[0]
                row.add(RIVAL, count / float(found["dispatched_s"]))
            except PeerUnavailableError as why:
                self.skipped["Apache's store"] = str(why)
                self.args.no_apache = True

    def verify(self, root: Path, size: int, log_bytes: int) -> None:
        """Every record with its checksum, against queues and index."""
        from oberth.spark.pipelines.verify import verify

        limit = 0.8 if size >= 1024 else None
        row = self.row(f"verify with CRC, {size} B", "GB/s", limit=limit)
        for turn in self.rounds():
            seconds = _timed(verify, self.tasks, str(root))
            if turn >= 0:
                row.add(OURS, log_bytes / seconds / 1e9)

    def audit(self, root: Path, size: int, log_bytes: int) -> None:
        """Two equal stores, byte by byte; both count."""
        from oberth.spark.pipelines.audit import audit_stores

        other = self.empty("copy")
        shutil.copytree(root / "commitlog", other / "commitlog")
        touch(other)
        row = self.row(f"audit of two equal stores, both, {size} B", "GB/s", limit=1.0)
        for turn in self.rounds():
            seconds = _timed(audit_stores, self.tasks, str(root), str(other))
            if turn >= 0:
                row.add(OURS, 2 * log_bytes / seconds / 1e9)
        shutil.rmtree(other)

    def export(self, root: Path, size: int, count: int, log_bytes: int) -> None:
        """All of a record's columns to Parquet, zstd."""
        from oberth.spark.pipelines.export.exporter import export
        from oberth.spark.pipelines.export.settings import ExportSettings

        cores = self.tasks.parallelism
        row = self.row(f"export to Parquet, {size} B", "rows/s", bar=EXPORT_BAR)
        rate = self.row(f"the same, log a second and core, {size} B", "MB/s", limit=150.0)
        settings = ExportSettings(format="parquet")
        for turn in self.rounds():
            into = self.empty("lake")
            seconds = _timed(export, self.tasks, str(root), str(into), settings)
            if turn >= 0:
                row.add(OURS, count / seconds)
                rate.add(OURS, log_bytes / seconds / cores / 1e6)
            if self.kafka is None:
                continue
            frame = self._of_kafka(size).option("includeHeaders", "true").load()
            seconds = self._written(frame, "lake-kafka")
            if turn >= 0:
                row.add(RIVAL, count / seconds)

    def _of_kafka(self, size: int) -> Any:
        reader = self.spark.read.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self.kafka.servers)
        return reader.option("startingOffsets", "earliest").option("subscribe", f"t{size}")

    def _written(self, frame: Any, name: str) -> float:
        """Seconds that Spark's own writer takes."""
        writer = frame.write.mode("overwrite").option("compression", "zstd")
        return _timed(writer.parquet, str(self.empty(name)))

    def write(self, root: Path, size: int, count: int) -> None:
        """Six columns to Parquet by Spark's own writer, zstd."""
        row = self.row(f"six columns to Parquet by Spark, {size} B", "rows/s", bar=WRITE_BAR)
        reader = self.spark.read.format("rocketmq").option("columns", COLUMNS)
        for turn in self.rounds():
            sides = [(OURS, reader.load(str(root)))]
            if self.kafka is not None:
                sides.append((RIVAL, self._of_kafka(size).load().select(*COLUMNS.split(","))))
            for side, frame in sides if turn % 2 == 0 else reversed(sides):
                seconds = self._written(frame, f"written-{side}")
                if turn >= 0:
                    row.add(side, count / seconds)

    def lake(self, root: Path, size: int, count: int, log_bytes: int) -> None:
        """Old ranges of one table over log and lake, beside Spark's reader of the same files."""
        from oberth.spark.lake import union_frame
        from oberth.spark.pipelines.export.exporter import export
        from oberth.spark.pipelines.export.settings import ExportSettings

        into = str(self.empty("old"))
        export(self.tasks, str(root), into, ExportSettings(format="parquet"))
        given = {"path": str(root), "lake": into, "subscribe": TOPIC}
        columns = COLUMNS.split(",")

        def plain() -> Any:
            return self.spark.read.parquet(f"{into}/{TOPIC}").select(*columns)

        def old() -> Any:
            return union_frame(self.spark, {**given, "asOfOffset": str(log_bytes)}, COLUMNS)

        def union() -> Any:
            return union_frame(self.spark, given, COLUMNS)

        def source() -> Any:
            reader = self.spark.read.format("rocketmq").options(**given)
            return reader.option("columns", COLUMNS).load()

        def to_noop(frame: Callable[[], Any]) -> None:
            frame().write.format("noop").mode("overwrite").save()

        assert old().count() == union().count() == plain().count() == count
        ways = (
            (self.row(f"as of a place in the lake, {size} B", "rows/s", bar=LAKE_BAR), old),
            (self.row(f"the same and the log behind it, {size} B", "rows/s"), union),
            (self.row(f'the same by format("rocketmq"), {size} B', "rows/s"), source),
        )
        for turn in self.rounds():
            for row, frame in ways:
                sides = [(OURS, frame), (RIVAL, plain)]
                for side, read in sides if turn % 2 == 0 else reversed(sides):
                    seconds = _timed(to_noop, read)
                    if turn >= 0:
                        row.add(side, count / seconds)
        shutil.rmtree(into)

    def live(self) -> None:
        """From a broker's store to a row of a Delta table, `LIVE_RATE` messages a second."""
        from benchmarks.beside import Generator, Up, line_of
        from benchmarks.peers import build as build_program
        from benchmarks.peers import wire

        place = self.empty("live")
        program = Generator(build_program(self.base))
        lake = place / "lake"
        up = Up(place, "--lake", lake, "--lake-format", "delta")
        seconds = self.args.follow_s
        try:
            wire.create_topics(up.addresses[0], ["live"], 4)
            how = {"topic": "live", "rate": LIVE_RATE}
            # Spark starts, and the table is made, before anything counts.
            line_of(program.start(up.addresses[0], f"64x1x{LIVE_BODY}", 2, **how))
            _wait_until(lambda: any((lake / "live" / "_delta_log").glob("*.json")), _TIMEOUT_S)
            line_of(program.start(up.addresses[0], f"64x1x{LIVE_BODY}", seconds, **how))
            since_s, sent = time.time() - seconds, LIVE_RATE * seconds
            _wait_until(lambda: _count(lake / "live", since_s) >= sent * 0.9, _TIMEOUT_S)
            waits = sorted(_delays_s(lake / "live", since_s))
        finally:
            up.close()
        what = f"live topic at {LIVE_RATE:,}/s to a row in Delta"
        row = self.row(f"{what}, median", "s", limit=1.0, lower_is_better=True)
        row.add(OURS, statistics.median(waits))
        tail = self.row("the same, p99", "s", lower_is_better=True)
        tail.add(OURS, waits[int(len(waits) * 0.99)])

    def follow(self) -> None:
        """From an append to the moment when its place in the queue can be read."""
        from oberth.formats.message_store_config import MessageStoreConfig
        from oberth.spark.pipelines.dispatch_stream import start_dispatch
        from oberth.store.message_store import MessageStore
        from oberth.store.messages import MessageExtBrokerInner

        root = self.empty("follow")
        config = MessageStoreConfig(
            store_path_root_dir=str(root), mapped_file_size_consume_queue=6_000_000
        )
        store = MessageStore(config)
        store.load()
        store.start(reput_thread=False)
        body = b"x" * 128
        host = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))

        def put(number: int) -> None:
            burst = [
                MessageExtBrokerInner(
                    topic=TOPIC, queue_id=0, body=body, born_host=host, store_host=host
                )
                for _ in range(number)
            ]
            assert all(result.ok for result in store.append_messages(burst))

        latency = self.row(
            "streaming dispatch, 1 000/s, append to readable, median",
            "ms", limit=250.0, lower_is_better=True,
        )  # fmt: skip
        tail = self.row("the same, p99", "ms", lower_is_better=True)
        query = start_dispatch(self.spark, str(root), str(self.base / "follow-query"))
        try:
            queue = _QueueFile(root / "consumequeue" / TOPIC / "0")
            put(1)
            queue.wait_for(0, 60)
            waits: list[float] = []
            number, begun = 1, time.monotonic()
            pending: list[tuple[int, float]] = []
            total = self.args.follow_s * 1000
            while len(waits) < total:
                due = int((time.monotonic() - begun) * 1000) - number
                if due > 0 and number <= total:
                    put(due)
                    now = time.monotonic()
                    pending += [(number + each, now) for each in range(due)]
                    number += due
                while pending and queue.has(pending[0][0]):
                    waits.append(time.monotonic() - pending.pop(0)[1])
                if time.monotonic() - begun > self.args.follow_s + 60:
                    raise TimeoutError(f"dispatch stood still at {number - len(pending)}")
                time.sleep(_POLL_S)
            waits.sort()
            latency.add(OURS, statistics.median(waits) * 1000)
            tail.add(OURS, waits[int(len(waits) * 0.99)] * 1000)
        finally:
            query.stop()
            store.shutdown()
        self.follow_copy()

    def follow_copy(self) -> None:
        """A log that grows faster than a query may be: how many messages a second it dispatches.

        The log is copied from a store made before, as a replica's or a backup's grows, so that the
        writer takes as little of the machine as one can.
        """
        from oberth.spark.pipelines.dispatch_stream import start_dispatch

        made, root = self.base / "follow-made", self.empty("follow-copy")
        count = 150_000 * self.args.follow_s
        log_bytes = build(made, count, 128, seed=4)
        touch(made)
        rate = self.row("streaming dispatch of a copied log, sustained", "rows/s", limit=2e5)
        name = f"{0:020d}"
        (root / "commitlog").mkdir(parents=True)
        log = root / "commitlog" / name
        size = (made / "commitlog" / name).stat().st_size
        assert log_bytes <= size, "one segment is copied"
        with log.open("wb") as file:
            file.truncate(size)
        query = start_dispatch(self.spark, str(root), str(self.base / "follow-copy-query"))
        try:
            # The first records alone, so that starting the query is not measured.
            source = (made / "commitlog" / name).open("rb")
            target = log.open("r+b", buffering=0)
            with source, target:
                first, *ends = _slices(source, log_bytes)
                _append(source, target, 0, first)
                queues = [
                    _QueueFile(root / "consumequeue" / TOPIC / str(each)) for each in range(8)
                ]
                queues[0].wait_for(0, 60)
                begun, at = time.monotonic(), first
                for end in ends:
                    _append(source, target, at, end)
                    at = end
                for number, queue in enumerate(queues):
                    queue.wait_for((count - number - 1) // 8, 300)
            rate.add(OURS, count / (time.monotonic() - begun))
        finally:
            query.stop()
            shutil.rmtree(made)

    def sql(self) -> None:
        """A question on a small store, from nothing."""
        root = self.base / "small"
        build(root, 10_000, 128, seed=2)
        row = self.row(
            "oberth spark sql, cold, to the first answer", "s", limit=12.0, lower_is_better=True
        )
        statement = f"select tags, count(*) from {TOPIC} group by tags"
        command = [sys.executable, "-m", "oberth", "spark", "sql", "--store", str(root), statement]
        for _ in range(self.args.runs):
            row.add(
                OURS,
                _timed(
                    lambda: subprocess.run(
                        [*command, "--master", self.args.master],
                        check=True, capture_output=True, timeout=_TIMEOUT_S,
                    )
                ),
            )  # fmt: skip


def _slices(log: BinaryIO, log_bytes: int) -> list[int]:
    """Ends of stretches of whole records: one record, then some megabytes at a time."""
    ends, at, wanted = [], 0, 1
    with mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while at < log_bytes:
            at += int.from_bytes(data[at : at + 4], "big")
            if at >= wanted or at >= log_bytes:
                ends.append(at)
                wanted = at + _SLICE
    return ends


def _append(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    """Copies a stretch; its first size comes last, so that a reader sees all of it or nothing."""
    source.seek(start)
    piece = source.read(end - start)
    target.seek(start + 4)
    target.write(piece[4:])
    target.seek(start)
    target.write(piece[:4])


class _QueueFile:
    """The files of one ConsumeQueue, as another process sees them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[int, mmap.mmap] = {}
        self._size = 6_000_000

    def has(self, index: int) -> bool:
        """Whether the unit is there."""
        start = index * _UNIT_SIZE // self._size * self._size
        mapped = self._maps.get(start)
        if mapped is None:
            path = self._directory / f"{start:020d}"
            if not path.exists() or path.stat().st_size < self._size:
                return False
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
            self._maps[start] = mapped
        place = index * _UNIT_SIZE - start
        return mapped[place + 8 : place + 12] != bytes(4)

    def wait_for(self, index: int, timeout_s: float) -> None:
        """Until the unit is there."""
        deadline = time.monotonic() + timeout_s
        while not self.has(index):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._directory}: unit {index} did not come")
            time.sleep(_POLL_S)


def _session(master: str, jars: list[Path], *, quick: bool) -> Any:
    from oberth.spark.runtime import build_session

    config = {"spark.driver.memory": "4g"}
    if jars:
        config["spark.jars"] = ",".join(map(str, jars))
    return build_session(master, app_name="bench", config=config, quick=quick)


def _scale(base: Path, args: argparse.Namespace) -> list[Row]:
    """The same log with one, two, … tasks at a time; each session in a process of its own.

    The rate is the clock's; the CPU says how much work it was, whatever else the machine did.
    With ``--task-cores`` a session has so many cores for each of its tasks and no more, as an
    executor has: otherwise one task's JVM and Python share all cores of the machine.
    """
    size = 1024
    root = base / "scale"
    log_bytes = build(root, args.mb * 1_000_000 // size, size, seed=3)
    touch(root)
    rows = []
    for count in map(int, args.masters.split(",")):
        found: dict[str, tuple[Row, Row, Row, Row]] = {}
        for turn in range(args.runs):
            command = [
                sys.executable, "-m", "benchmarks.spark.pipelines", "--one",
                "--root", str(root), "--master", f"local[{count}]",
                "--dir", str(base / f"scale-{turn}"), "--only", args.scaled,
                "--mb", str(args.mb), "--log-bytes", str(log_bytes),
            ]  # fmt: skip
            cores = sorted(os.sched_getaffinity(0))[: count * args.task_cores]
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S,
                preexec_fn=partial(os.sched_setaffinity, 0, cores) if cores else None,
            )  # fmt: skip
            for what, one in json.loads(done.stdout.splitlines()[-1]).items():
                name = f"{what}, {size} B, local[{count}]"
                rate, work, alone, longest = found.setdefault(
                    what,
                    (
                        Row(name, "MB/s"),
                        Row(f"{name}, CPU", "s/GB", lower_is_better=True),
                        Row(f"{name}, CPU of the driver's Python", "s/GB", lower_is_better=True),
                        Row(f"{name}, longest task by the median", "x", lower_is_better=True),
                    ),
                )
                rate.add(OURS, one["bytes"] / one["seconds"] / 1e6)
                work.add(OURS, one["cpu"] / one["bytes"] * 1e9)
                alone.add(OURS, one["driver"] / one["bytes"] * 1e9)
                longest.add(OURS, one["longest"])
        rows += [row for four in found.values() for row in four]
    return rows


def _loaded_frame(spark: Any, mb: int) -> Any:
    """Rows of 1 KiB in Spark's memory, in eight partitions."""
    frame = spark.range(0, mb * 1_000_000 // 1024, 1, 8).selectExpr(
        "encode(repeat(sha2(string(id), 512), 8), 'utf-8') as value",
        "concat('k', id) as key", "'t' as tags", "cast(id % 8 as int) as partition",
    )  # fmt: skip
    frame = frame.cache()
    frame.count()
    return frame


def _longest(spark: Any, since: int) -> tuple[float, int]:
    """The longest task by the median, of the stages from a number on that have several.

    And the number of the next stage.
    """
    store = spark.sparkContext._jsc.sc().statusStore()
    worst, number = 1.0, since
    while (tasks := store.taskList(number, 0, 100_000)).size():
        times = [
            tasks.apply(each).taskMetrics().get().executorRunTime() for each in range(tasks.size())
        ]
        if len(times) > 2:
            worst = max(worst, max(times) / max(statistics.median(times), 1))
        number += 1
    return worst, number


def _one(args: argparse.Namespace) -> None:
    """Prints seconds, CPU and the longest task of a third, warm run of each pipeline."""
    from oberth.spark.pipelines.bulk_load import load
    from oberth.spark.pipelines.dispatch import dispatch
    from oberth.spark.pipelines.tasks import OnSpark
    from oberth.spark.pipelines.verify import verify

    spark = _session(args.master, [], quick=False)
    tasks = OnSpark(spark)
    log_bytes = args.log_bytes
    found = {}
    stage = 0
    for what in args.only:
        frame: Any = _loaded_frame(spark, args.mb) if what == "load" else None
        for turn in range(3):
            into = f"{args.dir}-{turn}"
            stage = _longest(spark, stage)[1]
            used, mine, begun = tree_cpu_s(os.getpid()), time.process_time(), time.monotonic()
            if what == "verify":
                verify(tasks, args.root, range_size=_SCALE_RANGE)
            elif what == "dispatch":
                dispatch(tasks, args.root, into, range_size=_SCALE_RANGE)
            else:
                log_bytes = load(frame, into, {"topic": TOPIC}).log_end
            found[what] = {
                "seconds": time.monotonic() - begun,
                "cpu": tree_cpu_s(os.getpid()) - used,
                "driver": time.process_time() - mine,
                "longest": _longest(spark, stage)[0],
                "bytes": log_bytes if what == "load" else args.log_bytes,
            }
            shutil.rmtree(into, ignore_errors=True)
        if frame is not None:
            frame.unpersist()
    spark.stop()
    print(json.dumps(found))


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="bytes of bodies per size, in MB")
    parser.add_argument("--sizes", default="1024,128", help="bytes of a body")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--masters", default="1,2,4", help="tasks at a time, for scaling")
    parser.add_argument("--follow-s", type=int, default=20, help="seconds of the streaming row")
    parser.add_argument("--dir", help="where stores are made; a temporary directory otherwise")
    parser.add_argument("--no-apache", action="store_true")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    parser.add_argument(
        "--task-cores", type=int, default=0, help="cores of each task when scaling (all of them)"
    )
    parser.add_argument("--scaled", default="dispatch,verify,load", help="what scaling runs")
    parser.add_argument("--log-bytes", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.only = args.only.split(",")
    if args.one:
        _one(args)
        return
    if args.small:
        args.mb, args.runs, args.warm, args.no_kafka, args.no_apache = 4, 1, 0, True, True
        args.follow_s = 2
        args.only = ["dispatch", "verify", "audit", "export", "lake", "follow"]
    base = Path(args.dir or tempfile.mkdtemp(prefix="oberth-bench-"))
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if not args.dir:
            stack.callback(shutil.rmtree, base, ignore_errors=True)
        if "scale" in args.only:
            rows += _scale(base, args)
        if set(args.only) - {"scale"}:
            node, jars = None, []
            if not args.no_kafka and "export" in args.only:
                try:
                    jars = connector_jars()
                    node = stack.enter_context(kafka_node(base / "kafka"))
                    for size in map(int, args.sizes.split(",")):
                        node.fill(f"t{size}", 8, args.mb * 1_000_000 // size, size)
                except PeerUnavailableError as why:
                    skipped["Kafka"] = str(why)
            from pyspark.sql import SparkSession

            was_there = SparkSession.getActiveSession() is not None
            spark = _session(args.master, jars, quick=args.small)
            if not was_there:
                stack.callback(spark.stop)
            bench = Bench(spark, base, args, node)
            if {"dispatch", "verify", "audit", "export", "lake"} & set(args.only):
                for size in map(int, args.sizes.split(",")):
                    bench.of_size(size)
            if "live" in args.only:
                bench.live()
            if "follow" in args.only:
                bench.follow()
            if "sql" in args.only:
                bench.sql()
            rows += bench.rows
            skipped.update(bench.skipped)
        for what, reason in skipped.items():
            sys.stderr.write(f"without {what}: {reason}\n")
        emit("spark_pipelines", rows, OURS, RIVAL, master=args.master, mb=args.mb, skipped=skipped)


if __name__ == "__main__":
    main()
