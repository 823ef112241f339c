"""Batch bodies: golden requests and inner batches, round trips, and damage at every byte."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats import batch_body
from oberth.formats.batch_body import ITEM_FIXED_SIZE, BatchItem, decode_batch, encode_batch
from oberth.formats.message import decode_record
from oberth.formats.properties import decode_properties
from oberth.formats.sys_flag import INNER_BATCH

ITEMS = st.lists(
    st.builds(
        BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)
    ),
    max_size=6,
)


@given(ITEMS)
def test_round_trip(items: list[BatchItem]) -> None:
    raw = encode_batch(items)
    assert decode_batch(raw) == items
    assert decode_batch(memoryview(raw)) == items
    assert len(raw) == sum(ITEM_FIXED_SIZE + len(i.body) + len(i.properties) for i in items)


def test_golden_inner_batches(golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine("innerbatch-5.5.0")
    log = store.commit_log()
    seen = 0
    for message in store.facts["messages"]:
        record = decode_record(*log.locate(message["commitLogOffset"]))
        if record.sys_flag & INNER_BATCH:
            items = decode_batch(record.body)
            assert len(items) == len(message["inner"])
            assert encode_batch(items) == record.body
            seen += 1
    assert seen == 28


def test_golden_requests(golden_frames: Callable[[str], Any]) -> None:
    seen = 0
    for frame in golden_frames("full-json"):
        header = frame["header"]
        if header["code"] not in (310, 320) or frame["direction"] != "to broker":
            continue
        if header.get("extFields", {}).get("m") != "true":
            continue
        raw = base64.b64decode(frame["frame"])
        header_size = int.from_bytes(raw[4:8], "big") & 0xFFFFFF
        body = raw[8 + header_size :]
        items = decode_batch(body)
        assert encode_batch(items) == body
        assert all(decode_properties(item.properties).get("UNIQ_KEY") for item in items)
        seen += 1
    assert seen


def test_cut_and_changed_bodies() -> None:
    raw = encode_batch([BatchItem(1, b"one", b"a\x01b\x02"), BatchItem(2, b"", b"")])
    whole = {0, ITEM_FIXED_SIZE + 3 + 4, len(raw)}
    for end in range(len(raw) + 1):
        if end in whole:
            decode_batch(raw[:end])
        else:
            with pytest.raises(FormatError, match="batch item"):
                decode_batch(raw[:end])
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 0xFF
        with contextlib.suppress(FormatError):
            decode_batch(bytes(damaged))


def test_what_is_wrong_with_an_item_is_said() -> None:
    raw = encode_batch([BatchItem(1, b"one", b"a\x01b\x02")])
    size = len(raw)
    for body, said in (
        (raw[: ITEM_FIXED_SIZE - 1], f"{ITEM_FIXED_SIZE - 1} bytes left"),
        (raw[:ITEM_FIXED_SIZE], f"size {size} with a body of 3, {ITEM_FIXED_SIZE} bytes left"),
        (raw[:-1], f"size {size} with a body of 3, {size - 1} bytes left"),
        (raw[:-6] + b"\x00\x05" + raw[-4:], "a body of 3 and properties of 5"),
    ):
        with pytest.raises(FormatError, match=said):
            decode_batch(body)


@given(st.binary(max_size=120))
def test_items_or_error(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        assert len(decode_batch(data)) <= len(data) // ITEM_FIXED_SIZE


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match="at most 32767"):
        encode_batch([BatchItem(0, b"", bytes(32_768))])
    with pytest.raises(FormatError, match="item 0"):
        encode_batch([BatchItem(1 << 31, b"", b"")])
    with pytest.raises(FormatError, match="more than 1 messages"):
        decode_batch(encode_batch([BatchItem(0, b"", b"")] * 2), count_max=1)
    monkeypatch.setattr(batch_body, "ITEM_COUNT_MAX", 2)
    with pytest.raises(FormatError, match="at most 2 messages"):
        encode_batch([BatchItem(0, b"", b"")] * 3)
