"""ServiceCore: what every call needs: who calls, whether it may, and the broker's answers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import Any, Final
from weakref import ref

from oberth.errors import MQClientError, OberthError, RemotingError
from oberth.formats import names
from oberth.proxy import messages as m
from oberth.proxy.authentication import Signer, check_age, signer_of
from oberth.proxy.backend import Backend, BrokerQueues, Peer
from oberth.proxy.begun import BROKER_TIMEOUT_S, BegunCall, BegunCalls, Finish, Stored
from oberth.proxy.call import Call, Handler, parse
from oberth.proxy.clients import (
    CLIENT_ID_MAX,
    CLIENTS_MAX,
    ClientTable,
    GrpcClient,
)
from oberth.proxy.codes import Code, StatusError, code_of, status_of
from oberth.proxy.convert import (
    check_name,
)
from oberth.proxy.encoding import only_status
from oberth.remoting.aio.address import Address
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.pop import ATTEMPT_ID_MAX

_LOG: Final = logging.getLogger(__name__)

BATCH_MAX: Final = 32
INVISIBLE_MS_MIN: Final = 10_000
POLL_MS_MIN: Final = 5_000
NOWHERE: Final = Address("0.0.0.0", 0)
"""Where commands come from that are no client's."""

POLL_MS_MAX: Final = 20_000
POLL_MARGIN_MS: Final = 500
"""The part of a call's deadline that is kept for sending the answer."""

NAME_SIZE_MAX: Final = 1024
"""Characters of a name that are looked at; those that may be used have less."""

NAMES_KEPT: Final = 1024
"""Names of topics, and of groups, that need not be looked at again: all were right."""

REPEATED_MAX: Final = 500
"""Messages, entries, topics or subscriptions of one call."""


Unary = Callable[["Context", Any, Any], Awaitable[None]]
"""Serves a request: fills the response, or raises StatusError."""


class Context:
    """What a call is served with.

    Attributes:
        call: the call.
        client_id: who calls; "" for an administrator, who is no client of any group.
        access_key: whose signature it bears; "" without access control.
    """

    __slots__ = ("access_key", "call", "client_id")

    def __init__(self, call: Call, client_id: str) -> None:
        self.call = call
        self.client_id = client_id
        self.access_key = ""


def check_count(what: str, count: int) -> None:
    """Whether a call is about few enough things to serve them in one turn of the loop.

    Raises:
        StatusError: it is not.
    """
    if count > REPEATED_MAX:
        raise StatusError(Code.BAD_REQUEST, f"{count} {what}, allowed {REPEATED_MAX}")


def check_attempt_id(text: str) -> None:
    """Whether a broker may keep this with each ordered queue: the official clients send 36.

    Raises:
        StatusError: it may not.
    """
    if len(text) > ATTEMPT_ID_MAX:
        raise StatusError(
            Code.BAD_REQUEST,
            f"an attempt id of {len(text)} characters, allowed {ATTEMPT_ID_MAX}",
        )


def set_status(message: Any, code: Code, text: str = "") -> None:
    """Puts a status into a response; into its remark if it has none."""
    if not hasattr(message, "status"):
        message.remark = f"{code.name}: {text}" if text else code.name
        return
    message.status.code = int(code)
    message.status.message = text or code.name


def topic_of(resource: Any) -> str:
    """The name of a topic that clients may use.

    Raises:
        StatusError: ILLEGAL_TOPIC: it is none.
    """
    return _checked_topic(_short(resource.name, "topic", Code.ILLEGAL_TOPIC))


def _short(name: str, what: str, code: Code) -> str:
    if len(name) > NAME_SIZE_MAX:
        raise StatusError(code, f"{what} of {len(name)} characters, allowed {NAME_SIZE_MAX}")
    return name


@lru_cache(NAMES_KEPT)
def _checked_topic(name: str) -> str:
    check_name(name, "topic", Code.ILLEGAL_TOPIC)
    try:
        names.check_topic(name)
    except OberthError as error:
        raise StatusError(Code.ILLEGAL_TOPIC, str(error)) from None
    if names.is_system_topic(name):
        raise StatusError(Code.ILLEGAL_TOPIC, f"cannot access system topic {name}")
    return name


def group_of(resource: Any) -> str:
    """The name of a group that clients may use.

    Raises:
        StatusError: ILLEGAL_CONSUMER_GROUP: it is none.
    """
    return _checked_group(_short(resource.name, "group", Code.ILLEGAL_CONSUMER_GROUP))


@lru_cache(NAMES_KEPT)
def _checked_group(name: str) -> str:
    check_name(name, "group", Code.ILLEGAL_CONSUMER_GROUP)
    try:
        names.check_group(name)
    except OberthError as error:
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, str(error)) from None
    if names.is_system_group(name):
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, f"cannot use system group {name}")
    return name


def unknown_topic(topic: str) -> StatusError:
    """The answer about a topic that no broker has."""
    return StatusError(
        Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {topic}"
    )


def another_users(client_id: str) -> StatusError:
    """The answer to who names himself as a client of another user."""
    return StatusError(Code.UNAUTHORIZED, f"client id {client_id[:80]!r} is another user's")


class ServiceCore:
    """The state that the parts of a service share.

    Args:
        backend: where topics, groups and messages are.
        date_age_max_s: how old a signed date may be; 0: any age.
        check_types: whether a message must be of its topic's type.
        invisible_ms_min: the shortest time for which a message is handed out.
        poll_ms_min: the shortest time for which a receive waits.

    Attributes:
        clients: that are known.
        results: calls that ended, by method and RocketMQ's code.
        sent, received: messages that were stored, and handed out.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        date_age_max_s: int = 0,
        check_types: bool = True,
        invisible_ms_min: int = INVISIBLE_MS_MIN,
        poll_ms_min: int = POLL_MS_MIN,
    ) -> None:
        self.backend = backend
        self.clients = ClientTable()
        self.results: Counter[tuple[str, int]] = Counter()
        self.sent = self.received = 0
        self.check_types = check_types
        self.invisible_ms_min = invisible_ms_min
        self.poll_ms_min = poll_ms_min
        self._date_age_max_s = date_age_max_s
        self._own_peer: Peer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = BegunCalls()

    def begin(
        self,
        context: Context,
        method: str,
        request: RemotingCommand,
        finish: Finish,
        stored: Stored | None = None,
    ) -> None:
        """Hand a command to the broker in this process; the call ends when it answers.

        `read_done` follows.

        Raises:
            StatusError: the caller may not ask for this.
            OberthError: the broker cannot be asked.
        """
        own = self.backend.own
        assert own is not None, "calls are begun where the broker is in this process"
        request.language = context.call.metadata.get("x-mq-language", "OTHER")
        self.authorize(context, request)
        begun = BegunCall(context.call, method, self.results, finish, stored)
        begun.submit(own.peer_of(self.client(context).peer), request)
        self._begun.add(begun)

    def read_done(self, connection: object) -> None:
        """The calls that came in one read of a connection have begun."""
        self.backend.read_done(connection)
        self._begun.read_done()

    def refuse(self, call: Call, method: str, error: StatusError | OberthError) -> None:
        """End a begun call, of whose response the first field is the status, with that alone."""
        if isinstance(error, StatusError):
            code, text = error.code, error.message
        else:
            code, text = status_of(error)
        self.results[method, code] += 1
        call.finish(only_status(code, text))

    def unary(self, name: str, serve: Unary, *, for_admin: bool = False) -> Handler:
        """What serves a call with one message there and one back.

        Args:
            name: of the call.
            serve: fills the response.
            for_admin: whether it is a call of ``Admin``.
        """
        method = (m.ADMIN_METHODS if for_admin else m.METHODS)[name]
        request_class = m.message_class(method.request)
        response_class = m.message_class(method.response)

        async def handle(call: Call) -> None:
            request = parse(request_class, await call.only_message())
            response = response_class()
            try:
                context = self.admit(call, for_admin=for_admin)
                set_status(response, Code.OK)
                await serve(context, request, response)
            except StatusError as error:
                response = response_class()
                set_status(response, error.code, error.message)
            except OberthError as error:
                response = response_class()
                set_status(response, *status_of(error))
            status = getattr(response, "status", None)
            self.results[name, int(Code.OK) if status is None else status.code] += 1
            call.send(response.SerializeToString())

        return handle

    def admit(self, call: Call, *, for_admin: bool = False) -> Context:
        """Who calls, if it may.

        Raises:
            StatusError: it may not, or does not say who it is.
        """
        client_id = "" if for_admin else call.metadata.get("x-mq-client-id", "")
        if not for_admin and not 0 < len(client_id) <= CLIENT_ID_MAX:
            raise StatusError(
                Code.CLIENT_ID_REQUIRED,
                f"client id of {len(client_id)} characters, allowed 1 to {CLIENT_ID_MAX}",
            )
        context = Context(call, client_id)
        signer = self.signer(call)
        if signer.access_key and self._date_age_max_s:
            check_age(signer, self.backend.now_ms(), self._date_age_max_s)
        context.access_key = signer.access_key
        known = self.clients.get(context.client_id)
        if known is not None and known.access_key != context.access_key:
            raise another_users(context.client_id)
        return context

    def signer(self, call: Call) -> Signer:
        """Who has signed a call, whenever that was.

        Raises:
            StatusError: UNAUTHORIZED: nobody who is known now.
        """
        signer = signer_of(call.metadata)
        refusal = self.backend.unknown_signer(call.channel.remote.host, *signer)
        if refusal is not None:
            raise StatusError(Code.UNAUTHORIZED, refusal)
        return signer

    def authorize(self, context: Context, request: RemotingCommand) -> None:
        """Whether the caller may ask for this.

        Raises:
            StatusError: UNAUTHORIZED: it may not.
        """
        refusal = self.backend.refusal(
            context.call.channel.remote.host, context.access_key, request
        )
        if refusal is not None:
            raise StatusError(Code.UNAUTHORIZED, refusal)

    def authorize_sending(self, context: Context, topic: str) -> None:
        """Whether the caller may send to a topic. Who may not is told nothing else of it.

        Raises:
            StatusError: UNAUTHORIZED: it may not.
        """
        fields = {"b": topic}
        self.authorize(
            context, RemotingCommand(code=int(RequestCode.SEND_MESSAGE_V2), ext_fields=fields)
        )

    def client(self, context: Context) -> GrpcClient:
        """The client of a call, known or new.

        Raises:
            StatusError: UNAUTHORIZED: meanwhile another user has become it; TOO_MANY_REQUESTS.
        """
        now = asyncio.get_running_loop().time()
        channel = context.call.channel
        client = self.clients.get(context.client_id)
        if client is None:
            if len(self.clients) >= CLIENTS_MAX:
                raise StatusError(
                    Code.TOO_MANY_REQUESTS, f"{len(self.clients)} clients, allowed {CLIENTS_MAX}"
                )
            client = GrpcClient(
                context.client_id,
                context.access_key,
                self.backend.peer(channel.remote, channel.local),
                channel,
                now,
            )
            self.clients.add(client)
        elif client.access_key != context.access_key:
            raise another_users(context.client_id)
        elif client.peer.is_closed:
            # The broker had given it up; it joins its groups again with its next heartbeat.
            client.reconnect(self.backend.peer(channel.remote, channel.local))
        client.last_seen = now
        client.channel = ref(channel)
        return client

    async def invoke(
        self,
        context: Context,
        broker: str,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
        *,
        timeout_s: float = BROKER_TIMEOUT_S,
        on_late: Callable[[RemotingCommand], None] | None = None,
    ) -> RemotingCommand:
        """A broker's answer to a command of this client's; ``on_late``: see `Peer.call`."""
        request = RemotingCommand(code=int(code), ext_fields=fields, body=body)
        request.language = context.call.metadata.get("x-mq-language", "OTHER")
        self.authorize(context, request)
        try:
            async with asyncio.timeout(timeout_s):
                if not context.client_id:
                    return await self._own().call(broker, request, on_late)
                client = self.client(context)
                client.asking += 1
                try:
                    return await client.peer.call(broker, request, on_late)
                finally:
                    client.asking -= 1
                    client.last_seen = asyncio.get_running_loop().time()
        except TimeoutError:
            raise StatusError(
                Code.PROXY_TIMEOUT, f"{broker} did not answer code {int(code)} in {timeout_s} s"
            ) from None

    async def invoke_alone(
        self, broker: str, code: RequestCode, fields: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        """A broker's answer to a command that is no client's."""
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            return await self._own().call(
                broker, RemotingCommand(code=int(code), ext_fields=fields, body=body)
            )

    def _own(self) -> Peer:
        if self._own_peer is None:
            self._own_peer = self.backend.peer(NOWHERE, NOWHERE)
        return self._own_peer

    async def checked(
        self,
        context: Context,
        broker: str,
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> RemotingCommand:
        """The broker's answer to a command that succeeded.

        Raises:
            StatusError: it did not.
        """
        answer = await self.invoke(context, broker, code, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise StatusError(code_of(answer.code), answer.remark or "")
        return answer

    async def checked_everywhere(
        self, context: Context, code: RequestCode, fields: dict[str, str], body: bytes
    ) -> None:
        """Have all brokers do the same; those that cannot be reached may miss it, but not all.

        Raises:
            StatusError: one refused it, or none could be reached.
        """
        brokers = await self.backend.brokers()
        unreached: list[Exception] = []

        async def ask(broker: str) -> None:
            try:
                await self.checked(context, broker, code, dict(fields), body)
            except StatusError as error:
                if error.code is not Code.PROXY_TIMEOUT:
                    raise
                unreached.append(error)
            except (RemotingError, MQClientError) as error:
                unreached.append(error)

        await asyncio.gather(*map(ask, brokers))
        for error in unreached:
            if len(unreached) == len(brokers):
                raise error
            _LOG.info("a broker has not heard of client %s: %s", context.client_id, error)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that outlives its call."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def queues(self, topic: str) -> list[BrokerQueues]:
        """Where a topic has queues.

        Raises:
            StatusError: TOPIC_NOT_FOUND: nowhere.
        """
        found = await self.backend.queues(topic)
        if not found:
            raise unknown_topic(topic)
        return found

    async def look_for_broker(self, name: str) -> None:
        """Ask for all brokers again, if none of a name is known and the last time is a while ago.

        Raises:
            OberthError: nobody can be asked.
        """
        if not self.backend.has_broker(name):
            await self.backend.brokers()

    async def check_lite(self, topic: str, group: str) -> None:
        """Whether a group may subscribe to lite topics of a topic.

        Raises:
            StatusError: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP: it is not bound to it.
        """
        kind = await self.backend.message_type(topic)
        if kind != "LITE":
            raise StatusError(
                Code.ILLEGAL_TOPIC, f"topic {topic} has no lite topics, its type is {kind or None}"
            )
        config = await self.backend.group(group)
        bound = "" if config is None else config.attributes.get("lite.bind.topic", "")
        if bound != topic:
            raise StatusError(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"group {group} is bound to topic {bound or None}, not to {topic}",
            )

    def close(self) -> None:
        """All clients leave their groups; what runs ends."""
        for client in self.clients:
            self.clients.remove(client)
        for task in self._tasks:
            task.cancel()
        if self._own_peer is not None:
            self._own_peer.close()
            self._own_peer = None
