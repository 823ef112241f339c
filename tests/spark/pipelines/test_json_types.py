"""Types of JSON bodies: what inference says, what fits, and that what was inferred fits."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.campaigns import examples

from oberth.errors import OptionError
from oberth.spark.pipelines.json_types import (
    BodyError,
    ddl_type,
    fit,
    infer_struct,
    parse_json,
    parse_schema,
)


def inferred(*values: Any) -> str:
    return ddl_type(infer_struct([json.dumps(value).encode() for value in values]))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([{"a": 1}, {"a": None}, {"b": "x"}], "struct<`a`: bigint, `b`: string>"),
        ([{"a": 1}, {"a": 1.5}], "struct<`a`: double>"),
        ([{"a": 1}, {"a": "x"}], "struct<`a`: string>"),
        ([{"a": True, "b": None}], "struct<`a`: boolean, `b`: string>"),
        ([{"a": [1, 2]}, {"a": []}], "struct<`a`: array<bigint>>"),
        ([{"a": {"b": [{"c": 1}]}}], "struct<`a`: struct<`b`: array<struct<`c`: bigint>>>>"),
        ([{"a": {}}, {"a`b": 1}], "struct<`a`: string, `a``b`: bigint>"),
        ([{"a": 2**63}], "struct<`a`: double>"),
        (["text", 7, {"a": 1}], "struct<`a`: bigint>"),
    ],
)
def test_inference(values: list[Any], expected: str) -> None:
    assert inferred(*values) == expected


def test_nothing_to_infer_from() -> None:
    with pytest.raises(OptionError, match="no body looked at is a JSON object"):
        infer_struct([b"\xff", b"[1]", b"", None, b"{}"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)  # fmt: skip


@settings(
    max_examples=examples(
        "tests/spark/pipelines/test_json_types.py::test_what_was_inferred_from_bodies_fits_them"
    )
)
@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=3), JSON, min_size=1), min_size=1))
def test_what_was_inferred_from_bodies_fits_them(values: list[dict[str, Any]]) -> None:
    field = pa.field("body", infer_struct([json.dumps(value).encode() for value in values]))
    rows = []
    for value in values:
        try:
            rows.append(fit(value, field))
        except BodyError as error:
            assert "too large" in str(error) or "surrogate" in str(error)  # noqa: PT017
    made = pa.array(rows, field.type)
    assert len(made) == len(rows)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff", "no UTF-8 at byte 0"),
        (b"", "not JSON at character 0"),
        (b"{", "not JSON at character 1"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "the body: found a list, expected struct"),
        (b'{"a": "x"}', "a: found text, expected bigint"),
        (b'{"a": true}', "a: found true or false, expected bigint"),
        (b'{"a": 9223372036854775808}', "too large"),
        (b'{"b": [{"c": "\\ud800"}]}', r"b\[\]\.c: half a surrogate pair"),
        (b'{"d": 1e999}', "d: a number too large"),
    ],
)
def test_reasons(body: bytes, reason: str) -> None:
    schema = parse_schema('{"a": "bigint", "b": [{"c": "string"}], "d": "double"}')
    with pytest.raises(BodyError, match=reason):
        fit(parse_json(body), pa.field("body", schema))


def test_given_schemas() -> None:
    schema = parse_schema('{"id": "int", "rest": "json", "list": ["double"], "o": {"x": "string"}}')
    field = pa.field("body", schema)
    value = {"id": 5, "rest": {"x": [1]}, "list": [1], "o": {"x": None, "y": 1}, "more": 1}
    assert fit(value, field) == {"id": 5, "rest": '{"x":[1]}', "list": [1.0], "o": {"x": None}}
    for text in ("", "[]", "{}", '{"a": "integer"}', '{"a": []}', '{"a": ["int", "int"]}'):
        with pytest.raises(OptionError):
            parse_schema(text)
