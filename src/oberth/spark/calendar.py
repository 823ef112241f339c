"""Which times can be a column's: those that a damaged record names can lie far outside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_DAY_MS: Final = 86_400_000
TIME_MIN_MS: Final = -62_135_596_800_000 + _DAY_MS
TIME_MAX_MS: Final = 253_402_300_799_999 - _DAY_MS
"""From year 1 to 9999 (Spark's timestamps and Python's datetimes), less a day for any time zone."""


def moment(timestamp_ms: int) -> datetime | None:
    """A time in ms since 1970 as a column's value; None for one that no column can have."""
    if not TIME_MIN_MS <= timestamp_ms <= TIME_MAX_MS:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
