"""Calls of ``Admin`` against a broker with gRPC and remoting members."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest
from tests.proxy.client import GrpcClient
from tests.proxy.conftest import (
    CLIENTS,
    TYPES,
    acking,
    add_group,
    add_topic,
    client_of,
    message,
    received,
    receiving,
    sending,
    subscribe,
)

from oberth.client import Message, Producer, PushConsumer
from oberth.proxy import messages as m
from oberth.proxy.codes import Code
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.running_info import (
    RUNNING_INFO_SIZE_MAX,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from oberth.remoting.command import RemotingCommand, create_response
from oberth.testing.embedded_broker import EmbeddedBroker


def asking(kind: str, *, topic: str = "", group: str = "", **more: Any) -> Any:
    """A request about a topic and a group."""
    request = m.message_class(kind)(**more)
    for name, value in (("topic", topic), ("group", group)):
        if value:
            getattr(request, name).name = value
    return request


async def ask(client: GrpcClient, method: str, code: Any = Code.OK, **more: Any) -> Any:
    response = await client.admin(method, asking(m.ADMIN_METHODS[method].request, **more))
    assert response.status.code == code, response
    return response


async def indexed(mq: EmbeddedBroker) -> None:
    """Wait until all that is stored can be found."""
    await mq.wait_until(lambda: not mq.broker.parts.store.dispatch_behind_bytes)


def nobody(mq: EmbeddedBroker) -> GrpcClient:
    """An administrator is no client: it has no id."""
    return client_of(mq, "")


async def test_topics_and_routes(mq: EmbeddedBroker) -> None:
    add_topic(mq, "F", "FIFO", 3)
    async with nobody(mq) as admin:
        found = await ask(admin, "DescribeTopicStatus", topic="F")
        assert found.topic_message_type == TYPES["FIFO"]
        assert dict(found.tags) == {"message.type": "FIFO"}
        await ask(admin, "DescribeTopicStatus", Code.TOPIC_NOT_FOUND, topic="G")
        for protocol, address in (("remoting", str(mq.broker.address)), ("grpc", mq.grpc_address)):
            response = await ask(admin, "GetTopicRoute", topic="F", protocol_type=protocol)
            route = json.loads(response.topic_route_data)
            assert route["queueDatas"][0]["readQueueNums"] == 3
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": address}


async def test_subscriptions_and_connections(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    async with nobody(mq) as admin, client_of(mq, "one") as one, client_of(mq, "two") as two:
        await ask(admin, "ListSubscription", Code.BAD_REQUEST)
        first, _ = await subscribe(one, "T", "G")
        second = await two.open("Telemetry")
        command = m.TelemetryCommand()
        command.settings.client_type = CLIENTS["PUSH_CONSUMER"]
        command.settings.subscription.group.name = "G"
        entry = command.settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = "T", "a || b"
        await second.send(command)
        await second.next()
        for about in ({"topic": "T"}, {"group": "G"}, {"topic": "T", "group": "G"}):
            (info,) = (await ask(admin, "ListSubscription", **about)).subscription_info
            assert (info.group.name, info.topic.name, info.online) == ("G", "T", True)
            assert info.message_model == m.enum_values("MessageModel")["CLUSTERING"]
            assert not info.subscription_consistency
        described = await ask(admin, "DescribeSubscription", group="G")
        shown = {
            each.client_info.client_id: each.subscription_info.expression.expression
            for each in described.client_subscription_info
        }
        assert shown == {"one": "", "two": "a || b"}
        clients = (await ask(admin, "ListConsumerConnection", group="G")).client_info
        assert sorted((each.client_id, each.egress_ip) for each in clients) == [
            ("one", "127.0.0.1"),
            ("two", "127.0.0.1"),
        ]
        assert not (await ask(admin, "ListConsumerConnection", group="G", topic="U")).client_info
        await ask(admin, "DeleteSubscription", Code.PRECONDITION_FAILED, topic="T", group="G")
        stats = await ask(admin, "GetProxyRuntimeStats")
        assert (stats.consumers, stats.producers, stats.connections) == (2, 0, 3)
        assert stats.version
        for stream in (first, second):
            await stream.cancel()


async def test_a_subscription_of_nobody_can_be_deleted(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    add_group(mq, "G")
    mq.broker.parts.offsets.commit("G", "T", 0, 5, 1)
    async with nobody(mq) as admin:
        (info,) = (await ask(admin, "ListSubscription", group="G")).subscription_info
        assert not info.online
        await ask(admin, "DeleteSubscription", topic="T", group="G")
        assert mq.broker.parts.offsets.queues("G", "T") == {}
        await ask(admin, "DeleteSubscription", Code.NOT_FOUND, topic="T", group="G")


async def test_accumulation_time_span_and_reset(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    add_group(mq, "G")
    async with nobody(mq) as admin, client_of(mq) as client:
        for n in range(5):
            await client.call("SendMessage", sending(message("T", b"%d" % n)))
        mq.broker.parts.offsets.commit("G", "T", 0, 2, 1)
        request = asking("DescribeGroupAccumulationRequest", group="G")
        request.topics.add().name = "T"
        found = await admin.admin("DescribeGroupAccumulation", request)
        assert found.accumulation.accumulation == found.topic_accumulation["T"].accumulation == 3
        assert found.accumulation.ready_messages + found.accumulation.inflight_messages == 3
        assert found.accumulation.last_consume_timestamp > 0
        (span,) = (await ask(admin, "QueryTimeSpan", group="G")).queue_time_span_list
        assert span.message_queue.topic.name == "T"
        assert span.min_timestamp <= span.consume_timestamp <= span.max_timestamp
        await ask(admin, "ResetGroupOffset", Code.BAD_REQUEST, topic="T", group="G")
        reset = asking("ResetGroupOffsetRequest", topic="T", group="G")
        reset.reset_timestamp.seconds = -3600  # to brokers the end: the group would lose its lag
        refused = await admin.admin("ResetGroupOffset", reset)
        assert refused.status.code == Code.BAD_REQUEST
        reset.reset_timestamp.seconds = 1
        assert (await admin.admin("ResetGroupOffset", reset)).status.code == Code.OK
        assert mq.broker.parts.offsets.query("G", "T", 0) == 0


async def test_messages_by_id_by_key_and_by_scan(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T", queues=2)
    async with nobody(mq) as admin, client_of(mq) as client:
        sent = [message("T", b"%d" % n, tag="ab"[n % 2], keys=["k"]) for n in range(6)]
        for each in sent:
            await client.call("SendMessage", sending(each))
        await indexed(mq)
        wanted = sent[3].system_properties.message_id
        (got,) = (await ask(admin, "QueryMessage", topic="T", message_id=wanted)).messages
        assert got.body == b"3"
        assert not got.system_properties.HasField("receipt_handle")
        by_key = (await ask(admin, "QueryMessage", topic="T", message_key="k")).messages
        assert sorted(each.body for each in by_key) == [b"%d" % n for n in range(6)]
        page = {"message_key": "k", "page_num": 2, "page_size": 4}
        assert len((await ask(admin, "QueryMessage", topic="T", **page)).messages) == 2
        tagged = (await ask(admin, "QueryMessage", topic="T", subscription="a")).messages
        assert sorted(each.body for each in tagged) == [b"0", b"2", b"4"]
        found, scroll, rounds = [], "", 0
        while scroll or not rounds:
            rounds += 1
            more = {"scroll_id": scroll} if scroll else {}
            answer = await ask(
                admin, "QueryMessage", topic="T", subscription="*", max_message_nums=2, **more
            )
            found += [each.body for each in answer.messages]
            scroll = answer.scroll_id
        assert sorted(found) == [b"%d" % n for n in range(6)]
        assert rounds > 2
        one = await ask(admin, "QueryMessage", topic="T", subscription="*", queue_id=1)
        assert len(one.messages) == 3
        await ask(admin, "QueryMessage", Code.BAD_REQUEST, topic="T")
        for scroll in ("broker-a 7 0", "x", "broker-a 0 -1", f"broker-a 0 {'9' * 30}"):
            await ask(
                admin, "QueryMessage", Code.BAD_REQUEST, topic="T", subscription="*",
                scroll_id=scroll,
            )  # fmt: skip


async def test_a_lite_topic_is_scanned() -> None:
    settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
    async with (
        EmbeddedBroker(settings, grpc=True) as mq,
        nobody(mq) as admin,
        client_of(mq) as client,
    ):
        add_topic(mq, "L", "LITE")
        for n, lite in enumerate(("one", "two", "one")):
            sent = message("L", b"%d" % n, "LITE", lite_topic=lite)
            response = await client.call("SendMessage", sending(sent))
            assert response.status.code == Code.OK, response
        found = (await ask(admin, "QueryMessage", topic="L", lite_topic="one")).messages
        assert [each.body for each in found] == [b"0", b"2"]


async def test_sending_from_a_console(mq: EmbeddedBroker) -> None:
    add_topic(mq, "T")
    add_topic(mq, "X", "TRANSACTION")
    add_group(mq, "G")
    async with nobody(mq) as admin, client_of(mq) as client:
        response = await ask(
            admin, "AdminSendMessage", topic="T", body=b"test", tag="a", key="k",
            user_properties={"own": "1"},
        )  # fmt: skip
        (got,) = received(await client.call_stream("ReceiveMessage", receiving("T", "G")))[1]
        assert got.system_properties.message_id == response.message_id
        assert (got.body, got.system_properties.tag) == (b"test", "a")
        assert dict(got.user_properties) == {"own": "1"}
        await client.call("AckMessage", acking("T", "G", got))
        await ask(admin, "AdminSendMessage", Code.BAD_REQUEST, topic="X", body=b"half")


async def test_what_clients_tell(mq: EmbeddedBroker) -> None:
    """A gRPC client over its Telemetry stream, a remoting one over its connection."""
    add_topic(mq, "T")
    consumed = asyncio.Event()

    def consume(message: Any) -> None:
        consumed.set()

    async with nobody(mq) as admin, client_of(mq, "one") as one:
        stream, _ = await subscribe(one, "T", "G")
        asked = asyncio.create_task(ask(admin, "PrintThreadStackTrace", group="G", client_id="one"))
        raw = await stream.next()
        assert raw is not None
        nonce = m.TelemetryCommand.FromString(raw).print_thread_stack_trace_command.nonce
        answer = m.TelemetryCommand()
        answer.thread_stack_trace.nonce = nonce
        answer.thread_stack_trace.thread_stack_trace = "main: waiting"
        await stream.send(answer)
        assert (await asked).thread_stack_trace == "main: waiting"

        await ask(
            admin, "GetConsumerRunningInfo", Code.INTERNAL_SERVER_ERROR, group="G", client_id="two"
        )
        async with (
            Producer("P", namesrv_addr=mq.namesrv_addr) as producer,
            PushConsumer("R", {"T": "*"}, listener=consume, namesrv_addr=mq.namesrv_addr),
        ):
            sent = await producer.send(Message("T", b"x"))
            await indexed(mq)
            await consumed.wait()
            (member,) = (await ask(admin, "ListConsumerConnection", group="R")).client_info
            info = await ask(admin, "GetConsumerRunningInfo", group="R", client_id=member.client_id)
            shown = info.consumer_running_info
            assert shown.subscriptions["T"].expression == "*"
            assert "T" in {each.message_queue.topic.name for each in shown.message_queue_table}
            consumed.clear()
            await ask(
                admin, "VerifyMessage", topic="T", group="R", client_id=member.client_id,
                message_id=sent.msg_id,
            )  # fmt: skip
            assert consumed.is_set()
            await ask(
                admin, "VerifyMessage", Code.MESSAGE_NOT_FOUND, topic="T", group="R",
                client_id=member.client_id, message_id="0" * 32,
            )  # fmt: skip


async def test_what_a_member_made_up_of_itself(mq: EmbeddedBroker) -> None:
    """It is asked by way of the broker, and its answer is read beside the loop, or not at all."""
    add_topic(mq, "T")
    add_group(mq, "G")
    queues = {MessageQueue(broker_name="b", queue_id=n, topic="T"): n for n in range(1000)}
    honest = ConsumerRunningInfo(
        mq_table={queue: ProcessQueueInfo(commit_offset=n) for queue, n in queues.items()}
    ).encode()
    many = b"{'a':[" + b"[]," * 60_000 + b"]}"
    long = b'{"jstack":"' + b"x" * RUNNING_INFO_SIZE_MAX + b'"}'
    answers = [honest, many, long]
    threads = []
    decode = ConsumerRunningInfo.decode

    def noted(data: bytes, size_max: int) -> ConsumerRunningInfo:
        threads.append(threading.current_thread())
        return decode(data, size_max)

    table = ProcessorTable()
    table.sync([40], lambda channel, request: None)
    table.sync([307], lambda channel, request: create_response(request, 0, body=answers[0]))
    heartbeat = {
        "clientID": "member",
        "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}],
    }
    async with RemotingClient(table) as member, nobody(mq) as admin:
        request = RemotingCommand(code=34, body=json.dumps(heartbeat).encode(), version=479)
        await member.invoke(str(mq.broker.address), request, 5.0)
        asked = {"group": "G", "client_id": "member"}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ConsumerRunningInfo, "decode", noted)
            info = await ask(admin, "GetConsumerRunningInfo", **asked)
        assert len(info.consumer_running_info.message_queue_table) == 1000
        assert threads
        assert threading.current_thread() not in threads
        for answers[0] in (many, long):
            code = Code.INTERNAL_SERVER_ERROR
            refused = await ask(admin, "GetConsumerRunningInfo", code, **asked)
            assert "allowed" in refused.status.message


async def test_the_level_of_the_log(mq: EmbeddedBroker) -> None:
    log = logging.getLogger("oberth")
    before = log.level
    try:
        async with nobody(mq) as admin:
            answer = await admin.admin("ChangeLogLevel", asking("ChangeLogLevelRequest", level=4))
            assert "ERROR" in answer.remark
            assert log.level == logging.ERROR
    finally:
        log.setLevel(before)


@pytest.mark.parametrize("method", sorted(m.ADMIN_METHODS))
async def test_nobody_administers_what_he_may_not(method: str) -> None:
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"a long secret"}',
    }
    async with EmbeddedBroker(settings, grpc=True) as broker:
        add_topic(broker, "T")
        add_group(broker, "G")
        async with nobody(broker) as admin:
            response = await admin.admin(method)
            if method == "ChangeLogLevel":
                assert "UNAUTHORIZED" in response.remark
            else:
                assert response.status.code == Code.UNAUTHORIZED
