"""Index entries from scanned columns, and index files from entries."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

from oberth.formats.index_file import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, TIME_DIFF_MAX
from oberth.formats.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from oberth.kernels import arguments as at
from oberth.kernels.compiled.abi import (
    bytes_at,
    helper,
    int32_at,
    int64_at,
    load_be32,
    load_be64,
    load_u8,
    prefetch_read,
    prefetch_write,
    store_be32,
    store_be64,
)
from oberth.kernels.compiled.checks import signed_32, text_hash

_SPACE = ord(" ")
_TAG_TYPE = ord("T")
_HASH_SIGN = ord("#")
_END_TIMESTAMP = 8
_BEGIN_OFFSET = 16
_END_OFFSET = 24
_SLOT_COUNT = 32
_INDEX_COUNT = 36
# A slot is read this many entries ahead: the table is far larger than a cache.
_AHEAD = 12
# The bytes of a row have long left the cache when its keys are hashed.
_ROWS_AHEAD = 8
_INT32_MAX = 0x7FFFFFFF


@helper
def key_hash(data: Any, start: int, size: int, prefix: int) -> int:
    """What an entry holds of a key, given the hash of ``topic#``."""
    value = signed_32(text_hash(data, start, size, prefix))
    if value >= 0:
        return value
    # abs(-2**31) stays negative in Java, and RocketMQ then takes 0.
    return 0 if value == -0x80000000 else -value


@helper
def count_tokens(data: Any, start: int, size: int) -> int:
    """How many non-empty tokens blanks separate."""
    tokens = 0
    before = _SPACE
    for position in range(start, start + size):
        byte = load_u8(data, position)
        if byte != _SPACE and before == _SPACE:
            tokens += 1
        before = byte
    return tokens


def index_keys(args: Any) -> int:
    """Kernel: the entries of the rows; returns whether all rows were done."""
    data = bytes_at(args[at.KEYS_DATA])
    rows = args[at.KEYS_ROWS]
    offsets = int64_at(args[at.KEYS_COMMIT_LOG_OFFSET])
    timestamps = int64_at(args[at.KEYS_STORE_TIMESTAMP])
    flags = int32_at(args[at.KEYS_SYS_FLAG])
    topics = int32_at(args[at.KEYS_TOPIC_ID])
    uniq_at = int32_at(args[at.KEYS_UNIQ_AT])
    uniq_size = int32_at(args[at.KEYS_UNIQ_SIZE])
    keys_at = int32_at(args[at.KEYS_KEYS_AT])
    keys_size = int32_at(args[at.KEYS_KEYS_SIZE])
    tags_at = int32_at(args[at.KEYS_TAGS_AT])
    tags_size = int32_at(args[at.KEYS_TAGS_SIZE])
    index_tags = args[at.KEYS_INDEX_TAGS]
    prefixes = int64_at(args[at.KEYS_HASH_PREFIXES])
    out_hashes = int32_at(args[at.KEYS_HASHES])
    out_offsets = int64_at(args[at.KEYS_OFFSETS])
    out_timestamps = int64_at(args[at.KEYS_TIMESTAMPS])
    count = args[at.KEYS_COUNT]
    room = args[at.KEYS_MAX]
    row = args[at.KEYS_ROW]
    while row < rows:
        if row + _ROWS_AHEAD < rows:
            prefetch_read(data, int(uniq_at[row + _ROWS_AHEAD]))
            prefetch_read(data, int(keys_at[row + _ROWS_AHEAD]))
        if (flags[row] & TRANSACTION_MASK) == TRANSACTION_ROLLBACK:
            row += 1
            continue
        keys = max(int(keys_size[row]), 0)
        # Two entries and one for every other byte of KEYS are never exceeded.
        if count + 2 + (keys + 1) // 2 > room:
            tokens = count_tokens(data, int(keys_at[row]), keys)
            if count + 2 + tokens > room:
                break
        prefix = prefixes[topics[row]]
        first = count
        if uniq_size[row] >= 0:
            out_hashes[count] = key_hash(data, int(uniq_at[row]), int(uniq_size[row]), prefix)
            count += 1
        if keys > 0:
            start = int(keys_at[row])
            end = start + keys
            position = start
            while position <= end:
                if position == end or load_u8(data, position) == _SPACE:
                    if position > start:
                        out_hashes[count] = key_hash(data, start, position - start, prefix)
                        count += 1
                    start = position + 1
                position += 1
        if index_tags != 0 and tags_size[row] > 0:
            seed = ((prefix * 31 + _TAG_TYPE) * 31 + _HASH_SIGN) & 0xFFFFFFFF
            out_hashes[count] = key_hash(data, int(tags_at[row]), int(tags_size[row]), seed)
            count += 1
        for entry in range(first, count):
            out_offsets[entry] = offsets[row]
            out_timestamps[entry] = timestamps[row]
        row += 1
    args[at.KEYS_ROW] = row
    args[at.KEYS_COUNT] = count
    return 1 if row == rows else 0


def index_put(args: Any) -> int:
    """Kernel: puts entries into an index file until it is full; how many of them were taken."""
    file = bytes_at(args[at.PUT_FILE])
    slots = args[at.PUT_SLOTS]
    entries_max = args[at.PUT_ENTRIES]
    hashes = int32_at(args[at.PUT_HASHES])
    offsets = int64_at(args[at.PUT_OFFSETS])
    timestamps = int64_at(args[at.PUT_TIMESTAMPS])
    entry = args[at.PUT_START]
    stop = args[at.PUT_STOP]
    begin_timestamp = load_be64(file, 0)
    end_offset = load_be64(file, _END_OFFSET)
    slot_count = load_be32(file, _SLOT_COUNT)
    number = max(load_be32(file, _INDEX_COUNT), 1)
    entries_at = HEADER_SIZE + slots * SLOT_SIZE
    last = -1
    while entry < stop:
        if offsets[entry] < end_offset:
            entry += 1
            continue
        if number >= entries_max:
            break
        if entry + _AHEAD < stop:
            ahead = int(hashes[entry + _AHEAD]) % slots
            prefetch_write(file, HEADER_SIZE + ahead * SLOT_SIZE)
        slot_at = HEADER_SIZE + (int(hashes[entry]) % slots) * SLOT_SIZE
        previous = load_be32(file, slot_at)
        if previous <= 0 or previous > number:
            previous = 0
        difference = 0
        if begin_timestamp > 0 and timestamps[entry] > begin_timestamp:
            difference = min((timestamps[entry] - begin_timestamp) // 1000, TIME_DIFF_MAX)
        place = entries_at + number * ENTRY_SIZE
        store_be32(file, place, int(hashes[entry]))
        store_be64(file, place + 4, offsets[entry])
        store_be32(file, place + 12, difference)
        store_be32(file, place + 16, previous)
        store_be32(file, slot_at, number)
        if number <= 1:
            begin_timestamp = timestamps[entry]
            store_be64(file, 0, begin_timestamp)
            store_be64(file, _BEGIN_OFFSET, offsets[entry])
        if previous == 0 and slot_count < _INT32_MAX:
            slot_count += 1
        number += 1
        end_offset = offsets[entry]
        last = entry
        entry += 1
    if last >= 0:
        store_be64(file, _END_TIMESTAMP, timestamps[last])
        store_be64(file, _END_OFFSET, end_offset)
        store_be32(file, _SLOT_COUNT, slot_count)
        store_be32(file, _INDEX_COUNT, number)
    return entry - args[at.PUT_START]


def index_relink(args: Any) -> int:
    """Kernel: makes slots and chains anew from the entries' hashes; how many slots are used."""
    file = bytes_at(args[at.RELINK_FILE])
    slots = args[at.RELINK_SLOTS]
    count = min(args[at.RELINK_COUNT], args[at.RELINK_ENTRIES])
    entries_at = HEADER_SIZE + slots * SLOT_SIZE
    for slot in range(slots):
        store_be32(file, HEADER_SIZE + slot * SLOT_SIZE, 0)
    used = 0
    for number in range(1, count):
        place = entries_at + number * ENTRY_SIZE
        value = load_be32(file, place)
        if value < 0:
            continue
        slot_at = HEADER_SIZE + (value % slots) * SLOT_SIZE
        previous = load_be32(file, slot_at)
        if previous == 0:
            used += 1
        store_be32(file, place + 16, previous)
        store_be32(file, slot_at, number)
    return used
