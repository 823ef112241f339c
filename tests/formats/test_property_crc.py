"""The whole-record CRC: recomputed for every golden record with one, and broken at every byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.properties import decode_properties
from oberth.formats.property_crc import (
    CRC_PROPERTY,
    TAIL_SIZE,
    decode_crc_tail,
    encode_crc_tail,
    record_crc_ok,
)


@pytest.mark.parametrize("golden_name", ["propcrc-5.5.0", "propcrc-force-5.5.0"])
def test_golden_records(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    log = store.commit_log()
    for message in store.facts["messages"]:
        raw = log.read(message["commitLogOffset"], message["storeSize"])
        assert record_crc_ok(raw) is True
        assert encode_crc_tail(raw[:-TAIL_SIZE]) == raw[-TAIL_SIZE:]
        stored = decode_properties(raw[-TAIL_SIZE:])[CRC_PROPERTY]
        assert int(stored[::-1]) == decode_crc_tail(raw)


def test_golden_records_without(golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine("basic-5.5.0")
    message = store.facts["messages"][0]
    raw = store.commit_log().read(message["commitLogOffset"], message["storeSize"])
    assert record_crc_ok(raw) is None


def test_one_changed_byte_is_noticed() -> None:
    head = bytes(range(100))
    raw = head + encode_crc_tail(head)
    assert record_crc_ok(raw) is True
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 1
        assert record_crc_ok(damaged) is not True


@given(st.binary(max_size=60))
def test_round_trip(head: bytes) -> None:
    tail = encode_crc_tail(head)
    assert len(tail) == TAIL_SIZE
    assert record_crc_ok(head + tail) is True
    assert record_crc_ok(memoryview(head + tail)) is True


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    assert record_crc_ok(data) in (None, False)
