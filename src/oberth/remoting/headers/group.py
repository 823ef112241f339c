"""Headers of clients and consumer groups: 35, 38, 40, 203, 204, 208, 220 to 223, 307, 309, ..."""

from __future__ import annotations

import msgspec

from oberth.remoting.headers.base import CommandHeader, Int32, Int64


class UnregisterClientRequestHeader(CommandHeader, kw_only=True):
    """35."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(CommandHeader, kw_only=True):
    """38."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(CommandHeader, kw_only=True):
    """40, broker to client."""

    consumer_group: str


class GetConsumerConnectionListRequestHeader(CommandHeader, kw_only=True):
    """203."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(CommandHeader, kw_only=True):
    """204."""

    producer_group: str


class GetConsumeStatsRequestHeader(CommandHeader, kw_only=True):
    """208; ``topic_list`` has names joined by ``;``."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(CommandHeader, kw_only=True):
    """317."""

    is_order: bool


class ResetOffsetRequestHeader(CommandHeader, kw_only=True):
    """222 from a tool and 220 to a client; ``offset`` -1 or absent: by timestamp."""

    group: str
    topic: str
    queue_id: Int32 = -1
    offset: Int64 | None = None
    timestamp: Int64
    is_force: bool


class GetConsumerStatusRequestHeader(CommandHeader, kw_only=True):
    """223 from a tool and 221 to a client."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(CommandHeader, kw_only=True):
    """307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(CommandHeader, kw_only=True):
    """309."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class CloneGroupOffsetRequestHeader(CommandHeader, kw_only=True):
    """314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryTopicConsumeByWhoRequestHeader(CommandHeader, kw_only=True):
    """300."""

    topic: str


class QueryTopicsByConsumerRequestHeader(CommandHeader, kw_only=True):
    """343."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(CommandHeader, kw_only=True):
    """345."""

    group: str
    topic: str | None = None


class QueryConsumeTimeSpanRequestHeader(CommandHeader, kw_only=True):
    """303."""

    topic: str
    group: str


class QueryCorrectionOffsetHeader(CommandHeader, kw_only=True):
    """308; ``filter_groups`` has names joined by ``,``."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class GetSubscriptionGroupConfigRequestHeader(CommandHeader, kw_only=True):
    """352."""

    group: str


class DeleteSubscriptionGroupRequestHeader(CommandHeader, kw_only=True):
    """207; ``remove_offset`` is what 4.9 called ``clean_offset``."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool | None = None


class UpdateGroupForbiddenRequestHeader(CommandHeader, kw_only=True):
    """353; ``readable`` absent: only ask."""

    group: str
    topic: str
    readable: bool | None = None


class GetAllSubscriptionGroupRequestHeader(CommandHeader, kw_only=True):
    """201 in pages, 5.x only; most requests have no header."""

    group_seq: Int32
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetAllSubscriptionGroupResponseHeader(CommandHeader, kw_only=True):
    """Answer of 201."""

    total_group_num: Int32
