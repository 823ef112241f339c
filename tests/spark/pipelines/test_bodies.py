"""Bodies as columns: each format's values, what does not decode, and damaged bytes.

Avro and Protobuf bytes are written here by hand, by the formats' specifications.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from oberth.cli.main import main
from oberth.errors import OptionError
from oberth.spark.pipelines.export.avro import AvroBodies
from oberth.spark.pipelines.export.bodies import JsonBodies
from oberth.spark.pipelines.export.each_body import decode_each
from oberth.spark.pipelines.export.protobuf import ProtobufBodies
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.json_types import parse_schema

TYPE = parse_schema('{"a": "bigint", "b": "string", "c": {"d": "boolean"}}')

ODD = [
    b"NaN", b"[-NaN]", b"Infinity ", b"-Infinity", b"Inf", b"9" * 5000, b"-0", b"01", b"1.", b".5",
    b"+1", b"1e3", b"1e999", b"1e-999", b"-1E+2", b"0x1", b"1" * 99, b"0." + b"3" * 5000,
    b"9223372036854775808", b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"',
    b'"\xef\xbb\xbf"', b"\xef\xbb\xbf1", b'"\\ud800"', b'"\\udc00"', b'"\\udc00\\ud800"',
    b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\\u00zz"', b'"\\\'"', b'"\\x41"', b'"\\/"', b'"\\"',
    b'"}', b'"' + b"x" * 40 + b'\x1b"', b'"\t"', b'"\x7f"', b"\x0b1", b"\xa01", b"\t1", b"1\0",
    b"\0", b"1,", b"1,,", b"/**/1", b"'1'", b"True", b"nul", b"", b"[1,]", b'{"a":true,"b":1}',
    b'{"d":1}', b'{"d":null,"d":true}', b'{"x":1,"x":"2"}', b'{"\\u0064":true}',
    b"[" * 90_000 + b"]" * 90_000, b'{"x":' * 1500 + b"1" + b"}" * 1500,
    b"[" + b"{}," * 1500 + b"{}]", b"[" * 300 + b"]" * 300, b"[" * 500 + b"]" * 499,
    b"{}{", b"{}}{", b"\tNaN", b"NaN\t", b"[1,\t-Inf]", b"\t-Infinity\t", b"[\tInf\t]",
]  # fmt: skip
"""What stands behind a name, or behind a value."""

VALUE = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "a": st.one_of(st.integers(-(2**63), 2**63 - 1), st.none(), st.booleans(), st.floats()),
            "b": st.one_of(st.text(), st.none(), st.integers()),
            "c": st.one_of(st.none(), st.fixed_dictionaries({"d": st.booleans()}), st.just([])),
            "more": st.just({"x": [1]}),
        },
    ).map(json.dumps).map(str.encode),
    st.binary(max_size=6),
    st.sampled_from([b"", b"{}", b'{"a":1}{"a":2}', b'{"a":\n1}', b'{"a":1,"a":2}', b'{"a":1.0}']),
    st.builds(
        lambda name, raw: b'{"a":1,"%b":%b}' % (name, raw),
        st.sampled_from([b"a", b"b", b"c", b"more"]), st.sampled_from(ODD),
    ),
    st.sampled_from(ODD).map(lambda raw: b'{"b":"x"%b}' % raw),
)  # fmt: skip


@given(st.lists(VALUE, max_size=6))
@example([b'{"a":1}{"a":2}\0}', b'{"a":99}', b'{"a":5}'])
@example([b'{"a":1}{"a":2}]}', b'{"a":99}', b'{"a":5}'])
def test_json_all_at_once_equals_one_by_one(bodies: list[bytes]) -> None:
    decoder = JsonBodies(TYPE)
    array = pa.array(bodies, pa.binary())
    made, reasons = decoder.decode(array)
    expected, expected_reasons = decode_each(array, TYPE, decoder._one)
    assert made.to_pylist() == expected.to_pylist()
    assert reasons == expected_reasons


@pytest.mark.parametrize("raw", ODD, ids=range(len(ODD)))
def test_what_other_readers_take_is_refused_whatever_stands_beside_it(raw: bytes) -> None:
    decoder = JsonBodies(TYPE)
    for name in (b"a", b"b", b"c", b"more"):
        for body in (b'{"%b":%b}' % (name, raw), b'{"%b":%b,"a":5}' % (name, raw)):
            alone, reasons = decode_each(pa.array([body], pa.binary()), TYPE, decoder._one)
            made, found = decoder.decode(pa.array([b'{"a":1}', body], pa.binary()))
            made.validate(full=True)
            assert made.to_pylist() == [{"a": 1, "b": None, "c": None}, *alone.to_pylist()]
            assert list(found.values()) == list(reasons.values())


def test_a_body_as_deep_as_pythons_reader_goes_is_read_alike_in_bulk() -> None:
    decoder = JsonBodies(TYPE)
    for depth in range(700, sys.getrecursionlimit() + 1):
        lists = b"[" * depth + b"]" * depth
        bodies = pa.array([b'{"a":1,"more":%b,"b":"%b"}' % (lists, b"x" * 500)], pa.binary())
        if decoder._all_at_once(bodies) is not None:
            assert decode_each(bodies, TYPE, decoder._one)[1] == {}, depth


def test_json_in_bulk_is_the_fast_way() -> None:
    bodies = pa.array([b'{"a": 1, "more": {}}', b'{"c": {"d": true}, "b": "x"}'], pa.binary())
    made = JsonBodies(TYPE)._all_at_once(bodies)
    assert made is not None
    assert made.to_pylist() == [
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": "x", "c": {"d": True}},
    ]


AVRO = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [
                {"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}}},
        {"name": "labels", "type": {"type": "map", "values": "boolean"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "first", "type": ["null", "Line"]},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip


def zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def avro_text(text: str) -> bytes:
    return zigzag(len(text.encode())) + text.encode()


AVRO_BODY = (
    zigzag(-70_000) + zigzag(1) + avro_text("né") + struct.pack("<d", 1.5)
    + zigzag(-1) + zigzag(4) + avro_text("s1") + zigzag(3) + zigzag(0)
    + zigzag(1) + avro_text("hot") + b"\x01" + zigzag(0)
    + zigzag(1) + b"\xab\xcd" + zigzag(2) + avro_text("x") + zigzag(0) + zigzag(5)
)  # fmt: skip
AVRO_VALUE = {
    "id": -70_000, "note": "né", "price": 1.5, "lines": [{"sku": "s1", "count": 3}],
    "labels": [{"key": "hot", "value": True}], "state": "PAID", "hash": b"\xab\xcd",
    "either": {"member1": None, "member2": "x"}, "first": None,
    "when": datetime(1970, 1, 1, microsecond=5000, tzinfo=UTC),
}  # fmt: skip


def avro_of(kind: Any, **more: Any) -> str:
    """The schema of a record with one field ``a``."""
    field = {"name": "a", "type": kind, **more}
    return json.dumps({"type": "record", "name": "A", "fields": [field]})


@pytest.mark.parametrize("head", [b"", b"\xc3\x01" + bytes(8), b"\0\0\0\0\x07"])
def test_avro(head: bytes) -> None:
    decoder = pickle.loads(pickle.dumps(AvroBodies(json.dumps(AVRO))))
    made, reasons = decoder.decode(pa.array([head + AVRO_BODY], pa.binary()))
    assert not reasons
    assert made.to_pylist() == [AVRO_VALUE]


@given(st.binary(max_size=40), st.integers(0, len(AVRO_BODY)))
def test_avro_of_foreign_bytes_has_a_value_or_a_reason(junk: bytes, at: int) -> None:
    bodies = [junk, AVRO_BODY[:at] + junk, AVRO_BODY[:at] + junk + AVRO_BODY[at:]]
    made, reasons = AvroBodies(json.dumps(AVRO)).decode(pa.array(bodies, pa.binary()))
    for row, value in enumerate(made.to_pylist()):
        assert (value is None) == (row in reasons)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not JSON"),
        ('"long"', "bodies have to be records"),
        ('{"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}', "contains"),
        ('{"fields": []}', "'type'"),
        ('{"type": "record", "name": "A", "fields": [{"name": "a", "type": "B"}]}', "B"),
        (avro_of({"type": "array", "items": "null"}), "items that have no bytes"),
        (avro_of({"type": "fixed", "name": "F", "size": 0}), "allowed from 1 on"),
    ],
)
def test_avro_schemas_that_are_none(schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        AvroBodies(schema)


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ({"type": "int", "logicalType": "date"}, zigzag(-1), date(1969, 12, 31)),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            zigzag(-1),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            zigzag(1500),
            datetime(1970, 1, 1, 0, 0, 1, 500_000),  # noqa: DTZ001 - it has no zone
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            zigzag(2) + b"\xff\x85",
            Decimal("-1.23"),
        ),
        (
            {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9},
            bytes([0, 0, 1, 0]),
            Decimal(256),
        ),
        ({"type": "long", "logicalType": "time-micros"}, zigzag(7), 7),
        ({"type": "string", "logicalType": "uuid"}, avro_text("no uuid"), "no uuid"),
        (["null", {"type": "int", "logicalType": "date"}], zigzag(0), None),
        (
            {"type": "array", "items": {"type": "int", "logicalType": "date"}},
            zigzag(1) + zigzag(1) + zigzag(0),
            [date(1970, 1, 2)],
        ),
        (
            {"type": "map", "values": {"type": "int", "logicalType": "date"}},
            zigzag(1) + avro_text("k") + zigzag(1) + zigzag(0),
            [{"key": "k", "value": date(1970, 1, 2)}],
        ),
    ],
)
def test_logical_types(kind: Any, body: bytes, value: Any) -> None:
    made, reasons = AvroBodies(avro_of(kind)).decode(pa.array([body], pa.binary()))
    assert not reasons
    assert made.to_pylist() == [{"a": value}]


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ({"type": "int", "logicalType": "date"}, zigzag(2_932_897), "no time of the years"),
        ({"type": "long", "logicalType": "timestamp-millis"}, zigzag(2**62), "no time of the"),
        ("int", zigzag(2**31), "its column cannot hold"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            zigzag(3) + b"\x01\x86\xa0",
            "more than 5 digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38},
            zigzag(1 << 20) + b"\x7f" * (1 << 20),
            "more than 38 digits",
        ),
        ({"type": "array", "items": "int"}, zigzag(2**50) + zigzag(1), "no Avro datum"),
        ("string", zigzag(-1), "no Avro datum"),
    ],
)
def test_avro_values_that_are_none(kind: Any, body: bytes, reason: str) -> None:
    """Each has a reason, and its neighbours have their values."""
    decoder = AvroBodies(avro_of(["null", kind]))
    bodies = pa.array([b"\0", zigzag(1) + body, b"\0"], pa.binary())
    made, reasons = decoder.decode(bodies)
    assert made.to_pylist() == [{"a": None}, None, {"a": None}]
    assert list(reasons) == [1]
    assert reason in reasons[1]


def test_avro_resolves_to_the_readers_schema() -> None:
    written = {"type": "record", "name": "A", "fields": [
        {"name": "id", "type": "int"},
        {"name": "gone", "type": {"type": "map", "values": "string"}},
        {"name": "old", "type": "float"},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ]}  # fmt: skip
    read = {"type": "record", "name": "A", "fields": [
        {"name": "new", "type": "double", "aliases": ["old"]},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "id", "type": ["null", "long"]},
        {"name": "since", "type": "string", "default": "2.0"},
    ]}  # fmt: skip
    decoder = AvroBodies(json.dumps(written), json.dumps(read))
    assert decoder.type.field("id").type == pa.int64()
    tags = zigzag(1) + avro_text("k") + zigzag(3) + zigzag(0)
    body = zigzag(5) + zigzag(0) + struct.pack("<f", 1.5) + tags
    made, reasons = pickle.loads(pickle.dumps(decoder)).decode(pa.array([body, b""], pa.binary()))
    assert made.to_pylist() == [
        {"new": 1.5, "tags": [{"key": "k", "value": 3}], "id": 5, "since": "2.0"},
        None,
    ]
    assert list(reasons) == [1]


@pytest.mark.parametrize("side", [0, 1])
def test_avro_does_not_resolve_unions_of_several_types(side: int) -> None:
    schemas = [avro_of("int"), avro_of("int")]
    schemas[side] = avro_of(["int", "string"])
    with pytest.raises(OptionError, match="a union of 2 types"):
        AvroBodies(*schemas)


def test_only_avro_has_a_readers_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.avsc"
    path.write_text(avro_of("int"))
    settings = ExportSettings(body="avro").with_schema_file(str(path), str(path))
    settings.check()
    assert ExportSettings.from_json(settings.to_json()) == settings
    with pytest.raises(OptionError, match="only Avro has a reader's schema"):
        replace(settings, body="json").check()
    with pytest.raises(OptionError, match="No such file"):
        settings.with_schema_file(str(tmp_path / "none"))


@pytest.mark.parametrize(("body", "package"), [("avro", "fastavro"), ("protobuf", "google")])
def test_a_missing_package_is_named_with_its_extra(
    body: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "schema"
    path.write_text(avro_of("int"))
    module = f"oberth.spark.pipelines.export.{body}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    command = [
        "spark", "export", str(tmp_path), "--into", str(tmp_path / "out"), "--body", body,
        "--schema", str(path),
    ]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert f"pip install 'oberth[{body}]'" in capsys.readouterr().err


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def proto(*fields: tuple[int, Any]) -> bytes:
    """A message: whole numbers as varints, bytes and text with their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(raw)) + raw
    return out


def proto_field(name: str, number: int, kind: int, *more: tuple[int, Any], label: int = 1) -> Any:
    return (2, proto((1, name), (3, number), (4, label), (5, kind), *more))


# message Order { int64 id = 1; string note = 2; double price = 3; repeated sint32 steps = 4;
#   Line first = 5; map<string, Line> lines = 6; State state = 7; uint64 big = 8;
#   optional bool b = 9; message Line { string sku = 1; }   enum State { NEW = 0; PAID = 1; } }
_LINE = proto((1, "Line"), proto_field("sku", 1, 9))
_ENTRY = proto(
    (1, "LinesEntry"), proto_field("key", 1, 9),
    proto_field("value", 2, 11, (6, ".shop.Order.Line")), (7, proto((7, 1))),
)  # fmt: skip
_ORDER = proto(
    (1, "Order"), proto_field("id", 1, 3), proto_field("note", 2, 9), proto_field("price", 3, 1),
    proto_field("steps", 4, 17, label=3), proto_field("first", 5, 11, (6, ".shop.Order.Line")),
    proto_field("lines", 6, 11, (6, ".shop.Order.LinesEntry"), label=3),
    proto_field("state", 7, 14, (6, ".shop.Order.State")), proto_field("big", 8, 4),
    proto_field("b", 9, 8, (9, 0), (17, 1)), (8, proto((1, "_b"))), (3, _LINE), (3, _ENTRY),
    (4, proto((1, "State"), (2, proto((1, "NEW"), (2, 0))), (2, proto((1, "PAID"), (2, 1))))),
)  # fmt: skip
DESCRIPTORS = proto((1, proto((1, "shop.proto"), (2, "shop"), (4, _ORDER), (12, "proto3"))))
PROTO_BODY = proto(
    (1, -5), (2, "né"), (3, 2.5), (4, bytes([1, 4])), (4, 3), (5, proto((1, "s1"))),
    (6, proto((1, "k"), (2, proto((1, "s2"))))), (7, 1), (8, 2**64 - 1), (99, "unknown"),
)  # fmt: skip
PROTO_VALUE = {
    "id": -5, "note": "né", "price": 2.5, "steps": [-1, 2, -2], "first": {"sku": "s1"},
    "lines": [{"key": "k", "value": {"sku": "s2"}}], "state": "PAID", "big": Decimal(2**64 - 1),
    "b": None,
}  # fmt: skip


def test_protobuf() -> None:
    decoder = pickle.loads(pickle.dumps(ProtobufBodies(DESCRIPTORS, "shop.Order")))
    made, reasons = decoder.decode(pa.array([PROTO_BODY, b"", proto((7, 5))], pa.binary()))
    assert not reasons
    first, empty, odd = made.to_pylist()
    assert first == PROTO_VALUE
    assert empty == {
        "id": 0, "note": "", "price": 0.0, "steps": [], "first": None, "lines": [], "state": "NEW",
        "big": Decimal(0), "b": None,
    }  # fmt: skip
    assert odd["state"] == "5"


@given(st.binary(max_size=30), st.integers(0, len(PROTO_BODY)))
def test_protobuf_of_foreign_bytes_has_a_value_or_a_reason(junk: bytes, at: int) -> None:
    bodies = [junk, PROTO_BODY[:at] + junk, PROTO_BODY[:at] + junk + PROTO_BODY[at:]]
    decoder = ProtobufBodies(DESCRIPTORS, "shop.Order")
    made, reasons = decoder.decode(pa.array(bodies, pa.binary()))
    for row, value in enumerate(made.to_pylist()):
        assert (value is None) == (row in reasons)


def test_protobuf_timestamps_are_times() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="a.proto", syntax="proto3", dependency=[files.file[0].name])
    file.message_type.add(name="A").field.add(
        name="at", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp"
    )
    bodies = [proto((1, proto((1, 1), (2, 2_500)))), b"", proto((1, proto((1, 2**60))))]
    decoder = ProtobufBodies(files.SerializeToString(), "A")
    made, reasons = decoder.decode(pa.array(bodies, pa.binary()))
    moment = datetime(1970, 1, 1, 0, 0, 1, 2, UTC)
    assert made.to_pylist() == [{"at": moment}, {"at": None}, None]
    assert "no time of the years" in reasons[2]


def test_protobuf_messages_that_no_column_holds() -> None:
    own = proto((1, "A"), proto_field("a", 1, 11, (6, ".A")))
    with pytest.raises(OptionError, match="A contains itself"):
        ProtobufBodies(proto((1, proto((1, "a.proto"), (4, own), (12, "proto3")))), "")
    with pytest.raises(OptionError, match=r"it has shop\.Order, shop\.Order\.Line"):
        ProtobufBodies(DESCRIPTORS, "shop.None")


@given(st.binary(max_size=60), st.integers(0, len(DESCRIPTORS)))
@example(b"A", 280)  # a map without its field value
def test_descriptor_sets_that_are_none(junk: bytes, at: int) -> None:
    """Foreign bytes are refused with a message, or happen to be a descriptor set."""
    try:
        ProtobufBodies(DESCRIPTORS[:at] + junk + DESCRIPTORS[at + len(junk) :], "shop.Order")
    except OptionError as error:
        assert "Protobuf" in str(error)  # noqa: PT017
