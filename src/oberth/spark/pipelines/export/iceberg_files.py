"""Iceberg tables that lie in an object store and have no catalog: a table is found by its place.

Iceberg's specification calls them file system tables. Version N of a table is the object
``metadata/vN.metadata.json``, and ``metadata/version-hint.text`` holds the newest N for readers
that do not list. Versions are counted from 1. Uploading vN is the commit: an object appears whole,
and who writes a version that is there already has lost. That is asked before the upload and not by
it, so writers on different machines have to be kept apart, or use a catalog.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from oberth.spark.pipelines.export.places import Place

HINT: Final = "version-hint.text"
_VERSION: Final = re.compile(r"v([1-9][0-9]*)\.metadata\.json")
_PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class FileCatalog(MetastoreCatalog, NoopCatalog):
    """The tables below one place; a namespace's name means nothing. One writer at a time."""

    def __init__(
        self, name: str, place: Place, names: Callable[[], list[str]], **properties: str
    ) -> None:
        super().__init__(name, **properties)
        self._place = place
        self._names = names

    def create_namespace_if_not_exists(self, *_: Any) -> None:
        """See `Catalog`: there is nothing to make."""

    def list_tables(self, namespace: Any) -> list[Any]:
        """See `Catalog`."""
        return [(namespace, name) for name in self._names() if self._version(self._root(name))]

    def _root(self, table: str) -> str:
        return f"{self._place.root}/{table}"

    def _version(self, root: str) -> int:
        """The newest version of the table at a place, 0 for none."""
        found = (_VERSION.fullmatch(name) for name, _ in self._place.names(f"{root}/metadata"))
        return max((int(each[1]) for each in found if each), default=0)

    def load_table(self, identifier: Any) -> Table:
        """See `Catalog`."""
        name = self.table_name_from(identifier)
        root = self._root(name)
        version = self._version(root)
        if not version:
            raise NoSuchTableError(f"there is no table at {root}")
        path = _metadata_path(root, version)
        io = self._load_file_io(location=path)
        metadata = FromInputFile.table_metadata(io.new_input(path))
        return Table((self.name, name), metadata, path, io, self)

    def create_table(
        self, identifier: Any, schema: Any, location: str | None = None, *rest: Any, **more: Any
    ) -> Table:
        """See `Catalog`; the location is the table's name below the place."""
        name = self.table_name_from(identifier)
        staged = self._create_staged_table(
            (self.name, name), schema, self._root(name), properties=_PROPERTIES
        )
        self._write(self._root(name), 1, staged.metadata)
        return self.load_table(identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """See `Catalog`."""
        current = self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        root = self._root(self.table_name_from(table.name()))
        version = int(current.metadata_location.rpartition("/v")[2].partition(".")[0]) + 1
        if staged.metadata == current.metadata:
            path = current.metadata_location
        else:
            path = self._write(root, version, staged.metadata)
            self._delete_old_metadata(staged.io, current.metadata, staged.metadata)
        return CommitTableResponse(metadata=staged.metadata, metadata_location=path)  # type: ignore[call-arg]  # an alias

    def _write(self, root: str, version: int, metadata: Any) -> str:
        path = _metadata_path(root, version)
        try:
            self._write_metadata(metadata, self._load_file_io(location=path), path)
        except FileExistsError:
            raise CommitFailedException(f"{path} was written by another process") from None
        self._place.write(f"{root}/metadata/{HINT}", b"%d" % version)
        return path


def _metadata_path(root: str, version: int) -> str:
    return f"{root}/metadata/v{version}.metadata.json"
