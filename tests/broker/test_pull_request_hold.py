"""Held pulls come out exactly once, by arrival, deadline or close; a model with a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.broker import pull_request_hold
from oberth.broker.pull_request_hold import BUCKET_MS, HeldPull, PullRequestHold
from oberth.store.messages import TagsFilter


def held(offset: int = 0, deadline_ms: int = 1000, codes: set[int] | None = None) -> HeldPull:
    return HeldPull(
        "channel", "request", offset, deadline_ms, None if codes is None else TagsFilter(codes)
    )


def test_an_arrival_wakes_who_waits_at_that_queue() -> None:
    hold = PullRequestHold()
    mine, other_queue, other_topic = held(), held(), held()
    assert hold.hold("T", 0, mine)
    assert hold.hold("T", 1, other_queue)
    assert hold.hold("U", 0, other_topic)
    assert hold.on_message_arriving("T", 0, 1, 0) == [mine]
    assert len(hold) == 2
    assert hold.on_message_arriving("T", 0, 2, 0) == []


def test_an_arrival_below_the_wanted_offset_wakes_nobody() -> None:
    hold = PullRequestHold()
    mine = held(offset=5)
    hold.hold("T", 0, mine)
    assert hold.on_message_arriving("T", 0, 5, 0) == []
    assert hold.on_message_arriving("T", 0, 6, 0) == [mine]


def test_a_tag_that_nobody_wants_wakes_nobody() -> None:
    hold = PullRequestHold()
    wants_7, wants_all = held(codes={7}), held()
    hold.hold("T", 0, wants_7)
    hold.hold("T", 0, wants_all)
    assert hold.on_message_arriving("T", 0, 1, 8) == [wants_all]
    assert hold.on_message_arriving("T", 0, 2, 7) == [wants_7]


def test_properties_are_asked_after_the_tag() -> None:
    asked: list[bytes] = []

    class Wants:
        judged_max = 1000

        def matches_properties(self, properties_raw: bytes, /) -> bool:
            asked.append(properties_raw)
            return properties_raw == b"yes"

    hold = PullRequestHold()
    mine = HeldPull("c", "r", 0, 1000, TagsFilter({1}), Wants())
    hold.hold("T", 0, mine)
    assert hold.on_message_arriving("T", 0, 1, 2, b"yes") == []
    assert hold.on_message_arriving("T", 0, 2, 1, b"no") == []
    assert hold.on_message_arriving("T", 0, 3, 1, b"yes") == [mine]
    assert asked == [b"no", b"yes"]


def test_a_deadline_is_never_early_and_at_most_a_bucket_late() -> None:
    hold = PullRequestHold()
    mine = held(deadline_ms=1050)
    hold.hold("T", 0, mine)
    assert hold.on_time(1049) == []
    assert hold.on_time(1050 + BUCKET_MS) == [mine]
    assert len(hold) == 0


def test_a_full_table_holds_nothing_more() -> None:
    hold = PullRequestHold(count_max=1)
    assert hold.hold("T", 0, held())
    assert not hold.hold("T", 0, held())
    assert len(hold) == 1


def test_a_closed_channel_is_forgotten() -> None:
    hold = PullRequestHold()
    mine = HeldPull("gone", "r", 0, 1000)
    stays = HeldPull("stays", "r", 0, 1000)
    hold.hold("T", 0, mine)
    hold.hold("T", 0, stays)
    assert hold.connection_closed("gone") == 1
    assert hold.wake_topic("T") == [stays]
    assert len(hold) == 0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.integers(0, 2), st.integers(0, 5), st.integers(0, 2000)),
        st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(0, 6), st.just(0)),
        st.tuples(st.just("time"), st.just(0), st.just(0), st.integers(0, 3000)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_nobody_comes_out_twice_or_stays_behind(events: list[tuple[str, int, int, int]]) -> None:
    hold = PullRequestHold()
    now = 0
    inside: dict[HeldPull, int] = {}
    for kind, queue_id, offset, time_ms in events:
        if kind == "hold":
            made = held(offset, now + time_ms)
            assert hold.hold("T", queue_id, made)
            inside[made] = queue_id
            continue
        if kind == "arrive":
            out = hold.on_message_arriving("T", queue_id, offset, 0)
            expected = [
                each for each, at in inside.items() if at == queue_id and offset > each.queue_offset
            ]
        else:
            now = max(now, time_ms)
            out = hold.on_time(now)
            expected = [
                each for each in inside if -(-each.deadline_ms // BUCKET_MS) * BUCKET_MS <= now
            ]
        assert sorted(map(id, out)) == sorted(map(id, expected))
        for each in out:
            del inside[each]
        assert len(hold) == len(inside)
    assert sorted(map(id, hold.clear())) == sorted(map(id, inside))
    assert len(hold) == 0


def test_a_queue_holds_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_request_hold, "QUEUE_COUNT_MAX", 2)
    hold = PullRequestHold()
    assert [hold.hold("T", 0, held()) for _ in range(3)] == [True, True, False]
    assert hold.hold("T", 1, held())
    assert len(hold.on_message_arriving("T", 0, 1, 0)) == 2
    assert hold.hold("T", 0, held())


def test_a_closed_channel_with_very_many_is_forgotten_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull_request_hold, "GONE_AT_ONCE", 4)
    hold = PullRequestHold()
    for number in range(10):
        hold.hold("T", number % 2, held(deadline_ms=1000 * number))
    assert hold.connection_closed("channel") == 10
    assert len(hold) == 6
    woken = hold.on_message_arriving("T", 0, 1, 0)  # who answers them sees that it is closed
    assert 0 < len(woken) < 5
    for _ in range(3):
        hold.on_time(0)
    assert len(hold) == 0
    assert hold.connection_closed("channel") == 0
    assert len(hold.limits) == 0


def test_very_many_come_out_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_request_hold, "DUE_AT_ONCE", 4)
    hold = PullRequestHold()
    for number in range(20):
        hold.hold("T" if number < 10 else "U", number % 2, held(deadline_ms=1000))
    assert [len(hold.on_time(1100)) for _ in range(3)] == [4, 4, 4]
    assert len(hold.wake_topic("U")) == 4  # those of T that are left come by their time
    assert [len(hold.on_time(0)) for _ in range(3)] == [4, 0, 0]
    assert len(hold) == 0


def test_expressions_judge_so_much_in_a_turn() -> None:
    """Of those for whom there is no room nobody misses the message: they look for themselves."""
    judged: list[int] = []

    class Nothing:
        judged_max = 10

        def matches_properties(self, properties_raw: bytes, /) -> bool:
            judged.append(len(properties_raw))
            return False

    hold = PullRequestHold()
    for _ in range(100):
        hold.hold("T", 0, HeldPull("channel", "request", 0, 1000, None, Nothing()))
    woken = len(hold.on_message_arriving("T", 0, 1, 0))
    assert woken + len(judged) == 100
    assert 9 <= len(judged) <= 10
    hold.limits.new_turn()
    # A long message costs as several.
    assert len(hold.on_message_arriving("T", 0, 2, 0, b"x" * 1280)) == len(judged) - 2
