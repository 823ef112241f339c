"""The gRPC port of ``oberth up`` and ``oberth broker``, as processes."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.proxy.client import GrpcClient

from oberth.cli.serve import grpc_served
from oberth.errors import OptionError
from oberth.proxy import messages as m
from oberth.proxy.codes import Code
from oberth.testing.embedded_broker import EmbeddedBroker

READY = re.compile(r"ready: .*, store (\S+), gRPC (\S+), in ([0-9.]+) s")
BOUND_S = 100.0


@asynccontextmanager
async def running(*words: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server and its ready line; ended by SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oberth", *words, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND_S):
            yield (await process.stdout.readline()).decode().strip(), process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


@pytest.mark.parametrize(
    "words", [("up", "--port", "0", "--namesrv-port", "0"), ("broker", "--port", "0")]
)
async def test_the_port_is_in_the_ready_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    store = str(tmp_path / "store")
    async with running(*words, "--store", store, "--set", "grpcServerPort=0") as (line, process):
        found = READY.fullmatch(line)
        assert found is not None, line
        async with GrpcClient(found[2]) as client:
            request = m.QueryRouteRequest()
            request.topic.name = "T"
            response = await client.call("QueryRoute", request)
            assert response.status.code == Code.TOPIC_NOT_FOUND
            stream = await client.open("Telemetry")  # an open stream does not keep it from stopping
            process.send_signal(signal.SIGTERM)
            await stream.ended.wait()
        assert await process.wait() == 0


async def test_none_unless_asked_where_the_broker_takes_any_port(tmp_path: Path) -> None:
    words = ("up", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path))
    async with running(*words) as (line, _):
        assert "gRPC" not in line


async def test_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is missing where nobody asked; else it is an error."""
    monkeypatch.setitem(sys.modules, "oberth.proxy.front", None)
    async with EmbeddedBroker({"grpcServerPort": "0"}) as mq:
        async with grpc_served(mq.broker, is_wanted=False) as words:
            assert words == ""
        assert "pip install 'oberth[grpc]'" in capsys.readouterr().err
        with pytest.raises(OptionError, match=r"oberth\[grpc\]"):
            async with grpc_served(mq.broker, is_wanted=True):
                pass


async def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    async with EmbeddedBroker(grpc=True) as mq:
        port = mq.grpc_address.partition(":")[2]
        async with EmbeddedBroker({"grpcServerPort": port}) as other:
            async with grpc_served(other.broker, is_wanted=False) as words:
                assert words == ""
            assert "--set grpcServerPort=N" in capsys.readouterr().err
            with pytest.raises(OSError, match="in use"):
                async with grpc_served(other.broker, is_wanted=True):
                    pass
