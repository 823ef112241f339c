"""Proves when an answer to a pull has the client ask for the route."""

from __future__ import annotations

from typing import Any, cast

import pytest

from oberth.client.instance import ClientInstance
from oberth.client.pulling import PullStatus, PullTemplate, pull_raw
from oberth.client.subscriptions import build_subscription_data
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.pull import PullMessageResponseHeader

ADDRESSES = {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
QUEUE = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)


class Answering:
    """The part of an instance that pulls use: each is answered in the same way."""

    def __init__(self, code: int, remark: str) -> None:
        self._answer = code, remark
        self.doubted: list[str] = []

    def broker_address(self, broker_name: str, broker_id: int) -> str:
        assert broker_name == "broker-a"
        return ADDRESSES[broker_id]

    def master_address(self, broker_name: str) -> str:
        return self.broker_address(broker_name, 0)

    async def invoke(self, addr: str, request: RemotingCommand, timeout_s: float) -> Any:
        del addr, timeout_s
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=7, min_offset=0, max_offset=7
        )
        return create_response(request, *self._answer, header=header)

    def doubt_route(self, topic: str) -> None:
        self.doubted.append(topic)


@pytest.mark.parametrize(
    ("broker_id", "remark", "is_doubtful"),
    [
        (0, "OFFSET_OVERFLOW_ONE", True),
        (0, "NO_MESSAGE_IN_QUEUE", True),
        (0, "NO_MATCHED_MESSAGE", False),
        (0, "MESSAGE_WAS_REMOVING", False),
        (1, "OFFSET_OVERFLOW_ONE", False),
    ],
)
async def test_a_master_that_became_a_slave_is_left(
    broker_id: int, remark: str, is_doubtful: bool
) -> None:
    """A slave at its end says: again, at once, at the master. A master never says so."""
    instance = Answering(ResponseCode.PULL_RETRY_IMMEDIATELY, remark)
    template = PullTemplate(
        "g", QUEUE, build_subscription_data("t", "*", 0), max_msg_nums=32, with_subscription=True,
        suspend_timeout_ms=1000,
    )  # fmt: skip
    found = await pull_raw(
        cast(ClientInstance, instance), template, 7, sys_flag=0, broker_id=broker_id
    )
    assert found.status is PullStatus.NO_MATCHED_MSG
    assert instance.doubted == (["t"] if is_doubtful else [])
