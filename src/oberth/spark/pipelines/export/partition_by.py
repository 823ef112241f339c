"""Partition columns by expression: ``day=date(timestamp)``, ``tags``, ``bucket=bucket(16, key)``.

    expression            value
    COLUMN                the column's value
    year(T) month(T)      2024, 2024-05
    date(T) hour(T)       2024-05-17, 2024-05-17-23 (UTC)
    lower(C) upper(C)     text
    prefix(N, C)          the first N characters
    bucket(N, C)          CRC-32 of the value's text modulo N

C and T are columns of the export, or ``body.FIELD`` where bodies are decoded. Values are text; null
is null. Without ``NAME=`` a column is named after its expression's innermost column.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from oberth.errors import OptionError

_FORM: Final = re.compile(r"(?:(\w+)\s*=\s*)?(?:(\w+)\(\s*(?:(\d+)\s*,\s*)?([\w.]+)\s*\)|([\w.]+))")
_FORMATS: Final = {"year": "%Y", "month": "%Y-%m", "date": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
_TEXT: Final = ("lower", "upper")
_NUMBERED: Final = ("prefix", "bucket")


class PartitionColumn(NamedTuple):
    """One partition column: its name, function ("" for none), number and source column."""

    name: str
    function: str
    number: int
    column: str

    def values(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        """The column's values for some rows, as text."""
        parts = self.column.split(".")
        array = table.column(parts[0])
        for part in parts[1:]:
            array = pc.struct_field(array, part)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if self.function in _FORMATS:
            # To seconds: strftime's %S has fractions, and nothing here is finer than hours.
            seconds = array.cast(pa.timestamp("s", "UTC"), safe=False)
            return pc.strftime(seconds, _FORMATS[self.function])
        text = _as_text(array)
        if self.function == "lower":
            return pc.utf8_lower(text)
        if self.function == "upper":
            return pc.utf8_upper(text)
        if self.function == "prefix":
            return pc.utf8_slice_codeunits(text, 0, self.number)
        if self.function == "bucket":
            coded = text.dictionary_encode()
            names = [
                None if each is None else str(zlib.crc32(each.encode()) % self.number)
                for each in coded.dictionary.to_pylist()
            ]
            return pa.array(names, pa.string()).take(coded.indices)
        return text


def _as_text(array: pa.Array) -> pa.Array:
    if pa.types.is_binary(array.type):
        values = array.to_pylist()
        return pa.array(
            [None if each is None else each.decode("utf-8", "replace") for each in values],
            pa.string(),
        )
    return array.cast(pa.string())


def parse_partition_by(texts: tuple[str, ...], schema: pa.Schema) -> tuple[PartitionColumn, ...]:
    """Understands partition expressions.

    Args:
        texts: one expression each.
        schema: what the rows have.

    Raises:
        OptionError: one that does not parse, or whose column does not exist or does not fit.
    """
    found: list[PartitionColumn] = []
    for text in texts:
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise OptionError(
                f"partition column {text!r}: allowed are COLUMN, NAME=COLUMN, "
                "NAME=year|month|date|hour|lower|upper(COLUMN), NAME=prefix|bucket(N, COLUMN)"
            )
        name, function, number, inner, plain = match.groups()
        column = inner or plain
        made = PartitionColumn(
            name or (function or column).replace(".", "_"), function or "", int(number or 0), column
        )
        _check(text, made, number is not None, schema)
        taken = {*schema.names, *(each.name for each in found)} - (
            {made.name} if made.name == column else set()
        )
        if made.name in taken:
            raise OptionError(f"partition column {text!r}: the name {made.name!r} is taken")
        found.append(made)
    return tuple(found)


def _check(text: str, made: PartitionColumn, numbered: bool, schema: pa.Schema) -> None:
    if made.function and made.function not in (*_FORMATS, *_TEXT, *_NUMBERED):
        raise OptionError(
            f"partition column {text!r}: there is no function {made.function!r}; allowed: "
            f"{', '.join((*_FORMATS, *_TEXT, *_NUMBERED))}"
        )
    if numbered != (made.function in _NUMBERED) or (numbered and made.number < 1):
        raise OptionError(
            f"partition column {text!r}: prefix and bucket take a number of at least 1, "
            "the others none"
        )
    kind: Any = pa.struct(list(schema))
    for part in made.column.split("."):
        index = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
        if index < 0:
            raise OptionError(
                f"partition column {text!r}: there is no column {made.column!r}; "
                f"columns: {', '.join(schema.names)}"
            )
        kind = kind.field(index).type
    if made.function in _FORMATS and not pa.types.is_timestamp(kind):
        raise OptionError(f"partition column {text!r}: {made.column} is no time but {kind}")
    if pa.types.is_nested(kind):
        raise OptionError(f"partition column {text!r}: {made.column} is a {kind}")
