"""Where an export's tables and ledger lie: a directory of this machine, or a place in a bucket.

Both are named by one text, a path or a URL, to which names are joined with ``/``. What is written
whole appears whole: by renaming, or because an object store shows an object when its upload ends.

An object store has neither locks nor moves. What is moved is copied and then deleted, which may be
done again after a kill; and two exports into one place are kept apart on one machine only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from oberth.errors import OptionError
from oberth.spark.options import READ_OPTIONS
from oberth.store.files import OsFileSystem
from oberth.store.offline.layout import local_directory
from oberth.store.offline.rebuild import sync_directory
from oberth.wall_clock import now_ms

STORAGE: Final = "storage."
URL_SCHEMES: Final = ("s3", "gs", "abfs")
"""Object stores that are written to; others would need renames of directories."""


class Place(ABC):
    """Files below one directory or URL; pickles."""

    root: str

    @abstractmethod
    def lock_file(self, name: str) -> str:
        """A file of this machine that stands for the place; its directory is made."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """A file's bytes, None where there is none."""

    @abstractmethod
    def write(self, path: str, data: bytes, *, private: bool = False) -> None:
        """Writes a file, whole and durable; ``private``: for its owner alone."""

    @abstractmethod
    def names(self, directory: str) -> list[tuple[str, bool]]:
        """What a directory holds, sorted, and whether each is a directory; missing: nothing."""

    @abstractmethod
    def parquet_files(self, directory: str) -> list[str]:
        """The files ``*.parquet`` below a directory, however deep, sorted."""

    @abstractmethod
    def make(self, directory: str) -> None:
        """Makes a directory with those above it, where there are any."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """What `pyarrow.parquet.ParquetWriter` writes a new file to."""

    @abstractmethod
    def finish(self, path: str) -> int:
        """Waits until a file that was written is durable; gives its size."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Deletes a file, if it is there."""

    @abstractmethod
    def remove_all(self, directory: str) -> None:
        """Deletes a directory with everything in it, if it is there."""

    @abstractmethod
    def move(self, path: str, target: str) -> None:
        """Gives a file its place, unless that was done already."""

    @abstractmethod
    def sync(self, directory: str) -> None:
        """Waits until a directory's names are durable."""

    @abstractmethod
    def sync_below(
        self, directory: str, since_ms: int, done: re.Pattern[str] | None = None
    ) -> None:
        """Waits until what libraries wrote below a directory is durable, with its names.

        Args:
            directory: looked through, however deep.
            since_ms: files and directories that were last changed before this time, ms since 1970,
                are durable already.
            done: so are files whose names begin so; they are not even looked at.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """A file's bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def modified_ms(self, path: str) -> int:
        """When a file was last written, ms since 1970; of one that is gone, now."""

    @abstractmethod
    def arrow(self, path: str) -> tuple[Any, str]:
        """Pyarrow's file system for a path, and the path as it wants it."""

    def delta_options(self) -> dict[str, str]:
        """What delta-rs needs to reach the place."""
        return {}


def place_of(into: str, storage: Mapping[str, str], what: str) -> Place:
    """The place that a path or URL names.

    Args:
        into: which.
        storage: options of the object store, without ``storage.``.
        what: the option that gave it, for errors.

    Raises:
        OptionError: a URL of a kind that is not written to.
    """
    scheme, found, rest = into.partition("://")
    scheme = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}.get(scheme, scheme)
    if found and scheme in URL_SCHEMES:
        if not rest.strip("/"):
            raise OptionError(f"{what}: {into!r} names no bucket")
        return ObjectPlace(f"{scheme}://{rest.rstrip('/')}", scheme, storage)
    return LocalPlace(local_directory(into, what))


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options of an object store by the names that storages know."""
    known = {name.lower(): name for name in READ_OPTIONS if name.startswith(STORAGE)}
    return {
        known[name.lower()].removeprefix(STORAGE): value
        for name, value in options.items()
        if name.lower() in known
    }


class LocalPlace(Place):
    """A directory of a file system of this machine."""

    def __init__(self, root: str) -> None:
        self.root = root

    def lock_file(self, name: str) -> str:
        """See `Place`."""
        path = os.path.join(self.root, name)
        self.make(os.path.dirname(path))
        return path

    def read(self, path: str) -> bytes | None:
        """See `Place`."""
        with suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
        return None

    def write(self, path: str, data: bytes, *, private: bool = False) -> None:
        """See `Place`."""
        self.make(os.path.dirname(path))
        unfinished = f"{path}.unfinished"
        with suppress(FileNotFoundError):
            os.remove(unfinished)
        made = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644
        )
        with open(made, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_directory(os.path.dirname(path))

    def names(self, directory: str) -> list[tuple[str, bool]]:
        """See `Place`."""
        try:
            with os.scandir(directory) as found:
                return sorted((each.name, each.is_dir()) for each in found)
        except FileNotFoundError:
            return []

    def parquet_files(self, directory: str) -> list[str]:
        """See `Place`."""
        return sorted(
            os.path.join(below, each)
            for below, _, names in os.walk(directory)
            for each in names
            if each.endswith(".parquet")
        )

    def make(self, directory: str) -> None:
        """See `Place`."""
        OsFileSystem().make_dirs(directory)

    def open(self, path: str) -> Any:
        """See `Place`."""
        return path

    def finish(self, path: str) -> int:
        """See `Place`."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        """See `Place`."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_all(self, directory: str) -> None:
        """See `Place`."""
        shutil.rmtree(directory, ignore_errors=True)

    def move(self, path: str, target: str) -> None:
        """See `Place`."""
        with suppress(FileNotFoundError):
            os.replace(path, target)

    def sync(self, directory: str) -> None:
        """See `Place`."""
        sync_directory(directory)

    def sync_below(
        self, directory: str, since_ms: int, done: re.Pattern[str] | None = None
    ) -> None:
        """See `Place`."""
        for below, _, names in os.walk(directory):
            for name in names:
                path = os.path.join(below, name)
                if done is not None and done.match(name):
                    continue
                if self.modified_ms(path) >= since_ms:
                    # Another engine has removed it, or does not let it be read.
                    with suppress(FileNotFoundError, PermissionError):
                        self.finish(path)
            if self.modified_ms(below) >= since_ms:
                sync_directory(below)

    def size(self, path: str) -> int:
        """See `Place`."""
        return os.path.getsize(path)

    def modified_ms(self, path: str) -> int:
        """See `Place`."""
        with suppress(FileNotFoundError):
            return os.stat(path).st_mtime_ns // 1_000_000
        return now_ms()

    def arrow(self, path: str) -> tuple[Any, str]:
        """See `Place`."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), path


class ObjectPlace(Place):
    """Objects below a URL, through pyarrow."""

    def __init__(self, root: str, scheme: str, storage: Mapping[str, str]) -> None:
        self.root = root
        self._scheme = scheme
        self.storage = dict(storage)
        self._system: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectPlace, (self.root, self._scheme, self.storage)

    def lock_file(self, name: str) -> str:
        """See `Place`."""
        digest = hashlib.sha256(f"{self.root}/{name}".encode()).hexdigest()[:16]
        return os.path.join(tempfile.gettempdir(), f"oberth-export-{os.getuid()}-{digest}")

    def read(self, path: str) -> bytes | None:
        """See `Place`."""
        system, bare = self.arrow(path)
        with suppress(FileNotFoundError), system.open_input_stream(bare) as file:
            data: bytes = file.read()
            return data
        return None

    def write(self, path: str, data: bytes, *, private: bool = False) -> None:
        """See `Place`. Who may read is the bucket's affair."""
        system, bare = self.arrow(path)
        with system.open_output_stream(bare) as file:
            file.write(data)

    def names(self, directory: str) -> list[tuple[str, bool]]:
        """See `Place`."""
        found = self._listed(directory, recursive=False)
        return sorted((each.base_name, not each.is_file) for each in found)

    def parquet_files(self, directory: str) -> list[str]:
        """See `Place`."""
        prefix = f"{self._scheme}://"
        return sorted(
            prefix + each.path
            for each in self._listed(directory, recursive=True)
            if each.is_file and each.path.endswith(".parquet")
        )

    def _listed(self, directory: str, *, recursive: bool) -> list[Any]:
        from pyarrow import fs

        system, bare = self.arrow(directory)
        selector = fs.FileSelector(bare, allow_not_found=True, recursive=recursive)
        return [each for each in system.get_file_info(selector) if each.base_name]

    def make(self, directory: str) -> None:
        """See `Place`. Objects need no directories."""

    def open(self, path: str) -> Any:
        """See `Place`."""
        system, bare = self.arrow(path)
        return system.open_output_stream(bare)

    def finish(self, path: str) -> int:
        """See `Place`. It was durable when it was closed."""
        return self.size(path)

    def remove(self, path: str) -> None:
        """See `Place`."""
        system, bare = self.arrow(path)
        with suppress(FileNotFoundError):
            system.delete_file(bare)

    def remove_all(self, directory: str) -> None:
        """See `Place`."""
        from pyarrow import fs

        system, bare = self.arrow(directory)
        if system.get_file_info(bare).type == fs.FileType.Directory:
            system.delete_dir(bare)

    def move(self, path: str, target: str) -> None:
        """See `Place`."""
        from pyarrow import fs

        system, bare = self.arrow(path)
        if system.get_file_info(bare).type == fs.FileType.NotFound:
            return
        system.copy_file(bare, self.arrow(target)[1])
        system.delete_file(bare)

    def sync(self, directory: str) -> None:
        """See `Place`. There is nothing to wait for."""

    def sync_below(
        self, directory: str, since_ms: int, done: re.Pattern[str] | None = None
    ) -> None:
        """See `Place`. There is nothing to wait for."""

    def size(self, path: str) -> int:
        """See `Place`."""
        system, bare = self.arrow(path)
        info = system.get_file_info(bare)
        if not info.is_file:
            raise FileNotFoundError(path)
        return int(info.size)

    def modified_ms(self, path: str) -> int:
        """See `Place`."""
        system, bare = self.arrow(path)
        info = system.get_file_info(bare)
        return int(info.mtime_ns) // 1_000_000 if info.is_file else now_ms()

    def arrow(self, path: str) -> tuple[Any, str]:
        """See `Place`."""
        from oberth.spark.storage import file_system

        if self._system is None:
            self._system = file_system(self._scheme, self.root, self.storage)
        return self._system, path.partition("://")[2]

    def delta_options(self) -> dict[str, str]:
        """See `Place`."""
        if self._scheme != "s3":
            return {}  # from the environment
        names = {
            "endpoint": "AWS_ENDPOINT_URL", "accessKey": "AWS_ACCESS_KEY_ID",
            "secretKey": "AWS_SECRET_ACCESS_KEY", "region": "AWS_REGION",
        }  # fmt: skip
        options = {names[n]: v for n, v in self.storage.items() if n in names}
        endpoint = options.get("AWS_ENDPOINT_URL", "")
        if endpoint and "://" not in endpoint:
            options["AWS_ENDPOINT_URL"] = f"https://{endpoint}"
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        return options
