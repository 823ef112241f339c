"""Offsets, queue offsets and locks over a socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from oberth.broker.acl.access_control import AccessControl, _GuardedTable
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand

KEY = {"consumerGroup": "G", "topic": "T", "queueId": "0"}


async def test_a_young_topic_starts_at_zero(live: Any) -> None:
    assert (await live.peer.call(14, KEY)).code == 22  # no topic yet
    await live.peer.send("T")
    response = await live.peer.call(14, KEY)
    assert (response.code, response.fields) == (0, {"offset": "0"})
    response = await live.peer.call(14, {**KEY, "setZeroIfNotFound": "false"})
    assert response.code == 22
    # Nor does a new group skip what arrives between this question and the next, for the end.
    assert (await live.peer.call(14, {**KEY, "queueId": "3"})).fields == {"offset": "0"}
    empty = {**KEY, "queueId": "3", "setZeroIfNotFound": "false"}
    assert (await live.peer.call(14, empty)).code == 22
    assert (await live.peer.call(14, {**KEY, "queueId": "4"})).code == 22


async def test_a_commit_is_kept_and_may_go_back(live: Any) -> None:
    await live.peer.send("T")
    await live.peer.heartbeat("G", {"T": "*"})
    for offset in ("9", "4"):
        response = await live.peer.call(15, {**KEY, "commitOffset": offset})
        assert response.code == 0
        assert (await live.peer.call(14, KEY)).fields["offset"] == offset
    await live.restart()
    assert live.broker.parts.offsets.query("G", "T", 0) == 1  # never behind the queue's end


async def test_commits_survive_a_restart(live: Any) -> None:
    for _ in range(5):
        await live.peer.send("T")
    await live.peer.call(15, {**KEY, "commitOffset": "3"})
    await live.restart()
    assert (await live.peer.call(14, KEY)).fields["offset"] == "3"


async def test_commits_to_what_is_unknown(make_live: Any) -> None:
    live = await make_live(autoCreateSubscriptionGroup="false")
    assert (await live.peer.call(15, {**KEY, "commitOffset": "1"})).code == 17
    await live.peer.send("T")
    assert (await live.peer.call(15, {**KEY, "commitOffset": "1"})).code == 26


async def test_of_queues_that_a_topic_cannot_have_nothing_is_kept(live: Any) -> None:
    await live.peer.send("T")
    for queue_id in ("-1", "4", str(2**31 - 1)):
        answer = await live.peer.call(15, {**KEY, "queueId": queue_id, "commitOffset": "1"})
        assert answer.code == 1
        assert f"has no queue {queue_id}" in str(answer.remark)
    parts = live.broker.parts
    assert not parts.offsets.queues("G", "T")
    assert "G" not in parts.groups
    topic_config = replace(parts.topics.get("T"), read_queue_nums=1, write_queue_nums=1)
    await live.peer.send("T", queue_id=3)
    parts.topics.update(topic_config)
    live.broker.services.dispatching.now()
    assert (await live.peer.call(15, {**KEY, "queueId": "3", "commitOffset": "1"})).code == 0
    assert (await live.peer.call(15, {**KEY, "queueId": "2", "commitOffset": "1"})).code == 1


async def test_a_commit_during_a_reset_has_no_effect(live: Any) -> None:
    await live.peer.send("T")
    live.broker.parts.groups.find("G")
    live.broker.parts.offsets.assign_reset("G", "T", 0, 0, 1)
    response = await live.peer.call(15, {**KEY, "commitOffset": "1"})
    assert (response.code, response.remark) == (0, "Offset has been previously reset")
    assert live.broker.parts.offsets.query("G", "T", 0) == 0


async def test_queue_offsets(live: Any) -> None:
    queue = {"topic": "T", "queueId": "0"}
    assert (await live.peer.call(30, queue)).fields == {"offset": "0"}
    assert (await live.peer.call(31, queue)).fields == {"offset": "0"}
    for _ in range(3):
        await live.peer.send("T")
    assert (await live.peer.call(30, queue)).fields == {"offset": "3"}
    first = (await live.peer.read("T"))[0]
    response = await live.peer.call(32, queue)
    assert response.fields == {"timestamp": str(first.store_timestamp)}


async def test_only_an_empty_batch_queue_has_no_first_offset(live: Any) -> None:
    fields = {
        "topic": "B", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    assert (await live.peer.call(17, fields)).code == 0
    assert (await live.peer.call(31, {"topic": "B", "queueId": "0"})).fields == {"offset": "-1"}
    assert (await live.peer.call(30, {"topic": "B", "queueId": "0"})).fields == {"offset": "0"}
    await live.peer.send("B")
    assert (await live.peer.call(31, {"topic": "B", "queueId": "0"})).fields == {"offset": "0"}


@pytest.mark.parametrize(
    ("boundary", "ahead_ms", "expected"),
    [("LOWER", -(10**9), "0"), ("LOWER", 10**9, "3"), ("UPPER", 10**9, "2")],
)
async def test_search_by_time(live: Any, boundary: str, ahead_ms: int, expected: str) -> None:
    for _ in range(3):
        await live.peer.send("T")
    fields = {
        "topic": "T",
        "queueId": "0",
        "timestamp": str(live.broker.parts.now_ms() + ahead_ms),
        "boundaryType": boundary,
    }
    assert (await live.peer.call(29, fields)).fields == {"offset": expected}


async def test_locks(live: Any) -> None:
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}

    def body(client: str) -> bytes:
        return json.dumps(
            {"consumerGroup": "G", "clientId": client, "mqSet": [queue], "onlyThisBroker": False}
        ).encode()

    response = await live.peer.call(41, None, body("one"))
    assert json.loads(response.body_bytes()) == {"lockOKMQSet": [queue]}
    response = await live.peer.call(41, None, body("two"))
    assert (response.code, json.loads(response.body_bytes())) == (0, {"lockOKMQSet": []})
    assert (await live.peer.call(42, None, body("one"))).code == 0
    response = await live.peer.call(41, None, body("two"))
    assert json.loads(response.body_bytes()) == {"lockOKMQSet": [queue]}


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_last_words_are_heard_although_the_connection_has_closed(
    make_live: Any, is_guarded: bool
) -> None:
    """A consumer that shuts down commits and gives its locks back, one-way, and closes."""
    live = await make_live()
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}

    def body(client: str) -> bytes:
        return json.dumps({"consumerGroup": "G", "clientId": client, "mqSet": [queue]}).encode()

    def oneway(code: int, fields: dict[str, str] | None, data: bytes = b"") -> RemotingCommand:
        return RemotingCommand(code=code, flag=ONEWAY_FLAG, ext_fields=fields, body=data)

    for _ in range(5):
        await live.peer.send("T")
    assert (await live.peer.call(41, None, body("one"))).code == 0
    table = live.broker.services.processors
    if is_guarded:
        access: Any = AccessControl.__new__(AccessControl)
        access.admitted = lambda channel, requests, until: (requests, len(requests))
        table = _GuardedTable(table, access)
    (channel,) = live.broker.server.channels
    heartbeat = {"clientID": "c", "producerDataSet": [{"groupName": "P"}]}
    table._put_off.add(
        channel,
        [
            oneway(34, None, json.dumps(heartbeat).encode()),
            oneway(15, {**KEY, "commitOffset": "3"}),
            oneway(42, None, body("one")),
        ],
    )
    channel.abort()
    while table.has_put_off(channel):  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0)
    other = live.another()
    assert (await other.call(14, KEY)).fields["offset"] == "3"
    response = await other.call(41, None, body("two"))
    assert json.loads(response.body_bytes()) == {"lockOKMQSet": [queue]}
    # Nothing is kept by the channel that has gone.
    assert not live.broker.parts.producers.has_clients("P")


async def test_lock_bodies_that_are_none(live: Any) -> None:
    for body in (b"{}", b"7", b'{"consumerGroup":"G","clientId":"c","mqSet":[3]}'):
        assert (await live.peer.call(41, {}, body)).code == 1
