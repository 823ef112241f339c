"""Proves that offsets are kept: what changed is sent once, failures again, files have a spare."""

from __future__ import annotations

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
    sent: list[tuple[MessageQueue, int, bool]] = []
    fail = True

    async def fetch(queue: MessageQueue) -> int | None:
        return None if queue == ONE else 9

    async def commit(queue: MessageQueue, offset: int, wait: bool) -> None:
        if fail:
            raise RemotingConnectError("no")
        sent.append((queue, offset, wait))

    store = RemoteBrokerOffsetStore(fetch, commit)
    await store.load()
    assert await store.read(ONE) == NO_OFFSET
    assert await store.read(TWO) == 9
    store.table.update(ONE, 4, increase_only=True)
    await store.persist([ONE, TWO])
    fail = False
    await store.persist([ONE, TWO], wait=True)
    await store.persist([ONE, TWO])
    assert sent == [(ONE, 4, True)]


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


@pytest.mark.parametrize("client_id", ["", "..", "a/b", "a\0b"])
def test_client_ids_that_are_no_directories(client_id: str) -> None:
    with pytest.raises(MQClientError):
        local_offsets_path(client_id, "g")
