"""OsFileSystem: what is waited for, in which order; the calls of the system are written down."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import StoreFullError
from oberth.store.dispatch_state import STATE, DispatchState
from oberth.store.files import OsFileSystem, sync_nearest_directories
from oberth.store.offline.rebuild import BESIDE_SUFFIX, exchange

FILES = OsFileSystem()


class Calls:
    """What reached the system: ("sync", path, size), ("replace", target), ("remove", path)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = root
        self.seen: list[tuple[str, str, int]] = []
        self._paths: dict[int, str] = {}
        real_open = os.open

        def opened(path: Any, *arguments: Any, **named: Any) -> int:
            fd = real_open(path, *arguments, **named)
            self._paths[os.fstat(fd).st_ino] = os.path.abspath(path)
            return fd

        monkeypatch.setattr(os, "open", opened)
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._sync_by(getattr(os, name)))
        for name in ("replace", "rename", "remove", "makedirs"):
            monkeypatch.setattr(os, name, self._noted(name, getattr(os, name)))

    def _sync_by(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            real(fd)
            stat = os.fstat(fd)
            path = self._paths.get(stat.st_ino) or os.readlink(f"/proc/self/fd/{fd}")
            size = 0 if os.path.isdir(path) else stat.st_size
            self.seen.append(("sync", os.path.relpath(path, self.root), size))

        return sync

    def _noted(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            real(*arguments, **named)
            target = arguments[1] if name in ("replace", "rename") else arguments[0]
            self.seen.append((name, os.path.relpath(target, self.root), 0))

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    return Calls(monkeypatch, tmp_path)


def test_a_mapping_is_synced(calls: Calls, tmp_path: Path) -> None:
    mapping = FILES.map(str(tmp_path / "f"), 8192, create=True)
    assert calls.seen == []
    mapping.sync()
    assert calls.seen == [("sync", "f", 8192)]
    mapping.close()


def test_a_file_is_synced(calls: Calls, tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "f"), create=True)
    file.write(b"abc", 0)
    assert calls.seen == []
    file.sync()
    assert calls.seen == [("sync", "f", 3)]
    file.close()


def test_a_system_without_fdatasync(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Map:
        flushed = 0

        def flush(self) -> None:
            assert calls.seen == [], "the pages go to the file first"
            self.flushed += 1

    monkeypatch.delattr(os, "fdatasync")
    mapping: Any = FILES.map(str(tmp_path / "m"), 4096, create=True)
    real, mapping._mmap = mapping._mmap, Map()
    mapping.sync()
    assert mapping._mmap.flushed == 1
    mapping._mmap = real
    mapping.close()
    file = FILES.open(str(tmp_path / "f"), create=True)
    file.sync()
    file.close()
    assert calls.seen == [("sync", "m", 4096), ("sync", "f", 0)]


def test_a_file_is_replaced_by_one_that_is_whole_on_the_disk(calls: Calls, tmp_path: Path) -> None:
    FILES.write_file(str(tmp_path / "f"), b"12345")
    assert calls.seen == [("sync", "f.tmp", 5), ("replace", "f", 0), ("sync", ".", 0)]


def test_a_new_name_is_synced_unless_the_caller_does_it(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    FILES.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    assert calls.seen == [("replace", "b", 0), ("sync", ".", 0)]
    FILES.rename(str(tmp_path / "b"), str(tmp_path / "c"), durable=False)
    assert calls.seen[2:] == [("replace", "c", 0)]


def test_every_directory_that_was_missing_is_synced_into_its_parent(
    calls: Calls, tmp_path: Path
) -> None:
    FILES.make_dirs(str(tmp_path / "a" / "b" / "c"))
    made = [each for each in calls.seen if each[0] == "sync"]
    assert sorted(made) == [("sync", ".", 0), ("sync", "a", 0), ("sync", "a/b", 0)]
    calls.seen.clear()
    FILES.make_dirs(str(tmp_path / "a" / "b" / "c"))
    FILES.make_dirs(str(tmp_path / "d"), durable=False)
    assert [each for each in calls.seen if each[0] == "sync"] == []


def test_all_files_of_a_file_system(tmp_path: Path) -> None:
    assert FILES.sync_all(str(tmp_path)) in (True, False)  # False where there is no such call
    with pytest.raises(FileNotFoundError):
        FILES.sync_all(str(tmp_path / "missing"))


def test_what_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"before")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError, match=f"{path}: no room for 3 bytes"):
        FILES.write_file(str(path), b"abc")
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == b"before"


def test_what_a_dispatcher_says_is_on_the_disk(calls: Calls, tmp_path: Path) -> None:
    """It says that it is in the middle of something before it is."""
    (tmp_path / "oberth").mkdir()
    DispatchState(7).save(str(tmp_path))
    size = (tmp_path / STATE).stat().st_size
    assert calls.seen == [
        ("sync", f"{STATE}.unfinished", size),
        ("replace", STATE, 0),
        ("sync", "oberth", 0),
    ]


def test_queues_built_beside_a_store_take_the_place_of_its_own_when_they_are_on_the_disk(
    calls: Calls, tmp_path: Path
) -> None:
    beside = "consumequeue" + BESIDE_SUFFIX
    fresh = tmp_path / beside / "T" / "0"
    fresh.mkdir(parents=True)
    (fresh / "0").write_bytes(b"12")
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "oberth.state").write_bytes(b"{}")
    exchange(str(tmp_path))
    assert (tmp_path / "consumequeue" / "T" / "0" / "0").read_bytes() == b"12"
    seen = calls.seen
    synced = seen[: seen.index(("remove", "oberth.state", 0))]
    assert set(synced) == {
        ("sync", beside, 0),
        ("sync", f"{beside}/T", 0),
        ("sync", f"{beside}/T/0", 0),
        ("sync", f"{beside}/T/0/0", 2),
    }
    assert seen[len(synced) : len(synced) + 2] == [("remove", "oberth.state", 0), ("sync", ".", 0)]
    renamed = seen.index(("rename", "consumequeue", 0))
    assert ("sync", ".", 0) in seen[renamed:]


class DeletedMeanwhile(OsFileSystem):
    """Directories of one name go just before they are synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        if path.endswith("gone"):
            os.rmdir(path)
        super().sync_directory(path)
        self.synced.append(path)


def test_of_a_deleted_directory_the_nearest_that_stands_is_synced(tmp_path: Path) -> None:
    files = DeletedMeanwhile()
    (tmp_path / "a" / "gone").mkdir(parents=True)
    sync_nearest_directories(files, [str(tmp_path / "a" / "gone")])
    sync_nearest_directories(files, [str(tmp_path / "b" / "c"), str(tmp_path / "d")])
    sync_nearest_directories(files, [str(tmp_path / "a")])
    assert files.synced == [str(tmp_path / "a"), str(tmp_path), str(tmp_path / "a")]


def test_without_fallocate_zeros_are_written_where_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    written: list[tuple[int, int]] = []
    real = os.pwrite

    def pwrite(fd: int, data: memoryview, position: int) -> int:
        written.append((position, len(data)))
        return real(fd, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    part = 1 << 16
    mapping = FILES.map(str(tmp_path / "f"), 3 * part, create=True)
    mapping.view[part + 5] = 7

    mapping.allocate(0, 2 * part + 10)

    assert written == [(0, part), (2 * part, 10)]
    assert mapping.view[part + 5] == 7
    mapping.close()


@pytest.mark.skipif(os.name == "nt", reason="directories are not synced there")
def test_a_directory_that_cannot_be_synced_at_all_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = errno.EINVAL

    def refuses(fd: int) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync", refuses)
    FILES.sync_directory(str(tmp_path))

    reason = errno.EIO
    with pytest.raises(OSError, match=str(tmp_path)) as caught:
        FILES.sync_directory(str(tmp_path))
    assert caught.value.errno == errno.EIO


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "file")
    Path(path).write_bytes(bytes(100))
    file, mapping = FILES.open(path), FILES.map(path, 100)

    def pread(*_: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(OSError, match=path):
        file.read(10, 0)
    with pytest.raises(OSError, match=path):
        mapping.read(0, 10)
    file.close()
    mapping.close()


@pytest.mark.parametrize(
    ("release", "vouches"),
    [
        ("5.7.19-generic", False), ("4.18.0-553.el8_10.x86_64", False), ("3.10.0", False),
        ("5.8.0", True), ("5.10.0-28-amd64", True), ("6.18.44-fc", True), ("", False),
    ],
)  # fmt: skip
def test_a_sync_of_all_files_vouches_where_it_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, vouches: bool
) -> None:
    monkeypatch.setattr("platform.release", lambda: release)
    assert FILES.sync_all(str(tmp_path)) is (vouches and sys.platform.startswith("linux"))
