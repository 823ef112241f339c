"""Names of index files: times, and the order of the files whatever the times are."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.paths import is_index_name
from oberth.store.offline.index_files import file_name

FIRST_MS = 1_700_000_000_123


def test_a_name_is_the_local_time_of_the_first_entry() -> None:
    expected = time.strftime("%Y%m%d%H%M%S", time.localtime(FIRST_MS // 1000)) + "123"
    assert file_name(FIRST_MS, "") == expected
    assert file_name(FIRST_MS + 1, expected) == str(int(expected) + 1)


@pytest.mark.parametrize("timestamp_ms", [FIRST_MS, FIRST_MS - 1, 0, -5, -(2**63), 2**63 - 1])
def test_a_time_that_is_not_later_gives_the_name_behind_the_last(timestamp_ms: int) -> None:
    last = file_name(FIRST_MS, "")
    assert file_name(timestamp_ms, last) == str(int(last) + 1)


def test_a_name_that_is_no_time_is_not_counted_on() -> None:
    assert file_name(FIRST_MS, "99") == file_name(FIRST_MS, "")


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2 * FIRST_MS), max_size=20))
def test_names_are_in_the_order_of_the_files(times_ms: list[int]) -> None:
    names = [""]
    for timestamp_ms in times_ms:
        names.append(file_name(timestamp_ms, names[-1]))
        assert is_index_name(names[-1])
    assert names == sorted(set(names))
