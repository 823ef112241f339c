"""ClientManageProcessor: 34, 35 and 46, and what follows from a client coming or going.

RocketMQ: ClientManageProcessor, ClientHousekeepingService, DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oberth.broker.clients import (
    CLIENT_ID_LENGTH_MAX,
    GROUPS_PER_CHANNEL_MAX,
    LANGUAGE_LENGTH_MAX,
    LEFT_AT_ONCE,
    ClientInfo,
)
from oberth.broker.consumers import (
    CLUSTERING,
    CONSUME_ACTIVELY,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_WHERES,
    CONSUME_PASSIVELY,
    CONSUME_TYPES,
    MESSAGE_MODELS,
    SUBSCRIBED_BYTES_MAX,
    ConsumerGroup,
    GroupData,
    enum_name,
)
from oberth.broker.subscriptions import (
    Subscription,
    SubscriptionError,
    build_subscription,
    read_subscription,
)
from oberth.broker.topic_configs import FLAG_UNIT_SUB
from oberth.client.acl import ACCESS_KEY
from oberth.errors import ConfigFormatError, IllegalNameError, RemotingError
from oberth.formats import names
from oberth.formats.json_reader import parse_request
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, create_response
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.group import (
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from oberth.remoting.rendered import FixedResponse

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.expressions import Expressions
    from oberth.broker.lite.lite_service import LiteService
    from oberth.broker.processors.pop import PopMessageProcessor
    from oberth.broker.producers import ProducerTable
    from oberth.broker.pull_request_hold import PullRequestHold
    from oberth.broker.rebalance_locks import RebalanceLocks
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel

_LOG: Final = logging.getLogger(__name__)

GROUPS_PER_HEARTBEAT_MAX: Final = GROUPS_PER_CHANNEL_MAX
SUBSCRIPTIONS_PER_GROUP_MAX: Final = 2_000
HEARTBEAT_SIZE_MAX: Final = 512 * 1024
"""Bytes; a client of 500 groups with three topics each sends 350 KiB."""
READ_AT_ONCE_MAX: Final = 10 * 1024
"""Bytes of a body beyond which reading it is a slice of its own."""
TAGS_SLICE: Final = 16 * 1024
"""Characters of tags between two turns of the loop: some 3 ms."""
TOLD_A_TURN: Final = 200
"""Members of a group that hear of a change in one turn of the loop: some 3 ms."""
SLICE: Final = 50
"""Groups of a heartbeat between two turns of the loop: some 3 ms."""

KEPT_SIZE_MAX: Final = 4 * 1024
"""Bytes of a heartbeat that is kept, to know it when it comes again."""
KEPT_BYTES_MAX: Final = 32 << 20
"""Bytes of all that are kept; the one that was kept longest goes first."""
KEPT_GROUP_SIZE: Final = 256
"""Bytes that a group of a kept heartbeat takes beside its text."""

_SUB_CHANGE: Final = "IS_SUB_CHANGE"
_HEARTBEAT_V2: Final = "IS_SUPPORT_HEART_BEAT_V2"


_SAME: Final = FixedResponse({_HEARTBEAT_V2: "true", _SUB_CHANGE: "false"})


class _Consumed(NamedTuple):
    """A group of a kept heartbeat, and its revision after that."""

    group: ConsumerGroup
    revision: int
    client: ClientInfo
    retry_topic: str
    without_sub: bool


class _Kept:
    """A heartbeat, and what stood after it."""

    __slots__ = ("body", "consumed", "produced")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.consumed: list[_Consumed] = []
        self.produced: list[tuple[str, ClientInfo]] = []

    @property
    def size(self) -> int:
        groups = 1 + len(self.consumed) + len(self.produced)
        return len(self.body) + KEPT_GROUP_SIZE * groups


def read_body(request: RemotingCommand, what: str) -> dict[str, Any]:
    """The JSON object in a request's body, in any dialect.

    Raises:
        HeaderError: it is not one; answered with code 1.
    """
    try:
        body = parse_request(request.body_bytes(), name=what)
    except ConfigFormatError as error:
        raise HeaderError(str(error)) from None
    if not isinstance(body, dict):
        raise HeaderError(f"{what}: a JSON {type(body).__name__}, allowed an object")
    return body


def _read_subscriptions(
    client: ClientInfo, group: str, entry: Mapping[str, Any]
) -> Generator[None, None, list[Subscription]]:
    """What a group of a heartbeat subscribes to, in slices; what is not taken is logged."""
    subscriptions = []
    tags_size = 0
    for number, each in enumerate(_objects(entry.get("subscriptionDataSet"))):
        if number == SUBSCRIPTIONS_PER_GROUP_MAX:
            break
        try:
            subscriptions.append(read_subscription(each))
            tags_size += len(subscriptions[-1].sub_string)
        except SubscriptionError as error:
            _LOG.warning(
                "client %s sent a subscription for group %s that is not taken: %s",
                client.client_id,
                group,
                error,
            )
            tags_size += TAGS_SLICE // 100  # a line in the log takes its time too
        if tags_size > TAGS_SLICE:
            tags_size = 0
            yield
    return subscriptions


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return (each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else ()


class ClientManageProcessor:
    """Registers clients and tells groups about their members."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        consumers: ConsumerTable,
        producers: ProducerTable,
        locks: RebalanceLocks,
        hold: PullRequestHold,
        expressions: Expressions | None,
        pops: PopMessageProcessor,
        lite: LiteService,
        now_ms: Callable[[], int],
        topics_written_soon: AbstractContextManager[None],
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._producers = producers
        self._locks = locks
        self._hold = hold
        self._expressions = expressions
        self._pops = pops
        self._lite = lite
        self._now_ms = now_ms
        self._topics_written_soon = topics_written_soon
        self._kept: dict[Channel, _Kept] = {}
        self._kept_bytes = 0
        # Groups of many members that changed since they were last told, and who is being told.
        self._changed: dict[str, None] = {}
        self._untold: list[ClientInfo] = []
        self._telling = ""

    def heartbeat(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """34: who a client is, what it produces and what it subscribes to."""
        body = read_body(request, "HeartbeatData")
        client_id = body.get("clientID")
        if not isinstance(client_id, str) or not client_id:
            raise HeaderError("HeartbeatData: clientID is missing")
        if len(client_id) > CLIENT_ID_LENGTH_MAX:
            raise HeaderError(
                f"HeartbeatData: clientID of {len(client_id)} characters, "
                f"allowed {CLIENT_ID_LENGTH_MAX}"
            )
        if len(request.body) > READ_AT_ONCE_MAX:
            yield  # reading it took as long as a slice
        now_ms = self._now_ms()
        language = request.language or "OTHER"
        if len(language) > LANGUAGE_LENGTH_MAX:
            language = "OTHER"
        access_key = request.fields.get(ACCESS_KEY, "")
        if len(access_key) > names.GROUP_LENGTH_MAX_4_9:
            access_key = ""
        changed = False
        count = 0
        kept = _Kept(request.body_bytes())
        for number, entry in enumerate(_objects(body.get("consumerDataSet"))):
            if number == GROUPS_PER_HEARTBEAT_MAX:
                break
            count += 1
            if number and number % SLICE == 0:
                yield
            client = ClientInfo(channel, client_id, language, request.version, now_ms, access_key)
            changed |= yield from self._register_consumer(
                client, entry, now_ms, kept, without_sub=body.get("withoutSub") is True
            )
        for number, entry in enumerate(_objects(body.get("producerDataSet"))):
            group = entry.get("groupName")
            if number == GROUPS_PER_HEARTBEAT_MAX:
                break
            if number and number % (SLICE * 10) == 0:
                yield
            count += 1
            if isinstance(group, str) and group:
                self._producers.register(
                    group,
                    ClientInfo(channel, client_id, language, request.version, now_ms, access_key),
                )
                produced = self._producers.client_on(group, channel)
                if produced is not None:
                    kept.produced.append((group, produced))
        if count == len(kept.consumed) + len(kept.produced):
            self._keep(channel, kept)
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={_HEARTBEAT_V2: "true", _SUB_CHANGE: "true" if changed else "false"},
        )

    def _keep(self, channel: Channel, kept: _Kept) -> None:
        self._forget(channel)
        if len(kept.body) > KEPT_SIZE_MAX or channel.is_closed:
            return
        self._kept[channel] = kept
        self._kept_bytes += kept.size
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._forget(next(iter(self._kept)))

    def _forget(self, channel: Channel) -> None:
        kept = self._kept.pop(channel, None)
        if kept is not None:
            self._kept_bytes -= kept.size

    def same_heartbeat(self, channel: Channel, request: RemotingCommand) -> bool:
        """34, where a client says what it said last and all of that still stands.

        Clients say the same every 30 s, or more often. Whatever else is done about a heartbeat
        was done then: groups, retry topics and subscriptions are there.
        """
        kept = self._kept.get(channel)
        if kept is None or kept.body != request.body:
            return False
        consumers, groups, topics = self._consumers, self._groups, self._topics
        if (
            self._config.reject_pull_consumer_enable
            or consumers.subscribed_bytes > SUBSCRIBED_BYTES_MAX
        ):
            return False
        for group, revision, client, retry_topic, _ in kept.consumed:
            if (
                group.revision != revision
                or group.clients.get(channel) is not client
                or consumers.get(group.name) is not group
                or groups.find(group.name) is None
                or retry_topic not in topics
            ):
                return False
        for name, client in kept.produced:
            if self._producers.client_on(name, channel) is not client:
                return False
        now_ms = self._now_ms()
        for each in kept.consumed:
            each.group.same_heartbeat(each.client, now_ms, without_sub=each.without_sub)
        for _, client in kept.produced:
            client.last_update_ms = now_ms
        if not request.is_oneway:
            channel.send_frame(_SAME.render(request.opaque))
        return True

    def _register_consumer(
        self,
        client: ClientInfo,
        entry: Mapping[str, Any],
        now_ms: int,
        kept: _Kept,
        *,
        without_sub: bool,
    ) -> Generator[None, None, bool]:
        group = entry.get("groupName")
        if not isinstance(group, str):
            return False
        if not self._consumers.has_room(group, client.channel):
            return False  # nor are the group and its retry topic made for it
        group_config = self._groups.find(group)
        if group_config is None:
            _LOG.warning("heartbeat of %s: group %.130r is not known", client.client_id, group)
            return False
        data = GroupData(
            enum_name(entry.get("consumeType"), CONSUME_TYPES, CONSUME_PASSIVELY),
            enum_name(entry.get("messageModel"), MESSAGE_MODELS, CLUSTERING),
            enum_name(entry.get("consumeFromWhere"), CONSUME_FROM_WHERES, CONSUME_FROM_LAST_OFFSET),
        )
        if self._config.reject_pull_consumer_enable and data.consume_type == CONSUME_ACTIVELY:
            return False
        subscriptions = yield from _read_subscriptions(client, group, entry)
        try:
            with self._topics_written_soon:
                self._topics.create_internal(
                    names.retry_topic(group),
                    max(group_config.retry_queue_nums, 0),
                    topic_sys_flag=FLAG_UNIT_SUB if entry.get("unitMode") is True else 0,
                )
        except IllegalNameError as error:
            _LOG.warning(
                "client %s sent a group's name that is not taken: %s", client.client_id, error
            )
        if self._expressions is not None:
            # In slices, and before the group is known to want anything by them.
            yield from self._expressions.register(group, subscriptions)
            if client.channel.is_closed:  # type: ignore[attr-defined]
                return False
        changed = self._consumers.register(
            group, client, data, subscriptions, now_ms, without_sub=without_sub
        )
        found = self._consumers.get(group)
        if changed and found is not None and not found.is_broadcasting:
            self.notify_group(group)
        known = None if found is None else found.clients.get(client.channel)
        if (
            found is not None
            and known is not None
            and all(each.is_tag for each in subscriptions)
            and (without_sub or found.subscriptions.keys() == {s.topic for s in subscriptions})
        ):
            # Expressions are looked at, and compiled, each time that they come.
            retry_topic = names.retry_topic(group)
            kept.consumed.append(_Consumed(found, found.revision, known, retry_topic, without_sub))
        return changed

    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """35: a client leaves its groups."""
        header = request.header(UnregisterClientRequestHeader)
        if header.producer_group:
            self._producers.unregister(header.producer_group, channel)
        if header.consumer_group and self._consumers.unregister(header.consumer_group, channel):
            self.notify_group(header.consumer_group)
        return create_response(request, ResponseCode.SUCCESS, ext_fields={})

    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """46: whether a subscription that is not by tags could be served."""
        del channel
        body = read_body(request, "CheckClientRequestBody")
        data = body.get("subscriptionData")
        if not isinstance(data, Mapping):
            return create_response(request, ResponseCode.SUCCESS)
        kind = data.get("expressionType") or "TAG"
        if kind == "TAG":
            return create_response(request, ResponseCode.SUCCESS)
        expressions = self._expressions
        if not self._config.enable_property_filter or expressions is None:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}",
            )
        try:
            subscription = build_subscription(
                str(data.get("topic")), str(data.get("subString") or ""), str(kind)
            )
            expressions.check(subscription)
        except SubscriptionError as error:
            return create_response(request, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        return create_response(request, ResponseCode.SUCCESS)

    # Coming, going

    def notify_group(self, group: str) -> None:
        """40 to every client of a group: its members or topics changed.

        Many are told some a turn of the loop, and once for all that changed meanwhile: members that
        come one after the other would cost the square of their number.
        """
        found = self._consumers.get(group)
        if found is None or not self._config.notify_consumer_ids_changed_enable:
            return
        group_config = self._groups.get(group)
        if group_config is None or not group_config.notify_consumer_ids_changed_enable:
            return
        if len(found.clients) <= TOLD_A_TURN:
            self._tell(group, found.clients.values())
            return
        is_idle = not self._changed and not self._untold
        self._changed[group] = None
        if is_idle:
            asyncio.get_running_loop().call_soon(self._tell_some)

    def _tell_some(self) -> None:
        if not self._untold:
            if not self._changed:
                return
            self._telling = next(iter(self._changed))
            del self._changed[self._telling]
            found = self._consumers.get(self._telling)
            self._untold = [] if found is None else list(found.clients.values())
        self._tell(self._telling, self._untold[-TOLD_A_TURN:])
        del self._untold[-TOLD_A_TURN:]
        if self._untold or self._changed:
            asyncio.get_running_loop().call_soon(self._tell_some)

    def _tell(self, group: str, clients: Iterable[ClientInfo]) -> None:
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
        for client in clients:
            channel: Channel = client.channel  # type: ignore[assignment]
            try:
                channel.invoke_oneway(
                    create_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
                )
            except RemotingError as error:
                _LOG.debug(
                    "group %s has changed, its member %s could not be told: %s",
                    group,
                    client.client_id,
                    error,
                )

    def connection_closed(self, channel: Channel) -> None:
        """A connection is gone: its clients leave their groups at once."""
        self._hold.connection_closed(channel)
        self._pops.connection_closed(channel)
        self._lite.connection_closed(channel)
        self._forget(channel)
        self._leave(channel)

    def _leave(self, channel: Channel) -> None:
        """A client leaves its groups; of thousands some in a turn of the loop."""
        produced = self._producers.connection_closed(channel)
        consumed = self._consumers.connection_closed(channel)
        for group in consumed:
            self.notify_group(group)
        if max(len(produced), len(consumed)) >= LEFT_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._leave, channel)

    def scan_expired(self, now_ms: int) -> None:
        """Clients whose heartbeats stopped are dropped, and their connections closed.

        Of many groups some are looked at in a turn of the loop.
        """
        self._scan(now_ms, (self._scan_locks, self._scan_producers, self._scan_consumers))

    def _scan(self, now_ms: int, scans: Iterable[Callable[[int], bool]]) -> None:
        """Goes on with what says that it is not done."""
        left = [scan for scan in scans if scan(now_ms)]
        if left:
            asyncio.get_running_loop().call_soon(self._scan, now_ms, left)

    def _scan_locks(self, now_ms: int) -> bool:
        self._locks.scan_expired(now_ms)
        return self._locks.is_scanning

    def _scan_producers(self, now_ms: int) -> bool:
        timeout_ms = self._config.channel_expired_timeout_ms
        for client in self._producers.scan_expired(now_ms, timeout_ms):
            client.channel.close()  # type: ignore[attr-defined]
        return self._producers.is_scanning

    def _scan_consumers(self, now_ms: int) -> bool:
        config = self._config
        for expired in self._consumers.scan_expired(
            now_ms, config.channel_expired_timeout_ms, config.subscription_expired_timeout_ms
        ):
            _LOG.info(
                "group %s has lost its member %s, which sent no heartbeat",
                expired.group,
                expired.client,
            )
            expired.client.channel.close()  # type: ignore[attr-defined]
            self.notify_group(expired.group)
        return self._consumers.is_scanning
