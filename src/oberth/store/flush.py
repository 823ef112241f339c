"""When appended messages reach the disk, and who waits for it.

What "acknowledged" means, and what a power cut may take with it:

    flushDiskType                     acknowledged when             lost at most
    SYNC_FLUSH                        synced                        nothing
    ASYNC_FLUSH                       in the page cache             flushCommitLogThoroughInterval (10 s)
    ASYNC_FLUSH with transient pool   in memory of this process     the same; a kill of the process:
                                                                    commitCommitLogThoroughInterval (0.2 s)

A killed process keeps its page cache, so without the pool a kill loses nothing.

SYNC_FLUSH is group commit: whoever needs a sync first becomes the leader and syncs for all that were
appended before; those that come meanwhile wait for the next sync, which one of them leads. So one
caller pays one sync and no hand-over between threads, and sixty-four callers share one.

After a sync those it covers are woken one by one, each by the one before it, and the next leader
last. Woken all at once they would only queue for the GIL, two switches each instead of one, and by
the time the next leader runs most of them have put again and are covered by its sync. A turn that
takes longer than the sync did (callers that compute between puts) is cut short: all are woken.

RocketMQ: GroupCommitService, FlushRealTimeService, CommitRealTimeService.
"""  # noqa: E501 - the table

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

from oberth.errors import StoreFullError
from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.messages import PutMessageStatus
from oberth.store.running_flags import RunningFlag, RunningFlags

_log = logging.getLogger(__name__)

Done = Callable[[PutMessageStatus], None]
# How often an idle group commit thread looks whether something was left unflushed, seconds.
_IDLE_S = 0.5
_SHUTDOWN_ROUNDS = 10
# Callers are woken one by one for as long as their sync took, but at least so many seconds.
_WAKE_S_MIN = 0.001


class _Duty(Enum):
    """What a woken caller does before it returns."""

    NONE = 0
    WAKE = 1  # wakes the next one
    LEAD = 2  # syncs


class _Waiter:
    """One put that waits until the log is durable up to an offset: a caller, or a callback."""

    __slots__ = ("deadline", "done", "duty", "end_offset", "lock", "status")

    def __init__(self, done: Done | None = None) -> None:
        self.end_offset = 0
        self.deadline = 0.0
        self.done = done
        self.duty = _Duty.NONE
        self.status = PutMessageStatus.FLUSH_DISK_TIMEOUT
        self.lock = threading.Lock()  # held while its caller has to wait
        self.lock.acquire()

    def finish(self) -> None:
        """Tells who waits."""
        if self.done is not None:
            self.done(self.status)
        else:
            self.lock.release()


class _CallerWaiters(threading.local):
    """A thread waits for one put at a time, so one waiter serves all its life.

    It is None while in use: a wait that an exception ended, or that a signal's handler waits
    within, never shares it.
    """

    waiter: _Waiter | None = None


class FlushService:
    """Syncs the CommitLog and tells those who wait.

    Any thread may wait. `start` and `shutdown` belong to the store; before `start` and after
    `shutdown` a blocking wait still works, since the waiting thread can lead.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        queue: MappedFileQueue,
        flags: RunningFlags,
        on_flushed: Callable[[int], None] = lambda _store_timestamp: None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._flags = flags
        self._on_flushed = on_flushed
        self.is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._callers = _CallerWaiters()
        self._lock = threading.Lock()  # guards _waiters, _answered, _leading, _wake_until
        self._waiters: list[_Waiter] = []
        # Callers that a sync has answered and nobody has woken yet.
        self._answered: deque[_Waiter] = deque()
        self._wake_until = 0.0
        # Whether somebody syncs, or is going to once the answered have been woken.
        self._leading = False
        self._wake_flush = threading.Event()
        self._wake_commit = threading.Event()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._flush_lock = threading.Lock()  # one walk of flushed_where at a time
        self._is_broken = False
        self.flush_count = 0

    def start(self) -> None:
        """Starts the threads that the options ask for."""
        self._stopped.clear()
        targets: list[tuple[str, Callable[[], None]]] = []
        if self._config.transient_store_pool_enable:
            targets.append(("commit", self._run_commit))
        if self.is_sync:
            targets.append(("group-commit", self._run_group_commit))
        else:
            targets.append(("flush", self._run_flush))
        for name, target in targets:
            thread = threading.Thread(target=target, name=f"oberth-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def shutdown(self) -> None:
        """Stops the threads and syncs what is left."""
        self._stopped.set()
        self._wake_commit.set()
        self._wake_flush.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for _ in range(_SHUTDOWN_ROUNDS):
            if self._commit(0):
                break
        self.flush_now()
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.status = self._status_of(waiter.end_offset)
            waiter.finish()

    # Waiting for durability

    def wait_durable(self, end_offset: int) -> PutMessageStatus:
        """Blocks until the log is synced up to an offset, at most syncFlushTimeout.

        Returns PUT_OK or FLUSH_DISK_TIMEOUT; with the latter the message is in the log all the same
        and usually reaches the disk a little later.
        """
        if self._queue.flushed_where >= end_offset:
            return PutMessageStatus.PUT_OK
        timeout_s = self._config.sync_flush_timeout_ms / 1000
        callers = self._callers
        waiter = callers.waiter or _Waiter()
        callers.waiter = None
        with self._lock:
            lead_now = not self._leading
            if lead_now:
                self._leading = True
            else:
                waiter.end_offset = end_offset
                waiter.deadline = time.monotonic() + timeout_s
                waiter.duty = _Duty.NONE
                self._waiters.append(waiter)
        if lead_now:
            self._lead()
            status = self._status_of(end_offset)
        else:
            status = self._wait(waiter, timeout_s)
        callers.waiter = waiter
        return status

    def _wait(self, waiter: _Waiter, timeout_s: float) -> PutMessageStatus:
        """Blocks until the waiter is answered, does its duty and returns its status."""
        try:
            if not waiter.lock.acquire(timeout=timeout_s):
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
                        return PutMessageStatus.FLUSH_DISK_TIMEOUT
                waiter.lock.acquire()
        except BaseException:  # a KeyboardInterrupt, say: others must not wait for this one
            with self._lock:
                for waiting in (self._waiters, self._answered):
                    if waiter in waiting:
                        waiting.remove(waiter)
            if waiter.duty is not _Duty.NONE:
                self._wake_next()
            raise
        if waiter.duty is _Duty.WAKE:
            self._wake_next()
        elif waiter.duty is _Duty.LEAD:
            self._lead()
            return self._status_of(waiter.end_offset)
        return waiter.status

    def when_durable(self, end_offset: int, done: Done) -> None:
        """Calls ``done`` once the log is synced up to an offset, at once if it is already.

        The call comes from the group commit thread (or from a thread that leads it); an event loop
        hands over a callback that posts to itself. Needs `start`.
        """
        if self._queue.flushed_where >= end_offset:
            done(PutMessageStatus.PUT_OK)
            return
        waiter = _Waiter(done)
        waiter.end_offset = end_offset
        waiter.deadline = time.monotonic() + self._config.sync_flush_timeout_ms / 1000
        with self._lock:
            self._waiters.append(waiter)
            wake = not self._leading
        if wake:
            self._wake_flush.set()

    def _status_of(self, end_offset: int) -> PutMessageStatus:
        if self._queue.flushed_where >= end_offset:
            return PutMessageStatus.PUT_OK
        return PutMessageStatus.FLUSH_DISK_TIMEOUT

    def _lead(self) -> None:
        """Syncs, answers those whom that covers, and begins to wake them."""
        self._commit(0)
        began = time.monotonic()
        try:
            synced = self._flush_to_end()
        except BaseException:
            self._wake_next()
            raise
        now = time.monotonic()
        flushed = self._queue.flushed_where
        callbacks: list[_Waiter] = []
        with self._lock:
            waiting: list[_Waiter] = []
            for waiter in self._waiters:
                if waiter.end_offset <= flushed:
                    waiter.status = PutMessageStatus.PUT_OK
                elif waiter.deadline <= now or not synced:
                    waiter.status = PutMessageStatus.FLUSH_DISK_TIMEOUT
                else:
                    waiting.append(waiter)
                    continue
                (callbacks if waiter.done is not None else self._answered).append(waiter)
            self._waiters = waiting
            self._wake_until = now + max(now - began, _WAKE_S_MIN)
        for waiter in callbacks:
            waiter.finish()
        self._wake_next()

    def _wake_next(self) -> None:
        """Wakes the next answered caller; after the last one, or in time, the next leader."""
        answered = self._answered
        with self._lock:
            if answered and time.monotonic() < self._wake_until:
                waiter = answered.popleft()
                waiter.duty = _Duty.WAKE
                woken = [waiter]
            else:
                woken = []
                for waiter in self._waiters:
                    if waiter.done is None:
                        waiter.duty = _Duty.LEAD
                        self._waiters.remove(waiter)
                        woken.append(waiter)
                        break
                else:
                    self._leading = False
                    if self._waiters:
                        self._wake_flush.set()
                woken += answered
                answered.clear()
        for waiter in woken:
            waiter.lock.release()

    def _flush_to_end(self) -> bool:
        """Syncs everything that could be read when it was called; False if it cannot be done."""
        with self._flush_lock:
            if not self._sync(lambda: self._queue.flush_to(self._queue.max_offset)):
                return False
        self.flush_count += 1
        if self._queue.store_timestamp > 0:
            self._on_flushed(self._queue.store_timestamp)
        return True

    def _sync(self, sync: Callable[[], object]) -> bool:
        # After a failed sync the kernel may have dropped the pages, and the next one would succeed
        # without them: nothing behind the last good sync can be vouched for any more, so none is
        # tried and no more puts are taken until the store is opened, and recovered, again.
        if self._is_broken:
            return False
        try:
            sync()
        except OSError as error:
            self._is_broken = True
            self._flags.set(RunningFlag.NOT_WRITEABLE)
            _log.critical("sync of the CommitLog failed, the store takes no more: %s", error)
            return False
        return True

    # What runs in the background

    def wake(self) -> None:
        """Says that something was appended; cheap, for every burst."""
        if self._config.transient_store_pool_enable:
            if self._config.wake_commit_when_put_message:
                self._wake_commit.set()
        elif not self.is_sync and (
            self._config.wake_flush_when_put_message or not self._config.flush_commit_log_timed
        ):
            self._wake_flush.set()

    def flush_now(self) -> int:
        """Commits and syncs everything, answers those who waited for it.

        Returns up to where the log is on the disk.
        """
        if not self._lead_if_nobody_does():
            self._commit(0)
            self._flush_to_end()
        return self._queue.flushed_where

    def _lead_if_nobody_does(self) -> bool:
        with self._lock:
            if self._leading:
                return False
            self._leading = True
        self._lead()
        return True

    def _run_group_commit(self) -> None:
        while not self._stopped.is_set():
            self._wake_flush.wait(_IDLE_S)
            self._wake_flush.clear()
            self._lead_if_nobody_does()

    def _run_flush(self) -> None:
        config = self._config
        last_thorough = time.monotonic()
        while not self._stopped.is_set():
            least_pages = config.flush_commit_log_least_pages
            now = time.monotonic()
            if (now - last_thorough) * 1000 >= config.flush_commit_log_thorough_interval_ms:
                last_thorough = now
                least_pages = 0
            interval_s = config.flush_interval_commit_log_ms / 1000
            if config.flush_commit_log_timed and not config.wake_flush_when_put_message:
                self._stopped.wait(interval_s)
            else:
                self._wake_flush.wait(interval_s)
                self._wake_flush.clear()
            if least_pages == 0:
                self._flush_to_end()
                continue
            with self._flush_lock:
                self._sync(lambda: self._queue.flush(config.flush_commit_log_least_pages))

    def _run_commit(self) -> None:
        config = self._config
        last_thorough = time.monotonic()
        while not self._stopped.is_set():
            least_pages = config.commit_commit_log_least_pages
            now = time.monotonic()
            if (now - last_thorough) * 1000 >= config.commit_commit_log_thorough_interval_ms:
                last_thorough = now
                least_pages = 0
            if not self._commit(least_pages):
                last_thorough = now
                self._wake_flush.set()
            self._wake_commit.wait(config.commit_interval_commit_log_ms / 1000)
            self._wake_commit.clear()

    def _commit(self, least_pages: int) -> bool:
        """Moves what lies in write buffers into the files; True when nothing was left."""
        queue = self._queue
        if not self._config.transient_store_pool_enable:
            queue.committed_where = queue.max_offset
            return True
        with self._flush_lock:
            try:
                done = queue.commit(least_pages)
                while least_pages == 0 and not queue.commit(0):
                    pass
            except (OSError, StoreFullError) as error:
                self._flags.set(RunningFlag.DISK_FULL)
                _log.error("commit of the write buffer failed: %s", error)
                return True
        return done
