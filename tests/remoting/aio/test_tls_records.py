"""Records of TLS: what they carry comes in any chunks, and those that carry nothing have an end."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from oberth.remoting.aio.tls import (
    EMPTY_RECORDS_MAX,
    RECORD_HEAD_SIZE,
    RECORDS_A_TURN,
    ServerTls,
    load_server_context,
    make_certificate,
)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    pem = make_certificate(2)
    assert pem is not None
    path: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(pem)
    return load_server_context(str(path))


class Client:
    """The other end, without a socket."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.came, self.goes)

    def shake(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.goes.read()

    def connect(self, server: ServerTls, step: int) -> None:
        while not server.is_shaken:
            received(server, self.shake(), step)
            self.came.write(server.take_outgoing())


def received(server: ServerTls, data: bytes, step: int) -> bytes:
    """Plain text of data that comes piece by piece, each in the buffer of the one before."""
    plain, buffer = [], bytearray(step)
    for at in range(0, len(data), step):
        size = len(piece := data[at : at + step])
        buffer[:size] = piece
        plain.append(server.receive(memoryview(buffer)[:size])[0])
        buffer[:] = bytes(step)
        while server.has_more:
            plain.append(server.receive(b"")[0])
    return b"".join(plain)


@pytest.mark.parametrize("step", [1, 3, 1000, 1 << 20])
def test_small_records_come_in_any_chunks(context: ssl.SSLContext, step: int) -> None:
    server, client = ServerTls(context), Client()
    client.connect(server, step)
    sent = bytes(range(256)) * 10
    assert len(sent) > 4 * EMPTY_RECORDS_MAX
    for number in range(len(sent)):
        client.tls.write(sent[number : number + 1])
    client.tls.write(b"x" * 40_000)
    assert received(server, client.goes.read(), step) == sent + b"x" * 40_000


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_records_that_carry_nothing_have_an_end(context: ssl.SSLContext, step: int) -> None:
    """As changes of keys do, of which a read could bring thousands (255 ms)."""
    server, client = ServerTls(context), Client()
    hello = client.shake()
    head = hello[: RECORD_HEAD_SIZE - 2] + b"\0\1"
    pieces = [head + hello[at : at + 1] for at in range(RECORD_HEAD_SIZE, len(hello))]
    assert len(pieces) > EMPTY_RECORDS_MAX
    with pytest.raises(ssl.SSLError, match="records that carry nothing"):
        received(server, b"".join(pieces), step)
    assert not server.is_shaken


@pytest.mark.parametrize("more_at", [0, 1, 3])
def test_one_call_reads_so_many_records(context: ssl.SSLContext, more_at: int) -> None:
    """A read may hold 11 000 of one byte each (20 ms); what comes meanwhile is read behind them."""
    server, client = ServerTls(context), Client()
    client.connect(server, 1 << 20)
    count = 4 * RECORDS_A_TURN + 5
    sent = (bytes(range(251)) * count)[:count]
    for number in range(count):
        client.tls.write(sent[number : number + 1])
    data = client.goes.read()
    cut = len(data) - 30  # in the last record but one
    pieces, calls = [server.receive(data[:cut])[0]], 1
    while server.has_more or cut:
        come, cut = (data[cut:], 0) if calls > more_at and cut else (b"", cut)
        pieces.append(server.receive(come)[0])
        calls += 1
    assert b"".join(pieces) == sent
    assert max(map(len, pieces)) == RECORDS_A_TURN
