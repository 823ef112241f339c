"""PopConsumer: messages one by one, each with its own acknowledgement (brokers from 5.0 on).

    async with PopConsumer("jobs", {"JobTopic": "*"}) as consumer:
        async for message in consumer:
            ...                                # the next turn acknowledges

or by hand with ``receive``, ``ack`` and ``change_invisible_duration``. There are no queues to share
and nothing to rebalance: the broker hides a message for ``invisible_duration_ms`` from all others
and hands it out again when it was not acknowledged by then. RocketMQ: POP, SimpleConsumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

from oberth.client.config import ClientConfig, client_config
from oberth.client.instance import ClientInstance
from oberth.client.members import ClientService
from oberth.client.messages import MessageExt, decode_messages
from oberth.client.namespace import with_namespace, without_namespace
from oberth.client.retry import IdlePulls, is_route_doubtful, pop_retry_delay_ms
from oberth.client.subscriptions import (
    MessageSelector,
    build_subscription_data,
    check_subscriptions,
)
from oberth.errors import (
    MQBrokerError,
    MQClientError,
    OberthError,
    RemoteProtocolError,
    RemotingError,
)
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import LONG_END
from oberth.remoting.bodies.base import Body, MessageQueue
from oberth.remoting.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from oberth.remoting.bodies.running_info import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)

_LOG: Final = logging.getLogger(__name__)

POP_BATCH_MAX: Final = 32
INVISIBLE_MS: Final = 60_000
POLL_MS: Final = 15_000
POLL_GRACE_S: Final = 10.0
ALL_QUEUES: Final = -1
NO_RETRY: Final = "0"
CK_PARTS: Final = 8

_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.POLLING_FULL,
)


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """A message's POP_CK: what its acknowledgement needs. Eight words with blanks between.

    Attributes:
        start_offset: first offset of the pop in that queue.
        retry_flag: 0 the topic itself, 1 or 2 the group's retry topic for it.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry_flag: str
    broker_name: str
    queue_id: int
    offset: int

    def text(self) -> str:
        """As it goes over the wire."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} "
            f"{self.retry_flag} {self.broker_name} {self.queue_id} {self.offset}"
        )

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """The handle that a text spells.

        Raises:
            MQClientError: it does not parse.
        """
        parts = text.split(" ", CK_PARTS)
        try:
            if len(parts) < CK_PARTS:
                raise ValueError(f"{len(parts)} words, allowed {CK_PARTS}")
            numbers = [int(parts[n]) for n in (0, 1, 2, 3, 6, 7)]
            if min(numbers) < -LONG_END or max(numbers) >= LONG_END:
                raise ValueError("a number of more than 64 bits")
        except ValueError as error:
            raise MQClientError(f"receipt handle {text[:80]!r}: {error}") from None
        start, pop_time, invisible, revive, queue_id, offset = numbers
        return cls(start, pop_time, invisible, revive, parts[4], parts[5], queue_id, offset)


def real_topic(topic: str, group: str, retry_flag: str) -> str:
    """The topic that a message lies in: the one asked for, or the group's retry topic for it."""
    if retry_flag == NO_RETRY:
        return topic
    return names.pop_retry_topic(topic, group, v2=retry_flag == "2")


INT_DIGITS_MAX: Final = 10
"""Digits of a count."""


def parse_offset_info(text: str | None) -> dict[tuple[str, int], str]:
    """``retryFlag queueId value`` joined by ``;``, as a map.

    Raises:
        RemoteProtocolError: a piece with fewer words.
    """
    made: dict[tuple[str, int], str] = {}
    for piece in (text or "").split(";"):
        if piece:
            parts = piece.split(" ")
            if len(parts) != 3 or not parts[1].removeprefix("qo").split("%")[0].isdigit():
                raise RemoteProtocolError(f"offset info {piece[:80]!r}: not three words")
            if not parts[1].startswith("qo"):
                made[parts[0], int(parts[1])] = parts[2]
    return made


def parse_order_counts(text: str | None) -> dict[tuple[str, str], int]:
    """``retryFlag queue count`` joined by ``;``, as a map; what is no such piece is left out.

    A queue is its number, or ``qo<number>%<offset>`` for one message of it.
    """
    made: dict[tuple[str, str], int] = {}
    for piece in (text or "").split(";"):
        flag, _, rest = piece.partition(" ")
        queue, _, count = rest.partition(" ")
        if count.isascii() and count.isdigit() and len(count) < INT_DIGITS_MAX:
            made[flag, queue] = int(count)
    return made


def attach_handles(
    messages: Iterable[MessageExt],
    header: PopMessageResponseHeader,
    topic: str,
    broker_name: str,
) -> None:
    """Give each message of an answer its POP_CK, and its topic back if it comes from a retry.

    Of a group that consumes in order the answer also says how often each was handed out before.

    Raises:
        RemoteProtocolError: the answer does not say where its messages start.
    """
    starts = parse_offset_info(header.start_offset_info)
    offsets = {
        key: iter(text.split(","))
        for key, text in parse_offset_info(header.msg_offset_info).items()
    }
    firsts: dict[tuple[str, int], int] = {}
    counts = parse_order_counts(header.order_count_info)
    for message in messages:
        properties = message.properties
        flag = retry_flag_of(message.topic, topic)
        if counts:
            queue_id = message.queue_id
            count = counts.get((flag, f"qo{queue_id}%{message.queue_offset}"))
            if count is None:
                count = counts.get((flag, str(queue_id)), 0)
            if count:
                message.reconsume_times = count
        if p.POP_CK not in properties:
            # Brokers write the handle of a message from a retry topic into the message itself.
            key = (flag, message.queue_id)
            if header.start_offset_info is None:
                start = firsts.setdefault(key, message.queue_offset)
                offset = message.queue_offset
            else:
                try:
                    start = int(starts[key])
                    offset = int(next(offsets[key]))
                except (KeyError, ValueError, StopIteration):
                    raise RemoteProtocolError(
                        f"pop of {topic}: start {header.start_offset_info!r}, offsets "
                        f"{header.msg_offset_info!r} do not name queue {key}"
                    ) from None
            properties[p.POP_CK] = ReceiptHandle(
                start,
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                flag,
                broker_name,
                message.queue_id,
                offset,
            ).text()
        properties.setdefault(p.FIRST_POP_TIME, str(header.pop_time))
        message.topic = message.get_property(p.RETRY_TOPIC) or topic


def retry_flag_of(stored_topic: str, topic: str) -> str:
    """Which kind of topic a message was stored in."""
    if not stored_topic.startswith(names.RETRY_PREFIX) or stored_topic == topic:
        return NO_RETRY
    return "2" if stored_topic.endswith(f"+{topic}") else "1"


class PopConsumer(ClientService):
    """Takes messages of a group one by one.

    Args:
        consumer_group: its members share the messages.
        subscriptions: tags or a ``MessageSelector`` by topic.
        namesrv_addr: shorthand for the same field of ``config``.
        config: how to reach the cluster.
        invisible_duration_ms: for how long a message is hidden from others.
        await_duration_ms: for how long the broker waits for messages.
        max_message_num: messages of one ``receive``, at most 32.
        consume_from_where: where a group starts that is new to a topic.
    """

    def __init__(
        self,
        consumer_group: str,
        subscriptions: Mapping[str, str | MessageSelector] | None = None,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        invisible_duration_ms: int = INVISIBLE_MS,
        await_duration_ms: int = POLL_MS,
        max_message_num: int = POP_BATCH_MAX,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ) -> None:
        self.config: ClientConfig = client_config(config, namesrv_addr)
        self._namespace = self.config.namespace
        self.group: str = names.check_group(with_namespace(self._namespace, consumer_group))
        self.invisible_duration_ms = invisible_duration_ms
        self.await_duration_ms = await_duration_ms
        if not 1 <= max_message_num <= POP_BATCH_MAX:
            raise MQClientError(
                f"max_message_num is {max_message_num}; it must be 1 to {POP_BATCH_MAX}"
            )
        self.max_message_num = max_message_num
        self.consume_from_where = consume_from_where
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._instance: ClientInstance | None = None
        # By topic, as one count for both would leave out pairs of a topic and a broker.
        self._topic_turns = itertools.count(random.randrange(1 << 16))
        self._broker_turns: dict[str, itertools.count[int]] = {}
        self._closing = False
        self._in_hand: set[int] = set()
        check_subscriptions(subscriptions)
        for topic, expression in (subscriptions or {}).items():
            self.subscribe(topic, expression)

    async def start(self) -> None:
        """Join the group.

        Raises:
            MQClientError: the same group is started twice with one instance name.
            RemotingError: no name server answered; it may be called again.
        """
        if self._instance is not None:
            return
        self._closing = False
        instance = await ClientInstance.acquire(self.config, consumer=self)
        self._instance = instance
        try:
            for topic in list(self._subscriptions):
                await instance.update_route(topic)
            await instance.send_heartbeats()
        except BaseException:
            if self._instance is instance:  # else it was shut down meanwhile
                self._instance = None
                await instance.release(consumer=self)
            raise

    async def shutdown(self) -> None:
        """Leave the group; messages that are not acknowledged come again."""
        instance, self._instance = self._instance, None
        self._closing = True
        if instance is not None:
            await instance.release(consumer=self)

    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise MQClientError(f"consumer {self.group} is not started, or shut down")
        return self._instance

    @property
    def client_id(self) -> str:
        """How brokers know this member."""
        return self._running().client_id

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Want messages of a topic."""
        topic = names.check_topic(with_namespace(self._namespace, topic))
        self._subscriptions[topic] = build_subscription_data(topic, expression, 0)
        if self._instance is not None:
            self._instance.heartbeat_soon()

    def unsubscribe(self, topic: str) -> None:
        """Want them no more."""
        topic = with_namespace(self._namespace, topic)
        self._subscriptions.pop(topic, None)
        self._broker_turns.pop(topic, None)

    # Messages

    async def receive(
        self,
        topic: str | None = None,
        *,
        max_message_num: int | None = None,
        invisible_duration_ms: int | None = None,
        await_duration_ms: int | None = None,
        queue: MessageQueue | None = None,
        order: bool = False,
    ) -> list[MessageExt]:
        """Up to ``max_message_num`` messages; none when there are none for a while.

        Args:
            topic: of one of the subscriptions; None: they are asked in turns.
            max_message_num: at most 32.
            invisible_duration_ms: for how long they are hidden from others.
            await_duration_ms: for how long the broker waits for messages.
            queue: from this queue only.
            order: a queue hands out nothing while its messages are not acknowledged.

        Raises:
            MQClientError: not subscribed, or no such topic.
            MQBrokerError, RemotingError: the broker could not be asked.
        """
        instance = self._running()
        if not self._subscriptions:
            raise MQClientError(f"consumer {self.group} has no subscription")
        if queue is not None:
            topic = queue.topic
        elif topic is None:
            topics = sorted(self._subscriptions)
            topic = topics[next(self._topic_turns) % len(topics)]
        topic = with_namespace(self._namespace, topic)
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            raise MQClientError(f"consumer {self.group} is not subscribed to {topic}")
        broker_name = queue.broker_name if queue is not None else await self._broker(topic)
        poll_ms = self.await_duration_ms if await_duration_ms is None else await_duration_ms
        invisible_ms = (
            self.invisible_duration_ms if invisible_duration_ms is None else invisible_duration_ms
        )
        header = PopMessageRequestHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=ALL_QUEUES if queue is None else queue.queue_id,
            max_msg_nums=self.max_message_num if max_message_num is None else max_message_num,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=instance.now_ms(),
            init_mode=(
                0 if self.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET else 1
            ),
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=order,
        )
        addr = await instance.require_address(
            MessageQueue(topic=topic, broker_name=broker_name, queue_id=0)
        )
        try:
            response = await instance.ask(
                addr,
                RequestCode.POP_MESSAGE,
                header,
                timeout_s=poll_ms / 1000 + POLL_GRACE_S,
                allowed=(ResponseCode.SUCCESS, *_NOTHING),
            )
        except (MQBrokerError, RemotingError) as error:
            if is_route_doubtful(error):
                instance.doubt_route(topic)
            raise
        if response.code != ResponseCode.SUCCESS:
            return []
        messages = decode_messages(response.body_bytes(), broker_name)
        attach_handles(messages, response.header(PopMessageResponseHeader), topic, broker_name)
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(self._namespace, message.topic)
        if not subscription.tags_set:
            return messages
        wanted = frozenset(subscription.tags_set)
        kept = [message for message in messages if message.tags in wanted]
        for message in messages:
            if message.tags not in wanted:  # another tag with the same hash
                await self.ack(message)
        return kept

    async def _broker(self, topic: str) -> str:
        queues = await self._running().subscribe_queues(topic)
        brokers = sorted({queue.broker_name for queue in queues})
        if not brokers:
            raise MQClientError(f"topic {topic}: no route, or no queue of it can be read")
        turns = self._broker_turns.get(topic)
        if turns is None:
            turns = self._broker_turns[topic] = itertools.count(random.randrange(1 << 16))
        return brokers[next(turns) % len(brokers)]

    async def ack(self, message: MessageExt) -> None:
        """A message is done and never comes again, if this arrives in its hidden time.

        Raises:
            MQBrokerError, RemotingError: the broker could not be told.
            MQClientError: it was not received by ``receive``.
        """
        handle, topic, addr = await self._place(message)
        await self._running().ask(
            addr,
            RequestCode.ACK_MESSAGE,
            AckMessageRequestHeader(
                consumer_group=self.group,
                topic=topic,
                queue_id=handle.queue_id,
                extra_info=message.properties[p.POP_CK],
                offset=handle.offset,
            ),
            allowed=(ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE),
        )
        self._in_hand.discard(id(message))

    async def change_invisible_duration(self, message: MessageExt, duration_ms: int) -> None:
        """Have a message come again in ``duration_ms``, counted from now.

        Raises:
            See ``ack``.
        """
        handle, topic, addr = await self._place(message)
        response = await self._running().ask(
            addr,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            ChangeInvisibleTimeRequestHeader(
                consumer_group=self.group,
                topic=topic,
                queue_id=handle.queue_id,
                extra_info=message.properties[p.POP_CK],
                offset=handle.offset,
                invisible_time=duration_ms,
            ),
        )
        renewed = response.header(ChangeInvisibleTimeResponseHeader)
        message.properties[p.POP_CK] = ReceiptHandle(
            handle.offset,
            renewed.pop_time,
            renewed.invisible_time,
            renewed.revive_qid,
            handle.retry_flag,
            handle.broker_name,
            handle.queue_id,
            handle.offset,
        ).text()
        self._in_hand.discard(id(message))

    async def reconsume_later(self, message: MessageExt) -> None:
        """Have a message come again, later with each attempt: 10 s, 30 s, 1 m and so on."""
        await self.change_invisible_duration(message, pop_retry_delay_ms(message.reconsume_times))

    async def _place(self, message: MessageExt) -> tuple[ReceiptHandle, str, str]:
        text = message.properties.get(p.POP_CK)
        if text is None:
            raise MQClientError(f"message {message.msg_id} has no receipt handle")
        handle = ReceiptHandle.parse(text)
        asked = with_namespace(self._namespace, message.topic)
        topic = real_topic(asked, self.group, handle.retry_flag)
        addr = await self._running().require_address(
            MessageQueue(topic=asked, broker_name=handle.broker_name, queue_id=handle.queue_id)
        )
        return handle, topic, addr

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Messages as they come; asking for the next one acknowledges the last.

        A message that was acknowledged or postponed by hand is left as it is. Leaving the loop
        leaves the last message to its hidden time. What was received and is hidden no longer, as
        others took so long, is not handed out: the broker hands it out again.
        """
        loop = asyncio.get_running_loop()
        idle = IdlePulls()
        while not self._closing:
            asked_s = loop.time()
            try:
                messages = await self.receive()
            except (MQBrokerError, MQClientError, OSError, OberthError) as error:
                if self._instance is None:
                    return
                _LOG.warning(
                    "%s: messages could not be received, it is tried again: %s", self.group, error
                )
                await asyncio.sleep(1.0)
                continue
            rest_s = idle.rest_after(loop.time() - asked_s, got_on=bool(messages))
            if rest_s:
                await asyncio.sleep(rest_s)
            received_s = monotonic()
            for number, message in enumerate(messages):
                if not self._may_hand_out(received_s, len(messages) - number):
                    break
                self._in_hand.add(id(message))
                try:
                    yield message
                    if id(message) in self._in_hand:
                        with contextlib.suppress(OberthError):  # it comes again
                            await self.ack(message)
                finally:
                    self._in_hand.discard(id(message))

    def _may_hand_out(self, received_s: float, count: int) -> bool:
        """Whether a loop gets the last ``count`` messages of an answer still."""
        hidden_s = self.invisible_duration_ms / 1000
        is_late = monotonic() - received_s > hidden_s
        if is_late and not self._closing:
            _LOG.warning(
                "%s: %d messages are hidden no longer and come again: those before them took more "
                "than %g s", self.group, count, hidden_s,
            )  # fmt: skip
        return not is_late and not self._closing

    # Called by the instance

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are needed."""
        return list(self._subscriptions)

    def on_route(self, topic: str) -> None:
        """Brokers came or went; the next ``receive`` sees it."""

    def consumer_data(self) -> ConsumerData | None:
        """What heartbeats say."""
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_POP,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=self.consume_from_where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    async def do_rebalance(self) -> bool:
        """There is nothing to share out."""
        return True

    async def persist_offsets(self, *, wait: bool = False) -> None:
        """The broker keeps the offsets."""
        del wait

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """The broker resets them."""
        del topic, offsets

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """The broker knows."""
        del topic
        return {}

    def running_info(self) -> Body:
        """For GET_CONSUMER_RUNNING_INFO."""
        return ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": ConsumeType.CONSUME_POP.value},
            subscription_set=list(self._subscriptions.values()),
        )

    async def consume_directly(self, body: bytes, broker_name: str) -> Body:
        """There is no listener."""
        del body, broker_name
        return ConsumeMessageDirectlyResult(consume_result=CMResult.CR_RETURN_NULL)
