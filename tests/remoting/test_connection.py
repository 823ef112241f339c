"""Frames from a stream: any chunking gives the same commands, and limits hold.

Memory is bounded, and random bytes either parse or are refused once and for all.
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import RemoteProtocolError
from oberth.remoting.command import RemotingCommand, encode_frame_bytes
from oberth.remoting.connection import RemotingConnection

Frames = Callable[[str], tuple[dict[str, Any], ...]]


def receive(chunks: list[bytes]) -> list[RemotingCommand]:
    connection = RemotingConnection()
    return [command for chunk in chunks for command in connection.receive_data(chunk)]


@pytest.mark.parametrize("recording", ["full-binary", "full-json"])
def test_any_chunking_of_recorded_frames(recording: str, golden_frames: Frames) -> None:
    frames = [base64.b64decode(recorded["frame"]) for recorded in golden_frames(recording)]
    stream = b"".join(frames)
    whole = receive([stream])
    assert len(whole) == len(frames)
    for size in (1, 7, 1000, 65536):
        assert receive([stream[n : n + size] for n in range(0, len(stream), size)]) == whole


@given(st.data())
def test_any_chunking(data: st.DataObject) -> None:
    commands = [
        RemotingCommand(
            code=n,
            opaque=n,
            ext_fields={"n": "x" * size},
            body=bytes(size),
            serialize_type=data.draw(st.integers(0, 1)),
        )
        for n, size in enumerate(data.draw(st.lists(st.integers(0, 3000), max_size=6)))
    ]
    stream = b"".join(map(encode_frame_bytes, commands))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    chunks = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    assert receive(chunks) == commands


@given(st.data())
def test_any_chunking_some_frames_at_a_time(data: st.DataObject) -> None:
    commands = [
        RemotingCommand(code=n, opaque=n, body=bytes(size))
        for n, size in enumerate(data.draw(st.lists(st.integers(0, 3000), max_size=12)))
    ]
    stream = b"".join(map(encode_frame_bytes, commands))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    connection = RemotingConnection(frames_a_turn=2)
    found: list[RemotingCommand] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        chunk = stream[start:end]
        if data.draw(st.booleans()):
            whole = connection.whole(chunk)
            if whole is None:
                continue
            connection.keep(whole)
            chunk = b""
        got = connection.receive_data(chunk)
        assert len(got) <= 2
        found += got
        while connection.has_more and data.draw(st.booleans()):
            got = connection.receive_data(b"")
            assert len(got) <= 2
            found += got
    while connection.has_more:
        found += connection.receive_data(b"")
    assert found == commands
    assert connection.pending_size == 0


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_random_bytes(chunks: list[bytes]) -> None:
    connection = RemotingConnection(frame_size_max=1000)
    for chunk in chunks:
        try:
            connection.receive_data(chunk)
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                connection.receive_data(b"")
            return
        assert connection.pending_size <= 1000


@given(st.binary(max_size=120), st.integers(0, 3))
def test_random_headers_in_good_frames(content: bytes, serialize_type: int) -> None:
    frame = struct.pack(">iI", 4 + len(content), serialize_type << 24 | len(content)) + content
    with contextlib.suppress(RemoteProtocolError):
        assert len(RemotingConnection().receive_data(frame)) == 1


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (struct.pack(">iI", -1, 0), "frame of -1 bytes"),
        (struct.pack(">iI", 3, 0), "in a frame of 3"),
        (struct.pack(">iI", 16 * 1024 * 1024 - 3, 0), "allowed 4 to 16777212"),
        (struct.pack(">iI", 100, 97), "header of 97 bytes in a frame of 100, allowed 96"),
        (struct.pack(">iI", 5_000_000, 4_999_990), "header of 4999990 bytes, allowed 4194304"),
        (struct.pack(">iI", 6, 7 << 24 | 2) + b"{}", "serialize type 7"),
        (b"GET / HTTP/1.1\r\n", "frame of"),
        (b"HTTP/1.1 400 Bad Request\r\n", "the peer speaks HTTP"),
    ],
)
def test_hostile_heads(head: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        RemotingConnection().receive_data(head)


def test_the_longest_frame_is_accepted() -> None:
    command = RemotingCommand(body=b"")
    overhead = len(encode_frame_bytes(command))
    connection = RemotingConnection(frame_size_max=1000)
    command.body = bytes(1000 - overhead)
    frame = b"".join(connection.send(command))
    assert len(frame) == 1000
    assert connection.receive_data(frame) == [command]
    with pytest.raises(RemoteProtocolError):
        RemotingConnection(frame_size_max=999).receive_data(frame)


def test_commands_before_a_hostile_frame_are_given_out() -> None:
    good = encode_frame_bytes(RemotingCommand(code=1))
    connection = RemotingConnection()
    assert len(connection.receive_data(good + good + b"\xff" * 8)) == 2
    assert connection.failure is not None
    with pytest.raises(RemoteProtocolError):
        connection.receive_data(good)


def test_buffers_of_every_kind_are_accepted() -> None:
    frame = encode_frame_bytes(RemotingCommand(code=1, body=b"abc"))
    connection = RemotingConnection()
    for data in (frame, bytearray(frame), memoryview(frame)):
        (command,) = connection.receive_data(data)
        assert command.body == b"abc"
        assert isinstance(command.body, bytes)


@pytest.mark.parametrize("cut", [9, 70_000, 100_000])
def test_a_long_frame_in_pieces(cut: int) -> None:
    commands = [
        RemotingCommand(code=n, body=bytes([n]) * size) for n, size in enumerate((1, 90_000, 2))
    ]
    stream = b"".join(map(encode_frame_bytes, commands))
    connection = RemotingConnection()
    got = connection.receive_data(stream[:cut]) + connection.receive_data(stream[cut:])
    assert got == commands
    assert all(isinstance(command.body, bytes) for command in got)
    assert connection.pending_size == 0
    # What follows a long frame may be hostile, or begin another one; so may its own header be.
    long = encode_frame_bytes(commands[1])
    connection.receive_data(long[:1000])
    assert connection.receive_data(long[1000:] + b"\xff" * 8) == [commands[1]]
    assert connection.failure is not None
    connection = RemotingConnection()
    connection.receive_data(long[:1000])
    assert connection.receive_data(long[1000:] + long[:50]) == [commands[1]]
    assert connection.receive_data(long[50:]) == [commands[1]]
    connection = RemotingConnection()
    broken = long[:8] + b"x" + long[9:]
    connection.receive_data(broken[:1000])
    with pytest.raises(RemoteProtocolError):
        connection.receive_data(broken[1000:])
    assert connection.failure is not None
