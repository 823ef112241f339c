"""What the log of a store that was not closed has after its queues' units.

A broker that is killed leaves records without a unit: it dispatches behind its log, and units that
were only in memory are gone. The messages were acknowledged all the same; the broker gives them
their units when it starts again. Until then they are read from the log, in the place that their
queue offset says.

Where to look: from the store time on up to which the checkpoint knows queues to be on the disk, as
a broker's recovery does. What lies there with an offset that its queue does not reach yet, and goes
on where the queue ends without a gap, belongs to the queue's end. Light queues show records of
other topics; theirs are not looked for.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from oberth.errors import ConfigFormatError, FormatError, NotFoundError
from oberth.formats import names, paths
from oberth.formats import sys_flag as flags
from oberth.formats.checkpoint import Checkpoint, decode_checkpoint
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import scan
from oberth.spark.record_starts import Queue, QueuedLog, RecordStarts
from oberth.spark.segments import RECORD_SIZE_MAX, QueueName, Segment

_LOG: Final = logging.getLogger(__name__)

TAIL_MAX: Final = 1 << 30
"""How far before the log's end records without a unit are looked for at most."""
_WINDOW: Final = 1 << 20
_READ_SIZE: Final = 16 << 20
_ROWS: Final = 16_384
_QUEUE_MAX: Final = 2**31 - 1
_NAMES: Final = (
    "record_size", "commit_log_offset", "topic_id", "queue_id", "queue_offset", "sys_flag",
    "store_timestamp", "inner_num", "inner_base",
)  # fmt: skip


class TailMessage(NamedTuple):
    """A record without a unit: its queue offsets [first, end), place, size and store time (ms)."""

    first: int
    end: int
    at: int
    size: int
    timestamp: int


@dataclass(slots=True)
class LogTail:
    """Records behind the queues' units, by queue in the order of their offsets.

    Attributes:
        messages: they follow each queue's last unit without a gap.
        left_out: queues with records that cannot be put into their place, and why.
    """

    messages: dict[QueueName, list[TailMessage]] = field(default_factory=dict)
    left_out: dict[QueueName, str] = field(default_factory=dict)


class ReadQueue(Queue, Protocol):
    """What is asked of a queue."""

    def bounds(self) -> tuple[int, int]:
        """Its first offset, and the one after its last."""

    def last_place(self) -> int:
        """Where the record of its last unit is."""


class LogOfStore(QueuedLog, Protocol):
    """What is asked of a store's files."""

    @property
    def root(self) -> str:
        """The store's directory."""

    def bare(self) -> LogOfStore:
        """The same store without what was listed."""

    def log_start(self) -> int:
        """The first offset of the CommitLog."""

    def log_end(self) -> int:
        """The offset after its last whole record."""

    def segments(self) -> list[Segment]:
        """Its files."""

    def queue(self, topic: str, queue: int) -> ReadQueue:
        """A queue; NotFoundError if the store has no such topic."""

    def config(self, name: str) -> Any:
        """A file of the directory config as Java wrote it, or None."""


def find_tail(store: LogOfStore) -> LogTail:
    """Looks for records without a unit. Costs a walk over the last minute of the log, or so.

    Args:
        store: with its queues; one that has none is read by its log.
    """
    search = _Search(store.bare())
    since = _checkpoint(store).min_timestamp
    window = _WINDOW
    while True:
        begin = max(search.log_start, search.log_end - window)
        oldest = search.look(begin)
        if begin == search.log_start or (oldest is not None and oldest < since):
            return search.placed("")
        if window >= TAIL_MAX:
            return search.placed(f"; only the last {window >> 20} MiB were looked at")
        window *= 8


def _checkpoint(store: LogOfStore) -> Checkpoint:
    for entry in store.storage.entries(store.root):
        if entry.name == paths.CHECKPOINT and entry.size > 0:
            try:
                return decode_checkpoint(
                    store.storage.read(f"{store.root}/{entry.name}", 0, entry.size)
                )
            except (FormatError, NotFoundError):
                break
    return Checkpoint()


class _Reach(NamedTuple):
    """How far a queue's units go: the next offset, and where the record of the last one is."""

    end: int
    at: int


class _Search:
    """One look for what a store's queues lack."""

    def __init__(self, store: LogOfStore) -> None:
        self.log_start, self.log_end = store.log_start(), store.log_end()
        self._store = store
        self._reaches: dict[QueueName, _Reach | None] = {}
        self._known = _known_topics(store)
        self._found: list[tuple[QueueName, TailMessage]] = []

    def look(self, begin: int) -> int | None:
        """Takes the records from an offset on; gives the first one's store time, ms."""
        self._found = []
        oldest = None
        starts = RecordStarts(self._store)
        for segment in self._store.segments():
            if segment.end > begin and segment.start < self.log_end:
                try:
                    at = starts.first(segment, max(begin, segment.start)).offset
                    first = self._segment(segment, starts, at)
                except NotFoundError:
                    continue  # cleaned meanwhile
                oldest = first if oldest is None else oldest
        return oldest

    def _segment(self, segment: Segment, starts: RecordStarts, at: int) -> int | None:
        columns = Columns(_ROWS, _NAMES)
        topics = TopicTable()
        stop = min(self.log_end, segment.end)
        size = _READ_SIZE
        oldest: int | None = None
        while at < stop:
            wanted = min(size, segment.end - at)
            data = self._store.storage.read(segment.path, at - segment.start, wanted)
            columns.clear()
            ended = scan(
                data, columns, topics, base=at, stop=min(len(data), stop - at), crc=CrcMode.NONE,
                record_size_max=RECORD_SIZE_MAX,
            )  # fmt: skip
            if columns.count:
                oldest = columns.store_timestamp[0] if oldest is None else oldest
                self._take(columns, topics)
            at += ended.position
            if ended.end in (ScanEnd.STOP, ScanEnd.FULL):
                continue
            if ended.end is ScanEnd.TRUNCATED and at - ended.position + wanted < segment.end:
                size = _READ_SIZE if ended.position else min(size * 4, RECORD_SIZE_MAX)
                if ended.position or size > wanted:
                    continue
            following = starts.after_damage(segment, at)
            if following is None:
                break
            at = following
        return oldest

    def _take(self, columns: Columns, topics: TopicTable) -> None:
        """Takes what the queues do not reach."""
        import numpy as np

        rows = {name: columns.array(name) for name in _NAMES}
        kinds = rows["sys_flag"] & flags.TRANSACTION_MASK
        shown = (kinds == flags.TRANSACTION_NOT) | (kinds == flags.TRANSACTION_COMMIT)
        inner = ((rows["sys_flag"] & flags.INNER_BATCH) != 0) & (rows["inner_num"] > 0)
        counts = np.where(inner, rows["inner_num"], 1)
        firsts = rows["queue_offset"].astype(np.int64)
        firsts = np.where(inner & (rows["inner_base"] >= 0), rows["inner_base"], firsts)
        codes = (rows["topic_id"].astype(np.int64) << 32) | rows["queue_id"].astype(np.uint32)
        wanted: list[int] = []
        for code in np.unique(codes[shown]).tolist():
            topic = topics.names[code >> 32].decode("utf-8", "replace")
            reach = self._reach(QueueName(topic, code & 0xFFFFFFFF))
            if reach is not None:
                behind = (codes == code) & shown & (firsts + counts > reach.end)
                wanted += np.flatnonzero(behind & (rows["commit_log_offset"] > reach.at)).tolist()
        for row in sorted(wanted):
            topic = topics.names[int(rows["topic_id"][row])].decode("utf-8", "replace")
            first = int(firsts[row])
            record = TailMessage(
                first, first + int(counts[row]), int(rows["commit_log_offset"][row]),
                int(rows["record_size"][row]), int(rows["store_timestamp"][row]),
            )  # fmt: skip
            self._found.append((QueueName(topic, int(rows["queue_id"][row])), record))

    def _reach(self, name: QueueName) -> _Reach | None:
        """How far a queue's units go; None for a queue that is not to be."""
        if name not in self._reaches:
            self._reaches[name] = self._find_reach(name)
        return self._reaches[name]

    def _find_reach(self, name: QueueName) -> _Reach | None:
        if name.queue > _QUEUE_MAX or not names.is_stored_topic(name.topic):
            return None
        reach = _Reach(0, -1)
        with contextlib.suppress(NotFoundError):
            queue = self._store.queue(*name)
            reach = _Reach(queue.bounds()[1], queue.last_place())
        # What was deleted has no queue any more, and its records are still in the log.
        is_gone = self._known is not None and name.topic not in self._known
        return None if reach.at < 0 and is_gone else reach

    def placed(self, limit: str) -> LogTail:
        """The records that go on where their queues end."""
        tail = LogTail()
        ends: dict[QueueName, int] = {}
        for name, record in self._found:
            reach = self._reaches[name]
            assert reach is not None
            end = ends.get(name, reach.end)
            if name in tail.left_out or record.end <= end:
                continue
            if record.first != end:
                tail.left_out[name] = (
                    f"the log has offset {record.first} at {record.at}, its ConsumeQueue ends at "
                    f"{end}{limit}"
                )
                continue
            ends[name] = record.end
            tail.messages.setdefault(name, []).append(record)
        for name, why in tail.left_out.items():
            _LOG.warning(
                "%s: topic %s, queue %d: %s. The messages from there on are left out; "
                "readOrder=commitlog reads them, `oberth store recover` gives them their place",
                self._store.root, name.topic, name.queue, why,
            )  # fmt: skip
        return tail


def _known_topics(store: LogOfStore) -> set[str] | None:
    """The topics of the configuration, None where there is none."""
    with contextlib.suppress(ConfigFormatError):
        parsed = store.config("topics.json")
        table = parsed.get("topicConfigTable") if isinstance(parsed, dict) else None
        if isinstance(table, dict):
            return set(table)
    return None
