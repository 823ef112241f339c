"""What every request needs: the resources it touches, and what it does to them.

Each code has its row in `TABLE`; a code without one (a new one, one that brokers send to clients)
needs an administrator. A need is met by any one of its actions; a need without actions is met by
administrators only. RocketMQ: the annotations ``RocketMQAction`` and ``RocketMQResource``;
PlainPermissionManager.

    a field or body that cannot be read    the resource "*": a grant for all that denies none
    %RETRY%g                               the group g, to be consumed
    %LMQ%$t$l, of a lite topic             its parent, the topic t
    the broker's own topics                an administrator, but for traces and the default topic

Bodies are looked into only where the resource stands nowhere else. A request that names more than
RESOURCES_MAX different ones is refused: to look at them would keep all others waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from oberth.errors import ConfigFormatError, FormatError, RemoteProtocolError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import java_long
from oberth.formats.json_reader import parse_proper
from oberth.formats.message_id import decode_offset_message_id
from oberth.formats.properties import decode_properties
from oberth.remoting.bodies.base import BodyError, checked_list
from oberth.remoting.bodies.pop import BatchAckMessageRequestBody
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.command import RemotingCommand


class Kind(StrEnum):
    """What a permission is about."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Action(StrEnum):
    """What is done; spelled as policies are."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Need(NamedTuple):
    """One thing that a request needs: any of ``actions`` on a resource."""

    kind: Kind
    name: str
    actions: frozenset[Action]


ANY_NAME: Final = "*"
"""In a need: all resources of a kind."""

_PUB: Final = frozenset({Action.PUB})
_SUB: Final = frozenset({Action.SUB})
_CREATE: Final = frozenset({Action.CREATE})
_UPDATE: Final = frozenset({Action.UPDATE})
_DELETE: Final = frozenset({Action.DELETE})
_GET: Final = frozenset({Action.GET})
_LIST: Final = frozenset({Action.LIST})
_READ: Final = frozenset({Action.SUB, Action.GET})
_USE: Final = frozenset({Action.PUB, Action.SUB, Action.GET})

RESOURCES_MAX: Final = 5000
"""Different topics and groups of one request: to look at them takes some 10 ms. As many topics are
made by one request (217); a client of 500 groups with three topics each names 2 000."""

ADMINISTRATOR: Final = Need(Kind.CLUSTER, ANY_NAME, frozenset())

OPEN_SYSTEM_TOPICS: Final = frozenset(
    {
        names.AUTO_CREATE_TOPIC_KEY,
        names.BENCHMARK_TOPIC,
        names.SELF_TEST_TOPIC,
        names.TRACE_TOPIC,
    }
)
"""Topics of the broker that are used like any other."""

RealTopic: TypeAlias = Callable[[int], str | None]
"""Gives the topic of the record at a CommitLog offset, what its sender called it; ANY_NAME where
one may come before the request is served."""

Rule: TypeAlias = Callable[[RemotingCommand, RealTopic], Iterable[Need]]


def topic_need(topic: str, actions: frozenset[Action]) -> Need:
    """What it needs to do something to a topic; a lite topic belongs to its parent."""
    topic = _parent_of(topic)
    if topic.startswith(names.RETRY_PREFIX) and not actions.isdisjoint(_USE):
        # No group's name holds the "+" of %RETRY%g+topic, where POP's messages wait for g.
        group, _, _ = topic.removeprefix(names.RETRY_PREFIX).partition("+")
        return Need(Kind.GROUP, group or ANY_NAME, _SUB)
    if names.is_system_topic(topic) and topic not in OPEN_SYSTEM_TOPICS:
        return ADMINISTRATOR
    return Need(Kind.TOPIC, topic, actions)


def _parent_of(topic: str) -> str:
    """The topic that a light queue's lite topic belongs to; any other name itself."""
    lite = names.split_lite_queue(topic)
    return topic if lite is None else lite[0]


def group_need(group: str, actions: frozenset[Action]) -> Need:
    """What it needs to do something to a group."""
    return Need(Kind.GROUP, group.removeprefix(names.RETRY_PREFIX), actions)


def _needs_of_names(
    topics: Iterable[str],
    topic_actions: frozenset[Action],
    groups: Iterable[str] = (),
    group_actions: frozenset[Action] = _SUB,
) -> list[Need]:
    """What it needs to do something to as many topics and groups as a request names."""
    different = dict.fromkeys(topics), dict.fromkeys(groups)
    count = len(different[0]) + len(different[1])
    if count > RESOURCES_MAX:
        raise TooManyResourcesError(count)
    return [
        *(group_need(group, group_actions) for group in different[1]),
        *(topic_need(topic, topic_actions) for topic in different[0]),
    ]


def _fixed(*needs: Need) -> Rule:
    return lambda request, real_topic: needs


def _of(
    topic_actions: frozenset[Action] | None = None,
    group_actions: frozenset[Action] | None = None,
    *,
    topic: str = "topic",
    group: str = "consumerGroup",
    optional: bool = False,
) -> Rule:
    """Needs for a topic and a group that fields name; ``optional``: only for those that do."""

    def needs(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
        fields = request.fields
        found = []
        if topic_actions is not None:
            name = fields.get(topic, "")
            if name or not optional:
                found.append(topic_need(name or ANY_NAME, topic_actions))
        if group_actions is not None:
            name = fields.get(group, "")
            if name or not optional:
                found.append(group_need(name or ANY_NAME, group_actions))
        return found

    return needs


def _sending(topic_field: str, properties_field: str) -> Rule:
    def needs(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
        fields = request.fields
        found = [topic_need(fields.get(topic_field) or ANY_NAME, _PUB)]
        properties = fields.get(properties_field)
        if properties and p.INNER_MULTI_DISPATCH in properties:
            # The message also lands in the light queues that it names.
            queues = decode_properties(properties.encode("utf-8", "replace")).get(
                p.INNER_MULTI_DISPATCH, ""
            )
            found += _needs_of_names(
                (_parent_of(each) for each in dict.fromkeys(queues.split(",")) if each), _PUB
            )
        return found

    return needs


def _send_back(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    """36 puts the record at an offset where the group reads it: so it must be one it may read."""
    fields = request.fields
    group = fields.get("group") or ANY_NAME
    found = [group_need(group, _SUB)]
    topic = _topic_at(fields.get("offset"), real_topic)
    if topic is not None:
        found.append(topic_need(topic, _SUB))
    return found


def _view(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    """33: what counts is the record's topic, not the one that the request names."""
    topic = _topic_at(request.fields.get("offset"), real_topic)
    return [] if topic is None else [topic_need(topic, _READ)]


def _consume_directly(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    """309 shows a client of the group the message that an id names, wherever it lies."""
    fields = request.fields
    found = [group_need(fields.get("consumerGroup") or ANY_NAME, _UPDATE)]
    try:
        offset = decode_offset_message_id(fields.get("msgId") or "").commit_log_offset
    except FormatError:
        return found
    topic = real_topic(offset)
    if topic is not None:
        found.append(topic_need(topic, _READ))
    return found


def _clone_offsets(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    """314: who copies where a group stands, reads it."""
    fields = request.fields
    return [
        group_need(fields.get("srcGroup") or ANY_NAME, _READ),
        group_need(fields.get("destGroup") or ANY_NAME, _UPDATE),
    ]


def _handle(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    """Of a message that comes again after a pop the retry topic is named: what counts is its own.

    %RETRY%g_t could be the retry topic of a group g_t, too; but g has its own state there.
    """
    fields = request.fields
    topic, group = fields.get("topic", ""), fields.get("consumerGroup", "")
    if group:
        topic = topic.removeprefix(names.pop_retry_topic("", group))
    return [topic_need(topic or ANY_NAME, _SUB), group_need(group or ANY_NAME, _SUB)]


def _consume_stats(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    """208 shows where the queues of the topics that it names end, whoever reads them."""
    fields = request.fields
    topics = [fields.get("topic", ""), *fields.get("topicList", "").split(";")]
    return [
        group_need(fields.get("consumerGroup") or ANY_NAME, _READ),
        *_needs_of_names((topic for topic in topics if topic), _USE),
    ]


def _consume_queue(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    """321 shows what the group that it may name subscribes to, too."""
    fields = request.fields
    found = [topic_need(fields.get("topic") or ANY_NAME, _READ)]
    if group := fields.get("consumerGroup"):
        found.append(group_need(group, _READ))
    return found


def _end_transaction(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    topic = _topic_at(request.fields.get("commitLogOffset"), real_topic)
    return [] if topic is None else [topic_need(topic, _PUB)]


def _topic_at(offset: str | None, real_topic: RealTopic) -> str | None:
    """The topic of the record that a field names; of what reads otherwise elsewhere: any."""
    if offset is None:
        return None  # nothing is served
    number = java_long(offset.strip(), None)  # headers are read with blanks around numbers
    if number is None:
        return ANY_NAME
    return None if number < 0 else real_topic(number)


def _heartbeat(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    consumers = _items(_body(request), "consumerDataSet")
    topics = [
        _text(each, "topic")
        for consumer in consumers
        for each in _items(consumer, "subscriptionDataSet")
    ]
    return _needs_of_names(topics, _SUB, [_text(each, "groupName") for each in consumers])


def _client_config(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    body = _body(request)
    subscription = body.get("subscriptionData")
    found = [group_need(_text(body, "group"), _SUB)]
    if isinstance(subscription, dict):
        found.append(topic_need(_text(subscription, "topic"), _SUB))
    return found


def _locks(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    body = _body(request)
    topics = [_text(queue, "topic") for queue in _items(body, "mqSet")]
    return _needs_of_names(topics, _SUB, [_text(body, "consumerGroup")])


def _assignment(actions: frozenset[Action]) -> Rule:
    def needs(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
        body = _body(request)
        return [
            topic_need(_text(body, "topic"), actions),
            group_need(_text(body, "consumerGroup"), actions),
        ]

    return needs


def _lite_subscriptions(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    entries = _items(_body(request), "subscriptionSet")
    return _needs_of_names(
        [_text(each, "topic") for each in entries],
        _SUB,
        [_text(each, "group") for each in entries],
    )


def _batch_ack(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    acks = BatchAckMessageRequestBody.decode(
        checked_list(request.body_bytes(), "BatchAckMessageRequestBody")
    ).acks
    return _needs_of_names(
        [ack.t or ANY_NAME for ack in acks], _SUB, [ack.c or ANY_NAME for ack in acks]
    )


def _topic_list(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    entries = _items(_body(request), "topicConfigList")
    return _needs_of_names([_text(each, "topicName") for each in entries], _CREATE) or [
        Need(Kind.TOPIC, ANY_NAME, _CREATE)
    ]


def _group_update(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    return [group_need(_text(_body(request), "groupName"), _CREATE)]


def _group_list(request: RemotingCommand, real_topic: RealTopic) -> list[Need]:
    entries = _items(_body(request), "groupConfigList")
    groups = [_text(each, "groupName") for each in entries]
    return _needs_of_names((), _CREATE, groups, _CREATE) or [Need(Kind.GROUP, ANY_NAME, _CREATE)]


def _body(request: RemotingCommand) -> dict[str, Any]:
    """A JSON body. What strict JSON does not take is not looked into: it needs everything.

    So do fastjson's references: to some handlers they stand for a name that is written elsewhere.
    """
    try:
        # As the handlers read it: of a key given twice both take the same value.
        body = parse_proper(request.body_bytes(), name="body")
    except ConfigFormatError:
        raise UnreadableBodyError from None
    if not isinstance(body, dict):
        raise UnreadableBodyError
    return body


class UnreadableBodyError(Exception):
    """A body whose resources are not known."""


class TooManyResourcesError(RemoteProtocolError):
    """A request names more resources than are looked at."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"the request names {count} topics and groups, allowed are {RESOURCES_MAX}"
        )


def _items(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = body.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UnreadableBodyError
    return found


def _text(body: dict[str, Any], name: str) -> str:
    found = body.get(name)
    return found if isinstance(found, str) and found else ANY_NAME


_NOBODY: Final = _fixed(ADMINISTRATOR)
_CLUSTER_GET: Final = _fixed(Need(Kind.CLUSTER, ANY_NAME, _GET))
_CLUSTER_UPDATE: Final = _fixed(Need(Kind.CLUSTER, ANY_NAME, _UPDATE))
_TOPICS_LIST: Final = _fixed(Need(Kind.TOPIC, ANY_NAME, _LIST))
_GROUPS_LIST: Final = _fixed(Need(Kind.GROUP, ANY_NAME, _LIST))

TABLE: Final[dict[int, Rule]] = {
    # Sending
    Code.SEND_MESSAGE: _sending("topic", "properties"),
    Code.SEND_MESSAGE_V2: _sending("b", "i"),
    Code.SEND_BATCH_MESSAGE: _sending("b", "i"),
    Code.SEND_REPLY_MESSAGE: _sending("topic", "properties"),
    Code.SEND_REPLY_MESSAGE_V2: _sending("b", "i"),
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.END_TRANSACTION: _end_transaction,
    Code.RECALL_MESSAGE: _of(_PUB),
    # Consuming
    Code.PULL_MESSAGE: _of(_SUB, _SUB),
    Code.LITE_PULL_MESSAGE: _of(_SUB, _SUB),
    Code.QUERY_MESSAGE: _of(_READ),
    Code.VIEW_MESSAGE_BY_ID: _view,
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _of(None, _SUB, optional=True),
    Code.CHECK_CLIENT_CONFIG: _client_config,
    Code.GET_CONSUMER_LIST_BY_GROUP: _of(None, _READ),
    Code.QUERY_CONSUMER_OFFSET: _of(_READ, _READ),
    Code.UPDATE_CONSUMER_OFFSET: _of(_SUB, _SUB),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _of(_USE),
    Code.GET_MAX_OFFSET: _of(_USE),
    Code.GET_MIN_OFFSET: _of(_USE),
    Code.GET_EARLIEST_MSG_STORETIME: _of(_USE),
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.POP_MESSAGE: _of(_SUB, _SUB),
    Code.PEEK_MESSAGE: _of(_SUB, _SUB),
    Code.ACK_MESSAGE: _handle,
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _handle,
    Code.NOTIFICATION: _of(_SUB, _SUB),
    Code.POLLING_INFO: _of(_READ, _READ),
    Code.QUERY_ASSIGNMENT: _assignment(_SUB),
    Code.POP_LITE_MESSAGE: _of(_SUB, _SUB),
    Code.LITE_SUBSCRIPTION_CTL: _lite_subscriptions,
    # Topics
    Code.UPDATE_AND_CREATE_TOPIC: _of(_CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _of(_CREATE),
    Code.DELETE_TOPIC_IN_BROKER: _of(_DELETE),
    Code.OBERTH_PURGE_TOPIC: _of(_DELETE),
    Code.GET_ALL_TOPIC_CONFIG: _TOPICS_LIST,
    Code.GET_TOPIC_CONFIG_LIST: _TOPICS_LIST,
    Code.GET_TOPIC_NAME_LIST: _TOPICS_LIST,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _TOPICS_LIST,
    Code.GET_TOPIC_CONFIG: _of(_USE),
    Code.GET_TOPIC_STATS_INFO: _of(_USE),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _of(_READ),
    Code.QUERY_CONSUME_QUEUE: _consume_queue,
    Code.RESUME_CHECK_HALF_MESSAGE: _CLUSTER_UPDATE,
    Code.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    # Groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_update,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
    Code.DELETE_SUBSCRIPTIONGROUP: _of(None, _DELETE, group="groupName"),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _GROUPS_LIST,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _of(None, _READ, group="group"),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _of(_UPDATE, _UPDATE, group="group"),
    Code.GET_CONSUMER_CONNECTION_LIST: _of(None, _READ),
    Code.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    Code.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    Code.GET_CONSUME_STATS: _consume_stats,
    Code.QUERY_TOPICS_BY_CONSUMER: _of(None, _READ, group="group"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _of(None, _READ, group="group"),
    Code.QUERY_CONSUME_TIME_SPAN: _of(_READ, _READ, group="group"),
    Code.QUERY_CORRECTION_OFFSET: _of(_READ, _READ, group="compareGroup"),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _of(_UPDATE, _UPDATE, group="group"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of(_READ, _READ, group="group"),
    Code.CLONE_GROUP_OFFSET: _clone_offsets,
    Code.GET_CONSUMER_RUNNING_INFO: _of(None, _GET),
    Code.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    Code.SET_MESSAGE_REQUEST_MODE: _assignment(_UPDATE),
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _GROUPS_LIST,
    Code.POP_ROLLBACK: _CLUSTER_UPDATE,
    Code.GET_PARENT_TOPIC_INFO: _of(_USE),
    Code.GET_LITE_TOPIC_INFO: _of(_USE, topic="parentTopic"),
    Code.GET_LITE_CLIENT_INFO: _of(_READ, _READ, topic="parentTopic", group="group"),
    Code.GET_LITE_GROUP_INFO: _of(None, _READ, group="group"),
    Code.TRIGGER_LITE_DISPATCH: _of(None, _UPDATE, group="group"),
    # The broker, read
    Code.GET_BROKER_CONFIG: _CLUSTER_GET,
    Code.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    Code.OBERTH_GET_RETENTION: _CLUSTER_GET,
    Code.OBERTH_GET_LOG_CHECKSUMS: _CLUSTER_GET,
    Code.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    Code.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    Code.GET_TIMER_CHECK_POINT: _CLUSTER_GET,
    Code.GET_TIMER_METRICS: _CLUSTER_GET,
    Code.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    Code.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    Code.GET_BROKER_MEMBER_GROUP: _CLUSTER_GET,
    Code.GET_BROKER_HA_STATUS: _CLUSTER_GET,
    Code.GET_BROKER_EPOCH_CACHE: _CLUSTER_GET,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _CLUSTER_GET,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _CLUSTER_GET,
    Code.GET_BROKER_LITE_INFO: _CLUSTER_GET,
    # The broker, changed
    Code.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    Code.TRIGGER_DELETE_FILES: _CLUSTER_UPDATE,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    Code.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _CLUSTER_UPDATE,
    Code.ADD_BROKER: _CLUSTER_UPDATE,
    Code.REMOVE_BROKER: _CLUSTER_UPDATE,
    Code.EXCHANGE_BROKER_HA_INFO: _CLUSTER_UPDATE,
    Code.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CLUSTER_UPDATE,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CLUSTER_UPDATE,
    Code.SET_COMMITLOG_READ_MODE: _CLUSTER_UPDATE,
    Code.SWITCH_TIMER_ENGINE: _CLUSTER_UPDATE,
    # Users and accounts: a right to change these is a right to everything; no policy grants it.
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _NOBODY,
    Code.DELETE_ACL_CONFIG: _NOBODY,
    Code.GET_BROKER_CLUSTER_ACL_INFO: _NOBODY,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _NOBODY,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _NOBODY,
    Code.AUTH_CREATE_USER: _NOBODY,
    Code.AUTH_UPDATE_USER: _NOBODY,
    Code.AUTH_DELETE_USER: _NOBODY,
    Code.AUTH_GET_USER: _NOBODY,
    Code.AUTH_LIST_USER: _NOBODY,
    Code.AUTH_CREATE_ACL: _NOBODY,
    Code.AUTH_UPDATE_ACL: _NOBODY,
    Code.AUTH_DELETE_ACL: _NOBODY,
    Code.AUTH_GET_ACL: _NOBODY,
    Code.AUTH_LIST_ACL: _NOBODY,
}


def needs_of(request: RemotingCommand, real_topic: RealTopic) -> Iterable[Need]:
    """What a request needs; nothing: only that its sender is known.

    Raises:
        TooManyResourcesError: it names more than RESOURCES_MAX.
    """
    rule = TABLE.get(request.code)
    if rule is None:
        return (ADMINISTRATOR,)
    try:
        return rule(request, real_topic)
    except (UnreadableBodyError, BodyError):
        return (ADMINISTRATOR,)
