"""Proves how queues become a member's: what one broker does is no matter of the others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from oberth.client import (
    ClientConfig,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from oberth.client.admin import Admin
from oberth.client.group_consumer import GroupConsumer
from oberth.client.instance import ClientInstance
from oberth.client.pulling import query_consumer_offset
from oberth.errors import RemotingTimeoutError
from oberth.remoting.bodies.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from oberth.remoting.code import RequestCode
from oberth.testing.embedded_broker import EmbeddedBroker

TOPICS = ("T", "U")


@pytest.fixture
async def other(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EmbeddedBroker]:
    """A second broker, with the same topics of eight queues each."""
    fetch_route = ClientInstance.fetch_route
    async with EmbeddedBroker({"brokerName": "broker-b"}) as other:

        async def routed(
            instance: ClientInstance, topic: str, timeout_s: float | None = None
        ) -> TopicRouteData | None:
            route = await fetch_route(instance, topic, timeout_s)
            if route is not None and topic in TOPICS:
                route.broker_datas.append(
                    BrokerData(broker_addrs={MASTER_ID: other.address}, broker_name="broker-b")
                )
                route.queue_datas.append(
                    QueueData(broker_name="broker-b", perm=6, read_queue_nums=8, write_queue_nums=8)
                )
            return route

        monkeypatch.setattr(ClientInstance, "fetch_route", routed)
        async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
            for topic in TOPICS:
                for broker in (mq, other):
                    await admin.create_topic(topic, broker_addr=broker.address)
        yield other


def count_rounds(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each round of rebalancing that begins from now on."""
    rounds: list[None] = []
    do_rebalance = GroupConsumer.do_rebalance

    async def counted(consumer: GroupConsumer) -> bool:
        rounds.append(None)
        return await do_rebalance(consumer)

    monkeypatch.setattr(GroupConsumer, "do_rebalance", counted)
    return rounds


async def test_a_broker_that_hangs_is_waited_for_once(
    mq: EmbeddedBroker, other: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was for each of its queues; neither the others' queues nor a shutdown came before."""
    monkeypatch.setattr("oberth.client.pulling.OFFSET_TIMEOUT_S", 0.5)
    dropped = mq.faults.drop([RequestCode.QUERY_CONSUMER_OFFSET], times=1000)
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for topic in TOPICS:
            await producer.send(
                Message(topic, b"x"), mq=MessageQueue(topic=topic, broker_name="broker-b")
            )
    rounds = count_rounds(monkeypatch)
    async with PullConsumer(
        "g", dict.fromkeys(TOPICS, "*"), namesrv_addr=mq.namesrv_addr,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        topics: set[str] = set()
        while len(topics) < len(TOPICS):
            topics.update(message.topic for message in await consumer.poll())
        assert {queue.broker_name for queue in consumer.assignment} == {"broker-b"}
    assert 0 < dropped.hits <= len(rounds)
    assert other.lag("g", "T") == 0


async def test_a_queue_that_is_not_answered_for_keeps_no_other_away(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round began with it, and left out its broker's others, of all topics."""
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        for topic in TOPICS:
            await admin.create_topic(topic)
    bad = {(topic, number) for topic in TOPICS for number in (0, 1, 5)}
    asked: list[tuple[str, int]] = []

    async def query(instance: ClientInstance, group: str, queue: MessageQueue) -> int | None:
        place = queue.topic, queue.queue_id
        asked.append(place)
        if place in bad:
            raise RemotingTimeoutError(f"no answer for {queue}")
        return await query_consumer_offset(instance, group, queue)

    monkeypatch.setattr("oberth.client.group_consumer.query_consumer_offset", query)
    config = ClientConfig(namesrv_addr=mq.namesrv_addr, rebalance_interval_ms=10)
    async with PullConsumer("g", dict.fromkeys(TOPICS, "*"), config=config) as consumer:
        await mq.wait_until(lambda: len(consumer.assignment) == 10)
        del asked[:]
        await mq.wait_until(lambda: len(asked) >= 18)
        # In turns, so that none of them waits for ever when it is answered for.
        assert {*asked[:6]} == bad
        assert asked[:12] == asked[6:18]
        bad.remove(("U", 5))
        await mq.wait_until(lambda: len(consumer.assignment) == 11)
        bad.clear()
        await mq.wait_until(lambda: len(consumer.assignment) == 16)


async def test_a_topic_that_nothing_is_said_of_keeps_no_other_away(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round ended with it."""
    subscribe_queues = ClientInstance.subscribe_queues

    async def some(instance: ClientInstance, topic: str) -> list[MessageQueue]:
        if topic == TOPICS[0]:
            raise RemotingTimeoutError("no name server answers")
        return await subscribe_queues(instance, topic)

    monkeypatch.setattr(ClientInstance, "subscribe_queues", some)
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        for topic in TOPICS:
            await admin.create_topic(topic)
    async with PullConsumer(
        "g", dict.fromkeys(TOPICS, "*"), namesrv_addr=mq.namesrv_addr
    ) as consumer:
        await mq.wait_until(lambda: len(consumer.assignment) == 8)
        assert {queue.topic for queue in consumer.assignment} == {TOPICS[1]}


@pytest.mark.parametrize("how", ["members", "by the broker", "in order"])
async def test_what_any_broker_can_say_is_asked_of_another_than_who_hangs(
    mq: EmbeddedBroker, other: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It was waited for once for each topic, and of that topic no queue was taken."""
    monkeypatch.setattr("oberth.client.route.random.shuffle", lambda _: None)  # who hangs is first
    dropped = mq.faults.drop(
        [RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_ASSIGNMENT], times=1000
    )
    locks = mq.faults.drop([RequestCode.LOCK_BATCH_MQ], times=1000)
    rounds = count_rounds(monkeypatch)
    async with PushConsumer(
        "g", dict.fromkeys(TOPICS, "*"), listener=print, orderly=how == "in order",
        client_rebalance=how != "by the broker",
        config=ClientConfig(namesrv_addr=mq.namesrv_addr, mq_client_api_timeout_ms=300),
    ) as consumer:  # fmt: skip
        await mq.wait_until(lambda: len(consumer.assigned) >= 16)
        assert {(each.topic, each.broker_name) for each in consumer.assigned} == {
            (topic, "broker-b") for topic in TOPICS
        }
    assert 0 < dropped.hits <= len(rounds)
    assert locks.hits == 0
