"""Options: parsing, ranges, aliases, unknown keys, and the way back to text."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import OptionError
from oberth.formats.options import (
    check_options,
    format_options,
    option,
    options_of,
    read_options,
    update_option,
)


class Colour(enum.StrEnum):
    RED = "RED"
    BLUE = "blue-ish"


@dataclass(slots=True, kw_only=True)
class Example:
    limit: int = option("limit", 5, "a number", low=1, high=9)
    any_number: int = option("anyNumber", 0, "no range of its own")
    enabled: bool = option("enabled", False, "a switch")
    ratio: float = option("ratio", 0.5, "a fraction", low=0.0, high=1.0)
    name: str | None = option("name", None, "a text")
    colour: Colour = option("colour", Colour.RED, "one of some")
    renamed: int = option("renamedOption", 7, "has an old name", aliases=("oldName",))


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("limit", " 3 ", "limit", 3), ("enabled", "TRUE", "enabled", True),
        ("enabled", "false", "enabled", False), ("ratio", "1", "ratio", 1.0),
        ("name", " x y ", "name", "x y"), ("colour", "blue-ish", "colour", Colour.BLUE),
        ("oldName", "1", "renamed", 1), ("anyNumber", "2147483647", "any_number", 2**31 - 1),
    ],
)  # fmt: skip
def test_values(key: str, text: str, field: str, value: object) -> None:
    config = read_options(Example, {key: text})
    assert getattr(config, field) == value
    assert read_options(Example, format_options(config)) == config
    other = Example()
    assert update_option(other, key, text)
    assert other == config


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("limit", "0", "limit: 0 is outside 1…9"), ("limit", "10", "outside"),
        ("limit", "x", "'x' is not an integer"), ("limit", "1_0", "not an integer"),
        ("limit", "٣", "not an integer"), ("limit", "", "not an integer"),
        ("anyNumber", "-1", "outside 0…2147483647"), ("anyNumber", "2147483648", "outside"),
        ("enabled", "yes", "'yes' is neither true nor false"), ("ratio", "1.5", "outside 0…1"),
        ("ratio", "nan", "outside"), ("colour", "GREEN", "is not one of RED, blue-ish"),
    ],
)  # fmt: skip
def test_wrong_values(key: str, text: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(Example, {key: text})
    assert str(raised.value).startswith(f"{key}: ")
    assert message in str(raised.value)


def test_unknown_keys() -> None:
    assert read_options(Example, {"limitt": "1"}) == Example()
    assert not update_option(Example(), "limitt", "1")
    with pytest.raises(OptionError, match=r"limitt: no such option; did you mean limit\?"):
        read_options(Example, {"limitt": "1"}, strict=True)
    with pytest.raises(OptionError, match=r"zzz: no such option$"):
        read_options(Example, {"zzz": "1"}, strict=True)
    assert read_options(Example, {"zzz": "1"}, strict=True, also_known={"zzz"}) == Example()


def test_objects_made_in_python_can_be_checked() -> None:
    check_options(Example())
    with pytest.raises(OptionError, match="limit: 99"):
        check_options(Example(limit=99))


def test_null_is_left_out() -> None:
    assert "name" not in format_options(Example())
    assert format_options(Example())["enabled"] == "false"


def test_table() -> None:
    table = {each.field_name: each for each in options_of(Example)}
    assert list(table) == list(Example.__dataclass_fields__)
    assert table["renamed"].aliases == ("oldName",)
    assert (table["name"].kind, table["enabled"].kind) == (str, bool)


@given(st.sampled_from([each.java_name for each in options_of(Example)]), st.text(max_size=12))
def test_value_or_error(key: str, text: str) -> None:
    try:
        config = read_options(Example, {key: text})
    except OptionError:
        return
    check_options(config)
