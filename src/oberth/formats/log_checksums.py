"""``oberth.checksums``: what the segments of the CommitLog held when they were written.

A header, a row for each segment, and a check of both:

    offset  size  field         type   note
         0     8  magic         bytes  "OBERTHCS"
         8     4  version       int32  1
        12     4  count         int32  rows that follow
        16     8  segment_size  int64  mappedFileSizeCommitLog

Row, in the order of the log:

    offset  size  field  type   note
         0     8  start  int64  CommitLog offset of the segment's first byte
         8     8  end    int64  the segment's end, or how far the live one is summed up
        16     4  crc    int32  CRC-32 of all bytes from start to end, as zlib computes it

Last:

    offset  size  field  type   note
         0     4  check  int32  CRC-32 of header and rows

Every row but the last reaches to the end of its segment, and a CRC goes on where it stopped, so the
live row grows without a look at what it has. The rows speak only of bytes that were on the disk
before the file was. A file whose check does not fit, or of another segment size, counts as none:
all of it can be computed from the log, as long as the log is what it was. RocketMQ knows no such
file.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

FILE_NAME: Final = "oberth.checksums"
MAGIC: Final = b"OBERTHCS"
VERSION: Final = 1

HEADER: Final = struct.Struct(
    ">"
    "8s"  # magic
    "i"  # version
    "i"  # count
    "q"  # segment_size
)
ROW: Final = struct.Struct(
    ">"
    "q"  # start
    "q"  # end
    "I"  # crc
)
CHECK: Final = struct.Struct(
    ">I"  # check
)
assert HEADER.size == 24
assert ROW.size == 20
assert CHECK.size == 4


class LogChecksum(NamedTuple):
    """CRC-32 of one segment's bytes from ``start`` to ``end``, 0 to 2**32 - 1."""

    start: int
    end: int
    crc: int


def encode_log_checksums(segment_size: int, rows: list[LogChecksum]) -> bytes:
    """The file's content."""
    data = HEADER.pack(MAGIC, VERSION, len(rows), segment_size) + b"".join(
        ROW.pack(*row) for row in rows
    )
    return data + CHECK.pack(crc32(data))


def decode_log_checksums(data: bytes, segment_size: int) -> list[LogChecksum]:
    """The rows of a file; none if it cannot be believed or is of another segment size."""
    if len(data) < HEADER.size + CHECK.size:
        return []
    body = data[: -CHECK.size]
    magic, version, count, size = HEADER.unpack_from(body)
    if (
        (magic, version, size) != (MAGIC, VERSION, segment_size)
        or len(body) != HEADER.size + count * ROW.size
        or CHECK.unpack_from(data, len(body))[0] != crc32(body)
    ):
        return []
    return [LogChecksum(*row) for row in ROW.iter_unpack(body[HEADER.size :])]
