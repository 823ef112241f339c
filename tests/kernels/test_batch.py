"""A client's batch, cleaned and as records: the kernels equal the references on any bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.batch_body import BatchItem, decode_batch, encode_batch
from oberth.formats.message import FIXED, MAGIC_V1, decode_record
from oberth.formats.properties import NOT_OF_BATCH_ITEMS, TRANSIENT_PREFIX
from oberth.formats.property_crc import record_crc_ok
from oberth.kernels import runtime
from oberth.kernels.arguments import BatchEnd
from oberth.kernels.batch import (
    BatchRecords,
    CleanBatch,
    RecordHead,
    batch_records,
    clean_batch,
    reference_batch_records,
    reference_clean_batch,
)

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
HEAD = RecordHead(
    FIXED[0].pack(0, MAGIC_V1, 0, 7, 0, 0, 0, 0, 123, HOST, 456, HOST, 2, 0, 0),
    b"\x01T",
    b"",
    False,
)
PIECES = st.sampled_from(
    [
        *(name.encode() for name in sorted(NOT_OF_BATCH_ITEMS)), TRANSIENT_PREFIX.encode(),
        b"KEYS", b"TAGS", b"\x01", b"\x01", b"\x02", b"\x02", b"", b" ", b"\t", b"a", b"\0",
        b"0123456789\x02", b"0123456789", b"x" * 40,
    ]
)  # fmt: skip
PROPERTIES = st.lists(PIECES, max_size=12).map(b"".join)
ITEMS = st.lists(
    st.builds(BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=4), PROPERTIES),
    max_size=5,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(encode_batch(draw(ITEMS)))
    for _ in range(draw(st.integers(0, 2))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body)


def outcome(body: bytes, count_max: int, *, reference: bool) -> CleanBatch | str:
    function = reference_clean_batch if reference else clean_batch
    try:
        return function(body, count_max=count_max)
    except FormatError as error:
        return str(error)


def records(batch: CleanBatch, head: RecordHead, record_max: int = 400) -> BatchRecords:
    """What both make of it."""
    places = {"log_offset": 1000, "queue_offset": 30, "record_max": record_max}
    made = batch_records(batch, head, **places)
    expected = reference_batch_records(batch, head, **places)
    assert (made.end, bytes(made.data), made.offsets) == expected
    return made


def test_the_kernels_are_in_use() -> None:
    assert runtime.native("clean_batch") is not None
    assert runtime.native("batch_records") is not None


@given(
    body=bodies(),
    count_max=st.integers(1, 5),
    outer=st.sampled_from([b"", b"A\x01b\x02", b"x\0"]),
    with_crc=st.booleans(),
    record_max=st.sampled_from([110, 400]),
)
def test_kernels_equal_references(
    body: bytes, count_max: int, outer: bytes, with_crc: bool, record_max: int
) -> None:
    cleaned = outcome(body, count_max, reference=False)
    assert cleaned == outcome(body, count_max, reference=True)
    if isinstance(cleaned, CleanBatch):
        head = HEAD._replace(outer=outer, with_crc=with_crc)
        records(cleaned, head, record_max)


def test_what_an_item_cannot_choose_is_left_out() -> None:
    for name in (*sorted(NOT_OF_BATCH_ITEMS), TRANSIENT_PREFIX + "any"):
        for text in (f"{name}\x01v", f"{name}\x01v\x02", f"K\x01v\x02{name}\x01v\x02L\x01w"):
            body = encode_batch([BatchItem(0, b"b", text.encode())])
            (item,) = decode_batch(clean_batch(body).body)
            assert name.encode() not in item.properties
            assert item.properties in (b"", b"K\x01v\x02L\x01w")


def test_a_batch_in_order_is_not_copied() -> None:
    body = encode_batch([BatchItem(0, b"b", b"KEYS\x01k\x02"), BatchItem(1, b"c", b"KEYS\x01 ")])
    cleaned = clean_batch(body)
    assert cleaned.body is body
    assert cleaned == (body, 2, 1)
    magic = struct.pack(">ii", len(body[: 22 + 8]), 5) + body[8:]
    assert clean_batch(magic).body == body


@pytest.mark.parametrize("with_crc", [False, True])
def test_records_are_records(with_crc: bool) -> None:
    items = [BatchItem(n, b"body %d" % n, b"TAGS\x01t%d\x02" % n) for n in range(3)]
    head = HEAD._replace(with_crc=with_crc)
    made = records(clean_batch(encode_batch(items)), head)
    assert made.end is BatchEnd.DONE
    data = bytes(made.data)
    ends = [*(offset - 1000 for offset in made.offsets[1:]), len(data)]
    for number, (start, end) in enumerate(zip(made.offsets, ends, strict=True)):
        record = data[start - 1000 : end]
        message = decode_record(record)
        assert (message.topic, message.queue_id, message.flag) == ("T", 7, number)
        assert (message.queue_offset, message.commit_log_offset) == (30 + number, start)
        assert message.body == b"body %d" % number
        assert record_crc_ok(record) is (True if with_crc else None)


def test_what_is_refused() -> None:
    tail = b"a\x01v__CRC32#\x010123456789\x02"
    long = b"a\x01" + b"v" * 32_760
    for properties, head, end in (
        (tail, HEAD, BatchEnd.CRC_TAIL),
        (b"", HEAD._replace(outer=tail), BatchEnd.CRC_TAIL),
        (long, HEAD, BatchEnd.DONE),
        (long, HEAD._replace(with_crc=True), BatchEnd.PROPERTIES),
        (long, HEAD._replace(outer=b"b\x01some"), BatchEnd.PROPERTIES),
    ):
        batch = clean_batch(encode_batch([BatchItem(0, b"", properties)]))
        assert records(batch, head, 100_000).end is end
    batch = clean_batch(encode_batch([BatchItem(0, b"x" * 400, b"")]))
    assert records(batch, HEAD).end is BatchEnd.RECORD
