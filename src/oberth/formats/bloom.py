"""Bloom filters of consumers, as consumerFilter.json and ConsumeQueueExt's bitmaps hold them.

A filter of m bits for n consumers with an error rate e gives each consumer k positions:

    k = ceil(log_0.5(e));  m = ceil(n * log2(1/e) * log2(2.71828…)), rounded up to whole bytes
    hash = the first 8 bytes of murmur3 x64 128, seed 0, of the UTF-8 text "group#topic"
    h1 = low 32 bits, h2 = high 32 bits, both signed
    for i in 1…k: c = h1 + i * h2 in 32 signed bits; if c < 0: c = ~c; position = c mod m

Bit p of a bitmap is in byte p // 8 under the mask 1 << (p % 8). A message's bitmap has the
positions of every consumer whose expression matched it; a consumer may want a message when all its
positions are set, or when it cannot know.

RocketMQ: BloomFilter, BitsArray, BloomFilterData; Guava's murmur3_128.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from oberth.errors import OptionError

_M64: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def murmur3_x64_128(data: bytes, seed: int = 0) -> tuple[int, int]:
    """Austin Appleby's MurmurHash3_x64_128: two unsigned 64-bit numbers.

    >>> hex(murmur3_x64_128(b"hello")[0])
    '0xcbd8a7b341bd9b02'
    """
    h1 = h2 = seed
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        h1 ^= _mix_k1(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotate_left(h1, 27) + h2) * 5 + 0x52DCE729) & _M64
        h2 ^= _mix_k2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotate_left(h2, 31) + h1) * 5 + 0x38495AB5) & _M64
    tail = data[whole:]
    h2 ^= _mix_k2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix_k1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _M64
    h2 = (h2 + h1) & _M64
    h1, h2 = _finish(h1), _finish(h2)
    h1 = (h1 + h2) & _M64
    return h1, (h2 + h1) & _M64


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _M64


def _mix_k1(k: int) -> int:
    return _rotate_left(k * _C1 & _M64, 31) * _C2 & _M64


def _mix_k2(k: int) -> int:
    return _rotate_left(k * _C2 & _M64, 33) * _C1 & _M64


def _finish(k: int) -> int:
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD & _M64
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 & _M64
    return k ^ k >> 33


class BloomFilter(NamedTuple):
    """The parameters that every consumer's positions come from.

    Attributes:
        hash_count: positions of one consumer, k.
        bit_count: bits of a bitmap, m; a multiple of 8.
    """

    hash_count: int
    bit_count: int

    @property
    def byte_count(self) -> int:
        """Bytes of a bitmap."""
        return self.bit_count // 8

    def positions(self, group: str, topic: str) -> tuple[int, ...]:
        """The bits of one consumer; two of them can be equal."""
        low = murmur3_x64_128(f"{group}#{topic}".encode())[0]
        h1, h2 = _signed_32(low), _signed_32(low >> 32)
        found = []
        for i in range(1, self.hash_count + 1):
            combined = _signed_32(h1 + i * h2)
            found.append((~combined if combined < 0 else combined) % self.bit_count)
        return tuple(found)

    def bitmap(self, consumers: Iterable[Iterable[int]]) -> bytes:
        """The bitmap in which the positions of all these consumers are set."""
        bits = bytearray(self.byte_count)
        for positions in consumers:
            for position in positions:
                bits[position >> 3] |= 1 << (position & 7)
        return bytes(bits)


def make_bloom_filter(error_percent: int = 20, consumers: int = 32) -> BloomFilter:
    """The filter for maxErrorRateOfBloomFilter and expectConsumerNumUseFilter.

    Raises:
        OptionError: a rate outside 1…99, or fewer than one consumer.
    """
    if not 1 <= error_percent <= 99:
        raise OptionError(f"maxErrorRateOfBloomFilter: {error_percent} is outside 1…99")
    if consumers < 1:
        raise OptionError(f"expectConsumerNumUseFilter: {consumers} is below 1")
    rate = error_percent / 100
    hash_count = math.ceil(math.log(rate) / math.log(0.5))
    bits = math.ceil(consumers * (math.log(1 / rate) / math.log(2)) * (1 / math.log(2)))
    return BloomFilter(hash_count, -(-bits // 8) * 8)


def is_hit(bitmap: bytes, positions: Iterable[int]) -> bool:
    """Whether all positions are set; a position that the bitmap does not have counts as set."""
    size = len(bitmap)
    return all(
        position >> 3 >= size or bitmap[position >> 3] >> (position & 7) & 1
        for position in positions
    )


def _signed_32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value
