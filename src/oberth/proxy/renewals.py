"""Renewals: messages whose invisible time goes on for as long as a push consumer works on them.

A client that asks for ``auto_renew`` holds a receipt handle for as long as it takes. Shortly before
the message would be seen by others, its time is made longer, by 1, 3, 5, 10, 30 and then 60
minutes; the client still uses the handle that it was given. That ends with the acknowledgement,
with the client, after `FAILURES_MAX` failures in a row, and `KEPT_MS` after the message was handed
out. A start of the broker forgets it: the message is seen again when the current time is over.
RocketMQ: ReceiptHandleProcessor, RenewStrategyPolicy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import Final

RENEW_MS: Final = tuple(60_000 * minutes for minutes in (1, 3, 5, 10, 30, 60))
AHEAD_MS: Final = 10_000
"""How long before its time is over a message is renewed."""

FAILURES_MAX: Final = 3
KEPT_MS: Final = 3 * 3_600_000
PER_CLIENT_MAX: Final = 10_000
"""Messages of one client; the time of further ones is not made longer."""

TOTAL_MAX: Final = 500_000
"""Messages of all clients, and those that clients which have ended left."""

AT_ONCE_MAX: Final = 100
"""Renewals that are begun at a time."""

LOOKED_AT_ONCE: Final = 2_000
"""Messages that are looked at at a time."""


class Renewal:
    """One message in work.

    Attributes:
        client_id: who works on it.
        given: the handle that the client was given.
        handle: the one that is valid now.
        topic, group, lite_topic: where from, and for whom.
        began_ms: when it was handed out.
        due_s: when it is to be renewed; 0: not noted.
        steps: how often it was renewed.
        failures: how often in a row that failed.
        again_ms: before then it is not renewed, because it has failed; 0: it has not.
        is_queued: whether it waits for others of its broker to be renewed.
        changing: done when the broker has answered to the renewal that is under way; None: none is.
        endings: how many acknowledgements, or what else ends the renewals, are under way, or have
            ended so that nobody knows whether the broker has done them.
        is_left: whether its client has ended meanwhile.
    """

    __slots__ = (
        "again_ms", "began_ms", "changing", "client_id", "due_s", "endings", "failures", "given",
        "group", "handle", "is_left", "is_queued", "lite_topic", "steps", "topic",
    )  # fmt: skip

    def __init__(
        self, client_id: str, given: str, topic: str, group: str, lite_topic: str, now_ms: int
    ) -> None:
        self.client_id = client_id
        self.given = self.handle = given
        self.topic = topic
        self.group = group
        self.lite_topic = lite_topic
        self.began_ms = now_ms
        self.due_s = 0
        self.steps = 0
        self.failures = 0
        self.again_ms = 0
        self.is_queued = False
        self.changing: asyncio.Future[None] | None = None
        self.endings = 0
        self.is_left = False

    @property
    def is_ending(self) -> bool:
        """Whether it may have ended. Renewed once more, the message would come again."""
        return self.endings > 0

    async def changed(self) -> None:
        """Wait until no renewal is under way: ``handle`` is the one that is valid."""
        while self.changing is not None:
            await asyncio.wait([self.changing])

    @property
    def next_ms(self) -> int:
        """How long the next step makes it invisible."""
        return RENEW_MS[min(self.steps, len(RENEW_MS) - 1)]


class Renewals:
    """All messages in work, by client and handle, and by the second in which they are due.

    A client that ends is forgotten at once, whatever it has in work; `take_left` has that.
    """

    def __init__(self) -> None:
        self._by_client: dict[str, dict[str, Renewal]] = {}
        # Not a heap: nearly all are acknowledged long before, and shall leave nothing behind.
        self._due: dict[int, dict[tuple[str, str], Renewal]] = {}
        self._count = 0
        self._left: deque[dict[str, Renewal]] = deque()  # of clients that have ended
        self._left_count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, renewal: Renewal, visible_ms: int) -> None:
        """Keep a message that was handed out; nothing if the client, or all, have too many."""
        mine = self._by_client.get(renewal.client_id, {})
        total = self._count + self._left_count
        if len(mine) >= PER_CLIENT_MAX or total >= TOTAL_MAX or renewal.given in mine:
            return
        self._by_client[renewal.client_id] = mine
        mine[renewal.given] = renewal
        self._count += 1
        self.schedule(renewal, visible_ms)

    def schedule(self, renewal: Renewal, visible_ms: int) -> None:
        """Look at a message again shortly before others see it, or when it may be tried again."""
        self._unschedule(renewal)
        renewal.due_s = max(visible_ms - AHEAD_MS, renewal.again_ms) // 1000
        self._due.setdefault(renewal.due_s, {})[renewal.client_id, renewal.given] = renewal

    def _unschedule(self, renewal: Renewal) -> None:
        bucket = self._due.get(renewal.due_s)
        if bucket is not None:
            bucket.pop((renewal.client_id, renewal.given), None)
            if not bucket:
                del self._due[renewal.due_s]

    def get(self, client_id: str, given: str) -> Renewal | None:
        """The message of a handle."""
        return self._by_client.get(client_id, {}).get(given)

    def remove(self, client_id: str, given: str) -> Renewal | None:
        """Forget a message, and return it."""
        mine = self._by_client.get(client_id)
        if mine is None:
            return None
        found = mine.pop(given, None)
        if not mine:
            del self._by_client[client_id]
        if found is not None:
            self._count -= 1
            self._unschedule(found)
        return found

    def remove_client(self, client_id: str) -> None:
        """Forget a client; the messages it had in work are left."""
        mine = self._by_client.pop(client_id, None)
        if mine is not None:
            self._count -= len(mine)
            self._left_count += len(mine)
            self._left.append(mine)

    @property
    def has_left(self) -> bool:
        """Whether `take_left` has more."""
        return bool(self._left)

    def take_left(self, count: int) -> list[Renewal]:
        """Of as many messages that were left those that do not end; `settled` follows for each.

        The others are marked: if one does not end after all, nobody has it in work.
        """
        found: list[Renewal] = []
        for _ in range(count):
            if not self._left:
                break
            _, renewal = self._left[0].popitem()
            if not self._left[0]:
                self._left.popleft()
            self._unschedule(renewal)
            if renewal.is_ending:
                renewal.is_left = True
                self._left_count -= 1
            else:
                found.append(renewal)
        return found

    def settled(self, count: int) -> None:
        """So many messages that were taken are nobody's any more."""
        self._left_count -= count

    def due(self, now_ms: int) -> list[Renewal]:
        """Messages to be renewed now, at most `AT_ONCE_MAX`; they are no longer scheduled."""
        found: list[Renewal] = []
        left = LOOKED_AT_ONCE
        for second in sorted(each for each in self._due if each * 1000 <= now_ms):
            for renewal in list(islice(self._due[second].values(), left)):
                if len(found) >= AT_ONCE_MAX:
                    return found
                left -= 1
                self._unschedule(renewal)
                if renewal.failures >= FAILURES_MAX or now_ms - renewal.began_ms >= KEPT_MS:
                    self.remove(renewal.client_id, renewal.given)
                else:
                    found.append(renewal)
        return found
