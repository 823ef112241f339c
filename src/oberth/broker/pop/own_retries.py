"""OwnRetries: of a POP retry topic what waits there for the group that pops.

%RETRY%G_T holds the retries of topic T for group G, and is the retry topic of a group G_T; it also
holds those of T_U for G and of U for G_T, if these share the name %RETRY%G_T_U. The broker writes
into each record that it brings back for which group it does. With ``enableRetryTopicV2`` the name
stands for one topic and one group.
"""

from __future__ import annotations

from typing import Final

from oberth.errors import RecordError
from oberth.formats import properties as p
from oberth.formats.message import properties_at
from oberth.formats.names import pop_retry_topic

JUDGED_MAX: Final = 1000
"""Records that one read looks at; the next pop goes on behind them."""

_ORIGIN_GROUP: Final = p.ORIGIN_GROUP.encode()
_RETRY_TOPIC: Final = p.RETRY_TOPIC.encode()


def is_shared(topic: str, group: str) -> bool:
    """Whether a topic is one where a group's retries are not alone: named in the older way."""
    return topic.startswith(pop_retry_topic("", group))


def is_own_retry(properties_raw: bytes, group: str) -> bool:
    """Whether a record of a shared topic waits there for the group.

    A record whose properties were too long for the group's name has none; what a group sends back
    after a pull names the topic that it came from.
    """
    origin = p.find_property(properties_raw, _ORIGIN_GROUP)
    if origin is not None:
        return origin == group.encode()
    return p.find_property(properties_raw, _RETRY_TOPIC) is None


class OwnRetries:
    """Lets through what waits in a shared topic for one group. A MessageFilter."""

    __slots__ = ("_group",)
    judges_tags = False
    judged_max = JUDGED_MAX
    judged_bytes = 0

    def __init__(self, group: str) -> None:
        self._group = group

    def matches_consume_queue(self, tags_code: int, ext_unit: object | None) -> bool:
        """The record decides."""
        del tags_code, ext_unit
        return True

    def matches_record(self, buffer: memoryview, position: int, size: int) -> bool:
        """See `is_own_retry`."""
        del size
        try:
            return is_own_retry(properties_at(buffer, position), self._group)
        except RecordError:
            return False


def retry_filter(topic: str, group: str) -> OwnRetries | None:
    """What a group may read of one of its retry topics; None: all of it."""
    return OwnRetries(group) if is_shared(topic, group) else None
