"""Reput: reads appended records back from the CommitLog, in order, and has them dispatched.

Runs on a thread of its own, or on the caller's: a broker calls `dispatch_nowait` right after a
burst of puts, so that consumers are woken without a hand-over between threads. Small backlogs go
record by record; large ones through the compiled kernels, which do not hold the GIL.

RocketMQ: ReputMessageService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from oberth.errors import StoreFullError
from oberth.formats.message import Blank, DispatchRequest, read_dispatch_request
from oberth.store.commit_log import CommitLog
from oberth.store.dispatch import CommitLogDispatcher
from oberth.store.log_scan import find_behind
from oberth.store.mapped_file import MappedFile
from oberth.store.running_flags import RunningFlag, RunningFlags

_LOG: Final = logging.getLogger(__name__)
# From this backlog on the bulk path is used: a step costs some 130 us for any number of records,
# where one by one each takes about 10 us.
BULK_BYTES: Final = 8 * 1024
# What one round takes before it lets go of the lock.
_ROUND_BYTES: Final = 4 << 20
_IDLE_S: Final = 0.1
# How long a round waits for company after the first record (RocketMQ: 1 ms). A record by
# itself takes the GIL from those who put: with SYNC_FLUSH and one caller 0.08 ms of 0.26 a message.
_GATHER_S: Final = 0.005
_FAILURE_PAUSE_S: Final = 0.5


class ReputPosition(NamedTuple):
    """What was dispatched.

    Attributes:
        offset: CommitLog offset up to which.
        last_record: where the record that ends there starts.
        store_timestamp: of that record, ms.
        queue_end: the highest record end that a queue holds.
        queue_count: how many queues there are.
        queue_units: the sum of their next queue offsets; -1: not known.
        queue_begins: the sum of the positions at which their files begin; -1: not known.
        log_begin: where the CommitLog began, when queue_begins was not taken yet.
    """

    offset: int
    last_record: int
    store_timestamp: int
    queue_end: int
    queue_count: int
    queue_units: int = -1
    queue_begins: int = -1
    log_begin: int = -1


class ReputService:
    """Keeps `offset`, up to where records were dispatched. One round at a time."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: CommitLogDispatcher,
        flags: RunningFlags,
        end_offset: Callable[[], int],
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._flags = flags
        self._end_offset = end_offset
        self.offset = 0
        # Where the record that was dispatched last starts, and when it was stored.
        self.last_record = -1
        self.last_store_timestamp = 0
        # Where recovery found no record, and where the next one is.
        self.damages: Mapping[int, int] = {}
        # Where the log ended when it was opened: nothing is to come of what lies before.
        self.found_end = 0
        self.bulk_bytes = BULK_BYTES
        self._lock = threading.RLock()  # guards a round
        self._wake = threading.Event()
        self._idle = False
        self._stopped = True
        self._failed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="oberth-reput", daemon=True)
        self._thread.start()

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Dispatches what is left, for at most so long, and stops the thread."""
        deadline = time.monotonic() + timeout_s
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while self.behind_bytes > 0 and time.monotonic() < deadline:
            before = self.offset
            self.dispatch_nowait()
            if self.offset == before:
                break

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that wait to be dispatched."""
        return max(self._end_offset() - self.offset, 0)

    def position(self) -> ReputPosition:
        """How far dispatch has come, all taken between two rounds."""
        queues = self._dispatcher.queues
        with self._lock:
            log_begin = self._log.min_offset
            return ReputPosition(
                self.offset,
                self.last_record,
                self.last_store_timestamp,
                queues.max_physic_offset,
                sum(len(table) for table in queues.table.values()),
                queues.units,
                queues.begins,
                log_begin,
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No round runs meanwhile: for one who wants the last blocks of a full disk for itself."""
        with self._lock:
            yield

    @property
    def is_failing(self) -> bool:
        """Whether the last round could not write what it had to."""
        return self._failed

    @property
    def is_idle(self) -> bool:
        """Whether the thread waits for something to be appended."""
        return self._idle

    def wake(self) -> None:
        """Says that something was appended. Cheap when the thread is busy anyway."""
        if self._idle:
            self._wake.set()

    def _run(self) -> None:
        failed_at = -1
        while not self._stopped:
            end = self._end_offset()
            try:
                dispatched = self.dispatch_nowait()
            except Exception:  # noqa: BLE001 - logged whole, and tried again
                # Whatever a further dispatcher throws must not end the service: the record is
                # tried again, as nothing after it may overtake it.
                if failed_at != self.offset:
                    _LOG.exception(
                        "the dispatch of the log at %d failed, it is tried again", self.offset
                    )
                failed_at = self.offset
                self._failed = True
                dispatched = 0
            if self._failed:
                self._wake.wait(_FAILURE_PAUSE_S)
                self._wake.clear()
            elif not dispatched:
                self._idle = True
                if self._end_offset() == end and not self._stopped:
                    self._wake.wait(_IDLE_S)
                self._idle = False
                self._wake.clear()
                if not self._stopped:
                    time.sleep(_GATHER_S)

    def dispatch_nowait(self, *, notify: bool = True) -> int:
        """Dispatches what is there, about 4 MiB at most; returns the bytes it went forward.

        A full disk is no exception here: the store stops taking messages, and the same records are
        tried again with the next call.
        """
        with self._lock:
            start = self.offset
            try:
                self._round(notify)
            except StoreFullError as error:
                if self._flags.set(RunningFlag.LOGIC_DISK_FULL):
                    _LOG.error(
                        "the dispatch of the log stopped at %d, the disk is full: %s",
                        self.offset,
                        error,
                    )
                self._failed = True
            else:
                if self._failed:
                    self._flags.clear(RunningFlag.LOGIC_DISK_FULL)
                self._failed = False
            finally:
                self._dispatcher.end_burst()
            return self.offset - start

    def _round(self, notify: bool) -> None:
        log = self._log
        self.offset = max(self.offset, log.min_offset)
        end = self._end_offset()
        stop = self.offset + _ROUND_BYTES
        dispatch = self._dispatcher.dispatch
        delays_ms = log.delays_ms
        while self.offset < end and self.offset < stop:
            segment = log.queue.find(self.offset)
            if segment is None:
                return
            base = segment.start_offset
            position = self.offset - base
            limit = min(segment.read_position, end - base)
            if limit <= position:
                return
            if limit - position >= self.bulk_bytes:
                position = self._bulk(segment.buffer, base, position, limit, stop, notify)
            buffer = segment.buffer
            while position < limit:
                request = read_dispatch_request(buffer, position, limit, base, delays_ms=delays_ms)
                if type(request) is DispatchRequest:
                    dispatch(request, notify=notify)
                    self.last_record = base + position
                    self.last_store_timestamp = request.store_timestamp
                    position += request.record_size
                    self.offset = base + position
                    if self.offset >= stop:
                        return
                elif type(request) is Blank:
                    position = limit
                    self.offset = segment.end_offset
                else:
                    following = self._behind(segment, position, limit)
                    if following is None:
                        return  # a master sends records in pieces: the rest is to come
                    _LOG.error(
                        "%s: bytes %d to %d hold no record (%s), dispatch goes on behind them",
                        segment.path,
                        position,
                        following,
                        getattr(request, "reason", ""),
                    )
                    position = following
                    self.offset = base + position

    def _behind(self, segment: MappedFile, bad: int, limit: int) -> int | None:
        """Where dispatch goes on after a position that holds no record; None: not yet known."""
        known = self.damages.get(segment.start_offset + bad)
        if known is not None:
            return known - segment.start_offset
        following = find_behind(segment, bad, check_crc=True, limit=limit)
        # Replicas confirm bytes: what may be shown ends anywhere in a record that is whole.
        has_more = limit < segment.read_position
        at_end = limit == segment.file_size or segment.start_offset + limit <= self.found_end
        if following is None and at_end and not has_more:
            return limit
        return following

    def _bulk(
        self, buffer: memoryview, base: int, position: int, limit: int, stop: int, notify: bool
    ) -> int:
        """Takes as many records as the kernels can; returns the position reached."""
        reached = self._dispatcher.dispatch_segment(
            buffer, base, position, min(limit, stop - base), notify=notify
        )
        if reached is None:
            return position
        self.last_record, self.last_store_timestamp = reached.last_record, reached.store_timestamp
        self.offset = base + reached.position
        return reached.position
