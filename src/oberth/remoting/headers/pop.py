"""Headers of POP consumption: 200050 to 200055, 200070, 200073, 200151."""

from __future__ import annotations

from typing import Final

from oberth.remoting.headers.base import CommandHeader, Int32, Int64

ATTEMPT_ID_MAX: Final = 256
"""Characters of an attempt id, which is kept with each ordered queue; clients send a UUID."""


class PopMessageRequestHeader(CommandHeader, kw_only=True):
    """200050; ``queue_id`` -1 is any, ``init_mode`` 0 starts at the minimum, 1 at the maximum."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponseHeader(CommandHeader, kw_only=True):
    """Read by clients for codes 0, 19, 209 and 210 alike."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(CommandHeader, kw_only=True):
    """200051; ``extra_info`` is the message's POP_CK."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(CommandHeader, kw_only=True):
    """200053."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponseHeader(CommandHeader, kw_only=True):
    """Answer of 200053, parts of the next POP_CK."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekMessageRequestHeader(CommandHeader, kw_only=True):
    """200052; its answer has a PopMessageResponseHeader."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class NotificationRequestHeader(CommandHeader, kw_only=True):
    """200054."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(CommandHeader, kw_only=True):
    """Answer of 200054."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoRequestHeader(CommandHeader, kw_only=True):
    """200055."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(CommandHeader, kw_only=True):
    """Answer of 200055."""

    polling_num: Int32


class PopLiteMessageRequestHeader(CommandHeader, kw_only=True):
    """200070; ``topic`` is the parent of the lite topics."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    attempt_id: str | None = None


class PopLiteMessageResponseHeader(CommandHeader, kw_only=True):
    """Answer of 200070; ``order_count_info`` has one part for each message."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class NotifyUnsubscribeLiteRequestHeader(CommandHeader, kw_only=True):
    """200073, broker to client: another client took the lite topic."""

    lite_topic: str
    consumer_group: str
    client_id: str
