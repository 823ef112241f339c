"""29001 and 29002 of a live broker: what would go, purges, refusals, and reserve.time set by 17."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from oberth.broker.processors import retention
from oberth.formats.config_json import encode_config
from oberth.remoting.code import RequestCode, ResponseCode

HOUR_MS = 3_600_000


async def purge(live: Any, topic: str = "T", **fields: str) -> Any:
    return await live.peer.call(RequestCode.OBERTH_PURGE_TOPIC, {"topic": topic, **fields})


async def fill(live: Any, count: int = 10, topic: str = "T") -> None:
    for number in range(count):
        assert (await live.peer.send(topic, f"m{number}".encode())).code == 0


async def commit(live: Any, group: str, offset: int, topic: str = "T") -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    assert (await live.peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


async def bodies(live: Any, topic: str = "T") -> list[bytes]:
    low = (
        await live.peer.call(RequestCode.GET_MIN_OFFSET, {"topic": topic, "queueId": "0"})
    ).fields
    return [each.body for each in await live.peer.read(topic, 0, int(low["offset"]))]


async def test_a_purge_waits_for_consumers_unless_forced(live: Any) -> None:
    await fill(live)
    await commit(live, "done", 8)
    await commit(live, "behind", 3)
    refused = await purge(live, queueId="0", offset="6")
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert "behind" in (refused.remark or "")
    assert "done" not in (refused.remark or "")
    plan = json.loads((await purge(live, queueId="0", offset="6", dryRun="true")).body_bytes())
    assert plan["unread"] == [{"group": "behind", "messages": 3, "queueId": 0}]
    assert len(await bodies(live)) == 10, "nothing was done yet"
    done = await purge(live, queueId="0", offset="3")
    assert json.loads(done.body_bytes())["queues"] == [
        {"minOffset": 0, "minOffsetAfter": 3, "queueId": 0}
    ]
    assert (await purge(live, queueId="0", offset="6", force="true")).code == 0
    assert await bodies(live) == [b"m6", b"m7", b"m8", b"m9"]
    moved = await live.peer.pull("T", 2)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert moved.fields["nextBeginOffset"] == "6"
    await live.restart()
    assert await bodies(live) == [b"m6", b"m7", b"m8", b"m9"]


async def test_a_purge_by_time_and_what_can_no_longer_be_asked_for(live: Any) -> None:
    await fill(live, 4)
    offset_of_first = live.broker.parts.store.consume_queue_unit("T", 0, 0).commit_log_offset
    live.clock.ahead_ms += HOUR_MS
    await fill(live, 2)
    now = live.broker.parts.now_ms()
    assert (await purge(live, timestamp=str(now - HOUR_MS // 2))).code == 0
    assert await bodies(live) == [b"m0", b"m1"]
    view = {"offset": str(offset_of_first)}
    assert (await live.peer.call(RequestCode.VIEW_MESSAGE_BY_ID, view)).code != 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"offset": "1"}, ResponseCode.INVALID_PARAMETER),
        ({"timestamp": "1", "queueId": "0", "offset": "1"}, ResponseCode.INVALID_PARAMETER),
        ({"timestamp": "1", "topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"timestamp": "1", "topic": "../T"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"timestamp": "1", "topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.INVALID_PARAMETER),
        ({"timestamp": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_what_is_refused(live: Any, fields: dict[str, str], code: int) -> None:
    await fill(live, 2)
    answer = await live.peer.call(RequestCode.OBERTH_PURGE_TOPIC, {"topic": "T", **fields})
    assert answer.code == code, answer.remark
    assert len(await bodies(live)) == 2


async def test_numbers_out_of_range_purge_nothing_more(live: Any) -> None:
    await fill(live, 3)
    for offset in ("-9223372036854775808", "-1", "0"):
        assert (await purge(live, queueId="0", offset=offset)).code == 0
        assert len(await bodies(live)) == 3
    assert (await purge(live, queueId="77", offset="3")).code == 0
    assert (await purge(live, queueId="0", offset="9223372036854775807")).code == 0
    assert await bodies(live) == []
    await fill(live, 1)
    assert await bodies(live) == [b"m0"]


async def test_reserve_time_is_an_attribute_of_the_topic(live: Any) -> None:
    fields = {
        "topic": "Short", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        "attributes": "+reserve.time=2",
    }  # fmt: skip
    assert (await live.peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    await fill(live, 3, "Short")
    await commit(live, "slow", 1, "Short")
    live.clock.ahead_ms += 3 * HOUR_MS
    await fill(live, 1, "Short")
    answer = await live.peer.call(RequestCode.OBERTH_GET_RETENTION)
    report = json.loads(answer.body_bytes())
    (leaving,) = report["queues"]
    assert (leaving["topic"], leaving["messages"], leaving["because"]) == (
        "Short",
        3,
        "reserve.time",
    )
    assert [each["group"] for each in report["unread"]] == ["slow"]
    assert report["allConsumed"] is False
    live.broker.parts.store.cleaning.run()
    assert await bodies(live, "Short") == [b"m0"]
    report = json.loads((await live.peer.call(RequestCode.OBERTH_GET_RETENTION)).body_bytes())
    assert report["queues"] == []


async def short_lived(live: Any, count: int) -> None:
    """Messages of the topic Short whose time is over, and one that stays."""
    fields = {
        "topic": "Short", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        "attributes": "+reserve.time=2",
    }  # fmt: skip
    assert (await live.peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    await fill(live, count, "Short")
    live.clock.ahead_ms += 3 * HOUR_MS
    await fill(live, 1, "Short")


def plain(body: bytes) -> bytes:
    return encode_config(json.loads(body), pretty=False)


async def test_offsets_are_looked_up_one_request_at_a_time_beside_the_loop(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 64 at once had a list of all pairs: 90 MB of 200 000, made on the loop in 100 ms."""
    await short_lived(live, 3)
    offsets = live.broker.parts.offsets
    for number in range(20):
        offsets.commit(f"g{number}", "Short", 0, 1, 1)
        offsets.commit(f"g{number}", "T", 0, 1, 1)
    original = type(offsets).among
    lists: list[list[str]] = []
    at_work: set[int] = set()
    most = 0

    def among(table: Any, keys: Iterable[str]) -> Iterator[Any]:
        nonlocal most
        assert threading.current_thread() is not threading.main_thread()
        assert isinstance(keys, list)
        lists.append(keys)
        at_work.add(id(keys))
        most = max(most, len(at_work))
        yield from original(table, keys)
        at_work.remove(id(keys))

    gathered: set[str] = set()

    def gather(table: Any, topics: Iterable[str]) -> Any:
        nonlocal most
        assert not at_work
        gathered.update(topics)
        return keys_of_topics(table, topics)

    keys_of_topics = type(offsets).keys_of_topics_in_slices
    monkeypatch.setattr(type(offsets), "among", among)
    monkeypatch.setattr(type(offsets), "keys_of_topics_in_slices", gather)
    plan = {"topic": "Short", "queueId": "0", "offset": "2", "dryRun": "true"}
    answers = await asyncio.gather(
        *(live.peer.call(RequestCode.OBERTH_GET_RETENTION) for _ in range(8)),
        *(live.peer.call(RequestCode.OBERTH_PURGE_TOPIC, plan) for _ in range(8)),
    )
    assert [answer.code for answer in answers] == [0] * 16
    assert (most, len(lists), gathered) == (1, 16, {"Short"})
    assert all(len(keys) == 20 for keys in lists)
    for answer in answers:
        body = answer.body_bytes()
        assert plain(body) == body
        assert len(json.loads(body)["unread"]) == 20


async def test_so_much_that_was_not_consumed_is_shown(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a million groups and a wide topic no frame could hold what they have not consumed."""
    monkeypatch.setattr(retention, "UNREAD_MAX", 3)
    await short_lived(live, 4)
    for number in range(3):
        await commit(live, f"g{number}", 1, "Short")
    answer = await live.peer.call(RequestCode.OBERTH_GET_RETENTION)
    assert len(json.loads(answer.body_bytes())["unread"]) == 3
    for number in range(3, 6):
        await commit(live, f"g{number}", 1, "Short")
    answer = await live.peer.call(RequestCode.OBERTH_GET_RETENTION)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "more than 3 queues" in (answer.remark or "")
    refused = await purge(live, "Short", queueId="0", offset="4")
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert "g0, g1, g2" in (refused.remark or "")
    for how in ("dryRun", "force"):
        answer = await purge(live, "Short", queueId="0", offset="4", **{how: "true"})
        assert [each["group"] for each in json.loads(answer.body_bytes())["unread"]] == [
            "g0", "g1", "g2",
        ]  # fmt: skip
    assert await bodies(live, "Short") == [b"m0"]
