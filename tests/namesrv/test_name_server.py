"""A name server on loopback: recorded frames get the recorded answers, and every code is asked.

The recordings are of Apache 5.5.0; what must differ (a remark's link, its own settings) is named.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import zlib
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.rigs.silent import silent_address

from oberth.errors import ConfigFormatError, OptionError
from oberth.formats.data_version import DataVersion
from oberth.formats.java_properties import parse_properties
from oberth.formats.json_reader import parse_config
from oberth.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfigTable
from oberth.namesrv.name_server import (
    ANNOUNCEMENTS_AT_ONCE,
    LITTLE_AT_ONCE,
    LONG_AT_ONCE,
    NameServer,
    _replace_file,
)
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.namesrv.registrations import MinBrokerIdChange
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient, own_requests
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.aio.tls import TlsMode, load_server_context, make_certificate
from oberth.remoting.bodies.registration import RegisterBrokerBody, RegisteredTopic
from oberth.remoting.bodies.route import (
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    KVTable,
    QueueData,
    TopicList,
    TopicRouteData,
)
from oberth.remoting.code import MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, encode_frame_bytes
from oberth.remoting.connection import RemotingConnection
from oberth.remoting.headers import namesrv as headers
from oberth.remoting.headers.base import CommandHeader

Frames = Callable[[str], tuple[dict[str, Any], ...]]

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


def ended(slices: Generator[None, None, RemotingCommand]) -> RemotingCommand:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return cast(RemotingCommand, end.value)


class Peer:
    """A client of one name server."""

    def __init__(self, server: NameServer, client: RemotingClient) -> None:
        self.server = server
        self.client = client
        self.addr = str(server.address)

    async def ask(
        self,
        code: int,
        header: CommandHeader | None = None,
        body: bytes = b"",
        *,
        version: int | None = None,
        more: dict[str, str] | None = None,
    ) -> RemotingCommand:
        request = create_request(code, header, body)
        if version is not None:
            request.version = version
        if more:
            request.ext_fields = request.fields | more
        return await self.client.invoke(self.addr, request, BOUND_S)

    async def register(
        self,
        topics: list[str],
        *,
        counter: int = 1,
        broker_id: int = 0,
        addr: str = "10.0.0.1:10911",
        name: str = "broker-a",
        compressed: bool = False,
        crc: int | None = None,
        version: int = MQVersion.V5_3_3,
        more: dict[str, str] | None = None,
        **fields: Any,
    ) -> RemotingCommand:
        body = RegisterBrokerBody(
            DataVersion(counter=counter, timestamp=7),
            {topic: RegisteredTopic(topic_name=topic, read_queue_nums=4) for topic in topics},
        )
        data = body.encode_compressed(version) if compressed else body.encode()
        header = headers.RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=addr,
            cluster_name="DefaultCluster",
            ha_server_addr=addr.replace("911", "912"),
            broker_id=broker_id,
            compressed=compressed,
            body_crc32=zlib.crc32(data) & 0x7FFFFFFF if crc is None else crc,
            **fields,
        )
        return await self.ask(RequestCode.REGISTER_BROKER, header, data, version=version, more=more)

    async def route(
        self, topic: str, *, version: int | None = None, more: dict[str, str] | None = None
    ) -> RemotingCommand:
        header = headers.GetRouteInfoRequestHeader(topic=topic)
        return await self.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, header, version=version, more=more
        )


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    """A client and the name server it asks."""
    config = NamesrvConfig(
        listen_port=0,
        kv_config_path=str(tmp_path / "kvConfig.json"),
        config_store_path=str(tmp_path / "namesrv.properties"),
    )
    async with NameServer(config) as server, RemotingClient() as client:
        yield Peer(server, client)


@pytest.mark.parametrize("recording", ["client-497", "full-binary", "full-json", "v1-json"])
async def test_recorded_frames_get_the_recorded_answers(
    recording: str, golden_frames: Frames
) -> None:
    frames = golden_frames(recording)
    answers = {frame["answers"]: frame for frame in frames if "answers" in frame}
    asked = 0
    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        connection = RemotingConnection()
        for frame in frames:
            if frame["direction"] != "to namesrv" or frame["n"] not in answers:
                continue
            asked += 1
            writer.write(base64.b64decode(frame["frame"]))
            commands: list[RemotingCommand] = []
            async with asyncio.timeout(BOUND_S):
                while not commands:
                    commands = connection.receive_data(await reader.read(65536))
            (ours,) = commands
            (theirs,) = RemotingConnection().receive_data(
                base64.b64decode(answers[frame["n"]]["frame"])
            )
            where = (recording, frame["n"])
            assert (ours.code, ours.opaque, ours.flag) == (
                theirs.code,
                theirs.opaque,
                theirs.flag,
            ), where
            assert ours.serialize_type == theirs.serialize_type, where
            assert ours.fields == theirs.fields, where
            if theirs.remark is not None:
                assert ours.remark == theirs.remark.partition("\n")[0], where
            code = frame["header"]["code"]
            if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                found = TopicList.decode(ours.body_bytes()).topic_list
                known = TopicList.decode(theirs.body_bytes()).topic_list
                # Topics that a broker created between two recorded registrations are not in ours.
                assert set(found) <= set(known), where
                assert len(found) > 10, where
            elif code == RequestCode.GET_NAMESRV_CONFIG:
                assert "listenPort" in parse_properties(ours.body_bytes())
            elif code in (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC):
                # To the byte: the Go client reads the first as text.
                assert ours.body == theirs.body, where
            elif theirs.body:
                assert parse_config(ours.body_bytes()) == parse_config(theirs.body_bytes()), where
            else:
                assert not ours.body, where
        writer.close()
        await writer.wait_closed()
    assert asked > 10


async def test_register_and_route(peer: Peer) -> None:
    response = await peer.register(["T", "U"])
    assert (response.code, response.ext_fields, response.body) == (0, {}, b"")
    response = await peer.register(["T", "U"], broker_id=1, addr="10.0.0.2:10911", compressed=True)
    assert response.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    response = await peer.route("T")
    route = TopicRouteData.decode(response.body_bytes())
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"' in response.body_bytes()
    # Clients before 4.9.4 get what fastjson wrote then, unless they say otherwise.
    old = await peer.route("T", version=MQVersion.V4_9_3)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911"' in old.body_bytes()
    asked = await peer.route("T", version=MQVersion.V4_9_3, more={"acceptStandardJsonOnly": "true"})
    assert asked.body == response.body
    response = await peer.route("nowhere")
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert not response.body


@pytest.mark.parametrize("version", [MQVersion.V4_9_8, MQVersion.V5_3_3])
async def test_compressed_registration(peer: Peer, version: int) -> None:
    assert (await peer.register(["T", "U"], compressed=True, version=version)).code == 0
    route = TopicRouteData.decode((await peer.route("U")).body_bytes())
    assert route.queue_datas[0].read_queue_nums == 4


async def test_registrations_that_are_refused(peer: Peer) -> None:
    response = await peer.register(["T"])
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "register broker failed" in (response.remark or "")
    response = await peer.register(["T", "U"], crc=17)
    assert "crc32 not match" in (response.remark or "")
    assert (await peer.register(["T", "U"], crc=0)).code == 0
    header = headers.RegisterBrokerRequestHeader(
        broker_name="b",
        broker_addr="b:1",
        cluster_name="C",
        ha_server_addr="b:2",
        broker_id=0,
        compressed=True,
    )
    response = await peer.ask(RequestCode.REGISTER_BROKER, header, b"not zlib")
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "BodyError" in (response.remark or "")
    response = await peer.ask(RequestCode.REGISTER_BROKER, more={"brokerName": "b"})
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "brokerAddr is missing" in (response.remark or "")


async def test_version_zero_registers_without_topics(peer: Peer) -> None:
    assert (await peer.register(["T", "U"], version=0)).code == 0
    assert (await peer.route("T")).code == ResponseCode.TOPIC_NOT_EXIST
    info = ClusterInfo.decode((await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body_bytes())
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}


async def test_data_version_heartbeat_and_unregister(peer: Peer) -> None:
    query = headers.QueryDataVersionRequestHeader(
        broker_name="broker-a",
        broker_addr="10.0.0.1:10911",
        cluster_name="DefaultCluster",
        broker_id=0,
    )
    version = DataVersion(counter=1, timestamp=7)
    body = version.encode(pretty=False)
    response = await peer.ask(RequestCode.QUERY_DATA_VERSION, query, body)
    assert response.fields == {"changed": "true"}
    await peer.register(["T", "U"])
    response = await peer.ask(RequestCode.QUERY_DATA_VERSION, query, body)
    assert response.fields == {"changed": "false"}
    assert DataVersion.decode(response.body_bytes()) == version
    newer = version.next(8).encode(pretty=False)
    response = await peer.ask(RequestCode.QUERY_DATA_VERSION, query, newer)
    assert response.fields == {"changed": "true"}

    beat = headers.BrokerHeartbeatRequestHeader(
        broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="DefaultCluster"
    )
    assert (await peer.ask(RequestCode.BROKER_HEARTBEAT, beat)).code == 0
    gone = headers.UnRegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr="10.0.0.1:10911",
        cluster_name="DefaultCluster",
        broker_id=0,
    )
    assert (await peer.ask(RequestCode.UNREGISTER_BROKER, gone)).code == 0
    assert (await peer.route("T")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_broker_whose_topics_have_changed_is_alive(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slaves of Apache's ask so each second, beat in no other way, and register every 30 s."""
    now_ms = [0]
    monkeypatch.setattr(peer.server, "_now_ms", lambda: now_ms[0])
    await peer.register(["T", "U"], heartbeat_timeout_millis=10_000)
    query = headers.QueryDataVersionRequestHeader(
        broker_name="broker-a",
        broker_addr="10.0.0.1:10911",
        cluster_name="DefaultCluster",
        broker_id=0,
    )
    newer = DataVersion(counter=2, timestamp=8).encode(pretty=False)
    for _ in range(15):
        now_ms[0] += 1000
        response = await peer.ask(RequestCode.QUERY_DATA_VERSION, query, newer)
        assert response.fields == {"changed": "true"}
        assert peer.server.routes.expire(now_ms[0]) == ([], ())
    assert (await peer.route("T")).code == 0


async def test_closed_connection_removes_the_broker(peer: Peer) -> None:
    await peer.register(["T", "U"])
    async with RemotingClient() as other:
        second = Peer(peer.server, other)
        await second.register(["T", "U"], name="broker-b", addr="10.0.0.9:10911")
        assert peer.server.routes.broker_count == 2
    async with asyncio.timeout(BOUND_S):
        while peer.server.routes.broker_count != 1:  # noqa: ASYNC110 - the table has no events
            await asyncio.sleep(0)
    route = TopicRouteData.decode((await peer.route("T")).body_bytes())
    assert [data.broker_name for data in route.broker_datas] == ["broker-a"]


async def test_silent_broker_is_dropped_with_its_connection() -> None:
    config = NamesrvConfig(listen_port=0, scan_not_active_broker_interval_ms=10)
    closed = asyncio.Event()
    async with (
        NameServer(config) as server,
        RemotingClient(on_close=lambda addr, channel: closed.set()) as client,
    ):
        peer = Peer(server, client)
        await peer.register(["T", "U"])
        assert (await peer.route("T")).code == 0
        await peer.register(["T", "U"], heartbeat_timeout_millis=30)
        async with asyncio.timeout(BOUND_S):
            await closed.wait()
        assert (await peer.route("T")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_zones(peer: Peer) -> None:
    await peer.register(["T", "U"], more={"__ZONE_NAME": "east"})
    await peer.register(["T", "U"], name="broker-b", addr="b:1", more={"__ZONE_NAME": "west"})

    async def found(more: dict[str, str]) -> list[str]:
        body = (await peer.route("T", more=more)).body_bytes()
        return [data.broker_name for data in TopicRouteData.decode(body).broker_datas]

    assert await found({"__ZONE_MODE": "true", "__ZONE_NAME": "WEST"}) == ["broker-b"]
    assert await found({"__ZONE_MODE": "true", "__ZONE_NAME": "north"}) == []
    assert await found({"__ZONE_MODE": "false", "__ZONE_NAME": "west"}) == ["broker-a", "broker-b"]
    assert await found({"__ZONE_MODE": "true"}) == ["broker-a", "broker-b"]
    assert await found({"__ZONE_MODE": "true", "__ZONE_NAME": " "}) == ["broker-a", "broker-b"]


async def test_permissions(peer: Peer) -> None:
    await peer.register(["T", "U"])
    wipe = headers.WipeWritePermOfBrokerRequestHeader(broker_name="broker-a")
    response = await peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe)
    assert response.fields == {"wipeTopicCount": "2"}
    route = TopicRouteData.decode((await peer.route("T")).body_bytes())
    assert route.queue_datas[0].perm == 4
    add = headers.AddWritePermOfBrokerRequestHeader(broker_name="broker-a")
    response = await peer.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, add)
    assert response.fields == {"addTopicCount": "2"}


async def test_topic_lists(peer: Peer) -> None:
    await peer.register(["T", "U"])

    async def topics(code: int, header: CommandHeader | None = None) -> TopicList:
        response = await peer.ask(code, header)
        assert response.code == 0
        return TopicList.decode(response.body_bytes())

    assert (await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).topic_list == ["T", "U"]
    cluster = headers.GetTopicsByClusterRequestHeader(cluster="DefaultCluster")
    assert (await topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster)).topic_list == ["T", "U"]
    system = await topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert system.topic_list == ["DefaultCluster", "broker-a"]
    assert system.broker_addr == "10.0.0.1:10911"
    for code in (311, 312, 313):
        assert (await topics(code)).topic_list == []

    delete = headers.DeleteTopicFromNamesrvRequestHeader(topic="T", cluster_name="DefaultCluster")
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, delete)).code == 0
    assert (await topics(206)).topic_list == ["U"]
    route = TopicRouteData(
        queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=1)]
    )
    register = headers.RegisterTopicRequestHeader(topic="new")
    assert (
        await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, register, route.encode())
    ).code == 0
    assert (await topics(206)).topic_list == ["U", "new"]

    peer.server.config.enable_topic_list = False
    peer.server.config.enable_all_topic_list = False
    for code in (206, 311):
        assert (await peer.ask(code)).code == ResponseCode.SYSTEM_ERROR
    assert (await peer.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster)).code == 1


async def test_member_group(peer: Peer) -> None:
    await peer.register(["T", "U"])
    header = headers.GetBrokerMemberGroupRequestHeader(
        cluster_name="DefaultCluster", broker_name="broker-a"
    )
    response = await peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, header)
    group = GetBrokerMemberGroupResponseBody.decode(response.body_bytes()).broker_member_group
    assert group is not None
    assert group.broker_addrs == {0: "10.0.0.1:10911"}


async def test_kv_configuration_survives_a_restart(peer: Peer, tmp_path: Path) -> None:
    key = {"namespace": ORDER_TOPIC_CONFIG, "key": "T"}
    put = headers.PutKVConfigRequestHeader(**key, value="broker-a:4")
    get = headers.GetKVConfigRequestHeader(**key)
    whole = headers.GetKVListByNamespaceRequestHeader(namespace=ORDER_TOPIC_CONFIG)
    assert (await peer.ask(RequestCode.GET_KV_CONFIG, get)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, whole)).code == 22
    assert (await peer.ask(RequestCode.PUT_KV_CONFIG, put)).code == 0
    assert (await peer.ask(RequestCode.GET_KV_CONFIG, get)).fields == {"value": "broker-a:4"}
    response = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, whole)
    assert KVTable.decode(response.body_bytes()).table == {"T": "broker-a:4"}

    again = KvConfigTable(tmp_path / "kvConfig.json")
    again.load()
    assert again.get(ORDER_TOPIC_CONFIG, "T") == "broker-a:4"

    # Brokers and, when it is on, clients hear of it.
    response = await peer.register(["T", "U"])
    assert KVTable.decode(response.body_bytes()).table == {"T": "broker-a:4"}
    peer.server.config.order_message_enable = True
    route = TopicRouteData.decode((await peer.route("T")).body_bytes())
    assert route.order_topic_conf == "broker-a:4"

    delete = headers.DeleteKVConfigRequestHeader(**key)
    assert (await peer.ask(RequestCode.DELETE_KV_CONFIG, delete)).code == 0
    assert (await peer.ask(RequestCode.GET_KV_CONFIG, get)).code == ResponseCode.QUERY_NOT_FOUND


async def test_configuration(peer: Peer, tmp_path: Path) -> None:
    async def update(text: str) -> RemotingCommand:
        return await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, text.encode())

    response = await peer.ask(RequestCode.GET_NAMESRV_CONFIG)
    before = parse_properties(response.body_bytes())
    assert before["supportActingMaster"] == "false"
    assert (await update("supportActingMaster=true\nunheardOf=1")).code == 0
    assert peer.server.routes.options.support_acting_master
    response = await peer.ask(RequestCode.GET_NAMESRV_CONFIG)
    after = parse_properties(response.body_bytes())
    assert after == before | {"supportActingMaster": "true"}
    assert parse_properties((tmp_path / "namesrv.properties").read_bytes()) == after

    for text in (
        "kvConfigPath=/etc/passwd",
        "configStorePath=x",
        "configBlackList=",
        "rocketmqHome=/",
    ):
        response = await update(text)
        assert response.code == ResponseCode.NO_PERMISSION
        assert response.remark == "Can not update config in black list."
    assert (await update("bindAddress=0.0.0.0")).code == ResponseCode.NO_PERMISSION
    # All of a request or nothing.
    response = await update("supportActingMaster=false\nscanNotActiveBrokerInterval=soon")
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "scanNotActiveBrokerInterval" in (response.remark or "")
    assert peer.server.config.support_acting_master


async def test_routes_are_refused_while_brokers_gather(peer: Peer) -> None:
    await peer.register(["T", "U"])
    peer.server.config.need_wait_for_service = True
    response = await peer.route("T")
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "not ready" in (response.remark or "")
    peer.server.config.wait_seconds_for_service = 0
    assert (await peer.route("T")).code == 0


async def test_smallest_broker_id_is_announced_to_brokers(peer: Peer) -> None:
    heard: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    def on_notify(channel: Channel, request: RemotingCommand) -> None:
        heard.put_nowait(request)

    table = ProcessorTable()
    table.sync([RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE], on_notify)
    peer.server.routes.options.notify_min_broker_id_changed = True
    async with RemotingServer(table) as slave:
        await peer.register(["T", "U"], broker_id=1, addr=str(slave.address))
        async with asyncio.timeout(BOUND_S):
            assert (await heard.get()).is_oneway
            await peer.register(["T", "U"])
            header = (await heard.get()).header(headers.NotifyMinBrokerIdChangeRequestHeader)
    assert (header.min_broker_id, header.min_broker_addr) == (0, "10.0.0.1:10911")


async def test_a_machine_that_is_gone_keeps_no_other_from_being_told(peer: Peer) -> None:
    heard: asyncio.Queue[RemotingCommand] = asyncio.Queue()
    table = ProcessorTable()
    table.sync(
        [RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE], lambda _, request: heard.put_nowait(request)
    )
    await peer.register(["T", "U"], broker_id=3, addr="10.0.0.3:10911")
    peer.server.routes.options.notify_min_broker_id_changed = True
    with silent_address() as gone:
        async with RemotingServer(table) as slave, asyncio.timeout(BOUND_S):
            await peer.register(["T", "U"], broker_id=4, addr=gone)
            await peer.register(["T", "U"], broker_id=5, addr=str(slave.address))
            await peer.register(["T", "U"])
            await heard.get()
            assert gone in peer.server._client._connecting


async def test_changes_that_come_faster_than_they_are_told_are_few(peer: Peer) -> None:
    heard: asyncio.Queue[int | None] = asyncio.Queue()

    def on_notify(channel: Channel, request: RemotingCommand) -> None:
        header = request.header(headers.NotifyMinBrokerIdChangeRequestHeader)
        heard.put_nowait(header.min_broker_id)

    table = ProcessorTable()
    table.sync([RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE], on_notify)
    server = peer.server
    with silent_address() as gone:
        async with RemotingServer(table) as slave, asyncio.timeout(BOUND_S):
            change = MinBrokerIdChange("b", 0, "10.0.0.1:1", None, "", (gone, str(slave.address)))
            for number in range(500):
                server._announce([replace(change, min_broker_id=number)] * 3)
                await asyncio.sleep(0)
                assert len(server._announcements) <= ANNOUNCEMENTS_AT_ONCE
            told = [await heard.get()]
            while told[-1] != 499:
                told.append(await heard.get())
    assert len(told) <= 2 * ANNOUNCEMENTS_AT_ONCE


async def test_brokers_that_take_tls_only_are_told_over_tls(tmp_path: Path) -> None:
    made = make_certificate(2)
    assert made is not None
    pem = tmp_path / "own.pem"
    pem.write_bytes(made)
    heard: asyncio.Queue[Channel] = asyncio.Queue()
    table = ProcessorTable()
    table.sync(
        [RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE], lambda channel, _: heard.put_nowait(channel)
    )
    config = NamesrvConfig(
        listen_port=0,
        notify_min_broker_id_changed=True,
        tls_mode="enforcing",
        tls_cert_path=str(pem),
        tls_client_trust_cert_path=str(pem),
    )
    only_tls = ServerOptions(tls_context=load_server_context(str(pem)), tls_mode=TlsMode.ENFORCING)
    encrypted = own_requests("enforcing", "")
    async with (
        NameServer(config) as server,
        RemotingServer(table, only_tls) as slave,
        RemotingClient(options=encrypted) as client,
        asyncio.timeout(BOUND_S),
    ):
        await Peer(server, client).register(["T", "U"], broker_id=1, addr=str(slave.address))
        assert (await heard.get()).is_tls


async def test_unknown_code(peer: Peer) -> None:
    response = await peer.ask(RequestCode.SEND_MESSAGE)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert response.remark == " request type 10 not supported"


async def test_binary_requests_get_json(peer: Peer) -> None:
    reader, writer = await asyncio.open_connection(*peer.server.address)
    request = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO, serialize_type=1)
    writer.write(encode_frame_bytes(request))
    async with asyncio.timeout(BOUND_S):
        (response,) = RemotingConnection().receive_data(await reader.read(65536))
    assert response.serialize_type == 0
    writer.close()
    await writer.wait_closed()


def test_kv_file_falls_back_to_its_back_up(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    table = KvConfigTable(path)
    table.put("N", "k", "1")
    table.put("N", "k", "2")
    assert json.loads(path.read_bytes()) == {"configTable": {"N": {"k": "2"}}}
    path.write_bytes(b"{torn")
    again = KvConfigTable(path)
    again.load()
    assert again.get("N", "k") == "1"
    path.with_name("kvConfig.json.bak").write_bytes(b"{torn")
    with pytest.raises(ConfigFormatError):
        KvConfigTable(path).load()


def test_kv_limits_and_failed_writes(tmp_path: Path) -> None:
    table = KvConfigTable()
    with pytest.raises(OptionError, match="65537 bytes, allowed 65536"):
        table.put("N", "k", "x" * 65537)
    (tmp_path / "file").write_bytes(b"")
    table = KvConfigTable(tmp_path / "file" / "kvConfig.json")
    with pytest.raises(OSError, match="file"):
        table.put("N", "k", "1")
    assert table.get("N", "k") is None


def test_configuration_values_are_checked() -> None:
    with pytest.raises(OptionError, match="tlsServerMode"):
        NamesrvConfig(tls_mode="sometimes")
    with pytest.raises(OptionError, match="listenPort"):
        NamesrvConfig.of_properties({"listenPort": "70000"})
    config = NamesrvConfig.of_properties({"listenPort": "0", "useEpollNativeSelector": "true"})
    assert config.listen_port == 0


async def test_our_own_broker_is_where_the_client_dialled(peer: Peer) -> None:
    await peer.register(["Own", "Other"], addr="192.0.2.9:10911")
    request = headers.GetRouteInfoRequestHeader(topic="Own")
    peer.server.own_broker = Address("192.0.2.9", 10911)
    route = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, request)
    assert b'"127.0.0.1:10911"' in route.body_bytes()
    info = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert b'"127.0.0.1:10911"' in info.body_bytes()
    peer.server.own_broker = None
    route = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, request)
    assert b'"192.0.2.9:10911"' in route.body_bytes()


def test_what_is_kept_has_its_name_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is synced, renamed, and then its directory is synced, before anybody is answered."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        events.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        fsync(fd)

    def renamed(source: Path, target: Path) -> None:
        events.append(f"rename {Path(source).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    made = f"sync {tmp_path.name}"  # it has the name of a new directory
    KvConfigTable(tmp_path / "kv" / "kvConfig.json").put("n", "k", "v")
    events.remove("rename kvConfig.json")  # to its back-up
    assert events == [made, "sync kvConfig.json.tmp", "rename kvConfig.json.tmp", "sync kv"]
    events.clear()
    _replace_file(tmp_path / "conf" / "namesrv.conf", "a=b")
    assert events == [made, "sync namesrv.conf.tmp", "rename namesrv.conf.tmp", "sync conf"]


@pytest.mark.parametrize(("topics", "at_once"), [(10, LITTLE_AT_ONCE), (600, LONG_AT_ONCE)])
async def test_registrations_are_unpacked_some_at_a_time(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, topics: int, at_once: int
) -> None:
    """Each may unpack to 32 MiB: of twenty connections at once they took 340 MB."""
    active, most = 0, 0
    original = RegisterBrokerBody.decode_in_slices

    def decode_in_slices(*args: Any, **kwargs: Any) -> Any:
        nonlocal active, most
        active += 1
        most = max(most, active)
        try:
            for _ in range(20):
                yield
            return (yield from original(*args, **kwargs))
        finally:
            active -= 1

    monkeypatch.setattr(RegisterBrokerBody, "decode_in_slices", decode_in_slices)
    body = RegisterBrokerBody(
        DataVersion(counter=1, timestamp=7),
        {f"t{n}": RegisteredTopic(topic_name=f"t{n}") for n in range(topics)},
    ).encode()
    writers, readers = [], []
    for number in range(10):
        reader, writer = await asyncio.open_connection(*peer.server.address)
        header = headers.RegisterBrokerRequestHeader(
            broker_name=f"b{number}", broker_addr=f"10.0.0.{number}:1", cluster_name="C",
            ha_server_addr="", broker_id=0, compressed=False, body_crc32=0,
        )  # fmt: skip
        writer.write(encode_frame_bytes(create_request(RequestCode.REGISTER_BROKER, header, body)))
        readers.append(reader)
        writers.append(writer)
        if number == 0:
            while not active:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0)
            writer.close()  # what it holds is free for others
    async with asyncio.timeout(BOUND_S):
        for reader in readers[1:]:
            assert await reader.readexactly(8)
    for writer in writers:
        writer.close()
    assert most == at_once
    assert active == 0
    assert peer.server._free_registrations == {True: LITTLE_AT_ONCE, False: LONG_AT_ONCE}


async def test_a_large_namespace_is_shown_in_turns(peer: Peer) -> None:
    table = {f"key{number}": "x" for number in range(5000)}
    peer.server.kv._table = {"N": table}
    header = headers.GetKVListByNamespaceRequestHeader(namespace="N")
    request = create_request(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
    assert len(list(peer.server._kv_list(cast(Channel, None), request))) > 5
    answer = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
    assert parse_config(answer.body_bytes())["table"] == table


@pytest.mark.parametrize("version", [MQVersion.V4_9_3, MQVersion.V5_3_3])
async def test_a_route_of_many_brokers_is_shown_in_turns(peer: Peer, version: int) -> None:
    server = peer.server
    server.config.order_message_enable = True
    server.kv.put(ORDER_TOPIC_CONFIG, "T", "broker-0:4")
    for number in range(64):
        await peer.register(["T", "U"], name=f"broker-{number}", addr=f"10.0.0.{number}:10911")
    request = create_request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic="T")
    )
    request.version = version
    answered: list[RemotingCommand] = []
    channel = cast(Any, SimpleNamespace(reply=lambda _, answer: answered.append(answer)))
    assert server._little_route(channel, request)
    body = answered[0].body_bytes()
    assert (await peer.route("T", version=version)).body_bytes() == body
    assert ended(server._route_of_topic(channel, request)).body_bytes() == body
    await peer.register(["T", "U"], name="broker-64", addr="10.0.1.1:10911")
    assert not server._little_route(channel, request)
    assert len(answered) == 1
    route = server.routes.route("T")
    assert route is not None
    route.order_topic_conf = "broker-0:4"
    expected = route.encode_old() if version == MQVersion.V4_9_3 else route.encode()
    assert (await peer.route("T", version=version)).body_bytes() == expected
    assert (await peer.route("X", version=version)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_connections_that_close_together_are_swept_by_one(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that closed went on by itself: a turn of the loop swept for all of them."""
    sweeps: list[int] = []

    def sweep() -> bool:
        sweeps.append(1)
        return len(sweeps) < 9

    monkeypatch.setattr(peer.server.routes, "connection_closed", lambda channel: ())
    monkeypatch.setattr(peer.server.routes, "sweep", sweep)
    for _ in range(4):
        peer.server._on_close(cast(Channel, None))
    assert len(sweeps) == 1
    for turn in range(2, 12):
        await asyncio.sleep(0)
        assert len(sweeps) <= turn
    assert len(sweeps) == 9
    peer.server._sweep()
    assert len(sweeps) == 10


async def test_a_registration_is_answered_with_a_large_namespace_in_turns(peer: Peer) -> None:
    """Up to 32 MiB."""
    table = {f"key{number}": "x:4" for number in range(5000)}
    peer.server.kv._table = {ORDER_TOPIC_CONFIG: table}
    peer.server.config.return_order_topic_config_to_broker = True
    header = headers.RegisterBrokerRequestHeader(
        broker_name="a", broker_addr="a:1", cluster_name="C", ha_server_addr="a:2", broker_id=0
    )
    request = create_request(RequestCode.REGISTER_BROKER, header)
    channel = cast(Channel, type("Open", (), {"is_closed": False})())
    assert len(list(peer.server._register_broker(channel, request))) > 5
    answer = await peer.register(["T", "U"])
    assert answer.body_bytes() == KVTable(table=table).encode()
