"""Builds index files that contradict themselves anew from the records they cover.

Runs after recovery and its dispatch, before anybody puts: `IndexService.damaged` tells what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from oberth.errors import StoreFullError
from oberth.formats.message import Blank, DispatchRequest, read_dispatch_request
from oberth.store.index_service import IndexService
from oberth.store.log_scan import find_behind
from oberth.store.mapped_file_queue import MappedFileQueue

_LOG: Final = logging.getLogger(__name__)


def rebuild_damaged_files(index: IndexService, queue: MappedFileQueue) -> list[str]:
    """Puts every damaged file right; the names of those that were.

    Args:
        index: loaded; it goes on being usable meanwhile.
        queue: the CommitLog's segments, recovered.

    Where the disk has no room for a file beside the damaged one, it stays until the next start.
    """
    names = []
    for damage in list(index.damaged):
        try:
            index.rebuild(damage, requests_between(queue, damage.start, damage.stop))
        except StoreFullError as error:
            _LOG.error(
                "%s is damaged (%s) and could not be built again: %s",
                damage.name,
                damage.reason,
                error,
            )
            continue
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
                following = find_behind(segment, position, check_crc=True)
                position = limit if following is None else following
