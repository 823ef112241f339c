"""Proves what clients of one configuration share: how it ends, and who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any, Final

import pytest

from oberth.client import (
    ClientConfig,
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from oberth.client.admin import Admin
from oberth.client.instance import ClientInstance
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode
from oberth.testing.embedded_broker import EmbeddedBroker
from oberth.testing.wire_faults import Fault

FIRST: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def connections(mq: EmbeddedBroker) -> int:
    server = mq.broker.server
    assert server is not None
    return len(server.channels)


def is_hit(fault: Fault) -> bool:
    return fault.hits > 0


def instances() -> dict[object, list[ClientInstance]]:
    return ClientInstance._instances.get(asyncio.get_running_loop(), {})


async def test_a_shutdown_that_is_cancelled_leaves_nothing_behind(mq: EmbeddedBroker) -> None:
    """While a broker hung: its tasks and connections stayed for good."""
    consumer = PullConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr)
    await consumer.start()
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
        assert connections(mq) == 1
        for client in (consumer, producer):
            assert instances()
            dropped = mq.faults.drop([RequestCode.UNREGISTER_CLIENT])
            ending = asyncio.create_task(client.shutdown())
            await mq.wait_until(partial(is_hit, dropped))
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
    assert not instances()
    await mq.wait_until(lambda: connections(mq) == 0)


async def first(consumer: PullConsumer | PushConsumer) -> None:
    if isinstance(consumer, PullConsumer):
        assert await consumer.poll()
    else:
        loop = aiter(consumer)
        await anext(loop)
        ahead = asyncio.ensure_future(anext(loop))  # which has done the first one by asking
        await asyncio.sleep(0)
        ahead.cancel()


@pytest.mark.parametrize("hangs", ["commit", "lock"])
@pytest.mark.parametrize("kind", [PullConsumer, PushConsumer])
@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_consumer_whose_shutdown_is_cancelled_is_gone(
    mq: EmbeddedBroker, kind: type[PullConsumer | PushConsumer], hangs: str, is_alone: bool
) -> None:
    """While its last offsets were committed, or it waited for a rebalance: nothing had ended."""
    config = ClientConfig(namesrv_addr=mq.namesrv_addr, enable_trace=True)
    async with contextlib.AsyncExitStack() as stack:
        if not is_alone:
            await stack.enter_async_context(Producer("p", config=config))
        async with Producer("q", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("T", b"x"))
        consumer = kind("g", {"T": "*"}, config=config, consume_from_where=FIRST)
        await consumer.start()
        await first(consumer)
        tasks = [assigned.task for assigned in consumer.assigned.values()]
        assert tasks
        dropped = mq.faults.drop([RequestCode.UPDATE_CONSUMER_OFFSET], times=1000)
        if hangs == "lock":
            await consumer._rebalance_lock.acquire()
        ending = asyncio.create_task(consumer.shutdown())
        if hangs == "commit":
            await mq.wait_until(partial(is_hit, dropped))
        else:
            await asyncio.sleep(0)
        also = asyncio.create_task(consumer.shutdown())
        await asyncio.sleep(0)
        also.cancel()  # which is no matter of the other one
        await asyncio.wait([also])
        assert not ending.done()
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert not consumer.is_running
        assert not consumer.assigned
        await asyncio.wait([task for task in tasks if task is not None])
        for known in instances().values():
            assert not any("g" in instance.consumers for instance in known)
        mq.faults.clear()
    assert not instances()
    await mq.wait_until(lambda: connections(mq) == 0)


@pytest.mark.parametrize("what", ["send", "trace", "transaction"])
async def test_a_producer_whose_shutdown_is_cancelled_is_gone(
    mq: EmbeddedBroker, what: str
) -> None:
    """While it waited for what was on its way."""
    started, gate = asyncio.Event(), asyncio.Event()

    class Slow:
        async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
            started.set()
            await gate.wait()
            return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.UNKNOW

    config = ClientConfig(namesrv_addr=mq.namesrv_addr, enable_trace=what == "trace")
    producer = TransactionProducer("p", Slow(), config=config, send_msg_timeout_ms=100_000)
    await producer.start()
    await producer.send(Message("T", b"x"))
    sending: asyncio.Future[Any] | None = None
    dropped = mq.faults.drop(times=1000)
    if what == "send":
        sending = await producer.send_async(Message("T", b"y"))
    elif what == "transaction":
        mq.faults.clear()
        sending = asyncio.create_task(producer.send_message_in_transaction(Message("T", b"y")))
        await started.wait()
    ending = asyncio.create_task(producer.shutdown())
    if what == "transaction":
        await asyncio.sleep(0)
    else:
        await mq.wait_until(partial(is_hit, dropped))
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert not instances()
    await mq.wait_until(lambda: connections(mq) == 0)
    gate.set()
    if sending is not None:
        await asyncio.wait([sending])


async def test_an_end_that_is_cancelled_goes_on(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, gate = asyncio.Event(), asyncio.Event()
    aclose = RemotingClient.aclose

    async def slow(self: RemotingClient) -> None:
        closing.set()
        await gate.wait()
        await aclose(self)

    admin = Admin(namesrv_addr=mq.namesrv_addr)
    await admin.start()
    await admin.all_topic_configs(mq.address)
    assert connections(mq) == 1
    with monkeypatch.context() as patched:
        patched.setattr(RemotingClient, "aclose", slow)
        ending = asyncio.create_task(admin.shutdown())
        await closing.wait()
        assert not instances()
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        gate.set()
        await mq.wait_until(lambda: connections(mq) == 0)


async def test_a_group_that_waits_holds_no_other_up(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a broker that hangs: the groups of a configuration got their queues one by one."""
    gate = asyncio.Event()

    async def slow() -> bool:
        return await gate.wait()

    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for topic in ("T", "U"):
            await producer.send(Message(topic, b"x"))
    async with (
        PullConsumer("first", {"T": "*"}, namesrv_addr=mq.namesrv_addr) as first,
        PullConsumer("second", {"T": "*"}, namesrv_addr=mq.namesrv_addr) as second,
    ):
        assert first.client_id == second.client_id
        await mq.wait_until(lambda: len(second.assignment) == 4)
        monkeypatch.setattr(first, "do_rebalance", slow)
        second.subscribe("U")
        await mq.wait_until(lambda: len(second.assignment) == 8)
        # Also a second time, while the first one still waits.
        second.unsubscribe("U")
        await mq.wait_until(lambda: len(second.assignment) == 4)
        gate.set()
