"""SenderBrake: senders go no faster than the connected consumers of their topic can follow.

A consumer that has fallen behind what the machine keeps in memory reads from the disk, slower than
before, and falls behind further: a broker that answers sends first then builds a backlog that never
ends. So the connections that send to such a topic are read after a rest, which grows while the
backlog does. Apache's broker has the same effect without a word of it: its senders and consumers
compete for the same threads and locks.

Nobody is slowed by a consumer that does not read at all, or that is not connected. A state machine:
the time goes in, and `rests_s` comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.store.message_store import MessageStore

LOOK_MS: Final = 1000
"""Between two looks at the groups."""

QUEUES_PER_LOOK_MAX: Final = 1000
"""Queues of groups that one look judges, some 3 us each; the next look goes on after them."""

REST_MIN_S: Final = 0.001
REST_MAX_S: Final = 0.1
"""Bounds of a rest."""

_EASED: Final = 0.9
"""Part of the limit below which rests become shorter."""

_Key = tuple[str, str]  # group, topic


class SenderBrake:
    """Decides which topics' senders rest. All methods belong to the loop's thread.

    Args:
        limit_bytes: how far behind the log's end a group may be; 0: any distance. Asked each time.

    Attributes:
        rests_s: by topic, seconds for which a connection that sent to it is not read.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        limit_bytes: Callable[[], int],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._consumers = consumers
        self._limit_bytes = limit_bytes
        self.rests_s: dict[str, float] = {}
        self._look_at_ms = 0
        self._judged = 0
        self._walk: Iterator[int] = iter(())
        # By group and topic: the sum of its offsets and how far behind it was, at the last look.
        self._seen: dict[_Key, tuple[int, int]] = {}
        self._now_seen: dict[_Key, tuple[int, int]] = {}
        self._behind: dict[str, bool] = {}  # of this walk: topic -> whether its backlog grows

    def on_time(self, now_ms: int) -> None:
        """Judge some groups, about every LOOK_MS."""
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_MS
        limit = self._limit_bytes()
        if limit <= 0:
            self.rests_s.clear()
            return
        for judged in self._walk:
            if judged >= QUEUES_PER_LOOK_MAX:
                self._judged = 0
                return
        self._conclude()
        self._walk = self._judge(limit)

    def _conclude(self) -> None:
        """All groups were judged: rests of their topics become longer or shorter."""
        rests = self.rests_s
        for topic, grows in self._behind.items():
            rest_s = rests.get(topic, 0.0)
            if grows or not rest_s:
                rests[topic] = min(max(rest_s * 2, REST_MIN_S), REST_MAX_S)
        for topic in [topic for topic in rests if topic not in self._behind]:
            rests[topic] /= 2
            if rests[topic] < REST_MIN_S:
                del rests[topic]
        self._seen, self._now_seen, self._behind = self._now_seen, {}, {}

    def _judge(self, limit: int) -> Iterator[int]:
        """Looks at every queue of every group; gives how many this look has judged."""
        self._judged = 0
        store, offsets = self._store, self._offsets
        for group in self._consumers:
            for topic in list(group.subscriptions):
                total = behind = 0
                end = store.max_phy_offset
                for queue_id in store.queue_ids(topic):
                    self._judged += 1
                    yield self._judged
                    offset = max(
                        offsets.query(group.name, topic, queue_id),
                        offsets.query_pull(group.name, topic, queue_id),
                    )
                    if offset < 0:
                        continue  # it has not begun
                    total += offset
                    place = store.commit_log_offset_in_queue(topic, queue_id, offset)
                    if place and end - place > behind:
                        behind = end - place
                key = (group.name, topic)
                last_total, last_behind = self._seen.get(key, (total, behind))
                self._now_seen[key] = (total, behind)
                slowed = topic in self.rests_s
                if total > last_total and behind > (limit * _EASED if slowed else limit):
                    grows = behind > last_behind
                    self._behind[topic] = self._behind.get(topic, False) or grows
