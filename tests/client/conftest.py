"""Fixtures of client tests: a broker on the test's own loop, and clients' configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from oberth.testing.embedded_broker import EmbeddedBroker


@pytest.fixture
async def mq() -> AsyncIterator[EmbeddedBroker]:
    """A fresh broker."""
    async with EmbeddedBroker() as broker:
        yield broker
