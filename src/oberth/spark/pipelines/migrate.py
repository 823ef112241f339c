"""Topics moved from Kafka to RocketMQ and back, each message once, with the offsets of groups.

Spark's Kafka source and sink do Kafka's side; their jars are the user's to give. A batch is a range of
offsets of each partition, noted with the target's ends before anything is sent. Partition N is queue N of
one broker; from RocketMQ it is the Nth queue of all brokers, by broker and queue. What was sent is named
SOURCE/TOPIC/RUN/N/OFFSET, in the property PUBLISHED_AS or the header of this name, and whenever it is
not known what arrived, the target is read from the noted ends. RUN is this migration's alone: another
one may move a topic of the same name into the same target.

    migrate.json               what is moved to where, and RUN; those begun before there was one have none
    queues.json                which queue each partition is; queues that come later come last
    batches/NNNNNNNN.json      the ranges of a batch and the target's ends, before it is sent
    batches/NNNNNNNN.done      its receipt: which offsets became which, as runs

    Kafka              RocketMQ
    value              body; null and empty ones, which RocketMQ has not, one zero byte and the property
                       KAFKA_VALUE (null or empty)
    key                KEYS and the sharding key where it is text without blanks and control
                       characters, else the property KAFKA_KEY, in base64
    headers            properties; those of other bytes than text, of RocketMQ's own names, and those
                       that come twice in the property KAFKA_HEADERS: JSON, values in base64
    timestamp          property KAFKA_TIMESTAMP, ms
    back: properties   headers; KEYS is the key, and the store time the header ROCKETMQ_TIMESTAMP

A group's offset becomes the place of the first message at or behind it: places are looked up in the
receipts, since Kafka's offsets have gaps where RocketMQ's have none.
"""  # noqa: E501 - the table

from __future__ import annotations

import json
import re
import secrets
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oberth.client.blocking_face import LOOP
from oberth.client.messages import Message
from oberth.errors import DataLossError, OptionError, StoreError
from oberth.remoting.bodies.base import MessageQueue
from oberth.spark.connection import Connection, Patience
from oberth.spark.pipelines.exact_send import PUBLISHED_AS, ExactSender
from oberth.spark.pipelines.export.ledger import Ledger
from oberth.spark.pipelines.export.places import LocalPlace
from oberth.spark.pipelines.kafka_cluster import Kafka
from oberth.spark.pipelines.kafka_records import FROM_KAFKA, message_of, record_of
from oberth.spark.pipelines.tasks import job_group, wait_for_tasks
from oberth.store.offline.layout import local_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS: Final = 100_000
"""Messages of a partition in a batch."""
SENT_AT_ONCE: Final = 2_000
STEPS: Final = ("intend", "send", "finish", "groups")
_GROUP: Final = "oberth-migrate"
_TIMEOUT_S: Final = 60
_TRIES: Final = 5
# Records that others wrote may have no headers, or some and none of this name.
_NAME: Final = f"cast(get(filter(headers, h -> h.key = '{PUBLISHED_AS}'), 0).value as string)"
_PLACE: Final = re.compile(r"(0|[1-9][0-9]{0,8})/(0|[1-9][0-9]{0,17})")
"""A partition and an offset, as names end."""

Runs = list[tuple[int, int, int]]
"""Neighbouring messages: first offset there, first offset here, how many."""


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a migration: Kafka's bootstrap servers, or name servers.

    Attributes:
        kafka: whether it is Kafka.
        address: ``host:port``, several with commas (Kafka) or semicolons.
        topic: the topic there.
    """

    kafka: bool
    address: str
    topic: str


@dataclass(slots=True)
class MigrateReport:
    """What a run has moved, and what the ledger has in all.

    Attributes:
        moved: messages of this run.
        already: messages of batches taken up again that had arrived before.
        total: of all runs.
        partitions: by number the next offset there and here.
        groups: by group and partition the offset there and here.
        seconds: this run took.
    """

    moved: int = 0
    already: int = 0
    total: int = 0
    partitions: dict[str, list[int]] = field(default_factory=dict)
    groups: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "moved": self.moved, "already": self.already, "total": self.total,
            "partitions": self.partitions, "groups": self.groups,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


# Places.


def runs_of(pairs: Iterable[tuple[int, int]]) -> Runs:
    """Pairs of offsets, in order, as runs."""
    runs: Runs = []
    for there, here in pairs:
        if runs:
            first, begin, count = runs[-1]
            if there == first + count and here == begin + count:
                runs[-1] = (first, begin, count + 1)
                continue
        runs.append((there, here, 1))
    return runs


def place_of_offset(runs: Sequence[Sequence[int]], offset: int) -> int | None:
    """Where the first message at or behind an offset is here; None where none was moved.

    Args:
        runs: of one partition, in order.
        offset: of the other side.
    """
    at = bisect_right(runs, offset, key=lambda run: run[0]) - 1
    if at >= 0 and offset < runs[at][0] + runs[at][2]:
        return runs[at][1] + offset - runs[at][0]
    if at + 1 < len(runs):
        return runs[at + 1][1]
    return runs[-1][1] + runs[-1][2] if runs else None


def migrate(
    session: SparkSession,
    source: Side,
    target: Side,
    ledger_directory: str,
    *,
    connection: Connection,
    live_options: Mapping[str, str] | None = None,
    kafka_options: Mapping[str, str] | None = None,
    groups: Sequence[str] = (),
    step: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MigrateReport:
    """Moves what a topic has behind the last run's end, and then the offsets of groups.

    Args:
        session: with the jars of Spark's Kafka source.
        source: from where; one of the two sides is Kafka.
        target: to where. A topic that is missing is made.
        ledger_directory: what this migration remembers; another run goes on.
        connection: how to reach RocketMQ.
        live_options: the same as options of ``format("rocketmq")``.
        kafka_options: Kafka's own, such as ``kafka.security.protocol``.
        groups: consumer groups whose offsets are mapped and set, after everything is moved.
        step: called with the name of each step before it.
        progress: called with the messages that are done and all of this run.

    Raises:
        OptionError: no such topic, no jars, or not what the ledger's first run was given.
        DataLossError: the source has deleted what was not moved yet.
        StoreLockedError: another process has the ledger.
        StoreError: something was not sent, as often as it was tried.
    """
    if source.kafka == target.kafka:
        raise OptionError("migrate: one side is kafka://, the other rocketmq://")
    started = time.perf_counter()
    ledger = Ledger(LocalPlace(local_directory(ledger_directory, "ledger")))
    kafka_side = source if source.kafka else target
    kafka = Kafka(session, kafka_side.address, kafka_options or {})
    kind = _FromKafka if source.kafka else _ToKafka
    with ledger.locked():
        run = kind(
            session, source, target, ledger, kafka, connection, dict(live_options or {}),
            step or (lambda name: None), progress,
        )  # fmt: skip
        report = run.run(groups)
    report.seconds = time.perf_counter() - started
    return report


class _Migration(ABC):
    """One call of `migrate`."""

    def __init__(
        self,
        session: SparkSession,
        source: Side,
        target: Side,
        ledger: Ledger,
        kafka: Kafka,
        connection: Connection,
        live_options: dict[str, str],
        step: Callable[[str], None],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.session = session
        self.source = source
        self.target = target
        self.ledger = ledger
        self.kafka = kafka
        self.connection = connection
        self.live = live_options
        self.step = step
        self.progress = progress
        self.report = MigrateReport()
        self.begun = time.monotonic()
        self.job = f"oberth-migrate-{ledger.into}"  # Spark's group of what sends
        self.runs: dict[int, Runs] = {}
        self.prefix = ""
        self.queues: list[MessageQueue] = []

    # What each direction does.

    @abstractmethod
    def open(self) -> None:
        """Knows the queues and partitions, and makes the target's."""

    @abstractmethod
    def source_bounds(self) -> dict[int, tuple[int, int]]:
        """The first and the next offset of each partition of the source."""

    @abstractmethod
    def target_ends(self) -> list[int]:
        """The next offset of each partition of the target."""

    @abstractmethod
    def late_s(self) -> float:
        """How long the target may still get what was sent by tasks that have ended, in s."""

    @abstractmethod
    def send(
        self, ranges: dict[int, tuple[int, int]], ends: list[int], *, resumed: bool
    ) -> tuple[dict[int, list[tuple[int, int]]], int]:
        """Sends ranges; gives pairs of offsets, there and here, and how many had arrived before."""

    @abstractmethod
    def move_group(self, group: str) -> dict[int, tuple[int, int]]:
        """Maps and sets a group's offsets; gives both by partition."""

    # What both do.

    def run(self, groups: Sequence[str]) -> MigrateReport:
        report = self.report
        self._check()
        self.open()
        number, next_offsets = self._past()
        begun = self.ledger.read(f"batches/{number:08d}.json")
        if begun is not None:
            ranges = {int(n): (low, high) for n, (low, high) in begun["ranges"].items()}
            self._batch(number, ranges, begun["ends"], next_offsets, resumed=True)
            number += 1
        bounds = self.source_bounds()
        for partition, (low, high) in bounds.items():
            there = next_offsets.get(partition, low)
            if there < low:
                raise DataLossError(
                    f"{self.source.topic} partition {partition}: {there} to {low} is gone and was "
                    "not moved"
                )
            if there > high:
                raise DataLossError(
                    f"{self.source.topic} partition {partition} ends at {high} and was moved up "
                    f"to {there}: it is another topic of that name"
                )
            next_offsets[partition] = there
        todo = sum(high - next_offsets[n] for n, (_, high) in bounds.items())
        done = 0
        while True:
            ranges = {
                n: (next_offsets[n], min(high, next_offsets[n] + BATCH_ROWS))
                for n, (_, high) in bounds.items()
                if next_offsets[n] < high
            }
            if not ranges:
                break
            self.step("intend")
            ends = self.target_ends()
            self.ledger.write(f"batches/{number:08d}.json", {"ranges": ranges, "ends": ends})
            self._batch(number, ranges, ends, next_offsets, resumed=False)
            number += 1
            done += sum(high - low for low, high in ranges.values())
            if self.progress is not None:
                self.progress(done, todo)
        for partition in bounds:
            here = place_of_offset(self.runs.get(partition, []), next_offsets[partition])
            report.partitions[str(partition)] = [next_offsets[partition], here or 0]
        self.step("groups")
        for group in groups:
            moved = self.move_group(group)
            report.groups[group] = {str(n): [*places] for n, places in sorted(moved.items())}
        if groups:
            self.ledger.write("groups.json", report.groups)
        return report

    def _check(self) -> None:
        what = {
            "source": [self.source.kafka, self.source.address, self.source.topic],
            "target": [self.target.kafka, self.target.address, self.target.topic],
        }
        present = self.ledger.read("migrate.json")
        if present is None:
            present = {**what, "run": secrets.token_hex(8)}
            self.ledger.write("migrate.json", present)
        if any(present[name] != value for name, value in what.items()):
            raise OptionError(
                f"{self.ledger.into}: was begun with {present['source']} to {present['target']}; "
                "give another ledger"
            )
        self.prefix = name_prefix(self.source, present.get("run", ""))

    def known_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that the runs before had, in the order of the partitions."""
        present = self.ledger.read("queues.json") or {"queues": []}
        return [
            MessageQueue(topic=topic, broker_name=broker, queue_id=number)
            for broker, number in present["queues"]
        ]

    def number_queues(self, found: Sequence[MessageQueue]) -> None:
        """Gives each queue its partition, those of the runs before the ones that they had.

        Args:
            found: the topic's queues, sorted.

        Raises:
            OptionError: one that a run before had is not there.
        """
        known = self.known_queues(found[0].topic)
        if gone := sorted(set(known).difference(found)):
            raise OptionError(
                f"topic {gone[0].topic!r}: queue {gone[0].queue_id} of {gone[0].broker_name} was "
                "part of this migration and is not there now"
            )
        self.queues = [*known, *(queue for queue in found if queue not in set(known))]
        if self.queues != known:
            self.ledger.write(
                "queues.json",
                {"queues": [[queue.broker_name, queue.queue_id] for queue in self.queues]},
            )

    def _past(self) -> tuple[int, dict[int, int]]:
        """The next batch's number, and where each partition is to go on."""
        number = 0
        next_offsets: dict[int, int] = {}
        for name in self.ledger.names("batches"):
            if not name.endswith(".done"):
                continue
            receipt = self.ledger.read(f"batches/{name}") or {}
            number = int(name[:8]) + 1
            for partition, end in receipt["next"].items():
                next_offsets[int(partition)] = end
            self._take(receipt["runs"])
        return number, next_offsets

    def _take(self, runs: Mapping[str, Sequence[Sequence[int]]]) -> None:
        for partition, own in runs.items():
            self.runs.setdefault(int(partition), []).extend((a, b, n) for a, b, n in own)
            self.report.total += sum(count for _, _, count in own)

    def _batch(
        self,
        number: int,
        ranges: dict[int, tuple[int, int]],
        ends: list[int],
        next_offsets: dict[int, int],
        *,
        resumed: bool,
    ) -> None:
        self.step("send")
        if resumed:  # here, not in every task
            self.wait_until_arrived(self.begun)
        pairs, already = self.send(ranges, ends, resumed=resumed)
        self.step("finish")
        runs = {str(n): runs_of(sorted(own)) for n, own in sorted(pairs.items())}
        after = {str(n): high for n, (_, high) in ranges.items()}
        self.ledger.write(f"batches/{number:08d}.done", {"next": after, "runs": runs})
        next_offsets.update({n: high for n, (_, high) in ranges.items()})
        self._take(runs)
        count = sum(len(own) for own in pairs.values())
        self.report.moved += count - already
        self.report.already += already

    def wait_until_arrived(self, ended: float) -> None:
        """Waits until nothing that was sent before can still reach the target.

        Args:
            ended: when who sent it had ended, by the monotonic clock; tasks of this session may
                run on.

        Raises:
            StoreError: some of those do not end.
        """
        if wait_for_tasks(self.session.sparkContext, self.job):
            ended = time.monotonic()
        self._let_pass(max(0.0, ended + self.late_s() - time.monotonic()))

    def _let_pass(self, seconds: float) -> None:
        """Waits while a target may still carry out what it was sent."""
        time.sleep(seconds)


def name_prefix(source: Side, run: str) -> str:
    """What the names of a migration's messages begin with; behind it are partition and offset.

    Args:
        source: from where.
        run: what no other migration has; "" for one that was begun before there was such a part.
    """
    kind = FROM_KAFKA if source.kafka else "rocketmq/"
    return f"{kind}{source.topic}/{run}/" if run else f"{kind}{source.topic}/"


def _place_named(prefix: str, name: str | None) -> tuple[int, int] | None:
    """The partition and offset in a name of ours; None for one that anybody else gave."""
    if name is None or not name.startswith(prefix):
        return None
    found = _PLACE.fullmatch(name.removeprefix(prefix))
    return (int(found[1]), int(found[2])) if found else None


async def _target_queues(
    sender: ExactSender, topic: str, count: int, broker: str
) -> list[MessageQueue]:
    """The first queues of a topic on one broker; a topic that is missing is made with so many.

    Args:
        sender: asks.
        topic: which.
        count: how many are wanted.
        broker: whose; "" for the first by name.

    Raises:
        OptionError: it has fewer than that.
    """
    found = await sender.queues(topic)
    if not found:
        masters = await sender.admin.masters()
        first = masters.get(broker) or masters[min(masters)]
        await sender.admin.create_topic(topic, queue_nums=count, broker_addr=first)
        patience = Patience(_TIMEOUT_S * 1000, 0.05, 1.0)  # for the name server to hear of it
        while not (found := await sender.queues(topic)):
            if not await patience.wait():
                raise OptionError(f"topic {topic!r} was made and is not there")
    broker = broker or min(queue.broker_name for queue in found)
    own = [queue for queue in found if queue.broker_name == broker]
    if len(own) < count:
        raise OptionError(
            f"topic {topic!r} has {len(own)} queues on {broker}, {count} partitions need as many"
        )
    return own[:count]


class _FromKafka(_Migration):
    """Kafka to RocketMQ: tasks send, each the records of one partition in order."""

    def open(self) -> None:
        self._count = self.kafka.partitions(self.source.topic)
        known = self.known_queues(self.target.topic)

        async def ask() -> list[MessageQueue]:
            async with ExactSender(self.connection, _GROUP) as sender:
                broker = known[0].broker_name if known else ""
                return await _target_queues(sender, self.target.topic, self._count, broker)

        self.number_queues(LOOP.call(ask))

    def source_bounds(self) -> dict[int, tuple[int, int]]:
        return self.kafka.bounds(self.source.topic, self._count)

    def target_ends(self) -> list[int]:
        async def ask() -> list[int]:
            async with ExactSender(self.connection, _GROUP) as sender:
                return await sender.ends(self.queues)

        return LOOP.call(ask)

    def late_s(self) -> float:
        return self.connection.timeout_ms / 1000

    def send(
        self, ranges: dict[int, tuple[int, int]], ends: list[int], *, resumed: bool
    ) -> tuple[dict[int, list[tuple[int, int]]], int]:
        job = _SendJob(self.connection, self.prefix, self.queues, ends, resumed)
        frame = self.kafka.read(self.source.topic, ranges).selectExpr(
            "partition", "offset", "key", "value", "headers",
            "cast(unix_millis(timestamp) as bigint) as timestamp",
        )  # fmt: skip
        pairs: dict[int, list[tuple[int, int]]] = {}
        already = 0
        with job_group(self.session.sparkContext, self.job, "migrate"):
            sent = frame.rdd.mapPartitions(job).collect()
        for partition, own, before in sent:
            pairs.setdefault(partition, []).extend(own)
            already += before
        return pairs, already

    def move_group(self, group: str) -> dict[int, tuple[int, int]]:
        committed = self.kafka.group_offsets(group, self.source.topic, self._count)
        mapped = {
            n: (offset, here)
            for n, offset in committed.items()
            if (here := place_of_offset(self.runs.get(n, []), offset)) is not None
        }

        async def commit() -> None:
            async with ExactSender(self.connection, _GROUP) as sender:
                for addr in (await sender.admin.masters()).values():
                    if group not in await sender.admin.all_groups(addr):
                        await sender.admin.create_group(group, broker_addr=addr)
                for n, (_, here) in mapped.items():
                    await sender.admin.update_consume_offset(group, self.queues[n], here)

        LOOP.call(commit)
        return mapped


@dataclass(frozen=True, slots=True)
class _SendJob:
    """In a task: sends the records of its partitions."""

    connection: Connection
    prefix: str
    queues: list[MessageQueue]
    ends: list[int]
    resumed: bool

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[int, list[tuple[int, int]], int]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        # An attempt before this one may have sent some. What runs before this one had sent has
        # arrived: the driver has waited for that.
        again = context is not None and context.attemptNumber() > 0
        resumed = self.resumed or again
        sender = ExactSender(
            self.connection, _GROUP, max_message_size=64 << 20, others_ended=not again
        )
        LOOP.call(sender.__aenter__)
        try:
            held: list[Any] = []
            for row in rows:
                held.append(row)
                if len(held) == SENT_AT_ONCE:
                    yield from self._send(sender, held, resumed)
                    held = []
            yield from self._send(sender, held, resumed)
        finally:
            LOOP.call(lambda: sender.__aexit__(None, None, None))

    def _send(
        self, sender: ExactSender, rows: list[Any], resumed: bool
    ) -> Iterator[tuple[int, list[tuple[int, int]], int]]:
        by_queue: dict[MessageQueue, list[Message]] = {}
        offsets: dict[str, tuple[int, int]] = {}
        for row in rows:
            queue = self.queues[row["partition"]]
            name = f"{self.prefix}{row['partition']}/{row['offset']}"
            offsets[name] = row["partition"], row["offset"]
            by_queue.setdefault(queue, []).append(message_of(row, queue.topic, name))
        # A batch that is taken up again may know fewer queues than there are by now.
        base = dict(zip(self.queues, self.ends, strict=False))
        arrived = LOOP.call(lambda: sender.send(base, by_queue, resumed=resumed))
        for queue, found in arrived.items():
            pairs = [(offsets[name][1], here) for name, here in found.offsets.items()]
            yield self.queues.index(queue), pairs, found.already


class _ToKafka(_Migration):
    """RocketMQ to Kafka: Spark's sink sends, and the target is read until it has everything."""

    def open(self) -> None:
        async def ask() -> list[MessageQueue]:
            async with ExactSender(self.connection, _GROUP) as sender:
                return await sender.queues(self.source.topic)

        found = LOOP.call(ask)
        if not found:
            raise OptionError(f"there is no topic {self.source.topic!r}")
        self.number_queues(found)
        self._count = len(self.queues)
        if self.kafka.partitions(self.target.topic, make=self._count) < self._count:
            raise OptionError(
                f"Kafka's topic {self.target.topic!r} has fewer partitions than "
                f"{self.source.topic!r} has queues: {self._count}"
            )

    def source_bounds(self) -> dict[int, tuple[int, int]]:
        async def ask() -> dict[int, tuple[int, int]]:
            async with ExactSender(self.connection, _GROUP) as sender:
                return {
                    n: (await sender.admin.min_offset(queue), await sender.admin.max_offset(queue))
                    for n, queue in enumerate(self.queues)
                }

        return LOOP.call(ask)

    def target_ends(self) -> list[int]:
        bounds = self.kafka.bounds(self.target.topic, self._count)
        return [bounds[n][1] for n in range(self._count)]

    def late_s(self) -> float:
        return self.kafka.delivery_timeout_s

    def send(
        self, ranges: dict[int, tuple[int, int]], ends: list[int], *, resumed: bool
    ) -> tuple[dict[int, list[tuple[int, int]]], int]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        rows = self._records(ranges)
        expected = sum(high - low for low, high in ranges.values())
        before: int | None = None
        count = 0
        failure = None
        for _ in range(_TRIES):
            if failure is not None:  # of one task; others run on
                self.wait_until_arrived(time.monotonic())
            arrived = self._arrived(ranges, ends)
            count = sum(len(own) for own in arrived.values())
            if before is None:
                before = count
            elif failure is None and count < expected:
                expected = rows.count()  # a compacted topic's queues have gaps
            if count >= expected:
                return arrived, before if resumed else 0
            known = {(n, there) for n, own in arrived.items() for there, _ in own}
            try:
                self._write(rows, known)
            except (PySparkException, Py4JJavaError) as error:
                failure = error
            else:
                failure = None
        raise StoreError(
            f"{expected - count} of {expected} messages are not in Kafka's topic "
            f"{self.target.topic}, after {_TRIES} tries"
        ) from failure

    def _records(self, ranges: dict[int, tuple[int, int]]) -> DataFrame:
        """The messages of ranges with partition and place."""
        ids: dict[str, list[int]] = {}
        bounds: tuple[dict[str, dict[str, int]], ...] = ({}, {})
        for n, span in ranges.items():
            queue = self.queues[n]
            ids.setdefault(queue.broker_name, []).append(queue.queue_id)
            for side, offset in zip(bounds, span, strict=True):
                side.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
        reader = self.session.read.format("rocketmq").options(**self.live)
        return (
            reader.option("assign", json.dumps({self.source.topic: ids}))
            .option("startingOffsets", json.dumps({self.source.topic: bounds[0]}))
            .option("endingOffsets", json.dumps({self.source.topic: bounds[1]}))
            .option("columns", "broker,partition,offset,key,value,properties,timestamp")
            .load()
        )

    def _write(self, rows: DataFrame, known: set[tuple[int, int]]) -> None:
        from pyspark.sql.types import (
            ArrayType,
            BinaryType,
            IntegerType,
            StringType,
            StructField,
            StructType,
        )

        numbers = {(q.broker_name, q.queue_id): n for n, q in enumerate(self.queues)}
        job = _RecordJob(self.prefix, numbers, frozenset(known))
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        schema = StructType(
            [
                StructField("key", BinaryType()), StructField("value", BinaryType()),
                StructField("headers", ArrayType(header)), StructField("partition", IntegerType()),
            ]
        )  # fmt: skip
        plain = rows.selectExpr(
            "broker", "partition", "offset", "key", "value", "properties",
            "cast(unix_millis(timestamp) as bigint) as timestamp",
        )  # fmt: skip
        # Each queue's messages by one task, in order, however the source was cut.
        ordered = plain.repartition(len(numbers), "broker", "partition").sortWithinPartitions(
            "broker", "partition", "offset"
        )
        made = self.session.createDataFrame(ordered.rdd.mapPartitions(job), schema)
        with job_group(self.session.sparkContext, self.job, "migrate"):
            self.kafka.write(made, self.target.topic)

    def _arrived(
        self, ranges: dict[int, tuple[int, int]], ends: list[int]
    ) -> dict[int, list[tuple[int, int]]]:
        """Which messages of a batch the target has, and where; of two of one name the first."""
        now = self.target_ends()
        wanted = {n: (ends[n], now[n]) for n in ranges if now[n] > ends[n]}
        if not wanted:
            return {}
        found: dict[tuple[int, int], int] = {}
        named = self.kafka.read(self.target.topic, wanted).selectExpr("offset", f"{_NAME} as name")
        for row in named.collect():
            key = _place_named(self.prefix, row["name"])
            if key is None:
                continue
            low, high = ranges.get(key[0], (0, 0))
            if low <= key[1] < high:
                found[key] = min(found.get(key, row["offset"]), row["offset"])
        pairs: dict[int, list[tuple[int, int]]] = {}
        for (partition, offset), here in sorted(found.items()):
            pairs.setdefault(partition, []).append((offset, here))
        return pairs

    def move_group(self, group: str) -> dict[int, tuple[int, int]]:
        async def ask() -> dict[int, int]:
            async with ExactSender(self.connection, _GROUP) as sender:
                found = {}
                for n, queue in enumerate(self.queues):
                    offset = await sender.admin.consumer_offset(group, queue)
                    if offset is not None and offset >= 0:
                        found[n] = offset
                return found

        mapped = {
            n: (offset, here)
            for n, offset in LOOP.call(ask).items()
            if (here := place_of_offset(self.runs.get(n, []), offset)) is not None
        }
        self.kafka.set_group_offsets(
            group, self.target.topic, {n: here for n, (_, here) in mapped.items()}
        )
        return mapped


@dataclass(frozen=True, slots=True)
class _RecordJob:
    """In a task: messages as Kafka's records, those that have not arrived."""

    prefix: str
    numbers: Mapping[tuple[str, int], int]
    known: frozenset[tuple[int, int]]

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            partition = self.numbers[row["broker"], row["partition"]]
            if (partition, row["offset"]) in self.known:
                continue
            record = record_of(row.asDict(), f"{self.prefix}{partition}/{row['offset']}")
            headers = [(each["key"], each["value"]) for each in record["headers"]]
            yield record["key"], record["value"], headers, partition
