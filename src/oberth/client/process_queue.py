"""ProcessQueue: the messages of one queue between pull and commit. RocketMQ: ProcessQueue.

A state machine without a clock or tasks. What is always true: ``commit_offset`` is at most the
smallest offset that was put in and not removed, so committing it never loses a message.

Lifecycle: made when a member takes a queue, ``drop`` ends it; after that nothing that it holds may
be handed out or committed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from oberth.client.messages import MessageExt
from oberth.remoting.bodies.running_info import ProcessQueueInfo

LOCK_MAX_LIVE_MS: Final = 30_000
"""A lock that was not renewed for so long counts as lost; brokers keep it for 60 s."""

PULL_MAX_IDLE_MS: Final = 120_000
"""A queue whose pull was not heard of for so long is taken anew."""


class ProcessQueue:
    """One queue of a push consumer, or of one that is asked.

    Attributes:
        messages: by queue offset, ascending: pulled and not done.
        pending: those that no listener has yet; orderly consumers take from its head.
        lent: by queue offset: what loops of the program have; neither held nor done.
        size: bytes of the records in ``messages``.
        next_offset: of the next pull.
        dropped: whether the queue went to another member.
        locked: orderly: whether the broker gave us the lock.
        last_lock_ms: when it did.
        last_pull_ms: when the last pull was sent.
        last_consume_ms: when a listener was last called.
        consuming: messages that listeners have now.
    """

    __slots__ = (
        "_answered",
        "_end_offset",
        "consuming",
        "dropped",
        "last_consume_ms",
        "last_lock_ms",
        "last_pull_ms",
        "lent",
        "locked",
        "messages",
        "next_offset",
        "pending",
        "size",
        "suspended",
        "try_unlock_times",
    )

    def __init__(self, next_offset: int, now_ms: int) -> None:
        self.messages: dict[int, MessageExt] = {}
        self.pending: deque[MessageExt] = deque()
        self.lent: dict[int, MessageExt] = {}
        self.size = 0
        self.next_offset = next_offset
        self._end_offset = -1
        self._answered = False
        self.dropped = False
        self.locked = False
        self.suspended = False
        self.last_lock_ms = 0
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms
        self.consuming = 0
        self.try_unlock_times = 0

    @property
    def count(self) -> int:
        """Messages pulled and not done."""
        return len(self.messages)

    @property
    def span(self) -> int:
        """Distance between the first and the last offset that is held."""
        if not self.messages:
            return 0
        return self._end_offset - 1 - next(iter(self.messages))

    def put(self, messages: Sequence[MessageExt], next_offset: int) -> None:
        """Messages of one pull, ascending; ``next_offset`` is where the next pull starts.

        Offsets below the end of what is held are repeats of an earlier pull and are left out.
        """
        held = self.messages
        end = self._end_offset
        for message in messages:
            offset = message.queue_offset
            if offset < end:
                continue
            held[offset] = message
            self.pending.append(message)
            self.size += message.store_size
            end = offset + 1
        self._end_offset = end
        self._answered = True
        self.next_offset = next_offset

    def skip_to(self, next_offset: int) -> None:
        """A pull brought nothing for us up to ``next_offset``."""
        self._answered = True
        self.next_offset = next_offset

    def end_at(self, offset: int) -> None:
        """The queue ends at an offset now; what is held behind it is gone, and not consumed yet."""
        self.pending = deque(each for each in self.pending if each.queue_offset < offset)
        for each in [each for each in self.messages if each >= offset]:
            self.size -= self.messages.pop(each).store_size
        self.lent = {at: each for at, each in self.lent.items() if at < offset}
        self._end_offset = min(self._end_offset, offset)

    def take(self, count: int) -> list[MessageExt]:
        """The first messages that no listener has; they count as being consumed."""
        pending = self.pending
        taken = [pending.popleft() for _ in range(min(count, len(pending)))]
        self.consuming += len(taken)
        return taken

    def put_back(self, messages: Sequence[MessageExt]) -> None:
        """Messages that a listener gave back in order; they are the first of the next ``take``."""
        self.pending.extendleft(reversed(messages))
        self.consuming -= len(messages)

    def remove(self, messages: Iterable[MessageExt]) -> None:
        """Messages that are done; they were taken before."""
        held = self.messages
        for message in messages:
            if held.pop(message.queue_offset, None) is not None:
                self.size -= message.store_size
            self.consuming -= 1

    def lend(self, messages: Iterable[MessageExt]) -> None:
        """Messages that were removed are not done yet: a loop of the program has them."""
        self.lent.update((each.queue_offset, each) for each in messages)

    def settle(self, message: MessageExt) -> None:
        """A message that was lent is done."""
        # Where the queue ended meanwhile another one may be lent at its offset.
        if self.lent.get(message.queue_offset) is message:
            del self.lent[message.queue_offset]

    def take_back(self, messages: Iterable[MessageExt]) -> None:
        """Messages that were lent and are not done wait again, each in its place."""
        for each in messages:
            if self.lent.get(each.queue_offset) is each:
                del self.lent[each.queue_offset]
                self.messages[each.queue_offset] = each
                self.pending.append(each)
                self.size += each.store_size
        self.messages = dict(sorted(self.messages.items()))
        self.pending = deque(sorted(self.pending, key=lambda each: each.queue_offset))

    @property
    def first_undone(self) -> int | None:
        """The smallest offset that is held or lent; None: there is none."""
        return min((*itertools.islice(self.messages, 1), *self.lent), default=None)

    @property
    def commit_offset(self) -> int:
        """The first offset that is not done; -1: no pull was answered yet."""
        messages = self.messages
        if messages:
            return next(iter(messages))
        # What a filter left out after the last message is done too.
        return self.next_offset if self._answered else -1

    def is_full(self, count_max: int, size_max: int, span_max: int | None) -> bool:
        """Whether pulling must pause."""
        count = len(self.messages)
        return count > 0 and (
            count > count_max
            or self.size > size_max
            or (span_max is not None and self.span > span_max)
        )

    def drop(self) -> None:
        """The queue is no longer ours."""
        self.dropped = True

    def is_lock_expired(self, now_ms: int) -> bool:
        """Whether the lock was not renewed in time."""
        return now_ms - self.last_lock_ms > LOCK_MAX_LIVE_MS

    def may_consume_orderly(self, now_ms: int) -> bool:
        """Whether the broker's lock is ours."""
        return self.locked and not self.is_lock_expired(now_ms)

    def is_pull_expired(self, now_ms: int) -> bool:
        """Whether the pull seems to be lost."""
        return now_ms - self.last_pull_ms > PULL_MAX_IDLE_MS

    def info(self) -> ProcessQueueInfo:
        """As GET_CONSUMER_RUNNING_INFO tells it."""
        first = next(iter(self.messages), 0)
        return ProcessQueueInfo(
            cached_msg_count=len(self.messages),
            cached_msg_min_offset=first,
            cached_msg_max_offset=self._end_offset - 1 if self.messages else 0,
            cached_msg_size_in_mi_b=self.size >> 20,
            commit_offset=max(self.commit_offset, 0),
            droped=self.dropped,
            last_consume_timestamp=self.last_consume_ms,
            last_lock_timestamp=self.last_lock_ms,
            last_pull_timestamp=self.last_pull_ms,
            locked=self.locked,
            try_unlock_times=self.try_unlock_times,
            transaction_msg_count=self.consuming,
        )
