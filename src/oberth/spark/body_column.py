"""Bodies as a column at read time: what the source's option ``body`` makes of them.

A query is to have the column ``body``, a struct, beside the columns of a record. What is read for
it is ``value`` and ``bodyError`` of each record; the decoders are those of exports. A body that
does not decode is a row whose ``body`` is null and whose ``bodyError`` says why, or what
``badBodies`` wants. Batches, streams, live topics and the lake's side go through here alike.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from oberth.errors import OptionError, RecordError
from oberth.spark.options import BadBodies, BodyOptions, ReadOptions
from oberth.spark.pipelines.export.bodies import BodyDecoder, JsonBodies, schema_decoder
from oberth.spark.pipelines.json_types import parse_schema
from oberth.spark.schemas import (
    ALL_COLUMNS,
    PLACE,
    Field,
    arrow_schema,
    parse_columns,
    place_text,
    refuse_nulls,
    refuses_nulls,
    resolve_schema,
    struct_type,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from oberth.spark.pipelines.export.each_body import Reasons

_LOG: Final = logging.getLogger(__name__)
BODY: Final = "body"
ERROR: Final = "bodyError"


class Shape:
    """The columns of a query, and what is read for them: the same, unless bodies are decoded.

    Attributes:
        fields: what is read of a record.
        schema: its Spark schema.
    """

    def __init__(self, schema: StructType) -> None:
        self.fields: tuple[Field, ...] = resolve_schema(schema)
        self.schema = schema

    def shown(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a query from what was read."""
        return batches


def make_shape(options: ReadOptions, schema: StructType) -> Shape:
    """The shape of a query that is to have a schema.

    Raises:
        OptionError: a column that is not known, or bodies of another type than the schema's.
    """
    names = {field.name.lower() for field in schema.fields}
    if options.body.kind == "raw" or names.isdisjoint((BODY, ERROR.lower())):
        return Shape(schema)
    return DecodedShape(options, schema)


def schema_of(columns: str, with_properties: bool, body: BodyOptions) -> StructType:
    """The schema of a query without one of its own.

    Args:
        columns: the option ``columns``.
        with_properties: whether the default set has properties.
        body: how bodies are decoded.

    Raises:
        OptionError: an unknown column, or bodies without a type.
    """
    if body.kind == "raw":
        return struct_type(parse_columns(columns, with_properties=with_properties))
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    kind = from_arrow_type(make_decoder(body).type)
    names = [name.strip() for name in columns.split(",") if name.strip()]
    if len(names) == 1 and names[0].lower() in ("*", "all", "full"):
        names = [*ALL_COLUMNS, BODY]
    elif not names or names == ["default"]:
        names = [each.name for each in parse_columns("", with_properties=with_properties)]
        names += [BODY, ERROR]
    else:
        wanted = parse_columns(columns, with_properties=with_properties)
        names = [field.name for field in wanted]
    found = StructType()
    for name in names:
        if name.lower() == BODY:
            found = found.add(StructField(name, kind))
        else:
            found = found.add(struct_type(parse_columns(name)).fields[0])
    return found


def make_decoder(body: BodyOptions, given: pa.StructType | None = None) -> BodyDecoder:
    """What decodes the bodies of a query; asks the registry where one is named.

    Args:
        body: the options.
        given: the type that a user's schema has, for JSON without a schema of its own.

    Raises:
        OptionError: no schema, one that cannot be read, or that no column can have.
        RemotingError: the registry does not answer.
    """
    if body.registry:
        from oberth.spark.pipelines.export.registry import Registry, registry_decoder

        return registry_decoder(
            Registry(body.registry, body.user, body.password),
            body.kind, body.subject, body.version, body.message,
        )  # fmt: skip
    if not body.schema:
        if body.kind == "json" and given is not None:
            _check_json(given, BODY)
            return JsonBodies(given)
        more = " (or a schema of the frame with body as a struct)" if body.kind == "json" else ""
        raise OptionError(f"body={body.kind} needs bodySchema{more} or schemaRegistry")
    text = _text_or_file(body.schema)
    if body.kind == "json":
        return JsonBodies(parse_schema(text.decode(errors="replace")))
    reader = _text_or_file(body.reader_schema).decode(errors="replace")
    return schema_decoder(body.kind, text, reader, body.message)


def _text_or_file(given: str) -> bytes:
    """A schema as it is given: JSON, or the name of a file that has it."""
    if not given or given.lstrip()[:1] in ("{", "["):
        return given.encode()
    try:
        with open(given, "rb") as file:
            return file.read()
    except OSError as error:
        raise OptionError(f"schema {given}: {error.strerror}") from None


def _check_json(kind: pa.DataType, path: str) -> None:
    """Raises for a type that JSON has nothing for."""
    if isinstance(kind, pa.StructType):
        for field in kind:
            _check_json(field.type, f"{path}.{field.name}")
    elif pa.types.is_list(kind):
        _check_json(kind.value_type, f"{path}[]")
    elif not (
        pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
    ):  # fmt: skip
        raise OptionError(
            f"{path}: found type {kind}, allowed for JSON: boolean, int, bigint, float, double, "
            "string, array and struct of these"
        )


class DecodedShape(Shape):
    """A query whose bodies are decoded."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        from pyspark.sql.pandas.types import from_arrow_type
        from pyspark.sql.types import StructType

        target = arrow_schema(schema)
        at = next((n for n, each in enumerate(schema.fields) if each.name.lower() == BODY), None)
        given = None if at is None else target.field(at).type
        if given is not None and not isinstance(given, pa.StructType):
            raise OptionError(
                f"column body: found type {schema.fields[at or 0].dataType.simpleString()}, "
                f"with body={options.body.kind} it is a struct (value is the bytes)"
            )
        self._decoder = make_decoder(options.body, given)
        if at is not None and given is not None:
            made = from_arrow_type(self._decoder.type).simpleString()
            wanted = schema.fields[at].dataType.simpleString()
            if made != wanted:
                raise OptionError(f"column body: found {wanted}, its schema makes {made}")
        self._bad = options.bad_bodies
        plain = [each for each in schema.fields if each.name.lower() != BODY]
        known = resolve_schema(StructType(plain)) if plain else ()
        # What may be null is looked at when it is known which rows are left out.
        known = tuple(replace(each, nullable=True) for each in known)
        # What is decoded, and its place for messages, behind what the query has itself. A lake
        # may be without the columns of the place.
        strict = not options.lake and any(map(refuses_nulls, target))
        self._has_place = strict or self._bad is not BadBodies.ROW
        more = ["value", ERROR, *(PLACE if self._has_place else ())]
        extra = [Field(f"read.{f.name}", f.column, f.type) for f in parse_columns(",".join(more))]
        self.fields = (*known, *extra)
        self.schema = struct_type(self.fields)
        self._target = target
        self._body_at = at
        self._errors_at = [n for n, each in enumerate(known) if each.column == ERROR]
        self._value_at = len(known)

    def shown(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `Shape`.

        Raises:
            RecordError: with badBodies=fail, a body that does not decode; or a column is null of
                which the schema says NOT NULL.
        """
        for batch in batches:
            made = self._decoded(batch)
            if made.num_rows:
                yield made

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        bodies, errors = batch.column(self._value_at), batch.column(self._value_at + 1)
        values, reasons = self._values(bodies, errors)
        if reasons:
            self._tell(batch, reasons)
            texts = [reasons.get(row) for row in range(len(bodies))]
            errors = pc.coalesce(errors, pa.array(texts, pa.string()))
        arrays = list(batch.columns[: self._value_at])
        for at in self._errors_at:
            arrays[at] = errors
        if self._body_at is not None:
            arrays.insert(self._body_at, as_type(values, self._target.field(self._body_at).type))
        made = pa.RecordBatch.from_arrays(arrays, schema=self._target)
        if self._bad is BadBodies.SKIP and reasons:
            good = errors.is_null()
            batch, made = batch.filter(good), made.filter(good)
        place = partial(self._place, batch) if self._has_place else None
        for column, field in zip(made.columns, self._target, strict=True):
            refuse_nulls(column, field, place)
        return made

    def _place(self, batch: pa.RecordBatch, row: int) -> str:
        begin = self._value_at + 2
        return place_text(*(each[row].as_py() for each in batch.columns[begin:]))

    def _values(self, bodies: pa.Array, errors: pa.Array) -> tuple[pa.Array, Reasons]:
        if errors.null_count == len(errors):
            return self._decoder.decode(bodies)
        # What could not be unpacked has its reason already.
        rows = pc.indices_nonzero(errors.is_null())
        values, reasons = self._decoder.decode(bodies.take(rows))
        places = rows.to_pylist()
        back: list[int | None] = [None] * len(bodies)
        for number, row in enumerate(places):
            back[row] = number
        return values.take(pa.array(back, pa.int64())), {
            places[row]: reason for row, reason in reasons.items()
        }

    def _tell(self, batch: pa.RecordBatch, reasons: Reasons) -> None:
        """Raises, or logs what is left out, as ``badBodies`` says."""
        if self._bad is BadBodies.ROW:
            return
        for row, reason in sorted(reasons.items()):
            text = f"{self._place(batch, row)}: body: {reason}"
            if self._bad is BadBodies.FAIL:
                raise RecordError(f"{text}. badBodies=row makes a row of it, badBodies=skip none.")
            _LOG.warning("%s; left out", text)


def as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array in a type that differs in names of list items and what may be null alone."""
    if values.type == kind:
        return values
    made: Any
    if isinstance(kind, pa.StructType):
        children = [as_type(child, kind[n].type) for n, child in enumerate(_children(values))]
        made = pa.StructArray.from_arrays(
            children, fields=list(kind), mask=values.is_null() if values.null_count else None
        )
        return made
    if isinstance(kind, pa.ListType):
        # All items, also those before and behind a slice: offsets count from the first one. Not
        # a cast: that refuses nulls itself, or, in Arrow 18, what might be one.
        items = as_type(values.values, kind.value_type)
        offsets = pa.array(values.offsets.to_numpy())
        gone = values.is_null() if values.null_count else None
        made = pa.ListArray.from_arrays(offsets, items, type=kind, mask=gone)
        return made
    return values.cast(kind)


def _children(values: pa.Array) -> list[pa.Array]:
    return [values.field(n) for n in range(values.type.num_fields)]
