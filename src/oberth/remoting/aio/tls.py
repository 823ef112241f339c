"""TLS on a connection whose first bytes have already been read.

asyncio can only start TLS before it has read anything; here plain text and TLS share a port and the
first byte decides. So the handshake runs over memory buffers, on asyncio and uvloop alike.
"""

from __future__ import annotations

import contextlib
import ssl
from enum import Enum


class TlsMode(Enum):
    """What a server accepts. RocketMQ: ``TlsMode``, key ``tls.server.mode``."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ServerTls:
    """The server's side of one TLS connection, without a socket.

    Feed it what the socket brought; take what is to be written. Both ends of plain text are bytes.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "_shaken", "_unsent")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = False
        self._unsent: list[bytes] = []

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Plain text that ``data`` completes, and whether the peer ended the connection.

        Raises:
            ssl.SSLError: the handshake failed or a record is broken.
        """
        self._incoming.write(data)
        if not self._shaken:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return b"", False
            self._shaken = True
            for plain in self._unsent:
                self._object.write(plain)
            self._unsent.clear()
        pieces = []
        ended = False
        while True:
            try:
                piece = self._object.read(65536)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                ended = True
                break
            if not piece:
                ended = True
                break
            pieces.append(piece)
        return b"".join(pieces), ended

    def send(self, plain: bytes) -> None:
        """Encrypt ``plain``; the records are in ``take_outgoing``."""
        if self._shaken:
            self._object.write(plain)
        else:
            self._unsent.append(plain)

    def close(self) -> None:
        """Tell the peer that no more comes."""
        # The peer's own farewell has not come yet, or never will: nobody waits for it here.
        with contextlib.suppress(ssl.SSLError):
            self._object.unwrap()

    def take_outgoing(self) -> bytes:
        """Bytes for the socket: handshake messages and records."""
        return self._outgoing.read()
