"""Ext units and their addresses: golden ext files from end to end, borders, and random bytes."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.consume_queue_ext import (
    BIT_MAP_SIZE_MAX,
    END_BLANK,
    END_BLANK_SIZE,
    EXT_OFFSET_MAX,
    UNIT_SIZE_MAX,
    ConsumeQueueExtUnit,
    decode_ext_unit,
    encode_ext_unit,
    ext_address,
    ext_offset,
    fits,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    "golden_name", ["cqext-4.9.7", "cqext-5.5.0", "filter-4.9.7", "filter-5.5.0"]
)
def test_golden_files_unit_by_unit(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    seen = 0
    for queue in store.facts["queues"]:
        expected = [
            ConsumeQueueExtUnit(
                ext["tagsCode"], ext["msgStoreTime"], base64.b64decode(ext["filterBitMap"] or "")
            )
            for *_, ext in queue["units"]
            if isinstance(ext, dict)
        ]
        assert [ext["size"] for *_, ext in queue["units"] if isinstance(ext, dict)] == [
            unit.size for unit in expected
        ]
        found: list[ConsumeQueueExtUnit] = []
        files = store.segments("consumequeue_ext", queue["topic"], str(queue["queueId"]))
        for start, path in files.items():
            data = path.read_bytes()
            position = 0
            while (unit := decode_ext_unit(data, position)) is not None:
                assert encode_ext_unit(unit) == data[position : position + unit.size]
                assert fits(len(data), position, unit.size)
                position += unit.size
                found.append(unit)
            if start != max(files):
                assert data[position : position + 2] == END_BLANK
        assert found == expected
        seen += len(found)
    assert seen >= 60


def test_size_of_a_full_file_is_used_up(golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine("cqext-5.5.0")
    rolled = [
        path for path in (store.root / "consumequeue_ext").rglob("[0-9]" * 20) if int(path.name) > 0
    ]
    assert rolled, "no queue has a second ext file"


@given(INT64, INT64, st.binary(max_size=40), st.binary(max_size=5))
def test_round_trip(tags_code: int, timestamp: int, bit_map: bytes, behind: bytes) -> None:
    unit = ConsumeQueueExtUnit(tags_code, timestamp, bit_map)
    raw = encode_ext_unit(unit)
    assert len(raw) == unit.size
    assert decode_ext_unit(b"ab" + raw + behind, 2) == unit
    assert decode_ext_unit(memoryview(raw)) == unit


@given(st.integers(0, EXT_OFFSET_MAX))
def test_addresses(offset: int) -> None:
    address = ext_address(offset)
    assert address < -(2**31)
    assert ext_offset(address) == offset


def test_address_limits() -> None:
    assert EXT_OFFSET_MAX == 9_223_372_034_707_292_159
    assert ext_address(0) == -(2**63)
    assert ext_address(EXT_OFFSET_MAX) == -(2**31) - 1
    for offset in (-1, EXT_OFFSET_MAX + 1):
        with pytest.raises(FormatError):
            ext_address(offset)
    with pytest.raises(FormatError):
        ext_offset(-(2**31))


def test_limits_of_the_bitmap() -> None:
    assert UNIT_SIZE_MAX == 32_767
    largest = ConsumeQueueExtUnit(0, 0, bytes(BIT_MAP_SIZE_MAX))
    assert decode_ext_unit(encode_ext_unit(largest)) == largest
    with pytest.raises(FormatError, match="at most 32747"):
        encode_ext_unit(largest._replace(bit_map=bytes(BIT_MAP_SIZE_MAX + 1)))


def test_fits_leaves_room_for_the_end() -> None:
    assert fits(24, 0, 20)
    assert not fits(23, 0, 20)
    assert END_BLANK_SIZE == 4


@pytest.mark.parametrize("data", [b"", b"\0", bytes(50), END_BLANK, END_BLANK + bytes(30)])
def test_no_unit(data: bytes) -> None:
    assert decode_ext_unit(data) is None


@given(st.binary(max_size=60))
def test_unit_or_none_or_error(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        decode_ext_unit(data)


def test_cut_units() -> None:
    raw = encode_ext_unit(ConsumeQueueExtUnit(1, 2, b"abc"))
    for end in range(2, len(raw)):
        with pytest.raises(FormatError):
            decode_ext_unit(raw[:end])
    with pytest.raises(FormatError, match="bitmap of 4"):
        decode_ext_unit(raw[:19] + b"\4" + raw[20:])
