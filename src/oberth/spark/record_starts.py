"""Where records of a CommitLog begin: what a queue proves, or the walk from the segment's start.

A body may hold anything, records that name their own place too: a producer can foresee where its
message will lie. So no bytes are a record because they look like one. A place counts

    1. if it is a segment's start, or where a record that counts ends;
    2. if the unit of its queue offset names it: brokers write units, producers do not.

Behind damage the chain is torn. There a record that no queue tells of counts as well, unless its
queue shows another place for its offset: without queues that is all there is to go by.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from oberth.errors import NotFoundError
from oberth.formats import sys_flag as flags
from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    BODY_LENGTH,
    COMMIT_LOG_OFFSET,
    COMMIT_LOG_OFFSET_POSITION,
    FIXED,
    FIXED_SIZE_V1,
    HOST_BITS,
    MAGIC,
    MAGIC_POSITION,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECORD_SIZE,
    SYS_FLAG,
    SYS_FLAG_POSITION,
    TOPIC_LENGTH_SIZE,
    TOPIC_LENGTH_V2_MAX,
    NotRecord,
    record_parts,
    stated_size,
)
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import find_record, scan
from oberth.spark.segments import RECORD_SIZE_MAX, Segment
from oberth.spark.storage import Storage

# How far before a place a record is looked for that a queue knows, and how many are tried each
# time: where bodies are full of false ones, the walk from the segment's start is the quicker way.
_WINDOWS: Final = (32 << 10, 1 << 20, 16 << 20)
_TRIES: Final = 16
_QUEUES_MAX: Final = 256
_FIND_WINDOW: Final = 4 << 10
_FIND_WINDOW_MAX: Final = 16 << 20
_WALK_SIZE: Final = 1 << 20
_ROWS: Final = 8192
_HEAD_SIZE: Final = SYS_FLAG_POSITION + 4
"""What a record has to show for its place and size to be known: up to its own offset."""
_REST_MAX: Final = TOPIC_LENGTH_V2_MAX + 65_535
"""Bytes of topic and properties at most, without their lengths."""
_MAGICS: Final = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))


class Start(NamedTuple):
    """Where the first record at or after a place begins, and what kept it from beginning earlier.

    Attributes:
        offset: CommitLog offset; the segment's end if none follows in it.
        damage: the offset where damage begins that reaches over the place, None if there is none.
    """

    offset: int
    damage: int | None = None


class Queue(Protocol):
    """What is asked of a queue."""

    def shows(self, offset: int, at: int, size: int) -> bool | None:
        """Whether a unit of a queue offset names a record at a place; None where there is none."""


class QueuedLog(Protocol):
    """What is asked of a store's files."""

    @property
    def storage(self) -> Storage:
        """Reads them."""

    def segment_of(self, offset: int) -> Segment | None:
        """The CommitLog segment that holds an offset."""

    def read_log(self, offset: int, size: int) -> bytes:
        """Bytes of the CommitLog."""

    def written_end(self, segment: Segment) -> int:
        """The offset after the last byte of a segment that is not zero."""

    def has_queues(self) -> bool:
        """Whether the store has any ConsumeQueue."""

    def queue(self, topic: str, queue: int) -> Queue:
        """A queue; NotFoundError if the store has no such topic."""


class RecordStarts:
    """Finds where records begin. Remembers listings of queues: make one per task or question."""

    def __init__(self, store: QueuedLog, *, check_crc: bool = True) -> None:
        """Prepares.

        Args:
            store: whose log.
            check_crc: whether a record after damage has to pass its checksum.
        """
        self._store = store
        self._check_crc = check_crc
        self._queues: dict[tuple[bytes, int], Queue | None] = {}
        self._columns: Columns | None = None

    def first(self, segment: Segment, at: int) -> Start:
        """The first record that begins at or after a place of a segment.

        Raises:
            NotFoundError: the segment was deleted.
        """
        if at <= segment.start:
            return Start(segment.start)
        return self._walk(segment, self.known_before(segment, at), at)

    def is_start(self, at: int) -> bool:
        """Whether a record begins at a CommitLog offset."""
        segment = self._store.segment_of(at)
        if segment is None:
            return False
        try:
            size = stated_size(self._store.read_log(at, 4))
            if not FIXED_SIZE_V1 <= size <= RECORD_SIZE_MAX:
                return False
            data = self._store.read_log(at, size)
            found = None
            if find_record(data, base=at, stop=1, check_crc=False) == 0:
                found = self.verdict(data, 0, at)
            return found if found is not None else self.first(segment, at).offset == at
        except NotFoundError:
            return False

    def known_before(self, segment: Segment, at: int) -> int:
        """A place at or before another where a record begins: a queue's, else the segment's start.

        Raises:
            NotFoundError: the segment was deleted.
        """
        if not self._store.has_queues():
            return segment.start
        for window in _WINDOWS:
            low = at - window
            if low <= segment.start:
                break
            data = self._store.storage.read(segment.path, low - segment.start, window)
            place = self.first_shown(data, low)
            if place is not None:
                return low + place
        return segment.start

    def first_shown(self, data: bytes, base: int) -> int | None:
        """The position in data of the first record that its queue shows, of a few that are tried.

        Args:
            data: bytes of the log.
            base: CommitLog offset of the first of them.
        """
        place = 0
        for _ in range(_TRIES):
            found = find_record(data, base=base, start=place)
            if found is None:
                return None
            if self.verdict(data, found, base + found):
                return found
            place = found + 1
        return None

    def verdict(self, data: bytes | memoryview, place: int, at: int) -> bool | None:
        """Whether the queue of a record shows it: False if it shows another, None if none tells.

        Args:
            data: bytes with the whole record.
            place: where it begins in them.
            at: its CommitLog offset.
        """
        view = memoryview(data)
        parts = record_parts(view, place, len(view), at, RECORD_SIZE_MAX)
        if isinstance(parts, NotRecord):
            return False
        fixed, _, topic_at, topic_end, _ = parts
        if fixed[SYS_FLAG] & flags.TRANSACTION_MASK not in _SHOWN:
            return None  # no queue has those
        topic = bytes(view[topic_at:topic_end])
        queue = self._queue(topic, fixed[QUEUE_ID])
        return None if queue is None else queue.shows(fixed[QUEUE_OFFSET], at, fixed[RECORD_SIZE])

    def _queue(self, topic: bytes, queue_id: int) -> Queue | None:
        key = topic, queue_id
        if key not in self._queues:
            if len(self._queues) >= _QUEUES_MAX:
                self._queues.clear()
            try:
                self._queues[key] = self._store.queue(topic.decode("utf-8", "replace"), queue_id)
            except NotFoundError:
                self._queues[key] = None
        return self._queues[key]

    def _walk(self, segment: Segment, position: int, at: int) -> Start:
        """Goes from record to record, without looking into them."""
        if self._columns is None:
            self._columns = Columns(_ROWS, ("record_size",))
        topics = TopicTable()
        storage = self._store.storage
        size = _WALK_SIZE
        while position < at:
            view = storage.view(segment.path, segment.size)
            base = segment.start
            if view is None:
                view = memoryview(storage.read(
                    segment.path, position - base, min(size, segment.end - position)
                ))  # fmt: skip
                base = position
            self._columns.clear()
            ended = scan(
                view, self._columns, topics, base=base, start=position - base,
                stop=min(at - base, len(view)), record_size_max=RECORD_SIZE_MAX, crc=CrcMode.NONE,
            )  # fmt: skip
            moved = base + ended.position > position
            position = base + ended.position
            if ended.end in (ScanEnd.STOP, ScanEnd.FULL):
                continue
            if ended.end is ScanEnd.TRUNCATED and base + len(view) < segment.end:
                if moved:
                    size = _WALK_SIZE
                    continue
                claimed = stated_size(view)
                if size < claimed <= RECORD_SIZE_MAX:
                    size = claimed
                    continue
            following = self.after_damage(segment, position)
            if following is None:
                return Start(segment.end, position)
            if following >= at:
                return Start(following, position)
            position = following
        return Start(position)

    def after_damage(self, segment: Segment, at: int, written: int | None = None) -> int | None:
        """The first record of a segment after a place where none is; None if none follows.

        A record whose head is right and that reaches over all that was written is the newest one:
        its writer is in the middle of it, or never came to its end. What lies in it is its body.

        Args:
            segment: where.
            at: CommitLog offset where no record is.
            written: after the last byte that is not zero, None to look for it.

        Raises:
            NotFoundError: the segment was deleted.
        """
        storage = self._store.storage
        if written is None:
            written = self._store.written_end(segment)
        if at >= written:
            return None
        head = storage.read(segment.path, at - segment.start, min(_HEAD_SIZE, segment.end - at))
        if len(head) >= BLANK.size and BLANK.unpack_from(head) == (segment.end - at, BLANK_MAGIC):
            return None  # nothing comes after the blank that ends a segment
        ends = self._claimed_ends(segment, at, head)
        for end in ends:
            if at < end < segment.end and self.may_follow(segment, end):
                return end
        if ends and written <= ends[-1] <= segment.end:
            return None
        return self._search(segment, at + 1, written)

    def _claimed_ends(self, segment: Segment, at: int, head: bytes) -> tuple[int, ...]:
        """Where a record that is not whole ends: as its lengths say, and as its size says.

        Empty if its head is none, or if the size cannot be right with its body's.
        """
        if len(head) < _HEAD_SIZE or head[4:8] not in _MAGICS:
            return ()
        fields = FIXED[head[SYS_FLAG_POSITION + 3] & HOST_BITS]
        storage, start = self._store.storage, at - segment.start
        raw = storage.read(segment.path, start, fields.size)
        if len(raw) < fields.size:
            return ()
        values = fields.unpack(raw)
        size, own, body_size = values[RECORD_SIZE], values[COMMIT_LOG_OFFSET], values[BODY_LENGTH]
        width = TOPIC_LENGTH_SIZE[values[MAGIC]]
        rest = size - fields.size - body_size - width - 2
        if own != at or body_size < 0 or not 0 <= rest <= _REST_MAX:
            return ()
        topic_at = start + fields.size + body_size
        topic_size = int.from_bytes(storage.read(segment.path, topic_at, width), "big")
        length_at = topic_at + width + topic_size
        by_lengths = length_at + 2
        by_lengths += int.from_bytes(storage.read(segment.path, length_at, 2), "big")
        return segment.start + by_lengths, at + size

    def may_follow(self, segment: Segment, at: int) -> bool:
        """Whether there is a record at a place, or the blank that ends the segment."""
        head = self._store.storage.read(segment.path, at - segment.start, BLANK.size)
        if len(head) < BLANK.size:
            return False
        size, magic = BLANK.unpack(head)
        if magic == BLANK_MAGIC:
            return bool(size == segment.end - at)
        if not FIXED_SIZE_V1 <= size <= min(RECORD_SIZE_MAX, segment.end - at):
            return False
        data = self._store.storage.read(segment.path, at - segment.start, size)
        if find_record(data, base=at, stop=1, check_crc=self._check_crc) is None:
            return False
        return self.verdict(data, 0, at) is not False

    def _search(self, segment: Segment, start: int, stop: int) -> int | None:
        """The first place before another that looks like a record and no queue speaks against."""
        storage = self._store.storage
        window = _FIND_WINDOW
        while start < stop:
            data = storage.read(
                segment.path, start - segment.start, min(window, segment.end - start)
            )
            found = find_record(data, base=start, check_crc=self._check_crc)
            cut_off = _cut_off_record(data, start, len(data) if found is None else found)
            if cut_off is not None and cut_off <= min(segment.end - start, RECORD_SIZE_MAX):
                window = cut_off
                continue
            if found is not None:
                if self.verdict(data, found, start + found) is not False:
                    return start + found
                start += found + 1
                continue
            if len(data) < window:
                return None
            start += len(data) - _HEAD_SIZE
            window = min(window * 4, _FIND_WINDOW_MAX)
        return None


_SHOWN: Final = (flags.TRANSACTION_NOT, flags.TRANSACTION_COMMIT)


def _cut_off_record(data: bytes, start: int, limit: int) -> int | None:
    """Up to where data would have to reach for the first record that begins before limit.

    None if no record that names its own place begins there and ends behind data.
    """
    first = None
    for magic in _MAGICS:
        at = data.find(magic, MAGIC_POSITION, limit + BLANK.size)
        while at >= 0:
            place = at - MAGIC_POSITION
            own_at = place + COMMIT_LOG_OFFSET_POSITION
            if data[own_at : own_at + 8] == (start + place).to_bytes(8, "big"):
                size = stated_size(data, place)
                if place < limit and place + size > len(data) and size <= RECORD_SIZE_MAX:
                    first = place + size if first is None else min(first, place + size)
                    break
            at = data.find(magic, at + 1, limit + BLANK.size)
    return first
