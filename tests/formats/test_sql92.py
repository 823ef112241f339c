"""SQL92 expressions select what RocketMQ's own filter selects, and refuse what it refuses.

``data/sql92.tsv`` holds its answers (rocketmq-filter 5.5.0, ``FilterFactory`` and ``evaluate``):
the answer, the expression, then name=value for each property. Random text compiles
or is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.sql92 import (
    EXPRESSION_SIZE_MAX,
    Sql92Error,
    Sql92EvaluationError,
    compile_sql92,
)

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


@pytest.mark.parametrize(
    "text", ["(" * 10_000 + "a = 1", "NOT " * 10_000 + "a", "- " * 9_999 + "1"]
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(Sql92Error, match="nested deeper than"):
        compile_sql92(text)


def test_long_chains_are_evaluated_or_refused() -> None:
    terms = " OR ".join(f"a = {n}" for n in range(5000))
    assert compile_sql92(terms).matches({"a": "4999"})
    with pytest.raises(Sql92Error, match="in a row"):
        compile_sql92("a " + "= a " * 5000)


def test_long_expressions_are_refused() -> None:
    with pytest.raises(Sql92Error, match=f"at most {EXPRESSION_SIZE_MAX}"):
        compile_sql92("a = 1 " + "OR a = 1 " * 8000)
