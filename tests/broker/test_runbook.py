"""Entries of the runbook in docs/replication.md that no other test plays, step by step.

`tests/runbook_played.txt` names for each entry the tests that play it.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.broker.test_controlled_broker import (
    BOUND_S,
    SETTINGS,
    Group,
    acknowledged,
    bodies,
    group,  # noqa: F401 - a fixture
    is_master,
    life,
    put,
)
from tests.broker.test_ha_service import SmallDisk, equal
from tests.broker.test_ha_service import acknowledged as acknowledged_by
from tests.broker.test_ha_service import put as put_at
from tests.rigs.small_brokers import make, options_of, until

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.broker.controlled_broker import ControlledBroker
from oberth.cli.main import oberth
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, SendStatus
from oberth.client.producer import Producer
from oberth.client.pull_consumer import PullConsumer
from oberth.controller.controller import Controller
from oberth.controller.controller_config import ControllerConfig
from oberth.errors import ConfigFormatError
from oberth.formats.epochs import Epoch, EpochTable, encode_epochs
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.wall_clock import now_ms

HOUR_MS = 3_600_000
OK = PutMessageStatus.PUT_OK


async def command(*words: str) -> None:
    done = await asyncio.to_thread(CliRunner().invoke, oberth, list(words))
    assert done.exit_code == 0, done.output


# ------------------------------------------------------------------------------ with a controller


async def test_an_empty_store_under_the_same_identity_joins(group: Group) -> None:  # noqa: F811
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is OK
    await group.stop("2")
    await group.agree(1)
    identity = (group.root / "2" / "brokerIdentity").read_bytes()
    shutil.rmtree(group.root / "2")
    (group.root / "2").mkdir()
    (group.root / "2" / "brokerIdentity").write_bytes(identity)
    second = await group.start("2")
    assert second.broker_id == 2
    await group.agree(1, 2)
    await until(lambda: bodies(second) == [b"a"])


async def test_brokers_that_restart_one_by_one_fail_no_send(group: Group) -> None:  # noqa: F811
    """As for a new version, the master last. The producer has its defaults: two tries more."""
    for name in ("1", "2", "3"):
        await group.start(name, defaultTopicQueueNums="1")
    await group.agree(1, 2, 3)
    acked: list[bytes] = []
    is_over = False

    async def send(producer: Producer, name: str) -> None:
        while not is_over:
            body = b"%s %d" % (name.encode(), len(acked))
            sent = await producer.send(Message("t", body))
            assert sent.status is SendStatus.SEND_OK
            acked.append(body)

    async def goes_on() -> None:
        before = len(acked)
        await until(lambda: len(acked) > before + 20)

    namesrv = str(group.name_server.address)
    async with (
        asyncio.timeout(BOUND_S),
        Producer("g", namesrv_addr=namesrv) as producer,
        asyncio.TaskGroup() as senders,
    ):
        for name in ("a", "b", "c", "d"):
            senders.create_task(send(producer, name))
        await goes_on()
        for name in sorted(group.brokers, key=lambda each: is_master(group.brokers[each])):
            await group.stop(name)
            await goes_on()
            await group.start(name, defaultTopicQueueNums="1")
            await group.agree(1, 2, 3)
        await goes_on()
        is_over = True
    (master,) = [each for each in group.brokers.values() if is_master(each)]
    await until(lambda: set(acked) <= set(bodies(master)))
    assert master.broker_id != 1


async def test_while_the_controller_is_away_nobody_leaves_the_sync_set(
    group: Group,  # noqa: F811
) -> None:
    first = await group.start("1", slaveTimeout="200")
    await group.start("2")
    await group.agree(1, 2)
    port = group.controller.address.port
    await group.controller.aclose()
    assert await acknowledged(first, b"a") is OK
    await group.stop("2")
    assert await acknowledged(first, b"b") is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    assert is_master(first)
    group.controller = Controller(
        ControllerConfig(listen_port=port, store_path=str(group.root / "controller"))
    )
    await group.controller.start()
    await group.agree(1)
    assert await acknowledged(first, b"c") is OK


async def test_a_controller_whose_file_is_lost(group: Group) -> None:  # noqa: F811
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is OK
    await group.stop("2")
    await group.agree(1)
    assert await acknowledged(first, b"b") is OK

    await group.controller.aclose()
    shutil.rmtree(group.root / "controller")
    group.controller = Controller(
        ControllerConfig(
            listen_port=group.controller.config.listen_port,
            store_path=str(group.root / "controller"),
        )
    )
    await group.controller.start()
    assert is_master(first), "who runs stays what it is"
    await group.stop("1")
    for name in ("brokerIdentity", "epochFileCheckpoint"):
        (group.root / "1" / name).unlink()
    shutil.rmtree(group.root / "2")
    first = await group.start("1")
    assert is_master(first)
    second = await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"c") is OK
    await until(lambda: bodies(first) == bodies(second) == [b"a", b"b", b"c"])


async def rejoin(brokers: Group, first: ControlledBroker) -> None:
    """Has the second follow the first again, by the command of the runbook, with the same log."""
    await command(
        "store", "rejoin", str(brokers.root / "2"), first.address, "-n",
        str(brokers.name_server.address),
    )  # fmt: skip
    second = await brokers.start("2")
    await brokers.agree(1, 2)
    await until(lambda: bodies(second) == [b"a", b"b"])


async def test_a_store_without_a_common_epoch_rejoins(
    group: Group,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = await group.start("1")
    put(first, b"a", b"b")
    config, store_config, _ = read_configs(
        {**SETTINGS, "enableControllerMode": "false", "storePathRootDir": str(group.root / "2")}
    )
    async with Broker(config, store_config) as alone:
        alone.parts.store.append_messages([MessageExtBrokerInner.of("t", b"other")])
    await group.start("2")
    await until(lambda: "no epoch in common" in caplog.text)
    await group.stop("2")
    await rejoin(group, first)
    kept = (group.root / "2.parted").iterdir()
    assert any(b"other" in each.read_bytes() for each in kept)


@pytest.mark.parametrize("damage", ["lost", "damaged", "of another history"])
async def test_a_replica_whose_epochs_are_lost_rejoins(
    group: Group,  # noqa: F811
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is OK
    await group.stop("2")
    await group.agree(1)
    assert await acknowledged(first, b"b") is OK
    path = group.root / "2" / "epochFileCheckpoint"
    if damage == "damaged":
        path.write_bytes(path.read_bytes()[:-2] + b"7\n")
        with pytest.raises(ConfigFormatError, match="oberth store rejoin"):
            await group.start("2")
    else:
        path.unlink()
        if damage == "of another history":
            path.write_bytes(encode_epochs(EpochTable([Epoch(1, 0), Epoch(7, 1)])))
        second = await group.start("2")
        await until(lambda: "oberth store rejoin" in caplog.text)
        assert (group.in_sync, bodies(second)) == ([1], [b"a"])
        await group.stop("2")
    await rejoin(group, first)
    assert not (group.root / "2.parted").exists()


async def test_a_controller_whose_file_is_an_older_copy(
    group: Group,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It names the first as the master; what came later only the others have."""
    await group.start("1")
    second, third = await group.start("2"), await group.start("3")
    await group.agree(1, 2, 3)
    kept = group.root / "controller" / "controller.log"
    copy = kept.read_bytes()
    await group.stop("1")
    await until(lambda: is_master(second) or is_master(third))
    if is_master(third):
        second, third = third, second
    await group.agree(2, 3)
    assert await acknowledged(second, b"a") is OK
    listen_port = group.controller.address.port
    await group.controller.aclose()
    kept.write_bytes(copy)
    group.controller = Controller(
        ControllerConfig(
            listen_port=listen_port,
            store_path=str(kept.parent),
            scan_inactive_master_interval_ms=100,
        )
    )
    await group.controller.start()
    newest = group.controller.sets._newest_epoch
    await until(lambda: newest(group.controller.sets.sets["broker-a"], "broker-a") == 2)
    first = asyncio.ensure_future(group.start("1"))
    await until(lambda: "its file is older than the brokers" in caplog.text)
    assert not first.done()
    await group.stop(str(second.broker_id))
    assert bodies(third) == [b"a"]

    group.controller.config.elects_unclean = True
    group.controller._apply_config()
    await first
    await until(lambda: is_master(third))
    assert third.role is not None
    assert third.role.epoch == 3
    await group.agree(1, third.broker_id)
    assert await acknowledged(third, b"b") is OK
    await until(lambda: bodies(first.result()) == [b"a", b"b"])


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_a_clock_that_jumps_moves_nobody(group: Group, jump_ms: int) -> None:  # noqa: F811
    off_ms = 0
    config, store_config, _ = read_configs(
        {
            **SETTINGS,
            "storePathRootDir": str(group.root / "1"),
            "namesrvAddr": str(group.name_server.address),
            "controllerAddr": str(group.controller.address),
        }
    )
    first = ControlledBroker(config, store_config, clock_ms=lambda: now_ms() + off_ms)
    group.brokers["1"] = first
    await first.start()
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is OK
    off_ms = jump_ms
    life(first).services.ha.on_time(now_ms() + off_ms)
    assert await acknowledged(first, b"b") is OK
    assert (is_master(first), group.in_sync) == (True, [1, 2])
    assert first.role is not None
    assert first.role.epoch == 1
    await until(lambda: bodies(group.brokers["2"]) == [b"a", b"b"])


async def test_another_name_server_is_asked(tmp_path: Path) -> None:
    async with (
        NameServer(NamesrvConfig(listen_port=0)) as stays,
        NameServer(NamesrvConfig(listen_port=0)) as dies,
    ):
        port = dies.address.port
        addresses = f"{dies.address};{stays.address}"
        async with make(tmp_path / "a", addresses) as broker:
            broker.parts.topics.create_internal("t", 1)
            await broker.services.registration.register_all()
            config = ClientConfig(namesrv_addr=addresses, poll_name_server_interval_ms=50)
            async with Producer("p", config=config) as producer:
                assert (await producer.send(Message("t", b"a"))).status is SendStatus.SEND_OK
                await dies.aclose()
                assert (await producer.send(Message("t", b"b"))).status is SendStatus.SEND_OK
            async with Producer("q", config=config) as producer:  # it has no route yet
                assert (await producer.send(Message("t", b"c"))).status is SendStatus.SEND_OK
            # It is started again, and brokers register there.
            async with NameServer(NamesrvConfig(listen_port=port)) as again:
                await broker.services.registration.register_all()
                assert again.routes.route("t") is not None


# ----------------------------------------------------------------------------- without a controller


async def test_senders_wait_for_nobody_while_the_slave_is_away(
    tmp_path: Path,
    name_server: str,
) -> None:
    sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "200"}
    async with make(tmp_path / "a", name_server, **sync) as master:
        assert await acknowledged_by(master) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        await command(
            "cluster", "config", "set", str(master.address), "inSyncReplicas=1", "-n", name_server
        )
        assert await acknowledged_by(master) is OK
        async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
            await until(lambda: equal(master, slave))


async def test_a_slave_with_a_smaller_disk_keeps_the_newest_part(
    tmp_path: Path,
    name_server: str,
) -> None:
    async with make(tmp_path / "a", name_server) as master:
        put_at(master, 2000)
        options = options_of(
            tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE",
            cleanResourceInterval="20",
        )  # fmt: skip
        async with Broker(*options, files=SmallDisk()) as slave:
            await until(lambda: equal(master, slave))
            assert 0 < slave.parts.store.commit_log.min_offset < master.parts.store.max_phy_offset


async def test_a_slave_serves_while_its_master_is_away_and_becomes_the_master(
    tmp_path: Path,
    name_server: str,
) -> None:
    config = ClientConfig(namesrv_addr=name_server, poll_name_server_interval_ms=50)
    async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
        async with make(tmp_path / "a", name_server) as master:
            master.parts.topics.create_internal("t", 1)
            await master.services.registration.register_all()
            async with Producer("p", config=config) as producer:
                await producer.send(Message("t", b"before"))
            await until(lambda: equal(master, slave))
            await slave.services.tables.take_all(str(master.address))
        assert [*await read(config, "while", 1)] == [b"before"]
    async with make(tmp_path / "b", name_server) as master:
        async with Producer("p", config=config) as producer:
            await producer.send(Message("t", b"after"))
        slave = make(tmp_path / "empty", name_server, brokerId="1", brokerRole="SLAVE")
        async with slave:
            await until(lambda: equal(master, slave))
        assert await read(config, "after", 2) == {b"before", b"after"}


async def read(config: ClientConfig, name: str, count: int) -> set[bytes]:
    """What a new group finds."""
    found: set[bytes] = set()
    async with PullConsumer(name, {"t": "*"}, config=config) as consumer:
        async with asyncio.timeout(100):
            while len(found) < count:
                found |= {each.body for each in await consumer.poll()}
    return found


async def test_a_new_slave_gets_all_segments(
    tmp_path: Path,
    name_server: str,
) -> None:
    async with make(tmp_path / "a", name_server) as master:
        put_at(master, 2000)
        assert len(list((tmp_path / "a" / "commitlog").glob("0*"))) > 5
        async with make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave:
            await until(lambda: equal(master, slave))
            assert slave.parts.store.commit_log.min_offset == 0
