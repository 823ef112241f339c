"""POP, SQL filters, timers and transactions: our broker against Apache's, through one client.

    python -m benchmarks.features [--small] [--runs 3] [--only pop,sql,...] [--brokers A,B]

Each run starts a cluster from nothing, measures every row on it and kills it; sides take turns and
change places from run to run. Figures are medians over the runs. Beside each rate stands what the
broker's process spent for it, user and system time: on a machine that others are loading, a rate
says who had luck, and this what the broker costs. Heap of Apache's broker: 1 GiB, touched at start.

Every message is counted on both sides: a row with a message missing or refused is no row.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.broker import AnyCluster, make
from benchmarks.peers import wire
from benchmarks.peers.load import features
from benchmarks.report import Row, emit, take_turns

CONF = {
    "enablePropertyFilter": "true",
    # A machine that others are loading is no reason to refuse: every message has to be counted.
    "waitTimeMillsInSendQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
}
#: In this order: what a pop leaves in the timer comes back a minute later.
GROUPS = ("sql", "trans", "timer", "pop")
_PRECISION_MS = 1000
_QUEUES = 4
#: A backlog that is only looked at is gone in half a second; so many times more of it.
_SQL_TIMES = 4
_START_TIMEOUT_S = 600


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    cpu = {"unit": "us", "lower_is_better": True}
    return {
        "pop": Row("POP push consumer draining a backlog, acknowledged", "1/s", 1.0),
        "pop-cpu": Row("  broker's time for each message", **cpu),  # type: ignore[arg-type]
        "sql": Row("SQL-filtered backlog, one in five wanted, looked at", "1/s", 1.0),
        "sql-cpu": Row("  broker's time for each message looked at", **cpu),  # type: ignore[arg-type]
        "plain": Row("put with a delay level, 1 000 in flight", "1/s"),
        "plain-cpu": Row("  broker's time for each message of a level", **cpu),  # type: ignore[arg-type]
        "timer": Row("put with a time, 1 000 in flight", "1/s", 1.0),
        "timer-cpu": Row("  broker's time for each timed message, put", **cpu),  # type: ignore[arg-type]
        "timer-plain": Row("put with a time / with a delay level", "ratio", limit=1.0),
        "late-p50": Row("delivery after its time, p50", "ms", lower_is_better=True),
        "late-p99": Row("delivery after its time, p99", "ms", lower_is_better=True),
        "slot-p99": Row(
            "delivery after the second of its time, p99", "ms", None, True, _PRECISION_MS
        ),
        "deliver-cpu": Row("  broker's time for each timed message, delivered", **cpu),  # type: ignore[arg-type]
        "trans": Row("transactions, 32 threads, committed at once", "1/s", 1.0),
        "trans-cpu": Row("  broker's time for each transaction", **cpu),  # type: ignore[arg-type]
    }


class Run:
    """One cluster's turn."""

    def __init__(self, kind: str, directory: Path, options: argparse.Namespace) -> None:
        self.kind = kind
        self.directory = directory
        self.small = options.small
        self.n = options.n
        self.wanted = options.only

    def measure(self, add: Callable[[str, float], None]) -> None:
        """Every wanted row; add(key, figure)."""
        cluster = make(self.kind, self.directory / "cluster", **CONF)
        try:
            for node in cluster.nodes:
                node.start(_START_TIMEOUT_S)
            wire.create_topics(cluster.broker_addr, self.wanted, _QUEUES)
            for group in self.wanted:
                getattr(self, f"_{group}")(cluster, add)
        finally:
            cluster.kill()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _load(self, mode: str, cluster: AnyCluster, **options: int) -> dict[str, Any]:
        line = features(
            mode,
            cluster.namesrv_addr,
            self.directory / "client",
            topic=mode,
            broker=cluster.broker_addr,
            pid=cluster.brokers[0].pid,
            **options,
        )
        lost = {key: line[key] for key in ("missing", "bad", "twice") if line.get(key)}
        if lost:
            raise RuntimeError(f"{self.kind}, {mode}: {lost} of {line['ok']}")
        return line

    def _drain(
        self, mode: str, cluster: AnyCluster, add: Callable[[str, float], None], n: int
    ) -> None:
        line = self._load(mode, cluster, n=n, sec=600)
        add(mode, line["per_s"])
        add(f"{mode}-cpu", line["cpu_us"])

    def _pop(self, cluster: AnyCluster, add: Callable[[str, float], None]) -> None:
        self._drain("pop", cluster, add, self.n)

    def _sql(self, cluster: AnyCluster, add: Callable[[str, float], None]) -> None:
        self._drain("sql", cluster, add, self.n if self.small else _SQL_TIMES * self.n)

    def _timer(self, cluster: AnyCluster, add: Callable[[str, float], None]) -> None:
        if self.small:
            line = self._load("timer", cluster, n=min(self.n, 1_000), spread=2, lead=4)
        else:
            line = self._load("timer", cluster, n=self.n, spread=20, lead=40)
        if line["spare_ms"] < 0:
            sys.stderr.write(f"{self.kind}: the first was due before the last was put\n")
        if line["early"]:
            sys.stderr.write(f"{self.kind}: {line['early']} came before their time\n")
        add("plain", line["plain_per_s"])
        add("plain-cpu", line["plain_cpu_us"])
        add("timer", line["put_per_s"])
        add("timer-cpu", line["put_cpu_us"])
        add("timer-plain", line["put_per_s"] / line["plain_per_s"])
        add("late-p50", line["late_p50_ms"])
        add("late-p99", line["late_p99_ms"])
        add("slot-p99", line["slot_p99_ms"])
        add("deliver-cpu", line["deliver_cpu_us"])

    def _trans(self, cluster: AnyCluster, add: Callable[[str, float], None]) -> None:
        sec, warm = (1, 1) if self.small else (10, 5)
        line = self._load("trans", cluster, threads=32, sec=sec, warm=warm)
        add("trans", line["per_s"])
        add("trans-cpu", line["cpu_us"])


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (3; 1 when small)")
    parser.add_argument("--n", type=int, help="messages of pop, sql, timer (100 000; small: 2 000)")
    parser.add_argument("--brokers", default="apache-5.5.0,oberth", help="rival, then ours")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows")
    options = parser.parse_args(argv)
    options.runs = options.runs or (1 if options.small else 3)
    options.n = options.n or (2_000 if options.small else 100_000)
    options.only = options.only.split(",")
    kinds = options.brokers.split(",")
    table = rows()
    skipped = take_turns(
        kinds,
        options.runs,
        table,
        lambda kind, place, add: Run(kind, place, options).measure(add),
    )
    emit("features", table.values(), ours=kinds[-1], rival=kinds[0], skipped=skipped)


if __name__ == "__main__":
    main()
