"""Producer: sends messages. RocketMQ: DefaultMQProducer, DefaultMQProducerImpl.

    async with Producer("orders", namesrv_addr="127.0.0.1:9876") as producer:
        result = await producer.send(Message("OrderTopic", b"42", tags="paid"))

``send`` returns when the broker has answered, and tries other brokers when one fails;
``send_async`` returns a future as soon as the message is on its way; ``send_oneway`` wants no
answer. A message whose send failed may be stored all the same, and one that was tried twice may be
stored twice: consumers see the same ``msg_id`` then.

Lifecycle: ``start`` to ``shutdown``, or ``async with``. All calls belong to the loop that started
it; ``oberth.client.blocking`` has the same class for programs without a loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oberth.client.back_pressure import BackPressure
from oberth.client.batches import split_batch
from oberth.client.config import ClientConfig, client_config, fast_address
from oberth.client.fault_latency import LatencyFaultTolerance
from oberth.client.instance import ClientInstance
from oberth.client.members import ClientService
from oberth.client.messages import Message, SendResult, SendStatus
from oberth.client.namespace import queue_with_namespace, queue_without_namespace, with_namespace
from oberth.client.outgoing import MAX_MESSAGE_SIZE, Outgoing, Preparing
from oberth.client.retry import (
    RETRY_RESPONSE_CODES,
    is_async_send_retryable,
    is_route_doubtful,
    is_send_retryable,
    is_unreachable,
    rest_after_try,
)
from oberth.client.route import TopicPublishInfo
from oberth.client.selectors import MessageQueueSelector, select_by_hash
from oberth.client.send_frames import SendTemplate
from oberth.errors import (
    MQBrokerError,
    MQClientError,
    OberthError,
    RemoteProtocolError,
    RemotingError,
    RemotingTimeoutError,
)
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.compression import Compression
from oberth.formats.names import AUTO_CREATE_TOPIC_KEY, DEFAULT_PRODUCER_GROUP
from oberth.remoting.aio.channel import Channel
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand
from oberth.remoting.headers.send import RecallMessageRequestHeader, RecallMessageResponseHeader
from oberth.wall_clock import now_ms

if TYPE_CHECKING:
    from oberth.client.messages import MessageExt
    from oberth.client.request_reply import RequestTable
    from oberth.client.trace import TraceDispatcher
    from oberth.remoting.headers.transaction import CheckTransactionStateRequestHeader

_LOG: Final = logging.getLogger(__name__)


_STATUSES: Final = {status.value: status for status in SendStatus}


class _PendingSend(msgspec.Struct):
    """One attempt on its way; called with the response or the error."""

    producer: Producer
    outgoing: Outgoing
    queue: MessageQueue
    addr: str
    channel: Channel
    future: asyncio.Future[SendResult]
    started: float
    retries: int
    deadline: float  # of all attempts, as the loop counts

    def __call__(self, response: RemotingCommand | None, error: Exception | None) -> None:
        producer = self.producer
        producer._give_room(len(self.outgoing.body))
        if producer._watched:
            producer._note_outcome(self, response, error)
        future = self.future
        if future.done():
            return
        if response is not None:
            status = _STATUSES.get(response.code)
            if status is not None:
                try:
                    result = _result(status, self, response)
                except (KeyError, ValueError, TypeError) as broken:
                    future.set_exception(
                        RemoteProtocolError(
                            f"answer of {self.addr} to a send: {response.ext_fields}: {broken!r}"
                        )
                    )
                else:
                    future.set_result(result)
                return
            instance = producer._instance  # None: the producer was shut down meanwhile
            if response.code == ResponseCode.GO_AWAY and instance is not None:
                instance.remoting.leave(self.addr, self.channel)
            error = MQBrokerError(response.code, response.remark or "", self.addr)
        assert error is not None
        if is_route_doubtful(error):
            producer._doubt_route(self.outgoing.topic)
        if isinstance(error, RemotingTimeoutError):
            producer._close_if_dead(self.channel, self.started)
        if self.retries and is_async_send_retryable(error):
            producer._retry_async(self, error)
        else:
            future.set_exception(error)


def _result(status: SendStatus, pending: _PendingSend, response: RemotingCommand) -> SendResult:
    fields = response.ext_fields or {}
    queue = pending.queue
    queue_id = int(fields["queueId"])
    if queue_id != queue.queue_id:
        queue = MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue_id)
    if pending.producer._namespace:
        queue = queue_without_namespace(pending.producer._namespace, queue)
    return SendResult(
        status,
        pending.outgoing.msg_id,
        queue,
        int(fields["queueOffset"]),
        fields["msgId"],
        fields.get("transactionId", ""),
        fields.get(p.MESSAGE_REGION, "DefaultRegion"),
        fields.get(p.TRACE_SWITCH) != "false",
        fields.get("recallHandle", ""),
    )


class Producer(Preparing, BackPressure, ClientService):
    """Sends messages of one producer group.

    Args:
        producer_group: of transactions and statistics; brokers know its members.
        namesrv_addr: shorthand for the same field of ``config``.
        config: how to reach the cluster.
        create_topic_key: topic that stands for one that does not exist; "": never create any.
        default_topic_queue_nums: queues on each broker of a topic that a send creates.
        send_msg_timeout_ms: for one send with all its attempts.
        send_msg_max_timeout_per_request_ms: for one attempt; None: whatever is left.
        compress_msg_body_over_bytes: bodies above are compressed; RocketMQ:
            ``compressMsgBodyOverHowmuch``.
        compression: with what; old clients read zlib only.
        compression_level: zlib's 0 to 9.
        retry_times_when_send_failed: further attempts of ``send``.
        retry_times_when_send_async_failed: further attempts of ``send_async``.
        retry_another_broker_when_not_store_ok: also try again when the message was stored, but
            not as safely as the broker is told to.
        retry_response_codes: answers after which ``send`` tries another broker.
        max_message_size: bytes of a body.
        send_latency_fault_enable: leave slow and failing brokers alone for a while.
        back_pressure_for_async_send_num: messages on their way above which sends wait.
        back_pressure_for_async_send_bytes: bytes of bodies on their way above which they wait.

    Raises:
        IllegalNameError: the group's name is not allowed.
    """

    def __init__(
        self,
        producer_group: str = DEFAULT_PRODUCER_GROUP,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        create_topic_key: str = AUTO_CREATE_TOPIC_KEY,
        default_topic_queue_nums: int = 4,
        send_msg_timeout_ms: int = 3000,
        send_msg_max_timeout_per_request_ms: int | None = None,
        compress_msg_body_over_bytes: int = 4096,
        compression: Compression = Compression.ZLIB,
        compression_level: int = 5,
        retry_times_when_send_failed: int = 2,
        retry_times_when_send_async_failed: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        retry_response_codes: Iterable[int] = RETRY_RESPONSE_CODES,
        max_message_size: int = MAX_MESSAGE_SIZE,
        send_latency_fault_enable: bool = False,
        back_pressure_for_async_send_num: int = 10_000,
        back_pressure_for_async_send_bytes: int = 100 * 1024 * 1024,
    ) -> None:
        super().__init__(back_pressure_for_async_send_num, back_pressure_for_async_send_bytes)
        self.config: ClientConfig = client_config(config, namesrv_addr)
        self._namespace = self.config.namespace
        self.group: str = names.check_group(with_namespace(self._namespace, producer_group))
        self.create_topic_key = create_topic_key
        self.default_topic_queue_nums = default_topic_queue_nums
        self.send_msg_timeout_ms = send_msg_timeout_ms
        self.send_msg_max_timeout_per_request_ms = send_msg_max_timeout_per_request_ms
        self.compress_msg_body_over_bytes = compress_msg_body_over_bytes
        self.compression = compression
        self.compression_level = compression_level
        self.retry_times_when_send_failed = retry_times_when_send_failed
        self.retry_times_when_send_async_failed = retry_times_when_send_async_failed
        self.retry_another_broker_when_not_store_ok = retry_another_broker_when_not_store_ok
        self.retry_response_codes = frozenset(int(code) for code in retry_response_codes)
        self.max_message_size = max_message_size
        self._faults = LatencyFaultTolerance() if send_latency_fault_enable else None
        self._trace: TraceDispatcher | None = None
        self._watched = send_latency_fault_enable
        self._traceparent = self.config.traceparent
        self._instance: ClientInstance | None = None
        self._topics: set[str] = set()
        self._templates: dict[tuple[MessageQueue, RequestCode], SendTemplate] = {}
        self._requests: RequestTable | None = None

    # Life cycle

    async def start(self) -> None:
        """Join the cluster; connections are opened when they are needed."""
        if self._instance is not None:
            return
        self._instance = await ClientInstance.acquire(self.config, producer=self)
        self._loop = asyncio.get_running_loop()
        if self.config.enable_trace:
            self._trace = make_trace(self.config)
            self._watched = True
            await self._trace.start()

    async def shutdown(self) -> None:
        """Leave: what is on its way is waited for, as long as a send may take."""
        if self._instance is None:
            return
        try:
            if self._in_flight or self._retries:
                await self._wait_idle(self.send_msg_timeout_ms / 1000)
            if self._trace is not None:
                await self._trace.shutdown()
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Leave at once, as when a shutdown is cancelled."""
        instance, self._instance = self._instance, None
        trace, self._trace = self._trace, None
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.close()
        try:
            if trace is not None:
                await trace.leave()
        finally:
            if instance is not None:
                await instance.release(producer=self)

    @property
    def client_id(self) -> str:
        """How brokers know this process."""
        return self._instance_or_raise().client_id

    # Called by the instance

    def publish_topics(self) -> Iterable[str]:
        """Topics that were sent to."""
        return self._topics

    def on_route(self, topic: str) -> None:
        """A route changed."""
        self._templates = {
            key: template for key, template in self._templates.items() if key[0].topic != topic
        }

    def on_check_transaction(
        self, addr: str, header: CheckTransactionStateRequestHeader, body: bytes
    ) -> None:
        """A broker asks how a transaction ended; this producer has none."""
        del body
        _LOG.warning(
            "%s: %s asks about transaction %s, but this producer has no transactions",
            self.group, addr, header.transaction_id,
        )  # fmt: skip

    # Sending

    async def send(
        self,
        msg: Message | Sequence[Message],
        *,
        mq: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message, or several of one topic as one batch, and wait for the broker's answer.

        A message with a sharding key goes to the queue that ``select_by_hash`` gives for it,
        unless a queue or a selector is given; such sends are tried once, on that queue.

        Args:
            msg: what to send; a batch is stored in one queue, in order, all or nothing.
            mq: the queue to send to.
            selector: chooses the queue.
            arg: handed to ``selector``.
            timeout_ms: for all attempts; None: ``send_msg_timeout_ms``.

        Raises:
            MQClientError: an illegal message, no route, or the producer is not running.
            MQBrokerError: the broker refused it.
            RemotingError: no connection, or no answer in time.
        """
        instance = self._instance
        if instance is None:
            instance = self._instance_or_raise()
        loop = self._loop
        begin = loop.time()
        timeout_s = (self.send_msg_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        outgoing = self._prepare_nowait(msg) or await self._prepare_in_thread(msg)
        if not self._has_room(len(outgoing.body)):
            await self._wait_room(len(outgoing.body), timeout_s)
        queue = mq if mq is None else queue_with_namespace(self._namespace, mq)
        if queue is None:
            info = instance.publish_info_nowait(outgoing.topic) or await self._publish_info(
                outgoing.topic
            )
            queue = self._choose(info, outgoing, selector, arg)
            if queue is None:
                return await self._send_with_retries(outgoing, info, begin, timeout_s)
        rest_s = timeout_s - (loop.time() - begin)
        future = self._post_nowait(outgoing, queue, rest_s) or await self._post(
            outgoing, queue, rest_s
        )
        return await future

    def _choose(
        self,
        info: TopicPublishInfo,
        outgoing: Outgoing,
        selector: MessageQueueSelector | None,
        arg: Any,
    ) -> MessageQueue | None:
        """The one queue that the message must go to, or None."""
        message = outgoing.message
        if selector is not None:
            queues = info.queues
            if self._namespace:
                queues = [queue_without_namespace(self._namespace, queue) for queue in queues]
            first = message if isinstance(message, Message) else message[0]
            queue = selector(queues, first, arg)
            if not isinstance(queue, MessageQueue):
                raise MQClientError(f"the selector gave {queue!r}; it must give a MessageQueue")
            return queue_with_namespace(self._namespace, queue)
        if not isinstance(message, Message):
            return None
        sharding_key = message.properties.get(p.SHARDING_KEY)
        if sharding_key:
            return select_by_hash(info.queues, message, sharding_key)
        return None

    async def _send_with_retries(
        self, outgoing: Outgoing, info: TopicPublishInfo, begin: float, timeout_s: float
    ) -> SendResult:
        loop = self._loop
        attempts = 1 + max(0, self.retry_times_when_send_failed)
        tried: list[str] = []
        failure: Exception | None = None
        result: SendResult | None = None
        for _ in range(attempts):
            queue = self._select_queue(info, tried[-1] if tried else None)
            rest_s = timeout_s - (loop.time() - begin)
            if rest_s <= 0:
                break
            tried.append(queue.broker_name)
            try:
                attempt_s = self._attempt_timeout_s(rest_s)
                future = self._post_nowait(outgoing, queue, attempt_s) or await self._post(
                    outgoing, queue, attempt_s,
                    may_pass_by=len(tried) < attempts and info.has_other_than(tried),
                )  # fmt: skip
                result = await future
            except (MQBrokerError, MQClientError, RemotingError) as error:
                failure = error
                if not is_send_retryable(error, self.retry_response_codes):
                    break
                _LOG.info(
                    "message %s could not be sent to %s, it is sent elsewhere: %s",
                    outgoing.msg_id,
                    queue,
                    error,
                )
                info = await self._look_before_retry(
                    outgoing.topic, error, info, tried, begin + timeout_s, len(tried) == attempts
                )
                continue
            if (
                result.status is SendStatus.SEND_OK
                or not self.retry_another_broker_when_not_store_ok
            ):
                return result
        if result is not None:
            return result
        if failure is None:
            raise RemotingTimeoutError(
                f"send of {outgoing.msg_id} to {outgoing.topic}: no attempt within {timeout_s:g} s"
            )
        if len(tried) > 1:
            failure.add_note(
                f"topic {outgoing.topic}, message {outgoing.msg_id}: tried {len(tried)} times, "
                f"brokers {tried}, {loop.time() - begin:.3f} s"
            )
        raise failure

    async def _look_before_retry(
        self,
        topic: str,
        error: Exception,
        info: TopicPublishInfo,
        tried: list[str],
        deadline: float,
        is_last: bool,
    ) -> TopicPublishInfo:
        """Sees whether a topic has moved; one whose brokers were all tried is given a moment.

        Such as one whose only master restarts. A second address gets it too: it may be that of a
        slave until there is another master.

        Args:
            topic: of the message.
            error: what the last try ended with.
            info: the queues that are known.
            tried: names of the brokers so far.
            deadline: time of the loop at which the send gives up.
            is_last: whether there is no other try.
        """
        instance = self._instance_or_raise()
        known = instance.master_address(tried[-1])
        await self._look_at_route(topic, error, deadline)
        info = instance.publish_info_nowait(topic) or info
        if is_last or (len(tried) == 1 and known != instance.master_address(tried[-1])):
            return info
        left_s = deadline - self._loop.time()
        if left_s > 0 and not info.has_other_than(tried):
            await asyncio.sleep(min(rest_after_try(len(tried)), left_s))
            await self._look_at_route(topic, error, deadline)
        return info

    def _attempt_timeout_s(self, rest_s: float) -> float:
        limit_ms = self.send_msg_max_timeout_per_request_ms
        return rest_s if limit_ms is None or limit_ms < 0 else min(rest_s, limit_ms / 1000)

    def _select_queue(self, info: TopicPublishInfo, last_broker: str | None) -> MessageQueue:
        faults = self._faults
        if faults is None:
            return info.select(last_broker)
        now = self._loop.time() * 1000
        queue = info.select_where(
            lambda queue: faults.is_available(queue.broker_name, now), last_broker
        )
        if queue is None:
            queue = info.select_where(lambda queue: faults.is_reachable(queue.broker_name), None)
        return queue or info.select(last_broker)

    async def _look_at_route(self, topic: str, error: Exception, deadline: float) -> None:
        """A broker that failed may have moved, be gone or a slave; waits for what there is new."""
        if is_route_doubtful(error):
            task = self._instance_or_raise().doubt_route(topic)
            if task is None:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(task)
            except (OberthError, TimeoutError) as also:
                _LOG.info("the route of topic %s could not be asked for: %r", topic, also)

    def _doubt_route(self, topic: str) -> None:
        if self._instance is not None:
            self._instance.doubt_route(topic)

    async def _publish_info(self, topic: str) -> TopicPublishInfo:
        self._topics.add(topic)
        return await self._instance_or_raise().publish_info(
            topic, template=self.create_topic_key, queue_nums=self.default_topic_queue_nums
        )

    def _post_nowait(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        timeout_s: float,
        retries: int = 0,
        deadline: float = 0.0,
    ) -> asyncio.Future[SendResult] | None:
        """``_post`` when the connection stands, as it nearly always does."""
        instance = self._instance
        if instance is None or self.config.vip_channel_enabled or timeout_s <= 0:
            return None
        addr = instance.master_address(queue.broker_name)
        channel = None if addr is None else instance.remoting.channel_nowait(addr)
        if addr is None or channel is None:
            return None
        return self._write(outgoing, queue, addr, channel, timeout_s, retries, deadline)

    async def _post(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        timeout_s: float,
        retries: int = 0,
        deadline: float = 0.0,
        may_pass_by: bool = False,
    ) -> asyncio.Future[SendResult]:
        """Write one attempt, unless its time is over; the future gives its outcome.

        Args:
            outgoing: what to send.
            queue: where to.
            timeout_s: of this attempt, with what it waits for; a connection may come later.
            retries: further attempts after it.
            deadline: of them, as the loop counts.
            may_pass_by: whether others will be tried: nobody asks where this one is.

        Raises:
            RemotingError: nothing was sent.
            MQClientError: the broker is not in the route.
        """
        instance = self._instance_or_raise()
        begin = self._loop.time()
        what = f"message {outgoing.msg_id} was not sent to {queue.broker_name}"
        if timeout_s <= 0:
            raise RemotingTimeoutError(f"{what}: its time was over")
        try:
            async with asyncio.timeout_at(begin + timeout_s):
                if may_pass_by:
                    addr = instance.require_address_nowait(queue)
                else:
                    addr = await instance.require_address(queue)
                if self.config.vip_channel_enabled:
                    addr = fast_address(addr)
                remoting = instance.remoting
                channel = remoting.channel_nowait(addr) or await remoting.channel(addr)
        except (OberthError, TimeoutError) as error:
            instance.doubt_route(queue.topic)
            self._note_unreachable(queue.broker_name, begin)
            if isinstance(error, OberthError):
                raise
            raise RemotingTimeoutError(f"{what}: no connection within {timeout_s:g} s") from None
        rest_s = begin + timeout_s - self._loop.time()
        if rest_s <= 0:
            raise RemotingTimeoutError(f"{what}: its time was over with the connection")
        return self._write(outgoing, queue, addr, channel, rest_s, retries, deadline)

    def _note_unreachable(self, broker_name: str, begin: float) -> None:
        if self._faults is not None:
            now = self._loop.time()
            self._faults.update(
                broker_name, (now - begin) * 1000, now * 1000, failed=True, reachable=False
            )

    def _write(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        addr: str,
        channel: Channel,
        timeout_s: float,
        retries: int,
        deadline: float,
    ) -> asyncio.Future[SendResult]:
        loop = self._loop
        future: asyncio.Future[SendResult] = loop.create_future()
        started = loop.time()
        born_ms = outgoing.born_ms
        pending = _PendingSend(
            self, outgoing, queue, addr, channel, future, started, retries, deadline
        )
        template = self._template(queue, outgoing.code)
        instance = self._instance
        assert instance is not None
        if instance.stamps:
            command = template.command(
                outgoing.sys_flag, born_ms, outgoing.flag, outgoing.properties, outgoing.body
            )
            instance.stamp(command)
            channel.invoke_callback(command, timeout_s, pending)
        else:
            opaque = channel.give_opaque()
            frame = template.frame(
                opaque,
                outgoing.sys_flag,
                born_ms,
                outgoing.flag,
                outgoing.properties_json,
                outgoing.body,
            )
            channel.invoke_frame(outgoing.code, opaque, frame, timeout_s, pending)
        self._in_flight += 1
        self._in_flight_bytes += len(outgoing.body)
        return future

    def _template(self, queue: MessageQueue, code: RequestCode) -> SendTemplate:
        key = (queue, code)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = SendTemplate(
                code,
                self.group,
                queue,
                self.create_topic_key or AUTO_CREATE_TOPIC_KEY,
                self.default_topic_queue_nums,
                bool(self.config.unit_name),
            )
        return template

    async def send_async(
        self,
        msg: Message | Sequence[Message],
        *,
        mq: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send without waiting for the answer; the future gives it, or the errors of ``send``.

        Returns as soon as the message is handed to the connection, and not before there is room
        for it: that is the back pressure. Broken connections and time-outs are retried on other
        brokers, as long as ``timeout_ms`` allows for all attempts; answers of a broker are not.
        """
        instance = self._instance_or_raise()
        timeout_s = (self.send_msg_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        outgoing = self._prepare_nowait(msg) or await self._prepare_in_thread(msg)
        if not self._has_room(len(outgoing.body)):
            await self._wait_room(len(outgoing.body), timeout_s)
        begin = self._loop.time()  # the wait for room has a limit of its own
        queue = mq if mq is None else queue_with_namespace(self._namespace, mq)
        retries, limit_s, deadline = 0, timeout_s, begin + timeout_s
        info = None
        if queue is None:
            info = instance.publish_info_nowait(outgoing.topic) or await self._publish_info(
                outgoing.topic
            )
            queue = self._choose(info, outgoing, selector, arg)
            if queue is None:
                retries = max(0, self.retry_times_when_send_async_failed)
                limit_s = self._attempt_timeout_s(timeout_s)
                queue = self._select_queue(info, None)
        limit_s = min(limit_s, deadline - self._loop.time())
        try:
            return self._post_nowait(
                outgoing, queue, limit_s, retries, deadline
            ) or await self._post(
                outgoing, queue, limit_s, retries, deadline,
                may_pass_by=retries > 0 and info is not None
                and info.has_other_than([queue.broker_name]),
            )  # fmt: skip
        except (RemotingError, MQClientError) as error:
            future: asyncio.Future[SendResult] = self._loop.create_future()
            if retries and is_async_send_retryable(error):
                self._start_retry(outgoing, queue, retries, future, error, deadline)
            else:
                future.set_exception(error)
            return future

    def _retry_async(self, pending: _PendingSend, error: Exception) -> None:
        if self._loop.time() >= pending.deadline or self._instance is None:
            pending.future.set_exception(error)
            return
        self._start_retry(
            pending.outgoing, pending.queue, pending.retries, pending.future, error,
            pending.deadline,
        )  # fmt: skip

    def _start_retry(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        retries: int,
        future: asyncio.Future[SendResult],
        error: Exception,
        deadline: float,
    ) -> None:
        task = self._loop.create_task(
            self._retry(outgoing, queue.broker_name, retries, future, error, deadline)
        )
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _retry(
        self,
        outgoing: Outgoing,
        last_broker: str,
        retries: int,
        future: asyncio.Future[SendResult],
        failure: Exception,
        deadline: float,
    ) -> None:
        tried = [last_broker]
        while retries and not future.done() and self._loop.time() < deadline:
            retries -= 1
            try:
                await self._look_at_route(outgoing.topic, failure, deadline)
                info = self._instance_or_raise().publish_info_nowait(outgoing.topic)
                rest_s = deadline - self._loop.time()
                if info is None or rest_s <= 0:
                    break
                queue = self._select_queue(info, tried[-1])
                tried.append(queue.broker_name)
                posted = await self._post(
                    outgoing, queue, self._attempt_timeout_s(rest_s),
                    may_pass_by=retries > 0 and info.has_other_than(tried),
                )  # fmt: skip
                result = await posted
            except asyncio.CancelledError:
                future.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
                failure = error
                if not is_async_send_retryable(error):
                    break
            else:
                if not future.done():
                    future.set_result(result)
                return
        if not future.done():
            future.set_exception(failure)

    async def send_oneway(
        self,
        msg: Message,
        *,
        mq: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
    ) -> None:
        """Send and want no answer: it is not known whether the message was stored.

        Waits only while the broker does not read.

        Raises:
            MQClientError, RemotingConnectError: see ``send``.
        """
        instance = self._instance_or_raise()
        outgoing = self._prepare_nowait(msg) or await self._prepare_in_thread(msg)
        queue = mq if mq is None else queue_with_namespace(self._namespace, mq)
        if queue is None:
            info = instance.publish_info_nowait(outgoing.topic) or await self._publish_info(
                outgoing.topic
            )
            queue = self._choose(info, outgoing, selector, arg) or self._select_queue(info, None)
        addr = instance.master_address(queue.broker_name)
        if addr is None:
            addr = await instance.require_address(queue)
        if self.config.vip_channel_enabled:
            addr = fast_address(addr)
        channel = instance.remoting.channel_nowait(addr) or await instance.remoting.channel(addr)
        await channel.drain()
        template = self._template(queue, outgoing.code)
        if instance.stamps:
            command = template.command(
                outgoing.sys_flag, now_ms(), outgoing.flag, outgoing.properties, outgoing.body
            )
            instance.stamp(command)
            channel.invoke_oneway(command)
            return
        channel.send_frame(
            template.frame(
                channel.give_opaque(),
                outgoing.sys_flag,
                now_ms(),
                outgoing.flag,
                outgoing.properties_json,
                outgoing.body,
                ONEWAY_FLAG,
            )
        )

    async def send_batch(
        self,
        msgs: Sequence[Message],
        *,
        mq: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in as many batches as ``max_message_size`` asks for.

        In order as long as ``mq`` is given; each batch is stored all or nothing, the whole is not.

        Raises:
            See ``send``; batches before the one that failed are stored.
        """
        return [
            await self.send(batch, mq=mq, timeout_ms=timeout_ms)
            for batch in split_batch(msgs, self.max_message_size)
        ]

    async def request(self, msg: Message, timeout_ms: int = 3000) -> MessageExt:
        """Send a request and wait for the reply that a consumer sends back.

        Raises:
            RequestTimeoutError: no reply in time.
            MQClientError, MQBrokerError, RemotingError: the request could not be sent.
        """
        from oberth.client.request_reply import RequestTable  # noqa: PLC0415 - few producers need it

        if self._requests is None:
            self._requests = RequestTable(self._instance_or_raise())
        return await self._requests.request(
            msg,
            timeout_ms,
            self.fetch_publish_message_queues,
            partial(self.send, timeout_ms=timeout_ms),
        )

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take back a delayed message that is not due yet; gives its id.

        Raises:
            MQClientError: the handle is broken.
            MQBrokerError: the broker refuses (it must have ``recallMessageEnable``).
        """
        from oberth.client.recall import broker_of_recall_handle  # noqa: PLC0415 - few producers need it

        instance = self._instance_or_raise()
        topic = with_namespace(self._namespace, topic)
        broker_name = broker_of_recall_handle(recall_handle)
        addr = await instance.require_address(
            MessageQueue(topic=topic, broker_name=broker_name, queue_id=0)
        )
        response = await instance.ask(
            addr,
            RequestCode.RECALL_MESSAGE,
            RecallMessageRequestHeader(
                producer_group=self.group, topic=topic, recall_handle=recall_handle
            ),
            timeout_s=self.send_msg_timeout_ms / 1000,
        )
        return response.header(RecallMessageResponseHeader).msg_id

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a topic may be sent to."""
        namespace = self._namespace
        info = await self._publish_info(with_namespace(namespace, topic))
        return [queue_without_namespace(namespace, queue) for queue in info.queues]

    # Outcome

    def _note_outcome(
        self, pending: _PendingSend, response: RemotingCommand | None, error: Exception | None
    ) -> None:
        """For latency faults and traces; called for every attempt when one of them is on."""
        now = self._loop.time()
        latency_ms = (now - pending.started) * 1000
        ok = response is not None and response.code in _STATUSES
        if self._faults is not None:
            self._faults.update(
                pending.queue.broker_name,
                latency_ms,
                now * 1000,
                failed=not ok,
                reachable=error is None or not is_unreachable(error),
            )
        if self._trace is not None:
            self._trace.note_send(
                self.group, pending.outgoing.message, pending.addr, pending.outgoing.born_ms,
                round(latency_ms), response if ok else None,
            )  # fmt: skip

    def _close_if_dead(self, channel: Channel, since: float) -> None:
        """A connection from which nothing came since the request went out leads nowhere."""
        if channel.last_received < since:
            channel.close()


_trace_numbers = count(1)


def make_trace(config: ClientConfig) -> TraceDispatcher:
    """What sends the trace records of a client: with a producer of its own, over its connections.

    It is not started yet.
    """
    from oberth.client.trace import GROUP_PREFIX, SEND_TIMEOUT_MS, TraceDispatcher  # noqa: PLC0415 - few producers need it

    producer = Producer(
        f"{GROUP_PREFIX}_{next(_trace_numbers)}",
        config=replace(config, enable_trace=False),
        send_msg_timeout_ms=SEND_TIMEOUT_MS,
        create_topic_key="",
    )
    return TraceDispatcher(config.trace_topic, producer)
