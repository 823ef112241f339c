"""Protobuf bodies: one message of a type that a descriptor set describes.

The descriptor set is what ``protoc --include_imports --descriptor_set_out=FILE`` writes. It is
itself a Protobuf message and read with the same few functions (the numbers of its fields are those
of google/protobuf/descriptor.proto):

    Protobuf                          Arrow
    bool, int32 …, int64 …            bool, int32, int64
    uint32, uint64, fixed…            int64, decimal128(20, 0)
    float double string bytes         float32, float64, string, binary
    enum message                      string (a number that has no name: its digits), struct
    repeated, map                     list, list of {key, value}

Fields that are not in a message have the value that proto3 gives them, except messages and fields
with presence (``optional``, oneof, proto2), which are null. Unknown fields are passed over. Groups,
and messages that contain themselves, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from oberth.errors import OptionError
from oberth.spark.pipelines.export.bodies import Reasons, decode_each
from oberth.spark.pipelines.export.varint import read_varint
from oberth.spark.pipelines.json_types import BodyError

DEPTH_MAX = 64
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5

# FieldDescriptorProto.Type
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = range(1, 10)
_GROUP, _MESSAGE, _BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = range(10, 19)
_REPEATED = 3

_ARROW = {
    _DOUBLE: pa.float64(), _FLOAT: pa.float32(), _INT64: pa.int64(), _INT32: pa.int32(),
    _UINT64: pa.decimal128(20, 0), _FIXED64: pa.decimal128(20, 0), _FIXED32: pa.int64(),
    _UINT32: pa.int64(), _BOOL: pa.bool_(), _STRING: pa.string(), _BYTES: pa.binary(),
    _ENUM: pa.string(), _SFIXED32: pa.int32(), _SFIXED64: pa.int64(), _SINT32: pa.int32(),
    _SINT64: pa.int64(),
}  # fmt: skip
_WIRE = {
    _DOUBLE: _I64, _FIXED64: _I64, _SFIXED64: _I64, _FLOAT: _I32, _FIXED32: _I32, _SFIXED32: _I32,
    _STRING: _LEN, _BYTES: _LEN, _MESSAGE: _LEN,
}  # fmt: skip
_FORMATS = {
    _DOUBLE: struct.Struct("<d"), _FIXED64: struct.Struct("<Q"), _SFIXED64: struct.Struct("<q"),
    _FLOAT: struct.Struct("<f"), _FIXED32: struct.Struct("<I"), _SFIXED32: struct.Struct("<i"),
}  # fmt: skip


def _varint(data: bytes, at: int) -> tuple[int, int]:
    return read_varint(data, at, "Protobuf")


def fields_of(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message: number, wire type, and a whole number or the bytes.

    Raises:
        BodyError: it is no message.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise BodyError(f"at {at}: field number 0")
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _LEN:
            size, at = _varint(data, at)
        elif wire in (_I64, _I32):
            size = 8 if wire == _I64 else 4
        else:
            raise BodyError(f"at {at}: wire type {wire}, which no message here has")
        if at + size > len(data):
            raise BodyError(f"at {at}: {size} bytes wanted, the message has {len(data) - at}")
        yield number, wire, data[at : at + size]
        at += size


@dataclass(slots=True)
class _Field:
    name: str
    number: int
    kind: int
    repeated: bool
    presence: bool
    type_name: str
    message: _Message | None = None
    enum: dict[int, str] | None = None


@dataclass(slots=True)
class _Message:
    name: str
    is_entry: bool = False
    fields: dict[int, _Field] = field(default_factory=dict)


class ProtobufBodies:
    """Decodes bodies of one message type."""

    def __init__(self, descriptor_set: bytes, message: str) -> None:
        self._arguments = descriptor_set, message
        types = _Types()
        try:
            for number, _, raw in fields_of(descriptor_set):
                if number == 1:
                    types.add_file(raw)
        except (BodyError, UnicodeDecodeError, TypeError, AttributeError) as error:
            raise OptionError(f"the Protobuf descriptor set cannot be read: {error}") from None
        self._message = types.resolve(message)
        self._type = _struct_of(self._message, ())

    def __reduce__(self) -> tuple[Any, ...]:
        return ProtobufBodies, self._arguments

    @property
    def type(self) -> pa.StructType:
        """See `BodyDecoder`."""
        return self._type

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        return decode_each(bodies, self._type, lambda body: _decode(body, self._message, 0))


class _Types:
    """The messages and enums of a descriptor set by their full names."""

    def __init__(self) -> None:
        self.messages: dict[str, _Message] = {}
        self.enums: dict[str, dict[int, str]] = {}

    def add_file(self, raw: bytes) -> None:
        package, syntax = "", "proto2"
        parts = list(fields_of(raw))
        for number, _, value in parts:
            if number == 2:
                package = value.decode()
            elif number == 12:
                syntax = value.decode()
        prefix = f".{package}" if package else ""
        for number, _, value in parts:
            if number == 4:
                self._add_message(value, prefix, syntax)
            elif number == 5:
                self._add_enum(value, prefix)

    def _add_message(self, raw: bytes, prefix: str, syntax: str) -> None:
        parts = list(fields_of(raw))
        name = next((v.decode() for n, _, v in parts if n == 1), "")
        full = f"{prefix}.{name}"
        made = self.messages[full] = _Message(full)
        for number, _, value in parts:
            if number == 2:
                each = _field_of(value, syntax)
                made.fields[each.number] = each
            elif number == 3:
                self._add_message(value, full, syntax)
            elif number == 4:
                self._add_enum(value, full)
            elif number == 7:
                made.is_entry = any(n == 7 and v for n, _, v in fields_of(value))

    def _add_enum(self, raw: bytes, prefix: str) -> None:
        name = ""
        values: dict[int, str] = {}
        for number, _, value in fields_of(raw):
            if number == 1:
                name = value.decode()
            elif number == 2:
                parts = {n: v for n, _, v in fields_of(value)}
                values.setdefault(_signed(parts.get(2, 0), 32), parts.get(1, b"").decode())
        self.enums[f"{prefix}.{name}"] = values

    def resolve(self, name: str) -> _Message:
        full = "." + name.lstrip(".")
        if full not in self.messages:
            known = sorted(each.lstrip(".") for each in self.messages)
            if not name and len(known) == 1:
                full = f".{known[0]}"
            else:
                raise OptionError(
                    f"the Protobuf descriptor set has no message {name!r}; it has "
                    f"{', '.join(known) or 'none'}"
                )
        for message in self.messages.values():
            for each in message.fields.values():
                if each.kind == _MESSAGE:
                    each.message = self.messages.get(each.type_name)
                elif each.kind == _ENUM:
                    each.enum = self.enums.get(each.type_name, {})
                if each.kind == _MESSAGE and each.message is None:
                    raise OptionError(
                        f"the Protobuf descriptor set lacks {each.type_name.lstrip('.')}; make it "
                        "with --include_imports"
                    )
        return self.messages[full]


def _field_of(raw: bytes, syntax: str) -> _Field:
    parts = {number: value for number, _, value in fields_of(raw)}
    repeated = parts.get(4, 1) == _REPEATED
    kind = parts.get(5, 0)
    if kind == _GROUP or kind not in (*_ARROW, _MESSAGE):
        raise BodyError(f"field {parts.get(1, b'').decode()} has type {kind}, a group")
    presence = not repeated and (
        kind == _MESSAGE or syntax == "proto2" or 9 in parts or bool(parts.get(17))
    )
    return _Field(
        parts.get(1, b"").decode(), parts.get(3, 0), kind, repeated, presence,
        parts.get(6, b"").decode(),
    )  # fmt: skip


def _struct_of(message: _Message, above: tuple[str, ...]) -> pa.StructType:
    if message.name in above or len(above) > DEPTH_MAX:
        raise OptionError(
            f"the Protobuf message {message.name.lstrip('.')} contains itself, which no column can"
        )
    made = []
    for each in message.fields.values():
        kind = (
            _struct_of(each.message, (*above, message.name))
            if each.message is not None
            else _ARROW[each.kind]
        )
        made.append(pa.field(each.name, pa.list_(kind) if each.repeated else kind))
    return pa.struct(made)


def _decode(body: bytes, message: _Message, depth: int) -> dict[str, Any]:
    if depth > DEPTH_MAX:
        raise BodyError(f"messages nested more than {DEPTH_MAX} deep")
    value: dict[str, Any] = {}
    for each in message.fields.values():
        value[each.name] = [] if each.repeated else None if each.presence else _default(each)
    for number, wire, raw in fields_of(body):
        known = message.fields.get(number)
        if known is None:
            continue
        expected = _WIRE.get(known.kind, _VARINT)
        if known.repeated and wire == _LEN and expected != _LEN:
            value[known.name] += _packed(raw, known, expected)
            continue
        if wire != expected:
            raise BodyError(f"field {known.name}: wire type {wire}, expected {expected}")
        made = _value(raw, known, depth)
        if known.repeated:
            value[known.name].append(made)
        else:
            value[known.name] = made
    return value


def _packed(raw: bytes, known: _Field, expected: int) -> list[Any]:
    values = []
    at = 0
    while at < len(raw):
        if expected == _VARINT:
            item, at = _varint(raw, at)
        else:
            size = 8 if expected == _I64 else 4
            if at + size > len(raw):
                raise BodyError(f"field {known.name}: {len(raw) - at} of {size} bytes")
            item, at = raw[at : at + size], at + size  # type: ignore[assignment]
        values.append(_value(item, known, 0))
    return values


def _default(known: _Field) -> Any:
    if known.kind == _ENUM:
        return (known.enum or {}).get(0, "0")
    kind = _ARROW[known.kind]
    if pa.types.is_decimal(kind):
        return Decimal(0)
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_floating(kind):
        return 0.0
    return "" if known.kind == _STRING else b"" if known.kind == _BYTES else 0


def _value(raw: Any, known: _Field, depth: int) -> Any:
    kind = known.kind
    if kind in _FORMATS:
        (made,) = _FORMATS[kind].unpack(raw)
        return Decimal(made) if kind == _FIXED64 else made
    if kind == _MESSAGE:
        assert known.message is not None
        return _decode(raw, known.message, depth + 1)
    if kind == _STRING:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise BodyError(f"field {known.name}: text that is no UTF-8") from None
    if kind == _BYTES:
        return raw
    if kind == _BOOL:
        return raw != 0
    if kind == _UINT64:
        return Decimal(raw)
    if kind == _UINT32:
        return raw & 0xFFFFFFFF
    if kind in (_SINT32, _SINT64):
        made = (raw >> 1) ^ -(raw & 1)
        return _signed(made & 0xFFFFFFFF, 32) if kind == _SINT32 else made
    if kind == _ENUM:
        number = _signed(raw, 32)
        return (known.enum or {}).get(number, str(number))
    return _signed(raw, 32 if kind == _INT32 else 64)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
