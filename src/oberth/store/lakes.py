"""How far exports have a store's log, so that cleaning can wait for them.

A broker whose ``retentionWaitsForLake`` names the directories or URLs of exports keeps the segments
that one of them does not have yet. It makes `DIRECTORY` in its store; an export that finds it there
(`oberth spark export` of that store's files, to wherever it writes) notes after each batch up to
where its tables have the log:

    oberth/lakes/HASH.json    {"lake": "s3://lake/shop", "position": 1073741824}

HASH is the first 16 hex digits of the SHA-256 of `lake_name`. A note counts from its renaming on;
it is written when all tables have the batch, never before. An export that begins with a store, or
finds that the log is not the one it had, removes its note. A lake without a note has nothing, and
so has one whose note lies behind the log's end: that is the note of another log.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from typing import Final, NamedTuple

from oberth.errors import StoreFullError
from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)

DIRECTORY: Final = "oberth/lakes"
NOTHING: Final = -1
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}


class AwaitedLake(NamedTuple):
    """A lake that cleaning waits for: its name, and the position up to which it has the log.

    ``position`` is `NOTHING` where it has none of it.
    """

    lake: str
    position: int


def lake_name(text: str) -> str:
    """A lake's directory or URL as notes name it: absolute, and without a slash at the end."""
    scheme, found, rest = text.partition("://")
    if found and scheme != "file":
        return f"{_SCHEMES.get(scheme, scheme)}://{rest.rstrip('/')}"
    return os.path.abspath(os.path.expanduser(rest if found else text))


def lake_names(setting: str) -> list[str]:
    """The lakes that ``retentionWaitsForLake`` names, with commas between."""
    return list(dict.fromkeys(lake_name(x.strip()) for x in setting.split(",") if x.strip()))


def note_path(root: str, lake: str) -> str:
    """Where the note of a lake lies."""
    digest = hashlib.sha256(lake.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{root}/{DIRECTORY}/{digest}.json"


def note_of(lake: str, position: int) -> bytes:
    """A note's bytes."""
    return json.dumps({"lake": lake, "position": position}).encode()


def make_directory(files: FileSystem, root: str) -> None:
    """Asks exports for their notes; a full disk is asked again at the next cleaning."""
    if not files.is_dir(f"{root}/{DIRECTORY}"):
        try:
            files.make_dirs(f"{root}/{DIRECTORY}", durable=False)
        except (OSError, StoreFullError) as error:
            _LOG.warning("%s/%s: %s; no export can note its position", root, DIRECTORY, error)


def awaited_lake(files: FileSystem, root: str, setting: str, log_end: int) -> AwaitedLake | None:
    """The lake that is furthest behind; None where none is waited for.

    Args:
        files: of the store.
        root: the store.
        setting: the value of ``retentionWaitsForLake``.
        log_end: of its CommitLog; a note behind it is another log's.
    """
    found = [
        AwaitedLake(lake, _position(files, root, lake, log_end)) for lake in lake_names(setting)
    ]
    return min(found, key=lambda each: each.position, default=None)


def _position(files: FileSystem, root: str, lake: str, log_end: int) -> int:
    data = files.read_file(note_path(root, lake))
    if data is None:
        return NOTHING
    try:
        note = json.loads(data)
        if note["lake"] != lake:
            return NOTHING
        position = int(note["position"])
    except (ValueError, TypeError, KeyError) as error:
        _LOG.error("%s cannot be read as the note of an export: %s", note_path(root, lake), error)
        return NOTHING
    return position if 0 <= position <= log_end else NOTHING
