"""Files of a sequence by the offset that each starts at, and the names of queues."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from oberth.errors import StoreCorruptError
from oberth.formats import paths
from oberth.spark.storage import Entry, Storage

RECORD_SIZE_MAX: Final = (64 << 20) + (64 << 10)
"""A broker's records have at most maxMessageSize (4 MiB unless set) and 64 KiB; larger sizes than
this are taken for damage."""


class Segment(NamedTuple):
    """One file of a sequence: the offset it starts at, its size in bytes, its path."""

    start: int
    size: int
    path: str

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.start + self.size


def list_segments(storage: Storage, *directories: str) -> list[Segment]:
    """The segments of directories in order; files with other names are left alone.

    Raises:
        StoreCorruptError: two files overlap.
    """
    found = []
    for directory in directories:
        found += _segments(directory, storage.entries(directory))
    return _in_order(found)


def segments_of(directory: str, entries: Iterable[Entry]) -> list[Segment]:
    """The segments among files whose names are relative to a directory, in order.

    Raises:
        StoreCorruptError: two files overlap.
    """
    return _in_order(_segments(directory, entries))


def _segments(directory: str, entries: Iterable[Entry]) -> list[Segment]:
    found = []
    for entry in entries:
        start = paths.segment_start(entry.name.rpartition("/")[2])
        if start is not None and entry.size > 0:
            found.append(Segment(start, entry.size, f"{directory}/{entry.name}"))
    return found


def _in_order(found: list[Segment]) -> list[Segment]:
    found.sort()
    for before, after in pairwise(found):
        if after.start < before.end:
            raise StoreCorruptError(
                f"{after.path} starts at {after.start}, but {before.path} reaches to {before.end}"
            )
    return found


def segment_at(segments: list[Segment], offset: int) -> Segment | None:
    """The segment that holds an offset, or None."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].end <= offset:
            low = middle + 1
        else:
            high = middle
    if low < len(segments) and segments[low].start <= offset:
        return segments[low]
    return None


class QueueName(NamedTuple):
    """A queue of one store."""

    topic: str
    queue: int
