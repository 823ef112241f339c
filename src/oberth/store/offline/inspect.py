"""What a store holds, at a glance: files, positions, queues, times, checkpoint.

Reads the last segment, the queues' ends and the headers of the index, not the whole log, so it is
quick on a large store; `verify` is what looks at everything.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Final

from oberth.formats import paths
from oberth.formats.batch_consume_queue import BatchConsumeQueueUnit
from oberth.store.offline.layout import StoreLayout, walk_files
from oberth.store.offline.queue_view import QueueView
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.segments import Segment
from oberth.store.queue_statistics import UnitCount

SIZE_KEYS: Final = (
    ("mappedFileSizeCommitLog", "mapped_file_size_commit_log"),
    ("mappedFileSizeConsumeQueue", "mapped_file_size_consume_queue"),
    ("mappedFileSizeConsumeQueueExt", "mapped_file_size_consume_queue_ext"),
    ("mapperFileSizeBatchConsumeQueue", "mapped_file_size_batch_consume_queue"),
    ("maxHashSlotNum", "max_hash_slot_num"),
    ("maxIndexNum", "max_index_num"),
)


def inspect(reader: StoreReader, *, count: bool = False) -> dict[str, Any]:
    """The store as one JSON object.

    Args:
        reader: of the store.
        count: also read every unit, for the bytes of each queue and the messages it lacks.
    """
    layout = reader.layout
    end = reader.log_end
    queues = [*_queues(reader, count), *_batch_queues(reader, count)]
    topics = sorted({str(queue["topic"]) for queue in queues})
    return {
        "root": layout.root,
        "line": str(layout.line),
        "abort": layout.abort,
        "abortProcessId": layout.abort_process_id,
        "inUse": layout.in_use,
        "sizes": {
            java: {"value": getattr(layout.config, name), "from": _source(layout, java)}
            for java, name in SIZE_KEYS
        },
        "commitLog": {
            "directories": [layout.relative(path) for path in layout.commit_log_paths],
            "minOffset": reader.min_offset,
            "maxOffset": end.offset,
            "end": end.reason,
            "bytesBehindEnd": 0 if end.garbage_end is None else end.garbage_end - end.offset,
            "segments": [_segment(reader, segment) for segment in layout.commit_log],
            **_time_range(reader),
        },
        "topics": len(topics),
        "messages": sum(queue["messages"] for queue in queues),
        "queues": queues,
        "index": [
            {"file": layout.relative(view.path), **_header(view.header._asdict())}
            for view in reader.index_files()
        ],
        "checkpoint": None
        if layout.checkpoint is None
        else _java_names(dataclasses.asdict(layout.checkpoint)),
        "configFiles": [
            {"file": path, "size": size}
            for path, size in walk_files(layout.root)
            if path.startswith(paths.CONFIG + os.sep)
        ],
        "findings": [finding.to_json() for finding in layout.findings],
    }


def _source(layout: StoreLayout, key: str) -> str:
    if key in layout.given:
        return "given"
    has_files = {
        "mappedFileSizeCommitLog": bool(layout.commit_log),
        "mappedFileSizeConsumeQueue": any(q.segments for q in layout.queues.values()),
        "mappedFileSizeConsumeQueueExt": any(q.segments for q in layout.ext_queues.values()),
        "mapperFileSizeBatchConsumeQueue": any(q.segments for q in layout.batch_queues.values()),
    }.get(key, bool(layout.index_files))
    return "files" if has_files else "default"


def _segment(reader: StoreReader, segment: Segment) -> dict[str, Any]:
    first = reader.first_record_at_or_after(segment.start)
    inside = first is not None and first < min(segment.end, reader.max_offset)
    return {
        "file": reader.layout.relative(segment.path),
        "start": segment.start,
        "size": segment.size,
        "readOnly": segment.read_only,
        "firstRecord": first if inside else None,
        "firstStoreTimestamp": reader.record_at(first).store_timestamp
        if inside and first is not None
        else None,
    }


def _time_range(reader: StoreReader) -> dict[str, Any]:
    first = reader.first_record_at_or_after(reader.min_offset)
    begin = None if first is None else reader.record_at(first).store_timestamp
    last = None
    if reader.log.segments:
        for segment in reversed(reader.log.segments):
            if segment.start >= reader.max_offset:
                continue
            for message in reader.messages(segment.start):
                last = message.store_timestamp
            if last is not None:
                break
    return {"minStoreTimestamp": begin, "maxStoreTimestamp": last}


def _queues(reader: StoreReader, count: bool) -> list[dict[str, Any]]:
    result = []
    for key in reader.queue_keys():
        queue = reader.queue(key.topic, key.queue_id)
        low, high = reader.queue_range(key.topic, key.queue_id)
        result.append(
            {
                "topic": key.topic,
                "queueId": key.queue_id,
                "type": "SimpleCQ",
                "ext": queue.ext is not None,
                "files": len(queue.stream.segments),
                "minOffset": low,
                "maxOffset": high,
                "messages": max(0, high - low),
                "minStoreTimestamp": _unit_time(reader, queue.unit(low)) if low < high else None,
                "maxStoreTimestamp": _unit_time(reader, queue.unit(high - 1))
                if low < high
                else None,
                **(_counted(queue, low, high) if count else {}),
            }
        )
        # Thousands of queues would be thousands of open files.
        queue.close()
    return result


def _counted(queue: QueueView, low: int, high: int) -> dict[str, int]:
    total = UnitCount()
    total.add_units(piece for _, piece in queue.pieces(low, high))
    return {"messages": total.messages, "missing": total.missing, "bytes": total.record_bytes}


def _unit_time(reader: StoreReader, unit: Any) -> int | None:
    if unit is None:
        return None
    stored = reader.store_timestamp(unit.commit_log_offset, unit.record_size)
    return stored if stored >= 0 else None


def _batch_queues(reader: StoreReader, count: bool) -> list[dict[str, Any]]:
    result = []
    for key in sorted(reader.layout.batch_queues):
        view = reader.batch_queue(key.topic, key.queue_id)
        units = [
            unit
            for unit in view.units(reader.max_offset)
            if unit.commit_log_offset >= reader.min_offset
        ]
        result.append(
            {
                "topic": key.topic,
                "queueId": key.queue_id,
                "type": "BatchCQ",
                "ext": False,
                "files": len(view.stream.segments),
                "minOffset": units[0].message_base_offset if units else -1,
                "maxOffset": units[-1].next_offset if units else 0,
                "messages": sum(unit.batch_size for unit in units),
                "minStoreTimestamp": units[0].store_timestamp if units else None,
                "maxStoreTimestamp": units[-1].store_timestamp if units else None,
                **(_counted_batches(units) if count else {}),
            }
        )
        view.close()
    return result


def _counted_batches(units: list[BatchConsumeQueueUnit]) -> dict[str, int]:
    places = units[-1].next_offset - units[0].message_base_offset if units else 0
    return {
        "missing": places - sum(unit.batch_size for unit in units),
        "bytes": sum(unit.record_size for unit in units),
    }


def _header(fields: dict[str, int]) -> dict[str, int]:
    return {
        {
            "begin_offset": "beginPhyOffset",
            "end_offset": "endPhyOffset",
        }.get(name, _java_name(name)): value
        for name, value in fields.items()
    }


def _java_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _java_names(fields: dict[str, int]) -> dict[str, int]:
    return {_java_name(name): value for name, value in fields.items()}
