"""Our client against the official Java client, both on the same broker, in turns.

    python -m benchmarks.client [--small] [--runs 3] [--brokers apache-5.5.0,oberth]

Each run starts a broker from nothing, warms it up with both clients and measures every row with
one, then with the other; who is first changes from run to run. Figures are medians over the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.broker import AnyCluster, make
from benchmarks.peers.load import load
from benchmarks.report import Row, emit
from oberth.errors import PeerUnavailableError

OURS = "oberth.client"
RIVAL = "java-5.5.0"
IMPORT_S_MAX = 0.15
EMBEDDED_S_MAX = 0.3
NEXT_S_MAX = 0.02
SPARE_S = 120


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    return {
        "send": Row("64 concurrent sends, 128 B", "1/s", 0.8),
        "async": Row("1 000 in flight, 128 B", "1/s", 1.0),
        "consume": Row("push consumer draining a backlog, 128 B", "1/s", 0.7),
        "import": Row("import oberth.client", "s", lower_is_better=True, limit=IMPORT_S_MAX),
        "memory": Row("anonymous memory, idle producer and consumer", "MB", 0.2, True),
        "embedded": Row(
            "EmbeddedBroker ready, first in its process",
            "s",
            lower_is_better=True,
            limit=EMBEDDED_S_MAX,
        ),
        "next": Row(
            "the next test's: topics, files and clock", "s", lower_is_better=True, limit=NEXT_S_MAX
        ),
    }


def ours(mode: str, namesrv_addr: str, **options: int | str) -> dict[str, Any]:
    """One mode of client_load."""
    command = [
        sys.executable, "-m", "benchmarks.peers.client_load", mode, f"namesrv={namesrv_addr}",
        *(f"{key}={value}" for key, value in options.items()),
    ]  # fmt: skip
    seconds = sum(int(options.get(key, 0)) for key in ("sec", "warm"))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + SPARE_S, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def import_s() -> float:
    """Seconds that the import adds to an empty interpreter, with its bytecode at hand."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": tempfile.mkdtemp(prefix="oberth-pyc-")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def took(statement: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
        return time.perf_counter() - begin

    names = "from oberth.client import Message, Producer, PushConsumer"
    return min(took(names) for _ in range(7)) - min(took("pass") for _ in range(7))


def warm_up(cluster: AnyCluster, directory: Path, sec: int) -> None:
    """Both clients send for a while: a broker in a JVM is another one when it is warm."""
    common: dict[str, int | str] = {
        "sec": sec,
        "warm": 0,
        "topic": "warm",
        "size": 128,
        "inflight": 1000,
    }
    load("async", cluster.namesrv_addr, directory, **common)
    ours("async", cluster.namesrv_addr, **common)


def measure(
    side: str, cluster: AnyCluster, directory: Path, sec: int, warm: int, table: dict[str, Row]
) -> None:
    """Every row with one client."""
    addr = cluster.namesrv_addr
    topic = f"load-{side.partition('.')[0]}"
    common: dict[str, int | str] = {"sec": sec, "warm": warm, "topic": topic, "size": 128}

    def run(mode: str, **options: int | str) -> dict[str, Any]:
        return (
            ours(mode, addr, **options) if side == OURS else load(mode, addr, directory, **options)
        )

    table["send"].add(side, run("send", threads=64, **common)["per_s"])
    line = run("async", inflight=1000, **common)
    table["async"].add(side, line["per_s"])
    # What both kinds of sends stored, as far as is known; the rest of the topic is not waited for.
    table["consume"].add(side, run("consume", topic=topic, n=line["ok"], sec=120)["per_s"])
    table["memory"].add(side, run("idle", topic=topic, sec=2)["anonymous_mb"])
    if side == OURS:
        table["import"].add(side, import_s())
        line = run("embedded")
        table["embedded"].add(side, line["ready_s"])
        table["next"].add(side, line["next_s"])


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (3; 1 when small)")
    parser.add_argument("--sec", type=int, help="seconds of each measurement (10; 2 when small)")
    parser.add_argument("--warm", type=int, help="seconds before each (3; 1 when small)")
    parser.add_argument("--brokers", default="apache-5.5.0,oberth", help="one report for each")
    options = parser.parse_args(argv)
    runs = options.runs or (1 if options.small else 3)
    sec = options.sec or (2 if options.small else 10)
    warm = options.warm or (1 if options.small else 3)
    for broker in options.brokers.split(","):
        table = rows()
        base = Path(tempfile.mkdtemp(prefix="oberth-bench-"))
        try:
            for number in range(runs):
                cluster = make(broker, base / f"run-{number}")
                try:
                    cluster.start()
                    warm_up(cluster, base / "client", 2 * sec)
                    for side in (OURS, RIVAL) if number % 2 == 0 else (RIVAL, OURS):
                        measure(side, cluster, base / "client", sec, warm, table)
                finally:
                    cluster.kill()
        except PeerUnavailableError as problem:
            sys.stderr.write(f"{broker}: skipped: {problem}\n")
            continue
        finally:
            shutil.rmtree(base, ignore_errors=True)
        emit(f"client on {broker}", table.values(), OURS, RIVAL)


if __name__ == "__main__":
    main()
