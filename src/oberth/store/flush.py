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

RocketMQ: GroupCommitService, FlushRealTimeService, CommitRealTimeService.
"""  # noqa: E501 - the table

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

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


class _Waiter:
    """One put that waits until the log is durable up to an offset."""

    __slots__ = ("deadline", "done", "end_offset", "leads", "lock", "status")

    def __init__(self, end_offset: int, deadline: float, done: Done | None) -> None:
        self.end_offset = end_offset
        self.deadline = deadline
        self.done = done
        self.leads = False
        self.status = PutMessageStatus.FLUSH_DISK_TIMEOUT
        self.lock: threading.Lock | None = None
        if done is None:
            self.lock = threading.Lock()
            self.lock.acquire()

    def finish(self, status: PutMessageStatus) -> None:
        self.status = status
        if self.done is not None:
            self.done(status)
        elif self.lock is not None:
            self.lock.release()


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
        self._lock = threading.Lock()  # guards _waiters, _leading
        self._waiters: list[_Waiter] = []
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
            waiter.finish(self._status_of(waiter))

    # Waiting for durability

    def wait_durable(self, end_offset: int) -> PutMessageStatus:
        """Blocks until the log is synced up to an offset, at most syncFlushTimeout.

        Returns PUT_OK or FLUSH_DISK_TIMEOUT; with the latter the message is in the log all the same
        and usually reaches the disk a little later.
        """
        if self._queue.flushed_where >= end_offset:
            return PutMessageStatus.PUT_OK
        timeout_s = self._config.sync_flush_timeout_ms / 1000
        waiter = _Waiter(end_offset, time.monotonic() + timeout_s, None)
        with self._lock:
            lead_now = not self._leading
            if lead_now:
                self._leading = True
            else:
                self._waiters.append(waiter)
        if lead_now:
            self._lead()
            return self._status_of(waiter)
        assert waiter.lock is not None
        if not waiter.lock.acquire(timeout=timeout_s):
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                    return PutMessageStatus.FLUSH_DISK_TIMEOUT
            waiter.lock.acquire()
        if waiter.leads:
            self._lead()
            return self._status_of(waiter)
        return waiter.status

    def when_durable(self, end_offset: int, done: Done) -> None:
        """Calls ``done`` once the log is synced up to an offset, at once if it is already.

        The call comes from the group commit thread (or from a thread that leads it); an event loop
        hands over a callback that posts to itself. Needs `start`.
        """
        if self._queue.flushed_where >= end_offset:
            done(PutMessageStatus.PUT_OK)
            return
        deadline = time.monotonic() + self._config.sync_flush_timeout_ms / 1000
        with self._lock:
            self._waiters.append(_Waiter(end_offset, deadline, done))
            wake = not self._leading
        if wake:
            self._wake_flush.set()

    def _status_of(self, waiter: _Waiter) -> PutMessageStatus:
        if self._queue.flushed_where >= waiter.end_offset:
            return PutMessageStatus.PUT_OK
        return PutMessageStatus.FLUSH_DISK_TIMEOUT

    def _lead(self) -> None:
        """Syncs, answers those whom that covers, and hands the lead on if others wait."""
        while True:
            self._commit(0)
            synced = self._flush_to_end()
            flushed = self._queue.flushed_where
            next_leader: _Waiter | None = None
            answered: list[tuple[_Waiter, PutMessageStatus]] = []
            now = time.monotonic()
            with self._lock:
                waiting: list[_Waiter] = []
                for waiter in self._waiters:
                    if waiter.end_offset <= flushed:
                        answered.append((waiter, PutMessageStatus.PUT_OK))
                    elif waiter.deadline <= now or not synced:
                        answered.append((waiter, PutMessageStatus.FLUSH_DISK_TIMEOUT))
                    elif next_leader is None and waiter.lock is not None:
                        next_leader = waiter
                    else:
                        waiting.append(waiter)
                self._waiters = waiting
                again = next_leader is None and bool(waiting)
                if next_leader is not None:
                    next_leader.leads = True
                elif not again:
                    self._leading = False
            for waiter, status in answered:
                waiter.finish(status)
            if next_leader is not None:
                assert next_leader.lock is not None
                next_leader.lock.release()
                return
            if not again:
                return

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
        """Commits and syncs everything; returns up to where the log is on the disk."""
        self._commit(0)
        self._flush_to_end()
        return self._queue.flushed_where

    def _run_group_commit(self) -> None:
        while not self._stopped.is_set():
            self._wake_flush.wait(_IDLE_S)
            self._wake_flush.clear()
            with self._lock:
                lead = not self._leading
                if lead:
                    self._leading = True
            if lead:
                self._lead()

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
