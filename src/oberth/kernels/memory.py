"""Addresses of buffers, and memory that is not zeroed: what the compiled kernels are handed.

Only callers that hold a kernel (`runtime.native`) ask for an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from oberth.kernels import runtime

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
