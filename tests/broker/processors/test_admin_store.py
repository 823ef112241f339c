"""Commands about how the store is read, about replicas and about what this broker does not have."""

from __future__ import annotations

import asyncio
import json
import mmap
from typing import Any

import pytest

from oberth.broker.cold_reads import PERIOD_MS


def body_of(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(response.body_bytes())
    return found


async def test_cold_reads_are_limited_by_group(make_live: Any) -> None:
    # Nothing counts as young: every pull is a cold one.
    live = await make_live(
        coldDataFlowControlEnable="true",
        accessMessageInMemoryMaxRatio="0",
        cgColdReadThreshold="100",
    )
    await live.peer.send("T", b"x" * 200)
    first = await live.peer.pull("T", 0, sysFlag="6", suspendTimeoutMillis="20000")
    assert first.code == 0
    second = asyncio.ensure_future(
        live.peer.pull("T", 0, sysFlag="6", suspendTimeoutMillis="20000")
    )
    await live.until(lambda: len(live.broker.parts.hold) == 1)
    await live.peer.send("T", b"an arrival does not end the wait")
    assert not second.done()
    shown = body_of(await live.peer.call(2003))
    assert list(shown["runtimeTable"]) == ["G"]
    assert shown["globalAcc"] > 200
    await live.later(PERIOD_MS + 200)
    assert (await second).code == 0


async def test_thresholds_come_and_go(live: Any) -> None:
    call = live.peer.call
    assert (await call(2001, {}, b"G=2048\nBad=many\nWorse=1e99\n")).code == 0
    shown = body_of(await call(2003))
    assert shown["configTable"] == {"G": 2048}
    assert shown["cgColdReadThreshold"] == 3 << 20
    assert (await call(2002, {}, b"G")).code == 0
    assert body_of(await call(2003))["configTable"] == {}
    assert (await call(2002)).code == 1


async def test_the_log_is_read_ahead_or_not(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await live.peer.send("T", b"x")
    given: list[int] = []
    segment = live.broker.parts.store.commit_log.queue.segments[0]
    monkeypatch.setattr(type(segment), "advise", lambda _self, advice: given.append(advice))
    call = live.peer.call
    answer = await call(2004, {"READ_AHEAD_MODE": "1"})
    assert (answer.code, answer.remark) == (0, "set commitlog readahead mode success, mode: 1")
    assert given == [mmap.MADV_RANDOM]
    assert live.broker.parts.store_config.data_read_ahead_enable is False
    assert (await call(2004, {"READ_AHEAD_MODE": "0"})).code == 0
    assert given == [mmap.MADV_RANDOM, mmap.MADV_NORMAL]
    assert (await call(2004, {"READ_AHEAD_MODE": "2"})).code == 29
    assert (await call(2004)).code == 1


async def test_segments_that_come_later_are_read_the_same_way(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oberth.store.mapped_file import MappedFile

    given: list[int] = []
    monkeypatch.setattr(MappedFile, "advise", lambda _self, advice: given.append(advice))
    live = await make_live(dataReadAheadEnable="false")
    await live.peer.send("T", b"x")
    assert given == [mmap.MADV_RANDOM]
    await live.restart()
    assert given == [mmap.MADV_RANDOM] * 2


async def test_there_is_one_timer_engine(make_live: Any) -> None:
    live = await make_live(timerStopEnqueue="true")
    call = live.peer.call
    assert (await call(5001, {"E_T": "R"})).code == 29
    assert (await call(5001, {"E_T": "X"})).code == 29
    assert (await call(5001)).code == 29
    assert live.broker.parts.store_config.timer_stop_enqueue
    assert (await call(5001, {"E_T": "F"})).code == 0
    assert not live.broker.parts.store_config.timer_stop_enqueue


async def test_there_is_nothing_in_rocksdb(live: Any) -> None:
    call = live.peer.call
    assert body_of(await call(354, {"topic": "T"}))["checkStatus"] == 2
    exported = await call(355, {"configType": "topics"})
    assert (exported.code, exported.remark) == (0, "export done.")
    assert (await call(200056)).code == 0


async def test_a_master_without_slaves(live: Any) -> None:
    await live.peer.send("T", b"x")
    call = live.peer.call
    status = body_of(await call(907))
    end = live.broker.parts.store.max_phy_offset
    assert (status["master"], status["masterCommitLogMaxOffset"]) == (True, end)
    assert (status["inSyncSlaveNums"], status["haConnectionInfo"]) == (0, [])
    assert (await call(908, {"masterFlushOffset": "7"})).code == 0
    assert live.broker.services.ha.master_flush_offset == 0
    told = await call(906)
    assert told.ext_fields["masterHaAddress"] == live.broker.parts.own.ha_address
    assert told.ext_fields["masterAddress"] == str(live.broker.address)
    epochs = await call(1007)
    assert (epochs.code, epochs.remark) == (1, "this request only for controllerMode")


async def test_a_broker_without_lite_topics(live: Any) -> None:
    await live.peer.send("T", b"x")
    call = live.peer.call
    info = body_of(await call(200074))
    assert info["storeType"] == "default"
    assert info["liteSubscriptionCount"] == 0
    assert info["cqTableSize"] >= 1
    for code in (200075, 200076, 200077):
        assert (await call(code, {"topic": "T", "parentTopic": "T"})).code == 29
        unknown = await call(code, {"topic": "None", "parentTopic": "None"})
        assert (unknown.code, unknown.remark) == (17, "Topic [None] not exist.")
    await call(200, {}, b'{"groupName":"G"}')
    for code in (200078, 200079):
        assert (await call(code, {"group": "G"})).code == 29
        assert (await call(code, {"group": "None"})).code == 26
