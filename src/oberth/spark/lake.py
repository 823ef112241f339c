"""One table over log and lake: old ranges from an export's tables, the rest from the log.

An export's ledger says which ranges of the log its tables have, because a batch is a range that is
noted before any of its data and again when all tables have it (`oberth.spark.pipelines.export`). So
the two sides meet at one position, without a gap and without a double:

    lake   rows of batches that are done: they lie below `Lake.end`
    log    records that start at `Lake.end` or behind it

With several stores there is such a place in each of their logs, with live topics a queue offset for
each queue. What the log has deleted meanwhile is
in the lake; what neither has is data loss and says where. Rows that a batch in progress
has written already are left out by their position, so a running export disturbs nobody.

`plan_lake` and `read_lake` are what ``format("rocketmq")`` does with the option ``lake``;
`union_frame` lets Spark's own Parquet reader take the lake's side, which prunes columns and needs
no Python: that is what `oberth spark sql --lake` uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from oberth.errors import DataLossError, OptionError, RecordError
from oberth.formats import sys_flag as flags
from oberth.spark import plan as p
from oberth.spark.calendar import TIME_MAX_MS
from oberth.spark.options import (
    BadBodies,
    BoundKind,
    ReadOptions,
    SelectionKind,
    parse_read_options,
)
from oberth.spark.pipelines.export.compaction import list_files
from oberth.spark.pipelines.export.ledger import Batch, Ledger, batch_of, is_other_log
from oberth.spark.pipelines.export.places import LocalPlace, Place, place_of
from oberth.spark.pipelines.export.settings import (
    ONE_TABLE,
    QUARANTINE,
    ExportSettings,
    topic_of_table,
)
from oberth.spark.pipelines.export.tables import BATCH_PROPERTY
from oberth.spark.predicates import Predicate, as_long
from oberth.spark.schemas import (
    ALL_COLUMNS,
    COLUMN_BY_NAME,
    PLACE,
    Field,
    parse_columns,
    place_text,
    refuse_nulls,
    refuses_nulls,
)
from oberth.spark.sql_filter import compile_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from oberth.spark.store_files import StoreFiles

BATCH_ROWS: Final = 16_384
"""Rows of one Arrow batch."""
_DELIVERED: Final = (flags.TRANSACTION_NOT, flags.TRANSACTION_COMMIT)


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A Parquet file of a lake.

    Attributes:
        path: where it is.
        size: bytes.
        topic: whose rows it has; "" for those of many.
        quarantine: whether it has rows whose bodies did not decode.
    """

    path: str
    size: int
    topic: str
    quarantine: bool


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables of an export as far as they are done.

    Attributes:
        into: the export's directory.
        settings: how the tables are made.
        broker: whose log, or for live topics which clusters; of several stores the first one's.
        ends: behind the last position that the lake has, by broker; of live topics none.
        tails: the CRC-32 of each log's last bytes before it, None where it was not noted.
        offsets: of live topics the next offset of each queue; None for a store's log.
        files: what there is.
        place: where they lie.
        before: of live topics where the record before each next offset lay in its broker's log, as
            far as that is known.
        batch: the number of the newest batch that all tables have.
        coming: of live topics what later batches take of each queue, from an offset to another;
            some of their rows may be there already.
    """

    into: str
    settings: ExportSettings
    broker: str
    ends: Mapping[str, int]
    tails: Mapping[str, int | None]
    offsets: Mapping[p.QueueKey, int] | None
    files: tuple[LakeFile, ...]
    place: Place
    before: Mapping[p.QueueKey, int]
    batch: int
    coming: Mapping[p.QueueKey, tuple[tuple[int, int], ...]]

    @property
    def end(self) -> int:
        """Behind the last position of the log, of a lake that has only one."""
        [end] = self.ends.values()
        return end

    def column_names(self) -> dict[str, str]:
        """What the files call a column, by its name here."""
        names = {f.column: f.name for f in parse_columns(self.settings.wanted_columns())}
        if self.settings.format != "iceberg":
            # Directories are named after them, the files are without.
            for each in self.settings.partitions():
                names = {column: name for column, name in names.items() if name != each.name}
        return names

    def has_topic(self, topic: str) -> bool:
        """Whether the tables are to have a topic's messages."""
        if self.settings.exact:
            return True
        if self.settings.topics:
            return topic in self.settings.topics
        return not p.is_hidden_topic(topic)

    def topics(self) -> set[str]:
        """Topics that have a table of their own."""
        return {file.topic for file in self.files if file.topic}


def open_lake(into: str, storage: Mapping[str, str] | None = None) -> Lake:
    """What an export's directory holds now.

    Args:
        into: a directory, or a URL of an object store.
        storage: options of that store, without ``storage.``.

    Raises:
        OptionError: no export there, one that has no batch yet, or a URL of another kind.
    """
    ledger = Ledger(place_of(into, storage or {}, "lake"))
    settings = ledger.settings(None)
    if settings is None:
        raise OptionError(f"lake: {into!r} holds no export (`oberth spark export --into {into}`)")
    values = ledger.read("settings.json")
    assert values is not None
    broker = values["source"]["broker"]
    last = _done(ledger)
    if last is None:
        raise OptionError(f"lake: {into!r}: its export has completed no batch yet")
    files = []
    for table, paths in list_files(settings, ledger).items():
        quarantine = table.endswith(QUARANTINE)
        name = table.removesuffix(QUARANTINE)
        topic = "" if settings.one_table or name == ONE_TABLE else topic_of_table(name)
        files += [LakeFile(x, _size(ledger.place, x), topic, quarantine) for x in paths]
    offsets, ends = None, {}
    tails: dict[str, int | None] = {}
    before: p.Offsets = {}
    coming: dict[p.QueueKey, tuple[tuple[int, int], ...]] = {}
    if last.offsets is None:
        ends = {name: each.end for name, each in last.ranges(broker).items()}
        tails = {name: each.tail for name, each in last.ranges(broker).items()}
    else:
        offsets = p.offsets_from_json(last.offsets["end"])
        before = p.offsets_from_json(last.offsets.get("before", {}))
        found = _coming(ledger, last.number)  # after the files: whose batch they are is noted
        if found is None:
            return open_lake(into, storage)
        coming = found
    return Lake(
        ledger.into, settings, broker, ends, tails, offsets, tuple(files), ledger.place, before,
        last.number, coming,
    )  # fmt: skip


def _done(ledger: Ledger) -> Batch | None:
    """The newest batch that all tables have."""
    before = ""
    while True:
        done = [name[:8] for name in ledger.names("batches") if name.endswith(".done")]
        if not done:
            return None
        found = _batch(ledger, done[-1])
        if found is not None:  # else so many were done meanwhile that it was forgotten
            return found
        if done[-1] == before:
            raise _torn(ledger, before)
        before = done[-1]


def _torn(ledger: Ledger, number: str) -> OptionError:
    return OptionError(
        f"lake: {ledger.into!r}: its ledger lacks batches/{number}.json; it is a copy of an "
        "export that was being written: copy it again"
    )


def _batch(ledger: Ledger, number: str) -> Batch | None:
    values = ledger.read(f"batches/{number}.json")
    return None if values is None else batch_of(int(number), values)


def _coming(ledger: Ledger, done: int) -> dict[p.QueueKey, tuple[tuple[int, int], ...]] | None:
    """What the batches behind one take of each queue: noted before any of it is in a table.

    None where some of them were done and forgotten meanwhile.

    Raises:
        OptionError: some are missing though an older one is there.
    """
    found: dict[p.QueueKey, tuple[tuple[int, int], ...]] = {}
    names = [
        name[:8] for name in ledger.names("batches")
        if name.endswith(".json") and name[:8].isdigit() and int(name[:8]) > done
    ]  # fmt: skip
    if names and int(names[0]) != done + 1:
        names = [f"{done + 1:08d}"]
    for name in names:
        batch = _batch(ledger, name)
        if batch is None:
            if _batch(ledger, f"{done:08d}") is not None:  # the oldest are forgotten first
                raise _torn(ledger, name)
            return None
        offsets = batch.offsets
        assert offsets is not None
        start = p.offsets_from_json(offsets["start"])
        for key, end in p.offsets_from_json(offsets["end"]).items():
            if start.get(key, 0) < end:
                found[key] = (*found.get(key, ()), (start.get(key, 0), end))
    return found


def _size(place: Place, path: str) -> int:
    try:
        return place.size(path)
    except FileNotFoundError:
        return 0  # joined into another meanwhile; reading it will say so


# Planning.


@dataclass(frozen=True, slots=True)
class LakeJob:
    """What all tasks over a lake have in common.

    Attributes:
        lake: which, without its files.
        fields: the columns to make.
        topics: which topics give rows.
        predicate: where rows of interest can be, and below which position they have to be.
        tags: TAGS values of filter.tag; empty for any.
        sql: the expression of filter.sql, or "".
        bad_bodies: what becomes of messages whose bodies could not be unpacked.
        include_undelivered: whether prepared and rolled back messages are rows too.
    """

    lake: Lake
    fields: tuple[Field, ...]
    topics: p.TopicFilter
    predicate: Predicate
    tags: tuple[str, ...]
    sql: str
    bad_bodies: BadBodies
    include_undelivered: bool


class LakePartition(InputPartition):
    """What one task reads of a lake."""

    def __init__(self, job: LakeJob, files: tuple[LakeFile, ...]) -> None:
        super().__init__(files)
        self.job = job
        self.files = files


def check_lake(lake: Lake, options: ReadOptions, fields: Sequence[Field]) -> None:
    """Raises where a lake cannot give what a query asks for.

    Raises:
        OptionError: what, and how to get it.
    """
    selection = options.selection
    if selection.kind is SelectionKind.ASSIGN:
        raise OptionError("assign does not go with lake; subscribe, and say where partition = …")
    if (
        options.starting.kind is not BoundKind.EARLIEST
        or options.ending.kind is not BoundKind.LATEST
    ):
        raise OptionError(
            "starting and ending points do not go with lake; say where offset or timestamp, or "
            "asOfOffset or asOfTimestamp"
        )
    if lake.offsets is None and options.connection is not None:
        raise OptionError(
            f"lake: {lake.into} was exported from a store's files; read it with `path`, or export "
            "with --namesrv"
        )
    if lake.offsets is not None and options.connection is None:
        raise OptionError(
            f"lake: {lake.into} was exported from live topics; read it with rocketmq.namesrv.addr"
        )
    if options.include_undelivered and not lake.settings.exact:
        raise OptionError("includeUndelivered: only an exact export has such records")
    for topic in selection.topics:
        if not lake.has_topic(topic):
            raise OptionError(
                f"topic {topic!r} is not in the lake {lake.into}; export it, or read it without"
            )
    if not selection.topics and lake.settings.topics:
        raise OptionError(
            f"the lake {lake.into} has the topics {', '.join(lake.settings.topics)} only: "
            "subscribe to some of them"
        )
    for field in fields:
        if field.column == "properties" and field.type != COLUMN_BY_NAME["properties"].types[0]:
            raise OptionError(f"column {field.name}: with lake it is a map, not {field.type}")
    known = lake.column_names()
    needed = [field.column for field in fields]
    needed += ["tags"] if options.filter_tags else []
    needed += ["properties"] if options.filter_sql else []
    needed += (
        ["physicalOffset"] if lake.offsets is None else ["topic", "broker", "partition", "offset"]
    )
    needed += ["broker"] if len(lake.ends) > 1 else []
    needed += ["topic"] if lake.settings.one_table else []
    needed += ["sysFlag"] if lake.settings.exact else []
    needed += [] if options.bad_bodies is BadBodies.ROW else ["bodyError"]
    missing = [column for column in needed if column not in known]
    if missing:
        raise OptionError(
            f"the lake {lake.into} has no column {missing[0]} in its files: export with it "
            f"(--columns, not as a partition), or ask for others (columns=…): {', '.join(known)}"
        )


def check_topics(lake: Lake, options: ReadOptions, known: set[str]) -> None:
    """Raises for a topic that neither side has.

    Raises:
        OptionError: the nearest is named.
    """
    every = known | lake.topics()
    if lake.settings.one_table or not known:
        return
    for topic in options.selection.topics:
        if topic not in every and not p.is_hidden_topic(topic):
            near = get_close_matches(topic, every, 1, 0.4)
            hint = f"; the nearest is {near[0]!r}" if near else ""
            raise OptionError(f"topic {topic!r} is neither in the log nor in the lake{hint}")


def plan_lake(
    lake: Lake, options: ReadOptions, fields: tuple[Field, ...], predicate: Predicate
) -> list[InputPartition]:
    """The lake's side of a query, cut into partitions; none where nothing of it is wanted."""
    if len(lake.ends) == 1:
        predicate = replace(predicate, log=predicate.log.and_high(lake.end - 1))
    if predicate.is_empty:
        return []
    topics = p.TopicFilter(options.selection)
    job = LakeJob(
        replace(lake, files=()), fields, topics, predicate, options.filter_tags,
        options.filter_sql, options.bad_bodies, options.include_undelivered,
    )  # fmt: skip
    partitions: list[InputPartition] = []
    files: list[LakeFile] = []
    room = options.target_partition_bytes
    for file in lake.files:
        if file.topic and not topics.allows(file.topic):
            continue
        if file.topic and predicate.topics is not None and file.topic not in predicate.topics:
            continue
        if files and room < file.size:
            partitions.append(LakePartition(job, tuple(files)))
            files, room = [], options.target_partition_bytes
        files.append(file)
        room -= file.size
    if files:
        partitions.append(LakePartition(job, tuple(files)))
    return partitions


def first_stored_after(lake: Lake, time_ms: int) -> int | None:
    """The position of the lake's first record that was stored after a time, None for none.

    Raises:
        OptionError: its files do not say when.
    """
    import pyarrow.dataset as ds

    names = lake.column_names()
    if "timestamp" not in names:
        raise OptionError(f"asOfTimestamp: the lake {lake.into} has no column timestamp")
    if time_ms >= TIME_MAX_MS:
        return None
    after = ds.field(names["timestamp"]) >= pa.scalar(
        (time_ms + 1) * 1000, pa.timestamp("us", "UTC")
    )
    found: int | None = None
    for file in lake.files:
        system, bare = lake.place.arrow(file.path)
        fragment = ds.ParquetFileFormat().make_fragment(bare, system)
        place = names["physicalOffset"]
        condition = after & (ds.field(place) < (lake.end if found is None else found))
        lowest = pc.min(fragment.to_table(columns=[place], filter=condition).column(0)).as_py()
        found = found if lowest is None else lowest
    return found


def behind(store_start: int, lake_end: int, store_end: int, where: str) -> str:
    """What of the log is in neither side, "" for nothing.

    Raises:
        DataLossError: the log ends before the lake does, so it is another one.
    """
    if store_end < lake_end:
        raise DataLossError(
            f"{where}: its CommitLog ends at {store_end} and the lake has it up to {lake_end}: "
            "the lake is another store's"
        )
    if store_start > lake_end:
        return (
            f"{where}: CommitLog {lake_end} to {store_start} is neither in the log nor in the lake"
        )
    return ""


def check_log(lake: Lake, store: StoreFiles) -> None:
    """Raises where a store's log is not the one that the lake has.

    Raises:
        DataLossError: it was cut and written on, so messages before the lake's end are in neither.
    """
    end = lake.ends[store.broker]
    if is_other_log(store, end, lake.tails[store.broker]):
        raise DataLossError(
            f"{store.root}: what lies before {end} of its CommitLog is not what the lake "
            f"{lake.into} has: the log was cut after a crash and written on, or is another one; "
            "export into another directory"
        )


# Reading.


def read_lake(
    job: LakeJob, files: Sequence[LakeFile], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of some files, as the log would give them.

    Raises:
        DataLossError: a file is gone.
        RecordError: with badBodies=fail, a body that could not be unpacked; or a column is null of
            which the schema says NOT NULL.
    """
    import pyarrow.dataset as ds

    names = job.lake.column_names()
    wanted = list(dict.fromkeys(field.column for field in job.fields))
    more = ["topic", "broker", "partition", "offset"] if job.lake.coming else []
    more += ["topic"] if job.lake.settings.one_table else []
    more += ["sysFlag"] if job.lake.settings.exact else []
    more += ["tags"] if job.tags else []
    more += ["properties"] if job.sql else []
    more += [] if job.bad_bodies is BadBodies.ROW else ["bodyError"]
    more += [each for each in PLACE if each in names] if any(map(refuses_nulls, schema)) else []
    if job.lake.settings.exact and "storedBody" in wanted:
        more += ["value"]  # a stored body that is the value itself is kept once
    columns = list(dict.fromkeys([*wanted, *more]))
    condition = _condition(job.predicate, names, job.lake.ends)
    form = ds.ParquetFileFormat()
    matches = compile_sql(job.sql) if job.sql else None
    for file in files:
        try:
            system, bare = job.lake.place.arrow(file.path)
            fragment = form.make_fragment(bare, system)
            of_batch = _batch_of(file, fragment) if job.lake.coming else None
            if of_batch is not None and of_batch > job.lake.batch:
                continue
            scanner = fragment.scanner(
                columns={column: ds.field(names[column]) for column in columns},
                filter=condition, batch_size=BATCH_ROWS,
            )  # fmt: skip
            for batch in scanner.to_batches():
                if not batch.num_rows:
                    continue
                mask = _mask(job, file, batch, matches, may_come=of_batch is None)
                if mask is not None:
                    batch = batch.filter(mask)
                if batch.num_rows:
                    yield _as_asked(job, file, batch, schema)
        except FileNotFoundError:
            raise DataLossError(
                f"{file.path} is gone; it was joined with others, or removed: ask again"
            ) from None


def _batch_of(file: LakeFile, fragment: Any) -> int | None:
    """Whose batch all rows of a file are; None for one that may have rows of several.

    Those that were joined, by whomever, do not say it of all.
    """
    said = (fragment.physical_schema.metadata or {}).get(BATCH_PROPERTY.encode())
    is_part = file.path.rpartition("/")[2].startswith("part-")
    return int(said) if is_part and said is not None else None


def _condition(predicate: Predicate, names: Mapping[str, str], ends: Mapping[str, int]) -> Any:
    """What rows of interest satisfy, as far as the files have the columns; None for all."""
    import pyarrow.dataset as ds

    found: list[Any] = []
    intervals = {
        "partition": predicate.partitions, "offset": predicate.offsets,
        "physicalOffset": predicate.log,
    }  # fmt: skip
    for column, interval in intervals.items():
        if column not in names:
            continue
        if interval.low is not None:
            found.append(ds.field(names[column]) >= interval.low)
        if interval.high is not None:
            found.append(ds.field(names[column]) <= interval.high)
    if "timestamp" in names:
        kind = pa.timestamp("us", "UTC")
        field = ds.field(names["timestamp"])
        if predicate.times.low is not None:
            found.append(field >= pa.scalar(as_long(predicate.times.low * 1000), kind))
        if predicate.times.high is not None:
            found.append(field <= pa.scalar(as_long(predicate.times.high * 1000 + 999), kind))
    texts = {"topic": predicate.topics, "broker": predicate.brokers, "tags": predicate.tags,
             "uniqueKey": predicate.unique_keys, "offsetMsgId": predicate.offset_ids,
             "msgId": predicate.message_ids}  # fmt: skip
    for column, values in texts.items():
        if values is not None and column in names:
            found.append(ds.field(names[column]).isin(pa.array(sorted(values), pa.string())))
    if predicate.keys is not None and "key" in names:
        keys = pa.array([key.encode() for key in sorted(predicate.keys)], pa.binary())
        found.append(ds.field(names["key"]).isin(keys))
    if len(ends) > 1:  # of one log the predicate says it
        broker, place = ds.field(names["broker"]), ds.field(names["physicalOffset"])
        found.append(reduce(or_, [(broker == each) & (place < end) for each, end in ends.items()]))
    return reduce(and_, found) if found else None


def _mask(
    job: LakeJob, file: LakeFile, batch: pa.RecordBatch, matches: Any, *, may_come: bool
) -> pa.Array | None:
    """Which rows the log would give; None for all.

    Args:
        job: what is asked for.
        file: whose rows they are.
        batch: the rows.
        matches: whether properties satisfy the job's expression; None without one.
        may_come: whether some may be of a batch that is not done.
    """
    masks = []
    if job.lake.settings.one_table:
        topics = batch.column("topic").unique().to_pylist()
        allowed = [topic for topic in topics if job.topics.allows(topic)]
        if len(allowed) < len(topics):
            masks.append(pc.is_in(batch.column("topic"), pa.array(allowed, pa.string())))
    if job.lake.settings.exact and not job.include_undelivered:
        kind = pc.bit_wise_and(
            batch.column("sysFlag"), pa.scalar(flags.TRANSACTION_MASK, pa.int32())
        )
        masks.append(pc.is_in(kind, pa.array([int(each) for each in _DELIVERED], pa.int32())))
    if job.lake.coming and may_come:
        masks.append(_not_coming(job.lake, file, batch))
    if job.tags:
        masks.append(pc.is_in(batch.column("tags"), pa.array(job.tags, pa.string())))
    if matches is not None:
        properties = batch.column("properties").to_pylist()
        masks.append(pa.array([bool(matches(dict(each or ()))) for each in properties]))
    if job.bad_bodies is not BadBodies.ROW:
        errors = batch.column("bodyError")
        if job.bad_bodies is BadBodies.FAIL and errors.null_count < len(errors):
            reason = next(each for each in errors.to_pylist() if each is not None)
            raise RecordError(
                f"{file.path}: {reason}. badBodies=row makes a row of it, badBodies=skip none."
            )
        masks.append(errors.is_null())
    merged: pa.Array | None = None
    for each in masks:
        merged = each if merged is None else pc.and_(merged, each)
    return merged


def _not_coming(lake: Lake, file: LakeFile, batch: pa.RecordBatch) -> pa.Array:
    """Which rows of a file of several batches are of those that are done, by their offsets.

    Raises:
        DataLossError: a topic was made again meanwhile, and its offsets do not tell.
    """
    assert lake.offsets is not None
    kept = []
    columns = (batch.column(x).to_pylist() for x in ("topic", "broker", "partition", "offset"))
    for topic, broker, queue, offset in zip(*columns, strict=True):
        key = p.QueueKey(topic, broker, queue)
        comes = any(start <= offset < end for start, end in lake.coming.get(key, ()))
        if comes and offset < lake.offsets.get(key, 0):
            raise DataLossError(
                f"{file.path}: whether offset {offset} of {key} is that of the topic as it was or "
                "as it was made again is known when the export's batch is done: export, and ask "
                "again"
            )
        kept.append(not comes)
    return pa.array(kept, pa.bool_())


def _as_asked(
    job: LakeJob, file: LakeFile, batch: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    """The columns in the types that a query asks for.

    Raises:
        RecordError: the schema says NOT NULL of one that is null.
    """

    def place(row: int) -> str:
        named = [batch.column(each)[row].as_py() for each in PLACE if each in batch.schema.names]
        return place_text(*named) if len(named) == len(PLACE) else f"in {file.path}"

    arrays = []
    for field, target in zip(job.fields, schema, strict=True):
        column = batch.column(field.column)
        if field.column == "storedBody" and job.lake.settings.exact:
            column = pc.coalesce(column, batch.column("value"))
        arrays.append(_cast(column, target.type))
        refuse_nulls(arrays[-1], target, place)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of the lake in another of its types; as `batches` makes them from records."""
    if column.type == kind:
        return column
    if pa.types.is_binary(column.type) and pa.types.is_string(kind):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:  # bytes that are no text
            texts = [x if x is None else x.decode("utf-8", "replace") for x in column.to_pylist()]
            return pa.array(texts, kind)
    if pa.types.is_timestamp(column.type) and pa.types.is_integer(kind):
        return pc.divide(column.cast(pa.int64()), 1000)
    return column.cast(kind)


# In Spark, by its own Parquet reader.


def union_frame(session: SparkSession, options: Mapping[str, str], columns: str = "") -> DataFrame:
    """One frame over log and lake, the lake's side by Spark's own Parquet reader.

    The meeting place is that of this moment; a later look needs a new frame.

    Args:
        session: where; its executors read the files under their paths here.
        options: of ``format("rocketmq")``, with ``path``, ``lake`` and, if wanted, ``subscribe``,
            ``subscribePattern``, ``sinceOffset``, ``asOfOffset`` and what concerns the log alone.
        columns: as the option ``columns``, which counts if this is not given; all but raw bytes
            without either.

    Raises:
        OptionError: what the two sides cannot give together.
    """
    from pyspark.sql import functions as f

    given = dict(options)
    parsed = parse_read_options(given, streaming=False)
    columns = columns or parsed.columns
    if parsed.body.kind != "raw":  # decoded in Python tasks, on both sides
        wanted = columns or f"{_default_columns()},body"
        return session.read.format("rocketmq").options(**given).option("columns", wanted).load()
    fields = parse_columns(columns or _default_columns())
    lake = open_lake(parsed.lake, parsed.storage)
    check_lake(lake, parsed, fields)
    plain = (
        len(lake.ends) == 1 and not lake.settings.exact and not lake.settings.one_table
        and not parsed.filter_tags and not parsed.filter_sql
        and parsed.bad_bodies is BadBodies.ROW and parsed.as_of_timestamp_ms is None
        and isinstance(lake.place, LocalPlace)
    )  # fmt: skip
    wanted = ",".join(field.name for field in fields)
    if not plain:
        whole = session.read.format("rocketmq").options(**given)
        return whole.option("columns", wanted).load()
    stores = p.open_stores(parsed)
    check_topics(lake, parsed, stores.known_topics())
    for store in stores.files:
        if store.broker in lake.ends:
            check_log(lake, store)
    topics = p.TopicFilter(parsed.selection)
    files = [x.path for x in lake.files if not x.topic or topics.allows(x.topic)]
    begin = parsed.since_offset or 0

    def log() -> DataFrame:
        # What an export adds between now and the query comes from there as well: no gap.
        since = {"sinceOffset": str(max(lake.end, begin)), "columns": wanted}
        return session.read.format("rocketmq").options(**given).options(**since).load()

    if not files or begin >= lake.end:
        return log()
    cut = parsed.as_of_offset
    names = lake.column_names()
    end = lake.end if cut is None else min(lake.end, cut)
    place = f.col(names["physicalOffset"])
    # Directories name=value above the lake are no columns of its files.
    reader = session.read.option("basePath", lake.into).schema(_file_schema(lake, fields))
    own = reader.parquet(*files).where((place >= begin) & (place < end))
    old = own.select(*(f.col(names[field.column]).alias(field.name) for field in fields))
    return old if cut is not None and cut <= lake.end else old.unionByName(log())


def _default_columns() -> str:
    raw = {"storedBody", "storedProperties"}
    return ",".join(name for name in ALL_COLUMNS if name not in raw)


def _file_schema(lake: Lake, fields: Sequence[Field]) -> Any:
    from oberth.spark.schemas import struct_type

    names = lake.column_names()
    columns = dict.fromkeys([*(field.column for field in fields), "physicalOffset"])
    return struct_type(
        Field(names[column], column, COLUMN_BY_NAME[column].types[0]) for column in columns
    )
