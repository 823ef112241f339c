"""PeerBrokers: the other brokers, by name. RocketMQ: BrokerOuterAPI's RpcClient.

Addresses come from the name servers when they are needed, and again when nobody answers there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from oberth.errors import RemotingConnectError, RemotingError
from oberth.remoting.bodies.base import BodyError
from oberth.remoting.bodies.route import MASTER_ID, ClusterInfo, TopicRouteData
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_request
from oberth.remoting.headers.namesrv import GetRouteInfoRequestHeader

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.remoting.aio.client import RemotingClient

_LOG: Final = logging.getLogger(__name__)

REFRESH_S_MIN: Final = 1.0
"""Seconds between two looks at the name servers, however often an unknown name is asked for."""


class PeerBrokers:
    """Masters that this broker asks for what they have."""

    def __init__(self, *, config: BrokerConfig, client: RemotingClient) -> None:
        self._config = config
        self._client = client
        self._addresses: dict[str, str] = {}
        self._refreshed_at = -REFRESH_S_MIN
        self._refreshing: asyncio.Task[None] | None = None

    async def ask(
        self,
        broker_name: str,
        code: RequestCode,
        fields: dict[str, str],
        *,
        logical: bool = False,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Ask the master of a broker name, and wait for its answer, whatever its code.

        Args:
            broker_name: whom.
            code: of the request.
            fields: of the request.
            logical: whether numbers of queues mean logical ones; else physical ones.
            body: of the request.

        Raises:
            RemotingError: it is not known, not reached, or does not answer in forwardTimeout.
        """
        timeout_s = self._config.forward_timeout_ms / 1000
        address = await self._address(broker_name)
        request = RemotingCommand(
            code=code.value,
            ext_fields={**fields, "lo": "true" if logical else "false", "bname": broker_name},
            body=body,
        )
        try:
            return await self._client.invoke(address, request, timeout_s)
        except RemotingConnectError:
            # It may have moved; the next request looks it up.
            self._addresses.pop(broker_name, None)
            raise

    async def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic, or None if no name server has one.

        Raises:
            RemotingError: no name server answers.
        """
        response = await self._ask_name_servers(
            create_request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic)
            )
        )
        if response.code != ResponseCode.SUCCESS:
            return None
        try:
            return TopicRouteData.decode(response.body_bytes(), FRAME_SIZE_MAX)
        except BodyError as error:
            raise RemotingError(f"route of {topic}: {error}") from None

    async def _address(self, broker_name: str) -> str:
        found = self._addresses.get(broker_name)
        if found is not None:
            return found
        loop = asyncio.get_running_loop()
        if self._refreshing is None and loop.time() - self._refreshed_at >= REFRESH_S_MIN:
            self._refreshed_at = loop.time()
            self._refreshing = loop.create_task(self._refresh())
        if self._refreshing is not None:
            # Shielded: others may wait for the same answer.
            await asyncio.shield(self._refreshing)
        found = self._addresses.get(broker_name)
        if found is None:
            raise RemotingConnectError(f"no name server knows the address of broker {broker_name}")
        return found

    async def _refresh(self) -> None:
        try:
            response = await self._ask_name_servers(
                RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO.value)
            )
            info = await asyncio.to_thread(
                ClusterInfo.decode, response.body_bytes(), FRAME_SIZE_MAX
            )
            table = info.broker_addr_table
            self._addresses = {
                name: data.broker_addrs[MASTER_ID]
                for name, data in table.items()
                if MASTER_ID in data.broker_addrs
            }
        except (RemotingError, BodyError) as error:
            _LOG.warning("the addresses of other brokers could not be asked for: %s", error)
        finally:
            self._refreshing = None

    async def _ask_name_servers(self, request: RemotingCommand) -> RemotingCommand:
        """The first answer of a name server."""
        last: RemotingError = RemotingConnectError("namesrvAddr is not set")
        for address in self._config.namesrv_addresses:
            try:
                return await self._client.invoke(address, request)
            except RemotingError as error:
                last = error
        raise last

    async def aclose(self) -> None:
        """Ask nobody any more."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
