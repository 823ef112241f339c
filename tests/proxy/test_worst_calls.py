"""No call of a gRPC client holds the broker's loop: the longest lists that a request may have.

Counted as in tests/broker/test_worst_frames.py. The client has a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.test_worst_frames import OPERATIONS_MAX, Turns
from tests.proxy.conftest import add_group, add_topic, client_of

from oberth.proxy import messages as m
from oberth.proxy.codes import Code
from oberth.proxy.receiving import LITE_NAMES_MAX
from oberth.testing.embedded_broker import EmbeddedBroker

OTHER_FIELDS = 20
"""At least as many as a request has beside its list."""


@pytest.mark.parametrize(
    ("count", "code"),
    [
        (2000, Code.OK),
        (LITE_NAMES_MAX, Code.BAD_REQUEST),
        (m.FIELDS_MAX - OTHER_FIELDS, Code.BAD_REQUEST),
    ],
)
async def test_a_client_that_takes_very_many_lite_topics(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, count: int, code: Code
) -> None:
    """As many as a client may take, as one call may name, and as any call may have fields."""
    add_topic(mq, "L", "LITE")
    add_group(mq, "LG", attributes={"+lite.bind.topic": "L"})
    turns = Turns(monkeypatch)
    actions = m.enum_values("LiteSubscriptionAction")

    async def call(action: str) -> Any:
        names = [f"{'l' * 55}{number}" for number in range(count)]
        request = m.SyncLiteSubscriptionRequest(action=actions[action], lite_topic_set=names)
        request.topic.name, request.group.name = "L", "LG"
        async with client_of(mq) as client:
            return (await client.call("SyncLiteSubscription", request)).status

    for action in actions:
        turns.most = 0
        turns.counting = True
        status = await asyncio.to_thread(asyncio.run, call(action))
        turns.counting = False
        assert turns.most <= OPERATIONS_MAX, action
        assert status.code == code, (action, status.message)
