"""The relay that stands in for a slow network in the benchmarks: whole, in order, and late."""

from __future__ import annotations

import random
import socket
import threading

from benchmarks.peers import relay
from benchmarks.peers.relay import DelayingRelay

DELAY_S = 1000.0
BOUND_S = 60


def test_everything_comes_in_order_both_ways_and_each_piece_waits() -> None:
    waits: list[float] = []
    asked = random.Random(1).randbytes(2 * relay.WINDOW_BYTES)
    heard: list[bytes] = []

    def answer() -> None:
        peer, _ = server.accept()
        with peer, peer.makefile("rb") as stream:
            heard.append(stream.read())  # to the end of that direction
            peer.sendall(heard[0][::-1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer)
        answering.start()
        slow = DelayingRelay(f"127.0.0.1:{server.getsockname()[1]}", DELAY_S, wait=waits.append)
        host, _, port = slow.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=BOUND_S) as client:
            client.sendall(asked)
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as stream:
                assert stream.read() == asked[::-1]
        answering.join(BOUND_S)
        slow.close()
    assert heard == [asked]
    assert len(waits) > 2
    assert all(0 < each <= DELAY_S for each in waits)


def test_who_dials_where_nobody_listens_hears_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    slow = DelayingRelay(nobody, DELAY_S, wait=lambda _: None)
    host, _, port = slow.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=BOUND_S) as client:
        assert client.recv(1) == b""
    slow.close()
