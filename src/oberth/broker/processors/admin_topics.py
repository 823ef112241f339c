"""Topics: 17, 18, 21, 215, 351, 202, 305, 300 and 316. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oberth.broker import remarks
from oberth.broker.attributes import MESSAGE_TYPE, AttributeChangeError, parse_attributes
from oberth.broker.stats import TOPIC_PUT_NUMS
from oberth.broker.topic_configs import queue_nums_max
from oberth.errors import ConfigFormatError, IllegalNameError, OptionError
from oberth.formats import names
from oberth.formats.config_json import encode_config
from oberth.formats.queue_mapping import wire_json
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.admin import TopicConfigList
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.route import GroupList, TopicList
from oberth.remoting.bodies.stats import TopicOffset, TopicStatsTable
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.group import QueryTopicConsumeByWhoRequestHeader

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel


class TopicAdminProcessor:
    """Makes, changes, deletes and shows topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def create(
        self, channel: Channel, requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        """17: make topics, or change them."""
        broker = self._broker
        with broker.topics_written_once:
            responses = [self._create(request) for request in requests]
        return [
            broker.answer_when_announced(channel, request, response)
            for request, response in zip(requests, responses, strict=True)
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

    def create_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """18: make or change several topics; the first that is wrong ends it."""
        try:
            body = TopicConfigList.decode(request.body_bytes(), name="TopicConfigList")
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        with self._broker.topics_written_once:
            for topic_config in body.topic_config_list:
                refusal = self._update(topic_config, topic_config.attributes)
                if refusal is not None:
                    return create_response(request, *refusal)
        return self._broker.answer_when_announced(
            channel, request, create_response(request, ResponseCode.SUCCESS)
        )

    def _update(self, topic_config: TopicConfig, changes: dict[str, str]) -> tuple[int, str] | None:
        """Make or change a topic; code and remark if it may not be."""
        broker = self._broker
        name = topic_config.topic_name or ""
        try:
            names.check_topic(name)
        except IllegalNameError as error:
            return int(ResponseCode.INVALID_PARAMETER), remarks.illegal_topic(name, error)
        if broker.config.validate_system_topic_when_update_topic and broker.topics.is_system_topic(
            name
        ):
            return (
                int(ResponseCode.INVALID_PARAMETER),
                f"The topic[{name}] is conflict with system topic.",
            )
        if (
            changes.get(f"+{MESSAGE_TYPE}", "").upper() == "MIXED"
            and not broker.config.enable_mixed_message_type
        ):
            return int(ResponseCode.INVALID_PARAMETER), "MIXED message type is not supported."
        try:
            broker.topics.update(topic_config, changes)
        except OptionError as error:
            return int(ResponseCode.INVALID_PARAMETER), str(error)
        except (AttributeChangeError, IllegalNameError) as error:
            return int(ResponseCode.SYSTEM_ERROR), str(error)
        return None

    def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """215: forget a topic, its queues, its offsets, and its retry topics for POP."""
        del channel
        topic = request.header(DeleteTopicRequestHeader).topic
        broker = self._broker
        if not topic or topic.isspace():
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, "The specified topic is blank."
            )
        if broker.topics.is_system_topic(topic):
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
        if broker.config.clear_retry_topic_when_delete_topic:
            for group in broker.offsets.groups_of_topic(topic):
                gone += [
                    retry
                    for v2 in (False, True)
                    if (retry := names.pop_retry_topic(topic, group, v2=v2)) in broker.topics
                ]
        broker.delete_topics(gone)
        return create_response(request, ResponseCode.SUCCESS)

    def all_configs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """21: every topic, for slaves and tools."""
        del channel
        topics = self._broker.topics
        body = topics.to_body()
        version = body["dataVersion"]
        mappings = self._broker.static_topics.to_body()
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={"totalTopicNum": str(len(topics))},
            body=encode_config(
                {
                    "dataVersion": version,
                    "mappingDataVersion": mappings["mappingDataVersion"],
                    "topicConfigTable": body["topicConfigTable"],
                    "topicQueueMappingDetailMap": mappings["topicQueueMappingDetailMap"],
                    "topicQueueMappingInfoMap": {},
                },
                pretty=False,
            ),
        )

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """351: one topic, with its mapping if the request is a logical one."""
        del channel
        topic = request.header(GetTopicConfigRequestHeader).topic
        found = self._broker.topics.get(topic)
        if found is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}"
            )
        shown = found.to_json()
        detail = self._broker.static_topics.get(topic)
        if detail is not None and request.fields.get("lo", "").lower() == "true":
            shown = dict(sorted({**shown, "mappingDetail": wire_json(detail)}.items()))
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(shown, pretty=False)
        )

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """305: the broker's own topics."""
        del channel
        topics = sorted(names.SYSTEM_TOPICS | self._broker.topics.system_topics)
        return create_response(
            request, ResponseCode.SUCCESS, body=TopicList(topic_list=topics).encode()
        )

    def stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """202: both ends of a topic's queues."""
        del channel
        self._broker.dispatch_now()
        topic = request.header(GetTopicStatsInfoRequestHeader).topic
        broker = self._broker
        topic_config = broker.topics.get(topic)
        if topic_config is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist"
            )
        store = broker.store
        table = {}
        for queue_id in range(queue_nums_max(topic_config)):
            low = max(store.min_offset_in_queue(topic, queue_id), 0)
            high = max(store.max_offset_in_queue(topic, queue_id), 0)
            last_ms = (
                max(store.message_store_timestamp(topic, queue_id, high - 1), 0) if high else 0
            )
            queue = MessageQueue(
                broker_name=broker.config.broker_name, queue_id=queue_id, topic=topic
            )
            table[queue] = TopicOffset(
                last_update_timestamp=last_ms, max_offset=high, min_offset=low
            )
        body = TopicStatsTable(
            offset_table=table, topic_put_tps=broker.stats.tps(TOPIC_PUT_NUMS, topic)
        )
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    def consumed_by(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """300: groups that are subscribed to a topic, or have offsets in it."""
        del channel
        topic = request.header(QueryTopicConsumeByWhoRequestHeader).topic
        broker = self._broker
        groups = dict.fromkeys(
            [*broker.consumers.groups_of_topic(topic), *broker.offsets.groups_of_topic(topic)]
        )
        return create_response(
            request, ResponseCode.SUCCESS, body=GroupList(group_list=list(groups)).encode()
        )

    def clean_unused(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """316: delete the queues of topics that nobody configures any more."""
        del channel
        broker = self._broker
        keep = {str(each.topic_name) for each in broker.topics}
        broker.store.clean_unused_topics(keep | broker.topics.system_topics)
        return create_response(request, ResponseCode.SUCCESS)
