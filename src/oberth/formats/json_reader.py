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

import functools
import re
from typing import Any, Final

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
    from oberth.formats.json_lenient import (
        LenientParser,  # seldom needed, and its patterns cost 5 ms
    )

    return LenientParser(raw.decode("utf-8", "replace"), name).parse()


_NOT_PLAIN: Final = object()
_BARE_KEY_MARK: Final = "\ue000"
_BARE_KEY_MARK_UTF_8: Final = _BARE_KEY_MARK.encode()


@functools.cache
def _string_or_bare_key() -> re.Pattern[bytes]:
    return re.compile(rb'"[^"]*"|([{,]\s*)(-?[0-9]{1,19})(?=\s*:)')


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
    quoted = _string_or_bare_key().sub(_quote_bare_key, raw)
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
