"""What the next cleaning of a store would take, from its files alone; a broker may have it open.

The same report as `MessageStore.retention_report`, with the groups' offsets and the topics'
attributes that were last written down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from oberth import wall_clock
from oberth.formats.batch_consume_queue import BatchConsumeQueueUnit
from oberth.formats.config_files import ConsumerOffsets, split_offset_key
from oberth.formats.topic_config import TopicConfigs
from oberth.store.files import OsFileSystem
from oberth.store.lakes import awaited_lake
from oberth.store.offline.reader import StoreReader
from oberth.store.retention import HOUR_MS, Held, reserve_hours
from oberth.store.retention_report import (
    GroupOffsets,
    LeavingMessages,
    LeavingSegment,
    RetentionReport,
)

_OFFSETS: Final = ("consumerOffset.json", "lmqConsumerOffset.json")


def retention_report(reader: StoreReader, now_ms: int | None = None) -> RetentionReport:
    """What goes next and who has not consumed it.

    Args:
        reader: of the store.
        now_ms: the time of the cleaning; the clock's if not given.
    """
    now = wall_clock.now_ms() if now_ms is None else now_ms
    config = reader.layout.config
    reserved = {
        topic: hours
        for topic, attributes in topic_attributes(reader).items()
        if (hours := reserve_hours(topic, attributes)) is not None
    }
    held = _held(reader, reserved, now)
    lake = awaited_lake(
        OsFileSystem(), reader.layout.root, config.retention_waits_for_lake, reader.max_offset
    )
    kept = [] if held is None else [held.commit_log_offset]
    keep_from = min([*kept, *([] if lake is None else [lake.position])], default=None)
    segments = []
    for segment in reader.layout.commit_log[:-1]:
        age_ms = now - int(os.stat(segment.path).st_mtime * 1000)
        if age_ms < config.file_reserved_time_hours * HOUR_MS or (
            keep_from is not None and segment.end > keep_from
        ):
            break
        path = reader.layout.relative(segment.path)
        segments.append(LeavingSegment(path, segment.start, segment.end, age_ms / HOUR_MS))
    segments = segments[: config.delete_file_batch_max]
    report = RetentionReport(
        now_ms=now,
        reserved_hours=config.file_reserved_time_hours,
        delete_when=config.delete_when,
        due=None,
        log_min_offset=reader.min_offset,
        log_min_offset_after=segments[-1].end if segments else reader.min_offset,
        segments=segments,
        held=held,
        lake=lake,
    )
    for topic, queue_id in sorted({*reader.layout.queues, *reader.layout.batch_queues}):
        leaving = _leaving(reader, topic, queue_id, reserved.get(topic), report)
        if leaving is not None:
            report.leaving.append(leaving)
    report.add_groups(group_offsets(reader))
    return report


def _leaving(
    reader: StoreReader, topic: str, queue_id: int, hours: int | None, report: RetentionReport
) -> LeavingMessages | None:
    low, high = reader.queue_range(topic, queue_id)
    if low < 0 or low >= high:
        return None
    after_log = _first_at(reader, topic, queue_id, report.log_min_offset_after)
    after_time = low
    if hours is not None:
        after_time = _first_within(reader, topic, queue_id, report.now_ms - hours * HOUR_MS)
    after = max(low, after_log, after_time)
    if after == low:
        return None
    because = "reserve.time" if after_time >= after_log else "segment"
    return LeavingMessages(topic, queue_id, low, after, because)


def _first_at(reader: StoreReader, topic: str, queue_id: int, log_offset: int) -> int:
    """The first queue offset whose record starts at or after a CommitLog offset."""
    if log_offset <= reader.min_offset:
        return 0
    if (topic, queue_id) in reader.layout.batch_queues:
        return _first_batch(
            reader, topic, queue_id, lambda unit: unit.commit_log_offset >= log_offset
        )
    queue = reader.queue(topic, queue_id)
    return queue.min_offset(log_offset, queue.end_offset(reader.max_offset))


def _first_within(reader: StoreReader, topic: str, queue_id: int, timestamp_ms: int) -> int:
    """The first queue offset stored at or after a time; the queue's end if there is none."""
    if (topic, queue_id) not in reader.layout.batch_queues:
        return reader.offset_by_time(topic, queue_id, timestamp_ms)
    return _first_batch(reader, topic, queue_id, lambda unit: unit.store_timestamp >= timestamp_ms)


def _first_batch(
    reader: StoreReader,
    topic: str,
    queue_id: int,
    is_wanted: Callable[[BatchConsumeQueueUnit], bool],
) -> int:
    """Where the first wanted batch of a queue begins; the queue's end if there is none."""
    view = reader.batch_queue(topic, queue_id)
    last = 0
    try:
        for unit in view.units(reader.max_offset):
            if is_wanted(unit):
                return unit.message_base_offset
            last = unit.next_offset
    finally:
        view.close()
    return last


def _held(reader: StoreReader, reserved: dict[str, int], now_ms: int) -> Held | None:
    found: Held | None = None
    for topic, queue_id in sorted(reader.layout.queues):
        hours = reserved.get(topic, 0)
        if hours <= reader.layout.config.file_reserved_time_hours:
            continue
        first = _first_within(reader, topic, queue_id, now_ms - hours * HOUR_MS)
        unit = reader.queue(topic, queue_id).unit(first)
        if unit is None or not unit.is_message or first >= reader.queue_range(topic, queue_id)[1]:
            continue
        if found is None or unit.commit_log_offset < found.commit_log_offset:
            found = Held(topic, queue_id, unit.commit_log_offset)
    return found


def _config(reader: StoreReader, name: str) -> bytes | None:
    try:
        with open(os.path.join(reader.layout.root, "config", name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def topic_attributes(reader: StoreReader) -> dict[str, dict[str, str]]:
    """The attributes of every topic, as last written down."""
    data = _config(reader, "topics.json")
    if data is None:
        return {}
    table = TopicConfigs.decode(data, name="topics.json").topic_config_table
    return {topic: config.attributes for topic, config in table.items()}


def group_offsets(reader: StoreReader) -> Iterator[GroupOffsets]:
    """How far every group is, as last written down."""
    for name in _OFFSETS:
        data = _config(reader, name)
        if data is None:
            continue
        for key, queues in ConsumerOffsets.decode(data, name=name).offset_table.items():
            parts = split_offset_key(key)
            if parts is not None:
                yield *parts, queues
