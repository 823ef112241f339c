"""Idle gRPC connections, each with an open Telemetry stream: what one costs the broker.

    python -m benchmarks.grpc_idle [--small] [--n 10000] [--groups 1] [--producers]

A broker with a gRPC port runs in a process of its own. So many connections are opened to it from
here; each sends a consumer's settings over Telemetry and waits for the answer, as official clients
do, and sends heartbeats. All are members of one group unless there are more. Beside them a client
of its own sends messages all the time, whose slowest send is shown. At the end all connections are
cut at once. Figures: anonymous memory and processor time for each connection, processor time of a
second with all of them idle, what stays when they are gone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.rigs.clusters import OberthCluster, free_port, resident_bytes
from tests.rigs.proxies import PROXY_CONF, create_group, create_topic

from benchmarks.peers.grpc_wire import Connection, message, sending
from benchmarks.report import Row, emit
from oberth.proxy import messages as m

TOPIC: Final = "idle"
AT_ONCE: Final = 200
"""Connections that are being opened at a time."""

WAIT_S: Final = 600.0
_CLIENTS: Final = m.enum_values("ClientType")


class Probe:
    """A client that sends one message after the other; how long each took."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.times_s: list[float] = []

    async def run(self) -> None:
        """Send until cancelled."""
        number = 0
        while True:
            number += 1
            content = sending(TOPIC, number, b"x" * 128)
            began = time.perf_counter()
            raw = await self._connection.call("SendMessage", "probe", content, ends=True)
            self.times_s.append(time.perf_counter() - began)
            response = m.SendMessageResponse.FromString(raw)
            if response.status.code != 20000:
                raise RuntimeError(f"a send was refused: {response.status}")
            await asyncio.sleep(0.02)

    def take(self) -> tuple[float, float]:
        """Median and slowest since the last time, in milliseconds."""
        times, self.times_s = self.times_s or [0.0], []
        return statistics.median(times) * 1000, max(times) * 1000


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def settings(group: str) -> bytes:
    """What a client of a group sends first; "" for a producer."""
    command = m.TelemetryCommand()
    if group:
        command.settings.client_type = _CLIENTS["PUSH_CONSUMER"]
        command.settings.subscription.group.name = group
        command.settings.subscription.subscriptions.add().topic.name = TOPIC
    else:
        command.settings.client_type = _CLIENTS["PRODUCER"]
        command.settings.publishing.topics.add().name = TOPIC
    return message(command)


def rows(n: int) -> dict[str, Row]:
    """Every row, by key."""
    return {
        "memory": Row(f"memory of a connection, {n:,} of them", "KB", None, True, 40),
        "open-cpu": Row("processor time of opening one", "ms", lower_is_better=True),
        "open-late": Row("another client's slowest send meanwhile", "ms", lower_is_better=True),
        "beat-cpu": Row("processor time of a heartbeat", "ms", lower_is_better=True),
        "idle-cpu": Row("processor time of an idle second", "ms", lower_is_better=True),
        "idle-p50": Row("another client's send beside them, p50", "ms", lower_is_better=True),
        "close-cpu": Row("processor time of closing one", "ms", lower_is_better=True),
        "close-late": Row("another client's slowest send meanwhile, cut", "ms", None, True),
        "left": Row("memory when all are gone, beyond that before", "MB", lower_is_better=True),
        "again": Row("memory when all are back, beyond the first time", "MB", lower_is_better=True),
    }


async def measure(cluster: OberthCluster, port: int, table: dict[str, Row], options: Any) -> None:
    """Open, beat, idle, cut."""
    loop = asyncio.get_running_loop()
    pid = cluster.brokers[0].pid
    groups = [] if options.producers else [f"idle{number}" for number in range(options.groups)]

    def add(key: str, figure: float) -> None:
        table[key].add("oberth", figure)
        sys.stderr.write(f"{table[key].what:52} {figure:,.4g} {table[key].unit}\n")

    async def connect() -> Connection:
        _, made = await loop.create_connection(Connection, "127.0.0.1", port)
        return made

    async def connect_first() -> Connection:
        while True:
            try:
                return await connect()
            except ConnectionRefusedError:  # the port is the last thing of a start
                await asyncio.sleep(0.05)

    async def open_one(number: int) -> Connection:
        made = await connect()
        group = groups[number % len(groups)] if groups else ""
        await made.call("Telemetry", f"idle-{number}", settings(group), ends=False)
        return made

    async def beat(number: int, made: Connection) -> None:
        request = m.HeartbeatRequest()
        if groups:
            request.group.name = groups[number % len(groups)]
        raw = await made.call("Heartbeat", f"idle-{number}", message(request), ends=True)
        response = m.HeartbeatResponse.FromString(raw)
        if response.status.code != 20000:
            raise RuntimeError(f"a heartbeat was refused: {response.status}")

    probe = Probe(await connect_first())
    probing = asyncio.create_task(probe.run())
    try:
        for number in range(2):  # what the first ones load is not theirs
            (await open_one(number)).transport.abort()
        await asyncio.sleep(1)
        probe.take()
        before_b, before_s = resident_bytes(pid, "RssAnon"), cpu_s(pid)

        async def open_all() -> list[Connection]:
            found: list[Connection] = []
            for first in range(0, options.n, AT_ONCE):
                count = range(first, min(first + AT_ONCE, options.n))
                found += await asyncio.gather(*(open_one(number) for number in count))
            return found

        open_ones = await open_all()
        add("open-cpu", (cpu_s(pid) - before_s) / options.n * 1000)
        add("open-late", probe.take()[1])
        before_s = cpu_s(pid)
        for first in range(0, options.n, AT_ONCE):
            pairs = enumerate(open_ones[first : first + AT_ONCE], first)
            await asyncio.gather(*(beat(number, made) for number, made in pairs))
        add("beat-cpu", (cpu_s(pid) - before_s) / options.n * 1000)
        probe.take()
        before_s = cpu_s(pid)
        await asyncio.sleep(options.sec)
        add("idle-cpu", (cpu_s(pid) - before_s) / options.sec * 1000)
        add("idle-p50", probe.take()[0])
        full_b = resident_bytes(pid, "RssAnon")
        add("memory", (full_b - before_b) / options.n / 1000)
        lost = sum(made.lost for made in open_ones)
        if lost:
            raise RuntimeError(f"{lost} of {options.n} connections were closed by the broker")
        before_s = cpu_s(pid)
        for made in open_ones:
            made.transport.abort()
        await asyncio.sleep(options.sec)
        add("close-cpu", (cpu_s(pid) - before_s) / options.n * 1000)
        add("close-late", probe.take()[1])
        add("left", (resident_bytes(pid, "RssAnon") - before_b) / 1e6)
        open_ones = await open_all()
        add("again", (resident_bytes(pid, "RssAnon") - full_b) / 1e6)
        for made in open_ones:
            made.transport.abort()
    finally:
        probing.cancel()
        ended = await asyncio.gather(probing, return_exceptions=True)
        if not isinstance(ended[0], asyncio.CancelledError):
            sys.stderr.write(f"the client beside them ended: {ended[0]!r}\n")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="some hundred, for CI")
    parser.add_argument("--n", type=int, help="connections (10 000; 300 when small)")
    parser.add_argument("--groups", type=int, default=1, help="groups that they are members of")
    parser.add_argument("--producers", action="store_true", help="producers instead of consumers")
    parser.add_argument("--sec", type=float, help="seconds to be idle (20; 2 when small)")
    options = parser.parse_args(argv)
    options.n = options.n or (300 if options.small else 10_000)
    options.sec = options.sec or (2 if options.small else 20)
    table = rows(options.n)
    port = free_port()
    with TemporaryDirectory(prefix="oberth-idle-") as scratch:
        conf = {**PROXY_CONF, "grpcServerPort": str(port), "diskMaxUsedSpaceRatio": "95"}
        with OberthCluster(Path(scratch), conf) as cluster:
            create_topic(cluster, TOPIC, "NORMAL")
            for number in range(options.groups):
                create_group(cluster, f"idle{number}")
            asyncio.run(asyncio.wait_for(measure(cluster, port, table, options), WAIT_S))
    emit("grpc_idle", table.values(), ours="oberth", rival="")


if __name__ == "__main__":
    main()
