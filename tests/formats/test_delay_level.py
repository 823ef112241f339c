"""Delay levels: RocketMQ's default table, units, clamping, and texts that are no table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import OptionError
from oberth.formats.delay_level import (
    DEFAULT_DELAY_LEVELS,
    deliver_time,
    parse_delay_levels,
)


def test_default_table() -> None:
    minutes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
    assert parse_delay_levels(DEFAULT_DELAY_LEVELS) == (
        0, 1000, 5000, 10_000, 30_000, *(60_000 * m for m in minutes),
    )  # fmt: skip


def test_units_and_clamping() -> None:
    table = parse_delay_levels("1s 2m 3h 4d")
    assert table == (0, 1000, 120_000, 10_800_000, 345_600_000)
    assert deliver_time(9, 10, table) == 345_600_010
    assert deliver_time(0, 10, table) == deliver_time(-1, 10, table) == 1010


@pytest.mark.parametrize(
    "text", ["1", "s", "1x", "1s,2s", "-1s", "1.5s", "1 s", "²s", "9" * 5000 + "s"]
)
def test_no_tables(text: str) -> None:
    with pytest.raises(OptionError, match="messageDelayLevel"):
        parse_delay_levels(text)


@given(st.text("0123456789smhd x-", max_size=20))
def test_table_or_error(text: str) -> None:
    try:
        table = parse_delay_levels(text)
    except OptionError:
        return
    assert len(table) == len(text.split()) + 1
