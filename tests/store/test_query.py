"""A query takes the records that are still there, oldest first."""

from __future__ import annotations

from pathlib import Path

from oberth.formats.message import DispatchRequest
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.files import OsFileSystem
from oberth.store.index_service import IndexService
from oberth.store.query import query_records


def test_records_that_are_gone_are_left_out(tmp_path: Path) -> None:
    config = MessageStoreConfig.from_properties(
        {"storePathRootDir": str(tmp_path), "maxHashSlotNum": "20", "maxIndexNum": "100"}
    )
    index = IndexService(OsFileSystem(), config)
    for number in range(10):
        index.put(
            DispatchRequest("t", 0, number * 50, 50, 0, 1000 + number, number, 0, 0, b"KEYS\x01k")
        )

    def select(offset: int) -> memoryview | None:
        return memoryview(b"%d" % offset) if offset >= 200 else None

    found = query_records(index, select, "t", "k", 8, 0, 1 << 62)
    assert found.offsets == [200, 250, 300, 350, 400, 450]
    assert [bytes(record) for record in found.records] == [b"%d" % n for n in found.offsets]
    assert (found.last_update_timestamp, found.last_update_offset) == (1009, 450)
    assert query_records(index, select, "t", "other", 8, 0, 1 << 62) == ([], [], 0, 0)
    assert query_records(index, select, "t", "k", 8, 0, 999).records == []
    index.close()
