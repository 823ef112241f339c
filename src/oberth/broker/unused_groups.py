"""UnusedGroups: groups that clients have named and never used are forgotten.

With autoCreateSubscriptionGroup a heartbeat or a pull makes any group that it names, and a
heartbeat its retry topic. RocketMQ keeps them for ever. Here a group is kept if it has committed an
offset, if a message waits in its retry or dead-letter topic, or if an administrator made or changed
it. Any other group that had no member for UNUSED_MS is deleted with its retry topic. A client that
names it again gets an equal group.

The file of groups does not say who made a group. One read from there counts as made by a client if
it has a client's defaults and a retry topic, which only heartbeats make.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oberth.broker.subscription_groups import LOADED
from oberth.formats import names

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.store.message_store import MessageStore

UNUSED_MS: Final = 3_600_000
PERIOD_MS: Final = 60_000
LOOKED_AT: Final = 200
"""Groups, or offsets, that are looked at in one turn of the loop."""


class UnusedGroups:
    """Looks for them once a minute, some of them a turn of the loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        is_slave: bool,
        now_ms: Callable[[], int],
        start_task: StartTask,
        topics_written_soon: AbstractContextManager[None],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._is_slave = is_slave
        self._now_ms = now_ms
        self._start_task = start_task
        self._topics_written_soon = topics_written_soon
        self._next_ms = 0
        self.is_at_work = False

    def on_time(self, now_ms: int) -> None:
        """Look for them."""
        if now_ms < self._next_ms or self._is_slave or self.is_at_work:
            return
        self._next_ms = now_ms + PERIOD_MS
        # Without automatic creation a group that is forgotten here would not come back when it is
        # used again.
        if self._config.auto_create_subscription_group and self._groups.found_ms:
            self.is_at_work = True
            self._start_task(self._look())

    async def _look(self) -> None:
        try:
            with_offsets: set[str] = set()
            for number, (_, group, _) in enumerate(self._offsets):
                with_offsets.add(group)
                if number % LOOKED_AT == LOOKED_AT - 1:
                    await asyncio.sleep(0)
            for number, group in enumerate(list(self._groups.found_ms)):
                if number % LOOKED_AT == LOOKED_AT - 1:
                    await asyncio.sleep(0)
                if group in self._groups.found_ms:
                    self._judge(group, with_offsets)
        finally:
            self.is_at_work = False

    def _judge(self, group: str, with_offsets: set[str]) -> None:
        groups, now_ms = self._groups, self._now_ms()
        seen_ms = groups.found_ms[group]
        retry_topic, dlq_topic = names.retry_topic(group), names.dlq_topic(group)
        if (
            group in with_offsets
            or self._has_messages(retry_topic)
            or self._has_messages(dlq_topic)
            or (seen_ms == LOADED and retry_topic not in self._topics)
        ):
            del groups.found_ms[group]
        elif seen_ms == LOADED or self._consumers.get(group) is not None:
            groups.found_ms[group] = now_ms
        elif now_ms - seen_ms >= UNUSED_MS:
            groups.forget_unused(group)
            with self._topics_written_soon:
                self._topics.delete(retry_topic)

    def _has_messages(self, topic: str) -> bool:
        topic_config = self._topics.get(topic)
        if topic_config is None:
            return False
        count = max(topic_config.read_queue_nums, topic_config.write_queue_nums, 1)
        log = self._store.commit_log
        return any(log.queue_offset(topic, queue_id) for queue_id in range(count))
