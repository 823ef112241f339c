"""GroupConsumer: what consumers of a group have in common, whether they push or are asked.

Subscriptions, the queues that are ours, where each of them starts, and their offsets. RocketMQ:
RebalanceImpl.

A queue changes hands without loss: nothing is committed that is not done. Few messages are
repeated: the consumer that gives a queue up stops at once, waits a moment for what its listeners
have in hand, and commits; its successor waits a moment longer before it asks where to start.
Messages that listeners work on for longer than that are consumed twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from oberth.client.config import ClientConfig, client_config
from oberth.client.instance import ClientInstance
from oberth.client.members import ClientService
from oberth.client.namespace import with_namespace, without_namespace
from oberth.client.offset_store import (
    NO_OFFSET,
    LocalFileOffsetStore,
    OffsetStore,
    RemoteBrokerOffsetStore,
    local_offsets_path,
)
from oberth.client.process_queue import ProcessQueue
from oberth.client.pulling import (
    max_offset,
    query_consumer_offset,
    search_offset,
    update_consumer_offset,
)
from oberth.client.rebalance import AllocateMessageQueueAveragely, AllocateStrategy
from oberth.client.subscriptions import (
    MessageSelector,
    build_subscription_data,
    check_subscriptions,
)
from oberth.errors import (
    MQBrokerError,
    MQClientError,
    OberthError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from oberth.formats import names
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import (
    TAG,
    CheckClientRequestBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    SubscriptionData,
)
from oberth.remoting.bodies.running_info import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from oberth.remoting.code import ANNOUNCED_VERSION, RequestCode, ResponseCode
from oberth.wall_clock import now_ms

_LOG: Final = logging.getLogger(__name__)

REVOKE_GRACE_S: Final = 0.3
"""For how long a queue that goes to another member waits for its listeners."""

SETTLE_S: Final = 0.5
"""For how long a member of several waits before it asks where a new queue starts."""

assert REVOKE_GRACE_S < SETTLE_S

ORDERLY_REVOKE_GRACE_S: Final = 1.0
LOCK_TIMEOUT_S: Final = 1.0
PULL: Final = "PULL"
HALF_AN_HOUR_MS: Final = 30 * 60 * 1000


class AssignedQueue:
    """A queue that is ours, and what works on it.

    Attributes:
        busy: orderly: whether a listener has its messages.
        in_ready: whether it stands in line for a listener.
        is_reset: whether the group goes on elsewhere in it: what was done with it says nothing.
        pull_from: the replica that the broker suggested.
    """

    __slots__ = (
        "busy",
        "idle",
        "in_ready",
        "is_reset",
        "process_queue",
        "pull_from",
        "queue",
        "room",
        "task",
    )

    def __init__(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        self.queue = queue
        self.process_queue = process_queue
        self.task: asyncio.Task[None] | None = None
        self.room: asyncio.Future[None] | None = None
        self.idle: asyncio.Future[None] | None = None
        self.busy = False
        self.in_ready = False
        self.is_reset = False
        self.pull_from = 0

    @property
    def is_gone(self) -> bool:
        """Whether it went to another member."""
        return self.process_queue.dropped

    def changed(self) -> None:
        """Listeners gave something back: waiting pulls look again."""
        room = self.room
        if room is not None and not room.done():
            room.set_result(None)
        if self.idle is not None and not self.process_queue.consuming and not self.idle.done():
            self.idle.set_result(None)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no listener has any of its messages; whether that came in time."""
        if not self.process_queue.consuming:
            return True
        self.idle = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self.idle
        except TimeoutError:
            return False
        return True


def _check_kind(what: str, value: object, kind: type[Enum]) -> None:
    """Refuse a word where a member of an enumeration is compared with."""
    if not isinstance(value, kind):
        members = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
        raise MQClientError(f"{what} is {value!r}; it must be one of {members}")


class GroupConsumer(ClientService):
    """Base of consumers; see the module.

    Attributes:
        assigned: the queues that are ours.
    """

    CONSUME_TYPE: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    TAKES_LOCKS: bool = False
    client_rebalance: bool = True

    def __init__(
        self,
        consumer_group: str,
        subscriptions: Mapping[str, str | MessageSelector] | None,
        *,
        namesrv_addr: str | None,
        config: ClientConfig | None,
        message_model: MessageModel,
        consume_from_where: ConsumeFromWhere,
        consume_timestamp_ms: int | None,
        allocate_strategy: AllocateStrategy | None,
        offset_store_dir: str,
    ) -> None:
        self.config: ClientConfig = client_config(config, namesrv_addr)
        self._namespace = self.config.namespace
        self.group: str = names.check_group(
            with_namespace(self._namespace, consumer_group), length_max=names.GROUP_LENGTH_MAX_4_9
        )
        _check_kind("message_model", message_model, MessageModel)
        _check_kind("consume_from_where", consume_from_where, ConsumeFromWhere)
        if allocate_strategy is not None and not hasattr(allocate_strategy, "allocate"):
            raise MQClientError(
                f"allocate_strategy is {type(allocate_strategy).__name__}; it must be one of "
                "oberth.client.rebalance, such as AllocateMessageQueueAveragely()"
            )
        self.message_model = message_model
        self.consume_from_where = consume_from_where
        self.consume_timestamp_ms = consume_timestamp_ms
        self.allocate_strategy: AllocateStrategy = (
            allocate_strategy or AllocateMessageQueueAveragely()
        )
        self.offset_store_dir = offset_store_dir
        self.assigned: dict[MessageQueue, AssignedQueue] = {}
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._last_version = 0
        self._instance: ClientInstance | None = None
        self._offsets: OffsetStore | None = None
        self._started_ms = 0
        self._closing = False
        self._broker_cannot_assign = False
        # The instance may be another's too and rebalance at any time, also while we still start.
        self._may_take = False
        self._rebalance_lock = asyncio.Lock()
        # Brokers that did not answer: who hangs is waited for once in a round, not for each queue.
        self._silent: set[str] = set()
        # Queues that a broker did not answer for, the longest ago first: they are taken last, as it
        # may answer for others. And those of them that are ours in this round.
        self._late: dict[MessageQueue, None] = {}
        self._put_off: set[MessageQueue] = set()
        check_subscriptions(subscriptions)
        for topic, expression in (subscriptions or {}).items():
            self._subscribe(topic, expression)

    # Life cycle

    @abstractmethod
    async def start(self) -> None:
        """Join the group and take queues."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Leave the group: finish what is in hand, commit, tell the brokers."""

    async def _join(self) -> ClientInstance:
        """Everything before the first rebalance."""
        broadcasting = self.message_model is MessageModel.BROADCASTING
        # Offsets in a file are found again by the client id, so it may not hold a process id.
        instance = await ClientInstance.acquire(self.config, consumer=self, stable_id=broadcasting)
        self._instance = instance
        self._closing = False
        self._started_ms = instance.now_ms()
        try:
            if broadcasting:
                self._offsets = LocalFileOffsetStore(
                    local_offsets_path(instance.client_id, self.group, self.offset_store_dir)
                )
            else:
                self._offsets = RemoteBrokerOffsetStore(self._fetch_offset, self._commit_offset)
            await self._offsets.load()
            for topic in list(self._subscriptions):
                try:
                    await instance.update_route(topic)
                except RemotingError as error:
                    _LOG.warning(
                        "%s: the route of topic %s could not be asked for: %s",
                        self.group,
                        topic,
                        error,
                    )
            await self._check_subscriptions()
            await instance.send_heartbeats()
        except BaseException:
            if self._instance is instance:  # else a shutdown meanwhile has released it
                self._instance = None
                await instance.release(consumer=self)
            raise
        if self._instance is not instance:
            raise MQClientError(f"{self.group}: shut down while it was starting")
        return instance

    def _take_queues(self) -> None:
        """From now on queues may become ours."""
        self._may_take = True
        self._running().rebalance_soon()

    async def _leave(self) -> None:
        self._may_take = False
        instance = self._instance
        if instance is not None:
            self._instance = None
            await instance.release(consumer=self)

    async def _check_subscriptions(self) -> None:
        """Let a broker judge expressions other than tags. RocketMQ: checkClientInBroker."""
        instance = self._running()
        for topic, subscription in self._subscriptions.items():
            if subscription.expression_type == TAG:
                continue
            body = CheckClientRequestBody(
                client_id=instance.client_id, group=self.group, subscription_data=subscription
            )
            await instance.ask_any_broker(
                topic, RequestCode.CHECK_CLIENT_CONFIG, None, body.encode(), silent=set()
            )

    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise MQClientError(f"consumer {self.group} is not started, or shut down")
        return self._instance

    def _store(self) -> OffsetStore:
        if self._offsets is None:
            raise MQClientError(f"consumer {self.group} is not started")
        return self._offsets

    @property
    def client_id(self) -> str:
        """How brokers know this member."""
        return self._running().client_id

    @property
    def is_running(self) -> bool:
        """Whether it is started and not shut down."""
        return self._instance is not None

    # Subscriptions

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Want messages of a topic; before or after the start.

        Raises:
            MQClientError: an expression without a tag.
            IllegalNameError: a topic that cannot exist.
        """
        self._subscribe(topic, expression)
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Want them no more."""
        self._subscriptions.pop(with_namespace(self._namespace, topic), None)
        self._subscriptions_changed()

    def _subscribe(self, topic: str, expression: str | MessageSelector) -> None:
        topic = names.check_topic(with_namespace(self._namespace, topic))
        # Brokers keep the subscription with the highest version.
        self._last_version = max(self._last_version + 1, now_ms())
        self._subscriptions[topic] = build_subscription_data(topic, expression, self._last_version)

    def _subscriptions_changed(self) -> None:
        if self._instance is not None:
            self._instance.heartbeat_soon()
            self._instance.rebalance_soon()

    @property
    def subscription(self) -> set[str]:
        """The topics that are wanted, retry topics among them."""
        return {without_namespace(self._namespace, topic) for topic in self._subscriptions}

    # Called by the instance

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are needed."""
        return list(self._subscriptions)

    def on_route(self, topic: str) -> None:
        """Queues came or went."""
        if topic in self._subscriptions and self._instance is not None:
            self._instance.rebalance_soon()

    def consumer_data(self) -> ConsumerData | None:
        """What heartbeats say."""
        if self._closing:
            return None
        return ConsumerData(
            group_name=self.group,
            consume_type=self.CONSUME_TYPE,
            message_model=self.message_model,
            consume_from_where=self.consume_from_where,
            subscription_data_set=list(self._subscriptions.values()),
            unit_mode=bool(self.config.unit_name),
        )

    async def persist_offsets(self, *, wait: bool = False) -> None:
        """Commit what is done."""
        if self._offsets is None:
            return
        for assigned in self.assigned.values():
            self._note_progress(assigned)
        await self._offsets.persist(list(self.assigned), wait=wait)

    def _note_progress(self, assigned: AssignedQueue) -> None:
        offset = assigned.process_queue.commit_offset
        if offset >= 0 and not assigned.is_reset and self._offsets is not None:
            self._offsets.table.update(assigned.queue, offset, increase_only=True)

    async def _fetch_offset(self, queue: MessageQueue) -> int | None:
        return await query_consumer_offset(self._running(), self.group, queue)

    async def _commit_offset(self, queue: MessageQueue, offset: int) -> None:
        await update_consumer_offset(self._running(), self.group, queue, offset)

    async def _commit_last(self, queues: Iterable[MessageQueue]) -> None:
        """Commits offsets of queues that go; what cannot be is consumed again by the next owner."""
        with contextlib.suppress(MQClientError):  # the store has logged it
            await self._store().persist(queues, wait=True)

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets of a topic, for GET_CONSUMER_STATUS_FROM_CLIENT."""
        for assigned in self.assigned.values():
            self._note_progress(assigned)
        return self._store().table.of_topic(topic)

    def running_info(self) -> ConsumerRunningInfo:
        """For GET_CONSUMER_RUNNING_INFO."""
        instance = self._running()
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(instance.name_server_addresses) + ";",
                "PROP_CONSUME_TYPE": self.CONSUME_TYPE.value,
                "PROP_CLIENT_VERSION": ANNOUNCED_VERSION.name,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "consumerGroup": self.group,
                "messageModel": self.message_model.value,
                "consumeFromWhere": self.consume_from_where.value,
            },
            subscription_set=list(self._subscriptions.values()),
            mq_table={
                queue: assigned.process_queue.info() for queue, assigned in self.assigned.items()
            },
        )

    async def consume_directly(self, body: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        """For CONSUME_MESSAGE_DIRECTLY, which only listeners can do."""
        del body, broker_name
        return ConsumeMessageDirectlyResult(
            consume_result=CMResult.CR_RETURN_NULL, remark="this consumer has no listener"
        )

    # Rebalance

    async def do_rebalance(self) -> bool:
        """Take the queues that are ours now; False: look again soon."""
        async with self._rebalance_lock:
            if not self._may_take or self._instance is None or self._closing:
                return True
            balanced = True
            self._silent.clear()
            self._put_off.clear()
            for topic in list(self._subscriptions):
                try:
                    balanced &= await self._rebalance_topic(topic)
                except OberthError as error:
                    balanced = False
                    _LOG.warning(
                        "%s: the queues of topic %s could not be assigned, it is tried again: %s",
                        self.group, topic, error,
                    )  # fmt: skip
            balanced &= await self._take_all([each for each in self._late if each in self._put_off])
            self._late = {each: None for each in self._late if each in self._put_off}
            stale = [queue for queue in self.assigned if queue.topic not in self._subscriptions]
            if stale:
                await self._revoke(stale)
            return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        if self._closing:
            return True  # topics before it may have taken long
        instance = self._running()
        queues = await instance.subscribe_queues(topic)
        if not queues:
            return False
        members = 1
        if self.message_model is MessageModel.BROADCASTING:
            mine = list(queues)
        elif not self.client_rebalance and not self.TAKES_LOCKS and not self._broker_cannot_assign:
            return await self._rebalance_by_broker(topic, queues)
        else:
            client_ids = await instance.consumer_ids(topic, self.group, self._silent)
            if not client_ids:
                return False
            if instance.client_id not in client_ids:
                # A heartbeat is on its way, or the broker has just forgotten us.
                instance.heartbeat_soon()
                return False
            members = len(client_ids)
            mine = self.allocate_strategy.allocate(
                self.group, instance.client_id, queues, sorted(client_ids)
            )
        return await self._update_assigned(topic, mine, alone=members == 1)

    async def _rebalance_by_broker(self, topic: str, queues: list[MessageQueue]) -> bool:
        instance = self._running()
        try:
            assignments = await instance.query_assignment(
                topic, self.group, self.allocate_strategy.name, self.message_model, self._silent
            )
        except MQBrokerError as error:
            if error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            _LOG.warning("%s: brokers do not assign queues, members do it themselves", self.group)
            self._broker_cannot_assign = True
            return await self._rebalance_topic(topic)
        if assignments is None:
            # It does not know the group yet, or not the strategy.
            instance.heartbeat_soon()
            return False
        if any(each.mode != PULL for each in assignments):
            _LOG.error("%s pops %s by the broker's will: use PopConsumer", self.group, topic)
            assignments = []
        mine = sorted(each.message_queue for each in assignments)
        known = set(queues)
        if not known.issuperset(mine):
            # The broker's route is newer than ours.
            await instance.update_route(topic)
            return False
        return await self._update_assigned(topic, mine, alone=len(mine) == len(queues))

    async def _update_assigned(self, topic: str, mine: list[MessageQueue], *, alone: bool) -> bool:
        wanted = set(mine)
        now_ms = self._running().now_ms()
        gone = []
        for queue, assigned in self.assigned.items():
            if queue.topic != topic:
                continue
            if queue not in wanted:
                gone.append(queue)
            elif assigned.is_gone:
                gone.append(queue)  # it was wanted elsewhere, or was reset, while a listener ran
            elif self._is_stuck(assigned, now_ms):
                _LOG.warning("%s: the pull of %s is lost, starting anew", self.group, queue)
                gone.append(queue)
        balanced = True
        if gone:
            balanced = await self._revoke(gone)
            self._assignment_changed()
        new = [queue for queue in mine if queue not in self.assigned]
        if not new:
            return balanced
        if self.TAKES_LOCKS and self.message_model is MessageModel.CLUSTERING:
            # Who is silent is not asked, and a lock that comes late makes nobody silent: of a topic
            # with many queues it may do so in every round.
            asked = [queue for queue in new if queue.broker_name not in self._silent]
            locked = await self.lock_queues(asked)
            balanced &= len(locked) == len(new)
            new = [queue for queue in new if queue in locked]
        elif not alone:
            await asyncio.sleep(SETTLE_S)
        self._put_off.update(queue for queue in new if queue in self._late)
        return balanced & await self._take_all([each for each in new if each not in self._late])

    async def _take_all(self, queues: list[MessageQueue]) -> bool:
        """Take queues; False: some are for the next round."""
        if not queues:
            return True
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        # Side by side, as one that hangs keeps none of the others' queues from us.
        taken = await asyncio.gather(
            *(self._take_each(some) for some in by_broker.values()), return_exceptions=True
        )
        for each in taken:
            if isinstance(each, BaseException):
                raise each
        self._assignment_changed()
        return all(taken)

    async def _take_each(self, queues: list[MessageQueue]) -> bool:
        """Take queues of one broker; False: some are for the next round."""
        all_taken = True
        for queue in queues:
            if queue.broker_name in self._silent:
                return False
            start: int | None = None
            try:
                start = await self._start_offset(queue)
            except (MQBrokerError, MQClientError, RemotingError) as error:
                _LOG.warning("%s: %s is not taken now: %s", self.group, queue, error)
                all_taken = False
                if isinstance(error, RemotingTimeoutError | RemotingConnectError):
                    self._silent.add(queue.broker_name)
                    # Else one queue that is never answered for would keep those behind it from us.
                    self._late.pop(queue, None)
                    self._late[queue] = None
                    self._put_off.add(queue)
            if self._closing or self._instance is None:
                return True
            if start is not None:
                self._take(queue, start)
        return all_taken

    def _is_stuck(self, assigned: AssignedQueue, now_ms: int) -> bool:
        return assigned.process_queue.is_pull_expired(now_ms)

    def _take(
        self, queue: MessageQueue, start: int, before: ProcessQueue | None = None
    ) -> AssignedQueue:
        """A queue is ours from an offset on; ``before``: it was ours, with the lock as it is."""
        now_ms = self._running().now_ms()
        process_queue = ProcessQueue(start, now_ms)
        if before is not None:
            process_queue.locked = before.locked
            process_queue.last_lock_ms = before.last_lock_ms
        elif self.TAKES_LOCKS and self.message_model is MessageModel.CLUSTERING:
            process_queue.locked = True
            process_queue.last_lock_ms = now_ms
        assigned = AssignedQueue(queue, process_queue)
        self.assigned[queue] = assigned
        _LOG.info("%s: this member takes %s from offset %d on", self.group, queue, start)
        self._start_queue(assigned)
        return assigned

    async def _revoke(self, queues: list[MessageQueue]) -> bool:
        """Give queues up; False: some are kept until their listeners return."""
        given = [self.assigned[queue] for queue in queues]
        for assigned in given:
            assigned.process_queue.drop()
            self._stop_queue(assigned)
        grace_s = ORDERLY_REVOKE_GRACE_S if self.TAKES_LOCKS else REVOKE_GRACE_S
        idle = await asyncio.gather(*(assigned.wait_idle(grace_s) for assigned in given))
        store = self._store()
        kept = False
        unlocked = []
        for assigned, is_idle in zip(given, idle, strict=True):
            if self.TAKES_LOCKS and not is_idle:
                # Another member may not start while our listener still runs: order.
                assigned.process_queue.try_unlock_times += 1
                kept = True
                continue
            self._note_progress(assigned)
            unlocked.append(assigned.queue)
        await self._commit_last(unlocked)
        for queue in unlocked:
            self.assigned.pop(queue, None)
            store.forget(queue)
            _LOG.info("%s: this member gave %s up", self.group, queue)
        if self.TAKES_LOCKS and unlocked and self.message_model is MessageModel.CLUSTERING:
            await self.unlock_queues(unlocked)
        return not kept

    @abstractmethod
    def _start_queue(self, assigned: AssignedQueue) -> None:
        """A queue became ours."""

    def _drop_queues(self) -> None:
        """Nothing more is pulled or handed out of our queues."""
        for assigned in self.assigned.values():
            assigned.process_queue.drop()
            self._stop_queue(assigned)

    def _stop_queue(self, assigned: AssignedQueue) -> None:
        """A queue is no longer ours; its process queue is dropped already."""
        if assigned.task is not None:
            assigned.task.cancel()
            assigned.task = None

    def _assignment_changed(self) -> None:
        """Queues came, or queues went: called once for either."""

    async def _start_offset(self, queue: MessageQueue) -> int:
        """Where a queue starts that became ours. RocketMQ: computePullFromWhere."""
        instance = self._running()
        offset = await self._store().read(queue)
        if offset != NO_OFFSET:
            return offset
        is_retry = queue.topic.startswith(names.RETRY_PREFIX)
        where = self.consume_from_where
        if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return 0
        if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            if is_retry:
                return await max_offset(instance, queue)
            timestamp_ms = self.consume_timestamp_ms
            if timestamp_ms is None:
                timestamp_ms = self._started_ms - HALF_AN_HOUR_MS
            return await search_offset(instance, queue, timestamp_ms)
        return 0 if is_retry else await max_offset(instance, queue)

    # Resets

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """RESET_CONSUMER_CLIENT_OFFSET: go on elsewhere."""
        async with self._rebalance_lock:
            queues = [queue for queue in offsets if queue.topic == topic and queue in self.assigned]
            await self._restart_at({queue: offsets[queue] for queue in queues})

    async def _restart_at(
        self, offsets: Mapping[MessageQueue, int], *, undone_from: int | None = None
    ) -> None:
        """Queues that are ours go on at other offsets, which are committed.

        In order, a queue whose listener still runs goes on when that has returned: the rebalance
        takes it anew.

        Args:
            offsets: where to go on.
            undone_from: None: just there. Else the broker has lost the end of the queue: what is in
                hand from this offset on is not skipped.
        """
        given = [self.assigned[queue] for queue in offsets if queue in self.assigned]
        for assigned in given:
            assigned.process_queue.drop()
            self._stop_queue(assigned)
        idle = await asyncio.gather(*(assigned.wait_idle(REVOKE_GRACE_S) for assigned in given))
        store = self._store()
        starts = dict(offsets)
        for assigned in given:
            undone = assigned.process_queue.commit_offset
            if undone_from is not None and undone >= 0:
                starts[assigned.queue] = min(offsets[assigned.queue], max(undone, undone_from))
            assigned.is_reset = True
            store.table.update(assigned.queue, starts[assigned.queue], increase_only=False)
        await self._commit_last([assigned.queue for assigned in given])
        for assigned, is_idle in zip(given, idle, strict=True):
            if self.TAKES_LOCKS and not is_idle:
                self._running().rebalance_soon()
            elif self.assigned.get(assigned.queue) is assigned:
                self._take(assigned.queue, starts[assigned.queue], assigned.process_queue)

    # Locks

    async def lock_queues(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        """The queues whose lock we hold now; asks the master of each broker."""
        instance = self._running()
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)

        async def lock(broker_name: str, some: list[MessageQueue]) -> list[MessageQueue]:
            addr = instance.master_address(broker_name)
            if addr is None:
                return []
            body = LockBatchRequestBody(
                client_id=instance.client_id, consumer_group=self.group, mq_set=some
            )
            try:
                response = await instance.ask(
                    addr, RequestCode.LOCK_BATCH_MQ, None, body.encode(), timeout_s=LOCK_TIMEOUT_S
                )
                return LockBatchResponseBody.decode(response.body_bytes()).lock_ok_mq_set
            except OberthError as error:
                _LOG.warning(
                    "%s: broker %s gave no locks of queues: %s", self.group, broker_name, error
                )
                return []

        answers = await asyncio.gather(*(lock(name, some) for name, some in by_broker.items()))
        asked = set(queues)
        return {queue for answer in answers for queue in answer if queue in asked}

    async def unlock_queues(self, queues: list[MessageQueue]) -> None:
        """Let others have queues."""
        instance = self._running()
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)

        async def unlock(broker_name: str, some: list[MessageQueue]) -> None:
            addr = instance.master_address(broker_name)
            if addr is None:
                return
            body = LockBatchRequestBody(
                client_id=instance.client_id, consumer_group=self.group, mq_set=some
            )
            try:
                await instance.ask(
                    addr,
                    RequestCode.UNLOCK_BATCH_MQ,
                    None,
                    body.encode(),
                    timeout_s=LOCK_TIMEOUT_S,
                )
            except OberthError as error:
                _LOG.warning(
                    "%s: broker %s could not be told that queues are unlocked: %s",
                    self.group,
                    broker_name,
                    error,
                )

        await asyncio.gather(*(unlock(name, some) for name, some in by_broker.items()))
