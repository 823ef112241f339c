"""What a kill leaves of a store, and foreign bytes for its files, drawn by Hypothesis."""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import strategies as st


def foreign_bytes(place_max: int, zeros_max: int) -> st.SearchStrategy[list[tuple[int, bytes]]]:
    """One to five places, up to ``place_max``, with what lies there: random bytes, or zeros."""
    data = st.one_of(st.binary(min_size=1, max_size=30), st.integers(1, zeros_max).map(bytes))
    return st.lists(st.tuples(st.integers(0, place_max), data), min_size=1, max_size=5)


def copy_killed(root: Path, target: Path) -> None:
    """Copies what a kill leaves of an open store; files that are there for a moment stay out."""
    shutil.copytree(root, target, ignore=shutil.ignore_patterns("lock", "*.tmp", "*.link"))
