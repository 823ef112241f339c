"""Bodies as a column of structs: JSON, Avro or Protobuf; what does not decode has a reason.

A decoder says its Arrow type and turns an array of bodies into an array of that type and, for each
body that does not decode, why. It pickles, so that tasks get it.
"""

from __future__ import annotations

import io
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from oberth.spark.pipelines.export.each_body import Reasons, decode_each
from oberth.spark.pipelines.json_types import RAW_JSON, BodyError, fit, parse_json

_ODD: Final = r"[\x00-\x08\n-\x1f]|[0-9]{100}|[:,\[ \t-](?:NaN|Inf(?:inity)?)[\], \t}]"
"""Further lines, and what Arrow's reader takes for numbers and Python's does not: NaN, Infinity,
thousands of digits. JSON on one line has no control character but tabs."""
_NESTED_MAX: Final = 700
"""Objects and lists in each other that Python's reader surely takes."""
_FRAMES: Final = 50
"""Around a longer body, more lists than Python's reader has calls of its own: what msgspec takes in
these, under the interpreter's one limit, Python's reader takes."""


class BodyDecoder(Protocol):
    """What turns bodies into values."""

    @property
    def type(self) -> pa.StructType:
        """What bodies become."""

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """Values of `type`, null where a body does not decode, and the reasons by row."""


class JsonBodies:
    """JSON objects of a given or inferred type."""

    def __init__(self, kind: pa.StructType) -> None:
        self._type = kind
        self._field = pa.field("body", kind)
        self._fast = _arrow_reads(kind)

    @property
    def type(self) -> pa.StructType:
        """See `BodyDecoder`."""
        return self._type

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
        """See `BodyDecoder`."""
        if self._fast:
            made = self._all_at_once(bodies)
            if made is not None:
                return made, {}
        return decode_each(bodies, self._type, self._one)

    def _one(self, body: bytes) -> Any:
        value = parse_json(body)
        if not isinstance(value, dict):
            raise BodyError("the body: JSON, but no object")
        return fit(value, self._field)

    def _all_at_once(self, bodies: pa.Array) -> pa.Array | None:
        """The values, if every body is an object on one line that Arrow's reader takes."""
        if not len(bodies) or bodies.null_count or not _is_plain(bodies):
            return None
        lines = pc.binary_join(
            pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies), b"\n"
        )[0].as_py()
        try:
            table = arrow_json.read_json(
                io.BytesIO(lines),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=pa.schema(list(self._type)),
                    unexpected_field_behavior="ignore",
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(bodies):
            return None
        columns = [table.column(field.name).combine_chunks() for field in self._type]
        return pa.StructArray.from_arrays(columns, fields=list(self._type))


def _is_plain(bodies: pa.Array) -> bool:
    """Whether each body is text on one line from ``{`` to ``}`` with nothing odd in it.

    Then no object begins in one body and ends in another: behind ``}`` no object can follow inside
    of another, and a text does not go beyond a line's end.
    """
    whole = pc.and_(pc.starts_with(bodies, b"{"), pc.ends_with(bodies, b"}"))
    if not pc.all(whole).as_py() or pc.any(pc.match_substring_regex(bodies, _ODD)).as_py():
        return False
    try:
        bodies.cast(pa.string())
        long = pc.greater(pc.binary_length(bodies), 2 * _NESTED_MAX)
        for body in bodies.filter(long).to_pylist():
            inner = b"[" * _FRAMES + body + b"]" * _FRAMES
            msgspec.json.decode(inner, type=msgspec.Raw)
    except (pa.ArrowInvalid, msgspec.DecodeError, RecursionError):
        return False  # Arrow's reader takes text that is no UTF-8, and any depth
    return True


def _arrow_reads(kind: pa.DataType) -> bool:
    """Whether Arrow's reader gives what `fit` gives for a type."""
    if isinstance(kind, pa.StructType):
        return kind.num_fields > 0 and all(
            not (field.metadata and field.metadata.get(b"json") == RAW_JSON[b"json"])
            and _arrow_reads(field.type)
            for field in kind
        )
    # Its floats may be infinite, and lists' element names are its own.
    return bool(pa.types.is_boolean(kind) or pa.types.is_int64(kind) or pa.types.is_string(kind))


def schema_decoder(kind: str, schema: bytes, reader_schema: str, message: str) -> BodyDecoder:
    """The decoder of Avro or Protobuf bodies of a given schema.

    Args:
        kind: avro or protobuf.
        schema: what bodies were written with: Avro's JSON, or a FileDescriptorSet.
        reader_schema: for avro what values are to be of; "" for the same.
        message: for protobuf the message's full name; "" if there is only one.

    Raises:
        OptionError: the schema is none, or no column can have its type.
    """
    # Each needs a package of an extra.
    if kind == "avro":
        from oberth.spark.pipelines.export.avro import AvroBodies

        return AvroBodies(schema.decode(errors="replace"), reader_schema)
    from oberth.spark.pipelines.export.protobuf import ProtobufBodies

    return ProtobufBodies(schema, message)
