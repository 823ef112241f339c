"""LongAnswers: what clients and brokers have answered is decoded beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from oberth.formats.json_values import LENIENT_SIZE_MAX
from oberth.remoting.bodies.base import ANSWER_SIZE_MAX, BodyError, check_answer_size
from oberth.remoting.command import FRAME_SIZE_MAX

_T = TypeVar("_T")

WAITING_BYTES_MAX: Final = 16 << 20
"""Bytes of answers that are decoded or wait for it."""


class LongAnswers:
    """Answers of a process's peers. A thread decodes one at a time; the others wait.

    Attributes:
        waiting_bytes: of answers that are not decoded yet.
    """

    __slots__ = ("_reading", "_tasks", "waiting_bytes")

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.waiting_bytes = 0

    async def of_broker(self, decode: Callable[[bytes], _T], data: bytes) -> _T:
        """`read` of what a broker has answered: at once where it is short, else of any length.

        Raises:
            BodyError: see `read`.
        """
        if len(data) <= LENIENT_SIZE_MAX:
            return decode(data)
        return await self.read(decode, data, FRAME_SIZE_MAX)

    async def read(
        self, decode: Callable[[bytes], _T], data: bytes, size_max: int = ANSWER_SIZE_MAX
    ) -> _T:
        """What ``decode`` makes of an answer.

        Raises:
            BodyError: the answer is longer, too much waits, or ``decode`` says so.
        """
        check_answer_size(data, "body", size_max)
        if self.waiting_bytes and self.waiting_bytes + len(data) > WAITING_BYTES_MAX:
            raise BodyError(
                f"{self.waiting_bytes} bytes of answers wait to be decoded, "
                f"allowed {WAITING_BYTES_MAX}"
            )
        self.waiting_bytes += len(data)
        # A thread goes on when who waits for it is gone: the next one waits for it all the same.
        task = asyncio.create_task(self._decode(decode, data))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def _decode(self, decode: Callable[[bytes], _T], data: bytes) -> _T:
        try:
            async with self._reading:
                return await asyncio.to_thread(decode, data)
        finally:
            self.waiting_bytes -= len(data)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # or it would be said to be lost where nobody waits any more
