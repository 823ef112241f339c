"""StaticTopicStrays: messages that come due where their queue is not led any more.

A delayed, timed or half message of a static topic waits on the broker that took it, and lands there
when its time has come, though the queue may have moved on: past the end of a stretch that
consumers have left. It is sent again to the broker that leads the queue now. How far a stretch was
when it was given up, and has been looked after since, is kept as the offset of `GROUP`.

What is always true: a stray is passed over only when the leader has stored it, so one may come
twice. RocketMQ leaves them where they are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from oberth.errors import OberthError, RemotingError
from oberth.formats import properties as p
from oberth.formats import queue_mapping as qm
from oberth.formats.config_files import TopicQueueMappingDetail
from oberth.formats.message import decode_record
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP, TRANSACTION_MASK
from oberth.remoting.code import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.peer_brokers import PeerBrokers
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_STATIC_TOPIC"
PERIOD_MS: Final = 1_000

STORED: Final = frozenset(
    int(code)
    for code in (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)

# What made the message wait: with these it would do so again.
_SPENT: Final = (
    p.DELAY,
    p.TIMER_DELIVER_MS,
    p.TIMER_DELAY_SEC,
    p.TIMER_DELAY_MS,
    p.TRANSACTION_PREPARED,
)
_SPENT_FLAGS: Final = TRANSACTION_MASK | INNER_BATCH | NEED_UNWRAP


class StaticTopicStrays:
    """The strays of one broker."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        offsets: ConsumerOffsets,
        peers: PeerBrokers,
        is_slave: bool,
        now_ms: Callable[[], int],
        start_task: StartTask,
    ) -> None:
        self._store = store
        self._topics = topics
        self._static_topics = static_topics
        self._offsets = offsets
        self._peers = peers
        self._is_slave = is_slave
        self._now_ms = now_ms
        self._start_task = start_task
        self._next_ms = 0
        self._is_at_work = False

    def given_up(self, topic: str, queue_ids: set[int]) -> None:
        """Physical queues take no messages any more: what comes from now on is a stray."""
        for queue_id in queue_ids:
            end = self._store.max_offset_in_queue(topic, queue_id)
            self._offsets.commit(GROUP, topic, queue_id, end, self._now_ms(), is_own=True)

    def on_time(self, now_ms: int) -> None:
        """Look for strays."""
        if now_ms < self._next_ms or not self._static_topics or self._is_slave:
            return
        self._next_ms = now_ms + PERIOD_MS
        if not self._is_at_work and any(self._strays(topic) for topic in self._strayed_topics()):
            self._start_task(self.forward())

    def _strayed_topics(self) -> list[str]:
        return [t for t in self._offsets.topics_of_group(GROUP) if t in self._topics]

    def _strays(self, topic: str) -> dict[int, int]:
        """Physical queue → offset of the first stray in it."""
        detail = self._static_topics.get(topic)
        led = set() if detail is None else set(qm.led_queues(detail).values())
        return {
            queue_id: offset
            for queue_id, offset in self._offsets.queues(GROUP, topic).items()
            if queue_id not in led and offset < self._store.max_offset_in_queue(topic, queue_id)
        }

    async def forward(self) -> None:
        """Send strays to their leaders; those that cannot be sent now are tried again."""
        self._is_at_work = True
        try:
            for topic in self._strayed_topics():
                for queue_id, offset in self._strays(topic).items():
                    try:
                        await self._forward(topic, queue_id, offset)
                    except (OberthError, OSError, ValueError) as error:
                        _LOG.warning(
                            "messages that are left of %s in queue %d could not be moved: %s",
                            topic,
                            queue_id,
                            error,
                        )
        finally:
            self._is_at_work = False

    async def _forward(self, topic: str, queue_id: int, offset: int) -> None:
        detail = self._static_topics.get(topic)
        logical_id = _logical_queue(detail, queue_id)
        leader = await self._leader(topic, detail, logical_id)
        while True:
            result = self._store.get_message(GROUP, topic, queue_id, offset, 1)
            if not result.records:
                if result.next_begin_offset <= offset:
                    return
            else:
                message = decode_record(bytes(result.records[0]))
                properties = message.properties
                for name in _SPENT:
                    properties.pop(name, None)
                # An inner batch becomes one again there.
                is_batch = bool(message.sys_flag & INNER_BATCH)
                fields = {
                    "a": GROUP,
                    "b": topic,
                    "c": "",
                    "d": "0",
                    "e": str(logical_id),
                    "f": str(message.sys_flag & ~_SPENT_FLAGS),
                    "g": str(message.born_timestamp),
                    "h": str(message.flag),
                    "i": p.encode_properties(properties).decode("utf-8", "replace"),
                    "j": str(message.reconsume_times),
                    "k": "false",
                    "m": "true" if is_batch else "false",
                }
                response = await self._peers.ask(
                    leader, RequestCode.SEND_MESSAGE_V2, fields, logical=True, body=message.body
                )
                if response.code not in STORED:
                    raise RemotingError(f"{leader}: code {response.code}: {response.remark}")
            offset = result.next_begin_offset
            self._offsets.commit(GROUP, topic, queue_id, offset, self._now_ms(), is_own=True)

    async def _leader(
        self, topic: str, detail: TopicQueueMappingDetail | None, logical_id: int
    ) -> str:
        """The broker that takes the messages of a logical queue, or of any of the topic."""
        route = await self._peers.route(topic)
        mappings = route.topic_queue_mapping_by_broker if route is not None else None
        leaders = qm.logical_queues((mappings or {}).values())
        scope = qm.GLOBAL_SCOPE if detail is None else detail.scope
        found = leaders.get((qm.logical_broker_name(scope), logical_id))
        if found is None:
            found = next((each for each in leaders.values() if each != qm.NO_BROKER), None)
        if found is None or found == qm.NO_BROKER:
            raise RemotingError(f"nobody leads {topic} queue {logical_id}")
        return found


def _logical_queue(detail: TopicQueueMappingDetail | None, queue_id: int) -> int:
    """The logical queue that a physical one was part of; -1 if that is forgotten."""
    if detail is not None:
        for logical_id, items in detail.hosted_queues.items():
            if any((item.bname, item.queue_id) == (detail.bname, queue_id) for item in items):
                return logical_id
    return -1
