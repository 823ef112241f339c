"""Who is served in which turn of the loop: no kind of request keeps another waiting."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from oberth.remoting.aio import processors as processors_module
from oberth.remoting.aio import server as server_module
from oberth.remoting.aio import tls as tls_module
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import BURST_MAX, ProcessorTable
from oberth.remoting.aio.server import ServerOptions
from oberth.remoting.aio.tls import ENCRYPTED_A_TURN, RECORDS_AT_ONCE, ServerTls
from oberth.remoting.command import (
    Buffer,
    RemotingCommand,
    create_response,
    encode_frame_bytes,
)
from oberth.remoting.connection import FRAMES_A_TURN, RemotingConnection

SEND, PULL = 310, 11


class Taker:
    """Serves all that begins with a send, as compiled kernels do."""

    def serve(
        self, came: Mapping[Channel, bytes | bytearray]
    ) -> tuple[int, list[tuple[Channel, Buffer]]]:
        left: list[tuple[Channel, Buffer]] = []
        served = 0
        for channel, data in came.items():
            commands = RemotingConnection().receive_data(bytes(data))
            if any(command.code != SEND for command in commands):
                left.append((channel, data))
                continue
            served += len(commands)
            for command in commands:
                channel.write_frames(encode_frame_bytes(create_response(command, 0)))
        return served, left

    def memory(self, size: int) -> bytearray:
        return bytearray(size)


class Loop:
    """Counts turns of the loop while asked to."""

    def __init__(self) -> None:
        self.turns = 0
        self._handle: asyncio.Handle | None = None

    def begin(self) -> None:
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.turns += 1
        self.begin()

    def end(self) -> None:
        assert self._handle is not None
        self._handle.cancel()


class Peer:
    """A connection's server side, which is handed bytes in the turn that a test chooses."""

    def __init__(self, channel: Channel, loop: Loop) -> None:
        self.channel = channel
        self.answered: list[int] = []
        transport = channel.transport

        class Noted:
            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

            def write(_, data: Buffer) -> None:
                commands = RemotingConnection().receive_data(bytes(data))
                self.answered += [loop.turns] * len(commands)

        channel._transport = Noted()  # type: ignore[assignment]

    def ask(self, code: int, count: int) -> None:
        frames = (encode_frame_bytes(RemotingCommand(code=code, opaque=n)) for n in range(count))
        self.channel.data_received(b"".join(frames))


def table() -> ProcessorTable:
    def many(
        channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        del channels
        return [create_response(request, 0) for request in requests]

    def one(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        return create_response(request, 0)

    made = ProcessorTable()
    made.burst([SEND], many)
    made.sync([PULL], one)
    return made


async def peers_of(server: Any, loop: Loop, count: int, stack: Any) -> list[Peer]:
    for _ in range(count):
        _, writer = await asyncio.open_connection(*server.address)
        stack.callback(writer.close)
    async with asyncio.timeout(100):
        while len(server.channels) < count:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)
    return [Peer(channel, loop) for channel in server.channels]


async def turns_to_answer(
    server: Any, stack: Any, monkeypatch: Any, crowd_asks: int, one_asks: int
) -> int:
    """The most turns that one peer's requests wait while thirty others ask in each turn."""
    # No clock: a turn has time for one request of those that are served one by one.
    monkeypatch.setattr(processors_module, "TURN_S", 0.0)
    loop = Loop()
    peers = await peers_of(server, loop, 31, stack)
    loop.begin()
    waits = []
    for _ in range(40):
        for peer in peers[1:]:
            if not server.processors.has_put_off(peer.channel):
                peer.ask(crowd_asks, 3)
        asked = loop.turns
        before = len(peers[0].answered)
        peers[0].ask(one_asks, 1)
        async with asyncio.timeout(100):
            while len(peers[0].answered) == before:  # noqa: ASYNC110 - turns are what is counted
                await asyncio.sleep(0)
        waits.append(peers[0].answered[-1] - asked)
    loop.end()
    return max(waits)


async def test_a_pull_waits_for_no_crowd_of_senders(
    start_server: Any, stack: Any, monkeypatch: Any
) -> None:
    server = await start_server(table(), data_taker=Taker())
    assert await turns_to_answer(server, stack, monkeypatch, SEND, PULL) <= 3


async def test_a_sender_waits_for_no_crowd_of_pulls(
    start_server: Any, stack: Any, monkeypatch: Any
) -> None:
    server = await start_server(table(), data_taker=Taker())
    assert await turns_to_answer(server, stack, monkeypatch, PULL, SEND) <= 3


async def test_a_pull_has_its_turn_among_pulls(
    start_server: Any, stack: Any, monkeypatch: Any
) -> None:
    server = await start_server(table(), data_taker=Taker())
    # Each of the others has three requests at a time, and each turn serves one: all come round.
    assert await turns_to_answer(server, stack, monkeypatch, PULL, PULL) <= 3 * 31 + 3


async def test_what_is_deferred_is_served_in_the_next_turn(start_server: Any, stack: Any) -> None:
    waits: set[Channel] = set()

    def defer(came: dict[Channel, bytes | bytearray]) -> dict[Channel, bytes | bytearray]:
        later = {channel: came.pop(channel) for channel in [*came] if channel in waits}
        waits.clear()
        return later

    server = await start_server(table(), data_taker=Taker(), defer=defer)
    server._gathers = True
    loop = Loop()
    peers = await peers_of(server, loop, 3, stack)
    waits.update(peer.channel for peer in peers[:2])
    loop.begin()
    for peer in peers:
        peer.ask(SEND, 2)
    async with asyncio.timeout(100):
        while not peers[2].answered:  # noqa: ASYNC110 - turns are what is counted
            await asyncio.sleep(0)
        peers[0].ask(SEND, 1)  # comes behind what waits
        while not peers[1].answered:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)
    loop.end()
    (first,) = set(peers[2].answered)
    assert [peer.answered for peer in peers[:2]] == [[first + 1] * 3, [first + 1] * 2]


async def test_answers_that_say_nothing_but_success_are_not_encoded_one_by_one(
    start_server: Any, monkeypatch: Any
) -> None:
    """As of acknowledgements and commits; the bytes are those that the encoder makes."""
    answers: dict[int, dict[str, Any]] = {
        1: {}, 2: {"ext_fields": {}}, 3: {"ext_fields": {"a": "b"}}, 4: {"remark": "r"},
        5: {"body": b"x"},
    }  # fmt: skip

    def serve(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        response = create_response(request, 0, **answers.get(request.code, {}))
        if request.code == 6:
            response.language = "CPP"
        if request.code == 7:
            response.version = 1
        if request.code == 8:
            response.code = 8
        return response

    made = ProcessorTable()
    made.sync(range(1, 9), serve)
    server = await start_server(made)
    encoded: list[int] = []
    send = RemotingConnection.send

    def noted(self: RemotingConnection, command: RemotingCommand) -> list[Buffer]:
        encoded.append(command.opaque)
        return send(self, command)

    monkeypatch.setattr(RemotingConnection, "send", noted)
    reader, writer = await asyncio.open_connection(*server.address)
    for code in range(1, 9):
        request = RemotingCommand(code=code, opaque=-code)
        writer.write(encode_frame_bytes(request))
        expected = encode_frame_bytes(serve(server, request))
        assert await reader.readexactly(len(expected)) == expected
    assert encoded == [-3, -4, -5, -6, -7, -8]
    writer.close()


class Counted:
    """What calls of a function gave or got, by turn of the loop."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.by_turn: dict[int, int] = {}
        self.largest = 0

    def add(self, count: int) -> None:
        self.largest = max(self.largest, count)
        self.by_turn[self.loop.turns] = self.by_turn.get(self.loop.turns, 0) + count


@pytest.mark.parametrize("taker", [None, Taker()])
@pytest.mark.parametrize("crowd", [1, 3])
async def test_frames_of_one_read_are_decoded_in_turns(
    start_server: Any, stack: Any, monkeypatch: Any, taker: Taker | None, crowd: int
) -> None:
    """A read of 256 KiB holds 26 000 frames of ten bytes: 160 ms of the loop."""
    loop = Loop()
    server = await start_server(table(), data_taker=taker)
    peers = await peers_of(server, loop, crowd, stack)
    decoded = {peer.channel._connection: Counted(loop) for peer in peers}
    receive_data = RemotingConnection.receive_data

    def counted(self: RemotingConnection, data: Buffer) -> list[RemotingCommand]:
        commands = receive_data(self, data)
        if self in decoded:
            decoded[self].add(len(commands))
        return commands

    monkeypatch.setattr(RemotingConnection, "receive_data", counted)
    loop.begin()
    count = 4 * FRAMES_A_TURN + 1
    for peer in peers:
        peer.ask(PULL, count)
        assert not peer.channel.transport.is_reading()
    async with asyncio.timeout(100):
        while any(len(peer.answered) < count for peer in peers):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    loop.end()
    assert [sum(each.by_turn.values()) for each in decoded.values()] == [count] * crowd
    assert max(max(each.by_turn.values()) for each in decoded.values()) <= FRAMES_A_TURN
    for peer in peers:
        assert peer.channel.transport.is_reading()
        peer.ask(PULL, 1)
    async with asyncio.timeout(100):
        while any(len(peer.answered) <= count for peer in peers):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)


async def test_what_many_left_is_decoded_while_there_is_time(
    start_server: Any, stack: Any, monkeypatch: Any
) -> None:
    """A turn that reads from thirty connections does not decode of all of them."""
    loop = Loop()
    server = await start_server(table(), data_taker=Taker())
    peers = await peers_of(server, loop, 31, stack)
    server._gathers = True
    monkeypatch.setattr(server_module, "TURN_S", 0.0)
    kept: list[Channel] = []
    read_later = Channel.read_later

    def noted(channel: Channel, data: Buffer) -> None:
        kept.append(channel)
        read_later(channel, data)

    monkeypatch.setattr(Channel, "read_later", noted)
    loop.begin()
    async with asyncio.timeout(100):
        for asked in (40, 80, 120):
            for peer in peers:
                peer.ask(PULL, 40)
            while any(len(peer.answered) < asked for peer in peers):  # noqa: ASYNC110 - see above
                await asyncio.sleep(0)
    loop.end()
    assert [len(peer.answered) for peer in peers] == [120] * 31
    assert len(kept) == 3 * 31


async def test_a_burst_has_so_many_requests(
    start_server: Any, stack: Any, monkeypatch: Any
) -> None:
    """Sends that the kernels do not know yet, of many connections: 18 us each, all in one call."""
    loop, sizes = Loop(), []

    def many(
        channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        assert len(channels) == len(requests)
        sizes.append((loop.turns, len(requests)))
        return [create_response(request, 0) for request in requests]

    made = ProcessorTable()
    made.burst([SEND], many)
    server = await start_server(made)
    peers = await peers_of(server, loop, 5, stack)
    server._gathers = True
    monkeypatch.setattr(processors_module, "TURN_S", 0.0)
    loop.begin()
    for peer in peers:
        peer.ask(SEND, FRAMES_A_TURN)
    async with asyncio.timeout(100):
        while any(len(peer.answered) < FRAMES_A_TURN for peer in peers):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)
    loop.end()
    assert sum(size for _, size in sizes) == 5 * FRAMES_A_TURN
    assert max(size for _, size in sizes) <= BURST_MAX
    assert len({turn for turn, _ in sizes}) == len(sizes), "without time, one call a turn"


async def test_tls_records_of_one_read_are_read_in_turns(
    start_server: Any,
    stack: Any,
    monkeypatch: Any,
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """Of one byte each there may be 11 000 (20 ms)."""
    came, original = [], ServerTls.receive

    def receive(self: ServerTls, data: bytes | memoryview) -> tuple[bytes, bool]:
        plain, ended = original(self, data)
        came.append(len(plain))
        return plain, ended

    monkeypatch.setattr(ServerTls, "receive", receive)
    monkeypatch.setattr(tls_module, "RECORDS_A_TURN", RECORDS_AT_ONCE)
    server = await start_server(table(), ServerOptions(tls_context=tls_contexts[0]))
    reader, writer = await asyncio.open_connection(*server.address, ssl=tls_contexts[1])
    stack.callback(writer.close)
    requests = [RemotingCommand(code=PULL, opaque=number) for number in range(30)]
    for byte in b"".join(map(encode_frame_bytes, requests)):
        writer.write(bytes((byte,)))
    connection = RemotingConnection()
    answers: list[RemotingCommand] = []
    async with asyncio.timeout(100):
        while len(answers) < len(requests):
            answers += connection.receive_data(await reader.read(1 << 20))
    assert [each.opaque for each in answers] == list(range(30))
    assert max(came) == RECORDS_AT_ONCE


async def test_long_answers_are_encrypted_in_turns(
    start_server: Any,
    stack: Any,
    monkeypatch: Any,
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """One of 16 MiB held the loop for 25 to 50 ms; what is sent meanwhile comes behind it."""
    loop = Loop()
    encrypted = Counted(loop)
    send = ServerTls.send

    def counted(self: ServerTls, plain: bytes) -> None:
        encrypted.add(len(plain))
        send(self, plain)

    monkeypatch.setattr(ServerTls, "send", counted)
    body = bytes(range(256)) * (5 << 12)  # 5 MiB

    def long(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        channel.reply(request, create_response(request, 0, body=body))
        if request.is_oneway or request.opaque != 3:
            return None
        channel.reply(request, create_response(request, 0))
        channel.close()
        channel.close()
        return None

    made = table()
    made.sync([PULL], long)
    server = await start_server(made, ServerOptions(tls_context=tls_contexts[0]))
    # A limit above all answers: uvloop's client loses what it has paused when the peer closes.
    reader, writer = await asyncio.open_connection(
        *server.address, ssl=tls_contexts[1], limit=1 << 24
    )
    stack.callback(writer.close)
    connection = RemotingConnection()
    answers: list[RemotingCommand] = []
    loop.begin()
    frames = [RemotingCommand(code=code, opaque=n) for n, code in enumerate((PULL, PULL, SEND))]
    writer.write(b"".join(map(encode_frame_bytes, frames)))
    async with asyncio.timeout(100):
        while len(answers) < 3:
            answers += connection.receive_data(await reader.read(1 << 20))
        (channel,) = server.channels
        assert channel.takes_more()
        # What waits to be encrypted when the connection is closed goes before that.
        writer.write(encode_frame_bytes(RemotingCommand(code=PULL, opaque=3)))
        while data := await reader.read(1 << 20):
            answers += connection.receive_data(data)
    loop.end()
    assert [each.opaque for each in answers] == [0, 1, 2, 3, 3]
    assert [each.body for each in answers] == [body, body, b"", body, b""]
    assert max(encrypted.by_turn.values()) <= ENCRYPTED_A_TURN
    assert max(encrypted.by_turn.values()) > ENCRYPTED_A_TURN // 2


async def test_who_takes_nothing_of_a_long_answer_over_tls_is_given_no_more(
    start_server: Any, stack: Any, tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    served: list[int] = []

    def long(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        served.append(request.opaque)
        return create_response(request, 0, body=bytes(12 << 20))

    made = table()
    made.sync([PULL], long)
    server = await start_server(made, ServerOptions(tls_context=tls_contexts[0]))
    reader, writer = await asyncio.open_connection(*server.address, ssl=tls_contexts[1])
    stack.callback(writer.close)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    frames = [RemotingCommand(code=PULL, opaque=number) for number in range(9)]
    writer.write(b"".join(map(encode_frame_bytes, frames)))
    async with asyncio.timeout(100):
        while not [each for each in server.channels if each._write_paused]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (channel,) = server.channels
        while channel._has_rest:
            # What is not encrypted yet counts, too.
            rest = sum(map(len, channel._out))
            assert rest
            assert channel.unsent_bytes >= rest + channel.transport.get_write_buffer_size()
            assert server._unsent_budget.used >= rest
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(served) <= 2
        assert not channel.takes_more()
        assert not channel.transport.is_reading()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        connection = RemotingConnection()
        answers: list[RemotingCommand] = []
        while len(answers) < 9:
            answers += connection.receive_data(await reader.read(1 << 20))
    assert [each.opaque for each in answers] == served == list(range(9))
    # A connection that is lost meanwhile leaves nothing behind.
    writer.write(encode_frame_bytes(RemotingCommand(code=PULL, opaque=9)))
    async with asyncio.timeout(100):
        while not channel._has_rest:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)
        channel.abort()
        await channel.wait_closed()
        await asyncio.sleep(0)
    assert channel._out == []
