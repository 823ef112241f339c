"""Deletions: what it means for every table that a topic or a group is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oberth.broker.tasks import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.lite.lite_service import LiteService
    from oberth.broker.pop.pop_service import PopService
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.stats import BrokerStats
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.store.message_store import MessageStore


LITE_TOPICS_A_TURN: Final = 50
"""Lite topics that one turn of the loop deletes, each with its file."""


class Deletions:
    """Deletes topics and groups of one broker.

    Args:
        wake_topic: answers the pulls that wait for a topic.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        stats: BrokerStats,
        pop: PopService,
        lite: LiteService,
        wake_topic: Callable[[str], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._static_topics = static_topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._stats = stats
        self._pop = pop
        self._lite = lite
        self._wake_topic = wake_topic

    async def delete_topics(self, topics: Iterable[str]) -> None:
        """Forget topics: configuration, queues, offsets, statistics; held pulls are answered.

        In turns of the loop what may be very many; a thread waits for the disk.
        """
        gone = dict.fromkeys(topics)
        parents = [topic for topic in gone if self._lite.is_parent(topic)]
        deleted = 0
        for parent in parents:
            deleted += await self._delete_lite_topics(parent)
        for number, topic in enumerate(gone):
            if number:
                await asyncio.sleep(0)
            self._static_topics.delete(topic)
            self._topics.delete(topic)
            self._groups.forget_topic(topic)
            self._pop.on_topic_deleted(topic)
            self._stats.topic_deleted(topic)
            deleted += self._store.remove_topics([topic])
            self._wake_topic(topic)
        await in_turns(self._offsets.delete_in_slices(topics=gone))
        for parent in parents:
            deleted += await self._delete_lite_topics(parent)  # what came meanwhile
        if deleted:
            await asyncio.to_thread(self._store.settle_removal)

    async def _delete_lite_topics(self, parent: str) -> int:
        queues, deleted = self._lite.queues(parent), 0
        for first in range(0, len(queues), LITE_TOPICS_A_TURN):
            deleted += self._lite.delete_lite_topics(
                parent, queues[first : first + LITE_TOPICS_A_TURN]
            )
            await asyncio.sleep(0)
        return deleted

    async def delete_group(self, group: str, *, clean_offset: bool) -> None:
        """Forget a group, and with ``clean_offset`` how far it has come, in turns of the loop."""
        # Of lite topics nobody else knows that this group was ever there.
        clean_offset = clean_offset or self._lite.parent_of(group) is not None
        self._groups.delete(group)
        self._consumers.remove_group(group)
        self._stats.group_deleted(group)
        if clean_offset:
            await in_turns(self._offsets.delete_in_slices(groups=(group,)))
