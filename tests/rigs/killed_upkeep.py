"""Kills the upkeep of Iceberg tables before or after any of the things that it does to files.

What is written, synced and deleted, and each commit, is counted; the one with a number ends the run
without a word, as the end of the process would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from oberth.spark.pipelines.export.compaction import compact, expire
from oberth.spark.pipelines.export.iceberg_files import FileCatalog
from oberth.spark.pipelines.export.places import LocalPlace, ObjectPlace


class KilledError(BaseException):
    """Stands for the end of a process."""


@contextmanager
def _killed_at(number: int) -> Iterator[None]:
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError

    def counted(real: Any, after: bool) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            count()
            result = real(*arguments, **more)
            if after:
                count()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for place in (LocalPlace, ObjectPlace):
            for name in ("open", "finish", "remove"):
                patch.setattr(place, name, counted(getattr(place, name), after=False))
        for catalog in (SqlCatalog, FileCatalog):
            patch.setattr(catalog, "commit_table", counted(catalog.commit_table, after=True))
        yield


def kept_up_until_killed(into: str, number: int, storage: dict[str, str] | None = None) -> bool:
    """Joins all small files and forgets all that is old; gives whether it came to its end.

    Args:
        into: the export's directory.
        number: of the step that the process does not outlive, counted from 0.
        storage: options of the object store, without ``storage.``.
    """
    with suppress(KilledError), _killed_at(number):
        compact(into, 1 << 20, storage)
        expire(into, 0.0, storage)
        return True
    return False
