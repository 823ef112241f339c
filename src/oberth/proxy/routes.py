"""Routes: where a topic has queues, under the address that the client dialled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from oberth.proxy import messages as m
from oberth.proxy.clients import (
    LITE_CONSUMERS,
)
from oberth.proxy.codes import Code, StatusError
from oberth.proxy.convert import (
    ACCEPTED,
    PERMISSIONS,
    permissions_of,
)
from oberth.proxy.core import (
    Context,
    ServiceCore,
    group_of,
    topic_of,
)
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand

_SCHEMES: Final = m.enum_values("AddressScheme")


class Routes:
    """QueryRoute and QueryAssignment."""

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    async def query_route(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        self._core.authorize(
            context,
            RemotingCommand(code=int(RequestCode.GET_TOPIC_CONFIG), ext_fields={"topic": topic}),
        )
        found = await self._core.queues(topic)
        kinds = ACCEPTED.get(await self._core.backend.message_type(topic) or "NORMAL", ())
        for queues in found:
            for number, permission in enumerate(permissions_of(queues)):
                queue = response.message_queues.add()
                queue.topic.CopyFrom(request.topic)
                queue.id = number
                queue.permission = permission
                queue.broker.name = queues.broker_name
                queue.broker.id = queues.broker_id
                self._endpoints(context, request.endpoints, queue.broker.endpoints)
                queue.accept_message_types.extend(kinds)

    async def query_assignment(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        group = group_of(request.group)
        self._core.authorize(
            context,
            RemotingCommand(
                code=int(RequestCode.QUERY_ASSIGNMENT),
                body=msgspec.json.encode({"topic": topic, "consumerGroup": group}),
            ),
        )
        config = await self._core.backend.group(group)
        client = self._core.clients.get(context.client_id)
        is_fifo = config is not None and config.consume_message_orderly
        is_lite = (
            client is not None
            and client.settings is not None
            and client.settings.client_type in LITE_CONSUMERS
        )
        for queues in await self._core.queues(topic):
            if not queues.may_read or queues.read_count <= 0:
                continue
            wanted: Iterable[int] = (-1,)
            if is_fifo and not is_lite:
                wanted = range(queues.read_count)
            for queue_id in wanted:
                queue = response.assignments.add().message_queue
                queue.topic.CopyFrom(request.topic)
                queue.id = queue_id
                queue.permission = PERMISSIONS["READ_WRITE" if queues.may_write else "READ"]
                queue.broker.name = queues.broker_name
                queue.broker.id = queues.broker_id
                self._endpoints(context, request.endpoints, queue.broker.endpoints)
        if not response.assignments:
            raise StatusError(Code.FORBIDDEN, "no readable queue")

    def _endpoints(self, context: Context, asked: Any, target: Any) -> None:
        """The address under which the client reached us: it knows the way."""
        if asked.addresses:
            target.CopyFrom(asked)
            return
        local = context.call.channel.local
        target.scheme = _SCHEMES["IPv6" if ":" in local.host else "IPv4"]
        target.addresses.add(host=local.host, port=local.port)
