"""What a task of an export does: a range of the log becomes Parquet files.

There is one for each table and partition.

Every file says in its metadata which range of which store's log it was made from:

    oberth.broker   oberth.log.start   oberth.log.end   oberth.segment.size   oberth.batch

and of a Parquet table's partition what `directories` cannot say.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from oberth.errors import DataLossError
from oberth.formats import sys_flag as flags
from oberth.spark import plan as p
from oberth.spark.options import Selection, SelectionKind
from oberth.spark.pipelines.export.directories import directory_of, partition_metadata
from oberth.spark.pipelines.export.live import LiveOrigin, LivePart
from oberth.spark.pipelines.export.places import Place
from oberth.spark.pipelines.export.settings import (
    ODD_TIMES,
    ONE_TABLE,
    QUARANTINE,
    ExportedTopics,
    ExportSettings,
    table_name,
)
from oberth.spark.schemas import Field, parse_columns
from oberth.spark.store_files import StoreFiles

GROUP_BYTES: Final = 32 << 20
"""Bytes of rows that become one row group, and that all open files together may hold back."""
HELD_BACK_MAX: Final = 256 << 20
OPEN_FILES_MAX: Final = 200
COMPRESSION_LEVEL: Final = 1
_DICTIONARY: Final = (
    "topic", "broker", "tags", "bornHost", "storeHost", "partition", "timestampType", "flag",
    "sysFlag", "reconsumeTimes", "preparedTransactionOffset", "magic", "reason",
)  # fmt: skip
"""Columns whose values repeat; the others would only fill dictionaries."""
_STATISTICS: Final = (
    "offset", "physicalOffset", "timestamp", "bornTimestamp", "partition", "topic", "size",
    "storedQueueOffset", "innerIndex",
)  # fmt: skip


class WrittenFile(NamedTuple):
    """A file of an export.

    Attributes:
        table: the table that it is of.
        partition: partition values by name.
        path: where it was written.
        rows: how many.
        size: bytes.
        log_start: the range of the log that it was made from.
        log_end: behind that range.
        broker: whose log that is, or which brokers' topics.
        low: smallest value by column, of those that tables keep statistics of.
        high: largest value by column.
    """

    table: str
    partition: tuple[tuple[str, str | None], ...]
    path: str
    rows: int
    size: int
    log_start: int
    log_end: int
    broker: str
    low: Mapping[str, Any]
    high: Mapping[str, Any]


@dataclass(slots=True)
class RangeWritten:
    """What a task wrote: files, what was skipped as damaged, rows that did not decode."""

    files: list[WrittenFile] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    rows: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class RowsJob:
    """What all tasks of a batch have in common.

    Attributes:
        settings: of the export.
        stores: the stores' files, or the live brokers.
        directory: where tables are, or are staged.
        suffix: behind the files' names.
        batch: its number.
        skip_damage: whether damage is reported rather than an error.
        in_file: whether partition columns are in the files too.
        hive: whether files lie in directories ``name=value``.
        place: the file system of that directory.
    """

    settings: ExportSettings
    stores: tuple[StoreFiles, ...] | LiveOrigin
    directory: str
    suffix: str
    batch: int
    skip_damage: bool
    in_file: bool
    hive: bool
    place: Place


class LogPart(NamedTuple):
    """One task: records that start in this range of one store's log.

    ``store`` is its place among the job's, ``segment_size`` that of its CommitLog files.
    """

    start: int
    end: int
    store: int = 0
    segment_size: int = 0


def write_rows(job: RowsJob, part: LogPart | LivePart) -> RangeWritten:
    """In a task: writes the rows of a range.

    Raises:
        DataLossError: something is damaged, unless that is to be skipped.
        OSError: something cannot be read or written.
    """
    return _RangeExport(job, part).run()


class _RangeExport:
    """One range."""

    def __init__(self, job: RowsJob, part: LogPart | LivePart) -> None:
        self._job = job
        self._part = part
        self._decoder = job.settings.decoder()
        self._partitions = job.settings.partitions()
        self._files: dict[tuple[str, tuple[str | None, ...]], _OpenFile] = {}
        self._held = 0
        self._written = RangeWritten()

    def run(self) -> RangeWritten:
        from oberth.spark.reading import PieceReader, ReadSettings

        settings = self._job.settings
        fields = settings.fields()
        reading = ReadSettings(
            # The table that a row goes to, and what its body is, come from these.
            fields=_with(
                fields,
                "topic",
                *(() if settings.exact else ("bodyError",)),
                *(() if self._decoder is None else ("value",)),
            ),
            topics=ExportedTopics(Selection(SelectionKind.ALL), settings),
            fail_on_data_loss=not self._job.skip_damage,
            include_undelivered=settings.exact,
        )
        schema = pa.schema(
            [*settings.record_schema(), *_extra(settings.record_schema(), reading.fields)]
        )
        pieces: tuple[p.Piece, ...]
        stores, part = self._job.stores, self._part
        if isinstance(part, LivePart):
            assert isinstance(stores, LiveOrigin)
            reader: PieceReader = stores.reader(reading, schema)
            pieces = part.pieces
        else:
            assert isinstance(stores, tuple)
            reader = PieceReader({0: stores[part.store]}, reading, schema)
            pieces = (p.LogRange(0, part.start, part.end, continues=True),)
        try:
            for batch in reader.read(pieces):
                self._batch(batch)
            for file in self._files.values():
                self._written.files.append(file.finish())
        except BaseException:
            for file in self._files.values():
                file.discard()
            raise
        self._written.skipped = reader.report.lost
        return self._written

    def _batch(self, batch: pa.RecordBatch) -> None:
        settings = self._job.settings
        names = settings.record_schema().names
        table = pa.Table.from_batches([batch])
        if settings.exact:
            table = without_repeated_bodies(table)
            if settings.odd_times:
                table = with_odd_times_only(table)
            else:
                refuse_odd_times(table)
        if not settings.exact:
            table = self._readable(table)
        rows = table.select(names)
        bad: pa.Table | None = None
        topics = table.column("topic").combine_chunks()
        if self._decoder is not None:
            values, reasons = self._decoder.decode(table.column("value").combine_chunks())
            rows = rows.append_column(pa.field("body", self._decoder.type), values)
            if reasons:
                wrong = pa.array(sorted(reasons), pa.int64())
                mask = pc.is_in(pa.array(range(len(rows)), pa.int64()), wrong)
                texts = pa.array([reasons[row] for row in sorted(reasons)], pa.string())
                bad = rows.select(names).take(wrong).append_column("reason", texts)
                self._split(bad, topics.take(wrong), quarantine=True)
                rows, topics = rows.filter(pc.invert(mask)), topics.filter(pc.invert(mask))
        self._written.rows += rows.num_rows
        if rows.num_rows:
            self._split(rows, topics, quarantine=False)

    def _readable(self, table: pa.Table) -> pa.Table:
        """The rows whose bodies could be unpacked; the others go to quarantine as they are stored.

        An exact export needs no such thing: it holds the stored bodies.
        """
        errors = table.column("bodyError").combine_chunks()
        if errors.null_count == len(errors):
            return table
        bad = table.filter(errors.is_valid())
        rows = bad.select(self._job.settings.record_schema().names)
        reasons = bad.column("bodyError").cast(pa.string())
        self._split(
            rows.append_column("reason", reasons), bad.column("topic").combine_chunks(),
            quarantine=True,
        )  # fmt: skip
        return table.filter(errors.is_null())

    def _split(self, rows: pa.Table, topics: pa.Array, *, quarantine: bool) -> None:
        """Gives each row to its file."""
        job = self._job
        if quarantine:
            self._written.quarantined += rows.num_rows
        keys = [] if job.settings.one_table else [topics]
        partitions = () if quarantine else self._partitions
        values = [each.values(rows) for each in partitions]
        for each, value in zip(partitions, values, strict=True):
            if each.name in rows.schema.names:
                rows = rows.remove_column(rows.schema.get_field_index(each.name))
            if job.in_file:
                rows = rows.append_column(pa.field(each.name, pa.string()), value)
        for key, chosen in _groups([*keys, *values], rows.num_rows):
            table = ONE_TABLE if job.settings.one_table else table_name(str(key[0]))
            if quarantine:
                table += QUARANTINE
            partition = key if job.settings.one_table else key[1:]
            part = rows if chosen is None else rows.take(chosen)
            self._add(table, tuple(each.name for each in partitions), partition, part)

    def _add(
        self, table: str, names: tuple[str, ...], values: tuple[str | None, ...], rows: pa.Table
    ) -> None:
        file = self._files.get((table, values))
        if file is None:
            while len(self._files) >= OPEN_FILES_MAX:
                oldest = next(iter(self._files))
                done = self._files.pop(oldest)
                self._held -= done.held
                self._written.files.append(done.finish())
            file = _OpenFile(self._job, self._part, table, names, values, rows.schema)
        else:
            # The file that waits longest is the first to be closed.
            del self._files[table, values]
        self._files[table, values] = file
        before = file.held
        file.add(rows)
        self._held += file.held - before
        if self._held > HELD_BACK_MAX:
            for each in self._files.values():
                each.flush()
            self._held = 0


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(
        self,
        job: RowsJob,
        part: LogPart | LivePart,
        table: str,
        names: tuple[str, ...],
        values: tuple[str | None, ...],
        schema: pa.Schema,
    ) -> None:
        self._part = part
        self._table = table
        self._partition = tuple(zip(names, values, strict=True))
        directory = os.path.join(job.directory, table)
        if job.hive:
            for name, value in self._partition:
                directory = os.path.join(directory, directory_of(name, value))
        self._place = job.place
        self._place.make(directory)
        name = f"part-{job.batch:08d}-{part.start:020d}-{uuid.uuid4().hex[:12]}.parquet"
        self.path = os.path.join(directory, name + job.suffix)
        stores = job.stores
        if isinstance(part, LivePart):
            assert isinstance(stores, LiveOrigin)
            self._broker, segment_size = stores.broker, 0
        else:
            assert isinstance(stores, tuple)
            self._broker, segment_size = stores[part.store].broker, part.segment_size
        metadata = {
            **(schema.metadata or {}),
            **file_metadata(self._broker, part.start, part.end, segment_size, job.batch),
            **(partition_metadata(self._partition) if job.hive else {}),
        }
        self._schema = schema.with_metadata(metadata)
        self._sink = self._place.open(self.path)
        self._writer = pq.ParquetWriter(self._sink, self._schema, **writer_options(schema))
        self._rows: list[pa.Table] = []
        self.held = 0
        self._count = 0
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}
        self._unbounded: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self.held += rows.nbytes
        if self.held >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        table = pa.concat_tables(self._rows).replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._count += table.num_rows
        for name in _STATISTICS:
            if name in table.schema.names:
                self._widen(name, pc.min_max(table.column(name)))
        self._rows.clear()
        self.held = 0

    def _widen(self, name: str, found: pa.StructScalar) -> None:
        """Takes further values of a column into what the table says of the file."""
        if name in self._unbounded or not found["min"].is_valid:
            return
        try:
            low, high = found["min"].as_py(), found["max"].as_py()
        except OverflowError:  # a producer may name any time, also one that no calendar has
            self._unbounded.add(name)
            self._low.pop(name, None)
            self._high.pop(name, None)
            return
        self._low[name] = min(self._low.get(name, low), low)
        self._high[name] = max(self._high.get(name, high), high)

    def finish(self) -> WrittenFile:
        self.flush()
        self._close()
        return WrittenFile(
            self._table, self._partition, self.path, self._count, self._place.finish(self.path),
            self._part.start, self._part.end, self._broker, self._low, self._high,
        )  # fmt: skip

    def discard(self) -> None:
        self._close()
        self._place.remove(self.path)

    def _close(self) -> None:
        self._writer.close()
        if not isinstance(self._sink, str):
            self._sink.close()


def writer_options(schema: pa.Schema) -> dict[str, Any]:
    """How files are written."""
    return {
        "compression": "zstd",
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": [name for name in schema.names if name in _DICTIONARY],
        "write_statistics": [
            name for name in schema.names
            if name in _STATISTICS or pa.types.is_string(schema.field(name).type)
        ],
    }  # fmt: skip


def file_metadata(
    broker: str, log_start: int, log_end: int, segment_size: int, batch: int
) -> dict[bytes, bytes]:
    """What each file says of itself."""
    return {
        b"oberth.broker": broker.encode(),
        b"oberth.log.start": b"%d" % log_start,
        b"oberth.log.end": b"%d" % log_end,
        b"oberth.segment.size": b"%d" % segment_size,
        b"oberth.batch": b"%d" % batch,
    }


def without_repeated_bodies(table: pa.Table) -> pa.Table:
    """Stored bodies that are the values themselves become null: `import` takes the value then."""
    system = table.column("sysFlag").combine_chunks()
    same = pc.equal(
        pc.bit_wise_and(system, pa.scalar(flags.COMPRESSED | flags.INNER_BATCH, system.type)), 0
    )
    stored = table.column("storedBody").combine_chunks()
    index = table.schema.get_field_index("storedBody")
    kept = pc.if_else(same, pa.scalar(None, stored.type), stored)
    return table.set_column(index, table.schema.field(index), kept)


def with_odd_times_only(table: pa.Table) -> pa.Table:
    """Times in ms become null where the timestamp has them: `import` takes that one then."""
    for column, name in ODD_TIMES.items():
        index = table.schema.get_field_index(name)
        kept = pc.if_else(
            table.column(column).is_null(), table.column(name), pa.scalar(None, pa.int64())
        )
        table = table.set_column(index, table.schema.field(index), kept)
    return table


def refuse_odd_times(table: pa.Table) -> None:
    """Raises for a time that no calendar has, in an exact export without columns for it.

    Raises:
        DataLossError: whose.
    """
    for name in ODD_TIMES:
        times = table.column(name)
        if times.null_count:
            row = times.is_null().index(True).as_py()
            broker, topic, at = (
                table.column(each)[row].as_py() for each in ("broker", "topic", "physicalOffset")
            )
            raise DataLossError(
                f"{broker}: no calendar has the {name} of the record at CommitLog {at} (topic "
                f"{topic}), and this exact export was begun without a column for such times: "
                "export into another directory"
            )


def _with(fields: tuple[Field, ...], *columns: str) -> tuple[Field, ...]:
    present = {each.column for each in fields if each.name == each.column}
    missing = [each for each in columns if each not in present]
    return (*fields, *(parse_columns(",".join(missing)) if missing else ()))


def _extra(schema: pa.Schema, fields: tuple[Field, ...]) -> list[pa.Field]:
    kinds = {"topic": pa.string(), "value": pa.binary(), "bodyError": pa.string()}
    return [pa.field(each.name, kinds[each.column]) for each in fields[len(schema) :]]


def _groups(keys: list[pa.Array], count: int) -> list[tuple[tuple[Any, ...], pa.Array | None]]:
    """Which rows have which keys; None for all of them."""
    if not keys:
        return [((), None)]
    coded = []
    for key in keys:
        each = key.dictionary_encode()
        coded.append((each.dictionary.to_pylist(), each.indices))
    if all(len(names) == 1 and not codes.null_count for names, codes in coded):
        return [(tuple(names[0] for names, _ in coded), None)]
    code: Any = None
    sizes = []
    for names, codes in coded:
        filled = codes.fill_null(len(names)).cast(pa.int64())
        sizes.append(len(names) + 1)
        code = filled if code is None else pc.add(pc.multiply(code, sizes[-1]), filled)
    found = []
    for value in pc.unique(code).to_pylist():
        rows = pc.indices_nonzero(pc.equal(code, value))
        parts = []
        for (names, _), size in zip(reversed(coded), reversed(sizes), strict=True):
            number = value % size
            value //= size
            parts.append(names[number] if number < len(names) else None)
        found.append((tuple(reversed(parts)), rows))
    return found
