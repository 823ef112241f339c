"""One socket of the HA port: what is read is taken in that turn, and errors reach the task.

Most have no socket: the test is the loop's side and records what a transport is asked to do.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop
from tests.rigs.small_brokers import make, until

from oberth.broker.ha_connection import (
    BULK_BYTES,
    READ_BYTES,
    REPORT_BYTES,
    HAConnection,
    Take,
)
from oberth.errors import RemoteProtocolError
from oberth.remoting.aio.address import parse_address, peer_address
from oberth.remoting.command import RemotingCommand
from oberth.store.replication import REPORT

BOUND_S = 100.0


class Transport(asyncio.Transport):
    """Records."""

    def __init__(self, peer: tuple[str, int] | None = None) -> None:
        super().__init__({"peername": peer})
        self.done: list[str] = []
        self.closing = False

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever kept here."""

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.done.append("abort")
        self.closing = True

    def write(self, data: Any) -> None:
        self.done.append(f"write {bytes(data).decode('latin-1')}")


@pytest.fixture
async def connection() -> HAConnection:
    made = HAConnection()
    made.connection_made(Transport())
    return made


def asked(connection: HAConnection) -> list[str]:
    """What the transport was asked since the last look."""
    done = cast(Transport, connection.transport).done
    found = done[:]
    done.clear()
    return found


def echo(connection: HAConnection) -> Take:
    """Writes what comes."""

    def take(data: bytes | memoryview) -> None:
        connection.write(bytes(data))

    return take


def append_to(taken: list[bytes]) -> Take:
    """Keeps what comes."""

    def take(data: bytes | memoryview) -> None:
        taken.append(bytes(data))

    return take


async def test_what_is_read_is_taken_and_answered_at_once(connection: HAConnection) -> None:
    connection.attach(echo(connection))
    connection.data_received(b"one")
    assert asked(connection) == ["write one"]
    assert not await connection.wait_ended(0)


async def test_what_comes_early_is_kept(connection: HAConnection) -> None:
    connection.data_received(b"early")
    assert asked(connection) == ["pause"]
    connection.attach(echo(connection))
    assert asked(connection) == ["write early", "resume"]


async def test_a_long_read_lets_the_loop_turn(connection: HAConnection) -> None:
    connection.attach(lambda data: None)
    connection.data_received(bytes(BULK_BYTES))
    assert asked(connection) == ["pause"]
    await asyncio.sleep(0)
    assert asked(connection) == ["resume"]
    connection.data_received(bytes(BULK_BYTES))
    connection.end()
    await asyncio.sleep(0)
    assert asked(connection) == ["pause", "abort"]


async def test_what_is_not_taken_is_given_again_before_more_is_read(
    connection: HAConnection,
) -> None:
    taken: list[bytes] = []

    def take(data: bytes | memoryview) -> memoryview:
        taken.append(bytes(data[:2]))
        return memoryview(data)[2:]

    connection.attach(take)
    connection.get_buffer(-1)[:5] = b"12345"
    connection.buffer_updated(5)
    assert (taken, asked(connection)) == ([b"12"], ["pause"])
    await asyncio.sleep(0)
    assert (taken, asked(connection)) == ([b"12", b"34"], ["pause"])
    await asyncio.sleep(0)
    assert (taken, asked(connection)) == ([b"12", b"34", b"5"], ["resume"])
    connection.data_received(b"678")
    connection.end()
    await asyncio.sleep(0)
    assert taken[3:] == [b"67"]


async def test_what_came_early_is_taken_in_turns_too(connection: HAConnection) -> None:
    taken: list[bytes] = []

    def take(data: bytes | memoryview) -> memoryview:
        taken.append(bytes(data[:2]))
        return memoryview(data)[2:]

    connection.data_received(b"123")
    connection.attach(take)
    assert (taken, asked(connection)) == ([b"12"], ["pause", "pause"])
    await asyncio.sleep(0)
    assert (taken, asked(connection)) == ([b"12", b"3"], ["resume"])


async def test_an_error_ends_it_and_reaches_its_task(connection: HAConnection) -> None:
    taken: list[bytes] = []

    def take(data: bytes | memoryview) -> None:
        taken.append(bytes(data))
        raise RemoteProtocolError("no report")

    connection.attach(take)
    waiting = asyncio.create_task(connection.wait_ended(BOUND_S))
    await asyncio.sleep(0)
    connection.data_received(b"one")
    connection.data_received(b"two")
    assert asked(connection) == ["abort"]
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(RemoteProtocolError, match="no report"):
        await waiting
    assert taken == [b"one"], "nothing is taken of a connection that has ended"


async def test_who_waits_for_the_socket_goes_on_when_it_is_gone(connection: HAConnection) -> None:
    seen = [connection.is_writable]
    connection.pause_writing()
    seen.append(connection.is_writable)
    assert seen == [True, False]
    waiting = asyncio.create_task(connection.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.resume_writing()
    await waiting
    connection.pause_writing()
    waiting = asyncio.create_task(connection.drain())
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await waiting
    assert not connection.is_writable
    assert await connection.wait_ended(0)


async def test_every_read_comes_into_the_same_buffer(connection: HAConnection) -> None:
    taken: list[bytes] = []
    connection.attach(append_to(taken))
    for said in (b"first", b"two"):
        room = connection.get_buffer(-1)
        room[: len(said)] = said
        connection.buffer_updated(len(said))
    assert taken == [b"first", b"two"]
    assert connection.get_buffer(-1) is connection.get_buffer(1 << 30)


async def test_what_comes_early_outlives_the_next_read(connection: HAConnection) -> None:
    connection.get_buffer(-1)[:5] = b"early"
    connection.buffer_updated(5)
    connection.get_buffer(-1)[:5] = b"later"
    taken: list[bytes] = []
    connection.attach(append_to(taken))
    assert taken == [b"early"]


async def test_who_reports_is_given_less_room() -> None:
    accepted = HAConnection(lambda _: None)
    assert len(accepted.get_buffer(-1)) == REPORT_BYTES < READ_BYTES
    assert len(HAConnection().get_buffer(-1)) == READ_BYTES


@pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@pytest.mark.parametrize("read_size", [100, 1 << 20])
def test_pieces_leave_in_order_and_only_the_last_ones_are_kept(
    factory: Callable[[], asyncio.AbstractEventLoop], read_size: int
) -> None:
    """As many parts as come to it, of any size, with other bytes between them."""
    random = Random(read_size)
    sizes = [0, 1, 20, 20_000]
    rounds = [
        [random.randbytes(random.choice(sizes)) for _ in range(random.choice([1, 1100]))]
        for _ in range(12)
    ]
    expected = b"".join(b"beat" + b"".join(parts) for parts in rounds)
    taken = bytearray()

    async def send() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            dialled = HAConnection()
            _, connection = await loop.create_connection(
                lambda: dialled, *listener.getsockname()[:2]
            )
            peer, _ = await asyncio.to_thread(listener.accept)

        def read() -> None:
            with peer:
                while data := peer.recv(read_size if len(taken) < 1 << 20 else 1 << 20):
                    taken.extend(data)

        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(read))
            for parts in rounds:
                connection.write(b"beat")
                await connection.drain()
                kept = [bytearray(part) for part in parts]
                connection.write_parts([memoryview(part) for part in kept])
                assert connection.transport.get_write_buffer_size() <= sum(map(len, parts))
                for part in kept:
                    part[:] = bytes(len(part))  # they are not looked at again
            await connection.drain()
            connection.transport.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(send())
    assert taken == expected


@pytest.mark.parametrize(
    ("peer", "written", "is_it"),
    [
        ("10.0.0.7", "10.0.0.7:10911", True),
        ("::ffff:10.0.0.7", "10.0.0.7:10911", True),
        ("fe80::1%eth0", "[fe80::1]:10911", True),
        ("fe80::1%eth0", "fe80::1%eth0:10911", True),
        ("2001:db8::1", "[2001:DB8:0:0:0:0:0:1]:10911", True),
        ("10.0.0.77", "10.0.0.7:10911", False),
        ("2001:db8::1", "[2001:db8::12]:10911", False),
    ],
)
async def test_a_slave_is_known_by_its_address_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer: str, written: str, is_it: bool
) -> None:
    """By one on the HA port, by others where it asks for tables and at the name servers."""
    master = make(tmp_path, "127.0.0.1:1", haAllowedAddresses="10.0.0.0/24;2001:db8::/32;fe80::/10")
    ha = master.services.ha
    connection = HAConnection(ha._accepted)
    connection.connection_made(Transport((peer, 7)))
    try:
        await until(lambda: ha._served)
        connection.data_received(REPORT.pack(0))
        await until(lambda: ha.replicas.acked)
        assert ha.is_followed_from(written) == is_it
        lacking = SimpleNamespace(appended_offset=10, max_phy_offset=0)  # all of it lacks
        monkeypatch.setattr(ha, "_store", lacking)
        request = RemotingCommand(code=43)
        channel: Any = SimpleNamespace(remote=peer_address(parse_address(written)))
        kept = ha.answer_behind_log(channel, request, request)
        assert (kept is None) == is_it
        (shown,) = ha.to_body()["haConnectionInfo"]
        assert shown["addr"] == str(peer_address((peer, 7)))
    finally:
        await ha.aclose()


async def test_a_slave_that_has_not_said_how_far_it_is_counts_as_behind(tmp_path: Path) -> None:
    """It is connected and asks at once: its report may come after what it asks."""
    ha = make(tmp_path, "127.0.0.1:1").services.ha
    connection = HAConnection(ha._accepted)
    connection.connection_made(Transport(("10.0.0.7", 7)))
    try:
        await until(lambda: ha._served)
        request = RemotingCommand(code=43)
        channel: Any = SimpleNamespace(remote=peer_address(parse_address("10.0.0.7:10911")))
        assert ha.answer_behind_log(channel, request, request) is None
        channel.reply = lambda _, response: told.append(response)
        told: list[RemotingCommand] = []
        connection.data_received(REPORT.pack(0))
        await until(lambda: told == [request])
    finally:
        await ha.aclose()
