"""A load adds all its rows to a store, or none: also when it is stopped at any step."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.campaigns import rounds

pytest.importorskip("pyspark")

import pyarrow as pa

from oberth.errors import RecordError, StoreError, StoreLockedError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.spark.load import LoadReport, StoreLoader
from oberth.spark.load_plan import (
    ExistingStore,
    Stretch,
    give_back,
    plan_load,
    work_directory,
)
from oberth.spark.publish import read_ledger
from oberth.spark.sink import stage
from oberth.spark.storage import LocalStorage
from oberth.spark.write_options import parse_write_options
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify
from oberth.store.store_lock import StoreLock

SMALL = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "50",
    "maxIndexNum": "100",
}


def _batch(first: int, last: int, topics: int = 3) -> pa.RecordBatch:
    numbers = range(first, last)
    return pa.record_batch(
        {
            "topic": [f"T{n % topics}" for n in numbers],
            "value": [f"{n} ".encode() * (n % 50) for n in numbers],
            "key": [f"k{n} all" for n in numbers],
            "tags": [None if n % 4 == 0 else f"tag{n % 4}" for n in numbers],
            "partition": pa.array([n % 2 for n in numbers], pa.int32()),
            "timestamp": pa.array([1_700_000_000_000 + n for n in numbers], pa.int64()),
        }
    )


class Load:
    """Stages and commits batches of rows, one part each."""

    def __init__(self, root: Path, **options: str) -> None:
        self.options = parse_write_options({"path": str(root), **SMALL, **options})

    def run(
        self, batches: Iterable[pa.RecordBatch], stop_at: str = "", **commit: Any
    ) -> LoadReport:
        work = work_directory(self.options.path, "job")
        parts = [stage(iter([batch]), self.options, work) for batch in batches]
        loader = StoreLoader(self.options)
        if stop_at:
            loader.steps = _stop(stop_at)  # type: ignore[method-assign,assignment]
        return loader.commit(parts, work, **commit)


class Stopped(Exception):
    pass


def _stop(at: str) -> Callable[[str], None]:
    def step(name: str) -> None:
        if name == at:
            raise Stopped(name)

    return step


def _check(root: Path) -> None:
    # Its files say all sizes but the index's, of which few entries do not tell.
    entries = {key: SMALL[key] for key in ("maxHashSlotNum", "maxIndexNum")}
    with StoreReader(str(root), entries) as reader:
        report = verify(reader, threads=1)
    assert not report.damage, [str(finding) for finding in report.damage]


def _tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def _bodies(read_store: Any, root: Path) -> list[bytes]:
    return [row["value"] for row in read_store(root, readOrder="commitlog").rows]


def test_a_store_is_built_and_grows(tmp_path: Path, read_store: Any) -> None:
    root = tmp_path / "store"
    first = Load(root).run([_batch(0, 300), _batch(300, 420)])
    assert (first.rows, first.log_start) == (420, 0)
    _check(root)
    second = Load(root).run([_batch(420, 900)])
    assert second.log_start == first.log_end
    _check(root)
    expected = [f"{n} ".encode() * (n % 50) for n in range(900)]
    assert _bodies(read_store, root) == expected
    rows = read_store(root, readOrder="queue").rows
    assert sorted(row["value"] for row in rows) == sorted(expected)
    for topic in ("T0", "T1", "T2"):
        for queue in (0, 1):
            offsets = [r["offset"] for r in rows if (r["topic"], r["partition"]) == (topic, queue)]
            assert offsets == list(range(150))
    topics = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    assert {name: each["readQueueNums"] for name, each in topics.items()} == {
        "T0": 2,
        "T1": 2,
        "T2": 2,
    }
    assert not [path for path in tmp_path.iterdir() if path != root]


@pytest.mark.parametrize("timestamp", [2**62, 1_700_000_000_000_000, 0])
def test_any_time_can_be_loaded(tmp_path: Path, timestamp: int) -> None:
    """Index files are named by times, and these are in no calendar, or go back."""
    root = tmp_path / "store"
    Load(root).run([_batch(0, 120)])
    batch = _batch(120, 420)
    times = pa.array([timestamp] * batch.num_rows, pa.int64())
    batch = batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)
    Load(root).run([batch])
    names = sorted(path.name for path in (root / "index").iterdir())
    assert len(names) > 5
    with StoreReader(
        str(root), {key: SMALL[key] for key in ("maxHashSlotNum", "maxIndexNum")}
    ) as reader:
        begins = [view.header.begin_offset for view in reader.index_files()]
    assert begins == sorted(begins)


def test_the_same_bytes_whether_in_one_load_or_two(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    Load(one).run([_batch(0, 500)])
    Load(two).run([_batch(0, 123)])
    Load(two).run([_batch(123, 500)])
    files = [name for name in _tree(one) if name.split("/")[0] in ("commitlog", "consumequeue")]
    assert {n: _tree(one)[n] for n in files} == {n: _tree(two)[n] for n in files}
    index = [name for name in _tree(one) if name.startswith("index")]
    assert len(index) > 3
    assert {n: _tree(one)[n] for n in index} == {
        n: h for n, h in _tree(two).items() if n.startswith("index")
    }


@pytest.mark.skipif(sys.platform != "linux", reason="holes are made with fallocate")
def test_what_is_in_its_place_takes_no_room_twice(tmp_path: Path) -> None:
    options = parse_write_options({"path": str(tmp_path / "store"), **SMALL})
    work = work_directory(options.path, "job")
    part = stage(iter([_batch(0, 3000)]), options, work)
    staged = Path(part.path)
    size, left = staged.stat().st_size, []
    has_holes = _has_holes(tmp_path / "holes")

    class Looking(StoreLoader):
        def steps(self, name: str) -> None:
            if name == "index":
                left.append((staged.stat().st_size, any(staged.read_bytes())))

    Looking(options).commit([part], work)
    assert left == [(size, not has_holes)]


def _has_holes(path: Path) -> bool:
    """Whether the file system can take back a part of a file."""
    path.write_bytes(b"x" * 8192)
    give_back(str(path), 0, 4096)
    return path.read_bytes()[:4096] == bytes(4096)


def test_small_blocks_are_joined(tmp_path: Path, read_store: Any) -> None:
    root = tmp_path / "store"
    options = parse_write_options({"path": str(root), **SMALL})
    work = work_directory(options.path, "job")
    part = stage(iter([_batch(n, n + 10) for n in range(0, 300, 10)]), options, work)
    (block,) = part.blocks()
    assert (block.start, block.rows, sum(block.counts.values())) == (0, 300, 300)
    assert StoreLoader(options).commit([part], work).rows == 300
    _check(root)
    assert _bodies(read_store, root) == [f"{n} ".encode() * (n % 50) for n in range(300)]


@pytest.mark.parametrize("step", StoreLoader.STEPS)
def test_stopped_at_any_step_the_store_is_as_it_was_or_complete(
    tmp_path: Path, read_store: Any, step: str
) -> None:
    root = tmp_path / "store"
    Load(root).run([_batch(0, 200)])
    before = _tree(root)
    load = Load(root, loadId="second")
    with pytest.raises(Stopped):
        load.run([_batch(200, 400)], stop_at=step)
    done = step == "clean"
    if not done:
        assert _tree(root) == before
    _check(root)
    again = load.run([_batch(200, 400)])
    assert again.repeated == done
    _check(root)
    assert _bodies(read_store, root) == [f"{n} ".encode() * (n % 50) for n in range(400)]


def test_a_batch_of_a_stream_is_written_once(tmp_path: Path, read_store: Any) -> None:
    root = tmp_path / "store"
    load = Load(root)
    assert load.run([_batch(0, 50)], batch=("q", 0)).rows == 50
    assert load.run([_batch(0, 50)], batch=("q", 0)).repeated
    assert load.run([_batch(50, 60)], batch=("q", 1)).rows == 10
    assert load.run([_batch(60, 70)], batch=("other", 0)).rows == 10
    assert read_ledger(str(root))["queries"] == {"q": 1, "other": 0}
    assert len(_bodies(read_store, root)) == 70


def test_overwriting_begins_anew(tmp_path: Path, read_store: Any) -> None:
    root = tmp_path / "store"
    Load(root).run([_batch(0, 200)])
    report = Load(root).run([_batch(5, 10)], overwrite=True)
    assert report.log_start == 0
    assert len(_bodies(read_store, root)) == 5
    _check(root)


def test_what_was_overwritten_is_not_known_to_the_ledger(tmp_path: Path, read_store: Any) -> None:
    root = tmp_path / "store"
    first, anew = Load(root, loadId="first"), Load(root, loadId="anew")
    first.run([_batch(0, 20)])
    Load(root).run([_batch(20, 30)], batch=("q", 7))
    assert anew.run([_batch(100, 103)], overwrite=True).rows == 3
    assert read_ledger(str(root))["queries"] == {}
    assert Load(root).run([_batch(20, 30)], batch=("q", 0)).rows == 10
    assert first.run([_batch(0, 20)]).rows == 20
    assert anew.run([_batch(100, 103)], overwrite=True).repeated
    later = Load(root, loadId="later")
    assert len(_bodies(read_store, root)) == 3 + 10 + 20
    # One that is tried again late takes nothing away from who has overwritten since.
    assert later.run([_batch(200, 204)], overwrite=True).rows == 4
    assert anew.run([_batch(100, 103)], overwrite=True).repeated
    assert len(_bodies(read_store, root)) == 4
    _check(root)


class Late(StoreLoader):
    """Something happens just before it makes its new store."""

    meanwhile: Callable[[], Any]

    def steps(self, name: str) -> None:
        if name == "exchange":
            self.meanwhile()


def _first_load(root: Path, meanwhile: Callable[[], Any], **commit: Any) -> LoadReport:
    options = parse_write_options({"path": str(root), **SMALL})
    work = work_directory(options.path, "late")
    loader = Late(options)
    loader.meanwhile = meanwhile
    return loader.commit([stage(iter([_batch(50, 90)]), options, work)], work, **commit)


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_first_loads_the_second_is_refused(
    tmp_path: Path, read_store: Any, overwrite: bool
) -> None:
    root = tmp_path / "store"
    with pytest.raises(StoreLockedError, match="was not there when this began"):
        _first_load(root, lambda: Load(root).run([_batch(0, 50)]), overwrite=overwrite)
    assert _bodies(read_store, root) == [f"{n} ".encode() * (n % 50) for n in range(50)]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    _check(root)


def test_a_store_that_a_broker_makes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lock = StoreLock(str(root))

    def a_broker_starts() -> None:
        root.mkdir()
        lock.acquire()

    with pytest.raises(StoreLockedError, match="a broker has made"):
        _first_load(root, a_broker_starts)
    assert [path.name for path in root.iterdir()] == ["lock"]
    lock.release()


def test_an_empty_directory_is_as_good_as_none(tmp_path: Path, read_store: Any) -> None:
    root = tmp_path / "store"
    assert _first_load(root, root.mkdir).rows == 40
    assert len(_bodies(read_store, root)) == 40


def test_stores_that_are_not_touched(tmp_path: Path, golden_store: Callable[[str], Any]) -> None:
    root = tmp_path / "store"
    Load(root).run([_batch(0, 20)])
    lock = StoreLock(str(root))
    lock.acquire()
    with pytest.raises(StoreLockedError):
        Load(root).run([_batch(20, 40)])
    lock.release()
    (root / "abort").touch()
    with pytest.raises(StoreError, match="oberth store recover"):
        Load(root).run([_batch(20, 40)])
    (root / "abort").unlink()
    with pytest.raises(StoreError, match="its files have 16384"):
        Load(root, mappedFileSizeCommitLog="32768").run([_batch(20, 40)])
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(StoreError, match="neither empty nor a store"):
        Load(other).run([_batch(0, 1)], overwrite=True)
    behind = golden_store("clean-noqueue-5.5.0").root
    options = parse_write_options({"path": str(behind)})
    part = stage(iter([_batch(0, 3)]), options, work_directory(str(behind), "j"))
    with pytest.raises(StoreError, match="is in no ConsumeQueue"):
        StoreLoader(options).commit([part], work_directory(str(behind), "j"))
    with pytest.raises(RecordError, match="does not fit a segment"):
        Load(root).run([pa.record_batch({"topic": ["T0"], "value": [b"x" * 20_000]})])


@pytest.mark.parametrize("name", ["basic-5.5.0", "basic-4.9.7", "multidir-5.5.0", "cleaned-5.5.0"])
def test_a_store_of_apaches_broker_grows(
    golden_store: Callable[[str], Any], read_store: Any, name: str
) -> None:
    store = golden_store(name)
    before = read_store(store.root, readOrder="queue").rows
    options = parse_write_options({"path": str(store.root)})
    work = work_directory(str(store.root), "j")
    batch = _batch(0, 400)
    topic = before[0]["topic"]
    batch = batch.set_column(0, "topic", pa.array([topic] * 400))
    StoreLoader(options).commit([stage(iter([batch]), options, work)], work)
    rows = read_store(store.root, readOrder="queue").rows
    assert len(rows) == len(before) + 400
    old = {(r["topic"], r["partition"], r["offset"]): r["value"] for r in before}
    new = {(r["topic"], r["partition"], r["offset"]): r["value"] for r in rows}
    assert len(new) == len(rows)
    assert {key: new[key] for key in old} == old
    with StoreReader(str(store.root), store.config) as reader:
        damage = [str(finding) for finding in verify(reader, threads=1).damage]
    assert not damage


KILL = """
import os, signal, sys
import pyarrow as pa
from oberth.spark.load import StoreLoader
from oberth.spark.load_plan import work_directory
from oberth.spark.write_options import parse_write_options
from oberth.spark.sink import stage

root, step = sys.argv[1:]
options = parse_write_options({"path": root, "topic": "T", "loadId": "x",
                               "mappedFileSizeCommitLog": "16384"})
work = work_directory(root, "job")
batch = pa.record_batch({"value": [b"new" * 50] * 300})
part = stage(iter([batch]), options, work)

class Killed(StoreLoader):
    def steps(self, name):
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

Killed(options).commit([part], work)
"""


@pytest.mark.crash
@pytest.mark.slow
def test_killed_at_every_step(tmp_path: Path, read_store: Any) -> None:
    root = tmp_path / "store"
    Load(root).run([_batch(0, 100)])
    count = rounds("tests/spark/test_load.py::test_killed_at_every_step")
    for step in StoreLoader.STEPS[-count:]:
        done = subprocess.run(
            [sys.executable, "-c", KILL, str(root), step], timeout=60, check=False
        )
        assert done.returncode == -signal.SIGKILL
        count = len(_bodies(read_store, root))
        assert count == (400 if step == "clean" else 100), step
        _check(root)
    done = subprocess.run([sys.executable, "-c", KILL, str(root), ""], timeout=60, check=True)
    assert len(_bodies(read_store, root)) == 400


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_apaches_store_opens_it(tmp_path: Path, version: str, read_store: Any) -> None:
    from tests.rigs.apache_store import read_store as apache_reads

    from oberth.errors import PeerUnavailableError

    root = tmp_path / "store"
    load = Load(root, indexTags="true" if version == "5.5.0" else "false", uniqueKeys="true")
    load.run([_batch(0, 300), _batch(300, 350)])
    load.run([_batch(350, 500)])
    rows = read_store(root, readOrder="commitlog").rows
    questions = [("key", "T1", "k100", 10, 0, 2**62), ("get", "T0", 0, 0, 8)]
    try:
        dump = apache_reads(root, version, SMALL, start=True, questions=questions)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert [(m["commitLogOffset"], m["queueOffset"], m["msgId"]) for m in dump.messages] == [
        (r["physicalOffset"], r["offset"], r["offsetMsgId"]) for r in rows
    ]
    assert [m["properties"] for m in dump.messages] == [dict(r["properties"]) for r in rows]
    units = {(q["topic"], q["queueId"]): len(q["units"]) for q in dump.queues}
    assert all(units[f"T{t}", q] == sum(
        (r["topic"], r["partition"]) == (f"T{t}", q) for r in rows
    ) for t in range(3) for q in range(2))  # fmt: skip


def test_threads_write_what_one_writes(tmp_path: Path) -> None:
    trees = []
    for threads in (1, 4):
        root = tmp_path / f"store{threads}"
        options = parse_write_options({"path": str(root), **SMALL})
        work = work_directory(str(root), "job")
        parts = [stage(iter([_batch(n, n + 40)]), options, work) for n in range(0, 400, 40)]
        StoreLoader(options, threads=threads).commit(parts, work)
        trees.append(
            {n: h for n, h in _tree(root).items() if not n.startswith(("config", "oberth"))}
        )
        assert os.path.isdir(root)
    assert trees[0] == trees[1]


class Twice:
    """Runs every task twice, as Spark does when it does not hear of the first attempt."""

    parallelism = 2

    def run(self, function: Any, items: Any, *, what: str, done: Any = None) -> list[Any]:
        return [function(item) for item in items for _ in range(2)][::2]


def test_a_task_that_runs_twice_writes_what_it_wrote(tmp_path: Path) -> None:
    trees = []
    for name, tasks in (("once", None), ("twice", Twice())):
        root = tmp_path / name
        options = parse_write_options({"path": str(root), **SMALL})
        for first in (0, 300):
            work = work_directory(str(root), "job")
            parts = [stage(iter([_batch(n, n + 60)]), options, work) for n in (first, first + 60)]
            StoreLoader(options, tasks=tasks).commit(parts, work)
        _check(root)
        tree = _tree(root)
        trees.append({n: h for n, h in tree.items() if not n.startswith(("config", "oberth"))})
    assert trees[0] == trees[1]


def test_a_task_that_comes_late_finds_the_staged_bytes_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt is between its last read and its result; what it frees is no damage."""
    root = tmp_path / "store"
    options = parse_write_options({"path": str(root), **SMALL})
    work = work_directory(str(root), "job")
    parts = [stage(iter([_batch(0, 400)]), options, work)]
    exists, late = os.path.exists, []

    def told_before(path: Any) -> bool:
        """What the late attempt saw when it began."""
        if str(path).endswith(".entries") and path not in late and exists(path):
            late.append(path)
            return False
        return exists(path)

    monkeypatch.setattr("oberth.spark.load_place.os.path.exists", told_before)
    StoreLoader(options, tasks=Twice()).commit(parts, work)
    assert late
    _check(root)


def test_a_plan_needs_no_memory_for_blocks(tmp_path: Path) -> None:
    """What is staged and planned is told by paths; blocks are read one by one."""
    root = tmp_path / "store"
    options = parse_write_options({"path": str(root), **SMALL})
    work = work_directory(str(root), "job")
    part = stage((_batch(n, n + 500) for n in range(0, 4000, 500)), options, work)
    assert len(pickle.dumps(part)) < 300
    (work_place := Path(work) / "none").mkdir()
    plan = plan_load([part], ExistingStore(str(work_place), options), f"{work}/place", 4)
    stretches = [Stretch.read(path) for path in plan.stretches]
    assert sum(item.rows for each in stretches for item in each.items) == plan.rows == 4000
    assert plan.blanks
    at = 0
    for each in stretches:
        for item in each.items:
            if at != item.offset:
                assert (at, item.offset - at) in plan.blanks
            at = item.offset + item.size
    assert at == plan.log_end


def _many_queues(rows: int, queues: int) -> pa.RecordBatch:
    numbers = range(rows)
    return pa.record_batch(
        {
            "topic": [f"T{n % queues // 8}" for n in numbers],
            "value": pa.array([bytes(1000)] * rows, pa.binary()),
            "partition": pa.array([n % queues % 8 for n in numbers], pa.int32()),
        }
    )


def test_a_commit_looks_at_the_queues_that_it_touches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of queues and syncs are as many with 40 queues as with 400."""
    found: dict[int, tuple[int, int]] = {}
    for queues in (40, 400):
        load = Load(tmp_path / f"store-{queues}")
        load.run([_many_queues(2 * queues, queues)])
        load.run([_many_queues(800, 8)])  # more than is looked at where the log ends
        counts: Counter[str] = Counter()
        read, sync = LocalStorage.read_into, os.fsync

        def counting_read(self: Any, path: str, position: int, target: memoryview) -> int:
            counts["reads"] += "consumequeue" in path  # noqa: B023 - called in this turn
            return read(self, path, position, target)  # noqa: B023

        def counting_sync(descriptor: int) -> None:
            counts["syncs"] += 1  # noqa: B023
            sync(descriptor)  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "read_into", counting_read)
            patched.setattr(os, "fsync", counting_sync)
            load.run([_many_queues(100, 8)])
        found[queues] = counts["reads"], counts["syncs"]
        _check(tmp_path / f"store-{queues}")
    assert found[400][0] <= found[40][0], found
    assert found[400][1] <= found[40][1], found


_TOUCHING = ("os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir",
             "os.listdir", "open")  # fmt: skip
_touched: list[tuple[str, Any]] | None = None


def _note_call(event: str, arguments: Any) -> None:
    if _touched is not None and event in _TOUCHING:
        _touched.append((event, arguments[0]))


@pytest.fixture(scope="module")
def noted() -> None:
    sys.addaudithook(_note_call)  # for good; it notes nothing but in a test that asks for it


def _calls(load: Load, batch: pa.RecordBatch, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls to the file system that a load makes, by their names."""
    global _touched
    found: Counter[str] = Counter()
    stat = os.stat

    def counting(*arguments: Any, **named: Any) -> os.stat_result:
        found["os.stat"] += 1
        return stat(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", counting)
        _touched = []
        try:
            load.run([batch])
        finally:
            found += Counter(event for event, _ in _touched)
            _touched = None
    return found


@pytest.mark.usefixtures("noted")
def test_a_small_commit_makes_as_many_calls_whatever_the_store_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for queues in (80, 800):
        load = Load(tmp_path / f"store-{queues}", mappedFileSizeCommitLog="4194304")
        load.run([_many_queues(2 * queues, queues)])
        load.run([_many_queues(300, 8)])  # this one leaves a spare tree
        load.run([_many_queues(16, 8)])
        found[queues] = _calls(load, _many_queues(16, 8), monkeypatch)
        _check(tmp_path / f"store-{queues}")
    assert found[80]["os.link"] > 0
    for event, count in found[800].items():
        assert count <= found[80][event] + 2, event  # a longer list may be read in two


def _append(root: Path, topic: str, body: bytes) -> None:
    with MessageStore(_as_broker(root)) as store:
        assert store.append_messages([MessageExtBrokerInner.of(topic, body)])[0].ok


def _delete(root: Path, topic: str) -> None:
    with MessageStore(_as_broker(root)) as store:
        assert store.delete_topics([topic]) == 1


def _as_broker(root: Path) -> MessageStoreConfig:
    return MessageStoreConfig.from_properties({"storePathRootDir": str(root), **SMALL})


def _copy_back(root: Path) -> None:
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    shutil.rmtree(root)
    copy.rename(root)


def _spoil(root: Path, text: str) -> None:
    (root.with_name(f".{root.name}.oberth-spare") / "spare.json").write_text(text)


_BETWEEN: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda root: None,
    "a broker appended": lambda root: _append(root, "T1", b"from a broker"),
    "a broker had a new topic": lambda root: _append(root, "New", b"from a broker"),
    "a topic was deleted": lambda root: _delete(root, "T3"),
    "a topic's files were deleted": lambda root: shutil.rmtree(root / "consumequeue" / "T3"),
    "another load": lambda root: Load(root).run([_many_queues(8, 8)]),
    "a copy came back": _copy_back,
    "the spare was deleted": lambda root: shutil.rmtree(root.with_name(".store.oberth-spare")),
    "the spare is damaged": lambda root: _spoil(root, "{"),
    "the spare is another's": lambda root: _spoil(root, '{"state": [], "changed": []}'),
}


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("between", _BETWEEN)
def test_a_spare_tree_serves_the_store_that_it_is_of(
    tmp_path: Path, read_store: Any, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    root = tmp_path / "store"
    load = Load(root)
    load.run([_many_queues(160, 80)])
    load.run([_many_queues(8, 8)])
    assert (tmp_path / ".store.oberth-spare" / "consumequeue").is_dir()
    _BETWEEN[between](root)
    before = read_store(root).rows
    calls = _calls(load, _many_queues(8, 8), monkeypatch)
    after = read_store(root).rows
    places = {row["physicalOffset"] for row in before}
    assert [row for row in after if row["physicalOffset"] in places] == before
    assert len(after) == len(before) + 8
    if "deleted" not in between or "spare" in between:  # queues that the log has are missing then
        _check(root)
    assert (calls["os.link"] < 40) == (between in ("nothing", "another load"))
    present = {path.name for path in tmp_path.iterdir()}
    assert present == {"store", ".store.oberth-spare"}


@pytest.mark.parametrize("step", StoreLoader.STEPS)
def test_a_load_with_a_spare_tree_is_stopped(tmp_path: Path, read_store: Any, step: str) -> None:
    root = tmp_path / "store"
    load = Load(root)
    load.run([_many_queues(160, 80)])
    load.run([_many_queues(8, 8)])
    before = read_store(root).rows
    with pytest.raises(Stopped):
        load.run([_many_queues(8, 8)], stop_at=step)
    stopped = read_store(root).rows
    assert len(stopped) == len(before) + (8 if step == "clean" else 0)
    load.run([_many_queues(8, 8)])
    load.run([_many_queues(8, 8)])
    assert len(read_store(root).rows) == len(stopped) + 16
    _check(root)


def test_a_spare_tree_holds_no_bytes_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "store"
    load = Load(root)
    load.run([_many_queues(160, 80)])
    for _ in range(3):
        load.run([_many_queues(30, 8)])
        own = {os.stat(path).st_ino for path in root.rglob("*") if path.is_file()}
        spare = [x for x in (tmp_path / ".store.oberth-spare").rglob("*") if x.is_file()]
        assert len(spare) > 70
        assert [x.name for x in spare if x.stat().st_ino not in own] == ["spare.json"]
    load.run([_many_queues(160, 80)])  # touches all
    assert not (tmp_path / ".store.oberth-spare").exists()
    load.run([_many_queues(8, 8)])
    assert (tmp_path / ".store.oberth-spare").exists()
    load.run([_many_queues(8, 8)], overwrite=True)
    assert not (tmp_path / ".store.oberth-spare").exists()


@pytest.mark.parametrize("end", [5, 20, 33])
def test_a_queue_that_lost_its_files_goes_on_with_its_numbers(
    tmp_path: Path, read_store: Any, end: int
) -> None:
    root = tmp_path / "store"
    load = Load(root)
    load.run([_many_queues(160, 16)])
    # Of T2 the log has nothing any more.
    ends = {"version": 1, "queues": {"T2": {"0": end}, "T0": {"3": 99}}}
    (root / "oberth.queue-ends").write_text(json.dumps(ends))
    load.run([_many_queues(72, 24)])
    rows = read_store(root, subscribe="T0,T2").rows
    at: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        at.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    assert at["T2", 0] == [end, end + 1, end + 2]
    assert at["T2", 1] == [0, 1, 2]
    assert at["T0", 3] == list(range(13))
    with MessageStore(_as_broker(root)) as store:
        assert store.min_offset_in_queue("T2", 0) == end
        assert store.max_offset_in_queue("T2", 0) == end + 3
        assert store.max_offset_in_queue("T0", 3) == 13
        assert store.get_message("g", "T2", 0, end, 32).message_count == 3


LINKED = ["commitlog", "consumequeue", "index", "consumequeue/T1", "consumequeue/T1/1"]


@pytest.mark.parametrize("gone", [False, True], ids=["there", "disk-gone"])
@pytest.mark.parametrize("name", LINKED)
def test_a_store_with_a_linked_directory_is_not_touched(
    tmp_path: Path, name: str, *, gone: bool
) -> None:
    root, disk = tmp_path / "store", tmp_path / "disk"
    Load(root).run([_batch(0, 200)])
    (root / name).rename(disk)
    (root / name).symlink_to(disk)
    if gone:
        disk.rename(tmp_path / "unplugged")
    before = _tree(tmp_path)
    # Units that cannot be read are missed before their place is.
    reason = f"{name}: is a symbolic link to .*disk{'|is in no ConsumeQueue' if gone else ''}"
    with pytest.raises(StoreError, match=reason):
        Load(root).run([_batch(200, 201)])
    if "/" not in name:
        with pytest.raises(StoreError, match=f"{name}: is a symbolic link"):
            Load(root).run([_batch(200, 201)], overwrite=True)
    shutil.rmtree(tmp_path / ".store.oberth-load-job", ignore_errors=True)  # as Spark's abort
    assert _tree(tmp_path) == before
    assert (root / name).is_symlink()
    if gone:
        (tmp_path / "unplugged").rename(disk)
    (root / name).unlink()
    disk.rename(root / name)
    Load(root).run([_batch(200, 201)])
    _check(root)


def test_a_store_and_files_behind_links_grow(tmp_path: Path, read_store: Any) -> None:
    """The root itself may be a link, and a file is as good as a copy of it."""
    root, disk = tmp_path / "store", tmp_path / "disk"
    Load(root).run([_batch(0, 200)])
    disk.mkdir()
    for path in [*root.glob("commitlog/*"), root / "config" / "topics.json"]:
        path.rename(disk / path.name)
        path.symlink_to(disk / path.name)
    link = tmp_path / "link"
    link.symlink_to(root)
    before = _bodies(read_store, root)
    Load(link).run([_batch(200, 260)])
    assert link.is_symlink()
    bodies = _bodies(read_store, root)
    assert len(bodies) == 260
    assert set(before) <= set(bodies)
    _check(root)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_store_whose_log_goes_on_elsewhere_is_not_touched(tmp_path: Path, left: int) -> None:
    """With two directories of the CommitLog a broker makes each segment in the next one."""
    root, disk = tmp_path / "store", tmp_path / "disk"
    Load(root).run([_batch(0, 200)])
    disk.mkdir()
    segments = sorted((root / "commitlog").iterdir())
    assert len(segments) > 2
    for path in segments[left:]:
        path.rename(disk / path.name)
    before = _tree(root)
    with pytest.raises(StoreError, match="storePathCommitLog"):
        Load(root).run([_batch(200, 201)])
    assert _tree(root) == before
