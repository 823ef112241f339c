"""ConsumerFilters: SQL92 expressions of groups, compiled; consumerFilter.json; bitmaps.

An expression comes with a heartbeat and is kept with its group and topic, or it comes with a pull
and is used once. Compiled expressions are shared by their text. With enableCalcFilterBitMap every
message of a topic gets a bitmap before it is dispatched: the Bloom positions of each group whose
expression matches it. What is always true: a bitmap only ever leaves out messages that the
expression would leave out too; a message that passes it is still judged by the expression.

A filter is dead while nobody of its group subscribes with it; it gets no bits then, and is reborn
at the time it is used again, so that what was stored meanwhile is judged by the expression alone.
RocketMQ: ConsumerFilterManager, ExpressionMessageFilter, CommitLogDispatcherCalcBitMap.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.config_file import BackgroundFile, ConfigFile
from oberth.broker.expressions import FilterUnknownError
from oberth.broker.subscriptions import SQL92, Subscription, SubscriptionError
from oberth.errors import FormatError, RecordError
from oberth.formats.bloom import is_hit, make_bloom_filter
from oberth.formats.config_files import BloomFilterData, ConsumerFilterData, TopicFilters
from oberth.formats.config_files import ConsumerFilters as FiltersFile
from oberth.formats.consume_queue_ext import ConsumeQueueExtUnit
from oberth.formats.message import DispatchRequest, properties_at
from oberth.formats.properties import RETRY_TOPIC, decode_properties
from oberth.formats.sql92 import Sql92Expression, compile_sql92
from oberth.formats.sql92_nodes import Sql92EvaluationError
from oberth.remoting.code import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.tasks import StartTask
    from oberth.store.files import FileSystem
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

_LONG_PROPERTIES: Final = 1024
"""Bytes of properties from which on judging takes the longer the longer they are."""
_SEARCHED_SIZE_MAX: Final = 1024
"""Searching a longer record for what an expression needs costs more than judging it."""
EXPRESSION_CACHE_SIZE: Final = 128 * 1024
"""Characters of all expressions that are kept compiled. Each takes up to 400 bytes of memory."""
JUDGED_MAX: Final = 2000
"""Records that one read judges by a short expression: some 10 ms of the loop."""
RETRIES_JUDGED_MAX: Final = 100
"""Retries that one read judges, each by the expression of another topic, maybe a long one."""
_OPERANDS_OF_ONE: Final = 8
"""Names and constants that judging takes about as long for as for finding them in a record."""
PERSIST_INTERVAL_MS: Final = 10_000
FILTERS_SIZE_MAX: Final = 8 * 1024 * 1024
"""Characters of all filters that are kept, each with FILTER_OVERHEAD beside its expression."""
FILTER_OVERHEAD: Final = 1024
DEAD_MAX: Final = 256
"""Dead filters that are kept. A filter that is forgotten is born anew when its group comes back."""
DEAD_BEFORE_LOAD_MS: Final = 30_000
"""Filters that were alive when the broker stopped are taken to have died so long ago."""


class ExpressionCache:
    """Compiled expressions, the least recently used forgotten first.

    Peers choose the texts, before anybody asked who they are if nobody is asked; so what is kept is
    bounded by its size, not by its number.

    Attributes:
        size: characters of what is kept.
    """

    __slots__ = ("_kept", "_lock", "size", "size_max")

    def __init__(self, size_max: int = EXPRESSION_CACHE_SIZE) -> None:
        self.size_max = size_max
        self.size = 0
        self._kept: OrderedDict[str, Sql92Expression] = OrderedDict()
        self._lock = threading.Lock()  # guards all: bitmaps are made in the thread that dispatches

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, text: str) -> Sql92Expression:
        """The expression of a text; compiled if it is not kept.

        Raises:
            FormatError: it is illegal.
        """
        with self._lock:
            found = self._kept.get(text)
            if found is not None:
                self._kept.move_to_end(text)
                return found
            made = self._kept[text] = compile_sql92(text)
            self.size += len(text) + _EXPRESSION_OVERHEAD
            while self.size > self.size_max:
                forgotten, _ = self._kept.popitem(last=False)
                self.size -= len(forgotten) + _EXPRESSION_OVERHEAD
            return made


_EXPRESSION_OVERHEAD: Final = 8
"""What the shortest expression counts beside its characters."""
EXPRESSIONS: Final = ExpressionCache()
compiled: Final = EXPRESSIONS.get


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
        "judged_bytes",
        "judged_max",
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
        self.judged_max = JUDGED_MAX // (1 + expression.operand_count // _OPERANDS_OF_ONE)
        self.judged_bytes = 0
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
            properties = properties_at(buffer, position)
            if len(properties) > _LONG_PROPERTIES:
                self.judged_bytes += len(properties)
            return self._evaluate(properties) is True
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

    __slots__ = ("_codes", "_filters", "_group", "judged_bytes")
    judges_tags = True
    judged_max = RETRIES_JUDGED_MAX

    def __init__(self, filters: ConsumerFilters, group: str, codes: frozenset[int]) -> None:
        self._filters = filters
        self._group = group
        self._codes = codes
        self.judged_bytes = 0

    def matches_consume_queue(self, tags_code: int, ext_unit: object | None, /) -> bool:
        """The tags' judgement."""
        del ext_unit
        return not self._codes or tags_code in self._codes

    def matches_record(self, buffer: memoryview, position: int, size: int) -> bool:
        """The judgement of the expression that the group has for the record's real topic."""
        del size
        try:
            properties = properties_at(buffer, position)
            if len(properties) > _LONG_PROPERTIES:
                self.judged_bytes += len(properties)
            return self.matches_properties(properties)
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
    """The expressions of a broker's groups. A FileKeeper."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        config_dir: Path,
        files: FileSystem,
        store: MessageStore,
        consumers: ConsumerTable,
        now_ms: Callable[[], int],
        start_task: StartTask,
    ) -> None:
        self._config = config
        self._store = store
        self._consumers = consumers
        self._now_ms = now_ms
        self._bloom = make_bloom_filter(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._file = ConfigFile(config_dir / "consumerFilter.json", files)
        self._background = BackgroundFile(self._file, start_task)
        self._size = 0
        self._topics: dict[str, dict[str, ConsumerFilterData]] = {}
        self._groups: dict[str, set[str]] = {}  # group → topics that it has filters for
        self._changed = False
        self._next_persist_ms = 0

    # Files

    def load(self) -> None:
        """See FileKeeper."""
        self._file.load(self._read)
        if self._config.enable_calc_filter_bit_map:
            self._store.dispatcher.add_before(self.calculate_bit_map)

    def close(self) -> None:
        """See FileKeeper."""
        self._file.write(self.encoder(self._now_ms())(), sync=True)

    def _read(self, document: Any) -> None:
        file = FiltersFile.from_json(document, "consumerFilter.json")
        now_ms = self._now_ms()
        topics: dict[str, dict[str, ConsumerFilterData]] = {}
        for topic, filters in file.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                bloom = data.bloom_filter_data
                if (
                    bloom is None
                    or bloom.bit_num != self._bloom.bit_count
                    or bloom.bit_pos != self._bloom.positions(group, topic)
                ):
                    _LOG.warning("consumerFilter.json has bitmaps of other sizes, it is not used")
                    return
                try:
                    compiled(data.expression or "")
                except FormatError as error:
                    _LOG.warning(
                        "consumerFilter.json: topic %s, group %s: the filter does not compile: %s",
                        topic,
                        group,
                        error,
                    )
                    continue
                if not data.is_dead:
                    data.dead_time = max(now_ms - DEAD_BEFORE_LOAD_MS, data.born_time)
                topics.setdefault(topic, {})[group] = data
        self._topics = topics
        self._groups = {}
        self._size = 0
        for topic, groups in topics.items():
            for group, data in groups.items():
                self._groups.setdefault(group, set()).add(topic)
                self._size += _size_of(data.expression)

    def _forget(self, now_ms: int, dead_max: int = DEAD_MAX) -> None:
        """Drops what has been dead for long, and of the rest of the dead the oldest."""
        oldest = now_ms - self._config.filter_data_clean_time_span_ms
        dead = sorted(
            (data.dead_time, topic, group)
            for topic, filters in self._topics.items()
            for group, data in filters.items()
            if data.is_dead
        )
        for number, (dead_time, topic, group) in enumerate(dead):
            if dead_time >= oldest and len(dead) - number <= dead_max:
                break
            self._size -= _size_of(self._topics[topic].pop(group).expression)
            if not self._topics[topic]:
                del self._topics[topic]
            self._groups[group].discard(topic)
            if not self._groups[group]:
                del self._groups[group]

    def encoder(self, now_ms: int) -> Callable[[], bytes]:
        """What makes the file's bytes, without what is not worth keeping; in any thread."""
        self._forget(now_ms)
        filters = {topic: dict(of_groups) for topic, of_groups in self._topics.items()}

        def encode() -> bytes:
            return FiltersFile(
                filter_data_by_topic={
                    topic: TopicFilters(group_filter_data=of_groups, topic=topic)
                    for topic, of_groups in filters.items()
                }
            ).encode()

        return encode

    def on_time(self, now_ms: int) -> None:
        """Filters whose groups are gone die; now and then the file is written."""
        if now_ms < self._next_persist_ms:
            return
        self._next_persist_ms = now_ms + PERSIST_INTERVAL_MS
        for topic, filters in self._topics.items():
            for group, data in filters.items():
                if not data.is_dead:
                    online = self._consumers.get(group)
                    if online is None or topic not in online.subscriptions:
                        self._die(data, now_ms)
        if self._changed and not self._background.is_writing:
            self._changed = False
            self._background.write_soon(self._snapshot(now_ms), self._not_written)

    def _snapshot(self, now_ms: int) -> Generator[None, None, Callable[[], bytes]]:
        yield  # `on_time` has looked at all of them, too
        return self.encoder(now_ms)

    def _not_written(self) -> None:
        self._changed = True

    def _die(self, data: ConsumerFilterData, now_ms: int) -> None:
        data.dead_time = max(now_ms, data.born_time)
        self._changed = True

    # Expressions

    def check(self, subscription: Subscription, /) -> None:
        """See Expressions."""
        compile_subscription(subscription)

    def register(
        self, group: str, subscriptions: Iterable[Subscription], /
    ) -> Generator[None, None, None]:
        """See Expressions. Illegal expressions are left out; the group's pulls then get 27."""
        named = [each for each in subscriptions if not each.is_tag]
        if not named and group not in self._groups:
            return
        now_ms = self._now_ms()
        for subscription in named:
            yield  # each may take some 10 ms to compile
            try:
                compile_subscription(subscription)
            except SubscriptionError as error:
                _LOG.warning(
                    "the filter of group %s for topic %s does not compile: %s",
                    group,
                    subscription.topic,
                    error,
                )
                continue
            self._register_one(group, subscription, now_ms)
        topics = {each.topic for each in named}
        for topic in self._groups.get(group, ()):
            data = self._topics.get(topic, {}).get(group)
            if topic not in topics and data is not None and not data.is_dead:
                self._die(data, now_ms)

    def _register_one(self, group: str, subscription: Subscription, now_ms: int) -> None:
        topic = subscription.topic
        old = self._topics.get(topic, {}).get(group)
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
        size = _size_of(subscription.sub_string)
        if self._size + size > FILTERS_SIZE_MAX:
            self._forget(now_ms, 0)  # the dead make room
        filters = self._topics.get(topic, {})
        size -= _size_of(filters[group].expression) if group in filters else 0
        if self._size + size > FILTERS_SIZE_MAX:
            _LOG.warning(
                "group %s: its filter for topic %s is not kept, all have %d bytes, allowed are %d",
                group, topic, self._size, FILTERS_SIZE_MAX,
            )  # fmt: skip
            return
        self._size += size
        self._topics[topic] = filters
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


def _size_of(expression: str | None) -> int:
    return FILTER_OVERHEAD + len(expression or "")
