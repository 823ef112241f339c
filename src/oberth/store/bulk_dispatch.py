"""Dispatch of many records at once through the compiled kernels, which do not hold the GIL.

A stretch of the log is scanned into columns; from these come runs of units, one or more per queue,
and a stream of index entries. The result is that of dispatching record by record: where the kernels
find something odd about a record's number, that stretch is done record by record instead.

Only what needs no look at single records goes this way: no ConsumeQueueExt, no further dispatchers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.formats import batch_consume_queue
from oberth.formats.batch_consume_queue import BatchConsumeQueueUnit
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import is_stored_topic
from oberth.formats.options import Line
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from oberth.kernels.columns import DISPATCH_COLUMNS, Columns, TopicTable
from oberth.kernels.index import IndexEntries, index_keys
from oberth.kernels.queues import QueueEnd, QueueTable, UnitRun, build_units
from oberth.kernels.scan import scan
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.index_service import IndexService

if TYPE_CHECKING:
    from oberth.store.deleted_topics import DeletedTopics

# Rows of one step; their columns stay in the processor's second cache.
ROWS_MAX: Final = 16_384
# Queues that the kernels keep the ends of; with more the table is made anew, of those met then.
KNOWN_QUEUES_MAX: Final = 65_536


class Arrival(NamedTuple):
    """A queue that has grown."""

    topic: str
    queue_id: int
    max_offset: int


class BulkStep(NamedTuple):
    """What one step did.

    Attributes:
        position: in the buffer, after the last record taken.
        row_count: records taken; 0 where the next one must be done by itself.
        last_record: CommitLog offset of the last record's start.
        store_timestamp: of the last record.
        queued_timestamp: of the last record that has a queue, 0 if none has.
        arrivals: the queues that have grown.
    """

    position: int
    row_count: int
    last_record: int
    store_timestamp: int
    queued_timestamp: int
    arrivals: list[Arrival]


class _BatchTopics(Collection[bytes]):
    """The topics whose queues are batch queues, asked for one by one."""

    def __init__(self, queues: ConsumeQueueStore) -> None:
        self._queues = queues

    def __contains__(self, name: object) -> bool:
        return isinstance(name, bytes) and self._queues.is_batch_topic(
            str(name, "utf-8", "replace")
        )

    def __iter__(self) -> Iterator[bytes]:
        names = (topic for topic in self._queues.topics() if self._queues.is_batch_topic(topic))
        return (topic.encode() for topic in names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class BulkDispatch:
    """Keeps the kernels' memory between steps. One thread at a time."""

    def __init__(
        self, config: MessageStoreConfig, queues: ConsumeQueueStore, index: IndexService | None
    ) -> None:
        self._config = config
        self._queues = queues
        self._index = index
        self._columns: Columns | None = None
        self._entries = IndexEntries()
        self._table: QueueTable | None = None
        self._generation = -1
        # Queues that were put to by others than the kernels since the last step.
        self.touched: set[tuple[str, int]] = set()

    def step(
        self,
        buffer: memoryview,
        base: int,
        start: int,
        stop: int,
        delays_ms: tuple[int, ...],
        *,
        only_index: bool = False,
        deleted: DeletedTopics | None = None,
        gone: frozenset[str] = frozenset(),
    ) -> BulkStep:
        """Dispatches the records from ``start`` on that end before ``stop``, ROWS_MAX at most.

        Args:
            buffer: the segment.
            base: CommitLog offset of its first byte.
            start: position of the first record.
            stop: where the records end.
            delays_ms: of the delay levels.
            only_index: whether they are given to no queue.
            deleted: topics that are to have no queues.
            gone: topics that were deleted after these records: the queues are not to have them.

        Raises:
            StoreFullError: the disk has no room; the same records are to be dispatched again.
        """
        columns = self._columns
        if columns is None:
            columns = self._columns = Columns(ROWS_MAX, DISPATCH_COLUMNS)
        table = self._ready_table()
        columns.clear()
        # What lies after stop may be just being written.
        data = buffer[:stop]
        scan(data, columns, table.topics, base=base, start=start, stop=stop, delays_ms=delays_ms)
        rows = columns.count
        if not rows:
            return BulkStep(start, 0, -1, 0, 0, [])
        arrivals: list[Arrival] = []
        try:
            if not only_index:
                built = build_units(
                    columns, table, data, multi_dispatch=self._config.enable_multi_dispatch
                )
                if built.anomaly_count:
                    self._table = None
                    return BulkStep(start, 0, -1, 0, 0, [])
                targets = [
                    (run, queue)
                    for run in built.runs
                    if _stored_name(run.topic) not in gone
                    if deleted is None or not _is_hidden(run, deleted, columns, table.topics)
                    if (queue := self._queue_of(run)) is not None
                ]
                if any(isinstance(q, BatchConsumeQueue) != run.is_batch for run, q in targets):
                    # Its topic became one of batch queues, or of others, since the table met it.
                    self._table = None
                    return BulkStep(start, 0, -1, 0, 0, [])
                arrivals = [_put_run(run, queue) for run, queue in targets]
                if gone:
                    self._table = None  # it counts what was not put
            if self._index is not None:
                self._entries.clear()
                index_keys(
                    columns,
                    table.topics,
                    data,
                    self._entries,
                    index_tags=self._config.line is Line.V5,
                )
                self._index.put_entries(self._entries, columns.commit_log_offset[rows - 1])
        except BaseException:
            self._table = None  # it is ahead of the queues now
            raise
        last = columns.commit_log_offset[rows - 1]
        return BulkStep(
            last + columns.record_size[rows - 1] - base,
            rows,
            last,
            columns.store_timestamp[rows - 1],
            0 if only_index else _queued_timestamp(columns),
            arrivals,
        )

    def _ready_table(self) -> QueueTable:
        """The kernels' table of queue ends, brought up to date."""
        table = self._table
        if (
            table is None
            or self._generation != self._queues.generation
            or len(table) > KNOWN_QUEUES_MAX
        ):
            self._generation = self._queues.generation
            table = self._table = QueueTable(TopicTable(), _BatchTopics(self._queues), self._end_of)
        else:
            for topic, queue_id in self.touched:
                table.refresh(topic.encode(), queue_id)
        self.touched.clear()
        return table

    def _end_of(self, topic: bytes, queue_id: int) -> QueueEnd | None:
        """Where a queue ends that the table meets: only those that records name are asked for."""
        name = _stored_name(topic)
        queue = None if name is None else self._queues.find(name, queue_id)
        if queue is None:
            return None
        is_batch = isinstance(queue, BatchConsumeQueue)
        if queue.max_physic_offset < 0:
            return QueueEnd(-1, -1, is_batch)
        return QueueEnd(*queue.kernel_end, is_batch)

    def _queue_of(self, run: UnitRun) -> BatchConsumeQueue | ConsumeQueue | None:
        topic = _stored_name(run.topic)
        if run.queue_id < 0 or topic is None:
            return None
        return self._queues.find_or_create(topic, run.queue_id)


def _put_run(run: UnitRun, queue: BatchConsumeQueue | ConsumeQueue) -> Arrival:
    if isinstance(queue, BatchConsumeQueue):
        for unit in batch_consume_queue.UNIT.iter_unpack(run.units):
            queue.put_unit(BatchConsumeQueueUnit._make(unit))
    else:
        queue.put_many(run.units, run.first)
    return Arrival(queue.topic, run.queue_id, queue.max_offset)


def _is_hidden(run: UnitRun, deleted: DeletedTopics, columns: Columns, topics: TopicTable) -> bool:
    """Whether a run's topic was deleted, by the newest of its records in these columns."""
    topic = _stored_name(run.topic)
    if topic is None or not deleted.may_hide(topic):
        return False
    times = [
        columns.store_timestamp[row]
        for row in range(columns.count)
        if topics.names[columns.topic_id[row]] == run.topic
    ]
    return deleted.hides(topic, max(times, default=0))


@lru_cache(maxsize=16_384)
def _stored_name(topic: bytes) -> str | None:
    """The name of a topic that has queues; None for what no directory can be named after."""
    name = str(topic, "utf-8", "replace")
    return name if is_stored_topic(name) else None


def _queued_timestamp(columns: Columns) -> int:
    for row in range(columns.count - 1, -1, -1):
        if columns.sys_flag[row] & TRANSACTION_MASK in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return columns.store_timestamp[row]
    return 0
