"""DelayingRelay: a connection that takes longer, where the kernel has no ``tc netem``.

It accepts connections and dials its target for each. What comes from one end goes to the other a
fixed time later, in order and whole; a closed direction closes as late. Two threads a direction
keep the delay from costing rate: one reads and notes the time, the other waits and writes. What is
under way is bounded, as by a window of TCP.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW_BYTES = 6 << 20
"""Bytes under way in one direction: what Linux lets a receiver's window grow to."""
_READ_BYTES = 256 << 10


class DelayingRelay:
    """A port on loopback that leads to another one.

    Args:
        target: ``host:port``.
        delay_s: how long each way takes.
        at: where to listen; ``::1`` for who takes every IPv4 address of the target's port.
        wait: waits for so many seconds.
    """

    def __init__(
        self,
        target: str,
        delay_s: float,
        *,
        at: tuple[str, int] = ("127.0.0.1", 0),
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._delay_s = delay_s
        self._wait = wait
        family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        self._server = socket.create_server(at, family=family)
        self.address = f"{at[0]}:{self._server.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self.carried_bytes = 0
        """Read from either end, about: threads add to it unguarded."""
        self._start(self._accept)

    def close(self) -> None:
        """End every connection."""
        for each in [self._server, *self._ends]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @staticmethod
    def _start(work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="relay", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._server.accept()
                self._ends.append(near)
                try:
                    far = socket.create_connection(self._target)
                except OSError:  # whoever dialled hears that nobody listens
                    near.close()
                    continue
                self._ends.append(far)
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._join(near, far)
                self._join(far, near)

    def _join(self, source: socket.socket, sink: socket.socket) -> None:
        way = _Way()
        self._start(self._read, source, way)
        self._start(self._write, way, sink, source)

    def _read(self, source: socket.socket, way: _Way) -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(_READ_BYTES)
            except OSError:
                data = b""
            self.carried_bytes += len(data)
            way.put(time.monotonic() + self._delay_s, data)

    def _write(self, way: _Way, sink: socket.socket, source: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, data = way.get()
                early_s = due_s - time.monotonic()
                if early_s > 0:
                    self._wait(early_s)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
        way.end()  # nobody takes it any more
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)


class _Way:
    """What is under way in one direction, each piece with the time at which it arrives."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._is_over = False
        self._changed = threading.Condition()

    def put(self, due_s: float, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < WINDOW_BYTES or self._is_over)
            self._pieces.append((due_s, data))
            self._bytes += len(data)
            self._changed.notify_all()

    def get(self) -> tuple[float, bytes]:
        with self._changed:
            self._changed.wait_for(lambda: self._pieces)
            due_s, data = self._pieces.popleft()
            self._bytes -= len(data)
            self._changed.notify_all()
        return due_s, data

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
