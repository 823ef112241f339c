"""Names of segments and index files, there and back, and foreign files among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.paths import is_index_name, queue_number, segment_name, segment_start


@given(st.integers(0, 2**63 - 1))
def test_segments(start: int) -> None:
    assert len(segment_name(start)) == 20
    assert segment_start(segment_name(start)) == start


@pytest.mark.parametrize(
    "name", ["", "0", "0" * 19, "0" * 21, "-" + "0" * 19, "+" + "0" * 19, "٠" * 20, "0" * 19 + "\n",
             "000000000000000000_0", "0000000000000000000a", "0000000000000000000 ", "9" * 20]
)  # fmt: skip
def test_foreign_names(name: str) -> None:
    assert segment_start(name) is None


def test_golden_names(golden_facts: Callable[[str], Any], golden_names: tuple[str, ...]) -> None:
    for golden_name in golden_names:
        for entry in golden_facts(golden_name)["files"]:
            folder, _, name = entry["path"].rpartition("/")
            if folder == "index":
                assert is_index_name(name)
            elif folder.startswith(
                ("commitlog", "clog-", "consumequeue", "batchconsume", "timerlog")
            ):
                start = segment_start(name)
                assert start is not None
                assert start % entry["size"] == 0


@pytest.mark.parametrize("name", ["", "20261121084341844.tmp", "２０", "-1", "abc"])
def test_no_index_names(name: str) -> None:
    assert not is_index_name(name)


@pytest.mark.parametrize(
    ("name", "number"),
    [("0", 0), ("7", 7), (str(2**31 - 1), 2**31 - 1), (str(2**31), None), ("01", None),
     ("", None), ("-1", None), ("+1", None), ("²", None), ("٠", None), ("9" * 5000, None)],
)  # fmt: skip
def test_queue_numbers(name: str, number: int | None) -> None:
    assert queue_number(name) == number
