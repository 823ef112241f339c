"""Bodies as columns: each format's values, what does not decode, and damaged bytes.

Avro and Protobuf bytes are written here by hand, by the formats' specifications.
"""

from __future__ import annotations

import json
import pickle
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import OptionError
from oberth.spark.pipelines.export.avro import AvroBodies
from oberth.spark.pipelines.export.bodies import JsonBodies, decode_each
from oberth.spark.pipelines.export.protobuf import ProtobufBodies
from oberth.spark.pipelines.json_types import parse_schema

TYPE = parse_schema('{"a": "bigint", "b": "string", "c": {"d": "boolean"}}')

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
)  # fmt: skip


@given(st.lists(VALUE, max_size=6))
def test_json_all_at_once_equals_one_by_one(bodies: list[bytes]) -> None:
    decoder = JsonBodies(TYPE)
    array = pa.array(bodies, pa.binary())
    made, reasons = decoder.decode(array)
    expected, expected_reasons = decode_each(array, TYPE, decoder._one)
    assert made.to_pylist() == expected.to_pylist()
    assert reasons == expected_reasons


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
    "either": {"member1": None, "member2": "x"}, "first": None, "when": 5,
}  # fmt: skip


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
        ("{", "no JSON"),
        ('"long"', "bodies have to be records"),
        ('{"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}]}', "not known"),
        ('{"fields": []}', "expected a type"),
    ],
)
def test_avro_schemas_that_are_none(schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        AvroBodies(schema)


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
    proto_field("b", 9, 8, (17, 1)), (3, _LINE), (3, _ENTRY),
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


@given(st.binary(max_size=60), st.integers(0, len(DESCRIPTORS)))
def test_descriptor_sets_that_are_none(junk: bytes, at: int) -> None:
    """Foreign bytes are refused with a message, or happen to be a descriptor set."""
    try:
        ProtobufBodies(DESCRIPTORS[:at] + junk + DESCRIPTORS[at + len(junk) :], "shop.Order")
    except OptionError as error:
        assert "Protobuf" in str(error)  # noqa: PT017
