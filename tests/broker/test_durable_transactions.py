"""What a producer was told of its transactions is true after a loss of power."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import Clock, MakeLive, Peer
from tests.broker.power_cuts import Images, wall_ms
from tests.rigs.campaigns import some

from oberth.broker.broker import Broker
from oberth.formats.message import decode_record
from oberth.formats.message_id import decode_offset_message_id
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus

pytestmark = pytest.mark.crash

HERE = "tests/broker/test_durable_transactions.py"
CUT = "test_a_power_cut_at_any_event_takes_back_no_end_that_was_answered"
COMMIT, ROLLBACK = "8", "12"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

Half = tuple[int, int]


async def send_half(peer: Peer, body: bytes) -> Half:
    """Queue offset and CommitLog offset of a new half message."""
    given = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": f"U{body.decode()}"}
    response = await peer.send("T", body, 1, given, f="4", g=str(wall_ms()))
    assert response.code == 0
    where = decode_offset_message_id(response.fields["msgId"]).commit_log_offset
    return int(response.fields["queueOffset"]), where


def end_request(half: Half, decision: str) -> RemotingCommand:
    fields = {
        "producerGroup": "PG", "msgId": "U", "fromTransactionCheck": "true",
        "tranStateTableOffset": str(half[0]), "commitLogOffset": str(half[1]),
        "commitOrRollback": decision,
    }  # fmt: skip
    return RemotingCommand(code=37, ext_fields=fields)


async def end(peer: Peer, half: Half, decision: str = COMMIT) -> RemotingCommand:
    return await peer.client.invoke(peer.address, end_request(half, decision), 100.0)


async def test_a_power_cut_at_any_event_takes_back_no_end_that_was_answered(
    tmp_path: Path,
) -> None:
    """Committed once, rolled back for good, and never asked about again.

    A half whose end was not answered is asked about; its commit may then be stored twice.
    """
    decisions = {b"1": COMMIT, b"2": ROLLBACK, b"3": COMMIT, b"4": COMMIT}
    prepared: set[bytes] = set()
    answered: set[bytes] = set()
    async with Images(tmp_path) as live:
        assert (await live.peer.send("T")).code == 0
        with live.at_every_event(lambda: (prepared.copy(), answered.copy()), 2) as images:
            for body, decision in decisions.items():
                half = await send_half(live.peer, body)
                prepared.add(body)
                if body != b"4":
                    assert (await end(live.peer, half, decision)).code == 0
                    answered.add(body)
    assert len(images) > 30
    assert images[-1][1] == ({b"1", b"2", b"3", b"4"}, {b"1", b"2", b"3"})
    for image, (was_prepared, was_answered) in some(f"{HERE}::{CUT}", images):
        clock = Clock()
        async with live.make(image, clock_ms=clock) as broker:
            asked: dict[bytes, Half] = {}

            def on_check(
                channel: object, request: RemotingCommand, asked: dict[bytes, Half] = asked
            ) -> None:
                fields = request.fields
                half = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
                asked[decode_record(request.body_bytes()).body] = half

            table = ProcessorTable()
            table.sync([39], on_check)
            peer = Peer(broker, table)
            await peer.heartbeat(producers=("PG",))
            found = [message.body for message in await peer.read("T", 1)]
            for body in was_answered:
                assert found.count(body) == (decisions[body] == COMMIT)
            transactions = broker.services.transactions
            clock.ahead_ms += 60_000
            transactions.check()
            await peer.heartbeat(producers=("PG",))  # behind the questions, on the same connection
            assert not was_answered & asked.keys()
            assert was_prepared - was_answered <= asked.keys() | set(found) | {b"2"}
            for body, half in asked.items():
                assert (await end(peer, half, decisions[body])).code == 0
            found = [message.body for message in await peer.read("T", 1)]
            for body, decision in decisions.items():
                if decision == ROLLBACK:
                    assert body not in found
                elif body in was_answered:
                    assert found.count(body) == 1
                elif body in was_prepared:
                    assert 1 <= found.count(body) <= 2
            await peer.client.aclose()
        shutil.rmtree(image)


async def test_an_end_is_answered_when_the_disk_has_it(make_live: Any) -> None:
    live = await make_live(flushDiskType="SYNC_FLUSH")
    await live.peer.send("T")
    halves = [await send_half(live.peer, body) for body in (b"1", b"2", b"3", b"4")]
    broker = live.broker
    dispatching, store = broker.services.dispatching, broker.parts.store
    waiting: list[tuple[int, Any]] = []
    original = dispatching.when_durable
    dispatching.when_durable = lambda until, finish: waiting.append((until, finish))
    dispatching.soon = lambda: None
    answers: list[RemotingCommand] = []

    class Channel:
        remote = "here"

        def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
            answers.append(response)

    channel: Any = Channel()
    end_burst = broker.processors.transactions.end

    def op_offset() -> int:
        store.dispatch_nowait()
        end: int = store.max_offset_in_queue(OP_TOPIC, 0)
        return end

    one_way = end_request(halves[0], COMMIT)
    one_way.flag |= ONEWAY_FLAG
    assert end_burst([channel], [one_way]) == [None]
    assert not waiting  # it promises nothing
    both = [end_request(halves[1], COMMIT), end_request(halves[2], ROLLBACK)]
    assert end_burst([channel] * 2, both) == [None, None]
    assert end_burst([channel], [end_request(halves[1], COMMIT)]) == [None]  # again: ends once
    refused = end_request((99, halves[3][1]), COMMIT)
    (refusal,) = end_burst([channel], [refused])
    assert refusal is not None
    assert refusal.code == 1
    assert not answers
    assert [until for until, _ in waiting] == [store.max_phy_offset] * 2
    for (_, finish), status in zip(waiting, ("PUT_OK", "FLUSH_DISK_TIMEOUT"), strict=True):
        finish(PutMessageStatus[status])
    assert [answer.code for answer in answers] == [0, 0, 10]
    dispatching.when_durable = original
    del dispatching.soon
    assert (await end(live.peer, halves[3])).code == 0
    assert op_offset() == 2  # one for each burst
    assert [m.body for m in await live.peer.read("T", 1)] == [b"1", b"2", b"4"]


POOL = {
    "transientStorePoolEnable": "true", "transientStorePoolSize": "2",
    "commitIntervalCommitLog": "600000", "wakeCommitWhenPutMessage": "false",
}  # fmt: skip


async def test_an_end_that_only_the_transient_pool_has_is_not_answered(tmp_path: Path) -> None:
    async with Images(tmp_path, **POOL) as images:
        halves = [await send_half(images.peer, body) for body in (b"1", b"2")]
        assert (await end(images.peer, halves[0], COMMIT)).code == 0
        assert (await end(images.peer, halves[1], ROLLBACK)).code == 0
        taken = images.take()

    async def look(broker: Broker, peer: Peer) -> None:
        assert [message.body for message in await peer.read("T", 1)] == [b"1"]
        assert broker.parts.store.max_offset_in_queue(OP_TOPIC, 0) == 2

    for image in taken:
        await images.on(image, look)


async def test_a_mapping_changes_when_messages_in_the_transient_pool_are_readable(
    tmp_path: Path,
) -> None:
    async with Images(tmp_path, **POOL) as images:
        assert (await images.peer.send("T")).code == 0
        store = images.broker.parts.store
        assert store.append_messages([MessageExtBrokerInner.of("T", b"x")])[0].ok
        await images.broker.processors.static_topics._all_readable()
        assert store.max_offset_in_queue("T", 0) == 2


async def test_an_end_that_did_not_get_into_the_log_is_no_success(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(flushDiskType="SYNC_FLUSH")
    half = await send_half(live.peer, b"1")
    store = live.broker.parts.store
    append = store.append_messages

    def refuse_ends(messages: list[MessageExtBrokerInner]) -> list[PutMessageResult]:
        if messages[0].topic == OP_TOPIC:
            return [PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)]
        return append(messages)

    with monkeypatch.context() as patch:
        patch.setattr(store, "append_messages", refuse_ends)
        assert (await end(live.peer, half, ROLLBACK)).code == 1
    assert (await end(live.peer, half, ROLLBACK)).code == 0
    store.dispatch_nowait()
    assert store.max_offset_in_queue(OP_TOPIC, 0) == 1
