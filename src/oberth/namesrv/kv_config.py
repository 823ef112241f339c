"""KvConfigTable: text by namespace and key, kept in ``kvConfig.json``.

    kvConfig.json       what was written last
    kvConfig.json.bak   what was there before; read when the first is missing or does not parse

The only namespace that anybody uses is ORDER_TOPIC_CONFIG. A change is on disk before it is
answered. RocketMQ: ``KVConfigManager``, whose keys and namespaces have no limit; here they do.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from oberth.errors import ConfigFormatError, OptionError
from oberth.formats.config_files import KvConfigs
from oberth.formats.json_writer import config_in_slices, encode_config
from oberth.remoting.bodies.base import result_at_once
from oberth.store.files import OsFileSystem

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The namespace whose keys are topics and whose values are ``broker-a:4;broker-b:4``."""

NAMESPACE_COUNT_MAX: Final = 1000
KEY_COUNT_MAX: Final = 100_000
"""Keys of one namespace."""
TABLE_SIZE_MAX: Final = 32 * 1024 * 1024
"""Bytes of all texts as they stand in the file. Each change writes all of it."""
TEXT_SIZE_MAX: Final = 65536
"""Bytes of a namespace, a key or a value."""


def size_in_file(text: str) -> int:
    """Bytes of a text in the file: a control character has six."""
    return len(encode_config(text))


class KvConfigTable:
    """The table and its file. Without a path it is memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self._size = 0

    def load(self) -> None:
        """Read the file, or its back-up.

        Raises:
            ConfigFormatError: neither can be read, and one is there.
        """
        if self._path is None:
            return
        first_error: ConfigFormatError | None = None
        for path in (self._path, self._back_up):
            try:
                data = path.read_bytes()
                if data.strip():
                    self._table = KvConfigs.decode(data, name=str(path)).config_table
                    self._size = sum(
                        size_in_file(text)
                        for namespace, entries in self._table.items()
                        for text in (namespace, *entries, *entries.values())
                    )
                    return
            except FileNotFoundError:
                pass
            except ConfigFormatError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    @property
    def _back_up(self) -> Path:
        assert self._path is not None
        return self._path.with_name(self._path.name + ".bak")

    def _write(self) -> None:
        if self._path is None:
            return
        # Entry by entry: this thread would keep the loop waiting while it makes one long text.
        data = result_at_once(config_in_slices({"configTable": self._table}))
        OsFileSystem().make_dirs(str(self._path.parent))
        new = self._path.with_name(self._path.name + ".tmp")
        try:
            with open(new, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            # What is half written would hold the last blocks of a full disk.
            with contextlib.suppress(OSError):
                os.remove(new)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path, self._back_up)
        os.replace(new, self._path)
        OsFileSystem().sync_directory(str(self._path.parent))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value (100).

        Raises:
            OptionError: a limit is reached.
            OSError: it could not be written; the value is not set.
        """
        for what, text in (("namespace", namespace), ("key", key), ("value", value)):
            size = len(text.encode("utf-8", "replace"))
            if size > TEXT_SIZE_MAX:
                raise OptionError(f"KV {what} of {size} bytes, allowed {TEXT_SIZE_MAX}")
        keys = self._table.get(namespace)
        if keys is None and len(self._table) >= NAMESPACE_COUNT_MAX:
            raise OptionError(
                f"KV namespaces: {len(self._table)} are there, allowed {NAMESPACE_COUNT_MAX}"
            )
        if keys is not None and key not in keys and len(keys) >= KEY_COUNT_MAX:
            raise OptionError(
                f"KV namespace {namespace}: {len(keys)} keys, allowed {KEY_COUNT_MAX}"
            )
        table = {**self._table, namespace: {**(keys or {}), key: value}}
        size = self._size + size_in_file(key) + size_in_file(value)
        if keys is None:
            size += size_in_file(namespace)
        elif key in keys:
            size -= size_in_file(key) + size_in_file(keys[key])
        if size > max(TABLE_SIZE_MAX, self._size):
            raise OptionError(f"KV configuration of {size} bytes, allowed {TABLE_SIZE_MAX}")
        self._replace(table, size)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value (102), if it is there.

        Raises:
            OSError: it could not be written; the value stays.
        """
        keys = self._table.get(namespace)
        if keys is None or key not in keys:
            return
        rest = {name: value for name, value in keys.items() if name != key}
        table = {**self._table, namespace: rest}
        size = self._size - size_in_file(key) - size_in_file(keys[key])
        if not rest:
            del table[namespace]
            size -= size_in_file(namespace)
        self._replace(table, size)

    def _replace(self, table: dict[str, dict[str, str]], size: int) -> None:
        before, self._table = self._table, table
        try:
            self._write()
        except OSError:
            self._table = before
            raise
        self._size = size

    def get(self, namespace: str, key: str) -> str | None:
        """A value (101)."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All of a namespace (219), or None."""
        return self._table.get(namespace)
