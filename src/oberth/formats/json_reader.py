r"""Reads JSON as fastjson does, which takes more than JSON.

    keys         bare integers, bare words, 'single' quotes, whole objects ({"a":1}:2)
    values       'single' quotes, 12L 12S 12B 1.5F 1.5D, NaN and undefined (null), Set[1,2]
    separators   any number of commas, a comma before the end
    comments     /* … */ and // … to the end of the line
    references   {"$ref":"$.a.b[0]"} as a value; those to something around it ("@", "..") would go
                 round in circles and are refused

Size, depth and the length of a number are limited. What cannot be read is a ConfigFormatError with
document, line and column. RocketMQ: RemotingSerializable.fromJson; fastjson 1.2.83 and fastjson 2.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import msgspec

from oberth.errors import ConfigFormatError

CONFIG_SIZE_MAX: Final = 256 << 20
"""Bytes of one document; consumerOffset.json with a million queues has 30 MiB."""

DEPTH_MAX: Final = 64
"""Objects and lists inside each other; Apache's deepest document has 7."""

NUMBER_LENGTH_MAX: Final = 400
"""Characters of one number; int() takes quadratic time."""


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object that is the key of another: its (name, value) pairs, in the order of the text."""

    __slots__ = ()

    def __getitem__(self, name: Any) -> Any:
        """The value under a name; a tuple's item under an index."""
        if isinstance(name, str):
            for key, value in self:
                if key == name:
                    return value
            raise KeyError(name)
        return super().__getitem__(name)

    def as_dict(self) -> dict[str, Any]:
        """The object as an ordinary one."""
        return dict(self)


def parse_config(data: bytes | str, *, name: str = "json") -> Any:
    """Read one document.

    Args:
        data: the text; bytes are UTF-8, what is not becomes U+FFFD as in Java.
        name: what errors call the document.

    Returns:
        dict, list, str, int, float, bool or None. Bare integer keys are int, object keys are
        ObjectKey, all other keys are str. Of two equal keys the last wins.

    Raises:
        ConfigFormatError: with line and column; or the document is empty, too large or too deep.
    """
    if len(data) > CONFIG_SIZE_MAX:
        raise ConfigFormatError(f"{name}: {len(data)} bytes, at most {CONFIG_SIZE_MAX} are allowed")
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    if b"$ref" not in raw:
        fast = _parse_fast(raw)
        if fast is not _NOT_PLAIN:
            return fast
    return _Parser(raw.decode("utf-8", "replace"), name).parse()


_NOT_PLAIN: Final = object()
_BARE_KEY_MARK: Final = "\ue000"
_BARE_KEY_MARK_UTF_8: Final = _BARE_KEY_MARK.encode()
_STRING_OR_BARE_KEY: Final = re.compile(rb'"[^"]*"|([{,]\s*)(-?[0-9]{1,19})(?=\s*:)')


def _parse_fast(raw: bytes) -> Any:
    """What msgspec makes of it: ten times faster, for JSON proper and for bare integer keys."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    else:
        return value if _depth_within(raw, value) else _NOT_PLAIN
    # Without backslashes a string ends at the next quote, so one pass can tell keys from text.
    if b"\\" in raw or _BARE_KEY_MARK_UTF_8 in raw:
        return _NOT_PLAIN
    quoted = _STRING_OR_BARE_KEY.sub(_quote_bare_key, raw)
    try:
        value = msgspec.json.decode(quoted)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _NOT_PLAIN
    return _unquote_bare_keys(value) if _depth_within(raw, value) else _NOT_PLAIN


def _quote_bare_key(match: re.Match[bytes]) -> bytes:
    if match[2] is None:
        return match[0]
    return match[1] + b'"' + _BARE_KEY_MARK_UTF_8 + match[2] + b'"'


def _unquote_bare_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            int(key[1:]) if key.startswith(_BARE_KEY_MARK) else key: (
                _unquote_bare_keys(inner) if inner.__class__ in (dict, list) else inner
            )
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_unquote_bare_keys(inner) for inner in value]
    return value


def _depth_within(raw: bytes, value: Any) -> bool:
    if raw.count(b"{") + raw.count(b"[") <= DEPTH_MAX:
        return True
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if outer.__class__ is dict else outer)
            if inner.__class__ in (dict, list)
        ]
        if not level:
            return True
    return False


_SPACE: Final = re.compile(r"(?:[\s\x00-\x1f]++|//[^\n]*+|/\*(?s:.*?)\*/)*+")
_NUMBER: Final = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)([LSBFDlsbfd]?)(?![\w$.])")
_WORD: Final = re.compile(r"[A-Za-z_$\u0080-\uffff][\w$.@#%|-]*")
_STRING_PART: Final = {quote: re.compile(rf"[^{quote}\\]*") for quote in ('"', "'")}
_ESCAPES: Final = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "t": "\t", "n": "\n", "f": "\f",
    "F": "\f", "r": "\r", "v": "\v", "0": "\0", "1": "\x01", "2": "\x02", "3": "\x03",
    "4": "\x04", "5": "\x05", "6": "\x06", "7": "\x07",
}  # fmt: skip
_WORDS: Final = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_SETS: Final = ("Set", "TreeSet")


class _Reference:
    """A value to be filled in when everything else is there."""

    __slots__ = ("at", "path")

    def __init__(self, path: str, at: int) -> None:
        self.path = path
        self.at = at


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self.text = text.removeprefix("\ufeff")
        self.name = name
        self.at = 0
        self.has_references = False

    def parse(self) -> Any:
        self._skip_space()
        if self.at == len(self.text):
            raise ConfigFormatError(f"{self.name}: empty")
        value = self._value(0)
        self._skip_space()
        if self.at != len(self.text):
            self._fail("text behind the end of the document")
        if self.has_references:
            value = self._resolve(value, value, [])
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
        self._check_depth(depth)
        self.at += 1
        items: list[Any] = []
        while True:
            char = self._skip_space()
            if char == "]":
                self.at += 1
                return items
            if char == ",":
                self.at += 1
                continue
            items.append(self._value(depth + 1))
            if self._skip_space() not in (",", "]"):
                self._fail("',' or ']' is expected")

    def _object(self, depth: int) -> Any:
        self._check_depth(depth)
        start = self.at
        self.at += 1
        entries: dict[Any, Any] = {}
        while True:
            char = self._skip_space()
            if char == "}":
                self.at += 1
                break
            if char == ",":
                self.at += 1
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
            return _Reference(path, start)
        return entries

    def _key(self, char: str, depth: int) -> Any:
        if char in ('"', "'"):
            return self._string(char)
        if char == "{":
            start = self.at
            value = self._object(depth + 1)
            if isinstance(value, _Reference):
                self._fail("a reference cannot be a key", start)
            return _freeze(value)
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

    def _check_depth(self, depth: int) -> None:
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


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return ObjectKey((str(key), _freeze(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return tuple(_freeze(inner) for inner in value)
    return value
