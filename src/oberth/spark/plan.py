"""What is read: stores, queues, starting and ending offsets, and how the work is cut into partitions.

Everything here runs on the driver and answers with plain values. An offset of the source is a
queue offset by (topic, broker, queue); as text it is JSON with sorted keys, because Spark compares
offsets as text: ``{"TopicA": {"broker-a": {"0": 12, "1": 7}}}``.
"""  # noqa: E501 - the first line

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from oberth.errors import ConfigFormatError, DataLossError, NotFoundError, OptionError
from oberth.formats import names, paths
from oberth.spark.options import (
    ANY_BROKER,
    EARLIEST,
    LATEST,
    LOGS,
    Bound,
    BoundKind,
    OffsetsByTopic,
    ReadOptions,
    Selection,
    SelectionKind,
)
from oberth.spark.queue_files import QueueFiles
from oberth.spark.segments import QueueName
from oberth.spark.storage import LocalStorage, storage_for
from oberth.spark.store_files import StoreFiles

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

SETTLED_FROM: Final = 8
"""With more queues in each store than this, its log's end is looked for once instead of the newest
record of each queue."""
PARTITIONS_MAX: Final = 100_000
"""Partitions that targetPartitionBytes makes at most; beyond that they grow, since Spark's driver
keeps every task in memory."""
REQUESTS_MAX: Final = 32
"""Questions about queues that are on their way at once, where each is a request over a network."""


class QueueKey(NamedTuple):
    """A queue of one broker. Sorts as offsets are written."""

    topic: str
    broker: str
    queue: int

    def __str__(self) -> str:
        return f"topic {self.topic}, broker {self.broker}, queue {self.queue}"


Offsets = dict[QueueKey, int]


class Begin(int):
    """The offset that a queue began at when it was first seen; what was before is not read.

    In JSON it is text, ``{"0": "120"}``: a batch that is run again must not take it for messages
    that were there when the batch was planned.
    """


def offsets_to_json(offsets: Mapping[QueueKey, int]) -> dict[str, dict[str, dict[str, int | str]]]:
    """The offset as Spark keeps it: nested, keys sorted (queues by number)."""
    nested: dict[str, dict[str, dict[str, int | str]]] = {}
    for key in sorted(offsets):
        brokers = nested.setdefault(key.topic, {})
        offset = offsets[key]
        brokers.setdefault(key.broker, {})[str(key.queue)] = (
            str(int(offset)) if isinstance(offset, Begin) else int(offset)
        )
    return nested


def offsets_from_json(nested: Mapping[str, Any]) -> Offsets:
    """The offset that `offsets_to_json` wrote; what stands under `LOGS` is no queue's."""
    return {
        QueueKey(topic, broker, int(queue)): (Begin if isinstance(offset, str) else int)(offset)
        for topic, brokers in nested.items()
        if topic != LOGS
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Which topics a selection takes. The broker's own are taken only when they are named."""

    selection: Selection

    def allows(self, topic: str) -> bool:
        """Whether the topic is taken."""
        kind = self.selection.kind
        if kind is SelectionKind.SUBSCRIBE:
            return topic in self.selection.topics
        if kind is SelectionKind.ASSIGN:
            return topic in self.selection.queues
        hidden = is_hidden_topic(topic)
        if kind is SelectionKind.ALL:
            return not hidden
        pattern = self.selection.pattern
        if re.fullmatch(pattern, topic) is None:
            return False
        return not hidden or _names_prefix(pattern, topic)


_HIDDEN_PREFIXES: Final = (names.RETRY_PREFIX, names.DLQ_PREFIX, names.LMQ_PREFIX)


def is_hidden_topic(topic: str) -> bool:
    """Whether a topic has to be named to be read: the broker's, retry, dead letter and light."""
    return (
        names.is_system_topic(topic)
        or topic.startswith(_HIDDEN_PREFIXES)
        or topic.endswith(names.REPLY_TOPIC_SUFFIX)
    )


def _names_prefix(pattern: str, topic: str) -> bool:
    """Whether a pattern begins with the very prefix that hides the topic."""
    own = (*_HIDDEN_PREFIXES, names.SYSTEM_TOPIC_PREFIX, "RMQ_SYS_", names.SCHEDULE_TOPIC)
    plain = pattern.lstrip("^").replace("\\", "")
    return any(topic.startswith(prefix) and plain.startswith(prefix) for prefix in own)


# Where the work lies.


class QueueRange(NamedTuple):
    """Messages of one queue, by queue offset, end excluded."""

    store: int
    topic: str
    queue: int
    start: int
    end: int


class LogRange(NamedTuple):
    """Records that start in a range of the CommitLog, end excluded.

    ``start`` may lie inside a record: the first one that starts at or after it is found, see
    `oberth.spark.record_starts`. ``limits`` narrows the rows down to offsets of queues.
    ``continues`` says that what lies before is read as well and reports damage that begins there.
    """

    store: int
    start: int
    end: int
    limits: tuple[tuple[str, int, int, int], ...] | None = None
    continues: bool = False


class Lookup(NamedTuple):
    """Records at known places of the CommitLog, in this order; ``limits`` as in `LogRange`.

    ``joined`` says that the places come from a walk over the log; others are looked at first.
    """

    store: int
    positions: tuple[int, ...]
    limits: tuple[tuple[str, int, int, int], ...] | None = None
    joined: bool = False


class SideBySide(NamedTuple):
    """Ranges of queues of one store whose records lie between each other, read in the log's order.

    None is of a light queue or of a BatchConsumeQueue.
    """

    store: int
    queues: tuple[QueueRange, ...]


Piece = QueueRange | SideBySide | LogRange | Lookup


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What one task reads, in this order."""

    pieces: tuple[Piece, ...]


class QueueView(Protocol):
    """What planning asks of a queue, whether it lies in files or at a broker."""

    def record_bytes(self, start: int, end: int) -> int:
        """About how many bytes of records the queue offsets [start, end) have."""

    def count_within(self, first: int, count: int, room: int) -> int:
        """How many messages from an offset on have at most ``room`` bytes of records."""

    def first_at_or_after(self, timestamp_ms: int) -> int | None:
        """The queue offset of the first message stored at or after a time, or None."""

    def narrow_by_time(
        self, start: int, end: int, from_ms: int | None, to_ms: int | None
    ) -> tuple[int, int]:
        """The part of the queue offsets [start, end) that can hold store times from … to."""


class BrokerView(Protocol):
    """What planning asks of a broker, or of the store that it left."""

    @property
    def broker(self) -> str:
        """Its name."""

    @property
    def root(self) -> str:
        """Where it is, for messages."""

    def topics(self) -> Mapping[str, Any]:
        """The topics it has queues of."""

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic; none for an unknown topic."""


class QueueStores(Protocol):
    """What planning asks of the stores or the live brokers of a query.

    Attributes:
        lost: descriptions of what was found to be gone, where that is no error.
        where: what holds the topics, for messages.
        missing_is_lost: whether a queue that is not found any more is gone; a broker that does not
            answer may come back.
    """

    lost: list[str]
    where: str
    missing_is_lost: bool

    @property
    def brokers(self) -> Sequence[BrokerView]:
        """One per store or broker; pieces name them by their number."""

    def refresh(self) -> None:
        """Sees what is new."""

    def prepare(self, ranges: Mapping[QueueKey, tuple[int, int]]) -> None:
        """Says which ranges will be asked for their bytes."""

    def queue(self, key: QueueKey) -> QueueView:
        """A queue. Raises NotFoundError where no store has it."""

    def queue_ids(self, store: BrokerView, topics: Sequence[str]) -> Sequence[list[int]]:
        """The queues of some topics of one of the stores or brokers."""

    def bounds(
        self, keys: Iterable[QueueKey], *, may_miss: bool = False
    ) -> dict[QueueKey, tuple[int, int]]:
        """The first and the next offset of every queue; (0, 0) for one without messages.

        With ``may_miss`` a queue whose broker does not answer is left out.
        """

    def places(
        self, offsets: Mapping[QueueKey, int], *, may_miss: bool
    ) -> dict[QueueKey, int | None]:
        """Where the record of an offset lies in its broker's log, None where nothing tells.

        With ``may_miss`` a queue whose broker does not answer is left out.
        """

    def group_offsets(self, group: str, keys: Iterable[QueueKey]) -> Offsets:
        """Where a consumer group stands in queues; without those it has no offset of."""

    def known_topics(self) -> set[str]:
        """Every topic there is, whatever is read."""

    def must_know_topics(self) -> bool:
        """Whether a topic that is not there is a mistake."""

    def first_at_or_after(self, times: Mapping[QueueKey, int]) -> dict[QueueKey, int | None]:
        """`QueueView.first_at_or_after` of several queues, each with its time."""

    def narrow_by_time(
        self, ranges: Mapping[QueueKey, tuple[int, int]], from_ms: int | None, to_ms: int | None
    ) -> dict[QueueKey, tuple[int, int]]:
        """`QueueView.narrow_by_time` of several queues."""

    def for_tasks(self) -> list[Any]:
        """What tasks need of each store or broker; pickles."""


@dataclass(slots=True)
class Stores:
    """The stores of a query.

    Attributes:
        files: one per store.
        lost: descriptions of what was found to be gone, where that is no error.
        where, missing_is_lost: see `QueueStores`.
    """

    files: list[StoreFiles]
    lost: list[str] = field(default_factory=list)
    where: str = "the stores"
    missing_is_lost: bool = True
    _queues: dict[QueueKey, QueueFiles] = field(default_factory=dict, repr=False)
    _numbers: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def brokers(self) -> Sequence[BrokerView]:
        """One per store."""
        return self.files

    def prepare(self, ranges: Mapping[QueueKey, tuple[int, int]]) -> None:
        """Asks queues for their bytes ahead where that takes requests over a network."""

        def size(key: QueueKey) -> int:
            try:
                return self.queue(key).record_bytes(*ranges[key])
            except NotFoundError:
                return 0

        if any(not isinstance(store.storage, LocalStorage) for store in self.files):
            self._each(size, list(ranges))

    def bounds(
        self, keys: Iterable[QueueKey], *, may_miss: bool = False
    ) -> dict[QueueKey, tuple[int, int]]:
        """The first and the next offset of every queue; (0, 0) for one without files."""
        wanted = list(keys)
        if len(wanted) > SETTLED_FROM * len(self.files):
            self._each(lambda store: store.settle(), self._stores_of(wanted))
        return dict(zip(wanted, self._each(self._bounds_of, wanted), strict=True))

    def _stores_of(self, keys: Iterable[QueueKey]) -> list[StoreFiles]:
        brokers = {key.broker for key in keys}
        return [store for store in self.files if store.broker in brokers]

    def _bounds_of(self, key: QueueKey) -> tuple[int, int]:
        try:
            return self.queue(key).bounds()
        except NotFoundError:
            return 0, 0

    def _each(self, ask: Callable[[T], R], about: Sequence[T]) -> Sequence[R]:
        """Answers in order; where a read is a request over a network, many on their way at once."""
        if len(about) < 2 or all(isinstance(s.storage, LocalStorage) for s in self.files):
            return [ask(each) for each in about]
        with ThreadPoolExecutor(REQUESTS_MAX) as pool:
            list(pool.map(_list_once, self.files))  # once, not by each thread
            return list(pool.map(ask, about))

    def queue_ids(self, store: BrokerView, topics: Sequence[str]) -> Sequence[list[int]]:
        """See `QueueStores`."""
        assert isinstance(store, StoreFiles)
        if len(topics) > 1 and not isinstance(store.storage, LocalStorage):
            store.list_queues(topics)
        return self._each(store.queue_ids, topics)

    def first_at_or_after(self, times: Mapping[QueueKey, int]) -> dict[QueueKey, int | None]:
        """See `QueueStores`."""
        for store in self._stores_of(times):
            store.settle()
            for time in sorted({t for key, t in times.items() if key.broker == store.broker})[:1]:
                store.place_of_time(time)  # once, not by each thread
        wanted = list(times)
        return dict(
            zip(
                wanted,
                self._each(lambda key: self.queue(key).first_at_or_after(times[key]), wanted),
                strict=True,
            )
        )

    def narrow_by_time(
        self, ranges: Mapping[QueueKey, tuple[int, int]], from_ms: int | None, to_ms: int | None
    ) -> dict[QueueKey, tuple[int, int]]:
        """See `QueueStores`."""
        wanted = list(ranges)

        def narrow(key: QueueKey) -> tuple[int, int]:
            return self.queue(key).narrow_by_time(*ranges[key], from_ms, to_ms)

        return dict(zip(wanted, self._each(narrow, wanted), strict=True))

    def seen_bounds(self, key: QueueKey) -> tuple[int, int]:
        """The bounds of a queue that has been longer; without files it ends where it goes on.

        A broker that starts again after a crash gives records their units anew; until it comes to
        them they are looked for in the log.
        """
        number = self.number_of(key.broker)
        if number is None:
            return 0, 0
        end = self.emptied_end(key)
        if end:
            return end, end
        self.files[number].tail(although_open=True)
        self._queues.pop(key, None)
        return self.bounds([key])[key]

    def emptied_end(self, key: QueueKey) -> int:
        """Where a queue goes on that lost its files when its messages were gone; 0 for others."""
        from oberth.spark.log_tail import queue_ends

        number = self.number_of(key.broker)
        if number is None:
            return 0
        with contextlib.suppress(NotFoundError):
            if self.queue(key).segments:
                return 0
        return queue_ends(self.files[number]).get(QueueName(key.topic, key.queue), 0)

    def lacks(self, key: QueueKey, start: int, end: int) -> list[str]:
        """What of the queue offsets [start, end) a crash took, for messages."""
        try:
            gaps = self.queue(key).gaps_within(start, end)
        except NotFoundError:
            return []
        why = "the log has no record of them"
        return [f"{key}: offsets {first} to {last} are gone, {why}" for first, last in gaps]

    def place_of(self, key: QueueKey, offset: int) -> int | None:
        """Where the record of a queue offset lies in the log; None where no unit tells."""
        try:
            return self.queue(key).place_of(offset)
        except NotFoundError:
            return None

    def places(
        self, offsets: Mapping[QueueKey, int], *, may_miss: bool
    ) -> dict[QueueKey, int | None]:
        """`place_of` of several queues."""
        wanted = list(offsets)
        found = self._each(lambda key: self.place_of(key, offsets[key]), wanted)
        return dict(zip(wanted, found, strict=True))

    def log_ends(self) -> tuple[int, ...] | None:
        """The end of every store's log; None where to ask again is a request over a network."""
        if not all(isinstance(store.storage, LocalStorage) for store in self.files):
            return None
        return tuple(store.log_end() for store in self.files)

    def end_at(self, ends: Sequence[int]) -> bool:
        """Whether no log has grown beyond its end: a few bytes are read, nothing is listed."""
        # A path with wildcards may stand for more or fewer stores than it did.
        return len(ends) == len(self.files) and all(
            store.ends_at(end) for store, end in zip(self.files, ends, strict=True)
        )

    def group_offsets(self, group: str, keys: Iterable[QueueKey]) -> Offsets:
        """Where a consumer group stands in queues; without those it has no offset of."""
        by_store = {store.broker: store.group_offsets(group) for store in self.files}
        found: Offsets = {}
        for key in keys:
            offset = by_store[key.broker].get(QueueName(key.topic, key.queue))
            if offset is not None:
                found[key] = offset
        return found

    def known_topics(self) -> set[str]:
        """Topics with queues, and those that exist without any message yet."""
        found: set[str] = set()
        for store in self.files:
            found.update(store.topics())
            try:
                parsed = store.config("topics.json")
            except ConfigFormatError:
                continue  # it only makes an error message better
            table = parsed.get("topicConfigTable") if isinstance(parsed, dict) else None
            found.update(table if isinstance(table, dict) else ())
        return found

    def must_know_topics(self) -> bool:
        """Whether any store has queues; topics are not known from a log alone."""
        return any(store.has_queues() for store in self.files)

    def for_tasks(self) -> list[StoreFiles]:
        """The stores without listings."""
        return [store.bare() for store in self.files]

    def has_store(self, broker: str) -> bool:
        """Whether a broker's store is there: its path may be a disk that is not mounted now."""
        number = self.number_of(broker)
        return number is not None and _is_store(self.files[number])

    def number_of(self, broker: str) -> int | None:
        """The number of a broker's store."""
        if len(self._numbers) != len(self.files):
            self._numbers = {store.broker: number for number, store in enumerate(self.files)}
        return self._numbers.get(broker)

    def refresh(self) -> None:
        """Forgets listings and queues."""
        self._queues.clear()
        for store in self.files:
            store.refresh()

    def queue(self, key: QueueKey) -> QueueFiles:
        """The files of a queue, listed once until `refresh`.

        Raises:
            NotFoundError: no store has it.
        """
        found = self._queues.get(key)
        if found is None:
            number = self.number_of(key.broker)
            if number is None:
                raise NotFoundError(f"{key}: no store of that broker among the paths")
            found = self._queues[key] = self.files[number].queue(key.topic, key.queue)
        return found


def _list_once(store: StoreFiles) -> None:
    """Lists what questions from several threads share."""
    store.segments()
    store.topics()


def open_stores(options: ReadOptions) -> Stores:
    """The stores that the option ``path`` names.

    Raises:
        OptionError: a path that is no store, or two stores whose brokers have one name.
    """
    files: list[StoreFiles] = []
    for path in options.paths:
        storage, absolute = storage_for(path, options.storage)
        found = storage.expand(absolute)
        if not found:
            raise OptionError(f"path: {path!r} matches no directory")
        for root in found:
            own = storage_for(root, options.storage)[0]
            files.append(StoreFiles(own, root, "", reads_tail=True))
    for store in files:
        if not _is_store(store):
            raise OptionError(
                f"path: {store.root} is no store: it has neither a directory commitlog nor others "
                "with CommitLog files"
            )
    given = options.broker_names
    if given and len(given) != len(files):
        raise OptionError(f"brokerName: {len(given)} names for {len(files)} stores")
    for number, store in enumerate(files):
        store.broker = given[number] if given else broker_name(store)
    seen: dict[str, str] = {}
    for store in files:
        if store.broker in seen:
            raise OptionError(
                f"the stores {seen[store.broker]} and {store.root} both belong to broker "
                f"{store.broker!r}; tell them apart with brokerName=NAME,NAME"
            )
        seen[store.broker] = store.root
    return Stores(files)


def _is_store(store: StoreFiles) -> bool:
    present = {e.name for e in store.storage.entries(store.root) if e.is_directory}
    return paths.COMMIT_LOG in present or bool(store.segments())


def broker_name(store: StoreFiles) -> str:
    """What a store says of its broker's name, or the name of its directory.

    A directory called ``store``, Apache's default, gives its parent's name.
    """
    entries = {entry.name: entry.size for entry in store.storage.entries(store.root)}
    if entries.get("brokerIdentity", -1) > 0:
        raw = store.storage.read(
            f"{store.root}/brokerIdentity", 0, min(entries["brokerIdentity"], 4096)
        )
        for line in raw.decode("utf-8", "replace").splitlines():
            match = re.fullmatch(r"\s*brokerName\s*[:=#]\s*(\S+)\s*", line)
            if match:
                return match[1]
    parts = [part for part in store.root.split("/") if part]
    while len(parts) > 1 and parts[-1] in ("store", "rocketmq"):
        parts.pop()
    return parts[-1] if parts else "broker"


def select_queues(options: ReadOptions, stores: QueueStores, *, must_exist: bool) -> list[QueueKey]:
    """The queues that a selection names, sorted.

    Args:
        options: the selection.
        stores: where to look.
        must_exist: whether a topic or queue that is named but not there is an error.

    Raises:
        OptionError: an unknown broker, or (with must_exist) an unknown topic or queue.
    """
    selection = options.selection
    topic_filter = TopicFilter(selection)
    found: list[QueueKey] = []
    for store in stores.brokers:
        if selection.kind is SelectionKind.ASSIGN:
            break
        topics = [topic for topic in store.topics() if topic_filter.allows(topic)]
        for topic, ids in zip(topics, stores.queue_ids(store, topics), strict=True):
            found += [QueueKey(topic, store.broker, queue) for queue in ids]
    if selection.kind is SelectionKind.ASSIGN:
        for topic, brokers in selection.queues.items():
            for broker, queues in brokers.items():
                name = _broker_of(stores, broker, "assign")
                found += [QueueKey(topic, name, queue) for queue in queues]
    if must_exist:
        named = selection.topics or tuple(selection.queues)
        if named:
            everywhere = stores.known_topics()
            missing = sorted(set(named) - everywhere)
            missing = [topic for topic in missing if not is_hidden_topic(topic)]
            if missing and stores.must_know_topics():
                near = get_close_matches(missing[0], everywhere, 1, 0.4)
                hint = f"; the nearest is {near[0]!r}" if near else ""
                raise OptionError(f"topic {missing[0]!r} is in none of {stores.where}{hint}")
        if selection.kind is SelectionKind.ASSIGN:
            _check_assigned(stores, found)
    return sorted(set(found))


def _check_assigned(stores: QueueStores, keys: Iterable[QueueKey]) -> None:
    by_name = {store.broker: store for store in stores.brokers}
    for key in keys:
        ids = by_name[key.broker].queue_ids(key.topic) if key.broker in by_name else []
        if key.queue not in ids:
            raise OptionError(f"assign: {key} does not exist; queues there: {ids}")


def _broker_of(stores: QueueStores, broker: str, option: str) -> str:
    known = [store.broker for store in stores.brokers]
    if broker == ANY_BROKER:
        if len(known) != 1:
            raise OptionError(
                f"{option}: with several brokers ({', '.join(known)}) every queue needs its own: "
                '{"topic": {"broker": …}}'
            )
        return known[0]
    if broker not in known:
        raise OptionError(f"{option}: broker {broker!r} is none of {', '.join(known)}")
    return broker


def resolve_offsets(by_topic: OffsetsByTopic, stores: QueueStores, option: str) -> Offsets:
    """Numbers that a user gave by topic, broker and queue, with brokers filled in.

    Raises:
        OptionError: an unknown broker.
    """
    return {
        QueueKey(topic, _broker_of(stores, broker, option), queue): number
        for topic, brokers in by_topic.items()
        for broker, queues in brokers.items()
        for queue, number in queues.items()
    }


def bound_offsets(
    bound: Bound,
    side: str,
    options: ReadOptions,
    stores: QueueStores,
    bounds: Mapping[QueueKey, tuple[int, int]],
) -> Offsets:
    """The offset of every queue that a starting or ending point stands for.

    Args:
        bound: the point.
        side: ``starting`` or ``ending``, for messages and for what no message at a time means.
        options: strategies and the consumer group.
        stores: where to look up times and groups.
        bounds: the queues and what they hold.

    Raises:
        OptionError: queues named are not the queues read; no message at or after a time with the
            strategy ``error``; no offset of a group with the fallback ``error``.
    """
    if bound.kind is BoundKind.EARLIEST:
        return {key: low for key, (low, _) in bounds.items()}
    if bound.kind is BoundKind.LATEST:
        return {key: high for key, (_, high) in bounds.items()}
    if bound.kind is BoundKind.GROUP:
        return _group_offsets(options, stores, bounds)
    if bound.kind is BoundKind.OFFSETS:
        given = resolve_offsets(bound.offsets, stores, f"{side}Offsets")
        _same_queues(given, bounds, f"{side}Offsets")
        words = {EARLIEST: 0, LATEST: 1}
        return {
            key: bounds[key][words[number]] if number in words else number
            for key, number in given.items()
        }
    if bound.kind is BoundKind.TIMESTAMPS:
        times = resolve_offsets(bound.offsets, stores, f"{side}OffsetsByTimestamp")
        _same_queues(times, bounds, f"{side}OffsetsByTimestamp")
    else:
        times = dict.fromkeys(bounds, bound.timestamp_ms)
    found: Offsets = {}
    firsts = stores.first_at_or_after({k: t for k, t in times.items() if bounds[k] != (0, 0)})
    for key, time in times.items():
        offset = firsts.get(key)
        if offset is None:
            if side == "starting" and options.timestamp_strategy == "error":
                raise OptionError(
                    f"{key}: no message at or after {time} ms; "
                    "startingOffsetsByTimestampStrategy=latest would start at its end"
                )
            offset = bounds[key][1]
        found[key] = min(offset, bounds[key][1])
    return found


def _same_queues(given: Offsets, bounds: Mapping[QueueKey, Any], option: str) -> None:
    if given.keys() != bounds.keys():
        missing = [str(key) for key in sorted(bounds.keys() - given.keys())]
        unknown = [str(key) for key in sorted(given.keys() - bounds.keys())]
        raise OptionError(
            f"{option} has to name every queue that is read (-1 is the latest, -2 the earliest): "
            f"missing {missing[:5]}, not read {unknown[:5]}"
        )


def _group_offsets(
    options: ReadOptions, stores: QueueStores, bounds: Mapping[QueueKey, tuple[int, int]]
) -> Offsets:
    known = stores.group_offsets(options.consumer_group, bounds)
    found: Offsets = {}
    for key, (low, high) in bounds.items():
        offset = known.get(key)
        if offset is None:
            if options.group_fallback == "error":
                raise OptionError(
                    f"{key}: group {options.consumer_group!r} has no offset there; "
                    "startingGroupFallback=earliest or latest says where to start"
                )
            offset = low if options.group_fallback == "earliest" else high
        found[key] = offset
    return found


def check_range(
    stores: QueueStores,
    options: ReadOptions,
    start: Mapping[QueueKey, int],
    end: Mapping[QueueKey, int],
    bounds: Mapping[QueueKey, tuple[int, int]],
) -> dict[QueueKey, tuple[int, int]]:
    """The offsets to read of every queue, within what is still there.

    Raises:
        DataLossError: with failOnDataLoss, offsets asked for are gone or were never there; the
            message names every queue with its exact range.
    """
    ranges: dict[QueueKey, tuple[int, int]] = {}
    lost: list[str] = []
    for key in sorted(end):
        first, last = start.get(key, 0), end[key]
        low, high = bounds.get(key, (0, 0))
        if last > high and isinstance(stores, Stores):
            low, high = stores.seen_bounds(key)
        if first < min(low, last):
            lost.append(f"{key}: offsets {first} to {min(low, last)} are gone, it begins at {low}")
        if last > high:
            begin = max(first, high)
            lost.append(f"{key}: offsets {begin} to {last} are not there, it ends at {high}")
        elif first > high:
            lost.append(f"{key}: offset {first} is not there, it ends at {high}")
        first = min(max(first, low), high)
        ranges[key] = (first, min(max(last, first), high))
        if isinstance(stores, Stores):
            lost += stores.lacks(key, *ranges[key])
    report_loss(stores, options, lost)
    return ranges


def look_before(
    stores: QueueStores,
    known: Mapping[QueueKey, int],
    start: Mapping[QueueKey, int],
    bounds: Mapping[QueueKey, tuple[int, int]],
    *,
    may_miss: bool = False,
) -> tuple[Offsets, dict[QueueKey, int | None]]:
    """Where the records before starting offsets lie now, to be compared with where they lay.

    Of a queue that ends before its start it is the newest record; one that has nothing new is not
    asked. A topic that was made again has its record behind that place.

    Args:
        stores: which are asked.
        known: where the record before each start lay.
        start: where reading goes on.
        bounds: of the queues as they are now.
        may_miss: see `QueueStores.places`.

    Returns:
        The queue offsets that were asked for, and the answers.
    """
    asked = {
        key: min(high, start[key]) - 1
        for key, (low, high) in sorted(bounds.items())
        if key in known and key in start and high != start[key]
        if low < min(high, start[key])
    }
    return asked, stores.places(asked, may_miss=may_miss) if asked else {}


def made_again(
    stores: QueueStores,
    options: ReadOptions,
    known: Mapping[QueueKey, int],
    start: Mapping[QueueKey, int],
    bounds: Mapping[QueueKey, tuple[int, int]],
) -> Offsets:
    """Where queues begin now whose topics were deleted and made again, of those in `look_before`.

    Raises:
        DataLossError: with failOnDataLoss, there are any: what the old ones had last may be gone.
    """
    _, places = look_before(stores, known, start, bounds)
    again = [key for key, at in places.items() if at is not None and at > known[key]]
    why = "then its topic was made again"
    report_loss(stores, options, [f"{key}: it was read to {start[key]}, {why}" for key in again])
    return {key: bounds[key][0] for key in again}


def note_before(
    stores: QueueStores,
    known: Mapping[QueueKey, int],
    start: Mapping[QueueKey, int],
    end: Mapping[QueueKey, int],
) -> Offsets:
    """Where the records before ending offsets lie: what `look_before` compares with next.

    Args:
        stores: which are asked, but for queues of which nothing was read. Those that do not answer
            are left out.
        known: the same for the start; where nothing is known, all queues are asked.
        start: where a batch starts.
        end: where it ends.
    """
    moved = {key for key in end if not known or end[key] != start.get(key)}
    wanted = {key: end[key] - 1 for key in sorted(moved) if end[key] > 0}
    found = stores.places(wanted, may_miss=True) if wanted else {}
    kept = {key: place for key, place in known.items() if key in end and key not in moved}
    return kept | {key: place for key, place in found.items() if place is not None}


def report_loss(stores: QueueStores, options: ReadOptions, lost: Sequence[str]) -> None:
    """Raises, or notes and logs, what was found to be gone."""
    if not lost:
        return
    shown = "; ".join(lost[:20]) + (f"; and {len(lost) - 20} more" if len(lost) > 20 else "")
    if options.fail_on_data_loss:
        raise DataLossError(f"{shown}. With failOnDataLoss=false they are skipped and reported.")
    stores.lost += lost
    _LOG.warning("data loss, skipped: %s", shown)


def by_broker(ranges: Mapping[QueueKey, R]) -> dict[str, dict[QueueKey, R]]:
    """What is said of queues, by their broker."""
    found: dict[str, dict[QueueKey, R]] = {}
    for key, value in ranges.items():
        found.setdefault(key.broker, {})[key] = value
    return found
