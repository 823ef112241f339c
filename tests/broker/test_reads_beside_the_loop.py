"""Old messages are read from the disk beside the loop: counted, with a system that remembers pages.

A made-up page cache starts empty, fills by what is read from files, and notes down each page of the
log or of a queue that the loop's thread would have waited for.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from oberth.broker import old_messages
from oberth.broker.old_messages import OldMessages
from oberth.client.messages import decode_messages
from oberth.formats import names
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.store import files, mapped_file, residency
from oberth.store.commit_log import CommitLog
from oberth.store.message_reader import MessageReader
from oberth.store.residency import Residency
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
        self.old_bytes = 1 << 60
        """Of each file, what was written before all was thrown out."""

    def throw_out(self, log_end: int) -> None:
        """Nothing is in memory now but what is written from here on."""
        self.resident.clear()
        self.waited.clear()
        self.loop_thread = threading.get_ident()
        self.old_bytes = log_end // mmap.PAGESIZE * mmap.PAGESIZE

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

    def _pages(self, start: int, end: int) -> range:
        return range(start // mmap.PAGESIZE, -(-min(end, self.old_bytes) // mmap.PAGESIZE))


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

    select = CommitLog.select

    def noted_select(self: CommitLog, offset: int, size: int) -> memoryview | None:
        segment = self.queue.find(offset)
        if segment is not None:
            start = offset - segment.start_offset
            made.touch(segment.path, start, start + size)
        return select(self, offset, size)

    monkeypatch.setattr(CommitLog, "select", noted_select)
    monkeypatch.setattr(mapping, "read", noted_read)
    monkeypatch.setattr(
        mapping, "is_resident", lambda self, start, end: made.has(self.path, start, end)
    )
    monkeypatch.setattr(MessageReader, "get_message", noted_get)
    monkeypatch.setattr(residency, "WARM_BYTES", 0)
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
        throw_out(mq, pages)
        yield mq


def throw_out(mq: EmbeddedBroker, pages: Pages) -> None:
    """All that is stored is read from the disk next time."""
    store = mq.broker.parts.store
    store.dispatch_nowait()  # queues and index are behind sends
    assert store.dispatch_behind_bytes == 0
    store.reader.residency._blocks.clear()  # what the clock looked at before counts no more
    pages.throw_out(store.max_phy_offset)


async def send(mq: EmbeddedBroker, topic: str, properties: str, code: int = 310) -> None:
    fields: dict[str, object] = {
        "a": "P", "b": topic, "c": "TBW102", "d": "2", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": properties, "m": code == RequestCode.SEND_BATCH_MESSAGE,
    }  # fmt: skip
    body = BODY
    if code == RequestCode.SEND_BATCH_MESSAGE:
        body = encode_batch([BatchItem(0, BODY, b"") for _ in range(4)])
    assert (await ask(mq, code, fields, body)).code == 0


async def ask(
    mq: EmbeddedBroker,
    code: int,
    fields: dict[str, object],
    body: bytes = b"",
    client: RemotingClient | None = None,
) -> RemotingCommand:
    """On a connection of its own, unless a client is given."""
    request = RemotingCommand(code=code, body=body)
    request.ext_fields = {name: str(value) for name, value in fields.items()}
    if client is not None:
        return await client.invoke(mq.address, request, timeout_s=BOUND_S)
    async with RemotingClient() as alone:
        return await alone.invoke(mq.address, request, timeout_s=BOUND_S)


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


@pytest.mark.parametrize("filtered", [False, True])
async def test_who_reads_on_finds_old_messages_brought_in(
    broker: EmbeddedBroker, pages: Pages, monkeypatch: pytest.MonkeyPatch, filtered: bool
) -> None:
    """Only the first pull is answered behind a thread."""
    more = {"subscription": "KEYS is not null", "expressionType": "SQL92"} if filtered else {}
    done = threading.Event()
    waiting: list[Any] = []
    bring_in_ahead, answer_after = Residency.bring_in_ahead, OldMessages.answer_after

    def noted_ahead(self: Residency, *arguments: Any) -> None:
        bring_in_ahead(self, *arguments)
        done.set()

    def noted_after(self: OldMessages, *arguments: Any) -> None:
        waiting.append(arguments)
        answer_after(self, *arguments)

    monkeypatch.setattr(residency, "BLOCK_UNITS", 4)
    monkeypatch.setattr(residency, "AHEAD_BLOCKS", 4)
    monkeypatch.setattr(Residency, "bring_in_ahead", noted_ahead)
    monkeypatch.setattr(OldMessages, "answer_after", noted_after)
    got, offset, counts = 0, 0, []
    while offset < COUNT:
        fields = pull_fields(queueOffset=offset, maxMsgNums=2, **more)
        answer = await ask(broker, RequestCode.PULL_MESSAGE, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found = list(decode_messages(answer.body_bytes(), "broker-a"))
        assert [each.queue_offset for each in found] == [offset, offset + 1]
        got += len(found)
        offset += 2
        counts.append(len(waiting))
        if broker.broker.services.old_messages._ahead:
            assert await asyncio.to_thread(done.wait, BOUND_S)
        done.clear()
    assert (got, counts) == (COUNT, [1] * (COUNT // 2))
    assert pages.waited.keys() == {"thread"}


async def test_a_disk_that_gives_nothing_ahead_is_no_error_of_who_reads(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    class Ahead(set[tuple[str, int]]):
        def discard(self, value: object) -> None:
            super().discard(value)
            ended.set()

    monkeypatch.setattr(residency, "BLOCK_UNITS", 4)
    monkeypatch.setattr(Residency, "bring_in_ahead", fails)
    old = broker.broker.services.old_messages
    monkeypatch.setattr(old, "_ahead", Ahead())
    for _ in range(2):  # the first brings in its block, the second finds it
        answer = await ask(broker, RequestCode.PULL_MESSAGE, pull_fields(maxMsgNums=2))
        assert answer.code == ResponseCode.SUCCESS
    await asyncio.wait_for(ended.wait(), BOUND_S)
    assert not old._ahead


def pop_fields(mq: EmbeddedBroker) -> dict[str, object]:
    return {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 8,
        "invisibleTime": 60_000, "pollTime": 0, "bornTime": mq.clock(), "initMode": 0,
        "expType": "TAG", "exp": "*",
    }  # fmt: skip


async def test_a_peek_of_old_messages_waits_in_a_thread(
    broker: EmbeddedBroker, pages: Pages
) -> None:
    fields: dict[str, object] = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 8,
    }  # fmt: skip
    answer = await ask(broker, RequestCode.PEEK_MESSAGE, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert len(list(decode_messages(answer.body_bytes(), "broker-a"))) == 8
    assert pages.waited.keys() == {"thread"}


async def test_a_pull_of_an_old_batch_waits_in_a_thread(
    broker: EmbeddedBroker, pages: Pages
) -> None:
    fields: dict[str, object] = {
        "topic": "B", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    assert (await ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    for number in range(3):
        await send(broker, "B", f"UNIQ_KEY\x01k{number}", RequestCode.SEND_BATCH_MESSAGE)
    await send(broker, TOPIC, "")
    throw_out(broker, pages)
    answer = await ask(broker, RequestCode.PULL_MESSAGE, pull_fields(topic="B", queueOffset=4))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert len(answer.body_bytes()) > 8 * len(BODY)
    assert pages.waited.keys() == {"thread"}


async def test_a_pop_of_an_old_lite_topic_waits_in_a_thread(
    pages: Pages,
) -> None:
    settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
    async with EmbeddedBroker(settings) as mq, RemotingClient() as client:
        topic: dict[str, object] = {
            "topic": "Parent", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
            "attributes": "+message.type=LITE",
        }  # fmt: skip
        assert (await ask(mq, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
        group = {"groupName": GROUP, "attributes": {"+lite.bind.topic": "Parent"}}
        assert (await ask(mq, 200, {}, json.dumps(group).encode())).code == 0
        entry = {
            "action": "PARTIAL_ADD", "clientId": "c", "group": GROUP, "topic": "Parent",
            "liteTopicSet": ["one", "two"], "version": 1,
        }  # fmt: skip
        subscribed = json.dumps({"subscriptionSet": [entry]}).encode()
        assert (await ask(mq, 200071, {}, subscribed, client)).code == 0
        for lite in ("one", "two"):
            for _ in range(2):
                await send(mq, "Parent", f"__LITE_TOPIC\x01{lite}\x02")
            for _ in range(30):  # far from each other in the log
                await send(mq, TOPIC, "")
        throw_out(mq, pages)
        fields: dict[str, object] = {
            "clientId": "c", "consumerGroup": GROUP, "topic": "Parent", "maxMsgNum": 32,
            "invisibleTime": 30_000, "pollTime": 0, "bornTime": mq.clock(),
        }  # fmt: skip
        for _ in range(2):  # what was found does not wait for what is not in memory
            answer = await ask(mq, 200070, fields, client=client)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert len(list(decode_messages(answer.body_bytes(), "broker-a"))) == 2
        assert pages.waited.keys() == {"thread"}


async def test_old_messages_are_revived_beside_the_loop(
    broker: EmbeddedBroker, pages: Pages
) -> None:
    answer = await ask(broker, RequestCode.POP_MESSAGE, pop_fields(broker))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    store = broker.broker.parts.store
    retry = names.pop_retry_topic(TOPIC, GROUP)
    throw_out(broker, pages)
    for _ in range(1000):
        broker.advance(seconds=10)
        if store.max_offset_in_queue(retry, 0) >= 8:
            break
        await asyncio.sleep(0.01)
    assert store.max_offset_in_queue(retry, 0) == 8
    assert pages.waited.keys() == {"thread"}


@pytest.mark.parametrize("properties", ["DELAY\x013", "TIMER_DELAY_SEC\x0120"])
async def test_old_delayed_messages_are_delivered_from_beside_the_loop(
    broker: EmbeddedBroker, pages: Pages, properties: str
) -> None:
    """Of delay levels, and of timers: when they are taken in, and when they are due."""
    store = broker.broker.parts.store
    timers = broker.broker.services.timers
    assert timers is not None
    for _ in range(5):
        await send(broker, "D", properties)
    await send(broker, TOPIC, "")
    throw_out(broker, pages)
    if properties.startswith("TIMER"):
        await broker.wait_until(lambda: timers.store.queue_offset == 5, BOUND_S)
        assert "loop" not in pages.waited
        throw_out(broker, pages)
    broker.advance(seconds=30)
    await broker.wait_until(
        lambda: sum(store.max_offset_in_queue("D", each) for each in range(8)) == 5, BOUND_S
    )
    assert pages.waited.keys() == {"thread"}


async def test_a_disk_that_gives_nothing_keeps_what_the_clock_drives_waiting(
    broker: EmbeddedBroker, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = broker.broker.services.old_messages
    monkeypatch.setattr(old_messages, "FAILED_S", 0.0)
    failed = asyncio.Event()
    went_on = asyncio.Event()
    stretch = (TOPIC, 0, 0, 4)
    loop = asyncio.get_running_loop()

    def fails(*_: Any) -> None:
        loop.call_soon_threadsafe(failed.set)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(type(broker.broker.parts.store), "bring_in", fails)
        assert old.readable("reader", stretch, went_on.set) == 0
        assert old.readable("reader", stretch, went_on.set) == 0  # a thread is at it
        await failed.wait()
    assert not went_on.is_set()
    while not went_on.is_set():
        assert old.readable("reader", stretch, went_on.set) == 0
        await asyncio.sleep(0)
    assert old.readable("reader", stretch, went_on.set) == 4


async def test_where_the_system_says_nothing_the_clock_goes_on(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was brought in, and is soon not shown as in memory: one message at a time."""
    old = broker.broker.services.old_messages
    monkeypatch.setattr(files._OsMapping, "is_resident", lambda self, start, end: False)
    went_on = asyncio.Event()
    assert old.readable("reader", (TOPIC, 0, 0, 4), went_on.set) == 0
    await went_on.wait()
    assert old.readable("reader", (TOPIC, 0, 0, 7), went_on.set) == 7  # that was just now
    broker.broker.parts.store.reader.residency._blocks.clear()
    assert old.readable("reader", (TOPIC, 0, 0, 7), went_on.set) == 1
    assert old.readable("reader", (TOPIC, 0, 1, 7), went_on.set) == 0


async def test_a_pop_of_old_messages_waits_in_a_thread(
    broker: EmbeddedBroker, pages: Pages
) -> None:
    fields = pop_fields(broker)
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
    monkeypatch.setattr(residency, "WARM_BYTES", 64 << 20)
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
