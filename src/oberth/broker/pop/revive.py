"""PopRevive: reads one queue of the revive topic, and brings back what was not acknowledged.

Check points come into the queue shortly before their messages are visible again, acknowledgements
until that time; both come through the timer. So when the timer has delivered everything up to a
time, every check point due by then is known with all its acknowledgements. What is left of it goes
to the group's POP retry topic.

What is always true: the committed offset is that of the last check point that is dealt with, and
check points are dealt with in the order of the queue; so after a crash some messages come back
twice and none is forgotten. Like RocketMQ's, the committed offset is read again as "after it".

A state machine: messages and the time go in, what to append comes out. RocketMQ: PopReviveService.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

from oberth.broker.pop.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    CheckPointError,
    CheckPointKey,
    PopAck,
    PopCheckPoint,
    decode_ack,
    decode_check_point,
)
from oberth.formats.java_numbers import LONG_END

_LOG: Final = logging.getLogger(__name__)

EARLY_ACKS_MAX: Final = 10_000
"""Check points that have not come yet and have acknowledgements; of older ones they are dropped."""
EARLY_SIZE_MAX: Final = 8 << 20
"""Bytes of those acknowledgements, about."""


class PopRevive:
    """One revive queue.

    Attributes:
        read_offset: the next message of the queue to be read.
        committed: offset of the last check point that is dealt with; -1: none yet.
    """

    def __init__(self, queue_id: int, committed: int, end: int) -> None:
        self.queue_id = queue_id
        self.committed = committed
        # After a loss of power the queue may end before what was committed.
        self.read_offset = min(committed + 1, end)
        self._check_points: OrderedDict[CheckPointKey, PopCheckPoint] = OrderedDict()
        self._early: OrderedDict[CheckPointKey, list[PopAck]] = OrderedDict()
        self._early_size = 0

    def __len__(self) -> int:
        return len(self._check_points)

    def receive(self, offset: int, tag: str | None, body: bytes) -> None:
        """The next message of the queue."""
        self.read_offset = offset + 1
        try:
            if tag == CK_TAG:
                self._add(decode_check_point(body), offset)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                self._ack(decode_ack(body, tag))
        except CheckPointError as error:
            _LOG.error(
                "revive queue %d has a damaged record at offset %d: %s",
                self.queue_id,
                offset,
                error,
            )

    def _add(self, check_point: PopCheckPoint, offset: int) -> None:
        check_point.revive_offset = offset
        old = self._check_points.get(check_point.key)
        if old is not None:
            # Delivered twice, after a crash: one entry, at the later place.
            check_point.bit_map |= old.bit_map
            del self._check_points[check_point.key]
        early = self._early.pop(check_point.key, ())
        self._early_size -= sum(map(_size, early))
        for ack in early:
            for acked in ack.offsets:
                check_point.ack(acked)
        self._check_points[check_point.key] = check_point

    def _ack(self, ack: PopAck) -> None:
        check_point = self._check_points.get(ack.key)
        if check_point is None:
            self._early.setdefault(ack.key, []).append(ack)
            self._early_size += _size(ack)
            while len(self._early) > EARLY_ACKS_MAX or self._early_size > EARLY_SIZE_MAX:
                _, dropped = self._early.popitem(last=False)
                self._early_size -= sum(map(_size, dropped))
            return
        for offset in ack.offsets:
            check_point.ack(offset)

    def next_due(self, complete_until_ms: int, far_ms: int = LONG_END) -> PopCheckPoint | None:
        """The next check point, if everything up to its time is known or it came too early.

        Args:
            complete_until_ms: up to when everything is known.
            far_ms: one that is due behind this time was not to come yet.
        """
        check_point = next(iter(self._check_points.values()), None)
        if check_point is None or complete_until_ms <= check_point.revive_time <= far_ms:
            return None
        return check_point

    def done(self, check_point: PopCheckPoint) -> None:
        """Its messages are acknowledged or in the retry topic, or it will come again."""
        del self._check_points[check_point.key]
        self.committed = check_point.revive_offset


def _size(ack: PopAck) -> int:
    return 200 + len(ack.topic) + len(ack.group) + len(ack.broker_name) + 40 * len(ack.offsets)
