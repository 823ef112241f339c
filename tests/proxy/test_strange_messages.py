"""What senders write into messages neither stops their readers nor changes what kind they are."""

from __future__ import annotations

import gzip
import time
from typing import Any

import pytest
from tests.proxy.client import framed
from tests.proxy.conftest import (
    acking,
    add_group,
    add_topic,
    client_of,
    message,
    received,
    receiving,
    sending,
)

from oberth.client.messages import MessageExt
from oberth.formats import properties as p
from oberth.formats.sys_flag import COMPRESSED
from oberth.proxy import convert
from oberth.proxy import messages as m
from oberth.proxy.call import REQUEST_SIZE_MAX, GrpcStatus
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


FAR: Any = {"seconds": int(time.time()) + 100}


@pytest.mark.parametrize(
    ("topic", "first", "second"),
    [
        ("DELAY", {"delivery_timestamp": FAR}, {"delivery_timestamp": FAR}),
        ("MIXED", {}, {"delivery_timestamp": FAR}),
        ("FIFO", {"message_group": "a"}, {"message_group": "b"}),
        ("MIXED", {}, {"message_group": "a"}),
        ("PRIORITY", {"priority": 1}, {"priority": 3}),
        ("LITE", {"lite_topic": "a"}, {"lite_topic": "b"}),
    ],
)
async def test_messages_that_are_no_batch(
    topic: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A batch is stored as it is: what has to wait, or to go elsewhere, would not."""
    async with EmbeddedBroker(LITE, grpc=True) as mq, client_of(mq) as client:
        add_topic(mq, "T", topic, queues=4)
        both = [message("T", b"x", _kind(each), **each) for each in (first, second)]
        response = await client.call("SendMessage", sending(*both))
        assert response.status.code == Code.BAD_REQUEST
        assert mq.messages("T") == []
        for each in both:  # one by one they are taken
            assert (await client.call("SendMessage", sending(each))).status.code == Code.OK


async def test_a_batch_in_two_encodings(mq: EmbeddedBroker) -> None:
    """A batch has one flag for all its bodies: some would be read as what they are not."""
    add_topic(mq, "T")
    encodings = m.enum_values("Encoding")
    plain = message("T", b"x", body_encoding=encodings["IDENTITY"])
    zipped = message("T", gzip.compress(b"y"), body_encoding=encodings["GZIP"])
    async with client_of(mq) as client:
        response = await client.call("SendMessage", sending(plain, zipped))
        assert response.status.code == Code.BAD_REQUEST
        assert mq.messages("T") == []
        response = await client.call("SendMessage", sending(zipped, zipped))
        assert response.status.code == Code.OK
        assert [each.sys_flag & COMPRESSED for each in mq.messages("T")] == [COMPRESSED] * 2


@pytest.mark.parametrize("field", ["trace_context", "born_host"])
async def test_a_text_that_would_be_read_as_more_properties(mq: EmbeddedBroker, field: str) -> None:
    add_topic(mq, "T")
    sent = message("T", b"x", **{field: f"text{p.PROPERTY_SEPARATOR}{p.TAGS}\x01other"})
    async with client_of(mq) as client:
        response = await client.call("SendMessage", sending(sent))
        assert response.status.code == Code.BAD_REQUEST
        assert mq.messages("T") == []


@pytest.mark.parametrize(
    "field", ["topic", "property", "tag", "keys", "message_id", "message_group", "trace_context"]
)
async def test_a_text_of_megabytes_is_refused_by_its_length(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """To look for what it holds would keep all others waiting."""
    looked: list[int] = []
    has_control = convert.has_control

    def note(text: str) -> bool:
        looked.append(len(text))
        return has_control(text)

    monkeypatch.setattr(convert, "has_control", note)
    add_topic(mq, "T")
    long = "x" * (3 << 20)
    sent = message("T")
    match field:
        case "topic":
            sent.topic.name = long
        case "property":
            sent.user_properties["name"] = long
        case "keys":
            sent.system_properties.keys.append(long)
        case _:
            setattr(sent.system_properties, field, long)
    async with client_of(mq) as client:
        for request in (sending(sent), sending(sent, message("T"))):
            response = await client.call("SendMessage", request)
            assert response.status.code in (
                Code.ILLEGAL_TOPIC, Code.ILLEGAL_MESSAGE_GROUP, Code.MESSAGE_PROPERTIES_TOO_LARGE,
            )  # fmt: skip
    assert max(looked, default=0) < 1 << 16


async def test_requests_that_bear_no_message_are_short(mq: EmbeddedBroker) -> None:
    """What they name is looked at in one turn of the loop."""
    request = m.AckMessageRequest()
    request.entries.add(receipt_handle=" " * REQUEST_SIZE_MAX)
    async with client_of(mq) as client:
        stream = await client.open("AckMessage", framed(request.SerializeToString()))
        assert await stream.all() == []
        assert stream.status == GrpcStatus.RESOURCE_EXHAUSTED
        request.entries[0].receipt_handle = "x"
        request.topic.name, request.group.name = "T", "G"
        answer = await client.call("AckMessage", request)
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_batch_of_one_message_group(mq: EmbeddedBroker) -> None:
    add_topic(mq, "F", "FIFO", queues=4)
    async with client_of(mq) as client:
        two = [message("F", body, "FIFO", message_group="a") for body in (b"1", b"2")]
        assert (await client.call("SendMessage", sending(*two))).status.code == Code.OK
        assert [each.body for each in mq.messages("F")] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("topic", "says", "fields", "code"),
    [
        ("NORMAL", "NORMAL", {}, Code.OK),
        ("NORMAL", "MESSAGE_TYPE_UNSPECIFIED", {}, Code.OK),
        ("NORMAL", "NORMAL", {"delivery_timestamp": FAR}, None),
        ("NORMAL", "NORMAL", {"message_group": "a"}, None),
        ("NORMAL", "NORMAL", {"lite_topic": "a"}, None),
        ("NORMAL", "NORMAL", {"priority": 1}, None),
        ("NORMAL", "FIFO", {}, None),
        ("FIFO", "FIFO", {}, None),
        ("FIFO", "FIFO", {"message_group": "a"}, Code.OK),
        ("FIFO", "FIFO", {"message_group": "a", "delivery_timestamp": FAR}, None),
        ("DELAY", "DELAY", {}, None),
        ("DELAY", "DELAY", {"delivery_timestamp": FAR}, Code.OK),
        ("MIXED", "NORMAL", {"delivery_timestamp": FAR}, Code.OK),
    ],
)
async def test_a_message_is_what_its_fields_make_it(
    mq: EmbeddedBroker, topic: str, says: str, fields: dict[str, Any], code: Code | None
) -> None:
    """Not only what its client says that it is; as for Apache's proxy."""
    add_topic(mq, "T", topic)
    add_group(mq, "G")
    async with client_of(mq) as client:
        response = await client.call("SendMessage", sending(message("T", b"x", says, **fields)))
        assert response.status.code == (code or Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)


def _kind(fields: dict[str, Any]) -> str:
    names = {"delivery_timestamp": "DELAY", "message_group": "FIFO", "lite_topic": "LITE"}
    for field in fields:
        return names.get(field, field.upper())
    return "NORMAL"


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
