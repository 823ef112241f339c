"""ServerConnection: the frames of one HTTP/2 connection, without a socket (RFC 9113, server side).

    offset  size  field    type    note
         0     3  size     uint24  of the payload; more than FRAME_SIZE_MAX ends the connection
         3     1  kind     uint8   a `Kind`; others are skipped
         4     1  flags    uint8   by kind
         5     4  stream   uint32  31 bits; 0: the connection

Bytes go in with `receive`, `events` gives what they mean one after the other, and what is to be
sent collects until `take_output`. Windows are kept here: who sends asks for `room`, and what came
is given back to the peer as it is read.

A stream is open from its HEADERS until both sides have ended it or one has reset it. Then only this
is known of it: that its number was used, and, for the last `RESET_STREAMS_KEPT`, that we reset it:
what the peer had already sent on such a stream is no mistake.

What is against the protocol raises `ConnectionFault` with the code for GOAWAY; a mistake that harms
one stream alone resets that stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from oberth.proxy.header_blocks import Field, HeaderBlockError, HeaderDecoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_SIZE_MAX: Final = 16 * 1024
"""Bytes of a frame; what we announce by saying nothing."""

HEADER_BLOCK_MAX: Final = 32 * 1024
"""Bytes of a call's headers as they come, over several frames; to decode them takes some 6 ms."""

HEADER_FRAMES_MAX: Final = 64
"""Frames that a call's headers may come in."""

RESET_STREAMS_KEPT: Final = 1024
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1

_HEAD: Final = struct.Struct(
    ">"
    "I"  # size and kind
    "B"  # flags
    "I"  # stream
)
_HEAD_SIZE: Final = 9
_SETTING: Final = struct.Struct(">HI")
_ACK: Final = 1
_END_STREAM: Final = 1
_END_HEADERS: Final = 4
_PADDED: Final = 8
_PRIORITY: Final = 32
_SHRUNK_TABLE: Final = b"\x20"
"""Begins a block: the sender's table holds nothing from now on."""


class Kind(IntEnum):
    """The type of a frame."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


# An enumeration's member takes several times as long to look up.
_DATA: Final = int(Kind.DATA)
_HEADERS: Final = int(Kind.HEADERS)
_SETTINGS: Final = int(Kind.SETTINGS)
_CONTINUATION: Final = int(Kind.CONTINUATION)


class ErrorCode(IntEnum):
    """Why a connection or stream ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """The settings that a SETTINGS frame can change."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ConnectionFault(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class RequestReceived(NamedTuple):
    """A stream begins with these headers; ``size``: what they count for."""

    stream_id: int
    headers: list[Field]
    is_ended: bool
    size: int


class DataReceived(NamedTuple):
    """Data of a stream; ``is_ended``: the last."""

    stream_id: int
    data: bytes
    is_ended: bool


class StreamEnded(NamedTuple):
    """A stream's peer sends no more; it sent trailers."""

    stream_id: int


class StreamReset(NamedTuple):
    """A stream is gone: the peer reset it, or made a mistake on it."""

    stream_id: int


class WindowOpened(NamedTuple):
    """More may be sent on a stream, or on all (0)."""

    stream_id: int


class SettingsReceived(NamedTuple):
    """The peer's settings; windows of all streams may have changed."""


class Pinged(NamedTuple):
    """A ping, which has been answered."""


class Skipped(NamedTuple):
    """A frame that carries nothing: a priority, an acknowledgement, one of an unknown kind."""


class Terminated(NamedTuple):
    """The peer ends the connection once its streams have ended."""


Event = (
    RequestReceived
    | DataReceived
    | StreamEnded
    | StreamReset
    | WindowOpened
    | SettingsReceived
    | Pinged
    | Skipped
    | Terminated
)


class _Stream:
    """Windows of a stream that is open.

    Attributes:
        room: bytes that we may send.
        peer_room: bytes that the peer may send.
        unreturned: bytes that came and were not given back.
        is_ended: whether the peer has ended its side.
        left: bytes that a content-length still promises; None: it did not.
    """

    __slots__ = ("is_ended", "left", "peer_room", "room", "unreturned")

    def __init__(self, room: int, peer_room: int) -> None:
        self.room = room
        self.peer_room = peer_room
        self.unreturned = 0
        self.is_ended = False
        self.left: int | None = None


def frame(kind: Kind, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def goaway(last_stream_id: int, code: ErrorCode = ErrorCode.NO_ERROR) -> bytes:
    """A GOAWAY frame."""
    return frame(Kind.GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code))


class ServerConnection:
    """One connection, server side.

    Args:
        streams_max: streams at a time.
        window: bytes that a peer may send on a stream before they are read.
        connection_window: the same on all streams together.
        header_list_max: bytes of a call's headers after decompression.

    Attributes:
        last_stream_id: the highest that the peer has opened.
        frame_size_max: of a frame that the peer takes.
        pending: bytes of data that wait for `take_output`.
    """

    __slots__ = (
        "_block", "_block_flags", "_block_frames", "_block_stream", "_buffer", "_connection_window",
        "_decoder", "_has_preface", "_is_begun", "_out", "_peer_room", "_position", "_reset",
        "_room", "_shrinks_table", "_stream_room", "_streams", "_streams_max", "_unreturned",
        "_window", "frame_size_max", "last_stream_id", "pending",
    )  # fmt: skip

    def __init__(
        self, *, streams_max: int, window: int, connection_window: int, header_list_max: int
    ) -> None:
        self.last_stream_id = self.pending = 0
        self.frame_size_max = FRAME_SIZE_MAX
        self._streams_max = streams_max
        self._window = window
        self._connection_window = connection_window
        self._decoder = HeaderDecoder(header_list_max)
        self._streams: dict[int, _Stream] = {}
        self._reset: dict[int, None] = {}
        self._buffer = b""
        self._position = 0
        self._has_preface = self._is_begun = False
        self._room = self._stream_room = WINDOW_DEFAULT
        self._peer_room = connection_window
        self._unreturned = 0
        self._shrinks_table = False
        self._block: list[bytes] = []  # of headers that have not ended
        self._block_frames = self._block_stream = self._block_flags = 0
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: streams_max,
            Setting.INITIAL_WINDOW_SIZE: window,
            Setting.MAX_HEADER_LIST_SIZE: header_list_max,
        }
        self._out: list[bytes | memoryview] = [
            frame(Kind.SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in settings.items())),
            _window_update(0, connection_window - WINDOW_DEFAULT),
        ]

    # Reading

    def receive(self, data: bytes) -> None:
        """Bytes came."""
        if self._position < len(self._buffer):
            data = self._buffer[self._position :] + data
        self._buffer = data
        self._position = 0

    def events(self) -> Iterator[Event]:
        """What the bytes mean, frame by frame; who stops early goes on with another iterator.

        Raises:
            ConnectionFault: they are against the protocol.
        """
        if not self._has_preface and not self._read_preface():
            return
        while True:
            buffer, position = self._buffer, self._position
            if len(buffer) - position < _HEAD_SIZE:
                return
            word, flags, stream_id = _HEAD.unpack_from(buffer, position)
            size, kind = word >> 8, word & 0xFF
            stream_id &= WINDOW_MAX
            if size > FRAME_SIZE_MAX:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR,
                    f"a frame of {size} bytes, allowed {FRAME_SIZE_MAX}",
                )
            begin = position + _HEAD_SIZE
            end = begin + size
            if self._block_stream and (kind != _CONTINUATION or stream_id != self._block_stream):
                raise _wrong(f"a frame of kind {kind} before the headers have ended")
            if kind != _SETTINGS and not self._is_begun:
                raise _wrong(f"a frame of kind {kind} before any settings")
            if end > len(buffer):
                return
            self._position = end
            payload = buffer[begin:end]
            if kind == _DATA:
                yield self._on_data(flags, stream_id, payload)
            elif kind == _HEADERS:
                yield self._on_headers(flags, stream_id, payload)
            elif kind <= _CONTINUATION:
                yield _RECEIVERS[kind](self, flags, stream_id, payload)
            else:
                yield Skipped()

    def _read_preface(self) -> bool:
        """Whether the client's first bytes are there."""
        found = self._buffer[: len(PREFACE)]
        if not PREFACE.startswith(found):
            raise _wrong("no preface")
        if len(found) < len(PREFACE):
            return False
        self._position = len(PREFACE)
        self._has_preface = True
        return True

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> Event:
        if not stream_id:
            raise _wrong("DATA on stream 0")
        size = len(payload)
        self._peer_room -= size
        if self._peer_room < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window")
        self._unreturned += size
        if self._unreturned >= self._connection_window // 2:
            self._out.append(_window_update(0, self._unreturned))
            self._peer_room += self._unreturned
            self._unreturned = 0
        if flags & _PADDED:
            payload = _unpadded(payload)
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_ended:
            return self._on_closed(stream_id, "DATA")
        stream.peer_room -= size
        if stream.peer_room < 0:
            return self._fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.left is not None:
            stream.left -= len(payload)
        if flags & _END_STREAM:
            self._end_input(stream)
            return DataReceived(stream_id, payload, True)
        stream.unreturned += size
        if stream.unreturned >= self._window // 2:
            self._out.append(_window_update(stream_id, stream.unreturned))
            stream.peer_room += stream.unreturned
            stream.unreturned = 0
        return DataReceived(stream_id, payload, False)

    @staticmethod
    def _end_input(stream: _Stream) -> None:
        stream.is_ended = True
        if stream.left:
            raise _wrong(f"data that is {-stream.left} bytes longer than content-length says")

    def _on_closed(self, stream_id: int, what: str) -> Event:
        """A frame on a stream that is not open, or not to the peer."""
        if stream_id > self.last_stream_id or not stream_id & 1:
            raise _wrong(f"{what} on stream {stream_id}, which nobody has opened")
        if stream_id in self._reset:
            return Skipped()  # sent before the peer heard of it
        return self._fault(stream_id, ErrorCode.STREAM_CLOSED)

    def _fault(self, stream_id: int, code: ErrorCode) -> Event:
        """A mistake that harms one stream alone."""
        self.reset(stream_id, code)
        return StreamReset(stream_id)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> Event:
        if not stream_id:
            raise _wrong("HEADERS on stream 0")
        if flags & _PADDED:
            payload = _unpadded(payload)
        if flags & _PRIORITY:
            _check_priority(stream_id, payload)
            payload = payload[5:]
        self._block_stream = stream_id
        self._block_flags = flags
        self._block_frames = 0
        return self._on_block(flags, payload)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> Event:
        if not self._block_stream:
            raise _wrong(f"CONTINUATION on stream {stream_id} without headers")
        return self._on_block(flags, payload)

    def _on_block(self, flags: int, payload: bytes) -> Event:
        self._block.append(payload)
        self._block_frames += 1
        if not flags & _END_HEADERS:
            size = sum(map(len, self._block))
            if size > HEADER_BLOCK_MAX or self._block_frames > HEADER_FRAMES_MAX:
                raise ConnectionFault(
                    ErrorCode.ENHANCE_YOUR_CALM,
                    f"headers of {size} bytes in {self._block_frames} frames, allowed "
                    f"{HEADER_BLOCK_MAX} in {HEADER_FRAMES_MAX}",
                )
            return Skipped()
        block = payload if len(self._block) == 1 else b"".join(self._block)
        self._block.clear()
        stream_id, self._block_stream = self._block_stream, 0
        try:
            headers = self._decoder.decode(block)
        except HeaderBlockError as error:
            code = ErrorCode.COMPRESSION_ERROR if error.is_compression else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFault(code, str(error)) from None
        is_ended = bool(self._block_flags & _END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is not None:
            return self._on_trailers(stream_id, stream, headers, is_ended)
        if stream_id <= self.last_stream_id:
            if stream_id in self._reset:
                return Skipped()
            raise ConnectionFault(
                ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which has ended"
            )
        if not stream_id & 1:
            raise _wrong(f"a client opens stream {stream_id}, allowed odd numbers")
        self.last_stream_id = stream_id
        if len(self._streams) >= self._streams_max:
            # A client may have begun them before it read our settings; it may try again.
            return self._fault(stream_id, ErrorCode.REFUSED_STREAM)
        self._streams[stream_id] = stream = _Stream(self._stream_room, self._window)
        stream.left = _check_request(headers)
        if is_ended:
            self._end_input(stream)
        return RequestReceived(stream_id, headers, is_ended, self._decoder.list_size)

    def _on_trailers(
        self, stream_id: int, stream: _Stream, headers: list[Field], is_ended: bool
    ) -> Event:
        if stream.is_ended:
            return self._fault(stream_id, ErrorCode.STREAM_CLOSED)
        if not is_ended or any(field.name.startswith(":") for field in headers):
            return self._fault(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._end_input(stream)
        return StreamEnded(stream_id)

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> Event:
        del flags
        if not stream_id:
            raise _wrong("PRIORITY on stream 0")
        if len(payload) != 5:
            raise _wrong_size(Kind.PRIORITY, payload)
        _check_priority(stream_id, payload)
        return Skipped()

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> Event:
        del flags
        if len(payload) != 4:
            raise _wrong_size(Kind.RST_STREAM, payload)
        if stream_id > self.last_stream_id or not stream_id & 1:
            raise _wrong(f"RST_STREAM on stream {stream_id}, which nobody has opened")
        self._streams.pop(stream_id, None)
        return StreamReset(stream_id)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> Event:
        if stream_id:
            raise _wrong(f"SETTINGS on stream {stream_id}")
        if flags & _ACK:
            if payload:
                raise _wrong_size(Kind.SETTINGS, payload)
            if not self._is_begun:
                raise _wrong("SETTINGS are acknowledged before any are sent")
            return Skipped()
        if len(payload) % _SETTING.size:
            raise _wrong_size(Kind.SETTINGS, payload)
        # Of several values of one setting the last holds, and only that is put into effect.
        given = dict(_SETTING.iter_unpack(payload))
        window = given.get(Setting.INITIAL_WINDOW_SIZE, self._stream_room)
        size = given.get(Setting.MAX_FRAME_SIZE, self.frame_size_max)
        if given.get(Setting.ENABLE_PUSH, 0) > 1:
            raise _wrong(f"ENABLE_PUSH {given[Setting.ENABLE_PUSH]}, allowed 0 and 1")
        if window > WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {window} bytes")
        if not FRAME_SIZE_MAX <= size < 1 << 24:
            raise _wrong(f"frames of {size} bytes, allowed {FRAME_SIZE_MAX} to {(1 << 24) - 1}")
        if Setting.HEADER_TABLE_SIZE in given:
            self._shrinks_table = True
        self.frame_size_max = size
        if window != self._stream_room:
            change, self._stream_room = window - self._stream_room, window
            for stream in self._streams.values():
                stream.room += change
                if stream.room > WINDOW_MAX:
                    raise ConnectionFault(
                        ErrorCode.FLOW_CONTROL_ERROR, f"a stream's window of {stream.room} bytes"
                    )
        self._is_begun = True
        self._out.append(frame(Kind.SETTINGS, _ACK, 0))
        return SettingsReceived()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> Event:
        del flags, payload
        raise _wrong(f"PUSH_PROMISE of a client, on stream {stream_id}")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> Event:
        if stream_id:
            raise _wrong(f"PING on stream {stream_id}")
        if len(payload) != 8:
            raise _wrong_size(Kind.PING, payload)
        if flags & _ACK:
            return Skipped()
        self._out.append(frame(Kind.PING, _ACK, 0, payload))
        return Pinged()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> Event:
        del flags
        if stream_id:
            raise _wrong(f"GOAWAY on stream {stream_id}")
        if len(payload) < 8:
            raise _wrong_size(Kind.GOAWAY, payload)
        return Terminated()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> Event:
        del flags
        if len(payload) != 4:
            raise _wrong_size(Kind.WINDOW_UPDATE, payload)
        step = int.from_bytes(payload, "big") & WINDOW_MAX
        if not stream_id:
            if not step:
                raise _wrong("WINDOW_UPDATE of 0 bytes")
            self._room += step
            if self._room > WINDOW_MAX:
                raise ConnectionFault(
                    ErrorCode.FLOW_CONTROL_ERROR, f"the connection's window of {self._room} bytes"
                )
            return WindowOpened(0)
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id > self.last_stream_id or not stream_id & 1:
                raise _wrong(f"WINDOW_UPDATE on stream {stream_id}, which nobody has opened")
            return WindowOpened(stream_id)
        stream.room += step
        if not step or stream.room > WINDOW_MAX:
            code = ErrorCode.FLOW_CONTROL_ERROR if step else ErrorCode.PROTOCOL_ERROR
            return self._fault(stream_id, code)
        return WindowOpened(stream_id)

    # Writing

    def room(self, stream_id: int) -> int:
        """Bytes of data that may be sent on a stream now, in one frame."""
        return min(self._room, self._streams[stream_id].room, self.frame_size_max)

    @property
    def is_closed_to_data(self) -> bool:
        """Whether the window of all streams together has no room."""
        return self._room <= 0

    def send_headers(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """Headers, or trailers that end the stream, as `header_blocks.literal` makes them."""
        if self._shrinks_table:
            # A peer that makes its table smaller wants to hear that we have; ours holds nothing.
            self._shrinks_table = False
            block = _SHRUNK_TABLE + block
        flags = _END_HEADERS | _END_STREAM if end else _END_HEADERS
        self._out.append(_HEAD.pack(len(block) << 8 | _HEADERS, flags, stream_id) + block)
        if end:
            self._end_output(stream_id)

    def send_data(self, stream_id: int, data: bytes | memoryview) -> None:
        """Data, not more than there is `room` for."""
        size = len(data)
        self._room -= size
        self.pending += size
        self._streams[stream_id].room -= size
        self._out.append(_HEAD.pack(size << 8, 0, stream_id))
        self._out.append(bytes(data))

    def send_whole(
        self, stream_id: int, block: bytes, data: bytes | memoryview, trailers: bytes
    ) -> bool:
        """All of an answer of which nothing was sent; False: it cannot be sent at once."""
        size = len(data)
        if size > self.room(stream_id) or self._shrinks_table:
            return False
        self._room -= size
        self.pending += size
        self._out += (
            _HEAD.pack(len(block) << 8 | _HEADERS, _END_HEADERS, stream_id),
            block,
            _HEAD.pack(size << 8, 0, stream_id),
            data,
            _HEAD.pack(len(trailers) << 8 | _HEADERS, _END_HEADERS | _END_STREAM, stream_id),
            trailers,
        )
        self._end_output(stream_id)
        return True

    def _end_output(self, stream_id: int) -> None:
        if self._streams[stream_id].is_ended:
            del self._streams[stream_id]
        else:
            self.reset(stream_id, ErrorCode.NO_ERROR)  # the client may still send: it need not

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream for both sides."""
        self._streams.pop(stream_id, None)
        if stream_id not in self._reset:
            self._reset[stream_id] = None
            if len(self._reset) > RESET_STREAMS_KEPT:
                del self._reset[next(iter(self._reset))]
        self._out.append(frame(Kind.RST_STREAM, 0, stream_id, code.to_bytes(4, "big")))

    def is_open(self, stream_id: int) -> bool:
        """Whether anything can be sent on a stream."""
        return stream_id in self._streams

    def send_goaway(self, code: ErrorCode) -> None:
        """Tell the peer that the connection ends, and why."""
        self._out.append(goaway(self.last_stream_id, code))

    def take_output(self) -> bytes:
        """The bytes to be written."""
        data = b"".join(self._out)
        self._out.clear()
        self.pending = 0
        return data


_RECEIVERS: Final = {
    Kind.PRIORITY: ServerConnection._on_priority,
    Kind.RST_STREAM: ServerConnection._on_reset,
    Kind.SETTINGS: ServerConnection._on_settings,
    Kind.PUSH_PROMISE: ServerConnection._on_push_promise,
    Kind.PING: ServerConnection._on_ping,
    Kind.GOAWAY: ServerConnection._on_goaway,
    Kind.WINDOW_UPDATE: ServerConnection._on_window_update,
    Kind.CONTINUATION: ServerConnection._on_continuation,
}


def _window_update(stream_id: int, step: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream_id, step.to_bytes(4, "big"))


def _wrong(message: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.PROTOCOL_ERROR, message)


def _wrong_size(kind: Kind, payload: bytes) -> ConnectionFault:
    return ConnectionFault(
        ErrorCode.FRAME_SIZE_ERROR, f"a {kind.name} frame of {len(payload)} bytes"
    )


def _unpadded(payload: bytes) -> bytes:
    """The payload of a frame without its padding.

    Raises:
        ConnectionFault: there is more padding than frame.
    """
    if not payload or payload[0] >= len(payload):
        raise _wrong("more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _check_priority(stream_id: int, payload: bytes) -> None:
    if len(payload) < 5:
        raise _wrong_size(Kind.HEADERS, payload)
    if int.from_bytes(payload[:4], "big") & WINDOW_MAX == stream_id:
        raise _wrong(f"stream {stream_id} depends on itself")


_REQUIRED: Final = (":method", ":scheme", ":path")
_PSEUDO: Final = frozenset({*_REQUIRED, ":authority"})


def _check_request(headers: list[Field]) -> int | None:
    """Bytes that a content-length promises; None: there is none.

    Raises:
        ConnectionFault: the headers are no request.
    """
    pseudo: dict[str, str] = {}
    length: int | None = None
    is_behind = False
    for name, value, _ in headers:
        if name[0] == ":":
            if is_behind or name not in _PSEUDO or name in pseudo:
                raise _wrong(f"a header {name} that is not known, comes twice or behind others")
            pseudo[name] = value
        else:
            is_behind = True
            if name == "content-length":
                if not value.isascii() or not value.isdecimal() or len(value) > 18:
                    raise _wrong(f"a content-length of {value[:40]!r}")
                length = int(value)
    for name in _REQUIRED:
        if not pseudo.get(name):
            raise _wrong(f"no {name}")
    return length
