"""Long frames are received straight into the memory that is appended, on both event loops."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.loop import run
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.command import (
    Buffer,
    RemotingCommand,
    create_response,
    encode_frame_bytes,
)
from oberth.remoting.connection import LONG_SIZE_MIN, RemotingConnection

TAKEN, OTHER = 310, 11
BOUND_S = 100.0
READ_MAX = 256 * 1024
"""What the loops read at once."""


class Taker:
    """Takes every frame with one code from the front, as compiled kernels do."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.kinds: list[type] = []
        self.given: list[int] = []

    def serve(
        self, came: Mapping[Channel, bytes | bytearray]
    ) -> tuple[int, list[tuple[Channel, Buffer]]]:
        left: list[tuple[Channel, Buffer]] = []
        count = 0
        for channel, data in came.items():
            used = 0
            while len(data) - used >= 8:
                end = used + 4 + int.from_bytes(data[used : used + 4], "big")
                if end > len(data):
                    break
                (command,) = RemotingConnection().receive_data(bytes(data[used:end]))
                if command.code != TAKEN:
                    break
                self.kinds.append(type(data))
                self.bodies.append(command.body_bytes())
                channel.write_frames(encode_frame_bytes(answer_to(command)))
                used = end
                count += 1
            if used != len(data):
                left.append((channel, memoryview(data)[used:] if used else data))
        return count, left

    def memory(self, size: int) -> bytearray:
        self.given.append(size)
        return bytearray(size)


def answer_to(request: RemotingCommand) -> RemotingCommand:
    response = create_response(request, 0, str(len(request.body)))
    response.opaque = request.opaque
    return response


async def sent(
    server: RemotingServer, frames: list[bytes], pieces: random.Random | None
) -> list[tuple[int, str | None]]:
    """What one connection hears that writes these frames, in pieces of any size."""
    reader, writer = await asyncio.open_connection(*server.address)
    data = b"".join(frames)

    async def write() -> None:
        start = 0
        while start < len(data):
            size = pieces.choice((1, 7, 100, 70_000, 700_000)) if pieces else len(data)
            writer.write(data[start : start + size])
            await writer.drain()
            start += size

    writing = asyncio.ensure_future(write())
    connection = RemotingConnection()
    heard: list[RemotingCommand] = []
    async with asyncio.timeout(BOUND_S):
        while len(heard) < len(frames):
            heard += connection.receive_data(await reader.read(1 << 16))
        await writing
    writer.close()
    return [(each.opaque, each.remark) for each in heard]


async def with_server(
    work: Callable[[RemotingServer, Taker], Any], *, options: ServerOptions | None = None
) -> None:
    taker, table = Taker(), ProcessorTable()

    def general(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        taker.bodies.append(request.body_bytes())
        return answer_to(request)

    table.sync([OTHER], lambda channel, request: answer_to(request))
    table.sync([TAKEN], general)
    async with RemotingServer(table, options, data_taker=taker) as server:
        await work(server, taker)


def on(loop: str, work: Callable[[RemotingServer, Taker], Any]) -> None:
    runner: Any = run if loop == "own" else asyncio.run
    runner(with_server(work))


@pytest.mark.parametrize("loop", ["own", "asyncio"])
@pytest.mark.parametrize("seed", range(3))
def test_frames_of_all_sizes_in_any_pieces(loop: str, seed: int) -> None:
    chance = random.Random(seed)
    sizes = (0, 1, 500, LONG_SIZE_MIN - 200, LONG_SIZE_MIN, 300_000, 900_000)

    async def work(server: RemotingServer, taker: Taker) -> None:
        wanted: list[bytes] = []

        async def connection() -> None:
            frames, expected = [], []
            for opaque in range(25):
                body = chance.randbytes(chance.choice(sizes))
                code = TAKEN if chance.random() < 0.7 else OTHER
                frames.append(
                    encode_frame_bytes(RemotingCommand(code=code, opaque=opaque, body=body))
                )
                expected.append((opaque, str(len(body))))
                if code == TAKEN:
                    wanted.append(body)
            assert sorted(await sent(server, frames, chance)) == expected

        await asyncio.gather(*(connection() for _ in range(3)))
        assert sorted(taker.bodies) == sorted(wanted)

    on(loop, work)


@pytest.mark.parametrize("loop", ["own", "asyncio"])
def test_the_rest_of_a_long_frame_is_not_copied_on_its_way(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    plain = Channel.data_received

    def counted(self: Channel, data: bytes) -> None:
        copied.append(len(data))
        plain(self, data)

    monkeypatch.setattr(Channel, "data_received", counted)
    body = random.Random(7).randbytes(3 << 20)

    async def work(server: RemotingServer, taker: Taker) -> None:
        frames = [encode_frame_bytes(RemotingCommand(code=TAKEN, opaque=1, body=body))]
        await sent(server, frames, None)
        # The read that shows how long the frame is, and at most one more before its turn ends.
        assert sum(copied) <= 2 * READ_MAX
        assert taker.bodies == [body]
        assert taker.kinds == [bytearray]  # the memory that it was received into
        assert taker.given == [len(frames[0])]

    on(loop, work)


@pytest.mark.parametrize("loop", ["own", "asyncio"])
def test_a_peer_that_ends_in_a_long_frame_leaves_nothing(loop: str) -> None:
    whole = encode_frame_bytes(RemotingCommand(code=TAKEN, opaque=1, body=bytes(1 << 20)))

    async def work(server: RemotingServer, taker: Taker) -> None:
        _, writer = await asyncio.open_connection(*server.address)
        writer.write(whole[:200_000])
        await writer.drain()
        async with asyncio.timeout(BOUND_S):
            while server._budget.used < 200_000:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
            assert server._budget.used == 200_000  # what has come, whatever it says of its length
            writer.close()
            while server.channels:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.001)
        assert server._budget.used == 0
        assert taker.bodies == []

    on(loop, work)


def test_a_long_frame_is_taken_to_its_end() -> None:
    frame = encode_frame_bytes(RemotingCommand(code=TAKEN, body=bytes(range(256)) * 4096))
    connection = RemotingConnection()
    assert not connection.begin_long(bytearray)
    assert connection.receive_data(frame[:6]) == []
    assert not connection.begin_long(bytearray)
    assert connection.receive_data(frame[6:1000]) == []
    assert connection.begin_long(bytearray)
    position = 1000
    while True:
        room = connection.room()
        assert len(room) == len(frame) - position
        count = min(len(room), 50_000)
        room[:count] = frame[position : position + count]
        room.release()
        position += count
        if connection.received(count):
            break
        assert connection.pending_size == position
    assert position == len(frame)
    assert connection.whole(b"") == frame
    assert connection.pending_size == 0
