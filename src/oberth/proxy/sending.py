"""Sends: SendMessage, RecallMessage and EndTransaction."""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from oberth.errors import OberthError, RemotingConnectError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NOT, TRANSACTION_ROLLBACK
from oberth.proxy import messages as m
from oberth.proxy.call import Call, parse
from oberth.proxy.codes import Code, StatusError, code_of
from oberth.proxy.convert import (
    ACCEPTED,
    FIFO,
    NORMAL,
    TRANSACTION,
    encoded_properties,
    properties_of,
    queue_of,
    stored_type,
    sys_flag_of,
    type_name,
    type_of,
)
from oberth.proxy.core import (
    Context,
    ServiceCore,
    check_count,
    topic_of,
    unknown_topic,
)
from oberth.proxy.encoding import send_response
from oberth.proxy.handles import parse_transaction_id, recalled_broker, transaction_id
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.send import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageResponseHeader,
)
from oberth.remoting.headers.transaction import (
    EndTransactionRequestHeader,
)

_LOG: Final = logging.getLogger(__name__)

DELAY_MS_MAX: Final = 86_400_000
ENDED_MAX: Final = 10_000
"""Ends of transactions that are remembered: told again, Apache's brokers end one again."""

_RESOLUTIONS: Final = m.enum_values("TransactionResolution")
_SOURCES: Final = m.enum_values("TransactionSource")
_TOGETHER: Final = {NORMAL, FIFO}


class Sends:
    """SendMessage, RecallMessage and EndTransaction.

    Args:
        core: who calls, and the broker.
        delay_ms_max: how far ahead a delivery may be.
    """

    def __init__(self, core: ServiceCore, *, delay_ms_max: int) -> None:
        self._core = core
        self._delay_ms_max = delay_ms_max
        self._turns = itertools.count()
        self._ended: OrderedDict[tuple[str, int], int] = OrderedDict()

    def begin(self, call: Call, raw: bytes) -> bool:
        """One message, where the broker is in this process: see `Begin`."""
        own = self._core.backend.own
        if own is None:
            return False
        request = parse(m.SendMessageRequest, raw)
        if len(request.messages) != 1:
            return False
        message = request.messages[0]
        try:
            context = self._core.admit(call)
            topic = topic_of(message.topic)
            properties = self._checked(message, topic, self._core.backend.now_ms())
            config = own.topic(topic)
            try:
                wanted = config.attributes.get("message.type", "") if config else ""
                self._check_type(wanted, [(message, properties)])
                if config is None:
                    raise unknown_topic(topic)
                if not config.is_writable or not config.write_queue_nums:
                    raise StatusError(Code.FORBIDDEN, f"no writable queue of topic {topic}")
            except StatusError:
                self._core.authorize_sending(context, topic)
                raise
            fields = self._fields(topic, message, properties)
            fields["e"] = str(self._queue_of(message, config.write_queue_nums))
            fields["i"] = encoded_properties(properties).decode("utf-8", "replace")
            fields["m"] = "false"
            command = RemotingCommand(
                code=int(RequestCode.SEND_MESSAGE_V2), ext_fields=fields, body=message.body
            )
            finish = partial(self._finish, own.name, message)
            stored = partial(self._stored, own.name, message)
            self._core.begin(context, "SendMessage", command, finish, stored)
        except (StatusError, OberthError) as error:
            self._core.refuse(call, "SendMessage", error)
        return True

    def _finish(self, broker: str, message: Any, answer: RemotingCommand) -> tuple[Code, bytes]:
        if answer.code == ResponseCode.SUCCESS:
            self._core.sent += 1
        result = _result_of(broker, message, answer)
        return result.code, send_response(*result)

    def _stored(
        self, broker: str, message: Any, queue_offset: int, log_offset: int, key: str
    ) -> bytes:
        self._core.sent += 1
        return send_response(*_stored_result(broker, message, queue_offset, log_offset, key))

    def _queue_of(self, message: Any, count: int) -> int:
        """The queue of one broker: that of the message's group, else any in turns."""
        system = message.system_properties
        if system.message_group:
            return queue_of(system.message_group, range(count))
        if system.lite_topic:
            return queue_of(system.lite_topic, range(count))
        return next(self._turns) % count

    def _checked(self, message: Any, topic: str, now_ms: int) -> dict[str, str]:
        """The properties of a message to be stored.

        Raises:
            StatusError: no broker takes it.
        """
        size = len(message.body)
        if not size:
            raise StatusError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
        if size > self._core.backend.body_max:
            raise StatusError(
                Code.MESSAGE_BODY_TOO_LARGE,
                f"message body of {size} bytes, allowed {self._core.backend.body_max}",
            )
        return properties_of(message, topic, now_ms, delay_ms_max=self._delay_ms_max)

    def _fields(self, topic: str, first: Any, properties: dict[str, str]) -> dict[str, str]:
        """The fields of a command that sends, but for queue, properties and batch."""
        born = properties.get(p.BORN_TIMESTAMP)
        return {
            "a": topic,
            "b": topic,
            "c": names.AUTO_CREATE_TOPIC_KEY,
            "d": "4",
            "f": str(sys_flag_of(first)),
            "g": born or str(self._core.backend.now_ms()),
            "h": "0",
            "j": str(max(first.system_properties.delivery_attempt - 1, 0)),
            "k": "false",
        }

    async def send(self, context: Context, request: Any, response: Any) -> None:
        if not request.messages:
            raise StatusError(Code.MESSAGE_CORRUPTED, "no message to send")
        check_count("messages", len(request.messages))
        first = request.messages[0]
        topic = topic_of(first.topic)
        now_ms = self._core.backend.now_ms()
        items: list[tuple[Any, dict[str, str]]] = []
        for message in request.messages:
            if message.topic.name != topic:
                raise StatusError(Code.MESSAGE_CORRUPTED, "different message has different topic")
            items.append((message, self._checked(message, topic, now_ms)))
        _check_together(items)
        self._core.authorize_sending(context, topic)
        if self._core.check_types:
            wanted = await self._core.backend.message_type(topic)
            self._check_type(wanted, items)
        choices = await self._queues_for(topic, first)
        fields = self._fields(topic, first, items[0][1])
        if len(items) == 1:
            fields["i"] = encoded_properties(items[0][1]).decode("utf-8", "replace")
            fields["m"] = "false"
            code = RequestCode.SEND_MESSAGE_V2
            body: bytes = first.body
        else:
            fields["i"] = ""
            fields["m"] = "true"
            code = RequestCode.SEND_BATCH_MESSAGE
            body = encode_batch(
                [
                    BatchItem(
                        flag=0,
                        body=message.body,
                        properties=encoded_properties(properties),
                    )
                    for message, properties in items
                ]
            )
            if len(body) > self._core.backend.body_max:
                raise StatusError(
                    Code.MESSAGE_BODY_TOO_LARGE,
                    f"{len(items)} messages of {len(body)} bytes, allowed "
                    f"{self._core.backend.body_max}",
                )
        broker, answer = await self._send_to_one(context, choices, code, fields, body)
        if answer.code == ResponseCode.SUCCESS:
            self._core.sent += len(items)
        _fill_result(_result_of(broker, first, answer), response)

    def _check_type(self, wanted: str, sent: Iterable[tuple[Any, dict[str, str]]]) -> None:
        """Whether messages with these properties are of their topic's type; "": NORMAL.

        What a message is follows from its properties, as for Apache's proxy; what it says that it
        is counts as well, if it says it.
        """
        if not self._core.check_types:
            return
        wanted = wanted or "NORMAL"
        accepted = ACCEPTED.get(wanted, ())
        for message, properties in sent:
            kind = stored_type(properties)
            if kind in accepted:
                kind = type_of(message) or kind
            if kind not in accepted:
                raise StatusError(
                    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                    f"TopicMessageType validate failed, the expected type is "
                    f"{wanted}, but actual type is "
                    f"{type_name(kind)}",
                )

    async def _queues_for(self, topic: str, message: Any) -> list[tuple[str, int]]:
        """The broker and queue of a message: those of its group, else any in turns.

        Behind the first stand one of each other broker, for when the first cannot be reached.
        """
        by_broker = {
            queues.broker_name: queues.write_count
            for queues in await self._core.queues(topic)
            if queues.may_write and queues.write_count
        }
        writable = [(name, each) for name, count in by_broker.items() for each in range(count)]
        if not writable:
            raise StatusError(Code.FORBIDDEN, f"no writable queue of topic {topic}")
        system = message.system_properties
        if system.message_group:
            return [queue_of(system.message_group, writable)]
        if system.lite_topic:
            return [queue_of(system.lite_topic, writable)]
        turn = next(self._turns)
        first = writable[turn % len(writable)]
        others = [(n, turn % count) for n, count in by_broker.items() if n != first[0]]
        return [first, *others]

    async def _send_to_one(
        self,
        context: Context,
        choices: list[tuple[str, int]],
        code: RequestCode,
        fields: dict[str, str],
        body: bytes,
    ) -> tuple[str, RemotingCommand]:
        """The broker that was reached, and its answer.

        Another one is tried only if nothing was sent: else a message might be stored twice.
        """
        for broker, queue_id in choices[:-1]:
            fields["e"] = str(queue_id)
            try:
                return broker, await self._core.invoke(context, broker, code, dict(fields), body)
            except RemotingConnectError as error:
                _LOG.info("a message could not be sent to broker %s: %s", broker, error)
        broker, queue_id = choices[-1]
        fields["e"] = str(queue_id)
        return broker, await self._core.invoke(context, broker, code, fields, body)

    async def recall(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        header = RecallMessageRequestHeader(
            producer_group=topic, topic=topic, recall_handle=request.recall_handle
        )
        answer = await self._core.checked(
            context,
            recalled_broker(request.recall_handle),
            RequestCode.RECALL_MESSAGE,
            header.to_ext_fields(),
        )
        response.message_id = answer.header(RecallMessageResponseHeader).msg_id

    async def end_transaction(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        if not request.transaction_id.strip():
            raise StatusError(Code.INVALID_TRANSACTION_ID, "transaction id has no content")
        key, state_offset, log_offset, broker = parse_transaction_id(request.transaction_id)
        await self._core.look_for_broker(broker)
        if not self._core.backend.has_broker(broker):
            raise StatusError(
                Code.INVALID_TRANSACTION_ID, f"the transaction is of broker {broker[:80]!r}"
            )
        decision = {
            _RESOLUTIONS["COMMIT"]: TRANSACTION_COMMIT,
            _RESOLUTIONS["ROLLBACK"]: TRANSACTION_ROLLBACK,
        }.get(request.resolution, TRANSACTION_NOT)
        header = EndTransactionRequestHeader(
            topic=topic,
            producer_group=topic,
            tran_state_table_offset=state_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=decision,
            from_transaction_check=request.source == _SOURCES["SOURCE_SERVER_CHECK"],
            msg_id=request.message_id,
            transaction_id=key,
        )
        fields = header.to_ext_fields()
        if decision == TRANSACTION_NOT:
            # No broker answers a producer that does not know: it asks again in its time.
            self._core.authorize(
                context, RemotingCommand(code=int(RequestCode.END_TRANSACTION), ext_fields=fields)
            )
            return
        if self._core.backend.own is not None or header.from_transaction_check:
            await self._core.checked(context, broker, RequestCode.END_TRANSACTION, fields)
            return
        half = (broker, log_offset)
        before = self._ended.get(half)
        if before == decision:
            return
        if before is not None:
            raise StatusError(
                Code.INVALID_TRANSACTION_ID,
                f"transaction id {request.transaction_id[:80]!r} has ended otherwise",
            )
        await self._core.checked(context, broker, RequestCode.END_TRANSACTION, fields)
        self._ended[half] = decision
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)


def _check_together(sent: list[tuple[Any, dict[str, str]]]) -> None:
    """Whether these messages may be one batch: it is stored as it is, in one queue.

    Raises:
        StatusError: one would have to wait, to go to another queue, or to be read otherwise.
    """
    if len(sent) == 1:
        return
    kinds = {stored_type(properties) for _, properties in sent}
    groups = {properties.get(p.SHARDING_KEY) for _, properties in sent}
    flags = {sys_flag_of(message) for message, _ in sent}
    if len(groups) > 1 or len(flags) > 1 or not kinds <= _TOGETHER:
        raise StatusError(
            Code.BAD_REQUEST,
            "several messages of one call must be NORMAL, or FIFO and of one message group, and "
            "their bodies in one encoding",
        )


class _Result(NamedTuple):
    """What became of a send; the fields are those of `send_response`."""

    code: Code
    text: str
    message_id: str = ""
    transaction_id: str = ""
    offset: int = 0
    recall_handle: str = ""


def _result_of(broker: str, first: Any, answer: RemotingCommand) -> _Result:
    if answer.code != ResponseCode.SUCCESS:
        code = code_of(answer.code)
        return _Result(code, answer.remark or code.name)
    header = answer.header(SendMessageResponseHeader)
    return _stored_result(
        broker,
        first,
        header.queue_offset,
        int(header.msg_id[-16:], 16) if type_of(first) == TRANSACTION else 0,
        header.transaction_id or "",
        header.recall_handle or "",
    )


def _stored_result(
    broker: str, first: Any, queue_offset: int, log_offset: int, key: str, recall_handle: str = ""
) -> _Result:
    message_id = first.system_properties.message_id
    transaction = ""
    if type_of(first) == TRANSACTION:
        transaction = transaction_id(key or message_id, queue_offset, log_offset, broker)
    return _Result(Code.OK, "OK", message_id, transaction, queue_offset, recall_handle)


def _fill_result(result: _Result, response: Any) -> None:
    entry = response.entries.add()
    entry.status.code = int(result.code)
    entry.status.message = result.text
    entry.message_id = result.message_id
    entry.transaction_id = result.transaction_id
    entry.offset = result.offset
    entry.recall_handle = result.recall_handle
    response.status.CopyFrom(entry.status)
