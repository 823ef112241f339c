"""Topics: 17, 18, 21, 215, 351, 202, 305, 300 and 316. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

from oberth.broker import remarks
from oberth.broker.attributes import MESSAGE_TYPE, AttributeChangeError, parse_attributes
from oberth.broker.stats import TOPIC_PUT_NUMS
from oberth.broker.tasks import result_in_turns
from oberth.broker.topic_configs import queue_nums_max
from oberth.errors import ConfigFormatError, IllegalNameError, OptionError
from oberth.formats import names
from oberth.formats.config_json import Shown, config_in_slices, encode_config
from oberth.formats.queue_mapping import wire_json
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.admin import ENTRIES_A_TURN, TOPICS_PER_LIST_MAX, beans_in_slices
from oberth.remoting.bodies.base import MessageQueue, render_in_slices
from oberth.remoting.bodies.route import GroupList, TopicList
from oberth.remoting.bodies.stats import TopicOffset, TopicStatsTable
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.group import QueryTopicConsumeByWhoRequestHeader

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.deletions import Deletions
    from oberth.broker.registration import Registration
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.stats import BrokerStats
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore


QUEUES_A_TURN: Final = 100
"""Queues whose ends one turn of the loop looks up."""

GROUPS_A_TURN: Final = 1000
"""Groups whose retry topics of one topic one turn of the loop looks for."""


class TopicAdminProcessor:
    """Makes, changes, deletes and shows topics."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        stats: BrokerStats,
        dispatch_now: Callable[[], None],
        topics_written_once: AbstractContextManager[None],
        registration: Registration,
        deletions: Deletions,
        answer_when_on_disk: Callable[
            [Channel, RemotingCommand, RemotingCommand], RemotingCommand | None
        ],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._static_topics = static_topics
        self._offsets = offsets
        self._consumers = consumers
        self._stats = stats
        self._dispatch_now = dispatch_now
        self._topics_written_once = topics_written_once
        self._registration = registration
        self._deletions = deletions
        self._answer_when_on_disk = answer_when_on_disk

    def create(
        self, channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        """17: make topics, or change them."""
        with self._topics_written_once:
            responses = [self._create(request) for request in requests]
        return [
            self._registration.answer_when_announced(channel, request, response)
            for channel, request, response in zip(channels, requests, responses, strict=True)
        ]

    def _create(self, request: RemotingCommand) -> RemotingCommand:
        try:
            return self._create_checked(request)
        except HeaderError as error:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
            )

    def _create_checked(self, request: RemotingCommand) -> RemotingCommand:
        header = request.header(CreateTopicRequestHeader)
        topic_config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        try:
            changes = parse_attributes(header.attributes)
        except AttributeChangeError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        refusal = self._update(topic_config, changes)
        if refusal is not None:
            return create_response(request, *refusal)
        return create_response(request, ResponseCode.SUCCESS)

    def create_list(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand | None]:
        """18: make or change several topics; the first that is wrong ends it."""
        try:
            body = yield from beans_in_slices(
                TopicConfig,
                request.body_bytes(),
                "TopicConfigList",
                "topicConfigList",
                TOPICS_PER_LIST_MAX,
            )
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        for start in range(0, len(body), ENTRIES_A_TURN):
            yield
            with self._topics_written_once:
                for topic_config in body[start : start + ENTRIES_A_TURN]:
                    refusal = self._update(topic_config, topic_config.attributes)
                    if refusal is not None:
                        return create_response(request, *refusal)
        return self._registration.answer_when_announced(
            channel, request, create_response(request, ResponseCode.SUCCESS)
        )

    def _update(self, topic_config: TopicConfig, changes: dict[str, str]) -> tuple[int, str] | None:
        """Make or change a topic; code and remark if it may not be."""
        name = topic_config.topic_name or ""
        try:
            names.check_topic(name)
        except IllegalNameError as error:
            return int(ResponseCode.INVALID_PARAMETER), remarks.illegal_topic(name, error)
        if self._config.validate_system_topic_when_update_topic and self._topics.is_system_topic(
            name
        ):
            return (
                int(ResponseCode.INVALID_PARAMETER),
                f"The topic[{name}] is conflict with system topic.",
            )
        if (
            changes.get(f"+{MESSAGE_TYPE}", "").upper() == "MIXED"
            and not self._config.enable_mixed_message_type
        ):
            return int(ResponseCode.INVALID_PARAMETER), "MIXED message type is not supported."
        try:
            self._topics.update(topic_config, changes)
        except OptionError as error:
            return int(ResponseCode.INVALID_PARAMETER), str(error)
        except (AttributeChangeError, IllegalNameError) as error:
            return int(ResponseCode.SYSTEM_ERROR), str(error)
        return None

    async def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """215: forget a topic, its queues, its offsets, and its retry topics for POP."""
        topic = request.header(DeleteTopicRequestHeader).topic
        if not topic or topic.isspace():
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, "The specified topic is blank."
            )
        if self._topics.is_system_topic(topic):
            return create_response(
                request,
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{topic}] is conflict with system topic.",
            )
        if not names.is_stored_topic(topic):
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, f"The topic[{topic[:127]}] cannot exist."
            )
        gone = [topic]
        if self._config.clear_retry_topic_when_delete_topic:
            gone += await result_in_turns(self._retry_topics(topic))
        await self._deletions.delete_topics(gone)
        done = create_response(request, ResponseCode.SUCCESS)
        return self._answer_when_on_disk(channel, request, done)

    def _retry_topics(self, topic: str) -> Generator[None, None, list[str]]:
        """Where POP puts what groups could not consume of a topic, in slices."""
        found: list[str] = []
        groups = yield from self._offsets.groups_of_topic_in_slices(topic)
        for number, group in enumerate(groups, 1):
            for v2 in (False, True):
                retry = names.pop_retry_topic(topic, group, v2=v2)
                if retry in self._topics:
                    found.append(retry)
            if number % GROUPS_A_TURN == 0:
                yield
        return found

    def all_configs(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """21: every topic, or a page of them, for slaves and tools."""
        del channel
        topics = self._topics
        body = topics.to_body()
        table: Shown = body["topicConfigTable"]
        if "topicSeq" in request.fields:
            header = request.header(GetAllTopicConfigRequestHeader)
            table = table.page(header.topic_seq, header.max_topic_num)
        version = body["dataVersion"]
        mappings = self._static_topics.to_body()
        count = len(topics)
        raw = yield from config_in_slices(
            {
                "dataVersion": version,
                "mappingDataVersion": mappings["mappingDataVersion"],
                "topicConfigTable": table,
                "topicQueueMappingDetailMap": mappings["topicQueueMappingDetailMap"],
                "topicQueueMappingInfoMap": {},
            }
        )
        return create_response(
            request, ResponseCode.SUCCESS, ext_fields={"totalTopicNum": str(count)}, body=raw
        )

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """351: one topic, with its mapping if the request is a logical one."""
        del channel
        topic = request.header(GetTopicConfigRequestHeader).topic
        found = self._topics.get(topic)
        if found is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}"
            )
        shown = found.to_json()
        detail = self._static_topics.get(topic)
        if detail is not None and request.fields.get("lo", "").lower() == "true":
            shown = dict(sorted({**shown, "mappingDetail": wire_json(detail)}.items()))
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(shown, pretty=False)
        )

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """305: the broker's own topics."""
        del channel
        topics = sorted(names.SYSTEM_TOPICS | self._topics.system_topics)
        return create_response(
            request, ResponseCode.SUCCESS, body=TopicList(topic_list=topics).encode()
        )

    def stats(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """202: both ends of a topic's queues."""
        del channel
        self._dispatch_now()
        topic = request.header(GetTopicStatsInfoRequestHeader).topic
        topic_config = self._topics.get(topic)
        if topic_config is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist"
            )
        store = self._store
        table = {}
        for queue_id in range(queue_nums_max(topic_config)):
            if queue_id % QUEUES_A_TURN == QUEUES_A_TURN - 1:
                yield
            low = max(store.min_offset_in_queue(topic, queue_id), 0)
            high = max(store.max_offset_in_queue(topic, queue_id), 0)
            last_ms = (
                max(store.message_store_timestamp(topic, queue_id, high - 1), 0) if high else 0
            )
            queue = MessageQueue(
                broker_name=self._config.broker_name, queue_id=queue_id, topic=topic
            )
            table[queue] = TopicOffset(
                last_update_timestamp=last_ms, max_offset=high, min_offset=low
            )
        body = TopicStatsTable(
            offset_table=table, topic_put_tps=self._stats.tps(TOPIC_PUT_NUMS, topic)
        )
        raw = yield from render_in_slices(body)
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def consumed_by(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """300: groups that are subscribed to a topic, or have offsets in it."""
        del channel
        topic = request.header(QueryTopicConsumeByWhoRequestHeader).topic
        with_offsets = yield from self._offsets.groups_of_topic_in_slices(topic)
        groups = dict.fromkeys([*self._consumers.groups_of_topic(topic), *with_offsets])
        raw = yield from render_in_slices(GroupList(group_list=list(groups)))
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def clean_unused(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """316: delete the queues of topics that nobody configures any more."""
        del channel
        topics = self._topics
        self._store.clean_unused_topics(
            lambda topic: topic in topics or topic in topics.system_topics
        )
        return create_response(request, ResponseCode.SUCCESS)
