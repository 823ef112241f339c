"""Scanning records into columns."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

from oberth.formats.delay_level import UNKNOWN_LEVEL_DELAY_MS
from oberth.formats.message import HOST_V4_SIZE, HOST_V6_SIZE, SCHEDULE_TOPIC
from oberth.formats.sys_flag import BORN_HOST_V6
from oberth.kernels import arguments as at
from oberth.kernels.arguments import COLUMN_INDEX, CrcMode, ScanEnd
from oberth.kernels.compiled.abi import (
    bytes_at,
    copy_bytes,
    helper,
    int32_at,
    int64_at,
    load_be32,
    load_be64,
    load_le32,
    load_le64,
    load_u8,
    match_16,
    prefetch_read,
    trailing_zeros,
    uint32_at,
)
from oberth.kernels.compiled.checks import (
    body_crc_ok,
    inspect_record,
    record_crc_ok,
    signed_32,
    text_hash,
)

_STOP = int(ScanEnd.STOP)
_FULL = int(ScanEnd.FULL)
_TOPICS_FULL = int(ScanEnd.TOPICS_FULL)
_BODY_CRC = int(ScanEnd.BODY_CRC)
_RECORD_CRC = int(ScanEnd.RECORD_CRC)
_CRC_NONE = int(CrcMode.NONE)
_CRC_STOP = int(CrcMode.STOP)

_C = at.SCAN_COLUMNS
_COMMIT_LOG_OFFSET = _C + COLUMN_INDEX["commit_log_offset"]
_QUEUE_OFFSET = _C + COLUMN_INDEX["queue_offset"]
_STORED_OFFSET = _C + COLUMN_INDEX["stored_offset"]
_BORN_TIMESTAMP = _C + COLUMN_INDEX["born_timestamp"]
_STORE_TIMESTAMP = _C + COLUMN_INDEX["store_timestamp"]
_PREPARED_OFFSET = _C + COLUMN_INDEX["prepared_transaction_offset"]
_TAGS_CODE = _C + COLUMN_INDEX["tags_code"]
_INNER_BASE = _C + COLUMN_INDEX["inner_base"]
_RECORD_SIZE = _C + COLUMN_INDEX["record_size"]
_MAGIC = _C + COLUMN_INDEX["magic"]
_STORED_BODY_CRC = _C + COLUMN_INDEX["body_crc"]
_QUEUE_ID = _C + COLUMN_INDEX["queue_id"]
_FLAG = _C + COLUMN_INDEX["flag"]
_SYS_FLAG = _C + COLUMN_INDEX["sys_flag"]
_BORN_HOST_AT = _C + COLUMN_INDEX["born_host_at"]
_STORE_HOST_AT = _C + COLUMN_INDEX["store_host_at"]
_RECONSUME_TIMES = _C + COLUMN_INDEX["reconsume_times"]
_BODY_AT = _C + COLUMN_INDEX["body_at"]
_BODY_SIZE = _C + COLUMN_INDEX["body_size"]
_TOPIC_AT = _C + COLUMN_INDEX["topic_at"]
_TOPIC_SIZE = _C + COLUMN_INDEX["topic_size"]
_TOPIC_ID = _C + COLUMN_INDEX["topic_id"]
_PROPERTIES_AT = _C + COLUMN_INDEX["properties_at"]
_PROPERTIES_SIZE = _C + COLUMN_INDEX["properties_size"]
_TAGS_AT = _C + COLUMN_INDEX["tags_at"]
_TAGS_SIZE = _C + COLUMN_INDEX["tags_size"]
_KEYS_AT = _C + COLUMN_INDEX["keys_at"]
_KEYS_SIZE = _C + COLUMN_INDEX["keys_size"]
_UNIQ_KEY_AT = _C + COLUMN_INDEX["uniq_key_at"]
_UNIQ_KEY_SIZE = _C + COLUMN_INDEX["uniq_key_size"]
_MULTI_DISPATCH_AT = _C + COLUMN_INDEX["multi_dispatch_at"]
_MULTI_DISPATCH_SIZE = _C + COLUMN_INDEX["multi_dispatch_size"]
_MULTI_OFFSET_AT = _C + COLUMN_INDEX["multi_queue_offset_at"]
_MULTI_OFFSET_SIZE = _C + COLUMN_INDEX["multi_queue_offset_size"]
_INNER_NUM = _C + COLUMN_INDEX["inner_num"]
_CRC_OK = _C + COLUMN_INDEX["crc_ok"]

# Property names by their first bytes, read as little-endian numbers.
_NAME_TAGS = int.from_bytes(b"TAGS", "little")
_NAME_KEYS = int.from_bytes(b"KEYS", "little")
_NAME_DELA = int.from_bytes(b"DELA", "little")
_NAME_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "little")
_NAME_INNER_NU = int.from_bytes(b"INNER_NU", "little")
_NAME_INNER_BA = int.from_bytes(b"INNER_BA", "little")
_NAME_INNER_MU = int.from_bytes(b"INNER_MU", "little")
_NAME_LTI_DISP = int.from_bytes(b"LTI_DISP", "little")
_NAME_ATCH = int.from_bytes(b"ATCH", "little")
_NAME_LTI_QUEU = int.from_bytes(b"LTI_QUEU", "little")
_NAME_E_OFFSET = int.from_bytes(b"E_OFFSET", "little")
_BYTE_E = ord("E")
_BYTE_M = ord("M")
_BYTE_S = ord("S")
_BYTE_Y = ord("Y")

_SCHEDULE = SCHEDULE_TOPIC.encode()
_SCHEDULE_SIZE = len(_SCHEDULE)
_SCHEDULE_1 = int.from_bytes(_SCHEDULE[:8], "little")
_SCHEDULE_2 = int.from_bytes(_SCHEDULE[8:16], "little")
_SCHEDULE_3 = int.from_bytes(_SCHEDULE[-8:], "little")

_LARGE = 384
_DECIMAL_MAX = (1 << 63) - 1

# The topic table's places in the arguments, relative to its first.
_TABLE_COUNT = 0
_TABLE_MAX = at.SCAN_TOPIC_MAX - at.SCAN_TOPIC_COUNT
_TABLE_TEXT_USED = at.SCAN_TOPIC_TEXT_USED - at.SCAN_TOPIC_COUNT
_TABLE_TEXT_MAX = at.SCAN_TOPIC_TEXT_MAX - at.SCAN_TOPIC_COUNT
_TABLE_SLOT_MASK = at.SCAN_TOPIC_SLOT_MASK - at.SCAN_TOPIC_COUNT
assert _TABLE_SLOT_MASK == at.QUEUES_TOPIC_SLOT_MASK - at.QUEUES_TOPIC_COUNT


@helper
def seek_byte(data: Any, start: int, end: int, limit: int, byte: int) -> int:
    """The first place of a byte in [start, end), or end; up to limit may be read."""
    position = start
    while position < end:
        if limit - position >= 16:
            matches = match_16(data, position, byte)
            if matches != 0:
                return min(position + trailing_zeros(matches), end)
            position += 16
        else:
            if data[position] == byte:
                return position
            position += 1
    return end


@helper
def decimal(data: Any, start: int, size: int) -> int:
    """A non-negative decimal number, -1 for anything else (and for what exceeds an int64)."""
    if size <= 0:
        return -1
    value = 0
    for n in range(size):
        digit = load_u8(data, start + n) - 48
        if digit < 0 or digit > 9 or value > (_DECIMAL_MAX - digit) // 10:
            return -1
        value = value * 10 + digit
    return value


@helper
def is_schedule_topic(data: Any, start: int, size: int) -> bool:
    """Whether the topic is the one of delayed messages."""
    return (
        size == _SCHEDULE_SIZE
        and load_le64(data, start) == _SCHEDULE_1
        and load_le64(data, start + 8) == _SCHEDULE_2
        and load_le64(data, start + size - 8) == _SCHEDULE_3
    )


@helper
def same_bytes(left: Any, left_at: int, right: Any, right_at: int, size: int) -> bool:
    """Whether two stretches of memory are equal."""
    n = 0
    while size - n >= 8:
        if load_le64(left, left_at + n) != load_le64(right, right_at + n):
            return False
        n += 8
    while n < size:
        if left[left_at + n] != right[right_at + n]:
            return False
        n += 1
    return True


@helper
def spread_hash(data: Any, start: int, size: int) -> int:
    """A hash of bytes for the topic table: cheap, and only as good as a small table needs."""
    h = size
    n = 0
    while size - n >= 8:
        h = (h ^ load_le64(data, start + n)) * -0x61C8864680B583EB
        h ^= (h >> 32) & 0xFFFFFFFF
        n += 8
    while n < size:
        h = (h ^ load_u8(data, start + n)) * -0x61C8864680B583EB
        n += 1
    return (h ^ ((h >> 29) & 0x7FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF


@helper
def intern_topic(
    args: Any,
    first: int,
    starts: Any,
    sizes: Any,
    text: Any,
    slots: Any,
    data: Any,
    topic_at: int,
    topic_size: int,
) -> int:
    """The topic's number; a new one is added to the table. -1 when the table is full.

    ``first`` is the place in the arguments where the topic table begins.
    """
    mask = args[first + _TABLE_SLOT_MASK]
    slot = spread_hash(data, topic_at, topic_size) & mask
    while slots[slot] != 0:
        known = int(slots[slot]) - 1
        if sizes[known] == topic_size and same_bytes(
            text, starts[known], data, topic_at, topic_size
        ):
            return known
        slot = (slot + 1) & mask
    count = args[first + _TABLE_COUNT]
    used = args[first + _TABLE_TEXT_USED]
    if count >= args[first + _TABLE_MAX] or topic_size > args[first + _TABLE_TEXT_MAX] - used:
        return -1
    copy_bytes(text, used, data, topic_at, topic_size)
    starts[count] = used
    sizes[count] = topic_size
    slots[slot] = count + 1
    args[first + _TABLE_COUNT] = count + 1
    args[first + _TABLE_TEXT_USED] = used + topic_size
    return int(count)


def scan(args: Any) -> int:
    """Kernel: records into columns; returns a ScanEnd."""
    data = bytes_at(args[at.SCAN_DATA])
    limit = args[at.SCAN_LIMIT]
    base = args[at.SCAN_BASE]
    position = args[at.SCAN_START]
    stop = args[at.SCAN_STOP]
    capacity = args[at.SCAN_CAPACITY]
    row = args[at.SCAN_COUNT]
    crc_mode = args[at.SCAN_CRC_MODE]
    record_crc = args[at.SCAN_RECORD_CRC]
    own_position = args[at.SCAN_OWN_POSITION]
    size_max = args[at.SCAN_SIZE_MAX]
    read_properties = args[at.SCAN_READ_PROPERTIES]
    tables = uint32_at(args[at.SCAN_CRC_TABLES])
    delays = int64_at(args[at.SCAN_DELAYS])
    delay_count = args[at.SCAN_DELAY_COUNT]
    starts = int64_at(args[at.SCAN_TOPIC_STARTS])
    sizes = int32_at(args[at.SCAN_TOPIC_SIZES])
    text = bytes_at(args[at.SCAN_TOPIC_TEXT])
    slots = int32_at(args[at.SCAN_TOPIC_SLOTS])
    last_topic = -1

    end_reason = _STOP
    while position < stop:
        if row >= capacity:
            end_reason = _FULL
            break
        found, sys_flag, body_at, topic_at, topic_size, properties_at = inspect_record(
            data, limit, base, position, own_position, size_max
        )
        if found != 0:
            end_reason = found
            break
        crc_ok = -1
        if record_crc != 0:
            crc_ok = 1 if record_crc_ok(data, position, properties_at, tables) else 0
            if crc_ok == 0 and crc_mode == _CRC_STOP:
                end_reason = _RECORD_CRC
                break
        elif crc_mode != _CRC_NONE:
            crc_ok = 1 if body_crc_ok(data, position, body_at, tables) else 0
            if crc_ok == 0 and crc_mode == _CRC_STOP:
                end_reason = _BODY_CRC
                break
        size = load_be32(data, position)
        if size > _LARGE:
            # Of large records only both ends are read, which the processor does not foresee: ask
            # for the end of the next but one, as far as it is about as large as this one.
            ahead = position + 3 * size - 256
            for line in range(6):
                prefetch_read(data, ahead + 64 * line)
        properties_size = position + size - properties_at
        born_host_at = position + 48
        store_time_at = born_host_at + (HOST_V6_SIZE if sys_flag & BORN_HOST_V6 else HOST_V4_SIZE)
        store_timestamp = load_be64(data, store_time_at)

        if args[_TOPIC_ID] != 0:
            if last_topic < 0 or not (
                sizes[last_topic] == topic_size
                and same_bytes(text, starts[last_topic], data, topic_at, topic_size)
            ):
                last_topic = intern_topic(
                    args,
                    at.SCAN_TOPIC_COUNT,
                    starts,
                    sizes,
                    text,
                    slots,
                    data,
                    topic_at,
                    topic_size,
                )
                if last_topic < 0:
                    end_reason = _TOPICS_FULL
                    break
            int32_at(args[_TOPIC_ID])[row] = last_topic

        if read_properties != 0:
            tags_at = 0
            tags_size = -1
            keys_at = 0
            keys_size = -1
            uniq_key_at = 0
            uniq_key_size = -1
            dispatch_at = 0
            dispatch_size = -1
            offsets_at = 0
            offsets_size = -1
            delay_level = 0
            inner_num = -1
            inner_base = -1
            name_at = properties_at
            end = properties_at + properties_size
            while name_at < end:
                value_at = seek_byte(data, name_at, end, limit, 1) + 1
                if value_at > end:
                    break
                value_end = seek_byte(data, value_at, end, limit, 2)
                # Pieces without a name-value separator may lie before this one's name.
                piece_at = seek_byte(data, name_at, value_at, limit, 2) + 1
                while piece_at < value_at:
                    name_at = piece_at
                    piece_at = seek_byte(data, name_at, value_at, limit, 2) + 1
                name_size = value_at - 1 - name_at
                value_size = value_end - value_at
                if value_size > 0 and name_size >= 4:
                    head = load_le32(data, name_at)
                    if name_size == 4:
                        if head == _NAME_TAGS:
                            tags_at = value_at
                            tags_size = value_size
                        elif head == _NAME_KEYS:
                            keys_at = value_at
                            keys_size = value_size
                    elif name_size == 5:
                        if head == _NAME_DELA and data[name_at + 4] == _BYTE_Y:
                            delay_level = decimal(data, value_at, value_size)
                    elif name_size == 8:
                        if load_le64(data, name_at) == _NAME_UNIQ_KEY:
                            uniq_key_at = value_at
                            uniq_key_size = value_size
                    elif name_size == 9:
                        if (
                            load_le64(data, name_at) == _NAME_INNER_NU
                            and data[name_at + 8] == _BYTE_M
                        ):
                            inner_num = decimal(data, value_at, value_size)
                    elif name_size == 10:
                        if (
                            load_le64(data, name_at) == _NAME_INNER_BA
                            and data[name_at + 8] == _BYTE_S
                            and data[name_at + 9] == _BYTE_E
                        ):
                            inner_base = decimal(data, value_at, value_size)
                    elif name_size == 20:
                        if (
                            load_le64(data, name_at) == _NAME_INNER_MU
                            and load_le64(data, name_at + 8) == _NAME_LTI_DISP
                            and load_le32(data, name_at + 16) == _NAME_ATCH
                        ):
                            dispatch_at = value_at
                            dispatch_size = value_size
                    elif (
                        name_size == 24
                        and load_le64(data, name_at) == _NAME_INNER_MU
                        and load_le64(data, name_at + 8) == _NAME_LTI_QUEU
                        and load_le64(data, name_at + 16) == _NAME_E_OFFSET
                    ):
                        offsets_at = value_at
                        offsets_size = value_size
                name_at = value_end + 1
            if args[_TAGS_CODE] != 0:
                tags_code = 0
                if tags_size > 0:
                    tags_code = signed_32(text_hash(data, tags_at, tags_size, 0))
                if delay_level > 0 and is_schedule_topic(data, topic_at, topic_size):
                    level = min(delay_level, delay_count - 1)
                    if level < 1:
                        tags_code = store_timestamp + UNKNOWN_LEVEL_DELAY_MS
                    else:
                        tags_code = store_timestamp + delays[level]
                int64_at(args[_TAGS_CODE])[row] = tags_code
            if args[_TAGS_AT] != 0:
                int32_at(args[_TAGS_AT])[row] = tags_at
            if args[_TAGS_SIZE] != 0:
                int32_at(args[_TAGS_SIZE])[row] = tags_size
            if args[_KEYS_AT] != 0:
                int32_at(args[_KEYS_AT])[row] = keys_at
            if args[_KEYS_SIZE] != 0:
                int32_at(args[_KEYS_SIZE])[row] = keys_size
            if args[_UNIQ_KEY_AT] != 0:
                int32_at(args[_UNIQ_KEY_AT])[row] = uniq_key_at
            if args[_UNIQ_KEY_SIZE] != 0:
                int32_at(args[_UNIQ_KEY_SIZE])[row] = uniq_key_size
            if args[_MULTI_DISPATCH_AT] != 0:
                int32_at(args[_MULTI_DISPATCH_AT])[row] = dispatch_at
            if args[_MULTI_DISPATCH_SIZE] != 0:
                int32_at(args[_MULTI_DISPATCH_SIZE])[row] = dispatch_size
            if args[_MULTI_OFFSET_AT] != 0:
                int32_at(args[_MULTI_OFFSET_AT])[row] = offsets_at
            if args[_MULTI_OFFSET_SIZE] != 0:
                int32_at(args[_MULTI_OFFSET_SIZE])[row] = offsets_size
            if args[_INNER_NUM] != 0:
                int32_at(args[_INNER_NUM])[row] = inner_num if inner_num < 0x80000000 else -1
            if args[_INNER_BASE] != 0:
                int64_at(args[_INNER_BASE])[row] = inner_base

        if args[_COMMIT_LOG_OFFSET] != 0:
            int64_at(args[_COMMIT_LOG_OFFSET])[row] = base + position
        if args[_QUEUE_OFFSET] != 0:
            int64_at(args[_QUEUE_OFFSET])[row] = load_be64(data, position + 20)
        if args[_STORED_OFFSET] != 0:
            int64_at(args[_STORED_OFFSET])[row] = load_be64(data, position + 28)
        if args[_BORN_TIMESTAMP] != 0:
            int64_at(args[_BORN_TIMESTAMP])[row] = load_be64(data, position + 40)
        if args[_STORE_TIMESTAMP] != 0:
            int64_at(args[_STORE_TIMESTAMP])[row] = store_timestamp
        if args[_PREPARED_OFFSET] != 0:
            int64_at(args[_PREPARED_OFFSET])[row] = load_be64(data, body_at - 12)
        if args[_RECORD_SIZE] != 0:
            int32_at(args[_RECORD_SIZE])[row] = size
        if args[_MAGIC] != 0:
            int32_at(args[_MAGIC])[row] = load_be32(data, position + 4)
        if args[_STORED_BODY_CRC] != 0:
            int32_at(args[_STORED_BODY_CRC])[row] = load_be32(data, position + 8)
        if args[_QUEUE_ID] != 0:
            int32_at(args[_QUEUE_ID])[row] = load_be32(data, position + 12)
        if args[_FLAG] != 0:
            int32_at(args[_FLAG])[row] = load_be32(data, position + 16)
        if args[_SYS_FLAG] != 0:
            int32_at(args[_SYS_FLAG])[row] = sys_flag
        if args[_BORN_HOST_AT] != 0:
            int32_at(args[_BORN_HOST_AT])[row] = born_host_at
        if args[_STORE_HOST_AT] != 0:
            int32_at(args[_STORE_HOST_AT])[row] = store_time_at + 8
        if args[_RECONSUME_TIMES] != 0:
            int32_at(args[_RECONSUME_TIMES])[row] = load_be32(data, body_at - 16)
        if args[_BODY_AT] != 0:
            int32_at(args[_BODY_AT])[row] = body_at
        if args[_BODY_SIZE] != 0:
            int32_at(args[_BODY_SIZE])[row] = load_be32(data, body_at - 4)
        if args[_TOPIC_AT] != 0:
            int32_at(args[_TOPIC_AT])[row] = topic_at
        if args[_TOPIC_SIZE] != 0:
            int32_at(args[_TOPIC_SIZE])[row] = topic_size
        if args[_PROPERTIES_AT] != 0:
            int32_at(args[_PROPERTIES_AT])[row] = properties_at
        if args[_PROPERTIES_SIZE] != 0:
            int32_at(args[_PROPERTIES_SIZE])[row] = properties_size
        if args[_CRC_OK] != 0:
            int32_at(args[_CRC_OK])[row] = crc_ok
        row += 1
        position += size
    args[at.SCAN_COUNT] = row
    args[at.SCAN_NEXT] = position
    return end_reason
