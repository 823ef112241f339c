"""Messages of every kind cross between our client and the Go client, and groups may be mixed.

What one writes the other reads, byte for byte; and a group whose members are ours, Java's and Go's
shares the queues out without a gap or a quarrel, whoever comes and goes.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rigs import peers
from tests.rigs.clusters import Cluster, cluster_for

from oberth.client import (
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from oberth.client.admin import Admin
from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.slow]

INTEROP = Path(__file__).parent
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
BOUND_S = 240.0
"""For what must happen: only a test that hangs takes so long."""

BODIES = Counter(
    [
        *("plain", "properties ü中", "z" * 20_000, "delay", "oneway", "transaction-commit"),
        *(f"batch-{n}" for n in range(3)),
        *(f"order-{n}" for n in range(3)),
    ]
)
QUEUES = 6


@pytest.fixture(scope="module", params=["oberth", "apache-5.5.0"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    try:
        running = cluster_for(request.param, tmp_path_factory.mktemp("cluster"))
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    with running as started:
        yield started


def go(*arguments: str) -> list[str]:
    try:
        program = peers.compile_go("gosuite", INTEROP / "go")
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    return [str(program), *arguments]


def java_member(addr: str, topic: str, group: str, directory: Path) -> list[str]:
    try:
        lib = peers.jars("5.5.0")
        sources = (INTEROP / "java" / "exchange").glob("*.java")
        classes = peers.compile_java("exchange", lib, sources)
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    return peers.java_command(
        lib, "Member", f"namesrv={addr}", f"topic={topic}", f"group={group}", classes=classes,
        options=("-Xmx128m", f"-Duser.home={directory}", "-Drocketmq.client.logLevel=ERROR"),
    )  # fmt: skip


class Seen:
    """What the members of a group were given."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        self._changed.set()

    async def __call__(self, message: MessageExt) -> None:
        self.add(
            {
                "body": message.body.decode(),
                "tags": message.tags,
                "keys": message.keys,
                "colour": message.get_property("colour"),
                "queue": message.queue_id,
                "offset": message.queue_offset,
                "who": "oberth",
            }
        )

    @property
    def bodies(self) -> Counter[str]:
        return Counter(line["body"] for line in self.lines)

    async def wait(self, wanted: set[str]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not wanted <= set(self.bodies):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def member(command: list[str], seen: Seen, who: str) -> AsyncIterator[Process]:
    """Another client's member of a group, as a process."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    ready = asyncio.Event()

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b'{"ready"'):
                ready.set()
            elif line.startswith(b'{"body"') or b'"body"' in line:
                seen.add({**json.loads(line), "who": who})

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(BOUND_S):
            await ready.wait()
        yield process
        process.stdin.write(b"\n")
        async with asyncio.timeout(BOUND_S):
            await process.wait()
            await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        reading.cancel()


async def create(cluster: Cluster, topic: str) -> None:
    async with Admin(namesrv_addr=cluster.namesrv_addr) as admin:
        await admin.create_topic(topic, queue_nums=QUEUES, cluster="DefaultCluster")


class Decides:
    async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        assert isinstance(arg, LocalTransactionState)
        return arg

    async def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


async def send_every_kind(addr: str, topic: str) -> None:
    async with (
        Producer("exchange", namesrv_addr=addr) as producer,
        TransactionProducer("exchangeT", Decides(), namesrv_addr=addr) as transactional,
    ):
        await producer.send(Message(topic, b"plain"))
        await producer.send(
            Message(
                topic, "properties ü中".encode(), tags="t", keys=["k1", "k2"],
                properties={"colour": "red"},
            )
        )  # fmt: skip
        await (await producer.send_async(Message(topic, b"z" * 20_000)))
        await producer.send([Message(topic, b"batch-%d" % n) for n in range(3)])
        await producer.send(Message(topic, b"delay", delay_time_level=1))
        for number in range(3):
            await producer.send(Message(topic, b"order-%d" % number, sharding_key="one"))
        await producer.send_oneway(Message(topic, b"oneway"))
        for state in (
            LocalTransactionState.COMMIT_MESSAGE,
            LocalTransactionState.ROLLBACK_MESSAGE,
        ):
            body = f"transaction-{state.name.partition('_')[0].lower()}".encode()
            await transactional.send_message_in_transaction(Message(topic, body), state)


def assert_all_kinds(seen: Seen) -> None:
    assert seen.bodies == BODIES
    (full,) = (line for line in seen.lines if line["body"].startswith("properties"))
    assert (full["tags"], full["keys"], full["colour"]) == ("t", "k1 k2", "red")
    ordered = [line for line in seen.lines if line["body"].startswith("order")]
    assert len({line["queue"] for line in ordered}) == 1
    ordered.sort(key=lambda line: int(line["offset"]))
    assert [line["body"] for line in ordered] == ["order-0", "order-1", "order-2"]


async def test_go_reads_what_we_write(cluster: Cluster) -> None:
    addr, seen = cluster.namesrv_addr, Seen()
    await create(cluster, "ToGo")
    command = go("-namesrv", addr, "-exchange", "consume", "ToGo", "togo")
    async with member(command, seen, "go"):
        await send_every_kind(addr, "ToGo")
        await seen.wait(set(BODIES))
    assert_all_kinds(seen)


async def test_we_read_what_go_writes(cluster: Cluster) -> None:
    addr, seen = cluster.namesrv_addr, Seen()
    await create(cluster, "FromGo")
    async with PushConsumer(
        "fromgo", {"FromGo": "*"}, listener=seen, namesrv_addr=addr, consume_from_where=FIRST
    ):
        process = await asyncio.create_subprocess_exec(
            *go("-namesrv", addr, "-exchange", "send", "FromGo")
        )
        async with asyncio.timeout(BOUND_S):
            assert await process.wait() == 0
        await seen.wait(set(BODIES))
    assert_all_kinds(seen)


async def test_a_group_of_three_languages(cluster: Cluster, tmp_path: Path) -> None:
    addr, seen, topic = cluster.namesrv_addr, Seen(), "Mixed"
    await create(cluster, topic)
    sent: set[str] = set()

    async with (
        Producer("mixed", namesrv_addr=addr) as producer,
        PushConsumer(
            "mixed", {topic: "*"}, listener=seen, namesrv_addr=addr, consume_from_where=FIRST
        ),
    ):

        async def everybody_has_some(members: set[str]) -> None:
            """Send to all queues until each of the members got something new."""
            start = len(seen.lines)
            async with asyncio.timeout(BOUND_S):
                while {line["who"] for line in seen.lines[start:]} != members:
                    bodies = [f"m{len(sent) + n}" for n in range(QUEUES)]
                    sent.update(bodies)
                    await asyncio.gather(
                        *(producer.send(Message(topic, body.encode())) for body in bodies)
                    )
                    await seen.wait(sent)

        await everybody_has_some({"oberth"})
        command = java_member(addr, topic, "mixed", tmp_path)
        async with member(command, seen, "java"):
            await everybody_has_some({"oberth", "java"})
            command = go("-namesrv", addr, "-exchange", "consume", topic, "mixed")
            async with member(command, seen, "go"):
                await everybody_has_some({"oberth", "java", "go"})
            await everybody_has_some({"oberth", "java"})
        await everybody_has_some({"oberth"})
    assert set(seen.bodies) == sent
