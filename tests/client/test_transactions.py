"""Proves that consumers see a message just if its local transaction commits, checks included."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from oberth.client import (
    LocalTransactionState,
    Message,
    MessageExt,
    SendResult,
    TransactionProducer,
    blocking,
)
from oberth.errors import MQClientError
from oberth.testing.embedded_broker import EmbeddedBroker

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOW = LocalTransactionState.UNKNOW


class Listener:
    """Does what the body says; checks find what ``later`` says."""

    def __init__(self) -> None:
        self.executed: list[tuple[bytes, Any]] = []
        self.checked: list[bytes] = []
        self.later: dict[bytes, LocalTransactionState] = {}

    async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        assert msg.transaction_id
        self.executed.append((msg.body, arg))
        if msg.body == b"raise":
            raise RuntimeError("no")
        return {b"commit": COMMIT, b"rollback": ROLLBACK}.get(msg.body, UNKNOW)

    def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        assert msg.topic == "T"
        self.checked.append(msg.body)
        return self.later.get(msg.body, UNKNOW)


async def test_verdicts(mq: EmbeddedBroker) -> None:
    listener = Listener()
    async with TransactionProducer("g", listener, namesrv_addr=mq.namesrv_addr) as producer:
        result = await producer.send_message_in_transaction(Message("T", b"commit"), 7)
        assert result.local_transaction_state is COMMIT
        assert result.transaction_id == result.msg_id
        await producer.send_message_in_transaction(Message("T", b"rollback"))
        for body in (b"raise", b"later-yes", b"later-no"):
            result = await producer.send_message_in_transaction(Message("T", body))
            assert result.local_transaction_state is UNKNOW
        assert listener.executed[0] == (b"commit", 7)
        await mq.wait_until(lambda: mq.bodies("T") == [b"commit"])
        listener.later = {b"raise": COMMIT, b"later-yes": COMMIT, b"later-no": ROLLBACK}
        mq.clock.advance(minutes=1)
        await mq.wait_until(lambda: len(mq.bodies("T")) == 3)
        mq.assert_stored("T", [b"commit", b"raise", b"later-yes"])
        await mq.wait_until(lambda: b"later-no" in listener.checked)
        with pytest.raises(MQClientError, match="delayed"):
            await producer.send_message_in_transaction(Message("T", b"x", delay_time_level=1))


async def test_another_member_answers_the_check(mq: EmbeddedBroker) -> None:
    first, second = Listener(), Listener()
    second.later = {b"later": COMMIT}
    async with TransactionProducer("g", first, namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send_message_in_transaction(Message("T", b"later"))
    async with TransactionProducer("g", second, namesrv_addr=mq.namesrv_addr) as producer:
        await producer.fetch_publish_message_queues("T")
        await mq.wait_until(lambda: "g" in mq.broker.parts.producers.groups())
        mq.clock.advance(minutes=1)
        await mq.wait_until(lambda: mq.bodies("T") == [b"later"])
    assert first.checked == []


class Slow(Listener):
    """Its local transactions wait for ``gate``, or shut their producer down."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        self.ends: TransactionProducer | None = None
        self.in_a_task = False

    async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        self.started.set()
        if self.ends is None:
            await self.gate.wait()
        elif self.in_a_task:
            await asyncio.create_task(self.ends.shutdown())
        else:
            await self.ends.shutdown()
        return COMMIT


class Ending:
    """Shuts its blocking producer down."""

    ends: blocking.TransactionProducer

    def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        self.ends.shutdown()
        return COMMIT

    def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        return UNKNOW


async def test_a_shutdown_waits_for_local_transactions(mq: EmbeddedBroker) -> None:
    """Who sent one was told that it was not done."""
    listener = Slow()
    producer = TransactionProducer(
        "g", listener, namesrv_addr=mq.namesrv_addr, send_msg_timeout_ms=60_000
    )
    await producer.start()
    sending = asyncio.create_task(producer.send_message_in_transaction(Message("T", b"x")))
    await listener.started.wait()
    ending = asyncio.create_task(producer.shutdown())
    await asyncio.sleep(0)
    listener.gate.set()
    result = await sending
    await ending
    assert result.local_transaction_state is COMMIT
    await mq.wait_until(lambda: mq.bodies("T") == [b"x"])


async def test_a_local_transaction_that_outlives_its_producer_is_done_all_the_same(
    mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Slow()
    async with TransactionProducer("g", listener, namesrv_addr=mq.namesrv_addr) as producer:
        sending = asyncio.create_task(producer.send_message_in_transaction(Message("T", b"x")))
        await listener.started.wait()
        producer.send_msg_timeout_ms = 1
    listener.gate.set()
    result = await sending
    assert result.local_transaction_state is COMMIT
    assert "could not be sent, the broker will ask about it" in caplog.text
    assert mq.bodies("T") == []
    with pytest.raises(MQClientError, match="not started"):
        await producer.send_message_in_transaction(Message("T", b"y"))
    assert listener.executed == []


@pytest.mark.parametrize("in_a_task", [False, True])
async def test_a_local_transaction_that_shuts_down_does_not_wait_for_itself(
    mq: EmbeddedBroker, in_a_task: bool
) -> None:
    listener = Slow()
    listener.in_a_task = in_a_task
    producer = listener.ends = TransactionProducer(
        "g", listener, namesrv_addr=mq.namesrv_addr, send_msg_timeout_ms=60_000
    )
    await producer.start()
    result = await asyncio.wait_for(producer.send_message_in_transaction(Message("T", b"x")), 30)
    assert result.local_transaction_state is COMMIT


async def test_a_local_transaction_in_a_thread_does_not_wait_for_itself(
    mq: EmbeddedBroker,
) -> None:
    listener = Ending()

    def send() -> LocalTransactionState:
        listener.ends = blocking.TransactionProducer(
            "g", listener, namesrv_addr=mq.namesrv_addr, send_msg_timeout_ms=60_000
        )
        listener.ends.start()
        sent = listener.ends.send_message_in_transaction(Message("T", b"x"))
        return sent.local_transaction_state

    assert await asyncio.wait_for(asyncio.to_thread(send), 30) is COMMIT


async def test_an_id_that_is_none_does_not_undo_a_local_transaction(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Slow()
    listener.gate.set()
    async with TransactionProducer("g", listener, namesrv_addr=mq.namesrv_addr) as producer:
        send = producer.send

        async def garbled(msg: Message) -> SendResult:
            return msgspec.structs.replace(await send(msg), offset_msg_id="none")

        monkeypatch.setattr(producer, "send", garbled)
        result = await producer.send_message_in_transaction(Message("T", b"x"))
    assert result.local_transaction_state is COMMIT
    assert "could not be sent, the broker will ask about it" in caplog.text
