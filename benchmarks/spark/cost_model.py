"""What terabytes cost: constants by CPU time, and the table that follows from them.

    python -m benchmarks.spark.cost_model              measures the constants, prints them as JSON
    python -m benchmarks.spark.cost_model --table      the tables of docs/spark.md, from CONSTANTS

Work is counted in seconds of CPU, which a busy machine distorts less than the clock. Tasks of the
pipelines are run in this process, so that each step is counted by itself; what Spark adds for a
task, for a job and for rows that go through its JVM is counted as the CPU of the whole tree of
processes. Two sizes of bodies give the share of a message and the share of a byte.

The model: a pipeline costs ``messages * per message + bytes * per byte`` in tasks, which executors
share, and the same with other constants in the driver or in one single task, which nobody shares;
and so much for every task and every job. It is never faster than the disks: `DISK_MB_S` for each
executor is an assumption, not a measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import Row, emit
from benchmarks.spark.stores import TOPIC, batches, build, touch

OURS, RIVAL = "oberth", "rival"
SIZES = (128, 1024)
CORES = 4
TB = 10**12
EXECUTORS = {TB: (1, 10, 100), 100 * TB: (10, 100, 1000)}
_RECORDS = 1 << 16


class Cost(NamedTuple):
    """What one part of a pipeline takes of a core."""

    us_per_message: float
    ns_per_byte: float

    def seconds(self, messages: float, log_bytes: float) -> float:
        """CPU of so much log."""
        return (messages * self.us_per_message + log_bytes * self.ns_per_byte / 1000) / 1e6


@dataclass(frozen=True)
class Pipeline:
    """A pipeline's constants.

    Attributes:
        range_mb: log of one task in a large store.
        tasks: what executors share.
        alone: what runs in the driver, or in a task that has no second one, on one core.
        alone_passes: how often that goes through the log's bytes; tasks do once.
    """

    range_mb: int
    tasks: Cost
    alone: Cost
    alone_passes: int = 0


# Measured by this script; the page says where and when.
CONSTANTS: dict[str, Pipeline] = {
    "read to noop": Pipeline(128, Cost(0.3763, 4.041), Cost(0.0, 0.0)),
    "dispatch": Pipeline(512, Cost(0.2872, 0.3039), Cost(0.0045, 0.0186)),
    "verify": Pipeline(512, Cost(0.1743, 0.2919), Cost(0.0693, 0.11)),
    "export to Parquet": Pipeline(256, Cost(0.6449, 1.383), Cost(0.0004, 0.0172)),
    "bulk load": Pipeline(128, Cost(0.0481, 0.5082), Cost(0.1103, 1.402), 2),
}
#: Bytes of log for a message with a body of so many bytes, as `stores.build` makes it.
RECORD_BYTES = {128: 248.1, 1024: 1144.0}
#: What an executor's disk or network brings.
DISK_MB_S = 1000
TASK_CPU_S = 0.0223
JOB_CPU_S = 0.025
#: What a task tells the driver about each queue in its range of the log, pickled.
RESULT_BYTES = 38


# The model.


class Estimate(NamedTuple):
    """What a pipeline costs on so much log."""

    core_s: float
    alone_s: float
    disk_s: float
    alone_disk_s: float
    tasks: int

    def wall_s(self, executors: int, cores: int = CORES) -> float:
        """From start to end."""
        shared = self.core_s / min(executors * cores, self.tasks)
        alone = max(self.alone_s, self.alone_disk_s)
        return max(shared, self.disk_s / executors) + alone + JOB_CPU_S


def estimate(name: str, log_bytes: int, body_size: int) -> Estimate:
    """What a pipeline costs."""
    pipeline = CONSTANTS[name]
    messages = log_bytes / RECORD_BYTES[body_size]
    tasks = -(-log_bytes // (pipeline.range_mb << 20))
    return Estimate(
        pipeline.tasks.seconds(messages, log_bytes) + tasks * TASK_CPU_S,
        pipeline.alone.seconds(messages, log_bytes),
        log_bytes / (DISK_MB_S * 1e6),
        pipeline.alone_passes * log_bytes / (DISK_MB_S * 1e6),
        tasks,
    )


def _span(seconds: float) -> str:
    """Seconds for people, two digits."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{float(f'{seconds / unit:.2g}'):g} {name}"
    return f"{float(f'{seconds / 86400:.2g}'):g} d"


def constants_table() -> list[str]:
    """The constants as a table of the page."""
    lines = [
        "| | µs a message | ns a byte | MB/s a core, 1 KiB | 128 B | alone: µs a message | ns a byte |",  # noqa: E501 - a row
        "|---|---|---|---|---|---|---|",
    ]
    for name, each in CONSTANTS.items():
        rates = [
            record / 1e6 / each.tasks.seconds(1, record)
            for record in (RECORD_BYTES[1024], RECORD_BYTES[128])
        ]
        lines.append(
            f"| {name} | {each.tasks.us_per_message:.2f} | {each.tasks.ns_per_byte:.2f} | "
            f"{rates[0]:.0f} | {rates[1]:.0f} | "
            f"{each.alone.us_per_message:.2f} | {each.alone.ns_per_byte:.2f} |"
        )
    return lines


def estimates_table() -> list[str]:
    """What 1 TB and 100 TB cost, as a table of the page."""
    head = ["", "body"]
    for size, executors in EXECUTORS.items():
        head.append(f"{size // TB} TB: core hours")
        head += [f"{count} executors" if count > 1 else "1 executor" for count in executors]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name in CONSTANTS:
        for body in reversed(SIZES):
            cells = [name, "1 KiB" if body == 1024 else f"{body} B"]
            for size, executors in EXECUTORS.items():
                found = estimate(name, size, body)
                cells.append(f"{float(f'{(found.core_s + found.alone_s) / 3600:.2g}'):,g}")
                cells += [_span(found.wall_s(count)) for count in executors]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


# Measuring.


class Counting:
    """Runs tasks in this process and counts the CPU of each step."""

    parallelism = 1

    def __init__(self) -> None:
        self.cpu: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        self.result_bytes = 0

    def run(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        what: str,
        done: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        """See `oberth.spark.pipelines.tasks.TaskRunner`."""
        results = []
        for item in items:
            # The comparison of the index is one task among those of the queues.
            step = f"{what}, index" if getattr(item, "entries", ()) else what
            begun = time.process_time()
            results.append(function(item))
            self.cpu[step] += time.process_time() - begun
            self.items[step] += 1
        if what == "read":
            self.result_bytes += len(pickle.dumps(results))
        return results


def tree_cpu_s(root: int) -> float:
    """CPU of a process, of those below it, and of those of them that have ended, in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(name))
                used[int(name)] = sum(map(int, fields[11:15])) / ticks
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        total += used.get(process, 0.0)
        waiting += children.get(process, ())
    return total


@contextlib.contextmanager
def _counted(into: list[float]) -> Iterator[None]:
    begun = tree_cpu_s(os.getpid())
    yield
    into.append(tree_cpu_s(os.getpid()) - begun)


@dataclass
class Sample:
    """CPU of one run of one pipeline.

    Attributes:
        messages, log_bytes: of the store.
        shared: of tasks.
        alone: of the driver and of single tasks.
    """

    messages: int
    log_bytes: int
    shared: float
    alone: float


def _in_process(root: Path, base: Path, messages: int, log_bytes: int) -> dict[str, Sample]:
    """One run of each pipeline whose work is done in tasks."""
    from oberth.spark.load import StoreLoader
    from oberth.spark.load_plan import work_directory
    from oberth.spark.pipelines.dispatch import dispatch
    from oberth.spark.pipelines.export.exporter import export
    from oberth.spark.pipelines.export.settings import ExportSettings
    from oberth.spark.pipelines.verify import verify
    from oberth.spark.sink import stage
    from oberth.spark.write_options import parse_write_options

    found = {}

    def note(name: str, action: Callable[[Counting], Any]) -> None:
        counting = Counting()
        begun = time.process_time()
        action(counting)
        total = time.process_time() - begun
        del counting.cpu["compare, index"]
        shared = sum(counting.cpu.values())
        found[name] = Sample(messages, log_bytes, shared, total - shared)
        if name == "dispatch" and counting.items["read"]:
            found["driver"] = Sample(counting.items["read"], counting.result_bytes, 0.0, 0.0)

    into = base / "into"
    note("dispatch", lambda tasks: dispatch(tasks, str(root), str(into)))
    shutil.rmtree(into)
    note("verify", lambda tasks: verify(tasks, str(root)))
    note(
        "export",
        lambda tasks: export(tasks, str(root), str(into), ExportSettings(format="parquet")),
    )
    shutil.rmtree(into)
    size = 128 if log_bytes / messages < 600 else 1024
    rows = list(batches(messages, size, seed=1))
    options = parse_write_options({"path": str(into), "topic": TOPIC})
    work = work_directory(str(into), "cost")
    begun = time.process_time()
    part = stage(iter(rows), options, work)
    staged = time.process_time()
    StoreLoader(options).commit([part], work)
    found["load"] = Sample(messages, log_bytes, staged - begun, time.process_time() - staged)
    shutil.rmtree(into)
    return found


def _with_spark(
    spark: Any, roots: dict[int, tuple[Path, int, int]], runs: int, many_tasks: int
) -> tuple[dict[int, list[float]], list[float], list[float]]:
    """CPU of reads by size, of one task, and of one job."""
    from oberth.spark.pipelines.tasks import OnSpark

    tasks = OnSpark(spark)
    reads: dict[int, list[float]] = {}
    for size, (root, _, _) in roots.items():
        figures: list[float] = []
        for turn in range(runs + 2):
            frame = spark.read.format("rocketmq").option("readOrder", "commitlog").load(str(root))
            with _counted(figures):
                frame.write.format("noop").mode("overwrite").save()
            if turn < 2:
                figures.clear()  # the JVM compiles
        reads[size] = figures
    few: list[float] = []
    many: list[float] = []
    for turn in range(runs + 1):
        for number, figures in ((4, few), (4 + many_tasks, many)):
            with _counted(figures):
                tasks.run(abs, range(number), what="nothing")
            if turn == 0:
                figures.clear()
    each = [(b - a) / many_tasks for a, b in zip(few, many, strict=True)]
    jobs = [max(a - 4 * task, 0.0) for a, task in zip(few, each, strict=True)]
    return reads, each, jobs


def _solve(small: Sample, large: Sample, of: Callable[[Sample], float]) -> Cost:
    """The share of a message and of a byte, from stores of two sizes of bodies."""
    # of(small) = small.messages * m + small.log_bytes * b, and the same for large
    determinant = small.messages * large.log_bytes - large.messages * small.log_bytes
    message = (of(small) * large.log_bytes - of(large) * small.log_bytes) / determinant
    byte = (small.messages * of(large) - large.messages * of(small)) / determinant
    if byte < 0:  # noise: nothing of it goes with bytes
        message, byte = of(small) / small.messages, 0.0
    if message < 0:
        message, byte = 0.0, of(large) / large.log_bytes
    return Cost(message * 1e6, byte * 1e9)


def measure(args: argparse.Namespace, base: Path) -> list[Row]:
    """All constants, as rows."""
    from oberth.spark.runtime import build_session

    roots: dict[int, tuple[Path, int, int]] = {}
    samples: dict[str, dict[int, list[Sample]]] = {}
    for size in SIZES:
        count = max(args.mb * 1_000_000 // (size + 150), _RECORDS)
        root = base / f"store-{size}"
        log_bytes = build(root, count, size, args.seed)
        touch(root)
        roots[size] = root, count, log_bytes
        for turn in range(args.runs + 1):
            for name, sample in _in_process(root, base, count, log_bytes).items():
                if turn:  # the first run imports and loads
                    samples.setdefault(name, {}).setdefault(size, []).append(sample)
    rows: list[Row] = []

    def add(what: str, unit: str, figure: float) -> None:
        rows.append(Row(what, unit, lower_is_better=True))
        rows[-1].add(OURS, figure)

    for name, by_size in samples.items():
        if name == "driver":
            continue
        for label, of in (
            ("tasks", lambda sample: sample.shared),
            ("alone", lambda sample: sample.alone),
        ):
            small, large = (
                sorted(by_size[size], key=of)[len(by_size[size]) // 2] for size in SIZES
            )
            cost = _solve(small, large, of)
            add(f"{name}, {label}, a message", "us", cost.us_per_message)
            add(f"{name}, {label}, a byte", "ns", cost.ns_per_byte)
    ranges = samples["driver"][SIZES[0]][0]
    add("result of a range, for each queue", "B", ranges.log_bytes / ranges.messages / 8)
    for size, (_, count, log_bytes) in roots.items():
        add(f"record with a body of {size} B", "B", log_bytes / count)
    if args.no_spark:
        return rows
    from pyspark.sql import SparkSession

    was_there = SparkSession.getActiveSession() is not None
    spark = build_session("local[1]", app_name="cost", quick=args.small)
    try:
        reads, task, job = _with_spark(spark, roots, args.runs, 20 if args.small else 200)
    finally:
        if not was_there:
            spark.stop()
    read = {
        size: Sample(roots[size][1], roots[size][2], statistics.median(figures), 0.0)
        for size, figures in reads.items()
    }
    cost = _solve(read[SIZES[0]], read[SIZES[1]], lambda sample: sample.shared)
    add("read, tasks, a message", "us", cost.us_per_message)
    add("read, tasks, a byte", "ns", cost.ns_per_byte)
    add("Spark, a task", "ms", statistics.median(task) * 1000)
    add("Spark, a job", "ms", statistics.median(job) * 1000)
    return rows


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only print what CONSTANTS mean")
    parser.add_argument("--mb", type=int, default=256, help="bytes of log per size of body, in MB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", help="where stores are made; a temporary directory otherwise")
    parser.add_argument("--no-spark", action="store_true", help="only what needs no JVM")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args(argv)
    if args.table:
        print("\n".join([*constants_table(), "", *estimates_table()]))
        return
    if args.small:
        args.mb, args.runs = 4, 1
    base = Path(args.dir or tempfile.mkdtemp(prefix="oberth-bench-"))
    try:
        emit("spark_cost_model", measure(args, base), OURS, RIVAL, mb=args.mb)
    finally:
        if not args.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
