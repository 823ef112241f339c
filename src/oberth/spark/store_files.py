"""A store's files as readers of Spark see them: CommitLog segments, queues, and nothing opened for writing.

What is true whatever a writer does meanwhile:

    - a queue's units below the end of ``QueueFiles.bounds()`` are complete, and so are their records;
    - the CommitLog below ``StoreFiles.log_end()`` is complete;
    - neither comes back smaller for a later call, unless the store was truncated by a recovery;
    - files disappear from the front only (cleaning); what they held is gone, never changed.

RocketMQ makes files at full size in advance, so a file's size says nothing about how much of it is
written. CommitLog files are told from their names (20 digits); a topic becomes part of a path only
when a listing has shown a directory of that name.
"""  # noqa: E501 - the first line

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from oberth.errors import NotFoundError
from oberth.formats import message, paths
from oberth.formats.config_files import split_offset_key
from oberth.formats.config_json import parse_config
from oberth.formats.names import is_stored_topic
from oberth.formats.torn_record import SECTOR_SIZE, lacks_a_sector
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import find_record, scan
from oberth.spark.log_tail import LogTail, find_tail
from oberth.spark.queue_files import QueueFiles
from oberth.spark.record_starts import RecordStarts
from oberth.spark.segments import (
    RECORD_SIZE_MAX,
    QueueName,
    Segment,
    list_segments,
    segment_at,
    segments_of,
)
from oberth.spark.storage import Entry, Storage

# Blocks in which the end of a file is looked for, how many at once where the storage is far, and
# how far before it a record is.
_TAIL_BLOCK: Final = 64 << 10
_TAIL_BLOCK_MAX: Final = 4 << 20
_TAIL_BLOCKS_FAR: Final = 8
_TAIL_REACH: Final = 512 << 10
# A record can end in zeros: the length of empty properties, say.
_ZEROS_AT_END: Final = 64 << 10
_PROBE_SIZE: Final = 8 << 10
_PROBE_SIZE_MAX: Final = 8 << 20
_TOPICS_LISTED_TOGETHER: Final = 0.5
"""The share of a store's topics from which on all of its queues are listed in one go."""
_PLACES_MAX: Final = 64
"""Times whose places in the log are remembered."""


class OpenedRange(NamedTuple):
    """A range of a queue as it is found.

    Attributes:
        queue: its files.
        first: the number of the range's first unit.
        last: the number after its last.
        run: the first units, as `QueueFiles.read_run` gives them; None of an empty range.
    """

    queue: QueueFiles
    first: int
    last: int
    run: tuple[int, Any] | None


@dataclass(slots=True)
class StoreFiles:
    """The files of one store. Pickles; listings are taken anew where they matter.

    Attributes:
        storage: reads the files and counts the bytes.
        root: the store's directory (storePathRootDir).
        broker: what rows of this store say in the column broker.
        reads_tail: whether queues go on with what the log has after them, see `tail`.
        settled_end: the log's end as `settle` found it; what lies below is whole. 0 before it.
        end_guesses: by topic, how many units the newest file of the queue looked at last had.
    """

    storage: Storage
    root: str
    broker: str
    reads_tail: bool = False
    settled_end: int = field(default=0, repr=False)
    end_guesses: dict[str, int] = field(default_factory=dict, repr=False)
    _segments: list[Segment] | None = field(default=None, repr=False)
    _topics: dict[str, str] | None = field(default=None, repr=False)
    _tail: LogTail | None = field(default=None, repr=False)
    _last_tail: tuple[int, LogTail] | None = field(default=None, repr=False)
    # Files of queues by topic and queue, as one listing gave them; each is used once.
    _queue_files: dict[str, dict[int, list[Entry] | None]] = field(default_factory=dict, repr=False)
    _places: dict[int, int | None] = field(default_factory=dict, repr=False)

    def bare(self) -> StoreFiles:
        """The same store without what was listed, to be sent elsewhere."""
        return StoreFiles(self.storage, self.root, self.broker)

    def refresh(self) -> None:
        """Forgets what was listed, and which files paths were those of."""
        self.storage.renew()
        self._segments = None
        self._topics = None
        self._tail = None
        self.settled_end = 0
        self._queue_files.clear()
        self._places.clear()

    def settle(self) -> None:
        """Notes the log's end: units of many queues need no look at their newest records then."""
        self.settled_end = self.log_end()

    def tail(self, *, although_open: bool = False) -> LogTail | None:
        """What the log has behind the queues, of a store that was not closed and is not open.

        A running broker gives every record its unit in a moment; that is waited for.

        Args:
            although_open: look also where another process has the store open.
        """
        if not self.reads_tail:
            return None
        if self._tail is None or although_open:
            from oberth.store.offline.lock_state import is_locked

            plain = self.bare()
            is_closed = all(e.name != paths.ABORT for e in plain.storage.entries(plain.root))
            if is_closed or not plain.has_queues() or (is_locked(self.root) and not although_open):
                self._tail = LogTail()
            else:
                end = plain.log_end()
                # Nobody writes to it: what was found stays.
                if self._last_tail is None or self._last_tail[0] != end or although_open:
                    self._last_tail = end, find_tail(plain)
                self._tail = self._last_tail[1]
        return self._tail

    def segments(self) -> list[Segment]:
        """The CommitLog's segments, of all its directories.

        A store can keep its CommitLog elsewhere (storePathCommitLog); without ``commitlog`` every
        directory in the root that holds segments counts.

        Raises:
            StoreCorruptError: files overlap.
        """
        segments = self._segments
        if segments is None:
            directory = f"{self.root}/{paths.COMMIT_LOG}"
            entries = self.storage.entries(directory)
            if entries:
                segments = segments_of(directory, entries)
            else:
                known = {paths.CONSUME_QUEUE, paths.INDEX, paths.CONFIG, paths.TIMER_LOG}
                directories = [
                    f"{self.root}/{entry.name}"
                    for entry in self.storage.entries(self.root)
                    if entry.is_directory and entry.name not in known
                ]
                segments = list_segments(self.storage, *directories)
            self._segments = segments
        return segments

    def log_start(self) -> int:
        """The first offset of the CommitLog that is still there; 0 for none."""
        segments = self.segments()
        return segments[0].start if segments else 0

    def segment_of(self, offset: int) -> Segment | None:
        """The CommitLog segment that holds an offset; listings are renewed once if none does."""
        found = segment_at(self.segments(), offset)
        if found is None:
            self._segments = None
            found = segment_at(self.segments(), offset)
        return found

    def read_log(self, offset: int, size: int) -> bytes:
        """Bytes of the CommitLog, at most to the end of the segment that holds the offset.

        Raises:
            NotFoundError: no file holds the offset.
        """
        segment = self.segment_of(offset)
        if segment is None:
            raise NotFoundError(f"{self.root}: no CommitLog file holds offset {offset}")
        position = offset - segment.start
        return self.storage.read(segment.path, position, min(size, segment.size - position))

    def log_end(self) -> int:
        """The offset after the last whole record, which is stable: later calls give no less.

        The first bytes that are no valid record naming its own position end the log only if no
        such record follows in what can follow. In a log that is being written the newest record
        counts only when its last byte is there.
        """
        in_use = any(entry.name == paths.ABORT for entry in self.storage.entries(self.root))
        for segment in reversed(self.segments()):
            end = self._data_end_of(segment, in_use=in_use)
            if end is not None:
                return segment.start + end
        return self.log_start()

    def ends_at(self, offset: int) -> bool:
        """Whether nothing lies behind an offset that was the log's end: a look at four bytes."""
        segment = segment_at(self.segments(), offset)
        if segment is not None:
            path, position = segment.path, offset - segment.start
        elif self.segments():
            path, position = f"{self.segments()[-1].path.rpartition('/')[0]}/{offset:020d}", 0
        else:
            return False
        try:
            return not any(self.storage.read(path, position, 4))
        except NotFoundError:
            return segment is None  # else it was deleted: all has to be looked at

    def written_end(self, segment: Segment) -> int:
        """The offset after the last byte of a segment that is not zero."""
        return segment.start + self._last_written(segment)

    def _data_end_of(self, segment: Segment, *, in_use: bool) -> int | None:
        """The position after the last whole record of a segment, None if there is no record."""
        written = self._last_written(segment)
        starts = RecordStarts(self)
        reach = _TAIL_REACH
        while written > 0:
            place = segment.start + max(0, written - reach)
            begin: int | None = starts.first(segment, place).offset
            if place == segment.start and not starts.may_follow(segment, place):
                begin = starts.after_damage(segment, place, segment.start + written)
            if begin is not None and begin - segment.start < written:
                low = begin - segment.start
                high = min(segment.size, written + _ZEROS_AT_END)
                data = self.storage.read(segment.path, low, high - low)
                if find_record(data, base=begin, stop=1) == 0:
                    return low + _end_of_records(
                        data, segment, begin, segment.start + written, starts, in_use=in_use
                    )
            if place == segment.start:
                return None
            reach *= 4
        return None

    def _last_written(self, segment: Segment) -> int:
        """The position after the last byte that is not zero."""
        position = min(self.storage.data_end(segment.path, segment.size), segment.size)
        size = _TAIL_BLOCK
        while position > 0:
            together = _TAIL_BLOCKS_FAR if self.storage.is_far and size == _TAIL_BLOCK_MAX else 1
            ends = range(position, max(0, position - together * size), -size)
            lows = [max(0, end - size) for end in ends]
            blocks = self.storage.at_once(
                [
                    partial(self.storage.read, segment.path, low, end - low)
                    for low, end in zip(lows, ends, strict=True)
                ]
            )
            for low, block in zip(lows, blocks, strict=True):
                used = len(block.rstrip(b"\0"))
                if used:
                    return low + used
            position = lows[-1]
            size = min(size * 4, _TAIL_BLOCK_MAX)
        return 0

    def is_record(self, offset: int, size: int) -> bool:
        """Whether a whole record of that size that names its own position lies at an offset."""
        if not message.FIXED_SIZE_V1 <= size <= RECORD_SIZE_MAX:
            return False
        try:
            data = self.read_log(offset, size)
        except NotFoundError:
            return False
        if len(data) != size or find_record(data, base=offset, stop=1) != 0:
            return False
        segment = self.segment_of(offset)
        base = offset - segment.start if segment is not None else 0
        return not _lacks_a_sector(data, 0, message.decode_record(data), base)

    def spread_times(self, start: int, end: int, count: int) -> list[tuple[int, int]]:
        """Offsets and store times of up to ``count`` records spread over a range of the log.

        Of records that their queues show: what only looks like one may say any time.
        """
        found: list[tuple[int, int]] = []
        starts = RecordStarts(self)
        for number in range(count if self.has_queues() else 0):
            at = start + (end - start) * number // count
            segment = self.segment_of(at)
            if segment is None:
                continue
            data = self.read_log(at, _PROBE_SIZE)
            place = starts.first_shown(data, at)
            if place is not None:
                found.append((at + place, message.store_timestamp_at(data, place)))
        return found

    def topics(self) -> dict[str, str]:
        """Topics that have queues, and under which directory; BatchConsumeQueues too."""
        tail = self.tail()
        listed = self._listed()
        if tail is None or not tail.messages:
            return listed
        return {**{name.topic: paths.CONSUME_QUEUE for name in tail.messages}, **listed}

    def _listed(self) -> dict[str, str]:
        """`topics`, of which there are files."""
        if self._topics is None:
            found: dict[str, str] = {}
            kinds = (paths.CONSUME_QUEUE, paths.BATCH_CONSUME_QUEUE)
            listings = [partial(self.storage.entries, f"{self.root}/{kind}") for kind in kinds]
            for kind, entries in zip(kinds, self.storage.at_once(listings), strict=True):
                for entry in entries:
                    if entry.is_directory and is_stored_topic(entry.name):
                        found.setdefault(entry.name, kind)
            self._topics = found
        return self._topics

    def has_queues(self) -> bool:
        """Whether the store has any ConsumeQueue."""
        return bool(self._listed())

    def lacks_queues(self) -> bool:
        """Whether there are records and no ConsumeQueue, so that no queue shows any.

        Files of a CommitLog that has no record yet, or none any more, are no such store.
        """
        return not self.has_queues() and self.log_end() > self.log_start()

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic that have files or messages; none for an unknown topic."""
        kind = self.topics().get(topic)
        if kind is None:
            return []
        listed = self._queue_files.get(topic)
        if listed is None:
            self._take_listing(self.storage.tree(f"{self.root}/{kind}/{topic}"), kind, topic)
            listed = self._queue_files[topic]
        tail = self.tail()
        behind = (name.queue for name in (tail.messages if tail else ()) if name.topic == topic)
        return sorted({*listed, *behind})

    def list_queues(self, topics: Sequence[str]) -> None:
        """Lists the queues of several topics at once, where that takes fewer requests."""
        if len(topics) < _TOPICS_LISTED_TOGETHER * len(self._listed()):
            return
        for kind in set(self._listed().values()):
            by_topic: dict[str, list[Entry]] = {}
            for entry in self.storage.tree(f"{self.root}/{kind}"):
                topic, _, below = entry.name.partition("/")
                if below:
                    by_topic.setdefault(topic, []).append(Entry(below, entry.size))
            for topic in topics:
                if self._listed().get(topic) == kind:
                    self._take_listing(by_topic.get(topic, []), kind, topic)

    def _take_listing(self, entries: Sequence[Entry], kind: str, topic: str) -> None:
        """Keeps the files of a topic's queues, for `queue`."""
        files: dict[int, list[Entry]] = {}
        for entry in entries:
            number, _, name = entry.name.partition("/")
            queue_id = paths.queue_number(number)
            if queue_id is not None and (name or entry.is_directory):
                own = files.setdefault(queue_id, [])
                if name and "/" not in name:
                    own.append(Entry(f"{number}/{name}", entry.size))
        self._queue_files[topic] = {**files}

    def queue(self, topic: str, queue: int) -> QueueFiles:
        """A queue's files as they are now, or were when `queue_ids` listed them last.

        Raises:
            NotFoundError: the store has no such topic.
        """
        kind = self.topics().get(topic)
        if kind is None:
            raise NotFoundError(f"{self.root} has no queues of topic {topic!r}")
        name = QueueName(topic, queue)
        tail = self.tail()
        listed = self._queue_files.get(topic, {})
        files = listed.get(queue)
        if files is None:
            segments = list_segments(self.storage, f"{self.root}/{kind}/{topic}/{queue}")
        else:
            listed[queue] = None
            segments = segments_of(f"{self.root}/{kind}/{topic}", files)
        return QueueFiles(
            self,
            name,
            kind == paths.BATCH_CONSUME_QUEUE,
            segments,
            tail.messages.get(name, ()) if tail is not None else (),
            tail.gaps.get(name, ()) if tail is not None else (),
        )

    def list_where_far(self) -> None:
        """Lists log and topics at the same time, where one after the other would take longer."""
        if self.storage.is_far:
            self.storage.at_once([self.segments, self.topics])

    def open_ranges(
        self, ranges: Sequence[tuple[QueueName, int, int]], step: int
    ) -> list[OpenedRange | None]:
        """Ranges of queues with their first units; None for one whose topic is gone.

        Where the storage is far, all wait for their files at the same time.

        Args:
            ranges: queues, and of each the first offset and the one after the last.
            step: units at most to read of each.
        """
        self.list_where_far()
        return self.storage.at_once([partial(self._open_range, *each, step) for each in ranges])

    def _open_range(self, name: QueueName, start: int, end: int, step: int) -> OpenedRange | None:
        try:
            queue = self.queue(name.topic, name.queue)
        except NotFoundError:
            return None
        first, last = queue.numbers_of(start, end)
        run = queue.read_run(first, last, step) if first < last else None
        return OpenedRange(queue, first, last, run)

    def config(self, name: str) -> Any:
        """A file of the directory config as Java wrote it, or None.

        Raises:
            ConfigFormatError: it cannot be read.
        """
        entries = self.storage.entries(f"{self.root}/{paths.CONFIG}")
        for entry in entries:
            if entry.name == name and entry.size > 0:
                path = f"{self.root}/{paths.CONFIG}/{name}"
                return parse_config(self.storage.read(path, 0, entry.size), name=path)
        return None

    def group_offsets(self, group: str) -> dict[QueueName, int]:
        """Where a consumer group stands, by queue; config/consumerOffset.json."""
        parsed = self.config("consumerOffset.json")
        table = parsed.get("offsetTable") if isinstance(parsed, dict) else None
        found: dict[QueueName, int] = {}
        for key, queues in (table or {}).items():
            pair = split_offset_key(str(key))
            if pair is None or pair[1] != group or not isinstance(queues, dict):
                continue
            for queue, offset in queues.items():
                if str(queue).isdigit() and isinstance(offset, int):
                    found[QueueName(pair[0], int(queue))] = offset
        return found

    def store_timestamp(self, offset: int) -> int:
        """The store time of the record at an offset, ms.

        Raises:
            NotFoundError: the file is gone, or it ends before.
        """
        head = self.read_log(offset, 88)
        if len(head) < 88:
            raise NotFoundError(f"{self.root}: CommitLog offset {offset} is cut off")
        return message.store_timestamp_at(head, 0)

    def place_of_time(self, timestamp_ms: int) -> int | None:
        """About where the log's first record that was stored at or after a time lies.

        A guess by halving, which takes store times to be in order and what looks like a record for
        one; whoever asks looks at records of its own. None where the log shows no records.
        """
        if timestamp_ms not in self._places:
            if len(self._places) >= _PLACES_MAX:
                self._places.clear()
            self._places[timestamp_ms] = self._place_of_time(timestamp_ms)
        return self._places[timestamp_ms]

    def _place_of_time(self, timestamp_ms: int) -> int | None:
        segments = self.segments()
        low, high = 0, len(segments)  # the first segment that begins at or after the time
        while low < high:
            middle = (low + high) // 2
            found = self._record_after(segments[middle].start, segments[middle].end)
            if found is None or found[1] >= timestamp_ms:  # the newest segments may be empty
                high = middle
            else:
                low = middle + 1
        if low == 0:
            return segments[0].start if segments else None
        begin, end = segments[low - 1].start, segments[low - 1].end
        behind = end
        while begin < behind:
            middle = (begin + behind) // 2
            found = self._record_after(middle, end)
            if found is None or found[1] >= timestamp_ms:
                behind = middle
            elif found[0] < behind:
                begin = found[0] + 1
            else:  # nothing begins in the second half
                behind = middle
        found = self._record_after(begin, end)
        return found[0] if found is not None and found[1] >= timestamp_ms else end

    def _record_after(self, at: int, end: int) -> tuple[int, int] | None:
        """Place and store time of the first record from a place on, as far as a glance shows."""
        for size in (_PROBE_SIZE, _PROBE_SIZE_MAX):
            try:
                data = self.read_log(at, min(size, end - at))
            except NotFoundError:
                return None
            place = find_record(data, base=at)
            if place is not None and len(data) - place >= message.STORE_TIMESTAMP_END_MAX:
                return at + place, message.store_timestamp_at(data, place)
            if len(data) < size or not any(data):
                return None
        return None


def _end_of_records(
    data: bytes, segment: Segment, base: int, written: int, starts: RecordStarts, *, in_use: bool
) -> int:
    """Where the last whole record (or blank) of data ends; damage between records is passed.

    Args:
        data: bytes of the segment, from a record's first on.
        segment: the segment.
        base: CommitLog offset of the first byte.
        written: after the last byte of the segment that is not zero.
        starts: finds what follows damage.
        in_use: whether the last record may be one that is just being written, or that a crash
            took a sector from.
    """
    columns = Columns(8192, ("record_size",))
    topics = TopicTable()
    position = last = 0
    while True:
        columns.clear()
        ended = scan(data, columns, topics, base=base, start=position, crc=CrcMode.STOP)
        position = ended.position
        if ended.added:
            last = position - columns.record_size[columns.count - 1]
        if ended.end is ScanEnd.FULL:
            continue
        if ended.end is ScanEnd.BLANK:
            break
        if ended.end is not ScanEnd.STOP and position < len(data):
            following = starts.after_damage(segment, base + position, written)
            if following is not None and following - base < len(data):
                position = following - base
                continue
        break
    if in_use:
        record = message.decode_record(data, last)
        if ended.end is not ScanEnd.BLANK and record.ends_in_zeros:
            return last
        if _lacks_a_sector(data, last, record, base - segment.start):
            return last
    return position


def _lacks_a_sector(data: bytes, start: int, record: message.MessageExt, position: int) -> bool:
    """Whether a record in some data lacks a sector of its properties.

    The data is that at a position of its segment.
    """
    size = len(record.properties_raw)
    end = start + record.record_size
    return size >= SECTOR_SIZE and lacks_a_sector(data, start, end, size, base=position)


def iterate_queues(store: StoreFiles) -> Iterator[QueueName]:
    """Every queue of a store that has files."""
    for topic in sorted(store.topics()):
        for queue in store.queue_ids(topic):
            yield QueueName(topic, queue)
