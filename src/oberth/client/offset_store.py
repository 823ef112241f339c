"""Offset stores: how far a group is in each queue, here and where it is kept.

``ConsumerOffsetTable`` is the table; ``RemoteBrokerOffsetStore`` keeps it at the brokers (a group
that shares its messages), ``LocalFileOffsetStore`` in a file (broadcasting). RocketMQ: OffsetStore.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from oberth.errors import ClientError, FormatError, MQClientError, RemotingError
from oberth.remoting.bodies.base import BodyError, MessageQueue
from oberth.remoting.bodies.offsets import ResetOffsetBody

if TYPE_CHECKING:
    from pathlib import Path

_LOG: Final = logging.getLogger("oberth.client")

NO_OFFSET: Final = -1
"""Of a queue whose group has none."""


class ConsumerOffsetTable:
    """Offsets by queue, and which of them changed since they were last kept."""

    __slots__ = ("_dirty", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._dirty: set[MessageQueue] = set()

    def get(self, queue: MessageQueue) -> int:
        """The offset, or NO_OFFSET."""
        return self._offsets.get(queue, NO_OFFSET)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Note an offset."""
        known = self._offsets.get(queue, NO_OFFSET)
        if offset == known or (increase_only and offset < known):
            return
        self._offsets[queue] = offset
        self._dirty.add(queue)

    def note_kept(self, queue: MessageQueue, offset: int) -> None:
        """An offset as it was read, or just written."""
        self._offsets[queue] = offset
        self._dirty.discard(queue)

    def take_dirty(self, queues: Iterable[MessageQueue]) -> list[tuple[MessageQueue, int]]:
        """What changed among ``queues``; they count as kept now."""
        taken = [(queue, self._offsets[queue]) for queue in queues if queue in self._dirty]
        self._dirty.difference_update([queue for queue, _ in taken])
        return taken

    def mark_dirty(self, queue: MessageQueue) -> None:
        """Keeping it failed."""
        if queue in self._offsets:
            self._dirty.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue."""
        self._offsets.pop(queue, None)
        self._dirty.discard(queue)

    def of_topic(self, topic: str = "") -> dict[MessageQueue, int]:
        """The offsets of a topic; of all when empty."""
        return {
            queue: offset
            for queue, offset in self._offsets.items()
            if not topic or queue.topic == topic
        }


class OffsetStore(Protocol):
    """Where a consumer keeps its offsets."""

    table: ConsumerOffsetTable

    async def load(self) -> None:
        """Read what is kept, if it is read at once."""

    async def read(self, queue: MessageQueue) -> int:
        """The kept offset, or NO_OFFSET when there is none."""

    async def persist(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        """Keep what changed; with ``wait``, until it is known to be kept."""


class RemoteBrokerOffsetStore:
    """Offsets at the brokers.

    Args:
        fetch: asks a broker; None: it has none.
        commit: tells a broker; with its last argument, waits for the answer.
    """

    def __init__(
        self,
        fetch: Callable[[MessageQueue], Awaitable[int | None]],
        commit: Callable[[MessageQueue, int, bool], Awaitable[None]],
    ) -> None:
        self.table = ConsumerOffsetTable()
        self._fetch = fetch
        self._commit = commit

    async def load(self) -> None:
        """See ``OffsetStore``; each queue is asked for when it is taken."""

    async def read(self, queue: MessageQueue) -> int:
        """See ``OffsetStore``.

        Raises:
            MQBrokerError, RemotingError: the broker could not be asked.
        """
        offset = await self._fetch(queue)
        if offset is None:
            return NO_OFFSET
        self.table.note_kept(queue, offset)
        return offset

    async def persist(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        """See ``OffsetStore``; what could not be sent is sent with the next call."""
        changed = self.table.take_dirty(queues)
        if not changed:
            return

        async def commit(queue: MessageQueue, offset: int) -> None:
            try:
                await self._commit(queue, offset, wait)
            except (RemotingError, ClientError) as error:
                self.table.mark_dirty(queue)
                _LOG.warning("offset %d of %s is not committed: %s", offset, queue, error)

        await asyncio.gather(*(commit(queue, offset) for queue, offset in changed))


class LocalFileOffsetStore:
    """Offsets in ``offsets.json``, in the form that Java's client writes.

    Args:
        path: of the file; its directory is made when it is first written.
    """

    def __init__(self, path: Path) -> None:
        self.table = ConsumerOffsetTable()
        self.path = path

    async def load(self) -> None:
        """See ``OffsetStore``.

        Raises:
            MQClientError: the file and its back-up cannot be read.
        """
        for queue, offset in (await asyncio.to_thread(self._read_file)).items():
            self.table.note_kept(queue, offset)

    def _read_file(self) -> dict[MessageQueue, int]:
        problems = []
        for path in (self.path, self.path.with_suffix(".json.bak")):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            try:
                return dict(ResetOffsetBody.decode(data).offset_table)
            except (BodyError, FormatError) as error:
                problems.append(f"{path}: {error}")
        if problems:
            raise MQClientError("; ".join(problems))
        return {}

    async def read(self, queue: MessageQueue) -> int:
        """See ``OffsetStore``."""
        return self.table.get(queue)

    async def persist(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        """See ``OffsetStore``; the file is always written completely."""
        del wait
        if self.table.take_dirty(queues):
            data = ResetOffsetBody(offset_table=self.table.of_topic()).encode()
            await asyncio.to_thread(self._write_file, data)

    def _write_file(self, data: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".json.tmp")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self.path.with_suffix(".json.bak"))
        os.replace(temporary, self.path)


def local_offsets_path(client_id: str, group: str, root: str = "") -> Path:
    """Where Java's client keeps the offsets of a broadcasting group.

    Raises:
        MQClientError: the client id has a character that may not be part of a path.
    """
    from pathlib import Path

    if "/" in client_id or client_id in ("", ".", "..") or "\0" in client_id:
        raise MQClientError(f"client id {client_id!r} cannot name a directory")
    base = Path(root) if root else Path.home() / ".rocketmq_offsets"
    return base / client_id / group / "offsets.json"
