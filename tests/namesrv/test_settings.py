"""What a key of the name server changes: one short test for each that no other test would miss.

`tests/test_settings.py` names for every key the test that notices when it has no effect.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from oberth.errors import OberthError, OptionError
from oberth.formats.data_version import DataVersion
from oberth.namesrv.kv_config import ORDER_TOPIC_CONFIG
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.registration import RegisterBrokerBody
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.headers import namesrv as headers

BOUND_S = 20
"""Of what happens at once; far below the defaults that these tests replace."""


async def test_a_silent_peer_is_dropped() -> None:
    config = NamesrvConfig(listen_port=0, server_channel_max_idle_time_s=1)
    async with NameServer(config) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        async with asyncio.timeout(BOUND_S):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("key", ["tls_cert_path", "tls_key_path"])
async def test_a_certificate_that_is_not_there(tmp_path: Path, key: str) -> None:
    there = tmp_path / "there.pem"
    there.write_text("")
    paths = {"tls_cert_path": str(there), "tls_key_path": str(there)}
    paths[key] = str(tmp_path / "missing.pem")
    with pytest.raises((OberthError, OSError), match=r"missing\.pem"):
        async with NameServer(NamesrvConfig(listen_port=0, **paths)):  # type: ignore[arg-type]
            pass


def test_certificates_of_brokers_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OberthError, match=r"missing\.pem"):
        NameServer(NamesrvConfig(tls_client_trust_cert_path=str(tmp_path / "missing.pem")))


async def test_where_it_listens() -> None:
    async with NameServer(NamesrvConfig(listen_port=0, listen_host="127.0.0.2")) as server:
        assert server.address.host == "127.0.0.2"
        assert server.address.port != 9876


def test_who_may_send_proxy_headers() -> None:
    with pytest.raises(OptionError, match="nonsense"):
        NamesrvConfig(proxy_protocol_trusted="nonsense")


@pytest.mark.parametrize("tells", [True, False])
async def test_registrations_are_told_the_order_of_topics(tells: bool) -> None:
    config = NamesrvConfig(listen_port=0, return_order_topic_config_to_broker=tells)
    async with NameServer(config) as server, RemotingClient() as client:
        server.kv.put(ORDER_TOPIC_CONFIG, "T", "broker-a:4")
        body = RegisterBrokerBody(DataVersion(counter=1, timestamp=7), {}).encode()
        header = headers.RegisterBrokerRequestHeader(
            broker_name="broker-a",
            broker_addr="10.0.0.1:10911",
            cluster_name="C",
            ha_server_addr="10.0.0.1:10912",
            broker_id=0,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        request = create_request(RequestCode.REGISTER_BROKER, header, body)
        answer = await client.invoke(str(server.address), request, BOUND_S)
        assert answer.code == ResponseCode.SUCCESS
        assert (b"broker-a:4" in answer.body_bytes()) == tells


def test_what_the_routes_do() -> None:
    config = NamesrvConfig(
        listen_port=0,
        delete_topic_with_broker_registration=True,
        notify_min_broker_id_changed=True,
        support_acting_master=True,
    )
    options = NameServer(config).routes.options
    assert options.delete_topic_with_broker_registration
    assert options.notify_min_broker_id_changed
    assert options.support_acting_master


def test_what_a_peer_may_not_change() -> None:
    assert (
        "supportActingMaster" in NamesrvConfig(config_black_list="supportActingMaster").black_list
    )


def test_how_often_it_looks_for_silent_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NameServer(NamesrvConfig(listen_port=0, scan_not_active_broker_interval_ms=2000))
    waits: list[float] = []
    loop = SimpleNamespace(call_later=lambda delay_s, _: waits.append(delay_s))
    monkeypatch.setattr("oberth.namesrv.name_server.asyncio.get_running_loop", lambda: loop)
    server._schedule_expiry()
    assert waits == [2.0]
