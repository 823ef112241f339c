"""What can still be said of damaged bytes: whose record they were, with which keys.

Sources, the better first: the bytes themselves, taken for a record of exactly this range; the
ConsumeQueue units that point into the range. Index entries that do hold only hashes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from oberth.errors import RecordError
from oberth.formats.message import (
    COMMIT_LOG_OFFSET_POSITION,
    FIXED_SIZE_V1,
    MAGIC_V1,
    MAGIC_V2,
    MessageExt,
    decode_record,
)
from oberth.formats.names import is_lmq, is_stored_topic
from oberth.store.offline.layout import QueueKey
from oberth.store.offline.reader import StoreReader

RECORD_SIZE_MAX: Final = 64 << 20


class LostRecord(NamedTuple):
    """What is known of a record that was lost. None is what is not known."""

    start: int
    size: int | None
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    store_timestamp: int | None = None
    keys: str | None = None
    tags_code: int | None = None


def describe_range(reader: StoreReader, start: int, end: int) -> list[LostRecord]:
    """The records that lay in [start, end) of the CommitLog, as far as anything tells of them."""
    lost: dict[int, LostRecord] = {}
    for key in reader.queue_keys():
        view = reader.queue(key.topic, key.queue_id)
        stop = view.end_offset()
        first = view.min_offset(start, stop)
        for ordinal, unit in view.units(first, stop):
            if unit.commit_log_offset >= end:
                break
            if unit.is_message and unit.commit_log_offset >= start:
                lost[unit.commit_log_offset] = LostRecord(
                    unit.commit_log_offset, unit.record_size, key.topic, key.queue_id, ordinal,
                    tags_code=unit.tags_code,
                )  # fmt: skip
    starts = sorted({start, *lost})
    for number, at in enumerate(starts):
        known = lost.get(at)
        size = known.size if known is not None else None
        if size is None:
            size = (starts[number + 1] if number + 1 < len(starts) else end) - at
        guess = guess_record(reader, at, size)
        if guess is not None:
            lost[at] = LostRecord(
                at,
                size,
                guess.topic if known is None else known.topic,
                guess.queue_id if known is None else known.queue_id,
                guess.queue_offset if known is None else known.queue_offset,
                guess.store_timestamp,
                " ".join(filter(None, (guess.uniq_key, guess.keys))) or None,
            )
    return [lost[at] for at in sorted(lost)]


def ordinal_of(reader: StoreReader, message: MessageExt) -> int | None:
    """The queue offset of the unit that points to a record, in the queue that the record names."""
    if QueueKey(message.topic, message.queue_id) not in reader.layout.queues:
        return None
    view = reader.queue(message.topic, message.queue_id)
    place = message.commit_log_offset, message.record_size
    # Stand-ins may lead to it as well, before the place that it names.
    own = view.unit(message.queue_offset) if message.queue_offset >= 0 else None
    if own is not None and own[:2] == place:
        return message.queue_offset
    end = view.end_offset()
    at = view.min_offset(message.commit_log_offset, end)
    unit = view.unit(at) if at < end else None
    return at if unit is not None and unit[:2] == place else None


def owner_of(reader: StoreReader, message: MessageExt) -> tuple[QueueKey, int] | None:
    """The queue and queue offset whose unit points to a record, whatever the record says.

    Its own queue comes first. A topic of another length than the stored one names a light queue.
    """
    if (ordinal := ordinal_of(reader, message)) is not None:
        return QueueKey(message.topic, message.queue_id), ordinal
    size = topic_size(message)
    for key in reader.queue_keys():
        if len(key.topic.encode()) != size:
            continue
        view = reader.queue(key.topic, key.queue_id)
        end = view.end_offset()
        at = view.min_offset(message.commit_log_offset, end)
        unit = view.unit(at) if at < end else None
        if unit is not None and unit[:2] == (message.commit_log_offset, message.record_size):
            return key, at
    return None


def topic_size(message: MessageExt) -> int:
    """Bytes of the topic as stored; damaged ones need not decode to the same."""
    without = replace(message, topic="").encode()
    return message.record_size - len(without)


def light_places_of(reader: StoreReader, message: MessageExt) -> dict[str, int]:
    """The queues beside its own whose units point to a record, and its number in each."""
    own = QueueKey(message.topic, message.queue_id)
    places = {}
    for key in reader.queue_keys():
        if key == own or key.queue_id != (0 if is_lmq(key.topic) else own.queue_id):
            continue
        view = reader.queue(key.topic, key.queue_id)
        end = view.end_offset()
        at = view.min_offset(message.commit_log_offset, end)
        unit = view.unit(at) if at < end else None
        if unit is not None and unit[:2] == (message.commit_log_offset, message.record_size):
            places[key.topic] = at
    return places


def guess_record(reader: StoreReader, offset: int, size: int) -> MessageExt | None:
    """Takes bytes for a record of a known size even if size, magic or own offset are damaged."""
    if not FIXED_SIZE_V1 <= size <= RECORD_SIZE_MAX:
        return None
    raw = reader.log.read(offset, size)
    if raw is None:
        return None
    for magic in (MAGIC_V1, MAGIC_V2):
        copy = bytearray(raw)
        copy[0:4] = size.to_bytes(4, "big")
        copy[4:8] = (magic & 0xFFFFFFFF).to_bytes(4, "big")
        at = COMMIT_LOG_OFFSET_POSITION
        copy[at : at + 8] = offset.to_bytes(8, "big")
        try:
            message = decode_record(copy)
        except RecordError:
            continue
        if is_stored_topic(message.topic):
            return message
    return None
