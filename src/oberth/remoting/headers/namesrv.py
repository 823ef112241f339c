"""Headers of name servers: 100 to 105, 205, 216, 217, 219, 224, 322, 327, 901, 904, 905."""

from __future__ import annotations

from oberth.remoting.headers.base import CommandHeader, Int32, Int64


class RegisterBrokerRequestHeader(CommandHeader, kw_only=True):
    """103; ``broker_id`` 0 is the master, ``body_crc32`` 0 is not checked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 | None = None


class RegisterBrokerResponseHeader(CommandHeader, kw_only=True):
    """Answer of 103, for slaves."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(CommandHeader, kw_only=True):
    """104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequestHeader(CommandHeader, kw_only=True):
    """322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(CommandHeader, kw_only=True):
    """Answer of 322."""

    changed: bool


class BrokerHeartbeatRequestHeader(CommandHeader, kw_only=True):
    """904, one-way; the wire says ``heartbeatTimeoutMills``."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class GetRouteInfoRequestHeader(CommandHeader, kw_only=True):
    """105."""

    topic: str
    accept_standard_json_only: bool | None = None


class PutKVConfigRequestHeader(CommandHeader, kw_only=True):
    """100."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(CommandHeader, kw_only=True):
    """101."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(CommandHeader, kw_only=True):
    """Answer of 101."""

    value: str | None = None


class DeleteKVConfigRequestHeader(CommandHeader, kw_only=True):
    """102."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(CommandHeader, kw_only=True):
    """219."""

    namespace: str


class WipeWritePermOfBrokerRequestHeader(CommandHeader, kw_only=True):
    """205."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(CommandHeader, kw_only=True):
    """Answer of 205."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerRequestHeader(CommandHeader, kw_only=True):
    """327."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(CommandHeader, kw_only=True):
    """Answer of 327."""

    add_topic_count: Int32


class DeleteTopicFromNamesrvRequestHeader(CommandHeader, kw_only=True):
    """216."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequestHeader(CommandHeader, kw_only=True):
    """217; the body is a TopicRouteData."""

    topic: str


class GetTopicsByClusterRequestHeader(CommandHeader, kw_only=True):
    """224."""

    cluster: str


class GetBrokerMemberGroupRequestHeader(CommandHeader, kw_only=True):
    """901."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChangeRequestHeader(CommandHeader, kw_only=True):
    """905, name server to broker, one-way."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
