"""TransactionProducer: a message that is delivered just if a local transaction commits.

The message is stored where no consumer sees it, then ``execute_local_transaction`` runs, and its
verdict is told to the broker. When that does not arrive, or is UNKNOW, the broker asks later and
``check_local_transaction`` answers, in any member of the producer group. RocketMQ:
TransactionMQProducer, DefaultMQProducerImpl.sendMessageInTransaction.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec

from oberth.client.config import ClientConfig
from oberth.client.messages import (
    MESSAGE_ILLEGAL,
    Message,
    MessageExt,
    SendResult,
    SendStatus,
    decode_messages,
)
from oberth.client.namespace import (
    queue_with_namespace,
    with_namespace,
    without_namespace,
)
from oberth.client.producer import Producer
from oberth.errors import FormatError, MQClientError, OberthError
from oberth.formats import properties as p
from oberth.formats.message_id import decode_offset_message_id
from oberth.remoting.code import RequestCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.transaction import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)

_LOG: Final = logging.getLogger(__name__)

CHECKS_MAX: Final = 2000
"""Checks that may wait for their listener; more are left to the broker's next question."""

_INSIDE: Final[ContextVar[tuple[asyncio.Future[Any], ...]]] = ContextVar("_INSIDE", default=())
"""The transactions and checks that run here; tasks and threads that they start inherit them."""


class LocalTransactionState(enum.Enum):
    """A verdict, and its number in END_TRANSACTION."""

    COMMIT_MESSAGE = 8
    ROLLBACK_MESSAGE = 12
    UNKNOW = 0


class TransactionSendResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a message in a transaction.

    Attributes:
        send_result: of the half message.
        local_transaction_state: the verdict that was told to the broker.
    """

    send_result: SendResult
    local_transaction_state: LocalTransactionState

    @property
    def msg_id(self) -> str:
        """Id of the message."""
        return self.send_result.msg_id

    @property
    def transaction_id(self) -> str:
        """Id of the transaction."""
        return self.send_result.transaction_id or self.send_result.msg_id


class TransactionListener(Protocol):
    """The application's side. What is raised counts as UNKNOW.

    Coroutine functions run on the loop, plain functions in a thread.
    """

    def execute_local_transaction(
        self, msg: Message, arg: Any
    ) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """The half message is stored: do the local transaction."""

    def check_local_transaction(
        self, msg: MessageExt
    ) -> LocalTransactionState | Awaitable[LocalTransactionState]:
        """The broker does not know the verdict: look it up by ``msg.transaction_id`` or keys."""


class TransactionProducer(Producer):
    """A producer with transactions; sends everything else as well.

    Args:
        producer_group: its members answer each other's checks.
        transaction_listener: does and looks up local transactions.
        namesrv_addr: shorthand for the same field of ``config``.
        config: how to reach the cluster.
        options: see ``Producer``.
    """

    def __init__(
        self,
        producer_group: str,
        transaction_listener: TransactionListener,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(producer_group, namesrv_addr=namesrv_addr, config=config, **options)
        self.transaction_listener = transaction_listener
        self._checks: set[asyncio.Task[None]] = set()
        self._transactions: set[asyncio.Future[None]] = set()  # the end of each

    async def shutdown(self) -> None:
        """See ``Producer``; local transactions and checks at work are waited for as long.

        A local transaction that takes longer is finished all the same, and its verdict is for a
        check to tell. One that calls this itself, by a task that it has started or through
        ``asyncio.to_thread``, is not waited for.
        """
        work = {*self._transactions, *self._checks}.difference(_INSIDE.get())
        try:
            if work:
                await asyncio.wait(work, timeout=self.send_msg_timeout_ms / 1000)
        except asyncio.CancelledError:
            await self.leave()
            raise
        await super().shutdown()

    async def send_message_in_transaction(
        self, msg: Message, arg: Any = None
    ) -> TransactionSendResult:
        """Send a half message, do the local transaction, tell the broker.

        Once the local transaction is done its verdict is returned. The broker asks for it later
        if it cannot be told, also when this producer has been shut down meanwhile.

        Raises:
            MQClientError: a delayed message, or the producer is not running.
            MQBrokerError, RemotingError: the half message was not stored; the local transaction
                was not done.
        """
        if not msg.properties.keys().isdisjoint(_DELAYS):
            raise MQClientError("a message in a transaction cannot be delayed", MESSAGE_ILLEGAL)
        self._instance_or_raise()
        end: asyncio.Future[None] = self._loop.create_future()
        self._transactions.add(end)
        inside = _INSIDE.set((*_INSIDE.get(), end))
        try:
            return await self._transact(msg, arg)
        finally:
            _INSIDE.reset(inside)
            self._transactions.discard(end)
            end.set_result(None)

    async def _transact(self, msg: Message, arg: Any) -> TransactionSendResult:
        msg.properties[p.TRANSACTION_PREPARED] = "true"
        msg.properties[p.PRODUCER_GROUP] = self.group
        sent = await self.send(msg)
        msg.transaction_id = sent.transaction_id or sent.msg_id
        state = LocalTransactionState.ROLLBACK_MESSAGE
        failure = ""
        if sent.status is SendStatus.SEND_OK:
            try:
                state = await _call(self.transaction_listener.execute_local_transaction, msg, arg)
            except Exception as error:  # noqa: BLE001 - the broker will ask
                _LOG.warning(
                    "%s: the local transaction of message %s failed, the broker will ask about it",
                    self.group,
                    sent.msg_id,
                    exc_info=error,
                )
                state, failure = LocalTransactionState.UNKNOW, repr(error)
        await self._end(msg, sent, state, failure)
        return TransactionSendResult(sent, state)

    async def _end(
        self, msg: Message, sent: SendResult, state: LocalTransactionState, failure: str
    ) -> None:
        """Tells the broker, if it can be told: the local transaction is done in any case."""
        store_host = ""
        try:
            place = decode_offset_message_id(sent.offset_msg_id or sent.msg_id)
            store_host = place.broker_address
            header = EndTransactionRequestHeader(
                topic=with_namespace(self._namespace, msg.topic),
                producer_group=self.group,
                tran_state_table_offset=sent.queue_offset,
                commit_log_offset=place.commit_log_offset,
                commit_or_rollback=state.value,
                msg_id=sent.msg_id,
                transaction_id=sent.transaction_id or None,
                from_transaction_check=False,
            )
            addr = await self._instance_or_raise().require_address(
                queue_with_namespace(self._namespace, sent.message_queue)
            )
            await self._tell(addr, header, failure)
        except OberthError as error:
            _LOG.warning(
                "%s: the end of transaction %s could not be sent, the broker will ask about it: %s",
                self.group,
                sent.msg_id,
                error,
            )
        if self._trace is not None:
            self._trace_end(msg, store_host, sent.transaction_id, state, from_check=False)

    async def _tell(self, addr: str, header: EndTransactionRequestHeader, remark: str) -> None:
        request = create_request(RequestCode.END_TRANSACTION, header)
        request.remark = remark or None
        await self._instance_or_raise().invoke_oneway(addr, request)

    def _trace_end(
        self,
        msg: Message | MessageExt,
        store_host: str,
        transaction_id: str,
        state: LocalTransactionState,
        *,
        from_check: bool,
    ) -> None:
        from oberth.client.trace import end_transaction_record  # noqa: PLC0415 - for traces

        assert self._trace is not None
        self._trace.add(
            [
                end_transaction_record(
                    group=self.group,
                    message=msg,
                    time_ms=self._instance_or_raise().now_ms(),
                    store_host=store_host,
                    transaction_id=transaction_id,
                    state=state.name,
                    from_check=from_check,
                )
            ]
        )

    # Checks

    def on_check_transaction(
        self, addr: str, header: CheckTransactionStateRequestHeader, body: bytes
    ) -> None:
        """CHECK_TRANSACTION_STATE: a broker does not know a verdict."""
        if len(self._checks) >= CHECKS_MAX:
            _LOG.warning("%s: %d checks wait, one is left out", self.group, len(self._checks))
            return
        task = self._loop.create_task(self._check_state(addr, header, body))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check_state(
        self, addr: str, header: CheckTransactionStateRequestHeader, body: bytes
    ) -> None:
        failure = ""
        task = asyncio.current_task()
        assert task is not None
        _INSIDE.set((*_INSIDE.get(), task))
        try:
            (message,) = decode_messages(body)
        except (FormatError, ValueError) as error:
            _LOG.warning(
                "%s: broker %s asked about a transaction whose message cannot be read: %s",
                self.group,
                addr,
                error,
            )
            return
        topic, message.topic = message.topic, without_namespace(self._namespace, message.topic)
        try:
            state = await _call(self.transaction_listener.check_local_transaction, message)
        except Exception as error:  # noqa: BLE001 - the broker will ask again
            _LOG.warning(
                "%s: the check of message %s failed, the broker will ask again",
                self.group,
                message.msg_id,
                exc_info=error,
            )
            state, failure = LocalTransactionState.UNKNOW, repr(error)
        end = EndTransactionRequestHeader(
            topic=topic,
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=message.msg_id,
            transaction_id=header.transaction_id,
            from_transaction_check=True,
        )
        try:
            await self._tell(addr, end, failure)
        except OberthError as error:
            _LOG.warning(
                "%s: the end of transaction %s could not be sent, the broker will ask about it: %s",
                self.group,
                message.msg_id,
                error,
            )
        if self._trace is not None:
            transaction_id = header.transaction_id or message.msg_id
            self._trace_end(message, addr, transaction_id, state, from_check=True)


async def _call(function: Callable[..., Any], *arguments: Any) -> LocalTransactionState:
    if inspect.iscoroutinefunction(function):
        found = await function(*arguments)
    else:
        found = await asyncio.to_thread(function, *arguments)
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, LocalTransactionState):
        raise TypeError(f"the listener gave {found!r}; it must give a LocalTransactionState")
    return found


_DELAYS: Final = frozenset({p.DELAY, p.TIMER_DELAY_MS, p.TIMER_DELAY_SEC, p.TIMER_DELIVER_MS})
