"""NameServer: the route table and the KV configuration on a socket.

RocketMQ: ``NamesrvController``, ``DefaultRequestProcessor``, ``ClientRequestProcessor``. Every
broker registers with every name server; clients use any one. All state but the KV configuration is
memory: what a restart loses comes back with the brokers' next registrations, within 30 seconds.

    async with NameServer(NamesrvConfig(listen_port=9876)) as name_server:
        name_server.address
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from oberth.errors import ConfigFormatError, OptionError, RemotingError
from oberth.formats.data_version import DataVersion
from oberth.formats.java_properties import format_properties, parse_properties
from oberth.formats.options import change_options
from oberth.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfigTable
from oberth.namesrv.namesrv_config import CHANGEABLE, KEYS_WITHOUT_EFFECT, NamesrvConfig
from oberth.namesrv.registrations import BROKER_TIMEOUT_MS, MinBrokerIdChange, Registration
from oberth.namesrv.route_table import UNIT_FLAG, UNIT_SUB_FLAG, RouteOptions, RouteTable
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient, own_requests
from oberth.remoting.aio.loop import REQUESTS_NEED, import_soon
from oberth.remoting.aio.processors import (
    SERVER_BODY_SIZE_MAX,
    ProcessorTable,
    SlicedHandler,
)
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.aio.service import Service
from oberth.remoting.aio.stage import Stage, SyncHandler
from oberth.remoting.bodies.base import BodyError, render_in_slices
from oberth.remoting.bodies.registration import RegisterBrokerBody
from oberth.remoting.bodies.route import (
    GetBrokerMemberGroupResponseBody,
    KVTable,
    TopicList,
    TopicRouteData,
)
from oberth.remoting.code import MQVersion, RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_request, create_response
from oberth.remoting.headers import namesrv as headers
from oberth.store.files import OsFileSystem

_LOG: Final = logging.getLogger(__name__)

LITTLE_REGISTRATION_SIZE: Final = 16 * 1024
"""Bytes of a registration up to which it does not wait for longer ones."""
LITTLE_AT_ONCE: Final = 4
LONG_AT_ONCE: Final = 2
"""Registrations that are unpacked and taken over at a time, in turns: each may unpack to 32 MiB."""

ZONE_NAME: Final = "__ZONE_NAME"
ZONE_MODE: Final = "__ZONE_MODE"

Answering: TypeAlias = Generator[None, None, RemotingCommand]

HEARTBEAT_TIMEOUT_MS_MAX: Final = 24 * 3600 * 1000
"""The longest silence that a broker may ask for."""

ANNOUNCED_AT_ONCE: Final = 256
"""Members that are told of changes at the same time: some may not answer."""

ANNOUNCEMENTS_AT_ONCE: Final = 4
"""Changes of one broker name that are announced at the same time."""


class NameServer(Service):
    """A name server. Started by ``start`` or ``async with``, ended by ``aclose``.

    Attributes:
        config: its options; those of CHANGEABLE may be changed by peers.
        routes: the route table.
        kv: the KV configuration.
        own_broker: a broker of this process that listens on every address of the machine. Clients
            are told to reach it where they reached the name server; None: there is no such broker.
    """

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        self.config = config or NamesrvConfig()
        self.routes = RouteTable(RouteOptions())
        self._free_registrations = {True: LITTLE_AT_ONCE, False: LONG_AT_ONCE}
        self.kv = KvConfigTable(self.config.kv_path)
        self._apply_config()
        self._files = Stage("kv-config", threads=1)
        self._client = RemotingClient(
            options=own_requests(self.config.tls_mode, self.config.tls_client_trust_cert_path)
        )
        self._server: RemotingServer | None = None
        self.own_broker: Address | None = None
        self._announcements: set[asyncio.Task[None]] = set()
        self._told_at_once = asyncio.Semaphore(ANNOUNCED_AT_ONCE)
        self._telling: Counter[str] = Counter()  # tasks that announce changes of a broker name
        self._changes: dict[str, MinBrokerIdChange] = {}  # what they announce next
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._is_sweeping = False
        self._started_at = 0.0

    @property
    def address(self) -> Address:
        """Where the name server listens."""
        assert self._server is not None, "the name server is not started"
        return self._server.address

    async def start(self) -> None:
        """Load the KV configuration and listen.

        Raises:
            ConfigFormatError: kvConfig.json and its back-up cannot be read.
            OptionError: the certificate cannot be used.
            OSError: the port is taken.
        """
        config = self.config
        self.kv.load()
        options = ServerOptions.of(config)
        server = RemotingServer(self._processors(), options, on_close=self._on_close)
        await server.start()
        self._server = server
        loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        self._schedule_expiry()
        import_soon(*REQUESTS_NEED)
        _LOG.info("the name server listens on %s", server.address)

    async def aclose(self) -> None:
        """Stop listening, answer what is at work, close all connections."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if self._server is not None:
            await self._server.aclose()
            self._server = None
        for task in list(self._announcements):
            task.cancel()
        await asyncio.gather(*self._announcements, return_exceptions=True)
        await self._client.aclose()

    def _processors(self) -> ProcessorTable:
        table = ProcessorTable(SERVER_BODY_SIZE_MAX)
        on_loop: dict[RequestCode, SyncHandler] = {
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_KV_CONFIG: self._get_kv_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }
        sliced: dict[RequestCode, SlicedHandler] = {
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics(UNIT_FLAG),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics(UNIT_SUB_FLAG),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics(
                UNIT_SUB_FLAG, UNIT_FLAG
            ),
        }
        writing: dict[RequestCode, SyncHandler] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv_config,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv_config,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
        }
        table.sliced(
            [RequestCode.REGISTER_BROKER], self._register_broker, body_size_max=FRAME_SIZE_MAX
        )
        for code, handler in on_loop.items():
            table.sync([code], handler)
        table.sliced(
            [RequestCode.GET_ROUTEINFO_BY_TOPIC], self._route_of_topic, at_once=self._little_route
        )
        for code, in_slices in sliced.items():
            table.sliced([code], in_slices)
        for code, handler in writing.items():
            # They wait for the disk.
            table.sync([code], handler, stage=self._files)
        return table

    # Brokers

    def _register_broker(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand | None]:
        """103, some at a time: each may unpack to 32 MiB, and any connection may send one."""
        is_little = len(request.body) <= LITTLE_REGISTRATION_SIZE
        while not self._free_registrations[is_little]:
            yield
            if channel.is_closed:
                return None
        self._free_registrations[is_little] -= 1
        try:
            return (yield from self._register(channel, request))
        finally:
            self._free_registrations[is_little] += 1

    def _register(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        header = request.header(headers.RegisterBrokerRequestHeader)
        data = request.body_bytes()
        crc = zlib.crc32(data) & 0x7FFFFFFF
        if header.body_crc32 and crc != header.body_crc32:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"crc32 not match: the body has {crc}, the header says {header.body_crc32}",
            )
        body = yield from RegisterBrokerBody.decode_in_slices(
            data, compressed=header.compressed, version=request.version
        )
        if channel.is_closed:
            return create_response(request, ResponseCode.SYSTEM_ERROR, "the connection is closed")
        timeout_ms = header.heartbeat_timeout_millis or BROKER_TIMEOUT_MS
        result = yield from self.routes.register_in_slices(
            Registration(
                cluster=header.cluster_name,
                broker_name=header.broker_name,
                broker_id=header.broker_id,
                broker_addr=header.broker_addr,
                ha_server_addr=header.ha_server_addr,
                timeout_ms=min(timeout_ms, HEARTBEAT_TIMEOUT_MS_MAX),
                enable_acting_master=header.enable_acting_master,
                zone_name=request.fields.get(ZONE_NAME),
                connection=channel,
            ),
            body,
            self._now_ms(),
        )
        if not result.accepted:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {header.broker_name} {header.broker_id} is not known and "
                f"registers 1 topic, its first registration must have all",
            )
        self._announce(result.changes)
        self._sweep()
        order_config = (
            self.kv.namespace(ORDER_TOPIC_CONFIG)
            if self.config.return_order_topic_config_to_broker
            else None
        )
        raw = (yield from render_in_slices(KVTable(table=order_config))) if order_config else b""
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=headers.RegisterBrokerResponseHeader(
                ha_server_addr=result.ha_server_addr, master_addr=result.master_addr
            ),
            body=raw,
        )

    def _unregister_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.UnRegisterBrokerRequestHeader)
        self._announce(self.routes.unregister(header.broker_name, header.broker_addr))
        self._sweep()
        return create_response(request, ResponseCode.SUCCESS)

    def _query_data_version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.QueryDataVersionRequestHeader)
        try:
            version = DataVersion.decode(request.body_bytes(), name="dataVersion", is_body=True)
        except ConfigFormatError as error:
            raise BodyError(str(error)) from None
        name, addr = header.broker_name, header.broker_addr
        # Of some it is the only heartbeat, also between a change and the next registration.
        self.routes.heard_of(name, addr, self._now_ms())
        changed = self.routes.is_changed(name, addr, version)
        known = self.routes.data_version(name, addr)
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=headers.QueryDataVersionResponseHeader(changed=changed),
            body=known.encode(pretty=False) if known is not None else b"",
        )

    def _broker_heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.BrokerHeartbeatRequestHeader)
        self.routes.heard_of(header.broker_name, header.broker_addr, self._now_ms())
        return create_response(request, ResponseCode.SUCCESS)

    def _member_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.GetBrokerMemberGroupRequestHeader)
        group = self.routes.member_group(header.cluster_name, header.broker_name)
        body = GetBrokerMemberGroupResponseBody(broker_member_group=group)
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    def _wipe_write_perm(self, channel: Channel, request: RemotingCommand) -> Answering:
        header = request.header(headers.WipeWritePermOfBrokerRequestHeader)
        count = yield from self.routes.change_write_perm(header.broker_name, writable=False)
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=headers.WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count),
        )

    def _add_write_perm(self, channel: Channel, request: RemotingCommand) -> Answering:
        header = request.header(headers.AddWritePermOfBrokerRequestHeader)
        count = yield from self.routes.change_write_perm(header.broker_name, writable=True)
        return create_response(
            request,
            ResponseCode.SUCCESS,
            header=headers.AddWritePermOfBrokerResponseHeader(add_topic_count=count),
        )

    # Routes

    def _little_route(self, channel: Channel, request: RemotingCommand) -> bool:
        """Answer 105 of a topic on few brokers: clients do not wait for those who ask for much."""
        header = request.header(headers.GetRouteInfoRequestHeader)
        if not self.routes.is_little(header.topic):
            return False
        response = self._not_ready(request)
        if response is None:
            route = self.routes.route(header.topic, _zone_of(request))
            raw = None
            if route is not None:
                self._add_order(header.topic, route)
                raw = route.encode() if _is_standard(request, header) else route.encode_old()
            response = self._route_answer(channel, request, header.topic, raw)
        channel.reply(request, response)
        return True

    def _route_of_topic(self, channel: Channel, request: RemotingCommand) -> Answering:
        """105 of any topic."""
        header = request.header(headers.GetRouteInfoRequestHeader)
        response = self._not_ready(request)
        if response is not None:
            return response
        route = yield from self.routes.route_in_slices(header.topic, _zone_of(request))
        raw = None
        if route is not None:
            self._add_order(header.topic, route)
            is_standard = _is_standard(request, header)
            raw = yield from (
                render_in_slices(route) if is_standard else route.encode_old_in_slices()
            )
        return self._route_answer(channel, request, header.topic, raw)

    def _not_ready(self, request: RemotingCommand) -> RemotingCommand | None:
        """The answer of a name server that waits for brokers to register."""
        config = self.config
        if not config.need_wait_for_service:
            return None
        up_s = asyncio.get_running_loop().time() - self._started_at
        if up_s >= config.wait_seconds_for_service:
            return None
        return create_response(
            request,
            ResponseCode.SYSTEM_ERROR,
            f"name server not ready: up for {up_s:.0f} s, "
            f"waits {config.wait_seconds_for_service} s for brokers",
        )

    def _add_order(self, topic: str, route: TopicRouteData) -> None:
        if self.config.order_message_enable:
            route.order_topic_conf = self.kv.get(ORDER_TOPIC_CONFIG, topic)

    def _route_answer(
        self,
        channel: Channel,
        request: RemotingCommand,
        topic: str,
        raw: bytes | bytearray | None,
    ) -> RemotingCommand:
        if raw is None:
            return create_response(
                request,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
            )
        return create_response(request, ResponseCode.SUCCESS, body=self._as_dialled(channel, raw))

    def _as_dialled(self, channel: Channel, body: bytes | bytearray) -> bytes | bytearray:
        """A body with our own broker at the address under which the client reached us."""
        own = self.own_broker
        if own is None or not channel.local.host or channel.local.host == own.host:
            return body
        dialled = Address(channel.local.host, own.port)
        return body.replace(b'"%b"' % str(own).encode(), b'"%b"' % str(dialled).encode())

    def _cluster_info(self, channel: Channel, request: RemotingCommand) -> Answering:
        raw = yield from self.routes.cluster_info().encode_old_in_slices()
        return create_response(request, ResponseCode.SUCCESS, body=self._as_dialled(channel, raw))

    def _all_topics(self, channel: Channel, request: RemotingCommand) -> Answering:
        if not self.config.enable_all_topic_list:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "disable: enableAllTopicList is false"
            )
        return (yield from _topic_list(request, self.routes.all_topics()))

    def _topics_of_cluster(self, channel: Channel, request: RemotingCommand) -> Answering:
        if not self.config.enable_topic_list:
            return _topic_lists_disabled(request)
        header = request.header(headers.GetTopicsByClusterRequestHeader)
        topics = yield from self.routes.topics_of_cluster(header.cluster)
        return (yield from _topic_list(request, topics))

    def _system_topics(self, channel: Channel, request: RemotingCommand) -> Answering:
        return (yield from _topic_list(request, self.routes.system_topics()))

    def _unit_topics(self, with_flags: int, without_flags: int = 0) -> SlicedHandler:
        def handler(channel: Channel, request: RemotingCommand) -> Answering:
            if not self.config.enable_topic_list:
                return _topic_lists_disabled(request)
            topics = yield from self.routes.unit_topics(
                with_flags=with_flags, without_flags=without_flags
            )
            return (yield from _topic_list(request, topics))

        return handler

    def _delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.DeleteTopicFromNamesrvRequestHeader)
        self.routes.delete_topic(header.topic, header.cluster_name)
        return create_response(request, ResponseCode.SUCCESS)

    def _register_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.RegisterTopicRequestHeader)
        route = TopicRouteData.decode(request.body_bytes())
        self.routes.register_topic(header.topic, route.queue_datas)
        return create_response(request, ResponseCode.SUCCESS)

    # Configuration

    def _get_kv_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.GetKVConfigRequestHeader)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            return create_response(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return create_response(
            request, ResponseCode.SUCCESS, header=headers.GetKVConfigResponseHeader(value=value)
        )

    def _kv_list(self, channel: Channel, request: RemotingCommand) -> Answering:
        header = request.header(headers.GetKVListByNamespaceRequestHeader)
        table = self.kv.namespace(header.namespace)
        if table is None:
            return create_response(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace}",
            )
        raw = yield from render_in_slices(KVTable(table=table))
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def _put_kv_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.PutKVConfigRequestHeader)
        try:
            self.kv.put(header.namespace, header.key, header.value)
        except OptionError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        return create_response(request, ResponseCode.SUCCESS)

    def _delete_kv_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(headers.DeleteKVConfigRequestHeader)
        self.kv.delete(header.namespace, header.key)
        return create_response(request, ResponseCode.SUCCESS)

    def _get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        text = format_properties(self.config.properties())
        return create_response(request, ResponseCode.SUCCESS, body=text.encode())

    def _update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        try:
            entries = parse_properties(request.body_bytes(), name="configuration")
            refused = self.config.black_list.intersection(entries)
            if refused:
                return create_response(
                    request, ResponseCode.NO_PERMISSION, "Can not update config in black list."
                )
            fixed = change_options(self.config, entries, CHANGEABLE)
        except (ConfigFormatError, OptionError) as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        if fixed:
            return create_response(
                request,
                ResponseCode.NO_PERMISSION,
                f"only a restart changes {', '.join(fixed)}",
            )
        unknown = entries.keys() - self.config.properties().keys() - KEYS_WITHOUT_EFFECT
        if unknown:
            _LOG.warning(
                "%s sent options that no name server knows, they are ignored: %s",
                channel,
                ", ".join(sorted(unknown))[:1000],
            )
        self._apply_config()
        if self.config.config_store_path:
            _replace_file(
                Path(self.config.config_store_path), format_properties(self.config.properties())
            )
        return create_response(request, ResponseCode.SUCCESS)

    def _apply_config(self) -> None:
        config, options = self.config, self.routes.options
        options.delete_topic_with_broker_registration = config.delete_topic_with_broker_registration
        options.support_acting_master = config.support_acting_master
        options.notify_min_broker_id_changed = config.notify_min_broker_id_changed

    # Coming and going

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _on_close(self, channel: Channel) -> None:
        self._announce(self.routes.connection_closed(channel))
        self._sweep()

    def _sweep(self) -> None:
        """Forget what is left of brokers that are gone, some of it a turn of the loop."""
        if not self._is_sweeping:
            self._sweep_on()

    def _sweep_on(self) -> None:
        self._is_sweeping = False
        if self.routes.sweep():
            self._is_sweeping = True
            asyncio.get_running_loop().call_soon(self._sweep_on)

    def _schedule_expiry(self) -> None:
        interval_s = self.config.scan_not_active_broker_interval_ms / 1000
        self._expiry_timer = asyncio.get_running_loop().call_later(interval_s, self._expire)

    def _expire(self) -> None:
        silent, changes = self.routes.expire(self._now_ms())
        for gone in silent:
            _LOG.warning(
                "broker %s %d at %s is gone: silent for more than %d ms",
                gone.broker_name,
                gone.broker_id,
                gone.broker_addr,
                gone.timeout_ms,
            )
            if isinstance(gone.connection, Channel):
                gone.connection.close()
        self._announce(changes)
        self._sweep()
        self._schedule_expiry()

    def _announce(self, changes: Iterable[MinBrokerIdChange]) -> None:
        """Tells members of changes; of several that wait for one broker name, of the newest."""
        for change in changes:
            name = change.broker_name
            is_waiting = name in self._changes
            self._changes[name] = change
            if is_waiting or self._telling[name] == ANNOUNCEMENTS_AT_ONCE:
                continue
            self._telling[name] += 1
            task = asyncio.get_running_loop().create_task(self._announce_all(name))
            self._announcements.add(task)
            task.add_done_callback(self._announcements.discard)

    async def _announce_all(self, name: str) -> None:
        try:
            while (change := self._changes.pop(name, None)) is not None:
                await self._announce_one(change)
        finally:
            self._telling[name] -= 1
            if not self._telling[name]:
                del self._telling[name]

    async def _announce_one(self, change: MinBrokerIdChange) -> None:
        """Tells all members at once: the machine of one of them may be gone."""
        header = headers.NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=change.min_broker_id,
            broker_name=change.broker_name,
            min_broker_addr=change.min_broker_addr,
            offline_broker_addr=change.offline_broker_addr,
            ha_broker_addr=change.ha_broker_addr,
        )

        async def tell(target: str) -> None:
            request = create_request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
            try:
                async with self._told_at_once:
                    await self._client.invoke_oneway(target, request)
            except (RemotingError, OptionError) as error:
                _LOG.warning("%s could not be told of %s: %s", target, change, error)

        await asyncio.gather(*(tell(target) for target in change.targets))


def _zone_of(request: RemotingCommand) -> str | None:
    """The zone that a client wants brokers of; None: of any."""
    fields = request.fields
    if fields.get(ZONE_MODE, "").lower() != "true":
        return None
    name = fields.get(ZONE_NAME, "")
    return None if not name or name.isspace() else name


def _is_standard(request: RemotingCommand, header: headers.GetRouteInfoRequestHeader) -> bool:
    """Whether a client reads JSON proper."""
    return request.version >= MQVersion.V4_9_4 or bool(header.accept_standard_json_only)


def _topic_list(request: RemotingCommand, topics: TopicList) -> Answering:
    raw = yield from render_in_slices(topics)
    return create_response(request, ResponseCode.SUCCESS, body=raw)


def _topic_lists_disabled(request: RemotingCommand) -> RemotingCommand:
    return create_response(request, ResponseCode.SYSTEM_ERROR, "disable: enableTopicList is false")


def _replace_file(path: Path, text: str) -> None:
    OsFileSystem().make_dirs(str(path.parent))
    new = path.with_name(path.name + ".tmp")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    OsFileSystem().sync_directory(str(path.parent))
