"""A store that exists only as numbers: any size, any delay, every request counted.

Records have one size and one body and go to the queues in turn, so the bytes of any file at any
place follow from arithmetic: listings, units, and records that are valid where somebody looks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from zlib import crc32

from oberth.formats import message, paths
from oberth.formats.consume_queue import UNIT_SIZE, UNITS_PER_FILE
from oberth.spark.storage import Entry, Storage

RECORD_SIZE = 1024
FIRST_TIME_MS = 1_700_000_000_000
_BODY = b"x" * 700
_HOST = message.encode_host("127.0.0.1", 10911)
_FILE_SIZE = UNITS_PER_FILE * UNIT_SIZE


class MadeUpStorage(Storage):
    """Files of one store below ``/made-up``.

    Attributes:
        requests: how often was listed and read; a listing of a tree counts once for a thousand
            names, as object stores give them.
    """

    def __init__(
        self,
        segments: int,
        queues: int,
        *,
        queues_per_topic: int = 8,
        segment_size: int = 1 << 30,
        delay_s: float = 0.0,
    ) -> None:
        self.bytes_read = 0
        self.requests: Counter[str] = Counter()
        self._segments = segments
        self._queues = queues
        self._per_topic = queues_per_topic
        self._segment_size = segment_size
        self._delay_s = delay_s
        self._in_segment = segment_size // RECORD_SIZE - 1  # a blank ends each
        self.records = segments * self._in_segment - self._in_segment // 2
        self._last_size = (self._in_segment - self._in_segment // 2) * RECORD_SIZE
        self._counting = threading.Lock()  # guards requests

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k != "_counting"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._counting = threading.Lock()

    def _request(self, kind: str, count: int = 1) -> None:
        with self._counting:
            self.requests[kind] += count
        if self._delay_s:
            time.sleep(self._delay_s * count)

    def _topic(self, queue: int) -> str:
        return f"T{queue // self._per_topic:06d}"

    def _offset(self, record: int) -> int:
        segment, place = divmod(record, self._in_segment)
        return segment * self._segment_size + place * RECORD_SIZE

    def _files_of(self, queue: int) -> list[Entry]:
        units = (self.records - queue + self._queues - 1) // self._queues
        return [
            Entry(paths.segment_name(start), _FILE_SIZE)
            for start in range(0, max(units, 1) * UNIT_SIZE, _FILE_SIZE)
        ]

    def entries(self, directory: str) -> list[Entry]:
        self._request("entries")
        below = directory.removeprefix("/made-up").strip("/").split("/")
        match below:
            case [""]:
                return [Entry(paths.COMMIT_LOG, -1), Entry(paths.CONSUME_QUEUE, -1)]
            case [paths.COMMIT_LOG]:
                size = self._segment_size
                sizes = [size] * (self._segments - 1) + [self._last_size]
                return [Entry(paths.segment_name(n * size), each) for n, each in enumerate(sizes)]
            case [paths.CONSUME_QUEUE]:
                return [Entry(self._topic(q), -1) for q in range(0, self._queues, self._per_topic)]
            case [paths.CONSUME_QUEUE, topic]:
                return [Entry(str(queue), -1) for queue, _ in self._queues_of(topic)]
            case [paths.CONSUME_QUEUE, topic, queue]:
                return self._files_of(int(topic[1:]) * self._per_topic + int(queue))
        return []

    def _queues_of(self, topic: str) -> list[tuple[int, int]]:
        first = int(topic[1:]) * self._per_topic
        return [(n, first + n) for n in range(min(self._per_topic, self._queues - first))]

    def tree(self, directory: str) -> list[Entry]:
        before = Counter(self.requests)
        delay, self._delay_s = self._delay_s, 0.0
        found = super().tree(directory)
        self._delay_s = delay
        self.requests = before
        self._request("tree", max(-(-len(found) // 1000), 1))
        return found

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        self._request("read")
        below = path.removeprefix("/made-up").strip("/").split("/")
        start = int(below[-1])
        if below[0] == paths.COMMIT_LOG:
            data = self._log(start + position, min(len(target), self._segment_size - position))
        else:
            queue = int(below[1][1:]) * self._per_topic + int(below[2])
            data = self._units(queue, start + position, min(len(target), _FILE_SIZE - position))
        target[: len(data)] = data
        self.bytes_read += len(data)
        return len(data)

    def _log(self, at: int, size: int) -> bytes:
        first = at - at % RECORD_SIZE
        data = b"".join(self._record(place) for place in range(first, at + size, RECORD_SIZE))
        return data[at - first : at - first + size]

    def _record(self, at: int) -> bytes:
        segment, place = divmod(at, self._segment_size)
        record = segment * self._in_segment + place // RECORD_SIZE
        if place // RECORD_SIZE == self._in_segment:
            return message.encode_blank(RECORD_SIZE).ljust(RECORD_SIZE, b"\0")
        if record >= self.records:
            return bytes(RECORD_SIZE)
        queue = record % self._queues
        topic = self._topic(queue)
        room = RECORD_SIZE - message.record_size(len(_BODY), len(topic), 0, 0, message.MAGIC_V1)
        return message.MessageExt(
            topic=topic,
            queue_id=queue % self._per_topic,
            queue_offset=record // self._queues,
            commit_log_offset=at,
            record_size=RECORD_SIZE,
            magic=message.MAGIC_V1,
            body_crc=crc32(_BODY) & message.CRC_MASK,
            flag=0,
            sys_flag=0,
            born_timestamp=FIRST_TIME_MS + record,
            born_host=_HOST,
            store_timestamp=FIRST_TIME_MS + record,
            store_host=_HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=_BODY,
            properties_raw=b"p\x01" + b"v" * (room - 2),
        ).encode()

    def _units(self, queue: int, at: int, size: int) -> bytes:
        import numpy as np

        first, last = at // UNIT_SIZE, -(-(at + size) // UNIT_SIZE)
        made = np.zeros(last - first, [("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
        records = np.arange(first, last, dtype=np.int64) * self._queues + queue
        there = records < self.records
        segment, place = np.divmod(records, self._in_segment)
        made["offset"] = np.where(there, segment * self._segment_size + place * RECORD_SIZE, 0)
        made["size"] = np.where(there, RECORD_SIZE, 0)
        begin = at - first * UNIT_SIZE
        return made.tobytes()[begin : begin + size]

    def expand(self, pattern: str) -> list[str]:
        return [pattern]
