"""Appends to a segment that a disk refuses although it has taken them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from oberth.store.mapped_file import MappedFile


@contextmanager
def copies_fail_behind_their_end() -> Iterator[None]:
    """A disk that has taken all of an append and says that it failed."""
    copy = MappedFile._copy

    def fail(self: MappedFile, start: int, data: bytes) -> None:
        copy(self, start, data)
        raise OSError(5, "Input/output error", self.path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedFile, "_copy", fail)
        yield
