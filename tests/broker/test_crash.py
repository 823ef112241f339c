"""A broker process is killed in the middle of traffic; the ledger must hold after its restart.

Acknowledged is a part of stored, stored is a part of sent, each queue keeps its order, committed
transactions and due delayed messages arrive, and offsets go back no further than the last write.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oberth.errors import RemotingError
from oberth.formats.message import MessageExt, decode_record
from oberth.formats.message_id import decode_offset_message_id
from oberth.formats.properties import encode_properties
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.command import RemotingCommand

pytestmark = pytest.mark.crash

READY_TIMEOUT_S = 120.0
SETTINGS = (
    "mappedFileSizeCommitLog=4194304",
    "mappedFileSizeConsumeQueue=60000",
    "maxIndexNum=5000",
    "maxHashSlotNum=1000",
    "messageDelayLevel=1s 2s",
    "transactionCheckInterval=500",
    "transactionTimeOut=500",
    "flushConsumerOffsetInterval=200",
)


class Process:
    """``oberth up`` on a directory, on ports of its own choice."""

    def __init__(self, store: Path, *settings: str) -> None:
        self.store = store
        self.settings = settings
        self.address = ""

    async def start(self) -> None:
        options = [word for each in (*SETTINGS, *self.settings) for word in ("--set", each)]
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "oberth", "up", "--store", str(self.store)),
            *("--port", "0", "--namesrv-port", "0", *options),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = (await self.process.stdout.readline()).decode()
        assert line.startswith("ready: "), line
        self.address = line.split("broker ")[1].split(",")[0]

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(READY_TIMEOUT_S):
                assert await self.process.wait() == 0


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while not done():  # noqa: ASYNC110 - what another process does has no event
            await asyncio.sleep(0.02)


def send_fields(topic: str, queue_id: int, properties: dict[str, str], flag: str) -> dict[str, str]:
    return {
        "a": "PG", "b": topic, "c": "TBW102", "d": "2", "e": str(queue_id), "f": flag,
        "g": "1700000000000", "h": "0", "i": encode_properties(properties).decode(),
    }  # fmt: skip


class Ledger:
    """What was sent, what was acknowledged, by one client."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.client = client
        self.address = address
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.acknowledged: dict[tuple[str, int], list[bytes]] = {}

    async def call(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        return await self.client.invoke(
            self.address,
            RemotingCommand(code=code, ext_fields=fields, body=body, version=479),
            READY_TIMEOUT_S,
        )

    async def send(
        self, topic: str, queue_id: int, body: bytes, properties: dict[str, str] | None = None,
        flag: str = "0",
    ) -> RemotingCommand:  # fmt: skip
        key = (topic, queue_id)
        self.sent.setdefault(key, []).append(body)
        fields = send_fields(topic, queue_id, properties or {}, flag)
        response = await self.call(310, fields, body)
        if response.code == 0:
            self.acknowledged.setdefault(key, []).append(body)
        return response

    async def read(self, topic: str, queue_id: int) -> list[MessageExt]:
        found: list[MessageExt] = []
        offset = 0
        while True:
            response = await self.call(
                11,
                {
                    "consumerGroup": "G", "topic": topic, "queueId": str(queue_id),
                    "queueOffset": str(offset), "maxMsgNums": "1000", "sysFlag": "4",
                    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                    "subVersion": "0",
                },
            )  # fmt: skip
            if response.code != 0:
                return found
            body, at = response.body_bytes(), 0
            while at < len(body):
                message = decode_record(body, at, check_crc=True)
                found.append(message)
                at += message.record_size
            offset = int(response.fields["nextBeginOffset"])


async def traffic(ledger: Ledger, count: int) -> None:
    """Sends to two queues with many in flight, until the connection breaks."""

    async def one(queue_id: int, first: int) -> None:
        for n in range(first, count, 10):
            await ledger.send("T", queue_id, b"%d" % n)

    with contextlib.suppress(RemotingError):
        await asyncio.gather(*(one(lane % 2, lane) for lane in range(10)))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_sends(tmp_path: Path, flush: str) -> None:
    process = Process(tmp_path / "store", f"flushDiskType={flush}")
    await process.start()
    async with RemotingClient() as client:
        ledger = Ledger(client, process.address)
        await ledger.send("T", 0, b"first")
        sending = asyncio.create_task(traffic(ledger, 1_000_000))
        await until(lambda: sum(map(len, ledger.acknowledged.values())) > 50)
        await asyncio.sleep(0.5)  # some more, and killed wherever it is then
        await process.kill()
        await sending
    await process.start()
    try:
        async with RemotingClient() as client:
            ledger.client, ledger.address = client, process.address
            for (topic, queue_id), sent in ledger.sent.items():
                messages = await ledger.read(topic, queue_id)
                stored = [message.body for message in messages]
                assert set(ledger.acknowledged[topic, queue_id]) <= set(stored)
                assert set(stored) <= set(sent)
                assert len(set(stored)) == len(stored)
                offsets = [message.queue_offset for message in messages]
                assert offsets == list(range(len(offsets)))
            assert (await ledger.send("T", 0, b"after")).code == 0
    finally:
        await process.stop()


async def test_delayed_messages(tmp_path: Path) -> None:
    process = Process(tmp_path / "store")
    await process.start()
    async with RemotingClient() as client:
        ledger = Ledger(client, process.address)
        for n in range(100):
            await ledger.send("T", 0, b"%d" % n, {"DELAY": "1" if n % 2 else "2"})
        await asyncio.sleep(1.2)  # level 1 is being delivered
        await process.kill()
    await process.start()
    try:
        async with RemotingClient() as client:
            ledger.client, ledger.address = client, process.address
            bodies: set[bytes] = set()
            async with asyncio.timeout(READY_TIMEOUT_S):
                while len(bodies) < 100:
                    bodies = {message.body for message in await ledger.read("T", 0)}
                    await asyncio.sleep(0.05)
            assert bodies == set(ledger.sent["T", 0])
    finally:
        await process.stop()


async def test_transactions(tmp_path: Path) -> None:
    process = Process(tmp_path / "store")
    await process.start()
    committed: list[bytes] = []
    async with RemotingClient() as client:
        ledger = Ledger(client, process.address)

        async def lane(first: int) -> None:
            for n in range(first, 1_000_000, 5):
                body = b"%d" % n
                properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": f"U{n}"}
                half = await ledger.send("T", 0, body, properties, "4")
                where = decode_offset_message_id(half.fields["msgId"]).commit_log_offset
                end = await ledger.call(
                    37,
                    {
                        "producerGroup": "PG", "msgId": "U",
                        "tranStateTableOffset": half.fields["queueOffset"],
                        "commitLogOffset": str(where),
                        "commitOrRollback": "8" if n % 3 else "12",
                    },
                )  # fmt: skip
                if end.code == 0 and n % 3:
                    committed.append(body)

        async def lanes() -> None:
            with contextlib.suppress(RemotingError):
                await asyncio.gather(*(lane(number) for number in range(5)))

        running = asyncio.create_task(lanes())
        await until(lambda: len(committed) > 20)
        await asyncio.sleep(0.5)
        await process.kill()
        await running
    await process.start()
    try:
        async with RemotingClient() as client:
            ledger.client, ledger.address = client, process.address
            stored = [message.body for message in await ledger.read("T", 0)]
            assert set(committed) <= set(stored)
            rolled_back = {body for body in ledger.sent["T", 0] if int(body) % 3 == 0}
            assert not rolled_back & set(stored)
            assert len(set(stored)) == len(stored)
    finally:
        await process.stop()


async def test_offsets(tmp_path: Path) -> None:
    process = Process(tmp_path / "store")
    await process.start()
    async with RemotingClient() as client:
        ledger = Ledger(client, process.address)
        for n in range(50):
            await ledger.send("T", 0, b"%d" % n)
        key = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
        await ledger.call(15, {**key, "commitOffset": "20"})
        path = process.store / "config" / "consumerOffset.json"
        await until(lambda: path.exists() and b"0:20" in path.read_bytes())
        await ledger.call(15, {**key, "commitOffset": "30"})
        await process.kill()
    await process.start()
    try:
        async with RemotingClient() as client:
            ledger.client, ledger.address = client, process.address
            response = await ledger.call(14, key)
            assert response.fields["offset"] in ("20", "30")
    finally:
        await process.stop()


async def test_an_interrupt_closes_in_order(tmp_path: Path) -> None:
    process = Process(tmp_path / "store")
    await process.start()
    os.kill(process.process.pid, signal.SIGINT)
    async with asyncio.timeout(READY_TIMEOUT_S):
        assert await process.process.wait() == 0
    assert not (process.store / "abort").exists()
