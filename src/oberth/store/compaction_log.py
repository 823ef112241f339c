"""CompactionLog: what is kept of one queue of a compaction topic, the newest message of every key.

Two files make a segment, both of fixed size and named by the same offset: records one behind the
other in ``compaction/compactionLog/TOPIC/QUEUE/``, and in ``compaction/compactionCq/TOPIC/QUEUE/``
a unit for each of them (``formats.batch_consume_queue``, batch_size 1). Sealed segments end with a
blank in the log and with END_UNIT, if there is room, among the units.

What is always true: queue offsets grow from unit to unit, and have gaps where messages were
superseded; a record is as it was in the CommitLog, whose offset it keeps; the last segment, which
is written, is never compacted. The log follows the ConsumeQueue (`follow`): whatever it lacks is
copied from the CommitLog, so a crash costs nothing that is still there.

Compaction writes the kept records of all sealed segments anew into ``compacting/`` and syncs them.
The file ``compacting/ready`` then makes them count: from here on the replacement is finished by the
next start, if need be. RocketMQ: CompactionLog, SparseConsumeQueue.
"""

from __future__ import annotations

import json
import logging
import threading
from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from oberth.errors import RecordError, StoreCorruptError
from oberth.formats.batch_consume_queue import NOT_COMPACTED, UNIT, UNIT_SIZE
from oberth.formats.consume_queue import EXT_ADDRESS_MAX, PRE_BLANK_SIZE
from oberth.formats.consume_queue import UNIT as QUEUE_UNIT
from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    COMMIT_LOG_OFFSET_POSITION,
    DispatchRequest,
    decode_record,
    properties_at,
    read_dispatch_request,
    store_timestamp_at,
)
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.paths import segment_name, segment_start
from oberth.formats.properties import find_property
from oberth.formats.torn_record import lacks_a_sector
from oberth.store.commit_log import CommitLog
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.files import FileSystem
from oberth.store.mapped_file import MappedFile
from oberth.store.messages import GetMessageResult, GetMessageStatus, MessageFilter
from oberth.store.sync_guard import SyncGuard

_LOG: Final = logging.getLogger(__name__)

COMPACTION: Final = "compaction"
COMPACTION_LOG: Final = "compactionLog"
COMPACTION_QUEUE: Final = "compactionCq"
COMPACTING: Final = "compacting"
READY: Final = "ready"

END_UNIT: Final = UNIT.pack(-1, 0, 0, 0, 0, 0, NOT_COMPACTED, 0)
FOLLOW_COUNT: Final = 1_000
"""Messages that are copied in one go, while readers of the queue wait."""

KEYS_MAX: Final = 2_000_000
"""Different keys that one run looks at, some 150 bytes of memory each."""


def log_file_size(config: MessageStoreConfig) -> int:
    """Bytes of a segment's records: as RocketMQ rounds it, a multiple of the units' bytes."""
    units, wanted = unit_file_size(config), config.compaction_mapped_file_size
    count, rest = divmod(wanted, units)
    if count < 5:
        return units * 5
    return count * units if 0 < rest < units >> 1 else (count + 1) * units


def unit_file_size(config: MessageStoreConfig) -> int:
    """Bytes of a segment's units."""
    return config.compaction_cq_mapped_file_size // UNIT_SIZE * UNIT_SIZE


class Unit(NamedTuple):
    """What a segment knows of a message; see formats.batch_consume_queue."""

    position: int
    size: int
    tags_code: int
    store_timestamp: int
    queue_offset: int
    batch_size: int
    compacted_offset: int
    reserved: int


class Segment:
    """Records and their units."""

    __slots__ = ("count", "log", "units")

    def __init__(self, log: MappedFile, units: MappedFile) -> None:
        self.log = log
        self.units = units
        self.count = 0

    def unit(self, number: int) -> Unit:
        """One unit."""
        return Unit(*UNIT.unpack_from(self.units.buffer, number * UNIT_SIZE))

    def queue_offset(self, number: int) -> int:
        """The queue offset of one unit."""
        return self.unit(number).queue_offset

    def record(self, unit: Unit) -> memoryview | None:
        """The record of a unit."""
        return self.log.select(unit.position - self.log.start_offset, unit.size)

    @property
    def last_queue_offset(self) -> int:
        """Of the last message; -1 without any."""
        return self.queue_offset(self.count - 1) if self.count else -1

    def find(self, queue_offset: int) -> int:
        """The number of the first unit at or after a queue offset."""
        return bisect_left(range(self.count), queue_offset, key=self.queue_offset)

    def has_room(self, size: int) -> bool:
        """Whether a record, and what ends a segment after it, fit."""
        return (
            self.units.wrote_position + UNIT_SIZE < self.units.file_size
            and self.log.file_size - self.log.wrote_position >= size + BLANK_SIZE_MIN
        )

    def append(
        self, record: memoryview, queue_offset: int, tags_code: int, store_timestamp: int
    ) -> None:
        """Append a record that fits; its unit comes last, and makes it count."""
        position = self.log.start_offset + self.log.wrote_position
        self.units.reserve(self.units.wrote_position + UNIT_SIZE)
        self.log.append(record)
        self.units.append(
            UNIT.pack(
                position, len(record), tags_code, store_timestamp, queue_offset, 1, NOT_COMPACTED, 0
            )
        )
        self.count += 1

    def seal(self) -> None:
        """End the segment."""
        if not self.units.is_full:
            self.units.append(END_UNIT)
            self.units.fill()
        rest = self.log.file_size - self.log.wrote_position
        if rest >= BLANK_SIZE_MIN:
            self.log.append(BLANK.pack(rest, BLANK_MAGIC))
        self.log.fill()

    def flush(self) -> None:
        """Sync the records, then their units."""
        self.log.flush(0)
        self.units.flush(0)

    def renew(self) -> None:
        """Write and sync anew what a sync that failed may have lost."""
        self.log.renew()
        self.units.renew()

    def recover(self, *, is_last: bool, anew: bool = False) -> None:
        """Count the units; of the last segment, only those whose record is whole.

        A sealed segment was synced before the next one began.

        Args:
            is_last: whether it is the last one.
            anew: whether a sync of it has failed, which the system may have forgotten; then what is
                found is written once more.
        """
        limit = self.units.file_size // UNIT_SIZE
        view = self.units.buffer
        if not is_last:
            low, high = 0, limit
            while low < high:
                middle = (low + high) // 2
                position, size, *_ = UNIT.unpack_from(view, middle * UNIT_SIZE)
                low, high = (middle + 1, high) if position >= 0 and size > 0 else (low, middle)
            self.count = low
            self.log.set_positions(self.log.file_size)
            self.units.set_positions(self.units.file_size)
            return
        end = 0
        last = -1
        count = 0
        while count < limit:
            unit = self.unit(count)
            start = unit.position - self.log.start_offset
            if start != end or unit.size <= 0 or unit.queue_offset <= last:
                break
            if not self._is_whole(start, unit):
                break
            end, last, count = start + unit.size, unit.queue_offset, count + 1
        self.count = count
        self.log.set_positions(end)
        self.units.set_positions(count * UNIT_SIZE)
        # What is behind them is of an earlier life, and units there would be taken for real ones.
        self.units.erase(count * UNIT_SIZE, min(self.units.file_size, (count + 2) * UNIT_SIZE))
        # Both count as flushed now; a process that was killed may have left them to the system.
        if anew:
            self.log.rewrite(0, end)
            self.units.rewrite(0, count * UNIT_SIZE)
        self.log.sync()
        self.units.sync()

    def _is_whole(self, start: int, unit: Unit) -> bool:
        if start + unit.size > self.log.file_size:
            return False
        record = self.log.buffer[start : start + unit.size]
        try:
            message = decode_record(record, check_crc=True)
        except RecordError:
            return False
        # No checksum covers the properties.
        if message.ends_in_zeros or lacks_a_sector(
            self.log.buffer, start, start + unit.size, len(message.properties_raw)
        ):
            return False
        return message.queue_offset == unit.queue_offset and bool(_key_of(record))

    def truncate(self, queue_offset: int) -> None:
        """Forget the messages from a queue offset on."""
        count = self.find(queue_offset)
        if count == self.count:
            return
        self.log.set_positions(self.unit(count).position - self.log.start_offset)
        # What ends a sealed segment goes, too.
        self.units.erase(count * UNIT_SIZE, min(self.units.file_size, (self.count + 1) * UNIT_SIZE))
        self.units.set_positions(count * UNIT_SIZE)
        # The log may have grown past their records when a loss of power brings them back.
        self.units.sync()
        self.count = count

    def commit_log_offset(self, number: int) -> int:
        """Where the message of a unit lies in the CommitLog; -1 if that is not known.

        A record that Apache's broker wrote has its place in the segment there; where a run of ours
        has moved it, that place is taken for one in the CommitLog.
        """
        unit = self.unit(number)
        record = self.record(unit)
        if record is None:
            return -1
        place = record[COMMIT_LOG_OFFSET_POSITION : COMMIT_LOG_OFFSET_POSITION + 8]
        offset = int.from_bytes(place, "big", signed=True)
        return -1 if offset == unit.position else offset

    def close(self) -> None:
        """Unmap both files."""
        self.log.close()
        self.units.close()


class SegmentRow:
    """Segments one after the other, in one pair of directories."""

    def __init__(
        self, files: FileSystem, log_directory: str, unit_directory: str, config: MessageStoreConfig
    ) -> None:
        self._files = files
        self.log_directory = log_directory
        self.unit_directory = unit_directory
        self._log_size = log_file_size(config)
        self._unit_size = unit_file_size(config)
        self.segments: list[Segment] = []

    def load(self, *, anew: bool) -> None:
        """Open what is there.

        Args:
            anew: see `Segment.recover`.

        Raises:
            StoreCorruptError: a name that is no offset.
        """
        files = self._files
        logs, units = (
            {name for name in files.list(path) if segment_start(name) is not None}
            for path in (self.log_directory, self.unit_directory)
        )
        for name in sorted(units - logs):
            # Units without records name nothing.
            files.remove(f"{self.unit_directory}/{name}")
        names = sorted(logs & units)
        for name in sorted(logs - units):
            if files.size(f"{self.log_directory}/{name}") and name != max(logs):
                raise StoreCorruptError(
                    f"{self.log_directory}/{name} has no units in {self.unit_directory}"
                )
            # A crash while the segment was made: it has nothing yet.
            files.remove(f"{self.log_directory}/{name}")
        for name in names:
            for path in (f"{self.log_directory}/{name}", f"{self.unit_directory}/{name}"):
                if not files.size(path):
                    raise StoreCorruptError(f"{path}: found 0 bytes, and the other half is there")
            segment = self.open(int(name), create=False)
            segment.recover(is_last=name == names[-1], anew=anew)
            self.segments.append(segment)

    def open(self, start_offset: int, *, create: bool) -> Segment:
        pair = []
        for directory, wanted in (
            (self.log_directory, self._log_size),
            (self.unit_directory, self._unit_size),
        ):
            if create:
                self._files.make_dirs(directory)
            path = f"{directory}/{segment_name(start_offset)}"
            size = wanted if create else self._files.size(path)
            pair.append(MappedFile(self._files, directory, start_offset, size, create=create))
        return Segment(*pair)

    def fits(self, size: int) -> bool:
        """Whether a record fits into any segment."""
        return size + BLANK_SIZE_MIN <= self._log_size

    def room_for(self, size: int) -> Segment | None:
        """The last segment, or the first one, if a record has room there."""
        if not self.segments:
            self.segments.append(self.open(0, create=True))
        last = self.segments[-1]
        return last if last.has_room(size) else None

    def end_last(self) -> None:
        """End the last segment. Blocks; may be done twice."""
        last = self.segments[-1]
        last.seal()
        last.flush()

    def begin_next(self) -> None:
        """Begin a segment behind the last one, which has been ended. Blocks."""
        self.segments.append(self.open(self.segments[-1].log.end_offset, create=True))

    def remove_last(self) -> None:
        """Delete the last segment, so that it stays away. Blocks.

        Records go first: a loss of power in between leaves units, which `load` removes.
        """
        last = self.segments.pop()
        last.close()
        self._files.remove(last.log.path)
        self._files.sync_directory(self.log_directory)
        self._files.remove(last.units.path)

    def close(self) -> None:
        """Unmap everything."""
        for segment in self.segments:
            segment.close()
        self.segments.clear()


class CompactionLog:
    """One queue. Calls may come from any thread."""

    def __init__(
        self, files: FileSystem, config: MessageStoreConfig, root: str, topic: str, queue_id: int
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._files = files
        self._config = config
        base = f"{root}/{COMPACTION}"
        self._log_directory = f"{base}/{COMPACTION_LOG}/{topic}/{queue_id}"
        self._unit_directory = f"{base}/{COMPACTION_QUEUE}/{topic}/{queue_id}"
        self._row = SegmentRow(files, self._log_directory, self._unit_directory, config)
        self._lock = threading.Lock()  # guards the row's list and its last segment
        self._compacting = threading.Lock()  # one run at a time
        self.next_offset = 0
        """The queue offset to be copied next."""
        self._given_up_at = -1  # the last queue offset of a run that could replace nothing

    # Life

    def load(self, position: int, *, anew: bool = False) -> None:
        """Open the files.

        Args:
            position: the last queue offset that was compacted, or -1. Without files nothing was: no
                run takes the last segment.
            anew: see `Segment.recover`.

        Raises:
            StoreCorruptError: files that do not belong together.
        """
        with self._lock:
            self._finish_replacement()
            self._row.load(anew=anew)
            if not self.is_empty:
                self.next_offset = max(position + 1, self._last_queue_offset() + 1)

    @property
    def is_empty(self) -> bool:
        """Whether there are no files."""
        return not self._row.segments

    def truncate(self, end: int) -> None:
        """Forget messages from a queue offset on, before anybody reads. Blocks."""
        with self._lock:
            if end >= self.next_offset:
                return
            segments = self._row.segments
            while len(segments) > 1 and segments[-2].last_queue_offset >= end:
                self._row.remove_last()
            if segments:
                segments[-1].truncate(end)
            self.next_offset = max(end, self._last_queue_offset() + 1)

    def first_from(self, commit_log_offset: int) -> int:
        """The queue offset of the first message that lies at or behind a place in the CommitLog.

        next_offset if there is none. For records of ours, see `Segment.commit_log_offset`.
        """
        with self._lock:
            for segment in self._row.segments:
                number = bisect_left(
                    range(segment.count), commit_log_offset, key=segment.commit_log_offset
                )
                if number < segment.count:
                    return segment.queue_offset(number)
        return self.next_offset

    def _last_queue_offset(self) -> int:
        return max((segment.last_queue_offset for segment in self._row.segments), default=-1)

    def flush(self) -> None:
        """Bring everything to the disk. Blocks."""
        with self._lock:
            segments = list(self._row.segments)
        for segment in segments:
            segment.flush()

    def close(self) -> None:
        """Unmap everything."""
        with self._lock:
            self._row.close()

    def destroy(self) -> None:
        """Delete everything."""
        with self._compacting, self._lock:
            self._row.close()
            for directory in (self._log_directory, self._unit_directory):
                for path in (f"{directory}/{COMPACTING}", directory):
                    if self._files.is_dir(path):
                        for name in self._files.list(path):
                            self._files.remove(f"{path}/{name}")
                        self._files.remove_dir(path)

    # Copying

    def follow(self, queue: ConsumeQueue, log: CommitLog, syncs: SyncGuard) -> None:
        """Copy what the queue has and this does not. Blocks, for a sync, at a segment's end.

        The next start believes all segments but the last, so none begins before the one in front of
        it is on the disk. What a failed sync has left is written anew here for that reason.

        Args:
            queue: what to copy.
            log: where its messages are.
            syncs: notes a sync that fails.

        Raises:
            OSError: the disk failed. The next call tries it again.
            StoreFullError: the disk has no room.
        """
        while self.next_offset < queue.max_offset:
            before = self.next_offset
            if not self.follow_nowait(queue, log):
                with self._lock:
                    last = self._row.segments[-1]
                with syncs.note():
                    last.renew()
                    last.flush()  # nearly all of it, while readers go on
                with self._lock:
                    with syncs.note():
                        self._row.end_last()
                    self._row.begin_next()
            elif self.next_offset == before:
                return

    def follow_nowait(self, queue: ConsumeQueue, log: CommitLog) -> bool:
        """Copy some of it; False if the segment is at its end, and `follow` has to go on."""
        if self.next_offset >= queue.max_offset:
            return True
        with self._lock:
            start = max(self.next_offset, queue.min_offset)
            units = queue.units(start, FOLLOW_COUNT)
            for number, (commit_log_offset, size, tags_code) in enumerate(
                QUEUE_UNIT.iter_unpack(units)
            ):
                if 0 < size < PRE_BLANK_SIZE:
                    record = log.select(commit_log_offset, size)
                    if record is not None and tags_code <= EXT_ADDRESS_MAX:
                        tags_code = _real_tags_code(queue, tags_code, record, commit_log_offset)
                    if record is not None and not self._copy(record, start + number, tags_code):
                        return False
                self.next_offset = start + number + 1
        return True

    def _copy(self, record: memoryview, queue_offset: int, tags_code: int) -> bool:
        """Append a record that has a key; False if the segment is at its end."""
        if not _key_of(record):
            return True
        if not self._row.fits(len(record)):
            _LOG.error(
                "%s queue %d: message %d of %d bytes is larger than compactionMappedFileSize",
                self.topic, self.queue_id, queue_offset, len(record),
            )  # fmt: skip
            return True
        segment = self._row.room_for(len(record))
        if segment is None:
            return False
        segment.append(record, queue_offset, tags_code, store_timestamp_at(record, 0))
        return True

    # Reading

    @property
    def min_offset(self) -> int:
        """The queue offset of the first message; next_offset without any."""
        with self._lock:
            for segment in self._row.segments:
                if segment.count:
                    return segment.queue_offset(0)
        return self.next_offset

    def offset_by_time(self, timestamp_ms: int) -> int:
        """The queue offset of the first message stored at or after a time; the end without any."""
        with self._lock:
            for segment in self._row.segments:
                number = bisect_left(
                    range(segment.count),
                    timestamp_ms,
                    key=lambda at, of=segment: of.unit(at).store_timestamp,  # type: ignore[misc]
                )
                if number < segment.count:
                    return segment.queue_offset(number)
        return self.next_offset

    def get_message(
        self,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_total_size: int,
        queue_end: int,
    ) -> GetMessageResult:
        """See MessageStore.get_message. An offset that is gone stands for the next that is there.

        Args:
            offset: the first queue offset wanted.
            max_msg_nums: at most so many messages.
            message_filter: what to leave out.
            max_total_size: at most so many bytes, but at least one message.
            queue_end: of the ConsumeQueue.
        """
        low, high = self.min_offset, max(queue_end, self.next_offset)
        if high == 0:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE)
        if offset >= high:
            status = GetMessageStatus.OFFSET_OVERFLOW_BADLY
            if offset == high:
                status = GetMessageStatus.OFFSET_OVERFLOW_ONE
            return GetMessageResult(status, high, low, high)
        result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, low, high)
        config = self._config
        bytes_max = min(max_total_size, config.max_transfer_bytes_on_message_in_memory)
        count_max = min(max_msg_nums, config.max_transfer_count_on_message_in_memory)
        with self._lock:
            for segment, unit in self._units_from(offset):
                if result.message_count and (
                    result.message_count >= count_max
                    or result.buffer_total_size + unit.size > bytes_max
                ):
                    break
                result.next_begin_offset = unit.queue_offset + 1
                if message_filter is not None and not message_filter.matches_consume_queue(
                    unit.tags_code, None
                ):
                    continue
                record = segment.record(unit)
                if record is None or (
                    message_filter is not None
                    and not message_filter.matches_record(record, 0, len(record))
                ):
                    continue
                result.records.append(record)
                result.queue_offsets.append(unit.queue_offset)
                result.message_count += 1
                result.buffer_total_size += unit.size
            else:
                # Whatever follows, up to here, was superseded.
                result.next_begin_offset = max(offset, self.next_offset)
        if result.message_count:
            result.status = GetMessageStatus.FOUND
        return result

    def _units_from(self, offset: int) -> Iterator[tuple[Segment, Unit]]:
        for segment in self._row.segments:
            if segment.last_queue_offset < offset:
                continue
            for number in range(segment.find(offset), segment.count):
                yield segment, segment.unit(number)

    # Compaction

    def compact(self, position: int) -> int | None:
        """Drop what sealed segments hold of superseded keys, and messages without a body.

        Args:
            position: the last queue offset that an earlier run has seen, or -1.

        Returns:
            the new position, or None if there was nothing new, or nothing could be replaced.
        """
        with self._compacting:
            with self._lock:
                sealed = self._row.segments[:-1]
            newest: dict[bytes, int] = {}
            taken = 0
            seen = position
            for segment in sealed:
                if segment.last_queue_offset > position:
                    # One segment more than a run that had no room for what it kept.
                    if len(newest) > KEYS_MAX and taken and seen > self._given_up_at:
                        break
                    for number in range(segment.find(position + 1), segment.count):
                        unit = segment.unit(number)
                        record = segment.record(unit)
                        if record is not None:
                            newest[_digest(_key_of(record))] = unit.queue_offset
                    seen = segment.last_queue_offset
                taken += 1
            if seen in (position, self._given_up_at):
                return None
            if not self._rewrite(sealed[:taken], newest):
                self._given_up_at = seen
                return None
            return seen

    def _rewrite(self, old: list[Segment], newest: dict[bytes, int]) -> bool:
        """Replaces segments by what is kept of them; False: that has no room in their place."""
        row = SegmentRow(
            self._files,
            f"{self._log_directory}/{COMPACTING}",
            f"{self._unit_directory}/{COMPACTING}",
            self._config,
        )
        self._wipe_compacting()
        kept = dropped = 0
        for segment in old:
            for number in range(segment.count):
                unit = segment.unit(number)
                record = segment.record(unit)
                if record is None or not _is_kept(record, unit.queue_offset, newest):
                    dropped += 1
                    continue
                room = row.room_for(unit.size)
                if room is None:
                    row.end_last()
                    row.begin_next()
                    room = row.segments[-1]
                room.append(record, unit.queue_offset, unit.tags_code, unit.store_timestamp)
                kept += 1
        if row.segments:
            row.end_last()
        made = [segment.log.start_offset for segment in row.segments]
        gone = [segment.log.start_offset for segment in old]
        row.close()
        if made and made[-1] > gone[-1]:
            # Segments of another size than configured now: what was made would be in the way.
            _LOG.warning("%s: not compacted, segments have grown", self._log_directory)
            self._wipe_compacting()
            return False
        for directory in (row.log_directory, row.unit_directory):
            self._files.make_dirs(directory)  # not there where nothing was kept
        self._files.write_file(
            f"{row.log_directory}/{READY}", json.dumps({"made": made, "gone": gone}).encode()
        )
        with self._lock:
            last = self._row.segments[len(old) :]
            for segment in old:
                segment.log.shutdown(0)  # waits for a sync that is under way
                segment.units.shutdown(0)
            self._finish_replacement()
            fresh = []
            for start in made:
                segment = self._row.open(start, create=False)
                segment.recover(is_last=False)
                fresh.append(segment)
            self._row.segments[:] = [*fresh, *last]
        _LOG.info(
            "%s queue %d: compaction kept %d messages and dropped %d",
            self.topic, self.queue_id, kept, dropped,
        )  # fmt: skip
        return True

    def _wipe_compacting(self) -> None:
        for directory in (self._log_directory, self._unit_directory):
            path = f"{directory}/{COMPACTING}"
            if self._files.is_dir(path):
                for name in self._files.list(path):
                    self._files.remove(f"{path}/{name}")

    def _finish_replacement(self) -> None:
        """Put what a run has made in the place of what it was made of; may be done twice."""
        files = self._files
        ready = f"{self._log_directory}/{COMPACTING}/{READY}"
        data = files.read_file(ready)
        if data is None:
            return
        try:
            document = json.loads(data)
            made, gone = [int(at) for at in document["made"]], [int(at) for at in document["gone"]]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(f"{ready}: {error}") from None
        for directory in (self._log_directory, self._unit_directory):
            for start in sorted({*made, *gone}):
                name = segment_name(start)
                source = f"{directory}/{COMPACTING}/{name}"
                if files.exists(source):
                    files.rename(source, f"{directory}/{name}", durable=False)
                elif start not in made:
                    files.remove(f"{directory}/{name}")
            files.sync_directory(directory)
        files.remove(ready)
        for directory in (self._log_directory, self._unit_directory):
            files.remove_dir(f"{directory}/{COMPACTING}")


def _key_of(record: memoryview) -> bytes:
    return (find_property(properties_at(record), b"KEYS") or b"").strip()


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()


def _is_kept(record: memoryview, queue_offset: int, newest: dict[bytes, int]) -> bool:
    """Whether no newer message of the key is known, and this one is no deletion."""
    if newest.get(_digest(_key_of(record)), -1) > queue_offset:
        return False
    return bool(decode_record(record, check_crc=False).body)


def _real_tags_code(
    queue: ConsumeQueue, address: int, record: memoryview, commit_log_offset: int
) -> int:
    """The tags code that an ext unit holds; where the unit is gone the record tells it."""
    ext = queue.ext_unit(address)
    if ext is not None:
        return ext.tags_code
    request = read_dispatch_request(record, 0, len(record), commit_log_offset)
    return request.tags_code if isinstance(request, DispatchRequest) else 0
