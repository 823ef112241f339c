"""Hundreds of idle clients with open Telemetry streams; ten thousand: benchmarks/grpc_idle.py."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from benchmarks.grpc_idle import settings
from benchmarks.peers.grpc_wire import Connection, message, sending
from tests.proxy.conftest import add_group, add_topic
from tests.proxy.test_http2_cases import until

from oberth.proxy import messages as m
from oberth.proxy.codes import Code
from oberth.testing.embedded_broker import EmbeddedBroker

COUNT = 300
BYTES_MAX = 30_000
"""What a connection, its stream, its client and our end of it may hold."""


async def connect(mq: EmbeddedBroker) -> Connection:
    host, _, port = mq.grpc_address.rpartition(":")
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(Connection, host, int(port)))[1]


async def join(mq: EmbeddedBroker, number: int) -> Connection:
    made = await connect(mq)
    raw = await made.call("Telemetry", f"idle-{number}", settings("G"), ends=False)
    assert m.TelemetryCommand.FromString(raw).status.code == Code.OK
    return made


async def test_members_of_one_group(mq: EmbeddedBroker) -> None:
    """Memory grows with their number, no task and no command is made for who cannot use it."""
    add_topic(mq, "idle")
    add_group(mq, "G")
    assert mq._front is not None
    server, clients = mq._front.server, mq._front.service.clients
    assert server is not None
    members = [await join(mq, number) for number in range(5)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        members += [await join(mq, number) for number in range(5, COUNT)]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < COUNT * BYTES_MAX, held
    assert len(server.channels) == len(clients) == COUNT
    assert all(not client.peer._tasks for client in clients)
    streams = [task for task in asyncio.all_tasks() if "GrpcChannel._run" in str(task.get_coro())]
    assert len(streams) == COUNT
    other = await connect(mq)
    raw = await other.call("SendMessage", "other", sending("idle", 1, b"x"), ends=True)
    assert m.SendMessageResponse.FromString(raw).status.code == Code.OK
    beat = m.HeartbeatRequest()
    for number in (0, COUNT - 1):
        raw = await members[number].call("Heartbeat", f"idle-{number}", message(beat), ends=True)
        assert m.HeartbeatResponse.FromString(raw).status.code == Code.OK
    for each in (*members, other):
        each.transport.abort()
    await until(lambda: not server.channels)
    assert server._budget.used == 0
    await until(lambda: not any(client.streams for client in clients))
