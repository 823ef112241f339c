"""Who has what was acknowledged: members leave and join, and questions get lost."""

from __future__ import annotations

from oberth.broker.sync_set import JOIN_GAP, JOIN_MS, SETTLED_MS, SyncSet

LAG_MS = 15_000


class Slaves:
    """A master's set with id 1; time stands still but for `now`."""

    def __init__(self, *members: int) -> None:
        self.now = 0
        self.end = 0
        self.set = SyncSet(1, members, 5, lag_max_ms=LAG_MS, now_ms=0)

    def report(self, broker_id: int, offset: int, *, may_join: bool = True) -> None:
        self.set.on_report(
            broker_id, f"c{broker_id}", offset, self.end, self.now, may_join=may_join
        )

    def wanted(self) -> set[int] | None:
        found = self.set.wanted(self.now)
        return None if found is None else set(found)

    def ask(self) -> None:
        found = self.set.wanted(self.now)
        assert found is not None
        self.set.asked(found, self.now)

    def change(self, *members: int) -> None:
        self.ask()
        self.set.known(members, self.set.epoch + 1, self.now)


def test_alone_the_master_waits_for_nobody() -> None:
    slaves = Slaves(1)
    assert slaves.set.has(1000)
    assert slaves.set.copies(1000) == 1
    assert slaves.set.confirm_offset(1000) == 1000
    assert slaves.wanted() is None


def test_every_member_counts() -> None:
    slaves = Slaves(1, 2, 3)
    slaves.end = 100
    slaves.report(2, 100)
    assert not slaves.set.has(100)
    assert slaves.set.copies(100) == 2
    slaves.report(3, 60)
    assert slaves.set.confirm_offset(100) == 60
    slaves.report(3, 100)
    assert slaves.set.has(100)


def test_who_joins_counts_before_it_is_asked_for() -> None:
    slaves = Slaves(1)
    slaves.end = 100
    slaves.report(2, 40)
    assert not slaves.set.has(100)
    assert slaves.wanted() is None
    slaves.report(2, 99)
    assert slaves.wanted() is None
    slaves.report(2, 100)
    assert slaves.wanted() == {1, 2}
    slaves.ask()
    slaves.end = 200
    assert not slaves.set.has(200)
    slaves.set.known([1, 2], 6, slaves.now)
    assert not slaves.set.has(200)
    slaves.report(2, 200)
    assert slaves.set.has(200)


def test_who_is_far_behind_or_slow_holds_nobody_up() -> None:
    slaves = Slaves(1)
    slaves.end = 2 * JOIN_GAP
    slaves.report(2, 10)
    assert slaves.set.has(slaves.end)
    slaves.report(2, slaves.end - JOIN_GAP)
    assert not slaves.set.has(slaves.end)
    slaves.now = JOIN_MS + 1
    assert slaves.wanted() is None
    assert slaves.set.has(slaves.end)
    slaves.report(2, slaves.end - 5)  # not at once again
    assert slaves.set.has(slaves.end)
    slaves.now += JOIN_MS
    slaves.report(2, slaves.end)
    assert slaves.wanted() == {1, 2}


def test_a_learner_never_joins() -> None:
    slaves = Slaves(1)
    slaves.report(2, 0, may_join=False)
    assert slaves.wanted() is None


def test_a_member_leaves_when_its_connection_ends() -> None:
    slaves = Slaves(1, 2)
    slaves.end = 100
    slaves.report(2, 100)
    slaves.set.on_close(2, "an older one")
    assert slaves.wanted() is None
    slaves.set.on_close(2, "c2")
    assert not slaves.set.has(100)
    slaves.change(1)
    assert slaves.set.has(100)
    slaves.report(2, 100)
    assert slaves.wanted() == {1, 2}


def test_a_member_that_comes_back_at_once_stays_when_it_has_everything() -> None:
    slaves = Slaves(1, 2)
    slaves.end = 100
    slaves.report(2, 100)
    slaves.set.on_close(2, "c2")
    slaves.report(2, 90)  # its machine lost what it had confirmed
    assert slaves.wanted() == {1}
    slaves.report(2, 100)
    assert slaves.wanted() is None
    slaves.end = 200
    assert slaves.wanted() is None
    assert not slaves.set.has(200)


def test_a_member_leaves_when_it_lags_for_too_long() -> None:
    slaves = Slaves(1, 2)
    slaves.end = 100
    slaves.now = LAG_MS
    slaves.report(2, 100)
    slaves.end = 200
    slaves.now += LAG_MS
    assert slaves.wanted() is None
    slaves.now += 1
    assert slaves.wanted() == {1}


def test_a_member_close_behind_a_log_that_always_grows_does_not_lag() -> None:
    slaves = Slaves(1, 2, 3)
    for slaves.now in range(0, 4 * LAG_MS, 10):
        slaves.end += 100
        slaves.report(2, slaves.end - 100)
        slaves.report(3, slaves.end - 1000)
        assert slaves.wanted() is None
    end = slaves.end
    for _ in range(0, 2 * LAG_MS, 10):
        slaves.now += 10
        slaves.end += 100
        slaves.report(2, slaves.end - 100)
        slaves.report(3, end)
    assert slaves.wanted() == {1, 2}


def test_who_joins_has_the_whole_time_to_be_level_again() -> None:
    slaves = Slaves(1)
    slaves.report(2, 0, may_join=False)
    slaves.now = 2 * LAG_MS
    slaves.end = 100
    slaves.report(2, 90)
    slaves.end = 200
    slaves.report(2, 100)
    slaves.change(1, 2)
    slaves.report(2, 150)
    assert slaves.wanted() is None


def test_nothing_is_kept_of_those_who_came_once() -> None:
    """Ids are a peer's to choose."""
    slaves = Slaves(1)
    found = slaves.set
    for each in range(2, 1000):
        slaves.end = 100
        slaves.report(each, 50)
        slaves.now += JOIN_MS + 1
        assert slaves.wanted() is None
        found.on_close(each, f"c{each}")
    slaves.now += JOIN_MS + 1
    assert slaves.wanted() is None
    assert (found._gone, found._marks, found._not_before_ms) == (set(), {}, {})
    assert found._level_at_ms.keys() == {1}


def test_who_may_be_a_member_counts_until_it_is_certain() -> None:
    slaves = Slaves(1)
    slaves.report(2, 0)
    slaves.ask()
    slaves.set.unanswered()
    slaves.end = 100
    assert not slaves.set.has(100)
    slaves.set.on_close(2, "c2")
    assert not slaves.set.has(100)  # it may be elected
    assert slaves.wanted() == {1, 2}  # the same again
    slaves.ask()
    slaves.set.refused(slaves.now)
    assert not slaves.set.has(100)  # the first one may still arrive
    slaves.set.known([1], 5, slaves.now)
    assert not slaves.set.has(100)
    slaves.set.known([1, 2], 6, slaves.now)  # it was made
    assert not slaves.set.has(100)
    slaves.change(1)
    assert slaves.set.has(100)


def test_a_question_that_is_long_lost_counts_no_more() -> None:
    slaves = Slaves(1)
    slaves.report(2, 0)
    slaves.ask()
    slaves.set.unanswered()
    slaves.set.on_close(2, "c2")
    slaves.now = SETTLED_MS
    slaves.set.known([1], 5, slaves.now)
    assert slaves.set.has(100)


def test_a_lost_question_is_forgotten_though_it_is_asked_again_and_refused() -> None:
    """Its answer may be on its way for as long as that takes, not for as long as it is repeated."""
    slaves = Slaves(1, 2, 3)
    slaves.end = 100
    slaves.report(2, 100)
    slaves.report(3, 100)
    slaves.set.on_close(3, "c3")
    slaves.ask()
    slaves.set.unanswered()
    slaves.set.on_close(2, "c2")
    while slaves.wanted() == {1, 2}:
        slaves.ask()
        slaves.set.known([1, 2, 3], 5, slaves.now)  # on its way since before the question
        assert slaves.wanted() is None
        slaves.set.refused(slaves.now)  # broker 2 does not live
        slaves.set.known([1, 2, 3], 5, slaves.now)
        slaves.now += 500
        assert slaves.now <= SETTLED_MS + 500
        assert not slaves.set.has(100)
    slaves.change(1)
    assert slaves.set.has(100)


def test_an_answer_that_changes_nothing_ends_the_question() -> None:
    slaves = Slaves(1, 2)
    slaves.end = 100
    slaves.set.on_close(2, "none")
    slaves.report(2, 100)
    slaves.set.on_close(2, "c2")
    slaves.ask()
    slaves.set.answered([1, 2], 5, slaves.now)
    assert slaves.wanted() == {1}
    slaves.ask()
    slaves.set.answered([1], 6, slaves.now)
    assert slaves.set.has(100)


def test_one_that_is_refused_keeps_nobody_from_leaving() -> None:
    """It follows its master, and the controller does not hear of it."""
    slaves = Slaves(1, 3)
    slaves.end = 100
    slaves.report(3, 100)
    slaves.report(2, 100)
    slaves.set.on_close(3, "c3")
    assert slaves.wanted() == {1, 2}
    slaves.ask()
    slaves.set.refused(slaves.now)
    slaves.report(2, 100)
    assert slaves.wanted() == {1}
    slaves.change(1)
    assert slaves.set.has(100)
    slaves.now += JOIN_MS
    slaves.report(2, 100)
    assert slaves.wanted() == {1, 2}


def test_a_refusal_is_certain() -> None:
    slaves = Slaves(1)
    slaves.report(2, 0)
    slaves.ask()
    slaves.set.refused(slaves.now)
    slaves.end = 100
    assert slaves.set.has(100)


def test_old_news_change_nothing() -> None:
    slaves = Slaves(1, 2)
    slaves.set.known([1], 4, slaves.now)
    assert slaves.set.members == {1, 2}


def test_what_is_confirmed_stays_so() -> None:
    slaves = Slaves(1)
    assert slaves.set.confirm_offset(100) == 100
    slaves.end = 100
    slaves.report(2, 40)
    assert slaves.set.confirm_offset(120) == 100
