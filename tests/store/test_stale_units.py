"""Units that a loss of power leaves behind the end of a queue never become messages.

The log loses its newest records, a queue's file keeps their units, or those of some pages. Stores
are opened from what is left, stopped in order or not, go on with other messages and are killed: the
queue has all its messages at each start, and no other ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from oberth.formats import batch_consume_queue, consume_queue
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner

pytestmark = pytest.mark.crash

PAGE_SIZE = 4096
COUNT = 20
"""Messages that the queue has at the check point."""


class Rig:
    """A store, and what the queue of a topic is to have."""

    def __init__(self, root: Path, topic: str) -> None:
        self.root = root
        self.topic = topic
        kind = "batchconsumequeue" if topic == "batch" else "consumequeue"
        self.path = root / kind / topic / "0" / f"{0:020d}"
        self.unit = batch_consume_queue.UNIT if topic == "batch" else consume_queue.UNIT
        self.bodies: list[bytes] = []
        self.open()

    def open(self) -> None:
        config = MessageStoreConfig(
            store_path_root_dir=str(self.root),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=consume_queue.UNIT_SIZE * 2000,
            mapped_file_size_batch_consume_queue=batch_consume_queue.UNIT_SIZE * 2000,
            max_hash_slot_num=100,
            max_index_num=400,
            disk_max_used_space_ratio=95,
            disk_space_warning_level_ratio=90,
        )
        self.store = MessageStore(
            config,
            topic_attributes=lambda name: {"queue.type": "BatchCQ"} if name == "batch" else {},
        )
        self.store.load()
        self.store.start(reput_thread=False, background=False)

    def put(self, count: int) -> None:
        for _ in range(count):
            self.bodies.append(b"%d" % len(self.bodies))
            assert self.store.put_message(MessageExtBrokerInner.of(self.topic, self.bodies[-1])).ok
        self.dispatch()

    def put_elsewhere(self, count: int) -> None:
        for _ in range(count):
            assert self.store.put_message(MessageExtBrokerInner.of("other", bytes(100))).ok
        self.dispatch()

    def dispatch(self) -> None:
        while self.store.dispatch_behind_bytes:
            assert self.store.dispatch_nowait()

    def kill(self) -> None:
        self.store.queues.write_behind()
        self.store.kill()
        self.store.commit_log.queue.close()

    def check(self) -> None:
        queue = self.store.queue(self.topic, 0)
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (0, len(self.bodies))
        units = list(self.unit.iter_unpack(queue.units(0, 10_000)))
        records = [self.store.select_record(unit[0]) for unit in units]
        assert [record and decode_record(record).body for record in records] == self.bodies

    def lose_newest(self, count: int) -> None:
        """Kills the store, of whose newest messages the log has none and the queue all units."""
        self.put(COUNT)
        self.put_elsewhere(1)
        self.store.checkpoint_now()
        safe = self.store.max_phy_offset
        self.put(count)
        self.kill()
        del self.bodies[COUNT:]
        lose(self.root / "commitlog" / f"{0:020d}", safe)
        assert any(self.behind())

    def behind(self) -> bytes:
        """What the file has behind the messages that the queue is to have."""
        return self.path.read_bytes()[len(self.bodies) * self.unit.size :]


def lose(path: Path, start: int, stop: int | None = None) -> None:
    """A loss of power takes bytes of a file that were not synced."""
    data = bytearray(path.read_bytes())
    stop = len(data) if stop is None else stop
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)


# What comes behind the last check point: nothing, what may be a wrong number, two, many in bulk.
each_end = pytest.mark.parametrize("newest", [0, 1, 2, 200])
each_kind = pytest.mark.parametrize("topic", ["simple", "batch"])


@each_kind
@each_end
def test_units_of_lost_records_are_gone_after_a_start_that_dispatched_nothing(
    tmp_path: Path, topic: str, newest: int
) -> None:
    rig = Rig(tmp_path, topic)
    rig.lose_newest(8)
    rig.open()
    rig.check()
    rig.store.shutdown()
    assert not any(rig.behind())
    rig.open()
    rig.put(2)
    rig.put_elsewhere(30)  # the log grows beyond the records that were lost
    rig.store.checkpoint_now()
    rig.put(newest)
    rig.kill()
    rig.open()
    rig.check()
    rig.put(3)
    rig.check()
    rig.store.shutdown()


@each_kind
@each_end
def test_units_behind_a_page_that_was_lost_are_gone_after_a_start(
    tmp_path: Path, topic: str, newest: int
) -> None:
    """Of the units that were not synced the disk has later ones, and not the first."""
    rig = Rig(tmp_path, topic)
    rig.lose_newest(700)
    lose(rig.path, COUNT * rig.unit.size, 2 * PAGE_SIZE)
    assert any(rig.behind())
    rig.open()
    rig.check()
    assert not any(rig.behind())
    rig.put(2 * PAGE_SIZE // rig.unit.size + 1 - COUNT)  # up to where the later ones were
    rig.put_elsewhere(1000)
    rig.store.checkpoint_now()
    rig.put(newest)
    rig.kill()
    rig.open()
    rig.check()
    rig.store.shutdown()


@each_kind
@pytest.mark.parametrize("newest", [2, 3, 200])
def test_a_message_that_is_in_its_place_never_costs_older_ones(
    tmp_path: Path, topic: str, newest: int
) -> None:
    """Such units are there again behind a check point, and older than what is dispatched again."""
    rig = Rig(tmp_path, topic)
    rig.lose_newest(500)
    stale = rig.behind()
    rig.open()
    rig.put_elsewhere(800)
    rig.store.checkpoint_now()
    rig.put(newest)
    rig.kill()
    at = len(rig.bodies) * rig.unit.size
    data = bytearray(rig.path.read_bytes())
    data[at:] = stale[newest * rig.unit.size :]
    rig.path.write_bytes(data)
    rig.open()
    rig.check()
    assert not any(rig.behind())
    rig.store.shutdown()
