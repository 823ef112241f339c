"""Rates over a minute, an hour and a day from samples; virtual clock."""

from __future__ import annotations

import pytest

from oberth.broker import stats as stats_module
from oberth.broker.stats import BROKER_PUT_NUMS, GROUP_GET_NUMS, TOPIC_PUT_NUMS, BrokerStats


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
