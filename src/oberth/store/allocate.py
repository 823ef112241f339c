"""Creates the next CommitLog segments, and warms their pages, before they are needed.

A put that fills a segment asks for the next one and names the one after it; the latter is then
made in the background. Segments that were never used are deleted at shutdown; after a crash they
stay, empty and valid. RocketMQ: AllocateMappedFileService.

A segment that is in the making is never made a second time: both would be the same file, and what
deletes the one that was not used would delete the log.

The first write of a page through a mapping has the kernel make it, with others after it, full of
zeros: half the time of an append, and now and then 20 ms of it. So where room was made for appends
its pages are brought into the page cache here, which costs a third and keeps nobody waiting.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from oberth.errors import StoreError
from oberth.store.mapped_file import MappedFile

_LOG: Final = logging.getLogger(__name__)
WAIT_TIMEOUT_S: Final = 5.0
"""How long a put waits for a segment that is in the making."""


Create = Callable[[str, int], MappedFile]


class AllocateService:
    """Makes segments ahead. `next_segment` is called under the put lock."""

    def __init__(self, create: Create) -> None:
        self._create = create
        self._lock = threading.Lock()  # guards _ready, _wanted, _error
        self._wake = threading.Condition(self._lock)
        self._ready: dict[int, MappedFile] = {}
        self._wanted: dict[int, str] = {}
        self._making: int | None = None
        self._overdue: int | None = None  # what a put has waited for in vain
        self._cold: deque[tuple[MappedFile, int, int]] = deque()
        self._stopped = True
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="oberth-allocate", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stops the thread and deletes segments that were made and never used."""
        with self._wake:
            self._stopped = True
            self._wanted.clear()
            self._cold.clear()
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for segment in self._ready.values():
            segment.destroy(1000)
        self._ready.clear()

    def next_segment(
        self, directory: str, start_offset: int, directory_after: str, start_after: int
    ) -> MappedFile:
        """The segment that starts at an offset; orders the one after it.

        Raises:
            OSError, StoreFullError: it cannot be created now; a later call tries again.
        """
        with self._wake:
            self._wait_made(start_offset)
            segment = self._ready.pop(start_offset, None)
            self._wanted.pop(start_offset, None)
            for stale in [start for start in self._ready if start < start_offset]:
                self._ready.pop(stale).destroy(1000)
        if segment is None:
            segment = self._create(directory, start_offset)
        with self._wake:
            if not self._stopped and start_after not in self._ready:
                self._wanted[start_after] = directory_after
                self._wake.notify_all()
        return segment

    def _wait_made(self, start_offset: int) -> None:
        """Waits for a segment if it is in the making; later puts do not wait as long again."""
        if self._making != start_offset:
            return
        timeout_s = 0.0 if self._overdue == start_offset else WAIT_TIMEOUT_S
        if not self._wake.wait_for(lambda: self._making != start_offset, timeout_s):
            self._overdue = start_offset
            raise TimeoutError(f"the CommitLog segment at {start_offset} is still being made")

    def warm(self, segment: MappedFile, position: int, end: int) -> None:
        """Has pages of a segment warmed, see `MappedFile.warm_ahead`; returns at once."""
        with self._wake:
            if not self._stopped:
                self._cold.append((segment, position, end))
                self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopped or bool(self._cold) or bool(self._wanted))
                if self._stopped:
                    return
                cold = self._cold.popleft() if self._cold else None
            if cold is not None:
                held, position, end = cold
                if held.hold():
                    try:
                        held.read_ahead(position, end)
                    finally:
                        held.release()
                continue
            with self._wake:
                if not self._wanted:
                    continue
                start = min(self._wanted)
                directory = self._wanted.pop(start)
                self._making = start
            segment: MappedFile | None = None
            try:
                segment = self._create(directory, start)
            except (OSError, StoreError) as error:
                # Only made ahead: the put that needs it will ask again, and answer for it.
                _LOG.warning(
                    "the CommitLog segment at %d could not be made ahead of time: %s", start, error
                )
            with self._wake:
                if segment is not None:
                    self._ready[start] = segment
                self._making = self._overdue = None
                self._wake.notify_all()
