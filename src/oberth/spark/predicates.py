"""What a query's filters say about where to look, as sets and ranges.

A predicate is weaker than the filters it was made from: whatever satisfies them satisfies it, and
what it lets pass is filtered again by Spark. So it only ever has to be sound, and a filter that is
not understood is left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from oberth.formats.java_string import tags_hash
from oberth.spark.schemas import Field

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from low to high, both included; None is no bound."""

    low: int | None = None
    high: int | None = None

    def and_low(self, low: int) -> Interval:
        """The part that is not below a number."""
        return self if self.low is not None and self.low >= low else replace(self, low=low)

    def and_high(self, high: int) -> Interval:
        """The part that is not above a number."""
        return self if self.high is not None and self.high <= high else replace(self, high=high)

    def holds(self, number: int) -> bool:
        """Whether a number is in the interval."""
        return not (
            (self.low is not None and number < self.low)
            or (self.high is not None and number > self.high)
        )

    @property
    def is_everything(self) -> bool:
        """Whether there is no bound."""
        return self.low is None and self.high is None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        return self.low is not None and self.high is not None and self.low > self.high

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) that is in the interval."""
        low = start if self.low is None else max(start, self.low)
        high = end if self.high is None else min(end, self.high + 1)
        return low, max(low, high)


@dataclass(frozen=True, slots=True)
class Predicate:
    """Where rows of interest can be; None and full intervals say nothing.

    Attributes:
        topics, brokers: names.
        partitions: queue ids.
        offsets: queue offsets.
        times: store times, ms.
        log: CommitLog offsets.
        keys: values of KEYS as a whole.
        unique_keys: values of UNIQ_KEY.
        message_ids: values of msgId: a UNIQ_KEY, or an offset id.
        offset_ids: values of offsetMsgId.
        tags: values of TAGS.
    """

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    partitions: Interval = Interval()
    offsets: Interval = Interval()
    times: Interval = Interval()
    log: Interval = Interval()
    keys: frozenset[str] | None = None
    unique_keys: frozenset[str] | None = None
    message_ids: frozenset[str] | None = None
    offset_ids: frozenset[str] | None = None
    tags: frozenset[str] | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is ruled out."""
        return self == EVERYTHING

    @property
    def is_empty(self) -> bool:
        """Whether nothing can satisfy it."""
        return (
            any(i.is_empty for i in (self.partitions, self.offsets, self.times, self.log))
            or self.topics == frozenset()
            or self.brokers == frozenset()
        )

    @property
    def wants_index(self) -> bool:
        """Whether the store's Index can answer it."""
        return self.keys is not None or self.unique_keys is not None or self.message_ids is not None

    def tag_codes(self) -> frozenset[int] | None:
        """The tags codes that messages of interest have, or None for any."""
        if self.tags is None:
            return None
        return frozenset(tags_hash(tag.encode("utf-8", "replace")) for tag in self.tags)


EVERYTHING: Final = Predicate()

_SETS: Final[Mapping[str, str]] = {
    "topic": "topics",
    "broker": "brokers",
    "key": "keys",
    "uniqueKey": "unique_keys",
    "msgId": "message_ids",
    "offsetMsgId": "offset_ids",
    "tags": "tags",
}
_INTERVALS: Final[Mapping[str, str]] = {
    "partition": "partitions",
    "offset": "offsets",
    "timestamp": "times",
    "physicalOffset": "log",
}


def predicate_of(filters: Iterable[Any], fields: Iterable[Field]) -> Predicate:
    """The predicate of Spark's pushed filters, all of which have to hold.

    Args:
        filters: objects of pyspark.sql.datasource (EqualTo, In, GreaterThan, …); others are
            ignored.
        fields: the columns that the filters speak of.
    """
    by_name = {field.name.lower(): field for field in fields}
    made = EVERYTHING
    for one in filters:
        name = type(one).__name__
        path: Any = getattr(one, "attribute", ())
        value: Any = getattr(one, "value", None)
        if len(path) != 1 or value is None or path[0].lower() not in by_name:
            continue
        field = by_name[path[0].lower()]
        if name in ("EqualTo", "EqualNullSafe"):
            made = _and_values(made, field, (value,))
        elif name == "In":
            made = _and_values(made, field, tuple(v for v in value if v is not None))
        elif name in ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"):
            made = _and_bound(made, field, value, name)
    return made


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return None
    return None


def _and_values(made: Predicate, field: Field, values: tuple[Any, ...]) -> Predicate:
    attribute = _SETS.get(field.column)
    if attribute is not None:
        texts = [_text(value) for value in values]
        # U+FFFD may stand for any bytes that are no text.
        if any(text is None or "\ufffd" in text for text in texts):
            return made
        new = frozenset(text for text in texts if text is not None)
        old = getattr(made, attribute)
        changes: dict[str, Any] = {attribute: new if old is None else old & new}
        return replace(made, **changes)
    if field.column in _INTERVALS and values:
        made = _and_bound(made, field, min(values), "GreaterThanOrEqual")
        return _and_bound(made, field, max(values), "LessThanOrEqual")
    return made


def _and_bound(made: Predicate, field: Field, value: Any, name: str) -> Predicate:
    attribute = _INTERVALS.get(field.column)
    if attribute is None:
        return made
    low, high = _whole_number(value)
    if low is None or high is None:
        return made
    interval: Interval = getattr(made, attribute)
    if name == "GreaterThan" and low == high:
        interval = interval.and_low(as_long(low + 1))
    elif name in ("GreaterThan", "GreaterThanOrEqual"):
        interval = interval.and_low(low)
    elif name == "LessThan" and low == high and not isinstance(value, datetime):
        interval = interval.and_high(as_long(high - 1))
    else:
        interval = interval.and_high(high)
    changes: dict[str, Any] = {attribute: interval}
    return replace(made, **changes)


def as_long(number: int) -> int:
    """The nearest number that a column of longs can hold: a bound of it is as weak or weaker."""
    return min(max(number, _LONG_MIN), _LONG_MAX)


def _whole_number(value: Any) -> tuple[int | None, int | None]:
    """The whole numbers (for times, milliseconds) just not above and just not below a value."""
    if isinstance(value, bool):
        return None, None
    if isinstance(value, int):
        return value, value
    if isinstance(value, datetime):
        # Without a zone it is a timestamp_ntz, whose column says UTC.
        since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        # A bound itself may be compared with < or >, so times keep a millisecond on either side.
        return micros // 1000 - 1, -(-micros // 1000) + 1
    return None, None
