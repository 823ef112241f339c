"""Proves that consumers see a message just if its local transaction commits, checks included."""

from __future__ import annotations

from typing import Any

import pytest

from oberth.client import (
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionProducer,
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
