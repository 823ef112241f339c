"""The slow network of the benchmarks: TCP over it is whole, both ways, and late."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import pytest
from benchmarks import replication
from benchmarks.peers.slow_network import FAR, NEAR

DELAY_MS = 50
BYTES = 300_000
BOUND_S = 60


def test_what_is_dialled_over_it_is_whole_and_late() -> None:
    why = replication.no_delay()
    if why is not None:
        pytest.skip(f"no slow network can be made here: {why}")
    done = replication.in_namespace(
        [sys.executable, "-m", "tests.broker.test_slow_network"], timeout_s=BOUND_S
    )
    assert done.returncode == 0, done.stderr
    first_ms, both_ways = done.stdout.split()
    assert float(first_ms) >= 2 * DELAY_MS
    assert int(both_ways) == 2 * BYTES


def _inside() -> None:
    """In a namespace: what was echoed, and how long the first byte took."""
    command = [sys.executable, "-m", "benchmarks.peers.slow_network", str(DELAY_MS / 1000)]
    with (
        socket.create_server(("0.0.0.0", 0)) as server,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as carrier,
    ):
        assert carrier.stdout is not None
        assert carrier.stdout.readline() == b"ready\n"

        def echo() -> None:
            peer, (host, _) = server.accept()
            assert host == FAR
            with peer:
                while data := peer.recv(1 << 16):
                    peer.sendall(data)

        threading.Thread(target=echo, daemon=True).start()
        port = server.getsockname()[1]
        with socket.create_connection((FAR, port), timeout=BOUND_S) as client:
            assert client.getsockname()[0] == NEAR
            began = time.monotonic()
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            first_ms = (time.monotonic() - began) * 1000
            sent = bytes(BYTES)
            client.sendall(sent)
            echoed = 0
            while echoed < BYTES:
                echoed += len(client.recv(1 << 16))
        sys.stdout.write(f"{first_ms} {echoed + BYTES}\n")
        assert carrier.stdin is not None
        carrier.stdin.close()


if __name__ == "__main__":
    _inside()
