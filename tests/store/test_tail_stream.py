"""A stream reads back what was appended, wherever it lies: memory, files, both; syncs and fds."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.errors import StoreCorruptError, StoreError, StoreFullError
from oberth.store import tail_stream
from oberth.store.files import OsFileSystem
from oberth.store.sync_guard import SyncGuard
from oberth.store.tail_stream import FilePool, TailStream

FILE_SIZE = 200

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


class Recorder(OsFileSystem):
    """Remembers what is open, and what was synced."""

    def __init__(self) -> None:
        self.open_now = 0
        self.opened = 0
        self.synced: list[str] = []
        self.directories: list[str] = []
        self.fail_sync = False

    def open(
        self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
    ) -> Any:
        file = super().open(path, create=create, writable=writable)
        outer = self
        outer.open_now += 1
        outer.opened += 1

        class File:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def sync(self) -> None:
                if outer.fail_sync:
                    raise OSError("broken disk")
                outer.synced.append(path)
                file.sync()

            def close(self) -> None:
                outer.open_now -= 1
                file.close()

        return File()

    def sync_directory(self, path: str) -> None:
        self.directories.append(path)
        super().sync_directory(path)


def append(stream: TailStream, data: bytes) -> None:
    stream.make_room()
    with stream.lock:
        stream.append_locked(data)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=500)),
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("drop"), st.none()),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("first"), st.none()),
        st.tuples(st.just("overwrite"), st.tuples(st.integers(0, 1 << 20), st.binary(max_size=9))),
        st.tuples(st.just("fill"), st.integers(1, 900)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=30,
)


@given(actions=actions, window=st.sampled_from([0, 64, 10_000]))
@settings(max_examples=150)
def test_any_actions(
    actions: list[tuple[str, Any]], window: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("stream")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_stream, "WINDOW_SIZE", window)
        patch.setattr(tail_stream, "TAIL_SIZE_MAX", 700)
        pool = FilePool(OsFileSystem(), open_files_max=2)
        stream = TailStream(pool, f"{root}/s", FILE_SIZE)
        data = bytearray()
        for action, value in actions:
            if action == "append":
                append(stream, value)
                data += value
            elif action == "write":
                pool.write_behind()
            elif action == "drop":
                stream.drop_window()
            elif action == "truncate" and len(data) > stream.first_start:
                room = len(data) - stream.first_start
                end = stream.first_start + room * value // 100
                stream.truncate(end)
                del data[end:]
            elif action == "first" and len(stream.segment_starts()) > 1:
                stream.remove_first()
            elif action == "overwrite":
                at = stream.first_start + value[0] % max(len(data) - stream.first_start, 1)
                piece = value[1][: len(data) - at]
                stream.overwrite(at, piece)
                data[at : at + len(piece)] = piece
            elif action == "fill" and data:
                stream.fill(len(data) + value, b"f")
                data += b"f" * value
            elif action == "reopen":
                pool.write_behind()
                first = stream.first_start
                stream = TailStream(pool, f"{root}/s", FILE_SIZE)
                assert stream.load() is None
                if stream.is_empty:
                    data.clear()
                else:
                    assert stream.first_start == first
                    stream.set_end(len(data))
            first, end = stream.first_start, stream.end
            assert end == len(data)
            assert stream.read(first, 1 << 20) == data[first:]
            for at in (first, (first + end) // 2, max(first, end - 5)):
                assert stream.read(at, 7) == data[at : at + 7]
            assert stream.read(end, 5) == b""
            assert stream.read(end + 100, 5) == b""
            assert pool.open_files <= 2
        pool.close()


def test_files_close_when_they_fall_out_and_nobody_reads_them(tmp_path: Path) -> None:
    files = Recorder()
    pool = FilePool(files, open_files_max=4)
    streams = [TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE) for n in range(20)]
    for stream in streams:
        append(stream, b"x" * 10)
    assert pool.write_behind() == 200
    assert files.open_now == 4
    held = pool.get(streams[-1].path(0))
    for stream in streams:
        stream.drop_window()
        assert stream.read(0, 10) == b"x" * 10
    assert files.open_now <= 5
    assert held.read(10, 0) == b"x" * 10, "a reader keeps its file open"
    del held
    pool.close()
    assert files.open_now == 0


def test_only_dirty_streams_cost_anything(tmp_path: Path) -> None:
    files = Recorder()
    pool = FilePool(files)
    streams = [TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE) for n in range(50)]
    for stream in streams:
        append(stream, b"x")
    pool.write_behind()
    assert pool.sync() == 50
    files.synced.clear()
    files.directories.clear()
    append(streams[7], b"y")
    assert pool.dirty() == [streams[7]]
    assert pool.write_behind() == 1
    assert pool.sync() == 1
    assert files.synced == [streams[7].path(0)]
    assert files.directories == [], "no new names"
    assert pool.write_behind() == 0
    assert pool.sync() == 0
    pool.close()


def test_new_names_are_synced_up_to_where_queues_are_kept(tmp_path: Path) -> None:
    files = Recorder()
    pool = FilePool(files)
    stream = TailStream(pool, f"{tmp_path}/consumequeue/topic/0", FILE_SIZE)
    append(stream, b"x")
    pool.write_behind()
    assert files.directories == []
    pool.sync()
    assert set(files.directories) == {
        f"{tmp_path}/consumequeue/topic/0",
        f"{tmp_path}/consumequeue/topic",
        f"{tmp_path}/consumequeue",
        f"{tmp_path}",
    }
    pool.close()


def test_a_failed_sync_is_tried_again(tmp_path: Path) -> None:
    files = Recorder()
    pool = FilePool(files)
    for n in range(3):
        append(TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE), b"x")
    pool.write_behind()
    files.fail_sync = True
    with pytest.raises(OSError, match="broken disk"):
        pool.sync()
    files.fail_sync = False
    assert pool.sync() == 3
    pool.close()


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_opened_is_no_failed_sync(tmp_path: Path, number: int) -> None:
    class Shut(Recorder):
        is_shut = False

        def open(self, path: str, **named: Any) -> Any:
            if self.is_shut:
                raise OSError(number, "shut", path)
            return super().open(path, **named)

    files = Shut()
    guard = SyncGuard("queues")
    pool = FilePool(files, open_files_max=0, watch=guard.watch)
    append(TailStream(pool, f"{tmp_path}/0", FILE_SIZE), b"x")
    pool.write_behind()
    files.is_shut = True
    with pytest.raises(OSError, match="shut"):
        pool.sync()
    files.is_shut = False
    assert pool.sync() == 1
    append(TailStream(pool, f"{tmp_path}/1", FILE_SIZE), b"x")
    pool.write_behind()
    files.fail_sync = True
    with pytest.raises(OSError, match="broken disk"):
        pool.sync()
    files.fail_sync = False
    for _ in range(2):
        with pytest.raises(StoreError, match="a sync has failed"):
            pool.sync()
    pool.forget(f"{tmp_path}/1/{0:020d}")
    with pytest.raises(StoreError, match="a sync has failed"):
        pool.sync()  # there is nothing to sync, and what is there is not known
    pool.close()


def test_windows_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_stream, "WINDOWS_MAX", 3)
    pool = FilePool(Recorder())
    streams = [TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE) for n in range(10)]
    for stream in streams:
        append(stream, b"x" * 50)
        pool.write_behind()
    assert sum(len(stream._tail) for stream in streams) == 150
    assert [stream.read(0, 50) for stream in streams] == [b"x" * 50] * 10
    pool.close()


def test_many_dirty_streams_are_written_by_whoever_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_stream, "DIRTY_STREAMS_MAX", 5)
    pool = FilePool(Recorder())
    for n in range(23):
        append(TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE), b"x")
    assert pool.dirty_streams <= 5
    pool.close()


def test_many_dirty_bytes_are_written_by_whoever_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_stream, "DIRTY_BYTES_MAX", 50)
    pool = FilePool(Recorder())
    for n in range(23):
        append(TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE), b"x" * 10)
    assert pool.dirty_streams <= 5
    pool.close()


def test_files_of_length_zero_count_as_absent(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(b"a" * FILE_SIZE)
    (tmp_path / f"{FILE_SIZE:020d}").write_bytes(b"")
    pool = FilePool(OsFileSystem())
    stream = TailStream(pool, str(tmp_path), FILE_SIZE)
    assert stream.load() is None
    assert list(stream.segment_starts()) == [0]
    assert not (tmp_path / f"{FILE_SIZE:020d}").exists()
    pool.close()


def test_a_start_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{17:020d}").write_bytes(b"a" * FILE_SIZE)
    with pytest.raises(StoreCorruptError, match="00017"):
        TailStream(FilePool(OsFileSystem()), str(tmp_path), FILE_SIZE).load()


def test_readers_beside_a_writer_see_a_growing_front(tmp_path: Path) -> None:
    pool = FilePool(OsFileSystem(), open_files_max=2)
    stream = TailStream(pool, f"{tmp_path}/s", 4000)
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            end = stream.end
            for at in range(max(0, end - 20_000), end, 3900):
                found = stream.read(at, min(4, end - at))
                if found != (at.to_bytes(4, "big") if at % 4 == 0 else found):
                    wrong.append(f"{at}: {found!r}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(0, 60_000, 4):
        append(stream, number.to_bytes(4, "big"))
        if number % 400 == 0:
            pool.write_behind()
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    pool.close()


def test_many_files_are_synced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_stream, "SYNC_FILES_MAX", 5)
    files = Recorder()
    asked: list[str] = []
    can = [True, False]

    def sync_all(path: str) -> bool:
        asked.append(path)
        return OsFileSystem.sync_all(files, path) and can[len(asked) - 1]

    monkeypatch.setattr(files, "sync_all", sync_all)
    pool = FilePool(files)
    streams = [TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE) for n in range(6)]
    for expected in ([], [stream.path(0) for stream in streams]):
        for stream in streams:
            append(stream, b"x")
        pool.write_behind()
        assert pool.sync() == 6
        assert sorted(files.synced) == expected
        files.directories.clear()
    assert len(asked) == 2
    pool.close()


@pytest.mark.parametrize("is_ours", [False, True])
def test_what_a_sync_of_all_files_could_not_write_is_found_out_by_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    """It fails for what others wrote, too."""
    monkeypatch.setattr(tail_stream, "SYNC_FILES_MAX", 5)

    def sync_all(path: str) -> bool:
        raise OSError(errno.EIO, "broken", path)

    files = Recorder()
    monkeypatch.setattr(files, "sync_all", sync_all)
    guard = SyncGuard("queues")
    pool = FilePool(files, watch=guard.watch)
    streams = [TailStream(pool, f"{tmp_path}/{n}", FILE_SIZE) for n in range(6)]
    for stream in streams:
        append(stream, b"x")
    pool.write_behind()
    files.fail_sync = is_ours
    if is_ours:
        with pytest.raises(OSError, match="broken disk"):
            pool.sync()
    else:
        assert pool.sync() == 6
        assert sorted(files.synced) == [stream.path(0) for stream in streams]
        assert files.directories
    assert guard.has_failed is is_ours
    pool.close()


def test_making_files_rests_after_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FilePool(OsFileSystem())
    streams = [TailStream(pool, str(tmp_path / str(number)), FILE_SIZE) for number in range(5)]
    rests: list[float] = []
    for stream in streams:
        append(stream, b"a")
    assert pool.write_behind(rests.append) == 5
    assert rests == [tail_stream.NEW_FILE_REST_S] * 5
    for stream in streams:
        append(stream, b"b" * 100)
    assert pool.write_behind(rests.append) == 500
    assert len(rests) == 5, "no file was made"
    append(streams[0], b"c" * 100)
    pool.write_behind(rests.append)
    assert len(rests) == 6, "its second file"


@pytest.mark.parametrize(("limit", "value"), [("_ROOM_STREAMS", 2), ("_ROOM_BYTES", 3)])
def test_no_rest_while_memory_runs_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(tail_stream, limit, value)
    pool = FilePool(OsFileSystem())
    late = TailStream(pool, str(tmp_path / "late"), FILE_SIZE)
    rests: list[int] = []

    def rest(_: float) -> None:
        rests.append(pool.dirty_streams)
        if len(rests) == 1:
            append(late, b"three")  # somebody goes on appending

    for number in range(5):
        append(TailStream(pool, str(tmp_path / str(number)), FILE_SIZE), b"a")
    pool.write_behind(rest)
    if limit == "_ROOM_STREAMS":
        assert rests[0] == 1, "none while two or more are left"
    else:
        assert rests == [4], "none after so many bytes"


def test_write_behind_writes_all_however_busy_one_is(tmp_path: Path) -> None:
    """A stream that is appended to all the time must not take the turns of those that are not."""

    class Appending(OsFileSystem):
        def open(
            self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
        ) -> Any:
            append(busy, b"x")
            return super().open(path, create=create, writable=writable)

    pool = FilePool(Appending(), open_files_max=0)
    busy = TailStream(pool, str(tmp_path / "busy"), FILE_SIZE)
    others = [TailStream(pool, str(tmp_path / str(number)), FILE_SIZE) for number in range(20)]
    for stream in (*others, busy):
        append(stream, b"a")
    pool.write_behind()
    assert [stream.written for stream in others] == [1] * 20
    assert busy.written >= 1


def test_write_behind_waits_for_what_another_is_writing(tmp_path: Path) -> None:
    writing, go_on = threading.Event(), threading.Event()

    class Slow(OsFileSystem):
        def open(
            self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
        ) -> Any:
            if not writing.is_set():
                writing.set()
                assert go_on.wait(BOUND_S)
            return super().open(path, create=create, writable=writable)

    pool = FilePool(Slow())
    stream = TailStream(pool, str(tmp_path / "s"), FILE_SIZE)
    append(stream, b"a")
    first = threading.Thread(target=pool.write_behind)
    first.start()
    assert writing.wait(BOUND_S)
    seen: list[int] = []

    def write_and_look() -> None:
        pool.write_behind()
        seen.append(stream.written)

    second = threading.Thread(target=write_and_look)
    second.start()
    second.join(0.05)
    assert not seen, "it is not written yet"
    go_on.set()
    second.join(BOUND_S)
    first.join(BOUND_S)
    assert seen == [1]


def test_appends_to_many_new_streams_make_few_files_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_stream, "DIRTY_STREAMS_MAX", 40)
    files = Recorder()
    pool = FilePool(files)
    streams = [TailStream(pool, str(tmp_path / str(number)), FILE_SIZE) for number in range(200)]
    for number, stream in enumerate(streams):
        before = files.opened
        append(stream, b"%d" % number)
        assert files.opened - before <= tail_stream._STEP_STREAMS
        assert pool.dirty_streams <= 40
    pool.write_behind()
    assert [stream.written for stream in streams] == [len(str(n)) for n in range(200)]


def test_a_full_disk_keeps_what_was_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(OsFileSystem):
        def open(
            self, path: str, *, create: bool = False, writable: bool = True, mode: int | None = None
        ) -> Any:
            raise StoreFullError(path)

    monkeypatch.setattr(tail_stream, "DIRTY_STREAMS_MAX", 3)
    pool = FilePool(Full())
    streams = [TailStream(pool, str(tmp_path / str(number)), FILE_SIZE) for number in range(4)]
    for stream in streams[:3]:
        append(stream, b"a")
    with pytest.raises(StoreFullError):
        append(streams[3], b"a")
    assert pool.dirty_streams == 3
    assert [stream.read(0, 9) for stream in streams] == [b"a", b"a", b"a", b""]


@pytest.mark.parametrize("knows_holes", [True, False])
def test_what_is_behind_the_end_is_erased_behind_holes_too_and_no_hole_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_holes: bool
) -> None:
    if not knows_holes:
        monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    size = 200_000
    pool = FilePool(OsFileSystem())
    stream = TailStream(pool, f"{tmp_path}/s", size)
    append(stream, b"x" * 10)
    stream.write_out()
    path = Path(stream.path(0))
    with path.open("r+b") as file:
        for at in (10, 5000, 140_000, size - 1):
            file.seek(at)
            file.write(b"y")
    blocks = path.stat().st_blocks
    assert stream.erase_behind_end() > 0
    assert path.read_bytes() == b"x" * 10 + bytes(size - 10)
    assert path.stat().st_blocks <= blocks
    assert stream.erase_behind_end() == 0
    pool.close()


def test_a_file_without_holes_is_looked_at_in_large_steps_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a copy is, or any file where the system does not tell of holes."""
    size = 4 << 20
    reads: list[int] = []
    read = tail_stream._OpenFile.read

    def counted(self: Any, size: int, position: int) -> bytes:
        reads.append(position)
        return read(self, size, position)

    monkeypatch.setattr(tail_stream._OpenFile, "read", counted)
    path = tmp_path / f"{0:020d}"
    data = bytearray(size)
    data[:10], data[3 << 20], data[size - 1] = b"x" * 10, 1, 1
    path.write_bytes(data)
    pool = FilePool(OsFileSystem())
    stream = TailStream(pool, str(tmp_path), size)
    stream.load()
    stream.set_end(10)
    blocks = path.stat().st_blocks
    assert stream.erase_behind_end() == 2 * 4096
    assert path.read_bytes() == b"x" * 10 + bytes(size - 10)
    assert len(reads) <= 20
    if path.stat().st_blocks < blocks:  # else the file system has no holes
        reads.clear()
        assert stream.erase_behind_end() == 0
        assert len(reads) <= 6
        assert path.stat().st_size == size
    append(stream, b"y" * 5000)
    stream.write_out()
    assert stream.read(0, 6000) == b"x" * 10 + b"y" * 5000
    pool.close()
