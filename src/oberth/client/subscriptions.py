"""Subscriptions: what an expression means, as data. RocketMQ: FilterAPI, MessageSelector."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final, NamedTuple

from oberth.errors import MQClientError
from oberth.formats.java_string import java_hash
from oberth.remoting.bodies.clients import ALL_TAGS, SQL92, TAG, SubscriptionData

TAG_SEPARATOR: Final = "||"


class MessageSelector(NamedTuple):
    """Which messages of a topic are wanted.

    Attributes:
        expression: tags joined by ``||``, ``*``, or SQL.
        expression_type: TAG or SQL92.
    """

    expression: str
    expression_type: str = TAG

    @staticmethod
    def by_tag(tag: str) -> MessageSelector:
        """Messages with one of the tags in ``A || B``; ``*``: all."""
        return MessageSelector(tag, TAG)

    @staticmethod
    def by_sql(sql: str) -> MessageSelector:
        """Messages whose properties make an SQL92 condition true; the broker must allow it."""
        return MessageSelector(sql, SQL92)


def check_subscriptions(subscriptions: object) -> None:
    """Compare what a consumer was given with what it takes.

    Raises:
        MQClientError: it is no mapping of topics to expressions; the message shows one.
    """
    if subscriptions is None:
        return
    if not isinstance(subscriptions, Mapping):
        raise MQClientError(
            f"subscriptions is {type(subscriptions).__name__}; it must be a dict: topics and the "
            'tags that are wanted of them, such as {"OrderTopic": "*"}'
        )
    for topic, expression in subscriptions.items():
        if not isinstance(topic, str) or not isinstance(expression, str | MessageSelector):
            raise MQClientError(
                f"subscription {topic!r}: {expression!r}; it must be a topic, and its tags as text "
                '("*", "paid || sent") or a MessageSelector'
            )


def check_listener(listener: object, name: str, takes: tuple[str, ...]) -> None:
    """Compare a listener with what is called.

    Args:
        listener: what the program gave; None: nothing.
        name: of the argument.
        takes: what it is called with.

    Raises:
        MQClientError: it cannot be called, or not with that.
    """
    if listener is None:
        return
    if not callable(listener):
        raise MQClientError(
            f"{name} is {type(listener).__name__}; it must be a function, plain or async"
        )
    try:
        signature = inspect.signature(listener)
    except (TypeError, ValueError):
        return  # of a function in C that does not tell
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise MQClientError(
            f"{name} is called with {' and '.join(takes)} and takes {signature}: {error}"
        ) from None


def build_subscription_data(
    topic: str, expression: str | MessageSelector, version: int
) -> SubscriptionData:
    """The subscription as heartbeats carry it.

    Args:
        topic: of the messages.
        expression: text stands for tags.
        version: grows with every change; brokers keep the highest. Clients take the time in ms.

    Raises:
        MQClientError: tags without a single one among them, or empty SQL.
    """
    selector = (
        expression if isinstance(expression, MessageSelector) else MessageSelector(expression)
    )
    text = selector.expression.strip()
    data = SubscriptionData(
        topic=topic,
        sub_string=text,
        expression_type=selector.expression_type,
        sub_version=version,
    )
    if selector.expression_type != TAG:
        if not text:
            raise MQClientError(f"subscription to {topic}: the SQL expression is empty")
        return data
    if not text or text == ALL_TAGS:
        data.sub_string = ALL_TAGS
        return data
    tags = [tag.strip() for tag in text.split(TAG_SEPARATOR)]
    tags = list(dict.fromkeys(tag for tag in tags if tag))
    if not tags:
        raise MQClientError(f"subscription to {topic}: no tag in {text!r}")
    data.tags_set = tags
    data.code_set = [java_hash(tag) for tag in tags]
    return data
