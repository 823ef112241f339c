"""PopBuffer alone: what stays, what is stored when, and which offsets are committed, in order."""

from __future__ import annotations

from oberth.broker.pop.buffer import TOO_LATE_MARGIN_MS, PopBuffer
from oberth.broker.pop.check_point import PopAck, PopCheckPoint

POP_MS, STAY_MS, MARGIN_MS, INVISIBLE_MS = 1_000, 10_000, 3_000, 60_000
VISIBLE_MS = POP_MS + INVISIBLE_MS


class Rig:
    """A buffer, and what it stored and committed."""

    def __init__(self, size_max: int = 10) -> None:
        self.stored: list[tuple[PopCheckPoint, int, PopAck | None]] = []
        self.committed: list[tuple[str, str, int, int]] = []
        self.takes = True
        self.buffer = PopBuffer(STAY_MS, MARGIN_MS, size_max, self._store, self._commit)

    def _store(self, check_point: PopCheckPoint, revive_queue_id: int, ack: PopAck | None) -> bool:
        if self.takes:
            self.stored.append((check_point, revive_queue_id, ack))
        return self.takes

    def _commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        self.committed.append((topic, group, queue_id, offset))

    def add(self, start: int, *, count: int = 2, now_ms: int = POP_MS, queue_id: int = 0) -> bool:
        check_point = check_point_of(start, count, queue_id)
        return self.buffer.add(check_point, 5, start + count, now_ms)


def check_point_of(start: int, count: int = 2, queue_id: int = 0) -> PopCheckPoint:
    return PopCheckPoint(start, POP_MS, INVISIBLE_MS, queue_id, "T", "G", "b", tuple(range(count)))


def ack_of(start: int, *offsets: int, queue_id: int = 0) -> PopAck:
    return PopAck(offsets, start, POP_MS, queue_id, "T", "G", "b", is_batch=len(offsets) > 1)


def test_what_is_acknowledged_altogether_is_never_stored() -> None:
    rig = Rig()
    assert rig.add(10)
    assert (len(rig.buffer), rig.buffer.latest_offset("T", "G", 0)) == (1, 12)
    assert rig.buffer.ack(ack_of(10, 10))
    assert rig.committed == []
    assert rig.buffer.ack(ack_of(10, 11))
    assert rig.committed == [("T", "G", 0, 12)]
    assert (len(rig.buffer), rig.buffer.latest_offset("T", "G", 0)) == (0, -1)
    rig.buffer.flush()
    assert rig.stored == []
    assert not rig.buffer._queues, "nothing is kept of a queue where nothing waits"


def test_an_offset_that_goes_back_to_the_beginning_is_committed_too() -> None:
    rig = Rig()
    assert rig.add(10)
    rig.buffer.add_finished("T", "G", 0, 0)
    assert rig.buffer.ack(ack_of(10, 10, 11))
    assert rig.committed == [("T", "G", 0, 0)]


def test_offsets_are_committed_in_the_order_of_the_pops() -> None:
    rig = Rig()
    assert rig.add(10)
    assert rig.add(12)
    rig.buffer.add_finished("T", "G", 0, 20)
    assert rig.buffer.latest_offset("T", "G", 0) == 20
    assert rig.buffer.ack(ack_of(12, 12, 13))
    assert rig.committed == []
    assert rig.buffer.ack(ack_of(10, 10, 11))
    assert rig.committed == [("T", "G", 0, 20)]
    rig.buffer.add_finished("T", "G", 0, 21)  # nothing is waiting before it
    assert rig.committed[1:] == [("T", "G", 0, 21)]


def test_queues_do_not_wait_for_each_other() -> None:
    rig = Rig()
    assert rig.add(10)
    assert rig.add(10, queue_id=1)
    assert rig.buffer.ack(ack_of(10, 10, 11, queue_id=1))
    assert rig.committed == [("T", "G", 1, 12)]


def test_an_acknowledgement_of_something_else_is_not_for_here() -> None:
    rig = Rig()
    assert rig.add(10)
    assert not rig.buffer.ack(ack_of(11, 11))
    assert not rig.buffer.ack(ack_of(10, 10, queue_id=1))


def test_a_check_point_that_has_little_time_left_is_not_kept() -> None:
    rig = Rig()
    latest = VISIBLE_MS - MARGIN_MS - TOO_LATE_MARGIN_MS
    assert not rig.add(10, now_ms=latest)
    assert rig.add(10, now_ms=latest - 1)


def test_the_same_pop_twice_and_more_than_there_is_room_for() -> None:
    rig = Rig(size_max=2)
    assert rig.add(10)
    assert not rig.add(10)
    assert rig.add(12)
    assert not rig.add(14)


def test_it_is_stored_once_it_has_been_here_for_long() -> None:
    rig = Rig()
    assert rig.add(10, count=3)
    assert rig.buffer.ack(ack_of(10, 11))
    rig.buffer.on_time(POP_MS + STAY_MS)
    assert rig.stored == []
    rig.buffer.on_time(POP_MS + STAY_MS + 1)
    assert rig.stored == [
        (check_point_of(10, 3), 5, PopAck((11,), 10, POP_MS, 0, "T", "G", "b", is_batch=True))
    ]
    assert rig.committed == [("T", "G", 0, 13)]
    assert len(rig.buffer) == 0
    assert not rig.buffer.ack(ack_of(10, 10))


def test_it_is_stored_before_its_messages_are_visible_again() -> None:
    rig = Rig()
    rig.buffer = PopBuffer(10 * INVISIBLE_MS, MARGIN_MS, 10, rig._store, rig._commit)
    assert rig.add(10)
    rig.buffer.on_time(VISIBLE_MS - MARGIN_MS - 1)
    assert rig.stored == []
    rig.buffer.on_time(VISIBLE_MS - MARGIN_MS)
    assert rig.stored == [(check_point_of(10), 5, None)]


def test_what_could_not_be_stored_stays_and_moves_no_offset() -> None:
    rig = Rig()
    assert rig.add(10)
    rig.takes = False
    rig.buffer.flush()
    assert (len(rig.buffer), rig.committed) == (1, [])
    rig.takes = True
    rig.buffer.flush()
    assert (len(rig.buffer), rig.committed) == (0, [("T", "G", 0, 12)])


def test_a_reset_stores_what_waits_and_commits_nothing() -> None:
    rig = Rig()
    assert rig.add(10)
    assert rig.add(12)
    assert rig.add(10, queue_id=1)
    assert rig.buffer.ack(ack_of(12, 12, 13))
    rig.buffer.forget_queue("T", "G", 0)
    rig.buffer.forget_queue("T", "G", 7)  # nobody popped it
    assert [each for each, _, _ in rig.stored] == [check_point_of(10)]
    assert rig.committed == []
    assert (len(rig.buffer), rig.buffer.latest_offset("T", "G", 0)) == (1, -1)


def test_of_a_deleted_topic_nothing_is_stored_or_committed() -> None:
    rig = Rig()
    other = PopCheckPoint(10, POP_MS, INVISIBLE_MS, 0, "other", "G", "b", (0,))
    assert all(rig.add(start, queue_id=queue_id) for start, queue_id in ((10, 0), (12, 0), (10, 1)))
    assert rig.buffer.add(other, 5, 11, POP_MS)
    assert rig.buffer.ack(ack_of(12, 12, 13))
    rig.buffer.forget_topic("T")
    assert (len(rig.buffer), rig.buffer.latest_offset("T", "G", 0)) == (1, -1)
    assert not rig.buffer.ack(ack_of(10, 10, 11))
    assert rig.add(10), "the topic is made again"
    assert rig.buffer.ack(ack_of(10, 10, 11))
    assert rig.committed == [("T", "G", 0, 12)]
    rig.buffer.flush()
    assert [each for each, _, _ in rig.stored] == [other]
