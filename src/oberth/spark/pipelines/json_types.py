"""Types of JSON bodies: inferred from samples, or given; and bodies as columns of such a type.

A body is an object. What its fields can have, in Arrow's words and in Spark's DDL:

    JSON                              Arrow                DDL
    true, false                       bool                 boolean
    whole numbers within int64        int64                bigint
    other numbers                     float64              double
    text                              string               string
    an array                          list of the above    array<…>
    an object                         struct               struct<…>
    nothing but null, or samples      string               string
    that contradict each other        (the value's JSON, marked with the metadata json=raw)

A whole number fits a float64 field. Everything else has to be of its field's type; null and a
missing field are null; fields that the type does not know are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from oberth.errors import FormatError, OptionError

SAMPLES_MAX: Final = 10_000
"""Samples and depth that inference looks at; what lies deeper is taken as its JSON text."""
DEPTH_MAX: Final = 16
FIELDS_MAX: Final = 2000
RAW_JSON: Final = {b"json": b"raw"}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class BodyError(FormatError):
    """A body that is not what its type says; the text is the reason."""


# Inference. A kind is None (nothing seen), a word, ("list", kind) or ("struct", {name: kind}).


def infer_struct(bodies: Iterable[bytes | None]) -> pa.StructType:
    """The type of the bodies that are JSON objects; the others are passed over.

    Raises:
        OptionError: none is an object with fields.
    """
    kind: Any = None
    for number, body in enumerate(bodies):
        if number == SAMPLES_MAX:
            break
        try:
            value = parse_json(body or b"")
        except BodyError:
            continue
        if isinstance(value, dict):
            kind = _union(kind, _kind_of(value, 0))
    if kind is None or not kind[1]:
        raise OptionError("no schema can be inferred: no body looked at is a JSON object")
    if len(kind[1]) > FIELDS_MAX:
        raise OptionError(
            f"the bodies have {len(kind[1])} different fields, at most {FIELDS_MAX} are inferred: "
            "give a schema"
        )
    made = _arrow_field("body", kind).type
    assert isinstance(made, pa.StructType)
    return made


def _kind_of(value: Any, depth: int) -> Any:
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if _INT64_MIN <= value <= _INT64_MAX else "float64"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return "string"
    if depth == DEPTH_MAX:
        return "raw"
    if isinstance(value, list):
        item: Any = None
        for each in value:
            item = _union(item, _kind_of(each, depth + 1))
        return ("list", item)
    return ("struct", {name: _kind_of(each, depth + 1) for name, each in value.items()})


def _union(one: Any, other: Any) -> Any:
    if one is None or one == other:
        return other
    if other is None:
        return one
    if (
        {one, other} == {"int64", "float64"}
        if isinstance(one, str) and isinstance(other, str)
        else False
    ):
        return "float64"
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        if one[0] == "list":
            return ("list", _union(one[1], other[1]))
        names = {**one[1], **other[1]}
        return ("struct", {n: _union(one[1].get(n), other[1].get(n)) for n in names})
    return "raw"


_SIMPLE: Final = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
}


def _arrow_field(name: str, kind: Any) -> pa.Field:
    if isinstance(kind, tuple) and kind[0] == "list":
        item = _arrow_field("element", kind[1])
        return pa.field(name, pa.list_(item))
    if isinstance(kind, tuple) and kind[1]:
        fields = [_arrow_field(each, kind[1][each]) for each in kind[1]]
        return pa.field(name, pa.struct(fields))
    if isinstance(kind, str) and kind in _SIMPLE:
        return pa.field(name, _SIMPLE[kind])
    # Only null, an object without fields, or contradictions: its JSON text.
    return pa.field(name, pa.string(), metadata=RAW_JSON)


def ddl_type(kind: pa.DataType) -> str:
    """An Arrow type in Spark's words."""
    if isinstance(kind, pa.StructType):
        fields = (
            f"`{field.name.replace('`', '``')}`: {ddl_type(field.type)}"
            for field in (kind.field(n) for n in range(kind.num_fields))
        )
        return f"struct<{', '.join(fields)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    for name, simple in (("boolean", "bool"), ("bigint", "int64"), ("double", "float64")):
        if kind == _SIMPLE[simple]:
            return name
    return "string"


def parse_json(body: bytes) -> Any:
    """The value that a body holds.

    Raises:
        BodyError: it is no JSON, or not in UTF-8.
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BodyError(f"no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BodyError(f"not JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise BodyError("JSON that is nested too deeply") from None
    except ValueError as error:
        raise BodyError(f"not JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def fit(value: Any, field: pa.Field, path: str = "") -> Any:
    """A JSON value as a value of a field.

    Raises:
        BodyError: it is of another type; the text names the field.
    """
    if value is None:
        return None
    kind = field.type
    if field.metadata and field.metadata.get(b"json") == b"raw":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(kind, pa.StructType):
        if isinstance(value, dict):
            return {
                each.name: fit(value.get(each.name), each, f"{path}.{each.name}".lstrip("."))
                for each in (kind.field(n) for n in range(kind.num_fields))
            }
    elif pa.types.is_list(kind):
        if isinstance(value, list):
            return [fit(each, kind.value_field, f"{path}[]") for each in value]
    elif pa.types.is_boolean(kind):
        if isinstance(value, bool):
            return value
    elif pa.types.is_integer(kind):
        if isinstance(value, int) and not isinstance(value, bool):
            bits = kind.bit_width - 1
            if -(1 << bits) <= value < 1 << bits:
                return value
            raise BodyError(f"{path}: {value} is too large for {kind}")
    elif pa.types.is_floating(kind):
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                made = float(value)
            except OverflowError:
                made = math.inf
            if not math.isfinite(made):
                raise BodyError(f"{path}: a number too large for {kind}")
            return made
    elif pa.types.is_string(kind) and isinstance(value, str):
        if any(0xD800 <= ord(char) < 0xE000 for char in value):
            raise BodyError(f"{path}: half a surrogate pair, which no UTF-8 has")
        return value
    raise BodyError(f"{path or 'the body'}: found {_name_of(value)}, expected {ddl_type(kind)}")


def _name_of(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), "an object")


def parse_schema(text: str) -> pa.StructType:
    """A type given as JSON: ``{"field": "bigint", "list": ["string"], "object": {…}}``.

    Simple types are boolean, int, bigint, float, double, string and json (the value's JSON text).

    Raises:
        OptionError: the text is no such schema.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"the bodies' schema is not JSON: {error}") from None
    if not isinstance(value, Mapping) or not value:
        raise OptionError('the bodies\' schema: expected an object such as {"id": "bigint"}')
    made = _given_field("body", value).type
    assert isinstance(made, pa.StructType)
    return made


_GIVEN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}


def _given_field(name: str, value: Any) -> pa.Field:
    if isinstance(value, Mapping) and value:
        return pa.field(name, pa.struct([_given_field(str(n), v) for n, v in value.items()]))
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
        return pa.field(name, pa.list_(_given_field("element", value[0])))
    if value == "json":
        return pa.field(name, pa.string(), metadata=RAW_JSON)
    if isinstance(value, str) and value in _GIVEN:
        return pa.field(name, _GIVEN[value])
    raise OptionError(
        f"the bodies' schema, field {name}: found {value!r}, allowed: "
        f"{', '.join([*_GIVEN, 'json'])}, [type], {{…}}"
    )
