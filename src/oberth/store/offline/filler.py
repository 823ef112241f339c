"""Records that stand where a damaged range was, so that every reader passes over it.

A filler is a well-formed record with its own position, a checksum that is right, and the
transaction type *rollback*: RocketMQ and Oberth give such a record neither a ConsumeQueue unit nor
an index entry, so nobody ever consumes it, while recovery, dispatch and replication walk across it.
Its topic is OBERTH_SALVAGE, or the front of it where there is no room for all. Its body is zeros in
a salvaged store; where a recovery put it, what lay in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from oberth.formats.message import (
    BODY_POSITION_V4,
    FIXED_SIZE_V1,
    HOST_V4_SIZE,
    MAGIC_V1,
    MessageExt,
    body_crc,
)
from oberth.formats.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from oberth.kernels.columns import TopicTable
from oberth.store.offline.log_columns import Rows

FILLER_TOPIC: Final = "OBERTH_SALVAGE"
FILLER_SIZE_MIN: Final = FIXED_SIZE_V1 + 1
FILLER_SIZE_MAX: Final = 1 << 20
NO_FILLER: Final = 1 << 63
"""Behind every CommitLog offset."""
# One property, because RocketMQ's decoder gives a null map where there is none.
_PROPERTIES: Final = b"SALVAGE\x01lost\x02"
# With all of the topic, without a body.
MARKER_SIZE: Final = FIXED_SIZE_V1 + len(FILLER_TOPIC) + len(_PROPERTIES)
# RocketMQ checks a host only when it shows it.
_NO_HOST: Final = bytes(HOST_V4_SIZE)


def is_filler(message: MessageExt) -> bool:
    """Whether a record is one of these."""
    return (
        message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        and message.topic != ""
        and FILLER_TOPIC.startswith(message.topic)
        and message.store_host == _NO_HOST
    )


def is_filler_topic(topic: bytes) -> bool:
    """Whether a topic's name is a filler's."""
    return topic != b"" and FILLER_TOPIC.encode().startswith(topic)


def first_filler(part: Rows, topics: TopicTable) -> int:
    """CommitLog offset of the first filler among records, `NO_FILLER` if there is none.

    Args:
        part: records, with the column ``topic_id``.
        topics: numbers their topics.
    """
    numbers = {number for number, name in enumerate(topics.names) if is_filler_topic(name)}
    columns = part.columns
    for row in range(columns.count) if numbers else ():
        if columns.topic_id[row] in numbers:
            return columns.commit_log_offset[row]
    return NO_FILLER


def _zeros(_offset: int, size: int) -> bytes:
    return bytes(size)


def fillers(
    offset: int,
    size: int,
    store_timestamp: int,
    read: Callable[[int, int], bytes] = _zeros,
) -> Iterator[tuple[int, bytes]]:
    """Records that together are ``size`` bytes long, with the CommitLog offset of each.

    Args:
        offset: where the first begins.
        size: at least FILLER_SIZE_MIN.
        store_timestamp: of a neighbour, since store times do not go back.
        read: gives the bodies, by CommitLog offset and size.
    """
    if size < FILLER_SIZE_MIN:
        raise ValueError(f"a filler has at least {FILLER_SIZE_MIN} bytes, wanted are {size}")
    while size:
        piece = min(size, FILLER_SIZE_MAX)
        if 0 < size - piece < FILLER_SIZE_MIN:
            piece -= FILLER_SIZE_MIN
        yield offset, _filler(offset, piece, store_timestamp, read)
        offset += piece
        size -= piece


def _filler(
    offset: int, size: int, store_timestamp: int, read: Callable[[int, int], bytes]
) -> bytes:
    room = size - FIXED_SIZE_V1
    properties = _PROPERTIES if room > len(_PROPERTIES) else b""
    topic = FILLER_TOPIC[: room - len(properties)]
    body = read(offset + BODY_POSITION_V4, room - len(properties) - len(topic))
    return MessageExt(
        topic=topic,
        queue_id=0,
        queue_offset=0,
        commit_log_offset=offset,
        record_size=size,
        magic=MAGIC_V1,
        body_crc=body_crc(body),
        flag=0,
        sys_flag=TRANSACTION_ROLLBACK,
        born_timestamp=store_timestamp,
        born_host=_NO_HOST,
        store_timestamp=store_timestamp,
        store_host=_NO_HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties_raw=properties,
    ).encode()
