"""What a key of the controller changes: one short test for each that no other test would miss.

`tests/test_settings.py` names for every key the test that notices when it has no effect.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from oberth.controller.controller import Controller
from oberth.controller.controller_config import ControllerConfig
from oberth.errors import OberthError, OptionError

BOUND_S = 20
"""Of what happens at once; far below the defaults that these tests replace."""


async def test_where_it_listens(tmp_path: Path) -> None:
    config = ControllerConfig(listen_port=0, listen_host="127.0.0.2", store_path=str(tmp_path))
    async with Controller(config) as controller:
        assert controller.address.host == "127.0.0.2"
        assert controller.address.port != 9878


async def test_a_silent_peer_is_dropped(tmp_path: Path) -> None:
    config = ControllerConfig(
        listen_port=0, store_path=str(tmp_path), server_channel_max_idle_time_s=1
    )
    async with Controller(config) as controller:
        reader, writer = await asyncio.open_connection("127.0.0.1", controller.address.port)
        async with asyncio.timeout(BOUND_S):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("key", ["tls_cert_path", "tls_key_path"])
async def test_a_certificate_that_is_not_there(tmp_path: Path, key: str) -> None:
    there = tmp_path / "there.pem"
    there.write_text("")
    paths = {"tls_cert_path": str(there), "tls_key_path": str(there)}
    paths[key] = str(tmp_path / "missing.pem")
    config = ControllerConfig(listen_port=0, store_path=str(tmp_path), **paths)  # type: ignore[arg-type]
    with pytest.raises((OberthError, OSError), match=r"missing\.pem"):
        async with Controller(config):
            pass


def test_certificates_of_brokers_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OberthError, match=r"missing\.pem"):
        Controller(ControllerConfig(tls_client_trust_cert_path=str(tmp_path / "missing.pem")))


def test_what_the_tls_mode_may_be() -> None:
    with pytest.raises(OptionError, match="tlsServerMode: 'maybe'"):
        ControllerConfig(tls_mode="maybe")


def test_who_may_send_proxy_headers() -> None:
    with pytest.raises(OptionError, match="nonsense"):
        ControllerConfig(proxy_protocol_trusted="nonsense")


async def test_who_may_be_elected(tmp_path: Path) -> None:
    config = ControllerConfig(listen_port=0, store_path=str(tmp_path), elects_unclean=True)
    assert Controller(config).sets.elects_unclean


async def test_how_often_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(
        ControllerConfig(
            listen_port=0,
            store_path=str(tmp_path),
            scan_not_active_broker_interval_ms=2000,
            scan_inactive_master_interval_ms=3000,
        )
    )
    waits: list[float] = []
    loop = SimpleNamespace(call_later=lambda delay_s, _: waits.append(delay_s))
    monkeypatch.setattr("oberth.controller.controller.asyncio.get_running_loop", lambda: loop)
    controller._schedule_expiry()
    controller._schedule_search()
    assert waits == [2.0, 3.0]
