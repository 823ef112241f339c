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
from oberth.formats.json_reader import CONFIG_SIZE_MAX
from oberth.remoting.bodies.base import BodyError, MessageQueue
from oberth.remoting.bodies.offsets import ResetOffsetBody

if TYPE_CHECKING:
    from pathlib import Path

_LOG: Final = logging.getLogger(__name__)

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
        """Keep what changed; what cannot be kept now is kept with the next call.

        Args:
            queues: those that are looked at.
            wait: until all of it is known to be kept, from earlier calls as well.

        Raises:
            MQClientError: only with ``wait``: some is not kept.
        """

    def forget(self, queue: MessageQueue) -> None:
        """A queue is no longer ours; it may come back."""


class RemoteBrokerOffsetStore:
    """Offsets at the brokers.

    Of one queue one commit is on its way at a time: brokers serve requests of one connection side
    by side, and an older offset that comes second would be the one that stays.

    Args:
        fetch: asks a broker; None: it has none.
        commit: tells a broker, and returns when it has answered.
    """

    def __init__(
        self,
        fetch: Callable[[MessageQueue], Awaitable[int | None]],
        commit: Callable[[MessageQueue, int], Awaitable[None]],
    ) -> None:
        self.table = ConsumerOffsetTable()
        self._fetch = fetch
        self._commit = commit
        self._under_way: dict[MessageQueue, asyncio.Task[Exception | None]] = {}

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
        """See ``OffsetStore``."""
        wanted = list(queues)
        if not wait:
            free = [queue for queue in wanted if queue not in self._under_way]
            for queue, offset in self.table.take_dirty(free):
                self._start(queue, offset)
            return
        while busy := [self._under_way[queue] for queue in wanted if queue in self._under_way]:
            await asyncio.wait(busy)
        changed = self.table.take_dirty(wanted)
        errors = await asyncio.gather(*(self._start(queue, offset) for queue, offset in changed))
        failed = [
            (queue, error) for (queue, _), error in zip(changed, errors, strict=True) if error
        ]
        if failed:
            queue, error = failed[0]
            raise MQClientError(
                f"{len(failed)} of {len(changed)} offsets are not committed, "
                f"among them that of {queue}: {error}"
            ) from error

    def forget(self, queue: MessageQueue) -> None:
        """See ``OffsetStore``; the broker is asked when it comes back, as others had it."""
        self.table.remove(queue)

    def _start(self, queue: MessageQueue, offset: int) -> asyncio.Task[Exception | None]:
        task = asyncio.create_task(self._send(queue, offset))
        self._under_way[queue] = task
        task.add_done_callback(lambda _: self._under_way.pop(queue))
        return task

    async def _send(self, queue: MessageQueue, offset: int) -> Exception | None:
        """Sends one offset; why it could not be."""
        try:
            await self._commit(queue, offset)
        except (RemotingError, ClientError) as error:
            self.table.mark_dirty(queue)
            _LOG.warning("offset %d of %s is not committed: %s", offset, queue, error)
            return error
        except BaseException:
            self.table.mark_dirty(queue)
            raise
        return None


class LocalFileOffsetStore:
    """Offsets in ``offsets.json``, in the form that Java's client writes.

    Args:
        path: of the file; its directory is made when it is first written.
    """

    def __init__(self, path: Path) -> None:
        self.table = ConsumerOffsetTable()
        self.path = path
        self._writing = asyncio.Lock()  # guards the file, and the one that takes its place

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
                return dict(ResetOffsetBody.decode(data, CONFIG_SIZE_MAX).offset_table)
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
        if self._writing.locked() and not wait:
            return
        # Shielded: a thread goes on writing when its caller is cancelled, and keeps others out.
        error = await asyncio.shield(asyncio.create_task(self._persist(list(queues))))
        if error is not None and wait:
            raise MQClientError(f"{self.path}: the offsets are not kept: {error}") from error

    async def _persist(self, queues: list[MessageQueue]) -> OSError | None:
        """Writes what changed, after who writes already; why it could not be."""
        async with self._writing:
            changed = self.table.take_dirty(queues)
            if not changed:
                return None
            data = ResetOffsetBody(offset_table=self.table.of_topic()).encode()
            try:
                await asyncio.to_thread(self._write_file, data)
            except BaseException as error:
                for queue, _ in changed:
                    self.table.mark_dirty(queue)
                if not isinstance(error, OSError):
                    raise
                _LOG.warning("%s: the offsets are not kept: %s", self.path, error)
                return error
        return None

    def forget(self, queue: MessageQueue) -> None:
        """See ``OffsetStore``; nothing is forgotten, as nobody else keeps it."""

    def _write_file(self, data: bytes) -> None:
        """The file is the old or the new one at every moment, and never a part of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".json.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if self.path.exists():
            os.replace(self.path, self.path.with_suffix(".json.bak"))
        os.replace(temporary, self.path)
        if hasattr(os, "O_DIRECTORY"):
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def local_offsets_path(client_id: str, group: str, root: str = "") -> Path:
    """Where Java's client keeps the offsets of a broadcasting group.

    Raises:
        MQClientError: the client id has a character that may not be part of a path.
    """
    from pathlib import Path  # noqa: PLC0415 - for broadcast groups

    if "/" in client_id or client_id in ("", ".", "..") or "\0" in client_id:
        raise MQClientError(f"client id {client_id!r} cannot name a directory")
    base = Path(root) if root else Path.home() / ".rocketmq_offsets"
    return base / client_id / group / "offsets.json"
