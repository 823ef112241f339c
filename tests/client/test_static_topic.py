"""A static topic through our own client: it follows the queues from broker to broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from oberth.client.config import ClientConfig
from oberth.client.route import publish_queues, subscribe_queues
from oberth.errors import MQBrokerError
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.route import BrokerData, QueueData, TopicRouteData
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import DEFAULT_SETTINGS

T = "Static"
STEP = 10_000


def test_queues_of_a_route() -> None:
    route = TopicRouteData(
        broker_datas=[BrokerData(broker_name=name, broker_addrs={0: "x:1"}) for name in "ab"],
        queue_datas=[QueueData(broker_name="a", perm=6, read_queue_nums=9, write_queue_nums=9)],
        topic_queue_mapping_by_broker={
            "a": {"bname": "a", "epoch": 1, "totalQueues": 3, "currIdMap": {"1": 0}},
            "b": {"bname": "b", "epoch": 1, "totalQueues": 3, "currIdMap": {"0": 4}},
        },
    )
    led = [
        MessageQueue(topic=T, broker_name="b", queue_id=0),
        MessageQueue(topic=T, broker_name="a", queue_id=1),
    ]
    assert publish_queues(T, route) == led
    assert subscribe_queues(T, route) == [
        *led,
        MessageQueue(topic=T, broker_name="__syslo__none__", queue_id=2),
    ]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[str, list[Broker]]]:
    brokers: list[Broker] = []
    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        address = str(server.address)
        for name in ("a", "b"):
            config, store_config, _ = read_configs(
                {
                    **DEFAULT_SETTINGS,
                    "brokerName": name,
                    "namesrvAddr": address,
                    "storePathRootDir": str(tmp_path / name),
                }
            )
            broker = Broker(config, store_config)
            await broker.start()
            brokers.append(broker)
        yield address, brokers
        for broker in brokers:
            await broker.aclose()


async def tell(broker: Broker, items: list[dict[str, Any]], epoch: int) -> None:
    mapping = {
        "bname": broker.parts.config.broker_name,
        "epoch": epoch,
        "hostedQueues": {"0": items},
        "topic": T,
        "totalQueues": 1,
    }
    fields = {
        "topic": T,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    async with RemotingClient() as client:
        request = RemotingCommand(code=513, ext_fields=fields, body=json.dumps(mapping).encode())
        response = await client.invoke(str(broker.address), request)
    assert response.code == 0, response.remark
    assert broker.services.registration is not None
    await broker.services.registration.register_all()


async def test_follows_a_move(cluster: tuple[str, list[Broker]]) -> None:
    namesrv, brokers = cluster
    first = {"bname": "a", "gen": 0, "queueId": 0, "logicOffset": 0}
    await tell(brokers[0], [first], 1)
    config = ClientConfig(
        namesrv_addr=namesrv,
        poll_name_server_interval_ms=100,
        persist_consumer_offset_interval_ms=100,
    )
    found: list[tuple[int, int, bytes]] = []

    async def take(message: MessageExt) -> None:
        found.append((message.queue_id, message.queue_offset, message.body))

    async def until(done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not done():  # noqa: ASYNC110 - what is waited for happens in the clients
                await asyncio.sleep(0.01)

    async with (
        Producer("P", config=config) as producer,
        PushConsumer(
            "G",
            {T: "*"},
            listener=take,
            orderly=True,
            config=config,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ),
    ):
        sent = [await producer.send(Message(T, b"%d" % n)) for n in range(3)]
        assert [(r.message_queue.queue_id, r.queue_offset) for r in sent] == [
            (0, 0),
            (0, 1),
            (0, 2),
        ]
        await until(lambda: len(found) == 3)
        items = [first, {"bname": "b", "gen": 1, "queueId": 0, "logicOffset": STEP}]
        await tell(brokers[1], items, 2)
        await tell(brokers[0], items, 2)
        late: list[Any] = []
        while len(late) < 3:
            try:
                late.append(await producer.send(Message(T, b"%d" % (3 + len(late)))))
            except MQBrokerError:  # it has not seen the new route yet
                await asyncio.sleep(0.02)
        assert [r.queue_offset for r in late] == [STEP, STEP + 1, STEP + 2]
        await until(lambda: found[-1][2] == b"5")
    # A commit that came too late for the old leader makes some come again.
    assert list(dict.fromkeys(found)) == [
        (0, offset, b"%d" % n) for n, offset in enumerate((0, 1, 2, STEP, STEP + 1, STEP + 2))
    ]
    assert brokers[1].parts.offsets.query("G", T, 0) == 3
