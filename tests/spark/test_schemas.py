"""Columns of the source: names, synonyms and types resolve to one table, without a JVM."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as t

from oberth.errors import OptionError
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
