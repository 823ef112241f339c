"""Three brokers under their controller, ours against Apache's on the same machine, in turns.

    python -m benchmarks.failover [--small] [--runs 3] [--only start,killed,...] [--brokers A,B]

start     name server, controller and three brokers, from nothing to the first acknowledged message;
          anonymous memory of the five processes after that
killed    the master is killed with SIGKILL: from the last acknowledged send to the next one
planned   the controller is told to elect another master: the longest time without acknowledgement
send      two brokers, both in sync, the official client with 64 threads, 1 KiB

A message is acknowledged when every replica in sync has it, two at least. One client of ours sends
to either side, asks the name server every 100 ms and repeats nothing by itself, so that the time is
the brokers' and not the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.rigs import controlled
from tests.rigs.clusters import ApacheCluster, Node, resident_bytes
from tests.rigs.controlled import (
    NAME,
    VERSION,
    Group,
    apache_controller,
    broker_node,
    oberth_node,
)

from benchmarks.peers.load import load
from benchmarks.report import Row, add_turn_options, emit, fill_turn_options, take_turns
from benchmarks.store_vs_apache import compile_ours
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, SendStatus
from oberth.client.producer import Producer
from oberth.errors import OberthError

GROUPS: Final = ("start", "killed", "planned", "send")
CLUSTER, TOPIC = "DefaultCluster", "Failover"
CONF: Final = {**controlled.CONF, "brokerClusterName": CLUSTER, "diskMaxUsedSpaceRatio": "95"}
HEAP: Final = "512m"
SETTLE_S: Final = 120.0
SEND_TIMEOUT_MS: Final = 1000
PAUSE_S: Final = 0.002
_POLL_S: Final = 0.05

Add = Callable[[str, float], None]


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    return {
        "killed": Row("master killed with -9, until sends succeed again", "s", 0.5, True),
        "planned": Row("planned failover, time without acknowledged sends", "s", None, True, 1.0),
        "send": Row("controller mode, two in sync, 64 threads, 1 KiB", "1/s", 1.0),
        "start": Row("three brokers, from nothing to the first message", "s", 0.1, True),
        "memory": Row("anonymous memory of all five processes", "MB", 0.1, True),
    }


def make_group(kind: str, directory: Path, brokers: int) -> Group:
    """The processes of one side, not started."""
    if kind == "oberth":
        name_server = oberth_node(directory, "namesrv")
        controller = oberth_node(directory, "controller", "--store", str(directory / "kept"))
    else:
        (name_server,) = ApacheCluster(VERSION, directory, brokers=0).name_servers
        controller = apache_controller(directory / "controller")
    conf = {**CONF, "controllerAddr": controller.address}
    own = "oberth" if kind == "oberth" else "apache"
    nodes = [
        broker_node(own, directory / str(number), conf, name_server, heap=HEAP)
        for number in range(brokers)
    ]
    return Group(name_server, controller, nodes)


def nodes_of(group: Group) -> list[Node]:
    """All of them."""
    return [group.name_server, group.controller, *group.brokers]


async def until(question: Callable[[], Awaitable[bool]], what: str) -> None:
    """Asks until the answer is yes.

    Raises:
        TimeoutError: it was no for too long.
    """
    try:
        async with asyncio.timeout(SETTLE_S):
            while True:
                with contextlib.suppress(OberthError, OSError):
                    if await question():
                        return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise TimeoutError(f"not in {SETTLE_S:.0f} s: {what}") from None


async def whole(group: Group) -> None:
    """Until all are in sync."""

    async def is_whole() -> bool:
        info = await group.info()
        return (
            info is not None
            and len(info.in_sync_replicas) == len(group.brokers)
            and all(each.alive for each in info.in_sync_replicas)
        )

    await until(is_whole, "all replicas in sync")


class Sender:
    """Sends one message after the other and notes when each was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acknowledged: list[float] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OberthError, OSError):
                sent = await self._producer.send(Message(TOPIC, b"x" * 1024))
                if sent.status is SendStatus.SEND_OK:
                    self.acknowledged.append(time.monotonic())
            await asyncio.sleep(PAUSE_S)

    async def more(self, count: int = 100) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count

        async def is_more() -> bool:
            return len(self.acknowledged) >= wanted

        await until(is_more, f"{count} messages more are acknowledged")

    def longest_gap_since(self, began: float) -> float:
        """The longest time without an acknowledgement, from the last one before a time on."""
        times = self.acknowledged
        first = next(at for at, each in enumerate(times) if each >= began)
        pairs = zip(times[first - 1 :], times[first:], strict=False)
        return max(later - earlier for earlier, later in pairs)

    async def aclose(self) -> None:
        """Sends no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@contextlib.asynccontextmanager
async def sending(group: Group) -> AsyncIterator[Sender]:
    """A client that sends meanwhile."""
    config = ClientConfig(
        namesrv_addr=group.name_server.address,
        client_ip="127.0.0.1",
        poll_name_server_interval_ms=100,
    )
    async with Producer(
        "P", config=config, retry_times_when_send_failed=0, send_msg_timeout_ms=SEND_TIMEOUT_MS
    ) as producer:
        sender = Sender(producer)
        try:
            yield sender
        finally:
            await sender.aclose()


async def measure_failovers(group: Group, only: list[str], count: int, add: Add) -> None:
    """Start, kills and planned failovers of one group of three."""
    began = time.monotonic()
    group.name_server.start()
    for node in nodes_of(group)[1:]:
        node.launch()
    async with sending(group) as sender:
        await sender.more(1)
        add("start", sender.acknowledged[0] - began)
        await whole(group)
        await sender.more()
        add("memory", sum(resident_bytes(each.pid, "RssAnon") for each in nodes_of(group)) / 1e6)
        for _ in range(count if "killed" in only else 0):
            info = await group.info()
            assert info is not None
            node = group.node(info.master_address)
            killed = time.monotonic()
            node.kill()
            await sender.more()
            add("killed", sender.longest_gap_since(killed))
            node.launch()
            await whole(group)
            await sender.more()
        for _ in range(count if "planned" in only else 0):
            info = await group.info()
            assert info is not None
            other = next(
                each.broker_id
                for each in info.in_sync_replicas
                if each.broker_id != info.master_broker_id
            )
            async with Admin(namesrv_addr=group.name_server.address) as admin:
                told = time.monotonic()
                await admin.elect_master(group.controller.address, CLUSTER, NAME, other)
            await whole(group)
            await sender.more()
            add("planned", sender.longest_gap_since(told))


class Run:
    """One side's turn."""

    def __init__(self, kind: str, directory: Path, options: argparse.Namespace) -> None:
        self.kind = kind
        self.directory = directory
        self.options = options

    def measure(self, add: Add) -> None:
        """Every wanted row."""
        options = self.options
        if {"start", "killed", "planned"} & set(options.only):
            group = make_group(self.kind, self.directory / "three", 3)
            try:
                asyncio.run(measure_failovers(group, options.only, options.count, add))
            except TimeoutError as why:
                # Of three planned failovers Apache's group came whole after one or two.
                if not self.kind.startswith("apache"):
                    raise
                sys.stderr.write(f"{self.kind}: its turn ends: {why}\n")
            finally:
                self._end(group)
        if "send" in options.only:
            group = make_group(self.kind, self.directory / "two", 2)
            try:
                asyncio.run(self._start_two(group))
                line = load(
                    "send", group.name_server.address, self.directory / "client", threads=64,
                    size=1024, topic="bench", sec=options.sec, warm=options.warm,
                )  # fmt: skip
                add("send", line["per_s"])
            finally:
                self._end(group)

    @staticmethod
    async def _start_two(group: Group) -> None:
        for node in nodes_of(group):
            node.launch()
        await whole(group)

    @staticmethod
    def _end(group: Group) -> None:
        for node in reversed(nodes_of(group)):
            node.kill()
        for broker in group.brokers:
            shutil.rmtree(broker.directory, ignore_errors=True)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_turn_options(parser, GROUPS)
    parser.add_argument("--count", type=int, help="failovers of a kind in a run (3; 1 when small)")
    options = parser.parse_args(argv)
    kinds = fill_turn_options(options, f"apache-{VERSION}", GROUPS, "start,killed,planned")
    options.count = options.count or (1 if options.small else 3)
    table = rows()
    compile_ours()
    skipped = take_turns(
        kinds,
        options.runs,
        table,
        lambda kind, place, add: Run(kind, place, options).measure(add),
    )
    emit("failover", table.values(), ours=kinds[-1], rival=kinds[0], skipped=skipped)


if __name__ == "__main__":
    main()
