"""Bodies of administration: 18, 225, 353, 907, and users and policies (3001 to 3010).

``TopicConfigList`` and ``SubscriptionGroupList`` carry the same objects as the files of a broker.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from oberth.formats.bean import Bean, bean_of, json_field, list_of
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.base import Body


@dataclass(slots=True, kw_only=True)
class TopicConfigList(Bean):
    """Body of 18. RocketMQ: CreateTopicListRequestBody."""

    topic_config_list: list[TopicConfig] = json_field(
        "topicConfigList", list_of(bean_of(TopicConfig)), list
    )


@dataclass(slots=True, kw_only=True)
class SubscriptionGroupList(Bean):
    """Body of 225."""

    group_config_list: list[SubscriptionGroupConfig] = json_field(
        "groupConfigList", list_of(bean_of(SubscriptionGroupConfig)), list
    )


class GroupForbidden(Body):
    """Answer of 353."""

    group: str = ""
    readable: bool | None = None
    topic: str = ""


class HAConnectionRuntimeInfo(Body):
    """One slave as its master sees it; sizes in bytes."""

    addr: str = ""
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0


class HAClientRuntimeInfo(Body):
    """A slave's own view; times in ms."""

    is_activated: bool = False
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_addr: str | None = None
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0


class HARuntimeInfo(Body):
    """Answer of 907."""

    ha_client_runtime_info: HAClientRuntimeInfo = msgspec.field(default_factory=HAClientRuntimeInfo)
    ha_connection_info: list[HAConnectionRuntimeInfo] = msgspec.field(default_factory=list)
    in_sync_slave_nums: int = 0
    master: bool = False
    master_commit_log_max_offset: int = 0


class UserInfo(Body):
    """A user: body of 3001 and 3002, answer of 3004; 3005 answers a list of them."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None


class PolicyEntryInfo(Body):
    """What a policy says about one resource."""

    actions: list[str] = msgspec.field(default_factory=list)
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyInfo(Body):
    """A policy."""

    entries: list[PolicyEntryInfo] = msgspec.field(default_factory=list)
    policy_type: str | None = None


class AclInfo(Body):
    """A subject's policies: body of 3006 and 3007, answer of 3009; 3010 answers a list of them."""

    policies: list[PolicyInfo] = msgspec.field(default_factory=list)
    subject: str | None = None
