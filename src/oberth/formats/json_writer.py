"""Writes JSON byte for byte as Java does, in the form of either line.

    Dialect.V4_9   fastjson 1.2.83: entries with a bare key stay on one line, a Set too
    Dialect.V5     fastjson 2 of 5.5.0: every entry on its own line
    Dialect.PLAIN  JSON proper: every key quoted

Pretty as in files, or compact as over the wire. Keys of type int are written bare, keys of type str
quoted, ObjectKeys as objects; an entry whose value is None is left out. Tuples are Java's arrays
(and a bean's List<Long>), which always stay on one line; lists are Java's other lists.

RocketMQ: RemotingSerializable.toJson.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec

from oberth.errors import ConfigFormatError
from oberth.formats.json_values import DEPTH_MAX, ObjectKey


class Dialect(enum.Enum):
    """Whose way of writing to reproduce."""

    V4_9 = "4.9"
    V5 = "5.x"
    PLAIN = "plain"


class FieldList(list[Any]):
    """A list that is a field of a bean: 5.5.0 writes an empty one on three lines, others as []."""


class InlineList(list[Any]):
    """A Set: 4.9.7 writes it on one line."""


def format_config(value: Any, dialect: Dialect = Dialect.V5, *, pretty: bool = True) -> str:
    """Write one document as Java does.

    Args:
        value: what parse_config returns, or mappings, lists and tuples of that kind.
        dialect: whose form.
        pretty: one field a line as in files, or everything on one line as over the wire.

    Raises:
        ConfigFormatError: a value of another type, or more than DEPTH_MAX levels.
    """
    out: list[str] = []
    _write(out, value, dialect, "\n" if pretty else "", 0)
    return "".join(out)


def encode_config(value: Any, dialect: Dialect = Dialect.V5, *, pretty: bool = True) -> bytes:
    """format_config in UTF-8; a half of a surrogate pair becomes '?', as in Java."""
    return format_config(value, dialect, pretty=pretty).encode("utf-8", "replace")


class Shown:
    """A mapping or list whose values `config_in_slices` makes one by one, with ``show``.

    Of a mapping only the keys are taken down, which is ten times faster than its entries. What is
    taken out of it before its turn is left out.

    Attributes:
        items: of a list its values, of a mapping its keys.
        table: the mapping, or None.
        written: of a mapping, gives by its key an entry that is text already, key and all, as
            `format_config` writes it for a file; None if there is no such text. Ten times faster.
    """

    __slots__ = ("items", "show", "table", "written")

    def __init__(
        self,
        table: Mapping[str, Any] | list[Any],
        show: Callable[[Any], Any],
        written: Callable[[Any], str | None] | None = None,
    ) -> None:
        self.table = table if isinstance(table, Mapping) else None
        self.items: list[Any] = list(table) if isinstance(table, Mapping) else table
        self.show = show
        self.written = written

    def entries(self) -> Iterator[Any]:
        """Values of a list; of a mapping pairs of key and value."""
        table, show = self.table, self.show
        if table is None:
            for value in self.items:
                yield show(value)
            return
        for key in self.items:
            value = table.get(key)
            if value is not None:
                yield key, show(value)

    def page(self, start: int, count: int | None) -> Shown:
        """A part of it: ``count`` entries from a number on, all that follow without one.

        RocketMQ's slaves take a page for the last one when it ends at the last entry but one, so a
        single entry that would be left comes along.
        """
        start = max(start, 0)
        end = len(self.items) if count is None else start + max(count, 1)
        part = Shown([], self.show, self.written)
        part.table = self.table
        part.items = self.items[start : end + (end == len(self.items) - 1)]
        return part


_TEXTS_A_SLICE: Final = 1000
_ENTRIES_A_SLICE: Final = 16
_CHARACTERS_A_SLICE: Final = 1 << 20
_WRITTEN_A_STEP: Final = 8
"""Entries that are text already and count as one."""
_WHOLE_ENTRIES_MAX: Final = 16
_SLICED_DEPTH: Final = 3


def config_in_slices(
    value: Mapping[str, Any], size_max: int | None = None
) -> Generator[None, None, bytearray]:
    """`encode_config`, compact, for documents of any length: yields each quarter of a ms or so.

    A field may be `Shown`. What changes while it is written is written as it was or as it is.
    The bytes grow with each slice: joining megabytes at the end would take tens of milliseconds.

    Raises:
        ConfigFormatError: see `format_config`; or it becomes longer than ``size_max`` bytes.
    """
    done = bytearray()
    out: list[str] = []
    entries = counted = characters = 0
    for _ in _texts(out, value, 0):
        entries += 1
        characters += sum(map(len, out[counted:]))
        counted = len(out)
        if (
            counted >= _TEXTS_A_SLICE
            or entries >= _ENTRIES_A_SLICE
            or characters >= _CHARACTERS_A_SLICE
        ):
            done += "".join(out).encode("utf-8", "replace")
            out.clear()
            entries = counted = characters = 0
            if size_max is not None and len(done) > size_max:
                raise ConfigFormatError(f"the answer is longer than {size_max} bytes")
            yield
    done += "".join(out).encode("utf-8", "replace")
    return done


def _texts(out: list[str], value: Any, depth: int) -> Generator[None, None, None]:
    """Append what `_write` would, and yield after every entry."""
    is_list = isinstance(value, list | tuple)
    entries: Iterable[Any]
    if isinstance(value, Shown) and value.written is not None:
        yield from _written_texts(out, value, depth)
        return
    if isinstance(value, Shown):
        entries, is_list = value.entries(), value.table is None
    elif depth >= _SLICED_DEPTH and (
        not isinstance(value, Mapping | list | tuple) or len(value) <= _WHOLE_ENTRIES_MAX
    ):
        _write(out, value, Dialect.V5, "", depth)
        return
    elif value.__class__ is dict and (flat := _flat_text(value)) is not None:
        out.append(flat)
        return
    elif isinstance(value, Mapping):
        entries = list(value.items())
    elif is_list:
        entries = value
    else:
        _write(out, value, Dialect.V5, "", depth)
        return
    begin, end = "[]" if is_list else "{}"
    separator = begin
    for entry in entries:
        each = entry if is_list else entry[1]
        if not is_list and each is None:
            continue
        out.append(separator)
        separator = ","
        if not is_list:
            _write(out, entry[0], Dialect.V5, "", depth + 1)
            out.append(":")
        yield from _texts(out, each, depth + 1)
        yield
    out.append(end if separator == "," else begin + end)


def _written_texts(out: list[str], shown: Shown, depth: int) -> Generator[None, None, None]:
    """`_texts` of a mapping some of whose entries are text already."""
    assert shown.table is not None
    assert shown.written is not None
    separator = "{"
    for number, key in enumerate(shown.items, 1):
        text = shown.written(key)
        if text is not None:
            # No line feed and no tab stands in a string as it is.
            out += (separator, text.replace("\n", "").replace("\t", ""))
        elif (value := shown.table.get(key)) is not None:
            out.append(separator)
            _write(out, key, Dialect.V5, "", depth + 1)
            out.append(":")
            yield from _texts(out, shown.show(value), depth + 1)
            yield
        else:
            continue
        separator = ","
        if number % _WRITTEN_A_STEP == 0:
            yield
    out.append("}" if separator == "," else "{}")


_FLAT: Final = frozenset({str, int, bool})


def _flat_text(value: dict[Any, Any]) -> str | None:
    """What `_write` makes of a small object without objects in it, five times faster, or None."""
    if not 0 < len(value) <= _WHOLE_ENTRIES_MAX:
        return None
    if all(key.__class__ is int and inner.__class__ is int for key, inner in value.items()):
        return "{" + ",".join([f"{key}:{inner}" for key, inner in value.items()]) + "}"
    for key, inner in value.items():
        if key.__class__ is not str or not (
            inner.__class__ in _FLAT or (inner.__class__ is dict and not inner)
        ):
            return None
    try:
        return msgspec.json.encode(value).decode()
    except (OverflowError, UnicodeEncodeError):
        return None  # a number of more than 64 bits, half of a surrogate pair


def _write(out: list[str], value: Any, dialect: Dialect, newline: str, depth: int) -> None:
    # newline is "" when compact, otherwise a line feed with the indentation of this level.
    if value is None:
        out.append("null")
    elif value is True:
        out.append("true")
    elif value is False:
        out.append("false")
    elif isinstance(value, str):
        out.append(_quote(value, dialect))
    elif isinstance(value, int):
        out.append(int.__repr__(value))
    elif isinstance(value, float):
        out.append(format_double(value))
    elif depth >= DEPTH_MAX:
        raise ConfigFormatError(f"more than {DEPTH_MAX} objects and lists inside each other")
    elif isinstance(value, Mapping):
        _write_entries(out, list(value.items()), dialect, newline, depth)
    elif isinstance(value, ObjectKey):
        _write_entries(out, list(value), dialect, newline, depth)
    elif isinstance(value, (list, tuple)):
        _write_list(out, value, dialect, newline, depth)
    else:
        raise ConfigFormatError(f"{type(value).__name__} is no value of a configuration")


def _write_entries(
    out: list[str], entries: list[Any], dialect: Dialect, newline: str, depth: int
) -> None:
    entries = [entry for entry in entries if entry[1] is not None]
    if not entries:
        out.append("{}")
        return
    inner_newline = newline and newline + "\t"
    out.append("{")
    separator = ""
    for key, value in entries:
        out.append(separator)
        separator = ","
        if isinstance(key, str):
            out += (inner_newline, _quote(key, dialect), ":")
        elif key.__class__ is int and dialect is not Dialect.PLAIN:
            # Offsets by queue are most of what is written, every five seconds.
            out.append(f"{key}:" if dialect is Dialect.V4_9 else f"{inner_newline}{key}:")
            if value.__class__ is int:
                out.append(str(value))
                continue
        else:
            if dialect is not Dialect.V4_9:
                out.append(inner_newline)
            if dialect is Dialect.PLAIN:
                out.append(_quote(format_config(key, dialect, pretty=False), dialect))
            else:
                _write(out, key, dialect, "", depth + 1)
            out.append(":")
        _write(out, value, dialect, inner_newline, depth + 1)
    out += (newline, "}")


def _write_list(
    out: list[str], items: list[Any] | tuple[Any, ...], dialect: Dialect, newline: str, depth: int
) -> None:
    inline = isinstance(items, tuple) or (dialect is Dialect.V4_9 and isinstance(items, InlineList))
    inner_newline = newline if inline else newline and newline + "\t"
    around = "" if inline else inner_newline
    out.append("[")
    if not items:
        if newline and dialect is Dialect.V5 and isinstance(items, FieldList):
            out += (inner_newline, newline)
        out.append("]")
        return
    separator = ""
    for item in items:
        out += (separator, around)
        separator = ","
        _write(out, item, dialect, inner_newline, depth + 1)
    out += ("" if inline else newline, "]")


_SHORT_ESCAPES: Final = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r",
}  # fmt: skip
_UNSAFE_V4_9: Final = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_ESCAPES_V4_9: Final = {
    code: _SHORT_ESCAPES.get(chr(code), f"\\u{code:04X}")
    for code in (*map(ord, _SHORT_ESCAPES), *range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}


def _quote(text: str, dialect: Dialect) -> str:
    # In one call of C each: a peer may have chosen half a megabyte of quotes.
    if dialect is not Dialect.V4_9:
        return encode_basestring(text)  # escapes what fastjson 2 does, and as it does
    if _UNSAFE_V4_9.search(text) is None:
        return f'"{text}"'
    return '"' + text.translate(_ESCAPES_V4_9) + '"'


def format_double(value: float) -> str:
    """A float as Java's Double.toString writes it; null for what JSON has no name for.

    >>> format_double(1e20), format_double(0.8), format_double(1e-5)
    ('1.0E20', '0.8', '1.0E-5')
    """
    if value != value or value in (float("inf"), float("-inf")):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value) if "e" not in repr(value) else f"{value:f}"
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        sign = "-" if value < 0 else ""
        whole, _, fraction = mantissa.lstrip("-").partition(".")
        digits = (whole + fraction).strip("0") or "0"
        exponent = str(len(whole) - 1 if whole.strip("0") else -1 - _leading_zeros(fraction))
        mantissa = f"{sign}{digits[0]}.{digits[1:] or '0'}"
    elif "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}"


def _leading_zeros(fraction: str) -> int:
    return len(fraction) - len(fraction.lstrip("0"))
