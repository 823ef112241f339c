"""Heartbeats, leaving, silence, and who hears of it; over sockets."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

from oberth.broker.clients import ClientInfo
from oberth.broker.processors.client import TOLD_A_TURN
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.command import RemotingCommand


def listening(heard: list[str]) -> ProcessorTable:
    """Serves NOTIFY_CONSUMER_IDS_CHANGED by noting the group."""

    def note(channel: object, request: RemotingCommand) -> None:
        heard.append(request.fields["consumerGroup"])

    table = ProcessorTable()
    table.sync([40], note)
    return table


async def test_a_heartbeat_is_answered_as_by_apache(live: Any) -> None:
    response = await live.peer.heartbeat("G", {"T": "*"})
    assert response.code == 0
    assert response.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    response = await live.peer.heartbeat("G", {"T": "*"})
    assert response.fields["IS_SUB_CHANGE"] == "false"


async def test_a_heartbeat_makes_the_group_and_its_retry_topic(live: Any) -> None:
    await live.peer.heartbeat("G", {"T": "*"})
    assert live.broker.parts.groups.get("G") is not None
    retry = live.broker.parts.topics.get("%RETRY%G")
    assert retry is not None
    assert (retry.read_queue_nums, retry.perm) == (1, 6)


async def test_members_are_listed(live: Any) -> None:
    assert (await live.peer.call(38, {"consumerGroup": "G"})).code == 1
    await live.peer.heartbeat("G", {"T": "*"}, client_id="one")
    other = live.another()
    await other.heartbeat("G", {"T": "*"}, client_id="two")
    response = await live.peer.call(38, {"consumerGroup": "G"})
    assert json.loads(response.body_bytes()) == {"consumerIdList": ["one", "two"]}


async def test_members_hear_of_each_other(live: Any) -> None:
    heard: list[str] = []
    first = live.another(listening(heard))
    await first.heartbeat("G", {"T": "*"}, client_id="one")
    await live.until(lambda: heard == ["G"])
    second = live.another()
    await second.heartbeat("G", {"T": "*"}, client_id="two")
    await live.until(lambda: heard == ["G", "G"])
    await second.client.aclose()
    await live.until(lambda: heard == ["G"] * 3)
    await first.heartbeat("G", {"T": "*"}, client_id="one")
    assert heard == ["G"] * 3


async def test_leaving_is_told_to_the_others(live: Any) -> None:
    heard: list[str] = []
    first = live.another(listening(heard))
    await first.heartbeat("G", {"T": "*"}, client_id="one")
    await live.peer.heartbeat("G", {"T": "*"}, client_id="two", producers=("PG",))
    await live.until(lambda: len(heard) == 2)
    fields = {"clientID": "two", "consumerGroup": "G", "producerGroup": "PG"}
    assert (await live.peer.call(35, fields)).code == 0
    await live.until(lambda: len(heard) == 3)
    assert live.broker.parts.producers.clients("PG") == []


async def test_broadcasting_groups_are_not_told(live: Any) -> None:
    heard: list[str] = []
    first = live.another(listening(heard))
    await first.heartbeat("G", {"T": "*"}, client_id="one", model="BROADCASTING")
    await live.peer.heartbeat("G", {"T": "*"}, client_id="two", model="BROADCASTING")
    await asyncio.sleep(0.05)
    assert heard == []


async def test_silence_closes_the_connection(live: Any) -> None:
    other = live.another()
    await other.heartbeat("G", {"T": "*"}, client_id="one", producers=("PG",))
    channel = await other.channel()
    await live.later(120_001 + 10_000)
    await live.until(lambda: channel.is_closed)
    assert live.broker.parts.consumers.get("G") is None
    assert live.broker.parts.producers.groups() == []


async def test_an_unknown_group_is_skipped_silently(make_live: Any) -> None:
    live = await make_live(autoCreateSubscriptionGroup="false")
    assert (await live.peer.heartbeat("G", {"T": "*"})).code == 0
    assert live.broker.parts.consumers.get("G") is None
    assert live.broker.parts.topics.get("%RETRY%G") is None


async def test_names_that_no_group_may_have(live: Any) -> None:
    for name in ("", "with space", "../up", "x" * 121):
        assert (await live.peer.heartbeat(name, {"T": "*"})).code == 0
    assert len(live.broker.parts.consumers) == 0
    assert not [each for each in live.broker.parts.topics if "up" in (each.topic_name or "")]


async def test_heartbeats_of_other_clients(live: Any) -> None:
    cpp = (
        b'{"clientID":"cpp","consumerDataSet":[{"groupName":"G","consumeType":1,'
        b'"messageModel":1,"consumeFromWhere":0,"subscriptionDataSet":'
        b'[{"topic":"T","subString":"A || B","subVersion":"5"}]}]}'
    )
    assert (await live.peer.call(34, None, cpp)).code == 0
    group = live.broker.parts.consumers.get("G")
    assert group is not None
    assert group.data.message_model == "CLUSTERING"
    assert group.subscriptions["T"].tags == ("A", "B")


async def test_a_heartbeat_that_is_none(live: Any) -> None:
    for body in (b"", b"[]", b"{", b'{"consumerDataSet":[]}', b'{"clientID":7}'):
        response = await live.peer.call(34, {}, body)
        assert response.code == 1, body
    assert (await live.peer.heartbeat("G", {"T": "*"})).code == 0


async def test_what_is_no_list_in_a_heartbeat_is_skipped(live: Any) -> None:
    body = b'{"clientID":"c","consumerDataSet":{"a":1},"producerDataSet":[7,{"groupName":null}]}'
    assert (await live.peer.call(34, {}, body)).code == 0


async def test_client_config(live: Any) -> None:
    def body(kind: str, expression: str) -> bytes:
        data = {"topic": "T", "subString": expression, "expressionType": kind}
        return json.dumps({"clientId": "c", "group": "G", "subscriptionData": data}).encode()

    assert (await live.peer.call(46, {}, body("TAG", "A"))).code == 0
    response = await live.peer.call(46, {}, body("SQL92", "a > 1"))
    assert response.code == 1
    assert "SQL92" in (response.remark or "")


async def test_a_large_group_is_told_some_a_turn_and_once_for_many_changes(live: Any) -> None:
    """Members that come one after the other cost their number, not its square."""
    told: list[int] = []

    class Silent:
        def __init__(self, number: int) -> None:
            self.number = number

        def invoke_oneway(self, request: RemotingCommand) -> None:
            assert request.fields == {"consumerGroup": "G"}
            told.append(self.number)

    await live.peer.heartbeat("G", {"T": "*"})
    group = live.broker.parts.consumers.get("G")
    group.clients.clear()
    count = 5 * TOLD_A_TURN
    notify = live.broker.processors.clients.notify_group
    for number in range(count):
        channel: Any = Silent(number)
        group.clients[channel] = ClientInfo(channel, f"c{number}", "JAVA", 1, 0)
        notify("G")
    # While the group was small each change was told at once.
    small = TOLD_A_TURN * (TOLD_A_TURN + 1) // 2
    assert len(told) == small
    turns = [len(told)]
    while turns[-1] < small + count:
        await asyncio.sleep(0)
        turns.append(len(told))
    assert max(b - a for a, b in pairwise(turns)) <= TOLD_A_TURN
    assert sorted(told[small:]) == list(range(count))
    group.clients.clear()
