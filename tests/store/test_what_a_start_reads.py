"""How far back a start reads: nothing of a healthy store's past, whoever wrote its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import Line
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.recovery import RecoveryReport

COUNT = 300


def open_store(root: Path, line: Line = Line.V5) -> MessageStore:
    store = MessageStore(
        MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=20 * 40,
            mapped_file_size_batch_consume_queue=46 * 40,
            max_hash_slot_num=100,
            max_index_num=400,
            disk_max_used_space_ratio=95,
            disk_space_warning_level_ratio=90,
            enable_lmq=True,
            enable_multi_dispatch=True,
            line=line,
        ),
        topic_attributes=lambda name: {"queue.type": "BatchCQ"} if name == "batch" else {},
    )
    store.load()
    store.start(reput_thread=False, background=False)
    return store


def put(store: MessageStore, topic: str, count: int = COUNT, **properties: str) -> None:
    for n in range(count):
        (result,) = store.append_messages(
            [MessageExtBrokerInner.of(topic, b"x", queue_id=n % 3, properties=dict(properties))]
        )
        assert result.ok
    while store.dispatch_behind_bytes:
        assert store.dispatch_nowait()


def fill(root: Path, line: Line = Line.V5) -> MessageStore:
    """A store with all that its queues can have gone through."""
    store = open_store(root, line)
    put(store, "t")
    put(store, "batch")
    put(store, "t", 20, INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b")
    put(store, "gone")
    store.delete_topics(["gone"])
    put(store, "again", 30)
    store.delete_topics(["again"])
    put(store, "again", 6)
    store.checkpoint_now()
    return store


def kill(store: MessageStore) -> None:
    store.queues.write_behind()
    store.kill()
    store.commit_log.queue.close()


def lengths(store: MessageStore) -> dict[tuple[str, int], int]:
    return {(q.topic, q.queue_id): q.max_offset for q in store.queues.all_queues()}


def report_of(store: MessageStore) -> RecoveryReport:
    assert store.report is not None
    return store.report


@pytest.mark.parametrize("line", [Line.V5, Line.V4_9])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_healthy_store_is_read_from_its_checkpoint(
    tmp_path: Path, killed: bool, line: Line
) -> None:
    store = fill(tmp_path, line)
    safe = store.max_phy_offset
    put(store, "t", 10)
    expected, end = lengths(store), store.max_phy_offset
    (kill(store) if killed else store.shutdown())
    store = open_store(tmp_path, line)
    report = report_of(store)
    assert report.dispatch_from == (safe if killed else end)
    assert report.scanned_from == report.dispatch_from
    assert report.records_scanned == (10 if killed else 0)
    assert lengths(store) == expected
    store.shutdown()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_state_without_units_is_as_good_as_it_was(tmp_path: Path, killed: bool) -> None:
    """An earlier version does not write how many units there are, and goes by the rest."""
    store = fill(tmp_path)
    expected, end = lengths(store), store.max_phy_offset
    (kill(store) if killed else store.shutdown())
    path = tmp_path / "oberth.state"
    state = json.loads(path.read_text())
    assert state.pop("queue_units") == sum(expected.values())
    path.write_text(json.dumps(state))
    store = open_store(tmp_path)
    assert report_of(store).dispatch_from == end
    assert lengths(store) == expected
    store.shutdown()
    assert json.loads(path.read_text())["queue_units"] == sum(expected.values())


def test_a_later_versions_state_is_read_for_what_it_says(tmp_path: Path) -> None:
    """So a version that does not know a field goes on from a state that has it."""
    store = fill(tmp_path)
    expected, end = lengths(store), store.max_phy_offset
    store.shutdown()
    path = tmp_path / "oberth.state"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": [1, {"a": None}]}))
    store = open_store(tmp_path)
    assert report_of(store).dispatch_from == end
    assert lengths(store) == expected
    store.shutdown()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_queues_that_lost_files_in_order_are_not_missed(tmp_path: Path, killed: bool) -> None:
    """What cleaning deletes does not count as lost, in either kind of queue."""
    store = fill(tmp_path)
    for _ in range(20):
        put(store, "t")
        put(store, "batch", 100)
    first, *_ = store.commit_log.queue.segments
    assert store.commit_log.queue.remove_first(0)
    assert store.min_phy_offset > first.start_offset
    assert store.queues.delete_expired(store.min_phy_offset, pause_ms=0) > 3
    if not killed:
        store.checkpoint_now()
    expected, end = lengths(store), store.max_phy_offset
    (kill(store) if killed else store.shutdown())
    store = open_store(tmp_path)
    assert report_of(store).reason in ("the last checkpoint", "the last shutdown")
    assert report_of(store).log_end == end
    assert lengths(store) == expected
    store.shutdown()
