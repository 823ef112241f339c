"""What is kept of a request that waits, and how much may wait.

A pull or pop that found nothing is held until a message arrives or its time is over. A peer
decides neither how much memory that takes nor for how long: of its request only the fields that the
header knows are kept (no body, no remark, no others); counts and bytes are limited for each
connection and for all together; no wait is longer than `HOLD_MS_MAX`.

Once all together have what they may, a connection may still have its share, the limit divided by
the connections that hold something: those that hold much cannot keep out those that hold little. So
all together never have more than twice the limit.

Expressions of those who wait judge what arrives as far as a turn of the loop goes. For whom there
is no room, the message may be one that is wanted: they run again, as those do that it wakes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from oberth.remoting.command import RemotingCommand, text_size
from oberth.remoting.headers.base import CommandHeader

HOLD_MS_MAX: Final = 120_000
"""The longest wait. Clients ask for 15 to 30 s; a silent connection is closed after 120 s."""

CONNECTION_COUNT_MAX: Final = 65_536
"""Requests that wait for one connection: one for each queue of a client with very many."""

CONNECTION_BYTES_MAX: Final = 64 << 20
TOTAL_BYTES_MAX: Final = 512 << 20

GONE_AT_ONCE: Final = 5_000
"""Requests of a closed connection that a table forgets in one turn; the others within seconds."""

JUDGED_SIZE: Final = 256
"""Bytes of properties that cost as much to judge as a message without any."""

ANSWER_S: Final = 0.005
"""How long held requests are answered before the loop turns."""

REQUEST_SIZE: Final = 1024
"""Bytes of a request that waits besides the text of its fields: its objects and table entries."""

_LOGICAL: Final = "lo"
"""Read beside the header: whether the number of a static topic's queue is a logical one."""


def kept_request(
    request: RemotingCommand, header_type: type[CommandHeader]
) -> tuple[RemotingCommand, int]:
    """What is needed to run a request again, and the bytes that it takes."""
    fields = request.fields
    wanted = (*header_type.__struct_encode_fields__, _LOGICAL)
    kept = {name: fields[name] for name in wanted if name in fields}
    small = RemotingCommand(
        code=request.code,
        ext_fields=kept,
        flag=request.flag,
        language=None,
        opaque=request.opaque,
        version=request.version,
    )
    return small, REQUEST_SIZE + text_size(kept.values())


def wait_until(request: RemotingCommand, deadline_ms: int, born_ms: int) -> None:
    """Has a kept pop or notification, run again, wait no longer than it does now."""
    request.fields["pollTime"] = str(deadline_ms - born_ms)


class HoldLimits:
    """Counts and bytes of what waits, shared by all tables of a broker in which requests wait."""

    __slots__ = (
        "_channels", "_judging_left", "connection_bytes_max", "connection_count_max", "total",
        "total_max",
    )  # fmt: skip

    def __init__(
        self,
        connection_count_max: int = CONNECTION_COUNT_MAX,
        connection_bytes_max: int = CONNECTION_BYTES_MAX,
        total_max: int = TOTAL_BYTES_MAX,
    ) -> None:
        self.connection_count_max = connection_count_max
        self.connection_bytes_max = connection_bytes_max
        self.total_max = total_max
        self.total = 0
        self._channels: dict[Hashable, tuple[int, int]] = {}  # count, bytes
        self._judging_left = 1.0

    def __len__(self) -> int:
        return len(self._channels)

    def take(self, channel: Hashable, size: int) -> bool:
        """Count a request of a connection; False if it must be answered now."""
        channels = self._channels
        count, held = channels.get(channel, (0, 0))
        wanted = held + size
        if count >= self.connection_count_max or wanted > self.connection_bytes_max:
            return False
        if self.total + size > self.total_max:
            share = self.total_max // (len(channels) + (not count))
            if wanted > share:
                return False
        channels[channel] = (count + 1, wanted)
        self.total += size
        return True

    def give(self, channel: Hashable, size: int) -> None:
        """A request waits no more."""
        count, held = self._channels[channel]
        self.total -= size
        if count == 1:
            del self._channels[channel]
        else:
            self._channels[channel] = (count - 1, held - size)

    def new_turn(self) -> None:
        """A turn of the loop has begun in which messages arrive."""
        self._judging_left = 1.0

    def may_judge(self, judged_max: int, properties_raw: bytes) -> bool:
        """Whether an expression may judge a message in this turn.

        Args:
            judged_max: of messages without long properties, how many may be judged in a turn.
            properties_raw: of the message.
        """
        self._judging_left -= (1 + len(properties_raw) / JUDGED_SIZE) / judged_max
        return self._judging_left > 0


T = TypeVar("T")


class InTurns(Generic[T]):
    """Serves those who were woken, `ANSWER_S` in a turn of the loop, in order.

    Args:
        serve: runs a request again.
    """

    __slots__ = ("_is_scheduled", "_serve", "_waiting")

    def __init__(self, serve: Callable[[T], None]) -> None:
        self._serve = serve
        self._waiting: deque[T] = deque()
        self._is_scheduled = False

    def soon(self, woken: Iterable[T]) -> None:
        """Serve these, from the next turn on."""
        self._waiting.extend(woken)
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve_some)

    def serve_all(self) -> None:
        """Serve at once all that were woken: the broker stops."""
        for _ in range(len(self._waiting)):
            self._serve(self._waiting.popleft())

    def _serve_some(self) -> None:
        self._is_scheduled = False
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_S
        try:
            for _ in range(len(self._waiting)):  # requests woken meanwhile have another turn
                self._serve(self._waiting.popleft())
                if loop.time() >= until:
                    break
        finally:
            self.soon(())  # also behind one that could not be served
