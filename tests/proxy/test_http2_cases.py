"""What RFC 9113 and 7541 ask of a server, case by case, as h2spec does; and peers that mean harm.

A case is what a peer sends, and how the connection goes on: every connection error ends it, every
stream error ends the stream alone. h2spec itself passes where it asks for calls that gRPC knows;
see docs/attacks.md.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import ssl
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from tests.proxy.client import framed
from tests.proxy.test_http2 import BOUND_S, Raw, ask, client_of, serving

from oberth.proxy import call, http2
from oberth.proxy.call import GrpcStatus
from oberth.proxy.server import GrpcServer
from oberth.remoting.aio import descriptors, service
from oberth.remoting.aio.tls import self_signed_context

PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 1, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, COMPRESSION_ERROR = 5, 6, 9
ANY = None
RST, GOAWAY, PING = 3, 7, 6
"""Kinds of frames."""

Case = Callable[[Raw], bytes]


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """A frame as it is, however wrong."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream_id) + body


def opened(raw: Raw, stream_id: int = 1) -> bytes:
    return raw.headers(stream_id, "/a")


def ended(raw: Raw, stream_id: int = 1) -> bytes:
    return (
        opened(raw, stream_id)
        + DataFrame(stream_id, framed(b"x"), flags=["END_STREAM"]).serialize()
    )


def block(raw: Raw, *pairs: tuple[str, str]) -> bytes:
    """A call with these headers, in this order."""
    return HeadersFrame(1, raw.encoder.encode(pairs), flags=["END_HEADERS"]).serialize()


PSEUDO = ((":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "t"))

CLOSING: dict[str, Case] = {
    # 4.2 frame size
    "a PING of 6 bytes": lambda raw: frame(6, 0, 0, b"123456"),
    "a PRIORITY of 4 bytes": lambda raw: opened(raw) + frame(2, 0, 1, b"1234"),
    "a RST_STREAM of 3 bytes": lambda raw: opened(raw) + frame(3, 0, 1, b"123"),
    "SETTINGS of 5 bytes": lambda raw: frame(4, 0, 0, b"12345"),
    "a WINDOW_UPDATE of 3 bytes": lambda raw: frame(8, 0, 0, b"123"),
    "a GOAWAY of 4 bytes": lambda raw: frame(7, 0, 0, b"1234"),
    "a frame longer than announced": lambda raw: opened(raw) + frame(0, 0, 1, b"x" * 16_385),
    # 4.3 header compression
    "a header block that is none": lambda raw: frame(1, 4, 1, b"\xff" * 20),
    "an index beyond the table": lambda raw: frame(1, 4, 1, b"\xff\x80\x01"),
    "a table larger than allowed": lambda raw: frame(1, 4, 1, b"\x3f\xe2\x1f"),
    "index 0": lambda raw: frame(1, 4, 1, b"\x80"),
    "Huffman with more than 7 bits of padding": lambda raw: frame(1, 4, 1, b"\x00\x82\xff\xff\x00"),
    "PRIORITY between a block's frames": lambda raw: (
        frame(1, 0, 1, b"\x83") + PriorityFrame(1).serialize()
    ),
    "another stream between a block's frames": lambda raw: (
        frame(1, 0, 1, b"\x83") + frame(1, 4, 3, b"\x83")
    ),
    # 5.1 stream states
    "DATA on an idle stream": lambda raw: DataFrame(1, b"x").serialize(),
    "RST_STREAM on an idle stream": lambda raw: RstStreamFrame(1, 8).serialize(),
    "WINDOW_UPDATE on an idle stream": lambda raw: WindowUpdateFrame(1, 5).serialize(),
    "CONTINUATION on an idle stream": lambda raw: ContinuationFrame(1, b"\x83").serialize(),
    "an even stream": lambda raw: raw.headers(2),
    "a lower stream": lambda raw: ended(raw, 5) + raw.headers(3),
    # 6.1 to 6.10
    "DATA on stream 0": lambda raw: frame(0, 0, 0, b"x"),
    "DATA with more padding than frame": lambda raw: opened(raw) + frame(0, 8, 1, b"\x05x"),
    "HEADERS on stream 0": lambda raw: frame(1, 4, 0, b"\x83"),
    "HEADERS with more padding than frame": lambda raw: frame(1, 12, 1, b"\x09\x83"),
    "PRIORITY on stream 0": lambda raw: frame(2, 0, 0, b"\0\0\0\3\x10"),
    "RST_STREAM on stream 0": lambda raw: frame(3, 0, 0, b"\0\0\0\x08"),
    "SETTINGS with ACK and a body": lambda raw: frame(4, 1, 0, b"\0\3\0\0\0\1"),
    "SETTINGS on a stream": lambda raw: frame(4, 0, 1),
    "ENABLE_PUSH 2": lambda raw: frame(4, 0, 0, struct.pack(">HI", 2, 2)),
    "a window of 2^31": lambda raw: frame(4, 0, 0, struct.pack(">HI", 4, 2**31)),
    "frames of 16 383 bytes": lambda raw: frame(4, 0, 0, struct.pack(">HI", 5, 16_383)),
    "frames of 2^24 bytes": lambda raw: frame(4, 0, 0, struct.pack(">HI", 5, 2**24)),
    "PUSH_PROMISE of a client": lambda raw: opened(raw) + frame(5, 4, 1, b"\0\0\0\2\x83"),
    "PING on a stream": lambda raw: frame(6, 0, 1, b"12345678"),
    "GOAWAY on a stream": lambda raw: frame(7, 0, 1, bytes(8)),
    "WINDOW_UPDATE of 0": lambda raw: WindowUpdateFrame(0, 1).serialize()[:-4] + bytes(4),
    "a connection's window beyond 2^31": lambda raw: WindowUpdateFrame(0, 2**31 - 1).serialize(),
    "CONTINUATION behind END_HEADERS": lambda raw: (
        opened(raw) + ContinuationFrame(1, b"\x83", flags=["END_HEADERS"]).serialize()
    ),
    "CONTINUATION on stream 0": lambda raw: frame(1, 0, 1, b"\x83") + frame(9, 4, 0, b"\x83"),
    "CONTINUATION without headers": lambda raw: frame(9, 4, 1, b"\x83"),
    # 8.1 requests
    "an upper case name": lambda raw: block(raw, *PSEUDO, ("X-Upper", "1")),
    "an unknown pseudo-header": lambda raw: block(raw, *PSEUDO, (":test", "1")),
    "a pseudo-header of responses": lambda raw: block(raw, *PSEUDO, (":status", "200")),
    "a pseudo-header behind others": lambda raw: block(raw, ("te", "trailers"), *PSEUDO),
    "no path": lambda raw: block(raw, PSEUDO[0], PSEUDO[1], PSEUDO[3]),
    "an empty path": lambda raw: block(raw, PSEUDO[0], PSEUDO[1], (":path", ""), PSEUDO[3]),
    "no method": lambda raw: block(raw, *PSEUDO[1:]),
    "two methods": lambda raw: block(raw, PSEUDO[0], *PSEUDO),
    "a header of connections": lambda raw: block(raw, *PSEUDO, ("connection", "keep-alive")),
    "te that is not trailers": lambda raw: block(raw, *PSEUDO, ("te", "gzip")),
    "a length that is not that of the data": lambda raw: (
        block(raw, *PSEUDO, ("content-type", "application/grpc"), ("content-length", "1"))
        + DataFrame(1, framed(b"12"), flags=["END_STREAM"]).serialize()
    ),
    "a GOAWAY": lambda raw: GoAwayFrame(0).serialize(),
}


@pytest.mark.parametrize("case", CLOSING)
async def test_errors_of_the_connection(case: str) -> None:
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(CLOSING[case](raw))
        assert await raw.is_closed()
        assert not server.channels
        assert server._budget.used == 0
        assert await ask(server) == b"hello"


GOING_ON: dict[str, Case] = {
    "an unknown frame": lambda raw: frame(0x16, 0, 0, b"12345678"),
    "unknown flags and the reserved bit": lambda raw: frame(6, 0xFE, 0x80000000, b"12345678"),
    "PING": lambda raw: PingFrame(0, b"12345678").serialize(),
    "unknown settings": lambda raw: frame(4, 0, 0, struct.pack(">HI", 0xFF, 1)),
    "several settings": lambda raw: SettingsFrame(
        0, settings={4: 100, 5: 20_000, 3: 1}
    ).serialize(),
    "PRIORITY on an idle stream": lambda raw: PriorityFrame(7, depends_on=3).serialize(),
    "PRIORITY on a half-closed stream": lambda raw: (
        ended(raw) + PriorityFrame(1, depends_on=3).serialize()
    ),
    "WINDOW_UPDATE on a half-closed stream": lambda raw: (
        ended(raw) + WindowUpdateFrame(1, 9).serialize()
    ),
    "RST_STREAM on a half-closed stream": lambda raw: ended(raw) + RstStreamFrame(1, 8).serialize(),
    "padded DATA": lambda raw: opened(raw) + frame(0, 9, 1, b"\x03" + framed(b"x") + bytes(3)),
    "a block in four frames": lambda raw: _cut(raw.headers(1)),
    "a table that shrinks": lambda raw: SettingsFrame(0, settings={1: 0}).serialize(),
    "trailers": lambda raw: (
        opened(raw)
        + HeadersFrame(
            1, raw.encoder.encode([("x", "y")]), flags=["END_HEADERS", "END_STREAM"]
        ).serialize()
    ),
    "a stream's window beyond 2^31": lambda raw: (
        opened(raw) + WindowUpdateFrame(1, 2**31 - 1).serialize()
    ),
    "no data at all": lambda raw: opened(raw) + DataFrame(1, b"", flags=["END_STREAM"]).serialize(),
    "a GET": lambda raw: block(raw, (":method", "GET"), *PSEUDO[1:]),
    "another content": lambda raw: block(raw, *PSEUDO, ("content-type", "text/html")),
}


def _cut(headers: bytes) -> bytes:
    """The same block in four frames, one of them empty."""
    body = headers[9:]
    return (
        frame(1, 0, 1, body[:3]) + frame(9, 0, 1) + frame(9, 0, 1, body[3:8])
        + frame(9, 4, 1, body[8:])
    )  # fmt: skip


@pytest.mark.parametrize("case", GOING_ON)
async def test_what_is_allowed_or_ends_a_stream_alone(case: str) -> None:
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(GOING_ON[case](raw))
        raw.writer.write(PingFrame(0, b"go on...").serialize())
        async with asyncio.timeout(BOUND_S):
            while b"go on..." not in raw.received:
                data = await raw.reader.read(65536)
                assert data, raw.received
                raw.received += data


# ------------------------------------------------------------------------------------ harm


async def test_settings_with_many_calls_open() -> None:
    """Each frame changes the window of every call: a few of them are enough."""
    async with serving() as server, Raw(server) as raw:
        for number in range(http2.STREAMS_MAX):
            raw.writer.write(opened(raw, 2 * number + 1))
        piece = SettingsFrame(0, settings={4: 1000}).serialize()
        share = 1 + http2.STREAMS_MAX // http2.SETTINGS_SHARE
        allowed = http2.CONTROL_MAX // share
        assert await raw.send_until_closed(lambda number: piece * allowed, 200) < 200
        assert server._budget.used == 0
        assert await ask(server) == b"hello"


async def test_a_window_of_all_streams_while_each_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few bytes do not make the server try every answer that waits."""
    tried: list[int] = []
    send_call = http2.GrpcChannel._send_call

    def watched(channel: http2.GrpcChannel, one: Any, until: float) -> None:
        tried.append(one.stream_id)
        send_call(channel, one, until)

    monkeypatch.setattr(http2.GrpcChannel, "_send_call", watched)
    count = 200
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(SettingsFrame(0, settings={4: 0}).serialize())
        for number in range(count):
            raw.writer.write(ended(raw, 2 * number + 1))
        (channel,) = await _begun(server, raw)
        await until(lambda: len(channel._blocked) == count)
        tried.clear()
        for number in range(20):
            raw.writer.write(WindowUpdateFrame(0, 1).serialize())
            raw.writer.write(PingFrame(0, b"%8d" % number).serialize())
            await raw.until(b"%8d" % number)
        assert tried == []
        raw.writer.write(WindowUpdateFrame(3, 100).serialize())
        await raw.until(frame(0, 0, 3, framed(b"x")))
        raw.writer.write(SettingsFrame(0, settings={4: 100}).serialize())
        await until(lambda: not channel.calls)


async def test_the_window_of_all_streams_is_closed() -> None:
    """Answers wait, a call that ends without one does not."""
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(SettingsFrame(0, settings={4: 1 << 20}).serialize())
        raw.writer.write(
            raw.headers(1, "/m") + DataFrame(1, framed(b"131072"), flags=["END_STREAM"]).serialize()
        )
        (channel,) = await _begun(server, raw)
        await until(lambda: channel._connection.is_closed_to_data)
        raw.writer.write(ended(raw, 3))
        raw.writer.write(
            raw.headers(5, "/f") + DataFrame(5, framed(b""), flags=["END_STREAM"]).serialize()
        )
        await raw.until(b"grpc-message")
        assert frame(0, 0, 3, framed(b"x")) not in raw.received
        raw.writer.write(WindowUpdateFrame(0, 1 << 20).serialize())
        await raw.until(frame(0, 0, 3, framed(b"x")))
        await until(lambda: not channel.calls)


async def test_pings_behind_answers() -> None:
    """The client for Go sends one for nearly every answer: thousands a second are its right."""
    async with serving() as server, Raw(server) as raw:
        (channel,) = await _begun(server, raw)
        channel._control_at = channel.loop.time() + 1e6  # a second without end
        channel._control_count = http2.CONTROL_MAX
        for number in range(50):
            stream_id = 2 * number + 1
            raw.writer.write(ended(raw, stream_id))
            await raw.until(frame(0, 0, stream_id, framed(b"x")))
            raw.writer.write(PingFrame(0, b"%8d" % number).serialize())
            await raw.until(b"%8d" % number)
        raw.writer.write(PingFrame(0, b"one more").serialize())
        assert await raw.is_closed()


async def _begun(server: GrpcServer, raw: Raw) -> list[http2.GrpcChannel]:
    raw.writer.write(PingFrame(0, b"begun...").serialize())
    await raw.until(b"begun...")
    return list(server.channels)


async def test_a_silent_peer_with_calls_is_asked_whether_it_is_there() -> None:
    """A host that vanished sends no end: it is forgotten, one that answers stays.

    So does one that takes long to read: nothing that it says is read meanwhile.
    """
    ping = PingFrame(0, bytes(8))
    async with (
        serving(idle_s=0.2, handshake_s=0.2) as server,
        Raw(server) as slow,
        Raw(server) as gone,
        Raw(server) as there,
    ):
        for raw in (slow, gone, there):
            raw.writer.write(opened(raw))
        await until(lambda: sum(len(channel.calls) for channel in server.channels) == 3)
        port = slow.writer.get_extra_info("sockname")[1]
        (waiting,) = (each for each in server.channels if each.remote.port == port)
        waiting.pause_writing()
        for _ in range(5):
            there.received = b""
            await there.until(ping.serialize())
            there.writer.write(PingFrame(0, bytes(8), flags=["ACK"]).serialize())
        await gone.until(ping.serialize())
        assert await gone.is_closed()
        there.writer.write(DataFrame(1, framed(b"hello"), flags=["END_STREAM"]).serialize())
        await there.until(framed(b"hello"))
        assert waiting in server.channels
        waiting.resume_writing()
        slow.writer.write(DataFrame(1, framed(b"hello"), flags=["END_STREAM"]).serialize())
        await slow.until(framed(b"hello"))


async def test_who_takes_nothing_does_not_keep_what_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "UNREAD_S", 0.0)
    async with serving() as server, Raw(server):
        await until(lambda: len(server.channels) == 1)
        (channel,) = server.channels
        transport = channel._transport
        assert transport is not None
        transport.write(bytes(16 << 20))
        channel.close()
        assert channel.unsent_bytes
        server._close_idle()
        await until(lambda: not server.channels)


@pytest.mark.parametrize(
    ("content", "is_served"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc-web", False),
        ("application/grpcx", False),
        ("", False),
    ],
)
async def test_content_types(content: str, is_served: bool) -> None:
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(
            block(raw, *PSEUDO, ("content-type", content))
            + DataFrame(1, framed(b"hello"), flags=["END_STREAM"]).serialize()
        )
        await raw.until(framed(b"hello") if is_served else b"415")


async def test_calls_count_in_the_budget() -> None:
    """Calls that send nothing: who has opened most of them is closed."""
    limit = 600 * call.CALL_SIZE
    async with serving(held_bytes_max=limit) as server, client_of(server) as modest:
        mine = await modest.open("/a")
        async with Raw(server) as first, Raw(server) as second:
            for raw, count in ((first, 200), (second, 500)):
                for number in range(count):
                    raw.writer.write(opened(raw, 2 * number + 1))
                await raw.writer.drain()
            assert await second.is_closed()
            assert server._budget.used <= limit
            await mine.send(Text(b"hello"), end=True)
            assert await mine.all() == [b"hello"]


async def test_a_window_that_opens_by_a_byte_at_a_time() -> None:
    """An answer of some MiB leaves in pieces; the rest is not copied for each."""
    async with serving() as server, client_of(server) as client:
        client.h2.update_settings({4: 0})
        client.h2.acknowledge_received_data = lambda *_: None  # type: ignore[method-assign]
        stream = await client.open("/m", framed(b"4000000"))
        for _ in range(300):
            client.h2.increment_flow_control_window(1, stream.stream_id)
            await client.flush()
        (channel,) = server.channels
        await until(lambda: channel.calls and isinstance(_next_piece(channel), memoryview))
        piece = _next_piece(channel)
        assert isinstance(piece, memoryview)
        assert len(piece.obj) > len(piece)  # type: ignore[arg-type]
        assert await ask(server) == b"hello"


def _next_piece(channel: Any) -> Any:
    (call,) = channel.calls.values()
    return call.out[0] if call.out else None


async def test_a_large_answer_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to one connection are written in slices: a call that comes later ends earlier."""
    monkeypatch.setattr(http2, "SLICE_S", 0.0)
    async with serving() as server, client_of(server) as greedy, client_of(server) as other:
        large = await greedy.open("/m", framed(b"16000000"))
        assert await large.next() is not None
        small = await other.open("/e", framed(b"hello"))
        assert await small.all() == [b"hello"]
        assert len(await large.all()) == 16_000_000 // 65536 - 1


async def test_a_handshake_that_does_not_end() -> None:
    """Neither silence nor a byte now and then keeps a connection that has not begun."""
    async with serving(handshake_s=0.2, tls_context=self_signed_context()) as server:
        address = server.address
        hello = _client_hello()
        pieces = {"nothing": b"", "half a preface": b"PRI * HT", "half a hello": hello[:50]}
        pieces["a hello, and no more"] = hello
        pieces["a preface without settings"] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        connections = {}
        for what, piece in pieces.items():
            connections[what] = reader, writer = await asyncio.open_connection(
                address.host, address.port
            )
            writer.write(piece)
        for what, (reader, writer) in connections.items():
            async with asyncio.timeout(BOUND_S):
                try:
                    while await reader.read(4096):
                        pass
                except ConnectionError:
                    pass
            writer.close()
            assert what
        assert not server.channels
        assert await ask(server) == b"hello"


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


async def test_a_message_that_becomes_large() -> None:
    async with serving() as server, client_of(server) as client:
        small = gzip.compress(bytes(call.INFLATED_MAX))
        large = gzip.compress(bytes(call.INFLATED_MAX + 1))
        for packed, status in ((small, GrpcStatus.OK), (large, GrpcStatus.RESOURCE_EXHAUSTED)):
            stream = await client.open(
                "/e", framed(packed, compressed=True), headers={"grpc-encoding": "gzip"}
            )
            await stream.all()
            assert stream.status == status


async def test_compressed_messages_are_unpacked_one_at_a_time_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 KiB become 5 MiB in 20 ms; a frame has room for three such messages."""
    unpacked = call._unpacked
    at_work = most = 0
    go_on = threading.Event()
    threads: set[int] = set()

    def watched(message: bytes, encoding: str) -> bytes:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        threads.add(threading.get_ident())
        assert go_on.wait(30)
        at_work -= 1
        return unpacked(message, encoding)

    monkeypatch.setattr(call, "_unpacked", watched)
    packed = framed(gzip.compress(bytes(1 << 20)), compressed=True)
    async with serving() as server, client_of(server) as client:
        zipped = {"grpc-encoding": "gzip"}
        first = await client.open("/e", packed, headers=zipped)
        await until(lambda: at_work == 1)
        assert await ask(server) == b"hello"
        second = await client.open("/e", packed, headers=zipped)
        several = await client.open("/a", packed * 3, headers=zipped)
        given_up = await client.open("/e", packed, headers=zipped)
        await given_up.cancel()
        await first.cancel()
        assert await ask(server) == b"hello"
        assert most == 1, "the thread of a call that was given up is waited for"
        go_on.set()
        assert [len(each) for each in await second.all()] == [1 << 20]
        assert [len(each) for each in await several.all()] == [1 << 20] * 3
        assert (most, server._budget.used) == (1, 0)
        assert threading.get_ident() not in threads


async def test_connections_leave_descriptors_to_the_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server, client_of(server) as client:
        monkeypatch.setattr(descriptors, "connection_limit", lambda: 0)
        reader, writer = await asyncio.open_connection(*server.address)
        assert await reader.read() == b""
        writer.close()
        assert "kept for the store" in caplog.text
        assert len(server.channels) == 1
        stream = await client.open("/e", framed(b"x"))
        assert await stream.all() == [b"x"]


async def test_hundreds_of_connections_with_open_streams() -> None:
    """Each is served behind the others as alone, and leaves nothing."""
    async with serving() as server:
        clients = [client_of(server) for _ in range(300)]
        try:
            for client in clients:
                await client.__aenter__()
            streams = [await client.open("/a") for client in clients]
            for stream in reversed(streams):
                await stream.send(Text(b"x"))
            assert [await stream.next() for stream in streams] == [b"x"] * len(streams)
            used = server._budget.used
            assert used == sum(channel.held for channel in server.channels)
            assert 0 < used - len(streams) * call.CALL_SIZE < len(streams) * 1_000  # headers
            assert await ask(server) == b"hello"
        finally:
            for client in clients:
                await client.__aexit__(None, None, None)
        await until(lambda: not server.channels)
        assert server._budget.used == 0


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_closed_connection_leaves_nothing_to_the_collector(is_tls: bool) -> None:
    """What refers to itself stays until a collection, which a broker makes too rarely for this."""
    context = self_signed_context()
    mine = ssl.create_default_context()
    mine.check_hostname = False
    mine.verify_mode = ssl.CERT_NONE
    gc.disable()
    try:
        async with serving(tls_context=context) as server:
            clients = [client_of(server, ssl=mine if is_tls else None) for _ in range(5)]
            for client in clients:
                await client.__aenter__()
                stream = await client.open("/a")
                await stream.send(Text(b"x"))
                assert await stream.next() == b"x"
                ended = await client.open("/e", framed(b"y"), deadline="9S")
                assert await ended.all() == [b"y"]
            alive = [weakref.ref(channel) for channel in server.channels]
            assert len(alive) == 5
            for client in clients:
                await client.__aexit__(None, None, None)
            await until(lambda: not server.channels)
            await until(lambda: not any(each() for each in alive))
    finally:
        gc.enable()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what another task brings about."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


class Text:
    """Bytes that serialize to themselves."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def SerializeToString(self) -> bytes:
        return self._text
