"""Frames of requests that compiled kernels serve, written by hand, and the answers to them."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from typing import Any

from oberth.broker.send_topics import ClientAddresses
from oberth.errors import RemoteProtocolError
from oberth.formats.message import encode_host
from oberth.remoting.aio.address import Address
from oberth.remoting.command import ONEWAY_FLAG
from oberth.remoting.connection import RemotingConnection

HOSTS = ClientAddresses(encode_host("10.1.2.3", 4567), encode_host("10.1.2.4", 10911))


def frame(
    opaque: int,
    fields: dict[str, object],
    body: bytes = b"",
    *,
    code: int,
    blanks: bool = False,
    header: bytes | None = None,
    **more: Any,
) -> bytes:
    """A frame whose header is written here and not by an encoder of ours."""
    made: dict[str, object] = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA"}
    made |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 493} | more
    if header is None:
        separators = None if blanks else (",", ":")
        header = json.dumps(made, separators=separators).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def is_whole_request(data: bytes, number: int, *codes: int) -> bool:
    """Whether the general way reads one request of these codes with this number in a frame."""
    try:
        commands = RemotingConnection().receive_data(data)
    except RemoteProtocolError:
        return False
    return (
        len(commands) == 1
        and commands[0].code in codes
        and commands[0].opaque == number
        and not commands[0].flag & 1
    )


async def answers_to(
    live: Any, frames: Sequence[bytes], pieces: Sequence[bytes], *, rests: bool = False
) -> dict[int, bytes]:
    """Has one connection bring pieces; the answers by number, until each frame has its own.

    With ``rests`` a piece waits until nothing that came before it is put off.
    """
    wanted = {
        command.opaque
        for data in frames
        for command in RemotingConnection().receive_data(data)
        if not command.flag & ONEWAY_FLAG
    }
    server = live.broker.server
    before = set(server.channels)
    address = live.broker.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    await live.until(lambda: set(server.channels) - before)
    (channel,) = set(server.channels) - before
    channel.context = HOSTS
    channel.remote = Address("10.1.2.3", 4567)  # refusals name it
    answers: dict[int, bytes] = {}

    for piece in pieces:
        channel.data_received(piece)  # not over the socket, which would join pieces as it likes
        if rests:
            await live.until(lambda: not server.processors.has_put_off(channel))
    async with asyncio.timeout(100):
        while answers.keys() != wanted:
            head = await reader.readexactly(4)
            data = head + await reader.readexactly(int.from_bytes(head, "big"))
            (command,) = RemotingConnection().receive_data(data)
            assert command.opaque not in answers
            answers[command.opaque] = data
    writer.close()
    await writer.wait_closed()
    return answers
