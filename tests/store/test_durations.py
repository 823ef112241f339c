"""Durations: the longest of all, percentiles of the newest."""

from __future__ import annotations

from oberth.store.durations import RECENT_MAX, Durations


def test_nothing_took_no_time() -> None:
    durations = Durations()
    assert (durations.longest_ms, durations.percentile_ms(0.99)) == (0, 0.0)


def test_percentiles_are_of_the_newest_and_the_longest_is_of_all() -> None:
    durations = Durations()
    durations.add(5.0)
    for number in range(RECENT_MAX):
        durations.add(number / RECENT_MAX)
    assert durations.longest_ms == 5000
    assert 989 <= durations.percentile_ms(0.99) <= 991
    assert durations.percentile_ms(1.0) < 1000


def test_many_that_took_the_same_are_as_many_that_are_added() -> None:
    one_by_one, together = Durations(), Durations()
    for seconds, count in ((0.5, 3), (0.1, RECENT_MAX + 7), (0.2, 2)):
        for _ in range(count):
            one_by_one.add(seconds)
        together.add_many(seconds, count)
    assert list(together.recent_s) == list(one_by_one.recent_s)
    assert together.longest_s == one_by_one.longest_s
