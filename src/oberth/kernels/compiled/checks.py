"""CRC-32, Java hashes over UTF-8 and the test whether a record starts at a position."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

from oberth.formats.message import (
    BLANK_MAGIC,
    CRC_MASK,
    FIXED_SIZE_V1,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
)
from oberth.formats.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from oberth.kernels import arguments as at
from oberth.kernels.arguments import ScanEnd
from oberth.kernels.compiled.abi import (
    HAVE_CARRYLESS_MULTIPLY,
    bytes_at,
    crc_fold,
    helper,
    load_be16,
    load_be32,
    load_be64,
    load_le32,
    load_le64,
    load_u8,
    match_64,
    trailing_zeros,
    uint32_at,
)

_BLANK = int(ScanEnd.BLANK)
_TRUNCATED = int(ScanEnd.TRUNCATED)
_ZERO = int(ScanEnd.ZERO)
_MAGIC = int(ScanEnd.MAGIC)
_SIZE = int(ScanEnd.SIZE)
_LENGTHS = int(ScanEnd.LENGTHS)
_FOREIGN = int(ScanEnd.FOREIGN)

HIGH_BITS = -0x7F7F7F7F7F7F7F80  # 0x80 in each byte
_POWER_2, _POWER_3, _POWER_4, _POWER_5, _POWER_6, _POWER_7, _POWER_8 = (
    pow(31, n, 1 << 32) for n in range(2, 9)
)

_FIRST_MAGIC_BYTE = (MAGIC_V1 >> 24) & 0xFF
_CRC_TAIL_SIZE = 20
_CRC_TAIL_LE64 = int.from_bytes(b"__CRC32#", "little")


@helper
def crc_16(low: int, high: int, tables: Any) -> int:
    """The CRC of 16 bytes, given as two little-endian numbers, from the state 0."""
    crc = 0
    for n in range(8):
        crc ^= tables[(15 - n) * 256 + ((low >> (8 * n)) & 0xFF)]
        crc ^= tables[(7 - n) * 256 + ((high >> (8 * n)) & 0xFF)]
    return crc


@helper
def crc32(data: Any, start: int, size: int, tables: Any) -> int:
    """The CRC-32 of bytes as zlib computes it, 0 … 2**32-1."""
    crc = 0xFFFFFFFF
    position = start
    end = start + size
    if HAVE_CARRYLESS_MULTIPLY and size >= 64:
        whole = size & ~15
        low, high = crc_fold(data, position, whole, crc)
        crc = crc_16(low, high, tables)
        position += whole
    while end - position >= 16:
        crc = crc_16(load_le64(data, position) ^ crc, load_le64(data, position + 8), tables)
        position += 16
    if end - position >= 8:
        low = load_le64(data, position) ^ crc
        crc = 0
        for n in range(8):
            crc ^= tables[(7 - n) * 256 + ((low >> (8 * n)) & 0xFF)]
        position += 8
    if end - position >= 4:
        low = load_le32(data, position) ^ crc
        crc = 0
        for n in range(4):
            crc ^= tables[(3 - n) * 256 + ((low >> (8 * n)) & 0xFF)]
        position += 4
    while position < end:
        crc = tables[(crc ^ data[position]) & 0xFF] ^ (crc >> 8)
        position += 1
    return crc ^ 0xFFFFFFFF


@helper
def continuation(data: Any, position: int, end: int) -> bool:
    """Whether a UTF-8 continuation byte is at the position."""
    return position < end and (data[position] & 0xC0) == 0x80


@helper
def text_hash(data: Any, start: int, size: int, seed: int) -> int:
    """Continues Java's String.hashCode (unsigned) over UTF-8; broken sequences are U+FFFD each."""
    h = seed
    position = start
    end = start + size
    while position < end:
        # Eight ASCII characters at once: eight products that do not wait for each other.
        while end - position >= 8:
            eight = load_le64(data, position)
            if eight & HIGH_BITS != 0:
                break
            h = (
                h * _POWER_8
                + (eight & 0xFF) * _POWER_7
                + ((eight >> 8) & 0xFF) * _POWER_6
                + ((eight >> 16) & 0xFF) * _POWER_5
                + ((eight >> 24) & 0xFF) * _POWER_4
                + ((eight >> 32) & 0xFF) * _POWER_3
                + ((eight >> 40) & 0xFF) * _POWER_2
                + ((eight >> 48) & 0xFF) * 31
                + (eight >> 56)
            ) & 0xFFFFFFFF
            position += 8
        if position == end:
            break
        first = load_u8(data, position)
        position += 1
        if first < 0x80:
            h = (h * 31 + first) & 0xFFFFFFFF
            continue
        unit = 0xFFFD
        if 0xC2 <= first <= 0xDF:
            if continuation(data, position, end):
                unit = (first & 0x1F) << 6 | (data[position] & 0x3F)
                position += 1
        elif 0xE0 <= first <= 0xEF:
            low = 0xA0 if first == 0xE0 else 0x80
            high = 0x9F if first == 0xED else 0xBF
            if position < end and low <= data[position] <= high:
                second = load_u8(data, position)
                position += 1
                if continuation(data, position, end):
                    unit = (first & 0x0F) << 12 | (second & 0x3F) << 6 | (data[position] & 0x3F)
                    position += 1
        elif 0xF0 <= first <= 0xF4:
            low = 0x90 if first == 0xF0 else 0x80
            high = 0x8F if first == 0xF4 else 0xBF
            if position < end and low <= data[position] <= high:
                second = load_u8(data, position)
                position += 1
                if continuation(data, position, end):
                    third = load_u8(data, position)
                    position += 1
                    if continuation(data, position, end):
                        point = (
                            (first & 0x07) << 18
                            | (second & 0x3F) << 12
                            | (third & 0x3F) << 6
                            | (data[position] & 0x3F)
                        ) - 0x10000
                        position += 1
                        h = (h * 31 + 0xD800 + (point >> 10)) & 0xFFFFFFFF
                        unit = 0xDC00 + (point & 0x3FF)
        h = (h * 31 + unit) & 0xFFFFFFFF
    return h


@helper
def signed_32(value: int) -> int:
    """An unsigned 32-bit number read as a signed one."""
    return value - 0x100000000 if value & 0x80000000 else value


@helper
def inspect_record(
    data: Any, limit: int, base: int, position: int, own_position: int, size_max: int
) -> Any:
    """Whether a record starts here, checksums aside.

    Returns:
        (0 or a ScanEnd, sys_flag, body_at, topic_at, topic_size, properties_at); the body ends one
        or two bytes before topic_at, as the magic says, and the properties end the record.
    """
    rest = limit - position
    if rest < 8:
        return _TRUNCATED, 0, 0, 0, 0, 0
    size = load_be32(data, position)
    magic = load_be32(data, position + 4)
    if magic == BLANK_MAGIC:
        return _BLANK, 0, 0, 0, 0, 0
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return (_ZERO if size == 0 and magic == 0 else _MAGIC), 0, 0, 0, 0, 0
    if size < FIXED_SIZE_V1 or size > size_max:
        return _SIZE, 0, 0, 0, 0, 0
    if size > rest:
        return _TRUNCATED, 0, 0, 0, 0, 0
    if own_position and load_be64(data, position + 28) != base + position:
        return _FOREIGN, 0, 0, 0, 0, 0
    sys_flag = load_be32(data, position + 36)
    body_at = position + 88
    if sys_flag & BORN_HOST_V6:
        body_at += HOST_V6_SIZE - HOST_V4_SIZE
    if sys_flag & STORE_HOST_V6:
        body_at += HOST_V6_SIZE - HOST_V4_SIZE
    end = position + size
    if body_at + 3 > end:
        return _SIZE, 0, 0, 0, 0, 0
    body_size = load_be32(data, body_at - 4)
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 3 > end:
        return _LENGTHS, 0, 0, 0, 0, 0
    if magic == MAGIC_V1:
        topic_size = load_u8(data, topic_at)
        topic_at += 1
    else:
        topic_size = load_be16(data, topic_at)
        topic_at += 2
    properties_at = topic_at + topic_size + 2
    if properties_at > end:
        return _LENGTHS, 0, 0, 0, 0, 0
    if properties_at + load_be16(data, properties_at - 2) != end:
        return _LENGTHS, 0, 0, 0, 0, 0
    return 0, sys_flag, body_at, topic_at, topic_size, properties_at


@helper
def body_crc_ok(data: Any, position: int, body_at: int, tables: Any) -> bool:
    """Whether the body passes the record's checksum; an empty one always does."""
    size = load_be32(data, body_at - 4)
    if size == 0:
        return True
    wanted = load_be32(data, position + 8)
    return (crc32(data, body_at, size, tables) & CRC_MASK) == wanted


@helper
def record_crc_ok(data: Any, position: int, properties_at: int, tables: Any) -> bool:
    """Whether the whole-record CRC property is there, at the end, and right."""
    end = position + load_be32(data, position)
    tail = end - _CRC_TAIL_SIZE
    if tail < properties_at or load_le64(data, tail) != _CRC_TAIL_LE64:
        return False
    if data[tail + 8] != 1 or data[end - 1] != 2:
        return False
    value = 0
    for n in range(10):
        digit = load_u8(data, end - 2 - n) - 48
        if digit < 0 or digit > 9:
            return False
        value = value * 10 + digit
    return value == (crc32(data, position, tail - position, tables) & CRC_MASK)


def crc(args: Any) -> int:
    """Kernel: `crc32` of bytes."""
    data = bytes_at(args[at.CRC_DATA])
    tables = uint32_at(args[at.CRC_TABLES])
    return crc32(data, args[at.CRC_START], args[at.CRC_SIZE], tables)


def java_hash(args: Any) -> int:
    """Kernel: `text_hash` of bytes."""
    data = bytes_at(args[at.HASH_DATA])
    return text_hash(data, args[at.HASH_START], args[at.HASH_SIZE], args[at.HASH_SEED])


def find(args: Any) -> int:
    """Kernel: position of the first valid record at or after a position, -1 for none."""
    data = bytes_at(args[at.FIND_DATA])
    limit = args[at.FIND_LIMIT]
    base = args[at.FIND_BASE]
    own_position = args[at.FIND_OWN_POSITION]
    size_max = args[at.FIND_SIZE_MAX]
    check_crc = args[at.FIND_CHECK_CRC]
    tables = uint32_at(args[at.FIND_CRC_TABLES])
    # From here on positions are those of the magic, 4 bytes into the record.
    position = args[at.FIND_START] + 4
    stop = min(args[at.FIND_STOP] + 4, limit - 4)
    while position < stop:
        if limit - position >= 64:
            matches = match_64(data, position, _FIRST_MAGIC_BYTE)
            block_end = position + 64
        else:
            matches = 0
            block_end = limit
            for n in range(limit - position):
                if data[position + n] == _FIRST_MAGIC_BYTE:
                    matches |= 1 << n
        while matches != 0:
            candidate = position + trailing_zeros(matches)
            matches &= matches - 1
            if candidate >= stop:
                return -1
            if data[candidate + 1] != 0xA3 or data[candidate + 2] != 0x20:
                continue
            found, _, body_at, _, _, _ = inspect_record(
                data, limit, base, candidate - 4, own_position, size_max
            )
            if found == 0 and (not check_crc or body_crc_ok(data, candidate - 4, body_at, tables)):
                return candidate - 4
        position = block_end
    return -1
