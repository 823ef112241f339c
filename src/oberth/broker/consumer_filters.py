"""ConsumerFilters: SQL92 expressions of groups, compiled; consumerFilter.json; bitmaps.

An expression comes with a heartbeat and is kept with its group and topic, or it comes with a pull
and is used once. Compiled expressions are shared by their text. With enableCalcFilterBitMap every
message of a topic gets a bitmap before it is dispatched: the Bloom positions of each group whose
expression matches it. What is always true: a bitmap only ever leaves out messages that the
expression would leave out too; whoever passes it is still judged by the expression itself.

A filter is dead while nobody of its group subscribes with it; it gets no bits then, and is reborn
at the time it is used again, so that what was stored meanwhile is judged by the expression alone.
RocketMQ: ConsumerFilterManager, ExpressionMessageFilter, CommitLogDispatcherCalcBitMap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.config_file import ConfigFile
from oberth.broker.expressions import FilterUnknownError
from oberth.broker.subscriptions import SQL92, Subscription, SubscriptionError
from oberth.errors import FormatError, RecordError
from oberth.formats.bloom import is_hit, make_bloom_filter
from oberth.formats.config_files import (
    BloomFilterData,
    ConsumerFilterData,
    TopicFilters,
)
from oberth.formats.config_files import ConsumerFilters as FiltersFile
from oberth.formats.consume_queue_ext import ConsumeQueueExtUnit
from oberth.formats.message import DispatchRequest, properties_at
from oberth.formats.properties import RETRY_TOPIC, decode_properties
from oberth.formats.sql92 import Sql92EvaluationError, Sql92Expression, compile_sql92
from oberth.remoting.code import ResponseCode

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker

_LOG: Final = logging.getLogger("oberth.broker")

_SEARCHED_SIZE_MAX: Final = 1024
"""Searching a longer record for what an expression needs costs more than judging it."""
EXPRESSION_CACHE_SIZE: Final = 4096
PERSIST_INTERVAL_MS: Final = 10_000
DEAD_BEFORE_LOAD_MS: Final = 30_000
"""Filters that were alive when the broker stopped are taken to have died so long ago."""


@lru_cache(maxsize=EXPRESSION_CACHE_SIZE)
def compiled(text: str) -> Sql92Expression:
    """The expression of a text; compiled once.

    Raises:
        FormatError: it is illegal.
    """
    return compile_sql92(text)


def compile_subscription(subscription: Subscription) -> Sql92Expression:
    """The expression of a subscription that is not by tags.

    Raises:
        SubscriptionError: illegal, or of a type that nobody knows.
    """
    if subscription.expression_type != SQL92:
        raise SubscriptionError(f"expression type {subscription.expression_type!r} is not known")
    try:
        return compiled(subscription.sub_string)
    except FormatError as error:
        raise SubscriptionError(str(error)) from None


class SqlFilter:
    """Messages that an expression selects. A ``store.messages.MessageFilter``.

    Args:
        expression: judges.
        positions: of the group in bitmaps, or None to look at no bitmap.
        bit_count: of the bitmaps that ``positions`` belong to.
        born_ms: bitmaps of messages stored up to here say nothing about this expression.
    """

    __slots__ = (
        "_bit_count",
        "_born_ms",
        "_evaluate",
        "_positions",
        "_required",
        "matches_properties",
    )
    judges_tags = False

    def __init__(
        self,
        expression: Sql92Expression,
        positions: tuple[int, ...] | None = None,
        bit_count: int = 0,
        born_ms: int = 0,
    ) -> None:
        self._evaluate = expression.evaluate_raw  # a call less than `matches_raw` for each record
        self._required = tuple(pattern.search for pattern in expression.required)
        self.matches_properties = expression.matches_raw
        """The expression's judgement of what has just arrived."""
        self._positions = positions
        self._bit_count = bit_count
        self._born_ms = born_ms

    def matches_consume_queue(self, tags_code: int, ext_unit: object | None, /) -> bool:
        """False where a bitmap says that the expression does not match."""
        del tags_code
        if self._positions is None or not isinstance(ext_unit, ConsumeQueueExtUnit):
            return True
        if (
            ext_unit.store_timestamp <= self._born_ms
            or len(ext_unit.bit_map) * 8 != self._bit_count
        ):
            return True
        return is_hit(ext_unit.bit_map, self._positions)

    def matches_record(self, buffer: memoryview, position: int, size: int) -> bool:
        """The expression's judgement of a stored record."""
        if size <= _SEARCHED_SIZE_MAX:
            end = position + size
            for search in self._required:
                if search(buffer, position, end) is None:
                    return False
        try:
            return self._evaluate(properties_at(buffer, position)) is True
        except (RecordError, Sql92EvaluationError):
            return False


class RetryFilter:
    """Retries of a group that its expression for their real topic selects, and all others.

    Args:
        filters: where expressions are kept.
        group: whose retry topic it is.
        codes: tags codes that the subscription of the retry topic names; empty for all.

    RocketMQ: ExpressionForRetryMessageFilter.
    """

    __slots__ = ("_codes", "_filters", "_group")
    judges_tags = True

    def __init__(self, filters: ConsumerFilters, group: str, codes: frozenset[int]) -> None:
        self._filters = filters
        self._group = group
        self._codes = codes

    def matches_consume_queue(self, tags_code: int, ext_unit: object | None, /) -> bool:
        """The tags' judgement."""
        del ext_unit
        return not self._codes or tags_code in self._codes

    def matches_record(self, buffer: memoryview, position: int, size: int) -> bool:
        """The judgement of the expression that the group has for the record's real topic."""
        del size
        try:
            return self.matches_properties(properties_at(buffer, position))
        except RecordError:
            return False

    def matches_properties(self, properties_raw: bytes, /) -> bool:
        """As for a record."""
        properties = decode_properties(properties_raw)
        data = self._filters.get(properties.get(RETRY_TOPIC, ""), self._group)
        if data is None or not data.expression:
            return True
        return compiled(data.expression).matches(properties)


class ConsumerFilters:
    """The expressions of a broker's groups. One of its parts, and its ``expressions``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        config = broker.config
        self._bloom = make_bloom_filter(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._file = ConfigFile(Path(broker.config_dir) / "consumerFilter.json")
        self._topics: dict[str, dict[str, ConsumerFilterData]] = {}
        self._groups: dict[str, set[str]] = {}  # group → topics that it has filters for
        self._changed = False
        self._next_persist_ms = 0
        broker.parts.append(self)
        broker.ticks.append(self.on_time)

    # Files

    def load(self) -> None:
        """See Part."""
        self._file.load(self._read)
        if self._broker.config.enable_calc_filter_bit_map:
            self._broker.store.dispatcher.add_before(self.calculate_bit_map)

    def close(self) -> None:
        """See Part."""
        self._file.write(self.encode(self._broker.now_ms()), sync=True)

    def _read(self, document: Any) -> None:
        file = FiltersFile.from_json(document, "consumerFilter.json")
        now_ms = self._broker.now_ms()
        topics: dict[str, dict[str, ConsumerFilterData]] = {}
        for topic, filters in file.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                bloom = data.bloom_filter_data
                if (
                    bloom is None
                    or bloom.bit_num != self._bloom.bit_count
                    or bloom.bit_pos != self._bloom.positions(group, topic)
                ):
                    _LOG.warning("consumerFilter.json: other bitmaps than configured; forgotten")
                    return
                try:
                    compiled(data.expression or "")
                except FormatError as error:
                    _LOG.warning("consumerFilter.json: %s@%s: %s", topic, group, error)
                    continue
                if not data.is_dead:
                    data.dead_time = max(now_ms - DEAD_BEFORE_LOAD_MS, data.born_time)
                topics.setdefault(topic, {})[group] = data
        self._topics = topics
        self._groups = {}
        for topic, groups in topics.items():
            for group in groups:
                self._groups.setdefault(group, set()).add(topic)

    def encode(self, now_ms: int) -> bytes:
        """The file's bytes; what has been dead for long is dropped."""
        oldest = now_ms - self._broker.config.filter_data_clean_time_span_ms
        for topic, filters in list(self._topics.items()):
            for group, data in list(filters.items()):
                if data.is_dead and data.dead_time < oldest:
                    del filters[group]
                    self._groups[group].discard(topic)
            if not filters:
                del self._topics[topic]
        return FiltersFile(
            filter_data_by_topic={
                topic: TopicFilters(group_filter_data=dict(filters), topic=topic)
                for topic, filters in self._topics.items()
            }
        ).encode()

    def on_time(self, now_ms: int) -> None:
        """Filters whose groups are gone die; now and then the file is written."""
        if now_ms < self._next_persist_ms:
            return
        self._next_persist_ms = now_ms + PERSIST_INTERVAL_MS
        for topic, filters in self._topics.items():
            for group, data in filters.items():
                if not data.is_dead:
                    online = self._broker.consumers.get(group)
                    if online is None or topic not in online.subscriptions:
                        self._die(data, now_ms)
        if self._changed:
            self._changed = False
            self._file.write(self.encode(now_ms))

    def _die(self, data: ConsumerFilterData, now_ms: int) -> None:
        data.dead_time = max(now_ms, data.born_time)
        self._changed = True

    # Expressions

    def check(self, subscription: Subscription, /) -> None:
        """See Expressions."""
        compile_subscription(subscription)

    def register(self, group: str, subscriptions: Iterable[Subscription], /) -> None:
        """See Expressions. Illegal expressions are left out; the group's pulls then get 27."""
        named = [each for each in subscriptions if not each.is_tag]
        if not named and group not in self._groups:
            return
        now_ms = self._broker.now_ms()
        for subscription in named:
            try:
                compile_subscription(subscription)
            except SubscriptionError as error:
                _LOG.warning("group %s, topic %s: %s", group, subscription.topic, error)
                continue
            self._register_one(group, subscription, now_ms)
        topics = {each.topic for each in named}
        for topic in self._groups.get(group, ()):
            data = self._topics.get(topic, {}).get(group)
            if topic not in topics and data is not None and not data.is_dead:
                self._die(data, now_ms)

    def _register_one(self, group: str, subscription: Subscription, now_ms: int) -> None:
        topic = subscription.topic
        filters = self._topics.setdefault(topic, {})
        old = filters.get(group)
        if old is not None and old.expression == subscription.sub_string:
            if old.is_dead:
                old.born_time, old.dead_time = now_ms, 0
                self._changed = True
            if subscription.sub_version > old.client_version:
                old.client_version = subscription.sub_version
                self._changed = True
            return
        if old is not None and subscription.sub_version <= old.client_version:
            return
        filters[group] = ConsumerFilterData(
            bloom_filter_data=BloomFilterData(
                bit_num=self._bloom.bit_count, bit_pos=self._bloom.positions(group, topic)
            ),
            born_time=now_ms,
            client_version=subscription.sub_version,
            consumer_group=group,
            dead_time=0,
            expression=subscription.sub_string,
            expression_type=subscription.expression_type,
            topic=topic,
        )
        self._groups.setdefault(group, set()).add(topic)
        self._changed = True

    def filters(
        self, group: str, subscription: Subscription, /, *, from_request: bool
    ) -> tuple[SqlFilter, SqlFilter]:
        """See Expressions."""
        expression = compile_subscription(subscription)
        if from_request:
            both = SqlFilter(expression)
            return both, both
        data = self._topics.get(subscription.topic, {}).get(group)
        if data is None:
            raise FilterUnknownError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if data.client_version < subscription.sub_version:
            raise FilterUnknownError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "The broker's consumer filter data is not latest!",
            )
        positions = None
        if data.bloom_filter_data is not None and not data.is_dead:
            positions = data.bloom_filter_data.bit_pos
        both = SqlFilter(
            compiled(data.expression or ""), positions, self._bloom.bit_count, data.born_time
        )
        return both, both

    def retry_filters(
        self, subscription: Subscription, group: str, /
    ) -> tuple[RetryFilter, RetryFilter]:
        """See Expressions."""
        both = RetryFilter(self, group, frozenset(subscription.codes))
        return both, both

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        """The filter of a group for a topic, dead or alive."""
        return self._topics.get(topic, {}).get(group)

    def calculate_bit_map(self, request: DispatchRequest) -> None:
        """A dispatcher: notes in a message's bitmap which groups' expressions match it."""
        filters = self._topics.get(request.topic)
        if not filters:
            return
        properties = decode_properties(request.properties_raw)
        request.bit_map = self._bloom.bitmap(
            data.bloom_filter_data.bit_pos or ()
            for data in filters.values()
            if not data.is_dead
            and data.bloom_filter_data is not None
            and compiled(data.expression or "").matches(properties)
        )
