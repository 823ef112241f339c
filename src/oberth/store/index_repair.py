"""Builds index files that contradict themselves anew from the records they cover.

Runs after recovery and its dispatch, before anybody puts: `IndexService.damaged` tells what to do.
"""

from __future__ import annotations

from collections.abc import Iterator

from oberth.formats.message import Blank, DispatchRequest, read_dispatch_request
from oberth.store.index_service import IndexService
from oberth.store.log_scan import find_record
from oberth.store.mapped_file_queue import MappedFileQueue


def rebuild_damaged_files(index: IndexService, queue: MappedFileQueue) -> list[str]:
    """Puts every damaged file right; the names of those that were.

    Args:
        index: loaded; it goes on being usable meanwhile.
        queue: the CommitLog's segments, recovered.

    Raises:
        StoreFullError: the disk has no room for a file beside the damaged one.
    """
    names = []
    for damage in list(index.damaged):
        index.rebuild(damage, requests_between(queue, damage.start, damage.stop))
        names.append(damage.name)
    return names


def requests_between(queue: MappedFileQueue, start: int, stop: int) -> Iterator[DispatchRequest]:
    """The records that start within [start, stop] of the CommitLog, damage stepped over."""
    start = max(start, queue.min_offset)
    for segment in queue.segments_between(start, stop + 1):
        base = segment.start_offset
        position = max(start - base, 0)
        limit = segment.read_position
        while position < limit and base + position <= stop:
            request = read_dispatch_request(segment.buffer, position, limit, base)
            if isinstance(request, DispatchRequest):
                yield request
                position += request.record_size
            elif isinstance(request, Blank):
                break
            else:
                following = find_record(segment, position + 1, check_crc=True)
                position = limit if following is None else following
