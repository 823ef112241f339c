"""Units and index entries compared with what the log says."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

from oberth.formats.consume_queue import EXT_ADDRESS_MAX, PRE_BLANK_SIZE
from oberth.formats.index_file import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, TIME_DIFF_MAX
from oberth.kernels import arguments as at
from oberth.kernels.arguments import EntryFinding, UnitKind
from oberth.kernels.compiled.abi import (
    bytes_at,
    helper,
    int32_at,
    int64_at,
    load_be32,
    load_be64,
    store_u8,
)
from oberth.kernels.compiled.records import same_bytes

_RECORD = int(UnitKind.RECORD)
_PRE_BLANK = int(UnitKind.PRE_BLANK)
_EMPTY = int(UnitKind.EMPTY)
_UNIT_EXPIRED = int(UnitKind.EXPIRED)
_BEYOND = int(UnitKind.BEYOND)
_INVALID = int(UnitKind.INVALID)
_OK = int(EntryFinding.OK)
_REPEATED = int(EntryFinding.REPEATED)
_EXPIRED = int(EntryFinding.EXPIRED)
_NO_RECORD = int(EntryFinding.NO_RECORD)
_WRONG_KEY = int(EntryFinding.WRONG_KEY)
_WRONG_TIME = int(EntryFinding.WRONG_TIME)
_WRONG_CHAIN = int(EntryFinding.WRONG_CHAIN)
_TAGS_CODE = 12


def unit_kinds(args: Any) -> int:
    """Kernel: a UnitKind for each unit; how many are records."""
    units = bytes_at(args[at.KINDS_UNITS])
    size = args[at.KINDS_UNIT_SIZE]
    log_start = args[at.KINDS_LOG_START]
    log_end = args[at.KINDS_LOG_END]
    out = bytes_at(args[at.KINDS_OUT])
    records = 0
    for n in range(args[at.KINDS_COUNT]):
        offset = load_be64(units, n * size)
        record_size = load_be32(units, n * size + 8)
        if offset == 0 and record_size == PRE_BLANK_SIZE:
            kind = _PRE_BLANK
        elif offset == 0 and record_size == 0 and load_be64(units, n * size + _TAGS_CODE) == 0:
            kind = _EMPTY
        elif offset < 0 or record_size <= 0:
            kind = _INVALID
        elif offset < log_start:
            kind = _UNIT_EXPIRED
        elif offset > log_end - record_size:
            kind = _BEYOND
        else:
            kind = _RECORD
            records += 1
        store_u8(out, n, kind)
    return records


def compare_units(args: Any) -> int:
    """Kernel: numbers of the units that differ; how many there are."""
    actual = bytes_at(args[at.COMPARE_ACTUAL])
    expected = bytes_at(args[at.COMPARE_EXPECTED])
    size = args[at.COMPARE_UNIT_SIZE]
    ext = args[at.COMPARE_EXT]
    out = int32_at(args[at.COMPARE_OUT])
    room = args[at.COMPARE_OUT_MAX]
    found = 0
    for n in range(args[at.COMPARE_COUNT]):
        place = n * size
        if same_bytes(actual, place, expected, place, size):
            continue
        if (
            ext != 0
            and load_be64(actual, place + _TAGS_CODE) <= EXT_ADDRESS_MAX
            and same_bytes(actual, place, expected, place, _TAGS_CODE)
        ):
            continue
        if found < room:
            out[found] = n
        found += 1
    return found


@helper
def first_at(offsets: Any, count: int, offset: int) -> int:
    """The first of the sorted offsets that is not below one."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) >> 1
        if offsets[middle] < offset:
            low = middle + 1
        else:
            high = middle
    return low


def check_index(args: Any) -> int:
    """Kernel: findings for each entry and slot; how many slots are wrong."""
    file = bytes_at(args[at.CHECK_FILE])
    slots = args[at.CHECK_SLOTS]
    count = args[at.CHECK_COUNT]
    log_start = args[at.CHECK_LOG_START]
    hashes = int32_at(args[at.CHECK_HASHES])
    offsets = int64_at(args[at.CHECK_OFFSETS])
    timestamps = int64_at(args[at.CHECK_TIMESTAMPS])
    expected = args[at.CHECK_EXPECTED]
    seen = bytes_at(args[at.CHECK_SEEN])
    newest = int32_at(args[at.CHECK_NEWEST])
    findings = bytes_at(args[at.CHECK_FINDINGS])
    slot_out = int32_at(args[at.CHECK_SLOT_FINDINGS])
    slot_room = args[at.CHECK_SLOT_FINDINGS_MAX]
    begin_timestamp = load_be64(file, 0)
    entries_at = HEADER_SIZE + slots * SLOT_SIZE
    hint = 0
    for number in range(1, count):
        place = entries_at + number * ENTRY_SIZE
        key_hash = load_be32(file, place)
        offset = load_be64(file, place + 4)
        difference = load_be32(file, place + 12)
        previous = load_be32(file, place + 16)
        finding = _OK
        linked = False
        if key_hash >= 0:
            slot = key_hash % slots
            linked = previous == newest[slot]
            newest[slot] = number
        if offset < log_start:
            finding = _EXPIRED
        else:
            if hint >= expected or offsets[hint] != offset:
                hint = first_at(offsets, expected, offset)
            if hint >= expected or offsets[hint] != offset:
                finding = _NO_RECORD
            else:
                finding = _WRONG_KEY
                # Keys of one message with the same hash are taken one after the other.
                entry = hint
                while entry < expected and offsets[entry] == offset:
                    if hashes[entry] == key_hash:
                        finding = _REPEATED
                        if seen[entry] == 0:
                            finding = _OK
                            store_u8(seen, entry, 1)
                            break
                    entry += 1
                if finding != _WRONG_KEY and number > 1:
                    right = 0
                    if begin_timestamp > 0 and timestamps[hint] > begin_timestamp:
                        right = min((timestamps[hint] - begin_timestamp) // 1000, TIME_DIFF_MAX)
                    if right != difference:
                        finding = _WRONG_TIME
        if not linked and finding <= _EXPIRED:
            finding = _WRONG_CHAIN
        store_u8(findings, number, finding)
    wrong = 0
    for slot in range(slots):
        if load_be32(file, HEADER_SIZE + slot * SLOT_SIZE) != newest[slot]:
            if wrong < slot_room:
                slot_out[wrong] = slot
            wrong += 1
    return wrong
