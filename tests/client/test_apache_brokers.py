"""Proves the client against Apache's brokers: all kinds of messages, both releases, one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.rigs.clusters import Cluster, cluster_for

from oberth.client import (
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageSelector,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    create_reply_message,
)
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.client.redrive_claim import RedriveClaim, RedriveHeldError
from oberth.errors import PeerUnavailableError
from oberth.formats.names import dlq_topic

pytestmark = pytest.mark.interop

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SETTINGS = {
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "autoCreateTopicEnable": "true",
}


@pytest.fixture(scope="module", params=["apache-5.5.0", "apache-4.9.7", "oberth"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    try:
        running = cluster_for(request.param, tmp_path_factory.mktemp("cluster"), SETTINGS)
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    with running as started:
        yield started


class Seen:
    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self.changed = asyncio.Event()

    async def __call__(self, message: MessageExt) -> None:
        self.messages.append(message)
        self.changed.set()

    async def wait(self, count: int, timeout_s: float = 30) -> list[MessageExt]:
        async with asyncio.timeout(timeout_s):
            while len(self.messages) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.messages


async def test_send_and_consume(cluster: Cluster) -> None:
    addr = cluster.namesrv_addr
    seen = Seen()
    async with Producer("p1", namesrv_addr=addr) as producer:
        results = await asyncio.gather(
            *(
                producer.send(Message("T1", b"%d" % n, tags="ab"[n % 2], keys=f"k{n}"))
                for n in range(200)
            )
        )
        await producer.send([Message("T1", b"batch", tags="a") for _ in range(5)])
        await producer.send_oneway(Message("T1", b"oneway", tags="a"))
        await producer.send(Message("T1", b"z" * 100_000, tags="a"))
        async with PushConsumer(
            "g1", {"T1": "a"}, listener=seen, namesrv_addr=addr, consume_from_where=FIRST
        ):
            messages = await seen.wait(107)
            async with Admin(namesrv_addr=addr) as admin, asyncio.timeout(100):
                # Messages of the other tag lie behind the last of ours.
                while (await admin.consume_stats("g1", "T1")).lag:  # noqa: ASYNC110 - elsewhere
                    await asyncio.sleep(0.1)
    assert len({result.msg_id for result in results}) == 200
    assert {message.tags for message in messages} == {"a"}
    assert max(len(message.body) for message in messages) == 100_000
    async with Admin(namesrv_addr=addr) as admin:
        found = await admin.query_message("T1", "k7")
        assert [message.body for message in found] == [b"7"]
        viewed = await admin.view_message("T1", results[3].msg_id)
        assert viewed.body == b"3"
        assert (await admin.consume_stats("g1", "T1")).lag == 0
        assert await admin.topic_consumed_by("T1") == ["g1"]


async def test_order_and_retry(cluster: Cluster) -> None:
    addr = cluster.namesrv_addr
    numbers: dict[int, list[int]] = {}
    retried: list[int] = []
    finished = asyncio.Event()

    async def in_order(message: MessageExt) -> None:
        if message.body == b"13" and message.reconsume_times == 0:
            raise RuntimeError("once")
        numbers.setdefault(message.queue_id, []).append(int(message.body))
        check()

    async def with_retry(message: MessageExt) -> None:
        if message.body == b"13":
            retried.append(message.reconsume_times)
            check()
            if message.reconsume_times == 0:
                raise RuntimeError("once")

    def check() -> None:
        if sum(map(len, numbers.values())) == 60 and len(retried) == 2:
            finished.set()

    async with Producer("p2", namesrv_addr=addr) as producer:
        for n in range(60):
            await producer.send(Message("T2", b"%d" % n, sharding_key=str(n % 3)))
    async with (
        PushConsumer(
            "g2o", {"T2": "*"}, listener=in_order, orderly=True, namesrv_addr=addr,
            consume_from_where=FIRST, suspend_current_queue_time_ms=50,
        ),
        PushConsumer(
            "g2r", {"T2": "*"}, listener=with_retry, namesrv_addr=addr, consume_from_where=FIRST,
        ),
    ):  # fmt: skip
        async with asyncio.timeout(40):
            await finished.wait()
    for each in numbers.values():
        assert each == sorted(each)
    assert retried == [0, 1]


async def test_sql_delay_and_pull(cluster: Cluster) -> None:
    addr = cluster.namesrv_addr
    seen = Seen()
    async with Producer("p3", namesrv_addr=addr) as producer:
        for n in range(20):
            await producer.send(Message("T3", b"%d" % n, properties={"n": str(n)}))
        await producer.send(Message("T3", b"late", delay_time_level=1, properties={"n": "7"}))
    async with PushConsumer(
        "g3", {"T3": MessageSelector.by_sql("n > 4 AND n < 8")}, listener=seen, namesrv_addr=addr,
        consume_from_where=FIRST,
    ):  # fmt: skip
        messages = await seen.wait(4)
    assert sorted(message.body for message in messages) == [b"5", b"6", b"7", b"late"]
    async with PullConsumer("g3p", namesrv_addr=addr, consume_from_where=FIRST) as consumer:
        queues = await consumer.fetch_message_queues("T3")
        await consumer.assign(queues)
        taken: list[bytes] = []
        async with asyncio.timeout(20):
            while len(taken) < 21:
                taken += [message.body for message in await consumer.poll(1000)]
        await consumer.commit()
        assert sum([await consumer.committed(queue) or 0 for queue in queues]) == 21


async def test_the_first_offsets_of_a_group_are_all_kept(cluster: Cluster) -> None:
    addr = cluster.namesrv_addr
    async with Producer("p-first", namesrv_addr=addr) as producer:
        for n in range(20):
            await producer.send(Message("TFirst", b"%d" % n))
    lost = []
    for number in range(60):
        async with Admin(namesrv_addr=addr) as admin:
            await admin.create_group(f"g-first-{number}")
        async with PullConsumer(f"g-first-{number}", namesrv_addr=addr) as consumer:
            queues = await consumer.fetch_message_queues("TFirst")
            await consumer.commit(dict.fromkeys(queues, 3))
            kept = [await consumer.committed(queue) for queue in queues]
            if kept != [3] * len(queues):
                lost.append(kept)
    assert lost == []


class Transactions:
    async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        return {
            b"commit": LocalTransactionState.COMMIT_MESSAGE,
            b"rollback": LocalTransactionState.ROLLBACK_MESSAGE,
        }.get(msg.body, LocalTransactionState.UNKNOW)

    async def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def test_transactions(cluster: Cluster) -> None:
    addr = cluster.namesrv_addr
    seen = Seen()
    async with TransactionProducer("p4", Transactions(), namesrv_addr=addr) as producer:
        for body in (b"commit", b"rollback", b"later"):
            await producer.send_message_in_transaction(Message("T4", body))
        async with PushConsumer(
            "g4", {"T4": "*"}, listener=seen, namesrv_addr=addr, consume_from_where=FIRST
        ):
            messages = await seen.wait(2, 60)
    assert sorted(message.body for message in messages) == [b"commit", b"later"]


async def test_request_reply(cluster: Cluster) -> None:
    addr = cluster.namesrv_addr
    async with Producer("p5r", namesrv_addr=addr) as replier:

        async def answer(message: MessageExt) -> None:
            await replier.send(create_reply_message(message, b"re:" + message.body))

        config = ClientConfig(namesrv_addr=addr, instance_name="asker")
        async with (
            Producer("p5", config=config) as producer,
            PushConsumer(
                "g5", {"T5": "*"}, listener=answer, namesrv_addr=addr, consume_from_where=FIRST
            ),
        ):
            reply = await producer.request(Message("T5", b"hello"), 15_000)
    assert reply.body == b"re:hello"


async def test_queues_by_the_broker_and_brief_heartbeats(cluster: Cluster) -> None:
    """Brokers of 4.9 cannot do either; there the same program comes to the same result."""
    addr = cluster.namesrv_addr
    seen = Seen()
    config = ClientConfig(
        namesrv_addr=addr, use_heartbeat_v2=True, heartbeat_broker_interval_ms=500
    )
    async with Admin(namesrv_addr=addr) as admin:
        await admin.create_topic("Assigned", queue_nums=8, cluster="DefaultCluster")

    changed = asyncio.Event()

    class Member(PushConsumer):
        def _assignment_changed(self) -> None:
            changed.set()

    def member(**more: Any) -> PushConsumer:
        return Member(
            "assigned", {"Assigned": "*"}, listener=seen, consume_from_where=FIRST, **more
        )

    def count(consumer: PushConsumer) -> int:
        return sum(queue.topic == "Assigned" for queue in consumer.assigned)

    async with (
        member(config=config, client_rebalance=False) as one,
        member(namesrv_addr=addr) as other,
        Producer("pa", namesrv_addr=addr) as producer,
    ):
        async with asyncio.timeout(150):
            while not count(one) == count(other) == 4:
                changed.clear()
                await changed.wait()
        for number in range(40):
            await producer.send(Message("Assigned", b"%d" % number))
        await seen.wait(40)
    assert sorted(int(each.body) for each in seen.messages) == list(range(40))


async def test_pop(cluster: Cluster) -> None:
    if "4.9" in cluster.kind:
        pytest.skip("4.9 has no POP")
    addr = cluster.namesrv_addr
    async with Admin(namesrv_addr=addr) as admin:
        await admin.create_topic("T6", queue_nums=2)
        await asyncio.sleep(1)
    async with (
        Producer("p6", namesrv_addr=addr) as producer,
        PopConsumer("g6", {"T6": "*"}, namesrv_addr=addr, await_duration_ms=2000) as consumer,
    ):
        for n in range(10):
            await producer.send(Message("T6", b"%d" % n))
        taken: list[MessageExt] = []
        async with asyncio.timeout(30):
            while len(taken) < 10:
                taken += await consumer.receive()
        for message in taken[1:]:
            await consumer.ack(message)
        await consumer.change_invisible_duration(taken[0], 1000)
        async with asyncio.timeout(30):
            while not (again := await consumer.receive()):
                pass
        assert [message.body for message in again] == [taken[0].body]
        assert again[0].reconsume_times == 1
        await consumer.ack(again[0])


async def test_one_redrive_at_a_time_holds_the_claim(cluster: Cluster) -> None:
    """The lock that keeps a second redrive out is one that every broker knows."""
    letters = dlq_topic("billing")
    async with Admin(namesrv_addr=cluster.namesrv_addr) as admin:
        async with RedriveClaim(admin, [letters]) as claim:
            await claim.renew()
            claim.check()
            with pytest.raises(RedriveHeldError, match="of billing is at work"):
                async with RedriveClaim(admin, [dlq_topic("shipping"), letters]):
                    pass
        async with RedriveClaim(admin, [letters, dlq_topic("shipping")]) as claim:
            claim.check()
