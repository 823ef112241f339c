"""The options that ``format("rocketmq")`` takes to read.

Names, defaults, precedence and refusals are those of Spark's source for Kafka. Spark hands option
names over in lower case; they are compared without regard to case. An option that is not known is
an error that names the nearest one. Nothing here looks at a store: whether a topic or a queue
exists is found out later.

Precedence: startingTimestamp, startingOffsetsByTimestamp, startingOffsets; and the same for
ending. Values of offsets in JSON: -2 is the earliest, -1 the latest.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from oberth.errors import OptionError
from oberth.formats.names import TOOLS_CONSUMER_GROUP
from oberth.spark.connection import Connection
from oberth.spark.given_options import (
    CONNECTION,
    READ_TIMEOUT,
    Given,
    parse_connection,
    parse_paths,
)

_LOG: Final = logging.getLogger(__name__)

EARLIEST: Final = -2
LATEST: Final = -1

DEFAULT_TARGET_PARTITION_BYTES: Final = 128 << 20
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
DEFAULT_BATCH_BYTES: Final = 2 << 20
BATCH_BYTES_MIN: Final = 64 << 10
BATCH_BYTES_MAX: Final = 256 << 20
DEFAULT_PULL_BATCH: Final = 1024
"""Messages that one pull asks for; brokers give less (Apache's 32 of those in memory)."""
PULL_BATCH_MAX: Final = 10_000
DEFAULT_PULL_REQUESTS: Final = 8
"""Pulls of one task on their way at the same time."""
PULL_REQUESTS_MAX: Final = 256

LOGS: Final = ""
"""Under this name, which no topic has, a stream's offset says where the log of each broker ended
when it was made: ``{"": {"broker-a": {"log": 4096}}}``."""
OffsetsByTopic = Mapping[str, Mapping[str, Mapping[int, int]]]
"""queue offsets as a user writes them: topic -> broker ("" for the only one) -> queue -> offset"""
QueuesByTopic = Mapping[str, Mapping[str, tuple[int, ...]]]
"""queues as a user assigns them: topic -> broker ("" for the only one) -> queues"""
ANY_BROKER: Final = ""


class SelectionKind(StrEnum):
    """How topics and queues are chosen."""

    ALL = "all"  # neither option given: every topic that is not the system's
    SUBSCRIBE = "subscribe"
    PATTERN = "subscribePattern"
    ASSIGN = "assign"


class Selection(NamedTuple):
    """Which topics and queues are read."""

    kind: SelectionKind
    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: QueuesByTopic = {}

    def reaches(self, broker: str) -> bool:
        """Whether queues of a broker may be among those that are read."""
        named = {each for brokers in self.queues.values() for each in brokers}
        return self.kind is not SelectionKind.ASSIGN or bool(named & {broker, ANY_BROKER})


class BoundKind(StrEnum):
    """What a starting or ending point is given by."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"
    GROUP = "group"


class Bound(NamedTuple):
    """A starting or ending point.

    Attributes:
        kind: which of the others counts.
        offsets: for OFFSETS queue offsets, for TIMESTAMPS milliseconds, by queue.
        timestamp_ms: for TIMESTAMP.
    """

    kind: BoundKind
    offsets: OffsetsByTopic = {}
    timestamp_ms: int = 0


class ReadOrder(StrEnum):
    """In which order rows come, and by what the work is split."""

    AUTO = "auto"  # queue, or commitlog where the store has no ConsumeQueue
    QUEUE = "queue"
    COMMIT_LOG = "commitlog"


class ReadMode(StrEnum):
    """Where a streaming query reads."""

    EXECUTOR = "executor"
    DRIVER = "driver"


class BadBodies(StrEnum):
    """What becomes of a message whose body does not decompress, or is no inner batch."""

    ROW = "row"
    SKIP = "skip"
    FAIL = "fail"


BODY_KINDS: Final = ("raw", "json", "avro", "protobuf")


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """How bodies become a column.

    Attributes:
        kind: raw: they do not; json, avro or protobuf.
        schema: for json the types, for avro the schema, each as JSON or the name of a file; for
            protobuf the name of a file with a descriptor set. "" where something else says it.
        reader_schema: for avro the schema that the column is to have, in the same way.
        message: for protobuf the message's full name.
        registry: the address of a schema registry, "" for none.
        subject: whose version gives the column's type.
        version: which one.
        user: for the registry's basic authentication.
        password: the same.
    """

    kind: str = "raw"
    schema: str = ""
    reader_schema: str = ""
    message: str = ""
    registry: str = ""
    subject: str = ""
    version: str = "latest"
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a reader is told. Sizes are bytes, times milliseconds; None is no limit."""

    paths: tuple[str, ...]
    broker_names: tuple[str, ...]
    # None: files. Else live brokers, with what follows.
    connection: Connection | None
    pull_group: str
    pull_batch: int
    pull_requests: int
    # Publish what a stream has committed as the offsets of consumer_group.
    commit_to_group: bool
    selection: Selection
    starting: Bound
    ending: Bound
    # What a queue without a message at or after the starting timestamp gives: "error" or "latest".
    timestamp_strategy: str
    consumer_group: str
    # Where a queue starts that the group has no offset for: "earliest", "latest" or "error".
    group_fallback: str
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    target_partition_bytes: int
    batch_bytes: int
    fail_on_data_loss: bool
    include_properties: bool
    include_undelivered: bool
    columns: str
    read_order: ReadOrder
    read_mode: ReadMode
    verify_crc: bool
    bad_bodies: BadBodies
    pushdown: bool
    # The directory of an export that has the old ranges, "" for none.
    lake: str
    # Records that start at or after a position of the log, and those below one; None: no limit.
    since_offset: int | None
    as_of_offset: int | None
    # Records below the first one that was stored after this time.
    as_of_timestamp_ms: int | None
    trust_index: bool
    trust_times: bool
    filter_tags: tuple[str, ...]
    filter_sql: str
    body: BodyOptions
    storage: Mapping[str, str]


_READ: Final[Mapping[str, tuple[str, ...]]] = {
    **CONNECTION,
    "path": ("paths",),
    "brokerName": ("rocketmq.broker.name",),
    "rocketmq.broker.addr": (),
    "rocketmq.consumer.group": ("consumerGroup",),
    "rocketmq.pull.group": (),
    "rocketmq.pull.batch.size": (),
    "rocketmq.pull.requests": (),
    READ_TIMEOUT: (),
    "commitOffsetsToGroup": (),
    "subscribe": ("topic",),
    "subscribePattern": (),
    "assign": (),
    "startingOffsets": (),
    "startingTimestamp": (),
    "startingOffsetsByTimestamp": (),
    "startingOffsetsByTimestampStrategy": (),
    "startingGroupFallback": (),
    "endingOffsets": (),
    "endingTimestamp": (),
    "endingOffsetsByTimestamp": (),
    "maxOffsetsPerTrigger": (),
    "minOffsetsPerTrigger": (),
    "maxTriggerDelay": (),
    "maxBytesPerTrigger": (),
    "minPartitions": (),
    "maxRecordsPerPartition": (),
    "targetPartitionBytes": (),
    "batchBytes": (),
    "failOnDataLoss": (),
    "includeProperties": ("includeHeaders",),
    "includeUndelivered": (),
    "columns": (),
    "readOrder": (),
    "readMode": (),
    "verifyCrc": (),
    "badBodies": (),
    "pushdown": (),
    "lake": (),
    "sinceOffset": (),
    "asOfOffset": (),
    "asOfTimestamp": (),
    "trust": (),
    "filter.tag": (),
    "filter.sql": (),
    "body": (),
    "bodySchema": (),
    "bodyReaderSchema": (),
    "bodyMessage": (),
    "schemaRegistry": (),
    "schemaRegistry.user": (),
    "schemaRegistry.password": (),
    "schemaSubject": (),
    "schemaVersion": (),
    "storage.endpoint": (),
    "storage.accessKey": (),
    "storage.secretKey": (),
    "storage.region": (),
    "storage.anonymous": (),
}
"""Every option of the source, with its synonyms; the sink's own are in `write_options`."""
READ_OPTIONS: Final = tuple(_READ)
_CUTS: Final = ("sinceOffset", "asOfOffset", "asOfTimestamp")
"""Options that cut a store's log."""
_READ_FILES: Final = (
    "brokerName",
    "includeUndelivered",
    "trust",
    *_CUTS,
    *(n for n in _READ if n.startswith("storage.")),
)
"""Options that mean something for files only, and for live brokers only."""
_READ_LIVE: Final = (
    *(n for n in CONNECTION if n != "rocketmq.namesrv.addr"),
    "rocketmq.pull.group",
    "rocketmq.pull.batch.size",
    "rocketmq.pull.requests",
    READ_TIMEOUT,
    "commitOffsetsToGroup",
)


def _origin(options: Given) -> tuple[tuple[str, ...], bool]:
    """The stores' folders, and whether live brokers are read in their place."""
    paths = parse_paths(options.text("path"))
    live = options.has("rocketmq.namesrv.addr", "rocketmq.broker.addr")
    if bool(paths) + len(live) != 1:
        found = ", ".join([*(["path"] if paths else []), *live]) or "none of them"
        raise OptionError(
            f"exactly one of path and rocketmq.namesrv.addr says where to read; found {found}"
        )
    if live == ["rocketmq.broker.addr"]:
        raise OptionError(
            "rocketmq.broker.addr: brokers are found through their name servers; give "
            "rocketmq.namesrv.addr"
        )
    wrong = options.has(*(_READ_FILES if live else _READ_LIVE))
    if wrong:
        kind, other = ("rocketmq.namesrv.addr", "path") if live else ("path", "live brokers")
        raise OptionError(f"{wrong[0]} goes with {other}, not with {kind}")
    return paths, bool(live)


def _broker_names(options: Given) -> tuple[str, ...]:
    names = tuple(n.strip() for n in options.text("brokerName").split(",") if n.strip())
    if names and len(names) != len(set(names)):
        raise OptionError(f"brokerName: {options.text('brokerName')!r} names a broker twice")
    return names


def _check_query(options: Given, starting: Bound, ending: Bound, *, streaming: bool) -> None:
    """Refuses what a stream or a batch query cannot do; warns of what a batch query ignores."""
    if streaming:
        refused = options.has("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        refused += options.has("lake", *_CUTS)
        if options.flag("includeUndelivered", False):
            refused += ["includeUndelivered"]
        if refused:
            raise OptionError(f"{refused[0]} is not allowed in a streaming query")
    else:
        _check_batch_bounds(starting, ending)
        for name in options.has(
            "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"
        ):
            _LOG.warning("option %s is ignored in a batch query", name)


def _read_order(options: Given, *, live: bool) -> ReadOrder:
    order = ReadOrder(options.choice("readOrder", ("auto", "queue", "commitlog"), "auto"))
    if live and order is ReadOrder.COMMIT_LOG:
        raise OptionError("readOrder=commitlog needs path: brokers give messages by queue only")
    if options.has("lake") and order is ReadOrder.QUEUE:
        raise OptionError("readOrder=queue does not go with lake: its log side is read as a log")
    if options.flag("includeUndelivered", False) and not options.has("lake"):
        if order is ReadOrder.QUEUE:
            raise OptionError(
                "includeUndelivered needs readOrder=commitlog, found queue: no queue has them"
            )
        order = ReadOrder.COMMIT_LOG
    if len(options.has("asOfOffset", "asOfTimestamp")) > 1:
        raise OptionError("asOfOffset and asOfTimestamp exclude each other")
    return order


def _check_undelivered(starting: Bound, ending: Bound, selection: Selection) -> None:
    """Refuses what looks at queue offsets: records that no queue shows have none of their own."""
    if starting.kind is not BoundKind.EARLIEST or ending.kind is not BoundKind.LATEST:
        raise OptionError(
            "starting and ending points do not go with includeUndelivered, for they are offsets of "
            "queues; say where timestamp …, or sinceOffset and asOfOffset or asOfTimestamp"
        )
    if selection.kind is SelectionKind.ASSIGN:
        raise OptionError(
            "assign does not go with includeUndelivered; subscribe, and say where partition = …"
        )


def _consumer_group(options: Given, starting: Bound, *, streaming: bool) -> tuple[str, bool]:
    """The group whose offsets count, and whether a stream commits them."""
    group = options.text("rocketmq.consumer.group")
    commit_to_group = options.flag("commitOffsetsToGroup", False)
    if commit_to_group and not streaming:
        raise OptionError("commitOffsetsToGroup is for streams: a batch query commits nothing")
    if commit_to_group and not group:
        raise OptionError("commitOffsetsToGroup needs rocketmq.consumer.group")
    if starting.kind is BoundKind.GROUP and not group:
        raise OptionError("startingOffsets=group needs rocketmq.consumer.group")
    return group, commit_to_group


def _trigger_limits(options: Given) -> tuple[int | None, int | None, int | None]:
    """The most and the fewest offsets of a trigger, and its most bytes."""
    most = options.number("maxOffsetsPerTrigger")
    least = options.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger {least} is larger than maxOffsetsPerTrigger {most}"
        )
    max_bytes = options.size("maxBytesPerTrigger", None)
    if most is not None and max_bytes is not None:
        raise OptionError("maxOffsetsPerTrigger and maxBytesPerTrigger exclude each other")
    return most, least, max_bytes


def parse_read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Checks and understands the options of a reader.

    Args:
        given: what Spark hands over.
        streaming: whether it is for ``readStream``; some options are refused in one of the two.

    Raises:
        OptionError: an unknown option, a value out of range, or options that exclude each other.
    """
    options = Given(given, _READ)
    paths, live = _origin(options)
    names = _broker_names(options)
    selection = _selection(options)
    starting = _bound(options, "starting", "latest" if streaming else "earliest")
    ending = _bound(options, "ending", "latest")
    _check_query(options, starting, ending, streaming=streaming)
    order = _read_order(options, live=live)
    if options.flag("includeUndelivered", False):
        _check_undelivered(starting, ending, selection)
    group, commit_to_group = _consumer_group(options, starting, streaming=streaming)
    most, least, max_bytes = _trigger_limits(options)
    trusted = _trust(options.text("trust"))
    target = options.size("targetPartitionBytes", DEFAULT_TARGET_PARTITION_BYTES, 1 << 10)
    batch_bytes = options.size("batchBytes", DEFAULT_BATCH_BYTES, BATCH_BYTES_MIN, BATCH_BYTES_MAX)
    assert target is not None
    assert batch_bytes is not None
    return ReadOptions(
        paths=paths,
        broker_names=names,
        connection=parse_connection(options) if live else None,
        pull_group=options.text("rocketmq.pull.group", TOOLS_CONSUMER_GROUP),
        pull_batch=options.number("rocketmq.pull.batch.size", high=PULL_BATCH_MAX)
        or DEFAULT_PULL_BATCH,
        pull_requests=options.number("rocketmq.pull.requests", high=PULL_REQUESTS_MAX)
        or DEFAULT_PULL_REQUESTS,
        commit_to_group=commit_to_group,
        selection=selection,
        starting=starting,
        ending=ending,
        timestamp_strategy=options.choice(
            "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
        ),
        consumer_group=group,
        group_fallback=options.choice(
            "startingGroupFallback", ("earliest", "latest", "error"), "earliest"
        ),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        max_bytes_per_trigger=max_bytes,
        min_partitions=options.number("minPartitions", high=1_000_000),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        target_partition_bytes=target,
        batch_bytes=batch_bytes,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_properties=options.flag("includeProperties", False),
        include_undelivered=options.flag("includeUndelivered", False),
        columns=options.text("columns"),
        read_order=order,
        read_mode=ReadMode(options.choice("readMode", ("executor", "driver"), "executor")),
        verify_crc=options.flag("verifyCrc", True),
        bad_bodies=BadBodies(options.choice("badBodies", tuple(BadBodies), BadBodies.ROW)),
        pushdown=options.flag("pushdown", False),
        lake=options.text("lake"),
        since_offset=options.number("sinceOffset", 0),
        as_of_offset=options.number("asOfOffset", 0),
        as_of_timestamp_ms=options.number("asOfTimestamp", 0),
        trust_index="index" in trusted,
        trust_times="times" in trusted,
        filter_tags=_tags(options.text("filter.tag")),
        filter_sql=options.text("filter.sql"),
        body=_body(options),
        storage={
            n[8:]: options.text(n) for n in _READ if n.startswith("storage.") and options.has(n)
        },
    )


def by_proper_names(given: Mapping[str, str]) -> dict[str, str]:
    """The options that are given, by their proper names.

    Raises:
        OptionError: an unknown option, or one under two names with two values.
    """
    options = Given(given, _READ)
    return {name: options.text(name) for name in options.has(*_READ)}


def _trust(text: str) -> frozenset[str]:
    """What the option ``trust`` names.

    Raises:
        OptionError: something else.
    """
    words = frozenset(word.strip().lower() for word in text.split(",") if word.strip())
    if not words <= {"index", "times"}:
        raise OptionError(f"trust: found {text!r}, allowed: index, times, or both with a comma")
    return words


def schema_options(given: Mapping[str, str]) -> tuple[str, bool, BodyOptions]:
    """What a schema depends on: ``columns``, whether properties are included, what bodies become.

    Spark asks for the schema before it says whether a query is a stream.

    Raises:
        OptionError: an unknown option, or a value that is neither true nor false.
    """
    options = Given(given, _READ)
    return options.text("columns"), options.flag("includeProperties", False), _body(options)


_BODY_OPTIONS: Final = (
    "bodySchema", "bodyReaderSchema", "bodyMessage", "schemaRegistry", "schemaRegistry.user",
    "schemaRegistry.password", "schemaSubject", "schemaVersion",
)  # fmt: skip


def _body(options: Given) -> BodyOptions:
    kind = options.choice("body", BODY_KINDS, "raw")
    given = options.has(*_BODY_OPTIONS)
    if kind == "raw":
        if given:
            raise OptionError(f"{given[0]} needs body=json, avro or protobuf")
        return BodyOptions()
    registry = options.text("schemaRegistry")
    more = [name for name in given if name.startswith("schema") and name != "schemaRegistry"]
    if more and not registry:
        raise OptionError(f"{more[0]} needs schemaRegistry")
    if registry and options.has("bodySchema", "bodyReaderSchema"):
        raise OptionError("bodySchema and schemaRegistry exclude each other")
    if options.has("bodyReaderSchema") and (kind != "avro" or not options.has("bodySchema")):
        raise OptionError("bodyReaderSchema needs body=avro and bodySchema")
    if options.has("bodyMessage") and kind != "protobuf":
        raise OptionError("bodyMessage needs body=protobuf")
    if bool(options.text("schemaRegistry.user")) != bool(options.text("schemaRegistry.password")):
        raise OptionError("schemaRegistry.user and schemaRegistry.password go together")
    subject = options.text("schemaSubject")
    if registry and not subject:
        topics = [t.strip() for t in options.text("subscribe").split(",") if t.strip()]
        if len(topics) != 1:
            raise OptionError(
                f"schemaRegistry needs schemaSubject, or one topic in subscribe (found "
                f"{len(topics)}), whose subject is TOPIC-value"
            )
        subject = f"{topics[0]}-value"
    version = options.text("schemaVersion", "latest")
    if not re.fullmatch(r"latest|[1-9]\d{0,9}", version):
        raise OptionError(f"schemaVersion: found {version!r}, allowed: latest or a number from 1")
    return BodyOptions(
        kind=kind,
        schema=options.text("bodySchema"),
        reader_schema=options.text("bodyReaderSchema"),
        message=options.text("bodyMessage"),
        registry=registry,
        subject=subject,
        version=version,
        user=options.text("schemaRegistry.user"),
        password=options.text("schemaRegistry.password"),
    )


def _tags(text: str) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
    return () if "*" in tags else tags


def _selection(options: Given) -> Selection:
    given = options.has("assign", "subscribe", "subscribePattern")
    if len(given) > 1:
        raise OptionError(
            "only one of assign, subscribe and subscribePattern is allowed, "
            f"found {', '.join(given)}"
        )
    if not given:
        return Selection(SelectionKind.ALL)
    text = options.text(given[0])
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
        if not topics:
            raise OptionError("subscribe: no topic is named")
        return Selection(SelectionKind.SUBSCRIBE, topics)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern: {text!r} is no pattern: {error}") from None
        if not text:
            raise OptionError("subscribePattern: the pattern is empty")
        return Selection(SelectionKind.PATTERN, pattern=text)
    return Selection(SelectionKind.ASSIGN, queues=parse_assignment(text))


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name}: {text[:80]!r} is not JSON: {error}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise OptionError(f"{name}: {text[:80]!r} is not a JSON object with topics")
    return parsed


def _queue_id(name: str, found: object) -> int:
    text = str(found)
    if isinstance(found, bool) or not re.fullmatch(r"\d{1,9}", text):
        raise OptionError(f"{name}: found queue {found!r}, allowed is a number from 0")
    return int(text)


def parse_assignment(text: str) -> QueuesByTopic:
    """The option ``assign``: ``{"t": {"broker-a": [0, 1]}}``, or ``{"t": [0, 1]}`` for one broker.

    Raises:
        OptionError: another shape.
    """
    assigned: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, brokers in _json_object("assign", text).items():
        by_broker = brokers if isinstance(brokers, dict) else {ANY_BROKER: brokers}
        assigned[topic] = {}
        for broker, queues in by_broker.items() or [(ANY_BROKER, [])]:
            if not isinstance(queues, list) or not queues:
                raise OptionError(f"assign: {topic!r} has {queues!r}, allowed is a list of queues")
            assigned[topic][broker] = tuple(
                sorted({_queue_id("assign", queue) for queue in queues})
            )
    return assigned


def parse_offsets(name: str, text: str, low: int) -> OffsetsByTopic:
    """Numbers by queue: ``{"t": {"broker-a": {"0": 23}}}``, or ``{"t": {"0": 23}}`` for one broker.

    Args:
        name: the option, for errors.
        text: the JSON.
        low: the smallest number allowed.

    Raises:
        OptionError: another shape, or a number below ``low``.
    """
    parsed: dict[str, dict[str, dict[int, int]]] = {}
    for topic, value in _json_object(name, text).items():
        if topic == LOGS:
            continue  # an offset that a stream's progress showed
        if not isinstance(value, dict) or not value:
            raise OptionError(f"{name}: {topic!r} has {value!r}, allowed are queues with a number")
        nested = any(isinstance(inner, dict) for inner in value.values())
        by_broker = value if nested else {ANY_BROKER: value}
        parsed[topic] = {}
        for broker, queues in by_broker.items():
            if not isinstance(queues, dict) or not queues:
                raise OptionError(f"{name}: {topic!r} has {queues!r} beside brokers")
            parsed[topic][broker] = {}
            for queue, number in queues.items():
                if isinstance(number, bool) or not isinstance(number, int) or number < low:
                    raise OptionError(
                        f"{name}: {topic!r} queue {queue} has {number!r}, allowed is {low} and more"
                    )
                parsed[topic][broker][_queue_id(name, queue)] = number
    return parsed


def _bound(options: Given, side: str, default: str) -> Bound:
    by_time = options.text(f"{side}Timestamp")
    if by_time:
        number = options.number(f"{side}Timestamp", 0)
        assert number is not None
        return Bound(BoundKind.TIMESTAMP, timestamp_ms=number)
    by_times = options.text(f"{side}OffsetsByTimestamp")
    if by_times:
        name = f"{side}OffsetsByTimestamp"
        return Bound(BoundKind.TIMESTAMPS, parse_offsets(name, by_times, 0))
    name = f"{side}Offsets"
    text = options.text(name) or default
    word = text.lower()
    if word in ("earliest", "latest"):
        return Bound(BoundKind(word))
    if word == "group" and side == "starting":
        return Bound(BoundKind.GROUP)
    if not text.startswith("{"):
        words = "earliest, latest, group" if side == "starting" else "latest"
        raise OptionError(f"{name}: found {text[:80]!r}, allowed: {words}, or JSON")
    return Bound(BoundKind.OFFSETS, parse_offsets(name, text, EARLIEST))


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    if starting.kind is BoundKind.LATEST:
        raise OptionError("startingOffsets: latest is not allowed in a batch query")
    if ending.kind is BoundKind.EARLIEST:
        raise OptionError("endingOffsets: earliest is not allowed in a batch query")
    if starting.kind is BoundKind.OFFSETS and _holds(starting, LATEST):
        raise OptionError("startingOffsets: -1 (latest) is not allowed in a batch query")
    if ending.kind is BoundKind.OFFSETS and _holds(ending, EARLIEST):
        raise OptionError("endingOffsets: -2 (earliest) is not allowed in a batch query")
    if starting.kind is ending.kind and starting.kind in (BoundKind.OFFSETS, BoundKind.TIMESTAMPS):
        first, last = _queues(starting.offsets), _queues(ending.offsets)
        if first != last:
            raise OptionError(
                "starting and ending name different queues: "
                f"{sorted(first ^ last)[:10]} are only in one of them"
            )


def _holds(bound: Bound, number: int) -> bool:
    return any(
        number in queues.values()
        for brokers in bound.offsets.values()
        for queues in brokers.values()
    )


def _queues(offsets: OffsetsByTopic) -> set[tuple[str, str, int]]:
    return {
        (topic, broker, queue)
        for topic, brokers in offsets.items()
        for broker, queues in brokers.items()
        for queue in queues
    }
