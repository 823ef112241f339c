"""POP over the wire: pops, acks, invisible times, retries, order, waiting, kills.

The broker's clock is set forward, so what comes back after a time comes back now. A message that
was handed out and not acknowledged must come again, whatever happened to the broker between; one
that was acknowledged must not.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oberth.broker import consumer_offsets
from oberth.broker.old_messages import Stretch
from oberth.broker.pop.check_point import PopAck, parse_receipt
from oberth.broker.pop.pop_service import StoredAck
from oberth.broker.processors import pop as pop_processor
from oberth.broker.processors.assignment import share_queues
from oberth.client.messages import MessageExt, decode_messages
from oberth.client.rebalance import allocate_average
from oberth.formats.properties import PROPERTIES_SIZE_MAX
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.pop import ATTEMPT_ID_MAX
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from oberth.testing.embedded_broker import EmbeddedBroker
from oberth.testing.virtual_clock import VirtualClock

POP, ACK, PEEK, CHANGE, NOTIFY, POLLING, BATCH = (
    200050, 200051, 200052, 200053, 200054, 200055, 200151,
)  # fmt: skip
GROUP = "G"
TOPIC = "T"
BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


class Popped:
    """A message with what acknowledges it."""

    def __init__(self, message: MessageExt, topic: str, receipt: str, offset: int) -> None:
        self.body = message.body
        self.message = message
        self.topic = topic
        self.receipt = receipt
        self.queue_id = int(receipt.split(" ")[6])
        self.offset = offset


class Peer:
    """A client that pops."""

    def __init__(self, mq: EmbeddedBroker, client: RemotingClient) -> None:
        self.mq = mq
        self.client = client

    async def call(self, code: int, fields: dict[str, object], body: bytes = b"") -> Any:
        request = RemotingCommand(code=code, body=body)
        request.ext_fields = {name: str(value) for name, value in fields.items()}
        return await self.client.invoke(self.mq.address, request, timeout_s=BOUND_S)

    async def send(self, body: bytes, queue_id: int = 0, properties: str = "") -> None:
        fields: dict[str, object] = {
            "a": "P", "b": TOPIC, "c": "TBW102", "d": 2, "e": queue_id, "f": 0, "g": 1, "h": 0,
            "i": properties,
        }  # fmt: skip
        assert (await self.call(310, fields, body)).code == 0

    def pop_fields(self, **changes: object) -> dict[str, object]:
        return {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32,
            "invisibleTime": 30_000, "pollTime": 0, "bornTime": self.mq.clock(), "initMode": 0,
            "expType": "TAG", "exp": "*", **changes,
        }  # fmt: skip

    async def pop(self, **changes: object) -> list[Popped]:
        response = await self.call(POP, self.pop_fields(**changes))
        if response.code != ResponseCode.SUCCESS:
            assert response.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
            assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= set(response.fields)
            return []
        return self.popped(response)

    def popped(self, response: Any) -> list[Popped]:
        fields = response.fields
        starts = {
            tuple(part.split(" ")[:2]): part.split(" ")[2]
            for part in fields["startOffsetInfo"].split(";")
        }
        messages = iter(decode_messages(response.body, "broker-a"))
        found = []
        for part in fields["msgOffsetInfo"].split(";"):
            flag, queue_id, offsets = part.split(" ")
            for offset in offsets.split(","):
                message = next(messages)
                receipt = message.properties.get("POP_CK") or " ".join(
                    (starts[flag, queue_id], fields["popTime"], fields["invisibleTime"],
                     fields["reviveQid"], flag, "broker-a", queue_id, offset)
                )  # fmt: skip
                topic = {"0": TOPIC, "1": f"%RETRY%{GROUP}_{TOPIC}", "2": f"%RETRY%{GROUP}+{TOPIC}"}
                assert message.topic == TOPIC
                found.append(Popped(message, topic[receipt.split(" ")[4]], receipt, int(offset)))
        assert next(messages, None) is None
        return found

    async def ack(self, popped: Popped) -> int:
        response = await self.call(
            ACK,
            {
                "consumerGroup": GROUP, "topic": popped.topic, "queueId": popped.queue_id,
                "extraInfo": popped.receipt, "offset": popped.offset,
            },
        )  # fmt: skip
        return int(response.code)

    async def someone_waits(self) -> None:
        """Until the broker holds a pop."""
        await self.mq.wait_until(lambda: len(self.mq.broker.services.pop.polling) == 1, BOUND_S)

    async def later(self, seconds: float) -> None:
        """Sets the clock forward and lets the broker catch up: timer, revive, dispatch."""
        self.mq.clock.advance(seconds=seconds)
        for _ in range(12):
            await asyncio.sleep(0.01)
            self.mq.clock.advance(ms=100)

    async def pop_all(self, rounds: int = 6, **changes: object) -> list[Popped]:
        found = []
        for _ in range(rounds):
            found += await self.pop(**changes)
        return found


@pytest.fixture(params=["plain", "buffer"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    settings = {"popFromRetryProbability": "50"}
    if request.param == "buffer":
        settings["enablePopBufferMerge"] = "true"
    clock = VirtualClock(frozen=True)
    async with EmbeddedBroker(settings, clock=clock) as mq, RemotingClient() as client:
        yield Peer(mq, client)


def bodies(popped: list[Popped]) -> list[bytes]:
    return sorted(each.body for each in popped)


async def test_what_is_not_acknowledged_comes_again(peer: Peer) -> None:
    for number in range(10):
        await peer.send(b"%d" % number, number % 2)
    first = await peer.pop_all()
    assert bodies(first) == [b"%d" % number for number in range(10)]
    assert await peer.pop() == []
    for each in first[:6]:
        assert await peer.ack(each) == 0
    assert await peer.ack(first[0]) == 0  # twice is harmless
    await peer.later(20)
    assert await peer.pop_all() == []
    await peer.later(15)
    again = await peer.pop_all()
    assert bodies(again) == bodies(first[6:])
    for each in again:
        assert each.topic == f"%RETRY%{GROUP}_{TOPIC}"
        assert each.message.reconsume_times == 1
        assert each.message.properties["ORIGIN_GROUP"] == GROUP
        assert "1ST_POP_TIME" in each.message.properties
    assert await peer.ack(again[0]) == 0
    await peer.later(35)
    third = await peer.pop_all()
    assert bodies(third) == bodies(again[1:])
    assert {each.message.reconsume_times for each in third} == {2}
    first_pops = {each.message.properties["1ST_POP_TIME"] for each in third}
    assert first_pops == {each.message.properties["1ST_POP_TIME"] for each in again[1:]}


async def test_what_can_hardly_be_brought_back_keeps_nothing_back(peer: Peer) -> None:
    """A producer counts to the end, fills the properties, names a delay: all come again."""
    store = peer.mq.broker.parts.store
    await peer.send(b"first")
    longest = f"a\x01{'x' * (PROPERTIES_SIZE_MAX - 3)}\x02".encode()
    results = store.append_messages(
        [
            MessageExtBrokerInner(TOPIC, b"counted", reconsume_times=2**31 - 1),
            MessageExtBrokerInner(TOPIC, b"filled", longest),
            MessageExtBrokerInner(TOPIC, b"timed", b"TIMER_DELAY_SEC\x01600\x02", convert=False),
        ]
    )
    assert all(each.ok for each in results)
    await peer.send(b"last")
    stored = [b"counted", b"filled", b"first", b"last", b"timed"]
    assert bodies(await peer.pop_all()) == stored
    await peer.later(35)
    again = await peer.pop_all()
    assert bodies(again) == stored
    counts = {each.body: each.message.reconsume_times for each in again}
    assert counts == dict.fromkeys(stored, 1) | {b"counted": 2**31 - 1}
    for each in again:
        assert await peer.ack(each) == 0


async def test_batch_acks_count(peer: Peer) -> None:
    for number in range(8):
        await peer.send(b"%d" % number)
    popped = await peer.pop()
    start, pop_time, invisible, revive, *_ = popped[0].receipt.split(" ")
    entry = {
        "c": GROUP, "t": TOPIC, "r": "0", "so": int(start), "q": 0, "rq": int(revive),
        "pt": int(pop_time), "it": int(invisible), "b": "fw==",
    }  # fmt: skip
    body = json.dumps({"brokerName": "broker-a", "acks": [entry]}).encode()
    assert (await peer.call(BATCH, {}, body)).code == 0
    assert (await peer.call(BATCH, {}, b'{"acks":[]}')).code == ResponseCode.NO_MESSAGE
    await peer.later(35)
    assert bodies(await peer.pop_all()) == [b"7"]


@pytest.mark.parametrize("peer", ["plain"], indirect=True)
async def test_acks_of_one_pop_are_one_message(peer: Peer) -> None:
    for number in range(9):
        await peer.send(b"%d" % number)
    first, second = await peer.pop(maxMsgNums=5), await peer.pop(maxMsgNums=4)
    service = peer.mq.broker.services.pop
    peer.mq.broker.services.dispatching.now()
    revive = peer.mq.broker.parts.store.max_offset_in_queue("rmq_sys_wheel_timer", 0)

    def acks(popped: list[Popped]) -> list[StoredAck]:
        made = []
        for each in popped:
            receipt = parse_receipt(each.receipt)
            ack = PopAck(
                (each.offset,), receipt.start_offset, receipt.pop_time, each.queue_id, TOPIC,
                GROUP, receipt.broker_name,
            )  # fmt: skip
            made.append(StoredAck(ack, receipt.revive_queue_id, receipt.invisible_time))
        return made

    # One of them twice, and of the second pop only one.
    stored = service.put_acks([*acks(first[:3]), *acks(second[:1]), *acks(first[2:4])])
    assert stored == [True] * 6
    peer.mq.broker.services.dispatching.now()
    assert peer.mq.broker.parts.store.max_offset_in_queue("rmq_sys_wheel_timer", 0) == revive + 2
    await peer.later(35)
    assert bodies(await peer.pop_all()) == [b"4", b"6", b"7", b"8"]


async def test_a_burst_of_acknowledgements_is_checked_once_a_queue(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are those of acknowledgements that come one by one."""
    for number in range(8):
        await peer.send(b"%d" % number, number % 2)
    popped = await peer.pop_all()

    def request(queue_id: int, offset: int, topic: str = TOPIC, receipt: str = "") -> Any:
        fields = {
            "consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id),
            "extraInfo": receipt or popped[0].receipt, "offset": str(offset),
        }  # fmt: skip
        return RemotingCommand(code=ACK, ext_fields=fields)

    requests = [request(each.queue_id, each.offset, receipt=each.receipt) for each in popped]
    requests += [
        request(0, 99), request(1, -1), request(77, 0), request(77, 0), request(0, 0, "other"),
        request(0, 0, receipt="1 2"), RemotingCommand(code=ACK, ext_fields={}),
    ]  # fmt: skip
    store = peer.mq.broker.parts.store
    acks = peer.mq.broker.processors.acks
    looked, appended = [], []
    max_offset, append = store.max_offset_in_queue, store.append_messages

    def noted_max(topic: str, queue_id: int) -> int:
        looked.append((topic, queue_id))
        return max_offset(topic, queue_id)

    def noted_append(messages: Any) -> Any:
        appended.append(len(messages))
        return append(messages)

    monkeypatch.setattr(store, "max_offset_in_queue", noted_max)
    monkeypatch.setattr(store, "append_messages", noted_append)
    nobody: Any = [None] * len(requests)
    together = acks.ack(nobody, requests)
    assert sorted(looked) == [(TOPIC, 0), (TOPIC, 1)]
    assert len(appended) <= 1
    one_by_one = [acks.ack(nobody[:1], [each])[0] for each in requests]
    for one, other in zip(together, one_by_one, strict=True):
        assert one is not None
        assert other is not None
        assert (one.code, one.remark) == (other.code, other.remark)
    assert [each.code for each in together if each][: len(popped)] == [0] * 8
    assert len({each.remark for each in together if each}) == 7


async def test_what_was_sent_is_dispatched_once_for_the_pops_of_a_turn(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them appends a check point, which none of the others reads."""
    for number in range(8):
        await peer.send(b"%d" % number, number % 2)
    broker = peer.mq.broker
    store, dispatching = broker.parts.store, broker.services.dispatching
    dispatched = []
    dispatch = store.dispatch_nowait

    def noted_dispatch() -> int:
        dispatched.append(True)
        return dispatch()

    monkeypatch.setattr(store, "dispatch_nowait", noted_dispatch)
    dispatching.soon()
    requests = []
    for number in range(4):
        fields = peer.pop_fields(queueId=number % 2, maxMsgNums=2)
        texts = {name: str(value) for name, value in fields.items()}
        requests.append(RemotingCommand(code=POP, ext_fields=texts))
    nobody: Any = [None] * len(requests)
    answers = broker.processors.pops.pop(nobody, requests, math.inf)
    assert len(dispatched) == 1
    found = []
    for answer in answers:
        assert answer is not None
        answer.body = answer.body_bytes()
        found += peer.popped(answer)
    assert bodies(found) == [b"%d" % number for number in range(8)]
    assert [await peer.ack(each) for each in found] == [0] * 8
    await peer.later(35)
    assert await peer.pop_all() == []


async def test_pops_of_a_run_end_where_there_is_much_to_take(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is answered before their run has ended: no peer could say that it is enough."""
    for number in range(8):
        await peer.send(b"%d" % number * 100)
    monkeypatch.setattr(pop_processor, "ANSWERED_SIZE_MAX", 500)
    pops = peer.mq.broker.processors.pops
    texts = {name: str(value) for name, value in peer.pop_fields(maxMsgNums=2).items()}
    requests = [RemotingCommand(code=POP, ext_fields=dict(texts)) for _ in range(4)]
    nobody: Any = [None] * len(requests)
    answers = pops.pop(nobody, requests, math.inf)
    sizes = [len(each.body_bytes()) for each in answers if each is not None]
    assert len(sizes) == len(answers) < len(requests)
    assert sum(sizes[:-1]) < 500 <= sum(sizes)


async def test_what_the_store_refuses_is_not_acknowledged(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = peer.mq.broker.services.pop
    acks = [
        StoredAck(PopAck((offset,), start, 1, 0, TOPIC, GROUP, "broker-a"), 0, 1000)
        for offset, start in ((5, 5), (6, 5), (9, 9))
    ]
    full = PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
    taken = PutMessageResult(PutMessageStatus.PUT_OK)
    monkeypatch.setattr(peer.mq.broker.parts.store, "append_messages", lambda _: [full, taken])
    assert service.put_acks(acks) == [False, False, True]


async def test_an_invisible_time_can_be_changed(peer: Peer) -> None:
    await peer.send(b"long")
    await peer.send(b"short")
    popped = {each.body: each for each in await peer.pop()}
    for body, invisible in ((b"long", 90_000), (b"short", 5000)):
        each = popped[body]
        changed = await peer.call(
            CHANGE,
            {
                "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "extraInfo": each.receipt,
                "offset": each.offset, "invisibleTime": invisible,
            },
        )  # fmt: skip
        assert changed.code == 0
        assert changed.fields["invisibleTime"] == str(invisible)
    await peer.later(8)
    assert bodies(await peer.pop_all(invisibleTime=600_000)) == [b"short"]
    await peer.later(30)
    assert await peer.pop_all() == []
    await peer.later(60)
    assert bodies(await peer.pop_all()) == [b"long"]


@pytest.mark.parametrize("group", ["a@b", "", "x" * 10_000])
async def test_the_time_of_a_message_is_not_changed_for_what_is_no_group(
    peer: Peer, group: str
) -> None:
    """When it was due its retry topic got an offset of the group, which no start could read."""
    await peer.send(b"x")
    for each in await peer.pop(invisibleTime=5000):
        assert await peer.ack(each) == 0
    retry = f"%RETRY%{GROUP}_{TOPIC}"
    parts = peer.mq.broker.parts
    parts.topics.create_internal(retry, 1)
    (result,) = parts.store.append_messages([MessageExtBrokerInner.of(retry, b"again")])
    assert result.ok
    peer.mq.broker.services.dispatching.now()
    changed = await peer.call(
        CHANGE,
        {
            "consumerGroup": group, "topic": retry, "queueId": 0, "offset": 0,
            "extraInfo": f"0 {peer.mq.clock()} 5000 0 1 broker-a 0 0", "invisibleTime": 1000,
        },
    )  # fmt: skip
    assert changed.code == ResponseCode.INVALID_PARAMETER
    await peer.later(10)
    assert {each for _, each, _ in parts.offsets} <= {GROUP, "CID_RMQ_SYS_REVIVE_GROUP"}


async def test_a_pop_waits_for_a_message(peer: Peer) -> None:
    await peer.send(b"first")
    await peer.pop_all()
    waiting = asyncio.ensure_future(peer.pop(pollTime=15_000))
    await peer.someone_waits()
    fields: dict[str, object] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1}
    assert (await peer.call(POLLING, fields)).fields["pollingNum"] == "1"
    await peer.send(b"second")
    assert bodies(await asyncio.wait_for(waiting, BOUND_S)) == [b"second"]


async def test_waiting_ends_with_210_and_all_fields(peer: Peer) -> None:
    await peer.send(b"x")
    await peer.pop_all()
    waiting = asyncio.ensure_future(peer.call(POP, peer.pop_fields(pollTime=15_000)))
    await peer.someone_waits()
    peer.mq.clock.advance(seconds=15)
    response = await asyncio.wait_for(waiting, BOUND_S)
    assert response.code == ResponseCode.POLLING_TIMEOUT
    assert response.fields["restNum"] == "0"


async def test_waiting_by_tag_ignores_others(peer: Peer) -> None:
    await peer.send(b"x")
    await peer.pop_all()
    waiting = asyncio.ensure_future(peer.pop(pollTime=15_000, exp="A"))
    await peer.someone_waits()
    await peer.send(b"b", properties="TAGS\x01B\x02")
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await peer.send(b"a", properties="TAGS\x01A\x02")
    assert bodies(await asyncio.wait_for(waiting, BOUND_S)) == [b"a"]


async def test_notification_and_peek_hand_nothing_out(peer: Peer) -> None:
    await peer.send(b"x")
    fields: dict[str, object] = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "pollTime": 0,
        "bornTime": peer.mq.clock(),
    }  # fmt: skip
    assert (await peer.call(NOTIFY, fields)).fields["hasMsg"] == "true"
    peeked = await peer.call(PEEK, {**fields, "maxMsgNums": 8})
    assert peeked.code == 0
    assert peeked.body.count(b"x") >= 1
    assert bodies(await peer.pop()) == [b"x"]
    assert (await peer.call(NOTIFY, fields)).fields["hasMsg"] == "false"
    assert (await peer.call(PEEK, {**fields, "maxMsgNums": 8})).code == ResponseCode.PULL_NOT_FOUND
    waiting = asyncio.ensure_future(
        peer.call(NOTIFY, {**fields, "pollTime": 15_000, "bornTime": peer.mq.clock()})
    )
    await peer.mq.wait_until(lambda: len(peer.mq.broker.services.pop.notifying) == 1, BOUND_S)
    await peer.send(b"y")
    assert (await asyncio.wait_for(waiting, BOUND_S)).fields["hasMsg"] == "true"


async def test_an_attempt_id_has_an_end(peer: Peer) -> None:
    """It is kept with each ordered queue, and written with all of them."""
    await peer.send(b"x")
    for length, code in (
        (ATTEMPT_ID_MAX + 1, ResponseCode.INVALID_PARAMETER),
        (ATTEMPT_ID_MAX, ResponseCode.SUCCESS),
    ):
        fields = peer.pop_fields(order="true", queueId=0, attemptId="a" * length)
        assert (await peer.call(POP, fields)).code == code


async def test_ordered_pops_block_until_all_is_acknowledged(peer: Peer) -> None:
    for number in range(6):
        await peer.send(b"%d" % number)
    order: dict[str, object] = {"order": "true", "queueId": 0, "maxMsgNums": 2}
    first = await peer.pop(**order, attemptId="a1")
    assert bodies(first) == [b"0", b"1"]
    assert first[0].receipt.split(" ")[3] == "999"
    assert await peer.pop(**order, attemptId="a2") == []
    assert bodies(await peer.pop(**order, attemptId="a1")) == [b"0", b"1"]
    first = await peer.pop(**order, attemptId="a1")
    assert await peer.ack(first[1]) == 0
    assert await peer.pop(**order) == []
    waiting = asyncio.ensure_future(peer.pop(**order, pollTime=15_000))
    await peer.someone_waits()
    assert await peer.ack(first[0]) == 0
    second = await asyncio.wait_for(waiting, BOUND_S)
    assert bodies(second) == [b"2", b"3"]
    # Its invisible time ends: the same messages again, and nobody else's before.
    peer.mq.clock.advance(seconds=31)
    response = await peer.call(POP, peer.pop_fields(**order))
    assert [each.body for each in peer.popped(response)] == [b"2", b"3"]
    assert response.fields["orderCountInfo"].split(";")[-1] == "0 0 1"
    # The ack of an earlier pop has no effect.
    assert await peer.ack(second[0]) == 0
    assert peer.mq.offsets(GROUP, TOPIC)[0] == 2


@pytest.mark.parametrize("is_batch", [True, False])
async def test_an_ordered_ack_that_there_is_no_room_for_is_no_success(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, is_batch: bool
) -> None:
    await peer.send(b"x")
    with monkeypatch.context() as full:
        full.setattr(consumer_offsets, "OFFSETS_MAX", 0)
        (popped,) = await peer.pop(order="true", queueId=0)
        receipt = parse_receipt(popped.receipt)
        fields: dict[str, object] = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "extraInfo": popped.receipt,
            "offset": popped.offset,
        }  # fmt: skip
        acks = [{
            "c": GROUP, "t": TOPIC, "r": "0", "so": receipt.start_offset, "rq": 999, "q": 0,
            "it": receipt.invisible_time, "pt": receipt.pop_time, "b": "AQ==",
        }]  # fmt: skip
        body = json.dumps({"acks": acks}).encode()
        code, fields, body = (BATCH, {}, body) if is_batch else (ACK, fields, b"")
        answer = await peer.call(code, fields, body)
        assert answer.code == 1
        assert "as many offsets as it may" in str(answer.remark)
        assert peer.mq.broker.parts.offsets.query(GROUP, TOPIC, 0) == -1
    assert (await peer.call(code, fields, body)).code == 0  # there is room again
    assert peer.mq.broker.parts.offsets.query(GROUP, TOPIC, 0) == 1


async def two_wait(peer: Peer, invisible_ms: int) -> tuple[list[Popped], asyncio.Future[Any]]:
    """Two pops of an ordered queue wait for its first message: what one got, and the other."""
    await peer.send(b"first")
    order: dict[str, object] = {"order": "true", "queueId": 0, "pollTime": 100_000}
    (first,) = await peer.pop(**order)
    assert await peer.ack(first) == 0
    waiting = [
        asyncio.ensure_future(peer.pop(**order, invisibleTime=invisible_ms)) for _ in range(2)
    ]
    polling = peer.mq.broker.services.pop.polling
    await peer.mq.wait_until(lambda: len(polling) == 2, BOUND_S)
    await peer.send(b"x")
    (done,), (late,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(polling) == 1
    return done.result(), late


async def test_who_waits_gets_what_another_did_not_acknowledge_in_time(peer: Peer) -> None:
    """Nothing arrives when an invisible time ends, and the queue was free when both came."""
    taken, late = await two_wait(peer, 10_000)
    assert bodies(taken) == [b"x"]
    await peer.later(8)
    assert not late.done()
    peer.mq.clock.advance(seconds=2)
    assert bodies(await asyncio.wait_for(late, BOUND_S)) == [b"x"]


async def test_who_waits_gets_what_is_visible_earlier_than_it_was_to_be(peer: Peer) -> None:
    taken, late = await two_wait(peer, 90_000)
    fields: dict[str, object] = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "extraInfo": taken[0].receipt,
        "offset": taken[0].offset, "invisibleTime": 5_000,
    }  # fmt: skip
    assert (await peer.call(CHANGE, fields)).code == 0
    await peer.later(3)
    assert not late.done()
    peer.mq.clock.advance(seconds=2)
    assert bodies(await asyncio.wait_for(late, BOUND_S)) == [b"x"]


async def woken_by_a_reset(peer: Peer, code: int, fields: dict[str, object], topic: str) -> Any:
    """The answer to a request that waits until its group's offset in a topic is reset to 0."""
    pops = peer.mq.broker.services.pop
    polling = pops.notifying if code == NOTIFY else pops.polling
    waiting = asyncio.ensure_future(peer.call(code, fields))
    await peer.mq.wait_until(lambda: len(polling) == 1, BOUND_S)
    reset: dict[str, object] = {
        "topic": topic, "group": GROUP, "queueId": 0, "offset": 0, "timestamp": 0,
        "isForce": "true",
    }  # fmt: skip
    assert (await peer.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    return await asyncio.wait_for(waiting, BOUND_S)


@pytest.mark.parametrize("order", ["true", "false"])
async def test_a_reset_wakes_who_waits(peer: Peer, order: str) -> None:
    await peer.send(b"x")
    taken = await peer.pop(order=order)
    assert bodies(taken) == [b"x"]
    assert await peer.ack(taken[0]) == 0
    for code in (NOTIFY, POP):
        peer.mq.clock.advance(seconds=1)
        fields = peer.pop_fields(pollTime=100_000, order=order)
        response = await woken_by_a_reset(peer, code, fields, TOPIC)
        if code == NOTIFY:
            assert response.fields["hasMsg"] == "true"
            taken = await peer.pop(order=order)
        else:
            taken = peer.popped(response)
        assert bodies(taken) == [b"x"]
        assert await peer.ack(taken[0]) == 0


async def test_a_reset_of_a_retry_topic_wakes_who_waits(peer: Peer) -> None:
    """Who pops the topic has what is in it, and waits at the topic."""
    await peer.send(b"x")
    assert bodies(await peer.pop()) == [b"x"]
    await peer.later(35)
    (again,) = await peer.pop_all()
    assert again.topic == f"%RETRY%{GROUP}_{TOPIC}"
    assert await peer.ack(again) == 0
    topic = again.topic
    for code in (NOTIFY, POP):
        fields = peer.pop_fields(pollTime=100_000)
        response = await woken_by_a_reset(peer, code, fields, topic)
        if code == NOTIFY:
            assert response.fields["hasMsg"] == "true"
            (again,) = await peer.pop_all()
        else:
            (again,) = peer.popped(response)
        assert again.body == b"x"
        assert await peer.ack(again) == 0


async def test_a_blocked_queue_is_noted_once(peer: Peer) -> None:
    """Whoever pops it again and again with one attempt, or waits for it, adds nothing."""
    await peer.send(b"x")
    unlocks = peer.mq.broker.services.pop.orders._unlocks
    order: dict[str, object] = {"order": "true", "queueId": 0}
    for _ in range(4):
        peer.mq.clock.advance(ms=1)
        assert len(await peer.pop(**order, attemptId="a", invisibleTime=2**62)) == 1
        fields = peer.pop_fields(**order, attemptId="b", pollTime=1_000)
        waiting = asyncio.ensure_future(peer.call(POP, fields))
        await peer.someone_waits()
        peer.mq.clock.advance(seconds=1)
        assert (await asyncio.wait_for(waiting, BOUND_S)).code == ResponseCode.POLLING_TIMEOUT
    assert (len(unlocks), len(unlocks._heap)) == (1, 1)
    await peer.mq.broker.services.deletions.delete_topics([TOPIC])
    assert len(unlocks) == 0


async def test_very_many_queues_that_are_free_at_once_are_served_in_turns(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in turns that follow each other, also behind very many that come to nothing."""
    await peer.send(b"x")
    assert len(await peer.pop()) == 1
    processor, orders = peer.mq.broker.processors.pops, peer.mq.broker.services.pop.orders
    loop, now_ms, count = asyncio.get_running_loop(), peer.mq.clock(), 2_000

    def block(number: int, invisible_ms: int) -> None:
        orders.update(
            TOPIC, GROUP, number, [0],
            attempt_id=None, pop_time=now_ms, invisible_time=invisible_ms, retry_flag="0",
        )  # fmt: skip

    for number in range(count):
        block(number, 1)
    for number in range(0, count, 2):
        block(number, 60_000)  # once more: noted for the time that was said first
    real, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + passed[0])
    woken: list[int] = []

    def wake(topic: str, group: str, queue_id: int) -> None:
        assert (topic, group) == (TOPIC, GROUP)
        woken.append(queue_id)
        passed[0] += 0.001

    monkeypatch.setattr(processor, "queue_unlocked", wake)
    processor.on_time(now_ms + 1)
    assert woken == []
    turns = 0
    while orders.has_unlocked(now_ms + 1):  # the clock stands: no tick finds any
        processor.on_time(now_ms + 1)  # one more adds nothing to a turn
        before = len(woken)
        await asyncio.sleep(0)
        assert len(woken) - before <= 5
        turns += 1
        assert turns <= count
    assert sorted(woken) == list(range(1, count, 2))


async def test_what_a_crash_forgot_of_an_order_is_not_skipped(peer: Peer) -> None:
    """An ack of what was handed out before says nothing of the messages before it."""
    for number in range(4):
        await peer.send(b"%d" % number)
    order: dict[str, object] = {"order": "true", "queueId": 0}
    first = await peer.pop(**order, maxMsgNums=1)
    assert await peer.ack(first[0]) == 0
    held = await peer.pop(**order, maxMsgNums=3)
    assert bodies(held) == [b"1", b"2", b"3"]
    peer.mq.broker.services.pop.orders.clear(TOPIC, GROUP, 0)
    assert await peer.ack(held[1]) == 0
    assert peer.mq.offsets(GROUP, TOPIC)[0] == 1
    assert await peer.ack(held[0]) == 0
    assert peer.mq.offsets(GROUP, TOPIC)[0] == 2
    assert bodies(await peer.pop(**order)) == [b"2", b"3"]


async def test_an_offset_reset_is_followed(peer: Peer) -> None:
    for number in range(4):
        await peer.send(b"%d" % number)
    old = await peer.pop(order="true", queueId=0)
    broker = peer.mq.broker
    broker.parts.offsets.assign_reset(GROUP, TOPIC, 0, 1, broker.parts.now_ms())
    broker.parts.on_offset_reset(GROUP, TOPIC, 0)
    assert await peer.ack(old[3]) == 0
    assert bodies(await peer.pop(order="true", queueId=0)) == [b"1", b"2", b"3"]


async def test_retry_topics_of_both_kinds(peer: Peer) -> None:
    await peer.send(b"v1")
    await peer.pop_all()
    await peer.later(35)
    peer.mq.broker.parts.config.enable_retry_topic_v2 = True
    await peer.send(b"v2")
    found = await peer.pop_all(invisibleTime=3_000_000)
    assert bodies(found) == [b"v1", b"v2"]
    await peer.later(3010)
    topics = {each.body: each.topic for each in await peer.pop_all()}
    assert topics == {b"v1": f"%RETRY%{GROUP}_{TOPIC}", b"v2": f"%RETRY%{GROUP}+{TOPIC}"}


async def test_filters(peer: Peer) -> None:
    for number in range(6):
        tags = "AB"[number % 2]
        await peer.send(b"%d" % number, properties=f"TAGS\x01{tags}\x02n\x01{number}\x02")
    assert bodies(await peer.pop(exp="A")) == [b"0", b"2", b"4"]
    other = {"consumerGroup": "SQL", "expType": "SQL92", "exp": "n > 3 OR n = 1"}
    response = await peer.call(POP, peer.pop_fields(**other))
    assert sorted(m.body for m in decode_messages(response.body, "b")) == [b"1", b"4", b"5"]
    bad = await peer.call(POP, peer.pop_fields(expType="SQL92", exp="n > > 3"))
    assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_refusals(peer: Peer) -> None:
    await peer.send(b"x")
    for changes, code in (
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 9}, ResponseCode.INVALID_PARAMETER),
        ({"bornTime": peer.mq.clock() - 60_000}, ResponseCode.POLLING_TIMEOUT),
    ):
        response = await peer.call(POP, peer.pop_fields(**changes))
        assert response.code == code, changes
        assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= set(response.fields)
    (popped,) = await peer.pop()
    popped.offset = 77
    assert await peer.ack(popped) == ResponseCode.NO_MESSAGE
    popped.queue_id = 9
    assert await peer.ack(popped) == ResponseCode.MESSAGE_ILLEGAL
    popped.topic = "Nowhere"
    assert await peer.ack(popped) == ResponseCode.TOPIC_NOT_EXIST
    popped.topic, popped.queue_id, popped.receipt = TOPIC, 0, "broken"
    assert await peer.ack(popped) == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("end", ["kill", "restart"])
async def test_what_was_in_hands_comes_again_after(peer: Peer, end: str) -> None:
    for number in range(20):
        await peer.send(b"%d" % number, number % 2)
    popped = await peer.pop_all(rounds=2, maxMsgNums=6)
    acked = popped[:5]
    for each in acked:
        assert await peer.ack(each) == 0
    if end == "kill":
        await peer.mq.kill()
        await peer.mq.recover()
    else:
        await peer.mq.restart()
    await peer.later(35)
    found = await peer.pop_all(rounds=8)
    await peer.later(35)
    found += await peer.pop_all(rounds=8)
    missing = {b"%d" % number for number in range(20)} - {each.body for each in found}
    assert missing <= {each.body for each in acked}
    if end == "restart":
        assert missing == {each.body for each in acked}


async def test_modes_and_assignment(peer: Peer) -> None:
    await peer.send(b"x")
    mode = {"consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0, "topic": TOPIC}
    assert (await peer.call(401, {}, json.dumps(mode).encode())).code == 0
    modes = json.loads((await peer.call(402, {})).body)
    assert modes["messageRequestModeMap"][TOPIC][GROUP]["mode"] == "POP"
    for changes, code in (
        ({"topic": f"%RETRY%{GROUP}"}, ResponseCode.NO_PERMISSION),
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
    ):
        refused = await peer.call(401, {}, json.dumps({**mode, **changes}).encode())
        assert refused.code == code
    beat = {
        "clientID": "c1",
        "consumerDataSet": [
            {
                "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [{"topic": TOPIC, "subString": "*"}],
            }
        ],
        "producerDataSet": [],
    }  # fmt: skip
    assert (await peer.call(34, {}, json.dumps(beat).encode())).code == 0

    async def ask(topic: str, group: str = GROUP) -> Any:
        body = {
            "clientId": "c1", "consumerGroup": group, "messageModel": "CLUSTERING",
            "strategyName": "AVG", "topic": topic,
        }  # fmt: skip
        response = await peer.call(400, {}, json.dumps(body).encode())
        assert response.code == 0
        return json.loads(response.body).get("messageQueueAssignments")

    (only,) = await ask(TOPIC)
    assert only["mode"] == "POP"
    assert only["messageQueue"] == {"topic": TOPIC, "brokerName": "broker-a", "queueId": -1}
    (retry,) = await ask(f"%RETRY%{GROUP}")
    assert (retry["mode"], retry["messageQueue"]["queueId"]) == ("PULL", 0)
    assert await ask(TOPIC, "unknown") is None
    await peer.mq.restart()
    modes = json.loads((await peer.call(402, {})).body)
    assert modes["messageRequestModeMap"][TOPIC][GROUP]["mode"] == "POP"


async def test_with_synchronous_flush() -> None:
    async with EmbeddedBroker({"flushDiskType": "SYNC_FLUSH"}) as mq, RemotingClient() as client:
        peer = Peer(mq, client)
        for number in range(6):
            await peer.send(b"%d" % number)
        popped = await peer.pop_all()
        assert len(popped) == 6
        for each in popped[:3]:
            assert await peer.ack(each) == 0
        await peer.later(35)
        await mq.wait_until(lambda: len(mq.bodies(f"%RETRY%{GROUP}_{TOPIC}")) == 3)
        assert bodies(await peer.pop_all()) == bodies(popped[3:])


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("merge", ["false", "true"])
async def test_random_consumers_over_kills_lose_nothing(seed: int, merge: str) -> None:
    rng = random.Random(seed)
    settings = {"enablePopBufferMerge": merge, "popFromRetryProbability": "50"}
    async with EmbeddedBroker(settings) as mq, RemotingClient() as client:
        peer = Peer(mq, client)
        await peer.send(b"first")  # makes the topic
        sent = {b"first"}
        acked: set[bytes] = set()
        for step in range(14):
            for _ in range(rng.randrange(4)):
                body = b"%d-%d" % (step, len(sent))
                await peer.send(body, rng.randrange(2))
                sent.add(body)
            invisible = rng.choice([1000, 8000, 30_000])
            for each in await peer.pop(maxMsgNums=rng.randrange(1, 6), invisibleTime=invisible):
                if rng.random() < 0.5:
                    assert await peer.ack(each) == 0
                    acked.add(each.body)
            if rng.random() < 0.3:
                await peer.later(rng.choice([1, 10, 40]))
            if rng.random() < 0.15:
                await mq.kill()
                await mq.recover()
        seen: set[bytes] = set()
        for _ in range(4):
            await peer.later(35)
            for each in await peer.pop_all(rounds=12):
                seen.add(each.body)
                assert await peer.ack(each) == 0
        assert sent <= seen | acked
        await peer.later(35)
        assert await peer.pop_all() == []


def test_a_client_keeps_its_queues_that_the_broker_does_not_know_again_yet() -> None:
    queues = [MessageQueue(topic="T", broker_name="a", queue_id=n) for n in range(4)]
    everything = [MessageQueue(topic="T", broker_name="a", queue_id=-1)]
    assert share_queues("c2", queues, ["c1"], 0, allocate_average) == everything
    assert share_queues("c2", queues, ["c1", "c2"], 0, allocate_average) == everything
    assert share_queues("c9", queues, ["c1", "c2", "c3"], 1, allocate_average) == []


async def make_topic_of_priorities(peer: Peer, queue_nums: int = 4) -> None:
    fields: dict[str, object] = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": queue_nums,
        "writeQueueNums": queue_nums, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": "false", "attributes": "+message.type=PRIORITY",
    }  # fmt: skip
    assert (await peer.call(17, fields)).code == 0


async def test_the_highest_priority_is_popped_first(peer: Peer) -> None:
    await make_topic_of_priorities(peer)
    for number in range(12):
        await peer.send(b"%d" % (number % 4), properties=f"_SYS_MSG_PRIORITY_\x01{number % 4}\x02")
    first = [(await peer.pop(maxMsgNums=1))[0] for _ in range(4)]
    assert [each.body for each in first] == [b"3", b"3", b"3", b"2"]
    peer.mq.broker.parts.config.priority_order_asc = False
    last = [each for _ in range(8) for each in await peer.pop(maxMsgNums=1)]
    assert [each.body for each in last] == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 2


async def test_a_group_without_priorities_takes_all_queues(peer: Peer) -> None:
    await make_topic_of_priorities(peer)
    group = {"groupName": GROUP, "attributes": {"+priority.factor": "0"}}
    assert (await peer.call(200, {}, json.dumps(group).encode())).code == 0
    for number in range(400):
        await peer.send(b"%d" % (number % 4), properties=f"_SYS_MSG_PRIORITY_\x01{number % 4}\x02")
    first = [each.body for _ in range(100) for each in await peer.pop(maxMsgNums=1)]
    assert all(first.count(b"%d" % each) >= 10 for each in range(4))


async def test_retries_come_after_every_priority_or_before(peer: Peer) -> None:
    await make_topic_of_priorities(peer)
    await peer.send(b"3", properties="_SYS_MSG_PRIORITY_\x013\x02")
    assert bodies(await peer.pop(invisibleTime=5000)) == [b"3"]
    await peer.later(6)
    await peer.send(b"0", properties="_SYS_MSG_PRIORITY_\x010\x02")
    popped = await peer.pop(maxMsgNums=2, invisibleTime=5000)
    assert [each.body for each in popped] == [b"0", b"3"]
    await peer.later(6)
    await peer.send(b"1", properties="_SYS_MSG_PRIORITY_\x011\x02")
    peer.mq.broker.parts.config.pop_from_retry_probability_for_priority = 100
    assert bodies(await peer.pop(maxMsgNums=2)) == [b"0", b"3"]


async def test_retries_keep_their_priority_in_queues_of_their_own(peer: Peer) -> None:
    peer.mq.broker.parts.config.use_separate_retry_queue = True
    await make_topic_of_priorities(peer)
    for number in range(4):
        await peer.send(b"%d" % number, properties=f"_SYS_MSG_PRIORITY_\x01{number}\x02")
    assert len(await peer.pop_all(invisibleTime=5000)) == 4
    await peer.later(6)
    retry = peer.mq.broker.parts.topics.get(f"%RETRY%{GROUP}_{TOPIC}")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums) == (4, 4)
    popped = [each for _ in range(4) for each in await peer.pop(maxMsgNums=1, invisibleTime=5000)]
    assert [each.body for each in popped] == [b"3", b"2", b"1", b"0"]
    # The topic grows, and its retry topic with the next message that comes back.
    await make_topic_of_priorities(peer, 8)
    await peer.send(b"7", properties="_SYS_MSG_PRIORITY_\x017\x02")
    assert bodies(await peer.pop(maxMsgNums=1, invisibleTime=5000)) == [b"7"]
    await peer.later(6)
    popped = [each for _ in range(5) for each in await peer.pop(maxMsgNums=1)]
    assert [each.body for each in popped] == [b"7", b"3", b"2", b"1", b"0"]
    for each in popped:
        assert await peer.ack(each) == 0


async def test_every_notification_hears_of_a_message_in_the_end(peer: Peer) -> None:
    # One arrival wakes one of them; the other looks again when its time is over.
    fields = peer.pop_fields(pollTime=60_000, order="true", attemptId="a")
    await peer.send(b"first")
    assert len(await peer.pop(order="true", attemptId="a")) == 1
    waiting = [asyncio.create_task(peer.call(NOTIFY, fields)) for _ in range(2)]
    assert [(await each).fields["hasMsg"] for each in waiting] == ["true", "true"]
    fields = peer.pop_fields(pollTime=60_000, order="true", attemptId="b")
    waiting = [asyncio.create_task(peer.call(NOTIFY, fields)) for _ in range(2)]
    while len(peer.mq.broker.services.pop.notifying) < 2:  # noqa: ASYNC110 - it is the server's
        await asyncio.sleep(0.002)
    await peer.send(b"second", queue_id=1)
    done, late = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result().fields["hasMsg"] for each in done] == ["true"]
    peer.mq.clock.advance(seconds=61)
    assert [(await each).fields["hasMsg"] for each in late] == ["true"]


async def test_what_is_not_in_memory_comes_again_once_it_is(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is asked for than what was handed out."""
    old = peer.mq.broker.services.old_messages
    readable = old.readable
    asked: list[Stretch] = []
    is_there = False

    def of_others(reader: Any, stretch: Stretch, then: Callable[[], None]) -> int:
        if reader[0] != "messages of revive queue":
            return readable(reader, stretch, then)
        asked.append(stretch)
        return stretch[3] if is_there else 0

    monkeypatch.setattr(old, "readable", of_others)
    for _ in range(3):
        await peer.send(b"x")
    assert len(await peer.pop()) == 3
    await peer.send(b"behind")
    await peer.later(35)
    assert set(asked) == {(TOPIC, 0, 0, 3)}
    assert bodies(await peer.pop_all()) == [b"behind"]
    is_there = True
    await peer.later(1)
    assert bodies(await peer.pop_all()) == [b"x"] * 3
    assert set(asked) == {(TOPIC, 0, 0, 3)}


@pytest.mark.parametrize("peer", ["plain"], indirect=True)
async def test_what_left_the_store_while_it_was_out_needs_no_dispatch(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop, store = peer.mq.broker.services.pop, peer.mq.broker.parts.store
    look = store.consume_queue_unit
    dispatches: list[None] = []
    gone = []

    def unit_of(topic: str, queue_id: int, offset: int) -> Any:
        if topic == TOPIC:
            gone.append(offset)
            return None
        return look(topic, queue_id, offset)

    await peer.send(b"x")
    assert len(await peer.pop()) == 1
    monkeypatch.setattr(store, "consume_queue_unit", unit_of)
    monkeypatch.setattr(pop, "_dispatch_soon", lambda: dispatches.append(None))
    await peer.later(35)
    assert (gone, dispatches) == ([0], [])


def widen(peer: Peer, count: int) -> None:
    """The topic has so many queues."""
    topics = peer.mq.broker.parts.topics
    topics.update(TopicConfig(topic_name=TOPIC, read_queue_nums=count, write_queue_nums=count))


@pytest.mark.parametrize("order", ["true", "false"])
async def test_pops_of_queues_without_messages_leave_one_offset(peer: Peer, order: str) -> None:
    widen(peer, 65_536)
    offsets = peer.mq.broker.parts.offsets
    for init_mode, left in ((0, 0), (1, 1)):
        for _ in range(3):
            assert await peer.pop(initMode=init_mode, order=order) == []
            assert len(offsets.queues(GROUP, TOPIC)) == left
    await peer.send(b"1", 40_000)
    assert bodies(await peer.pop(initMode=1, order=order)) == [b"1"]
    assert set(offsets.queues(GROUP, TOPIC)) <= {0, 40_000}


async def test_a_group_has_an_offset_in_each_queue_of_a_topic_as_they_are(peer: Peer) -> None:
    """By these its lag is known, and who has what to consume, before its first message."""
    widen(peer, 16)
    for group in ("G1", "G2"):
        init_mode = int(group == "G2")
        assert await peer.pop(consumerGroup=group, initMode=init_mode) == []
        found = peer.mq.broker.parts.offsets.queues(group, TOPIC)
        assert found == dict.fromkeys(range(16), 0)


@pytest.mark.parametrize("wide_from", [5, 65])
async def test_what_comes_after_the_first_pop_is_not_skipped(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, wide_from: int
) -> None:
    """Also where a group begins at the end, and its queue was empty when it was there first."""
    monkeypatch.setattr(pop_processor, "WIDE_FROM", wide_from)
    widen(peer, 8)
    monkeypatch.setattr(peer.mq.broker.services.pop, "_in_memory_bytes", -1)
    for number in range(3):
        await peer.send(b"old %d" % number, 1)
    assert bodies(await peer.pop(initMode=1)) == [b"old 2"]
    sent = [b"%d" % number for number in range(6)]
    for number, body in enumerate(sent):
        await peer.send(body, 3 + number % 2)
    assert bodies(await peer.pop_all(initMode=1)) == sent


async def test_a_message_beside_very_many_queues_wakes_who_waits(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request looks into some of them: also into the one that it was woken for."""
    monkeypatch.setattr(pop_processor, "WIDE_FROM", 5)
    monkeypatch.setattr(pop_processor, "WALKED_MAX", 2)
    monkeypatch.setattr(random, "randrange", lambda *_: 0)
    widen(peer, 8)
    for queue_id in range(6):
        await peer.send(b"first", queue_id)
    for queue_id in range(6):
        assert len(await peer.pop(queueId=queue_id)) == 1
    asked = peer.pop_fields(pollTime=15_000)
    notification = asyncio.ensure_future(peer.call(NOTIFY, asked))
    notifying = peer.mq.broker.services.pop.notifying
    await peer.mq.wait_until(lambda: len(notifying) == 1, BOUND_S)
    await peer.send(b"second", 5)
    assert (await notification).fields["hasMsg"] == "true"
    assert bodies(await peer.pop(queueId=5)) == [b"second"]
    pop = asyncio.ensure_future(peer.pop(pollTime=15_000))
    await peer.someone_waits()
    await peer.send(b"third", 4)
    assert bodies(await pop) == [b"third"]


async def test_all_of_very_many_queues_have_their_turn(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "WIDE_FROM", 5)
    monkeypatch.setattr(pop_processor, "WALKED_MAX", 2)
    widen(peer, 16)
    sent = sorted(b"%d" % queue_id for queue_id in range(16))
    for body in sent:
        await peer.send(body, int(body))
    found: list[bytes] = []
    async with asyncio.timeout(BOUND_S):
        while len(found) < len(sent):
            popped = await peer.pop(maxMsgNums=32)
            assert len(popped) <= 2
            found += bodies(popped)
    assert sorted(found) == sent
