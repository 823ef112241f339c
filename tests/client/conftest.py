"""Fixtures of client tests: a broker on the test's own loop, and clients' configuration."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oberth.testing.embedded_broker import EmbeddedBroker


@pytest.fixture
async def mq() -> AsyncIterator[EmbeddedBroker]:
    """A fresh broker."""
    async with EmbeddedBroker() as broker:
        yield broker


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with Apache's brokers run when they are asked for: `-m interop`."""
    if "OBERTH_INTEROP" in os.environ or "interop" in config.option.markexpr:
        return
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("interop"):
            item.add_marker(pytest.mark.skip(reason="pytest -m interop runs this"))
