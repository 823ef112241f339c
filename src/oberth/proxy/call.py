"""Call: one gRPC call on a connection: its metadata, the client's messages, and the answer.

A call is served in a task, or, where nothing has to be waited for, in the turn of the loop in which
its message came: see `Begin`.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import IntEnum
from typing import Any, Final, Protocol
from urllib.parse import quote

from oberth.proxy import messages as m
from oberth.proxy.header_blocks import literal
from oberth.proxy.turns import Turns
from oberth.remoting.aio.address import Address

MESSAGE_MAX: Final = 16 * 1024 * 1024
REQUEST_SIZE_MAX: Final = 1024 * 1024
"""Bytes of a request that bears no message of a user's: what it names is looked at in one turn."""

_LONG: Final = frozenset({"SendMessageRequest", "AdminSendMessageRequest", "TelemetryCommand"})
INFLATED_MAX: Final = 5 * 1024 * 1024
"""Bytes of a message that came compressed: a few KiB become so many, in up to 20 ms of a thread."""

CALL_SIZE: Final = 4096
"""Bytes that an open call counts for in the budget, beside its headers and messages."""

QUEUED_MAX: Final = 64
"""Messages of a client's stream that wait for its handler; beyond it the stream is ended."""

_PREFIX: Final = struct.Struct(">BI")
_ENDED_OK: Final = literal(("grpc-status", "0"))


class GrpcStatus(IntEnum):
    """How a call ended for gRPC itself; see ``codes.Code`` for RocketMQ's own."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """Ends a call with a gRPC status."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def parse(message_class: Any, raw: bytes) -> Any:
    """A message from its bytes.

    Raises:
        CallError: they are none, or too many.
    """
    if len(raw) > m.UNCOUNTED_SIZE_MAX:
        _check_size(message_class.DESCRIPTOR, raw)
    try:
        return message_class.FromString(raw)
    except Exception as error:  # noqa: BLE001 - the library's DecodeError
        raise CallError(
            GrpcStatus.INTERNAL, f"no {message_class.DESCRIPTOR.name}: {error}"
        ) from None


def _check_size(descriptor: Any, raw: bytes) -> None:
    if len(raw) > REQUEST_SIZE_MAX and descriptor.name not in _LONG:
        raise CallError(
            GrpcStatus.RESOURCE_EXHAUSTED,
            f"{descriptor.name} of {len(raw)} bytes, allowed {REQUEST_SIZE_MAX}",
        )
    try:
        m.count_fields(descriptor, raw)
    except ValueError as error:
        raise CallError(GrpcStatus.RESOURCE_EXHAUSTED, f"{descriptor.name}: {error}") from None


Handler = Callable[["Call"], Awaitable[None]]
"""Serves a call, in a task."""

Begin = Callable[["Call", bytes], bool]
"""Serves a call with its only message in this turn of the loop; it is answered then, or later.

False: it cannot, and has done nothing; then the call gets a task and its `Handler`.
"""


class CallChannel(Protocol):
    """The parts of its connection that a call uses.

    Attributes:
        unpacking: held by the one call of a server whose message a thread unpacks.
        turns: of the server, which its calls share.
    """

    loop: asyncio.AbstractEventLoop
    unpacking: asyncio.Lock
    turns: Turns
    remote: Address
    local: Address

    def count_held(self, call: Call) -> None:
        """The bytes that a call holds of the server's budget have changed."""

    def flush_soon(self, call: Call) -> None:
        """A call has something to send."""

    def call_ended(self, call: Call, status: GrpcStatus) -> None:
        """A call's status is known."""

    def rest(self, seconds: float) -> None:
        """Read no more for a while."""


def parse_timeout(text: str) -> float | None:
    """Seconds that a ``grpc-timeout`` header gives; None if it is malformed."""
    unit = _TIMEOUT_UNITS.get(text[-1:])
    digits = text[:-1]
    if unit is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 8:
        return None
    return int(digits) * unit


_TIMEOUT_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class _Packed(bytes):
    """A message as it came compressed."""


def _unpacked(message: bytes, encoding: str) -> bytes:
    """What a compressed message becomes.

    Raises:
        CallError: it is none, is cut or has more behind it, or becomes too long.
    """
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = unpacker.decompress(message, INFLATED_MAX + 1)
    except zlib.error as error:
        raise CallError(GrpcStatus.INTERNAL, f"a message that is no {encoding}: {error}") from None
    if len(plain) > INFLATED_MAX:
        raise CallError(
            GrpcStatus.RESOURCE_EXHAUSTED,
            f"a message of more than {INFLATED_MAX} bytes after {encoding}",
        )
    if not unpacker.eof or unpacker.unused_data:
        raise CallError(GrpcStatus.INTERNAL, f"a message that is not one whole {encoding}")
    return plain


class Call:
    """One call: its metadata, the client's messages, and the answer.

    Attributes:
        path: ``/package.Service/Method``.
        metadata: headers by name in lower case; of a name that comes twice the last.
        channel: the connection.
        deadline: loop time until which the client waits; None for ever.
        counted: bytes that the channel has counted for it in the budget.
    """

    __slots__ = (
        "_buffer",
        "_closed",
        "_ended",
        "_messages",
        "_more",
        "_own_bytes",
        "_queued_bytes",
        "_status",
        "began",
        "channel",
        "counted",
        "deadline",
        "metadata",
        "out",
        "out_bytes",
        "path",
        "stream_id",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        channel: CallChannel,
        stream_id: int,
        path: str,
        metadata: dict[str, str],
        headers_size: int,
    ) -> None:
        self.channel = channel
        self.stream_id = stream_id
        self.path = path
        self.metadata = metadata
        self.began = channel.loop.time()
        timeout = metadata.get("grpc-timeout")
        timeout_s = None if timeout is None else parse_timeout(timeout)
        self.deadline = None if timeout_s is None else self.began + timeout_s
        self.task: asyncio.Task[None] | None = None
        self.out: deque[bytes | memoryview] = deque()
        self.out_bytes = 0
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._more: asyncio.Future[None] | None = None
        self._ended = False
        self._closed = False
        self._status: bytes | None = None
        self._queued_bytes = 0
        self._own_bytes = CALL_SIZE + headers_size
        self.counted = 0

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        return not self._closed and self._status is None

    def remaining_s(self) -> float | None:
        """Seconds until the client gives up; None: it never does."""
        return None if self.deadline is None else self.deadline - self.channel.loop.time()

    # Reading

    def take_only(self, data: bytes) -> bytes | None:
        """The message of a call whose only data this is; None: it is not one whole plain message.

        The message counts until the call ends.
        """
        if self._buffer or self._messages or len(data) < _PREFIX.size:
            return None
        compressed, size = _PREFIX.unpack_from(data)
        if compressed or len(data) != _PREFIX.size + size:
            return None
        self._queued_bytes = size
        return data[_PREFIX.size :]

    def untake(self, message: bytes) -> None:
        """What `take_only` gave was not used."""
        self._queued_bytes -= len(message)

    def feed(self, data: bytes) -> None:
        """Bytes of the stream came.

        Raises:
            CallError: a message that is too long, or in an encoding that is not spoken.
        """
        if not self._buffer and len(data) >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(data)
            if len(data) == _PREFIX.size + size:  # as nearly all messages come
                self._take(data[_PREFIX.size :], compressed)
                return
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(buffer)
            if size > MESSAGE_MAX:
                raise CallError(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"a message of {size} bytes, allowed {MESSAGE_MAX}",
                )
            if len(buffer) < _PREFIX.size + size:
                return
            message = bytes(memoryview(buffer)[_PREFIX.size : _PREFIX.size + size])
            del buffer[: _PREFIX.size + size]
            self._take(message, compressed)

    def _take(self, message: bytes, compressed: int) -> None:
        if compressed:
            encoding = self._encoding
            if encoding not in ("gzip", "deflate"):
                raise CallError(
                    GrpcStatus.UNIMPLEMENTED,
                    f"grpc-encoding {encoding[:40]!r}, allowed gzip, deflate",
                )
            message = _Packed(message)
        if len(self._messages) >= QUEUED_MAX:
            raise CallError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"{QUEUED_MAX} messages wait to be read, no more are taken",
            )
        self._messages.append(message)
        self._queued_bytes += len(message)
        self._wake()

    @property
    def _encoding(self) -> str:
        return self.metadata.get("grpc-encoding", "identity")

    async def _unpack(self, message: bytes) -> bytes:
        """A compressed message as it was, which counts from now on. A thread unpacks it."""
        loop = self.channel.loop
        async with self.channel.unpacking:
            work = loop.run_in_executor(None, _unpacked, message, self._encoding)
            try:
                plain = await asyncio.shield(work)
            finally:
                if not work.done():  # the call was cancelled; the thread is done soon
                    await asyncio.wait([work])
        self._queued_bytes += len(plain) - len(message)
        self.channel.count_held(self)
        return plain

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def end_input(self) -> None:
        """The client sends no more."""
        self._ended = True
        self._wake()

    @property
    def held(self) -> int:
        """Bytes that the call counts for: its own, what was received, and what is to be sent.

        What is worked on was received, too: calls wait for disks, and for messages.
        """
        return self._own_bytes + len(self._buffer) + self._queued_bytes + self.out_bytes

    async def messages(self) -> AsyncIterator[bytes]:
        """The client's messages, as they come and turns have time, until it ends its side."""
        while True:
            while self._messages:
                await self.channel.turns.take()
                if not self._messages:
                    break  # the call was closed meanwhile
                message = self._messages.popleft()
                if type(message) is _Packed:
                    message = await self._unpack(message)
                yield message
                if not self._closed:
                    self._queued_bytes -= len(message)
                    self.channel.count_held(self)
            if self._ended:
                return
            self._more = self.channel.loop.create_future()
            await self._more

    async def only_message(self) -> bytes:
        """The one message of a unary call, which counts until the call ends.

        Raises:
            CallError: the client sent none, or several.
        """
        message: bytes | None = None
        async for each in self.messages():
            if message is not None:
                raise CallError(GrpcStatus.INTERNAL, "several messages in a unary call")
            message = each
        if message is None:
            raise CallError(GrpcStatus.INTERNAL, "no message in a unary call")
        if not self._closed:
            self._queued_bytes += len(message)
            self.channel.count_held(self)
        return message

    # Writing

    def send(self, message: bytes) -> None:
        """One message to the client, in the next write."""
        if not self.is_open:
            return
        self.out.append(_PREFIX.pack(0, len(message)) + message)
        self.out_bytes += _PREFIX.size + len(message)
        self.channel.count_held(self)
        self.channel.flush_soon(self)

    def finish(self, message: bytes) -> None:
        """The only message to the client, and the end."""
        if not self.is_open:
            return
        self.out.append(_PREFIX.pack(0, len(message)) + message)
        self.out_bytes += _PREFIX.size + len(message)
        self._status = _ENDED_OK
        self.channel.call_ended(self, GrpcStatus.OK)
        self.channel.count_held(self)
        self.channel.flush_soon(self)

    def end(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """End the call after the messages that were sent."""
        if not self.is_open:
            return
        if status is GrpcStatus.OK:
            self._status = _ENDED_OK
        else:
            self._status = literal(
                ("grpc-status", str(int(status))),
                ("grpc-message", quote(message[:512], safe=" ,:;()[]'/=")),
            )
        self.channel.call_ended(self, status)
        self.channel.flush_soon(self)

    @property
    def trailers(self) -> bytes | None:
        """The header block that ends the call, once it is known."""
        return self._status

    def close(self) -> None:
        """Nothing of the call is wanted any more."""
        self._closed = True
        self._ended = True
        self.out.clear()
        self.out_bytes = 0
        self._messages.clear()
        self._queued_bytes = 0
        self._buffer.clear()
        self._wake()
        if self.task is not None and self._status is None:
            self.task.cancel()
            self.task = None
