"""What benchmarks/grpc.py starts before a broker waits for it; what ends is told."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.grpc import Side, first_ack
from tests.rigs.clusters import Node

from oberth.errors import PeerUnavailableError

LISTEN = """
import pathlib, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    pathlib.Path("listens").touch()
    while True:
        server.accept()
"""
LOOK = """
import pathlib, sys
print("first line")
sys.exit("the broker is " + ("there" if pathlib.Path(sys.argv[1]).exists() else "missing"))
"""


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    """A broker that only listens, and before it what looks whether it is there, and ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = tmp_path / "broker"
    broker = Node("broker-a", f"127.0.0.1:{port}", place, [sys.executable, "-c", LISTEN, port])
    look = [sys.executable, "-c", LOOK, str(place / "listens")]
    front = Node("proxy", "127.0.0.1:1", tmp_path / "proxy", look)
    cluster = SimpleNamespace(name_servers=[], brokers=[broker], namesrv_addr="127.0.0.1:1")
    made = Side("cluster", cluster, front.address, [broker, front], front)
    yield made
    for node in made.nodes:
        node.kill()


def test_a_front_is_started_when_its_broker_is_there(side: Side) -> None:
    with pytest.raises(PeerUnavailableError, match=r"(?s)cluster: proxy ended.*broker is there"):
        first_ack(side)
