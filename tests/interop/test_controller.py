"""Brokers under a controller, ours and Apache's of both: kills of the master, of the controller.

Two brokers or three under one name; the official Java client sends and consumes meanwhile. One
master after the other is killed with SIGKILL and comes back. With OBERTH_INTEROP=full the
controller is killed and started again, too, and a master stands still until another one has taken
over, then goes on. In the end everything acknowledged was consumed, nothing that was never sent,
and the logs are equal byte for byte.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.rigs import controlled, peers
from tests.rigs.controlled import (
    NAME,
    VERSION,
    Group,
    apache_controller,
    broker_node,
    oberth_node,
    successor,
)
from tests.rigs.pairs import log_end
from tests.rigs.traffic import Traffic

from oberth.cli.main import oberth
from oberth.client.admin import Admin
from oberth.errors import OberthError, PeerUnavailableError
from oberth.store.offline.reader import StoreReader

pytestmark = [pytest.mark.interop, pytest.mark.crash]

TOPIC = "Controlled"
BOUND_S = 240.0
SEGMENT = 16 << 20
CONF = {**controlled.CONF, "mappedFileSizeCommitLog": str(SEGMENT)}


FULL = os.environ.get("OBERTH_INTEROP", "small") == "full"
GROUPS = ["oberth:oberth,apache"]
if FULL:
    GROUPS += [
        "oberth:apache,oberth",
        "oberth:apache,apache",
        "oberth:oberth,apache,oberth",
        "apache:oberth,apache",
        "apache:apache,oberth",
        "apache:oberth,oberth",
        "apache:apache,oberth,apache",
    ]
"""Whose controller, and whose brokers: the first is the first master."""


@pytest.fixture(params=GROUPS)
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Group]:
    leader, _, kinds = request.param.partition(":")
    name_server = oberth_node(tmp_path, "namesrv")
    try:
        if leader == "apache":
            controller = apache_controller(tmp_path / "controller")
        else:
            kept = str(tmp_path / "controller" / "kept")
            controller = oberth_node(tmp_path, "controller", "--store", kept)
        conf = {**CONF, "controllerAddr": controller.address}
        brokers = [
            broker_node(kind, tmp_path / str(number), conf, name_server)
            for number, kind in enumerate(kinds.split(","), 1)
        ]
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    try:
        name_server.start()
        controller.start()
        yield Group(name_server, controller, brokers)
    finally:
        for node in (*brokers, controller, name_server):  # those that run in the end
            node.kill()


async def until(question: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask until the answer is yes; processes elsewhere cannot be waited for."""
    try:
        async with asyncio.timeout(BOUND_S):
            while True:
                try:
                    if await question():
                        return
                except (OberthError, OSError):
                    pass
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"not in {BOUND_S:.0f} s: {what}")


def mqadmin(directory: Path, *arguments: str) -> str:
    """What the official tool prints."""
    home = directory / "tool"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
    command = peers.java_command(
        peers.jars(VERSION),
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        options=(f"-Duser.home={home}", "-Xmx128m", "-XX:TieredStopAtLevel=1"),
    )
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    return done.stdout + done.stderr


class Watch:
    """What the test asks of a group until it is so."""

    def __init__(self, group: Group) -> None:
        self.group = group

    async def master(self) -> str | None:
        """The address of the master that the controller has elected."""
        info = await self.group.info()
        return None if info is None else info.master_address

    async def moved_from(self, address: str | None) -> None:
        """Until another broker is the master."""

        async def is_other() -> bool:
            return await self.master() not in (None, address)

        await until(is_other, f"another master than {address}")

    async def whole(self, count: int) -> None:
        """Until so many are in sync and alive."""

        async def is_whole() -> bool:
            info = await self.group.info()
            return (
                info is not None
                and len(info.in_sync_replicas) == count
                and all(each.alive for each in info.in_sync_replicas)
            )

        await until(is_whole, f"{count} replicas in sync")

    async def equal(self) -> None:
        """Until every log has the same end."""

        async def is_equal() -> bool:
            return len({log_end(node) for node in self.group.brokers} - {-1}) == 1

        await until(is_equal, "logs of the same end")


def logs(stores: Sequence[Path]) -> list[bytes]:
    """The bytes of each stopped broker's log; all have the same end."""
    found = []
    for store in stores:
        with StoreReader(str(store)) as reader:
            found.append((store / "commitlog", reader.min_offset, reader.max_offset))
    assert len({end for _, _, end in found}) == 1, found
    return [
        b"".join(
            path.read_bytes().ljust(SEGMENT, b"\0")
            for path in sorted(folder.iterdir())
            if path.name.isdigit()
        )[:end]
        for folder, _, end in found
    ]


async def test_nothing_acknowledged_is_lost_when_masters_and_the_controller_die(
    group: Group, tmp_path: Path
) -> None:
    watch, count = Watch(group), len(group.brokers)
    for number, node in enumerate(group.brokers, 1):
        node.launch()
        await watch.whole(number)
    assert await watch.master() == group.brokers[0].address
    addr = group.name_server.address
    async with Admin(namesrv_addr=addr) as admin:

        async def make_topic() -> bool:
            await admin.create_topic(TOPIC, queue_nums=2)
            return True

        await until(make_topic, "the topic is made")
    with Traffic(addr, tmp_path, TOPIC, "G", "O", senders=4, pause_ms=5) as traffic:

        async def takes_messages(when: str) -> None:
            before = traffic.ask()["acknowledged"]

            async def is_more() -> bool:
                return bool((await asyncio.to_thread(traffic.ask))["acknowledged"] > before + 200)

            await until(is_more, f"messages are acknowledged {when}")

        await takes_messages("at first")
        for _ in range(count):
            old = await watch.master()
            group.node(old).kill()
            await watch.moved_from(old)
            if count > 2:
                await takes_messages(f"without {old}")
            group.node(old).launch()
            await watch.whole(count)
            await takes_messages(f"after {old} is back")

        if FULL:
            group.controller.kill()
            await takes_messages("without a controller")
            group.controller.start()
            await watch.whole(count)

            old = await watch.master()
            os.kill(group.node(old).pid, signal.SIGSTOP)
            await watch.moved_from(old)
            os.kill(group.node(old).pid, signal.SIGCONT)
            await watch.whole(count)
            await takes_messages(f"after {old} goes on")

        end = await asyncio.to_thread(traffic.ask, "stop")
        assert end["detail"] == "", end

        shown = await asyncio.to_thread(
            mqadmin, tmp_path, "getSyncStateSet", "-a", group.controller.address, "-b", NAME
        )
        assert f"#brokerName\t{NAME}" in shown, shown
        assert f"#MasterAddr\t{await watch.master()}" in shown, shown
        shown = await asyncio.to_thread(
            mqadmin, tmp_path, "getControllerMetaData", "-a", group.controller.address
        )
        assert f"#ControllerLeaderAddress\t{group.controller.address}" in shown, shown

    await watch.equal()
    master = await watch.master()
    slave = next(each for each in group.brokers if each.address != master)
    await asyncio.to_thread(slave.stop)
    command = ["cluster", "compare", master or "", str(slave.store), "--read"]
    done = await asyncio.to_thread(CliRunner().invoke, oberth, [*command, "-n", addr])
    assert done.exit_code == 0, done.output
    for node in group.brokers:
        await asyncio.to_thread(node.stop)
    first, *others = logs([node.store for node in group.brokers])
    assert first
    for number, other in enumerate(others, 2):
        assert other == first, f"the log of broker {number} differs from that of the first"


@pytest.mark.slow
@pytest.mark.parametrize("group", ["oberth:apache,apache,apache"], indirect=True)
async def test_a_group_moves_from_apache_to_oberth_under_load(group: Group, tmp_path: Path) -> None:
    """One broker after the other is stopped, and ours goes on with its store under its id."""
    watch = Watch(group)
    for number, node in enumerate(group.brokers, 1):
        node.launch()
        await watch.whole(number)
    addr = group.name_server.address
    conf = {**CONF, "controllerAddr": group.controller.address}
    async with Admin(namesrv_addr=addr) as admin:

        async def make_topic() -> bool:
            await admin.create_topic(TOPIC, queue_nums=2)
            return True

        await until(make_topic, "the topic is made")
        with Traffic(addr, tmp_path, TOPIC, "G", "O", senders=4, pause_ms=5) as traffic:
            for number, old in enumerate(list(group.brokers)):
                await asyncio.to_thread(old.stop)
                group.brokers[number] = successor(old, conf, group.name_server)
                group.brokers[number].launch()
                await watch.whole(3)
                before = (await asyncio.to_thread(traffic.ask))["acknowledged"]

                async def goes_on(before: int = before) -> bool:
                    found = await asyncio.to_thread(traffic.ask)
                    return bool(found["acknowledged"] > before + 200)

                await until(goes_on, f"messages are acknowledged without {old.address}")
            end = await asyncio.to_thread(traffic.ask, "stop")
            assert end["detail"] == "", end
    await watch.equal()
    for node in group.brokers:
        await asyncio.to_thread(node.stop)
    stores = [old.directory.parent / "store" for old in group.brokers]
    first, *others = logs(stores)
    assert first
    assert others == [first, first]
