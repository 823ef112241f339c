"""Findings in queues and index files: kernels equal references, and damage is what is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats import index_file
from oberth.formats.batch_consume_queue import UNIT as BATCH_UNIT
from oberth.formats.consume_queue import PRE_BLANK, UNIT
from oberth.formats.index_file import ENTRY, SLOT, entry_position, slot_position
from oberth.kernels import runtime
from oberth.kernels.arguments import EntryFinding, UnitKind
from oberth.kernels.check import (
    check_index,
    compare_units,
    reference_check_index,
    reference_compare_units,
    reference_unit_kinds,
    unit_kinds,
)
from oberth.kernels.index import IndexEntries, put_entries

INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2, 400))
INT32 = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-1, 200))
units = st.lists(
    st.one_of(
        st.builds(UNIT.pack, INT64, INT32, INT64),
        st.just(PRE_BLANK),
        st.just(bytes(20)),
        st.just(UNIT.pack(0, 0, 1)),
    ),
    max_size=20,
).map(b"".join)


@given(units, st.integers(0, 300), st.integers(0, 2**62))
def test_kinds_equal_reference(queue: bytes, start: int, end: int) -> None:
    assert runtime.native("unit_kinds") is not None
    assert unit_kinds(queue, start, end) == reference_unit_kinds(queue, start, end)


def test_kinds() -> None:
    queue = [
        UNIT.pack(100, 50, 7), PRE_BLANK, bytes(20), UNIT.pack(99, 1, 0), UNIT.pack(151, 50, 0),
        UNIT.pack(-1, 50, 0),
    ]  # fmt: skip
    assert list(unit_kinds(b"".join(queue), 100, 200)) == list(UnitKind)
    batch = BATCH_UNIT.pack(100, 50, 7, 1, 0, 3, -1, 0)
    assert list(unit_kinds(batch * 2, 100, 150, is_batch=True)) == [UnitKind.RECORD] * 2
    with pytest.raises(ValueError, match="21 bytes are no whole units of 20"):
        unit_kinds(bytes(21), 0, 0)


@given(units, st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255))), st.booleans())
def test_differences_equal_reference(
    queue: bytes, changes: list[tuple[int, int]], ext: bool
) -> None:
    changed = bytearray(queue)
    for position, byte in changes:
        if position < len(changed):
            changed[position] = byte
    found = compare_units(changed, queue, ext=ext)
    assert found == reference_compare_units(changed, queue, ext=ext)
    if not ext:
        wanted = [
            n for n in range(len(queue) // 20) if queue[n * 20 :][:20] != changed[n * 20 :][:20]
        ]
        assert found == (wanted, len(wanted))


def test_ext_addresses_pass() -> None:
    queue = UNIT.pack(0, 100, 5) + UNIT.pack(100, 100, 6)
    addressed = UNIT.pack(0, 100, -(2**63)) + UNIT.pack(100, 101, -(2**63) + 20)
    assert compare_units(addressed, queue, ext=True) == ([1], 1)
    assert compare_units(addressed, queue) == ([0, 1], 2)
    with pytest.raises(ValueError, match="units of 40 bytes and of 20"):
        compare_units(queue, queue[:20])


SLOTS, PLACES = 5, 30


def stream(entries: list[tuple[int, int, int]]) -> IndexEntries:
    made = IndexEntries()
    for entry in entries:
        made.append(*entry)
    return made


def both(file: bytes, expected: IndexEntries, log_start: int = 0) -> tuple[Any, bytearray]:
    fast_seen, slow_seen = bytearray(expected.count), bytearray(expected.count)
    assert runtime.native("check_index") is not None
    found = check_index(file, SLOTS, PLACES, expected, log_start, fast_seen)
    assert found == reference_check_index(file, SLOTS, PLACES, expected, log_start, slow_seen)
    assert fast_seen == slow_seen
    return found, fast_seen


entries = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 9), st.integers(1, 20_000)), max_size=40
).map(lambda found: sorted(found, key=lambda entry: entry[1]))


@given(entries, st.lists(st.tuples(st.integers(0, 659), st.integers(0, 255))), st.integers(0, 3))
def test_index_findings_equal_reference(
    listed: list[tuple[int, int, int]], changes: list[tuple[int, int]], log_start: int
) -> None:
    expected = stream(listed)
    file = bytearray(index_file.file_size(SLOTS, PLACES))
    put_entries(file, SLOTS, PLACES, expected)
    for position, byte in changes:
        file[position] = byte
    both(bytes(file), expected, log_start)


def test_a_sound_index_has_no_findings_and_each_damage_its_own() -> None:
    listed = [(n * 3, n * 100, 1_000_000 + n * 1500) for n in range(20)]
    expected = stream(listed)
    file = bytearray(index_file.file_size(SLOTS, PLACES))
    put_entries(file, SLOTS, PLACES, expected)
    found, seen = both(bytes(file), expected)
    assert not any(found.entries)
    assert found.slots == []
    assert all(seen)

    def damaged(number: int, *values: int) -> tuple[Any, bytearray]:
        copy = bytearray(file)
        place = entry_position(number, SLOTS)
        old = ENTRY.unpack_from(copy, place)
        ENTRY.pack_into(copy, place, *(o + v for o, v in zip(old, values, strict=True)))
        return both(bytes(copy), expected)

    for values, finding in (
        ((5, 0, 0, 0), EntryFinding.WRONG_KEY),
        ((0, 1, 0, 0), EntryFinding.NO_RECORD),
        ((0, 0, 1, 0), EntryFinding.WRONG_TIME),
        ((0, 0, 0, 1), EntryFinding.WRONG_CHAIN),
    ):
        found, seen = damaged(10, *values)
        assert found.numbers(finding) == [10]
        assert seen.count(0) == (finding in (EntryFinding.WRONG_KEY, EntryFinding.NO_RECORD))
    copy = bytearray(file)
    SLOT.pack_into(copy, slot_position(2), 1)
    assert both(bytes(copy), expected)[0].slots == [2]
    found, _ = both(bytes(file), expected, log_start=300)
    assert found.numbers(EntryFinding.EXPIRED) == [1, 2, 3]


def test_index_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="index file of 3 bytes with 0 marks"):
        check_index(b"abc", SLOTS, PLACES, IndexEntries(), 0, bytearray())


def test_findings_of_many_records(log: Callable[..., bytes]) -> None:
    """More differences than are listed are still counted."""
    queue = b"".join(UNIT.pack(n, 100, 0) for n in range(5000))
    found = compare_units(bytes(len(queue)), queue)
    assert (len(found.units), found.unit_count) == (4096, 5000)
    assert reference_compare_units(bytes(len(queue)), queue) == found
