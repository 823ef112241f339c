"""ClusterBackend: brokers that name servers know, ours and Apache's, behind one gRPC port.

Routes, topics and groups are asked of name servers and brokers and believed for `FRESH_S`. Each
gRPC client has connections of its own to the brokers that it uses, so that they know it as they
know any client: its group has one more member, and what they ask of it (what became of a
transaction, stack traces) comes to it.

Brokers with access control are asked under the proxy's own credentials. Then gRPC clients must sign
as the same user: nobody gets more through the proxy than he has himself.
RocketMQ: the proxy's cluster mode.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from oberth.client.config import ClientConfig
from oberth.client.instance import ClientInstance
from oberth.errors import (
    MQBrokerError,
    MQClientError,
    OberthError,
    RemotingError,
    RemotingSendRequestError,
)
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import Permission, TopicConfig
from oberth.proxy.backend import BrokerQueues, Peer
from oberth.proxy.local import RequestHandler
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.aio.long_answers import LongAnswers
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.stage import Stage
from oberth.remoting.bodies.route import MASTER_ID, ClusterInfo
from oberth.remoting.code import LanguageCode, RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_response
from oberth.remoting.headers.admin import GetTopicConfigRequestHeader
from oberth.remoting.headers.group import GetSubscriptionGroupConfigRequestHeader
from oberth.wall_clock import now_ms

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

FRESH_S: Final = 5.0
"""How long an answer about routes, topics and groups is believed."""

PATIENCE_S: Final = 0.5
"""How long an answer is waited for where there was one before."""

BODY_MAX: Final = 4 * 1024 * 1024
"""Bytes of a message's body: RocketMQ's default of maxMessageSize."""

FACTS_MAX: Final = 10_000
"""Topics, or groups, that are remembered."""

MISSED_S: Final = 600.0
"""How long a broker is known where it was that no name server names any more: one that was just
started knows of a broker when that registers next."""

MISSED_MAX: Final = 1_000
"""Brokers of which this is known."""

CONNECT_TIMEOUT_S: Final = 1.5
"""How long a connection to a broker may take: half of the time that a call has, so that what a
silent host did not get can go to another broker, and more than the second behind which a SYN that
was lost is sent again."""

CALL_MAX_S: Final = 30.0
"""The longest that a command may take, a poll of 20 s among them."""

ASKED: Final = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
)
"""What brokers ask of clients."""

_LANGUAGES: Final = {"GOLANG": "GO", "DOT_NET": "DOTNET"}
"""Names of gRPC's that remoting has otherwise."""


class Facts(Generic[T]):
    """Answers by name, each asked again when it is older than `FRESH_S`.

    While it is asked the others that want it wait for the same answer. If there is none, or none
    within `PATIENCE_S`, the last one goes on being believed: brokers outlive their name servers,
    and one that vanished answers nothing for as long as a connection may take.
    """

    def __init__(self, ask: Callable[[str], Awaitable[T]]) -> None:
        self._ask = ask
        self._known: OrderedDict[str, tuple[float, asyncio.Task[T]]] = OrderedDict()
        self._last: dict[str, T] = {}

    async def get(self, name: str) -> T:
        """The answer for a name; raises what asking raised."""
        loop = asyncio.get_running_loop()
        at, task = self._known.get(name, (0.0, None))
        if task is None or (task.done() and (loop.time() - at >= FRESH_S or _failed(task))):
            at = loop.time()
            task = loop.create_task(self._fetch(name))
            self._known[name] = (at, task)
            self._known.move_to_end(name)
            while len(self._known) > FACTS_MAX:
                oldest, _ = self._known.popitem(last=False)
                self._last.pop(oldest, None)
        if name in self._last and not task.done():
            await asyncio.wait([task], timeout=max(at + PATIENCE_S - loop.time(), 0.0))
            if not task.done() and name in self._last:
                return self._last[name]
        return await asyncio.shield(task)

    async def _fetch(self, name: str) -> T:
        try:
            found = await self._ask(name)
        except OberthError as error:
            if name not in self._last:
                raise
            _LOG.info(
                "what is known of %r is believed further, it could not be asked for again: %s",
                name,
                error,
            )
            return self._last[name]
        if name in self._known:  # else very many others were asked for meanwhile
            self._last[name] = found
        return found

    def close(self) -> None:
        """Ask no more."""
        for _, task in self._known.values():
            task.cancel()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


class ClusterBackend:
    """All brokers of the name servers of a configuration.

    Lifecycle: ``async with``; the addresses of the brokers are known from then on.

    Args:
        config: name servers, credentials and TLS towards brokers.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._instance: ClientInstance | None = None
        self._addresses: dict[str, str] = {}
        self._missed: dict[str, tuple[str, float]] = {}  # name → address, until when in loop time
        self._cluster = Facts(self._ask_cluster)
        self._routes = Facts(self._ask_route)
        self._topics = Facts(self._ask_topic)
        self._answers = LongAnswers()
        self._groups = Facts(self._ask_group)

    async def __aenter__(self) -> ClusterBackend:
        self._instance = await ClientInstance.acquire(self._config)
        try:
            await self._cluster.get("")
        except OberthError as error:  # they may come later
            _LOG.warning("no broker is known yet, the name servers are asked again: %s", error)
        return self

    async def __aexit__(self, *_: object) -> None:
        for facts in (self._cluster, self._routes, self._topics, self._groups):
            facts.close()
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.release()

    @property
    def instance(self) -> ClientInstance:
        """Our own client of the cluster."""
        assert self._instance is not None, "the backend is not open"
        return self._instance

    # The facts

    async def _ask_cluster(self, _: str) -> dict[str, str]:
        answer = await self.instance.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = await self._answers.of_broker(
            partial(ClusterInfo.decode, lenient_size_max=FRAME_SIZE_MAX), answer.body_bytes()
        )
        table = info.broker_addr_table
        known = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in table.items()
            if MASTER_ID in data.broker_addrs
        }
        self._note_missed(known)
        self._addresses = known
        return known

    def _note_missed(self, known: dict[str, str]) -> None:
        """Keep the addresses of brokers that were known and are not named any more.

        An address that another broker has now is not kept.
        """
        now = asyncio.get_running_loop().time()
        missed = {
            name: (address, now + MISSED_S) for name, address in self._addresses.items()
        } | self._missed
        taken = set(known.values())
        left = [
            (name, entry)
            for name, entry in missed.items()
            if name not in known and entry[0] not in taken and entry[1] > now
        ]
        self._missed = dict(left[:MISSED_MAX])

    async def _ask_route(self, topic: str) -> list[BrokerQueues]:
        route = await self.instance.fetch_route(topic)
        if route is None:
            return []
        masters = {
            each.broker_name for each in route.broker_datas if MASTER_ID in each.broker_addrs
        }
        return [
            BrokerQueues(
                data.broker_name,
                MASTER_ID,
                data.read_queue_nums,
                data.write_queue_nums,
                bool(data.perm & Permission.READ),
                bool(data.perm & Permission.WRITE),
            )
            for data in sorted(route.queue_datas, key=lambda each: each.broker_name)
            if data.broker_name in masters
        ]

    async def _ask_topic(self, topic: str) -> str:
        unreached: OberthError | None = None
        for queues in await self._routes.get(topic):
            try:
                answer = await self.instance.ask(
                    await self.address(queues.broker_name),
                    RequestCode.GET_TOPIC_CONFIG,
                    GetTopicConfigRequestHeader(topic=topic),
                    allowed=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
                )
            except (RemotingError, MQClientError) as error:
                unreached = error  # the others know it as well
                continue
            if answer.code == ResponseCode.SUCCESS:
                config = await self._answers.of_broker(TopicConfig.decode, answer.body_bytes())
                return config.attributes.get("message.type", "")
        if unreached is not None:
            raise unreached
        return ""

    async def _ask_group(self, group: str) -> SubscriptionGroupConfig | None:
        unreached: OberthError | None = None
        for broker in await self.brokers():
            try:
                answer = await self.instance.ask(
                    await self.address(broker),
                    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
                    GetSubscriptionGroupConfigRequestHeader(group=group),
                )
            except MQBrokerError:
                continue  # this one does not have it
            except (RemotingError, MQClientError) as error:
                unreached = error
                continue
            return await self._answers.of_broker(
                SubscriptionGroupConfig.decode, answer.body_bytes()
            )
        if unreached is not None:
            raise unreached
        return None

    async def address(self, broker: str) -> str:
        """Where a broker's master is, or was not long ago.

        Raises:
            MQClientError: no name server knows it.
        """
        found = (await self._cluster.get("")).get(broker)
        if found is None and self.has_broker(broker):
            found, _ = self._missed.get(broker, (None, 0.0))
        if found is None:
            raise MQClientError(f"broker {broker[:80]!r} is not known to any name server")
        return found

    async def forget_offsets(self, group: str, topic: str) -> None:
        """Brokers have no command for that."""
        raise MQClientError("brokers have no command that deletes a group's offsets in a topic")

    def now_ms(self) -> int:
        """The wall clock; brokers and proxy shall agree about it."""
        return now_ms()

    async def brokers(self) -> list[str]:
        """The names of the masters."""
        return sorted(await self._cluster.get(""))

    async def queues(self, topic: str) -> list[BrokerQueues]:
        """Where a topic has queues; nothing for an unknown one."""
        return await self._routes.get(topic)

    async def message_type(self, topic: str) -> str:
        """The attribute ``message.type`` of a topic, "" without one."""
        return await self._topics.get(topic)

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """A group's configuration."""
        return await self._groups.get(name)

    @property
    def body_max(self) -> int:
        """RocketMQ's default: brokers do not tell clients their own."""
        return BODY_MAX

    @property
    def own(self) -> None:
        """All brokers are elsewhere."""
        return

    def read_done(self, connection: object) -> None:
        """Nothing to do: commands leave by themselves."""

    def has_broker(self, name: str) -> bool:
        """Whether a broker of this name is known, or was not long ago."""
        if name in self._addresses:
            return True
        _, until = self._missed.get(name, ("", 0.0))
        return until > asyncio.get_running_loop().time()

    def not_ready(self) -> str | None:
        """Why no messages are taken, or None."""
        return None if self._addresses else "no broker is known"

    def peer(self, remote: Address, local: Address) -> Peer:
        """A new client, with connections of its own."""
        return ClusterPeer(self, remote)

    # Access

    def unknown_signer(
        self, host: str, access_key: str, content: bytes, signature: bytes
    ) -> str | None:
        """Without credentials of our own anybody may ask; else who has the same."""
        own = self.instance.credentials
        if own is None:
            return None
        if not access_key:
            return f"No accessKey is configured, request from {host}"
        wanted = hmac.new(own.secret_key.encode(), content, hashlib.sha1).digest()
        if access_key != own.access_key or not hmac.compare_digest(wanted, signature):
            return f"Check signature failed for accessKey={access_key[:80]}"
        return None

    def refusal(self, host: str, access_key: str, request: RemotingCommand) -> str | None:
        """Brokers decide what their user may do."""
        return None

    @property
    def access_version(self) -> None:
        """Our credentials are what they were at the start; brokers do not tell of theirs."""
        return


class ClusterPeer:
    """One gRPC client as brokers see it.

    Attributes:
        on_request: serves what brokers ask of the client.
        on_rest: see `Peer`.
        is_closed: whether the client is gone.
    """

    def __init__(self, backend: ClusterBackend, remote: Address) -> None:
        self._backend = backend
        self._remote = remote
        self.on_request: RequestHandler | None = None
        self.on_rest: Callable[[float], None] | None = None
        self.is_closed = False
        table = ProcessorTable()
        table.async_(ASKED, self._serve, stage=Stage("grpc", tasks=4))
        options = backend.instance.remoting.options
        connect_s = min(options.connect_timeout_s, CONNECT_TIMEOUT_S)
        self._client = RemotingClient(table, replace(options, connect_timeout_s=connect_s))
        self._brokers: dict[Channel, str] = {}
        # What is open on which connection, and what of it nobody waits for any more.
        self._work: dict[asyncio.Task[Any], Channel] = {}
        self._left: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<ClusterPeer {self._remote}>"

    async def call(
        self,
        broker: str,
        request: RemotingCommand,
        on_late: Callable[[RemotingCommand], None] | None = None,
    ) -> RemotingCommand:
        """See `Peer.call`.

        Raises:
            RemotingSendRequestError: the client has ended meanwhile.
        """
        try:
            return await self._call(broker, request, on_late)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.is_closed and task is not None and not task.cancelling():
                # Not who called was cancelled: `close` ended what it waited for.
                raise RemotingSendRequestError(f"{self._remote} is gone") from None
            raise

    async def _call(
        self,
        broker: str,
        request: RemotingCommand,
        on_late: Callable[[RemotingCommand], None] | None,
    ) -> RemotingCommand:
        address = await self._backend.address(broker)
        channel = await self._client.channel(address)
        self._brokers = {
            each: name for each, name in self._brokers.items() if not each.is_closed
        } | {channel: broker}
        language = request.language or ""
        language = _LANGUAGES.get(language, language)
        request.language = language if language in LanguageCode.__members__ else "OTHER"
        instance = self._backend.instance
        if instance.stamps:
            instance.stamp(request)
        if _has_no_answer(request):
            await self._client.invoke_oneway(address, request)
            return create_response(request, ResponseCode.SUCCESS)
        work = asyncio.get_running_loop().create_task(
            self._client.invoke(address, request, CALL_MAX_S)
        )
        self._work[work] = channel
        work.add_done_callback(self._on_done)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if on_late is None:
                work.cancel()
            else:
                work.add_done_callback(lambda done: _late(done, on_late))
                if request.code == RequestCode.POP_MESSAGE and not work.done():
                    self._left.add(work)
                    self._end_if_left(channel)
            raise

    def _on_done(self, work: asyncio.Task[Any]) -> None:
        channel = self._work.pop(work)
        self._left.discard(work)
        self._end_if_left(channel)

    def _end_if_left(self, channel: Channel) -> None:
        """Close a connection that has nothing open but receives that were given up.

        Remoting has no word for "no more", but a broker wakes no pop of a closed connection; each
        would take a message for a second. The next call opens another one. Subscriptions to lite
        topics end with their connection, so their receives are left alone.
        """
        if not self._left:
            return
        open_here = {work for work, at in self._work.items() if at is channel}
        if open_here and open_here <= self._left:
            channel.close()

    async def _serve(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        if self.on_request is None:
            return create_response(request, ResponseCode.SYSTEM_ERROR, "the client is gone")
        return await self.on_request(self._brokers.get(channel, ""), request)

    def close(self) -> None:
        """The client is gone: its connections end, and brokers take it out of its groups."""
        self.on_request = None
        self.on_rest = None
        self.is_closed = True
        for work in self._work:
            work.cancel()
        closing = asyncio.get_running_loop().create_task(self._client.aclose())
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)


_CLOSING: Final[set[asyncio.Task[None]]] = set()
"""Connections on their way out; a task that nobody holds may be collected."""


def _has_no_answer(request: RemotingCommand) -> bool:
    """Whether Apache's brokers leave a command unanswered: an end that decides nothing."""
    return (
        request.code == RequestCode.END_TRANSACTION
        and request.fields.get("commitOrRollback") == "0"
    )


def _late(work: asyncio.Task[RemotingCommand], on_late: Callable[[RemotingCommand], None]) -> None:
    if not work.cancelled() and work.exception() is None:
        on_late(work.result())
