"""Protobuf bodies: one message of a type that a descriptor set describes, read by protobuf.

The descriptor set is what ``protoc --include_imports --descriptor_set_out=FILE`` writes.

    Protobuf                          Arrow
    bool, int32 …, int64 …            bool, int32, int64
    uint32, uint64, fixed…            int64, decimal128(20, 0)
    float double string bytes         float32, float64, string, binary
    enum message                      string (a number that has no name: its digits), struct
    repeated, map                     list, list of {key, value}, ordered by key
    google.protobuf.Timestamp         timestamp in microseconds, UTC

Fields that are not in a message have the value that proto3 gives them, except messages and fields
with presence (``optional``, oneof, proto2), which are null. Unknown fields are passed over, and so
are known ones of another wire type. Messages that contain themselves are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from oberth.errors import OptionError
from oberth.spark.pipelines.export.each_body import Reasons, decode_each
from oberth.spark.pipelines.json_types import BodyError

DEPTH_MAX: Final = 64
_ARROW: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
# 0001-01-01 and 10000-01-01: the bounds that the type itself has.
_SECONDS_MIN, _SECONDS_END = -62_135_596_800, 253_402_300_800

Show = Callable[[Any], Any]


class ProtobufBodies:
    """Decodes bodies of one message type.

    Args:
        descriptor_set: the bytes of a FileDescriptorSet.
        message: the full name; "" if the set has one message only.
    """

    def __init__(self, descriptor_set: bytes, message: str) -> None:
        self._arguments = descriptor_set, message
        descriptor = _find(descriptor_set, message)
        self._make: Any = message_factory.GetMessageClass(descriptor)
        self._type, self._show = _message(descriptor, ())

    def __reduce__(self) -> tuple[Any, ...]:
        return ProtobufBodies, self._arguments

    @property
    def type(self) -> pa.StructType:
        """See `BodyDecoder`."""
        return self._type

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        return decode_each(bodies, self._type, self.read)

    def read(self, body: bytes) -> Any:
        """The value of a body.

        Raises:
            BodyError: it is no message of the type.
        """
        try:
            return self._show(self._make.FromString(body))
        except (DecodeError, UnicodeDecodeError) as error:
            raise BodyError(f"no Protobuf message of the type: {error}") from None


def _find(descriptor_set: bytes, name: str) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
        for each in files:
            pool.Add(each)
        known = {
            full: found
            for each in files
            for message in pool.FindFileByName(each.name).message_types_by_name.values()
            for full, found in _with_nested(message)
        }
    except (DecodeError, UnicodeDecodeError, TypeError, KeyError, ValueError) as error:
        raise OptionError(
            f"the Protobuf descriptor set cannot be read: {error} (it has to be made with "
            "--include_imports)"
        ) from None
    found = known.get(name.lstrip("."))
    if found is None and not name and len(known) == 1:
        found = next(iter(known.values()))
    if found is None:
        raise OptionError(
            f"the Protobuf descriptor set has no message {name!r}; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return found


def _with_nested(message: Descriptor) -> list[tuple[str, Descriptor]]:
    inner = [each for nested in message.nested_types for each in _with_nested(nested)]
    return [] if message.GetOptions().map_entry else [(message.full_name, message), *inner]


def _message(message: Descriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Show]:
    """The type of a message, and how its values are shown."""
    name = message.full_name
    if name == _TIMESTAMP:
        return pa.timestamp("us", "UTC"), _timestamp
    if name in above or len(above) > DEPTH_MAX:
        raise OptionError(f"the Protobuf message {name} contains itself, which no column can")
    made = [(each, *_field(each, (*above, name))) for each in message.fields]
    rows = [(each.name, each.has_presence, show) for each, _, show in made]

    def show(value: Any) -> dict[str, Any]:
        return {
            name: show_one(getattr(value, name))
            if not presence or value.HasField(name) else None
            for name, presence, show_one in rows
        }  # fmt: skip

    return pa.struct([pa.field(each.name, kind) for each, kind, _ in made]), show


def _field(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Show]:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        by_name = entry.fields_by_name
        if "key" not in by_name or "value" not in by_name:
            raise OptionError(f"the Protobuf map {entry.full_name} has no fields key and value")
        key, show_key = _one(by_name["key"], above)
        kind, show = _one(by_name["value"], above)
        return pa.list_(
            pa.struct([pa.field("key", key), pa.field("value", kind)])
        ), lambda values: [
            {"key": show_key(name), "value": show(values[name])} for name in sorted(values)
        ]
    kind, show = _one(field, above)
    if field.is_repeated:
        return pa.list_(kind), lambda values: [show(each) for each in values]
    return kind, show


def _one(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Show]:
    if field.message_type is not None:
        return _message(field.message_type, above)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        is_text = field.type == FieldDescriptor.TYPE_STRING
        return (pa.string() if is_text else pa.binary()), lambda value: value
    kind = _ARROW[field.cpp_type]
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return kind, lambda number: names.get(number) or str(number)
    return kind, Decimal if pa.types.is_decimal(kind) else lambda value: value


def _timestamp(value: Any) -> int:
    if not _SECONDS_MIN <= value.seconds < _SECONDS_END or not 0 <= value.nanos < 10**9:
        raise BodyError(
            f"{value.seconds} s and {value.nanos} ns are no time of the years 1 to 9999"
        )
    return int(value.seconds * 1_000_000 + value.nanos // 1000)
