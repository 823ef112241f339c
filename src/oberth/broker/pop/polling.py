"""PopPolling: pops and notifications that found nothing and wait for a message.

A state machine like PullRequestHold: requests, arrivals and the time go in, the requests to answer
come out, each exactly once. A request that waits for any queue (-1) is woken by every queue of the
topic, and by the group's retry topics of it. An arrival wakes one request of each group: the others
would find nothing, and if it leaves something it wakes the next. What a closed connection waited
for wakes nobody, and is forgotten some at a time; nor is a request woken whose answer nobody waits
for any more. RocketMQ: PopLongPollingService.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from oberth.broker.held_requests import GONE_AT_ONCE, HoldLimits
from oberth.formats.names import pop_retry_topic

ANY_QUEUE: Final = -1

DEADLINES_SPARE: Final = 1024
"""Deadlines of requests that wait no more, kept until there are many."""

DUE_AT_ONCE: Final = 1_000
"""Requests whose time is over that come out at a time; the others the next time."""

GROUPS_PER_TOPIC_MAX: Final = 5_000
"""Groups that wait at one topic, of each of which one message may wake a request: some 5 ms."""

Matches = Callable[[int | None, bytes], bool]
"""Whether a message with these tags code (None: unknown) and properties may be wanted."""


class Waiting:
    """One request that waits.

    Attributes:
        arrived: the queue of its topic that it was woken for, if one is known.
        judged_max: of an expression, how many messages it may judge in a turn; 0: what ``matches``
            costs does not count.
        size: what ``held_requests`` says that it takes.
        is_wanted: whether its answer is still waited for; None: as long as the channel is open.
        on_dropped: called if it is forgotten because its answer is not: there will be none.
    """

    __slots__ = (
        "arrived", "channel", "deadline_ms", "is_wanted", "judged_max", "key", "matches", "number",
        "on_dropped", "request", "size",
    )  # fmt: skip

    def __init__(
        self,
        channel: Hashable,
        request: Any,
        topic: str,
        group: str,
        queue_id: int,
        deadline_ms: int,
        matches: Matches | None = None,
        size: int = 0,
        judged_max: int = 0,
        is_wanted: Callable[[], bool] | None = None,
        on_dropped: Callable[[], None] | None = None,
    ) -> None:
        self.arrived = ANY_QUEUE
        self.channel = channel
        self.is_wanted = is_wanted
        self.on_dropped = on_dropped
        self.judged_max = judged_max
        self.request = request
        self.key = (topic, group, queue_id)
        self.deadline_ms = deadline_ms
        self.matches = matches
        self.size = size
        self.number = -1


class PopPolling:
    """All requests that wait; ``size_max`` at one queue for one group, ``total_max`` at all."""

    def __init__(
        self,
        size_max: int = 1024,
        total_max: int = 100_000,
        limits: HoldLimits | None = None,
    ) -> None:
        self.size_max = size_max
        self.total_max = total_max
        self._limits = HoldLimits() if limits is None else limits
        self._waiting: dict[tuple[str, str, int], dict[Waiting, None]] = {}
        self._groups: dict[str, dict[str, set[int]]] = {}  # topic → group → queue ids
        self._retries: dict[str, tuple[str, str]] = {}  # retry topic → topic, group
        self._channels: dict[Hashable, dict[Waiting, None]] = {}
        self._deadlines: list[tuple[int, int]] = []  # heap: deadline, number
        self._numbered: dict[int, Waiting] = {}
        self._numbers = itertools.count()
        self._gone: deque[Waiting] = deque()  # of closed channels, to be forgotten
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Requests that wait for one queue."""
        return len(self._waiting.get((topic, group, queue_id), ()))

    def wait(self, waiting: Waiting) -> bool:
        """Keep a request; False if there are too many."""
        topic, group, queue_id = waiting.key
        queue = self._waiting.get(waiting.key)
        if self._count >= self.total_max or (queue is not None and len(queue) >= self.size_max):
            return False
        groups = self._groups.get(topic, {})
        if group not in groups and len(groups) >= GROUPS_PER_TOPIC_MAX:
            return False
        if not self._limits.take(waiting.channel, waiting.size):
            return False
        if queue is None:
            queue = self._waiting[waiting.key] = {}
            self._groups.setdefault(topic, groups).setdefault(group, set()).add(queue_id)
            for v2 in (False, True):
                self._retries[pop_retry_topic(topic, group, v2=v2)] = (topic, group)
        queue[waiting] = None
        self._channels.setdefault(waiting.channel, {})[waiting] = None
        waiting.number = next(self._numbers)
        self._numbered[waiting.number] = waiting
        heapq.heappush(self._deadlines, (waiting.deadline_ms, waiting.number))
        self._count += 1
        return True

    def on_message_arriving(
        self, topic: str, queue_id: int, tags_code: int | None = None, properties_raw: bytes = b""
    ) -> list[Waiting]:
        """A queue has grown; one request of each group that may want the message."""
        if not self._count:
            return []
        if topic in self._retries:
            found = self.take_for_retry(topic)
            return [] if found is None else [found]
        woken = []
        for group, queue_ids in list(self._groups.get(topic, {}).items()):
            for wanted in (queue_id, ANY_QUEUE):
                if wanted in queue_ids:
                    found = self.take(topic, group, wanted, tags_code, properties_raw)
                    if found is not None:
                        woken.append(found)
        return woken

    def take_for_retry(self, topic: str) -> Waiting | None:
        """The request that is to have what is in a retry topic: one of its group, for any queue."""
        retried = self._retries.get(topic)
        if retried is None:
            return None
        found = self.take(*retried, ANY_QUEUE)
        if found is None:
            for other in list(self._groups.get(retried[0], {}).get(retried[1], ())):
                found = found or self.take(*retried, other)
        return found

    def take(
        self,
        topic: str,
        group: str,
        queue_id: int,
        tags_code: int | None = None,
        properties_raw: bytes = b"",
    ) -> Waiting | None:
        """The request that waits longest for a queue and may want the message."""
        queue = self._waiting.get((topic, group, queue_id))
        if not queue:
            return None
        unwanted: list[Waiting] = []
        found = None
        for waiting in list(queue) if self._gone else queue:
            if waiting.channel not in self._channels:
                self._remove(waiting)
            elif waiting.is_wanted is not None and not waiting.is_wanted():
                unwanted.append(waiting)
            elif (
                tags_code is None
                or waiting.matches is None
                or (
                    waiting.judged_max
                    and not self._limits.may_judge(waiting.judged_max, properties_raw)
                )
                or waiting.matches(tags_code, properties_raw)
            ):
                found = waiting
                break
        for waiting in unwanted:
            self._remove(waiting)
            if waiting.on_dropped is not None:
                waiting.on_dropped()
        if found is not None:
            self._remove(found)
        return found

    def on_time(self, now_ms: int) -> list[Waiting]:
        """Those whose time is over, at most `DUE_AT_ONCE`."""
        self._forget_gone()
        due: list[Waiting] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(due) < DUE_AT_ONCE:
            waiting = self._numbered.get(heapq.heappop(self._deadlines)[1])
            if waiting is not None:
                if waiting.channel in self._channels:
                    due.append(waiting)
                self._remove(waiting)
        return due

    def connection_closed(self, channel: Hashable) -> int:
        """Forget what a channel waits for, or it would be woken in place of others; how many."""
        gone = self._channels.pop(channel, {})
        self._gone.extend(gone)
        self._forget_gone()
        return len(gone)

    def _forget_gone(self) -> None:
        for _ in range(min(len(self._gone), GONE_AT_ONCE)):
            waiting = self._gone.popleft()
            if waiting.number in self._numbered:
                self._remove(waiting)

    def clear(self) -> list[Waiting]:
        """Everybody: the broker is closing."""
        everybody = [waiting for queue in self._waiting.values() for waiting in queue]
        for waiting in everybody:
            self._remove(waiting)
        self._gone.clear()
        return everybody

    def _remove(self, waiting: Waiting) -> None:
        del self._numbered[waiting.number]
        if len(self._deadlines) > 2 * len(self._numbered) + DEADLINES_SPARE:
            # Those that were woken early leave their deadlines behind.
            self._deadlines = [each for each in self._deadlines if each[1] in self._numbered]
            heapq.heapify(self._deadlines)
        topic, group, queue_id = waiting.key
        queue = self._waiting[waiting.key]
        del queue[waiting]
        channel = self._channels.get(waiting.channel)
        if channel is not None:  # else it is closed
            channel.pop(waiting, None)
            if not channel:
                del self._channels[waiting.channel]
        self._count -= 1
        self._limits.give(waiting.channel, waiting.size)
        if queue:
            return
        del self._waiting[waiting.key]
        groups = self._groups[topic]
        groups[group].discard(queue_id)
        if not groups[group]:
            del groups[group]
            for v2 in (False, True):
                self._retries.pop(pop_retry_topic(topic, group, v2=v2), None)
            if not groups:
                del self._groups[topic]
