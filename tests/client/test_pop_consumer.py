"""Proves receipt handles and the reading of POP answers, and a life of messages on a broker."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.client import Message, MessageQueue, PopConsumer, Producer
from oberth.client.instance import ClientInstance
from oberth.client.messages import MessageExt
from oberth.client.pop_consumer import (
    ReceiptHandle,
    attach_handles,
    parse_offset_info,
    parse_order_counts,
    real_topic,
    retry_flag_of,
)
from oberth.errors import MQClientError, RemoteProtocolError, RemotingConnectError
from oberth.remoting.code import RequestCode
from oberth.remoting.headers.pop import PopMessageResponseHeader
from oberth.testing.embedded_broker import EmbeddedBroker


def message(topic: str, queue_id: int, offset: int, properties: bytes = b"") -> MessageExt:
    fixed = (100, 0, 0, queue_id, 0, offset, 0, 0, 0, b"", 0, b"", 0, 0, 0)
    return MessageExt(properties, fixed, topic, 0, 0, 0, len(properties), "b")


def header(**fields: str) -> PopMessageResponseHeader:
    return PopMessageResponseHeader(
        pop_time=1000, invisible_time=60000, revive_qid=3, rest_num=0, **fields
    )


LONGS = st.integers(0, 2**63 - 1)


@given(
    st.builds(
        ReceiptHandle,
        LONGS, LONGS, LONGS, st.integers(0, 999),
        st.sampled_from("012"), st.sampled_from(["broker-a", "b"]), LONGS, LONGS,
    )
)  # fmt: skip
def test_handle_both_ways(handle: ReceiptHandle) -> None:
    assert ReceiptHandle.parse(handle.text()) == handle


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d e f g h", "1 2 3 4 0 b x 5"])
def test_handles_that_are_none(text: str) -> None:
    with pytest.raises(MQClientError):
        ReceiptHandle.parse(text)


def test_answer_with_offset_maps() -> None:
    messages = [
        message("T", 0, 5),
        message("T", 0, 6),
        message("%RETRY%g_T", 0, 2, b"RETRY_TOPIC\x01T\x02"),
    ]
    attach_handles(
        messages,
        header(start_offset_info="0 0 5;1 0 2", msg_offset_info="0 0 5,6;1 0 2"),
        "T",
        "broker-a",
    )
    assert [each.properties["POP_CK"] for each in messages] == [
        "5 1000 60000 3 0 broker-a 0 5",
        "5 1000 60000 3 0 broker-a 0 6",
        "2 1000 60000 3 1 broker-a 0 2",
    ]
    assert {each.topic for each in messages} == {"T"}
    assert messages[0].properties["1ST_POP_TIME"] == "1000"


def test_a_handle_in_the_message_is_kept() -> None:
    handle = "2 900 60000 3 1 broker-a 0 2"
    messages = [message("T", 0, 2, f"POP_CK\x01{handle}\x02".encode())]
    attach_handles(
        messages, header(start_offset_info="1 0 2", msg_offset_info="1 0 2"), "T", "broker-a"
    )
    assert messages[0].properties["POP_CK"] == handle


def test_answer_without_offset_maps() -> None:
    messages = [message("T", 1, 5), message("T", 1, 6), message("T", 2, 9)]
    attach_handles(messages, header(), "T", "b")
    assert [ReceiptHandle.parse(each.properties["POP_CK"]).start_offset for each in messages] == [
        5, 5, 9,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("starts", "offsets"), [("0 1 5", "0 1 5"), ("0 0 5", ""), ("0 0", "0 0 5"), ("0 0 x", "0 0 5")]
)
def test_answers_that_do_not_fit(starts: str, offsets: str) -> None:
    with pytest.raises(RemoteProtocolError):
        attach_handles(
            [message("T", 0, 5)],
            header(start_offset_info=starts, msg_offset_info=offsets),
            "T",
            "b",
        )


def test_retry_topics() -> None:
    assert retry_flag_of("T", "T") == "0"
    assert retry_flag_of("%RETRY%g_T", "T") == "1"
    assert retry_flag_of("%RETRY%g+T", "T") == "2"
    assert real_topic("T", "g", "0") == "T"
    assert real_topic("T", "g", "1") == "%RETRY%g_T"
    assert real_topic("T", "g", "2") == "%RETRY%g+T"
    assert parse_offset_info("0 qo1%3 2;0 1 5") == {("0", 1): "5"}


async def test_a_loop_acknowledges_what_was_not_settled_by_hand(mq: EmbeddedBroker) -> None:
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.fetch_publish_message_queues("T")
        await producer.send_batch([Message("T", b"%d" % n) for n in range(3)])
    async with PopConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, await_duration_ms=500
    ) as consumer:
        acks = mq.faults.slow([RequestCode.ACK_MESSAGE], delay_s=0, times=100)
        taken: list[bytes] = []
        async for each in consumer:
            taken.append(each.body)
            if len(taken) == 1:
                await consumer.ack(each)
            if len(taken) == 3:
                break
    # One by hand, one by the loop; the message in hand when the loop was left is not acknowledged.
    assert acks.hits == 2
    assert taken == [b"0", b"1", b"2"]


async def popping(mq: EmbeddedBroker, count: int) -> PopConsumer:
    """A consumer whose one broker has some messages in one queue."""
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.fetch_publish_message_queues("T")
        await producer.send_batch([Message("T", b"%d" % n) for n in range(count)])
    return PopConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, await_duration_ms=500)


async def test_nothing_is_handed_out_after_shutdown(mq: EmbeddedBroker) -> None:
    """The messages that came with the one in hand were, and nobody could acknowledge them."""
    taken = []
    async with await popping(mq, 5) as consumer:
        async for each in consumer:
            taken.append(each.body)
            await consumer.shutdown()
    assert taken == [b"0"]


async def test_messages_that_are_hidden_no_longer_are_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others have them by then, and the broker takes their acknowledgement all the same."""
    answers = [[message("T", 0, n) for n in range(5)], [message("T", 0, 9)]]
    now_s, acknowledged = 0.0, []

    async def receive() -> list[MessageExt]:
        return answers.pop(0)

    async def ack(each: MessageExt) -> None:
        acknowledged.append(each.queue_offset)

    monkeypatch.setattr("oberth.client.pop_consumer.monotonic", lambda: now_s)
    consumer = PopConsumer("g", {"T": "*"})
    monkeypatch.setattr(consumer, "receive", receive)
    monkeypatch.setattr(consumer, "ack", ack)
    taken = []
    async for each in consumer:
        taken.append(each.queue_offset)
        if not answers:
            break
        now_s += consumer.invisible_duration_ms / 1000 / 2
    assert taken == [0, 1, 2, 9]
    assert acknowledged == [0, 1, 2]


@pytest.mark.parametrize("error", [RemotingConnectError("no"), asyncio.CancelledError()])
async def test_a_start_that_fails_leaves_nothing(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    consumer = await popping(mq, 1)

    async def fail(self: ClientInstance, topic: str) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(ClientInstance, "update_route", fail)
        with pytest.raises(type(error)):
            await consumer.start()
    with pytest.raises(MQClientError, match="not started"):
        await consumer.receive()
    assert not ClientInstance._instances.get(asyncio.get_running_loop())
    async with consumer:
        assert [each.body for each in await consumer.receive()] == [b"0"]


class Asked(Exception):
    """The broker that a consumer was about to ask."""


async def test_every_topic_is_asked_for_on_every_broker(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One count for both would ask for a topic on half of the brokers only."""

    async def queues(self: ClientInstance, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic=topic, broker_name=name, queue_id=0) for name in ("b0", "b1")]

    async def note(self: ClientInstance, queue: MessageQueue) -> str:
        raise Asked(queue.topic, queue.broker_name)

    async with PopConsumer("g", {"A": "*", "B": "*"}, namesrv_addr=mq.namesrv_addr) as consumer:
        monkeypatch.setattr(ClientInstance, "subscribe_queues", queues)
        monkeypatch.setattr(ClientInstance, "require_address", note)

        async def asked(*topics: str | None) -> set[tuple[str, str]]:
            found = set()
            for topic in topics:
                with pytest.raises(Asked) as caught:
                    await consumer.receive(topic)
                found.add(caught.value.args)
            return found

        everywhere = {(topic, broker) for topic in "AB" for broker in ("b0", "b1")}
        assert await asked(*[None] * 8) == everywhere
        assert await asked("A", "B", "A", "B") == everywhere
        assert await asked("A", None, "A", None, "A", None, "A", None) == everywhere


def test_how_often_messages_in_order_were_handed_out() -> None:
    text = "0 qo3%7 2;0 3 1;1 qo3%7 5;;0 x;0 3 -1;0 4 " + "9" * 30
    assert parse_order_counts(text) == {("0", "qo3%7"): 2, ("0", "3"): 1, ("1", "qo3%7"): 5}
    assert parse_order_counts(None) == {}
