"""Proves every way of sending, and what happens when brokers refuse, are slow, or go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oberth.client import Message, Producer, SendStatus, select_by_hash
from oberth.client.admin import Admin
from oberth.client.admin.topics import ORDER_TOPIC_NAMESPACE
from oberth.client.batches import check_batch, split_batch
from oberth.client.config import ClientConfig
from oberth.client.instance import BROKER_NOT_EXIST, ClientInstance
from oberth.errors import (
    MQBrokerError,
    MQClientError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
)
from oberth.formats.compression import Compression
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.route import MASTER_ID, TopicRouteData
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.testing.embedded_broker import EmbeddedBroker


async def test_send_says_where_the_message_is(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        message = Message("T", b"hello", tags="a", keys="k", properties={"mine": "1"}, flag=7)
        result = await producer.send(message)
    assert result.status is SendStatus.SEND_OK
    (stored,) = mq.messages("T")
    assert stored.msg_id == result.msg_id == message.msg_id
    assert stored.offset_msg_id == result.offset_msg_id
    assert (stored.queue_id, stored.queue_offset) == (
        result.message_queue.queue_id,
        result.queue_offset,
    )
    assert (stored.body, stored.tags, stored.keys, stored.flag) == (b"hello", "a", "k", 7)
    assert stored.get_property("mine") == "1"


async def test_messages_go_round_the_queues(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        queues = await producer.fetch_publish_message_queues("T")
        results = [await producer.send(Message("T", b"x")) for _ in range(8)]
        sharded = [await producer.send(Message("T", b"x", sharding_key="s")) for _ in range(5)]
        chosen = await producer.send(Message("T", b"x"), selector=select_by_hash, arg=6)
        given = await producer.send(Message("T", b"x"), mq=queues[3])
    assert [each.queue_id for each in queues] == [0, 1, 2, 3]
    assert {each.message_queue for each in results} == set(queues)
    assert len({each.message_queue for each in sharded}) == 1
    assert chosen.message_queue == queues[2]
    assert given.message_queue == queues[3]


async def test_many_at_once_async_and_oneway(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        await asyncio.gather(*(producer.send(Message("T", b"a%d" % n)) for n in range(200)))
        futures = [await producer.send_async(Message("T", b"b%d" % n)) for n in range(200)]
        await asyncio.gather(*futures)
        for n in range(50):
            await producer.send_oneway(Message("T", b"c%d" % n))
        await mq.wait_until(lambda: len(mq.bodies("T")) == 450)
    wanted = [b"a%d" % n for n in range(200)] + [b"b%d" % n for n in range(200)]
    mq.assert_stored("T", wanted + [b"c%d" % n for n in range(50)])
    assert len({message.msg_id for message in mq.messages("T")}) == 450


@pytest.mark.parametrize("size", [5000, 200_000])
@pytest.mark.parametrize("compression", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
async def test_long_bodies_are_compressed(
    mq: EmbeddedBroker, size: int, compression: Compression
) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr, compression=compression) as producer:
        await producer.send(Message("T", b"ab" * size))
        await producer.send(Message("T", b"x" * 4096))
    long, short = sorted(mq.messages("T"), key=lambda each: -len(each.body))
    assert long.body == b"ab" * size
    assert len(long.stored_body) < size
    assert short.stored_body == short.body


async def test_batch(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr, max_message_size=2000) as producer:
        messages = [Message("T", b"%d" % n, tags="t") for n in range(10)]
        result = await producer.send(messages)
        assert result.msg_id == ",".join(each.msg_id for each in messages)
        assert len(result.offset_msg_id.split(",")) == 10
        with pytest.raises(MQClientError, match="send_batch"):
            await producer.send([Message("T", b"x" * 300) for _ in range(10)])
        results = await producer.send_batch([Message("T", b"x" * 300) for _ in range(10)])
        assert len(results) == 2
    assert len(mq.messages("T")) == 20
    (queue_id,) = {m.queue_id for m in mq.messages("T") if m.tags}
    assert [m.body for m in mq.messages("T", queue_id) if m.tags] == [b"%d" % n for n in range(10)]


def test_batches_that_are_refused() -> None:
    for messages in (
        [],
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x"), Message("T", b"x", wait_store_msg_ok=False)],
        [Message("T", b"x", delay_time_level=1)],
        [Message("%RETRY%g", b"x")],
    ):
        with pytest.raises(MQClientError):
            check_batch(messages)


def test_split_batch_keeps_order_and_size() -> None:
    messages = [Message("T", b"x" * (n * 37 % 300 + 1)) for n in range(100)]
    batches = split_batch(messages, 1000)
    assert [each for batch in batches for each in batch] == messages
    assert all(sum(len(each.body) + 86 for each in batch) <= 1000 for batch in batches)
    assert split_batch([Message("T", b"x" * 5000)], 1000)[0][0].body == b"x" * 5000


async def test_delay_level_and_timer(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"later", delay_time_level=5))
        assert mq.bodies("T") == []
        mq.clock.advance(minutes=1)
        await mq.wait_until(lambda: mq.bodies("T") == [b"later"])


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b""),
        Message("T", b"x" * 5_000_000),
        Message("no blanks", b"x"),
        Message("SCHEDULE_TOPIC_XXXX", b"x"),
    ],
    ids=["empty", "long", "name", "system"],
)
async def test_illegal_messages(mq: EmbeddedBroker, message: Message) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        with pytest.raises((MQClientError, ValueError)):
            await producer.send(message)
    assert mq.topics() == []


async def test_no_route(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr, create_topic_key="") as producer:
        with pytest.raises(MQClientError, match="no route info") as caught:
            await producer.send(Message("NoSuchTopic", b"x"))
    assert caught.value.response_code == 10005


async def test_not_started() -> None:
    with pytest.raises(MQClientError, match="not started"):
        await Producer("g").send(Message("T", b"x"))


async def test_busy_is_tried_again_and_illegal_is_not(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        busy = mq.faults.refuse(times=2)
        await producer.send(Message("T", b"x"))
        assert busy.hits == 2
        mq.faults.refuse(times=3)
        with pytest.raises(MQBrokerError) as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.response_code == ResponseCode.SYSTEM_BUSY
        assert "3 times" in caught.value.__notes__[0]
        illegal = mq.faults.refuse(response_code=ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(MQBrokerError):
            await producer.send(Message("T", b"x"))
        assert illegal.hits == 1
        # Answers are not retried by send_async, broken connections are.
        mq.faults.refuse()
        with pytest.raises(MQBrokerError):
            await (await producer.send_async(Message("T", b"x")))
        mq.faults.disconnect()
        await (await producer.send_async(Message("T", b"y")))
    assert mq.bodies("T") == [b"x", b"y"]


async def test_go_away_means_a_new_connection(mq: EmbeddedBroker) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
        mq.faults.refuse(response_code=ResponseCode.GO_AWAY)
        await producer.send(Message("T", b"y"))
    assert mq.bodies("T") == [b"x", b"y"]


async def test_no_answer_is_a_timeout_and_may_have_been_stored(mq: EmbeddedBroker) -> None:
    config = ClientConfig(namesrv_addr=mq.namesrv_addr)
    async with Producer("g", config=config, send_msg_timeout_ms=100_000) as producer:
        await producer.send(Message("T", b"connects"))
        mq.faults.drop_after_store()
        with pytest.raises(RemotingTimeoutError):
            await producer.send(Message("T", b"x"), timeout_ms=200)
        await producer.send(Message("T", b"y"))
    assert mq.bodies("T") == [b"connects", b"x", b"y"]


async def test_send_async_ends_when_its_caller_says(mq: EmbeddedBroker) -> None:
    """It was tried again until `send_msg_timeout_ms` was over, and never after it."""
    config = ClientConfig(namesrv_addr=mq.namesrv_addr)
    async with Producer("g", config=config, send_msg_timeout_ms=100_000) as producer:
        await producer.send(Message("T", b"connects"))
        dropped = mq.faults.drop(times=3)
        with pytest.raises(RemotingTimeoutError):
            await asyncio.wait_for(await producer.send_async(Message("T", b"x"), timeout_ms=50), 30)
        assert dropped.hits == 1
        mq.faults.clear()
        producer.send_msg_timeout_ms = 1
        dropped = mq.faults.drop()
        future = await producer.send_async(Message("T", b"y"), timeout_ms=100_000)
        await mq.wait_until(lambda: dropped.hits == 1)
        server = mq.broker.server
        assert server is not None
        for channel in list(server.channels):
            channel.abort()
        await future
        # An attempt may have a shorter one, here as well.
        producer.send_msg_max_timeout_per_request_ms = 500
        dropped = mq.faults.drop()
        await (await producer.send_async(Message("T", b"z"), timeout_ms=100_000))
        assert dropped.hits == 1
    # Once each; or more often, where an answer took as long as that.
    assert set(mq.bodies("T")) == {b"connects", b"y", b"z"}


async def send_as(
    producer: Producer, kind: str, message: Message, timeout_ms: int = 20_000, **to: Any
) -> None:
    async with asyncio.timeout(30):
        if kind.startswith("send_async"):
            await (await producer.send_async(message, timeout_ms=timeout_ms, **to))
        else:
            sent = [message] if kind == "batch" else message
            await producer.send(sent, timeout_ms=timeout_ms, **to)


def hang_name_servers(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], asyncio.Event]:
    """The topics whose routes are asked for from now on, and what lets the answers come."""
    asked: list[str] = []
    gate = asyncio.Event()
    fetch_route = ClientInstance.fetch_route

    async def hangs(
        instance: ClientInstance, topic: str, timeout_s: float | None = None
    ) -> TopicRouteData | None:
        asked.append(topic)
        await gate.wait()
        return await fetch_route(instance, topic, timeout_s)

    monkeypatch.setattr(ClientInstance, "fetch_route", hangs)
    return asked, gate


@pytest.mark.parametrize("kind", ["to a queue", "send_async", "send_async to a queue"])
async def test_what_is_out_of_time_is_not_sent(mq: EmbeddedBroker, kind: str) -> None:
    """It was written, stored, and called failed."""
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        sent = await producer.send(Message("T", b"connects"))
        queue = sent.message_queue if "queue" in kind else None
        with pytest.raises(RemotingTimeoutError, match="was not sent to broker-a"):
            await send_as(producer, kind, Message("T", b"x"), timeout_ms=0, mq=queue)
        await producer.send(Message("T", b"y"), mq=sent.message_queue)
        assert sorted(mq.bodies("T")) == [b"connects", b"y"]


@pytest.mark.parametrize("kind", ["send", "send_async"])
async def test_a_connection_that_comes_late_is_for_the_next_attempt(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """An attempt had a ms to live then: it was stored, failed, and the connection was closed."""
    gate = asyncio.Event()
    connect, connects = RemotingClient._connect, 0

    async def slow(client: RemotingClient, addr: str) -> Channel:
        nonlocal connects
        if addr == mq.address:
            connects += 1
            await gate.wait()
        return await connect(client, addr)

    class Watched(Producer):
        tries = 0

        def _attempt_timeout_s(self, rest_s: float) -> float:
            self.tries += 1
            if self.tries > 1:
                gate.set()
            return 0.1 if self.tries == 1 else rest_s

    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        await admin.create_topic("T")
    monkeypatch.setattr(RemotingClient, "_connect", slow)
    async with Watched("g", namesrv_addr=mq.namesrv_addr) as producer:
        await send_as(producer, kind, Message("T", b"x"), timeout_ms=100_000)
        assert producer.tries == 2
    assert connects == 1
    assert mq.bodies("T") == [b"x"]


@pytest.mark.parametrize("kind", ["send", "send_async"])
async def test_a_send_ends_in_time_though_name_servers_hang(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A retry looked at the route, however long that took, and was sent after the time-out."""
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"connects"))
        asked, gate = hang_name_servers(monkeypatch)
        cut = mq.faults.disconnect()
        with pytest.raises(RemotingError):
            await send_as(producer, kind, Message("T", b"x"), timeout_ms=300)
        assert asked == ["T"]
        assert cut.hits == 1
        gate.set()
        await producer.send(Message("T", b"y"))
    assert mq.bodies("T") == [b"connects", b"y"]


async def test_fewer_retries_than_none_are_none(mq: EmbeddedBroker) -> None:
    """Of send_async they had no end."""
    async with Producer(
        "g", namesrv_addr=mq.namesrv_addr, retry_times_when_send_failed=-1,
        retry_times_when_send_async_failed=-1,
    ) as producer:  # fmt: skip
        await producer.send(Message("T", b"connects"))
        cut = mq.faults.disconnect(times=1000)
        with pytest.raises(RemotingError):
            await producer.send(Message("T", b"x"))
        with pytest.raises(RemotingError):
            await (await producer.send_async(Message("T", b"x")))
    assert cut.hits == 2


@pytest.mark.parametrize("kind", ["send", "batch", "send_async"])
async def test_sends_pass_a_broker_that_no_route_knows_by(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """An order configuration names it: every second send failed, or waited for name servers."""
    monkeypatch.setattr("oberth.client.instance.ROUTE_REST_S", 3600.0)
    assert mq._namesrv is not None
    mq._namesrv.config.order_message_enable = True
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        await admin.create_topic("T", order=True)
        await admin.put_kv_config(ORDER_TOPIC_NAMESPACE, "T", "broker-a:8;broker-b:8")
    async with Producer(
        "g", namesrv_addr=mq.namesrv_addr, send_latency_fault_enable=True
    ) as producer:
        queues = await producer.fetch_publish_message_queues("T")
        assert {each.broker_name for each in queues} == {"broker-a", "broker-b"}
        faults, producer._faults = producer._faults, None
        assert faults is not None
        info = await producer._publish_info("T")
        asked, gate = hang_name_servers(monkeypatch)
        for n in range(10):
            # The turn is that of the one that is away.
            info.next_index = 8 + n % 8
            message = Message("T", b"x")
            await send_as(producer, kind, message)
        assert len(mq.bodies("T")) == 10
        assert asked == ["T"]
        gate.set()
        producer._faults = faults
        (absent, *_) = [each for each in queues if each.broker_name == "broker-b"]
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(MQClientError, match="broker-b of T has no address") as caught:
                await send(Message("T", b"x"), mq=absent)
            assert caught.value.response_code == BROKER_NOT_EXIST
        assert not faults.is_reachable("broker-b")
        assert {producer._select_queue(info, None).broker_name for _ in queues} == {"broker-a"}


async def test_an_attempt_may_have_a_shorter_timeout(mq: EmbeddedBroker) -> None:
    async with Producer(
        "g", namesrv_addr=mq.namesrv_addr, send_msg_max_timeout_per_request_ms=500
    ) as producer:
        dropped = mq.faults.drop()
        await producer.send(Message("T", b"x"))
    assert dropped.hits == 1
    # Once; or more often, where an answer took as long as that.
    assert set(mq.bodies("T")) == {b"x"}


async def test_kill_and_recover_loses_nothing_that_was_acknowledged(mq: EmbeddedBroker) -> None:
    acknowledged = []
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        for n in range(50):
            await producer.send(Message("T", b"%d" % n))
            acknowledged.append(b"%d" % n)
        await mq.kill()
        with pytest.raises(RemotingError):
            await producer.send(Message("T", b"lost"), timeout_ms=300)
        await mq.recover()
        await producer.send(Message("T", b"after"))
    mq.assert_stored("T", [*acknowledged, b"after"])


async def test_back_pressure(mq: EmbeddedBroker) -> None:
    async with Producer(
        "g", namesrv_addr=mq.namesrv_addr, back_pressure_for_async_send_num=10
    ) as producer:
        await producer.send(Message("T", b"x"))
        mq.faults.slow(delay_s=0.05, times=100)
        most = 0
        futures = []
        for _ in range(50):
            futures.append(await producer.send_async(Message("T", b"x")))
            most = max(most, producer._in_flight)
        await asyncio.gather(*futures)
        assert most == 10
        mq.faults.slow(delay_s=1, times=100)
        futures = [await producer.send_async(Message("T", b"x")) for _ in range(10)]
        with pytest.raises(RemotingTooMuchRequestError):
            await producer.send(Message("T", b"x"), timeout_ms=50)
        await asyncio.gather(*futures)


async def test_senders_go_on_together(mq: EmbeddedBroker) -> None:
    async with Producer(
        "g", namesrv_addr=mq.namesrv_addr, back_pressure_for_async_send_num=64
    ) as producer:
        producer._in_flight = 64
        waiting = [asyncio.ensure_future(producer._wait_room(1, 60)) for _ in range(6)]
        await asyncio.sleep(0)
        for _ in range(3):
            producer._give_room(0)
            await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        producer._give_room(0)  # a sixteenth of the limit: as many go on as there is room for
        await asyncio.wait(waiting[:4])
        assert not any(each.done() for each in waiting[4:])
        producer._in_flight = 0
        producer._wake_senders(64)
        await asyncio.gather(*waiting)


async def test_senders_that_wait_for_bytes_go_on_one_by_one(mq: EmbeddedBroker) -> None:
    async with Producer(
        "g", namesrv_addr=mq.namesrv_addr, back_pressure_for_async_send_bytes=100
    ) as producer:
        producer._in_flight, producer._in_flight_bytes = 10, 100
        waiting = [asyncio.ensure_future(producer._wait_room(10, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        producer._give_room(10)
        assert len(producer._room_waiters) == 2
        await waiting[0]
        assert not any(each.done() for each in waiting[1:])
        producer._in_flight = producer._in_flight_bytes = 0
        producer._wake_senders(2)
        await asyncio.gather(*waiting)


async def test_a_sender_whose_time_is_over_takes_the_room_there_is(mq: EmbeddedBroker) -> None:
    async with Producer(
        "g", namesrv_addr=mq.namesrv_addr, back_pressure_for_async_send_num=64
    ) as producer:
        producer._in_flight = 64
        waiting = asyncio.ensure_future(producer._wait_room(1, 0.01))
        await asyncio.sleep(0)
        producer._give_room(0)
        await waiting
        producer._in_flight = 0


async def test_signed_requests_have_the_fields_of_the_template(mq: EmbeddedBroker) -> None:
    config = ClientConfig(namesrv_addr=mq.namesrv_addr, access_key="me", secret_key="secret")
    async with Producer("g", config=config) as producer:
        await producer.send(Message("T", b"x", tags="a"))
        await producer.send_oneway(Message("T", b"y"))
        await mq.wait_until(lambda: len(mq.bodies("T")) == 2)
    assert [each.tags for each in mq.messages("T") if each.body == b"x"] == ["a"]


async def test_clients_of_one_configuration_share_connections(mq: EmbeddedBroker) -> None:
    async with (
        Producer("g1", namesrv_addr=mq.namesrv_addr) as one,
        Producer("g2", namesrv_addr=mq.namesrv_addr) as other,
        Producer("g1", namesrv_addr=mq.namesrv_addr) as twin,
    ):
        assert one.client_id == other.client_id != twin.client_id
        await one.send(Message("T", b"x"))
        await other.send(Message("T", b"x"))
        server = mq.broker.server
        assert server is not None
        # The third has an instance of its own, and has not sent anything.
        assert len(server.channels) == 1


@pytest.fixture
async def moving(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[EmbeddedBroker, dict[str, str], list[str]]]:
    """The master before a failover to ``mq``, its address in routes, and routes asked for."""
    fetch_route = ClientInstance.fetch_route
    asked: list[str] = []
    async with EmbeddedBroker() as old:
        where = {"master": old.address}

        async def routed(
            instance: ClientInstance, topic: str, timeout_s: float | None = None
        ) -> TopicRouteData | None:
            asked.append(topic)
            route = await fetch_route(instance, topic, timeout_s)
            if route is not None:
                for data in route.broker_datas:
                    data.broker_addrs = {MASTER_ID: where["master"]}
            return route

        monkeypatch.setattr(ClientInstance, "fetch_route", routed)
        for broker in (old, mq):
            async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
                await admin.create_topic("T", broker_addr=broker.address)
        yield old, where, asked


Moving = tuple[EmbeddedBroker, dict[str, str], list[str]]


@pytest.mark.parametrize("end", ["a slave now", "hangs", "gone"])
@pytest.mark.parametrize("kind", ["send", "to a queue", "send_async"])
async def test_sends_follow_a_master_that_moved(
    mq: EmbeddedBroker, moving: Moving, monkeypatch: pytest.MonkeyPatch, end: str, kind: str
) -> None:
    """At once, long before the routes are asked for in turn."""
    old, where, _ = moving
    monkeypatch.setattr("oberth.client.instance.ROUTE_REST_S", 0.0)

    async def send(producer: Producer, body: bytes, timeout_ms: int = 10_000) -> None:
        message = Message("T", body)
        if kind == "send_async":
            await (await producer.send_async(message, timeout_ms=timeout_ms))
            return
        (queue, *_) = await producer.fetch_publish_message_queues("T")
        chosen = queue if kind == "to a queue" else None
        await producer.send(message, mq=chosen, timeout_ms=timeout_ms)

    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        await send(producer, b"before")
        assert len(old.messages("T")) == 1
        where["master"] = mq.address
        if end == "gone":
            await old.stop()
        elif end == "hangs":
            old.faults.drop(times=1000)
        else:
            old.faults.refuse(times=1000, response_code=ResponseCode.SERVICE_NOT_AVAILABLE)
        with contextlib.suppress(MQBrokerError, RemotingError):
            await send(producer, b"perhaps", 300 if end == "hangs" else 10_000)
        instance = producer._instance
        assert instance is not None
        await mq.wait_until(lambda: instance.master_address("broker-a") == mq.address, what="route")
        await send(producer, b"after")
    assert b"after" in [message.body for message in mq.messages("T")]


async def test_pulls_follow_a_master_that_moved(
    mq: EmbeddedBroker, moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, where, _ = moving
    monkeypatch.setattr("oberth.client.instance.ROUTE_REST_S", 0.0)
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        (queue, *_) = await admin.topic_queues("T")
        await admin.pull(queue, 0)
        where["master"] = mq.address
        old.faults.refuse(
            [RequestCode.PULL_MESSAGE],
            times=1000,
            response_code=ResponseCode.SERVICE_NOT_AVAILABLE,
        )
        with pytest.raises(MQBrokerError):
            await admin.pull(queue, 0)
        instance = admin._client()
        await mq.wait_until(lambda: instance.master_address("broker-a") == mq.address, what="route")
        await admin.pull(queue, 0)


async def test_many_failures_ask_for_a_route_once(
    mq: EmbeddedBroker, moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _, asked = moving
    monkeypatch.setattr("oberth.client.instance.ROUTE_REST_S", 3600.0)
    monkeypatch.setattr("oberth.client.producer.rest_after_try", lambda _: 0.0)
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"before"))
        old.faults.refuse(times=1000, response_code=ResponseCode.SERVICE_NOT_AVAILABLE)
        before = len(asked)
        for _ in range(20):
            with pytest.raises(MQBrokerError):
                await producer.send(Message("T", b"x"))
        assert len(asked) == before + 1
