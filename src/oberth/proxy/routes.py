"""Routes: where a topic has queues, under the address that the client dialled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import msgspec

from oberth.proxy import messages as m
from oberth.proxy.backend import BrokerQueues
from oberth.proxy.clients import takes_lite_topics
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

QUEUES_A_TURN: Final = 200
"""Queues of which an answer tells in one turn of the loop: a millisecond."""

ENDPOINTS_SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes that the endpoints of a request make in its answer, once for each queue."""

_SCHEMES: Final = m.enum_values("AddressScheme")


class Routes:
    """QueryRoute and QueryAssignment."""

    def __init__(self, core: ServiceCore) -> None:
        self._core = core
        self._large = asyncio.Lock()

    def _turn(self, request: Any, count: int) -> AbstractAsyncContextManager[Any]:
        """Held while the answer about so many queues is made: of large ones one at a time.

        Raises:
            StatusError: BAD_REQUEST: each queue repeats the endpoints that the client names.
        """
        size = request.endpoints.ByteSize()
        if size * count > ENDPOINTS_SIZE_MAX:
            raise StatusError(
                Code.BAD_REQUEST,
                f"endpoints of {size} bytes for {count} queues, allowed are {ENDPOINTS_SIZE_MAX} "
                "bytes in all",
            )
        return self._large if count > QUEUES_A_TURN else nullcontext()

    async def query_route(self, context: Context, request: Any, response: Any) -> None:
        topic = topic_of(request.topic)
        self._core.authorize(
            context,
            RemotingCommand(code=int(RequestCode.GET_TOPIC_CONFIG), ext_fields={"topic": topic}),
        )
        found = await self._core.queues(topic)
        kinds = ACCEPTED.get(await self._core.backend.message_type(topic) or "NORMAL", ())
        permissions = [(queues, permissions_of(queues)) for queues in found]
        async with self._turn(request, sum(len(each) for _, each in permissions)):
            for queues, each in permissions:
                for number, permission in enumerate(each):
                    if number % QUEUES_A_TURN == QUEUES_A_TURN - 1:
                        await asyncio.sleep(0)
                    queue = response.message_queues.add()
                    self._fill(context, request, queue, queues, number, permission)
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
        is_lite = takes_lite_topics(client, config, topic)
        wanted: list[tuple[BrokerQueues, Iterable[int]]] = [
            (each, range(each.read_count) if is_fifo and not is_lite else (-1,))
            for each in await self._core.queues(topic)
            if each.may_read and each.read_count > 0
        ]
        count = sum(each.read_count for each, _ in wanted) if is_fifo else len(wanted)
        async with self._turn(request, count):
            for queues, ids in wanted:
                permission = PERMISSIONS["READ_WRITE" if queues.may_write else "READ"]
                for number in ids:
                    if number % QUEUES_A_TURN == QUEUES_A_TURN - 1:
                        await asyncio.sleep(0)
                    queue = response.assignments.add().message_queue
                    self._fill(context, request, queue, queues, number, permission)
        if not response.assignments:
            raise StatusError(Code.FORBIDDEN, "no readable queue")

    def _fill(
        self,
        context: Context,
        request: Any,
        queue: Any,
        queues: BrokerQueues,
        number: int,
        permission: int,
    ) -> None:
        """One queue of a broker, as clients are told of it."""
        queue.topic.CopyFrom(request.topic)
        queue.id = number
        queue.permission = permission
        queue.broker.name = queues.broker_name
        queue.broker.id = queues.broker_id
        self._endpoints(context, request.endpoints, queue.broker.endpoints)

    def _endpoints(self, context: Context, asked: Any, target: Any) -> None:
        """The address under which the client reached us: it knows the way."""
        if asked.addresses:
            target.CopyFrom(asked)
            return
        local = context.call.channel.local
        target.scheme = _SCHEMES["IPv6" if ":" in local.host else "IPv4"]
        target.addresses.add(host=local.host, port=local.port)
