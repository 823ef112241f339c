"""What a push consumer and its listener say to each other.

A listener is given one message (``MessageListener``) or several with a context
(``BatchMessageListener``). A coroutine function runs on the loop; a plain function runs in the
consumer's threads, so it may block. Returning None or SUCCESS means done; RECONSUME_LATER, or any
exception, means: again later. RocketMQ: MessageListenerConcurrently, MessageListenerOrderly.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from oberth.client.messages import MessageExt
from oberth.remoting.bodies.base import MessageQueue


class ConsumeStatus(enum.Enum):
    """How consuming went.

    In order (``orderly=True``), RECONSUME_LATER is Java's SUSPEND_CURRENT_QUEUE_A_MOMENT: the
    queue waits, nothing overtakes the message.
    """

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


@dataclass(slots=True)
class ConsumeContext:
    """What a batch listener may ask and say beside its result.

    Attributes:
        message_queue: where the messages are from.
        delay_level_when_next_consume: of failed messages: 0 the broker decides, -1 dead letter at
            once, else a delay level.
        ack_index: concurrent, with SUCCESS: messages behind this index failed all the same.
        suspend_current_queue_time_ms: orderly: for how long the queue waits; -1: the consumer's.
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int = 2**31 - 1
    suspend_current_queue_time_ms: int = -1


MessageListener: TypeAlias = (
    Callable[[MessageExt], Awaitable[ConsumeStatus | None]]
    | Callable[[MessageExt], ConsumeStatus | None]
)
BatchMessageListener: TypeAlias = (
    Callable[[Sequence[MessageExt], ConsumeContext], Awaitable[ConsumeStatus | None]]
    | Callable[[Sequence[MessageExt], ConsumeContext], ConsumeStatus | None]
)
