"""subscriptionGroup.json: the consumer groups of a broker.

RocketMQ: SubscriptionGroupConfig, SubscriptionGroupWrapper. The same objects go over the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oberth.formats.bean import BOOL, INT, STR, Bean, bean_of, json_field, list_of, map_of
from oberth.formats.data_version import DataVersion
from oberth.formats.json_writer import InlineList
from oberth.formats.options import Line

CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"

DEFAULT_RETRY_DELAYS_MS: Final = tuple(
    seconds * 1000
    for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
    )
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class ExponentialRetryPolicy(Bean):
    """Delays in ms that grow by a factor up to a maximum."""

    initial: int = json_field("initial", INT, 5000)
    max: int = json_field("max", INT, 7_200_000)
    multiplier: int = json_field("multiplier", INT, 2)


@dataclass(slots=True, kw_only=True)
class CustomizedRetryPolicy(Bean):
    """Delays in ms, one for each attempt, the last for all further ones."""

    next: tuple[int, ...] = json_field("next", list_of(INT, tuple), DEFAULT_RETRY_DELAYS_MS)


@dataclass(slots=True, kw_only=True)
class GroupRetryPolicy(Bean):
    """When a message is tried again; only POP consumers go by it."""

    type: str = json_field("type", STR, CUSTOMIZED)
    exponential_retry_policy: ExponentialRetryPolicy | None = json_field(
        "exponentialRetryPolicy", bean_of(ExponentialRetryPolicy), None
    )
    customized_retry_policy: CustomizedRetryPolicy | None = json_field(
        "customizedRetryPolicy", bean_of(CustomizedRetryPolicy), None
    )


@dataclass(slots=True, kw_only=True)
class SimpleSubscriptionData(Bean):
    """A subscription that a group is bound to (useStaticSubscription)."""

    topic: str | None = json_field("topic", STR, None)
    expression_type: str | None = json_field("expressionType", STR, None)
    expression: str | None = json_field("expression", STR, None)
    version: int = json_field("version", INT, 0)


@dataclass(slots=True, kw_only=True)
class SubscriptionGroupConfig(Bean):
    """One consumer group of one broker.

    Attributes:
        group_name: its name.
        consume_enable: whether it may pull.
        consume_from_min_enable: whether a group without offset may start at the oldest message.
        consume_broadcast_enable: whether it may be a broadcasting one.
        consume_message_orderly: 5.x: POP delivers in order.
        retry_queue_nums: queues of its retry topic.
        retry_max_times: attempts until a message goes to the dead letters.
        group_retry_policy: 5.x: delays between attempts.
        broker_id: the broker to read from.
        which_broker_when_consume_slowly: the broker to read old messages from.
        notify_consumer_ids_changed_enable: whether members learn of each other's coming and going.
        group_sys_flag: 5.x: bits for clients.
        consume_timeout_minute: 5.x: minutes a message may be worked on.
        subscription_data_set: 5.x: what the group is bound to, or None.
        attributes: 5.x: further settings, as text.
    """

    group_name: str | None = json_field("groupName", STR, None)
    consume_enable: bool = json_field("consumeEnable", BOOL, True)
    consume_from_min_enable: bool = json_field("consumeFromMinEnable", BOOL, True)
    consume_broadcast_enable: bool = json_field("consumeBroadcastEnable", BOOL, True)
    consume_message_orderly: bool = json_field("consumeMessageOrderly", BOOL, False, line=Line.V5)
    retry_queue_nums: int = json_field("retryQueueNums", INT, 1)
    retry_max_times: int = json_field("retryMaxTimes", INT, 16)
    group_retry_policy: GroupRetryPolicy = json_field(
        "groupRetryPolicy", bean_of(GroupRetryPolicy), GroupRetryPolicy, line=Line.V5
    )
    broker_id: int = json_field("brokerId", INT, 0)
    which_broker_when_consume_slowly: int = json_field("whichBrokerWhenConsumeSlowly", INT, 1)
    notify_consumer_ids_changed_enable: bool = json_field(
        "notifyConsumerIdsChangedEnable", BOOL, True
    )
    group_sys_flag: int = json_field("groupSysFlag", INT, 0, line=Line.V5)
    consume_timeout_minute: int = json_field("consumeTimeoutMinute", INT, 15, line=Line.V5)
    subscription_data_set: list[SimpleSubscriptionData] | None = json_field(
        "subscriptionDataSet",
        list_of(bean_of(SimpleSubscriptionData), InlineList),
        None,
        line=Line.V5,
    )
    attributes: dict[str, str] = json_field("attributes", map_of(STR), dict, line=Line.V5)


@dataclass(slots=True, kw_only=True)
class SubscriptionGroups(Bean):
    """The file subscriptionGroup.json.

    Attributes:
        forbidden_table: 5.x: bits of what a group may not do with a topic, by group and topic.
    """

    data_version: DataVersion = json_field("dataVersion", bean_of(DataVersion), DataVersion)
    forbidden_table: dict[str, dict[str, int]] = json_field(
        "forbiddenTable", map_of(map_of(INT)), dict, line=Line.V5
    )
    subscription_group_table: dict[str, SubscriptionGroupConfig] = json_field(
        "subscriptionGroupTable", map_of(bean_of(SubscriptionGroupConfig)), dict
    )
