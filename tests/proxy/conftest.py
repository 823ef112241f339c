"""A broker with a gRPC port, topics and requests for tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.proxy.client import GrpcClient, Stream

from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.proxy import messages as m
from oberth.testing.embedded_broker import EmbeddedBroker

_IDS = itertools.count()
TYPES = m.enum_values("MessageType")
CLIENTS = m.enum_values("ClientType")


@pytest.fixture
async def mq() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker({"recallMessageEnable": "true"}, grpc=True) as broker:
        yield broker


def add_topic(mq: EmbeddedBroker, topic: str, kind: str = "NORMAL", queues: int = 1) -> None:
    mq.broker.parts.topics.update(
        TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues),
        {"+message.type": kind},
    )


def add_group(mq: EmbeddedBroker, group: str, **more: Any) -> None:
    mq.broker.parts.groups.update(SubscriptionGroupConfig(group_name=group, **more))


def client_of(
    mq: EmbeddedBroker, client_id: str = "client", *, ssl: Any = None, **metadata: str
) -> GrpcClient:
    return GrpcClient(mq.grpc_address, client_id, metadata, ssl)


def message(topic: str, body: bytes = b"hello", kind: str = "NORMAL", **system: Any) -> Any:
    made = m.Message(body=body)
    made.topic.name = topic
    made.system_properties.message_id = f"01{next(_IDS):030X}"
    made.system_properties.message_type = TYPES[kind]
    made.system_properties.born_timestamp.seconds = int(time.time())
    made.system_properties.born_host = "host-of-the-client"
    made.system_properties.MergeFrom(m.SystemProperties(**system))
    return made


def sending(*messages: Any) -> Any:
    return m.SendMessageRequest(messages=messages)


def receiving(topic: str, group: str, count: int = 32, *, auto_renew: bool = False) -> Any:
    request = m.ReceiveMessageRequest(batch_size=count, auto_renew=auto_renew)
    request.group.name = group
    request.message_queue.topic.name = topic
    request.message_queue.id = -1
    request.message_queue.broker.name = "broker-a"
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 30
    request.long_polling_timeout.seconds = 5
    return request


def received(pieces: list[Any]) -> tuple[int, list[Any]]:
    """Status and messages of a ReceiveMessage."""
    assert pieces[-1].HasField("delivery_timestamp")
    status = next(piece.status.code for piece in pieces if piece.HasField("status"))
    return status, [piece.message for piece in pieces if piece.HasField("message")]


def acking(topic: str, group: str, *messages: Any) -> Any:
    request = m.AckMessageRequest()
    request.group.name = group
    request.topic.name = topic
    for each in messages:
        request.entries.add(
            message_id=each.system_properties.message_id,
            receipt_handle=each.system_properties.receipt_handle,
        )
    return request


async def subscribe(
    client: GrpcClient, topic: str, group: str, kind: str = "PUSH_CONSUMER"
) -> tuple[Stream, Any]:
    """A Telemetry stream with a consumer's settings, and what came back."""
    stream = await client.open("Telemetry")
    command = m.TelemetryCommand()
    command.settings.client_type = CLIENTS[kind]
    command.settings.subscription.group.name = group
    command.settings.subscription.subscriptions.add().topic.name = topic
    await stream.send(command)
    raw = await stream.next()
    assert raw is not None, (stream.headers, stream.trailers)
    return stream, m.TelemetryCommand.FromString(raw)


async def publish(client: GrpcClient, *topics: str) -> Stream:
    """A Telemetry stream with a producer's settings."""
    stream = await client.open("Telemetry")
    command = m.TelemetryCommand()
    command.settings.client_type = CLIENTS["PRODUCER"]
    for topic in topics:
        command.settings.publishing.topics.add().name = topic
    await stream.send(command)
    assert await stream.next() is not None, (stream.headers, stream.trailers)
    return stream
