"""LiteAdminProcessor: 200074 to 200079, what there is of lite topics and who takes them.

A lite topic is a light queue below a parent topic whose ``message.type`` is LITE, and a group that
takes lite topics is bound to such a parent. RocketMQ: LiteManagerProcessor,
LiteConsumerLagCalculator.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from oberth.broker.attributes import LITE, MESSAGE_TYPE
from oberth.broker.lite.lite_service import LiteService
from oberth.formats import names
from oberth.remoting.bodies.base import Body, render_in_slices
from oberth.remoting.bodies.lite import (
    BrokerLiteInfo,
    ClientGroup,
    LiteClientInfo,
    LiteGroupInfo,
    LiteLagInfo,
    LiteTopicInfo,
    OffsetWrapper,
    ParentTopicInfo,
    TopicOffset,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    TriggerLiteDispatchRequestHeader,
)
from oberth.remoting.refusal import Refusal

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.aio.stage import SyncHandler
    from oberth.store.message_store import MessageStore

LITE_TOPICS_SHOWN_MAX: Final = 10_000
"""Lite topics of one client that an answer names."""

LAGS_SHOWN_MAX: Final = 10_000
"""Lite topics that are behind that an answer names."""

LAGS_A_TURN: Final = 500
"""Lite topics whose lag one turn of the loop finds out."""

_ANY_CLIENT: Final = "*"
"""Stands for the clients of a group that takes every lite topic."""

_QUEUE: Final = names.LMQ_QUEUE_ID


class LiteAdminProcessor:
    """Answers about lite topics."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        dispatch_now: Callable[[], None],
        lite: LiteService,
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._dispatch_now = dispatch_now
        self._lite = lite

    def handlers(self) -> dict[RequestCode, SyncHandler]:
        """What serves 200074 to 200079, but for `find_topic_info` and `group_info`."""
        answers: tuple[tuple[RequestCode, Callable[[RemotingCommand], Body | None]], ...] = (
            (RequestCode.GET_BROKER_LITE_INFO, self.broker_info),
            (RequestCode.GET_PARENT_TOPIC_INFO, self.parent_info),
            (RequestCode.GET_LITE_CLIENT_INFO, self.client_info),
            (RequestCode.TRIGGER_LITE_DISPATCH, self.trigger_dispatch),
        )
        return {code: self._handler(answer) for code, answer in answers}

    def _handler(
        self, answer: Callable[[RemotingCommand], Body | None]
    ) -> Callable[[Channel, RemotingCommand], RemotingCommand]:
        def handle(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            del channel
            self._dispatch_now()
            try:
                body = answer(request)
            except Refusal as refusal:
                return refusal.answer(request)
            return create_response(
                request, ResponseCode.SUCCESS, body=b"" if body is None else body.encode()
            )

        return handle

    async def find_topic_info(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """200076; a name server may be asked first."""
        parent = request.header(GetLiteTopicInfoRequestHeader).parent_topic
        if self._lite.is_parent(parent):
            await self._lite.learn_route(parent)
        return self._handler(self.topic_info)(channel, request)

    # Checks

    def _check_parent(self, topic: str) -> int:
        """The minutes after which the parent's lite topics expire, if it is one."""
        topic_config = self._topics.get(topic)
        if topic_config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{topic}] not exist.")
        if topic_config.attributes.get(MESSAGE_TYPE) != LITE:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"Topic [{topic}] type not match.")
        return self._lite.minutes_to_live(topic_config)

    def _parent_of(self, group: str) -> str:
        if self._groups.get(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist.")
        return self._lite.parent_of(group) or ""

    def _bound_parent_of(self, group: str) -> str:
        parent = self._parent_of(group)
        if not parent:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"Group [{group}] is not a LITE group.")
        return parent

    def _check_member(self, client_id: str, group: str) -> None:
        """A group has no say about the clients of another."""
        known = self._lite.subscriptions.get(client_id)
        if known is not None and known.group != group:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"client {client_id} is of another group than {group}",
            )

    # Figures

    def _light_queue_count(self) -> int:
        return sum(1 for topic in self._store.topics() if names.is_lmq(topic))

    def broker_info(self, request: RemotingCommand) -> BrokerLiteInfo:
        """200074: how much there is."""
        del request
        lite = self._lite
        return BrokerLiteInfo(
            store_type=self._store_config.store_type,
            max_lmq_num=self._store_config.max_lmq_consume_queue_num,
            current_lmq_num=self._light_queue_count(),
            lite_subscription_count=len(lite.subscriptions),
            order_info_count=len(lite.orders),
            cq_table_size=len(self._store.topics()),
            offset_table_size=self._offsets.pair_count,
            event_map_size=len(lite.events),
            topic_meta=lite.parents(),
            group_meta=lite.groups_of_parents(),
        )

    def parent_info(self, request: RemotingCommand) -> ParentTopicInfo:
        """200075: about one parent topic."""
        topic = request.header(GetParentTopicInfoRequestHeader).topic
        minutes = self._check_parent(topic)
        return ParentTopicInfo(
            topic=topic,
            ttl=minutes,
            lmq_num=self._light_queue_count(),
            lite_topic_count=len(self._lite.queues(topic)),
            groups=self._lite.groups_of_parents().get(topic),
        )

    def topic_info(self, request: RemotingCommand) -> LiteTopicInfo:
        """200076: about one lite topic."""
        header = request.header(GetLiteTopicInfoRequestHeader)
        parent, lite_topic = header.parent_topic, header.lite_topic
        self._check_parent(parent)
        store = self._store
        queue = names.lite_queue(parent, lite_topic)
        end = self._lite.end(queue)
        offset = TopicOffset(min_offset=0, max_offset=end, last_update_timestamp=0)
        if end > 0:
            offset.min_offset = max(store.min_offset_in_queue(queue, _QUEUE), 0)
            offset.last_update_timestamp = store.message_store_timestamp(queue, _QUEUE, end - 1)
        takers = self._lite.subscriptions.takers_by_group(parent, queue)
        return LiteTopicInfo(
            parent_topic=parent,
            lite_topic=lite_topic,
            subscriber=[
                ClientGroup(client_id=client_id, group=group)
                for group, clients in takers.items()
                for client_id in ([_ANY_CLIENT] if self._lite.takes_all(group) else clients)
            ],
            topic_offset=offset,
            sharding_to_broker=self._lite.is_here(parent, lite_topic),
        )

    def client_info(self, request: RemotingCommand) -> LiteClientInfo:
        """200077: about one client."""
        header = request.header(GetLiteClientInfoRequestHeader)
        parent, group, client_id = header.parent_topic, header.group, header.client_id
        self._check_parent(parent)
        if self._parent_of(group) != parent:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"Subscription [{group}]-[{parent}] not match."
            )
        self._check_member(client_id, group)
        subscription = self._lite.subscriptions.get(client_id)
        events = self._lite.events.get(client_id)
        shown = min(header.max_count, LITE_TOPICS_SHOWN_MAX)
        return LiteClientInfo(
            parent_topic=parent,
            group=group,
            client_id=client_id,
            lite_topic_count=-1 if subscription is None else len(subscription.queues),
            lite_topic_set=None if subscription is None else list(subscription.queues)[:shown],
            last_access_time=-1 if events is None else events.access_ms,
            last_consume_time=0,
        )

    def group_info(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """200078: how far a group is behind, in one lite topic or in all."""
        del channel
        self._dispatch_now()
        header = request.header(GetLiteGroupInfoRequestHeader)
        group, lite_topic = header.group, header.lite_topic
        try:
            parent = self._bound_parent_of(group)
        except Refusal as refusal:
            return refusal.answer(request)
        body = LiteGroupInfo(group=group, parent_topic=parent, lite_topic=lite_topic)
        if lite_topic:
            self._tell_lag(body, names.lite_queue(parent, lite_topic))
        else:
            yield from self._tell_lags(body, min(max(header.top_k, 0), LAGS_SHOWN_MAX))
        raw = yield from render_in_slices(body)
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def _tell_lag(self, body: LiteGroupInfo, queue: str) -> None:
        store = self._store
        end = self._lite.end(queue)
        if end <= 0:
            body.total_lag_count = body.earliest_unconsumed_timestamp = -1
            return
        offset = self._offsets.query(body.group, queue, _QUEUE)
        if offset < 0:
            return
        body.total_lag_count = end - offset
        body.earliest_unconsumed_timestamp = store.message_store_timestamp(queue, _QUEUE, offset)
        last = store.message_store_timestamp(queue, _QUEUE, offset - 1) if offset > 0 else 0
        body.lite_topic_offset_wrapper = OffsetWrapper(
            broker_offset=end, consumer_offset=offset, last_timestamp=last
        )

    def _tell_lags(self, body: LiteGroupInfo, count: int) -> Generator[None, None, None]:
        most: list[LiteLagInfo] = []
        oldest: list[LiteLagInfo] = []
        first_ms = -1
        queues = yield from self._offsets.topics_of_group_in_slices(body.group)
        for start in range(0, len(queues), LAGS_A_TURN):
            if start:
                yield
            lags = list(self._lags(body.group, queues[start : start + LAGS_A_TURN]))
            if not lags:
                continue
            body.total_lag_count += sum(each.lag_count for each in lags)
            most = heapq.nlargest(count, most + lags, key=attrgetter("lag_count"))
            if self._config.lite_lag_latency_collect_enable:
                by_time = attrgetter("earliest_unconsumed_timestamp")
                oldest = heapq.nsmallest(count, oldest + lags, key=by_time)
                slice_ms = min(map(by_time, lags))
                first_ms = slice_ms if first_ms < 0 else min(first_ms, slice_ms)
        body.lag_count_top_k = most
        body.lag_timestamp_top_k = oldest
        body.earliest_unconsumed_timestamp = first_ms

    def _lags(self, group: str, queues: Iterable[str]) -> Iterator[LiteLagInfo]:
        for queue in queues:
            lite = names.split_lite_queue(queue)
            if lite is None:
                continue
            offset = self._offsets.query(group, queue, _QUEUE)
            behind = self._lite.end(queue) - offset if offset >= 0 else 0
            if behind > 0:
                since = self._store.message_store_timestamp(queue, _QUEUE, offset)
                yield LiteLagInfo(
                    lite_topic=lite[1], lag_count=behind, earliest_unconsumed_timestamp=since
                )

    def trigger_dispatch(self, request: RemotingCommand) -> None:
        """200079: look at all that a client takes, or all clients of a group, for messages."""
        header = request.header(TriggerLiteDispatchRequestHeader)
        self._bound_parent_of(header.group)
        if header.client_id:
            self._check_member(header.client_id, header.group)
            self._lite.full_turn(header.client_id, header.group)
        else:
            self._lite.full_turn_of_group(header.group)
