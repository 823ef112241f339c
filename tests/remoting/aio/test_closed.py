"""What a connection leaves when it has ended: nothing, with the collector off."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
import weakref

import pytest

from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.aio.tls import self_signed_context
from oberth.remoting.command import RemotingCommand, encode_frame_bytes

CONNECTIONS = 3


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("last", "is_refused"),
    [
        (b"", False),
        (b"\xff" * 40, True),
        (b"\x00\x00\x10\x00" + b"x" * 99, True),
        (b"\x00\x00\x00\x30\x00\x00\x00\x10{" * 9, True),
        (b"\x00\x00\x10\x00\x00\x00\x00\x10{", False),
    ],
    ids=["whole", "no length", "no header size", "no header", "half"],
)
async def test_a_closed_connection_leaves_nothing_to_the_collector(
    is_tls: bool, last: bytes, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What refers to itself stays until a collection, which a broker makes too rarely for this.

    Nor does a timer hold what is closed: TLS alone keeps some 60 KB a connection.
    """
    caplog.set_level(logging.ERROR, "oberth")  # pytest keeps records, and they the channel
    mine = ssl.create_default_context()
    mine.check_hostname = False
    mine.verify_mode = ssl.CERT_NONE
    gone: asyncio.Queue[object] = asyncio.Queue()
    kept: list[weakref.ref[Channel]] = []

    def note(channel: Channel) -> None:
        kept.append(weakref.ref(channel, gone.put_nowait))

    options = ServerOptions(port=0, tls_context=self_signed_context())
    gc.disable()
    try:
        async with RemotingServer(ProcessorTable(), options, on_open=note) as server:
            for _ in range(CONNECTIONS):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", server.address.port, ssl=mine if is_tls else None
                )
                writer.write(encode_frame_bytes(RemotingCommand(code=32_100)))
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
                writer.write(last)
                if is_refused:
                    with contextlib.suppress(OSError):
                        await reader.read()  # until the server closes
                writer.transport.abort()
                del reader, writer
            async with asyncio.timeout(60):
                for _ in range(CONNECTIONS):
                    await gone.get()
    finally:
        gc.enable()
