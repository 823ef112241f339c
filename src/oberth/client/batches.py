"""Which messages may be sent as one batch, and how many batches a list of messages needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oberth.client.messages import MESSAGE_ILLEGAL, Message
from oberth.errors import MQClientError
from oberth.formats import names
from oberth.formats import properties as p

_DELAYS: Final = frozenset({p.DELAY, p.TIMER_DELAY_MS, p.TIMER_DELAY_SEC, p.TIMER_DELIVER_MS})

ITEM_RESERVE: Final = 22 + 64
"""Bytes of a batch item beside body and properties: its fields, and the id that is added."""


def check_batch(msgs: Sequence[Message]) -> None:
    """Whether messages may be sent as one batch. RocketMQ: MessageBatch.generateFromList.

    Raises:
        MQClientError: none at all, several topics or WAIT settings, delays, or a retry topic.
    """
    found: object = msgs
    if not isinstance(found, Sequence) or not all(isinstance(each, Message) for each in found):
        raise MQClientError(
            f"what is sent is {type(msgs).__name__}; it must be Message(topic, body), or a list "
            "of them",
            MESSAGE_ILLEGAL,
        )
    if not msgs:
        raise MQClientError("a batch without messages", MESSAGE_ILLEGAL)
    topic = msgs[0].topic
    wait = msgs[0].properties.get(p.WAIT)
    if topic.startswith(names.RETRY_PREFIX):
        raise MQClientError(f"batch to {topic}: not allowed for retry topics", MESSAGE_ILLEGAL)
    for msg in msgs:
        if msg.topic != topic:
            raise MQClientError(
                f"batch to {topic}: also has a message to {msg.topic}", MESSAGE_ILLEGAL
            )
        if msg.properties.get(p.WAIT) != wait:
            raise MQClientError(f"batch to {topic}: different WAIT settings", MESSAGE_ILLEGAL)
        if not _DELAYS.isdisjoint(msg.properties):
            raise MQClientError(f"batch to {topic}: delays are not allowed", MESSAGE_ILLEGAL)


def split_batch(msgs: Sequence[Message], size_max: int) -> list[list[Message]]:
    """Messages in order, in as few batches as ``size_max`` bytes of body allow.

    A message that is too long alone makes a batch of its own, which sending will refuse.
    """
    batches: list[list[Message]] = []
    size = size_max + 1
    for msg in msgs:
        properties = sum(
            len(name.encode()) + len(value.encode()) + 2 for name, value in msg.properties.items()
        )
        item_size = ITEM_RESERVE + len(msg.body) + properties
        if size + item_size > size_max:
            batches.append([])
            size = 0
        batches[-1].append(msg)
        size += item_size
    return batches
