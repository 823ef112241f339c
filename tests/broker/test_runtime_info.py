"""Rates count what was done between two samples; reads that found nothing count as misses."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from oberth.broker import dispatching
from oberth.broker.runtime_info import StoreRates, StoreTotals

KEYS = ("getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")


def test_a_rate_is_what_lies_between_two_samples() -> None:
    rates = StoreRates()
    assert rates.rates("puts") == "0.0 0.0 0.0"
    for second in range(700):
        rates.sample(StoreTotals(second * 1000, second * 5, second, 0, 0))
    rates.sample(StoreTotals(700_000, 700 * 5, 700, 60, 0))
    assert rates.rates("puts") == "5.0 5.0 5.0"
    assert rates.rates("missed") == "6.0 1.0 0.1"
    assert rates.rates("found", "missed") == "7.0 2.0 1.1"


async def test_reads_that_find_nothing_are_misses(live: Any) -> None:
    for _ in range(3):
        await live.peer.send("T", b"x", 0)
    await live.later(1500)
    before = await _rates(live)
    assert (before["getFoundTps"], before["getMissTps"]) == (0.0, 0.0)
    assert (await live.peer.pull("T", 0)).code == 0
    for _ in range(4):
        await live.peer.pull("T", 3)  # at its end
        await live.peer.pull("T", 0, queueId="1")
    await live.later(1500)
    after = await _rates(live)
    assert after["getFoundTps"] > 0
    assert after["getMissTps"] == pytest.approx(8 * after["getFoundTps"])
    assert after["getTotalTps"] == pytest.approx(9 * after["getFoundTps"])
    assert after["getTransferredTps"] == pytest.approx(3 * after["getFoundTps"])


async def _rates(live: Any) -> dict[str, float]:
    table = json.loads((await live.peer.call(28)).body_bytes())["table"]
    return {key: float(table[key].split(" ")[2]) for key in KEYS}


async def test_the_table_is_of_what_was_appended(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "DISPATCH_S", 3_600.0)
    await live.peer.send("T", b"x", 0)
    await live.peer.pull("T", 0)
    await live.peer.send("T", b"x", 0, properties={"DELAY": "5"})  # dispatched in an hour
    table = json.loads((await live.peer.call(28)).body_bytes())["table"]
    assert table["dispatchBehindBytes"] == "0"
    assert table["scheduleMessageOffset_5"] == "0,1"


async def test_how_long_puts_took(live: Any) -> None:
    times = live.broker.parts.store.commit_log.append_times
    times.recent_s.clear()
    for took_s in (0.0002, 0.0009, 0.004, 0.7, 12.0):
        times.add(took_s)
    table = json.loads((await live.peer.call(28)).body_bytes())["table"]
    assert table["putMessageDistributeTime"] == (
        "[<=0ms]:2 [0~10ms]:1 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:1 "
        "[1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:1"
    )


async def test_a_disk_is_as_full_as_for_cleaning(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleNamespace(f_blocks=1000, f_bfree=800, f_bavail=300, f_frsize=4096)
    with monkeypatch.context() as disk:
        disk.setattr(os, "statvfs", lambda _: told)
        table = json.loads((await live.peer.call(28)).body_bytes())["table"]
        store = live.broker.parts.store
        ratio = store.files.disk_usage(store.root).ratio
    assert (
        float(table["commitLogDiskRatio"]) == float(table["consumeQueueDiskRatio"]) == ratio == 0.4
    )
