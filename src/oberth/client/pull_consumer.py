"""PullConsumer: the application asks for messages and says where to go on.

    async with PullConsumer("reports", {"OrderTopic": "*"}) as consumer:
        messages = await consumer.poll()
        ...
        await consumer.commit()

``subscribe`` shares the queues with the other members of the group; ``assign`` takes just the given
ones. Messages are fetched ahead. What ``poll`` gave out is committed by the next ``poll`` when it
is due (``auto_commit``), or by ``commit``. Of a queue that goes to another member the latter gets
again what the last ``poll`` gave out. ``async for`` gives messages out one by one: each is done
when its loop asks for the next one. RocketMQ: DefaultLitePullConsumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from oberth.client.config import ClientConfig
from oberth.client.consume_service import current_caller, has_ended
from oberth.client.group_consumer import AssignedQueue, GroupConsumer
from oberth.client.messages import MessageExt
from oberth.client.namespace import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from oberth.client.offset_store import NO_OFFSET
from oberth.client.pulling import (
    LITE_PULL_FLAG,
    LITE_SUSPEND_MAX_MS,
    SUBSCRIPTION_FLAG,
    SUSPEND_FLAG,
    PullStatus,
    PullTemplate,
    max_offset,
    min_offset,
    pull,
    search_offset,
)
from oberth.client.rebalance import AllocateStrategy
from oberth.client.retry import PULL_ERROR_DELAY_S, IdlePulls
from oberth.client.subscriptions import MessageSelector, build_subscription_data
from oberth.errors import MQClientError, OberthError
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)

if TYPE_CHECKING:
    import threading

_LOG: Final = logging.getLogger(__name__)

POLL_TIMEOUT_MS: Final = 5_000
AUTO_COMMIT_INTERVAL_MS: Final = 5_000
PAUSED_STEP_S: Final = 0.05


class PullConsumer(GroupConsumer):
    """A consumer that is asked.

    Args:
        consumer_group: its members share the messages.
        subscriptions: tags or a ``MessageSelector`` by topic; leave out to ``assign``.
        namesrv_addr: shorthand for the same field of ``config``.
        config: how to reach the cluster.
        message_model: CLUSTERING or BROADCASTING.
        consume_from_where: where a group starts that has no offset.
        consume_timestamp_ms: for CONSUME_FROM_TIMESTAMP; None: half an hour ago.
        allocate_strategy: who of the group gets which queue.
        auto_commit: commit what was given out, every ``auto_commit_interval_ms``.
        auto_commit_interval_ms: between two commits.
        poll_timeout_ms: how long ``poll`` waits for a message.
        pull_batch_size: messages of one ``poll`` and of one request.
        pull_threshold_for_queue: messages of a queue in hand above which fetching pauses.
        pull_threshold_size_for_queue_mib: as above, in MiB.
        offset_store_dir: broadcasting: where offsets are kept.
    """

    CONSUME_TYPE = ConsumeType.CONSUME_ACTIVELY

    def __init__(
        self,
        consumer_group: str,
        subscriptions: Mapping[str, str | MessageSelector] | None = None,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        allocate_strategy: AllocateStrategy | None = None,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = AUTO_COMMIT_INTERVAL_MS,
        poll_timeout_ms: int = POLL_TIMEOUT_MS,
        pull_batch_size: int = 32,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_size_for_queue_mib: int = 100,
        offset_store_dir: str = "",
    ) -> None:
        super().__init__(
            consumer_group,
            subscriptions,
            namesrv_addr=namesrv_addr,
            config=config,
            message_model=message_model,
            consume_from_where=consume_from_where,
            consume_timestamp_ms=consume_timestamp_ms,
            allocate_strategy=allocate_strategy,
            offset_store_dir=offset_store_dir,
        )
        self.auto_commit = auto_commit
        self.auto_commit_interval_ms = auto_commit_interval_ms
        self.poll_timeout_ms = poll_timeout_ms
        self.pull_batch_size = pull_batch_size
        self.pull_threshold_for_queue = pull_threshold_for_queue
        self.pull_threshold_size_for_queue_mib = pull_threshold_size_for_queue_mib
        self._ready: deque[AssignedQueue] = deque()
        self._arrived = asyncio.Event()
        self._paused: set[MessageQueue] = set()
        # Of each of our queues the next offset after what was given out, and the first offset that
        # ``poll`` gave out and that is not done. What loops have is in the process queue.
        self._handed_out: dict[MessageQueue, int] = {}
        self._polled: dict[MessageQueue, int] = {}
        self._poller: threading.Thread | asyncio.Task[Any] | None = (
            None  # the task, or thread, that called ``poll`` last
        )
        # What loops had when they ended. They may end in any thread, and wherever garbage is
        # collected, so nothing is done with it until somebody asks for messages.
        self._left: deque[tuple[AssignedQueue, deque[MessageExt]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._manual: dict[MessageQueue, SubscriptionData] = {}
        self._next_commit_ms = 0

    # Life cycle

    async def start(self) -> None:
        """Join the group; fetching starts as soon as queues are ours."""
        if self._instance is None:
            instance = await self._join()
            self._loop = asyncio.get_running_loop()
            self._next_commit_ms = instance.now_ms() + self.auto_commit_interval_ms
            self._take_queues()

    async def shutdown(self) -> None:
        """Leave the group; with ``auto_commit``, what was given out is committed.

        What an ``async for`` has in hand comes again.
        """
        if self._instance is None:
            return
        is_under_way, self._closing = self._closing, True
        self._arrived.set()
        try:
            async with self._rebalance_lock:
                queues = self._note_given_out() if self.auto_commit else []
                self._drop_queues()
                with contextlib.suppress(OberthError):
                    await self._store().persist(queues, wait=True)
        finally:
            if not is_under_way:  # else the other call ends it
                await self._end()

    async def _end(self) -> None:
        """Ends all at once, also when a shutdown is cancelled, even before it had the lock."""
        self._drop_queues()
        self.assigned.clear()
        self._ready.clear()
        self._left.clear()
        self._handed_out.clear()
        self._polled.clear()
        await self._leave()

    # Assignment

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Want messages of a topic, shared with the group.

        Raises:
            MQClientError: queues are assigned by hand.
        """
        if self._manual:
            raise MQClientError("subscribe and assign cannot be mixed")
        super().subscribe(topic, expression)

    async def assign(
        self, queues: Iterable[MessageQueue], expression: str | MessageSelector = "*"
    ) -> None:
        """Read just these queues, also if others do; a second call replaces the first.

        Raises:
            MQClientError: topics are subscribed to.
        """
        if self._subscriptions:
            raise MQClientError("subscribe and assign cannot be mixed")
        self._running()
        wanted = [self._wire(queue) for queue in queues]
        async with self._rebalance_lock:
            self._manual = {
                queue: build_subscription_data(queue.topic, expression, 0) for queue in wanted
            }
            gone = [queue for queue in self.assigned if queue not in self._manual]
            if gone:
                await self._revoke(gone)
            for queue in wanted:
                if queue not in self.assigned:
                    await self._running().require_address(queue)
                    self._take(queue, await self._start_offset(queue))

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that are ours."""
        return {queue_without_namespace(self._namespace, queue) for queue in self.assigned}

    async def do_rebalance(self) -> bool:
        """See ``GroupConsumer``; what was assigned by hand stays."""
        return bool(self._manual) or await super().do_rebalance()

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are needed."""
        return {*self._subscriptions, *(queue.topic for queue in self._manual)}

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, sorted."""
        topic = with_namespace(self._namespace, topic)
        await self._running().update_route(topic)
        queues = await self._running().subscribe_queues(topic)
        return [queue_without_namespace(self._namespace, queue) for queue in queues]

    def _wire(self, queue: MessageQueue) -> MessageQueue:
        """A queue that the program named, as brokers know it."""
        return queue_with_namespace(self._namespace, queue)

    # Fetching

    def _start_queue(self, assigned: AssignedQueue) -> None:
        assigned.task = self._running().spawn(self._fetch(assigned))

    def _stop_queue(self, assigned: AssignedQueue) -> None:
        super()._stop_queue(assigned)
        assigned.process_queue.pending.clear()

    async def _revoke(self, queues: list[MessageQueue]) -> bool:
        """See ``GroupConsumer``; what the program still has is for the next owner to commit."""
        for queue in queues:
            self._note_progress(self.assigned[queue])
            self._handed_out.pop(queue, None)
            self._polled.pop(queue, None)
        return await super()._revoke(queues)

    async def _restart_at(
        self, offsets: Mapping[MessageQueue, int], *, undone_from: int | None = None
    ) -> None:
        """See ``GroupConsumer``; what was given out before says nothing any more."""
        for queue, offset in offsets.items():
            if queue in self.assigned:
                self._begin_at(queue, offset)
        await super()._restart_at(offsets, undone_from=undone_from)

    async def _fetch(self, assigned: AssignedQueue) -> None:
        queue, process_queue = assigned.queue, assigned.process_queue
        instance = self._running()
        idle = IdlePulls()
        loop = asyncio.get_running_loop()
        while not process_queue.dropped:
            process_queue.last_pull_ms = instance.now_ms()
            subscription = self._manual.get(queue) or self._subscriptions.get(queue.topic)
            if subscription is None:
                return
            if queue in self._paused or process_queue.is_full(
                self.pull_threshold_for_queue, self.pull_threshold_size_for_queue_mib << 20, None
            ):
                await asyncio.sleep(PAUSED_STEP_S)
                continue
            template = PullTemplate(
                self.group,
                queue,
                subscription,
                max_msg_nums=self.pull_batch_size,
                with_subscription=True,
                suspend_timeout_ms=LITE_SUSPEND_MAX_MS,
            )
            asked_at, asked_s = process_queue.next_offset, loop.time()
            try:
                result = await pull(
                    instance,
                    template,
                    asked_at,
                    sys_flag=SUSPEND_FLAG | SUBSCRIPTION_FLAG | LITE_PULL_FLAG,
                    broker_id=assigned.pull_from,
                )
            except (OberthError, OSError) as error:
                _LOG.info(
                    "%s: %s could not be pulled, it is tried again: %s", self.group, queue, error
                )
                await asyncio.sleep(PULL_ERROR_DELAY_S / 3)
                continue
            is_illegal = result.status is PullStatus.OFFSET_ILLEGAL
            rest_s = idle.rest_after(
                loop.time() - asked_s,
                got_on=bool(result.messages)
                or (result.next_begin_offset > asked_at and not is_illegal),
            )
            if rest_s:
                await asyncio.sleep(rest_s)
            if assigned.is_gone:
                return
            assigned.pull_from = result.suggested_broker_id
            if is_illegal:
                _LOG.warning(
                    "%s: %s has no offset %d, going on at %d",
                    self.group, queue, process_queue.next_offset, result.next_begin_offset,
                )  # fmt: skip
                # Else what comes at offsets that were there before would count as a repeat.
                process_queue.end_at(result.next_begin_offset)
                for offsets in (self._handed_out, self._polled):
                    if queue in offsets:
                        offsets[queue] = min(offsets[queue], result.next_begin_offset)
            if result.messages:
                if self._namespace:
                    for message in result.messages:
                        message.topic = without_namespace(self._namespace, message.topic)
                process_queue.put(result.messages, result.next_begin_offset)
                if not assigned.in_ready:
                    assigned.in_ready = True
                    self._ready.append(assigned)
                self._arrived.set()
            else:
                process_queue.skip_to(result.next_begin_offset)

    async def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """The next messages of one queue; none when there are none in time.

        What ``poll`` gave out before counts as done. A loop beside it says nothing of that, unless
        it is in the same task, or thread.

        Raises:
            MQClientError: not started, or shut down.
        """
        self._polled.clear()
        self._poller = current_caller()
        given = await self._next_batch(timeout_ms)
        if given is None:
            return []
        assigned, messages = given
        first = messages[0].queue_offset
        self._polled[assigned.queue] = min(first, self._polled.get(assigned.queue, first))
        return messages

    async def _next_batch(
        self, timeout_ms: int | None = None
    ) -> tuple[AssignedQueue, list[MessageExt]] | None:
        instance = self._running()
        if self.auto_commit and instance.now_ms() >= self._next_commit_ms:
            self._next_commit_ms = instance.now_ms() + self.auto_commit_interval_ms
            await self._store().persist(self._note_done(), wait=False)
        timeout_s = (self.poll_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        given = self._take_ready()
        if given is not None or timeout_s <= 0:
            return given
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self._arrived.clear()
                    await self._arrived.wait()
                    given = self._take_ready()
                    if given is not None or self._closing:
                        return given
        except TimeoutError:
            return None

    def _take_ready(self) -> tuple[AssignedQueue, list[MessageExt]] | None:
        while self._left:
            self._take_back(*self._left.popleft())
        for _ in range(len(self._ready)):
            assigned = self._ready.popleft()
            assigned.in_ready = False
            process_queue = assigned.process_queue
            if assigned.is_gone or not process_queue.pending:
                continue
            if assigned.queue in self._paused:
                assigned.in_ready = True
                self._ready.append(assigned)
                continue
            messages = process_queue.take(self.pull_batch_size)
            process_queue.last_consume_ms = self._running().now_ms()
            if process_queue.pending:
                assigned.in_ready = True
                self._ready.append(assigned)
            process_queue.remove(messages)
            # What a loop gave back may lie before what was given out since.
            end = max(messages[-1].queue_offset + 1, self._handed_out.get(assigned.queue, 0))
            self._handed_out[assigned.queue] = end
            return assigned, messages
        return None

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Messages one by one, until ``shutdown``; asking for the next one means the last is done.

        Several loops may run, each message goes to one of them. A loop that is left, in whatever
        way, has not done its message in hand: the next loop or ``poll`` begins with it.
        """
        return _MessageLoop(self)

    def _take_back(self, assigned: AssignedQueue, messages: Iterable[MessageExt]) -> None:
        if assigned.is_gone:
            return
        assigned.process_queue.take_back(messages)
        if assigned.in_ready:
            self._ready.remove(assigned)
        assigned.in_ready = True
        self._ready.appendleft(assigned)

    def _leave_behind(self, assigned: AssignedQueue, messages: deque[MessageExt]) -> None:
        """What a loop had when it ended; may be called in any thread."""
        self._left.append((assigned, messages))
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._arrived.set)

    def _begin_at(self, queue: MessageQueue, offset: int) -> None:
        """What was given out of a queue before says nothing any more."""
        self._handed_out[queue] = offset
        self._polled.pop(queue, None)

    # Offsets

    def _note_progress(self, assigned: AssignedQueue) -> None:
        """With ``auto_commit`` off only ``commit`` says what is done."""
        if self.auto_commit:
            self._note_for_commit(assigned.queue)

    def _note_for_commit(self, queue: MessageQueue) -> None:
        """Note what is done of a queue: it ends at the first offset that somebody still has."""
        assigned, end = self.assigned.get(queue), self._handed_out.get(queue)
        if assigned is None or assigned.is_gone or end is None:
            return  # who has ended it has noted what there was to note
        undone = (assigned.process_queue.first_undone, self._polled.get(queue))
        offset = min([end, *(each for each in undone if each is not None)])
        self._store().table.update(queue, offset, increase_only=False)

    def _note_given_out(self) -> list[MessageQueue]:
        """What ``poll`` gave out is done; see ``_note_done``."""
        self._polled.clear()
        return self._note_done()

    def _note_done(self) -> list[MessageQueue]:
        """Note for the next commit what is done; the queues of which something was given out."""
        for queue in self._handed_out:
            self._note_for_commit(queue)
        return list(self._handed_out)

    async def persist_offsets(self, *, wait: bool = False) -> None:
        """The instance's clock: ``poll`` commits instead, it knows what was given out."""

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True
    ) -> None:
        """Commit what was given out, or the given offsets.

        What an ``async for`` has in hand is not done.

        Args:
            offsets: of the next message to be read, by queue.
            wait: until the brokers have them.

        Raises:
            MQClientError: not started, or shut down; or, only with ``wait``, a broker does not have
                some, which are committed with the next call.
        """
        self._running()
        store = self._store()
        if offsets is None:
            queues = self._note_given_out()
        else:
            queues = [self._wire(queue) for queue in offsets]
            for queue, offset in zip(queues, offsets.values(), strict=True):
                store.table.update(queue, offset, increase_only=False)
        await store.persist(queues, wait=wait)

    async def committed(self, queue: MessageQueue) -> int | None:
        """What the group has committed; None: nothing."""
        offset = await self._store().read(self._wire(queue))
        return None if offset == NO_OFFSET else offset

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; nothing is committed by that.

        Raises:
            MQClientError: the queue is not ours, or has no such offset.
        """
        queue = self._wire(queue)
        assigned = self.assigned.get(queue)
        if assigned is None:
            raise MQClientError(f"{queue} is not assigned to this consumer")
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        if not low <= offset <= high:
            raise MQClientError(f"seek {queue} to {offset}: the offset must be {low} to {high}")
        async with self._rebalance_lock:
            if self.assigned.get(queue) is not assigned:
                raise MQClientError(f"{queue} is no longer assigned to this consumer")
            assigned.process_queue.drop()
            self._stop_queue(assigned)
            self._begin_at(queue, offset)
            self._take(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first offset."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on after the last offset."""
        await self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the first message that was stored at a time or later."""
        await self.seek(queue, await self.offset_for_timestamp(queue, timestamp_ms))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset that was stored at a time or later."""
        return await search_offset(self._running(), self._wire(queue), timestamp_ms)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The end of a queue."""
        return await max_offset(self._running(), self._wire(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset of a queue that can be read."""
        return await min_offset(self._running(), self._wire(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither fetch nor give out from these queues."""
        self._paused.update(self._wire(queue) for queue in queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with them."""
        self._paused.difference_update([self._wire(queue) for queue in queues])
        self._arrived.set()


class _MessageLoop(AsyncIterator[MessageExt]):
    """One ``async for`` over a consumer that is asked.

    It ends with the consumer, or when nobody has it any more, as after a ``break``.
    """

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._assigned: AssignedQueue | None = None
        self._messages: deque[MessageExt] = deque()  # of one queue, not done
        self._has_first = False  # the first of them is in hand
        self._is_waiting = False
        self._has_ended = False

    async def __anext__(self) -> MessageExt:
        if self._is_waiting:
            raise RuntimeError("this loop waits for a message already")
        if self._has_first:
            self._has_first = False
            message = self._messages.popleft()
            assert self._assigned is not None
            self._assigned.process_queue.settle(message)
        consumer = self._consumer
        if consumer._poller is current_caller() or has_ended(consumer._poller):
            consumer._polled.clear()  # else who polled may still be at it
        while not self._has_ended and not consumer._closing and consumer._instance is not None:
            if self._messages:
                self._has_first = True
                return self._messages[0]
            self._is_waiting = True
            try:
                given = await consumer._next_batch()
            finally:
                self._is_waiting = False
            if given is not None:
                self._assigned, messages = given
                self._assigned.process_queue.lend(messages)
                self._messages.extend(messages)
        if self._has_ended:  # while it waited for what it has got
            self.leave()
        raise StopAsyncIteration

    def leave(self) -> None:
        """The loop has ended: what it has not done comes again. Any thread may call."""
        self._has_ended = True
        if self._messages and self._assigned is not None:
            self._consumer._leave_behind(self._assigned, self._messages.copy())
            self._messages.clear()
            self._has_first = False

    async def aclose(self) -> None:
        """As of a generator, for ``contextlib.aclosing``."""
        self.leave()

    def __del__(self) -> None:
        self.leave()
