"""What clients see across a failover is what the promise allows; wrong brokers are caught."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.broker.test_controlled_broker import Group, end, ha, is_master, life
from tests.rigs.small_brokers import until

from oberth.broker.controlled_broker import ControlledBroker
from oberth.broker.controlled_ha import ControlledHAService
from oberth.errors import RemotingConnectError
from oberth.formats.epochs import EpochTable
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.testing.history import History, Outcome

BOUND_S = 100


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        made = Group(tmp_path)
        await made.name_server.start()
        await made.controller.start()
        stack.push_async_callback(made.aclose)
        yield made


class Recorder:
    """Sends and pulls at brokers, as their processors do, and writes down what comes of it."""

    def __init__(self) -> None:
        self.history = History()

    async def send(self, each: ControlledBroker, body: str) -> Outcome:
        broker = life(each)
        begun = self.history.begin()
        (result,) = broker.parts.store.append_messages(
            [MessageExtBrokerInner.of("t", body.encode())]
        )
        outcome = Outcome.REFUSED
        if result.ok:
            done: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
            end_offset = broker.parts.store.max_phy_offset
            broker.services.dispatching.when_durable(end_offset, done.set_result)
            async with asyncio.timeout(BOUND_S):
                is_ok = await done is PutMessageStatus.PUT_OK
            outcome = Outcome.ACKNOWLEDGED if is_ok else Outcome.UNKNOWN
        self.history.sent(body, begun, outcome=outcome, queue="t 0", offset=result.queue_offset)
        broker.services.dispatching.soon()
        return outcome

    def pull(self, each: ControlledBroker, offset: int) -> bool:
        """Whether there was something."""
        begun = self.history.begin()
        store = life(each).parts.store
        unit = None
        if offset < store.max_offset_in_queue("t", 0):
            unit = store.consume_queue_unit("t", 0, offset)
        message = None if unit is None else store.find_message(unit.commit_log_offset)
        body = None if message is None else message.body.decode()
        self.history.pulled("t 0", offset, body, begun)
        return body is not None

    async def pull_all(self, each: ControlledBroker) -> None:
        """Everything, once it is readable."""
        await until(lambda: life(each).parts.store.dispatch_behind_bytes == 0)
        offset = 0
        while self.pull(each, offset):
            offset += 1


async def fail_over(group: Group, patched: pytest.MonkeyPatch) -> History:
    """Two brokers; the master is cut off while it is sent to, and comes back."""
    recorder = Recorder()
    first, second = await group.start("1"), await group.start("2")
    await group.agree(1, 2)
    for n in range(5):
        assert await recorder.send(first, f"a{n}") is Outcome.ACKNOWLEDGED

    async def nobody(*_: object) -> None:
        raise RemotingConnectError("cut off from the controller")

    with patched.context() as cut_off:
        cut_off.setattr(first, "_ask", nobody)
        cut_off.setattr(first, "_find_leader", nobody)
        await group.elect(2)
        await until(lambda: is_master(second))
        # Who does not know that there is another master: longer bodies, so the logs part.
        not_told = asyncio.ensure_future(recorder.send(first, "not told" * 9))
        await asyncio.sleep(0)
        recorder.pull(first, 5)
        await recorder.send(second, "b0")
        await recorder.send(second, "b1")
    first.look_soon()
    await not_told
    await until(lambda: first.broker is not None and not is_master(first))
    await group.agree(1, 2)
    await until(lambda: first.broker is not None and end(first) == end(second))
    assert await recorder.send(second, "c") is Outcome.ACKNOWLEDGED
    await until(lambda: ha(first).confirm_offset() == end(second))
    await recorder.pull_all(first)
    await recorder.pull_all(second)
    return recorder.history


async def test_a_failover_is_explained_by_the_promise(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await fail_over(group, monkeypatch)
    assert history.faults(keeps_offsets=False) == []
    assert [each.outcome for each in history.sends].count(Outcome.UNKNOWN) == 1


async def test_who_acknowledges_before_replication_is_caught(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(service: Any, end_offset: int, flushed: Any, finish: Any) -> None:
        finish(flushed)

    monkeypatch.setattr(ControlledHAService, "when_replicated", at_once)
    faults = (await fail_over(group, monkeypatch)).faults(keeps_offsets=False)
    assert any("acknowledged" in each for each in faults), faults


async def test_who_forgets_an_epoch_is_caught(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log looks like the other's, so nothing is cut, and the same offset has two messages."""
    monkeypatch.setattr(EpochTable, "append", lambda *_: False)
    monkeypatch.setattr(
        EpochTable, "common_end", lambda _, own_end, other, other_end: min(own_end, other_end)
    )
    monkeypatch.setattr(EpochTable, "at", lambda *_: ((1, 0), None))
    history = await fail_over(group, monkeypatch)
    assert history.faults(keeps_offsets=False) != []
