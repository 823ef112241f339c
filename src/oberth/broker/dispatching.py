"""Dispatching: when appended records become readable, and when they are called durable.

A burst of sends is one append. The dispatch that makes it readable follows in the same turn of the
loop, after the answers, and wakes the pulls that wait for its messages; or a little later, when
nobody waits. `DispatchTimes` decides when, without a loop: the time is its argument.

Everything runs on the broker's loop; only the end of a sync comes from the flush thread, and is
handed over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from oberth.errors import OberthError
from oberth.store.messages import PutMessageStatus

if TYPE_CHECKING:
    import asyncio

    from oberth.broker.ha_service import HAService
    from oberth.broker.pull_request_hold import HeldPull, PullRequestHold
    from oberth.store.message_store import MessageStore

    Finish = Callable[[PutMessageStatus], None]
    ArrivalListener = Callable[[str, int, int, int | None, bytes], None]

_LOG: Final = logging.getLogger(__name__)

ANSWER_S: Final = 0.005
"""How long held pulls are answered before the loop turns."""

DISPATCH_S: Final = 0.005
"""How long messages may wait to be dispatched with others, while nobody waits for them. Within it a
single sender brings enough for the compiled kernels."""

SPREAD_QUEUES: Final = 64
SPREAD_DISPATCH_S: Final = 0.02
"""The same where the last dispatch brought something to so many queues: each queue costs 5 to 8 us,
for one message or for ten, most of it waiting for memory that was not touched for long."""

FOLLOW_S: Final = 0.003
FOLLOW_MAX_S: Final = 0.05
"""With ``dispatch=spark``: between two looks at the dispatcher, and when it long did nothing."""

BULK_DISPATCH_BYTES: Final = 6 * 1024
"""Appended bytes from which the compiled kernels dispatch: 130 us for any number of messages, where
one by one takes 11 us each (128-byte bodies, two cores shared with the clients)."""


class DispatchTimes:
    """When to dispatch. A state machine: the time goes in, what is still to be waited comes out."""

    __slots__ = ("_dispatched_at_s", "_follow_s", "_wait_s")

    def __init__(self) -> None:
        self._dispatched_at_s = 0.0
        self._wait_s = DISPATCH_S
        self._follow_s = FOLLOW_S

    def due_in_s(self, now_s: float, *, is_waited_for: bool) -> float:
        """Seconds until what was appended just now is dispatched; 0.0 for this turn of the loop.

        While nobody waits for messages and they come in quick succession it may take DISPATCH_S: a
        dispatch of many costs a quarter of that of a few, and one after each answer takes the
        processor from the sender that was just answered. Where they go to many queues it may take
        SPREAD_DISPATCH_S.
        """
        if is_waited_for or now_s - self._dispatched_at_s > self._wait_s:
            return 0.0
        return self._wait_s

    def dispatched(self, now_s: float, queues: int = 0) -> None:
        """It was dispatched, to so many queues."""
        self._dispatched_at_s = now_s
        self._wait_s = SPREAD_DISPATCH_S if queues >= SPREAD_QUEUES else DISPATCH_S

    def look_again_in_s(self, forward: int) -> float:
        """Seconds until the next look at another process's dispatch, which came some bytes on."""
        self._follow_s = FOLLOW_S if forward else min(self._follow_s * 1.1, FOLLOW_MAX_S)
        return self._follow_s


class Dispatching:
    """Makes the records of one broker readable, and tells when they are durable.

    Args:
        store: whose records.
        hold: pulls that wait for messages.
        ha: the replicas that may have to confirm a record.
        follows: another process dispatches; this one only looks how far it is.
        waits_for_disk: whether an answer to a send waits for the disk.
        behind_tables: see TableFiles.

    Attributes:
        arrival_listeners: called with topic, queue id, new end of the queue, tags code, properties
            of arrivals; a tags code None stands for several messages of any kind.
        waits_for_disk: whether an answer to a send waits: for the disk, or for replicas.
        is_pending: whether a dispatch is due.
    """

    def __init__(
        self,
        store: MessageStore,
        hold: PullRequestHold,
        ha: HAService,
        *,
        follows: bool,
        waits_for_disk: bool,
        behind_tables: Callable[[Finish], Finish],
    ) -> None:
        self._store = store
        self._hold = hold
        self._ha = ha
        self._follows = follows
        self.waits_for_disk = waits_for_disk
        self._behind_tables = behind_tables
        self.arrival_listeners: list[ArrivalListener] = []
        self.is_pending = False
        self._times = DispatchTimes()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: list[HeldPull] = []
        self._to_answer: deque[HeldPull] = deque()
        self._is_answering = False
        self._waits_for_flush = False
        self._follow_handle: asyncio.TimerHandle | None = None
        self._grown = 0  # queues that this dispatch brought something to, by the kernels
        self._is_closed = False
        self._durable: deque[tuple[Callable[[PutMessageStatus], None], PutMessageStatus]] = deque()
        self._durable_scheduled = False

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        pull_again: Callable[[HeldPull], None],
        others_wait: Callable[[], bool],
    ) -> None:
        """Everything else comes after this.

        Args:
            loop: the broker's.
            pull_again: answers a pull that was woken.
            others_wait: whether anybody but the held pulls waits for messages.
        """
        self._loop = loop
        self._pull_again = pull_again
        self._others_wait = others_wait

    def listen(self) -> None:
        """Be told of the store's arrivals: it is loaded, and not started yet."""
        store = self._store
        store.set_arrival_listener(self._on_arrival)
        store.dispatcher.bulk_arrival_listener = self._on_arrivals
        store.reput.bulk_bytes = BULK_DISPATCH_BYTES

    def close(self) -> None:
        """Look no more at what another process dispatches."""
        self._is_closed = True
        if self._follow_handle is not None:
            self._follow_handle.cancel()
            self._follow_handle = None

    # Readable

    def soon(self) -> None:
        """Make what was appended readable, see `DispatchTimes.due_in_s`, and send it to slaves.

        Who reads meanwhile calls `now` first.
        """
        self._ha.on_append()
        if self.is_pending:
            return
        self.is_pending = True
        loop = self._loop
        assert loop is not None
        is_waited_for = bool(len(self._hold)) or self._others_wait()
        delay_s = self._times.due_in_s(loop.time(), is_waited_for=is_waited_for)
        if delay_s:
            loop.call_later(delay_s, self.now)
        else:
            loop.call_soon(self.now)

    def now(self) -> None:
        """Make what was appended readable before anything else is read."""
        if not self.is_pending:
            return
        self.is_pending = False
        store = self._store
        assert self._loop is not None
        self._hold.limits.new_turn()
        now_s = self._loop.time()
        self._grown = 0
        try:
            forward = store.dispatch_nowait()
        except (OberthError, OSError) as error:
            _LOG.error(
                "the dispatch of messages to their queues failed, it is tried again: %s", error
            )
            forward = 0
        self._times.dispatched(now_s, self._grown)
        if self._follows:
            self._follow_soon(forward)
        if self._woken:
            woken, self._woken = self._woken, []
            self._answer(woken)
        if self.waits_for_disk and not self._waits_for_flush and store.dispatch_behind_bytes:
            # Not waited for by anybody, and not readable before the disk has it.
            self._waits_for_flush = True
            self.when_durable(store.max_phy_offset, self._on_flushed)

    def _follow_soon(self, forward: int) -> None:
        """Looks at the dispatcher's progress again while messages wait for it."""
        assert self._loop is not None
        delay_s = self._times.look_again_in_s(forward)
        if (
            self._follow_handle is None
            and not self._is_closed
            and self._store.dispatch_behind_bytes
        ):
            self._follow_handle = self._loop.call_later(delay_s, self._follow)

    def _follow(self) -> None:
        self._follow_handle = None
        self.is_pending = True
        self.now()

    def _on_flushed(self, status: PutMessageStatus) -> None:
        del status
        self._waits_for_flush = False

    def _on_arrival(
        self,
        topic: str,
        queue_id: int,
        max_offset: int,
        tags_code: int,
        store_timestamp: int,
        bit_map: bytes | None,
        properties_raw: bytes,
    ) -> None:
        del store_timestamp, bit_map
        if len(self._hold):
            self._woken += self._hold.on_message_arriving(
                topic, queue_id, max_offset, tags_code, properties_raw
            )
        for listener in self.arrival_listeners:
            listener(topic, queue_id, max_offset, tags_code, properties_raw)

    def _on_arrivals(self, topic: str, queue_id: int, max_offset: int) -> None:
        """Many messages were dispatched at once; nobody looked at their tags."""
        self._grown += 1
        if len(self._hold):
            self._woken += self._hold.on_message_arriving(topic, queue_id, max_offset, None)
        for listener in self.arrival_listeners:
            listener(topic, queue_id, max_offset, None, b"")

    # Held pulls

    def on_time(self, now_ms: int) -> None:
        """Answer the pulls that have waited long enough."""
        self._answer(self._hold.on_time(now_ms))

    def wake_topic(self, topic: str) -> None:
        """Answer every pull that waits for a topic: it is gone, or its queues have moved."""
        self._answer(self._hold.wake_topic(topic))

    def on_offset_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Answer the pulls that wait for a queue: a group's offset in it was reset."""
        del group
        self._answer(self._hold.wake_queue(topic, queue_id))

    def answer_held(self) -> None:
        """Answer all pulls with what is there: nothing, so that clients ask elsewhere."""
        self._to_answer.extend(self._hold.clear())
        while self._to_answer:
            self._pull_again(self._to_answer.popleft())

    def _answer(self, woken: Iterable[HeldPull]) -> None:
        """Answer these, and let the loop turn where they are very many."""
        self._to_answer.extend(woken)
        if self._to_answer and not self._is_answering:
            self._answer_some()

    def _answer_some(self) -> None:
        assert self._loop is not None
        self._is_answering = True
        until = self._loop.time() + ANSWER_S
        to_answer = self._to_answer
        while to_answer:
            self._pull_again(to_answer.popleft())
            if to_answer and self._loop.time() >= until:
                self._loop.call_soon(self._answer_some)
                return
        self._is_answering = False

    # Durable

    def when_durable(self, end_offset: int, finish: Callable[[PutMessageStatus], None]) -> None:
        """Call ``finish`` on the loop when the log is safe up to an offset.

        On the disk with SYNC_FLUSH, with the topics that it needs, and on enough replicas with
        SYNC_MASTER.
        """
        store = self._store
        if store.waits_for_replicas:
            self._ha.on_append()
            replicated = finish

            def finish(status: PutMessageStatus) -> None:
                self._ha.when_replicated(end_offset, status, replicated)

            if not store.flush_service.is_sync:
                finish(PutMessageStatus.PUT_OK)
                return
        finish = self._behind_tables(finish)
        durable = self._durable
        loop = self._loop
        assert loop is not None

        def done(status: PutMessageStatus) -> None:
            # In the flush thread, or here and now.
            durable.append((finish, status))
            if not self._durable_scheduled:
                self._durable_scheduled = True
                loop.call_soon_threadsafe(self._finish_durable)

        store.when_durable(end_offset, done)

    def _finish_durable(self) -> None:
        self._durable_scheduled = False
        durable = self._durable
        while durable:
            finish, status = durable.popleft()
            finish(status)
        self.soon()
