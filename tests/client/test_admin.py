"""Proves that Admin does on a broker what its names say."""

from __future__ import annotations

import asyncio

import pytest

from oberth.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from oberth.client.admin import LATEST, Admin
from oberth.client.admin.base import Silent
from oberth.client.admin.topics import ORDER_TOPIC_NAMESPACE
from oberth.client.config import ClientConfig
from oberth.errors import (
    IllegalNameError,
    MQBrokerError,
    MQClientError,
    OptionError,
    RemotingConnectError,
)
from oberth.remoting.code import ResponseCode
from oberth.testing.embedded_broker import EmbeddedBroker


async def test_topics(mq: EmbeddedBroker) -> None:
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        await admin.create_topic("T", queue_nums=3, attributes={"message.type": "NORMAL"})
        assert "T" in await admin.topic_list()
        assert "T" in await admin.topic_list("DefaultCluster")
        route = await admin.topic_route("T")
        assert route.queue_datas[0].write_queue_nums == 3
        config = await admin.topic_config(mq.address, "T")
        assert config.attributes == {"message.type": "NORMAL"}
        assert (await admin.all_topic_configs(mq.address))["T"].read_queue_nums == 3
        assert len((await admin.topic_stats("T")).offset_table) == 3
        assert len(await admin.topic_queues("T")) == 3
        await admin.delete_topic("T")
        with pytest.raises(MQBrokerError) as caught:
            await admin.topic_route("T")
        assert caught.value.response_code == ResponseCode.TOPIC_NOT_EXIST
        with pytest.raises(IllegalNameError):
            await admin.create_topic("no blanks")
        with pytest.raises(MQClientError, match="NoSuchCluster"):
            await admin.create_topic("T", cluster="NoSuchCluster")


async def test_an_order_topic_has_no_queues_on_a_broker_that_is_away(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def masters(self: Admin, cluster: str | None = None) -> dict[str, str]:
        return {"broker-a": mq.address, "broker-b": "127.0.0.1:1"}

    monkeypatch.setattr(Admin, "masters", masters)
    silent: Silent = {}
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        await admin.create_topic("T", order=True, silent=silent)
        assert list(silent) == ["broker-b"]
        assert await admin.get_kv_config(ORDER_TOPIC_NAMESPACE, "T") == "broker-a:8"
        # One that hangs just now keeps what it had.
        await admin.put_kv_config(ORDER_TOPIC_NAMESPACE, "T", "broker-a:8;broker-b:6;broker-c:4")
        await admin.create_topic("T", order=True, queue_nums=16, silent={})
        known = await admin.get_kv_config(ORDER_TOPIC_NAMESPACE, "T")
        assert known == "broker-a:16;broker-b:6"


async def test_groups_progress_and_reset(mq: EmbeddedBroker) -> None:
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body)

    # A connection of its own: the consumer's must close when it leaves, with the pulls on it.
    own = ClientConfig(namesrv_addr=mq.namesrv_addr, instance_name="admin")
    async with Admin(config=own) as admin:
        await admin.create_group("g")
        assert "g" in await admin.group_list()
        assert (await admin.group_config(mq.address, "g")).retry_max_times == 16
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            await asyncio.gather(*(producer.send(Message("T", b"%d" % n)) for n in range(20)))
        async with PushConsumer(
            "g", {"T": "*"}, listener=handle, namesrv_addr=mq.namesrv_addr,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ) as consumer:  # fmt: skip
            await mq.wait_until(lambda: len(seen) == 20)
            await consumer.persist_offsets(wait=True)
            progress = await admin.consume_stats("g", "T")
            assert progress.lag == 0
            assert len(progress.queues) == 4
            connections = await admin.consumer_connection("g")
            assert [each.client_id for each in connections.connection_set] == [consumer.client_id]
            info = await admin.consumer_running_info("g", consumer.client_id)
            assert {queue.topic for queue in info.mq_table} == {"T", "%RETRY%g"}
            message = mq.messages("T")[0]
            result = await admin.consume_message_directly(
                "g", consumer.client_id, message.offset_msg_id, "T"
            )
            assert result.consume_result == "CR_SUCCESS"
            assert len(seen) == 21
            assert await admin.topic_consumed_by("T") == ["g"]
            await admin.reset_offsets("g", "T", 0)
            await mq.wait_until(lambda: len(seen) == 41, 100)
        queue = (await admin.topic_queues("T"))[0]
        await admin.update_consume_offset("g", queue, 2)
        assert await admin.consumer_offset("g", queue) == 2
        await admin.create_group("h")
        await admin.clone_group_offsets("g", "h", "T")
        assert await admin.consumer_offset("h", queue) == 2
        with pytest.raises(OptionError, match="-3600000"):
            await admin.reset_offsets("h", "T", -3_600_000)
        assert await admin.consumer_offset("h", queue) == 2
        await admin.reset_offsets("h", "T", LATEST)
        assert (await admin.max_offset(queue), await admin.min_offset(queue)) == (5, 0)
        assert await admin.search_offset(queue, 0) == 0
        assert await admin.earliest_msg_store_time(queue) > 0
        span = await admin.consume_time_span("T", "g")
        assert len(span.consume_time_span_set) == 4
        await admin.delete_group("g")
        assert "g" not in await admin.group_list()


async def test_a_group_before_its_first_member(mq: EmbeddedBroker) -> None:
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        await admin.create_group("g")
        assert (await admin.consume_stats("g")).queues == []
        with pytest.raises(MQBrokerError) as caught:
            await admin.consumer_connection("g")
        assert caught.value.response_code == ResponseCode.CONSUMER_NOT_ONLINE
        with pytest.raises(MQBrokerError, match="no broker knows group 'h'"):
            await admin.consume_stats("h")


async def test_members_are_told_by_any_broker_that_answers(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = {"dead": "127.0.0.1:1", "alive": mq.address}

    async def some(self: Admin, name: str, silent: object = None) -> dict[str, str]:
        return masters

    monkeypatch.setattr(Admin, "_masters_of_group", some)
    monkeypatch.setattr(Admin, "_masters_of", some)
    async with (
        Admin(namesrv_addr=mq.namesrv_addr) as admin,
        Producer("p", namesrv_addr=mq.namesrv_addr) as producer,
        PushConsumer(
            "g", {"T": "*"}, listener=lambda message: None, namesrv_addr=mq.namesrv_addr
        ) as consumer,
    ):
        await producer.send(Message("T", b"x"))
        assert (await admin.producer_connection("p", "T")).connection_set
        (member,) = (await admin.consumer_connection("g")).connection_set
        assert member.client_id == consumer.client_id
        await mq.wait_until(lambda: bool(consumer.assigned))
        assert (await admin.consumer_running_info("g", consumer.client_id)).mq_table
        del masters["alive"]
        with pytest.raises(RemotingConnectError):
            await admin.consumer_connection("g")
        masters.clear()
        for question in (
            admin.producer_connection("p", "T"),
            admin.consumer_connection("g"),
            admin.consumer_running_info("g", consumer.client_id),
        ):
            with pytest.raises(MQClientError, match="has a master now"):
                await question


async def test_messages(mq: EmbeddedBroker) -> None:
    async with (
        Admin(namesrv_addr=mq.namesrv_addr) as admin,
        Producer("p", namesrv_addr=mq.namesrv_addr) as producer,
    ):
        result = await producer.send(Message("T", b"x", keys="k1 k2"))
        for msg_id in (result.msg_id, result.offset_msg_id):
            assert (await admin.view_message("T", msg_id)).body == b"x"
        (message,) = await admin.query_message("T", "k2")
        assert message.msg_id == result.msg_id
        assert await admin.query_message("T", "k") == []
        with pytest.raises(MQBrokerError):
            await admin.view_message("T", "0" * 32)
        pulled = await admin.pull(result.message_queue, 0)
        assert [each.body for each in pulled.messages] == [b"x"]
        units = await admin.query_consume_queue(
            mq.address, "T", result.message_queue.queue_id, 0, 10
        )
        assert len(units.queue_data) == 1
        connections = await admin.producer_connection("p", "T")
        assert connections.connection_set


async def test_cluster_and_configuration(mq: EmbeddedBroker) -> None:
    async with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        assert await admin.masters() == {"broker-a": mq.address}
        assert "bootTimestamp" in await admin.broker_runtime_info(mq.address)
        assert (await admin.broker_config(mq.address))["brokerName"] == "broker-a"
        await admin.update_broker_config(mq.address, {"defaultTopicQueueNums": "5"})
        assert (await admin.broker_config(mq.address))["defaultTopicQueueNums"] == "5"
        assert len(await admin.namesrv_config()) == 1
        await admin.put_kv_config("ns", "k", "v")
        assert await admin.get_kv_config("ns", "k") == "v"
        assert await admin.kv_list("ns") == {"k": "v"}
        await admin.delete_kv_config("ns", "k")
        assert await admin.get_kv_config("ns", "k") is None
        assert await admin.wipe_write_perm("broker-a") > 0
        assert await admin.add_write_perm("broker-a") > 0
        for work in (
            admin.clean_expired_consume_queue,
            admin.delete_expired_commit_log,
            admin.clean_unused_topic,
        ):
            await work(mq.address)


async def test_not_started() -> None:
    with pytest.raises(MQClientError, match="not started"):
        await Admin().cluster_info()
