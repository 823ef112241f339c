"""Bodies that carry offsets: 220, 221, 222, 223."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from oberth.remoting.bodies.base import Body, QueueMap


class ResetOffsetBody(Body):
    """Body of 220 and answer of 222. The Go client reads it as text: nothing may stand between."""

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {"offsetTable": int}

    offset_table: QueueMap[int] = msgspec.field(default_factory=dict)


class MessageQueueForC(Body):
    """A queue and its offset."""

    broker_name: str = ""
    offset: int = 0
    queue_id: int = 0
    topic: str = ""


class ResetOffsetBodyForC(Body):
    """Body of 220 to clients whose language is CPP."""

    offset_table: list[MessageQueueForC] = msgspec.field(default_factory=list)


class GetConsumerStatusBody(Body):
    """Answer of 221 from a client (``message_queue_table``); of 223 to a tool, by client id."""

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {
        "consumerTable": {str: int},
        "messageQueueTable": int,
    }

    consumer_table: dict[str, QueueMap[int]] = msgspec.field(default_factory=dict)
    message_queue_table: QueueMap[int] = msgspec.field(default_factory=dict)
