"""Offsets: PullMessage, and the calls for offsets."""

from __future__ import annotations

from typing import Any, Final

from oberth.client.messages import decode_messages
from oberth.client.pulling import SUBSCRIPTION_FLAG, SUSPEND_FLAG
from oberth.errors import OberthError
from oberth.proxy import messages as m
from oberth.proxy.begun import BROKER_TIMEOUT_S
from oberth.proxy.call import Call, parse
from oberth.proxy.codes import Code, StatusError, code_of, status_of
from oberth.proxy.convert import (
    FILTERS,
    fill_message,
    ms_of,
    tags_of,
)
from oberth.proxy.core import (
    BATCH_MAX,
    POLL_MARGIN_MS,
    POLL_MS_MAX,
    Context,
    ServiceCore,
    group_of,
    set_status,
    topic_of,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.pull import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

_OFFSET_POLICIES: Final = {
    number: name for name, number in m.enum_values("QueryOffsetPolicy").items()
}


class Offsets:
    """PullMessage, UpdateOffset, GetOffset and QueryOffset."""

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    async def pull(self, call: Call) -> None:
        request = parse(m.PullMessageRequest, await call.only_message())
        answer = m.PullMessageResponse()
        try:
            await self._pull_checked(self._core.admit(call), request)
            return
        except StatusError as error:
            set_status(answer, error.code, error.message)
        except OberthError as error:
            set_status(answer, *status_of(error))
        call.send(answer.SerializeToString())

    async def _pull_checked(self, context: Context, request: Any) -> None:
        """Status, then the messages, then where the next pull begins."""
        call = context.call
        topic = topic_of(request.message_queue.topic)
        group = group_of(request.group)
        if request.offset < 0:
            raise StatusError(Code.ILLEGAL_OFFSET, f"offset {request.offset}, allowed from 0 on")
        poll_ms = min(max(ms_of(request.long_polling_timeout), 0), POLL_MS_MAX)
        remaining_s = call.remaining_s()
        if remaining_s is not None:
            poll_ms = min(poll_ms, max(int(remaining_s * 1000) - POLL_MARGIN_MS, 0))
        is_sql = request.filter_expression.type == FILTERS["SQL"]
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=request.message_queue.id,
            queue_offset=request.offset,
            max_msg_nums=min(max(request.batch_size, 1), BATCH_MAX),
            sys_flag=SUBSCRIPTION_FLAG | (SUSPEND_FLAG if poll_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=poll_ms,
            subscription=request.filter_expression.expression or "*",
            sub_version=0,
            expression_type="SQL92" if is_sql else "TAG",
        )
        answer = await self._core.invoke(
            context,
            request.message_queue.broker.name,
            RequestCode.PULL_MESSAGE,
            header.to_ext_fields(),
            timeout_s=poll_ms / 1000 + BROKER_TIMEOUT_S,
        )
        status = m.PullMessageResponse()
        code = answer.code
        if code == ResponseCode.SUCCESS:
            set_status(status, Code.OK)
        elif code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            set_status(status, Code.MESSAGE_NOT_FOUND, "no new message")
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            set_status(status, Code.ILLEGAL_OFFSET, answer.remark or "")
        else:
            raise StatusError(code_of(code), answer.remark or "")
        call.send(status.SerializeToString())
        now_ms = self._core.backend.now_ms()
        wanted = tags_of(request.filter_expression)
        if code == ResponseCode.SUCCESS:
            broker_name = request.message_queue.broker.name
            for message in decode_messages(answer.body_bytes(), broker_name):
                if wanted is None or message.tags in wanted:
                    piece = m.PullMessageResponse()
                    fill_message(piece.message, message, topic, handle=None, now_ms=now_ms)
                    call.send(piece.SerializeToString())
        last = m.PullMessageResponse()
        last.next_offset = answer.header(PullMessageResponseHeader).next_begin_offset
        call.send(last.SerializeToString())

    async def update_offset(self, context: Context, request: Any, response: Any) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group_of(request.group),
            topic=topic_of(request.message_queue.topic),
            queue_id=request.message_queue.id,
            commit_offset=request.offset,
        )
        await self._core.checked(
            context,
            request.message_queue.broker.name,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            header.to_ext_fields(),
        )

    async def get_offset(self, context: Context, request: Any, response: Any) -> None:
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group_of(request.group),
            topic=topic_of(request.message_queue.topic),
            queue_id=request.message_queue.id,
            set_zero_if_not_found=False,
        )
        answer = await self._core.invoke(
            context,
            request.message_queue.broker.name,
            RequestCode.QUERY_CONSUMER_OFFSET,
            header.to_ext_fields(),
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            raise StatusError(Code.OFFSET_NOT_FOUND, answer.remark or "")
        if answer.code != ResponseCode.SUCCESS:
            raise StatusError(code_of(answer.code), answer.remark or "")
        response.offset = answer.header(QueryConsumerOffsetResponseHeader).offset

    async def query_offset(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.message_queue.topic)
        queue_id = request.message_queue.id
        policy = _OFFSET_POLICIES.get(request.query_offset_policy)
        header: CommandHeader
        if policy == "BEGINNING":
            code = RequestCode.GET_MIN_OFFSET
            header = GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id)
        elif policy == "END":
            code = RequestCode.GET_MAX_OFFSET
            header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
        elif policy == "TIMESTAMP" and request.HasField("timestamp"):
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            header = SearchOffsetRequestHeader(
                topic=topic, queue_id=queue_id, timestamp=ms_of(request.timestamp)
            )
        else:
            raise StatusError(Code.BAD_REQUEST, "an offset by timestamp needs a timestamp")
        answer = await self._core.checked(
            context, request.message_queue.broker.name, code, header.to_ext_fields()
        )
        response.offset = answer.header(GetMaxOffsetResponseHeader).offset
