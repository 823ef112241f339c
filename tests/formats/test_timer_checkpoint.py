"""config/timercheck: golden values and bytes, the short form of the wire, and too few bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.timer_checkpoint import (
    FILE_SIZE,
    USED_SIZE,
    TimerCheckpoint,
    decode_timer_checkpoint,
)


@pytest.mark.parametrize("golden_name", ["timer-before-5.5.0", "timer-after-5.5.0", "pop-5.5.0"])
def test_golden(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    raw = (store.root / "config" / "timercheck").read_bytes()
    found = decode_timer_checkpoint(raw)
    expected = store.facts["timerCheckpoint"]
    assert found.last_read_time == expected["lastReadTimeMs"]
    assert found.last_timer_log_flush_pos == expected["lastTimerLogFlushPos"]
    assert found.last_timer_queue_offset == expected["lastTimerQueueOffset"]
    assert found.master_timer_queue_offset == expected["masterTimerQueueOffset"]
    version = f"DataVersion[timestamp={found.timestamp}, counter={found.counter}]"
    assert version == expected["dataVersion"]
    assert found.encode().ljust(FILE_SIZE, b"\0") == raw


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(TimerCheckpoint, *[INT64] * 7))
def test_round_trip(checkpoint: TimerCheckpoint) -> None:
    raw = checkpoint.encode()
    assert len(raw) == USED_SIZE
    assert decode_timer_checkpoint(raw) == checkpoint
    short = decode_timer_checkpoint(raw[:32])
    assert short.last_read_time == checkpoint.last_read_time
    assert (short.state_version, short.timestamp, short.counter) == (0, 0, 0)


def test_errors() -> None:
    with pytest.raises(FormatError, match="31 bytes"):
        decode_timer_checkpoint(bytes(31))
    with pytest.raises(FormatError):
        TimerCheckpoint(counter=1 << 63).encode()
