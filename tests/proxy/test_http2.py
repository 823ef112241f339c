"""HTTP/2 from below: raw frames, pieces of any size, and peers that mean harm."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hpack import Encoder, HeaderTuple
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
from tests.proxy.client import GOAWAY, GrpcClient, framed

from oberth.proxy import call, http2
from oberth.proxy.call import Call, CallError, GrpcStatus
from oberth.proxy.server import GrpcOptions, GrpcServer
from oberth.remoting.aio import service
from oberth.remoting.aio import tls as tls_module
from oberth.remoting.aio.tls import RECORDS_AT_ONCE, ServerTls, self_signed_context
from oberth.remoting.first_bytes import TrustedProxies

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BOUND_S = 60.0
"""For what must happen: only a test that hangs takes so long."""


async def echo(call: Call) -> None:
    call.send(await call.only_message())


async def echo_all(call: Call) -> None:
    async for each in call.messages():
        call.send(each)


async def many(call: Call) -> None:
    """As many bytes as the client names."""
    size = int(await call.only_message())
    for _ in range(size // 65536):
        call.send(b"x" * 65536)


async def fail(call: Call) -> None:
    raise CallError(GrpcStatus.INVALID_ARGUMENT, "ä, 100 %")


async def crash(call: Call) -> None:
    raise RuntimeError("a mistake")


HANDLERS = {"/e": echo, "/a": echo_all, "/m": many, "/f": fail, "/c": crash}


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[GrpcServer]:
    async with GrpcServer(HANDLERS, GrpcOptions(**{"grace_s": 0.1, **options})) as server:
        yield server


def client_of(server: GrpcServer, **more: Any) -> GrpcClient:
    return GrpcClient(str(server.address), **more)


async def ask(server: GrpcServer, body: bytes = b"hello", **more: Any) -> bytes:
    """An echo over a connection of its own: others are unharmed."""
    async with client_of(server, **more) as client:
        stream = await client.open("/e", framed(body))
        (answer,) = await stream.all()
        assert stream.status == 0
        return answer


class Raw:
    """A connection on which a test writes what it wants."""

    def __init__(self, server: GrpcServer, before: bytes = b"") -> None:
        self._server = server
        self._before = before
        self.encoder = Encoder()
        self.received = b""

    async def __aenter__(self) -> Raw:
        address = self._server.address
        self.reader, self.writer = await asyncio.open_connection(address.host, address.port)
        self.writer.write(self._before + PREFACE + SettingsFrame(0).serialize())
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    def headers(self, stream_id: int, path: str = "/a", *more: tuple[str, str]) -> bytes:
        block = self.encoder.encode(
            [
                (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "t"),
                ("content-type", "application/grpc"), ("te", "trailers"), *more,
            ]
        )  # fmt: skip
        frame = HeadersFrame(stream_id, block, flags=["END_HEADERS"])
        return frame.serialize()

    async def until(self, wanted: bytes) -> None:
        """Read until the server has sent this."""
        async with asyncio.timeout(BOUND_S):
            while wanted not in self.received:
                data = await self.reader.read(65536)
                assert data, self.received
                self.received += data

    async def is_closed(self) -> bool:
        """Whether the server closes the connection; what it sends until then is kept."""
        try:
            async with asyncio.timeout(BOUND_S):
                while data := await self.reader.read(65536):
                    self.received += data
        except ConnectionError:
            pass
        return True

    async def send_until_closed(self, pieces: Callable[[int], bytes], count: int) -> int:
        """Send what `pieces` makes until the server has enough; how many it took."""
        reading = asyncio.create_task(self.is_closed())
        number = 0
        try:
            while number < count and not reading.done():
                self.writer.write(pieces(number))
                number += 1
                await self.writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        await reading
        return number


async def test_pieces_of_any_size() -> None:
    async with serving() as server, Raw(server) as raw:
        data = raw.headers(1) + DataFrame(1, framed(b"hello"), flags=["END_STREAM"]).serialize()
        for byte in data:
            raw.writer.write(bytes([byte]))
            await raw.writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(BOUND_S):
            while framed(b"hello") not in raw.received:
                raw.received += await raw.reader.read(4096)


async def test_messages_in_pieces_and_several_in_one_frame() -> None:
    async with serving() as server, client_of(server) as client:
        stream = await client.open("/a")
        both = framed(b"one") + framed(b"two")
        client.h2.send_data(stream.stream_id, both[:3])
        client.h2.send_data(stream.stream_id, both[3:])
        client.h2.send_data(stream.stream_id, b"", end_stream=True)
        await client.flush()
        assert await stream.all() == [b"one", b"two"]
        assert stream.status == 0


async def test_how_calls_end() -> None:
    async with serving() as server, client_of(server) as client:
        for path, status in (("/f", 3), ("/c", 13), ("/none", 12)):
            stream = await client.open(path, framed(b""))
            assert await stream.all() == []
            assert stream.status == status, path
        stream = await client.open("/f", framed(b""))
        await stream.all()
        assert stream.headers["grpc-message"] == "%C3%A4, 100 %25"
        stream = await client.open("/e", b"")
        await stream.all()
        assert stream.status == GrpcStatus.INTERNAL
        stream = await client.open("/e", framed(b"1") + framed(b"2"))
        await stream.all()
        assert stream.status == GrpcStatus.INTERNAL
        stream = await client.open("/e", framed(b"1"), headers={"content-type": "text/html"})
        await stream.all()
        assert stream.headers[":status"] == "415"
        assert server.calls["unknown", GrpcStatus.UNIMPLEMENTED] == 1
        assert server.calls["/f", GrpcStatus.INVALID_ARGUMENT] == 2


async def test_a_call_whose_work_is_cancelled_is_answered() -> None:
    async def given_up(call: Call) -> None:
        work = asyncio.get_running_loop().create_future()
        work.cancel()
        await work

    async with GrpcServer({"/g": given_up}) as server, client_of(server) as client:
        stream = await client.open("/g", framed(b""))
        assert await stream.all() == []
        assert stream.status == GrpcStatus.UNAVAILABLE
        (channel,) = server.channels
        assert not channel.calls
        assert server.calls["/g", GrpcStatus.UNAVAILABLE] == 1


async def test_a_deadline_ends_a_call() -> None:
    async with serving() as server, client_of(server) as client:
        stream = await client.open("/a", deadline="10m")
        assert await stream.all() == []
        assert stream.status == GrpcStatus.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1S", 1.0), ("250m", 0.25), ("2M", 120.0), ("1H", 3600.0), ("", None), ("S", None),
     ("-1S", None), ("1x", None), ("123456789S", None), ("١S", None)],
)  # fmt: skip
def test_timeouts(text: str, seconds: float | None) -> None:
    assert call.parse_timeout(text) == seconds


async def test_a_cancelled_call_is_forgotten() -> None:
    async with serving() as server, client_of(server) as client:
        stream = await client.open("/a")
        stream.client.h2.send_data(stream.stream_id, framed(b"x" * 100)[:50])
        await client.flush()
        await stream.cancel()
        assert await ask(server) == b"hello"
        answer = await client.open("/e", framed(b"after"))
        assert await answer.all() == [b"after"]
        assert server.calls["/a", GrpcStatus.CANCELLED] == 1
        assert server._budget.used == 0


async def test_compressed_messages() -> None:
    async with serving() as server, client_of(server) as client:
        body = framed(gzip.compress(b"hello"), compressed=True)
        stream = await client.open("/e", body, headers={"grpc-encoding": "gzip"})
        assert await stream.all() == [b"hello"]
        bomb = framed(gzip.compress(bytes(64 << 20)), compressed=True)
        for what, encoding, status in (
            (bomb, "gzip", GrpcStatus.RESOURCE_EXHAUSTED),
            (framed(b"nothing", compressed=True), "gzip", GrpcStatus.INTERNAL),
            (body, "br", GrpcStatus.UNIMPLEMENTED),
        ):
            stream = await client.open("/e", what, headers={"grpc-encoding": encoding})
            assert await stream.all() == []
            assert stream.status == status


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_messages_that_are_not_whole(encoding: str) -> None:
    """One that is cut is not what its sender meant, though it can be unpacked to there."""
    packed = gzip.compress(b"hello" * 100) if encoding == "gzip" else zlib.compress(b"hello" * 100)
    async with serving() as server, client_of(server) as client:
        for body in (packed, packed[:-1], packed[:-9], packed[:12], packed + packed, packed + b"x"):
            stream = await client.open(
                "/e", framed(body, compressed=True), headers={"grpc-encoding": encoding}
            )
            answers = await stream.all()
            if body == packed:
                assert answers == [b"hello" * 100]
            else:
                assert (answers, stream.status) == ([], GrpcStatus.INTERNAL)


async def test_messages_that_are_too_long() -> None:
    async with serving() as server, client_of(server) as client:
        stream = await client.open("/e", struct.pack(">BI", 0, call.MESSAGE_MAX + 1))
        await stream.all()
        assert stream.status == GrpcStatus.RESOURCE_EXHAUSTED


async def test_more_messages_than_are_read() -> None:
    """A handler that does not read: what waits is bounded."""

    async def sleeping(call: Call) -> None:
        await asyncio.Event().wait()

    options = GrpcOptions(grace_s=0.01)
    async with GrpcServer({"/s": sleeping}, options) as server, client_of(server) as client:
        stream = await client.open("/s")
        client.h2.send_data(stream.stream_id, framed(b"") * (call.QUEUED_MAX + 1))
        await client.flush()
        await stream.all()
        assert stream.status == GrpcStatus.RESOURCE_EXHAUSTED


async def test_tls_and_plain_text_share_the_port() -> None:
    context = self_signed_context()
    assert context is not None
    context.set_alpn_protocols(["h2"])
    mine = ssl.create_default_context()
    mine.check_hostname = False
    mine.verify_mode = ssl.CERT_NONE
    mine.set_alpn_protocols(["h2"])
    async with serving(tls_context=context) as server:
        assert await ask(server, b"x" * 100_000) == b"x" * 100_000
        assert await ask(server, b"y" * 100_000, ssl=mine) == b"y" * 100_000
        async with client_of(server, ssl=mine) as client:
            tls = client.writer.get_extra_info("ssl_object")
            assert tls.selected_alpn_protocol() == "h2"
    async with serving(tls_context=context, tls_only=True) as server:
        assert await ask(server, ssl=mine) == b"hello"
        async with Raw(server) as raw:
            assert await raw.is_closed()
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(b"")
        assert await ask(server) == b"hello"


async def test_tls_records_of_one_read_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one byte each there may be 11 000 (20 ms)."""
    came, original = [], ServerTls.receive

    def receive(self: ServerTls, data: bytes | memoryview) -> tuple[bytes, bool]:
        plain, ended = original(self, data)
        came.append(len(plain))
        return plain, ended

    monkeypatch.setattr(ServerTls, "receive", receive)
    monkeypatch.setattr(tls_module, "RECORDS_A_TURN", RECORDS_AT_ONCE)
    mine = ssl.create_default_context()
    mine.check_hostname = False
    mine.verify_mode = ssl.CERT_NONE
    mine.set_alpn_protocols(["h2"])
    context = self_signed_context()
    assert context is not None
    context.set_alpn_protocols(["h2"])
    async with serving(tls_context=context) as server, client_of(server, ssl=mine) as client:
        write = client.writer.write

        def write_bytes(data: bytes) -> None:
            for byte in data:
                write(bytes((byte,)))

        monkeypatch.setattr(client.writer, "write", write_bytes)
        stream = await client.open("/e", framed(b"x" * 3000))
        assert await stream.all() == [b"x" * 3000]
        assert stream.status == 0
    assert sorted(came)[-2] == RECORDS_AT_ONCE  # the longest is the preface, one record


@pytest.mark.parametrize("trusted", [True, False])
async def test_proxy_headers_from_trusted_addresses_only(trusted: bool) -> None:
    proxies = TrustedProxies("127.0.0.1" if trusted else "")
    async with serving(proxies=proxies) as server:
        address = server.address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"PROXY TCP4 192.0.2.7 127.0.0.1 4000 8081\r\n" + PREFACE)
        writer.write(SettingsFrame(0).serialize())
        async with asyncio.timeout(BOUND_S):
            assert bool(await reader.read(100)) is trusted
        if trusted:
            (channel,) = server.channels
            assert channel.remote.host == "192.0.2.7"
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
        b"\xff" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + b"\x00" * 64,
        PREFACE + b"\xff" * 100,
        PREFACE + SettingsFrame(0).serialize() + RstStreamFrame(7).serialize(),
        PREFACE + SettingsFrame(0).serialize() + b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x",
        PREFACE
        + SettingsFrame(0).serialize()
        + HeadersFrame(2, b"\x88", flags=["END_HEADERS"]).serialize(),
        PREFACE
        + SettingsFrame(0).serialize()
        + HeadersFrame(1, b"\xff" * 50, flags=["END_HEADERS"]).serialize(),
        PREFACE + SettingsFrame(0).serialize() + ContinuationFrame(1, b"\x88").serialize(),
        PREFACE + SettingsFrame(0).serialize() + WindowUpdateFrame(0, 2**31 - 1).serialize() * 2,
    ],
)
async def test_what_is_no_http2(data: bytes) -> None:
    async with serving() as server:
        address = server.address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(data)
        async with asyncio.timeout(BOUND_S):
            while await reader.read(4096):
                pass
        writer.close()
        assert await ask(server) == b"hello"


async def test_headers_that_are_no_text() -> None:
    async with serving() as server, Raw(server) as raw:
        block = Encoder().encode(
            [HeaderTuple(b":method", b"POST"), HeaderTuple(b":path", b"\xff\xfe")]
        )
        raw.writer.write(HeadersFrame(1, block, flags=["END_HEADERS"]).serialize())
        assert await raw.is_closed()
        assert await ask(server) == b"hello"


async def test_headers_that_are_too_long() -> None:
    async with serving() as server, Raw(server) as raw:
        block = raw.headers(1, "/a", ("x", "y" * 15_000))
        raw.writer.write(block)
        raw.writer.write(raw.headers(3, "/a", ("x", "y" * 15_000), ("z", "y" * 1_500)))
        assert await raw.is_closed()
        assert await ask(server) == b"hello"


async def test_a_few_bytes_that_become_many_headers() -> None:
    """One entry of 4000 bytes in the table, named by one byte each."""
    async with serving() as server, Raw(server) as raw:
        entry = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000
        block = entry + b"\xbe" * 10_000
        raw.writer.write(HeadersFrame(1, block, flags=["END_HEADERS"]).serialize())
        assert await raw.is_closed()
        assert await ask(server) == b"hello"


async def test_headers_without_end() -> None:
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(HeadersFrame(1, b"\x00\x01a\x01b").serialize())
        piece = ContinuationFrame(1, b"\x00\x01a\x01b" * 2000).serialize()
        assert await raw.send_until_closed(lambda number: piece, 10_000) < 10_000
        assert await ask(server) == b"hello"


async def test_calls_that_are_reset_at_once() -> None:
    async with serving() as server, Raw(server) as raw:

        def piece(number: int) -> bytes:
            stream_id = 2 * number + 1
            return raw.headers(stream_id) + RstStreamFrame(stream_id, 8).serialize()

        assert await raw.send_until_closed(piece, 50_000) < 50_000
        assert server._budget.used == 0
        assert await ask(server) == b"hello"


@pytest.mark.parametrize(
    "frame",
    [
        PingFrame(0, b"12345678").serialize(),
        SettingsFrame(0).serialize(),
        SettingsFrame(0, settings={4: 1000}).serialize(),
        PriorityFrame(1, depends_on=3).serialize(),
        b"\x00\x00\x00\xee\x00\x00\x00\x00\x00",  # of an unknown kind
    ],
)
async def test_frames_that_carry_nothing(frame: bytes) -> None:
    async with serving() as server, Raw(server) as raw:
        assert await raw.send_until_closed(lambda number: frame * 100, 1000) < 1000
        assert await ask(server) == b"hello"


async def test_data_that_carries_nothing() -> None:
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1))
        frame = DataFrame(1, b"").serialize()
        assert await raw.send_until_closed(lambda number: frame * 100, 1000) < 1000
        assert await ask(server) == b"hello"


async def test_more_calls_at_a_time_than_allowed() -> None:
    """Who has not read our settings yet can begin too many: those it may try again."""
    refused = 2 * http2.STREAMS_MAX + 1
    async with serving() as server, Raw(server) as raw:
        for number in range(http2.STREAMS_MAX + 1):
            raw.writer.write(raw.headers(2 * number + 1))
        raw.writer.write(DataFrame(refused, framed(b"x"), flags=["END_STREAM"]).serialize())
        raw.writer.write(DataFrame(1, framed(b"hello"), flags=["END_STREAM"]).serialize())
        await raw.until(RstStreamFrame(refused, 7).serialize())
        await raw.until(framed(b"hello"))


async def test_calls_that_are_refused_have_an_end() -> None:
    count = http2.STREAMS_MAX + http2.CONTROL_MAX + 1
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1, "/m") + PingFrame(0, b"begun...").serialize())
        await raw.until(b"begun...")
        (channel,) = server.channels
        channel._control_at = channel.loop.time() + 1e6  # a second without end
        for number in range(1, count):
            raw.writer.write(raw.headers(2 * number + 1))
        assert await raw.is_closed()
        assert server._budget.used == 0
        assert await ask(server) == b"hello"


async def test_who_does_not_read_holds_a_bounded_amount() -> None:
    """Answers that nobody takes: the connection that holds most is closed, others go on."""
    async with serving(held_bytes_max=8 << 20) as server:
        async with client_of(server) as greedy:
            # h2 opens the windows of streams by itself only as data is taken.
            greedy.h2.acknowledge_received_data = lambda *_: None  # type: ignore[method-assign]
            streams = [await greedy.open("/m", framed(b"4000000")) for _ in range(10)]
            await greedy.closed.wait()
            assert all(stream.ended.is_set() for stream in streams)
        assert server._budget.used == 0
        assert await ask(server) == b"hello"


async def test_who_begins_messages_and_does_not_end_them() -> None:
    async with serving(held_bytes_max=1 << 20) as server, client_of(server) as modest:
        mine = await modest.open("/a")
        modest.h2.send_data(mine.stream_id, framed(b"hello")[:7])
        await modest.flush()
        async with client_of(server) as greedy:
            for _ in range(4):
                stream = await greedy.open("/a")
                begun = struct.pack(">BI", 0, 4 << 20) + b"x" * 400_000
                await greedy.send_data(stream.stream_id, begun)
            await greedy.closed.wait()
        modest.h2.send_data(mine.stream_id, framed(b"hello")[7:], end_stream=True)
        await modest.flush()
        assert await mine.all() == [b"hello"]


async def test_large_answers_wait_for_the_window() -> None:
    async with serving() as server, client_of(server) as client:
        stream = await client.open("/m", framed(b"3000000"))
        assert sum(map(len, await stream.all())) == 3_000_000 // 65536 * 65536
        assert stream.status == 0
        assert server._budget.used == 0


async def test_more_connections_than_allowed() -> None:
    async with serving(channel_max=2) as server, client_of(server) as first, client_of(server):
        async with Raw(server) as third:
            assert await third.is_closed()
        stream = await first.open("/e", framed(b"x"))
        assert await stream.all() == [b"x"]


async def test_idle_connections_are_closed() -> None:
    async with serving(idle_s=0.05) as server, client_of(server) as client:
        await client.closed.wait()
        assert GOAWAY in client.frames


async def test_very_many_idle_connections_are_closed_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "LOOKED_AT_A_TURN", 2)
    async with serving() as server, AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(client_of(server))
        channels = list(server.channels)
        for channel in channels[:4]:
            assert channel._transport is not None
            channel._transport.pause_reading()  # what a client still says would make it active
            channel.last_active -= 10_000
        closed = []
        server._close_idle()
        for _ in range(3):
            closed.append(sum(channel.is_closed for channel in channels))
            await asyncio.sleep(0)
        assert closed == [2, 4, 4]


async def test_drain() -> None:
    """Calls that run may end; new ones are refused."""
    async with serving(grace_s=30.0) as server, client_of(server) as client:
        stream = await client.open("/a")
        await stream.send(Text("one"))
        assert await stream.next() == b"one"
        closing = asyncio.create_task(server.aclose())
        await asyncio.sleep(0)
        client.writer.write(DataFrame(1, framed(b"two"), flags=["END_STREAM"]).serialize())
        await client.closed.wait()
        await closing
        assert GOAWAY in client.frames
        assert server.calls["/a", GrpcStatus.OK] == 1


async def test_calls_behind_a_goaway_are_refused() -> None:
    """The peer is told so, and the call that runs goes on to its end."""
    async with serving(grace_s=30.0) as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1))
        raw.writer.write(DataFrame(1, framed(b"one")).serialize())
        await raw.until(framed(b"one"))
        closing = asyncio.create_task(server.aclose())
        await raw.until(GoAwayFrame(0, last_stream_id=1).serialize())
        raw.writer.write(raw.headers(3))
        await raw.until(b"the server is going away")
        assert not closing.done()
        raw.writer.write(DataFrame(1, framed(b"two"), flags=["END_STREAM"]).serialize())
        assert await raw.is_closed()
        assert framed(b"two") in raw.received
        await closing
        assert server.calls["/a", GrpcStatus.OK] == 1
        assert server.calls["/a", GrpcStatus.UNAVAILABLE] == 1


async def test_calls_that_run_end_behind_the_goaway_of_their_client() -> None:
    """So RFC 9113, 6.8; grpc-java says that it goes, and waits for its calls."""
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1) + DataFrame(1, framed(b"one")).serialize())
        await raw.until(framed(b"one"))
        raw.writer.write(GoAwayFrame(0).serialize() + PingFrame(0, b"and then").serialize())
        await raw.until(b"and then")
        raw.writer.write(DataFrame(1, framed(b"two"), flags=["END_STREAM"]).serialize())
        assert await raw.is_closed()
        assert framed(b"two") in raw.received
        assert server.calls["/a", GrpcStatus.OK] == 1


async def test_a_call_in_the_same_read_as_a_goaway() -> None:
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(
            raw.headers(1, "/e")
            + DataFrame(1, framed(b"one"), flags=["END_STREAM"]).serialize()
            + GoAwayFrame(0).serialize()
        )
        assert await raw.is_closed()
        assert framed(b"one") in raw.received
        assert server.calls["/e", GrpcStatus.OK] == 1


async def test_goaways_without_end() -> None:
    """The first one ends no connection with a call on it."""
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1))
        piece = GoAwayFrame(0).serialize() * 100
        assert await raw.send_until_closed(lambda number: piece, 1000) < 1000
        assert await ask(server) == b"hello"


async def test_a_call_that_is_reset_behind_a_goaway() -> None:
    async with serving() as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1) + GoAwayFrame(0).serialize())
        raw.writer.write(PingFrame(0, b"and then").serialize())
        await raw.until(b"and then")
        raw.writer.write(RstStreamFrame(1, 8).serialize())
        assert await raw.is_closed()
        assert server.calls["/a", GrpcStatus.CANCELLED] == 1


async def test_answers_that_wait_for_a_window_leave_before_the_end() -> None:
    async with serving(grace_s=30.0) as server, Raw(server) as raw:
        body = framed(b"1000000")
        raw.writer.write(
            raw.headers(1, "/m") + DataFrame(1, body, flags=["END_STREAM"]).serialize()
        )
        await raw.until(b"x" * 10_000)
        closing = asyncio.create_task(server.aclose())
        await raw.until(GoAwayFrame(0, last_stream_id=1).serialize())
        for stream_id in (0, 1):
            raw.writer.write(WindowUpdateFrame(stream_id, 1 << 20).serialize())
        assert await raw.is_closed()
        await closing
        assert raw.received.count(b"x") >= 1_000_000 // 65536 * 65536
        assert b"grpc-status" in raw.received


async def test_calls_whose_message_comes_late_end_before_the_server() -> None:
    """They have no task yet when the server begins to close."""
    begins = {"/e": lambda call, message: False}
    options = GrpcOptions(grace_s=30.0)
    async with GrpcServer(HANDLERS, options, begins=begins) as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1, "/e") + raw.headers(3, "/e"))
        raw.writer.write(PingFrame(0, b"and then").serialize())
        await raw.until(b"and then")
        (channel,) = server.channels
        calls = list(channel.calls.values())
        assert [call.task for call in calls] == [None, None]
        closing = asyncio.create_task(server.aclose())
        await raw.until(GoAwayFrame(0, last_stream_id=3).serialize())
        channel._start_late()
        for call, text in zip(calls, (b"one", b"two"), strict=True):
            assert call.task is not None
            body = framed(text)
            first = DataFrame(call.stream_id, body[:3]).serialize()
            raw.writer.write(first)
            raw.writer.write(PingFrame(0, b"wait %3s" % text).serialize())
            await raw.until(b"wait %3s" % text)
            assert not closing.done()
            rest = DataFrame(call.stream_id, body[3:], flags=["END_STREAM"]).serialize()
            raw.writer.write(rest)
            await raw.until(framed(text))
        assert await raw.is_closed()
        await closing


async def test_calls_that_do_not_end_are_told_that_they_were_given_up() -> None:
    async with serving(grace_s=0.01) as server, Raw(server) as raw:
        raw.writer.write(raw.headers(1) + PingFrame(0, b"and then").serialize())
        await raw.until(b"and then")
        await server.aclose()
        assert await raw.is_closed()
        assert b"the call was given up" in raw.received


class _Accepted(asyncio.Transport):
    """A connection that nobody is behind."""

    is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_connection_that_was_accepted_just_before_the_end() -> None:
    async with serving() as server:
        channel = server._make_channel()
        await server.aclose()
        transport = _Accepted()
        channel.connection_made(transport)
        assert transport.is_aborted
        assert not server.channels


class Text:
    """Bytes that serialize to themselves."""

    def __init__(self, text: str) -> None:
        self._text = text

    def SerializeToString(self) -> bytes:
        return self._text.encode()
