"""Lite topics over the wire: who takes which, what is handed out, in which order and how often.

Apache's proxy does with these requests what its clients ask for; here a peer sends them as the
proxy would. What was handed out and not acknowledged must come again, in order; what was not asked
for must not come at all.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oberth.broker import consumer_offsets
from oberth.broker.deletions import LITE_TOPICS_A_TURN
from oberth.broker.lite.lite_service import CLIENTS_TRIED_MAX, LOOKS_A_TURN
from oberth.broker.lite.subscriptions import LiteSubscriptions
from oberth.broker.processors.pop_lite import QUEUES_A_TURN
from oberth.client.messages import MessageExt, decode_messages
from oberth.formats import names
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.pop import ATTEMPT_ID_MAX
from oberth.testing.embedded_broker import EmbeddedBroker

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}
PARENT, GROUP = "Parent", "LiteGroup"


class Popped:
    """A message of a lite topic with what acknowledges it."""

    def __init__(self, message: MessageExt, fields: dict[str, str], count: str) -> None:
        queue = message.properties["INNER_MULTI_DISPATCH"]
        self.body = message.body
        self.lite_topic = queue.rpartition("$")[2]
        self.offset = int(message.properties["INNER_MULTI_QUEUE_OFFSET"])
        self.times = int(count.split(" ")[-1])
        self.receipt = (
            f"0 {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 broker-a 0 "
            f"{self.offset}"
        )


class Peer:
    """A proxy with clients of one group."""

    def __init__(self, mq: EmbeddedBroker, client: RemotingClient) -> None:
        self.mq = mq
        self.client = client

    async def call(self, code: int, fields: dict[str, object], body: bytes = b"") -> Any:
        request = RemotingCommand(code=code, body=body)
        request.ext_fields = {name: str(value) for name, value in fields.items()}
        return await self.client.invoke(self.mq.address, request, timeout_s=20.0)

    async def make_parent(self, topic: str = PARENT, **attributes: str) -> None:
        text = ",".join(
            f"+{name.replace('_', '.')}={value}"
            for name, value in {"message_type": "LITE", **attributes}.items()
        )
        fields: dict[str, object] = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
            "attributes": text,
        }  # fmt: skip
        response = await self.call(17, fields)
        assert response.code == 0, response.remark

    async def make_group(self, group: str = GROUP, **attributes: str) -> None:
        changes = {"lite_bind_topic": PARENT, **attributes}
        body = {
            "groupName": group,
            "attributes": {f"+{name.replace('_', '.')}": each for name, each in changes.items()},
        }
        response = await self.call(200, {}, json.dumps(body).encode())
        assert response.code == 0, response.remark

    async def send(self, lite_topic: str, body: bytes, queue_id: int = 1) -> Any:
        fields: dict[str, object] = {
            "a": "P", "b": PARENT, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0,
            "i": f"__LITE_TOPIC\x01{lite_topic}\x02",
        }  # fmt: skip
        return await self.call(310, fields, body)

    async def subscribe(
        self, client_id: str, *lite_topics: str, action: str = "PARTIAL_ADD", **more: object
    ) -> Any:
        entry = {
            "action": action, "clientId": client_id, "group": GROUP, "topic": PARENT,
            "liteTopicSet": lite_topics, "version": 1, **more,
        }  # fmt: skip
        return await self.call(200071, {}, json.dumps({"subscriptionSet": [entry]}).encode())

    def pop_fields(self, client_id: str, **changes: object) -> dict[str, object]:
        return {
            "clientId": client_id, "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": 32,
            "invisibleTime": 30_000, "pollTime": 0, "bornTime": self.mq.clock(), **changes,
        }  # fmt: skip

    async def pop(self, client_id: str, **changes: object) -> list[Popped]:
        return self.popped(await self.call(200070, self.pop_fields(client_id, **changes)))

    def popped(self, response: Any) -> list[Popped]:
        assert {"popTime", "invisibleTime", "reviveQid"} <= set(response.fields)
        assert response.fields["reviveQid"] == "999"
        if response.code != ResponseCode.SUCCESS:
            assert response.code == ResponseCode.POLLING_TIMEOUT
            return []
        messages = decode_messages(response.body, "broker-a")
        counts = response.fields["orderCountInfo"].split(";")
        assert {message.topic for message in messages} == {PARENT}
        return [
            Popped(message, response.fields, count)
            for message, count in zip(messages, counts, strict=True)
        ]

    async def ack(self, popped: Popped, **changes: object) -> Any:
        fields: dict[str, object] = {
            "consumerGroup": GROUP, "topic": PARENT, "queueId": 0, "extraInfo": popped.receipt,
            "offset": popped.offset, "liteTopic": popped.lite_topic, **changes,
        }  # fmt: skip
        return await self.call(200051, fields)

    async def hide(self, popped: Popped, invisible_ms: int) -> Any:
        fields: dict[str, object] = {
            "consumerGroup": GROUP, "topic": PARENT, "queueId": 0, "extraInfo": popped.receipt,
            "offset": popped.offset, "liteTopic": popped.lite_topic, "invisibleTime": invisible_ms,
        }  # fmt: skip
        return await self.call(200053, fields)

    async def info(self, code: int, **fields: object) -> dict[str, Any]:
        response = await self.call(code, fields)
        assert response.code == 0, response.remark
        found: dict[str, Any] = json.loads(response.body)
        return found

    async def later(self, seconds: float) -> None:
        """Sets the clock forward and lets the broker look at it."""
        ticks: asyncio.Queue[int] = asyncio.Queue()
        self.mq.clock.advance(seconds=seconds)
        self.mq.broker.parts.ticks.append(ticks.put_nowait)
        for _ in range(2):
            await ticks.get()
        self.mq.broker.parts.ticks.remove(ticks.put_nowait)


def bodies(popped: list[Popped]) -> list[bytes]:
    return [each.body for each in popped]


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with EmbeddedBroker(SETTINGS) as mq, RemotingClient() as client:
        made = Peer(mq, client)
        await made.make_parent()
        await made.make_group()
        yield made


async def test_a_client_gets_the_lite_topics_that_it_takes(peer: Peer) -> None:
    assert (await peer.subscribe("c1", "one", "two")).code == 0
    for number in range(9):
        response = await peer.send(("one", "two", "three")[number % 3], b"%d" % number, number % 4)
        assert response.code == 0
    first = await peer.pop("c1")
    assert sorted(bodies(first)) == [b"0", b"1", b"3", b"4", b"6", b"7"]
    assert [each.body for each in first if each.lite_topic == "one"] == [b"0", b"3", b"6"]
    assert {each.times for each in first} == {0}
    for each in first:
        assert (await peer.ack(each)).code == 0
    assert (await peer.ack(first[0])).code == 0  # twice is harmless
    assert await peer.pop("c1") == []
    assert peer.mq.broker.parts.offsets.query(GROUP, "%LMQ%$Parent$one", 0) == 3


async def test_what_is_not_acknowledged_blocks_its_lite_topic_and_comes_again(peer: Peer) -> None:
    await peer.subscribe("c1", "one", "two")
    for number in range(4):
        await peer.send("one", b"%d" % number)
    first = await peer.pop("c1", maxMsgNum=3)
    assert bodies(first) == [b"0", b"1", b"2"]
    await peer.ack(first[0])
    await peer.ack(first[2])
    await peer.send("two", b"other")
    other = await peer.pop("c1")
    assert bodies(other) == [b"other"]
    await peer.ack(other[0])
    await peer.later(20)
    assert await peer.pop("c1") == []
    await peer.later(11)
    again = await peer.pop("c1")
    assert [(each.body, each.times) for each in again] == [(b"1", 1), (b"2", 1), (b"3", 0)]
    for each in again:
        assert (await peer.ack(each)).code == 0
    await peer.later(40)
    assert await peer.pop("c1") == []


async def test_an_ack_that_there_is_no_room_for_is_no_success(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    offsets = peer.mq.broker.parts.offsets
    with monkeypatch.context() as full:
        full.setattr(consumer_offsets, "OFFSETS_MAX", 0)
        (popped,) = await peer.pop("c1")
        answer = await peer.ack(popped)
        assert answer.code == 1
        assert "as many offsets as it may" in str(answer.remark)
        assert offsets.query(GROUP, "%LMQ%$Parent$one", 0) == -1
    assert (await peer.ack(popped)).code == 0  # there is room again
    assert offsets.query(GROUP, "%LMQ%$Parent$one", 0) == 1


async def test_an_invisible_time_is_changed(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    (popped,) = await peer.pop("c1")
    response = await peer.hide(popped, 2_000)
    assert response.code == 0
    assert response.fields["popTime"] == popped.receipt.split(" ")[1]
    await peer.later(3)
    (again,) = await peer.pop("c1")
    assert again.times == 1
    assert (await peer.hide(again, 60_000)).code == 0
    await peer.later(40)
    assert await peer.pop("c1") == []
    await peer.later(21)
    (third,) = await peer.pop("c1")
    assert third.times == 2


async def test_a_blocked_lite_topic_is_noted_once(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    (popped,) = await peer.pop("c1")
    lite = peer.mq.broker.services.lite
    unlocks = lite.orders._unlocks
    for number in range(40):
        assert (await peer.hide(popped, 60_000 + number)).code == 0
        lite.dispatch(names.lite_queue(PARENT, "one"), GROUP)
        assert await peer.pop("c1") == []
        stale = popped.receipt.replace(popped.receipt.split(" ")[1], "1", 1)
        popped.receipt, kept = stale, popped.receipt
        await peer.hide(popped, 60_000)  # of no pop: it has no effect
        popped.receipt = kept
    assert (len(unlocks), len(unlocks._heap)) == (1, 1)
    assert (await peer.ack(popped)).code == 0
    assert len(unlocks) == 0
    await peer.send("one", b"y")
    (popped,) = await peer.pop("c1")
    await peer.mq.broker.services.deletions.delete_topics([PARENT])
    assert len(unlocks) == 0


async def test_a_pop_waits_for_a_message(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    fields = peer.pop_fields("c1", pollTime=15_000)
    waiting = asyncio.ensure_future(peer.call(200070, fields))
    await peer.later(0)
    assert len(peer.mq.broker.services.lite.waiting) == 1
    await peer.send("two", b"not asked for")
    assert not waiting.done()
    await peer.send("one", b"x")
    (popped,) = peer.popped(await waiting)
    assert popped.body == b"x"
    # What an acknowledgement makes visible wakes, too; and at last the time.
    await peer.send("one", b"y")
    waiting = asyncio.ensure_future(peer.call(200070, peer.pop_fields("c1", pollTime=15_000)))
    await peer.later(0)
    assert not waiting.done()
    await peer.ack(popped)
    (popped,) = peer.popped(await waiting)
    assert popped.body == b"y"
    waiting = asyncio.ensure_future(peer.call(200070, peer.pop_fields("c1", pollTime=15_000)))
    await peer.later(0)
    await peer.later(16)
    assert (await waiting).code == ResponseCode.POLLING_TIMEOUT


async def test_whoever_waits_is_answered_when_the_broker_stops(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    waiting = asyncio.ensure_future(peer.call(200070, peer.pop_fields("c1", pollTime=15_000)))
    await peer.later(0)
    peer.mq.broker.processors.lite_pops.answer_all()
    assert (await waiting).code == ResponseCode.POLLING_TIMEOUT


async def test_clients_of_a_group_share_a_lite_topic(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.subscribe("c2", "one")
    for number in range(20):
        await peer.send("one", b"%d" % number)
    found: list[bytes] = []
    for _ in range(60):
        for client_id in ("c1", "c2"):
            for each in await peer.pop(client_id, maxMsgNum=1):
                found.append(each.body)
                await peer.ack(each)
    assert found == [b"%d" % number for number in range(20)]


async def test_what_a_gone_client_left_goes_to_others(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    await peer.subscribe("c2", "one")
    assert (await peer.subscribe("c1", action="COMPLETE_REMOVE")).code == 0
    assert bodies(await peer.pop("c2")) == [b"x"]
    assert await peer.pop("c1") == []


async def test_who_does_not_come_loses_its_list(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    await peer.subscribe("c2", "two")
    lite = peer.mq.broker.services.lite
    assert list(lite.events.get("c1").queues) == ["%LMQ%$Parent$one"]  # type: ignore[union-attr]
    await peer.later(9)
    await peer.subscribe("c2", "one")
    await peer.later(2)
    assert lite.events.get("c1") is None
    assert bodies(await peer.pop("c2")) == [b"x"]


async def test_a_full_list_is_made_good_by_a_full_turn() -> None:
    settings = {**SETTINGS, "maxClientEventCount": "10"}
    async with EmbeddedBroker(settings) as mq, RemotingClient() as client:
        peer = Peer(mq, client)
        await peer.make_parent()
        await peer.make_group()
        lite_topics = [f"t{number}" for number in range(25)]
        await peer.subscribe("c1", *lite_topics)
        for name in lite_topics:
            await peer.send(name, name.encode())
        found: list[bytes] = []
        for _ in range(6):
            for each in await peer.pop("c1"):
                found.append(each.body)
                await peer.ack(each)
            await peer.later(10.5)
        assert sorted(found) == sorted(name.encode() for name in lite_topics)


async def test_an_exclusive_group_gives_a_lite_topic_to_who_asked_last(peer: Peer) -> None:
    await peer.make_group(lite_sub_model="Exclusive", lite_sub_reset_offset_exclusive="true")
    told: list[dict[str, str]] = []
    arrived = asyncio.Event()

    def notice(channel: object, request: RemotingCommand) -> None:
        told.append(dict(request.ext_fields or {}))
        arrived.set()

    table = ProcessorTable()
    table.sync([RequestCode.NOTIFY_UNSUBSCRIBE_LITE], notice)
    async with RemotingClient(table) as other:
        first = Peer(peer.mq, other)
        await first.subscribe("c1", "one")
        await first.send("one", b"x")
        (popped,) = await first.pop("c1")
        await first.ack(popped)
        await peer.subscribe("c2", "one")
        await arrived.wait()
        assert told == [{"liteTopic": "one", "consumerGroup": GROUP, "clientId": "c1"}]
        assert peer.mq.broker.services.lite.subscriptions.get("c1") is None
        assert peer.mq.broker.services.lite._channels.keys() == {"c2"}
        assert bodies(await peer.pop("c2")) == [b"x"]  # it begins anew


async def test_a_wildcard_group_takes_everything(peer: Peer) -> None:
    await peer.send("old", b"old")
    await peer.make_group(lite_sub_wildcard="yes")
    assert (await peer.subscribe("c1", "one")).code == ResponseCode.ILLEGAL_OPERATION
    assert (await peer.subscribe("c1", action="COMPLETE_ADD")).code == 0
    await peer.send("new", b"new")
    assert bodies(await peer.pop("c1")) == [b"new"]
    await peer.later(15.5)
    assert bodies(await peer.pop("c1")) == [b"old"]
    one = await peer.info(200076, parentTopic=PARENT, liteTopic="any")
    assert one["subscriber"] == [{"clientId": "*", "group": GROUP}]
    assert (await peer.subscribe("c1", action="COMPLETE_REMOVE")).code == 0
    assert (
        peer.mq.broker.services.dispatching.arrival_listeners.count(
            peer.mq.broker.services.lite._on_arrival
        )
        == 0
    )


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"type": "POLICY", "value": 0}, [b"2", b"3"]),
        ({"type": "POLICY", "value": 1}, [b"0", b"1", b"2", b"3"]),
        ({"type": "POLICY", "value": 2}, []),
        ({"type": "OFFSET", "value": 3}, [b"3"]),
        ({"type": "TAIL_N", "value": 1}, [b"1", b"2", b"3"]),
        ({"type": "TIMESTAMP", "value": 1}, [b"2", b"3"]),
    ],
)
async def test_where_a_subscription_begins(
    peer: Peer, option: dict[str, object], expected: list[bytes]
) -> None:
    await peer.subscribe("c1", "one")
    for number in range(4):
        await peer.send("one", b"%d" % number)
    for each in await peer.pop("c1", maxMsgNum=2):
        await peer.ack(each)
    await peer.subscribe("c1", "one", action="PARTIAL_REMOVE")
    await peer.subscribe("c1", "one", offsetOption=option)
    assert bodies(await peer.pop("c1")) == expected


async def test_who_gives_up_may_begin_anew(peer: Peer) -> None:
    await peer.make_group(lite_sub_reset_offset_unsubscribe="true")
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    for each in await peer.pop("c1"):
        await peer.ack(each)
    await peer.subscribe("c1", "one", action="PARTIAL_REMOVE")
    await peer.subscribe("c1", "one")
    assert bodies(await peer.pop("c1")) == [b"x"]


async def test_silence_ends_a_subscription(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.subscribe("c2", "one", "two")
    await peer.later(170)
    await peer.subscribe("c2", "two", action="COMPLETE_ADD")
    await peer.later(130)
    subscriptions = peer.mq.broker.services.lite.subscriptions
    assert subscriptions.get("c1") is None
    assert list(subscriptions.get("c2").queues) == [  # type: ignore[union-attr]
        "%LMQ%$Parent$two"
    ]
    assert len(subscriptions) == 1


async def test_more_than_a_broker_may_have_is_refused() -> None:
    settings = {**SETTINGS, "maxLiteSubscriptionCount": "2"}
    async with EmbeddedBroker(settings) as mq, RemotingClient() as client:
        peer = Peer(mq, client)
        await peer.make_parent()
        await peer.make_group()
        assert (await peer.subscribe("c1", "one", "two")).code == 0
        refused = await peer.subscribe("c1", "three")
        assert refused.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        whole = {"action": "COMPLETE_ADD"}
        assert (await peer.subscribe("c1", "one", "three", **whole)).code == 0
        for client_id, topics in (("c1", ("one", "two", "three")), ("c2", ("one",))):
            refused = await peer.subscribe(client_id, *topics, **whole)
            assert refused.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        # Clients that take nothing are counted, too; and nobody is made by leaving.
        assert (await peer.subscribe("c2", **whole)).code == 0
        refused = await peer.subscribe("c3", **whole)
        assert refused.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert (await peer.subscribe("c4", "one", action="PARTIAL_REMOVE")).code == 0
        lite = mq.broker.services.lite
        assert (len(lite.subscriptions), lite.subscriptions.client_count) == (2, 2)
        assert lite._channels.keys() == {"c1", "c2"}


async def test_a_group_has_no_say_about_the_clients_of_another(peer: Peer) -> None:
    await peer.make_group("Other")
    assert (await peer.subscribe("c1", "one")).code == 0
    await peer.send("one", b"for c1")
    for action in ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"):
        refused = await peer.subscribe("c1", action=action, group="Other")
        assert refused.code == ResponseCode.ILLEGAL_OPERATION, action
    fields = peer.pop_fields("c1", consumerGroup="Other")
    assert (await peer.call(200070, fields)).code == ResponseCode.INVALID_PARAMETER
    asked = {"parentTopic": PARENT, "group": "Other", "clientId": "c1", "maxCount": 9}
    for code in (200077, 200079):  # shown what it takes, noted for it what it does not take
        refused = await peer.call(code, asked)
        assert (refused.code, refused.body_bytes()) == (ResponseCode.INVALID_PARAMETER, b"")
    assert [each.body for each in await peer.pop("c1")] == [b"for c1"]
    for name in ("client id", "topic"):
        changes = {"client id": {"client_id": "c" * 256}, "topic": {"topic": "t" * 256}}[name]
        refused = await peer.subscribe(**{"client_id": "c2", "action": "COMPLETE_ADD", **changes})
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        assert f"a {name} of 256 characters" in refused.remark


async def test_what_cannot_be_is_refused(peer: Peer) -> None:
    assert (await peer.call(200071, {})).code == ResponseCode.ILLEGAL_OPERATION
    assert (await peer.call(200071, {}, b"{}")).code == ResponseCode.ILLEGAL_OPERATION
    assert (await peer.call(200071, {}, b"[")).code == ResponseCode.SYSTEM_ERROR
    assert (await peer.subscribe("c1", "x", action="ADD")).code == ResponseCode.ILLEGAL_OPERATION
    await peer.subscribe("c1", "../up", "a,%LMQ%$Other$x", "a$b", "")
    assert len(peer.mq.broker.services.lite.subscriptions) == 0
    await peer.call(200, {}, b'{"groupName":"Plain"}')
    await peer.make_parent("Second")
    for changes, code in (
        ({"topic": "None"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "TBW102"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Second"}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "Plain"}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNum": 33}, ResponseCode.INVALID_PARAMETER),
        ({"bornTime": 1}, ResponseCode.POLLING_TIMEOUT),
        ({"attemptId": "a" * (ATTEMPT_ID_MAX + 1)}, ResponseCode.INVALID_PARAMETER),
    ):
        assert (await peer.call(200070, peer.pop_fields("c1", **changes))).code == code


@pytest.mark.parametrize("name", ["../up", "a$b", "a,%LMQ%$Other$x", "a/b", "x" * 260])
async def test_a_lite_topic_never_stands_for_another_queue(peer: Peer, name: str) -> None:
    assert (await peer.send(name, b"x")).code == ResponseCode.MESSAGE_ILLEGAL
    assert not [each for each in peer.mq.broker.parts.store.topics() if "LMQ" in each]


async def test_acknowledgements_that_fit_nothing(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    (popped,) = await peer.pop("c1")
    assert (await peer.ack(popped, offset=5)).code == ResponseCode.NO_MESSAGE
    assert (await peer.ack(popped, offset=1)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await peer.ack(popped, queueId=1)).code == ResponseCode.INVALID_PARAMETER
    assert (await peer.ack(popped, queueId=9)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await peer.ack(popped, topic="None")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await peer.ack(popped, consumerGroup="G")).code == ResponseCode.INVALID_PARAMETER
    assert (await peer.ack(popped)).code == 0


async def test_expired_lite_topics_are_deleted(peer: Peer) -> None:
    await peer.make_parent("Forever")
    await peer.make_parent(lite_topic_expiration="30")
    await peer.subscribe("c1", "old", "young")
    await peer.send("old", b"x")
    for each in await peer.pop("c1"):
        await peer.ack(each)
    await peer.later(20 * 60)
    await peer.subscribe("c1", "old", "young")
    await peer.send("young", b"y")
    await peer.later(12 * 60)
    queues = [each for each in peer.mq.broker.parts.store.topics() if each.startswith("%LMQ%")]
    assert queues == ["%LMQ%$Parent$young"]
    assert peer.mq.broker.parts.offsets.query(GROUP, "%LMQ%$Parent$old", 0) == -1
    await peer.subscribe("c1", "old")
    await peer.send("old", b"again")
    (popped,) = [each for each in await peer.pop("c1") if each.lite_topic == "old"]
    assert (popped.body, popped.offset) == (b"again", 0)


async def test_a_parent_is_deleted_with_its_lite_topics(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    assert len(await peer.pop("c1")) == 1
    assert (await peer.call(215, {"topic": PARENT})).code == 0
    assert (await peer.info(200074))["orderInfoCount"] == 0
    assert not [each for each in peer.mq.broker.parts.store.topics() if each.startswith("%LMQ%")]
    assert len(peer.mq.broker.services.lite.subscriptions) == 0


async def test_a_deleted_group_leaves_nothing(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    for each in await peer.pop("c1"):
        await peer.ack(each)
    assert (await peer.call(207, {"groupName": GROUP, "cleanOffset": "false"})).code == 0
    assert peer.mq.broker.parts.offsets.query(GROUP, "%LMQ%$Parent$one", 0) == -1


async def test_a_restart_hands_out_again_what_was_not_acknowledged(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    for number in range(3):
        await peer.send("one", b"%d" % number)
    first = await peer.pop("c1")
    await peer.ack(first[0])
    await peer.mq.restart()
    await peer.subscribe("c1", "one")
    again = await peer.pop("c1")
    assert bodies(again) == [b"1", b"2"]


async def test_what_tools_are_told(peer: Peer) -> None:
    await peer.make_parent(lite_topic_expiration="60")
    await peer.subscribe("c1", "one", "two")
    for number in range(3):
        await peer.send("one", b"%d" % number)
    (popped,) = await peer.pop("c1", maxMsgNum=1)
    await peer.ack(popped)
    info = await peer.info(200074)
    assert info["topicMeta"] == {PARENT: 60}
    assert info["groupMeta"] == {PARENT: [GROUP]}
    assert (info["liteSubscriptionCount"], info["currentLmqNum"]) == (2, 1)
    assert (info["orderInfoCount"], info["eventMapSize"]) == (1, 1)
    parent = await peer.info(200075, topic=PARENT)
    assert (parent["ttl"], parent["liteTopicCount"], parent["groups"]) == (60, 1, [GROUP])
    one = await peer.info(200076, parentTopic=PARENT, liteTopic="one")
    assert one["subscriber"] == [{"clientId": "c1", "group": GROUP}]
    assert (one["topicOffset"]["minOffset"], one["topicOffset"]["maxOffset"]) == (0, 3)
    assert one["topicOffset"]["lastUpdateTimestamp"] > 0
    assert one["shardingToBroker"] is True
    none = await peer.info(200076, parentTopic=PARENT, liteTopic="none")
    assert none["topicOffset"] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    asked = {"parentTopic": PARENT, "group": GROUP, "clientId": "c1"}
    client = await peer.info(200077, **asked, maxCount=1)
    assert (client["liteTopicCount"], len(client["liteTopicSet"])) == (2, 1)
    assert client["lastAccessTime"] > 0
    unknown = await peer.info(200077, **{**asked, "clientId": "c9"}, maxCount=1)
    assert (unknown["liteTopicCount"], unknown["lastAccessTime"]) == (-1, -1)
    group = await peer.info(200078, group=GROUP, topK=5)
    assert group["totalLagCount"] == 2
    assert [each["liteTopic"] for each in group["lagCountTopK"]] == ["one"]
    assert (group["lagTimestampTopK"], group["earliestUnconsumedTimestamp"]) == ([], -1)
    of_one = await peer.info(200078, group=GROUP, liteTopic="one", topK=5)
    assert of_one["liteTopicOffsetWrapper"]["consumerOffset"] == 1
    assert of_one["totalLagCount"] == 2
    of_none = await peer.info(200078, group=GROUP, liteTopic="none", topK=5)
    assert of_none["totalLagCount"] == of_none["earliestUnconsumedTimestamp"] == -1


async def test_the_offset_of_a_time_in_a_lite_topic(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    for number in range(3):
        await peer.send("one", b"%d" % number)
        peer.mq.clock.advance(seconds=10)
    asked: dict[str, object] = {
        "topic": PARENT, "queueId": 0, "timestamp": peer.mq.clock() - 15_000, "liteTopic": "one",
    }  # fmt: skip
    assert (await peer.call(29, asked)).fields["offset"] == "2"
    assert (await peer.call(29, {**asked, "liteTopic": "none"})).fields["offset"] == "0"
    assert (await peer.call(29, {**asked, "queueId": 1})).fields["offset"] == "0"
    assert (await peer.call(29, {**asked, "liteTopic": "../x"})).fields["offset"] == "0"


async def test_a_full_turn_is_made_on_demand(peer: Peer) -> None:
    await peer.subscribe("c1", "one")
    await peer.send("one", b"x")
    lite = peer.mq.broker.services.lite
    lite.events.remove("c1")
    assert await peer.pop("c1") == []
    assert (await peer.call(200079, {"group": GROUP, "clientId": "c1"})).code == 0
    assert bodies(await peer.pop("c1")) == [b"x"]
    await peer.send("one", b"y")
    lite.events.remove("c1")
    await peer.later(31)
    lite.events.remove("c1")
    assert (await peer.call(200079, {"group": GROUP})).code == 0
    assert bodies(await peer.pop("c1")) == [b"x", b"y"]


async def test_questions_about_what_is_none(peer: Peer) -> None:
    await peer.call(200, {}, b'{"groupName":"Plain"}')
    for code in (200075, 200076, 200077):
        plain = await peer.call(code, {"topic": "TBW102", "parentTopic": "TBW102"})
        assert plain.code == ResponseCode.INVALID_PARAMETER
        unknown = await peer.call(code, {"topic": "None", "parentTopic": "None"})
        assert (unknown.code, unknown.remark) == (17, "Topic [None] not exist.")
    foreign = {"parentTopic": PARENT, "group": "Plain", "clientId": "c1"}
    assert (await peer.call(200077, foreign)).code == ResponseCode.INVALID_PARAMETER  # type: ignore[arg-type]
    for code in (200078, 200079):
        assert (await peer.call(code, {"group": "Plain"})).code == ResponseCode.INVALID_PARAMETER


async def test_old_subscribers_are_told_where_they_are_behind() -> None:
    settings = {**SETTINGS, "liteLagLatencyCollectEnable": "true"}
    async with EmbeddedBroker(settings) as mq, RemotingClient() as client:
        peer = Peer(mq, client)
        await peer.make_parent()
        await peer.make_group()
        await peer.subscribe("c1", "one", "two")
        for name in ("two", "one", "one"):
            mq.clock.advance(seconds=1)
            await peer.send(name, b"x")
        await peer.pop("c1")
        group = await peer.info(200078, group=GROUP, topK=1)
        assert [each["liteTopic"] for each in group["lagTimestampTopK"]] == ["two"]
        assert [each["liteTopic"] for each in group["lagCountTopK"]] == ["one"]
        assert (
            group["earliestUnconsumedTimestamp"]
            == group["lagTimestampTopK"][0]["earliestUnconsumedTimestamp"]
        )


async def test_very_many_lite_topics_go_with_their_parent_in_turns(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None holds the loop for the files of all of them, or for the disk."""
    await peer.make_parent()
    await peer.make_group()
    count = 2 * LITE_TOPICS_A_TURN + 1
    for number in range(count):
        assert (await peer.send(f"l{number}", b"x")).code == 0
    await peer.subscribe("c1", "l0", "l1")
    popped = await peer.pop("c1")
    assert len(popped) == 2
    parts, lite = peer.mq.broker.parts, peer.mq.broker.services.lite
    assert len(lite.orders) == 2
    store, removed, settled = parts.store, [], []
    remove_topics, settle_removal = store.remove_topics, store.settle_removal

    def remove(topics: Any) -> int:
        removed.append(len(topics))
        return remove_topics(topics)

    def settle() -> None:
        settled.append(threading.current_thread())
        settle_removal()

    monkeypatch.setattr(store, "remove_topics", remove)
    monkeypatch.setattr(store, "settle_removal", settle)
    assert (await peer.call(215, {"topic": PARENT})).code == 0
    assert removed == [LITE_TOPICS_A_TURN, LITE_TOPICS_A_TURN, 1, 1]
    assert len(settled) == 1
    assert settled[0] is not threading.main_thread()
    assert lite.queues(PARENT) == []
    assert len(lite.orders) == len(lite.subscriptions) == parts.offsets.pair_count == 0


def test_takers_of_a_queue_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message to a lite topic that 20 000 clients take looks at some of them."""
    taken, queue = LiteSubscriptions(), names.lite_queue(PARENT, "l")
    for number in range(20_000):
        taken.of_client(f"c{number}", "ab"[number % 2], PARENT, 0)
        taken.add(f"c{number}", queue)
    looked_at: list[str] = []

    class Watched(dict[str, str]):
        def items(self) -> Any:
            looked_at.append("all")
            return super().items()

    monkeypatch.setitem(taken._takers, queue, Watched(taken._takers[queue]))
    for _ in range(3):
        found = taken.takers_by_group(PARENT, queue)
        assert {group: len(clients) for group, clients in found.items()} == {
            "a": 10_000,
            "b": 10_000,
        }
    assert looked_at == ["all"]
    taken.discard("c1", queue)
    taken.add("c1", queue)
    taken.discard("c3", queue)
    assert "c3" not in taken.takers_by_group(PARENT, queue)["b"]
    assert len(taken.takers_by_group(PARENT, queue)["b"]) == 9_999


async def test_of_very_many_clients_some_are_tried(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.make_parent()
    await peer.make_group(lite_sub_client_max_event_cnt="10")
    lite = peer.mq.broker.services.lite
    for number in range(1000):
        lite.subscriptions.of_client(f"c{number}", GROUP, PARENT, peer.mq.clock())
        lite.subscriptions.add(f"c{number}", names.lite_queue(PARENT, "l"))
    tried: list[str] = []
    offer = lite.events.offer

    def counted(client_id: str, *args: Any) -> bool:
        tried.append(client_id)
        return offer(client_id, *args)

    monkeypatch.setattr(lite.events, "offer", counted)
    for client in lite.subscriptions.clients_of_group(GROUP):  # all lists are full
        full = dict.fromkeys([f"other{number}" for number in range(10)])
        lite.events.of_client(client, GROUP, peer.mq.clock()).queues.update(full)
    lite.dispatch(names.lite_queue(PARENT, "l"))
    assert 0 < len(set(tried)) == len(tried) <= CLIENTS_TRIED_MAX
    assert set(lite.events._turns) == set(tried), "each looks at all when it has room"


async def test_a_pop_looks_into_so_many_lite_topics_in_a_turn(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands that are noted for a client and have nothing; the last one has."""
    await peer.make_parent()
    await peer.make_group(lite_sub_client_max_event_cnt="100000")
    await peer.subscribe("c1", "last")
    await peer.send("last", b"x")
    lite, processor = peer.mq.broker.services.lite, peer.mq.broker.processors.lite_pops
    events = lite.events.of_client("c1", GROUP, peer.mq.clock())
    events.queues.clear()
    count = 5 * QUEUES_A_TURN
    for number in range(count):
        events.queues[names.lite_queue(PARENT, f"empty{number}")] = None
    events.queues[names.lite_queue(PARENT, "last")] = None
    looked: list[int] = []
    pop_queue, pop_events = processor._pop_queue, processor._pop_events

    def pop_counted(*args: Any) -> Any:
        looked[-1] += 1
        return pop_queue(*args)

    def events_counted(*args: Any) -> Any:
        looked.append(0)
        return pop_events(*args)

    monkeypatch.setattr(processor, "_pop_queue", pop_counted)
    monkeypatch.setattr(processor, "_pop_events", events_counted)
    assert bodies(await peer.pop("c1", pollTime=10_000)) == [b"x"]
    assert looked == [*([QUEUES_A_TURN] * 5), 1]


async def test_a_connection_that_closes_looks_at_its_own_clients(peer: Peer) -> None:
    """Beside those of others, of whom there may be very many."""

    class NotWalked(dict[Any, Any]):
        def items(self) -> Any:
            raise AssertionError("all clients are looked at")

    await peer.subscribe("c1", "one")
    lite = peer.mq.broker.services.lite
    (channel,) = lite._clients_on
    async with RemotingClient() as client:
        other = Peer(peer.mq, client)
        for client_id in ("c2", "c3", "c4"):
            await other.subscribe(client_id, "one")
        await peer.subscribe("c3", "one")  # it came back over another connection
        await other.subscribe("c4", action="COMPLETE_REMOVE")
        lite._channels = NotWalked(lite._channels)
    await peer.mq.wait_until(lambda: len(lite._clients_on) == 1)
    assert lite._clients_on == {channel: {"c1": None, "c3": None}}
    assert dict.keys(lite._channels) == {"c1", "c3"}
    assert lite.subscriptions.client_count == 3  # it may come back


async def test_very_many_silent_clients_are_forgotten_in_turns(peer: Peer) -> None:
    lite = peer.mq.broker.services.lite
    now_ms = peer.mq.clock()
    for number in range(5 * LOOKS_A_TURN):
        lite.subscriptions.of_client(f"c{number}", GROUP, PARENT, now_ms)
    lite.on_time(now_ms + 3_600_000)
    assert lite.subscriptions.client_count >= 4 * LOOKS_A_TURN
    back = lite.subscriptions.of_client("c2400", GROUP, PARENT, now_ms + 3_600_000)
    while lite.is_at_work:  # noqa: ASYNC110 - each turn is a slice
        await asyncio.sleep(0)
    assert lite.subscriptions.client_count == 1
    assert lite.subscriptions.get("c2400") is back, "it said something meanwhile"


async def test_what_very_many_clients_left_alone_is_looked_at_in_turns(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists that nobody comes for, full turns and what is visible again, all due at once."""
    lite = peer.mq.broker.services.lite
    now_ms = peer.mq.clock()
    looks: list[str] = []
    monkeypatch.setattr(lite, "dispatch", lambda queue, *_, **__: looks.append(queue))

    def has_more(_: object, queue: str) -> bool:
        looks.append(queue)
        return True

    monkeypatch.setattr(lite, "_has_more", has_more)
    count = 3 * LOOKS_A_TURN
    for number in range(count):
        lite.events.offer(f"c{number}", GROUP, f"stuck{number}", 10, now_ms)
        lite.orders.update(
            f"unlocked{number}", GROUP, 0, [0],
            attempt_id=None, pop_time=now_ms, invisible_time=number, retry_flag="0",
        )  # fmt: skip
        lite.subscriptions.of_client(f"t{number}", GROUP, PARENT, now_ms + 60_000)
        lite.subscriptions.add(f"t{number}", f"turn{number}")
        lite.events.schedule_turn(f"t{number}", GROUP, now_ms)
    lite._next_silent_ms = lite._next_expiry_ms = now_ms + 3_600_000
    lite.on_time(now_ms + 60_000)
    assert len(looks) <= 4 * LOOKS_A_TURN
    while lite.is_at_work:  # noqa: ASYNC110 - each turn is a slice
        await asyncio.sleep(0)
    for kind in ("stuck", "unlocked", "turn"):
        assert {f"{kind}{number}" for number in range(count)} <= set(looks)


def hand_out(lite: Any, name: str, now_ms: int, invisible_ms: int) -> None:
    """What a pop notes of a lite topic."""
    lite.orders.update(
        name, GROUP, 0, [0],
        attempt_id=None, pop_time=now_ms, invisible_time=invisible_ms, retry_flag="0",
    )  # fmt: skip


async def test_lite_topics_that_were_handed_out_again_are_looked_at_in_turns(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are noted for the time that was said first; one of many is free then."""
    lite, now_ms = peer.mq.broker.services.lite, peer.mq.clock()
    count = 6 * LOOKS_A_TURN
    for number in range(count):
        hand_out(lite, f"q{number}", now_ms, number)
        if number % LOOKS_A_TURN:
            hand_out(lite, f"q{number}", now_ms, 3_600_000)
    looks: list[str] = []
    visible_at = lite.orders.visible_at

    def look(queue: str, group: str, queue_id: int) -> int | None:
        looks.append(queue)
        return visible_at(queue, group, queue_id)

    dispatched: list[str] = []
    monkeypatch.setattr(lite.orders, "visible_at", look)
    monkeypatch.setattr(lite, "_has_more", lambda group, queue: True)
    monkeypatch.setattr(lite, "dispatch", lambda queue, group: dispatched.append(queue))
    lite.on_time(now_ms + 60_000)
    assert len(looks) <= LOOKS_A_TURN
    while lite.is_at_work:
        before = len(looks)
        await asyncio.sleep(0)
        assert len(looks) - before <= LOOKS_A_TURN
    assert dispatched == [f"q{number}" for number in range(0, count, LOOKS_A_TURN)]


async def test_a_lite_topic_that_cannot_be_served_takes_no_others_with_it(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite, now_ms = peer.mq.broker.services.lite, peer.mq.clock()
    for number in range(4):
        hand_out(lite, f"q{number}", now_ms, number)
    dispatched: list[str] = []

    def dispatch(queue: str, _: str) -> None:
        if queue == "q1":
            raise RuntimeError(queue)
        dispatched.append(queue)

    monkeypatch.setattr(lite, "_has_more", lambda group, queue: True)
    monkeypatch.setattr(lite, "dispatch", dispatch)
    with pytest.raises(RuntimeError, match="q1"):
        lite.on_time(now_ms + 60_000)
    lite.on_time(now_ms + 60_000)
    assert dispatched == ["q0", "q2", "q3"]
