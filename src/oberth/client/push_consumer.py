"""PushConsumer: messages come as fast as they are consumed. RocketMQ: DefaultMQPushConsumer.

With a listener:

    async def handle(message: MessageExt) -> None: ...

    async with PushConsumer("shop", {"OrderTopic": "paid || sent"}, listener=handle):
        await stop.wait()

or in a loop, where asking for the next message means that the last one is done:

    async with PushConsumer("shop", {"OrderTopic": "*"}) as consumer:
        async for message in consumer:
            ...

What is promised: a message is consumed at least once by one member of the group (broadcasting: by
each), and its offset is committed only when it is done. A message whose listener raises, or gives
RECONSUME_LATER, comes again after a delay that grows, at last it becomes a dead letter; in order
(``orderly=True``) its queue waits for it instead. Not promised: exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from oberth.client.config import ClientConfig
from oberth.client.consume import (
    BatchMessageListener,
    ConsumeContext,
    ConsumeStatus,
    ListenerFailures,
    MessageListener,
)
from oberth.client.consume_service import ConsumeJob, ConsumeService, MessageIterator
from oberth.client.group_consumer import AssignedQueue, GroupConsumer
from oberth.client.instance import ClientInstance
from oberth.client.messages import MessageExt, decode_messages
from oberth.client.namespace import without_namespace
from oberth.client.process_queue import ProcessQueue
from oberth.client.pulling import (
    BROKER_SUSPEND_MAX_MS,
    COMMIT_OFFSET_FLAG,
    SUBSCRIPTION_FLAG,
    SUSPEND_FLAG,
    PullResult,
    PullStatus,
    PullTemplate,
    pull,
)
from oberth.client.rebalance import AllocateStrategy
from oberth.client.retry import (
    PULL_ERROR_DELAY_S,
    PULL_FLOW_CONTROL_BY_BROKER_DELAY_S,
    PULL_FLOW_CONTROL_DELAY_S,
    PULL_SUSPENDED_DELAY_S,
    IdlePulls,
)
from oberth.client.send_back import retry_times_max, send_message_back, send_to_retry_topic
from oberth.client.subscriptions import MessageSelector, build_subscription_data, check_listener
from oberth.errors import MQBrokerError, MQClientError, OberthError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import ConsumeFromWhere, MessageModel
from oberth.remoting.bodies.running_info import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from oberth.remoting.bodies.running_info import ConsumeStatus as TopicRates
from oberth.remoting.code import ResponseCode

if TYPE_CHECKING:
    from oberth.client.trace import TraceDispatcher

_LOG: Final = logging.getLogger(__name__)

SEND_BACK_RETRY_S: Final = 5.0
"""How soon a message is consumed again that could not be given back."""

LOCK_INTERVAL_S: Final = 20.0
EXPIRY_SCAN_S: Final = 60.0
CONSUME_TIMEOUT_DELAY_LEVEL: Final = 3
UNLIMITED: Final = 2**31 - 1
SUSPEND_MIN_MS: Final = 10
SUSPEND_MAX_MS: Final = 30_000

_STALE_AT_BROKER: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
"""Answers to a pull that a heartbeat mends."""

STALE_DELAY_S: Final = 0.2


class PushConsumer(GroupConsumer):
    """A member of a group that is handed messages.

    Args:
        consumer_group: its members share the messages.
        subscriptions: tags (``A || B``, ``*``) or a ``MessageSelector`` by topic.
        listener: called with each message; see ``oberth.client.consume``.
        batch_listener: called with up to ``consume_message_batch_max_size`` of one queue and a
            context; instead of ``listener``.
        orderly: one message of a queue at a time, in order, over all members.
        message_model: CLUSTERING: each message to one member; BROADCASTING: to all of them.
        consume_from_where: where a group starts that has no offset.
        consume_timestamp_ms: for CONSUME_FROM_TIMESTAMP; None: half an hour ago.
        namesrv_addr: shorthand for the same field of ``config``.
        config: how to reach the cluster.
        allocate_strategy: who of the group gets which queue; all members need the same.
        client_rebalance: False: the broker says which queues are ours (from 5.0 on; with older
            ones, in order and broadcasting members work it out themselves). The broker knows the
            strategies AVG, AVG_BY_CIRCLE and CONSISTENT_HASH.
        consume_thread_max: listeners at work at once.
        consume_message_batch_max_size: messages of one call of ``batch_listener``.
        pull_batch_size: messages of one pull.
        pull_interval_ms: pause between two pulls of a queue.
        pull_threshold_for_queue: messages of a queue in hand above which its pulls pause.
        pull_threshold_size_for_queue_mib: as above, in MiB.
        pull_threshold_for_topic: as above, for all queues of a topic that are ours; -1: no limit.
        consume_concurrently_max_span: as above, distance between first and last offset.
        max_reconsume_times: how often a message comes again until it is a dead letter; -1: 16, in
            order: no limit.
        consume_timeout_minutes: a listener that takes longer loses its messages to a retry.
        suspend_current_queue_time_ms: in order: pause after a failure.
        post_subscription_when_pull: send the expression with every pull.
        await_termination_ms_when_shutdown: for how long ``shutdown`` waits for listeners.
        offset_store_dir: broadcasting: where offsets are kept; empty: as Java's client,
            ``~/.rocketmq_offsets``.
    """

    def __init__(
        self,
        consumer_group: str,
        subscriptions: Mapping[str, str | MessageSelector] | None = None,
        *,
        listener: MessageListener | None = None,
        batch_listener: BatchMessageListener | None = None,
        orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        allocate_strategy: AllocateStrategy | None = None,
        client_rebalance: bool = True,
        consume_thread_max: int = 20,
        consume_message_batch_max_size: int = 1,
        pull_batch_size: int = 32,
        pull_interval_ms: int = 0,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_size_for_queue_mib: int = 100,
        pull_threshold_for_topic: int = -1,
        consume_concurrently_max_span: int = 2000,
        max_reconsume_times: int = -1,
        consume_timeout_minutes: int = 15,
        suspend_current_queue_time_ms: int = 1000,
        post_subscription_when_pull: bool = False,
        await_termination_ms_when_shutdown: int = 10_000,
        offset_store_dir: str = "",
    ) -> None:
        self.TAKES_LOCKS = orderly
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
        check_listener(listener, "listener", ("a message",))
        check_listener(batch_listener, "batch_listener", ("a list of messages", "a context"))
        if listener is not None and batch_listener is not None:
            raise MQClientError("a listener and a batch listener: one of them is enough")
        self.orderly = orderly
        self.client_rebalance = client_rebalance
        self.listener = listener
        self.batch_listener = batch_listener
        self.consume_thread_max = consume_thread_max
        self.consume_message_batch_max_size = consume_message_batch_max_size
        self.pull_batch_size = pull_batch_size
        self.pull_interval_ms = pull_interval_ms
        self.pull_threshold_for_queue = pull_threshold_for_queue
        self.pull_threshold_size_for_queue_mib = pull_threshold_size_for_queue_mib
        self.pull_threshold_for_topic = pull_threshold_for_topic
        self.consume_concurrently_max_span = consume_concurrently_max_span
        self.max_reconsume_times = max_reconsume_times
        self.consume_timeout_minutes = consume_timeout_minutes
        self.suspend_current_queue_time_ms = suspend_current_queue_time_ms
        self.post_subscription_when_pull = post_subscription_when_pull
        self.await_termination_ms_when_shutdown = await_termination_ms_when_shutdown
        self._idle_pulls: dict[MessageQueue, IdlePulls] = {}
        self._failures = ListenerFailures()
        self._service: ConsumeService | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._iterators: list[MessageIterator] = []
        self._suspended = False
        self._rates: dict[str, TopicRates] = {}
        self._trace: TraceDispatcher | None = None
        self.flow_control_times = 0
        for what, value in (
            ("consume_thread_max", consume_thread_max),
            ("consume_message_batch_max_size", consume_message_batch_max_size),
            ("pull_batch_size", pull_batch_size),
        ):
            if not 1 <= value <= 1024:
                raise MQClientError(f"{what} is {value}; it must be 1 to 1024")

    # Life cycle

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A block that ends without an exception is done with its message in hand. Of what others
        # have in hand it knows nothing, unless their tasks have ended: how threads end is not seen.
        for iterator in self._iterators if error is None else ():
            if (failure := iterator.failure) is not None:
                _LOG.warning(
                    "%s: the message in hand of a task that has failed comes again",
                    self.group,
                    exc_info=failure,
                )
            elif iterator.is_callers or iterator.has_ended_well:
                iterator.settle(ConsumeStatus.SUCCESS)
        await self.shutdown()

    async def start(self) -> None:
        """Join the group; messages come as soon as queues are ours.

        Raises:
            MQClientError: the same group is started twice with one instance name.
            MQBrokerError: the broker refuses an SQL expression.
        """
        if self._instance is not None:
            return
        if self.message_model is MessageModel.CLUSTERING:
            # What the group could not consume comes back on its own retry topic.
            retry_topic = names.retry_topic(self.group)
            self._last_version += 1
            self._subscriptions.setdefault(
                retry_topic, build_subscription_data(retry_topic, "*", self._last_version)
            )
        instance = await self._join()
        service = ConsumeService(
            self,
            orderly=self.orderly,
            batch_size=self.consume_message_batch_max_size if self.batch_listener else 1,
            now_ms=instance.now_ms,
        )
        self._service = service
        service.start(self.listener, self.batch_listener, self.consume_thread_max)
        if self.config.enable_trace:
            from oberth.client.producer import make_trace  # noqa: PLC0415 - for traces

            self._trace = make_trace(self.config)
            await self._trace.start()
        if self.TAKES_LOCKS and self.message_model is MessageModel.CLUSTERING:
            self._spawn(self._renew_locks())
        if not self.orderly:
            self._spawn(self._scan_expired())
        self._take_queues()

    async def shutdown(self) -> None:
        """Leave the group: pulls stop, listeners end, offsets are committed, brokers are told.

        A message that an ``async for`` in this task has in hand comes again, also where its body
        had a task made that calls this; so do those of tasks that have ended, and of threads that
        have left their loops. The loops of others are waited for as listeners are: a message is
        done when its loop asks for the next one, or its task ends without an exception.
        """
        if self._instance is None:
            return
        is_under_way, self._closing = self._closing, True
        service = self._service
        # Before the lock, as who has it may wait for what this task has in hand.
        for iterator in self._iterators:
            self._leave_loop(iterator)
        try:
            async with self._rebalance_lock:
                self._drop_queues()
                for iterator in self._iterators:
                    self._leave_loop(iterator)  # it may have got one meanwhile, and gets no more
                await self._wait_listeners(self.await_termination_ms_when_shutdown / 1000)
                if service is not None:
                    await service.aclose()
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._commit_and_unlock()
            if self._trace is not None:
                await self._trace.shutdown()
        finally:
            if not is_under_way:  # else the other call ends it
                await self._end()

    async def _commit_and_unlock(self) -> None:
        try:
            for assigned in self.assigned.values():
                self._note_progress(assigned)
            await self._commit_last(list(self.assigned))
            if self._needs_lock():
                await self.unlock_queues(list(self.assigned))
        except OberthError as error:
            _LOG.warning(
                "%s: the last offsets could not be committed, messages may come again: %s",
                self.group,
                error,
            )

    async def _end(self) -> None:
        """Ends all at once, also when a shutdown is cancelled, even before it had the lock."""
        self._drop_queues()
        self.assigned.clear()
        self._iterators.clear()
        for task in list(self._tasks):
            task.cancel()
        service, self._service = self._service, None
        if service is not None:
            service.close()
        trace, self._trace = self._trace, None
        try:
            if trace is not None:
                await trace.leave()
        finally:
            await self._leave()

    def _leave_loop(self, iterator: MessageIterator) -> None:
        """What an ``async for`` has in hand comes again, unless somebody is still at it."""
        if iterator.is_worked_on:
            iterator.call_when_ended(lambda: self._loop_ended(iterator))
        else:
            self._give_up_in_hand(iterator)

    def _loop_ended(self, iterator: MessageIterator) -> None:
        if iterator.has_ended_well and not iterator.is_cut_off:
            iterator.settle(ConsumeStatus.SUCCESS)
        else:
            self._give_up_in_hand(iterator)

    def _give_up_in_hand(self, iterator: MessageIterator) -> None:
        """What an ``async for`` has in hand comes again, and does not become a dead letter."""
        job = iterator.job
        if job is None or iterator.is_cut_off:
            return
        limit = retry_times_max(self.max_reconsume_times)
        is_last = any(message.reconsume_times >= limit for message in job.messages)
        if self.message_model is MessageModel.BROADCASTING or (
            (self.orderly or is_last) and not iterator.is_refused
        ):
            iterator.put_back()  # it is not committed
        else:
            iterator.settle(ConsumeStatus.RECONSUME_LATER)

    async def _wait_listeners(self, timeout_s: float) -> None:
        async def all_idle() -> None:
            await asyncio.gather(
                *(assigned.wait_idle(timeout_s) for assigned in self.assigned.values())
            )
            # What was given back is on its way to the broker.
            while self._back_tasks:
                await asyncio.wait(list(self._back_tasks))

        try:
            async with asyncio.timeout(timeout_s):
                await all_idle()
        except TimeoutError:
            _LOG.warning("%s: listeners still run after %g s", self.group, timeout_s)

    @property
    def _back_tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if task.get_name() == "send-back"]

    def _spawn(self, work: Any, name: str | None = None) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s: a task in the background failed", self.group, exc_info=error)

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        if self.listener is not None or self.batch_listener is not None:
            raise MQClientError(f"consumer {self.group} has a listener, nothing to iterate over")
        self._running()
        assert self._service is not None
        iterator = MessageIterator(self._service)
        self._iterators.append(iterator)
        return iterator

    def reconsume_later(self, message: MessageExt, delay_level: int = 0) -> None:
        """In an ``async for`` loop: the message in hand is to come again.

        Args:
            message: what the loop was given last.
            delay_level: 0: the broker decides; -1: a dead letter at once.

        Raises:
            MQClientError: it is not in hand.
        """
        for iterator in self._iterators:
            if iterator.job is not None and iterator.job.messages[0] is message:
                iterator.refuse(delay_level)
                return
        raise MQClientError(f"message {message.msg_id} is not in hand")

    def suspend(self) -> None:
        """No new pulls until ``resume``; what was pulled is still consumed."""
        self._suspended = True

    def resume(self) -> None:
        """Pull again."""
        self._suspended = False

    # Pulling

    def _start_queue(self, assigned: AssignedQueue) -> None:
        # They outlast a restart of the queue, which an answer that moves the offset brings about.
        if len(self._idle_pulls) > 2 * len(self.assigned) + 16:
            known = self._idle_pulls.items()
            self._idle_pulls = {queue: each for queue, each in known if queue in self.assigned}
        assigned.task = self._spawn(self._pull_loop(assigned))

    async def _pull_loop(self, assigned: AssignedQueue) -> None:
        queue = assigned.queue
        process_queue = assigned.process_queue
        instance = self._running()
        idle = self._idle_pulls.setdefault(queue, IdlePulls())
        loop = asyncio.get_running_loop()
        while not process_queue.dropped:
            now_ms = instance.now_ms()
            process_queue.last_pull_ms = now_ms
            if self._suspended:
                await asyncio.sleep(PULL_SUSPENDED_DELAY_S)
                continue
            if self._is_full(assigned):
                self.flow_control_times += 1
                await self._wait_room(assigned)
                continue
            if self._needs_lock() and not process_queue.may_consume_orderly(now_ms):
                await asyncio.sleep(PULL_FLOW_CONTROL_DELAY_S)
                continue
            subscription = self._subscriptions.get(queue.topic)
            if subscription is None:
                return
            asked_at, asked_s = process_queue.next_offset, loop.time()
            try:
                result = await self._pull(instance, assigned)
            except MQBrokerError as error:
                _LOG.info(
                    "%s: %s could not be pulled, it is tried again: %s", self.group, queue, error
                )
                await asyncio.sleep(self._delay_after(instance, error))
                continue
            except (OberthError, OSError) as error:
                _LOG.info(
                    "%s: %s could not be pulled, it is tried again: %s", self.group, queue, error
                )
                await self._look_again(instance, queue.topic)
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
            if is_illegal:
                # Its own task: restarting the queue ends this one.
                is_lost = asked_at > result.max_offset
                self._spawn(
                    self._go_on_at(
                        assigned, result.next_begin_offset, result.min_offset if is_lost else None
                    )
                )
                return
            assigned.pull_from = result.suggested_broker_id
            if result.messages:
                if queue.topic.startswith(names.RETRY_PREFIX):
                    for message in result.messages:
                        message.topic = message.get_property(p.RETRY_TOPIC) or message.topic
                if self._namespace:
                    for message in result.messages:
                        message.topic = without_namespace(self._namespace, message.topic)
                process_queue.put(result.messages, result.next_begin_offset)
                assert self._service is not None
                self._service.ready(assigned)
            else:
                process_queue.skip_to(result.next_begin_offset)
            if self.pull_interval_ms:
                await asyncio.sleep(self.pull_interval_ms / 1000)

    async def _pull(self, instance: ClientInstance, assigned: AssignedQueue) -> PullResult:
        subscription = self._subscriptions[assigned.queue.topic]
        template = PullTemplate(
            self.group,
            assigned.queue,
            subscription,
            max_msg_nums=self.pull_batch_size,
            with_subscription=self.post_subscription_when_pull,
            suspend_timeout_ms=BROKER_SUSPEND_MAX_MS,
        )
        sys_flag = SUSPEND_FLAG
        if self.post_subscription_when_pull:
            sys_flag |= SUBSCRIPTION_FLAG
        commit_offset = 0
        if self.message_model is MessageModel.CLUSTERING:
            self._note_progress(assigned)
            commit_offset = self._store().table.get(assigned.queue)
            if commit_offset > 0:
                sys_flag |= COMMIT_OFFSET_FLAG
        return await pull(
            instance,
            template,
            assigned.process_queue.next_offset,
            sys_flag=sys_flag,
            commit_offset=max(commit_offset, 0),
            broker_id=assigned.pull_from,
        )

    def _delay_after(self, instance: ClientInstance, error: MQBrokerError) -> float:
        if error.response_code == ResponseCode.FLOW_CONTROL:
            return PULL_FLOW_CONTROL_BY_BROKER_DELAY_S
        if error.response_code in _STALE_AT_BROKER:
            instance.heartbeat_soon()
            return STALE_DELAY_S
        return PULL_ERROR_DELAY_S

    async def _look_again(self, instance: ClientInstance, topic: str) -> None:
        """After a broken connection: a moment's rest, then the route may know better."""
        await asyncio.sleep(PULL_ERROR_DELAY_S / 3)
        with contextlib.suppress(OberthError):
            await instance.update_route(topic)

    async def _go_on_at(
        self, assigned: AssignedQueue, offset: int, undone_from: int | None
    ) -> None:
        """The broker does not have the offset: it was reset, or messages are deleted or lost."""
        async with self._rebalance_lock:
            is_ours = self.assigned.get(assigned.queue) is assigned and not assigned.is_gone
            if not is_ours or self._closing:
                return
            _LOG.warning(
                "%s: %s has no offset %d, going on at %d",
                self.group, assigned.queue, assigned.process_queue.next_offset, offset,
            )  # fmt: skip
            await self._restart_at({assigned.queue: offset}, undone_from=undone_from)

    def _is_full(self, assigned: AssignedQueue) -> bool:
        process_queue = assigned.process_queue
        if process_queue.is_full(
            self.pull_threshold_for_queue,
            self.pull_threshold_size_for_queue_mib << 20,
            None if self.orderly else self.consume_concurrently_max_span,
        ):
            return True
        if self.pull_threshold_for_topic < 0:
            return False
        topic = assigned.queue.topic
        in_hand = sum(
            other.process_queue.count
            for queue, other in self.assigned.items()
            if queue.topic == topic
        )
        return in_hand > self.pull_threshold_for_topic

    async def _wait_room(self, assigned: AssignedQueue) -> None:
        assigned.room = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(PULL_FLOW_CONTROL_DELAY_S):
                await assigned.room
        except TimeoutError:
            pass
        finally:
            assigned.room = None

    # Called by the service

    def may_consume(self, assigned: AssignedQueue) -> bool:
        """In order: whether the queue's lock is ours."""
        if assigned.process_queue.suspended:
            return False
        if not self._needs_lock():
            return True
        return assigned.process_queue.may_consume_orderly(self._running().now_ms())

    def _needs_lock(self) -> bool:
        return self.orderly and self.message_model is MessageModel.CLUSTERING

    def on_job_start(self, job: ConsumeJob) -> None:
        """A listener is about to be called, maybe in a thread."""
        if (trace := self._trace) is not None:
            from oberth.client.trace import sub_before_record  # noqa: PLC0415 - for traces

            trace.add(
                sub_before_record(
                    group=self.group,
                    message=message,
                    time_ms=job.started_ms,
                    request_id=f"{id(job):x}",
                )
                for message in job.messages
            )

    def on_job_done(
        self, job: ConsumeJob, status: ConsumeStatus, error: BaseException | None
    ) -> None:
        """A listener's verdict."""
        if error is not None:
            what = f"{job.messages[0].msg_id} of {job.assigned.queue}"
            self._failures.note(self.group, what, error, asyncio.get_running_loop().time())
        if self._instance is None:
            return  # the shutdown did not wait so long, and has not committed it
        self._note_rates(job, status)
        if self._trace is not None:
            self._note_trace(job, status, error)
        if self.orderly:
            self._done_orderly(job, status)
        elif status is ConsumeStatus.SUCCESS and job.context.ack_index + 1 >= len(job.messages):
            job.assigned.process_queue.remove(job.messages)
        else:
            self._done_partly(job, status)

    def _note_rates(self, job: ConsumeJob, status: ConsumeStatus) -> None:
        if status is not ConsumeStatus.SUCCESS:
            topic = job.assigned.queue.topic
            rates = self._rates.setdefault(topic, TopicRates())
            rates.consume_failed_msgs += len(job.messages)

    def _note_trace(
        self, job: ConsumeJob, status: ConsumeStatus, error: BaseException | None
    ) -> None:
        from oberth.client.trace import sub_after_record  # noqa: PLC0415 - for traces

        assert self._trace is not None
        now_ms = self._running().now_ms()
        ok = status is ConsumeStatus.SUCCESS
        self._trace.add(
            sub_after_record(
                group=self.group,
                message=message,
                time_ms=now_ms,
                request_id=f"{id(job):x}",
                cost_ms=now_ms - job.started_ms,
                success=ok,
                context_code=0 if ok else 2 if error is not None else 4,
            )
            for message in job.messages
        )

    def _done_partly(self, job: ConsumeJob, status: ConsumeStatus) -> None:
        process_queue = job.assigned.process_queue
        done_count = job.context.ack_index + 1 if status is ConsumeStatus.SUCCESS else 0
        done, failed = job.messages[:done_count], job.messages[done_count:]
        if self.message_model is MessageModel.BROADCASTING:
            for message in failed:
                _LOG.warning(
                    "%s: message %s is dropped, a broadcasting group has no retries",
                    self.group,
                    message.msg_id,
                )
            process_queue.remove(job.messages)
            return
        process_queue.remove(done)
        self._spawn(
            self._give_back(job.assigned, failed, job.context.delay_level_when_next_consume),
            "send-back",
        )

    async def _give_back(
        self, assigned: AssignedQueue, messages: list[MessageExt], delay_level: int
    ) -> None:
        """The broker delivers messages again; those that it does not take are consumed again."""
        instance = self._running()
        process_queue = assigned.process_queue
        again = []
        for message in messages:
            # The record's own number: listeners may have changed the attribute.
            try:
                await send_message_back(
                    instance,
                    self.group,
                    message,
                    delay_level=delay_level,
                    max_reconsume_times=self.max_reconsume_times,
                )
            except Exception as error:  # noqa: BLE001 - the message is still ours
                _LOG.warning(
                    "%s: message %s could not be sent back and is consumed here again: %s",
                    self.group,
                    message.msg_id,
                    error,
                )
                message.reconsume_times += 1
                again.append(message)
            else:
                process_queue.remove([message])
                assigned.changed()
        if again:
            if not self._closing:
                await asyncio.sleep(SEND_BACK_RETRY_S)
            process_queue.put_back(again)
            assigned.changed()
            if self._service is not None and not process_queue.dropped:
                self._service.ready(assigned)

    # In order

    def _done_orderly(self, job: ConsumeJob, status: ConsumeStatus) -> None:
        process_queue = job.assigned.process_queue
        if status is ConsumeStatus.SUCCESS:
            process_queue.remove(job.messages)
            return
        limit = UNLIMITED if self.max_reconsume_times < 0 else self.max_reconsume_times
        process_queue.suspended = True
        if all(message.reconsume_times >= limit for message in job.messages):
            self._spawn(self._give_up_orderly(job, limit), "send-back")
            return
        for message in job.messages:
            if message.reconsume_times < limit:
                message.reconsume_times += 1
        process_queue.put_back(job.messages)
        wait_ms = job.context.suspend_current_queue_time_ms
        if wait_ms < 0:
            wait_ms = self.suspend_current_queue_time_ms
        wait_ms = min(max(wait_ms, SUSPEND_MIN_MS), SUSPEND_MAX_MS)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._go_on, job.assigned)

    async def _give_up_orderly(self, job: ConsumeJob, limit: int) -> None:
        """Messages that were tried often enough become dead letters, and the queue goes on."""
        process_queue = job.assigned.process_queue
        kept = list(job.messages)
        try:
            while kept and self._instance is not None:
                # Dead letter by its own count: the broker compares with "above the limit".
                await send_to_retry_topic(
                    self._instance,
                    self.group,
                    kept[0],
                    reconsume_times=limit + 1,
                    max_reconsume_times=limit,
                )
                process_queue.remove([kept.pop(0)])
        except Exception as error:  # noqa: BLE001 - the messages are still ours
            _LOG.warning(
                "%s: message %s could not become a dead letter, it is tried again: %s",
                self.group,
                kept[0].msg_id,
                error,
            )
            await asyncio.sleep(self.suspend_current_queue_time_ms / 1000)
        finally:
            if kept:
                process_queue.put_back(kept)
            job.assigned.changed()
            self._go_on(job.assigned)

    def _go_on(self, assigned: AssignedQueue) -> None:
        assigned.process_queue.suspended = False
        if self._service is not None and not assigned.process_queue.dropped:
            self._service.ready(assigned)

    async def _renew_locks(self) -> None:
        while True:
            await asyncio.sleep(LOCK_INTERVAL_S)
            try:
                await self.renew_locks()
            except Exception:  # noqa: BLE001 - without locks nothing is consumed in order
                _LOG.exception("%s: locks could not be renewed, it is tried again", self.group)

    async def renew_locks(self) -> None:
        """Hold the locks of our queues; those that we lost are not consumed from."""
        queues = list(self.assigned)
        if not queues:
            return
        locked = await self.lock_queues(queues)
        now_ms = self._running().now_ms()
        for queue in queues:
            assigned = self.assigned.get(queue)
            if assigned is None:
                continue
            process_queue: ProcessQueue = assigned.process_queue
            process_queue.locked = queue in locked
            if process_queue.locked:
                process_queue.last_lock_ms = now_ms
                assert self._service is not None
                self._service.ready(assigned)
            else:
                _LOG.warning("%s: the lock of %s is lost", self.group, queue)

    # Time-outs

    async def _scan_expired(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SCAN_S)
            self.give_up_expired(self._running().now_ms())

    def give_up_expired(self, now_ms: int) -> int:
        """Take messages away from listeners that are too slow; how many calls that were."""
        if self._service is None or self.message_model is MessageModel.BROADCASTING:
            return 0
        limit_ms = self.consume_timeout_minutes * 60_000
        expired = [
            job
            for job in self._service.running
            if now_ms - job.started_ms > limit_ms and not job.abandoned
        ]
        for job in expired:
            job.abandoned = True
            _LOG.warning(
                "%s: listener has %s for %d minutes; it comes again",
                self.group, job.messages[0].msg_id, self.consume_timeout_minutes,
            )  # fmt: skip
            self._spawn(
                self._give_back(job.assigned, job.messages, CONSUME_TIMEOUT_DELAY_LEVEL),
                "send-back",
            )
        return len(expired)

    # Requests of brokers

    async def consume_directly(self, body: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        """CONSUME_MESSAGE_DIRECTLY: give one message to the listener, whatever the queues say."""
        result = ConsumeMessageDirectlyResult(order=self.orderly, auto_commit=True)
        messages = decode_messages(body, broker_name)
        service = self._service
        if not messages or service is None or not service.has_listener:
            result.consume_result = CMResult.CR_RETURN_NULL
            result.remark = "no message, or no listener"
            return result
        message = messages[0]
        message.topic = without_namespace(
            self._namespace, message.get_property(p.RETRY_TOPIC) or message.topic
        )
        begin_ms = self._running().now_ms()
        try:
            status = await service.call_once(message, ConsumeContext(message.message_queue))
        except Exception as error:  # noqa: BLE001 - the tool wants to see it
            result.consume_result = CMResult.CR_THROW_EXCEPTION
            result.remark = repr(error)
        else:
            if status is ConsumeStatus.RECONSUME_LATER:
                result.consume_result = CMResult.CR_LATER
        result.spent_time_mills = self._running().now_ms() - begin_ms
        return result

    def running_info(self) -> ConsumerRunningInfo:
        """For GET_CONSUMER_RUNNING_INFO."""
        info = super().running_info()
        info.properties |= {
            "PROP_CONSUMEORDERLY": "true" if self.orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self.consume_thread_max),
        }
        info.status_table = {
            topic: self._rates.get(topic, TopicRates()) for topic in self._subscriptions
        }
        return info
