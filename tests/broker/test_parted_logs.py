"""A slave whose log is another than its master's takes nothing, confirms nothing, serves nobody.

A master loses the end of its log in a power cut: it comes back with a copy of its store as it was
before. What the slave has beyond that nobody else has; `oberth store rejoin` is the way out.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oberth.broker import ha_service
from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.broker.ha_service import HAService
from oberth.broker.log_comparison import LogComparison
from oberth.cli.main import oberth
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.command import RemotingCommand
from oberth.store.messages import MessageExtBrokerInner

BOUND_S = 100
PULL, POP, NOTIFICATION, SERVICE_NOT_AVAILABLE = 11, 200_050, 200_054, 14
READ_WRITE = 6


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    config = NamesrvConfig(
        listen_port=0, support_acting_master=True, notify_min_broker_id_changed=True
    )
    async with NameServer(config) as server:
        yield server


def make(root: Path, name_server: NameServer | None, **entries: str) -> Broker:
    values = {
        "storePathRootDir": str(root),
        "namesrvAddr": "127.0.0.1:1" if name_server is None else str(name_server.address),
        "brokerName": "group",
        "listenPort": "0",
        "mappedFileSizeCommitLog": str(64 << 10),
        "mappedFileSizeConsumeQueue": "2000",
        "timerWheelEnable": "false",
        "haSendHeartbeatInterval": "100",
        "brokerHeartbeatInterval": "50",
        **entries,
    }
    config, store_config, _ = read_configs(values)
    return Broker(config, store_config)


SLAVE = {"brokerId": "1", "brokerRole": "SLAVE", "slaveReadEnable": "true"}
ACTING = {"enableSlaveActingMaster": "true", "totalReplicas": "2"}


def put(broker: Broker, body: bytes, count: int = 1) -> None:
    broker.parts.store.append_messages(
        [MessageExtBrokerInner.of("T", body) for _ in range(count)]
    )  # fmt: skip
    broker.services.ha.on_append()
    broker.services.dispatching.soon()


def end(broker: Broker) -> int:
    return broker.parts.store.max_phy_offset


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not done():  # noqa: ASYNC110 - stores and name servers have no such events
            await asyncio.sleep(0.01)


async def copies(root: Path, *, only_slave: int, **entries: str) -> int:
    """Stores of a master and a slave with a common beginning; gives where that ends."""
    async with make(root / "master", None, **entries) as alone:
        alone.parts.topics.create_internal("T", 1)
        put(alone, b"both", 50)
        common = end(alone)
    shutil.copytree(root / "master", root / "slave")
    async with make(root / "slave", None, **entries) as ahead:
        put(ahead, b"only the slave", only_slave)
    return common


async def pulled(
    broker: Broker, offset: int = 0, flags: int = 4, wait_ms: int = 0
) -> RemotingCommand:
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(flags), "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms), "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    async with RemotingClient() as client:
        return await client.invoke(
            str(broker.address), RemotingCommand(code=PULL, ext_fields=fields), BOUND_S
        )


def members(name_server: NameServer) -> set[int]:
    return set(name_server.routes.member_group("DefaultCluster", "group").broker_addrs)


async def rejoin(store: Path, master: Broker, name_server: NameServer) -> None:
    words = ["store", "rejoin", str(store), str(master.address), "-n", str(name_server.address)]
    done = await asyncio.to_thread(CliRunner().invoke, oberth, words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_slave_serves_nobody_before_it_has_compared_its_end(
    tmp_path: Path, name_server: NameServer, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """It may have been the master, and end with what nobody else has."""
    await copies(tmp_path, only_slave=0)
    may_look = asyncio.Event()
    look = LogComparison.before_following

    async def look_late(self: LogComparison) -> bool:
        await may_look.wait()
        return await look(self)

    monkeypatch.setattr(LogComparison, "before_following", look_late)
    if not is_there:
        async with make(tmp_path / "slave", name_server, **SLAVE) as slave:
            assert (await pulled(slave)).code == 0
        return
    async with (
        make(tmp_path / "master", name_server) as master,
        make(tmp_path / "slave", name_server, **SLAVE) as slave,
    ):
        await until(lambda: slave.services.ha.master_ha_address)
        refused = await pulled(slave)
        assert (refused.code, refused.remark) == (
            SERVICE_NOT_AVAILABLE, "this slave does not know yet whether its log is its master's"
        )  # fmt: skip
        assert (await pulled(master)).code == 0
        may_look.set()
        await until(lambda: slave.services.ha.refuses_readers is None)
        assert slave.services.ha.follows_master
        assert (await pulled(slave)).code == 0


async def test_who_waits_at_a_slave_that_parts_is_refused(
    tmp_path: Path, name_server: NameServer
) -> None:
    """It may have more than it has shown: with SYNC_FLUSH a message waits for the disk first."""
    timers = {"timerWheelEnable": "true"}
    await copies(tmp_path, only_slave=0, **timers)
    async with (
        make(tmp_path / "slave", name_server, **SLAVE, **timers) as slave,
        RemotingClient() as client,
    ):
        waits = asyncio.create_task(pulled(slave, 50, 6, 60_000))
        fields = {
            "consumerGroup": "G", "topic": "T", "queueId": "0", "maxMsgNums": "1",
            "invisibleTime": "60000", "pollTime": "60000", "initMode": "1",
            "bornTime": str(slave.parts.now_ms()),
        }  # fmt: skip
        slave.parts.offsets.commit("G", "T", 0, 50, 0)
        asked = [RemotingCommand(code=code, ext_fields=fields) for code in (POP, NOTIFICATION)]
        pops, notes = (
            asyncio.create_task(client.invoke(str(slave.address), each, BOUND_S)) for each in asked
        )
        pop = slave.services.pop
        await until(lambda: len(slave.parts.hold) and len(pop.polling) and len(pop.notifying))
        slave.parts.store.commit_log.append([MessageExtBrokerInner.of("T", b"of another history")])
        slave.services.ha.part(end(slave))
        slave.services.dispatching.soon()
        for refused in await asyncio.gather(waits, pops, notes):
            assert refused.code == SERVICE_NOT_AVAILABLE
            assert f"from offset {slave.services.ha.parted_at} on" in str(refused.remark)


async def test_a_slave_that_cannot_compare_serves_readers_after_a_while(
    tmp_path: Path, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copies(tmp_path, only_slave=0)
    refused: list[str | None] = []
    listen = Broker._listen

    async def listens(self: Broker) -> None:
        await listen(self)
        refused.append(self.services.ha.refuses_readers)

    monkeypatch.setattr(Broker, "_listen", listens)
    nowhere = {**SLAVE, "haMasterAddress": "127.0.0.1:1"}
    async with make(tmp_path / "slave", name_server, **nowhere) as slave:
        assert refused[0] is not None, "it listens before it follows"
        assert (await pulled(slave)).code == SERVICE_NOT_AVAILABLE
        loop = asyncio.get_running_loop()
        later_s = loop.time() + ha_service.UNSURE_MAX_S
        monkeypatch.setattr(slave.services.ha, "_now_s", lambda: later_s)
        assert (await pulled(slave)).code == 0


async def test_a_slave_that_has_another_end_takes_nothing_and_serves_nobody(
    tmp_path: Path, name_server: NameServer
) -> None:
    """The master went on before the slave came: it is longer, and only bytes tell the two apart."""
    common = await copies(tmp_path, only_slave=3)
    sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
    async with make(tmp_path / "master", name_server, **sync) as master:
        put(master, b"another history", 100)
        async with make(tmp_path / "slave", name_server, **SLAVE) as slave:
            had = end(slave)
            assert had < end(master)
            ha = slave.services.ha
            await until(lambda: ha.parted_at is not None)
            assert ha.parted_at is not None
            assert common <= ha.parted_at < had
            await until(lambda: members(name_server) == {0})
            refused = await pulled(slave)
            assert refused.code == SERVICE_NOT_AVAILABLE
            assert f"from offset {ha.parted_at} on" in str(refused.remark)
            put(master, b"more")
            shown = slave.services.runtime_info.table()
            assert shown["logDiffersAt"] == str(ha.parted_at)
            assert end(slave) == had
            assert not master.services.ha.replicas.acked, "it confirms nothing"
            assert (await pulled(master)).code == 0
        await rejoin(tmp_path / "slave", master, name_server)
        async with make(tmp_path / "slave", name_server, **SLAVE) as slave:
            await until(lambda: end(slave) == end(master))
            await until(lambda: members(name_server) == {0, 1})
            assert slave.services.ha.parted_at is None
            kept = b"".join(each.read_bytes() for each in (tmp_path / "slave.parted").iterdir())
            assert kept.count(b"only the slave") == 3


async def test_a_slave_that_is_ahead_confirms_nothing_to_a_master_that_goes_on_meanwhile(
    tmp_path: Path, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master without its end takes other messages while its slave has compared, and dials."""
    common = await copies(tmp_path, only_slave=3)
    dials = HAService._segments_fit
    gone_on = False

    async def goes_on(self: HAService, address: str) -> bool:
        nonlocal gone_on
        if not gone_on:
            gone_on = True
            put(master, b"another history", 100)
        return await dials(self, address)

    monkeypatch.setattr(HAService, "_segments_fit", goes_on)
    async with make(tmp_path / "master", name_server) as master:
        acked: list[int] = []

        def on_report(_: object, offset: int) -> list[object]:
            acked.append(offset)
            return []

        monkeypatch.setattr(master.services.ha.replicas, "on_report", on_report)
        async with make(tmp_path / "slave", name_server, **SLAVE) as slave:
            await until(lambda: slave.services.comparison.ahead_bytes)
            put(master, b"another history", 100)
            await until(lambda: slave.services.ha.parted_at is not None)
            assert common <= (slave.services.ha.parted_at or 0) < end(slave)
            assert acked == []


async def test_a_slave_whose_rest_the_master_has_deleted_dials_and_both_say_so(
    tmp_path: Path, name_server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It was away for longer than messages are kept: it is behind, not ahead."""
    common = await copies(tmp_path, only_slave=0)
    async with make(tmp_path / "master", name_server) as master:
        log = master.parts.store.commit_log
        while len(log.queue.segments) < 4:
            put(master, b"x" * 1000, 50)
        while log.min_offset <= common:
            assert log.queue.remove_first(0)
        async with make(tmp_path / "slave", name_server, **SLAVE) as slave:
            found = slave.services.comparison
            await until(lambda: f"replica: it is at {common}, this log goes from" in caplog.text)
            await until(lambda: "closed before anything came" in caplog.text)
            assert f"that of {master.address} begins behind it, at {log.min_offset}" in found.said
            assert (found.ahead_bytes, end(slave)) == (0, common)


async def test_a_slave_that_parts_while_it_follows_lets_go_until_that_is_mended(
    tmp_path: Path, name_server: NameServer
) -> None:
    async with (
        make(tmp_path / "master", name_server) as master,
        make(tmp_path / "slave", name_server, **SLAVE) as slave,
    ):
        put(master, b"x" * 100, 20)
        await until(lambda: end(slave) == end(master) > 0)
        await until(lambda: members(name_server) == {0, 1})
        (segment,) = (tmp_path / "slave" / "commitlog").glob("0*0")
        file = os.open(segment, os.O_RDWR)
        (before,) = os.pread(file, 1, 1000)
        os.pwrite(file, bytes([before ^ 1]), 1000)
        await slave.services.comparison.once()
        ha = slave.services.ha
        assert ha.parted_at == 1000
        await until(lambda: not ha.follows_master and not master.services.ha.replicas.acked)
        await until(lambda: members(name_server) == {0})
        put(master, b"y")
        os.pwrite(file, bytes([before]), 1000)
        os.close(file)
        await slave.services.comparison.once()
        await until(lambda: end(slave) == end(master))
        await until(lambda: members(name_server) == {0, 1})


async def test_a_master_that_lost_its_end_stays_away_while_the_slave_acts(
    tmp_path: Path, name_server: NameServer
) -> None:
    common = await copies(tmp_path, only_slave=3, **ACTING)
    async with make(tmp_path / "slave", name_server, **SLAVE, **ACTING) as slave:
        had = end(slave)
        await until(lambda: slave.services.acting.membership.acts)
        async with make(tmp_path / "master", name_server, **ACTING) as master:
            await until(lambda: slave.services.comparison.ahead_bytes)
            shown = slave.services.runtime_info.table()
            assert f"equal up to offset {common}" in shown["logComparison"]
            assert shown["logComparison"].endswith(f"goes on to {had}")
            samples = {each[0]: each[3] for each in slave.services.comparison.metrics()}
            assert samples["oberth_log_ahead_bytes"] == [((), had - common)]
            assert master.services.acting.membership.is_isolated
            assert members(name_server) == {1}
            assert slave.services.acting.membership.acts
            assert slave.services.ha.parted_at is None
            assert (await pulled(slave)).code == 0, "it has the longer history"
            assert (end(master), end(slave)) == (common, had)

    # Without loss: the two exchange their roles.
    async with make(tmp_path / "slave", name_server, **ACTING, brokerRole="ASYNC_MASTER") as new:
        await until(lambda: not new.services.acting.membership.is_isolated)
        async with make(tmp_path / "master", name_server, **SLAVE, **ACTING) as old:
            await until(lambda: end(old) == had)
            await until(lambda: members(name_server) == {0, 1})


async def test_a_slave_whose_master_went_on_without_it_never_acts(
    tmp_path: Path, name_server: NameServer
) -> None:
    """It was down when the master came back shorter; the master took messages, and dies again."""
    common = await copies(tmp_path, only_slave=3, **ACTING)
    async with make(tmp_path / "master", name_server, **ACTING) as master:
        await until(lambda: not master.services.acting.membership.is_isolated)
        put(master, b"another history", 100)
        slave = make(tmp_path / "slave", name_server, **SLAVE, **ACTING)
        async with slave:
            ha, acting = slave.services.ha, slave.services.acting
            await until(lambda: ha.parted_at is not None)
            assert ha.parted_at is not None
            assert ha.parted_at >= common
            await master.aclose()
            await until(lambda: not members(name_server))
            acting.look_soon()
            await until(lambda: "another than the master's" in acting._said)
            assert acting.membership.is_isolated
            assert not acting.membership.acts
            assert not ha.delivers
            assert (await pulled(slave)).code == SERVICE_NOT_AVAILABLE
    async with make(tmp_path / "master", name_server, **ACTING) as master:
        await until(lambda: not master.services.acting.membership.is_isolated)
        await rejoin(tmp_path / "slave", master, name_server)
        async with make(tmp_path / "slave", name_server, **SLAVE, **ACTING) as slave:
            await until(lambda: end(slave) == end(master))
            await until(lambda: members(name_server) == {0, 1})
            await master.aclose()
            await until(lambda: slave.services.acting.membership.acts)
