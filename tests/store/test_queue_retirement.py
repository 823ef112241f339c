"""Queues and topics that are cleaned away while others are written: no number is given twice.

A record that is put and not yet dispatched has a number that no queue shows. Numbers taken from the
queues' ends would give it to the next record too, and a queue keeps one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.commit_log import CommitLog
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageStatus, MessageExtBrokerInner


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Dispatches only when it is told to."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=6000,
        max_hash_slot_num=100,
        max_index_num=1000,
        disk_max_used_space_ratio=95,
    )
    made = MessageStore(config)
    made.load()
    made.start(background=False)
    yield made
    made.shutdown()


def put(store: MessageStore, topic: str, body: bytes) -> int:
    (result,) = store.append_messages([MessageExtBrokerInner(topic, body)])
    assert result.ok
    return result.queue_offset


def read(store: MessageStore, topic: str, offset: int = 0) -> list[tuple[int, bytes]]:
    store.dispatch_nowait()
    found = store.get_message("G", topic, 0, offset, 32)
    if found.status is not GetMessageStatus.FOUND:
        return []
    messages = [store.look_message_by_offset(each) for each in found.commit_log_offsets]
    return [(each.queue_offset, each.body) for each in messages if each is not None]


def test_what_is_not_dispatched_keeps_its_number(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("old", "old-written", "live"):
        assert put(store, topic, b"first") == 0
    store.dispatch_nowait()
    end = store.max_phy_offset
    assert put(store, "live", b"second") == 1
    assert put(store, "old-written", b"second") == 1
    monkeypatch.setattr(CommitLog, "min_offset", end)
    assert store.clean_expired_consume_queues() == 1
    monkeypatch.undo()
    assert put(store, "live", b"third") == 2
    assert put(store, "old-written", b"third") == 2
    assert read(store, "live") == [(0, b"first"), (1, b"second"), (2, b"third")]
    assert read(store, "old-written") == [(0, b"first"), (1, b"second"), (2, b"third")]
    assert put(store, "old", b"again") == 1
    assert read(store, "old") == []
    assert read(store, "old", 1) == [(1, b"again")]


def test_a_topic_that_is_made_meanwhile_keeps_its_messages(store: MessageStore) -> None:
    for topic in ("kept", "unused", "made-meanwhile"):
        put(store, topic, b"first")
    store.dispatch_nowait()
    asked: list[str] = []

    def keep(topic: str) -> bool:
        asked.append(topic)
        return topic == "kept" or (topic == "made-meanwhile" and asked.count(topic) > 1)

    assert store.clean_unused_topics(keep) == ["unused"]
    assert read(store, "made-meanwhile") == [(0, b"first")]
    assert read(store, "kept") == [(0, b"first")]
    assert put(store, "unused", b"again") == 0
    assert read(store, "unused") == [(0, b"again")]
