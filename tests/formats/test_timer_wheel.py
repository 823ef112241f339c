"""Timer wheel slots: every live slot of the golden wheels, turns, and random slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.timer_wheel import (
    EMPTY_SLOT,
    FILE_SIZE,
    SLOT_SIZE,
    SLOTS,
    SLOTS_A_TURN,
    TimerSlot,
    decode_slot,
    encode_slot,
    slot_index,
    slot_position,
)


@pytest.mark.parametrize("golden_name", ["timer-before-5.5.0", "timer-after-5.5.0", "pop-5.5.0"])
def test_golden_slots(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    wheel = (store.root / "timerwheel").read_bytes()
    assert len(wheel) == FILE_SIZE
    live = {}
    for expected in store.facts["timerWheelSlots"]:
        time_ms = expected["timeMs"]
        slot = decode_slot(wheel, slot_position(time_ms))
        assert slot_index(time_ms) == expected["index"]
        assert slot == TimerSlot(
            expected["storedTime"], expected["firstPos"], expected["lastPos"], expected["num"],
            expected["magic"],
        )  # fmt: skip
        position = slot_position(time_ms)
        assert encode_slot(slot) == wheel[position : position + SLOT_SIZE]
        live[position] = slot
    assert live
    # Nothing but the listed slots is in the file.
    rest = bytearray(wheel)
    for position in live:
        rest[position : position + SLOT_SIZE] = bytes(SLOT_SIZE)
    assert not any(rest)


def test_turns() -> None:
    assert SLOTS == 2 * SLOTS_A_TURN == 1_209_600
    assert slot_index(0) == 0
    assert slot_index(999) == 0
    assert slot_index(1000) == 1
    assert slot_index(SLOTS * 1000) == 0
    assert slot_index(2500, 100) == 25


INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.builds(TimerSlot, INT64, INT64, INT64, INT32, INT32), st.integers(0, 40))
def test_round_trip(slot: TimerSlot, position: int) -> None:
    assert decode_slot(bytes(position) + encode_slot(slot), position) == slot


def test_errors() -> None:
    with pytest.raises(FormatError, match="31 bytes left"):
        decode_slot(bytes(31))
    with pytest.raises(FormatError):
        encode_slot(EMPTY_SLOT._replace(num=1 << 31))
