"""A second broker that hangs: the name server knows it, it takes requests and answers none.

Nobody waits for it: a question to it costs its time-out on a clock of its own.
"""

from __future__ import annotations

import pytest

from oberth.client.admin.base import AdminBase
from oberth.errors import RemotingTimeoutError
from oberth.remoting.bodies.route import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from oberth.remoting.command import RemotingCommand

NAME = "mute"
ADDRESS = "127.0.0.1:1"


class SilentBroker:
    """A master of every topic, for every `Admin` of a test.

    Args:
        monkeypatch: of the test.

    Attributes:
        asked: codes of the requests that it took.
        waited_s: what they cost who sent them one after the other.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.waited_s = 0.0
        cluster_info, topic_route = AdminBase.cluster_info, AdminBase.topic_route
        invoke = AdminBase._invoke

        async def with_it(admin: AdminBase) -> ClusterInfo:
            info = await cluster_info(admin)
            (cluster,) = info.cluster_addr_table
            info.cluster_addr_table[cluster] = [*info.cluster_addr_table[cluster], NAME]
            info.broker_addr_table[NAME] = _data(cluster)
            return info

        async def routed(admin: AdminBase, topic: str) -> TopicRouteData:
            route = await topic_route(admin, topic)
            route.broker_datas = [*route.broker_datas, _data(route.broker_datas[0].cluster)]
            return route

        async def hang(
            admin: AdminBase, addr: str, request: RemotingCommand, timeout_s: float
        ) -> RemotingCommand:
            if addr != ADDRESS:
                return await invoke(admin, addr, request, timeout_s)
            self.asked.append(request.code)
            self.waited_s += timeout_s
            raise RemotingTimeoutError(f"no response from {addr} to code {request.code}")

        monkeypatch.setattr(AdminBase, "cluster_info", with_it)
        monkeypatch.setattr(AdminBase, "topic_route", routed)
        monkeypatch.setattr(AdminBase, "_invoke", hang)


def _data(cluster: str) -> BrokerData:
    return BrokerData(cluster=cluster, broker_name=NAME, broker_addrs={MASTER_ID: ADDRESS})
