"""One remoting connection without a socket: bytes in, commands out, and back.

A connection is a stream of frames (see ``command``). Whatever way the stream is cut into pieces,
the same commands come out. After a hostile frame the position of the next one is unknown: the
commands before it are still given out, then ``failure`` is set, every ``receive_data`` raises it,
and the shell must close the socket.

Not promised: that a request is answered or a response was asked for; the table of open requests is
the shell's.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Final

from oberth.errors import RemoteProtocolError
from oberth.remoting.command import (
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    Buffer,
    RemotingCommand,
    decode_binary_header,
    decode_json_header,
    encode_frame,
)

FRAME_HEAD_SIZE: Final = 8
"""The length field and the header word."""

COPIED_SIZE_MAX: Final = 64 * 1024
"""Bytes of a frame that comes in pieces up to which it is copied as a whole before it is read."""

LONG_SIZE_MIN: Final = 64 * 1024
"""Bytes that a frame must still lack to be received straight into its place."""

FRAMES_A_TURN: Final = 512
"""Frames that a turn of the loop decodes: some 2 ms. A read of 256 KiB may hold 26 000 of them."""

_HTTP: Final = int.from_bytes(b"HTTP", "big")
"""What an answer of a web server begins with, read as the length of a frame."""

_HEAD: Final = struct.Struct(
    ">"
    "i"  # length
    "I"  # serialize_type in the top byte, header_size below
)
assert _HEAD.size == FRAME_HEAD_SIZE


class RemotingConnection:
    """Frames of one connection, both directions.

    Held bytes never exceed one frame plus what one ``receive_data`` call brought.

    Args:
        frame_size_max: bytes of a whole frame, in either direction.
        header_size_max: bytes of a received header.
        frames_a_turn: frames that one call of `receive_data` decodes.

    Attributes:
        has_more: whether what was received may hold whole frames that are not decoded yet:
            ``receive_data(b"")`` goes on with them.
    """

    __slots__ = (
        "_filled",
        "_frame_size",
        "_frames_a_turn",
        "_pending",
        "failure",
        "frame_size_max",
        "has_more",
        "header_size_max",
    )

    def __init__(
        self,
        *,
        frame_size_max: int = FRAME_SIZE_MAX,
        header_size_max: int = HEADER_SIZE_MAX,
        frames_a_turn: int = sys.maxsize,
    ) -> None:
        self.frame_size_max = frame_size_max
        self.header_size_max = header_size_max
        self._pending = bytearray()
        self._frame_size = FRAME_HEAD_SIZE  # bytes that _pending needs before it is worth a look
        # Bytes of _pending that have come while a long frame is received into it; -1: all of it.
        self._filled = -1
        self._frames_a_turn = frames_a_turn
        self.failure: RemoteProtocolError | None = None
        self.has_more = False

    @property
    def pending_size(self) -> int:
        """Bytes of a frame that has not fully arrived, or of those that are not decoded yet."""
        return len(self._pending) if self._filled < 0 else self._filled

    def begin_long(self, memory: Callable[[int], bytearray]) -> bool:
        """Whether what has begun is a long frame: `room` and `received` take it to its end.

        Nothing else may be called until `received` says that it is whole.

        Args:
            memory: gives memory for a frame. Where it is not written first, a peer that says how
                long its frame is and sends nothing costs addresses, and no memory.
        """
        begun = self._pending
        if self.failure is not None or self._frame_size - len(begun) < LONG_SIZE_MIN:
            return False
        self._filled = len(begun)
        self._pending = whole = memory(self._frame_size)
        whole[: len(begun)] = begun
        return True

    def room(self) -> memoryview:
        """Where the rest of a long frame goes."""
        return memoryview(self._pending)[self._filled :]

    def received(self, count: int) -> bool:
        """So many bytes lie in `room` now; whether the frame is whole, for `whole(b"")`."""
        self._filled += count
        if self._filled < self._frame_size:
            return False
        self._filled = -1
        return True

    def whole(self, data: bytes) -> bytes | bytearray | None:
        """What is kept and ``data``, which is then kept no more; None if it ends no frame.

        Raises:
            RemoteProtocolError: see `receive_data`.
        """
        if self.failure is not None:
            raise self.failure
        self.has_more = False
        pending = self._pending
        if not pending:
            return data
        pending += data
        if len(pending) < self._frame_size:
            return None
        self._pending = bytearray()
        return pending

    def keep(self, data: Buffer) -> None:
        """Take back what `whole` gave, to be decoded later."""
        self._pending += data
        self._frame_size = FRAME_HEAD_SIZE
        self.has_more = True

    def receive_data(self, data: Buffer) -> list[RemotingCommand]:
        """The commands that ``data`` completes, in order; look at ``failure`` after them.

        At most ``frames_a_turn`` of them; look at ``has_more``, too.

        Raises:
            RemoteProtocolError: a frame that is too long, too short, or whose header cannot be
                read, and no command came before it in ``data``.
        """
        if self.failure is not None:
            raise self.failure
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._frame_size:
                self.has_more = False
                return []
            if self._frame_size > COPIED_SIZE_MAX:
                return self._decode_long(pending)
            data = bytes(pending)
            pending.clear()
        elif not isinstance(data, bytes):
            data = bytes(data)
        return self._decode_all(data, [])

    def _decode_long(self, pending: bytearray) -> list[RemotingCommand]:
        """The commands in ``pending``, which begins with a long frame: its body is copied once."""
        size = self._frame_size
        self._pending = bytearray()
        with memoryview(pending) as view:
            _, word = _HEAD.unpack_from(view)
            body_start = FRAME_HEAD_SIZE + (word & 0xFFFFFF)
            try:
                command = _decode_header(word >> 24, bytes(view[FRAME_HEAD_SIZE:body_start]))
            except RemoteProtocolError as error:
                self.failure = error
                raise
            command.body = bytes(view[body_start:size])
            return self._decode_all(bytes(view[size:]), [command])

    def _decode_all(self, data: bytes, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        try:
            self._decode(data, commands.append)
        except RemoteProtocolError as error:
            self.failure = error
            if not commands:
                raise
        return commands

    def _decode(self, data: bytes, append: Callable[[RemotingCommand], None]) -> None:
        unpack_head = _HEAD.unpack_from
        position = 0
        size = len(data)
        needed = FRAME_HEAD_SIZE
        left = self._frames_a_turn
        while size - position >= FRAME_HEAD_SIZE:
            if not left:
                break
            left -= 1
            length, word = unpack_head(data, position)
            header_size = word & 0xFFFFFF
            if not 4 + header_size <= length <= self.frame_size_max - 4 or (
                header_size > self.header_size_max
            ):
                raise self._bad_head(length, header_size)
            end = position + 4 + length
            if end > size:
                needed = 4 + length
                break
            body_start = position + 8 + header_size
            command = _decode_header(word >> 24, data[position + 8 : body_start])
            if body_start != end:
                command.body = data[body_start:end]
            append(command)
            position = end
        if position < size:
            self._pending += memoryview(data)[position:]
        self._frame_size = needed
        self.has_more = not left and size - position >= FRAME_HEAD_SIZE

    def _bad_head(self, length: int, header_size: int) -> RemoteProtocolError:
        if length == _HTTP:
            return RemoteProtocolError("the peer speaks HTTP, which is no remoting protocol")
        if not 0 <= length <= self.frame_size_max - 4:
            return RemoteProtocolError(
                f"frame of {length} bytes after its length field, "
                f"allowed 4 to {self.frame_size_max - 4}"
            )
        if header_size > self.header_size_max:
            return RemoteProtocolError(
                f"header of {header_size} bytes, allowed {self.header_size_max}"
            )
        return RemoteProtocolError(
            f"header of {header_size} bytes in a frame of {length}, allowed {length - 4}"
        )

    def send(self, command: RemotingCommand) -> list[Buffer]:
        """The frame of ``command`` as buffers in order.

        Raises:
            LocalProtocolError: see ``encode_frame``.
        """
        return encode_frame(command, self.frame_size_max)


def _decode_header(serialize_type: int, header: bytes) -> RemotingCommand:
    if serialize_type == 0:
        return decode_json_header(header)
    if serialize_type == 1:
        return decode_binary_header(header)
    raise RemoteProtocolError(f"serialize type {serialize_type}, allowed 0 (JSON) and 1 (ROCKETMQ)")
