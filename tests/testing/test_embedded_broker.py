"""Proves the broker inside a test: ready at once, its clock, faults, kill and recover."""

from __future__ import annotations

import time

import pytest

from oberth.broker.broker_config import read_configs
from oberth.client import Message, Producer, blocking
from oberth.errors import MQBrokerError, OptionError
from oberth.testing.blocking import EmbeddedBroker as BlockingBroker
from oberth.testing.embedded_broker import DEFAULT_SETTINGS, EmbeddedBroker
from oberth.testing.virtual_clock import VirtualClock


async def test_ready_in_no_time() -> None:
    async with EmbeddedBroker():
        pass
    best = 60.0
    for _ in range(5):
        begin = time.perf_counter()
        async with EmbeddedBroker():
            best = min(best, time.perf_counter() - begin)
    assert best < 0.3


def test_the_default_settings_are_settings() -> None:
    entries = {**DEFAULT_SETTINGS, "namesrvAddr": "127.0.0.1:1", "storePathRootDir": "store"}
    _, store, warnings = read_configs(entries)
    assert warnings == []
    assert store.max_hash_slot_num == 5000


def test_the_clock() -> None:
    clock = VirtualClock(1000, frozen=True)
    woken: list[int] = []
    listener = lambda: woken.append(clock())  # noqa: E731
    clock.add_listener(listener)
    assert clock.advance(500, seconds=1, minutes=1) == 62_500
    clock.remove_listener(listener)
    clock.advance(1)
    assert woken == [62_500]
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    running = VirtualClock()
    assert abs(running() - time.time() * 1000) < 60_000


async def test_delays_come_at_once() -> None:
    async with (
        EmbeddedBroker() as mq,
        Producer("g", namesrv_addr=mq.namesrv_addr) as producer,
    ):
        await producer.send(Message("T", b"later", delay_time_level=18))
        mq.advance(minutes=121)
        await mq.wait_until(lambda: mq.bodies("T") == [b"later"])


async def test_assertions_name_what_is_wrong() -> None:
    async with (
        EmbeddedBroker() as mq,
        Producer("g", namesrv_addr=mq.namesrv_addr) as producer,
    ):
        await producer.send(Message("T", b"a"))
        mq.assert_stored("T", [b"a"])
        with pytest.raises(AssertionError, match=r"1 missing \[b'b'\], 1 too much \[b'a'\]"):
            mq.assert_stored("T", [b"b"])
        with pytest.raises(AssertionError, match=r"within 0\.01 s"):
            await mq.wait_until(lambda: False, 0.01)
        assert mq.topics() == ["T"]
        assert mq.messages("T")[0].body == b"a"
        assert mq.lag("nobody", "T") == 1


async def test_kill_and_restart_keep_what_was_stored() -> None:
    async with (
        EmbeddedBroker() as mq,
        Producer("g", namesrv_addr=mq.namesrv_addr) as producer,
    ):
        address = mq.address
        for step in (mq.kill, mq.recover, mq.restart):
            if step != mq.recover:
                await producer.send(Message("T", step.__name__.encode()))
            await step()
        assert mq.address == address
        await producer.send(Message("T", b"last"))
        assert mq.bodies("T") == [b"kill", b"restart", b"last"]


async def test_wrong_settings_are_named() -> None:
    with pytest.raises(OptionError, match="listenPort"):
        await EmbeddedBroker({"listenPort": "x"}).start()


@pytest.mark.rocketmq(brokerName="mine", autoCreateTopicEnable="false")
def test_fixture_with_settings(rocketmq: BlockingBroker) -> None:
    with blocking.Admin(namesrv_addr=rocketmq.namesrv_addr) as admin:
        assert list(admin.masters()) == ["mine"]


def test_fixture_in_a_plain_test(rocketmq: BlockingBroker) -> None:
    with blocking.Producer("g", namesrv_addr=rocketmq.namesrv_addr) as producer:
        producer.send(Message("T", b"a"))
        rocketmq.faults.refuse(times=3)
        with pytest.raises(MQBrokerError):
            producer.send(Message("T", b"b"))
        producer.send(Message("T", b"c", delay_time_level=1))
        rocketmq.clock.advance(5000)
        rocketmq.wait_until(lambda: len(rocketmq.bodies("T")) == 2)


async def test_fixture_in_an_asynchronous_test(rocketmq: BlockingBroker) -> None:
    async with Producer("g", namesrv_addr=rocketmq.namesrv_addr) as producer:
        await producer.send(Message("T", b"a"))
    assert rocketmq.bodies("T") == [b"a"]
