"""Numbers of seven bits a byte, the low ones first: Avro's and Protobuf's.

The high bit of a byte says that another one follows; ten bytes hold 64 bits.
"""

from __future__ import annotations

from oberth.spark.pipelines.json_types import BodyError


def read_varint(data: bytes, at: int, kind: str) -> tuple[int, int]:
    """The number at a position, from 0 to 2**64 - 1, and where it ends.

    Args:
        data: the whole body.
        at: where the number begins.
        kind: of the body, as errors name it.

    Raises:
        BodyError: the body ends in the number, or it has more than ten bytes.
    """
    value = shift = 0
    while True:
        if at >= len(data):
            raise BodyError(f"the {kind} body ends at {at}, inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 2**64 - 1, at
        shift += 7
        if shift > 63:
            raise BodyError(f"at {at}: a number of more than ten bytes in the {kind} body")
