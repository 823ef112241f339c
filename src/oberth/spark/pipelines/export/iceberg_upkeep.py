"""Keeps Iceberg tables small: joins files, forgets snapshots, deletes what no snapshot names.

    join     small files of a partition are written as one, and one snapshot for each table puts
             it in their place; the rows stay
    expire   snapshots that are older than some hours are forgotten, but for the newest and those
             that another engine gave a tag or a branch; then the files below the table that no
             snapshot has, if they are as old

A kill between two steps leaves files that no snapshot names: joined ones before their commit,
replaced ones after it, those of snapshots that are forgotten. The next `expire` finds them by
listing, so it needs no memory of what was begun. A younger file may be that of a commit in
progress, by whichever engine, and stays.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from oberth.spark.pipelines.export.iceberg import location_of
from oberth.spark.pipelines.export.places import Place
from oberth.spark.pipelines.export.rows import GROUP_BYTES, writer_options
from oberth.spark.pipelines.export.tables import IcebergTables
from oberth.wall_clock import now_ms

_LOG: Final = logging.getLogger(__name__)

JOINED_PROPERTY: Final = "oberth.joined"
"""Of a snapshot that only joined files: how many."""
_JOINED: Final = "joined-"
_DATA: Final = re.compile(r"(part|joined)-.*\.parquet")
_METADATA: Final = re.compile(r".*\.(avro|metadata\.json)")


def join(tables: IcebergTables, target_size: int) -> int:
    """Joins files that are smaller than a size; gives how many were replaced.

    A table that another engine commits to meanwhile, or has deleted rows of, is left for later.

    Args:
        tables: of the export; nobody else joins them now.
        target_size: bytes.
    """
    return sum(_join_table(tables, name, target_size) for name in tables.table_names())


def _join_table(tables: IcebergTables, name: str, target_size: int) -> int:
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    table = tables.load(name)
    by_partition: dict[str, dict[str, Any]] = {}
    for task in table.scan().plan_files():
        file = task.file
        if (
            file.file_size_in_bytes < target_size and not task.delete_files
            and file.spec_id == table.spec().spec_id
        ):  # fmt: skip
            by_partition.setdefault(repr(file.partition), {})[file.file_path] = task
    groups = [
        [small[path] for path in paths]
        for small in by_partition.values()
        for paths in neighbours(
            {path: task.file.file_size_in_bytes for path, task in small.items()}, target_size
        )
    ]
    if not groups:
        return 0
    replaced = [task.file for group in groups for task in group]
    joined = [_written(tables, table, name, group) for group in groups]
    tables.place.sync(tables.root(name))
    try:
        with table.transaction() as change:
            said = {JOINED_PROPERTY: str(len(replaced))}
            with change.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
                for old in replaced:
                    snapshot.delete_data_file(old)
                located = (location_of(tables.place, f"{name}/{each}") for each in joined)
                for new in parquet_files_to_data_files(table.io, table.metadata, located):
                    snapshot.append_data_file(new)
    except (CommitFailedException, ValidationException) as error:
        _LOG.warning("table %s: files are joined another time: %s", name, error)
        for each in joined:
            tables.place.remove(f"{tables.root(name)}/{each}")
        return 0
    return len(replaced)


def _written(tables: IcebergTables, table: Any, name: str, group: Sequence[Any]) -> str:
    """Writes the rows of some files into one, in their order; gives its name."""
    schema = tables.file_schema(name, table)
    first = group[0].file.file_path.rpartition("/")[2]
    stem = re.sub(r"^(part|joined)-|(-[0-9a-f]{12})?\.parquet$", "", first)
    made = f"{_JOINED}{stem}-{uuid.uuid4().hex[:12]}.parquet"
    path = f"{tables.root(name)}/{made}"
    sink = tables.place.open(path)
    with pq.ParquetWriter(sink, schema, **writer_options(schema)) as writer:
        held: list[pa.Table] = []
        for rows in _rows(table, group):
            held.append(rows.cast(schema))
            if sum(each.nbytes for each in held) >= GROUP_BYTES:
                _flush(writer, held)
        _flush(writer, held)
    if not isinstance(sink, str):
        sink.close()
    tables.place.finish(path)
    return made


def _flush(writer: pq.ParquetWriter, held: list[pa.Table]) -> None:
    if held:
        rows = pa.concat_tables(held)
        writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        held.clear()


def neighbours(sizes: Mapping[str, int], target_size: int) -> list[list[str]]:
    """Files next to each other, by their names, that together have about a size; at least two each.

    Args:
        sizes: bytes by path.
        target_size: bytes.
    """
    groups: list[list[str]] = []
    size = 0
    for path in sorted(sizes):
        if not groups or size + sizes[path] > target_size:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += sizes[path]
    return [group for group in groups if len(group) > 1]


def _rows(table: Any, group: Sequence[Any]) -> Iterator[pa.Table]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    # By the table's columns, whatever they were called when a file was written.
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for task in group:
        for batch in scan.to_record_batches([task]):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])


def expire(tables: IcebergTables, hours: float) -> int:
    """Forgets snapshots that are older than some hours, but for the newest and what has a name.

    Args:
        tables: of the export.
        hours: how long snapshots, and files that none has, are kept.

    Returns:
        How many files were deleted.
    """
    limit_ms = now_ms() - int(hours * 3_600_000)
    gone = 0
    for name in tables.table_names():
        table = tables.load(name)
        # The newest of the main branch is one of them, if there is any.
        named = {reference.snapshot_id for reference in table.metadata.refs.values()}
        old = [
            each.snapshot_id for each in table.snapshots()
            if each.timestamp_ms < limit_ms and named and each.snapshot_id not in named
        ]  # fmt: skip
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
            table = tables.load(name)
        gone += _remove_orphans(tables.place, tables.root(name), table, limit_ms)
    return gone


def _remove_orphans(place: Place, root: str, table: Any, limit_ms: int) -> int:
    """Deletes files below a table that no snapshot has and that are older than a time."""
    metadata = table.metadata
    kept = {_key(table.metadata_location)}
    kept |= {_key(each.metadata_file) for each in metadata.metadata_log}
    kept |= {_key(each.manifest_list) for each in metadata.snapshots}
    kept |= {_key(each.statistics_path) for each in metadata.statistics}
    kept |= {_key(each.statistics_path) for each in metadata.partition_statistics}
    directories = ((root, _DATA), (f"{root}/metadata", _METADATA))
    found = [
        f"{directory}/{name}"
        for directory, ours in directories
        for name, is_directory in place.names(directory)
        if not is_directory and ours.fullmatch(name)
    ]
    current = table.current_snapshot()
    snapshots = sorted(metadata.snapshots, key=lambda each: each is not current)
    read: set[str] = set()
    for snapshot in snapshots:  # mostly the newest alone has all that is old
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in read:
                continue
            read.add(manifest.manifest_path)
            kept.add(_key(manifest.manifest_path))
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            kept |= {_key(entry.data_file.file_path) for entry in entries}
        found = [path for path in found if _key(path) not in kept]
        if snapshot is snapshots[0]:
            found = [path for path in found if place.modified_ms(path) < limit_ms]
        if not found:
            return 0
    if not snapshots:  # the first commit of another engine may be in progress
        found = [path for path in found if _key(path) not in kept]
        found = [path for path in found if place.modified_ms(path) < limit_ms]
    for path in found:
        place.remove(path)
    return len(found)


def _key(location: str) -> str:
    """A file's place without its scheme, of which engines write several for one store."""
    return re.sub(r"^([a-z0-9]+:)?/*", "", location)
