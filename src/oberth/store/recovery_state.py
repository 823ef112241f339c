"""The file ``oberth.state``: what lets a store of ours open without reading its log again.

JSON, written durably *after* the log, the queues and the index were synced up to ``safe_offset``.
So it is a promise about the past: everything below safe_offset was on the disk in all three. A
store that RocketMQ has used meanwhile keeps that promise, or the numbers below betray it; RocketMQ
itself does not know the file and needs nothing of it. Without it, or where it does not fit what is
found, recovery reads more and comes to the same result.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oberth.store.files import FileSystem

FILE_NAME: Final = "oberth.state"
VERSION: Final = 1
# So many deletions are noted at most: the file is written every few seconds.
DELETIONS_MAX: Final = 10_000


class RecoveryState(msgspec.Struct):
    """The file's content.

    Attributes:
        version: of this layout; others are ignored.
        safe_offset: CommitLog offset up to which log, queues and index are on the disk.
        last_record: where the record that ends at safe_offset starts, -1 if there is none.
        store_timestamp: store time of that record, ms.
        queue_end: the highest record end that any queue held then, -1 if none.
        queue_count: how many queues there were.
        queue_units: the sum of their next queue offsets, so that one that lost its newest units is
            noticed though others reach further; -1: not known.
        queue_begins: the sum of the positions at which the files of queues began, so that one that
            lost its first files is noticed; -1: not known.
        log_begin: where the CommitLog began. Once it begins later, files of queues may have gone
            with it, and queue_begins says nothing.
        clean: whether the store was shut down in order, with nothing behind safe_offset.
        index_counts: entries of each index file that were on the disk.
        deleted: topics that were deleted, and the CommitLog offset below which their records are in
            no queue; DELETIONS_MAX at most, those deleted last.
        queues: after a clean stop: topic → queue id → (min offset, max offset, record end).
    """

    version: int = VERSION
    safe_offset: int = 0
    last_record: int = -1
    store_timestamp: int = 0
    queue_end: int = -1
    queue_count: int = 0
    queue_units: int = -1
    queue_begins: int = -1
    log_begin: int = -1
    clean: bool = False
    index_counts: dict[str, int] = {}
    deleted: dict[str, int] = {}
    queues: dict[str, dict[int, tuple[int, int, int]]] = {}


def load_state(files: FileSystem, root: str) -> RecoveryState | None:
    """The state, or None if there is none that can be read."""
    try:
        return decode_state(files.read_file(f"{root}/{FILE_NAME}"))
    except IsADirectoryError:
        return None  # see `oberth.store.file_kinds`


def decode_state(data: bytes | None) -> RecoveryState | None:
    """The state that a file's bytes hold, or None if they hold none."""
    if data is None:
        return None
    try:
        state = msgspec.json.decode(data, type=RecoveryState)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return state if state.version == VERSION else None


def save_state(files: FileSystem, root: str, state: RecoveryState) -> None:
    """Writes the state durably, in one step."""
    files.write_file(f"{root}/{FILE_NAME}", msgspec.json.encode(state))
