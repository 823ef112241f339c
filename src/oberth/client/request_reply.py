"""Request-reply: who waits for which reply. RocketMQ: RequestFutureHolder, MessageUtil.

A request is an ordinary message with a correlation id and the requester's client id; the consumer
sends its reply as a message of type ``reply``, and the broker pushes that to the requester. The
broker must know the requester's connection, so a heartbeat goes before the first request.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Final

from oberth.client.instance import ClientInstance
from oberth.client.messages import REPLY_MESSAGE, Message, MessageExt
from oberth.errors import MQClientError, OptionError, RequestTimeoutError
from oberth.formats import properties as p
from oberth.formats.message import MAGIC_V1, encode_host
from oberth.formats.names import reply_topic
from oberth.remoting.aio.address import parse_address
from oberth.remoting.headers.send import ReplyMessageRequestHeader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


NO_REPLY: Final = 10007
"""MQClientError.response_code of a message that nobody can reply to."""

_UNKNOWN_HOST: Final = encode_host("0.0.0.0", 0)


class RequestTable:
    """Requests of one producer that wait for their replies.

    Args:
        instance: gets the replies.
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}
        self._known_to: set[str] = set()
        instance.reply_handlers.append(self.on_reply)

    def close(self) -> None:
        """All waiting requests fail."""
        self._instance.reply_handlers.remove(self.on_reply)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(MQClientError("the producer is shut down"))
        self._waiting.clear()

    async def request(
        self,
        message: Message,
        timeout_ms: int,
        find_queues: Callable[[str], Awaitable[object]],
        send: Callable[[Message], Awaitable[object]],
    ) -> MessageExt:
        """See ``Producer.request``.

        Args:
            message: the request.
            timeout_ms: from now until the reply.
            find_queues: makes the brokers of a topic known.
            send: sends the request.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        correlation_id = str(uuid.uuid4())
        # A message may be used for several requests; each has its own id.
        message.properties.pop(p.UNIQ_KEY, None)
        message.properties[p.CORRELATION_ID] = correlation_id
        message.properties[p.REPLY_TO_CLIENT] = self._instance.client_id
        message.properties[p.MESSAGE_TTL] = str(timeout_ms)
        future: asyncio.Future[MessageExt] = loop.create_future()
        self._waiting[correlation_id] = future
        try:
            async with asyncio.timeout_at(deadline):
                await find_queues(message.topic)
                if not self._known_to.issuperset(self._instance.brokers):
                    self._known_to.update(self._instance.brokers)
                    await self._instance.send_heartbeats()
                await send(message)
                return await future
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no reply to {message.msg_id} of {message.topic} within {timeout_ms} ms"
            ) from error
        finally:
            self._waiting.pop(correlation_id, None)

    def on_reply(self, header: ReplyMessageRequestHeader, body: bytes) -> bool:
        """A reply; whether it was for one of these requests."""
        properties = p.decode_properties(header.properties or "")
        future = self._waiting.get(properties.get(p.CORRELATION_ID, ""))
        if future is None:
            return False
        if not future.done():
            future.set_result(_reply(header, body))
        return True


def _reply(header: ReplyMessageRequestHeader, body: bytes) -> MessageExt:
    properties = (header.properties or "").encode()
    fixed = (
        0, MAGIC_V1, 0, header.queue_id, header.flag, 0, 0, header.sys_flag,
        header.born_timestamp, _host(header.born_host), header.store_timestamp,
        _host(header.store_host), header.reconsume_times or 0, 0, len(body),
    )  # fmt: skip
    data = body + properties
    return MessageExt(data, fixed, header.topic, 0, len(body), len(body), len(data), "")


def _host(text: str) -> bytes:
    try:
        return encode_host(*parse_address(text.removeprefix("/")))
    except (OptionError, ValueError):
        return _UNKNOWN_HOST


def create_reply_message(request: MessageExt, body: bytes) -> Message:
    """The message that answers a request; any producer may send it.

    Raises:
        MQClientError: the message is no request, or the broker did not say its cluster.
    """
    cluster = request.get_property(p.CLUSTER)
    client = request.get_property(p.REPLY_TO_CLIENT)
    correlation_id = request.get_property(p.CORRELATION_ID)
    if not cluster or not client or not correlation_id:
        raise MQClientError(f"message {request.msg_id} is no request", NO_REPLY)
    message = Message(reply_topic(cluster), body)
    message.properties[p.MESSAGE_TYPE] = REPLY_MESSAGE
    message.properties[p.CORRELATION_ID] = correlation_id
    message.properties[p.REPLY_TO_CLIENT] = client
    ttl = request.get_property(p.MESSAGE_TTL)
    if ttl:
        message.properties[p.MESSAGE_TTL] = ttl
    return message
