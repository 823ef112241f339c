"""Delay levels: the text of ``messageDelayLevel`` and what a level means in milliseconds."""

from __future__ import annotations

import re
from typing import Final

from oberth.errors import OptionError

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
DELAY_MAX_MS: Final = 999_999_999_000
"""The longest delay that can be written in seconds."""

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# A level that is not in the table is due one second after it was stored.
UNKNOWN_LEVEL_DELAY_MS: Final = 1000


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds by level; index 0 (no delay) is 0, so ``table[level]`` is the delay.

    Raises:
        OptionError: a word is not a number followed by s, m, h or d.
    """
    table = [0]
    for word in text.split():
        unit = _UNIT_MS.get(word[-1:].lower())
        if unit is None or not _NUMBER.fullmatch(word[:-1]):
            raise OptionError(
                f"messageDelayLevel: found {word!r} as level {len(table)}, "
                "allowed is a number followed by s, m, h or d"
            )
        table.append(int(word[:-1]) * unit)
    return tuple(table)


def deliver_time(level: int, store_timestamp: int, delays_ms: tuple[int, ...]) -> int:
    """When a delayed message is due, in ms. RocketMQ: ScheduleMessageService."""
    level = min(level, len(delays_ms) - 1)
    if level < 1:
        return store_timestamp + UNKNOWN_LEVEL_DELAY_MS
    return store_timestamp + delays_ms[level]
