"""Old messages are read from the disk beside the loop: counted, with a system that remembers pages.

A made-up page cache starts empty, fills by what is read from files, and notes down each page of the
log or of a queue that the loop's thread would have waited for.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from oberth.client.messages import decode_messages
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.store import files, mapped_file, message_reader
from oberth.store.message_reader import MessageReader
from oberth.testing.embedded_broker import EmbeddedBroker

TOPIC, GROUP = "T", "G"
COUNT = 40
BODY = bytes(3000)
BOUND_S = 100.0
WAITERS = ("asyncio_", "oberth-query")
"""How threads are named that wait for the disk for somebody who asks."""


class Pages:
    """What is in memory, and who waited for what is not."""

    def __init__(self) -> None:
        self.resident: set[tuple[str, int]] = set()
        self.waited: dict[str, int] = {}
        """Pages that were read from the disk, by the kind of thread that waited."""
        self.loop_thread = threading.get_ident()

    def has(self, path: str, start: int, end: int) -> bool:
        return all((path, page) in self.resident for page in self._pages(start, end))

    def touch(self, path: str, start: int, end: int) -> None:
        is_loop = threading.get_ident() == self.loop_thread
        if not is_loop and not threading.current_thread().name.startswith(WAITERS):
            return  # what the store reads for itself, now or later, does not count
        who = "loop" if is_loop else "thread"
        for page in self._pages(start, end):
            if (path, page) not in self.resident:
                self.resident.add((path, page))
                self.waited[who] = self.waited.get(who, 0) + 1

    @staticmethod
    def _pages(start: int, end: int) -> range:
        return range(start // mmap.PAGESIZE, -(-end // mmap.PAGESIZE))


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    made = Pages()
    mapping: Any = files._OsMapping
    read = mapping.read
    get = MessageReader.get_message

    def noted_read(self: Any, position: int, size: int) -> bytes:
        made.touch(self.path, position, position + size)
        data: bytes = read(self, position, size)
        return data

    def noted_get(self: MessageReader, *arguments: Any) -> Any:
        result = get(self, *arguments)
        for offset, size in records(self, result):
            segment = self._log.queue.find(offset)
            assert segment is not None
            start = offset - segment.start_offset
            made.touch(segment.path, start, start + size)
        return result

    monkeypatch.setattr(mapping, "read", noted_read)
    monkeypatch.setattr(
        mapping, "is_resident", lambda self, start, end: made.has(self.path, start, end)
    )
    monkeypatch.setattr(MessageReader, "get_message", noted_get)
    monkeypatch.setattr(message_reader, "WARM_BYTES", 0)
    monkeypatch.setattr(mapped_file, "READ_AHEAD_SIZE", 0)
    return made


def records(reader: MessageReader, result: Any) -> Iterator[tuple[int, int]]:
    """Where the records of an answer lie in the log."""
    for offset in result.commit_log_offsets:
        record = reader._log.select_record(offset)
        assert record is not None
        yield offset, len(record)


@pytest.fixture
async def broker(pages: Pages) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as mq, RemotingClient() as client:
        for number in range(COUNT):
            fields = {
                "a": "P", "b": TOPIC, "c": "TBW102", "d": "2", "e": "0", "f": "0", "g": "1",
                "h": "0", "i": f"KEYS\x01k{number}",
            }  # fmt: skip
            request = RemotingCommand(code=310, body=BODY, ext_fields=fields)
            assert (await client.invoke(mq.address, request, timeout_s=BOUND_S)).code == 0
        mq.broker.parts.store.dispatch_nowait()  # queues and index are behind sends
        assert mq.broker.parts.store.dispatch_behind_bytes == 0
        pages.resident.clear()
        pages.waited.clear()
        pages.loop_thread = threading.get_ident()
        yield mq


async def ask(mq: EmbeddedBroker, code: int, fields: dict[str, object]) -> RemotingCommand:
    async with RemotingClient() as client:
        request = RemotingCommand(code=code)
        request.ext_fields = {name: str(value) for name, value in fields.items()}
        return await client.invoke(mq.address, request, timeout_s=BOUND_S)


def pull_fields(**more: object) -> dict[str, object]:
    return {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 1000, "subscription": "*",
        "subVersion": 0, **more,
    }  # fmt: skip


@pytest.mark.parametrize("filtered", [False, True])
async def test_a_pull_of_old_messages_waits_in_a_thread(
    broker: EmbeddedBroker, pages: Pages, filtered: bool
) -> None:
    more = {"subscription": "KEYS is not null", "expressionType": "SQL92"} if filtered else {}
    answer = await ask(broker, RequestCode.PULL_MESSAGE, pull_fields(**more))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert len(list(decode_messages(answer.body_bytes(), "broker-a"))) > 1
    assert pages.waited.keys() == {"thread"}
    waited = dict(pages.waited)
    again = await ask(broker, RequestCode.PULL_MESSAGE, pull_fields(**more))
    assert (again.code, again.body_bytes()) == (0, answer.body_bytes())
    assert pages.waited == waited  # it is in memory now


async def test_a_pop_of_old_messages_waits_in_a_thread(
    broker: EmbeddedBroker, pages: Pages
) -> None:
    fields: dict[str, object] = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 8,
        "invisibleTime": 60_000, "pollTime": 0, "bornTime": broker.clock(), "initMode": 0,
        "expType": "TAG", "exp": "*",
    }  # fmt: skip
    for _ in range(2):
        answer = await ask(broker, RequestCode.POP_MESSAGE, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert len(list(decode_messages(answer.body_bytes(), "broker-a"))) == 8
    assert pages.waited.keys() == {"thread"}


async def test_what_a_query_finds_is_in_memory_before_the_loop_sends_it(
    broker: EmbeddedBroker, pages: Pages
) -> None:
    fields: dict[str, object] = {
        "topic": TOPIC, "key": "k7", "maxNum": 32, "beginTimestamp": 0,
        "endTimestamp": broker.clock() + 1000,
    }  # fmt: skip
    answer = await ask(broker, RequestCode.QUERY_MESSAGE, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    (message,) = decode_messages(answer.body_bytes(), "broker-a")
    store = broker.broker.parts.store
    segment = store.commit_log.queue.find(message.commit_log_offset)
    assert segment is not None
    start = message.commit_log_offset - segment.start_offset
    assert pages.has(segment.path, start, start + message.store_size)
    assert pages.waited.keys() == {"thread"}
    pages.resident.clear()
    view = await ask(broker, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": message.commit_log_offset})
    assert view.code == ResponseCode.SUCCESS
    assert pages.has(segment.path, start, start + message.store_size)
    assert pages.waited.keys() == {"thread"}


async def test_a_disk_that_gives_nothing_is_told(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files._OsMapping, "read", fails)
    answer = await ask(broker, RequestCode.PULL_MESSAGE, pull_fields())
    assert (answer.code, "Input/output error" in (answer.remark or "")) == (1, True)


async def test_the_newest_messages_are_not_asked_about(
    broker: EmbeddedBroker, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_reader, "WARM_BYTES", 64 << 20)
    asked = []
    monkeypatch.setattr(
        files._OsMapping, "is_resident", lambda self, start, end: asked.append(start)
    )
    answer = await ask(broker, RequestCode.PULL_MESSAGE, pull_fields())
    assert answer.code == ResponseCode.SUCCESS
    assert asked == []


def test_the_system_tells_what_is_in_memory(tmp_path: Any) -> None:
    """As far as it does: what was just written is there, whatever else it says."""
    files_ = files.OsFileSystem()
    mapping = files_.map(str(tmp_path / "m"), 4 * mmap.PAGESIZE, create=True)
    mapping.view[: 4 * mmap.PAGESIZE] = bytes(range(256)) * (4 * mmap.PAGESIZE // 256)
    assert mapping.is_resident(10, 4 * mmap.PAGESIZE)
    assert mapping.is_resident(7, 7)
    mapping.close()
    assert mapping.is_resident(0, 10)
    reader = files_.map(str(tmp_path / "m"), 4 * mmap.PAGESIZE, writable=False)
    assert reader.is_resident(0, mmap.PAGESIZE)
    reader.close()
    opened = files_.open(str(tmp_path / "m"))
    assert opened.is_resident(100, 5)
    opened.close()
