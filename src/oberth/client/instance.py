"""ClientInstance: what all producers and consumers of one configuration share.

One connection to each address, the cache of routes, heartbeats, the clock of rebalances and offset
commits, and the requests that brokers start. RocketMQ: MQClientInstance, MQClientAPIImpl.

Lifecycle: made and found by ``ClientInstance.acquire``, started by its first user, closed when the
last one left. Everything runs on one event loop; nothing may be called from another thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oberth.client.acl import SessionCredentials
from oberth.client.broker_requests import BrokerRequests
from oberth.client.config import ClientConfig, local_ip, split_addresses
from oberth.client.heartbeats import heartbeat_fingerprint, without_subscriptions
from oberth.client.members import InnerConsumer, InnerProducer
from oberth.client.route import (
    TopicPublishInfo,
    brokers_by_chance,
    check_route,
    is_same_route,
    publish_queues,
    subscribe_queues,
    with_queues_at_most,
)
from oberth.client.unique_ids import UniqueIds
from oberth.errors import (
    MQBrokerError,
    MQClientError,
    OberthError,
    RemotingConnectError,
    RemotingError,
    RemotingSendRequestError,
    RemotingTimeoutError,
)
from oberth.formats.names import AUTO_CREATE_TOPIC_KEY
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.channel_options import ChannelOptions
from oberth.remoting.aio.client import ClientOptions, RemotingClient
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import (
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    MessageModel,
    ProducerData,
)
from oberth.remoting.bodies.route import MASTER_ID, TopicRouteData
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_request
from oberth.remoting.command import Body as CommandBody
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.group import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from oberth.remoting.headers.namesrv import GetRouteInfoRequestHeader
from oberth.remoting.headers.send import ReplyMessageRequestHeader
from oberth.wall_clock import now_ms

if TYPE_CHECKING:
    from oberth.remoting.bodies.pop import MessageQueueAssignment

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")

NO_NAME_SERVER: Final = 10004
NOT_FOUND_TOPIC: Final = 10005
BROKER_NOT_EXIST: Final = 10003
"""MQClientError.response_code, as in RocketMQ: ClientErrorCode."""

NAME_SERVER_CODES: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""Requests that every name server knows and no broker."""

NAMESPACED: Final = "nsd"
NAMESPACE: Final = "ns"
"""Fields of every request of a client with ``namespace_v2``."""

HEARTBEAT_V2: Final = "IS_SUPPORT_HEART_BEAT_V2"
SUB_CHANGE: Final = "IS_SUB_CHANGE"
"""Fields of the answer to a heartbeat. RocketMQ: MixAll."""

NAMESRV_URL_INTERVAL_S: Final = 120.0
HEARTBEAT_AFTER_LOSS_S: Final = 0.2
"""How soon after a lost connection the broker is told again who we are."""

READ_REST_S: Final = 0.001
"""How long answers gather when hundreds are expected and they come one by one."""

ROUTE_REST_S: Final = 1.0
"""How long a topic's route is not asked for again on account of errors."""

ANY_BROKERS_MAX: Final = 2
"""Brokers that are asked, one after the other, what any of them can answer."""

REBALANCE_PAUSE_S: Final = 0.02
"""Notices that come together make one rebalance."""


class ClientInstance:
    """Shared state of clients with one configuration.

    Attributes:
        client_id: ``ip@instance``, unique in every group.
        stamps: whether requests get fields from ``stamp``.
        routes: by topic, as name servers gave them.
        brokers: addresses by broker name and id.
        now_ms: the wall clock.
    """

    _instances: weakref.WeakKeyDictionary[
        asyncio.AbstractEventLoop, dict[object, list[ClientInstance]]
    ] = weakref.WeakKeyDictionary()
    _numbers = itertools.count()

    def __init__(self, config: ClientConfig, *, stable_id: bool = False) -> None:
        self.config = config
        self.now_ms = now_ms
        ip = config.client_ip or local_ip()
        name = config.instance_name
        if name == "DEFAULT" and not stable_id:
            name = f"{os.getpid()}#{time.monotonic_ns()}{next(self._numbers)}"
        self.client_id = f"{ip}@{name}" + (f"@{config.unit_name}" if config.unit_name else "")
        self.unique_ids = UniqueIds(ip)
        self.credentials = (
            SessionCredentials(config.access_key, config.secret_key, config.security_token)
            if config.access_key
            else None
        )
        self.stamps = self.credentials is not None or bool(config.namespace_v2)
        self.routes: dict[str, TopicRouteData] = {}
        self.brokers: dict[str, dict[int, str]] = {}
        self.broker_versions: dict[str, int] = {}
        # By group, topic and broker: held by the first commit until it is answered, then None.
        self.first_commits: dict[tuple[str, str, str], asyncio.Lock | None] = {}
        self._known_fingerprints: dict[str, int] = {}  # by address: what a broker has in full
        self.producers: dict[str, InnerProducer] = {}
        self.consumers: dict[str, InnerConsumer] = {}
        self.reply_handlers: list[Callable[[ReplyMessageRequestHeader, bytes], bool]] = []
        self._publish: dict[str, TopicPublishInfo] = {}
        self._namesrv = split_addresses(config.namesrv_addr)
        self._namesrv_index = random.randrange(max(len(self._namesrv), 1))
        self._route_tasks: dict[tuple[str, bool], asyncio.Task[TopicRouteData | None]] = {}
        self._doubted: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._heartbeat_wanted = asyncio.Event()
        # By group: what has its consumer look at its queues, and the task that does.
        self._rebalances: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._users = 0
        self._started = False
        self._closed = False
        self._key: object = None
        self._loop = asyncio.get_running_loop()
        self.remoting = RemotingClient(
            BrokerRequests(
                self.producers, self.consumers, self.reply_handlers, self.rebalance_soon
            ).table(),
            ClientOptions(
                channel=ChannelOptions(read_rest_s=READ_REST_S),
                connect_timeout_s=config.connect_timeout_ms / 1000,
                timeout_s=config.mq_client_api_timeout_ms / 1000,
                tls_context=config.tls_context,
            ),
            on_close=self._on_connection_closed,
        )

    # Life cycle

    @classmethod
    async def acquire(
        cls,
        config: ClientConfig,
        *,
        producer: InnerProducer | None = None,
        consumer: InnerConsumer | None = None,
        stable_id: bool = False,
    ) -> ClientInstance:
        """The instance for a configuration on the running loop, with one more user.

        Two members of one group never share an instance: the brokers tell them apart by client id.
        """
        loop = asyncio.get_running_loop()
        by_key = cls._instances.setdefault(loop, {})
        key = (config, stable_id)
        known = by_key.setdefault(key, [])
        instance = next(
            (
                each
                for each in known
                if not each._closed
                and (producer is None or producer.group not in each.producers)
                and (consumer is None or consumer.group not in each.consumers)
            ),
            None,
        )
        if instance is None:
            if known and config.instance_name != "DEFAULT":
                group = (producer or consumer).group if producer or consumer else ""  # type: ignore[union-attr]
                raise MQClientError(
                    f"group {group} is started twice with the instance name "
                    f"{config.instance_name!r}; each member needs its own"
                )
            instance = cls(config, stable_id=stable_id)
            instance._key = key
            known.append(instance)
        instance._users += 1
        if producer is not None:
            instance.producers[producer.group] = producer
        if consumer is not None:
            instance.consumers[consumer.group] = consumer
        instance._start()
        if consumer is not None:
            wanted = asyncio.Event()
            task = instance.spawn(instance._rebalance_loop(consumer, wanted))
            instance._rebalances[consumer.group] = wanted, task
        return instance

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        config = self.config
        if config.namesrv_url:
            self.spawn(self._every(NAMESRV_URL_INTERVAL_S, self._refresh_name_servers, 0.0))
        self.spawn(self._every(config.poll_name_server_interval_ms / 1000, self.update_routes))
        self.spawn(self._heartbeat_loop())
        self.spawn(
            self._every(config.persist_consumer_offset_interval_ms / 1000, self._persist_offsets)
        )

    async def release(
        self, *, producer: InnerProducer | None = None, consumer: InnerConsumer | None = None
    ) -> None:
        """A user leaves: brokers are told, and the last one closes the connections."""
        if producer is not None and self.producers.get(producer.group) is producer:
            del self.producers[producer.group]
        if consumer is not None and self.consumers.get(consumer.group) is consumer:
            del self.consumers[consumer.group]
            _, rebalance = self._rebalances.pop(consumer.group)
            rebalance.cancel()
        try:
            if producer is not None or consumer is not None:
                await self._unregister(
                    producer.group if producer else None, consumer.group if consumer else None
                )
        finally:
            # Also when this is cancelled: who leaves has no instance any more to try again with.
            self._users -= 1
            if not self._users:
                await self._close()

    async def _close(self) -> None:
        """Nobody uses it any more; a cancellation does not keep its connections open."""
        self._closed = True
        known = self._instances.get(self._loop, {}).get(self._key)
        if known is not None and self in known:
            known.remove(self)
            if not known:
                del self._instances[self._loop][self._key]
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()

        async def end() -> None:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.remoting.aclose()

        await asyncio.shield(self._loop.create_task(end()))

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """A task that ends with the instance."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("client %s: a task in the background failed", self.client_id, exc_info=error)

    async def _every(
        self, interval_s: float, work: Callable[[], Awaitable[Any]], first_s: float | None = None
    ) -> None:
        await asyncio.sleep(interval_s if first_s is None else first_s)
        while True:
            try:
                await work()
            except OberthError as error:
                _LOG.warning(
                    "client %s: %s failed, it is tried again: %s",
                    self.client_id,
                    work.__name__,
                    error,
                )
            except Exception:  # noqa: BLE001 - the next round may go better
                _LOG.exception(
                    "client %s: %s failed, it is tried again", self.client_id, work.__name__
                )
            await asyncio.sleep(interval_s)

    # Requests

    def stamp(self, request: RemotingCommand) -> None:
        """Add what every request has: the namespace, and last the signature, which covers it."""
        if self.config.namespace_v2:
            fields = {NAMESPACED: "true", NAMESPACE: self.config.namespace_v2}
            request.ext_fields = {**request.fields, **fields}
        if self.credentials is not None:
            self.credentials.sign(request)

    async def invoke(
        self, addr: str, request: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """Ask an address; the response may have any code."""
        if self.stamps:
            self.stamp(request)
        return await self.remoting.invoke(addr, request, timeout_s)

    async def invoke_oneway(self, addr: str, request: RemotingCommand) -> None:
        """Tell an address."""
        if self.stamps:
            self.stamp(request)
        await self.remoting.invoke_oneway(addr, request)

    async def ask(
        self,
        addr: str,
        code: int,
        header: CommandHeader | None = None,
        body: CommandBody = b"",
        *,
        timeout_s: float | None = None,
        allowed: Sequence[int] = (ResponseCode.SUCCESS,),
    ) -> RemotingCommand:
        """Ask an address; only the allowed codes come back.

        Raises:
            MQBrokerError: any other code.
            RemotingError: no connection, no answer.
        """
        response = await self.invoke(addr, create_request(code, header, body), timeout_s)
        if response.code not in allowed:
            raise MQBrokerError(response.code, response.remark or "", addr)
        return response

    async def tell(
        self, addr: str, code: int, header: CommandHeader | None = None, body: CommandBody = b""
    ) -> None:
        """Tell an address something that it does not answer.

        Raises:
            RemotingError: no connection.
        """
        await self.invoke_oneway(addr, create_request(code, header, body))

    # Name servers

    @property
    def name_server_addresses(self) -> list[str]:
        """The name servers that are asked."""
        return list(self._namesrv)

    def update_name_server_addresses(self, addresses: Sequence[str]) -> None:
        """Ask others from now on."""
        if addresses and list(addresses) != self._namesrv:
            self._namesrv = list(addresses)
            self._namesrv_index = random.randrange(len(self._namesrv))

    async def _refresh_name_servers(self) -> None:
        from oberth.client.name_server_list import fetch_name_servers  # noqa: PLC0415 - few clients need it

        found = await asyncio.to_thread(fetch_name_servers, self.config.namesrv_url)
        self.update_name_server_addresses(found)

    async def ask_name_server(
        self,
        code: int,
        header: CommandHeader | None = None,
        body: CommandBody = b"",
        *,
        timeout_s: float | None = None,
        allowed: Sequence[int] = (ResponseCode.SUCCESS,),
    ) -> RemotingCommand:
        """Ask the name server that answered last, else the others in turn.

        Raises:
            MQBrokerError: a code that is not allowed.
            MQClientError: there are no name servers, or a broker's address was given for one.
            RemotingError: none of them answered.
        """
        if not self._namesrv and self.config.namesrv_url:
            await self._refresh_name_servers()
        count = len(self._namesrv)
        if not count:
            raise MQClientError(
                "no name server address is known: give namesrv_addr, or set NAMESRV_ADDR",
                NO_NAME_SERVER,
            )
        failure: RemotingError | None = None
        for _ in range(count):
            addr = self._namesrv[self._namesrv_index % len(self._namesrv)]
            try:
                return await self.ask(
                    addr, code, header, body, timeout_s=timeout_s, allowed=allowed
                )
            except RemotingError as error:
                failure = error
                self._namesrv_index += 1
            except MQBrokerError as error:
                if (
                    error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    or code not in NAME_SERVER_CODES
                ):
                    raise
                raise MQClientError(
                    f"{addr} does not know request {int(code)} and seems to be no name server: "
                    "namesrv_addr wants the address of a name server (port 9876 unless it was "
                    "changed), not of a broker (10911)",
                    NO_NAME_SERVER,
                ) from error
        assert failure is not None
        raise failure

    # Routes

    async def fetch_route(
        self, topic: str, timeout_s: float | None = None
    ) -> TopicRouteData | None:
        """The route as a name server has it now; None: no such topic."""
        response = await self.ask_name_server(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoRequestHeader(topic=topic),
            timeout_s=timeout_s,
            allowed=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
        )
        if response.code != ResponseCode.SUCCESS or not response.body_bytes():
            return None
        route = TopicRouteData.decode(response.body_bytes(), FRAME_SIZE_MAX)
        check_route(topic, route)
        return route

    async def update_route(
        self, topic: str, *, template: str = "", queue_nums_max: int = 0
    ) -> TopicRouteData | None:
        """Bring one route up to date; callers that ask at the same time share one request.

        Args:
            topic: whose route.
            template: topic whose route stands for it while it does not exist.
            queue_nums_max: queues that a topic gets that is made from the template.
        """
        return await asyncio.shield(self._route_task(topic, template, queue_nums_max))

    def _route_task(
        self, topic: str, template: str = "", queue_nums_max: int = 0
    ) -> asyncio.Task[TopicRouteData | None]:
        key = (topic, bool(template))
        task = self._route_tasks.get(key)
        if task is None:
            task = self._loop.create_task(self._update_route(topic, template, queue_nums_max))
            self._route_tasks[key] = task
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._on_route_task_done(key, task))
        return task

    def doubt_route(self, topic: str) -> asyncio.Task[TopicRouteData | None] | None:
        """Ask for the route at once, as a broker that failed may have moved, be gone or a slave.

        At most every ROUTE_REST_S, however many requests fail; the poll comes much later.

        Returns:
            The question that is on its way, or None.
        """
        now = self._loop.time()
        if now - self._doubted.get(topic, -ROUTE_REST_S) < ROUTE_REST_S:
            return self._route_tasks.get((topic, False))
        self._doubted[topic] = now
        return self._route_task(topic)

    def _on_route_task_done(
        self, key: tuple[str, bool], task: asyncio.Task[TopicRouteData | None]
    ) -> None:
        self._route_tasks.pop(key, None)
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who waited have seen it; now it counts as retrieved

    async def _update_route(
        self, topic: str, template: str, queue_nums_max: int
    ) -> TopicRouteData | None:
        route = await self.fetch_route(template or topic)
        if route is None:
            return None
        if template:
            with_queues_at_most(route, queue_nums_max)
        self._note_route(topic, route)
        return route

    def _note_route(self, topic: str, route: TopicRouteData) -> None:
        for broker in route.broker_datas:
            if self.brokers.get(broker.broker_name) != broker.broker_addrs:
                self.brokers[broker.broker_name] = dict(broker.broker_addrs)
                self.heartbeat_soon()
        if is_same_route(self.routes.get(topic), route):
            return
        self.routes[topic] = route
        self._publish.pop(topic, None)
        for producer in list(self.producers.values()):
            producer.on_route(topic)
        for consumer in list(self.consumers.values()):
            consumer.on_route(topic)

    async def update_routes(self) -> None:
        """Bring the routes of all topics in use up to date, and forget brokers that are gone."""
        topics: set[str] = set()
        for producer in self.producers.values():
            topics.update(producer.publish_topics())
        for consumer in self.consumers.values():
            topics.update(consumer.subscribed_topics())
        for topic in sorted(topics):
            try:
                await self.update_route(topic)
            except OberthError as error:
                _LOG.warning("the route of topic %s could not be asked for: %s", topic, error)
        self._doubted = {topic: at for topic, at in self._doubted.items() if topic in topics}
        self._forget_gone_brokers()

    def _forget_gone_brokers(self) -> None:
        named = {
            broker.broker_name: broker.broker_addrs
            for route in self.routes.values()
            for broker in route.broker_datas
        }
        for name in list(self.brokers):
            if name not in named:
                del self.brokers[name]

    def publish_info_nowait(self, topic: str) -> TopicPublishInfo | None:
        """The queues that a topic may be sent to, if its route is known."""
        info = self._publish.get(topic)
        if info is None:
            route = self.routes.get(topic)
            if route is None:
                return None
            queues = publish_queues(topic, route)
            if not queues:
                return None
            info = TopicPublishInfo(
                topic, queues, bool(route.order_topic_conf), random.randrange(1 << 16)
            )
            self._publish[topic] = info
        return info

    async def publish_info(
        self, topic: str, *, template: str = AUTO_CREATE_TOPIC_KEY, queue_nums: int = 4
    ) -> TopicPublishInfo:
        """The queues that a topic may be sent to.

        Raises:
            MQClientError: neither the topic nor the template has a route, or no queue of it can
                be written.
            RemotingError: no name server answered.
        """
        info = self.publish_info_nowait(topic)
        if info is not None:
            return info
        route = await self.update_route(topic)
        if route is None and template:
            route = await self.update_route(topic, template=template, queue_nums_max=queue_nums)
        info = self.publish_info_nowait(topic)
        if info is None:
            why = (
                "no route info of this topic: no name server knows it, and brokers do not create it"
                if route is None
                else "no queue may be written"
            )
            raise MQClientError(f"topic {topic}: {why}", NOT_FOUND_TOPIC)
        return info

    async def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a topic may be read from, sorted; empty: no such topic."""
        route = self.routes.get(topic)
        if route is None:
            route = await self.update_route(topic)
        return subscribe_queues(topic, route) if route is not None else []

    def master_address(self, broker_name: str) -> str | None:
        """The address of a broker's master."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def broker_address(
        self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> str | None:
        """The address of one replica; unless ``only_this``, of another when it is gone."""
        addresses = self.brokers.get(broker_name)
        if not addresses:
            return None
        addr = addresses.get(broker_id)
        if addr is None and not only_this:
            addr = next((addresses[each] for each in sorted(addresses)), None)
        return addr

    async def require_address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """The address that serves a queue, after a look at the route if need be.

        Raises:
            MQClientError: the broker is not in the route.
            RemotingError: no name server answered.
        """
        addr = self.broker_address(queue.broker_name, broker_id)
        if addr is None:
            await self.update_route(queue.topic)
            addr = self.require_address_nowait(queue, broker_id)
        return addr

    def require_address_nowait(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """The address that serves a queue, as far as it is known.

        Raises:
            MQClientError: the broker is not in the route.
        """
        addr = self.broker_address(queue.broker_name, broker_id)
        if addr is None:
            raise MQClientError(
                f"broker {queue.broker_name} of {queue.topic} has no address", BROKER_NOT_EXIST
            )
        return addr

    async def ask_any_broker(
        self,
        topic: str,
        code: int,
        header: CommandHeader | None = None,
        body: CommandBody = b"",
        *,
        silent: set[str],
    ) -> RemotingCommand | None:
        """Ask a broker of a topic what each of them can answer; None: there is nobody to ask.

        Args:
            topic: whose brokers.
            code: of the request.
            header: of the request.
            body: of the request.
            silent: names of brokers that are not asked; gets those that do not answer, after which
                another one is asked, ANY_BROKERS_MAX in all.

        Raises:
            MQBrokerError: a broker refuses.
            RemotingError: none of them answered.
        """
        route = self.routes.get(topic)
        if route is None:
            route = await self.update_route(topic)
        brokers = brokers_by_chance(route, silent) if route is not None else []
        failure: RemotingError | None = None
        for name, addr in brokers[:ANY_BROKERS_MAX]:
            try:
                return await self.ask(addr, code, header, body)
            except (
                RemotingTimeoutError, RemotingConnectError, RemotingSendRequestError
            ) as error:  # fmt: skip
                silent.add(name)
                failure = error
        if failure is not None:
            raise failure
        return None

    # Heartbeats

    def heartbeat_soon(self) -> None:
        """Tell the brokers at once who we are."""
        self._heartbeat_wanted.set()

    async def _heartbeat_loop(self) -> None:
        try:
            await self._heartbeats()
        except asyncio.CancelledError:
            if not self._closed:
                self._tell_forgotten(
                    "its event loop has ended: use `async with`, or await its shutdown()"
                )
            raise

    @classmethod
    def tell_forgotten(cls, loop: asyncio.AbstractEventLoop) -> None:
        """The program of the blocking face ends; names the clients that nobody has shut down."""
        for instances in list(cls._instances.get(loop, {}).values()):
            for instance in instances:
                if not instance._closed:
                    instance._tell_forgotten("the program ends: use `with`, or call its shutdown()")

    def _tell_forgotten(self, advice: str) -> None:
        """The loop ends under us: nobody has shut the clients down."""
        for kind, clients in (("producer", self.producers), ("consumer", self.consumers)):
            for group in clients:
                _LOG.warning(
                    "%s %s was never shut down and %s; messages that were on their way may not "
                    "have been sent",
                    kind, group, advice,
                )  # fmt: skip

    async def _heartbeats(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.config.heartbeat_broker_interval_ms / 1000):
                    await self._heartbeat_wanted.wait()
            except TimeoutError:
                pass
            self._heartbeat_wanted.clear()
            try:
                await self.send_heartbeats()
            except Exception:  # noqa: BLE001 - the next one may go better
                _LOG.exception("client %s: a heartbeat could not be sent", self.client_id)

    def heartbeat_data(self) -> HeartbeatData:
        """Who we are."""
        consumers = [consumer.consumer_data() for consumer in self.consumers.values()]
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self.producers],
            consumer_data_set=[data for data in consumers if data is not None],
        )

    async def send_heartbeats(self) -> None:
        """Tell all brokers that we know of; producers alone tell masters only."""
        data = self.heartbeat_data()
        if not data.producer_data_set and not data.consumer_data_set:
            return
        fingerprint = 0
        if self.config.use_heartbeat_v2:
            fingerprint = data.heartbeat_fingerprint = heartbeat_fingerprint(data)
        full = data.encode()
        brief = without_subscriptions(data).encode() if fingerprint else full
        addresses = [
            addr
            for by_id in self.brokers.values()
            for broker_id, addr in by_id.items()
            if data.consumer_data_set or broker_id == MASTER_ID
        ]
        await asyncio.gather(
            *(self._send_heartbeat(addr, full, brief, fingerprint) for addr in addresses)
        )

    async def _send_heartbeat(self, addr: str, full: bytes, brief: bytes, fingerprint: int) -> None:
        is_known = fingerprint and self._known_fingerprints.get(addr) == fingerprint
        try:
            body = brief if is_known else full
            response = await self.ask(addr, RequestCode.HEART_BEAT, None, body)
            self.broker_versions[addr] = response.version
            if not fingerprint:
                return
            fields = response.fields
            if fields.get(HEARTBEAT_V2) == "true" and fields.get(SUB_CHANGE) != "true":
                self._known_fingerprints[addr] = fingerprint
            else:
                # The group's subscriptions were others before: the next heartbeat has ours again.
                self._known_fingerprints.pop(addr, None)
        except (OberthError, OSError) as error:
            _LOG.info("no heartbeat could be sent to broker %s: %s", addr, error)

    async def _unregister(self, producer_group: str | None, consumer_group: str | None) -> None:
        header = UnregisterClientRequestHeader(
            client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )

        async def tell(addr: str) -> None:
            # A broker without a connection to us has already forgotten us.
            if self.remoting.channel_nowait(addr) is None:
                return
            try:
                await self.ask(addr, RequestCode.UNREGISTER_CLIENT, header, timeout_s=1.0)
            except OberthError as error:
                _LOG.info("broker %s could not be told that this client leaves: %s", addr, error)

        addresses = {addr for by_id in self.brokers.values() for addr in by_id.values()}
        await asyncio.gather(*(tell(addr) for addr in addresses))

    def _on_connection_closed(self, addr: str, channel: Channel) -> None:
        del channel
        self._known_fingerprints.pop(addr, None)
        if self._closed:
            return
        if any(addr in by_id.values() for by_id in self.brokers.values()):
            # The broker has dropped us from its groups with the connection.
            self._loop.call_later(HEARTBEAT_AFTER_LOSS_S, self._heartbeat_wanted.set)

    # Rebalance and commits

    def rebalance_soon(self) -> None:
        """Look at once which queues are ours."""
        for wanted, _ in self._rebalances.values():
            wanted.set()

    async def _rebalance_loop(self, consumer: InnerConsumer, wanted: asyncio.Event) -> None:
        interval_s = self.config.rebalance_interval_ms / 1000
        balanced = True
        while True:
            try:
                async with asyncio.timeout(interval_s if balanced else min(1.0, interval_s)):
                    await wanted.wait()
                await asyncio.sleep(REBALANCE_PAUSE_S)
            except TimeoutError:
                pass
            wanted.clear()
            balanced = await self._rebalance(consumer)

    async def _rebalance(self, consumer: InnerConsumer) -> bool:
        try:
            return await consumer.do_rebalance()
        except OberthError as error:
            _LOG.warning(
                "the queues of group %s could not be assigned, it is tried again: %s",
                consumer.group,
                error,
            )
        except Exception:  # noqa: BLE001 - strategies and rooms are the program's own code
            _LOG.exception(
                "the queues of group %s could not be assigned, it is tried again", consumer.group
            )
        return False

    async def _persist_offsets(self) -> None:
        for consumer in list(self.consumers.values()):
            try:
                await consumer.persist_offsets()
            except Exception:  # noqa: BLE001 - the other groups' are committed
                _LOG.exception(
                    "the offsets of group %s could not be committed, it is tried again",
                    consumer.group,
                )

    async def consumer_ids(self, topic: str, group: str, silent: set[str]) -> list[str] | None:
        """The members of a group, as any broker of a topic knows them; None: it could not say.

        ``silent`` is that of ``ask_any_broker``.
        """
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        header = GetConsumerListByGroupRequestHeader(consumer_group=group)
        try:
            response = await self.ask_any_broker(topic, code, header, silent=silent)
        except (MQBrokerError, RemotingError) as error:
            _LOG.info("the members of group %s could not be asked for: %s", group, error)
            return None
        if response is None:
            return None
        return GetConsumerListByGroupResponseBody.decode(response.body_bytes()).consumer_id_list

    async def query_assignment(
        self,
        topic: str,
        group: str,
        strategy_name: str,
        message_model: MessageModel,
        silent: set[str],
    ) -> list[MessageQueueAssignment] | None:
        """What a broker says are our queues of a topic; None: it cannot say now.

        ``silent`` is that of ``ask_any_broker``.

        Raises:
            MQBrokerError: the broker has no such service (before 5.0), or refuses.
            RemotingError: no answer.
        """
        from oberth.remoting.bodies.pop import (  # noqa: PLC0415 - few clients need it
            QueryAssignmentRequestBody,
            QueryAssignmentResponseBody,
        )

        body = QueryAssignmentRequestBody(
            client_id=self.client_id,
            consumer_group=group,
            message_model=message_model.value,
            strategy_name=strategy_name,
            topic=topic,
        )
        response = await self.ask_any_broker(
            topic, RequestCode.QUERY_ASSIGNMENT, None, body.encode(), silent=silent
        )
        if response is None:
            return None
        answer = QueryAssignmentResponseBody.decode(response.body_bytes())
        return answer.message_queue_assignments
