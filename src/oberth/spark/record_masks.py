"""Which records a reader wants: masks over what was read of a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oberth.formats import sys_flag as flags
from oberth.formats.properties import decode_properties, find_property
from oberth.spark.batches import Records


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


def names_queue(records: Records, topic: bytes) -> Any:
    """Records whose multi-dispatch property names a queue."""
    found = []
    for number in range(records.count):
        value = find_property(records.bytes_of(number, "properties"), b"INNER_MULTI_DISPATCH")
        found.append(value is not None and topic in value.split(b","))
    return np.array(found, bool)
