"""Which records a reader wants: masks over what was read of a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oberth.formats import sys_flag as flags
from oberth.formats.properties import decode_properties
from oberth.spark.batches import Records
from oberth.spark.log_tail import further_offsets

if TYPE_CHECKING:
    from oberth.spark.predicates import Interval
    from oberth.spark.store_files import StoreFiles

_HEADER_SIZE: Final = 76
"""What a record has to show for its store time to be known, and records of how many bytes on
average are looked at by their headers first."""
_HEADERS_PAY: Final = 256
_HEADERS_AT_ONCE: Final = 1 << 16


def within(records: Records, limits: Mapping[tuple[str, int], tuple[int, int]]) -> Any:
    """Records whose queue offset is within the limits of their queue."""
    columns = records.columns
    queue_ids = columns["queue_id"].astype(np.int64)
    codes = (columns["topic_id"].astype(np.int64) << 32) | (queue_ids & 0xFFFFFFFF)
    keep = np.zeros(records.count, bool)
    offsets = columns["queue_offset"]
    inner = (columns["sys_flag"] & flags.INNER_BATCH) != 0
    for code in np.unique(codes).tolist():
        topic = records.topics[code >> 32].decode("utf-8", "replace")
        limit = limits.get((topic, code & 0xFFFFFFFF))
        if limit is not None:
            # Of an inner batch this is the first offset; its messages are looked at one by one.
            reaches = (offsets >= limit[0]) | inner
            keep |= (codes == code) & reaches & (offsets < limit[1])
    return keep


def interval_masks(values: Any, interval: Any) -> list[Any]:
    masks = []
    if interval.low is not None:
        masks.append(values >= interval.low)
    if interval.high is not None:
        masks.append(values <= interval.high)
    return masks


def has_tag(records: Records, wanted: frozenset[bytes]) -> Any:
    data = records.data
    found = [
        size > 0 and bytes(data[at : at + size]) in wanted
        for at, size in zip(
            records.columns["tags_at"].tolist(), records.columns["tags_size"].tolist(), strict=True
        )
    ]
    return np.array(found, bool)


def matching(records: Records, sql: Callable[[Mapping[str, str]], bool]) -> Any:
    """Records whose properties satisfy an expression; inner batches are looked at by item."""
    inner = ((records.columns["sys_flag"] & flags.INNER_BATCH) != 0).tolist()
    found = [
        inner[number] or sql(decode_properties(records.bytes_of(number, "properties")))
        for number in range(records.count)
    ]
    return np.array(found, bool)


def numbers_said(records: Records, rows: Any, topic: str, offsets: Any) -> Any:
    """The number that each of some records says it has in a further queue; -1 if none.

    Args:
        records: all records.
        rows: of which to look at these.
        topic: the further queue.
        offsets: by row the number that is to be found, where a record says several.
    """
    found = []
    for row, offset in zip(rows.tolist(), offsets[rows].tolist(), strict=True):
        said = [
            number
            for name, number in further_offsets(records.bytes_of(row, "properties"))
            if name == topic
        ]
        found.append(offset if offset in said else said[0] if said else -1)
    return np.array(found, np.int64)


def near_in_time(store: StoreFiles, positions: Any, sizes: Any, times: Interval) -> Any:
    """Records whose header does not rule them out by its store time: a mask.

    A header that is not what its unit promises rules nothing out: reading will report it.
    """
    near = np.ones(len(positions), bool)
    if not len(positions) or int(sizes.mean()) < _HEADERS_PAY:
        return near
    for segment in store.segments():
        inside = np.flatnonzero(
            (positions >= segment.start) & (positions + _HEADER_SIZE <= segment.end)
        )
        view = store.storage.view(segment.path, segment.size) if len(inside) else None
        if view is None:
            continue
        bytes_of = np.frombuffer(view, np.uint8)
        for first in range(0, len(inside), _HEADERS_AT_ONCE):
            some = inside[first : first + _HEADERS_AT_ONCE]
            places = (positions[some] - segment.start)[:, None] + np.arange(_HEADER_SIZE)
            heads = bytes_of[places]
            store.storage.bytes_read += heads.size
            promised = _field(heads, 0, ">i4") == sizes[some]
            promised &= _field(heads, 28, ">i8") == positions[some]
            v6 = (_field(heads, 36, ">i4") & flags.BORN_HOST_V6) != 0
            stored = np.where(v6, _field(heads, 68, ">i8"), _field(heads, 56, ">i8"))
            outside = np.zeros(len(some), bool)
            for mask in interval_masks(stored, times):
                outside |= ~mask
            near[some] = ~(promised & outside)
    return near


def _field(heads: Any, at: int, kind: str) -> Any:
    """A field of headers that lie in the rows of a matrix of bytes."""
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(heads[:, at : at + size]).view(kind)[:, 0]
