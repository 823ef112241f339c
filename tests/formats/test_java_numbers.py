"""java_long takes decimal numbers of 64 bits, and nothing that Python alone would take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.formats.java_numbers import java_long

_END = 1 << 63


@given(st.integers(-_END, _END - 1), st.integers(0, 30))
def test_numbers_of_64_bits(number: int, zeros: int) -> None:
    sign = "-" if number < 0 else ""
    for text in (str(number), f"{sign}{'0' * zeros}{abs(number)}"):
        assert java_long(text, None) == java_long(text.encode(), None) == number
    if number >= 0:
        assert java_long(f"+{number}", None) == number


@pytest.mark.parametrize(
    "text",
    [
        None, "", "-", "+", " 1", "1 ", "1_000", "1.0", "0x1", "\u00b2", "\u0661", "--1",
        str(_END), str(-_END - 1), "9" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_number_is_the_default(text: str | None) -> None:
    assert java_long(text, 7) == 7
    assert java_long(text, None) is None
    if text is not None:
        assert java_long(text.encode(), 7) == 7
