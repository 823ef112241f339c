"""Selectors: which queue a message goes to. RocketMQ: MessageQueueSelector."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from oberth.client.messages import Message
from oberth.formats.java_string import java_hash, signed_32
from oberth.remoting.bodies.base import MessageQueue

MessageQueueSelector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
"""Called with the queues of the topic, the message and the caller's argument."""


def java_hash_code(value: str | int | bool) -> int:
    """``hashCode()`` of Java's String, Integer, Long or Boolean; signed 32-bit."""
    if isinstance(value, str):
        return java_hash(value)
    if isinstance(value, bool):
        return 1231 if value else 1237
    if -(2**31) <= value < 2**31:
        return value
    unsigned = value & 0xFFFFFFFFFFFFFFFF
    return signed_32((unsigned ^ unsigned >> 32) & 0xFFFFFFFF)


def select_by_hash(
    queues: Sequence[MessageQueue], message: Message, arg: str | int | bool
) -> MessageQueue:
    """The same queue for the same argument, in Java's clients too."""
    del message
    return queues[abs(java_hash_code(arg)) % len(queues)]


def select_by_random(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
    """Any queue."""
    del message, arg
    return random.choice(queues)
