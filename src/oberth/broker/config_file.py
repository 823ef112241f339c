"""ConfigFile: one file of ``config/``, replaced as a whole, with its predecessor beside it.

    NAME       what was written last
    NAME.bak   what was there before, or the same; read when NAME is missing, empty or cannot be
    NAME.tmp   a write that a crash cut off; ignored

What is always true: at any instant at least one of NAME and NAME.bak is complete, so a crash loses
at most the last write; and one of them is on the disk, from the first version on. With
``sync`` the file's bytes are on the disk before it takes its name, and the name is before
`ConfigFile.write` returns: no loss of power takes it back. A write that was made ready before
another one never replaces it, however late its thread comes.
RocketMQ: ConfigManager, MixAll.string2File.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from oberth.broker.tasks import StartTask, result_in_turns
from oberth.errors import ConfigFormatError, StoreFullError
from oberth.formats.config_json import (
    CONFIG_SIZE_MAX,
    encode_config,
    format_config,
    parse_config,
)
from oberth.store.files import FileSystem, OsFileSystem

_LOG: Final = logging.getLogger(__name__)
ROCKSDB_TABLES: Final = {
    "topics": "topics.json",
    "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json",
}
"""Directories of ``config/`` where 5.x keeps tables with ``storeType=defaultRocksDB``, and files
that have the same as JSON."""


def refuse_rocksdb(config_dir: Path) -> None:
    """Raises ConfigFormatError where a table is there as RocksDB only.

    Such a broker would start without its topics, or with groups that begin anew. Queues in RocksDB
    are no trouble: they are made again from the CommitLog.

    Raises:
        ConfigFormatError: the first such table, and how to export it.
    """
    for name, file in ROCKSDB_TABLES.items():
        directory = config_dir / name
        if (directory / "CURRENT").is_file() and not (config_dir / file).exists():
            raise ConfigFormatError(
                f"{directory}: a RocksDB, found no {file} beside it; make one by `mqadmin "
                f"rocksDBConfigToJson -p {config_dir} -t {name} -e {config_dir / file}`, or start "
                "without by a file that holds {}"
            )


PRIVATE_MODE: Final = 0o600
NOTHING: Final = b"\0 \t\r\n"
"""What a loss of power leaves of a file that never was on the disk: its size at most."""


class ConfigFile:
    """One configuration file and its back-up.

    Args:
        path: of the file.
        files: where it is kept; None: the operating system's files.
        private: whether it holds secrets: then nobody but its owner may read it, its back-up and
            what is being written, however the file was made. Else it keeps the permissions it has.
    """

    __slots__ = (
        "_files", "_is_damaged", "_is_on_disk", "_lock", "_turn", "_written", "back_up", "path",
        "private",
    )  # fmt: skip

    def __init__(
        self, path: Path, files: FileSystem | None = None, *, private: bool = False
    ) -> None:
        self.path = path
        self.private = private
        self._files = OsFileSystem() if files is None else files
        # NAME is known to be complete on the disk, so it may replace the back-up; and it is known
        # to be none, so it must not.
        self._is_on_disk = False
        self._is_damaged = False
        self.back_up = path.with_name(path.name + ".bak")
        self._lock = threading.Lock()  # guards NAME.tmp and _written: writes of two threads meet
        self._turn = 0
        self._written = 0

    def load(self, read: Callable[[Any], None]) -> bool:
        """Give the newest readable document to ``read``; False if there is none yet.

        ``read`` may raise ConfigFormatError for a document that parses but cannot be meant.

        Raises:
            ConfigFormatError: the file cannot be read and neither can its back-up.
        """
        first_error: ConfigFormatError | None = None
        for path in (self.path, self.back_up):
            try:
                size = path.stat().st_size
                if size > CONFIG_SIZE_MAX:
                    raise ConfigFormatError(
                        f"{path}: {size} bytes, at most {CONFIG_SIZE_MAX} are allowed"
                    )
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except ConfigFormatError as error:
                first_error = first_error or error
                continue
            if not data.strip(NOTHING):
                continue
            try:
                read(parse_config(data, name=str(path)))
            except ConfigFormatError as error:
                first_error = first_error or error
                continue
            if path is self.path:
                self.sync()  # a process that was killed may not have waited for it
            else:
                self._is_damaged = True
            return True
        if first_error is not None:
            raise first_error
        return False

    def turn(self) -> int:
        """The number of a write, taken when its bytes are made; see `write`."""
        self._turn += 1
        return self._turn

    def write(self, data: bytes, *, sync: bool = False, turn: int | None = None) -> None:
        """Replace the file; what was there becomes the back-up.

        Args:
            data: the whole file.
            sync: whether to wait for the disk. A first version is always waited for.
            turn: of bytes that were made earlier, on another thread: nothing is written if what was
                made after them has been written meanwhile.

        Raises:
            OSError: it cannot be written; what was there stays, and the error names the file.
        """
        files, path = self._files, str(self.path)
        if len(data) > CONFIG_SIZE_MAX:
            # Nobody could read it again, and no start would go on without it.
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        new, directory = path + ".tmp", str(self.path.parent)
        files.make_dirs(directory)  # also for a write that a later `sync` brings to the disk
        if turn is None:
            turn = self.turn()
        with self._lock:
            if turn < self._written:
                return
            # A first version has no predecessor that a loss of power would leave.
            sync = sync or not (files.exists(path) or files.exists(str(self.back_up)))
            mode = self._mode()
            try:
                file = files.open(new, create=True, mode=mode)
                try:
                    file.truncate(0)
                    file.write(data, 0)
                    if sync:
                        file.sync()
                finally:
                    file.close()
            except (OSError, StoreFullError) as error:
                # What is half written would hold the last blocks of a full disk.
                with contextlib.suppress(OSError):
                    files.remove(new)
                number = error.errno if isinstance(error, OSError) else errno.ENOSPC
                raise OSError(number, os.strerror(number or errno.EIO), path) from error
            if files.exists(path) and not self._is_damaged:
                if not self._is_on_disk and sync:
                    self._sync_file()
                if self._is_on_disk or sync or not files.exists(str(self.back_up)):
                    # A second name, so that NAME is never missing, whatever of it a crash keeps.
                    files.link(path, str(self.back_up))
            files.rename(new, path, durable=False)
            self._is_damaged = False
            if sync:
                if not files.exists(str(self.back_up)):
                    files.link(path, str(self.back_up))
                files.sync_directory(directory)
            self._is_on_disk = sync
            self._written = turn  # of one that failed an earlier write may still take the place

    def _mode(self) -> int | None:
        """The permissions of the file to come; None if there is no predecessor and no secret."""
        if self.private:
            # What somebody else made is or becomes the back-up, and holds secrets too.
            for path in (str(self.path), str(self.back_up)):
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if stat.S_IMODE(os.stat(path).st_mode) != PRIVATE_MODE:
                        self._files.open(path, writable=False, mode=PRIVATE_MODE).close()
            return PRIVATE_MODE
        try:
            return stat.S_IMODE(os.stat(self.path).st_mode)
        except FileNotFoundError:
            return None

    def try_write(self, data: bytes, *, sync: bool = False) -> bool:
        """`write` where a disk that is full must not stop what else there is to do.

        Returns:
            False if it could not be written; a line in the log names the file.
        """
        try:
            self.write(data, sync=sync)
        except OSError as error:
            _LOG.error("%s could not be written: %s", self.path, error.strerror)
            return False
        return True

    def sync(self) -> None:
        """Bring the file and its name to the disk. Blocks."""
        with self._lock:
            written = self._written
        if self._sync_file():
            self._files.sync_directory(str(self.path.parent))
            with self._lock:
                if written == self._written:
                    self._is_on_disk = True

    def _sync_file(self) -> bool:
        """Bring the file's bytes to the disk; False if there is none."""
        try:
            file = self._files.open(str(self.path), writable=False)
        except FileNotFoundError:
            return False
        try:
            file.sync()
        finally:
            file.close()
        return True

    def write_document(self, value: Any, *, pretty: bool = True, sync: bool = False) -> None:
        """Replace the file by a document in Java's form."""
        self.write(encode_config(value, pretty=pretty), sync=sync)


class BackgroundFile:
    """A table's file, made and written in a thread: a large table does not hold the loop.

    Args:
        file: the file.
        start_task: runs a coroutine on the loop.
    """

    __slots__ = ("_file", "_start_task", "is_writing")

    def __init__(self, file: ConfigFile, start_task: StartTask) -> None:
        self._file = file
        self._start_task = start_task
        self.is_writing = False

    async def write(self, encode: Callable[[], bytes], *, sync: bool = False) -> None:
        """Replace the file.

        Args:
            encode: makes its bytes, of what does not change meanwhile.
            sync: whether to wait for the disk.

        Raises:
            OSError: see `ConfigFile.write`.
        """
        turn = self._file.turn()
        await asyncio.to_thread(lambda: self._file.write(encode(), sync=sync, turn=turn))

    def write_soon(
        self, snapshot: Generator[None, None, Callable[[], bytes]], failed: Callable[[], None]
    ) -> None:
        """Replace the file. Not to be called while the last such call is not done.

        Args:
            snapshot: gives what makes the bytes, as for `write`; the loop turns at each yield.
            failed: called on the loop if it cannot be written; a line in the log names the file.
        """
        assert not self.is_writing
        self.is_writing = True
        self._start_task(self._write_or_complain(snapshot, failed))

    async def _write_or_complain(
        self, snapshot: Generator[None, None, Callable[[], bytes]], failed: Callable[[], None]
    ) -> None:
        try:
            await self.write(await result_in_turns(snapshot))
        except OSError as error:
            _LOG.error("%s could not be written: %s", self._file.path, error.strerror)
            failed()
        finally:
            self.is_writing = False


def entry_text(table: str, key: str, value: Any) -> str:
    """One entry of a table at the second level of a pretty document, ready to be joined by ','."""
    whole = format_config({table: {key: value}})
    return whole[whole.index("{", 1) + 1 : -len("\n\t}\n}")]


class Replaced(NamedTuple):
    """What a table has become another by.

    Attributes:
        changed: names that are new, or whose entries are others.
        gone: names that are not there any more.
    """

    changed: list[str]
    gone: set[str]


def replaced_names(old: Mapping[str, object], new: Mapping[str, object]) -> Replaced:
    """Names whose entry is not the same object in both: 10 ms for 100 000."""
    changed = [name for name, entry in new.items() if old.get(name) is not entry]
    return Replaced(changed, set(old.keys() - new.keys()))


class EntryTemplate:
    """`entry_text` of entries that differ by their names alone: 1 us instead of 40.

    Thousands of them are made at once, when consumers are first pointed at a broker.

    Args:
        table: where the entries stand.
        named: the value of an entry of a name.
    """

    __slots__ = ("_parts",)

    def __init__(self, table: str, named: Callable[[str], Any]) -> None:
        stand_in = "?"  # which is in no name
        text = entry_text(table, stand_in, named(stand_in))
        self._parts = text.split(format_config(stand_in))
        assert len(self._parts) == 3, "the name stands as the key and in the value"

    def text(self, name: str) -> str:
        """The entry of a name."""
        return format_config(name).join(self._parts)


ENTRIES_AT_ONCE: Final = 2_000
TEXTS_AT_ONCE: Final = 25
"""Entries of a table whose file is made on the loop, a millisecond, and of them such as are no text
yet, another one. A larger table's file is made in a thread."""

ENTRIES_A_JOIN: Final = 2_000
"""Entries that are joined in one call, which no other thread gets in between."""


def document_bytes(fields: dict[str, Any], tables: Iterable[tuple[str, Iterable[str]]]) -> bytes:
    """A pretty document of ready fields and of tables whose entries were made by entry_text.

    Writing ten thousand entries anew takes a tenth of a second, joining them a millisecond.
    """
    parts = [format_config(fields)[: -len("\n}")].encode()]
    for name, entries in tables:
        parts.append(f',\n\t"{name}":{{'.encode())
        texts = list(entries)
        for first in range(0, len(texts), ENTRIES_A_JOIN):
            text = ",".join(texts[first : first + ENTRIES_A_JOIN])
            parts.append(f"{',' if first else ''}{text}".encode("utf-8", "replace"))
        parts.append(b"\n\t}" if texts else b"}")
    parts.append(b"\n}")
    return b"".join(parts)
