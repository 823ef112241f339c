"""Our broker against Apache's, through the official client on the same machine, in turns.

    python -m benchmarks.broker [--small] [--runs 3] [--only send,async,...] [--brokers A,B]

Each run starts a cluster from nothing, measures every row on it and kills it; sides take turns and
change places from run to run. Figures are medians over the runs. Heap of Apache's broker: 1 GiB,
touched at start as its own scripts do.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.rigs.clusters import ApacheCluster, OberthCluster, resident_bytes

from benchmarks.calm import Watch
from benchmarks.peers import wire
from benchmarks.peers.load import load
from benchmarks.report import Row, emit, take_turns

CONF = {"autoCreateTopicEnable": "true", "diskMaxUsedSpaceRatio": "95"}
GROUPS = ("start", "send", "async", "consume", "latency", "memory", "sync", "idle", "topics")
_FILES_MAX = 8192
_WARM_UP_S = 15
_FIRST_ACK_TIMEOUT_S = 60

AnyCluster = ApacheCluster | OberthCluster


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    mb = {"unit": "MB", "lower_is_better": True}
    return {
        "start": Row("from nothing to the first acknowledged message", "s", 0.1, True),
        "send-64-128": Row("sync send, 64 threads, 128 B", "1/s", 1.0),
        "send-64-1024": Row("sync send, 64 threads, 1 KiB", "1/s", 1.0),
        "send-1": Row("sync send, one thread, 128 B, p50", "us", 0.8, True),
        "async-128": Row("async, 1 000 in flight, 128 B", "1/s", 1.2),
        "async-1024": Row("async, 1 000 in flight, 1 KiB", "1/s", 1.2),
        "consume": Row("push consumer draining a backlog, 128 B", "1/s", 1.2),
        "latency-p50": Row("send to listener at 500/s, p50", "us", 0.8, True),
        "latency-p99": Row("send to listener at 500/s, p99", "us", 0.8, True),
        "memory-idle": Row("anonymous memory, idle", limit=80, **mb),  # type: ignore[arg-type]
        "memory-after": Row("anonymous memory, after these runs", limit=200, **mb),  # type: ignore[arg-type]
        "sync-64": Row("SYNC_FLUSH, 64 threads, 1 KiB", "1/s", 1.2),
        "sync-1": Row("SYNC_FLUSH, one thread, 1 KiB", "1/s", 1.5),
        "idle-p99": Row("p99 of a send beside idle connections / alone", "ratio", None, True, 2.0),
        "groups-first": Row("first commits of as many new groups as topics", "s", 1.0, True),
        "topics-p99": Row("p99 of a send with many topics / empty", "ratio", None, True, 2.0),
    }


def make(kind: str, directory: Path, **conf: str) -> AnyCluster:
    """A cluster as it is measured."""
    if kind == "oberth":
        return OberthCluster(directory, {**CONF, **conf})
    version = kind.removeprefix("apache-")
    return ApacheCluster(version, directory, {**CONF, **conf}, heap="1g", pretouch=True)


def first_ack(cluster: AnyCluster) -> float:
    """Start name server and broker at once; seconds until a message is acknowledged."""
    began = time.monotonic()
    for node in cluster.nodes:
        node.launch()
    while not wire.try_send(cluster.broker_addr, "first", int(time.time() * 1000)):
        if time.monotonic() - began > _FIRST_ACK_TIMEOUT_S:
            raise TimeoutError(f"{cluster.kind}: no message acknowledged")
        time.sleep(0.005)
    took = time.monotonic() - began
    for node in cluster.nodes:
        node.wait_ready()
    return took


def anonymous_mb(cluster: AnyCluster) -> float:
    """Anonymous resident pages of all processes of the cluster."""
    return sum(resident_bytes(node.pid, "RssAnon") for node in cluster.nodes) / 1e6


class Run:
    """One cluster's turn."""

    def __init__(self, kind: str, directory: Path, options: argparse.Namespace) -> None:
        self.kind = kind
        self.directory = directory
        self.client = directory / "client"
        self.sec = options.sec
        self.warm = options.warm
        self.small = options.small
        self.wanted = options.only

    def measure(self, add: Callable[[str, float], None]) -> None:
        """Every wanted row; add(key, figure)."""
        cluster = make(self.kind, self.directory / "async-flush")
        try:
            self._async_flush(cluster, add)
        finally:
            cluster.kill()
        for group, count in (("idle", 200 if self.small else 2_000), ("topics", 0)):
            if group in self.wanted:
                cluster = make(self.kind, self.directory / group)
                try:
                    cluster.start()
                    self._crowded(cluster, group, count, add)
                finally:
                    cluster.kill()
        if "sync" in self.wanted:
            cluster = make(self.kind, self.directory / "sync-flush", flushDiskType="SYNC_FLUSH")
            try:
                cluster.start()
                self._warm_up(cluster)
                common = {"size": 1024, "sec": self.sec, "warm": self.warm, "topic": "sync"}
                for threads in (64, 1):
                    line = load(
                        "send", cluster.namesrv_addr, self.client, threads=threads, **common
                    )
                    add(f"sync-{threads}", line["per_s"])
            finally:
                cluster.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _warm_up(self, cluster: AnyCluster) -> None:
        """Sends that do not count: a JVM gets three times faster in its first seconds."""
        if not self.small:
            load(
                "send", cluster.namesrv_addr, self.client,
                threads=64, size=128, topic="warm", sec=_WARM_UP_S, warm=0,
            )  # fmt: skip

    def _async_flush(self, cluster: AnyCluster, add: Callable[[str, float], None]) -> None:
        add("start", first_ack(cluster))
        time.sleep(2)  # what a start leaves behind is not idle
        add("memory-idle", anonymous_mb(cluster))
        addr, client = cluster.namesrv_addr, self.client
        common = {"sec": self.sec, "warm": self.warm}
        stored = 0
        if {"send", "async", "consume", "latency"} & set(self.wanted):
            self._warm_up(cluster)
        if "send" in self.wanted:
            for size in (128, 1024):
                line = load(
                    "send", addr, client, threads=64, size=size, topic=f"load{size}", **common
                )
                add(f"send-64-{size}", line["per_s"])
            line = load("send", addr, client, threads=1, size=128, topic="load128", **common)
            add("send-1", line["p50_us"])
        if "async" in self.wanted or "consume" in self.wanted:
            for size in (128, 1024):
                line = load(
                    "async", addr, client, inflight=1000, size=size, topic=f"load{size}", **common
                )
                add(f"async-{size}", line["per_s"])
                stored = stored or line["ok"]
        if "consume" in self.wanted:
            line = load("consume", addr, client, topic="load128", n=stored, sec=120)
            add("consume", line["per_s"])
        if "latency" in self.wanted:
            line = load("latency", addr, client, rate=500, topic="latency", **common)
            add("latency-p50", line["p50_us"])
            add("latency-p99", line["p99_us"])
        add("memory-after", anonymous_mb(cluster))

    def _crowded(
        self, cluster: AnyCluster, group: str, count: int, add: Callable[[str, float], None]
    ) -> None:
        """p99 of sends alone, then in a crowd."""
        common = {"threads": 8, "size": 128, "sec": self.sec, "warm": self.warm, "topic": "calm"}
        alone = load("send", cluster.namesrv_addr, self.client, **common)["p99_us"]
        with contextlib.ExitStack() as stack:
            if group == "idle":
                for connection in wire.idle_crowd(cluster.broker_addr, count):
                    stack.callback(connection.close)
            else:
                names = [f"many-{n}" for n in range(200 if self.small else 10_000)]
                wire.create_topics(cluster.broker_addr, names, 4)
                codes = wire.fill_queues(cluster.broker_addr, names, 4, int(time.time() * 1000))
                if codes != {0: 4 * len(names)}:
                    sys.stderr.write(f"{self.kind}: answers while filling queues: {codes}\n")
                began = time.monotonic()
                codes = wire.commit_first_offsets(cluster.broker_addr, names)
                add("groups-first", time.monotonic() - began)
                if codes != {0: len(names)}:
                    sys.stderr.write(f"{self.kind}: answers to first commits: {codes}\n")
            crowded = load("send", cluster.namesrv_addr, self.client, **common)["p99_us"]
        add(f"{group}-p99", crowded / alone)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (3; 1 when small)")
    parser.add_argument("--sec", type=int, help="seconds of each measurement (10; 2 when small)")
    parser.add_argument("--warm", type=int, help="seconds before each (3; 1 when small)")
    parser.add_argument("--brokers", default="apache-5.5.0,oberth", help="rival, then ours")
    parser.add_argument("--only", default="", help=f"groups of rows, of {','.join(GROUPS)}")
    options = parser.parse_args(argv)
    options.runs = options.runs or (1 if options.small else 3)
    options.sec = options.sec or (2 if options.small else 10)
    options.warm = options.warm or (1 if options.small else 3)
    small = "start,send,async,consume,memory,topics"
    options.only = (options.only or (small if options.small else ",".join(GROUPS))).split(",")
    kinds = options.brokers.split(",")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, _FILES_MAX), hard), hard))
    table = rows()
    watch = None if options.small else Watch()
    skipped = take_turns(
        kinds,
        options.runs,
        table,
        lambda kind, place, add: Run(kind, place, options).measure(add),
        watch=watch,
    )
    turns = watch.turns if watch is not None else []
    emit("broker", table.values(), ours=kinds[-1], rival=kinds[0], skipped=skipped, turns=turns)


if __name__ == "__main__":
    main()
