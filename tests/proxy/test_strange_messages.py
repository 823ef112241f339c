"""What senders write into messages does not stop their readers."""

from __future__ import annotations

import pytest
from tests.proxy.conftest import (
    acking,
    add_topic,
    client_of,
    message,
    received,
    receiving,
    sending,
)

from oberth.client.messages import MessageExt
from oberth.formats import properties as p
from oberth.proxy import messages as m
from oberth.proxy.codes import Code
from oberth.proxy.convert import fill_message
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker

LITE = {"enableLmq": "true", "enableMultiDispatch": "true"}


async def test_a_lite_topic_in_a_message_of_an_ordinary_topic() -> None:
    """It is popped from its topic and acknowledged there, whatever queue its sender names."""
    async with EmbeddedBroker(LITE, grpc=True) as mq:
        add_topic(mq, "T")
        async with RemotingClient() as remoting:
            for body in (b"1", b"2"):
                assert (await remoting.invoke(mq.address, _send("T", body))).code == 0
        async with client_of(mq) as client:
            pieces = await client.call_stream("ReceiveMessage", receiving("T", "G"))
            status, found = received(pieces)
            assert (status, [each.body for each in found]) == (Code.OK, [b"1", b"2"])
            assert not any(each.system_properties.HasField("lite_topic") for each in found)
            ack = await client.call("AckMessage", acking("T", "G", *found))
            assert ack.status.code == Code.OK
            mq.advance(seconds=60)
            pieces = await client.call_stream("ReceiveMessage", receiving("T", "G"))
            assert received(pieces) == (Code.MESSAGE_NOT_FOUND, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (p.PRIORITY, "99999999999"),
        (p.PRIORITY, "9" * 5_000),
        (p.TIMER_OUT_MS, "9" * 30),
        (p.TIMER_DELIVER_MS, "9" * 19),
        (p.TIMER_DELIVER_MS, "x"),
    ],
)
async def test_numbers_that_are_none(mq: EmbeddedBroker, name: str, text: str) -> None:
    record = await _record(mq)
    record.properties[name] = text
    made = m.Message()
    fill_message(made, record, "T", handle="h", now_ms=0)
    assert made.body == b"x"
    assert not made.system_properties.HasField("priority")
    assert not made.system_properties.HasField("delivery_timestamp")


async def test_the_last_attempt_that_can_be_counted(mq: EmbeddedBroker) -> None:
    record = await _record(mq)
    record.reconsume_times = 2**31 - 1
    made = m.Message()
    fill_message(made, record, "T", handle="h", now_ms=0)
    assert made.system_properties.delivery_attempt == 2**31 - 1


async def _record(mq: EmbeddedBroker) -> MessageExt:
    add_topic(mq, "T")
    async with client_of(mq) as client:
        await client.call("SendMessage", sending(message("T", b"x")))
    (record,) = mq.messages("T")
    return record


def _send(topic: str, body: bytes) -> RemotingCommand:
    fields = dict.fromkeys("defghj", "0") | {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "i": p.encode_properties({p.LITE_TOPIC: "x"}).decode(),
    }
    return RemotingCommand(code=int(RequestCode.SEND_MESSAGE_V2), ext_fields=fields, body=body)
