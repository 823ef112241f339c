"""The option ``body``: bodies as a column of batches, streams and lakes, with reasons for bad ones.

Readers are called as Spark calls them, without a JVM, but for one test. The schema registry is the
stand-in of `tests/rigs/schema_registry.py`.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.rigs.schema_registry import SchemaRegistry, schema_registry

from oberth.errors import OptionError, RecordError, RemotingError
from oberth.formats import sys_flag
from oberth.spark.body_column import as_type
from oberth.spark.options import parse_read_options
from oberth.spark.pipelines.export import registry as registry_module
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.json_types import parse_schema
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQDataSource, RocketMQReader
from oberth.spark.stream import RocketMQDriverStreamReader, RocketMQStreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType
    from tests.spark.conftest import GrowingStore

JSON_TYPES = '{"id": "bigint", "lines": [{"sku": "string", "price": "double"}]}'
GOOD = b'{"id": 1, "lines": [{"sku": "a", "price": 1.5}]}'
GOOD_VALUE = {"id": 1, "lines": [{"sku": "a", "price": 1.5}]}
AVRO_1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
AVRO_2 = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as table:
        yield table


def rows(root: Path, schema: StructType | None = None, /, **options: str) -> list[dict[str, Any]]:
    """What a batch query gives; each reader and partition goes through pickle as Spark sends it."""
    given = {"path": str(root), **{n.replace("__", "."): v for n, v in options.items()}}
    source = RocketMQDataSource(given)
    reader = source.reader(schema or source.schema())
    partitions = reader.partitions()
    task = pickle.loads(pickle.dumps(reader))
    found: list[dict[str, Any]] = []
    for each in partitions:
        for batch in task.read(pickle.loads(pickle.dumps(each))):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def named(number: int, body: bytes) -> bytes:
    return struct.pack(">bi", 0, number) + body


def test_json_beside_the_other_columns(growing_store: GrowingStore) -> None:
    growing_store.append("orders", 0, GOOD, keys="k")
    growing_store.append("orders", 0, b'{"id": "one"}')
    growing_store.append("orders", 0, b"\xff")
    growing_store.append("orders", 0, b"no zlib", flags=sys_flag.COMPRESSED)
    found = rows(growing_store.root, body="json", bodySchema=JSON_TYPES)
    assert list(found[0])[-2:] == ["body", "bodyError"]
    assert [row["body"] for row in found] == [GOOD_VALUE, None, None, None]
    assert [row["value"] for row in found] == [GOOD, b'{"id": "one"}', b"\xff", b"no zlib"]
    assert found[0]["key"] == b"k"
    assert found[0]["bodyError"] is None
    assert found[1]["bodyError"] == "id: found text, expected bigint"
    assert found[2]["bodyError"] == "no UTF-8 at byte 0"
    assert "ZLIB" in found[3]["bodyError"]


def test_only_the_columns_that_are_asked_for(growing_store: GrowingStore) -> None:
    growing_store.append("orders", 0, GOOD)
    growing_store.append("orders", 0, b"?")
    options = {"body": "json", "bodySchema": JSON_TYPES}
    assert rows(growing_store.root, columns="Body,offset", **options) == [
        {"Body": GOOD_VALUE, "offset": 0}, {"Body": None, "offset": 1},
    ]  # fmt: skip
    assert rows(growing_store.root, columns="offset,value", **options) == [
        {"offset": 0, "value": GOOD}, {"offset": 1, "value": b"?"},
    ]  # fmt: skip
    assert len(rows(growing_store.root, columns="*", **options)[0]) == 31
    plain = rows(growing_store.root, columns="bodyError", **options)
    assert [row["bodyError"] is None for row in plain] == [True, False]


def test_the_schema_of_the_frame_is_the_bodies(growing_store: GrowingStore) -> None:
    growing_store.append("orders", 0, GOOD)
    lines = pa.list_(pa.struct([("sku", pa.string())]))
    body = pa.struct([("id", pa.int32()), ("lines", lines)])
    schema = from_arrow_schema(pa.schema([("offset", pa.int64()), ("body", body)]))
    assert rows(growing_store.root, schema, body="json") == [
        {"offset": 0, "body": {"id": 1, "lines": [{"sku": "a"}]}}
    ]
    wrong = from_arrow_schema(pa.schema([("body", pa.struct([("at", pa.date32())]))]))
    with pytest.raises(OptionError, match=r"body\.at: found type date32"):
        rows(growing_store.root, wrong, body="json")
    with pytest.raises(OptionError, match="found type binary, with body=json it is a struct"):
        rows(growing_store.root, struct_type(parse_columns("body")), body="json")
    with pytest.raises(OptionError, match="its schema makes struct<id:bigint"):
        rows(growing_store.root, schema, body="json", bodySchema=JSON_TYPES)


def test_bodies_that_do_not_decode_are_left_out_or_an_error(
    growing_store: GrowingStore, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (GOOD, b"?", GOOD):
        growing_store.append("orders", 3, body)
    options = {"body": "json", "bodySchema": JSON_TYPES, "columns": "body,offset"}
    kept = rows(growing_store.root, badBodies="skip", **options)
    assert [row["offset"] for row in kept] == [0, 2]
    assert "orders of store, queue 3, offset 1: body: not JSON" in caplog.text.replace(
        growing_store.root.name, "store"
    )
    with pytest.raises(RecordError, match="queue 3, offset 1: body: not JSON"):
        rows(growing_store.root, badBodies="fail", **options)


def test_a_schema_that_says_not_null_is_kept(growing_store: GrowingStore, tmp_path: Path) -> None:
    growing_store.append("orders", 0, b'{"id": 1}', keys="k")
    growing_store.append("orders", 0, b'{"id": "one"}')
    into = str(tmp_path / "lake")
    export(InProcess(), str(growing_store.root), into, ExportSettings())
    growing_store.append("orders", 0, b'{"id": 3}', keys="k")
    body = pa.struct([("id", pa.int64())])

    def asked(field: pa.Field, **options: str) -> list[Any]:
        schema = from_arrow_schema(pa.schema([pa.field("offset", pa.int64(), False), field]))
        found = []
        for more in ({}, {"lake": into}):
            read = rows(growing_store.root, schema, body="json", **options, **more)
            found.append([row["offset"] for row in read])
        assert found[0] == sorted(found[1])
        return found[0]

    inside = pa.field("body", pa.struct([pa.field("id", pa.int64(), False)]))
    assert asked(inside) == [0, 1, 2]
    growing_store.append("orders", 0, b"{}", keys="k")
    key, strict = pa.field("key", pa.binary(), False), pa.field("body", body, False)
    assert asked(strict, badBodies="skip") == [0, 2, 3]
    name = growing_store.root.name
    place = f"the first is orders of {name}, queue 0, offset 1$"
    said = "column {} is null in 1 rows, the schema says NOT NULL"
    with pytest.raises(RecordError, match=f"{said.format('body')}; {place}"):
        asked(strict)
    for lake in ({}, {"lake": into}):
        schema = from_arrow_schema(pa.schema([key]))
        with pytest.raises(RecordError, match=f"{said.format('key')}; {place}"):
            rows(growing_store.root, schema, **lake)
        both = from_arrow_schema(pa.schema([key, pa.field("body", body)]))
        with pytest.raises(RecordError, match="column key is null in 1 rows, the schema says NOT"):
            rows(growing_store.root, both, body="json", **lake)
        kept = rows(growing_store.root, both, body="json", badBodies="skip", **lake)
        assert sorted(row["body"]["id"] or 0 for row in kept) == [0, 1, 3]
        with pytest.raises(RecordError, match=r"column body\.id is null in 1 rows"):
            rows(growing_store.root, from_arrow_schema(pa.schema([inside])), body="json", **lake)
    less = str(tmp_path / "less")
    settings = ExportSettings(columns="key,value,bodyError,physicalOffset")
    export(InProcess(), str(growing_store.root), less, settings)
    place = f"the first is in {less}/.*parquet"
    with pytest.raises(RecordError, match=f"{said.format('key')}; {place}"):
        rows(growing_store.root, from_arrow_schema(pa.schema([key])), lake=less)
    with pytest.raises(RecordError, match=f"{said.format('body')}$"):
        rows(growing_store.root, from_arrow_schema(pa.schema([strict])), body="json", lake=less)


def test_not_null_reaches_into_arrays_whoever_gives_the_type(growing_store: GrowingStore) -> None:
    sku = pa.field("sku", pa.string(), False)
    lines = pa.list_(pa.field("element", pa.struct([sku, ("price", pa.float64())])))
    body = pa.struct([("id", pa.int64()), ("lines", lines)])
    schema = from_arrow_schema(pa.schema([("offset", pa.int64()), ("body", body)]))
    options = {"body": "json", "bodySchema": JSON_TYPES}
    line = {"sku": "a", "price": 1.5}
    found: list[Any] = [[line, None], [], None, [line]]
    growing_store.append("orders", 3, b"?")
    for each in found:
        growing_store.append("orders", 3, json.dumps({"id": 1, "lines": each}).encode())
    read = rows(growing_store.root, schema, **options)
    assert [row["body"] and row["body"]["lines"] for row in read] == [None, *found]
    growing_store.append("orders", 3, b'{"lines": [{"sku": "a"}, {"price": 1.5}, {}]}')
    with pytest.raises(RecordError, match=r"body\.lines\[\]\.sku is null in 2 items.*offset 5$"):
        rows(growing_store.root, schema, badBodies="skip", **options)


def test_a_type_that_says_not_null_is_put_on_any_part_of_an_array() -> None:
    item = pa.struct([pa.field("sku", pa.string()), ("more", pa.list_(pa.int64()))])
    strict = pa.struct([
        pa.field("sku", pa.string(), False),
        ("more", pa.list_(pa.field("element", pa.int64(), False))),
    ])  # fmt: skip
    kind = pa.list_(pa.field("element", strict, False))
    lists: list[Any] = [[{"sku": "a", "more": [1]}], None, [], [None, {"sku": None, "more": None}]]
    lists += [[{"sku": "b", "more": [2, None]}, {"sku": "c", "more": []}]]
    values = pa.array(lists, pa.list_(item))
    for first in range(len(lists)):
        for last in range(first, len(lists) + 1):
            made = as_type(values[first:last], kind)
            assert made.type == kind
            assert made.to_pylist() == lists[first:last]
            made.validate(full=True)


def test_avro_by_a_file_and_a_readers_schema(growing_store: GrowingStore, tmp_path: Path) -> None:
    growing_store.append("orders", 0, avro(AVRO_1, {"id": 7}))
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(AVRO_1))
    options = {"body": "avro", "bodySchema": str(path), "columns": "body"}
    assert rows(growing_store.root, **options) == [{"body": {"id": 7}}]
    assert rows(growing_store.root, **options, bodyReaderSchema=json.dumps(AVRO_2)) == [
        {"body": {"id": 7, "note": None}}
    ]


def test_a_stream_has_the_column(growing_store: GrowingStore) -> None:
    growing_store.append("orders", 0, GOOD)
    growing_store.append("orders", 0, b"?")
    given = {
        "path": str(growing_store.root), "startingOffsets": "earliest", "body": "json",
        "bodySchema": JSON_TYPES, "columns": "offset,body,bodyError",
    }  # fmt: skip
    options = parse_read_options(given, streaming=True)
    schema = RocketMQDataSource(given).schema()
    expected = [GOOD_VALUE, None]
    reader = RocketMQStreamReader(options, schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    task = pickle.loads(pickle.dumps(reader))
    found = [
        row["body"] for each in reader.partitions(start, end)
        for batch in task.read(each) for row in batch.to_pylist()
    ]  # fmt: skip
    assert found == expected
    driver = RocketMQDriverStreamReader(options, schema)
    batches, _ = driver.read(driver.initialOffset())
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == expected


@pytest.mark.parametrize("exported", ["raw", "json"])
def test_log_and_lake_have_the_same_column(
    growing_store: GrowingStore, tmp_path: Path, exported: str
) -> None:
    for body in (GOOD, b"?"):
        growing_store.append("orders", 0, body)
    settings = ExportSettings(body=exported)
    if exported == "json":
        settings = settings.with_json_type(parse_schema(JSON_TYPES))
    export(InProcess(), str(growing_store.root), str(tmp_path / "lake"), settings)
    for body in (GOOD, b"?"):
        growing_store.append("orders", 0, body)
    options = {"body": "json", "bodySchema": JSON_TYPES, "columns": "offset,body,bodyError"}
    whole = rows(growing_store.root, **options)
    found = rows(growing_store.root, lake=str(tmp_path / "lake"), **options)
    assert sorted(found, key=lambda row: int(row["offset"])) == whole
    assert [row["body"] for row in whole] == [GOOD_VALUE, None] * 2


def test_avro_bodies_name_their_schemas(
    growing_store: GrowingStore, registry: SchemaRegistry
) -> None:
    first = registry.register("orders-value", json.dumps(AVRO_1))
    second = registry.register("orders-value", json.dumps(AVRO_2))
    other = registry.register("x", '{"type": "record", "name": "X", "fields": []}')
    bodies = [
        named(first, avro(AVRO_1, {"id": 1})),
        named(second, avro(AVRO_2, {"id": 2, "note": "x"})),
        named(first, avro(AVRO_1, {"id": 3})),
        named(other, b""),
        named(9, b"\x02"),
        named(-1, b"\x02"),
        b"\x02",
    ]
    for body in bodies:
        growing_store.append("orders", 0, body)
    options = {"body": "avro", "schemaRegistry": registry.url, "subscribe": "orders"}
    found = rows(growing_store.root, columns="body,bodyError", **options)
    assert [row["body"] for row in found] == [
        {"id": 1, "note": None}, {"id": 2, "note": "x"}, {"id": 3, "note": None}, *[None] * 4,
    ]  # fmt: skip
    reasons = [row["bodyError"] for row in found]
    assert reasons[:3] == [None] * 3
    assert reasons[3] == "what it was written with does not resolve to the column's schema"
    assert reasons[4] == "schema 9 is not known to the registry"
    assert reasons[5] == "schema -1 is not known to the registry"
    assert reasons[6].startswith("no schema id in front")
    # Each schema once, however many bodies name it.
    assert registry.asked.count(f"/schemas/ids/{first}") == 1
    assert registry.asked.count(f"/schemas/ids/{second}") == 0
    # The first version has the column of the first; what the second wrote is fitted to it.
    old = rows(growing_store.root, columns="body", schemaVersion="1", **options)
    assert old[0] == {"body": {"id": 1}}


def test_what_bodies_name_is_asked_for_a_bounded_number_of_times(
    growing_store: GrowingStore, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "IDS_MAX", 3)
    registry.register("orders-value", json.dumps(AVRO_1))
    for number in range(1000, 1010):
        growing_store.append("orders", 0, named(number, b"\x02"))
    options = {"body": "avro", "schemaRegistry": registry.url, "subscribe": "orders"}
    found = rows(growing_store.root, **options)
    assert sum("not known" in row["bodyError"] for row in found) == 2
    assert sum("more than 3" in row["bodyError"] for row in found) == 8
    assert sum(path.startswith("/schemas/ids/") for path in registry.asked) == 2


def test_json_by_a_registry(growing_store: GrowingStore, registry: SchemaRegistry) -> None:
    schema = {
        "type": "object", "properties": {
            "id": {"type": "integer"},
            "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "price": {"type": ["null", "number"]},
            "lines": {"type": "array", "items": {"type": "object", "properties": {
                "sku": {"type": "string"}, "sold": {"type": "boolean"}}}},
            "more": {"$ref": "#/definitions/x"},
        },
    }  # fmt: skip
    number = registry.register("things", json.dumps(schema), "JSON")
    value = {"id": 1, "note": None, "price": 2, "lines": [{"sku": "a", "sold": True}], "more": [1]}
    growing_store.append("orders", 0, named(number, json.dumps(value).encode()))
    growing_store.append("orders", 0, b'{"id": 2}')
    options = {"body": "json", "schemaRegistry": registry.url, "schemaSubject": "things"}
    found = rows(growing_store.root, columns="body", **options)
    assert found[0]["body"] == {**value, "price": 2.0, "more": "[1]"}
    assert found[1]["body"]["id"] == 2


def test_protobuf_by_a_registry(growing_store: GrowingStore, registry: SchemaRegistry) -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "line.proto"],
    )  # fmt: skip
    kinds = descriptor_pb2.FieldDescriptorProto
    other = file.message_type.add(name="Other")
    other.field.add(name="x", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    for number, (name, kind) in enumerate(
        (("at", ".google.protobuf.Timestamp"), ("line", ".shop.Line")), 2
    ):
        order.field.add(
            name=name, number=number, type=kinds.TYPE_MESSAGE, type_name=kind,
            label=kinds.LABEL_OPTIONAL,
        )  # fmt: skip
    line = descriptor_pb2.FileDescriptorProto(name="l", package="shop", syntax="proto3")
    line.message_type.add(name="Line").field.add(
        name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL
    )
    as_text = base64.b64encode(line.SerializeToString()).decode()
    registry.register("line", as_text, "PROTOBUF")
    number = registry.register(
        "orders-value", base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF",
        references=[{"name": "line.proto", "subject": "line", "version": 1}],
    )  # fmt: skip
    message = b"\x08\x07\x12\x02\x08\x01\x1a\x03\x0a\x01s"
    growing_store.append("orders", 0, named(number, b"\x02\x02" + message))  # place [1]
    growing_store.append("orders", 0, named(number, b"\x00" + message))  # place [0]
    growing_store.append("orders", 0, named(number, b""))
    options = {
        "body": "protobuf", "schemaRegistry": registry.url, "subscribe": "orders",
        "columns": "body,bodyError",
    }  # fmt: skip
    found = rows(growing_store.root, bodyMessage="shop.Order", **options)
    assert found[0]["body"]["id"] == 7
    assert found[0]["body"]["line"] == {"sku": "s"}
    assert found[0]["body"]["at"].isoformat() == "1970-01-01T00:00:01+00:00"
    assert found[1]["bodyError"] == "message [0] of its schema, expected [1] (shop.Order)"
    assert found[2]["bodyError"] == "at 5: no message index"
    assert "?format=serialized" in registry.asked[0]
    # Without a name it is the schema's first.
    assert rows(growing_store.root, **options)[1]["body"] == {"x": 7}


def test_a_registry_that_is_away_is_no_bad_body(
    growing_store: GrowingStore, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_FIRST_PAUSE_S", 0.001)
    first = registry.register("orders-value", json.dumps(AVRO_1))
    registry.register("orders-value", json.dumps(AVRO_2))
    growing_store.append("orders", 0, named(first, avro(AVRO_1, {"id": 1})))
    given = {"path": str(growing_store.root), "body": "avro", "columns": "body",
             "schemaRegistry": registry.url, "schemaSubject": "orders-value"}  # fmt: skip
    registry.failures = 3
    source = RocketMQDataSource(given)
    reader = RocketMQReader(parse_read_options(given, streaming=False), source.schema())
    [partition] = reader.partitions()
    registry.failures = 99
    with pytest.raises(RemotingError, match=r"answers /schemas/ids/\d+ with 503"):
        list(reader.read(partition))
    registry.failures = 2
    assert next(iter(reader.read(partition))).to_pylist() == [{"body": {"id": 1, "note": None}}]


def test_a_registry_asks_who_one_is(growing_store: GrowingStore, registry: SchemaRegistry) -> None:
    registry.register("orders-value", json.dumps(AVRO_1))
    registry.credentials = "Basic " + base64.b64encode(b"me:secret").decode()
    options = {"body": "avro", "schemaRegistry": registry.url, "subscribe": "orders"}
    with pytest.raises(RemotingError, match="401"):
        rows(growing_store.root, **options)
    known = {"schemaRegistry__user": "me", "schemaRegistry__password": "secret"}
    assert rows(growing_store.root, **options, **known) == []
    given = {"path": "x", **{n.replace("__", "."): v for n, v in {**options, **known}.items()}}
    assert "secret" not in repr(parse_read_options(given, streaming=False))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"bodySchema": "{}"}, "bodySchema needs body=json, avro or protobuf"),
        ({"body": "xml"}, "body: found 'xml', allowed: raw, json, avro, protobuf"),
        ({"body": "json"}, r"body=json needs bodySchema \(or a schema of the frame"),
        ({"body": "avro"}, "body=avro needs bodySchema or schemaRegistry"),
        ({"body": "avro", "bodySchema": "/not/there"}, "schema /not/there: No such file"),
        ({"body": "avro", "schemaSubject": "x"}, "schemaSubject needs schemaRegistry"),
        ({"body": "json", "bodyMessage": "x"}, "bodyMessage needs body=protobuf"),
        ({"body": "json", "bodyReaderSchema": "x"}, "bodyReaderSchema needs body=avro"),
        ({"body": "avro", "schemaRegistry": "http://x"}, "needs schemaSubject, or one topic"),
        (
            {"body": "avro", "schemaRegistry": "file:///etc", "schemaSubject": "x"},
            "schemaRegistry: found 'file:///etc', allowed is http://host:port",
        ),
        (
            {"body": "avro", "schemaRegistry": "http://x", "bodySchema": "{"},
            "bodySchema and schemaRegistry exclude each other",
        ),
        (
            {"body": "avro", "schemaRegistry": "http://x", "schemaSubject": "s",
             "schemaVersion": "0"},
            "schemaVersion: found '0', allowed: latest or a number from 1",
        ),
        (
            {"body": "avro", "schemaRegistry": "http://x", "schemaSubject": "s",
             "schemaRegistry.user": "me"},
            "schemaRegistry.user and schemaRegistry.password go together",
        ),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        RocketMQDataSource({"path": "x", **options}).schema()


@pytest.mark.spark
def test_spark_selects_inside_bodies(spark: SparkSession, growing_store: GrowingStore) -> None:
    for body in (GOOD, b"?", b'{"id": 5}'):
        growing_store.append("orders", 0, body)
    frame = (
        spark.read.format("rocketmq").option("body", "json").option("bodySchema", JSON_TYPES)
        .load(str(growing_store.root))
    )  # fmt: skip
    found = frame.selectExpr("body.id", "body.lines[0].price", "bodyError is null").collect()
    assert [tuple(row) for row in found] == [(1, 1.5, True), (None, None, False), (5, None, True)]
    assert frame.where("body.id = 5").select("offset").collect()[0][0] == 2
