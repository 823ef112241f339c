"""The answers of the calls that come most often, as bytes.

They equal what the protobuf package makes of the same values, for a fifth of the time. A field is
its number and wire type (a byte, as all numbers here are below 16), then a varint, or a size and so
many bytes. What has its default value is left out.

    Status                 1 code, 2 message
    SendMessageResponse    1 status, 2 entry: 1 status, 2 message_id, 3 transaction_id, 4 offset,
                           5 recall_handle
    AckMessageResponse     1 status, 2 entry: 1 message_id, 2 receipt_handle, 3 status
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from oberth.proxy.codes import Code

_BYTES: Final = 2
_TEXT_CACHED_MAX: Final = 64
"""Characters of a status's text up to which it is kept."""


def varint(value: int) -> bytes:
    """A number that is not negative, by seven bits, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _piece(number: int, content: bytes) -> bytes:
    size = len(content)
    head = bytes((number << 3 | _BYTES, size)) if size < 0x80 else b""
    return (head or bytes((number << 3 | _BYTES,)) + varint(size)) + content


def _text(number: int, text: str) -> bytes:
    return _piece(number, text.encode("utf-8", "replace")) if text else b""


def _status(code: Code, text: str) -> bytes:
    return b"\x08" + varint(int(code)) + _text(2, text or code.name)


_short_status = lru_cache(256)(_status)


def status(code: Code, text: str = "") -> bytes:
    """A Status; without a text it names its code."""
    return (_short_status if len(text) <= _TEXT_CACHED_MAX else _status)(code, text)


def only_status(code: Code, text: str = "") -> bytes:
    """A response of which the status is the first field and says all."""
    return _piece(1, status(code, text))


_SUCCESS: Final = only_status(Code.OK)


def send_response(
    code: Code, text: str, message_id: str, transaction_id: str, offset: int, recall_handle: str
) -> bytes:
    """A SendMessageResponse with one entry, whose status is that of the whole.

    A text is "" where there is none; the offset, in the queue, is not negative.
    """
    first = _SUCCESS if code is Code.OK and text == "OK" else only_status(code, text)
    entry = (
        first
        + _text(2, message_id)
        + _text(3, transaction_id)
        + (b"\x20" + varint(offset) if offset else b"")
        + _text(5, recall_handle)
    )
    return first + _piece(2, entry)


def ack_response(code: Code, text: str, message_id: str, receipt_handle: str) -> bytes:
    """An AckMessageResponse with one entry, whose status is that of the whole."""
    state = status(code, text)
    entry = _text(1, message_id) + _text(2, receipt_handle) + _piece(3, state)
    return _piece(1, state) + _piece(2, entry)
