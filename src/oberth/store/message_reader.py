"""Gets messages of a queue: ConsumeQueue units, filtered, then slices of the CommitLog.

The tables of limits and statuses are RocketMQ's (DefaultMessageStore.getMessage). The loop costs
about a microsecond a message and copies no body; without a filter, a kernel copies few bytes at a
fifth of that.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from operator import add
from typing import Final, NamedTuple

from oberth.formats.batch_consume_queue import UNIT as BATCH_UNIT
from oberth.formats.consume_queue import EXT_ADDRESS_MAX, PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from oberth.formats.message import DispatchRequest, read_dispatch_request
from oberth.formats.message_store_config import BrokerRole, MessageStoreConfig
from oberth.formats.names import is_lmq
from oberth.formats.options import Line
from oberth.kernels.gather import copy_records
from oberth.store.batch_consume_queue import BatchConsumeQueue
from oberth.store.commit_log import CommitLog
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.durations import Durations
from oberth.store.mapped_file import MappedFile
from oberth.store.messages import (
    JUDGED_BYTES_MAX,
    GetMessageResult,
    GetMessageStatus,
    MessageFilter,
    TagsFilter,
)
from oberth.store.residency import Residency, units_layout

# RocketMQ: MAX_PULL_MSG_SIZE; and the least a caller can ask for.
TOTAL_SIZE_MAX: Final = 128 << 20
TOTAL_SIZE_MIN: Final = 100
COPIED_BYTES_MAX: Final = 64 << 10
"""Records that come to no more are copied into one piece: a piece each costs more than the copy."""
_UNITS_AT_ONCE_MAX: Final = 256
# Taken where the machine does not tell.
_MEMORY_UNKNOWN: Final = 24 << 30


class PlainStretch(NamedTuple):
    """What readers of a stretch of a queue get their messages from, see `kernels.pulls`.

    Attributes:
        units: of the queue.
        units_from: queue offset of the first.
        file_units: how many a file of the queue has.
        segment: what can be read of the segment in which the first message lies.
        segment_start: CommitLog offset of its first byte.
        min_offset: of the queue.
        max_offset: of the queue.
    """

    units: bytes
    units_from: int
    file_units: int
    segment: memoryview
    segment_start: int
    min_offset: int
    max_offset: int


_SIZE_MIN: Final = 4
_size_at: Final = struct.Struct(">i").unpack_from


def _slices(
    buffer: memoryview, start: int, offsets: Sequence[int], sizes: Sequence[int]
) -> list[memoryview] | None:
    """Records of a segment that starts at ``start``; those side by side share a slice.

    Returns:
        None where one is not what its unit says, or is named twice.
    """
    if min(sizes) < _SIZE_MIN or len(set(offsets)) != len(offsets):
        return None
    if max(map(add, offsets, sizes)) > start + buffer.nbytes:
        return None
    if [_size_at(buffer, each - start)[0] for each in offsets] != list(sizes):
        return None
    slices: list[memoryview] = []
    piece_start = piece_end = offsets[0] - start
    for commit_log_offset, size in zip(offsets, sizes, strict=True):
        position = commit_log_offset - start
        if position != piece_end:
            slices.append(buffer[piece_start:piece_end])
            piece_start = position
        piece_end = position + size
    slices.append(buffer[piece_start:piece_end])
    return slices


def physical_memory() -> int:
    """Bytes of RAM; RocketMQ's assumption where that cannot be found out."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return _MEMORY_UNKNOWN


class MessageReader:
    """Reads queues. Any thread; never blocks on the put lock."""

    def __init__(
        self, config: MessageStoreConfig, log: CommitLog, queues: ConsumeQueueStore
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self.residency = Residency(log, queues)
        self.get_times = Durations()
        self.found_count = 0
        """Reads that found a message."""
        self.missed_count = 0
        """Reads that did not: at the end of a queue, or nothing that the filter lets pass."""
        self._young_bytes = physical_memory() * config.access_message_in_memory_max_ratio // 100

    def _corrected(self, requested: int, offset: int) -> int:
        """A slave that does not check offsets answers with what it was asked."""
        config = self._config
        if config.broker_role is BrokerRole.SLAVE and not config.offset_check_in_slave:
            return requested
        return offset

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_total_size: int,
    ) -> GetMessageResult:
        """See MessageStore.get_message."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            self.missed_count += 1
            return GetMessageResult(
                GetMessageStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0)
            )
        low, high = queue.min_offset, queue.max_offset
        low = max(low, 0)
        if high <= 0:
            status, following = GetMessageStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0)
        elif offset < low:
            status, following = GetMessageStatus.OFFSET_TOO_SMALL, self._corrected(offset, low)
        elif offset == high:
            status, following = GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
        elif offset > high:
            status, following = (
                GetMessageStatus.OFFSET_OVERFLOW_BADLY,
                self._corrected(offset, high),
            )
        else:
            total_size = min(max(max_total_size, TOTAL_SIZE_MIN), TOTAL_SIZE_MAX)
            since_s = time.monotonic()
            if isinstance(queue, BatchConsumeQueue):
                result = self._get_batches(queue, offset, max_msg_nums, message_filter, total_size)
            else:
                plain = None
                codes = message_filter.codes if type(message_filter) is TagsFilter else None
                if message_filter is None or codes is not None:
                    plain = self._get_plain(queue, offset, max_msg_nums, codes, total_size)
                result = plain or self._get(queue, offset, max_msg_nums, message_filter, total_size)
            self.get_times.add(time.monotonic() - since_s)
            if result.status is GetMessageStatus.FOUND:
                self.found_count += 1
            else:
                self.missed_count += 1
            result.min_offset = low
            result.max_offset = high
            return result
        self.missed_count += 1
        return GetMessageResult(status, following, low, high)

    @property
    def young_from(self) -> int:
        """CommitLog offset: who reads what is older is told to ask a slave."""
        return self._log.max_offset - self._young_bytes

    def plain_stretch(self, topic: str, queue_id: int, low: int, high: int) -> PlainStretch | None:
        """What is needed to answer without a filter who reads between two offsets of a queue.

        None where nothing is found there, or where that waits for a disk or is no plain queue's:
        then `get_message` says what there is.
        """
        queue = self._queues.find(topic, queue_id)
        if not isinstance(queue, ConsumeQueue) or self._config.line is Line.V4_9:
            return None
        low_offset, high_offset = max(queue.min_offset, 0), queue.max_offset
        first = max(low, low_offset)
        if first >= high_offset:
            return None
        if not self.residency.holds(queue, first, min(high, high_offset)):
            return None
        units = queue.units(first, high - first)
        if not units:
            return None
        segment = self._log.queue.find(UNIT.unpack_from(units)[0])
        buffer = None if segment is None else segment.select(0)
        if segment is None or buffer is None:
            return None
        return PlainStretch(
            units,
            first,
            queue.units_per_file,
            buffer,
            segment.start_offset,
            low_offset,
            high_offset,
        )

    def note_found(self, count: int, took_s: float) -> None:
        """So many reads of plain stretches found messages; how long they took together."""
        self.found_count += count
        self.get_times.add_many(took_s / count, count)

    def _get_plain(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_msg_nums: int,
        codes: frozenset[int] | None,
        max_total_size: int,
    ) -> GetMessageResult | None:
        """What `_get` gives in most cases; None: that has to look.

        The cases are those in which each unit is a message in the same segment, with one of some
        tags codes, and the first ``max_msg_nums`` of them, or all there are, reach no limit.
        """
        config = self._config
        wanted = min(max_msg_nums, config.max_transfer_count_on_message_in_memory)
        if not 0 < wanted < _UNITS_AT_ONCE_MAX or config.line is Line.V4_9:
            return None
        # And the one after them: where it is a filler, it is passed over.
        units = queue.units(offset, wanted + 1, within_segment=True)
        count = len(units) // UNIT_SIZE
        if not count:
            return None
        fields = units_layout(count).unpack(units)
        offsets, sizes = fields[::3], fields[1::3]
        if count > wanted:
            following = offsets[wanted]
            if not following or sizes[wanted] < _SIZE_MIN or following in offsets[:wanted]:
                return None
            offsets, sizes, count = offsets[:wanted], sizes[:wanted], wanted
        if codes is not None and not codes.issuperset(fields[2 : 3 * count : 3]):
            return None
        total = sum(sizes)
        if total > min(max_total_size, config.max_transfer_bytes_on_message_in_memory):
            return None
        lowest = min(offsets)
        segment = self._log.queue.find(lowest)
        # At 0 lies a filler, or the first message of all.
        if segment is None or not lowest or lowest < self.young_from:
            return None
        buffer = segment.select(0)
        if buffer is None:
            return None
        records = None
        if 0 < total <= COPIED_BYTES_MAX:
            units = units[: count * UNIT_SIZE]
            copied = copy_records(units, buffer, segment.start_offset, total)
            records = None if copied is None else [memoryview(copied)]
        if records is None:
            records = _slices(buffer, segment.start_offset, offsets, sizes)
        if records is None:
            return None
        result = GetMessageResult(GetMessageStatus.FOUND, offset + count)
        result.records = records
        result.commit_log_offsets = list(offsets)
        result.queue_offsets = list(range(offset, offset + count))
        result.message_count = count
        result.buffer_total_size = total
        return result

    def _get(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_total_size: int,
    ) -> GetMessageResult:
        read = _QueueRead(self._config, self._log, queue, message_filter, self._young_bytes)
        result = read.run(offset, max_msg_nums, max_total_size)
        if result.status is GetMessageStatus.OFFSET_FOUND_NULL:
            result.next_begin_offset = self._corrected(offset, queue.roll_next_file(offset))
        return result

    def _select(self, queue: BatchConsumeQueue, offset: int, size: int) -> memoryview | None:
        """The record of a unit, as long as it says itself."""
        record = self._log.select(offset, size) if size >= _SIZE_MIN else None
        if record is not None and _size_at(record, 0)[0] == size:
            return record
        record = self._log.select_record(offset)
        if record is None or _record_of(queue, record, 0, len(record), offset) is None:
            return None
        return record

    def _get_batches(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        max_msg_nums: int,
        message_filter: MessageFilter | None,
        max_total_size: int,
    ) -> GetMessageResult:
        """A unit of a batch queue stands for several messages; they come together or not at all."""
        config = self._config
        log = self._log
        result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE)
        units = queue.units(
            offset, config.max_filter_message_size // UNIT_SIZE, within_segment=True
        )
        if not units:
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = self._corrected(offset, offset)
            return result
        next_offset = offset
        skip_until = -1
        bytes_max = config.max_transfer_bytes_on_message_in_memory
        count_max = config.max_transfer_count_on_message_in_memory
        for unit in BATCH_UNIT.iter_unpack(units):
            commit_log_offset, size, tags_code, _, base, batch_size, *_ = unit
            if result.message_count and (
                result.message_count + batch_size > max_msg_nums
                or result.buffer_total_size + size > max_total_size
                or result.buffer_total_size + size > bytes_max
                or result.message_count > count_max - 1
            ):
                break
            next_offset = base + batch_size
            if commit_log_offset < skip_until:
                continue
            if message_filter is not None and not message_filter.matches_consume_queue(
                tags_code, None
            ):
                continue
            record = self._select(queue, commit_log_offset, size)
            if record is None:
                if not result.message_count:
                    result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                if log.queue.find(commit_log_offset) is None and commit_log_offset < log.max_offset:
                    skip_until = log.next_segment_offset(commit_log_offset)
                continue
            if message_filter is not None and not message_filter.matches_record(
                record, 0, len(record)
            ):
                record.release()
                continue
            result.records.append(record)
            result.commit_log_offsets.append(commit_log_offset)
            result.queue_offsets.append(base)
            result.buffer_total_size += size
            result.message_count += batch_size
            result.status = GetMessageStatus.FOUND
        result.next_begin_offset = next_offset
        return result


_NOTHING_READABLE: Final = -(1 << 63)
"""The end of what can be read where no segment is: below every position."""


class _QueueRead:
    """One read of a queue, and what it has found so far.

    It costs about 0.4 us for a unit that the filter passes over, and 2 us for one that it takes.
    """

    __slots__ = (
        "_buffer", "_codes", "_config", "_filter", "_judge", "_judged_bytes_max",
        "_judges_tags", "_last_offset", "_limits", "_log", "_log_max", "_next_offset", "_piece_end",
        "_piece_start", "_queue", "_readable_end", "_result", "_segment", "_segment_size",
        "_segment_start", "_skip_until", "_young_from",
    )  # fmt: skip

    def __init__(
        self,
        config: MessageStoreConfig,
        log: CommitLog,
        queue: ConsumeQueue,
        message_filter: MessageFilter | None,
        young_bytes: int,
    ) -> None:
        self._config = config
        self._log = log
        self._log_max = log.max_offset
        self._young_from = self._log_max - young_bytes
        self._queue = queue
        self._filter = message_filter
        self._codes = message_filter.codes if type(message_filter) is TagsFilter else None
        self._judges_tags = message_filter is not None and message_filter.judges_tags
        self._judge = None
        self._judged_bytes_max = 0
        if message_filter is not None and self._codes is None:
            self._judge = message_filter.matches_record
            self._judged_bytes_max = message_filter.judged_bytes + JUDGED_BYTES_MAX
        self._result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE)
        self._next_offset = 0
        self._limits = (0, 0, 0, 0)
        self._skip_until = -1
        self._last_offset = -1
        self._segment: MappedFile | None = None
        self._buffer = memoryview(b"")
        self._segment_start = self._segment_size = 0
        self._readable_end = _NOTHING_READABLE
        # The last slice, as positions in the buffer; it is made when nothing is side by side with
        # it.
        self._piece_start = self._piece_end = -1

    def run(self, offset: int, max_msg_nums: int, max_total_size: int) -> GetMessageResult:
        """Read from an offset of the queue on; OFFSET_FOUND_NULL where it has no unit there."""
        self._next_offset = offset
        config = self._config
        # How many messages, and how many bytes: in memory, and on the disk.
        self._limits = (
            min(max_msg_nums, config.max_transfer_count_on_message_in_memory),
            min(max_total_size, config.max_transfer_bytes_on_message_in_memory),
            min(max_msg_nums, config.max_transfer_count_on_message_in_disk),
            min(max_total_size, config.max_transfer_bytes_on_message_in_disk),
        )
        result = self._result
        is_v5 = config.line is not Line.V4_9
        scan_max = config.max_filter_message_size
        if is_v5:
            scan_max = max(scan_max, max_msg_nums * UNIT_SIZE)
        units_max = -(-scan_max // UNIT_SIZE)
        if self._judge is not None and self._filter is not None:
            units_max = min(units_max, self._filter.judged_max)
        for _ in range(config.travel_cq_file_num_when_get_message if is_v5 else 1):
            units = self._queue.units(self._next_offset, units_max, within_segment=True)
            if not units:
                if self._next_offset == offset:
                    result.status = GetMessageStatus.OFFSET_FOUND_NULL
                break
            if self._scan(units) or result.message_count:
                break
        self._end_piece()
        if result.message_count:
            result.status = GetMessageStatus.FOUND
        result.next_begin_offset = self._next_offset
        result.suggest_pulling_from_slave = max(self._last_offset, 0) < self._young_from
        return result

    def _scan(self, units: bytes | memoryview) -> bool:
        """Whether a limit was reached in these units."""
        result = self._result
        codes = self._codes
        looks_at_tags = self._filter is not None and (codes is not None or self._judges_tags)
        next_offset = self._next_offset
        young_from = self._young_from
        count, total = result.message_count, result.buffer_total_size
        count_young, bytes_young, count_old, bytes_old = self._limits
        last_offset, skip_until = self._last_offset, self._skip_until
        is_full = False
        for commit_log_offset, size, tags_code in UNIT.iter_unpack(units):
            if size <= 0 or (size == PRE_BLANK_SIZE and commit_log_offset == 0):
                # A filler: the message with this number was damaged.
                next_offset += 1
                continue
            if commit_log_offset == last_offset:
                # The unit before stood in for a lost message, so this one was just taken.
                next_offset += 1
                if result.queue_offsets and result.commit_log_offsets[-1] == commit_log_offset:
                    result.queue_offsets[-1] = next_offset - 1
                continue
            if count:
                is_young = commit_log_offset >= young_from
                if count >= (count_young if is_young else count_old) or total + size > (
                    bytes_young if is_young else bytes_old
                ):
                    is_full = True
                    break
            last_offset = commit_log_offset
            next_offset += 1
            if commit_log_offset < skip_until:
                continue
            lacks_tags = False
            if looks_at_tags or tags_code <= EXT_ADDRESS_MAX:
                if codes is not None and tags_code > EXT_ADDRESS_MAX:
                    is_unwanted = tags_code not in codes
                else:
                    is_unwanted, lacks_tags = self._look_at_tags(tags_code)
                if is_unwanted:
                    if not count:
                        result.status = GetMessageStatus.NO_MATCHED_MESSAGE
                    continue
            if self._take(commit_log_offset, size, next_offset - 1, lacks_tags):
                is_full = True
                break
            count, total = result.message_count, result.buffer_total_size
            skip_until = self._skip_until
        self._next_offset, self._last_offset = next_offset, last_offset
        return is_full

    def _look_at_tags(self, tags_code: int) -> tuple[bool, bool]:
        """Whether the filter has no use for a unit, and whether its record has to tell its tags.

        That is so where the unit names a place in the ext file that has nothing.
        """
        judges_tags = self._judges_tags
        ext = None
        if tags_code <= EXT_ADDRESS_MAX:
            ext = self._queue.ext_unit(tags_code)
            if ext is None and (self._codes is not None or judges_tags):
                return False, True
            if ext is not None:
                tags_code = ext.tags_code
        if self._codes is not None:
            return tags_code not in self._codes, False
        if self._filter is None or (ext is None and not judges_tags):
            return False, False
        return not self._filter.matches_consume_queue(tags_code, ext), False

    def _take(
        self,
        commit_log_offset: int,
        size: int,
        queue_offset: int,
        lacks_tags: bool,
    ) -> bool:
        """Take the record of a unit if it is there and the filter wants it.

        True: the filter has judged so many bytes that the rest is left to the next read.
        """
        # Neighbours in a queue mostly lie in one segment.
        position = commit_log_offset - self._segment_start
        if not 0 <= position < self._segment_size:
            self._enter_segment(commit_log_offset)
            position = commit_log_offset - self._segment_start
        buffer = self._buffer
        if (
            lacks_tags
            or not _SIZE_MIN <= size <= self._readable_end - position
            or _size_at(buffer, position)[0] != size
        ):
            size = self._doubtful_size(commit_log_offset, lacks_tags=lacks_tags)
            if not size:
                return False
        judge = self._judge
        if judge is not None and not judge(buffer, position, size):
            self._result.status = GetMessageStatus.NO_MATCHED_MESSAGE
            return self._filter is not None and self._filter.judged_bytes > self._judged_bytes_max
        result = self._result
        if judge is not None:
            result.records.append(buffer[position : position + size])
        elif position == self._piece_end:
            self._piece_end += size
        else:
            self._end_piece()
            self._piece_start, self._piece_end = position, position + size
        result.commit_log_offsets.append(commit_log_offset)
        result.queue_offsets.append(queue_offset)
        result.buffer_total_size += size
        result.message_count += 1
        self._skip_until = -1
        return False

    def _enter_segment(self, commit_log_offset: int) -> None:
        """Go on in the segment of a record; in none where it is not there."""
        self._end_piece()
        segment = self._log.queue.find(commit_log_offset)
        self._segment_size, self._readable_end = 0, _NOTHING_READABLE
        if segment is not None:
            # A slice keeps the memory, should the segment be deleted meanwhile.
            self._buffer = segment.buffer[:]
            if self._buffer.nbytes:
                self._segment_start = segment.start_offset
                self._segment_size = segment.end_offset - segment.start_offset
                self._readable_end = segment.read_position
            else:
                segment = None
        self._segment = segment

    def _doubtful_size(self, commit_log_offset: int, *, lacks_tags: bool) -> int:
        """As the record of a doubtful unit says itself; 0: none is there, or none is wanted."""
        position = commit_log_offset - self._segment_start
        segment = self._segment
        if segment is None or position >= segment.read_position:
            self._result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
            if commit_log_offset < self._log_max:  # else the unit is damaged, and the next is not
                self._skip_until = self._log.next_segment_offset(commit_log_offset)
            return 0
        self._readable_end = segment.read_position
        size = self._record_size(position, lacks_tags=lacks_tags)
        if not size:
            self._result.status = GetMessageStatus.NO_MATCHED_MESSAGE
        return size

    def _record_size(self, position: int, *, lacks_tags: bool) -> int:
        request = _record_of(
            self._queue, self._buffer, position, self._readable_end, self._segment_start
        )
        if request is None:
            return 0
        if lacks_tags and self._filter is not None:
            is_wanted = self._filter.matches_consume_queue(request.tags_code, None)
            return request.record_size if is_wanted else 0
        return request.record_size

    def _end_piece(self) -> None:
        """Records side by side become one slice."""
        if self._piece_end > 0:
            self._result.records.append(self._buffer[self._piece_start : self._piece_end])
            self._piece_end = -1


def _record_of(
    queue: ConsumeQueue | BatchConsumeQueue,
    buffer: memoryview,
    position: int,
    limit: int,
    stream_offset: int,
) -> DispatchRequest | None:
    """The record of a unit that does not say how long it is, or what its tags are.

    None: there is no record, or one of another queue: the unit is damaged in its offset as well.
    """
    request = read_dispatch_request(buffer, position, limit, stream_offset)
    if not isinstance(request, DispatchRequest):
        return None
    is_own = (request.topic, request.queue_id) == (queue.topic, queue.queue_id)
    return request if is_own or is_lmq(queue.topic) else None
