"""Scans CommitLog records into columns, and finds the next record after damage.

`scan` is the compiled kernel where there is one and `reference_scan` otherwise; both give the same
columns, position and reason for any bytes. The same goes for `find_record`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from oberth.formats.delay_level import UNKNOWN_LEVEL_DELAY_MS
from oberth.formats.java_string import java_hash
from oberth.formats.message import (
    BORN_HOST_POSITION,
    CRC_MASK,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_POSITION,
    RECORD_SIZE,
    SCHEDULE_TOPIC,
    Blank,
    Invalid,
    NotRecord,
    RecordParts,
    body_fits,
    record_parts,
)
from oberth.formats.sys_flag import BORN_HOST_V6
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.memory import Buffer, address

# Positions are kept as int32, so one call sees less than 2 GiB; a CommitLog segment never has more.
DATA_SIZE_MAX: Final = 2**31 - 1
_CRC_TAIL_SIZE: Final = 20
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()
_DECIMAL_MAX: Final = 2**63 - 1


class ScanResult(NamedTuple):
    """How a scan ended.

    Attributes:
        position: of the first record that was not taken (where ``end`` says what is wrong).
        end: why it stopped.
        added: rows that this call added to the columns.
    """

    position: int
    end: ScanEnd
    added: int


def scan(
    data: Buffer,
    columns: Columns,
    topics: TopicTable,
    *,
    base: int = 0,
    start: int = 0,
    stop: int | None = None,
    crc: CrcMode = CrcMode.NONE,
    record_crc: bool = False,
    own_position: bool = True,
    record_size_max: int = DATA_SIZE_MAX,
    delays_ms: Sequence[int] = (0,),
) -> ScanResult:
    """Takes the records from ``start`` on into the columns, behind the rows already there.

    Args:
        data: a CommitLog segment or a part of one, up to 2 GiB; only read.
        columns: filled from ``columns.count`` on.
        topics: numbers the topics for the column ``topic_id``; grows.
        base: CommitLog offset of the first byte of data.
        start: position in data of the first record.
        stop: no record that starts here or later is taken, though one that starts before may end
            after it; None for the end of data.
        crc: what to do with the checksums of bodies.
        record_crc: demand the whole-record CRC property, and check it instead of the body's.
        own_position: demand that a record names its own position, as every live record does.
        record_size_max: a larger size is taken for damage.
        delays_ms: milliseconds by delay level (index 0 unused), for ``tags_code`` in the schedule
            topic.

    Raises:
        ValueError: start and stop are not within data, or data is too large.
    """
    view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
    limit = len(view)
    end = limit if stop is None else stop
    if limit > DATA_SIZE_MAX or not 0 <= start <= end <= limit:
        raise ValueError(
            f"scan from {start} to {end} of {limit} bytes: allowed is a range within "
            f"at most {DATA_SIZE_MAX}"
        )
    kernel = runtime.native("scan")
    if kernel is None:
        return _reference(
            view, columns, topics, base, start, end, crc, record_crc, own_position,
            record_size_max, delays_ms,
        )  # fmt: skip
    delays = array("q", delays_ms)
    arguments = array("q", bytes(8 * at.SCAN_ARGUMENTS))
    arguments[at.SCAN_DATA] = address(view)
    arguments[at.SCAN_LIMIT] = limit
    arguments[at.SCAN_BASE] = base
    arguments[at.SCAN_START] = start
    arguments[at.SCAN_STOP] = end
    arguments[at.SCAN_CAPACITY] = columns.capacity
    arguments[at.SCAN_COUNT] = columns.count
    arguments[at.SCAN_CRC_MODE] = crc
    arguments[at.SCAN_RECORD_CRC] = record_crc
    arguments[at.SCAN_OWN_POSITION] = own_position
    arguments[at.SCAN_SIZE_MAX] = record_size_max
    arguments[at.SCAN_READ_PROPERTIES] = columns.wants_properties
    arguments[at.SCAN_DELAYS] = address(delays)
    arguments[at.SCAN_DELAY_COUNT] = len(delays)
    memory = address(columns.memory)
    for index, place in enumerate(columns.places):
        arguments[at.SCAN_COLUMNS + index] = memory + place if place >= 0 else 0
    before = columns.count
    while True:
        topics.lend(arguments, at.SCAN_TOPIC_COUNT)
        ended = kernel(arguments)
        columns.count = arguments[at.SCAN_COUNT]
        topics.take_back(arguments, at.SCAN_TOPIC_COUNT)
        if ended != ScanEnd.TOPICS_FULL:
            break
        arguments[at.SCAN_START] = arguments[at.SCAN_NEXT]
    return ScanResult(arguments[at.SCAN_NEXT], ScanEnd(ended), columns.count - before)


def reference_scan(
    data: Buffer,
    columns: Columns,
    topics: TopicTable,
    *,
    base: int = 0,
    start: int = 0,
    stop: int | None = None,
    crc: CrcMode = CrcMode.NONE,
    record_crc: bool = False,
    own_position: bool = True,
    record_size_max: int = DATA_SIZE_MAX,
    delays_ms: Sequence[int] = (0,),
) -> ScanResult:
    """`scan` in plain Python."""
    view = memoryview(data)
    end = len(view) if stop is None else stop
    return _reference(
        view, columns, topics, base, start, end, crc, record_crc, own_position, record_size_max,
        delays_ms,
    )  # fmt: skip


def _crc_ok(data: memoryview, position: int, parts: RecordParts, whole_record: bool) -> bool:
    if not whole_record:
        return body_fits(data, parts)
    end = position + parts[0][RECORD_SIZE]
    start = end - _CRC_TAIL_SIZE
    tail = bytes(data[start:end])
    if start < parts[4] or tail[:9] != b"__CRC32#\x01" or tail[-1] != 2:
        return False
    digits = tail[9:-1][::-1]
    return digits.isdigit() and int(digits) == crc32(data[position:start]) & CRC_MASK


def _decimal(raw: bytes) -> int:
    digits = raw.lstrip(b"0")
    if not raw.isdigit() or len(digits) > len(str(_DECIMAL_MAX)):
        return -1  # Python refuses to read numbers of thousands of digits
    value = int(digits or b"0")
    return value if value <= _DECIMAL_MAX else -1


# Properties that columns are made of, and the columns of their position and size.
_PLACED: Final = {
    b"TAGS": "tags",
    b"KEYS": "keys",
    b"UNIQ_KEY": "uniq_key",
    b"INNER_MULTI_DISPATCH": "multi_dispatch",
    b"INNER_MULTI_QUEUE_OFFSET": "multi_queue_offset",
}


def _reference(
    data: memoryview,
    columns: Columns,
    topics: TopicTable,
    base: int,
    start: int,
    stop: int,
    crc: CrcMode,
    record_crc: bool,
    own_position: bool,
    record_size_max: int,
    delays_ms: Sequence[int],
) -> ScanResult:
    position = start
    before = row = columns.count
    ended = ScanEnd.STOP
    views = {name: getattr(columns, name) for name in columns.names}
    while position < stop:
        if row >= columns.capacity:
            ended = ScanEnd.FULL
            break
        own_offset = base + position if own_position else None
        parts = record_parts(data, position, len(data), own_offset, record_size_max)
        if isinstance(parts, Blank):
            ended = ScanEnd.BLANK
            break
        if isinstance(parts, Invalid):
            ended = ScanEnd[parts.fault.name]
            break
        crc_ok = -1
        if record_crc or crc is not CrcMode.NONE:
            crc_ok = int(_crc_ok(data, position, parts, record_crc))
        if crc is CrcMode.STOP and crc_ok == 0:
            ended = ScanEnd.RECORD_CRC if record_crc else ScanEnd.BODY_CRC
            break
        fixed, body_at, topic_at, topic_end, properties_at = parts
        (
            size, magic, body_crc, queue_id, flag, queue_offset, stored_offset, sys_flag,
            born_timestamp, _, store_timestamp, _, reconsume_times, prepared_offset, body_size,
        ) = fixed  # fmt: skip
        born_host_size = HOST_V6_SIZE if sys_flag & BORN_HOST_V6 else HOST_V4_SIZE
        topic = bytes(data[topic_at:topic_end])
        end = position + size
        values: dict[str, int] = {
            "commit_log_offset": base + position,
            "queue_offset": queue_offset,
            "stored_offset": stored_offset,
            "born_timestamp": born_timestamp,
            "store_timestamp": store_timestamp,
            "prepared_transaction_offset": prepared_offset,
            "record_size": size,
            "magic": magic,
            "body_crc": body_crc,
            "queue_id": queue_id,
            "flag": flag,
            "sys_flag": sys_flag,
            "born_host_at": position + BORN_HOST_POSITION,
            "store_host_at": position + BORN_HOST_POSITION + born_host_size + 8,
            "reconsume_times": reconsume_times,
            "body_at": body_at,
            "body_size": body_size,
            "topic_at": topic_at,
            "topic_size": topic_end - topic_at,
            "properties_at": properties_at,
            "properties_size": end - properties_at,
            "crc_ok": crc_ok,
        }
        if "topic_id" in views:
            values["topic_id"] = topics.intern(topic)
        if columns.wants_properties:
            raw = bytes(data[properties_at:end])
            values |= _property_columns(raw, properties_at, topic, store_timestamp, delays_ms)
        for name, view in views.items():
            view[row] = values[name]
        row += 1
        position = end
    columns.count = row
    return ScanResult(position, ended, row - before)


def _property_columns(
    raw: bytes, base: int, topic: bytes, store_timestamp: int, delays_ms: Sequence[int]
) -> dict[str, int]:
    values = {"inner_num": -1, "inner_base": -1, "tags_code": 0}
    for column in _PLACED.values():
        values[f"{column}_at"] = 0
        values[f"{column}_size"] = -1
    level = 0
    piece_at = 0
    for piece in raw.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name and value:
            column = _PLACED.get(name, "")
            if column:
                values[f"{column}_at"] = base + piece_at + len(name) + 1
                values[f"{column}_size"] = len(value)
            if name == b"TAGS":
                values["tags_code"] = java_hash(value.decode("utf-8", "replace"))
            elif name == b"DELAY":
                level = _decimal(value)
            elif name == b"INNER_NUM":
                number = _decimal(value)
                values["inner_num"] = number if number < 2**31 else -1
            elif name == b"INNER_BASE":
                values["inner_base"] = _decimal(value)
        piece_at += len(piece) + 1
    if level > 0 and topic == _SCHEDULE:
        level = min(level, len(delays_ms) - 1)
        delay = delays_ms[level] if level > 0 else UNKNOWN_LEVEL_DELAY_MS
        values["tags_code"] = _wrap_64(store_timestamp + delay)
    return values


def _wrap_64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def find_record(
    data: Buffer,
    *,
    base: int = 0,
    start: int = 0,
    stop: int | None = None,
    own_position: bool = True,
    record_size_max: int = DATA_SIZE_MAX,
    check_crc: bool = True,
) -> int | None:
    """Position of the first valid record that starts in [start, stop), or None.

    Any position may be asked for, inside a record too: with ``own_position`` a match means that the
    magic, the record's own offset, all its lengths and the body's checksum are right at once.
    Areas without a record's first magic byte, such as zeros, pass at the speed of memory.

    Args:
        data: a CommitLog segment or a part of one, up to 2 GiB; only read.
        base: CommitLog offset of the first byte of data.
        start: first position that is tried.
        stop: the record must start before it, though it may end behind; None for the end of data.
        own_position: demand that the record names its own position.
        record_size_max: larger records are not taken for one.
        check_crc: demand that the body passes its checksum.

    Raises:
        ValueError: start and stop are not within data, or data is too large.
    """
    view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
    limit = len(view)
    end = limit if stop is None else stop
    if limit > DATA_SIZE_MAX or not 0 <= start <= end <= limit:
        raise ValueError(
            f"search from {start} to {end} of {limit} bytes: allowed is a range within "
            f"at most {DATA_SIZE_MAX}"
        )
    kernel = runtime.native("find")
    if kernel is None:
        return _reference_find(view, base, start, end, own_position, record_size_max, check_crc)
    arguments = array("q", bytes(8 * at.FIND_ARGUMENTS))
    arguments[at.FIND_DATA] = address(view)
    arguments[at.FIND_LIMIT] = limit
    arguments[at.FIND_BASE] = base
    arguments[at.FIND_START] = start
    arguments[at.FIND_STOP] = end
    arguments[at.FIND_OWN_POSITION] = own_position
    arguments[at.FIND_SIZE_MAX] = record_size_max
    arguments[at.FIND_CHECK_CRC] = check_crc
    found = kernel(arguments)
    return found if found >= 0 else None


def reference_find_record(
    data: Buffer,
    *,
    base: int = 0,
    start: int = 0,
    stop: int | None = None,
    own_position: bool = True,
    record_size_max: int = DATA_SIZE_MAX,
    check_crc: bool = True,
) -> int | None:
    """`find_record` in plain Python."""
    view = memoryview(data)
    end = len(view) if stop is None else stop
    return _reference_find(view, base, start, end, own_position, record_size_max, check_crc)


_ANY_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")


def _reference_find(
    data: memoryview,
    base: int,
    start: int,
    stop: int,
    own_position: bool,
    record_size_max: int,
    check_crc: bool,
) -> int | None:
    position = start + MAGIC_POSITION
    while True:
        match = _ANY_MAGIC.search(data, position, min(stop + MAGIC_POSITION + 4, len(data)))
        if match is None or match.start() >= stop + MAGIC_POSITION:
            return None
        candidate = match.start() - MAGIC_POSITION
        own_offset = base + candidate if own_position else None
        parts = record_parts(data, candidate, len(data), own_offset, record_size_max)
        if not isinstance(parts, NotRecord) and (not check_crc or body_fits(data, parts)):
            return candidate
        position = match.start() + 1
