"""The promise explains what it should, and nothing else."""

from __future__ import annotations

from oberth.testing.history import History, Outcome


def send(history: History, body: str, offset: int) -> None:
    history.sent(body, history.begin(), queue="q", offset=offset)


def pull(history: History, offset: int, body: str | None) -> None:
    history.pulled("q", offset, body, history.begin())


def test_a_history_that_is_all_right() -> None:
    history = History()
    send(history, "a", 0)
    unknown = history.begin()
    history.sent("b", unknown, outcome=Outcome.UNKNOWN)
    history.sent("no", history.begin(), outcome=Outcome.REFUSED)
    pull(history, 0, None)  # acknowledged and not readable yet
    pull(history, 0, "a")
    pull(history, 1, "b")  # it was stored
    send(history, "c", 2)
    pull(history, 2, "c")
    history.committed("g", "q", 1, history.begin())
    history.fetched("g", "q", 1, history.begin())
    history.fetched("other", "q", -1, history.begin())
    assert history.faults() == []


def test_lost_and_changed_messages() -> None:
    history = History()
    send(history, "a", 0)
    assert history.faults() == ["a: acknowledged at q 0 and lost"]
    assert history.faults(is_final=False) == []
    pull(history, 0, "a")
    assert history.faults() == []
    pull(history, 0, None)
    assert "a: read once and gone" in history.faults()
    send(history, "b", 0)
    assert "q 0: acknowledged to a and to b" in history.faults()
    pull(history, 0, "b")
    assert "q 0: a is there, and b was read" in history.faults()
    pull(history, 1, "b")
    assert "b: sent once, and at ('q', 0) and ('q', 1)" in history.faults()


def test_messages_that_must_not_be_there() -> None:
    history = History()
    history.sent("no", history.begin(), outcome=Outcome.REFUSED)
    pull(history, 0, "no")
    pull(history, 1, "nobody's")
    assert history.faults() == [
        "q 0: no was read and its sender was refused",
        "q 1: nobody's was read and not sent before",
    ]


def test_order() -> None:
    history = History()
    send(history, "a", 1)
    send(history, "b", 0)
    assert history.faults(is_final=False) == ["q 1: a was acknowledged first"]
    history = History()
    first, second = history.begin(), history.begin()
    history.sent("a", first, queue="q", offset=1)
    history.sent("b", second, queue="q", offset=0)  # at the same time
    assert history.faults(is_final=False) == []


def test_offsets() -> None:
    history = History()
    history.fetched("g", "q", 5, history.begin())
    history.committed("g", "q", 5, history.begin())
    history.committed("g", "q", 9, history.begin())
    history.fetched("g", "q", 5, history.begin())
    before, old = history.faults()
    assert before == "g q: offset 5 was found, allowed []"
    assert old == "g q: offset 5 was found, allowed [9]"
    assert history.faults(keeps_offsets=False) == ["g q: offset 5 was found, allowed [-1]"]
