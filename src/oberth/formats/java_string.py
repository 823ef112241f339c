"""Java's String.hashCode, which tags codes and index keys are made of.

``h = 0; for each UTF-16 code unit c: h = (31 * h + c) mod 2**32``, read as a signed 32-bit number.
Characters above U+FFFF count as two units, so text is taken as UTF-16, never as code points.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Final

_MASK: Final = 0xFFFFFFFF
_CHUNK: Final = 64
# Powers of 31 from the highest down to 0, for each number of units up to a chunk.
_POWERS: Final = tuple(
    tuple(pow(31, count - 1 - n, 1 << 32) for n in range(count)) for count in range(_CHUNK + 1)
)


def utf16_units(text: str) -> Sequence[int]:
    """The UTF-16 code units of a text."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raw = text.encode("utf-16-be", "surrogatepass")
        return [raw[n] << 8 | raw[n + 1] for n in range(0, len(raw), 2)]


def hash_units(units: Sequence[int], h: int = 0) -> int:
    """Continues the unsigned hash ``h`` over UTF-16 code units; returns it unsigned."""
    # sum(map(mul, ...)) stays in C: about a quarter of the time of a loop over 45 units.
    count = len(units)
    if count <= _CHUNK:
        total: int = sum(map(mul, units, _POWERS[count]))
        return (h * pow(31, count, 1 << 32) + total) & _MASK
    for start in range(0, count, _CHUNK):
        h = hash_units(units[start : start + _CHUNK], h)
    return h


def signed_32(value: int) -> int:
    """An unsigned 32-bit number read as a signed one."""
    return value - 0x100000000 if value & 0x80000000 else value


def java_hash(text: str) -> int:
    """RocketMQ: ``String.hashCode()``; signed 32-bit.

    >>> java_hash("TagA"), java_hash("polygenelubricants")
    (2598919, -2147483648)
    """
    return signed_32(hash_units(utf16_units(text)))


def tags_hash(raw_tags: bytes) -> int:
    """The tags code of a TAGS value as stored (UTF-8): its Java hash, 0 for no tags.

    Few different tags pass through a store, so the results are kept: 4096 of them, none of a tag
    that is longer than anybody's, since senders choose what is kept.
    """
    if len(raw_tags) > _KEPT_TAGS_SIZE_MAX:
        return java_hash(raw_tags.decode("utf-8", "replace"))
    return _kept_tags_hash(raw_tags)


_KEPT_TAGS_SIZE_MAX: Final = 256
"""Bytes."""


@lru_cache(maxsize=4096)
def _kept_tags_hash(raw_tags: bytes) -> int:
    return java_hash(raw_tags.decode("utf-8", "replace")) if raw_tags else 0
