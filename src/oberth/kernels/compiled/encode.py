"""Rows as CommitLog records."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

from oberth.formats.message import CRC_MASK, FIXED_SIZE_V1, HOST_V4_SIZE
from oberth.formats.properties import PROPERTIES_SIZE_MAX
from oberth.kernels import arguments as at
from oberth.kernels.arguments import ENCODE_COLUMNS, EncodeEnd
from oberth.kernels.compiled.abi import (
    bytes_at,
    copy_bytes,
    helper,
    int32_at,
    int64_at,
    prefetch_read,
    store_be16,
    store_be32,
    store_be64,
    store_u8,
    uint32_at,
)
from oberth.kernels.compiled.checks import crc32

_DONE = int(EncodeEnd.DONE)
_FULL = int(EncodeEnd.FULL)
_BODY = int(EncodeEnd.BODY)
_SEPARATOR = int(EncodeEnd.SEPARATOR)
_PROPERTIES = int(EncodeEnd.PROPERTIES)
_RECORD = int(EncodeEnd.RECORD)
_NAME_END, _VALUE_END = 1, 2
_FIELDS = at.VALUES_FIELDS
# Without body, topic and its length, properties and the hosts.
_FIXED = FIXED_SIZE_V1 - 1 - 2 * HOST_V4_SIZE
(
    _QUEUE_ID,
    _FLAG,
    _SYS_FLAG,
    _BORN,
    _STORE,
    _RECONSUME,
    _PREPARED,
    _TOPIC,
    _BORN_HOST,
    _STORE_HOST,
) = (at.ENCODE_NUMBERS + 2 * n for n in range(len(ENCODE_COLUMNS)))


@helper
def number(args: Any, column: int, row: int) -> int:
    """A row's number in a column."""
    return int64_at(args[column])[row * args[column + 1]]


@helper
def value_bounds(column: Any, row: int) -> tuple[int, int]:
    """Where a row's value begins and its size; 0 bytes where it has none."""
    if column[at.VALUES_VALIDITY] != 0:
        bit = column[at.VALUES_BIT] + row
        if (bytes_at(column[at.VALUES_VALIDITY])[bit >> 3] >> (bit & 7)) & 1 == 0:
            return 0, 0
    offsets = int32_at(column[at.VALUES_OFFSETS])
    start = int(offsets[row])
    return start, int(offsets[row + 1]) - start


@helper
def has_separator(data: Any, start: int, size: int) -> bool:
    """Whether a byte of a value would end it, or a name."""
    found = 0
    for position in range(start, start + size):
        byte = data[position]
        found |= (byte == _NAME_END) | (byte == _VALUE_END)
    return found != 0


@helper
def put_value(out: Any, position: int, column: Any, row: int) -> int:
    """Copies a row's value; where it ends."""
    start, size = value_bounds(column, row)
    copy_bytes(out, position, bytes_at(column[at.VALUES_DATA]), start, size)
    return position + size


def encode(args: Any) -> int:
    """Kernel: records of the rows, back to back; an `EncodeEnd`."""
    row = args[at.ENCODE_ROW]
    rows = args[at.ENCODE_ROWS]
    log_offset = args[at.ENCODE_LOG_OFFSET]
    out = bytes_at(args[at.ENCODE_OUT])
    room = args[at.ENCODE_OUT_MAX]
    sizes = int64_at(args[at.ENCODE_SIZES])
    tables = uint32_at(args[at.ENCODE_CRC_TABLES])
    topics = int64_at(args[at.ENCODE_TOPICS])
    magics = int64_at(args[at.ENCODE_MAGICS])
    hosts = int64_at(args[at.ENCODE_HOSTS])
    bodies = int64_at(args[at.ENCODE_BODIES])
    body_data = bytes_at(bodies[at.VALUES_DATA])
    stored = int64_at(args[at.ENCODE_STORED])
    named = args[at.ENCODE_PROPERTIES]
    named_count = args[at.ENCODE_PROPERTY_COUNT]
    used = 0
    ended = _DONE
    while row < rows:
        body_at, body_size = value_bounds(bodies, row)
        if body_size > args[at.ENCODE_BODY_MAX]:
            args[at.ENCODE_NEEDED] = body_size
            ended = _BODY
            break
        prefetch_read(body_data, body_at + body_size)
        topic = number(args, _TOPIC, row)
        born_host = number(args, _BORN_HOST, row)
        store_host = number(args, _STORE_HOST, row)
        _, properties_size = value_bounds(stored, row)
        for n in range(named_count):
            values = int64_at(named + 16 * n * _FIELDS + 8 * _FIELDS)
            start, size = value_bounds(values, row)
            if size > 0:
                if has_separator(bytes_at(values[at.VALUES_DATA]), start, size):
                    args[at.ENCODE_BAD_PROPERTY] = n
                    ended = _SEPARATOR
                    break
                _, name_size = value_bounds(int64_at(named + 16 * n * _FIELDS), 0)
                properties_size += name_size + size + 1
        if ended != _DONE:
            break
        if properties_size > PROPERTIES_SIZE_MAX:
            args[at.ENCODE_NEEDED] = properties_size
            ended = _PROPERTIES
            break
        _, topic_size = value_bounds(topics, topic)
        _, born_size = value_bounds(hosts, born_host)
        _, store_size = value_bounds(hosts, store_host)
        record_size = _FIXED + body_size + topic_size + properties_size + born_size + store_size
        args[at.ENCODE_NEEDED] = record_size
        if record_size > args[at.ENCODE_RECORD_MAX]:
            ended = _RECORD
            break
        if used + record_size > room:
            ended = _FULL
            break
        checksum = crc32(body_data, body_at, body_size, tables) & CRC_MASK
        store_be32(out, used, record_size)
        store_be32(out, used + 4, magics[topic])
        store_be32(out, used + 8, checksum)
        store_be32(out, used + 12, number(args, _QUEUE_ID, row))
        store_be32(out, used + 16, number(args, _FLAG, row))
        store_be64(out, used + 20, 0)
        store_be64(out, used + 28, log_offset + used)
        store_be32(out, used + 36, number(args, _SYS_FLAG, row))
        store_be64(out, used + 40, number(args, _BORN, row))
        position = put_value(out, used + 48, hosts, born_host)
        store_be64(out, position, number(args, _STORE, row))
        position = put_value(out, position + 8, hosts, store_host)
        store_be32(out, position, number(args, _RECONSUME, row))
        store_be64(out, position + 4, number(args, _PREPARED, row))
        store_be32(out, position + 12, body_size)
        copy_bytes(out, position + 16, body_data, body_at, body_size)
        position = put_value(out, position + 16 + body_size, topics, topic)
        store_be16(out, position, properties_size)
        position += 2
        for n in range(named_count):
            values = int64_at(named + 16 * n * _FIELDS + 8 * _FIELDS)
            _, size = value_bounds(values, row)
            if size > 0:
                position = put_value(out, position, int64_at(named + 16 * n * _FIELDS), 0)
                position = put_value(out, position, values, row)
                store_u8(out, position, _VALUE_END)
                position += 1
        put_value(out, position, stored, row)
        sizes[row] = record_size
        used += record_size
        row += 1
    args[at.ENCODE_ROW] = row
    args[at.ENCODE_OUT_USED] = used
    return ended
