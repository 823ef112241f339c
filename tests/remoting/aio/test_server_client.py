"""Server and client over loopback: bursts, both directions, time-outs, TLS, back pressure, closing.

Each test drives real sockets; what must happen is awaited, nothing is slept for.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import cast

import pytest
from tests.rigs.silent import silent_address

from oberth.errors import (
    OptionError,
    RemotingConnectError,
    RemotingError,
    RemotingSendRequestError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
)
from oberth.remoting.aio import descriptors, processors, service
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.channel_options import ChannelOptions
from oberth.remoting.aio.client import ClientOptions, RemotingClient
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import ALONE_MAX, RemotingServer, ServerOptions
from oberth.remoting.aio.stage import Stage
from oberth.remoting.aio.tls import TlsMode, load_client_context, server_context
from oberth.remoting.code import MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import (
    ONEWAY_FLAG,
    RemotingCommand,
    create_request,
    create_response,
    encode_frame_bytes,
)
from oberth.remoting.connection import RemotingConnection
from oberth.remoting.first_bytes import PROXY_V2_SIGNATURE, TrustedProxies
from oberth.remoting.headers.pull import GetMaxOffsetRequestHeader
from oberth.remoting.refusal import Refusal

StartServer = Callable[..., Awaitable[RemotingServer]]
StartClient = Callable[..., RemotingClient]

ECHO = 7001
ASK_BACK = 7002
SLOW = 7003
FAIL = 7004
BURST = 7005
SILENT = 7006
SLICED = 7007

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


def echo(channel: Channel, request: RemotingCommand) -> RemotingCommand:
    return create_response(request, 0, ext_fields=request.fields, body=request.body)


def echo_table() -> ProcessorTable:
    table = ProcessorTable()
    table.sync([ECHO], echo)
    return table


async def read_commands(reader: asyncio.StreamReader, count: int) -> list[RemotingCommand]:
    connection = RemotingConnection()
    commands: list[RemotingCommand] = []
    async with asyncio.timeout(BOUND_S):
        while len(commands) < count:
            data = await reader.read(65536)
            assert data, "the server closed"
            commands += connection.receive_data(data)
    return commands


async def test_echo(start_server: StartServer, start_client: StartClient) -> None:
    server = await start_server(echo_table())
    client = start_client()
    body = bytes(range(256)) * 40_000
    request = RemotingCommand(code=ECHO, ext_fields={"ä": "ü"}, body=body)
    response = await client.invoke(str(server.address), request, BOUND_S)
    assert (response.code, response.fields, response.body) == (0, {"ä": "ü"}, body)
    assert len(server.channels) == 1


async def test_many_at_once_are_matched_by_number(
    start_server: StartServer, start_client: StartClient
) -> None:
    server = await start_server(echo_table())
    client = start_client()
    responses = await asyncio.gather(
        *(
            client.invoke(str(server.address), RemotingCommand(code=ECHO, body=b"%d" % n), BOUND_S)
            for n in range(500)
        )
    )
    assert [response.body for response in responses] == [b"%d" % n for n in range(500)]
    assert len(server.channels) == 1


async def test_burst_reaches_the_handler_together(start_server: StartServer) -> None:
    sizes = []

    def handler(
        channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        sizes.append(len(requests))
        return [create_response(request, 0, body=b"%d" % request.opaque) for request in requests]

    table = echo_table()
    table.burst([BURST], handler)
    server = await start_server(table)
    reader, writer = await asyncio.open_connection(*server.address)
    codes = [BURST, BURST, BURST, ECHO, BURST, BURST]
    frames = [
        encode_frame_bytes(RemotingCommand(code=code, opaque=n)) for n, code in enumerate(codes)
    ]
    writer.write(b"".join(frames))
    responses = await read_commands(reader, 6)
    assert [response.opaque for response in responses] == [0, 1, 2, 3, 4, 5]
    # One read brought all six; the one with another processor stands between two runs.
    assert sizes == [3, 2]
    writer.close()
    await writer.wait_closed()


async def test_reads_of_many_connections_in_one_turn_are_one_burst(
    start_server: StartServer,
) -> None:
    """Twenty peers ask at once, ten times over; each hears its own answers, in its order."""
    bursts: list[list[Channel]] = []

    def handler(
        channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        bursts.append(list(channels))
        return [create_response(request, 0, body=request.body) for request in requests]

    table = echo_table()
    table.burst([BURST], handler)
    server = await start_server(table)
    peers = [await asyncio.open_connection(*server.address) for _ in range(20)]
    for turn in range(10):
        for number, (_, writer) in enumerate(peers):
            for code in (BURST, ECHO, BURST) if number % 5 == 4 else (BURST, BURST):
                body = b"%d of %d" % (turn, number)
                writer.write(encode_frame_bytes(RemotingCommand(code=code, opaque=turn, body=body)))
        for number, (reader, _) in enumerate(peers):
            answers = await read_commands(reader, 3 if number % 5 == 4 else 2)
            assert {(a.opaque, a.body) for a in answers} == {(turn, b"%d of %d" % (turn, number))}
    assert max(len(set(burst)) for burst in bursts) > 1
    assert all(len(set(burst)) <= 20 for burst in bursts)
    # A peer that is alone again is served at once: its burst holds nobody else.
    bursts.clear()
    reader, writer = peers[0]
    for n in range(ALONE_MAX + 5):
        writer.write(encode_frame_bytes(RemotingCommand(code=BURST, opaque=n)))
        assert (await read_commands(reader, 1))[0].opaque == n
    assert [len(burst) for burst in bursts] == [1] * (ALONE_MAX + 5)
    assert not server._gathers
    for _, writer in peers:
        writer.close()
        await writer.wait_closed()


async def test_a_connection_that_ends_in_the_turn_that_it_asked_in(
    start_server: StartServer,
) -> None:
    """One-way requests of a peer that closes at once are served, with those of the others."""
    seen: list[int] = []

    def handler(
        channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        seen.extend(request.opaque for request in requests)
        return [create_response(request, 0) for request in requests]

    gone = asyncio.Event()
    table = ProcessorTable()
    table.burst([BURST], handler)
    server = await start_server(table, on_close=lambda _: gone.set())
    for turn in range(5):
        peers = [await asyncio.open_connection(*server.address) for _ in range(10)]
        for number, (_, writer) in enumerate(peers):
            request = RemotingCommand(code=BURST, opaque=100 * turn + number)
            request.flag |= ONEWAY_FLAG
            writer.write(encode_frame_bytes(request))
            writer.close()
        for _, writer in peers:
            await writer.wait_closed()
        async with asyncio.timeout(BOUND_S):
            while server.channels:
                gone.clear()
                await gone.wait()
    assert sorted(seen) == sorted(100 * turn + number for turn in range(5) for number in range(10))


async def test_oneway_hears_nothing(start_server: StartServer, start_client: StartClient) -> None:
    seen = []

    def handler(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        seen.append(request.code)
        return create_response(request, 0)

    def fail(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        raise ValueError("never told")

    table = echo_table()
    table.sync([SILENT], handler)
    table.sync([FAIL], fail)
    server = await start_server(table)
    reader, writer = await asyncio.open_connection(*server.address)
    for code in (SILENT, FAIL, 9999):
        writer.write(encode_frame_bytes(RemotingCommand(code=code, flag=ONEWAY_FLAG)))
    writer.write(encode_frame_bytes(RemotingCommand(code=ECHO, opaque=9)))
    (response,) = await read_commands(reader, 1)
    assert response.opaque == 9
    assert seen == [SILENT]
    writer.close()
    await writer.wait_closed()


async def test_who_was_accepted_just_before_the_end_is_let_go(start_server: StartServer) -> None:
    server = await start_server(echo_table())
    await server.aclose()
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(server._make_channel, ours)
        async with asyncio.timeout(BOUND_S):
            assert await loop.sock_recv(theirs, 1) == b""
    assert not server.channels


async def test_a_posted_request_waits_for_nobody(
    start_server: StartServer, start_client: StartClient
) -> None:
    seen: asyncio.Queue[int] = asyncio.Queue()
    table = ProcessorTable()
    table.sync([SILENT], lambda _, request: seen.put_nowait(request.version))
    server = await start_server(table)
    client = start_client()
    with silent_address() as gone:
        for number in (1, 2):
            client.post(gone, RemotingCommand(code=SILENT, version=number))
            client.post(str(server.address), RemotingCommand(code=SILENT, version=number))
            async with asyncio.timeout(BOUND_S):
                assert await seen.get() == number
        assert list(client._posting) == [gone]
        await client.aclose()
    assert not client._posting
    client.post(str(server.address), RemotingCommand(code=SILENT, version=3))
    assert not client._posting


async def test_both_directions_on_one_connection(
    start_server: StartServer, start_client: StartClient
) -> None:
    async def ask_back(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        answer = await channel.invoke(RemotingCommand(code=ECHO, body=b"who?"), BOUND_S)
        channel.invoke_oneway(create_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED))
        return create_response(request, 0, body=answer.body_bytes() + b"!")

    notified = asyncio.Event()

    def on_notify(channel: Channel, request: RemotingCommand) -> None:
        assert request.is_oneway
        notified.set()

    table = ProcessorTable()
    table.async_([ASK_BACK], ask_back, stage=Stage("ask", tasks=4))
    server = await start_server(table)
    client_table = echo_table()
    client_table.sync([RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], on_notify)
    client = start_client(client_table)
    response = await client.invoke(str(server.address), RemotingCommand(code=ASK_BACK), BOUND_S)
    assert response.body == b"who?!"
    async with asyncio.timeout(BOUND_S):
        await notified.wait()


async def test_errors_become_codes(
    start_server: StartServer, start_client: StartClient, caplog: pytest.LogCaptureFixture
) -> None:
    def needs_header(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        request.header(GetMaxOffsetRequestHeader)
        return None

    def fail(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        raise KeyError("lost")

    def burst(
        channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        raise KeyError("burst")

    table = ProcessorTable()
    table.sync([SLOW], needs_header)
    table.sync([FAIL], fail)
    table.burst([BURST], burst)
    server = await start_server(table)
    client = start_client()
    addr = str(server.address)
    response = await client.invoke(addr, RemotingCommand(code=4711))
    assert (response.code, response.remark) == (3, " request type 4711 not supported")
    response = await client.invoke(addr, RemotingCommand(code=SLOW))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "topic is missing" in (response.remark or "")
    response = await client.invoke(addr, RemotingCommand(code=FAIL))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert (response.remark or "").startswith("KeyError: 'lost', fail at test_server_client.py:")
    response = await client.invoke(addr, RemotingCommand(code=BURST))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "code 7004 failed" in caplog.text


async def test_time_out_and_late_response(
    start_server: StartServer, start_client: StartClient
) -> None:
    held: list[tuple[Channel, RemotingCommand]] = []

    def hold(channel: Channel, request: RemotingCommand) -> None:
        held.append((channel, request))

    table = echo_table()
    table.sync([SILENT], hold)
    server = await start_server(table)
    client = start_client()
    addr = str(server.address)
    with pytest.raises(RemotingTimeoutError, match=r"to code 7006 within \d+ ms"):
        await client.invoke(addr, RemotingCommand(code=SILENT), 0.05)
    # Sent again, with a later deadline than another that is set first: each has its own.
    long = asyncio.ensure_future(client.invoke(addr, RemotingCommand(code=SILENT), BOUND_S))
    with pytest.raises(RemotingTimeoutError):
        await client.invoke(addr, RemotingCommand(code=SILENT), 0.05)
    for channel, request in held:
        channel.reply(request, create_response(request, 0, body=b"late"))
    assert (await long).body == b"late"
    assert (await client.invoke(addr, RemotingCommand(code=ECHO))).code == 0


async def test_too_many_open_requests(start_server: StartServer, start_client: StartClient) -> None:
    table = ProcessorTable()
    table.sync([SILENT], lambda channel, request: None)
    server = await start_server(table)
    client = start_client(None, ClientOptions(channel=ChannelOptions(open_request_max=2)))
    channel = await client.channel(str(server.address))
    first = [channel.invoke_nowait(RemotingCommand(code=SILENT), 0.01) for _ in range(2)]
    with pytest.raises(RemotingTooMuchRequestError, match=r"2 requests open .* allowed 2"):
        channel.invoke_nowait(RemotingCommand(code=SILENT), 1)
    await asyncio.gather(*first, return_exceptions=True)
    assert channel.open_request_count == 0


async def test_connection_lost_fails_open_requests_and_next_call_reconnects(
    start_server: StartServer, start_client: StartClient
) -> None:
    def hang_up(channel: Channel, request: RemotingCommand) -> None:
        channel.abort()

    table = echo_table()
    table.sync([SILENT], hang_up)
    server = await start_server(table)
    client = start_client()
    addr = str(server.address)
    with pytest.raises(RemotingSendRequestError, match="before the response to code 7006"):
        await client.invoke(addr, RemotingCommand(code=SILENT), BOUND_S)
    assert (await client.invoke(addr, RemotingCommand(code=ECHO), BOUND_S)).code == 0


async def test_connect_errors(start_client: StartClient) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    client = start_client()
    with pytest.raises(RemotingConnectError, match=rf"127\.0\.0\.1:{port}"):
        await client.invoke(f"127.0.0.1:{port}", RemotingCommand(code=ECHO))
    await client.aclose()
    with pytest.raises(RemotingConnectError, match="closed"):
        await client.invoke(f"127.0.0.1:{port}", RemotingCommand(code=ECHO))


async def test_hostile_frame_closes_only_its_connection(start_server: StartServer) -> None:
    server = await start_server(echo_table())
    good_reader, good_writer = await asyncio.open_connection(*server.address)
    for hostile in (b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x0d\0\0\0\x09{not json"):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(hostile)
        async with asyncio.timeout(BOUND_S):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
    good_writer.write(encode_frame_bytes(RemotingCommand(code=ECHO, opaque=1)))
    assert len(await read_commands(good_reader, 1)) == 1
    good_writer.close()
    await good_writer.wait_closed()


async def test_stage_answers_overload_and_time_out(
    start_server: StartServer, start_client: StartClient
) -> None:
    release = threading.Event()

    def slow(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        assert release.wait(BOUND_S)
        return create_response(request, 0)

    table = ProcessorTable()
    stage = Stage("send", threads=1, queue_max=2, wait_ms_max=30)
    table.sync([SLOW], slow, stage=stage)
    server = await start_server(table)
    client = start_client()
    channel = await client.channel(str(server.address))
    first, second, third, fourth = (
        channel.invoke_nowait(RemotingCommand(code=SLOW), BOUND_S) for _ in range(4)
    )
    overload = await fourth
    assert overload.code == ResponseCode.SYSTEM_BUSY
    assert (overload.remark or "").startswith(
        "[OVERLOAD]system busy, start flow control for a while: stage send has 2 requests waiting, "
        "allowed 2; its head has waited"
    )
    for expired in (await second, await third):
        assert expired.code == ResponseCode.SYSTEM_BUSY
        assert (expired.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
        assert "slow stage: send, allowed 30ms" in (expired.remark or "")
    release.set()
    assert (await first).code == 0
    assert (stage.queue_size, stage.working) == (0, 0)
    (server_channel,) = server.channels
    assert server_channel.in_work == 0


async def test_processor_that_rejects(start_server: StartServer, start_client: StartClient) -> None:
    table = ProcessorTable()
    table.sync([ECHO], echo, reject=lambda: "page cache busy for 1203 ms")
    server = await start_server(table)
    response = await start_client().invoke(str(server.address), RemotingCommand(code=ECHO))
    assert response.code == ResponseCode.SYSTEM_BUSY
    assert (response.remark or "").startswith("[REJECTREQUEST]system busy")
    assert "page cache busy for 1203 ms" in (response.remark or "")


async def test_a_rejection_has_its_own_code(
    start_server: StartServer, start_client: StartClient
) -> None:
    def echo_in_slices(
        channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand | None]:
        yield
        return echo(channel, request)

    table = ProcessorTable()
    refusal = Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "not yet", {"since": "7"})
    reasons: list[Refusal | None] = [refusal, None]
    table.sliced([ECHO], echo_in_slices, reject=lambda: reasons.pop(0))
    server = await start_server(table)
    client = start_client()
    refused = await client.invoke(str(server.address), RemotingCommand(code=ECHO))
    assert (refused.code, refused.remark, refused.fields) == (14, "not yet", {"since": "7"})
    assert (await client.invoke(str(server.address), RemotingCommand(code=ECHO))).code == 0


async def test_threads_serve_at_once_and_reply_in_one_go(
    start_server: StartServer, start_client: StartClient
) -> None:
    barrier = threading.Barrier(4)

    def meet(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        barrier.wait(BOUND_S)
        return create_response(request, 0)

    table = ProcessorTable()
    table.sync([SLOW], meet, stage=Stage("meet", threads=4))
    server = await start_server(table)
    client = start_client()
    responses = await asyncio.gather(
        *(client.invoke(str(server.address), RemotingCommand(code=SLOW), BOUND_S) for _ in range(8))
    )
    assert {response.code for response in responses} == {0}


async def test_tls_and_plain_text_on_one_port(
    start_server: StartServer,
    start_client: StartClient,
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_context, client_context = tls_contexts
    server = await start_server(echo_table(), ServerOptions(tls_context=server_context))
    plain = start_client()
    encrypted = start_client(None, ClientOptions(tls_context=client_context))
    body = bytes(1_000_000)
    for client in (plain, encrypted):
        request = RemotingCommand(code=ECHO, body=body)
        response = await client.invoke(str(server.address), request, BOUND_S)
        assert response.body == body
    assert sorted(channel.is_tls for channel in server.channels) == [False, True]


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.ENFORCING])
async def test_tls_modes(
    mode: TlsMode,
    start_server: StartServer,
    start_client: StartClient,
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server_context, client_context = tls_contexts
    options = ServerOptions(tls_context=server_context, tls_mode=mode)
    addr = str((await start_server(echo_table(), options)).address)
    plain = start_client()
    encrypted = start_client(None, ClientOptions(tls_context=client_context))
    good, bad = (encrypted, plain) if mode is TlsMode.ENFORCING else (plain, encrypted)
    assert (await good.invoke(addr, RemotingCommand(code=ECHO))).code == 0
    said = "take plain text only" if mode is TlsMode.DISABLED else "closed before the response"
    with pytest.raises((RemotingConnectError, RemotingSendRequestError), match=said):
        await bad.invoke(addr, RemotingCommand(code=ECHO))


async def test_tls_with_who_answers_something_else(start_client: StartClient) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(64))
        writer.close()

    client = start_client(None, ClientOptions(tls_context=load_client_context()))
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RemotingConnectError, match="does it take plain text only"):
            await client.channel(f"127.0.0.1:{port}")


def proxied_options(trusted: str) -> ServerOptions:
    return ServerOptions(channel=ChannelOptions(proxies=TrustedProxies(trusted)), grace_s=1.0)


@pytest.mark.parametrize(
    ("header", "remote"),
    [
        (b"PROXY TCP4 10.1.2.3 127.0.0.1 50123 10911\r\n", "10.1.2.3:50123"),
        (b"PROXY TCP6 ::ffff:10.1.2.3 ::1 50123 10911\r\n", "10.1.2.3:50123"),
    ],
)
async def test_a_trusted_proxy_gives_the_address(
    start_server: StartServer, header: bytes, remote: str
) -> None:
    server = await start_server(echo_table(), proxied_options("192.0.2.1; 127.0.0.0/8"))
    reader, writer = await asyncio.open_connection(*server.address)
    frame = encode_frame_bytes(RemotingCommand(code=ECHO))
    for byte in header + frame:
        writer.write(bytes([byte]))
    await read_commands(reader, 1)
    (channel,) = server.channels
    assert str(channel.remote) == remote
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("trusted", ["", "192.0.2.1,2001:db8::/32"])
@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 10.1.2.3 127.0.0.1 50123 10911\r\n",
        PROXY_V2_SIGNATURE + b"\x21\x11\x00\x0c" + bytes(12),
    ],
)
async def test_other_peers_cannot_send_a_proxy_header(
    start_server: StartServer, caplog: pytest.LogCaptureFixture, header: bytes, trusted: str
) -> None:
    served = []
    table = ProcessorTable()
    table.sync([ECHO], lambda channel, request: served.append(1))
    server = await start_server(table, proxied_options(trusted) if trusted else None)
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(header + encode_frame_bytes(RemotingCommand(code=ECHO)))
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert not served
    assert "a PROXY header from 127.0.0.1, allowed from the addresses in proxyProt" in caplog.text
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_back_pressure_stops_reading(start_server: StartServer) -> None:
    served = 0
    body = bytes(100_000)

    def big(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        nonlocal served
        served += 1
        return create_response(request, 0, body=body)

    table = ProcessorTable()
    table.sync([ECHO], big)
    options = ServerOptions(
        channel=ChannelOptions(write_high_bytes=200_000, write_low_bytes=100_000)
    )
    server = await start_server(table, options)
    peer = socket.socket()
    # A small window: how much the kernel would take by itself differs from machine to machine.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, tuple(server.address))
    reader, writer = await asyncio.open_connection(sock=peer)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    count = 600
    frames = [encode_frame_bytes(RemotingCommand(code=ECHO, opaque=n)) for n in range(count)]
    # One at a time, each with its own turn of the loop: a burst would be served as a whole.
    for frame in frames:
        writer.write(frame)
        await asyncio.sleep(0)
    (channel,) = server.channels
    async with asyncio.timeout(BOUND_S):
        while not channel._read_paused:  # noqa: ASYNC110 - set by the transport, without an event
            await asyncio.sleep(0)
    assert served < count
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len(await read_commands(reader, count)) == count
    assert served == count
    writer.close()
    await writer.wait_closed()


async def test_idle_connections_are_closed(
    start_server: StartServer, start_client: StartClient
) -> None:
    gone = asyncio.Event()
    table = echo_table()
    options = ServerOptions(channel=ChannelOptions(idle_timeout_s=0.05))
    server = RemotingServer(table, options, on_close=lambda channel: gone.set())
    async with server:
        client = start_client()
        # Who is held up before it asks is idle, too.
        with contextlib.suppress(RemotingError):
            await client.invoke(str(server.address), RemotingCommand(code=ECHO))
        async with asyncio.timeout(BOUND_S):
            await gone.wait()
            while server.channels:
                gone.clear()
                await gone.wait()


async def test_going_away(start_server: StartServer, start_client: StartClient) -> None:
    server = await start_server(echo_table())
    client = start_client()
    addr = str(server.address)
    await client.invoke(addr, RemotingCommand(code=ECHO))
    first = client.channel_nowait(addr)
    server.processors.going_away = True
    old = RemotingCommand(code=ECHO, version=int(MQVersion.V4_9_8))
    assert (await client.invoke(addr, old)).code == 0
    assert client.channel_nowait(addr) is first
    response = await client.invoke(addr, RemotingCommand(code=ECHO))
    assert response.code == ResponseCode.GO_AWAY
    assert client.channel_nowait(addr) is not first


async def test_a_connection_that_is_left_is_closed_when_nothing_is_open_on_it(
    start_server: StartServer,
) -> None:
    """It stayed for good where the last request that was open on it was never answered."""
    asked: list[int] = []

    def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        asked.append(request.code)
        if request.code == SILENT:
            return None
        return create_response(request, ResponseCode.GO_AWAY if asked.count(ECHO) == 1 else 0)

    table = ProcessorTable()
    table.sync([SILENT, ECHO], answer)
    server = await start_server(table)
    addr = str(server.address)
    async with RemotingClient(options=ClientOptions(timeout_s=BOUND_S)) as client:
        channel = await client.channel(addr)
        silent = channel.invoke_nowait(RemotingCommand(code=SILENT), 0.05)
        assert (await client.invoke(addr, RemotingCommand(code=ECHO))).code == 0
        assert client.channel_nowait(addr) is not channel
        client._close_idle()
        assert channel.is_closed == (channel.open_request_count == 0)
        with pytest.raises(RemotingTimeoutError):
            await silent
        client._close_idle()
        async with asyncio.timeout(BOUND_S):
            await channel.wait_closed()
            while len(server.channels) != 1:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0)
        assert client.channel_nowait(addr) is not None


async def test_who_keeps_idle_connections_closes_those_that_it_has_left(
    start_server: StartServer,
) -> None:
    """Nobody looked at them: the timer ran for idle ones alone."""
    release = asyncio.Event()

    async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        await release.wait()
        return create_response(request, 0)

    table = echo_table()
    table.async_([SLOW], answer, stage=Stage("slow", tasks=1))
    server = await start_server(table)
    addr = str(server.address)
    options = ClientOptions(channel=ChannelOptions(idle_timeout_s=0), timeout_s=BOUND_S)
    async with RemotingClient(options=options) as client:
        channel = await client.channel(addr)
        timer = client._idle_timer
        assert timer is not None
        assert 0 < timer.when() - asyncio.get_running_loop().time() < 31
        slow = channel.invoke_nowait(RemotingCommand(code=SLOW), BOUND_S)
        client.leave(addr, channel)
        client._close_idle()
        assert channel.hears
        release.set()
        assert (await slow).code == 0
        kept = await client.channel(addr)
        kept.last_active = -1e9
        client._close_idle()
        assert channel.is_closed
        assert not kept.is_closed


async def test_closing_finishes_what_is_at_work(start_client: StartClient) -> None:
    started, release = threading.Event(), threading.Event()

    def slow(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        started.set()
        assert release.wait(BOUND_S)
        return create_response(request, 0, body=b"done")

    table = ProcessorTable()
    table.sync([SLOW], slow, stage=Stage("slow", threads=1))
    server = RemotingServer(table)
    await server.start()
    client = start_client()
    pending = asyncio.ensure_future(
        client.invoke(str(server.address), RemotingCommand(code=SLOW), BOUND_S)
    )
    assert await asyncio.get_running_loop().run_in_executor(None, started.wait, BOUND_S)
    closing = asyncio.ensure_future(server.aclose())
    await asyncio.sleep(0)
    release.set()
    assert (await pending).body == b"done"
    await closing
    assert not server.channels


async def test_fast_port_shares_stages_and_leaves_codes_out(
    start_server: StartServer, start_client: StartClient
) -> None:
    table = echo_table()
    table.sync([SLOW], echo, stage=Stage("pull", threads=1))
    fast = table.without([SLOW])
    assert fast.codes == {ECHO}
    assert fast.stages == table.stages
    server = RemotingServer(fast, owns_processors=False)
    async with server:
        client = start_client()
        assert (await client.invoke(str(server.address), RemotingCommand(code=SLOW))).code == 3
    await table.aclose()


async def test_unfinished_frames_are_limited_together(start_server: StartServer) -> None:
    options = ServerOptions(unfinished_bytes_max=150_000)
    server = await start_server(echo_table(), options)
    good_reader, good_writer = await asyncio.open_connection(*server.address)
    readers = []
    writers = []
    # A long frame that begins and does not end, on each of two connections.
    beginning = b"\x00\x10\x00\x00" + bytes(100_000)
    for _ in range(2):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(beginning)
        await writer.drain()
        readers.append(reader)
        writers.append(writer)
    async with asyncio.timeout(BOUND_S):
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(reader.read()) for reader in readers],
            return_when=asyncio.FIRST_COMPLETED,
        )
    assert len(done) == 1
    good_writer.write(encode_frame_bytes(RemotingCommand(code=ECHO, opaque=1)))
    assert len(await read_commands(good_reader, 1)) == 1
    for writer in [*writers, good_writer]:
        writer.close()
    async with asyncio.timeout(BOUND_S):
        while server._budget.used:  # noqa: ASYNC110 - connections close in their own time
            await asyncio.sleep(0)


async def test_who_holds_most_is_closed_not_who_came_last(start_server: StartServer) -> None:
    server = await start_server(echo_table(), ServerOptions(unfinished_bytes_max=200_000))
    greedy = [await asyncio.open_connection(*server.address) for _ in range(3)]
    for _, writer in greedy:
        writer.write(b"\x00\x10\x00\x00" + bytes(60_000))
    async with asyncio.timeout(BOUND_S):
        while server._budget.used < 180_000:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)
    reader, writer = await asyncio.open_connection(*server.address)
    frame = encode_frame_bytes(RemotingCommand(code=ECHO, opaque=1, body=bytes(55_000)))
    writer.write(frame[:50_000])
    async with asyncio.timeout(BOUND_S):
        await asyncio.wait(
            [asyncio.ensure_future(each.read()) for each, _ in greedy],
            return_when=asyncio.FIRST_COMPLETED,
        )
    writer.write(frame[50_000:])
    assert [each.opaque for each in await read_commands(reader, 1)] == [1]
    for _, each in [*greedy, (reader, writer)]:
        each.close()


async def test_who_does_not_read_is_closed_before_others_suffer(start_server: StartServer) -> None:
    server = await start_server(echo_table(), ServerOptions(unsent_bytes_max=3 << 20))
    deaf, writer = await asyncio.open_connection(*server.address, limit=1)
    frame = encode_frame_bytes(RemotingCommand(code=ECHO, body=bytes(1 << 20)))
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(BOUND_S):
            while True:
                writer.write(frame)
                await writer.drain()
    assert not [each for each in server.channels if each.unsent_bytes]
    reader, good = await asyncio.open_connection(*server.address)
    good.write(encode_frame_bytes(RemotingCommand(code=ECHO, opaque=1)))
    assert len(await read_commands(reader, 1)) == 1
    writer.close()
    good.close()
    del deaf


@pytest.mark.parametrize(
    ("code", "piece_size", "piece_count"),
    [(ECHO, 1 << 20, 1), (SLICED, 1 << 20, 1), (SLOW, 1 << 20, 1), (ECHO, 4096, 256)],
)
async def test_who_takes_no_answers_is_given_no_more(
    start_server: StartServer, code: int, piece_size: int, piece_count: int
) -> None:
    """All that was decoded was answered: up to 512 requests of one write, whatever they ask for."""
    body = [bytes(piece_size)] * piece_count

    def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return create_response(request, 0, body=body)

    def sliced(
        channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        yield
        return answer(channel, request)

    stage = Stage("slow", threads=1)
    table = ProcessorTable()
    table.sync([ECHO], answer)
    table.sliced([SLICED], sliced)
    table.sync([SLOW], answer, stage=stage)
    server = await start_server(table)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, tuple(server.address))
    reader, writer = await asyncio.open_connection(sock=peer)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    frames = [encode_frame_bytes(RemotingCommand(code=code, opaque=n)) for n in range(40)]
    writer.write(b"".join(frames))
    async with asyncio.timeout(BOUND_S):
        while not [each for each in server.channels if each._write_paused]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while stage.working or stage.queue_size:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)
    (channel,) = server.channels
    for _ in range(100):
        await asyncio.sleep(0)
        assert channel.unsent_bytes < channel._options.write_high_bytes + (1 << 20) + 1000
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    answers = await read_commands(reader, len(frames))
    assert [each.opaque for each in answers] == list(range(len(frames)))
    assert {len(each.body) for each in answers} == {1 << 20}
    assert (channel.in_work, channel.in_work_bytes) == (0, 0)
    writer.close()


async def test_short_answers_are_counted_before_it_is_asked_for_more(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was shorter than what is written first, and all of a read were more than 4 MiB."""
    monkeypatch.setattr(processors, "TURN_S", BOUND_S)
    served: list[int] = []

    def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        served.append(request.opaque)
        return create_response(request, 0, body=bytes(60_000))

    table = ProcessorTable()
    table.sync([ECHO], answer)
    server = await start_server(table)
    reader, writer = await asyncio.open_connection(*server.address)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    frames = [encode_frame_bytes(RemotingCommand(code=ECHO, opaque=n)) for n in range(400)]
    writer.write(b"".join(frames))
    async with asyncio.timeout(BOUND_S):
        while not [each for each in server.channels if each._write_paused]:  # noqa: ASYNC110
            await asyncio.sleep(0)
    (channel,) = server.channels
    for _ in range(100):
        await asyncio.sleep(0)
        assert channel.unsent_bytes < channel._options.write_high_bytes + (1 << 17)
    assert len(served) < len(frames)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    answers = await read_commands(reader, len(frames))
    assert [each.opaque for each in answers] == served == list(range(len(frames)))
    writer.close()


async def test_what_lasts_is_served_when_who_takes_nothing_closes(
    start_server: StartServer,
) -> None:
    """Its last words stood behind requests whose answers it did not take."""
    served: list[int] = []

    def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        served.append(request.opaque)
        return create_response(request, 0, body=bytes(1 << 20))

    table = ProcessorTable()
    table.sync([ECHO, SILENT], answer)
    table.let_last([SILENT])
    server = await start_server(table)
    _, writer = await asyncio.open_connection(*server.address, limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    asked = [RemotingCommand(code=ECHO, opaque=n) for n in range(40)]
    last = [RemotingCommand(code=SILENT, opaque=n, flag=ONEWAY_FLAG) for n in (98, 99)]
    writer.write(b"".join(map(encode_frame_bytes, [*asked, *last])))
    async with asyncio.timeout(BOUND_S):
        while not [each for each in server.channels if each._write_paused]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert 98 not in served
        writer.transport.abort()
        while 99 not in served:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)
    assert served[-2:] == [98, 99]
    assert len(served) < len(asked)


async def test_who_takes_nothing_does_not_keep_what_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An end in order waits for the peer, for ever: answers that nobody counted any more."""
    monkeypatch.setattr(service, "UNREAD_S", 0.0)
    async with RemotingServer(echo_table()) as server:
        deaf, writer = await asyncio.open_connection(*server.address, limit=1)
        frame = encode_frame_bytes(RemotingCommand(code=ECHO, body=bytes(1 << 20)))
        async with asyncio.timeout(BOUND_S):
            while not [each for each in server.channels if each.unsent_bytes]:
                writer.write(frame)
                await asyncio.sleep(0.01)
            (channel,) = server.channels
            channel.close()
            assert channel.unsent_bytes
            server._close_idle()
            while server.channels:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        writer.transport.abort()
        del deaf


async def test_very_many_idle_connections_are_closed_in_turns(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOKED_AT_A_TURN", 3)
    server = await start_server(echo_table())
    peers = [await asyncio.open_connection(*server.address) for _ in range(10)]
    async with asyncio.timeout(BOUND_S):
        while len(server.channels) < 10:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)
    channels = list(server.channels)
    for channel in channels[:8]:
        channel.last_active -= 1000
    closed = [0]
    server._close_idle()
    for _ in range(4):
        closed.append(sum(channel.is_closed for channel in channels))
        await asyncio.sleep(0)
    assert closed == [0, 3, 6, 8, 8]
    assert not any(channel.is_closed for channel in channels[8:])
    async with asyncio.timeout(BOUND_S):
        for reader, writer in peers[:8]:
            assert await reader.read() == b""
            writer.close()
    for _, writer in peers[8:]:
        writer.close()
    again = cast("asyncio.TimerHandle", server._idle_timer)
    assert again.when() > asyncio.get_running_loop().time()


async def test_a_look_at_connections_ends_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOOKED_AT_A_TURN", 1)
    async with RemotingServer(echo_table()) as server:
        peers = [await asyncio.open_connection(*server.address) for _ in range(3)]
        async with asyncio.timeout(BOUND_S):
            while len(server.channels) < 3:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0)
        server._close_idle()
        on_its_way = server._idle_timer
    assert on_its_way is not None
    assert on_its_way.cancelled()
    for _, writer in peers:
        writer.close()


@pytest.mark.parametrize("where", ["body", "header"])
async def test_requests_that_wait_are_limited(start_server: StartServer, where: str) -> None:
    release = threading.Event()

    def slow(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        assert release.wait(BOUND_S)
        return create_response(request, 0)

    table = ProcessorTable()
    table.sync([SLOW], slow, stage=Stage("slow", threads=1))
    server = await start_server(
        table, ServerOptions(channel=ChannelOptions(in_work_bytes_max=1_500_000))
    )
    reader, writer = await asyncio.open_connection(*server.address)
    for number in range(9):
        request = RemotingCommand(code=SLOW, opaque=number)
        if where == "body":
            request.body = bytes(1_000_000)
        else:
            request.ext_fields = {"x": "y" * 1_000_000}
        writer.write(encode_frame_bytes(request))
    async with asyncio.timeout(BOUND_S):
        while not [each for each in server.channels if each._read_paused]:  # noqa: ASYNC110
            await asyncio.sleep(0)
    (channel,) = server.channels
    assert channel.in_work < 9
    assert channel.in_work_bytes > 1_500_000
    release.set()
    assert [each.opaque for each in await read_commands(reader, 9)] == list(range(9))
    assert (channel.in_work, channel.in_work_bytes) == (0, 0)
    writer.close()


async def test_half_a_tls_handshake_is_ended(
    start_server: StartServer, tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    options = ServerOptions(
        tls_context=tls_contexts[0],
        channel=ChannelOptions(handshake_timeout_s=0.01, idle_timeout_s=0),
    )
    server = await start_server(echo_table(), options)
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
    async with asyncio.timeout(BOUND_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_junk_on_many_connections(start_server: StartServer) -> None:
    server = await start_server(echo_table())
    generator = random.Random(17)

    async def bother() -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        with contextlib.suppress(ConnectionError):
            writer.write(generator.randbytes(generator.randrange(1, 3000)))
            writer.write_eof()
            await reader.read()
        writer.close()

    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*(bother() for _ in range(100)))
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(encode_frame_bytes(RemotingCommand(code=ECHO)))
        assert len(await read_commands(reader, 1)) == 1
    writer.close()


async def test_tls_without_a_certificate(
    start_server: StartServer, start_client: StartClient
) -> None:
    pytest.importorskip("cryptography")
    options = ServerOptions(tls_context=server_context(TlsMode.PERMISSIVE))
    server = await start_server(echo_table(), options)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    client = start_client(None, ClientOptions(tls_context=context))
    assert (await client.invoke(str(server.address), RemotingCommand(code=ECHO), BOUND_S)).code == 0
    assert server_context(TlsMode.DISABLED) is None
    with pytest.raises(OptionError, match=r"nowhere\.pem"):
        server_context(TlsMode.PERMISSIVE, "nowhere.pem")


async def test_a_first_handshake_does_not_hold_the_loop(
    start_server: StartServer,
    start_client: StartClient,
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """A certificate takes long to make: a thread does, once for all who wait for it."""
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> ssl.SSLContext | None:
        made.append(threading.get_ident())
        begun.set()
        assert go_on.wait(BOUND_S)
        if len(made) == 1:
            raise OSError(28, "no space for it")
        return tls_contexts[0]

    server = await start_server(echo_table(), ServerOptions(tls_context=make))
    options = ClientOptions(tls_context=tls_contexts[1])

    async def ask(client: RemotingClient) -> RemotingCommand:
        return await client.invoke(str(server.address), RemotingCommand(code=ECHO), BOUND_S)

    async def ask_in_secret(count: int) -> list[RemotingCommand | BaseException]:
        clients = [start_client(None, options) for _ in range(count)]
        asked = [asyncio.create_task(ask(client)) for client in clients]
        await asyncio.to_thread(begun.wait, BOUND_S)
        answer = await ask(start_client())  # in plain text, meanwhile
        assert answer.code == 0
        go_on.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    (failed,) = await ask_in_secret(1)
    assert isinstance(failed, RemotingError)
    begun.clear()
    go_on.clear()
    answers = await ask_in_secret(3)
    assert [each.code for each in answers if isinstance(each, RemotingCommand)] == [0, 0, 0]
    assert len(made) == 2
    assert threading.get_ident() not in made


@pytest.fixture
def _descriptors() -> Iterator[None]:
    """Room for both ends of 500 connections: a shell often allows 1024 files and knows of more."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2048
    if 0 <= soft < wanted:
        if 0 <= hard < wanted:
            pytest.skip(f"{hard} open files allowed, {wanted} wanted")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_descriptors")
async def test_five_hundred_idle_connections(start_server: StartServer) -> None:
    server = await start_server(echo_table())
    writers = []
    for _ in range(20):
        opened = await asyncio.gather(
            *(asyncio.open_connection(*server.address) for _ in range(25))
        )
        writers += [writer for _, writer in opened]
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(encode_frame_bytes(RemotingCommand(code=ECHO)))
    assert len(await read_commands(reader, 1)) == 1
    assert len(server.channels) == 501
    for each in [*writers, writer]:
        each.close()
    await asyncio.gather(*(each.wait_closed() for each in [*writers, writer]))


async def test_connections_leave_descriptors_to_the_store(
    start_server: StartServer, start_client: StartClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_server(echo_table())
    client = start_client()
    address = str(server.address)
    assert (await client.invoke(address, RemotingCommand(code=ECHO))).code == 0
    used = os.dup(0)  # the lowest number that is free
    os.close(used)
    monkeypatch.setattr(descriptors, "connection_limit", lambda: used + 10)
    open_ones: list[asyncio.StreamWriter] = []
    refused = 0
    while not refused:
        reader, writer = await asyncio.open_connection(*server.address)
        open_ones.append(writer)
        writer.write(encode_frame_bytes(RemotingCommand(code=ECHO)))
        with contextlib.suppress(ConnectionError):
            refused = not await reader.read(1)
            continue
        refused = 1
    assert len(open_ones) <= 10
    assert (await client.invoke(address, RemotingCommand(code=ECHO))).code == 0
    for writer in open_ones:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_who_is_accepted_while_the_server_closes_is_closed() -> None:
    """Accepted in one turn of the loop, with a transport in the next: between them it closes."""
    server = RemotingServer(ProcessorTable())
    await server.start()
    address = server.address
    with socket.create_connection((address.host, address.port)) as peer:
        await asyncio.sleep(0)  # the loop sees it
        await asyncio.sleep(0)  # and has accepted it
        await server.aclose()
        gc.collect()  # what was given up warns now
        peer.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(peer.recv, 1) == b""
