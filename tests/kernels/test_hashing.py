"""CRC-32 equals zlib's and Java hashes equal the format's, for any length and any bytes."""

from __future__ import annotations

import random
from zlib import crc32 as zlib_crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.kernels import runtime
from oberth.kernels.hashing import crc32, java_hash, reference_crc32, reference_java_hash


@pytest.mark.parametrize("start", [0, 1, 7])
def test_crc_of_every_length(start: int) -> None:
    """Every mix of 64-byte, 16-byte, 8-byte, 4-byte and single steps."""
    noise = random.Random(start).randbytes(1100)
    view = memoryview(noise)[start:]
    assert runtime.native("crc") is not None
    for size in [*range(300), 511, 512, 513, 1024, 1090]:
        assert crc32(view[:size]) == zlib_crc32(view[:size]) == reference_crc32(view[:size]), size


@given(st.binary(max_size=2000))
def test_crc_equals_zlib(data: bytes) -> None:
    assert crc32(data) == zlib_crc32(data)


@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_crc_goes_on_from_what_comes_before(data: bytes, cut: int) -> None:
    assert crc32(data[cut:], crc32(data[:cut])) == zlib_crc32(data)
    assert reference_crc32(data[cut:], reference_crc32(data[:cut])) == zlib_crc32(data)


@given(
    st.one_of(
        st.binary(max_size=30),
        st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.lists(st.integers(0xC0, 0xFF).map(lambda n: bytes([n, 0x80]))).map(b"".join),
    ),
    st.integers(0, 2**32 - 1),
)
def test_java_hash_equals_reference(data: bytes, seed: int) -> None:
    assert runtime.native("java_hash") is not None
    assert java_hash(data, seed) == reference_java_hash(data, seed)


def test_known_hashes() -> None:
    assert java_hash(b"TagA") == 2598919
    assert java_hash(b"TopicTest#k1") == 2746024
    assert java_hash(b"polygenelubricants") == -(2**31)


def test_every_two_and_three_byte_sequence() -> None:
    """All that can follow each lead byte, whole and broken, one chain of hashes each."""
    followers = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)
    for lead in range(256):
        for second in followers:
            for third in followers:
                data = bytes((lead, second, third, 0x80, 0x41))
                assert java_hash(data) == reference_java_hash(data), data.hex()
