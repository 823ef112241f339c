"""``format("rocketmq")``: a store as a table, for batch and streaming queries.

Spark makes a `RocketMQDataSource` wherever it needs one and pickles readers to tasks, so nothing
here holds an open file. Planning happens on the driver: which stores, queues and offsets; what
filters and options rule out by ConsumeQueue, Index and times; how that is cut into partitions.
Tasks only read (`oberth.spark.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

from oberth.errors import NotFoundError, OptionError
from oberth.formats.names import is_lmq
from oberth.spark import plan as p
from oberth.spark.index_lookup import IndexFiles
from oberth.spark.options import (
    BoundKind,
    ReadMode,
    ReadOptions,
    ReadOrder,
    parse_live_write_options,
    parse_read_options,
    parse_write_options,
    schema_options,
    writes_live,
)
from oberth.spark.predicates import EVERYTHING, Predicate, predicate_of
from oberth.spark.schemas import Field, arrow_schema, parse_columns, resolve_schema, struct_type
from oberth.spark.sql_filter import compile_sql
from oberth.spark.store_files import StoreFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from oberth.spark.reading import PieceReader, ReadSettings

NAME = "rocketmq"
#: The Index is used when it leaves no more of the log than this share to be read.
INDEX_UNCOVERED_MAX = 0.5
#: Records whose store times are looked at to narrow a range of the log, and how far apart at least.
_TIME_PROBES = 64
_PROBE_DISTANCE = 128 << 10


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
        columns, with_properties = schema_options(self.options)
        return struct_type(parse_columns(columns, with_properties=with_properties))

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
            OptionError: an unknown option, a wrong value, or a column that is not known.
        """
        if writes_live(self.options):
            from oberth.spark.sink import RocketMQLiveStreamWriter

            return RocketMQLiveStreamWriter(parse_live_write_options(self.options), schema)
        from oberth.spark.sink import RocketMQStreamWriter

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


class RocketMQPartition(InputPartition):
    """What one task reads, and from where: Spark pickles readers before it asks for partitions."""

    def __init__(
        self, pieces: tuple[p.Piece, ...], stores: Sequence[Any], predicate: Predicate
    ) -> None:
        super().__init__(pieces)
        self.pieces = pieces
        self.stores = list(stores)
        self.predicate = predicate


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
        self.schema = schema
        self.fields: tuple[Field, ...] = resolve_schema(schema)
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
        stores: p.QueueStores
        if self.options.connection is not None:
            from oberth.spark.live_plan import LiveStores

            with LiveStores(self.options) as live:
                plans = plan_queues(live, self.options, self.predicate)
                stores = live
        else:
            files = p.open_stores(self.options)
            plans = plan_batch(files, self.options, self.predicate)
            stores = files
        if not plans:
            plans = [p.PartitionPlan(())]
        tasks = stores.for_tasks()
        return [RocketMQPartition(plan.pieces, tasks, self.predicate) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow batches."""
        assert isinstance(partition, RocketMQPartition)
        yield from self.piece_reader(partition).read(partition.pieces)

    def piece_reader(self, partition: RocketMQPartition) -> PieceReader:
        """What reads a partition; the storages of ``partition.stores`` count the bytes."""
        return make_piece_reader(
            partition.stores, self.options, self.fields, self.schema, partition.predicate
        )


def read_settings(
    options: ReadOptions, fields: tuple[Field, ...], predicate: Predicate = EVERYTHING
) -> ReadSettings:
    """What a task needs to know of the options."""
    from oberth.spark.reading import ReadSettings

    return ReadSettings(
        fields=fields,
        topics=p.TopicFilter(options.selection),
        predicate=predicate,
        tags=options.filter_tags,
        sql=options.filter_sql,
        batch_bytes=options.batch_bytes,
        fail_on_data_loss=options.fail_on_data_loss,
        verify_crc=options.verify_crc,
        include_undelivered=options.include_undelivered,
    )


def make_piece_reader(
    stores: Sequence[Any],
    options: ReadOptions,
    fields: tuple[Field, ...],
    schema: StructType,
    predicate: Predicate = EVERYTHING,
) -> PieceReader:
    """A reader of pieces with these options; of stores, or of live brokers."""
    from oberth.spark.reading import PieceReader

    if options.connection is not None:
        from oberth.spark.live_reading import LivePieceReader, PullSettings

        pulls = PullSettings(
            options.connection, options.pull_group, options.pull_batch, options.pull_requests
        )
        settings = read_settings(options, fields, predicate)
        return LivePieceReader(stores, settings, arrow_schema(schema), pulls)
    return PieceReader(stores, read_settings(options, fields, predicate), arrow_schema(schema))


# Batch planning.


def plan_batch(
    stores: p.Stores, options: ReadOptions, predicate: Predicate = EVERYTHING
) -> list[p.PartitionPlan]:
    """The partitions of a batch query.

    Raises:
        OptionError: topics, queues or offsets that do not exist.
        DataLossError: with failOnDataLoss, what is asked for is gone.
    """
    if predicate.is_empty:
        return []
    order = read_order(stores, options)
    keys = p.select_queues(options, stores, must_exist=True)
    explicit = (
        options.starting.kind is not BoundKind.EARLIEST
        or options.ending.kind is not BoundKind.LATEST
        or bool(options.selection.queues)
    )
    ranges: dict[p.QueueKey, tuple[int, int]] = {}
    if explicit or order is ReadOrder.QUEUE or predicate.wants_index:
        ranges = _asked_ranges(stores, options, keys)
    narrowed = _narrow(stores, ranges, predicate)
    stores.prepare(narrowed)
    cuts: list[p.Cut] = []
    for number, store in enumerate(stores.files):
        if predicate.brokers is not None and store.broker not in predicate.brokers:
            continue
        own = {key: r for key, r in narrowed.items() if key.broker == store.broker}
        by_index = _by_index(number, store, own, predicate, order, explicit)
        if by_index is not None:
            cuts += by_index
        elif order is ReadOrder.QUEUE:
            cuts += queue_cuts(number, stores, own)
        else:
            limits = _limits(own) if explicit else None
            cuts += _log_cuts(number, store, predicate, limits)
    return p.pack(cuts, options)


def _asked_ranges(
    stores: p.QueueStores, options: ReadOptions, keys: Sequence[p.QueueKey]
) -> dict[p.QueueKey, tuple[int, int]]:
    """What the bounds of a query mean for each queue."""
    bounds = stores.bounds(keys)
    start = p.bound_offsets(options.starting, "starting", options, stores, bounds)
    end = p.bound_offsets(options.ending, "ending", options, stores, bounds)
    return p.check_range(stores, options, start, end, bounds)


def plan_queues(
    stores: p.QueueStores, options: ReadOptions, predicate: Predicate = EVERYTHING
) -> list[p.PartitionPlan]:
    """The partitions of a batch query that knows nothing but queues.

    Raises:
        OptionError: topics, queues or offsets that do not exist.
        DataLossError: with failOnDataLoss, what is asked for is gone.
    """
    if predicate.is_empty:
        return []
    keys = p.select_queues(options, stores, must_exist=True)
    ranges = _narrow(stores, _asked_ranges(stores, options, keys), predicate)
    stores.prepare(ranges)
    cuts: list[p.Cut] = []
    for number, store in enumerate(stores.brokers):
        own = {key: r for key, r in ranges.items() if key.broker == store.broker}
        cuts += queue_cuts(number, stores, own)
    return p.pack(cuts, options)


def read_order(stores: p.Stores, options: ReadOptions) -> ReadOrder:
    """The order that is meant; without one, queues where every store has them.

    Raises:
        OptionError: queues are asked for and a store has none, though it has a CommitLog.
    """
    if options.read_order is ReadOrder.COMMIT_LOG:
        return ReadOrder.COMMIT_LOG
    without = [s for s in stores.files if not s.has_queues() and s.segments()]
    if options.read_order is ReadOrder.QUEUE and without:
        raise OptionError(
            f"readOrder=queue: {without[0].root} has no ConsumeQueue; rebuild it "
            "(`oberth store rebuild`) or read with readOrder=commitlog"
        )
    return ReadOrder.COMMIT_LOG if without else ReadOrder.QUEUE


def _narrow(
    stores: p.QueueStores, ranges: Mapping[p.QueueKey, tuple[int, int]], predicate: Predicate
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
        if low < high and not predicate.times.is_everything:
            times = predicate.times
            low, high = stores.queue(key).narrow_by_time(low, high, times.low, times.high)
        if low < high:
            narrowed[key] = (low, high)
    return narrowed


def queue_cuts(
    number: int, stores: p.QueueStores, ranges: Mapping[p.QueueKey, tuple[int, int]]
) -> list[p.Cut]:
    """Pieces of queues of one store with their sizes."""
    cuts = []
    for key in sorted(ranges):
        start, end = ranges[key]
        if start >= end:
            continue
        try:
            size = stores.queue(key).record_bytes(start, end)
        except NotFoundError:
            size = 0
        piece = p.QueueRange(number, key.topic, key.queue, start, end)
        cuts.append(p.Cut(piece, end - start, max(size, end - start)))
    return cuts


def _limits(
    ranges: Mapping[p.QueueKey, tuple[int, int]],
) -> tuple[tuple[str, int, int, int], ...]:
    return tuple((key.topic, key.queue, *ranges[key]) for key in sorted(ranges))


def _log_cuts(
    number: int,
    store: StoreFiles,
    predicate: Predicate,
    limits: tuple[tuple[str, int, int, int], ...] | None,
) -> list[p.Cut]:
    start, end = predicate.log.clip(store.log_start(), store.log_end())
    if not predicate.times.is_everything:
        start, end = _log_by_time(store, predicate, start, end)
    if start >= end:
        return []
    return [p.Cut(p.LogRange(number, start, end, limits), 0, end - start)]


def _log_by_time(store: StoreFiles, predicate: Predicate, start: int, end: int) -> tuple[int, int]:
    """The part of the log that can hold store times, told by some records spread over it.

    Where the clock went back between two of them, nothing is narrowed.
    """
    from oberth.spark.store_files import TIME_SLACK_MS

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


def _by_index(
    number: int,
    store: StoreFiles,
    ranges: Mapping[p.QueueKey, tuple[int, int]],
    predicate: Predicate,
    order: ReadOrder,
    explicit: bool,
) -> list[p.Cut] | None:
    """What is left to read when the Index is asked, or None where it cannot help."""
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
        return [p.Cut(p.Lookup(number, positions, limits), len(positions), 0)] if positions else []
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
        p.Cut(p.LogRange(number, first, last, limits), 0, last - first)
        for first, last in answer.uncovered
    ]
    if outside:
        cuts.append(p.Cut(p.Lookup(number, outside, limits), len(outside), 0))
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
    """The CommitLog offsets that offset ids name."""
    if ids is None:
        return None
    from oberth.formats.message_id import OFFSET_ID_LENGTHS

    return {
        int(text[-16:], 16)
        for text in ids
        if len(text) in OFFSET_ID_LENGTHS and all(c in "0123456789ABCDEF" for c in text)
    }
