"""Telemetry: settings of clients, and commands in both directions."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

import msgspec

from oberth.client.acl import ACCESS_KEY
from oberth.client.messages import decode_messages
from oberth.errors import OberthError
from oberth.proxy import messages as m
from oberth.proxy.call import Call, CallError, GrpcStatus, parse
from oberth.proxy.clients import (
    CONSUMERS,
    LITE_CONSUMERS,
    GrpcClient,
)
from oberth.proxy.codes import Code, StatusError
from oberth.proxy.convert import (
    LITE_TOPIC_SIZE_MAX,
    consumer_data,
    fill_backoff,
    fill_message,
    set_duration,
)
from oberth.proxy.core import (
    BATCH_MAX,
    POLL_MS_MAX,
    Context,
    ServiceCore,
    check_count,
    group_of,
    set_status,
    topic_of,
)
from oberth.proxy.handles import (
    transaction_id,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.transaction import (
    CheckTransactionStateRequestHeader,
)

_LOG: Final = logging.getLogger(__name__)

LITE_QUOTA: Final = 2_000
TELEMETRY_STREAMS_MAX: Final = 8
"""Telemetry calls that one client may have open."""

QUESTIONS_A_SECOND: Final = 500
"""About clients, their streams and topics: 160 clients with one topic, which takes some 2 ms."""

ASK_S: Final = 0.002
"""How long of a turn of the loop they take. To end a stream takes as long as 20 of them."""


class _Round:
    """Clients that are to be looked at, some at a time."""

    def __init__(self) -> None:
        self._ids: list[str] = []  # the next one is the last

    def __bool__(self) -> bool:
        return bool(self._ids)

    def begin(self, client_ids: list[str]) -> None:
        """Look at all of these, at those first that wait already: one that begins often ends."""
        if self._ids:
            known, waiting = set(client_ids), set(self._ids)
            left = [each for each in self._ids if each in known]
            client_ids = [each for each in client_ids if each not in waiting] + left
        self._ids = client_ids

    def next(self) -> str:
        """The next one; there must be one."""
        return self._ids.pop()


class Telemetry:
    """Telemetry and Heartbeat."""

    def __init__(self, core: ServiceCore) -> None:
        self._core = core
        self._access_version = core.backend.access_version
        self._unsigned = _Round()  # whose signatures, and whose rights are to be looked at
        self._unchecked = _Round()
        self._left = 0  # questions that may be asked in this second
        self._is_asking = False

    async def heartbeat(self, context: Context, request: Any, response: Any) -> None:
        client = self._core.client(context)
        if client.settings is None:
            raise StatusError(
                Code.UNRECOGNIZED_CLIENT_TYPE, f"the settings of {context.client_id} are not known"
            )
        self._authorize_publishing(context, client.settings)
        await self._register(context, client)

    async def _register(self, context: Context, client: GrpcClient) -> None:
        """Tell brokers which groups a client produces and consumes for.

        Those that can be reached hear of it, and it fails only if none can be.
        """
        settings = client.settings
        body: dict[str, Any] = {"clientID": client.client_id}
        if settings.HasField("subscription"):
            body["consumerDataSet"] = [consumer_data(settings)]
        else:
            body["producerDataSet"] = [
                {"groupName": topic.name} for topic in settings.publishing.topics
            ]
        raw = msgspec.json.encode(body)
        # Where no other signs it on the way, the broker learns here whose client it is.
        fields = {ACCESS_KEY: context.access_key} if context.access_key else {}
        await self._core.checked_everywhere(context, RequestCode.HEART_BEAT, fields, raw)

    async def serve(self, call: Call) -> None:
        """Settings and commands in both directions, for as long as the client lives."""
        try:
            context = self._core.admit(call)
            client = self._core.client(context)
            self._hear(client, call)
        except StatusError as error:
            raise _ended(error) from None
        try:
            async for raw in call.messages():
                command = parse(m.TelemetryCommand, raw)
                try:
                    client = self._core.client(context)
                    if call not in client.streams:
                        self._hear(client, call)
                    kind = command.WhichOneof("command")
                    if kind == "settings":
                        await self._merge_settings(context, client, command.settings)
                        await self._register(context, client)
                except StatusError as error:
                    raise _ended(error) from None
                except OberthError as error:
                    text = f"{type(error).__name__}: {error}"
                    raise CallError(GrpcStatus.INTERNAL, text) from None
                if kind == "settings":
                    answer = m.TelemetryCommand()
                    set_status(answer, Code.OK)
                    answer.settings.CopyFrom(client.settings)
                    call.send(answer.SerializeToString())
                elif kind == "thread_stack_trace":
                    client.answered(command.thread_stack_trace.nonce, command)
                elif kind == "verify_message_result":
                    client.answered(command.verify_message_result.nonce, command)
        finally:
            known = self._core.clients.get(context.client_id)
            if known is not None and call in known.streams:
                known.streams.remove(call)
                if not known.streams:
                    known.peer.on_request = None

    def end_refused(self) -> None:
        """End streams that would not be admitted any more; clients with none left are refused.

        A client with an open stream is never forgotten: it is told what brokers ask of it, and what
        it has in work stays hidden from others. So when users, policies or accounts have changed,
        each call, about every second, begins to ask about some of the clients whether their users
        still are who they were, and whether they may do what their settings say. How old the date
        is that was signed does not matter here.
        """
        version = self._core.backend.access_version
        if version != self._access_version:
            self._access_version = version
            self._unsigned.begin(self._core.clients.ids())
            self._unchecked.begin(self._core.clients.ids())
        self._left = QUESTIONS_A_SECOND
        if not self._is_asking:
            self._ask_some()

    def _ask_some(self) -> None:
        """Ask what may be asked in this second; of what takes long some in a turn of the loop."""
        self._is_asking = False
        loop = asyncio.get_running_loop()
        until = loop.time() + ASK_S
        # Signatures come first, as settings may name very many topics; but changes may come again
        # and again, and the rest must not wait for their end.
        kept = QUESTIONS_A_SECOND // 5 if self._unchecked else 0
        for clients, kept_now, ask in (
            (self._unsigned, kept, self._end_unsigned),
            (self._unchecked, 0, self._end_unauthorized),
        ):
            while clients and self._left > kept_now:
                client = self._core.clients.get(clients.next())
                self._left -= 1
                if client is not None and client.streams:
                    self._left -= ask(client)
                if loop.time() >= until:
                    self._is_asking = True
                    loop.call_soon(self._ask_some)
                    return

    def _end_unsigned(self, client: GrpcClient) -> int:
        """End streams whose signatures are nobody's any more; how many were looked at."""
        streams = list(client.streams)
        for call in streams:
            try:
                self._core.signer(call)
            except StatusError as error:
                _end(client, call, error)
        return len(streams)

    def _end_unauthorized(self, client: GrpcClient) -> int:
        """End the streams of a client that may not do what it does; how many topics that takes."""
        try:
            self._check_rights(client, client.streams[-1])
        except StatusError as error:
            for call in list(client.streams):
                _end(client, call, error)
        return _topic_count(client)

    def _check_rights(self, client: GrpcClient, call: Call) -> None:
        """Whether a client may still do what its settings say, from where a stream comes.

        Raises:
            StatusError: UNAUTHORIZED: it may not.
        """
        context = Context(call, client.client_id)
        context.access_key = client.access_key
        settings = client.settings
        if settings is None:
            return
        if settings.HasField("subscription"):
            topics = [entry.topic.name for entry in settings.subscription.subscriptions]
            self._authorize(context, client.group, topics)
        else:
            self._authorize_publishing(context, settings)

    def _authorize_publishing(self, context: Context, settings: Any) -> None:
        """Who may not send to a topic is not asked about its transactions, with their messages.

        Raises:
            StatusError: UNAUTHORIZED: it may not.
        """
        for topic in settings.publishing.topics:
            self._core.authorize_sending(context, topic.name)

    def _authorize(self, context: Context, group: str, topics: list[str]) -> None:
        """Who may not read topics for a group is told nothing else of them.

        Raises:
            StatusError: UNAUTHORIZED: it may not.
        """
        for topic in topics:
            fields = {"consumerGroup": group, "topic": topic}
            self._core.authorize(
                context, RemotingCommand(code=int(RequestCode.POP_MESSAGE), ext_fields=fields)
            )

    def _hear(self, client: GrpcClient, call: Call) -> None:
        """Over this stream the client hears what brokers ask; without one others are asked.

        Raises:
            StatusError: UNAUTHORIZED: nobody has signed the call, any more, or he may not do from
                there what the client's settings say.
        """
        try:
            self._core.signer(call)
            self._check_rights(client, call)
        except StatusError:
            client.is_refused = not client.streams
            raise
        if len(client.streams) >= TELEMETRY_STREAMS_MAX:
            client.streams.pop(0).end(GrpcStatus.UNAVAILABLE, "too many Telemetry streams")
        client.is_refused = False
        client.streams.append(call)
        client.peer.on_request = partial(self.on_broker_request, client)

    async def _merge_settings(self, context: Context, client: GrpcClient, sent: Any) -> None:
        """The client's settings, completed by those that the server decides."""
        self._core.clients.check_settings(client, sent)
        merged = m.Settings()
        merged.CopyFrom(sent)
        merged.DiscardUnknownFields()
        merged.metric.Clear()
        merged.metric.SetInParent()  # off: nobody here takes them
        if sent.HasField("publishing"):
            check_count("topics", len(sent.publishing.topics))
            for topic in sent.publishing.topics:
                topic_of(topic)
            self._authorize_publishing(context, sent)
            merged.publishing.max_body_size = self._core.backend.body_max
            merged.publishing.validate_message_type = self._core.check_types
            merged.backoff_policy.max_attempts = 3
            backoff = merged.backoff_policy.exponential_backoff
            set_duration(backoff.initial, 10)
            set_duration(backoff.max, 1000)
            backoff.multiplier = 2
        elif sent.HasField("subscription"):
            if sent.client_type not in CONSUMERS:
                raise StatusError(
                    Code.UNRECOGNIZED_CLIENT_TYPE,
                    f"client type {sent.client_type} has a subscription, allowed "
                    f"{', '.join(CONSUMERS.values())}",
                )
            group = group_of(sent.subscription.group)
            check_count("subscriptions", len(sent.subscription.subscriptions))
            topics = [topic_of(entry.topic) for entry in sent.subscription.subscriptions]
            self._authorize(context, group, topics)
            if sent.client_type in LITE_CONSUMERS:
                for topic in topics:
                    await self._core.check_lite(topic, group)
            config = await self._core.backend.group(group)
            if config is None and self._core.backend.own is not None:
                raise StatusError(
                    Code.CONSUMER_GROUP_NOT_FOUND,
                    f"group {group} does not exist, and no group is made at its first use",
                )
            merged.subscription.receive_batch_size = BATCH_MAX
            set_duration(merged.subscription.long_polling_timeout, POLL_MS_MAX)
            merged.subscription.fifo = bool(config is not None and config.consume_message_orderly)
            if sent.client_type in LITE_CONSUMERS:
                merged.subscription.lite_subscription_quota = LITE_QUOTA
                merged.subscription.max_lite_topic_size = LITE_TOPIC_SIZE_MAX
            fill_backoff(merged.backoff_policy, config)
        else:
            raise StatusError(Code.UNRECOGNIZED_CLIENT_TYPE, "neither publishing nor subscription")
        if self._core.clients.get(client.client_id) is not client:
            raise StatusError(
                Code.INTERNAL_SERVER_ERROR, f"the client {client.client_id} has ended meanwhile"
            )
        self._core.clients.keep_settings(client, merged)

    async def on_broker_request(
        self, client: GrpcClient, broker: str, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Serve a request of a broker to a client."""
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            header = request.header(CheckTransactionStateRequestHeader)
            for message in decode_messages(request.body_bytes(), ""):
                command = m.TelemetryCommand()
                orphan = command.recover_orphaned_transaction_command
                fill_message(
                    orphan.message, message, message.topic, handle=None,
                    now_ms=self._core.backend.now_ms(),
                )  # fmt: skip
                orphan.transaction_id = transaction_id(
                    header.transaction_id or "",
                    header.tran_state_table_offset,
                    header.commit_log_offset,
                    broker,
                )
                client.tell(command)
            return None
        command = m.TelemetryCommand()
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            answer = await client.ask(command, command.print_thread_stack_trace_command)
            body = {"jstack": answer.thread_stack_trace.thread_stack_trace}
            return create_response(request, ResponseCode.SUCCESS, body=msgspec.json.encode(body))
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            (message,) = decode_messages(request.body_bytes(), "")
            verify = command.verify_message_command
            fill_message(
                verify.message,
                message,
                message.topic,
                handle=None,
                now_ms=self._core.backend.now_ms(),
            )
            answer = await client.ask(command, verify)
            result = "CR_SUCCESS" if answer.status.code == Code.OK else "CR_LATER"
            body = {"consumeResult": result, "order": False, "autoCommit": True}
            return create_response(request, ResponseCode.SUCCESS, body=msgspec.json.encode(body))
        if request.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            command.notify_unsubscribe_lite_command.lite_topic = request.fields.get("liteTopic", "")
            client.tell(command)
        return None


def _topic_count(client: GrpcClient) -> int:
    """How many topics a client produces for or subscribes to."""
    settings = client.settings
    if settings is None:
        return 0
    return len(settings.subscription.subscriptions) + len(settings.publishing.topics)


def _end(client: GrpcClient, call: Call, error: StatusError) -> None:
    """A stream is admitted no longer."""
    _LOG.info("a stream of client %s ends: %s", client.client_id, error.message)
    how = _ended(error)
    client.streams.remove(call)
    if not client.streams:
        client.is_refused = True
        client.peer.on_request = None
    call.end(how.status, how.message)


def _ended(error: StatusError) -> CallError:
    """How a stream ends that goes on no further."""
    is_peers = 40000 <= error.code < 50000
    status = GrpcStatus.INVALID_ARGUMENT if is_peers else GrpcStatus.INTERNAL
    return CallError(status, error.message)
