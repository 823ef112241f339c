"""OldMessages: what is not in memory is read from the disk beside the loop, for all who read.

Who is about to read a stretch of a queue, or records of the log, asks here first. A request is
served when a thread has brought in what it lacks. What the broker's clock drives (delay levels,
timers, POP's revive queues) reads as much as is in memory, and goes on when it is told that more
is. All methods belong to the loop's thread.

Not promised: that what was brought in is still in memory when it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from oberth.errors import OberthError
from oberth.remoting.aio.stage import error_response, waiting_size
from oberth.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from oberth.broker.tasks import StartTask
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

Stretch: TypeAlias = tuple[str, int, int, int]
"""Of a queue: topic, queue id, first queue offset, how many."""
Record: TypeAlias = tuple[int, int]
"""CommitLog offset and size."""

FAILED_S: Final = 5.0
"""How long after the disk has failed a reader that the clock drives waits before it asks again."""

AHEAD_READERS_MAX: Final = 1
"""Queues that are read ahead at the same time: with more threads the loop waits for their GIL."""

_AT_WORK: Final = object()


class OldMessages:
    """Brings in what is not in memory.

    Args:
        store: whose messages.
        start_task: runs what waits for a thread.
    """

    def __init__(self, store: MessageStore, start_task: StartTask) -> None:
        self._store = store
        self._start_task = start_task
        # By reader what was brought in for it last, or that a thread is at it. They are few: one
        # for each delay level and revive queue, and the timer.
        self._brought_in: dict[Hashable, object] = {}
        # Topics and queue ids.
        self._ahead: set[tuple[str, int]] = set()

    # Requests

    def absent(self, wanted: Iterable[Stretch]) -> list[Stretch]:
        """Those of some stretches that are not in memory as a whole.

        Of the others, what follows is brought in ahead.
        """
        is_resident = self._store.is_resident
        absent = []
        for each in wanted:
            if is_resident(*each):
                self.read_ahead(*each[:3])
            else:
                absent.append(each)
        return absent

    def read_ahead(self, topic: str, queue_id: int, offset: int) -> None:
        """Somebody reads here: a thread brings in what follows, if it may be on the disk only.

        Costs two microseconds where nothing is to be done.
        """
        if not self._store.wants_ahead(topic, queue_id, offset):
            return
        queue = (topic, queue_id)
        if queue not in self._ahead and len(self._ahead) < AHEAD_READERS_MAX:
            self._ahead.add(queue)
            self._start_task(self._read_ahead(topic, queue_id, offset))

    async def _read_ahead(self, topic: str, queue_id: int, offset: int) -> None:
        try:
            await asyncio.to_thread(self._store.bring_in_ahead, topic, queue_id, offset)
        except (OSError, OberthError) as error:
            # Who comes to it is answered with it.
            _LOG.debug("%s queue %d behind %d: not read: %s", topic, queue_id, offset, error)
        finally:
            self._ahead.discard((topic, queue_id))

    def answer_after(
        self,
        channel: Channel,
        request: RemotingCommand,
        absent: Sequence[Stretch],
        serve: Callable[[], RemotingCommand | None],
        gone: Callable[[], None] | None = None,
    ) -> None:
        """Bring these in, then serve a request and answer it; ``gone``: it was closed meanwhile."""
        self._start_task(self._answer_after(channel, request, absent, serve, gone))

    async def _answer_after(
        self,
        channel: Channel,
        request: RemotingCommand,
        absent: Sequence[Stretch],
        serve: Callable[[], RemotingCommand | None],
        gone: Callable[[], None] | None,
    ) -> None:
        size = waiting_size(request)
        channel.work_started(size)
        try:
            for each in absent:
                await asyncio.to_thread(self._store.bring_in, *each)
            if channel.is_closed:
                if gone is not None:
                    gone()
                return
            response = serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, the requester hears of it
            response = error_response(request, error)
        finally:
            channel.work_finished(size)
        if response is not None:
            channel.reply(request, response)

    # What the clock drives

    def readable(self, reader: Hashable, stretch: Stretch, then: Callable[[], None]) -> int:
        """How many messages of a stretch can be read now; 0: ``then`` is called when some can.

        Args:
            reader: who reads; brings in one stretch at a time.
            stretch: not empty.
            then: called on the loop.
        """
        known = self._brought_in.get(reader)
        if known is _AT_WORK:
            return 0
        count = self._store.resident_count(*stretch)
        if not count and known != stretch[:3]:
            self._begin(reader, stretch[:3], lambda: self._store.bring_in(*stretch), then)
            return 0
        return count or 1  # the system tells nothing, or has thrown it out again

    def are_readable(
        self, reader: Hashable, records: Callable[[], list[Record]], then: Callable[[], None]
    ) -> bool:
        """Whether records can be read now; if not, ``then`` is called when they can.

        Args:
            reader: who reads.
            records: gives them; not called where all of the log is young.
            then: called on the loop.
        """
        known = self._brought_in.get(reader)
        if known is _AT_WORK:
            return False
        if not self._store.has_old_records:
            return True
        absent = self._store.absent_records(records())
        if not absent or known == absent:
            return True
        self._begin(reader, absent, lambda: self._store.bring_in_records(absent), then)
        return False

    def _begin(
        self,
        reader: Hashable,
        what: object,
        bring_in: Callable[[], None],
        then: Callable[[], None],
    ) -> None:
        self._brought_in[reader] = _AT_WORK
        self._start_task(self._bring_in(reader, what, bring_in, then))

    async def _bring_in(
        self,
        reader: Hashable,
        what: object,
        bring_in: Callable[[], None],
        then: Callable[[], None],
    ) -> None:
        try:
            await asyncio.to_thread(bring_in)
        except OSError as error:
            _LOG.error("%s: %s cannot be read, it is tried again: %s", reader, what, error)
            asyncio.get_running_loop().call_later(FAILED_S, self._brought_in.pop, reader, None)
            return
        self._brought_in[reader] = what
        then()
