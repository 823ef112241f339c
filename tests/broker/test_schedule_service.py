"""Delay levels deliver on time, in order, at least once; a real store under a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from oberth.broker.schedule_service import DELIVERIES_PER_TICK_MAX, ScheduleService, restore
from oberth.errors import ConfigFormatError
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.message_store import MessageStore
from oberth.store.messages import (
    LOCAL_HOST,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class World:
    """A store, its schedule and the time."""

    def __init__(self, root: Path) -> None:
        self.now = 1_700_000_000_000
        self.config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=6000,
            max_hash_slot_num=100,
            max_index_num=400,
            message_delay_level="1s 5s 10s",
        )
        self.open()

    def open(self) -> None:
        self.store = MessageStore(self.config, clock_ms=lambda: self.now)
        self.store.load()
        self.store.start(reput_thread=False)
        self.schedule = ScheduleService(self.store, lambda: LOCAL_HOST)

    def delay(self, level: int, body: bytes, queue_id: int = 0) -> None:
        message = MessageExtBrokerInner.of(
            "T", body, tags="A", properties={"DELAY": str(level)}, queue_id=queue_id
        )
        (result,) = self.store.append_messages([message])
        assert result.ok
        self.store.dispatch_nowait()

    def tick(self, ms: int) -> int:
        self.now += ms
        delivered = self.schedule.deliver(self.now)
        self.store.dispatch_nowait()
        return delivered

    def delivered(self, queue_id: int = 0) -> list[bytes]:
        result = self.store.get_message("G", "T", queue_id, 0, 10_000)
        found = []
        for piece in result.records:
            at = 0
            while at < len(piece):
                message = decode_record(piece, at)
                found.append(message.body)
                at += message.record_size
        return found


class Refusing:
    """Stands before a store and refuses bodies."""

    def __init__(self, world: World, *refused: bytes) -> None:
        self.refused = set(refused)
        self._store = world.store
        world.schedule.append = self

    def __call__(self, messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        taken = iter(
            self._store.append_messages([m for m in messages if m.body not in self.refused])
        )
        return [
            PutMessageResult(PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
            if message.body in self.refused
            else next(taken)
            for message in messages
        ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.store.shutdown()


def test_levels_deliver_at_their_time(world: World) -> None:
    world.delay(1, b"1s", 2)
    world.delay(3, b"10s")
    world.delay(2, b"5s")
    world.schedule.start()
    assert world.tick(999) == 0
    assert world.tick(1) == 1
    assert world.delivered(2) == [b"1s"]
    assert world.tick(3_999) == 0
    assert world.tick(1) == 1
    assert world.tick(5_000) == 1
    assert world.delivered() == [b"5s", b"10s"]
    assert world.schedule.offsets == {1: 1, 2: 1, 3: 1}


def test_a_level_above_the_highest_is_the_highest(world: World) -> None:
    world.delay(99, b"x")
    world.schedule.start()
    assert world.tick(9_999) == 0
    assert world.tick(1) == 1


def test_a_clock_set_back_delays_by_the_level_at_most(world: World) -> None:
    world.delay(3, b"x")
    world.schedule.start()
    world.now -= 3_600_000
    assert world.tick(0) == 1


def test_a_backlog_is_delivered_in_pieces_and_in_order(world: World) -> None:
    count = DELIVERIES_PER_TICK_MAX + 500
    for n in range(count):
        world.delay(1, str(n).encode())
    world.schedule.start()
    assert world.tick(2_000) == DELIVERIES_PER_TICK_MAX
    assert world.tick(100) == 500
    assert world.tick(100) == 0
    assert world.store.max_offset_in_queue("T", 0) == count


def test_a_restart_goes_on_where_the_file_says(world: World) -> None:
    world.delay(1, b"a")
    world.schedule.start()
    assert world.tick(1_000) == 1
    world.delay(1, b"b")
    body = world.schedule.to_body()
    world.store.shutdown()
    world.open()
    world.schedule.read(body)
    world.schedule.start()
    assert world.tick(1_000) == 1
    assert world.delivered() == [b"a", b"b"]


def test_without_the_file_messages_come_again_and_none_is_lost(world: World) -> None:
    world.delay(1, b"a")
    world.schedule.start()
    assert world.tick(1_000) == 1
    world.store.shutdown()
    world.open()
    world.schedule.start()
    assert world.tick(1_000) == 1
    assert world.delivered() == [b"a", b"a"]


def test_offsets_outside_the_queue_are_corrected(world: World) -> None:
    world.delay(1, b"a")
    world.schedule.read({"offsetTable": {"1": 99, "2": 7}})
    world.schedule.start()
    assert world.schedule.offsets == {1: 1, 2: 0}
    assert world.schedule.behind(1) == (1, 1)


def test_what_cannot_be_delivered_is_passed(world: World) -> None:
    world.delay(1, b"a")
    delayed = world.store.look_message_by_offset(0)
    assert delayed is not None
    assert restore(delayed, LOCAL_HOST) is not None
    delayed.properties_raw = b"REAL_TOPIC\x01../../x\x02REAL_QID\x010\x02"
    assert restore(delayed, LOCAL_HOST) is None
    delayed.properties_raw = b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02"
    assert restore(delayed, LOCAL_HOST) is None
    delayed.properties_raw = b"DELAY\x011\x02"
    assert restore(delayed, LOCAL_HOST) is None


def test_what_is_too_large_for_the_store_is_passed_and_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"a", b"large" * 100, b"b"):
        world.delay(1, body)
    world.schedule.start()
    world.config.max_message_size = 100
    assert world.tick(1_000) == 3
    world.delay(1, b"c")
    assert [world.tick(1_000), world.tick(100)] == [1, 0]
    assert world.delivered() == [b"a", b"b", b"c"]
    (said,) = [record.message for record in caplog.records]
    delayed = world.store.get_message("G", SCHEDULE, 0, 1, 1).commit_log_offsets[0]
    assert "MESSAGE_ILLEGAL" in said
    assert f"can be read at {delayed} of the CommitLog, in {SCHEDULE}" in said


def test_what_lies_behind_a_refused_message_is_delivered_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"%d" % n for n in range(6)]
    for body in bodies:
        world.delay(1, body)
    world.delay(2, b"another level")
    world.schedule.start()
    refusing = Refusing(world, b"1", b"4")
    assert [world.tick(1_000), world.tick(100), world.tick(100)] == [6, 2, 2]
    assert world.delivered() == [b"0", b"2", b"3", b"5"]
    assert world.schedule.behind(1) == (1, 6)
    refusing.refused.remove(b"1")
    assert [world.tick(100), world.tick(100)] == [2, 1]
    assert world.schedule.behind(1) == (4, 6)
    refusing.refused.remove(b"4")
    assert [world.tick(100), world.tick(100)] == [1, 0]
    assert sorted(world.delivered()) == bodies
    assert world.schedule.behind(1) == (6, 6)
    assert len(caplog.records) == 2


def test_a_refused_message_does_not_wait_for_the_next_one_to_be_due(world: World) -> None:
    world.delay(3, b"a")
    world.now += 5_000
    world.delay(3, b"b")
    world.schedule.start()
    refusing = Refusing(world, b"a")
    assert world.tick(5_000) == 1
    refusing.refused.clear()
    assert world.tick(100) == 1
    assert world.delivered() == [b"a"]


@pytest.mark.parametrize("document", [[], {"offsetTable": 1}, {"offsetTable": {"x": "y"}}])
def test_what_is_no_offset_file_is_refused(world: World, document: object) -> None:
    with pytest.raises(ConfigFormatError):
        world.schedule.read(document)
