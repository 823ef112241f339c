"""ConsumeQueue units: golden queues unit by unit, and the borders between their kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.consume_queue import (
    EXT_ADDRESS_MAX,
    PRE_BLANK,
    UNIT,
    UNIT_SIZE,
    ConsumeQueueUnit,
    is_ext_address,
    round_file_size,
)
from oberth.formats.consume_queue_ext import decode_ext_unit, ext_offset


def test_golden_units(golden_closed_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_closed_name)
    for queue in store.facts["queues"]:
        if queue["cqType"] != "SimpleCQ":
            continue
        where = (queue["topic"], str(queue["queueId"]))
        files = store.segments("consumequeue", *where)
        ext_files = store.segments("consumequeue_ext", *where)
        for queue_offset, commit_log_offset, size, tags_code, *ext in queue["units"]:
            position = queue_offset * UNIT_SIZE
            start = max(start for start in files if start <= position)
            with open(files[start], "rb") as file:
                file.seek(position - start)
                raw = file.read(UNIT_SIZE)
            unit = ConsumeQueueUnit(*UNIT.unpack(raw))
            assert unit[:2] == (commit_log_offset, size)
            assert unit.is_message
            assert UNIT.pack(*unit) == raw
            if not ext or ext[0] is None:
                assert unit.tags_code == tags_code
                continue
            assert is_ext_address(unit.tags_code)
            at = ext_offset(unit.tags_code)
            ext_start = max(start for start in ext_files if start <= at)
            ext_unit = decode_ext_unit(ext_files[ext_start].read_bytes(), at - ext_start)
            assert ext_unit is not None
            assert ext_unit.tags_code == ext[0]["tagsCode"]
            # 5.5.0's reader hands out the ext unit's tags code, 4.9.7's the address.
            assert tags_code in (ext_unit.tags_code, unit.tags_code)


@pytest.mark.parametrize("golden_name", ["cleaned-noqueue-4.9.7", "cleaned-noqueue-5.5.0"])
def test_golden_pre_blank_size(golden_name: str, golden_facts: Callable[[str], Any]) -> None:
    # Rebuilt above 0, so the queues' files begin with pre-blank units after Java's recovery.
    assert any(queue["minOffset"] for queue in golden_facts(golden_name)["queues"])


def test_kinds() -> None:
    pre_blank = ConsumeQueueUnit(*UNIT.unpack(PRE_BLANK))
    assert pre_blank == (0, 2**31 - 1, 0)
    assert pre_blank.is_pre_blank
    assert not pre_blank.is_message
    assert not ConsumeQueueUnit(0, 0, 0).is_message
    assert not ConsumeQueueUnit(-1, 100, 0).is_message
    assert ConsumeQueueUnit(0, 100, 0).is_message


def test_ext_addresses_begin_below_every_hash() -> None:
    assert EXT_ADDRESS_MAX == -2147483649
    assert not is_ext_address(-(2**31))
    assert is_ext_address(-(2**31) - 1)
    assert is_ext_address(-(2**63))


@pytest.mark.parametrize(("size", "rounded"), [(1, 20), (20, 20), (21, 40), (6_000_000, 6_000_000)])
def test_round_file_size(size: int, rounded: int) -> None:
    assert round_file_size(size) == rounded


@given(st.binary(min_size=20, max_size=20))
def test_any_bytes_are_a_unit(raw: bytes) -> None:
    unit = ConsumeQueueUnit(*UNIT.unpack(raw))
    assert UNIT.pack(*unit) == raw
    assert not (unit.is_message and unit.is_pre_blank)
