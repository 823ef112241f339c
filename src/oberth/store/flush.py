"""When appended messages reach the disk, and who waits for it.

What "acknowledged" means, and what a power cut may take with it:

    flushDiskType                     acknowledged when             lost at most
    SYNC_FLUSH                        synced                        nothing
    ASYNC_FLUSH                       in the page cache             flushCommitLogThoroughInterval (10 s)
    ASYNC_FLUSH with transient pool   in memory of this process     the same; a kill of the process:
                                                                    commitCommitLogThoroughInterval (0.2 s)

A killed process keeps its page cache, so without the pool a kill loses nothing.

SYNC_FLUSH is group commit: see `oberth.store.group_commit`.

RocketMQ: GroupCommitService, FlushRealTimeService, CommitRealTimeService.
"""  # noqa: E501 - the table

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from oberth.errors import StoreFullError
from oberth.formats.message_store_config import FlushDiskType, MessageStoreConfig
from oberth.store.group_commit import AppendEach, Done, GroupCommit
from oberth.store.mapped_file_queue import MappedFileQueue
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from oberth.store.running_flags import RunningFlag, RunningFlags

_LOG: Final = logging.getLogger(__name__)

# How often an idle group commit thread looks whether something was left unflushed, seconds.
_IDLE_S: Final = 0.5
_SHUTDOWN_ROUNDS: Final = 10


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
        append: AppendEach,
        on_flushed: Callable[[int], None] = lambda _store_timestamp: None,
        on_failed: Callable[[int], None] = lambda _flushed_where: None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._flags = flags
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self.is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._wake_flush = threading.Event()
        self.group = GroupCommit(config, queue, append, self._sync_all, self._wake_flush.set)
        self._wake_commit = threading.Event()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._flush_lock = threading.Lock()  # one walk of flushed_where at a time
        self.is_broken = False
        """Whether a sync failed: nothing more is tried, see `_sync`."""

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
        self.group.finish()

    # Waiting for durability

    def put(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """See GroupCommit.put."""
        return self.group.put(message)

    def wait_durable(self, end_offset: int) -> PutMessageStatus:
        """See GroupCommit.wait_durable."""
        return self.group.wait_durable(end_offset)

    def when_durable(self, end_offset: int, done: Done) -> None:
        """Calls ``done`` once the log is synced up to an offset, at once if it is already.

        The call comes from the group commit thread (or from a thread that leads it); an event loop
        hands over a callback that posts to itself. Needs `start`.
        """
        self.group.when_durable(end_offset, done)

    def _sync_all(self) -> bool:
        self._commit(0)
        return self._flush_to_end()

    def _flush_to_end(self) -> bool:
        """Syncs everything that could be read when it was called; False if it cannot be done."""
        with self._flush_lock:
            if not self._sync(lambda: self._queue.flush_to(self._queue.max_offset)):
                return False
        if self._queue.store_timestamp > 0:
            self._on_flushed(self._queue.store_timestamp)
        return True

    def _sync(self, sync: Callable[[], object]) -> bool:
        # After a failed sync the kernel may have dropped the pages, and the next one would succeed
        # without them: nothing after the last good sync can be vouched for any more, so none is
        # tried and no more puts are taken until the store is opened, and recovered, again: which
        # writes it anew, see `oberth.store.unsynced_log`.
        if self.is_broken:
            return False
        try:
            sync()
        except OSError as error:
            self.is_broken = True
            self._on_failed(self._queue.flushed_where)
            self._flags.set(RunningFlag.NOT_WRITEABLE)
            _LOG.critical(
                "the CommitLog could not be synced, the store takes no more messages: %s",
                error,
            )
            return False
        return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is synced meanwhile: for one who ends the log earlier."""
        with self._flush_lock:
            yield

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
        if not self.group.lead_if_nobody_does():
            self._sync_all()
        return self._queue.flushed_where

    def _run_group_commit(self) -> None:
        while not self._stopped.is_set():
            self._wake_flush.wait(_IDLE_S)
            self._wake_flush.clear()
            self.group.lead_if_nobody_does()

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
                _LOG.error("the write buffer could not be copied into the CommitLog: %s", error)
                return True
        return done
