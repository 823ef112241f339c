"""A bare gRPC connection for loads and probes: frames made by hand, one answer awaited a call."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

from hpack import Encoder

from oberth.proxy import messages as m

_HEAD: Final = struct.Struct(">BHBBI")  # length high, length low, kind, flags, stream
_PREFIX: Final = struct.Struct(">BI")
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def opening(method: str, client_id: str) -> bytes:
    """HEADERS of a call; nothing in it refers to calls before it."""
    path = f"/{m.PACKAGE}.MessagingService/{method}"
    headers = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "bench"),
        ("content-type", "application/grpc"), ("te", "trailers"),
        ("x-mq-client-id", client_id), ("x-mq-language", "JAVA"),
    ]  # fmt: skip
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(headers, huffman=False)


def message(content: Any) -> bytes:
    """A gRPC message."""
    raw: bytes = content.SerializeToString()
    return _PREFIX.pack(0, len(raw)) + raw


_WINDOW: Final = (1 << 31) - (1 << 16)
_PREFACE: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(_SETTINGS, 0, 0, b"")
    + frame(_WINDOW_UPDATE, 0, 0, _WINDOW.to_bytes(4, "big"))  # never to be opened again
)


class Connection(asyncio.Protocol):
    """One connection: frames out, and answers by stream in."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = b""
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._next = 1
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(_PREFACE)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        buffer = self._buffer + data
        while len(buffer) >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer)
            end = _HEAD.size + (high << 16 | low)
            if len(buffer) < end:
                break
            payload, buffer = buffer[_HEAD.size : end], buffer[end:]
            if kind == _SETTINGS and not flags & _ACK:
                self.transport.write(frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self.transport.write(frame(_PING, _ACK, 0, payload))
            elif kind == _DATA and stream in self._waiting:
                answer = self._waiting.pop(stream)
                if not answer.done():
                    answer.set_result(payload[_PREFIX.size :])
        self._buffer = buffer

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.lost = True
        for waiting in self._waiting.values():
            if waiting.done():  # nobody waits for it any more
                continue
            waiting.set_exception(exc or ConnectionResetError("the broker closed the connection"))

    async def call(self, method: str, client_id: str, content: bytes, *, ends: bool) -> bytes:
        """Begin a call; its first message back."""
        stream, self._next = self._next, self._next + 2
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = answer
        self.transport.write(
            frame(_HEADERS, _END_HEADERS, stream, opening(method, client_id))
            + frame(_DATA, _END_STREAM if ends else 0, stream, content)
        )
        return await answer


def sending(topic: str, number: int, body: bytes) -> bytes:
    """A SendMessageRequest with one normal message."""
    request = m.SendMessageRequest()
    added = request.messages.add(body=body)
    added.topic.name = topic
    added.system_properties.message_id = f"01{number:030X}"
    added.system_properties.message_type = 1
    return message(request)
