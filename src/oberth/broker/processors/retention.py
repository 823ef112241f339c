"""Retention: 29001 shows what the next cleaning would take, 29002 purges a topic's past.

Oberth's own codes; Apache's brokers answer them with 3. Both look at every queue, so they work in a
thread. Which groups read the topics that lose messages is looked up on the loop, in slices; how far
they are, the thread asks when it comes to them. They are served one at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.tasks import result_in_turns
from oberth.errors import IllegalNameError
from oberth.formats.config_json import config_in_slices
from oberth.remoting.bodies.base import result_at_once
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import PurgeTopicRequestHeader
from oberth.remoting.refusal import Refusal
from oberth.store.retention_report import (
    GroupOffsets,
    LeavingMessages,
    RetentionReport,
    Unread,
    unread_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

UNREAD_MAX: Final = 200_000
"""Queues that groups have not consumed and one answer shows: more would hardly go into a frame."""


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
        """29001: a RetentionReport as JSON; refused where groups have too much to consume."""
        del channel
        self._dispatch_now()
        report, topics = await asyncio.to_thread(self._leaving)
        keys = await result_in_turns(self._offsets.keys_of_topics_in_slices(topics))
        body = await asyncio.to_thread(self._with_groups, report, keys)
        return create_response(request, ResponseCode.SUCCESS, body=body)

    def _leaving(self) -> tuple[RetentionReport, frozenset[str]]:
        """What would go, without groups, and the topics that would lose it. Blocks."""
        report = self._store.retention_report()
        return report, frozenset(each.topic for each in report.leaving)

    def _with_groups(self, report: RetentionReport, keys: list[str]) -> bytearray:
        """The report with what groups have not consumed. Blocks."""

        def while_there_is_room() -> Iterator[GroupOffsets]:
            for each in self._offsets.among(keys):
                if len(report.unread) > UNREAD_MAX:
                    remark = f"groups have not consumed more than {UNREAD_MAX} queues"
                    raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
                yield each

        report.add_groups(while_there_is_room())
        return _rendered(report.to_json())

    async def purge(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """29002: hide what a topic's queues hold below a time, or one of them below an offset.

        Without ``force`` it is refused with 604 while a group has not consumed all of it; with
        ``dryRun`` nothing is done. The answer has the queues' first offsets, before and after, and
        what groups have not consumed, UNREAD_MAX of it.
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
        keys = await result_in_turns(self._offsets.keys_of_topics_in_slices({topic}))
        return await asyncio.to_thread(self._purge, request, header, keys)

    def _unread(self, keys: list[str], leaving: list[LeavingMessages]) -> list[Unread]:
        """What groups have not consumed, as much of it as an answer shows, in order."""
        found: list[Unread] = []
        for topic, group, queues in self._offsets.among(keys):
            found += unread_of(topic, group, queues, leaving)
            if len(found) >= UNREAD_MAX:
                break
        return sorted(found[:UNREAD_MAX])

    def _purge(
        self, request: RemotingCommand, header: PurgeTopicRequestHeader, keys: list[str]
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
        unread = self._unread(keys, leaving)
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
                for each in unread
            ],
        }
        return create_response(request, ResponseCode.SUCCESS, body=_rendered(body))


def _rendered(body: Mapping[str, Any]) -> bytearray:
    """Compact JSON. It grows slice by slice: to join a long one would hold the loop up, too."""
    return result_at_once(config_in_slices(body))
