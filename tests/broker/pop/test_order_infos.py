"""OrderInfos alone: when a queue is blocked, what is committed, and what its file keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oberth.broker.pop import order_infos as module
from oberth.broker.pop.order_infos import NO_EFFECT, UNKNOWN_OFFSET, OrderInfos
from oberth.formats.config_files import OrderInfo
from oberth.formats.json_reader import parse_config

NOW_MS = 1_700_000_000_000
Q = ("T", "G", 3)


def popped(
    infos: OrderInfos, *offsets: int, attempt: str | None = "one", now_ms: int = 1_000
) -> list[str]:
    infos.is_dirty = False
    entries = infos.update(
        *Q, offsets, attempt_id=attempt, pop_time=now_ms, invisible_time=500, retry_flag="0"
    )
    assert infos.is_dirty
    return entries


def is_dirty(infos: OrderInfos) -> bool:
    """As it is now: the checker of types takes it for what was assigned last."""
    return infos.is_dirty


def test_a_queue_is_blocked_until_all_is_acknowledged_or_its_time_is_up() -> None:
    infos = OrderInfos()
    assert not is_dirty(infos)
    assert not infos.is_blocked(*Q, "two", 1_000)
    assert infos.visible_at(*Q) is None
    popped(infos, 10, 11)
    assert (len(infos), infos.visible_at(*Q)) == (1, 1_500)
    assert infos.is_blocked(*Q, "two", 1_499)
    assert infos.is_blocked(*Q, None, 1_499)
    assert not infos.is_blocked(*Q, "two", 1_500)
    assert not infos.is_blocked(*Q, "one", 1_000)  # the request is sent again
    assert not infos.is_blocked("T", "G", 4, "two", 1_000)
    assert infos.commit_and_next(*Q, 10, 1_000, 10) == 11
    assert infos.is_blocked(*Q, "two", 1_499)
    assert infos.commit_and_next(*Q, 11, 1_000, 10) == 12
    assert not infos.is_blocked(*Q, "two", 1_000)
    assert infos.visible_at(*Q) is None


def test_without_an_attempt_nobody_is_the_same() -> None:
    infos = OrderInfos()
    popped(infos, 10, attempt=None)
    assert infos.is_blocked(*Q, None, 1_000)


def test_what_is_acknowledged_out_of_order_commits_nothing_behind_a_gap() -> None:
    infos = OrderInfos()
    popped(infos, 10, 12, 15)
    infos.is_dirty = False
    assert infos.commit_and_next(*Q, 15, 1_000, 10) == 10
    assert is_dirty(infos)
    assert infos.commit_and_next(*Q, 10, 1_000, 10) == 12
    assert infos.commit_and_next(*Q, 12, 1_000, 10) == 16


def test_acknowledgements_of_what_is_not_known() -> None:
    infos = OrderInfos()
    assert infos.commit_and_next(*Q, 10, 1_000, 10) == 11
    assert infos.commit_and_next(*Q, 11, 1_000, 10) == NO_EFFECT
    popped(infos, 10, 12)
    infos.is_dirty = False
    assert infos.commit_and_next(*Q, 10, 999, 10) == NO_EFFECT
    assert infos.commit_and_next(*Q, 11, 1_000, 10) == UNKNOWN_OFFSET
    assert not is_dirty(infos)


def test_a_message_may_stay_invisible_for_another_time() -> None:
    infos = OrderInfos()
    assert not infos.set_next_visible(*Q, 10, 1_000, 9_000)
    popped(infos, 10, 11)
    infos.is_dirty = False
    assert not infos.set_next_visible(*Q, 12, 1_000, 9_000)
    assert not infos.set_next_visible(*Q, 10, 999, 9_000)
    assert not is_dirty(infos)
    assert infos.set_next_visible(*Q, 10, 1_000, 9_000)
    assert infos.set_next_visible(*Q, 11, 1_000, 1_200)
    assert is_dirty(infos)
    assert infos.visible_at(*Q) == 9_000
    assert infos.is_blocked(*Q, "two", 8_999)
    assert not infos.is_blocked(*Q, "two", 9_000)
    infos.commit_and_next(*Q, 10, 1_000, 10)
    assert infos.visible_at(*Q) == 1_200


def test_deliveries_are_counted() -> None:
    infos = OrderInfos()
    assert popped(infos, 10, 11) == ["0 3 0"]
    assert popped(infos, 10, 11, attempt="two") == ["0 qo3%10 1", "0 qo3%11 1", "0 3 1"]
    assert popped(infos, 10, 11, attempt="two") == ["0 qo3%10 1", "0 qo3%11 1", "0 3 1"]
    assert popped(infos, 11, 12, attempt="three") == ["0 qo3%11 2", "0 qo3%12 0", "0 3 0"]
    assert popped(infos, 11, 12, attempt="three") == ["0 qo3%11 2", "0 qo3%12 0", "0 3 0"]
    assert popped(infos, 11, 12, attempt="four") == ["0 qo3%11 3", "0 qo3%12 1", "0 3 1"]
    assert popped(infos, 20, attempt=None) == ["0 3 0"]
    assert popped(infos, 20, attempt=None) == ["0 qo3%20 1", "0 3 1"]


def test_light_groups_are_kept_by_their_whole_name() -> None:
    """Their names may hold an @, those of topics and of other groups may not."""
    infos = OrderInfos()
    asked: list[tuple[str, str]] = []
    infos._table["T@%LMQ%GID@@@dev"] = {3: OrderInfo()}

    def known(topic: str, group: str) -> bool:
        asked.append((topic, group))
        return True

    infos.keep(known, NOW_MS)
    assert asked == [("T", "%LMQ%GID@@@dev")]


def test_what_is_forgotten() -> None:
    infos = OrderInfos()
    popped(infos, 10)
    infos.is_dirty = False
    infos.clear("T", "G", 4)
    infos.clear("T", "other", 3)
    infos.forget("T", "other")
    infos.keep(lambda topic, group: (topic, group) == ("T", "G"), NOW_MS)
    assert (is_dirty(infos), len(infos)) == (False, 1)
    assert infos.get(*Q) is not None
    infos.clear(*Q)
    assert (infos.get(*Q), is_dirty(infos), len(infos)) == (None, True, 1)
    infos.is_dirty = False
    infos.keep(lambda topic, group: True, NOW_MS)  # no queue of it is left
    assert (is_dirty(infos), len(infos)) == (True, 0)
    popped(infos, 10)
    infos.is_dirty = False
    infos.keep(lambda topic, group: False, NOW_MS)
    assert (is_dirty(infos), len(infos)) == (True, 0)
    popped(infos, 10)
    infos.is_dirty = False
    infos.forget("T", "G")
    assert (is_dirty(infos), len(infos)) == (True, 0)


def test_the_file_is_as_it_was_when_it_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPIED_AT_A_TIME", 2)
    infos = OrderInfos()
    for queue_id in range(5):
        infos.update(
            f"T{queue_id}", "G", 0, [7, 9],
            attempt_id=None, pop_time=1, invisible_time=2, retry_flag="0",
        )  # fmt: skip
    infos.set_next_visible("T0", "G", 0, 7, 1, 50)
    before = infos.encode()
    assert not infos.is_dirty
    steps = infos.snapshot()
    turns = 0
    encode: Any = None
    try:
        while True:
            next(steps)
            turns += 1
    except StopIteration as end:
        encode = end.value
    assert turns == 2
    infos.commit_and_next("T0", "G", 0, 7, 1, 0)
    infos.set_next_visible("T0", "G", 0, 7, 1, 60)
    assert encode() == before
    document = parse_config(before, name="consumerOrderInfo.json")
    assert document["orderInfoCount"] == 5
    again = OrderInfos()
    again.read(document)
    assert again.encode() == before
    assert again.visible_at("T0", "G", 0) == 50


def test_acknowledgements_of_a_deleted_topic_have_no_effect_on_another_of_its_name() -> None:
    infos = OrderInfos()
    popped(infos, 0, 1)
    infos.update(
        "T@x", "G", 0, [0], attempt_id=None, pop_time=1, invisible_time=500, retry_flag="0"
    )
    infos.is_dirty = False
    infos.forget_topic("other", NOW_MS)
    assert not is_dirty(infos)
    infos.forget_topic("T", NOW_MS)
    assert is_dirty(infos)
    assert not infos.is_blocked(*Q, None, 1_000)
    assert infos.visible_at(*Q) is None
    assert not infos.set_next_visible(*Q, 0, 1_000, 5_000)
    for pop_time in (1_000, 0):
        assert infos.commit_and_next(*Q, 0, pop_time, 0) in (NO_EFFECT, UNKNOWN_OFFSET)
    assert infos.is_blocked("T@x", "G", 0, None, 1)
    again = OrderInfos()
    again.read(parse_config(infos.encode(), name="consumerOrderInfo.json"))
    assert again.commit_and_next(*Q, 0, 1_000, 0) == NO_EFFECT
    assert popped(infos, 0, 1) == ["0 3 0"]  # delivered for the first time
    assert infos.commit_and_next(*Q, 0, 1_000, 0) == 1


def test_what_stands_in_for_a_deleted_topic_stays_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic may be made again, and acknowledgements of the old one may come then."""

    def none_is_known(topic: str, group: str) -> bool:
        return False

    infos = OrderInfos()
    popped(infos, 0, 1)
    infos.forget_topic("T", NOW_MS)
    infos.is_dirty = False
    infos.keep(none_is_known, NOW_MS + module.STAND_INS_MS - 1)
    assert not is_dirty(infos)
    assert infos.commit_and_next(*Q, 0, 1_000, 0) == NO_EFFECT
    infos.keep(none_is_known, NOW_MS + module.STAND_INS_MS)
    assert (is_dirty(infos), len(infos)) == (True, 0)
    monkeypatch.setattr(module, "STAND_INS_MAX", 2)
    for number in range(4):
        infos.update(
            f"T{number}", "G", 0, [7],
            attempt_id=None, pop_time=1, invisible_time=2, retry_flag="0",
        )  # fmt: skip
        infos.forget_topic(f"T{number}", NOW_MS + number)
    infos.keep(none_is_known, NOW_MS + 4)
    assert [infos.get(f"T{number}", "G", 0) is not None for number in range(4)] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_queue_comes_out_when_its_messages_are_visible_again() -> None:
    infos = OrderInfos()
    popped(infos, 10, 11)
    assert infos.unlocked(1_499, 9) == []
    assert infos.has_unlocked(1_500)
    assert infos.unlocked(1_500, 9) == [Q]
    assert infos.unlocked(9_999, 9) == []
    popped(infos, 10, 11, now_ms=2_000)
    popped(infos, 10, 11, now_ms=2_100)  # once more, until later
    assert infos.unlocked(2_500, 9) == []
    assert infos.unlocked(2_600, 9) == [Q]


def test_a_queue_comes_out_when_a_time_that_was_changed_is_over() -> None:
    infos = OrderInfos()
    popped(infos, 10, 11)
    infos.set_next_visible(*Q, 10, 1_000, 9_000)
    infos.set_next_visible(*Q, 11, 1_000, 1_200)
    assert infos.unlocked(8_999, 9) == []
    infos.set_next_visible(*Q, 10, 1_000, 1_300)
    assert infos.unlocked(1_299, 9) == []
    assert infos.unlocked(1_300, 9) == [Q]
    infos.set_next_visible(*Q, 10, 1_000, 5_000)
    assert infos.commit_and_next(*Q, 10, 1_000, 10) == 11  # what is left is visible already
    assert infos.unlocked(4_999, 9) == [Q]


def test_a_queue_that_waits_for_nothing_does_not_come_out() -> None:
    infos = OrderInfos()
    popped(infos, 10, 11)
    for offset in (10, 11):
        infos.commit_and_next(*Q, offset, 1_000, 10)
    assert (len(infos._unlocks), infos.unlocked(9_999, 9)) == (0, [])
    forgets: tuple[Callable[[], None], ...] = (
        lambda: infos.clear(*Q),
        lambda: infos.forget("T", "G"),
        lambda: infos.forget_topic("T", NOW_MS),
        lambda: infos.keep(lambda topic, group: False, NOW_MS),
    )
    for forget in forgets:
        popped(infos, 10)
        assert len(infos._unlocks) == 1
        forget()
        assert (len(infos._unlocks), infos.unlocked(9_999, 9)) == (0, [])


def test_what_a_file_says_of_blocked_queues_comes_out_too() -> None:
    infos = OrderInfos()
    popped(infos, 10)
    infos.update(
        "T", "H", 0, [7], attempt_id=None, pop_time=1, invisible_time=5_000, retry_flag="0"
    )
    infos.commit_and_next("T", "H", 0, 7, 1, 7)
    again = OrderInfos()
    again.read(parse_config(infos.encode(), name="consumerOrderInfo.json"))
    assert again.unlocked(1_499, 9) == []
    assert again.unlocked(9_999, 9) == [Q]


def test_a_queue_takes_one_entry_however_often_its_time_changes() -> None:
    infos = OrderInfos()
    for number in range(3_000):
        now_ms = 1_000 + number
        infos.update(
            *Q, [10], attempt_id="one", pop_time=now_ms, invisible_time=2**62, retry_flag="0"
        )
        infos.set_next_visible(*Q, 10, now_ms, 2**62 + now_ms)
    assert len(infos._unlocks._heap) == 1


def test_so_many_queues_are_looked_at_at_a_time() -> None:
    infos = OrderInfos()
    for number in range(9):
        infos.update(
            "T", "G", number, [7],
            attempt_id=None, pop_time=1_000, invisible_time=number, retry_flag="0",
        )  # fmt: skip
    infos.clear("T", "G", 1)
    infos.set_next_visible("T", "G", 2, 7, 1_000, 5_000)
    found = []
    while infos.has_unlocked(4_999):
        found.append([queue_id for _, _, queue_id in infos.unlocked(4_999, 3)])
    assert found == [[0], [3, 4, 5], [6, 7, 8]]
    assert infos.unlocked(5_000, 1) == [("T", "G", 2)]
