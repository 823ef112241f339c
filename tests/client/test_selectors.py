"""Proves that hash selectors choose as Java's SelectMessageQueueByHash does."""

from __future__ import annotations

import pytest

from oberth.client.messages import Message
from oberth.client.selectors import java_hash_code, select_by_hash, select_by_random
from oberth.remoting.bodies.base import MessageQueue

QUEUES = [MessageQueue(topic="T", broker_name="b", queue_id=n) for n in range(7)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", 0), ("hello", 99162322), ("TagA", 2598919), (5, 5), (-5, -5), (2**31, -2147483648),
     (-(2**63), -2147483648), (2**40 + 3, 259), (True, 1231), (False, 1237), (-1, -1),
     (-(2**31) - 1, -2147483648)],
)  # fmt: skip
def test_java_hash_code(value: str | int, expected: int) -> None:
    assert java_hash_code(value) == expected


def test_the_same_argument_gives_the_same_queue() -> None:
    message = Message("T", b"x")
    for arg in ("a", "order-17", 5, -5, 2**62, True):
        assert select_by_hash(QUEUES, message, arg) is select_by_hash(QUEUES, message, arg)
    assert select_by_hash(QUEUES, message, -9) is QUEUES[2]
    assert select_by_random(QUEUES, message, None) in QUEUES
