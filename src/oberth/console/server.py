"""Serving a console with uvicorn, on a socket that is open already."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn

from oberth.console.app import App
from oberth.console.config import ConsoleConfig
from oberth.console.connections import CONNECTIONS_MAX, Connection
from oberth.console.console import Console

CLOSE_TIMEOUT_S: Final = 3


class _Server(uvicorn.Server):
    """Signals are the business of who starts it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


@asynccontextmanager
async def serving(
    config: ConsoleConfig,
    listener: socket.socket,
    *,
    certificate: str | None = None,
    key: str | None = None,
) -> AsyncIterator[Console]:
    """Serve a console until the block ends.

    Args:
        config: of the console.
        listener: a socket that listens; it is closed at the end.
        certificate: PEM, for https.
        key: of the certificate.
    """
    async with Console(config) as console:
        server = _Server(
            uvicorn.Config(
                App(console),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,
                http=Connection,
                limit_concurrency=CONNECTIONS_MAX + 1,
                timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
        task = asyncio.create_task(server.serve([listener]), name="console serves")
        try:
            yield console
        finally:
            server.should_exit = True
            await task
            listener.close()
