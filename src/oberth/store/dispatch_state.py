"""The file ``oberth/dispatch.json``: what a process that dispatches a store has on the disk.

JSON, written durably by the dispatcher, and by a store that leaves dispatch to one; see
`oberth.store.dispatch_handover`. Any store that opens looks whether the last dispatcher ended in
order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from oberth.store.files import OsFileSystem

STATE: Final = "oberth/dispatch.json"


@dataclass(frozen=True, slots=True)
class DispatchState:
    """What is on the disk of queues and index.

    Attributes:
        position: CommitLog offset up to which.
        last_record: where the record that ends there starts, -1 if that is not known.
        store_timestamp: of that record, ms.
        queue_end: the highest record end that a queue holds.
        queue_count: how many queues there are.
        index_counts: entries of each index file.
        settings: the broker's options by their Java names, as far as they are not the defaults.
        is_whole: whether nobody has touched them since. While a dispatcher has them it may be in
            the middle of something: killed, it leaves an index whose slots have to be made anew.
    """

    position: int
    last_record: int = -1
    store_timestamp: int = 0
    queue_end: int = -1
    queue_count: int = 0
    index_counts: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False

    def save(self, root: str) -> None:
        """Writes the file durably, in one step.

        Raises:
            OSError: it cannot be written; what was there stays, and the error names the file.
        """
        path = os.path.join(root, STATE)
        unfinished = path + ".unfinished"
        values = {
            "position": self.position,
            "lastRecord": self.last_record,
            "storeTimestamp": self.store_timestamp,
            "queueEnd": self.queue_end,
            "queueCount": self.queue_count,
            "indexCounts": dict(self.index_counts),
            "settings": dict(self.settings),
            "whole": self.is_whole,
        }
        try:
            with open(unfinished, "wb") as file:
                file.write(json.dumps(values, sort_keys=True).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.remove(unfinished)
            raise OSError(error.errno, error.strerror, path) from error
        os.replace(unfinished, path)
        OsFileSystem().sync_directory(os.path.dirname(path))

    @classmethod
    def load(cls, root: str) -> DispatchState | None:
        """The file's content; None where there is none that can be read."""
        values: Any = None
        path = os.path.join(root, STATE)
        with suppress(FileNotFoundError, ValueError), open(path, "rb") as file:
            values = json.loads(file.read())
        if not isinstance(values, dict) or not isinstance(values.get("position"), int):
            return None
        try:
            return cls(
                values["position"],
                int(values.get("lastRecord", -1)),
                int(values.get("storeTimestamp", 0)),
                int(values.get("queueEnd", -1)),
                int(values.get("queueCount", 0)),
                {name: int(count) for name, count in (values.get("indexCounts") or {}).items()},
                dict(values.get("settings") or {}),
                values.get("whole") is True,
            )
        except (TypeError, ValueError, AttributeError):
            return None
