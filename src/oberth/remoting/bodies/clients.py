"""Bodies about clients and their groups: 34, 38, 41, 42, 46, 203, 204, 328."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec

from oberth.remoting.bodies.base import Body, MessageQueue

TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL_TAGS: Final = "*"


class ConsumeType(enum.StrEnum):
    """How a group gets its messages; in the order of Java's ordinals."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(enum.StrEnum):
    """Who of a group gets a message; in the order of Java's ordinals."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.StrEnum):
    """Where a group starts that has no offset; in the order of Java's ordinals."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


_ENUMS: Final[dict[str, type[enum.StrEnum]]] = {
    "consumeType": ConsumeType,
    "messageModel": MessageModel,
    "consumeFromWhere": ConsumeFromWhere,
}


def mend_enums(tree: dict[str, Any]) -> dict[str, Any]:
    """Ordinals (C++ clients send them) become names; names that nobody knows are left out."""
    for name, kind in _ENUMS.items():
        value = tree.get(name)
        if isinstance(value, int) and 0 <= value < len(kind):
            tree[name] = list(kind)[value].value
        elif value is not None and value not in list(kind):
            del tree[name]
    return tree


class SubscriptionData(Body):
    """A group's subscription to a topic.

    Attributes:
        class_filter_mode: obsolete.
        code_set: Java hash codes of the tags.
        expression_type: TAG or SQL92; absent means TAG.
        sub_string: the expression, ``*`` for everything.
        sub_version: grows when a client changes it.
        tags_set: the tags.
    """

    class_filter_mode: bool = False
    code_set: list[int] = msgspec.field(default_factory=list)
    expression_type: str = TAG
    filter_class_source: str | None = None
    sub_string: str = ""
    sub_version: int = 0
    tags_set: list[str] = msgspec.field(default_factory=list)
    topic: str = ""


class ProducerData(Body):
    """A producer group of a client."""

    group_name: str = ""


class ConsumerData(Body):
    """A consumer group of a client, with all its subscriptions."""

    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    group_name: str = ""
    message_model: MessageModel = MessageModel.CLUSTERING
    subscription_data_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Body):
    """Body of 34. ``without_sub``: the subscriptions are those of the last full heartbeat."""

    client_id: str = msgspec.field(default="", name="clientID")
    consumer_data_set: list[ConsumerData] = msgspec.field(default_factory=list)
    heartbeat_fingerprint: int = 0
    producer_data_set: list[ProducerData] = msgspec.field(default_factory=list)
    without_sub: bool = False

    @classmethod
    def _mend(cls, tree: dict[str, Any]) -> dict[str, Any]:
        consumers = tree.get("consumerDataSet")
        if isinstance(consumers, list):
            for consumer in consumers:
                if isinstance(consumer, dict):
                    mend_enums(consumer)
        return tree


class Connection(Body):
    """A client's connection; ``version`` is an ordinal."""

    client_addr: str = ""
    client_id: str = ""
    language: str = "OTHER"
    version: int = 0


class ConsumerConnection(Body):
    """Answer of 203. mqadmin calls methods on all but the sets: nothing may be missing."""

    connection_set: list[Connection] = msgspec.field(default_factory=list)
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)

    @classmethod
    def _mend(cls, tree: dict[str, Any]) -> dict[str, Any]:
        return mend_enums(tree)


class ProducerConnection(Body):
    """Answer of 204."""

    connection_set: list[Connection] = msgspec.field(default_factory=list)


class ProducerInfo(Body):
    """One producer of ProducerTableInfo."""

    client_id: str = ""
    language: str = "OTHER"
    last_update_timestamp: int = 0
    remote_ip: str = msgspec.field(default="", name="remoteIP")
    version: int = 0


class ProducerTableInfo(Body):
    """Answer of 328: producers by group."""

    data: dict[str, list[ProducerInfo]] = msgspec.field(default_factory=dict)


class GetConsumerListByGroupResponseBody(Body):
    """Answer of 38."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)


class LockBatchRequestBody(Body):
    """Body of 41 and 42."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = msgspec.field(default_factory=list)
    only_this_broker: bool = False


class LockBatchResponseBody(Body):
    """Answer of 41: the queues that the caller holds now."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")


class CheckClientRequestBody(Body):
    """Body of 46."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
