"""A slave's timer follows its master's and goes on in its place: nothing is lost or early."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from oberth.formats.config_files import Metric, TimerMetrics
from oberth.formats.data_version import DataVersion
from oberth.formats.message_store_config import BrokerRole, MessageStoreConfig
from oberth.formats.names import TIMER_TOPIC
from oberth.formats.timer_checkpoint import decode_timer_checkpoint
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.store.timer.timer_message_store import TimerMessageStore

START_MS = 1_700_000_000_000
HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
WINDOW_SLOTS = 60


class Rig:
    """A store and its timer; the clock is the test's."""

    def __init__(self, root: Path, clock: list[int], role: BrokerRole) -> None:
        self.clock = clock
        config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 17,
            mapped_file_size_consume_queue=20 * 500,
            mapped_file_size_timer_log=1456,
            message_index_enable=False,
            disk_max_used_space_ratio=95,
            timer_roll_window_slot=WINDOW_SLOTS,
            broker_role=role,
        )
        self.store = MessageStore(config, clock_ms=lambda: clock[0])
        self.timer = TimerMessageStore(self.store, lambda: HOST)
        self.store.load()
        self.timer.load(clock[0])
        self.store.start(background=False)

    def step(self) -> None:
        """What a turn of the broker's clock does."""
        self.store.dispatch_nowait()
        is_slave = self.store.config.broker_role is BrokerRole.SLAVE
        step: Any = self.timer.on_time_of_slave if is_slave else self.timer.on_time
        while step(self.clock[0], 7).more:
            self.store.dispatch_nowait()
        self.store.dispatch_nowait()

    def copy_to(self, slave: Rig) -> None:
        """Sends the slave what it lacks of the log."""
        log = self.store.commit_log
        while (at := slave.store.max_phy_offset) < log.max_offset:
            segment = log.queue.find(at)
            assert segment is not None
            data = segment.select(at - segment.start_offset)
            assert data is not None
            assert slave.store.append_replica(at, bytes(data))
        slave.store.dispatch_nowait()

    def tell(self, slave: Rig) -> None:
        """Answers 60."""
        body = self.timer.checkpoint(self.clock[0]).encode()
        slave.timer.follow(decode_timer_checkpoint(body))

    def delivered(self) -> list[tuple[bytes, int]]:
        """(body, store time) of what has come to its topic."""
        found = []
        offset = 0
        while (result := self.store.get_message("g", "T", 0, offset, 32)).message_count:
            for at in result.commit_log_offsets:
                message = self.store.look_message_by_offset(at)
                assert message is not None
                found.append((message.body, message.store_timestamp))
            offset = result.next_begin_offset
        return found

    def close(self) -> None:
        self.timer.shutdown(self.clock[0])
        self.store.shutdown()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("killed", [False, True])
def test_a_slave_goes_on_where_its_master_was(tmp_path: Path, seed: int, killed: bool) -> None:
    rng = random.Random(seed)
    clock = [START_MS]
    master = Rig(tmp_path / "a", clock, BrokerRole.ASYNC_MASTER)
    slave = Rig(tmp_path / "b", clock, BrokerRole.SLAVE)
    due: dict[bytes, int] = {}
    for turn in range(rng.randrange(20, 60)):
        for number in range(rng.randrange(3)):
            body = b"%d-%d" % (turn, number)
            # Up to three windows of the wheel: some roll, twice.
            delay_ms = rng.choice((0, 2_000, 9_000, 40_000, 100_000, 180_000))
            message = MessageExtBrokerInner.of(
                "T", body, properties={"UNIQ_KEY": f"U{turn}-{number}",
                                       "TIMER_DELAY_MS": str(delay_ms)},
            )  # fmt: skip
            assert master.store.put_message(message).status is PutMessageStatus.PUT_OK
            due[body] = clock[0] + delay_ms
        clock[0] += rng.randrange(4000)
        master.step()
        if rng.random() < 0.8:
            master.copy_to(slave)
        if rng.random() < 0.6:
            master.tell(slave)
        before = slave.store.max_phy_offset
        slave.step()
        assert slave.store.max_phy_offset == before, "a slave puts nothing"
        if rng.random() < 0.2:
            slave.timer.flush_now(clock[0])
        if rng.random() < 0.1:
            slave.close()
            slave = Rig(tmp_path / "b", clock, BrokerRole.SLAVE)
    master.copy_to(slave)
    if killed:
        slave.store.kill()
    else:
        slave.close()
    heir = Rig(tmp_path / "b", clock, BrokerRole.ASYNC_MASTER)
    clock[0] += 1000
    for _ in range(300):
        heir.step()
        clock[0] += 1000
    found = heir.delivered()
    assert {body for body, _ in found} == set(due)
    assert all(time >= due[body] - due[body] % 1000 for body, time in found)
    heir.close()
    master.close()


def test_what_the_master_has_delivered_leaves_the_wheel(tmp_path: Path) -> None:
    clock = [START_MS]
    master = Rig(tmp_path / "a", clock, BrokerRole.ASYNC_MASTER)
    slave = Rig(tmp_path / "b", clock, BrokerRole.SLAVE)
    for delay in (5_000, 20_000):
        message = MessageExtBrokerInner.of(
            "T", b"%d" % delay, properties={"UNIQ_KEY": f"U{delay}", "TIMER_DELAY_MS": str(delay)}
        )
        assert master.store.put_message(message).status is PutMessageStatus.PUT_OK
    master.copy_to(slave)
    slave.step()
    assert slave.timer.queue_offset == 0, "the master has taken nothing in yet"
    master.step()
    master.tell(slave)
    slave.step()
    assert slave.timer.queue_offset == 2 == slave.store.max_offset_in_queue(TIMER_TOPIC, 0)
    assert len(slave.timer.wheel) == 2
    clock[0] += 10_000
    slave.step()
    assert len(slave.timer.wheel) == 2, "the master decides what is over"
    master.step()
    master.tell(slave)
    slave.step()
    assert len(slave.timer.wheel) == 1
    slave.close()
    heir = Rig(tmp_path / "b", clock, BrokerRole.ASYNC_MASTER)
    assert (len(heir.timer.wheel), heir.timer.queue_offset) == (1, 2)
    heir.close()
    master.close()


def test_metrics_are_the_masters(tmp_path: Path) -> None:
    slave = Rig(tmp_path / "b", [START_MS], BrokerRole.SLAVE)
    metrics = TimerMetrics()
    metrics.timing_count["T"] = Metric(count=7)
    metrics.data_version = DataVersion(counter=3)
    slave.timer.take_metrics(metrics)
    assert slave.timer.metrics(START_MS).timing_count["T"].count == 7
    slave.close()
