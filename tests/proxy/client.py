"""A small gRPC client for tests: h2 over a stream of asyncio, raw where a test wants it so."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from oberth.proxy import messages as m

PREFIX: Final = struct.Struct(">BI")
SERVICE: Final = f"/{m.PACKAGE}.MessagingService/"
WAIT_S: Final = 30.0
GOAWAY: Final = 7


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return PREFIX.pack(compressed, len(message)) + message


class Stream:
    """One call: what came of it so far."""

    def __init__(self, client: GrpcClient, stream_id: int) -> None:
        self.client = client
        self.stream_id = stream_id
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.reset: int | None = None
        self.ended = asyncio.Event()
        self._buffer = b""

    def on_data(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= PREFIX.size:
            _, size = PREFIX.unpack_from(self._buffer)
            if len(self._buffer) < PREFIX.size + size:
                return
            self.messages.put_nowait(self._buffer[PREFIX.size : PREFIX.size + size])
            self._buffer = self._buffer[PREFIX.size + size :]

    def on_end(self) -> None:
        self.ended.set()
        self.messages.put_nowait(None)

    @property
    def status(self) -> int:
        """grpc-status; -1 without one."""
        return int({**self.headers, **self.trailers}.get("grpc-status", -1))

    async def next(self) -> bytes | None:
        """The next message, None at the end."""
        async with asyncio.timeout(WAIT_S):
            return await self.messages.get()

    async def all(self) -> list[bytes]:
        """All messages until the end."""
        found = []
        while (each := await self.next()) is not None:
            found.append(each)
        return found

    async def send(self, message: Any, *, end: bool = False) -> None:
        self.client.h2.send_data(
            self.stream_id, framed(message.SerializeToString()), end_stream=end
        )
        await self.client.flush()

    async def cancel(self) -> None:
        self.client.h2.reset_stream(self.stream_id, 8)
        await self.client.flush()


class GrpcClient:
    """One connection.

    Args:
        address: ``host:port``.
        client_id: sent with every call; "" for none.
        metadata: further headers.
        ssl: a context of the client's.
    """

    def __init__(
        self,
        address: str,
        client_id: str = "client",
        metadata: Mapping[str, str] | None = None,
        ssl: Any = None,
    ) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._ssl = ssl
        self.metadata = {"x-mq-client-id": client_id, **(metadata or {})}
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.streams: dict[int, Stream] = {}
        self.frames: list[int] = []  # the kind of each frame that came
        self._raw = b""
        self.closed = asyncio.Event()
        self._window = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._ssl
        )
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 24)
        await self.flush()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def flush(self) -> None:
        if not self.closed.is_set():
            self.writer.write(self.h2.data_to_send())
            await self.writer.drain()

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(65536):
                self._note_frames(data)
                for event in self.h2.receive_data(data):
                    self._on_event(event)
                self.writer.write(self.h2.data_to_send())
        except (OSError, ProtocolError):
            pass  # h2 takes nothing any more behind a GOAWAY; what came is in ``frames``
        finally:
            self.closed.set()
            self._window.set()
            for stream in self.streams.values():
                stream.on_end()

    def _note_frames(self, data: bytes) -> None:
        self._raw += data
        while len(self._raw) >= 9:
            end = 9 + int.from_bytes(self._raw[:3], "big")
            if len(self._raw) < end:
                return
            self.frames.append(self._raw[3])
            self._raw = self._raw[end:]

    def _on_event(self, event: Event) -> None:
        if isinstance(event, WindowUpdated):
            self._window.set()
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, ResponseReceived):
            stream.headers = dict(event.headers)  # type: ignore[arg-type]
        elif isinstance(event, TrailersReceived):
            stream.trailers = dict(event.headers)  # type: ignore[arg-type]
        elif isinstance(event, DataReceived):
            stream.on_data(event.data or b"")
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, stream.stream_id)
        elif isinstance(event, StreamEnded):
            stream.on_end()
        elif isinstance(event, StreamReset):
            stream.reset = int(event.error_code or 0)
            stream.on_end()

    async def open(
        self,
        path: str,
        body: bytes | None = None,
        *,
        deadline: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Stream:
        """Begin a call; with a body that is all that the client sends."""
        stream_id = self.h2.get_next_available_stream_id()
        stream = self.streams[stream_id] = Stream(self, stream_id)
        given = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path if path.startswith("/") else SERVICE + path,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
            **self.metadata,
            **({"grpc-timeout": deadline} if deadline else {}),
            **(headers or {}),
        }
        self.h2.send_headers(stream_id, [(k, v) for k, v in given.items() if v])
        if body is not None:
            await self.send_data(stream_id, body, end=True)
        await self.flush()
        return stream

    async def send_data(self, stream_id: int, body: bytes, *, end: bool = False) -> None:
        """Data in frames, as fast as the windows allow; nothing more once the server has closed."""
        if not body:
            self.h2.send_data(stream_id, b"", end_stream=end)
        while body and not self.closed.is_set():
            room = min(
                self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size
            )
            if room <= 0:
                self._window.clear()
                await self.flush()
                async with asyncio.timeout(WAIT_S):
                    await self._window.wait()
                continue
            self.h2.send_data(stream_id, body[:room], end_stream=end and len(body) <= room)
            body = body[room:]
        await self.flush()

    async def call(self, method: str, request: Any, *, deadline: str = "") -> Any:
        """A unary call of the service; its response."""
        stream = await self.open(method, framed(request.SerializeToString()), deadline=deadline)
        raw = await stream.all()
        assert stream.status == 0, (stream.headers, stream.trailers)
        (one,) = raw
        return m.message_class(m.METHODS[method].response).FromString(one)

    async def admin(self, method: str, request: Any = None) -> Any:
        """A call of ``Admin``; its response."""
        kind = m.ADMIN_METHODS[method]
        body = (request or m.message_class(kind.request)()).SerializeToString()
        stream = await self.open(f"/{m.PACKAGE}.Admin/{method}", framed(body))
        raw = await stream.all()
        assert stream.status == 0, (stream.headers, stream.trailers)
        (one,) = raw
        return m.message_class(kind.response).FromString(one)

    async def call_stream(self, method: str, request: Any, *, deadline: str = "") -> list[Any]:
        """A call with one message there and many back."""
        stream = await self.open(method, framed(request.SerializeToString()), deadline=deadline)
        raw = await stream.all()
        assert stream.status == 0, (stream.headers, stream.trailers)
        kind = m.message_class(m.METHODS[method].response)
        return [kind.FromString(each) for each in raw]
