"""The body of a batch: several messages of one topic in one request, or in one inner-batch record.

Items, one after another:

    offset  size  field              type   note
         0     4  item_size          int32  whole item with this field
         4     4  magic              int32  0, ignored
         8     4  body_crc           int32  0, ignored: the broker computes it
        12     4  flag               int32  the application's
        16     4  body_length        int32
        20     n  body               bytes
      20+n     2  properties_length  int16
      22+n     p  properties         bytes  see properties.py

Big-endian. Topic, queue, hosts and times are those of the request or of the record that holds it.
RocketMQ: MessageDecoder.encodeMessage, decodeMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from oberth.errors import FormatError
from oberth.formats.properties import PROPERTIES_SIZE_MAX

ITEM_FIXED_SIZE: Final = 22
ITEM_COUNT_MAX: Final = 32_767
"""Messages in one batch; a BatchConsumeQueue unit counts them in an int16."""

_ITEM: Final = struct.Struct(
    ">"
    "i"  # item_size
    "i"  # magic
    "i"  # body_crc
    "i"  # flag
    "i"  # body_length
)
ITEM_FLAG_POSITION: Final = 12
ITEM_BODY_POSITION: Final = 20
assert _ITEM.size == ITEM_BODY_POSITION == ITEM_FIXED_SIZE - 2


class BatchItem(NamedTuple):
    """One message of a batch.

    Attributes:
        flag: the application's flag.
        body: as the client encoded it.
        properties: the encoded properties string.
    """

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """The body that holds these messages.

    Raises:
        FormatError: more than ITEM_COUNT_MAX, a properties string over PROPERTIES_SIZE_MAX, or a
            flag that is no int32.
    """
    parts: list[bytes] = []
    for number, (flag, body, properties) in enumerate(items):
        if number == ITEM_COUNT_MAX:
            raise FormatError(f"a batch holds at most {ITEM_COUNT_MAX} messages")
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise FormatError(
                f"batch item {number}: properties of {len(properties)} bytes, "
                f"at most {PROPERTIES_SIZE_MAX}"
            )
        size = ITEM_FIXED_SIZE + len(body) + len(properties)
        try:
            parts.append(_ITEM.pack(size, 0, 0, flag, len(body)))
        except struct.error as error:
            raise FormatError(f"batch item {number}: {error}") from None
        parts += (body, len(properties).to_bytes(2, "big"), properties)
    return b"".join(parts)


def decode_batch(data: bytes | memoryview, *, count_max: int = ITEM_COUNT_MAX) -> list[BatchItem]:
    """The messages in a batch body.

    Raises:
        FormatError: lengths that do not add up, bytes left over, or more than count_max items.
    """
    items: list[BatchItem] = []
    position, end = 0, len(data)
    while position < end:
        if len(items) == count_max:
            raise too_many(count_max)
        if end - position < ITEM_FIXED_SIZE:
            raise item_fault(data, position, len(items))
        size, _, _, flag, body_length = _ITEM.unpack_from(data, position)
        body_start = position + ITEM_BODY_POSITION
        body_end = body_start + body_length
        if body_length < 0 or not ITEM_FIXED_SIZE + body_length <= size <= end - position:
            raise item_fault(data, position, len(items))
        properties_length = int.from_bytes(data[body_end : body_end + 2], "big", signed=True)
        if properties_length != size - ITEM_FIXED_SIZE - body_length:
            raise item_fault(data, position, len(items))
        next_position = position + size
        items.append(
            BatchItem(
                flag,
                bytes(data[body_start:body_end]),
                bytes(data[body_end + 2 : next_position]),
            )
        )
        position = next_position
    return items


def too_many(count_max: int) -> FormatError:
    """A batch has more items than allowed."""
    return FormatError(f"batch: more than {count_max} messages")


def item_fault(data: bytes | memoryview, position: int, number: int) -> FormatError:
    """Why no item can be read at a position of a batch body."""
    left = len(data) - position
    where = f"batch item {number} at {position}"
    if left < ITEM_FIXED_SIZE:
        return FormatError(f"{where}: {left} bytes left, at least {ITEM_FIXED_SIZE} needed")
    size, _, _, _, body_length = _ITEM.unpack_from(data, position)
    if body_length < 0 or not ITEM_FIXED_SIZE + body_length <= size <= left:
        return FormatError(f"{where}: size {size} with a body of {body_length}, {left} bytes left")
    body_end = position + ITEM_BODY_POSITION + body_length
    properties_length = int.from_bytes(data[body_end : body_end + 2], "big", signed=True)
    return FormatError(
        f"{where}: size {size} with a body of {body_length} and properties of {properties_length}"
    )
