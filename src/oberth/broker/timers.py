"""TimerService: gives the timer its time, on the broker's loop, and its flushes, in a thread.

A slave's timer takes in what its master's has taken in and delivers nothing, so that a slave that
is made a master goes on where the old one was.

Deliveries go in small batches with a turn of the loop between them, so that requests go on while a
hundred thousand messages are due in one second. RocketMQ: the threads of TimerMessageStore.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Final

from oberth.errors import StoreError
from oberth.formats import names
from oberth.store.timer.timer_message_store import TimerMessageStore
from oberth.store.timer.timer_steps import TimerFlush

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.old_messages import OldMessages, Record
    from oberth.broker.own_address import OwnAddress
    from oberth.formats.config_files import TimerMetrics
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.formats.timer_checkpoint import TimerCheckpoint
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

STEP_SIZE: Final = 200
"""Messages taken in and delivered in one turn of the loop: some 5 ms."""


class TimerService:
    """The timed messages of a broker. A FileKeeper."""

    def __init__(
        self,
        *,
        store_config: MessageStoreConfig,
        own: OwnAddress,
        store: MessageStore,
        now_ms: Callable[[], int],
        dispatch_soon: Callable[[], None],
        delivers: Callable[[], bool],
        old_messages: OldMessages,
    ) -> None:
        self._store_config = store_config
        self._old_messages = old_messages
        self._now_ms = now_ms
        self._dispatch_soon = dispatch_soon
        self._delivers = delivers
        self.store = TimerMessageStore(store, lambda: own.store_host)
        self.store.readable = self._readable
        self.store.are_readable = self._are_readable
        self._flush_lock = threading.Lock()  # one flush at a time
        self._flushing = False
        self._step_scheduled = False
        self._is_open = False
        self._next_flush_ms = 0

    def load(self) -> None:
        """See FileKeeper."""
        self.store.load(self._now_ms())
        self._is_open = True

    def close(self) -> None:
        """See FileKeeper."""
        self._is_open = False
        with self._flush_lock:
            self.store.shutdown(self._now_ms())

    def on_time(self, now_ms: int) -> None:
        """Called about every 100 ms."""
        self._step()
        if now_ms >= self._next_flush_ms and not self._flushing:
            self._next_flush_ms = now_ms + self._store_config.timer_flush_interval_ms
            work = self.store.begin_flush(now_ms)
            if work is not None:
                self._flushing = True
                loop = asyncio.get_running_loop()
                loop.run_in_executor(None, self._flush, work, loop)

    def follow(self, master: TimerCheckpoint) -> None:
        """See TimerMessageStore.follow."""
        if self._is_open:
            self.store.follow(master)

    def pass_by(self, other: TimerCheckpoint) -> None:
        """See TimerMessageStore.pass_by."""
        if self._is_open:
            self.store.pass_by(other)

    def take_metrics(self, metrics: TimerMetrics) -> None:
        """See TimerMessageStore.take_metrics."""
        if self._is_open:
            self.store.take_metrics(metrics)

    def _readable(self, offset: int, count: int) -> int:
        stretch = (names.TIMER_TOPIC, 0, offset, count)
        return self._old_messages.readable("timer's queue", stretch, self._step)

    def _are_readable(self, records: Callable[[], list[Record]]) -> bool:
        return self._old_messages.are_readable("timer", records, self._step)

    def _step(self) -> None:
        self._step_scheduled = False
        if not self._is_open:
            return
        if self._delivers():
            step = self.store.on_time(self._now_ms(), STEP_SIZE)
        else:
            step = self.store.on_time_of_slave(self._now_ms(), STEP_SIZE)
        if step.appended:
            self._dispatch_soon()
        if step.more and not self._step_scheduled:
            self._step_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _flush(self, work: TimerFlush, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: waits for the disk."""
        failed = False
        with self._flush_lock:
            if not self._is_open:
                return
            try:
                self.store.flush(work)
            except (OSError, StoreError) as error:
                _LOG.error(
                    "the timer could not be written to the disk, it is tried again: %s", error
                )
                failed = True
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._flushed, work, failed)

    def _flushed(self, work: TimerFlush, failed: bool) -> None:
        self._flushing = False
        if failed:
            self.store.give_back(work)
