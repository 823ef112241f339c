"""Sends: SendMessage, RecallMessage and EndTransaction."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from typing import Any, Final

from oberth.errors import RemotingConnectError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from oberth.proxy import messages as m
from oberth.proxy.codes import Code, StatusError, code_of
from oberth.proxy.convert import (
    ACCEPTED,
    TRANSACTION,
    properties_of,
    queue_of,
    sys_flag_of,
    type_name,
    type_of,
)
from oberth.proxy.core import (
    Context,
    ServiceCore,
    check_count,
    topic_of,
)
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
_RESOLUTIONS: Final = m.enum_values("TransactionResolution")
_SOURCES: Final = m.enum_values("TransactionSource")


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
            if not message.body:
                raise StatusError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
            if len(message.body) > self._core.body_max:
                raise StatusError(
                    Code.MESSAGE_BODY_TOO_LARGE,
                    f"message body of {len(message.body)} bytes, allowed {self._core.body_max}",
                )
            items.append(
                (message, properties_of(message, topic, now_ms, delay_ms_max=self._delay_ms_max))
            )
        await self._check_type(topic, request.messages)
        choices = await self._queues_for(topic, first)
        born = items[0][1].get(p.BORN_TIMESTAMP)
        fields = {
            "a": topic,
            "b": topic,
            "c": names.AUTO_CREATE_TOPIC_KEY,
            "d": "4",
            "f": str(sys_flag_of(first)),
            "g": born if born else str(now_ms),
            "h": "0",
            "j": str(max(first.system_properties.delivery_attempt - 1, 0)),
            "k": "false",
        }
        if len(items) == 1:
            fields["i"] = p.encode_properties(items[0][1]).decode("utf-8", "replace")
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
                        properties=p.encode_properties(properties),
                    )
                    for message, properties in items
                ]
            )
        broker, answer = await self._send_to_one(context, choices, code, fields, body)
        if answer.code == ResponseCode.SUCCESS:
            self._core.sent += len(items)
        self._fill_result(broker, first, answer, response)

    async def _check_type(self, topic: str, sent: Iterable[Any]) -> None:
        if not self._core.check_types:
            return
        wanted = await self._core.backend.message_type(topic) or "NORMAL"
        accepted = ACCEPTED.get(wanted, ())
        for message in sent:
            kind = type_of(message)
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
        if system.HasField("message_group"):
            return [queue_of(system.message_group, writable)]
        if system.HasField("lite_topic"):
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
                _LOG.info("not sent to %s: %s", broker, error)
        broker, queue_id = choices[-1]
        fields["e"] = str(queue_id)
        return broker, await self._core.invoke(context, broker, code, fields, body)

    def _fill_result(self, broker: str, first: Any, answer: RemotingCommand, response: Any) -> None:
        entry = response.entries.add()
        if answer.code == ResponseCode.SUCCESS:
            header = answer.header(SendMessageResponseHeader)
            entry.status.code = int(Code.OK)
            entry.status.message = Code.OK.name
            entry.message_id = first.system_properties.message_id
            entry.offset = header.queue_offset
            if type_of(first) == TRANSACTION:
                offset = int(header.msg_id[-16:], 16)
                entry.transaction_id = transaction_id(
                    header.transaction_id or entry.message_id, header.queue_offset, offset, broker
                )
            if header.recall_handle:
                entry.recall_handle = header.recall_handle
        else:
            code = code_of(answer.code)
            entry.status.code = int(code)
            entry.status.message = answer.remark or code.name
        response.status.CopyFrom(entry.status)

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
        decision = {
            _RESOLUTIONS["COMMIT"]: TRANSACTION_COMMIT,
            _RESOLUTIONS["ROLLBACK"]: TRANSACTION_ROLLBACK,
        }.get(request.resolution, 0)
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
        await self._core.checked(
            context, broker, RequestCode.END_TRANSACTION, header.to_ext_fields()
        )
