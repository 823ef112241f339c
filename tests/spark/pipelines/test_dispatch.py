"""Dispatch in ranges gives the files of a rebuild, byte for byte, however the log is cut.

Golden stores and stores with damage, without a JVM; tasks run in this process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rigs.campaigns import examples

from oberth.errors import StoreError, StoreLockedError
from oberth.spark.pipelines.dispatch import STEPS, _take_in, build, dispatch
from oberth.spark.pipelines.tasks import InProcess, OnSpark
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import DERIVED_DIRECTORIES, locked, rebuild
from oberth.store.offline.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]


def derived_files(root: Path, suffix: str = "") -> dict[str, str]:
    """Every file of queues and index with its digest."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in DERIVED_DIRECTORIES
        for path in sorted((root / (name + suffix)).rglob("*"))
        if path.is_file()
    }


def comparable(report: Any) -> dict[str, Any]:
    """A report without what may differ."""
    values: dict[str, Any] = report.to_json()
    del values["seconds"]
    values["standIns"] = sorted(values["standIns"], key=str)
    return values


def check(root: Path, tmp_path: Path, entries: dict[str, str] | None, range_size: int) -> None:
    with StoreReader(root, entries) as reader:
        expected = rebuild(reader, str(tmp_path / "rebuilt"))
    found = dispatch(
        InProcess(), str(root), str(tmp_path / "dispatched"), entries=entries,
        range_size=range_size,
    )  # fmt: skip
    assert comparable(found) == comparable(expected)
    assert derived_files(tmp_path / "dispatched") == derived_files(tmp_path / "rebuilt")
    assert not list((tmp_path / "dispatched").glob(".oberth*"))


def entries_of(store: Any) -> dict[str, str]:
    """The options that a store was made with, without the paths of the machine."""
    return {
        name: value
        for name, value in store.config.items()
        if "Path" not in name or "CommitLog" in name
    }


def test_golden_stores(golden_name: str, golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine(golden_name)
    # The segments of the stores with RocketMQ's defaults are holes of 1 GiB.
    range_size = 1 << 28 if golden_name.startswith("defaults") else 20_000
    check(store.root, tmp_path, entries_of(store), range_size)


@pytest.mark.parametrize("name", ["4-5-4", "4-ours-5-4-5", "5-4-ours"])
@pytest.mark.parametrize("range_size", [3000, 1 << 20])
def test_stores_of_mixed_lines(name: str, range_size: int, tmp_path: Path) -> None:
    """Tags are in the Index in stretches, and stay so."""
    mixed = Path(__file__).parents[2] / "golden" / "mixed"
    with tarfile.open(mixed / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    check(tmp_path / name, tmp_path, None, range_size)


DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 700_000),
        st.one_of(st.binary(min_size=1, max_size=40), st.integers(1, 3000).map(bytes)),
    ),
    max_size=6,
)


@settings(max_examples=examples("tests/spark/pipelines/test_dispatch.py::test_damaged_logs"))
@given(damage=DAMAGE, range_size=st.integers(3000, 200_000), gone=st.booleans())
@example(  # a store time hours ahead, before a damage: what follows is not older than the others
    damage=[(253, b"G\0\1"), (472, b"G\0\1"), (64236, b"\0")], range_size=3328, gone=False
)
def test_damaged_logs(
    golden_pristine: Golden,
    tmp_path_factory: pytest.TempPathFactory,
    damage: list[tuple[int, bytes]],
    range_size: int,
    gone: bool,
) -> None:
    """Foreign bytes and holes anywhere, a missing file: the same records, lost in the same way."""
    store = golden_pristine("basic-5.5.0")
    base = tmp_path_factory.mktemp("damaged")
    root = base / "store"
    shutil.copytree(store.root, root)
    segments = sorted((root / "commitlog").iterdir())
    for position, data in damage:
        for path in segments:
            at = position - int(path.name)
            if 0 <= at < path.stat().st_size - len(data):
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(data)
    if gone:
        segments[len(segments) // 2].unlink()
    check(root, base, None, range_size)
    shutil.rmtree(base)


@pytest.mark.parametrize("range_size", [3_000, 12_345, 100_000])
def test_numbers_that_begin_anew_or_are_missing(
    growing_store: Any, tmp_path: Path, range_size: int
) -> None:
    """Topics that were deleted and made again, and messages that never came, across ranges."""
    for number in range(400):
        growing_store.append("Orders", number % 3, b"x" * 40, keys=f"k{number}")
        if number in (100, 260):
            growing_store.forget("Orders", number % 3)
        if number % 90 == 89:
            growing_store.skip("Orders", 1, 5)
    check(growing_store.root, tmp_path, None, range_size)


def test_into_the_store_itself(golden_store: Golden, tmp_path: Path) -> None:
    store = golden_store("crash-noqueue-5.5.0")
    with StoreReader(store.root, entries_of(store)) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
    report = dispatch(InProcess(), str(store.root), entries=entries_of(store))
    assert derived_files(store.root) == derived_files(tmp_path / "rebuilt")
    assert not list(store.root.glob("*oberth-*"))
    with StoreReader(store.root, entries_of(store)) as reader:
        assert verify(reader).clean
        assert reader.layout.checkpoint is not None
        assert reader.layout.checkpoint.logics_msg_timestamp == report.newest


@pytest.mark.parametrize("killed_before", STEPS[1:])
def test_killed_at_a_step(golden_store: Golden, tmp_path: Path, killed_before: str) -> None:
    """The driver's process ends without another word: the store is as before or complete."""
    store = golden_store("basic-5.5.0")
    shutil.rmtree(store.root / "index")
    before = derived_files(store.root)
    with StoreReader(store.root) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
    complete = derived_files(tmp_path / "rebuilt")

    def step(name: str) -> None:
        if name == killed_before:
            os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            dispatch(InProcess(), str(store.root), step=step)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = derived_files(store.root)
    assert left == (complete if killed_before == "clean" else before)
    dispatch(InProcess(), str(store.root))
    assert derived_files(store.root) == complete
    assert not list(store.root.glob("*oberth-*"))


def test_refusals(golden_store: Golden, tmp_path: Path) -> None:
    store = golden_store("basic-5.5.0")
    with locked(str(store.root)), pytest.raises(StoreLockedError):
        dispatch(InProcess(), str(store.root))
    with pytest.raises(StoreError, match="not empty"):
        dispatch(InProcess(), str(store.root), str(store.root))
    shutil.rmtree(store.root / "commitlog")
    with pytest.raises(StoreError, match="no segment"):
        dispatch(InProcess(), str(store.root), str(tmp_path / "into"))


@pytest.mark.spark
def test_on_spark(spark: SparkSession, golden_pristine: Golden, tmp_path: Path) -> None:
    store = golden_pristine("batch-5.5.0")
    with StoreReader(store.root) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
    dispatch(OnSpark(spark), str(store.root), str(tmp_path / "dispatched"), range_size=20_000)
    assert derived_files(tmp_path / "dispatched") == derived_files(tmp_path / "rebuilt")


class Killed(Exception):
    pass


class KilledOnce(InProcess):
    """The first attempt at each index file is killed when all of it is written."""

    def run(self, function: Any, items: Any, *, what: str, done: Any = None) -> list[Any]:
        if what == "write index files":
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("oberth.spark.pipelines.index_build.os.replace", self._killed)
                for item in items:
                    with pytest.raises(Killed):
                        function(item)
        return super().run(function, items, what=what, done=done)

    def _killed(self, *_: str) -> None:
        raise Killed


def test_a_killed_task_leaves_nothing_in_the_index(golden_pristine: Golden, tmp_path: Path) -> None:
    """A broker takes every file there for one of the Index."""
    root = golden_pristine("basic-5.5.0").root
    dispatch(InProcess(), str(root), str(tmp_path / "one"))
    dispatch(KilledOnce(), str(root), str(tmp_path / "two"))
    assert derived_files(tmp_path / "two") == derived_files(tmp_path / "one")
    assert {path.name for path in (tmp_path / "two").iterdir()} == {
        path.name for path in (tmp_path / "one").iterdir()
    }


def test_dispatches_with_one_scratch_do_not_meet(golden_pristine: Golden, tmp_path: Path) -> None:
    """A whole dispatch of another store while one has read its log."""
    roots = [golden_pristine(name).root for name in ("basic-5.5.0", "batch-5.5.0")]
    for root in roots:
        with StoreReader(root) as reader:
            rebuild(reader, str(tmp_path / f"rebuilt-{root.name}"))
    scratch = tmp_path / "not" / "there" / "yet"

    def run(number: int, step: Callable[[str], None]) -> None:
        into = tmp_path / f"dispatched-{number}"
        dispatch(InProcess(), str(roots[number]), str(into), scratch=str(scratch), step=step)
        assert derived_files(into) == derived_files(tmp_path / f"rebuilt-{roots[number].name}")

    run(0, lambda name: run(1, lambda _: None) if name == "queues" else None)
    assert list(scratch.iterdir()) == []


class Twins(InProcess):
    """Each task has a twin, which is killed at one of its steps when the first one is through."""

    def __init__(self, what: str, step: str) -> None:
        self._what = what
        self._step = step

    def run(self, function: Any, items: Any, *, what: str, done: Any = None) -> list[Any]:
        results = super().run(function, items, what=what, done=done)
        if what == self._what:
            for item in items:
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(f"oberth.spark.pipelines.{self._step}", self._killed)
                    with contextlib.suppress(Killed):
                        function(item)
        return results

    def _killed(self, *_: Any, **__: Any) -> None:
        raise Killed


class Beside(InProcess):
    """Each task's twin, in a process of the same number, is through just before the task is."""

    def run(self, function: Any, items: Any, *, what: str, done: Any = None) -> list[Any]:
        def with_twin(item: Any) -> Any:
            with pytest.MonkeyPatch.context() as patched:

                def after_the_twin(real: Any, source: str, target: str) -> None:
                    patched.undo()
                    function(item)
                    real(source, target)

                for name in ("replace", "rename"):
                    real = getattr(os, name)
                    patched.setattr(os, name, partial(after_the_twin, real))
                return function(item)

        return super().run(with_twin, items, what=what, done=done)


@pytest.mark.parametrize("name", ["basic-5.5.0", "batch-5.5.0", "cqext-5.5.0"])
@pytest.mark.parametrize(
    "tasks",
    [
        Twins("write queues", "dispatch.StoreReader"),
        Twins("write queues", "dispatch.QueueTreeWriter.finish"),
        Twins("write queues", "dispatch.os.rename"),
        Beside(),
    ],
    ids=["at-once", "at-the-end", "when-done", "beside"],
)
def test_a_tasks_twin_leaves_its_queues_alone(
    golden_pristine: Golden, tmp_path: Path, name: str, tasks: InProcess
) -> None:
    """As with speculative execution, or where an executor is taken for lost and goes on."""
    store = golden_pristine(name)
    entries = entries_of(store)
    with StoreReader(store.root, entries) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
    into = tmp_path / "dispatched"
    dispatch(tasks, str(store.root), str(into), entries=entries)
    assert derived_files(into) == derived_files(tmp_path / "rebuilt")
    assert {path.name for path in into.iterdir()} == {
        "checkpoint", *(path.name for path in (tmp_path / "rebuilt").iterdir())
    }  # fmt: skip


class Late(InProcess):
    """A twin of a task that writes queues goes on when its dispatch is over."""

    def __init__(self, take_in: Callable[..., None]) -> None:
        self._take_in = take_in
        self.may_go_on = threading.Event()
        self.thread: threading.Thread | None = None

    def run(self, function: Any, items: Any, *, what: str, done: Any = None) -> list[Any]:
        if what == "write queues":
            is_there = threading.Event()

            def twin() -> None:
                with contextlib.suppress(OSError, StoreError):
                    function(items[0])

            def waits(own: str, *more: Any) -> None:
                with made_again(own):
                    is_there.set()
                    self.may_go_on.wait()
                self._take_in(own, *more)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("oberth.spark.pipelines.dispatch._take_in", waits)
                self.thread = threading.Thread(target=twin)
                self.thread.start()
                is_there.wait()
        return super().run(function, items, what=what, done=done)


@contextlib.contextmanager
def made_again(own: str) -> Iterator[None]:
    """What a task writes on when its directory is removed under it: zeros for the first pieces."""
    files = [path for path in Path(own).rglob("*") if path.is_file()]
    sizes = [path.stat().st_size for path in files]
    yield
    for path, size in zip(files, sizes, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))


def test_a_task_that_goes_on_when_its_dispatch_is_over_leaves_nothing(
    golden_store: Golden, tmp_path: Path
) -> None:
    store = golden_store("basic-5.5.0")
    with StoreReader(store.root) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
    tasks = Late(_take_in)
    dispatch(tasks, str(store.root))
    before = sorted(store.root.rglob("*"))
    assert tasks.thread is not None
    tasks.may_go_on.set()
    tasks.thread.join()
    assert sorted(store.root.rglob("*")) == before
    assert derived_files(store.root) == derived_files(tmp_path / "rebuilt")


def test_a_task_of_a_killed_dispatch_does_not_meet_the_next_one(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the middle of its queues when the next one removes them, and goes on with zeros."""
    store = golden_store("basic-5.5.0")
    with StoreReader(store.root) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
    target, suffix = str(store.root), ".oberth-rebuild"

    def build_it(step: Callable[[str], None]) -> None:
        with StoreReader(target) as reader:
            build(InProcess(), reader, reader, target, suffix, step=step)

    def interrupted(own: str, *more: Any) -> None:
        monkeypatch.undo()
        torn = made_again(own)
        torn.__enter__()

        def goes_on(name: str) -> None:
            if name == "queues":
                torn.__exit__(None, None, None)
                with contextlib.suppress(OSError, StoreError):
                    _take_in(own, *more)

        build_it(goes_on)
        raise Killed

    monkeypatch.setattr("oberth.spark.pipelines.dispatch._take_in", interrupted)
    with contextlib.suppress(Killed):
        build_it(lambda _: None)
    built = {
        name.replace(suffix, "", 1): digest
        for name, digest in derived_files(store.root, suffix).items()
    }
    assert built == derived_files(tmp_path / "rebuilt")
    assert not list(store.root.glob("*unfinished*"))
