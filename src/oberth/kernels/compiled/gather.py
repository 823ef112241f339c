"""Values out of scanned records, laid out as Arrow wants them: offsets and one run of bytes."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

from oberth.kernels import arguments as at
from oberth.kernels.compiled.abi import (
    bytes_at,
    copy_16,
    copy_bytes,
    helper,
    int32_at,
    int64_at,
    load_be32,
    load_le64,
    load_u8,
    prefetch_read,
    store_u8,
)
from oberth.kernels.compiled.checks import HIGH_BITS, continuation
from oberth.kernels.compiled.records import same_bytes, seek_byte, spread_hash

# Up to so many properties of one message are compared one by one, more by hash.
_FEW = 32
# Values up to this size are copied 16 bytes at a time.
_SHORT = 64
# The bytes of a row have long left the cache when its values are gathered.
_ROWS_AHEAD = 8
_P = at.MAP_PLACE_FIELDS
_COLON = ord(":")
_DOT = ord(".")
_MINUS = ord("-")
_ZERO = ord("0")
_V4_SIZE = 8
_V6_SIZE = 20


@helper
def copy_value(
    out: Any, out_at: int, data: Any, start: int, size: int, out_max: int, limit: int
) -> None:
    """Copies a value, short ones without the call that a copy of unknown size is.

    Up to 15 bytes behind both values are read and overwritten where there is room for that.
    """
    if size <= _SHORT and limit - start >= _SHORT and out_max - out_at >= _SHORT:
        n = 0
        while n < size:
            copy_16(out, out_at + n, data, start + n)
            n += 16
    else:
        copy_bytes(out, out_at, data, start, size)


@helper
def sequence_size(data: Any, position: int, end: int) -> int:
    """Bytes of the UTF-8 sequence here, or minus the number that one U+FFFD stands for."""
    first = load_u8(data, position)
    if first < 0x80:
        return 1
    if first < 0xC2 or first > 0xF4:
        return -1
    if first < 0xE0:
        return 2 if continuation(data, position + 1, end) else -1
    low = 0x80
    high = 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if position + 1 >= end:
        return -1
    second = load_u8(data, position + 1)
    if second < low or second > high:
        return -1
    if not continuation(data, position + 2, end):
        return -2
    if first < 0xF0:
        return 3
    return 4 if continuation(data, position + 3, end) else -3


@helper
def first_broken(data: Any, start: int, end: int) -> int:
    """Where the first byte that is no UTF-8 lies, or end."""
    position = start
    while position < end:
        if end - position >= 8 and (load_le64(data, position) & HIGH_BITS) == 0:
            position += 8
            continue
        if end - start >= 8 and end - position < 8 and (load_le64(data, end - 8) & HIGH_BITS) == 0:
            return end
        size = sequence_size(data, position, end)
        if size < 0:
            return position
        position += size
    return end


@helper
def mend(data: Any, start: int, end: int, out: Any, out_at: int, out_max: int) -> int:
    """Copies text with U+FFFD for what is broken; where it ends, -1 when there is no room."""
    position = start
    while position < end:
        size = sequence_size(data, position, end)
        if size > 0:
            if out_at + size > out_max:
                return -1
            for n in range(size):
                out[out_at + n] = data[position + n]
            out_at += size
            position += size
        else:
            if out_at + 3 > out_max:
                return -1
            store_u8(out, out_at, 0xEF)
            store_u8(out, out_at + 1, 0xBF)
            store_u8(out, out_at + 2, 0xBD)
            out_at += 3
            position -= size
    return out_at


def total_size(args: Any) -> int:
    """Kernel: the sum of a column of sizes, without the negative ones."""
    sizes = int32_at(args[at.TOTAL_SIZES])
    total = 0
    for row in range(args[at.TOTAL_ROWS]):
        total += max(int(sizes[row]), 0)
    return total


def renumber(args: Any) -> int:
    """Kernel: replaces each number of a column by its entry in a table."""
    column = int32_at(args[at.RENUMBER_COLUMN])
    numbers = int64_at(args[at.RENUMBER_NUMBERS])
    for row in range(args[at.RENUMBER_ROWS]):
        column[row] = numbers[column[row]]
    return args[at.RENUMBER_ROWS]


def gather(args: Any) -> int:
    """Kernel: one value of each row; 1, or 0 when there is no room."""
    data = bytes_at(args[at.GATHER_DATA])
    limit = args[at.GATHER_LIMIT]
    rows = args[at.GATHER_ROWS]
    starts = int32_at(args[at.GATHER_AT])
    sizes = int32_at(args[at.GATHER_SIZE])
    is_text = args[at.GATHER_TEXT]
    out = bytes_at(args[at.GATHER_OUT])
    room = args[at.GATHER_OUT_MAX]
    offsets = int32_at(args[at.GATHER_OFFSETS])
    validity = bytes_at(args[at.GATHER_VALIDITY])
    has_validity = args[at.GATHER_VALIDITY] != 0
    used = 0
    nulls = 0
    bits = 0
    for row in range(rows):
        offsets[row] = used
        if row + _ROWS_AHEAD < rows:
            prefetch_read(data, int(starts[row + _ROWS_AHEAD]))
        size = int(sizes[row])
        if size >= 0:
            bits |= 1 << (row & 7)
            start = int(starts[row])
            end = start + size
            if is_text != 0 and first_broken(data, start, end) < end:
                used = mend(data, start, end, out, used, room)
                if used < 0:
                    return 0
            else:
                if used + size > room:
                    return 0
                copy_value(out, used, data, start, size, room, limit)
                used += size
        else:
            nulls += 1
        if row & 7 == 7:
            if has_validity:
                store_u8(validity, row >> 3, bits)
            bits = 0
    if has_validity and rows & 7 != 0:
        store_u8(validity, rows >> 3, bits)
    offsets[rows] = used
    args[at.GATHER_NULLS] = nulls
    return 1


@helper
def find_name(text: Any, places: Any, count: int, slots: Any, name_at: int, name_size: int) -> int:
    """Which of the row's names equals this one, -1 for none; keeps the slots of many names."""
    if count <= _FEW:
        for n in range(count):
            if places[_P * n + 1] == name_size and same_bytes(
                text, places[_P * n], text, name_at, name_size
            ):
                return n
        return -1
    slot = spread_hash(text, name_at, name_size) & (at.MAP_SLOT_COUNT - 1)
    while slots[slot] != 0:
        n = int(slots[slot]) - 1
        if places[_P * n + 1] == name_size and same_bytes(
            text, places[_P * n], text, name_at, name_size
        ):
            return n
        slot = (slot + 1) & (at.MAP_SLOT_COUNT - 1)
    return -1


@helper
def keep_slot(text: Any, places: Any, slots: Any, n: int) -> None:
    """Enters a name into the slots."""
    slot = spread_hash(text, places[_P * n], places[_P * n + 1]) & (at.MAP_SLOT_COUNT - 1)
    while slots[slot] != 0:
        slot = (slot + 1) & (at.MAP_SLOT_COUNT - 1)
    slots[slot] = n + 1
    places[_P * n + 4] = slot


@helper
def parse_properties(text: Any, start: int, size: int, limit: int, places: Any, slots: Any) -> int:
    """Places of a row's properties: name, its size, value, its size; how many there are."""
    end = start + size
    count = 0
    name_at = start
    while name_at < end:
        piece_end = seek_byte(text, name_at, end, limit, 2)
        separator = seek_byte(text, name_at, piece_end, limit, 1)
        name_size = separator - name_at
        value_size = piece_end - separator - 1
        if name_size > 0 and value_size > 0:
            known = find_name(text, places, count, slots, name_at, name_size)
            if known < 0:
                known = count
                places[_P * known] = name_at
                places[_P * known + 1] = name_size
                count += 1
                if count > _FEW:
                    if count == _FEW + 1:
                        for n in range(_FEW):
                            keep_slot(text, places, slots, n)
                    keep_slot(text, places, slots, known)
            places[_P * known + 2] = separator + 1
            places[_P * known + 3] = value_size
        name_at = piece_end + 1
    if count > _FEW:
        for n in range(count):
            slots[places[_P * n + 4]] = 0
    return count


@helper
def take_values(
    text: Any,
    start: int,
    size: int,
    limit: int,
    names: Any,
    name_offsets: Any,
    known: int,
    count: int,
    values: Any,
    value_offsets: Any,
    entry: int,
    used: int,
    room: int,
) -> int:
    """Copies the values of properties with the same names as a row before them, in that order.

    Such a row needs no search for its names, nor a look whether one comes twice.

    Args:
        text: with the properties, from start on.
        start: of the properties.
        size: of the properties.
        limit: bytes of text.
        names: the names that were met.
        name_offsets: where each of them lies.
        known: the first name of the row before.
        count: how many it has; the last ends at ``name_offsets[known + count]``.
        values: the values that were met.
        value_offsets: where each of them lies.
        entry: number of the first one.
        used: bytes of values.
        room: for how many there is room.

    Returns:
        The bytes of values, -1 where names differ, a value is empty or there is no room.
    """
    end = start + size
    position = start
    for n in range(count):
        name_at = int(name_offsets[known + n])
        name_size = int(name_offsets[known + n + 1]) - name_at
        if position + name_size >= end or load_u8(text, position + name_size) != 1:
            return -1
        if not same_bytes(text, position, names, name_at, name_size):
            return -1
        position += name_size + 1
        value_end = seek_byte(text, position, end, limit, 2)
        value_size = value_end - position
        if value_size <= 0 or used + value_size > room:
            return -1
        value_offsets[entry + n] = used
        copy_value(values, used, text, position, value_size, room, limit)
        used += value_size
        position = value_end + 1
    return used if position >= end else -1


def property_maps(args: Any) -> int:
    """Kernel: the properties of each row as a map; 1, or 0 when there is no room."""
    data = bytes_at(args[at.MAP_DATA])
    rows = args[at.MAP_ROWS]
    starts = int32_at(args[at.MAP_AT])
    sizes = int32_at(args[at.MAP_SIZE])
    offsets = int32_at(args[at.MAP_OFFSETS])
    key_offsets = int32_at(args[at.MAP_KEY_OFFSETS])
    value_offsets = int32_at(args[at.MAP_VALUE_OFFSETS])
    entries_max = args[at.MAP_ENTRIES_MAX]
    keys = bytes_at(args[at.MAP_KEYS])
    values = bytes_at(args[at.MAP_VALUES])
    scratch = bytes_at(args[at.MAP_SCRATCH])
    places = int64_at(args[at.MAP_PLACES])
    slots = int32_at(args[at.MAP_SLOTS])
    keys_max = args[at.MAP_KEYS_MAX]
    values_max = args[at.MAP_VALUES_MAX]
    entry = 0
    key_used = 0
    value_used = 0
    known = 0  # the entries of the last row that has some
    for row in range(rows):
        offsets[row] = entry
        if row + _ROWS_AHEAD < rows:
            ahead = int(starts[row + _ROWS_AHEAD])
            prefetch_read(data, ahead)
            prefetch_read(data, ahead + 64)
        size = int(sizes[row])
        if size <= 0 or size > at.PROPERTIES_SIZE_MAX:
            continue
        start = int(starts[row])
        text = data
        limit = args[at.MAP_LIMIT]
        if first_broken(data, start, start + size) < start + size:
            size = mend(data, start, start + size, scratch, 0, at.MAP_SCRATCH_SIZE)
            start = 0
            text = scratch
            limit = at.MAP_SCRATCH_SIZE
        # Most messages have the properties of the one before, with other values.
        count = entry - known
        keys_at = int(key_offsets[known]) if count > 0 else 0
        keys_size = key_used - keys_at
        if 0 < count <= entries_max - entry and keys_size <= keys_max - key_used:
            key_offsets[entry] = key_used
            taken = take_values(
                text, start, size, limit, keys, key_offsets, known, count,
                values, value_offsets, entry, value_used, values_max,
            )  # fmt: skip
            if taken >= 0:
                for n in range(count):
                    key_offsets[entry + n] = key_offsets[known + n] + keys_size
                copy_value(keys, key_used, keys, keys_at, keys_size, keys_max, keys_max)
                key_used += keys_size
                value_used = taken
                known = entry
                entry += count
                continue
        count = parse_properties(text, start, size, limit, places, slots)
        if entry + count > entries_max:
            return 0
        if count > 0:
            known = entry
        for n in range(count):
            name_size = places[_P * n + 1]
            value_size = places[_P * n + 3]
            if key_used + name_size > keys_max or value_used + value_size > values_max:
                return 0
            key_offsets[entry] = key_used
            value_offsets[entry] = value_used
            copy_value(keys, key_used, text, places[_P * n], name_size, keys_max, limit)
            copy_value(values, value_used, text, places[_P * n + 2], value_size, values_max, limit)
            key_used += name_size
            value_used += value_size
            entry += 1
    offsets[rows] = entry
    key_offsets[entry] = key_used
    value_offsets[entry] = value_used
    return 1


@helper
def put_decimal(out: Any, position: int, value: int) -> int:
    """Writes a decimal number; where it ends."""
    if value < 0:
        store_u8(out, position, _MINUS)
        position += 1
        value = -value
    digits = 1
    power = 10
    while value >= power:
        digits += 1
        power *= 10
    for n in range(digits - 1, -1, -1):
        store_u8(out, position + n, _ZERO + value % 10)
        value //= 10
    return position + digits


@helper
def hex_digit(value: int, letters: int) -> int:
    """The character of a digit; letters begin at ``letters``."""
    return value + (_ZERO if value < 10 else letters - 10)


@helper
def put_host(data: Any, start: int, is_v6: int, out: Any, position: int) -> int:
    """Writes ``address:port`` as Java prints it; where it ends."""
    if is_v6 == 0:
        for n in range(4):
            position = put_decimal(out, position, load_u8(data, start + n))
            store_u8(out, position, _DOT if n < 3 else _COLON)
            position += 1
        return put_decimal(out, position, load_be32(data, start + 4))
    for n in range(8):
        group = load_u8(data, start + 2 * n) << 8 | load_u8(data, start + 2 * n + 1)
        shift = 12
        while shift > 0 and (group >> shift) == 0:
            shift -= 4
        while shift >= 0:
            store_u8(out, position, hex_digit((group >> shift) & 15, 97))
            position += 1
            shift -= 4
        store_u8(out, position, _COLON)
        position += 1
    return put_decimal(out, position, load_be32(data, start + 16))


def hosts(args: Any) -> int:
    """Kernel: ``address:port`` of each row."""
    data = bytes_at(args[at.HOSTS_DATA])
    starts = int32_at(args[at.HOSTS_AT])
    flags = int32_at(args[at.HOSTS_SYS_FLAG])
    bit = args[at.HOSTS_V6_BIT]
    out = bytes_at(args[at.HOSTS_OUT])
    offsets = int32_at(args[at.HOSTS_OFFSETS])
    used = 0
    last = -1
    last_v6 = 0
    last_at = 0
    for row in range(args[at.HOSTS_ROWS]):
        offsets[row] = used
        start = int(starts[row])
        is_v6 = int(flags[row]) & bit
        # Few hosts write a log: most rows have the one of the row before.
        if (
            last >= 0
            and is_v6 == last_v6
            and same_bytes(data, start, data, last, _V6_SIZE if is_v6 else _V4_SIZE)
        ):
            size = used - last_at  # the row before ends where this one begins
            copy_bytes(out, used, out, last_at, size)
            last_at = used
            used += size
        else:
            last = start
            last_v6 = is_v6
            last_at = used
            used = put_host(data, start, is_v6, out, used)
    offsets[args[at.HOSTS_ROWS]] = used
    return used


@helper
def put_hex(out: Any, position: int, byte: int) -> None:
    """Writes two upper-case digits."""
    store_u8(out, position, hex_digit(byte >> 4, 65))
    store_u8(out, position + 1, hex_digit(byte & 15, 65))


def message_ids(args: Any) -> int:
    """Kernel: the broker's message id of each row."""
    data = bytes_at(args[at.HOSTS_DATA])
    starts = int32_at(args[at.HOSTS_AT])
    flags = int32_at(args[at.HOSTS_SYS_FLAG])
    bit = args[at.HOSTS_V6_BIT]
    positions = int64_at(args[at.HOSTS_COMMIT_LOG_OFFSET])
    out = bytes_at(args[at.HOSTS_OUT])
    offsets = int32_at(args[at.HOSTS_OFFSETS])
    used = 0
    for row in range(args[at.HOSTS_ROWS]):
        offsets[row] = used
        start = int(starts[row])
        for n in range(_V6_SIZE if int(flags[row]) & bit else _V4_SIZE):
            put_hex(out, used, load_u8(data, start + n))
            used += 2
        position = positions[row]
        for n in range(8):
            put_hex(out, used, (position >> (56 - 8 * n)) & 0xFF)
            used += 2
    offsets[args[at.HOSTS_ROWS]] = used
    return used
