"""An address at which nobody answers, not even with a refusal: that of a machine that is gone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def silent_address() -> Iterator[str]:
    """``host:port`` whose queue of connections is full: who dials it waits until it gives up."""
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = held.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        host, port = server.getsockname()
        yield f"{host}:{port}"
