"""Files of Iceberg tables in directories of this machine: on the disk before a catalog names them.

pyiceberg writes manifests and metadata, and its catalog then notes the newest metadata file. Where
the catalog syncs that and nobody syncs the files, a loss of power leaves a table that names a file
without content. `SyncedFileIO` is for the property ``py-io-impl``.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Final, Self

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from oberth.store.files import OsFileSystem

SYNCED: Final = f"{__name__}.SyncedFileIO"
"""The value of ``py-io-impl``."""


class SyncedFileIO(PyArrowFileIO):
    """Reads and writes as pyarrow does; a local file is durable when it is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """See `FileIO`."""
        made = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return _SyncedFile(location, path, made._filesystem) if scheme == "file" else made


class _SyncedFile(PyArrowFile):
    """A file of this machine that will be written."""

    def create(self, overwrite: bool = False) -> Any:
        """See `OutputFile`."""
        OsFileSystem().make_dirs(os.path.dirname(self._path))
        return _SyncedStream(super().create(overwrite), self._path)


class _SyncedStream:
    """A stream whose ``close`` waits for the disk."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, data: bytes) -> int:
        """See `OutputStream`."""
        return int(self._stream.write(data))

    def tell(self) -> int:
        """See `OutputStream`."""
        return int(self._stream.tell())

    def close(self) -> None:
        """Ends the file, and waits until it and its name are on the disk."""
        if self._stream.closed:
            return
        self._stream.close()
        fd = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        OsFileSystem().sync_directory(os.path.dirname(self._path))
