"""BrokerStats: how much went in and out, by topic and by group, over a minute, an hour and a day.

A counter is a value and a number of times. Samples of it are taken every 10 s, 10 min and 1 h; a
rate is what lies between the oldest and the newest sample of a window, as RocketMQ counts it. A
topic's counter lives as long as the topic, so hot paths may keep it. Names of statistics and the
shape of their keys are RocketMQ's, since ``mqadmin`` asks by them.

A state machine: counting and the time go in. RocketMQ: BrokerStatsManager, StatsItem.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from oberth.formats.config_files import split_offset_key

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
BROKER_ACK_NUMS: Final = "BROKER_ACK_NUMS"
BROKER_CK_NUMS: Final = "BROKER_CK_NUMS"
GROUP_CK_NUMS: Final = "GROUP_CK_NUMS"
GROUP_ACK_NUMS: Final = "GROUP_ACK_NUMS"
DLQ_PUT_NUMS: Final = "DLQ_PUT_NUMS"
GROUP_GET_FALL_SIZE: Final = "GROUP_GET_FALL_SIZE"
GROUP_GET_FALL_TIME: Final = "GROUP_GET_FALL_TIME"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"

STATS_NAMES: Final = (
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    BROKER_PUT_NUMS,
    BROKER_GET_NUMS,
    BROKER_ACK_NUMS,
    BROKER_CK_NUMS,
    GROUP_CK_NUMS,
    GROUP_ACK_NUMS,
    DLQ_PUT_NUMS,
    GROUP_GET_FALL_SIZE,
    GROUP_GET_FALL_TIME,
    GROUP_GET_LATENCY,
)

SAMPLE_S_MS: Final = 10_000
SAMPLE_MIN_MS: Final = 600_000
SAMPLE_H_MS: Final = 3_600_000

SAMPLES_A_TURN: Final = 2000
"""Counters of which one turn of the loop takes samples."""

SEPARATOR: Final = "@"
"""Between topic and group in a key."""
COUNTERS_MAX: Final = 20_000
"""Counters of a topic and a group. A counter takes some 3 KiB."""

_Sample = tuple[int, int, int]  # ms, times, value


class StatsItem:
    """One counter and its samples.

    Attributes:
        value: the sum so far; hot paths add to it directly.
        times: how often something was added.
    """

    __slots__ = ("_day", "_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._minute: deque[_Sample] = deque(maxlen=7)
        self._hour: deque[_Sample] = deque(maxlen=7)
        self._day: deque[_Sample] = deque(maxlen=25)

    def add(self, value: int, times: int = 1) -> None:
        """Count."""
        self.value += value
        self.times += times

    def sample_minute(self, now_ms: int) -> None:
        """The 10 s sample, towards the last minute."""
        _sample(self._minute, now_ms, SAMPLE_S_MS, self.times, self.value)

    def sample_hour(self, now_ms: int) -> None:
        """The 10 min sample, towards the last hour."""
        _sample(self._hour, now_ms, SAMPLE_MIN_MS, self.times, self.value)

    def sample_day(self, now_ms: int) -> None:
        """The 1 h sample, towards the last day."""
        _sample(self._day, now_ms, SAMPLE_H_MS, self.times, self.value)

    @property
    def is_idle(self) -> bool:
        """Whether it has counted nothing for a day."""
        samples = self._day
        return len(samples) == samples.maxlen and samples[0][1] == self.times

    @property
    def tps(self) -> float:
        """Per second, over the last minute."""
        samples = self._minute
        if not samples:
            return 0.0
        first_ms, _, first_value = samples[0]
        last_ms, _, last_value = samples[-1]
        span_ms = last_ms - first_ms
        return (last_value - first_value) * 1000 / span_ms if span_ms > 0 else 0.0

    def to_body(self) -> dict[str, Any]:
        """The counter as 315 shows it. RocketMQ: BrokerStatsData."""
        return {
            "statsDay": _window(self._day),
            "statsHour": _window(self._hour),
            "statsMinute": _window(self._minute),
        }


def _sample(samples: deque[_Sample], now_ms: int, period_ms: int, times: int, value: int) -> None:
    if not samples:
        # A counter begins with nothing: what it counted before its first sample counts too.
        samples.append((now_ms - period_ms, 0, 0))
    samples.append((now_ms, times, value))


def _pair(key: str) -> tuple[str, str]:
    """Topic and group of a key; "" for both of one that names no such pair."""
    return split_offset_key(key) or ("", "")


def _window(samples: deque[_Sample]) -> dict[str, Any]:
    if not samples:
        return {"avgpt": 0.0, "sum": 0, "tps": 0.0}
    first_ms, first_times, first_value = samples[0]
    last_ms, last_times, last_value = samples[-1]
    total = last_value - first_value
    times = last_times - first_times
    return {
        "avgpt": total / times if times else 0.0,
        "sum": total,
        "tps": total * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0,
    }


class BrokerStats:
    """All counters of a broker.

    Args:
        cluster: key of the counters of the whole broker.
        now_ms: when it started.
    """

    __slots__ = (
        "_group_count",
        "_items",
        "_last_h_ms",
        "_last_min_ms",
        "_last_s_ms",
        "broker_get",
        "broker_put",
        "cluster",
        "get_today_morning",
        "get_yesterday_morning",
        "put_today_morning",
        "put_yesterday_morning",
    )

    def __init__(self, cluster: str, now_ms: int) -> None:
        self.cluster = cluster
        self._group_count = 0
        self._items: dict[str, dict[str, StatsItem]] = {name: {} for name in STATS_NAMES}
        self.broker_put = self.item(BROKER_PUT_NUMS, cluster)
        self.broker_get = self.item(BROKER_GET_NUMS, cluster)
        self._last_s_ms = self._last_min_ms = self._last_h_ms = now_ms
        self.put_yesterday_morning = self.put_today_morning = 0
        self.get_yesterday_morning = self.get_today_morning = 0

    def item(self, name: str, key: str) -> StatsItem:
        """The counter of a name and key, made at its first use.

        Of a topic and a group, which clients name, COUNTERS_MAX are kept; one more counts for
        nobody. One that has counted nothing for a day goes.
        """
        items = self._items[name]
        found = items.get(key)
        if found is None:
            if SEPARATOR in key:
                if self._group_count >= COUNTERS_MAX:
                    return StatsItem()
                self._group_count += 1
            found = items[key] = StatsItem()
        return found

    def _drop(self, items: dict[str, StatsItem], key: str) -> None:
        del items[key]
        self._group_count -= SEPARATOR in key

    def find(self, name: str, key: str) -> StatsItem | None:
        """The counter, if anything was ever counted."""
        return self._items.get(name, {}).get(key)

    def tps(self, name: str, key: str) -> float:
        """Per second, over the last minute; 0 for an unknown one."""
        found = self.find(name, key)
        return 0.0 if found is None else found.tps

    def total(self, name: str) -> int:
        """The sum of all counters of a name."""
        return sum(item.value for item in self._items[name].values())

    def values(self, name: str) -> list[tuple[str, int]]:
        """Key and sum of all counters of a name."""
        return [(key, item.value) for key, item in self._items[name].items()]

    def items(self, name: str) -> list[tuple[str, StatsItem]]:
        """Key and counter of all counters of a name."""
        return list(self._items[name].items())

    def topic_deleted(self, topic: str) -> None:
        """Forget what belongs to a topic."""
        for name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            self._items[name].pop(topic, None)
        for items in self._items.values():
            for key in [key for key in items if _pair(key)[0] == topic]:
                self._drop(items, key)

    def group_deleted(self, group: str) -> None:
        """Forget what belongs to a group."""
        for items in self._items.values():
            for key in [key for key in items if _pair(key)[1] == group]:
                self._drop(items, key)

    def on_time(self, now_ms: int) -> None:
        """Take the samples that are due; to be called about every second."""
        for _ in self.sampling(now_ms):
            pass

    def sampling(self, now_ms: int) -> Iterator[None]:
        """`on_time`, yielding about each millisecond: every topic has counters."""
        minute = now_ms - self._last_s_ms >= SAMPLE_S_MS
        hour = now_ms - self._last_min_ms >= SAMPLE_MIN_MS
        day = now_ms - self._last_h_ms >= SAMPLE_H_MS
        self._last_s_ms = now_ms if minute else self._last_s_ms
        self._last_min_ms = now_ms if hour else self._last_min_ms
        self._last_h_ms = now_ms if day else self._last_h_ms
        if not (minute or hour or day):
            return
        done = 0
        for items in self._items.values():
            for key in list(items):
                item = items.get(key)
                if item is None:
                    continue  # its topic was deleted meanwhile
                if minute:
                    item.sample_minute(now_ms)
                if hour:
                    item.sample_hour(now_ms)
                if day:
                    item.sample_day(now_ms)
                    if item.is_idle and SEPARATOR in key:
                        self._drop(items, key)
                done += 1
                if done % SAMPLES_A_TURN == 0:
                    yield

    def on_midnight(self) -> None:
        """A day began: what was put and got until now is this morning's figure."""
        self.put_yesterday_morning = self.put_today_morning
        self.get_yesterday_morning = self.get_today_morning
        self.put_today_morning = self.broker_put.value
        self.get_today_morning = self.broker_get.value
