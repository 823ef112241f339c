"""Addresses of buffers, and the tables of CRC-32."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Buffer: TypeAlias = ReadableBuffer
else:
    Buffer = Any


@cache
def _get_buffer() -> Any:
    """A function from an object to the address of its bytes.

    ctypes' own ``from_buffer`` refuses memory that may not be written, such as a read-only map.
    """
    import ctypes

    class PyBuffer(ctypes.Structure):
        _fields_ = (
            ("buf", ctypes.c_void_p),
            ("obj", ctypes.py_object),
            ("len", ctypes.c_ssize_t),
            ("itemsize", ctypes.c_ssize_t),
            ("readonly", ctypes.c_int),
            ("ndim", ctypes.c_int),
            ("format", ctypes.c_char_p),
            ("shape", ctypes.c_void_p),
            ("strides", ctypes.c_void_p),
            ("suboffsets", ctypes.c_void_p),
            ("internal", ctypes.c_void_p),
        )

    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    release = ctypes.pythonapi.PyBuffer_Release
    release.argtypes = (ctypes.c_void_p,)
    release.restype = None

    def address_of(buffer: Any) -> int:
        view = PyBuffer()
        where = ctypes.addressof(view)
        get(buffer, where, 0)  # PyBUF_SIMPLE: contiguous bytes, or BufferError
        start = view.buf or 0
        release(where)
        return start

    return address_of


def address(buffer: Buffer) -> int:
    """Where a buffer's bytes lie in memory; the caller keeps the buffer alive and in place."""
    where: int = _get_buffer()(buffer)
    return where


@cache
def _make_bytearray() -> Any:
    import ctypes

    make = ctypes.pythonapi.PyByteArray_FromStringAndSize
    make.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
    make.restype = ctypes.py_object
    return make


def uninitialised(size: int) -> bytearray:
    """Memory that a kernel is going to fill; holds anything until then.

    ``bytearray(size)`` would be zeroed first, a quarter of the time of gathering bodies.
    """
    made: bytearray = _make_bytearray()(None, size)
    return made


@cache
def crc_tables() -> bytes:
    """16 tables of 256 uint32 in the machine's byte order.

    Entry b of table n is the CRC state after byte b and n zero bytes.
    """
    first = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        first.append(crc)
    tables = [first]
    for _ in range(15):
        tables.append([first[crc & 0xFF] ^ crc >> 8 for crc in tables[-1]])
    return b"".join(crc.to_bytes(4, "little") for table in tables for crc in table)
