"""Offers: gives delayed and timed messages to a store until each is taken, and each once.

A burst's messages are independent of each other: behind one that is refused, others are stored. Its
owner can go on only from the refused one, so what lies behind it is remembered here and left out
when the owner comes with it again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from oberth.store.messages import Append, MessageExtBrokerInner, PutMessageStatus

_LOG: Final = logging.getLogger(__name__)

HOPELESS: Final = frozenset(
    {
        PutMessageStatus.MESSAGE_ILLEGAL,
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL,
        PutMessageStatus.WHEEL_TIMER_NOT_ENABLE,
    }
)
"""Statuses that no further try will change. One light queue too many is not among them: there is
room for it once another is deleted, or the limit is raised."""

Key = tuple[int, int]
"""A message: its CommitLog offset and a time of it, which tells it from one that lies there after
the log was cut."""


class Offers:
    """Messages of one owner that are on their way.

    Args:
        what: the owner, for the log.
        waits_in: the topic in which its messages wait, and where they stay.
    """

    def __init__(self, what: str, waits_in: str) -> None:
        self._what = what
        self._waits_in = waits_in
        self._settled: set[Key] = set()
        self._said: Key | None = None

    def is_settled(self, key: Key) -> bool:
        """Whether a message behind one that waits needs nothing more."""
        return key in self._settled

    def offer(
        self, append: Append, offered: Sequence[tuple[Key, MessageExtBrokerInner | None]]
    ) -> int | None:
        """Gives messages to a store; the number of the first that has to wait, or None.

        What can never be stored counts as settled, and is said.

        Args:
            append: takes them.
            offered: in their order; what is settled needs no message.
        """
        fresh = [
            (number, key, message)
            for number, (key, message) in enumerate(offered)
            if message is not None and key not in self._settled
        ]
        results = append([message for *_, message in fresh]) if fresh else []
        waiting = None
        for (number, key, message), result in zip(fresh, results, strict=True):
            if result.ok or result.status in HOPELESS:
                self._settled.add(key)
                if not result.ok:
                    self._say_hopeless(key, message, result.status)
            elif waiting is None:
                waiting = number
                self._say_waiting(key, message, result.status)
        self._settled.difference_update([key for key, _ in offered[:waiting]])
        return waiting

    def _say_hopeless(
        self, key: Key, message: MessageExtBrokerInner, status: PutMessageStatus
    ) -> None:
        _LOG.error(
            "%s: a message for %s can never be delivered and is passed: %s; it can be read at %d "
            "of the CommitLog, in %s",
            self._what,
            message.topic,
            status.name,
            key[0],
            self._waits_in,
        )

    def _say_waiting(
        self, key: Key, message: MessageExtBrokerInner, status: PutMessageStatus
    ) -> None:
        if key != self._said:  # it is offered again with each tick
            self._said = key
            _LOG.error(
                "%s: the message at %d for %s could not be delivered yet: %s",
                self._what,
                key[0],
                message.topic,
                status.name,
            )
