"""JSON bodies: recorded ones decode and encode to the same; odd dialects are read, junk refused."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import pkgutil
import re
import tracemalloc
import zlib
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oberth.remoting.bodies
from oberth.errors import LocalProtocolError
from oberth.formats import json_reader
from oberth.formats.config_files import ConsumerOffsets, DelayOffsets, MessageRequestModes
from oberth.formats.data_version import DataVersion
from oberth.formats.json_reader import parse_config
from oberth.formats.subscription_group import SubscriptionGroupConfig, SubscriptionGroups
from oberth.formats.topic_config import TopicConfig, TopicConfigs
from oberth.remoting.bodies import (
    base,
    clients,
    offsets,
    pop,
    registration,
    route,
    running_info,
    stats,
)
from oberth.remoting.bodies.base import Body, BodyError, MessageQueue, parse, render_in_slices
from oberth.remoting.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo
from oberth.remoting.code import MQVersion, RequestCode
from oberth.remoting.command import FRAME_SIZE_MAX
from oberth.remoting.connection import RemotingConnection

Frames = Callable[[str], tuple[dict[str, Any], ...]]

REQUEST_BODIES: dict[int, Any] = {
    RequestCode.HEART_BEAT: clients.HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: clients.LockBatchRequestBody,
    RequestCode.UNLOCK_BATCH_MQ: clients.LockBatchRequestBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: pop.SetMessageRequestModeRequestBody,
    RequestCode.QUERY_ASSIGNMENT: pop.QueryAssignmentRequestBody,
    RequestCode.BATCH_ACK_MESSAGE: pop.BatchAckMessageRequestBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    RequestCode.CHECK_CLIENT_CONFIG: clients.CheckClientRequestBody,
}
RESPONSE_BODIES: dict[int, Any] = {
    RequestCode.GET_BROKER_CLUSTER_INFO: route.ClusterInfo,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route.TopicRouteData,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.GetConsumerListByGroupResponseBody,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.ConsumerConnection,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.ProducerConnection,
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info.ConsumerRunningInfo,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: running_info.ConsumeMessageDirectlyResult,
    RequestCode.GET_CONSUME_STATS: stats.ConsumeStats,
    RequestCode.GET_TOPIC_STATS_INFO: stats.TopicStatsTable,
    RequestCode.QUERY_CONSUME_TIME_SPAN: stats.QueryConsumeTimeSpanBody,
    RequestCode.QUERY_CONSUME_QUEUE: stats.QueryConsumeQueueResponseBody,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.ResetOffsetBody,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets.GetConsumerStatusBody,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: offsets.GetConsumerStatusBody,
    RequestCode.LOCK_BATCH_MQ: clients.LockBatchResponseBody,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: route.TopicList,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: route.GroupList,
    RequestCode.GET_KVLIST_BY_NAMESPACE: route.KVTable,
    RequestCode.GET_BROKER_RUNTIME_INFO: route.KVTable,
    RequestCode.QUERY_ASSIGNMENT: pop.QueryAssignmentResponseBody,
    RequestCode.GET_TOPIC_CONFIG: TopicConfig,
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigs,
    RequestCode.GET_ALL_CONSUMER_OFFSET: ConsumerOffsets,
    RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsets,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroups,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: MessageRequestModes,
}


def plain(value: Any) -> Any:
    """A document with its keys as text and its sets sorted, to compare with."""
    if isinstance(value, dict):
        return {
            json.dumps(key.as_dict(), sort_keys=True)
            if hasattr(key, "as_dict")
            else str(key): plain(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def restrict(value: Any, like: Any) -> Any:
    """``value`` without the fields that ``like`` does not have."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {key: restrict(value[key], like[key]) for key in like if key in value}
    if isinstance(value, list) and isinstance(like, list):
        return [restrict(*pair) for pair in zip(value, like, strict=False)]
    return value


@pytest.mark.parametrize("recording", ["client-497", "full-binary", "full-json", "v1-json"])
def test_recorded_bodies(recording: str, golden_frames: Frames) -> None:
    seen = set()
    codes: dict[int, int] = {}
    for recorded in golden_frames(recording):
        frame = base64.b64decode(recorded["frame"])
        (command,) = RemotingConnection().receive_data(frame)
        if command.is_response:
            code, table = codes[recorded["answers"]], RESPONSE_BODIES
        else:
            code, table = command.code, REQUEST_BODIES
            codes[recorded["n"]] = code
        body = command.body_bytes()
        if not body or code not in table or (command.is_response and command.code != 0):
            continue
        seen.add((command.is_response, code))
        kind = table[code]
        value = kind.decode(body)
        again = value.encode() if isinstance(value, Body) else value.encode(pretty=False)
        theirs, ours = plain(parse_config(body)), plain(parse_config(again))
        if recording == "client-497":
            # 4.9 leaves out what only 5.x knows.
            ours = restrict(ours, theirs)
        assert ours == theirs, (recorded["n"], body)
    assert len(seen) >= 8


@pytest.mark.parametrize("recording", ["client-497", "full-json"])
def test_recorded_registrations(recording: str, golden_frames: Frames) -> None:
    count = 0
    for recorded in golden_frames(recording):
        (command,) = RemotingConnection().receive_data(base64.b64decode(recorded["frame"]))
        if command.is_response or command.code != RequestCode.REGISTER_BROKER:
            continue
        count += 1
        raw = command.body_bytes()
        body = registration.RegisterBrokerBody.decode(raw, version=command.version)
        topics = parse_config(raw)["topicConfigSerializeWrapper"]["topicConfigTable"]
        assert set(body.topics) == set(topics)
        assert parse_config(body.encode()) == parse_config(raw) | {
            "topicConfigSerializeWrapper": parse_config(raw)["topicConfigSerializeWrapper"]
            | {"mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}}
        }
        again = registration.RegisterBrokerBody.decode(body.encode_compressed(), compressed=True)
        assert again.data_version == body.data_version
        assert again.topics == {
            name: msgspec.structs.replace(topic, topic_sys_flag=0, order=False)
            for name, topic in body.topics.items()
        }
    assert count >= 1


def test_fields_stand_in_alphabetical_order() -> None:
    # fastjson writes them so; and the Go client looks for some of them as text.
    count = 0
    for info in pkgutil.iter_modules(oberth.remoting.bodies.__path__):
        module = importlib.import_module(f"oberth.remoting.bodies.{info.name}")
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Body):
                names = kind.__struct_encode_fields__
                assert list(names) == sorted(names), kind
                count += 1
    assert count > 40


def test_a_route_as_go_reads_it() -> None:
    data = route.TopicRouteData(
        broker_datas=[
            route.BrokerData(
                broker_addrs={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"},
                broker_name="broker-a",
                cluster="DefaultCluster",
            )
        ],
        queue_datas=[
            route.QueueData(broker_name="broker-a", perm=6, read_queue_nums=4, write_queue_nums=4)
        ],
    )
    assert data.encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    bare = data.encode().replace(b'"0":', b"0:").replace(b'"1":', b"1:")
    assert route.TopicRouteData.decode(bare) == data
    assert data.broker_datas[0].address() == "10.0.0.1:10911"


def test_heartbeats_of_other_clients() -> None:
    cpp = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"G",'
        b'"messageModel":1,"subscriptionDataSet":[{"subString":"A","subVersion":"17","topic":"T"}],'
        b'"unitMode":false}],"producerDataSet":null}\n'
    )
    (consumer,) = clients.HeartbeatData.decode(cpp).consumer_data_set
    assert consumer.consume_type is clients.ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is clients.MessageModel.CLUSTERING
    assert consumer.consume_from_where is clients.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    (subscription,) = consumer.subscription_data_set
    assert (subscription.sub_version, subscription.expression_type) == (17, "TAG")

    go = (
        b'{"clientID":"g","consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_UNHEARD_OF",'
        b'"subscriptionDataSet":[{"codeSet":["65","66"],"topic":"T","subString":"A || B"}]}]}'
    )
    (consumer,) = clients.HeartbeatData.decode(go).consumer_data_set
    assert consumer.subscription_data_set[0].code_set == [65, 66]
    assert consumer.consume_type is clients.ConsumeType.CONSUME_PASSIVELY


QUEUE = MessageQueue(broker_name="broker-a", queue_id=1, topic="T")


def test_queues_as_keys() -> None:
    table = stats.TopicStatsTable(offset_table={QUEUE: stats.TopicOffset(max_offset=5)})
    assert table.encode() == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":5,"minOffset":0}},"topicPutTps":0.0}'
    )
    assert stats.TopicStatsTable.decode(table.encode()) == table
    as_text = json.dumps({"offsetTable": {msgspec.json.encode(QUEUE).decode(): 7}}).encode()
    assert offsets.ResetOffsetBody.decode(as_text).offset_table == {QUEUE: 7}

    status = offsets.GetConsumerStatusBody(consumer_table={"c1": {QUEUE: 7}, "c2": {}})
    assert offsets.GetConsumerStatusBody.decode(status.encode()) == status
    listed = stats.ConsumeStatsList(
        broker_addr="a:1",
        consume_stats_list=[
            {"G": [stats.ConsumeStats(offset_table={QUEUE: stats.OffsetWrapper()})]}
        ],
    )
    assert stats.ConsumeStatsList.decode(listed.encode()) == listed


def test_queues_are_ordered_as_clients_order_them() -> None:
    queues = [
        MessageQueue(topic=topic, broker_name=broker, queue_id=number)
        for topic in "TS"
        for broker in ("b", "a")
        for number in (10, 2)
    ]
    assert [queue.sort_key for queue in sorted(queues)] == sorted(
        (queue.topic, queue.broker_name, queue.queue_id) for queue in queues
    )


def test_none_is_left_out_but_the_word_stays() -> None:
    assert route.TopicList(topic_list=["null"]).encode() == b'{"topicList":["null"]}'
    assert pop.QueryAssignmentResponseBody().encode() == b"{}"


def test_batch_acks() -> None:
    short = pop.BatchAckMessageRequestBody.decode(
        b'{"acks":[{"b":"BQ==","c":"G","it":1,"pt":2,"q":3,"r":"0","rq":4,"so":100,"t":"T"}]}'
    )
    long = pop.BatchAckMessageRequestBody.decode(
        b'{"acks":[{"bitSet":"BQ==","consumerGroup":"G","invisibleTime":1,"popTime":2,"queueId":3,'
        b'"retry":"0","reviveQueueId":4,"startOffset":100,"topic":"T"}]}'
    )
    assert short == long
    (ack,) = short.acks
    assert ack.offsets() == [100, 102]
    ack.b = "AgI="
    assert ack.offsets() == [101, 109]
    ack.b = "not base64!"
    with pytest.raises(BodyError):
        ack.offsets()


@pytest.mark.parametrize("count", [0, 1, 1203])
def test_registrations_of_any_size(count: int) -> None:
    configs = [TopicConfig(topic_name=f"t{n}", attributes={"+a": "{}"}) for n in range(count)]
    version = DataVersion(counter=3, timestamp=4)
    mappings = {"t1": {"topic": "t1", "bname": '"topicConfigTable":{}'}}
    body = registration.RegisterBrokerBody.of_configs(version, configs, mappings)
    again = registration.RegisterBrokerBody.decode(body.encode())
    assert (again.topics, again.mappings) == (body.topics, mappings)
    assert again.data_version == version


def test_a_topic_named_null_does_not_make_a_body_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        raise AssertionError("it looks at every field")

    monkeypatch.setattr(base, "_without_none", slow)
    assert route.KVTable(table={"null": "null"}).encode() == b'{"table":{"null":"null"}}'


def test_compressed_registrations_of_both_lines() -> None:
    config = TopicConfig(topic_name="T", attributes={"+message.type": "DELAY x"})
    body = registration.RegisterBrokerBody.of_configs(DataVersion(counter=3, timestamp=4), [config])
    for version in (MQVersion.V4_9_8, MQVersion.V5_3_3):
        again = registration.RegisterBrokerBody.decode(
            body.encode_compressed(version), compressed=True, version=version
        )
        assert again.data_version == body.data_version
        attributes = config.attributes if version >= MQVersion.V5_0_0 else {}
        assert again.topics["T"].attributes == attributes


def compressed(topics: list[str], mappings: list[str]) -> bytes:
    """A registration with these texts."""

    def text(each: str) -> bytes:
        data = each.encode()
        return len(data).to_bytes(4) + data

    parts = [text('{"counter":1,"stateVersion":0,"timestamp":1}'), len(topics).to_bytes(4)]
    parts += [*map(text, topics), text("[]"), len(mappings).to_bytes(4), *map(text, mappings)]
    return zlib.compress(b"".join(parts))


@pytest.mark.parametrize("pairs", [30, 600])
def test_registrations_in_a_dialect_are_read_in_turns(pairs: int) -> None:
    """What is no JSON proper takes up to 1.2 us a byte: 30 KB, packed, took a name server 11 s."""
    odd = "{" + "a:'b'," * pairs + "}"
    topics = [f"T{n} 4 4 6 SINGLE_TAG {odd}" for n in range(300)]
    mappings = [f"{{topic:'M{n}',x:{odd}}}" for n in range(300)]
    for data in (compressed(topics, []), compressed([], mappings)):
        slices = registration.RegisterBrokerBody.decode_in_slices(data, compressed=True)
        turns = sum(1 for _ in slices)
        body = registration.RegisterBrokerBody.decode(data, compressed=True)
        assert len(body.topics) + len(body.mappings) == 300
        assert turns >= 300 * len(odd) // 8192


@pytest.mark.parametrize(
    "data",
    [
        compressed([f"T 4 4 6 SINGLE_TAG {{{'a:1,' * 2000}}}"], []),
        compressed([], [f"{{topic:'T',x:{{{'a:1,' * 2000}}}}}"]),
    ],
)
def test_long_texts_of_a_registration_are_json_proper(data: bytes) -> None:
    with pytest.raises(BodyError, match="in a dialect of JSON, at most 4096 are allowed"):
        registration.RegisterBrokerBody.decode(data, compressed=True)
    whole = b'{"topicConfigSerializeWrapper":{"x":{%b}}}' % (b"a:1," * 8000)
    with pytest.raises(BodyError, match="in a dialect of JSON, at most 16384 are allowed"):
        registration.RegisterBrokerBody.decode(whole)


def test_long_topics_of_a_registration_are_read_in_turns() -> None:
    """500 of them, with attributes of 30 KB, took 130 ms in one turn."""
    attributes = json.dumps({"é": "é" * 15_000}, ensure_ascii=False)
    packed = compressed([f"T{n} 4 4 6 SINGLE_TAG {attributes}" for n in range(200)], [])
    topics = ",".join(
        f'"T{n}":{{"topicName":"T{n}","attributes":{attributes}}}' for n in range(200)
    )
    plain = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{topics}}}}}}}'.encode()
    for data, is_packed in ((packed, True), (plain, False)):
        slices = registration.RegisterBrokerBody.decode_in_slices(data, compressed=is_packed)
        turns = sum(1 for _ in slices)
        assert turns >= 200 * 30_000 // (160 * 1024)
        body = registration.RegisterBrokerBody.decode(data, compressed=is_packed)
        assert [len(each.attributes["é"]) for each in body.topics.values()] == [15_000] * 200


def test_where_the_topics_of_a_long_registration_begin() -> None:
    """A table that is nowhere was looked for in all of 16 MiB."""
    table = '"topicConfigTable":{"T":{"topicName":"T"}}'
    for size, size_max in ((100_000, 200_000), (140_000, 140_000)):
        text = f'{{"filterServerList":[],"x":"{"y" * size}","topicConfigSerializeWrapper":{{{table}'
        data = (text + "}" + " " * (size_max - size) + "}").encode()
        with pytest.raises(BodyError, match="bytes beside its topics, allowed 131072") as raised:
            registration.RegisterBrokerBody.decode(data)
        left = len('"T":{"topicName":"T"}') if size == 100_000 else 0
        assert f" {len(data) - left} bytes" in str(raised.value)


def test_an_unpacked_registration_is_there_once() -> None:
    """To join 32 MiB took 40 ms."""
    topics = [f"T{n} 4 4 6 {'x' * 30_000}" for n in range(400)]
    data = compressed(topics, [])
    tracemalloc.start()
    try:
        slices = registration.RegisterBrokerBody.decode_in_slices(data, compressed=True)
        for _ in slices:
            if tracemalloc.get_traced_memory()[0] > 11 << 20:
                break  # all is unpacked
        tracemalloc.reset_peak()
        next(slices)
        assert tracemalloc.get_traced_memory()[1] < 18 << 20
    finally:
        tracemalloc.stop()


def test_queues_of_a_mapping_are_bare_keys() -> None:
    ids = ",".join(f"{n}:{n}" for n in range(3000))
    data = compressed([], [f'{{"topic":"T","currIdMap":{{{ids}}}}}'])
    body = registration.RegisterBrokerBody.decode(data, compressed=True)
    assert len(body.mappings["T"]["currIdMap"]) == 3000


@given(st.binary(max_size=300))
def test_random_bodies(data: bytes) -> None:
    for kind in (clients.HeartbeatData, stats.ConsumeStats, route.TopicRouteData):
        with contextlib.suppress(BodyError):
            kind.decode(data)


@given(st.binary(max_size=300), st.booleans())
def test_random_registrations(data: bytes, compressed: bool) -> None:
    for each in (data, zlib.compress(data)):
        with contextlib.suppress(BodyError):
            registration.RegisterBrokerBody.decode(each, compressed=compressed)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "consumerDataSet",
                        "offsetTable",
                        "messageModel",
                        "clientID",
                        "topic",
                        "consumeStatsList",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_parses_or_is_refused(tree: Any) -> None:
    data = json.dumps(tree).encode()
    for kind in (
        clients.HeartbeatData,
        clients.ConsumerConnection,
        stats.ConsumeStatsList,
        stats.TopicStatsTable,
        offsets.GetConsumerStatusBody,
    ):
        with contextlib.suppress(BodyError):
            kind.decode(data)


def test_a_body_in_slices_is_the_same() -> None:
    queues = [MessageQueue(topic="t", broker_name="b", queue_id=n) for n in range(3000)]
    progress = stats.ConsumeStats(offset_table=dict.fromkeys(queues, stats.OffsetWrapper()))
    spans = [stats.QueueTimeSpan(message_queue=queue) for queue in queues]
    producers = [clients.ProducerInfo(client_id=f"c{n}") for n in range(3000)]
    found = []

    def slices(body: Body) -> Generator[None, None, None]:
        found.append((yield from render_in_slices(body)))

    for body in (
        stats.TopicStatsTable(offset_table=dict.fromkeys(queues, stats.TopicOffset(max_offset=3))),
        progress,
        stats.ConsumeStatsList(consume_stats_list=[{"g": [progress, stats.ConsumeStats()]}]),
        stats.QueryConsumeTimeSpanBody(consume_time_span_set=spans),
        offsets.ResetOffsetBody(offset_table=dict.fromkeys(queues, 5)),
        clients.ProducerTableInfo(data={"g": producers, "h": []}),
    ):
        assert sum(1 for _ in slices(body)) > 2
        assert found.pop() == body.encode()


def test_a_body_in_slices_ends_where_no_frame_may_be_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "FRAME_SIZE_MAX", 100_000)
    producers = [clients.ProducerInfo(client_id="c" * 1000) for _ in range(3000)]
    work = render_in_slices(clients.ProducerTableInfo(data={"g": producers}))
    with pytest.raises(LocalProtocolError, match="longer than a frame may be, 100000 bytes"):
        list(work)
    monkeypatch.setattr(offsets, "FRAME_SIZE_MAX", 100_000)
    with pytest.raises(LocalProtocolError, match="longer than a frame may be, 100000 bytes"):
        list(offsets.status_body({f"c{n}": b"x" * 1000 for n in range(3000)}))


def test_long_texts_of_a_body_make_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of 125 texts of 64 KiB was 48 MiB, and only then found to be too long."""
    sizes, encode = [0], base._encode

    def counted(value: Any) -> bytes:
        data = encode(value)
        sizes[-1] += len(data)
        return data

    monkeypatch.setattr(base, "_encode", counted)
    table = {f"k{number}": "\x01" * 65_536 for number in range(60)}
    work = render_in_slices(route.KVTable(table=table))

    def go_on() -> None:
        while True:
            next(work)
            sizes.append(0)

    with pytest.raises(LocalProtocolError, match="longer than a frame may be"):
        go_on()
    one_text = 6 * 65_536 + 10
    assert max(sizes) <= base.BYTES_A_SLICE + one_text
    assert sum(sizes) <= FRAME_SIZE_MAX + one_text


def test_how_much_of_a_body_may_be_a_dialect() -> None:
    """Only who says so reads more than a loop has time for."""
    told = {MessageQueue(broker_name="b", queue_id=n, topic="t"): n for n in range(1000)}
    for body, read in (
        (offsets.GetConsumerStatusBody(message_queue_table=told), "message_queue_table"),
        (offsets.ResetOffsetBody(offset_table=told), "offset_table"),
        (stats.TopicStatsTable(offset_table=dict.fromkeys(told, stats.TopicOffset())), ""),
        (stats.ConsumeStats(offset_table=dict.fromkeys(told, stats.OffsetWrapper())), ""),
    ):
        data = body.encode()
        with pytest.raises(BodyError, match="in a dialect of JSON, at most 16384 are allowed"):
            type(body).decode(data)
        assert type(body).decode(data, len(data)) == body
        assert getattr(type(body).decode_answer(data), read or "offset_table")
        with pytest.raises(BodyError, match=f"an answer of {len(data)} bytes, allowed 1000"):
            type(body).decode_answer(data, 1000)
    table = {queue: ProcessQueueInfo() for queue in told} | {
        MessageQueue(broker_name="c", queue_id=n, topic="t"): ProcessQueueInfo()
        for n in range(7000)
    }
    info = ConsumerRunningInfo(mq_table=table)
    assert ConsumerRunningInfo.decode_answer(info.encode()) == info
    many = b"{'a':[" + b"[]," * 20_000 + b"]}"
    with pytest.raises(BodyError, match="20002 objects and lists, at most 12288 are allowed"):
        offsets.offsets_told(many)
    with pytest.raises(BodyError, match="at most 16384 are allowed"):
        parse(many, "body")


def test_a_long_body_is_not_searched_for_bare_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is one call of C, which nothing interrupts: 80 ms and more of 4 MiB."""
    searched: list[None] = []
    pattern = json_reader._string_or_bare_key()

    def noted() -> re.Pattern[bytes]:
        searched.append(None)
        return pattern

    monkeypatch.setattr(json_reader, "_string_or_bare_key", noted)
    for size, is_searched in ((128 << 10, True), ((128 << 10) + 1, False)):
        searched.clear()
        with pytest.raises(BodyError):
            ConsumerRunningInfo.decode_answer(b"x" * size)
        assert bool(searched) is is_searched
