"""TimerService: gives the timer its time, on the broker's loop, and its flushes, in a thread.

Deliveries go in small batches with a turn of the loop between them, so that requests go on while a
hundred thousand messages are due in one second. RocketMQ: the threads of TimerMessageStore.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Final

from oberth.errors import StoreError
from oberth.formats.message_store_config import BrokerRole
from oberth.store.timer.timer_message_store import TimerFlush, TimerMessageStore

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker

_LOG: Final = logging.getLogger("oberth.timer")

STEP_SIZE: Final = 200
"""Messages taken in and delivered in one turn of the loop: some 5 ms."""


class TimerService:
    """The timed messages of a broker. One of its parts."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.store = TimerMessageStore(broker.store, lambda: broker.store_host)
        self._flush_lock = threading.Lock()  # one flush at a time
        self._flushing = False
        self._step_scheduled = False
        self._is_open = False
        self._next_flush_ms = 0
        broker.parts.append(self)
        broker.ticks.append(self.on_time)
        broker.runtime_info_sources.append(self.store.runtime_info)

    def load(self) -> None:
        """See Part."""
        self.store.load(self._broker.now_ms())
        self._is_open = True

    def close(self) -> None:
        """See Part."""
        self._is_open = False
        with self._flush_lock:
            self.store.shutdown(self._broker.now_ms())

    def on_time(self, now_ms: int) -> None:
        """Called about every 100 ms."""
        if self._broker.store_config.broker_role is BrokerRole.SLAVE:
            return  # only a master delivers
        self._step()
        if now_ms >= self._next_flush_ms and not self._flushing:
            self._next_flush_ms = now_ms + self._broker.store_config.timer_flush_interval_ms
            work = self.store.begin_flush(now_ms)
            if work is not None:
                self._flushing = True
                loop = asyncio.get_running_loop()
                loop.run_in_executor(None, self._flush, work, loop)

    def _step(self) -> None:
        self._step_scheduled = False
        if not self._is_open:
            return
        broker = self._broker
        step = self.store.on_time(broker.now_ms(), STEP_SIZE)
        if step.appended:
            broker.dispatch_soon()
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
                _LOG.error("the timer could not be flushed, tried again: %s", error)
                failed = True
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._flushed, work, failed)

    def _flushed(self, work: TimerFlush, failed: bool) -> None:
        self._flushing = False
        if failed:
            self.store.give_back(work)
