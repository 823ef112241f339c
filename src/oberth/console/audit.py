"""The audit log: a JSON line before each write and one behind it, synced before anything is done.

    {"time": ISO 8601, "id": …, "phase": "begin", "user": …, "peer": …, "write": "topic.delete",
     "fields": {…}, "changes": [[what, before, after], …]}
    {"time": …, "id": …, "phase": "end", "outcome": "done" | "failed", "text": …}

A line without its end tells of a console that was stopped meanwhile. Secrets are never in it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from oberth.console.texts import iso_time

TAIL_LINES: Final = 200
"""Lines that the page of the log shows."""


class AuditLog:
    """Appends to one file, which nobody but its owner may read.

    Args:
        path: of the file; folders are made.

    Raises:
        OSError: it cannot be written; then nothing must be changed.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        self._append_text("")

    def begin(
        self,
        now_ms: int,
        *,
        user: str,
        peer: str,
        write: str,
        fields: Mapping[str, str],
        changes: Sequence[Sequence[str]],
    ) -> str:
        """Write the line of a change before it is made; gives the id for `end`.

        Raises:
            OSError: it cannot be written; then nothing must be changed.
        """
        identifier = secrets.token_hex(8)
        self._append(
            {
                "time": iso_time(now_ms),
                "id": identifier,
                "phase": "begin",
                "user": user,
                "peer": peer,
                "write": write,
                "fields": dict(fields),
                "changes": [list(each) for each in changes],
            }
        )
        return identifier

    def end(self, now_ms: int, identifier: str, *, outcome: str, text: str) -> None:
        """Note how it went.

        Raises:
            OSError: it cannot be written.
        """
        self._append(
            {
                "time": iso_time(now_ms),
                "id": identifier,
                "phase": "end",
                "outcome": outcome,
                "text": text,
            }
        )

    def tail(self) -> list[dict[str, Any]]:
        """The newest lines, the newest first."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            lines = deque(file, maxlen=TAIL_LINES)
        found = []
        for line in reversed(lines):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut off by a full disk
            if isinstance(entry, dict):
                found.append(entry)
        return found

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._append_text(json.dumps(entry, ensure_ascii=True, separators=(",", ":")) + "\n")

    def _append_text(self, text: str) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            data = text.encode()
            size = os.fstat(handle).st_size
            if data and size and os.pread(handle, 1, size - 1) != b"\n":
                data = b"\n" + data  # a full disk cut the last line off
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)


def lines_of(lines: Sequence[dict[str, Any]], user: str) -> list[dict[str, Any]]:
    """Of the newest lines those about changes that a user made."""
    own = {line.get("id") for line in lines if line.get("user") == user}
    return [line for line in lines if line.get("id") in own]
