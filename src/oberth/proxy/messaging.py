"""MessagingService and Admin: the calls of official gRPC clients, as commands to a broker.

Every response has a ``Status``; what goes wrong in the business is a code there, never a broken
call. RocketMQ: GrpcMessagingApplication and its activities.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from oberth.proxy import messages as m
from oberth.proxy.admin import AdminService
from oberth.proxy.backend import Backend
from oberth.proxy.call import Begin, GrpcStatus, Handler
from oberth.proxy.clients import ClientTable, GrpcClient
from oberth.proxy.core import INVISIBLE_MS_MIN, POLL_MS_MIN, Context, ServiceCore, Unary
from oberth.proxy.offsets import Offsets
from oberth.proxy.receiving import Receives
from oberth.proxy.renewals import Renewals
from oberth.proxy.routes import Routes
from oberth.proxy.sending import DELAY_MS_MAX, Sends
from oberth.proxy.telemetry import Telemetry

_PREFIX: Final = f"/{m.PACKAGE}.MessagingService/"

LOOKED_AT_ONCE: Final = 2_000
"""Clients that are looked at in a turn of the loop, which takes some 0.4 ms."""

FORGET_S: Final = 0.002
"""How long clients leave their groups in a turn of the loop. One takes 0.03 ms, or some where a
group has hundreds of members, who are told."""


class MessagingService:
    """Serves `MessagingService` and `Admin` for the topics and groups of a backend.

    Lifecycle: `handlers` for a `GrpcServer`; `on_time` about every second; `close` at the end.

    Args:
        backend: where topics, groups and messages are.
        check_types: whether a message must be of its topic's type.
        delay_ms_max: how far ahead a delivery may be.
        date_age_max_s: how old a signed date may be; 0: any age.
        connections: how many connections there are.
        invisible_ms_min: the shortest time for which a message is handed out.
        poll_ms_min: the shortest time for which a receive waits.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        check_types: bool = True,
        delay_ms_max: int = DELAY_MS_MAX,
        date_age_max_s: int = 0,
        connections: Callable[[], int] = int,
        invisible_ms_min: int = INVISIBLE_MS_MIN,
        poll_ms_min: int = POLL_MS_MIN,
    ) -> None:
        self.core = ServiceCore(
            backend,
            date_age_max_s=date_age_max_s,
            check_types=check_types,
            invisible_ms_min=invisible_ms_min,
            poll_ms_min=poll_ms_min,
        )
        self._routes = Routes(self.core)
        self._telemetry = Telemetry(self.core)
        self._sends = Sends(self.core, delay_ms_max=delay_ms_max)
        self._receives = Receives(self.core)
        self._offsets = Offsets(self.core)
        self._admin = AdminService(self.core, self._sends.send, connections)
        self._to_look_at: list[GrpcClient] = []
        """Clients that have not been asked yet whether they are gone."""
        self._is_looking = False

    @property
    def clients(self) -> ClientTable:
        """Clients that are known."""
        return self.core.clients

    @property
    def renewals(self) -> Renewals:
        """Messages that push consumers work on."""
        return self._receives.renewals

    @property
    def results(self) -> Counter[tuple[str, int]]:
        """Calls that ended, by method and RocketMQ's code."""
        return self.core.results

    def handlers(self) -> dict[str, Handler]:
        """What serves each path."""
        unary: dict[str, Unary] = {
            "QueryRoute": self._routes.query_route,
            "Heartbeat": self._telemetry.heartbeat,
            "SendMessage": self._sends.send,
            "QueryAssignment": self._routes.query_assignment,
            "AckMessage": self._receives.ack,
            "ForwardMessageToDeadLetterQueue": self._receives.forward,
            "EndTransaction": self._sends.end_transaction,
            "NotifyClientTermination": self._terminate,
            "ChangeInvisibleDuration": self._receives.change_invisible,
            "RecallMessage": self._sends.recall,
            "SyncLiteSubscription": self._receives.sync_lite,
            "UpdateOffset": self._offsets.update_offset,
            "GetOffset": self._offsets.get_offset,
            "QueryOffset": self._offsets.query_offset,
        }
        made = {_PREFIX + name: self.core.unary(name, serve) for name, serve in unary.items()}
        made[_PREFIX + "ReceiveMessage"] = self._receives.receive
        made[_PREFIX + "PullMessage"] = self._offsets.pull
        made[_PREFIX + "Telemetry"] = self._telemetry.serve
        return {**made, **self._admin.handlers()}

    def begins(self) -> dict[str, Begin]:
        """What serves some of these paths without a task."""
        return {
            _PREFIX + "SendMessage": self._sends.begin,
            _PREFIX + "AckMessage": self._receives.begin_ack,
        }

    def read_done(self, connection: object) -> None:
        """The calls that came in one read of a connection have begun."""
        self.core.read_done(connection)

    async def _terminate(self, context: Context, request: Any, response: Any) -> None:
        client = self.core.clients.get(context.client_id)
        if client is not None:
            self._forget(client)

    def _forget(self, client: GrpcClient) -> None:
        """A client leaves its groups, and others get what it has in work."""
        self.core.clients.remove(client)
        self._receives.give_all_back(client)

    def on_time(self) -> None:
        """Forget clients that are gone or refused, renew messages in work; about every second."""
        self._telemetry.end_refused()
        if not self._to_look_at:
            self._to_look_at = list(self.core.clients)
        if not self._is_looking:
            self._forget_some()
        self._receives.renew_due()
        self._admin.on_time(asyncio.get_running_loop().time())

    def _forget_some(self) -> None:
        """Forget clients that are gone; of many some in a turn of the loop."""
        self._is_looking = False
        loop = asyncio.get_running_loop()
        now = loop.time()
        for _ in range(min(len(self._to_look_at), LOOKED_AT_ONCE)):
            client = self._to_look_at.pop()
            if client.is_gone(now) and self.core.clients.get(client.client_id) is client:
                self._forget(client)
                if loop.time() - now >= FORGET_S:
                    break
        if self._to_look_at:
            self._is_looking = True
            loop.call_soon(self._forget_some)

    def end_waiting(self) -> None:
        """Streams that last as long as their clients end."""
        for client in self.core.clients:
            for call in list(client.streams):
                call.end(GrpcStatus.UNAVAILABLE, "the server is going away")

    def close(self) -> None:
        """All clients leave their groups."""
        self._to_look_at.clear()
        self.core.close()
