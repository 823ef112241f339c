"""SendMessageProcessor: 10, 310 and 320 in bursts. RocketMQ: SendMessageProcessor.

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
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oberth.broker import remarks
from oberth.broker.plain_sends import PlainSendService
from oberth.broker.put_status import put_outcome
from oberth.broker.recall_handle import RecallHandle
from oberth.broker.send_checks import (
    NO_KEY,
    check_keys,
    check_light_queues,
    check_times,
    client_properties,
    is_of_priority,
    lite_queue,
    names_time,
)
from oberth.broker.send_topics import DLQ_QUEUE_NUMS, ClientAddresses, SendTopic, internal_topic
from oberth.broker.static_topics import NOT_LEADER
from oberth.broker.stats import BROKER_PUT_NUMS, DLQ_PUT_NUMS, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from oberth.broker.topic_configs import FLAG_UNIT, java_text
from oberth.errors import FormatError, IllegalNameError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import java_long
from oberth.formats.message import encode_host, properties_at
from oberth.formats.queue_mapping import to_logical_within
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP
from oberth.formats.topic_config import TopicConfig
from oberth.kernels.batch import check_plain_batch, clean_batch
from oberth.remoting.code import MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.send import SendMessageRequestHeader, SendMessageResponseHeader
from oberth.remoting.refusal import Refusal
from oberth.remoting.rendered import SendResponses
from oberth.store.messages import (
    MessageExtBatch,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.dispatching import Dispatching
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.rebalance_locks import RebalanceLocks
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.stats import BrokerStats
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.table_files import WrittenOnce
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.broker.transactions import Transactions
    from oberth.broker.unique_ids import UniqueIds
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

RETRY_QUEUE_NUMS: Final = 1
BATCH_TOPIC_LENGTH_MAX: Final = 127

_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
_INT32_END: Final = 1 << 31
_INT64_END: Final = 1 << 63
_PUT_OK: Final = PutMessageStatus.PUT_OK
_SPECIAL_NAMES: Final = p.BROKER_ONLY | {
    p.TRANSACTION_PREPARED, p.PRIORITY, p.LITE_TOPIC, p.INNER_MULTI_DISPATCH,
}  # fmt: skip
"""Properties that are not stored as they came, besides transient ones."""

_SPECIAL: Final = re.compile(p.names_pattern(_SPECIAL_NAMES))

_BATCH_FLAGS: Final = INNER_BATCH | NEED_UNWRAP
_UNIQ_KEY: Final = "UNIQ_KEY\x01"


class _Pending:
    """A message between its request and its response."""

    __slots__ = ("channel", "message", "queue_id", "request", "topic", "unique_key")

    channel: Channel
    """Where the answer goes."""

    def __init__(
        self,
        request: RemotingCommand,
        message: MessageExtBrokerInner,
        topic: SendTopic,
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


class SendMessageProcessor:
    """Stores what producers send."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        own: OwnAddress,
        store: MessageStore,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        groups: SubscriptionGroups,
        locks: RebalanceLocks,
        transactions: Transactions,
        stats: BrokerStats,
        unique_ids: UniqueIds,
        now_ms: Callable[[], int],
        dispatching: Dispatching,
        topics_written_once: WrittenOnce,
        when_on_disk: Callable[[Callable[[bool], None]], None],
        rests_s: Mapping[str, float],
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._own = own
        self._store = store
        self._topics = topics
        self._static_topics = static_topics
        self._groups = groups
        self._locks = locks
        self._transactions = transactions
        self._stats = stats
        self._unique_ids = unique_ids
        self._now_ms = now_ms
        self._dispatching = dispatching
        self._topics_written_once = topics_written_once
        self._when_on_disk = when_on_disk
        self._rests_s = rests_s
        self.refused_until_ms = config.start_accept_send_request_timestamp
        self._send_topics: dict[str, SendTopic] = {}
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
        self._broker_puts = stats.item(BROKER_PUT_NUMS, config.broker_cluster_name)
        self.plain = PlainSendService(
            store_config=store_config,
            store=store,
            dispatching=dispatching,
            responses=self._responses,
            names=_SPECIAL_NAMES,
            added=self._added_text.encode(),
            puts=self._broker_puts,
            addresses=self._addresses,
            refuses=lambda: bool(
                self.refused_until_ms or self._rests_s or self.reject_sends() is not None
            ),
        )

    def config_changed(self, changes: Mapping[str, str]) -> None:
        """Options were changed: what was worked out from them is worked out again."""
        del changes
        self.refused_until_ms = self._config.start_accept_send_request_timestamp
        self._send_topics.clear()
        self.plain.config_changed()

    def topics_changed(self, topics: list[str]) -> None:
        """See Parts.topic_listeners."""
        del topics
        self._send_topics.clear()
        self.plain.topics_changed()

    def reject_sends(self) -> str | None:
        """Why no send is taken now, or None."""
        if self._store.is_os_page_cache_busy():
            return f"page cache busy for {self._store.commit_log.lock_time_ms():.0f} ms"
        return None

    # 10, 310, 320

    def send(
        self, channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        """The sends of one burst: refusals as responses; the others are answered when stored."""
        responses: list[RemotingCommand | None] = [None] * len(requests)
        messages: list[MessageExtBrokerInner] = []
        pendings: list[_Pending] = []
        with self._topics_written_once:
            for number, (channel, request) in enumerate(zip(channels, requests, strict=True)):
                addresses: ClientAddresses = channel.context or self._addresses(channel)
                try:
                    pending = self._begin(channel, addresses, request)
                except Refusal as refusal:
                    responses[number] = self._refuse(request, refusal.code, refusal.remark)
                    continue
                except HeaderError as error:
                    responses[number] = create_response(
                        request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
                    )
                    continue
                pending.channel = channel
                messages.append(pending.message)
                pendings.append(pending)
        if messages:
            results = self._store.append_messages(messages)
            self._dispatching.soon()
            if self._rests_s:
                self._rest(pendings)
            if self._static_topics:
                self._to_logical(pendings, results)
            if self._dispatching.waits_for_disk:
                self._answer_when_durable(pendings, results)
            elif self._topics_written_once.changed:
                self._answer_when_written(pendings, results)
            else:
                self._answer(pendings, results)
        return responses

    def _rest(self, pendings: list[_Pending]) -> None:
        """Leave connections alone for a while whose topics' consumers cannot follow."""
        for pending in pendings:
            rest_s = self._rests_s.get(pending.message.topic)
            if rest_s:
                pending.channel.rest(rest_s)

    def addresses(self, channel: Channel) -> ClientAddresses:
        """The hosts of messages from a channel."""
        return channel.context or self._addresses(channel)

    def _addresses(self, channel: Channel) -> ClientAddresses:
        made = ClientAddresses(encode_host(*channel.remote), self._own.store_host_for(channel))
        channel.context = made
        return made

    def _begin(
        self, channel: Channel, addresses: ClientAddresses, request: RemotingCommand
    ) -> _Pending:
        """All checks, and the message as it is to be stored."""
        code = request.code
        is_batch = is_plain = False
        topic_name = text = ""
        queue_id = sys_flag = born_timestamp = flag = 0
        batch: str | None = None
        topic: SendTopic | None = None
        header: SendMessageRequestHeader | None = None
        if code == _V2:
            # The way of nearly every send: see SendMessageRequestHeader for what the letters mean.
            # int() also takes what Java refuses, "1_000"; java_long would cost 3 µs a send.
            fields = request.ext_fields
            try:
                topic_name = fields["b"]  # type: ignore[index]
                queue_id = int(fields["e"])  # type: ignore[index]
                sys_flag = int(fields["f"])  # type: ignore[index]
                born_timestamp = int(fields["g"])  # type: ignore[index]
                flag = int(fields["h"])  # type: ignore[index]
                text = fields.get("i") or ""  # type: ignore[union-attr]
                batch = fields.get("m")  # type: ignore[union-attr]
                is_plain = (
                    -_INT32_END <= sys_flag < _INT32_END
                    and -_INT32_END <= flag < _INT32_END
                    and -_INT64_END <= born_timestamp < _INT64_END
                )
            except (KeyError, ValueError, TypeError):
                is_plain = False
            if is_plain:
                if batch is not None and batch != "false":
                    is_batch = batch.lower() == "true"
                topic = self._send_topics.get(topic_name)
                if topic is None or topic.is_retry:
                    header = SendMessageRequestHeader.from_command(request)
        if not is_plain:
            # The whole header: it names what is missing, and reads numbers in any spelling.
            header = SendMessageRequestHeader.from_command(request)
            topic_name = header.topic
            queue_id = header.queue_id
            sys_flag = header.sys_flag
            born_timestamp = header.born_timestamp
            flag = header.flag
            text = header.properties or ""
            is_batch = code == RequestCode.SEND_BATCH_MESSAGE or header.batch is True
            topic = self._send_topics.get(topic_name)
        if topic is None:
            assert header is not None
            topic = self._check_topic(header, channel)
        if self.refused_until_ms:
            self._refuse_while_starting()
        if not 0 <= queue_id < topic.queue_nums_max:
            queue_id = self._queue_of(topic_name, topic, queue_id, channel)
        if sys_flag & _BATCH_FLAGS:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"sysFlag {sys_flag}: only the broker marks a record as an inner batch",
            )
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
        # Not for what is tried again: it was taken once.
        if names_time(text) and not topic.is_retry:
            check_times(text)
        if topic.is_special or _SPECIAL.search("\x02" + text):
            return self._begin_special(
                request, addresses, topic_name, topic, queue_id, sys_flag, born_timestamp, flag,
                text, header or SendMessageRequestHeader.from_command(request),
            )  # fmt: skip
        start = text.find(_UNIQ_KEY)
        if start == 0 or (start > 0 and text[start - 1] == "\x02"):
            unique_key = text[start + 9 : text.index("\x02", start)]
        else:
            unique_key = self._unique_ids.next()
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
        topic: SendTopic,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        flag: int,
        text: str,
    ) -> _Pending:
        """A client batch; its items keep their own properties but what only a broker sets.

        In a batch queue it stays one record, if the batch itself has a unique key.
        """
        if len(topic_name) > BATCH_TOPIC_LENGTH_MAX:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic_name)}"
            )
        if topic.is_retry:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {topic_name}",
            )
        try:
            check_plain_batch(request.body_bytes())
        except FormatError as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        if topic.wants_key:
            check_keys(request.body_bytes())
        properties = client_properties(text)
        unique_key = properties.get(p.UNIQ_KEY, "")
        properties.update(self._added_properties)
        wait = properties.get(p.WAIT, "true").lower() == "true"
        if topic.is_batch_queue and unique_key:
            try:
                batch = clean_batch(request.body_bytes())
            except FormatError as error:
                raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
            if p.INNER_MULTI_DISPATCH in properties and self._store.commit_log.lmq:
                check_light_queues(properties[p.INNER_MULTI_DISPATCH])
            properties[p.INNER_NUM] = str(batch.item_count)
            inner = MessageExtBrokerInner(
                topic_name,
                batch.body,
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
        properties.pop(p.INNER_MULTI_DISPATCH, None)
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
        topic: SendTopic,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        flag: int,
        text: str,
        header: SendMessageRequestHeader,
    ) -> _Pending:
        """Half messages, retries, and properties that must not be stored as they came."""
        properties = client_properties(text)
        if topic.wants_key and not properties.get(p.KEYS, "").strip():
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, NO_KEY)
        unique_key = properties.get(p.UNIQ_KEY)
        if unique_key is None:
            unique_key = properties[p.UNIQ_KEY] = self._unique_ids.next()
        lite_topic = properties.get(p.LITE_TOPIC)
        if lite_topic:
            properties[p.INNER_MULTI_DISPATCH] = lite_queue(topic_name, lite_topic)
        elif p.INNER_MULTI_DISPATCH in properties and self._store.commit_log.lmq:
            check_light_queues(properties[p.INNER_MULTI_DISPATCH])
        properties.update(self._added_properties)
        reconsume_times = header.reconsume_times or 0
        stored_topic, stored_queue_id = topic_name, queue_id
        if topic.is_retry:
            stored_topic = self._retry_or_dlq(request, header, topic_name, properties)
            if stored_topic != topic_name:
                stored_queue_id = 0
        priority = java_long(properties.get(p.PRIORITY), -1)
        if priority >= 0:
            if not is_of_priority(properties):
                del properties[p.PRIORITY]
            elif topic.led is None and stored_topic == topic_name and topic.write_queue_nums > 0:
                stored_queue_id = queue_id = min(priority, topic.write_queue_nums - 1)
        if properties.get(p.TRANSACTION_PREPARED, "").lower() == "true" and not (
            reconsume_times > 0 and java_long(properties.get(p.DELAY), 0) > 0
        ):
            if self._config.reject_transaction_message:
                raise Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"the broker[{self._own.ip}] sending transaction message is forbidden",
                )
            stored_topic, stored_queue_id, sys_flag = self._transactions.to_half(
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

    def _retry_or_dlq(
        self,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        topic_name: str,
        properties: dict[str, str],
    ) -> str:
        """Where a client's own retry goes. RocketMQ: handleRetryAndDLQ."""
        group = topic_name.removeprefix(names.RETRY_PREFIX)
        group_config = self._groups.find(group)
        if group_config is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {remarks.FAQ}",
            )
        limit = group_config.retry_max_times
        if request.version >= MQVersion.V3_4_9 and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        # An orderly consumer has given up on the message: trying again would break the order.
        if (header.reconsume_times or 0) <= limit and not self._locks.has_live_lock(
            group, self._now_ms()
        ):
            return topic_name
        dlq = names.dlq_topic(group)
        internal_topic(self._topics, dlq, DLQ_QUEUE_NUMS)
        properties[p.DELAY] = "0"
        self._stats.item(DLQ_PUT_NUMS, f"{topic_name}@{group}").add(1)
        return dlq

    def _refuse_while_starting(self) -> None:
        until_ms = self.refused_until_ms
        if self._now_ms() < until_ms:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until_ms}")
        self.refused_until_ms = 0

    def refusal_of(
        self, header: SendMessageRequestHeader, channel: Channel
    ) -> tuple[int, str] | None:
        """Code and remark if a message may not go where its header says; None if it may."""
        try:
            topic = self._send_topics.get(header.topic) or self._check_topic(header, channel)
            if self.refused_until_ms:
                self._refuse_while_starting()
            self._queue_of(header.topic, topic, header.queue_id, channel)
        except Refusal as refusal:
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
            raise Refusal(
                NOT_LEADER,
                f"{topic_name}-{queue_id} does not exit in request process of current broker "
                f"{self._config.broker_name}",
            )
        return physical

    def _queue_of(self, topic_name: str, topic: SendTopic, queue_id: int, channel: Channel) -> int:
        """The queue that a message goes to."""
        if topic.led is not None:
            return self._led_queue(topic_name, topic.led, queue_id)
        if queue_id < 0:
            if topic.write_queue_nums <= 0:
                raise Refusal(
                    ResponseCode.NO_PERMISSION, f"topic[{topic_name}] has no queue to write to"
                )
            return random.randrange(topic.write_queue_nums)
        if queue_id >= topic.queue_nums_max:
            topic_config = self._topics.get(topic_name)
            shown = java_text(topic_config) if topic_config is not None else topic_name
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {shown} Producer: {channel.remote}",
            )
        return queue_id

    def _check_topic(self, header: SendMessageRequestHeader, channel: Channel) -> SendTopic:
        """The checks that depend on the topic alone, in the reference's order."""
        config = self._config
        topic_name = header.topic
        self_refusal = f"the broker[{self._own.ip}] sending message is forbidden"
        if self.refused_until_ms:
            self._refuse_while_starting()
        if not config.writable and self._topics.is_order_topic(topic_name):
            raise Refusal(ResponseCode.NO_PERMISSION, self_refusal)
        try:
            names.check_topic(topic_name)
        except IllegalNameError as error:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, remarks.illegal_topic(topic_name, error)
            ) from None
        if topic_name in names.NO_SEND_TOPICS:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{topic_name}] is forbidden.",
            )
        topic_config = self._topics.get(topic_name)
        if topic_config is None:
            topic_config = self._create_topic(header)
        if topic_config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remarks.topic_not_exist(topic_name))
        stats = self._stats
        made = SendTopic(
            topic_config,
            stats.item(TOPIC_PUT_NUMS, topic_name),
            stats.item(TOPIC_PUT_SIZE, topic_name),
            self._static_topics.get(topic_name),
        )
        self._send_topics[topic_name] = made
        self.plain.know(topic_name, made)
        return made

    def _create_topic(self, header: SendMessageRequestHeader) -> TopicConfig | None:
        topics = self._topics
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

    # Answering

    def _answer(
        self,
        pendings: list[_Pending],
        results: list[PutMessageResult],
        durable: PutMessageStatus = _PUT_OK,
    ) -> None:
        if durable is not _PUT_OK:
            for result in results:
                if result.status is _PUT_OK:
                    result.status = durable
        render = self._responses.render
        channel = pendings[0].channel
        prefix, send_frame = channel.context.id_prefix_raw, channel.send_frame
        take_stored = channel.take_stored
        recallable = self._config.recall_message_enable
        stored = 0
        for pending, result in zip(pendings, results, strict=True):
            request = pending.request
            if pending.channel is not channel:
                channel = pending.channel
                prefix, send_frame = channel.context.id_prefix_raw, channel.send_frame
                take_stored = channel.take_stored
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
                    self._answer_slowly(pending, result)
                elif not request.is_oneway and (
                    take_stored is None
                    or not take_stored(
                        request.opaque,
                        result.queue_offset,
                        result.commit_log_offset,
                        pending.unique_key,
                    )
                ):
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
            self._answer_slowly(pending, result)
        self._broker_puts.add(stored)

    def _answer_slowly(self, pending: _Pending, result: PutMessageResult) -> None:
        """Batches, unusual ids, and everything but PUT_OK."""
        request, channel = pending.request, pending.channel
        addresses: ClientAddresses = channel.context
        if request.is_oneway:
            return
        outcome = put_outcome(
            result.status,
            body_max=self._store_config.max_message_size,
            delay_max_ms=self._store_config.timer_max_delay_sec * 1000,
            congest_max=self._store_config.timer_congest_num_each_slot,
        )
        if not outcome.stored:
            channel.reply(request, self._refuse(request, outcome.code, outcome.remark))
            return
        offsets = result.offsets or (result.commit_log_offset,)
        header = SendMessageResponseHeader(
            msg_id=_message_ids(addresses.store_host, offsets),
            queue_id=pending.queue_id,
            queue_offset=result.queue_offset,
            transaction_id=pending.unique_key or None,
        )
        if pending.__class__ is _PendingInnerBatch:
            header.batch_uniq_id = pending.unique_key
        if self._config.recall_message_enable and result.offsets is None:
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
        record = self._store.select_record(result.commit_log_offset)
        raw = b"" if record is None else properties_at(record)
        slot_ms = p.find_property(raw, b"TIMER_OUT_MS")
        topic = p.find_property(raw, b"REAL_TOPIC")
        if slot_ms is None or topic is None:
            return None
        # A time at which the recalling message falls into the same slot.
        deliver_ms = int(slot_ms) + 1
        broker_name = self._config.broker_name
        return RecallHandle(topic.decode(), broker_name, deliver_ms, pending.unique_key).encode()

    def _answer_when_durable(
        self, pendings: list[_Pending], results: list[PutMessageResult]
    ) -> None:
        """Answer now what does not wait, and the others together when the disk has them all."""
        store = self._store
        ready: list[tuple[_Pending, PutMessageResult]] = []
        waiting: list[tuple[_Pending, PutMessageResult]] = []
        for pair in zip(pendings, results, strict=True):
            (waiting if store.needs_wait(pair[0].message, pair[1]) else ready).append(pair)
        if ready:
            self._answer([a for a, _ in ready], [b for _, b in ready])
        if waiting:
            end_offset = max(result.end_offset for _, result in waiting)

            def finish(status: PutMessageStatus) -> None:
                self._answer([a for a, _ in waiting], [b for _, b in waiting], status)

            self._dispatching.when_durable(end_offset, finish)

    def _answer_when_written(
        self, pendings: list[_Pending], results: list[PutMessageResult]
    ) -> None:
        """Answer when the file of topics has those that these sends have made."""

        def finish(is_written: bool) -> None:
            status = _PUT_OK if is_written else PutMessageStatus.FLUSH_DISK_TIMEOUT
            self._answer(pendings, results, status)

        self._when_on_disk(finish)

    def _refuse(self, request: RemotingCommand, code: int, remark: str | None) -> RemotingCommand:
        return create_response(request, code, remark, ext_fields=dict(self._region_fields))


def _message_ids(store_host: bytes, offsets: Sequence[int]) -> str:
    """Offset message ids, joined by commas. A batch may have 32 767 of them: 0.1 us each."""
    ids = store_host + store_host.join([offset.to_bytes(8, "big") for offset in offsets])
    return ids.hex(",", len(store_host) + 8).upper()
