"""checkpoint: every golden file gives the listed values and its own bytes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import FormatError
from oberth.formats.checkpoint import FILE_SIZE, USED_SIZE, Checkpoint, decode_checkpoint


def test_golden(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    raw = (store.root / "checkpoint").read_bytes()
    expected = store.facts["checkpoint"]
    found = decode_checkpoint(raw)
    names = {
        "physicMsgTimestamp": found.physic_msg_timestamp,
        "logicsMsgTimestamp": found.logics_msg_timestamp,
        "indexMsgTimestamp": found.index_msg_timestamp,
        "masterFlushedOffset": found.master_flushed_offset,
        "confirmPhyOffset": found.confirm_offset,
        "logicsPhysicalOffset": found.logics_physical_offset,
        "minTimestamp": found.min_timestamp,
    }
    assert {name: names[name] for name in names if name in expected} == {
        name: value for name, value in expected.items() if name in names
    }
    assert raw[:64].hex() == expected["first64"]
    assert found.encode().ljust(FILE_SIZE, b"\0") == raw


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(Checkpoint, INT64, INT64, INT64, INT64, INT64, INT64))
def test_round_trip(checkpoint: Checkpoint) -> None:
    assert len(checkpoint.encode()) == USED_SIZE
    assert decode_checkpoint(checkpoint.encode()) == checkpoint
    assert checkpoint.min_timestamp >= 0


@given(st.binary(max_size=USED_SIZE - 1))
def test_too_short(data: bytes) -> None:
    with pytest.raises(FormatError, match="needed are 48"):
        decode_checkpoint(data)
