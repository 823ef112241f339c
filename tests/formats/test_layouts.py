"""Each docstring's layout table says what its Struct does, and docs/formats.md says the same.

The tables are read from the docstrings, the fields from the lines of each Struct in the source, and
sizes and types from struct itself; every module with a Struct must have a table for it.
"""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import re
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oberth.formats

ROOT = Path(__file__).parents[2]


def load_generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_formats", ROOT / "docs" / "generate_formats.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()
MODULES = {
    name: importlib.import_module(f"oberth.formats.{name}")
    for _, name, _ in pkgutil.iter_modules(oberth.formats.__path__)
}

TYPES = {"b": "int8", "h": "int16", "i": "int32", "q": "int64", "H": "int16", "I": "int32"}
_STRUCT = re.compile(r'struct\.Struct\(\n\s*">"\n((?:\s*f?"[^"]+"  # \w+\n)+)\s*\)')
_FIELD = re.compile(r'f?"([^"]+)"  # (\w+)')
_HOSTS = {"B": "Bs", "S": "Ss"}


def structs_in(module: types.ModuleType) -> list[list[tuple[str, str]]]:
    """(format, name) of the fields of each Struct that a module spells out."""
    found = [_FIELD.findall(block) for block in _STRUCT.findall(inspect.getsource(module))]
    if hasattr(module, "_FIXED_FIELDS"):
        found.append(
            [(_HOSTS.get(code, code), name) for name, code in module._FIXED_FIELDS.items()]
        )
    return found


def with_structs() -> Iterator[Any]:
    for name, module in MODULES.items():
        for number, fields in enumerate(structs_in(module)):
            yield pytest.param(name, fields, id=f"{name}-{number}")


def evaluate(expression: str, **sizes: int) -> int:
    """A table's offset or size: a sum of numbers and the letters of variable sizes."""
    total = 0
    for term in expression.split("+"):
        total += int(term) if term.isdigit() else sizes[term]
    return total


def test_structs_were_found() -> None:
    assert len(list(with_structs())) >= 14
    for name in ("message", "consume_queue", "index_file", "timer_log"):
        assert structs_in(MODULES[name]), name


@pytest.mark.parametrize(("module_name", "fields"), list(with_structs()))
def test_table_equals_struct(module_name: str, fields: list[tuple[str, str]]) -> None:
    module = MODULES[module_name]
    tables = GENERATOR.layout_tables(module.__doc__)
    names = [name for _, name in fields]
    if module_name == "message_id":  # the end of an id, behind an address of 4 or 16 bytes
        rows = tables[1].rows[1:]
    else:
        found = [
            table for table in tables if [row.field for row in table.rows[: len(fields)]] == names
        ]
        assert found, f"no table begins with the fields {names}"
        rows = found[0].rows[: len(fields)]
    assert [row.field for row in rows] == names
    for host in (8, 20):
        at = None
        for (code, name), row in zip(fields, rows, strict=True):
            if code.endswith("s"):
                size, kind = int(code[:-1]) if code[:-1].isdigit() else host, "bytes"
            else:
                size, kind = struct.calcsize(">" + code), TYPES[code]
            assert row.type == kind, name
            assert evaluate(row.size, B=host, S=host) == size, name
            offset = evaluate(row.offset.partition("/")[0], B=host, S=host)
            assert at is None or offset == at, f"{name} is at {offset}, the one before ends at {at}"
            at = offset + size


@pytest.mark.parametrize(
    ("module_name", "tuple_name", "table", "left_out"),
    [
        ("consume_queue", "ConsumeQueueUnit", 0, ()),
        ("consume_queue_ext", "ConsumeQueueExtUnit", 0, ("unit_size", "bit_map_size")),
        ("batch_consume_queue", "BatchConsumeQueueUnit", 0, ()),
        ("index_file", "IndexHeader", 0, ()),
        ("index_file", "IndexEntry", 1, ()),
        ("timer_wheel", "TimerSlot", 0, ()),
        ("timer_log", "TimerLogUnit", 0, ("unit_size",)),
        ("timer_checkpoint", "TimerCheckpoint", 0, ()),
        ("checkpoint", "Checkpoint", 0, ()),
    ],
)
def test_table_equals_value(
    module_name: str, tuple_name: str, table: int, left_out: tuple[str, ...]
) -> None:
    module = MODULES[module_name]
    rows = GENERATOR.layout_tables(module.__doc__)[table].rows
    value = getattr(module, tuple_name)
    names = getattr(value, "_fields", None) or tuple(value.__dataclass_fields__)
    assert tuple(row.field for row in rows if row.field not in left_out) == names


def test_every_table_is_on_the_page() -> None:
    for name, module in MODULES.items():
        if GENERATOR.layout_tables(module.__doc__ or ""):
            assert name in GENERATOR.BINARY, f"{name} has a table that docs/formats.md lacks"
    assert set(GENERATOR.BINARY + GENERATOR.TEXT) <= set(MODULES)


def test_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert page == GENERATOR.generate(), "run: python docs/generate_formats.py"


def test_every_table_has_an_example() -> None:
    examples = GENERATOR.examples()
    for name in GENERATOR.BINARY:
        assert len(examples[name]) == len(GENERATOR.layout_tables(MODULES[name].__doc__)), name


def test_a_table_that_lies_is_noticed() -> None:
    lying = MODULES["consume_queue"].__doc__.replace("         8     4", "         8     8")  # type: ignore[union-attr] # it has one
    rows = GENERATOR.layout_tables(lying)[0].rows
    assert evaluate(rows[1].size) != struct.calcsize(">i")
