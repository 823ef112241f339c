"""Who waits for cold data: thresholds, periods and forgetting, with time as an argument."""

from __future__ import annotations

from oberth.broker.cold_reads import FORGET_MS, GROUPS_MAX, PERIOD_MS, ColdReads

GROUP_MAX = 100
ALL_MAX = 250


def waits(cold: ColdReads, group: str, now_ms: int) -> int | None:
    return cold.waits_until_ms(group, GROUP_MAX, ALL_MAX, now_ms)


def test_a_group_waits_for_the_next_period_once_it_has_read_enough() -> None:
    cold = ColdReads()
    cold.add("G", GROUP_MAX - 1, 0)
    assert waits(cold, "G", 1) is None
    cold.add("G", 1, 2)
    assert waits(cold, "G", 3) == PERIOD_MS
    assert waits(cold, "other", 3) is None
    assert waits(cold, "G", PERIOD_MS) is None


def test_a_threshold_of_its_own_counts_instead() -> None:
    cold = ColdReads()
    assert cold.set_threshold("G", 10)
    cold.add("G", 10, 0)
    assert waits(cold, "G", 1) == PERIOD_MS
    cold.remove_threshold("G")
    cold.remove_threshold("never had one")
    assert waits(cold, "G", 1) is None


def test_all_groups_together_have_a_threshold() -> None:
    cold = ColdReads()
    for group in ("a", "b", "c"):
        cold.add(group, 90, 0)
    assert [waits(cold, group, 1) for group in "abc"] == [PERIOD_MS] * 3


def test_what_is_shown() -> None:
    cold = ColdReads()
    cold.set_threshold("G", 10)
    cold.add("G", 7, 1000)
    assert cold.to_body(GROUP_MAX, ALL_MAX, 2000) == {
        "runtimeTable": {
            "G": {"coldAcc": 7, "createTimeMills": 1000, "lastColdReadTimeMills": 1000}
        },
        "configTable": {"G": 10},
        "cgColdReadThreshold": GROUP_MAX,
        "globalColdReadThreshold": ALL_MAX,
        "globalAcc": 7,
    }
    later = cold.to_body(GROUP_MAX, ALL_MAX, 1000 + FORGET_MS)
    assert (later["runtimeTable"], later["globalAcc"]) == ({}, 0)


def test_thresholds_are_limited_in_number() -> None:
    cold = ColdReads()
    for number in range(GROUPS_MAX):
        assert cold.set_threshold(f"G{number}", 1)
    assert not cold.set_threshold("one more", 1)
    assert cold.set_threshold("G0", 2)
