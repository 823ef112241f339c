"""A controller on loopback, asked with the frames that brokers and mqadmin send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.rigs.silent import silent_address

from oberth.controller.controller import NAMES_MAX, Controller
from oberth.controller.controller_config import ControllerConfig
from oberth.controller.state_log import FILE_NAME
from oberth.errors import OptionError, RemotingError
from oberth.formats.java_properties import parse_properties
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import RemotingServer
from oberth.remoting.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    SyncStateSet,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request
from oberth.remoting.headers import controller as headers
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.namesrv import BrokerHeartbeatRequestHeader

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


class Replica:
    """What a broker does towards a controller; its own port hears of elections."""

    def __init__(self, controller: Controller, number: int) -> None:
        self.addr = str(controller.address)
        self.number = number
        self.client = RemotingClient()
        self.heard: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        table = ProcessorTable()
        table.sync([RequestCode.NOTIFY_BROKER_ROLE_CHANGED], self._on_role)
        self.server = RemotingServer(table)

    def _on_role(self, channel: Channel, request: RemotingCommand) -> None:
        del channel
        self.heard.put_nowait(request)

    async def __aenter__(self) -> Replica:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()
        await self.server.aclose()

    async def die(self) -> None:
        """Close the connection to the controller."""
        await self.client.aclose()
        self.client = RemotingClient()

    async def ask(
        self, code: RequestCode, header: CommandHeader | None = None, body: bytes = b""
    ) -> RemotingCommand:
        request = create_request(code, header, body=body)
        return await self.client.invoke(self.addr, request, timeout_s=BOUND_S)

    async def join(self) -> None:
        """Take the id, register, live."""
        apply = headers.ApplyBrokerIdRequestHeader(
            cluster_name="c",
            broker_name="b",
            applied_broker_id=self.number,
            register_check_code=f"{self.server.address};{self.number}",
        )
        answer = await self.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, apply)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        register = headers.RegisterBrokerToControllerRequestHeader(
            cluster_name="c",
            broker_name="b",
            broker_id=self.number,
            broker_address=str(self.server.address),
        )
        answer = await self.ask(RequestCode.CONTROLLER_REGISTER_BROKER, register)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await self.live()

    async def live(self, timeout_ms: int = 60_000, **more: int) -> RemotingCommand:
        beat = BrokerHeartbeatRequestHeader(
            cluster_name="c",
            broker_addr=str(self.server.address),
            broker_name="b",
            broker_id=self.number,
            heartbeat_timeout_mills=timeout_ms,
            **more,
        )
        return await self.ask(RequestCode.BROKER_HEARTBEAT, beat)

    async def elect(self, number: int | None = None, *, designate: bool = False) -> RemotingCommand:
        header = headers.ElectMasterRequestHeader(
            cluster_name="c",
            broker_name="b",
            broker_id=self.number if number is None else number,
            designate_elect=designate,
        )
        return await self.ask(RequestCode.CONTROLLER_ELECT_MASTER, header)

    async def sync(self, epoch: int, set_epoch: int, *ids: int) -> RemotingCommand:
        header = headers.AlterSyncStateSetRequestHeader(
            broker_name="b", master_broker_id=self.number, master_epoch=epoch, invoke_time=1
        )
        body = SyncStateSet(sync_state_set=list(ids), sync_state_set_epoch=set_epoch).encode()
        return await self.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)

    async def told(self) -> headers.NotifyBrokerRoleChangedRequestHeader:
        """The next role change that the controller tells of."""
        request = await asyncio.wait_for(self.heard.get(), BOUND_S)
        return request.header(headers.NotifyBrokerRoleChangedRequestHeader)


def config(directory: Path, **more: object) -> ControllerConfig:
    """On a free port; nobody is looked at by the clock unless told."""
    settings = {
        "scan_not_active_broker_interval_ms": 600_000,
        "scan_inactive_master_interval_ms": 600_000,
        **more,
    }
    return ControllerConfig(listen_port=0, store_path=str(directory), **settings)  # type: ignore[arg-type]


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    async with Controller(config(tmp_path)) as running:
        yield running


async def test_a_replica_in_sync_takes_over_when_the_connection_of_the_master_ends(
    controller: Controller,
) -> None:
    async with Replica(controller, 1) as first, Replica(controller, 2) as second:
        await first.join()
        answer = await first.elect()
        assert answer.code == ResponseCode.SUCCESS
        body = ElectMasterResponseBody.decode(answer.body_bytes())
        assert body.sync_state_set == [1]
        assert (await first.told()).master_broker_id == 1
        await second.join()
        assert (await second.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        answer = await first.sync(1, 1, 1, 2)
        assert answer.code == ResponseCode.SUCCESS
        changed = answer.header(headers.AlterSyncStateSetResponseHeader)
        assert changed.new_sync_state_set_epoch == 2
        await first.die()
        told = await second.told()
        assert (told.master_broker_id, told.master_epoch) == (2, 2)
        assert told.master_address == str(second.server.address)
        info = await second.ask(
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            headers.GetReplicaInfoRequestHeader(broker_name="b"),
        )
        assert info.header(headers.GetReplicaInfoResponseHeader).master_broker_id == 2
        assert SyncStateSet.decode(info.body_bytes()).sync_state_set == [2]
        # The old master comes back, and is told who is master now.
        assert (await first.sync(1, 2, 1, 2)).code == ResponseCode.CONTROLLER_INVALID_MASTER


async def test_a_silent_master_is_replaced(tmp_path: Path) -> None:
    settings = config(tmp_path, scan_not_active_broker_interval_ms=10)
    async with (
        Controller(settings) as controller,
        Replica(controller, 1) as first,
        Replica(controller, 2) as second,
    ):
        await first.join()
        await second.join()
        await first.elect()
        assert (await second.told()).master_broker_id == 1
        assert (await first.sync(1, 1, 1, 2)).code == ResponseCode.SUCCESS
        await first.live(timeout_ms=1)
        assert (await second.told()).master_broker_id == 2


async def test_a_name_without_master_gets_one_as_soon_as_a_replica_in_sync_lives(
    controller: Controller,
) -> None:
    async with Replica(controller, 1) as first, Replica(controller, 2) as second:
        await first.join()
        await second.join()
        await first.elect()
        await first.told()
        await first.die()
        while (await second.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            pass  # the end of the connection has not been seen yet
        failed = await second.elect()
        assert failed.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        await first.live()
        assert (await first.told()).master_epoch == 2


async def test_what_was_answered_outlives_a_kill(tmp_path: Path) -> None:
    async with (
        Controller(config(tmp_path / "a")) as controller,
        Replica(controller, 1) as first,
    ):
        await first.join()
        await first.elect()
        answer = await first.sync(1, 1, 1)
        assert answer.code == ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        kept = (tmp_path / "a" / FILE_NAME).read_bytes()
        before = dict(controller.sets.sets)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE_NAME).write_bytes(kept)
    async with Controller(config(tmp_path / "b")) as controller:
        assert controller.sets.sets == before


async def test_nothing_is_seen_that_the_disk_does_not_have(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Replica(controller, 1) as first:
        await first.join()
        before = dict(controller.sets.sets)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device", "controller.log")

        with monkeypatch.context() as broken:
            broken.setattr(controller._log, "append", full)
            answer = await first.elect()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "No space left on device" in (answer.remark or "")
        assert controller.sets.sets == before
        assert (await first.elect()).code == ResponseCode.SUCCESS


async def test_an_election_by_hand(controller: Controller) -> None:
    async with Replica(controller, 1) as first, Replica(controller, 2) as second:
        await first.join()
        await second.join()
        await first.elect()
        await first.sync(1, 1, 1, 2)
        answer = await first.elect(2, designate=True)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.header(headers.ElectMasterResponseHeader).master_broker_id == 2


async def test_questions(controller: Controller) -> None:
    async with Replica(controller, 1) as first:
        await first.join()
        await first.elect()
        meta = await first.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
        assert meta.fields == {
            "group": "group1",
            "controllerLeaderId": "n0",
            "controllerLeaderAddress": first.addr,
            "isLeader": "true",
            "peers": f"n0:{first.addr}",
        }
        names = json.dumps(["b", "x"]).encode()
        data = await first.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=names)
        table = BrokerReplicasInfo.decode(data.body_bytes()).replicas_info_table
        assert list(table) == ["b"]
        assert table["b"].in_sync_replicas[0].broker_address == str(first.server.address)
        next_id = await first.ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            headers.GetNextBrokerIdRequestHeader(cluster_name="c", broker_name="b"),
        )
        assert next_id.fields["nextBrokerId"] == "2"
        for body in (b"{}", b"[1]", b"\xff", json.dumps(["b"] * (NAMES_MAX + 1)).encode()):
            refused = await first.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
            assert refused.code == ResponseCode.SYSTEM_ERROR
        nameless = create_request(
            RequestCode.BROKER_HEARTBEAT,
            BrokerHeartbeatRequestHeader(cluster_name="c", broker_addr="a", broker_name="b"),
        )
        answer = await first.client.invoke(first.addr, nameless, timeout_s=BOUND_S)
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST


async def test_heartbeats_of_strangers_are_not_kept(controller: Controller) -> None:
    async with Replica(controller, 1) as stranger:
        for number in range(100):
            stranger.number = number
            assert (await stranger.live()).code == ResponseCode.SUCCESS
        assert not controller._liveness._heard


async def test_settings_by_request(controller: Controller) -> None:
    async with Replica(controller, 1) as peer:
        answer = await peer.ask(RequestCode.GET_CONTROLLER_CONFIG)
        found = parse_properties(answer.body_bytes(), name="answer")
        assert found["enableElectUncleanMaster"] == "false"
        changed = await peer.ask(
            RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n"
        )
        assert changed.code == ResponseCode.SUCCESS
        assert controller.sets.elects_unclean
        for body, code in (
            (b"controllerStorePath=/tmp/elsewhere\n", ResponseCode.NO_PERMISSION),
            (b"enableElectUncleanMaster=maybe\n", ResponseCode.SYSTEM_ERROR),
        ):
            refused = await peer.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, body=body)
            assert refused.code == code
        assert controller.config.store_path != "/tmp/elsewhere"


async def test_only_named_addresses_may_connect(tmp_path: Path) -> None:
    async with (
        Controller(config(tmp_path, allowed_addresses="10.0.0.0/8")) as controller,
        Replica(controller, 1) as peer,
    ):
        with pytest.raises(RemotingError):
            await peer.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    with pytest.raises(OptionError, match="controllerAllowedAddresses"):
        config(tmp_path, allowed_addresses="nowhere")


async def test_brokers_are_not_told_where_that_is_switched_off(tmp_path: Path) -> None:
    async with (
        Controller(config(tmp_path, notifies=False)) as controller,
        Replica(controller, 1) as first,
        Replica(controller, 2) as second,
    ):
        await first.join()
        await second.join()
        assert (await first.elect()).code == ResponseCode.SUCCESS
        assert (await first.sync(1, 1, 1, 2)).code == ResponseCode.SUCCESS
        controller.config.notifies = True
        assert (await first.elect(2, designate=True)).code == ResponseCode.SUCCESS
        assert (await first.told()).master_epoch == 2


async def test_a_machine_that_is_gone_keeps_no_other_from_hearing_of_the_election(
    controller: Controller,
) -> None:
    async with Replica(controller, 1) as first, Replica(controller, 2) as second:
        await first.join()
        await second.join()
        await first.elect()
        await first.told()
        await second.told()
        assert (await first.sync(1, 1, 1, 2)).code == 0
        with silent_address() as gone:
            register = headers.RegisterBrokerToControllerRequestHeader(
                cluster_name="c", broker_name="b", broker_id=1, broker_address=gone
            )
            await first.ask(RequestCode.CONTROLLER_REGISTER_BROKER, register)
            await first.die()
            assert (await second.told()).master_broker_id == 2
            assert gone in controller._client._connecting
