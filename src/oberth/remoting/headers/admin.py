"""Headers of administration: topics, messages, statistics, users and policies."""

from __future__ import annotations

from oberth.remoting.headers.base import CommandHeader, Int32, Int64


class CreateTopicRequestHeader(CommandHeader, kw_only=True):
    """17; ``attributes`` is ``+key=value,-key``."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool
    attributes: str | None = None
    force: bool | None = None


class DeleteTopicRequestHeader(CommandHeader, kw_only=True):
    """215."""

    topic: str


class GetTopicConfigRequestHeader(CommandHeader, kw_only=True):
    """351."""

    topic: str


class GetAllTopicConfigRequestHeader(CommandHeader, kw_only=True):
    """21 in pages, 5.x only; most requests have no header."""

    topic_seq: Int32
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetAllTopicConfigResponseHeader(CommandHeader, kw_only=True):
    """Answer of 21."""

    total_topic_num: Int32 | None = None


class GetTopicStatsInfoRequestHeader(CommandHeader, kw_only=True):
    """202."""

    topic: str


class QueryMessageRequestHeader(CommandHeader, kw_only=True):
    """12; ext field ``_UNIQUE_KEY_QUERY`` is beside the header."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None


class QueryMessageResponseHeader(CommandHeader, kw_only=True):
    """Answer of 12."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequestHeader(CommandHeader, kw_only=True):
    """33; ``offset`` is a CommitLog offset."""

    topic: str | None = None
    offset: Int64


class ViewBrokerStatsDataRequestHeader(CommandHeader, kw_only=True):
    """315."""

    stats_name: str
    stats_key: str


class QueryConsumeQueueRequestHeader(CommandHeader, kw_only=True):
    """321."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class GetBrokerConfigResponseHeader(CommandHeader, kw_only=True):
    """Answer of 26; ``version`` is a DataVersion as JSON."""

    version: str


class PurgeTopicRequestHeader(CommandHeader, kw_only=True):
    """29002, Oberth's own: ``timestamp`` in ms, or ``queueId`` and ``offset``."""

    topic: str
    timestamp: Int64 | None = None
    queue_id: Int32 | None = None
    offset: Int64 | None = None
    force: bool = False
    dry_run: bool = False


class CheckRocksdbCqWriteProgressRequestHeader(CommandHeader, kw_only=True):
    """354."""

    topic: str
    check_store_time: Int64 = 0


class ExportRocksDBConfigToJsonRequestHeader(CommandHeader, kw_only=True):
    """355."""

    config_type: str


class CreateUserRequestHeader(CommandHeader, kw_only=True):
    """3001 and 3002."""

    username: str | None = None


class DeleteUserRequestHeader(CommandHeader, kw_only=True):
    """3003."""

    username: str | None = None


class GetUserRequestHeader(CommandHeader, kw_only=True):
    """3004."""

    username: str | None = None


class ListUsersRequestHeader(CommandHeader, kw_only=True):
    """3005."""

    filter: str | None = None


class CreateAclRequestHeader(CommandHeader, kw_only=True):
    """3006 and 3007."""

    subject: str | None = None


class DeleteAclRequestHeader(CommandHeader, kw_only=True):
    """3008."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class GetAclRequestHeader(CommandHeader, kw_only=True):
    """3009."""

    subject: str | None = None


class ListAclsRequestHeader(CommandHeader, kw_only=True):
    """3010."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class GetParentTopicInfoRequestHeader(CommandHeader, kw_only=True):
    """200075."""

    topic: str


class GetLiteTopicInfoRequestHeader(CommandHeader, kw_only=True):
    """200076."""

    parent_topic: str = ""
    lite_topic: str = ""


class GetLiteClientInfoRequestHeader(CommandHeader, kw_only=True):
    """200077; of the lite topics at most ``max_count`` are named."""

    parent_topic: str = ""
    group: str = ""
    client_id: str = ""
    max_count: Int32 = 0


class GetLiteGroupInfoRequestHeader(CommandHeader, kw_only=True):
    """200078; without a lite topic the ``top_k`` that are most behind."""

    group: str
    lite_topic: str | None = None
    top_k: Int32 = 0


class TriggerLiteDispatchRequestHeader(CommandHeader, kw_only=True):
    """200079; without a client, all of the group."""

    group: str
    client_id: str | None = None
