"""A slave's store that has parted from its master's is cut to what both have, and goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.rigs.small_brokers import SEGMENT, make

from oberth.broker.broker import Broker
from oberth.cli.main import oberth
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import sync_directory
from oberth.store.offline.rejoin import cut_log


def put(broker: Broker, what: bytes, count: int) -> None:
    store = broker.parts.store
    store.append_messages([MessageExtBrokerInner.of("t", what * 100) for _ in range(count)])
    store.dispatch_nowait()


async def filled(root: Path, *parts: tuple[bytes, int]) -> int:
    """A store with messages; where its log ends."""
    async with make(root, "127.0.0.1:1") as broker:
        for what, count in parts:
            put(broker, what, count)
        return broker.parts.store.max_phy_offset


async def rejoin(name_server: str, *words: str) -> Result:
    command = ["store", "rejoin", *words, "-n", name_server]
    return await asyncio.to_thread(CliRunner().invoke, oberth, command)


async def goes_on(master: Broker, root: Path, name_server: str) -> None:
    """The slave follows, and ends with the master's bytes."""
    async with make(root, name_server, brokerId="1", brokerRole="SLAVE") as slave:
        put(master, b"afterwards", 5)
        async with asyncio.timeout(100):
            while (  # noqa: ASYNC110 - the store has no event for its growth
                slave.parts.store.max_phy_offset != master.parts.store.max_phy_offset
                or slave.parts.store.dispatch_behind_bytes
            ):
                await asyncio.sleep(0.01)
        end = master.parts.store.max_phy_offset
        assert slave.parts.store.max_offset_in_queue(
            "t", 0
        ) == master.parts.store.max_offset_in_queue("t", 0)
    for path in sorted((Path(master.parts.store.root) / "commitlog").iterdir()):
        limit = min(SEGMENT, end - int(path.name))
        if limit <= 0:
            continue  # made ahead
        copy = root / "commitlog" / path.name
        assert copy.read_bytes()[:limit] == path.read_bytes()[:limit]


@pytest.mark.parametrize("more", [0, 300])
async def test_a_master_that_lost_its_tail_and_went_on(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    forgotten: list[int] = []
    monkeypatch.setattr(
        "oberth.store.offline.rejoin.forget_copies",
        lambda _files, _root, start, *_: forgotten.append(start),
    )
    await filled(tmp_path / "a", (b"both", 300))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    end = await filled(tmp_path / "b", (b"only the slave", 200))
    async with make(tmp_path / "a", name_server) as master:
        common = master.parts.store.max_phy_offset
        put(master, b"another history", more)
        address = str(master.address)
        dry = await rejoin(name_server, str(tmp_path / "b"), address, "--dry-run")
        assert dry.exit_code == 0, dry.output
        assert not (tmp_path / "b.parted").exists()
        done = await rejoin(name_server, str(tmp_path / "b"), address)
        assert done.exit_code == 0, done.output
        assert f"cut at {common}, it ended at {end}" in done.stderr
        assert forgotten == [0]
        kept = b"".join(each.read_bytes() for each in sorted((tmp_path / "b.parted").iterdir()))
        assert kept.count(b"only the slave" * 100) == 200
        again = await rejoin(name_server, str(tmp_path / "b"), address)
        assert "goes on from" in again.stderr
        await goes_on(master, tmp_path / "b", name_server)


async def test_what_the_master_has_deleted(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[object] = []
    monkeypatch.setattr(
        "oberth.store.offline.rejoin.forget_copies", lambda *of: forgotten.append(of)
    )
    await filled(tmp_path / "b", (b"long ago", 20))
    await filled(tmp_path / "a", (b"long ago", 20), (b"since", 800))
    async with make(tmp_path / "a", name_server) as master:
        assert master.parts.store.commit_log.queue.remove_first(0)
        done = await rejoin(name_server, str(tmp_path / "b"), str(master.address))
        assert done.exit_code == 0, done.output
        assert not any((tmp_path / "b" / "commitlog").iterdir())
        assert not forgotten, "no log has what was compacted of it"
        await goes_on(master, tmp_path / "b", name_server)


@pytest.mark.parametrize("shares", ["the-beginning", "nothing"])
async def test_logs_that_have_parted_before_the_slaves_begins(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch, shares: str
) -> None:
    """What was compacted of it has another history as well, from where the master's ends."""
    forgotten: list[int] = []
    monkeypatch.setattr(
        "oberth.store.offline.rejoin.forget_copies",
        lambda _files, _root, start, *_: forgotten.append(start),
    )
    common = await filled(tmp_path / "a", (b"once", 20))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with make(tmp_path / "b", "127.0.0.1:1") as slave:
        put(slave, b"only the slave", 800)
        assert slave.parts.store.commit_log.queue.remove_first(0)
        begin = slave.parts.store.min_phy_offset
    async with make(tmp_path / "a", name_server) as master:
        if shares == "nothing":
            put(master, b"not the slave.", 800)
        done = await rejoin(name_server, str(tmp_path / "b"), str(master.address))
        assert done.exit_code == 0, done.output
        assert f"cut at {begin}" in done.stderr
        assert forgotten == [common if shares == "the-beginning" else 0]
        await goes_on(master, tmp_path / "b", name_server)


async def test_an_earlier_cut_is_not_written_over(tmp_path: Path, name_server: str) -> None:
    await filled(tmp_path / "a", (b"one", 20))
    await filled(tmp_path / "b", (b"two", 20))
    (tmp_path / "b.parted").mkdir()
    async with make(tmp_path / "a", name_server) as master:
        refused = await rejoin(name_server, str(tmp_path / "b"), str(master.address))
        assert refused.exit_code != 0
        assert "move it away first" in str(refused.exception)


async def test_what_is_cut_off_is_on_the_disk_before_the_log_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "slave"
    end = await filled(root, (b"message ", 200))
    assert end > 2 * SEGMENT
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{fd}")).relative_to(tmp_path)
        events.append(
            f"sync {place} {os.fstat(fd).st_size if place.name.isdigit() else ''}".strip()
        )
        fsync(fd)

    def renamed(source: str, target: str) -> None:
        events.append(f"move {Path(source).relative_to(tmp_path)}")
        rename(source, target)

    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", synced)
        watched.setattr(os, "rename", renamed)
        cut = cut_log(str(root), SEGMENT + 1000)
    assert cut.kept_in == f"{root}.parted"
    names = [f"{number * SEGMENT:020d}" for number in range(5)]
    # The directory has its name before anything is moved into it.
    assert events[0] == "sync ."
    last = max(n for n, name in enumerate(names) if f"move slave/commitlog/{name}" in events)
    assert events[1] == f"move slave/commitlog/{names[last]}"
    # The copy and all names beside it, then the segment that is cut.
    truncated = events.index(f"sync slave/commitlog/{names[1]} {SEGMENT}")
    assert f"sync slave.parted/{names[1]} {SEGMENT}" in events[:truncated]
    assert "sync slave.parted" in events[:truncated]
    assert events[-2:] == ["sync slave/commitlog", "sync slave"]


@pytest.mark.parametrize("given", ["slave", "slave/", "."])
async def test_what_is_cut_off_lies_beside_a_store_of_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    end = await filled(tmp_path / "slave", (b"message ", 20))
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.chdir(tmp_path / "slave" if given == "." else tmp_path)
    assert cut_log(given, 0).kept_in == str(tmp_path / "slave.parted")
    assert synced[0] == str(tmp_path)
    kept = b"".join(each.read_bytes() for each in sorted((tmp_path / "slave.parted").iterdir()))
    assert len(kept) >= end
    assert not list((tmp_path / "slave").glob("*.parted"))
    synced.clear()
    sync_directory("")
    assert synced == [os.getcwd()]


@pytest.mark.parametrize("can_tell", [True, False])
async def test_only_what_is_cut_off_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_tell: bool
) -> None:
    """A segment has 1 GiB, and a replica is away for as long as the copy takes."""
    root = tmp_path / "slave"
    end = await filled(root, (b"message ", 20))
    at = end - 500
    segment = root / "commitlog" / f"{0:020}"
    before = segment.read_bytes()
    copied: list[tuple[int, int]] = []
    write = os.pwrite

    def note(fd: int, data: bytes, position: int) -> int:
        copied.append((position, len(data)))
        return write(fd, data, position)

    def cannot(fd: int, position: int, how: int) -> int:
        raise OSError(errno.EINVAL, "this file system knows no holes")

    with monkeypatch.context() as watched:
        watched.setattr(os, "pwrite", note)
        watched.setattr("oberth.store.offline.rejoin.COPY_BYTES", 1000)
        if not can_tell:
            watched.setattr(os, "lseek", cannot)
        cut_log(str(root), at)
    assert copied == [(at, 1000)]
    kept = (tmp_path / "slave.parted" / segment.name).read_bytes()
    assert kept == bytes(at) + before[at:]
    assert segment.read_bytes() == before[:at] + bytes(len(before) - at)


async def test_a_known_end_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the last segment of 1 GiB, and the group acknowledges nothing meanwhile."""
    root = tmp_path / "slave"
    end = await filled(root, (b"message ", 20))

    def looked(_: StoreReader) -> int:
        raise AssertionError("the end is known")

    with monkeypatch.context() as watched:
        watched.setattr(StoreReader, "log_end", property(looked))
        watched.setattr(StoreReader, "max_offset", property(looked))
        assert cut_log(str(root), end - 500, end=end).end == end
