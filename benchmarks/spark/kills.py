"""Pipelines killed at random moments and run again: every message exactly once, or the documented words.

    python -m benchmarks.spark.kills [--count 20] [--seed N] [--only NAME,…] [--rows N] [--master URL | --cluster]

A round runs a pipeline as a command with fresh output, kills one of its processes at a random
moment of the time that an undisturbed run takes, and runs the command again until it ends well.
Then the result is read by something else: tables by DuckDB or PyIceberg, stores without Spark.

    victim      what dies
    driver      the command with its JVM and workers
    worker      one of Spark's Python workers
    executor    an executor's JVM; with local[N] that is the driver's
    broker      of the pipelines with live topics; it starts again a second later. Of `up --lake`
                the whole command but for its lake's process, which has to end by itself

`--cluster` starts a standalone master with two workers, for executors of their own. The log has
one line a round; the run ends with 1 if any round does not hold.
"""  # noqa: E501 - the first line

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.spark.killed_pipelines import PIPELINES, POLL_S, Pipeline, Place

TRIES_MAX = 4
RUN_MAX_S = 600.0
#: A moment may come when the run is over already: then nothing was killed, and that round is extra.
ROUNDS_PER_KILL_MAX = 3


# Processes.


def _processes() -> dict[int, tuple[int, str]]:
    """Parent and command line of every process."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()
                line = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            found[int(entry.name)] = (int(stat[1]), line.decode(errors="replace"))
    return found


def _below(*roots: int) -> dict[int, str]:
    """The processes below some, and those themselves, with their command lines."""
    every = _processes()
    below = {pid for pid in roots if pid in every}
    while more := {p for p, (parent, _) in every.items() if parent in below and p not in below}:
        below |= more
    return {pid: every[pid][1] for pid in below}


def _kill(*pids: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _strike(victim: str, driver: int, pipeline: Pipeline, rng: random.Random) -> str:
    """Kills a victim; says what it was, "" when there was none."""
    if victim == "driver":
        chosen = pipeline.drivers(driver, _below(driver))
        _kill(*_below(*chosen))
        return "driver" if chosen else ""
    if victim == "broker":
        return "broker" if pipeline.strike_broker(driver) else ""
    word = "-m pyspark." if victim == "worker" else "CoarseGrainedExecutorBackend"
    below = _below(driver, *pipeline.place.workers)
    chosen = sorted(pid for pid, line in below.items() if word in line)
    if victim == "executor" and not chosen:
        chosen = sorted(pid for pid, line in below.items() if "SparkSubmit" in line)
    if not chosen:
        return ""
    _kill(rng.choice(chosen))
    return victim


def _run(
    pipeline: Pipeline,
    out: Path,
    command: list[str],
    log: Path,
    strike_s: float,
    victim: str,
    rng: random.Random,
) -> tuple[bool, str, float]:
    """Runs a command; whether it ended well, what was killed, how long it took."""  # fmt: skip
    began = time.monotonic()
    struck = ""
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=log.parent)
    try:
        while process.poll() is None:
            now = time.monotonic() - began
            # Where the victim is not there yet, as soon as it is: on a busy machine most of a run
            # is the start of its processes.
            if (
                victim
                and now >= strike_s
                and (struck := _strike(victim, process.pid, pipeline, rng))
            ):
                victim = ""
            elif pipeline.ended(out):
                process.send_signal(signal.SIGINT)
                process.wait(60)
                return True, struck, time.monotonic() - began
            elif now > RUN_MAX_S:
                return False, struck, now
            time.sleep(POLL_S)
        return process.returncode == 0, struck, time.monotonic() - began
    finally:
        _kill(*_below(process.pid))
        process.wait()


def run_round(pipeline: Pipeline, number: int, victim: str, limit_s: float, seed: str) -> Any:
    """One round: a row of the log."""
    rng = random.Random(seed)
    out = pipeline.place.root / f"{pipeline.name}-{number}"
    log = pipeline.place.root / f"{pipeline.name}-{number}.log"
    strike_s = rng.uniform(0.0, limit_s)
    command = pipeline.begin(out)
    done, struck, took_s = _run(pipeline, out, command, log, strike_s, victim, rng)
    tries = 1
    while not done and tries < TRIES_MAX:
        if tries > 1:
            pipeline.wait_until_free()
        done, _, _ = _run(pipeline, out, command, log, 0.0, "", rng)
        tries += 1
    wrong = pipeline.check(out) if done else f"no end after {tries} runs, see {log}"
    if not wrong:
        shutil.rmtree(out, ignore_errors=True)
    return {
        "pipeline": pipeline.name, "round": number, "victim": struck, "at_s": round(strike_s, 1),
        "runs": tries, "s": round(took_s, 1), "wrong": wrong,
    }  # fmt: skip


@contextmanager
def standalone(scratch: Path) -> Iterator[tuple[str, list[int]]]:
    """A standalone master with two workers of one core: its URL and the workers' processes."""
    from oberth.spark.runtime import find_java, quick_spark_home

    home, java = quick_spark_home(), find_java().home
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java),
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    url = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}"]
        local = ["--host", "127.0.0.1", "--webui-port", "0"]
        with (scratch / "cluster.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [*command, *local, *arguments], env=environment, stdout=log, stderr=log,
                    cwd=scratch,
                )
            )  # fmt: skip

    try:
        start("master.Master", "--port", str(port))
        for number in range(2):
            directory = ("-d", str(scratch / f"worker-{number}"))
            start("worker.Worker", "--cores", "1", "--memory", "1g", *directory, url)
        deadline = time.monotonic() + 300
        log = scratch / "cluster.log"
        while log.read_bytes().count(b"Successfully registered with master") < 2:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers did not register, see {log}")
            time.sleep(POLL_S)
        yield url, [process.pid for process in started[1:]]
    finally:
        for process in reversed(started):
            _kill(*_below(process.pid))
            process.wait()


#: Small executors; repeated tasks, and second copies of slow ones.
CLUSTER_CONFS = (
    "spark.executor.memory=512m", "spark.executor.cores=1", "spark.cores.max=2",
    "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
    "spark.deploy.maxExecutorRetries=-1", "spark.speculation=true",
    "spark.speculation.multiplier=1.1", "spark.speculation.interval=50ms",
)  # fmt: skip


def drill(
    root: Path,
    names: list[str],
    *,
    count: int,
    rows: int,
    seed: int,
    master: str,
    cluster: bool,
    tell: Callable[[str], None],
) -> list[Any]:
    """Runs the rounds of some pipelines; gives their rows."""
    told = []
    with ExitStack() as stack:
        workers: list[int] = []
        spark = [master]
        if cluster:
            url, workers = stack.enter_context(standalone(root))
            spark = [url, *CLUSTER_CONFS]
        place = Place(root, rows, seed, spark)
        place.workers = workers
        for name in names:
            pipeline = PIPELINES[name](place)
            stack.callback(pipeline.close)
            calm = run_round(pipeline, 0, "", 0.0, "")
            tell(json.dumps(calm))
            told.append(calm)
            killed, number, limit_s = 0, 0, calm["s"]
            while killed < count and number < ROUNDS_PER_KILL_MAX * count:
                number += 1
                victim = pipeline.victims[(number - 1) % len(pipeline.victims)]
                row = run_round(pipeline, number, victim, limit_s, f"{seed} {name} {number}")
                killed += bool(row["victim"])
                if not row["victim"]:  # it was over before its moment came
                    limit_s = min(limit_s, row["s"])
                tell(json.dumps(row))
                told.append(row)
            pipeline.close()
    return told


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="kills of each pipeline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--only", default=",".join(PIPELINES), help=f"of {', '.join(PIPELINES)}")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--cluster", action="store_true", help="a standalone cluster of its own")
    parser.add_argument("--dir", help="where files are made; a temporary directory otherwise")
    parser.add_argument("--small", action="store_true", help="one kill of one pipeline, for CI")
    given = parser.parse_args(arguments)
    if given.small:
        given.count, given.rows, given.only = 1, 300, "export-parquet"
    names = given.only.split(",")
    if unknown := [name for name in names if name not in PIPELINES]:
        parser.error(f"--only: found {unknown[0]!r}, allowed: {', '.join(PIPELINES)}")
    with ExitStack() as stack:
        if given.dir:
            Path(given.dir).mkdir(parents=True, exist_ok=True)
        where = given.dir or stack.enter_context(tempfile.TemporaryDirectory())
        rows = drill(
            Path(where).resolve(), names, count=given.count, rows=given.rows, seed=given.seed,
            master=given.master, cluster=given.cluster, tell=lambda line: print(line, flush=True),
        )  # fmt: skip
    wrong = [row for row in rows if row["wrong"]]
    killed = Counter(row["victim"] for row in rows if row["victim"])
    print(json.dumps({"rounds": len(rows), "killed": killed, "wrong": len(wrong)}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
