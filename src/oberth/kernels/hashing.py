"""CRC-32 and Java hashes of single stretches of bytes, without the GIL where compiled.

For one value ``zlib.crc32`` and ``java_string.java_hash`` do as well; these are the functions that
the kernels use inside, exposed so that they can be tested and used on large buffers.
"""

from __future__ import annotations

from array import array
from zlib import crc32 as zlib_crc32

from oberth.formats.java_string import hash_units, signed_32, utf16_units
from oberth.kernels import runtime
from oberth.kernels.memory import Buffer, address


def crc32(data: Buffer, before: int = 0) -> int:
    """CRC-32 of bytes, 0 … 2**32-1.

    Args:
        data: the bytes.
        before: the CRC-32 of what comes before them.
    """
    view = memoryview(data)
    kernel = runtime.native("crc")
    if kernel is None:
        return reference_crc32(view, before)
    return kernel(array("q", (address(view), 0, view.nbytes, before)))


def reference_crc32(data: Buffer, before: int = 0) -> int:
    """`crc32` by zlib."""
    return zlib_crc32(data, before)


def java_hash(data: Buffer, seed: int = 0) -> int:
    """Java's String.hashCode of UTF-8 text, signed; what is broken counts as U+FFFD.

    Args:
        data: the text's bytes.
        seed: the unsigned hash of what comes before it.
    """
    view = memoryview(data)
    kernel = runtime.native("java_hash")
    if kernel is None:
        return reference_java_hash(view, seed)
    return signed_32(kernel(array("q", (address(view), 0, view.nbytes, seed))))


def reference_java_hash(data: Buffer, seed: int = 0) -> int:
    """`java_hash` in plain Python."""
    text = bytes(data).decode("utf-8", "replace")
    return signed_32(hash_units(utf16_units(text), seed))
