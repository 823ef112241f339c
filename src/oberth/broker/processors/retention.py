"""Retention: 29001 shows what the next cleaning would take, 29002 purges a topic's past.

Oberth's own codes; Apache's brokers answer them with 3. Both look at every queue, so they work in a
thread, with the groups' offsets as they were when the request came.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oberth.errors import IllegalNameError
from oberth.formats.config_json import encode_config
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import PurgeTopicRequestHeader
from oberth.store.retention_report import GroupOffsets, LeavingMessages, unread_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore


class RetentionProcessor:
    """Reports and purges."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicConfigs,
        offsets: ConsumerOffsets,
        dispatch_now: Callable[[], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._dispatch_now = dispatch_now

    async def report(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """29001: a RetentionReport as JSON."""
        del channel
        self._dispatch_now()
        offsets = list(self._offsets)
        report = await asyncio.to_thread(self._store.retention_report, offsets)
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(report.to_json(), pretty=False)
        )

    async def purge(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """29002: hide what a topic's queues hold below a time, or one of them below an offset.

        Without ``force`` it is refused with 604 while a group has not consumed all of it; with
        ``dryRun`` nothing is done. The answer has the queues' first offsets, before and after, and
        what groups have not consumed.
        """
        del channel
        header = request.header(PurgeTopicRequestHeader)
        self._dispatch_now()
        topic = header.topic
        if topic not in self._topics:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:127]}] not exist"
            )
        by_time = header.timestamp is not None
        if by_time == (header.offset is not None) or (header.offset is None) != (
            header.queue_id is None
        ):
            return create_response(
                request,
                ResponseCode.INVALID_PARAMETER,
                "either timestamp, or queueId and offset are needed",
            )
        groups: list[GroupOffsets] = [each for each in self._offsets if each[0] == topic]
        return await asyncio.to_thread(self._purge, request, header, groups)

    def _purge(
        self, request: RemotingCommand, header: PurgeTopicRequestHeader, groups: list[GroupOffsets]
    ) -> RemotingCommand:
        store = self._store
        topic = header.topic
        if header.timestamp is not None:
            before = store.retention.offsets_before(topic, header.timestamp)
        else:
            assert header.queue_id is not None
            assert header.offset is not None
            before = {header.queue_id: header.offset}
        leaving = [
            LeavingMessages(topic, queue_id, max(low, 0), min(offset, high), "purge")
            for queue_id, offset in before.items()
            for low, high in [
                (
                    store.min_offset_in_queue(topic, queue_id),
                    store.max_offset_in_queue(topic, queue_id),
                )
            ]
        ]
        unread = [
            each for _, group, queues in groups for each in unread_of(topic, group, queues, leaving)
        ]
        if unread and not (header.force or header.dry_run):
            names = ", ".join(sorted({each.group for each in unread}))
            return create_response(
                request, ResponseCode.ILLEGAL_OPERATION, f"not all consumed: {names[:1000]}"
            )
        try:
            purged: list[tuple[int, int, int]] = [
                *(
                    [(each.queue_id, each.min_offset, each.min_offset_after) for each in leaving]
                    if header.dry_run
                    else store.retention.purge(topic, before)
                )
            ]
        except IllegalNameError as error:
            return create_response(request, ResponseCode.INVALID_PARAMETER, str(error))
        body: dict[str, Any] = {
            "queues": [
                {"queueId": queue_id, "minOffset": low, "minOffsetAfter": max(low, after)}
                for queue_id, low, after in purged
            ],
            "unread": [
                {"group": each.group, "queueId": each.queue_id, "messages": each.messages}
                for each in sorted(unread)
            ],
        }
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )
