"""Answers what brokers ask of a client: its transactions, its offsets, its messages, its state."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from oberth.client.members import InnerConsumer, InnerProducer
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.stage import Stage
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_response
from oberth.remoting.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
)
from oberth.remoting.headers.send import ReplyMessageRequestHeader
from oberth.remoting.headers.transaction import CheckTransactionStateRequestHeader

_LOG: Final = logging.getLogger(__name__)

STACKS_MAX: Final = 200
STACK_DEPTH_MAX: Final = 50
"""Threads and tasks, and calls of a task, that an answer with stacks shows."""


class BrokerRequests:
    """Hands each request of a broker to the producer or consumer that it is about.

    Args:
        producers: by group, as they come and go.
        consumers: by group, as they come and go.
        reply_handlers: asked in turn whose request a reply answers.
        rebalance_soon: called when the members of a group have changed.
    """

    def __init__(
        self,
        producers: Mapping[str, InnerProducer],
        consumers: Mapping[str, InnerConsumer],
        reply_handlers: Sequence[Callable[[ReplyMessageRequestHeader, bytes], bool]],
        rebalance_soon: Callable[[], None],
    ) -> None:
        self._producers = producers
        self._consumers = consumers
        self._reply_handlers = reply_handlers
        self._rebalance_soon = rebalance_soon

    def table(self) -> ProcessorTable:
        """Which request is answered by whom."""
        table = ProcessorTable()
        stage = Stage("client", tasks=16)
        table.sync([RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], self._on_ids_changed)
        table.sync([RequestCode.CHECK_TRANSACTION_STATE], self._on_check_transaction)
        table.sync([RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT], self._on_reply)
        table.async_([RequestCode.RESET_CONSUMER_CLIENT_OFFSET], self._on_reset, stage=stage)
        table.sync([RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT], self._on_status)
        table.sync([RequestCode.GET_CONSUMER_RUNNING_INFO], self._on_running_info)
        table.async_([RequestCode.CONSUME_MESSAGE_DIRECTLY], self._on_consume, stage=stage)
        return table

    def _on_ids_changed(self, channel: Channel, request: RemotingCommand) -> None:
        del channel
        header = request.header(NotifyConsumerIdsChangedRequestHeader)
        if header.consumer_group in self._consumers:
            self._rebalance_soon()

    def _on_check_transaction(self, channel: Channel, request: RemotingCommand) -> None:
        from oberth.client.messages import decode_messages  # noqa: PLC0415 - few clients need it
        from oberth.formats.properties import PRODUCER_GROUP  # noqa: PLC0415 - few clients need it

        header = request.header(CheckTransactionStateRequestHeader)
        messages = decode_messages(request.body_bytes())
        group = messages[0].get_property(PRODUCER_GROUP) if messages else ""
        producer = self._producers.get(group)
        if producer is None:
            _LOG.warning("transaction check for the group %r, which is not here", group)
            return
        producer.on_check_transaction(str(channel.remote), header, request.body_bytes())

    def _on_reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        header = request.header(ReplyMessageRequestHeader)
        if not any(handle(header, request.body_bytes()) for handle in self._reply_handlers):
            _LOG.info("a reply that nobody waits for: %s", header.properties)
        return create_response(request, ResponseCode.SUCCESS)

    async def _on_reset(self, channel: Channel, request: RemotingCommand) -> None:
        from oberth.remoting.bodies.offsets import ResetOffsetBody  # noqa: PLC0415 - few clients need it

        del channel
        header = request.header(ResetOffsetRequestHeader)
        consumer = self._consumers.get(header.group)
        if consumer is not None:
            offsets = ResetOffsetBody.decode(request.body_bytes(), FRAME_SIZE_MAX).offset_table
            await consumer.reset_offsets(header.topic, dict(offsets))

    def _on_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        from oberth.remoting.bodies.offsets import GetConsumerStatusBody  # noqa: PLC0415 - few clients need it

        del channel
        header = request.header(GetConsumerStatusRequestHeader)
        consumer = self._consumers.get(header.group)
        offsets = consumer.consumer_status(header.topic) if consumer is not None else {}
        body = GetConsumerStatusBody(message_queue_table=offsets)
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    def _on_running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        header = request.header(GetConsumerRunningInfoRequestHeader)
        consumer = self._consumers.get(header.consumer_group)
        if consumer is None:
            return _not_here(request, header.consumer_group)
        body = consumer.running_info()
        if header.jstack_enable:
            from oberth.remoting.bodies.running_info import ConsumerRunningInfo  # noqa: PLC0415 - few clients need it

            if isinstance(body, ConsumerRunningInfo):
                body.jstack = stacks()
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    async def _on_consume(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        header = request.header(ConsumeMessageDirectlyResultRequestHeader)
        consumer = self._consumers.get(header.consumer_group)
        if consumer is None:
            return _not_here(request, header.consumer_group)
        body = await consumer.consume_directly(request.body_bytes(), header.broker_name or "")
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())


def _not_here(request: RemotingCommand, group: str) -> RemotingCommand:
    return create_response(
        request,
        ResponseCode.SYSTEM_ERROR,
        f"The Consumer Group <{group}> not exist in this consumer",
    )


def stacks() -> str:
    """Where each thread of the process is, and each task of the running loop; newest call last."""
    names = {each.ident: each.name for each in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in sorted(asyncio.all_tasks(), key=lambda each: each.get_name()):
        lines = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in '
            f"{frame.f_code.co_name}\n"
            for frame in task.get_stack(limit=STACK_DEPTH_MAX)
        ]
        parts.append(f"task {task.get_name()}\n{''.join(lines)}")
        if len(parts) >= STACKS_MAX:
            break
    return "\n".join(parts)
