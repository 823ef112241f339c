"""Dispatch: what happens to a record once it is in the CommitLog.

In this order, as in RocketMQ: dispatchers that must come first (bitmaps for ConsumeQueueExt), the
queue, the light queues that the record names, the index, further dispatchers, and last the listener
that wakes waiting consumers. Prepared and rolled back records get no queue unit, rolled back ones
no index entry.

Every step may be repeated for the same record: what is done already is not done again.
RocketMQ: CommitLogDispatcher, DefaultMessageStore.doDispatch, MultiDispatchUtils.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from oberth.formats.message import DispatchRequest
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import LMQ_QUEUE_ID, allows_lmq, is_lmq, is_stored_topic
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from oberth.store.consume_queue_store import ConsumeQueueStore, Queue
from oberth.store.index_service import IndexService
from oberth.store.store_checkpoint import StoreCheckpoint

log = logging.getLogger(__name__)

_QUEUED = (TRANSACTION_NOT, TRANSACTION_COMMIT)

Dispatcher = Callable[[DispatchRequest], None]
ArrivalListener = Callable[[str, int, int, int, int, bytes | None, bytes], None]
"""(topic, queue id, max offset, tags code, store timestamp, bit map, properties)."""


class LightQueue(NamedTuple):
    """A further queue that a record belongs to, and its number there."""

    topic: str
    queue_id: int
    queue_offset: int


class CommitLogDispatcher:
    """The chain. `dispatch` is called by one thread at a time."""

    def __init__(
        self,
        config: MessageStoreConfig,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
    ) -> None:
        self.config = config
        self.queues = queues
        self.index = index
        self.checkpoint = checkpoint
        self.arrival_listener: ArrivalListener | None = None
        self._before: list[Dispatcher] = []
        self._behind: list[Dispatcher] = []

    def add_before(self, dispatcher: Dispatcher) -> None:
        """Adds a dispatcher that sees a record before its queue does."""
        self._before.append(dispatcher)

    def add(self, dispatcher: Dispatcher) -> None:
        """Adds a dispatcher that sees a record when queue and index have it.

        It sees a record again after a crash, and after an exception of its own or of a later one.
        """
        self._behind.append(dispatcher)

    def dispatch(self, request: DispatchRequest, *, notify: bool = True) -> None:
        """Dispatches one record.

        Args:
            request: the record.
            notify: whether the arrival listener is called.

        Raises:
            StoreFullError: the disk has no room. The record is to be dispatched again.
        """
        for dispatcher in self._before:
            dispatcher(request)
        transaction = request.sys_flag & TRANSACTION_MASK
        queue = None
        if transaction in _QUEUED:
            queue = self._queue(request)
        light: list[LightQueue] = []
        if queue is not None:
            queue.put_request(request)
            if self.config.enable_multi_dispatch:
                light = list(self.light_queues(request))
                for topic, queue_id, queue_offset in light:
                    self.queues.find_or_create(topic, queue_id).put_light(request, queue_offset)
            self.checkpoint.values.logics_msg_timestamp = request.store_timestamp
        if self.index is not None:
            self.index.put(request)
        for dispatcher in self._behind:
            dispatcher(request)
        listener = self.arrival_listener
        if notify and listener is not None and queue is not None:
            self._notify(listener, request.topic, request.queue_id, request.queue_offset, request)
            for topic, queue_id, queue_offset in light:
                self._notify(listener, topic, queue_id, queue_offset, request)

    def _queue(self, request: DispatchRequest) -> Queue | None:
        queues = self.queues.table.get(request.topic)
        queue = None if queues is None else queues.get(request.queue_id)
        if queue is not None:
            return queue
        if request.queue_id < 0 or not is_stored_topic(request.topic):
            # No checksum covers topic and queue id, and no broker stores such ones.
            log.error("%r: there can be no such queue; the record is in none", request)
            return None
        return self.queues.find_or_create(request.topic, request.queue_id)

    @staticmethod
    def _notify(
        listener: ArrivalListener,
        topic: str,
        queue_id: int,
        queue_offset: int,
        request: DispatchRequest,
    ) -> None:
        listener(
            topic,
            queue_id,
            queue_offset + max(request.batch_size, 1),
            request.tags_code,
            request.store_timestamp,
            request.bit_map,
            request.properties_raw,
        )

    def light_queues(self, request: DispatchRequest) -> Iterator[LightQueue]:
        """The further queues that a record names. RocketMQ: MultiDispatchUtils.lmqQueueKey."""
        raw = request.find(b"INNER_MULTI_DISPATCH")
        if raw is None or raw.isspace() or not allows_lmq(request.topic):
            return
        names = str(raw, "utf-8", "replace").split(",")
        numbers = (request.find(b"INNER_MULTI_QUEUE_OFFSET") or b"").split(b",")
        if len(names) != len(numbers) or not all(n.isdigit() for n in numbers):
            log.error("%r: names %d further queues, numbers %r", request, len(names), numbers)
            return
        for name, number in zip(names, numbers, strict=True):
            if not is_stored_topic(name):
                log.error("%r: %r can be no queue's name", request, name)
                continue
            light = self.config.enable_lmq and is_lmq(name)
            yield LightQueue(name, LMQ_QUEUE_ID if light else request.queue_id, int(number))

    def end_burst(self) -> None:
        """Lets other processes see the index of what was dispatched. Cheap; call it each round."""
        if self.index is not None:
            self.index.publish()
