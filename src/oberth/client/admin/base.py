"""What all of administration stands on: the requests, the masters, the name servers' values."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from oberth.client.config import ClientConfig, client_config
from oberth.client.instance import ClientInstance
from oberth.client.members import ClientService
from oberth.errors import MQBrokerError, MQClientError, RemotingError
from oberth.remoting.aio.long_answers import LongAnswers
from oberth.remoting.bodies.base import BodyError, parse
from oberth.remoting.bodies.route import MASTER_ID, ClusterInfo, KVTable, TopicRouteData
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_request
from oberth.remoting.headers.base import CommandHeader
from oberth.remoting.headers.namesrv import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
)

TIMEOUT_S: Final = 5.0
QUERY_TIMEOUT_S: Final = 18.0
SLOW_SHARE: Final = 0.2
"""Of an admin's time-out: an answer that takes longer may come from a broker that hangs."""

T = TypeVar("T")
Silent = dict[str, RemotingError]
"""Broker name → why it did not answer."""


def object_of(body: bytes, what: str) -> dict[str, Any]:
    """The JSON object in an answer's body.

    Raises:
        BodyError: it is none; the message says of ``what``.
    """
    found = parse(body, what, FRAME_SIZE_MAX)
    if not isinstance(found, dict):
        raise BodyError(f"{what}: a JSON {type(found).__name__}, allowed an object")
    return found


async def ask_each(
    masters: Mapping[str, str],
    question: Callable[[str, str], Awaitable[T]],
    silent: Silent | None = None,
) -> dict[str, T]:
    """The answers of brokers that are all asked at the same time, by name.

    Args:
        masters: address by broker name.
        question: puts it to a broker, by name and address.
        silent: gets the error of each broker that does not answer, and those in it are not asked;
            None: such an error is raised.

    Raises:
        RemotingError: a broker does not answer, and ``silent`` is None.
        MQBrokerError: a broker answers with an error.
    """

    async def one(name: str, addr: str) -> tuple[str, T | RemotingError]:
        try:
            return name, await question(name, addr)
        except RemotingError as error:
            if silent is None:
                raise
            return name, error

    made: dict[str, T] = {}
    asked = [each for each in masters.items() if silent is None or each[0] not in silent]
    found = await asyncio.gather(
        *(one(*each) for each in asked), return_exceptions=True
    )  # what one broker refuses stops no change that is on its way to another
    for each in found:
        if isinstance(each, BaseException):
            raise each
        name, answer = each
        if not isinstance(answer, RemotingError):
            made[name] = answer
        elif silent is not None:
            silent[name] = answer
    return made


async def change_each(
    masters: Mapping[str, str],
    change: Callable[[str, str], Awaitable[None]],
    silent: Silent | None = None,
) -> None:
    """Change something at brokers, as `ask_each` asks them.

    Raises:
        RemotingError: as of `ask_each`, or none of several brokers answers.
        MQBrokerError: a broker refuses.
    """
    changed = await ask_each(masters, change, silent)
    if silent and not changed:
        raise next(iter(silent.values()))


class AdminBase(ClientService):
    """The instance, requests to an address, and what every part of administration asks.

    Arguments are those of `Admin`.
    """

    def __init__(
        self,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        timeout_ms: int = round(TIMEOUT_S * 1000),
    ) -> None:
        self.config = client_config(config, namesrv_addr)
        self._timeout_s = timeout_ms / 1000
        self._instance: ClientInstance | None = None
        self._answers = LongAnswers()

    async def start(self) -> None:
        """Get ready; connections are opened when they are needed."""
        if self._instance is None:
            self._instance = await ClientInstance.acquire(self.config)

    async def shutdown(self) -> None:
        """Close the connections."""
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.release()

    def _client(self) -> ClientInstance:
        if self._instance is None:
            raise MQClientError("admin is not started, or shut down")
        return self._instance

    async def _ask(
        self,
        addr: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> bytes:
        request = create_request(code, header, body)
        response = await self._invoke(addr, request, timeout_s or self._timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise MQBrokerError(response.code, response.remark or "", addr)
        return response.body_bytes()

    async def _invoke(
        self, addr: str, request: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Ask an address; for an answer that may take long, only one that still answers others.

        A question with a longer time-out than the admin's own is followed by one for the broker's
        figures, which costs nothing. Who answers neither hangs, and is given up after the admin's
        time-out.
        """
        client = self._client()
        if timeout_s <= self._timeout_s:
            return await client.invoke(addr, request, timeout_s)
        wait_s = self._timeout_s * SLOW_SHARE
        answer = asyncio.ensure_future(client.invoke(addr, request, timeout_s))
        sign = None
        try:
            await asyncio.wait({answer}, timeout=wait_s)
            if not answer.done():
                figures = create_request(RequestCode.GET_BROKER_RUNTIME_INFO)
                sign = asyncio.ensure_future(client.invoke(addr, figures, self._timeout_s - wait_s))
                await asyncio.wait({answer, sign}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    await sign
            return await answer
        finally:
            for each in (answer, sign):
                if each is not None and not each.done():
                    each.cancel()
            await asyncio.gather(*filter(None, (answer, sign)), return_exceptions=True)

    async def cluster_info(self) -> ClusterInfo:
        """Clusters, their brokers and addresses. RocketMQ: examineBrokerClusterInfo."""
        response = await self._client().ask_name_server(
            RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=self._timeout_s
        )
        return ClusterInfo.decode(response.body_bytes(), FRAME_SIZE_MAX)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """The masters' addresses by broker name; of one cluster, or of all.

        Raises:
            MQClientError: there is no such cluster.
        """
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise MQClientError(f"there is no cluster {cluster!r}; known: {known}")
        wanted = set(
            info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        )
        return {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(info.broker_addr_table.items())
            if name in wanted and MASTER_ID in data.broker_addrs
        }

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Where a topic is. RocketMQ: examineTopicRouteInfo.

        Raises:
            MQBrokerError: there is no such topic (code 17).
        """
        route = await self._client().fetch_route(topic, self._timeout_s)
        if route is None:
            raise MQBrokerError(ResponseCode.TOPIC_NOT_EXIST, f"no topic {topic!r}")
        return route

    async def _masters_of(self, topic: str) -> dict[str, str]:
        route = await self.topic_route(topic)
        for data in route.broker_datas:
            self._client().brokers[data.broker_name] = dict(data.broker_addrs)
        return {
            data.broker_name: data.broker_addrs[MASTER_ID]
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs
        }

    async def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Set a value at all name servers."""
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        for addr in self._client().name_server_addresses:
            await self._ask(addr, RequestCode.PUT_KV_CONFIG, header)

    async def get_kv_config(self, namespace: str, key: str) -> str | None:
        """A value, or None."""
        response = await self._client().ask_name_server(
            RequestCode.GET_KV_CONFIG,
            GetKVConfigRequestHeader(namespace=namespace, key=key),
            timeout_s=self._timeout_s,
            allowed=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return response.header(GetKVConfigResponseHeader).value

    async def delete_kv_config(self, namespace: str, key: str) -> None:
        """Remove a value from all name servers."""
        header = DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        for addr in self._client().name_server_addresses:
            await self._ask(addr, RequestCode.DELETE_KV_CONFIG, header)

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        response = await self._client().ask_name_server(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            GetKVListByNamespaceRequestHeader(namespace=namespace),
            timeout_s=self._timeout_s,
            allowed=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        return KVTable.decode(response.body_bytes()).table
