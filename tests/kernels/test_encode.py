"""Encoded records: the kernel equals the reference, and both what `formats` encodes."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.message import MAGIC_V1, MAGIC_V2, decode_record
from oberth.formats.properties import PROPERTIES_SIZE_MAX
from oberth.kernels import runtime
from oberth.kernels.arguments import ENCODE_COLUMNS, EncodeEnd
from oberth.kernels.encode import Encoded, RecordColumns, RecordWriter, Values

TOPICS = ["T", "x" * 127, "y" * 200]
HOSTS = [bytes((127, 0, 0, 1, 0, 0, 42, 159)), bytes(range(20)), bytes((1, 2, 3, 4, 0, 0, 0, 5))]
LIMITS = {"body_max": 200, "record_max": 100_000}


def column(values: list[bytes | None], first: int = 0) -> Values:
    """Values that lie behind ``first`` others, as in a slice of an Arrow array."""
    padded = [b"other"] * first + [b"" if value is None else value for value in values]
    bits = bytearray((len(padded) + 7) // 8)
    for number, value in enumerate(values, first):
        if value is not None:
            bits[number >> 3] |= 1 << (number & 7)
    made = Values.of(padded)
    return Values(made.data, memoryview(made.offsets)[first:], bits, first)


def piece(topic: str) -> bytes:
    raw = topic.encode()
    return len(raw).to_bytes(1 if len(raw) <= 127 else 2, "big") + raw


def columns_of(rows: list[dict[str, Any]], first: int = 0) -> RecordColumns:
    numbers = {name: array("q", [row[name] for row in rows]) for name in ENCODE_COLUMNS}
    for name, of_rows in numbers.items():
        if len(set(of_rows)) == 1:
            numbers[name] = of_rows[:1]
    return RecordColumns(
        len(rows),
        numbers,
        [piece(topic) for topic in TOPICS],
        [MAGIC_V1, MAGIC_V1, MAGIC_V2],
        HOSTS,
        column([row["body"] for row in rows], first),
        [
            (b"KEYS", column([row["keys"] for row in rows], first)),
            (b"TAGS", column([row["tags"] for row in rows])),
        ],
        column([row["stored"] for row in rows]),
    )


def write(columns: RecordColumns, room: int, **limits: int) -> tuple[bytes, list[int], Encoded]:
    """All records, a stretch of at most ``room`` bytes at a time."""
    writer = RecordWriter(columns, **{**LIMITS, **limits})
    log = b""
    row = 0
    while True:
        out = bytearray(room)
        done = writer.encode(row, 1000 + len(log), out)
        log += out[: done.size]
        row = done.row
        if done.end is not EncodeEnd.FULL:
            return log, list(writer.sizes[:row]), done
        room = max(room, done.needed)


def both(
    columns: RecordColumns, room: int = 1 << 16, **limits: int
) -> tuple[bytes, list[int], Encoded]:
    assert runtime.native("encode") is not None
    compiled = write(columns, room, **limits)
    runtime.use_reference_only(True)
    try:
        assert write(columns, room, **limits) == compiled
    finally:
        runtime.use_reference_only(False)
    return compiled


values = st.one_of(st.none(), st.binary(max_size=12).filter(lambda value: not {1, 2} & set(value)))
rows_of = st.fixed_dictionaries(
    {
        "queue_id": st.integers(0, 9),
        "flag": st.integers(-(2**31), 2**31 - 1),
        "born_timestamp": st.integers(0, 2**41),
        "store_timestamp": st.integers(0, 2**41),
        "reconsume_times": st.integers(0, 16),
        "prepared_transaction_offset": st.integers(0, 2**62),
        "topic": st.integers(0, 2),
        "born_host": st.integers(0, 2),
        "store_host": st.integers(0, 2),
        "body": st.one_of(st.none(), st.binary(max_size=150)),
        "keys": values,
        "tags": values,
        "stored": st.sampled_from([None, b"", b"a\x01b\x02"]),
    }
).map(lambda r: {**r, "sys_flag": 0x10 * (r["born_host"] == 1) + 0x20 * (r["store_host"] == 1)})


@given(st.lists(rows_of, min_size=1, max_size=12), st.sampled_from([0, 3, 9]), st.integers(1, 900))
def test_records_hold_what_the_columns_say(
    rows: list[dict[str, Any]], first: int, room: int
) -> None:
    log, sizes, done = both(columns_of(rows, first), room)
    assert done.end is EncodeEnd.DONE
    at = 0
    for expected, size in zip(rows, sizes, strict=True):
        found = decode_record(log, at, check_crc=True, at=1000 + at)
        assert found.record_size == size
        assert found.body == (expected["body"] or b"")
        assert found.topic == TOPICS[expected["topic"]]
        assert found.born_host == HOSTS[expected["born_host"]]
        assert found.store_host == HOSTS[expected["store_host"]]
        assert found.queue_offset == 0
        for name in ENCODE_COLUMNS[:7]:
            assert getattr(found, name) == expected[name]
        wanted = b"".join(
            name + b"\x01" + expected[key] + b"\x02"
            for name, key in ((b"KEYS", "keys"), (b"TAGS", "tags"))
            if expected[key]
        )
        assert found.properties_raw == wanted + (expected["stored"] or b"")
        at += size
    assert at == len(log)


PLAIN: dict[str, Any] = {
    **dict.fromkeys(ENCODE_COLUMNS, 0),
    "body": b"b",
    "keys": None,
    "tags": None,
    "stored": None,
}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"body": b"x" * 201}, (EncodeEnd.BODY, 201, -1)),
        ({"keys": b"a\x01"}, (EncodeEnd.SEPARATOR, 0, 0)),
        ({"tags": b"\x02a"}, (EncodeEnd.SEPARATOR, 0, 1)),
        ({"stored": b"p" * (PROPERTIES_SIZE_MAX + 1)}, (EncodeEnd.PROPERTIES, 32_768, -1)),
        ({"stored": b"p" * 2000}, (EncodeEnd.RECORD, 2093, -1)),
    ],
)
def test_what_is_no_message_ends_it(wrong: dict[str, Any], expected: tuple[Any, ...]) -> None:
    limit = 1000 if expected[0] is EncodeEnd.RECORD else 100_000
    rows = [PLAIN, PLAIN, {**PLAIN, **wrong}, PLAIN]
    log, sizes, done = both(columns_of(rows), record_max=limit)
    assert (done.end, done.needed, done.bad_property) == expected
    assert done.row == len(sizes) == 2
    assert len(log) == sum(sizes)
