"""The units of a log that is read in parts, the same wherever it is cut."""

from __future__ import annotations

from oberth.formats.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from oberth.kernels.columns import TopicTable
from oberth.kernels.layout import LOOK_AHEAD_ROWS
from oberth.kernels.queues import BuiltUnits, QueueTable, build_units
from oberth.store.offline.log_columns import BlankMet, ColumnReader, Rows
from oberth.store.offline.reader import StoreReader


def part_units(reader: StoreReader, part: Rows, table: QueueTable) -> BuiltUnits:
    """The units of the next part of a store's log, and the table moved after it.

    Args:
        reader: the store.
        part: records, with `DISPATCH_COLUMNS` at least.
        table: where the queues end; changed.
    """
    return build_units(
        part.columns,
        table,
        part.segment.view,
        multi_dispatch=reader.layout.config.enable_multi_dispatch,
        restart=True,
        log_start=reader.min_offset,
        behind=_NumbersBehind(reader, part).next_in_queue,
    )


class _NumbersBehind:
    """The first queue offset of each queue behind a part, up to damage or the end of the log.

    They are read when the first one is asked for.
    """

    def __init__(self, reader: StoreReader, part: Rows) -> None:
        self._reader = reader
        self._part = part
        self._first: dict[tuple[bytes, int], tuple[int, int]] | None = None

    def next_in_queue(self, topic: bytes, queue_id: int, near: int) -> int:
        """The queue offset of a queue's first record among the next ``near``, -1 if it has none."""
        if self._first is None:
            self._first = self._read()
        place, queue_offset = self._first.get((topic, queue_id), (near, -1))
        return queue_offset if place < near else -1

    def _read(self) -> dict[tuple[bytes, int], tuple[int, int]]:
        """Place behind the part, in records, and queue offset by topic and queue."""
        last = self._part.columns.count - 1
        columns = self._part.columns
        topics = TopicTable()
        log = ColumnReader(
            self._reader.log,
            ("topic_id", "queue_id", "queue_offset", "sys_flag"),
            topics=topics,
            threads=1,
            start=columns.commit_log_offset[last] + columns.record_size[last],
        )
        found: dict[tuple[bytes, int], tuple[int, int]] = {}
        seen = 0
        for part in log:
            if isinstance(part, BlankMet):
                continue
            if not isinstance(part, Rows) or seen >= LOOK_AHEAD_ROWS:
                break
            columns = part.columns
            for row in range(columns.count):
                if columns.sys_flag[row] & TRANSACTION_MASK not in (
                    TRANSACTION_PREPARED,
                    TRANSACTION_ROLLBACK,
                ):
                    key = (topics.names[columns.topic_id[row]], columns.queue_id[row])
                    found.setdefault(key, (seen + row, columns.queue_offset[row]))
            seen += columns.count
        return found
