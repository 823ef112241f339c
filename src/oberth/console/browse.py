"""Browsing: messages of a topic's queues in the order of their store times, a page at a time.

Queues are merged: of each only as much is read as the page needs. A search looks at most at
LOOKED_MAX messages, BYTES_MAX bytes and for LOOK_S seconds in one page; its cursor says where the
next page goes on, so that a long search is a row of short ones.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from oberth.client.admin import Admin
from oberth.client.messages import MessageExt
from oberth.console.cluster import Place
from oberth.console.decoding import head_of, unpack
from oberth.errors import OptionError
from oberth.formats.sql92 import compile_sql92
from oberth.formats.sql92_nodes import Sql92EvaluationError
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.stats import TopicOffset

WINDOW_MAX: Final = 32
WINDOW_MIN: Final = 4
READERS_MAX: Final = 8
"""Queues that are read at the same time."""

LOOKED_MAX: Final = 5000
BYTES_MAX: Final = 32 * 1024 * 1024
LOOK_S: Final = 1.5
CURSOR_MAX: Final = 64 * 1024
SEARCHED_MAX: Final = 4 * 1024 * 1024
"""Bytes of a body that a search looks at."""

Match = Callable[[MessageExt], bool]
Cursor = dict[Place, int]


@dataclass(slots=True)
class Found:
    """A page.

    Attributes:
        messages: in the order that was asked for.
        cursor: where the next page goes on; {}: there is nothing more.
        looked: messages that were looked at.
    """

    messages: list[MessageExt] = field(default_factory=list)
    cursor: Cursor = field(default_factory=dict)
    looked: int = 0


class _Reader:
    """One queue, read in one direction."""

    def __init__(
        self,
        admin: Admin,
        queue: MessageQueue,
        low: int,
        high: int,
        *,
        is_backward: bool,
        match: Match | None,
    ) -> None:
        self._admin = admin
        self._match = match
        self._matching: set[int] = set()
        self.queue = queue
        self._low, self._high = low, high
        self._is_backward = is_backward
        self.position = high if is_backward else low
        self._unread = self.position
        self._buffer: list[MessageExt] = []

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        bound = self._low if self._is_backward else self._high
        return not self._buffer and self._unread == bound

    async def head(self, window: int) -> MessageExt | None:
        """The next message, which `take` takes; None: there is none."""
        while not self._buffer and not self.is_at_end:
            if self._is_backward:
                await self._fill_backward(window)
            else:
                await self._fill_forward(window)
            if self._match is not None and self._buffer:
                # Not on the loop: a body may take long to unpack.
                self._matching = await asyncio.to_thread(_matching, self._match, self._buffer)
        if not self._buffer:
            self.position = self._unread
            return None
        return self._buffer[-1]

    def take(self) -> MessageExt:
        """The message that `head` gave."""
        message = self._buffer.pop()
        offset = message.queue_offset
        self.position = offset if self._is_backward else offset + 1
        return message

    def matches(self, message: MessageExt) -> bool:
        """Whether a message that `take` gave last is wanted."""
        return self._match is None or message.queue_offset in self._matching

    async def _fill_forward(self, window: int) -> None:
        result = await self._admin.pull(self.queue, self._unread, max_num=window)
        found = [each for each in result.messages if self._unread <= each.queue_offset < self._high]
        self._buffer = found[::-1]
        after = result.next_begin_offset
        self._unread = self._high if after <= self._unread else min(after, self._high)

    async def _fill_backward(self, window: int) -> None:
        high = self._unread
        while True:
            start = max(self._low, high - window)
            result = await self._admin.pull(self.queue, start, max_num=high - start)
            after = result.next_begin_offset
            if after >= high or after <= start or high - start == 1:
                break
            # Large messages: the answer was full before it came to the end.
            window = max(1, min(window // 2, after - start))
        self._buffer = [each for each in result.messages if start <= each.queue_offset < high]
        self._unread = start


def _matching(match: Match, found: Sequence[MessageExt]) -> set[int]:
    return {each.queue_offset for each in found if match(each)}


async def browse(
    admin: Admin,
    topic: str,
    ends: Mapping[Place, TopicOffset],
    *,
    is_newest_first: bool,
    cursor: Mapping[Place, int] | None,
    limit: int,
    match: Match | None = None,
) -> Found:
    """A page of messages.

    Args:
        admin: reads.
        topic: of the queues.
        ends: both ends of each queue that is read.
        is_newest_first: else the oldest first.
        cursor: of the page before, or where to begin; a queue that is not in it is at its end.
        limit: messages of the page.
        match: those that are wanted; None: all.
    """
    until_s = time.monotonic() + LOOK_S
    readers = [
        _Reader(
            admin,
            MessageQueue(topic=topic, broker_name=place[0], queue_id=place[1]),
            *_rest_of(place, end, cursor, is_newest_first=is_newest_first),
            is_backward=is_newest_first,
            match=match,
        )
        for place, end in sorted(ends.items())
    ]
    window = min(max(limit // max(len(readers), 1) + 1, WINDOW_MIN), WINDOW_MAX)
    if match is not None:
        window = WINDOW_MAX
    gate = asyncio.Semaphore(READERS_MAX)
    sign = -1 if is_newest_first else 1

    def entry(head: MessageExt, number: int) -> tuple[int, int, int]:
        # Within one broker the log says what came first in one millisecond.
        return sign * head.store_timestamp, sign * head.commit_log_offset, number

    async def first(number: int, reader: _Reader) -> tuple[int, int, int] | None:
        async with gate:
            head = await reader.head(window)
        return None if head is None else entry(head, number)

    heads = await asyncio.gather(*(first(*each) for each in enumerate(readers)))
    heap = [each for each in heads if each is not None]
    heapq.heapify(heap)
    made, size = Found(), 0
    while heap and len(made.messages) < limit:
        _, _, number = heapq.heappop(heap)
        reader = readers[number]
        message = reader.take()
        made.looked += 1
        size += message.store_size
        if reader.matches(message):
            made.messages.append(message)
        head = await reader.head(window)
        if head is not None:
            heapq.heappush(heap, entry(head, number))
        if made.looked >= LOOKED_MAX or size >= BYTES_MAX or time.monotonic() > until_s:
            break
    if heap:
        made.cursor = {
            (each.queue.broker_name, each.queue.queue_id): each.position for each in readers
        }
    return made


def _rest_of(
    place: Place, end: TopicOffset, cursor: Mapping[Place, int] | None, *, is_newest_first: bool
) -> tuple[int, int]:
    """The offsets of a queue, first and end, that no page has shown yet."""
    low, high = end.min_offset, end.max_offset
    if cursor is None:
        return low, high
    at = min(max(cursor.get(place, low if is_newest_first else high), low), high)
    return (low, at) if is_newest_first else (at, high)


def matcher(*, tag: str = "", sql: str = "", text: str = "") -> Match | None:
    """A test of messages by a page's filters; None: no filter, every message passes.

    Args:
        tag: ``A || B``, or "".
        sql: an expression of SQL92, or "".
        text: which the body must hold, unpacked, in any case; or "".

    Raises:
        FormatError: the expression is none.
    """
    wanted: list[Match] = []
    tags = {each.strip() for each in tag.split("||")} - {"", "*"}
    if tags:
        wanted.append(lambda message: message.tags in tags)
    if sql.strip():
        expression = compile_sql92(sql)

        def by_sql(message: MessageExt) -> bool:
            try:
                return expression.matches(message.properties)
            except Sql92EvaluationError:
                return False  # as a broker does

        wanted.append(by_sql)
    if text:
        needle = text.lower().encode("utf-8", "replace")

        def by_text(message: MessageExt) -> bool:
            head = head_of(message, SEARCHED_MAX)
            return needle in unpack(head)[0][:SEARCHED_MAX].lower()

        wanted.append(by_text)
    if not wanted:
        return None
    return lambda message: all(each(message) for each in wanted)


def cursor_text(cursor: Cursor) -> str:
    """A cursor for an address."""
    return ",".join(
        f"{quote(broker, safe='')}:{queue_id}:{offset}"
        for (broker, queue_id), offset in sorted(cursor.items())
    )


def parse_cursor(text: str) -> Cursor:
    """What `cursor_text` wrote.

    Raises:
        OptionError: it is none.
    """
    if len(text) > CURSOR_MAX:
        raise OptionError(f"a cursor of {len(text)} characters, at most {CURSOR_MAX}")
    made: Cursor = {}
    for piece in text.split(","):
        words = piece.split(":")
        numbers = words[1:]
        if len(numbers) != 2 or not all(
            each.isascii() and each.isdigit() and len(each) < 20 for each in numbers
        ):
            raise OptionError(f"a cursor with {piece[:60]!r}, which is no place")
        made[unquote(words[0]), int(numbers[0])] = int(numbers[1])
    return made


def times_of(messages: Sequence[MessageExt]) -> tuple[int, int] | None:
    """The first and the last store time of a page."""
    times = [each.store_timestamp for each in messages]
    return (min(times), max(times)) if times else None
