"""Proves request-reply through a broker: replies find their request, or it times out."""

from __future__ import annotations

import asyncio

import pytest

from oberth.client import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    create_reply_message,
)
from oberth.errors import MQClientError, RequestTimeoutError
from oberth.testing.embedded_broker import EmbeddedBroker


async def test_replies_find_their_requests(mq: EmbeddedBroker) -> None:
    async with Producer("answers", namesrv_addr=mq.namesrv_addr) as replier:

        async def answer(request: MessageExt) -> None:
            await replier.send(create_reply_message(request, b"re: " + request.body))

        async with (
            PushConsumer(
                "g", {"Ask": "*"}, listener=answer, namesrv_addr=mq.namesrv_addr,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            ),
            Producer("asks", namesrv_addr=mq.namesrv_addr) as producer,
        ):  # fmt: skip
            replies = await asyncio.gather(
                *(producer.request(Message("Ask", b"%d" % n), 100_000) for n in range(10))
            )
    assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(10)]
    assert replies[0].get_property("CORRELATION_ID")


async def test_no_reply(mq: EmbeddedBroker) -> None:
    async with Producer("asks", namesrv_addr=mq.namesrv_addr) as producer:
        # Its time begins when the request can go out at once.
        await producer.fetch_publish_message_queues("Ask")
        with pytest.raises(RequestTimeoutError):
            await producer.request(Message("Ask", b"x"), 1_000)
    (request,) = mq.messages("Ask")
    assert create_reply_message(request, b"y").topic == "DefaultCluster_REPLY_TOPIC"
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
    with pytest.raises(MQClientError):
        create_reply_message(mq.messages("T")[0], b"y")
