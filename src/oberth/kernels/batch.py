"""A client's batch on its way into the log: cleaned of what an item cannot choose, then records.

A batch of tens of thousands of small messages comes in one frame, and the broker's loop serves
nobody else meanwhile: plain Python takes 15 us a message, the kernels 0.1 us. So a server that has
no kernels takes smaller batches, see `check_plain_batch`.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from oberth.errors import FormatError
from oberth.formats import properties as p
from oberth.formats.batch_body import (
    ITEM_COUNT_MAX,
    ITEM_FIXED_SIZE,
    BatchItem,
    decode_batch,
    encode_batch,
    item_fault,
    too_many,
)
from oberth.formats.message import (
    BODY_CRC_POSITION,
    BODY_LENGTH_BEFORE_BODY,
    COMMIT_LOG_OFFSET_POSITION,
    CRC_MASK,
    FLAG_POSITION,
    QUEUE_OFFSET_POSITION,
)
from oberth.formats.property_crc import TAIL_SIZE, decode_crc_tail, encode_crc_tail
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.arguments import BatchEnd
from oberth.kernels.memory import address, uninitialised

PLAIN_ITEM_COUNT_MAX: Final = 1_000
"""Items of a batch that a server takes without kernels: some 15 ms to store and to dispatch."""

PLAIN_PROPERTIES_MAX: Final = 256 * 1024
"""Bytes of all their properties."""

_KEY: Final = p.KEYS.encode()
_PREFIX: Final = p.TRANSIENT_PREFIX.encode()
_SEPARATOR: Final = b"\x02"
_LEFT_OUT: Final = sorted((name.encode() for name in p.NOT_OF_BATCH_ITEMS), key=len)
_SHORTEST: Final = min(len(_KEY), len(_LEFT_OUT[0]))
_LONGEST: Final = len(_LEFT_OUT[-1])
_NAMES: Final = b"".join(_LEFT_OUT)
_NAME_ENDS: Final = array("i", [0])
for _name in _LEFT_OUT:
    _NAME_ENDS.append(_NAME_ENDS[-1] + len(_name))
_NAME_LENGTHS: Final = array(
    "i", [sum(len(name) < length for name in _LEFT_OUT) for length in range(_LONGEST + 2)]
)


_SIZES: Final = Struct(">i12xi")  # of an item, and of its body


class CleanBatch(NamedTuple):
    """The items of a client's batch without the properties that an item cannot choose.

    Attributes:
        body: the items, as in a batch's body.
        item_count: how many there are.
        without_key: how many have no KEYS, or blank ones.
    """

    body: bytes
    item_count: int
    without_key: int


class RecordHead(NamedTuple):
    """What the records of a batch have in common.

    Attributes:
        fixed: a record up to its body; the fields that differ are overwritten.
        topic: the topic's length and name as a record has them.
        outer: what the properties of each end in.
        with_crc: whether each ends in its whole-record CRC.
    """

    fixed: bytes
    topic: bytes
    outer: bytes
    with_crc: bool


class BatchRecords(NamedTuple):
    """Records of a batch, back to back.

    Attributes:
        end: DONE, or what is wrong; then there are no records.
        data: the records.
        offsets: where each begins in the log.
    """

    end: BatchEnd
    data: bytes | memoryview = b""
    offsets: tuple[int, ...] = ()


def check_plain_batch(body: bytes) -> None:
    """Whether a server's loop may work on a client's batch: any with kernels, else a small one.

    What is wrong with a batch otherwise, `clean_batch` says.

    Raises:
        FormatError: more than PLAIN_ITEM_COUNT_MAX items, or PLAIN_PROPERTIES_MAX of properties.
    """
    if runtime.available():
        return
    position = count = properties_size = 0
    while position + ITEM_FIXED_SIZE <= len(body):
        size, body_length = _SIZES.unpack_from(body, position)
        if size < ITEM_FIXED_SIZE:
            return
        position += size
        count += 1
        properties_size += max(size - ITEM_FIXED_SIZE - max(body_length, 0), 0)
        if count > PLAIN_ITEM_COUNT_MAX:
            raise FormatError(
                f"batch: more than {PLAIN_ITEM_COUNT_MAX} messages, which takes the compiled "
                "kernels; they are missing on this server"
            )
        if properties_size > PLAIN_PROPERTIES_MAX:
            raise FormatError(
                f"batch: more than {PLAIN_PROPERTIES_MAX} bytes of properties, which takes the "
                "compiled kernels; they are missing on this server"
            )


def clean_batch(body: bytes, *, count_max: int = ITEM_COUNT_MAX) -> CleanBatch:
    """The items of a client's batch as they may be stored.

    Raises:
        FormatError: lengths that do not add up, bytes left over, or more than count_max items.
    """
    kernel = runtime.native("clean_batch")
    if kernel is None:
        return reference_clean_batch(body, count_max=count_max)
    arguments = array("q", bytes(8 * at.CLEAN_ARGUMENTS))
    arguments[at.CLEAN_DATA] = address(body)
    arguments[at.CLEAN_SIZE] = len(body)
    arguments[at.CLEAN_COUNT_MAX] = count_max
    arguments[at.CLEAN_SIZE_MIN] = _SHORTEST
    arguments[at.CLEAN_NAMES] = address(_NAMES)
    arguments[at.CLEAN_NAME_ENDS] = address(_NAME_ENDS)
    arguments[at.CLEAN_NAME_LENGTHS] = address(_NAME_LENGTHS)
    arguments[at.CLEAN_NAME_LONGEST] = _LONGEST
    arguments[at.CLEAN_PREFIX] = address(_PREFIX)
    arguments[at.CLEAN_PREFIX_SIZE] = len(_PREFIX)
    arguments[at.CLEAN_KEY] = address(_KEY)
    arguments[at.CLEAN_KEY_SIZE] = len(_KEY)
    ended = kernel(arguments)
    count = arguments[at.CLEAN_COUNT]
    if ended == BatchEnd.COUNT:
        raise too_many(count_max)
    if ended == BatchEnd.ITEM:
        raise item_fault(body, arguments[at.CLEAN_POSITION], count)
    without_key = arguments[at.CLEAN_WITHOUT_KEY]
    if not arguments[at.CLEAN_CHANGED]:
        return CleanBatch(body, count, without_key)
    out = uninitialised(len(body))
    arguments[at.CLEAN_OUT] = address(out)
    kernel(arguments)
    return CleanBatch(bytes(memoryview(out)[: arguments[at.CLEAN_OUT_USED]]), count, without_key)


def reference_clean_batch(body: bytes, *, count_max: int = ITEM_COUNT_MAX) -> CleanBatch:
    """`clean_batch` in plain Python."""
    items = decode_batch(body, count_max=count_max)
    without_key = sum(not (p.find_property(item.properties, _KEY) or b"").strip() for item in items)
    cleaned = encode_batch(
        BatchItem(item.flag, item.body, p.of_batch_item(item.properties)) for item in items
    )
    return CleanBatch(cleaned, len(items), without_key)


def batch_records(
    batch: CleanBatch, head: RecordHead, *, log_offset: int, queue_offset: int, record_max: int
) -> BatchRecords:
    """The records that a batch becomes.

    Args:
        batch: its items.
        head: what they have in common.
        log_offset: where the first is going to be.
        queue_offset: its number in the queue; the others follow.
        record_max: no record is larger.
    """
    kernel = runtime.native("batch_records")
    if kernel is None:
        return reference_batch_records(
            batch, head, log_offset=log_offset, queue_offset=queue_offset, record_max=record_max
        )
    around = len(head.fixed) + len(head.topic) + 2 + len(head.outer) + 2 + TAIL_SIZE
    out = uninitialised(len(batch.body) + batch.item_count * (around - ITEM_FIXED_SIZE))
    offsets = array("q", bytes(8 * batch.item_count))
    arguments = array("q", bytes(8 * at.RECORDS_ARGUMENTS))
    arguments[at.RECORDS_DATA] = address(batch.body)
    arguments[at.RECORDS_SIZE] = len(batch.body)
    arguments[at.RECORDS_HEAD] = address(head.fixed)
    arguments[at.RECORDS_HEAD_SIZE] = len(head.fixed)
    arguments[at.RECORDS_TOPIC] = address(head.topic)
    arguments[at.RECORDS_TOPIC_SIZE] = len(head.topic)
    arguments[at.RECORDS_OUTER] = address(head.outer)
    arguments[at.RECORDS_OUTER_SIZE] = len(head.outer)
    arguments[at.RECORDS_LOG_OFFSET] = log_offset
    arguments[at.RECORDS_QUEUE_OFFSET] = queue_offset
    arguments[at.RECORDS_CRC] = head.with_crc
    arguments[at.RECORDS_RECORD_MAX] = record_max
    arguments[at.RECORDS_OUT] = address(out)
    arguments[at.RECORDS_OFFSETS] = address(offsets)
    ended = BatchEnd(kernel(arguments))
    if ended is not BatchEnd.DONE:
        return BatchRecords(ended)
    size = arguments[at.RECORDS_OUT_USED]
    return BatchRecords(ended, memoryview(out)[:size], tuple(offsets))


def reference_batch_records(
    batch: CleanBatch, head: RecordHead, *, log_offset: int, queue_offset: int, record_max: int
) -> BatchRecords:
    """`batch_records` in plain Python."""
    tail = TAIL_SIZE if head.with_crc else 0
    parts: list[bytes] = []
    offsets: list[int] = []
    for item in decode_batch(batch.body, count_max=batch.item_count):
        properties = item.properties
        if head.outer:
            joint = _SEPARATOR if properties and properties[-1:] != _SEPARATOR else b""
            properties = properties + joint + head.outer
        if properties[-1:] == b"\0":
            properties += _SEPARATOR  # a record that ends in a zero looks like a torn one
        if decode_crc_tail(properties) is not None:
            return BatchRecords(BatchEnd.CRC_TAIL)
        if len(properties) + tail > p.PROPERTIES_SIZE_MAX:
            return BatchRecords(BatchEnd.PROPERTIES)
        size = len(head.fixed) + len(item.body) + len(head.topic) + 2 + len(properties) + tail
        if size > record_max:
            return BatchRecords(BatchEnd.RECORD)
        record = bytearray(head.fixed)
        for position, field_size, number in (
            (0, 4, size),
            (BODY_CRC_POSITION, 4, crc32(item.body) & CRC_MASK),
            (FLAG_POSITION, 4, item.flag),
            (QUEUE_OFFSET_POSITION, 8, queue_offset + len(offsets)),
            (COMMIT_LOG_OFFSET_POSITION, 8, log_offset),
            (len(head.fixed) - BODY_LENGTH_BEFORE_BODY, 4, len(item.body)),
        ):
            record[position : position + field_size] = number.to_bytes(
                field_size, "big", signed=True
            )
        record += item.body + head.topic + (len(properties) + tail).to_bytes(2, "big") + properties
        if tail:
            record += encode_crc_tail(record)
        offsets.append(log_offset)
        parts.append(bytes(record))
        log_offset += size
    return BatchRecords(BatchEnd.DONE, b"".join(parts), tuple(offsets))
