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
from oberth.formats.json_values import DEPTH_MAX, LENIENT_SIZE_MAX

CONFIG_SIZE_MAX: Final = 256 << 20
"""Bytes of one document; consumerOffset.json with a million queues has 30 MiB."""

BARE_KEYS_FACTOR: Final = 8
"""So many times as long may be what differs from JSON proper by bare integer keys alone."""


def parse_config(
    data: bytes | str,
    *,
    name: str = "json",
    lenient_size_max: int = CONFIG_SIZE_MAX,
    bare_keys_max: int | None = None,
    is_body: bool = False,
) -> Any:
    """Read one document.

    Args:
        data: the text; bytes are UTF-8, what is not becomes U+FFFD as in Java.
        name: what errors call the document.
        lenient_size_max: bytes of a document that is no JSON proper, which takes up to 1.2 us a
            byte; BARE_KEYS_FACTOR times as many where it has bare integer keys and nothing else.
        bare_keys_max: where it is less than that: bytes of a document that is searched for bare
            keys, in one call of C that no thread interrupts, at up to 60 ns a byte.
        is_body: a peer sent it; see `LenientParser`.

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
        searched_max = BARE_KEYS_FACTOR * lenient_size_max
        if bare_keys_max is not None:
            searched_max = min(searched_max, bare_keys_max)
        fast = _parse_fast(raw, bare_keys=len(raw) <= searched_max)
        if fast is not _NOT_PLAIN:
            return fast
    if len(raw) > lenient_size_max:
        raise ConfigFormatError(
            f"{name}: {len(raw)} bytes in a dialect of JSON, at most {lenient_size_max} are allowed"
        )
    from oberth.formats.json_lenient import (  # noqa: PLC0415 - for what is no JSON
        LenientParser,  # seldom needed, and its patterns cost 5 ms
    )

    return LenientParser(raw.decode("utf-8", "replace"), name, is_body=is_body).parse()


PIECE_SIZE: Final = 64 * 1024
"""Bytes that are decoded in one call of C."""

_BEHIND_AN_ENTRY: Final = re.compile(rb"\}\s*,\s*(?=\")")


def parse_tables(data: bytes, *, name: str) -> Any:
    """`parse_config` of an object of large tables of objects, for a thread beside a loop.

    C that decodes megabytes in one call holds the GIL until it is done, so the text is cut behind
    entries of the second level. A cut that was none, in a name with brackets, leaves two pieces
    that do not parse; then all is read at once.

    Raises:
        ConfigFormatError: see `parse_config`.
    """
    whole: dict[Any, Any] = {}
    head, start = b"", 0
    while start < len(data) and b"$ref" not in data:
        end = _end_of_piece(data, start, len(head) and 2)
        is_last = end == len(data)
        piece = data[start:end]
        found = _parse_fast(head + (piece if is_last else piece.rstrip()[:-1] + b"}}"))
        if not isinstance(found, dict) or not found:
            break
        if head:
            table = next(iter(found))
            if not isinstance(found[table], dict) or not isinstance(whole[table], dict):
                break
            whole[table].update(found.pop(table))
            whole |= found
            table = next(reversed(found), table)
        else:
            whole = found
            table = next(reversed(found))
        if is_last:
            return whole
        head = b"{" + msgspec.json.encode(table) + b":{"
        start = end
    return parse_config(data, name=name)


def _end_of_piece(data: bytes, start: int, depth: int) -> int:
    """Where a piece ends that starts at ``start``, inside of so many objects."""
    end = start
    for cut in _BEHIND_AN_ENTRY.finditer(data, start + PIECE_SIZE):
        at = cut.end()
        depth += data.count(b"{", end, at) - data.count(b"}", end, at)
        end = at
        if depth == 2:
            return at
    return len(data)


CONTAINERS_MAX: Final = 12 * 1024
"""Objects and lists of a request's body; one of 500 groups with three topics each has 6 000."""
VALUES_MAX: Final = 64 * 1024
"""Commas of a request's body."""


def check_counts(data: bytes | memoryview, name: str, factor: int = 1) -> None:
    """Compare what a body holds with what is decoded on an event loop in some milliseconds.

    Raises:
        ConfigFormatError: more objects and lists than ``factor`` times CONTAINERS_MAX, or more
            values than as many times VALUES_MAX.
    """
    raw = bytes(data)
    for what, count, allowed in (
        ("objects and lists", raw.count(b"{") + raw.count(b"["), factor * CONTAINERS_MAX),
        ("values", raw.count(b","), factor * VALUES_MAX),
    ):
        if count > allowed:
            raise ConfigFormatError(f"{name}: {count} {what}, at most {allowed} are allowed")


def parse_request(data: bytes, *, name: str) -> Any:
    """`parse_config` of a request's body, which is read while others wait.

    Raises:
        ConfigFormatError: see `parse_config`, `check_counts`; or it is long and no JSON proper.
    """
    check_counts(data, name)
    return parse_config(data, name=name, lenient_size_max=LENIENT_SIZE_MAX, is_body=True)


def parse_proper(data: bytes, *, name: str) -> Any:
    """What `parse_request` makes of a body in JSON proper, in which nothing stands for another.

    For who has to know what a handler will read. References in any spelling are left to the other
    reader, which is asked about what is as deep as allowed, too.

    Raises:
        ConfigFormatError: it is no such body.
    """
    check_counts(data, name)
    try:
        if b"$ref" not in data and _depth_within(data, value := msgspec.json.decode(data)):
            return value
    except (ValueError, RecursionError):
        pass
    raise ConfigFormatError(f"{name}: no JSON proper, or as deep as allowed, or with references")


_NOT_PLAIN: Final = object()
_BARE_KEY_MARK: Final = "\ue000"
_BARE_KEY_MARK_UTF_8: Final = _BARE_KEY_MARK.encode()


@functools.cache
def _string_or_bare_key() -> re.Pattern[bytes]:
    return re.compile(rb'"[^"]*"|([{,]\s*)(-?[0-9]{1,19})(?=\s*:)')


def _parse_fast(raw: bytes, *, bare_keys: bool = True) -> Any:
    """What msgspec makes of it: ten times faster, for JSON proper and for bare integer keys."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    else:
        return value if _depth_within(raw, value) else _NOT_PLAIN
    # Without backslashes a string ends at the next quote, so one pass can tell keys from text.
    if not bare_keys or b"\\" in raw or _BARE_KEY_MARK_UTF_8 in raw:
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
    level = [value]  # those that are not empty; the other reader looks closer
    for _ in range(DEPTH_MAX - 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if outer.__class__ is dict else outer)
            if inner.__class__ in (dict, list) and inner
        ]
        if not level:
            return True
    return False
