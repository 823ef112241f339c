"""Compression: golden bodies of all kinds, both directions, damage, and bodies that explode."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.compression import (
    Compression,
    compress,
    compression_of,
    decompress,
    decompress_body,
    with_compression,
)
from oberth.formats.message import decode_record

ALL = list(Compression)


@pytest.mark.parametrize("golden_name", ["compressed-4.9.7", "compressed-5.5.0"])
def test_golden_bodies(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    log = store.commit_log()
    seen = dict.fromkeys([*ALL, None], 0)
    for message in store.facts["messages"]:
        record = decode_record(*log.locate(message["commitLogOffset"]))
        body = decompress_body(record.body, record.sys_flag)
        if message["bodyLength"] is not None:
            assert hashlib.sha256(body).hexdigest() == message["bodySha256"]
        kind = compression_of(record.sys_flag)
        if kind in (Compression.ZLIB, Compression.ZLIB_LEGACY):
            assert compress(body, kind) == record.body
        seen[kind] += 1
    assert min(seen.values()) >= 8


@pytest.mark.parametrize("kind", ALL)
@given(body=st.binary(max_size=300), level=st.integers(1, 9))
def test_round_trip(kind: Compression, body: bytes, level: int) -> None:
    assert decompress(compress(body, kind, level), kind) == body


@pytest.mark.parametrize("kind", ALL)
def test_large_bodies(kind: Compression) -> None:
    body = b"0123456789abcdef" * (5 << 16)
    assert decompress(compress(body, kind), kind) == body


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    # Java's reader throws "Dependent block stream is unsupported" unless this bit is set.
    packed = compress(b"x" * (9 << 20), Compression.LZ4)
    assert packed[4] & 0x20
    assert not lz4.frame.get_frame_info(packed)["block_linked"]


@pytest.mark.parametrize("kind", ALL)
def test_a_body_that_explodes(kind: Compression) -> None:
    packed = compress(bytes(1 << 20), kind)
    assert len(packed) < 1 << 14
    assert len(decompress(packed, kind, size_max=1 << 20)) == 1 << 20
    with pytest.raises(FormatError):
        decompress(packed, kind, size_max=(1 << 20) - 1)
    with pytest.raises(FormatError):
        decompress(packed, kind, size_max=10)


def test_a_zstd_body_of_unknown_size_that_explodes() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(bytes(1 << 20)) + stream.flush()
    assert zstandard.get_frame_parameters(packed).content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert decompress(packed, Compression.ZSTD, size_max=1 << 20) == bytes(1 << 20)
    with pytest.raises(FormatError):
        decompress(packed, Compression.ZSTD, size_max=1000)


@pytest.mark.parametrize("kind", ALL)
def test_cut_bodies(kind: Compression) -> None:
    packed = compress(bytes(range(256)) * 4, kind)
    for end in range(1, len(packed)):
        with pytest.raises(FormatError):
            decompress(packed[:end], kind)


@pytest.mark.parametrize("kind", ALL)
@given(data=st.binary(max_size=100))
def test_body_or_error(kind: Compression, data: bytes) -> None:
    try:
        decompress(data, kind, size_max=1 << 16)
    except FormatError:
        return


@pytest.mark.parametrize("kind", ALL)
@given(data=st.data())
def test_damaged_body_or_error(kind: Compression, data: st.DataObject) -> None:
    packed = bytearray(compress(bytes(range(200)), kind))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress(bytes(packed), kind, size_max=1 << 16)) <= 1 << 16
    except FormatError:
        return


def test_flags() -> None:
    assert compression_of(0) is compression_of(0x300) is None
    assert compression_of(1) is Compression.ZLIB_LEGACY
    assert compression_of(0x101) is Compression.LZ4
    assert with_compression(0x214, Compression.LZ4) == 0x115
    for sys_flag in (0x401, 0x701):
        with pytest.raises(FormatError, match="is unknown"):
            compression_of(sys_flag)


def test_what_is_not_compressed_stays() -> None:
    assert decompress_body(b"plain", 0x300) == b"plain"
    assert decompress_body(b"", 1) == b""
    assert decompress_body(zlib.compress(b"x"), 1) == b"x"
