"""SendBackProcessor: 36, a message that its consumer could not handle, to be tried again later.

RocketMQ: SendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final

from oberth.broker import remarks
from oberth.broker.send_topics import DLQ_QUEUE_NUMS, ClientAddresses, internal_topic
from oberth.broker.stats import DLQ_PUT_NUMS, SNDBCK_PUT_NUMS
from oberth.broker.topic_configs import FLAG_UNIT_SUB
from oberth.errors import OberthError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.remoting.aio.stage import error_response
from oberth.remoting.code import LanguageCode, MQVersion, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.send import ConsumerSendMsgBackRequestHeader
from oberth.remoting.refusal import Refusal
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus, next_reconsume_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.dispatching import Dispatching
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.stats import BrokerStats
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.message import MessageExt
    from oberth.formats.subscription_group import SubscriptionGroupConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore
    from oberth.store.messages import PutMessageResult

_LOG: Final = logging.getLogger(__name__)

FIRST_RETRY_DELAY_LEVEL: Final = 3

_ON_TOO_FEW_REPLICAS: Final = frozenset(
    {PutMessageStatus.FLUSH_SLAVE_TIMEOUT, PutMessageStatus.SLAVE_NOT_AVAILABLE}
)


class SendBackProcessor:
    """Stores what consumers send back, in the group's retry or dead-letter topic."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        own: OwnAddress,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        stats: BrokerStats,
        dispatching: Dispatching,
        addresses: Callable[[Channel], ClientAddresses],
        may_be_cut: bool,
    ) -> None:
        self._config = config
        self._own = own
        self._store = store
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._dispatching = dispatching
        self._addresses = addresses
        self._may_be_cut = may_be_cut

    def send_back(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """A consumer failed: its message goes to the group's retry or dead-letter topic.

        It waits for disk and replicas as a send does, although the stored message says WAIT=false
        as RocketMQ's does: its consumer goes on behind the first copy and never asks for it again.
        A stored message that too few replicas have is no failure: clients would send another copy,
        and with each try one more. Under a controller it is one, since the next master cuts off
        what it does not have.
        """
        header = request.header(ConsumerSendMsgBackRequestHeader)
        try:
            message, origin_topic = self._make_back(channel, request, header)
            if message is None:
                return create_response(request, ResponseCode.SUCCESS)
            (result,) = self._store.append_messages([message])
        except (Refusal, OberthError, OSError) as error:
            _refuse(channel, request, error_response(request, error))
            return None
        self._dispatching.soon()

        def answer(status: PutMessageStatus) -> None:
            if self._is_taken(status, result):
                self._stats.item(SNDBCK_PUT_NUMS, f"{origin_topic}@{header.group}").add(1)
                channel.reply(request, create_response(request, ResponseCode.SUCCESS))
            else:
                response = create_response(request, ResponseCode.SYSTEM_ERROR, status.name)
                _refuse(channel, request, response)

        if self._dispatching.waits_for_disk and self._store.needs_wait(message, result):
            self._dispatching.when_durable(result.end_offset, answer)
        else:
            answer(result.status)
        return None

    def _is_taken(self, status: PutMessageStatus, result: PutMessageResult) -> bool:
        if status in _ON_TOO_FEW_REPLICAS and not self._may_be_cut:
            store = self._store
            return not store.flush_service.is_sync or store.flushed_offset >= result.end_offset
        return status is PutMessageStatus.PUT_OK

    def _make_back(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: ConsumerSendMsgBackRequestHeader,
    ) -> tuple[MessageExtBrokerInner | None, str]:
        """The message as it is stored again, and its topic for statistics; None: it is dropped."""
        group_config = self._group_config(header.group)
        if group_config.retry_queue_nums <= 0:
            return None, ""
        topic = names.retry_topic(header.group)
        flag = FLAG_UNIT_SUB if header.unit_mode else 0
        topic_config = internal_topic(self._topics, topic, group_config.retry_queue_nums, flag)
        if not topic_config.is_writable:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden"
            )
        record = self._store.find_shown_message(header.offset)
        if record is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}",
            )
        properties = _properties_of(record)
        limit = group_config.retry_max_times
        if request.version >= MQVersion.V3_4_9 and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        queue_id = random.randrange(group_config.retry_queue_nums)
        if record.reconsume_times >= limit or header.delay_level < 0:
            topic = names.dlq_topic(header.group)
            internal_topic(self._topics, topic, DLQ_QUEUE_NUMS, flag)
            queue_id = 0
            properties[p.DELAY] = "0"
            self._stats.item(DLQ_PUT_NUMS, f"{record.topic}@{header.group}").add(1)
        else:
            level = header.delay_level or FIRST_RETRY_DELAY_LEVEL + record.reconsume_times
            properties[p.DELAY] = str(level)
        message = MessageExtBrokerInner(
            topic,
            record.body,
            p.encode_properties(properties),
            queue_id,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            self._addresses(channel).store_host,
            next_reconsume_times(record.reconsume_times),
            wait_store_ok=True,
        )
        origin = header.origin_topic or ""
        return message, origin if origin in self._topics else record.topic

    def _group_config(self, group: str) -> SubscriptionGroupConfig:
        group_config = self._groups.find(group)
        if group_config is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {remarks.FAQ}",
            )
        if not self._config.writable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._own.ip}] sending message is forbidden",
            )
        return group_config


def _refuse(channel: Channel, request: RemotingCommand, response: RemotingCommand) -> None:
    """Say that a message was not taken back; a consumer in Go gets no answer.

    Go's client (2.1.2) does not look at the code of this answer: it would take the message for
    stored and pass it, and nobody would see it again. Without an answer it tries again itself,
    once 3 s have passed.
    """
    if request.language == LanguageCode.GO.name:
        # Anybody can have many refused, and a failing disk has a line of its own.
        _LOG.debug(
            "%s: a message that a consumer sent back was not stored, and is not answered, so that "
            "the consumer tries again: %s",
            channel,
            response.remark,
        )
    else:
        channel.reply(request, response)


def _properties_of(record: MessageExt) -> dict[str, str]:
    """A message's properties for its next try."""
    # Light queues got the message when it was sent.
    properties = p.decode_properties(p.without_places(record.properties_raw))
    if not record.topic.startswith(names.RETRY_PREFIX):
        properties.pop(p.RETRY_TOPIC, None)  # its sender's word; the record's topic counts
    properties.setdefault(p.RETRY_TOPIC, record.topic)
    properties[p.WAIT] = "false"
    properties.setdefault(
        p.ORIGIN_MESSAGE_ID,
        f"{record.store_host.hex().upper()}{record.commit_log_offset:016X}",
    )
    return properties
