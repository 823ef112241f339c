"""Bodies as people read them: unpacked, then as JSON, as text, or in hexadecimal.

A producer may have compressed a body itself, beside the compression that RocketMQ marks in a record
and the client undoes: gzip, zlib, LZ4 and Zstandard are known by their first bytes. At most
UNPACKED_MAX bytes of a body are unpacked, even where its header claims more.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from oberth.errors import FormatError
from oberth.formats.compression import (
    Compression,
    compression_of,
    decompress,
    decompress_head,
)

if TYPE_CHECKING:
    from oberth.client.messages import MessageExt

UNPACKED_MAX: Final = 8 * 1024 * 1024
LAYERS_MAX: Final = 3
JSON_MAX: Final = 1024 * 1024
TEXT_SHOWN: Final = 64 * 1024
HEX_SHOWN: Final = 4 * 1024
SNIPPET_BYTES: Final = 2048
SNIPPET_SHOWN: Final = 160
ROW: Final = 16

PACKED_BYTES: Final = 64 * 1024
"""Of a body that is shown in one line, as much is unpacked as its layers may need."""

_LAYERS: Final = {
    Compression.LZ4: "LZ4",
    Compression.ZSTD: "Zstandard",
    Compression.ZLIB: "zlib",
}

VIEWS: Final = ("auto", "text", "json", "hex")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A body.

    Attributes:
        kind: ``json``, ``text``, ``hex`` or ``empty``.
        text: the text on the page.
        layers: the compressions that were undone, the outermost first.
        size: bytes after that.
        is_cut: whether the text is only its beginning.
        problem: why a wanted view could not be had, or "".
    """

    kind: str
    text: str
    layers: tuple[str, ...] = ()
    size: int = 0
    is_cut: bool = False
    problem: str = ""


def unpack(body: bytes, size_max: int = UNPACKED_MAX) -> tuple[bytes, tuple[str, ...]]:
    """A body without the compressions that its producer put around it, and their names."""
    layers: list[str] = []
    while len(layers) < LAYERS_MAX:
        found = _unpack_one(body, size_max)
        if found is None:
            break
        body = found[1]
        layers.append(found[0])
    return body, tuple(layers)


def _unpack_one(body: bytes, size_max: int) -> tuple[str, bytes] | None:
    try:
        if body[:3] == b"\x1f\x8b\x08":
            stream = zlib.decompressobj(wbits=31)
            plain = stream.decompress(body, size_max)
            return ("gzip", plain) if stream.eof or stream.unconsumed_tail else None
        kind = _kind_of(body)
        if kind is not None:
            return _LAYERS[kind], decompress(body, kind, size_max)
    except (zlib.error, FormatError):
        return None  # it only began like one
    return None


def decode(body: bytes, view: str = "auto") -> Decoded:
    """A body in a view of VIEWS."""
    plain, layers = unpack(body)
    if not plain:
        return Decoded("empty", "", layers)
    size = len(plain)
    problem = ""
    if view in ("auto", "json") and size <= JSON_MAX and (view == "json" or plain[:1] in b"{[ \n"):
        text = _json(plain)
        if text is not None:
            return Decoded("json", text[:TEXT_SHOWN], layers, size, len(text) > TEXT_SHOWN)
    if view == "json":
        problem = f"not JSON, or more than {JSON_MAX} bytes"
    if view != "hex":
        # A character may be cut in two at the end.
        head = plain[: 4 * TEXT_SHOWN]
        text = head.decode("utf-8", "ignore" if size > len(head) else "replace")
        if view == "text" or _is_text(plain[: 4 * TEXT_SHOWN], is_whole=size == len(head)):
            shown = text[:TEXT_SHOWN]
            is_cut = len(text) > len(shown) or size > len(head)
            return Decoded("text", shown, layers, size, is_cut, problem)
    return Decoded("hex", hex_dump(plain[:HEX_SHOWN]), layers, size, size > HEX_SHOWN, problem)


def head_of(message: MessageExt, size_max: int) -> bytes:
    """The first bytes of a message's body, whatever the rest of it becomes when it is unpacked."""
    stored = message.stored_body
    try:
        compression = compression_of(message.sys_flag)
        if compression is not None:
            return decompress_head(stored, compression, size_max)
    except FormatError:
        pass  # shown as it is stored, as everywhere
    return stored[:size_max]


def message_snippet(message: MessageExt) -> str:
    """The beginning of a message's body in one line; it takes no longer for what becomes large."""
    return snippet(head_of(message, PACKED_BYTES), len(message.stored_body))


def snippet(body: bytes, size: int | None = None) -> str:
    """The beginning of a body in one line; ``size``: its bytes, if it is more than is given."""
    plain = body
    for _ in range(LAYERS_MAX):
        found = _head_of_packed(plain)
        if found is None:
            break
        plain = found
    plain = plain[:SNIPPET_BYTES]
    if not _is_text(plain, is_whole=False):
        length = len(body) if size is None else size
        return f"{plain[:24].hex(' ')} … {length} bytes" if len(plain) > 24 else plain.hex(" ")
    text = " ".join(plain.decode("utf-8", "ignore")[: 4 * SNIPPET_SHOWN].split())
    return text if len(text) <= SNIPPET_SHOWN else f"{text[:SNIPPET_SHOWN]}…"


def _head_of_packed(body: bytes) -> bytes | None:
    """The beginning of what a producer compressed; None if it did not."""
    try:
        if body[:3] == b"\x1f\x8b\x08":
            return zlib.decompressobj(wbits=31).decompress(body, PACKED_BYTES) or None
        kind = _kind_of(body)
        return None if kind is None else decompress_head(body, kind, PACKED_BYTES) or None
    except (zlib.error, FormatError):
        return None  # it only began like one


def _kind_of(body: bytes) -> Compression | None:
    if body[:4] == b"\x04\x22\x4d\x18":
        return Compression.LZ4
    if body[:4] == b"\x28\xb5\x2f\xfd":
        return Compression.ZSTD
    if len(body) > 2 and body[0] == 0x78 and int.from_bytes(body[:2]) % 31 == 0:
        return Compression.ZLIB
    return None


def _json(plain: bytes) -> str | None:
    try:
        msgspec.json.decode(plain)
        return msgspec.json.format(plain, indent=2).decode("utf-8", "replace")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def _is_text(head: bytes, *, is_whole: bool) -> bool:
    """Whether bytes are UTF-8 with hardly any control characters; the end may be cut."""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(head) - 4:
            return False
        text = head[: error.start].decode()
    odd = sum(char < " " and char not in "\t\r\n\x1b" for char in text[:4096])
    return odd * 20 <= len(text[:4096])


def hex_dump(data: bytes) -> str:
    """Offsets, bytes and what of them is ASCII, 16 in a line."""
    lines = []
    for start in range(0, len(data), ROW):
        piece = data[start : start + ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:08x}  {piece.hex(' '):<47}  {letters}")
    return "\n".join(lines)
