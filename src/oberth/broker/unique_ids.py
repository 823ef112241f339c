"""UniqueIds: UNIQ_KEYs for messages whose sender gave none. RocketMQ: MessageClientIDSetter."""

from __future__ import annotations

import os
import random
import time

from oberth.formats.message_id import unique_id, unique_id_prefix
from oberth.wall_clock import now_ms


class UniqueIds:
    """Ids that no other process makes; the milliseconds count from the start of the month."""

    __slots__ = ("_counter", "_month_start_ms", "_next_month_ms", "_prefix")

    def __init__(self, address: bytes) -> None:
        self._prefix = unique_id_prefix(address, os.getpid(), random.SystemRandom().getrandbits(32))
        self._counter = random.randrange(0x10000)
        self._month_start_ms = self._next_month_ms = 0

    def next(self) -> str:
        """One more id."""
        time_ms = now_ms()
        if time_ms >= self._next_month_ms:
            local = time.localtime(time_ms / 1000)
            start = (local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1)
            following = (local.tm_year, local.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1)
            self._month_start_ms = int(time.mktime(start) * 1000)
            self._next_month_ms = int(time.mktime(following) * 1000)
        self._counter += 1
        return unique_id(self._prefix, time_ms - self._month_start_ms, self._counter)
