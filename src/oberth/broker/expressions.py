"""Expressions: the seam at which filters other than by tag (SQL92) are plugged into the broker.

``Broker.expressions`` is None until somebody sets it; then subscriptions that are not by tag are
refused as if ``enablePropertyFilter`` were off.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol

from oberth.broker.pull_request_hold import PropertiesFilter
from oberth.broker.subscriptions import Subscription
from oberth.store.messages import MessageFilter


class Expressions(Protocol):
    """What an engine for expressions offers."""

    def check(self, subscription: Subscription, /) -> None:
        """Raise SubscriptionError if the expression is illegal."""
        ...

    def register(
        self, group: str, subscriptions: Iterable[Subscription], /
    ) -> Generator[None, None, None]:
        """A heartbeat of a group named these. Yields where the loop may turn."""
        ...

    def filters(
        self, group: str, subscription: Subscription, /, *, from_request: bool
    ) -> tuple[MessageFilter, PropertiesFilter]:
        """A filter for stored messages, and one for what arrives while a pull is held.

        ``from_request``: the expression came with the pull, not with a heartbeat.

        Raises:
            SubscriptionError: illegal.
            FilterUnknownError: no heartbeat has brought this expression; answered with its code.
        """
        ...

    def retry_filters(
        self, subscription: Subscription, group: str, /
    ) -> tuple[MessageFilter, PropertiesFilter]:
        """The same for a group's retry topic, whose messages come from topics with expressions."""
        ...


class FilterUnknownError(Exception):
    """There is no compiled filter for a group and topic, or an older one.

    Attributes:
        code: FILTER_DATA_NOT_EXIST (27) or FILTER_DATA_NOT_LATEST (28).
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)
