"""Answers of the gRPC port that nobody takes: what they may hold, and whose connection ends."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hyperframe.frame import DataFrame, SettingsFrame, WindowUpdateFrame
from tests.proxy.client import framed
from tests.proxy.test_http2 import BOUND_S, Raw, ask, client_of, serving
from tests.proxy.test_http2_cases import until

from oberth.proxy import http2
from oberth.proxy.http2 import GrpcChannel
from oberth.proxy.server import GrpcServer
from oberth.remoting.aio import service
from oberth.remoting.first_bytes import TrustedProxies

WINDOW_MAX = 2**31 - 1
OPEN_WINDOWS = (
    SettingsFrame(0, settings={4: WINDOW_MAX}).serialize()
    + WindowUpdateFrame(0, WINDOW_MAX - 65_535).serialize()
)


def asking(raw: Raw, stream_id: int, size: int) -> bytes:
    """A call whose answer has about so many bytes."""
    body = framed(str(size).encode())
    return (
        raw.headers(stream_id, "/m") + DataFrame(stream_id, body, flags=["END_STREAM"]).serialize()
    )


def begun(raw: Raw, size: int) -> bytes:
    """A call with so many bytes of a message that has more."""
    data = struct.pack(">BI", 0, 4 << 20) + b"x" * size
    return raw.headers(1) + b"".join(
        DataFrame(1, data[first : first + 16_384]).serialize()
        for first in range(0, len(data), 16_384)
    )


async def channel_of(server: GrpcServer, raw: Raw) -> GrpcChannel:
    port = raw.writer.get_extra_info("sockname")[1]
    await until(lambda: any(each.remote.port == port for each in server.channels))
    (channel,) = (each for each in server.channels if each.remote.port == port)
    return channel


async def test_what_waits_in_sockets_counts_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "WRITE_HIGH", 1 << 30)  # all of an answer goes to the socket
    limit = 40 << 20
    async with serving(held_bytes_max=limit) as server:
        peers = [Raw(server) for _ in range(8)]
        channels = []
        for raw in peers:
            await raw.__aenter__()
            channels.append(await channel_of(server, raw))
            raw.writer.write(OPEN_WINDOWS + asking(raw, 1, 20 << 20))
            await until(lambda: server.calls.total() == len(channels))
            await until(lambda: not any(each.calls for each in channels))
            assert sum(each.unsent_bytes for each in server.channels) <= limit
        assert 0 < len(server.channels) < len(peers)
        assert await ask(server) == b"hello"
        for raw in peers:
            await raw.__aexit__()
        await until(lambda: not server.channels)
        assert server._budget.used == 0


async def test_who_takes_nothing_is_ended_with_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, Raw(server) as raw, client_of(server) as other:
        raw.writer.write(OPEN_WINDOWS + raw.headers(1) + asking(raw, 3, 32 << 20))
        channel = await channel_of(server, raw)
        stream = await other.open("/a")
        await until(lambda: not channel.peer_reads)
        server._close_idle()
        assert channel in server.channels
        monkeypatch.setattr(service, "UNREAD_S", 0.0)
        server._close_idle()
        await until(lambda: channel not in server.channels)
        assert server.channels
        await stream.cancel()


async def test_who_fills_the_budget_from_many_connections_is_closed_himself() -> None:
    options = {"held_bytes_max": 700_000, "proxies": TrustedProxies("127.0.0.1")}
    async with serving(**options) as server:
        mine = Raw(server, b"PROXY TCP4 192.0.2.8 127.0.0.1 4000 8081\r\n")
        greedy = [
            Raw(server, b"PROXY TCP4 192.0.2.7 127.0.0.1 %d 8081\r\n" % number)
            for number in range(4000, 4020)
        ]
        await mine.__aenter__()
        mine.writer.write(begun(mine, 100_000))
        await until(lambda: any(each.held > 100_000 for each in server.channels))
        (channel,) = server.channels
        for raw in greedy:
            await raw.__aenter__()
            raw.writer.write(begun(raw, 40_000))
        await until(lambda: len(server.channels) < 21 and server._budget.used > 600_000)
        assert channel in server.channels
        assert server._budget.used <= 700_000
        mine.writer.write(DataFrame(1, b"x", flags=["END_STREAM"]).serialize())
        await until(lambda: not channel.calls)
        for raw in (mine, *greedy):
            await raw.__aexit__()


async def test_a_window_that_opens_lets_as_much_out_as_the_peer_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2, "SLICE_S", 60.0)
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(SettingsFrame(0, settings={4: 0}).serialize() + asking(raw, 1, 64 << 20))
        channel = await channel_of(server, raw)
        await until(lambda: channel._blocked)
        raw.writer.write(SettingsFrame(0, settings={5: (1 << 24) - 1}).serialize() + OPEN_WINDOWS)
        await until(lambda: not channel.peer_reads)
        assert channel.unsent_bytes <= http2.WRITE_HIGH + (1 << 20)


async def test_a_turn_of_the_loop_writes_so_much_to_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2, "SLICE_S", 60.0)
    written: list[int] = []
    flush, write = GrpcChannel._flush, GrpcChannel._write

    def watched_flush(channel: GrpcChannel) -> None:
        written.append(0)
        flush(channel)

    def watched_write(channel: GrpcChannel, data: bytes) -> None:
        if written:
            written[-1] += len(data)
        write(channel, data)

    monkeypatch.setattr(GrpcChannel, "_flush", watched_flush)
    monkeypatch.setattr(GrpcChannel, "_write", watched_write)
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(OPEN_WINDOWS + asking(raw, 1, 16 << 20))
        await raw.until(b"grpc-status")
    assert sum(written) > 16 << 20
    assert max(written) <= http2.FLUSHED_A_TURN + 2 * http2.WRITTEN_AT_ONCE


async def test_who_takes_nothing_does_not_keep_the_server_from_closing() -> None:
    async with serving() as server, Raw(server) as raw:
        channel = await channel_of(server, raw)
        assert channel._transport is not None
        channel._transport.write(bytes(16 << 20))
        async with asyncio.timeout(BOUND_S):
            await server.aclose()
        assert not server.channels
