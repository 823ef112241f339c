"""Addresses of buffers, and memory that is not zeroed: what the compiled kernels are handed.

Only callers that hold a kernel (`runtime.native`) ask for an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oberth.kernels import runtime

_KEPT_SIZE_MIN: Final = 256 << 10
_KEPT_MAX: Final = 4
_COPIED_SIZE_MAX: Final = 64 << 10

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Buffer: TypeAlias = ReadableBuffer
else:
    Buffer = Any


def address(buffer: Buffer) -> int:
    """Where a buffer's bytes lie in memory; the caller keeps the buffer alive and in place."""
    where: int = runtime.extension().address(buffer)
    return where


def uninitialised(size: int) -> bytearray:
    """Memory that a kernel is going to fill; holds anything until then.

    ``bytearray(size)`` would be zeroed first, a quarter of the time of gathering bodies.
    """
    made: bytearray = runtime.extension().uninitialised(size)
    return made


def pieces(memory: bytearray, ends: Sequence[int]) -> list[bytes]:
    """What lies in memory up to each of these ends and behind the one before, each by itself."""
    total = ends[-1] if ends else 0
    whole: memoryview | bytes = memoryview(memory)[:total]
    if total <= _COPIED_SIZE_MAX:
        whole = bytes(whole)  # of which a part is half as much work
    made = []
    start = 0
    for end in ends:
        made.append(bytes(whole[start:end]))
        start = end
    return made


class SpareMemory:
    """Memory that is lent again as soon as nothing made of it is left. For one thread.

    What the system gives for a block of megabytes has to be cleared, page by page, each time, which
    costs more than to fill it. Small blocks are not kept: they come from memory that is in use.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def lend(self, size: int) -> bytearray:
        """Memory of at least ``size`` bytes that holds anything.

        It is in use as long as a buffer of it is (a memoryview, an Arrow buffer), not as long as
        the bytearray itself is known.
        """
        if size < _KEPT_SIZE_MIN:
            return uninitialised(size)
        for memory in self._kept:
            if len(memory) >= size and not _is_in_use(memory):
                return memory
        made = uninitialised(size + size // 8)  # sizes differ a little from batch to batch
        self._kept = [each for each in self._kept if _is_in_use(each)][-_KEPT_MAX + 1 :]
        self._kept.append(made)
        return made


def _is_in_use(memory: bytearray) -> bool:
    """Whether there is a buffer of it: no bytearray can be resized then."""
    try:
        last = memory.pop()
    except BufferError:
        return True
    memory.append(last)  # there is room for it: nothing is moved
    return False
