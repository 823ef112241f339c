"""SQL92 expressions select what RocketMQ's own filter selects, and refuse what it refuses.

``data/sql92.tsv`` holds its answers (rocketmq-filter 5.5.0, ``FilterFactory`` and ``evaluate``):
the answer, the expression, then name=value for each property. Random text compiles
or is refused. Stored bytes are judged as the map of them is.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.properties import decode_properties, encode_properties
from oberth.formats.sql92 import (
    EXPRESSION_SIZE_MAX,
    IN_VALUE_COUNT_MAX,
    OPERAND_COUNT_MAX,
    compile_sql92,
)
from oberth.formats.sql92_nodes import Sql92Error, Sql92EvaluationError

TABLE = [
    line.split("\t")
    for line in (Path(__file__).parent / "data" / "sql92.tsv").read_text().splitlines()
]
WORDS = st.sampled_from(
    [
        "a",
        "b",
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "TRUE",
        "FALSE",
        "NULL",
        "IS",
        "CONTAINS",
        "(",
        ")",
        ",",
        "=",
        "<>",
        ">",
        ">=",
        "+",
        "-",
        "1",
        "1.5",
        "'x'",
        "''",
    ]
)


def answer(expression: str, properties: dict[str, str]) -> str:
    try:
        compiled = compile_sql92(expression)
    except Sql92Error:
        return "refused"
    raw = encode_properties(properties)
    assert compiled.matches_raw(raw) is compiled.matches(decode_properties(raw))
    try:
        value = compiled.evaluate(properties)
    except Sql92EvaluationError:
        assert not compiled.matches(properties)
        return "fails"
    assert compiled.matches(properties) is (value is True)
    return {True: "true", False: "false", None: "null"}[value]


def test_every_answer_of_rocketmq() -> None:
    assert len(TABLE) > 1000
    wrong = []
    for expected, expression, *pairs in TABLE:
        properties = dict(pair.split("=", 1) for pair in pairs if pair.find("=") > 0)
        found = answer(expression, properties)
        if found != expected:
            wrong.append((expression, properties, expected, found))
    assert not wrong


@given(st.lists(WORDS, max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    assert answer(text, {"a": "5", "b": "x"}) in ("true", "false", "null", "fails", "refused")


VALUES = [b"5", b"12", b"-7", b"+3", b"x", b"", b"1.5", b"true", b"9" * 20, b"\xff", b"\xd9\xa3"]
ENTRIES = st.sampled_from(
    [b"a\x01" + value for value in VALUES]
    + [b"b\x01" + value for value in VALUES]
    + [b"", b"\x01a", b"xa\x015", b"a", b"c\x01a\x015", b"\xffa\x015"]
)
EXPRESSIONS = st.sampled_from(
    [
        "a = 'x'",
        "a <> 'x'",
        "'x' = a",
        "a = '\ufffd'",
        "a = b",
        "a > 4",
        "a >= 5",
        "a < 12",
        "a <= -7",
        "4 < a",
        "a > 1.0",
        "a = 5",
        "a BETWEEN 3 AND 12",
        "a NOT BETWEEN 3 AND 12",
        "a BETWEEN 1 AND b",
        "a BETWEEN 0.5 AND 6.5",
        "a IS NULL",
        "b IS NOT NULL",
        "a = TRUE",
        "a IN ('5', 'x')",
        "a = '5'",
        "a <> 'x' AND b = '5\x02'",
        "a = '5\x02b\x01x'",
        "a NOT IN ('5', '\ufffd')",
        "a CONTAINS '2'",
        "NOT a STARTSWITH '1'",
        "a > 4 OR b BETWEEN 1 AND 20",
        "a IS NOT NULL AND b = 'x' AND a > 3",
    ]
)


@given(EXPRESSIONS, st.lists(ENTRIES, max_size=6).map(b"\x02".join))
def test_stored_bytes_are_judged_as_their_map(expression: str, raw: bytes) -> None:
    compiled = compile_sql92(expression)
    assert compiled.matches_raw(raw) is compiled.matches(decode_properties(raw))
    if compiled.matches_raw(raw):
        assert all(pattern.search(b"body" + raw) for pattern in compiled.required)


@given(
    st.integers(-20, 3000),
    st.integers(0, 3000),
    st.integers(0, 6000),
    st.sampled_from(["%d", "+%d", "00%d", "%d0", "-%d", "%d\u0663", "%dx"]),
)
def test_what_a_range_requires_is_found_wherever_it_matches(
    low: int, width: int, number: int, form: str
) -> None:
    compiled = compile_sql92(f"a BETWEEN {low} AND {low + width}")
    raw = b"b\x0177\x02a\x01" + (form % number).encode()
    found = [pattern.search(raw) for pattern in compiled.required]
    assert len(found) == (low >= 0)
    if compiled.matches_raw(raw):
        assert all(found)


def test_a_separator_before_the_first_property_hides_nothing() -> None:
    for text in ("color = 'red'", "color IN ('red', 'blue')", "color <> 'blue'"):
        assert compile_sql92(text).matches_raw(b"\x02color\x01red")


def test_bounds_that_are_null_are_refused() -> None:
    for text in ("a BETWEEN NULL AND 3", "a BETWEEN 3 AND NULL"):
        with pytest.raises(Sql92Error, match="BETWEEN"):
            compile_sql92(text)


def test_what_an_expression_requires_is_found_before_it_is_evaluated() -> None:
    def required(text: str) -> list[bytes]:
        return [pattern.pattern for pattern in compile_sql92(text).required]

    both = required("color = 'r.d' AND amount BETWEEN 100 AND 499")
    assert both[0] == rb"color\x01r\.d".replace(rb"\x01", b"\x01")
    assert re.search(both[1], b"amount\x01499")
    assert not re.search(both[1], b"amount\x01500")
    assert not re.search(both[1], b"amount\x0149")
    for text in (
        "color = 'red' OR size = 'x'",
        "NOT (color = 'red')",
        "color <> 'red'",
        "amount NOT BETWEEN 100 AND 499",
        "color IS NULL",
    ):
        assert required(text) == []
    assert compile_sql92("a BETWEEN 0 AND 9").required[0].search(b"a\x01-0")
    assert len(required(" AND ".join(f"a = '{n}'" for n in range(100)))) == 3


@pytest.mark.parametrize("text", ["(" * 10_000 + "a = 1", "NOT " * 8_000 + "a", "- " * 9_999 + "1"])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(Sql92Error, match="nested deeper than"):
        compile_sql92(text)


def test_long_chains_are_evaluated_or_refused() -> None:
    terms = " OR ".join(f"a = {n}" for n in range(OPERAND_COUNT_MAX // 2))
    assert compile_sql92(terms).matches({"a": "199"})
    with pytest.raises(Sql92Error, match=f"more than {OPERAND_COUNT_MAX} properties, constants"):
        compile_sql92(f"{terms} OR a = 1")
    with pytest.raises(Sql92Error, match=f"more than {OPERAND_COUNT_MAX} properties, constants"):
        compile_sql92(" OR ".join("NOT " * 20 + "a" for _ in range(20)))
    texts = ",".join(f"'{n}'" for n in range(IN_VALUE_COUNT_MAX))
    assert compile_sql92(f"a IN ({texts})").matches({"a": "7"})
    with pytest.raises(Sql92Error, match=f"more than {IN_VALUE_COUNT_MAX} texts in lists"):
        compile_sql92(f"a IN ('x') OR a IN ({texts},'x')")
    with pytest.raises(Sql92Error, match="in a row"):
        compile_sql92("a " + "= a " * 5000)


def test_long_expressions_are_refused() -> None:
    with pytest.raises(Sql92Error, match=f"at most {EXPRESSION_SIZE_MAX}"):
        compile_sql92("a = 1 " + "OR a = 1 " * 8000)


def test_numbers_of_any_length() -> None:
    """Thousands of digits are no long, in an expression and in a property; int() would raise."""
    digits = "9" * 30_000
    with pytest.raises(Sql92Error, match=r"a = 9+|9{40} is above"):
        compile_sql92(f"a = {digits}")
    with pytest.raises(Sql92Error, match=r"9{40} is out of the range of a double"):
        compile_sql92(f"a = {digits}.0")
    for text in ("a = 1", "a > 1", "a BETWEEN 1 AND 2", "a > 1.5"):
        expression = compile_sql92(text)
        assert not expression.matches({"a": f"-{digits}"})
        assert not expression.matches_raw(encode_properties({"a": f"-{digits}"}))
    assert compile_sql92("a = 7").matches({"a": "+" + "0" * 9000 + "7"})
    assert compile_sql92("a < 0").matches({"a": "-" + "0" * 9000 + "7"})
    assert compile_sql92("a = 0").matches({"a": "-" + "0" * 9000})
