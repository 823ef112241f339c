"""A W3C trace context goes with its message wherever a broker takes it, byte for byte.

Sent with raw frames, and read where consumers read: after retry, dead letter, delay level, timer,
transaction, POP's own retry, request-reply, batch, and as a redriven dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oberth.client.messages import decode_messages
from oberth.formats.message import MessageExt

CONTEXT = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "user=zo%C3%AB,größe=7",
}


def assert_kept(message: MessageExt | Any) -> None:
    for name, value in CONTEXT.items():
        assert message.properties[name] == value


async def only(live: Any, topic: str, queue_id: int = 0) -> MessageExt:
    (message,) = await live.peer.read(topic, queue_id)
    found: MessageExt = message
    return found


async def settle(live: Any, ms: int) -> None:
    """Set the clock forward and let timers, delays and revives do their work."""
    await live.later(ms)
    for _ in range(20):
        await asyncio.sleep(0.005)
        await live.later(100)


async def test_retry_and_dead_letter(live: Any) -> None:
    assert (await live.peer.send("T", b"x", properties={**CONTEXT, "KEYS": "k"})).code == 0
    await live.peer.heartbeat("G", {"T": "*"})
    message = await only(live, "T")
    assert_kept(message)

    async def send_back(message: MessageExt, retries_max: int) -> None:
        fields = {
            "group": "G", "offset": str(message.commit_log_offset), "delayLevel": "1",
            "originTopic": "T", "maxReconsumeTimes": str(retries_max),
        }  # fmt: skip
        assert (await live.peer.call(36, fields)).code == 0

    await send_back(message, 1)
    await settle(live, 2_000)
    retried = await only(live, "%RETRY%G")
    assert_kept(retried)
    assert retried.reconsume_times == 1
    await send_back(retried, 1)
    live.broker.services.dispatching.now()
    dead = live.broker.parts.store.look_message_by_offset(
        live.broker.parts.store.commit_log_offset_in_queue("%DLQ%G", 0, 0)
    )
    assert dead.topic == "%DLQ%G"
    assert_kept(dead)


@pytest.mark.parametrize(
    "delay",
    [{"DELAY": "1"}, {"TIMER_DELAY_SEC": "5"}, {"TIMER_DELIVER_MS": "soon"}],
    ids=["level", "timer-delay", "timer-time"],
)
async def test_delays(live: Any, delay: dict[str, str]) -> None:
    if "TIMER_DELIVER_MS" in delay:
        delay = {"TIMER_DELIVER_MS": str(live.clock() + 5_000)}
    assert (await live.peer.send("T", b"x", properties={**CONTEXT, **delay})).code == 0
    assert await live.peer.read("T") == []
    await settle(live, 8_000)
    assert_kept(await only(live, "T"))


async def test_transaction(live: Any) -> None:
    properties = {**CONTEXT, "TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "A" * 32}
    sent = await live.peer.send("T", b"x", properties=properties, f="4")
    assert sent.code == 0, sent.remark
    half = await only(live, "RMQ_SYS_TRANS_HALF_TOPIC")
    assert_kept(half)
    fields = {
        "producerGroup": "PG", "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": str(half.commit_log_offset), "commitOrRollback": "8",
        "msgId": "A" * 32, "transactionId": "A" * 32, "topic": "T", "fromTransactionCheck": "false",
    }  # fmt: skip
    await live.peer.call(37, fields)
    live.broker.services.dispatching.now()
    assert_kept(await only(live, "T"))


async def test_what_was_popped_and_comes_back(live: Any) -> None:
    assert (await live.peer.send("T", b"x", properties=CONTEXT)).code == 0

    async def pop() -> list[Any]:
        answer = await live.peer.call(
            200050,
            {
                "consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "32",
                "invisibleTime": "10000", "pollTime": "0", "bornTime": str(live.clock()),
                "initMode": "0", "expType": "TAG", "exp": "*",
            },
        )  # fmt: skip
        return decode_messages(answer.body_bytes(), "broker-a") if answer.code == 0 else []

    (first,) = await pop()
    assert_kept(first)
    async with asyncio.timeout(100):
        again: list[Any] = []
        while not again:
            await settle(live, 11_000)
            again = await pop()
    assert again[0].reconsume_times == 1
    assert_kept(again[0])


async def test_batch_and_light_queues(make_live: Callable[..., Awaitable[Any]]) -> None:
    live = await make_live(enableLmq="true", enableMultiDispatch="true")
    properties = {**CONTEXT, "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    assert (await live.peer.send("T", b"x", properties=properties)).code == 0
    for topic in ("T", "%LMQ%a", "%LMQ%b"):
        assert_kept(await only(live, topic))


async def test_after_a_restart_and_in_the_index(live: Any) -> None:
    assert (await live.peer.send("T", b"x", properties={**CONTEXT, "KEYS": "k"})).code == 0
    await live.restart()
    assert_kept(await only(live, "T"))
    answer = await live.peer.call(
        12,
        {
            "topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0",
            "endTimestamp": str(2**62),
        },
    )  # fmt: skip
    assert_kept(decode_messages(answer.body_bytes(), "broker-a")[0])


def test_a_redriven_dead_letter() -> None:
    pytest.importorskip("pyarrow")
    from oberth.spark.pipelines.dead_letters import new_messages

    row = {
        "originTopic": "T", "value": b"x", "key": None, "tags": None, "uniqueKey": None,
        "shardingKey": None, "flag": 0, "bornTimestamp": None, "bornHost": None,
        "offsetMsgId": "0" * 32,
        "properties": [*CONTEXT.items(), ("RETRY_TOPIC", "T"), ("DELAY", "3")],
    }  # fmt: skip
    (made,) = new_messages([row]).to_pylist()
    assert dict(made["properties"]) == {**CONTEXT, "REDRIVEN_FROM": "0" * 32}
