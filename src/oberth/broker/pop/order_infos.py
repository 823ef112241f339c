"""OrderInfos: what ordered POP consumption of each queue waits for; consumerOrderInfo.json.

A queue that was popped in order is blocked until everything handed out is acknowledged, or until
the invisible time of what is not has ended; only the same attempt (a request sent again) gets the
same messages meanwhile. What is always true: an offset is committed only when everything before it
is acknowledged, and an acknowledgement of an earlier pop has no effect.

A state machine: pops, acks and the time go in, queues come out whose messages are visible again.
Each queue that is blocked is noted once for that, from the pop on, whoever waits for it.
RocketMQ: ConsumerOrderInfoManager, ConsumerOrderInfoLockManager.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from oberth.broker.consumer_offsets import keys_of_topic
from oberth.broker.pop.check_point import encode_offset_list
from oberth.broker.pop.unlocks import Queue, Unlocks
from oberth.formats.config_files import ConsumerOrderInfos, OrderInfo, offset_key, split_offset_key
from oberth.remoting.bodies.base import result_at_once

NO_EFFECT: Final = -2
UNKNOWN_OFFSET: Final = -1
STAND_INS_MS: Final = 259_200_000
"""How long acknowledgements of a deleted topic's messages may come: the timer's longest delay."""
STAND_INS_MAX: Final = 1_000
"""Pairs of a deleted topic and a group that are kept so long."""
COPIED_AT_A_TIME: Final = 500
"""Queues that are copied in one turn of the loop: a millisecond."""


def offsets_of(info: OrderInfo) -> list[int]:
    """The offsets that were handed out."""
    stored = info.offset_list or ()
    return [stored[0], *(stored[0] + each for each in stored[1:])] if stored else []


def _first_unacked(info: OrderInfo) -> int:
    offsets = offsets_of(info)
    for number, offset in enumerate(offsets):
        if not info.commit_offset_bit >> number & 1:
            return offset
    return offsets[-1] + 1


class OrderInfos:
    """All queues that are consumed in order by POP."""

    def __init__(self) -> None:
        self._table: dict[str, dict[int, OrderInfo]] = {}
        self._unlocks = Unlocks()
        self.is_dirty = False

    def __len__(self) -> int:
        """Pairs of a topic and a group."""
        return len(self._table)

    def get(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        """What a queue waits for, if it was ever popped in order."""
        return self._table.get(offset_key(topic, group), {}).get(queue_id)

    def is_blocked(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int
    ) -> bool:
        """Whether a pop must not get messages of a queue now."""
        info = self.get(topic, group, queue_id)
        if info is None or not info.offset_list:
            return False
        if attempt_id and info.attempt_id == attempt_id:
            return False
        visible_ms = info.pop_time + (info.invisible_time or 0)
        next_visible = info.offset_next_visible_time or {}
        return any(
            not info.commit_offset_bit >> number & 1
            and now_ms < next_visible.get(offset, visible_ms)
            for number, offset in enumerate(offsets_of(info))
        )

    def visible_at(self, topic: str, group: str, queue_id: int) -> int | None:
        """When a queue that is blocked is so no more, ms."""
        info = self.get(topic, group, queue_id)
        if info is None or not info.offset_list:
            return None
        next_visible = info.offset_next_visible_time or {}
        visible_ms = info.pop_time + (info.invisible_time or 0)
        return max(
            (
                next_visible.get(offset, visible_ms)
                for number, offset in enumerate(offsets_of(info))
                if not info.commit_offset_bit >> number & 1
            ),
            default=None,
        )

    def has_unlocked(self, now_ms: int) -> bool:
        """Whether `unlocked` has anything to do."""
        return self._unlocks.has_due(now_ms)

    def unlocked(self, now_ms: int, count_max: int) -> list[Queue]:
        """Queues that were blocked and are so no more, because an invisible time has ended.

        Nothing arrives when it ends, so each comes out here, once. So many are looked at: fewer may
        come out than there are while `has_unlocked` is true.
        """
        found = []
        for queue in self._unlocks.due(now_ms, count_max):
            visible_ms = self.visible_at(*queue)
            if visible_ms is None:
                continue
            if visible_ms <= now_ms:
                found.append(queue)
            else:
                self._unlocks.note(queue, visible_ms)
        return found

    def _note_unlock(self, topic: str, group: str, queue_id: int) -> None:
        visible_ms = self.visible_at(topic, group, queue_id)
        if visible_ms is not None:
            self._unlocks.note((topic, group, queue_id), visible_ms)

    def update(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        *,
        attempt_id: str | None,
        pop_time: int,
        invisible_time: int,
        retry_flag: str,
    ) -> list[str]:
        """Messages were handed out; the entries of ``orderCountInfo`` for them."""
        queues = self._table.setdefault(offset_key(topic, group), {})
        old = queues.get(queue_id)
        counts: dict[int, int] = {}
        if old is not None:
            old_counts = old.offset_consumed_count or {}
            if attempt_id and attempt_id == old.attempt_id:
                counts = {each: old_counts[each] for each in offsets if each in old_counts}
            else:
                again = set(offsets_of(old))
                counts = {each: old_counts.get(each, 0) + 1 for each in offsets if each in again}
        queues[queue_id] = OrderInfo(
            attempt_id=attempt_id,
            commit_offset_bit=0,
            invisible_time=invisible_time,
            last_consume_timestamp=pop_time,
            offset_list=encode_offset_list(offsets),
            offset_consumed_count=counts or None,
            pop_time=pop_time,
        )
        self.is_dirty = True
        if offsets:
            self._unlocks.note((topic, group, queue_id), pop_time + invisible_time)
        entries = [
            f"{retry_flag} qo{queue_id}%{offset} {counts.get(offset, 0)}"
            for offset in offsets
            if counts
        ]
        lowest = min(counts.values()) if len(counts) == len(offsets) else 0
        return [*entries, f"{retry_flag} {queue_id} {lowest}"]

    def commit_and_next(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, committed: int
    ) -> int:
        """An ack: the offset to be committed, or NO_EFFECT, or UNKNOWN_OFFSET.

        What was handed out may be unknown: a crash forgot it, or the group's offset was reset.
        Then only the message that comes next is known to have nothing before it that is not
        acknowledged. RocketMQ takes any, and what lies before is never handed out again.
        """
        info = self.get(topic, group, queue_id)
        if info is None:
            return offset + 1 if offset == committed else NO_EFFECT
        if info.pop_time != pop_time:
            return NO_EFFECT
        offsets = offsets_of(info)
        if offset not in offsets:
            return UNKNOWN_OFFSET
        info.commit_offset_bit |= 1 << offsets.index(offset)
        self.is_dirty = True
        following = _first_unacked(info)
        if following > offsets[-1]:
            self._unlocks.forget((topic, group, queue_id))
        elif info.offset_next_visible_time:
            self._note_unlock(topic, group, queue_id)  # what is left may be visible earlier
        return following

    def set_next_visible(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_ms: int
    ) -> bool:
        """A message is to stay invisible until another time; False if that has no effect."""
        info = self.get(topic, group, queue_id)
        if info is None or info.pop_time != pop_time or offset not in offsets_of(info):
            return False
        if info.offset_next_visible_time is None:
            info.offset_next_visible_time = {}
        info.offset_next_visible_time[offset] = visible_ms
        self.is_dirty = True
        self._note_unlock(topic, group, queue_id)
        return True

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """A queue's offset was reset: it waits for nothing."""
        queues = self._table.get(offset_key(topic, group))
        if queues is not None and queues.pop(queue_id, None) is not None:
            self._unlocks.forget((topic, group, queue_id))
            self.is_dirty = True

    def forget(self, topic: str, group: str) -> None:
        """A topic is deleted: nothing of it waits."""
        queues = self._table.pop(offset_key(topic, group), None)
        if queues is not None:
            self._forget_unlocks(topic, group, queues)
            self.is_dirty = True

    def forget_topic(self, topic: str, now_ms: int) -> None:
        """A topic is deleted: acknowledgements of what was handed out have no effect any more.

        What is left of a queue fits no pop, so that they have none in another topic of that name.
        """
        for key in keys_of_topic(self._table, topic):
            queues = self._table[key]
            self._forget_unlocks(topic, key[len(offset_key(topic, "")) :], queues)
            self._table[key] = {
                queue_id: OrderInfo(last_consume_timestamp=now_ms) for queue_id in queues
            }
            self.is_dirty = True

    def _forget_unlocks(self, topic: str, group: str, queue_ids: Iterable[int]) -> None:
        for queue_id in queue_ids:
            self._unlocks.forget((topic, group, queue_id))

    def keep(self, known: Callable[[str, str], bool], now_ms: int) -> None:
        """Forget queues of topics and groups for which ``known(topic, group)`` is false.

        What is left of deleted topics stays for `STAND_INS_MS`, of the last ones for which there
        is room: such a topic may be made again meanwhile.
        """
        stand_ins = []
        for key, queues in list(self._table.items()):
            pair = split_offset_key(key)
            if queues and pair is not None:
                if known(*pair):
                    continue
                deleted_ms = _deleted_at(queues)
                if deleted_ms > now_ms - STAND_INS_MS:
                    stand_ins.append((deleted_ms, key))
                    continue
                self._forget_unlocks(*pair, queues)
            del self._table[key]
            self.is_dirty = True
        for _, key in sorted(stand_ins)[:-STAND_INS_MAX]:
            del self._table[key]
            self.is_dirty = True

    # consumerOrderInfo.json

    def read(self, document: Any) -> None:
        """Take over a file."""
        self._table = ConsumerOrderInfos.from_json(document, "consumerOrderInfo.json").table
        self._unlocks = Unlocks()
        for key, queues in self._table.items():
            pair = split_offset_key(key)
            if pair is not None:
                for queue_id in queues:
                    self._note_unlock(*pair, queue_id)

    def snapshot(self) -> Generator[None, None, Callable[[], bytes]]:
        """What makes the file's bytes, in any thread; yields about each millisecond."""
        self.is_dirty = False
        table: dict[str, dict[int, OrderInfo]] = {}
        copied = 0
        for key, queues in list(self._table.items()):
            table[key] = {queue_id: _copy(info) for queue_id, info in queues.items()}
            if (copied := copied + len(queues)) >= COPIED_AT_A_TIME:
                copied = 0
                yield
        count = sum(map(len, table.values()))
        return ConsumerOrderInfos(order_info_count=count, table=table).encode

    def encode(self) -> bytes:
        """The file's bytes, at once."""
        return result_at_once(self.snapshot())()


def _deleted_at(queues: Mapping[int, OrderInfo]) -> int:
    """When the topic of queues that only stand in for it was deleted, ms; 0 if others are there."""
    if any(info.offset_list for info in queues.values()):
        return 0
    return max(info.last_consume_timestamp for info in queues.values())


def _copy(info: OrderInfo) -> OrderInfo:
    """What an acknowledgement of a message does not change."""
    visible = info.offset_next_visible_time
    return replace(info, offset_next_visible_time=None if visible is None else dict(visible))
