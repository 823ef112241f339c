"""Proves polling, committing and seeking of a PullConsumer."""

from __future__ import annotations

import asyncio

import pytest

from oberth.client import (
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    group_consumer,
)
from oberth.client.instance import ClientInstance
from oberth.client.pulling import update_consumer_offset
from oberth.errors import MQClientError, RemotingTimeoutError
from oberth.testing.embedded_broker import EmbeddedBroker

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def fill(mq: EmbeddedBroker, count: int, start: int = 0) -> None:
    async with Producer("filler", namesrv_addr=mq.namesrv_addr) as producer:
        await asyncio.gather(
            *(producer.send(Message("T", b"%d" % n)) for n in range(start, start + count))
        )


async def take(consumer: PullConsumer, count: int) -> list[bytes]:
    taken: list[bytes] = []
    while len(taken) < count:
        messages = await consumer.poll(5000)
        assert messages, f"{len(taken)} of {count} messages"
        taken += [message.body for message in messages]
    return taken


async def test_subscribe_poll_commit(mq: EmbeddedBroker) -> None:
    await fill(mq, 100)
    async with PullConsumer(
        "g", {"T": "*"}, auto_commit=False, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        assert sorted(await take(consumer, 100)) == sorted(b"%d" % n for n in range(100))
        assert await consumer.poll(10) == []
        assert mq.lag("g", "T") == 100
        await consumer.commit()
        assert mq.lag("g", "T") == 0
        assert len(consumer.assignment) == 4
        queue = min(consumer.assignment)
        assert await consumer.committed(queue) == await consumer.max_offset(queue)
    await fill(mq, 3, 100)
    async with PullConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr) as consumer:
        assert sorted(await take(consumer, 3)) == [b"100", b"101", b"102"]
    assert mq.lag("g", "T") == 0


async def test_a_commit_that_failed_says_so(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`commit` returns when the brokers have the offsets, and not otherwise."""
    busy = {"failures": 3}

    async def sometimes(
        instance: ClientInstance, group: str, queue: MessageQueue, offset: int
    ) -> None:
        if busy["failures"]:
            busy["failures"] -= 1
            raise RemotingTimeoutError("busy")
        await update_consumer_offset(instance, group, queue, offset)

    monkeypatch.setattr(group_consumer, "update_consumer_offset", sometimes)
    await fill(mq, 21)
    async with PullConsumer(
        "g", namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        await consumer.assign(await consumer.fetch_message_queues("T"))
        await take(consumer, 21)
        with pytest.raises(MQClientError, match="3 of 4 offsets are not committed"):
            await consumer.commit()
        assert 0 < mq.lag("g", "T") < 21
        await consumer.commit()
        assert mq.lag("g", "T") == 0


async def test_assign_and_seek(mq: EmbeddedBroker) -> None:
    await fill(mq, 40)
    async with PullConsumer(
        "g", namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        queues = await consumer.fetch_message_queues("T")
        await consumer.assign(queues[:1])
        bodies = [message.body for message in mq.messages("T", 0)]
        assert await take(consumer, 10) == bodies
        await consumer.seek(queues[0], 7)
        assert await take(consumer, 3) == bodies[7:]
        await consumer.seek_to_begin(queues[0])
        assert await take(consumer, 10) == bodies
        await consumer.seek_to_end(queues[0])
        assert await consumer.poll(50) == []
        when = mq.messages("T", 0)[0].store_timestamp
        await consumer.seek_to_time(queues[0], when)
        assert await take(consumer, 10) == bodies
        for offset in (-1, 11):
            with pytest.raises(MQClientError, match="must be 0 to 10"):
                await consumer.seek(queues[0], offset)
        with pytest.raises(MQClientError, match="not assigned"):
            await consumer.seek(queues[1], 0)
        with pytest.raises(MQClientError, match="mixed"):
            consumer.subscribe("T")
        consumer.pause(queues[:1])
        await consumer.seek(queues[0], 0)
        assert await consumer.poll(50) == []
        consumer.resume(queues[:1])
        assert await take(consumer, 10) == bodies
        await consumer.assign(queues[1:])
        assert consumer.assignment == set(queues[1:])
        assert len(await take(consumer, 30)) == 30


async def test_iteration_commits_what_is_done(mq: EmbeddedBroker) -> None:
    await fill(mq, 8)
    async with PullConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        taken = []
        async for message in consumer:
            taken.append(message)
            if len(taken) == 8:
                break
    # The message in hand when the loop was left is not done.
    assert mq.lag("g", "T") == 1
    assert mq.offsets("g", "T")[taken[-1].queue_id] == taken[-1].queue_offset


async def test_not_started() -> None:
    with pytest.raises(MQClientError):
        await PullConsumer("g").assign([MessageQueue()])
