"""Static topics: 513, and what 14, 15, 29, 30, 31 and 32 mean for a logical queue.

The leader of a logical queue answers for all of it: from its own stretches at once, from others'
by asking their brokers, with ``lo=false``. Whoever does not lead says NOT_LEADER_FOR_QUEUE. A
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
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand, create_response
from oberth.remoting.headers.admin import CreateTopicRequestHeader
from oberth.store.messages import PutMessageStatus

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.broker.processors.consumer import ConsumerManageProcessor
    from oberth.remoting.aio.channel import Channel

_LOG: Final = logging.getLogger("oberth.broker")

Handler = Callable[["Channel", RemotingCommand], RemotingCommand | None]
Answer = Callable[[LogicalQueue, dict[str, str]], Awaitable[RemotingCommand]]

_NOT_FOUND_REMARK: Final = "Not found, maybe this group consumer boot first"


class StaticTopicProcessor:
    """Answers for logical queues."""

    def __init__(self, broker: Broker, consumers: ConsumerManageProcessor) -> None:
        self._broker = broker
        self._consumers = consumers
        self._topics = broker.static_topics

    # ---------------------------------------------------------------------------------------- 513

    async def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """513: make a static topic, or change its mapping on this broker."""
        del channel
        broker = self._broker
        header = request.header(CreateTopicRequestHeader)
        topic = header.topic
        try:
            names.check_topic(topic)
        except IllegalNameError as error:
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, remarks.illegal_topic(topic, error)
            )
        if broker.config.validate_system_topic_when_update_topic and broker.topics.is_system_topic(
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
            detail = TopicQueueMappingDetail.decode(request.body_bytes(), name="mapping")
            if detail.topic != topic:
                raise ConfigFormatError(f"mapping of {str(detail.topic)[:130]!r} for {topic}")
            force = bool(header.force)
            self._topics.checked(detail, force=force)
            broker.topics.update(topic_config)
            led_before = self._led(topic)
            await self._topics.put(detail, force=force)
        except (ConfigFormatError, OptionError, IllegalNameError, OSError) as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        broker.mapping_changed(topic)
        # Whoever asks next where the queue ends must hear of every message that was taken.
        await self._all_readable()
        broker.static_strays.given_up(topic, led_before - self._led(topic))
        if broker.registration is not None:
            await broker.registration.announced()
        return create_response(request, ResponseCode.SUCCESS)

    def _led(self, topic: str) -> set[int]:
        """Physical queues that take messages of a topic."""
        detail = self._topics.get(topic)
        return set() if detail is None else set(qm.led_queues(detail).values())

    async def _all_readable(self) -> None:
        broker = self._broker
        if broker.waits_for_disk:
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(status: PutMessageStatus) -> None:
                if status is not PutMessageStatus.PUT_OK:
                    _LOG.warning("a mapping changed while the log is not durable: %s", status.name)
                if not durable.done():
                    durable.set_result(None)

            broker.when_durable(broker.store.max_phy_offset, done)
            await durable
        broker.dispatch_now()

    # ------------------------------------------------------------------------------ logical queues

    def front(self, handler: Handler, answer: Answer) -> Handler:
        """``handler``, but requests for logical queues go to ``answer``."""

        def serve(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            if not self._topics:
                return handler(channel, request)
            fields = request.fields
            queue = self._topics.queue(
                fields.get("topic", ""), _integer(fields.get("queueId")), fields
            )
            if queue is None:
                return handler(channel, request)
            if not queue.is_led:
                return create_response(request, NOT_LEADER, queue.not_leader)
            self._broker.start_task(self._serve(channel, request, queue, answer))
            return None

        return serve

    async def _serve(
        self, channel: Channel, request: RemotingCommand, queue: LogicalQueue, answer: Answer
    ) -> None:
        try:
            response = await answer(queue, dict(request.fields))
        except (RemotingError, RemoteProtocolError, ValueError) as error:
            _LOG.warning("%s queue %d: %s", queue.topic, queue.queue_id, error)
            response = _failure(str(error))
        if not request.flag & ONEWAY_FLAG:
            channel.reply(request, response)

    async def _ask(
        self, item: LogicQueueMappingItem, code: RequestCode, fields: dict[str, str]
    ) -> RemotingCommand:
        """What another broker says about its stretch."""
        return await self._broker.peers.ask(
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
        return int(response.fields[name]) if name in response.fields else -1

    async def max_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """30: the end of the last stretch that has its place."""
        item = _present(qm.last_item(queue.items))
        return _offset(qm.to_logical(item, await self._end(queue, item, fields)))

    async def _end(
        self, queue: LogicalQueue, item: LogicQueueMappingItem, fields: dict[str, str]
    ) -> int:
        """The physical end of a stretch."""
        if queue.is_here(item):
            self._broker.dispatch_now()
            return self._broker.store.max_offset_in_queue(queue.topic, item.queue_id)
        return await self._offset_of(item, RequestCode.GET_MAX_OFFSET, fields)

    async def min_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """31: the beginning of the first stretch."""
        item = _present(qm.first_item(queue.items))
        if queue.is_here(item):
            self._broker.dispatch_now()
            low = self._broker.store.min_offset_in_queue(queue.topic, item.queue_id)
        else:
            low = await self._offset_of(item, RequestCode.GET_MIN_OFFSET, fields)
        return _offset(qm.to_logical_within(item, low))

    async def earliest_store_time(
        self, queue: LogicalQueue, fields: dict[str, str]
    ) -> RemotingCommand:
        """32: when the first message of the first stretch was stored."""
        item = _present(qm.first_item(queue.items))
        if queue.is_here(item):
            self._broker.dispatch_now()
            time_ms = self._broker.store.earliest_message_time(queue.topic, item.queue_id)
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
                self._broker.dispatch_now()
                is_upper = fields.get("boundaryType", "").upper() == "UPPER"
                found = self._broker.store.offset_in_queue_by_time(
                    queue.topic,
                    item.queue_id,
                    int(fields["timestamp"]),
                    "UPPER" if is_upper else "LOWER",
                )
            else:
                found = await self._offset_of(item, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
            found = max(found, 0)
            if item is last or found < await self._end(queue, item, fields):
                return _offset(qm.to_logical(item, found))
        raise AssertionError("the last stretch is among the stretches")

    # ------------------------------------------------------------------------------ consumers' ways

    async def query_offset(self, queue: LogicalQueue, fields: dict[str, str]) -> RemotingCommand:
        """14: where a group goes on: what the newest stretch knows, else the one before it."""
        broker = self._broker
        group = fields.get("consumerGroup", "")
        for item in reversed(queue.items):
            if not qm.is_decided(item):
                continue
            if queue.is_here(item):
                found = broker.offsets.query(group, queue.topic, item.queue_id)
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
                found = int(response.fields.get("offset", "-1"))
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
        broker = self._broker
        group, offset = fields.get("consumerGroup", ""), int(fields.get("commitOffset", "-1"))
        item = _present(qm.find_item(queue.items, offset))
        physical = max(qm.to_physical(item, offset), 0)
        if not queue.is_here(item):
            return await self._ask(
                item, RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(physical)}
            )
        if broker.groups.find(group) is None:
            return RemotingCommand(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST.value,
                remark=f"Group {group} not exist!",
                ext_fields={},
            )
        if broker.offsets.has_reset(group, queue.topic, item.queue_id):
            response = _success({})
            response.remark = "Offset has been previously reset"
            return response
        broker.offsets.commit(group, queue.topic, item.queue_id, physical, broker.now_ms())
        return _success({})


def _present(item: LogicQueueMappingItem | None) -> LogicQueueMappingItem:
    if item is None:
        raise ValueError("no stretch of the queue has its place yet")
    return item


def _success(fields: dict[str, str]) -> RemotingCommand:
    return RemotingCommand(code=ResponseCode.SUCCESS.value, ext_fields=fields)


def _offset(offset: int) -> RemotingCommand:
    return _success({"offset": str(offset)})


def _failure(remark: str) -> RemotingCommand:
    return RemotingCommand(code=ResponseCode.SYSTEM_ERROR.value, remark=remark)


def _integer(text: str | None) -> int:
    try:
        return int(text) if text else -1
    except ValueError:
        return -1
