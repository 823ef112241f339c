"""Dispatch: what happens to a record once it is in the CommitLog.

In this order, as in RocketMQ: dispatchers that must come first (bitmaps for ConsumeQueueExt), the
queue, the light queues that the record names, the index, and last the listener that wakes waiting
consumers. Prepared and rolled back records get no queue unit, rolled back ones no index entry.

Every step may be repeated for the same record: what is done already is not done again.
RocketMQ: CommitLogDispatcher, DefaultMessageStore.doDispatch, MultiDispatchUtils.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth import kernels
from oberth.formats.delay_level import parse_delay_levels
from oberth.formats.java_numbers import java_long
from oberth.formats.message import DispatchRequest
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import (
    LMQ_QUEUE_ID,
    TRANS_HALF_TOPIC,
    allows_lmq,
    is_lmq,
    is_stored_topic,
)
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from oberth.store.consume_queue_store import ConsumeQueueStore, Queue
from oberth.store.index_service import IndexService
from oberth.store.store_checkpoint import StoreCheckpoint

if TYPE_CHECKING:
    from oberth.store.bulk_dispatch import BulkDispatch
    from oberth.store.deleted_topics import DeletedTopics

_LOG: Final = logging.getLogger(__name__)

_QUEUED: Final = (TRANSACTION_NOT, TRANSACTION_COMMIT)

Dispatcher = Callable[[DispatchRequest], None]
ArrivalListener = Callable[[str, int, int, int, int, bytes | None, bytes], None]
"""(topic, queue id, max offset, tags code, store timestamp, bit map, properties)."""

BulkArrivalListener = Callable[[str, int, int], None]
"""(topic, queue id, max offset): the queue has grown by some messages."""


class LightQueue(NamedTuple):
    """A further queue that a record belongs to, and its number there."""

    topic: str
    queue_id: int
    queue_offset: int


class DispatchedRange(NamedTuple):
    """How far `CommitLogDispatcher.dispatch_segment` came.

    Attributes:
        position: in the buffer, after the last record dispatched.
        last_record: CommitLog offset of that record's start.
        store_timestamp: its store time, ms.
    """

    position: int
    last_record: int
    store_timestamp: int


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
        # Called for each message that a queue got. Where `bulk_arrival_listener` is set too, large
        # backlogs go in bulk, and that one is called instead, once for many messages.
        self.arrival_listener: ArrivalListener | None = None
        self.bulk_arrival_listener: BulkArrivalListener | None = None
        # From where on records go to queues: what lies before may be of a topic that was deleted.
        self.queues_from = 0
        # While a start dispatches: topics that were deleted, and below which CommitLog offset.
        self.deleted_below: Mapping[str, int] = {}
        # While a start dispatches: topics that are to have no queues.
        self.deleted: DeletedTopics | None = None
        self._bulk: BulkDispatch | None = None
        self._delays_ms = tuple(parse_delay_levels(config.message_delay_level))
        self._before: list[Dispatcher] = []

    def add_before(self, dispatcher: Dispatcher) -> None:
        """Adds a dispatcher that sees a record before its queue does."""
        self._before.append(dispatcher)

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
        light: list[LightQueue] = []
        if transaction in _QUEUED and request.commit_log_offset >= self.queues_from:
            queue = self._queue(request)
            if queue is not None:
                queue.put_request(request)
            if self.config.enable_multi_dispatch:
                light = list(self.light_queues(request))
                for topic, queue_id, queue_offset in light:
                    self.queues.find_or_create(topic, queue_id).put_light(request, queue_offset)
            if self._bulk is not None:
                self._bulk.touched.add((request.topic, request.queue_id))
                self._bulk.touched.update((topic, queue_id) for topic, queue_id, _ in light)
            self.checkpoint.values.logics_msg_timestamp = request.store_timestamp
        if self.index is not None:
            self.index.put(request)
        listener = self.arrival_listener
        if notify and listener is not None:
            if queue is not None:
                self._notify(
                    listener, request.topic, request.queue_id, request.queue_offset, request
                )
            for topic, queue_id, queue_offset in light:
                self._notify(listener, topic, queue_id, queue_offset, request)

    def _queue(self, request: DispatchRequest) -> Queue | None:
        if self._was_deleted(request.topic, request):
            return None
        queues = self.queues.table.get(request.topic)
        queue = None if queues is None else queues.get(request.queue_id)
        if queue is not None:
            return queue
        if request.queue_id < 0 or not is_stored_topic(request.topic):
            # No checksum covers topic and queue id, and no broker stores such ones.
            _LOG.error("%r is no queue that can be, its record is in no queue", request)
            return None
        if self.deleted is not None and self.deleted.hides(request.topic, request.store_timestamp):
            return None
        return self.queues.find_or_create(request.topic, request.queue_id)

    def _was_deleted(self, topic: str, request: DispatchRequest) -> bool:
        below = self.deleted_below.get(topic) if self.deleted_below else None
        return below is not None and request.commit_log_offset < below

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
        offsets = request.find(b"INNER_MULTI_QUEUE_OFFSET")
        if offsets is None and request.topic == TRANS_HALF_TOPIC:
            return  # the message that its commit stores has them
        numbers = [java_long(text, -1) for text in (offsets or b"").split(b",")]
        if len(names) != len(numbers) or min(numbers) < 0:
            _LOG.error(
                "%r names %d further queues but has the numbers %r, its record is in none of them",
                request,
                len(names),
                numbers,
            )
            return
        for name, number in zip(names, numbers, strict=True):
            if not is_stored_topic(name):
                _LOG.error("%r names the queue %r, which can be no queue's name", request, name)
                continue
            if self._was_deleted(name, request):
                continue
            if self.deleted is not None and self.deleted.hides(name, request.store_timestamp):
                continue
            light = self.config.enable_lmq and is_lmq(name)
            yield LightQueue(name, LMQ_QUEUE_ID if light else request.queue_id, number)

    def dispatch_segment(
        self, buffer: memoryview, base: int, start: int, stop: int, *, notify: bool = True
    ) -> DispatchedRange | None:
        """Dispatches a stretch of a segment through the kernels, as far as they can.

        Args:
            buffer: the segment.
            base: CommitLog offset of its first byte.
            start: position of the first record.
            stop: records that end after it are not taken.
            notify: whether listeners are called; the bulk listener then, once per queue that grew.

        Returns:
            How far it came: up to a record that wants to be done by itself, or to ``stop``. None
            if nothing was done: no kernels, or something wants to see every record.

        Raises:
            StoreFullError: the disk has no room. The records are to be dispatched again.
        """
        bulk = self._bulk_dispatch(notify=notify) if kernels.available() else None
        if bulk is None:
            return None
        reached: DispatchedRange | None = None
        while start < stop:
            before = self.queues_from - base
            if start < before < stop:
                stop = before  # the queues' part begins with the next call
            stop, gone = self._up_to_a_deletion(base, start, stop)
            step = bulk.step(
                buffer,
                base,
                start,
                stop,
                self._delays_ms,
                only_index=base + start < self.queues_from,
                deleted=self.deleted,
                gone=gone,
            )
            if not step.row_count:
                break
            if step.queued_timestamp:
                self.checkpoint.values.logics_msg_timestamp = step.queued_timestamp
            if notify and self.bulk_arrival_listener is not None:
                for arrival in step.arrivals:
                    self.bulk_arrival_listener(*arrival)
            start = step.position
            reached = DispatchedRange(start, step.last_record, step.store_timestamp)
        return reached

    def _up_to_a_deletion(self, base: int, start: int, stop: int) -> tuple[int, frozenset[str]]:
        """Where a stretch ends so that no deletion lies in it, and whose records in it are gone."""
        if not self.deleted_below:
            return stop, frozenset()
        ends = [end for end in self.deleted_below.values() if end > base + start]
        gone = frozenset(name for name, end in self.deleted_below.items() if end > base + start)
        return min([stop, *(end - base for end in ends)]), gone

    def _bulk_dispatch(self, *, notify: bool) -> BulkDispatch | None:
        config = self.config
        if (
            self._before
            or config.enable_consume_queue_ext
            or (config.enable_multi_dispatch and not config.enable_lmq)
            or (notify and self.arrival_listener is not None and self.bulk_arrival_listener is None)
        ):
            return None
        if self._bulk is None:
            from oberth.store.bulk_dispatch import BulkDispatch  # noqa: PLC0415 - for large backlogs

            self._bulk = BulkDispatch(config, self.queues, self.index)
        return self._bulk

    def end_burst(self) -> None:
        """Lets other processes see the index of what was dispatched. Cheap; call it each round."""
        if self.index is not None:
            self.index.publish()
