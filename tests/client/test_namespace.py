"""Proves namespaces: brokers see the long names, programs the short ones, whatever they do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from oberth.client import (
    ClientConfig,
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    create_reply_message,
)
from oberth.client.instance import ClientInstance
from oberth.client.namespace import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%payers", "%RETRY%shop%payers"),
        ("%DLQ%payers", "%DLQ%shop%payers"),
        ("other%orders", "shop%other%orders"),
        ("TBW102", "TBW102"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_names(short: str, long: str) -> None:
    assert with_namespace("shop", short) == long
    assert with_namespace("shop", long) == long
    assert without_namespace("shop", long) == short
    assert with_namespace("", short) == without_namespace("", short) == short
    assert without_namespace("shop", "bank%orders") == "bank%orders"


def test_queues() -> None:
    short = MessageQueue(topic="T", broker_name="b", queue_id=3)
    long = MessageQueue(topic="shop%T", broker_name="b", queue_id=3)
    assert queue_with_namespace("shop", short) == queue_with_namespace("shop", long) == long
    assert queue_without_namespace("shop", long) == short
    assert queue_with_namespace("", short) is short


def shop(mq: EmbeddedBroker) -> ClientConfig:
    return replace(mq.client_config, namespace="shop")


async def test_every_kind_of_send(mq: EmbeddedBroker) -> None:
    async with Producer("p", config=shop(mq)) as producer:
        assert producer.group == "shop%p"
        result = await producer.send(Message("T", b"one"))
        assert result.message_queue.topic == "T"
        (first, *_) = await producer.fetch_publish_message_queues("T")
        assert first.topic == "T"
        assert (await producer.send(Message("T", b"queue"), mq=first)).message_queue == first

        def last(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
            assert {queue.topic for queue in queues} == {message.topic} == {"T"}
            return queues[-1]

        await producer.send(Message("T", b"selector"), selector=last)
        await (await producer.send_async(Message("T", b"async")))
        await producer.send([Message("T", b"batch 1"), Message("T", b"batch 2")])
        await producer.send_oneway(Message("T", b"oneway"))
        await mq.wait_until(lambda: len(mq.bodies("shop%T")) == 7)
    assert mq.topics() == ["shop%T"]


async def test_a_push_consumer_with_retries(mq: EmbeddedBroker) -> None:
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message)
        if message.reconsume_times < 1:
            raise ValueError("again")

    async with (
        Producer("p", config=shop(mq)) as producer,
        Producer("p", config=mq.client_config) as stranger,
        PushConsumer(
            "g", {"T": "*"}, listener=handle, config=shop(mq), consume_from_where=FIRST
        ) as consumer,
    ):
        assert consumer.subscription == {"T", "%RETRY%g"}
        await stranger.send(Message("T", b"of another"))
        await producer.send(Message("T", b"x"))
        await mq.wait_until(lambda: len(seen) == 1)
        await mq.wait_until(lambda: bool(mq.bodies("SCHEDULE_TOPIC_XXXX")))
        mq.advance(minutes=1)
        await mq.wait_until(lambda: len(seen) == 2)
    assert [(each.topic, each.body) for each in seen] == [("T", b"x"), ("T", b"x")]
    assert sum(mq.offsets("shop%g", "shop%T").values()) == 1


async def test_a_pull_consumer(mq: EmbeddedBroker) -> None:
    async with Producer("p", config=shop(mq)) as producer:
        for number in range(8):
            await producer.send(Message("T", b"%d" % number))
    async with PullConsumer("g", config=shop(mq), auto_commit=False) as consumer:
        queues = await consumer.fetch_message_queues("T")
        assert {queue.topic for queue in queues} == {"T"}
        await consumer.assign(queues)
        assert consumer.assignment == set(queues)
        for queue in queues:
            assert await consumer.max_offset(queue) == 2
            await consumer.seek_to_begin(queue)
        seen: list[MessageExt] = []
        while len(seen) < 8:
            seen += await consumer.poll()
        assert {each.message_queue for each in seen} == set(queues)
        await consumer.commit({queues[0]: 1})
        assert await consumer.committed(queues[0]) == 1
    assert mq.offsets("shop%g", "shop%T")[queues[0].queue_id] == 1


async def test_a_pop_consumer(mq: EmbeddedBroker) -> None:
    async with (
        Producer("p", config=shop(mq)) as producer,
        PopConsumer("g", {"T": "*"}, config=shop(mq)) as consumer,
    ):
        await producer.send(Message("T", b"x"))
        async for message in consumer:
            assert (message.topic, message.body) == ("T", b"x")
            await consumer.ack(message)
            break


class Commits:
    def __init__(self) -> None:
        self.checked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        assert isinstance(arg, LocalTransactionState)
        return arg

    async def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        self.checked.set_result(msg.topic)
        return LocalTransactionState.COMMIT_MESSAGE


async def test_transactions(mq: EmbeddedBroker) -> None:
    commits = Commits()
    async with TransactionProducer("p", commits, config=shop(mq)) as producer:
        await producer.send_message_in_transaction(
            Message("T", b"at once"), LocalTransactionState.COMMIT_MESSAGE
        )
        await mq.wait_until(lambda: mq.bodies("shop%T") == [b"at once"])
        await producer.send_message_in_transaction(
            Message("T", b"later"), LocalTransactionState.UNKNOW
        )
        mq.advance(minutes=1)
        async with asyncio.timeout(60):
            assert await commits.checked == "T"
        await mq.wait_until(lambda: b"later" in mq.bodies("shop%T"))


async def test_request_and_reply(mq: EmbeddedBroker) -> None:
    async with Producer("answers", config=shop(mq)) as answers:

        async def handle(message: MessageExt) -> None:
            await answers.send(create_reply_message(message, message.body * 2))

        async with (
            Producer("asks", config=shop(mq)) as asks,
            PushConsumer(
                "g", {"T": "*"}, listener=handle, config=shop(mq), consume_from_where=FIRST
            ),
        ):
            reply = await asks.request(Message("T", b"ab"), timeout_ms=60_000)
            assert reply.body == b"abab"


async def test_the_second_kind_is_told_with_every_request(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[int, dict[str, str]] = {}
    stamp = ClientInstance.stamp

    def note(self: ClientInstance, request: RemotingCommand) -> None:
        stamp(self, request)
        told[request.code] = request.fields

    monkeypatch.setattr(ClientInstance, "stamp", note)
    config = replace(mq.client_config, namespace_v2="bank", access_key="me", secret_key="secret")
    async with Producer("p", config=config) as producer:
        await producer.send(Message("T", b"x"))
    assert mq.bodies("T") == [b"x"]
    for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2):
        fields = told[code]
        assert (fields["nsd"], fields["ns"]) == ("true", "bank")
        assert list(fields).index("ns") < list(fields).index("Signature")
