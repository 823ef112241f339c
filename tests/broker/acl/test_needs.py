"""What every request code needs: one table over all codes, and the bodies that are looked into."""

from __future__ import annotations

import json

import pytest

from oberth.broker.acl.needs import (
    ADMINISTRATOR,
    RESOURCES_MAX,
    Action,
    Kind,
    Need,
    TooManyResourcesError,
    needs_of,
)
from oberth.formats.json_reader import CONTAINERS_MAX
from oberth.formats.json_values import DEPTH_MAX
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.command import RemotingCommand

CLIENT = {
    "SEND_MESSAGE": "Topic:T Pub",
    "SEND_MESSAGE_V2": "Topic:T Pub",
    "SEND_BATCH_MESSAGE": "Topic:T Pub",
    "SEND_REPLY_MESSAGE": "Topic:T Pub",
    "SEND_REPLY_MESSAGE_V2": "Topic:T Pub",
    "CONSUMER_SEND_MSG_BACK": "Group:G Sub, Topic:REAL Sub",
    "END_TRANSACTION": "Topic:REAL Pub",
    "RECALL_MESSAGE": "Topic:T Pub",
    "PULL_MESSAGE": "Topic:T Sub, Group:G Sub",
    "LITE_PULL_MESSAGE": "Topic:T Sub, Group:G Sub",
    "QUERY_MESSAGE": "Topic:T Get|Sub",
    "VIEW_MESSAGE_BY_ID": "Topic:REAL Get|Sub",
    "HEART_BEAT": "Group:G Sub, Topic:T Sub",
    "UNREGISTER_CLIENT": "Group:G Sub",
    "CHECK_CLIENT_CONFIG": "Group:G Sub, Topic:T Sub",
    "GET_CONSUMER_LIST_BY_GROUP": "Group:G Get|Sub",
    "QUERY_CONSUMER_OFFSET": "Topic:T Get|Sub, Group:G Get|Sub",
    "UPDATE_CONSUMER_OFFSET": "Topic:T Sub, Group:G Sub",
    "SEARCH_OFFSET_BY_TIMESTAMP": "Topic:T Get|Pub|Sub",
    "GET_MAX_OFFSET": "Topic:T Get|Pub|Sub",
    "GET_MIN_OFFSET": "Topic:T Get|Pub|Sub",
    "GET_EARLIEST_MSG_STORETIME": "Topic:T Get|Pub|Sub",
    "LOCK_BATCH_MQ": "Group:G Sub, Topic:T Sub",
    "UNLOCK_BATCH_MQ": "Group:G Sub, Topic:T Sub",
    "POP_MESSAGE": "Topic:T Sub, Group:G Sub",
    "PEEK_MESSAGE": "Topic:T Sub, Group:G Sub",
    "ACK_MESSAGE": "Topic:T Sub, Group:G Sub",
    "BATCH_ACK_MESSAGE": "Group:G Sub, Topic:T Sub",
    "CHANGE_MESSAGE_INVISIBLETIME": "Topic:T Sub, Group:G Sub",
    "NOTIFICATION": "Topic:T Sub, Group:G Sub",
    "POLLING_INFO": "Topic:T Get|Sub, Group:G Get|Sub",
    "QUERY_ASSIGNMENT": "Topic:T Sub, Group:G Sub",
    "GET_TOPIC_CONFIG": "Topic:T Get|Pub|Sub",
    "GET_TOPIC_STATS_INFO": "Topic:T Get|Pub|Sub",
    "GET_PARENT_TOPIC_INFO": "Topic:T Get|Pub|Sub",
    "GET_LITE_TOPIC_INFO": "Topic:T Get|Pub|Sub",
    "QUERY_TOPIC_CONSUME_BY_WHO": "Topic:T Get|Sub",
    "QUERY_CONSUME_QUEUE": "Topic:T Get|Sub, Group:G Get|Sub",
    "GET_SUBSCRIPTIONGROUP_CONFIG": "Group:G Get|Sub",
    "GET_CONSUMER_CONNECTION_LIST": "Group:G Get|Sub",
    "GET_CONSUME_STATS": "Group:G Get|Sub, Topic:T Get|Pub|Sub",
    "QUERY_TOPICS_BY_CONSUMER": "Group:G Get|Sub",
    "QUERY_SUBSCRIPTION_BY_CONSUMER": "Group:G Get|Sub",
    "POP_LITE_MESSAGE": "Topic:T Sub, Group:G Sub",
    "LITE_SUBSCRIPTION_CTL": "Group:G Sub, Topic:T Sub",
    "GET_LITE_CLIENT_INFO": "Topic:T Get|Sub, Group:G Get|Sub",
    "GET_LITE_GROUP_INFO": "Group:G Get|Sub",
    "QUERY_CONSUME_TIME_SPAN": "Topic:T Get|Sub, Group:G Get|Sub",
    "QUERY_CORRECTION_OFFSET": "Topic:T Get|Sub, Group:G Get|Sub",
    "INVOKE_BROKER_TO_GET_CONSUMER_STATUS": "Topic:T Get|Sub, Group:G Get|Sub",
}
"""All codes that somebody who is no administrator may be allowed; the rest of them is closed."""

GRANTED = {
    "UPDATE_AND_CREATE_TOPIC": "Topic:T Create",
    "UPDATE_AND_CREATE_TOPIC_LIST": "Topic:T Create",
    "UPDATE_AND_CREATE_STATIC_TOPIC": "Topic:T Create",
    "DELETE_TOPIC_IN_BROKER": "Topic:T Delete",
    "OBERTH_PURGE_TOPIC": "Topic:T Delete",
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP": "Group:G Create",
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST": "Group:G Create",
    "DELETE_SUBSCRIPTIONGROUP": "Group:G Delete",
    "UPDATE_AND_GET_GROUP_FORBIDDEN": "Topic:T Update, Group:G Update",
    "INVOKE_BROKER_TO_RESET_OFFSET": "Topic:T Update, Group:G Update",
    "CLONE_GROUP_OFFSET": "Group:SOURCE Get|Sub, Group:G Update",
    "GET_CONSUMER_RUNNING_INFO": "Group:G Get",
    "CONSUME_MESSAGE_DIRECTLY": "Group:G Update, Topic:REAL Get|Sub",
    "TRIGGER_LITE_DISPATCH": "Group:G Update",
    "SET_MESSAGE_REQUEST_MODE": "Topic:T Update, Group:G Update",
    "GET_ALL_MESSAGE_REQUEST_MODE": "Group:* List",
    "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": "Group:* List",
    **dict.fromkeys(
        [
            "GET_ALL_TOPIC_CONFIG",
            "GET_TOPIC_CONFIG_LIST",
            "GET_TOPIC_NAME_LIST",
            "GET_SYSTEM_TOPIC_LIST_FROM_BROKER",
        ],
        "Topic:* List",
    ),
    **dict.fromkeys(
        [
            "GET_BROKER_CONFIG",
            "GET_BROKER_RUNTIME_INFO",
            "OBERTH_GET_RETENTION",
            "OBERTH_GET_LOG_CHECKSUMS",
            "GET_PRODUCER_CONNECTION_LIST",
            "GET_ALL_PRODUCER_INFO",
            "GET_ALL_CONSUMER_OFFSET",
            "GET_ALL_DELAY_OFFSET",
            "GET_TIMER_CHECK_POINT",
            "GET_TIMER_METRICS",
            "VIEW_BROKER_STATS_DATA",
            "GET_BROKER_CONSUME_STATS",
            "GET_BROKER_MEMBER_GROUP",
            "GET_BROKER_HA_STATUS",
            "GET_BROKER_EPOCH_CACHE",
            "GET_COLD_DATA_FLOW_CTR_INFO",
            "CHECK_ROCKSDB_CQ_WRITE_PROGRESS",
            "GET_BROKER_LITE_INFO",
        ],
        "Cluster:* Get",
    ),
    **dict.fromkeys(
        [
            "UPDATE_BROKER_CONFIG",
            "TRIGGER_DELETE_FILES",
            "CLEAN_EXPIRED_CONSUMEQUEUE",
            "DELETE_EXPIRED_COMMITLOG",
            "EXPORT_ROCKSDB_CONFIG_TO_JSON",
            "ADD_BROKER",
            "REMOVE_BROKER",
            "EXCHANGE_BROKER_HA_INFO",
            "RESET_MASTER_FLUSH_OFFSET",
            "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
            "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
            "SET_COMMITLOG_READ_MODE",
            "SWITCH_TIMER_ENGINE",
            "POP_ROLLBACK",
            "RESUME_CHECK_HALF_MESSAGE",
            "CLEAN_UNUSED_TOPIC",
        ],
        "Cluster:* Update",
    ),
}
"""Administration that a policy of 5.x can grant, and that in 4.x takes an administrator."""

BODIES = {
    Code.HEART_BEAT: {
        "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}]
    },
    Code.CHECK_CLIENT_CONFIG: {"group": "G", "subscriptionData": {"topic": "T"}},
    Code.LOCK_BATCH_MQ: {"consumerGroup": "G", "mqSet": [{"topic": "T"}]},
    Code.UNLOCK_BATCH_MQ: {"consumerGroup": "G", "mqSet": [{"topic": "T"}]},
    Code.QUERY_ASSIGNMENT: {"consumerGroup": "G", "topic": "T"},
    Code.LITE_SUBSCRIPTION_CTL: {"subscriptionSet": [{"group": "G", "topic": "T"}]},
    Code.SET_MESSAGE_REQUEST_MODE: {"consumerGroup": "G", "topic": "T"},
    Code.BATCH_ACK_MESSAGE: {"acks": [{"c": "G", "t": "T"}]},
    Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "T"}]},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "G"},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": "G"}]},
}

V2 = (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2)


def ordinary(code: Code) -> RemotingCommand:
    """A request for topic T and group G, in whatever field a code names them."""
    fields = {
        "b" if code in V2 else "topic": "T",
        "consumerGroup": "G",
        "group": "G",
        "groupName": "G",
        "compareGroup": "G",
        "destGroup": "G",
        "srcGroup": "SOURCE",
        "msgId": "7F00000100002A9F0000000000000005",
        "parentTopic": "T",
        "offset": "5",
        "commitLogOffset": "5",
    }
    body = json.dumps(BODIES[code]).encode() if code in BODIES else b""
    return RemotingCommand(code=code, ext_fields=fields, body=body)


def needs(request: RemotingCommand, real: str | None = "REAL") -> str:
    return ", ".join(
        f"{kind}:{name} {'|'.join(sorted(actions)) or 'administrator'}"
        for kind, name, actions in needs_of(request, lambda offset: real)
    )


@pytest.mark.parametrize("code", Code)
def test_every_code(code: Code) -> None:
    expected = (CLIENT | GRANTED).get(code.name, "Cluster:* administrator")
    assert needs(ordinary(code)) == expected


def test_codes_that_no_policy_grants() -> None:
    """Whoever may change users may do everything."""
    for code in (*range(50, 55), *range(3001, 3011), 1001, 77777):
        assert needs(RemotingCommand(code=code)) == "Cluster:* administrator"


def test_retry_topic_is_its_group() -> None:
    fields = {"topic": "%RETRY%G", "consumerGroup": "G"}
    assert needs(RemotingCommand(code=Code.PULL_MESSAGE, ext_fields=fields)) == (
        "Group:G Sub, Group:G Sub"
    )
    sent = RemotingCommand(code=Code.SEND_MESSAGE_V2, ext_fields={"a": "OTHER", "b": "%RETRY%G"})
    assert needs(sent) == "Group:G Sub"


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"]
)
def test_topics_of_the_broker_are_closed(topic: str) -> None:
    """They hold everybody's messages: delayed, half, on the wheel."""
    fields = {"topic": topic, "consumerGroup": "G"}
    for code in (Code.PULL_MESSAGE, Code.SEND_MESSAGE):
        command = RemotingCommand(code=code, ext_fields=fields)
        assert ADMINISTRATOR in needs_of(command, lambda offset: None)


def test_light_queues_of_a_message_count() -> None:
    fields = {"b": "T", "i": "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"}
    assert needs(RemotingCommand(code=310, ext_fields=fields)) == (
        "Topic:T Pub, Topic:%LMQ%a Pub, Topic:%LMQ%b Pub"
    )


def test_view_looks_at_the_record_and_not_at_the_request() -> None:
    fields = {"topic": "MINE", "offset": "5"}
    command = RemotingCommand(code=Code.VIEW_MESSAGE_BY_ID, ext_fields=fields)
    assert needs(command, "THEIRS") == "Topic:THEIRS Get|Sub"
    assert needs(command, None) == ""


def test_progress_in_topics_that_are_named_takes_a_right_to_them() -> None:
    fields = {"consumerGroup": "G", "topicList": "T;%RETRY%G;;U"}
    assert needs(RemotingCommand(code=Code.GET_CONSUME_STATS, ext_fields=fields)) == (
        "Group:G Get|Sub, Topic:T Get|Pub|Sub, Group:G Sub, Topic:U Get|Pub|Sub"
    )
    fields = {"consumerGroup": "G"}
    assert needs(RemotingCommand(code=Code.GET_CONSUME_STATS, ext_fields=fields)) == (
        "Group:G Get|Sub"
    )


@pytest.mark.parametrize(
    ("code", "field"), [(33, "offset"), (36, "offset"), (37, "commitLogOffset")]
)
def test_a_place_is_found_however_it_is_spelled(code: int, field: str) -> None:
    """Headers are read with blanks around numbers: a blank hid whose message it is."""

    def at(text: str) -> str:
        request = RemotingCommand(code=code, ext_fields={"group": "G", field: text})
        return needs(request)

    assert "Topic:REAL" in at("5")
    for text in (" 5", "5 ", "\t5\r\n", "+5", "005", "\u20035"):
        assert at(text) == at("5"), repr(text)
    for text in ("5.0", "5e0", "5_0", "0x5", "\u0665", "5L", "", "five", "9" * 30):
        assert "Topic:* " in at(text), text
    assert "Topic" not in at("-1")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"consumerDataSet": 3}', b"\xff" * 9])
def test_a_body_that_cannot_be_read_needs_everything(body: bytes) -> None:
    assert list(needs_of(RemotingCommand(code=34, body=body), lambda offset: None)) == [
        ADMINISTRATOR
    ]


@pytest.mark.parametrize(
    "body",
    [
        b'{"consumerDataSet":[{"groupName":{"$ref":"$.other"}}],"other":"THEIRS"}',
        b'{"consumerDataSet":[{"$ref":"$.other"}],"other":{"groupName":"THEIRS"}}',
        b'{"consumerDataSet":[],"x":'
        + b"[" * (DEPTH_MAX - 1)
        + b"1"
        + b"]" * (DEPTH_MAX - 1)
        + b"}",
        b'{"consumerDataSet":[' + b"[]," * CONTAINERS_MAX + b"[]]}",
    ],
)
def test_references_and_very_many_objects_are_not_looked_into(body: bytes) -> None:
    assert list(needs_of(RemotingCommand(code=34, body=body), lambda offset: None)) == [
        ADMINISTRATOR
    ]


def naming(count: int, *, same: bool = False) -> list[RemotingCommand]:
    """A request of each kind that names many topics or groups."""
    found = [f"T{0 if same else number}" for number in range(count)]
    bodies = {
        Code.HEART_BEAT: {
            "consumerDataSet": [
                {"groupName": "G", "subscriptionDataSet": [{"topic": each} for each in found]}
            ]
        },
        Code.LOCK_BATCH_MQ: {"consumerGroup": "G", "mqSet": [{"topic": each} for each in found]},
        Code.LITE_SUBSCRIPTION_CTL: {
            "subscriptionSet": [{"topic": "T", "group": each} for each in found]
        },
        Code.BATCH_ACK_MESSAGE: {"acks": [{"t": each, "c": "G"} for each in found]},
        Code.UPDATE_AND_CREATE_TOPIC_LIST: {
            "topicConfigList": [{"topicName": each} for each in found]
        },
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {
            "groupConfigList": [{"groupName": each} for each in found]
        },
    }
    fields = {
        Code.SEND_MESSAGE_V2: {"b": "T", "i": f"INNER_MULTI_DISPATCH\x01{','.join(found)}\x02"},
        Code.GET_CONSUME_STATS: {"consumerGroup": "G", "topicList": ";".join(found)},
    }
    return [
        *(RemotingCommand(code=code, body=json.dumps(bodies[code]).encode()) for code in bodies),
        *(RemotingCommand(code=code, ext_fields=fields[code]) for code in fields),
    ]


def test_so_many_resources_are_looked_at() -> None:
    for request in naming(RESOURCES_MAX + 1):
        with pytest.raises(TooManyResourcesError, match=f"allowed are {RESOURCES_MAX}"):
            needs_of(request, lambda offset: None)
    for request in naming(RESOURCES_MAX - 1):
        assert len(list(needs_of(request, lambda offset: None))) <= RESOURCES_MAX
    for request in naming(RESOURCES_MAX + 1, same=True):
        assert len(list(needs_of(request, lambda offset: None))) <= 2


def test_a_missing_name_is_no_way_around() -> None:
    command = RemotingCommand(code=Code.PULL_MESSAGE, ext_fields={})
    assert list(needs_of(command, lambda offset: None)) == [
        Need(Kind.TOPIC, "*", frozenset({Action.SUB})),
        Need(Kind.GROUP, "*", frozenset({Action.SUB})),
    ]


def test_a_name_given_twice_is_the_one_that_the_handler_takes() -> None:
    from oberth.remoting.bodies.pop import QueryAssignmentRequestBody

    body = b'{"consumerGroup":"G","topic":"MINE","topic":"THEIRS"}'
    taken = QueryAssignmentRequestBody.decode(body).topic
    assert f"Topic:{taken} Sub" in needs(RemotingCommand(code=400, body=body))


@pytest.mark.parametrize(
    ("real", "group"),
    [
        ("%RETRY%g", "g"), ("%RETRY%g2", "g2"), ("%RETRY%g_T", "g_T"), ("%RETRY%g+T", "g"),
        ("%RETRY%gg+T", "gg"), ("%RETRY%", "*"),
    ],
)  # fmt: skip
def test_a_retry_topic_is_that_of_its_group_alone(real: str, group: str) -> None:
    request = RemotingCommand(
        code=Code.CONSUMER_SEND_MSG_BACK, ext_fields={"group": "g", "offset": "0"}
    )
    may_read = frozenset({Action.SUB})
    assert list(needs_of(request, lambda offset: real)) == [
        Need(Kind.GROUP, "g", may_read),
        Need(Kind.GROUP, group, may_read),
    ]


@pytest.mark.parametrize("code", [Code.ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME])
@pytest.mark.parametrize(
    ("topic", "group", "needed"),
    [
        ("%RETRY%G_T", "G", "Topic:T Sub, Group:G Sub"),
        ("%RETRY%G_T", "G_T", "Group:G_T Sub, Group:G_T Sub"),
        ("%RETRY%G_%RETRY%H", "G", "Group:H Sub, Group:G Sub"),
        ("%RETRY%G+T", "G", "Group:G Sub, Group:G Sub"),
        ("%RETRY%H_T", "G", "Group:H_T Sub, Group:G Sub"),
        ("%RETRY%G_", "G", "Topic:* Sub, Group:G Sub"),
        ("%RETRY%_T", "", "Group:_T Sub, Group:* Sub"),
    ],
)
def test_a_handle_of_a_message_that_comes_again(
    code: Code, topic: str, group: str, needed: str
) -> None:
    fields = {"topic": topic, "consumerGroup": group}
    assert needs(RemotingCommand(code=code, ext_fields=fields)) == needed
