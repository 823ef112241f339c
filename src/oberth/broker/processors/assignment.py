"""AssignmentProcessor: 400, 401 and 402. RocketMQ: QueryAssignmentProcessor.

Who consumes which queues of a topic, worked out by the broker instead of by each client, and
whether a group pulls or pops a topic; the latter is kept in messageRequestMode.json.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oberth.broker import remarks
from oberth.broker.config_file import BackgroundFile, ConfigFile
from oberth.broker.consumers import BROADCASTING
from oberth.broker.tasks import result_in_turns
from oberth.client.rebalance import (
    allocate_average,
    allocate_by_circle,
    allocate_consistent_hash,
)
from oberth.client.route import check_route
from oberth.errors import RemoteProtocolError, RemotingError
from oberth.formats import names
from oberth.formats.config_files import MessageRequestMode, MessageRequestModes
from oberth.formats.config_json import Shown, config_in_slices
from oberth.remoting.bodies.base import BodyError, MessageQueue, render_in_slices
from oberth.remoting.bodies.pop import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from oberth.remoting.bodies.route import QueueData, TopicRouteData
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import (
    FRAME_SIZE_MAX,
    RemotingCommand,
    create_request,
    create_response,
)
from oberth.remoting.headers.namesrv import GetRouteInfoRequestHeader

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.tasks import StartTask
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.aio.client import RemotingClient
    from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)

PULL: Final = "PULL"
POP: Final = "POP"
ROUTE_AGE_MS_MAX: Final = 5_000
"""How long a topic's route is used before the name servers are asked again."""

ROUTE_TIMEOUT_S: Final = 3.0
ROUTES_MAX: Final = 10_000
MODES_MAX: Final = 10_000
"""Request modes: a group's for a topic."""
PERM_READ: Final = 4
ALL_QUEUES: Final = -1

_Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

QUEUES_A_TURN: Final = 500
"""Queues that are looked at in one turn of the loop: a millisecond or two."""

_STRATEGIES: Final[dict[str, _Allocate]] = {
    "AVG": allocate_average,
    "AVG_BY_CIRCLE": allocate_by_circle,
    "CONSISTENT_HASH": allocate_consistent_hash,
}


class AssignmentProcessor:
    """Assigns queues, and keeps the request modes. One of the broker's parts."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        config_dir: Path,
        files: FileSystem,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        consumers: ConsumerTable,
        now_ms: Callable[[], int],
        client: RemotingClient,
        start_task: StartTask,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._now_ms = now_ms
        self._client = client
        self._file = ConfigFile(config_dir / "messageRequestMode.json", files)
        self._background = BackgroundFile(self._file, start_task)
        self._modes: dict[str, dict[str, MessageRequestMode]] = {}
        self._routes: dict[str, tuple[int, list[QueueData]]] = {}
        self._swept_ms = 0
        self._large = asyncio.Lock()
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """See FileKeeper."""
        self._file.load(self._read)

    def close(self) -> None:
        """See FileKeeper; every change was written when it was made."""

    def _read(self, document: Any) -> None:
        modes = MessageRequestModes.from_json(document, "messageRequestMode.json")
        self._modes = modes.message_request_mode_map

    # 401 and 402

    async def set_mode(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """401: whether a group pulls or pops a topic."""
        del channel
        body = SetMessageRequestModeRequestBody.decode(request.body_bytes())
        if body.topic.startswith(names.RETRY_PREFIX):
            return create_response(
                request, ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
            )
        if body.topic not in self._topics:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist"
            )
        if self._groups.find(body.consumer_group) is None:
            return create_response(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remarks.group_not_exist(body.consumer_group),
            )
        if body.mode not in (PULL, POP):
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, f"mode {body.mode!r} is not PULL or POP"
            )
        async with self._changing:
            groups = self._modes.get(body.topic, {})
            if body.consumer_group not in groups and self._count() >= MODES_MAX:
                remark = f"{MODES_MAX} request modes are kept, no more are allowed"
                return create_response(request, ResponseCode.SYSTEM_ERROR, remark)
            mode = MessageRequestMode(
                consumer_group=body.consumer_group,
                mode=body.mode,
                pop_share_queue_num=body.pop_share_queue_num,
                topic=body.topic,
            )
            changed = {**self._modes, body.topic: {**groups, body.consumer_group: mode}}
            await self.replace_all(MessageRequestModes(message_request_mode_map=changed))
        return create_response(request, ResponseCode.SUCCESS)

    def _count(self) -> int:
        """Modes that are kept; those of topics and groups that are gone make room."""
        count = sum(map(len, self._modes.values()))
        if count >= MODES_MAX:
            kept = {
                topic: {group: mode for group, mode in groups.items() if group in self._groups}
                for topic, groups in self._modes.items()
                if topic in self._topics
            }
            self._modes = {topic: groups for topic, groups in kept.items() if groups}
            count = sum(map(len, self._modes.values()))
        return count

    def all_modes(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """402: every mode, for slaves."""
        del channel
        shown = Shown(self._modes, lambda groups: Shown(groups, MessageRequestMode.to_json))
        raw = yield from config_in_slices({"messageRequestModeMap": shown})
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    async def replace_all(self, modes: MessageRequestModes) -> None:
        """Take over other modes, as of a master's answer to 402; they are written if they differ.

        Raises:
            OSError: they cannot be written, so none is taken over.
        """
        if modes.message_request_mode_map != self._modes:
            await self._background.write(modes.encode, sync=True)
            self._modes = modes.message_request_mode_map

    def mode_of(self, topic: str, group: str) -> tuple[str, int]:
        """Mode and number of shared queues."""
        stored = self._modes.get(topic, {}).get(group)
        if stored is not None:
            return stored.mode, stored.pop_share_queue_num
        config = self._config
        if topic.startswith(names.RETRY_PREFIX):
            return PULL, config.default_pop_share_queue_num
        return config.default_message_request_mode, config.default_pop_share_queue_num

    # 400

    async def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """400: the queues of one client, and how to get at their messages."""
        del channel
        body = QueryAssignmentRequestBody.decode(request.body_bytes())
        mode, share = self.mode_of(body.topic, body.consumer_group)
        datas = [data for data in await self._route(body.topic) if data.perm & PERM_READ]
        # Of very many queues one answer at a time, which takes megabytes until it is sent.
        is_large = sum(data.read_queue_nums for data in datas) > QUEUES_A_TURN
        async with self._large if is_large else nullcontext():
            raw = await result_in_turns(self._answer(body, mode, share, datas))
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def _answer(
        self, body: QueryAssignmentRequestBody, mode: str, share: int, datas: list[QueueData]
    ) -> Generator[None, None, bytes | bytearray]:
        """The body of an answer, in slices."""
        queues: list[MessageQueue] = []
        for data in sorted(datas, key=lambda each: each.broker_name):
            for start in range(0, data.read_queue_nums, QUEUES_A_TURN):
                if start:
                    yield
                queues += [
                    MessageQueue(topic=body.topic, broker_name=data.broker_name, queue_id=queue_id)
                    for queue_id in range(start, min(start + QUEUES_A_TURN, data.read_queue_nums))
                ]
        assigned = self._assign(body, mode, share, queues) if queues else None
        answer = QueryAssignmentResponseBody()
        if assigned is None:
            return answer.encode()
        shown = answer.message_queue_assignments = []
        for start in range(0, len(assigned), QUEUES_A_TURN):
            if start:
                yield
            shown += [
                MessageQueueAssignment(message_queue=queue, mode=mode)
                for queue in assigned[start : start + QUEUES_A_TURN]
            ]
        if len(assigned) <= QUEUES_A_TURN:
            return answer.encode()
        return (yield from render_in_slices(answer))

    def _assign(
        self, body: QueryAssignmentRequestBody, mode: str, share: int, queues: list[MessageQueue]
    ) -> list[MessageQueue] | None:
        if body.message_model == BROADCASTING or not self._config.server_load_balancer_enable:
            return queues
        group = self._consumers.get(body.consumer_group)
        allocate = _STRATEGIES.get(body.strategy_name)
        if group is None or allocate is None:
            return None
        client_ids = sorted(group.client_ids())
        if mode != POP:
            return allocate(body.client_id, queues, client_ids)
        return share_queues(body.client_id, queues, client_ids, share, allocate)

    async def _route(self, topic: str) -> list[QueueData]:
        now_ms = self._now_ms()
        known = self._routes.get(topic)
        if known is not None and now_ms - known[0] < ROUTE_AGE_MS_MAX:
            return known[1]
        datas = await self._ask_route(topic)
        own = self._topics.get(topic)
        name = self._config.broker_name
        if own is not None and all(data.broker_name != name for data in datas):
            # Our own queues are known here before any name server knows them.
            data = QueueData(
                broker_name=name,
                perm=self._topics.as_registered(own).perm,
                read_queue_nums=own.read_queue_nums,
                write_queue_nums=own.write_queue_nums,
            )
            datas = [*datas, data]
        if len(topic) <= names.STORED_TOPIC_LENGTH_MAX:  # peers choose it
            if now_ms - self._swept_ms >= ROUTE_AGE_MS_MAX or len(self._routes) >= ROUTES_MAX:
                self._swept_ms = now_ms
                fresh = len(self._routes) < ROUTES_MAX
                self._routes = {
                    name: entry
                    for name, entry in self._routes.items()
                    if fresh and now_ms - entry[0] < ROUTE_AGE_MS_MAX
                }
            self._routes[topic] = (now_ms, datas)
        return datas

    async def _ask_route(self, topic: str) -> list[QueueData]:
        for address in self._config.namesrv_addresses:
            header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
            call = create_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            try:
                response = await self._client.invoke(address, call, timeout_s=ROUTE_TIMEOUT_S)
                if response.code == ResponseCode.SUCCESS:
                    route = TopicRouteData.decode(response.body_bytes(), FRAME_SIZE_MAX)
                    check_route(topic, route)
                    return route.queue_datas
            except (RemotingError, BodyError):
                continue
            except RemoteProtocolError as error:
                _LOG.warning("broker %s sent an answer that cannot be read: %s", address, error)
        return []


def share_queues(
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    share: int,
    allocate: _Allocate,
) -> list[MessageQueue]:
    """The queues that a client pops: its own share and those of the next ``share`` clients.

    With everything shared one queue -1 a broker stands for all, also for a client that the broker
    has not heard of since its restart. RocketMQ: allocate4Pop.
    """
    if share <= 0 or share >= len(client_ids) - 1:
        topics = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [
            MessageQueue(topic=topic, broker_name=name, queue_id=ALL_QUEUES)
            for topic, name in topics
        ]
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[index % len(queues)]]
    found: list[MessageQueue] = []
    for number in range(share + 1):
        other = client_ids[(index + number) % len(client_ids)]
        found += allocate(other, queues, client_ids)
    return found
