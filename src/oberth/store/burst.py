"""What a put writes: the records of one burst, waiting to be copied into the current segment.

A burst is made, filled and written under the CommitLog's put lock. It hands out queue offsets as
records come, and takes them back for records that did not reach the segment. The plain path, by far
the most messages, is `CommitLog._encode_all`; everything else is encoded here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast
from zlib import crc32

from oberth.errors import FormatError, StoreFullError
from oberth.formats import properties as p
from oberth.formats.batch_body import decode_batch
from oberth.formats.java_numbers import java_long
from oberth.formats.message import (
    BLANK_SIZE_MIN,
    CRC_MASK,
    FIXED,
    HOST_BITS,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_LENGTH_V1_MAX,
    DispatchRequest,
    encode_blank,
    read_dispatch_request,
)
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import (
    LMQ_PREFIX,
    RETRY_PREFIX,
    STORED_TOPIC_LENGTH_MAX,
    TRANS_HALF_TOPIC,
    allows_lmq,
)
from oberth.formats.options import Line
from oberth.formats.properties import PROPERTIES_SIZE_MAX
from oberth.formats.property_crc import CRC_PROPERTY, TAIL_SIZE, encode_crc_tail
from oberth.formats.sys_flag import (
    BORN_HOST_V6,
    INNER_BATCH,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from oberth.formats.torn_record import LIKE_A_LOST_SECTOR
from oberth.kernels.arguments import BatchEnd
from oberth.kernels.batch import BatchRecords, CleanBatch, RecordHead, batch_records, clean_batch
from oberth.store.mapped_file import MappedFile
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.messages import (
    MessageExtBatch,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)

_INNER_BATCH_MAX: Final = 32767
"""The most messages an inner batch may count."""
_NUMBER_MAX: Final = 20
_ENTRY_MAX: Final = 32
"""How many bytes a number, and another property that is added, can get."""
SEPARATOR: Final = b"\x02"
"""Between properties; RocketMQ 4.9 writes one after the last too."""

_LOG: Final = logging.getLogger(__name__)
_LIGHT: Final = (b"INNER_MULTI_DISPATCH",)
_WITHOUT_QUEUE_OFFSET: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
ILLEGAL: Final = PutMessageStatus.MESSAGE_ILLEGAL
_PUT_OK: Final = PutMessageStatus.PUT_OK


class Topic:
    """What a put needs to know of a topic, worked out once."""

    __slots__ = ("encoded", "is_batch", "magic", "offsets", "overhead", "refused")

    def __init__(
        self, topic: str, config: MessageStoreConfig, attributes: Mapping[str, str]
    ) -> None:
        raw = topic.encode("utf-8", "replace")
        length = len(raw)
        self.refused = False
        self.magic = MAGIC_V1
        if config.line is Line.V4_9:
            self.refused = len(topic) > TOPIC_LENGTH_V1_MAX or length > TOPIC_LENGTH_V1_MAX
        else:
            self.refused = length > STORED_TOPIC_LENGTH_MAX or (
                length > TOPIC_LENGTH_V1_MAX and not topic.startswith(RETRY_PREFIX)
            )
            if length > TOPIC_LENGTH_V1_MAX and config.auto_message_version_on_topic_len:
                self.magic = MAGIC_V2
            elif length > TOPIC_LENGTH_V1_MAX:
                self.refused = True
        if not raw:
            self.refused = True
        if self.magic == MAGIC_V1:
            self.encoded = bytes((min(length, 255),)) + raw
        else:
            self.encoded = length.to_bytes(2, "big") + raw
        # Everything of a record but body and properties, both hosts IPv4.
        self.overhead = FIXED[0].size + len(self.encoded) + 2
        self.is_batch = attributes.get("queue.type") == "BatchCQ"
        self.offsets: dict[int, int] = {}


class BurstLog(Protocol):
    """What a burst asks of the log that it is written to."""

    config: MessageStoreConfig
    queue: MappedFileQueue
    topics: dict[str, Topic]
    erase_to: int
    """Up to where an earlier life left bytes behind the log's end; 0: nowhere."""
    append_crc: bool
    lmq: bool

    @property
    def record_max(self) -> int:
        """The largest record that is stored, bytes."""

    def properties_status(self) -> PutMessageStatus:
        """What a properties string beyond the limit is answered with."""

    def light_queues(self, raw: bytes) -> list[str]:
        """The queues that INNER_MULTI_DISPATCH names."""

    def has_room_for_light_queues(self, names: Sequence[str]) -> bool:
        """Whether the new ones among these stay below maxLmqConsumeQueueNum."""

    def light_queue_offsets(self, names: Sequence[str], queue_id: int) -> list[int | None]:
        """The offset a record gets in each queue; None for what gets no number."""

    def advance_light_queues(
        self, names: Sequence[str], numbers: Sequence[int | None], queue_id: int
    ) -> None:
        """Counts a record in the queues it belongs to besides its own."""


def erase_stale(log: BurstLog, segment: MappedFile, end_position: int) -> None:
    """Zeros what an earlier life left behind the log's end, before bytes go up to a position."""
    if log.erase_to:
        stop = min(log.erase_to - segment.start_offset, segment.file_size)
        if stop > segment.wrote_position:
            segment.reserve(min(max(end_position, stop), segment.file_size))
            segment.erase(segment.wrote_position, stop)
        log.erase_to = 0


def append_after_stale(
    log: BurstLog, segment: MappedFile, *parts: bytes | bytearray | memoryview
) -> None:
    """Appends to the last segment what fits into it, where an earlier life left nothing.

    All of it or nothing: who reads meanwhile sees no end between two parts.

    Raises:
        OSError: the disk failed. Whole records among what is there must not be the log's after a
            kill: the next append erases them.
        StoreFullError: the disk is full.
    """
    try:
        if log.erase_to:
            erase_stale(log, segment, segment.wrote_position + sum(map(len, parts)))
        segment.append(*parts)
    except (OSError, StoreFullError):
        end = segment.wrote_position + sum(map(len, parts))
        if segment.is_reserved(end):
            log.erase_to = max(log.erase_to, segment.start_offset + end)
        raise


class Burst:
    """Records of one burst that wait to be copied into the current segment."""

    __slots__ = (
        "log",
        "now",
        "offset",
        "parts",
        "results",
        "room",
        "segment",
        "start_offset",
        "written",
    )

    def __init__(
        self,
        log: BurstLog,
        results: list[PutMessageResult] | list[PutMessageResult | Exception],
        now: int,
    ) -> None:
        self.log = log
        # Exceptions stand before what this burst adds.
        self.results = cast(list[PutMessageResult], results)
        self.now = now
        self.parts: list[bytes | memoryview] = []
        self.segment: MappedFile | None = None
        self.written = len(results)  # results that need no undoing
        self._open(log.queue.last())

    def _open(self, segment: MappedFile | None) -> None:
        self.segment = segment
        if segment is None or segment.is_full:
            self.start_offset = self.offset = 0
            self.room = -1
        else:
            self.start_offset = self.offset = segment.start_offset + segment.wrote_position
            self.room = segment.file_size - segment.wrote_position - BLANK_SIZE_MIN

    def make_room(self, size: int) -> bool:
        """Ends the current segment and opens the next; False if there is none to be had."""
        if not self.write():
            return False
        log = self.log
        segment = self.segment
        try:
            if segment is not None and not segment.is_full:
                if size <= segment.file_size - segment.wrote_position - BLANK_SIZE_MIN:
                    self._open(segment)
                    return True
                erase_stale(log, segment, segment.file_size)
                blank_at = segment.wrote_position
                segment.append(encode_blank(segment.file_size - blank_at))
                segment.fill()
            self._open(log.queue.last_or_create())
        except (OSError, StoreFullError) as error:
            _LOG.error("a new CommitLog segment could not be made: %s", error)
            self.room = -1
            return False
        return self.segment is not None

    def write(self) -> bool:
        """Copies what waits into the segment; on failure undoes it and says so in the results."""
        if self.parts:
            segment = self.segment
            assert segment is not None
            data = b"".join(self.parts) if len(self.parts) > 1 else self.parts[0]
            self.parts.clear()
            try:
                append_after_stale(self.log, segment, data)
            except (OSError, StoreFullError) as error:
                _LOG.error(
                    "%d bytes could not be appended to %s: %s", len(data), segment.path, error
                )
                self._undo(bytes(data))
                return False
            segment.store_timestamp = self.now
            self.start_offset = self.offset
        self.written = len(self.results)
        return True

    def refuse(self) -> None:
        """Answers a message for which there is no room."""
        self.results.append(PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED))

    def _undo(self, data: bytes) -> None:
        """Takes back what was handed out for records that never reached the log."""
        position = 0
        log = self.log
        while position < len(data):
            request = read_dispatch_request(data, position, len(data), self.start_offset)
            assert isinstance(request, DispatchRequest)
            position += request.record_size
            if request.sys_flag & TRANSACTION_MASK in _WITHOUT_QUEUE_OFFSET:
                continue
            offsets = log.topics[request.topic].offsets
            offsets[request.queue_id] = min(offsets[request.queue_id], request.queue_offset)
            names = request.find(b"INNER_MULTI_DISPATCH")
            numbers = request.find(b"INNER_MULTI_QUEUE_OFFSET")
            if log.lmq and names and numbers:
                light_names = names.decode().split(",")
                for name, text in zip(light_names, numbers.decode().split(","), strict=False):
                    if text:
                        queue_id = 0 if name.startswith(LMQ_PREFIX) else request.queue_id
                        light = log.topics[name].offsets
                        light[queue_id] = min(light[queue_id], int(text))
        self.offset = self.start_offset
        self.room = -1
        results = self.results
        for number in range(self.written, len(results)):
            if results[number].status is _PUT_OK:
                results[number] = PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
        self.written = len(results)

    # What the plain path leaves out

    def append_special(self, message: MessageExtBrokerInner, topic: Topic) -> None:
        """Batches, IPv6 hosts, transactions, inner batches, light queues, whole-record CRC."""
        if isinstance(message, MessageExtBatch):
            self.results.append(self._append_batch(message, topic))
        else:
            self.results.append(self._append_one(message, topic))

    def _append_one(self, message: MessageExtBrokerInner, topic: Topic) -> PutMessageResult:
        log = self.log
        sys_flag = message.sys_flag
        raw = message.properties_raw
        if raw[-1:] == b"\0":
            raw += SEPARATOR
        count = 1
        number = p.find_property(raw, b"INNER_NUM") if b"INNER_NUM" in raw else None
        if sys_flag & INNER_BATCH or number is not None:
            if bool(sys_flag & INNER_BATCH) != (number is not None) or not topic.is_batch:
                return PutMessageResult(ILLEGAL)
            count = java_long(number, 0)
            if not 0 < count <= _INNER_BATCH_MAX:
                return PutMessageResult(ILLEGAL)
        names: list[str] = []
        # The log alone says which places a record has. A half message is in no light queue: it has
        # not been sent yet.
        raw = _without(raw, p.INNER_MULTI_QUEUE_OFFSET)
        if not sys_flag & INNER_BATCH:
            raw = _without(raw, p.INNER_BASE)
        if log.lmq and allows_lmq(message.topic) and message.topic != TRANS_HALF_TOPIC:
            names = log.light_queues(raw)
            if names and not log.has_room_for_light_queues(names):
                return PutMessageResult(PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
        # Offsets may come out differently after a roll, so properties that hold them are only
        # measured here, with the longest number there is.
        spare = (_NUMBER_MAX + 1) * len(names) + _ENTRY_MAX if names else 0
        spare += _ENTRY_MAX + _NUMBER_MAX if sys_flag & INNER_BATCH else 0
        with_crc = log.append_crc or LIKE_A_LOST_SECTOR in raw
        spare += TAIL_SIZE + 1 if with_crc else 0
        if len(raw) + (TAIL_SIZE + 1 if with_crc else 0) > PROPERTIES_SIZE_MAX:
            return PutMessageResult(log.properties_status())
        sys_flag = _with_host_bits(sys_flag, message)
        size_max = _overhead(topic, sys_flag) + len(message.body) + len(raw) + spare
        limit = log.config.max_message_size if names else log.record_max
        if size_max - spare > limit:
            return PutMessageResult(ILLEGAL)
        if size_max > self.room and not self.make_room(size_max):
            return PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
        counted = sys_flag & TRANSACTION_MASK not in _WITHOUT_QUEUE_OFFSET
        queue_offset = topic.offsets.get(message.queue_id, 0) if counted else 0
        if sys_flag & INNER_BATCH:
            raw = p.append_property(_without(raw, p.INNER_BASE), p.INNER_BASE, str(queue_offset))
        numbers = log.light_queue_offsets(names, message.queue_id)
        if names:
            raw = p.append_property(
                raw,
                p.INNER_MULTI_QUEUE_OFFSET,
                ",".join("" if number is None else str(number) for number in numbers),
            )
        if len(raw) > PROPERTIES_SIZE_MAX:
            return PutMessageResult(log.properties_status())
        if with_crc:
            raw = _without(raw, CRC_PROPERTY)
            if raw and raw[-1] != 2:
                raw += b"\x02"
        record = self._encode(message, topic, raw, sys_flag, queue_offset, with_crc=with_crc)
        if counted:
            topic.offsets[message.queue_id] = queue_offset + count
            log.advance_light_queues(names, numbers, message.queue_id)
        result = PutMessageResult(
            _PUT_OK, self.offset, len(record), queue_offset, self.now, message.store_host, count
        )
        self._add(record)
        return result

    def _append_batch(self, message: MessageExtBatch, topic: Topic) -> PutMessageResult:
        log = self.log
        raw = message.properties_raw
        if (
            topic.refused
            or message.sys_flag & TRANSACTION_MASK
            or len(message.body) > log.config.max_message_size
            or p.find_property(raw, b"DELAY") not in (None, b"0")
            or message.sys_flag & INNER_BATCH
        ):
            return PutMessageResult(ILLEGAL)
        try:
            batch = clean_batch(message.body)
        except FormatError:
            return PutMessageResult(ILLEGAL)
        if not batch.item_count:
            return PutMessageResult(ILLEGAL)
        sys_flag = _with_host_bits(message.sys_flag, message)
        outer = p.without_properties(raw, _LIGHT) if log.config.line is Line.V4_9 else b""
        head = RecordHead(
            self._pack_head(message, topic, sys_flag),
            topic.encoded,
            outer,
            log.append_crc or _like_a_lost_sector(batch, outer),
        )
        queue_offset = topic.offsets.get(message.queue_id, 0)
        made = self._batch_records(batch, head, queue_offset)
        if made.end is BatchEnd.PROPERTIES:
            return PutMessageResult(log.properties_status())
        size = len(made.data)
        if made.end is not BatchEnd.DONE or size > log.queue.file_size - BLANK_SIZE_MIN:
            return PutMessageResult(ILLEGAL)
        if size > self.room:
            if not self.make_room(size):
                return PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
            made = self._batch_records(batch, head, queue_offset)  # in another place
        first_offset = self.offset
        topic.offsets[message.queue_id] = queue_offset + batch.item_count
        self._add(made.data)
        return PutMessageResult(
            _PUT_OK,
            first_offset,
            size,
            queue_offset,
            self.now,
            message.store_host,
            batch.item_count,
            made.offsets,
        )

    def _batch_records(
        self, batch: CleanBatch, head: RecordHead, queue_offset: int
    ) -> BatchRecords:
        return batch_records(
            batch,
            head,
            log_offset=self.offset,
            queue_offset=queue_offset,
            record_max=self.log.record_max,
        )

    def _pack_head(self, message: MessageExtBatch, topic: Topic, sys_flag: int) -> bytes:
        """A record of a batch up to its body, but for what differs from item to item."""
        return FIXED[sys_flag & HOST_BITS].pack(
            0,
            topic.magic,
            0,
            message.queue_id,
            0,
            0,
            0,
            sys_flag,
            message.born_timestamp,
            message.born_host,
            self.now,
            message.store_host,
            message.reconsume_times,
            0,
            0,
        )

    def _add(self, record: bytes | memoryview) -> None:
        self.parts.append(record)
        self.offset += len(record)
        self.room -= len(record)

    def _encode(
        self,
        message: MessageExtBrokerInner,
        topic: Topic,
        raw: bytes,
        sys_flag: int,
        queue_offset: int,
        *,
        with_crc: bool,
    ) -> bytes:
        body = message.body
        tail = TAIL_SIZE if with_crc else 0
        size = _overhead(topic, sys_flag) + len(body) + len(raw) + tail
        record = b"".join(
            (
                FIXED[sys_flag & HOST_BITS].pack(
                    size,
                    topic.magic,
                    crc32(body) & CRC_MASK,
                    message.queue_id,
                    message.flag,
                    queue_offset,
                    self.offset,
                    sys_flag,
                    message.born_timestamp,
                    message.born_host,
                    self.now,
                    message.store_host,
                    message.reconsume_times,
                    message.prepared_transaction_offset,
                    len(body),
                ),
                body,
                topic.encoded,
                (len(raw) + tail).to_bytes(2, "big"),
                raw,
            )
        )
        return record + encode_crc_tail(record) if tail else record


def _like_a_lost_sector(batch: CleanBatch, outer: bytes) -> bool:
    """Whether properties of a record of a batch hold a sector of zeros."""
    return LIKE_A_LOST_SECTOR in outer or (
        LIKE_A_LOST_SECTOR in batch.body
        and any(
            LIKE_A_LOST_SECTOR in item.properties
            for item in decode_batch(batch.body, count_max=batch.item_count)
        )
    )


def _overhead(topic: Topic, sys_flag: int) -> int:
    return topic.overhead + FIXED[sys_flag & HOST_BITS].size - FIXED[0].size


def _with_host_bits(sys_flag: int, message: MessageExtBrokerInner) -> int:
    sys_flag &= ~HOST_BITS
    if len(message.born_host) == HOST_V6_SIZE:
        sys_flag |= BORN_HOST_V6
    if len(message.store_host) == HOST_V6_SIZE:
        sys_flag |= STORE_HOST_V6
    return sys_flag


def _without(raw: bytes, name: str) -> bytes:
    """The properties string without one name; unchanged if it does not have it."""
    if name.encode() not in raw:
        return raw
    properties = p.decode_properties(raw)
    if properties.pop(name, None) is None:
        return raw
    return p.encode_properties(properties)
