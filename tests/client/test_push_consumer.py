"""Proves what a push consumer promises: at least once, order, retries, dead letters."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oberth.client import (
    ConsumeContext,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    Producer,
    PushConsumer,
)
from oberth.client.config import ClientConfig
from oberth.client.consume_service import ConsumeJob, ConsumeService
from oberth.client.group_consumer import AssignedQueue
from oberth.client.instance import ClientInstance
from oberth.client.process_queue import ProcessQueue
from oberth.client.pulling import PullResult, PullStatus, pull, update_consumer_offset
from oberth.client.rebalance import allocate_average
from oberth.errors import MQBrokerError, MQClientError
from oberth.remoting.bodies.clients import HeartbeatData
from oberth.remoting.bodies.pop import SetMessageRequestModeRequestBody
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.testing.embedded_broker import EmbeddedBroker

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def quick(mq: EmbeddedBroker) -> ClientConfig:
    """Commits ten times a second."""
    return ClientConfig(namesrv_addr=mq.namesrv_addr, persist_consumer_offset_interval_ms=100)


async def fill(mq: EmbeddedBroker, topic: str, bodies: Sequence[bytes]) -> None:
    async with Producer("filler", namesrv_addr=mq.namesrv_addr) as producer:
        await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))


class Seen:
    """Collects what a listener is given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[MessageExt] = []

    async def __call__(self, message: MessageExt) -> None:
        self.bodies.append(message.body)
        self.messages.append(message)

    def sync(self, message: MessageExt) -> None:
        self.bodies.append(message.body)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("kind", ["async", "threads", "batch", "loop"])
async def test_everything_is_consumed_and_committed(
    mq: EmbeddedBroker, kind: str, orderly: bool
) -> None:
    bodies = [b"%d" % n for n in range(300)]
    await fill(mq, "T", bodies)
    seen = Seen()

    async def batch(messages: Sequence[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        assert len(messages) <= 16
        assert {m.queue_id for m in messages} == {context.message_queue.queue_id}
        seen.bodies += [m.body for m in messages]
        return ConsumeStatus.SUCCESS

    consumer = PushConsumer(
        "g",
        {"T": "*"},
        listener=seen if kind == "async" else seen.sync if kind == "threads" else None,
        batch_listener=batch if kind == "batch" else None,
        consume_message_batch_max_size=16,
        orderly=orderly,
        namesrv_addr=mq.namesrv_addr,
        consume_from_where=FIRST,
    )
    async with consumer:
        if kind == "loop":
            async for message in consumer:
                seen.bodies.append(message.body)
                if len(seen.bodies) == 300:
                    break
        await mq.wait_until(lambda: len(seen.bodies) == 300)
    assert sorted(seen.bodies) == sorted(bodies)
    assert mq.lag("g", "T") == 0


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_body_that_does_not_decompress_holds_nothing_up(
    mq: EmbeddedBroker, orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oberth.client.outgoing.compress", lambda *given: b"no zlib")
    async with Producer("filler", namesrv_addr=mq.namesrv_addr) as producer:
        for body in (b"before", b"x" * 10_000, b"behind"):
            await producer.send(Message("T", body, sharding_key="one queue"))
    seen = Seen()
    async with PushConsumer(
        "g",
        {"T": "*"},
        listener=seen,
        orderly=orderly,
        namesrv_addr=mq.namesrv_addr,
        consume_from_where=FIRST,
    ):
        await mq.wait_until(lambda: len(seen.bodies) == 3)
    assert sorted(seen.bodies) == [b"before", b"behind", b"no zlib"]
    assert [m.body for m in seen.messages if m.body_error] == [b"no zlib"]
    assert mq.lag("g", "T") == 0


async def test_order_in_each_queue(mq: EmbeddedBroker) -> None:
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for n in range(200):
            key = str(n % 5)
            await producer.send(Message("T", b"%d" % n, sharding_key=key))
    seen: dict[str, list[int]] = defaultdict(list)

    async def handle(message: MessageExt) -> None:
        if int(message.body) % 7 == 0 and message.reconsume_times == 0:
            raise RuntimeError("once")
        await asyncio.sleep(0)
        seen[message.get_property("__SHARDINGKEY")].append(int(message.body))

    async with PushConsumer(
        "g",
        {"T": "*"},
        listener=handle,
        orderly=True,
        suspend_current_queue_time_ms=10,
        namesrv_addr=mq.namesrv_addr,
        consume_from_where=FIRST,
    ):
        await mq.wait_until(lambda: sum(map(len, seen.values())) == 200)
    for numbers in seen.values():
        assert numbers == sorted(numbers)
    assert mq.lag("g", "T") == 0


async def test_tags_and_sql(mq: EmbeddedBroker) -> None:
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for n in range(30):
            tag = "abc"[n % 3]
            await producer.send(Message("T", tag.encode(), tags=tag, properties={"n": str(n)}))
    by_tag = Seen()
    async with PushConsumer(
        "g1", {"T": "a || c"}, listener=by_tag, config=quick(mq),
        consume_from_where=FIRST,
    ):  # fmt: skip
        await mq.wait_until(lambda: len(by_tag.bodies) == 20)
        await mq.wait_consumed("g1", "T")
    assert set(by_tag.bodies) == {b"a", b"c"}


async def test_sql(mq: EmbeddedBroker) -> None:
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for n in range(30):
            await producer.send(Message("T", b"x", properties={"n": str(n)}))
    by_sql = Seen()
    async with PushConsumer(
        "g2", {"T": MessageSelector.by_sql("n BETWEEN 3 AND 7")}, listener=by_sql,
        namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST,
    ):  # fmt: skip
        await mq.wait_until(lambda: len(by_sql.bodies) == 5)
    with pytest.raises(MQBrokerError):
        await PushConsumer(
            "g3", {"T": MessageSelector.by_sql("n BETWEEN")}, listener=by_sql,
            namesrv_addr=mq.namesrv_addr,
        ).start()  # fmt: skip


async def test_retries_and_dead_letter(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"bad", b"good"])
    attempts: list[tuple[bytes, int, str]] = []

    async def handle(message: MessageExt) -> None:
        attempts.append((message.body, message.reconsume_times, message.topic))
        if message.body == b"bad":
            raise RuntimeError("no")

    async with PushConsumer(
        "g", {"T": "*"}, listener=handle, max_reconsume_times=2, namesrv_addr=mq.namesrv_addr,
        consume_from_where=FIRST,
    ):  # fmt: skip
        await mq.wait_until(lambda: len(attempts) == 2)
        await mq.wait_until(lambda: len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1)
        mq.clock.advance(minutes=10)
        await mq.wait_until(lambda: len(attempts) == 3)
        await mq.wait_until(lambda: len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 2)
        mq.clock.advance(minutes=10)
        await mq.wait_until(lambda: len(mq.dead_letters("g")) == 1)
    assert attempts.count((b"good", 0, "T")) == 1
    assert [times for body, times, topic in attempts if body == b"bad"] == [0, 1, 2]
    (dead,) = mq.dead_letters("g")
    assert dead.body == b"bad"
    assert dead.get_property("RETRY_TOPIC") == "T"


async def test_orderly_dead_letter(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"bad"])
    seen = Seen()

    async def handle(message: MessageExt) -> ConsumeStatus:
        await seen(message)
        return ConsumeStatus.RECONSUME_LATER

    async with PushConsumer(
        "g", {"T": "*"}, listener=handle, orderly=True, max_reconsume_times=2,
        suspend_current_queue_time_ms=10, config=quick(mq), consume_from_where=FIRST,
    ):  # fmt: skip
        await mq.wait_until(lambda: len(mq.dead_letters("g")) == 1)
        await mq.wait_consumed("g", "T")
    assert len(seen.bodies) == 3, "the first time, and twice again"


async def test_loop_refuses_a_message(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"x"])
    async with PushConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        async for message in consumer:
            if message.reconsume_times:
                break
            consumer.reconsume_later(message, delay_level=1)
            asyncio.get_running_loop().call_later(0.1, mq.clock.advance, 2000)
    assert mq.lag("g", "%RETRY%g") == 0
    with pytest.raises(MQClientError):
        consumer.reconsume_later(message)


async def test_leaving_the_loop_by_an_exception_gives_the_message_back(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"x"])

    async def work() -> None:
        async with PushConsumer(
            "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
        ) as consumer:
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1
    assert mq.lag("g", "T") == 0


async def test_shutdown_after_a_loop_that_failed_gives_the_message_back(
    mq: EmbeddedBroker,
) -> None:
    """It was committed, and lost."""
    await fill(mq, "T", [b"x"])
    consumer = PushConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST)
    await consumer.start()

    async def work() -> None:
        try:
            async for _ in consumer:
                raise ZeroDivisionError
        finally:
            await consumer.shutdown()

    with pytest.raises(ZeroDivisionError):
        await work()
    assert len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1
    assert mq.lag("g", "T") == 0


@pytest.mark.parametrize("how", ["shutdown", "end of a block", "block that fails"])
@pytest.mark.parametrize("end", ["done", "cancelled", "before"])
async def test_shutdown_leaves_what_other_tasks_have_in_hand(
    mq: EmbeddedBroker, how: str, end: str
) -> None:
    """It is done when its loop asks for the next one, and comes again when its task was ended."""
    await fill(mq, "T", [b"x"])
    in_hand, gate = asyncio.Event(), asyncio.Event()
    consumer = PushConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST)

    async def work() -> None:
        async for _ in consumer:
            in_hand.set()
            await gate.wait()

    async def stop(task: asyncio.Task[None]) -> None:
        if end == "before":
            task.cancel()
            await asyncio.wait([task])
        if how == "shutdown":
            await consumer.shutdown()
        elif how == "end of a block":
            await consumer.__aexit__(None, None, None)
        else:
            await consumer.__aexit__(ValueError, ValueError(), None)

    await consumer.start()
    task = asyncio.create_task(work())
    await in_hand.wait()
    stopping = asyncio.create_task(stop(task))
    if end != "before":
        await mq.wait_until(lambda: consumer._closing)
        assert mq.lag("g", "T") == 1
    if end == "cancelled":
        task.cancel()
    else:
        gate.set()
    await stopping
    await asyncio.wait([task])
    assert len(mq.messages("SCHEDULE_TOPIC_XXXX")) == (0 if end == "done" else 1)
    assert mq.lag("g", "T") == 0


@pytest.mark.parametrize("how", ["task", "gather", "wait_for", "inner loop"])
async def test_a_loop_has_its_shutdown_done_by_another_task(
    mq: EmbeddedBroker, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop's task waited for the shutdown, and the shutdown for it, until it gave up."""
    await fill(mq, "T", [b"x"])
    await fill(mq, "U", [b"y"])
    consumer = PushConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST)
    await consumer.start()
    async for _ in consumer:
        if how == "task":
            await asyncio.create_task(consumer.shutdown())
        elif how == "gather":
            await asyncio.gather(consumer.shutdown(), asyncio.sleep(0))
        elif how == "wait_for":
            await asyncio.wait_for(consumer.shutdown(), 100)
        else:
            async with PushConsumer(
                "h", {"U": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
            ) as inner:
                async for _ in inner:
                    await asyncio.create_task(consumer.shutdown())
                    break
    assert "listeners still run" not in caplog.text
    assert len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1
    assert mq.lag("g", "T") == 0


async def test_a_shutdown_by_a_task_from_before_the_loop_waits_for_it(mq: EmbeddedBroker) -> None:
    """As by a handler of a signal. A loop that ends well meanwhile has done its message."""
    await fill(mq, "T", [b"x"])
    consumer = PushConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST)
    await consumer.start()
    stop = asyncio.Event()

    async def stopping() -> None:
        await stop.wait()
        await consumer.shutdown()

    async def work() -> None:
        async for _ in consumer:
            stop.set()
            await mq.wait_until(lambda: consumer._closing)
            assert mq.lag("g", "T") == 1
            break

    stopper = asyncio.create_task(stopping())
    await asyncio.create_task(work())
    await stopper
    assert mq.messages("SCHEDULE_TOPIC_XXXX") == []
    assert mq.lag("g", "T") == 0


@pytest.mark.parametrize("end", ["well", "failed"])
async def test_a_loop_that_ends_after_its_shutdown_has_no_say(
    mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    await fill(mq, "T", [b"x"])
    consumer = PushConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST,
        await_termination_ms_when_shutdown=1,
    )  # fmt: skip
    in_hand, gate = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async for _ in consumer:
            in_hand.set()
            await gate.wait()
            if end == "failed":
                raise ZeroDivisionError
            break

    for is_restarted in (False, True):
        in_hand.clear()
        gate.clear()
        await consumer.start()
        task = asyncio.create_task(work())
        await in_hand.wait()
        await consumer.shutdown()
        assert "listeners still run" in caplog.text
        if is_restarted:
            await consumer.start()
        gate.set()
        await asyncio.wait([task])
        task.exception()
        await asyncio.sleep(0)  # its callbacks
        await asyncio.sleep(0)
        assert "in the background" not in caplog.text
    await consumer.shutdown()
    assert mq.messages("SCHEDULE_TOPIC_XXXX") == []
    assert mq.lag("g", "T") == 1


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_shutdown_is_no_failed_attempt_that_ends_in_a_dead_letter(
    mq: EmbeddedBroker, orderly: bool
) -> None:
    await fill(mq, "T", [b"x"])
    for _ in range(2):
        consumer = PushConsumer(
            "g", {"T": "*"}, orderly=orderly, max_reconsume_times=0,
            namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST,
        )  # fmt: skip
        await consumer.start()
        async for message in consumer:
            assert message.body == b"x"
            await consumer.shutdown()
        assert mq.dead_letters("g") == []
        assert mq.lag("g", "T") == 1


async def test_what_a_loop_has_refused_is_refused_though_it_shuts_down(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"x"])
    consumer = PushConsumer(
        "g", {"T": "*"}, max_reconsume_times=0, namesrv_addr=mq.namesrv_addr,
        consume_from_where=FIRST,
    )  # fmt: skip
    await consumer.start()
    async for message in consumer:
        consumer.reconsume_later(message)
        await consumer.shutdown()
    assert [message.body for message in mq.dead_letters("g")] == [b"x"]
    assert mq.lag("g", "T") == 0


async def test_a_message_that_was_asked_for_with_a_timeout_is_done_with_the_block(
    mq: EmbeddedBroker,
) -> None:
    """Before Python 3.12 another task asks for it, which has ended."""
    await fill(mq, "T", [b"x"])
    async with PushConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        message = await asyncio.wait_for(anext(aiter(consumer)), 100)
        assert message.body == b"x"
    assert mq.messages("SCHEDULE_TOPIC_XXXX") == []
    assert mq.lag("g", "T") == 0


async def test_broadcasting_what_a_loop_has_in_hand_comes_again(
    mq: EmbeddedBroker, tmp_path: Path
) -> None:
    await fill(mq, "T", [b"x"])

    def member() -> PushConsumer:
        return PushConsumer(
            "g", {"T": "*"}, message_model=MessageModel.BROADCASTING,
            config=ClientConfig(namesrv_addr=mq.namesrv_addr, client_ip="127.0.0.1"),
            offset_store_dir=str(tmp_path), consume_from_where=FIRST,
        )  # fmt: skip

    async def fail() -> None:
        async with member() as consumer:
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with member() as consumer:
        async for message in consumer:
            assert message.body == b"x"
            break


async def test_a_message_that_cannot_be_given_back_goes_to_the_retry_topic(
    mq: EmbeddedBroker,
) -> None:
    await fill(mq, "T", [b"x"])
    mq.faults.refuse([36], response_code=1)

    async def handle(message: MessageExt) -> None:
        if message.reconsume_times == 0:
            raise RuntimeError("once")
        again.set_result(message)

    again: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
    async with PushConsumer(
        "g", {"T": "*"}, listener=handle, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ):
        await mq.wait_until(lambda: len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1)
        mq.clock.advance(minutes=1)
        message = await asyncio.wait_for(again, 100)
    assert (message.topic, message.reconsume_times) == ("T", 1)


async def test_broadcasting_keeps_offsets_in_a_file(mq: EmbeddedBroker, tmp_path: Path) -> None:
    await fill(mq, "T", [b"1", b"2", b"3"])

    async def consume(count: int) -> list[bytes]:
        seen = Seen()
        async with PushConsumer(
            "g", {"T": "*"}, listener=seen, message_model=MessageModel.BROADCASTING,
            config=config, offset_store_dir=str(tmp_path), consume_from_where=FIRST,
        ):  # fmt: skip
            await mq.wait_until(lambda: len(seen.bodies) == count)
        return sorted(seen.bodies)

    config = ClientConfig(namesrv_addr=mq.namesrv_addr, client_ip="127.0.0.1")
    assert await consume(3) == [b"1", b"2", b"3"]
    assert (tmp_path / "127.0.0.1@DEFAULT" / "g" / "offsets.json").exists()
    await fill(mq, "T", [b"4"])
    assert await consume(1) == [b"4"]
    assert mq.offsets("g", "T") == {}


async def test_broadcasting_a_queue_that_comes_back_goes_on_where_it_was(
    mq: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that left the route for a moment: its backlog was skipped."""
    await fill(mq, "T", [b"%d" % n for n in range(8)])
    gate = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        await gate.wait()

    async with PushConsumer(
        "g", {"T": "*"}, listener=handle, message_model=MessageModel.BROADCASTING,
        config=ClientConfig(namesrv_addr=mq.namesrv_addr, client_ip="127.0.0.1"),
        offset_store_dir=str(tmp_path), consume_from_where=FIRST,
    ) as consumer:  # fmt: skip
        await mq.wait_until(
            lambda: [each.process_queue.count for each in consumer.assigned.values()] == [2] * 4
        )
        consumer.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        queues = sorted(consumer.assigned)

        async def fewer(self: ClientInstance, topic: str) -> list[MessageQueue]:
            return queues[1:]

        with monkeypatch.context() as patched:
            patched.setattr(ClientInstance, "subscribe_queues", fewer)
            await consumer.do_rebalance()
        assert of_topic(consumer, "T") == [1, 2, 3]
        await consumer.do_rebalance()
        back = consumer.assigned[queues[0]].process_queue
        await mq.wait_until(lambda: back.count == 2)
        assert back.commit_offset == 0
        gate.set()


async def test_rebalance_moves_queues_without_loss_or_repeats(mq: EmbeddedBroker) -> None:
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body)

    def member() -> PushConsumer:
        return PushConsumer(
            "g", {"T": "*"}, listener=handle, namesrv_addr=mq.namesrv_addr,
            consume_from_where=FIRST,
        )  # fmt: skip

    count = 0
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:

        async def send_some(number: int) -> None:
            nonlocal count
            for _ in range(number):
                await producer.send(Message("T", b"%d" % count))
                count += 1

        await send_some(20)
        first = member()
        await first.start()
        await mq.wait_until(lambda: len(seen) == count)
        second = member()
        await second.start()
        await mq.wait_until(lambda: len([q for q in second.assigned if q.topic == "T"]) == 2)
        await mq.wait_until(lambda: len([q for q in first.assigned if q.topic == "T"]) == 2)
        await send_some(40)
        await mq.wait_until(lambda: len(seen) == count)
        await first.shutdown()
        await mq.wait_until(lambda: len([q for q in second.assigned if q.topic == "T"]) == 4)
        await send_some(40)
        await mq.wait_until(lambda: len(seen) >= count)
        await second.shutdown()
    assert sorted(seen) == sorted(b"%d" % n for n in range(count))
    assert mq.lag("g", "T") == 0


def of_topic(consumer: PushConsumer, topic: str) -> list[int]:
    return sorted(queue.queue_id for queue in consumer.assigned if queue.topic == topic)


async def test_a_member_that_only_loses_queues_hears_of_it(mq: EmbeddedBroker) -> None:
    heard: list[list[int]] = []

    class Member(PushConsumer):
        def _assignment_changed(self) -> None:
            heard.append(of_topic(self, "T"))

    async with Member("g", {"T": "*"}, listener=Seen(), namesrv_addr=mq.namesrv_addr):
        await fill(mq, "T", [b"x"])
        await mq.wait_until(lambda: [0, 1, 2, 3] in heard)
        async with PushConsumer("g", {"T": "*"}, listener=Seen(), namesrv_addr=mq.namesrv_addr):
            await mq.wait_until(lambda: len(heard[-1]) == 2)


async def test_the_broker_says_whose_the_queues_are() -> None:
    seen = Seen()
    # A broker that does not balance gives every queue to everyone, which no member would take for
    # itself when there are two.
    async with EmbeddedBroker({"serverLoadBalancerEnable": "false"}) as mq:
        await fill(mq, "T", [b"%d" % n for n in range(20)])

        def member() -> PushConsumer:
            return PushConsumer(
                "g", {"T": "*"}, listener=seen, namesrv_addr=mq.namesrv_addr,
                consume_from_where=FIRST, client_rebalance=False,
            )  # fmt: skip

        async with member() as one, member() as other:
            await mq.wait_until(lambda: of_topic(one, "T") == of_topic(other, "T") == [0, 1, 2, 3])


async def test_the_broker_balances(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"%d" % n for n in range(20)])
    seen = Seen()

    def member(*, client_rebalance: bool) -> PushConsumer:
        return PushConsumer(
            "g", {"T": "*"}, listener=seen, namesrv_addr=mq.namesrv_addr,
            consume_from_where=FIRST, client_rebalance=client_rebalance,
        )  # fmt: skip

    # Both ways come to the same result, so a group may have members of both kinds.
    async with member(client_rebalance=False) as one, member(client_rebalance=True) as other:
        await mq.wait_until(lambda: len(of_topic(one, "T")) == len(of_topic(other, "T")) == 2)
        assert sorted(of_topic(one, "T") + of_topic(other, "T")) == [0, 1, 2, 3]
        await mq.wait_until(lambda: len(set(seen.bodies)) == 20)


async def test_a_group_that_pops_is_not_pulled(
    mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(mq, "T", [b"x"])
    async with PushConsumer(
        "g", {"T": "*"}, listener=Seen(), namesrv_addr=mq.namesrv_addr, client_rebalance=False
    ) as consumer:
        await mq.wait_until(lambda: len(of_topic(consumer, "T")) == 4)
        assert consumer._instance is not None
        mode = SetMessageRequestModeRequestBody(
            consumer_group="g", topic="T", mode="POP", pop_share_queue_num=0
        )
        await consumer._instance.ask(
            mq.address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode.encode()
        )
        consumer._instance.rebalance_soon()
        await mq.wait_until(lambda: not of_topic(consumer, "T"))
    assert "use PopConsumer" in caplog.text


async def test_members_work_it_out_where_brokers_cannot(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def as_before_5(self: ClientInstance, *arguments: object) -> None:
        asked.append(arguments)
        raise MQBrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 400", "")

    monkeypatch.setattr(ClientInstance, "query_assignment", as_before_5)
    await fill(mq, "T", [b"x"])
    async with PushConsumer(
        "g", {"T": "*"}, listener=Seen(), namesrv_addr=mq.namesrv_addr, client_rebalance=False
    ) as consumer:
        await mq.wait_until(lambda: len(of_topic(consumer, "T")) == 4)
    assert len(asked) == 1


async def test_heartbeats_without_subscriptions(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[HeartbeatData] = []
    ask = ClientInstance.ask

    async def note(
        self: ClientInstance, addr: str, code: int, header: Any = None, body: Any = b"", **more: Any
    ) -> Any:
        if code == RequestCode.HEART_BEAT:
            sent.append(HeartbeatData.decode(body))
        return await ask(self, addr, code, header, body, **more)

    monkeypatch.setattr(ClientInstance, "ask", note)

    def is_brief() -> bool:
        return bool(sent) and sent[-1].without_sub

    def topics(data: HeartbeatData) -> list[str]:
        (consumer,) = data.consumer_data_set
        return sorted(each.topic for each in consumer.subscription_data_set)

    await fill(mq, "T", [b"x"])
    sent.clear()
    config = ClientConfig(namesrv_addr=mq.namesrv_addr, use_heartbeat_v2=True)
    async with PushConsumer("g", {"T": "*"}, listener=Seen(), config=config) as consumer:
        instance = consumer._instance
        assert instance is not None
        while not is_brief():
            await instance.send_heartbeats()
        assert topics(sent[0]) == ["%RETRY%g", "T"]
        assert topics(sent[-1]) == []
        fingerprint = sent[-1].heartbeat_fingerprint
        assert {each.heartbeat_fingerprint for each in sent} == {fingerprint} != {0}
        group = mq.broker.parts.consumers.get("g")
        assert group is not None
        assert sorted(group.subscriptions) == ["%RETRY%g", "T"]
        # What changed is told in full, and a broker that lost us gets everything anew.
        consumer.subscribe("U")
        await instance.send_heartbeats()
        assert "U" in topics(sent[-1])
        assert sent[-1].heartbeat_fingerprint != fingerprint
        while not is_brief():
            await instance.send_heartbeats()
        instance.remoting.disconnect(mq.address)
        await mq.wait_until(lambda: not is_brief())
        assert topics(sent[-1]) == ["%RETRY%g", "T", "U"]


async def test_flow_control(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"%d" % n for n in range(400)])
    gate = asyncio.Event()
    seen = Seen()

    async def handle(message: MessageExt) -> None:
        await gate.wait()
        await seen(message)

    async with PushConsumer(
        "g", {"T": "*"}, listener=handle, pull_threshold_for_queue=10, pull_batch_size=8,
        namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST,
    ) as consumer:  # fmt: skip
        await mq.wait_until(lambda: consumer.flow_control_times > 3)
        assert max(each.process_queue.count for each in consumer.assigned.values()) <= 18
        gate.set()
        await mq.wait_until(lambda: len(seen.bodies) == 400)


async def test_kill_and_recover_under_a_consumer(mq: EmbeddedBroker) -> None:
    seen = Seen()
    async with PushConsumer(
        "g", {"T": "*"}, listener=seen, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ):
        await fill(mq, "T", [b"1"])
        await mq.wait_until(lambda: b"1" in seen.bodies)
        await mq.kill()
        await mq.recover()
        await fill(mq, "T", [b"2"])
        await mq.wait_until(lambda: b"2" in seen.bodies, 100)


async def test_a_second_listener_or_a_wrong_number_is_refused() -> None:
    with pytest.raises(MQClientError):
        PushConsumer("g", listener=Seen(), batch_listener=lambda messages, context: None)
    with pytest.raises(MQClientError, match="pull_batch_size"):
        PushConsumer("g", pull_batch_size=0)
    with pytest.raises(MQClientError, match="tag"):
        PushConsumer("g", {"T": " || "})


async def test_a_slow_listener_loses_its_message(mq: EmbeddedBroker) -> None:
    await fill(mq, "T", [b"x"])
    gate = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        await gate.wait()

    async with PushConsumer(
        "g", {"T": "*"}, listener=handle, config=quick(mq), consume_from_where=FIRST
    ) as consumer:
        service = consumer._service
        assert service is not None
        await mq.wait_until(lambda: len(service.running) == 1)
        now_ms = next(iter(service.running)).started_ms
        assert consumer.give_up_expired(now_ms + 15 * 60_000) == 0
        assert consumer.give_up_expired(now_ms + 15 * 60_000 + 1) == 1
        await mq.wait_consumed("g", "T")
        gate.set()
    assert len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1


async def test_a_commit_meanwhile_does_not_undo_a_reset(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the reset was committed, the clock's commit noted the old offset again."""
    await fill(mq, "T", [b"%d" % n for n in range(8)])
    seen = Seen()
    under_way, gate = asyncio.Event(), asyncio.Event()

    async def slow(instance: Any, group: str, queue: MessageQueue, offset: int) -> None:
        if queue.topic == "T" and offset == 0:
            under_way.set()
            await gate.wait()
        await update_consumer_offset(instance, group, queue, offset)

    monkeypatch.setattr("oberth.client.group_consumer.update_consumer_offset", slow)
    async with PushConsumer(
        "g", {"T": "*"}, listener=seen, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        await mq.wait_until(lambda: len(seen.bodies) == 8)
        await consumer.persist_offsets(wait=True)
        assert mq.lag("g", "T") == 0
        consumer.suspend()  # nothing new is done
        queues = [queue for queue in consumer.assigned if queue.topic == "T"]
        reset = asyncio.create_task(consumer.reset_offsets("T", dict.fromkeys(queues, 0)))
        await under_way.wait()
        status = consumer.consumer_status("T")
        await consumer.persist_offsets()
        gate.set()
        await reset
        assert status == dict.fromkeys(queues, 0)
        await consumer.persist_offsets(wait=True)
        assert mq.offsets("g", "T") == dict.fromkeys(range(4), 0)


class OneAtATime:
    """A listener that waits, and how many calls of it run at once."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.running = self.most = 0
        self.gate = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        self.bodies.append(message.body)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1


async def one_queue(mq: EmbeddedBroker, count: int) -> None:
    async with Producer("p", namesrv_addr=mq.namesrv_addr, default_topic_queue_nums=1) as producer:
        for n in range(count):
            await producer.send(Message("T", b"%d" % n))


async def test_in_order_a_reset_waits_for_the_listener(mq: EmbeddedBroker) -> None:
    """A listener that took longer than a moment ran beside the next one for the same queue."""
    await one_queue(mq, 3)
    listener = OneAtATime()
    async with PushConsumer(
        "g", {"T": "*"}, listener=listener, orderly=True, config=quick(mq), consume_from_where=FIRST
    ) as consumer:
        await mq.wait_until(lambda: listener.running == 1)
        (queue,) = (queue for queue in consumer.assigned if queue.topic == "T")
        for offset in (1, 2):
            await consumer.reset_offsets("T", {queue: offset})
            assert not await consumer.do_rebalance()
        assert mq.offsets("g", "T") == {0: 2}
        assert listener.bodies == [b"0"]
        listener.gate.set()
        await mq.wait_until(lambda: listener.bodies == [b"0", b"2"])
        # An idle queue goes on at once, with its lock as it was.
        before = consumer.assigned[queue].process_queue
        await mq.wait_until(lambda: before.commit_offset == 3)
        before.last_lock_ms -= 1
        await consumer.reset_offsets("T", {queue: 0})
        after = consumer.assigned[queue].process_queue
        assert after is not before
        assert (after.locked, after.last_lock_ms) == (True, before.last_lock_ms)
        await mq.wait_until(lambda: listener.bodies == [b"0", b"2", b"0", b"1", b"2"])
    assert listener.most == 1
    assert mq.lag("g", "T") == 0


async def test_in_order_a_queue_that_comes_back_before_it_was_given_up_is_pulled(
    mq: EmbeddedBroker,
) -> None:
    """It stood still for two minutes, until its pull counted as lost."""
    await one_queue(mq, 1)
    listener = OneAtATime()

    class Strategy:
        name = "MINE"
        has_any = True

        def allocate(self, group: str, *arguments: Any) -> list[MessageQueue]:
            return allocate_average(*arguments) if self.has_any else []

    strategy = Strategy()
    async with PushConsumer(
        "g", {"T": "*"}, listener=listener, orderly=True, config=quick(mq),
        consume_from_where=FIRST, allocate_strategy=strategy,
    ) as consumer:  # fmt: skip
        await mq.wait_until(lambda: listener.running == 1)
        strategy.has_any = False
        assert not await consumer.do_rebalance()
        strategy.has_any = True
        assert not await consumer.do_rebalance()
        listener.gate.set()
        await consumer.do_rebalance()
        await one_queue(mq, 1)
        await mq.wait_until(lambda: len(listener.bodies) == 2)
    assert listener.most == 1
    assert mq.lag("g", "T") == 0


async def test_what_is_in_hand_when_a_broker_loses_the_end_of_a_queue_is_not_skipped(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that the broker still had and no listener had seen were committed."""
    async with Producer("p", namesrv_addr=mq.namesrv_addr, default_topic_queue_nums=1) as producer:
        for n in range(10):
            await producer.send(Message("T", b"%d" % n))
    starts: list[int] = []

    class Noting(PushConsumer):
        def _start_queue(self, assigned: AssignedQueue) -> None:
            if assigned.queue.topic == "T":
                starts.append(assigned.process_queue.next_offset)
            super()._start_queue(assigned)

    async def lost(instance: Any, template: Any, offset: int, **named: Any) -> PullResult:
        if offset == 10:
            return PullResult(PullStatus.OFFSET_ILLEGAL, ends_at, 0, queue_ends_at)
        return await pull(instance, template, offset, **named)

    gate = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        await gate.wait()

    monkeypatch.setattr("oberth.client.push_consumer.pull", lost)
    ends_at = queue_ends_at = 5
    async with Noting(
        "g", {"T": "*"}, listener=handle, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ) as consumer:
        await mq.wait_until(lambda: len(starts) == 2)
        assert starts[:2] == [0, 0]
        # A reset says where to go on, also past what is in hand.
        queue_ends_at = 10
        await mq.wait_until(lambda: starts[-1] == 5)
        await consumer.persist_offsets(wait=True)
        assert mq.offsets("g", "T")[0] >= 5
        gate.set()


class Verdicts:
    """An owner of a service that may always consume, and what it is told."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.done: list[int] = []

    def may_consume(self, assigned: AssignedQueue) -> bool:
        return True

    def on_job_start(self, job: ConsumeJob) -> None:
        self.begun += [message.queue_offset for message in job.messages]

    def on_job_done(
        self, job: ConsumeJob, status: ConsumeStatus, error: BaseException | None
    ) -> None:
        self.done += [message.queue_offset for message in job.messages]
        job.assigned.process_queue.remove(job.messages)


def held(count: int) -> AssignedQueue:
    """A queue whose messages from 0 on are pulled."""
    assigned = AssignedQueue(
        MessageQueue(topic="T", broker_name="b", queue_id=0), ProcessQueue(0, 0)
    )
    fixed = [(100, 0, 0, 0, 0, n, 0, 0, 0, b"", 0, b"", 0, 0, 0) for n in range(count)]
    messages = [MessageExt(b"", each, "T", 0, 0, 0, 0, "b") for each in fixed]
    assigned.process_queue.put(messages, count)
    return assigned


@pytest.mark.parametrize("end", ["gone", "abandoned", "closed"])
async def test_a_thread_calls_the_listener_only_while_it_should(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It was given many jobs at once, and worked through them whatever happened meanwhile."""
    entered, gate, called = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def listener(message: MessageExt) -> None:
        called.append(message.queue_offset)
        if len(called) == 1:
            loop.call_soon_threadsafe(entered.set)
            gate.wait()

    monkeypatch.setattr("oberth.client.consume_service.THREAD_CALL_SLOW_S", 1e9)
    owner, assigned = Verdicts(), held(8)
    service = ConsumeService(owner, orderly=False, batch_size=1, now_ms=lambda: 0)
    service.start(listener, None, 1)
    service._thread_cost_s = 1e-6  # as after many fast calls
    service.ready(assigned)
    await entered.wait()
    assert len(service.running) == 8
    if end == "gone":
        assigned.process_queue.drop()
    elif end == "abandoned":
        for job in service.running:
            job.abandoned = job.messages[0].queue_offset > 0
    else:
        await service.aclose()
    returned = asyncio.Event()
    put_back = service.put_back

    def noted(jobs: Sequence[ConsumeJob]) -> None:
        put_back(jobs)
        returned.set()

    monkeypatch.setattr(service, "put_back", noted)
    gate.set()
    await returned.wait()
    assert called == owner.begun == owner.done == [0]
    if end != "abandoned":  # else somebody else has them
        assert assigned.process_queue.consuming == 0
        assert [each.queue_offset for each in assigned.process_queue.pending] == [*range(1, 8)]
    assert assigned.process_queue.commit_offset == 1
    await service.aclose()


async def test_a_thread_gives_back_what_is_behind_a_slow_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("oberth.client.consume_service.THREAD_CALL_SLOW_S", -1.0)
    owner, assigned = Verdicts(), held(8)
    service = ConsumeService(owner, orderly=False, batch_size=1, now_ms=lambda: 0)
    service.start(lambda message: None, None, 1)
    given_back: asyncio.Queue[int] = asyncio.Queue()
    put_back = service.put_back

    def noted(jobs: Sequence[ConsumeJob]) -> None:
        service._thread_cost_s = 1e-6  # as after many fast calls
        put_back(jobs)
        given_back.put_nowait(len(jobs))

    monkeypatch.setattr(service, "put_back", noted)
    service._thread_cost_s = 1e-6
    service.ready(assigned)
    assert [await given_back.get() for _ in range(8)] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert owner.begun == owner.done == [*range(8)]
    assert (assigned.process_queue.commit_offset, assigned.process_queue.consuming) == (8, 0)
    await service.aclose()


async def test_a_rebalance_while_starting_takes_nothing(mq: EmbeddedBroker) -> None:
    """A shared instance rebalances whenever it likes; a pull without a service would be lost."""
    await fill(mq, "T", [b"x"])
    seen = Seen()

    class Slow(PushConsumer):
        async def _check_subscriptions(self) -> None:
            await self._running().send_heartbeats()
            assert await self.do_rebalance()
            assert not self.assigned

    async with Slow(
        "g", {"T": "*"}, listener=seen, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
    ):
        await mq.wait_until(lambda: seen.bodies == [b"x"])
