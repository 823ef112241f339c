"""Finds messages of a store by key, by id or by time."""

from __future__ import annotations

from typing import Any

from oberth.errors import NotFoundError
from oberth.formats.message import MessageExt
from oberth.store.offline.dump import to_json
from oberth.store.offline.index_view import LATEST_MS
from oberth.store.offline.reader import StoreReader


def by_key(
    reader: StoreReader,
    topic: str,
    key: str,
    *,
    max_num: int = 32,
    begin_ms: int = 0,
    end_ms: int = LATEST_MS,
    index_type: str | None = None,
    any_key: bool = False,
) -> list[dict[str, Any]]:
    """The newest messages of a topic with a key, oldest first, see `StoreReader.by_key`."""
    found = reader.by_key(
        topic,
        key,
        max_num=max_num,
        begin_ms=begin_ms,
        end_ms=end_ms,
        index_type=index_type,
        any_key=any_key,
    )
    return [to_json(reader, message) for message in found]


def by_id(reader: StoreReader, message_id: str, topic: str | None = None) -> list[dict[str, Any]]:
    """The message with an id; empty if there is none.

    Raises:
        FormatError: the text is no id.
    """
    try:
        return [to_json(reader, reader.by_id(message_id, topic))]
    except NotFoundError:
        return []


def by_time(
    reader: StoreReader,
    topic: str,
    timestamp_ms: int,
    *,
    queue_id: int | None = None,
    boundary: str = "LOWER",
) -> list[dict[str, Any]]:
    """For each queue of a topic: the queue offset at a time, and the message there.

    Raises:
        NotFoundError: the topic has no queue, or not this one.
    """
    ids = sorted(
        key.queue_id
        for key in (*reader.layout.queues, *reader.layout.batch_queues)
        if key.topic == topic and queue_id in (None, key.queue_id)
    )
    if not ids:
        raise NotFoundError(
            f"topic {topic!r} has no ConsumeQueue"
            + ("" if queue_id is None else f" with queue id {queue_id}")
        )
    answers = []
    for each in ids:
        offset = reader.offset_by_time(topic, each, timestamp_ms, boundary)
        message: MessageExt | None
        if (topic, each) in reader.layout.batch_queues:
            message = reader.batch_at(topic, each, offset)
        else:
            found = next(iter(reader.queue_messages(topic, each, offset, offset + 1)), None)
            message = None if found is None else found[2]
        answers.append(
            {
                "topic": topic,
                "queueId": each,
                "timestamp": timestamp_ms,
                "boundary": boundary,
                "offset": offset,
                "message": None if message is None else to_json(reader, message),
            }
        )
    return answers
