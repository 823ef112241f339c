"""Proves that offsets are kept: what changed is sent once, failures again, files have a spare."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from oberth.client.offset_store import (
    NO_OFFSET,
    ConsumerOffsetTable,
    LocalFileOffsetStore,
    RemoteBrokerOffsetStore,
    local_offsets_path,
)
from oberth.errors import MQClientError, RemotingConnectError
from oberth.remoting.bodies.base import MessageQueue

ONE, TWO = (MessageQueue(topic="T", broker_name="b", queue_id=n) for n in range(2))


def test_table() -> None:
    table = ConsumerOffsetTable()
    assert table.get(ONE) == NO_OFFSET
    table.update(ONE, 5, increase_only=True)
    table.update(ONE, 3, increase_only=True)
    assert table.get(ONE) == 5
    table.update(ONE, 3, increase_only=False)
    assert table.take_dirty([ONE, TWO]) == [(ONE, 3)]
    assert table.take_dirty([ONE, TWO]) == []
    table.mark_dirty(ONE)
    assert table.take_dirty([ONE]) == [(ONE, 3)]
    table.note_kept(TWO, 7)
    assert table.of_topic("T") == {ONE: 3, TWO: 7}
    assert table.of_topic("U") == {}
    table.remove(ONE)
    assert table.get(ONE) == NO_OFFSET


async def test_remote_sends_what_changed_and_failures_again() -> None:
    sent: list[tuple[MessageQueue, int]] = []
    fail = True

    async def fetch(queue: MessageQueue) -> int | None:
        return None if queue == ONE else 9

    async def commit(queue: MessageQueue, offset: int) -> None:
        if fail:
            raise RemotingConnectError("no")
        sent.append((queue, offset))

    store = RemoteBrokerOffsetStore(fetch, commit)
    await store.load()
    assert await store.read(ONE) == NO_OFFSET
    assert await store.read(TWO) == 9
    store.table.update(ONE, 4, increase_only=True)
    await store.persist([ONE, TWO])
    with pytest.raises(MQClientError, match="1 of 1 offsets are not committed"):
        await store.persist([ONE, TWO], wait=True)
    fail = False
    await store.persist([ONE, TWO], wait=True)
    await store.persist([ONE, TWO], wait=True)
    assert sent == [(ONE, 4)]


class SlowBroker:
    """Answers commits when it is told to."""

    def __init__(self) -> None:
        self.kept: dict[MessageQueue, int] = {}
        self.asked: list[tuple[MessageQueue, int, asyncio.Future[None]]] = []
        self.store = RemoteBrokerOffsetStore(self._fetch, self._commit)

    async def _fetch(self, queue: MessageQueue) -> int | None:
        return self.kept.get(queue)

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        answer = asyncio.get_running_loop().create_future()
        self.asked.append((queue, offset, answer))
        await answer
        self.kept[queue] = offset

    async def serve(self, turns: int = 5) -> None:
        """What has been asked is answered, the newest first."""
        for _ in range(turns):
            await asyncio.sleep(0)
        while self.asked:
            self.asked.pop()[2].set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)


async def test_an_older_commit_never_comes_after_a_newer_one() -> None:
    """A broker takes requests of one connection in any order."""
    broker = SlowBroker()
    broker.store.table.update(ONE, 5, increase_only=False)
    await broker.store.persist([ONE])
    broker.store.table.update(ONE, 21, increase_only=False)
    await broker.store.persist([ONE])
    last = asyncio.create_task(broker.store.persist([ONE], wait=True))
    await broker.serve()
    assert broker.kept == {ONE: 5}
    assert not last.done()
    await broker.serve()
    await last
    assert broker.kept == {ONE: 21}


async def test_who_waits_waits_for_what_is_on_its_way() -> None:
    broker = SlowBroker()
    broker.store.table.update(ONE, 5, increase_only=False)
    await broker.store.persist([ONE])
    waiting = asyncio.create_task(broker.store.persist([ONE], wait=True))
    await asyncio.sleep(0)
    [(_, _, answer)] = broker.asked
    answer.set_exception(RemotingConnectError("gone"))
    broker.asked.clear()
    await broker.serve()
    await waiting
    assert broker.kept == {ONE: 5}


async def test_file_in_javas_form(tmp_path: Path) -> None:
    path = local_offsets_path("127.0.0.1@DEFAULT", "g", str(tmp_path))
    store = LocalFileOffsetStore(path)
    await store.load()
    store.table.update(ONE, 4, increase_only=True)
    await store.persist([ONE])
    assert path.read_text() == ('{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:4}}')
    store.table.update(ONE, 5, increase_only=True)
    await store.persist([ONE])
    path.write_text("")
    again = LocalFileOffsetStore(path)
    await again.load()
    assert await again.read(ONE) == 4  # the back-up
    path.with_suffix(".json.bak").write_text("x")
    with pytest.raises(MQClientError, match=r"offsets\.json"):
        await LocalFileOffsetStore(path).load()


async def test_a_full_disk_leaves_the_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g" / "offsets.json"
    store = LocalFileOffsetStore(path)
    store.table.update(ONE, 4, increase_only=True)
    await store.persist([ONE])
    before = path.read_bytes()
    store.table.update(ONE, 5, increase_only=True)
    fsync = os.fsync

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    await store.persist([ONE])
    with pytest.raises(MQClientError, match=r"offsets\.json: .*No space left"):
        await store.persist([ONE], wait=True)
    assert [each.name for each in path.parent.iterdir()] == ["offsets.json"]
    assert path.read_bytes() == before
    monkeypatch.setattr(os, "fsync", fsync)
    await store.persist([ONE], wait=True)
    again = LocalFileOffsetStore(path)
    await again.load()
    assert await again.read(ONE) == 5


class SlowDisk:
    """The first sync ends when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way, self.gate = threading.Event(), threading.Event()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, fd: int) -> None:
        if not self.under_way.is_set():
            self.under_way.set()
            assert self.gate.wait(20)
        self._fsync(fd)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_file_has_one_writer_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """They shared a temporary file: one took the other's away, and an older table could stay."""
    disk = SlowDisk(monkeypatch)
    store = LocalFileOffsetStore(tmp_path / "offsets.json")
    store.table.update(ONE, 4, increase_only=True)
    first = asyncio.create_task(store.persist([ONE]))
    await asyncio.to_thread(disk.under_way.wait, 60)
    waiting = asyncio.create_task(store.persist([ONE], wait=True))
    store.table.update(TWO, 9, increase_only=True)
    last = asyncio.create_task(store.persist([TWO], wait=True))
    await store.persist([TWO])  # is for a later call
    if is_cancelled:
        first.cancel()
        await asyncio.wait([first])
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    disk.gate.set()
    await asyncio.gather(waiting, last)
    if not is_cancelled:
        await first
    again = LocalFileOffsetStore(store.path)
    await again.load()
    assert again.table.of_topic() == {ONE: 4, TWO: 9}
    assert not store.path.with_suffix(".json.tmp").exists()


@pytest.mark.parametrize("client_id", ["", "..", "a/b", "a\0b"])
def test_client_ids_that_are_no_directories(client_id: str) -> None:
    with pytest.raises(MQClientError):
        local_offsets_path(client_id, "g")
