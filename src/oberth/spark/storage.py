"""Where a store's files lie: a file system of this machine, or an object store by its URL.

What is read from end to end is read into memory of the reader's own: beside Spark the copy costs
little (1 GiB in 0.2 s), and a file that is cut off under a memory map kills the process that looks.
Records of one queue lie scattered between those of others; they are taken out of a map of the
file, after a look that it is still as long as it was. A CommitLog file is never made shorter while
its records live. Every byte that is read is counted, so that what a push-down saves can be shown.

``s3://``, ``gs://`` and ``hdfs://`` go through pyarrow, which is there for the batches anyway.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from glob import glob, has_magic
from typing import Any, NamedTuple

from oberth.errors import NotFoundError, OptionError

OPEN_FILES_MAX = 128
MAPPED_FILES_MAX = 16
_REMOTE_SCHEMES = ("s3", "gs", "hdfs", "viewfs", "abfs", "mock")


class Entry(NamedTuple):
    """A name in a directory; ``size`` is -1 for a directory."""

    name: str
    size: int

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.size < 0


class Storage(ABC):
    """Reads files of one file system. Opens them when they are first read; pickles as closed.

    Attributes:
        bytes_read: bytes of file contents that this object has read.
    """

    bytes_read: int

    @abstractmethod
    def entries(self, directory: str) -> list[Entry]:
        """What a directory holds, sorted by name; nothing when it does not exist."""

    @abstractmethod
    def read_into(self, path: str, position: int, target: memoryview) -> int:
        """Fills the target from a position on; the number of bytes, fewer at the file's end.

        Raises:
            NotFoundError: the file does not exist (any more).
        """

    def read(self, path: str, position: int, size: int) -> bytes:
        """At most ``size`` bytes from a position on.

        Raises:
            NotFoundError: the file does not exist (any more).
        """
        target = bytearray(size)
        got = self.read_into(path, position, memoryview(target))
        return bytes(target[:got])

    def view(self, path: str, end: int) -> memoryview | None:
        """A file's bytes in place, for taking few of many; None where that cannot be.

        What is taken is not counted here.

        Args:
            path: the file.
            end: how far it has to reach.
        """
        return None

    def data_end(self, path: str, size: int) -> int:
        """A position behind which the file holds only zeros, as far as that is cheap to know."""
        return size

    @abstractmethod
    def expand(self, pattern: str) -> list[str]:
        """The directories that a path with wildcards stands for, sorted."""

    def close(self) -> None:  # noqa: B027 - not all keep something open
        """Closes what is open."""


class LocalStorage(Storage):
    """Files of this machine, or of a file system that is mounted here."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self._open: OrderedDict[str, int] = OrderedDict()
        self._maps: OrderedDict[str, memoryview] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.bytes_read = 0
        self._open = OrderedDict()
        self._maps = OrderedDict()

    def __del__(self) -> None:
        self.close()

    def entries(self, directory: str) -> list[Entry]:
        """See `Storage`."""
        found = []
        try:
            with os.scandir(directory) as names:
                for name in names:
                    try:
                        size = -1 if name.is_dir() else name.stat().st_size
                    except FileNotFoundError:
                        continue  # deleted between the two
                    found.append(Entry(name.name, size))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def _descriptor(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            raise NotFoundError(f"file {path} does not exist") from None
        self._open[path] = descriptor
        if len(self._open) > OPEN_FILES_MAX:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        """See `Storage`."""
        descriptor = self._descriptor(path)
        done = 0
        while done < len(target):
            got = os.preadv(descriptor, [target[done:]], position + done)
            if got == 0:
                break
            done += got
        self.bytes_read += done
        return done

    def view(self, path: str, end: int) -> memoryview | None:
        """See `Storage`."""
        try:
            descriptor = self._descriptor(path)
            size = os.fstat(descriptor).st_size
            if size < end or size == 0:
                return None
            found = self._maps.get(path)
            if found is None or len(found) > size:
                mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
                found = self._maps[path] = memoryview(mapped)
                if len(self._maps) > MAPPED_FILES_MAX:
                    self._maps.popitem(last=False)
        except (NotFoundError, OSError, ValueError):
            return None  # gone, or a file system without maps
        return found

    def data_end(self, path: str, size: int) -> int:
        """See `Storage`. A file made at full size has holes where nothing was written."""
        if not hasattr(os, "SEEK_HOLE"):
            return size
        descriptor = self._descriptor(path)
        end = 0
        position = 0
        try:
            while position < size:
                position = os.lseek(descriptor, position, os.SEEK_DATA)
                position = end = os.lseek(descriptor, position, os.SEEK_HOLE)
        except OSError:  # ENXIO: only a hole follows
            return min(end, size)
        return min(end, size)

    def expand(self, pattern: str) -> list[str]:
        """See `Storage`."""
        if not has_magic(pattern) or os.path.isdir(pattern):
            return [pattern]
        return sorted(path for path in glob(pattern) if os.path.isdir(path))

    def close(self) -> None:
        """See `Storage`."""
        self._maps.clear()
        while self._open:
            os.close(self._open.popitem()[1])


class ArrowStorage(Storage):
    """Files behind a URL, through pyarrow's file systems; only the ranges asked for are fetched."""

    def __init__(self, scheme: str, settings: Mapping[str, str]) -> None:
        self.bytes_read = 0
        self._scheme = scheme
        self._settings = dict(settings)
        self._system: Any = None
        self._open: OrderedDict[str, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"scheme": self._scheme, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.bytes_read = 0
        self._scheme = state["scheme"]
        self._settings = state["settings"]
        self._system = None
        self._open = OrderedDict()

    def _files(self, path: str) -> tuple[Any, str]:
        from pyarrow import fs

        bare = path.partition("://")[2]
        if self._system is None:
            if self._scheme == "s3":
                self._system = fs.S3FileSystem(**_s3_settings(self._settings))
            else:
                self._system, bare = fs.FileSystem.from_uri(path)
        elif self._scheme in ("hdfs", "viewfs"):
            bare = "/" + bare.partition("/")[2]
        return self._system, bare

    def entries(self, directory: str) -> list[Entry]:
        """See `Storage`."""
        from pyarrow import fs

        system, bare = self._files(directory)
        found = system.get_file_info(fs.FileSelector(bare, allow_not_found=True))
        return sorted(
            Entry(info.base_name, -1 if info.type == fs.FileType.Directory else info.size)
            for info in found
        )

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        """See `Storage`."""
        file = self._open.get(path)
        if file is None:
            system, bare = self._files(path)
            try:
                file = system.open_input_file(bare)
            except FileNotFoundError:
                raise NotFoundError(f"file {path} does not exist") from None
            self._open[path] = file
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)
        if position >= file.size():
            return 0
        data = memoryview(file.read_at(min(len(target), file.size() - position), position))
        target[: len(data)] = data
        self.bytes_read += len(data)
        return len(data)

    def expand(self, pattern: str) -> list[str]:
        """See `Storage`."""
        if has_magic(pattern):
            raise OptionError(f"path: {pattern!r}: wildcards are for local paths only")
        return [pattern]

    def close(self) -> None:
        """See `Storage`."""
        self._open.clear()


_S3_NAMES = {
    "endpoint": "endpoint_override",
    "accessKey": "access_key",
    "secretKey": "secret_key",
    "region": "region",
}


def _s3_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {_S3_NAMES[n]: v for n, v in settings.items() if n in _S3_NAMES}
    endpoint = chosen.get("endpoint_override", "")
    if "://" in endpoint:
        chosen["scheme"], _, chosen["endpoint_override"] = endpoint.partition("://")
    if settings.get("anonymous", "").lower() == "true":
        chosen["anonymous"] = True
    return chosen


def storage_for(path: str, settings: Mapping[str, str]) -> tuple[Storage, str]:
    """The storage that a path belongs to, and the path as it wants it.

    Raises:
        OptionError: a URL of a kind that is not read.
    """
    scheme, found, rest = path.partition("://")
    if not found:
        if path.startswith("file:"):
            path = path.removeprefix("file:")
        return LocalStorage(), os.path.abspath(path)
    if scheme == "file":
        return LocalStorage(), os.path.abspath("/" + rest.partition("/")[2])
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    if scheme not in _REMOTE_SCHEMES:
        raise OptionError(
            f"path: {path!r}: allowed are local paths, file://, {', '.join(_REMOTE_SCHEMES[:-1])}"
        )
    return ArrowStorage(scheme, settings), f"{scheme}://{rest.rstrip('/')}"
