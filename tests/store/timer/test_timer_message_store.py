"""Timed messages under a virtual clock: golden stores go on, nothing comes early, nothing is lost.

A store without threads and a timer are driven by hand. The golden store with pending timers is
opened here and must then hold what RocketMQ delivered from it; wheel and log that we write are
compared with RocketMQ's unit by unit; random schedules with restarts, kills and lost files are held
against a list of what was promised.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rigs.campaigns import examples, rounds
from tests.rigs.damage import copy_killed

from oberth.errors import StoreCorruptError, StoreError, StoreFullError
from oberth.formats import properties as p
from oberth.formats.message import decode_record
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.names import TIMER_TOPIC
from oberth.formats.timer_checkpoint import decode_timer_checkpoint
from oberth.formats.timer_log import UNIT_SIZE
from oberth.formats.timer_wheel import FILE_SIZE, decode_slot, slot_position
from oberth.store.files import FileSystem
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from oberth.store.timer.timer_message_store import CLEAN_INTERVAL_MS, TimerMessageStore
from oberth.testing.fault_disk import FaultDisk, PowerCut

HERE = "tests/store/timer/test_timer_message_store.py"
START_MS = 1_700_000_000_000
HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))


class Rig:
    """A store, its timer and a clock."""

    def __init__(
        self, root: Path, now_ms: int = START_MS, files: FileSystem | None = None, **options: Any
    ) -> None:
        self.now_ms = now_ms
        self.config = MessageStoreConfig(
            store_path_root_dir=str(root),
            **{
                "mapped_file_size_commit_log": 1 << 17,
                "mapped_file_size_consume_queue": 20 * 500,
                "mapped_file_size_timer_log": 1456,
                "max_hash_slot_num": 100,
                "max_index_num": 400,
                "disk_max_used_space_ratio": 95,
                **options,
            },
        )
        self.store = MessageStore(self.config, clock_ms=lambda: self.now_ms, files=files)
        self.timer = TimerMessageStore(self.store, lambda: HOST)
        self.store.load()
        self.timer.load(now_ms)
        self.store.start(background=False)

    def put(self, body: bytes, *, topic: str = "T", **properties: object) -> PutMessageStatus:
        names = {name: str(value) for name, value in properties.items()}
        message = MessageExtBrokerInner.of(
            topic, body, properties={"UNIQ_KEY": f"U{body.decode()}", **names}, queue_id=1
        )
        return self.store.put_message(message).status

    def run(self, ms: int = 0, *, step_ms: int = 500, flush: bool = False) -> None:
        """Lets time pass."""
        end = self.now_ms + ms
        while True:
            self.store.dispatch_nowait()
            while self.timer.on_time(self.now_ms, 7).more:
                self.store.dispatch_nowait()
            self.store.dispatch_nowait()
            if flush:
                self.timer.flush_now(self.now_ms)
            if self.now_ms >= end:
                return
            self.now_ms = min(end, self.now_ms + step_ms)

    def delivered(self, topic: str = "T", queue_id: int = 1) -> list[tuple[bytes, int]]:
        """(body, store time) of what is in a queue."""
        result = self.store.get_message("g", topic, queue_id, 0, 32)
        found = []
        offset = 0
        while result.message_count:
            for at in result.commit_log_offsets:
                message = self.store.look_message_by_offset(at)
                assert message is not None
                found.append((message.body, message.store_timestamp))
            offset = result.next_begin_offset
            result = self.store.get_message("g", topic, queue_id, offset, 32)
        return found

    def close(self) -> None:
        self.timer.shutdown(self.now_ms)
        self.store.shutdown()

    def kill(self) -> None:
        self.store.kill()


def test_a_message_comes_when_its_second_is_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.put(b"a", TIMER_DELAY_MS=2500) is PutMessageStatus.PUT_OK
    assert rig.put(b"b", TIMER_DELAY_SEC=3) is PutMessageStatus.PUT_OK
    assert rig.put(b"c", TIMER_DELIVER_MS=START_MS + 1) is PutMessageStatus.PUT_OK
    rig.run(10_000, step_ms=100)
    came = dict(rig.delivered())
    due = {b"a": 2500, b"b": 3000, b"c": 1}
    assert set(came) == set(due)
    for body, after_ms in due.items():
        assert START_MS + after_ms <= came[body] <= START_MS + after_ms + 1100
    rig.close()


def test_a_deletion_makes_its_slot_smaller(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(b"a", TIMER_DELIVER_MS=START_MS + 5000)
    rig.put(b"b", TIMER_DELIVER_MS=START_MS + 5000)
    rig.put(b"x", TIMER_DELIVER_MS=START_MS + 5000, TIMER_DEL_UNIQKEY="Ua")
    rig.run()
    slot = rig.timer.wheel.earliest()
    assert slot is not None
    assert slot.num == 1
    rig.close()


@pytest.mark.parametrize("end", [b"", b"\x02"])
def test_what_is_added_to_properties_is_divided_from_them(tmp_path: Path, end: bytes) -> None:
    rig = Rig(tmp_path)
    raw = b"TIMER_DELIVER_MS\x01%d\x02K\x01v%s" % (START_MS + 3000, end)
    assert rig.store.put_message(MessageExtBrokerInner("T", b"a", raw, 1)).ok
    rig.run(5000)
    at = rig.store.get_message("g", "T", 1, 0, 1).commit_log_offsets[0]
    message = rig.store.look_message_by_offset(at)
    assert message is not None
    assert message.properties["K"] == "v"
    assert b"\x02\x02" not in message.properties_raw
    rig.close()


def test_more_is_said_while_more_is_due_than_one_step_takes(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(7):
        rig.put(b"%d" % number, TIMER_DELIVER_MS=START_MS + 3000)
    rig.run()
    rig.now_ms += 10_000
    while rig.timer.on_time(rig.now_ms, 2).more:
        rig.store.dispatch_nowait()
    rig.store.dispatch_nowait()
    assert len(rig.delivered()) == 7
    rig.close()


def test_properties_are_those_that_rocketmq_adds(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(b"a", TIMER_DELAY_SEC=3)
    rig.run(5000)
    at = rig.store.get_message("g", "T", 1, 0, 1).commit_log_offsets[0]
    message = rig.store.look_message_by_offset(at)
    assert message is not None
    assert message.properties[p.TIMER_OUT_MS] == str(START_MS + 2000)
    assert message.properties[p.REAL_TOPIC] == "T"
    assert message.properties[p.TIMER_ENQUEUE_MS] == str(START_MS)
    assert int(message.properties[p.TIMER_DEQUEUE_MS]) >= START_MS + 3000
    rig.close()


def test_metrics_of_nothing_are_not_counted_as_a_change(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.timer.metrics(rig.now_ms).data_version.counter == 0
    rig.put(b"a", TIMER_DELIVER_MS=rig.now_ms + 60_000)
    rig.run(1000)
    assert rig.timer.metrics(rig.now_ms).data_version.counter == 1
    rig.close()


def test_metrics_count_a_change_once_and_are_written_when_there_was_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(b"a", TIMER_DELIVER_MS=rig.now_ms + 60_000)
    rig.run(1000)
    before = rig.timer.metrics(rig.now_ms).data_version
    assert rig.timer.metrics(rig.now_ms + 1).data_version == before
    rig.put(b"b", TIMER_DELIVER_MS=rig.now_ms + 60_000)
    rig.run(1000)
    work = rig.timer.begin_flush(rig.now_ms)
    assert work is not None
    assert work.metrics is not None
    after = rig.timer.metrics(rig.now_ms)
    assert after.data_version.counter == before.counter + 1
    assert after.timing_count["T"].count == 2
    rig.timer.flush(work)
    rig.run(120_000, step_ms=30_000)
    again = rig.timer.begin_flush(rig.now_ms)
    assert again is not None
    rig.timer.flush(again)
    rig.run(3_600_000, step_ms=600_000)
    quiet = rig.timer.begin_flush(rig.now_ms)
    assert quiet is None or quiet.metrics is None
    rig.close()


def test_checkpoints_are_counted_on_over_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(3):
        rig.put(b"%d" % number, TIMER_DELAY_MS=60_000)
        rig.run(1000, flush=True)
    rig.close()
    counter = rig.timer.checkpoint(rig.now_ms).counter
    assert counter >= 3
    rig = Rig(tmp_path, rig.now_ms)
    assert rig.timer.checkpoint(rig.now_ms).counter == counter
    rig.close()


def test_a_close_writes_down_what_no_flush_had_yet(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(b"a", TIMER_DELAY_MS=60_000)
    rig.run(1000)
    rig.close()
    written = decode_timer_checkpoint((tmp_path / "config" / "timercheck").read_bytes())
    assert (written.last_timer_queue_offset, written.last_timer_log_flush_pos) == (1, UNIT_SIZE)
    wheel = (tmp_path / "timerwheel").read_bytes()
    slots = [decode_slot(wheel, slot_position(START_MS + ms)) for ms in (59_000, 60_000, 61_000)]
    assert sum(slot.num for slot in slots) == 1


@pytest.mark.parametrize("is_wheel_lost", [False, True])
@pytest.mark.parametrize("flushed", [70, 100, 110])
def test_a_log_of_many_segments_goes_on_where_it_was_flushed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flushed: int, is_wheel_lost: bool
) -> None:
    size = 28 * UNIT_SIZE + 44  # a blank ends each segment
    rig = Rig(tmp_path, mapped_file_size_timer_log=size)
    for number in range(120):
        if number == flushed:
            rig.run(flush=True)
        rig.put(b"%d" % number, TIMER_DELAY_MS=60_000 + 1000 * number)
    rig.run()
    rig.kill()
    assert len(list((tmp_path / "timerlog").iterdir())) >= 3
    if is_wheel_lost:
        (tmp_path / "timerwheel").unlink()
    rig = Rig(tmp_path, rig.now_ms, mapped_file_size_timer_log=size)
    rig.run(300_000, step_ms=1000)
    assert Counter(body for body, _ in rig.delivered()) == {b"%d" % n: 1 for n in range(120)}
    assert "timer log" not in caplog.text, "it is whole"
    rig.close()


def test_what_lay_behind_the_check_point_comes_though_the_first_files_are_gone(
    tmp_path: Path,
) -> None:
    size = 28 * UNIT_SIZE + 44
    rig = Rig(tmp_path, mapped_file_size_timer_log=size)
    for number in range(120):
        if number == 60:
            rig.run(flush=True)
        rig.put(b"%d" % number, TIMER_DELAY_MS=60_000 + 1000 * number)
    rig.run()
    rig.timer.log.write_out()
    rig.kill()
    min((tmp_path / "timerlog").iterdir()).unlink()
    rig = Rig(tmp_path, rig.now_ms, mapped_file_size_timer_log=size)
    rig.run(300_000, step_ms=1000)
    assert Counter(body for body, _ in rig.delivered()) == {b"%d" % n: 1 for n in range(120)}
    rig.close()


def test_what_is_far_away_rolls(tmp_path: Path) -> None:
    rig = Rig(tmp_path, timer_roll_window_slot=60)
    rig.put(b"near", TIMER_DELAY_SEC=30)
    rig.put(b"far", TIMER_DELAY_SEC=200)
    rig.run(199_000, step_ms=1000)
    assert [body for body, _ in rig.delivered()] == [b"near"]
    assert rig.store.max_offset_in_queue(TIMER_TOPIC, 0) > 4
    rig.run(3000)
    assert [body for body, _ in rig.delivered()] == [b"near", b"far"]
    at = rig.store.get_message("g", "T", 1, 1, 1).commit_log_offsets[0]
    message = rig.store.look_message_by_offset(at)
    assert message is not None
    assert int(message.properties[p.TIMER_ROLL_TIMES]) >= 3
    rig.close()


@pytest.mark.parametrize(
    ("given", "taken"), [(1, 604_740), (2, 2), (604_740, 604_740), (604_741, 604_740)]
)
def test_a_window_that_the_wheel_cannot_hold_is_the_largest_one(
    given: int, taken: int, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, timer_roll_window_slot=given)
    assert rig.timer._window_ms == taken * rig.config.timer_precision_ms
    rig.close()


@pytest.mark.parametrize("window", [60, 172_800])
def test_a_recalled_message_does_not_come(tmp_path: Path, window: int) -> None:
    rig = Rig(tmp_path, timer_roll_window_slot=window)
    due = START_MS + 100_500
    rig.put(b"kept", TIMER_DELIVER_MS=due)
    rig.put(b"gone", TIMER_DELIVER_MS=due)
    rig.run(20_000)
    rig.put(b"x", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY="Ugone")
    rig.put(b"y", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY="T+Uelse")
    rig.run(90_000)
    assert [body for body, _ in rig.delivered()] == [b"kept"]
    rig.close()


def test_a_recall_in_one_topic_takes_nothing_from_another(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    due = START_MS + 10_500
    rig.put(b"kept", TIMER_DELIVER_MS=due)
    for key in ("Ukept", "T+Ukept", "Other+Ukept"):
        rig.put(b"x", topic="Other", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY=key)
    rig.run(20_000)
    assert [body for body, _ in rig.delivered()] == [b"kept"]
    rig.close()


def test_a_recall_holds_when_the_clock_jumps_over_both(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    due = START_MS + 10_500
    rig.run()
    for number in range(20):  # more than one step takes in
        rig.put(b"%d" % number, TIMER_DELIVER_MS=due)
        rig.put(b"x", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY=f"U{number}")
    rig.put(b"kept", TIMER_DELIVER_MS=due)
    rig.now_ms += 60_000
    rig.run()
    assert [body for body, _ in rig.delivered()] == [b"kept"]
    rig.close()


@pytest.mark.parametrize("ends", ["kill", "close"])
def test_a_recall_holds_when_both_are_due_while_nobody_runs(tmp_path: Path, ends: str) -> None:
    rig = Rig(tmp_path)
    due = START_MS + 10_500
    rig.put(b"first", TIMER_DELIVER_MS=due)
    rig.run(1000, flush=True)
    rig.put(b"gone", TIMER_DELIVER_MS=due)
    for key in ("Ufirst", "Ugone"):
        rig.put(b"x", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY=key)
    rig.put(b"kept", TIMER_DELIVER_MS=due)
    rig.store.dispatch_nowait()
    getattr(rig, ends)()
    again = Rig(tmp_path, now_ms=START_MS + 60_000)
    again.run(2000)
    assert [body for body, _ in again.delivered()] == [b"kept"]
    again.close()


def test_nothing_is_taken_in_or_delivered_twice_while_the_log_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    # What is over before it is taken in goes to its topic at once, before and behind a timed one.
    for body, due in ((b"a", START_MS + 1), (b"b", START_MS + 9000), (b"c", START_MS + 1)):
        assert rig.put(body, TIMER_DELIVER_MS=due) is PutMessageStatus.PUT_OK
    with monkeypatch.context() as patch:

        def no_room() -> None:
            raise StoreFullError("no room")

        patch.setattr(rig.timer.log, "make_room", no_room)
        rig.run(3000)
        assert rig.timer.enqueue_behind == 3
        assert rig.delivered() == []
    rig.run(20_000)
    assert sorted(body for body, _ in rig.delivered()) == [b"a", b"b", b"c"]
    rig.close()


@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_due_behind_a_refused_message_is_delivered_once(
    tmp_path: Path, is_late: bool
) -> None:
    """Whether the wheel has them, or they were due before it could take them in."""
    rig = Rig(tmp_path)
    refused = {b"1"}

    def append(messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        taken = iter(rig.store.append_messages([m for m in messages if m.body not in refused]))
        return [
            PutMessageResult(PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
            if message.body in refused
            else next(taken)
            for message in messages
        ]

    rig.timer.append = append
    for n in range(4):
        assert rig.put(b"%d" % n, TIMER_DELAY_MS=2000) is PutMessageStatus.PUT_OK
    if is_late:
        rig.now_ms += 60_000
        rig.timer.on_time(rig.now_ms, 7)
    rig.run(10_000)
    assert sorted(body for body, _ in rig.delivered()) == [b"0", b"2", b"3"]
    refused.clear()
    rig.run(2_000)
    assert sorted(body for body, _ in rig.delivered()) == [b"0", b"1", b"2", b"3"]
    rig.close()


@pytest.mark.parametrize("newer", [False, True])
def test_what_the_timer_log_has_behind_a_refused_message_is_delivered_once(
    tmp_path: Path, newer: bool
) -> None:
    """After a kill before the check point, with and without a message that came since."""
    rig = Rig(tmp_path)
    rig.config.timer_stop_enqueue = True
    rig.put(b"due", TIMER_DELIVER_MS=START_MS + 1500)
    rig.put(b"later", TIMER_DELIVER_MS=START_MS + 60_000)
    rig.run(5000)
    rig.config.timer_stop_enqueue = False
    rig.run()
    rig.timer.log.write_out()
    rig.kill()
    again = Rig(tmp_path, rig.now_ms)
    if newer:
        again.put(b"newer", TIMER_DELIVER_MS=START_MS + 60_000)
    refusals = [PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)]

    def append(messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        refused = [refusals.pop() for _ in messages[:1] if refusals]
        return [*refused, *again.store.append_messages(messages[len(refused) :])]

    again.timer.append = append
    again.run(70_000)
    assert not refusals
    came = Counter(body for body, _ in again.delivered())
    assert came[b"later"] == 1
    assert came[b"newer"] == newer
    assert came[b"due"] == 2, "once by the process that was killed"
    again.close()


def test_a_full_slot_refuses_more(tmp_path: Path) -> None:
    rig = Rig(tmp_path, timer_congest_num_each_slot=2)
    due = START_MS + 10_000
    for body in (b"a", b"b"):
        assert rig.put(body, TIMER_DELIVER_MS=due) is PutMessageStatus.PUT_OK
    rig.run()
    status = rig.put(b"c", TIMER_DELIVER_MS=due)
    assert status is PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL
    assert rig.put(b"d", TIMER_DELIVER_MS=due + 1000) is PutMessageStatus.PUT_OK
    assert rig.put(b"e") is PutMessageStatus.PUT_OK  # that is no timed one
    rig.run(12_000)
    assert [body for body, _ in rig.delivered()] == [b"e", b"a", b"b", b"d"]
    rig.close()


def test_switches_stop_each_half(tmp_path: Path) -> None:
    rig = Rig(tmp_path, timer_stop_dequeue=True)
    rig.put(b"a", TIMER_DELAY_SEC=1)
    rig.run(5000)
    assert not rig.delivered()
    rig.config.timer_stop_dequeue = False
    rig.config.timer_stop_enqueue = True
    rig.put(b"b", TIMER_DELAY_SEC=1)
    rig.run(5000)
    assert [body for body, _ in rig.delivered()] == [b"a"]
    assert rig.timer.enqueue_behind == 1
    assert rig.timer.runtime_info()["timerOffsetBehind"] == "1"
    rig.close()


def test_many_of_one_second_in_their_order(tmp_path: Path) -> None:
    rig = Rig(tmp_path, mapped_file_size_commit_log=1 << 22)
    bodies = [b"%d" % number for number in range(3000)]
    for body in bodies:
        rig.put(body, TIMER_DELIVER_MS=START_MS + 5000)
    rig.run(7000)
    assert [body for body, _ in rig.delivered()] == bodies
    rig.close()


def test_a_clock_that_goes_back_delivers_nothing_early_and_loses_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(b"a", TIMER_DELAY_SEC=100)
    rig.run(50_000, flush=True)
    rig.now_ms -= 40_000
    rig.put(b"b", TIMER_DELAY_SEC=5)
    rig.run(4000, flush=True)
    assert not rig.delivered()
    rig.kill()
    rig = Rig(tmp_path, rig.now_ms)
    rig.run(2000)
    assert [body for body, _ in rig.delivered()] == [b"b"]
    rig.run(100_000)
    assert {body for body, _ in rig.delivered()} == {b"a", b"b"}
    rig.close()


def test_a_store_that_slept_for_weeks_delivers_what_it_owes(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(20):
        rig.put(b"%d" % number, TIMER_DELAY_SEC=number * 1000 + 10)
    rig.run(1000)
    rig.close()
    rig = Rig(tmp_path, START_MS + 30 * 86_400_000)
    rig.put(b"new", TIMER_DELAY_SEC=20_000)
    rig.run(2000)
    assert len(rig.delivered()) == 20
    rig.run(20_001_000, step_ms=1_000_000)
    assert len(rig.delivered()) == 21
    rig.close()


# ---------------------------------------------------------------------------------- golden stores


def golden_rig(golden: Any) -> Rig:
    now_ms = golden.facts["timerCheckpoint"]["lastReadTimeMs"]
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": int(golden.config["mappedFileSizeCommitLog"]),
        "mapped_file_size_consume_queue": int(golden.config["mappedFileSizeConsumeQueue"]),
        "mapped_file_size_timer_log": int(golden.config["mappedFileSizeTimerLog"]),
        "max_hash_slot_num": int(golden.config["maxHashSlotNum"]),
        "max_index_num": int(golden.config["maxIndexNum"]),
    }
    return Rig(golden.root, now_ms, **sizes)


def contents(messages: list[dict[str, Any]]) -> Counter[tuple[object, ...]]:
    return Counter(
        (
            m["topic"],
            m["queueId"],
            m["body"],
            m["bornTimestamp"],
            tuple(stable(m["propertiesText"])),
        )
        for m in messages
    )


def stable(properties_text: str) -> list[tuple[str, str]]:
    properties = p.decode_properties(properties_text)
    properties.pop(p.TIMER_DEQUEUE_MS, None)
    return sorted(properties.items())


def read_back(rig: Rig, facts: dict[str, Any]) -> list[dict[str, Any]]:
    import base64

    found = []
    offset = rig.store.min_phy_offset
    bodies = {m["bodySha256"]: m["body"] for m in facts["messages"]}
    import hashlib

    while (record := rig.store.select_record(offset)) is not None:
        message = decode_record(record)
        digest = hashlib.sha256(message.body).hexdigest()
        found.append(
            {
                "topic": message.topic,
                "queueId": message.queue_id,
                "body": bodies.get(digest, base64.b64encode(message.body).decode()),
                "bornTimestamp": message.born_timestamp,
                "propertiesText": message.properties_raw.decode(),
            }
        )
        offset += message.record_size
    return found


def test_a_golden_store_with_pending_timers_goes_on(
    golden_store: Callable[[str], Any], golden_facts: Callable[[str], dict[str, Any]]
) -> None:
    rig = golden_rig(golden_store("timer-before-5.5.0"))
    after = golden_facts("timer-after-5.5.0")
    rig.run(100_000)
    assert contents(read_back(rig, after)) == contents(after["messages"])
    # What is due in hours, less the recalled ones; then what rolls.
    rig.run(3 * 3_600_000, step_ms=60_000)
    count = Counter(body for q in range(4) for body, _ in rig.delivered("TimerTopic", q))
    assert len(count) == 36 - 6 + 6 - 2 * 3
    assert set(count.values()) == {1}
    rig.run(60 * 3_600_000, step_ms=600_000)
    count = Counter(body for q in range(4) for body, _ in rig.delivered("TimerTopic", q))
    assert len(count) == 36
    rig.close()


@pytest.mark.parametrize("lost", [(), ("timerwheel",), ("timerlog",), ("timerlog", "timerwheel")])
def test_a_golden_store_goes_on_without_a_file(
    golden_store: Callable[[str], Any], lost: tuple[str, ...]
) -> None:
    golden = golden_store("timer-before-5.5.0")
    for name in lost:
        path = golden.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    rig = golden_rig(golden)
    rig.run(60 * 3_600_000, step_ms=60_000)
    found = {body for q in range(4) for body, _ in rig.delivered("TimerTopic", q)}
    assert len(found) == 36
    rig.close()


def test_log_and_wheel_are_written_as_rocketmq_writes_them(
    tmp_path: Path, golden_store: Callable[[str], Any]
) -> None:
    golden = golden_store("timer-before-5.5.0")
    shutil.rmtree(golden.root / "timerlog")
    (golden.root / "timerwheel").unlink()
    (golden.root / "config" / "timercheck").unlink()
    facts = golden.facts
    rig = golden_rig(golden)
    # As RocketMQ's broker did: each message is taken in at the time that its unit names.
    expected = [u for u in facts["timerLogUnits"] if u["magic"] > 0]
    rig.timer.queue_offset = 0
    for unit in expected:
        rig.now_ms = unit["enqueueTime"]
        rig.timer.write_time_ms = rig.now_ms
        rig.timer._enqueue(rig.now_ms, 1)
    rig.timer.flush_now(rig.now_ms)
    log = b"".join(path.read_bytes() for path in sorted((golden.root / "timerlog").iterdir()))
    for unit in expected:
        position = unit["pos"]
        fields = int.from_bytes(log[position : position + 4], "big")
        assert fields == UNIT_SIZE
        ours = rig.timer.log.read(position)
        assert ours is not None
        assert (ours.previous, ours.magic, ours.enqueue_time, ours.delay_ms) == (
            unit["prevPos"],
            unit["magic"],
            unit["enqueueTime"],
            unit["delayedTime"],
        )
        assert (ours.commit_log_offset, ours.record_size, ours.topic_hash) == (
            unit["commitLogOffset"],
            unit["msgSize"],
            unit["topicHash"],
        )
    wheel = (golden.root / "timerwheel").read_bytes()
    assert len(wheel) == FILE_SIZE
    for slot in facts["timerWheelSlots"]:
        ours_slot = decode_slot(wheel, slot_position(slot["timeMs"]))
        assert (ours_slot.first_pos, ours_slot.last_pos, ours_slot.num) == (
            slot["firstPos"],
            slot["lastPos"],
            slot["num"],
        )
    metrics = rig.timer.metrics(rig.now_ms).timing_count["TimerTopic"]
    assert metrics.count == 30 + 30  # the file of RocketMQ was taken over
    rig.close()


def test_a_wheel_of_another_size_is_refused(tmp_path: Path) -> None:
    Rig(tmp_path).close()
    (tmp_path / "timerwheel").write_bytes(bytes(100))
    with pytest.raises(StoreCorruptError, match="100 bytes"):
        Rig(tmp_path)


# ---------------------------------------------------------------------------------------- crashes


class Promises:
    """What was put, body → due time, and which of it was acknowledged."""

    def __init__(self) -> None:
        self.due: dict[bytes, int] = {}
        self.acknowledged: set[bytes] = set()

    def check(self, rig: Rig, *, exactly_once: bool) -> None:
        came = rig.delivered()
        count = Counter(body for body, _ in came)
        for body, stored_ms in came:
            assert stored_ms >= self.due[body], (body, stored_ms, self.due[body])
        assert not self.acknowledged - set(count)
        if exactly_once:
            assert set(count.values()) <= {1}


@settings(max_examples=examples(f"{HERE}::test_random_schedules_with_restarts_and_kills"))
@given(seed=st.integers(0, 2**32), ends=st.lists(st.sampled_from("ck"), max_size=6))
def test_random_schedules_with_restarts_and_kills(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ends: list[str]
) -> None:
    rng = random.Random(seed)
    root = tmp_path_factory.mktemp("timer")
    promises = Promises()
    rig = Rig(root, timer_roll_window_slot=rng.choice([20, 172_800]))
    number = 0
    for end in [*ends, "e"]:
        for _ in range(rng.randrange(1, 12)):
            for _ in range(rng.randrange(0, 6)):
                body = b"%d" % number
                number += 1
                due = rig.now_ms + rng.choice([1, 500, 1000, 3000, 17_000, 45_123])
                promises.due[body] = due
                if rig.put(body, TIMER_DELIVER_MS=due) is PutMessageStatus.PUT_OK:
                    promises.acknowledged.add(body)
            rig.run(rng.choice([0, 100, 700, 5000]), flush=rng.random() < 0.3)
        if end == "c":
            rig.close()
        elif end == "k":
            if rng.random() < 0.5:
                rig.timer.log.write_out()
            rig.kill()
        if end != "e":
            pause = rng.choice([0, 1500, 60_000])
            window = rng.choice([20, 172_800])
            rig = Rig(root, rig.now_ms + pause, timer_roll_window_slot=window)
    rig.run(200_000, step_ms=1000)
    promises.check(rig, exactly_once="k" not in ends)
    rig.close()
    shutil.rmtree(root)


def scripted(disk: FaultDisk | None, root: Path, promises: Promises) -> None:
    """Puts, deliveries, rolls and flushes; the store is synced before a promise counts."""
    rng = random.Random(5)
    now_ms = START_MS
    for _ in range(2):
        rig = Rig(root, now_ms, files=disk, timer_roll_window_slot=20)
        for step in range(7):
            fresh = set()
            for number in range(3):
                body = b"%d-%d-%d" % (now_ms % 1_000_000, step, number)
                due = rig.now_ms + rng.choice([1, 900, 2500, 6000, 45_000])
                promises.due[body] = due
                if rig.put(body, TIMER_DELIVER_MS=due) is PutMessageStatus.PUT_OK:
                    fresh.add(body)
            rig.store.flush()
            promises.acknowledged |= fresh
            rig.run(1500, step_ms=1500, flush=step % 2 == 0)
        now_ms = rig.now_ms
        rig.close()


@pytest.mark.crash
@pytest.mark.parametrize("of_lost", [{}, {"TIMER_DEL_UNIQKEY": "Ufirst"}])
def test_what_lies_where_a_lost_message_lay_is_delivered(
    tmp_path: Path, of_lost: dict[str, str]
) -> None:
    image = tmp_path / "image"
    rig = Rig(tmp_path / "0")
    rig.put(b"first", TIMER_DELIVER_MS=START_MS + 10_500)
    rig.run(flush=True)
    end = rig.store.max_phy_offset
    copy_killed(tmp_path / "0", image)
    rig.put(b"lost", TIMER_DELIVER_MS=START_MS + 10_500, **of_lost)
    rig.run()
    # The loss of power came when the disk had the unit of the timer log and not yet the message.
    rig.timer.log.write_out()
    shutil.copytree(tmp_path / "0" / "timerlog", image / "timerlog", dirs_exist_ok=True)
    rig.kill()
    again = Rig(image, START_MS)
    assert again.store.max_phy_offset == end
    again.put(b"later", TIMER_DELIVER_MS=START_MS + 20_500)
    again.run(12_000)
    assert [body for body, _ in again.delivered()] == [b"first"]
    again.run(10_000)
    assert [body for body, _ in again.delivered()] == [b"first", b"later"]
    again.close()


@pytest.mark.crash
def test_what_is_known_from_the_log_is_forgotten_when_all_of_it_has_come(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put(b"a", TIMER_DELAY_MS=60_000)
    rig.run()
    rig.timer.log.write_out()
    rig.kill()
    again = Rig(tmp_path)
    again.timer._known.add(7)  # of no message that the queue has
    again.run()
    again.put(b"b", TIMER_DELAY_MS=60_000)
    again.run()
    assert not again.timer._known
    again.run(62_000, step_ms=1000)
    assert [body for body, _ in again.delivered()] == [b"a", b"b"]
    again.close()


@pytest.mark.crash
def test_the_timer_log_is_not_synced_ahead_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultDisk()
    rig = Rig(tmp_path / "0", files=disk)
    rig.put(b"a", TIMER_DELAY_MS=60_000)
    rig.run()
    flush = rig.store.flush

    def flush_while_messages_come() -> int:
        flushed = flush()
        rig.put(b"b", TIMER_DELAY_MS=60_000)
        rig.run()
        return flushed

    monkeypatch.setattr(rig.store, "flush", flush_while_messages_come)
    rig.timer.flush_now(rig.now_ms)
    assert rig.timer.log.end == 2 * UNIT_SIZE
    image = tmp_path / "image"
    image.mkdir()
    disk.crash_image(str(image), str(tmp_path / "0"), random.Random(1), 0.0)
    units = (image / "timerlog" / f"{0:020d}").read_bytes()
    assert any(units[:UNIT_SIZE])
    assert not any(units[UNIT_SIZE:])
    rig.kill()


@pytest.mark.crash
def test_a_delivery_that_the_disk_did_not_take_is_not_passed(tmp_path: Path) -> None:
    disk = FaultDisk()
    rig = Rig(tmp_path / "0", files=disk)
    rig.put(b"a", TIMER_DELIVER_MS=START_MS + 5_500)
    rig.run(2_000)
    rig.timer.flush_now(rig.now_ms)
    rig.run(10_000)
    assert len(rig.delivered()) == 1
    disk.fails = True
    with pytest.raises(StoreError):
        rig.timer.flush_now(rig.now_ms)
    disk.fails = False  # the kernel has forgotten what it could not write
    rig.run(CLEAN_INTERVAL_MS, step_ms=10_000)  # now there is something to be written at any rate
    with pytest.raises(StoreError):
        rig.timer.flush_now(rig.now_ms)
    rig.close()
    image = tmp_path / "image"
    image.mkdir()
    disk.crash_image(str(image), str(tmp_path / "0"), random.Random(1), 0.0)
    again = Rig(image, rig.now_ms)
    again.run(2_000)
    assert [body for body, _ in again.delivered()] == [b"a"]
    again.close()


@pytest.mark.crash
def test_a_power_cut_at_any_event_loses_nothing(tmp_path: Path) -> None:
    probe = FaultDisk()
    scripted(probe, tmp_path / "probe", Promises())
    events = probe.events
    rng = random.Random(11)
    count = rounds(f"{HERE}::test_a_power_cut_at_any_event_loses_nothing")
    cuts = sorted(rng.sample(range(1, events), count))
    for number, cut in enumerate(cuts):
        root = tmp_path / f"cut-{cut}"
        disk = FaultDisk(cut_power_at=cut)
        promises = Promises()
        with pytest.raises(PowerCut):
            scripted(disk, root, promises)
        # The wheel is 38 MB a copy, so each cut gets one of the images.
        image = tmp_path / f"image-{cut}"
        image.mkdir()
        keep = (0.0, 0.5, 1.0)[number % 3]
        disk.crash_image(str(image), str(root), random.Random(cut), keep)
        shutil.rmtree(root, ignore_errors=True)
        rig = Rig(image, START_MS + 30_000, timer_roll_window_slot=20)
        rig.run(120_000, step_ms=1000)
        promises.check(rig, exactly_once=False)
        rig.close()
        shutil.rmtree(image)
