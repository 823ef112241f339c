"""Reads the pieces of a plan into Arrow batches: what a task of Spark does.

A row comes out only if its record is whole, names its own position, passes its checksums and has
its properties' end (both unless verifyCrc is off), and is where a record has to be: what the unit
of a queue promises, or what begins where the record before ends (`oberth.spark.record_starts`).
Everything else is damage: DataLossError with failOnDataLoss, else skipped and reported with its
exact range, once. Damage between two records belongs to the range in which it begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from oberth.errors import DataLossError, NotFoundError, RecordError
from oberth.formats import consume_queue as simple
from oberth.formats import sys_flag as flags
from oberth.formats.batch_body import BatchItem
from oberth.formats.consume_queue import EXT_ADDRESS_MAX
from oberth.formats.java_string import tags_hash
from oberth.formats.message import FIXED_SIZE_V1, stated_size
from oberth.formats.names import LMQ_QUEUE_ID, SCHEDULE_TOPIC, is_lmq
from oberth.formats.properties import decode_properties, find_property
from oberth.kernels.arguments import CrcMode, ScanEnd
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.gather import gather_spans
from oberth.kernels.memory import SpareMemory
from oberth.kernels.scan import scan
from oberth.spark.batch_offsets import BatchOffsets
from oberth.spark.batches import BatchMaker, Records, scan_columns
from oberth.spark.log_tail import light_offsets
from oberth.spark.options import BadBodies
from oberth.spark.plan import LogRange, Lookup, Piece, QueueRange, SideBySide, TopicFilter
from oberth.spark.predicates import EVERYTHING, Predicate
from oberth.spark.queue_files import QueueFiles
from oberth.spark.record_damage import damaged
from oberth.spark.record_masks import (
    has_tag,
    interval_masks,
    matching,
    near_in_time,
    numbers_said,
    within,
)
from oberth.spark.record_starts import RecordStarts
from oberth.spark.schemas import Field
from oberth.spark.segments import RECORD_SIZE_MAX, QueueName, Segment
from oberth.spark.sql_filter import compile_sql
from oberth.spark.storage import AHEAD_SIZE, EACH_MAX
from oberth.spark.store_files import OpenedRange, StoreFiles
from oberth.spark.unit_merge import Units, are_apart, merged, together

_LOG: Final = logging.getLogger(__name__)

BATCH_ROWS_MAX: Final = 16_384
"""Records of one batch at most; the bytes of a batch are the option batchBytes."""
_SPARSE: Final = 8
"""Where a file cannot be mapped, records of a queue are read one by one when what lies between them
is more than this many times what they have, else the whole stretch at once."""
_POSITION_MAX: Final = 2**63 - 1 - RECORD_SIZE_MAX
"""A record that began behind it could end behind the largest position there is."""
_DENSE: Final = 1.25
"""Up to how many times their own bytes records may be apart to be read with what lies between."""
_UNITS_AT_ONCE: Final = 200_000
_BEHIND_RANGE: Final = 16 << 10
"""How far behind its end a range of the log is read, for the record that it ends in."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a task needs to know besides its pieces.

    Attributes:
        fields: the columns to make.
        topics: which topics a range of the log gives rows of.
        predicate: what else rows have to satisfy; weaker than the query's own filters.
        tags: TAGS values of filter.tag; rows have one of them. Empty: any.
        sql: the expression of filter.sql over properties, or "".
        batch_bytes: bytes of log that one batch covers.
        fail_on_data_loss: whether damage is an error.
        verify_crc: whether bodies have to pass their CRC.
        include_undelivered: whether ranges of the log give prepared and rolled back messages too.
        bad_bodies: what becomes of a record whose body cannot be unpacked.
    """

    fields: tuple[Field, ...]
    topics: TopicFilter
    predicate: Predicate = EVERYTHING
    tags: tuple[str, ...] = ()
    sql: str = ""
    batch_bytes: int = 4 << 20
    fail_on_data_loss: bool = True
    verify_crc: bool = True
    include_undelivered: bool = False
    bad_bodies: BadBodies = BadBodies.ROW


@dataclass(slots=True)
class ReadReport:
    """What a reader did, for tests and messages.

    Attributes:
        lost: what was skipped as damaged or gone, each with its exact range.
        records: records that were looked at.
        bad_bodies: records whose bodies could not be unpacked, and why.
    """

    lost: list[str] = field(default_factory=list)
    records: int = 0
    bad_bodies: list[str] = field(default_factory=list)


class Origin(Protocol):
    """Where records come from: a store, or a live broker."""

    @property
    def broker(self) -> str:
        """The broker's name."""

    @property
    def root(self) -> str:
        """Where that is, for messages."""


class PieceReader:
    """Reads pieces; holds one buffer and one set of columns, so one thread at a time."""

    def __init__(
        self, stores: Mapping[int, StoreFiles], settings: ReadSettings, schema: pa.Schema
    ) -> None:
        self._stores = stores
        self._settings = settings
        self._memory = SpareMemory()
        self._maker = BatchMaker(settings.fields, schema, self._memory)
        names = set(scan_columns(settings.fields))
        names |= {"topic_id", "queue_id", "queue_offset", "stored_offset", "record_size"}
        names |= {"crc_ok", "sys_flag", "commit_log_offset"}
        predicate = settings.predicate
        if not predicate.times.is_everything:
            names.add("store_timestamp")
        if settings.tags or predicate.tags is not None:
            names |= {"tags_at", "tags_size", "tags_code"}
        self._names = tuple(sorted(names))
        self._columns = Columns(BATCH_ROWS_MAX, self._names)
        self._topics = TopicTable()
        self._buffer = bytearray()
        self._crc = CrcMode.MARK if settings.verify_crc else CrcMode.NONE
        self._tag_codes = predicate.tag_codes()
        self._sql = compile_sql(settings.sql) if settings.sql else None
        self._opened: dict[QueueRange, OpenedRange | None] = {}
        self._files: dict[QueueRange, QueueFiles] = {}  # of the ranges that are read
        self.report = ReadReport()

    def read(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of the pieces, in their order.

        Raises:
            DataLossError: with failOnDataLoss, something is damaged or gone.
        """
        self._opened.clear()
        self._files.clear()
        for number, piece in enumerate(pieces):
            if isinstance(piece, QueueRange):
                yield from self._queue(piece, islice(pieces, number + 1, number + EACH_MAX))
            elif isinstance(piece, SideBySide):
                store, step = self._stores[piece.queues[0].store], self._step(len(piece.queues))
                opened = _open(store, piece.queues, step)
                yield from self._queues(store, piece.queues, opened, step)
            elif isinstance(piece, LogRange):
                yield from self._log(piece)
            else:
                yield from self._lookup(piece)

    # Damage.

    def _loss(self, text: str) -> None:
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{text}. With failOnDataLoss=false it is skipped and reported.")
        self.report.lost.append(text)
        _LOG.warning("data loss, skipped: %s", text)

    # Ranges of the log.

    def _log(self, piece: LogRange) -> Iterator[pa.RecordBatch]:
        store = self._stores[piece.store]
        at = piece.start
        limits = None if piece.limits is None else _limits_by_queue(piece.limits)
        store.list_where_far()
        while at < piece.end:
            segment = store.segment_of(at)
            if segment is None:
                later = [s.start for s in store.segments() if s.start > at]
                following = min([piece.end, *later])
                self._loss(f"{store.root}: CommitLog {at} to {following} is gone, no file holds it")
                at = following
                continue
            stop = min(piece.end, segment.end)
            continues = piece.continues and at == piece.start
            yield from self._segment_range(store, segment, at, stop, limits, continues=continues)
            at = segment.end

    def _segment_range(
        self,
        store: StoreFiles,
        segment: Segment,
        start: int,
        stop: int,
        limits: Mapping[tuple[str, int], tuple[int, int]] | None,
        *,
        continues: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Records of one file that start in [start, stop), positions as CommitLog offsets."""
        path, base = segment.path, segment.start
        starts = RecordStarts(store, check_crc=self._settings.verify_crc)
        reach = min(stop + _BEHIND_RANGE, segment.end) - base
        store.storage.will_read(path, start - base, reach)  # while the first record is looked for
        try:
            first = starts.first(segment, start)
        except NotFoundError:
            self._loss(f"{path}: CommitLog {start} to {stop} is gone, the file was deleted")
            return
        at = first.offset
        if first.damage is not None and not continues and self._is_inside(store, at):
            self._loss(f"{path}: CommitLog {start} to {at} is no record")
        if at - start > AHEAD_SIZE:  # behind much damage
            store.storage.will_read(path, at - base, reach)
        chunk = min(self._settings.batch_bytes, stop - at + _BEHIND_RANGE)
        while at < stop:
            try:
                data = self._fill(store, path, at - base, chunk)
            except NotFoundError:
                self._loss(f"{path}: CommitLog {at} to {stop} is gone, the file was deleted")
                return
            if len(data) == 0:
                return
            self._columns.clear()
            ended = scan(
                data, self._columns, self._topics, base=at, stop=min(len(data), stop - at),
                crc=self._crc, record_size_max=RECORD_SIZE_MAX,
            )  # fmt: skip
            if self._columns.count:
                yield from self._emit(store, self._records(store, data), limits)
            at += ended.position
            if ended.position:
                chunk = min(self._settings.batch_bytes, max(stop - at, 0) + _BEHIND_RANGE)
            if ended.end in (ScanEnd.STOP, ScanEnd.FULL):
                continue
            if ended.end is ScanEnd.TRUNCATED:
                if ended.position:
                    continue  # it goes on in what is read next
                size = stated_size(data)
                if len(data) == chunk < size <= RECORD_SIZE_MAX:
                    chunk = size
                    continue
            following = starts.after_damage(segment, at)
            if following is None and (
                ended.end is ScanEnd.BLANK or not self._is_inside(store, segment.end)
            ):
                return
            upto = segment.end if following is None else following
            reason = "is no record" if ended.end is not ScanEnd.BLANK else "a blank inside the file"
            self._loss(f"{path}: CommitLog {at} to {upto}: {reason} ({ended.end.name})")
            at = upto

    def _is_inside(self, store: StoreFiles, offset: int) -> bool:
        """Whether the log goes on at or after an offset."""
        return offset < store.log_end()

    def _fill(self, store: StoreFiles, path: str, position: int, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        target = memoryview(self._buffer)[:size]
        return target[: store.storage.read_into(path, position, target)]

    def _records(self, store: StoreFiles, data: Any) -> Records:
        columns = {name: self._columns.array(name) for name in self._names}
        return Records(data, columns, self._columns.count, self._topics.names, store.broker)

    # From scanned records to rows.

    def _emit(
        self,
        store: StoreFiles,
        records: Records,
        limits: Mapping[tuple[str, int], tuple[int, int]] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the records that are wanted; those that are damaged are reported."""
        self.report.records += records.count
        wanted = self._wanted(records, limits)
        if wanted is not None:
            if not wanted.any():
                return
            if not wanted.all():
                records = records.take(np.flatnonzero(wanted))
        yield from self._rows(store, records, limits)

    def _rows(
        self,
        store: Origin,
        records: Records,
        limits: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        records = self._drop_damaged(store, records)
        if self._sql is not None and records.count:
            records = records.take(np.flatnonzero(matching(records, self._sql)))

        def bad(number: int, reason: str) -> bool:
            text = _describe(store, records, number, reason)
            if self._settings.bad_bodies is BadBodies.FAIL:
                raise RecordError(f"{text}. badBodies=row makes a row of it, badBodies=skip none.")
            is_row = self._settings.bad_bodies is BadBodies.ROW
            self.report.bad_bodies.append(text)
            done = "is read as it is stored" if is_row else "is skipped"
            _LOG.warning("a message's body %s: %s", done, text)
            return is_row

        yield from self._maker.batches(records, bad, self._item_filter(records, limits))

    def _item_filter(
        self,
        records: Records,
        limits: Mapping[tuple[str, int], tuple[int, int]] | None,
    ) -> Callable[[int, int, BatchItem], bool] | None:
        """Whether a message inside an inner batch is wanted: what holds for records, by item."""
        tags = frozenset(tag.encode() for tag in self._settings.tags)
        sql = self._sql
        if limits is None and not tags and sql is None:
            return None

        def keep(number: int, index: int, item: BatchItem) -> bool:
            if limits is not None:
                topic = records.topics[int(records.columns["topic_id"][number])]
                queue = int(records.columns["queue_id"][number])
                start, end = limits.get((topic.decode("utf-8", "replace"), queue), (0, 0))
                if not start <= records.base_offset(number) + index < end:
                    return False
            if tags and find_property(item.properties, b"TAGS") not in tags:
                return False
            return sql is None or sql(decode_properties(item.properties))

        return keep

    def _drop_damaged(self, store: Origin, records: Records) -> Records:
        if not self._settings.verify_crc or records.count == 0:
            return records
        bad, reasons = damaged(store if isinstance(store, StoreFiles) else None, records)
        if not bad.any():
            return records
        for number in np.flatnonzero(bad).tolist():
            reason = reasons.get(number, "it fails its CRC")
            self._loss(_describe(store, records, number, reason))
        return records.take(np.flatnonzero(~bad))

    def _wanted(
        self,
        records: Records,
        limits: Mapping[tuple[str, int], tuple[int, int]] | None,
    ) -> Any:
        """A mask of the records that a range of the log is read for; None for all."""
        settings, predicate = self._settings, self._settings.predicate
        columns = records.columns
        masks = []
        ids = columns["topic_id"]
        allowed = np.array([self._allows(name) for name in records.topics] or [True], dtype=bool)
        if not allowed.all():
            masks.append(allowed[ids])
        sys_flags = columns["sys_flag"]
        if not settings.include_undelivered:
            kind = sys_flags & flags.TRANSACTION_MASK
            delivered = (kind == flags.TRANSACTION_NOT) | (kind == flags.TRANSACTION_COMMIT)
            if not delivered.all():
                masks.append(delivered)
        if limits is not None:
            masks.append(within(records, limits))
        masks += interval_masks(columns["queue_id"], predicate.partitions)
        if not predicate.times.is_everything:
            masks += interval_masks(columns["store_timestamp"], predicate.times)
        masks += interval_masks(columns["stored_offset"], predicate.log)
        plain = (sys_flags & flags.INNER_BATCH) == 0
        for mask in (
            *interval_masks(columns["queue_offset"], predicate.offsets),
            *self._tag_masks(records),
        ):
            # The messages of an inner batch have offsets and tags of their own.
            masks.append(mask | ~plain)
        if not masks:
            return None
        merged = masks[0]
        for mask in masks[1:]:
            merged = merged & mask
        return merged

    def _allows(self, raw: bytes) -> bool:
        topic = raw.decode("utf-8", "replace")
        wanted = self._settings.predicate.topics
        return self._settings.topics.allows(topic) and (wanted is None or topic in wanted)

    def _tag_masks(self, records: Records) -> list[Any]:
        masks = []
        tags = self._settings.tags
        if tags:
            masks.append(has_tag(records, frozenset(tag.encode() for tag in tags)))
        if self._settings.predicate.tags is not None:
            wanted = frozenset(tag.encode() for tag in self._settings.predicate.tags)
            masks.append(has_tag(records, wanted))
        return masks

    # Queues.

    def _queue(self, piece: QueueRange, later: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """A range of a queue.

        Args:
            piece: the range.
            later: what is read next: opened along with it where the storage is far.
        """
        store, step = self._stores[piece.store], self._step(1)
        if piece not in self._opened:
            some = [piece]
            if store.storage.is_far:
                for each in later:
                    if not isinstance(each, QueueRange) or each.store != piece.store:
                        break
                    some.append(each)
            self._opened = dict(zip(some, _open(store, some, step), strict=True))
        yield from self._queues(store, (piece,), (self._opened.pop(piece),), step)

    def _step(self, queues: int) -> int:
        """How many units of each of some queues are read at once."""
        step = max(self._settings.batch_bytes // 20, 1024)
        return max(min(step, _UNITS_AT_ONCE) // queues, 1024)

    def _queues(
        self,
        store: StoreFiles,
        pieces: Sequence[QueueRange],
        opened: Sequence[OpenedRange | None],
        step: int,
    ) -> Iterator[pa.RecordBatch]:
        """Ranges of queues of one store."""
        both = zip(pieces, opened, strict=True)
        units = [self._units(store, piece, found, step) for piece, found in both]
        for some in merged(units):
            yield from self._promised(store, pieces, some)

    def _units(
        self, store: StoreFiles, piece: QueueRange, opened: OpenedRange | None, step: int
    ) -> Iterator[Units]:
        """The units of a queue that can name wanted records, some at a time."""
        if opened is None:
            self._lost_offsets(store, piece, piece.start, piece.end, "the topic is gone")
            return
        queue, number, last, run = opened
        self._files[piece] = queue
        batch = BatchOffsets(piece.start, piece.end) if queue.is_batch else None
        while number < last:
            begin, units = run or queue.read_run(number, last, step)
            if begin > number and batch is None:
                self._lost_offsets(store, piece, number, begin, "no file holds them")
            if len(units):
                yield self._usable(store, piece, units, begin, batch)
            number, run = begin + len(units), None
        for first, end in batch.gaps() if batch is not None else ():
            self._lost_offsets(store, piece, first, end, "no unit names them")

    def _lost_offsets(
        self, store: Origin, piece: QueueRange, first: int, last: int, why: str
    ) -> None:
        self._loss(f"{_queue_text(store, piece)}: offsets {first} to {last} are gone, {why}")

    def _usable(
        self, store: StoreFiles, piece: QueueRange, units: Any, first: int,
        batch: BatchOffsets | None,
    ) -> Units:  # fmt: skip
        if batch is not None:
            units = units[batch.named(units, first)]
        positions = units["offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        if batch is not None:
            offsets = units["base"].astype(np.int64)
        else:
            offsets = np.arange(first, first + len(units), dtype=np.int64)
        usable = (
            (positions >= 0) & (positions <= _POSITION_MAX)
            & (sizes >= FIXED_SIZE_V1) & (sizes != simple.PRE_BLANK_SIZE)
            & (sizes <= RECORD_SIZE_MAX)
        )  # fmt: skip
        if not usable.all():
            for number in np.flatnonzero(~usable).tolist():
                self._loss(
                    f"{_queue_text(store, piece)}, offset {offsets[number]}: its unit names "
                    f"{sizes[number]} bytes at {positions[number]}"
                )
        wanted = usable
        if batch is None and not is_lmq(piece.topic):
            wanted = wanted & self._units_with_tags(units["tags"].astype(np.int64), piece.topic)
        log = self._settings.predicate.log
        for mask in interval_masks(positions, log):
            wanted = wanted & mask
        if not wanted.all():
            positions, sizes, offsets = positions[wanted], sizes[wanted], offsets[wanted]
        if batch is None and not self._settings.predicate.times.is_everything:
            near = near_in_time(store, positions, sizes, self._settings.predicate.times)
            positions, sizes, offsets = positions[near], sizes[near], offsets[near]
        return Units(positions, sizes, offsets, batch=batch)

    def _units_with_tags(self, codes: Any, topic: str) -> Any:
        """Units whose tags code does not rule them out."""
        every = np.ones(len(codes), bool)
        if topic == SCHEDULE_TOPIC:  # its codes are due times
            return every
        for wanted in (
            self._tag_codes,
            frozenset(tags_hash(t.encode()) for t in self._settings.tags) or None,
        ):
            if wanted is not None:
                every &= np.isin(codes, np.array(sorted(wanted), np.int64)) | (
                    codes <= EXT_ADDRESS_MAX
                )
        return every

    def _promised(
        self, store: StoreFiles, pieces: Sequence[QueueRange], units: Units
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the records that units name, in the units' order."""
        at = 0
        limit = self._settings.batch_bytes
        positions, sizes = units.positions, units.sizes
        asked = -1
        while at < len(positions):
            count = together(positions, sizes, at, limit, BATCH_ROWS_MAX)
            segment = store.segment_of(int(positions[at]))
            if segment is not None:
                beyond = np.flatnonzero(
                    positions[at : at + count] + sizes[at : at + count] > segment.end
                )
                count = max(int(beyond[0]), 1) if len(beyond) else count
                if segment.start != asked:
                    asked = segment.start
                    self._will_read(store, segment, positions[at:], sizes[at:])
            part = units.chosen(slice(at, at + count))
            records, missing = self._fetch(store, part.positions, part.sizes)
            for number in missing:
                piece = pieces[part.owner(number)]
                self._loss(
                    f"{_queue_text(store, piece)}, offset {part.offsets[number]}: no whole record "
                    f"of {part.sizes[number]} bytes at CommitLog {part.positions[number]}"
                )
            if missing:
                part = part.without(missing)
            if records.count:
                yield from self._rows_of(store, pieces, records, part)
            at += count

    def _will_read(self, store: StoreFiles, segment: Segment, positions: Any, sizes: Any) -> None:
        """Has a stretch of a file asked for, if most of it is wanted and in its order."""
        inside = positions + sizes <= segment.end
        count = len(inside) if inside.all() else int(np.argmin(inside))
        positions, sizes = positions[:count], sizes[:count]
        if count and are_apart(positions, sizes):
            first, end = int(positions[0]), int(positions[-1] + sizes[-1])
            if end - first <= int(sizes.sum()) * _DENSE:
                store.storage.will_read(segment.path, first - segment.start, end - segment.start)

    def _rows_of(
        self, store: StoreFiles, pieces: Sequence[QueueRange], records: Records, units: Units
    ) -> Iterator[pa.RecordBatch]:
        """Rows of records, each of which a unit of one of the queues names."""
        if units.owners is not None:
            if self._are_where_promised(pieces, records, units):
                self.report.records += records.count
                yield from self._filtered_rows(store, records)
                return
            for number in range(len(pieces)):
                own = np.flatnonzero(units.owners == number)
                if len(own):
                    part = records.take(own)
                    offsets = units.offsets[own]
                    yield from self._promised_rows(store, pieces[number], part, offsets, None)
            return
        yield from self._promised_rows(store, pieces[0], records, units.offsets, units.batch)

    def _are_where_promised(
        self, pieces: Sequence[QueueRange], records: Records, units: Units
    ) -> bool:
        """Whether every record says that it is of its unit's queue, and of that offset."""
        columns = records.columns
        ids = {name: number for number, name in enumerate(records.topics)}
        topics = np.array([ids.get(piece.topic.encode(), -1) for piece in pieces])
        queues = np.array([piece.queue for piece in pieces])
        return bool(
            (columns["queue_offset"] == units.offsets).all()
            and (columns["topic_id"] == topics[units.owners]).all()
            and (columns["queue_id"] == queues[units.owners]).all()
        )

    def _promised_rows(
        self,
        store: StoreFiles,
        piece: QueueRange,
        records: Records,
        offsets: Any,
        batch: BatchOffsets | None,
    ) -> Iterator[pa.RecordBatch]:
        self.report.records += records.count
        columns = records.columns
        topic = piece.topic.encode()
        right = np.array([name == topic for name in records.topics], bool)[columns["topic_id"]]
        if not is_lmq(piece.topic):
            right &= columns["queue_id"] == piece.queue
        own = columns["queue_offset"]
        if batch is not None:
            inner = (columns["sys_flag"] & flags.INNER_BATCH) != 0
            own = np.where(inner & (columns["inner_base"] >= 0), columns["inner_base"], own)
        right &= own == offsets
        if not right.all():
            # What several queues name has the topic and offset of the first.
            elsewhere = np.flatnonzero(~right)
            rows = self._named_so(piece, records, elsewhere, offsets)
            for number in np.setdiff1d(elsewhere, rows, assume_unique=True).tolist():
                reason = f"queue {piece.topic}/{piece.queue} has it as offset {offsets[number]}"
                self._loss(_describe(store, records, number, reason))
            if len(rows):
                shared = records.take(rows)
                shared.topic, shared.queue, shared.offsets = piece.topic, piece.queue, offsets[rows]
                yield from self._filtered_rows(store, shared)
            right = np.flatnonzero(right)
            records, offsets = records.take(right), offsets[right]
        if batch is not None and records.count:
            records = records.take(np.flatnonzero(batch.first_given(offsets)))
        if records.count:
            limits = {(piece.topic, piece.queue): (piece.start, piece.end)} if batch else None
            yield from self._filtered_rows(store, records, limits)

    def _named_so(self, piece: QueueRange, records: Records, rows: Any, offsets: Any) -> Any:
        """The rows of those records that name a further queue, and are where units say.

        Apache's brokers count prepared messages and names that stand twice in a light queue, and
        write no unit for them: the numbers that records say are ahead of their places then. Where
        the unit of the number that a record says names that very record, the one at its place is a
        copy.
        """
        said = numbers_said(records, rows, piece.topic, offsets)
        right = said == offsets[rows]
        ahead = np.flatnonzero((said >= 0) & ~right)
        if len(ahead):
            queue = self._files[piece]
            places = records.columns["stored_offset"][rows]
            first, last = int(said[ahead].min()), int(said[ahead].max()) + 1
            # Of numbers that lie close together the units are read at once.
            is_close = last - first <= len(ahead) * _SPARSE
            units = queue.read_run(first, last, last - first) if is_close else None
            for number in ahead.tolist():
                begin, found = units or queue.read_run(said[number], said[number] + 1, 1)
                at = int(said[number]) - begin
                is_there = 0 <= at < len(found)
                right[number] = not is_there or int(found["offset"][at]) != int(places[number])
        return rows[right]

    def _filtered_rows(
        self,
        store: Origin,
        records: Records,
        limits: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        masks = self._tag_masks(records)
        predicate = self._settings.predicate
        if not predicate.times.is_everything:
            masks += interval_masks(records.columns["store_timestamp"], predicate.times)
        if masks:
            keep = np.logical_and.reduce(masks)
            keep |= (records.columns["sys_flag"] & flags.INNER_BATCH) != 0
            if not keep.all():
                records = records.take(np.flatnonzero(keep))
        if records.count:
            yield from self._rows(store, records, limits)

    def _fetch(self, store: StoreFiles, positions: Any, sizes: Any) -> tuple[Records, list[int]]:
        """The records at positions, and the numbers of those that are not there as promised.

        They are put one after the other first, so that a scan sees nothing else.
        """
        segment = store.segment_of(int(positions[0]))
        end = int((positions + sizes).max())
        if segment is not None and end <= segment.end and are_apart(positions, sizes):
            start, wanted = int(positions[0]), int(sizes.sum())
            if end - start <= wanted * _DENSE:
                found = self._stretch(store, segment, start, end)
                if found is not None:
                    if end - start > wanted:
                        found = self._take(found, positions - start, sizes)
                    return self._scan_promised(store, found, positions, sizes, [])
            view = store.storage.view(segment.path, end - segment.start)
            if view is not None:
                taken = self._take(view, positions - segment.start, sizes)
                store.storage.bytes_read += len(taken)
                return self._scan_promised(store, taken, positions, sizes, [])
            if end - start <= wanted * _SPARSE:
                found = self._stretch(store, segment, start, end)
                if found is not None:
                    taken = self._take(found, positions - start, sizes)
                    return self._scan_promised(store, taken, positions, sizes, [])
        return self._fetch_each(store, positions, sizes)

    def _stretch(
        self, store: StoreFiles, segment: Segment, start: int, end: int
    ) -> memoryview | None:
        """All that lies between two positions of the log; None if the file has no such thing."""
        try:
            data = self._fill(store, segment.path, start - segment.start, end - start)
        except NotFoundError:
            return None
        return data if len(data) == end - start else None

    def _take(self, data: memoryview, at: Any, sizes: Any) -> memoryview:
        """Stretches of data put one after the other."""
        spans = (at.astype(np.int32), sizes.astype(np.int32), len(at))
        return gather_spans(data, *spans, "records", memory=self._memory.lend).data

    def _fetch_each(
        self, store: StoreFiles, positions: Any, sizes: Any
    ) -> tuple[Records, list[int]]:
        """Records read one by one."""
        total = int(sizes.sum())
        if len(self._buffer) < total:
            self._buffer = bytearray(total)
        target = memoryview(self._buffer)
        missing: list[int] = []
        at = 0
        where, lengths = positions.tolist(), sizes.tolist()
        for segment, run in groupby(range(len(where)), lambda n: store.segment_of(where[n])):
            numbers: list[int] = []
            parts: list[tuple[int, memoryview]] = []
            end = place = at
            for number in run:
                position, size = where[number], lengths[number]
                if segment is None or position + size > segment.end:
                    missing.append(number)
                    continue
                numbers.append(number)
                parts.append((position - segment.start, target[end : end + size]))
                end += size
            got = [] if segment is None else store.storage.read_each(segment.path, parts)
            for number, count in zip(numbers, got, strict=True):
                size = lengths[number]
                if count != size:
                    missing.append(number)
                else:
                    if at != place:
                        target[at : at + size] = target[place : place + size]
                    at += size
                place += size
        return self._scan_promised(store, target[:at], positions, sizes, missing)

    def _scan_promised(
        self, store: StoreFiles, data: memoryview, positions: Any, sizes: Any, missing: list[int]
    ) -> tuple[Records, list[int]]:
        """Records that lie one after the other in data, each checked against what was promised."""
        numbers = np.arange(len(positions))
        if missing:
            numbers = np.delete(numbers, missing)
        wanted_sizes, wanted_positions = sizes[numbers], positions[numbers]
        places = np.cumsum(wanted_sizes) - wanted_sizes
        kept: list[dict[str, Any]] = []
        done = 0
        while done < len(numbers):
            self._columns.clear()
            scan(
                data, self._columns, self._topics, start=int(places[done]), crc=self._crc,
                own_position=False,
            )  # fmt: skip
            found = min(self._columns.count, len(numbers) - done)
            columns = {name: self._columns.array(name)[:found] for name in self._names}
            right = columns["record_size"] == wanted_sizes[done : done + found]
            whole = found if right.all() else int(np.argmin(right))
            same = columns["stored_offset"][:whole] == wanted_positions[done : done + whole]
            if whole == found and same.all():
                # What one scan finds is not written over before its rows are made.
                is_all = found == len(numbers)
                kept.append(
                    columns if is_all else {name: column.copy() for name, column in columns.items()}
                )
            else:
                rows = np.flatnonzero(same)
                kept.append({name: column[rows] for name, column in columns.items()})
                missing += numbers[done : done + whole][~same].tolist()
            done += whole
            if whole < found or found == 0:
                # This one is no record, or not of its size: the next begins at its own place.
                missing.append(int(numbers[done]))
                done += 1
        merged = _merge(kept, self._names, self._columns)
        merged["commit_log_offset"] = merged["stored_offset"]
        missing.sort()
        count = len(merged["stored_offset"])
        return Records(data, merged, count, self._topics.names, store.broker), missing

    # Known places.

    def _lookup(self, piece: Lookup) -> Iterator[pa.RecordBatch]:
        store = self._stores[piece.store]
        limits = None if piece.limits is None else _limits_by_queue(piece.limits)
        starts = RecordStarts(store, check_crc=self._settings.verify_crc)
        light = _light_limit(piece) if piece.joined else None
        positions, sizes = [], []
        for position in piece.positions:
            try:
                head = store.read_log(position, 4)
            except NotFoundError:
                if piece.joined:
                    self._loss(f"{store.root}: the record at CommitLog {position} is gone")
                continue  # the Index may know what the log has lost
            size = stated_size(head)
            # An id can name any place, the inside of a body too.
            is_known = piece.joined or starts.is_start(position)
            if FIXED_SIZE_V1 <= size <= RECORD_SIZE_MAX and is_known:
                positions.append(position)
                sizes.append(size)
        at = 0
        where, what = np.array(positions, np.int64), np.array(sizes, np.int64)
        while at < len(where):
            count = together(where, what, at, self._settings.batch_bytes, BATCH_ROWS_MAX)
            records, missing = self._fetch_each(
                store, where[at : at + count], what[at : at + count]
            )
            for number in missing if piece.joined else ():
                self._loss(f"{store.root}: no whole record at CommitLog {where[at + number]}")
            if records.count and light is not None:
                yield from self._light_tail(store, records, *light)
            elif records.count:
                yield from self._emit(store, records, limits)
            at += count

    def _light_tail(
        self, store: StoreFiles, records: Records, topic: str, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a light queue from records that say themselves which number they have in it."""
        offsets = np.array(
            [
                dict(light_offsets(records.bytes_of(number, "properties"))).get(topic, -1)
                for number in range(records.count)
            ],
            np.int64,
        )
        keep = (offsets >= start) & (offsets < end)
        for mask in interval_masks(records.columns["stored_offset"], self._settings.predicate.log):
            keep &= mask
        rows = np.flatnonzero(keep)
        shared = records.take(rows)
        shared.topic, shared.queue, shared.offsets = topic, LMQ_QUEUE_ID, offsets[rows]
        if shared.count:
            yield from self._filtered_rows(store, shared)


def _open(store: StoreFiles, pieces: Sequence[QueueRange], step: int) -> list[OpenedRange | None]:
    ranges = [(QueueName(each.topic, each.queue), each.start, each.end) for each in pieces]
    return store.open_ranges(ranges, step)


def _merge(parts: list[dict[str, Any]], names: Sequence[str], columns: Columns) -> dict[str, Any]:
    if not parts:
        return {name: columns.array(name)[:0].copy() for name in names}
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _light_limit(piece: Lookup) -> tuple[str, int, int] | None:
    """The light queue that the places belong to, and which of its offsets."""
    if piece.limits is None or not is_lmq(piece.limits[0][0]):
        return None
    topic, _, start, end = piece.limits[0]
    return topic, start, end


def _limits_by_queue(
    limits: Sequence[tuple[str, int, int, int]],
) -> dict[tuple[str, int], tuple[int, int]]:
    return {(topic, queue): (start, end) for topic, queue, start, end in limits}


def _queue_text(store: Origin, piece: QueueRange) -> str:
    return f"topic {piece.topic}, broker {store.broker}, queue {piece.queue}"


def _describe(store: Origin, records: Records, number: int, reason: str) -> str:
    columns = records.columns
    topic = records.topics[int(columns["topic_id"][number])].decode("utf-8", "replace")
    return (
        f"{store.root}: the record at CommitLog {int(columns['commit_log_offset'][number])} "
        f"({int(columns['record_size'][number])} bytes, topic {topic}, "
        f"queue {int(columns['queue_id'][number])}, "
        f"offset {int(columns['queue_offset'][number])}): {reason}"
    )
