"""Statistics of queues: against what RocketMQ read from golden stores, and with messages missing.

The offline count of `inspect` is held against the same facts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.consume_queue import PRE_BLANK, UNIT
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.inspect import inspect
from oberth.store.offline.reader import StoreReader
from oberth.store.queue_statistics import QueueStatistics, UnitCount


@pytest.mark.parametrize("name", ["basic-5.5.0", "cleaned-4.9.7", "innerbatch-5.5.0"])
def test_every_queue_of_a_golden_store(golden_store: Callable[[str], Any], name: str) -> None:
    golden = golden_store(name)
    stored = {m["commitLogOffset"]: m["storeTimestamp"] for m in golden.facts["messages"]}
    batch = {q["topic"] for q in golden.facts["queues"] if q.get("cqType") == "BatchCQ"}
    with StoreReader(str(golden.root), golden.config) as reader:
        counted = {(q["topic"], q["queueId"]): q for q in inspect(reader, count=True)["queues"]}
    config = MessageStoreConfig.from_properties(
        {"storePathRootDir": str(golden.root), **golden.config}
    )
    config.disk_max_used_space_ratio = 95
    store = MessageStore(
        config, topic_attributes=lambda t: {"queue.type": "BatchCQ"} if t in batch else {}
    )
    store.load()
    try:
        for facts in golden.facts["queues"]:
            key = facts["topic"], facts["queueId"]
            units = [unit for unit in facts["units"] if unit[1] in stored]
            found = store.queue_statistics(*key)
            if found is None:
                assert not units, key  # all of it has expired
                continue
            messages = sum(unit[4] for unit in units) if key[0] in batch else len(units)
            assert found == QueueStatistics(
                *key,
                key[0] in batch,
                store.min_offset_in_queue(*key),
                facts["maxOffset"],
                message_count=messages,
                missing_count=0,
                record_count=len(units),
                record_bytes=sum(unit[2] for unit in units),
                min_commit_log_offset=units[0][1] if units else -1,
                max_commit_log_offset=units[-1][1] + units[-1][2] if units else -1,
                first_store_timestamp=stored[units[0][1]] if units else -1,
                last_store_timestamp=stored[units[-1][1]] if units else -1,
                file_count=found.file_count,
                file_bytes=found.file_bytes,
            ), key
            assert found.file_count >= 1
            if units:
                assert counted[key]["messages"] == messages
                assert counted[key]["bytes"] == found.record_bytes
                assert counted[key]["missing"] == 0
        assert store.queue_statistics("none", 0) is None
    finally:
        store.shutdown()


def test_a_queue_that_was_just_written(tmp_path: Path) -> None:
    with MessageStore(MessageStoreConfig(store_path_root_dir=str(tmp_path))) as store:
        results = store.put_messages([MessageExtBrokerInner("t", bytes(n)) for n in range(40)])
        while store.dispatch_behind_bytes:
            store.dispatch_nowait()
        found = store.queue_statistics("t", 0)
        assert found is not None
        assert (found.message_count, found.min_offset, found.max_offset) == (40, 0, 40)
        assert found.record_bytes == sum(result.record_size for result in results)
        assert found.max_commit_log_offset == store.max_phy_offset
        assert found.first_store_timestamp == results[0].store_timestamp


def test_what_stands_in_for_a_lost_message_counts_as_missing() -> None:
    """RocketMQ's pre-blank, and a copy of the unit that follows, over the border of two pieces."""
    count = UnitCount()
    one, two = UNIT.pack(100, 50, 1), UNIT.pack(300, 60, 2)
    count.add_units([PRE_BLANK + one + two, two + two + bytes(20)])
    assert (count.messages, count.missing, count.record_bytes) == (2, 4, 110)
    assert (count.first, count.last) == ((100, 50), (300, 60))
    empty = UnitCount()
    empty.add_units([PRE_BLANK * 3])
    assert (empty.messages, empty.missing, empty.first, empty.last) == (0, 3, None, None)
