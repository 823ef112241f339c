"""Rows become the records that the general encoder makes of them, for any columns."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import IllegalNameError, OptionError, RecordError
from oberth.formats import message as m
from oberth.formats.compression import decompress_body
from oberth.formats.properties import decode_properties, encode_properties
from oberth.spark.encode import RecordEncoder
from oberth.spark.write_options import parse_write_options


def _encode(batch: pa.RecordBatch, start: int = 0, **options: str) -> list[m.MessageExt]:
    parsed = parse_write_options({"path": "/s", **options})
    encoder = RecordEncoder(batch.schema.names, parsed)
    found = []
    at = start
    for block in encoder.encode(batch, start):
        data = bytes(block.data)
        position = 0
        for size in block.sizes.tolist():
            record = m.decode_record(data, position, check_crc=True, at=at)
            assert record.encode() == data[position : position + size]
            assert record.queue_offset == 0
            found.append(record)
            position += size
            at += size
        assert position == len(data)
        assert sum(block.counts.values()) == len(block.sizes)
    return found


_TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
_ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["A", "Topic-b", "x" * 127, "y" * 200]),
        "value": st.one_of(st.none(), st.binary(max_size=40)),
        "key": st.one_of(st.none(), _TEXT),
        "tags": st.one_of(st.none(), _TEXT),
        "partition": st.one_of(st.none(), st.integers(0, 9)),
        "shardingKey": st.one_of(st.none(), _TEXT),
        "properties": st.one_of(
            st.none(),
            st.dictionaries(st.one_of(st.sampled_from(["KEYS", "a"]), _TEXT), _TEXT, max_size=4),
        ),
        "timestamp": st.one_of(st.none(), st.integers(0, 2**41)),
        "flag": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        "bornHost": st.one_of(st.none(), st.sampled_from(["1.2.3.4:5", "[::1]:99", "::2:7"])),
    }
)
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("value", pa.binary()),
        ("key", pa.string()),
        ("tags", pa.string()),
        ("partition", pa.int32()),
        ("shardingKey", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.int64()),
        ("flag", pa.int32()),
        ("bornHost", pa.string()),
    ]
)


@given(st.lists(_ROW, min_size=1, max_size=8))
def test_records_hold_what_the_rows_say(rows: list[dict[str, Any]]) -> None:
    table = [
        {
            **row,
            "properties": None if row["properties"] is None else list(row["properties"].items()),
        }
        for row in rows
    ]
    batch = pa.RecordBatch.from_pylist(table, _SCHEMA)
    records = _encode(batch, 12_345)
    for row, record in zip(rows, records, strict=True):
        assert record.topic == row["topic"]
        assert record.magic == (m.MAGIC_V1 if len(row["topic"]) <= 127 else m.MAGIC_V2)
        assert record.body == (row["value"] or b"")
        assert record.flag == (row["flag"] or 0)
        if row["partition"] is not None:
            assert record.queue_id == row["partition"]
        if row["timestamp"] is not None:
            assert record.store_timestamp == row["timestamp"] == record.born_timestamp
        if row["bornHost"] is not None:
            host, _, port = row["bornHost"].rpartition(":")
            assert record.born_host == m.encode_host(host.strip("[]"), int(port))
        expected = {k: v for k, v in (row["properties"] or {}).items() if k and v}
        for name, column in (("KEYS", "key"), ("TAGS", "tags"), ("__SHARDINGKEY", "shardingKey")):
            if row[column]:
                expected[name] = row[column]
        assert decode_properties(record.properties_raw) == expected


@pytest.mark.parametrize("column", ["properties", "storedProperties"])
def test_rows_do_not_say_where_their_records_lie(column: str) -> None:
    names = ["INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_BASE", "__CRC32#"]
    rows: list[Any] = [[("a", "1"), *((name, "7") for name in names)], None, [("a", "2")]]
    kind: pa.DataType = pa.map_(pa.string(), pa.string())
    if column == "storedProperties":
        rows = [None if row is None else encode_properties(dict(row)) for row in rows]
        kind = pa.binary()
    schema = pa.schema([("topic", pa.string()), ("value", pa.binary()), (column, kind)])
    table = [{"topic": "T", "value": b"x", column: row} for row in rows]
    records = _encode(pa.RecordBatch.from_pylist(table, schema))
    found = [decode_properties(record.properties_raw) for record in records]
    assert found == [{"a": "1"}, {}, {"a": "2"}]


def test_rows_without_a_queue_are_spread_in_turn() -> None:
    batch = pa.record_batch({"topic": ["A", "B", "A", "A", "B"], "body": [b"x"] * 5})
    assert [r.queue_id for r in _encode(batch, queues="2")] == [0, 0, 1, 0, 1]


def test_a_sharding_key_chooses_as_the_java_client_does() -> None:
    batch = pa.record_batch({"body": [b"x"] * 3, "shardingKey": ["a", "polygenelubricants", "a"]})
    first, second, third = (r.queue_id for r in _encode(batch, topic="T", queues="7"))
    assert (first, second, third) == (97 % 7, 2**31 % 7, 97 % 7)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_long_bodies_are_compressed_on_request(kind: str) -> None:
    batch = pa.record_batch({"value": [b"a" * 5000, b"short"]})
    long, short = _encode(batch, topic="T", compression=kind, compressOver="100")
    assert len(long.body) < 200
    assert decompress_body(long.body, long.sys_flag) == b"a" * 5000
    assert (short.body, short.sys_flag) == (b"short", 0)


def test_delayed_rows_wait_in_the_schedule_topic() -> None:
    batch = pa.record_batch(
        {"value": [b"x", b"y"], "delayLevel": pa.array([3, None]), "partition": [5, 6]}
    )
    late, prompt = _encode(batch, topic="T")
    assert (late.topic, late.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert late.properties == {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "5"}
    assert (prompt.topic, prompt.queue_id) == ("T", 6)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"value": [b"x"]}, OptionError, "needs the column topic"),
        ({"topic": ["A"]}, OptionError, "needs the column value"),
        ({"topic": ["A"], "value": [b"x"], "body": [b"x"]}, OptionError, "are the same"),
        ({"topic": ["A"], "value": [b"x"], "colour": ["red"]}, OptionError, "no column 'colour'"),
        ({"topic": ["A", None], "value": [b"x", b"y"]}, RecordError, "row 1: topic is null"),
        ({"topic": ["../A"], "value": [b"x"]}, IllegalNameError, "allowed are"),
        ({"topic": ["A"], "value": [b"x"], "partition": [-5]}, RecordError, "partition -5"),
        ({"topic": ["A"], "value": [b"x"], "tags": ["a\x01b"]}, RecordError, "separator"),
        ({"topic": ["A"], "value": [b"x" * 5_000_000]}, RecordError, "maxMessageSize"),
        ({"topic": ["A"], "value": [b"x"], "key": ["k" * 40_000]}, RecordError, "properties of"),
    ],
)
def test_rows_that_cannot_be_messages(
    columns: dict[str, list[Any]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _encode(pa.record_batch(columns))
