"""Java's string hash: known values, the golden tags codes, and its definition on random text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.java_string import hash_units, java_hash, signed_32, tags_hash, utf16_units


def by_definition(text: str) -> int:
    h = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        h = (31 * h + int.from_bytes(raw[at : at + 2], "big")) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0), ("TagA", 2598919), ("TopicTest#k1", 2746024), ("AaAa", 2031744),
        ("BBBB", 2031744), ("AaBB", 2031744), ("polygenelubricants", -2147483648), ("😀", 1772899),
    ],
)  # fmt: skip
def test_known_values(text: str, value: int) -> None:
    assert java_hash(text) == by_definition(text) == value


@given(st.text(st.characters(), max_size=200))
def test_definition(text: str) -> None:
    assert java_hash(text) == by_definition(text)


@given(st.text(max_size=150), st.text(max_size=150))
def test_hash_goes_on(first: str, second: str) -> None:
    prefix = hash_units(utf16_units(first))
    assert signed_32(hash_units(utf16_units(second), prefix)) == java_hash(first + second)


def test_golden_tags(golden_facts: Callable[[str], Any]) -> None:
    seen = 0
    for message in golden_facts("basic-5.5.0")["messages"]:
        tags = message["properties"].get("TAGS", "")
        assert tags_hash(tags.encode()) == message["dispatch"]["tagsCode"]
        seen += bool(tags)
    assert seen > 100


def test_tags_that_are_no_utf_8() -> None:
    assert tags_hash(b"\xff") == java_hash("\ufffd")
    assert tags_hash(b"") == 0
