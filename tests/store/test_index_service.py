"""Golden index queries are answered as by RocketMQ; crashes of every kind are repaired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.files import OsFileSystem
from oberth.store.index_service import IndexService

Golden = Callable[[str], Any]


def config_of(store: Any) -> MessageStoreConfig:
    line = "4.9" if store.rocketmq_version.startswith("4") else "5.x"
    return MessageStoreConfig.from_properties(
        {"storePathRootDir": str(store.root), "rocketmqLine": line, **store.config}
    )


def test_golden_queries(golden_name: str, golden_store: Golden) -> None:
    store = golden_store(golden_name)
    # RocketMQ deletes unfinished files after a crash; there the facts are of the index it then
    # built anew, which the tests of recovery compare.
    if store.facts["abortFile"] or "noqueue" in golden_name:
        pytest.skip("these facts are of an index that was built during recovery")
    index = IndexService(OsFileSystem(), config_of(store))
    index.load()
    assert [
        {
            "file": file.name,
            "beginTimestamp": file.begin_timestamp,
            "endTimestamp": file.end_timestamp,
            "beginPhyOffset": file.begin_offset,
            "endPhyOffset": file.end_offset,
            "hashSlotCount": file.hash_slot_count,
            "indexCount": file.index_count,
        }
        for file in index.index_files
    ] == store.facts["indexFiles"]
    log_min = store.facts["commitLog"]["minOffset"]
    for query in store.facts["indexQueries"]:
        found = index.query_offsets(
            query["topic"],
            query["key"],
            query["maxNum"],
            query["begin"],
            query["end"],
            query.get("indexType"),
        )
        if "queryOffset" in query:
            assert found.offsets == query["queryOffset"], query
            if query["queryMessage"]:  # else the facts are 0: they are of queryMessage's result
                assert found.last_update_timestamp == query["indexLastUpdateTimestamp"]
                assert found.last_update_offset == query["indexLastUpdatePhyoffset"]
        else:  # typed: only queryMessage was asked, which sorts
            there = sorted(offset for offset in found.offsets if offset >= log_min)
            assert there == query["queryMessage"], query
    index.close()


def make(root: Path, *, slots: int = 20, entries: int = 30, **options: Any) -> IndexService:
    config = MessageStoreConfig.from_properties(
        {
            "storePathRootDir": str(root),
            "maxHashSlotNum": str(slots),
            "maxIndexNum": str(entries),
        }
    )
    return IndexService(OsFileSystem(), config, **options)


def test_nothing_there(tmp_path: Path) -> None:
    index = make(tmp_path)
    assert index.load() == 0
    assert index.query_offsets("t", "k", 10, 0, 1 << 62).offsets == []
    index.publish()
    index.flush()
    index.close()
    assert list(tmp_path.iterdir()) == []
