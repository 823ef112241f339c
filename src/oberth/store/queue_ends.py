"""The file ``oberth.queue-ends``: where queues go on that have no files any more.

Request 306 deletes the files of queues whose messages have all left the log. Their numbers go on:
a message under a number that another one had would be taken for consumed by whoever consumed that
one, or be given to whoever asks for the other. RocketMQ begins such a queue at 0 again.

JSON, ``{"version": 1, "queues": {topic: {queue id: next queue offset}}}``, written durably *before*
files are deleted, so it may name queues that have files still: those go by their files. A queue
leaves it with its topic, or when it has files again by the next time that it is written. RocketMQ
does not know the file; without it the queues begin at 0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from oberth.store.consume_queue import ConsumeQueue
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)

FILE_NAME: Final = "oberth.queue-ends"
VERSION: Final = 1


class _Ends(msgspec.Struct):
    version: int = VERSION
    queues: dict[str, dict[int, int]] = {}


def restore_ends(files: FileSystem, root: str, queues: ConsumeQueueStore) -> None:
    """Has queues without files go on where they ended. Before the queues are recovered."""
    for topic, ends in decode_ends(files.read_file(f"{root}/{FILE_NAME}"), root).items():
        for queue_id, end in ends.items():
            queues.go_on_at(topic, queue_id, end)


def decode_ends(data: bytes | None, root: str) -> dict[str, dict[int, int]]:
    """Where queues without files go on, by topic and number; nothing if the bytes say nothing.

    Args:
        data: the file's content, None where there is no file.
        root: the store's directory, for messages.
    """
    if data is None:
        return {}
    try:
        found = msgspec.json.decode(data, type=_Ends)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _LOG.error("%s/%s: %s; queues without files begin at 0", root, FILE_NAME, error)
        return {}
    if found.version != VERSION:
        _LOG.error("%s/%s: version %d is not known", root, FILE_NAME, found.version)
        return {}
    return found.queues


def save_ends(
    files: FileSystem, root: str, queues: ConsumeQueueStore, leaving: Sequence[ConsumeQueue]
) -> None:
    """Notes where all queues without files go on, and those that are to lose theirs.

    Raises:
        StoreFullError: the disk has no room.
    """
    ends: dict[str, dict[int, int]] = {}
    simple = [each for each in queues.all_queues() if isinstance(each, ConsumeQueue)]
    for queue in (*(each for each in simple if each.is_without_files), *leaving):
        ends.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
    path = f"{root}/{FILE_NAME}"
    if ends:
        files.write_file(path, msgspec.json.encode(_Ends(queues=ends)))
    elif files.read_file(path) is not None:
        files.remove(path)
