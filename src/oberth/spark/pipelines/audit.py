"""Two copies of a log compared on Spark, range by range: equal, or what differs.

    a store and a store     bytes by bytes; where they differ, record by record
    a store and an export   every record that the exact export makes, and every gap in it
    a store and a cluster   every message of the store's brokers by its offset id, all its parts

Findings name messages: topic, queue, offset and keys, as the copy says that has them whole.

    missing   one copy has the message, the other has zeros there, or does not reach so far
    damaged   one copy has it, the other has bytes there that are no whole record
    differs   both have a whole message there, not the same one
    twice     the export has more than one row of the message
    garbage   neither has a record there, and the bytes differ

The receipt holds a CRC-32 of each range of both copies. A later run that is given it says whether
the copies still hold what they held then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from oberth.errors import FormatError, OptionError
from oberth.formats import properties as p
from oberth.formats.batch_body import decode_batch
from oberth.formats.compression import decompress_body
from oberth.formats.message import MessageExt, decode_record
from oberth.formats.sys_flag import INNER_BATCH
from oberth.spark.pipelines.import_store import (
    ImportPart,
    cut_parts,
    encode_row,
    export_files,
    read_rows,
)
from oberth.spark.pipelines.log_ranges import bare_layout
from oberth.store.offline.layout import StoreLayout
from oberth.store.offline.log_walk import DamagedRecord, LogItem, body_ok, walk
from oberth.store.offline.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from oberth.spark.pipelines.tasks import Done, TaskRunner

RANGE_SIZE: Final = 64 << 20
FINDINGS_MAX: Final = 10_000
"""Findings that a report names; more are counted."""

RECEIPT_VERSION: Final = 1
_CHUNK: Final = 4 << 20
"""Two of them stay in the cache while they are compared."""

_LOOK_BACK: Final = 8 << 20
"""A record that reaches into a range starts at most so far before it."""


class Finding(NamedTuple):
    """One message, or a stretch of the log, that is not the same in both.

    Attributes:
        kind: missing, damaged, differs, twice or garbage.
        where: the copy that lacks it, or has it wrong; "" for differs and garbage.
        commit_log_offset: where it starts.
        size: bytes.
        topic: of the message, as the other copy says; "" if neither can say.
        queue_id: of the message.
        queue_offset: of the message.
        keys: of the message.
    """

    kind: str
    where: str
    commit_log_offset: int
    size: int
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    keys: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding under JSON names."""
        return {
            "kind": self.kind,
            "in": self.where,
            "commitLogOffset": self.commit_log_offset,
            "size": self.size,
            "topic": self.topic,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "keys": self.keys,
        }

    def __str__(self) -> str:
        where = f" in {self.where}" if self.where else ""
        what = (
            f"{self.topic} queue {self.queue_id} offset {self.queue_offset}"
            + (f" keys {self.keys}" if self.keys else "")
            if self.topic
            else "no message"
        )
        return (
            f"{self.kind}{where}: {what}, {self.size} bytes at CommitLog {self.commit_log_offset}"
        )


class RangeSum(NamedTuple):
    """CRC-32 of one range in both copies."""

    start: int
    end: int
    one: int
    other: int


@dataclass(slots=True)
class AuditReport:
    """What an audit found.

    Attributes:
        one: what was compared.
        other: with what.
        start: CommitLog offset from which on.
        end: up to where.
        first_difference: the first offset at which they differ; None if they do not, or if whole
            messages were compared.
        findings: in the order of the log, `FINDINGS_MAX` at most.
        finding_count: all of them.
        ranges: for the receipt; none of an export or a cluster.
        messages: how many were compared, 0 where bytes were.
        since_receipt: ranges that do not hold any more what a receipt says.
    """

    one: str
    other: str
    start: int = 0
    end: int = 0
    first_difference: int | None = None
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    ranges: list[RangeSum] = field(default_factory=list)
    messages: int = 0
    since_receipt: list[RangeSum] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether both are the same, and what a receipt says they were."""
        return not (self.finding_count or self.since_receipt or self.first_difference is not None)

    def add(self, found: Iterable[Finding], count: int | None = None) -> None:
        """Takes findings in the order of the log."""
        found = list(found)
        self.findings += found[: FINDINGS_MAX - len(self.findings)]
        self.finding_count += len(found) if count is None else count

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names, without the receipt's ranges."""
        return {
            "one": self.one,
            "other": self.other,
            "equal": self.equal,
            "start": self.start,
            "end": self.end,
            "messages": self.messages,
            "firstDifference": self.first_difference,
            "findings": [each.to_json() for each in self.findings],
            "findingCount": self.finding_count,
            "changedSinceReceipt": [
                {"start": each.start, "end": each.end} for each in self.since_receipt
            ],
        }

    def receipt(self) -> dict[str, Any]:
        """What a later run can check: the report and the CRCs of all ranges."""
        return {
            "format": "oberth-audit",
            "version": RECEIPT_VERSION,
            **self.to_json(),
            "ranges": [list(each) for each in self.ranges],
        }


def read_receipt(path: str) -> list[RangeSum]:
    """The ranges of a receipt.

    Raises:
        OptionError: the file is no receipt, or not one of two stores.
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            values = json.loads(file.read())
        if (values["format"], values["version"]) != ("oberth-audit", RECEIPT_VERSION):
            raise ValueError(f"{values['format']!r} {values['version']!r}")
        ranges = [RangeSum(*map(int, each)) for each in values["ranges"]]
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{path}: is no receipt of an audit ({error})") from None
    if not ranges:
        raise OptionError(f"{path}: holds no ranges; only audits of two stores have them")
    return ranges


# Two stores.


class _Range(NamedTuple):
    """One task: bytes [start, end) of both logs."""

    start: int
    end: int


class _Compared(NamedTuple):
    """What a task found: the CRCs, and the first byte that differs."""

    sums: RangeSum
    first: int | None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both stores, for tasks."""

    one: StoreLayout
    other: StoreLayout
    low: int
    high_one: int
    high_other: int

    def names(self) -> tuple[str, str]:
        return self.one.root, self.other.root


def audit_stores(
    tasks: TaskRunner,
    one: str,
    other: str,
    *,
    common: bool = False,
    receipt: Sequence[RangeSum] | None = None,
    entries: Mapping[str, str] | None = None,
    range_size: int = RANGE_SIZE,
    progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Compares two stores.

    Args:
        tasks: where the work is done; every task has to reach both stores under these paths.
        one: a store.
        other: another.
        common: leave out what only one of them has: before the other's begin or past its end.
        receipt: of an earlier audit of the same stores, to be compared with.
        entries: options of both by their Java names.
        range_size: bytes for one task.
        progress: called with the bytes of one log that are done.

    Raises:
        StoreError: one of them cannot be read.
        OptionError: a receipt that goes further than a log.
    """
    with StoreReader(one, entries) as left, StoreReader(other, entries) as right:
        lows, highs = (left.min_offset, right.min_offset), (_end(left), _end(right))
        layouts = bare_layout(left.layout), bare_layout(right.layout)
    low, high = max(lows), max(min(highs), *lows)
    pair = _Pair(*layouts, low, *highs)
    report = AuditReport(*pair.names(), low, high)
    ranges = _ranges(layouts, low, high, receipt, range_size)
    done = _bytes_done(ranges, progress)
    compared = tasks.run(partial(_compare, pair), ranges, what="audit", done=done)
    report.ranges = [each.sums for each in compared]
    known = {(each.start, each.end): each for each in receipt or ()}
    report.since_receipt = [
        each.sums for each in compared if known.get(each.sums[:2], each.sums) != each.sums
    ]
    firsts = [each.first for each in compared if each.first is not None]
    report.first_difference = firsts[0] if firsts else None
    work = [_Range(each.sums.start, each.sums.end) for each in compared if each.first is not None]
    if not common:
        # What only one of them has: told by messages too.
        if min(lows) < low:
            work[:0] = _cut(layouts, min(lows), low, range_size)
        if max(highs) > high:
            work += _cut(layouts, high, max(highs), range_size)
        if lows[0] != lows[1]:
            report.first_difference = min(lows)
        elif highs[0] != highs[1] and report.first_difference is None:
            report.first_difference = high
    for found in tasks.run(partial(_findings, pair), work, what="audit: messages"):
        report.add(found[:FINDINGS_MAX], len(found))
    return report


def _ranges(
    layouts: Sequence[StoreLayout],
    low: int,
    high: int,
    receipt: Sequence[RangeSum] | None,
    range_size: int,
) -> list[_Range]:
    """What both logs have, in ranges of which those of a receipt are some."""
    if receipt is None:
        return _cut(layouts, low, high, range_size)
    start, end = receipt[0].start, receipt[-1].end
    if start < low or end > high:
        raise OptionError(f"the receipt goes from {start} to {end}, both logs from {low} to {high}")
    return [
        *_cut(layouts, low, start, range_size),
        *(_Range(each.start, each.end) for each in receipt),
        *_cut(layouts, end, high, range_size),
    ]


def _end(reader: StoreReader) -> int:
    """Where a log ends. A reader walks the last segment for that; here its last part will do."""
    log = reader.log
    if log.segments:
        opened = log.map(len(log.segments) - 1)
        last = opened.last_nonzero(0, len(opened))
        if last is not None and last > _LOOK_BACK:
            item = None
            for each in walk(log, log.segments[-1].start + last - _LOOK_BACK):
                item = each
            if item is not None:
                offset, size = _extent(item)
                return offset + size
    return reader.max_offset


def _cut(layouts: Sequence[StoreLayout], low: int, high: int, size: int) -> list[_Range]:
    """Ranges that do not reach over the begin or end of any segment."""
    edges = {low, high}
    for layout in layouts:
        for segment in layout.commit_log:
            edges.update(edge for edge in (segment.start, segment.end) if low < edge < high)
    return [
        _Range(at, min(at + size, end))
        for start, end in pairwise(sorted(edges))
        for at in range(start, end, size)
    ]


def _bytes_done(ranges: Sequence[_Range], progress: Callable[[int], None] | None) -> Done | None:
    if progress is None:
        return None
    sizes = [0, *accumulate(each.end - each.start for each in ranges)]

    def done(count: int, _total: int) -> None:
        progress(sizes[min(count, len(ranges))])

    return done


class _LogBytes:
    """Reads a log's bytes into a buffer: beside a comparison a copy costs little."""

    def __init__(self, layout: StoreLayout) -> None:
        self._segments = layout.commit_log
        self._buffer = bytearray(_CHUNK)
        self._open: dict[str, int] = {}

    def read(self, start: int, size: int) -> bytearray:
        """Bytes of the log, fewer where it has none; valid until the next call."""
        view = memoryview(self._buffer)
        done = 0
        for segment in self._segments:
            at = start + done
            if not segment.start <= at < segment.end:
                continue
            want = min(size - done, segment.end - at)
            fd = self._open.get(segment.path)
            if fd is None:
                fd = self._open[segment.path] = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            position = at - segment.start
            while want:
                got = os.preadv(fd, [view[done : done + want]], position)
                if not got:
                    break
                done, position, want = done + got, position + got, want - got
            if want or done == size:
                break
        del view
        if done < len(self._buffer):
            return self._buffer[:done]
        return self._buffer

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


def _compare(pair: _Pair, work: _Range) -> _Compared:
    """In a task: compares one range."""
    one, other = _LogBytes(pair.one), _LogBytes(pair.other)
    try:
        crc_one = crc_other = 0
        first: int | None = None
        for at in range(work.start, work.end, _CHUNK):
            size = min(_CHUNK, work.end - at)
            left, right = one.read(at, size), other.read(at, size)
            crc_one = crc32(left, crc_one)
            if left == right:
                crc_other = crc_one if first is None else crc32(right, crc_other)
                continue
            if first is None:
                first = at + _first_difference(left, right)
            crc_other = crc32(right, crc_other)
        return _Compared(RangeSum(work.start, work.end, crc_one, crc_other), first)
    finally:
        one.close()
        other.close()


def _first_difference(left: bytearray, right: bytearray) -> int:
    """Where two buffers that differ do so first."""
    low, high = 0, max(len(left), len(right))
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _findings(pair: _Pair, work: _Range) -> list[Finding]:
    """In a task: the messages whose first byte that differs lies in a range."""
    with (
        StoreReader(pair.one.root, layout=pair.one) as one,
        StoreReader(pair.other.root, layout=pair.other) as other,
    ):
        left = _items(one, work, pair.high_one)
        right = _items(other, work, pair.high_other)
        found = []
        for offset in sorted({*left, *right}):
            finding = _judge(pair, (one, other), offset, left.get(offset), right.get(offset), work)
            if finding is not None:
                found.append(finding)
        return found


def _items(reader: StoreReader, work: _Range, high: int) -> dict[int, LogItem]:
    """What starts in a range, or reaches into it, by its start."""
    found: dict[int, LogItem] = {}
    index = reader.log.index_of(work.start)
    if index is None:
        return found
    start = max(reader.log.segments[index].start, work.start - _LOOK_BACK)
    for item in walk(reader.log, start):
        offset, size = _extent(item)
        if offset >= min(work.end, high):
            break
        if offset + size > work.start:
            found[offset] = item
    return found


def _extent(item: LogItem) -> tuple[int, int]:
    if isinstance(item, MessageExt):
        return item.commit_log_offset, item.record_size
    if isinstance(item, DamagedRecord):
        return item.message.commit_log_offset, item.message.record_size
    return item.start, item.size


def _judge(
    pair: _Pair,
    readers: tuple[StoreReader, StoreReader],
    offset: int,
    left: LogItem | None,
    right: LogItem | None,
    work: _Range,
) -> Finding | None:
    """What is wrong with what starts at an offset in one copy or both."""
    extents = [_extent(each) for each in (left, right) if each is not None]
    size = max(size for _, size in extents)
    bytes_of = [_bytes(reader, offset, size) for reader in readers]
    if bytes_of[0] == bytes_of[1]:
        return None
    first = offset + _first_difference(bytearray(bytes_of[0]), bytearray(bytes_of[1]))
    if not work.start <= first < work.end:
        return None  # told by the range in which it begins to differ
    whole = [
        each if isinstance(each, MessageExt) and body_ok(each) else None for each in (left, right)
    ]
    if whole[0] is not None and whole[1] is not None:
        return _finding("differs", "", whole[0])
    for number, message in enumerate(whole):
        if message is None:
            continue
        there = bytes_of[1 - number][: message.record_size]
        kind = "damaged" if there.strip(b"\0") else "missing"
        return _finding(kind, pair.names()[1 - number], message)
    if left is not None and right is not None:
        return Finding("garbage", "", offset, size)
    return None  # one copy's damage, told as the other's messages there; else as garbage of both


def _bytes(reader: StoreReader, offset: int, size: int) -> bytes:
    found = reader.log.read(offset, size)
    if found is not None:
        return bytes(found)
    index = reader.log.index_of(offset)
    if index is None:
        return b""
    found = reader.log.read(offset, reader.log.segments[index].end - offset)
    return b"" if found is None else bytes(found)


def _finding(kind: str, where: str, message: MessageExt) -> Finding:
    return Finding(
        kind, where, message.commit_log_offset, message.record_size, message.topic,
        message.queue_id, message.queue_offset, message.properties.get(p.KEYS, ""),
    )  # fmt: skip


# A store and its exact export.


@dataclass(frozen=True, slots=True)
class _Exported:
    """A store and its export, for tasks."""

    layout: StoreLayout
    low: int
    high: int
    source: str
    common: bool


def audit_export(
    tasks: TaskRunner,
    root: str,
    source: str,
    *,
    common: bool = False,
    entries: Mapping[str, str] | None = None,
    range_size: int = RANGE_SIZE,
    progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Compares a store with its exact export: every record that the export makes.

    Args:
        tasks: where the work is done; every task has to reach both directories.
        root: the store.
        source: the export's directory.
        common: leave out what only one of them has: before the other's begin or past its end.
        entries: options of the store by their Java names.
        range_size: bytes of log for one task.
        progress: called with the bytes of the log that are done.

    Raises:
        OptionError: no export, or one that is not exact.
        StoreError: the store cannot be read.
        StoreCorruptError: files of the export are missing, or rows that make no record.
    """
    with StoreReader(root, entries) as reader:
        low, high = reader.min_offset, reader.max_offset
        layout = bare_layout(reader.layout)
    files, segment_size = export_files(source)
    begin, stop = min(each.start for each in files), max(each.end for each in files)
    start, end = (
        (max(low, begin), min(high, stop)) if common else (min(low, begin), max(high, stop))
    )
    parts = [
        each._replace(start=max(each.start, start), end=min(each.end, end))
        for each in cut_parts(files, segment_size, range_size)
        if each.start < end and each.end > start
    ]
    covered = start
    for part in list(parts):
        if part.start > covered:
            parts.append(ImportPart(covered, part.start, ()))
        covered = max(covered, part.end)
    if covered < end:
        parts.append(ImportPart(covered, end, ()))
    parts.sort()
    pair = _Exported(layout, low, high, source, common)
    ranges = [_Range(each.start, each.end) for each in parts]
    report = AuditReport(layout.root, source, start, end)
    done = _bytes_done(ranges, progress)
    for records, found in tasks.run(partial(_compare_export, pair), parts, what="audit", done=done):
        report.messages += records
        report.add(found[:FINDINGS_MAX], len(found))
    if report.findings:
        report.first_difference = report.findings[0].commit_log_offset
    return report


def _compare_export(pair: _Exported, part: ImportPart) -> tuple[int, list[Finding]]:
    """In a task: the number of records of a range, and what is wrong."""
    found: list[Finding] = []
    records = 0
    cursor = part.start
    with StoreReader(pair.layout.root, layout=pair.layout) as reader:
        for offset, rows in groupby(_rows(part), key=itemgetter("physicalOffset")):
            if offset > cursor:
                found += _lacking(pair, reader, cursor, offset)
            size, finding = _compare_record(pair, reader, offset, rows)
            records += size > 0
            if finding is not None:
                found.append(finding)
            cursor = max(cursor, offset + size)
        found += _lacking(pair, reader, cursor, part.end)
    return records, found


def _rows(part: ImportPart) -> Iterator[dict[str, Any]]:
    """The rows of a range in the order of the log, those of an inner batch in its order."""
    import pyarrow as pa

    tables = [read_rows(file.path, part.start, part.end) for file in part.files]
    tables = [each for each in tables if each.num_rows]
    if tables:
        order = [("physicalOffset", "ascending"), ("innerIndex", "ascending")]
        for batch in pa.concat_tables(tables).sort_by(order).to_batches(max_chunksize=4096):
            yield from batch.to_pylist()


def _compare_record(
    pair: _Exported, reader: StoreReader, offset: int, rows: Iterable[dict[str, Any]]
) -> tuple[int, Finding | None]:
    """The size of the record that some rows stand for, 0 without its first, and what is wrong."""
    places: list[int] = []
    exported: MessageExt | None = None
    finding: Finding | None = None
    for row in rows:
        places.append(row["innerIndex"] or 0)
        if places[-1] or finding is not None:
            continue
        record = encode_row(row)
        exported = decode_record(record, at=offset)
        if _bytes(reader, offset, len(record)) != record:
            finding = _wrong_row(pair, reader, exported, record)
    if exported is None:
        return 0, None  # it counts as missing
    if finding is None and places != list(range(_message_count(exported))):
        kind = "twice" if len(places) > len(set(places)) else "missing"
        finding = _finding(kind, pair.source, exported)
    return exported.record_size, finding


def _message_count(message: MessageExt) -> int:
    """How many rows an export makes of a record."""
    if message.sys_flag & INNER_BATCH:
        with suppress(FormatError):
            return len(decode_batch(decompress_body(message.body, message.sys_flag)))
    return 1


def _lacking(pair: _Exported, reader: StoreReader, start: int, end: int) -> list[Finding]:
    """Messages of the store that start in a stretch of which the export has no row."""
    found = []
    for item in walk(reader.log, start) if start < min(end, pair.high) else ():
        offset, _ = _extent(item)
        if offset >= min(end, pair.high):
            break
        if offset >= start and isinstance(item, MessageExt):
            found.append(_finding("missing", pair.source, item))
    return found


def _wrong_row(
    pair: _Exported, reader: StoreReader, exported: MessageExt, record: bytes
) -> Finding:
    """What is wrong with the bytes that should be a record of the export."""
    offset = exported.commit_log_offset
    there = _bytes(reader, offset, len(record))
    if not there.strip(b"\0"):
        return _finding("missing", pair.layout.root, exported)
    item = next(iter(walk(reader.log, offset)), None)
    if isinstance(item, MessageExt) and item.commit_log_offset == offset:
        return _finding("differs", "", exported)
    return _finding("damaged", pair.layout.root, exported)


# A store and a cluster.

_KEY: Final = ("offsetMsgId", "innerIndex")
_WHOLE: Final = (
    "topic", "partition", "storedQueueOffset", "size", "bodyCRC", "flag", "sysFlag", "magic",
    "bornTimestamp", "timestamp", "bornHost", "storeHost", "reconsumeTimes",
    "preparedTransactionOffset", "storedProperties",
)  # fmt: skip
"""Columns that are all of a message, with its stored body."""


def audit_live(
    session: SparkSession,
    root: str,
    options: Mapping[str, str],
    *,
    common: bool = False,
) -> AuditReport:
    """Compares a store with what the brokers of a cluster serve: every message, by its offset id.

    Messages of brokers that the store has none of, and those past the store's end, are left out:
    the store is a copy of one broker, made a moment ago. So are the brokers' own topics.

    Args:
        session: where the work is done.
        root: the store.
        options: of ``format("rocketmq")`` for the cluster: rocketmq.namesrv.addr and others.
        common: leave out what only one of them has at the front of a queue: retention differs.
    """
    from pyspark.sql import functions as f

    with StoreReader(root) as reader:
        low, high = reader.min_offset, reader.max_offset
    # What is damaged or gone is a finding; what comes while both are read is behind the end.
    stored = _messages(session, {"path": root, "failOnDataLoss": "false"})
    stored = stored.where(f.col("physicalOffset") < high)
    served = _messages(session, {"failOnDataLoss": "false", **options})
    hosts = stored.select("storeHost").distinct()
    served = served.where(f.col("physicalOffset") < high).join(hosts, "storeHost", "left_semi")
    both = stored.alias("a").join(
        served.alias("b"),
        [f.col(f"a.{name}").eqNullSafe(f.col(f"b.{name}")) for name in _KEY],
        "full_outer",
    )
    wrong = both.where(~f.col("a.whole").eqNullSafe(f.col("b.whole")))
    if common:
        wrong = _behind_fronts(wrong, stored, served)
    names = ("physicalOffset", "size", "topic", "partition", "offset", "key")
    shown = wrong.select(
        f.col("a.whole").isNull().alias("not_stored"),
        f.col("b.whole").isNull().alias("not_served"),
        *(f.coalesce(f"a.{name}", f"b.{name}").alias(name) for name in names),
    ).cache()
    cluster = options.get("rocketmq.namesrv.addr", "")
    report = AuditReport(os.path.abspath(root), cluster, low, high, messages=stored.count())
    with StoreReader(root) as reader:
        found = [
            Finding(
                _live_kind(reader, row),
                report.one if row["not_stored"] else cluster if row["not_served"] else "",
                row["physicalOffset"], row["size"], row["topic"], row["partition"], row["offset"],
                (row["key"] or b"").decode("utf-8", "replace"),
            )
            for row in shown.orderBy("physicalOffset").limit(FINDINGS_MAX).collect()
        ]  # fmt: skip
    report.add(found, shown.count())
    shown.unpersist()
    if found:
        report.first_difference = found[0].commit_log_offset
    return report


def _behind_fronts(wrong: DataFrame, stored: DataFrame, served: DataFrame) -> DataFrame:
    """Without what only one of both has at the front of a queue."""
    from pyspark.sql import functions as f

    fronts = [
        frame.groupBy("topic", "partition").agg(f.min("offset").alias("front"))
        for frame in (stored, served)
    ]
    front = (
        fronts[0].unionByName(fronts[1]).groupBy("topic", "partition")
        .agg(f.max("front").alias("front"))
    )  # fmt: skip
    return (
        wrong.withColumn("topic", f.coalesce("a.topic", "b.topic"))
        .withColumn("partition", f.coalesce("a.partition", "b.partition"))
        .join(front, ["topic", "partition"], "left")
        .where(f.coalesce("a.offset", "b.offset") >= f.col("front"))
    )


def _live_kind(reader: StoreReader, row: Row) -> str:
    """What is wrong with a message of a store or a cluster."""
    if row["not_stored"] and _bytes(reader, row["physicalOffset"], row["size"]).strip(b"\0"):
        return "damaged"
    return "missing" if row["not_stored"] or row["not_served"] else "differs"


def _messages(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as f

    columns = {
        *_KEY, *_WHOLE, "storeHost", "physicalOffset", "offset", "key", "value", "storedBody",
    }  # fmt: skip
    reader = session.read.format("rocketmq").option("columns", ",".join(sorted(columns)))
    rows = reader.options(**dict(options)).load()
    body = f.coalesce(f.col("storedBody"), f.col("value"))
    return rows.withColumn("whole", f.xxhash64(*(f.col(name) for name in _WHOLE), body)).drop(
        "value", "storedBody"
    )
