"""ConfigFile: one file of ``config/``, replaced as a whole, with its predecessor beside it.

    NAME       what was written last
    NAME.bak   what was there before; read when NAME is missing, empty or does not parse
    NAME.tmp   a write that a crash cut off; ignored

What is always true: at any instant at least one of NAME and NAME.bak is complete, so a crash loses
at most the last write. With ``sync`` the file's bytes are on the disk before it takes its name.
A write that was made ready before another one never replaces it, however late its thread comes.
RocketMQ: ConfigManager, MixAll.string2File.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from oberth.errors import ConfigFormatError
from oberth.formats.config_json import (
    CONFIG_SIZE_MAX,
    encode_config,
    format_config,
    parse_config,
)

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


class ConfigFile:
    """One configuration file and its back-up."""

    __slots__ = ("_lock", "_turn", "_written", "back_up", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
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
            if not data.strip():
                continue
            try:
                read(parse_config(data, name=str(path)))
            except ConfigFormatError as error:
                first_error = first_error or error
                continue
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
            sync: whether to wait for the disk.
            turn: of bytes that were made earlier, on another thread: nothing is written if what was
                made after them has been written meanwhile.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".tmp")
        if turn is None:
            turn = self.turn()
        with self._lock:
            if turn < self._written:
                return
            self._written = turn
            with open(new, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, self.back_up)
            os.replace(new, self.path)

    def sync(self) -> None:
        """Bring the file to the disk. Blocks."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            os.fsync(file.fileno())

    def write_document(self, value: Any, *, pretty: bool = True, sync: bool = False) -> None:
        """Replace the file by a document in Java's form."""
        self.write(encode_config(value, pretty=pretty), sync=sync)


def entry_text(table: str, key: str, value: Any) -> str:
    """One entry of a table at the second level of a pretty document, ready to be joined by ','."""
    whole = format_config({table: {key: value}})
    return whole[whole.index("{", 1) + 1 : -len("\n\t}\n}")]


def document_bytes(fields: dict[str, Any], tables: Iterable[tuple[str, Iterable[str]]]) -> bytes:
    """A pretty document of ready fields and of tables whose entries were made by entry_text.

    Writing ten thousand entries anew takes a tenth of a second, joining them a millisecond.
    """
    parts = [format_config(fields)[: -len("\n}")]]
    for name, entries in tables:
        text = ",".join(entries)
        parts.append(f',\n\t"{name}":{{{text}\n\t}}' if text else f',\n\t"{name}":{{}}')
    parts.append("\n}")
    return "".join(parts).encode("utf-8", "replace")
