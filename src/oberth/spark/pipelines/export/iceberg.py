"""The catalogs that an export's Iceberg tables are in, by pyiceberg.

    beside the tables    a directory: SQLite, ``catalog.db``
                         an object store: none but the tables' own files, see `iceberg_files`
    named by --catalog   a REST server, Hive, Glue, an SQL database: what pyiceberg knows

What a catalog wants beside its address (tokens, headers, a profile) pyiceberg takes from its own
configuration of the catalog `NAMESPACE`: ``PYICEBERG_CATALOG__OBERTH__TOKEN`` and so on in the
environment, or ``.pyiceberg.yaml``. So no secret of it is in a plan or in an export's ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from oberth.errors import OptionError
from oberth.spark.pipelines.export.places import LocalPlace, ObjectPlace, Place
from oberth.spark.pipelines.export.settings import ExportSettings

NAMESPACE: Final = "oberth"
MISSING: Final = (
    "format iceberg needs the package pyiceberg with SQLite: pip install 'oberth[iceberg]'"
)
_NAMES: Final = {
    "endpoint": "s3.endpoint", "accessKey": "s3.access-key-id",
    "secretKey": "s3.secret-access-key", "region": "s3.region", "anonymous": "s3.anonymous",
}  # fmt: skip


def open_catalog(settings: ExportSettings, place: Place, names: Callable[[], list[str]]) -> Any:
    """The catalog of an export.

    Args:
        settings: of the export.
        place: where its tables lie.
        names: lists what may be a table there.

    Raises:
        OptionError: pyiceberg is not installed, or knows no such catalog, or cannot reach it.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import RESTError
    except ImportError:
        raise OptionError(MISSING) from None
    properties = file_properties(place)
    if not settings.catalog:
        return _own_catalog(place, names, properties)
    is_address = "://" in settings.catalog
    properties["uri" if is_address else "type"] = settings.catalog
    if settings.warehouse:
        properties["warehouse"] = settings.warehouse
    try:
        catalog = load_catalog(NAMESPACE, **properties)
        catalog.create_namespace_if_not_exists(namespace_of(settings))
    except (ValueError, ImportError, OSError, RESTError) as error:
        # Only the first line: a server's answer may be a page.
        reason = str(error).partition("\n")[0][:300]
        raise OptionError(f"catalog {settings.catalog!r}: {reason}") from error
    return catalog


def _own_catalog(place: Place, names: Callable[[], list[str]], properties: dict[str, str]) -> Any:
    """The catalog beside tables for which none was named."""
    if not isinstance(place, LocalPlace):
        from oberth.spark.pipelines.export.iceberg_files import FileCatalog

        return FileCatalog(NAMESPACE, place, names, **properties)
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError:
        raise OptionError(MISSING) from None
    into = os.path.abspath(place.root)
    place.make(into)
    catalog = SqlCatalog(
        NAMESPACE, uri=f"sqlite:///{into}/catalog.db", warehouse=f"file://{into}", **properties
    )
    catalog.create_namespace_if_not_exists(NAMESPACE)
    return catalog


def namespace_of(settings: ExportSettings) -> str:
    """Where in the catalog the tables are."""
    return settings.namespace or NAMESPACE


def file_properties(place: Place) -> dict[str, str]:
    """How pyiceberg reaches the files of a place."""
    if not isinstance(place, ObjectPlace):
        from oberth.spark.pipelines.export.iceberg_io import SYNCED

        return {"py-io-impl": SYNCED}
    found = {_NAMES[name]: value for name, value in place.storage.items() if name in _NAMES}
    endpoint = found.get("s3.endpoint", "")
    if endpoint and "://" not in endpoint:
        found["s3.endpoint"] = f"https://{endpoint}"
    return {**found, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}


def location_of(place: Place, table: str) -> str:
    """A table's place as Iceberg has it."""
    if isinstance(place, LocalPlace):
        return f"file://{os.path.abspath(os.path.join(place.root, table))}"
    return f"{place.root}/{table}"
