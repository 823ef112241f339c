"""PopBuffer: check points that wait in memory for their acknowledgements (enablePopBufferMerge).

Most messages are acknowledged within seconds, and then neither check point nor acknowledgement need
ever be stored. A check point stays here until all of it is acknowledged, or until it has been here
for long, or its messages are about to be visible again; then it is stored, with what is already
acknowledged. What is always true: a group's offset is committed in the order of the pops, and only
past a pop that is stored or acknowledged completely; so what a crash takes from memory is popped
again. RocketMQ: PopBufferMergeService.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from oberth.broker.pop.check_point import CheckPointKey, PopAck, PopCheckPoint

QueueKey = tuple[str, str, int]
"""Topic, group, queue id."""

TOO_LATE_MARGIN_MS: Final = 1500


@dataclass(slots=True)
class _Entry:
    check_point: PopCheckPoint | None  # None: nothing was handed out, the offset only moves on
    revive_queue_id: int
    next_offset: int
    is_finished: bool = False


class PopBuffer:
    """The buffer.

    Args:
        stay_ms: how long a check point stays (popCkStayBufferTime).
        margin_ms: how long before its time it is stored in any case (popCkStayBufferTimeOut).
        size_max: check points that are kept (popCkMaxBufferSize).
        store: puts a check point, and acknowledgements of it, into the log; False if that failed.
        commit: commits an offset: topic, group, queue id, offset.
    """

    def __init__(
        self,
        stay_ms: int,
        margin_ms: int,
        size_max: int,
        store: Callable[[PopCheckPoint, int, PopAck | None], bool],
        commit: Callable[[str, str, int, int], object],
    ) -> None:
        self._stay_ms = stay_ms
        self._margin_ms = margin_ms
        self._size_max = size_max
        self._store = store
        self._commit = commit
        self._entries: dict[CheckPointKey, _Entry] = {}
        self._queues: dict[QueueKey, deque[_Entry]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def latest_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Where the next pop of a queue goes on; -1 if that is the committed offset."""
        queue = self._queues.get((topic, group, queue_id))
        return queue[-1].next_offset if queue else -1

    def add(
        self, check_point: PopCheckPoint, revive_queue_id: int, next_offset: int, now_ms: int
    ) -> bool:
        """Keep a check point; False if it must be stored at once."""
        if (
            len(self._entries) >= self._size_max
            or check_point.revive_time - now_ms <= self._margin_ms + TOO_LATE_MARGIN_MS
            or check_point.key in self._entries
        ):
            return False
        entry = _Entry(check_point, revive_queue_id, next_offset)
        self._entries[check_point.key] = entry
        self._queue_of(check_point).append(entry)
        return True

    def add_finished(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """A pop that is stored, or that found nothing it may hand out, moved the offset."""
        queue = self._queues.get((topic, group, queue_id))
        if queue:
            queue.append(_Entry(None, 0, next_offset, is_finished=True))
        else:
            self._commit(topic, group, queue_id, next_offset)

    def ack(self, ack: PopAck) -> bool:
        """Note acknowledgements; False if their check point is not here."""
        if not self._entries:
            return False
        entry = self._entries.get(ack.key)
        if entry is None:
            return False
        assert entry.check_point is not None
        for offset in ack.offsets:
            entry.check_point.ack(offset)
        if entry.check_point.is_all_acked:
            self._finish(entry)
        return True

    def on_time(self, now_ms: int) -> None:
        """Stores what has waited long enough."""
        for entry in list(self._entries.values()):
            check_point = entry.check_point
            assert check_point is not None
            if (
                now_ms - check_point.pop_time > self._stay_ms
                or check_point.revive_time - now_ms <= self._margin_ms
            ):
                self._store_entry(entry)

    def flush(self) -> None:
        """Stores everything: the broker stops."""
        for entry in list(self._entries.values()):
            self._store_entry(entry)

    def forget_queue(self, topic: str, group: str, queue_id: int) -> None:
        """A queue's offset was reset: what is waiting no longer moves it, but is stored."""
        queue = self._queues.pop((topic, group, queue_id), None)
        for entry in list(queue or ()):
            if not entry.is_finished:
                self._store_entry(entry)

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted: what waits is neither stored nor moves an offset."""
        for key in [key for key in self._queues if key[0] == topic]:
            for entry in self._queues.pop(key):
                if not entry.is_finished:
                    assert entry.check_point is not None
                    del self._entries[entry.check_point.key]

    def _queue_of(self, check_point: PopCheckPoint) -> deque[_Entry]:
        key = (check_point.topic, check_point.group, check_point.queue_id)
        return self._queues.setdefault(key, deque())

    def _store_entry(self, entry: _Entry) -> None:
        check_point = entry.check_point
        assert check_point is not None
        acked = check_point.acked()
        ack = None
        if acked:
            ack = PopAck(
                tuple(acked),
                check_point.start_offset,
                check_point.pop_time,
                check_point.queue_id,
                check_point.topic,
                check_point.group,
                check_point.broker_name,
                is_batch=True,
            )
        stored = PopCheckPoint(
            check_point.start_offset,
            check_point.pop_time,
            check_point.invisible_time,
            check_point.queue_id,
            check_point.topic,
            check_point.group,
            check_point.broker_name,
            check_point.differences,
        )
        if self._store(stored, entry.revive_queue_id, ack):
            self._finish(entry)

    def _finish(self, entry: _Entry) -> None:
        check_point = entry.check_point
        assert check_point is not None
        del self._entries[check_point.key]
        entry.is_finished = True
        key = (check_point.topic, check_point.group, check_point.queue_id)
        queue = self._queues.get(key)
        reached = -1
        while queue and queue[0].is_finished:
            reached = queue.popleft().next_offset
        if queue is not None and not queue:
            del self._queues[key]
        if reached >= 0:
            self._commit(*key, reached)
