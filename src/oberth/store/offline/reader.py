"""Reads a store's files without opening the store: by range, queue, key, id and time.

Takes no lock and writes nothing, so a broker, ours or Java's, may be writing meanwhile: maps are
shared and show what was written, `refresh` finds new files, and a record counts as soon as all of
it is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from oberth.errors import FormatError, NotFoundError, RecordError, StoreError
from oberth.formats.batch_consume_queue import UNIT_SIZE as BATCH_UNIT_SIZE
from oberth.formats.broker_conf import Line, MessageStoreConfig
from oberth.formats.consume_queue import ConsumeQueueUnit
from oberth.formats.delay_level import DELAY_MAX_MS, parse_delay_levels
from oberth.formats.message import (
    SCHEDULE_TOPIC,
    STORE_TIMESTAMP_END_MAX,
    MessageExt,
    decode_record,
    store_timestamp_at,
)
from oberth.formats.message_id import OFFSET_ID_LENGTHS, decode_offset_message_id
from oberth.store.files import OsFileSystem
from oberth.store.offline.index_view import LATEST_MS, IndexView, candidates
from oberth.store.offline.layout import IndexShape, QueueKey, StoreLayout, discover
from oberth.store.offline.log_walk import (
    Damage,
    DamagedRecord,
    LogEnd,
    LogItem,
    body_ok,
    find_end,
    find_valid,
    lacks_properties,
    walk,
)
from oberth.store.offline.queue_view import BatchQueueView, QueueView
from oberth.store.offline.segments import SegmentStream
from oberth.store.offset_by_time import batch_offset_at_boundary
from oberth.store.retention import load_floors

_DELAY_SAMPLES: Final = 8


class StoreReader:
    """A store directory opened for reading.

    Lifecycle: ``with StoreReader(path) as reader``; ``refresh()`` to see what was written since.
    One thread at a time. It does not promise that a record is still there later: a broker deletes
    old segments (a map that is open keeps its bytes).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        entries: Mapping[str, str] | None = None,
        *,
        layout: StoreLayout | None = None,
    ) -> None:
        """Opens a store.

        Args:
            root: the store root.
            entries: options by their Java names, see `layout.discover`.
            layout: what `discover` found, if the caller has it already.

        Raises:
            NotFoundError: no store there.
            OptionError: an unknown option or a wrong value.
            StoreError: it cannot be read.
        """
        self.layout = discover(root, entries) if layout is None else layout
        self.log = SegmentStream(
            self.layout.commit_log,
            self.layout.config.mapped_file_size_commit_log,
            in_use=self.layout.abort,
        )
        self.log.size_at = self._size_at
        self._end: LogEnd | None = None
        self._queues: dict[QueueKey, QueueView] = {}
        self._index: list[IndexView] | None = None
        self._delays: tuple[int, ...] | None = None
        self.floors = load_floors(OsFileSystem(), self.layout.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps everything; slices that are still held stay valid."""
        self.log.close()
        for view in self._queues.values():
            view.close()
        self._queues.clear()
        for index in self._index or ():
            index.close()
        self._index = None

    def refresh(self) -> None:
        """Lists the directory again, so that new segments, queues and index files are seen."""
        self.layout = discover(self.layout.root, self.layout.config_entries)
        self.log.update(self.layout.commit_log)
        self.log.in_use = self.layout.abort
        for view in self._queues.values():
            view.close()
        self._queues.clear()
        for index in self._index or ():
            index.close()
        self._index = None
        self._end = None
        self.floors = load_floors(OsFileSystem(), self.layout.root)

    @property
    def line(self) -> Line:
        """Which line of RocketMQ wrote the store."""
        return self.layout.line

    @property
    def min_offset(self) -> int:
        """CommitLog offset of the first byte that is still there."""
        return self.log.start

    @property
    def log_end(self) -> LogEnd:
        """Where the log ended when this was first asked since opening or `refresh`."""
        if self._end is None:
            self._end = find_end(self.log)
        return self._end

    @property
    def max_offset(self) -> int:
        """CommitLog offset after the last record; a lower bound while somebody writes."""
        return self.log_end.offset

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """Milliseconds by delay level: as configured, else as the schedule topic's queues show."""
        if self._delays is None:
            self._delays = self._find_delays()
        return self._delays

    def engine_config(self) -> MessageStoreConfig:
        """Options for opening the store itself: as given, the rest as its files tell."""
        config = replace(self.layout.config)
        delays = self.delays_ms
        if "messageDelayLevel" not in self.layout.given and delays != parse_delay_levels(
            config.message_delay_level
        ):
            config.message_delay_level = " ".join(f"{delay // 1000}s" for delay in delays[1:])
        return config

    def use_delays(self, delays_ms: tuple[int, ...]) -> None:
        """Sets the delay levels, for a copy of a store where they were found out already."""
        self._delays = delays_ms

    def walk(self, start: int | None = None) -> Iterator[LogItem]:
        """Records and damage in the order of the log, see `log_walk.walk`."""
        return walk(self.log, start)

    def messages(self, start: int | None = None, stop: int | None = None) -> Iterator[MessageExt]:
        """The valid records that start in [start, stop)."""
        for item in walk(self.log, start):
            if isinstance(item, MessageExt):
                if stop is not None and item.commit_log_offset >= stop:
                    return
                yield item
            elif stop is not None and isinstance(item, Damage) and item.start >= stop:
                return

    def record_at(self, offset: int) -> MessageExt:
        """The record that starts at a CommitLog offset; a failed checksum does not matter here.

        Raises:
            NotFoundError: no record starts there.
        """
        index = self.log.index_of(offset)
        if index is None:
            raise NotFoundError(
                f"CommitLog offset {offset}: the log has {self.log.start} to {self.log.end}"
            )
        opened = self.log.map(index)
        try:
            return decode_record(opened.view, offset - opened.segment.start, at=offset)
        except RecordError as error:
            raise NotFoundError(f"CommitLog offset {offset}: {error}") from None

    def is_whole(self, message: MessageExt) -> bool:
        """Whether a record of this log is what was put, as far as its bytes tell."""
        index = self.log.index_of(message.commit_log_offset) if self.log.in_use else None
        lacks = index is not None and lacks_properties(self.log.map(index), message)
        return body_ok(message) and not lacks

    def record_named(self, offset: int) -> MessageExt:
        """The record at an offset that somebody names: an id, or a position that was typed.

        A body can hold bytes that look like a record and name their own place. It has to be the
        one that its queue shows, or the records from the segment's start on have to lead there.

        Raises:
            NotFoundError: no record starts there.
        """
        message = self.record_at(offset)
        if message.commit_log_offset != offset:
            raise NotFoundError(f"CommitLog offset {offset}: the record names another place")
        if not self._is_shown(message) and self.first_record(offset) != offset:
            raise NotFoundError(f"CommitLog offset {offset} lies inside another record")
        return message

    def _is_shown(self, message: MessageExt) -> bool:
        key = QueueKey(message.topic, message.queue_id)
        if key not in self.layout.queues:
            return False
        offset = message.queue_offset
        unit = self.queue(*key).unit(offset) if offset >= 0 else None
        return unit is not None and unit[:2] == (message.commit_log_offset, message.record_size)

    def first_record(self, offset: int) -> int | None:
        """The offset of the first record or damage at or behind a place; None behind the log's end.

        The walk begins at the segment's start: what looks like a record may be part of a body.
        """
        index = self.log.index_of(offset)
        if index is None:
            return None
        for item in walk(self.log, self.log.segments[index].start):
            if isinstance(item, Damage):
                at = item.start
            else:
                message = item.message if isinstance(item, DamagedRecord) else item
                at = message.commit_log_offset
            if at >= offset:
                return at
        return None

    def store_timestamp(self, offset: int, size: int) -> int:
        """Store time of the record at an offset, -1 where the log does not have it."""
        if size < STORE_TIMESTAMP_END_MAX:
            return -1
        raw = self.log.read(offset, size)
        return -1 if raw is None else store_timestamp_at(raw, 0)

    # Queues

    def queue_keys(self) -> list[QueueKey]:
        """All queues that have a ConsumeQueue directory, in order."""
        return sorted(self.layout.queues)

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """A ConsumeQueue.

        Raises:
            NotFoundError: it has no directory.
        """
        key = QueueKey(topic, queue_id)
        view = self._queues.get(key)
        if view is None:
            files = self.layout.queues.get(key)
            if files is None:
                raise NotFoundError(f"no ConsumeQueue of topic {topic!r}, queue {queue_id}")
            ext_files = self.layout.ext_queues.get(key)
            ext = None
            if ext_files is not None:
                size = self.layout.config.mapped_file_size_consume_queue_ext
                ext = SegmentStream(ext_files.segments, size)
            size = self.layout.config.consume_queue_file_size
            view = self._queues[key] = QueueView(files, size, ext)
        return view

    def _size_at(self, commit_log_offset: int) -> int | None:
        for key in self.queue_keys():
            view = self.queue(key.topic, key.queue_id)
            stop = view.end_offset()
            at = view.min_offset(commit_log_offset, stop)
            unit = view.unit(at) if at < stop else None
            if unit is not None and unit.commit_log_offset == commit_log_offset:
                return unit.record_size
        return None

    def batch_queue(self, topic: str, queue_id: int) -> BatchQueueView:
        """A BatchConsumeQueue; the caller closes it.

        Raises:
            NotFoundError: it has no directory.
        """
        files = self.layout.batch_queues.get(QueueKey(topic, queue_id))
        if files is None:
            raise NotFoundError(f"no BatchConsumeQueue of topic {topic!r}, queue {queue_id}")
        return BatchQueueView(files, self.layout.config.batch_consume_queue_file_size)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Smallest queue offset that can be read, and the one after the last.

        What was purged or is older than its topic's reserve.time cannot be read by its queue.

        Raises:
            NotFoundError: the queue has no directory.
        """
        log_start = max(self.min_offset, self.floors.get((topic, queue_id), 0))
        if QueueKey(topic, queue_id) in self.layout.batch_queues:
            first = last = None
            view = self.batch_queue(topic, queue_id)
            try:
                for unit in view.units(self.max_offset):
                    if first is None and unit.commit_log_offset >= log_start:
                        first = unit.message_base_offset
                    last = unit.next_offset
            finally:
                view.close()
            if last is None:
                return -1, 0
            return (last if first is None else first), last
        queue = self.queue(topic, queue_id)
        end = queue.end_offset(self.max_offset)
        return queue.min_offset(log_start, end), end

    def queue_messages(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, ConsumeQueueUnit, MessageExt | None]]:
        """Queue offsets of [start, stop) with their units and records (None: it is not there)."""
        low, high = self.queue_range(topic, queue_id)
        queue = self.queue(topic, queue_id)
        high = high if stop is None else min(stop, high)
        for offset, unit in queue.units(max(start, low), high):
            message = None
            with suppress(NotFoundError):
                message = self.record_at(unit.commit_log_offset)
            yield offset, unit, message

    # Keys, ids, times

    def index_files(self) -> Sequence[IndexView]:
        """The index files, oldest first; one that is too short for its shape is left out."""
        if self._index is None:
            opened = []
            for segment in self.layout.index_files if self.layout.index_readable else ():
                view = IndexView(segment, self.layout.index_shape)
                if view.usable:
                    opened.append(view)
                else:
                    view.close()
            self._index = opened
        return self._index

    @property
    def index_shape(self) -> IndexShape:
        """How the index files are divided."""
        return self.layout.index_shape

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = 32,
        begin_ms: int = 0,
        end_ms: int = LATEST_MS,
        index_type: str | None = None,
        any_key: bool = False,
    ) -> list[MessageExt]:
        """The newest messages of a topic that have a key, oldest first.

        The index is asked and the keys are compared; where a store has no index files the log is
        read instead.

        Args:
            topic: where to look.
            key: one of KEYS, or a UNIQ_KEY.
            max_num: at most so many messages.
            begin_ms: stored at or after; the index knows times to the second only.
            end_ms: stored at or before.
            index_type: ``K`` only keys, ``U`` only unique keys, ``T`` tags (5.x); None for K and U.
            any_key: what only shares the key's hash counts too, as RocketMQ answers.
        """
        files = self.index_files()
        if not files:
            found = [
                message
                for message in self.messages()
                if message.topic == topic
                and begin_ms <= message.store_timestamp <= end_ms
                and has_key(message, key, index_type)
            ]
            return found[-max_num:]
        messages: list[MessageExt] = []
        seen: set[int] = set()
        for offset in candidates(files, topic, key, begin_ms, end_ms, index_type):
            # After a crash RocketMQ indexes the same record twice.
            if offset in seen:
                continue
            seen.add(offset)
            with suppress(NotFoundError):
                message = self.record_at(offset)
                if any_key or (message.topic == topic and has_key(message, key, index_type)):
                    messages.append(message)
            if len(messages) >= max_num:
                break
        messages.reverse()
        return messages

    def by_id(self, message_id: str, topic: str | None = None) -> MessageExt:
        """The message with an id: the broker's offsetMsgId, or the client's UNIQ_KEY.

        Both have the same form. An id whose offset leads to a record of the same store host is the
        broker's; otherwise the index is asked, for one topic or for all that have a queue.

        Raises:
            NotFoundError: no message has this id.
            FormatError: the text is no id.
        """
        if len(message_id) in OFFSET_ID_LENGTHS:
            decoded = decode_offset_message_id(message_id)
            with suppress(NotFoundError):
                message = self.record_named(decoded.commit_log_offset)
                if message.store_host == decoded.store_host:
                    return message
        elif not message_id or len(message_id) > 1024:
            raise FormatError(f"message id of {len(message_id)} characters, allowed are 1 to 1024")
        if self.index_files():
            topics = [topic] if topic is not None else self.topics()
            for each in topics:
                for message in self.by_key(each, message_id, max_num=64):
                    if message.uniq_key == message_id:
                        return message
        else:
            for message in self.messages():
                if message.uniq_key == message_id and topic in (None, message.topic):
                    return message
        raise NotFoundError(f"no message has the id {message_id}")

    def topics(self) -> list[str]:
        """Topics that have a queue directory, in order."""
        return sorted({key.topic for key in (*self.layout.queues, *self.layout.batch_queues)})

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "LOWER"
    ) -> int:
        """The queue offset at a time, as RocketMQ 5.x answers it.

        LOWER is the first message stored at or after the time (one after the last if there is
        none), UPPER the last one stored at or before it. The answer lies within the queue's range.
        Of batches: see `oberth.store.offset_by_time`.

        Raises:
            NotFoundError: the queue has no directory.
        """
        lower = boundary != "UPPER"
        if QueueKey(topic, queue_id) in self.layout.batch_queues:
            return self._batch_offset_by_time(topic, queue_id, timestamp_ms, lower)
        low, end = self.queue_range(topic, queue_id)
        queue = self.queue(topic, queue_id)
        first, last = low, end
        while first < last:
            middle = (first + last) // 2
            unit = queue.unit(middle)
            stored = (
                -1
                if unit is None
                else self.store_timestamp(unit.commit_log_offset, unit.record_size)
            )
            if stored < timestamp_ms or (not lower and stored == timestamp_ms):
                first = middle + 1
            else:
                last = middle
        if lower:
            return first
        return max(low, first - 1)

    def _batch_offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, lower: bool
    ) -> int:
        """The beginning of a batch, see `oberth.store.offset_by_time`."""
        low, end = self.queue_range(topic, queue_id)
        view = self.batch_queue(topic, queue_id)
        try:
            units = list(view.units(self.max_offset))
            per_file = view.stream.file_size // BATCH_UNIT_SIZE
            files = [
                range(start, min(start + per_file, len(units)))
                for start in range(0, len(units), per_file)
            ]
            found = batch_offset_at_boundary(
                files, units.__getitem__, timestamp_ms, upper=not lower
            )
        finally:
            view.close()
        return min(max(found, low), end)

    def batch_at(self, topic: str, queue_id: int, queue_offset: int) -> MessageExt | None:
        """The batch that holds a queue offset of a batch queue; None if its record is not there."""
        view = self.batch_queue(topic, queue_id)
        try:
            for unit in view.units(self.max_offset):
                if unit.message_base_offset <= queue_offset < unit.next_offset:
                    with suppress(NotFoundError):
                        return self.record_at(unit.commit_log_offset)
        finally:
            view.close()
        return None

    def first_record_at_or_after(self, offset: int) -> int | None:
        """CommitLog offset of the first valid record that starts at or after an offset."""
        start = max(offset, self.log.start)
        index = self.log.index_of(start)
        while index is not None and index < len(self.log.segments):
            opened = self.log.map(index)
            position = max(0, start - opened.segment.start)
            found = find_valid(opened, position)
            if found is not None:
                return opened.segment.start + found
            index += 1
        return None

    def _find_delays(self) -> tuple[int, ...]:
        delays = list(parse_delay_levels(self.layout.config.message_delay_level))
        if "messageDelayLevel" in self.layout.given:
            return tuple(delays)
        shown: dict[int, int] = {}
        for key in self.layout.queues:
            if key.topic != SCHEDULE_TOPIC:
                continue
            samples: list[int] = []
            for _, unit, message in self.queue_messages(key.topic, key.queue_id):
                if message is not None and message.topic == SCHEDULE_TOPIC:
                    delay = unit.tags_code - message.store_timestamp
                    if 0 < delay <= DELAY_MAX_MS:  # else a time is damaged
                        samples.append(delay)
                if len(samples) == _DELAY_SAMPLES:
                    break
            if samples:
                shown[key.queue_id + 1] = max(set(samples), key=samples.count)
        if all(level < len(delays) and delays[level] == shown[level] for level in shown):
            return tuple(delays)
        # Another table than Java's: it ends with the highest level that is known.
        highest = max(shown)
        return (0, *(shown.get(level, 0) for level in range(1, highest + 1)))


def has_key(message: MessageExt, key: str, index_type: str | None = None) -> bool:
    """Whether a message has a key: any of KEYS, its UNIQ_KEY, or with type T its tags."""
    if index_type == "T":
        return message.tags == key
    if index_type in (None, "U") and message.uniq_key == key:
        return True
    return index_type in (None, "K") and key in (message.keys or "").split(" ")


def damaged(items: Iterator[LogItem]) -> Iterator[Damage]:
    """The damage alone; a damaged record is a range as long as itself."""
    for item in items:
        if isinstance(item, Damage):
            yield item
        elif isinstance(item, DamagedRecord):
            start = item.message.commit_log_offset
            yield Damage(start, start + item.message.record_size, item.reason)


def require_messages(reader: StoreReader) -> None:
    """Raises StoreError where a store has no CommitLog at all.

    Raises:
        StoreError: there is not one segment.
    """
    if not reader.log.segments:
        raise StoreError(f"{reader.layout.root}: the CommitLog has no segment")
