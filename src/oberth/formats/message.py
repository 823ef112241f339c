"""CommitLog records: one message each, back to back, and the blank that ends a segment.

Record, big-endian; B and S are the sizes of the two hosts, 8 (IPv4) or 20 (IPv6) as sysFlag says:

    offset       size  field                        type   note
         0          4  record_size                  int32  whole record with this field
         4          4  magic                        int32  0xDAA320A7 (v1) or 0xDAA320AB (v2)
         8          4  body_crc                     int32  CRC-32 of the stored body, masked with 2**31-1
        12          4  queue_id                     int32
        16          4  flag                         int32  the application's, never interpreted
        20          8  queue_offset                 int64  ordinal in its queue; 0 for prepared and rollback
        28          8  commit_log_offset            int64  where this record starts in the CommitLog
        36          4  sys_flag                     int32  see sys_flag.py
        40          8  born_timestamp               int64  ms, the client's clock
        48          B  born_host                    bytes  address and port (int32)
      48+B          8  store_timestamp              int64  ms, the broker's clock inside the put lock
      56+B          S  store_host                   bytes  address and port (int32)
    56+B+S          4  reconsume_times              int32
    60+B+S          8  prepared_transaction_offset  int64  of a commit: where its half message starts
    68+B+S          4  body_length                  int32  0 is allowed
    72+B+S          n  body                         bytes  as received, compressed or not
         …        1/2  topic_length                 int8 in v1, int16 in v2
         …          n  topic                        bytes  UTF-8
         …          2  properties_length            int16
         …          n  properties                   bytes  see properties.py

Blank, at the end of a segment whose rest is too small for the next record:

    offset       size  field                        type   note
         0          4  remaining                    int32  bytes to the segment's end; not to be relied upon
         4          4  magic                        int32  0xCBD43194

A record is valid when its lengths add up to record_size, its body passes the CRC and it names its
own place in commit_log_offset. RocketMQ does not compare the last; every record that a broker
writes has it, and without it stale bytes behind the log's end would be taken for messages.
Nothing covers the header, the topic and the properties, unless the broker appended a whole-record
CRC as a property. This is the truth of a store; ConsumeQueue and Index are derived from it.
RocketMQ: MessageDecoder, MessageExtEncoder, CommitLog.checkMessageAndReturnSize.
"""  # noqa: E501 - the table's notes

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final
from zlib import crc32

from oberth.errors import RecordError
from oberth.formats import properties as p
from oberth.formats.delay_level import deliver_time
from oberth.formats.java_string import tags_hash
from oberth.formats.sys_flag import BORN_HOST_V6, STORE_HOST_V6

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
BLANK_MAGIC: Final = -875286124
BLANK_SIZE_MIN: Final = 8
CRC_MASK: Final = 0x7FFFFFFF

HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
# Record sizes without body, topic and properties.
FIXED_SIZE_V1: Final = 91
FIXED_SIZE_V2: Final = 92
# A topic longer than this needs a v2 record.
TOPIC_LENGTH_V1_MAX: Final = 127
TOPIC_LENGTH_V2_MAX: Final = 32767
TOPIC_LENGTH_SIZE: Final = {MAGIC_V1: 1, MAGIC_V2: 2}

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"


# The fields before the body, in order; B and S stand for the two hosts. Everything here and in the
# kernels that knows a field's place has it from this table.
_FIXED_FIELDS: Final = {
    "record_size": "i",
    "magic": "i",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "commit_log_offset": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": "B",
    "store_timestamp": "q",
    "store_host": "S",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_length": "i",
}
# Their numbers in what ``FIXED`` unpacks.
(
    RECORD_SIZE, MAGIC, BODY_CRC, QUEUE_ID, FLAG, QUEUE_OFFSET, COMMIT_LOG_OFFSET, SYS_FLAG,
    BORN_TIMESTAMP, BORN_HOST, STORE_TIMESTAMP, STORE_HOST, RECONSUME_TIMES,
    PREPARED_TRANSACTION_OFFSET, BODY_LENGTH,
) = range(len(_FIXED_FIELDS))  # fmt: skip


def _fixed(
    born_host_size: int, store_host_size: int, fields: int = len(_FIXED_FIELDS)
) -> struct.Struct:
    hosts = {"B": f"{born_host_size}s", "S": f"{store_host_size}s"}
    codes = list(_FIXED_FIELDS.values())[:fields]
    return struct.Struct(">" + "".join(hosts.get(code, code) for code in codes))


def _position(field: int) -> int:
    """Where a field starts in a record whose hosts are both IPv4."""
    return _fixed(HOST_V4_SIZE, HOST_V4_SIZE, field).size


# The part before the body, by the two host bits of sysFlag: FIXED[sys_flag & HOST_BITS].
HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
FIXED: Final[dict[int, struct.Struct]] = {
    0: _fixed(HOST_V4_SIZE, HOST_V4_SIZE),
    BORN_HOST_V6: _fixed(HOST_V6_SIZE, HOST_V4_SIZE),
    STORE_HOST_V6: _fixed(HOST_V4_SIZE, HOST_V6_SIZE),
    HOST_BITS: _fixed(HOST_V6_SIZE, HOST_V6_SIZE),
}
FIXED_V4: Final = FIXED[0]
assert FIXED_V4.size == FIXED_SIZE_V1 - 3 == 88

MAGIC_POSITION: Final = _position(MAGIC)
BODY_CRC_POSITION: Final = _position(BODY_CRC)
QUEUE_ID_POSITION: Final = _position(QUEUE_ID)
FLAG_POSITION: Final = _position(FLAG)
QUEUE_OFFSET_POSITION: Final = _position(QUEUE_OFFSET)
COMMIT_LOG_OFFSET_POSITION: Final = _position(COMMIT_LOG_OFFSET)
SYS_FLAG_POSITION: Final = _position(SYS_FLAG)
BORN_TIMESTAMP_POSITION: Final = _position(BORN_TIMESTAMP)
BORN_HOST_POSITION: Final = _position(BORN_HOST)
# Where the body starts when both hosts are IPv4; an IPv6 host adds 12.
BODY_POSITION_V4: Final = FIXED_V4.size
# How far before the body a field starts, whatever the hosts are.
RECONSUME_TIMES_BEFORE_BODY: Final = BODY_POSITION_V4 - _position(RECONSUME_TIMES)
PREPARED_OFFSET_BEFORE_BODY: Final = BODY_POSITION_V4 - _position(PREPARED_TRANSACTION_OFFSET)
BODY_LENGTH_BEFORE_BODY: Final = BODY_POSITION_V4 - _position(BODY_LENGTH)

BLANK: Final = struct.Struct(
    ">"
    "i"  # remaining
    "i"  # magic
)
assert BLANK.size == BLANK_SIZE_MIN

_INT32: Final = struct.Struct(">i")
# Size, magic, sysFlag and, where both hosts are IPv4, the body's length.
_LENGTHS: Final = struct.Struct(">ii28xi44xi")
assert _LENGTHS.size == FIXED_V4.size
_INT64: Final = struct.Struct(">q")
_UNPACK_V4: Final = FIXED_V4.unpack_from


def body_crc(body: Buffer) -> int:
    """The checksum that a record holds of its body: CRC-32 without its top bit."""
    return crc32(body) & CRC_MASK


@lru_cache(maxsize=4096)
def encode_host(host: str, port: int) -> bytes:
    """Address and port as a record holds them: 8 bytes for IPv4, 20 for IPv6."""
    return ip_address(host.split("%", 1)[0]).packed + _INT32.pack(port)


@lru_cache(maxsize=4096)
def decode_host(raw: bytes) -> str:
    """``address:port`` as RocketMQ's JSON has it; IPv6 in brackets-free full Java form."""
    (port,) = _INT32.unpack_from(raw, len(raw) - 4)
    return f"{host_address(raw)}:{port}"


def host_address(raw: bytes) -> str:
    """The address of a stored host; IPv6 as Java prints it (eight groups, nothing shortened)."""
    if len(raw) == HOST_V4_SIZE:
        return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}"
    return ":".join(f"{raw[n] << 8 | raw[n + 1]:x}" for n in range(0, 16, 2))


@dataclass(slots=True)
class MessageExt:
    """A message as it is stored. RocketMQ: MessageExt.

    ``body`` is the stored one, compressed if sys_flag says so; ``properties_raw`` are the stored
    bytes. Hosts are stored bytes too (``decode_host`` makes text of them).
    """

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    record_size: int
    magic: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties_raw: bytes

    @property
    def properties(self) -> dict[str, str]:
        """The properties as a new map."""
        return p.decode_properties(self.properties_raw)

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self._text(b"TAGS")

    @property
    def keys(self) -> str | None:
        """The KEYS property: keys separated by blanks."""
        return self._text(b"KEYS")

    @property
    def uniq_key(self) -> str | None:
        """The UNIQ_KEY property: the id that the client gave."""
        return self._text(b"UNIQ_KEY")

    def _text(self, name: bytes) -> str | None:
        raw = p.find_property(self.properties_raw, name)
        return None if raw is None else str(raw, "utf-8", "replace")

    @property
    def crc_ok(self) -> bool:
        """Whether the stored body passes its checksum."""
        return crc32(self.body) & CRC_MASK == self.body_crc

    @property
    def ends_in_zeros(self) -> bool:
        """Whether the last byte of properties, or of topic where there are none, is zero.

        No checksum covers these, and who copies a record into the log copies them last: the newest
        record of a log that is being written may still lack them.
        """
        if self.properties_raw:
            return self.properties_raw[-1] == 0
        return self.topic.endswith("\0")

    def encode(self) -> bytes:
        """The record's bytes, with ``record_size`` and ``body_crc`` as they stand here."""
        topic = self.topic.encode("utf-8", "surrogateescape")
        raw = self.properties_raw
        return b"".join(
            (
                FIXED[self.sys_flag & HOST_BITS].pack(
                    self.record_size,
                    self.magic,
                    self.body_crc,
                    self.queue_id,
                    self.flag,
                    self.queue_offset,
                    self.commit_log_offset,
                    self.sys_flag,
                    self.born_timestamp,
                    self.born_host,
                    self.store_timestamp,
                    self.store_host,
                    self.reconsume_times,
                    self.prepared_transaction_offset,
                    len(self.body),
                ),
                self.body,
                len(topic).to_bytes(TOPIC_LENGTH_SIZE[self.magic], "big") + topic,
                len(raw).to_bytes(2, "big") + raw,
            )
        )

    def under_topic(self, topic: str, **changes: Any) -> bytes:
        """A record's bytes with another topic, and what else is to differ; its size follows."""
        magic = MAGIC_V1 if len(topic.encode()) <= TOPIC_LENGTH_V1_MAX else MAGIC_V2
        other = replace(self, topic=topic, magic=magic, **changes)
        other.record_size = record_size(
            len(other.body), len(topic.encode()), len(other.properties_raw), self.sys_flag, magic
        )
        return other.encode()


class NotRecord:
    """What lies at a position where no record does: a `Blank`, or something `Invalid`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Blank(NotRecord):
    """The end of a segment: go on at the start of the next one."""

    position: int
    remaining: int


class Fault(Enum):
    """Why bytes are no record. The kernels' ScanEnd has the same names."""

    TRUNCATED = auto()  # the bytes end inside the record
    ZERO = auto()  # size and magic are 0: never written
    MAGIC = auto()  # no record has this magic
    SIZE = auto()  # the size is below a record's fixed part, or above the limit
    LENGTHS = auto()  # body, topic and properties do not add up to the size
    FOREIGN = auto()  # the record names another offset as its own
    BODY_CRC = auto()  # the body fails its checksum


@dataclass(frozen=True, slots=True)
class Invalid(NotRecord):
    """No valid record here, and why. ``record_size`` is set where it could still be trusted."""

    position: int
    fault: Fault
    reason: str
    record_size: int = -1


RecordParts = tuple[tuple[Any, ...], int, int, int, int]
"""Where the parts of a record lie, as `record_parts` gives them:

    fixed             the fields before the body, as ``FIXED`` unpacks them
    body_at           where the body starts
    topic_at          where the topic starts; its length of one or two bytes ends the body
    topic_end         where it ends, and the properties' length starts
    properties_at     where the properties start; they end the record

A plain tuple: making a named one would take a fifth of the time that a record takes.
"""


def record_parts(
    buffer: Buffer,
    position: int,
    limit: int,
    own_offset: int | None = None,
    size_max: int = 2**31 - 1,
) -> RecordParts | Blank | Invalid:
    """Takes one record apart and checks its lengths, but no checksum.

    Everything in Python that reads whole records builds on this, but for the client's
    `decode_messages`; `inspect_record` of the kernels does the same in C, with the same verdicts.

    Args:
        buffer: the segment, or a piece of it.
        position: where in the buffer the record starts.
        limit: where in the buffer the written data ends.
        own_offset: the CommitLog offset that the record must name as its own; None for any.
        size_max: no record is larger.
    """
    rest = limit - position
    if rest >= FIXED_SIZE_V1:
        fixed = _UNPACK_V4(buffer, position)
        size, magic = fixed[RECORD_SIZE], fixed[MAGIC]
    elif rest >= BLANK_SIZE_MIN:
        fixed = size, magic = BLANK.unpack_from(buffer, position)
    else:
        reason = f"{rest} bytes left, a record starts with {BLANK_SIZE_MIN}"
        return Invalid(position, Fault.TRUNCATED, reason)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if magic == BLANK_MAGIC:
            return Blank(position, size)
        fault = Fault.ZERO if size == magic == 0 else Fault.MAGIC
        return Invalid(position, fault, f"magic 0x{magic & 0xFFFFFFFF:08X} is none of a record")
    if size < FIXED_SIZE_V1 or size > size_max or size > rest:
        fault = Fault.SIZE if size < FIXED_SIZE_V1 or size > size_max else Fault.TRUNCATED
        reason = f"record size {size}, allowed are {FIXED_SIZE_V1} to {min(rest, size_max)}"
        return Invalid(position, fault, reason)
    if own_offset is not None and fixed[COMMIT_LOG_OFFSET] != own_offset:
        reason = f"the record names offset {fixed[COMMIT_LOG_OFFSET]}, it lies at {own_offset}"
        return Invalid(position, Fault.FOREIGN, reason)
    end = position + size
    body_at = position + BODY_POSITION_V4
    hosts = fixed[SYS_FLAG] & HOST_BITS
    if hosts:
        layout = FIXED[hosts]
        body_at = position + layout.size
        if body_at + 3 > end:
            reason = f"record size {size} is below its fixed part"
            return Invalid(position, Fault.SIZE, reason, size)
        fixed = layout.unpack_from(buffer, position)
    body_length = fixed[BODY_LENGTH]
    length_at = body_at + body_length
    if body_length < 0 or length_at + 3 > end:
        reason = f"body length {body_length} in a record of {size}"
        return Invalid(position, Fault.LENGTHS, reason, size)
    if magic == MAGIC_V1:
        topic_at = length_at + 1
        topic_end = topic_at + buffer[length_at]
    else:
        topic_at = length_at + 2
        topic_end = topic_at + (buffer[length_at] << 8 | buffer[length_at + 1])
    properties_at = topic_end + 2
    if properties_at > end:
        reason = f"topic length {topic_end - topic_at} in a record of {size}"
        return Invalid(position, Fault.LENGTHS, reason, size)
    adds_up_to = properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1]) - position
    if adds_up_to != size:
        reason = f"lengths add up to {adds_up_to}, the record says {size}"
        return Invalid(position, Fault.LENGTHS, reason, size)
    return fixed, body_at, topic_at, topic_end, properties_at


def stated_size(record: Buffer, position: int = 0) -> int:
    """The size that a record's first four bytes state; nothing is validated."""
    return int.from_bytes(record[position : position + 4], "big", signed=True)


def body_fits(buffer: Buffer, parts: RecordParts) -> bool:
    """Whether the stored body of a record passes its checksum; an empty one always does."""
    fixed, body_at = parts[:2]
    length = fixed[BODY_LENGTH]
    return not length or body_crc(buffer[body_at : body_at + length]) == fixed[BODY_CRC]


class DispatchRequest:
    """What ConsumeQueue, Index and other dispatchers need to know of one record.

    RocketMQ: DispatchRequest. ``tags_code`` is a due time for the schedule topic. ``batch_size``
    and ``message_base_offset`` are -1 unless the record is an inner batch.
    """

    __slots__ = (
        "batch_size",
        "bit_map",
        "born_timestamp",
        "commit_log_offset",
        "message_base_offset",
        "prepared_transaction_offset",
        "properties_raw",
        "queue_id",
        "queue_offset",
        "record_size",
        "store_timestamp",
        "sys_flag",
        "tags_code",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        commit_log_offset: int,
        record_size: int,
        tags_code: int,
        store_timestamp: int,
        queue_offset: int,
        sys_flag: int,
        prepared_transaction_offset: int,
        properties_raw: bytes,
        born_timestamp: int = 0,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.commit_log_offset = commit_log_offset
        self.record_size = record_size
        self.tags_code = tags_code
        self.store_timestamp = store_timestamp
        self.queue_offset = queue_offset
        self.sys_flag = sys_flag
        self.prepared_transaction_offset = prepared_transaction_offset
        self.properties_raw = properties_raw
        self.born_timestamp = born_timestamp
        self.bit_map: bytes | None = None
        self.batch_size = -1
        self.message_base_offset = -1

    def find(self, name: bytes) -> bytes | None:
        """One property's value as stored, or None."""
        return p.find_property(self.properties_raw, name)

    @property
    def uniq_key(self) -> str | None:
        """The UNIQ_KEY property."""
        raw = p.find_property(self.properties_raw, b"UNIQ_KEY")
        return None if raw is None else str(raw, "utf-8", "replace")

    @property
    def keys(self) -> str | None:
        """The KEYS property."""
        raw = p.find_property(self.properties_raw, b"KEYS")
        return None if raw is None else str(raw, "utf-8", "replace")

    def __repr__(self) -> str:
        return (
            f"DispatchRequest({self.topic!r}, queue {self.queue_id}, offset {self.queue_offset}, "
            f"at {self.commit_log_offset}, {self.record_size} bytes)"
        )


def read_dispatch_request(
    buffer: Buffer,
    position: int,
    limit: int,
    stream_offset: int,
    *,
    check_crc: bool = False,
    delays_ms: Sequence[int] = (0,),
) -> DispatchRequest | Blank | Invalid:
    """Validates one record and takes out what dispatch needs.

    Args:
        buffer: the segment, or a piece of it.
        position: where in the buffer the record starts.
        limit: where in the buffer the written data ends.
        stream_offset: the CommitLog offset of the buffer's byte 0; the record must name
            ``stream_offset + position`` as its own.
        check_crc: whether the body is compared with its checksum.
        delays_ms: milliseconds by delay level, for due times in the schedule topic.
    """
    parts = record_parts(buffer, position, limit, stream_offset + position)
    if isinstance(parts, NotRecord):
        return parts
    fixed, _, topic_at, topic_end, properties_at = parts
    (
        size,
        _,
        stored_crc,
        queue_id,
        _,
        queue_offset,
        commit_log_offset,
        sys_flag,
        born_timestamp,
        _,
        store_timestamp,
        _,
        _,
        prepared_transaction_offset,
        _,
    ) = fixed
    if check_crc and not body_fits(buffer, parts):
        reason = f"body CRC differs from the stored {stored_crc}"
        return Invalid(position, Fault.BODY_CRC, reason, size)
    topic = str(buffer[topic_at:topic_end], "utf-8", "replace")
    raw = bytes(buffer[properties_at : position + size])
    tags = p.find_property(raw, b"TAGS")
    request = DispatchRequest(
        topic,
        queue_id,
        commit_log_offset,
        size,
        tags_hash(tags) if tags else 0,
        store_timestamp,
        queue_offset,
        sys_flag,
        prepared_transaction_offset,
        raw,
        born_timestamp,
    )
    if topic == SCHEDULE_TOPIC:
        level = _decimal(p.find_property(raw, b"DELAY"))
        if level > 0:
            request.tags_code = deliver_time(level, store_timestamp, tuple(delays_ms))
    if sys_flag & 0x80:
        request.batch_size = _decimal(p.find_property(raw, b"INNER_NUM"), -1)
        request.message_base_offset = _decimal(p.find_property(raw, b"INNER_BASE"), -1)
    return request


def _decimal(raw: bytes | None, default: int = 0) -> int:
    if raw is None:
        return default
    try:
        return int(raw)
    except ValueError:
        return default


def decode_record(
    buffer: Buffer,
    position: int = 0,
    *,
    check_crc: bool = False,
    at: int | None = None,
) -> MessageExt:
    """Decodes one record completely.

    Args:
        buffer: bytes that hold the record.
        position: where it starts.
        check_crc: whether the body must pass its checksum.
        at: the CommitLog offset it must name as its own, or None for any.

    Raises:
        RecordError: the bytes are no record (blank, other magic, lengths that do not add up, a
            body that fails its CRC, another offset than ``at``).
    """
    parts = record_parts(buffer, position, len(buffer), at)
    if isinstance(parts, NotRecord):
        raise _no_record(position if at is None else at, parts)
    fixed, body_at, topic_at, topic_end, properties_at = parts
    (
        size,
        magic,
        stored_crc,
        queue_id,
        flag,
        queue_offset,
        commit_log_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = fixed
    body = bytes(buffer[body_at : body_at + body_length])
    if check_crc and body and crc32(body) & CRC_MASK != stored_crc:
        raise RecordError(
            f"record at {commit_log_offset}: body CRC {crc32(body) & CRC_MASK}, "
            f"the record says {stored_crc}"
        )
    return MessageExt(
        str(buffer[topic_at:topic_end], "utf-8", "replace"),
        queue_id,
        queue_offset,
        commit_log_offset,
        size,
        magic,
        stored_crc,
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        bytes(buffer[properties_at : position + size]),
    )


def _no_record(place: int, found: Blank | Invalid) -> RecordError:
    reason = found.reason if isinstance(found, Invalid) else "the blank that ends a segment"
    return RecordError(f"record at {place}: {reason}")


def properties_at(buffer: Buffer, position: int = 0) -> bytes:
    """The properties string of the record that starts at a position.

    Raises:
        RecordError: the bytes are no record; of the lengths of nearly every record just that of the
            properties is looked at.
    """
    try:
        size, magic, sys_flag, body_size = _LENGTHS.unpack_from(buffer, position)
        if magic == MAGIC_V1 and not sys_flag & HOST_BITS:
            # The way of nearly every record: one copy of what lies after the body.
            tail = bytes(buffer[position + BODY_POSITION_V4 + body_size : position + size])
            start = tail[0] + 3
            if body_size >= 0 and tail[start - 2] << 8 | tail[start - 1] == len(tail) - start:
                return tail[start:]
    except (struct.error, IndexError) as error:
        raise RecordError(f"record at {position}: {error}") from None
    parts = record_parts(buffer, position, len(buffer))
    if isinstance(parts, NotRecord):
        raise _no_record(position, parts)
    return bytes(buffer[parts[4] : position + parts[0][RECORD_SIZE]])


STORE_TIMESTAMP_END_MAX: Final = BORN_HOST_POSITION + HOST_V6_SIZE + _INT64.size
"""Bytes of a record up to its store time, where the address before that is the longer one."""


def store_timestamp_at(buffer: Buffer, position: int) -> int:
    """The store time of the record that starts at a position, ms; nothing is validated."""
    sys_flag = _INT32.unpack_from(buffer, position + SYS_FLAG_POSITION)[0]
    at = position + BORN_HOST_POSITION + (HOST_V6_SIZE if sys_flag & BORN_HOST_V6 else HOST_V4_SIZE)
    timestamp: int = _INT64.unpack_from(buffer, at)[0]
    return timestamp


def record_size(
    body_length: int, topic_length: int, properties_length: int, sys_flag: int, magic: int
) -> int:
    """Bytes of a record with parts of these lengths."""
    fixed = FIXED[sys_flag & HOST_BITS].size + TOPIC_LENGTH_SIZE[magic] + 2
    return fixed + body_length + topic_length + properties_length


def encode_blank(remaining: int) -> bytes:
    """The eight bytes that end a segment with ``remaining`` bytes to go."""
    return BLANK.pack(remaining, BLANK_MAGIC)
