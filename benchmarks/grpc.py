"""Our gRPC port against Apache's broker behind its proxy, through the official client for Java.

    python -m benchmarks.grpc [--small] [--runs 3] [--only send,latency,...] [--sides A,B,C]

Three sides in turns, Apache's first: its 5.5.0 with the proxy in local mode (broker and proxy in
one JVM), a broker with the proxy in cluster mode before it, and our broker, whose own port it is.
That proxy ends at once where the name server knows no broker, so it is started when one is there.
The last side named is ours, the others are its rivals: the ratio is to the better of them in each
row. Processor time is that of all processes of a side but its name server. Each run starts a side
from nothing; the bars are those that we want to meet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.rigs import peers
from tests.rigs.clusters import ApacheCluster, Node, OberthCluster, free_port, resident_bytes
from tests.rigs.proxies import ApacheProxy, create_group, create_topic

from benchmarks.broker import CONF
from benchmarks.connections import Load
from benchmarks.peers import build, wire
from benchmarks.peers.grpc_wire import Connection, sending
from benchmarks.peers.load import grpc_load
from benchmarks.report import Row, emit, take_turns
from oberth.errors import PeerUnavailableError
from oberth.proxy import messages as m

SIDES: Final = ("apache-local", "apache-cluster", "oberth")
GROUPS: Final = ("start", "send", "latency", "consume", "remoting")
SIZES: Final = (128, 1024)
TOPIC: Final = "grpc_load"
BACKLOG: Final = "grpc_backlog"
GROUP: Final = "grpc_drain"
BETTER: Final = "the better of Apache's"
QUEUES: Final = 8

WARM_UP_S: Final = 20
"""Seconds of sends before a JVM counts."""

_HEAP: Final = "1g"
_READY_S: Final = 240.0
_LOG_LINES: Final = 20
_FILL_S: Final = 300
_OK: Final = 20000
_CONF: Final = {
    **CONF,
    "transactionCheckMax": "1000",
    "waitTimeMillsInSendQueue": "10000",
    "osPageCacheBusyTimeOutMills": "30000",
}


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    cpu = {"unit": "us", "lower_is_better": True}
    table = {"start": Row("from nothing to the first acknowledged message", "s", 0.1, True)}
    for size in SIZES:
        table[f"send-{size}"] = Row(f"SendMessage, 64 in flight, {size} B", "1/s", 1.0)
        table[f"send-{size}-cpu"] = Row("  processor time for each message", **cpu)  # type: ignore[arg-type]
    table |= {
        "latency": Row("SendMessage, one in flight, 128 B, p50", "us", 0.7, True),
        "latency-cpu": Row("  processor time for each of them", **cpu),  # type: ignore[arg-type]
        "consume": Row("push consumer draining a backlog", "1/s", 1.0),
        "consume-cpu": Row("  processor time for each message consumed", **cpu),  # type: ignore[arg-type]
        "idle": Row("anonymous memory, idle", "MB", None, True, 60),
        "after": Row("anonymous memory, after these runs", "MB", None, True, 200),
        "remoting-cpu": Row("remoting sends, processor time, gRPC on / off", "ratio", None, True),
    }
    return table


@dataclass(frozen=True)
class Side:
    """What serves gRPC.

    Attributes:
        kind: its name.
        cluster: name server and broker, for topics.
        endpoint: where gRPC clients connect.
        nodes: processes that are measured.
        front: the last of them, if it ends at once where no broker is registered yet.
    """

    kind: str
    cluster: Any
    endpoint: str
    nodes: list[Node]
    front: Node | None = None

    def launch(self) -> None:
        """Start everything at once, but for a front, which is started when it can stay."""
        for node in (*self.cluster.name_servers, *self.nodes):
            if node is not self.front:
                node.launch()
        if self.front is not None:
            for broker in self.cluster.brokers:
                broker.wait_ready(_READY_S)
            self.front.launch()

    def check_running(self) -> None:
        """Whether all of it is still there.

        Raises:
            PeerUnavailableError: a process has ended; with the last lines of its log.
        """
        for node in (*self.cluster.name_servers, *self.nodes):
            if not node.running:
                lines = node.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                raise PeerUnavailableError("\n".join([f"{self.kind}: {node.name} ended", *lines]))


class LocalProxy:
    """Apache's broker and proxy in one JVM; has of a cluster what topics are made with."""

    def __init__(self, directory: Path) -> None:
        cluster = ApacheCluster(peers.PROXY_VERSION, directory, _CONF, heap=_HEAP)
        self.kind = SIDES[0]
        self.namesrv_addr = cluster.namesrv_addr
        broker = cluster.brokers[0]
        grpc_port, remoting_port = free_port(), free_port()
        self.endpoint = f"127.0.0.1:{grpc_port}"
        configuration = broker.directory / "rmq-proxy.json"
        configuration.write_text(
            json.dumps(
                {
                    "proxyMode": "LOCAL",
                    "rocketMQClusterName": "DefaultCluster",
                    "namesrvAddr": cluster.namesrv_addr,
                    "localServeAddr": "127.0.0.1",
                    "grpcServerPort": grpc_port,
                    "remotingListenPort": remoting_port,
                    "enablePrintJstack": False,
                    # Clients are told the address that they dialled, as ours does.
                    "useEndpointPortFromRequest": True,
                }
            )
        )
        self.node = Node(
            broker.name,
            broker.address,
            broker.directory,
            peers.java_command(
                peers.jars(peers.PROXY_VERSION, "proxy"),
                "org.apache.rocketmq.proxy.ProxyStartup",
                *("-pm", "local", "-pc", str(configuration)),
                *("-bc", str(broker.directory / "broker.conf")),
                options=(
                    *(f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-XX:+AlwaysPreTouch", "-XX:+UseG1GC"),
                    *("-XX:MaxDirectMemorySize=4g", f"-Duser.home={broker.directory}"),
                    "-Drocketmq.log.root.level=WARN",
                ),
            ),
            namesrv_addr=cluster.namesrv_addr,
            environment={
                "ROCKETMQ_HOME": str(broker.directory),
                "RMQ_PROXY_HOME": str(broker.directory),
            },
        )
        self.brokers = [self.node]
        self.name_servers = cluster.name_servers


def make(kind: str, directory: Path) -> Side:
    """One side, not started."""
    if kind == SIDES[0]:
        local = LocalProxy(directory)
        return Side(kind, local, local.endpoint, [local.node])
    if kind == SIDES[1]:
        cluster = ApacheCluster(peers.PROXY_VERSION, directory, _CONF, heap=_HEAP, pretouch=True)
        proxy = ApacheProxy(cluster, directory / "proxy")
        # Suites are short and want a fast start, a load wants all that the compiler can do.
        proxy.node.command.remove("-XX:TieredStopAtLevel=1")
        return Side(kind, cluster, proxy.endpoint, [*cluster.brokers, proxy.node], proxy.node)
    port = free_port()
    ours = OberthCluster(directory, {**_CONF, "grpcServerPort": str(port)})
    return Side(kind, ours, f"127.0.0.1:{port}", ours.brokers)


async def _try_send(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        _, made = await loop.create_connection(Connection, host, int(port))
    except OSError:
        return False
    try:
        async with asyncio.timeout(5):
            raw = await made.call("SendMessage", "first", sending(TOPIC, 1, b"first"), ends=True)
    except (TimeoutError, ConnectionError):
        return False
    finally:
        made.transport.abort()
    return bool(m.SendMessageResponse.FromString(raw).status.code == _OK)


def first_ack(side: Side) -> float:
    """Start a side; seconds until a message was acknowledged over gRPC."""
    began = time.monotonic()
    side.launch()
    has_topic = False
    while time.monotonic() - began < _READY_S:
        side.check_running()
        if not has_topic:
            with suppress(OSError, PeerUnavailableError, TimeoutError):
                create_topic(side.cluster, TOPIC, "NORMAL", QUEUES)
                has_topic = True
        elif asyncio.run(_try_send(side.endpoint)):
            return time.monotonic() - began
        time.sleep(0.005)
    raise TimeoutError(f"{side.kind}: no message acknowledged in {_READY_S} s")


class Run:
    """One side's turn."""

    def __init__(self, side: Side, directory: Path, options: argparse.Namespace) -> None:
        self._side = side
        self._client = directory / "client"
        self._options = options

    def _load(self, mode: str, **options: int | str) -> dict[str, Any]:
        pids = ",".join(str(node.pid) for node in self._side.nodes)
        line = grpc_load(mode, self._side.endpoint, self._client, pids=pids, **options)
        if line["bad"]:
            sys.stderr.write(f"{self._side.kind}, {mode}: {line['bad']} calls failed\n")
        return line

    def measure(self, add: Callable[[str, float], None]) -> None:
        """Every wanted row; add(key, figure)."""
        options = self._options
        common = {"sec": options.sec, "warm": options.warm, "topic": TOPIC}
        add("start", first_ack(self._side))
        create_group(self._side.cluster, GROUP)
        time.sleep(2)  # what a start leaves behind is not idle
        add("idle", self._anonymous_mb())
        if not options.small:
            self._load("send", **{**common, "sec": WARM_UP_S})
        if "send" in options.only:
            for size in SIZES:
                line = self._load("send", size=size, **common)
                add(f"send-{size}", line["per_s"])
                add(f"send-{size}-cpu", line["cpu_us"])
        if "latency" in options.only:
            line = self._load("send", inflight=1, **common)
            add("latency", line["p50_us"])
            add("latency-cpu", line["cpu_us"])
        if "consume" in options.only:
            create_topic(self._side.cluster, BACKLOG, "NORMAL", QUEUES)
            # Not by time: a faster side would have more to consume.
            self._load("send", n=options.n, sec=_FILL_S, warm=0, topic=BACKLOG)
            line = self._load("consume", topic=BACKLOG, group=GROUP, n=options.n, sec=_FILL_S)
            if line["ok"] < options.n:
                raise RuntimeError(f"{self._side.kind}: {line['ok']} of {options.n} consumed")
            add("consume", line["per_s"])
            add("consume-cpu", line["cpu_us"])
        add("after", self._anonymous_mb())

    def _anonymous_mb(self) -> float:
        nodes = (*self._side.cluster.name_servers, *self._side.nodes)
        return sum(resident_bytes(node.pid, "RssAnon") for node in nodes) / 1e6


def remoting_cpu_us(directory: Path, *, grpc: bool, sec: float) -> float:
    """Our broker's processor time for a remoting send, with an idle gRPC port or without one."""
    port = str(free_port()) if grpc else "-1"
    cluster = OberthCluster(directory, {**_CONF, "grpcServerPort": port})
    with cluster:
        wire.create_topics(cluster.broker_addr, ["connections"], 4)
        generator = Load(build(directory), cluster)
        generator.run("64x1x128", 0, sec / 2)
        cpu_us: float = generator.run("64x1x128", sec / 4, sec)["cpu_us"]
        return cpu_us


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (3; 1 when small)")
    parser.add_argument("--sec", type=int, help="seconds of each measurement (10; 1 when small)")
    parser.add_argument("--warm", type=int, help="seconds before each (3; 1 when small)")
    parser.add_argument("--n", type=int, help="messages to consume (50 000; 500 when small)")
    parser.add_argument("--sides", help="rivals, then ours; ours alone when small")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows")
    options = parser.parse_args(argv)
    options.runs = options.runs or (1 if options.small else 3)
    options.sec = options.sec or (1 if options.small else 10)
    options.warm = options.warm or (1 if options.small else 3)
    options.n = options.n or (500 if options.small else 50_000)
    options.only = options.only.split(",")
    sides = options.sides.split(",") if options.sides else list(SIDES[2 * options.small :])
    table = rows()

    def turn(kind: str, place: Path, add: Callable[[str, float], None]) -> None:
        side = make(kind, place)
        try:
            Run(side, place, options).measure(add)
        finally:
            for node in (*side.nodes, *side.cluster.name_servers):
                node.kill()
        if kind == SIDES[-1] and "remoting" in options.only:
            on = remoting_cpu_us(place / "on", grpc=True, sec=options.sec)
            add("remoting-cpu", on / remoting_cpu_us(place / "off", grpc=False, sec=options.sec))
        shutil.rmtree(place, ignore_errors=True)

    skipped = take_turns(sides, options.runs, table, turn)
    for row in table.values():
        medians = [
            (statistics.median(figures), side)
            for side, figures in row.figures.items()
            if side in sides[:-1]
        ]
        if medians:
            best = min(medians)[1] if row.lower_is_better else max(medians)[1]
            row.figures[BETTER] = row.figures[best]
    emit("grpc", table.values(), ours=sides[-1], rival=BETTER, skipped=skipped)


if __name__ == "__main__":
    main()
