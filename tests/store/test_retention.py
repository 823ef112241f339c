"""reserve.time and purges: what readers lose, what is kept, and that nothing else is ever hidden.

Stores are killed, reopened and verified in between; the test sets the clock and the files' times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.cli.retention_output import verdict
from oberth.cli.store import store as store_command
from oberth.errors import IllegalNameError, StoreError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.topic_config import BATCH_CQ, QUEUE_TYPE_ATTRIBUTE
from oberth.store.files import DiskUsage, OsFileSystem
from oberth.store.lakes import NOTHING, lake_name, lake_names, note_of, note_path
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageStatus, MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.retention import retention_report
from oberth.store.offline.verify import verify
from oberth.store.retention import FILE_NAME, HOUR_MS, reserve_hours

SEGMENT = 16 * 1024
NOW_MS = 1_700_000_000_000
QUEUE_FILE_UNITS = 8


class Disk(OsFileSystem):
    percent = 10

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(100, self.percent)


class Rig:
    """A store of small files whose clock and attributes the test sets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = Disk()
        self.now_ms = NOW_MS
        self.attributes: dict[str, dict[str, str]] = {}
        self.config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=SEGMENT,
            mapped_file_size_consume_queue=20 * QUEUE_FILE_UNITS,
            max_hash_slot_num=10,
            max_index_num=1000,
            delete_when="99",
            delete_commit_log_files_interval_ms=0,
            delete_consume_queue_files_interval_ms=0,
        )
        self.open()

    def open(self) -> None:
        self.store = MessageStore(
            self.config,
            files=self.disk,
            clock_ms=lambda: self.now_ms,
            topic_attributes=lambda topic: self.attributes.get(topic, {}),
        )
        self.store.load()
        self.store.start(background=False)

    def reopen(self, *, kill: bool = False) -> None:
        if kill:
            self.store.kill()
        else:
            self.store.shutdown()
        self.open()

    def put(self, topic: str, count: int, size: int = 400) -> None:
        for number in range(count):
            message = MessageExtBrokerInner.of(topic, bytes(size), keys=f"k{number}")
            assert self.store.put_message(message).ok
        while self.store.dispatch_behind_bytes:
            self.store.dispatch_nowait()

    def readable(self, topic: str) -> list[int]:
        """The queue offsets that a reader from the beginning gets."""
        found: list[int] = []
        offset = 0
        while True:
            result = self.store.get_message("g", topic, 0, offset, 32)
            found += result.queue_offsets
            if result.next_begin_offset == offset:
                return found
            offset = result.next_begin_offset

    def age_files(self, hours: float) -> None:
        seconds = (self.now_ms - hours * HOUR_MS) / 1000
        for segment in self.store.commit_log.queue.segments:
            os.utime(segment.path, (seconds, seconds))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "store")
    yield made
    made.store.shutdown()


def verify_clean(root: Path) -> None:
    with StoreReader(root) as reader:
        report = verify(reader)
    assert report.clean, [str(each) for each in report.damage]


# reserve.time


def test_messages_leave_after_their_topics_time_and_others_stay(rig: Rig) -> None:
    rig.attributes["short"] = {"reserve.time": "2"}
    for _ in range(5):
        rig.put("short", 4)
        rig.put("long", 4)
        rig.now_ms += HOUR_MS
    rig.store.cleaning.run()
    # Stored at 0, 1, 2, 3 and 4 hours; now it is 5: what is from 3 on is not older than 2 hours.
    assert rig.readable("short") == list(range(12, 20))
    assert rig.store.min_offset_in_queue("short", 0) == 12
    assert rig.store.get_message("g", "short", 0, 3, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert rig.readable("long") == list(range(20))
    assert rig.store.min_phy_offset == 0, "the log itself is as it was"


@settings(deadline=None, max_examples=25)
@given(
    batch=st.booleans(),
    steps=st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from([0, 1, 1_800_000, HOUR_MS, 2 * HOUR_MS])),
        max_size=10,
    ),
)
def test_exactly_what_is_older_leaves(
    tmp_path_factory: pytest.TempPathFactory, batch: bool, steps: list[tuple[int, int]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("age") / "store")
    rig.attributes["t"] = {"reserve.time": "2"} | (
        {QUEUE_TYPE_ATTRIBUTE: BATCH_CQ} if batch else {}
    )
    stored: list[int] = []
    try:
        for count, passes_ms in steps:
            rig.put("t", count, size=50)
            stored += [rig.now_ms] * count
            rig.now_ms += passes_ms
            rig.store.cleaning.run()
            oldest = rig.now_ms - 2 * HOUR_MS
            assert rig.readable("t") == [n for n, at in enumerate(stored) if at >= oldest]
    finally:
        rig.store.shutdown()


def test_a_topic_that_has_expired_altogether_goes_on(rig: Rig) -> None:
    rig.attributes["short"] = {"reserve.time": "1"}
    rig.put("short", 20)
    rig.now_ms += 2 * HOUR_MS
    rig.store.cleaning.run()
    assert rig.readable("short") == []
    assert rig.store.min_offset_in_queue("short", 0) == 20
    rig.put("short", 3)
    assert rig.readable("short") == [20, 21, 22]
    for kill in (False, True):
        rig.reopen(kill=kill)
        assert rig.readable("short") == [20, 21, 22]


def test_segments_stay_while_a_topic_reserves_what_is_in_them(rig: Rig) -> None:
    rig.attributes["ledger"] = {"reserve.time": "100"}
    rig.put("ledger", 1)
    rig.put("other", 200)
    rig.now_ms += 80 * HOUR_MS
    rig.put("other", 1)
    rig.age_files(80)
    rig.store.delete_expired_files_manually()
    assert rig.store.cleaning.run() == 0, "fileReservedTime is over, the ledger's is not"
    report = rig.store.retention_report()
    assert report.segments == []
    assert report.held is not None
    assert report.held.topic == "ledger"
    rig.now_ms += 30 * HOUR_MS
    rig.store.delete_expired_files_manually()
    assert rig.store.cleaning.run() > 0
    assert rig.readable("ledger") == []


def test_a_disk_that_is_too_full_deletes_all_the_same(rig: Rig) -> None:
    rig.attributes["ledger"] = {"reserve.time": "100"}
    rig.put("ledger", 100)
    rig.disk.percent = 88
    assert rig.store.cleaning.run() > 0


@pytest.mark.parametrize(
    ("topic", "attributes", "hours"),
    [
        ("t", {}, None),
        ("t", {"reserve.time": "-1"}, None),
        ("t", {"reserve.time": "0"}, None),
        ("t", {"reserve.time": "24"}, 24),
        ("t", {"reserve.time": "24", "cleanup.policy": "COMPACTION"}, None),
        ("t", {"reserve.time": "soon"}, None),
        ("SCHEDULE_TOPIC_XXXX", {"reserve.time": "1"}, None),
        ("rmq_sys_wheel_timer", {"reserve.time": "1"}, None),
        ("%LMQ%q", {"reserve.time": "1"}, None),
        ("%DLQ%g", {"reserve.time": "1"}, 1),
    ],
)
def test_who_has_a_reserve_time(topic: str, attributes: dict[str, str], hours: int | None) -> None:
    assert reserve_hours(topic, attributes) == hours


def test_batches_expire_as_a_whole(rig: Rig) -> None:
    rig.attributes["b"] = {"reserve.time": "1", QUEUE_TYPE_ATTRIBUTE: BATCH_CQ}
    rig.put("b", 10)
    rig.now_ms += 2 * HOUR_MS
    rig.put("b", 5)
    rig.store.cleaning.run()
    assert rig.readable("b") == list(range(10, 15))
    rig.reopen(kill=True)
    assert rig.readable("b") == list(range(10, 15))
    rig.store.shutdown()
    verify_clean(rig.root)
    rig.open()


# Waiting for a lake


def note(rig: Rig, lake: str, position: int) -> None:
    name = lake_name(lake)
    rig.disk.write_file(note_path(str(rig.root), name), note_of(name, position))


def test_segments_wait_for_the_lake_that_is_furthest_behind(rig: Rig) -> None:
    rig.config.retention_waits_for_lake = "/lake/shop/, s3a://lake/shop"
    rig.put("t", 200)
    segments = list(rig.store.commit_log.queue.segments)
    assert len(segments) > 4
    rig.age_files(100)

    def clean() -> int:
        rig.store.delete_expired_files_manually()
        deleted = rig.store.cleaning.run()
        while rig.store.cleaning.run():
            pass
        return deleted

    report = rig.store.retention_report().to_json()
    assert report["segments"] == []
    assert report["waitsForLake"] == {"lake": "/lake/shop", "position": None}
    assert "has nothing of the log yet" in verdict(report)
    assert clean() == 0, "no export has noted anything"
    note(rig, "/lake/shop", segments[2].end_offset)
    assert clean() == 0, "the other one has nothing"
    note(rig, "s3://lake/shop", segments[1].end_offset - 1)
    report = rig.store.retention_report().to_json()
    assert report["waitsForLake"] == {
        "lake": "s3://lake/shop", "position": segments[1].end_offset - 1
    }  # fmt: skip
    assert "up to" in verdict(report)
    with StoreReader(rig.root, {"retentionWaitsForLake": "/lake/shop,s3://lake/shop"}) as reader:
        offline = retention_report(reader, rig.now_ms).to_json()
    assert offline["waitsForLake"] == report["waitsForLake"]
    assert [each["end"] for each in offline["segments"]] == [segments[0].end_offset]
    assert [each["end"] for each in report["segments"]] == [segments[0].end_offset]
    assert clean() == 1
    note(rig, "s3://lake/shop", rig.store.max_phy_offset + 1)
    assert clean() == 0, "that is the note of another log"
    note(rig, "s3://lake/shop", rig.store.max_phy_offset)
    assert clean() == 2
    rig.store.shutdown()
    verify_clean(rig.root)
    rig.open()


@pytest.mark.parametrize("count", [2, 5])
def test_a_disk_that_is_too_full_waits_for_no_lake(
    rig: Rig, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    rig.config.retention_waits_for_lake = "/lake"
    while len(rig.store.commit_log.queue.segments) < count:
        rig.put("t", 1)
    rig.age_files(100)
    rig.disk.percent = 80  # expired segments may go, and none is: the lake lacks them
    assert rig.store.cleaning.run() == 0
    rig.disk.percent = 88
    rig.config.clean_file_forcibly_enable = False
    assert rig.store.cleaning.run() == 0
    rig.config.clean_file_forcibly_enable = True
    assert rig.store.cleaning.run() > 0
    assert "although the lake /lake does not have them" in caplog.text


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"lake": "/lake"}', b"\xff", b'{"lake": 1}'])
def test_a_note_that_is_none_counts_for_nothing(rig: Rig, text: bytes) -> None:
    rig.config.retention_waits_for_lake = "/lake"
    rig.put("t", 1)
    waited = rig.store.retention.awaited_lake()
    assert waited == ("/lake", NOTHING)
    rig.disk.write_file(note_path(str(rig.root), "/lake"), text)
    assert rig.store.retention.awaited_lake() == ("/lake", NOTHING)
    rig.disk.write_file(note_path(str(rig.root), "/lake"), note_of("/other", 0))
    assert rig.store.retention.awaited_lake() == ("/lake", NOTHING)


def test_names_of_lakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert lake_names("") == []
    assert lake_names(" a/ ,/x/../y,file:///z,s3n://b/c/") == [
        str(tmp_path / "a"), "/y", "/z", "s3://b/c"
    ]  # fmt: skip


# Purges


@settings(deadline=None, max_examples=20)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "purge", "reopen", "kill"]), st.integers(0, 40)),
        max_size=12,
    )
)
def test_purges_hide_what_they_say_and_never_more(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("purge") / "store")
    low = high = 0
    try:
        for step, number in steps:
            if step == "put":
                rig.put("t", number, size=100)
                high += number
            elif step == "purge":
                rig.store.retention.purge("t", {0: number})
                low = max(low, min(number, high))
            else:
                rig.reopen(kill=step == "kill")
            assert rig.readable("t") == list(range(low, high))
    finally:
        rig.store.shutdown()
    if high:
        verify_clean(rig.root)


def test_nothing_is_hidden_in_a_log_that_the_disk_does_not_take(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after a loss of power would lie below the floor."""

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    rig.attributes["t"] = {"reserve.time": "1"}
    rig.put("t", 5)
    with monkeypatch.context() as patch:
        patch.setattr(rig.store.commit_log.queue, "flush_to", fail)
        with pytest.raises(StoreError):
            rig.store.retention.purge("t", {0: 3})
    rig.now_ms += 2 * HOUR_MS
    rig.store.cleaning.run()
    assert "could not be hidden" in caplog.text
    assert rig.readable("t") == [0, 1, 2, 3, 4]
    assert not (rig.root / FILE_NAME).exists()


def test_a_purge_deletes_whole_queue_files_and_keeps_the_log(rig: Rig) -> None:
    rig.put("t", 5 * QUEUE_FILE_UNITS)
    rig.put("u", 1)
    rig.store.checkpoint_now()
    directory = rig.root / "consumequeue" / "t" / "0"
    before = len(list(directory.iterdir()))
    log_before = [segment.path for segment in rig.store.commit_log.queue.segments]
    (purged,) = rig.store.retention.purge("t", {0: 3 * QUEUE_FILE_UNITS + 2, 9: 4})
    assert purged == (0, 0, 3 * QUEUE_FILE_UNITS + 2)
    assert len(list(directory.iterdir())) == before - 3
    assert [segment.path for segment in rig.store.commit_log.queue.segments] == log_before
    rig.store.shutdown()
    verify_clean(rig.root)
    with StoreReader(rig.root) as reader:
        assert reader.queue_range("t", 0)[0] == 3 * QUEUE_FILE_UNITS + 2
    rig.open()


def test_keys_of_what_was_purged_are_not_found(rig: Rig) -> None:
    rig.put("t", 10)
    rig.put("u", 10)
    rig.store.retention.purge("t", {0: 5})
    assert not rig.store.query_message("t", "k3", 10, 0, 2**62).records
    assert rig.store.query_message("t", "k7", 10, 0, 2**62).records
    assert rig.store.query_message("u", "k3", 10, 0, 2**62).records


def test_a_topic_that_begins_anew_is_not_hidden(rig: Rig) -> None:
    rig.put("t", 30)
    rig.store.retention.purge("t", {0: 30})
    rig.store.delete_topics(["t"])
    rig.put("t", 4)
    assert rig.readable("t") == [0, 1, 2, 3]
    rig.reopen(kill=True)
    assert rig.readable("t") == [0, 1, 2, 3]


def test_a_floor_beyond_the_log_hides_nothing_new(rig: Rig) -> None:
    """As after the loss of a disk's last writes: new messages take offsets that were given."""
    rig.put("t", 5)
    rig.store.shutdown()
    state = {"version": 1, "floors": {"t": {"0": 10_000_000}}}
    (rig.root / FILE_NAME).write_text(json.dumps(state))
    rig.open()
    assert rig.readable("t") == []
    rig.put("t", 3)
    assert rig.readable("t") == [5, 6, 7]


@pytest.mark.parametrize("text", ["", "{", '{"version":9}', '{"floors":{"t":{"x":1}}}', "[]"])
def test_a_file_that_cannot_be_read_hides_nothing(rig: Rig, text: str) -> None:
    rig.put("t", 5)
    rig.store.shutdown()
    (rig.root / FILE_NAME).write_text(text)
    rig.open()
    assert rig.readable("t") == [0, 1, 2, 3, 4]


def test_floors_are_forgotten_with_the_log(rig: Rig) -> None:
    rig.put("t", 100)
    rig.store.retention.purge("t", {0: 3})
    assert rig.store.retention.has_floors
    rig.age_files(100)
    rig.store.delete_expired_files_manually()
    assert rig.store.cleaning.run() > 1
    assert json.loads((rig.root / FILE_NAME).read_text())["floors"] == {}


def test_the_file_is_left_alone_where_no_floor_is_forgotten(rig: Rig) -> None:
    rig.put("t", 100)
    rig.store.retention.purge("t", {0: 50})
    before = (rig.root / FILE_NAME).stat()
    rig.store.retention.follow_log(SEGMENT)
    after = (rig.root / FILE_NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert rig.readable("t") == list(range(50, 100))


def test_the_brokers_own_topics_are_not_purged(rig: Rig) -> None:
    with pytest.raises(IllegalNameError):
        rig.store.retention.purge("SCHEDULE_TOPIC_XXXX", {0: 1})
    rig.attributes["C"] = {"cleanup.policy": "COMPACTION"}
    with pytest.raises(IllegalNameError):
        rig.store.retention.purge("C", {0: 1})


# The report


def test_the_report_says_what_goes_and_who_has_not_consumed_it(rig: Rig) -> None:
    rig.attributes["short"] = {"reserve.time": "1"}
    rig.put("short", 10)
    rig.put("plain", 100)
    rig.now_ms += 2 * HOUR_MS
    rig.put("short", 5)
    rig.age_files(0)
    first = rig.store.commit_log.queue.segments[0]
    os.utime(first.path, ((rig.now_ms - 100 * HOUR_MS) / 1000,) * 2)
    offsets = [
        ("short", "done", {0: 10}),
        ("short", "behind", {0: 4}),
        ("short", "new", {}),
        ("gone", "done", {0: 7}),
    ]
    report = rig.store.retention_report(offsets)
    by_topic = {each.topic: each for each in report.leaving}
    assert by_topic["short"][2:] == (0, 10, "reserve.time")
    assert by_topic["plain"].because == "segment"
    assert [each.file for each in report.segments] == [first.path]
    assert report.due is None
    assert [(each.group, each.messages) for each in report.unread] == [("behind", 6), ("new", 10)]
    assert report.topics_without_group == ["plain"]
    assert not report.all_consumed
    after = by_topic["plain"].min_offset_after
    rig.store.delete_expired_files_manually()
    assert rig.store.retention_report().due == "hand"
    rig.store.cleaning.run()
    assert rig.store.min_offset_in_queue("plain", 0) == after, "the report told the truth"
    assert rig.store.min_offset_in_queue("short", 0) == 10


def write_config(rig: Rig) -> None:
    directory = rig.root / "config"
    directory.mkdir(exist_ok=True)
    (directory / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"short@behind": {"0": 4}, "short@done": {"0": 15}}})
    )
    (directory / "topics.json").write_text(
        json.dumps({"topicConfigTable": {"short": {"attributes": {"reserve.time": "1"}}}})
    )


def test_the_files_alone_tell_the_same(rig: Rig) -> None:
    rig.attributes["short"] = {"reserve.time": "1"}
    rig.put("short", 10)
    rig.put("plain", 100)
    rig.now_ms += 2 * HOUR_MS
    rig.put("short", 5)
    rig.age_files(0)
    os.utime(
        rig.store.commit_log.queue.segments[0].path, ((rig.now_ms - 100 * HOUR_MS) / 1000,) * 2
    )
    write_config(rig)
    rig.store.checkpoint_now()
    live = rig.store.retention_report([("short", "behind", {0: 4}), ("short", "done", {0: 15})])
    with StoreReader(rig.root) as reader:
        offline = retention_report(reader, rig.now_ms)
    assert offline.leaving == live.leaving
    assert offline.unread == live.unread
    assert offline.log_min_offset_after == live.log_min_offset_after

    runner = CliRunner()
    result = runner.invoke(
        store_command, ["retention", str(rig.root), "--at", str(rig.now_ms), "--json"]
    )
    assert result.exit_code == 1, "a group is behind"
    assert json.loads(result.stdout) == offline.to_json()
    text = runner.invoke(store_command, ["retention", str(rig.root), "--at", str(rig.now_ms)])
    assert "not all consumed: behind" in text.output


def test_the_command_purges_a_closed_store(rig: Rig) -> None:
    rig.put("short", 15)
    write_config(rig)
    rig.store.shutdown()
    runner = CliRunner()
    command = ["purge", str(rig.root), "short", "--offset", "0=10", "--json"]
    refused = runner.invoke(store_command, command)
    assert refused.exit_code == 1
    assert "behind" in refused.stderr
    done = runner.invoke(store_command, [*command, "--force"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [{"queueId": 0, "minOffset": 0, "minOffsetAfter": 10}]
    by_time = ["purge", str(rig.root), "short", "--before", str(NOW_MS + 1), "--force", "--json"]
    done = runner.invoke(store_command, by_time)
    assert json.loads(done.stdout) == [{"queueId": 0, "minOffset": 10, "minOffsetAfter": 15}]
    assert runner.invoke(store_command, ["purge", str(rig.root), "short"]).exit_code == 2
    assert runner.invoke(store_command, [*command[:-3], "--offset", "x"]).exit_code == 2
    assert runner.invoke(store_command, ["purge", str(rig.root), "no", "--before", "1"]).exit_code
    rig.open()
    assert rig.readable("short") == []
