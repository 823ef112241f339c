"""Joins the small files of an export, so that readers open fewer.

Parquet: files of one directory are joined until they have the wanted size; the joined file says the
range from the first one's beginning to the last one's end. The same commit file that puts it in
place names the files that it replaces, and both steps are taken again after a kill. A file whose
directory gets another name is moved in the same way.

Delta: delta-rs's own compaction, one commit, or a few where it cannot join some partitions. Its
files do not carry the range of the log; the table's history does. Iceberg: see `iceberg_upkeep`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from oberth.errors import OptionError
from oberth.spark.pipelines.export.directories import PARTITION, cut_between_characters
from oberth.spark.pipelines.export.iceberg_upkeep import expire as expire_tables
from oberth.spark.pipelines.export.iceberg_upkeep import join as join_tables
from oberth.spark.pipelines.export.iceberg_upkeep import neighbours
from oberth.spark.pipelines.export.ledger import Ledger
from oberth.spark.pipelines.export.places import LocalPlace, Place, place_of
from oberth.spark.pipelines.export.rows import file_metadata, writer_options
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.export.tables import IcebergTables, ParquetTables, open_tables
from oberth.store.offline.rebuild import sync_directory

COMMIT: Final = "commits/compaction.json"
_LISTINGS_MAX: Final = 100
_NAME_MAX: Final = 255
"""Bytes of a name in a file system."""
_KEY_MAX: Final = 1024
"""Bytes of an object's key, from behind the bucket to the file's name."""
_FILE_NAME_MAX: Final = 80
"""More than delta-rs gives a file that it has joined: 65 bytes."""
_OF_ONE_LOG: Final = tuple(file_metadata("", 0, 0, 0, 0))
"""What a file says of itself that files of several brokers cannot say together."""


def compact(into: str, target_size: int, storage: Mapping[str, str] | None = None) -> int:
    """Joins files that are smaller than a size.

    Args:
        into: the export's directory.
        target_size: bytes.
        storage: options of the object store that it lies in, without ``storage.``.

    Returns:
        How many files were replaced.

    Raises:
        OptionError: no export there, or Parquet files in an object store.
        StoreLockedError: an export is writing there.
    """
    ledger = Ledger(place_of(into, storage or {}, "into"))
    settings = ledger.settings(None)
    if settings is None:
        raise OptionError(f"{into}: holds no export")
    with ledger.locked():
        if settings.format == "iceberg":
            tables = IcebergTables(settings, ledger)
            try:
                return join_tables(tables, target_size)
            finally:
                tables.close()
        if settings.format == "delta":
            return _compact_delta(settings, ledger, target_size)
        if not isinstance(ledger.place, LocalPlace):
            raise OptionError(
                f"{into}: Parquet files in an object store are not joined; use format delta"
            )
        settle(ledger)
        _rename_directories(ledger, ParquetTables(settings, ledger))
        return _compact_parquet(ledger, ParquetTables(settings, ledger), target_size)


def expire(into: str, hours: float, storage: Mapping[str, str] | None = None) -> int:
    """Forgets versions of tables that are older than some hours, and deletes files that none has.

    The newest version stays, and with it what says which batches a table has.

    Args:
        into: the export's directory.
        hours: how long a version is kept for time travel and for those who are reading it.
        storage: options of the object store that it lies in, without ``storage.``.

    Returns:
        How many files are gone.

    Raises:
        OptionError: no export there, or one to Parquet, which has no versions.
        StoreLockedError: an export is writing there.
    """
    ledger = Ledger(place_of(into, storage or {}, "into"))
    settings = ledger.settings(None)
    if settings is None:
        raise OptionError(f"{into}: holds no export")
    if settings.format == "parquet":
        raise OptionError(f"{into}: Parquet tables have no versions to expire")
    with ledger.locked():
        tables = open_tables(settings, ledger)
        if isinstance(tables, IcebergTables):
            try:
                return expire_tables(tables, hours)
            finally:
                tables.close()
        from deltalake import DeltaTable

        gone = 0
        for table in tables.files():
            root, options = os.path.join(ledger.into, table), ledger.place.delta_options()
            found = DeltaTable(root, storage_options=options)
            found.create_checkpoint()
            _sync_delta(ledger, root)  # what follows deletes what the checkpoint replaces
            found.cleanup_metadata()
            # delta-rs takes whole hours.
            gone += len(
                found.vacuum(math.ceil(hours), dry_run=False, enforce_retention_duration=False)
            )
        return gone


def _compact_delta(settings: ExportSettings, ledger: Ledger, target_size: int) -> int:
    from deltalake import DeltaTable

    replaced = 0
    for table in open_tables(settings, ledger).files():
        root, options = os.path.join(ledger.into, table), ledger.place.delta_options()
        found = DeltaTable(root, storage_options=options)
        names = found.metadata().partition_columns
        for chosen in _joined_by_delta(found, names, _room(ledger.place, root, len(names))):
            metrics = found.optimize.compact(chosen or None, target_size=target_size)
            replaced += int(metrics["numFilesRemoved"])
        _sync_delta(ledger, root)
    return replaced


def _room(place: Place, root: str, columns: int) -> int:
    """Bytes that a directory ``name=value`` of a table may have.

    Args:
        place: where the table lies.
        root: its directory or URL.
        columns: how many such directories are in each other; of an object's key each has a share.
    """
    if isinstance(place, LocalPlace):
        return _NAME_MAX
    _, _, key = root.partition("://")[2].partition("/")
    rest = _KEY_MAX - len(f"{key}/".encode()) - _FILE_NAME_MAX
    return rest // max(columns, 1) - len("/")


def _joined_by_delta(
    table: Any, names: Sequence[str], room: int
) -> list[list[tuple[str, str, Any]]]:
    """The partitions that delta-rs can join, as filters, one after the other; an empty one is all.

    It writes what it joins into directories ``name=value``, with values that anybody may send. What
    would have a longer name than the place takes stays as it is.

    Args:
        table: of delta-rs.
        names: its partition columns.
        room: bytes of a directory's name.
    """
    choices: list[list[tuple[str, str, Any]]] = []
    if names:
        added = pa.table(table.get_add_actions(flatten=True))
        for name in names:
            values = set(added.column(f"partition.{name}").to_pylist()) - {None}
            long = [each for each in values if len(f"{name}={quote(each, safe='')}") > room]
            if long:
                # Null is not in any list, and equals "".
                choices.append([(name, "not in", sorted(long)), (name, "=", "")])
    return [list(each) for each in product(*choices)]


def _sync_delta(ledger: Ledger, root: str) -> None:
    """Waits until what delta-rs wrote of a table is durable; it syncs nothing itself."""
    last, _ = ledger.last_batch()
    since_ms = 0 if last is None else ledger.written_since_ms(last.number)
    ledger.place.sync_below(root, since_ms)


def _rename_directories(ledger: Ledger, tables: ParquetTables) -> None:
    """Moves files out of directories whose names older exports cut within a character."""
    place = ledger.place
    for paths in tables.files().values():
        for path in paths:
            table, *names, file = os.path.relpath(path, ledger.into).split(os.sep)
            better = os.path.join(ledger.into, table, *map(cut_between_characters, names))
            old = os.path.dirname(path)
            if better == old:
                continue
            place.make(better)
            # A kill can have come between a directory's making and its parent's sync.
            for each in tables.down_to(better):
                place.sync(each)
            # As if it was joined: a reader sees it in one of the two, also after a loss of power.
            joined = os.path.join(better, file)
            ledger.write(COMMIT, {"staged": path, "joined": joined, "replaced": [path]})
            settle(ledger)
            with suppress(OSError):  # others are in it
                os.removedirs(old)


def _compact_parquet(ledger: Ledger, tables: ParquetTables, target_size: int) -> int:
    replaced = 0
    for paths in tables.files().values():
        by_directory: dict[str, dict[str, int]] = {}
        for path in paths:
            size = os.path.getsize(path)
            if size < target_size:
                by_directory.setdefault(os.path.dirname(path), {})[path] = size
        for small in by_directory.values():
            for group in neighbours(small, target_size):
                for alike in _alike(group):
                    _join(ledger, alike)
                    replaced += len(alike)
    return replaced


def _alike(paths: list[str]) -> list[list[str]]:
    """Those of the same values, at least two each; see `directories`."""
    groups: dict[bytes | None, list[str]] = {}
    for path in paths:
        said = (pq.read_schema(path).metadata or {}).get(PARTITION)
        groups.setdefault(said, []).append(path)
    return [group for group in groups.values() if len(group) > 1]


def _join(ledger: Ledger, paths: list[str]) -> None:
    first = pq.read_schema(paths[0])
    metadata = dict(first.metadata or {})
    said = [pq.read_schema(path).metadata or {} for path in paths]
    for key, choose in ((b"oberth.log.start", min), (b"oberth.log.end", max)):
        numbers = [int(each[key]) for each in said if key in each]
        if numbers:
            metadata[key] = b"%d" % choose(numbers)
    if len({each.get(b"oberth.broker") for each in said}) > 1:  # a range is one log's
        metadata = {key: value for key, value in metadata.items() if key not in _OF_ONE_LOG}
    schema = first.with_metadata(metadata)
    directory, name = os.path.split(paths[0])
    joined = os.path.join(directory, name.replace("part-", "joined-", 1))
    if joined == paths[0]:
        joined = os.path.join(directory, "joined-" + name)
    staged = os.path.join(ledger.directory, "compaction.parquet.staged")
    with pq.ParquetWriter(staged, schema, **writer_options(schema)) as writer:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for number in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(number).cast(schema))
    fd = os.open(staged, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    ledger.write(COMMIT, {"staged": staged, "joined": joined, "replaced": paths})
    settle(ledger)


def settle(ledger: Ledger) -> None:
    """Brings a compaction that was committed to its end."""
    commit = ledger.read(COMMIT)
    if commit is None:
        return
    with suppress(FileNotFoundError):  # moved already
        os.replace(commit["staged"], commit["joined"])
    for path in commit["replaced"]:
        with suppress(FileNotFoundError):
            os.unlink(path)
    for directory in {os.path.dirname(each) for each in (commit["joined"], *commit["replaced"])}:
        sync_directory(directory)
    path = os.path.join(ledger.directory, COMMIT)
    with suppress(FileNotFoundError):
        os.unlink(path)
    # Else a loss of power could bring it back, beside what is staged for the next.
    sync_directory(os.path.dirname(path))


def list_files(settings: ExportSettings, ledger: Ledger) -> dict[str, list[str]]:
    """The files of every table, none beside one that it was joined into."""
    tables = open_tables(settings, ledger)
    try:
        if settings.format != "parquet":
            return tables.files()
        before: Any = None
        for _ in range(_LISTINGS_MAX):  # files are joined while they are listed
            now = tables.files(), ledger.read(COMMIT)
            if now == before:
                break
            before = now
        files, commit = before
        if commit is not None:
            every = {path for paths in files.values() for path in paths}
            gone = set(commit["replaced"]) if commit["joined"] in every else {commit["joined"]}
            files = {table: [x for x in paths if x not in gone] for table, paths in files.items()}
        return dict(files)
    finally:
        if isinstance(tables, IcebergTables):
            tables.close()
