"""Proves when an answer to a pull has the client ask for the route, and that offsets are kept."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oberth.client.instance import ClientInstance
from oberth.client.pulling import PullStatus, PullTemplate, pull_raw, update_consumer_offset
from oberth.client.subscriptions import build_subscription_data
from oberth.errors import RemotingTimeoutError
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.pull import PullMessageResponseHeader

ADDRESSES = {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
QUEUE = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)


class Answering:
    """The part of an instance that pulls use: each is answered in the same way."""

    def __init__(self, code: int, remark: str) -> None:
        self._answer = code, remark
        self.doubted: list[str] = []

    def broker_address(self, broker_name: str, broker_id: int) -> str:
        assert broker_name == "broker-a"
        return ADDRESSES[broker_id]

    def master_address(self, broker_name: str) -> str:
        return self.broker_address(broker_name, 0)

    async def invoke(self, addr: str, request: RemotingCommand, timeout_s: float) -> Any:
        del addr, timeout_s
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=7, min_offset=0, max_offset=7
        )
        return create_response(request, *self._answer, header=header)

    def doubt_route(self, topic: str) -> None:
        self.doubted.append(topic)


@pytest.mark.parametrize(
    ("broker_id", "remark", "is_doubtful"),
    [
        (0, "OFFSET_OVERFLOW_ONE", True),
        (0, "NO_MESSAGE_IN_QUEUE", True),
        (0, "NO_MATCHED_MESSAGE", False),
        (0, "MESSAGE_WAS_REMOVING", False),
        (1, "OFFSET_OVERFLOW_ONE", False),
    ],
)
async def test_a_master_that_became_a_slave_is_left(
    broker_id: int, remark: str, is_doubtful: bool
) -> None:
    """A slave at its end says: again, at once, at the master. A master never says so."""
    instance = Answering(ResponseCode.PULL_RETRY_IMMEDIATELY, remark)
    template = PullTemplate(
        "g", QUEUE, build_subscription_data("t", "*", 0), max_msg_nums=32, with_subscription=True,
        suspend_timeout_ms=1000,
    )  # fmt: skip
    found = await pull_raw(
        cast(ClientInstance, instance), template, 7, sys_flag=0, broker_id=broker_id
    )
    assert found.status is PullStatus.NO_MATCHED_MSG
    assert instance.doubted == (["t"] if is_doubtful else [])
    assert found.from_master == (broker_id == 0)


class Forgetful:
    """The part of an instance that commits use, before a broker that serves them as Apache's does.

    It makes a group's table of a topic for each commit that finds none, and keeps the last.
    """

    def __init__(self) -> None:
        self.first_commits: dict[Any, Any] = {}
        self.tables: dict[tuple[str, str], dict[int, int]] = {}
        self.failures = self.asked = 0
        self.hangs = False
        self.serving = self.most = 0

    async def require_address(self, queue: MessageQueue) -> str:
        return queue.broker_name

    async def ask(self, addr: str, code: Any, header: Any, timeout_s: float) -> None:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise RemotingTimeoutError("no answer")
        self.serving += 1
        self.most = max(self.most, self.serving)
        key = f"{header.topic}@{header.consumer_group}", addr
        found = self.tables.get(key)
        await asyncio.sleep(0)
        if found is None:
            found = self.tables[key] = {}
        found[header.queue_id] = header.commit_offset
        self.serving -= 1


@pytest.mark.parametrize("failures", [0, 1])
async def test_first_commits_do_not_take_each_other_away(failures: int) -> None:
    broker = Forgetful()
    broker.failures = failures
    queues = [
        MessageQueue(topic=topic, broker_name=name, queue_id=number)
        for topic in ("t", "%RETRY%g")
        for name in ("a", "b")
        for number in range(4)
    ]

    async def commit(offset: int) -> list[BaseException | None]:
        instance = cast(ClientInstance, broker)
        return await asyncio.gather(
            *(update_consumer_offset(instance, "g", queue, offset) for queue in queues),
            return_exceptions=True,
        )

    refused = [each for each in await commit(3) if each is not None]
    assert len(refused) == failures
    assert len(broker.tables) == 4
    kept = [offset for table in broker.tables.values() for offset in table.values()]
    assert kept == [3] * (len(queues) - failures)
    broker.most = 0
    assert await commit(4) == [None] * len(queues)
    assert all(table == dict.fromkeys(range(4), 4) for table in broker.tables.values())
    assert broker.most == len(queues)  # the later ones wait for no other


async def test_first_commits_wait_together_for_a_broker_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("oberth.client.pulling.OFFSET_TIMEOUT_S", 0.05)
    broker = Forgetful()
    broker.hangs = True
    queues = [MessageQueue(topic="t", broker_name="a", queue_id=n) for n in range(50)]
    refused = await asyncio.gather(
        *(update_consumer_offset(cast(ClientInstance, broker), "g", queue, 1) for queue in queues),
        return_exceptions=True,
    )
    assert all(isinstance(each, RemotingTimeoutError) for each in refused)
    assert broker.asked < 5  # and not one after the other
    broker.hangs = False
    await update_consumer_offset(cast(ClientInstance, broker), "g", queues[3], 2)
    assert broker.tables == {("t@g", "a"): {3: 2}}
