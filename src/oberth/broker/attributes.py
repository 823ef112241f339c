"""Attributes of topics and groups: what may be said about them beyond their configuration.

A request changes them by ``+name=value,-name``; the configuration holds plain names. At creation
only additions are allowed; some attributes cannot be changed afterwards. RocketMQ: AttributeUtil,
TopicAttributes, SubscriptionGroupAttributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from oberth.formats.java_numbers import java_long

QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"
MESSAGE_TYPE: Final = "message.type"
RESERVE_TIME: Final = "reserve.time"
LITE_EXPIRATION: Final = "lite.topic.expiration"
"""Of a parent of lite topics: minutes without a message after which one is deleted; -1: never."""
PRIORITY_FACTOR: Final = "priority.factor"
"""Of a group: per cent of its pops that take the highest priority first; 100 unless set."""
LITE_BIND_TOPIC: Final = "lite.bind.topic"
"""Of a group: the parent whose lite topics it takes, and nothing else."""
LITE_SUB_MODEL: Final = "lite.sub.model"
"""Of a group: with Exclusive each lite topic belongs to the client that asked for it last."""
LITE_RESET_EXCLUSIVE: Final = "lite.sub.reset.offset.exclusive"
"""Of a group: whether a lite topic that changes hands begins anew."""
LITE_RESET_UNSUBSCRIBE: Final = "lite.sub.reset.offset.unsubscribe"
"""Of a group: whether a lite topic that a client gives up begins anew."""
LITE_CLIENT_QUOTA: Final = "lite.sub.client.quota"
"""Of a group: lite topics that one client may take; kept for the proxy, which counts."""
LITE_EVENTS_MAX: Final = "lite.sub.client.max.event.cnt"
"""Of a group: lite topics with something to take that are noted for one client."""
LITE_WILDCARD: Final = "lite.sub.wildcard"
"""Of a group: whether its clients take every lite topic of the parent; any value will do."""

LITE: Final = "LITE"
"""The ``message.type`` of a parent of lite topics."""

EXCLUSIVE: Final = "Exclusive"

ATTRIBUTES_COUNT_MAX: Final = 64
"""Attributes of one topic or group."""

_LONG_MAX: Final = 2**63 - 1
_BOOLEAN: Final = ("true", "false")
_MINUTES_OF_30_DAYS: Final = 30 * 24 * 60


class AttributeChangeError(ValueError):
    """A change of attributes that is not allowed; answered with code 1."""


class Attribute(NamedTuple):
    """What an attribute may be.

    Attributes:
        name: as configurations hold it.
        changeable: whether it may be changed after creation.
        values: the allowed texts; empty: an integer within low and high.
        any_text: whether every text is allowed.
        low: the smallest integer.
        high: the largest integer.
    """

    name: str
    changeable: bool
    values: tuple[str, ...] = ()
    low: int = 0
    high: int = _LONG_MAX
    any_text: bool = False

    def check(self, value: str) -> None:
        """Compare a value.

        Raises:
            AttributeChangeError: it is not allowed.
        """
        if self.any_text:
            return
        if self.values:
            if (value.lower() if self.values == _BOOLEAN else value) not in self.values:
                raise AttributeChangeError(f"value is not in set: [{', '.join(self.values)}]")
            return
        number = java_long(value, None)
        if number is None:
            raise AttributeChangeError(f"{self.name}={value!r} is not an integer")
        if not self.low <= number <= self.high:
            raise AttributeChangeError(f"value is not in range({self.low}, {self.high})")


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    each.name: each
    for each in (
        Attribute(QUEUE_TYPE, False, ("BatchCQ", "SimpleCQ")),
        Attribute(CLEANUP_POLICY, False, ("DELETE", "COMPACTION")),
        Attribute(
            MESSAGE_TYPE,
            True,
            # In the order in which Java's hash set tells them.
            (
                *("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY"),
                *("FIFO", "DELAY", LITE, "NORMAL"),
            ),
        ),
        Attribute(RESERVE_TIME, True, low=-1),
        Attribute(LITE_EXPIRATION, True, low=-1, high=_MINUTES_OF_30_DAYS),
    )
}

GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    each.name: each
    for each in (
        Attribute(PRIORITY_FACTOR, True, low=0, high=100),
        Attribute(LITE_BIND_TOPIC, True, any_text=True),
        Attribute(LITE_SUB_MODEL, True, ("Shared", EXCLUSIVE)),
        Attribute(LITE_RESET_EXCLUSIVE, True, _BOOLEAN),
        Attribute(LITE_RESET_UNSUBSCRIBE, True, _BOOLEAN),
        Attribute(LITE_CLIENT_QUOTA, True, low=-1),
        Attribute(LITE_EVENTS_MAX, True, low=10),
        Attribute(LITE_WILDCARD, True, any_text=True),
    )
}


def parse_attributes(text: str | None) -> dict[str, str]:
    """``+name=value,-name`` as a map from the signed name to its value; "" for a removal.

    Raises:
        AttributeChangeError: a part without a sign or with an empty name, or one named twice.
    """
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        part = part.strip()
        if not part:
            continue
        name, found, value = part.partition("=")
        name = name.strip()
        if name.startswith("+") and not found:
            raise AttributeChangeError(f"attribute {part[:100]!r}: an addition needs =value")
        if len(name) < 2 or name[0] not in "+-":
            raise AttributeChangeError(
                f"attribute {part[:100]!r}: allowed are +name=value and -name"
            )
        if name in changes:
            raise AttributeChangeError(f"alter duplication key. key: {name[1:]}")
        changes[name] = value.strip()
    return changes


def alter_attributes(
    known: Mapping[str, Attribute],
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    create: bool,
) -> dict[str, str]:
    """The attributes after a change.

    Args:
        known: the attributes there are.
        current: those that are set.
        changes: signed names with values, see parse_attributes.
        create: whether topic or group is new.

    Raises:
        AttributeChangeError: a change that is not allowed.
    """
    result = dict(current)
    named: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in ("+", "-") or not name:
            raise AttributeChangeError(f"attribute {signed[:100]!r}: allowed are +name and -name")
        if create and sign != "+":
            raise AttributeChangeError(
                f"only add attribute is supported while creating topic. key: {name}"
            )
        if name in named:
            raise AttributeChangeError(f"alter duplication key. key: {name}")
        named.add(name)
        attribute = known.get(name)
        if attribute is None:
            raise AttributeChangeError(f"unsupported key: {name}")
        if not create and not attribute.changeable:
            raise AttributeChangeError(f"attempt to update an unchangeable attribute. key: {name}")
        if sign == "+":
            attribute.check(value)
            result[name] = value
        elif result.pop(name, None) is None:
            raise AttributeChangeError(f"attempt to delete a nonexistent key: {name}")
    if len(result) > ATTRIBUTES_COUNT_MAX:
        raise AttributeChangeError(
            f"{len(result)} attributes, at most {ATTRIBUTES_COUNT_MAX} are allowed"
        )
    return result
