"""The socket that a console listens on, opened by the process that starts the console."""

from __future__ import annotations

import socket
from typing import Final

BACKLOG: Final = 128


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: the port is taken, or the address is not of this machine.
    """
    name = host.strip("[]")
    made = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((name, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        text = f"cannot listen on ('{host}', {port}): {error.strerror}"
        raise OSError(error.errno, text) from None
    return made


def address_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """Where browsers find what listens on a socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    name = f"[{host}]" if ":" in host else host
    return f"http{'s' if is_tls else ''}://{name}:{port}"
