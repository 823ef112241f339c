"""Proves polling, committing and seeking of a PullConsumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Any

import pytest

from oberth.client import (
    ClientConfig,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    blocking,
    group_consumer,
)
from oberth.client.instance import ClientInstance
from oberth.client.pulling import PullResult, PullStatus, pull, update_consumer_offset
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


async def test_a_queue_that_ends_earlier_than_before_is_read_on(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker lost its last messages, or the group was reset: what came next was left out."""
    await fill(mq, 40)
    moves = asyncio.Event()

    async def moved(instance: Any, template: Any, offset: int, **named: Any) -> PullResult:
        if offset == 10:
            await moves.wait()
            moves.clear()
            return PullResult(PullStatus.OFFSET_ILLEGAL, 7, 0, 10)
        return await pull(instance, template, offset, **named)

    monkeypatch.setattr("oberth.client.pull_consumer.pull", moved)
    async with PullConsumer(
        "g", namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST, auto_commit=False
    ) as consumer:
        queues = await consumer.fetch_message_queues("T")
        await consumer.assign(queues[:1])
        bodies = [message.body for message in mq.messages("T", 0)]
        assert await take(consumer, 10) == bodies
        moves.set()
        assert await take(consumer, 3) == bodies[7:]
        # The same with messages that were not given out yet.
        await consumer.seek(queues[0], 0)
        held = consumer.assigned[queues[0]].process_queue
        await mq.wait_until(lambda: held.next_offset == 10)
        moves.set()
        await mq.wait_until(lambda: not moves.is_set() and held.next_offset == 10)
        assert await take(consumer, 10) == bodies
        assert (held.count, held.size) == (0, 0)
        await consumer.commit()
        assert mq.offsets("g", "T")[0] == 10


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


async def fill_one_queue(mq: EmbeddedBroker, count: int) -> list[bytes]:
    bodies = [b"%d" % n for n in range(count)]
    async with Producer("p", namesrv_addr=mq.namesrv_addr, default_topic_queue_nums=1) as producer:
        for body in bodies:
            await producer.send(Message("T", body))
    return bodies


def looper(mq: EmbeddedBroker, batch_size: int = 32) -> PullConsumer:
    """One that commits whenever it asks for more."""
    return PullConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST,
        auto_commit_interval_ms=0, pull_batch_size=batch_size,
    )  # fmt: skip


async def loop_over(consumer: PullConsumer, count: int) -> list[bytes]:
    taken: list[bytes] = []
    async for message in consumer:
        taken.append(message.body)
        if len(taken) == count:
            break
    return taken


@pytest.mark.parametrize("then", ["loop", "poll", "both"])
async def test_what_a_loop_leaves_comes_next(mq: EmbeddedBroker, then: str) -> None:
    """The rest of its batch was lost, and committed by whoever asked next."""
    bodies = await fill_one_queue(mq, 40)
    async with looper(mq) as consumer:
        assert await loop_over(consumer, 1) == bodies[:1]
        if then == "poll":
            assert await take(consumer, 40) == bodies
        else:
            assert await loop_over(consumer, 5) == bodies[:5]
            await consumer.commit()
            assert mq.offsets("g", "T") == {0: 4}
            if then == "both":
                assert await take(consumer, 36) == bodies[4:]
            else:
                assert await loop_over(consumer, 36) == bodies[4:]
    assert mq.lag("g", "T") == (1 if then == "loop" else 0)


async def test_what_a_loop_leaves_that_failed_comes_next(mq: EmbeddedBroker) -> None:
    bodies = await fill_one_queue(mq, 8)
    async with looper(mq) as consumer:

        async def fail() -> None:
            async for message in consumer:
                assert 3 // (3 - int(message.body)) > 0

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await take(consumer, 5) == bodies[3:]


@pytest.mark.parametrize("who", ["the task", "the thread", "another task", "one that has ended"])
async def test_a_loop_beside_poll_does_not_commit_what_poll_gave_out(
    mq: EmbeddedBroker, who: str
) -> None:
    """It did, though who polled was still at it. One that has ended is not."""
    bodies = await fill_one_queue(mq, 8)
    if who == "the thread":

        def poll_and_loop() -> None:
            with blocking.PullConsumer(
                "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST,
                auto_commit_interval_ms=0, pull_batch_size=2,
            ) as consumer:  # fmt: skip
                assert [each.body for each in consumer.poll(5000)] == bodies[:2]
                assert [each.body for each in islice(consumer, 5)] == bodies[2:7]
                (queue,) = consumer.assignment
                assert consumer._inner._store().table.get(queue) == 6  # type: ignore[attr-defined] # the asynchronous one

        await asyncio.to_thread(poll_and_loop)
        return
    async with looper(mq, batch_size=2) as consumer:
        polled, done = asyncio.Event(), asyncio.Event()

        async def poll_and_work() -> None:
            assert await take(consumer, 2) == bodies[:2]
            polled.set()
            await done.wait()

        if who == "the task":
            done.set()
            await poll_and_work()
        else:
            task = asyncio.create_task(poll_and_work())
            await polled.wait()
            if who == "one that has ended":
                done.set()
                await task
        assert await loop_over(consumer, 5) == bodies[2:7]
        (queue,) = consumer.assigned
        assert consumer._store().table.get(queue) == (0 if who == "another task" else 6)
        done.set()
        await consumer.commit()
        assert mq.offsets("g", "T") == {0: 6}


async def test_a_loop_that_is_closed_while_it_waits_keeps_nothing(mq: EmbeddedBroker) -> None:
    """What came for it stayed with it as long as somebody had it."""
    await fill_one_queue(mq, 1)
    async with looper(mq) as consumer:
        assert len(await take(consumer, 1)) == 1
        loop: Any = aiter(consumer)
        waiting = asyncio.create_task(anext(loop, None))
        await asyncio.sleep(0)
        await loop.aclose()
        await fill(mq, 1, 1)
        assert await waiting is None
        assert await take(consumer, 1) == [b"1"]


async def test_of_loops_side_by_side_the_first_message_in_hand_is_committed(
    mq: EmbeddedBroker,
) -> None:
    """It was what the last of them had got."""
    await fill_one_queue(mq, 12)
    async with looper(mq, batch_size=4) as consumer:
        one, other = aiter(consumer), aiter(consumer)

        async def step(loop: AsyncIterator[MessageExt]) -> int:
            return (await anext(loop)).queue_offset

        assert [await step(one), await step(other)] == [0, 4]
        assert [await step(other) for _ in range(5)] == [5, 6, 7, 8, 9]
        await consumer.commit()
        assert mq.offsets("g", "T").get(0, 0) == 0
        assert [await step(one) for _ in range(3)] == [1, 2, 3]
        await consumer.commit()
        assert mq.offsets("g", "T") == {0: 3}
        del one
        assert [each.queue_offset for each in await consumer.poll()] == [3]
        await consumer.commit()
        assert mq.offsets("g", "T") == {0: 9}
        # Left in the wrong order, they come in the right one.
        (queue,) = consumer.assignment
        await consumer.seek(queue, 0)
        third: Any = aiter(consumer)
        one = aiter(consumer)
        assert [await step(third), await step(one)] == [0, 4]
        del one
        await third.aclose()
        assert await take(consumer, 12) == [b"%d" % n for n in range(12)]
        with pytest.raises(StopAsyncIteration):
            await anext(third)
        # What is gone out of a queue that was reset does not hold its offset back.
        await consumer.seek(queue, 0)
        assert await step(other) == 10
        assert await step(other) == 11
        assert await step(other) == 0
        consumer.pause([queue])
        await consumer.reset_offsets("T", {queue: 6})
        await consumer.commit()
        assert mq.offsets("g", "T") == {0: 6}


async def test_a_loop_ends_with_its_consumer(mq: EmbeddedBroker) -> None:
    await fill_one_queue(mq, 8)
    taken = 0
    async with looper(mq) as consumer:
        async for _ in consumer:
            taken += 1
            if taken == 3:
                await consumer.shutdown()
    assert taken == 3
    assert mq.offsets("g", "T") == {0: 2}


@pytest.mark.parametrize(("change", "offset"), [("shutdown", 2), ("reset", 6)])
async def test_a_commit_meanwhile_does_not_undo_a_shutdown_or_a_reset(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, change: str, offset: int
) -> None:
    """Whatever a loop has in hand."""
    under_way, gate = asyncio.Event(), asyncio.Event()

    async def slow(instance: ClientInstance, group: str, queue: MessageQueue, offset: int) -> None:
        under_way.set()
        await gate.wait()
        await update_consumer_offset(instance, group, queue, offset)

    monkeypatch.setattr(group_consumer, "update_consumer_offset", slow)
    await fill_one_queue(mq, 8)
    async with looper(mq) as consumer:
        consumer.auto_commit_interval_ms = consumer._next_commit_ms = 1 << 60
        messages = aiter(consumer)
        assert [(await anext(messages)).queue_offset for _ in range(3)] == [0, 1, 2]
        (queue,) = consumer.assignment
        consumer.pause([queue])
        changing = asyncio.create_task(
            consumer.shutdown()
            if change == "shutdown"
            else consumer.reset_offsets("T", {queue: offset})
        )
        await under_way.wait()
        await consumer.commit(wait=False)
        assert list(consumer.consumer_status("T").values()) == [offset]
        gate.set()
        await changing
    assert mq.offsets("g", "T") == {0: offset}


class Moved:
    """Gives a member the queues that it is told to have."""

    name = "MOVED"

    def __init__(self) -> None:
        self.queues: list[MessageQueue] = []

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        del group, client_id, queues, client_ids
        return self.queues


def member(mq: EmbeddedBroker, name: str, place: Moved) -> PullConsumer:
    """One of several members; it commits with each poll."""
    return PullConsumer(
        "g",
        {"T": "*"},
        config=ClientConfig(namesrv_addr=mq.namesrv_addr, instance_name=name),
        consume_from_where=FIRST if name == "giver" else ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        allocate_strategy=place,
        auto_commit_interval_ms=0,
        pull_batch_size=4,
    )


async def move(queue: MessageQueue, place: Moved, consumer: PullConsumer) -> None:
    """The queue is all that a member has from now on."""
    place.queues = [queue]
    await consumer.do_rebalance()
    assert consumer.assignment == {queue}


async def give_up(place: Moved, consumer: PullConsumer) -> None:
    """A member has no queue any more."""
    place.queues = []
    await consumer.do_rebalance()
    assert consumer.assignment == set()


@pytest.mark.parametrize("polls", [1, 2])
async def test_what_the_program_has_goes_to_the_next_owner_of_its_queue(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, polls: int
) -> None:
    """Also where the broker knows no offset of the group, and the next owner would take the end."""

    async def known(instance: ClientInstance, group: str, queue: MessageQueue) -> int | None:
        del instance
        return mq.offsets(group, queue.topic).get(queue.queue_id)

    monkeypatch.setattr(group_consumer, "query_consumer_offset", known)
    await fill(mq, 40)
    bodies = [message.body for message in mq.messages("T", 0)]
    giving, taking = Moved(), Moved()
    async with member(mq, "giver", giving) as giver, member(mq, "taker", taking) as taker:
        queue = min(await giver.fetch_message_queues("T"))
        await move(queue, giving, giver)
        for n in range(polls):
            assert [each.body for each in await giver.poll()] == bodies[4 * n : 4 * n + 4]
        await give_up(giving, giver)
        done = 4 * (polls - 1)
        assert mq.offsets("g", "T") == {0: done}
        await move(queue, taking, taker)
        assert await take(taker, 10 - done) == bodies[done:]
        await taker.commit()
        assert mq.offsets("g", "T") == {0: 10}
        assert await giver.poll(0) == []
        await giver.commit()
        assert mq.offsets("g", "T") == {0: 10}


async def test_an_iteration_over_a_queue_that_is_gone_commits_no_more(mq: EmbeddedBroker) -> None:
    await fill(mq, 40)
    giving, taking = Moved(), Moved()
    async with member(mq, "giver", giving) as giver, member(mq, "taker", taking) as taker:
        queue = min(await giver.fetch_message_queues("T"))
        await move(queue, giving, giver)
        messages = aiter(giver)
        for offset in range(3):
            assert (await anext(messages)).queue_offset == offset
        await give_up(giving, giver)
        assert mq.offsets("g", "T") == {0: 2}
        await move(queue, taking, taker)
        assert len(await take(taker, 8)) == 8
        await taker.commit()
        assert (await anext(messages)).queue_offset == 3
        await giver.commit()
        assert mq.offsets("g", "T") == {0: 10}


async def test_a_reset_stays_whatever_was_given_out_before(mq: EmbeddedBroker) -> None:
    await fill(mq, 40)
    place = Moved()
    async with member(mq, "giver", place) as consumer:
        queue = min(await consumer.fetch_message_queues("T"))
        await move(queue, place, consumer)
        assert len(await take(consumer, 10)) == 10
        await consumer.commit()
        assert mq.offsets("g", "T") == {0: 10}
        consumer.pause([queue])
        await consumer.reset_offsets("T", {queue: 1})
        assert mq.offsets("g", "T") == {0: 1}
        assert await consumer.poll(0) == []
        await consumer.commit()
        assert mq.offsets("g", "T") == {0: 1}


async def test_not_started() -> None:
    with pytest.raises(MQClientError):
        await PullConsumer("g").assign([MessageQueue()])
