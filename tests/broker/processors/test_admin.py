"""Administration over a socket: topics, groups, progress, configuration, queries, relayed calls."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from oberth.broker import consumer_offsets
from oberth.broker.config_changes import is_secret
from oberth.broker.processors import admin_broker, admin_offsets, admin_topics
from oberth.broker.processors.admin_broker import CHANGEABLE_KEYS, UNUSED_KEYS
from oberth.broker.processors.admin_offsets import STATS_A_TURN, OffsetAdminProcessor
from oberth.broker.stats import TOPIC_PUT_NUMS
from oberth.formats import names
from oberth.formats.config_json import ObjectKey, encode_config, parse_config
from oberth.formats.java_properties import parse_properties
from oberth.formats.message import decode_record
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.bodies.base import ANSWER_SIZE_MAX, MessageQueue
from oberth.remoting.bodies.offsets import GetConsumerStatusBody
from oberth.remoting.bodies.stats import ConsumeStatsList, OffsetWrapper
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_response


def topic_fields(topic: str, **more: str) -> dict[str, str]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
        **more,
    }


def queues(table: dict[Any, Any]) -> dict[tuple[str, int], Any]:
    """A table by (topic, queue id)."""
    found = {}
    for key, value in table.items():
        assert isinstance(key, ObjectKey)
        found[key["topic"], key["queueId"]] = value
    return found


# ------------------------------------------------------------------------------------- topics


async def test_topics_are_made_changed_and_deleted(live: Any) -> None:
    call = live.peer.call
    assert (await call(17, topic_fields("T", readQueueNums="2", writeQueueNums="3"))).code == 0
    found = live.broker.parts.topics.get("T")
    assert (found.read_queue_nums, found.write_queue_nums) == (2, 3)
    version = live.broker.parts.topics.data_version
    assert (await call(17, topic_fields("T", readQueueNums="2", writeQueueNums="3"))).code == 0
    assert live.broker.parts.topics.data_version == version
    assert (await call(17, topic_fields("T", perm="4"))).code == 0
    await live.restart()
    assert live.broker.parts.topics.get("T").perm == 4
    assert (await live.peer.call(215, {"topic": "T"})).code == 0
    assert live.broker.parts.topics.get("T") is None
    assert (await live.peer.call(351, {"topic": "T"})).code == 17
    await live.restart()
    assert live.broker.parts.topics.get("T") is None


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "bad name"}, 29),
        ({"topic": "../x"}, 29),
        ({"topic": "TBW102"}, 29),
        ({"topic": "rmq_sys_mine"}, 29),
        ({"readQueueNums": "70000"}, 29),
        ({"perm": "99"}, 29),
        ({"attributes": "+message.type=MIXED"}, 29),
        ({"attributes": "+unknown=1"}, 1),
        ({"attributes": "-message.type"}, 1),
        ({"attributes": "message.type=FIFO"}, 1),
        ({"attributes": "+message.type=HUH"}, 1),
        ({"readQueueNums": "many"}, 1),
    ],
)
async def test_topics_that_are_refused(live: Any, more: dict[str, str], code: int) -> None:
    response = await live.peer.call(17, topic_fields("T") | more)
    assert response.code == code
    assert response.remark


async def test_attributes_change_by_signs(live: Any) -> None:
    call = live.peer.call
    attributes = "+message.type=FIFO,+queue.type=SimpleCQ"
    assert (await call(17, topic_fields("T", attributes=attributes))).code == 0
    assert live.broker.parts.topics.get("T").attributes == {
        "message.type": "FIFO",
        "queue.type": "SimpleCQ",
    }
    assert (await call(17, topic_fields("T", attributes="-queue.type"))).code == 1
    assert (await call(17, topic_fields("T", attributes="-message.type"))).code == 0
    assert live.broker.parts.topics.get("T").attributes == {"queue.type": "SimpleCQ"}


async def test_lists_of_topics_and_groups(live: Any) -> None:
    topics = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2} for name in "AB"]
    body = json.dumps({"topicConfigList": topics}).encode()
    assert (await live.peer.call(18, {}, body)).code == 0
    assert live.broker.parts.topics.get("B").read_queue_nums == 2
    body = json.dumps({"groupConfigList": [{"groupName": "G1"}, {"groupName": "G 2"}]}).encode()
    assert (await live.peer.call(225, {}, body)).code == 29
    assert live.broker.parts.groups.get("G1") is not None
    assert (await live.peer.call(18, {}, b"[")).code == 1


async def test_deleting_a_topic_takes_its_offsets_along(live: Any) -> None:
    await live.peer.send("T")
    live.broker.parts.offsets.commit("G", "T", 0, 1, 1)
    live.broker.parts.groups.set_readable("G", "T", False)
    stats = live.broker.parts.stats
    assert stats.find(TOPIC_PUT_NUMS, "T") is not None
    assert (await live.peer.call(215, {"topic": "T"})).code == 0
    assert stats.find(TOPIC_PUT_NUMS, "T") is None
    assert live.broker.parts.offsets.query("G", "T", 0) == -1
    assert live.broker.parts.groups.is_readable("G", "T")
    assert live.broker.parts.store.max_offset_in_queue("T", 0) == 0
    for name in ("TBW102", "", "a/b"):
        assert (await live.peer.call(215, {"topic": name})).code == 29


async def test_topic_statistics(live: Any) -> None:
    for _ in range(3):
        await live.peer.send("T", b"x", 1)
    body = parse_config((await live.peer.call(202, {"topic": "T"})).body_bytes())
    table = queues(body["offsetTable"])
    assert len(table) == 4
    assert table["T", 1]["maxOffset"] == 3
    assert table["T", 1]["lastUpdateTimestamp"] > 0
    assert table["T", 0] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    assert (await live.peer.call(202, {"topic": "U"})).code == 17


async def test_who_consumes_a_topic(live: Any) -> None:
    await live.peer.send("T")
    live.broker.parts.offsets.commit("offline", "T", 0, 1, 1)
    await live.peer.heartbeat("online", {"T": "*"})
    body = json.loads((await live.peer.call(300, {"topic": "T"})).body_bytes())
    assert sorted(body["groupList"]) == ["offline", "online"]
    assert "%RETRY%online" in [each.topic_name for each in live.broker.parts.topics]
    assert json.loads((await live.peer.call(343, {"group": "offline"})).body_bytes()) == {
        "topicList": ["T"]
    }


async def test_system_topics_and_cleaning(live: Any) -> None:
    body = json.loads((await live.peer.call(305)).body_bytes())
    assert "SCHEDULE_TOPIC_XXXX" in body["topicList"]
    await live.peer.send("T")
    for code in (306, 316, 329):
        assert (await live.peer.call(code)).code == 0
    assert live.broker.parts.store.max_offset_in_queue("T", 0) == 1


# ------------------------------------------------------------------------------------- groups


async def test_groups_are_made_changed_and_deleted(live: Any) -> None:
    body = json.dumps({"groupName": "G", "retryMaxTimes": 3, "consumeEnable": False}).encode()
    assert (await live.peer.call(200, {}, body)).code == 0
    await live.restart()
    shown = json.loads((await live.peer.call(352, {"group": "G"})).body_bytes())
    assert (shown["retryMaxTimes"], shown["consumeEnable"]) == (3, False)
    live.broker.parts.offsets.commit("G", "T", 0, 1, 1)
    assert (await live.peer.call(207, {"groupName": "G", "cleanOffset": "false"})).code == 0
    assert live.broker.parts.offsets.query("G", "T", 0) == 1
    assert (await live.peer.call(207, {"groupName": "G", "cleanOffset": "true"})).code == 0
    assert live.broker.parts.offsets.query("G", "T", 0) == -1
    assert (await live.peer.call(352, {"group": "G"})).code == 26


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"groupName":"a b"}', 29),
        (b'{"groupName":""}', 29),
        (b'{"groupName":"G","retryQueueNums":-1}', 29),
        (b'{"groupName":"G","consumeEnable":"perhaps"}', 1),
        (b"", 1),
    ],
)
async def test_groups_that_are_refused(live: Any, body: bytes, code: int) -> None:
    assert (await live.peer.call(200, {}, body)).code == code


async def test_connections(live: Any) -> None:
    assert (await live.peer.call(203, {"consumerGroup": "G"})).code == 206
    assert (await live.peer.call(204, {"producerGroup": "PG"})).code == 1
    await live.peer.heartbeat("G", {"T": "A"}, client_id="one", producers=("PG",))
    shown = json.loads((await live.peer.call(203, {"consumerGroup": "G"})).body_bytes())
    assert shown["connectionSet"][0]["clientId"] == "one"
    assert shown["subscriptionTable"]["T"]["tagsSet"] == ["A"]
    shown = json.loads((await live.peer.call(204, {"producerGroup": "PG"})).body_bytes())
    assert shown["connectionSet"][0]["clientId"] == "one"
    shown = json.loads((await live.peer.call(328)).body_bytes())
    assert shown["data"]["PG"][0]["clientId"] == "one"
    shown = json.loads((await live.peer.call(345, {"group": "G", "topic": "T"})).body_bytes())
    assert shown["subscriptionData"]["subString"] == "A"
    shown = json.loads((await live.peer.call(345, {"group": "G", "topic": "U"})).body_bytes())
    assert "subscriptionData" not in shown or shown["subscriptionData"] is None


async def test_forbidding_a_topic(live: Any) -> None:
    await live.peer.send("T")
    fields = {"group": "G", "topic": "T"}
    shown = json.loads((await live.peer.call(353, {**fields, "readable": "false"})).body_bytes())
    assert shown["readable"] is False
    await live.restart()
    assert json.loads((await live.peer.call(353, fields)).body_bytes())["readable"] is False
    shown = json.loads((await live.peer.call(353, {**fields, "readable": "true"})).body_bytes())
    assert shown["readable"] is True


# ----------------------------------------------------------------------------------- progress


async def test_progress_of_a_group(live: Any) -> None:
    for _ in range(5):
        await live.peer.send("T")
    live.broker.parts.offsets.commit("G", "T", 0, 2, 1)
    live.broker.parts.offsets.commit_pull("G", "T", 0, 4)
    live.broker.parts.groups.find("G")
    body = parse_config((await live.peer.call(208, {"consumerGroup": "G"})).body_bytes())
    table = queues(body["offsetTable"])
    assert table["T", 0]["brokerOffset"] == 5
    assert table["T", 0]["consumerOffset"] == 2
    assert table["T", 0]["pullOffset"] == 4
    assert table["T", 0]["lastTimestamp"] > 0
    body = parse_config((await live.peer.call(317, {"isOrder": "false"})).body_bytes())
    assert (body["totalDiff"], body["totalInflightDiff"]) == (3, 2)
    body = parse_config((await live.peer.call(303, {"topic": "T", "group": "G"})).body_bytes())
    assert body["consumeTimeSpanSet"][0]["minTimeStamp"] > 0
    assert (await live.peer.call(303, {"topic": "U", "group": "G"})).code == 17


async def test_offsets_are_cloned_and_corrected(live: Any) -> None:
    await live.peer.send("T")
    live.broker.parts.offsets.commit("G", "T", 0, 7, 1)
    fields = {"srcGroup": "G", "destGroup": "H", "offline": "true"}
    assert (await live.peer.call(314, fields)).code == 0
    assert live.broker.parts.offsets.query("H", "T", 0) == 7
    live.broker.parts.offsets.commit("H", "T", 0, 3, 1)
    fields = {"filterGroups": "", "compareGroup": "G", "topic": "T"}
    body = parse_config((await live.peer.call(308, fields)).body_bytes())
    assert {int(queue): offset for queue, offset in body["correctionOffsets"].items()} == {0: 3}
    assert parse_config((await live.peer.call(43)).body_bytes())["offsetTable"]["T@G"] == {0: 7}
    assert parse_config((await live.peer.call(45)).body_bytes())["offsetTable"] == {}


@pytest.mark.parametrize("group", ["x@y", "", "x" * 256, "%LMQ%" + "x" * 300])
async def test_no_offsets_are_cloned_to_what_is_no_group(live: Any, group: str) -> None:
    """Its key stood in the file, and the next start refused that."""
    await live.peer.send("T")
    live.broker.parts.offsets.commit("G", "T", 0, 1, 1)
    fields = {"srcGroup": "G", "destGroup": group, "offline": "true"}
    assert (await live.peer.call(314, fields)).code == 29
    assert list(live.broker.parts.offsets) == [("T", "G", {0: 1})]
    fields["destGroup"] = "h" * 255  # as long as 4.9's may be, and known to nobody yet
    assert (await live.peer.call(314, fields)).code == 0
    await live.restart()
    assert live.broker.parts.offsets.query("h" * 255, "T", 0) == 1


async def test_resets_here(live: Any) -> None:
    for _ in range(4):
        await live.peer.send("T")
    base = {"group": "G", "topic": "T", "timestamp": "-1", "isForce": "true"}
    assert (await live.peer.call(222, {**base, "topic": "U"})).code == 17
    assert (await live.peer.call(222, base)).code == 26
    live.broker.parts.groups.find("G")
    body = parse_config((await live.peer.call(222, base)).body_bytes())
    assert queues(body["offsetTable"])["T", 0] == 4
    one = {**base, "queueId": "0", "offset": "2"}
    body = parse_config((await live.peer.call(222, one)).body_bytes())
    assert queues(body["offsetTable"]) == {("T", 0): 2}
    assert (await live.peer.call(222, {**one, "offset": "99"})).code == 1


async def test_of_queues_that_a_topic_cannot_have_nothing_is_reset(live: Any) -> None:
    await live.peer.send("T", queue_id=3)
    parts = live.broker.parts
    parts.groups.find("G")
    base = {"group": "G", "topic": "T", "timestamp": "-1", "isForce": "true"}
    for queue_id in ("4", "1000000", str(2**31 - 1)):
        for more in ({}, {"offset": "0"}):
            answer = await live.peer.call(222, {**base, "queueId": queue_id, **more})
            assert answer.code == 1
            assert f"has no queue {queue_id}" in str(answer.remark)
    assert not parts.offsets.queues("G", "T")
    assert not parts.offsets._resets
    parts.topics.update(replace(parts.topics.get("T"), read_queue_nums=1, write_queue_nums=1))
    assert (await live.peer.call(222, {**base, "queueId": "3"})).code == 0  # it had that one
    assert parts.offsets.queues("G", "T") == {3: 1}


async def test_what_there_is_no_room_for_is_no_success(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live.peer.send("T")
    parts = live.broker.parts
    for group in ("G", "H"):
        parts.groups.find(group)
    for queue_id in (0, 2):
        parts.offsets.commit("G", "T", queue_id, 1, 1)
    told: list[int] = []
    parts.reset_listeners.append(lambda group, topic, queue_id: told.append(queue_id))
    monkeypatch.setattr(consumer_offsets, "OFFSETS_MAX", parts.offsets._count)
    reset = {"group": "G", "topic": "T", "timestamp": "-1", "isForce": "true"}
    clone = {"srcGroup": "G", "destGroup": "H", "offline": "true"}
    for code, fields in ((222, reset), (314, clone)):
        answer = await live.peer.call(code, fields)
        assert answer.code == 1
        assert "as many offsets as it may" in str(answer.remark)
    assert told == [0, 2]  # those that have offsets are reset
    assert parts.offsets.queues("H", "T") == {}


async def test_resets_at_the_clients(make_live: Any) -> None:
    live = await make_live(useServerSideResetOffset="false")
    await live.peer.send("T")
    base = {"group": "G", "topic": "T", "timestamp": "0", "isForce": "true"}
    live.broker.parts.groups.find("G")
    assert (await live.peer.call(222, base)).code == 1
    for queue_id in range(4):
        live.broker.parts.offsets.commit("G", "T", queue_id, 1, 1)
    assert (await live.peer.call(222, base)).code == 206
    heard: list[RemotingCommand] = []
    table = ProcessorTable()
    table.sync([40], lambda channel, request: None)
    table.sync([220], lambda channel, request: heard.append(request))
    client = live.another(table)
    await client.heartbeat("G", {"T": "*"})
    assert (await live.peer.call(222, base)).code == 0
    await live.until(lambda: heard)
    assert queues(parse_config(heard[0].body_bytes())["offsetTable"])["T", 0] == 0


# ------------------------------------------------------------------------------ broker and queries


async def test_configuration_is_shown_without_secrets(live: Any) -> None:
    response = await live.peer.call(26)
    shown = parse_properties(response.body_bytes())
    assert shown["brokerName"] == "broker-a"
    assert set(json.loads(response.fields["version"])) == {"counter", "stateVersion", "timestamp"}
    assert not [key for key in shown if is_secret(key) and shown[key]]


async def test_configuration_changes_within_a_list(live: Any) -> None:
    assert (await live.peer.call(25, {}, b"transactionCheckMax=3\nfileReservedTime=5")).code == 0
    assert live.broker.parts.config.transaction_check_max == 3
    assert live.broker.parts.store_config.file_reserved_time_hours == 5
    for body in (
        b"brokerConfigPath=/tmp/x",
        b"rocketmqHome=/tmp/x",
        b"storePathRootDir=/tmp/x",
        b"filterServerNums=1",
        b"messageStorePlugIn=x",
        b"nonsense=1",
    ):
        assert (await live.peer.call(25, {}, body)).code == 16, body
    assert (await live.peer.call(25, {}, b"transactionCheckMax=many")).code == 29
    response = await live.peer.call(25, {}, b"transactionCheckMax=9\nfileReservedTime=x")
    assert response.code == 29
    assert live.broker.parts.config.transaction_check_max == 3


async def test_how_long_puts_and_gets_took_is_shown(live: Any) -> None:
    await live.peer.send("T")
    await live.peer.pull("T", 0)
    live.broker.parts.store.commit_log.append_times.add(2.0)
    live.broker.parts.store.reader.get_times.add(3.0)
    table = json.loads((await live.peer.call(28)).body_bytes())["table"]
    assert (table["putMessageEntireTimeMax"], table["getMessageEntireTimeMax"]) == ("2000", "3000")
    assert table["putLatency999"] == "2000.00"


async def test_what_tools_cannot_do_without_is_shown(live: Any) -> None:
    shown = parse_properties((await live.peer.call(26)).body_bytes(), name="26")
    assert int(shown["clientCallbackExecutorThreads"]) >= 1
    assert (shown["useTLS"], shown["filterServerNums"]) == ("false", "0")


async def test_options_that_mean_nothing_here_are_taken(live: Any) -> None:
    body = (
        b"popConsumerKVServiceEnable=true\nenablePopBufferMerge=true\nsendMessageThreadPoolNums=4"
    )
    assert (await live.peer.call(25, {}, body)).code == 0
    assert live.broker.parts.config.enable_pop_buffer_merge
    shown = (await live.peer.call(26)).body_bytes()
    assert b"popConsumerKVServiceEnable" not in shown


def test_no_changeable_key_is_a_path_or_starts_anything() -> None:
    for key in CHANGEABLE_KEYS | UNUSED_KEYS:
        assert not any(word in key.lower() for word in ("path", "home", "dir", "plugin", "server"
                       "nums", "class", "credential", "addr")), key  # fmt: skip


async def test_counters(live: Any) -> None:
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    assert (await live.peer.call(315, fields)).code == 1
    await live.peer.send("T")
    body = json.loads((await live.peer.call(315, fields)).body_bytes())
    assert set(body) == {"statsDay", "statsHour", "statsMinute"}
    assert (await live.peer.call(315, {"statsName": "HUH", "statsKey": "T"})).code == 1


async def test_units_of_a_queue(live: Any) -> None:
    for n in range(3):
        await live.peer.send("T", b"x", 0, {"TAGS": f"t{n}"})
    fields = {"topic": "T", "queueId": "0", "index": "1", "count": "5"}
    body = json.loads((await live.peer.call(321, fields)).body_bytes())
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 3)
    assert len(body["queueData"]) == 2
    assert (await live.peer.call(321, {**fields, "queueId": "9"})).code == 1
    offline = await live.peer.call(321, {**fields, "consumerGroup": "Nobody"})
    assert json.loads(offline.body_bytes())["filterData"] == "Nobody@T is not online!"
    groupless = {key: value for key, value in fields.items() if key != "consumerGroup"}
    assert b"filterData" not in (await live.peer.call(321, groupless)).body_bytes()


async def test_units_of_a_queue_are_read_so_many_a_turn(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 000 of them, read and made text in one turn, held the loop for 55 ms."""
    for n in range(7):
        await live.peer.send("T", b"x", 0, {"TAGS": f"t{n}"})
    await live.peer.heartbeat("G", {"T": "t1 || t2"})
    await live.peer.call(321, {"topic": "T", "queueId": "0", "index": "0", "count": "1"})
    store = live.broker.parts.store
    units = store.iterate_consume_queue("T", 0, 0, 10)
    assert len(units) == 7, "all are dispatched"
    read: list[int] = []
    original = type(store).iterate_consume_queue

    def iterate(self: Any, topic: str, queue_id: int, start: int, count: int) -> Any:
        read.append(count)
        return original(self, topic, queue_id, start, count)

    monkeypatch.setattr(type(store), "iterate_consume_queue", iterate)
    monkeypatch.setattr(admin_broker, "UNITS_A_TURN", 2)
    for count in range(10):
        fields = {"topic": "T", "queueId": "0", "index": "1", "count": str(count)}
        answer = await live.peer.call(321, {**fields, "consumerGroup": "G"})
        body = answer.body_bytes()
        shown = json.loads(body)
        assert encode_config(shown, pretty=False) == body
        assert [*shown] == [
            "filterData", "maxQueueIndex", "minQueueIndex", "queueData", "subscriptionData",
        ]  # fmt: skip
        assert shown["subscriptionData"]["subString"] == "t1 || t2"
        assert shown["queueData"] == [
            {
                "eval": False,
                "physicOffset": unit.commit_log_offset,
                "physicSize": unit.record_size,
                "tagsCode": unit.tags_code,
            }
            for unit in units[1 : 1 + count]
        ]
    assert max(read) == 2
    assert len(read) == sum([0, 1, 1, 2, 2, 3, 3, 4, 4, 4])


async def test_queries(live: Any) -> None:
    sent = await live.peer.send("T", b"found", 0, {"KEYS": "k1 k2", "UNIQ_KEY": "U1"})
    base = {"topic": "T", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    response = await live.peer.call(12, {**base, "key": "k2"})
    assert response.code == 0
    assert decode_record(response.body_bytes()).body == b"found"
    assert int(response.fields["indexLastUpdateTimestamp"]) > 0
    response = await live.peer.call(12, {**base, "key": "U1", "_UNIQUE_KEY_QUERY": "true"})
    assert response.code == 0
    response = await live.peer.call(12, {**base, "key": "nothing"})
    assert (response.code, response.body_bytes()) == (22, b"")
    offset = int(sent.fields["msgId"][16:], 16)
    response = await live.peer.call(33, {"offset": str(offset)})
    assert decode_record(response.body_bytes()).body == b"found"
    for wrong in (offset + 1, 10**12, -1):
        assert (await live.peer.call(33, {"offset": str(wrong)})).code == 1


# ------------------------------------------------------------------------------------- relayed


async def test_calls_are_relayed_under_the_tools_number(live: Any) -> None:
    sent = await live.peer.send("T", b"do it")

    def answer(channel: object, request: RemotingCommand) -> RemotingCommand:
        return create_response(
            request, 0, f"from {request.code}", ext_fields=dict(request.fields),
            body=request.body_bytes(),
        )  # fmt: skip

    table = ProcessorTable()
    table.sync([40], lambda channel, request: None)
    table.sync([307, 309], answer)
    client = live.another(table)
    await client.heartbeat("G", {"T": "*"}, client_id="one")
    fields = {"consumerGroup": "G", "clientId": "one", "jstackEnable": "true"}
    response = await live.peer.call(307, fields)
    assert (response.code, response.remark) == (0, "from 307")
    assert response.fields["jstackEnable"] == "true"
    response = await live.peer.call(309, {**fields, "msgId": sent.fields["msgId"]})
    assert response.fields["brokerName"] == "broker-a"
    assert decode_record(response.body_bytes()).body == b"do it"
    assert (await live.peer.call(307, {**fields, "clientId": "two"})).code == 1
    assert (await live.peer.call(309, {**fields, "msgId": "short"})).code == 1


async def test_what_clients_believe(live: Any) -> None:
    assert (await live.peer.call(223, {"topic": "T", "group": "G"})).code == 1

    def answer(channel: object, request: RemotingCommand) -> RemotingCommand:
        body = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}'
        return create_response(request, 0, body=body)

    table = ProcessorTable()
    table.sync([40], lambda channel, request: None)
    table.sync([221], answer)
    client = live.another(table)
    await client.heartbeat("G", {"T": "*"}, client_id="one")
    response = await live.peer.call(223, {"topic": "T", "group": "G"})
    body = parse_config(response.body_bytes())
    assert queues(body["consumerTable"]["one"]) == {("T", 0): 5}


async def test_a_client_that_answers_more_than_is_read(live: Any) -> None:
    """What one of two members made up is left out; the offsets of the other are shown."""
    shown = [b"{'a':[" + b"[]," * 20_000 + b"]}"]

    def answer(channel: object, request: RemotingCommand) -> RemotingCommand:
        return create_response(request, 0, body=shown[0])

    for name, body in (
        ("evil", b""), ("good", GetConsumerStatusBody(
            message_queue_table={MessageQueue(broker_name="b", queue_id=3, topic="T"): 7}
        ).encode()),
    ):  # fmt: skip
        table = ProcessorTable()
        table.sync([40], lambda channel, request: None)
        table.sync([221], answer if not body else partial(
            lambda body, channel, request: create_response(request, 0, body=body), body
        ))  # fmt: skip
        await live.another(table).heartbeat("G", {"T": "*"}, client_id=name)
    good = b'{{"brokerName":"b","queueId":3,"topic":"T"}:7}'
    for body in (
        shown[0],
        b"{" + b" " * ANSWER_SIZE_MAX + b"}",
        b'{"messageQueueTable":{"' + b"x" * ANSWER_SIZE_MAX + b'":1}}',
        b'{"messageQueueTable":[1]}',
    ):
        shown[0] = body
        response = await live.peer.call(223, {"topic": "T", "group": "G"})
        assert response.code == 0
        assert response.body == b'{"consumerTable":{"good":%b},"messageQueueTable":{}}' % good


async def test_progress_of_many_groups_is_gathered_in_turns(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups there are, others have their turn between."""
    broker = live.broker.parts
    broker.topics.create_internal("T", 1)
    for number in range(1000):
        broker.groups.find(f"G{number}")
        broker.offsets.commit(f"G{number}", "T", 0, 1, broker.now_ms())
    gathered = [0]
    gather = OffsetAdminProcessor._consume_stats

    def counted(*arguments: Any) -> Any:
        gathered[-1] += 1
        return gather(*arguments)

    monkeypatch.setattr(OffsetAdminProcessor, "_consume_stats", counted)
    loop = asyncio.get_running_loop()

    def turn() -> None:
        gathered.append(0)
        handle[0] = loop.call_soon(turn)

    handle = [loop.call_soon(turn)]
    answer = await live.peer.call(317, {"isOrder": "false"})
    handle[0].cancel()
    assert len(parse_config(answer.body_bytes())["consumeStatsList"]) == 1000
    assert sum(gathered) == 1000
    assert max(gathered) <= STATS_A_TURN


async def test_progress_that_was_gathered_is_bytes_at_once(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of all groups, let go of in the end, held the loop for 140 ms."""
    broker = live.broker.parts
    topics = [f"t{number}" for number in range(10)]
    for topic in topics:
        broker.topics.create_internal(topic, 1)
    for number in range(100):
        broker.groups.find(f"G{number}")
        for topic in topics:
            broker.offsets.commit(f"G{number}", topic, 0, 1, broker.now_ms())
    alive = [0, 0]

    class Counted(OffsetWrapper):
        def __post_init__(self) -> None:
            alive[0] += 1
            alive[1] = max(alive)

        def __del__(self) -> None:
            alive[0] -= 1

    monkeypatch.setattr(admin_offsets, "OffsetWrapper", Counted)
    answer = await live.peer.call(317, {"isOrder": "false"})
    body = ConsumeStatsList.decode(answer.body_bytes(), FRAME_SIZE_MAX)
    assert [len(found) for entry in body.consume_stats_list for found in entry.values()] == [
        10
    ] * 100
    assert body.broker_addr == str(broker.own.address)
    assert body.total_diff == -1000
    assert 0 < alive[1] <= 10
    monkeypatch.setattr(admin_offsets, "FRAME_SIZE_MAX", 5000)
    refused = await live.peer.call(317, {"isOrder": "false"})
    assert (refused.code, refused.remark) == (
        1, "the answer is longer than a frame may be, 5000 bytes"
    )  # fmt: skip


async def test_topics_of_a_group_are_looked_for_in_turns(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """314 of all that a group has come to, beside very many pairs of others."""
    broker = live.broker.parts
    for number in range(100):
        broker.offsets.commit("G", f"t{number}", 0, 1, 1)
    broker.topics.create_internal("t99", 1)
    monkeypatch.setattr(consumer_offsets, "KEYS_A_TURN", 10)
    request = RemotingCommand(code=314, ext_fields={
        "srcGroup": "G", "destGroup": "K", "offline": "true", "topic": "",
    })  # fmt: skip
    clone = live.broker.processors.offsets.clone(None, request)
    assert [next(clone) for _ in range(9)] == [None] * 9
    assert broker.offsets.query("K", "t99", 0) == -1
    for _ in clone:
        pass
    assert broker.offsets.query("K", "t99", 0) == 1


async def test_retry_topics_go_with_their_topic_in_turns(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 000 groups, looked for in one go, and each with all counters of the broker."""
    live = await make_live(clearRetryTopicWhenDeleteTopic="true")
    broker = live.broker.parts
    broker.topics.create_internal("T", 1)
    groups = [f"g{number}" for number in range(20)]
    for group in groups:
        broker.offsets.commit(group, "T", 0, 1, 1)
        broker.topics.create_internal(names.pop_retry_topic("T", group, v2=True), 1)
    monkeypatch.setattr(admin_topics, "GROUPS_A_TURN", 2)
    looked_for = live.broker.processors.topics._retry_topics("T")
    assert len(list(looked_for)) == 10
    turn, removed = [0], []
    loop = asyncio.get_running_loop()

    def next_turn() -> None:
        turn[0] += 1
        handle[0] = loop.call_soon(next_turn)

    remove_topics = broker.store.remove_topics

    def remove(topics: Any) -> int:
        removed.append(turn[0])
        return int(remove_topics(topics))

    monkeypatch.setattr(broker.store, "remove_topics", remove)
    handle = [loop.call_soon(next_turn)]
    answer = await live.peer.call(215, {"topic": "T"})
    handle[0].cancel()
    assert answer.code == 0
    assert len(removed) == len(set(removed)) == 21, "one topic a turn"
    assert not [each for each in broker.topics if "g1" in str(each.topic_name)]
