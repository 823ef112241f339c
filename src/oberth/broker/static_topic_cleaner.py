"""StaticTopicCleaner: forgets the parts of mappings that nobody needs any more.

    the leader of a queue   forgets its first stretch when that has no messages left; every five
                            minutes of the hours of ``deleteWhen``
    who led it once         forgets the queue when another leads it by now than it was told: every
                            five minutes, and soon after a mapping changed

What is always true: a stretch with messages stays, and so does whatever cannot be asked about.
RocketMQ: TopicQueueMappingCleanService.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oberth.broker.tasks import StartTask, result_in_turns
from oberth.errors import OberthError, RemotingError
from oberth.formats import queue_mapping as qm
from oberth.formats.config_files import (
    GROUP_SEPARATOR,
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
)
from oberth.formats.config_files import ConsumerOffsets as OffsetsBody
from oberth.formats.json_reader import parse_tables
from oberth.formats.names import is_system_group
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.peer_brokers import PeerBrokers
    from oberth.broker.static_topics import StaticTopics
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.store.message_store import MessageStore

_NEVER: Final = 2**63
_LOG: Final = logging.getLogger(__name__)

PERIOD_MS: Final = 5 * 60 * 1000
SOON_MS: Final = 500
"""From a change of a mapping, until every broker and name server should have heard of it."""


class StaticTopicCleaner:
    """The clean-up of one broker's mappings."""

    def __init__(
        self,
        *,
        store_config: MessageStoreConfig,
        store: MessageStore,
        static_topics: StaticTopics,
        offsets: ConsumerOffsets,
        peers: PeerBrokers,
        is_slave: bool,
        now_ms: Callable[[], int],
        dispatch_now: Callable[[], None],
        start_task: StartTask,
    ) -> None:
        self._store_config = store_config
        self._store = store
        self._static_topics = static_topics
        self._offsets = offsets
        self._peers = peers
        self._is_slave = is_slave
        self._now_ms = now_ms
        self._dispatch_now = dispatch_now
        self._start_task = start_task
        self._next_ms = now_ms() + PERIOD_MS
        self._soon_ms = _NEVER
        self._is_at_work = False

    def soon(self) -> None:
        """A mapping has changed."""
        self._soon_ms = self._now_ms() + SOON_MS

    def on_time(self, now_ms: int) -> None:
        """Start a run when it is due."""
        if now_ms < min(self._next_ms, self._soon_ms) or self._is_at_work:
            return
        is_time = False
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + PERIOD_MS
            hour = time.strftime("%H", time.localtime(now_ms / 1000))
            hours = self._store_config.delete_when.split(";")
            is_time = hour in [each.strip().zfill(2) for each in hours]
        self._soon_ms = _NEVER
        if self._static_topics and not self._is_slave:
            self._start_task(self.clean(stretches=is_time))

    async def clean(self, *, stretches: bool = True) -> None:
        """One run over all static topics; ``stretches``: over empty stretches, too."""
        self._is_at_work = True
        try:
            for detail in list(self._static_topics.table.values()):
                try:
                    if stretches:
                        await self._drop_empty_stretches(detail)
                    await self._drop_foreign_queues(detail)
                except (OberthError, OSError, ValueError) as error:
                    _LOG.warning(
                        "the mapping of static topic %s could not be cleaned up: %s",
                        detail.topic,
                        error,
                    )
        finally:
            self._is_at_work = False

    async def _drop_empty_stretches(self, detail: TopicQueueMappingDetail) -> None:
        """For queues that this broker leads."""
        topic = str(detail.topic)
        kept: dict[int, list[LogicQueueMappingItem]] = {}
        for queue_id, items in detail.hosted_queues.items():
            # The second one must have its place, or there would be no first any more.
            if len(items) < 2 or not qm.leads(detail, items) or not qm.is_decided(items[1]):
                continue
            if await self._is_empty(detail, items[0]):
                await self._carry_offsets(detail, items[0], items[1])
                kept[queue_id] = items[1:]
                _LOG.info("%s queue %d: nothing is left of %s", topic, queue_id, items[0])
        if kept and self._static_topics.get(topic) is detail:
            hosted = {**detail.hosted_queues, **kept}
            await self._static_topics.put(replace(detail, hosted_queues=hosted))

    async def _is_empty(self, detail: TopicQueueMappingDetail, item: LogicQueueMappingItem) -> bool:
        """Whether a stretch has no messages; False if its broker cannot be asked."""
        topic = str(detail.topic)
        if item.bname == detail.bname:
            self._dispatch_now()
            low = self._store.min_offset_in_queue(topic, item.queue_id)
            high = self._store.max_offset_in_queue(topic, item.queue_id)
            return max(low, 0) >= max(high, 0)
        low, high = [
            await self._ask_offset(item, topic, code)
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        ]
        return 0 <= high <= max(low, 0)

    async def _carry_offsets(
        self,
        detail: TopicQueueMappingDetail,
        gone: LogicQueueMappingItem,
        following: LogicQueueMappingItem,
    ) -> None:
        """Groups whose only offset is in a stretch that goes start with the next one.

        RocketMQ forgets them: such a group would start where new ones do, which is the end.
        """
        topic = str(detail.topic)
        key = f"{topic}{GROUP_SEPARATOR}"
        if gone.bname == detail.bname:
            groups = await result_in_turns(self._offsets.groups_of_topic_in_slices(topic))
            groups = [
                group for group in groups if self._offsets.query(group, topic, gone.queue_id) >= 0
            ]
        else:
            response = await self._peers.ask(
                str(gone.bname), RequestCode.GET_ALL_CONSUMER_OFFSET, {}
            )
            data = _succeeded(gone, response).body_bytes()

            def groups_there() -> list[str]:
                body = OffsetsBody.from_json(parse_tables(data, name="offsets"), "offsets")
                return [
                    name.removeprefix(key)
                    for name, queues in body.offset_table.items()
                    if name.startswith(key) and gone.queue_id in queues
                ]

            groups = await asyncio.to_thread(groups_there)
        for group in groups:
            if is_system_group(group):
                continue
            await self._give_offset(detail, following, group)

    async def _give_offset(
        self, detail: TopicQueueMappingDetail, item: LogicQueueMappingItem, group: str
    ) -> None:
        """The beginning of a stretch, if the group has no offset there."""
        topic = str(detail.topic)
        if item.bname == detail.bname:
            if self._offsets.query(group, topic, item.queue_id) < 0:
                self._offsets.commit(group, topic, item.queue_id, item.start_offset, self._now_ms())
            return
        fields = {"topic": topic, "queueId": str(item.queue_id), "consumerGroup": group}
        response = await self._peers.ask(
            str(item.bname),
            RequestCode.QUERY_CONSUMER_OFFSET,
            {**fields, "setZeroIfNotFound": "false"},
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            fields["commitOffset"] = str(item.start_offset)
            response = await self._peers.ask(
                str(item.bname), RequestCode.UPDATE_CONSUMER_OFFSET, fields
            )
        _succeeded(item, response)

    async def _ask_offset(self, item: LogicQueueMappingItem, topic: str, code: RequestCode) -> int:
        response = await self._peers.ask(
            str(item.bname), code, {"topic": topic, "queueId": str(item.queue_id)}
        )
        return int(_succeeded(item, response).fields["offset"])

    async def _drop_foreign_queues(self, detail: TopicQueueMappingDetail) -> None:
        """For queues that another broker leads than this one was told."""
        topic = str(detail.topic)
        believed = {
            queue_id: items[-1].bname
            for queue_id, items in detail.hosted_queues.items()
            if items and not qm.leads(detail, items)
        }
        if not believed:
            return
        route = await self._peers.route(topic)
        if route is None or not route.topic_queue_mapping_by_broker:
            return
        leaders = qm.logical_queues(route.topic_queue_mapping_by_broker.values())
        name = qm.logical_broker_name(detail.scope)
        gone: set[int] = set()
        for queue_id, bname in believed.items():
            leader = leaders.get((name, queue_id), qm.NO_BROKER)
            if leader not in (bname, qm.NO_BROKER) and await self._leads(leader, detail, queue_id):
                gone.add(queue_id)
        if gone and self._static_topics.get(topic) is detail:
            _LOG.info("%s: queues %s are led by others for good", topic, sorted(gone))
            await self._static_topics.drop_queues(topic, gone)

    async def _leads(self, leader: str, mine: TopicQueueMappingDetail, queue_id: int) -> bool:
        """Whether a broker says itself that it leads a queue, in the epoch that this one knows."""
        response = await self._peers.ask(
            leader, RequestCode.GET_TOPIC_CONFIG, {"topic": str(mine.topic)}, logical=True
        )
        if response.code != ResponseCode.SUCCESS:
            return False
        config = await asyncio.to_thread(qm.mapping_of_topic_config, response.body_bytes())
        if config is None or config.bname != leader:
            return False
        if (config.epoch, config.total_queues) != (mine.epoch, mine.total_queues):
            return False
        return qm.leads(config, config.hosted_queues.get(queue_id, []))


def _succeeded(item: LogicQueueMappingItem, response: RemotingCommand) -> RemotingCommand:
    if response.code != ResponseCode.SUCCESS:
        raise RemotingError(f"{item.bname}: code {response.code}: {response.remark}")
    return response
