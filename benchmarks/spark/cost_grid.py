"""The cost model against the clock: planning, scheduling and reading, predicted and measured.

    python -m benchmarks.spark.cost_grid --only plan     planning, without a JVM: four minutes
    python -m benchmarks.spark.cost_grid --only run      scheduling and reading: seven minutes
    python -m benchmarks.spark.cost_grid --only far      reading an object store: ten minutes

Constants come from a few small cases (`PLAN_REFERENCE`, one task at a time, 1 GB), predictions for
all others follow from them; a case that gave a constant is not compared.

    planning     a + b * stores + c * settled stores + d * short queues + e * long queues + f * GB,
                 of CPU; and for a store behind a network a + b * stores + the same with rounds of
                 settled stores and of queues, of waits, as `REQUESTS_MAX` are asked in a round.
                 A store with more than `SETTLED_FROM` queues is settled: its log's end is looked
                 for, once. A queue is short while one read shows all its units
    scheduling   a + b * tasks / min(tasks at a time, cores)
    reading      planning + scheduling + c * GB / min(tasks at a time, cores)
    far          planning + scheduling + c * GB / min(tasks at a time, cores / b) + w * GB / tasks
                 at a time, of waits: `slow_store` answers each request 30 ms late. b is how many
                 cores one task keeps busy without the delay, as its requests, its rows and
                 `slow_store` itself work beside each other; w is what one task takes longer for a
                 GB than without the delay

Stores to plan are made up (`tests.rigs.made_up`): listings, units and records by arithmetic, with a
delay for every request where that is asked for. 10 and 40 GB that are read are one store of 1 GB
under several names, so its pages stay in memory: disks are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.rigs.made_up import RECORD_SIZE

from benchmarks.report import Row, emit
from benchmarks.spark.slow_store import BUCKET, slow_store
from oberth.spark.plan import REQUESTS_MAX, SETTLED_FROM
from oberth.spark.queue_files import PAGE_UNITS

MEASURED, PREDICTED = "measured", "predicted"
ERROR_MAX: Final = 25.0
DELAY_S: Final = 0.03
_TIMEOUT_S: Final = 300
_GB: Final = 1_000_000_000
_PARTITION_BYTES: Final = 64 << 20


class PlanCase(NamedTuple):
    """What is planned: how many stores and queues in all, and how much log in all."""

    stores: int
    queues: int
    gb: int

    @property
    def work(self) -> list[float]:
        """What its CPU is a sum of."""
        return [1.0, self.stores, *self._counts(), self.gb]

    @property
    def waits(self) -> list[float]:
        """What its waits for a network are a sum of."""
        rounds = [float(-(-count // REQUESTS_MAX)) for count in self._counts()]
        return [1.0, self.stores, *rounds]

    def _counts(self) -> tuple[int, int, int]:
        """Settled stores, short queues, long queues."""
        log_bytes = self.gb * (1 << 30) - self.stores * (1 << 29)  # the last segment is half full
        short = log_bytes // RECORD_SIZE <= self.queues * PAGE_UNITS
        settled = self.stores if self.queues > SETTLED_FROM * self.stores else 0
        return (settled, self.queues, 0) if short else (settled, 0, self.queues)

    def __str__(self) -> str:
        return f"{self.queues} queues, {self.stores} stores, {self.gb} GB"


PLAN_REFERENCE: Final = (
    PlanCase(1, 1, 1),
    PlanCase(1, 16, 1),
    PlanCase(16, 32, 16),
    PlanCase(1, 640, 2),
    PlanCase(1, 640, 24),
    PlanCase(1, 1600, 1),
    PlanCase(16, 160, 16),
    PlanCase(16, 640, 16),
)
PLAN_GRID: Final = (
    PlanCase(1, 10, 1),
    PlanCase(10, 10, 10),
    PlanCase(1, 1000, 1),
    PlanCase(1, 1000, 10),
    PlanCase(1, 1000, 40),
    PlanCase(10, 1000, 10),
    PlanCase(100, 1000, 100),
    PlanCase(1, 10_000, 40),
    PlanCase(100, 10_000, 100),
)
_SMALL_GRID: Final = PLAN_GRID[:2]


def plan_seconds(case: PlanCase, delay_s: float, runs: int) -> float:
    """Seconds to plan a batch query in the order of the queues, the median of some.

    Without a delay these are seconds of CPU: nothing is waited for, and a busy machine tells less.
    """
    from tests.rigs.made_up import MadeUpStorage

    from oberth.spark import plan as p
    from oberth.spark.options import parse_read_options
    from oberth.spark.source import plan_batch
    from oberth.spark.store_files import StoreFiles

    options = parse_read_options({"path": "/x", "readOrder": "queue"}, streaming=False)
    queues = case.queues // case.stores
    figures = []
    for _ in range(runs):
        stores = p.Stores(
            [
                StoreFiles(
                    MadeUpStorage(max(case.gb // case.stores, 1), queues, delay_s=delay_s),
                    "/made-up",
                    f"b{number}",
                )
                for number in range(case.stores)
            ]
        )
        clock = time.perf_counter if delay_s else time.process_time
        begun = clock()
        assert plan_batch(stores, options)
        figures.append(clock() - begun)
    return statistics.median(figures)


def fit(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """The constants that give these seconds best, by relative error; none is below zero."""
    import numpy as np

    weights = 1 / np.array(seconds)
    matrix = np.array(features) * weights[:, None]
    used = list(range(matrix.shape[1]))
    while True:
        found = np.linalg.lstsq(matrix[:, used], np.ones(len(seconds)), rcond=None)[0]
        if (found >= 0).all():
            break
        del used[int(np.argmin(found))]
    constants = [0.0] * matrix.shape[1]
    for place, value in zip(used, found.tolist(), strict=True):
        constants[place] = value
    return constants


def _sum(constants: Sequence[float], features: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(constants, features, strict=True))


def _compare(rows: list[Row], what: str, measured: float, predicted: float) -> None:
    row = Row(what, "s", lower_is_better=True)
    row.add(MEASURED, measured)
    row.add(PREDICTED, predicted)
    error = Row(f"{what}: error", "%", limit=ERROR_MAX, lower_is_better=True)
    error.add(MEASURED, abs(predicted / measured - 1) * 100)
    rows += [row, error]


def planning(rows: list[Row], grid: Sequence[PlanCase], runs: int) -> list[float]:
    """Compares planning; gives the constants of a store on a disk."""
    plan_seconds(PLAN_REFERENCE[0], 0.0, 1)  # imports
    near = [plan_seconds(case, 0.0, runs) for case in PLAN_REFERENCE]
    cpu = fit([case.work for case in PLAN_REFERENCE], near)
    waits = [
        max(plan_seconds(case, DELAY_S, 1) - here, 1e-3)
        for case, here in zip(PLAN_REFERENCE, near, strict=True)
    ]
    slow = fit([case.waits for case in PLAN_REFERENCE], waits)
    for delay in (0.0, DELAY_S):
        for case in grid:
            if delay and case.stores > 10 and case.queues > 1000:
                continue  # as long as the case of one store
            predicted = _sum(cpu, case.work) + (_sum(slow, case.waits) if delay else 0.0)
            where = f"delay {delay * 1000:.0f} ms"
            measured = plan_seconds(case, delay, 1 if delay else runs)
            _compare(rows, f"planning, {case}, {where}", measured, predicted)
    return cpu


# With a JVM.


def _copies(base: Path, root: Path, count: int) -> list[str]:
    """The same store under several names, by hard links."""
    found = []
    for number in range(count):
        copy = base / f"copy-{number:03d}"
        if not copy.exists():
            shutil.copytree(root, copy, copy_function=os.link)
        found.append(str(copy))
    return found


def _one(args: argparse.Namespace) -> None:
    """In a process of its own: prints the seconds of each job.

    Of empty tasks those of the second run, of reads the median of the last three of five.
    """
    from benchmarks.spark.pipelines import _session
    from oberth.spark.pipelines.tasks import OnSpark

    spark = _session(args.master, [], quick=args.small)
    tasks = OnSpark(spark)
    found: dict[str, float] = {}
    for number in json.loads(args.tasks):
        for _ in range(2):
            begun = time.monotonic()
            tasks.run(abs, range(number), what="nothing")
            found[f"tasks {number}"] = time.monotonic() - begun
    for paths in json.loads(args.paths):
        frame = spark.read.format("rocketmq").option("readOrder", "commitlog")
        frame = frame.option("targetPartitionBytes", str(_PARTITION_BYTES))
        frame = frame.options(**json.loads(args.options))
        took, work = [], []
        for _ in range(5 if len(paths) < 4 else 1):  # the JVM still compiles in the second
            begun, worked = time.monotonic(), _work_s()
            frame.load(",".join(paths)).write.format("noop").mode("overwrite").save()
            took.append(time.monotonic() - begun)
            work.append(_work_s() - worked)
        found[f"read {len(paths)}"] = statistics.median(took[-3:])
        found[f"work {len(paths)}"] = statistics.median(work[-3:])
    spark.stop()
    print(json.dumps(found))


def _work_s() -> float:
    """Seconds that the cores of this machine have worked, all together; 0 where Linux isn't."""
    try:
        line = Path("/proc/stat").read_text("ascii").splitlines()[0]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq = map(int, line.split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _run_one(
    master: str,
    tasks: Sequence[int],
    paths: Sequence[Sequence[str]],
    *,
    small: bool,
    options: Mapping[str, str] | None = None,
) -> dict[str, float]:
    command = [
        sys.executable, "-m", "benchmarks.spark.cost_grid", "--one", "--master", master,
        "--tasks", json.dumps(list(tasks)), "--paths", json.dumps([list(each) for each in paths]),
        "--options", json.dumps(dict(options or {})),
        *(["--small"] if small else []),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def running(rows: list[Row], base: Path, args: argparse.Namespace) -> None:
    """Compares scheduling and reading."""
    from benchmarks.spark.stores import build, touch

    few, many = (2, 20) if args.small else (20, 400)
    sizes = (1,) if args.small else (1, 2, 10, 40)
    size = 1024
    root = base / "store"
    log_bytes = build(root, args.mb * 1_000_000 // (size + 120), size, seed=1)
    touch(root)
    copies = _copies(base, root, sizes[-1])
    gb = log_bytes / _GB
    reference = _run_one("local[1]", (few, many), [copies[:n] for n in sizes[:2]], small=args.small)
    task = (reference[f"tasks {many}"] - reference[f"tasks {few}"]) / (many - few)
    job = max(reference[f"tasks {few}"] - few * task, 0.0)
    # The share of a GB holds planning and tasks; what a query takes beside is the rest.
    if args.small:
        each, fixed = reference["read 1"] / gb, 0.0
    else:
        each = (reference["read 2"] - reference["read 1"]) / gb
        fixed = max(reference["read 1"] - each * gb, 0.0)
    for at_once in args.masters:
        wide = min(at_once, os.cpu_count() or 1)
        reads = [1] if args.small else [1, 10] if at_once != 2 else [1, 10, 40]
        reads = [n for n in reads if at_once > 1 or n > 1]
        found = _run_one(
            f"local[{at_once}]", (many,), [copies[:n] for n in reads], small=args.small
        )
        where = f"{at_once} tasks at a time"
        if at_once > 1:
            predicted = job + many * task / wide
            _compare(rows, f"{many} empty tasks, {where}", found[f"tasks {many}"], predicted)
        for n in reads:
            predicted = fixed + n * gb * each / wide
            _compare(rows, f"reading {n * gb:.0f} GB, {where}", found[f"read {n}"], predicted)


def far(rows: list[Row], base: Path, args: argparse.Namespace) -> dict[str, float]:
    """Compares reading from an object store that answers late; gives the constants."""
    from benchmarks.spark.stores import build

    size = 1024
    sizes = (1, 2, 10)
    root = base / "far"
    log_bytes = build(root / "store", args.mb * 1_000_000 // (size + 120), size, seed=1)
    copies = _copies(root, root / "store", sizes[-1])
    urls = [f"s3://{BUCKET}/{Path(each).name}" for each in copies]
    gb = log_bytes / _GB

    def read(at_once: int, counts: Sequence[int], delay_s: float) -> dict[str, float]:
        with slow_store(root, delay_s) as options:
            paths = [urls[:n] for n in counts]
            return _run_one(f"local[{at_once}]", (), paths, small=False, options=options)

    few = sizes[:2]
    near, late = read(1, few, 0.0), read(1, few, DELAY_S)
    each, late_each = ((one["read 2"] - one["read 1"]) / gb for one in (near, late))
    busy = max((near["work 2"] - near["work 1"]) / gb / each, 1.0)
    waits, fixed = late_each - each, max(late["read 1"] - late_each * gb, 0.0)
    for at_once in args.masters:
        wide = min(at_once, (os.cpu_count() or 1) / busy)
        counts = [n for n in sizes if at_once > 1 or n not in few]
        if not counts:
            continue
        found = read(at_once, counts, DELAY_S)
        for n in counts:
            predicted = fixed + n * gb * (each / wide + waits / at_once)
            what = f"reading {n * gb:.0f} GB, {at_once} tasks at a time, delay 30 ms"
            _compare(rows, what, found[f"read {n}"], predicted)
    return {"fixed_s": fixed, "s_a_gb": each, "waits_s_a_gb": waits, "busy_cores": busy}


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="plan,run,far")
    parser.add_argument("--mb", type=int, default=1000, help="of the store that is read, in MB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", help="where stores are made; a temporary directory otherwise")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--master", default="local[1]", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", default="[]", help=argparse.SUPPRESS)
    parser.add_argument("--paths", default="[]", help=argparse.SUPPRESS)
    parser.add_argument("--options", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        _one(args)
        return
    args.masters = (1, 2, 4)
    grid: Sequence[PlanCase] = PLAN_GRID
    if args.small:
        args.mb, args.runs, grid, args.only = 4, 1, _SMALL_GRID, "plan"
    base = Path(args.dir or tempfile.mkdtemp(prefix="oberth-bench-"))
    rows: list[Row] = []
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    try:
        if "plan" in args.only:
            constants = planning(rows, grid, args.runs)
            names = ("query", "store", "settled store", "short queue", "long queue", "gb")
            figures["planning_s"] = dict(zip(names, constants, strict=True))
        if "run" in args.only:
            running(rows, base, args)
        if "far" in args.only:
            figures["far"] = far(rows, base, args)
        emit("spark_cost_grid", rows, MEASURED, PREDICTED, mb=args.mb, **figures)
    finally:
        if not args.dir:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
