"""Checks ConsumeQueue units and Index entries against what the log says.

What the log says is what `queues.build_units` and `index.index_keys` make of it; these functions
find where a file says something else. They only judge; what to report or mend is the caller's.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

from oberth.formats import batch_consume_queue, consume_queue, index_file
from oberth.formats.index_file import ENTRY, entry_position, slot_position
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.arguments import EntryFinding, UnitKind
from oberth.kernels.index import IndexEntries, index_header
from oberth.kernels.memory import Buffer, address

__all__ = [
    "EntryFinding",
    "IndexFindings",
    "UnitKind",
    "check_index",
    "compare_units",
    "reference_check_index",
    "reference_compare_units",
    "reference_unit_kinds",
    "unit_kinds",
]

# More differences than this are counted but not listed.
FINDINGS_KEPT: Final = 4096
_TAGS_CODE: Final = 12


class Differences(NamedTuple):
    """Units that are not what they should be: the first `FINDINGS_KEPT` of them, and how many."""

    units: list[int]
    unit_count: int


class IndexFindings(NamedTuple):
    """What is wrong with an index file.

    Attributes:
        entries: an `EntryFinding` for each entry number below ``index_count``; number 0 is unused.
        slots: the first `FINDINGS_KEPT` slots that do not name their newest entry.
        slot_count: how many such slots there are.
    """

    entries: bytearray
    slots: list[int]
    slot_count: int

    def numbers(self, finding: EntryFinding) -> list[int]:
        """The numbers of the entries with a finding."""
        return [number for number, code in enumerate(self.entries) if number and code == finding]


def unit_kinds(units: Buffer, log_start: int, log_end: int, *, is_batch: bool = False) -> bytearray:
    """A `UnitKind` for each unit of a stretch of queue.

    Args:
        units: whole units.
        log_start: CommitLog offset of the first record.
        log_end: CommitLog offset after the last record.
        is_batch: whether they are BatchConsumeQueue units.
    """
    view = memoryview(units)
    size = _unit_size(len(view), is_batch)
    count = len(view) // size
    kernel = runtime.native("unit_kinds")
    if kernel is None:
        return reference_unit_kinds(units, log_start, log_end, is_batch=is_batch)
    out = bytearray(count)
    kernel(array("q", (address(view), count, size, log_start, log_end, address(out))))
    return out


def reference_unit_kinds(
    units: Buffer, log_start: int, log_end: int, *, is_batch: bool = False
) -> bytearray:
    """`unit_kinds` in plain Python."""
    view = memoryview(units)
    out = bytearray()
    for place in range(0, len(view), _unit_size(len(view), is_batch)):
        offset, size, code = consume_queue.UNIT.unpack_from(view, place)
        if offset == 0 and size == consume_queue.PRE_BLANK_SIZE:
            out.append(UnitKind.PRE_BLANK)
        elif offset == size == code == 0:
            out.append(UnitKind.EMPTY)
        elif offset < 0 or size <= 0:
            out.append(UnitKind.INVALID)
        elif offset < log_start:
            out.append(UnitKind.EXPIRED)
        elif offset + size > log_end:
            out.append(UnitKind.BEYOND)
        else:
            out.append(UnitKind.RECORD)
    return out


def compare_units(
    actual: Buffer, expected: Buffer, *, is_batch: bool = False, ext: bool = False
) -> Differences:
    """Where two stretches of queue of the same length differ.

    Args:
        actual: whole units of a file.
        expected: what the log says.
        is_batch: whether they are BatchConsumeQueue units.
        ext: the queue has a ConsumeQueueExt: an address there passes for any tags code.

    Raises:
        ValueError: the lengths differ, or are no whole units.
    """
    left, right = memoryview(actual), memoryview(expected)
    size = _unit_size(len(left), is_batch)
    if len(left) != len(right):
        raise ValueError(f"units of {len(left)} bytes and of {len(right)} cannot be compared")
    kernel = runtime.native("compare_units")
    if kernel is None:
        return reference_compare_units(left, right, is_batch=is_batch, ext=ext)
    out = array("i", bytes(4 * FINDINGS_KEPT))
    found = kernel(
        array(
            "q",
            (
                address(left),
                address(right),
                len(left) // size,
                size,
                ext,
                address(out),
                FINDINGS_KEPT,
            ),
        )
    )
    return Differences(out[: min(found, FINDINGS_KEPT)].tolist(), found)


def reference_compare_units(
    actual: Buffer, expected: Buffer, *, is_batch: bool = False, ext: bool = False
) -> Differences:
    """`compare_units` in plain Python."""
    left, right = memoryview(actual), memoryview(expected)
    size = _unit_size(len(left), is_batch)
    differing = []
    for number in range(len(left) // size):
        ours = bytes(left[number * size : (number + 1) * size])
        theirs = bytes(right[number * size : (number + 1) * size])
        if ours == theirs:
            continue
        code = int.from_bytes(ours[_TAGS_CODE : _TAGS_CODE + 8], "big", signed=True)
        same_record = ours[:_TAGS_CODE] == theirs[:_TAGS_CODE]
        if not (ext and same_record and consume_queue.is_ext_address(code)):
            differing.append(number)
    return Differences(differing[:FINDINGS_KEPT], len(differing))


def _unit_size(length: int, is_batch: bool) -> int:
    size = batch_consume_queue.UNIT_SIZE if is_batch else consume_queue.UNIT_SIZE
    if length % size:
        raise ValueError(f"{length} bytes are no whole units of {size}")
    return size


def check_index(
    file: Buffer,
    slots: int,
    entries_max: int,
    expected: IndexEntries,
    log_start: int,
    seen: bytearray,
) -> IndexFindings:
    """Compares an index file with the entries that the log asks for.

    Args:
        file: the file's bytes; only read.
        slots: number of hash slots.
        entries_max: number of entry places.
        expected: entries of the log, in its order: all, or the stretch between the file's
            begin_offset and end_offset.
        log_start: entries of records before this CommitLog offset are expired.
        seen: a byte for each expected entry; set to 1 where the file has it. What no file has when
            all were checked is missing.

    Raises:
        ValueError: the buffer is not as large as the file must be, or ``seen`` as ``expected``.
    """
    view = memoryview(file).cast("B")
    size = index_file.file_size(slots, entries_max)
    if len(view) != size or slots < 1 or len(seen) != expected.count:
        raise ValueError(
            f"index file of {len(view)} bytes with {len(seen)} marks: {slots} slots and "
            f"{entries_max} entries take {size}, the expected entries {expected.count} marks"
        )
    count = min(index_header(view).next_entry, entries_max)
    kernel = runtime.native("check_index")
    if kernel is None:
        return reference_check_index(view, slots, entries_max, expected, log_start, seen)
    newest = bytearray(4 * slots)
    findings = bytearray(count)
    wrong_slots = array("i", bytes(4 * FINDINGS_KEPT))
    arguments = array("q", bytes(8 * at.CHECK_ARGUMENTS))
    arguments[at.CHECK_FILE] = address(view)
    arguments[at.CHECK_SLOTS] = slots
    arguments[at.CHECK_COUNT] = count
    arguments[at.CHECK_LOG_START] = log_start
    arguments[at.CHECK_HASHES] = address(expected.hashes)
    arguments[at.CHECK_OFFSETS] = address(expected.offsets)
    arguments[at.CHECK_TIMESTAMPS] = address(expected.timestamps)
    arguments[at.CHECK_EXPECTED] = expected.count
    arguments[at.CHECK_SEEN] = address(seen)
    arguments[at.CHECK_NEWEST] = address(newest)
    arguments[at.CHECK_FINDINGS] = address(findings)
    arguments[at.CHECK_SLOT_FINDINGS] = address(wrong_slots)
    arguments[at.CHECK_SLOT_FINDINGS_MAX] = FINDINGS_KEPT
    wrong = kernel(arguments)
    return IndexFindings(findings, wrong_slots[: min(wrong, FINDINGS_KEPT)].tolist(), wrong)


def reference_check_index(
    file: Buffer,
    slots: int,
    entries_max: int,
    expected: IndexEntries,
    log_start: int,
    seen: bytearray,
) -> IndexFindings:
    """`check_index` in plain Python."""
    view = memoryview(file)
    header = index_header(view)
    count = min(header.next_entry, entries_max)
    offsets = memoryview(expected.offsets).cast("q")[: expected.count]
    findings = bytearray(count)
    newest: dict[int, int] = {}
    for number in range(1, count):
        key_hash, offset, difference, previous = ENTRY.unpack_from(
            view, entry_position(number, slots)
        )
        linked = False
        if key_hash >= 0:
            slot = key_hash % slots
            linked = newest.get(slot, 0) == previous
            newest[slot] = number
        finding = EntryFinding.OK
        if offset < log_start:
            finding = EntryFinding.EXPIRED
        else:
            first = bisect_left(offsets, offset)
            entry = first
            finding = EntryFinding.NO_RECORD
            while entry < expected.count and offsets[entry] == offset:
                if finding is EntryFinding.NO_RECORD:
                    finding = EntryFinding.WRONG_KEY
                if expected.entry(entry)[0] == key_hash:
                    finding = EntryFinding.REPEATED
                    if not seen[entry]:
                        finding = EntryFinding.OK
                        seen[entry] = 1
                        break
                entry += 1
            if finding in (EntryFinding.OK, EntryFinding.REPEATED) and number > 1:
                timestamp = expected.entry(first)[2]
                if difference != index_file.time_diff_seconds(timestamp, header.begin_timestamp):
                    finding = EntryFinding.WRONG_TIME
        if not linked and finding <= EntryFinding.EXPIRED:
            finding = EntryFinding.WRONG_CHAIN
        findings[number] = finding
    wrong = [
        slot
        for slot in range(slots)
        if index_file.SLOT.unpack_from(view, slot_position(slot))[0] != newest.get(slot, 0)
    ]
    return IndexFindings(findings, wrong[:FINDINGS_KEPT], len(wrong))
