"""``format("rocketmq")``: a store as a table, for batch and streaming queries.

Spark makes a `RocketMQDataSource` wherever it needs one and pickles readers to tasks, so nothing
here holds an open file. Planning happens on the driver: which stores, queues and offsets; what
filters and options rule out by ConsumeQueue, Index and times; how that is cut into partitions.
Tasks only read (`oberth.spark.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from oberth.errors import OptionError
from oberth.formats.consume_queue import PRE_BLANK_SIZE
from oberth.formats.names import is_lmq
from oberth.spark import plan as p
from oberth.spark.body_column import make_shape, schema_of
from oberth.spark.index_lookup import IndexFiles
from oberth.spark.options import (
    BoundKind,
    ReadMode,
    ReadOptions,
    ReadOrder,
    parse_read_options,
    schema_options,
)
from oberth.spark.packing import Cut, pack
from oberth.spark.partitions import RocketMQPartition, make_piece_reader, queue_cuts
from oberth.spark.predicates import EVERYTHING, Predicate, predicate_of
from oberth.spark.queue_files import QueueFiles
from oberth.spark.runtime import settle_worker
from oberth.spark.schemas import Field, arrow_schema
from oberth.spark.sql_filter import compile_sql
from oberth.spark.store_files import StoreFiles
from oberth.spark.write_options import parse_live_write_options, parse_write_options, writes_live

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from oberth.spark.lake import Lake
    from oberth.spark.reading import PieceReader

NAME: Final = "rocketmq"
INDEX_UNCOVERED_MAX: Final = 0.5
"""The Index is used when it leaves no more of the log than this share to be read."""
_TIME_PROBES: Final = 64
"""Records whose store times are looked at to narrow a range of the log, and how far apart at least.
"""
_PROBE_DISTANCE: Final = 128 << 10
_UNITS_AT_ONCE: Final = 1 << 20
_RUN_GAP_MAX: Final = 16
"""Messages that are read although nothing asks for them, rather than as two pieces."""


class RocketMQDataSource(DataSource):
    """The data source that Spark finds under the name ``rocketmq``."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return NAME

    def schema(self) -> StructType:
        """The columns without a user's schema: the option ``columns``, or the default set.

        Raises:
            OptionError: an unknown option or column.
        """
        return schema_of(*schema_options(self.options))

    def reader(self, schema: StructType) -> RocketMQReader:
        """A batch reader.

        Raises:
            OptionError: an unknown option, a wrong value, or one that batch queries refuse.
        """
        return RocketMQReader(parse_read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream reader with tasks.

        Raises:
            OptionError: an unknown option, a wrong value, or one that streams refuse.
            PySparkNotImplementedError: readMode=driver; Spark then asks for a simple reader.
        """
        options = self._stream_options()
        if options.read_mode is ReadMode.DRIVER:
            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED",
                messageParameters={"feature": "streamReader with readMode=driver"},
            )
        from oberth.spark.stream import RocketMQStreamReader

        return RocketMQStreamReader(options, schema)

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        """A stream reader on the driver (readMode=driver)."""
        from oberth.spark.stream import RocketMQDriverStreamReader

        return RocketMQDriverStreamReader(self._stream_options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer: builds a store, or appends to a closed one; or sends to live topics.

        Raises:
            OptionError: an unknown option, a wrong value, or a column that is not known.
        """
        if writes_live(self.options):
            from oberth.spark.sink import RocketMQLiveWriter

            return RocketMQLiveWriter(parse_live_write_options(self.options), schema, overwrite)
        from oberth.spark.sink import RocketMQWriter

        return RocketMQWriter(parse_write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A stream's writer: appends each batch to a closed store, once; or sends to live topics.

        Raises:
            OptionError: an unknown option, a wrong value, a column that is not known, or output
                mode complete into a store.
        """
        if writes_live(self.options):
            from oberth.spark.sink import RocketMQLiveStreamWriter

            return RocketMQLiveStreamWriter(parse_live_write_options(self.options), schema)
        from oberth.spark.sink import RocketMQStreamWriter

        if overwrite:
            raise OptionError(
                "output mode complete: a store is only appended to, and each batch has the whole "
                "result; use append or update, or foreachBatch with mode overwrite"
            )
        return RocketMQStreamWriter(parse_write_options(self.options), schema)

    def _stream_options(self) -> ReadOptions:
        options = parse_read_options(self.options, streaming=True)
        if options.filter_sql:
            compile_sql(options.filter_sql)
        return options


def require_path(options: ReadOptions) -> None:
    """Raises unless the options name stores.

    Raises:
        OptionError: they name brokers.
    """
    if not options.paths:
        raise OptionError("this reads files only: name a store with `path`")


class _FilterPushdown:
    """``pushFilters`` as Spark wants it whether its configuration allows push-down or not.

    With spark.sql.python.filterPushdown.enabled=false Spark refuses every reader whose class
    overrides pushFilters; it looks at ``reader.pushFilters.__func__``. This says "not overridden"
    there and still receives the filters where they are sent.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: RocketMQReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._reader.accept_filters(filters)


class RocketMQReader(DataSourceReader):
    """Plans a batch query and reads its partitions."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.shape = make_shape(options, schema)
        self.schema = self.shape.schema
        self.fields: tuple[Field, ...] = self.shape.fields
        self.predicate: Predicate = EVERYTHING
        if options.filter_sql:
            compile_sql(options.filter_sql)
        if options.pushdown:
            self.pushFilters = _FilterPushdown(self)  # type: ignore[method-assign]

    def accept_filters(self, filters: list[Any]) -> Iterable[Any]:
        """Notes where rows can be. Spark goes on filtering: a predicate is weaker than filters."""
        self.predicate = predicate_of(filters, self.fields)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The work, cut into partitions; an empty query gives one partition without work.

        Raises:
            OptionError: paths, topics, queues or offsets that do not exist.
            DataLossError: with failOnDataLoss, what is asked for is gone.
        """
        lake = self._lake()
        predicate = self.predicate
        found: list[InputPartition] = []
        stores: p.QueueStores
        if self.options.connection is not None:
            from oberth.spark.live_plan import LiveStores

            with LiveStores(self.options) as live:
                plans = plan_queues(live, self.options, predicate, lake)
                stores = live
        else:
            files = p.open_stores(self.options)
            if has_cut(self.options):
                predicate = predicate_of_cut(files, self.options, predicate, lake)
            plans = plan_batch(files, self.options, predicate, lake)
            stores = files
        if lake is not None:
            from oberth.spark.lake import check_topics, plan_lake

            check_topics(lake, self.options, stores.known_topics())
            found += plan_lake(lake, self.options, self.fields, predicate)
        if not plans and not found:
            plans = [p.PartitionPlan(())]
        tasks = stores.for_tasks()
        return [*found, *(RocketMQPartition(plan.pieces, tasks, predicate) for plan in plans)]

    def _lake(self) -> Lake | None:
        """The export that has the old ranges, as it is now."""
        if not self.options.lake:
            return None
        from oberth.spark.lake import check_lake, open_lake

        lake = open_lake(self.options.lake, self.options.storage)
        check_lake(lake, self.options, self.fields)
        return lake

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow batches."""
        settle_worker()
        if isinstance(partition, RocketMQPartition):
            return self.shape.shown(self.piece_reader(partition).read(partition.pieces))
        from oberth.spark.lake import LakePartition, read_lake

        assert isinstance(partition, LakePartition)
        rows = read_lake(partition.job, partition.files, arrow_schema(self.schema))
        return self.shape.shown(rows)

    def piece_reader(self, partition: RocketMQPartition) -> PieceReader:
        """What reads a partition; the storages of its stores count the bytes."""
        return make_piece_reader(
            partition.stores, self.options, self.fields, self.schema, partition.predicate
        )


# Batch planning.


def plan_batch(
    stores: p.Stores,
    options: ReadOptions,
    predicate: Predicate = EVERYTHING,
    lake: Lake | None = None,
) -> list[p.PartitionPlan]:
    """The partitions of a batch query; with a lake, of what lies after it in the log.

    Raises:
        OptionError: topics, queues or offsets that do not exist; or a store lacks the queues in
            which starting and ending points are.
        DataLossError: with failOnDataLoss, what is asked for is gone.
    """
    if lake is not None:
        return _behind_lake(stores, options, predicate, lake)
    if predicate.is_empty:
        return []
    order = read_order(stores, options, predicate)
    keys = p.select_queues(options, stores, must_exist=True)
    _check_bounds(stores, options, predicate)
    explicit = (
        options.starting.kind is not BoundKind.EARLIEST
        or options.ending.kind is not BoundKind.LATEST
        or bool(options.selection.queues)
    )
    ranges: dict[p.QueueKey, tuple[int, int]] = {}
    if explicit or order is ReadOrder.QUEUE or predicate.wants_index:
        ranges = _asked_ranges(stores, options, keys)
    narrowed = _narrow(stores, ranges, predicate, options)
    stores.prepare(narrowed)
    cuts: list[Cut] = []
    by_broker = p.by_broker(narrowed)
    for number, store in enumerate(stores.files):
        if predicate.brokers is not None and store.broker not in predicate.brokers:
            continue
        own = by_broker.get(store.broker, {})
        by_index = None
        if order is ReadOrder.QUEUE and not options.trust_index:
            by_index = _units_of_interest(number, stores, own, predicate)
        elif options.trust_index:
            by_index = _by_index(number, store, own, predicate, order, explicit)
        if by_index is not None:
            cuts += by_index
        elif order is ReadOrder.QUEUE:
            cuts += queue_cuts(number, stores, own)
        else:
            limits = _limits(own) if explicit else None
            cuts += _log_cuts(number, store, predicate, limits, options)
    return pack(cuts, options, together=True)


def has_cut(options: ReadOptions) -> bool:
    """Whether only a part of the log is asked for by its positions."""
    cuts = (options.since_offset, options.as_of_offset, options.as_of_timestamp_ms)
    return any(cut is not None for cut in cuts)


def predicate_of_cut(
    stores: p.Stores, options: ReadOptions, predicate: Predicate, lake: Lake | None
) -> Predicate:
    """A predicate narrowed to the part of the log that the options name.

    Raises:
        OptionError: there are several stores, whose logs have positions of their own.
        DataLossError: with failOnDataLoss, the beginning that was asked for is gone.
    """
    if len(stores.files) != 1:
        name = next(
            (name for name, given in (
                ("sinceOffset", options.since_offset is not None),
                ("asOfOffset", options.as_of_offset is not None),
            ) if given), "asOfTimestamp",
        )  # fmt: skip
        raise OptionError(
            f"{name}: a position belongs to one log, found {len(stores.files)} stores"
        )
    store = stores.files[0]
    log = predicate.log
    if options.since_offset is not None:
        first = store.log_start()
        if lake is None and first > options.since_offset:
            gone = f"{store.root}: CommitLog {options.since_offset} to {first} is gone"
            p.report_loss(stores, options, [gone])
        log = log.and_low(options.since_offset)
    cut = options.as_of_offset
    if options.as_of_timestamp_ms is not None:
        from oberth.spark.cuts import position_after

        cut = position_after(store, options.as_of_timestamp_ms, lake)
    if cut is not None:
        log = log.and_high(cut - 1)
    return replace(predicate, log=log)


def _behind_lake(
    stores: p.Stores, options: ReadOptions, predicate: Predicate, lake: Lake
) -> list[p.PartitionPlan]:
    """The log's side of a query over log and lake.

    Raises:
        DataLossError: with failOnDataLoss, a part of the log is in neither; or it is another log.
    """
    from oberth.spark.lake import behind, check_log

    brokers = {store.broker for store in stores.files}
    if brokers != set(lake.ends):
        raise OptionError(
            f"lake: {lake.into} holds the log of broker {_names(lake.ends)}, not of "
            f"{_names(brokers)}: name the same stores"
        )
    cuts: list[Cut] = []
    for number, store in enumerate(stores.files):
        end = lake.ends[store.broker]
        first, last = store.log_start(), store.log_end()
        gone = behind(first, end, last, store.root)
        check_log(lake, store)
        if predicate.brokers is not None and store.broker not in predicate.brokers:
            continue
        low, high = predicate.log.clip(end, first)
        if gone and low < high:
            p.report_loss(stores, options, [gone])
        rest = replace(predicate, log=predicate.log.and_low(end))
        if not rest.is_empty:
            cuts += _log_cuts(number, store, rest, None, options)
    return pack(cuts, options)


def _names(brokers: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(brokers))


def _asked_ranges(
    stores: p.QueueStores,
    options: ReadOptions,
    keys: Sequence[p.QueueKey],
    lake: Lake | None = None,
) -> dict[p.QueueKey, tuple[int, int]]:
    """What the bounds of a query mean for each queue; with a lake, what lies after it."""
    bounds = stores.bounds(keys)
    start = p.bound_offsets(options.starting, "starting", options, stores, bounds)
    if lake is not None and lake.offsets is not None:
        start |= {key: offset for key, offset in lake.offsets.items() if key in bounds}
        start |= p.made_again(stores, options, lake.before, lake.offsets, bounds)
    end = p.bound_offsets(options.ending, "ending", options, stores, bounds)
    return p.check_range(stores, options, start, end, bounds)


def plan_queues(
    stores: p.QueueStores,
    options: ReadOptions,
    predicate: Predicate = EVERYTHING,
    lake: Lake | None = None,
) -> list[p.PartitionPlan]:
    """The partitions of a batch query that knows nothing but queues.

    Raises:
        OptionError: topics, queues or offsets that do not exist.
        DataLossError: with failOnDataLoss, what is asked for is gone.
    """
    if predicate.is_empty:
        return []
    keys = p.select_queues(options, stores, must_exist=lake is None)
    ranges = _narrow(stores, _asked_ranges(stores, options, keys, lake), predicate, options)
    stores.prepare(ranges)
    cuts: list[Cut] = []
    by_broker = p.by_broker(ranges)
    for number, store in enumerate(stores.brokers):
        own = by_broker.get(store.broker, {})
        cuts += queue_cuts(number, stores, own)
    return pack(cuts, options)


def read_order(stores: p.Stores, options: ReadOptions, predicate: Predicate) -> ReadOrder:
    """The order that is meant; without one, queues where every store has them.

    Raises:
        OptionError: queues are asked for and a store has none, though it has records.
    """
    if options.read_order is ReadOrder.AUTO:
        bare = any(not store.has_queues() and store.segments() for store in stores.files)
        return ReadOrder.COMMIT_LOG if bare else ReadOrder.QUEUE
    if options.read_order is ReadOrder.QUEUE:
        without = stores_without_queues(stores, options, predicate)
        if without:
            raise OptionError(
                f"readOrder=queue: {without[0].root} has no ConsumeQueue; rebuild it "
                "(`oberth store rebuild`) or read with readOrder=commitlog"
            )
    return options.read_order


def stores_without_queues(
    stores: p.Stores, options: ReadOptions, predicate: Predicate = EVERYTHING
) -> list[StoreFiles]:
    """The stores that have records and no queue, and of which something is asked for."""
    return [
        store
        for store in stores.files
        if (predicate.brokers is None or store.broker in predicate.brokers)
        and options.selection.reaches(store.broker)
        and store.lacks_queues()
    ]


def _check_bounds(stores: p.Stores, options: ReadOptions, predicate: Predicate) -> None:
    """Raises where starting or ending points would leave out all that a store has.

    Raises:
        OptionError: a store without queues is asked for a part of them.
    """
    bounds = (
        options.starting.kind is not BoundKind.EARLIEST
        or options.ending.kind is not BoundKind.LATEST
    )
    without = stores_without_queues(stores, options, predicate) if bounds else []
    if without:
        raise OptionError(
            f"starting and ending points are offsets of queues, and {without[0].root} has no "
            "ConsumeQueue; rebuild it (`oberth store rebuild`), or say where timestamp …"
        )


def _narrow(
    stores: p.QueueStores,
    ranges: Mapping[p.QueueKey, tuple[int, int]],
    predicate: Predicate,
    options: ReadOptions,
) -> dict[p.QueueKey, tuple[int, int]]:
    """The offsets of each queue that can satisfy a predicate."""
    narrowed: dict[p.QueueKey, tuple[int, int]] = {}
    for key, (start, end) in ranges.items():
        if predicate.topics is not None and key.topic not in predicate.topics:
            continue
        if predicate.brokers is not None and key.broker not in predicate.brokers:
            continue
        if not predicate.partitions.holds(key.queue):
            continue
        low, high = predicate.offsets.clip(start, end)
        if low < high:
            narrowed[key] = (low, high)
    if options.trust_times and not predicate.times.is_everything:
        times = predicate.times
        narrowed = stores.narrow_by_time(narrowed, times.low, times.high)
    return {key: (low, high) for key, (low, high) in narrowed.items() if low < high}


def _limits(
    ranges: Mapping[p.QueueKey, tuple[int, int]],
) -> tuple[tuple[str, int, int, int], ...]:
    return tuple((key.topic, key.queue, *ranges[key]) for key in sorted(ranges))


def _log_cuts(
    number: int,
    store: StoreFiles,
    predicate: Predicate,
    limits: tuple[tuple[str, int, int, int], ...] | None,
    options: ReadOptions,
) -> list[Cut]:
    start, end = predicate.log.clip(store.log_start(), store.log_end())
    if options.trust_times and not predicate.times.is_everything:
        start, end = _log_by_time(store, predicate, start, end)
    if start >= end:
        return []
    return [Cut(p.LogRange(number, start, end, limits), 0, end - start)]


def _log_by_time(store: StoreFiles, predicate: Predicate, start: int, end: int) -> tuple[int, int]:
    """The part of the log that can hold store times, told by some records spread over it.

    Where the clock went back between two of them, nothing is narrowed.
    """
    from oberth.spark.queue_files import TIME_SLACK_MS

    found = store.spread_times(start, end, min(_TIME_PROBES, (end - start) // _PROBE_DISTANCE))
    times = [time for _, time in found]
    if times != sorted(times):
        return start, end
    low, high = predicate.times.low, predicate.times.high
    if low is not None:
        before = [offset for offset, time in found if time < low - TIME_SLACK_MS]
        start = max([start, *before[-1:]])
    if high is not None:
        after = [offset for offset, time in found if time > high + TIME_SLACK_MS]
        end = min([end, *after[:1]])
    return start, max(start, end)


def _units_of_interest(
    number: int,
    stores: p.Stores,
    ranges: Mapping[p.QueueKey, tuple[int, int]],
    predicate: Predicate,
) -> list[Cut] | None:
    """The units of queues that a predicate on keys or ids leaves to be read, or None for all.

    Every unit is looked at, so nothing is left out: neither what the Index has not, nor what is
    damaged in a place that is asked for.
    """
    positions = _positions_of_ids(predicate.offset_ids)
    chosen = _keys_to_find(predicate) if predicate.wants_index else None
    if positions is None and chosen is None:
        return None
    store = stores.files[number]
    # Light queues show other topics' records, inner batches have keys of their own inside.
    kinds = store.topics()
    if any(is_lmq(key.topic) or "batch" in kinds.get(key.topic, "") for key in ranges):
        return None
    import numpy as np

    keys = sorted(ranges)
    # What has no unit yet is little, and all of it is read.
    behind = {key: (stores.queue(key).tail_begin(*ranges[key]), ranges[key][1]) for key in keys}
    named = [_positions_named(stores.queue(key), ranges[key][0], behind[key][0]) for key in keys]
    every = np.concatenate([np.empty(0, np.int64), *named])
    if positions is None:
        assert chosen is not None
        positions = _positions_of_ids(predicate.message_ids) or set()
        order = np.argsort(every, kind="stable")
        found = {(key.topic, each) for key in keys for each in chosen}
        known, wanted = IndexFiles(store).sort(found, every[order])
        keep = np.empty(len(every), bool)
        keep[order] = ~known | wanted
    else:
        keep = np.zeros(len(every), bool)
    keep |= every < 0
    keep |= np.isin(every, np.array(sorted(positions), np.int64))
    if keep.sum() > INDEX_UNCOVERED_MAX * len(every):
        return None
    cuts = queue_cuts(number, stores, behind)
    at = 0
    for key, part in zip(keys, named, strict=True):
        offsets = np.flatnonzero(keep[at : at + len(part)]) + ranges[key][0]
        at += len(part)
        if not len(offsets):
            continue
        start, end = ranges[key]
        size = max(stores.queue(key).record_bytes(start, end) // (end - start), 1)
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) > _RUN_GAP_MAX) + 1):
            piece = p.QueueRange(number, key.topic, key.queue, int(run[0]), int(run[-1]) + 1)
            cuts.append(Cut(piece, piece.end - piece.start, size * (piece.end - piece.start)))
    return cuts


def _positions_named(queue: QueueFiles, start: int, end: int) -> Any:
    """The CommitLog offsets that a queue's units name; -1 where one is missing or no unit."""
    import numpy as np

    named = np.full(end - start, -1, np.int64)
    for first in range(start, end, _UNITS_AT_ONCE):
        last = min(end, first + _UNITS_AT_ONCE)
        units = queue.read_units(first, last)
        if len(units) == last - first:  # else a file is gone: to be told by who reads
            usable = (units["size"] > 0) & (units["size"] != PRE_BLANK_SIZE)
            named[first - start : last - start] = np.where(usable, units["offset"], -1)
    return named


def _by_index(
    number: int,
    store: StoreFiles,
    ranges: Mapping[p.QueueKey, tuple[int, int]],
    predicate: Predicate,
    order: ReadOrder,
    explicit: bool,
) -> list[Cut] | None:
    """What is left to read when the Index is trusted, or None where it cannot help."""
    offset_ids = _positions_of_ids(predicate.offset_ids)
    if offset_ids is None and not predicate.wants_index:
        return None
    topics = sorted({key.topic for key in ranges})
    if order is ReadOrder.COMMIT_LOG and not store.has_queues():
        return None
    # Light queues show other topics' records, inner batches have keys of their own inside.
    kinds = store.topics()
    if any(is_lmq(topic) or "batch" in kinds.get(topic, "") for topic in topics):
        return None
    start, end = store.log_start(), store.log_end()
    # Ranges of the log also show what has not been dispatched yet.
    limits = _limits(ranges) if explicit or order is ReadOrder.QUEUE else None
    if offset_ids is not None:
        positions = tuple(sorted(at for at in offset_ids if start <= at < end))
        return [Cut(p.Lookup(number, positions, limits), len(positions), 0)] if positions else []
    keys: set[tuple[str, str]] = set()
    extra: set[int] = set()
    chosen = _keys_to_find(predicate)
    if chosen is None:
        return None
    for topic in topics:
        keys.update((topic, key) for key in chosen)
    if predicate.message_ids is not None:
        extra |= _positions_of_ids(predicate.message_ids) or set()
    answer = IndexFiles(store).find(keys, start, end)
    uncovered = sum(last - first for first, last in answer.uncovered)
    if uncovered > INDEX_UNCOVERED_MAX * (end - start):
        return None
    positions = tuple(sorted({*answer.positions, *(at for at in extra if start <= at < end)}))
    outside = tuple(
        at for at in positions if not any(first <= at < last for first, last in answer.uncovered)
    )
    cuts = [
        Cut(p.LogRange(number, first, last, limits), 0, last - first)
        for first, last in answer.uncovered
    ]
    if outside:
        cuts.append(Cut(p.Lookup(number, outside, limits), len(outside), 0))
    return cuts


def _keys_to_find(predicate: Predicate) -> frozenset[str] | None:
    """Keys of which every row of interest has at least one in the Index; None where not known."""
    if predicate.unique_keys is not None:
        return predicate.unique_keys
    if predicate.keys is not None:
        # KEYS is indexed word by word; the first word of each value is enough to find it.
        words = [next(iter(key.split(" ")), "") or _first_word(key) for key in predicate.keys]
        return None if "" in words else frozenset(words)
    return predicate.message_ids


def _first_word(key: str) -> str:
    return next((word for word in key.split(" ") if word), "")


def _positions_of_ids(ids: frozenset[str] | None) -> set[int] | None:
    """The CommitLog offsets that offset ids name.

    A client's id has the same form and may end in digits that are no offset of any log.
    """
    if ids is None:
        return None
    from oberth.formats.message_id import OFFSET_ID_LENGTHS

    named = (
        int(text[-16:], 16)
        for text in ids
        if len(text) in OFFSET_ID_LENGTHS and all(c in "0123456789ABCDEF" for c in text)
    )
    return {position for position in named if position < 1 << 63}
