"""Headers of pulling and of queue offsets: 11, 361, 29, 30, 31, 32, 14, 15."""

from __future__ import annotations

from oberth.remoting.headers.base import CommandHeader, Int32, Int64


class PullMessageRequestHeader(CommandHeader, kw_only=True):
    """11 and 361. RocketMQ misspells ``proxyFrowardClientId``; so do we, on the wire only."""

    consumer_group: str
    topic: str
    lite_topic: str | None = None
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None


class PullMessageResponseHeader(CommandHeader, kw_only=True):
    """Read by clients with codes 0, 19, 20 and 21: the first four are always there."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class SearchOffsetRequestHeader(CommandHeader, kw_only=True):
    """29; ``boundary_type`` is ``LOWER`` (the default) or ``UPPER``."""

    topic: str
    lite_topic: str | None = None
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class SearchOffsetResponseHeader(CommandHeader, kw_only=True):
    """Answer of 29."""

    offset: Int64


class GetMaxOffsetRequestHeader(CommandHeader, kw_only=True):
    """30; not ``committed``: also messages that the log has and consumers are not shown yet."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMaxOffsetResponseHeader(CommandHeader, kw_only=True):
    """Answer of 30."""

    offset: Int64


class GetMinOffsetRequestHeader(CommandHeader, kw_only=True):
    """31."""

    topic: str
    queue_id: Int32


class GetMinOffsetResponseHeader(CommandHeader, kw_only=True):
    """Answer of 31."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(CommandHeader, kw_only=True):
    """32."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(CommandHeader, kw_only=True):
    """Answer of 32."""

    timestamp: Int64


class QueryConsumerOffsetRequestHeader(CommandHeader, kw_only=True):
    """14."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(CommandHeader, kw_only=True):
    """Answer of 14."""

    offset: Int64


class UpdateConsumerOffsetRequestHeader(CommandHeader, kw_only=True):
    """15, normally one-way."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
