"""HttpEndpoint: ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP/1.1.

    /healthz   200 as long as the broker's loop turns
    /readyz    200 when it takes messages: it listens, and its disk is not full; else 503 and why
    /metrics   see `oberth.broker.metrics`; one rendering at a time: who comes meanwhile gets it;
               ?format=exporter: names and labels of RocketMQ's exporter

GET and HEAD only, one request for each connection, nobody is asked who he is: it shows names of
topics and groups and no message. Off unless ``httpPort`` is set, and on loopback unless
``httpAddress`` says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from oberth.broker.metrics import CONTENT_TYPE, NATIVE, STYLES
from oberth.remoting.aio.address import Address, peer_address
from oberth.remoting.aio.service import stop_accepting

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG: Final = logging.getLogger(__name__)

HEAD_SIZE_MAX: Final = 8 * 1024
"""Bytes of a request's head."""

REQUEST_TIMEOUT_S: Final = 5.0
"""For the head to come and for the answer to be taken."""

CONNECTIONS_MAX: Final = 32

_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_Answer = tuple[int, str, bytes | bytearray]


class Page(Protocol):
    """What ``/metrics`` shows."""

    async def render(self, style: str = NATIVE) -> bytes | bytearray:
        """All figures, in the names and labels of a style."""


class HttpEndpoint:
    """Serves one broker, or several as one; ended by ``aclose``.

    Args:
        metrics: of the broker.
        not_ready: why the broker takes no messages, or None.
    """

    def __init__(self, metrics: Page, not_ready: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._rendering = asyncio.Lock()  # a rendering at a time: it holds all lines in memory
        self._pages: dict[str, asyncio.Task[bytes | bytearray]] = {}  # on their way, by style
        self._server: asyncio.Server | None = None
        self._is_closed = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their coming

    async def start(self, host: str, port: int) -> None:
        """Listen; OSError if the port is taken."""
        self._is_closed = False
        self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_SIZE_MAX)
        _LOG.info("serving HTTP on %s", self.address)

    @property
    def address(self) -> Address:
        """Where it listens."""
        assert self._server is not None, "the endpoint is not started"
        return peer_address(self._server.sockets[0].getsockname())

    async def aclose(self) -> None:
        """Stop listening and end what is at work."""
        if self._server is None:
            return
        await stop_accepting(self._server)
        self._is_closed = True
        tasks = [*self._tasks, *self._pages.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pages.clear()  # also of one that was cancelled before it began
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._is_closed:  # it was accepted just before
            writer.transport.abort()
            return
        writer.transport.set_write_buffer_limits(0)  # what was drained, the system has taken
        try:
            if len(self._tasks) >= CONNECTIONS_MAX:
                # A request takes milliseconds: the oldest belongs to a peer that dawdles.
                oldest = next(iter(self._tasks))
                del self._tasks[oldest]
                oldest.cancel()
            self._tasks[task] = None
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target = _request_line(head)
            status, content_type, body = await self._answer(method, target)
            writer.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode("ascii")
            )
            if method != "HEAD":
                writer.write(body)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.drain()
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError) as error:
            _LOG.debug("a request was given up: %s", error)
            writer.transport.abort()  # closed in order, it would wait for a peer that takes nothing
        except asyncio.CancelledError:
            # Others need its place, or the endpoint closes; asyncio would log a traceback for it.
            _LOG.debug("a request was given up for others")
            writer.transport.abort()
        finally:
            self._tasks.pop(task, None)
            writer.close()

    async def _answer(self, method: str, target: str) -> _Answer:
        path, _, query = target.partition("?")
        if method not in ("GET", "HEAD"):
            return (400 if not method else 405), _TEXT, b"allowed are GET and HEAD\n"
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            why = self._not_ready()
            return (200, _TEXT, b"ready\n") if why is None else (503, _TEXT, f"{why}\n".encode())
        if path == "/metrics":
            style = _style(query)
            if style not in STYLES:
                return 400, _TEXT, f"format is one of {', '.join(STYLES)}\n".encode()
            return 200, CONTENT_TYPE, await self._page(style)
        return 404, _TEXT, b"there are /metrics, /healthz and /readyz\n"

    async def _page(self, style: str) -> bytes | bytearray:
        page = self._pages.get(style)
        if page is None:
            page = self._pages[style] = asyncio.create_task(self._render(style))
        return await asyncio.shield(page)  # who goes away takes it from nobody else

    async def _render(self, style: str) -> bytes | bytearray:
        try:
            async with self._rendering:
                return await self._metrics.render(style)
        finally:
            self._pages.pop(style, None)


def _style(query: str) -> str:
    """Whose names are asked for; the native ones unless ``format`` is given."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "format":
            return value
    return NATIVE


def _request_line(head: bytes) -> tuple[str, str]:
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return "", ""
    return parts[0], parts[1]
