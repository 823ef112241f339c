"""Properties text is read as java.util.Properties reads it, and what is written is read back."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import ConfigFormatError
from oberth.formats import java_properties
from oberth.formats.java_properties import format_properties, parse_properties

# The examples of the documentation of java.util.Properties.load, and what RocketMQ's files hold.
TEXTS: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("\n \t\n# comment\n! comment = 1\n  # indented", {}),
    ("Truth = Beauty\n Truth:Beauty\nTruth\t\t\t:Beauty", {"Truth": "Beauty"}),
    (
        "fruits   apple, banana, \\\n    pear, \\\n   mango",
        {"fruits": "apple, banana, pear, mango"},
    ),
    ("cheeses", {"cheeses": ""}),
    ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
    ("a=b=c:d", {"a": "b=c:d"}),
    ("a==b", {"a": "=b"}),
    ("a =  b  ", {"a": "b  "}),
    (r"\:\=\ x = y", {":= x": "y"}),
    (r"a=\t\n\r\f\\\z\"", {"a": '\t\n\r\f\\z"'}),
    (r"a=A\u00e9\uD83D\uDE00", {"a": "Aé😀"}),
    (r"path=C\:\\store", {"path": "C:\\store"}),
    ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
    ("a=1\\\n# no comment", {"a": "1# no comment"}),
    ("a=1\na=2", {"a": "2"}),
    ("a=\\", {"a": ""}),
    ("=x", {"": "x"}),
    (
        "deleteWhen=04\nbrokerRole = ASYNC_MASTER",
        {"deleteWhen": "04", "brokerRole": "ASYNC_MASTER"},
    ),
    ("messageDelayLevel=1s 5s", {"messageDelayLevel": "1s 5s"}),
]


@pytest.mark.parametrize(("text", "entries"), TEXTS)
def test_texts(text: str, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries
    assert parse_properties(text.encode()) == entries
    assert parse_properties(format_properties(entries)) == entries


def test_bytes_are_utf_8_or_latin_1() -> None:
    assert parse_properties("a=é".encode()) == {"a": "é"}
    assert parse_properties("a=é".encode("latin-1")) == {"a": "é"}
    assert parse_properties("\ufeffa=1".encode()) == {"a": "1"}


def test_what_is_written_is_ascii() -> None:
    text = format_properties({"a b": " é😀", "#": "!x=1"})
    assert text == "a\\ b=\\ \\u00E9\\uD83D\\uDE00\n\\#=\\!x\\=1\n"


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=5))
def test_round_trip(entries: dict[str, str]) -> None:
    assert parse_properties(format_properties(entries)) == entries


@given(st.binary(max_size=60) | st.text("a=:#!\\u0 \t\n\r", max_size=40))
def test_entries_or_error(data: bytes | str) -> None:
    with contextlib.suppress(ConfigFormatError):
        parse_properties(data)


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigFormatError, match=r"broker.conf: line 3: .*found '12'"):
        parse_properties("a=1\n\nb=\\u12", name="broker.conf")
    monkeypatch.setattr(java_properties, "PROPERTIES_SIZE_MAX", 3)
    with pytest.raises(ConfigFormatError, match="4 bytes, at most 3"):
        parse_properties("a=12")
