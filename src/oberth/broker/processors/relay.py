"""RelayProcessor: 307 and 309, calls that a tool makes to a client through the broker.

The answer of the client becomes the answer to the tool, under the tool's number. RocketMQ:
AdminBrokerProcessor.callConsumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oberth.broker.acl.signature import ACCESS_KEY, SIGNATURE
from oberth.errors import FormatError, RemotingError, RemotingTimeoutError
from oberth.formats.message_id import decode_offset_message_id
from oberth.remoting.code import MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import Body, RemotingCommand, create_response
from oberth.remoting.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumers import ConsumerTable
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_OF_THE_SIGNER: Final = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken"})

RELAY_TIMEOUT_S: Final = 10.0
"""Seconds that a client gets to answer."""


class RelayProcessor:
    """Carries calls from tools to clients and answers back."""

    def __init__(
        self, *, config: BrokerConfig, store: MessageStore, consumers: ConsumerTable
    ) -> None:
        self._config = config
        self._store = store
        self._consumers = consumers

    async def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """307: what a client is doing."""
        del channel
        header = request.header(GetConsumerRunningInfoRequestHeader)
        return await self._call(
            request,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            header.consumer_group,
            header.client_id,
            _unsigned(request),
            request.body,
        )

    async def consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """309: let a client consume one message now."""
        del channel
        header = request.header(ConsumeMessageDirectlyResultRequestHeader)
        fields = _unsigned(request)
        fields["brokerName"] = self._config.broker_name
        body: Body = request.body
        if header.msg_id:
            try:
                offset = decode_offset_message_id(header.msg_id).commit_log_offset
            except FormatError as error:
                return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
            store = self._store
            message = store.find_shown_message(offset)
            record = store.select_record(offset) if message is not None else None
            if record is None:
                return create_response(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"can not find message by the offset, {offset}",
                )
            body = record
        return await self._call(
            request,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header.consumer_group,
            header.client_id or "",
            fields,
            body,
        )

    async def _call(
        self,
        request: RemotingCommand,
        code: RequestCode,
        group: str,
        client_id: str,
        fields: dict[str, str],
        body: Body,
    ) -> RemotingCommand:
        online = self._consumers.get(group)
        client = None if online is None else online.find_client(client_id)
        if client is None:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{group}> <{client_id}> not online",
            )
        if client.version < MQVersion.V3_1_8_SNAPSHOT:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        channel: Channel = client.channel  # type: ignore[assignment]
        call = RemotingCommand(code=int(code), ext_fields=fields, body=body)
        try:
            answer = await channel.invoke(call, RELAY_TIMEOUT_S)
        except RemotingTimeoutError as error:
            return create_response(
                request,
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client_id}> Timeout: {error}",
            )
        except RemotingError as error:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{client_id}> Exception: {error}",
            )
        return create_response(
            request,
            answer.code,
            answer.remark,
            ext_fields=answer.ext_fields,
            body=answer.body,
        )


def _unsigned(request: RemotingCommand) -> dict[str, str]:
    """The fields of a request without who signed it, and how.

    A signature covers the values of fields alone, and the client chooses one of them, its id: it
    could send what an administrator signed as another request.
    """
    fields = request.fields
    return {name: fields[name] for name in fields if name not in _OF_THE_SIGNER}
