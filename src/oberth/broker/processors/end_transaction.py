"""EndTransactionProcessor: 37, and 323. RocketMQ: EndTransactionProcessor.

A commit stores the real message and then marks the half as ended, in this order and without a pause
in between; so a crash may ask a producer once more, but never loses what it committed. A
transaction that has ended before, by the offset of an earlier copy of its half, ends only once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from oberth.broker.put_status import put_outcome
from oberth.broker.stats import TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from oberth.errors import FormatError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.message import MessageExt
from oberth.formats.message_id import decode_offset_message_id
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NOT, TRANSACTION_ROLLBACK
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.transaction import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel

_LOG: Final = logging.getLogger("oberth.transactions")


class EndTransactionProcessor:
    """Commits and rolls back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def end(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """37: what a producer decided about a half message."""
        header = request.header(EndTransactionRequestHeader)
        decision = header.commit_or_rollback
        if decision == TRANSACTION_NOT:
            _LOG.info("%s: transaction %s is not decided", channel.remote, header.transaction_id)
            return None
        if decision not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            _LOG.warning("%s: %d is no end of a transaction", channel.remote, decision)
            return None
        transactions = self._broker.transactions
        half = transactions.find_half(header.commit_log_offset)
        if half is None:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"
            )
        if self._is_too_late(half, header):
            return create_response(
                request,
                ResponseCode.ILLEGAL_OPERATION,
                "Message commit fail [producer end]. currentTimeMillis - bornTime > "
                "checkImmunityTime",
            )
        refusal = self._check(half, header)
        if refusal is not None:
            return create_response(request, ResponseCode.SYSTEM_ERROR, refusal)
        if transactions.has_ended(half.queue_offset):
            return create_response(request, ResponseCode.SUCCESS)
        if decision == TRANSACTION_COMMIT:
            response = self._commit(request, half)
            if response is not None:
                return response
        transactions.end(half.queue_offset)
        self._broker.dispatch_soon()
        return create_response(request, ResponseCode.SUCCESS)

    def _commit(self, request: RemotingCommand, half: MessageExt) -> RemotingCommand | None:
        """Store the message; a response only if that failed."""
        broker = self._broker
        message = broker.transactions.commit_message(half)
        if message is None:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "the half message names no topic or queue"
            )
        (result,) = broker.store.append_messages([message])
        if not result.ok:
            outcome = put_outcome(result.status, body_max=broker.store_config.max_message_size)
            return create_response(request, outcome.code, outcome.remark)
        broker.stats.item(TOPIC_PUT_NUMS, message.topic).add(1)
        broker.stats.item(TOPIC_PUT_SIZE, message.topic).add(result.record_size)
        broker.stats.broker_put.add(1)
        return None

    def _is_too_late(self, half: MessageExt, header: EndTransactionRequestHeader) -> bool:
        """Whether the producer's own end comes after the time in which it may come unasked."""
        if header.from_transaction_check:
            return False
        immunity_ms = self._broker.transactions.immunity_ms(half)
        return immunity_ms is not None and self._broker.now_ms() - half.born_timestamp > immunity_ms

    @staticmethod
    def _check(half: MessageExt, header: EndTransactionRequestHeader) -> str | None:
        group = half.properties.get(p.PRODUCER_GROUP)
        if group != header.producer_group:
            return "The producer group wrong"
        if half.queue_offset != header.tran_state_table_offset:
            return "The transaction state table offset wrong"
        return None

    def resume_check(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """323: check a half message again, or one that was given up."""
        del channel
        header = request.header(ResumeCheckHalfMessageRequestHeader)
        broker = self._broker
        try:
            offset = decode_offset_message_id(header.msg_id or "").commit_log_offset
        except FormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        half = broker.store.look_message_by_offset(offset)
        if half is None or half.topic not in (
            names.TRANS_HALF_TOPIC,
            names.TRANS_CHECK_MAX_TIME_TOPIC,
        ):
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, f"no half message at offset {offset}"
            )
        if not broker.transactions.resume_check(half):
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "Put message back to half topic failed"
            )
        broker.dispatch_soon()
        return create_response(request, ResponseCode.SUCCESS)
