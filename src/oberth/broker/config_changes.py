"""ConfigChanges: options that change while the broker runs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from oberth.broker.config_file import ConfigFile
from oberth.errors import OptionError
from oberth.formats.data_version import DataVersion
from oberth.formats.java_properties import format_properties, parse_properties
from oberth.formats.options import update_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oberth.broker.broker_config import BrokerConfig
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.store.files import FileSystem


class ConfigChanges:
    """Changes the options of one broker, in memory and in its file.

    Args:
        config: the broker's options.
        store_config: the store's options.
        files: where the broker's file is.
        now_ms: the time of versions.

    Attributes:
        version: counts the changes.
        listeners: called with what was changed, before it is written.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        files: FileSystem,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._files = files
        self._now_ms = now_ms
        self.listeners: list[Callable[[Mapping[str, str]], None]] = []
        self.version = DataVersion()

    def update(self, entries: Mapping[str, str]) -> None:
        """Change options, all or none, and write them to the broker's file.

        Raises:
            OptionError: an unknown option, or a value that is not allowed; nothing was changed.
        """
        both = (self._config, self._store_config)
        for config in both:
            trial = type(config)(
                **{each.name: getattr(config, each.name) for each in fields(config)}
            )
            for key, text in entries.items():
                update_option(trial, key, text)
        unknown = [
            key
            for key, text in entries.items()
            # Some keys are options of both; each gets its own.
            if not sum(update_option(each, key, text) for each in both)
        ]
        if unknown:
            raise OptionError(f"{', '.join(unknown)}: no such option")
        self.version = self.version.next(self._now_ms())
        for listener in self.listeners:
            listener(entries)
        self._write(entries)

    def _write(self, entries: Mapping[str, str]) -> None:
        path = self._config.broker_config_path
        if not path:
            return
        current = parse_properties(Path(path).read_bytes(), name=path)
        changed = {**current, **entries}
        has_secrets = any(text and is_secret(key) for key, text in changed.items())
        file = ConfigFile(Path(path), self._files, private=has_secrets)
        file.write(format_properties(changed).encode(), sync=True)


def is_secret(key: str) -> bool:
    """Whether an option holds what not everybody may read."""
    return "Credential" in key or "Password" in key or key == "initAuthenticationUser"
