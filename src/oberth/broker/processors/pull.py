"""PullMessageProcessor: 11 and 361. RocketMQ: PullMessageProcessor.

What is found is written as slices of the log behind a rendered head. What is not found is held
until a message arrives or the time is over (``pull_request_hold``); a held pull is run again from
the start, but may not be held again. Every answer of code 0, 19, 20 and 21 has the four header
fields that clients unbox without a look.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from oberth.broker import remarks
from oberth.broker.expressions import FilterUnknownError
from oberth.broker.pull_request_hold import HeldPull, PropertiesFilter
from oberth.broker.stats import BROKER_GET_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE
from oberth.broker.subscriptions import Subscription, SubscriptionError, build_subscription
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand, create_response
from oberth.remoting.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from oberth.remoting.rendered import render_pull_head
from oberth.store.messages import GetMessageResult, GetMessageStatus, MessageFilter, TagsFilter

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel

FLAG_COMMIT_OFFSET: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4
FLAG_CLASS_FILTER: Final = 8
FLAG_LITE_PULL: Final = 16

FORBIDDEN_BY_BROKER: Final = 1
FORBIDDEN_BY_GROUP: Final = 2
FORBIDDEN_BY_TOPIC: Final = 3
FORBIDDEN_BY_BROADCASTING: Final = 4
FORBIDDEN_BY_SUBSCRIPTION: Final = 5
"""``forbiddenType`` of an answer with code 16. RocketMQ: ForbiddenType."""

PULL_MSG_NUMS_MAX: Final = 65_536
"""Messages that one pull may ask for; Java clients ask for 32, tools for up to 10 000."""

_CODES: Final = {
    GetMessageStatus.FOUND: int(ResponseCode.SUCCESS),
    GetMessageStatus.MESSAGE_WAS_REMOVING: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.NO_MATCHED_MESSAGE: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetMessageStatus.OFFSET_FOUND_NULL: int(ResponseCode.PULL_NOT_FOUND),
    GetMessageStatus.OFFSET_OVERFLOW_ONE: int(ResponseCode.PULL_NOT_FOUND),
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: int(ResponseCode.PULL_OFFSET_MOVED),
    GetMessageStatus.OFFSET_TOO_SMALL: int(ResponseCode.PULL_OFFSET_MOVED),
    GetMessageStatus.OFFSET_RESET: int(ResponseCode.PULL_OFFSET_MOVED),
}
_NAMES: Final = {status: status.name for status in GetMessageStatus}
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)


@lru_cache(maxsize=4096)
def _tags_filter(codes: frozenset[int]) -> TagsFilter:
    return TagsFilter(codes)


class _Refusal(Exception):
    """A check that failed; the code and remark to answer with."""

    def __init__(self, code: int, remark: str, forbidden_type: int | None = None) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark
        self.forbidden_type = forbidden_type


class PullMessageProcessor:
    """Hands out messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._broker_gets = broker.stats.item(BROKER_GET_NUMS, broker.config.broker_cluster_name)

    def pull(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Answer now, or hold."""
        return self._pull(channel, request, may_hold=True)

    def pull_again(self, held: HeldPull) -> None:
        """Answer a pull that was held."""
        channel: Channel = held.channel  # type: ignore[assignment]
        request: RemotingCommand = held.request
        if channel.is_closed:
            return
        response = self._pull(channel, request, may_hold=False)
        if response is not None:
            channel.reply(request, response)

    def _pull(
        self, channel: Channel, request: RemotingCommand, *, may_hold: bool
    ) -> RemotingCommand | None:
        broker = self._broker
        broker.dispatch_now()
        header = request.header(PullMessageRequestHeader)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        try:
            group_config, topic_config = self._check(channel, request, header)
            message_filter, properties_filter = self._filter(header, group_config)
        except _Refusal as refusal:
            # Java gives an empty map here, and clients read forbiddenType from it.
            response = create_response(request, refusal.code, refusal.remark, ext_fields={})
            if refusal.forbidden_type is not None:
                response.ext_fields = {"forbiddenType": str(refusal.forbidden_type)}
            return response
        offsets = broker.offsets
        reset = offsets.take_reset(group, topic, queue_id)
        store = broker.store
        if reset is not None:
            result = GetMessageResult(
                GetMessageStatus.OFFSET_RESET,
                reset,
                store.min_offset_in_queue(topic, queue_id),
                store.max_offset_in_queue(topic, queue_id),
            )
        else:
            wanted = min(max(header.max_msg_nums, 1), PULL_MSG_NUMS_MAX)
            size_max = header.max_msg_bytes
            if size_max is None or size_max <= 0:
                result = store.get_message(
                    group, topic, queue_id, header.queue_offset, wanted, message_filter
                )
            else:
                result = store.get_message(
                    group,
                    topic,
                    queue_id,
                    header.queue_offset,
                    wanted,
                    message_filter,
                    max_total_size=size_max,
                )
        status = result.status
        code = _CODES.get(status)
        if code is None:
            # NO_MATCHED_LOGIC_QUEUE and NO_MESSAGE_IN_QUEUE.
            moved = header.queue_offset != 0
            code = int(ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND)
        sys_flag = header.sys_flag
        if may_hold:
            if sys_flag & FLAG_COMMIT_OFFSET:
                offsets.commit(group, topic, queue_id, header.commit_offset, broker.now_ms())
            if code == _NOT_FOUND and sys_flag & FLAG_SUSPEND:
                timeout_ms = (
                    header.suspend_timeout_millis
                    if broker.config.long_polling_enable
                    else broker.config.short_polling_time_ms
                )
                held = HeldPull(
                    channel,
                    request,
                    header.queue_offset,
                    broker.now_ms() + max(timeout_ms, 0),
                    message_filter,
                    properties_filter,
                )
                if broker.hold.hold(topic, queue_id, held):
                    return None
        offsets.commit_pull(group, topic, queue_id, result.next_begin_offset)
        if request.flag & ONEWAY_FLAG:
            return None
        config = broker.config
        suggested = 0
        if config.slave_read_enable:
            suggested = (
                group_config.which_broker_when_consume_slowly
                if result.suggest_pulling_from_slave
                else group_config.broker_id
            )
        if code == 0:
            count = result.message_count
            key = f"{topic}@{group}"
            broker.stats.item(GROUP_GET_NUMS, key).add(count)
            broker.stats.item(GROUP_GET_SIZE, key).add(result.buffer_total_size)
            self._broker_gets.add(count)
        send_frame = channel.send_frame
        send_frame(
            render_pull_head(
                request.opaque,
                code,
                result.next_begin_offset,
                result.min_offset,
                result.max_offset,
                result.buffer_total_size if code == 0 else 0,
                suggest_which_broker_id=suggested,
                group_sys_flag=group_config.group_sys_flag,
                topic_sys_flag=topic_config.topic_sys_flag,
                remark=_NAMES[status],
            )
        )
        if code == 0:
            # The slices keep their segment alive until the socket has them.
            for record in result.records:
                send_frame(record)
        return None

    def _check(
        self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """The checks before the filter, in the reference's order."""
        broker = self._broker
        config = broker.config
        if not config.readable:
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.ip}] pulling message is forbidden",
                FORBIDDEN_BY_BROKER,
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.ip}] for lite pull consumer is forbidden",
                FORBIDDEN_BY_BROKER,
            )
        group_config = broker.groups.find(header.consumer_group)
        if group_config is None:
            raise _Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remarks.group_not_exist(header.consumer_group),
            )
        if not group_config.consume_enable:
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group}",
                FORBIDDEN_BY_GROUP,
            )
        topic_config = broker.topics.get(header.topic)
        if topic_config is None:
            raise _Refusal(ResponseCode.TOPIC_NOT_EXIST, remarks.topic_not_exist(header.topic))
        if not topic_config.is_readable:
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
                FORBIDDEN_BY_TOPIC,
            )
        if not 0 <= header.queue_id < topic_config.read_queue_nums:
            raise _Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic_config.read_queue_nums}] "
                f"consumer:[/{channel.remote}]",
            )
        return group_config, topic_config

    def _filter(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> tuple[MessageFilter | None, PropertiesFilter | None]:
        """What the consumer wants: a filter for the store, and one for what arrives."""
        broker = self._broker
        group, topic = header.consumer_group, header.topic
        if header.sys_flag & FLAG_SUBSCRIPTION:
            try:
                subscription = build_subscription(
                    topic, header.subscription, header.expression_type, header.sub_version
                )
            except SubscriptionError as error:
                raise _Refusal(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from None
            broker.consumers.compensate_subscription(group, subscription, broker.now_ms())
        else:
            subscription = self._subscription_of_group(header, group_config)
        if subscription.is_tag:
            if not subscription.codes:
                return None, None
            return _tags_filter(subscription.codes), None
        if not broker.config.enable_property_filter or broker.expressions is None:
            raise _Refusal(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{subscription.expression_type}",
            )
        try:
            return broker.expressions.filters(
                group,
                subscription,
                from_request=header.sys_flag & FLAG_SUBSCRIPTION != 0,
            )
        except SubscriptionError as error:
            raise _Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from None
        except FilterUnknownError as error:
            raise _Refusal(error.code, str(error)) from None

    def _subscription_of_group(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> Subscription:
        """The subscription that the group's heartbeats brought."""
        broker = self._broker
        group, topic = header.consumer_group, header.topic
        found = broker.consumers.get(group)
        if found is None:
            raise _Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist{remarks.FAQ}",
            )
        if found.is_broadcasting and not group_config.consume_broadcast_enable:
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] can not consume by broadcast way",
                FORBIDDEN_BY_BROADCASTING,
            )
        if not broker.groups.is_readable(group, topic):
            raise _Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] is forbidden for topic[{topic}]",
                FORBIDDEN_BY_SUBSCRIPTION,
            )
        subscription = found.subscriptions.get(topic)
        if subscription is None:
            raise _Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist{remarks.FAQ}",
            )
        if subscription.sub_version < header.sub_version:
            raise _Refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return subscription


assert {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"} <= set(
    PullMessageResponseHeader.__struct_encode_fields__
)
