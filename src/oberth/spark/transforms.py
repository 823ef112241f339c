"""Questions about a store that its derived files answer, as frames.

`count_by_tag` counts messages per topic and tag from the ConsumeQueues: 20 bytes a message,
whatever its size. A queue knows a tag by its Java hash; the name is read from one of its messages.
Two tags of a topic with one hash would be counted as one, so `SAMPLES` messages of each hash are
looked at in every range of a queue, and where they disagree all messages of the range are read.
Java hashes of short texts rarely meet; where they do and one of the two is rarer than the samples
can tell, the rarer counts as the other. Grouping the source itself is exact and reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from oberth.errors import DataLossError, NotFoundError, OptionError
from oberth.formats.consume_queue import EXT_ADDRESS_MAX, PRE_BLANK_SIZE
from oberth.formats.names import SCHEDULE_TOPIC, is_lmq
from oberth.spark import plan as p
from oberth.spark.options import ReadOptions, parse_read_options
from oberth.spark.packing import Cut, pack
from oberth.spark.partitions import RocketMQPartition, make_piece_reader, queue_cuts
from oberth.spark.queue_files import QueueFiles
from oberth.spark.runtime import settle_worker
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import has_cut, require_path, stores_without_queues
from oberth.spark.store_files import StoreFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COUNTS_FORMAT: Final = "rocketmq_tag_counts"
SAMPLES: Final = 64
"""Messages of one tags code that are looked at, and codes of one range for which that is done."""
CODES_MAX: Final = 256
_UNITS_AT_ONCE: Final = 1 << 20
# Of a task: counting takes 16 ns a unit, a task itself 41 ms, both CPU.
_TARGET_UNITS: Final = 4 << 20


def count_by_tag(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """Messages per topic and tag: the columns topic, tags (null for none) and count.

    Args:
        spark: the session.
        path: the store, as for ``format("rocketmq")``.
        options: of the source: subscribe, assign, startingOffsets, … Those that count by places in
            the log, or count what no queue shows, are refused.

    Returns:
        What ``SELECT topic, tags, count(*) … GROUP BY topic, tags`` over the source gives.
    """
    from pyspark.sql import functions as f

    spark.dataSource.register(TagCountsSource)
    frame = spark.read.format(COUNTS_FORMAT).options(**options).load(path)
    return frame.groupBy("topic", "tags").agg(f.sum("count").alias("count"))


class TagCountsSource(DataSource):
    """Partial counts, one row per range of a queue and tag."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return COUNTS_FORMAT

    def schema(self) -> str:
        """The columns."""
        return "topic string, tags string, count bigint"

    def reader(self, schema: StructType) -> TagCountsReader:
        """A batch reader.

        Raises:
            OptionError: an unknown option, a wrong value, or one that queues know nothing of.
        """
        return TagCountsReader(parse_read_options(self.options, streaming=False))


class TagCountsReader(DataSourceReader):
    """Plans ranges of queues and counts them."""

    def __init__(self, options: ReadOptions) -> None:
        require_path(options)
        if options.lake or options.include_undelivered or has_cut(options):
            raise OptionError(
                "count_by_tag counts what queues have: lake, includeUndelivered, sinceOffset, "
                "asOfOffset and asOfTimestamp do not go with it; group the source's rows"
            )
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of queues, many queues to a task: a unit has 20 bytes.

        Raises:
            OptionError: topics, queues or offsets that do not exist; or a store has no queues.
            DataLossError: with failOnDataLoss, what is asked for is gone.
        """
        stores = p.open_stores(self.options)
        if without := stores_without_queues(stores, self.options):
            raise OptionError(
                f"count_by_tag: {without[0].root} has no ConsumeQueue; rebuild it "
                "(`oberth store rebuild`), or group the source's rows"
            )
        keys = p.select_queues(self.options, stores, must_exist=True)
        bounds = stores.bounds(keys)
        start = p.bound_offsets(self.options.starting, "starting", self.options, stores, bounds)
        end = p.bound_offsets(self.options.ending, "ending", self.options, stores, bounds)
        ranges = p.check_range(stores, self.options, start, end, bounds)
        cuts: list[Cut] = []
        for number, own in enumerate(p.by_broker(ranges).get(s.broker, {}) for s in stores.files):
            cuts += [cut._replace(size=cut.rows) for cut in queue_cuts(number, stores, own)]
        plans = pack(cuts, _by_units(self.options)) or [p.PartitionPlan(())]
        from oberth.spark.predicates import EVERYTHING

        return [RocketMQPartition(plan.pieces, stores.for_tasks(), EVERYTHING) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The counts of a partition, added up."""
        import pyarrow as pa

        assert isinstance(partition, RocketMQPartition)
        settle_worker()
        counts: dict[tuple[str, str | None], int] = {}
        for piece in partition.pieces:
            if isinstance(piece, p.QueueRange):
                topic, found = piece.topic, count_range(partition.stores, piece, self.options)
            else:  # what has no unit yet
                assert isinstance(piece, p.Lookup)
                assert piece.limits is not None
                topic = piece.limits[0][0]
                found = _count_records(partition.stores, [piece], self.options)
            for tag, count in found.items():
                counts[topic, tag] = counts.get((topic, tag), 0) + count
        rows = sorted(counts.items(), key=lambda row: (row[0][0], row[0][1] or ""))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([topic for (topic, _), _ in rows], pa.string()),
                pa.array([tag for (_, tag), _ in rows], pa.string()),
                pa.array([count for _, count in rows], pa.int64()),
            ],
            schema=pa.schema(
                [("topic", pa.string()), ("tags", pa.string()), ("count", pa.int64())]
            ),
        )


def _by_units(options: ReadOptions) -> ReadOptions:
    from dataclasses import replace

    return replace(options, target_partition_bytes=_TARGET_UNITS)


def count_range(
    stores: Mapping[int, StoreFiles], piece: p.QueueRange, options: ReadOptions
) -> Mapping[str | None, int]:
    """Messages of a range of a queue by tag.

    Raises:
        DataLossError: with failOnDataLoss, units are missing or damaged.
    """
    store = stores[piece.store]
    queue = store.queue(piece.topic, piece.queue)
    if queue.is_batch or piece.topic == SCHEDULE_TOPIC or is_lmq(piece.topic) or options.filter_sql:
        return _count_records(stores, [piece], options)
    counts: dict[str | None, int] = {}
    for start in range(piece.start, piece.end, _UNITS_AT_ONCE):
        part = piece._replace(start=start, end=min(start + _UNITS_AT_ONCE, piece.end))
        found = _count_units(store, queue, part, options)
        if found is None:
            found = _count_records(stores, [part], options)
        for tag, count in found.items():
            counts[tag] = counts.get(tag, 0) + count
    if options.filter_tags:
        return {tag: count for tag, count in counts.items() if tag in options.filter_tags}
    return counts


def _count_units(
    store: StoreFiles, queue: QueueFiles, piece: p.QueueRange, options: ReadOptions
) -> Mapping[str | None, int] | None:
    """Counts from units alone, None where the records have to be read."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    units = queue.read_units(piece.start, piece.end)
    sizes = units["size"].astype(np.int64)
    whole = (units["offset"] >= 0) & (sizes > 0) & (sizes != PRE_BLANK_SIZE)
    if len(units) != piece.end - piece.start or not whole.all():
        if options.fail_on_data_loss:
            raise DataLossError(
                f"topic {piece.topic}, broker {store.broker}, queue {piece.queue}: units of the "
                f"offsets {piece.start} to {piece.end} are missing or damaged"
            )
        return None
    codes = units["tags"].astype(np.int64)
    counted = pc.value_counts(pa.array(codes))
    values, numbers = counted.field(0).to_pylist(), counted.field(1).to_pylist()
    if len(values) > CODES_MAX or min(values) <= EXT_ADDRESS_MAX:
        return None
    counts: dict[str | None, int] = {}
    for code, number in zip(values, numbers, strict=True):
        tag = _name_of(store, units, codes, code)
        if tag is _UNCLEAR:
            return None
        assert tag is None or isinstance(tag, str)
        counts[tag] = counts.get(tag, 0) + number
    return counts


_UNCLEAR: Final = object()


def _name_of(store: StoreFiles, units: Any, codes: Any, code: int) -> Any:
    """The one tag that messages with a code have, or _UNCLEAR."""
    import numpy as np

    from oberth.errors import RecordError
    from oberth.formats.message import decode_record

    places = np.flatnonzero(codes == code)
    places = places[np.linspace(0, len(places) - 1, SAMPLES, dtype=np.int64)].tolist()
    found: set[str | None] = set()
    for place in dict.fromkeys(places):
        offset, size = int(units["offset"][place]), int(units["size"][place])
        try:
            found.add(decode_record(store.read_log(offset, size), at=offset).tags)
        except (NotFoundError, RecordError):
            return _UNCLEAR
    return found.pop() if len(found) == 1 else _UNCLEAR


def _count_records(
    stores: Mapping[int, StoreFiles], pieces: Sequence[p.Piece], options: ReadOptions
) -> Mapping[str | None, int]:
    """Counts from the messages themselves."""
    import pyarrow.compute as pc

    fields = parse_columns("tags")
    reader = make_piece_reader(stores, options, fields, struct_type(fields))
    counts: dict[str | None, int] = {}
    for batch in reader.read(pieces):
        counted = pc.value_counts(batch.column(0))
        for tag, number in zip(
            counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True
        ):
            counts[tag] = counts.get(tag, 0) + number
    return counts
