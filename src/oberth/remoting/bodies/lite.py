"""Bodies about lite topics: 200071, and the answers of 200074 to 200078."""

from __future__ import annotations

import msgspec

from oberth.remoting.bodies.base import Body


class OffsetOption(Body):
    """Where a lite topic is to begin; its value is counted in what the type says.

    Attributes:
        type: POLICY (value 0 go on, 1 the beginning, 2 the end), OFFSET, TAIL_N (messages before
            where the group is) or TIMESTAMP, which brokers disregard.
        value: see above.
    """

    type: str | None = None
    value: int = 0


class LiteSubscriptionEntry(Body):
    """What one client takes or gives up. RocketMQ: LiteSubscriptionDTO.

    Attributes:
        action: PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD or COMPLETE_REMOVE.
    """

    action: str | None = None
    client_id: str = ""
    group: str = ""
    lite_topic_set: list[str] = msgspec.field(default_factory=list)
    offset_option: OffsetOption | None = None
    topic: str = ""
    version: int = 0


class LiteSubscriptionCtlRequestBody(Body):
    """Body of 200071."""

    subscription_set: list[LiteSubscriptionEntry] = msgspec.field(default_factory=list)


class BrokerLiteInfo(Body):
    """Answer of 200074."""

    cq_table_size: int
    current_lmq_num: int
    event_map_size: int
    group_meta: dict[str, list[str]]
    lite_subscription_count: int
    max_lmq_num: int
    offset_table_size: int
    order_info_count: int
    store_type: str
    topic_meta: dict[str, int]


class ParentTopicInfo(Body):
    """Answer of 200075; ``ttl`` in minutes."""

    groups: list[str] | None
    lite_topic_count: int
    lmq_num: int
    topic: str
    ttl: int


class ClientGroup(Body):
    """A client and its group."""

    client_id: str
    group: str


class TopicOffset(Body):
    """What there is in a queue; the time in ms."""

    last_update_timestamp: int
    max_offset: int
    min_offset: int


class LiteTopicInfo(Body):
    """Answer of 200076."""

    lite_topic: str
    parent_topic: str
    sharding_to_broker: bool
    subscriber: list[ClientGroup]
    topic_offset: TopicOffset


class LiteClientInfo(Body):
    """Answer of 200077; times in ms, -1: never."""

    client_id: str
    group: str
    last_access_time: int
    last_consume_time: int
    lite_topic_count: int
    lite_topic_set: list[str] | None
    parent_topic: str


class LiteLagInfo(Body):
    """How far a group is behind in one lite topic."""

    earliest_unconsumed_timestamp: int
    lag_count: int
    lite_topic: str


class OffsetWrapper(Body):
    """How far a group is in a queue; the time, in ms, of what it consumed last."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int = 0


class LiteGroupInfo(Body):
    """Answer of 200078; -1 where nothing is known."""

    earliest_unconsumed_timestamp: int = 0
    group: str = ""
    lag_count_top_k: list[LiteLagInfo] | None = msgspec.field(default=None, name="lagCountTopK")
    lag_timestamp_top_k: list[LiteLagInfo] | None = msgspec.field(
        default=None, name="lagTimestampTopK"
    )
    lite_topic: str | None = None
    lite_topic_offset_wrapper: OffsetWrapper | None = None
    parent_topic: str = ""
    total_lag_count: int = 0
