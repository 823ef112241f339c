"""A table sent to a topic, each row exactly once: from the lake back into the log.

What is sent is fixed by the first run and written down: the table's version, its files, the queues
of the topic, and from both the number and the queue of each row. A run that was killed is taken up
where it was. In the ledger's directory:

    publish.json               what is sent to where
    batches/NNNNNNNN.json      rows of a batch and the ends of the queues, before it is sent
    batches/NNNNNNNN.done      its receipt: where its rows are; also of the marker, the last one

A row is named RUN/NUMBER in the property PUBLISHED_AS (`exact_send`), and has this as its unique
key where the table has none.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from oberth.client.blocking_face import LOOP
from oberth.client.dead_letters import DROPPED
from oberth.client.messages import Message
from oberth.client.selectors import select_by_hash
from oberth.errors import DataLossError, OptionError, RecordError
from oberth.formats import properties as p
from oberth.remoting.bodies.base import MessageQueue
from oberth.spark.connection import Connection
from oberth.spark.live_sink import MessageRows
from oberth.spark.pipelines.exact_send import PUBLISHED_AS, Arrived, ExactSender
from oberth.spark.pipelines.export.compaction import list_files
from oberth.spark.pipelines.export.directories import values_of, whole_values
from oberth.spark.pipelines.export.ledger import DIRECTORY, Ledger
from oberth.spark.pipelines.export.places import LocalPlace, Place, place_of
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.export.tables import IcebergTables, check_delta, whole_files
from oberth.store.offline.layout import local_directory

MARKER: Final = "PUBLISHED_MARKER"
"""The property of the message that ends each queue's part: how many rows were sent."""
BATCH_ROWS: Final = 2_000
STEPS: Final = ("intend", "send", "finish", "marker")
_LAG_LOOK_S: Final = 0.5
_COLUMNS: Final = ("key", "tags", "properties", "shardingKey", "uniqueKey", "flag")
_GROUP: Final = "oberth-publish"


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """What is sent to where.

    Attributes:
        table: a directory of Parquet files, a Delta table, or a table of an Iceberg export; a path
            or a URL.
        topic: where to; it has to exist.
        as_of: a version of the table, or a time as ISO 8601 has it; "" for now.
        value: the column of bodies; "" for ``value``, or the row as JSON where there is none.
        key: the column of keys; "" for ``key``, if there is one.
        rate: messages a second at most; None for no limit.
        group: a consumer group that is not to fall behind; "" for none.
        max_lag: messages that it may be behind before the next batch waits.
        marker: the body of the message that ends each queue; "" for none.
        storage: options of the object store that the table lies in, without ``storage.``.
    """

    table: str
    topic: str
    as_of: str = ""
    value: str = ""
    key: str = ""
    rate: float | None = None
    group: str = ""
    max_lag: int = 10_000
    marker: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)

    def what(self) -> dict[str, Any]:
        """What a later run has to be given again: not how fast."""
        names = ("table", "topic", "as_of", "value", "key", "marker")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class PublishReport:
    """What a publication has sent, runs before included.

    Attributes:
        rows: of the table.
        sent: by this run.
        already: that were there when this run looked: sent by an earlier one.
        version: of the table, "" where tables have none.
        queues: first and last offset of its messages by ``broker:queue``, the marker's included.
        seconds: this run took.
    """

    rows: int = 0
    sent: int = 0
    already: int = 0
    version: str = ""
    queues: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "rows": self.rows, "sent": self.sent, "already": self.already,
            "version": self.version, "queues": dict(sorted(self.queues.items())),
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


def publish(
    settings: PublishSettings,
    connection: Connection,
    ledger_directory: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    step: Callable[[str], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> PublishReport:
    """Sends a table's rows to a topic, in the order of its files, and a marker behind them.

    Args:
        settings: what is sent to where.
        connection: how to reach the brokers.
        ledger_directory: what this publication remembers; another run with it goes on.
        progress: called with the rows that are done and all rows.
        step: called with the name of each step before it.
        pause: waits so many seconds, for rate and lag.
        clock: seconds, for the rate.

    Raises:
        OptionError: no table, or not what the ledger's first run was given.
        DataLossError: files of the table have changed or are gone.
        RecordError: a row that cannot be a message.
        StoreLockedError: another process has the ledger.
        MQBrokerError, MQClientError, RemotingError: the brokers did not take something in time.
    """
    started = time.perf_counter()
    ledger = Ledger(LocalPlace(local_directory(ledger_directory, "ledger")))
    with ledger.locked():
        report = _Run(settings, connection, ledger, progress, step, pause, clock).run()
    report.seconds = time.perf_counter() - started
    return report


class _Run:
    """One call of `publish`."""

    def __init__(
        self,
        settings: PublishSettings,
        connection: Connection,
        ledger: Ledger,
        progress: Callable[[int, int], None] | None,
        step: Callable[[str], None] | None,
        pause: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._progress = progress
        self._step = step or (lambda name: None)
        self._pause = pause
        self._clock = clock
        self._report = PublishReport()
        self._sender = ExactSender(connection, _GROUP)

    def run(self) -> PublishReport:
        LOOP.call(self._sender.__aenter__)
        try:
            return self._run()
        finally:
            LOOP.call(lambda: self._sender.__aexit__(None, None, None))

    def _run(self) -> PublishReport:
        plan = self._plan()
        report = self._report
        report.version = plan["version"]
        report.rows = sum(each["rows"] for each in plan["files"])
        queues = [
            MessageQueue(topic=self._settings.topic, broker_name=broker, queue_id=number)
            for broker, number in plan["queues"]
        ]
        done, number, ended = self._finished()
        if ended:
            return report
        size = BATCH_ROWS
        if self._settings.rate is not None:
            size = max(1, min(size, int(self._settings.rate)))
        began, sent = self._clock(), 0
        for rows, first in self._rows(plan, done, size, number):
            self._wait_for_group()
            if self._settings.rate is not None:
                ahead = began + sent / self._settings.rate - self._clock()
                if ahead > 0:
                    self._pause(ahead)
            self._batch(number, plan["run"], first, rows, queues)
            number += 1
            sent += rows.num_rows
            if self._progress is not None:
                self._progress(first + rows.num_rows, report.rows)
        if self._settings.marker:
            self._end(number, plan["run"], queues)
        return report

    # What is sent

    def _plan(self) -> dict[str, Any]:
        """What the first run has fixed."""
        settings = self._settings
        present = self._ledger.read("publish.json")
        if present is not None:
            for name, value in settings.what().items():
                if present["what"][name] != value:
                    raise OptionError(
                        f"{self._ledger.into}: was begun with {name}={present['what'][name]!r}, "
                        f"not {value!r}; give another ledger"
                    )
            return present
        place, version, files = open_table(settings.table, settings.as_of, settings.storage)
        described: list[dict[str, Any]] = []
        for path, partition in files:
            system, bare = place.arrow(path)
            with pq.ParquetFile(bare, filesystem=system) as file:
                partition = whole_values(partition, file.schema_arrow.metadata)
                names = [*file.schema_arrow.names, *partition]
                for given in (settings.value, settings.key):
                    if given and given not in names:
                        raise OptionError(f"{path} has no column {given!r}: {', '.join(names)}")
                described.append(
                    {"path": path, "rows": file.metadata.num_rows, "size": place.size(path)}
                )
                if partition:
                    described[-1]["partition"] = partition
        queues = LOOP.call(lambda: self._sender.queues(settings.topic))
        if not queues:
            raise OptionError(f"there is no topic {settings.topic!r}; make it first")
        known = json.dumps([settings.what(), version, described], sort_keys=True)
        plan = {
            "what": settings.what(),
            "version": version,
            "run": hashlib.sha256(known.encode()).hexdigest()[:16],
            "files": described,
            "queues": [[queue.broker_name, queue.queue_id] for queue in queues],
        }
        self._ledger.write("publish.json", plan)
        return plan

    def _finished(self) -> tuple[int, int, bool]:
        """Rows that are done, the next batch's number, and whether the marker was sent."""
        rows = number = 0
        ended = False
        for name in self._ledger.names("batches"):
            if not name.endswith(".done"):
                continue
            receipt = self._ledger.read(f"batches/{name}")
            assert receipt is not None
            rows += receipt["rows"]
            number = int(name[:8]) + 1
            ended = ended or bool(receipt["marker"])
            self._count(receipt["queues"])
        return rows, number, ended

    def _rows(
        self, plan: Mapping[str, Any], done: int, size: int, number: int
    ) -> Iterator[tuple[pa.Table, int]]:
        """The rows from a number on, in batches; one that was begun has the size it had."""
        begun = self._ledger.read(f"batches/{number:08d}.json")
        wanted = size if begun is None else int(begun["rows"])
        place = place_of(self._settings.table, self._settings.storage, "from")
        held: list[pa.Table] = []
        count = at = 0
        for each in plan["files"]:
            if at + each["rows"] <= done:
                at += each["rows"]
                continue
            for rows in _file_rows(place, each):
                start = max(done - at, 0)
                at += rows.num_rows
                if start >= rows.num_rows:
                    continue
                rows = rows.slice(start)
                while rows.num_rows:
                    part = rows.slice(0, wanted - count)
                    held.append(part)
                    count += part.num_rows
                    rows = rows.slice(part.num_rows)
                    if count == wanted:
                        yield pa.concat_tables(held, promote_options="permissive"), done
                        done += count
                        held, count, wanted = [], 0, size
        if held:
            yield pa.concat_tables(held, promote_options="permissive"), done

    def _messages(self, rows: pa.Table, run: str, first: int) -> list[Message]:
        settings = self._settings
        names = rows.schema.names
        value = settings.value or ("value" if "value" in names else "")
        arrays = {name: rows.column(name) for name in _COLUMNS if name in names}
        arrays["value"] = rows.column(value) if value else _as_json(rows)
        if settings.key:
            arrays["key"] = rows.column(settings.key).cast(pa.string())
        table = pa.table(arrays).combine_chunks()
        batch = table.to_batches()[0]
        columns = {name: number for number, name in enumerate(table.schema.names)}
        made = MessageRows(batch, columns, settings.topic, 4 << 20)
        messages = []
        for number in range(made.count):
            try:
                message = made.message(number)
            except RecordError as error:
                raise RecordError(f"{settings.table}, from row {first} on: {error}") from None
            kept = {
                name: text for name, text in message.properties.items()
                if name in _KEPT or not (name in DROPPED or name.startswith(p.TRANSIENT_PREFIX))
            }  # fmt: skip
            message.properties.clear()
            message.properties.update(kept)
            name = f"{run}/{first + number}"
            message.properties[PUBLISHED_AS] = name
            message.properties.setdefault(p.UNIQ_KEY, name)
            messages.append(message)
        return messages

    # Sending

    def _wait_for_group(self) -> None:
        settings = self._settings
        if not settings.group:
            return
        while True:
            progress = LOOP.call(
                lambda: self._sender.admin.consume_stats(settings.group, settings.topic)
            )
            if progress.lag <= settings.max_lag:
                return
            self._pause(_LAG_LOOK_S)

    def _batch(
        self, number: int, run: str, first: int, rows: pa.Table, queues: list[MessageQueue]
    ) -> None:
        messages: dict[MessageQueue, list[Message]] = {}
        for place, message in enumerate(self._messages(rows, run, first)):
            key = message.properties.get(p.SHARDING_KEY)
            queue = (
                select_by_hash(queues, message, key) if key
                else queues[(first + place) % len(queues)]
            )  # fmt: skip
            messages.setdefault(queue, []).append(message)
        self._send(number, rows.num_rows, queues, messages, marker=False)

    def _end(self, number: int, run: str, queues: list[MessageQueue]) -> None:
        self._step("marker")
        settings, report = self._settings, self._report
        messages = {}
        for place, queue in enumerate(queues):
            message = Message(settings.topic, settings.marker.encode())
            name = f"{run}/marker-{place}"
            message.properties.update(
                {PUBLISHED_AS: name, MARKER: str(report.rows), p.UNIQ_KEY: name}
            )
            messages[queue] = [message]
        self._send(number, 0, queues, messages, marker=True)

    def _send(
        self,
        number: int,
        rows: int,
        queues: list[MessageQueue],
        messages: Mapping[MessageQueue, list[Message]],
        *,
        marker: bool,
    ) -> None:
        begun = self._ledger.read(f"batches/{number:08d}.json")
        if begun is None:
            self._step("intend")
            ends = LOOP.call(lambda: self._sender.ends(queues))
            self._ledger.write(f"batches/{number:08d}.json", {"rows": rows, "ends": ends})
        else:
            ends = begun["ends"]
        self._step("send")
        base = dict(zip(queues, ends, strict=True))
        arrived = LOOP.call(lambda: self._sender.send(base, messages, resumed=begun is not None))
        self._step("finish")
        places = {_label(queue): _span(each) for queue, each in arrived.items()}
        self._ledger.write(
            f"batches/{number:08d}.done", {"rows": rows, "marker": marker, "queues": places}
        )
        self._count(places)
        if not marker:
            already = sum(each.already for each in arrived.values())
            self._report.already += already
            self._report.sent += rows - already

    def _count(self, places: Mapping[str, list[int]]) -> None:
        spans = self._report.queues
        for name, (low, high) in places.items():
            before = spans.get(name, [low, high])
            spans[name] = [min(low, before[0]), max(high, before[1])]


_KEPT: Final = frozenset({p.KEYS, p.TAGS, p.SHARDING_KEY, p.UNIQ_KEY})


def _label(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _span(arrived: Arrived) -> list[int]:
    return [min(arrived.offsets.values()), max(arrived.offsets.values())]


class TableFile(NamedTuple):
    """A file of a table, and what its rows have beside its columns: a partition's values."""

    path: str
    partition: dict[str, Any]


def open_table(
    table: str, as_of: str, storage: Mapping[str, str]
) -> tuple[Place, str, list[TableFile]]:
    """The files of a table, in their order, where they are, and which version that is.

    Args:
        table: see `PublishSettings`.
        as_of: a version or a time; "" for now.
        storage: options of an object store.

    Raises:
        OptionError: no table there, none that has versions, or one whose files do not show which
            rows were deleted.
    """
    place = place_of(table, storage, "from")
    names = dict(place.names(place.root))
    if DIRECTORY in names:
        root = table.rstrip("/")
        tables = [f"{root}/{n}" for n, is_one in names.items() if is_one and n != DIRECTORY]
        raise OptionError(
            f"from: {table!r} is an export of several tables: name one of "
            f"{', '.join(sorted(tables)) or 'them'}"
        )
    if "_delta_log" in names:
        return place, *_delta_files(place, as_of)
    parent, _, name = place.root.rpartition("/")
    in_one = parent not in ("", f"{table.partition('://')[0]}:/")
    ledger = Ledger(place_of(parent, storage, "from")) if in_one else None
    export = ledger.settings(None) if ledger is not None else None
    if "metadata" in names:
        return place, *_iceberg_files(place, as_of, export, ledger, name)
    if as_of:
        raise OptionError(f"from: {table!r} is a directory of files, which has no versions")
    if export is not None and ledger is not None:
        files = list_files(export, ledger).get(name, [])  # none beside one it was joined into
    else:
        files = place.parquet_files(place.root)
    # What writers have not finished lies under names that begin so.
    files = [
        path for path in files
        if not any(each[:1] in "._" for each in path[len(place.root) + 1 :].split("/"))
    ]  # fmt: skip
    if not files:
        raise OptionError(f"from: {table!r} has no Parquet files")
    return place, "", [TableFile(path, values_of(path[len(place.root) :])) for path in files]


def _delta_files(place: Place, as_of: str) -> tuple[str, list[TableFile]]:
    from deltalake import DeltaTable  # an extra
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(place.root, storage_options=place.delta_options())
        if as_of:
            table.load_as_version(int(as_of) if as_of.isdecimal() else as_of)
    except (DeltaError, ValueError, OSError) as error:
        raise OptionError(f"from: {place.root} as of {as_of or 'now'}: {error}") from None
    check_delta(table, place.root)
    names = [f"partition.{name}" for name in table.metadata().partition_columns]
    added = pa.table(table.get_add_actions(flatten=True)).select(["path", *names]).to_pylist()
    files = []
    for each in added:
        path = unquote(each.pop("path"))
        partition = {name.removeprefix("partition."): _plain(v) for name, v in each.items()}
        if "://" not in path and not path.startswith("/"):
            path = f"{place.root}/{path}"
        files.append(TableFile(path.removeprefix("file://"), partition))
    return str(table.version()), sorted(files, key=lambda file: file.path)


def _iceberg_files(
    place: Place, as_of: str, export: ExportSettings | None, ledger: Ledger | None, name: str
) -> tuple[str, list[TableFile]]:
    tables = None
    if export is not None and ledger is not None and export.format == "iceberg":
        # Its catalog says which version counts; one that was killed may have left another.
        tables = IcebergTables(export, ledger)
        table = tables.load(name)
    else:
        newest = _newest_metadata(place, as_of)
        from pyiceberg.table import StaticTable  # an extra

        table = StaticTable.from_metadata(f"file://{place.root}/metadata/{newest}")
    try:
        snapshot = table.current_snapshot()
        if as_of:
            if not as_of.isdecimal():
                raise OptionError(
                    f"as of {as_of!r}: an Iceberg table is named by its snapshot's id"
                )
            snapshot = table.snapshot_by_id(int(as_of))
        if snapshot is None:
            raise OptionError(f"from: {place.root} has no snapshot {as_of}")
        plan = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
    finally:
        if tables is not None:
            tables.close()
    files = sorted(whole_files(plan, place.root))
    return str(snapshot.snapshot_id), [TableFile(path, {}) for path in files]


def _newest_metadata(place: Place, as_of: str) -> str:
    """The file of an Iceberg table's newest version, of a table that is no export's.

    Raises:
        OptionError: there is none, or its name does not tell that it counts: a commit that a
            catalog did not take leaves a file, too. Who names a snapshot has said what counts.
    """
    names = [name for name, _ in place.names(f"{place.root}/metadata")]
    found = [(int(each[2]), each[1], each[0]) for each in map(_METADATA.fullmatch, names) if each]
    if not found:
        raise OptionError(f"from: {place.root} has no Iceberg metadata")
    if not isinstance(place, LocalPlace):
        raise OptionError(
            f"from: {place.root} is an Iceberg table that is no export; {_BY_SPARK}, or name one "
            "of this machine's file systems"
        )
    _, is_committed, name = max(found)
    if not is_committed and not as_of:
        raise OptionError(
            f"from: {place.root} is a table of a catalog, which alone knows the version that "
            f"counts: name a snapshot with --as-of, or {_BY_SPARK}"
        )
    return name


_METADATA: Final = re.compile(r"(v?)(\d+)(-(?![0-9a-f]{4}-).*|\.gz)?\.metadata\.json")
"""A file system table commits by giving a file, which is a UUID before, the name ``vN``; names of a
number and a UUID are a catalog's."""
_BY_SPARK: Final = "read it with Spark and write that with format('rocketmq')"


def _file_rows(place: Place, file: Mapping[str, Any]) -> Iterator[pa.Table]:
    """The rows of a file by row groups.

    Raises:
        DataLossError: it is not the one that it was.
    """
    system, bare = place.arrow(file["path"])
    try:
        size = place.size(file["path"])
    except FileNotFoundError:
        raise DataLossError(
            f"{file['path']} is gone: it was joined with others, or removed; keep the version "
            "until all is sent"
        ) from None
    if size != file["size"]:
        raise DataLossError(f"{file['path']}: {size} bytes, it had {file['size']}")
    with pq.ParquetFile(bare, filesystem=system) as opened:
        for number in range(opened.num_row_groups):
            rows = opened.read_row_group(number)
            for name, value in file.get("partition", {}).items():
                if name not in rows.schema.names:
                    kind = None if value is not None else pa.null()  # of whatever type others have
                    rows = rows.append_column(name, pa.array([value] * rows.num_rows, kind))
            yield rows


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes as text, times in ISO 8601."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _as_json(rows: pa.Table) -> pa.Array:
    """Each row as a JSON object."""
    made = [
        json.dumps(row, ensure_ascii=False, default=_plain, separators=(",", ":")).encode()
        for row in rows.to_pylist()
    ]
    return pa.array(made, pa.binary())
