"""Compaction topics: the newest message of every key stays, through crashes, restarts and cleaning.

The store is compared with a dict that is told the same; crashes are tried between any two steps of
a replacement, on real files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.test_cleaning import SizedDisk

from oberth.errors import StoreCorruptError
from oberth.formats.batch_consume_queue import UNIT, UNIT_SIZE
from oberth.formats.config_files import CompactionPositions
from oberth.formats.consume_queue import is_ext_address
from oberth.formats.java_string import java_hash
from oberth.formats.message import (
    BLANK,
    BLANK_MAGIC,
    COMMIT_LOG_OFFSET_POSITION,
    decode_record,
)
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import Line
from oberth.formats.properties import encode_properties
from oberth.store.compaction_log import END_UNIT, READY, log_file_size, unit_file_size
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.files import Mapping, OsFileSystem
from oberth.store.message_store import MessageStore
from oberth.store.messages import GetMessageStatus, MessageExtBrokerInner, TagsFilter
from oberth.store.offline.rejoin import cut_log
from oberth.testing.fault_disk import FaultDisk

T = "Kept"
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


def config_of(root: Path, **more: Any) -> MessageStoreConfig:
    config = MessageStoreConfig.from_properties(
        {
            "storePathRootDir": str(root),
            "mappedFileSizeCommitLog": str(1 << 20),
            "mappedFileSizeConsumeQueue": "6000",
            "maxIndexNum": "1000",
            "maxHashSlotNum": "100",
            "compactionMappedFileSize": str(46 * 40 * 5),
            "compactionCqMappedFileSize": str(46 * 40),
            "diskMaxUsedSpaceRatio": "95",
            **more,
        }
    )
    return config


class Kept:
    """A store with one compaction queue, and what should be in it."""

    def __init__(self, root: Path, files: Any = None, **more: Any) -> None:
        self.root = root
        self.more = more
        self.files = files
        self.store: MessageStore
        self.sent: list[tuple[str, bytes]] = []
        self.open()

    def made(self) -> MessageStore:
        """The store, not open."""
        return MessageStore(
            config_of(self.root, **self.more),
            files=self.files,
            topic_attributes=lambda topic: {"cleanup.policy": "COMPACTION"} if topic == T else {},
        )

    def open(self) -> None:
        self.store = self.made()
        self.store.load()
        self.store.start(background=False)

    def put(self, key: str, body: bytes, tags: str = "") -> None:
        properties = {"KEYS": key, "TAGS": tags}
        raw = encode_properties({name: value for name, value in properties.items() if value})
        message = MessageExtBrokerInner(T, body, raw, 0, 0, 0, 0, HOST, HOST)
        (result,) = self.store.append_messages([message])
        assert result.ok
        self.sent.append((key, body))
        self.store.dispatch_nowait()

    def read(self, offset: int = 0, count: int = 7, **more: Any) -> list[tuple[int, str, bytes]]:
        """Everything from an offset on: queue offset, key, body."""
        found: list[tuple[int, str, bytes]] = []
        for _ in range(10_000):
            result = self.store.get_message("G", T, 0, offset, count, **more)
            if result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE:
                return found
            if result.status in (
                GetMessageStatus.NO_MESSAGE_IN_QUEUE,
                GetMessageStatus.OFFSET_OVERFLOW_BADLY,
            ):
                assert not found
                return found
            for at, record in zip(result.queue_offsets, result.records, strict=True):
                message = decode_record(record, check_crc=True)
                assert message.queue_offset == at >= offset
                found.append((at, message.properties["KEYS"], message.body))
            if result.next_begin_offset == offset:
                self.store.compaction.follow()  # type: ignore[union-attr]
            offset = result.next_begin_offset
        raise AssertionError("no end")

    def compact(self) -> None:
        assert self.store.compaction is not None
        self.store.compaction.run()

    def segments(self) -> list[tuple[str, str]]:
        base = self.root / "compaction"
        return [
            (path.name, other.name)
            for path, other in zip(
                sorted((base / "compactionLog" / T / "0").glob("0*")),
                sorted((base / "compactionCq" / T / "0").glob("0*")),
                strict=True,
            )
        ]

    def check(self) -> None:
        """The newest message of every key is there; what else there is, was sent, in order."""
        found = self.read()
        offsets = [at for at, _, _ in found]
        assert offsets == sorted(set(offsets))
        for at, key, body in found:
            assert self.sent[at] == (key, body)
        newest = {key: (at, body) for at, (key, body) in enumerate(self.sent) if key}
        wanted = {(at, key, body) for key, (at, body) in newest.items() if body}
        assert wanted <= set(found)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "store")
    yield made
    made.store.shutdown()


def test_sizes_as_rocketmq_rounds_them() -> None:
    config = MessageStoreConfig()
    assert (log_file_size(config), unit_file_size(config)) == (104_857_460, 10_485_746)


@pytest.mark.parametrize(
    ("wanted", "rounded"),
    [(0, 5), (2000, 5), (4999, 5), (5000, 6), (5001, 5), (5499, 5), (5500, 6), (6000, 7)],
)
def test_sizes_are_at_least_five_times_those_of_the_units(wanted: int, rounded: int) -> None:
    """In thousandths of the units' bytes; what is a multiple already becomes one more."""
    units = 46 * 1000
    config = MessageStoreConfig(
        compaction_mapped_file_size=wanted * units // 1000,
        compaction_cq_mapped_file_size=units + 45,
    )
    assert (log_file_size(config), unit_file_size(config)) == (rounded * units, units)


def test_newest_of_every_key(kept: Kept) -> None:
    for n in range(400):
        kept.put(f"k{n % 5}", b"%d" % n)
    kept.check()
    assert len(kept.read()) == 400
    kept.compact()
    kept.check()
    found = kept.read()
    assert len(found) < 100  # all that is left of the sealed ones, and the last segment
    assert kept.read(350) == [entry for entry in found if entry[0] >= 350]
    assert kept.store.min_offset_in_queue(T, 0) == 0  # of the queue, which is still there
    assert kept.store.max_offset_in_queue(T, 0) == 400
    before = kept.segments()
    kept.compact()  # nothing new
    assert kept.segments() == before
    positions = CompactionPositions.decode(
        (kept.root / "compaction/position-checkpoint").read_bytes()
    )
    assert positions.queue_offset_map == {f"{T}_0": found[4][0]}, "of five keys the last one"


def test_the_first_message_is_kept_and_tells_where_the_log_begins(kept: Kept) -> None:
    kept.put("once", b"x")
    for n in range(400):
        kept.put("again and again", b"%d" % n)
    kept.check()
    kept.compact()
    kept.check()
    assert kept.store.compaction is not None
    log = kept.store.compaction.find(T, 0)
    assert log is not None
    assert (log.min_offset, len(kept.read()) < 100) == (0, True)


def test_a_segment_ends_with_the_unit_that_rocketmq_puts_there() -> None:
    assert b"\xff" * 8 + bytes(30) + b"\xff" * 4 + bytes(4) == END_UNIT


def test_a_message_without_body_deletes(kept: Kept) -> None:
    kept.put("gone", b"x")
    kept.put("gone", b"")
    for n in range(200):
        kept.put("other", b"%d" % n)
    kept.compact()
    kept.check()
    assert "gone" not in {key for _, key, _ in kept.read()}


def test_without_a_key_nothing_is_kept(kept: Kept) -> None:
    kept.put("", b"x")
    kept.put("a", b"y")
    kept.put("", b"z")
    assert kept.read() == [(1, "a", b"y")]


def test_filter_and_limits(kept: Kept) -> None:
    for n in range(20):
        kept.put(f"k{n}", b"%d" % n, "odd" if n % 2 else "even")
    wanted = TagsFilter([java_hash("odd")])
    assert [at for at, _, _ in kept.read(message_filter=wanted)] == list(range(1, 20, 2))
    result = kept.store.get_message("G", T, 0, 0, 100, max_total_size=1)
    assert (result.message_count, result.next_begin_offset) == (1, 1)
    assert kept.store.get_message("G", T, 0, 25, 1).status is (
        GetMessageStatus.OFFSET_OVERFLOW_BADLY
    )
    assert kept.store.get_message("G", T, 7, 0, 1).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_by_time(kept: Kept) -> None:
    now = [1_000]
    kept.store.commit_log._clock_ms = lambda: now[0]
    for n in range(150):
        now[0] = 1_000 + n
        kept.put(f"k{n % 2}", b"%d" % n)
    kept.compact()
    offsets = [at for at, _, _ in kept.read()]
    assert kept.store.offset_in_queue_by_time(T, 0, 0) == offsets[0]
    assert kept.store.offset_in_queue_by_time(T, 0, 1_000 + offsets[1]) == offsets[1]
    assert kept.store.offset_in_queue_by_time(T, 0, 1_001 + offsets[-2]) == offsets[-1]
    assert kept.store.offset_in_queue_by_time(T, 0, 10_000) == 150


def test_restart(kept: Kept) -> None:
    for n in range(200):
        kept.put(f"k{n % 3}", b"%d" % n)
    kept.compact()
    before = kept.read()
    kept.store.shutdown()
    kept.open()
    assert kept.read() == before
    kept.put("k0", b"new")
    kept.check()
    kept.store.kill()
    kept.open()
    kept.check()


def test_log_and_queue_are_gone(kept: Kept) -> None:
    """What has expired everywhere else is still here, and offsets go on behind it."""
    for n in range(300):
        kept.put(f"k{n % 4}", b"%d" % n)
    kept.compact()
    before = kept.read()
    kept.store.shutdown()
    shutil.rmtree(kept.root / "commitlog")
    shutil.rmtree(kept.root / "consumequeue")
    for name in ("checkpoint", "oberth.state"):
        (kept.root / name).unlink(missing_ok=True)
    kept.open()
    assert kept.store.max_offset_in_queue(T, 0) == 300
    assert kept.read() == before
    kept.put("k1", b"later")
    assert kept.read()[-1] == (300, "k1", b"later")
    kept.check()


@pytest.mark.parametrize("count", [30, 130])
def test_ahead_of_the_log(kept: Kept, count: int) -> None:
    """After a loss of power the log may be shorter: what it lost must not hide what comes.

    Whole segments, that were compacted already, may be ahead.
    """
    for n in range(count):
        kept.put(f"k{n % 30}", b"%d" % n)
    kept.read()
    kept.compact()
    kept.store.shutdown()
    saved = kept.root.with_name("saved")
    shutil.copytree(kept.root / "compaction", saved)
    shutil.rmtree(kept.root)
    kept.sent.clear()
    kept.open()
    for n in range(10):
        kept.put(f"k{n}", b"%d" % n)
    kept.store.shutdown()
    shutil.rmtree(kept.root / "compaction", ignore_errors=True)
    shutil.copytree(saved, kept.root / "compaction")
    kept.open()
    positions = kept.root / "compaction" / "position-checkpoint"
    if count == 130:
        assert CompactionPositions.decode(positions.read_bytes()).queue_offset_map == {}
    assert len(kept.read()) == 10
    kept.put("k3", b"other")
    assert kept.read()[-1] == (10, "k3", b"other")
    before = kept.read()
    kept.store.shutdown()
    kept.open()
    assert kept.read() == before


def test_ahead_of_a_log_that_has_lost_its_first_segments(tmp_path: Path) -> None:
    """The power went before the first file of the queue followed them: no log has those values."""
    kept = Kept(
        tmp_path, mappedFileSizeCommitLog=str(1 << 14), mappedFileSizeConsumeQueue=str(20 * 50)
    )
    for n in range(200):
        kept.put(f"k{n}", bytes(300))
        if n == 110:
            kept.store.checkpoint_now()
    kept.compact()
    kept.store.kill()
    kept.store.commit_log.queue.close()
    segments = sorted((kept.root / "commitlog").iterdir())
    assert len(segments) == 5
    for path in (*segments[:2], *segments[3:]):
        path.unlink()
    kept.open()
    queue = kept.store.queues.find(T, 0)
    assert queue is not None
    assert queue.min_offset == 0 < queue.readable_from(kept.store.min_phy_offset)
    assert queue.max_offset < 150
    assert [at for at, _, _ in kept.read()] == list(range(queue.max_offset))
    kept.store.shutdown()


def test_torn_tail(kept: Kept) -> None:
    for n in range(20):
        kept.put(f"k{n}", b"%d" % n)
    kept.read()
    kept.store.kill()
    path = kept.root / "compaction/compactionLog" / T / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    unit = UNIT.unpack_from(
        (kept.root / "compaction/compactionCq" / T / "0" / f"{0:020d}").read_bytes(), UNIT_SIZE * 12
    )
    torn = unit[0] + 100
    data[torn:] = bytes(len(data) - torn)  # pages that never reached the disk
    path.write_bytes(data)
    kept.open()
    kept.check()  # copied again from the log
    assert len(kept.read()) == 20


def test_a_copy_that_lost_a_sector_of_its_properties_is_made_again(kept: Kept) -> None:
    """A loss of power took it from the copy only; no checksum covers it."""
    kept.put("a", b"1")
    kept.put("b", b"2", tags="t" * 2000)
    kept.put("c", b"3")
    kept.compact()
    whole = [bytes(each) for each in kept.store.get_message("G", T, 0, 0, 9).records]
    kept.store.kill()
    (path,) = (kept.root / "compaction" / "compactionLog" / T / "0").iterdir()
    with path.open("r+b") as file:
        file.seek(1024)
        assert file.read(512) == b"t" * 512
        file.seek(1024)
        file.write(bytes(512))
    kept.open()
    kept.read()
    assert [bytes(each) for each in kept.store.get_message("G", T, 0, 0, 9).records] == whole


def test_deleted_with_its_topic(kept: Kept) -> None:
    for n in range(100):
        kept.put(f"k{n % 3}", b"%d" % n)
    kept.compact()
    kept.store.delete_topics({T})
    assert not (kept.root / "compaction/compactionLog" / T / "0").exists()
    assert kept.read() == []


def test_files_are_rocketmqs(kept: Kept) -> None:
    for n in range(200):
        kept.put(f"k{n % 3}", b"%d" % n)
    kept.read()
    config = kept.store.config
    sizes = (log_file_size(config), unit_file_size(config))
    base = kept.root / "compaction"
    names = kept.segments()
    assert len(names) > 2
    for number, (name, other) in enumerate(names):
        assert name == other == f"{number * sizes[0]:020d}"
        log = (base / "compactionLog" / T / "0" / name).read_bytes()
        units = (base / "compactionCq" / T / "0" / name).read_bytes()
        assert (len(log), len(units)) == sizes
        if number == len(names) - 1:
            continue
        end = 0
        for at in range(0, sizes[1], UNIT_SIZE):
            position, size, _, _, queue_offset, count, compacted, _ = UNIT.unpack_from(units, at)
            if position < 0:
                break
            assert (position, count, compacted) == (number * sizes[0] + end, 1, -1)
            assert decode_record(log, end).queue_offset == queue_offset
            end += size
        assert BLANK.unpack_from(log, end) == (sizes[0] - end, BLANK_MAGIC)


class Stop(Exception):
    """The power went."""


class Steps(OsFileSystem):
    """Fails before the n-th change of a directory."""

    left = 10**9

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stop

    def rename(self, source: str, target: str, *, durable: bool = True) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)


def test_any_crash_of_a_replacement(tmp_path: Path) -> None:
    """Whatever was done of it, the next start finds everything."""
    for steps in range(60):
        files = Steps()
        kept = Kept(tmp_path / f"s{steps}", files)
        for n in range(130):
            kept.put(f"k{n % 4}", b"%d" % n)
        kept.read()
        files.left = steps
        try:
            kept.compact()
            done = True
        except Stop:
            done = False
        files.left = 10**9
        kept.store.kill()
        kept.open()
        kept.check()
        kept.compact()
        kept.check()
        assert not list((kept.root / "compaction").rglob(READY))
        kept.store.shutdown()
        shutil.rmtree(kept.root)
        if done:
            assert steps > 5
            return
    raise AssertionError("60 steps were not enough")


def test_broken_marks(kept: Kept) -> None:
    for n in range(100):
        kept.put(f"k{n % 3}", b"%d" % n)
    kept.read()
    kept.store.shutdown()
    folder = kept.root / "compaction/compactionLog" / T / "0"
    (folder / "compacting").mkdir()
    (folder / "compacting" / READY).write_text("{")
    with pytest.raises(StoreCorruptError, match=READY):
        kept.open()
    (folder / "compacting" / READY).write_text(json.dumps({"made": [], "gone": []}))
    (kept.root / "compaction/position-checkpoint").write_text("no json")
    units = kept.root / "compaction/compactionCq" / T / "0"
    shutil.copy(units / f"{0:020d}", units / f"{10**9:020d}")  # without records
    kept.open()
    kept.check()


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.sampled_from("abcdefg"), st.sampled_from([b"", b"x", b"y" * 90])),
                max_size=60,
            ),
            st.sampled_from(["compact", "restart", "kill", "read"]),
        ),
        max_size=12,
    )
)
def test_model(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[str | list[tuple[str, bytes]]]
) -> None:
    kept = Kept(tmp_path_factory.mktemp("model"))
    for step in steps:
        if step == "compact":
            kept.compact()
        elif step == "read":
            kept.check()
        elif step in ("restart", "kill"):
            kept.store.shutdown() if step == "restart" else kept.store.kill()
            kept.open()
        elif isinstance(step, list):
            for key, body in step:
                kept.put(key, body)
    kept.check()
    kept.store.shutdown()
    shutil.rmtree(kept.root)


def test_a_single_message_is_read(kept: Kept) -> None:
    kept.put("k", b"only")
    kept.compact()
    assert kept.read() == [(0, "k", b"only")]


def test_other_topics_have_no_compaction_log(kept: Kept) -> None:
    kept.put("k", b"x")
    kept.store.append_messages([MessageExtBrokerInner.of("plain", b"x", keys="k")])
    kept.store.dispatch_nowait()
    kept.compact()
    kept.store.compaction.follow()  # type: ignore[union-attr]
    assert [path.name for path in (kept.root / "compaction" / "compactionLog").iterdir()] == [T]


def test_compactions_are_as_far_apart_as_the_setting_says(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    compaction = kept.store.compaction
    assert compaction is not None
    runs: list[float] = []
    now_s = [1e6]
    monkeypatch.setattr("oberth.store.compaction_store.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(type(compaction), "run", lambda _self: runs.append(now_s[0]))
    interval_s = kept.store.config.compaction_schedule_interval_ms / 1000
    for after_s in (0.0, interval_s - 1, 1.0, interval_s / 2):
        now_s[0] += after_s
        compaction.run_due()
    assert runs == [1e6, 1e6 + interval_s]


@pytest.mark.parametrize("half", ["compactionLog", "compactionCq"])
def test_an_empty_half_of_a_segment_is_refused_by_its_path(kept: Kept, half: str) -> None:
    kept.put("k", b"x")
    kept.compact()
    kept.store.shutdown()
    path = next((kept.root / "compaction" / half / T / "0").glob("0*"))
    kept_bytes = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(StoreCorruptError, match=f"{half}.*{path.name}: found 0 bytes"):
        kept.open()
    path.write_bytes(kept_bytes)
    kept.open()


def test_a_half_without_the_other_goes_when_it_holds_nothing(kept: Kept) -> None:
    kept.put("k", b"x")
    kept.compact()
    kept.store.shutdown()
    base = kept.root / "compaction"
    (log,) = (base / "compactionLog" / T / "0").glob("0*")
    (units,) = (base / "compactionCq" / T / "0").glob("0*")
    later = f"{int(log.name) + log.stat().st_size:020}"
    log.with_name(later).write_bytes(b"\1" * 100)  # a crash while the pair was made
    units.with_name(f"{int(later) * 2:020}").write_bytes(b"\1" * 100)
    kept.open()
    assert kept.segments() == [(log.name, units.name)]
    kept.check()


def test_4_9_knows_no_compaction(tmp_path: Path) -> None:
    for line in (Line.V5, Line.V4_9):
        config = MessageStoreConfig(store_path_root_dir=str(tmp_path / str(line)), line=line)
        assert config.enable_compaction
        assert (MessageStore(config).compaction is None) is (line is Line.V4_9)


def test_a_run_sees_the_first_message_behind_what_the_run_before_saw(kept: Kept) -> None:
    a_segment = 39
    for n in range(a_segment):
        kept.put(f"k{n}", b"old")
    kept.put("k0", b"new")
    kept.compact()
    positions = (kept.root / "compaction/position-checkpoint").read_bytes()
    seen = CompactionPositions.decode(positions).queue_offset_map[f"{T}_0"]
    assert seen == a_segment - 1, "the newest of k0 begins the next segment"
    for n in range(a_segment):
        kept.put(f"other{n}", b"x")
    kept.compact()
    assert [at for at, key, _ in kept.read() if key == "k0"] == [a_segment]


class Maps(OsFileSystem):
    """Notes which files were made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Path] = []

    def map(self, path: str, size: int, *, create: bool = False, writable: bool = True) -> Mapping:
        if create:
            self.made.append(Path(path))
        return super().map(path, size, create=create, writable=writable)


def test_what_a_run_has_made_is_opened_and_never_made_again(tmp_path: Path) -> None:
    """A file that is lost in between is missed, and no empty one takes its place."""
    files = Maps()
    kept = Kept(tmp_path, files)
    for n in range(130):
        kept.put(f"k{n % 4}", b"%d" % n)
    kept.read()
    files.made.clear()
    kept.compact()
    assert files.made
    assert {path.parent.name for path in files.made} == {"compacting"}
    kept.check()
    kept.store.shutdown()


def test_tags_of_a_message_whose_ext_unit_is_gone(tmp_path: Path) -> None:
    kept = Kept(tmp_path, enableConsumeQueueExt="true")
    for n in range(4):
        kept.put(f"k{n}", b"x", "odd" if n % 2 else "even")
    queue = kept.store.queues.find(T, 0)
    assert isinstance(queue, ConsumeQueue)
    assert queue.ext is not None
    unit = queue.unit(0)
    assert unit is not None
    assert is_ext_address(unit.tags_code)
    queue.ext.destroy()
    assert kept.store.compaction is not None
    kept.store.compaction.follow()
    wanted = TagsFilter([java_hash("odd")])
    assert [at for at, _, _ in kept.read(message_filter=wanted)] == [1, 3]
    kept.store.shutdown()


@pytest.mark.parametrize("keys_max", [2_000_000, 10])
def test_a_run_that_has_no_room_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys_max: int
) -> None:
    """The setting of the sizes was lowered. What was deleted stays deleted when there is room.

    A run that may only look at a few keys looks at one segment more each time.
    """
    monkeypatch.setattr("oberth.store.compaction_log.KEYS_MAX", keys_max)
    files = Maps()
    large = {
        "compactionMappedFileSize": str(46 * 400 * 5), "compactionCqMappedFileSize": str(46 * 400)
    }  # fmt: skip
    kept = Kept(tmp_path, files, **large)
    kept.put("gone", b"x")
    kept.put("gone", b"")
    for n in range(400):
        kept.put(f"k{n}", b"old")
    assert kept.store.compaction is not None
    kept.store.compaction.follow()
    assert len(kept.segments()) == 2
    kept.store.shutdown()
    kept.more = {}
    kept.open()
    assert kept.store.compaction is not None
    log = kept.store.compaction.find(T, 0)
    assert log is not None
    assert log.compact(-1) is None
    files.made.clear()
    kept.compact()
    assert not files.made, "a run with nothing new was tried again"
    kept.check()
    for n in range(700):
        kept.put(f"k{n % 400}", b"new")
    assert kept.store.compaction is not None
    kept.store.compaction.follow()
    for _ in kept.segments():
        kept.compact()
    kept.check()
    assert len(kept.segments()) > 3
    assert "gone" not in {key for _, key, _ in kept.read()}
    kept.store.shutdown()


@pytest.mark.parametrize("lost", [("",), ("compactionLog", "compactionCq"),
                                  (f"compactionLog/{T}/0", f"compactionCq/{T}/0")])  # fmt: skip
@pytest.mark.parametrize("starts", [True, False])
def test_what_is_deleted_soon_after_a_start_is_copied_before(
    tmp_path: Path, starts: bool, lost: tuple[str, ...]
) -> None:
    """The copies were lost, or never made: with ``enableCompaction=false``.

    What tells that they were compacted may be left.
    """
    kept = Kept(
        tmp_path,
        SizedDisk(),
        mappedFileSizeCommitLog=str(1 << 14),
        deleteCommitLogFilesInterval="0",
    )
    kept.put("gone", b"x")
    kept.put("gone", b"")
    for n in range(200):
        kept.put(f"k{n}", bytes(300))
    kept.compact()
    kept.store.shutdown()
    for name in lost:
        shutil.rmtree(kept.root / "compaction" / name)
    if starts:
        kept.open()
    else:
        kept.store = kept.made()
        kept.store.load()
    for segment in kept.store.commit_log.queue.segments:
        os.utime(segment.path, (0, 0))
    kept.store.delete_expired_files_manually()
    assert kept.store.cleaning.run() > 2
    assert len(kept.read()) == 202
    kept.check()
    kept.compact()
    assert [at for at, _, _ in kept.read()] == list(range(2, 202))
    kept.store.shutdown()


def test_a_state_that_is_noted_without_copies_lets_nothing_more_go(kept: Kept) -> None:
    kept.put("k", b"1")
    kept.store.checkpoint_now()
    copied = kept.store.max_phy_offset
    assert kept.store._deletable_offset() == copied
    kept.put("k", b"2")
    kept.store._write_state(clean=False)
    assert kept.store._deletable_offset() == copied
    kept.read()
    assert kept.store._deletable_offset() == kept.store.max_phy_offset


@pytest.mark.parametrize("common", [0, 1])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_log_that_is_cut_takes_its_copies_along(
    tmp_path: Path, common: int, is_compacted: bool
) -> None:
    """Sealed ones, too; and what only they had superseded is there again."""
    kept = Kept(tmp_path / "a")
    kept.store.append_messages([MessageExtBrokerInner.of("plain", b"x")])
    kept.store.dispatch_nowait()
    for _ in range(common):
        kept.put("k0", b"common")
    at = kept.store.max_phy_offset
    kept.store.shutdown()
    shutil.copytree(kept.root, tmp_path / "b")
    kept.open()
    for n in range(130):
        kept.put(f"k{n % 4}", b"cut off")
    kept.read()
    if is_compacted:
        kept.compact()
    kept.store.shutdown()
    cut_log(str(kept.root), at)
    other = Kept(tmp_path / "b")
    for n in range(20):
        other.put(f"k{n % 4}", b"%d" % n)
    wanted, end = other.read(), other.store.max_phy_offset
    other.store.shutdown()
    data = (other.root / "commitlog" / f"{0:020d}").read_bytes()[at:end]
    kept.open()
    assert kept.store.append_replica(at, data)
    while kept.store.dispatch_behind_bytes:
        kept.store.dispatch_nowait()
    assert len(wanted) == 20 + common
    assert kept.read() == wanted
    kept.store.shutdown()


@pytest.mark.parametrize("has_parted", [True, False])
def test_what_a_master_has_only_deleted_stays_compacted(tmp_path: Path, has_parted: bool) -> None:
    kept = Kept(tmp_path / "store")
    for n in range(130):
        kept.put(f"k{n % 4}", b"%d" % n)
    kept.compact()
    before = kept.read()
    kept.store.shutdown()
    cut_log(str(kept.root), 0, has_parted=has_parted)
    kept.open()
    assert kept.read() == ([] if has_parted else before)
    kept.store.shutdown()


def cleaned(root: Path, count: int = 4, **more: str) -> tuple[Kept, list[int]]:
    """100 messages whose first segments have expired, ten in each; and where each message lay.

    The first two are of a key that a run leaves nothing of.
    """
    kept = Kept(
        root, SizedDisk(), mappedFileSizeCommitLog=str(1 << 14), deleteCommitLogFilesInterval="0",
        deleteConsumeQueueFilesInterval="0", **more,
    )  # fmt: skip
    kept.put("gone", bytes(1500))
    kept.put("gone", b"")
    for n in range(2, 100):
        kept.put(f"k{n}", bytes(1500))
    queue = kept.store.queues.find(T, 0)
    assert isinstance(queue, ConsumeQueue)
    places = [unit.commit_log_offset for n in range(100) if (unit := queue.unit(n))]
    for segment in kept.store.commit_log.queue.segments[:count]:
        os.utime(segment.path, (0, 0))
    kept.store.delete_expired_files_manually()
    assert kept.store.cleaning.run() == count
    return kept, places


def make_apaches(kept: Kept) -> None:
    """Has records name their place among the copies, as those that Apache's broker makes."""
    base = kept.root / "compaction"
    for name, _ in kept.segments():
        path = base / "compactionLog" / T / "0" / name
        log = bytearray(path.read_bytes())
        units = (base / "compactionCq" / T / "0" / name).read_bytes()
        for at in range(0, len(units), UNIT_SIZE):
            position, size, *_ = UNIT.unpack_from(units, at)
            if size <= 0:
                break
            start = position - int(name) + COMMIT_LOG_OFFSET_POSITION
            log[start : start + 8] = position.to_bytes(8, "big")
        path.write_bytes(log)


@pytest.mark.parametrize("is_compacted", [True, False])
@pytest.mark.parametrize(
    ("are_apaches", "has_queues"), [(False, True), (False, False), (True, True)]
)
def test_only_what_the_log_still_has_is_forgotten(
    tmp_path: Path, are_apaches: bool, is_compacted: bool, has_queues: bool
) -> None:
    """What has expired there is nowhere else."""
    kept, places = cleaned(tmp_path / "a")
    kept.store.shutdown()
    if are_apaches:
        make_apaches(kept)
    if is_compacted:
        kept.open()
        kept.compact()
        kept.store.shutdown()
    if not has_queues:
        shutil.rmtree(kept.root / "consumequeue")
    cut_log(str(kept.root), places[70])
    kept.open()
    assert [at for at, _, _ in kept.read()] == list(range(2 if is_compacted else 0, 70))
    for n in range(70, 75):
        kept.put(f"k{n}", b"other")
    assert [body for at, _, body in kept.read(70)] == [b"other"] * 5
    kept.store.shutdown()


@pytest.mark.parametrize("common", [0, 12, 30])
@pytest.mark.parametrize("units", [300, 10])
@pytest.mark.parametrize("has_epochs", [True, False])
def test_what_parted_before_the_log_begins_is_forgotten(
    tmp_path: Path, common: int, units: int, has_epochs: bool
) -> None:
    """The files of the queue may still know it, or have gone with the log.

    Epochs tell where to cut, before the log begins; bytes can only be compared behind that.
    """
    kept, places = cleaned(tmp_path / "a", mappedFileSizeConsumeQueue=str(20 * units))
    begin = kept.store.min_phy_offset
    kept.store.shutdown()
    assert places[30] < begin
    if has_epochs:
        cut_log(str(kept.root), places[common])
    else:
        cut_log(str(kept.root), begin, common_end=places[common])
    kept.open()
    assert [at for at, _, _ in kept.read()] == list(range(common))
    kept.store.shutdown()


def test_an_unused_topic_takes_its_copies_along(kept: Kept) -> None:
    for n in range(100):
        kept.put(f"k{n % 3}", b"%d" % n)
    kept.compact()
    assert kept.store.clean_unused_topics(lambda _: False) == [T]
    kept.put("k0", b"new")
    assert kept.read() == [(0, "k0", b"new")]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_full_disk_does_not_end_a_deletion_of_topics_halfway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    """What was compacted of them is noted by the first check point that has room."""
    disk = FaultDisk()
    kept = Kept(tmp_path / "store", disk)
    store = kept.store
    for n in range(100):
        kept.put(f"k{n % 3}", b"%d" % n)
    kept.compact()
    store.append_messages([MessageExtBrokerInner.of("plain", b"x")])
    store.dispatch_nowait()
    settled: list[list[str]] = []
    monkeypatch.setattr(store, "settle_removal", lambda: settled.append(store.topics()))
    disk.fill(0)
    if by_name:
        assert store.delete_topics([T, "plain"]) == 2
    else:
        assert store.clean_unused_topics(lambda _: False) == [T, "plain"]
    assert settled == [[]]
    positions = kept.root / "compaction/position-checkpoint"
    assert CompactionPositions.decode(positions.read_bytes()).queue_offset_map
    disk.fill(None)
    store.checkpoint_now()
    assert not CompactionPositions.decode(positions.read_bytes()).queue_offset_map
    store.shutdown()
