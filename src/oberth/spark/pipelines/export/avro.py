"""Avro bodies: one binary datum of a record schema. fastavro reads it, this module gives the types.

    Avro                              Arrow
    null boolean int long             null (in a union), bool, int32, int64
    float double bytes string fixed   float32, float64, binary, string, binary
    enum record array map             string, struct, list, list of {key, value}
    union of null and one other       that other, nullable
    other unions                      struct with a field ``member0`` … for each but null
    date                              date32
    timestamp-millis, -micros         timestamp in microseconds, UTC
    local-timestamp-millis, -micros   timestamp in microseconds, without a zone
    decimal of up to 38 digits        decimal128

Other logical types are taken as the types below them. In front of the datum may be Avro's
single-object header (C3 01 and eight bytes) or the five bytes of a schema registry (00 and an id);
both are passed over.

With a reader's schema values are what Avro's schema resolution makes of what was written: fields
by name, defaults for new ones, wider numbers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from oberth.errors import OptionError
from oberth.spark.pipelines.export.each_body import Reasons, decode_each
from oberth.spark.pipelines.json_types import BodyError

DEPTH_MAX: Final = 64
DECIMAL_DIGITS_MAX: Final = 38
# Midnight of 0001-01-01 and of 10000-01-01: what lies between is a date in Python and in Spark.
_DAY_MIN, _DAY_END = -719_162, 2_932_897
_DAY_US: Final = 86_400_000_000
_SIMPLE: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
# What fastavro raises for bytes that are no datum of the schema.
_NO_DATUM: Final = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError)

Finish = Callable[[Any], Any]


class AvroBodies:
    """Decodes bodies of one schema.

    Args:
        schema: what bodies were written with, as JSON.
        reader_schema: what values are to be of; "" for the same.
    """

    def __init__(self, schema: str, reader_schema: str = "") -> None:
        self._arguments = schema, reader_schema
        self._writer = _Schema("the Avro schema", schema, resolved=bool(reader_schema))
        self._shown, self._reader = self._writer, None
        if reader_schema:
            self._shown = _Schema("the Avro reader's schema", reader_schema, resolved=True)
            self._reader = self._shown.plain

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroBodies, self._arguments

    @property
    def type(self) -> pa.StructType:
        """See `BodyDecoder`."""
        return self._shown.type

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        return decode_each(bodies, self.type, self._one)

    def read(self, body: bytes) -> Any:
        """The value of a body that has nothing in front of its datum.

        Raises:
            BodyError: it is none.
        """
        return self._from(body, 0)

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
        data = io.BytesIO(body)
        data.seek(start)
        try:
            value = fastavro.schemaless_reader(data, self._writer.plain, self._reader)
        except SchemaResolutionError:
            raise BodyError(
                "what it was written with does not resolve to the column's schema"
            ) from None
        except _NO_DATUM as error:
            raise BodyError(f"at {data.tell()}: no Avro datum of the schema: {error!r}") from None
        end = data.tell()
        if end != len(body):
            raise BodyError(f"{len(body) - end} bytes behind the Avro datum, which ends at {end}")
        return self._shown.finish(value)


class _Schema:
    """A schema: its Arrow type, the form that fastavro reads, and what becomes of its values.

    A member of a union is encoded like a record that has it as its only field, so such records
    take the members' place, and a value tells which member it is.
    """

    def __init__(self, what: str, text: str, *, resolved: bool) -> None:
        self._what = what
        self._resolved = resolved
        self._named: dict[str, tuple[pa.DataType, Finish | None]] = {}
        self._unions = 0
        try:
            schema = fastavro.parse_schema(json.loads(text))
            kind, finish, plain = self._take(schema, 0)
            self.plain = fastavro.parse_schema(plain)
        except (SchemaParseException, UnknownType) as error:
            raise OptionError(f"{what}: {error!r}") from None
        except json.JSONDecodeError as error:
            raise OptionError(f"{what} is not JSON: {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise OptionError(f"{what} is none: {error!r}") from None
        if not isinstance(kind, pa.StructType):
            raise OptionError(f"{what}: bodies have to be records")
        self.type = kind
        self.finish: Finish = finish or (lambda value: value)

    def _take(self, schema: Any, depth: int) -> tuple[pa.DataType, Finish | None, Any]:
        if depth > DEPTH_MAX:
            raise OptionError(f"{self._what} is nested more than {DEPTH_MAX} deep")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str) and schema not in _SIMPLE:
            if schema not in self._named:
                raise OptionError(f"{self._what}: {schema} contains itself, which no column can")
            return *self._named[schema], schema
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "array":
            item, finish, plain = self._take(schema["items"], depth + 1)
            if _may_be_empty(item):
                # Any number of them could stand in a few bytes.
                raise OptionError(f"{self._what}: an array of items that have no bytes")
            return pa.list_(item), _each(finish), {"type": kind, "items": plain}
        if kind == "map":
            item, finish, plain = self._take(schema["values"], depth + 1)
            entry = pa.struct([pa.field("key", pa.string()), pa.field("value", item)])
            return pa.list_(entry), _entries(finish), {"type": kind, "values": plain}
        if kind in ("record", "error"):
            return self._record(schema, depth)
        if not isinstance(kind, str):
            return self._take(kind, depth + 1)
        found, finish = _logical(schema) if isinstance(schema, dict) else (None, None)
        if kind not in ("enum", "fixed"):
            return found or _SIMPLE[kind], finish, kind
        if kind == "fixed" and schema["size"] < 1:
            raise OptionError(f"{self._what}: fixed of {schema['size']} bytes, allowed from 1 on")
        self._named[schema["name"]] = (
            found or (pa.string() if kind == "enum" else pa.binary()), finish,
        )  # fmt: skip
        kept = ("type", "name", "symbols", "size", "aliases", "default")
        return *self._named[schema["name"]], {key: schema[key] for key in kept if key in schema}

    def _record(self, schema: Any, depth: int) -> tuple[pa.DataType, Finish | None, Any]:
        fields, plain, finishes = [], [], {}
        for each in schema["fields"]:
            kind, finish, inner = self._take(each["type"], depth + 1)
            fields.append(pa.field(each["name"], kind))
            plain.append({**each, "type": inner})
            if finish is not None:
                finishes[each["name"]] = finish
        self._named[schema["name"]] = pa.struct(fields), _fields(finishes)
        return *self._named[schema["name"]], {**schema, "fields": plain}

    def _union(self, members: list[Any], depth: int) -> tuple[pa.DataType, Finish | None, Any]:
        taken = [self._take(each, depth + 1) for each in members]
        values = [n for n, (kind, _, _) in enumerate(taken) if not pa.types.is_null(kind)]
        plain = [inner for _, _, inner in taken]
        if len(values) == 1:
            kind, finish, _ = taken[values[0]]
            return kind, _present(finish), plain
        if self._resolved:
            raise OptionError(
                f"{self._what}: a union of {len(values)} types besides null, which schema "
                "resolution does not keep apart; allowed is one"
            )
        fields = []
        finishes = {}
        for n in values:
            kind, finish, inner = taken[n]
            name = f"member{n}"
            fields.append(pa.field(name, kind))
            if finish is not None:
                finishes[name] = finish
            self._unions += 1
            plain[n] = {
                "type": "record", "name": f"oberth.Union{self._unions}",
                "fields": [{"name": name, "type": inner}],
            }  # fmt: skip
        return pa.struct(fields), _present(_fields(finishes)), plain


def _may_be_empty(kind: pa.DataType) -> bool:
    """Whether a value of a type may have no bytes at all."""
    if pa.types.is_struct(kind):
        return all(_may_be_empty(field.type) for field in kind)
    return bool(pa.types.is_null(kind))


def _logical(schema: Any) -> tuple[pa.DataType | None, Finish | None]:
    kind, logical = schema["type"], schema.get("logicalType")
    if (kind, logical) == ("int", "date"):
        return pa.date32(), _within(_DAY_MIN, _DAY_END, 1)
    if kind == "long" and isinstance(logical, str):
        zone, name = (None, logical[6:]) if logical.startswith("local-") else ("UTC", logical)
        factor = {"timestamp-millis": 1000, "timestamp-micros": 1}.get(name)
        if factor is not None:
            bounds = _DAY_MIN * _DAY_US, _DAY_END * _DAY_US
            return pa.timestamp("us", zone), _within(*bounds, factor)
    if kind in ("bytes", "fixed") and logical == "decimal":
        digits, scale = schema.get("precision"), schema.get("scale", 0)
        numbers = isinstance(digits, int) and isinstance(scale, int)
        if numbers and 0 <= scale <= digits <= DECIMAL_DIGITS_MAX and digits:
            return pa.decimal128(digits, scale), _decimal(digits, scale)
    return None, None


def _within(low: int, end: int, factor: int) -> Finish:
    def finish(value: int) -> int:
        if not low <= value * factor < end:
            raise BodyError(f"{value} is no time of the years 1 to 9999")
        return value * factor

    return finish


def _decimal(digits: int, scale: int) -> Finish:
    def finish(value: bytes) -> Decimal:
        # Before the number is made: the time that takes grows with the square of its length.
        stripped = value.lstrip(b"\xff" if value[:1] >= b"\x80" else b"\0")
        number = int.from_bytes(value[-17:], "big", signed=True)
        if len(stripped) > 16 or abs(number) >= 10**digits:
            raise BodyError(f"a decimal of more than {digits} digits")
        return Decimal(number).scaleb(-scale)

    return finish


def _each(finish: Finish | None) -> Finish | None:
    return None if finish is None else lambda value: [finish(each) for each in value]


def _entries(finish: Finish | None) -> Finish:
    return lambda value: [
        {"key": key, "value": each if finish is None else finish(each)}
        for key, each in value.items()
    ]


def _present(finish: Finish | None) -> Finish | None:
    return None if finish is None else lambda value: None if value is None else finish(value)


def _fields(finishes: dict[str, Finish]) -> Finish | None:
    def finish(value: dict[str, Any]) -> dict[str, Any]:
        for name, each in finishes.items():
            if name in value:
                value[name] = each(value[name])
        return value

    return finish if finishes else None
