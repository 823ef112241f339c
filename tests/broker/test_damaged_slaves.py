"""A slave whose log is damaged since a crash shows and confirms nothing behind that: it fetches it.

What a power cut leaves is made here from a copy of the store of a slave that runs, of which pages
are zeroed: they were not synced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable
from pathlib import Path

import pytest
from tests.broker.test_controlled_broker import (
    Group,
    acknowledged,
    bodies,
    group,  # noqa: F401 - a fixture
    is_master,
)
from tests.broker.test_ha_service import certificate, equal, put
from tests.broker.test_runbook import command
from tests.rigs.damage import copy_killed
from tests.rigs.dispatchers import dispatcher
from tests.rigs.small_brokers import SEGMENT, SMALL_FILES, make, until

from oberth.broker.broker import Broker
from oberth.spark.pipelines.tail_dispatch import TailDispatcher
from oberth.store.message_store import MessageStore
from oberth.store.messages import PutMessageStatus
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify
from oberth.store.replication import Done

PAGE = 4096
SLAVE = {"brokerId": "1", "brokerRole": "SLAVE"}
COUNT = 700


def log_of(root: Path, end: int) -> bytes:
    """The bytes of a log, up to an offset."""
    return b"".join(each.read_bytes() for each in sorted((root / "commitlog").glob("0*")))[:end]


def lose(root: Path, *pages: int) -> None:
    """Zeroes pages of a log."""
    for page in pages:
        at = page * PAGE
        path = root / "commitlog" / f"{at - at % SEGMENT:020d}"
        with path.open("r+b") as file:
            file.seek(at % SEGMENT)
            file.write(bytes(PAGE))


async def crashed(tmp_path: Path, name_server: str, *pages: int, **entries: str) -> Path:
    """A master's store in ``a``, and that of its slave as a power cut leaves it; gives the slave's.

    The slave has synced nothing.
    """
    async with (
        make(tmp_path / "a", name_server, **entries) as master,
        make(tmp_path / "b", name_server, **SLAVE, **entries) as slave,
    ):
        put(master, COUNT)
        await until(lambda: equal(master, slave))
        await until(lambda: not slave.parts.store.dispatch_behind_bytes)
        root = tmp_path / "crashed"
        copy_killed(tmp_path / "b", root)
    lose(root, *pages)
    return root


def shown(store: MessageStore) -> int:
    """How many messages consumers are shown."""
    return sum(store.max_offset_in_queue("t", queue_id) for queue_id in (0, 1))


def is_whole(store: MessageStore) -> bool:
    """Whether each message is there, by queue and by key."""
    return shown(store) == COUNT and all(
        len(store.query_message("t", f"k{n}", 9, 0, 2**62).commit_log_offsets) == 1
        for n in range(0, COUNT, 50)
    )


def reports_of(master: Broker) -> list[int]:
    """What slaves report to a master from now on."""
    replicas, found = master.services.ha.replicas, []
    on_report = replicas.on_report

    def noted(replica: Hashable, offset: int) -> list[tuple[Done, PutMessageStatus]]:
        found.append(offset)
        return on_report(replica, offset)

    replicas.on_report = noted  # type: ignore[method-assign]
    return found


def kept(directory: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(directory.iterdir()))


@pytest.mark.parametrize("pages", [(20,), (0,), (1, 17, 40), (15, 16)])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_slave_fetches_again_what_a_crash_damaged(
    tmp_path: Path, name_server: str, pages: tuple[int, ...], flush: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    root = await crashed(tmp_path, name_server, *pages)
    async with make(root, name_server, **SLAVE, flushDiskType=flush) as slave:
        store = slave.parts.store
        damaged, had = store.damaged_from, store.max_phy_offset
        assert damaged is not None
        assert damaged < pages[0] * PAGE + PAGE
        # Without a master it serves what is sound, and nothing of what follows.
        assert store.dispatched_offset == damaged < had
        assert shown(store) < COUNT
        async with make(tmp_path / "a", name_server) as master:
            reports = reports_of(master)
            await slave.services.registration.register_all()
            await until(lambda: equal(master, slave) and store.damaged_from is None)
            await until(lambda: is_whole(store))
            said = f"damaged by a crash from offset {damaged} on; it ended at {had} and was cut"
            assert said in caplog.text
            assert reports[:2] == [max(damaged, 1), damaged]
            put(master, 1)
            await until(lambda: master.parts.store.max_phy_offset in reports)
            await until(lambda: shown(store) == COUNT + 1)
            end = master.parts.store.max_phy_offset
    assert log_of(root, end) == log_of(tmp_path / "a", end)
    assert kept(tmp_path / f"crashed.parted-{damaged}").count(b"UNIQ_KEY") == 0
    # The next start finds nothing to mend.
    async with make(root, name_server, **SLAVE) as slave:
        assert slave.parts.store.damaged_from is None
        assert shown(slave.parts.store) == COUNT + 1


@pytest.mark.parametrize("pages", [(20,), (1, 17, 40)])
@pytest.mark.parametrize("early", [True, False])
async def test_a_slave_that_another_process_dispatches_fetches_it_again(
    tmp_path: Path, name_server: str, early: bool, pages: tuple[int, ...]
) -> None:
    """The dispatcher stays aside until the log is whole; it may have run before the broker."""
    root = await crashed(tmp_path, name_server, *pages)
    entries = {**SLAVE, "dispatch": "spark"}
    if early:
        with TailDispatcher(str(root), SMALL_FILES) as tail:
            tail.advance()
    async with make(root, name_server, **entries) as slave:
        with dispatcher(str(root)):
            store = slave.parts.store
            damaged, had = store.damaged_from, store.max_phy_offset
            assert damaged is not None
            assert store.dispatched_offset == damaged < had
            assert shown(store) < COUNT
            async with make(tmp_path / "a", name_server) as master:
                await slave.services.registration.register_all()
                await until(lambda: equal(master, slave) and store.damaged_from is None)
                await until(lambda: is_whole(store))
                put(master, 1)
                await until(lambda: shown(store) == COUNT + 1)
                end = master.parts.store.max_phy_offset
    assert log_of(root, end) == log_of(tmp_path / "a", end)
    async with make(root, name_server, **entries) as slave:
        assert slave.parts.store.damaged_from is None
        assert shown(slave.parts.store) == COUNT + 1
    with StoreReader(str(root)) as reader:
        report = verify(reader)
    assert report.clean, report.findings[:3]


@pytest.mark.parametrize("entries", [{}, {"dispatch": "spark"}], ids=["itself", "spark"])
async def test_a_slave_that_crashes_again_before_it_is_mended(
    tmp_path: Path, name_server: str, entries: dict[str, str]
) -> None:
    root = await crashed(tmp_path, name_server, 20)
    again = tmp_path / "again"
    async with make(root, name_server, **SLAVE, **entries) as slave:
        damaged = slave.parts.store.damaged_from
        assert damaged is not None
        slave.parts.store.checkpoint_now()
        copy_killed(root, again)
    for each in (again, root):  # after a crash and after a stop in order
        async with make(each, name_server, **SLAVE, **entries) as slave:
            assert slave.parts.store.damaged_from == damaged
            assert slave.parts.store.report is not None
            assert slave.parts.store.report.scanned_from == damaged


async def test_a_slave_that_is_longer_than_its_master_cuts_nothing(
    tmp_path: Path, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The master came back without its end, too: what the slave has behind its damage is all."""
    async with make(tmp_path / "a", name_server) as master:
        put(master, 300)
    shutil.copytree(tmp_path / "a", tmp_path / "short")
    root = await crashed(tmp_path, name_server, 30)
    before = log_of(root, 10**9)
    async with (
        make(tmp_path / "short", name_server) as master,
        make(root, name_server, **SLAVE) as slave,
    ):
        reports = reports_of(master)
        store = slave.parts.store
        await until(lambda: "before this one" in caplog.text)
        behind = store.max_phy_offset - master.parts.store.max_phy_offset
        assert slave.services.comparison.ahead_bytes == behind > 0
        assert store.damaged_from is not None
        assert not reports
        end = store.max_phy_offset
    assert log_of(root, end) == before[:end]
    assert not [name for name in os.listdir(tmp_path) if "parted" in name]
    # It is made the master, and has all that it ever had but for the damage.
    async with make(root, name_server) as master:
        assert master.parts.store.damaged_from is None
        assert shown(master.parts.store) == COUNT + 300, "the offsets behind the damage stay"


async def test_a_slave_that_has_other_records_behind_its_damage_cuts_nothing(
    tmp_path: Path, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The master lost its end and went on: it is longer, and another."""
    root = await crashed(tmp_path, name_server, 20)
    before = log_of(root, 10**9)
    path = tmp_path / "a" / "commitlog" / f"{2 * SEGMENT:020d}"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    # No name server knows the master: its HA port is all there is.
    async with make(tmp_path / "a", name_server) as master:
        slave = make(
            root, "127.0.0.1:1", **SLAVE, haMasterAddress=f"127.0.0.1:{master.services.ha.port}"
        )
        async with slave:
            await until(lambda: "another than the master's within a MiB from" in caplog.text)
            assert slave.parts.store.damaged_from is not None
            assert not slave.services.ha.follows_master
            end = slave.parts.store.max_phy_offset
    assert log_of(root, end) == before[:end]
    assert not [name for name in os.listdir(tmp_path) if "parted" in name]


async def test_a_slave_is_mended_over_tls_without_a_name_server(
    tmp_path: Path, name_server: str
) -> None:
    root = await crashed(tmp_path, name_server, 20)
    path = certificate(tmp_path / "both.pem")
    tls = {"haTlsCertPath": path, "haTlsKeyPath": path, "haTlsTrustCertPath": path}
    async with make(tmp_path / "a", "127.0.0.1:1", **tls) as master:
        address = f"127.0.0.1:{master.services.ha.port}"
        slave = make(root, "127.0.0.1:1", **SLAVE, **tls, haMasterAddress=address)
        async with slave:
            await until(lambda: equal(master, slave) and slave.parts.store.damaged_from is None)
            await until(lambda: is_whole(slave.parts.store))


async def test_a_replica_under_a_controller_is_cut_and_joins_with_all(
    group: Group,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A replica with a hole must not be in sync: it could be elected, and the hole be the log."""
    first = await group.start("1")
    second = await group.start("2")
    await group.agree(1, 2)
    sent = [b"%03d" % n + bytes(300) for n in range(100)]
    for body in sent:
        assert await acknowledged(first, body) is PutMessageStatus.PUT_OK
    await until(lambda: bodies(second) == sent)
    copy_killed(group.root / "2", group.root / "3")
    await group.stop("2")
    await group.agree(1)
    shutil.rmtree(group.root / "2")
    (group.root / "3").rename(group.root / "2")
    lose(group.root / "2", 3)
    second = await group.start("2")
    await group.agree(1, 2)
    assert "is damaged since a crash" in caplog.text
    await group.stop("1")
    await until(lambda: is_master(second))
    assert bodies(second) == sent


async def test_a_master_with_a_damaged_log_and_the_slave_that_has_all(
    tmp_path: Path, name_server: str
) -> None:
    """The two exchange their roles, and nothing is lost."""
    root = await crashed(tmp_path, name_server, 20)
    async with make(root, name_server) as damaged:
        assert damaged.parts.store.damaged_from is None, "a master keeps what follows"
        async with make(tmp_path / "b", name_server, **SLAVE) as slave:
            await until(lambda: slave.services.ha.parted_at is not None)
            assert slave.services.ha.parted_at in range(18 * PAGE, 22 * PAGE)
    async with make(tmp_path / "b", name_server) as master:
        end = master.parts.store.max_phy_offset
        await command("store", "rejoin", str(root), str(master.address), "-n", name_server)
        async with make(root, name_server, **SLAVE) as slave:
            await until(lambda: equal(master, slave))
            await until(lambda: is_whole(slave.parts.store))
    assert log_of(root, end) == log_of(tmp_path / "b", end)
