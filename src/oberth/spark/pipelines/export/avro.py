"""Avro bodies: one binary datum of a record schema, as the Avro specification 1.11 encodes it.

    Avro                              Arrow
    null boolean int long             null (in a union), bool, int32, int64
    float double bytes string fixed   float32, float64, binary, string, binary
    enum record array map             string, struct, list, list of {key, value}
    union of null and one other       that other, nullable
    other unions                      struct with a field ``member0`` … for each but null

Logical types are taken as the types below them. In front of the datum may be Avro's single-object
header (C3 01 and eight bytes) or the five bytes of a schema registry (00 and an id); both are
passed over. The writer's schema is the one given: there is no schema resolution.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from oberth.errors import OptionError
from oberth.spark.pipelines.export.bodies import Reasons, decode_each
from oberth.spark.pipelines.export.varint import read_varint
from oberth.spark.pipelines.json_types import BodyError

DEPTH_MAX = 64
#: An array or map has at most one item for each byte of its body; where items have no bytes at all
#: (null), at most so many.
EMPTY_ITEMS_MAX = 1000
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_SIMPLE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


class AvroBodies:
    """Decodes bodies of one schema."""

    def __init__(self, schema: str) -> None:
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise OptionError(f"the Avro schema is no JSON: {error}") from None
        self._schema = schema
        kind, self._read = _Compiler().compile(parsed, "", 0)
        if not isinstance(kind, pa.StructType):
            raise OptionError("the Avro schema: bodies have to be records")
        self._type = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroBodies, (self._schema,)

    @property
    def type(self) -> pa.StructType:
        """See `BodyDecoder`."""
        return self._type

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        return decode_each(bodies, self._type, self._one)

    def _one(self, body: bytes) -> Any:
        start = 10 if body[:2] == b"\xc3\x01" else 5 if body[:1] == b"\0" and len(body) > 5 else 0
        try:
            return self._from(body, start)
        except BodyError:
            # A datum may begin with a zero of its own.
            if start == 5:
                return self._from(body, 0)
            raise

    def _from(self, body: bytes, start: int) -> Any:
        value, end = self._read(body, start)
        if end != len(body):
            raise BodyError(f"{len(body) - end} bytes behind the Avro datum, which ends at {end}")
        return value


Reader = Callable[[bytes, int], tuple[Any, int]]


class _Compiler:
    """Makes a reader and an Arrow type of each schema."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[pa.DataType, Reader]] = {}

    def compile(self, schema: Any, namespace: str, depth: int) -> tuple[pa.DataType, Reader]:
        if depth > DEPTH_MAX:
            raise OptionError(f"the Avro schema is nested more than {DEPTH_MAX} deep")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            if schema in _SIMPLE:
                return _SIMPLE[schema], _READERS[schema]
            found = self._named.get(schema) or self._named.get(f"{namespace}.{schema}")
            if found is None:
                raise OptionError(
                    f"the Avro schema: type {schema!r} is not known here "
                    "(types that contain themselves are no table columns)"
                )
            return found
        if not isinstance(schema, dict) or "type" not in schema:
            raise OptionError(f"the Avro schema: found {schema!r}, expected a type")
        kind = schema["type"]
        if kind == "array":
            item, read = self.compile(schema.get("items"), namespace, depth + 1)
            return pa.list_(item), _blocks(read)
        if kind == "map":
            item, read = self.compile(schema.get("values"), namespace, depth + 1)
            entry = pa.struct([pa.field("key", pa.string()), pa.field("value", item)])
            return pa.list_(entry), _blocks(_entry(read))
        if kind in ("record", "error"):
            return self._record(schema, namespace, depth)
        if kind == "enum":
            return self._name(schema, namespace, (pa.string(), _enum(list(schema["symbols"]))))
        if kind == "fixed":
            return self._name(schema, namespace, (pa.binary(), _fixed(int(schema["size"]))))
        return self.compile(kind, namespace, depth + 1)

    def _name(
        self, schema: Any, namespace: str, made: tuple[pa.DataType, Reader]
    ) -> tuple[pa.DataType, Reader]:
        name = str(schema.get("name", ""))
        space = schema.get("namespace", namespace)
        self._named[name if "." in name or not space else f"{space}.{name}"] = made
        self._named.setdefault(name, made)
        return made

    def _record(self, schema: Any, namespace: str, depth: int) -> tuple[pa.DataType, Reader]:
        space = schema.get("namespace", namespace)
        fields, readers = [], []
        for each in schema.get("fields", ()):
            kind, read = self.compile(each["type"], space, depth + 1)
            fields.append(pa.field(each["name"], kind))
            readers.append((each["name"], read))
        return self._name(schema, namespace, (pa.struct(fields), _fields(readers)))

    def _union(self, members: list[Any], namespace: str, depth: int) -> tuple[pa.DataType, Reader]:
        made = [self.compile(each, namespace, depth + 1) for each in members]
        values = [n for n, (kind, _) in enumerate(made) if kind != pa.null()]
        readers = [read for _, read in made]
        if len(values) == 1:
            return made[values[0]][0], _choice(readers, None)
        fields = [pa.field(f"member{n}", made[n][0]) for n in values]
        return pa.struct(fields), _choice(readers, {n: f"member{n}" for n in values})


def _long(data: bytes, at: int) -> tuple[int, int]:
    value, end = read_varint(data, at, "Avro")
    return (value >> 1) ^ -(value & 1), end


def _int(data: bytes, at: int) -> tuple[int, int]:
    value, end = _long(data, at)
    if not -(2**31) <= value < 2**31:
        raise BodyError(f"at {at}: {value} is no int")
    return value, end


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise BodyError(f"at {at}: {size} bytes wanted, the Avro datum has {len(data) - at}")
    return data[at : at + size], at + size


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return _take(data, at, size)


def _string(data: bytes, at: int) -> tuple[str, int]:
    raw, end = _bytes(data, at)
    try:
        return raw.decode("utf-8"), end
    except UnicodeDecodeError:
        raise BodyError(f"at {at}: text that is no UTF-8") from None


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    raw, end = _take(data, at, 1)
    if raw[0] > 1:
        raise BodyError(f"at {at}: {raw[0]} is neither true nor false")
    return raw == b"\1", end


def _null(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _float(data: bytes, at: int) -> tuple[float, int]:
    raw, end = _take(data, at, 4)
    return _FLOAT.unpack(raw)[0], end


def _double(data: bytes, at: int) -> tuple[float, int]:
    raw, end = _take(data, at, 8)
    return _DOUBLE.unpack(raw)[0], end


_READERS: dict[str, Reader] = {
    "null": _null, "boolean": _boolean, "int": _int, "long": _long, "float": _float,
    "double": _double, "bytes": _bytes, "string": _string,
}  # fmt: skip


def _fixed(size: int) -> Reader:
    return lambda data, at: _take(data, at, size)


def _enum(symbols: list[str]) -> Reader:
    def read(data: bytes, at: int) -> tuple[str, int]:
        number, end = _long(data, at)
        if not 0 <= number < len(symbols):
            raise BodyError(f"at {at}: symbol {number} of {len(symbols)}")
        return symbols[number], end

    return read


def _fields(readers: list[tuple[str, Reader]]) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        value = {}
        for name, reader in readers:
            value[name], at = reader(data, at)
        return value, at

    return read


def _entry(read_value: Reader) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        key, at = _string(data, at)
        value, at = read_value(data, at)
        return {"key": key, "value": value}, at

    return read


def _blocks(read_item: Reader) -> Reader:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count, at = _long(data, at)
            if count == 0:
                return items, at
            if count < 0:
                count = -count
                _, at = _long(data, at)  # the block's bytes
            if len(items) + count > max(len(data), EMPTY_ITEMS_MAX):
                raise BodyError(f"at {at}: a block of {count} items")
            for _ in range(count):
                value, at = read_item(data, at)
                items.append(value)

    return read


def _choice(readers: list[Reader], names: dict[int, str] | None) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        number, at = _long(data, at)
        if not 0 <= number < len(readers):
            raise BodyError(f"at {at}: member {number} of a union of {len(readers)}")
        value, at = readers[number](data, at)
        return (value if names is None or number not in names else {names[number]: value}), at

    return read
