"""Admin: what the newest definitions of ``apache.rocketmq.v2`` give to consoles.

Each call becomes the commands that mqadmin sends, so access control decides by the same rules.
``deployment_name`` is of no meaning here: a port serves one cluster.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeVar

from oberth.client.admin import UNIQUE_KEY_QUERY
from oberth.client.messages import MessageExt, decode_messages
from oberth.errors import MQClientError
from oberth.formats import names
from oberth.formats.topic_config import TopicConfig
from oberth.proxy import messages as m
from oberth.proxy.admin_convert import (
    MODELS,
    fill_client,
    fill_expression,
    fill_lag,
    fill_queue,
    fill_running_info,
    parse_scroll_id,
    scroll_id,
)
from oberth.proxy.call import Handler
from oberth.proxy.clients import CONSUMERS, PRODUCER
from oberth.proxy.codes import Code, StatusError, code_of
from oberth.proxy.convert import (
    fill_message,
    ms_of,
    set_timestamp,
    type_name,
)
from oberth.proxy.core import Context, ServiceCore, check_count, group_of, topic_of
from oberth.remoting.aio.long_answers import LongAnswers
from oberth.remoting.bodies.base import ANSWER_SIZE_MAX
from oberth.remoting.bodies.clients import ConsumerConnection
from oberth.remoting.bodies.route import BrokerData, GroupList, QueueData, TopicList, TopicRouteData
from oberth.remoting.bodies.running_info import (
    RUNNING_INFO_SIZE_MAX,
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from oberth.remoting.bodies.stats import ConsumeStats, OffsetWrapper, QueryConsumeTimeSpanBody
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand
from oberth.remoting.headers.admin import GetTopicConfigRequestHeader, QueryMessageRequestHeader
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    ResetOffsetRequestHeader,
)
from oberth.remoting.headers.pull import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
)

_LOG: Final = logging.getLogger(__name__)

B = TypeVar("B")

MESSAGES_MAX: Final = 64
"""Messages of an answer to QueryMessage."""

PULLS_MAX: Final = 16
"""Pulls that one QueryMessage makes; its ``scroll_id`` tells where the next one goes on."""

GROUPS_MAX: Final = 200
"""Groups of a topic that are shown."""

_TYPES: Final = m.enum_values("MessageType")
_PREFIX: Final = f"/{m.PACKAGE}.Admin/"
_LEVELS: Final = {
    number: {"TRACE": "DEBUG", "WARN": "WARNING"}.get(name, name)
    for name, number in m.enum_values("ChangeLogLevelRequest.Level").items()
}


class AdminService:
    """Serves ``Admin``.

    Args:
        core: brokers, and who calls.
        send: what serves SendMessage.
        connections: how many connections the port has.
    """

    def __init__(
        self,
        core: ServiceCore,
        send: Callable[[Context, Any, Any], Any],
        connections: Callable[[], int],
    ) -> None:
        self._core = core
        self._send_message = send
        self._connections = connections
        self._counted = (0.0, 0, 0)
        self._rates = (0.0, 0.0)
        self._answers = LongAnswers()

    def handlers(self) -> dict[str, Handler]:
        """What serves each path."""
        unary = {
            "ChangeLogLevel": self._change_log_level,
            "DescribeTopicStatus": self._describe_topic,
            "ListSubscription": self._list_subscriptions,
            "DescribeSubscription": self._describe_subscriptions,
            "DeleteSubscription": self._delete_subscription,
            "DescribeGroupAccumulation": self._accumulation,
            "ListConsumerConnection": self._list_connections,
            "ResetGroupOffset": self._reset,
            "QueryMessage": self._query_messages,
            "PrintThreadStackTrace": self._stack_trace,
            "VerifyMessage": self._verify,
            "AdminSendMessage": self._send,
            "GetConsumerRunningInfo": self._running_info,
            "GetTopicRoute": self._route,
            "QueryTimeSpan": self._time_span,
            "GetProxyRuntimeStats": self._runtime_stats,
        }
        return {
            _PREFIX + name: self._core.unary(name, serve, for_admin=True)
            for name, serve in unary.items()
        }

    def on_time(self, now: float) -> None:
        """Count messages a second; about every second."""
        at, sent, received = self._counted
        if now > at:
            core = self._core
            self._rates = ((core.sent - sent) / (now - at), (core.received - received) / (now - at))
            self._counted = (now, core.sent, core.received)

    # Asking brokers

    async def _ask(
        self,
        context: Context,
        broker: str,
        code: RequestCode,
        header: CommandHeader,
        decode: Callable[[bytes], B],
        *allowed: ResponseCode,
        size_max: int | None = None,
    ) -> B | None:
        """A broker's answer; None where it answers with a code that is allowed.

        A thread decodes it where ``size_max`` says how long it may be: a client chose what is in
        it, or it is no JSON proper.
        """
        answer = await self._core.invoke(context, broker, code, header.to_ext_fields())
        if answer.code in allowed:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise StatusError(code_of(answer.code), answer.remark or f"code {answer.code}")
        data = bytes(answer.body_bytes())
        if size_max is None:
            return await self._answers.of_broker(decode, data)
        return await self._answers.read(decode, data, size_max)

    async def _brokers(
        self, context: Context, topic: str, code: RequestCode, header: CommandHeader
    ) -> list[str]:
        """The brokers of a topic, for who may ask them for this: others do not hear of it."""
        self._core.authorize(context, _command(code, header))
        return sorted({queues.broker_name for queues in await self._core.queues(topic)})

    async def _connections_of(self, context: Context, group: str) -> ConsumerConnection:
        """The members of a group over all brokers; none if nobody is connected."""
        header = GetConsumerConnectionListRequestHeader(consumer_group=group)
        made = ConsumerConnection()
        known = set()
        for broker in await self._core.backend.brokers():
            found = await self._ask(
                context, broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, header,
                ConsumerConnection.decode, ResponseCode.CONSUMER_NOT_ONLINE,
            )  # fmt: skip
            if found is None:
                continue
            made.message_model = found.message_model
            made.subscription_table |= found.subscription_table
            for each in found.connection_set:
                if each.client_id not in known:
                    known.add(each.client_id)
                    made.connection_set.append(each)
        return made

    async def _groups_of(self, context: Context, topic: str) -> list[str]:
        code, header = (
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            QueryTopicConsumeByWhoRequestHeader(topic=topic),
        )
        found: set[str] = set()
        for broker in await self._brokers(context, topic, code, header):
            body = await self._ask(context, broker, code, header, GroupList.decode)
            assert body is not None
            found.update(body.group_list)
        return sorted(each for each in found if not names.is_system_group(each))[:GROUPS_MAX]

    async def _topics_of(self, context: Context, group: str) -> set[str]:
        """Topics in which a group has committed."""
        header = QueryTopicsByConsumerRequestHeader(group=group)
        found: set[str] = set()
        for broker in await self._core.backend.brokers():
            body = await self._ask(
                context, broker, RequestCode.QUERY_TOPICS_BY_CONSUMER, header, TopicList.decode,
                ResponseCode.SYSTEM_ERROR,
            )  # fmt: skip
            found.update(() if body is None else body.topic_list)
        return {each for each in found if not each.startswith(names.RETRY_PREFIX)}

    # Topics

    async def _describe_topic(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        code, header = RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic=topic)
        (broker, *_) = await self._brokers(context, topic, code, header)
        config = await self._ask(context, broker, code, header, TopicConfig.decode)
        assert config is not None
        attributes = config.attributes
        response.topic_message_type = _TYPES.get(attributes.get("message.type", "NORMAL"), 0)
        response.tags.update(attributes)

    async def _route(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        header = GetTopicConfigRequestHeader(topic=topic)
        self._core.authorize(context, _command(RequestCode.GET_TOPIC_CONFIG, header))
        route = TopicRouteData()
        local = context.call.channel.local
        for queues in await self._core.queues(topic):
            perm = 4 * queues.may_read + 2 * queues.may_write
            route.queue_datas.append(
                QueueData(
                    broker_name=queues.broker_name,
                    perm=perm,
                    read_queue_nums=queues.read_count,
                    write_queue_nums=queues.write_count,
                )
            )
            address = (
                str(local)
                if request.protocol_type.lower().startswith("grpc")
                else await self._core.backend.address(queues.broker_name)
            )
            route.broker_datas.append(
                BrokerData(broker_addrs={queues.broker_id: address}, broker_name=queues.broker_name)
            )
        response.topic_route_data = route.encode().decode()

    # Subscriptions

    async def _subscriptions(
        self, context: Context, request: Any
    ) -> AsyncIterator[tuple[str, str, ConsumerConnection]]:
        """Groups and topics that a request asks for, each with the group's members."""
        topic = topic_of(request.topic) if request.HasField("topic") else ""
        if request.HasField("group"):
            groups = [group_of(request.group)]
        elif topic:
            groups = await self._groups_of(context, topic)
        else:
            raise StatusError(Code.BAD_REQUEST, "neither a topic nor a group is given")
        for group in groups:
            members = await self._connections_of(context, group)
            topics = {*members.subscription_table, *await self._topics_of(context, group)}
            for each in sorted(topics):
                if topic in ("", each) and not each.startswith(names.RETRY_PREFIX):
                    yield group, each, members

    async def _list_subscriptions(self, context: Context, request: Any, response: Any) -> None:
        async for group, topic, members in self._subscriptions(context, request):
            self._fill_subscription(response.subscription_info.add(), group, topic, members)

    async def _describe_subscriptions(self, context: Context, request: Any, response: Any) -> None:
        async for group, topic, members in self._subscriptions(context, request):
            for member in members.connection_set:
                entry = response.client_subscription_info.add()
                fill_client(entry.client_info, member, members)
                self._fill_subscription(entry.subscription_info, group, topic, members)
                own = self._own_expression(member.client_id, topic)
                if own is not None:
                    entry.subscription_info.expression.CopyFrom(own)

    def _own_expression(self, client_id: str, topic: str) -> Any:
        """The subscriptions that a gRPC client has declared itself; None for other clients."""
        client = self._core.clients.get(client_id)
        if client is None or client.settings is None:
            return None
        for entry in client.settings.subscription.subscriptions:
            if entry.topic.name == topic:
                return entry.expression
        return None

    def _fill_subscription(
        self, info: Any, group: str, topic: str, members: ConsumerConnection
    ) -> None:
        info.group.name = group
        info.topic.name = topic
        info.message_model = MODELS.get(members.message_model, 0)
        data = members.subscription_table.get(topic)
        info.online = data is not None and bool(members.connection_set)
        fill_expression(info.expression, data)
        if data is not None and data.sub_version > 0:
            set_timestamp(info.last_update_timestamp, data.sub_version)
        own = [self._own_expression(each.client_id, topic) for each in members.connection_set]
        texts = {(each.type, each.expression or "*") for each in own if each is not None}
        info.subscription_consistency = len(texts) < 2

    async def _delete_subscription(self, context: Context, request: Any, response: Any) -> None:
        topic, group = topic_of(request.topic), group_of(request.group)
        header = DeleteSubscriptionGroupRequestHeader(group_name=group)
        self._core.authorize(context, _command(RequestCode.DELETE_SUBSCRIPTIONGROUP, header))
        members = await self._connections_of(context, group)
        if topic in members.subscription_table and members.connection_set:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"{len(members.connection_set)} members of {group} consume {topic}",
            )
        if topic not in await self._topics_of(context, group):
            raise StatusError(Code.NOT_FOUND, f"{group} does not consume {topic}")
        try:
            await self._core.backend.forget_offsets(group, topic)
        except MQClientError as error:
            raise StatusError(Code.NOT_IMPLEMENTED, str(error)) from None

    async def _list_connections(self, context: Context, request: Any, response: Any) -> None:
        members = await self._connections_of(context, group_of(request.group))
        topic = topic_of(request.topic) if request.HasField("topic") else ""
        if topic and topic not in members.subscription_table:
            return
        for member in members.connection_set:
            fill_client(response.client_info.add(), member, members)

    # Offsets

    async def _accumulation(self, context: Context, request: Any, response: Any) -> None:
        group = group_of(request.group)
        wanted = [topic_of(each) for each in request.topics]
        check_count("topics", len(wanted))
        found: dict[str, list[OffsetWrapper]] = {}
        header = GetConsumeStatsRequestHeader(consumer_group=group)
        for broker in await self._core.backend.brokers():
            stats = await self._ask(
                context, broker, RequestCode.GET_CONSUME_STATS, header,
                partial(ConsumeStats.decode, lenient_size_max=FRAME_SIZE_MAX),
                size_max=FRAME_SIZE_MAX,
            )  # fmt: skip
            assert stats is not None
            for queue, offsets in stats.offset_table.items():
                if not wanted or queue.topic in wanted:
                    found.setdefault(queue.topic, []).append(offsets)
        now_ms = self._core.backend.now_ms()
        fill_lag(response.accumulation, (each for some in found.values() for each in some), now_ms)
        for topic in wanted:
            fill_lag(response.topic_accumulation[topic], found.get(topic, ()), now_ms)
        if request.HasField("lite_topic"):
            for topic in wanted:
                offsets = await self._lite_lag(context, group, topic, request.lite_topic)
                target = response.lite_topic_accumulation[request.lite_topic]
                fill_lag(target, [offsets], now_ms)

    async def _lite_lag(
        self, context: Context, group: str, topic: str, lite_topic: str
    ) -> OffsetWrapper:
        """How far a group is in a lite topic, over all brokers."""
        queue = names.lite_queue(topic, lite_topic)
        sums = OffsetWrapper()
        code, ends = RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=queue, queue_id=0)
        for broker in await self._brokers(context, topic, code, ends):
            end = await self._core.checked(context, broker, code, ends.to_ext_fields())
            sums.broker_offset += end.header(GetMaxOffsetResponseHeader).offset
            header = QueryConsumerOffsetRequestHeader(
                consumer_group=group, topic=queue, queue_id=0, set_zero_if_not_found=False
            )
            done = await self._core.invoke(
                context, broker, RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext_fields()
            )
            if done.code == ResponseCode.SUCCESS:
                sums.consumer_offset += done.header(QueryConsumerOffsetResponseHeader).offset
        sums.pull_offset = sums.consumer_offset
        return sums

    async def _time_span(self, context: Context, request: Any, response: Any) -> None:
        group = group_of(request.group)
        topics = [topic_of(each) for each in request.topics]
        check_count("topics", len(topics))
        for topic in topics or sorted(await self._topics_of(context, group)):
            code = RequestCode.QUERY_CONSUME_TIME_SPAN
            header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
            for broker in await self._brokers(context, topic, code, header):
                body = await self._ask(
                    context, broker, code, header, QueryConsumeTimeSpanBody.decode
                )
                assert body is not None
                for span in body.consume_time_span_set:
                    entry = response.queue_time_span_list.add()
                    fill_queue(entry.message_queue, span.message_queue)
                    entry.min_timestamp = span.min_time_stamp
                    entry.max_timestamp = span.max_time_stamp
                    entry.consume_timestamp = span.consume_time_stamp
                    entry.delay_time_ms = span.delay_time

    async def _reset(self, context: Context, request: Any, response: Any) -> None:
        topic, group = topic_of(request.topic), group_of(request.group)
        if not request.HasField("reset_timestamp"):
            raise StatusError(Code.BAD_REQUEST, "no reset_timestamp is given")
        time_ms = ms_of(request.reset_timestamp)
        if time_ms < 0:  # to brokers that is the end of a queue
            raise StatusError(Code.BAD_REQUEST, f"the reset_timestamp {time_ms} ms is before 1970")
        header = ResetOffsetRequestHeader(
            group=group, topic=topic, timestamp=time_ms, is_force=True
        )
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        for broker in await self._brokers(context, topic, code, header):
            await self._core.checked(context, broker, code, header.to_ext_fields())

    # Messages

    async def _query_messages(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        key = request.WhichOneof("search_key")
        begin_ms = ms_of(request.begin_timestamp)
        end_ms = ms_of(request.end_timestamp) if request.HasField("end_timestamp") else 2**63 - 1
        asked = request.max_message_nums or request.page_size or MESSAGES_MAX
        count = min(max(asked, 1), MESSAGES_MAX)
        brokers = await self._queried(context, topic)
        if request.HasField("broker_name"):
            brokers = [each for each in brokers if each == request.broker_name]
        if key in ("message_id", "message_key"):
            found = await self._by_key(
                context, topic, brokers, getattr(request, key), begin_ms, end_ms,
                unique=key == "message_id",
            )  # fmt: skip
            if request.HasField("queue_id"):
                found = [each for each in found if each.queue_id == request.queue_id]
            first = max(request.page_num - 1, 0) * count
            found = found[first : first + count]
        elif key is not None:
            found = await self._scan(
                context, request, response, topic, brokers, begin_ms, end_ms, count
            )
        else:
            raise StatusError(Code.BAD_REQUEST, "no id, key, subscription or lite topic is given")
        now_ms = self._core.backend.now_ms()
        for message in found:
            fill_message(response.messages.add(), message, topic, handle=None, now_ms=now_ms)

    async def _queried(self, context: Context, topic: str) -> list[str]:
        """The brokers of a topic, for who may read its messages."""
        header = QueryMessageRequestHeader(
            topic=topic, key="", max_num=1, begin_timestamp=0, end_timestamp=0
        )
        return await self._brokers(context, topic, RequestCode.QUERY_MESSAGE, header)

    async def _by_key(
        self,
        context: Context,
        topic: str,
        brokers: Iterable[str],
        key: str,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool,
    ) -> list[MessageExt]:
        """Messages by the index, the oldest first."""
        fields = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=MESSAGES_MAX,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
        ).to_ext_fields()
        fields[UNIQUE_KEY_QUERY] = "true" if unique else "false"
        found: list[MessageExt] = []
        for broker in brokers:
            answer = await self._core.invoke(
                context, broker, RequestCode.QUERY_MESSAGE, dict(fields)
            )
            if answer.code == ResponseCode.SUCCESS:
                found += decode_messages(answer.body_bytes(), broker)
            elif answer.code != ResponseCode.QUERY_NOT_FOUND:
                raise StatusError(code_of(answer.code), answer.remark or "")
        # The index holds hashes of keys: a message that it finds may have another key.
        found = [
            each
            for each in found
            if each.topic == topic
            and (each.msg_id == key if unique else key in each.keys.split(" "))
            and begin_ms <= each.store_timestamp <= end_ms
        ]
        found.sort(key=lambda each: each.store_timestamp)
        return found

    async def _scan(
        self,
        context: Context,
        request: Any,
        response: Any,
        topic: str,
        brokers: list[str],
        begin_ms: int,
        end_ms: int,
        count: int,
    ) -> list[MessageExt]:
        """Messages of a time that a filter lets through, queue by queue.

        Where the next scan goes on is in the response.
        """
        is_lite = request.WhichOneof("search_key") == "lite_topic"
        name = names.lite_queue(topic, request.lite_topic) if is_lite else topic
        counts = {each.broker_name: each.read_count for each in await self._core.queues(topic)}
        queues = [
            (broker, queue_id)
            for broker in brokers
            for queue_id in ([0] if is_lite else range(counts[broker]))
            if not request.HasField("queue_id") or queue_id == request.queue_id
        ]
        start, offset = parse_scroll_id(request.scroll_id, queues) if request.scroll_id else (0, -1)
        found: list[MessageExt] = []
        pulls = 0
        for number in range(start, len(queues)):
            broker, queue_id = queues[number]
            if offset < 0:
                offset = await self._offset_at(context, broker, name, queue_id, begin_ms)
            while True:
                if len(found) >= count or pulls >= PULLS_MAX:
                    response.scroll_id = scroll_id(broker, queue_id, offset)
                    return found
                pulls += 1
                tags = "*" if is_lite else request.subscription or "*"
                pull = _tools_pull(name, queue_id, offset, count - len(found), tags)
                answer = await self._core.invoke(
                    context, broker, RequestCode.PULL_MESSAGE, pull.to_ext_fields()
                )
                if answer.code == ResponseCode.SUCCESS:
                    some = decode_messages(answer.body_bytes(), broker)
                    found += [each for each in some if each.store_timestamp <= end_ms]
                    offset = answer.header(PullMessageResponseHeader).next_begin_offset
                    if some[-1].store_timestamp > end_ms:
                        break
                elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                    offset = answer.header(PullMessageResponseHeader).next_begin_offset
                elif answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
                    break
                else:
                    raise StatusError(code_of(answer.code), answer.remark or "")
            offset = -1
        return found

    async def _offset_at(
        self, context: Context, broker: str, topic: str, queue_id: int, begin_ms: int
    ) -> int:
        """The first offset of a queue that was stored at a time or later."""
        header = SearchOffsetRequestHeader(topic=topic, queue_id=queue_id, timestamp=begin_ms)
        answer = await self._core.checked(
            context, broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_ext_fields()
        )
        return answer.header(GetMaxOffsetResponseHeader).offset

    async def _send(self, context: Context, request: Any, response: Any) -> None:
        sending = m.SendMessageRequest()
        message = sending.messages.add(body=request.body)
        message.topic.CopyFrom(request.topic)
        message.user_properties.MergeFrom(request.user_properties)
        system = message.system_properties
        system.CopyFrom(request.system_properties)
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key"):
            system.keys.append(request.key)
        if not system.message_id:
            system.message_id = f"01{secrets.token_hex(16).upper()}"
        topic = topic_of(request.topic)
        self._core.authorize_sending(context, topic)
        if not system.message_type:
            wanted = await self._core.backend.message_type(topic)
            system.message_type = _TYPES.get(wanted, _TYPES["NORMAL"])
        if type_name(system.message_type) == "TRANSACTION":
            raise StatusError(Code.BAD_REQUEST, "nobody would end a transaction sent from here")
        answer = m.SendMessageResponse()
        await self._send_message(context, sending, answer)
        response.status.CopyFrom(answer.status)
        response.message_id = system.message_id

    async def _verify(self, context: Context, request: Any, response: Any) -> None:
        topic, group = topic_of(request.topic), group_of(request.group)
        brokers = await self._queried(context, topic)
        found = await self._by_key(
            context, topic, brokers, request.message_id, 0, 2**63 - 1, unique=True
        )
        if not found:
            raise StatusError(Code.MESSAGE_NOT_FOUND, f"no message {request.message_id[:80]}")
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=group,
            client_id=request.client_id,
            msg_id=found[0].offset_msg_id,
            broker_name=found[0].broker_name,
            topic=topic,
        )
        result = await self._ask(
            context,
            found[0].broker_name,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            ConsumeMessageDirectlyResult.decode_answer,
            size_max=ANSWER_SIZE_MAX,
        )
        assert result is not None
        if result.consume_result not in (CMResult.CR_SUCCESS, CMResult.CR_COMMIT):
            raise StatusError(Code.FAILED_TO_CONSUME_MESSAGE, str(result.consume_result))

    # Clients

    async def _info_of(
        self, context: Context, group: str, client_id: str, *, with_stacks: bool
    ) -> ConsumerRunningInfo:
        header = GetConsumerRunningInfoRequestHeader(
            consumer_group=group, client_id=client_id, jstack_enable=with_stacks
        )
        failure = StatusError(Code.NOT_FOUND, f"{client_id[:80]} is no member of {group}")
        for broker in await self._core.backend.brokers():
            try:
                found = await self._ask(
                    context, broker, RequestCode.GET_CONSUMER_RUNNING_INFO, header,
                    ConsumerRunningInfo.decode_answer, size_max=RUNNING_INFO_SIZE_MAX,
                )  # fmt: skip
            except StatusError as error:
                failure = error
                continue
            assert found is not None
            return found
        raise failure

    async def _stack_trace(self, context: Context, request: Any, response: Any) -> None:
        group = group_of(request.group)
        info = await self._info_of(context, group, request.client_id, with_stacks=True)
        response.thread_stack_trace = info.jstack or ""

    async def _running_info(self, context: Context, request: Any, response: Any) -> None:
        group = group_of(request.group)
        info = await self._info_of(context, group, request.client_id, with_stacks=False)
        await asyncio.to_thread(fill_running_info, response.consumer_running_info, info)

    # Ourselves

    async def _authorize_here(self, context: Context, code: RequestCode) -> None:
        """Whether the caller may ask this of a broker, and so of this process.

        Where brokers are elsewhere, one of them is asked for what changes nothing there.

        Raises:
            StatusError: it may not, or no broker answers who may.
        """
        self._core.authorize(context, _command(code, None))
        if self._core.backend.own is None and context.access_key:
            brokers = await self._core.backend.brokers()
            await self._core.checked(context, next(iter(brokers), ""), code, {})

    async def _change_log_level(self, context: Context, request: Any, response: Any) -> None:
        await self._authorize_here(context, RequestCode.UPDATE_BROKER_CONFIG)
        level = _LEVELS.get(request.level)
        if level is None:
            raise StatusError(Code.BAD_REQUEST, f"log level {request.level}, allowed 0 to 4")
        logging.getLogger("oberth").setLevel(level)
        response.remark = f"the level of the log is {level}"

    async def _runtime_stats(self, context: Context, request: Any, response: Any) -> None:
        await self._authorize_here(context, RequestCode.GET_BROKER_RUNTIME_INFO)
        response.proxy_name = socket.gethostname()
        response.version = version("oberth")
        response.in_tps, response.out_tps = self._rates
        response.connections = self._connections()
        kinds = [each.settings.client_type for each in self._core.clients if each.settings]
        response.producers = sum(kind == PRODUCER for kind in kinds)
        response.consumers = sum(kind in CONSUMERS for kind in kinds)


def _command(code: RequestCode, header: CommandHeader | None) -> RemotingCommand:
    """A command that is only looked at for who may send it."""
    fields = {} if header is None else header.to_ext_fields()
    return RemotingCommand(code=int(code), ext_fields=fields)


def _tools_pull(
    topic: str, queue_id: int, offset: int, count: int, tags: str
) -> PullMessageRequestHeader:
    """A pull that belongs to no consumer and does not wait."""
    return PullMessageRequestHeader(
        consumer_group=names.TOOLS_CONSUMER_GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=tags,
        sub_version=0,
        expression_type="TAG",
    )
