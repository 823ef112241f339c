"""A topic was deleted, and its records are in the log: opening the store makes no queues for it.

Where queues were lost otherwise they are all built again: see also `test_missing_queue_files`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.deleted_topics import DeletedTopics, find_deleted_topics
from oberth.store.files import OsFileSystem
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus

YEAR_2100_MS = 4_102_444_800_000


def delete_as_apache(root: Path, topic: str, *, changed_ms: int = YEAR_2100_MS) -> None:
    """What is on the disk once RocketMQ has deleted a topic."""
    shutil.rmtree(root / "consumequeue" / topic)
    forget(root, topic, changed_ms=changed_ms)


def forget(root: Path, topic: str, *, changed_ms: int = YEAR_2100_MS) -> None:
    path = root / "config" / "topics.json"
    table = json.loads(path.read_bytes())
    del table["topicConfigTable"][topic]
    table["dataVersion"]["timestamp"] = changed_ms
    path.write_text(json.dumps(table))


def units(store: MessageStore, topic: str) -> dict[int, list[int]]:
    """Where the messages of each queue of a topic are, in order."""
    found = {}
    for queue in store.queues.queues(topic):
        read = [queue.unit(n) for n in range(queue.min_offset, queue.max_offset)]
        found[queue.queue_id] = [unit.commit_log_offset for unit in read if unit is not None]
    return {queue_id: places for queue_id, places in found.items() if places}


def places(store: MessageStore, topic: str) -> list[int]:
    return sorted(place for each in units(store, topic).values() for place in each)


def golden_units(golden: Any, topic: str) -> dict[int, list[int]]:
    return {
        queue["queueId"]: [unit[1] for unit in queue["units"]]
        for queue in golden.facts["queues"]
        if queue["topic"] == topic and queue["units"]
    }


def opened(root: Path, config: dict[str, str]) -> MessageStore:
    options = MessageStoreConfig.from_properties({"storePathRootDir": str(root), **config})
    options.disk_max_used_space_ratio, options.disk_space_warning_level_ratio = 95, 90
    return MessageStore(options)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_topic_that_apache_deleted_stays_deleted(
    version: str, killed: bool, golden_store: Callable[[str], Any]
) -> None:
    golden = golden_store(f"client-{version}")
    delete_as_apache(golden.root, "RequestTopic")
    if killed:
        (golden.root / "abort").touch()
    with opened(golden.root, golden.config) as store:
        assert "RequestTopic" not in store.topics()
        assert units(store, "ClientTopic") == golden_units(golden, "ClientTopic")
        anew = [
            store.put_message(MessageExtBrokerInner.of("RequestTopic", b"anew", queue_id=n))
            for n in range(2)
        ]
        assert {(r.status, r.queue_offset) for r in anew} == {(PutMessageStatus.PUT_OK, 0)}
    (golden.root / "oberth.state").unlink()
    with opened(golden.root, golden.config) as store:  # the new queues are there
        assert units(store, "RequestTopic") == {n: [anew[n].commit_log_offset] for n in range(2)}


def lose(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "RequestTopic")


def lose_with_an_old_table(root: Path) -> None:
    delete_as_apache(root, "RequestTopic", changed_ms=1)


def lose_with_a_torn_table(root: Path) -> None:
    lose(root)
    path = root / "config" / "topics.json"
    path.write_bytes(path.read_bytes()[:-20])


def lose_with_the_table(root: Path) -> None:
    lose(root)
    (root / "config" / "topics.json").unlink()


def lose_one_queue(root: Path) -> None:
    forget(root, "RequestTopic")
    shutil.rmtree(root / "consumequeue" / "RequestTopic" / "0")


def lose_all(root: Path) -> None:
    forget(root, "RequestTopic")
    shutil.rmtree(root / "consumequeue")


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize(
    "damage",
    [lose, lose_with_an_old_table, lose_with_a_torn_table, lose_with_the_table, lose_one_queue,
     lose_all],
)  # fmt: skip
def test_queues_that_were_lost_come_back(
    damage: Callable[[Path], None], version: str, killed: bool, golden_store: Callable[[str], Any]
) -> None:
    golden = golden_store(f"client-{version}")
    damage(golden.root)
    if killed:
        (golden.root / "abort").touch()
    with opened(golden.root, golden.config) as store:
        for topic in ("RequestTopic", "ClientTopic"):
            assert units(store, topic) == golden_units(golden, topic)


def small(root: Path, now_ms: list[int]) -> MessageStore:
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=100,
        max_index_num=400,
        disk_max_used_space_ratio=95,
        disk_space_warning_level_ratio=90,
    )
    return MessageStore(config, clock_ms=lambda: now_ms[0])


def put(store: MessageStore, topic: str, count: int) -> list[int]:
    results = store.put_messages(
        [MessageExtBrokerInner.of(topic, b"x" * 60, queue_id=n % 2) for n in range(count)]
    )
    return [each.commit_log_offset for each in results]


@pytest.mark.parametrize("count", [4, 3000], ids=["one by one", "in bulk"])
@pytest.mark.parametrize("younger", [0, 1, 2], ids=["deleted", "with one since", "with two since"])
def test_the_last_message_says_whether_the_table_is_right(
    tmp_path: Path, younger: int, count: int
) -> None:
    """A table that a loss of power took a topic from is older than the topic's last message."""
    now_ms = [10_000]
    with small(tmp_path, now_ms) as store:
        gone = put(store, "gone", count)
        kept = put(store, "kept", count)
        gone += put(store, "gone", count)
        now_ms[0] = 20_000
        kept += put(store, "kept", 2)
        gone += put(store, "gone", younger)
        kept += put(store, "kept", count)
    table = {"dataVersion": {"timestamp": 15_000}, "topicConfigTable": {"kept": {}}}
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "topics.json").write_text(json.dumps(table))
    shutil.rmtree(tmp_path / "consumequeue" / "gone")
    with small(tmp_path, now_ms) as store:
        assert places(store, "kept") == sorted(kept)
        assert places(store, "gone") == (sorted(gone) if younger else [])
        assert set(store.topics()) == ({"gone", "kept"} if younger else {"kept"})
        put(store, "kept", 2)
    with small(tmp_path, now_ms) as store:
        assert store.report is not None
        assert store.report.dispatch_from == store.report.log_end


def queues_of(root: Path) -> ConsumeQueueStore:
    config = MessageStoreConfig(
        store_path_root_dir=str(root), mapped_file_size_consume_queue=20 * 100
    )
    return ConsumeQueueStore(OsFileSystem(), config)


def test_a_topic_is_kept_or_hidden_as_its_first_records_say(tmp_path: Path) -> None:
    deleted = DeletedTopics(queues_of(tmp_path), {"known"}, 15_000, "root")
    for topic in ("known", "%LMQ%x", "SCHEDULE_TOPIC_XXXX"):
        assert not deleted.hides(topic, 1)
    assert not deleted.hides("kept", 15_000)
    assert not deleted.hides("kept", 14_999), "the clock was set back"
    assert not deleted.may_hide("kept")
    assert deleted.hides("gone", 14_999)
    assert not deleted.lost
    assert not deleted.keep_lost()
    assert deleted.hides("gone", 15_000)
    assert deleted.lost == {"gone"}
    assert deleted.keep_lost()
    assert not deleted.hides("gone", 1)
    assert not deleted.keep_lost()


def test_queues_that_hold_nothing_do_not_say_that_a_topic_was_deleted(tmp_path: Path) -> None:
    files, root = OsFileSystem(), str(tmp_path)
    (tmp_path / "config").mkdir()
    table = {"dataVersion": {"timestamp": 15_000}, "topicConfigTable": {"known": {}}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps(table))
    queues = queues_of(tmp_path)
    queue = queues.find_or_create("known", 0)
    other = queues.find_or_create("other", 0)
    assert isinstance(queue, ConsumeQueue)
    assert isinstance(other, ConsumeQueue)
    other.put(0, 100, 0, 0)
    assert find_deleted_topics(files, root, queues) is None
    queue.put(100, 100, 0, 0)
    found = find_deleted_topics(files, root, queues)
    assert found is not None
    assert found.hides("gone", 14_999)
    assert not found.hides("other", 14_999)
