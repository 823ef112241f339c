"""The log's checksums: what zlib says of the files, kept over restarts, never ahead of the disk."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from zlib import crc32

import pytest

from oberth.formats.log_checksums import FILE_NAME, LogChecksum, decode_log_checksums
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.files import OsFileSystem
from oberth.store.log_checksums import RANGE_BYTES_MAX, RANGE_COUNT_MAX
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.testing.fault_disk import FaultDisk, PowerCut

SEGMENT = 8192


def opened(root: Path, files: OsFileSystem | FaultDisk | None = None) -> MessageStore:
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=20 * 16,
        message_index_enable=False,
    )
    store = MessageStore(config, files=files)
    store.load()
    store.start(background=False)
    return store


def put(store: MessageStore, count: int, size: int = 700) -> None:
    for number in range(count):
        message = MessageExtBrokerInner.of("t", bytes([number % 251]) * size, tags="a")
        assert store.append_messages([message])[0].ok
    store.dispatch_nowait()


def expected(root: Path, end: int) -> list[LogChecksum]:
    rows = []
    for path in sorted((root / "commitlog").iterdir()):
        start = int(path.name)
        data = path.read_bytes()[: max(end - start, 0)]
        if data:
            rows.append(LogChecksum(start, start + len(data), crc32(data)))
    return rows


def saved(root: Path) -> list[LogChecksum]:
    path = root / FILE_NAME
    return decode_log_checksums(path.read_bytes(), SEGMENT) if path.exists() else []


def test_they_are_what_zlib_says_of_the_files(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 40)
    while store.checksums.extend(999):  # any cut gives the same
        pass
    assert store.checksums.position == store.max_phy_offset
    rows = store.checksums.rows()
    assert len(rows) > 3
    assert rows == expected(tmp_path, store.max_phy_offset)
    assert store.checksums.to_json()["segments"][0] == rows[0]._asdict()
    store.shutdown()
    assert saved(tmp_path) == rows


@pytest.mark.parametrize("behind", [0, 100])
def test_what_a_slave_takes_is_summed_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """Nothing is read again, unless what lies before it was not summed up."""
    master = opened(tmp_path / "m")
    put(master, 40)
    end = master.max_phy_offset
    slave = opened(tmp_path / "s")
    read: list[int] = []
    read_again = slave.checksums._read

    def reading(offset: int, size: int) -> bytes | None:
        read.append(offset)
        return read_again(offset, size)

    monkeypatch.setattr(slave.checksums, "_read", reading)
    at = 0
    while at < end:
        piece = master.commit_log.select(
            at, min(behind if at < behind else 4096, SEGMENT - at % SEGMENT, end - at)
        )
        assert piece is not None
        assert slave.append_replica(at, piece)
        at += len(piece)
        if at == behind:
            assert slave.checksums.position == 0
            slave.checksums.extend()
    slave.checksums.extend()
    assert slave.checksums.rows() == expected(tmp_path / "s", end) == expected(tmp_path / "m", end)
    # Beside a last piece that is short.
    assert (len(read) > 1) is bool(behind)
    master.shutdown()
    slave.shutdown()


def test_a_live_row_that_grew_since_the_sync_is_kept_as_it_was(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 3)
    store.checksums.extend()
    store.checksums.save(store.max_phy_offset)
    (before,) = saved(tmp_path)
    put(store, 3)
    store.checksums.extend()
    store.checksums.save(before.end, all_of_it=True)
    assert saved(tmp_path) == [before]
    end = store.max_phy_offset
    put(store, 3)
    store.checksums.extend()
    store.checksums.save(end, all_of_it=True)
    assert saved(tmp_path) == expected(tmp_path, end)
    store.shutdown()


def test_a_restart_reads_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    put(store, 25)
    store.shutdown()
    store = opened(tmp_path)
    assert store.checksums.position == store.max_phy_offset
    before = store.max_phy_offset
    put(store, 3)
    assert store.checksums.extend() == store.max_phy_offset - before
    assert store.checksums.rows() == expected(tmp_path, store.max_phy_offset)
    store.shutdown()


@pytest.mark.parametrize("spoil", [b"", b"OBERTHCS" + bytes(40), None])
def test_a_file_that_is_gone_or_damaged_is_made_again(tmp_path: Path, spoil: bytes | None) -> None:
    store = opened(tmp_path)
    put(store, 25)
    store.shutdown()
    rows = saved(tmp_path)
    if spoil is None:
        (tmp_path / FILE_NAME).unlink()
    else:
        (tmp_path / FILE_NAME).write_bytes(spoil)
    store = opened(tmp_path)
    assert store.checksums.position == 0
    store.shutdown()
    assert saved(tmp_path) == rows


def test_rows_beyond_the_end_that_was_found_are_dropped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 25)
    end = store.max_phy_offset
    store.shutdown()
    last = sorted((tmp_path / "commitlog").iterdir())[-1]
    data = bytearray(last.read_bytes())
    position = end - int(last.name)
    data[position - 400 :] = bytes(len(data) - position + 400)  # the last record is torn
    last.write_bytes(data)
    (tmp_path / "abort").touch()
    (tmp_path / "oberth.state").unlink()
    store = opened(tmp_path)
    assert store.max_phy_offset < end
    put(store, 2, 650)
    store.checksums.extend()
    assert store.checksums.rows() == expected(tmp_path, store.max_phy_offset)
    store.shutdown()


def test_deleted_segments_leave_the_rows(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 60)
    store.checksums.extend(3 * SEGMENT)
    for _ in range(4):  # the fourth was not summed up yet
        assert store.commit_log.queue.remove_first(0)
    store.checksums.extend()
    assert store.checksums.rows()[0].start == 4 * SEGMENT
    assert store.checksums.rows() == expected(tmp_path, store.max_phy_offset)
    store.shutdown()
    assert saved(tmp_path)[0].start == 4 * SEGMENT


def test_ranges_cross_segments_and_have_limits(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 30)
    end = store.max_phy_offset
    log = b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir()))
    for start, stop, step in ((0, end, 1000), (5, 5 + 4000, 1), (8000, 9000, 77), (9, 9, 1)):
        assert store.checksums.ranges(start, stop, step) == [
            crc32(log[at : min(at + step, stop)]) for at in range(start, stop, step)
        ]
    for start, stop, step in (
        (-1, 5, 1),
        (0, end + 1, 64),
        (6, 5, 1),
        (0, 10, 0),
        (0, 10, -3),
        (0, RANGE_COUNT_MAX + 1, 1),
    ):
        with pytest.raises(ValueError, match=r"this log goes from|allowed are"):
            store.checksums.ranges(start, stop, step)
    assert RANGE_BYTES_MAX < 1 << 30
    store.shutdown()


def run(root: Path, disk: FaultDisk) -> None:
    store = opened(root, disk)
    for _ in range(3):
        put(store, 14)
        store.checksums.extend()
        store.checkpoint_now()
    store.shutdown()


def test_no_row_is_on_the_disk_before_its_bytes(tmp_path: Path) -> None:
    """The power fails around every write of the file: what it says is true of what was synced."""
    whole = FaultDisk()
    run(tmp_path / "whole", whole)
    writes = [number for number, what in enumerate(whole.log, 1) if FILE_NAME in what]
    assert writes
    held = 0
    for cut_at in sorted({write + more for write in writes for more in (0, 1, 2)}):
        root = tmp_path / f"live{cut_at}"
        disk = FaultDisk(cut_power_at=cut_at)
        with contextlib.suppress(PowerCut):
            run(root, disk)
        image = tmp_path / f"image{cut_at}"
        image.mkdir()
        disk.crash_image(str(image), str(root), random.Random(cut_at), 0.0)
        for row in saved(image):
            held += 1
            segment = image / "commitlog" / f"{row.start:020d}"
            assert crc32(segment.read_bytes()[: row.end - row.start]) == row.crc, cut_at
    assert held
