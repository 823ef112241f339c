"""ActingMaster: the slave with the smallest id stands in for a master that is away.

With ``enableSlaveActingMaster`` the members of a broker name look at the name servers every second.
While no master is among them, the smallest id acts: it delivers delayed and timed messages, brings
POP messages back and renews open transactions, through `Escape`, and routes show it in the
master's place without the right to write. It takes no messages itself. A slave whose log has parted
from its master's (`HAService.part`) is isolated again, and acts for nobody.

A member that starts is isolated until it may go online: no name server hears of it, and it delivers
nothing. A master that comes back first has each slave follow it, and takes over what they have done
meanwhile; so nothing is delivered by two, and little twice.

`Membership` decides; it is a machine without a loop. RocketMQ: BrokerController,
BrokerPreOnlineService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

from oberth.errors import OberthError, RemotingError, StoreError
from oberth.remoting.bodies.route import MASTER_ID, GetBrokerMemberGroupResponseBody
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
    GetBrokerMemberGroupRequestHeader,
)
from oberth.remoting.headers.replication import (
    ExchangeHAInfoRequestHeader,
    ExchangeHAInfoResponseHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.escape import Escape
    from oberth.broker.ha_service import HAService
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.registration import Registration
    from oberth.broker.slave_tables import SlaveTables
    from oberth.broker.transactions import Transactions
    from oberth.remoting.aio.client import RemotingClient
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 3.0
FOLLOWED_WITHIN_S: Final = 10.0
"""How long a master that comes back waits for a slave to follow it, before it asks again."""
LOOK_S: Final = 0.1


class Step(Enum):
    """What a member that is isolated does next."""

    GO_ONLINE = "go online"
    TAKE_BACK = "take back"
    """A master: have the slaves follow, and take over what they did."""
    FOLLOW = "follow"
    """A slave: follow the master first."""


class Membership:
    """Who of a broker name is there, and what that makes of one member. No loop, no clock.

    Attributes:
        acts: whether this member stands in for the master.
        is_isolated: whether it is not online yet.
    """

    def __init__(self, own_id: int, *, is_isolated: bool) -> None:
        self.own_id = own_id
        self.is_isolated = is_isolated
        self.acts = False

    def next_step(self, others: Mapping[int, str]) -> Step:
        """What to do while isolated.

        Args:
            others: addresses of the members that name servers know, without this one.
        """
        if self.own_id == MASTER_ID:
            return Step.TAKE_BACK if others else Step.GO_ONLINE
        return Step.FOLLOW if MASTER_ID in others else Step.GO_ONLINE

    def see(self, others: Mapping[int, str]) -> bool:
        """The members now; whether that changes if this one acts."""
        acts = not self.is_isolated and MASTER_ID < self.own_id < min(
            others, default=self.own_id + 1
        )
        changed, self.acts = acts is not self.acts, acts
        return changed


class ActingMaster:
    """One member of a broker name. On the broker's loop; `start` makes its task.

    Does nothing unless ``enableSlaveActingMaster`` is set.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        is_alone: bool,
        own: OwnAddress,
        store: MessageStore,
        ha: HAService,
        registration: Registration,
        tables: SlaveTables,
        transactions: Transactions,
        escape: Escape,
        client: RemotingClient,
    ) -> None:
        self._config = config
        self._own = own
        self._store = store
        self._ha = ha
        self._registration = registration
        self._tables = tables
        self._transactions = transactions
        self._escape = escape
        self._client = client
        self.is_enabled = config.enable_slave_acting_master
        isolated = self.is_enabled and not is_alone and bool(config.namesrv_addresses)
        self.membership = Membership(config.broker_id, is_isolated=isolated)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said = ""
        self._asked = ""
        self._tell()

    def _tell(self) -> None:
        ha, membership = self._ha, self.membership
        ha.acts = membership.acts
        ha.is_isolated = self._registration.is_isolated = membership.is_isolated

    def start(self) -> None:
        """Look at the members from now on."""
        if self.is_enabled and self._config.namesrv_addresses:
            self._task = asyncio.create_task(self._run(), name="oberth-members")

    async def aclose(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def look_soon(self) -> None:
        """905: somebody says that the smallest id has changed. The name servers are asked."""
        self._wake.set()

    def on_time(self, now_ms: int) -> None:
        """Renews open transactions at other brokers while this one acts."""
        if self.membership.acts and self._config.enable_remote_escape:
            self._transactions.renew(now_ms, lambda half: self._escape.append([half])[0].ok)

    def runtime_info(self) -> dict[str, str]:
        """What GET_BROKER_RUNTIME_INFO shows beside Apache's figures."""
        if not self.is_enabled:
            return {}
        return {
            "actsAsMaster": str(self.membership.acts).lower(),
            "isolated": str(self.membership.is_isolated).lower(),
            "escapedMessages": str(self._escape.sent),
        }

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except (OberthError, OSError) as error:  # time-outs and a full disk, too
                self._say(str(error) or type(error).__name__)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.broker_heartbeat_interval_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()

    async def _look(self) -> None:
        membership = self.membership
        if (parted_at := self._ha.parted_at) is not None:
            if not membership.is_isolated:
                membership.is_isolated, membership.acts = True, False
                self._tell()
                await self._registration.withdraw()
            raise StoreError(f"the log is another than the master's from offset {parted_at} on")
        if not membership.is_isolated:
            self._heartbeat()
        others = await self._others()
        if membership.is_isolated:
            step = membership.next_step(others)
            if step is Step.TAKE_BACK:
                for _, address in sorted(others.items()):
                    await self._take_back(address)
            elif step is Step.FOLLOW:
                await self._follow(others[MASTER_ID])
            membership.is_isolated = False
            self._tell()
            await self._registration.register_all()
            _LOG.warning(
                "broker %s is registered with id %d again and serves clients",
                self._config.broker_name,
                membership.own_id,
            )
            others = await self._others()
        self._said = ""
        if membership.see(others):
            acts = "acts as master" if membership.acts else "acts as master no more"
            _LOG.warning(
                "broker %s with id %d %s", self._config.broker_name, membership.own_id, acts
            )
            self._escape.forget()
        self._tell()

    def _heartbeat(self) -> None:
        config = self._config
        header = BrokerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=str(self._own.address),
            broker_name=config.broker_name,
            broker_id=config.broker_id,
        )
        for address in config.namesrv_addresses:
            # A machine that is gone must not keep the others from hearing of this broker.
            self._client.post(address, create_request(RequestCode.BROKER_HEARTBEAT, header))

    async def _others(self) -> dict[int, str]:
        """The other members, as a name server says: the one that answered last is asked first.

        Raises:
            RemotingError: none answers.
        """
        config = self._config
        header = GetBrokerMemberGroupRequestHeader(
            cluster_name=config.broker_cluster_name, broker_name=config.broker_name
        )
        last = RemotingError("namesrvAddr is not set")
        for address in sorted(config.namesrv_addresses, key=lambda each: each != self._asked):
            try:
                answer = await self._client.invoke(
                    address,
                    create_request(RequestCode.GET_BROKER_MEMBER_GROUP, header),
                    REQUEST_TIMEOUT_S,
                )
            except RemotingError as error:
                last = error
                continue
            if answer.code != ResponseCode.SUCCESS:
                last = RemotingError(f"901 is answered with {answer.code}: {answer.remark}")
                continue
            self._asked = address
            body = GetBrokerMemberGroupResponseBody.decode(answer.body_bytes())
            group = body.broker_member_group
            own = str(self._own.address)
            return {
                number: addr
                for number, addr in (group.broker_addrs if group is not None else {}).items()
                if number != config.broker_id and addr != own
            }
        raise last

    # Going online

    async def _take_back(self, address: str) -> None:
        """Has a slave follow this master, and takes what it has done in the master's place.

        Raises:
            OberthError: it is not there, or does not follow.
        """
        await self._ask(
            address,
            ExchangeHAInfoRequestHeader(
                master_ha_address=self._own.ha_address,
                master_flush_offset=self._store.flushed_offset,
                master_address=str(self._own.address),
            ),
        )
        try:
            async with asyncio.timeout(FOLLOWED_WITHIN_S):
                while not self._ha.is_followed_from(address):  # noqa: ASYNC110 - the HA port has no such event
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise RemotingError(
                f"the slave at {address} does not follow; its log and this one's say why"
            ) from None
        await self._tables.take_back(address)

    async def _follow(self, address: str) -> None:
        """Follows the master before anybody may read here.

        Raises:
            OberthError: it is not there.
        """
        found = await self._ask(address, ExchangeHAInfoRequestHeader())
        if found.master_ha_address is None:
            return
        self._ha.master_found(found.master_address or address, found.master_ha_address)
        async with asyncio.timeout(FOLLOWED_WITHIN_S):
            while not self._ha.follows_master:  # noqa: ASYNC110 - see above
                await asyncio.sleep(LOOK_S)

    async def _ask(
        self, address: str, header: ExchangeHAInfoRequestHeader
    ) -> ExchangeHAInfoResponseHeader:
        """906."""
        answer = await self._client.invoke(
            address, create_request(RequestCode.EXCHANGE_BROKER_HA_INFO, header), REQUEST_TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(f"{address} answers 906 with {answer.code}: {answer.remark}")
        return answer.header(ExchangeHAInfoResponseHeader)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            _LOG.warning("slave of broker %s: %s", self._config.broker_name, text)
