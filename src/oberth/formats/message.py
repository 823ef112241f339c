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
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple
from zlib import crc32

from oberth.errors import RecordError
from oberth.formats import properties as p
from oberth.formats.delay_level import deliver_time
from oberth.formats.java_string import tags_hash
from oberth.formats.sys_flag import BORN_HOST_V6, STORE_HOST_V6

Buffer = bytes | bytearray | memoryview

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
BLANK_MAGIC = -875286124
BLANK_SIZE_MIN = 8
CRC_MASK = 0x7FFFFFFF

HOST_V4_SIZE = 8
HOST_V6_SIZE = 20
# Record sizes without body, topic and properties.
FIXED_SIZE_V1 = 91
FIXED_SIZE_V2 = 92
# A topic longer than this needs a v2 record.
TOPIC_LENGTH_V1_MAX = 127
TOPIC_LENGTH_V2_MAX = 32767

MAGIC_POSITION = 4
QUEUE_OFFSET_POSITION = 20
COMMIT_LOG_OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
BORN_HOST_POSITION = 48

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def _fixed(born_host_size: int, store_host_size: int) -> struct.Struct:
    return struct.Struct(
        ">"
        "i"  # record_size
        "i"  # magic
        "i"  # body_crc
        "i"  # queue_id
        "i"  # flag
        "q"  # queue_offset
        "q"  # commit_log_offset
        "i"  # sys_flag
        "q"  # born_timestamp
        f"{born_host_size}s"  # born_host
        "q"  # store_timestamp
        f"{store_host_size}s"  # store_host
        "i"  # reconsume_times
        "q"  # prepared_transaction_offset
        "i"  # body_length
    )


# The part before the body, by the two host bits of sysFlag: FIXED[sys_flag & HOST_BITS].
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
FIXED: dict[int, struct.Struct] = {
    0: _fixed(HOST_V4_SIZE, HOST_V4_SIZE),
    BORN_HOST_V6: _fixed(HOST_V6_SIZE, HOST_V4_SIZE),
    STORE_HOST_V6: _fixed(HOST_V4_SIZE, HOST_V6_SIZE),
    HOST_BITS: _fixed(HOST_V6_SIZE, HOST_V6_SIZE),
}
FIXED_V4 = FIXED[0]
assert FIXED_V4.size == FIXED_SIZE_V1 - 3 == 88

BLANK = struct.Struct(
    ">"
    "i"  # remaining
    "i"  # magic
)
assert BLANK.size == BLANK_SIZE_MIN

_INT32 = struct.Struct(">i")
# Size, magic, sysFlag and, where both hosts are IPv4, the body's length.
_LENGTHS = struct.Struct(">ii28xi44xi")
assert _LENGTHS.size == FIXED_V4.size
_INT64 = struct.Struct(">q")


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


def host_port(raw: bytes) -> int:
    """The port of a stored host."""
    port: int = _INT32.unpack_from(raw, len(raw) - 4)[0]
    return port


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
        fixed = FIXED[self.sys_flag & HOST_BITS]
        topic = self.topic.encode("utf-8", "surrogateescape")
        length = bytes((len(topic),)) if self.magic == MAGIC_V1 else len(topic).to_bytes(2, "big")
        return b"".join(
            (
                fixed.pack(
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
                length,
                topic,
                len(self.properties_raw).to_bytes(2, "big"),
                self.properties_raw,
            )
        )


class Blank(NamedTuple):
    """The end of a segment: go on at the start of the next one."""

    position: int
    remaining: int


class Invalid(NamedTuple):
    """No valid record here, and why. ``record_size`` is set where it could still be trusted."""

    position: int
    reason: str
    record_size: int = -1


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
    if limit - position < BLANK_SIZE_MIN:
        return Invalid(position, f"{limit - position} bytes left, a record starts with 8")
    size, magic = BLANK.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        return Blank(position, size)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return Invalid(position, f"magic 0x{magic & 0xFFFFFFFF:08X} is none of a record")
    if size < FIXED_SIZE_V1 or size > limit - position:
        return Invalid(
            position, f"record size {size}, allowed are {FIXED_SIZE_V1} to {limit - position}"
        )
    sys_flag = _INT32.unpack_from(buffer, position + SYS_FLAG_POSITION)[0]
    fixed = FIXED[sys_flag & HOST_BITS]
    body_start = position + fixed.size
    end = position + size
    if body_start + 3 > end:
        return Invalid(position, f"record size {size} is below its fixed part", size)
    (
        _,
        _,
        stored_crc,
        queue_id,
        _,
        queue_offset,
        commit_log_offset,
        _,
        born_timestamp,
        _,
        store_timestamp,
        _,
        _,
        prepared_transaction_offset,
        body_length,
    ) = fixed.unpack_from(buffer, position)
    if commit_log_offset != stream_offset + position:
        return Invalid(
            position,
            f"the record names offset {commit_log_offset}, it lies at {stream_offset + position}",
        )
    topic_at = body_start + body_length
    if body_length < 0 or topic_at + 3 > end:
        return Invalid(position, f"body length {body_length} in a record of {size}", size)
    if magic == MAGIC_V1:
        topic_start = topic_at + 1
        topic_length = buffer[topic_at]
    else:
        topic_start = topic_at + 2
        topic_length = buffer[topic_at] << 8 | buffer[topic_at + 1]
    properties_at = topic_start + topic_length
    if properties_at + 2 > end:
        return Invalid(position, f"topic length {topic_length} in a record of {size}", size)
    properties_start = properties_at + 2
    if properties_start + (buffer[properties_at] << 8 | buffer[properties_at + 1]) != end:
        return Invalid(position, f"lengths do not add up to the record size {size}", size)
    if check_crc and body_length and crc32(buffer[body_start:topic_at]) & CRC_MASK != stored_crc:
        return Invalid(position, f"body CRC differs from the stored {stored_crc}", size)
    topic = str(buffer[topic_start:properties_at], "utf-8", "replace")
    raw = bytes(buffer[properties_start:end])
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
    available = len(buffer) - position
    if available < FIXED_SIZE_V1:
        raise RecordError(f"record at {position}: {available} bytes, needed are {FIXED_SIZE_V1}")
    size, magic = BLANK.unpack_from(buffer, position)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordError(
            f"record at {position}: magic 0x{magic & 0xFFFFFFFF:08X}, "
            f"allowed are 0x{MAGIC_V1 & 0xFFFFFFFF:08X} and 0x{MAGIC_V2 & 0xFFFFFFFF:08X}"
        )
    if size < FIXED_SIZE_V1 or size > available:
        raise RecordError(
            f"record at {position}: size {size}, allowed are {FIXED_SIZE_V1} to {available}"
        )
    sys_flag = _INT32.unpack_from(buffer, position + SYS_FLAG_POSITION)[0]
    fixed = FIXED[sys_flag & HOST_BITS]
    end = position + size
    body_start = position + fixed.size
    if body_start + 3 > end:
        raise RecordError(f"record at {position}: size {size} is below its fixed part")
    (
        _,
        _,
        stored_crc,
        queue_id,
        flag,
        queue_offset,
        commit_log_offset,
        _,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = fixed.unpack_from(buffer, position)
    topic_at = body_start + body_length
    if body_length < 0 or topic_at + 3 > end:
        raise RecordError(f"record at {position}: body length {body_length} in a record of {size}")
    if magic == MAGIC_V1:
        topic_start = topic_at + 1
        topic_length = buffer[topic_at]
    else:
        topic_start = topic_at + 2
        topic_length = buffer[topic_at] << 8 | buffer[topic_at + 1]
    properties_at = topic_start + topic_length
    if properties_at + 2 > end:
        raise RecordError(
            f"record at {position}: topic length {topic_length} in a record of {size}"
        )
    properties_start = properties_at + 2
    properties_length = buffer[properties_at] << 8 | buffer[properties_at + 1]
    if properties_start + properties_length != end:
        raise RecordError(
            f"record at {position}: lengths add up to "
            f"{properties_start + properties_length - position}, the record says {size}"
        )
    if at is not None and commit_log_offset != at:
        raise RecordError(f"record at {at}: it names offset {commit_log_offset}")
    body = bytes(buffer[body_start:topic_at])
    if check_crc and body and crc32(body) & CRC_MASK != stored_crc:
        raise RecordError(
            f"record at {commit_log_offset}: body CRC {crc32(body) & CRC_MASK}, "
            f"the record says {stored_crc}"
        )
    return MessageExt(
        str(buffer[topic_start:properties_at], "utf-8", "replace"),
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
        bytes(buffer[properties_start:end]),
    )


def properties_at(buffer: Buffer, position: int = 0) -> bytes:
    """The properties string of the record that starts at a position; little is validated.

    Raises:
        RecordError: the lengths lead out of the buffer.
    """
    try:
        size, magic, sys_flag, body_size = _LENGTHS.unpack_from(buffer, position)
        if magic == MAGIC_V1 and not sys_flag & HOST_BITS:
            # The way of nearly every record: one copy of what lies behind the body.
            tail = bytes(buffer[position + FIXED_V4.size + body_size : position + size])
            start = tail[0] + 3
            if body_size >= 0 and tail[start - 2] << 8 | tail[start - 1] == len(tail) - start:
                return tail[start:]
        if sys_flag & HOST_BITS:
            body_start = position + FIXED[sys_flag & HOST_BITS].size
            topic_at = body_start + _INT32.unpack_from(buffer, body_start - 4)[0]
        else:
            topic_at = position + FIXED_V4.size + body_size
        if magic == MAGIC_V1:
            length_at = topic_at + 1 + buffer[topic_at]
        else:
            length_at = topic_at + 2 + (buffer[topic_at] << 8 | buffer[topic_at + 1])
        start = length_at + 2
        end = start + (buffer[length_at] << 8 | buffer[length_at + 1])
    except (struct.error, IndexError) as error:
        raise RecordError(f"record at {position}: {error}") from None
    if not position < start <= end <= len(buffer):
        raise RecordError(f"record at {position}: properties at {start} to {end}")
    return bytes(buffer[start:end])


STORE_TIMESTAMP_END_MAX = BORN_HOST_POSITION + HOST_V6_SIZE + _INT64.size
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
    fixed = FIXED_SIZE_V1 if magic == MAGIC_V1 else FIXED_SIZE_V2
    for bit in (BORN_HOST_V6, STORE_HOST_V6):
        if sys_flag & bit:
            fixed += HOST_V6_SIZE - HOST_V4_SIZE
    return fixed + body_length + topic_length + properties_length


def encode_blank(remaining: int) -> bytes:
    """The eight bytes that end a segment with ``remaining`` bytes to go."""
    return BLANK.pack(remaining, BLANK_MAGIC)
