"""The file of a controller: what was answered is there after any kill."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from oberth.controller import state_log
from oberth.controller.replica_sets import Replica, ReplicaSet
from oberth.controller.state_log import StateLog
from oberth.errors import StoreCorruptError, StoreLockedError
from oberth.store.files import OsFileSystem


def made(number: int) -> ReplicaSet:
    """A set that differs from those of other numbers."""
    return ReplicaSet(
        cluster="c",
        replicas={1: Replica("h:1", f"h:1;{number}"), 2: Replica("h:2", "h:2;2")},
        next_id=3,
        master=None if number % 2 else 1,
        master_epoch=number,
        in_sync=frozenset((1, 2)),
        in_sync_epoch=number + 1,
    )


def read(directory: Path) -> dict[str, ReplicaSet]:
    """What a start finds."""
    log = StateLog(directory)
    try:
        return log.load()
    finally:
        log.close()


def test_the_last_value_of_each_name_comes_back(tmp_path: Path) -> None:
    log = StateLog(tmp_path / "made" / "here")
    assert log.load() == {}
    for number in range(4):
        log.append("a", made(number))
        log.append("b", made(10 + number))
    log.append("b", None)
    log.append("ü", made(7))
    log.close()
    assert read(tmp_path / "made" / "here") == {"a": made(3), "ü": made(7)}


def test_two_controllers_do_not_write_one_file(tmp_path: Path) -> None:
    log = StateLog(tmp_path)
    log.load()
    log.append("a", made(1))
    with pytest.raises(StoreLockedError, match=tmp_path.name):
        StateLog(tmp_path).load()
    log.append("b", made(2))
    log.close()
    assert read(tmp_path) == {"a": made(1), "b": made(2)}


def test_every_cut_leaves_what_was_whole(tmp_path: Path) -> None:
    log = StateLog(tmp_path)
    log.load()
    ends = [0]
    for number in range(3):
        log.append("a", made(number))
        ends.append(log.path.stat().st_size)
    log.close()
    data = log.path.read_bytes()
    for size in range(len(data) + 1):
        log.path.write_bytes(data[:size])
        whole = max(n for n, end in enumerate(ends) if end <= size)
        assert read(tmp_path) == ({"a": made(whole - 1)} if whole else {})
        assert log.path.stat().st_size == ends[whole]


def test_damage_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    log = StateLog(tmp_path)
    log.load()
    for number in range(3):
        log.append("a", made(number))
    log.close()
    data = bytearray(log.path.read_bytes())
    second = data.index(b"\n") + 30
    data[second] ^= 1
    log.path.write_bytes(data)
    with pytest.raises(StoreCorruptError, match=r"controller\.log: line 2 is damaged"):
        read(tmp_path)
    assert log.path.read_bytes() == data
    text = b'{"name":"a","set":{"cluster":1}}'
    log.path.write_bytes(b"%08x %b\n" % (zlib.crc32(text), text))
    with pytest.raises(StoreCorruptError, match="line 1 is damaged"):
        read(tmp_path)


def test_old_lines_go_and_a_kill_in_between_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "OLD_LINES_MAX", 5)
    log = StateLog(tmp_path)
    log.load()
    for number in range(20):
        log.append("a", made(number))
        log.maybe_shorten({"a": made(number)})
    assert log.path.read_bytes().count(b"\n") <= 7
    log.append("a", made(20))
    log.close()
    assert read(tmp_path) == {"a": made(20)}
    log._new.write_bytes(b"half of a file")
    assert read(tmp_path) == {"a": made(20)}
    assert not log._new.exists()


def test_a_name_that_the_disk_refuses_loses_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "OLD_LINES_MAX", 2)
    log = StateLog(tmp_path)
    log.load()
    for number in range(4):
        log.append("a", made(number))
    with monkeypatch.context() as refusing:

        def refuse(_: object, path: str) -> None:
            raise OSError(5, "Input/output error", path)

        refusing.setattr(OsFileSystem, "sync_directory", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            log.maybe_shorten({"a": made(3)})
        # A power cut may give the name back to the old file, and that would lack this line.
        with pytest.raises(OSError, match="Input/output error"):
            log.append("a", made(4))
    log.append("a", made(5))
    log.close()
    assert read(tmp_path) == {"a": made(5)}
    assert log.path.read_bytes().count(b"\n") == 2


def test_the_disk_has_a_change_before_anybody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def told(name: str, real: object, what: object) -> None:
        def call(*arguments: object) -> object:
            events.append(f"{name} {what(*arguments)}")  # type: ignore[operator]
            return real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(os, name, call)

    def of(fd: int, *_: object) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))

    told("fsync", os.fsync, of)
    told("pwrite", os.pwrite, of)
    told("replace", os.replace, lambda source, target: f"{source.name} {target.name}")
    log = StateLog(tmp_path / "kept")
    log.load()
    directory = "kept"
    assert events == [f"fsync {tmp_path.name}", f"fsync {directory}"]
    events.clear()
    log.append("a", made(1))
    assert events == ["pwrite controller.log", "fsync controller.log"]
    events.clear()
    monkeypatch.setattr(state_log, "OLD_LINES_MAX", -1)
    log.maybe_shorten({"a": made(1)})
    assert events == [
        "pwrite controller.log.tmp",
        "fsync controller.log.tmp",
        "replace controller.log.tmp controller.log",
        f"fsync {directory}",
    ]
    log.close()


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StateLog(tmp_path)
    log.load()
    log.append("a", made(1))
    real = os.pwrite

    def half(fd: int, data: memoryview, position: int) -> int:
        if position > log._size + 10:
            raise OSError(28, "No space left on device")
        return real(fd, data[:20], position)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match=r"No space left on device.*controller\.log"):
        log.append("a", made(2))
    monkeypatch.setattr(os, "pwrite", real)
    log.append("b", made(3))
    log.close()
    assert read(tmp_path) == {"a": made(1), "b": made(3)}


def test_after_a_failed_sync_that_cannot_be_taken_back_nothing_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StateLog(tmp_path)
    log.load()

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="Input/output error"):
            log.append("a", made(1))
    with pytest.raises(OSError, match="an earlier write failed"):
        log.append("a", made(2))
    log.close()
