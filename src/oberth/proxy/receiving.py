"""Receives: messages handed out for a time, and what becomes of each."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from oberth.client.messages import MessageExt
from oberth.client.pop_consumer import CK_PARTS, ReceiptHandle, real_topic
from oberth.errors import MQClientError, OberthError, RemotingConnectError
from oberth.formats import properties as p
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.proxy import messages as m
from oberth.proxy.begun import BROKER_TIMEOUT_S
from oberth.proxy.call import Call, parse
from oberth.proxy.clients import PUSH_CONSUMER, GrpcClient, takes_lite_topics
from oberth.proxy.codes import Code, StatusError, code_of, status_of
from oberth.proxy.convert import (
    FILTERS,
    check_lite_topic,
    fill_message,
    ms_of,
    set_timestamp,
    tags_of,
)
from oberth.proxy.core import (
    BATCH_MAX,
    POLL_MARGIN_MS,
    POLL_MS_MAX,
    Context,
    ServiceCore,
    check_attempt_id,
    check_count,
    group_of,
    set_status,
    topic_of,
)
from oberth.proxy.encoding import ack_response
from oberth.proxy.handles import (
    OFFSET_DIGITS_MAX,
    handle_code,
    invisible_header,
    popped,
    renewed,
    visible_at,
)
from oberth.proxy.renewals import AHEAD_MS, AT_ONCE_MAX, FAILURES_MAX, Renewal, Renewals
from oberth.remoting.bodies.admin import LITE_SIZE_MAX
from oberth.remoting.bodies.lite import (
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionEntry,
    OffsetOption,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.pop import (
    AckMessageRequestHeader,
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
)
from oberth.remoting.headers.send import (
    ConsumerSendMsgBackRequestHeader,
)

_LOG: Final = logging.getLogger(__name__)

INVISIBLE_MS_MAX: Final = 43_200_000
AUTO_RENEW_INVISIBLE_MS: Final = 60_000
GIVEN_BACK_MS: Final = 1_000
"""When others see a message that its client did not get, or left."""

GIVEN_BACK_AT_ONCE: Final = 100
"""Messages of one broker that are given back at a time, whoever left them."""

LAST_TRY_MS: Final = 1_000
"""When a renewal that failed is tried for the last time: so long before others see the message."""

FAILURE_PAUSE_MS: Final = (AHEAD_MS - LAST_TRY_MS) // (FAILURES_MAX - 1)
"""Until a renewal that failed is tried again, or until the last try if that comes before."""

ALL_QUEUES: Final = -1
LITE_NAMES_MAX: Final = 5_000
"""Lite topics that one call may name: as many names as access control looks at."""
_LITE_ACTIONS: Final = {
    number: name for name, number in m.enum_values("LiteSubscriptionAction").items()
}


class Receives:
    """ReceiveMessage and what follows.

    Attributes:
        renewals: messages that push consumers work on.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core
        self.renewals = Renewals()
        self._is_renewing = False
        self._to_renew: dict[str, deque[Renewal]] = {}  # broker → its messages that are due
        self._is_giving_back = False
        self._to_give_back: dict[str, deque[Renewal]] = {}  # broker → its messages that were left
        self._turns = itertools.count()

    async def receive(self, call: Call) -> None:
        request = parse(m.ReceiveMessageRequest, await call.only_message())
        try:
            context = self._core.admit(call)
            await self._receive_checked(context, request)
        except StatusError as error:
            self._send_received(call, error.code, error.message)
        except OberthError as error:
            self._send_received(call, *status_of(error))
        last = m.ReceiveMessageResponse()
        set_timestamp(last.delivery_timestamp, self._core.backend.now_ms())
        call.send(last.SerializeToString())

    def _send_received(self, call: Call, code: Code, text: str = "") -> None:
        answer = m.ReceiveMessageResponse()
        set_status(answer, code, text)
        self._core.results["ReceiveMessage", int(code)] += 1
        call.send(answer.SerializeToString())

    async def _receive_checked(self, context: Context, request: Any) -> None:
        call = context.call
        topic = topic_of(request.message_queue.topic)
        group = group_of(request.group)
        check_attempt_id(request.attempt_id)
        poll_ms = self._poll_ms(call, request)
        if request.auto_renew:
            invisible_ms = AUTO_RENEW_INVISIBLE_MS
        else:
            invisible_ms = ms_of(request.invisible_duration)
            shortest = self._core.invisible_ms_min
            if not shortest <= invisible_ms <= INVISIBLE_MS_MAX:
                raise StatusError(
                    Code.ILLEGAL_INVISIBLE_TIME,
                    f"the invisibleTime is {invisible_ms} ms, allowed {shortest} to "
                    f"{INVISIBLE_MS_MAX}",
                )
        client = self._core.client(context)
        count = min(max(request.batch_size, 1), BATCH_MAX)
        now_ms = self._core.backend.now_ms()
        config = await self._core.backend.group(group)
        is_lite = takes_lite_topics(client, config, topic)
        if is_lite:
            code = RequestCode.POP_LITE_MESSAGE
            fields = PopLiteMessageRequestHeader(
                client_id=client.client_id,
                consumer_group=group,
                topic=topic,
                max_msg_num=count,
                invisible_time=invisible_ms,
                poll_time=poll_ms,
                born_time=now_ms,
                attempt_id=request.attempt_id or None,
            ).to_ext_fields()
        else:
            code = RequestCode.POP_MESSAGE
            is_sql = request.filter_expression.type == FILTERS["SQL"]
            fields = PopMessageRequestHeader(
                consumer_group=group,
                topic=topic,
                queue_id=self._asked_queue(client, request, config),
                max_msg_nums=count,
                invisible_time=invisible_ms,
                poll_time=poll_ms,
                born_time=now_ms,
                init_mode=1,
                exp_type="SQL92" if is_sql else "TAG",
                exp=request.filter_expression.expression or "*",
                order=config is not None and config.consume_message_orderly,
                attempt_id=request.attempt_id or None,
            ).to_ext_fields()
        broker = request.message_queue.broker.name
        own = self._core.backend.own
        if not broker or (own is not None and broker != own.name):
            # The name becomes a part of each receipt handle. Who still has another one, as of a
            # broker that was renamed, means the one that there is.
            self._core.authorize(context, RemotingCommand(code=int(code), ext_fields=fields))
            broker = await self._any_broker(topic)
        answer = await self._core.invoke(
            context,
            broker,
            code,
            fields,
            timeout_s=poll_ms / 1000 + BROKER_TIMEOUT_S,
            on_late=lambda late: self._give_late_back(late, topic, group, broker, is_lite),
        )
        if answer.code != ResponseCode.SUCCESS:
            self._send_received(call, *receive_status(answer))
            return
        found = popped(answer, topic, broker, is_lite=is_lite)
        await self._hand_out(context, client, request, topic, group, found, config)

    async def _any_broker(self, topic: str) -> str:
        """A broker where a topic can be read, in turns."""
        readable = [
            queues.broker_name
            for queues in await self._core.queues(topic)
            if queues.may_read and queues.read_count
        ]
        if not readable:
            raise StatusError(Code.FORBIDDEN, f"no readable queue of topic {topic}")
        return readable[next(self._turns) % len(readable)]

    @staticmethod
    def _asked_queue(
        client: GrpcClient, request: Any, config: SubscriptionGroupConfig | None
    ) -> int:
        """The queue of a receive: all of them, but where queues were assigned one by one.

        Simple consumers name any queue of the broker that they mean, some always the first one.
        """
        is_push = client.settings is not None and client.settings.client_type == PUSH_CONSUMER
        if is_push and config is not None and config.consume_message_orderly:
            return int(request.message_queue.id)
        return ALL_QUEUES

    def _poll_ms(self, call: Call, request: Any) -> int:
        shortest_ms = self._core.poll_ms_min
        remaining_s = call.remaining_s()
        remaining_ms = POLL_MS_MAX * 10 if remaining_s is None else int(remaining_s * 1000)
        if request.HasField("long_polling_timeout"):
            poll_ms = ms_of(request.long_polling_timeout)
        else:
            poll_ms = remaining_ms - int(BROKER_TIMEOUT_S * 500)
        poll_ms = min(max(poll_ms, shortest_ms), POLL_MS_MAX)
        if poll_ms > remaining_ms and remaining_ms < shortest_ms:
            raise StatusError(
                Code.ILLEGAL_POLLING_TIME,
                f"the deadline time remaining is not enough for polling: {remaining_ms} ms",
            )
        return max(min(poll_ms, remaining_ms - POLL_MARGIN_MS), 0)

    async def _hand_out(
        self,
        context: Context,
        client: GrpcClient,
        request: Any,
        topic: str,
        group: str,
        found: list[MessageExt],
        config: SubscriptionGroupConfig | None,
    ) -> None:
        """Send messages to the client; those that have been tried too often go to the DLQ.

        Nothing is waited for before each message is sent, or given back: a call can be cancelled
        wherever it waits.
        """
        call = context.call
        now_ms = self._core.backend.now_ms()
        attempts_max = (config.retry_max_times if config is not None else 16) + 1
        wanted = tags_of(request.filter_expression)
        unsent: list[Callable[[], Awaitable[None]]] = []
        is_first = True
        for message in found:
            handle = f"{message.properties[p.POP_CK]} {message.commit_log_offset}"
            lite_topic = message.properties.get(p.LITE_TOPIC, "")
            if not call.is_open:
                self._core.start(self._give_back(topic, group, handle, lite_topic))
            elif wanted is not None and message.tags not in wanted:
                unsent.append(partial(self._ack_one, context, topic, group, handle, lite_topic))
            elif message.reconsume_times >= attempts_max:
                unsent.append(
                    partial(self._to_dead_letters, context, topic, group, handle, lite_topic)
                )
            else:
                if is_first:
                    self._send_received(call, Code.OK)
                    is_first = False
                piece = m.ReceiveMessageResponse()
                fill_message(piece.message, message, topic, handle=handle, now_ms=now_ms)
                call.send(piece.SerializeToString())
                self._core.received += 1
                if request.auto_renew and self._core.clients.get(client.client_id) is client:
                    self._keep(Renewal(context.client_id, handle, topic, group, lite_topic, now_ms))
        if is_first:
            self._send_received(call, Code.MESSAGE_NOT_FOUND, "no new message")
        if unsent:
            await asyncio.shield(self._core.start(self._settle(topic, group, unsent)))

    def _keep(self, renewal: Renewal) -> None:
        """A client works on a message. Nobody can renew one whose handle says nothing."""
        try:
            visible_ms = visible_at(renewal.handle)
        except MQClientError as error:
            _LOG.info("a message of topic %s cannot be renewed: %s", renewal.topic, error)
            return
        self.renewals.add(renewal, visible_ms)

    async def _settle(
        self, topic: str, group: str, unsent: list[Callable[[], Awaitable[None]]]
    ) -> None:
        """Messages that a client does not get are acknowledged, or become dead letters."""
        for settle in unsent:
            try:
                await settle()
            except (StatusError, OberthError) as error:
                # It comes again when its time is over; the others must not wait for that.
                _LOG.warning(
                    "a message of topic %s could not be settled for group %s: %s",
                    topic,
                    group,
                    error,
                )

    def _give_late_back(
        self, answer: RemotingCommand, topic: str, group: str, broker_name: str, is_lite: bool
    ) -> None:
        """A call has ended before its messages came: others get them soon."""
        if answer.code != ResponseCode.SUCCESS:
            return
        for message in popped(answer, topic, broker_name, is_lite=is_lite):
            lite_topic = message.properties.get(p.LITE_TOPIC, "")
            self._core.start(
                self._give_back(topic, group, message.properties[p.POP_CK], lite_topic)
            )

    def give_all_back(self, client: GrpcClient) -> None:
        """Hand the messages that a vanished client had in work to others."""
        self.renewals.remove_client(client.client_id)
        if self.renewals.has_left and not self._is_giving_back:
            self._is_giving_back = True
            self._core.start(self._give_back_all())

    async def _give_back_all(self) -> None:
        """As `_renew_all`: in turns of the loop, each broker's messages by a task of its own."""
        try:
            while self.renewals.has_left:
                for renewal in self.renewals.take_left(GIVEN_BACK_AT_ONCE):
                    self._hand_over(renewal, self._to_give_back, self._give_back_at)
                await asyncio.sleep(0)
        finally:
            self._is_giving_back = False

    def _hand_over(
        self,
        renewal: Renewal,
        queues: dict[str, deque[Renewal]],
        work_off: Callable[[str, deque[Renewal]], Coroutine[Any, Any, None]],
    ) -> None:
        """Puts a message into its broker's queue, which a task of its own works off."""
        broker = ReceiptHandle.parse(renewal.handle).broker_name
        waiting = queues.get(broker)
        if waiting is None:
            waiting = queues[broker] = deque()
            self._core.start(work_off(broker, waiting))
        waiting.append(renewal)

    async def _give_back_at(self, broker: str, waiting: deque[Renewal]) -> None:
        try:
            while waiting:
                some = [waiting.popleft() for _ in range(min(len(waiting), GIVEN_BACK_AT_ONCE))]
                try:
                    await asyncio.gather(*map(self._give_back_left, some))
                finally:
                    self.renewals.settled(len(some))
        finally:
            del self._to_give_back[broker]
            self.renewals.settled(len(waiting))  # one has failed as nobody foresaw

    async def _give_back_left(self, renewal: Renewal) -> None:
        await renewal.changed()
        await self._give_back(renewal.topic, renewal.group, renewal.handle, renewal.lite_topic)

    async def _give_back(self, topic: str, group: str, handle: str, lite_topic: str) -> None:
        """A message becomes visible in `GIVEN_BACK_MS`; if that fails, when its time is over."""
        try:
            parsed = ReceiptHandle.parse(handle)
            if visible_at(handle) <= self._core.backend.now_ms():
                return  # others may have it: given back, it would come twice
            header = invisible_header(topic, group, parsed, GIVEN_BACK_MS, lite_topic)
            await self._core.invoke_alone(
                parsed.broker_name,
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                header.to_ext_fields(),
            )
        except (TimeoutError, OberthError) as error:
            _LOG.info(
                "a message of topic %s could not be given back for group %s: %s",
                topic,
                group,
                error,
            )

    def renew_due(self) -> None:
        """Begin to renew the messages that are due; called about every second."""
        if not self._is_renewing:
            self._is_renewing = True
            self._core.start(self._renew_all())

    async def _renew_all(self) -> None:
        """Each broker's messages are renewed by a task of its own: one that hangs delays its own.

        What is due is handed to them in turns of the loop.
        """
        try:
            while due := self.renewals.due(self._core.backend.now_ms()):
                for renewal in due:
                    renewal.is_queued = True
                    self._hand_over(renewal, self._to_renew, self._renew_at)
                await asyncio.sleep(0)
        finally:
            self._is_renewing = False

    async def _renew_at(self, broker: str, waiting: deque[Renewal]) -> None:
        try:
            while waiting:
                some = [waiting.popleft() for _ in range(min(len(waiting), AT_ONCE_MAX))]
                await asyncio.gather(*map(self._renew, some))
        finally:
            del self._to_renew[broker]
            for renewal in waiting:  # one of those before them has failed as nobody foresaw
                renewal.is_queued = False
                if self.renewals.get(renewal.client_id, renewal.given) is renewal:
                    self.renewals.schedule(renewal, visible_at(renewal.handle))

    async def _renew(self, renewal: Renewal) -> None:
        """Renew a message, if its client still works on it."""
        renewal.is_queued = False
        if self.renewals.get(renewal.client_id, renewal.given) is not renewal:
            return
        visible_ms = visible_at(renewal.handle)
        if visible_ms <= self._core.backend.now_ms():
            # Others may have it: renewed so late, which brokers do not refuse, it would come twice.
            self.renewals.remove(renewal.client_id, renewal.given)
            return
        if renewal.is_ending:  # it may be that its acknowledgement is tried again
            self.renewals.schedule(renewal, visible_ms + AHEAD_MS + 1_000)
            return
        changing = renewal.changing = asyncio.get_running_loop().create_future()
        try:
            await self._change(renewal)
        finally:
            renewal.changing = None
            changing.set_result(None)

    async def _change(self, renewal: Renewal) -> None:
        """A message stays invisible for another while."""
        old = ReceiptHandle.parse(renewal.handle)
        header = invisible_header(
            renewal.topic, renewal.group, old, renewal.next_ms, renewal.lite_topic
        )
        try:
            answer = await self._core.invoke_alone(
                old.broker_name,
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                header.to_ext_fields(),
            )
            if answer.code != ResponseCode.SUCCESS:
                raise MQClientError(answer.remark or f"code {answer.code}")
            handle = renewed(renewal.handle, old, answer)
            visible_ms = visible_at(handle)
        except (TimeoutError, OberthError) as error:
            renewal.failures += 1
            _LOG.info(
                "the invisible time of a message of topic %s for group %s was not renewed: %s",
                renewal.topic,
                renewal.group,
                error,
            )
            again_ms = self._core.backend.now_ms() + FAILURE_PAUSE_MS
            visible_ms = visible_at(renewal.handle)
            renewal.again_ms = min(again_ms, visible_ms - LAST_TRY_MS)
            if self.renewals.get(renewal.client_id, renewal.given) is renewal:
                self.renewals.schedule(renewal, visible_ms)
            return
        renewal.failures = renewal.again_ms = 0
        renewal.steps += 1
        renewal.handle = handle
        if self.renewals.get(renewal.client_id, renewal.given) is renewal:
            self.renewals.schedule(renewal, visible_ms)

    @asynccontextmanager
    async def _ending(self, client_id: str, given: str) -> AsyncIterator[str]:
        """The handle that is valid now, for a block that ends the renewals of a message.

        Meanwhile nobody renews the message or gives it back.
        """
        renewal = self.renewals.get(client_id, given)
        if renewal is None:
            yield given
            return
        renewal.endings += 1
        try:
            await renewal.changed()
        except asyncio.CancelledError:
            self._resume_renewal(renewal)
            raise
        try:
            yield renewal.handle
        except StatusError as error:
            self._end_renewal(renewal, error.code)
            raise
        except OberthError as error:
            is_unsent = isinstance(error, RemotingConnectError | MQClientError)
            code = Code.INTERNAL_SERVER_ERROR if is_unsent else Code.PROXY_TIMEOUT
            self._end_renewal(renewal, code)
            raise
        self._end_renewal(renewal, Code.OK)

    def _end_renewal(self, renewal: Renewal, code: Code) -> None:
        """What was to end the renewals of a message has ended with a status.

        If that can be tried again, they go on; but not if the broker may have done it.
        """
        if code in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
            self.renewals.remove(renewal.client_id, renewal.given)
        elif code is not Code.PROXY_TIMEOUT:
            self._resume_renewal(renewal)

    def _resume_renewal(self, renewal: Renewal) -> None:
        """What was to end the renewals of a message was not done: they go on.

        If its client has ended meanwhile, others get the message.
        """
        renewal.endings -= 1
        if renewal.is_ending:
            return
        if renewal.is_left:
            renewal.is_left = False
            self._core.start(self._give_back_left(renewal))
        elif renewal.is_queued or renewal.changing is not None:
            return  # it is scheduled behind that
        elif self.renewals.get(renewal.client_id, renewal.given) is renewal:
            self.renewals.schedule(renewal, visible_at(renewal.handle))

    def begin_ack(self, call: Call, raw: bytes) -> bool:
        """One acknowledgement, where the broker is in this process: see `Begin`."""
        if self._core.backend.own is None:
            return False
        request = parse(m.AckMessageRequest, raw)
        if len(request.entries) != 1:
            return False
        entry = request.entries[0]
        given = entry.receipt_handle
        renewal = None
        try:
            context = self._core.admit(call)
            topic = topic_of(request.topic)
            group = group_of(request.group)
            renewal = self.renewals.get(context.client_id, given)
            if renewal is not None and renewal.changing is not None:
                return False  # what the handle will be is not known yet
            if renewal is not None:
                renewal.endings += 1
            handle = self._handle(given if renewal is None else renewal.handle, check_expiry=True)
            fields = self._ack_fields(topic, group, handle, entry.lite_topic)
            command = RemotingCommand(code=int(RequestCode.ACK_MESSAGE), ext_fields=fields)
            finish = partial(self._finish_ack, renewal, entry.message_id, given)
            self._core.begin(context, "AckMessage", command, finish)
        except StatusError as error:
            if renewal is not None:
                self._end_renewal(renewal, error.code)
            self._core.results["AckMessage", error.code] += 1
            call.finish(ack_response(error.code, error.message, entry.message_id, given))
        except OberthError as error:  # the client is gone: nothing was handed over
            if renewal is not None:
                self._end_renewal(renewal, Code.INTERNAL_SERVER_ERROR)
            self._core.refuse(call, "AckMessage", error)
        return True

    def _finish_ack(
        self, renewal: Renewal | None, message_id: str, given: str, answer: RemotingCommand
    ) -> tuple[Code, bytes]:
        code = Code.OK if answer.code == ResponseCode.SUCCESS else handle_code(answer)
        if renewal is not None:
            self._end_renewal(renewal, code)
        text = "" if code is Code.OK else answer.remark or ""
        return code, ack_response(code, text, message_id, given)

    async def ack(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        group = group_of(request.group)
        if not request.entries:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, "no entry to acknowledge")
        check_count("entries", len(request.entries))
        codes: set[int] = set()
        answers = await asyncio.gather(
            *(self._ack_entry(context, topic, group, entry) for entry in request.entries)
        )
        for entry, (code, text) in zip(request.entries, answers, strict=True):
            result = response.entries.add()
            result.message_id = entry.message_id
            result.receipt_handle = entry.receipt_handle
            set_status(result, code, text)
            codes.add(int(code))
        if len(codes) == 1:
            set_status(response, answers[0][0], answers[0][1])
        else:
            set_status(response, Code.MULTIPLE_RESULTS, "mixed results")

    async def _ack_entry(
        self, context: Context, topic: str, group: str, entry: Any
    ) -> tuple[Code, str]:
        try:
            async with self._ending(context.client_id, entry.receipt_handle) as handle:
                await self._ack_one(context, topic, group, handle, entry.lite_topic)
        except StatusError as error:
            return error.code, error.message
        except OberthError as error:
            return status_of(error)
        return Code.OK, ""

    async def _ack_one(
        self, context: Context, topic: str, group: str, text: str, lite_topic: str
    ) -> None:
        handle = await self._known_handle(text, check_expiry=True)
        fields = self._ack_fields(topic, group, handle, lite_topic)
        answer = await self._core.invoke(
            context, handle.broker_name, RequestCode.ACK_MESSAGE, fields
        )
        if answer.code != ResponseCode.SUCCESS:
            raise StatusError(handle_code(answer), answer.remark or "")

    @staticmethod
    def _ack_fields(
        topic: str, group: str, handle: ReceiptHandle, lite_topic: str
    ) -> dict[str, str]:
        """The fields of the command that acknowledges a handle."""
        header = AckMessageRequestHeader(
            consumer_group=group,
            topic=real_topic(topic, group, handle.retry_flag),
            queue_id=handle.queue_id,
            extra_info=handle.text(),
            offset=handle.offset,
            lite_topic=lite_topic or None,
        )
        return header.to_ext_fields()

    async def _known_handle(self, text: str, *, check_expiry: bool = False) -> ReceiptHandle:
        """As `_handle`; brokers are asked for again before one is unknown."""
        words = text.split(" ", CK_PARTS)
        if len(words) >= CK_PARTS:
            await self._core.look_for_broker(words[5])
        return self._handle(text, check_expiry=check_expiry)

    def _handle(self, text: str, *, check_expiry: bool = False) -> ReceiptHandle:
        try:
            handle = ReceiptHandle.parse(text)
        except MQClientError as error:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, str(error)) from None
        if not self._core.backend.has_broker(handle.broker_name):
            raise StatusError(
                Code.INVALID_RECEIPT_HANDLE,
                f"the receipt handle is of broker {handle.broker_name[:80]!r}",
            )
        if check_expiry and handle.pop_time_ms + handle.invisible_ms <= self._core.backend.now_ms():
            raise StatusError(
                Code.INVALID_RECEIPT_HANDLE,
                f"the receipt handle expired at {handle.pop_time_ms + handle.invisible_ms}",
            )
        return handle

    async def change_invisible(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        group = group_of(request.group)
        invisible_ms = ms_of(request.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise StatusError(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisibleTime is {invisible_ms} ms, allowed 0 to {INVISIBLE_MS_MAX}",
            )
        async with self._ending(context.client_id, request.receipt_handle) as text:
            handle = await self._known_handle(text, check_expiry=True)
            header = invisible_header(
                topic, group, handle, invisible_ms, request.lite_topic, suspend=request.suspend
            )
            answer = await self._core.invoke(
                context,
                handle.broker_name,
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                header.to_ext_fields(),
            )
            if answer.code != ResponseCode.SUCCESS:
                raise StatusError(handle_code(answer), answer.remark or "")
            response.receipt_handle = renewed(text, handle, answer)

    async def forward(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        group = group_of(request.group)
        # Not cancelled with its call: between its steps that would leave a dead letter and a
        # message that comes again, for one more dead letter.
        await asyncio.shield(self._core.start(self._forward(context, topic, group, request)))

    async def _forward(self, context: Context, topic: str, group: str, request: Any) -> None:
        async with self._ending(context.client_id, request.receipt_handle) as handle:
            await self._to_dead_letters(context, topic, group, handle, request.lite_topic)

    async def _to_dead_letters(
        self, context: Context, topic: str, group: str, text: str, lite_topic: str
    ) -> None:
        handle = await self._known_handle(text)
        parts = text.split(" ", CK_PARTS + 1)
        if len(parts) < 9 or not parts[8].isdecimal() or len(parts[8]) > OFFSET_DIGITS_MAX:
            raise StatusError(
                Code.INVALID_RECEIPT_HANDLE, "the receipt handle names no CommitLog offset"
            )
        header = ConsumerSendMsgBackRequestHeader(
            offset=int(parts[8]),
            group=group,
            delay_level=-1,
            origin_topic=real_topic(topic, group, handle.retry_flag),
            max_reconsume_times=0,
        )
        await self._core.checked(
            context,
            handle.broker_name,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header.to_ext_fields(),
        )
        try:
            await self._ack_one(context, topic, group, text, lite_topic)
        except (StatusError, OberthError) as error:
            # A caller that hears of it would come again, and make another dead letter each time.
            _LOG.info(
                "a dead letter of topic %s is not acknowledged for group %s, it may come again: %s",
                topic,
                group,
                error,
            )

    async def sync_lite(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        group = group_of(request.group)
        if len(request.lite_topic_set) > LITE_NAMES_MAX:
            raise StatusError(
                Code.BAD_REQUEST,
                f"{len(request.lite_topic_set)} lite topics in one call, allowed {LITE_NAMES_MAX}",
            )
        for name in request.lite_topic_set:
            check_lite_topic(name)
        option = None
        if request.HasField("offset_option"):
            kind = request.offset_option.WhichOneof("offset_type")
            if kind is not None:
                option = OffsetOption(
                    type=kind.upper(), value=int(getattr(request.offset_option, kind))
                )
        entry = LiteSubscriptionEntry(
            action=_LITE_ACTIONS.get(request.action, ""),
            client_id=context.client_id,
            group=group,
            lite_topic_set=list(request.lite_topic_set),
            offset_option=option,
            topic=topic,
            version=request.version,
        )
        code = RequestCode.LITE_SUBSCRIPTION_CTL
        body = LiteSubscriptionCtlRequestBody(subscription_set=[entry]).encode()
        if len(body) > LITE_SIZE_MAX:
            raise StatusError(
                Code.BAD_REQUEST,
                f"the lite topics take {len(body)} bytes, allowed {LITE_SIZE_MAX} in one call",
            )
        self._core.authorize(context, RemotingCommand(code=int(code), body=body))
        await self._core.check_lite(topic, group)
        await self._core.checked_everywhere(context, code, {}, body)


def receive_status(answer: RemotingCommand) -> tuple[Code, str]:
    code = answer.code
    if code in (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.NO_MESSAGE,
    ):
        return Code.MESSAGE_NOT_FOUND, "no new message"
    if code == ResponseCode.POLLING_FULL:
        return Code.TOO_MANY_REQUESTS, "polling full"
    return code_of(code), answer.remark or ""
