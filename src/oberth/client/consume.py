"""What a push consumer and its listener say to each other.

A listener is given one message (``MessageListener``) or several with a context
(``BatchMessageListener``). A coroutine function runs on the loop; a plain function runs in the
consumer's threads, so it may block. Returning None or SUCCESS means done; RECONSUME_LATER, or any
exception, means: again later. RocketMQ: MessageListenerConcurrently, MessageListenerOrderly.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from oberth.client.messages import MessageExt
from oberth.remoting.bodies.base import MessageQueue

_LOG: Final = logging.getLogger(__name__)

TRACEBACK_INTERVAL_S: Final = 60.0
"""The same failure of a listener is logged with its traceback once in so long."""

FAILURES_KNOWN_MAX: Final = 64


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


class ListenerFailures:
    """Logs what listeners raise: in full once a minute, else one line for a message.

    Two failures are the same when they are of one type and were raised at one place.
    """

    def __init__(self) -> None:
        self._shown: dict[tuple[type[BaseException], str, int], float] = {}

    def note(self, group: str, what: str, error: BaseException, now_s: float) -> None:
        """A listener raised.

        Args:
            group: of the consumer.
            what: the message and its queue.
            error: what was raised.
            now_s: of any clock that does not go back.
        """
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        file = "" if trace is None else trace.tb_frame.f_code.co_filename
        kind = (type(error), file, 0 if trace is None else trace.tb_lineno)
        shown_s = self._shown.get(kind)
        if shown_s is not None and now_s - shown_s < TRACEBACK_INTERVAL_S:
            text = str(error).partition("\n")[0][:200]
            _LOG.warning(
                "%s: the listener failed for %s: %s: %s", group, what, kind[0].__name__, text
            )
            return
        self._shown.pop(kind, None)
        if len(self._shown) >= FAILURES_KNOWN_MAX:
            del self._shown[next(iter(self._shown))]
        self._shown[kind] = now_s
        _LOG.warning("%s: the listener failed for %s", group, what, exc_info=error)


MessageListener: TypeAlias = (
    Callable[[MessageExt], Awaitable[ConsumeStatus | None]]
    | Callable[[MessageExt], ConsumeStatus | None]
)
BatchMessageListener: TypeAlias = (
    Callable[[Sequence[MessageExt], ConsumeContext], Awaitable[ConsumeStatus | None]]
    | Callable[[Sequence[MessageExt], ConsumeContext], ConsumeStatus | None]
)
