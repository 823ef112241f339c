"""Which scanned records are damaged though a scan took them for records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from oberth.errors import NotFoundError
from oberth.formats.message import BLANK, FIXED, HOST_BITS
from oberth.formats.property_crc import CRC_PROPERTY, record_crc_ok
from oberth.formats.torn_record import SECTOR_SIZE, lacks_a_sector
from oberth.spark.batches import Records
from oberth.spark.record_starts import RecordStarts
from oberth.spark.store_files import StoreFiles

_CRC_MARK: Final = f"{CRC_PROPERTY}\x01".encode()


def damaged(store: StoreFiles | None, records: Records) -> tuple[Any, dict[int, str]]:
    """A mask of records that fail a checksum or lack a part, and what some of them lack.

    Args:
        store: which the records are of; None for a live broker's, which are looked at alone.
        records: scanned with their CRC.
    """
    bad = records.columns["crc_ok"] == 0
    for number in _with_record_crc(records):
        at = int(records.columns["commit_log_offset"][number])
        size = int(records.columns["record_size"][number])
        start = int(records.columns["body_at"][number]) - _body_position(records, number)
        if at >= 0 and record_crc_ok(records.data[start : start + size]) is False:
            bad[number] = True
    torn: dict[int, str] = {}
    if store is not None:
        sectors = _without_sectors(store, records)
        torn |= dict.fromkeys(sectors, "a sector of zeros is in its properties")
        torn |= dict.fromkeys(_without_end(store, records), "its properties end in zeros")
    bad[list(torn)] = True
    return bad, torn


def _with_record_crc(records: Records) -> Iterator[int]:
    """Records that end in a whole-record CRC.

    A broker writes them for all messages or for none, so a look at three records is enough to
    know whether the others have to be looked at.
    """
    ends = records.columns["properties_at"] + records.columns["properties_size"]
    if records.count == 0:
        return
    data = records.data
    candidates = [0, records.count // 2, records.count - 1]
    if not any(_has_crc_tail(data, int(ends[n])) for n in candidates):
        return
    for number, end in enumerate(ends.tolist()):
        if _has_crc_tail(data, end):
            yield number


def _has_crc_tail(data: Any, end: int) -> bool:
    return bytes(data[max(end - 20, 0) : end - 11]) == _CRC_MARK


def _without_end(store: StoreFiles, records: Records) -> Iterator[int]:
    """Records that lack the end of their properties: it ends in zeros, and damage follows.

    No checksum covers properties. A page that never reached the disk took them and what follows;
    what is whole may end in a zero, but then a record follows, or it is the log's last.
    """
    columns = records.columns
    sizes = columns["properties_size"]
    lasts = columns["properties_at"].astype(np.int64) + sizes - 1
    zeros = (sizes > 0) & (np.frombuffer(records.data, np.uint8)[lasts] == 0)
    suspects = np.flatnonzero(zeros).tolist()
    log_end = store.log_end() if suspects else 0
    for number in suspects:
        start = int(columns["stored_offset"][number])
        end = start + int(columns["record_size"][number])
        segment = store.segment_of(start)
        if segment is None or segment.end - end < BLANK.size or end >= log_end:
            continue
        with contextlib.suppress(NotFoundError):
            if not RecordStarts(store).may_follow(segment, end):
                yield number


def _without_sectors(store: StoreFiles, records: Records) -> Iterator[int]:
    """Records that lack a sector in the middle of their properties."""
    columns = records.columns
    for number in np.flatnonzero(columns["properties_size"] >= SECTOR_SIZE).tolist():
        size = int(columns["properties_size"][number])
        end = int(columns["properties_at"][number]) + size
        start = end - int(columns["record_size"][number])
        at = int(columns["stored_offset"][number])
        segment = store.segment_of(at)
        base = at - (segment.start if segment is not None else 0) - start
        if lacks_a_sector(records.data, start, end, size, base=base):
            yield number


def _body_position(records: Records, number: int) -> int:
    sys_flag = int(records.columns["sys_flag"][number])
    return FIXED[sys_flag & HOST_BITS].size
