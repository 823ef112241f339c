"""Look-up of records by a key: offsets from the index, records from the CommitLog.

RocketMQ: DefaultMessageStore.queryMessage. It asks the index up to three times when a round finds
no record, each time with the same interval and hence the same answer; here once is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from oberth.store.index_service import IndexService


class KeyQueryResult(NamedTuple):
    """Records whose key hash matches, oldest first, and how far the index reaches (0 if none)."""

    records: list[memoryview]
    offsets: list[int]
    last_update_timestamp: int
    last_update_offset: int


def query_records(
    index: IndexService,
    select_record: Callable[[int], memoryview | None],
    topic: str,
    key: str,
    max_num: int,
    begin_ms: int,
    end_ms: int,
    index_type: str | None = None,
) -> KeyQueryResult:
    """Asks the index and takes the records out of the CommitLog.

    Args:
        index: of the store.
        select_record: the record at a CommitLog offset, None where there is none (any more).
        topic: see `IndexService.query_offsets`, as for the others.
        key: the key.
        max_num: records at most.
        begin_ms: earliest store time.
        end_ms: latest store time.
        index_type: "T" for tags.
    """
    found = index.query_offsets(topic, key, max_num, begin_ms, end_ms, index_type)
    if not found.offsets:
        return KeyQueryResult([], [], 0, 0)
    records: list[memoryview] = []
    offsets: list[int] = []
    for offset in sorted(found.offsets):
        record = select_record(offset)
        if record is not None:
            records.append(record)
            offsets.append(offset)
    return KeyQueryResult(records, offsets, found.last_update_timestamp, found.last_update_offset)
