"""ReplyMessageProcessor: 324 and 325, the answers of request-reply.

The answer is pushed to the client that asked, by the client id in its property REPLY_TO_CLIENT;
that client must be a producer known from heartbeats. The answer is stored as well unless
``storeReplyMessageEnable`` is off. The replier hears whether the push arrived. RocketMQ:
ReplyMessageProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oberth.errors import RemotingError
from oberth.formats import properties as p
from oberth.formats.message import decode_host
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, create_response
from oberth.remoting.headers.send import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from oberth.store.messages import MessageExtBrokerInner

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.processors.send import SendMessageProcessor
    from oberth.broker.producers import ProducerTable
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

PUSH_TIMEOUT_S: Final = 10.0
"""Seconds that the client that asked gets to take its answer."""


class ReplyMessageProcessor:
    """Carries answers to those who asked."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        producers: ProducerTable,
        send: SendMessageProcessor,
        now_ms: Callable[[], int],
        dispatch_soon: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._producers = producers
        self._send = send
        self._now_ms = now_ms
        self._dispatch_soon = dispatch_soon

    async def reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """324 and 325: one answer."""
        header = SendMessageRequestHeader.from_command(request)
        fields = {
            "MSG_REGION": self._config.region_id,
            "TRACE_ON": "true" if self._config.trace_on else "false",
        }
        refusal = self._send.refusal_of(header, channel)
        if refusal is not None:
            return create_response(request, *refusal, ext_fields=fields)
        properties = p.decode_properties(
            p.without_broker_only((header.properties or "").encode("utf-8", "replace"))
        )
        properties[p.PUSH_REPLY_TIME] = str(self._now_ms())
        properties[p.MESSAGE_REGION] = fields["MSG_REGION"]
        properties[p.TRACE_SWITCH] = fields["TRACE_ON"]
        properties.pop(p.INNER_MULTI_DISPATCH, None)  # an answer is for who asked, and nobody else
        header.sys_flag &= ~(INNER_BATCH | NEED_UNWRAP)
        failure = await self._push(channel, header, properties, request)
        answer = SendMessageResponseHeader(
            msg_id="0", queue_id=max(header.queue_id, 0), queue_offset=0
        )
        if self._config.store_reply_message_enable:
            self._keep(channel, header, properties, request, answer)
        return create_response(
            request,
            ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR,
            failure,
            header=answer,
            ext_fields=fields,
        )

    async def _push(
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        properties: dict[str, str],
        request: RemotingCommand,
    ) -> str | None:
        """Give the answer to who asked; why not, or None."""
        asker = properties.get(p.REPLY_TO_CLIENT)
        if not asker:
            return "REPLY_TO_CLIENT is null, can not reply message"
        client = self._producers.find(asker)
        if client is None:
            return f"push reply message fail, channel of <{asker}> not found."
        addresses = self._send.addresses(channel)
        push = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=max(header.queue_id, 0),
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=p.encode_properties(properties).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=bool(header.unit_mode),
            born_host=decode_host(addresses.born_host),
            store_host=decode_host(addresses.store_host),
            store_timestamp=self._now_ms(),
        )
        asked: Channel = client.channel  # type: ignore[assignment]
        try:
            response = await asked.invoke(
                create_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, request.body),
                PUSH_TIMEOUT_S,
            )
        except RemotingError as error:
            return f"push reply message to {asker} fail. {error}"
        if response.code != ResponseCode.SUCCESS:
            return f"push reply message to {asker} fail. {response.remark}"
        return None

    def _keep(
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        properties: dict[str, str],
        request: RemotingCommand,
        answer: SendMessageResponseHeader,
    ) -> None:
        """Keep the answer, and say in ``answer`` where; a failure does not fail the reply."""
        addresses = self._send.addresses(channel)
        message = MessageExtBrokerInner(
            header.topic,
            request.body_bytes(),
            p.encode_properties(properties),
            max(header.queue_id, 0),
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            addresses.born_host,
            addresses.store_host,
            header.reconsume_times or 0,
            wait_store_ok=False,
        )
        (result,) = self._store.append_messages([message])
        self._dispatch_soon()
        if result.ok:
            answer.msg_id = f"{addresses.id_prefix}{result.commit_log_offset:016X}"
            answer.queue_offset = result.queue_offset
