"""Messages of a store as JSON, in the order of the log or of one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from oberth.formats.message import MessageExt
from oberth.store.offline.filler import is_filler
from oberth.store.offline.layout import QueueKey
from oberth.store.offline.log_walk import Damage, DamagedRecord
from oberth.store.offline.message_json import message_to_json
from oberth.store.offline.reader import StoreReader


def dump(
    reader: StoreReader,
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    start: int | None = None,
    limit: int | None = None,
    fillers: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """Messages as JSON objects, see `message_json`.

    Args:
        reader: the store.
        topic: only this topic.
        queue_id: only this queue.
        start: with topic and queue a queue offset, else a CommitLog offset.
        limit: at most so many messages.
        fillers: also the records that `salvage` put into holes.
        report: called with a line for each damaged range and each unit without a record.
    """
    if topic is not None and queue_id is not None and _has_queue(reader, topic, queue_id):
        found = _by_queue(reader, topic, queue_id, start or 0, report)
    else:
        found = _by_log(reader, topic, queue_id, start, fillers, report)
    line, delays = reader.line, reader.delays_ms
    for message, crc_ok in islice(found, limit):
        yield message_to_json(message, crc_ok=crc_ok, line=line, delays_ms=delays)


def _has_queue(reader: StoreReader, topic: str, queue_id: int) -> bool:
    return QueueKey(topic, queue_id) in reader.layout.queues


def _by_queue(
    reader: StoreReader, topic: str, queue_id: int, start: int, report: Callable[[str], None]
) -> Iterator[tuple[MessageExt, bool]]:
    for offset, unit, message in reader.queue_messages(topic, queue_id, start):
        if message is None:
            report(
                f"{topic}/{queue_id} at {offset}: no record at CommitLog offset "
                f"{unit.commit_log_offset}"
            )
            continue
        yield message, reader.is_whole(message)


def _by_log(
    reader: StoreReader,
    topic: str | None,
    queue_id: int | None,
    start: int | None,
    fillers: bool,
    report: Callable[[str], None],
) -> Iterator[tuple[MessageExt, bool]]:
    by_queue_offset = topic is not None and queue_id is not None
    log_start = None if by_queue_offset else start
    if log_start is not None and log_start > reader.min_offset:
        log_start = reader.first_record(log_start)
        if log_start is None:
            return
    for item in reader.walk(log_start):
        if isinstance(item, Damage):
            report(f"CommitLog {item.start} to {item.end}: no record ({item.reason})")
            continue
        crc_ok = not isinstance(item, DamagedRecord)
        message = item.message if isinstance(item, DamagedRecord) else item
        if topic is not None and message.topic != topic:
            continue
        if queue_id is not None and message.queue_id != queue_id:
            continue
        if by_queue_offset and message.queue_offset < (start or 0):
            continue
        if not fillers and is_filler(message):
            continue
        yield message, crc_ok


def to_json(reader: StoreReader, message: MessageExt) -> dict[str, Any]:
    """A message of a store as JSON."""
    return message_to_json(
        message, crc_ok=reader.is_whole(message), line=reader.line, delays_ms=reader.delays_ms
    )
