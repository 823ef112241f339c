"""What the first requests of a process cost: a server imports beside its loop what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SERVER = r"""
import asyncio, builtins, sys
from concurrent.futures import ThreadPoolExecutor

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.controller.controller import Controller
from oberth.controller.controller_config import ControllerConfig
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.command import RemotingCommand

ODD_JSON = b"{'a':Set[1],}"
SETTINGS = {
    "brokerName": "a", "listenPort": "0", "fastListenPort": "0", "haListenPort": "0",
    "mappedFileSizeCommitLog": str(4 << 20), "mappedFileSizeConsumeQueue": "60000",
    "maxIndexNum": "5000", "maxHashSlotNum": "1000",
}
SEND = {
    "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "KEYS\x01k\x02", "j": "0", "k": "false", "m": "false",
}
BROKER = {
    "brokerName": "x", "brokerAddr": "192.0.2.1:1", "clusterName": "c", "brokerId": "0",
    "haServerAddr": "192.0.2.1:2", "compressed": "false", "bodyCrc32": "0",
}


def server_of(kind, directory):
    if kind == "broker":
        return Broker(*read_configs({**SETTINGS, "storePathRootDir": directory})[:2])
    if kind == "namesrv":
        return NameServer(NamesrvConfig(listen_port=0))
    return Controller(ControllerConfig(listen_port=0, store_path=directory))


def requests_of(kind):
    if kind == "broker":
        yield RemotingCommand(code=34, body=ODD_JSON)
        for _ in range(1000):
            yield RemotingCommand(code=310, ext_fields=SEND, body=bytes(100))
        yield RemotingCommand(code=11, ext_fields={"topic": "T"})
    elif kind == "namesrv":
        yield RemotingCommand(code=103, ext_fields=BROKER, body=ODD_JSON)
    else:
        yield RemotingCommand(code=1001, body=ODD_JSON)


async def main(kind, directory):
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with server_of(kind, directory) as server, RemotingClient() as client:
        await loop.run_in_executor(None, lambda: None)  # behind what the server has begun
        before = set(sys.modules)
        await asyncio.gather(
            *(client.invoke(str(server.address), each, 60) for each in requests_of(kind))
        )
        print(*sorted(name for name in set(sys.modules) - before if "oberth" in name))


asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["broker", "namesrv", "controller"])
def test_first_requests_import_nothing(kind: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SERVER, kind, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []
