"""What docs/cli-json.md says of every command's JSON, and a check of an output against it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli-json.md"
_CAMEL_CASE: Final = re.compile(r"[a-z][A-Za-z0-9]*")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_ISO: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,}(Z|[+-][0-9]{2}:[0-9]{2})")
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}")
TEXTS_OF_DIGITS: Final = {"body", "default", "deleteWhen", "value"}
"""Keys whose values are texts even where they look like a number: bodies, times of day."""


class Described(NamedTuple):
    """What the page says of one command.

    Attributes:
        form: ``object``, ``list``, ``lines`` or ``map``; ``…, at least`` with further keys.
        keys: the keys of an object, in order.
        inside: by key of a list or map of objects, the keys of these.
    """

    form: str
    keys: list[str]
    inside: dict[str, list[str]]


def described_json() -> dict[str, Described]:
    """By command what the page says."""
    found: dict[str, Described] = {}
    inside: list[tuple[str, str, list[str]]] = []
    for line in PAGE.read_text("utf-8").splitlines():
        if not line.startswith("| `oberth "):
            continue
        _, command, middle, keys, _ = line.split("|")
        name = command.strip().strip("`").removeprefix("oberth ")
        names = re.findall(r"`([^`]+)`", keys)
        if middle.strip().startswith("`"):
            inside.append((name, middle.strip().strip("`"), names))
        else:
            assert name not in found, f"{name} is there twice"
            found[name] = Described(middle.strip(), names, {})
    for name, key, names in inside:
        found[name].inside[key] = names
    for name, described in found.items():
        for key in (*described.keys, *described.inside):
            assert _CAMEL_CASE.fullmatch(key), f"{name}: {key} is no camelCase"
    return found


def check_described(name: str, out: str) -> None:
    """Asserts that a command's output is of the form, and has the keys, that the page says."""
    described = described_json()[name]
    form = described.form.removesuffix(", at least")
    found: list[Any]
    if form == "lines":
        found = [json.loads(line) for line in out.splitlines()]
    else:
        document = json.loads(out)
        assert isinstance(document, list) == (form == "list"), f"{name} gives no {form}"
        found = document if form == "list" else [document]
    assert found, f"{name} gave nothing that could be compared with the page"
    for each in found:
        assert isinstance(each, dict)
        if form == "map":
            continue
        shown = list(each)
        if described.form.endswith("at least"):
            shown = [key for key in each if key in described.keys]
        assert shown == described.keys, f"docs/cli-json.md says otherwise of {name}"
        for key, value in each.items():
            for row in value if isinstance(value, list) else ():
                if isinstance(row, dict) and row:
                    known = described.inside.get(key)
                    assert list(row) == known, f"{name}: {key}[] {list(row)}"
        for key, value in leaves(each):
            _check_value(f"{name}: {key}", key, value)


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is neither list nor object, with the key it is under."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "properties":  # they are the application's
                yield from leaves(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, key)
    else:
        yield key, value


def _check_value(where: str, key: str, value: Any) -> None:
    if isinstance(value, str) and key not in TEXTS_OF_DIGITS:
        assert not _NUMBER.fullmatch(value), f"{where} is a number in a text: {value!r}"
        assert not _TIME.match(value) or _ISO.fullmatch(value), f"{where} has no zone: {value!r}"
    if key.endswith("Timestamp") and value is not None:
        assert isinstance(value, int | str), where
        assert isinstance(value, int) or _ISO.fullmatch(value), f"{where} is no time: {value!r}"
