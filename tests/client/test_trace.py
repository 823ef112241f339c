"""Proves trace records field by field, and that producers and consumers write them."""

from __future__ import annotations

from oberth.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from oberth.client.config import ClientConfig
from oberth.client.trace import pub_record, trace_message
from oberth.testing.embedded_broker import EmbeddedBroker


def test_a_record() -> None:
    message = Message("T", b"body", tags="a", keys="k1 k2", delay_time_level=3)
    message.properties["UNIQ_KEY"] = "ID"
    record = pub_record(
        group="g", message=message, time_ms=5, region="R", store_host="h:1", cost_ms=7,
        offset_msg_id="OFF", success=True, client_host="c",
    )  # fmt: skip
    assert record.text() == (
        "Pub\x015\x01R\x01g\x01T\x01ID\x01a\x01k1 k2\x01h:1\x014\x017\x013\x01OFF\x01true\x01c\x02"
    )
    made = trace_message("Trace", [record, record])
    assert made.keys == "ID k1 k2"
    assert made.body == record.text().encode() * 2


async def test_both_sides_write_traces(mq: EmbeddedBroker) -> None:
    config = ClientConfig(namesrv_addr=mq.namesrv_addr, enable_trace=True)
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.body)

    async with Producer("p", config=config) as producer:
        result = await producer.send(Message("T", b"x", keys="k"))
        async with PushConsumer(
            "g", {"T": "*"}, listener=handle, config=config,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ):  # fmt: skip
            await mq.wait_until(lambda: seen == [b"x"])
    traces = mq.messages("RMQ_SYS_TRACE_TOPIC")
    text = "".join(message.body.decode() for message in traces)
    kinds = [record.split("\x01")[0] for record in text.split("\x02") if record]
    assert sorted(kinds) == ["Pub", "SubAfter", "SubBefore"]
    assert all(result.msg_id in message.keys for message in traces)


async def test_a_missing_trace_topic_stops_nobody() -> None:
    async with EmbeddedBroker({"traceTopicEnable": "false"}) as mq:
        config = ClientConfig(namesrv_addr=mq.namesrv_addr, enable_trace=True)
        async with Producer("p", config=config) as producer:
            await producer.send(Message("T", b"x"))
        assert mq.bodies("T") == [b"x"]


async def test_the_trace_context_goes_with_the_message(mq: EmbeddedBroker) -> None:
    contexts = iter(["00-aa-bb-01", None, "00-cc-dd-01"])
    config = ClientConfig(namesrv_addr=mq.namesrv_addr, traceparent=lambda: next(contexts))
    async with Producer("p", config=config) as producer:
        own = Message("T", b"own", properties={"traceparent": "mine"})
        for message in (Message("T", b"first"), Message("T", b"none"), own):
            await producer.send(message)
        await producer.send([Message("T", b"batch")])
    found = {message.body: message.get_property("traceparent") for message in mq.messages("T")}
    assert found == {
        b"first": "00-aa-bb-01", b"none": "", b"own": "mine", b"batch": "00-cc-dd-01",
    }  # fmt: skip
