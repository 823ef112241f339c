"""Brokers under a controller: they are elected, fail over, come back, and lose nothing.

A name server, a controller and brokers in one loop, over loopback. Deaths are `die`: nothing is
written any more, connections break.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from tests.rigs.small_brokers import SEGMENT, SMALL_FILES, until

from oberth.broker import controlled_ha, ha_service
from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.broker.controlled_broker import ControlledBroker
from oberth.broker.controlled_ha import ControlledHAService
from oberth.broker.ha_connection import HAConnection
from oberth.broker.log_comparison import EpochSentLog, StoreLog, compare
from oberth.broker.role import Role, RoleKeeper
from oberth.broker.sync_set import SyncSet
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, SendStatus
from oberth.client.producer import Producer
from oberth.controller.controller import Controller
from oberth.controller.controller_config import ControllerConfig
from oberth.errors import ConfigFormatError, OberthError, OptionError, RemotingConnectError
from oberth.formats.epochs import EPOCHS_MAX, Epoch
from oberth.formats.message import decode_record
from oberth.formats.properties import encode_properties
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.tls import make_certificate
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand, create_request
from oberth.remoting.headers.admin import ViewMessageRequestHeader
from oberth.remoting.headers.controller import ElectMasterRequestHeader
from oberth.remoting.headers.send import ConsumerSendMsgBackRequestHeader
from oberth.store.epoch_replication import (
    MASTER_FRAME,
    MASTER_HANDSHAKE,
    SLAVE_REPORT,
    TRANSFER,
    EpochPiece,
    MasterHello,
    SlaveHello,
)
from oberth.store.files import FileSystem
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.store.offline.reader import StoreReader
from oberth.testing.fault_disk import FaultDisk

BOUND_S = 100
SETTINGS = {
    "brokerName": "broker-a",
    "listenPort": "0",
    **SMALL_FILES,
    "timerWheelEnable": "false",
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "haSendHeartbeatInterval": "100",
    "brokerHeartbeatInterval": "50",
    "syncBrokerMetadataPeriod": "200",
    "slaveTimeout": "60000",
}


class Group:
    """A name server, a controller, and brokers of one name."""

    def __init__(self, root: Path, **tls: str) -> None:
        self.root = root
        self.name_server = NameServer(NamesrvConfig(listen_port=0, **tls))  # type: ignore[arg-type]
        self.controller = Controller(
            ControllerConfig(listen_port=0, store_path=str(root / "controller"), **tls)  # type: ignore[arg-type]
        )
        self.brokers: dict[str, ControlledBroker] = {}

    async def start(
        self, name: str, files: FileSystem | None = None, **entries: str
    ) -> ControlledBroker:
        """A broker that has a role."""
        values = {
            **SETTINGS,
            "storePathRootDir": str(self.root / name),
            "namesrvAddr": str(self.name_server.address),
            "controllerAddr": str(self.controller.address),
            **entries,
        }
        config, store_config, warnings = read_configs(values)
        assert warnings == []
        broker = ControlledBroker(config, store_config, files=files)
        async with asyncio.timeout(BOUND_S):
            await broker.start()
        self.brokers[name] = broker
        return broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).aclose()

    async def aclose(self) -> None:
        for name in list(self.brokers):
            await self.stop(name)
        await self.controller.aclose()
        await self.name_server.aclose()

    @property
    def in_sync(self) -> list[int]:
        return sorted(self.controller.sets.sets["broker-a"].in_sync)

    async def agree(self, *members: int) -> None:
        """Waits until controller and master have the same sync set."""

        def do_they() -> bool:
            found = [ha(each).sync_set for each in self.brokers.values() if is_master(each)]
            return self.in_sync == list(members) and any(
                each is not None and sorted(each.members) == self.in_sync for each in found
            )

        await until(do_they)

    async def elect(self, broker_id: int) -> None:
        """Has the controller make one of them the master."""
        header = ElectMasterRequestHeader(
            cluster_name="DefaultCluster", broker_name="broker-a", broker_id=broker_id,
            designate_elect=True,
        )  # fmt: skip
        async with RemotingClient() as client:
            answer = await client.invoke(
                str(self.controller.address),
                create_request(RequestCode.CONTROLLER_ELECT_MASTER, header),
            )
        assert answer.code == 0, answer.remark


def is_master(each: ControlledBroker) -> bool:
    return each.broker is not None and each.role is not None and each.role.is_master


def life(each: ControlledBroker) -> Broker:
    assert each.broker is not None
    return each.broker


def ha(each: ControlledBroker) -> ControlledHAService:
    found = life(each).services.ha
    assert isinstance(found, ControlledHAService)
    return found


def end(each: ControlledBroker) -> int:
    return -1 if each.broker is None else each.broker.parts.store.max_phy_offset


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        made = Group(tmp_path)
        await made.name_server.start()
        await made.controller.start()
        stack.push_async_callback(made.aclose)
        yield made


def put(each: ControlledBroker, *bodies: bytes) -> None:
    """Appends, as sends do, without waiting for anybody."""
    broker = life(each)
    broker.parts.store.append_messages([MessageExtBrokerInner.of("t", body) for body in bodies])
    broker.services.ha.on_append()
    broker.services.dispatching.soon()


async def acknowledged(
    each: ControlledBroker, body: bytes = b"x", properties: bytes = b""
) -> PutMessageStatus:
    """What a sender hears."""
    broker = life(each)
    done: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
    (result,) = broker.parts.store.append_messages([MessageExtBrokerInner("t", body, properties)])
    if not result.ok:
        return result.status
    broker.services.dispatching.when_durable(broker.parts.store.max_phy_offset, done.set_result)
    async with asyncio.timeout(BOUND_S):
        return await done


def bodies(each: ControlledBroker, *queue_ids: int) -> list[bytes]:
    """What consumers may see of some queues; of the first if none is given."""
    store = life(each).parts.store
    found = []
    for queue_id in queue_ids or (0,):
        for offset in range(store.max_offset_in_queue("t", queue_id)):
            unit = store.consume_queue_unit("t", queue_id, offset)
            assert unit is not None
            message = store.find_message(unit.commit_log_offset)
            assert message is not None
            found.append(message.body)
    return found


async def view(each: ControlledBroker, offset: int) -> bytes | None:
    """What a client is shown that asks for a place in the log."""
    request = create_request(
        RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset, topic="t")
    )
    async with RemotingClient() as client:
        answer = await client.invoke(each.address, request)
    return decode_record(answer.body_bytes(), at=offset).body if answer.code == 0 else None


async def test_the_first_is_the_master_and_the_others_follow(group: Group) -> None:
    first = await group.start("1")
    assert is_master(first)
    assert first.broker_id == 1
    assert life(first).parts.config.broker_id == 0
    put(first, *[b"%d" % n for n in range(300)])
    second, third = await group.start("2"), await group.start("3")
    assert not is_master(second)
    await group.agree(1, 2, 3)
    assert await acknowledged(first, b"last") is PutMessageStatus.PUT_OK
    assert end(second) == end(third) == end(first)
    await until(lambda: bodies(first)[-1] == b"last")
    await until(lambda: bodies(second) == bodies(third) == bodies(first))
    refused = life(second).parts.store.append_messages([MessageExtBrokerInner("t", b"x")])[0]
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert ha(second).epochs.entries == ha(first).epochs.entries


async def test_another_takes_over_when_the_master_stops_and_it_comes_back_as_a_slave(
    group: Group,
) -> None:
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    for n in range(20):
        assert await acknowledged(first, b"a%d" % n) is PutMessageStatus.PUT_OK
    await group.stop("1")
    second = group.brokers["2"]
    await until(lambda: is_master(second))
    assert life(second).parts.config.broker_id == 0
    assert await acknowledged(second, b"b") is PutMessageStatus.PUT_OK
    await until(lambda: bodies(second) == [*[b"a%d" % n for n in range(20)], b"b"])
    first = await group.start("1")
    assert first.broker_id == 1
    await group.agree(1, 2)
    assert await acknowledged(second, b"c") is PutMessageStatus.PUT_OK
    await until(lambda: bodies(first) == bodies(second))
    assert not is_master(first)
    assert [each.number for each in ha(first).epochs.entries] == [1, 2]
    assert ha(first).epochs.entries == ha(second).epochs.entries
    assert not list(group.root.glob("*.parted*"))


async def test_a_master_that_was_not_told_acknowledges_nothing_and_is_cut(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await group.start("1")
    second = await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
    common = end(first)

    async def nobody(*_: object) -> None:
        raise RemotingConnectError("cut off from the controller")

    monkeypatch.setattr(first, "_ask", nobody)
    monkeypatch.setattr(first, "_find_leader", nobody)
    await group.elect(2)
    await until(lambda: is_master(second))
    assert is_master(first)
    unheard = asyncio.ensure_future(acknowledged(first, b"lost"))
    assert await acknowledged(second, b"b") is PutMessageStatus.PUT_OK
    assert bodies(first) == [b"a"]  # what is not confirmed is not shown
    assert [await view(first, 0), await view(first, common)] == [b"a", None]
    await until(lambda: bodies(second) == [b"a", b"b"])
    assert await view(second, common) == b"b"
    monkeypatch.undo()
    assert await unheard is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    await until(lambda: first.broker is not None and not is_master(first))
    await until(lambda: first.broker is not None and end(first) == end(second) > common)
    await until(lambda: first.broker is not None and bodies(first) == [b"a", b"b"])
    (kept,) = group.root.glob("1.parted*")
    assert kept.name == f"1.parted-{common}"
    assert any(b"lost" in each.read_bytes() for each in kept.iterdir())
    await group.agree(1, 2)


async def test_a_member_that_is_gone_holds_nobody_up_and_joins_again(group: Group) -> None:
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    await group.stop("2")
    assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
    assert group.in_sync == [1]
    second = await group.start("2")
    await group.agree(1, 2)
    await until(lambda: bodies(second) == [b"a"])


async def test_messages_are_refused_while_too_few_are_in_sync(group: Group) -> None:
    first = await group.start("1", minInSyncReplicas="2")
    assert await acknowledged(first) is PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first) is PutMessageStatus.PUT_OK


async def test_two_copies_are_asked_for_and_one_is_there(group: Group) -> None:
    alone = {"allAckInSyncStateSet": "false", "inSyncReplicas": "2", "slaveTimeout": "200"}
    first = await group.start("1", None, **alone)
    assert await acknowledged(first) is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    life(first).parts.store_config.slave_timeout_ms = 100_000
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first) is PutMessageStatus.PUT_OK


async def test_a_member_that_leaves_makes_two_copies_no_less(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There were enough in sync when the message came."""
    first = await group.start("1", minInSyncReplicas="2", slaveTimeout="1000")
    await group.start("2")
    await group.agree(1, 2)
    monkeypatch.setattr(ha(first), "on_append", lambda: None)
    monkeypatch.setattr(ha(first), "_push", lambda _: None)
    asked = asyncio.create_task(acknowledged(first))
    await until(lambda: end(first) > 0)
    await group.stop("2")
    assert await asked is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    assert group.in_sync == [1]
    async with asyncio.timeout(BOUND_S):
        await ha(first).settle()


async def test_a_slave_says_nothing_of_its_log_before_it_has_compared_epochs(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master believes a report, and has who is level elected."""
    first = await group.start("1")
    put(first, b"a")
    for number in range(2, 200):
        ha(first).epochs.append(Epoch(number, 0))
    answer = MasterHello(end(first), ha(first).epochs).encode()
    came, dialed = bytearray(), asyncio.Event()
    peer: list[asyncio.StreamWriter] = []

    async def master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.append(writer)
        dialed.set()
        while data := await reader.read(1000):
            came.extend(data)
        writer.close()

    rounds = 0
    wait_ended = HAConnection.wait_ended

    async def counted(self: HAConnection, seconds: float) -> bool:
        nonlocal rounds
        rounds += 1
        return await wait_ended(self, seconds)

    async with await asyncio.start_server(master, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

        async def there(_: ControlledHAService) -> str:
            return address

        monkeypatch.setattr(ControlledHAService, "_ask_ha_address", there)
        second = await group.start("2")
        async with asyncio.timeout(BOUND_S):
            await dialed.wait()
        monkeypatch.setattr(HAConnection, "wait_ended", counted)
        hello = SlaveHello(2, from_last_file=False, is_learner=False).encode()
        await until(lambda: rounds > 3)
        assert bytes(came) == hello
        peer[0].write(answer[:20])
        await until(lambda: ha(second)._link.received_bytes == 20)
        before = rounds
        await until(lambda: rounds > before + 3)
        assert bytes(came) == hello
        peer[0].write(answer[20:])
        await until(lambda: len(came) > len(hello))
        assert bytes(came[16:28]) == SLAVE_REPORT.pack(TRANSFER, end(second))
        peer[0].close()


async def test_clients_go_on_at_the_new_master(group: Group) -> None:
    await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    config = ClientConfig(namesrv_addr=str(group.name_server.address))
    sent: list[bytes] = []
    async with Producer("p", config=config) as producer:

        async def send(body: bytes) -> None:
            async with asyncio.timeout(BOUND_S):
                while True:
                    try:
                        found = await producer.send(Message("t", body))
                    except OberthError:
                        await asyncio.sleep(0.01)
                        continue
                    if found.status is SendStatus.SEND_OK:
                        sent.append(body)
                        return

        for n in range(10):
            await send(b"a%d" % n)
        await group.elect(2)
        for n in range(10):
            await send(b"b%d" % n)
        await until(lambda: is_master(group.brokers["2"]))
        for n in range(10):
            await send(b"c%d" % n)
    await until(lambda: set(sent) <= set(bodies(group.brokers["2"], *range(8))))
    assert {each[:1] for each in sent} == {b"a", b"b", b"c"}


async def test_a_controller_that_comes_back_finds_its_brokers(group: Group) -> None:
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    port = group.controller.address.port
    await group.controller.aclose()
    assert await acknowledged(first) is PutMessageStatus.PUT_OK
    group.controller = Controller(
        ControllerConfig(listen_port=port, store_path=str(group.root / "controller"))
    )
    await group.controller.start()
    assert group.in_sync == [1, 2]
    await until(lambda: group.controller._liveness.is_alive("DefaultCluster", "broker-a", 2))
    await group.stop("1")
    await until(lambda: is_master(group.brokers["2"]))


async def test_a_log_without_a_common_epoch_is_left_alone(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    first = await group.start("1")
    put(first, b"a", b"b")
    config, store_config, _ = read_configs(
        {**SETTINGS, "enableControllerMode": "false", "storePathRootDir": str(group.root / "2")}
    )
    async with Broker(config, store_config) as alone:
        alone.parts.store.append_messages([MessageExtBrokerInner.of("t", b"other")])
    second = await group.start("2")
    await until(lambda: "no epoch in common" in caplog.text)
    await until(lambda: bodies(second) == [b"other"])
    assert group.in_sync == [1]


async def greeted(
    each: ControlledBroker, broker_id: int, *reports: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a master's HA port, over which a slave has said so much and heard of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ha(each).port)
    writer.write(SlaveHello(broker_id, from_last_file=False, is_learner=False).encode())
    head = MASTER_HANDSHAKE.unpack(await reader.readexactly(MASTER_HANDSHAKE.size))
    await reader.readexactly(head[1])
    for offset in reports:
        writer.write(SLAVE_REPORT.pack(TRANSFER, offset))
        await reader.readexactly(MASTER_FRAME.size)
    return reader, writer


async def test_a_slave_that_is_back_has_left_its_older_connection(group: Group) -> None:
    """What still comes over that is from before a power cut, and must confirm nothing."""
    first = await group.start("1", None, haHousekeepingInterval="1000000")
    put(first, b"one")
    old_reader, old_writer = await greeted(first, 7, end(first))
    table = ha(first)._table
    assert list(table.acked.values()) == [end(first)]
    reader, writer = await greeted(first, 7)
    async with asyncio.timeout(BOUND_S):
        await old_reader.read()
    await until(lambda: len(table.hellos) == 1)
    assert table.acked == {}
    other_reader, other_writer = await greeted(first, 8)
    other_writer.write(SlaveHello(7, from_last_file=False, is_learner=False).encode())
    async with asyncio.timeout(BOUND_S):
        assert await other_reader.read() == b"", "one connection is one slave's"
    assert not reader.at_eof()
    for each in (old_writer, writer, other_writer):
        each.close()


async def test_who_greets_and_reads_no_answer_is_disconnected(group: Group) -> None:
    first = await group.start("1")
    for number in range(2, EPOCHS_MAX):
        ha(first).epochs.append(Epoch(number, 0))
    loop = asyncio.get_running_loop()

    async def greet(peer: socket.socket) -> None:
        hello = SlaveHello(7, from_last_file=False, is_learner=False).encode()
        while True:
            await loop.sock_sendall(peer, hello)
            await asyncio.sleep(0)

    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await loop.sock_connect(peer, ("127.0.0.1", ha(first).port))
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(BOUND_S):
                await greet(peer)


async def test_epochs_that_come_together_are_synced_together(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.start("1")
    slave = ha(await group.start("2"))
    await group.agree(1, 2)
    saved: list[int] = []
    monkeypatch.setattr(slave, "_save", lambda: saved.append(len(slave.epochs.entries)))
    at = end(group.brokers["2"])
    beats = [EpochPiece(at, b"", Epoch(number, at), 0) for number in range(2, 40)]
    (piece,) = slave._take_frames(beats)
    assert (piece.commit_log_offset, piece.size) == (at, 0)
    assert saved == [len(slave.epochs.entries)] == [39]


async def test_a_log_is_read_over_the_port_of_its_replicas(group: Group) -> None:
    """As of an Apache master, which tells no checksums; nobody takes the reader for a replica."""
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    put(first, *[b"%d" % number * 1000 for number in range(200)])
    await until(lambda: end(group.brokers["2"]) == end(first))
    await group.stop("2")
    await group.agree(1)
    put(first, b"more")
    sent = EpochSentLog("127.0.0.1", ha(first).port, 0, end(first))
    with StoreReader(str(group.root / "2")) as reader:
        copy = StoreLog(reader)
        assert (await compare(copy, sent)).differs_at is None
        table = ha(first)._table
        assert [each.is_learner for each in table.hellos.values()] == [True]
        assert (await compare(copy, sent, 100)).differs_at is None
    path = group.root / "2" / "commitlog" / f"{SEGMENT:020}"
    with path.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    with StoreReader(str(group.root / "2")) as reader:
        found = await compare(StoreLog(reader), sent, read_all=True)
    assert found.differs_at == SEGMENT + 1000
    sent.close()
    await until(lambda: not table.hellos)
    assert group.in_sync == [1]
    assert await acknowledged(first, b"last") is PutMessageStatus.PUT_OK


async def test_a_log_that_is_cut_takes_no_group_back(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await group.start("1"), await group.start("2")
    await group.agree(1, 2)
    for body in (b"a", b"b"):
        assert await acknowledged(first, body) is PutMessageStatus.PUT_OK
    common = end(second)
    assert await acknowledged(first, b"c") is PutMessageStatus.PUT_OK
    await until(lambda: bodies(second) == [b"a", b"b", b"c"])
    life(second).parts.offsets.commit("G", "t", 0, 2, 0)
    second.must_cut(common)
    await until(lambda: list(group.root.glob("2.parted-*")))
    await until(lambda: end(second) == end(first))
    members = ha(first).sync_set
    assert members is not None
    # It left the set with its connection and comes back; the master must not stop in between.
    await until(lambda: not (members._gone or members._joining or members._is_asking))
    await group.agree(1, 2)
    assert "taken back" not in caplog.text
    await group.stop("1")
    await until(lambda: is_master(second))
    assert bodies(second) == [b"a", b"b", b"c"]
    assert life(second).parts.offsets.query("G", "t", 0) == 2


async def test_a_master_that_closes_leaves_the_set_as_it_is(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas go with its connections; without them in the set nobody could be elected."""
    first, _ = await group.start("1"), await group.start("2")
    await group.agree(1, 2)
    looks: list[int] = []
    monkeypatch.setattr(SyncSet, "wanted", lambda _, now_ms: looks.append(now_ms))
    ha(first).on_time(0)
    assert looks
    ha(first).give_up()
    looks.clear()
    ha(first).on_time(0)
    assert not looks


@pytest.mark.parametrize("waits", ["true", "false"])
async def test_who_was_the_master_shows_no_end_that_is_its_own(
    group: Group, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """Where a master acknowledges alone, its readers have seen what no other replica has."""
    first = await group.start("1", allAckInSyncStateSet=waits)
    second = await group.start("2", allAckInSyncStateSet=waits)
    await group.agree(1, 2)
    put(first, b"a")
    await until(lambda: end(second) == end(first) and bodies(second) == [b"a"])
    monkeypatch.setattr(ha(first), "on_append", lambda: None)
    monkeypatch.setattr(ha(first), "_push", lambda _: None)
    put(first, b"its own")
    await until(lambda: bodies(first) == ([b"a"] if waits == "true" else [b"a", b"its own"]))
    may_ask = asyncio.Event()
    ask = ControlledHAService._ask_ha_address

    async def ask_late(self: ControlledHAService) -> str | None:
        await may_ask.wait()
        return await ask(self)

    monkeypatch.setattr(ControlledHAService, "_ask_ha_address", ask_late)
    await group.elect(2)
    await until(lambda: first.broker is not None and not is_master(first))
    assert end(first) > 0
    refused = (await pulled(first)).remark
    if waits == "true":
        assert ha(first).refuses_readers is None
        assert bodies(first) == [b"a"]
    else:
        assert refused == "this slave does not know yet whether its log is its master's"
    may_ask.set()
    await until(lambda: first.broker is not None and end(first) == end(second))
    await until(lambda: first.broker is not None and ha(first).refuses_readers is None)
    await until(lambda: bodies(first) == [b"a"])
    assert (await pulled(first)).code == 0


@pytest.mark.parametrize("waits", ["true", "false"])
async def test_what_a_replica_takes_for_delivered_it_has(
    group: Group, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """The master delivers a delayed message, and dies before a replica has the delivery."""
    monkeypatch.setattr(controlled_ha, "TOLD_WITHIN_S", 0.1)
    monkeypatch.setattr(ha_service, "TOLD_WITHIN_S", 0.1)
    levels = {
        "messageDelayLevel": "1s", "timerWheelEnable": "true", "allAckInSyncStateSet": waits,
    }  # fmt: skip
    late = "FLUSH_SLAVE_TIMEOUT" if waits == "true" else ha_service._LATE
    first, second = [await group.start(name, None, **levels) for name in "12"]
    await group.agree(1, 2)
    life(first).parts.topics.create_internal("t", 1)
    delayed = encode_properties({"DELAY": "1"})
    schedule = life(first).parts.schedule
    with monkeypatch.context() as early:
        early.setattr(schedule, "deliver", lambda now_ms: 0)
        assert await acknowledged(first, b"delayed", delayed) is PutMessageStatus.PUT_OK
        common = end(first)
        await until(lambda: end(second) == common)
        monkeypatch.setattr(ha(first), "on_append", lambda: None)
        monkeypatch.setattr(ha(first), "_push", lambda _: None)
    await until(lambda: end(first) > common)
    assert schedule.offsets == {1: 1}
    tables = asyncio.create_task(life(second).services.tables.take_all(first.address))
    async with RemotingClient() as client:
        for code in (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_TIMER_CHECK_POINT):
            answer = await client.invoke(first.address, create_request(code), BOUND_S)
            assert (answer.code, answer.remark) == (1, late)
    async with asyncio.timeout(BOUND_S):
        await tables
    assert not life(second).parts.schedule.offsets.get(1)
    await group.elect(2)
    await until(lambda: is_master(second) and bodies(second) == [b"delayed"])


async def test_what_is_sent_back_and_will_be_cut_off_is_refused(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumer would pass the message, and the copy is gone with the master's role."""
    first = await group.start("1")
    second = await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
    common = end(first)
    monkeypatch.setattr(ha(first), "on_append", lambda: None)
    monkeypatch.setattr(ha(first), "_push", lambda _: None)
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="G", delay_level=0)
    request = create_request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    async with RemotingClient() as client:
        asked = asyncio.ensure_future(client.invoke(first.address, request, BOUND_S))
        await until(lambda: end(first) > common)
        await group.elect(2)
        answer = await asked
    assert (answer.code, answer.remark) == (1, "FLUSH_SLAVE_TIMEOUT")
    await until(lambda: list(group.root.glob("1.parted-*")))
    await until(lambda: first.broker is not None and end(first) == end(second) == common)


async def pulled(each: ControlledBroker) -> RemotingCommand:
    """What a consumer hears of the first queue."""
    fields = {
        "consumerGroup": "G", "topic": "t", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    async with RemotingClient() as client:
        request = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=fields)
        return await client.invoke(each.address, request)


async def test_a_slave_without_a_master_serves_what_it_has(group: Group) -> None:
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
    await group.stop("2")
    await group.agree(1)
    await group.stop("1")
    await until(lambda: group.controller.sets.sets["broker-a"].master is None)
    second = await group.start("2")
    assert not is_master(second)
    assert bodies(second) == [b"a"]
    first = await group.start("1")
    await until(lambda: is_master(first))
    await group.agree(1, 2)


async def test_a_store_belongs_to_the_broker_that_made_it(group: Group) -> None:
    await group.start("1")
    await group.stop("1")
    identity = group.root / "1" / "brokerIdentity"
    assert identity.read_text() == "DefaultCluster#broker-a#1"
    with pytest.raises(ConfigFormatError, match="DefaultCluster#broker-b#ID"):
        await group.start("1", brokerName="broker-b")
    with pytest.raises(OptionError, match="controllerAddr"):
        await group.start("2", controllerAddr="")


async def test_what_a_heartbeat_says(group: Group) -> None:
    first = await group.start(
        "1", brokerElectionPriority="5", controllerHeartBeatTimeoutMills="86400000"
    )
    put(first, b"a")
    liveness = group.controller._liveness
    key = ("DefaultCluster", "broker-a", 1)

    def heard() -> bool:
        info = liveness.info(*key)
        return info is not None and (info.epoch, info.max_offset) == (1, end(first))

    await until(heard)
    info = liveness.info(*key)
    assert info is not None
    assert info.priority == 5
    assert liveness._heard[key].until_ms > liveness.now_ms + 80_000_000


async def test_how_often_it_speaks_to_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, store_config, _ = read_configs(
        {
            "storePathRootDir": str(tmp_path),
            "controllerAddr": "127.0.0.1:1",
            "brokerHeartbeatInterval": "30",
            "syncBrokerMetadataPeriod": "70",
        }
    )
    broker = ControlledBroker(config, store_config)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        raise KeyError

    async def nothing() -> None:
        return

    monkeypatch.setattr(broker, "_heartbeat", nothing)
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", pause)
        patched.setattr(asyncio, "timeout", pause)
        for work in (broker._heartbeats, broker._run):
            with pytest.raises(KeyError):
                await work()
    assert pauses == [0.03, 0.07]
    await broker.aclose()


def role_of(*, is_master: bool) -> Role:
    keeper = cast("RoleKeeper", None)
    return Role(1, is_master, 3, None, frozenset((1, 2)), 4, keeper)


async def test_how_long_a_member_may_lag(tmp_path: Path) -> None:
    config, store_config, _ = read_configs(
        {"storePathRootDir": str(tmp_path), "haMaxTimeSlaveNotCatchup": "300"}
    )
    service = Broker(config, store_config, role=role_of(is_master=True)).services.ha
    assert isinstance(service, ControlledHAService)
    assert service.sync_set is not None
    now_ms = int(asyncio.get_running_loop().time() * 1000)
    service.sync_set.on_report(2, "c", 0, 0, now_ms, may_join=True)
    assert service.sync_set.wanted(now_ms + 300) is None
    assert service.sync_set.wanted(now_ms + 301) == frozenset((1,))


async def test_a_learner_says_so(tmp_path: Path) -> None:
    config, store_config, _ = read_configs(
        {"storePathRootDir": str(tmp_path), "asyncLearner": "true", "brokerId": "1"}
    )
    service = Broker(config, store_config, role=role_of(is_master=False)).services.ha
    said = SlaveHello(1, from_last_file=False, is_learner=True)
    assert service._greeting() == said.encode()


async def test_where_its_own_files_lie(group: Group, tmp_path: Path) -> None:
    epochs, identity = tmp_path / "epochs", tmp_path / "identity"
    await group.start("1", storePathEpochFile=str(epochs), storePathBrokerIdentity=str(identity))
    assert epochs.read_text().splitlines()[2:] == ["1-0"]
    assert identity.read_text() == "DefaultCluster#broker-a#1"


async def test_what_a_master_shows_of_itself(group: Group) -> None:
    first = await group.start("1")
    await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first) is PutMessageStatus.PUT_OK
    async with RemotingClient() as client:
        answer = await client.invoke(
            first.address, create_request(RequestCode.GET_BROKER_EPOCH_CACHE)
        )
        shown = json.loads(answer.body_bytes())
        assert shown["epochList"] == [{"endOffset": end(first), "epoch": 1, "startOffset": 0}]
        answer = await client.invoke(
            first.address, create_request(RequestCode.GET_BROKER_HA_STATUS)
        )
    status = json.loads(answer.body_bytes())
    assert status["inSyncSlaveNums"] == 1
    assert [each["inSync"] for each in status["haConnectionInfo"]] == [True]
    assert first.not_ready() is None


async def test_a_store_from_before_there_was_a_controller(group: Group) -> None:
    config, store_config, _ = read_configs(
        {**SETTINGS, "enableControllerMode": "false", "storePathRootDir": str(group.root / "1")}
    )
    async with Broker(config, store_config) as alone:
        alone.parts.store.append_messages([MessageExtBrokerInner.of("t", b"a")])
    first = await group.start("1")
    second = await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"b") is PutMessageStatus.PUT_OK
    await until(lambda: bodies(first) == bodies(second) == [b"a", b"b"])


async def test_a_master_that_is_back_at_once_begins_an_epoch(group: Group) -> None:
    first = await group.start("1")
    assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
    await group.controller.aclose()  # nobody notices that it was away
    await group.stop("1")
    group.controller = Controller(
        ControllerConfig(
            listen_port=group.controller.config.listen_port,
            store_path=str(group.root / "controller"),
        )
    )
    await group.controller.start()
    first = await group.start("1")
    assert first.role is not None
    assert (first.role.is_master, first.role.epoch) == (True, 2)
    # What it wrote from here on cannot be taken for what a power cut took from its first life.
    assert [tuple(each) for each in ha(first).epochs.entries] == [(1, 0), (2, end(first))]
    assert await acknowledged(first, b"b") is PutMessageStatus.PUT_OK


async def test_a_slave_shows_its_unconfirmed_tail_when_it_has_joined(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await group.start("1")
    assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
    confirmed = end(first)
    monkeypatch.setattr(ha(first), "confirm_offset", lambda: confirmed)
    second = await group.start("2", asyncLearner="true")
    put(first, b"b")
    await until(lambda: end(second) == end(first) > confirmed)
    await until(lambda: bodies(second) == [b"a"])
    await group.stop("1")
    await group.stop("2")

    second = await group.start("2", asyncLearner="true")
    assert end(second) > confirmed
    assert ha(second).confirm_offset() == confirmed
    assert bodies(second) == [b"a"]
    assert [await view(second, 0), await view(second, confirmed)] == [b"a", None]
    assert life(second).parts.store.dispatch_behind_bytes == 0

    await group.start("1")
    await until(lambda: second.broker is not None and bodies(second) == [b"a", b"b"])


async def test_a_slave_that_syncs_confirms_what_is_on_its_disk(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await group.start("1")
    second = await group.start("2", flushDiskType="SYNC_FLUSH")
    await group.agree(1, 2)
    store = life(second).parts.store
    may_sync = asyncio.Event()
    loop = asyncio.get_running_loop()
    flush_to = store.commit_log.queue.flush_to

    def wait_and_flush(end_offset: int) -> Any:
        asyncio.run_coroutine_threadsafe(may_sync.wait(), loop).result(BOUND_S)
        return flush_to(end_offset)

    monkeypatch.setattr(store.commit_log.queue, "flush_to", wait_and_flush)
    sent = asyncio.ensure_future(acknowledged(first, b"a"))
    await until(lambda: end(second) == end(first) > 0)
    assert ha(second)._end_to_report() < end(second)
    assert ha(first).confirm_offset() < end(first)
    assert not sent.done()
    may_sync.set()
    assert await sent is PutMessageStatus.PUT_OK
    assert store.flushed_offset == end(first)


async def test_a_master_whose_disk_fails_leaves_its_role_and_comes_back(group: Group) -> None:
    disk = FaultDisk()
    first = await group.start("1", disk, flushDiskType="SYNC_FLUSH")
    second = await group.start("2")
    await group.agree(1, 2)
    assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
    disk.fails = True
    assert await acknowledged(first, b"b") is not PutMessageStatus.PUT_OK
    await until(lambda: is_master(second))
    assert await acknowledged(second, b"c") is PutMessageStatus.PUT_OK
    assert not is_master(first)
    disk.fails = False
    await group.agree(1, 2)
    await until(lambda: first.broker is not None and bodies(first) == bodies(second))
    assert bodies(first)[-1] == b"c"


async def test_a_broker_that_could_not_be_opened_can_be_opened_later(group: Group) -> None:
    disk = FaultDisk()
    first = await group.start("1")
    second = await group.start("2", disk)
    await group.agree(1, 2)
    disk.fill(disk.events)
    await group.stop("1")
    await until(lambda: second._said.get("store"))
    disk.fill(None)
    await until(lambda: is_master(second))
    first = await group.start("1")
    await until(lambda: first.broker is not None and end(first) == end(second))


async def test_an_option_that_was_changed_holds_in_the_next_life_and_for_readers(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await group.start("1", allAckInSyncStateSet="false")
    second = await group.start("2", allAckInSyncStateSet="false")
    await group.agree(1, 2)
    life(second).services.changes.update({"inSyncReplicas": "2"})
    await group.elect(2)
    await until(lambda: is_master(second) and first.broker is not None and not is_master(first))
    await group.agree(1, 2)
    assert await acknowledged(second, b"a") is PutMessageStatus.PUT_OK
    confirmed = end(second)
    monkeypatch.setattr(ha(second), "confirm_offset", lambda: confirmed)
    put(second, b"b")
    await until(lambda: end(first) == end(second))
    assert bodies(second) == [b"a"]
    # As soon as nobody waits for replicas, readers do not either.
    life(second).services.changes.update({"inSyncReplicas": "1"})
    await until(lambda: bodies(second) == [b"a", b"b"])


async def test_a_group_in_which_everybody_speaks_tls_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pem, trusted = tmp_path / "own.pem", tmp_path / "strange.pem"
    for path in (pem, trusted):
        made = make_certificate(2)
        assert made is not None
        path.write_bytes(made)
    keys = {"tls_mode": "enforcing", "tls_cert_path": str(pem)}
    entries = {"tlsServerMode": "enforcing", "tlsServerCertPath": str(pem)}
    group = Group(tmp_path, **keys, tls_client_trust_cert_path=str(pem))
    async with AsyncExitStack() as stack:
        await group.name_server.start()
        await group.controller.start()
        stack.push_async_callback(group.aclose)
        first = await group.start("1", None, **entries, tlsClientTrustCertPath=str(pem))
        life(first).parts.topics.create_internal("wanted", 2)
        second = await group.start("2", None, **entries)  # encrypted, and it trusts everybody
        await group.agree(1, 2)
        assert await acknowledged(first, b"a") is PutMessageStatus.PUT_OK
        await until(lambda: "wanted" in life(second).parts.topics)
        await until(lambda: group.name_server.routes.route("wanted"))
        third = group.start("3", None, **entries, tlsClientTrustCertPath=str(trusted))
        waiting = asyncio.ensure_future(third)
        await until(lambda: "verify failed" in caplog.text)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await group.stop("1")
        await until(lambda: is_master(second))
        assert await acknowledged(second, b"b") is PutMessageStatus.PUT_OK
