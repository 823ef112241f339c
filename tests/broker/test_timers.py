"""Timed messages through a broker: delivered on time, recalled, kept over kills and restarts.

The broker's clock is set forward; its deliveries are then due at once.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from typing import Any

from oberth.broker.recall_handle import RecallHandle
from oberth.formats.properties import encode_properties
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker
from oberth.testing.virtual_clock import VirtualClock


async def call(
    mq: EmbeddedBroker, code: int, fields: dict[str, object], body: bytes = b""
) -> RemotingCommand:
    async with RemotingClient() as client:
        request = RemotingCommand(code=code, body=body)
        request.ext_fields = {name: str(value) for name, value in fields.items()}
        return await client.invoke(mq.address, request, timeout_s=100.0)


async def send(mq: EmbeddedBroker, body: bytes, **properties: object) -> RemotingCommand:
    text = encode_properties({name: str(value) for name, value in properties.items()}).decode()
    fields: dict[str, object] = {
        "a": "P", "b": "Timed", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
        "i": text, "j": 0, "k": "false", "m": "false",
    }  # fmt: skip
    return await call(mq, RequestCode.SEND_MESSAGE_V2, fields, body)


async def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.01)


async def test_delivered_on_time_and_kept_over_a_restart() -> None:
    async with EmbeddedBroker(clock=VirtualClock(frozen=True)) as mq:
        now_ms = mq.clock()
        assert (await send(mq, b"soon", TIMER_DELIVER_MS=now_ms + 60_200)).code == 0
        assert (await send(mq, b"later", TIMER_DELAY_SEC=600)).code == 0
        await until(
            lambda: (
                mq.broker.services.timers is not None
                and len(mq.broker.services.timers.store.wheel) == 2
            )
        )
        mq.clock.advance(seconds=59)
        await asyncio.sleep(0.05)
        assert mq.bodies("Timed") == []
        mq.clock.advance(seconds=3)
        await until(lambda: mq.bodies("Timed") == [b"soon"])
        (message,) = mq.messages("Timed")
        assert message.store_timestamp >= now_ms + 60_200
        await mq.restart()
        mq.clock.advance(seconds=300)
        await mq.kill()
        await mq.recover()
        mq.clock.advance(seconds=300)
        await until(lambda: b"later" in mq.bodies("Timed"))


async def test_a_message_can_be_recalled_by_its_handle() -> None:
    settings = {"recallMessageEnable": "true"}
    async with EmbeddedBroker(settings, clock=VirtualClock(frozen=True)) as mq:
        deliver_ms = mq.clock() + 60_500
        handle = ""
        for key in ("K1", "K2"):
            sent = await send(mq, key.encode(), UNIQ_KEY=key, TIMER_DELIVER_MS=deliver_ms)
            assert sent.code == 0
            handle = sent.fields["recallHandle"]
        text = base64.urlsafe_b64decode(handle).decode()
        assert text.split(" ")[:3] == ["v1", "Timed", "broker-a"]
        fields: dict[str, object] = {"topic": "Timed", "recallHandle": handle}
        recalled = await call(mq, RequestCode.RECALL_MESSAGE, fields)
        assert recalled.code == ResponseCode.SUCCESS
        assert recalled.fields["msgId"] == "K2"
        mq.clock.advance(seconds=30)
        await asyncio.sleep(0.3)
        mq.clock.advance(seconds=40)
        await until(lambda: mq.bodies("Timed"))
        await asyncio.sleep(0.2)
        assert mq.bodies("Timed") == [b"K1"]


async def test_recalls_that_are_refused() -> None:
    async with EmbeddedBroker() as mq:
        good = RecallHandle("Timed", "broker-a", mq.clock() + 60_000, "K")
        await send(mq, b"x")

        async def recall(handle: str, topic: str = "Timed") -> int:
            fields: dict[str, object] = {"topic": topic, "recallHandle": handle}
            return (await call(mq, RequestCode.RECALL_MESSAGE, fields)).code

        assert await recall(good.encode()) == ResponseCode.NO_PERMISSION
        mq.broker.parts.config.recall_message_enable = True
        assert await recall(good.encode()) == ResponseCode.SUCCESS
        assert await recall(good.encode(), "Nowhere") == ResponseCode.TOPIC_NOT_EXIST
        for bad in (
            "*",
            "djI=",
            "x" * 5000,
            good._replace(topic="Other").encode(),
            good._replace(broker_name="b").encode(),
            good._replace(deliver_ms=1).encode(),
            good._replace(deliver_ms=2**62).encode(),
        ):
            assert await recall(bad) == ResponseCode.ILLEGAL_OPERATION, bad
