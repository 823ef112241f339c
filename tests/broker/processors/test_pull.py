"""Pulls over a socket: every code with its four fields, holding, waking, resets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from oberth.remoting.command import RemotingCommand

FOUR = {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}


def bodies(response: RemotingCommand) -> list[bytes]:
    from oberth.formats.message import decode_record

    data, at, found = response.body_bytes(), 0, []
    while at < len(data):
        message = decode_record(data, at)
        found.append(message.body)
        at += message.record_size
    return found


async def held(live: Any, topic: str, offset: int, **more: str) -> asyncio.Future[RemotingCommand]:
    """A pull that the broker holds."""
    before = len(live.broker.parts.hold)
    fields = {"sysFlag": "6", "suspendTimeoutMillis": "15000", **more}
    channel = await live.peer.channel()
    request = RemotingCommand(code=11, ext_fields=live.peer.pull_fields(topic, offset, **fields))
    future = channel.invoke_nowait(request, 100.0)
    await live.until(lambda: len(live.broker.parts.hold) == before + 1)
    result: asyncio.Future[RemotingCommand] = future
    return result


async def test_found(live: Any) -> None:
    for n in range(5):
        await live.peer.send("T", str(n).encode())
    response = await live.peer.pull("T", 1, maxMsgNums="2")
    assert response.code == 0
    assert response.remark == "FOUND"
    assert set(response.fields) >= FOUR
    assert response.fields["nextBeginOffset"] == "3"
    assert (response.fields["minOffset"], response.fields["maxOffset"]) == ("0", "5")
    assert bodies(response) == [b"1", b"2"]
    assert (await live.peer.call(361, live.peer.pull_fields("T", 0))).code == 0


@pytest.mark.parametrize(
    ("offset", "code", "remark", "following"),
    [
        (5, 19, "OFFSET_OVERFLOW_ONE", "5"),
        (6, 21, "OFFSET_OVERFLOW_BADLY", "5"),
        (-1, 21, "OFFSET_TOO_SMALL", "0"),
    ],
)
async def test_outside(live: Any, offset: int, code: int, remark: str, following: str) -> None:
    for _ in range(5):
        await live.peer.send("T")
    response = await live.peer.pull("T", offset)
    assert (response.code, response.remark) == (code, remark)
    assert response.fields["nextBeginOffset"] == following
    assert set(response.fields) >= FOUR
    assert not response.body


async def test_an_empty_queue(live: Any) -> None:
    await live.peer.send("T")
    assert (await live.peer.pull("T", 0, 3)).code == 19
    assert (await live.peer.pull("T", 7, 3)).code == 21


async def test_tags_that_match_nothing_go_on_behind(live: Any) -> None:
    for _ in range(5):
        await live.peer.send("T", b"x", 0, {"TAGS": "A"})
    response = await live.peer.pull("T", 0, subscription="B || C")
    assert (response.code, response.remark) == (20, "NO_MATCHED_MESSAGE")
    assert response.fields["nextBeginOffset"] == "5"
    await live.peer.send("T", b"b", 0, {"TAGS": "B"})
    assert bodies(await live.peer.pull("T", 0, subscription="B || C")) == [b"b"]


async def test_the_heartbeats_subscription_counts_without_one_in_the_header(live: Any) -> None:
    await live.peer.send("T", b"a", 0, {"TAGS": "A"})
    await live.peer.send("T", b"b", 0, {"TAGS": "B"})
    assert (await live.peer.pull("T", 0, sysFlag="0")).code == 24
    await live.peer.heartbeat("G", {"T": "B"}, sub_version=5)
    assert bodies(await live.peer.pull("T", 0, sysFlag="0")) == [b"b"]
    await live.peer.send("U")
    assert (await live.peer.pull("U", 0, sysFlag="0")).code == 24


async def test_a_pull_whose_newer_version_came_by_no_heartbeat_yet_is_served(live: Any) -> None:
    for tag in "AB":
        await live.peer.send("T", tag.encode(), 0, {"TAGS": tag})
    await live.peer.heartbeat("G", {"T": "B"}, sub_version=5)

    async def pull(**more: str) -> Any:
        fields = live.peer.pull_fields("T", 0, sysFlag="0", subVersion="6", **more)
        return await live.peer.call(11, {name: text for name, text in fields.items() if text})

    # As Java's push consumer pulls: it names no expression, and compares tags itself.
    unnamed = await pull(subscription="")
    assert bodies(unnamed) == [b"A", b"B"]
    # One that is named counts, the same or another.
    assert bodies(await pull(subscription="B", expressionType="TAG")) == [b"B"]
    assert bodies(await pull(subscription="A || C")) == [b"A"]
    assert (await pull(subscription=" || ")).code == 23
    # What the broker alone can judge is not guessed.
    assert (await pull(subscription="a > 1", expressionType="SQL92")).code == 25
    await live.peer.heartbeat("G", {"T": "A"}, sub_version=6)
    assert bodies(await pull(subscription="")) == [b"A"]


async def test_an_sql_expression_that_is_not_known_to_be_the_same_is_waited_for(
    make_live: Any,
) -> None:
    live = await make_live(enablePropertyFilter="true", autoCreateTopicEnable="true")
    await live.peer.send("T", b"1", 0, {"n": "1"})
    await live.peer.send("T", b"2", 0, {"n": "2"})
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "G",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {
                        "topic": "T",
                        "subString": "n > 1",
                        "expressionType": "SQL92",
                        "subVersion": 5,
                    }
                ],
            }
        ],
    }
    assert (await live.peer.call(34, {}, json.dumps(body).encode())).code == 0

    async def pull(text: str) -> Any:
        fields = live.peer.pull_fields("T", 0, sysFlag="0", subVersion="6", expressionType="SQL92")
        fields["subscription"] = text
        return await live.peer.call(11, {name: text for name, text in fields.items() if text})

    assert bodies(await pull("n > 1")) == [b"2"]
    assert (await pull("n > 0")).code == 25
    assert (await pull("")).code == 25


@pytest.mark.parametrize(
    ("more", "code", "remark"),
    [
        ({"topic": "Nowhere"}, 17, "topic[Nowhere] not exist"),
        ({"queueId": "4"}, 29, "queueId[4] is illegal"),
        ({"queueId": "-1"}, 29, "illegal"),
        ({"consumerGroup": "bad group"}, 26, "does not exist"),
        ({"subscription": " || "}, 23, "parse"),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, 1, "SQL92"),
    ],
)
async def test_refusals(live: Any, more: dict[str, str], code: int, remark: str) -> None:
    await live.peer.send("T")
    response = await live.peer.call(11, {**live.peer.pull_fields("T", 0), **more})
    assert response.code == code
    assert remark in (response.remark or "")


async def test_permissions(make_live: Any) -> None:
    live = await make_live(litePullMessageEnable="false")
    await live.peer.send("T")
    assert (await live.peer.call(361, live.peer.pull_fields("T", 0))).code == 16
    group = live.broker.parts.groups.find("G")
    group.consume_enable = False
    response = await live.peer.pull("T", 0)
    assert (response.code, response.fields["forbiddenType"]) == (16, "2")
    group.consume_enable = True
    live.broker.parts.topics.get("T").perm = 2
    response = await live.peer.pull("T", 0)
    assert (response.code, response.fields["forbiddenType"]) == (16, "3")
    live.broker.parts.topics.get("T").perm = 6
    await live.peer.heartbeat("G", {"T": "*"}, model="BROADCASTING")
    group.consume_broadcast_enable = False
    response = await live.peer.pull("T", 0, sysFlag="0")
    assert (response.code, response.fields["forbiddenType"]) == (16, "4")
    group.consume_broadcast_enable = True
    live.broker.parts.groups.set_readable("G", "T", False)
    response = await live.peer.pull("T", 0, sysFlag="0")
    assert (response.code, response.fields["forbiddenType"]) == (16, "5")


async def test_a_header_without_a_queue_is_code_1(live: Any) -> None:
    response = await live.peer.call(11, {"topic": "T", "consumerGroup": "G"})
    assert response.code == 1
    assert "queueId" in (response.remark or "")


async def test_a_pull_commits_once(live: Any) -> None:
    await live.peer.send("T")
    await live.peer.pull("T", 0, sysFlag="5", commitOffset="1")
    assert live.broker.parts.offsets.query("G", "T", 0) == 1
    assert live.broker.parts.offsets.query_pull("G", "T", 0) == 1


async def test_an_arrival_wakes_a_held_pull_at_once(live: Any) -> None:
    await live.peer.send("T")
    waits = await held(live, "T", 1)
    await live.peer.send("T", b"new")
    response = await waits  # the end of the hold would not come: the clock stands still
    assert bodies(response) == [b"new"]
    assert len(live.broker.parts.hold) == 0


async def test_an_arrival_of_another_tag_or_queue_does_not_wake(live: Any) -> None:
    await live.peer.send("T", b"x", 0, {"TAGS": "A"})
    waits = await held(live, "T", 1, subscription="A")
    await live.peer.send("T", b"b", 0, {"TAGS": "B"})
    await live.peer.send("T", b"a", 1, {"TAGS": "A"})
    await live.peer.read("T")
    assert not waits.done()
    await live.peer.send("T", b"a", 0, {"TAGS": "A"})
    assert bodies(await waits) == [b"a"]


async def test_the_end_of_a_hold_is_not_found(live: Any) -> None:
    await live.peer.send("T")
    waits = await held(live, "T", 1)
    await live.later(14_000)
    assert not waits.done()
    await live.later(1_200)
    response = await waits
    assert (response.code, response.fields["nextBeginOffset"]) == (19, "1")


async def test_short_polling_holds_for_its_own_time(make_live: Any) -> None:
    live = await make_live(longPollingEnable="false", shortPollingTimeMills="300")
    await live.peer.send("T")
    waits = await held(live, "T", 1)
    await live.later(500)
    assert (await waits).code == 19


async def test_delivery_of_a_delayed_message_wakes(live: Any) -> None:
    await live.peer.send("T")
    waits = await held(live, "T", 1)
    await live.peer.send("T", b"later", 0, {"DELAY": "1"})
    await live.later(1_000)
    assert bodies(await waits) == [b"later"]


async def test_sync_flush_wakes_when_the_disk_has_it(make_live: Any) -> None:
    live = await make_live(flushDiskType="SYNC_FLUSH")
    await live.peer.send("T")
    waits = await held(live, "T", 1)
    await live.peer.send("T", b"new")
    assert bodies(await waits) == [b"new"]


async def test_a_reset_answers_the_next_pull_and_a_held_one(live: Any) -> None:
    for _ in range(3):
        await live.peer.send("T")
    live.broker.parts.groups.find("G")
    waits = await held(live, "T", 3)
    fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    assert (await live.peer.call(222, fields)).code == 0
    response = await waits
    assert (response.code, response.remark) == (21, "OFFSET_RESET")
    assert response.fields["nextBeginOffset"] == "0"
    assert len(bodies(await live.peer.pull("T", 0))) == 3
    assert (await live.peer.pull("T", 0, 1)).remark == "OFFSET_RESET"


async def test_a_deleted_topic_answers_who_waits(live: Any) -> None:
    await live.peer.send("T")
    waits = await held(live, "T", 1)
    assert (await live.peer.call(215, {"topic": "T"})).code == 0
    assert (await waits).code == 17


async def test_closing_answers_held_pulls(make_live: Any) -> None:
    live = await make_live()
    await live.peer.send("T")
    waits = await held(live, "T", 1)
    stopping = asyncio.create_task(live.broker.aclose())
    assert (await waits).code == 19
    await stopping


async def test_a_closed_connection_is_no_longer_held_for(live: Any) -> None:
    await live.peer.send("T")
    other = live.another()
    await other.call(38, {"consumerGroup": "G"})
    channel = await other.channel()
    request = RemotingCommand(
        code=11,
        ext_fields=other.pull_fields("T", 1, sysFlag="6", suspendTimeoutMillis="15000"),
    )
    future = channel.invoke_nowait(request, 100.0)
    await live.until(lambda: len(live.broker.parts.hold) == 1)
    await other.client.aclose()
    await live.until(lambda: len(live.broker.parts.hold) == 0)
    future.exception() if future.done() else future.cancel()


async def test_a_large_answer_comes_whole(live: Any) -> None:
    body = b"x" * 100_000
    for _ in range(20):
        await live.peer.send("T", body)
    messages = await live.peer.read("T")
    assert [message.body for message in messages] == [body] * 20
