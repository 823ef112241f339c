"""Structured Streaming over stores: offsets, how much a trigger takes, and the two readers.

A stream's offset is the next queue offset of every queue, as canonical JSON with sorted keys:
``{"TopicA": {"broker-a": {"0": 12, "1": 7}}}``; Spark compares offsets as text. What a batch reads
follows from its two offsets alone, so a restart repeats exactly the batch that was cut short.

A queue or topic that appears later starts at its beginning: at 0, or, if its first messages were
gone before it was ever seen, at its first offset, which is then entered into the offset before
anything is read, marked as such (`oberth.spark.plan.Begin`). A queue that disappears stays in the
offset.

The offset also says, under `oberth.spark.options.LOGS`, what tells a topic that was deleted and
made again meanwhile. Of stores on local disks that is where each log ended: what a stream has read
lies before that. Of object stores and live brokers, where the end costs more, it is the place in
the log of the record before each queue's next offset: what is stored later lies behind it. If that
record is found further behind, it is another topic's: a loss is reported, and where this is no
error the stream reads the new topic from its beginning.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from glob import has_magic
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from pyspark.sql.datasource import (
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from oberth.spark import plan as p
from oberth.spark.body_column import make_shape
from oberth.spark.open_source import open_source
from oberth.spark.options import LOGS, ReadOptions
from oberth.spark.packing import Cut, pack
from oberth.spark.partitions import RocketMQPartition, make_piece_reader, queue_cuts
from oberth.spark.predicates import EVERYTHING
from oberth.spark.runtime import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_LOG: Final = logging.getLogger(__name__)
IDLE_WAIT_S: Final = 0.1
"""How long a look for new messages waits before it says that there are none, and how often it
looks. Without waiting Spark asks a hundred times a second."""
IDLE_LOOK_S: Final = 0.004
SETTLE_S: Final = 0.25
"""How long every queue is looked at after the log has grown: its units come a moment later."""
LOOK_AT_ALL_S: Final = 1.0
"""How often every queue is looked at although the log has not grown."""
LIVE_IDLE_WAIT_S: Final = 1.0
"""The same for live brokers, which are asked over the network: less often the longer nothing comes.
"""
LIVE_LOOK_S: Final = 0.01
LIVE_LOOK_MAX_S: Final = 0.2


@runtime_checkable
class SupportsPublish(Protocol):
    """Brokers that keep offsets of groups."""

    def publish(self, group: str, offsets: Mapping[p.QueueKey, int]) -> None:
        """Gives a group the offsets of the messages that it reads next."""


@runtime_checkable
class SupportsAway(Protocol):
    """Brokers that may be away and come back."""

    def tell_away(self, known: Iterable[p.QueueKey], there: Iterable[p.QueueKey]) -> None:
        """Warns of brokers that were read from before and are not there."""


def rate_limit(available: Mapping[p.QueueKey, int], most: int) -> dict[p.QueueKey, int]:
    """How many messages of each queue a trigger takes: in proportion, together exactly ``most``.

    Args:
        available: messages that each queue has.
        most: messages of all queues together.
    """
    total = sum(available.values())
    if total <= most:
        return dict(available)
    taken = {key: count * most // total for key, count in available.items()}
    rest = most - sum(taken.values())
    for key in sorted(available):
        if rest <= 0:
            break
        if taken[key] < available[key]:
            taken[key] += 1
            rest -= 1
    return taken


class TriggerPlanner:
    """Offsets of a stream: where it starts, how far the next trigger goes, what that reads.

    Lives in the process that Spark keeps for a query, so it may remember things between calls; a
    restarted query begins with a new one.
    """

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._stores: p.QueueStores | None = None
        self._initial: p.Offsets | None = None
        self._target: p.Offsets | None = None  # of AvailableNow
        self._freezing = False
        self._last_trigger: float | None = None
        # A look that found nothing: from where, when, and the logs' ends before it, since when.
        self._idle_start: p.Offsets | None = None
        self._looked = self._grown = float("-inf")
        self._log_ends: tuple[int, ...] | None = None
        # Where logs ended when the offset was made that a trigger starts at, by broker; and whether
        # a queue of it turned out to be another.
        self._marks: dict[str, int] = {}
        self._made_again = False
        # Elsewhere: where the record before that offset lies, by queue.
        self._places: dict[p.QueueKey, int] = {}
        # The last queue that got a message because it was its turn, see `_within_bytes`.
        self._served: p.QueueKey | None = None
        # Queues that were read from and whose store is not there, which has been told.
        self._away: set[p.QueueKey] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    def stores(self) -> p.QueueStores:
        """The stores or brokers as they are now."""
        if self._stores is None or any(map(has_magic, self._options.paths)):
            self._stores = open_source(self._options)
        else:
            self._stores.refresh()
        return self._stores

    def initial(self) -> p.Offsets:
        """Where a new query starts. Spark asks twice, and must hear the same."""
        if self._initial is None:
            stores = self.stores()
            keys = p.select_queues(self._options, stores, must_exist=False)
            bounds = stores.bounds(keys)
            self._tell_without_queues(stores)
            found = p.bound_offsets(
                self._options.starting, "starting", self._options, stores, bounds
            )
            self._initial = {key: min(found[key], bounds[key][1]) for key in found}
        return self._initial

    def _tell_without_queues(self, stores: p.QueueStores) -> None:
        """Warns of stores whose messages no queue shows.

        No error, as for a batch query: whoever dispatches may begin after the stream.
        """
        selection = self._options.selection
        for store in stores.files if isinstance(stores, p.Stores) else ():
            if selection.reaches(store.broker) and store.lacks_queues():
                _LOG.warning(
                    "%s has no ConsumeQueue: a stream has none of its messages until its queues "
                    "are there, and reads those from their beginning",
                    store.root,
                )

    def latest(self) -> dict[p.QueueKey, tuple[int, int]]:
        """First and next offset of every queue, as of now.

        Queues of a live broker that does not answer are left out, except with AvailableNow, which
        promises to read everything.
        """
        stores = self.stores()
        keys = p.select_queues(self._options, stores, must_exist=False)
        return stores.bounds(keys, may_miss=self._may_miss())

    def _may_miss(self) -> bool:
        return self._target is None and not self._freezing

    def freeze(self) -> None:
        """Takes what is there now for all that this run will read (AvailableNow)."""
        self._freezing = True
        self._target = {key: high for key, (_, high) in self.latest().items()}

    def advance(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """`next_end` of offsets as Spark keeps them, with the ends of the logs.

        Raises:
            DataLossError: as `next_end`.
        """
        logs = start.get(LOGS, {})
        self._marks = {broker: each["log"] for broker, each in logs.items() if "log" in each}
        self._places = _before_from_json(logs)
        first = p.offsets_from_json(start)
        end = self.next_end(first, limit)
        if end == first and not self._made_again:
            return start
        logs = self._ends_of_logs() or _before_to_json(
            p.note_before(self._stores_or_open(), self._places, first, end)
        )
        return ({LOGS: logs} if logs else {}) | p.offsets_to_json(end)

    def _ends_of_logs(self) -> dict[str, Any]:
        """Where logs end, for an offset; nothing where that takes requests over a network."""
        stores = self._stores_or_open()
        ends = stores.log_ends() if isinstance(stores, p.Stores) else None
        if ends is None:
            return {}
        marks = dict(self._marks)
        for store, log_end in zip(stores.brokers, ends, strict=True):
            marks[store.broker] = max(log_end, marks.get(store.broker, 0))
        return {broker: {"log": marks[broker]} for broker in sorted(marks)}

    def next_end(self, start: p.Offsets, limit: ReadLimit) -> p.Offsets:
        """How far the next trigger goes; the start itself where it has nothing to do.

        Raises:
            DataLossError: with failOnDataLoss, a queue ends before the offset it was read to, or
                is that of a topic that was made again.
        """
        self._made_again = False
        if self._target is not None:
            return self._admit(start, self._clip_target(start, self.latest()), limit)
        live = self._options.connection is not None
        deadline = self._clock() + (LIVE_IDLE_WAIT_S if live else IDLE_WAIT_S)
        pause = LIVE_LOOK_S if live else IDLE_LOOK_S
        while True:
            end = start if self._is_idle(start) else self._look(start, limit)
            if end != start or self._made_again or self._clock() >= deadline:
                break
            time.sleep(pause)
            if live:
                pause = min(pause * 1.5, LIVE_LOOK_MAX_S)
        least = self._options.min_offsets_per_trigger
        now = self._clock()
        if least is not None and end != start and not self._made_again:
            waited = float("inf") if self._last_trigger is None else now - self._last_trigger
            count = sum(end[key] - start.get(key, 0) for key in end)
            if count < least and waited * 1000 < self._options.max_trigger_delay_ms:
                return start
        if end != start or self._last_trigger is None:
            self._last_trigger = now
        return end

    def _look(self, start: p.Offsets, limit: ReadLimit) -> p.Offsets:
        """How far the next trigger goes by what all queues have now."""
        stores = self.stores()
        now = self._clock()
        if isinstance(stores, p.Stores):
            # Taken before the queues are looked at: what comes meanwhile is behind it.
            ends = stores.log_ends()
            if ends != self._log_ends:
                self._log_ends, self._grown = ends, now
        end = self._admit(start, self._ends(start, self.latest()), limit)
        self._idle_start, self._looked = (dict(start) if end == start else None), now
        return end

    def _is_idle(self, start: p.Offsets) -> bool:
        """Whether nothing can have come since a look that found nothing."""
        now = self._clock()
        return (
            self._idle_start == start
            and self._log_ends is not None
            and now - self._looked < LOOK_AT_ALL_S
            and now - self._grown >= SETTLE_S
            and isinstance(self._stores, p.Stores)
            and self._stores.end_at(self._log_ends)
        )

    def _clip_target(
        self, start: p.Offsets, bounds: Mapping[p.QueueKey, tuple[int, int]]
    ) -> p.Offsets:
        assert self._target is not None
        ends = self._ends(start, bounds)
        known = {key: end for key, end in ends.items() if key in start or key in self._target}
        clipped: p.Offsets = {}
        for key, end in known.items():
            target, begin = min(end, self._target.get(key, end)), start.get(key, 0)
            # A queue that ends before its start has lost messages: it goes on where it ends now.
            clipped[key] = target if end < begin else max(target, begin)
        return clipped

    def _ends(self, start: p.Offsets, bounds: Mapping[p.QueueKey, tuple[int, int]]) -> p.Offsets:
        """The end of every queue, for queues of the start as well as new ones."""
        ends: p.Offsets = {}
        lost: list[str] = []
        away: set[p.QueueKey] = set()
        stores = self._stores_or_open()
        has_store = cache(stores.has_store) if isinstance(stores, p.Stores) else None
        if isinstance(stores, SupportsAway):
            stores.tell_away(start, bounds)
        asked, places = p.look_before(
            stores, self._places, start, bounds, may_miss=self._may_miss()
        )
        for key in sorted(start.keys() | bounds.keys()):
            low, high = bounds.get(key, (0, 0))
            if key not in start:
                # Its first messages were gone before it was seen: it starts where it does.
                ends[key] = p.Begin(low) if low > 0 else high
            elif (
                (key not in bounds and not stores.missing_is_lost)
                or (key in asked and key not in places)  # its broker does not answer
                or (high < start[key] and self._reaches(key, start[key]))
            ):
                ends[key] = start[key]
            elif high < start[key] and has_store is not None and not has_store(key.broker):
                if key not in self._away:
                    lost.append(f"{key}: it was read to {start[key]}, and its store is not there")
                away.add(key)
                ends[key] = start[key]  # where it goes on if the store comes back
            elif high < start[key]:
                lost.append(f"{key}: it was read to {start[key]} and ends at {high}")
                ends[key] = low if self._is_other(key, high, places) else high
            elif self._is_other(key, start[key], places):
                lost.append(f"{key}: it was read to {start[key]}, then its topic was made again")
                ends[key] = low
            else:
                ends[key] = start[key] if high == start[key] else high  # a Begin stays one
        if lost:
            p.report_loss(self.stores(), self._options, lost)
        self._away = away
        return ends

    def _is_other(
        self, key: p.QueueKey, offset: int, places: Mapping[p.QueueKey, int | None]
    ) -> bool:
        """Whether what a queue has before an offset was stored after the stream's last look."""
        mark, place = self._places.get(key), places.get(key)
        stores = self._stores_or_open()
        if mark is None and offset > 0 and isinstance(stores, p.Stores):
            mark = self._marks.get(key.broker)
            place = stores.place_of(key, offset - 1) if mark is not None else None
        # The newest record of a log that is being written may have been read and not been counted.
        is_other = place is not None and mark is not None and place > mark
        self._made_again |= is_other
        return is_other

    def _reaches(self, key: p.QueueKey, offset: int) -> bool:
        """Whether the log has what a queue does not show (yet) up to an offset that was read."""
        stores = self._stores_or_open()
        return isinstance(stores, p.Stores) and stores.seen_bounds(key)[1] >= offset

    def _admit(self, start: p.Offsets, ends: p.Offsets, limit: ReadLimit) -> p.Offsets:
        """Ends within a limit."""
        new = {k: end for k, end in ends.items() if k not in start and isinstance(end, p.Begin)}
        available = {
            key: max(end - start.get(key, 0), 0) for key, end in ends.items() if key not in new
        }
        if isinstance(limit, ReadMaxRows):
            taken = rate_limit(available, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            taken = self._within_bytes(start, available, limit.max_bytes)
        else:
            return ends
        admitted = {
            key: start.get(key, 0) + taken[key] if available[key] else ends[key]
            for key in available
        }
        return dict(sorted({**admitted, **new}.items()))

    def _stores_or_open(self) -> p.QueueStores:
        return self.stores() if self._stores is None else self._stores

    def _within_bytes(
        self, start: p.Offsets, available: Mapping[p.QueueKey, int], most: int
    ) -> dict[p.QueueKey, int]:
        """How many messages of each queue have about ``most`` bytes together; one at least.

        Each queue has a share by what it has. One queue, the next in each trigger, gets a message
        whatever its share is: one that has more than ``most`` bytes comes alone. What is left goes
        to the queues behind it whose share is less than their next message.
        """
        assert self._stores is not None
        queues = {key: self._stores.queue(key) for key, count in available.items() if count}
        sizes = {
            key: queue.record_bytes(start.get(key, 0), start.get(key, 0) + available[key])
            for key, queue in queues.items()
        }
        total = sum(sizes.values())
        if total <= most:
            return dict(available)
        keys = sorted(queues)
        behind = bisect_right(keys, self._served) if self._served is not None else 0
        keys = keys[behind:] + keys[:behind]
        taken = dict.fromkeys(available, 0)

        def next_record(key: p.QueueKey) -> tuple[int, int]:
            """Its messages, which are several in a batch, and its bytes."""
            first = start.get(key, 0)
            size = queues[key].record_bytes(first, first + 1)
            return max(queues[key].count_within(first, available[key], size), 1), size

        self._served = keys[0]
        taken[keys[0]], least = next_record(keys[0])
        room = left = most - least
        if room <= 0:
            return taken
        for key, queue in queues.items():
            first, share = start.get(key, 0), sizes[key] * room // total
            has = least if key == keys[0] else 0
            taken[key] = max(taken[key], queue.count_within(first, available[key], has + share))
            if taken[key]:
                size = queue.record_bytes(first, first + taken[key])
                left -= min(max(size - has, 0), share)  # it may be an estimate
        for key in keys:
            if not taken[key]:
                count, size = next_record(key)
                if size > left:
                    break
                self._served, taken[key], left = key, count, left - size
        return taken

    def publish(self, end: p.Offsets) -> None:
        """Gives a batch's end, the next offsets, to the consumer group (commitOffsetsToGroup)."""
        if self._options.commit_to_group:
            stores = self._stores_or_open()
            assert isinstance(stores, SupportsPublish)
            stores.publish(self._options.consumer_group, end)

    def plans(
        self, start: p.Offsets, end: p.Offsets
    ) -> tuple[p.QueueStores, list[p.PartitionPlan]]:
        """What a batch from start to end reads, in partitions.

        Raises:
            DataLossError: with failOnDataLoss, some of it is gone.
        """
        stores = self.stores()
        wanted = {
            key: offset
            for key, offset in end.items()
            if (key in start and offset > start[key]) or (key not in start and offset > 0)
        }
        bounds = stores.bounds(wanted)
        begun = {k for k, end in wanted.items() if k not in start and isinstance(end, p.Begin)}
        wanted = {key: offset for key, offset in wanted.items() if key not in begun}
        ranges = p.check_range(stores, self._options, start, wanted, bounds)
        stores.prepare(ranges)
        cuts: list[Cut] = []
        by_broker = p.by_broker(ranges)
        for number, store in enumerate(stores.brokers):
            own = by_broker.get(store.broker, {})
            cuts += queue_cuts(number, stores, own)
        return stores, pack(cuts, self._options, together=True)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams with tasks: readMode=executor."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.shape = make_shape(options, schema)
        self.planner = TriggerPlanner(options)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts."""
        return p.offsets_to_json(self.planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """What maxOffsetsPerTrigger or maxBytesPerTrigger say."""
        return read_limit(self.options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next trigger goes."""
        return self.planner.advance(start, limit)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of every queue as of now, for the lag in a query's progress."""
        return p.offsets_to_json({key: high for key, (_, high) in self.planner.latest().items()})

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing new is seen."""
        self.planner.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The work of a batch."""
        stores, plans = self.planner.plans(p.offsets_from_json(start), p.offsets_from_json(end))
        tasks = stores.for_tasks()
        return [RocketMQPartition(plan.pieces, tasks, EVERYTHING) for plan in plans]

    def commit(self, end: dict[str, Any]) -> None:
        """The batch up to here is done: Spark says so when the next one begins."""
        self.planner.publish(p.offsets_from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow batches."""
        assert isinstance(partition, RocketMQPartition)
        settle_worker()
        shape = self.shape
        reader = make_piece_reader(partition.stores, self.options, shape.fields, shape.schema)
        return shape.shown(reader.read(partition.pieces))


class RocketMQDriverStreamReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams without tasks: readMode=driver, for few messages with little delay.

    Rows go from this process straight into Spark's block manager, which saves starting a Python
    worker for every batch.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.shape = make_shape(options, schema)
        self.planner = TriggerPlanner(options)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts."""
        return p.offsets_to_json(self.planner.initial())

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """What there is after an offset, within the limits of a trigger, and where that ends."""
        end = self.planner.advance(start, read_limit(self.options))
        return self._rows(p.offsets_from_json(start), p.offsets_from_json(end)), end

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing new is seen."""
        self.planner.freeze()

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        """The same once more, after a failure."""
        return self._rows(p.offsets_from_json(start), p.offsets_from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        """The batch up to here is done: Spark says so when the next one begins."""
        self.planner.publish(p.offsets_from_json(end))

    def _rows(self, start: p.Offsets, end: p.Offsets) -> Iterator[Any]:
        if start == end:
            return iter([])
        stores, plans = self.planner.plans(start, end)
        shape = self.shape
        tasks = dict(enumerate(stores.for_tasks()))
        reader = make_piece_reader(tasks, self.options, shape.fields, shape.schema)
        rows = (batch for plan in plans for batch in reader.read(plan.pieces))
        # A list: Spark copies the iterator, which a generator would not survive.
        return iter(list(shape.shown(rows)))


def _before_to_json(places: Mapping[p.QueueKey, int]) -> dict[str, Any]:
    """Where the records before offsets lie, as an offset has it under `LOGS`."""
    return {
        broker: {
            "before": {topic: queues[broker] for topic, queues in p.offsets_to_json(own).items()}
        }
        for broker, own in p.by_broker(dict(sorted(places.items()))).items()
    }


def _before_from_json(logs: Mapping[str, Any]) -> dict[p.QueueKey, int]:
    return {
        p.QueueKey(topic, broker, int(queue)): place
        for broker, each in logs.items()
        for topic, queues in each.get("before", {}).items()
        for queue, place in queues.items()
    }


def read_limit(options: ReadOptions) -> ReadLimit:
    """How much a trigger takes at most."""
    if options.max_offsets_per_trigger is not None:
        return ReadMaxRows(options.max_offsets_per_trigger)
    if options.max_bytes_per_trigger is not None:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    return ReadAllAvailable()
