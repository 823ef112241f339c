"""What POP brings back: check points that anybody may have written, stores that take a part, order.

What stands in the revive topic need not be what a broker wrote, since clients may send there. The
broker's clock is set forward, as in test_pop.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.broker.pop.test_pop import ACK, BATCH, CHANGE, GROUP, POP, TOPIC, Peer, Popped, bodies

from oberth.broker.pop import pop_service as module
from oberth.broker.pop.check_point import parse_receipt
from oberth.errors import StoreError
from oberth.formats import names
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import ResponseCode
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from oberth.testing.embedded_broker import EmbeddedBroker
from oberth.testing.virtual_clock import VirtualClock

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
DELETE_TOPIC = 215
DELAY_MAX_S = 60


@pytest.fixture(params=["plain", "buffer"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    settings = {"popFromRetryProbability": "50", "timerMaxDelaySec": str(DELAY_MAX_S)}
    if request.param == "buffer":
        settings["enablePopBufferMerge"] = "true"
    clock = VirtualClock(frozen=True)
    async with EmbeddedBroker(settings, clock=clock) as mq, RemotingClient() as client:
        yield Peer(mq, client)


plain = pytest.mark.parametrize("peer", ["plain"], indirect=True)


async def send_to(peer: Peer, topic: str, body: bytes, properties: str, queue_id: int = 0) -> int:
    fields = {
        "a": "P", "b": topic, "c": "TBW102", "d": 8, "e": queue_id, "f": 0, "g": 1, "h": 0,
        "i": properties,
    }  # fmt: skip
    return int((await peer.call(310, fields, body)).code)


async def forge(peer: Peer, tag: str = "ck", queue_id: int = 0, **changes: object) -> None:
    """A client sends a check point, due at once, to the revive topic."""
    fields = {
        "so": 0, "pt": 0, "it": 0, "q": 0, "t": TOPIC, "c": GROUP, "bn": "broker-a", "n": 1,
        **changes,
    }  # fmt: skip
    body = json.dumps(fields).encode()
    assert await send_to(peer, REVIVE, body, f"TAGS\x01{tag}\x02", queue_id) == 0


def committed(peer: Peer, queue_id: int = 0) -> int:
    return peer.mq.offsets(module.REVIVE_GROUP, REVIVE).get(queue_id, -1)


async def change(peer: Peer, popped: Popped, invisible_ms: int) -> Any:
    return await peer.call(
        CHANGE,
        {
            "consumerGroup": GROUP, "topic": popped.topic, "queueId": popped.queue_id,
            "extraInfo": popped.receipt, "offset": popped.offset, "invisibleTime": invisible_ms,
        },
    )  # fmt: skip


# What anybody may have written


@plain
async def test_messages_far_apart_are_looked_at_one_by_one(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check point of two messages that spans more than the queue has."""
    asked: list[tuple[int, int]] = []
    old = peer.mq.broker.services.old_messages
    readable = old.readable

    def counted(reader: Any, stretch: Any, then: Any) -> int:
        if reader[0] == "messages of revive queue":
            asked.append(stretch[2:])
            assert len(asked) < 10
            return min(readable(reader, stretch, then), 256)
        return readable(reader, stretch, then)

    monkeypatch.setattr(old, "readable", counted)
    await peer.send(b"x")
    await forge(peer, n=2, d=[0, (1 << 31) - 1])
    await forge(peer, n=2, d=[0, 10**15])  # nobody hands out what is so far apart
    await forge(peer, d=[0], so=(1 << 63) - 1)
    await peer.later(3)
    assert [offset for offset, _ in asked] == [0, (1 << 31) - 1]
    assert peer.mq.bodies(RETRY) == [b"x"]
    assert committed(peer) == 0


@plain
@pytest.mark.parametrize("tag", ["ck", "ack", "bAck"])
async def test_a_body_that_is_nested_without_end_is_passed(peer: Peer, tag: str) -> None:
    for body in (b"[" * 15_000, b'{"d":' * 3_000, b'{"aol":[' + b"1," * 20_000 + b"1]}"):
        assert await send_to(peer, REVIVE, body, f"TAGS\x01{tag}\x02") == 0
    await peer.send(b"x")
    await forge(peer)
    await peer.later(3)
    assert peer.mq.bodies(RETRY) == [b"x"]
    assert committed(peer) == 3


@plain
async def test_a_delayed_message_for_the_timers_own_topic_is_delivered_once(peer: Peer) -> None:
    """It names the timer's topic as its destination, and would come from there for ever."""
    assert await send_to(peer, names.TIMER_TOPIC, b"x", "DELAY\x011\x02") == 0
    await peer.later(2)
    await peer.later(2)
    assert peer.mq.bodies(names.TIMER_TOPIC) == [b"x"]


FAR: dict[str, Any] = {"pt": 0, "it": 9 * 10**18}
"""Of a check point that is due when nobody lives any more."""
NO_NAMES: list[dict[str, Any]] = [
    {"c": "G\x02TIMER_DELAY_MS\x010"},
    {"c": "G\x02TIMER_DEL_UNIQKEY\x01a"},
    {"t": "T\x02TIMER_DELAY_MS\x010"},
    {"bn": "b\x02TIMER_DELAY_MS\x010"},
    {"bn": "\ud800"},
    {"c": "\ud800"},
    {"t": "../T"},
]


def revive_records(peer: Peer, queue_id: int = 0) -> int:
    store = peer.mq.broker.parts.store
    return store.max_offset_in_queue(REVIVE, queue_id)


@plain
@pytest.mark.parametrize("changes", NO_NAMES)
async def test_a_check_point_with_names_that_are_none_is_passed(
    peer: Peer, changes: dict[str, Any]
) -> None:
    """What stands in them would become properties when it goes through the timer again."""
    await peer.send(b"x")
    log_end = peer.mq.broker.parts.store.max_phy_offset
    ticks: list[int] = []
    peer.mq.broker.parts.ticks.append(ticks.append)
    await forge(peer, **FAR, **changes)
    await forge(peer, **changes)
    await forge(peer)
    await peer.later(3)
    assert peer.mq.bodies(RETRY) == [b"x"]
    assert (revive_records(peer), committed(peer)) == (3, 2)
    assert peer.mq.broker.parts.store.max_phy_offset < log_end + 10_000
    assert ticks  # those behind POP have their turns


@plain
async def test_acks_with_names_that_are_none_are_not_stored(peer: Peer) -> None:
    await peer.send(b"x")
    (popped,) = await peer.pop()
    log_end = peer.mq.broker.parts.store.max_phy_offset
    bad = "G\x02TIMER_DEL_UNIQKEY\x01a"
    fields = {
        "consumerGroup": bad, "topic": TOPIC, "queueId": 0, "extraInfo": popped.receipt,
        "offset": 0,
    }  # fmt: skip
    assert (await peer.call(ACK, fields)).code == ResponseCode.INVALID_PARAMETER
    entry = batch_entry(popped, "AQ==", c=bad)
    assert await batch_ack(peer, entry) == ResponseCode.INVALID_PARAMETER
    assert peer.mq.broker.parts.store.max_phy_offset == log_end
    assert await peer.ack(popped) == 0


@plain
async def test_a_check_point_that_fails_is_passed(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is odd about it, those behind it come back, and the disk's failures are others."""
    service = peer.mq.broker.services.pop
    bring_back = service._bring_back
    failures: list[Exception] = [OSError("a bad block"), MemoryError(), StoreError("full")]
    failures.append(ValueError("odd"))

    def fails_first(check_point: Any, *args: Any) -> Any:
        if check_point.group == "Odd" and failures:
            raise failures.pop(0)
        return bring_back(check_point, *args)

    monkeypatch.setattr(service, "_bring_back", fails_first)
    await peer.send(b"x")
    await forge(peer, c="Odd")
    await forge(peer)
    await peer.later(3)
    await peer.mq.wait_until(lambda: peer.mq.bodies(RETRY) == [b"x"], 30.0)
    assert failures == []
    assert committed(peer) == 1


@plain
async def test_a_task_that_fails_keeps_no_other_from_its_turn(peer: Peer) -> None:
    def fails(now_ms: int) -> None:
        raise ValueError(now_ms)

    ticks: list[int] = []
    peer.mq.broker.parts.ticks[:0] = [fails]
    peer.mq.broker.parts.ticks.append(ticks.append)
    peer.mq.broker.on_time(peer.mq.clock())
    assert ticks == [peer.mq.clock()]


@plain
@pytest.mark.parametrize("why", ["acknowledged", "no topic", "refused"])
async def test_a_far_check_point_of_which_nothing_is_left_is_not_put_off(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    service = peer.mq.broker.services.pop
    append = service.append
    asked: list[bytes] = []

    def refuses(messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        asked.extend(bytes(each.body) for each in messages)
        if why == "refused":
            return [PutMessageResult(PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL) for _ in messages]
        return append(messages)

    monkeypatch.setattr(service, "append", refuses)
    changes: dict[str, Any] = {}
    if why != "refused":
        changes = {"bm": 1} if why == "acknowledged" else {"t": "Gone"}
    await peer.send(b"x")
    asked.clear()
    await forge(peer, **FAR, **changes)
    await peer.later(3)
    assert len(asked) == (why == "refused")
    assert committed(peer) == 0
    await peer.later(2 * DELAY_MAX_S)
    assert revive_records(peer) == 1


@plain
async def test_who_acts_for_another_puts_nothing_off(peer: Peer) -> None:
    """Another broker would take it for its own; the check point waits for the master."""
    service = peer.mq.broker.services.pop
    service.may_put_off = False
    await peer.send(b"x")
    await forge(peer, **FAR)
    await peer.later(3)
    assert (committed(peer), 0 in service._stuck) == (-1, True)
    service.may_put_off = True
    await peer.later(1)
    assert committed(peer) == 0


@plain
async def test_who_delivers_again_begins_where_another_got_to(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that acts a second time: its master has brought back two messages in between."""
    service = peer.mq.broker.services.pop
    monkeypatch.setattr(service, "_delivers", lambda: False)
    for number in range(3):
        await peer.send(b"%d" % number)
        await forge(peer, so=number)
    await peer.later(3)
    assert (revive_records(peer), committed(peer)) == (3, -1)
    peer.mq.broker.parts.offsets.commit(module.REVIVE_GROUP, REVIVE, 0, 1, peer.mq.clock())
    monkeypatch.setattr(service, "_delivers", lambda: True)
    await peer.later(3)
    assert peer.mq.bodies(RETRY) == [b"2"]
    assert committed(peer) == 2


# Invisible times that no timer can wait for


async def test_an_invisible_time_is_no_longer_than_the_timer_can_wait(peer: Peer) -> None:
    await peer.send(b"x")
    response = await peer.call(POP, peer.pop_fields(invisibleTime=(1 << 63) - 1))
    assert response.fields["invisibleTime"] == str(DELAY_MAX_S * 1000)
    (popped,) = peer.popped(response)
    peer.mq.clock.advance(ms=1)
    changed = await change(peer, popped, 9 * 10**18)
    assert changed.code == 0
    assert changed.fields["invisibleTime"] == str(DELAY_MAX_S * 1000)
    await peer.later(DELAY_MAX_S - 5)
    assert await peer.pop_all() == []
    await peer.later(10)
    assert bodies(await peer.pop_all()) == [b"x"]


async def test_an_ordered_invisible_time_waits_for_no_timer(peer: Peer) -> None:
    await peer.send(b"x")
    wanted_ms = 3 * DELAY_MAX_S * 1000
    fields = peer.pop_fields(order="true", queueId=0, invisibleTime=wanted_ms)
    response = await peer.call(POP, fields)
    assert response.fields["invisibleTime"] == str(wanted_ms)
    (popped,) = peer.popped(response)
    assert (await change(peer, popped, (1 << 63) - 1)).code == 0
    info = peer.mq.broker.services.pop.orders.get(TOPIC, GROUP, 0)
    assert info is not None
    assert info.offset_next_visible_time == {0: (1 << 63) - 1}  # a Java broker reads it, too
    assert (await change(peer, popped, wanted_ms)).code == 0
    peer.mq.clock.advance(seconds=DELAY_MAX_S + 1)
    assert await peer.pop(order="true", queueId=0) == []
    peer.mq.clock.advance(ms=wanted_ms)
    assert bodies(await peer.pop(order="true", queueId=0)) == [b"x"]


@plain
async def test_a_check_point_of_another_age_keeps_nothing_back(peer: Peer) -> None:
    """It goes through the timer again, with what is acknowledged, and comes in its time."""
    now_ms = peer.mq.clock()
    for number in range(4):
        await peer.send(b"%d" % number)
    end_ms = now_ms + 2 * DELAY_MAX_S * 1000
    for queue_id in range(8):
        await forge(peer, queue_id=queue_id, pt=now_ms, it=9 * 10**18)
        await forge(peer, queue_id=queue_id, c="Late", pt=now_ms, it=end_ms - now_ms, n=3)
    for queue_id in range(8):
        ack = {"c": "Late", "pt": now_ms, "ao": 1}
        await forge(peer, "ack", queue_id=queue_id, **ack)
    assert len(await peer.pop()) == 4
    await peer.later(35)
    assert sorted(peer.mq.bodies(RETRY)) == [b"0", b"1", b"2", b"3"]
    late = f"%RETRY%Late_{TOPIC}"
    for _ in range(4):
        await peer.later(DELAY_MAX_S / 2)
    assert sorted(peer.mq.bodies(late)) == [b"0"] * 8 + [b"2"] * 8
    assert len(peer.mq.bodies(RETRY)) == 4


# A store that takes a part


@plain
async def test_what_was_stored_is_not_stored_again_for_what_was_not(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three messages cannot be stored for a while."""
    monkeypatch.setattr(module, "STEP_SIZE", 3)  # they are what one turn may do
    service = peer.mq.broker.services.pop
    append = service.append
    refusals: list[int] = []
    refuses = True

    def takes_a_part(messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        kept = [m for m in messages if not refuses or bytes(m.body) != b"1"]
        results = iter(append(kept))
        refusals.append(len(messages) - len(kept))
        full = PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
        return [next(results) if m in kept else full for m in messages]

    for number in range(3):
        await peer.send(b"%d" % number)
    assert len(await peer.pop()) == 3
    monkeypatch.setattr(service, "append", takes_a_part)
    await peer.later(35)
    assert refusals.count(1) >= 3
    ticks: list[int] = []
    peer.mq.broker.parts.ticks.append(ticks.append)
    refusals.clear()
    await peer.later(1)
    assert refusals.count(1) == len(ticks)  # with each tick, and not with each turn
    assert peer.mq.bodies(RETRY) == [b"0", b"2"]
    refuses = False
    await peer.later(1)
    assert peer.mq.bodies(RETRY) == [b"0", b"2", b"1"]
    assert bodies(await peer.pop_all()) == [b"0", b"1", b"2"]


# Very much at once


@plain
async def test_what_is_due_at_once_comes_back_in_many_turns(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of the loop reads so many records and brings so many messages back, not all."""
    monkeypatch.setattr(module, "STEP_SIZE", 20)
    service = peer.mq.broker.services.pop
    count, of_each = 40, 8
    for number in range(count * of_each):
        await peer.send(b"%d" % number)
    popped = [await peer.pop(maxMsgNums=of_each) for _ in range(count)]
    assert sum(map(len, popped)) == count * of_each
    turns: list[list[int]] = []
    step, append = service._step, service.append

    def counted_step() -> None:
        turns.append([0, 0])
        step()

    def counted_append(messages: list[MessageExtBrokerInner]) -> list[PutMessageResult]:
        turns[-1][1] += len(messages)
        return append(messages)

    store = peer.mq.broker.parts.store
    units = store.iterate_consume_queue

    def counted_units(topic: str, *args: int) -> Any:
        found = units(topic, *args)
        if topic == REVIVE:
            turns[-1][0] += len(found)
        return found

    monkeypatch.setattr(service, "_step", counted_step)
    monkeypatch.setattr(service, "append", counted_append)
    monkeypatch.setattr(store, "iterate_consume_queue", counted_units)
    await peer.later(35)
    await peer.mq.wait_until(lambda: len(peer.mq.bodies(RETRY)) == count * of_each, 30.0)
    assert max(turn[0] for turn in turns) <= 20
    assert max(turn[1] for turn in turns) <= 20
    assert sum(turn[1] for turn in turns) == count * of_each
    assert sorted(map(int, peer.mq.bodies(RETRY))) == list(range(count * of_each))


@plain
async def test_a_stop_leaves_no_turn_behind(peer: Peer) -> None:
    service = peer.mq.broker.services.pop
    service._step_handle = handle = asyncio.get_running_loop().call_soon(service._step)
    service.stop()
    assert handle.cancelled()
    assert service._step_handle is None


# Acknowledgements


def batch_entry(popped: Popped, bits: str, **changes: object) -> dict[str, object]:
    receipt = parse_receipt(popped.receipt)
    return {
        "c": GROUP, "t": TOPIC, "r": "0", "so": receipt.start_offset, "q": receipt.queue_id,
        "rq": receipt.revive_queue_id, "pt": receipt.pop_time, "it": receipt.invisible_time,
        "b": bits, **changes,
    }  # fmt: skip


async def batch_ack(peer: Peer, *entries: dict[str, object]) -> int:
    body = json.dumps({"brokerName": "broker-a", "acks": entries}).encode()
    return int((await peer.call(BATCH, {}, body)).code)


async def test_acks_behind_one_that_is_refused_count(peer: Peer) -> None:
    for number in range(3):
        await peer.send(b"%d" % number)
    popped = await peer.pop()
    refused = batch_entry(popped[0], "AQ==", so=1000)
    unknown = batch_entry(popped[0], "AQ==", t="Nowhere")
    wanted = batch_entry(popped[0], "Aw==")
    assert await batch_ack(peer, refused, unknown, wanted) == ResponseCode.TOPIC_NOT_EXIST
    assert await batch_ack(peer, wanted) == 0
    await peer.later(35)
    assert bodies(await peer.pop_all()) == [b"2"]


async def test_ordered_acks_behind_one_that_is_refused_count(peer: Peer) -> None:
    """The second of three messages was not handed out: it has another tag."""
    for number, tag in enumerate("ABA"):
        await peer.send(b"%d" % number, properties=f"TAGS\x01{tag}\x02")
    popped = await peer.pop(order="true", queueId=0, exp="A")
    assert bodies(popped) == [b"0", b"2"]
    entry = batch_entry(popped[0], "Bg==")
    assert await batch_ack(peer, entry) == ResponseCode.MESSAGE_ILLEGAL
    assert peer.mq.offsets(GROUP, TOPIC)[0] == 0
    assert await peer.ack(popped[0]) == 0
    assert peer.mq.offsets(GROUP, TOPIC)[0] == 3


# Topics that are deleted and made again


async def delete_and_make_again(peer: Peer, count: int) -> None:
    assert (await peer.call(DELETE_TOPIC, {"topic": TOPIC})).code == 0
    for number in range(count):
        await peer.send(b"new %d" % number)
    peer.mq.broker.services.dispatching.now()


async def test_what_was_handed_out_of_a_deleted_topic_moves_no_offset_in_order(
    peer: Peer,
) -> None:
    for number in range(5):
        await peer.send(b"%d" % number)
    order: dict[str, object] = {"order": "true", "queueId": 0}
    old = await peer.pop(**order)
    assert len(old) == 5
    peer.mq.clock.advance(ms=1)
    await delete_and_make_again(peer, 0)
    await peer.send(b"new 0")
    # A group that is there before the messages of the new topic has an offset, too.
    peer.mq.broker.parts.offsets.commit(GROUP, TOPIC, 0, 0, peer.mq.clock())
    for number in range(1, 10):
        await peer.send(b"new %d" % number)
    peer.mq.broker.services.dispatching.now()
    for each in old:
        assert await peer.ack(each) == 0
    assert bodies(await peer.pop(**order)) == [b"new %d" % number for number in range(10)]
    for each in old:
        assert await peer.ack(each) == 0
    assert peer.mq.offsets(GROUP, TOPIC)[0] == 0


async def test_what_was_handed_out_of_a_deleted_topic_moves_no_offset(peer: Peer) -> None:
    for number in range(5):
        await peer.send(b"%d" % number)
    old = await peer.pop()
    assert len(old) == 5
    peer.mq.clock.advance(ms=1)
    await delete_and_make_again(peer, 10)
    assert len(peer.mq.broker.services.pop.buffer) == 0
    for each in old:
        assert await peer.ack(each) == 0
    found = await peer.pop()
    assert bodies(found) == [b"new %d" % number for number in range(10)]
    for each in found:
        assert await peer.ack(each) == 0
    await peer.later(35)
    assert await peer.pop_all() == []
    await peer.mq.wait_until(lambda: peer.mq.offsets(GROUP, TOPIC)[0] == 10, 30.0)
