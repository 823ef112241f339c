"""BatchConsumeQueue units: the golden inner-batch store unit by unit, round trips, random bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.batch_consume_queue import (
    NOT_COMPACTED,
    UNIT_SIZE,
    BatchConsumeQueueUnit,
    decode_batch_unit,
    encode_batch_unit,
    round_file_size,
)


def test_golden_units(golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine("innerbatch-5.5.0")
    log = {message["commitLogOffset"]: message for message in store.facts["messages"]}
    seen = 0
    for queue in store.facts["queues"]:
        if queue["cqType"] != "BatchCQ":
            continue
        found = []
        for path in store.segments(
            "batchconsumequeue", queue["topic"], str(queue["queueId"])
        ).values():
            data = path.read_bytes()
            assert len(data) % UNIT_SIZE == 0
            for position in range(0, len(data), UNIT_SIZE):
                unit = decode_batch_unit(data, position)
                assert encode_batch_unit(unit) == data[position : position + UNIT_SIZE]
                if not unit.is_valid:
                    assert not any(data[position:])
                    break
                found.append(unit)
                record = log[unit.commit_log_offset]
                assert unit.store_timestamp == record["storeTimestamp"]
                assert unit.reserved == 0
                assert unit.batch_size == int(record["properties"].get("INNER_NUM", 1))
                assert unit.message_base_offset == record["queueOffset"]
                if "INNER_BASE" in record["properties"]:
                    assert unit.message_base_offset == int(record["properties"]["INNER_BASE"])
        assert [
            [
                unit.message_base_offset,
                unit.commit_log_offset,
                unit.record_size,
                unit.tags_code,
                unit.batch_size,
                unit.compacted_offset,
            ]
            for unit in found
        ] == queue["units"]
        assert not found or found[-1].next_offset == queue["maxOffset"]
        seen += len(found)
    assert seen >= 28


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
UNITS = st.builds(
    BatchConsumeQueueUnit, INT64, INT32, INT64, INT64, INT64,
    st.integers(-(2**15), 2**15 - 1), INT32, INT32,
)  # fmt: skip


@given(UNITS, st.integers(0, 5))
def test_round_trip(unit: BatchConsumeQueueUnit, position: int) -> None:
    raw = encode_batch_unit(unit)
    assert len(raw) == UNIT_SIZE
    assert decode_batch_unit(bytes(position) + raw, position) == unit


@given(st.binary(min_size=46, max_size=46))
def test_any_bytes_are_a_unit(raw: bytes) -> None:
    assert encode_batch_unit(decode_batch_unit(raw)) == raw


def test_validity() -> None:
    unit = BatchConsumeQueueUnit(0, 1, 0, 0, 0, 1)
    assert unit.compacted_offset == NOT_COMPACTED
    assert unit.is_valid
    for name, value in [
        ("commit_log_offset", -1), ("record_size", 0), ("message_base_offset", -1),
        ("batch_size", 0),
    ]:  # fmt: skip
        assert not unit._replace(**{name: value}).is_valid


def test_errors() -> None:
    with pytest.raises(FormatError, match="45 bytes left, 46 needed"):
        decode_batch_unit(bytes(46), 1)
    with pytest.raises(FormatError):
        encode_batch_unit(BatchConsumeQueueUnit(0, 1, 0, 0, 0, 32_768))


def test_round_file_size() -> None:
    assert [round_file_size(size) for size in (1, 46, 47, 13_800_000)] == [46, 46, 92, 13_800_000]
