"""Makes messages ready to be sent: checked, compressed, with their ids and properties."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from oberth.client.batches import check_batch
from oberth.client.instance import ClientInstance
from oberth.client.messages import (
    MESSAGE_ILLEGAL,
    REPLY_MESSAGE,
    Message,
    as_bytes,
    encode_message_properties,
)
from oberth.client.namespace import with_namespace
from oberth.client.send_frames import properties_json
from oberth.errors import MQClientError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.compression import Compression, compress, with_compression
from oberth.formats.sys_flag import TRANSACTION_PREPARED
from oberth.remoting.code import RequestCode
from oberth.wall_clock import now_ms

MAX_MESSAGE_SIZE: Final = 4 * 1024 * 1024

COMPRESS_IN_THREAD_BYTES: Final = 64 * 1024
"""Bodies above are compressed in a thread: on the loop they would hold up everybody else."""

TRACEPARENT: Final = "traceparent"
"""Property with the W3C trace context that a message was sent in."""

_SEND: Final = RequestCode.SEND_MESSAGE_V2
_KINDS: Final = frozenset({p.TRANSACTION_PREPARED, p.MESSAGE_TYPE})


class Outgoing(msgspec.Struct):
    """A message made ready, for all attempts to send it."""

    code: RequestCode
    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    properties_json: bytes
    msg_id: str
    message: Message | Sequence[Message]
    born_ms: int


class Preparing:
    """The part of a producer that makes messages ready; a base of it, as each send comes here."""

    group: str
    compress_msg_body_over_bytes: int
    compression: Compression
    compression_level: int
    max_message_size: int
    _namespace: str
    _topics: set[str]
    _traceparent: Callable[[], str | None] | None
    _instance: ClientInstance | None

    def _instance_or_raise(self) -> ClientInstance:
        if self._instance is None:
            raise MQClientError(f"producer {self.group} is not started, or shut down")
        return self._instance

    def _prepare_nowait(self, msg: Message | Sequence[Message]) -> Outgoing | None:
        """The message as it goes over the wire; None: compressing it would take too long."""
        if not isinstance(msg, Message):
            return self._prepare_batch(msg)
        body = msg.body
        if body.__class__ is not bytes:
            body = msg.body = as_bytes(body)
        size = len(body)
        if size > self.compress_msg_body_over_bytes:
            if size > COMPRESS_IN_THREAD_BYTES:
                return None
            self._check(msg)
            body = compress(body, self.compression, self.compression_level)
            return self._outgoing(msg, body, with_compression(0, self.compression))
        if not size or msg.topic not in self._topics:
            self._check(msg)
        return self._outgoing(msg, body, 0)

    async def _prepare_in_thread(self, msg: Message | Sequence[Message]) -> Outgoing:
        assert isinstance(msg, Message)
        self._check(msg)
        body = await asyncio.to_thread(
            compress, bytes(msg.body), self.compression, self.compression_level
        )
        return self._outgoing(msg, body, with_compression(0, self.compression))

    def _outgoing(self, msg: Message, body: bytes, sys_flag: int) -> Outgoing:
        properties = msg.properties
        born_ms = now_ms()
        msg_id = properties.get(p.UNIQ_KEY)
        if msg_id is None:
            assert self._instance is not None
            msg_id = properties[p.UNIQ_KEY] = self._instance.unique_ids.next_id(born_ms)
        if self._traceparent is not None:
            self._add_traceparent(properties)
        topic = msg.topic
        code = _SEND
        if not _KINDS.isdisjoint(properties):
            if properties.get(p.TRANSACTION_PREPARED) == "true":
                sys_flag |= TRANSACTION_PREPARED
            if properties.get(p.MESSAGE_TYPE) == REPLY_MESSAGE:
                code = RequestCode.SEND_REPLY_MESSAGE_V2
        if self._namespace and code is _SEND:  # replies go to the cluster's own topic
            topic = with_namespace(self._namespace, topic)
        text = encode_message_properties(properties)
        return Outgoing(
            code, topic, body, sys_flag, msg.flag, text, properties_json(text),
            msg_id, msg, born_ms,
        )  # fmt: skip

    def _add_traceparent(self, properties: dict[str, str]) -> None:
        assert self._traceparent is not None
        if TRACEPARENT not in properties:
            context = self._traceparent()
            if context:
                properties[TRACEPARENT] = context

    def _check(self, msg: Message) -> None:
        size = len(msg.body)
        if not size:
            raise MQClientError(f"message to {msg.topic}: the body is empty", MESSAGE_ILLEGAL)
        if size > self.max_message_size:
            raise MQClientError(
                f"message to {msg.topic}: the body has {size} bytes, and the producer's "
                f"max_message_size allows {self.max_message_size}; brokers allow maxMessageSize",
                MESSAGE_ILLEGAL,
            )
        names.check_topic(with_namespace(self._namespace, msg.topic))
        if msg.topic in names.NO_SEND_TOPICS:
            raise MQClientError(f"topic {msg.topic} is the broker's own", MESSAGE_ILLEGAL)

    def _prepare_batch(self, msgs: Sequence[Message]) -> Outgoing:
        check_batch(msgs)
        next_id = self._instance_or_raise().unique_ids.next_id
        born_ms = now_ms()
        items = []
        ids = []
        for msg in msgs:
            msg.body = as_bytes(msg.body)
            self._check(msg)
            properties = msg.properties
            msg_id = properties.get(p.UNIQ_KEY)
            if msg_id is None:
                msg_id = properties[p.UNIQ_KEY] = next_id(born_ms)
            if self._traceparent is not None:
                self._add_traceparent(properties)
            ids.append(msg_id)
            items.append(
                BatchItem(msg.flag, msg.body, encode_message_properties(properties).encode())
            )
        body = encode_batch(items)
        if len(body) > self.max_message_size:
            raise MQClientError(
                f"batch of {len(items)} messages to {msgs[0].topic}: it has {len(body)} bytes, and "
                f"the producer's max_message_size allows {self.max_message_size}; send_batch makes "
                "as many batches as that needs",
                MESSAGE_ILLEGAL,
            )
        text = encode_message_properties({p.WAIT: msgs[0].properties.get(p.WAIT, "true")})
        return Outgoing(
            RequestCode.SEND_BATCH_MESSAGE,
            with_namespace(self._namespace, msgs[0].topic),
            body,
            0,
            0,
            text,
            properties_json(text),
            ",".join(ids),
            msgs,
            born_ms,
        )
