"""Turns: the calls of a server share a slice of each turn of the loop.

One read can bring hundreds of calls, and each of them work that is done in one piece. Those for
which a turn has no time left go on in a later one, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

SLICE_S: Final = 0.005
WOKEN_A_TURN: Final = 32
"""Calls that are asked to go on in a turn, whether or not there is time for all of them."""


class Turns:
    """Says when a call may go on.

    ``await turns.take()`` stands before each piece of work.
    """

    __slots__ = ("_is_looked_at", "_until", "_waiting")

    def __init__(self) -> None:
        self._until: float | None = None  # when the turn has no time left; None: nothing was done
        self._waiting: dict[object, asyncio.Future[None]] = {}
        self._is_looked_at = False

    async def take(self) -> None:
        """Wait for a turn of the loop that has time left; at once, if this one has."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._has_time(loop):
            return
        place = object()
        try:
            while True:
                self._waiting[place] = woken = loop.create_future()
                self._look_soon(loop)
                await woken
                if self._has_time(loop):
                    return
        finally:
            del self._waiting[place]

    def _has_time(self, loop: asyncio.AbstractEventLoop) -> bool:
        now = loop.time()
        if self._until is None:
            self._until = now + SLICE_S
            self._look_soon(loop)
            return True
        return now < self._until

    def _look_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_looked_at:
            self._is_looked_at = True
            loop.call_soon(self._begin_turn, loop)

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._until = None
        self._is_looked_at = False
        for woken in islice(self._waiting.values(), WOKEN_A_TURN):
            if not woken.done():
                woken.set_result(None)
        if self._waiting:
            self._look_soon(loop)
