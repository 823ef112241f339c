"""SendMessageProcessor: 10, 310, 320 in bursts, and 36. RocketMQ: SendMessageProcessor.

All sends of one read of a socket become one append; the ones that need not wait for the disk are
answered in the same write. What is always true: a request is answered with success only when its
message is in the log, and, where flushDiskType says so, on the disk; no name has been used for a
path before it was checked.

A topic's own permission is not among the checks, as in RocketMQ: it is enforced through the route,
by which producers choose queues. The checks of a topic are worked out once and kept until any
topic or group changes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from oberth.broker import remarks
from oberth.broker.attributes import CLEANUP_POLICY
from oberth.broker.put_status import put_outcome
from oberth.broker.recall_handle import RecallHandle
from oberth.broker.static_topics import NOT_LEADER
from oberth.broker.stats import (
    BROKER_PUT_NUMS,
    DLQ_PUT_NUMS,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    StatsItem,
)
from oberth.broker.topic_configs import FLAG_UNIT, FLAG_UNIT_SUB, java_text, queue_nums_max
from oberth.errors import FormatError, IllegalNameError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.batch_body import decode_batch
from oberth.formats.config_files import LogicQueueMappingItem, TopicQueueMappingDetail
from oberth.formats.message import encode_host, properties_at
from oberth.formats.queue_mapping import led_queues, to_logical_within
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.code import MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand, create_response
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from oberth.remoting.rendered import SendResponses
from oberth.store.compaction_store import POLICY as COMPACTION
from oberth.store.messages import (
    MessageExtBatch,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel

DLQ_QUEUE_NUMS: Final = 1
RETRY_QUEUE_NUMS: Final = 1
FIRST_RETRY_DELAY_LEVEL: Final = 3
BATCH_TOPIC_LENGTH_MAX: Final = 127

_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_PUT_OK: Final = PutMessageStatus.PUT_OK
_OTHER_TYPES: Final = frozenset(
    {p.DELAY, p.TIMER_DELIVER_MS, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.SHARDING_KEY}
)
"""Properties that make a message delayed or ordered; only what is neither has a priority."""

_UNIQ_KEY: Final = "UNIQ_KEY\x01"
_NO_KEY: Final = "Required message key is missing"


class ClientAddresses:
    """What a message from a channel has as its hosts. Kept in ``channel.context``.

    Attributes:
        born_host: the client, as a record holds it.
        store_host: the broker as the client knows it, as a record holds it.
        id_prefix: ``store_host`` as offset message ids begin; ``id_prefix_raw`` in ASCII.
    """

    __slots__ = ("born_host", "id_prefix", "id_prefix_raw", "store_host")

    def __init__(self, born_host: bytes, store_host: bytes) -> None:
        self.born_host = born_host
        self.store_host = store_host
        self.id_prefix = store_host.hex().upper()
        self.id_prefix_raw = self.id_prefix.encode()


class _SendTopic:
    """The checks of a topic, worked out."""

    __slots__ = (
        "is_batch_queue", "is_retry", "is_special", "led", "logical", "puts", "queue_nums_max",
        "sizes", "wants_key", "write_queue_nums",
    )  # fmt: skip

    def __init__(
        self,
        topic_config: TopicConfig,
        puts: StatsItem,
        sizes: StatsItem,
        mapping: TopicQueueMappingDetail | None = None,
    ) -> None:
        self.queue_nums_max = queue_nums_max(topic_config)
        self.led: dict[int, int] | None = None
        """Of a static topic: logical to physical queue, of those that take messages here."""
        self.logical: dict[int, tuple[int, LogicQueueMappingItem]] = {}
        """Of a static topic: physical to logical queue, and the stretch."""
        if mapping is not None:
            self.queue_nums_max = 0  # every queue id is one to look at
            self.led = led_queues(mapping)
            self.logical = {
                physical: (logical, mapping.hosted_queues[logical][-1])
                for logical, physical in self.led.items()
            }
        self.write_queue_nums = topic_config.write_queue_nums
        self.is_batch_queue = topic_config.is_batch_queue
        self.is_retry = (topic_config.topic_name or "").startswith(names.RETRY_PREFIX)
        self.wants_key = topic_config.attributes.get(CLEANUP_POLICY) == COMPACTION
        self.is_special = self.is_retry or self.wants_key
        self.puts = puts
        self.sizes = sizes


class _Pending:
    """A message between its request and its response."""

    __slots__ = ("message", "queue_id", "request", "topic", "unique_key")

    def __init__(
        self,
        request: RemotingCommand,
        message: MessageExtBrokerInner,
        topic: _SendTopic,
        queue_id: int,
        unique_key: str,
    ) -> None:
        self.request = request
        self.message = message
        self.topic = topic
        self.queue_id = queue_id
        self.unique_key = unique_key


class _PendingInnerBatch(_Pending):
    """A client batch that a batch queue keeps as one record; its id is that of all its messages."""

    __slots__ = ()


class _Refusal(Exception):
    """A check that failed; the code and remark to answer with."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


class SendMessageProcessor:
    """Stores what producers send and what consumers send back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[str, _SendTopic] = {}
        config = broker.config
        self._responses = SendResponses(config.region_id, config.trace_on)
        self._region_fields = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
        }
        self._added_properties = {
            p.CLUSTER: config.broker_cluster_name,
            p.MESSAGE_REGION: config.region_id,
            p.TRACE_SWITCH: self._region_fields["TRACE_ON"],
        }
        self._added_text = p.encode_properties(self._added_properties).decode()
        self._broker_puts = broker.stats.item(BROKER_PUT_NUMS, config.broker_cluster_name)

    def forget_topics(self) -> None:
        """Topics or groups changed: their checks are made again."""
        self._topics.clear()

    # ------------------------------------------------------------------------------ 10, 310, 320

    def send(
        self, channel: Channel, requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        """The sends of one read: refusals as responses; the others are answered when stored."""
        responses: list[RemotingCommand | None] = [None] * len(requests)
        addresses: ClientAddresses = channel.context or self._addresses(channel)
        messages: list[MessageExtBrokerInner] = []
        pendings: list[_Pending] = []
        with self._broker.topics_written_once:
            for number, request in enumerate(requests):
                try:
                    pending = self._begin(channel, addresses, request)
                except _Refusal as refusal:
                    responses[number] = self._refuse(request, refusal.code, refusal.remark)
                    continue
                except HeaderError as error:
                    responses[number] = create_response(
                        request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
                    )
                    continue
                messages.append(pending.message)
                pendings.append(pending)
        if messages:
            broker = self._broker
            results = broker.store.append_messages(messages)
            broker.dispatch_soon()
            if broker.static_topics:
                self._to_logical(pendings, results)
            if broker.waits_for_disk:
                self._answer_when_durable(channel, addresses, pendings, results)
            else:
                self._answer(channel, addresses, pendings, results)
        return responses

    def addresses(self, channel: Channel) -> ClientAddresses:
        """The hosts of messages from a channel."""
        return channel.context or self._addresses(channel)

    def _addresses(self, channel: Channel) -> ClientAddresses:
        made = ClientAddresses(encode_host(*channel.remote), self._broker.store_host_for(channel))
        channel.context = made
        return made

    def _begin(
        self, channel: Channel, addresses: ClientAddresses, request: RemotingCommand
    ) -> _Pending:
        """All checks, and the message as it is to be stored."""
        code = request.code
        is_batch = False
        if code == _V2:
            # The way of nearly every send: see SendMessageRequestHeader for what the letters mean.
            fields = request.ext_fields
            try:
                topic_name = fields["b"]  # type: ignore[index]
                queue_id = int(fields["e"])  # type: ignore[index]
                sys_flag = int(fields["f"])  # type: ignore[index]
                born_timestamp = int(fields["g"])  # type: ignore[index]
                flag = int(fields["h"])  # type: ignore[index]
                text = fields.get("i") or ""  # type: ignore[union-attr]
                batch = fields.get("m")  # type: ignore[union-attr]
            except (KeyError, ValueError, TypeError):
                SendMessageRequestHeader.from_command(request)  # names what is missing
                raise
            if batch is not None and batch != "false":
                is_batch = batch.lower() == "true"
            topic = self._topics.get(topic_name)
            header = None
            if topic is None or topic.is_retry:
                header = SendMessageRequestHeader.from_command(request)
        else:
            header = SendMessageRequestHeader.from_command(request)
            topic_name = header.topic
            queue_id = header.queue_id
            sys_flag = header.sys_flag
            born_timestamp = header.born_timestamp
            flag = header.flag
            text = header.properties or ""
            is_batch = code == RequestCode.SEND_BATCH_MESSAGE or bool(header.batch)
            topic = self._topics.get(topic_name)
        if topic is None:
            assert header is not None
            topic = self._check_topic(header, channel)
        if self._broker.sends_refused_until_ms:
            self._refuse_while_starting()
        if not 0 <= queue_id < topic.queue_nums_max:
            queue_id = self._queue_of(topic_name, topic, queue_id, channel)
        if is_batch:
            return self._begin_batch(
                request,
                addresses,
                topic_name,
                topic,
                queue_id,
                sys_flag,
                born_timestamp,
                flag,
                text,
            )
        if text and text[-1] != "\x02":
            text += "\x02"
        wait = "WAIT\x01false" not in text
        if (
            "CLUSTER\x01" in text
            or "MSG_REGION\x01" in text
            or "POP_CK\x01" in text
            or "__RMQ.TRANSIENT." in text
            or "TRAN_MSG\x01" in text
            or "_SYS_MSG_PRIORITY_\x01" in text
            or "__LITE_TOPIC\x01" in text
            or topic.is_special
        ):
            return self._begin_special(
                request, addresses, topic_name, topic, queue_id, sys_flag, born_timestamp, flag,
                text, header or SendMessageRequestHeader.from_command(request),
            )  # fmt: skip
        start = text.find(_UNIQ_KEY)
        if start == 0 or (start > 0 and text[start - 1] == "\x02"):
            unique_key = text[start + 9 : text.index("\x02", start)]
        else:
            unique_key = self._broker.unique_ids.next()
            text = f"{text}{_UNIQ_KEY}{unique_key}\x02"
        message = MessageExtBrokerInner(
            topic_name,
            request.body,  # type: ignore[arg-type]  # after decoding always bytes
            (text + self._added_text).encode("utf-8", "replace"),
            queue_id,
            flag,
            sys_flag,
            born_timestamp,
            addresses.born_host,
            addresses.store_host,
            0,
            0,
            wait,
        )
        return _Pending(request, message, topic, queue_id, unique_key)

    def _begin_batch(
        self,
        request: RemotingCommand,
        addresses: ClientAddresses,
        topic_name: str,
        topic: _SendTopic,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        flag: int,
        text: str,
    ) -> _Pending:
        """A client batch; its items keep their own properties as they came.

        In a batch queue it stays one record, if the batch itself has a unique key.
        """
        if len(topic_name) > BATCH_TOPIC_LENGTH_MAX:
            raise _Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic_name)}"
            )
        if topic.is_retry:
            raise _Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {topic_name}",
            )
        if topic.wants_key:
            self._check_keys(request)
        properties = p.decode_properties(text.encode("utf-8", "replace"))
        unique_key = properties.get(p.UNIQ_KEY, "")
        properties.update(self._added_properties)
        wait = properties.get(p.WAIT, "true").lower() == "true"
        if topic.is_batch_queue and unique_key:
            try:
                items = decode_batch(request.body_bytes())
            except FormatError as error:
                raise _Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
            properties[p.INNER_NUM] = str(len(items))
            inner = MessageExtBrokerInner(
                topic_name,
                request.body,  # type: ignore[arg-type]  # after decoding always bytes
                p.encode_properties(properties),
                queue_id,
                flag,
                sys_flag | NEED_UNWRAP | INNER_BATCH,
                born_timestamp,
                addresses.born_host,
                addresses.store_host,
                wait_store_ok=wait,
            )
            return _PendingInnerBatch(request, inner, topic, queue_id, unique_key)
        message = MessageExtBatch(
            topic_name,
            request.body,  # type: ignore[arg-type]  # after decoding always bytes
            p.encode_properties(properties),
            queue_id,
            flag,
            sys_flag,
            born_timestamp,
            addresses.born_host,
            addresses.store_host,
            wait_store_ok=wait,
        )
        return _Pending(request, message, topic, queue_id, unique_key)

    def _begin_special(
        self,
        request: RemotingCommand,
        addresses: ClientAddresses,
        topic_name: str,
        topic: _SendTopic,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        flag: int,
        text: str,
        header: SendMessageRequestHeader,
    ) -> _Pending:
        """Half messages, retries, and properties that must not be stored as they came."""
        broker = self._broker
        properties = p.decode_properties(text.encode("utf-8", "replace"))
        properties.pop(p.POP_CK, None)
        if topic.wants_key and not properties.get(p.KEYS, "").strip():
            raise _Refusal(ResponseCode.MESSAGE_ILLEGAL, _NO_KEY)
        for name in [name for name in properties if name.startswith(p.TRANSIENT_PREFIX)]:
            del properties[name]
        unique_key = properties.get(p.UNIQ_KEY)
        if unique_key is None:
            unique_key = properties[p.UNIQ_KEY] = broker.unique_ids.next()
        lite_topic = properties.get(p.LITE_TOPIC)
        if lite_topic:
            properties[p.INNER_MULTI_DISPATCH] = self._lite_queue(topic_name, lite_topic)
        properties.update(self._added_properties)
        reconsume_times = header.reconsume_times or 0
        stored_topic, stored_queue_id = topic_name, queue_id
        if topic.is_retry:
            stored_topic = self._retry_or_dlq(request, header, topic_name, properties)
            if stored_topic != topic_name:
                stored_queue_id = 0
        priority = _integer(properties.get(p.PRIORITY), -1)
        if priority >= 0:
            if not _is_of_priority(properties):
                del properties[p.PRIORITY]
            elif topic.led is None and stored_topic == topic_name and topic.write_queue_nums > 0:
                stored_queue_id = queue_id = min(priority, topic.write_queue_nums - 1)
        if properties.get(p.TRANSACTION_PREPARED, "").lower() == "true" and not (
            reconsume_times > 0 and _integer(properties.get(p.DELAY)) > 0
        ):
            if broker.config.reject_transaction_message:
                raise _Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"the broker[{broker.ip}] sending transaction message is forbidden",
                )
            stored_topic, stored_queue_id, sys_flag = broker.transactions.to_half(
                stored_topic, stored_queue_id, sys_flag, properties
            )
        message = MessageExtBrokerInner(
            stored_topic,
            request.body,  # type: ignore[arg-type]  # after decoding always bytes
            p.encode_properties(properties),
            stored_queue_id,
            flag,
            sys_flag,
            born_timestamp,
            addresses.born_host,
            addresses.store_host,
            reconsume_times,
            0,
            properties.get(p.WAIT, "true").lower() == "true",
        )
        return _Pending(request, message, topic, queue_id, unique_key)

    @staticmethod
    def _lite_queue(topic: str, lite_topic: str) -> str:
        """The light queue of a lite topic; its name must not stand for others' queues."""
        queue = names.lite_queue(topic, lite_topic)
        if names.split_lite_queue(queue) is None or not names.is_stored_topic(queue):
            raise _Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"lite topic {lite_topic[:127]!r} is illegal"
            )
        return queue

    def _check_keys(self, request: RemotingCommand) -> None:
        """Every message of a batch has a key; RocketMQ takes it without, and never shows it."""
        try:
            items = decode_batch(request.body_bytes())
        except FormatError as error:
            raise _Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        for item in items:
            if not (p.find_property(item.properties, b"KEYS") or b"").strip():
                raise _Refusal(ResponseCode.MESSAGE_ILLEGAL, _NO_KEY)

    def _retry_or_dlq(
        self,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        topic_name: str,
        properties: dict[str, str],
    ) -> str:
        """Where a client's own retry goes. RocketMQ: handleRetryAndDLQ."""
        broker = self._broker
        group = topic_name.removeprefix(names.RETRY_PREFIX)
        group_config = broker.groups.find(group)
        if group_config is None:
            raise _Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {remarks.FAQ}",
            )
        limit = group_config.retry_max_times
        if request.version >= MQVersion.V3_4_9 and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        # An orderly consumer has given up on the message: trying again would break the order.
        is_orderly = broker.locks.has_live_lock(group, broker.now_ms())
        if (header.reconsume_times or 0) <= limit and not is_orderly:
            return topic_name
        dlq = names.dlq_topic(group)
        self._internal_topic(dlq, DLQ_QUEUE_NUMS)
        properties[p.DELAY] = "0"
        broker.stats.item(DLQ_PUT_NUMS, f"{topic_name}@{group}").add(1)
        return dlq

    def _internal_topic(self, topic: str, queue_nums: int, topic_sys_flag: int = 0) -> TopicConfig:
        try:
            return self._broker.topics.create_internal(
                topic, queue_nums, topic_sys_flag=topic_sys_flag
            )
        except IllegalNameError as error:
            raise _Refusal(
                ResponseCode.SYSTEM_ERROR, f"topic[{topic}] not exist, {error}"
            ) from None

    def _refuse_while_starting(self) -> None:
        broker = self._broker
        until_ms = broker.sends_refused_until_ms
        if broker.now_ms() < until_ms:
            raise _Refusal(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until_ms}")
        broker.sends_refused_until_ms = 0

    def refusal_of(
        self, header: SendMessageRequestHeader, channel: Channel
    ) -> tuple[int, str] | None:
        """Code and remark if a message may not go where its header says; None if it may."""
        try:
            topic = self._topics.get(header.topic) or self._check_topic(header, channel)
            if self._broker.sends_refused_until_ms:
                self._refuse_while_starting()
            self._queue_of(header.topic, topic, header.queue_id, channel)
        except _Refusal as refusal:
            return refusal.code, refusal.remark
        return None

    def _to_logical(self, pendings: list[_Pending], results: list[PutMessageResult]) -> None:
        """Answers about static topics name logical queues and offsets.

        A half message is found again by its own offset, which therefore stays.
        """
        for pending, result in zip(pendings, results, strict=True):
            found = pending.topic.logical.get(pending.queue_id)
            if found is None:
                continue
            pending.queue_id, item = found
            if result.ok and pending.message.topic != names.TRANS_HALF_TOPIC:
                result.queue_offset = to_logical_within(item, result.queue_offset)

    def _led_queue(self, topic_name: str, led: dict[int, int], queue_id: int) -> int:
        """The physical queue that a logical one is on; any if the sender does not mind."""
        if queue_id < 0 and led:
            return random.choice(list(led.values()))
        physical = led.get(queue_id)
        if physical is None:
            raise _Refusal(
                NOT_LEADER,
                f"{topic_name}-{queue_id} does not exit in request process of current broker "
                f"{self._broker.config.broker_name}",
            )
        return physical

    def _queue_of(self, topic_name: str, topic: _SendTopic, queue_id: int, channel: Channel) -> int:
        """The queue that a message goes to."""
        if topic.led is not None:
            return self._led_queue(topic_name, topic.led, queue_id)
        if queue_id < 0:
            if topic.write_queue_nums <= 0:
                raise _Refusal(
                    ResponseCode.NO_PERMISSION, f"topic[{topic_name}] has no queue to write to"
                )
            return random.randrange(topic.write_queue_nums)
        if queue_id >= topic.queue_nums_max:
            topic_config = self._broker.topics.get(topic_name)
            shown = java_text(topic_config) if topic_config is not None else topic_name
            raise _Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {shown} Producer: {channel.remote}",
            )
        return queue_id

    def _check_topic(self, header: SendMessageRequestHeader, channel: Channel) -> _SendTopic:
        """The checks that depend on the topic alone, in the reference's order."""
        broker = self._broker
        config = broker.config
        topic_name = header.topic
        self_refusal = f"the broker[{broker.ip}] sending message is forbidden"
        if broker.sends_refused_until_ms:
            self._refuse_while_starting()
        if not config.writable and broker.topics.is_order_topic(topic_name):
            raise _Refusal(ResponseCode.NO_PERMISSION, self_refusal)
        try:
            names.check_topic(topic_name)
        except IllegalNameError as error:
            raise _Refusal(
                ResponseCode.INVALID_PARAMETER, remarks.illegal_topic(topic_name, error)
            ) from None
        if topic_name in names.NO_SEND_TOPICS:
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{topic_name}] is forbidden.",
            )
        topic_config = broker.topics.get(topic_name)
        if topic_config is None:
            topic_config = self._create_topic(header)
        if topic_config is None:
            raise _Refusal(ResponseCode.TOPIC_NOT_EXIST, remarks.topic_not_exist(topic_name))
        stats = broker.stats
        made = _SendTopic(
            topic_config,
            stats.item(TOPIC_PUT_NUMS, topic_name),
            stats.item(TOPIC_PUT_SIZE, topic_name),
            broker.static_topics.get(topic_name),
        )
        self._topics[topic_name] = made
        return made

    def _create_topic(self, header: SendMessageRequestHeader) -> TopicConfig | None:
        topics = self._broker.topics
        topic_name = header.topic
        unit_mode = bool(header.unit_mode)
        try:
            made = topics.create_by_send(
                topic_name,
                header.default_topic,
                header.default_topic_queue_nums,
                unit_mode=unit_mode,
            )
            if made is None and topic_name.startswith(names.RETRY_PREFIX):
                made = topics.create_internal(
                    topic_name, RETRY_QUEUE_NUMS, topic_sys_flag=FLAG_UNIT if unit_mode else 0
                )
        except IllegalNameError:
            return None
        return made

    # --------------------------------------------------------------------------------- answering

    def _answer(
        self,
        channel: Channel,
        addresses: ClientAddresses,
        pendings: list[_Pending],
        results: list[PutMessageResult],
    ) -> None:
        render = self._responses.render
        prefix = addresses.id_prefix_raw
        send_frame = channel.send_frame
        recallable = self._broker.config.recall_message_enable
        stored = 0
        for pending, result in zip(pendings, results, strict=True):
            request = pending.request
            if (
                result.status is _PUT_OK
                and result.offsets is None
                and pending.__class__ is _Pending
            ):
                stored += 1
                topic = pending.topic
                topic.puts.value += 1
                topic.puts.times += 1
                topic.sizes.value += result.record_size
                topic.sizes.times += 1
                if recallable and b"TIMER_D" in pending.message.properties_raw:
                    self._answer_slowly(channel, addresses, pending, result)
                elif not request.flag & ONEWAY_FLAG:
                    send_frame(
                        render(
                            request.opaque,
                            pending.queue_id,
                            result.queue_offset,
                            b"%b%016X" % (prefix, result.commit_log_offset),
                            pending.unique_key,
                        )
                    )
                continue
            if result.ok:
                count = result.message_count
                stored += count
                pending.topic.puts.add(count)
                pending.topic.sizes.add(result.record_size)
            self._answer_slowly(channel, addresses, pending, result)
        self._broker_puts.add(stored)

    def _answer_slowly(
        self,
        channel: Channel,
        addresses: ClientAddresses,
        pending: _Pending,
        result: PutMessageResult,
    ) -> None:
        """Batches, unusual ids, and everything but PUT_OK."""
        request = pending.request
        if request.flag & ONEWAY_FLAG:
            return
        broker = self._broker
        outcome = put_outcome(
            result.status,
            body_max=broker.store_config.max_message_size,
            delay_max_ms=broker.store_config.timer_max_delay_sec * 1000,
            congest_max=broker.store_config.timer_congest_num_each_slot,
        )
        if not outcome.stored:
            channel.reply(request, self._refuse(request, outcome.code, outcome.remark))
            return
        offsets = result.offsets or (result.commit_log_offset,)
        header = SendMessageResponseHeader(
            msg_id=",".join(f"{addresses.id_prefix}{offset:016X}" for offset in offsets),
            queue_id=pending.queue_id,
            queue_offset=result.queue_offset,
            transaction_id=pending.unique_key or None,
        )
        if pending.__class__ is _PendingInnerBatch:
            header.batch_uniq_id = pending.unique_key
        if broker.config.recall_message_enable and result.offsets is None:
            header.recall_handle = self._recall_handle(pending, result)
        channel.reply(
            request,
            create_response(
                request,
                outcome.code,
                outcome.remark,
                header=header,
                ext_fields=dict(self._region_fields),
            ),
        )

    def _recall_handle(self, pending: _Pending, result: PutMessageResult) -> str | None:
        """What a producer can take a timed message back with; None if it is not timed."""
        record = self._broker.store.select_record(result.commit_log_offset)
        raw = b"" if record is None else properties_at(record)
        slot_ms = p.find_property(raw, b"TIMER_OUT_MS")
        topic = p.find_property(raw, b"REAL_TOPIC")
        if slot_ms is None or topic is None:
            return None
        # A time at which the recalling message falls into the same slot.
        deliver_ms = int(slot_ms) + 1
        broker_name = self._broker.config.broker_name
        return RecallHandle(topic.decode(), broker_name, deliver_ms, pending.unique_key).encode()

    def _answer_when_durable(
        self,
        channel: Channel,
        addresses: ClientAddresses,
        pendings: list[_Pending],
        results: list[PutMessageResult],
    ) -> None:
        """Answer now what does not wait, and the others together when the disk has them all."""
        store = self._broker.store
        ready: list[tuple[_Pending, PutMessageResult]] = []
        waiting: list[tuple[_Pending, PutMessageResult]] = []
        for pair in zip(pendings, results, strict=True):
            (waiting if store.needs_wait(pair[0].message, pair[1]) else ready).append(pair)
        if ready:
            self._answer(channel, addresses, [a for a, _ in ready], [b for _, b in ready])
        if waiting:
            end_offset = max(result.end_offset for _, result in waiting)

            def finish(status: PutMessageStatus) -> None:
                if status is not _PUT_OK:
                    for _, result in waiting:
                        if result.status is _PUT_OK:
                            result.status = status
                self._answer(channel, addresses, [a for a, _ in waiting], [b for _, b in waiting])

            self._broker.when_durable(end_offset, finish)

    def _refuse(self, request: RemotingCommand, code: int, remark: str | None) -> RemotingCommand:
        return create_response(request, code, remark, ext_fields=dict(self._region_fields))

    # ---------------------------------------------------------------------------------------- 36

    def send_back(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """A consumer failed: its message goes to the group's retry or dead-letter topic."""
        header = request.header(ConsumerSendMsgBackRequestHeader)
        try:
            message, origin_topic = self._make_back(channel, request, header)
        except _Refusal as refusal:
            return create_response(request, refusal.code, refusal.remark)
        if message is None:
            return create_response(request, ResponseCode.SUCCESS)
        broker = self._broker
        (result,) = broker.store.append_messages([message])
        broker.dispatch_soon()

        def answer(status: PutMessageStatus) -> None:
            if status is _PUT_OK:
                broker.stats.item(SNDBCK_PUT_NUMS, f"{origin_topic}@{header.group}").add(1)
                channel.reply(request, create_response(request, ResponseCode.SUCCESS))
            else:
                channel.reply(
                    request, create_response(request, ResponseCode.SYSTEM_ERROR, status.name)
                )

        if broker.waits_for_disk and broker.store.needs_wait(message, result):
            broker.when_durable(result.end_offset, answer)
        else:
            answer(result.status)
        return None

    def _make_back(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: ConsumerSendMsgBackRequestHeader,
    ) -> tuple[MessageExtBrokerInner | None, str]:
        broker = self._broker
        group_config = broker.groups.find(header.group)
        if group_config is None:
            raise _Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group} {remarks.FAQ}",
            )
        if not broker.config.writable:
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.ip}] sending message is forbidden",
            )
        if group_config.retry_queue_nums <= 0:
            return None, ""
        topic = names.retry_topic(header.group)
        flag = FLAG_UNIT_SUB if header.unit_mode else 0
        topic_config = self._internal_topic(topic, group_config.retry_queue_nums, flag)
        if not topic_config.is_writable:
            raise _Refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden"
            )
        record = broker.store.look_message_by_offset(header.offset)
        if record is None:
            raise _Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}",
            )
        properties = record.properties
        properties.setdefault(p.RETRY_TOPIC, record.topic)
        properties[p.WAIT] = "false"
        limit = group_config.retry_max_times
        if request.version >= MQVersion.V3_4_9 and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        queue_id = random.randrange(group_config.retry_queue_nums)
        if record.reconsume_times >= limit or header.delay_level < 0:
            topic = names.dlq_topic(header.group)
            topic_config = self._internal_topic(topic, DLQ_QUEUE_NUMS, flag)
            queue_id = 0
            properties[p.DELAY] = "0"
            broker.stats.item(DLQ_PUT_NUMS, f"{record.topic}@{header.group}").add(1)
        else:
            level = header.delay_level or FIRST_RETRY_DELAY_LEVEL + record.reconsume_times
            properties[p.DELAY] = str(level)
        addresses: ClientAddresses = channel.context or self._addresses(channel)
        properties.setdefault(
            p.ORIGIN_MESSAGE_ID,
            f"{record.store_host.hex().upper()}{record.commit_log_offset:016X}",
        )
        message = MessageExtBrokerInner(
            topic,
            record.body,
            p.encode_properties(properties),
            queue_id,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            addresses.store_host,
            record.reconsume_times + 1,
            0,
            False,
        )
        return message, header.origin_topic or record.topic


def _is_of_priority(properties: dict[str, str]) -> bool:
    """RocketMQ: TopicMessageType.parseFromMessageProperty."""
    is_half = properties.get(p.TRANSACTION_PREPARED, "").lower() == "true"
    return not is_half and _OTHER_TYPES.isdisjoint(properties)


def _integer(text: str | None, default: int = 0) -> int:
    try:
        return int(text) if text else default
    except ValueError:
        return default
