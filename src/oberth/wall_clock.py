"""The wall clock, where no other clock is given."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch, as RocketMQ counts them."""
    return time.time_ns() // 1_000_000
