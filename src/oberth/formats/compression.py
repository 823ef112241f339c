"""Compressed bodies: which algorithm sysFlag names, and both directions with a limit on the result.

    sysFlag & 0x0700  algorithm
    0x000             zlib (RFC 1950), before clients said which
    0x100             LZ4 frame
    0x200             Zstandard frame
    0x300             zlib

Only with bit 0x0001 set is a body compressed at all. The broker stores and hands out what it got;
clients compress and decompress. A few bytes can claim to become gigabytes, so every call has a
limit.

RocketMQ: CompressorFactory, ZlibCompressor, Lz4Compressor, ZstdCompressor.
"""

from __future__ import annotations

import enum
import zlib
from typing import Final

from oberth.errors import FormatError
from oberth.formats.sys_flag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

BODY_SIZE_MAX: Final = 64 << 20
"""Bytes that a body may have after decompression; sixteen times RocketMQ's largest message."""

ZSTD_WINDOW_MAX: Final = 8 << 20
"""Bytes that a Zstandard frame may have its reader keep where the beginning is all that is read."""

DEFAULT_LEVEL: Final = 5


class Compression(enum.IntEnum):
    """The compression bits of sysFlag."""

    ZLIB_LEGACY = 0
    LZ4 = COMPRESSION_LZ4
    ZSTD = COMPRESSION_ZSTD
    ZLIB = COMPRESSION_ZLIB


def compression_of(sys_flag: int) -> Compression | None:
    """What a body with this sysFlag is compressed with, None if it is not.

    Raises:
        FormatError: the bits name no algorithm.
    """
    if not sys_flag & COMPRESSED:
        return None
    bits = sys_flag & COMPRESSION_MASK
    try:
        return Compression(bits)
    except ValueError:
        raise FormatError(f"sysFlag 0x{sys_flag:x}: compression 0x{bits:x} is unknown") from None


def with_compression(sys_flag: int, compression: Compression) -> int:
    """The sysFlag of a body compressed so."""
    return sys_flag & ~COMPRESSION_MASK | compression | COMPRESSED


def compress(body: bytes, compression: Compression, level: int = DEFAULT_LEVEL) -> bytes:
    """The compressed body. The level is zlib's 0…9; it is passed on to the others."""
    if compression is Compression.LZ4:
        import lz4.frame  # noqa: PLC0415 - few bodies are compressed so

        # Java's reader refuses blocks that refer to the one before (which is lz4.frame's default).
        packed: bytes = lz4.frame.compress(body, store_size=False, block_linked=False)
        return packed
    if compression is Compression.ZSTD:
        import zstandard  # noqa: PLC0415 - few bodies are compressed so

        return zstandard.ZstdCompressor(level=level).compress(body)
    return zlib.compress(body, level)


def decompress(body: bytes, compression: Compression, size_max: int = BODY_SIZE_MAX) -> bytes:
    """The original body.

    Raises:
        FormatError: damaged data, or a result longer than size_max.
    """
    try:
        if compression is Compression.LZ4:
            plain = _lz4(body, size_max)
        elif compression is Compression.ZSTD:
            plain = _zstd(body, size_max)
        else:
            plain = _zlib(body, size_max)
    except (zlib.error, RuntimeError, EOFError, ValueError, MemoryError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{compression.name} body of {len(body)} bytes: {error}") from None
    if len(plain) > size_max:
        raise FormatError(
            f"{compression.name} body of {len(body)} bytes becomes more than {size_max}"
        )
    return plain


def decompress_head(body: bytes, compression: Compression, size_max: int) -> bytes:
    """The first bytes of the original body, at most ``size_max``, whatever the rest becomes.

    Of a body that is cut off or damaged further on, those that are whole.

    Raises:
        FormatError: there are none.
    """
    try:
        if compression is Compression.LZ4:
            import lz4.frame  # noqa: PLC0415 - few bodies are compressed so

            head: bytes = lz4.frame.LZ4FrameDecompressor().decompress(body, size_max)
            return head
        if compression is Compression.ZSTD:
            import zstandard  # noqa: PLC0415 - few bodies are compressed so

            try:
                decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX)
                with decompressor.stream_reader(body) as reader:
                    return bytes(reader.read(size_max))
            except zstandard.ZstdError as error:
                raise FormatError(f"ZSTD body of {len(body)} bytes: {error}") from None
        return zlib.decompressobj().decompress(body, size_max)
    except (zlib.error, RuntimeError, EOFError, ValueError, MemoryError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{compression.name} body of {len(body)} bytes: {error}") from None


def decompress_body(body: bytes, sys_flag: int, size_max: int = BODY_SIZE_MAX) -> bytes:
    """The original body of a record with this sysFlag; the body itself if it is not compressed.

    Raises:
        FormatError: an unknown algorithm, damaged data, or a result longer than size_max.
    """
    compression = compression_of(sys_flag)
    if compression is None or not body:
        return body
    return decompress(body, compression, size_max)


def _zlib(body: bytes, size_max: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(body, size_max + 1)
    if not stream.eof and len(plain) <= size_max:
        raise FormatError(f"ZLIB body of {len(body)} bytes is cut off")
    return plain


def _lz4(body: bytes, size_max: int) -> bytes:
    import lz4.frame  # noqa: PLC0415 - few bodies are compressed so

    stream = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = stream.decompress(body, size_max + 1)
    if not stream.eof and len(plain) <= size_max:
        raise FormatError(f"LZ4 body of {len(body)} bytes is cut off")
    return plain


def _zstd(body: bytes, size_max: int) -> bytes:
    import zstandard  # noqa: PLC0415 - few bodies are compressed so

    try:
        size = zstandard.get_frame_parameters(body).content_size
        if size != zstandard.CONTENTSIZE_UNKNOWN and size > size_max:
            raise FormatError(f"ZSTD body of {len(body)} bytes becomes {size}, at most {size_max}")
        # In one call: the stream reader takes the end of its input for the end of the frame, so it
        # would not notice a body that was cut off.
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=size_max)
    except zstandard.ZstdError as error:
        raise FormatError(f"ZSTD body of {len(body)} bytes: {error}") from None
