"""Tasks: work of a broker that ends by itself, and is cancelled when the broker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")
StartTask: TypeAlias = Callable[[Coroutine[Any, Any, Any]], None]


async def in_turns(slices: Iterator[None]) -> None:
    """Do a slice a turn of the loop. Who is cancelled does the others at once: none is left out."""
    try:
        for _ in slices:
            await asyncio.sleep(0)
    finally:
        for _ in slices:
            pass


async def result_in_turns(work: Generator[None, None, _T]) -> _T:
    """What slices of work give in the end, a slice a turn of the loop."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: _T = end.value
            return value
        await asyncio.sleep(0)


class Tasks:
    """Owns what it has started, until that ends or ``aclose`` cancels it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something run. The loop must be running."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel what still runs, and wait for its end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
