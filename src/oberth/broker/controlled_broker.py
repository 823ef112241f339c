"""ControlledBroker: a broker whose role a controller decides, and may change while it runs.

One process, one port, one life of a `Broker` after the other. A change of role closes the broker in
order and opens it again as what it is now, in some tenths of a second; so a master and a slave are
here what they are without a controller, down to the last service. In between the port is closed,
and clients ask the name servers. What a slave's log has beyond the common part with its master's is
cut off meanwhile, and kept beside the store.

    identity (1012, 1013) ──► register (1003) ──► master? or elect (1002) ──► open ──► look (1004)
                                                                               ▲          │
                                                                               └─ close ◄─┘ other

It says every second that it lives (904), over a connection that ends with the process. A word from
anybody that the master has changed (1008) only has it ask the controller. While no controller
answers it stays what it is. RocketMQ: ReplicasManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from oberth.broker.broker import Broker
from oberth.broker.controlled_ha import ControlledHAService, newest_epoch
from oberth.broker.own_address import reachable_ip
from oberth.broker.role import ChangeRefusedError, Role
from oberth.errors import (
    ConfigFormatError,
    OberthError,
    OptionError,
    RemotingConnectError,
    RemotingError,
)
from oberth.formats.message_store_config import BrokerRole
from oberth.formats.options import update_option
from oberth.remoting.aio.client import RemotingClient, own_requests
from oberth.remoting.aio.service import Service
from oberth.remoting.bodies.controller import SyncStateSet
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request
from oberth.remoting.headers import controller as headers
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.namesrv import BrokerHeartbeatRequestHeader
from oberth.store.files import FileSystem, OsFileSystem
from oberth.store.offline.rejoin import cut_log, free_name
from oberth.wall_clock import now_ms

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.formats.message_store_config import MessageStoreConfig

_LOG: Final = logging.getLogger(__name__)

IDENTITY: Final = "brokerIdentity"
"""The file that says which replica this is: ``cluster#name#id``, as Apache writes it."""
TEMPORARY_SUFFIX: Final = "-temp"
"""Of the file with the id that is being applied for: the same, ``#`` and the check code."""

REQUEST_TIMEOUT_S: Final = 3.0
RETRY_S: Final = 0.5
FIRST_RETRY_S: Final = 0.05
"""Before a question is asked again for the first time, then twice as long, up to RETRY_S: a
controller that starts at the same time is there soon. So is another id, where one was refused."""
LOOKS_APART_S: Final = 0.05
"""Between two questions that others have this broker ask."""

_T = TypeVar("_T")
Beside = Callable[[Broker], AbstractAsyncContextManager[object]]


def _pauses() -> Iterator[float]:
    """Seconds between one question and the next."""
    pause_s = FIRST_RETRY_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, RETRY_S)


class ControlledBroker(Service):
    """A broker under a controller. Lifecycle as that of a Broker; a started one has a role.

    Args:
        config: of the broker; brokerId is the controller's business.
        store_config: of its store; so is brokerRole.
        clock_ms: the wall clock.
        files: where the store keeps its files; None: the operating system's.
        beside: opens what is to live with each life of the broker.
        background: see Broker.

    Raises:
        OptionError: no controllerAddr.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        *,
        clock_ms: Callable[[], int] = now_ms,
        files: FileSystem | None = None,
        beside: Beside | None = None,
        background: bool = True,
    ) -> None:
        self._controllers = [
            each for part in config.controller_addr.split(";") if (each := part.strip())
        ]
        if not self._controllers:
            raise OptionError("enableControllerMode=true needs controllerAddr=host:port")
        self._config = config
        self._store_config = store_config
        self._clock_ms = clock_ms
        self._files: FileSystem = OsFileSystem() if files is None else files
        self._beside = beside
        self._background = background
        self.root = os.path.abspath(os.path.expanduser(store_config.store_path_root_dir))
        self._identity_path = store_config.store_path_broker_identity or f"{self.root}/{IDENTITY}"
        self._client = self._new_client()
        self._reserved: socket.socket | None = None
        self._leader = self._controllers[0]
        self.broker_id = 0
        self._kept_epoch = 0
        self.broker: Broker | None = None
        """The life that serves; None while the role changes."""
        self.role: Role | None = None
        self._life = AsyncExitStack()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None
        self._cut_at: int | None = None
        self._ends = (0, 0)
        self._said: dict[str, str] = {}

    def _new_client(self) -> RemotingClient:
        config = self._config
        return RemotingClient(
            options=own_requests(config.tls_mode, config.tls_client_trust_cert_path)
        )

    @property
    def address(self) -> str:
        """Where clients connect, in every life."""
        return f"{self._ip}:{self._port}"

    def not_ready(self) -> str | None:
        """Why the broker takes no messages, or None."""
        broker = self.broker
        if broker is None:
            return "its role changes"
        return broker.not_ready()

    # Lifecycle

    async def start(self) -> None:
        """Find out which replica this is and what it is to be, and serve.

        Waits for a controller, however long that takes.

        Raises:
            ConfigFormatError: the identity is another broker's, or damaged.
            OptionError: see Broker.
            OSError: a port is taken, or a directory cannot be written.
        """
        try:
            self._reserve_port()
            self._files.make_dirs(self.root)
            await self._identify()
            self._kept_epoch = newest_epoch(self._files, self._store_config)
            await self._let_epoch_end()
            self._beating = asyncio.create_task(self._heartbeats(), name="oberth-heartbeats")
            await self._open(await self._first_role())
            self._start(self._run(), "oberth-role")
        except BaseException:
            await self.aclose()
            raise

    def _reserve_port(self) -> None:
        """Has a port of one's own between two lives, too, if any is as good as another."""
        config = self._config
        self._ip = config.broker_ip1 or reachable_ip(config.listen_host)
        self._port = config.listen_port
        if self._port:
            return
        family = socket.AF_INET6 if ":" in config.listen_host else socket.AF_INET
        self._reserved = reserved = socket.socket(family, socket.SOCK_STREAM)
        # Bound and not listening: who listens there with the same option may.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((config.listen_host, 0))
        self._port = reserved.getsockname()[1]

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def aclose(self) -> None:
        """Stop for good, in order."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self.broker is not None:
            # While the controller still takes it for alive: replicas leave who is no master.
            await _replication_of(self.broker).settle()
        await self._fall_silent()
        await self._close_life(is_last=True)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _fall_silent(self) -> None:
        """Ends what tells the controller that this broker lives."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        await self._client.aclose()

    # Lives

    async def _begin_anew(self) -> None:
        """A disk refuses what a broker must write: it leaves its role to others, and opens again.

        A store whose log could not be synced takes nothing more until it is opened, so a master
        would stay one that takes no messages.
        """
        while True:
            await self._fall_silent()
            self._client = self._new_client()
            await self._close_life(is_last=False)
            await self._let_epoch_end()
            self._beating = asyncio.create_task(self._heartbeats(), name="oberth-heartbeats")
            try:
                await self._open(await self._first_role())
            except (OberthError, OSError) as error:
                self._say_once(
                    "store", f"the store could not be opened, it is tried again: {error}"
                )
                await asyncio.sleep(RETRY_S)
                continue
            return

    async def _open(self, role: Role) -> None:
        config, store_config = copy.copy(self._config), copy.copy(self._store_config)
        if not config.listen_port:
            # As without a controller: who takes any port takes any for slaves, too.
            config.listen_port, config.fast_listen_port = self._port, 0
            store_config.ha_listen_port = 0
        config.broker_id = 0 if role.is_master else role.broker_id
        store_config.broker_role = BrokerRole.SYNC_MASTER if role.is_master else BrokerRole.SLAVE
        cut_at, self._cut_at = self._cut_at, None
        if cut_at is not None:
            await asyncio.to_thread(self._cut, cut_at)
        broker = Broker(
            config,
            store_config,
            clock_ms=self._clock_ms,
            files=self._files,
            role=role,
            background=self._background,
        )
        self.role = role
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(broker)
            broker.services.changes.listeners.append(self._keep)
            if self._beside is not None:
                await opening.enter_async_context(self._beside(broker))
            self._life = opening.pop_all()
        self.broker = broker
        _LOG.warning(
            "broker %s with id %d is now %s in epoch %d",
            config.broker_name,
            role.broker_id,
            "master" if role.is_master else f"slave of {role.master_address or 'nobody yet'}",
            role.epoch,
        )

    def _keep(self, changed: Mapping[str, str]) -> None:
        """Options that were changed in one life hold in the next."""
        for key, text in changed.items():
            for each in (self._config, self._store_config):
                update_option(each, key, text)

    def _cut(self, at: int) -> None:
        """Cuts the log; what is cut off is kept beside the store. Blocks.

        Where the log ends is known since the last life was closed. To look for it takes ten
        seconds. The master acknowledges nothing while this replica is away and counts as in sync.
        """
        end = self._ends[0] or None
        cut = cut_log(self.root, at, free_name(self.root, at), end)
        _LOG.warning("%s: cut at %d, it ended at %d; what was cut off is in %s", self.root, *cut)

    async def _close_life(self, *, is_last: bool) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            self._ends = _ends_of(broker)
            if not is_last:
                # It will be there again, under another id: nobody has to forget it.
                broker.services.registration.stays = True
            _replication_of(broker).give_up()
        life, self._life = self._life, AsyncExitStack()
        await life.aclose()

    async def _run(self) -> None:
        """Looks at the controller, and is what it says."""
        interval_s = self._config.sync_broker_metadata_period_ms / 1000
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
            except (OberthError, OSError) as error:
                self._say_once(
                    "role", f"the controller could not be asked: {type(error).__name__}: {error}"
                )
            await asyncio.sleep(LOOKS_APART_S)

    async def _look(self) -> None:
        role = self.role
        assert role is not None
        if self.broker is not None and self.broker.parts.store.flush_service.is_broken:
            await self._begin_anew()
            return
        found: Role | None = None
        try:
            found = await self._replica_info()
        finally:
            # Without a controller, too: a log that has parted, or a life that could not be opened.
            if found is None and (self._cut_at is not None or self.broker is None):
                await self._live_as(role)
        if found is None:
            if self.broker_id in role.in_sync or not role.epoch:
                found = await self._elect()
            if found is None:
                return
        if found.epoch < role.epoch:
            return
        is_other = found.epoch > role.epoch or found.is_master is not role.is_master
        if is_other or self._cut_at is not None or self.broker is None:
            await self._live_as(found)
            return
        replication = _replication_of(self.broker)
        replication.set_known(found.in_sync, found.in_sync_epoch)
        if found.master_address is not None and not found.is_master:
            replication.master_moved(found.master_address)
        self.role = found

    async def _live_as(self, role: Role) -> None:
        if self.broker is not None:
            _LOG.warning("the controller gives this broker another role, in epoch %d", role.epoch)
        await self._close_life(is_last=False)
        try:
            await self._open(role)
        except (OberthError, OSError) as error:
            self._say_once("store", f"the store could not be opened: {error}")
            await self._begin_anew()

    def must_cut(self, offset: int) -> None:
        """See RoleKeeper."""
        self._cut_at = offset
        self._wake.set()

    def look_soon(self) -> None:
        """See RoleKeeper."""
        self._wake.set()

    # Words with the controller

    async def _identify(self) -> None:
        """Which replica this is: from the file, or a new one.

        Raises:
            ConfigFormatError: the file is another broker's, or damaged.
        """
        config = self._config
        who = f"{config.broker_cluster_name}#{config.broker_name}"
        kept = self._files.read_file(self._identity_path)
        if kept is not None:
            self.broker_id = _id_of(kept, who, self._identity_path)
            return
        temporary = self._identity_path + TEMPORARY_SUFFIX
        while True:
            applied = self._files.read_file(temporary)
            if applied is None:
                number = await self._patiently(self._next_id)
                check = f"{self.address};{self._clock_ms()}"
                self._files.write_file(temporary, f"{who}#{number}#{check}".encode())
            else:
                text, _, check = applied.decode("utf-8", "replace").rpartition("#")
                number = _id_of(text.encode(), who, temporary)
            header = headers.ApplyBrokerIdRequestHeader(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                applied_broker_id=number,
                register_check_code=check,
            )

            async def apply(header: CommandHeader = header) -> RemotingCommand:
                return await self._ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)

            response = await self._patiently(apply)
            if response.code == ResponseCode.SUCCESS:
                break
            # Another one was quicker.
            self._say_once(
                "identity",
                f"the controller refuses id {number}, another is asked for: {response.remark}",
            )
            self._files.remove(temporary)
            await asyncio.sleep(FIRST_RETRY_S)
        self._files.write_file(self._identity_path, f"{who}#{number}".encode())
        self._files.remove(temporary)
        self.broker_id = number

    async def _next_id(self) -> int:
        config = self._config
        response = await self._ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            headers.GetNextBrokerIdRequestHeader(
                cluster_name=config.broker_cluster_name, broker_name=config.broker_name
            ),
        )
        number = response.header(headers.GetNextBrokerIdResponseHeader).next_broker_id
        if response.code != ResponseCode.SUCCESS or number is None:
            raise RemotingError(
                f"the controller gives no broker id: code {response.code}: {response.remark}"
            )
        return number

    async def _patiently(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """An answer of the controller, however long that takes."""
        pauses = _pauses()
        while True:
            try:
                return await ask()
            except (OberthError, OSError) as error:
                self._say_once("controller", f"the controller does not answer yet: {error}")
            await asyncio.sleep(next(pauses))

    async def _let_epoch_end(self) -> None:
        """Returns when this broker is not the master any more that it was in its last life.

        It says nothing of itself meanwhile, so the controller elects another one, or nobody. A new
        life takes no messages in an old epoch: a power cut may have taken the end of its log,
        slaves may have it, and what was written there anew would pass for the same.
        """
        config = self._config
        who = headers.GetReplicaInfoRequestHeader(broker_name=config.broker_name)
        nobody = headers.ElectMasterRequestHeader(
            cluster_name=config.broker_cluster_name, broker_name=config.broker_name, broker_id=-1
        )
        while True:
            response = await self._patiently(
                lambda: self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, who)
            )
            found = response.header(headers.GetReplicaInfoResponseHeader)
            if response.code != ResponseCode.SUCCESS or found.master_broker_id != self.broker_id:
                return
            self._say_once("epoch", f"this broker waits for the end of epoch {found.master_epoch}")
            await self._patiently(lambda: self._ask(RequestCode.CONTROLLER_ELECT_MASTER, nobody))
            await asyncio.sleep(RETRY_S)

    async def _first_role(self) -> Role:
        """What this broker is to be, as soon as a controller says so."""
        pauses = _pauses()
        while True:
            try:
                await self._heartbeat(waits=True)
                role = await self._register() or await self._elect()
                if role is not None:
                    return role
                # Nobody may be elected now: it serves what it has, and follows who will be.
                return Role(
                    self.broker_id, False, 0, None, frozenset(), 0, self
                )  # fmt: skip
            except (OberthError, OSError) as error:
                self._say_once("controller", f"the controller gives no role yet: {error}")
            await asyncio.sleep(next(pauses))

    async def _register(self) -> Role | None:
        """1003: says where this broker listens; gives the role, if there is a live master."""
        config = self._config
        response = await self._ask(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            headers.RegisterBrokerToControllerRequestHeader(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                broker_id=self.broker_id,
                broker_address=self.address,
            ),
        )
        if response.code != ResponseCode.SUCCESS:
            raise RemotingError(
                f"the controller refuses this broker: code {response.code}: {response.remark}"
            )
        header = response.header(headers.RegisterBrokerToControllerResponseHeader)
        return self._role(
            header.master_broker_id, header.master_epoch, header.master_address, response
        )

    async def _elect(self) -> Role | None:
        """1002: has a master elected, if there is none; gives the role, if there is one now."""
        config = self._config
        response = await self._ask(
            RequestCode.CONTROLLER_ELECT_MASTER,
            headers.ElectMasterRequestHeader(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                broker_id=self.broker_id,
                designate_elect=False,
            ),
        )
        if response.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        ):
            self._say_once(
                "election", f"no master could be elected: code {response.code}: {response.remark}"
            )
            return None
        header = response.header(headers.ElectMasterResponseHeader)
        return self._role(
            header.master_broker_id,
            header.master_epoch,
            header.master_address,
            response,
            header.sync_state_set_epoch,
        )

    async def _replica_info(self) -> Role | None:
        """1004: what the controller says now; None while there is no master."""
        response = await self._ask(
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            headers.GetReplicaInfoRequestHeader(broker_name=self._config.broker_name),
        )
        if response.code != ResponseCode.SUCCESS:
            raise RemotingError(
                f"the controller gives no role: code {response.code}: {response.remark}"
            )
        header = response.header(headers.GetReplicaInfoResponseHeader)
        return self._role(
            header.master_broker_id, header.master_epoch, header.master_address, response
        )

    def _role(
        self,
        master_id: int | None,
        epoch: int | None,
        address: str | None,
        response: RemotingCommand,
        set_epoch: int | None = None,
    ) -> Role | None:
        if master_id is None or master_id < 1 or not epoch:
            return None
        body = response.body_bytes()
        found = SyncStateSet.decode(body) if body else SyncStateSet()
        return Role(
            broker_id=self.broker_id,
            is_master=master_id == self.broker_id,
            epoch=epoch,
            master_address=address or None,
            in_sync=frozenset(found.sync_state_set or (master_id,)),
            in_sync_epoch=found.sync_state_set_epoch if set_epoch is None else set_epoch,
            keeper=self,
        )

    async def alter_sync_set(self, epoch: int, wanted: SyncStateSet) -> SyncStateSet:
        """See RoleKeeper."""
        response = await self._ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            headers.AlterSyncStateSetRequestHeader(
                broker_name=self._config.broker_name,
                master_broker_id=self.broker_id,
                master_epoch=epoch,
            ),
            wanted.encode(),
        )
        if response.code == ResponseCode.SUCCESS:
            return SyncStateSet.decode(response.body_bytes())
        text = f"{response.code} {response.remark}"
        if response.code < ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH:
            raise RemotingError(text)  # the controller is in trouble: nobody knows
        raise ChangeRefusedError(text)

    async def _ask(
        self, code: RequestCode, header: CommandHeader, body: bytes = b""
    ) -> RemotingCommand:
        """Ask the controller that leads.

        Raises:
            RemotingError: none answers.
        """
        request = create_request(code, header, body=body)
        try:
            response = await self._client.invoke(self._leader, request, REQUEST_TIMEOUT_S)
        except RemotingError:
            await self._find_leader()
            raise
        if response.code == ResponseCode.CONTROLLER_NOT_LEADER:
            await self._find_leader()
            raise RemotingConnectError(f"controller {self._leader} is not the leader")
        self._said.pop("controller", None)
        return response

    async def _find_leader(self) -> None:
        """1005: asks one controller after the other who leads."""
        for address in self._controllers:
            with contextlib.suppress(RemotingError):
                response = await self._client.invoke(
                    address,
                    create_request(RequestCode.CONTROLLER_GET_METADATA_INFO),
                    REQUEST_TIMEOUT_S,
                )
                header = response.header(headers.GetMetaDataResponseHeader)
                if response.code == ResponseCode.SUCCESS and header.controller_leader_address:
                    self._leader = header.controller_leader_address
                    return

    async def _heartbeats(self) -> None:
        while True:
            with contextlib.suppress(OberthError, OSError):
                await self._heartbeat()
            await asyncio.sleep(self._config.broker_heartbeat_interval_ms / 1000)

    async def _heartbeat(self, *, waits: bool = False) -> None:
        """904 to every controller: this broker lives, and its log reaches so far.

        Raises:
            RemotingError: with ``waits``, the leader does not answer.
        """
        config = self._config
        if self.broker is not None:
            self._ends = _ends_of(self.broker)
        header = BrokerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=self.address,
            broker_name=config.broker_name,
            broker_id=self.broker_id,
            epoch=self._kept_epoch if self.role is None else self.role.epoch or self._kept_epoch,
            max_offset=self._ends[0],
            confirm_offset=self._ends[1],
            heartbeat_timeout_mills=config.controller_heartbeat_timeout_ms,
            election_priority=config.broker_election_priority,
        )
        if waits:
            await self._ask(RequestCode.BROKER_HEARTBEAT, header)
            return
        for address in {*self._controllers, self._leader}:
            # A machine that is gone must not keep the others from hearing of this broker.
            self._client.post(address, create_request(RequestCode.BROKER_HEARTBEAT, header))

    def _say_once(self, what: str, text: str) -> None:
        """Logs what goes on being so only once."""
        if self._said.get(what) != text:
            self._said[what] = text
            _LOG.warning("%s of a broker under a controller: %s", what, text)


def _replication_of(broker: Broker) -> ControlledHAService:
    found = broker.services.ha
    assert isinstance(found, ControlledHAService)
    return found


def _ends_of(broker: Broker) -> tuple[int, int]:
    """End of the log, or of what is sound in it, and up to where it is confirmed."""
    store = broker.parts.store
    return store.sound_offset, store.confirm_offset


def _id_of(data: bytes, who: str, path: str) -> int:
    text = data.decode("utf-8", "replace").strip()
    found, _, number = text.rpartition("#")
    if found != who or not number.isdigit() or int(number) < 1:
        raise ConfigFormatError(
            f"{path}: {text[:200]!r}, allowed is {who}#ID; a store belongs to the broker that made "
            "it"
        )
    return int(number)
