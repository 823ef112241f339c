"""The pytest plugin: a fixture ``rocketmq``, a broker of each test's own.

    def test_order(rocketmq):
        with Producer("g", namesrv_addr=rocketmq.namesrv_addr) as producer:
            producer.send(Message("T", b"hello"))
        assert rocketmq.bodies("T") == [b"hello"]

Plain and asynchronous tests may use it: the broker runs in a thread of its own. Settings of
broker.conf for one test: ``@pytest.mark.rocketmq(brokerName="b", transactionTimeOut="1000")``.
Imports nothing of Oberth before a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oberth.testing.blocking import EmbeddedBroker


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "rocketmq(**settings): keys of broker.conf for the `rocketmq` fixture's broker"
    )


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A RocketMQ broker with a fresh store; see ``oberth.testing.embedded_broker``."""
    from oberth.testing.blocking import EmbeddedBroker  # noqa: PLC0415 - every pytest loads plugins

    marker = request.node.get_closest_marker("rocketmq")
    with EmbeddedBroker(marker.kwargs if marker is not None else None) as broker:
        yield broker
