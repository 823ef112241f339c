"""Columns of the source: names, synonyms and types resolve to one table, without a JVM."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types as t

from oberth.errors import OptionError, RecordError
from oberth.spark import schemas


def test_the_docstrings_table_is_the_table() -> None:
    lines = re.findall(r"^    (\w+) +(\w+)(?: +(yes))?", schemas.__doc__ or "", re.M)
    listed = [(name, kind, bool(default)) for name, kind, default in lines if kind != "type"]
    assert listed == [
        (c.name, "map" if c.types[0].startswith("map") else c.types[0], c.default)
        for c in schemas.COLUMNS
    ]


def test_the_default_set_and_all() -> None:
    assert [f.name for f in schemas.parse_columns("")] == list(schemas.DEFAULT_COLUMNS)
    with_properties = schemas.parse_columns("default", with_properties=True)
    assert with_properties[-1].name == "properties"
    assert [f.name for f in schemas.parse_columns("*")] == list(schemas.ALL_COLUMNS)


def test_a_schema_goes_there_and_back() -> None:
    fields = schemas.parse_columns("*")
    assert schemas.resolve_schema(schemas.struct_type(fields)) == fields


def test_synonyms_keep_the_users_spelling() -> None:
    fields = schemas.parse_columns("BODY, queueOffset,brokerName")
    assert [(f.name, f.column) for f in fields] == [
        ("BODY", "value"),
        ("queueOffset", "offset"),
        ("brokerName", "broker"),
    ]


def test_other_types_where_they_make_sense() -> None:
    schema = t.StructType(
        [
            t.StructField("body", t.StringType(), nullable=False),
            t.StructField("timestamp", t.LongType()),
            t.StructField("properties", t.MapType(t.StringType(), t.StringType(), False)),
        ]
    )
    fields = schemas.resolve_schema(schema)
    assert [(f.type, f.nullable) for f in fields] == [
        ("string", False),
        ("bigint", True),
        ("map<string,string>", True),
    ]
    assert not schemas.arrow_schema(schema).field("body").nullable


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="nearest is timestamp"):
        schemas.column_named("timestmp")
    with pytest.raises(OptionError, match="there is no column"):
        schemas.parse_columns("value,nothing_like_it_at_all")


def test_impossible_type_says_which_are_allowed() -> None:
    schema = t.StructType([t.StructField("offset", t.StringType())])
    with pytest.raises(OptionError, match="allowed: bigint"):
        schemas.resolve_schema(schema)


def test_doubles_are_refused() -> None:
    with pytest.raises(OptionError, match="twice"):
        schemas.parse_columns("topic,Topic")


def test_what_is_null_and_must_not_be_is_named() -> None:
    sku = pa.field("sku", pa.string(), nullable=False)
    lines = pa.field("lines", pa.list_(pa.field("element", pa.struct([sku]))))
    body = pa.field("body", pa.struct([lines, pa.field("id", pa.int64(), nullable=False)]))

    def found(field: pa.Field, *values: object) -> str:
        for first in (0, 1):  # of an array, and of what is left of one
            array = pa.array([None] * first + list(values), field.type)[first:]
            try:
                schemas.refuse_nulls(array, field)
            except RecordError as error:
                return str(error)
        return ""

    whole = {"id": 1, "lines": [{"sku": "a"}, None]}
    assert found(body, None, whole, {"id": 2, "lines": None}, {"id": 3, "lines": []}) == ""
    assert found(body.with_nullable(False), whole, None).startswith("column body is null in 1 rows")
    assert found(body, whole, {"lines": []}, {}).startswith("column body.id is null in 2 rows")
    wrong = {"id": 2, "lines": [{"sku": None}]}
    assert found(body, None, whole, wrong).startswith("column body.lines[].sku is null in 1 items")
    texts = pa.field("texts", pa.list_(pa.field("element", pa.string(), nullable=False)))
    assert found(texts, ["a"], None, []) == ""
    assert (
        found(texts, ["a", None]) == "column texts[] is null in 1 items, the schema says NOT NULL"
    )
