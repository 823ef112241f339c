"""Fixtures of the offline tests: readers of golden stores with the sizes they were made with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oberth.store.offline.reader import StoreReader

SIZE_KEYS = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mappedFileSizeConsumeQueueExt",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)


@pytest.fixture
def sizes() -> Callable[[dict[str, str]], dict[str, str]]:
    """The file sizes among a golden store's options."""
    return lambda config: {key: config[key] for key in SIZE_KEYS if key in config}


@pytest.fixture
def open_reader() -> Iterator[Callable[..., StoreReader]]:
    """Opens readers that are closed when the test ends."""
    opened: list[StoreReader] = []

    def make(*arguments: Any, **options: Any) -> StoreReader:
        reader = StoreReader(*arguments, **options)
        opened.append(reader)
        return reader

    yield make
    for reader in opened:
        reader.close()
