"""PullRequestHold: pulls that found nothing and wait for a message.

RocketMQ: PullRequestHoldService.

A state machine: held pulls, arrivals, closed channels and the time go in; the pulls to run again
come out. It runs nothing itself. What is always true: a pull is held at most once, and it comes out
exactly once: by an arrival that its filter accepts, by its deadline, or with its channel.

An arrival is looked at as it is dispatched, so a waiting consumer learns of a message within the
same turn of the event loop that stored it. Deadlines are kept in buckets of `BUCKET_MS`; a pull may
come out that much late, never early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from oberth.broker.held_requests import GONE_AT_ONCE, HoldLimits

BUCKET_MS: Final = 100
"""Width of a deadline bucket."""

QUEUE_COUNT_MAX: Final = 10_000
"""Pulls that wait at one queue, all of which one message may wake: some 10 ms."""

DUE_AT_ONCE: Final = 5_000
"""Pulls whose time is over, or whose queue is gone, that come out at a time; the others the next
time."""

HELD_COUNT_MAX: Final = 1_000_000
"""Pulls held at once. A broker that holds more answers 19 at once, and clients ask again."""


class ArrivalFilter(Protocol):
    """What a held pull wants to see; ``store.messages.MessageFilter`` is one."""

    def matches_consume_queue(self, tags_code: int, ext_unit: Any, /) -> bool:
        """Whether a message with this tags code can be wanted."""
        ...


class PropertiesFilter(Protocol):
    """A filter that also looks at the properties of what arrives (SQL92)."""

    @property
    def judged_max(self) -> int:
        """How many messages it may judge in a turn."""

    def matches_properties(self, properties_raw: bytes, /) -> bool:
        """Whether a message with these properties is wanted."""
        ...


class HeldPull:
    """One waiting pull.

    Attributes:
        channel: its connection.
        request: whatever the pull processor needs to run it again.
        queue_offset: the first offset wanted; an arrival that makes the queue end higher wakes it.
        arrival_filter: None accepts everything.
        properties_filter: asked after ``arrival_filter``; None accepts everything.
        deadline_ms: when it is to be answered at the latest.
        size: bytes that it takes; see ``held_requests``.
    """

    __slots__ = (
        "arrival_filter",
        "channel",
        "deadline_ms",
        "key",
        "properties_filter",
        "queue_offset",
        "request",
        "size",
    )

    def __init__(
        self,
        channel: Hashable,
        request: Any,
        queue_offset: int,
        deadline_ms: int,
        arrival_filter: ArrivalFilter | None = None,
        properties_filter: PropertiesFilter | None = None,
        size: int = 0,
    ) -> None:
        self.channel = channel
        self.request = request
        self.queue_offset = queue_offset
        self.deadline_ms = deadline_ms
        self.arrival_filter = arrival_filter
        self.properties_filter = properties_filter
        self.size = size
        self.key: tuple[str, int] | None = None


class PullRequestHold:
    """All held pulls of a broker.

    Attributes:
        count_max: pulls held at once.
        limits: shared by all that wait.
    """

    __slots__ = (
        "_buckets", "_channels", "_count", "_gone", "_queues", "_to_wake", "count_max", "limits",
    )  # fmt: skip

    def __init__(self, count_max: int = HELD_COUNT_MAX, limits: HoldLimits | None = None) -> None:
        self.count_max = count_max
        self.limits = HoldLimits() if limits is None else limits
        self._count = 0
        self._queues: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._buckets: dict[int, dict[HeldPull, None]] = {}
        self._channels: dict[Hashable, dict[HeldPull, None]] = {}
        self._gone: deque[HeldPull] = deque()  # of closed channels, to be forgotten
        self._to_wake: deque[HeldPull] = deque()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[HeldPull]:
        return (held for queue in self._queues.values() for held in queue)

    def hold(self, topic: str, queue_id: int, held: HeldPull) -> bool:
        """Keep a pull; False if too much is held and it must be answered now."""
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if (
            self._count >= self.count_max
            or (queue is not None and len(queue) >= QUEUE_COUNT_MAX)
            or not self.limits.take(held.channel, held.size)
        ):
            return False
        assert held.key is None, "held twice"
        held.key = key
        if queue is None:
            queue = self._queues[key] = {}
        queue[held] = None
        # Rounded up, so that a bucket that has passed holds only pulls that are due.
        number = -(-held.deadline_ms // BUCKET_MS)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
        bucket[held] = None
        self._channels.setdefault(held.channel, {})[held] = None
        self._count += 1
        return True

    def on_message_arriving(
        self,
        topic: str,
        queue_id: int,
        max_offset: int,
        tags_code: int | None,
        properties_raw: bytes = b"",
        ext_unit: Any = None,
    ) -> list[HeldPull]:
        """A message was dispatched and the queue now ends at ``max_offset``; the pulls to answer.

        ``tags_code`` None stands for several messages of any kind: every held pull looks again.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return []
        may_judge = self.limits.may_judge
        woken = [
            held
            for held in queue
            if max_offset > held.queue_offset
            and (
                tags_code is None
                or (
                    (
                        held.arrival_filter is None
                        or held.arrival_filter.matches_consume_queue(tags_code, ext_unit)
                    )
                    and (
                        held.properties_filter is None
                        or not may_judge(held.properties_filter.judged_max, properties_raw)
                        or held.properties_filter.matches_properties(properties_raw)
                    )
                )
            )
        ]
        for held in woken:
            self._remove(held)
        return woken

    def wake_queue(self, topic: str, queue_id: int) -> list[HeldPull]:
        """The pulls of a queue whose offset was reset. Of very many the rest come by `on_time`."""
        return self._wake(self._queues.get((topic, queue_id), ()))

    def wake_topic(self, topic: str) -> list[HeldPull]:
        """The pulls of all queues of a topic. Of very many the rest come by `on_time`."""
        return self._wake(
            held for key, queue in self._queues.items() if key[0] == topic for held in queue
        )

    def _wake(self, everybody: Iterable[HeldPull]) -> list[HeldPull]:
        self._to_wake.extend(everybody)
        return self._woken()

    def _woken(self) -> list[HeldPull]:
        """The next of those who are to be woken."""
        woken = []
        for _ in range(min(len(self._to_wake), DUE_AT_ONCE)):
            held = self._to_wake.popleft()
            if held.key is not None:  # else it came out meanwhile
                self._remove(held)
                woken.append(held)
        return woken

    def on_time(self, now_ms: int) -> list[HeldPull]:
        """Those whose time is over, at most `DUE_AT_ONCE`."""
        self._forget_gone()
        due = self._woken()
        late: list[HeldPull] = []
        for number in [number for number in self._buckets if number * BUCKET_MS <= now_ms]:
            late += islice(self._buckets[number], DUE_AT_ONCE - len(due) - len(late))
        for held in late:
            self._remove(held)
        return due + late

    def connection_closed(self, channel: Hashable) -> int:
        """Forget what a channel waits for; how many that were."""
        gone = self._channels.pop(channel, {})
        self._gone.extend(gone)
        self._forget_gone()
        return len(gone)

    def _forget_gone(self) -> None:
        gone = self._gone
        for _ in range(min(len(gone), GONE_AT_ONCE)):
            held = gone.popleft()
            if held.key is not None:  # else somebody woke it meanwhile
                self._remove(held)

    def clear(self) -> list[HeldPull]:
        """Everybody: the broker is closing."""
        everybody = list(self)
        self._queues.clear()
        self._buckets.clear()
        self._channels.clear()
        self._gone.clear()
        self._to_wake.clear()
        self._count = 0
        for held in everybody:
            held.key = None
            self.limits.give(held.channel, held.size)
        return everybody

    def _remove(self, held: HeldPull) -> None:
        key = held.key
        assert key is not None, "not held"
        held.key = None
        queue = self._queues[key]
        del queue[held]
        if not queue:
            del self._queues[key]
        number = -(-held.deadline_ms // BUCKET_MS)
        bucket = self._buckets[number]
        del bucket[held]
        if not bucket:
            del self._buckets[number]
        channel = self._channels.get(held.channel)
        if channel is not None:  # else it is closed
            channel.pop(held, None)
            if not channel:
                del self._channels[held.channel]
        self._count -= 1
        self.limits.give(held.channel, held.size)
