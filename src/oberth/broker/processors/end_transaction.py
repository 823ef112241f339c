"""EndTransactionProcessor: 37, and 323. RocketMQ: EndTransactionProcessor.

A commit stores the real message and then marks the half as ended, in this order and without a pause
in between, for all ends of one read at once; so a crash may ask a producer once more, but never
loses what it committed. A transaction that has ended before, by the offset of an earlier copy of
its half, ends only once.

Where sends wait for the disk or for replicas, so do answers: mark and message are in the log, one
behind the other, and safe before a producer hears that its transaction has ended. It may forget it
then, for nobody asks it again. An end that came one way, as producers of Apache send it, promises
nothing; its mark may wait for others, and after a crash its producer is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.broker.put_status import put_outcome
from oberth.broker.stats import TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from oberth.errors import FormatError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.message import MessageExt
from oberth.formats.message_id import decode_offset_message_id
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NOT, TRANSACTION_ROLLBACK
from oberth.remoting.aio.stage import error_response
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.transaction import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from oberth.remoting.refusal import Refusal
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.dispatching import Dispatching
    from oberth.broker.stats import BrokerStats
    from oberth.broker.transactions import Transactions
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)


_PRODUCER_GROUP: Final = p.PRODUCER_GROUP.encode()


class _Undecided(Exception):
    """Nothing ends, and nobody is answered."""


class _Commit(NamedTuple):
    """A message on its way into the log, and the half that ends with it."""

    number: int
    half: MessageExt
    message: MessageExtBrokerInner


def _done(request: RemotingCommand) -> RemotingCommand | None:
    """Producers send ends one way, and then nobody waits for an answer."""
    if request.is_oneway:
        return None
    return create_response(request, ResponseCode.SUCCESS)


class EndTransactionProcessor:
    """Commits and rolls back."""

    def __init__(
        self,
        *,
        store_config: MessageStoreConfig,
        store: MessageStore,
        transactions: Transactions,
        stats: BrokerStats,
        now_ms: Callable[[], int],
        dispatching: Dispatching,
    ) -> None:
        self._store_config = store_config
        self._store = store
        self._transactions = transactions
        self._stats = stats
        self._now_ms = now_ms
        self._dispatching = dispatching

    def end(
        self, channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        """37: what producers decided about halves; the commits of a burst become one append."""
        responses: list[RemotingCommand | None] = [None] * len(requests)
        commits: list[_Commit] = []
        roots: set[int] = set()
        transactions = self._transactions
        for number, (channel, request) in enumerate(zip(channels, requests, strict=True)):
            try:
                half, decision = self._judge(channel, request)
                root = transactions.root(half.queue_offset)
                if root in roots:  # twice in one read: the first must have ended, or failed
                    self._commit(commits, requests, responses)
                    commits, roots = [], set()
                if transactions.has_ended(half.queue_offset):
                    responses[number] = _done(request)
                elif decision == TRANSACTION_ROLLBACK:
                    transactions.end(half.queue_offset)
                    responses[number] = _done(request)
                else:
                    message = transactions.commit_message(half)
                    if message is None:
                        raise Refusal(
                            ResponseCode.SYSTEM_ERROR, "the half message names no topic or queue"
                        )
                    roots.add(root)
                    commits.append(_Commit(number, half, message))
            except _Undecided:
                continue
            except Refusal as refusal:
                responses[number] = refusal.answer(request)
            except Exception as error:  # noqa: BLE001 - the others of the read must not suffer
                responses[number] = error_response(request, error)
        self._commit(commits, requests, responses)
        if self._dispatching.waits_for_disk:
            self._answer_when_durable(channels, requests, responses)
        self._dispatching.soon()
        return responses

    def _judge(self, channel: Channel, request: RemotingCommand) -> tuple[MessageExt, int]:
        """The half message that a request ends, and how.

        Raises:
            _Undecided: the producer does not know either.
            Refusal: it may not be ended so.
        """
        header = request.header(EndTransactionRequestHeader)
        decision = header.commit_or_rollback
        if decision == TRANSACTION_NOT:
            _LOG.info(
                "%s has not decided transaction %s yet, it is asked again later",
                channel.remote,
                header.transaction_id,
            )
            raise _Undecided
        if decision not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            _LOG.warning("%s: %d is no end of a transaction", channel.remote, decision)
            raise _Undecided
        half = self._transactions.find_half(header.commit_log_offset)
        if half is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if self._is_too_late(half, header):
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                "Message commit fail [producer end]. currentTimeMillis - bornTime > "
                "checkImmunityTime",
            )
        refusal = self._check(half, header)
        if refusal is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, refusal)
        return half, decision

    def _commit(
        self,
        commits: list[_Commit],
        requests: list[RemotingCommand],
        responses: list[RemotingCommand | None],
    ) -> None:
        """Store messages and end their halves; fills in what is to be answered."""
        if not commits:
            return
        stats = self._stats
        results = self._store.append_messages([each.message for each in commits])
        for (number, half, message), result in zip(commits, results, strict=True):
            request = requests[number]
            if not result.ok:
                outcome = put_outcome(result.status, body_max=self._store_config.max_message_size)
                responses[number] = create_response(request, outcome.code, outcome.remark)
                continue
            stats.item(TOPIC_PUT_NUMS, message.topic).add(1)
            stats.item(TOPIC_PUT_SIZE, message.topic).add(result.record_size)
            stats.broker_put.add(1)
            self._transactions.end(half.queue_offset)
            responses[number] = _done(request)

    def _answer_when_durable(
        self,
        channels: Sequence[Channel],
        requests: list[RemotingCommand],
        responses: list[RemotingCommand | None],
    ) -> None:
        """Take back the answers to what has ended; they follow when the log is safe."""
        waiting: list[tuple[Channel, RemotingCommand]] = []
        for number, response in enumerate(responses):
            if response is not None and response.code == ResponseCode.SUCCESS:
                waiting.append((channels[number], requests[number]))
                responses[number] = None
        if not waiting:
            return
        if not self._transactions.flush():
            remark = "the end of the transaction could not be written"
            for channel, request in waiting:
                channel.reply(request, create_response(request, ResponseCode.SYSTEM_ERROR, remark))
            return

        def answer(status: PutMessageStatus) -> None:
            outcome = put_outcome(status, body_max=self._store_config.max_message_size)
            for channel, request in waiting:
                channel.reply(request, create_response(request, outcome.code, outcome.remark))

        # Up to the end: what ended by an earlier request may not be safe either.
        self._dispatching.when_durable(self._store.appended_offset, answer)

    def _is_too_late(self, half: MessageExt, header: EndTransactionRequestHeader) -> bool:
        """Whether the producer's own end comes after the time in which it may come unasked."""
        if header.from_transaction_check:
            return False
        immunity_ms = self._transactions.immunity_ms(half)
        return immunity_ms is not None and self._now_ms() - half.born_timestamp > immunity_ms

    @staticmethod
    def _check(half: MessageExt, header: EndTransactionRequestHeader) -> str | None:
        group = p.find_property(half.properties_raw, _PRODUCER_GROUP)
        if (group and group.decode("utf-8", "replace")) != header.producer_group:
            return "The producer group wrong"
        if half.queue_offset != header.tran_state_table_offset:
            return "The transaction state table offset wrong"
        return None

    def resume_check(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """323: check a half message again, or one that was given up; answered as a send is."""
        header = request.header(ResumeCheckHalfMessageRequestHeader)
        try:
            offset = decode_offset_message_id(header.msg_id or "").commit_log_offset
        except FormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        half = self._store.find_message(offset)
        if half is None or half.topic not in (
            names.TRANS_HALF_TOPIC,
            names.TRANS_CHECK_MAX_TIME_TOPIC,
        ):
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, f"no half message at offset {offset}"
            )
        result = self._transactions.resume_check(half)
        if not result.ok:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "Put message back to half topic failed"
            )
        self._dispatching.soon()
        if not self._dispatching.waits_for_disk:
            return create_response(request, ResponseCode.SUCCESS)

        def answer(status: PutMessageStatus) -> None:
            outcome = put_outcome(status, body_max=self._store_config.max_message_size)
            channel.reply(request, create_response(request, outcome.code, outcome.remark))

        self._dispatching.when_durable(result.end_offset, answer)
        return None
