"""Properties strings: both forms are read, what RocketMQ ignores is ignored, fast look-ups agree.

Proved on every properties string of every golden store, a table of odd strings, and random ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.properties import (
    append_property,
    check_properties,
    decode_properties,
    encode_properties,
    find_property,
    names_pattern,
    without_properties,
)

ODD: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("a\x01b\x02", {"a": "b"}),
    ("a\x01b", {"a": "b"}),
    ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
    ("a\x01b\x02a\x01c\x02", {"a": "c"}),
    ("a\x01b\x02a\x01\x02", {"a": "b"}),
    ("\x01b\x02", {}),
    ("ab\x02cd\x01e\x02", {"cd": "e"}),
    ("a\x01\x02", {}),
    ("a\x01b\x01c\x02", {"a": "b\x01c"}),
    ("\x02\x02a\x01b\x02\x02", {"a": "b"}),
    ("имя\x01значение\x02", {"имя": "значение"}),
]


@pytest.mark.parametrize(("text", "properties"), ODD)
def test_odd_strings(text: str, properties: dict[str, str]) -> None:
    raw = text.encode()
    assert decode_properties(text) == decode_properties(raw) == properties
    assert decode_properties(memoryview(raw)) == properties
    for name in ("a", "b", "c", "cd", "имя"):
        found = find_property(raw, name.encode())
        assert (None if found is None else found.decode()) == properties.get(name)


def test_golden_strings(golden_name: str, golden_facts: Callable[[str], Any]) -> None:
    for message in golden_facts(golden_name)["messages"]:
        if "propertiesText" not in message:
            continue
        raw = message["propertiesText"].encode()
        assert decode_properties(raw) == message["properties"]
        for name, value in message["properties"].items():
            assert find_property(raw, name.encode()) == value.encode()
        trailing = raw.endswith(b"\x02")
        if len(raw.split(b"\x02")) - trailing == len(message["properties"]):
            again = encode_properties(decode_properties(raw), trailing_separator=trailing)
            assert again == raw


TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(TEXTS, TEXTS), st.booleans())
def test_round_trip(properties: dict[str, str], trailing: bool) -> None:
    assert check_properties(properties) is None
    raw = encode_properties(properties, trailing_separator=trailing)
    assert decode_properties(raw) == properties
    assert raw.endswith(b"\x02") == (trailing and bool(properties))


@given(st.text("ab\x01\x02", max_size=30).map(str.encode), st.sampled_from([b"a", b"b", b"ab"]))
def test_find_equals_decode(raw: bytes, name: bytes) -> None:
    expected = decode_properties(raw).get(name.decode())
    found = find_property(raw, name)
    assert (None if found is None else found.decode()) == expected


@given(st.dictionaries(TEXTS, TEXTS), TEXTS, TEXTS, st.booleans())
def test_append(properties: dict[str, str], name: str, value: str, trailing: bool) -> None:
    raw = encode_properties(properties, trailing_separator=trailing)
    assert decode_properties(append_property(raw, name, value)) == {**properties, name: value}


@given(st.binary(max_size=60))
def test_any_bytes_are_read(raw: bytes) -> None:
    decode_properties(raw)
    find_property(raw, b"TAGS")


def test_null_values_are_left_out() -> None:
    assert encode_properties({"a": None, "b": "c"}) == b"b\x01c\x02"
    assert encode_properties({"a": None}) == b""


@pytest.mark.parametrize(
    "properties", [{"": "v"}, {"a\x01": "v"}, {"a": "\x02"}, {"a": "b\x01"}, {"\x02": "v"}]
)
def test_what_cannot_be_encoded(properties: dict[str, str]) -> None:
    assert check_properties(properties)


@given(st.text("ab\x01\x02", max_size=30).map(str.encode))
def test_without_equals_decode(raw: bytes) -> None:
    expected = decode_properties(raw)
    expected.pop("a", None)
    expected.pop("bb", None)
    assert decode_properties(without_properties(raw, (b"a", b"bb"))) == expected


def test_a_pattern_finds_names_and_transient_ones() -> None:
    pattern = re.compile(names_pattern({"DELAY", "a.b"}))
    for text, found in (
        ("DELAY\x013\x02", True),
        ("x\x01y\x02a.b\x01\x02", True),
        ("__RMQ.TRANSIENT.x\x011\x02", True),
        ("axb\x011\x02", False),
        ("DELAYED\x013\x02MY_DELAY\x013\x02", False),
        ("x\x01DELAY", False),
    ):
        assert (pattern.search("\x02" + text) is not None) is found, text


def test_without_keeps_the_others_as_they_are_stored() -> None:
    raw = b"\xff\x01b\x02a\x01x\x02c\x01d\x02"
    assert without_properties(raw, (b"a",)) == b"\xff\x01b\x02c\x01d\x02"
    assert without_properties(raw, (b"x", b"c")) == b"\xff\x01b\x02a\x01x\x02"
