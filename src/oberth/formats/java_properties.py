r"""Java ``.properties`` text: ``name=value`` lines, as broker.conf and namesrv.conf are written.

    line        blank, a comment (first sign ``#`` or ``!``), or an entry
    entry       name, then ``=`` or ``:`` or white space, then the value
    white space space, tab, form feed; before the name and around the separator it does not count
    ``\``       at the end of a line joins the next one, whose leading white space does not count;
                before t, n, r, f a control character; before uXXXX a UTF-16 unit; else dropped

Behind the value white space *does* count; the option tables strip it. Of two entries with one name
the last wins. Java reads the file as ISO-8859-1; here valid UTF-8 is taken for UTF-8, so that a
path with accents means what its author saw, and everything else is ISO-8859-1.

RocketMQ: java.util.Properties through BrokerStartup and MixAll.string2Properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Self

from oberth.errors import ConfigFormatError

PROPERTIES_SIZE_MAX: Final = 1 << 20
"""Bytes of a properties file that are read; Apache's longest is 10 KiB."""

_NATURAL_LINE: Final = re.compile(r"\r\n|\r|\n")
_WHITE: Final = " \t\f"
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = {
    "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f",
    "\\": "\\\\", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!",
}  # fmt: skip
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")


class PlacedText(str):
    """A value that knows where it was given.

    Attributes:
        place: for messages, such as ``broker.conf: line 3``.
        is_bare: whether the line has a name and nothing behind it, not even a ``=``.
    """

    __slots__ = ("is_bare", "place")
    place: str
    is_bare: bool

    def __new__(cls, text: str, place: str, is_bare: bool = False) -> Self:
        """The text, with its place."""
        made = super().__new__(cls, text)
        made.place = place
        made.is_bare = is_bare
        return made

    def __reduce__(self) -> tuple[type[PlacedText], tuple[str, str, bool]]:
        return PlacedText, (str(self), self.place, self.is_bare)


def place_of(text: str | None) -> str | None:
    """Where a value was given, if it knows."""
    return text.place if isinstance(text, PlacedText) else None


def bare_lines(entries: Mapping[str, str]) -> list[str]:
    """A warning for each line of a file that has a name alone; Java reads it as an empty value."""
    return [
        f"{text.place}: {name} stands there without a value, and is empty; "
        f"write {name}= if that is meant"
        for name, text in entries.items()
        if isinstance(text, PlacedText) and text.is_bare
    ]


def parse_properties(
    data: bytes | str, *, name: str = "properties", placed: bool = False
) -> dict[str, str]:
    r"""Read properties text.

    Args:
        data: the file's bytes, or text.
        name: what errors call the file.
        placed: give values that know their line, for messages about what they mean.

    Returns:
        Every entry, in the order of the file.

    Raises:
        ConfigFormatError: a malformed ``\u`` escape, or more than PROPERTIES_SIZE_MAX bytes.
    """
    if len(data) > PROPERTIES_SIZE_MAX:
        raise ConfigFormatError(
            f"{name}: {len(data)} bytes, at most {PROPERTIES_SIZE_MAX} are allowed"
        )
    if isinstance(data, bytes):
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("iso-8859-1")
    else:
        text = data
    entries: dict[str, str] = {}
    for line_number, line in _logical_lines(text):
        end = _end_of_name(line)
        at = end
        while at < len(line) and line[at] in _WHITE:
            at += 1
        if at < len(line) and line[at] in "=:":
            at += 1
            while at < len(line) and line[at] in _WHITE:
                at += 1
        where = f"{name}: line {line_number}"
        value = _unescape(line[at:], where)
        if placed:
            value = PlacedText(value, where, is_bare=not line[end:].strip(_WHITE))
        entries[_unescape(line[:end], where)] = value
    return entries


def format_properties(entries: Mapping[str, str]) -> str:
    """Write entries as ``name=value`` lines of ASCII, escaped so that Java reads the same."""
    return "".join(
        f"{_escape(name, is_name=True)}={_escape(value, is_name=False)}\n"
        for name, value in entries.items()
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined and comments dropped, each with its first line's number."""
    parts: list[str] = []
    first = 0
    for number, natural in enumerate(_NATURAL_LINE.split(text), start=1):
        line = natural.lstrip(_WHITE)
        if not parts:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield first, "".join((*parts, line))
        parts.clear()
    if parts:
        yield first, "".join(parts)


def _end_of_name(line: str) -> int:
    at = 0
    while at < len(line):
        if line[at] == "\\":
            at += 2
        elif line[at] in _WHITE or line[at] in "=:":
            return at
        else:
            at += 1
    return len(line)


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            out.append(char)
            continue
        char = text[at]
        at += 1
        if char != "u":
            out.append(_CONTROL.get(char, char))
            continue
        digits = text[at : at + 4]
        if not _HEX.fullmatch(digits):
            raise ConfigFormatError(
                f"{where}: \\u must be followed by four hex digits, found {digits!r}"
            )
        out.append(chr(int(digits, 16)))
        at += 4
    joined = "".join(out)
    # Two \u escapes can be the halves of one character; a half alone has no UTF-8 form.
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape(text: str, *, is_name: bool) -> str:
    out: list[str] = []
    for at, char in enumerate(text):
        if char == " ":
            out.append("\\ " if is_name or at == 0 else char)
        elif char in _ESCAPED:
            out.append(_ESCAPED[char])
        elif " " < char < "\x7f":
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[i : i + 2].hex().upper()}" for i in range(0, len(units), 2))
    return "".join(out)
