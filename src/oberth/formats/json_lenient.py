"""The slow half of `json_reader`: a parser for what fastjson takes beyond JSON proper."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

from oberth.errors import ConfigFormatError
from oberth.formats.json_values import (
    DEPTH_MAX,
    LENIENT_SIZE_MAX,
    NUMBER_LENGTH_MAX,
    ObjectKey,
)

_SPACE: Final = re.compile(r"(?:[\s\x00-\x1f]++|//[^\n]*+|/\*(?s:.*?)\*/)*+")
# Possessive: 16 KiB of digits in front of a $ took 13 s to be tried in all ways.
_NUMBER: Final = re.compile(
    r"([-+]?+(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?+\d++)?+)([LSBFDlsbfd]?+)(?![\w$.])"
)
_WORD: Final = re.compile(r"[A-Za-z_$\u0080-\uffff][\w$.@#%|-]*")
_BLANKS: Final = r"[ \t\r\n]*+"
_COMMAS: Final = re.compile(rf"(?:,{_BLANKS})++")
_PLAIN: Final = (
    r"""(?:"([^"\\]*+)"|'([^'\\]*+)'"""
    r"""|([-+]?+\d{1,18}+(?:\.\d{1,18}+)?+)[LSBlsb]?+(?![\w$.])|(%s))"""
)
_PLAIN_KEY: Final = _PLAIN % f"(?>{_WORD.pattern})"
_PLAIN_VALUE: Final = _PLAIN % r"(?:true|false|null|undefined|NaN)(?![\w$.@#%|-])"
_PLAIN_ITEM: Final = re.compile(rf"{_BLANKS}{_PLAIN_VALUE}{_BLANKS}(?:,|(?=\]))")
"""An item of a list, and the comma behind it: read in one step, where most take five."""
_PLAIN_ENTRY: Final = re.compile(
    rf"{_BLANKS}{_PLAIN_KEY}{_BLANKS}:{_BLANKS}{_PLAIN_VALUE}{_BLANKS}(?:,|(?=\}}))"
)
"""The same of an entry of an object."""
_STRING_PART: Final = {quote: re.compile(rf"[^{quote}\\]*") for quote in ('"', "'")}
_ESCAPES: Final = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "t": "\t", "n": "\n", "f": "\f",
    "F": "\f", "r": "\r", "v": "\v", "0": "\0", "1": "\x01", "2": "\x02", "3": "\x03",
    "4": "\x04", "5": "\x05", "6": "\x06", "7": "\x07",
}  # fmt: skip
_WORDS: Final = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_SETS: Final = ("Set", "TreeSet")
UNFOLDED_MAX: Final = 64 * 1024
"""Values of a document whose references are filled in, or one a character where it is longer."""
OBJECT_KEYS_ANYWAY: Final = 64
OBJECT_KEY_SIZE_MIN: Final = 32
"""Characters of a longer document for each object in it that is a key. One takes 8 us; a queue has
45 characters."""
OBJECTS_MAX: Final = 1024
"""Objects and lists, some 4 us each, of a body that is read on a loop."""
REFERENCES_MAX: Final = 256
"""References of such a body, some 10 us each."""


class _Reference:
    """A value to be filled in when everything else is there."""

    __slots__ = ("at", "path")

    def __init__(self, path: str, at: int) -> None:
        self.path = path
        self.at = at


class LenientParser:
    """Reads one document; see `json_reader` for what it takes.

    Args:
        text: the document.
        name: what errors call it.
        is_body: it was sent by a peer, so a short one has no more than OBJECTS_MAX objects and
            lists, and REFERENCES_MAX references; a long one is refused, or read beside the loop.
    """

    def __init__(self, text: str, name: str, *, is_body: bool = False) -> None:
        self.text = text.removeprefix("\ufeff")
        self.name = name
        self.at = 0
        is_limited = is_body and len(text) <= LENIENT_SIZE_MAX
        self._objects_left = OBJECTS_MAX if is_limited else len(text)
        self._references_left = REFERENCES_MAX if is_limited else len(text)
        self.has_references = False
        self._object_keys = 0

    def parse(self) -> Any:
        """The document's value.

        Raises:
            ConfigFormatError: with line and column.
        """
        self._skip_space()
        if self.at == len(self.text):
            raise ConfigFormatError(f"{self.name}: empty")
        value = self._value(0)
        self._skip_space()
        if self.at != len(self.text):
            self._fail("text behind the end of the document")
        if self.has_references:
            value = self._resolve(value, value, [])
            self._check_unfolded(value)
        return value

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        found = repr(self.text[at : at + 12]) if at < len(self.text) else "the end"
        raise ConfigFormatError(f"{self.name}: line {line}, column {column}: {what}, found {found}")

    def _skip_space(self) -> str:
        match = _SPACE.match(self.text, self.at)
        assert match is not None  # it matches nothing too
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def _skip_commas(self) -> None:
        match = _COMMAS.match(self.text, self.at)
        assert match is not None  # there is one
        self.at = match.end()

    def _value(self, depth: int) -> Any:
        char = self._skip_space()
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._list(depth)
        if char in ('"', "'"):
            return self._string(char)
        if (number := _NUMBER.match(self.text, self.at)) is not None:
            self.at = number.end()
            return self._number(number)
        if (word := _WORD.match(self.text, self.at)) is not None:
            if word[0] in _WORDS:
                self.at = word.end()
                return _WORDS[word[0]]
            if word[0] in _SETS and self.text.startswith("[", word.end()):
                self.at = word.end()
                return self._list(depth)
        self._fail("a value is expected")

    def _number(self, match: re.Match[str]) -> int | float:
        digits, suffix = match.groups()
        if len(digits) > NUMBER_LENGTH_MAX:
            self._fail(f"a number of {len(digits)} characters", match.start())
        if suffix.upper() not in ("F", "D") and digits.lstrip("+-").isdecimal():
            return int(digits)
        return float(digits)

    def _list(self, depth: int) -> list[Any]:
        self._enter(depth)
        self.at += 1
        text = self.text
        items: list[Any] = []
        while True:
            while (plain := _PLAIN_ITEM.match(text, self.at)) is not None:
                self.at = plain.end()
                double, single, number, word = plain.groups()
                items.append(_plain_value(double, single, number, word))
            char = self._skip_space()
            if char == "]":
                self.at += 1
                return items
            if char == ",":
                self._skip_commas()
                continue
            items.append(self._value(depth + 1))
            if self._skip_space() not in (",", "]"):
                self._fail("',' or ']' is expected")

    def _object(self, depth: int) -> Any:
        self._enter(depth)
        start = self.at
        self.at += 1
        text = self.text
        entries: dict[Any, Any] = {}
        while True:
            while (plain := _PLAIN_ENTRY.match(text, self.at)) is not None:
                self.at = plain.end()
                double, single, number, word, *value = plain.groups()
                key: Any = double or single or word or ""
                entries[key if number is None else _plain_number(number)] = _plain_value(*value)
            char = self._skip_space()
            if char == "}":
                self.at += 1
                break
            if char == ",":
                self._skip_commas()
                continue
            key = self._key(char, depth)
            if self._skip_space() != ":":
                self._fail("':' is expected")
            self.at += 1
            entries[key] = self._value(depth + 1)
            if self._skip_space() not in (",", "}"):
                self._fail("',' or '}' is expected")
        if len(entries) == 1 and isinstance(path := entries.get("$ref"), str):
            self.has_references = True
            self._references_left -= 1
            if self._references_left < 0:
                self._fail(f"more than {REFERENCES_MAX} references", start)
            return _Reference(path, start)
        return entries

    def _key(self, char: str, depth: int) -> Any:
        if char in ('"', "'"):
            return self._string(char)
        if char == "{":
            start = self.at
            self._object_keys += 1
            allowed = max(len(self.text) // OBJECT_KEY_SIZE_MIN, OBJECT_KEYS_ANYWAY)
            if self._object_keys > allowed:
                self._fail(f"more than {allowed} objects that are keys", start)
            value = self._object(depth + 1)
            if isinstance(value, _Reference):
                self._fail("a reference cannot be a key", start)
            try:
                return _freeze(value)
            except _KeyInKeyError:
                self._fail("an object is a key inside of a key", start)
        if (number := _NUMBER.match(self.text, self.at)) is not None:
            self.at = number.end()
            return self._number(number)
        if (word := _WORD.match(self.text, self.at)) is not None:
            self.at = word.end()
            return word[0]
        self._fail("a key is expected")

    def _string(self, quote: str) -> str:
        start = self.at
        self.at += 1
        parts: list[str] = []
        while True:
            match = _STRING_PART[quote].match(self.text, self.at)
            assert match is not None  # it matches nothing too
            parts.append(match[0])
            self.at = match.end()
            char = self.text[self.at : self.at + 1]
            if not char:
                self._fail("a string does not end", start)
            self.at += 1
            if char == quote:
                break
            parts.append(self._escape())
        text = "".join(parts)
        if any("\ud800" <= part <= "\udfff" for part in parts if len(part) == 1):
            # Two \u escapes can be the halves of one character; a half alone has no UTF-8 form.
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text

    def _escape(self) -> str:
        char = self.text[self.at : self.at + 1]
        width = {"u": 4, "x": 2}.get(char, 0)
        if not width:
            if char not in _ESCAPES:
                self._fail("an escape is expected")
            self.at += 1
            return _ESCAPES[char]
        digits = self.text[self.at + 1 : self.at + 1 + width]
        if not re.fullmatch(rf"[0-9A-Fa-f]{{{width}}}", digits):
            self._fail(f"\\{char} must be followed by {width} hex digits")
        self.at += 1 + width
        return chr(int(digits, 16))

    def _enter(self, depth: int) -> None:
        """An object or a list begins."""
        self._objects_left -= 1
        if self._objects_left < 0:
            self._fail(f"more than {OBJECTS_MAX} objects and lists")
        if depth >= DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} objects and lists inside each other")

    def _resolve(self, value: Any, root: Any, parents: list[Any]) -> Any:
        """Put in what references stand for, where that does not go round in circles."""
        if isinstance(value, dict):
            items: Any = list(value.items())
        elif isinstance(value, list):
            items = list(enumerate(value))
        elif isinstance(value, _Reference):
            self._fail("a reference to nothing", value.at)
        else:
            return value
        parents.append(value)
        for key, inner in items:
            if isinstance(inner, _Reference):
                target = self._target(inner, root)
                if any(target is parent for parent in parents):
                    self._fail("a reference that contains itself", inner.at)
                value[key] = target
            else:
                self._resolve(inner, root, parents)
        parents.pop()
        return value

    def _check_unfolded(self, root: Any) -> None:
        """Refuse what references make large, deep or endless for who walks it.

        What is referred to is there once, so this costs a look at each object of the text.
        """
        most = max(len(self.text), UNFOLDED_MAX)
        known: dict[int, tuple[int, int]] = {}  # values and levels of what was looked at
        entered: set[int] = set()

        def measure(value: Any, depth: int) -> tuple[int, int]:
            if not isinstance(value, (dict, list)):
                return 1, 0
            found = known.get(id(value))
            if found is None:
                if id(value) in entered:
                    raise ConfigFormatError(f"{self.name}: references that go round in circles")
                entered.add(id(value))
                self._check_levels(depth)
                count, levels = 1, 0
                for each in value.values() if isinstance(value, dict) else value:
                    below, under = measure(each, depth + 1)
                    count += below
                    levels = max(levels, under)
                found = known[id(value)] = count, levels + 1
            self._check_levels(depth + found[1] - 1)
            if found[0] > most:
                raise ConfigFormatError(
                    f"{self.name}: {found[0]} values where references are filled in, "
                    f"{most} are allowed"
                )
            return found

        measure(root, 0)

    def _check_levels(self, depth: int) -> None:
        if depth >= DEPTH_MAX:
            raise ConfigFormatError(
                f"{self.name}: more than {DEPTH_MAX} objects and lists inside each other, "
                "where references are filled in"
            )

    def _target(self, reference: _Reference, root: Any) -> Any:
        path = reference.path
        if path in ("@", ".."):
            self._fail("a reference that contains itself", reference.at)
        if not path.startswith("$"):
            self._fail("a reference of no known form", reference.at)
        at = root
        for match in re.finditer(r"\.((?:\\.|[^.\[\]\\])+)|\[(\d{1,9})\]|(.)", path[1:], re.DOTALL):
            key, index, other = match.groups()
            if isinstance(at, _Reference) or other is not None:
                self._fail("a reference to a reference, or of no known form", reference.at)
            try:
                if key is not None:
                    key = re.sub(r"\\(.)", r"\1", key)
                    at = at[key if key in at else int(key)]
                else:
                    at = at[int(index)]
            except (KeyError, IndexError, TypeError, ValueError):
                self._fail(f"a reference to nothing, {path}", reference.at)
        if isinstance(at, _Reference):
            self._fail("a reference to a reference", reference.at)
        return at


def _plain_number(number: str) -> int | float:
    return float(number) if "." in number else int(number)


def _plain_value(
    double: str | None, single: str | None, number: str | None, word: str | None
) -> str | int | float | bool | None:
    """What the groups of a match mean."""
    if number is not None:
        return _plain_number(number)
    if word is not None:
        return _WORDS[word]
    return double or single or ""


class _KeyInKeyError(Exception):
    """The text of an object in the text of an object: as long as 2 to the power of its depth."""


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        if any(isinstance(key, ObjectKey) for key in value):
            raise _KeyInKeyError
        return ObjectKey((str(key), _freeze(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return tuple(_freeze(inner) for inner in value)
    return value
