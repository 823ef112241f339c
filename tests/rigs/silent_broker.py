"""A second broker that hangs: the name server knows it, it takes requests and answers none.

Nobody waits for it: a question to it costs its time-out on a clock of its own.
"""

from __future__ import annotations

import msgspec
import pytest

from oberth.client.admin.base import AdminBase
from oberth.client.instance import ClientInstance
from oberth.errors import RemotingTimeoutError
from oberth.remoting.bodies.route import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from oberth.remoting.command import RemotingCommand

NAME = "mute"
ADDRESS = "127.0.0.1:1"


class SilentBroker:
    """A master of every topic, for every `Admin` of a test.

    Args:
        monkeypatch: of the test.
        address: where it seems to be.
        has_queues: whether it has queues of every topic, for all clients and not for `Admin` alone.

    Attributes:
        asked: codes of the requests that it took.
        waited_s: what they cost who sent them one after the other.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        address: str = ADDRESS,
        *,
        has_queues: bool = False,
    ) -> None:
        self.asked: list[int] = []
        self.waited_s = 0.0
        self.address = address
        if has_queues:
            self._have_queues(monkeypatch)
        cluster_info, topic_route = AdminBase.cluster_info, AdminBase.topic_route
        invoke = AdminBase._invoke

        async def with_it(admin: AdminBase) -> ClusterInfo:
            info = await cluster_info(admin)
            (cluster,) = info.cluster_addr_table
            info.cluster_addr_table[cluster] = [*info.cluster_addr_table[cluster], NAME]
            info.broker_addr_table[NAME] = self._data(cluster)
            return info

        async def routed(admin: AdminBase, topic: str) -> TopicRouteData:
            route = await topic_route(admin, topic)
            if all(data.broker_name != NAME for data in route.broker_datas):
                cluster = route.broker_datas[0].cluster
                route.broker_datas = [*route.broker_datas, self._data(cluster)]
            return route

        async def hang(
            admin: AdminBase, addr: str, request: RemotingCommand, timeout_s: float
        ) -> RemotingCommand:
            if addr != address:
                return await invoke(admin, addr, request, timeout_s)
            raise self._silence(request, timeout_s)

        monkeypatch.setattr(AdminBase, "cluster_info", with_it)
        monkeypatch.setattr(AdminBase, "topic_route", routed)
        monkeypatch.setattr(AdminBase, "_invoke", hang)

    def _have_queues(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fetch_route, invoke = ClientInstance.fetch_route, ClientInstance.invoke

        async def routed(
            instance: ClientInstance, topic: str, timeout_s: float | None = None
        ) -> TopicRouteData | None:
            route = await fetch_route(instance, topic, timeout_s)
            if route is not None:
                route.broker_datas = [
                    *route.broker_datas,
                    self._data(route.broker_datas[0].cluster),
                ]
                mine = msgspec.structs.replace(route.queue_datas[0], broker_name=NAME)
                route.queue_datas = [*route.queue_datas, mine]
            return route

        async def hang(
            instance: ClientInstance,
            addr: str,
            request: RemotingCommand,
            timeout_s: float | None = None,
        ) -> RemotingCommand:
            if addr != self.address:
                return await invoke(instance, addr, request, timeout_s)
            raise self._silence(request, timeout_s or 0.0)

        monkeypatch.setattr(ClientInstance, "fetch_route", routed)
        monkeypatch.setattr(ClientInstance, "invoke", hang)

    def _silence(self, request: RemotingCommand, timeout_s: float) -> RemotingTimeoutError:
        self.asked.append(request.code)
        self.waited_s += timeout_s
        return RemotingTimeoutError(f"no response from {self.address} to code {request.code}")

    def _data(self, cluster: str) -> BrokerData:
        return BrokerData(cluster=cluster, broker_name=NAME, broker_addrs={MASTER_ID: self.address})
