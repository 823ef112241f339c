"""Controller: elects the master of each broker name, and tells the replicas.

RocketMQ: ``ControllerManager``, ``ControllerRequestProcessor``. Brokers of RocketMQ 5 in controller
mode use it unchanged (``enableControllerMode``, ``controllerAddr``), and so does ``mqadmin``. It is
one process: while it is away brokers go on as they are, and nobody is elected. What it has answered
is on its disk (`state_log`), so it goes on after a kill where it was. The protocols by which a
group of Apache's controllers agrees (DLedger, SOFAJRaft) are not spoken.

    async with Controller(ControllerConfig(listen_port=9878)) as controller:
        controller.address
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from oberth.controller.controller_config import ALLOWED_OPTION, CHANGEABLE, ControllerConfig
from oberth.controller.liveness import LOWEST_PRIORITY, Liveness, ReplicaKey
from oberth.controller.replica_sets import (
    BY_CONTROLLER,
    Decision,
    LiveInfo,
    ReplicaSet,
    ReplicaSets,
)
from oberth.controller.state_log import StateLog
from oberth.errors import ConfigFormatError, OptionError, RemotingError
from oberth.formats.java_properties import format_properties, parse_properties
from oberth.formats.options import change_options
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.client import RemotingClient, own_requests
from oberth.remoting.aio.loop import REQUESTS_NEED, import_soon
from oberth.remoting.aio.processors import (
    SERVER_BODY_SIZE_MAX,
    ProcessorTable,
)
from oberth.remoting.aio.server import RemotingServer, ServerOptions
from oberth.remoting.aio.service import Service
from oberth.remoting.aio.stage import Stage, SyncHandler
from oberth.remoting.bodies.base import BodyError
from oberth.remoting.bodies.controller import SyncStateSet
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, create_response
from oberth.remoting.first_bytes import AddressSet
from oberth.remoting.headers import controller as headers
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.namesrv import BrokerHeartbeatRequestHeader

_LOG: Final = logging.getLogger(__name__)

GROUP: Final = "group1"
SELF_ID: Final = "n0"
"""How metadata names a controller that is alone; Apache's defaults."""

CHANGES_WAITING_MAX: Final = 1000
"""Requests that change something and wait for the disk; more are answered with code 2."""

NAMES_MAX: Final = 200
"""Broker names that one question (1006) may name: an answer takes some 10 ms."""

_Header = TypeVar("_Header", bound=CommandHeader)


class Controller(Service):
    """A controller. Started by ``start`` or ``async with``, ended by ``aclose``.

    Attributes:
        config: its options; those of CHANGEABLE may be changed by peers.
        sets: the replica sets.
    """

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig()
        self._liveness = Liveness()
        self.sets = ReplicaSets(self._liveness.is_alive, self._liveness.info)
        self._apply_config()
        self._log = StateLog(Path(self.config.store_path).expanduser())
        self._allowed = AddressSet(self.config.allowed_addresses, ALLOWED_OPTION)
        self._changing = asyncio.Lock()
        self._client = RemotingClient(
            options=own_requests(self.config.tls_mode, self.config.tls_client_trust_cert_path)
        )
        self._server: RemotingServer | None = None
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def address(self) -> Address:
        """Where the controller listens."""
        assert self._server is not None, "the controller is not started"
        return self._server.address

    async def start(self) -> None:
        """Read the state that was kept, and listen.

        Raises:
            StoreLockedError: another controller has the directory.
            StoreCorruptError: the file of the replica sets is damaged.
            OptionError: the certificate cannot be used.
            OSError: the port is taken, or the directory cannot be written.
        """
        config = self.config
        for name, value in self._log.load().items():
            self.sets.apply(name, value)
        options = ServerOptions.of(config)
        server = RemotingServer(
            self._processors(), options, on_open=self._on_open, on_close=self._on_close
        )
        try:
            await server.start()
        except BaseException:
            self._log.close()
            raise
        self._server = server
        self._schedule_expiry()
        self._schedule_search()
        import_soon(*REQUESTS_NEED)
        _LOG.info(
            "the controller listens on %s and knows %d broker names",
            server.address,
            len(self.sets.sets),
        )

    async def aclose(self) -> None:
        """Stop listening, answer the requests at work, close all connections and the file."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._is_closing = True
        if self._server is not None:
            await self._server.aclose()
            self._server = None
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        self._log.close()

    def _processors(self) -> ProcessorTable:
        table = ProcessorTable(SERVER_BODY_SIZE_MAX)
        on_loop: dict[RequestCode, SyncHandler] = {
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._question(
                headers.GetReplicaInfoRequestHeader, self.sets.replica_info
            ),
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._question(
                headers.GetNextBrokerIdRequestHeader, self.sets.next_id
            ),
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._sync_state_data,
            RequestCode.GET_CONTROLLER_CONFIG: self._get_config,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self._update_config,
        }
        for code, handler in on_loop.items():
            table.sync([code], handler)
        # They wait for the disk, one after the other.
        disk = Stage("controller", tasks=1, queue_max=CHANGES_WAITING_MAX)
        changes: dict[RequestCode, tuple[type[CommandHeader], Callable[[Any], Decision]]] = {
            RequestCode.CONTROLLER_APPLY_BROKER_ID: (
                headers.ApplyBrokerIdRequestHeader,
                self.sets.apply_id,
            ),
            RequestCode.CONTROLLER_REGISTER_BROKER: (
                headers.RegisterBrokerToControllerRequestHeader,
                self.sets.register,
            ),
            RequestCode.CONTROLLER_ELECT_MASTER: (
                headers.ElectMasterRequestHeader,
                self.sets.elect,
            ),
            RequestCode.CLEAN_BROKER_DATA: (
                headers.CleanControllerBrokerDataRequestHeader,
                self.sets.clean,
            ),
        }
        for code, (header_type, decide) in changes.items():
            table.async_([code], self._change_handler(header_type, decide), stage=disk)
        table.async_(
            [RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET], self._alter_sync_set, stage=disk
        )
        return table

    # Changes

    def _change_handler(
        self, header_type: type[_Header], decide: Callable[[_Header], Decision]
    ) -> Callable[[Channel, RemotingCommand], Any]:
        async def handler(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            del channel
            header = request.header(header_type)
            return _answer(request, await self._change(lambda: decide(header)))

        return handler

    async def _alter_sync_set(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        header = request.header(headers.AlterSyncStateSetRequestHeader)
        wanted = SyncStateSet.decode(request.body_bytes())
        return _answer(
            request, await self._change(lambda: self.sets.alter_sync_set(header, wanted))
        )

    async def _change(self, decide: Callable[[], Decision]) -> Decision:
        """Decide, write the decision to the file, and only then publish it."""
        async with self._changing:
            self._look_at_clock()
            decision = decide()
            if decision.name:
                await asyncio.to_thread(self._log.append, decision.name, decision.value)
                self.sets.apply(decision.name, decision.value)
                try:
                    await asyncio.to_thread(self._log.maybe_shorten, self.sets.sets)
                except OSError as error:
                    _LOG.warning(
                        "%s could not be shortened: %s",
                        self._log.path,
                        error,
                    )
        if decision.is_election and decision.value is not None:
            value = decision.value
            _LOG.warning(
                "%s: master is %s at %s, epoch %d",
                decision.name,
                value.master,
                value.master_address,
                value.master_epoch,
            )
            if self.config.notifies:
                self._start(self._notify(value))
        return decision

    async def _notify(self, value: ReplicaSet) -> None:
        """Tells all replicas at once: the machine of the old master may be gone."""
        header = headers.NotifyBrokerRoleChangedRequestHeader(
            master_address=value.master_address,
            master_epoch=value.master_epoch,
            sync_state_set_epoch=value.in_sync_epoch,
            master_broker_id=value.master,
        )
        body = value.sync_state().encode()

        async def tell(number: int, address: str) -> None:
            request = create_request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body=body)
            try:
                await self._client.invoke_oneway(address, request)
            except (RemotingError, OptionError, OSError) as error:
                # It asks by itself every few seconds (1004).
                _LOG.info(
                    "replica %d at %s could not be told of its role: %s", number, address, error
                )

        replicas = value.replicas.items()
        await asyncio.gather(*(tell(number, each.address) for number, each in replicas))

    async def _elect(self, name: str) -> None:
        header = headers.ElectMasterRequestHeader(broker_name=name, broker_id=BY_CONTROLLER)
        try:
            decision = await self._change(lambda: self.sets.elect(header))
        except OSError as error:
            _LOG.error("no master could be elected for %s: %s", name, error)
            return
        if decision.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE and decision.name:
            _LOG.error(
                "%s has no master: it is gone, and no replica that was in sync is alive", name
            )
        elif decision.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            _LOG.error("no master could be elected for %s: %s", name, decision.remark)

    # Who lives

    def _look_at_clock(self) -> None:
        self._liveness.now_ms = int(asyncio.get_running_loop().time() * 1000)

    def _heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.header(BrokerHeartbeatRequestHeader)
        if header.broker_id is None:
            return create_response(
                request,
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                "Heart beat with empty brokerId",
            )
        name, number = header.broker_name, header.broker_id
        found = self.sets.sets.get(name)
        if found is not None and number in found.replicas and found.cluster == header.cluster_name:
            self._look_at_clock()
            info = LiveInfo(
                epoch=-1 if header.epoch is None else header.epoch,
                max_offset=-1 if header.max_offset is None else header.max_offset,
                priority=_or(header.election_priority, LOWEST_PRIORITY),
            )
            was_dead = self._liveness.heard(
                (found.cluster, name, number), channel, header.heartbeat_timeout_mills, info
            )
            if was_dead and found.master is None and number in found.in_sync:
                self._start(self._elect(name))
        return create_response(request, ResponseCode.SUCCESS, "Heart beat success")

    def _on_open(self, channel: Channel) -> None:
        if self._allowed and channel.remote.host not in self._allowed:
            _LOG.warning(
                "%s was disconnected: %s does not name its address", channel, ALLOWED_OPTION
            )
            channel.abort()

    def _on_close(self, channel: Channel) -> None:
        if self._is_closing:
            return  # brokers whose connections this ends live, and nobody else is to be elected
        self._look_at_clock()
        self._are_gone(self._liveness.connection_closed(channel), "its connection is closed")

    def _are_gone(self, gone: Iterable[ReplicaKey], why: str) -> None:
        for _, name, number in gone:
            found = self.sets.sets.get(name)
            if found is None:
                continue
            _LOG.warning("broker %s with id %d is gone: %s", name, number, why)
            if found.master == number:
                self._start(self._elect(name))

    def _schedule_expiry(self) -> None:
        self._schedule("expiry", self.config.scan_not_active_broker_interval_ms, self._expire)

    def _expire(self) -> None:
        self._look_at_clock()
        self._are_gone(self._liveness.expire(), "silent for longer than its heartbeat allows")
        self._schedule_expiry()

    def _schedule_search(self) -> None:
        self._schedule("search", self.config.scan_inactive_master_interval_ms, self._search)

    def _search(self) -> None:
        self._look_at_clock()
        for name in self.sets.without_master():
            self._start(self._elect(name))
        self._schedule_search()

    def _schedule(self, what: str, interval_ms: int, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._timers[what] = loop.call_later(interval_ms / 1000, action)

    def _start(self, work: Any) -> None:
        if self._server is None:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Questions

    def _question(
        self, header_type: type[_Header], decide: Callable[[_Header], Decision]
    ) -> SyncHandler:
        def handler(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            del channel
            return _answer(request, decide(request.header(header_type)))

        return handler

    def _metadata(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        # As it was dialled: brokers speak to this address from now on.
        own = Address(channel.local.host or self.address.host, self.address.port)
        header = headers.GetMetaDataResponseHeader(
            group=GROUP,
            controller_leader_id=SELF_ID,
            controller_leader_address=str(own),
            is_leader=True,
            peers=f"{SELF_ID}:{own}",
        )
        return create_response(request, ResponseCode.SUCCESS, header=header)

    def _sync_state_data(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        try:
            names = msgspec.json.decode(request.body_bytes() or b"[]", type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BodyError(f"a list of broker names: {error}") from None
        if len(names) > NAMES_MAX:
            raise BodyError(f"{len(names)} broker names, allowed {NAMES_MAX}")
        self._look_at_clock()
        return _answer(request, self.sets.sync_state_data(names))

    def _get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        text = format_properties(self.config.properties())
        return create_response(request, ResponseCode.SUCCESS, body=text.encode())

    def _update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        try:
            entries = parse_properties(request.body_bytes(), name="configuration")
            refused = change_options(self.config, entries, CHANGEABLE)
        except (ConfigFormatError, OptionError) as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        if refused:
            return create_response(
                request,
                ResponseCode.NO_PERMISSION,
                f"only a restart changes {', '.join(refused)}",
            )
        self._apply_config()
        _LOG.warning(
            "%s changed the settings %s",
            channel,
            ", ".join(sorted(CHANGEABLE.intersection(entries))),
        )
        return create_response(request, ResponseCode.SUCCESS)

    def _apply_config(self) -> None:
        self.sets.elects_unclean = self.config.elects_unclean


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _answer(request: RemotingCommand, decision: Decision) -> RemotingCommand:
    return create_response(
        request,
        decision.code,
        decision.remark,
        header=decision.header,
        body=b"" if decision.body is None else decision.body.encode(),
    )
