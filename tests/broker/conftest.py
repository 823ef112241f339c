"""A live broker on loopback with small files, and a raw peer that speaks frames to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.message import MessageExt, decode_record
from oberth.formats.properties import encode_properties
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.command import RemotingCommand

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""

SMALL = {
    "brokerName": "broker-a",
    "listenPort": "0",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxIndexNum": "5000",
    "maxHashSlotNum": "1000",
}


class Clock:
    """Stands still, however long a test takes; the test sets it forward."""

    def __init__(self) -> None:
        self.begin_ms = time.time_ns() // 1_000_000
        self.ahead_ms = 0

    def __call__(self) -> int:
        return self.begin_ms + self.ahead_ms


class Peer:
    """A client without any convenience: what is sent is what is written here."""

    def __init__(self, broker: Broker, processors: ProcessorTable | None = None) -> None:
        self.broker = broker
        self.client = RemotingClient(processors)

    @property
    def address(self) -> str:
        return str(self.broker.address)

    async def call(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        timeout_s: float = BOUND_S,
    ) -> RemotingCommand:
        request = RemotingCommand(code=code, ext_fields=fields, body=body, version=version)
        return await self.client.invoke(self.address, request, timeout_s)

    async def oneway(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        await self.client.invoke_oneway(
            self.address, RemotingCommand(code=code, ext_fields=fields, body=body)
        )

    async def channel(self) -> Channel:
        return await self.client.channel(self.address)

    # ---- sending

    @staticmethod
    def send_fields(
        topic: str, queue_id: int = 0, properties: dict[str, str] | None = None, **more: str
    ) -> dict[str, str]:
        return {
            "a": "PG",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": encode_properties(properties or {}).decode(),
            "j": "0",
            "k": "false",
            "m": "false",
            **more,
        }

    async def send(
        self,
        topic: str,
        body: bytes = b"hello",
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
        **more: str,
    ) -> RemotingCommand:
        return await self.call(310, self.send_fields(topic, queue_id, properties, **more), body)

    async def send_batch(
        self, topic: str, bodies: list[bytes], queue_id: int = 0
    ) -> RemotingCommand:
        items = [
            BatchItem(0, body, encode_properties({"i": str(n)})) for n, body in enumerate(bodies)
        ]
        return await self.call(
            320, self.send_fields(topic, queue_id, m="true"), encode_batch(items)
        )

    # ---- groups

    async def heartbeat(
        self,
        group: str = "G",
        topics: dict[str, str] | None = None,
        *,
        client_id: str = "client-1",
        model: str = "CLUSTERING",
        producers: tuple[str, ...] = (),
        sub_version: int = 1,
    ) -> RemotingCommand:
        consumers = []
        if topics is not None:
            consumers.append(
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": model,
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": expression, "subVersion": sub_version}
                        for topic, expression in topics.items()
                    ],
                }
            )
        body = {
            "clientID": client_id,
            "consumerDataSet": consumers,
            "producerDataSet": [{"groupName": name} for name in producers],
        }
        return await self.call(34, {}, json.dumps(body).encode())

    # ---- pulling

    @staticmethod
    def pull_fields(
        topic: str, offset: int, queue_id: int = 0, *, group: str = "G", **more: str
    ) -> dict[str, str]:
        return {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            **more,
        }

    async def pull(
        self, topic: str, offset: int, queue_id: int = 0, *, group: str = "G", **more: str
    ) -> RemotingCommand:
        return await self.call(11, self.pull_fields(topic, offset, queue_id, group=group, **more))

    async def read(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[MessageExt]:
        """Everything in a queue."""
        found: list[MessageExt] = []
        while True:
            response = await self.pull(topic, offset, queue_id, maxMsgNums="1000")
            if response.code not in (0, 20):
                return found
            found += records(response.body_bytes())
            following = int(response.fields["nextBeginOffset"])
            if response.code == 20 and following == offset:
                return found  # a slave's end: its master has what comes
            offset = following


def records(body: bytes) -> list[MessageExt]:
    """The messages in the body of a pull."""
    found = []
    at = 0
    while at < len(body):
        message = decode_record(body, at, check_crc=True)
        found.append(message)
        at += message.record_size
    return found


class Live:
    """A broker, its directory, and peers; restarted on the same files."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.settings = {**SMALL, "storePathRootDir": str(directory), **settings}
        self.clock = Clock()
        self.broker: Broker
        self.peer: Peer
        self.peers: list[Peer] = []

    async def start(self) -> None:
        config, store_config, warnings = read_configs(self.settings)
        assert warnings == []
        self.broker = Broker(config, store_config, clock_ms=self.clock)
        await self.broker.start()
        self.peer = self.another()

    def another(self, processors: ProcessorTable | None = None) -> Peer:
        peer = Peer(self.broker, processors)
        self.peers.append(peer)
        return peer

    async def stop(self) -> None:
        for peer in self.peers:
            await peer.client.aclose()
        self.peers.clear()
        await self.broker.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def later(self, ms: int) -> None:
        """Set the clock forward and let the broker see it."""
        self.clock.ahead_ms += ms
        self.broker.on_time(self.broker.parts.now_ms())
        await asyncio.sleep(0)

    async def until(self, done: Callable[[], Any], timeout_s: float = BOUND_S) -> None:
        """Wait for something to become true."""
        async with asyncio.timeout(timeout_s):
            while not done():  # noqa: ASYNC110 - what is waited for happens in other threads too
                await asyncio.sleep(0.002)


MakeLive = Callable[..., Awaitable[Live]]


@pytest.fixture
async def make_live(tmp_path: Path) -> AsyncIterator[MakeLive]:
    """Makes running brokers, with the options it is called with."""
    made: list[Live] = []

    async def make(**settings: str) -> Live:
        live = Live(tmp_path / f"store-{len(made)}", settings)
        made.append(live)
        await live.start()
        return live

    yield make
    for live in made:
        await live.stop()


@pytest.fixture
async def live(make_live: MakeLive) -> Live:
    """A running broker with defaults."""
    return await make_live()
