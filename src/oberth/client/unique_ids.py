"""UniqueIds: the ids that a client gives to messages (UNIQ_KEY). RocketMQ: MessageClientIDSetter.

Ids of one process never repeat within a millisecond below 65 536 of them, and two processes differ
in address, process id or the four random bytes that stand where Java has a class loader's hash.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import time

from oberth.formats.message_id import unique_id_prefix


def month_start_ms(now_ms: int) -> int:
    """When the month of ``now_ms`` began, local time."""
    local = time.localtime(now_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1)) * 1000)


def next_month_start_ms(start_ms: int) -> int:
    """When the month after the one that began at ``start_ms`` begins, local time."""
    local = time.localtime(start_ms / 1000)
    return int(time.mktime((local.tm_year, local.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1)) * 1000)


class UniqueIds:
    """Makes ids for one address.

    Args:
        ip: of this machine, IPv4 or IPv6.
    """

    __slots__ = ("_counter", "_month_end_ms", "_month_start_ms", "_prefix", "_stem", "_stem_ms")

    def __init__(self, ip: str) -> None:
        self._prefix = unique_id_prefix(
            ipaddress.ip_address(ip).packed, os.getpid(), int.from_bytes(os.urandom(4), "big")
        )
        self._counter = itertools.count()
        self._month_start_ms = 0
        self._month_end_ms = -1
        self._stem = ""  # of all ids of one millisecond
        self._stem_ms = -1

    def next_id(self, now_ms: int) -> str:
        """A new id at a time."""
        if now_ms != self._stem_ms:
            if not self._month_start_ms <= now_ms < self._month_end_ms:
                self._month_start_ms = month_start_ms(now_ms)
                self._month_end_ms = next_month_start_ms(self._month_start_ms)
            self._stem_ms = now_ms
            self._stem = f"{self._prefix}{now_ms - self._month_start_ms & 0xFFFFFFFF:08X}"
        # Half the time of an f-string with formats.
        return "%s%04X" % (self._stem, next(self._counter) & 0xFFFF)  # noqa: UP031
