"""Rates over a minute, an hour and a day from samples; virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oberth.broker import stats as stats_module
from oberth.broker.stats import (
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    SAMPLE_H_MS,
    SAMPLE_S_MS,
    TOPIC_PUT_NUMS,
    BrokerStats,
    StatsItem,
)


def test_a_minute_is_seven_samples() -> None:
    stats = BrokerStats("C", 0)
    item = stats.item(TOPIC_PUT_NUMS, "T")
    for second in range(130):
        item.add(2)
        stats.on_time(second * 1000)
    assert item.tps == 2.0
    minute = item.to_body()["statsMinute"]
    assert minute == {"avgpt": 2.0, "sum": 120, "tps": 2.0}
    assert stats.tps(TOPIC_PUT_NUMS, "T") == 2.0
    assert stats.tps(TOPIC_PUT_NUMS, "unknown") == 0.0


def test_what_was_counted_before_the_first_sample_counts() -> None:
    stats = BrokerStats("C", 0)
    stats.item(TOPIC_PUT_NUMS, "T").add(30)
    stats.on_time(10_000)
    body = stats.item(TOPIC_PUT_NUMS, "T").to_body()
    assert body["statsMinute"] == {"avgpt": 30.0, "sum": 30, "tps": 3.0}
    assert body["statsDay"]["sum"] == 0
    stats.on_time(3_600_000)
    assert stats.item(TOPIC_PUT_NUMS, "T").to_body()["statsDay"]["sum"] == 30


def test_hours_and_days_have_their_own_samples() -> None:
    stats = BrokerStats("C", 0)
    item = stats.item(TOPIC_PUT_NUMS, "T")
    for minute in range(26 * 60):
        item.add(1)
        stats.on_time(minute * 60_000)
    body = item.to_body()
    assert body["statsHour"]["sum"] == 60
    assert body["statsDay"]["sum"] == 24 * 60


def test_morning_figures_move_on_at_midnight() -> None:
    stats = BrokerStats("C", 0)
    stats.broker_put.add(5)
    stats.on_midnight()
    stats.broker_put.add(7)
    stats.on_midnight()
    assert (stats.put_yesterday_morning, stats.put_today_morning) == (5, 12)
    assert stats.broker_put is stats.item(BROKER_PUT_NUMS, "C")


def test_deleted_topics_and_groups_are_forgotten() -> None:
    stats = BrokerStats("C", 0)
    stats.item(TOPIC_PUT_NUMS, "T").add(1)
    stats.item(GROUP_GET_NUMS, "T@G").add(1)
    stats.item(GROUP_GET_NUMS, "U@G").add(1)
    stats.topic_deleted("T")
    assert stats.find(TOPIC_PUT_NUMS, "T") is None
    assert stats.find(GROUP_GET_NUMS, "T@G") is None
    stats.group_deleted("G")
    assert stats.find(GROUP_GET_NUMS, "U@G") is None


def test_a_deletion_takes_no_counters_of_names_with_an_at_sign() -> None:
    stats = BrokerStats("C", 0)
    for key in ("%LMQ%$T$user@G", "%LMQ%$T$user@home@G", "T@%LMQ%c@d"):
        stats.item(GROUP_GET_NUMS, key).add(1)
    stats.topic_deleted("%LMQ%$T$user")
    stats.group_deleted("d")
    assert [key for key, _ in stats.items(GROUP_GET_NUMS)] == ["%LMQ%$T$user@home@G", "T@%LMQ%c@d"]
    stats.topic_deleted("T")
    assert [key for key, _ in stats.items(GROUP_GET_NUMS)] == ["%LMQ%$T$user@home@G"]


def test_counters_of_groups_are_limited_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "COUNTERS_MAX", 10)
    stats = BrokerStats("C", 0)
    for number in range(30):
        stats.item(GROUP_GET_NUMS, f"T@G{number}").add(1)
    assert len(stats.items(GROUP_GET_NUMS)) == 10
    stats.item(TOPIC_PUT_NUMS, "T").add(1)  # a topic's own is not among them
    assert stats.find(TOPIC_PUT_NUMS, "T") is not None
    stats.group_deleted("G0")
    stats.item(GROUP_GET_NUMS, "T@G29").add(1)
    assert stats.find(GROUP_GET_NUMS, "T@G29") is not None
    for hour in range(1, 30):
        stats.item(GROUP_GET_NUMS, "T@G5").add(1)
        stats.on_time(hour * 3_600_000)
    assert [key for key, _ in stats.items(GROUP_GET_NUMS)] == ["T@G5"]
    assert stats.find(TOPIC_PUT_NUMS, "T") is not None
    for number in range(30):
        stats.item(GROUP_GET_NUMS, f"U@G{number}").add(1)
    assert len(stats.items(GROUP_GET_NUMS)) == 10


def test_samples_of_very_many_counters_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 000 topics in one go: 33 ms every ten seconds, 146 ms every hour."""
    monkeypatch.setattr(stats_module, "SAMPLES_A_TURN", 10)
    stats = BrokerStats("c", 0)
    keys = [f"t{number}" for number in range(33)] + ["t1@g", "t2@g"]
    for key in keys:
        stats.item(TOPIC_PUT_NUMS, key).add(60)
    taken = [0]
    for name in ("sample_minute", "sample_hour", "sample_day"):
        original = getattr(StatsItem, name)

        def sample(item: StatsItem, now_ms: int, original: Any = original) -> None:
            taken[-1] += 1
            original(item, now_ms)

        monkeypatch.setattr(StatsItem, name, sample)
    for number, _ in enumerate(stats.sampling(SAMPLE_H_MS)):
        taken.append(0)
        if number == 0:
            stats.topic_deleted("t32")  # before its turn
    assert max(taken) <= 3 * 10
    assert sum(taken) == 3 * (len(keys) - 1 + 2), "and the two of the broker"
    assert stats.tps(TOPIC_PUT_NUMS, "t31") == 6
    assert list(stats.sampling(SAMPLE_H_MS + 1)) == []


async def test_a_broker_takes_samples_in_turns_of_its_loop(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    stats = live.broker.parts.stats
    for number in range(20):
        stats.item(TOPIC_PUT_NUMS, f"t{number}").add(60)
    monkeypatch.setattr(stats_module, "SAMPLES_A_TURN", 5)
    live.broker._on_second(live.broker.parts.now_ms() + SAMPLE_S_MS)
    assert live.broker._sampling is not None
    assert stats.tps(TOPIC_PUT_NUMS, "t19") == 0
    while live.broker._sampling is not None:  # noqa: ASYNC110 - each turn is a slice
        await asyncio.sleep(0)
    assert stats.tps(TOPIC_PUT_NUMS, "t19") == 6
