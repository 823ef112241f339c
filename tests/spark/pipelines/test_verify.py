"""The distributed check finds what `oberth store verify` finds, in the same order."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rigs.campaigns import examples
from tests.rigs.damage import foreign_bytes

from oberth.cli.main import oberth
from oberth.formats.message import QUEUE_OFFSET_POSITION
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.spark.load import StoreLoader
from oberth.spark.load_plan import work_directory
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.pipelines.verify import findings_frame, verify
from oberth.spark.sink import stage
from oberth.spark.write_options import parse_write_options
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline import log_columns
from oberth.store.offline.findings import FindingKind
from oberth.store.offline.index_view import real_count
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify as verify_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]


def check(root: Path, entries: dict[str, str] | None, range_size: int) -> None:
    with StoreReader(root, entries) as reader:
        expected = verify_here(reader).to_json()
    found = verify(InProcess(), str(root), entries=entries, range_size=range_size).to_json()
    assert found == expected


def entries_of(store: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in store.config.items()
        if "Path" not in name or "CommitLog" in name
    }


def test_golden_stores(golden_name: str, golden_pristine: Golden) -> None:
    store = golden_pristine(golden_name)
    range_size = 1 << 28 if golden_name.startswith("defaults") else 20_000
    check(store.root, entries_of(store), range_size)


@settings(max_examples=20)
@example(damage=[(447, b"\x01")], range_size=5000)
@given(
    damage=foreign_bytes(10_000_000, 2000),
    range_size=st.integers(5000, 200_000),
)
def test_damage_anywhere(
    golden_pristine: Golden,
    tmp_path_factory: pytest.TempPathFactory,
    damage: list[tuple[int, bytes]],
    range_size: int,
) -> None:
    """Foreign bytes in any file of log, queues and index."""
    base = tmp_path_factory.mktemp("damaged")
    root = base / "store"
    shutil.copytree(golden_pristine("crash-5.5.0").root, root)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size > 9]
    for number, data in damage:
        path = files[number % len(files)]
        with path.open("r+b") as file:
            file.seek(number // len(files) % max(1, path.stat().st_size - len(data)))
            file.write(data)
    check(root, None, range_size)
    shutil.rmtree(base)


@pytest.mark.spark
def test_on_spark(spark: SparkSession, golden_pristine: Golden) -> None:
    store = golden_pristine("flipped-bit-5.5.0")
    arguments = ["spark", "verify", str(store.root), "--json"]
    done = CliRunner().invoke(oberth, arguments)
    assert done.exit_code == 1
    with StoreReader(store.root) as reader:
        report = verify_here(reader)
    assert json.loads(done.stdout) == report.to_json()
    rows = findings_frame(spark, report).where("severity = 'damage'").collect()
    assert [(row.kind, row.commitLogOffset) for row in rows] == [("record-crc", 46535)]


@pytest.mark.parametrize("name", ["4-5-4", "4-ours-5-4-5", "5-4-ours"])
@pytest.mark.parametrize("range_size", [3000, 1 << 20])
def test_stores_of_mixed_lines(name: str, range_size: int, tmp_path: Path) -> None:
    """Tags are in the Index in stretches; each task finds out for its own range."""
    mixed = Path(__file__).parents[2] / "golden" / "mixed"
    with tarfile.open(mixed / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = verify(InProcess(), str(tmp_path / name), range_size=range_size)
    assert found.clean, [str(each) for each in found.damage]
    check(tmp_path / name, None, range_size)


@pytest.fixture(scope="module")
def two_queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with messages for two queues by turns, in a small log."""
    root = tmp_path_factory.mktemp("small") / "store"
    sizes = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "400"}
    options = parse_write_options({"path": str(root), "topic": "T", **sizes})
    work = work_directory(str(root), "made")
    rows = pa.record_batch({"value": [b"x"] * 20, "partition": [n % 2 for n in range(20)]})
    StoreLoader(options).commit([stage(iter([rows]), options, work)], work)
    return root


@pytest.mark.parametrize("wrong", [0, 3, 1 << 40])
@pytest.mark.parametrize("number", [8, 9])
def test_a_wrong_queue_offset_is_told_by_what_lies_behind_its_range(
    two_queues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, wrong: int
) -> None:
    """A range, or a piece of a single reader, may end before the next record of a queue."""
    root = tmp_path / "store"
    shutil.copytree(two_queues, root)
    with StoreReader(root) as reader:
        places = sorted(message.commit_log_offset for message in reader.messages())
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(places[number] + QUEUE_OFFSET_POSITION)
        file.write(wrong.to_bytes(8, "big"))
    found = verify(InProcess(), str(root)).findings
    assert [each.found for each in found] == [f"queue offset {wrong} (misnumbered)"]
    for size in places[1:]:
        check(root, None, size)
    for size in places[1:]:
        monkeypatch.setattr(log_columns, "PIECE_SIZE", size)
        with StoreReader(root) as reader:
            assert verify_here(reader).findings == found


SHAPE = {"maxHashSlotNum": "50", "maxIndexNum": "100"}


@pytest.fixture(scope="module")
def many_index_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose entries fill more than twenty index files."""
    root = tmp_path_factory.mktemp("indexed") / "store"
    sizes = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "400"}
    options = parse_write_options({"path": str(root), "topic": "T", **SHAPE, **sizes})
    work = work_directory(str(root), "made")
    numbers = range(1000)
    rows = pa.record_batch(
        {
            "value": [b"x" * (n % 60) for n in numbers],
            "key": [f"k{n} of{n % 7}" for n in numbers],
            "tags": [f"t{n % 3}" if n % 2 else None for n in numbers],
        }
    )
    StoreLoader(options).commit([stage(iter([rows]), options, work)], work)
    return root


class Counted(InProcess):
    """Counts tasks by what they do."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def run(self, function: Any, items: Any, *, what: str, done: Any = None) -> list[Any]:
        self.counts[what] += len(items)
        return super().run(function, items, what=what, done=done)


def test_index_files_are_compared_by_tasks_of_their_own(many_index_files: Path) -> None:
    tasks = Counted()
    files = len(list((many_index_files / "index").iterdir()))
    report = verify(tasks, str(many_index_files), entries=SHAPE)
    assert report.clean
    assert files > 20
    assert tasks.counts["compare"] > files
    assert tasks.counts["compare the rest"] == 0
    check(many_index_files, SHAPE, 20_000)


@settings(
    max_examples=examples(
        "tests/spark/pipelines/test_verify.py::test_damage_in_one_of_many_index_files"
    )
)
@example(damage=[(36, b"\x05")], gone=[], lost=[], range_size=30_000)
@example(damage=[], gone=[3], lost=[], range_size=30_000)
@example(damage=[], gone=[0], lost=[0], range_size=30_000)
@example(damage=[], gone=[21], lost=[1], range_size=3000)
@given(
    damage=foreign_bytes(60_000, 300),
    gone=st.lists(st.integers(0, 24), max_size=2),
    lost=st.lists(st.integers(0, 2), max_size=1),
    range_size=st.sampled_from([3000, 30_000, 100_000]),
)
def test_damage_in_one_of_many_index_files(
    many_index_files: Path,
    tmp_path_factory: pytest.TempPathFactory,
    damage: list[tuple[int, bytes]],
    gone: list[int],
    lost: list[int],
    range_size: int,
) -> None:
    """Foreign bytes, files that are missing, a log without its first segment or another one.

    Tasks have other parts of the log than one reader; nothing that is told depends on that.
    """
    base = tmp_path_factory.mktemp("damaged")
    root = base / "store"
    shutil.copytree(many_index_files, root)
    files = sorted((root / "index").iterdir())
    for number, data in damage:
        path = files[number % len(files)]
        with path.open("r+b") as file:
            file.seek(number // len(files) % max(1, path.stat().st_size - len(data)))
            file.write(data)
    for number in set(gone):
        files[number % len(files)].unlink(missing_ok=True)
    for number in lost:
        (root / "commitlog" / f"{number * 65536:020d}").unlink()
    check(root, SHAPE, range_size)
    shutil.rmtree(base)


@pytest.mark.parametrize("gone", [0, 9, 21])
def test_an_index_file_that_is_gone_makes_no_other_wrong(
    many_index_files: Path, tmp_path: Path, gone: int
) -> None:
    """Its neighbours begin and end in the middle of a record; tags count as indexed all along."""
    root = tmp_path / "store"
    shutil.copytree(many_index_files, root)
    path = sorted((root / "index").iterdir())[gone]
    with StoreReader(root, SHAPE) as reader:
        count = next(real_count(view) for view in reader.index_files() if view.path == str(path))
    path.unlink()
    with StoreReader(root, SHAPE) as reader:
        [finding] = verify_here(reader).damage
    assert finding.kind is FindingKind.INDEX_ENTRY_MISSING
    assert f"no entry for {count} keys" in finding.found


@pytest.fixture
def long_queue(tmp_path: Path) -> Path:
    """A store of four segments whose only queue has four files of ten units."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path / "store"),
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=200,
    )
    with MessageStore(config) as opened:
        for number in range(38):
            body = b"%d " % number + bytes(250)
            assert opened.put_message(MessageExtBrokerInner.of("T", body, keys="k")).ok
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("name", "size", "missing"),
    [(200, 199, [(19, 1)]), (200, 41, [(12, 8)]), (200, 0, [(10, 10)]), (600, 100, [(35, 3)])],
)
def test_files_behind_one_that_is_cut_off_are_compared(
    long_queue: Path, name: int, size: int, missing: list[tuple[int, int]]
) -> None:
    os.truncate(long_queue / "consumequeue" / "T" / "0" / f"{name:020d}", size)
    wrong = long_queue / "consumequeue" / "T" / "0" / f"{400:020d}"
    wrong.write_bytes(b"\1" + wrong.read_bytes()[1:])
    with StoreReader(long_queue) as reader:
        found = verify_here(reader).damage
    assert [
        (each.queue_offset, (each.length or 0) // 20)
        for each in found
        if each.kind is FindingKind.UNIT_MISSING
    ] == missing
    assert [each.queue_offset for each in found if each.kind is FindingKind.UNIT_WRONG] == [20]
    check(long_queue, None, 1000)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_topic_that_has_a_queue_was_not_deleted(golden_store: Golden, is_known: bool) -> None:
    """Another queue of it that is gone is damage, whether the table has the topic or not."""
    store = golden_store("timer-after-5.5.0")
    queue = store.root / "consumequeue" / "TimerTopic" / "0"
    shutil.rmtree(queue)
    queue.write_bytes(b"mine")
    table = store.root / "config" / "topics.json"
    assert b'"TimerTopic"' in table.read_bytes()
    if not is_known:
        table.write_bytes(table.read_bytes().replace(b'"TimerTopic"', b'"OtherTopic"'))
    check(store.root, entries_of(store), 1000)
    found = verify(InProcess(), str(store.root), entries=entries_of(store))
    assert [(each.kind, each.file) for each in found.damage] == [
        (FindingKind.QUEUE_MISSING, "consumequeue/TimerTopic/0")
    ]


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_was_deleted_stays_deleted_when_a_later_message_comes(
    tmp_path: Path, is_lost: bool
) -> None:
    """As of a delayed message. What the topic has had since then may be lost like any other."""
    config = MessageStoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=400, max_hash_slot_num=100, max_index_num=400,
    )  # fmt: skip
    with MessageStore(config) as store:
        for queue_id in (0, 1, 0, 1):
            assert store.put_message(MessageExtBrokerInner.of("T", b"x", queue_id=queue_id)).ok
        assert store.delete_topics(["T"]) == 1
        for queue_id in (1, 2, 1):
            assert store.put_message(MessageExtBrokerInner.of("T", b"y", queue_id=queue_id)).ok
    if is_lost:
        shutil.rmtree(tmp_path / "consumequeue" / "T" / "1")
    found = verify(InProcess(), str(tmp_path))
    missing = [each for each in found.findings if each.kind is FindingKind.QUEUE_MISSING]
    assert [each.file for each in missing if "was deleted" in each.found] == ["consumequeue/T/0"]
    assert [each.file for each in found.damage] == ["consumequeue/T/1"] * is_lost
    with StoreReader(tmp_path) as reader:
        places = [message.commit_log_offset for message in reader.messages()]
    for size in places[1:]:
        check(tmp_path, None, size)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_of_no_bytes_among_others_is_lost_whoever_looks(
    long_queue: Path, number: int
) -> None:
    path = long_queue / "commitlog" / f"{number * 4096:020d}"
    path.write_bytes(b"")
    check(long_queue, None, 1000)
    found = verify(InProcess(), str(long_queue), range_size=1000)
    assert (FindingKind.FILE_SIZE, f"commitlog/{path.name}") in {
        (each.kind, each.file) for each in found.damage
    }
    if number:
        [lost] = [each for each in found.damage if each.kind is FindingKind.RECORD_DAMAGED]
        assert (lost.commit_log_offset, lost.length) == (number * 4096, 4096)
