"""What the log of a store that was not closed has after its queues' units.

A broker that is killed leaves records without a unit: it dispatches behind its log, and units that
were only in memory are gone. The messages were acknowledged all the same; the broker gives them
their units when it starts again. Until then they are read from the log, in the place that their
queue offset says.

Where to look: from the place on up to which `oberth.state` promises units, or, where there is none,
from the store time on up to which the checkpoint knows queues to be on the disk, as a broker's
recovery does. What was deleted with its topic lies before that place, or before the one that
`oberth.state` notes for the topic. What lies behind it with an offset that its queue does not reach
yet belongs to the queue's end. Offsets before it that no record has were lost with the crash. A
record that is in light queues too says which number it has in each.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from oberth.errors import ConfigFormatError, FormatError, NotFoundError
from oberth.formats import names, paths
from oberth.formats import sys_flag as flags
from oberth.formats.checkpoint import Checkpoint, decode_checkpoint
from oberth.formats.java_numbers import java_long
from oberth.formats.message import stated_size
from oberth.formats.properties import find_property
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import scan
from oberth.spark.record_starts import Queue, QueuedLog, RecordStarts
from oberth.spark.segments import RECORD_SIZE_MAX, QueueName, Segment

if TYPE_CHECKING:
    from oberth.store.recovery_state import RecoveryState

_LOG: Final = logging.getLogger(__name__)

TAIL_MAX: Final = 1 << 30
"""How far before the log's end records without a unit are looked for at most."""
_WINDOW: Final = 1 << 20
_READ_SIZE: Final = 16 << 20
_ROWS: Final = 16_384
_QUEUE_MAX: Final = 2**31 - 1
_TIME_MAX: Final = 2**63 - 1
_NAMES: Final = (
    "record_size", "commit_log_offset", "topic_id", "queue_id", "queue_offset", "sys_flag",
    "store_timestamp", "inner_num", "inner_base", "properties_at", "properties_size",
)  # fmt: skip
_DISPATCHED_TO: Final = b"INNER_MULTI_DISPATCH"
_NUMBERED: Final = b"INNER_MULTI_QUEUE_OFFSET"
_SHOWN: Final = (flags.TRANSACTION_NOT, flags.TRANSACTION_COMMIT)


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
        messages: they follow each queue's last unit.
        gaps: queue offsets [first, end) before or between them that the log has no record of.
        left_out: queues with records that cannot be put into their place, and why.
    """

    messages: dict[QueueName, list[TailMessage]] = field(default_factory=dict)
    gaps: dict[QueueName, list[tuple[int, int]]] = field(default_factory=dict)
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

    def topics(self) -> Mapping[str, str]:
        """Topics that have queues."""

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic."""

    def store_timestamp(self, offset: int) -> int:
        """The store time of the record at an offset, ms; NotFoundError if it is gone."""

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
        tail = search.placed()
        # Where the clock was set back what is missing may be older than it looks.
        is_old = oldest is not None and oldest < since and not (tail.left_out or tail.gaps)
        is_all = begin == search.log_start
        if is_all or is_old or window >= TAIL_MAX:
            _warn(
                store, tail, "" if is_all else f"; only the last {window >> 20} MiB were looked at"
            )
            return tail
        window *= 8


def _warn(store: LogOfStore, tail: LogTail, limit: str) -> None:
    for name, why in tail.left_out.items():
        _LOG.warning(
            "%s: topic %s, queue %d: %s%s. The messages from there on are left out; "
            "readOrder=commitlog reads them, `oberth store recover` gives them their place",
            store.root, name.topic, name.queue, why, limit,
        )  # fmt: skip


def _checkpoint(store: LogOfStore) -> Checkpoint:
    data = _small_file(store, paths.CHECKPOINT)
    if data is not None:
        with contextlib.suppress(FormatError):
            return decode_checkpoint(data)
    return Checkpoint()


def _state_of(store: LogOfStore) -> RecoveryState | None:
    """What `oberth.state` promises; None without one, and if the log lacks the record it names."""
    from oberth.store.recovery_state import FILE_NAME, decode_state  # what few stores need

    state = decode_state(_small_file(store, FILE_NAME))
    if state is None or state.last_record < 0 or state.safe_offset > store.log_end():
        return None
    try:
        if store.store_timestamp(state.last_record) != state.store_timestamp:
            return None
        end = state.last_record + stated_size(store.read_log(state.last_record, 4))
    except NotFoundError:
        return None
    segment = store.segment_of(end - 1)
    fits = state.safe_offset in (end, segment.end if segment is not None else end)
    return state if fits else None


def queue_ends(store: LogOfStore) -> dict[QueueName, int]:
    """Where queues without files go on."""
    from oberth.store.queue_ends import FILE_NAME, decode_ends  # what few stores need

    found = decode_ends(_small_file(store, FILE_NAME), store.root)
    return {QueueName(topic, q): end for topic, ends in found.items() for q, end in ends.items()}


def _small_file(store: LogOfStore, name: str) -> bytes | None:
    for entry in store.storage.entries(store.root):
        if entry.name == name and entry.size > 0:
            with contextlib.suppress(NotFoundError):
                return store.storage.read(f"{store.root}/{name}", 0, entry.size)
    return None


def light_offsets(properties: bytes) -> list[tuple[str, int]]:
    """The light queues that a record is in too, by its properties, and its number in each."""
    return [each for each in further_offsets(properties) if names.is_lmq(each[0])]


def further_offsets(properties: bytes) -> list[tuple[str, int]]:
    """The further queues that a record names, light or not, and its number in each."""
    # As Java splits: commas at the end do not count.
    found = (find_property(properties, _DISPATCHED_TO) or b"").rstrip(b",")
    numbers = [
        java_long(text, -1)
        for text in (find_property(properties, _NUMBERED) or b"").rstrip(b",").split(b",")
    ]
    topics = str(found, "utf-8", "replace").split(",")
    if not found or len(topics) != len(numbers) or min(numbers) < 0:
        return []
    return list(zip(topics, numbers, strict=True))


class _Reach(NamedTuple):
    """How far a queue's units go.

    Attributes:
        end: the next offset.
        at: where the record of the last unit is; -1 without one.
        begin: the place in the log below which no record belongs behind the units.
    """

    end: int
    at: int
    begin: int


class _Search:
    """One look for what a store's queues lack."""

    def __init__(self, store: LogOfStore) -> None:
        self.log_start, self.log_end = store.log_start(), store.log_end()
        self._store = store
        self._reaches: dict[QueueName, _Reach | None] = {}
        self.ends = queue_ends(store)
        state = _state_of(store)
        # Topics that were deleted, and below which offset of the log.
        self._deleted_below = {} if state is None else state.deleted
        # Whether what is older than log_start is known to have its units: as a start takes it,
        # where no queue is missing.
        self.knows_start = state is not None and self._count_queues() >= state.queue_count
        if state is not None and self.knows_start:
            self.log_start = max(self.log_start, state.safe_offset)
        self._topics, self._topics_ms = _known_topics(store)
        self._queued = set(store.topics())
        self._has_light_queues = any(names.is_lmq(topic) for topic in self._queued)
        self._found: list[tuple[QueueName, TailMessage]] = []

    def _count_queues(self) -> int:
        """The queues that have files, and those that ended and go on without."""
        there = sum(len(self._store.queue_ids(topic)) for topic in self._store.topics())
        return there + len(self.ends)

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
                if self._has_light_queues and data.find(_DISPATCHED_TO) >= 0:
                    self._take_light(columns, topics, data)
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
        shown = np.isin(rows["sys_flag"] & flags.TRANSACTION_MASK, _SHOWN)
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
                wanted += np.flatnonzero(
                    behind & (rows["commit_log_offset"] >= reach.begin)
                ).tolist()
        for row in sorted(wanted):
            topic = topics.names[int(rows["topic_id"][row])].decode("utf-8", "replace")
            first = int(firsts[row])
            record = TailMessage(
                first, first + int(counts[row]), int(rows["commit_log_offset"][row]),
                int(rows["record_size"][row]), int(rows["store_timestamp"][row]),
            )  # fmt: skip
            self._found.append((QueueName(topic, int(rows["queue_id"][row])), record))

    def _take_light(self, columns: Columns, topics: TopicTable, data: bytes) -> None:
        """Takes what light queues do not reach."""
        for row in range(columns.count):
            start = columns.properties_at[row]
            raw = data[start : start + columns.properties_size[row]]
            kind = columns.sys_flag[row] & flags.TRANSACTION_MASK
            if _DISPATCHED_TO not in raw or kind not in _SHOWN:
                continue
            topic = topics.names[columns.topic_id[row]].decode("utf-8", "replace")
            for light, offset in light_offsets(raw) if names.allows_lmq(topic) else ():
                name = QueueName(light, names.LMQ_QUEUE_ID)
                reach = self._reach(name)
                at = columns.commit_log_offset[row]
                if reach is None or offset < reach.end or at < reach.begin:
                    continue
                record = TailMessage(
                    offset, offset + 1, at, columns.record_size[row], columns.store_timestamp[row]
                )
                self._found.append((name, record))

    def _reach(self, name: QueueName) -> _Reach | None:
        """How far a queue's units go; None for a queue that is not to be."""
        if name not in self._reaches:
            self._reaches[name] = self._find_reach(name)
        return self._reaches[name]

    def _find_reach(self, name: QueueName) -> _Reach | None:
        if name.queue > _QUEUE_MAX or not names.is_stored_topic(name.topic):
            return None
        deleted_below = self._deleted_below.get(name.topic, 0)
        with contextlib.suppress(NotFoundError):
            queue = self._store.queue(*name)
            end, at = queue.bounds()[1], queue.last_place()
            if at >= 0:
                return _Reach(end, at, max(at + 1, deleted_below))
        return _Reach(self.ends.get(name, 0), -1, deleted_below)

    def _deleted(self) -> set[str]:
        """Topics without queues that the configuration lacks, as a start of the store takes it.

        What was deleted is older than the configuration; a topic with a message that is not was
        lost from it with the power, and a broker makes it known again. See
        `oberth.store.deleted_topics`.
        """
        if self._topics is None or not self._knows_queues():
            return set()
        unknown = {
            name.topic
            for name, reach in self._reaches.items()
            if reach is not None and reach.at < 0 and name.topic not in self._topics
            if name.topic not in self._queued
        }
        newest = dict.fromkeys(unknown, -1)
        for name, record in self._found:
            if name.topic in newest:
                newest[name.topic] = max(newest[name.topic], record.timestamp)
        return {topic for topic, time in newest.items() if time < self._topics_ms}

    def _knows_queues(self) -> bool:
        """Whether a topic of the configuration has messages in a queue."""
        return any(
            self._store.queue(topic, queue).bounds()[1] > 0
            for topic in sorted(self._queued & (self._topics or set()))
            if not names.is_system_topic(topic)
            for queue in self._store.queue_ids(topic)
        )

    def placed(self) -> LogTail:
        """The records that go on where their queues end, and what is missing between.

        A queue without units may be of a topic that was deleted and made again: there a record
        behind a gap may be of its former life.
        """
        tail = LogTail()
        ends: dict[QueueName, int] = {}
        deleted = self._deleted()
        for name, record in self._found:
            if name.topic in deleted:
                continue
            reach = self._reaches[name]
            assert reach is not None
            end = ends.get(name, reach.end)
            if name in tail.left_out or record.end <= end:
                continue
            may_lack = reach.at >= 0 or self.knows_start
            if record.first < end or (record.first > end and not may_lack):
                tail.left_out[name] = (
                    f"the log has offset {record.first} at {record.at}, its ConsumeQueue ends at "
                    f"{end}"
                )
                continue
            if record.first > end:
                tail.gaps.setdefault(name, []).append((end, record.first))
            ends[name] = record.end
            tail.messages.setdefault(name, []).append(record)
        return tail


def _known_topics(store: LogOfStore) -> tuple[set[str] | None, int]:
    """The topics of the configuration, None where there is none, and when it was changed last."""
    with contextlib.suppress(ConfigFormatError):
        parsed = store.config("topics.json")
        parsed = parsed if isinstance(parsed, dict) else {}
        table, version = parsed.get("topicConfigTable"), parsed.get("dataVersion")
        if isinstance(table, dict):
            changed = version.get("timestamp") if isinstance(version, dict) else None
            return set(table), changed if isinstance(changed, int) else _TIME_MAX
    return None, 0
