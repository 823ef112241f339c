"""Static topics: 513, and what 14, 15, 29, 30, 31 and 32 mean for a logical queue.

The leader of a logical queue answers for all of it: from its own stretches at once, from others'
by asking their brokers, with ``lo=false``. A broker that does not lead says NOT_LEADER_FOR_QUEUE. A
broker that cannot be asked makes the answer an error, never a guess: consumers would start over.
RocketMQ: rewriteRequestForStaticTopic of AdminBrokerProcessor and ConsumerManageProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from oberth.broker import remarks
from oberth.broker.static_topics import NOT_LEADER, LogicalQueue
from oberth.errors import (
    ConfigFormatError,
    IllegalNameError,
    OptionError,
    RemoteProtocolError,
    RemotingError,
)
from oberth.formats import names
from oberth.formats import queue_mapping as qm
from oberth.formats.config_files import LogicQueueMappingItem, TopicQueueMappingDetail
from oberth.formats.java_numbers import java_long
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.base import checked_list
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import CreateTopicRequestHeader
from oberth.remoting.headers.base import HeaderError
from oberth.store.messages import PutMessageStatus

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.dispatching import Dispatching
    from oberth.broker.peer_brokers import PeerBrokers
    from oberth.broker.processors.consumer import ConsumerManageProcessor
    from oberth.broker.registration import Registration
    from oberth.broker.static_topic_cleaner import StaticTopicCleaner
    from oberth.broker.static_topic_strays import StaticTopicStrays
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

Handler = Callable[["Channel", RemotingCommand], RemotingCommand | None]
Answer = Callable[[LogicalQueue, dict[str, str]], Awaitable[RemotingCommand]]

_NOT_FOUND_REMARK: Final = "Not found, maybe this group consumer boot first"


class StaticTopicProcessor:
    """Answers for logical queues."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        peers: PeerBrokers,
        static_topics: StaticTopics,
        static_strays: StaticTopicStrays,
        now_ms: Callable[[], int],
        dispatching: Dispatching,
        start_task: StartTask,
        registration: Registration,
        cleaner: StaticTopicCleaner,
        consumers: ConsumerManageProcessor,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._peers = peers
        self._static_topics = static_topics
        self._static_strays = static_strays
        self._now_ms = now_ms
        self._dispatching = dispatching
        self._start_task = start_task
        self._registration = registration
        self._cleaner = cleaner
        self._consumers = consumers

    # 513

    async def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """513: make a static topic, or change its mapping on this broker."""
        header = request.header(CreateTopicRequestHeader)
        topic = header.topic
        try:
            names.check_topic(topic)
        except IllegalNameError as error:
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, remarks.illegal_topic(topic, error)
            )
        if self._config.validate_system_topic_when_update_topic and self._topics.is_system_topic(
            topic
        ):
            return create_response(
                request,
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{topic}] is conflict with system topic.",
            )
        topic_config = TopicConfig(
            topic_name=topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
        )
        try:
            detail = TopicQueueMappingDetail.decode(
                checked_list(request.body_bytes(), "mapping"), name="mapping", is_body=True
            )
            if detail.topic != topic:
                raise ConfigFormatError(f"mapping of {str(detail.topic)[:130]!r} for {topic}")
            force = bool(header.force)
            self._static_topics.checked(detail, force=force)
            self._topics.update(topic_config)
            led_before = self._led(topic)
            await self._static_topics.put(detail, force=force)
        except (ConfigFormatError, OptionError, IllegalNameError, OSError) as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        # Everybody who goes by the old mapping is told.
        self._topics.announce(topic)
        self._cleaner.soon()
        self._dispatching.wake_topic(topic)
        # The next request for the queue's end must count every message that was taken.
        await self._all_readable()
        self._static_strays.given_up(topic, led_before - self._led(topic))
        done = create_response(request, ResponseCode.SUCCESS)
        return self._registration.answer_when_announced(channel, request, done)

    def _led(self, topic: str) -> set[int]:
        """Physical queues that take messages of a topic."""
        detail = self._static_topics.get(topic)
        return set() if detail is None else set(qm.led_queues(detail).values())

    async def _all_readable(self) -> None:
        if self._dispatching.waits_for_disk:
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(status: PutMessageStatus) -> None:
                if status is not PutMessageStatus.PUT_OK:
                    _LOG.warning("a mapping changed while the log is not durable: %s", status.name)
                if not durable.done():
                    durable.set_result(None)

            self._dispatching.when_durable(self._store.appended_offset, done)
            await durable
        self._dispatching.now()

    # Logical queues

    def front(self, handler: Handler, answer: Answer) -> Handler:
        """``handler``, but requests for logical queues go to ``answer``."""

        def serve(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            if not self._static_topics:
                return handler(channel, request)
            fields = request.fields
            queue = self._static_topics.queue(
                fields.get("topic", ""), java_long(fields.get("queueId"), -1), fields
            )
            if queue is None:
                return handler(channel, request)
            if not queue.is_led:
                return create_response(request, NOT_LEADER, queue.not_leader)
            self._start_task(self._serve(channel, request, queue, answer))
            return None

        return serve

    async def _serve(
        self, channel: Channel, request: RemotingCommand, queue: LogicalQueue, answer: Answer
    ) -> None:
        try:
            response = await answer(queue, dict(request.fields))
        except (RemotingError, RemoteProtocolError, ValueError) as error:
            _LOG.warning(
                "%s queue %d could not be asked for at the broker that leads it: %s",
                queue.topic,
                queue.queue_id,
                error,
            )
            response = _failure(str(error))
        if not request.is_oneway:
            channel.reply(request, response)

    async def _ask(
        self, item: LogicQueueMappingItem, code: RequestCode, fields: dict[str, str]
    ) -> RemotingCommand:
        """What another broker says about its stretch."""
        return await self._peers.ask(
            str(item.bname), code, {**fields, "queueId": str(item.queue_id)}
        )

    async def _offset_of(
        self, item: LogicQueueMappingItem, code: RequestCode, fields: dict[str, str]
    ) -> int:
        """An offset, or a time, that another broker says about its stretch."""
        response = await self._ask(item, code, fields)
        if response.code != ResponseCode.SUCCESS:
            raise RemotingError(
                f"{item.bname} answered {code.name} with {response.code}: {response.remark}"
            )
        name = "timestamp" if code is RequestCode.GET_EARLIEST_MSG_STORETIME else "offset"
        return java_long(response.fields.get(name), -1)

    async def max_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """30: the end of the last stretch that has its place."""
        item = _present(qm.last_item(queue.items))
        return _offset(qm.to_logical(item, await self._end(queue, item, fields)))

    async def _end(
        self, queue: LogicalQueue, item: LogicQueueMappingItem, fields: dict[str, str]
    ) -> int:
        """The physical end of a stretch; see ConsumerManageProcessor.max_offset for committed."""
        if queue.is_here(item):
            self._dispatching.now()
            end = self._store.max_offset_in_queue(queue.topic, item.queue_id)
            if fields.get("committed", "").lower() in ("", "true"):
                return end
            return max(end, self._store.commit_log.queue_offset(queue.topic, item.queue_id))
        return await self._offset_of(item, RequestCode.GET_MAX_OFFSET, fields)

    async def min_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """31: the beginning of the first stretch."""
        item = _present(qm.first_item(queue.items))
        if queue.is_here(item):
            self._dispatching.now()
            low = self._store.min_offset_in_queue(queue.topic, item.queue_id)
        else:
            low = await self._offset_of(item, RequestCode.GET_MIN_OFFSET, fields)
        return _offset(qm.to_logical_within(item, low))

    async def earliest_store_time(
        self, queue: LogicalQueue, fields: dict[str, str]
    ) -> RemotingCommand:
        """32: when the first message of the first stretch was stored."""
        item = _present(qm.first_item(queue.items))
        if queue.is_here(item):
            self._dispatching.now()
            time_ms = self._store.earliest_message_time(queue.topic, item.queue_id)
        else:
            time_ms = await self._offset_of(item, RequestCode.GET_EARLIEST_MSG_STORETIME, fields)
        return _success({"timestamp": str(time_ms)})

    async def search_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """29: the offset of a time, in the first stretch that goes on beyond it."""
        last = _present(qm.last_item(queue.items))
        for item in queue.items:
            if not qm.is_decided(item):
                continue
            if queue.is_here(item):
                self._dispatching.now()
                is_upper = fields.get("boundaryType", "").upper() == "UPPER"
                found = self._store.offset_in_queue_by_time(
                    queue.topic,
                    item.queue_id,
                    _timestamp(fields),
                    "UPPER" if is_upper else "LOWER",
                )
            else:
                found = await self._offset_of(item, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
            found = max(found, 0)
            if item is last or found < await self._end(queue, item, fields):
                return _offset(qm.to_logical(item, found))
        raise AssertionError("the last stretch is among the stretches")

    # Consumers' ways

    async def query_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """14: where a group goes on: what the newest stretch knows, else the one before it."""
        group = fields.get("consumerGroup", "")
        for item in reversed(queue.items):
            if not qm.is_decided(item):
                continue
            if queue.is_here(item):
                found = self._offsets.query(group, queue.topic, item.queue_id)
            else:
                response = await self._ask(
                    item,
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    {**fields, "setZeroIfNotFound": "false"},
                )
                if response.code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                if response.code != ResponseCode.SUCCESS:
                    raise RemotingError(f"{item.bname}: {response.code}: {response.remark}")
                found = java_long(response.fields.get("offset"), -1)
            if found >= 0:
                return _offset(qm.to_logical(item, found))
        if (
            len(queue.items) == 1
            and queue.items[0].logic_offset == 0
            and fields.get("setZeroIfNotFound", "").lower() != "false"
            and self._consumers.starts_at_zero(queue.topic, queue.items[0].queue_id)
        ):
            return _offset(0)  # never moved: as any queue
        return RemotingCommand(
            code=ResponseCode.QUERY_NOT_FOUND.value, remark=_NOT_FOUND_REMARK, ext_fields={}
        )

    async def update_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """15: how far a group has come; kept where the message is."""
        group, offset = fields.get("consumerGroup", ""), java_long(fields.get("commitOffset"), -1)
        item = _present(qm.find_item(queue.items, offset))
        physical = max(qm.to_physical(item, offset), 0)
        if not queue.is_here(item):
            return await self._ask(
                item, RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(physical)}
            )
        if self._groups.find(group) is None:
            return RemotingCommand(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST.value,
                remark=f"Group {group} not exist!",
                ext_fields={},
            )
        if self._offsets.has_reset(group, queue.topic, item.queue_id):
            response = _success({})
            response.remark = "Offset has been previously reset"
            return response
        if not self._offsets.commit(group, queue.topic, item.queue_id, physical, self._now_ms()):
            return RemotingCommand(
                code=ResponseCode.SYSTEM_ERROR.value, remark=remarks.OFFSETS_FULL, ext_fields={}
            )
        return _success({})


def _present(item: LogicQueueMappingItem | None) -> LogicQueueMappingItem:
    if item is None:
        raise ValueError("no stretch of the queue has its place yet")
    return item


def _success(fields: dict[str, str]) -> RemotingCommand:
    return RemotingCommand(code=ResponseCode.SUCCESS.value, ext_fields=fields)


def _offset(offset: int) -> RemotingCommand:
    return _success({"offset": str(offset)})


def _timestamp(fields: dict[str, str]) -> int:
    text = fields.get("timestamp")
    timestamp_ms = java_long(text, None)
    if timestamp_ms is None:
        raise HeaderError(f"timestamp is {text!r:.60}, allowed an integer of 64 bits")
    return timestamp_ms


def _failure(remark: str) -> RemotingCommand:
    return RemotingCommand(code=ResponseCode.SYSTEM_ERROR.value, remark=remark)


def _integer(text: str | None) -> int:
    try:
        return int(text) if text else -1
    except ValueError:
        return -1
