"""Back pressure: how much of a producer may be on its way before its sends wait."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from oberth.errors import RemotingTooMuchRequestError

ROOM_WANTED_MAX: Final = 64
"""Sends that wait for room go on when there is room for so many (a sixteenth of few)."""


class BackPressure:
    """The part of a producer that counts what is on its way. Belongs to one event loop.

    A base of the producer and no object beside it: its two counters change with every send.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.back_pressure_for_async_send_num = messages_max
        self.back_pressure_for_async_send_bytes = bytes_max
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._retries: set[asyncio.Task[None]] = set()

    def _has_room(self, size: int) -> bool:
        return self._in_flight < self.back_pressure_for_async_send_num and (
            self._in_flight_bytes + size <= self.back_pressure_for_async_send_bytes
            or not self._in_flight
        )

    async def _wait_room(self, size: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not self._has_room(size):
                    waiter = self._loop.create_future()
                    self._room_waiters.append(waiter)
                    await waiter
        except TimeoutError:
            if self._has_room(size):
                return
            raise RemotingTooMuchRequestError(
                f"{self._in_flight} messages with {self._in_flight_bytes} bytes on their way, "
                f"allowed {self.back_pressure_for_async_send_num} with "
                f"{self.back_pressure_for_async_send_bytes}; waited {timeout_s:g} s"
            ) from None

    def _give_room(self, size: int) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= size
        if self._room_waiters:
            # A broker that answers one by one would otherwise have each answer wake a sender for
            # one message and one write; a few answers later the same wake-up pays for them all.
            allowed = self.back_pressure_for_async_send_num
            room = allowed - self._in_flight
            if self._in_flight_bytes * 2 > self.back_pressure_for_async_send_bytes:
                # Bytes are what is short: one body's room is for one sender, not for all.
                self._wake_senders(1)
            elif room >= min(allowed // 16, ROOM_WANTED_MAX):
                self._wake_senders(room)

    def _wake_senders(self, count: int) -> None:
        waiters = self._room_waiters
        while waiters and count > 0:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def _wait_idle(self, timeout_s: float) -> None:
        deadline = self._loop.time() + timeout_s
        while (self._in_flight or self._retries) and self._loop.time() < deadline:
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                async with asyncio.timeout_at(min(deadline, self._loop.time() + 0.1)):
                    await waiter
            except TimeoutError:
                continue
