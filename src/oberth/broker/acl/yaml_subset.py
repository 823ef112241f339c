"""The part of YAML that ``plain_acl.yml`` is written in, read strictly.

Block mappings, block sequences (also at the indent of their key, as SnakeYAML writes them), plain
and quoted scalars on one line, ``[a, b]`` of scalars, comments. All scalars stay text; an empty
value is None. Tags, anchors, block scalars, several documents, tabs and double keys are refused, by
line: none of them belongs into this file, and a reader that knows no tags can build no objects.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from oberth.errors import ConfigFormatError

Node = str | None | list["Node"] | dict[str, "Node"]

SIZE_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 16

_KEY: Final = re.compile(r"([A-Za-z0-9_.\-]+)\s*:(?:\s+|$)(.*)", re.DOTALL)
_ESCAPES: Final = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "/": "/"}


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines: list[_Line] = []
        self.at = 0
        for number, raw in enumerate(text.splitlines(), 1):
            line = _without_comment(raw).rstrip()
            bare = line.lstrip(" ")
            if not bare or (number == 1 and bare == "---"):
                continue
            if bare.startswith("\t"):
                raise self.error(number, "a tab in the indent, allowed are spaces")
            self.lines.append(_Line(number, len(line) - len(bare), bare))

    def error(self, number: int, what: str) -> ConfigFormatError:
        return ConfigFormatError(f"{self.name}: line {number}: {what}")

    def block(self, indent: int, depth: int) -> Node:
        line = self.lines[self.at]
        if depth > DEPTH_MAX:
            raise self.error(line.number, f"nested deeper than {DEPTH_MAX}")
        if _is_item(line.text):
            return self.sequence(indent, depth)
        return self.mapping(indent, depth)

    def sequence(self, indent: int, depth: int) -> list[Node]:
        items: list[Node] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or not _is_item(line.text):
                break
            rest = line.text[1:].lstrip(" ")
            if not rest:
                self.at += 1
                items.append(self.nested(indent, depth))
            elif _KEY.fullmatch(rest) or _is_item(rest):
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                items.append(self.block(inner, depth + 1))
            else:
                self.at += 1
                items.append(self.scalar(rest, line.number))
        self.check_end(indent)
        return items

    def mapping(self, indent: int, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or _is_item(line.text):
                break
            match = _KEY.fullmatch(line.text)
            if match is None:
                # Not the text: it may be a piece of a secret.
                what = f"{len(line.text)} characters, allowed is key: value"
                raise self.error(line.number, what)
            key, rest = match.groups()
            if key in found:
                raise self.error(line.number, f"{key} is given twice")
            self.at += 1
            found[key] = (
                self.scalar(rest, line.number) if rest else self.nested(indent, depth, key=True)
            )
        self.check_end(indent)
        return found

    def nested(self, indent: int, depth: int, *, key: bool = False) -> Node:
        """What stands below a key or a dash; None if nothing does."""
        if self.at == len(self.lines):
            return None
        line = self.lines[self.at]
        if line.indent > indent or (key and line.indent == indent and _is_item(line.text)):
            return self.block(line.indent, depth + 1)
        return None

    def check_end(self, indent: int) -> None:
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            raise self.error(self.lines[self.at].number, "deeper than the lines before")

    def scalar(self, text: str, number: int) -> Node:
        if text.startswith("["):
            if not text.endswith("]"):
                raise self.error(number, "a list in brackets must end on its line")
            inner = text[1:-1].strip()
            return [self.scalar(each.strip(), number) for each in inner.split(",")] if inner else []
        if text.startswith(("'", '"')):
            return self.quoted(text, number)
        if text[0] in "&!|>@`%{" or ": " in text or text.startswith("- "):
            # Not the text itself: it may be a secret.
            raise self.error(number, "a value that YAML would not take as text; quote it")
        return None if text in ("null", "~", "Null", "NULL") else text

    def quoted(self, text: str, number: int) -> str:
        quote, inner = text[0], text[1:-1]
        if len(text) < 2 or not text.endswith(quote):
            raise self.error(number, "a quote is not closed on its line")
        if quote == "'":
            if "'" in inner.replace("''", ""):
                raise self.error(number, "text behind the closing quote")
            return inner.replace("''", "'")
        out = []
        at = 0
        while at < len(inner):
            char = inner[at]
            if char == '"':
                raise self.error(number, "text behind the closing quote")
            if char == "\\":
                at += 1
                escaped = _ESCAPES.get(inner[at : at + 1])
                if escaped is None:
                    raise self.error(number, 'an escape that is not one of \\\\ \\" \\n \\t \\/')
                char = escaped
            out.append(char)
            at += 1
        return "".join(out)


def parse_yaml(data: bytes, name: str) -> Node:
    """The document in a file; None for an empty one.

    Raises:
        ConfigFormatError: naming the line, never its values.
    """
    if len(data) > SIZE_MAX:
        raise ConfigFormatError(f"{name}: {len(data)} bytes, allowed {SIZE_MAX}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigFormatError(f"{name}: no UTF-8 at byte {error.start}") from None
    reader = _Reader(text, name)
    if not reader.lines:
        return None
    document = reader.block(reader.lines[0].indent, 0)
    if reader.at < len(reader.lines):
        raise reader.error(reader.lines[reader.at].number, "does not belong to what stands before")
    return document


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _without_comment(line: str) -> str:
    """The line up to a # that begins a comment: at its start or behind a blank, outside quotes."""
    if "#" not in line:
        return line
    quote = ""
    for at, char in enumerate(line):
        before = line[at - 1] if at else " "
        if quote:
            if char == quote and not (quote == '"' and before == "\\"):
                quote = ""
        elif char in "'\"" and before in " [,":
            quote = char
        elif char == "#" and before in " \t":
            return line[:at]
    return line
