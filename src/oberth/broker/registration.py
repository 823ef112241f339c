"""Registration: keeps the name servers informed about the broker and its topics.

Every name server gets the full table at the start, every period, and when an incremental
registration was refused; in between the topics that changed. A request to make a topic is answered
when the name servers know it, or after `ANNOUNCE_WAIT_S`, so that an unreachable one delays nobody
for longer.
RocketMQ: BrokerOuterAPI, BrokerController.registerBrokerAll.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import OberthError, RemotingError
from oberth.formats.message import CRC_MASK
from oberth.remoting.bodies.base import BodyError
from oberth.remoting.bodies.registration import RegisterBrokerBody
from oberth.remoting.bodies.route import BrokerData, KVTable, QueueData, TopicRouteData
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.namesrv import (
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.ha_service import HAService
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.static_topics import StaticTopics
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.data_version import DataVersion
    from oberth.formats.topic_config import TopicConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.aio.client import RemotingClient
    from oberth.remoting.command import RemotingCommand

_LOG: Final = logging.getLogger(__name__)

PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000
LARGE_TABLE: Final = 500
"""Topics from which name servers are asked first whether they need the table at all."""

RETRY_S: Final = 1.0
"""Seconds until the whole table is sent again after a name server did not take something, or could
not tell a slave where its master is.

Twice as many after each further attempt, up to the period; while no name server has ever answered
it stays one second.
"""

ANNOUNCE_WAIT_S: Final = 2.0
"""Seconds that the answer to who makes a topic waits for the name servers at most; requesters give
up after three."""


class Registration:
    """The registrations of one broker.

    Lifecycle: ``start`` makes the first registrations and one task; ``aclose`` unregisters and ends
    it. Everything runs on the loop.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        own: OwnAddress,
        topics: TopicConfigs,
        static_topics: StaticTopics,
        ha: HAService,
        client: RemotingClient,
        start_task: StartTask,
        answer: Callable[[Channel, RemotingCommand, RemotingCommand], RemotingCommand | None],
    ) -> None:
        self._config = config
        self._own = own
        self._topics = topics
        self._static_topics = static_topics
        self._ha = ha
        self._client = client
        self._start_task = start_task
        self._answer = answer
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._to_announce: asyncio.Future[None] | None = None
        self._announcing: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_open = False
        self._failed = False
        self._retry_s = RETRY_S
        self.stays = False
        """Whether name servers are not told at the end: the broker comes back at once."""
        self.is_isolated = False
        """Whether name servers are not to hear of the broker: not yet, see `ActingMaster`, or no
        more, see `HAService.part`."""
        self._registered: set[str] = set()
        self._complained: set[str] = set()

    async def start(self) -> None:
        """Register everywhere, and go on doing so."""
        if not self._config.namesrv_addresses:
            return
        self._is_open = True  # requests are served already: what they change now is announced next
        await self.register_all()
        self._task = asyncio.create_task(self._run(), name="oberth-registration")

    async def aclose(self) -> None:
        """Stop, and tell the name servers that the broker is gone."""
        self._is_open = False
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self._to_announce is not None:
            self._to_announce.set_result(None)
            self._to_announce = None
        if not self.stays:
            await self.withdraw()

    async def withdraw(self) -> None:
        """Tell the name servers that the broker is not there."""
        config = self._config
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=str(self._own.address),
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )

        async def unregister(address: str) -> None:
            with contextlib.suppress(RemotingError):
                await self._client.invoke(
                    address, create_request(RequestCode.UNREGISTER_BROKER, header), 1.0
                )

        await asyncio.gather(*(unregister(address) for address in self._registered))

    def topics_changed(self, topics: Iterable[str]) -> None:
        """Announce topics soon; several changes of one turn go together."""
        if self._is_open:
            self._changed.update(topics)
            self._wake.set()
            if self._to_announce is None:
                self._to_announce = asyncio.get_running_loop().create_future()

    async def announced(self) -> None:
        """Returns when the name servers have heard of every change so far, or it took too long."""
        announcement = self._to_announce or self._announcing
        if announcement is not None:
            await asyncio.wait([announcement], timeout=ANNOUNCE_WAIT_S)

    @property
    def is_announcing(self) -> bool:
        """Whether there are changes that the name servers have not heard of."""
        return self._to_announce is not None or self._announcing is not None

    def answer_when_announced(
        self, channel: Channel, request: RemotingCommand, response: RemotingCommand
    ) -> RemotingCommand | None:
        """The response, or None and it is sent as soon as the name servers know what changed.

        With SYNC_FLUSH the disk has it by then, too: see TableFiles.answer_when_on_disk. A client
        that has made a topic may send to it at once, and asks a name server where it is.
        """
        if not self.is_announcing:
            return self._answer(channel, request, response)

        async def answer() -> None:
            await self.announced()
            later = self._answer(channel, request, response)
            if later is not None:
                channel.reply(request, later)

        self._start_task(answer())
        return None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_full = self._next_full(loop.time(), 0.0, is_full=True)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_full):
                    await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            self._announcing, self._to_announce = self._to_announce, None
            is_full = loop.time() >= next_full
            self._failed = False
            try:
                if is_full:
                    await self.register_all()
                elif changed:
                    await self.register_topics(changed)
            except OberthError as error:
                self._failed = True
                _LOG.error(
                    "the registration at the name servers failed, it is tried again: %s", error
                )
            finally:
                next_full = self._next_full(loop.time(), next_full, is_full=is_full)
                if self._announcing is not None:
                    self._announcing.set_result(None)
                    self._announcing = None

    def _next_full(self, now: float, next_full: float, *, is_full: bool) -> float:
        """When the whole table is sent next, after an attempt with the whole of it or a part."""
        if self._registered and not self._failed and not self._ha.lacks_master:
            if is_full:
                self._retry_s = RETRY_S
                return now + self._period_s()
            return next_full
        if not is_full:
            return min(next_full, now + RETRY_S)  # what changed must not wait for the period
        retry_s = self._retry_s if self._registered else RETRY_S
        self._retry_s = 2 * retry_s
        return now + min(retry_s, self._period_s())

    def _period_s(self) -> float:
        period_ms = self._config.register_name_server_period_ms
        return min(max(period_ms, PERIOD_MS_MIN), PERIOD_MS_MAX) / 1000

    async def register_all(self) -> None:
        """The full table to every name server."""
        if self.is_isolated:
            return
        servers = await self._uninformed()
        if not servers:
            return
        topics = list(self._topics)
        size = self._config.split_registration_size
        version = self._topics.data_version
        if not self._config.enable_split_registration or len(topics) <= size:
            await self._register_at(servers, version, topics, self._static_topics.infos())
            return
        for start in range(0, len(topics), size):
            part = topics[start : start + size]
            is_last = start + size >= len(topics)
            await self._register_at(
                servers,
                # A name server changes nothing for a version that it has, so the parts before the
                # last have one of their own, which no table ever had.
                version if is_last else replace(version, counter=-1 - start),
                part,
                self._static_topics.infos([str(each.topic_name) for each in part]),
            )

    async def _uninformed(self) -> list[str]:
        """Name servers that have to hear of the whole table.

        One that has this version changes nothing: then a large table stays here. A slave hears from
        the answer where its master is.
        """
        addresses = self._config.namesrv_addresses
        is_small = self._config.force_register and len(self._topics) <= LARGE_TABLE
        if is_small or self._ha.is_slave:
            return list(addresses)
        outdated = await asyncio.gather(*map(self._is_outdated, addresses))
        return [each for each, is_outdated in zip(addresses, outdated, strict=True) if is_outdated]

    async def register_topics(self, topics: set[str]) -> None:
        """Some topics to every name server."""
        if self.is_isolated:
            return
        known = [found for topic in topics if (found := self._topics.get(topic)) is not None]
        if self._config.enable_single_topic_register:
            mapped = [each for each in known if self._static_topics.get(str(each.topic_name))]
            await asyncio.gather(
                *(self._register_alone(each) for each in known if each not in mapped)
            )
            known = mapped  # a mapping goes only with a registration
        if known:
            await self._register_at(
                list(self._config.namesrv_addresses),
                self._topics.data_version,
                known,
                self._static_topics.infos([str(each.topic_name) for each in known]),
                full=False,
            )

    async def _register_alone(self, topic_config: TopicConfig) -> None:
        """One topic to every name server, which keeps all that it knows of the others."""
        config = self._config
        topic_config = self._topics.as_registered(topic_config)
        topic = str(topic_config.topic_name)
        queues = QueueData(
            config.broker_name,
            topic_config.perm,
            topic_config.read_queue_nums,
            topic_config.topic_sys_flag,
            topic_config.write_queue_nums,
        )
        broker_data = BrokerData(
            {config.broker_id: str(self._own.address)},
            config.broker_name,
            config.broker_cluster_name,
        )
        body = TopicRouteData(broker_datas=[broker_data], queue_datas=[queues]).encode()

        async def register(name_server: str) -> None:
            request = create_request(
                RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopicRequestHeader(topic=topic), body
            )
            try:
                await self._client.invoke(
                    name_server, request, config.register_broker_timeout_ms / 1000
                )
            except RemotingError as error:
                self._complain(name_server, str(error))

        await asyncio.gather(*(register(each) for each in config.namesrv_addresses))

    async def _register_at(
        self,
        name_servers: list[str],
        version: DataVersion,
        topics: Sequence[TopicConfig],
        mappings: dict[str, Any],
        *,
        full: bool = True,
    ) -> None:
        config = self._config

        def encoded() -> tuple[bytes, int]:
            configs = map(self._topics.as_registered, topics)
            body = RegisterBrokerBody.of_configs(version, configs, mappings)
            data = body.encode_compressed() if config.compressed_register else body.encode()
            return data, zlib.crc32(data) & CRC_MASK

        # Some microseconds a topic: of very many a thread does it.
        is_large = len(topics) > LARGE_TABLE
        data, crc32 = await asyncio.to_thread(encoded) if is_large else encoded()
        address = str(self._own.address)
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._own.ha_address,
            broker_id=config.broker_id,
            enable_acting_master=config.enable_slave_acting_master,
            heartbeat_timeout_millis=(
                config.broker_not_active_timeout_ms if config.enable_slave_acting_master else None
            ),
            compressed=config.compressed_register,
            body_crc32=crc32,
        )
        await asyncio.gather(
            *(self._register(name_server, header, data, full=full) for name_server in name_servers)
        )

    async def _register(
        self, name_server: str, header: RegisterBrokerRequestHeader, data: bytes, *, full: bool
    ) -> None:
        timeout_s = self._config.register_broker_timeout_ms / 1000
        try:
            response = await self._client.invoke(
                name_server, create_request(RequestCode.REGISTER_BROKER, header, data), timeout_s
            )
        except RemotingError as error:
            self._complain(name_server, str(error))
            return
        if response.code != ResponseCode.SUCCESS:
            if not full:
                # It does not know the broker any more, and takes it only with its whole table.
                await self.register_all()
                return
            self._complain(name_server, f"code {response.code}: {response.remark}")
            return
        self._registered.add(name_server)
        if self._ha.is_slave:
            answer = response.header(RegisterBrokerResponseHeader)
            self._ha.master_found(answer.master_addr, answer.ha_server_addr)
        self._complained.discard(name_server)
        if full and response.body:
            try:
                order_topics = KVTable.decode(response.body_bytes()).table
            except BodyError as error:
                _LOG.warning(
                    "name server %s sent a list of ordered topics that cannot be read: %s",
                    name_server,
                    error,
                )
                return
            self._topics.set_order_topics(set(order_topics))

    async def _is_outdated(self, name_server: str) -> bool:
        """Whether a name server has another version of the table than the broker.

        False for one that cannot be asked: it is complained of, and asked again.
        """
        config = self._config
        header = QueryDataVersionRequestHeader(
            broker_name=config.broker_name,
            broker_addr=str(self._own.address),
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        request = create_request(
            RequestCode.QUERY_DATA_VERSION, header, self._topics.data_version.encode(pretty=False)
        )
        try:
            response = await self._client.invoke(
                name_server, request, config.register_broker_timeout_ms / 1000
            )
        except RemotingError as error:
            self._complain(name_server, str(error))
            return False
        return (
            response.code != ResponseCode.SUCCESS
            or response.header(QueryDataVersionResponseHeader).changed
        )

    def _complain(self, name_server: str, why: str) -> None:
        """Once for each outage: a name server that is down would fill the log."""
        self._failed = True
        if name_server not in self._complained:
            self._complained.add(name_server)
            _LOG.warning("the broker could not register at name server %s: %s", name_server, why)
