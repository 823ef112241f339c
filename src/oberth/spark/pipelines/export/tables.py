"""The tables of an export: how a batch's files become part of them, all at once and only once.

Parquet   files are staged; a commit file names them; from then on they are moved into place,
          and moved again after a kill. A reader in that moment sees some of the batch.
Delta     one commit with the application transaction (oberth-export, batch); a table that has
          it already is left alone
Iceberg   one snapshot, and in the same commit the table's property oberth.batch; likewise
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any, Final, Protocol

import pyarrow as pa

from oberth.errors import OptionError
from oberth.spark.pipelines.export.iceberg import MISSING, location_of, namespace_of, open_catalog
from oberth.spark.pipelines.export.ledger import DIRECTORY, Ledger
from oberth.spark.pipelines.export.places import Place
from oberth.spark.pipelines.export.rows import WrittenFile
from oberth.spark.pipelines.export.settings import QUARANTINE, ExportSettings
from oberth.wall_clock import now_ms

APPLICATION: Final = "oberth-export"
BATCH_PROPERTY: Final = "oberth.batch"
COMMIT_ATTEMPTS: Final = 10
STAGED: Final = ".staged"

TASK_FILES: Final = re.compile(r"part-[0-9]{8}-")
"""Data files that tasks write: each has waited for the disk."""


class Tables(Protocol):
    """All tables of one export."""

    # Whether partition columns are in the files too, and whether files lie in name=value/.
    in_file: bool
    hive: bool
    suffix: str

    def directory(self, batch: int) -> str:
        """Where tasks write the files of a batch."""

    def recover(self, batch: int) -> None:
        """Removes what an unfinished batch left, except where it counts already."""

    def commit(self, batch: int, files: Sequence[WrittenFile]) -> None:
        """Makes files part of their tables, unless they are."""

    def files(self) -> dict[str, list[str]]:
        """The paths of all files by table."""


def open_tables(settings: ExportSettings, ledger: Ledger) -> Tables:
    """The tables of an export.

    Raises:
        OptionError: the library that the format takes is not installed.
    """
    if settings.format == "delta":
        return DeltaTables(settings, ledger)
    if settings.format == "iceberg":
        return IcebergTables(settings, ledger)
    return ParquetTables(settings, ledger)


def require_library(form: str) -> None:
    """Raises unless the library that a format takes is installed.

    Raises:
        OptionError: which extra has it.
    """
    if form == "delta" and find_spec("deltalake") is None:
        raise OptionError("format delta needs the package deltalake: pip install 'oberth[delta]'")
    if form == "iceberg" and find_spec("pyiceberg") is None:
        raise OptionError(MISSING)


def _by_table(files: Iterable[WrittenFile]) -> dict[str, list[WrittenFile]]:
    tables: dict[str, list[WrittenFile]] = {}
    for file in files:
        tables.setdefault(file.table, []).append(file)
    return tables


def _schema_of(settings: ExportSettings, table: str) -> pa.Schema:
    return settings.table_schema(quarantine=table.endswith(QUARANTINE))


def _partition_names(settings: ExportSettings, table: str) -> list[str]:
    if table.endswith(QUARANTINE):
        return []
    return [each.name for each in settings.partitions()]


def _directories(ledger: Ledger) -> list[str]:
    """Names below an export's directory that may be tables."""
    found = ledger.place.names(ledger.into)
    return [name for name, is_directory in found if is_directory and name != DIRECTORY]


class ParquetTables:
    """Directories of Parquet files, partitions as ``name=value`` directories."""

    in_file = False
    hive = True
    suffix = STAGED

    def __init__(self, settings: ExportSettings, ledger: Ledger) -> None:
        self._ledger = ledger

    def directory(self, batch: int) -> str:
        """See `Tables`."""
        return os.path.join(self._ledger.directory, "staging", f"{batch:08d}")

    def recover(self, batch: int) -> None:
        """See `Tables`."""
        if self._ledger.read(self._commit_name(batch)) is None:
            self._ledger.place.remove_all(self.directory(batch))

    def _commit_name(self, batch: int) -> str:
        return f"commits/{batch:08d}.json"

    def is_committed(self, batch: int) -> bool:
        """Whether a batch counts, even if its files are not all in place."""
        return self._ledger.read(self._commit_name(batch)) is not None

    def commit(self, batch: int, files: Sequence[WrittenFile]) -> None:
        """See `Tables`."""
        if not self.is_committed(batch):
            staged = self.directory(batch)
            names = sorted(os.path.relpath(file.path, staged) for file in files)
            rows = sum(file.rows for file in files)
            self._ledger.write(self._commit_name(batch), {"files": names, "rows": rows})
        self.settle(batch)

    def settle(self, batch: int) -> int:
        """Moves a committed batch's files into place; gives the number of their rows."""
        commit = self._ledger.read(self._commit_name(batch))
        assert commit is not None
        place = self._ledger.place
        staged = self.directory(batch)
        changed = set()
        for name in commit["files"]:
            target = os.path.join(self._ledger.into, name.removesuffix(STAGED))
            place.make(os.path.dirname(target))
            place.move(os.path.join(staged, name), target)
            changed.add(os.path.dirname(target))
        # A kill can have come between a directory's making and its parent's sync.
        for directory in {above for each in changed for above in self.down_to(each)}:
            place.sync(directory)
        place.remove_all(staged)
        return int(commit["rows"])

    def down_to(self, directory: str) -> list[str]:
        """A directory of a table and those above it, the export's own the last."""
        found = [directory]
        while len(found[-1]) > len(self._ledger.into):
            found.append(os.path.dirname(found[-1]))
        return found

    def files(self) -> dict[str, list[str]]:
        """See `Tables`."""
        place = self._ledger.place
        return {
            name: place.parquet_files(os.path.join(self._ledger.into, name))
            for name in _directories(self._ledger)
        }


class _FlatTables(ABC):
    """Files lie in a table's directory, unseen until its log names them."""

    hive = False
    suffix = ""

    def __init__(self, settings: ExportSettings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger

    def directory(self, batch: int) -> str:
        """See `Tables`."""
        return self._ledger.into

    @abstractmethod
    def has(self, table: str, batch: int) -> bool:
        """Whether a table has a batch."""

    @abstractmethod
    def table_names(self) -> list[str]:
        """Tables that there are."""

    @abstractmethod
    def present(self, tables: Iterable[str]) -> set[str]:
        """Which of some tables there are."""

    def recover(self, batch: int) -> None:
        """See `Tables`."""
        known = set(self.table_names())
        for name in _directories(self._ledger):
            if not (name in known and self.has(name, batch)):
                self._remove(os.path.join(self._ledger.into, name), batch, set())

    def commit(self, batch: int, files: Sequence[WrittenFile]) -> None:
        """See `Tables`."""
        by_table = _by_table(files)
        known = self.present(by_table)
        self._ledger.place.sync(self._ledger.into)
        for table, own in sorted(by_table.items()):
            root = os.path.join(self._ledger.into, table)
            self._ledger.place.sync(root)
            if table in known and self.has(table, batch):
                # It was committed before a kill; what was written now is written twice.
                for file in own:
                    self._ledger.place.remove(file.path)
                continue
            # What attempts of tasks left that were lost.
            self._remove(root, batch, {file.path for file in own})
            self._commit_table(table, batch, own, exists=table in known)
        self._sync(batch, by_table)

    @abstractmethod
    def _sync(self, batch: int, tables: Iterable[str]) -> None:
        """Waits until what a library wrote of a batch's tables is durable."""

    @abstractmethod
    def _commit_table(
        self, table: str, batch: int, files: Sequence[WrittenFile], *, exists: bool
    ) -> None:
        """Add a batch's files to a table, in one step that readers see whole or not at all."""

    def _remove(self, root: str, batch: int, kept: set[str]) -> None:
        for name, _ in self._ledger.place.names(root):
            path = os.path.join(root, name)
            if name.startswith(f"part-{batch:08d}-") and path not in kept:
                self._ledger.place.remove(path)


class DeltaTables(_FlatTables):
    """Delta tables, by delta-rs."""

    in_file = False

    def __init__(self, settings: ExportSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        require_library("delta")
        import deltalake  # an extra

        self._library = deltalake
        self._options = ledger.place.delta_options()

    def _root(self, table: str) -> str:
        return os.path.join(self._ledger.into, table)

    def table_names(self) -> list[str]:
        """Tables that there are."""
        return [name for name in _directories(self._ledger) if self._is_table(name)]

    def present(self, tables: Iterable[str]) -> set[str]:
        """Which of some tables there are."""
        return {name for name in tables if self._is_table(name)}

    def _is_table(self, name: str) -> bool:
        return bool(self._library.DeltaTable.is_deltatable(self._root(name), self._options))

    def _open(self, table: str) -> Any:
        return self._library.DeltaTable(self._root(table), storage_options=self._options)

    def has(self, table: str, batch: int) -> bool:
        """Whether a table has a batch."""
        version = self._open(table).transaction_version(APPLICATION)
        return version is not None and version >= batch

    def _commit_table(
        self, table: str, batch: int, files: Sequence[WrittenFile], *, exists: bool
    ) -> None:
        from deltalake import transaction

        schema = self._library.Schema.from_arrow(_schema_of(self._settings, table))
        partition_by = _partition_names(self._settings, table)
        properties = transaction.CommitProperties(
            app_transactions=[transaction.Transaction(APPLICATION, batch)],
            custom_metadata=_ranges_of(files),
        )
        actions = [
            transaction.AddAction(
                os.path.basename(file.path), file.size, dict(file.partition),
                now_ms(), True, _statistics(file),
            )
            for file in files
        ]  # fmt: skip
        if exists:
            self._open(table).create_write_transaction(
                [*actions], "append", schema, partition_by, commit_properties=properties
            )
        else:
            transaction.create_table_with_add_actions(
                self._root(table),
                schema,
                actions,
                "error",
                partition_by,
                commit_properties=properties,
                storage_options=self._options,
            )

    def _sync(self, batch: int, tables: Iterable[str]) -> None:
        # delta-rs syncs nothing, neither its log nor the files that it joins.
        since_ms = self._ledger.written_since_ms(batch)
        for table in sorted(tables):
            self._ledger.place.sync_below(self._root(table), since_ms, TASK_FILES)

    def files(self) -> dict[str, list[str]]:
        """See `Tables`."""
        found: dict[str, list[str]] = {}
        for name in self.table_names():
            table = self._open(name)
            check_delta(table, self._root(name))
            found[name] = sorted(uri.removeprefix("file://") for uri in table.file_uris())
        return found


def _ranges_of(files: Sequence[WrittenFile]) -> dict[str, str]:
    """What a table's history says of a batch: its range of the log; of several, whose is which."""
    brokers = sorted({file.broker for file in files})
    said = {}
    for broker in brokers:
        own = [file for file in files if file.broker == broker]
        behind = f".{broker}" if len(brokers) > 1 else ""
        said[f"oberth.log.start{behind}"] = str(min(file.log_start for file in own))
        said[f"oberth.log.end{behind}"] = str(max(file.log_end for file in own))
    return said


def _statistics(file: WrittenFile) -> str:
    """A file's statistics as Delta has them; times to the millisecond, the highest rounded up."""

    def text(value: Any, up: bool) -> Any:
        if isinstance(value, datetime):
            if up:
                value += timedelta(microseconds=-value.microsecond % 1000)
            return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
        return value

    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {name: text(value, False) for name, value in file.low.items()},
            "maxValues": {name: text(value, True) for name, value in file.high.items()},
            "nullCount": {},
        }
    )


def _unmeasured(table: Any, files: Sequence[WrittenFile]) -> dict[str, str]:
    """Properties of a table whose files have times that Python has no value for.

    pyiceberg cannot take such a column's limits from a file; it leaves them out from now on.
    """
    columns = {field.name for field in table.schema().fields} & {"timestamp", "bornTimestamp"}
    return {
        f"write.metadata.metrics.column.{name}": "none"
        for name in sorted(columns)
        if any(name not in file.low for file in files)
    }


class IcebergTables(_FlatTables):
    """Iceberg tables in the catalog that `iceberg` opens."""

    in_file = True

    def __init__(self, settings: ExportSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        self._namespace = namespace_of(settings)
        self._catalog = open_catalog(settings, ledger.place, lambda: _directories(ledger))
        self._lower: set[str] = set()  # tables that the catalog lists in lower case

    def close(self) -> None:
        """Closes the catalog."""
        self._catalog.close()

    @property
    def place(self) -> Place:
        """Where the tables lie."""
        return self._ledger.place

    def root(self, table: str) -> str:
        """Where a table lies."""
        return f"{self._ledger.into}/{table}"

    def file_schema(self, table: str, found: Any) -> pa.Schema:
        """The columns that a file of a table has now: as exported, or as an engine changed them."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        own = _schema_of(self._settings, table)
        if own.names == [field.name for field in found.schema().fields]:
            return own
        return schema_to_pyarrow(found.schema(), include_field_ids=False)

    def table_names(self) -> list[str]:
        """Tables that there are; a catalog may have others, of other exports."""
        return sorted(self.present(_directories(self._ledger)))

    def load(self, table: str) -> Any:
        """A table as the catalog has it now.

        Raises:
            OptionError: it is another one, elsewhere.
        """
        found = self._catalog.load_table((self._namespace, table))
        place = location_of(self._ledger.place, table)
        if found.location().rstrip("/") != place:
            raise OptionError(
                f"the catalog's table {self._namespace}.{table} lies at {found.location()}, not "
                f"at {place}: export into another namespace"
            )
        return found

    def present(self, tables: Iterable[str]) -> set[str]:
        """Which of some tables there are; the catalog says so by one question.

        Hive, Glue and Unity list a name in lower case; such a table is asked for, once.
        """
        every = {table[-1] for table in self._catalog.list_tables(self._namespace)}
        wanted = set(tables) & set(_directories(self._ledger))
        return {
            name for name in wanted
            if name in every or (name.lower() in every and self._is_listed_lower(name))
        }  # fmt: skip

    def _is_listed_lower(self, table: str) -> bool:
        """Whether a table is one that the catalog lists in lower case, not another one."""
        from pyiceberg.exceptions import NoSuchTableError

        if table not in self._lower:
            try:
                found = self._catalog.load_table((self._namespace, table))
            except NoSuchTableError:
                return False
            if found.location().rstrip("/") != location_of(self._ledger.place, table):
                return False
            self._lower.add(table)
        return True

    def has(self, table: str, batch: int) -> bool:
        """Whether a table has a batch."""
        return _has_batch(self.load(table), batch)

    def _commit_table(
        self, table: str, batch: int, files: Sequence[WrittenFile], *, exists: bool
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        if not exists:
            with suppress(TableAlreadyExistsError):  # its directory was not there yet
                self._catalog.create_table(
                    (self._namespace, table), schema=_schema_of(self._settings, table),
                    location=location_of(self._ledger.place, table),
                )  # fmt: skip
        for attempt in range(COMMIT_ATTEMPTS):
            found = self.load(table)
            if _has_batch(found, batch):
                return
            try:
                self._append(found, batch, files, _partition_names(self._settings, table))
                return
            except CommitFailedException:  # other engines write to the table as well
                if attempt == COMMIT_ATTEMPTS - 1:
                    raise

    def _append(
        self, found: Any, batch: int, files: Sequence[WrittenFile], partition_by: list[str]
    ) -> None:
        if partition_by and not found.spec().fields:  # new, or its maker was killed
            with found.update_spec() as update:
                for each in partition_by:
                    update.add_identity(each)
        paths = [location_of(self._ledger.place, self._below(file.path)) for file in files]
        with found.transaction() as change:
            change.set_properties({BATCH_PROPERTY: str(batch), **_unmeasured(found, files)})
            change.add_files(
                paths,
                snapshot_properties={BATCH_PROPERTY: str(batch), **_ranges_of(files)},
                # Names are new; to ask whether they are would read every manifest.
                check_duplicate_files=False,
            )

    def _sync(self, batch: int, tables: Iterable[str]) -> None:
        """Nothing is left to wait for: see `SyncedFileIO`."""

    def _below(self, path: str) -> str:
        return path.removeprefix(self._ledger.into).lstrip("/")

    def files(self) -> dict[str, list[str]]:
        """See `Tables`.

        Raises:
            OptionError: another engine has deleted single rows, which the files do not show.
        """
        found: dict[str, list[str]] = {}
        for name in self.table_names():
            plan = list(self.load(name).scan().plan_files())
            found[name] = sorted(whole_files(plan, f"{self._ledger.into}/{name}"))
        return found


def whole_files(plan: Iterable[Any], where: str) -> list[str]:
    """The data files of an Iceberg scan.

    Raises:
        OptionError: another engine has deleted single rows, which the files do not show.
    """
    found = []
    for task in plan:
        if task.delete_files:
            raise OptionError(
                f"{where}: another engine has deleted rows, which the table's data files do not "
                "show; rewrite them there"
            )
        found.append(task.file.file_path.removeprefix("file://"))
    return found


def check_delta(table: Any, where: str) -> None:
    """Raises for a Delta table whose files are not its rows.

    Raises:
        OptionError: other engines may have deleted or renamed what the files still show.
    """
    names = {"deletionVectors", "columnMapping"}
    odd = names.intersection(table.protocol().reader_features or ())
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        odd.add("columnMapping")
    if odd:
        raise OptionError(
            f"{where}: the Delta table uses {', '.join(sorted(odd))}, so its files are not its "
            "rows; drop the feature there, or read a copy"
        )


def _has_batch(table: Any, batch: int) -> bool:
    newest = table.properties.get(BATCH_PROPERTY)
    return (newest is not None and int(newest) >= batch) or any(
        snapshot.summary is not None and snapshot.summary.get(BATCH_PROPERTY) == str(batch)
        for snapshot in table.snapshots()
    )
