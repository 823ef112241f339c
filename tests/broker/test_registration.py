"""A broker tells every name server what it has: at the start, at a change, and when it goes."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oberth.broker import registration
from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.broker.ha_service import HAService
from oberth.broker.registration import Registration
from oberth.errors import RemotingTimeoutError
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.namesrv.route_table import RouteTable
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.registration import RegisterBrokerBody
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request
from oberth.remoting.headers.admin import CreateTopicRequestHeader

SMALL = {
    "brokerName": "broker-a",
    "listenPort": "0",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxIndexNum": "400",
    "maxHashSlotNum": "100",
}


def make(root: Path, *servers: NameServer, **settings: str) -> Broker:
    addresses = ";".join(str(server.address) for server in servers)
    config, store_config, _ = read_configs(
        {**SMALL, "storePathRootDir": str(root), "namesrvAddr": addresses, **settings}
    )
    return Broker(config, store_config)


def name_server() -> NameServer:
    return NameServer(NamesrvConfig(listen_port=0))


async def test_every_name_server_knows_the_broker_until_it_goes(tmp_path: Path) -> None:
    async with name_server() as one, name_server() as two:
        async with make(tmp_path, one, two) as broker:
            for server in (one, two):
                info = server.routes.cluster_info()
                assert info.broker_addr_table["broker-a"].broker_addrs
                assert server.routes.route("TBW102") is not None
                assert server.routes.route("New") is None
            assert broker.parts.topics.create_by_send("New", "TBW102", 2) is not None
            for server in (one, two):
                async with asyncio.timeout(100):
                    while (route := server.routes.route("New")) is None:  # noqa: ASYNC110 - remote
                        await asyncio.sleep(0.005)
                assert route.queue_datas[0].write_queue_nums == 2
        for server in (one, two):
            assert server.routes.route("TBW102") is None


async def make_topics(broker: Broker, *names: str) -> None:
    """Code 17 for one name, 18 for several."""
    client = RemotingClient()
    try:
        if len(names) == 1:
            header = CreateTopicRequestHeader(
                topic=names[0], default_topic="TBW102", read_queue_nums=1, write_queue_nums=1,
                perm=6, topic_filter_type="SINGLE_TAG", order=False,
            )  # fmt: skip
            request = create_request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        else:
            listed = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                      for name in names]  # fmt: skip
            body = json.dumps({"topicConfigList": listed}).encode()
            request = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        response = await client.invoke(str(broker.address), request, 30)
        assert response.code == ResponseCode.SUCCESS, response.remark
    finally:
        await client.aclose()


async def test_name_servers_know_a_topic_when_its_maker_is_answered(tmp_path: Path) -> None:
    async with name_server() as server, make(tmp_path, server) as broker:
        for turn in range(5):
            await make_topics(broker, f"One{turn}")
            assert server.routes.route(f"One{turn}") is not None
            await make_topics(broker, f"Two{turn}", f"Three{turn}")
            assert server.routes.route(f"Three{turn}") is not None


async def test_the_maker_of_a_topic_does_not_wait_long_for_a_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "ANNOUNCE_WAIT_S", 0.05)
    async with name_server() as server, make(tmp_path, server) as broker:
        assert broker.services.registration is not None
        reached = asyncio.Event()

        async def never(topics: set[str]) -> None:
            reached.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(broker.services.registration, "register_topics", never)
        await make_topics(broker, "New")
        assert reached.is_set()
        assert broker.services.registration.is_announcing


async def test_compressed_registrations(tmp_path: Path) -> None:
    async with name_server() as server, make(tmp_path, server, compressedRegister="true"):
        assert server.routes.route("TBW102") is not None


async def test_a_name_server_that_lost_everything_hears_it_again(tmp_path: Path) -> None:
    async with name_server() as server, make(tmp_path, server) as broker:
        assert broker.services.registration is not None
        server.routes = RouteTable(server.routes.options)
        await broker.services.registration.register_topics({"SELF_TEST_TOPIC"})
        assert server.routes.route("TBW102") is not None


async def until_known(server: NameServer, topic: str) -> None:
    async with asyncio.timeout(100):
        while server.routes.route(topic) is None:  # noqa: ASYNC110 - remote
            await asyncio.sleep(0.005)


async def test_a_single_topic_does_not_push_out_the_others(tmp_path: Path) -> None:
    config = NamesrvConfig(listen_port=0, delete_topic_with_broker_registration=True)
    async with (
        NameServer(config) as server,
        make(tmp_path, server, enableSingleTopicRegister="true") as broker,
    ):
        assert broker.parts.topics.create_by_send("New", "TBW102", 2) is not None
        await until_known(server, "New")
        route = server.routes.route("New")
        assert route is not None
        assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].perm) == (2, 6)
        assert route.broker_datas[0].broker_addrs == {0: str(broker.address)}
        assert server.routes.route("TBW102") is not None
        # Without it the table of one topic is taken for the whole: as in RocketMQ.
        broker.parts.config.enable_single_topic_register = False
        assert broker.parts.topics.create_by_send("Newer", "TBW102", 2) is not None
        await until_known(server, "Newer")
        assert server.routes.route("New") is None
        # A deleted topic goes with the next full registration.
        await broker.services.deletions.delete_topics(["Newer"])
        assert broker.services.registration is not None
        await broker.services.registration.register_all()
        assert server.routes.route("Newer") is None
        assert server.routes.route("New") is not None


async def test_a_table_in_parts_is_known_whole(tmp_path: Path) -> None:
    async with name_server() as server:
        settings = {"enableSplitRegistration": "true", "splitRegistrationSize": "2"}
        async with make(tmp_path, server, **settings) as broker:
            assert broker.services.registration is not None
            topics = {str(each.topic_name) for each in broker.parts.topics}
            assert len(topics) > 4
            assert all(server.routes.route(each) is not None for each in topics)
            # What changed in a part before the last is taken, too.
            first = next(iter(broker.parts.topics))
            broker.parts.topics.update(replace(first, read_queue_nums=5, attributes={}))
            await broker.services.registration.register_all()
            route = server.routes.route(str(first.topic_name))
            assert route is not None
            assert route.queue_datas[0].read_queue_nums == 5
            known = server.routes.data_version("broker-a", str(broker.address))
            assert known == broker.parts.topics.data_version


@pytest.mark.parametrize("compressed", ["true", "false"])
async def test_a_large_table_is_made_beside_the_loop_for_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: str
) -> None:
    made_in: list[int] = []
    of_configs = RegisterBrokerBody.of_configs

    def watched(*args: Any, **named: Any) -> RegisterBrokerBody:
        made_in.append(threading.get_ident())
        return of_configs(*args, **named)

    monkeypatch.setattr(RegisterBrokerBody, "of_configs", watched)
    async with (
        name_server() as server,
        make(tmp_path, server, compressedRegister=compressed) as broker,
    ):
        keeper = broker.services.registration
        with broker.services.table_files.topics_written_soon:
            for number in range(registration.LARGE_TABLE + 1):
                broker.parts.topics.create_internal(f"t{number}", 1)
        await until_known(server, f"t{registration.LARGE_TABLE}")
        await keeper.announced()
        await keeper.register_all()
        made_in.clear()
        await keeper.register_all()
        assert made_in == [], "the name server has this version"
        server.routes = RouteTable(server.routes.options)
        await keeper.register_all()
        assert made_in
        assert threading.get_ident() not in made_in
        assert server.routes.route("t0") is not None


async def test_without_a_name_server_a_broker_serves_all_the_same(tmp_path: Path) -> None:
    config, store_config, _ = read_configs(
        {**SMALL, "storePathRootDir": str(tmp_path), "namesrvAddr": "127.0.0.1:1"}
    )
    async with Broker(config, store_config) as broker:
        assert broker.server is not None


async def test_a_topic_made_during_the_first_registration_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_all = Registration.register_all

    async def then_make_a_topic(self: Registration) -> None:
        await register_all(self)
        broker.parts.topics.create_by_send("Early", "TBW102", 2)

    monkeypatch.setattr(Registration, "register_all", then_make_a_topic)
    async with name_server() as server:
        broker = make(tmp_path, server)
        async with broker:
            assert broker.services.registration is not None
            await broker.services.registration.announced()
            assert server.routes.route("Early") is not None


async def test_what_a_name_server_did_not_take_is_sent_again_before_the_period_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RETRY_S", 0.01)
    async with (
        name_server() as server,
        make(tmp_path, server, registerNameServerPeriod="60000") as broker,
    ):
        invoke = RemotingClient.invoke
        failures = iter(range(3))

        async def at_the_fourth(
            self: RemotingClient, address: str, request: RemotingCommand, timeout_s: float
        ) -> RemotingCommand:
            if request.code == RequestCode.REGISTER_BROKER and next(failures, None) is not None:
                raise RemotingTimeoutError("not now")
            return await invoke(self, address, request, timeout_s)

        monkeypatch.setattr(RemotingClient, "invoke", at_the_fourth)
        assert broker.parts.topics.create_by_send("New", "TBW102", 2) is not None
        async with asyncio.timeout(40):
            await until_known(server, "New")
        assert next(failures, None) is None


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_a_slave_that_starts_before_its_master_finds_it_before_the_period_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Also where a name server that has its table already need not hear of it again."""
    monkeypatch.setattr(registration, "RETRY_S", 0.01)
    monkeypatch.setattr(registration, "LARGE_TABLE", 0 if large else 500)
    found = asyncio.Event()
    master_found = HAService.master_found

    def noted(self: HAService, master_address: str | None, ha_address: str | None) -> None:
        master_found(self, master_address, ha_address)
        if not self.lacks_master:
            found.set()

    monkeypatch.setattr(HAService, "master_found", noted)
    period = {"registerNameServerPeriod": "60000"}
    role = {"brokerId": "1", "brokerRole": "SLAVE"}
    async with name_server() as server, make(tmp_path / "slave", server, **period, **role) as slave:
        assert not found.is_set()
        async with make(tmp_path / "master", server, **period, brokerRole="SYNC_MASTER") as master:
            async with asyncio.timeout(40):
                await found.wait()
            assert slave.services.ha.master_ha_address == f"127.0.0.1:{master.services.ha.port}"
