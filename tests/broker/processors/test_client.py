"""Heartbeats, leaving, silence, and who hears of it; over sockets."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, cast

import pytest

from oberth.broker.clients import CLIENT_ID_LENGTH_MAX, ClientInfo
from oberth.broker.consumers import ConsumerGroup, ConsumerTable
from oberth.broker.processors import client as client_module
from oberth.broker.processors.client import TOLD_A_TURN
from oberth.broker.processors.consumer import IDS_A_TURN
from oberth.remoting.aio.processors import ProcessorTable, Slices
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


async def test_long_client_ids_and_languages_are_not_taken(live: Any) -> None:
    """Nothing that a client says of itself once for all of its groups is long."""
    groups = {"producerDataSet": [{"groupName": "P"}]}
    channel = await live.peer.channel()
    for length, code in ((CLIENT_ID_LENGTH_MAX + 1, 1), (CLIENT_ID_LENGTH_MAX, 0)):
        body = json.dumps({"clientID": "\1" * length, **groups}).encode()
        request = RemotingCommand(code=34, body=body, language="L" * 100_000, version=479)
        response = await channel.invoke(request, 8.0)
        assert response.code == code
        said = "clientID of 1025 characters, allowed 1024"
        assert (said in str(response.remark)) is (code == 1)
        assert live.broker.parts.producers.has_clients("P") is (code == 0)
    (client,) = live.broker.parts.producers.clients("P")
    assert (len(client.client_id), client.language) == (CLIENT_ID_LENGTH_MAX, "OTHER")


async def test_members_are_listed(live: Any) -> None:
    assert (await live.peer.call(38, {"consumerGroup": "G"})).code == 1
    await live.peer.heartbeat("G", {"T": "*"}, client_id="one")
    other = live.another()
    await other.heartbeat("G", {"T": "*"}, client_id="two")
    response = await live.peer.call(38, {"consumerGroup": "G"})
    assert json.loads(response.body_bytes()) == {"consumerIdList": ["one", "two"]}


async def test_members_of_most_groups_are_listed_at_once(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them ask when one comes or goes, and Java's clients wait 3 s for it."""
    await live.peer.heartbeat("G", {"T": "*"})
    sliced = []
    start = Slices.start

    def noted(
        slices: Slices, channel: Any, request: RemotingCommand, handler: Any, *, lasts: bool
    ) -> None:
        sliced.append(request.code)
        start(slices, channel, request, handler, lasts=lasts)

    monkeypatch.setattr(Slices, "start", noted)
    for count, is_sliced in ((IDS_A_TURN, False), (IDS_A_TURN + 1, True)):
        ids = [f"192.0.2.1@{number}" for number in range(count)]
        monkeypatch.setattr(ConsumerGroup, "client_ids", lambda _, ids=ids: ids)
        response = await live.peer.call(38, {"consumerGroup": "G"})
        assert json.loads(response.body_bytes()) == {"consumerIdList": ids}
        assert (38 in sliced) is is_sliced


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


def registrations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups of heartbeats that were worked through, from now on."""
    found: list[str] = []
    register = ConsumerTable.register

    def noted(self: ConsumerTable, group: str, *arguments: Any, **more: Any) -> bool:
        found.append(group)
        return register(self, group, *arguments, **more)

    monkeypatch.setattr(ConsumerTable, "register", noted)
    return found


async def test_the_same_heartbeat_is_known_and_counts(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked = registrations(monkeypatch)
    first = await live.peer.heartbeat("G", {"T": "*", "U": "a || b"}, producers=("P",))
    live.clock.ahead_ms += 30_000
    again = await live.peer.heartbeat("G", {"T": "*", "U": "a || b"}, producers=("P",))
    assert worked == ["G"]
    assert (again.code, again.opaque) == (0, first.opaque + 1)
    assert again.fields == {**first.fields, "IS_SUB_CHANGE": "false"}
    now_ms = live.clock()
    parts = live.broker.parts
    group = parts.consumers.get("G")
    (client,) = group.clients.values()
    (producer,) = parts.producers.clients("P")
    times = [group, client, producer, *group.subscriptions.values()]
    assert [each.last_update_ms for each in times] == [now_ms] * 5
    await live.peer.heartbeat("G", {"T": "*"}, producers=("P",))
    assert worked == ["G", "G"]


@pytest.mark.parametrize(
    "change",
    ["subscription", "version", "expression", "member", "left", "retry topic", "setting", "model"],
)
async def test_the_same_heartbeat_is_worked_through_where_anything_changed(
    live: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async def beats() -> RemotingCommand:
        return cast(RemotingCommand, await live.peer.heartbeat("G", {"T": "*"}, client_id="one"))

    await beats()
    other, parts = live.another(), live.broker.parts
    match change:
        case "subscription":
            await other.heartbeat("G", {"T": "*", "U": "*"}, client_id="two")
        case "version":
            await other.heartbeat("G", {"T": "a"}, client_id="two", sub_version=9)
        case "expression":
            wanted = {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}
            entry = {"groupName": "G", "subscriptionDataSet": [wanted]}
            body = json.dumps({"clientID": "two", "consumerDataSet": [entry]})
            assert (await other.call(34, {}, body.encode())).code == 0
        case "member":
            parts.consumers.unregister("G", next(iter(parts.consumers.get("G").clients)))
        case "left":
            await live.peer.call(35, {"clientID": "one", "consumerGroup": "G"})
        case "retry topic":
            await live.peer.call(215, {"topic": "%RETRY%G"})
            assert "%RETRY%G" not in parts.topics
        case "setting":
            parts.config.reject_pull_consumer_enable = True
        case "model":
            await other.heartbeat("G", {"T": "*"}, client_id="two", model="BROADCASTING")
    worked = registrations(monkeypatch)
    answer = await beats()
    assert worked == ["G"]
    assert answer.fields["IS_SUB_CHANGE"] == (
        "true" if change in ("subscription", "member", "left") else "false"
    )
    assert "%RETRY%G" in parts.topics
    await beats()
    assert len(worked) == (2 if change == "setting" else 1)


async def test_heartbeats_are_kept_up_to_a_size_and_go_with_their_connection(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = live.broker.processors.clients
    monkeypatch.setattr(client_module, "KEPT_BYTES_MAX", 2200)
    peers = [live.another() for _ in range(4)]
    for number, peer in enumerate(peers):
        await peer.heartbeat("G", {"T": "*"}, client_id=f"client-{number}")
    assert 0 < clients._kept_bytes <= 2200
    kept = [json.loads(each.body)["clientID"] for each in clients._kept.values()]
    assert kept == ["client-2", "client-3"]
    # One that is too long is not kept, and neither is the one before it.
    await peers[3].heartbeat("G", {"T" * 100 + str(n): "*" for n in range(40)})
    assert len(clients._kept) == 1
    await peers[2].client.aclose()
    await live.until(lambda: not clients._kept)
    assert clients._kept_bytes == 0
