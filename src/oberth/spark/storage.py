"""Where a store's files lie: a file system of this machine, or an object store by its URL.

An object store answers late, so what is to be read next is asked for while the reader works on what
has come (`Storage.will_read`), and scattered records are asked for several at a time.

What is read from end to end is read into memory of the reader's own: beside Spark the copy costs
little (1 GiB in 0.2 s), and a file that is cut off under a memory map kills the process that looks.
Records of one queue lie scattered between those of others; they are taken out of a map of the
file, after a look that it is still as long as it was. A CommitLog file is never made shorter while
its records live. Every byte that is read is counted, so that what a push-down saves can be shown.

``s3://``, ``gs://``, ``abfs://`` and ``hdfs://`` go through pyarrow, which is there for the batches
anyway; what it does not know, ``webhdfs://`` for example, through fsspec and its packages, behind
pyarrow's face.
"""

from __future__ import annotations

import mmap
import os
import re
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from glob import glob, has_magic
from threading import Lock, get_ident
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from oberth.errors import NotFoundError, OptionError

OPEN_FILES_MAX: Final = 128
MAPPED_FILES_MAX: Final = 16
AHEAD_SIZE: Final = 4 << 20
AHEAD_MAX: Final = 4
"""Bytes of a request for what is read next, and how many are on their way: one at first."""
EACH_MAX: Final = 16
"""Requests for scattered places that are on their way."""
_T = TypeVar("_T")
_ARROW_SCHEMES: Final = ("s3", "gs", "abfs", "hdfs", "viewfs", "mock")
_HDFS_SCHEMES: Final = ("hdfs", "viewfs")
# fsspec knows them, and they cannot list directories or read ranges as a store needs it.
_NOT_READ: Final = (
    "http",
    "https",
    "ftp",
    "data",
    "zip",
    "tar",
    "git",
    "github",
    "jlab",
    "async_wrapper",
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


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
        is_far: whether what is asked for comes late enough that several questions should wait at
            the same time.
        bytes_read: bytes of file contents that this object has read.
    """

    is_far: ClassVar[bool] = False
    bytes_read: int

    @abstractmethod
    def entries(self, directory: str) -> list[Entry]:
        """What a directory holds, sorted by name; nothing when it does not exist."""

    def tree(self, directory: str) -> list[Entry]:
        """Everything below a directory, by names relative to it; nothing when it does not exist."""
        found = []
        for entry in self.entries(directory):
            found.append(entry)
            if entry.is_directory:
                found += (
                    Entry(f"{entry.name}/{each.name}", each.size)
                    for each in self.tree(f"{directory}/{entry.name}")
                )
        return found

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

    def will_read(self, path: str, position: int, end: int) -> None:  # noqa: B027 - a disk is near
        """This thread is going to read a stretch of a file with `read_into`, in order."""

    def read_each(self, path: str, parts: Sequence[tuple[int, memoryview]]) -> list[int]:
        """`read_into` for several places of a file; -1 for all of them where it does not exist."""
        try:
            return [self.read_into(path, position, target) for position, target in parts]
        except NotFoundError:
            return [-1] * len(parts)

    def at_once(self, questions: Sequence[Callable[[], _T]]) -> list[_T]:
        """The answers to questions that need nothing of each other, in their order.

        They are asked one after the other here, by several threads where the storage is far.
        """
        return [question() for question in questions]

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

    def renew(self) -> None:  # noqa: B027 - not all keep something open
        """From now on a path means the file that has it now: it may have been replaced."""

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

    def renew(self) -> None:
        """See `Storage`. A deleted topic is made again under its old names, a load puts copies."""
        self.close()

    def close(self) -> None:
        """See `Storage`."""
        self._maps.clear()
        while self._open:
            os.close(self._open.popitem()[1])


class ArrowStorage(Storage):
    """Files behind a URL, through pyarrow's file systems; only the ranges asked for are fetched."""

    is_far = True

    def __init__(self, scheme: str, settings: Mapping[str, str]) -> None:
        self.bytes_read = 0
        self._scheme = scheme
        self._settings = dict(settings)
        self._system: Any = None
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: _Ahead | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"scheme": self._scheme, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["scheme"], state["settings"])  # type: ignore[misc]

    def _files(self, path: str) -> tuple[Any, str]:
        if self._system is None:
            with self._lock:
                if self._system is None:
                    self._system = file_system(self._scheme, path, self._settings)
        rest = path.partition("://")[2]
        if self._scheme in _HDFS_SCHEMES:
            return self._system, "/" + rest.partition("/")[2]
        if self._scheme == "abfs":  # container@account.host/path
            place, _, below = rest.partition("/")
            return self._system, f"{place.partition('@')[0]}/{below}"
        if self._scheme not in _ARROW_SCHEMES:
            return self._system, self._system.handler.fs._strip_protocol(path)
        return self._system, rest

    def entries(self, directory: str) -> list[Entry]:
        """See `Storage`."""
        from pyarrow import fs

        system, bare = self._files(directory)
        # Google's listing through pyarrow shows a directory only where an object stands for it.
        implied = self._scheme == "gs"
        selector = fs.FileSelector(bare, allow_not_found=True, recursive=implied)
        found = {}
        for info in system.get_file_info(selector):
            name, _, below = info.path[len(bare.rstrip("/")) + 1 :].partition("/")
            is_directory = bool(below) or info.type == fs.FileType.Directory
            found[name] = -1 if is_directory else info.size
        return sorted(Entry(name, size) for name, size in found.items() if name)

    def tree(self, directory: str) -> list[Entry]:
        """See `Storage`. An object store lists a thousand names by one request."""
        from pyarrow import fs

        system, bare = self._files(directory)
        bare = bare.rstrip("/")
        selector = fs.FileSelector(bare, allow_not_found=True, recursive=True)
        found: dict[str, int] = {}
        for info in system.get_file_info(selector):
            name = info.path[len(bare) + 1 :].rstrip("/")
            found[name] = -1 if info.type == fs.FileType.Directory else info.size
            while "/" in name:  # directories that only the names of objects show
                name = name.rpartition("/")[0]
                found.setdefault(name, -1)
        return sorted(Entry(name, size) for name, size in found.items() if name)

    def will_read(self, path: str, position: int, end: int) -> None:
        """See `Storage`. The first of it is asked for at once."""
        try:
            self._file(path)  # opened once, not by each request
        except NotFoundError:
            return  # who reads it is told
        self._ahead = _Ahead(path, position, end, get_ident(), partial(self._submit, path))

    def at_once(self, questions: Sequence[Callable[[], _T]]) -> list[_T]:
        """See `Storage`."""
        if len(questions) < 2:
            return super().at_once(questions)
        # Not the pool that reads ahead: a question may wait for what that one brings.
        with ThreadPoolExecutor(
            min(len(questions), EACH_MAX), thread_name_prefix="oberth-object-store"
        ) as pool:
            return list(pool.map(lambda question: question(), questions))

    def _submit(self, path: str, position: int, size: int) -> Future[memoryview]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(EACH_MAX, thread_name_prefix="oberth-object-store")
            return self._pool.submit(self._read_at, path, position, size)

    def read_each(self, path: str, parts: Sequence[tuple[int, memoryview]]) -> list[int]:
        """See `Storage`."""
        try:
            self._file(path)  # opened once, not by each request
            asked = [self._submit(path, position, len(target)) for position, target in parts]
            found = []
            for (_, target), answer in zip(parts, asked, strict=True):
                data = answer.result()
                target[: len(data)] = data
                found.append(len(data))
        except NotFoundError:
            return [-1] * len(parts)
        return found

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        """See `Storage`."""
        ahead = self._ahead
        if ahead is not None and ahead.is_for(path, position):
            got = ahead.read_into(position, target)
            if got == len(target) or ahead.is_short:
                return got
            return got + self.read_into(path, position + got, target[got:])
        data = self._read_at(path, position, len(target))
        target[: len(data)] = data
        return len(data)

    def _read_at(self, path: str, position: int, size: int) -> memoryview:
        file = self._file(path)
        if position >= file.size():
            return memoryview(b"")
        data = memoryview(file.read_at(min(size, file.size() - position), position))
        with self._lock:
            self.bytes_read += len(data)
        return data

    def _file(self, path: str) -> Any:
        file = self._open.get(path)
        if file is None:
            system, bare = self._files(path)
            try:
                file = system.open_input_file(bare)
            except FileNotFoundError:
                raise NotFoundError(f"file {path} does not exist") from None
            with self._lock:
                self._open[path] = file
                if len(self._open) > OPEN_FILES_MAX:
                    self._open.popitem(last=False)
        return file

    def expand(self, pattern: str) -> list[str]:
        """See `Storage`."""
        if has_magic(pattern):
            raise OptionError(f"path: {pattern!r}: wildcards are for local paths only")
        return [pattern]

    def renew(self) -> None:
        """See `Storage`. What is open keeps the size that it had, and its object may have grown."""
        with self._lock:
            self._open.clear()
        self._ahead = None

    def close(self) -> None:
        """See `Storage`."""
        self._open.clear()
        self._ahead = None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


class _Ahead:
    """A stretch of a file that one thread reads in order, asked for in pieces before it does."""

    def __init__(
        self,
        path: str,
        position: int,
        end: int,
        thread: int,
        submit: Callable[[int, int], Future[memoryview]],
    ) -> None:
        self._path = path
        self._start = self._next = position
        self._end = end
        self._thread = thread
        self._submit = submit
        self._pieces: deque[tuple[int, int, Future[memoryview]]] = deque()
        self._wide = 1
        self.is_short = False
        """Whether the file turned out to end before the stretch does."""
        self._ask()

    def is_for(self, path: str, position: int) -> bool:
        """Whether it has, or asks for, what lies there."""
        return (
            path == self._path
            and self._start <= position < self._end
            and position <= self._next
            and self._thread == get_ident()
        )

    def read_into(self, position: int, target: memoryview) -> int:
        """As `Storage.read_into`, up to the end of the stretch.

        What lies before is forgotten. What was read now is not: the next can begin in it, with a
        record that did not end here.
        """
        done = used = 0
        while self._pieces and sum(self._pieces[0][:2]) <= position:
            self._pieces.popleft()
            self._wide = min(self._wide + 1, AHEAD_MAX)
        while done < len(target) and position < self._end:
            while used < len(self._pieces) and sum(self._pieces[used][:2]) <= position:
                used += 1
            self._ask(used)
            start, size, answer = self._pieces[used]
            self._start = self._pieces[0][0]
            data = answer.result()
            part = data[position - start : position - start + len(target) - done]
            target[done : done + len(part)] = part
            done += len(part)
            position += len(part)
            if len(data) < size and position >= start + len(data):
                self.is_short = True
                break
        return done

    def _ask(self, used: int = 0) -> None:
        while len(self._pieces) - used < self._wide and self._next < self._end:
            size = min(AHEAD_SIZE, self._end - self._next)
            self._pieces.append((self._next, size, self._submit(self._next, size)))
            self._next += size


def file_system(scheme: str, path: str, settings: Mapping[str, str]) -> Any:
    """The file system of a URL, as pyarrow has them.

    Raises:
        OptionError: it needs something that is not installed.
    """
    from pyarrow import fs

    try:
        if scheme == "s3":
            return fs.S3FileSystem(**_s3_settings(settings))
        if scheme == "gs":
            return fs.GcsFileSystem(**_gs_settings(settings))
        if scheme in _ARROW_SCHEMES:
            return fs.FileSystem.from_uri(path)[0]
    except (ImportError, NotImplementedError) as error:
        raise OptionError(
            f"path: {path!r}: this pyarrow was built without {scheme}:// ({error}); install "
            "pyarrow from PyPI"
        ) from None
    except OSError as error:
        if scheme not in _HDFS_SCHEMES or "lib" not in str(error):
            raise
        # pyarrow tells every place where it has looked.
        raise OptionError(
            f"path: {path!r}: {scheme}:// needs Hadoop's libhdfs and Java on all machines "
            "(HADOOP_HOME, JAVA_HOME, and as CLASSPATH what `hadoop classpath --glob` prints); "
            "webhdfs://NAMENODE:9870/… needs only the Python packages fsspec and requests "
            f"({str(error).splitlines()[0]})"
        ) from None
    return _fsspec_system(scheme, path)


def _fsspec_system(scheme: str, path: str) -> Any:
    """A file system of fsspec behind pyarrow's face, without caches: files grow meanwhile."""
    try:
        import fsspec
        from fsspec.caching import BaseCache
        from fsspec.spec import AbstractBufferedFile
    except ImportError:
        raise OptionError(
            f"path: {path!r}: {scheme}:// needs the Python package fsspec: `pip install fsspec`"
        ) from None
    import pyarrow as pa
    from pyarrow import fs

    class Ranges(fs.FSSpecHandler):  # type: ignore[misc]  # pyarrow has no types
        def open_input_file(self, path: str) -> Any:
            file = self.fs.open(path, mode="rb")
            if isinstance(file, AbstractBufferedFile):
                # Reads ahead by megabytes otherwise, wherever one record is wanted.
                file.cache = BaseCache(file.blocksize, file._fetch_range, file.size)
            return pa.PythonFile(file, mode="r")

    try:
        system, _ = fsspec.core.url_to_fs(path, use_listings_cache=False)
    except ImportError as error:
        raise OptionError(
            f"path: {path!r}: {scheme}:// needs a package that is not installed: {error}"
        ) from None
    return fs.PyFileSystem(Ranges(system))


_S3_NAMES: Final = {
    "endpoint": "endpoint_override",
    "accessKey": "access_key",
    "secretKey": "secret_key",
    "region": "region",
}


def _s3_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    return _with_endpoint(
        {_S3_NAMES[n]: v for n, v in settings.items() if n in _S3_NAMES}, settings
    )


def _gs_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    chosen = {"endpoint_override": settings["endpoint"]} if "endpoint" in settings else {}
    return _with_endpoint(chosen, settings)


def _with_endpoint(chosen: dict[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    endpoint = chosen.get("endpoint_override", "")
    if "://" in endpoint:
        chosen["scheme"], _, chosen["endpoint_override"] = endpoint.partition("://")
    if settings.get("anonymous", "").lower() == "true":
        chosen["anonymous"] = True
    return chosen


def _is_known(scheme: str) -> bool:
    if scheme in _ARROW_SCHEMES:
        return True
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return scheme in ("webhdfs", "swebhdfs")  # then the error names the package
    return scheme in registry or scheme in known_implementations


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
    scheme = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}.get(scheme, scheme)
    if not _SCHEME.fullmatch(scheme) or scheme in _NOT_READ or not _is_known(scheme):
        raise OptionError(
            f"path: {path!r}: allowed are local paths, file://, s3://, gs://, abfs://, hdfs://, "
            "webhdfs:// and what packages of fsspec add"
        )
    return ArrowStorage(scheme, settings), f"{scheme}://{rest.rstrip('/')}"
