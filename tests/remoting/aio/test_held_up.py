"""A client whose program holds the loop: its requests have their time all the same.

Thousands of sends in a loop, in debug mode, take longer than a send may: nothing leaves before the
loop turns, and the answers wait in the socket while others are worked on. The clock is the test's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from oberth.errors import RemotingTimeoutError
from oberth.remoting.aio.channel import UNREAD_S_MAX, Channel
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.descriptors import unread_bytes
from oberth.remoting.command import RemotingCommand, create_response, encode_frame_bytes
from oberth.remoting.connection import RemotingConnection

BOUND_S = 100.0
"""For what must happen: only a test that hangs takes so long."""


class Held:
    """A channel, its peer's end, and the loop's clock."""

    def __init__(self, channel: Channel, peer: socket.socket, clock: list[float]) -> None:
        self.channel = channel
        self.peer = peer
        self._clock = clock

    async def pass_by(self, seconds: float) -> None:
        """So much time passes in one turn of the loop, and some turns follow."""
        self._clock[0] += seconds
        for _ in range(5):
            await asyncio.sleep(0)

    def ask(self) -> asyncio.Future[RemotingCommand]:
        return self.channel.invoke_nowait(RemotingCommand(code=7), 1.0)

    async def receive(self) -> RemotingCommand:
        data = await asyncio.get_running_loop().run_in_executor(None, self.peer.recv, 65536)
        (request,) = RemotingConnection().receive_data(data)
        return request


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    loop = asyncio.get_running_loop()
    if type(loop).__module__.startswith("uvloop"):
        pytest.skip("its timers go by a clock of its own")
    real, clock = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() * 1e-9 + clock[0])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with RemotingClient() as client:
            channel = await client.channel(f"127.0.0.1:{listening.getsockname()[1]}")
            peer, _ = listening.accept()
            with peer:
                yield Held(channel, peer, clock)


async def test_the_time_begins_when_a_request_leaves(held: Held) -> None:
    future = held.ask()
    await held.pass_by(0.9)  # the program goes on before the loop turns
    await held.pass_by(0.2)
    assert not future.done()
    await held.pass_by(0.7)
    assert not future.done()
    await held.pass_by(0.15)
    assert isinstance(future.exception(), RemotingTimeoutError)


async def test_what_came_in_time_is_read_first(held: Held) -> None:
    future = held.ask()
    await held.pass_by(0)
    request = await held.receive()
    held.channel.hold_reading()  # as if there were much before it
    answer = create_response(request, 0, "in time")
    answer.opaque = request.opaque
    held.peer.sendall(encode_frame_bytes(answer))
    async with asyncio.timeout(BOUND_S):
        while not unread_bytes(held.channel.transport):  # noqa: ASYNC110 - the system delivers it
            await asyncio.sleep(0)
    await held.pass_by(1.1)
    await held.pass_by(0.02)
    assert not future.done()
    held.channel.resume_reading()
    assert (await future).remark == "in time"


async def test_nothing_to_read_means_no_answer(held: Held) -> None:
    future = held.ask()
    await held.pass_by(0)
    await held.pass_by(1.1)
    assert isinstance(future.exception(), RemotingTimeoutError)


async def test_who_never_reads_does_not_wait_for_ever(held: Held) -> None:
    future = held.ask()
    await held.pass_by(0)
    held.channel.hold_reading()
    held.peer.sendall(b"\0")
    async with asyncio.timeout(BOUND_S):
        while not unread_bytes(held.channel.transport):  # noqa: ASYNC110 - the system delivers it
            await asyncio.sleep(0)
    waited = 0.0
    while not future.done():
        await held.pass_by(0.2)
        waited += 0.2
        assert waited < 2 * UNREAD_S_MAX
    assert waited > UNREAD_S_MAX
    assert isinstance(future.exception(), RemotingTimeoutError)
