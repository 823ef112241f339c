"""Foreign bytes for the files of a store, drawn by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st


def foreign_bytes(place_max: int, zeros_max: int) -> st.SearchStrategy[list[tuple[int, bytes]]]:
    """One to five places, up to ``place_max``, with what lies there: random bytes, or zeros."""
    data = st.one_of(st.binary(min_size=1, max_size=30), st.integers(1, zeros_max).map(bytes))
    return st.lists(st.tuples(st.integers(0, place_max), data), min_size=1, max_size=5)
