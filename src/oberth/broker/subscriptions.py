"""Subscription: which messages of a topic a group wants, as heartbeats and pulls say it.

What is always true: ``codes`` belong to ``tags``, whatever the client sent (Go clients send them as
text, C++ clients leave them out); an expression without tags, ``*`` or empty, wants everything.
RocketMQ: SubscriptionData, FilterAPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oberth.formats.java_string import java_hash

TAG: Final = "TAG"
SQL92: Final = "SQL92"
SUBSCRIBE_ALL: Final = "*"

TAGS_COUNT_MAX: Final = 10_000
"""Tags in one expression."""
TAGS_SIZE_MAX: Final = 128 * 1024
"""Characters of one expression."""


class SubscriptionError(ValueError):
    """An expression that cannot be parsed; answered with code 23."""


class Subscription:
    """One topic of one group.

    Attributes:
        topic: of the messages.
        sub_string: the expression as the client wrote it.
        expression_type: TAG or SQL92.
        sub_version: the client's clock when it subscribed; a higher one replaces a lower.
        tags: of a TAG expression, in its order.
        codes: Java hashes of the tags; empty: everything is wanted.
        class_filter_mode: an obsolete flag, kept for who asks.
        last_update_ms: when a heartbeat last named it.
    """

    __slots__ = (
        "class_filter_mode",
        "codes",
        "expression_type",
        "last_update_ms",
        "sub_string",
        "sub_version",
        "tags",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        sub_string: str = SUBSCRIBE_ALL,
        expression_type: str = TAG,
        sub_version: int = 0,
        *,
        class_filter_mode: bool = False,
    ) -> None:
        self.topic = topic
        self.sub_string = sub_string
        self.expression_type = expression_type
        self.sub_version = sub_version
        self.class_filter_mode = class_filter_mode
        self.last_update_ms = 0
        self.tags: tuple[str, ...] = ()
        if expression_type == TAG and sub_string not in (SUBSCRIBE_ALL, ""):
            self.tags = parse_tags(sub_string)
        self.codes = frozenset(java_hash(tag) for tag in self.tags)

    @property
    def is_tag(self) -> bool:
        """Whether the expression lists tags."""
        return self.expression_type == TAG

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscription) and (
            (self.topic, self.sub_string, self.expression_type, self.sub_version)
            == (other.topic, other.sub_string, other.expression_type, other.sub_version)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}, {self.sub_string!r}, {self.expression_type})"

    def to_body(self) -> dict[str, Any]:
        """The subscription as bodies show it. RocketMQ: the bean SubscriptionData."""
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


def parse_tags(expression: str) -> tuple[str, ...]:
    """The tags of ``A || B``, each once.

    Raises:
        SubscriptionError: no tag at all between the bars, or more than TAGS_COUNT_MAX.
    """
    if len(expression) > TAGS_SIZE_MAX:
        raise SubscriptionError(
            f"subscription of {len(expression)} characters, at most {TAGS_SIZE_MAX} are allowed"
        )
    tags = dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise SubscriptionError(f"subscription {expression[:100]!r} names no tag")
    if len(tags) > TAGS_COUNT_MAX:
        raise SubscriptionError(
            f"subscription with {len(tags)} tags, at most {TAGS_COUNT_MAX} are allowed"
        )
    return tuple(tags)


def build_subscription(
    topic: str, expression: str | None, expression_type: str | None = None, sub_version: int = 0
) -> Subscription:
    """What a pull says about itself. RocketMQ: FilterAPI.build.

    Raises:
        SubscriptionError: an expression without a tag, or an empty one of another type.
    """
    kind = expression_type or TAG
    if kind == TAG:
        return Subscription(topic, expression or SUBSCRIBE_ALL, TAG, sub_version)
    if not expression:
        raise SubscriptionError(f"Expression can't be null! {kind}")
    return Subscription(topic, expression, kind, sub_version)


def read_subscription(body: Mapping[str, Any]) -> Subscription:
    """One entry of a heartbeat, as clients of any language write it.

    Raises:
        SubscriptionError: no topic, or an expression that does not parse.
    """
    topic = body.get("topic")
    if not isinstance(topic, str) or not topic:
        raise SubscriptionError(f"a subscription without a topic: {str(dict(body))[:200]}")
    expression = body.get("subString")
    kind = body.get("expressionType")
    return Subscription(
        topic,
        expression if isinstance(expression, str) else SUBSCRIBE_ALL,
        kind if isinstance(kind, str) and kind else TAG,
        _integer(body.get("subVersion")),
        class_filter_mode=body.get("classFilterMode") in (True, "true"),
    )


def _integer(value: object) -> int:
    if isinstance(value, int | float | str):
        try:
            return int(value)
        except (ValueError, OverflowError):
            return 0
    return 0
