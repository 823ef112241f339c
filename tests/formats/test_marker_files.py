"""abort and lock: what both lines write is read, and anything else is no process id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.marker_files import LOCK_CONTENT, decode_abort, encode_abort


@given(st.integers(0, 2**63 - 1))
def test_process_ids(process_id: int) -> None:
    assert decode_abort(encode_abort(process_id)) == process_id


def test_golden_abort(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    path = store.root / "abort"
    assert path.exists() == store.facts["abortFile"]
    if path.exists():
        raw = path.read_bytes()
        assert encode_abort(decode_abort(raw)) == raw
        assert (decode_abort(raw) is None) == store.rocketmq_version.startswith("4.9")


def test_golden_lock(golden_pristine: Callable[[str], Any]) -> None:
    lock = golden_pristine("basic-5.5.0").root / "lock"
    assert lock.read_bytes() == LOCK_CONTENT


@pytest.mark.parametrize("data", [b"", b"x", b"-1", b"1 2", b"9" * 40, b"\xff", "٣".encode()])
def test_no_process_id(data: bytes) -> None:
    assert decode_abort(data) is None


@given(st.binary(max_size=50))
def test_any_bytes(data: bytes) -> None:
    decode_abort(data)
