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
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, create_response
from oberth.remoting.headers.send import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from oberth.store.messages import MessageExtBrokerInner

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel

PUSH_TIMEOUT_S: Final = 10.0
"""Seconds that the client that asked gets to take its answer."""


class ReplyMessageProcessor:
    """Carries answers to those who asked."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def reply(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """324 and 325: one answer."""
        broker = self._broker
        header = SendMessageRequestHeader.from_command(request)
        fields = {
            "MSG_REGION": broker.config.region_id,
            "TRACE_ON": "true" if broker.config.trace_on else "false",
        }
        refusal = broker.send.refusal_of(header, channel)
        if refusal is not None:
            return create_response(request, *refusal, ext_fields=fields)
        properties = p.decode_properties((header.properties or "").encode("utf-8", "replace"))
        properties[p.PUSH_REPLY_TIME] = str(broker.now_ms())
        properties[p.MESSAGE_REGION] = fields["MSG_REGION"]
        properties[p.TRACE_SWITCH] = fields["TRACE_ON"]
        failure = await self._push(channel, header, properties, request)
        answer = SendMessageResponseHeader(
            msg_id="0", queue_id=max(header.queue_id, 0), queue_offset=0
        )
        if broker.config.store_reply_message_enable:
            self._store(channel, header, properties, request, answer)
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
        broker = self._broker
        asker = properties.get(p.REPLY_TO_CLIENT)
        if not asker:
            return "REPLY_TO_CLIENT is null, can not reply message"
        client = broker.producers.find(asker)
        if client is None:
            return f"push reply message fail, channel of <{asker}> not found."
        addresses = broker.send.addresses(channel)
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
            store_timestamp=broker.now_ms(),
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

    def _store(
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        properties: dict[str, str],
        request: RemotingCommand,
        answer: SendMessageResponseHeader,
    ) -> None:
        """Keep the answer, and say in ``answer`` where; a failure does not fail the reply."""
        broker = self._broker
        addresses = broker.send.addresses(channel)
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
        (result,) = broker.store.append_messages([message])
        broker.dispatch_soon()
        if result.ok:
            answer.msg_id = f"{addresses.id_prefix}{result.commit_log_offset:016X}"
            answer.queue_offset = result.queue_offset
