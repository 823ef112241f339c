"""Bodies as people read them: unpacked, then as JSON, as text, or in hexadecimal.

A producer may have compressed a body itself, beside the compression that RocketMQ marks in a record
and the client undoes: gzip, zlib, LZ4 and Zstandard are known by their first bytes. At most
UNPACKED_MAX bytes of a body are unpacked, even where its header claims more.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import msgspec

from oberth.errors import FormatError
from oberth.formats.compression import Compression, decompress

UNPACKED_MAX: Final = 8 * 1024 * 1024
LAYERS_MAX: Final = 3
JSON_MAX: Final = 1024 * 1024
TEXT_SHOWN: Final = 64 * 1024
HEX_SHOWN: Final = 4 * 1024
SNIPPET_BYTES: Final = 2048
SNIPPET_SHOWN: Final = 160
ROW: Final = 16

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
        if body[:4] == b"\x04\x22\x4d\x18":
            return "LZ4", decompress(body, Compression.LZ4, size_max)
        if body[:4] == b"\x28\xb5\x2f\xfd":
            return "Zstandard", decompress(body, Compression.ZSTD, size_max)
        if len(body) > 2 and body[0] == 0x78 and int.from_bytes(body[:2]) % 31 == 0:
            return "zlib", decompress(body, Compression.ZLIB, size_max)
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
        problem = f"no JSON, or more than {JSON_MAX} bytes"
    if view != "hex":
        # A character may be cut in two at the end.
        head = plain[: 4 * TEXT_SHOWN]
        text = head.decode("utf-8", "ignore" if size > len(head) else "replace")
        if view == "text" or _is_text(plain[: 4 * TEXT_SHOWN], is_whole=size == len(head)):
            shown = text[:TEXT_SHOWN]
            is_cut = len(text) > len(shown) or size > len(head)
            return Decoded("text", shown, layers, size, is_cut, problem)
    return Decoded("hex", hex_dump(plain[:HEX_SHOWN]), layers, size, size > HEX_SHOWN, problem)


def snippet(body: bytes) -> str:
    """The beginning of a body in one line."""
    packed = body[:SNIPPET_BYTES] if body[:3] == b"\x1f\x8b\x08" else body
    plain = _head_of_gzip(packed) if packed is not body else unpack(body)[0][:SNIPPET_BYTES]
    if not _is_text(plain, is_whole=False):
        return f"{plain[:24].hex(' ')} … {len(body)} bytes" if len(plain) > 24 else plain.hex(" ")
    text = " ".join(plain.decode("utf-8", "ignore")[: 4 * SNIPPET_SHOWN].split())
    return text if len(text) <= SNIPPET_SHOWN else f"{text[:SNIPPET_SHOWN]}…"


def _head_of_gzip(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, SNIPPET_BYTES)
    except zlib.error:
        return head


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
