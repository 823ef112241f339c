"""Timer log units: golden logs from end to end, a blank that looks like a unit, random bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.java_string import java_hash
from oberth.formats.timer_log import (
    BLANK_MAGIC,
    BLANK_SIZE,
    UNIT_SIZE,
    TimerLogBlank,
    TimerLogUnit,
    decode_timer_unit,
    encode_timer_blank,
    encode_timer_unit,
    fits,
)


@pytest.mark.parametrize("golden_name", ["timer-before-5.5.0", "timer-after-5.5.0", "pop-5.5.0"])
def test_golden_log(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    messages = {message["commitLogOffset"]: message for message in store.facts["messages"]}
    found: list[dict[str, Any]] = []
    for start, path in store.segments("timerlog").items():
        data = path.read_bytes()
        position = 0
        while (unit := decode_timer_unit(data, position)) is not None:
            if isinstance(unit, TimerLogBlank):
                assert unit.remaining == len(data) - position
                assert encode_timer_blank(unit.remaining) == data[position : position + BLANK_SIZE]
                assert not fits(len(data), position)
                break
            assert fits(len(data), position)
            assert encode_timer_unit(unit) == data[position : position + UNIT_SIZE]
            message = messages[unit.commit_log_offset]
            assert unit.record_size == message["storeSize"]
            assert unit.topic_hash == java_hash(message["properties"]["REAL_TOPIC"])
            assert unit.is_delete == ("TIMER_DEL_UNIQKEY" in message["properties"])
            if not unit.is_roll:
                assert unit.slot_time == int(message["properties"]["TIMER_OUT_MS"])
            found.append(
                {
                    "pos": start + position,
                    "size": UNIT_SIZE,
                    "prevPos": unit.previous,
                    "magic": unit.magic,
                    "enqueueTime": unit.enqueue_time,
                    "delayedTime": unit.delay_ms,
                    "commitLogOffset": unit.commit_log_offset,
                    "msgSize": unit.record_size,
                    "topicHash": unit.topic_hash,
                    "reserved": unit.reserved,
                }
            )
            position += UNIT_SIZE
    # The listing took the blank of size 52 for a unit; its magic tells.
    units = [unit for unit in store.facts["timerLogUnits"] if unit.get("magic") != BLANK_MAGIC]
    units = [unit for unit in units if "prevPos" in unit]
    assert found == units


def test_golden_blank_of_a_units_size(golden_pristine: Callable[[str], Any]) -> None:
    data = (golden_pristine("timer-before-5.5.0").root / "timerlog" / ("0" * 20)).read_bytes()
    assert int.from_bytes(data[1404:1408], "big") == UNIT_SIZE
    assert decode_timer_unit(data, 1404) == TimerLogBlank(52)


INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@given(
    st.builds(TimerLogUnit, INT64, st.integers(0, 15), INT64, INT32, INT64, INT32, INT32, INT64),
    st.integers(0, 9),
)
def test_round_trip(unit: TimerLogUnit, position: int) -> None:
    raw = encode_timer_unit(unit)
    assert len(raw) == UNIT_SIZE
    assert decode_timer_unit(bytes(position) + raw, position) == unit


@given(st.binary(max_size=70))
def test_any_bytes(data: bytes) -> None:
    assert isinstance(decode_timer_unit(data), (TimerLogUnit, TimerLogBlank, type(None)))


def test_the_end_of_a_log() -> None:
    raw = encode_timer_unit(TimerLogUnit(-1, 1, 2, 3, 4, 5, 6))
    for end in range(UNIT_SIZE):
        assert decode_timer_unit(raw[:end]) is None
    assert decode_timer_unit(bytes(60)) is None
    assert decode_timer_unit(raw[:12] + b"\x10" + raw[13:]) is None
    assert decode_timer_unit(raw[:3] + b"\x35" + raw[4:]) is None
    with pytest.raises(FormatError):
        encode_timer_unit(TimerLogUnit(-1, 1, 2, 1 << 31, 4, 5, 6))


def test_bits() -> None:
    unit = TimerLogUnit(-1, 7, 100, 23, 0, 0, 0)
    assert (unit.is_roll, unit.is_delete, unit.slot_time) == (True, True, 123)
    assert not unit._replace(magic=1).is_roll
    assert fits(68, 0)
    assert not fits(67, 0)
