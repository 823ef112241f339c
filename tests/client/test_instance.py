"""Proves what clients of one configuration share: how it ends, and who waits for whom."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from oberth.client import Message, Producer, PullConsumer
from oberth.client.admin import Admin
from oberth.client.instance import ClientInstance
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode
from oberth.testing.embedded_broker import EmbeddedBroker
from oberth.testing.wire_faults import Fault


def connections(mq: EmbeddedBroker) -> int:
    server = mq.broker.server
    assert server is not None
    return len(server.channels)


def is_hit(fault: Fault) -> bool:
    return fault.hits > 0


def instances() -> object:
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
        gate.set()
