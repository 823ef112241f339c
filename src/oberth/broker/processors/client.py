"""ClientManageProcessor: 34, 35 and 46, and what follows from a client coming or going.

RocketMQ: ClientManageProcessor, ClientHousekeepingService, DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.clients import ClientInfo
from oberth.broker.consumers import (
    CLUSTERING,
    CONSUME_ACTIVELY,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_WHERES,
    CONSUME_PASSIVELY,
    CONSUME_TYPES,
    MESSAGE_MODELS,
    GroupData,
    enum_name,
)
from oberth.broker.subscriptions import SubscriptionError, build_subscription, read_subscription
from oberth.broker.topic_configs import FLAG_UNIT_SUB
from oberth.errors import ConfigFormatError, IllegalNameError, RemotingError
from oberth.formats import names
from oberth.formats.config_json import parse_config
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, create_response
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.group import (
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel

_LOG: Final = logging.getLogger("oberth.broker")

GROUPS_PER_HEARTBEAT_MAX: Final = 10_000
SUBSCRIPTIONS_PER_GROUP_MAX: Final = 100_000

_SUB_CHANGE: Final = "IS_SUB_CHANGE"
_HEARTBEAT_V2: Final = "IS_SUPPORT_HEART_BEAT_V2"


def read_body(request: RemotingCommand, what: str) -> dict[str, Any]:
    """The JSON object in a request's body, in any dialect.

    Raises:
        HeaderError: it is not one; answered with code 1.
    """
    try:
        body = parse_config(request.body_bytes(), name=what)
    except ConfigFormatError as error:
        raise HeaderError(str(error)) from None
    if not isinstance(body, dict):
        raise HeaderError(f"{what}: a JSON {type(body).__name__}, allowed an object")
    return body


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return (each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else ()


class ClientManageProcessor:
    """Registers clients and tells groups about their members."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """34: who a client is, what it produces and what it subscribes to."""
        broker = self._broker
        body = read_body(request, "HeartbeatData")
        client_id = body.get("clientID")
        if not isinstance(client_id, str) or not client_id:
            raise HeaderError("HeartbeatData: clientID is missing")
        now_ms = broker.now_ms()
        language = request.language or "OTHER"
        changed = False
        for number, entry in enumerate(_objects(body.get("consumerDataSet"))):
            if number == GROUPS_PER_HEARTBEAT_MAX:
                break
            client = ClientInfo(channel, client_id, language, request.version, now_ms)
            changed |= self._register_consumer(
                client, entry, now_ms, without_sub=body.get("withoutSub") is True
            )
        for number, entry in enumerate(_objects(body.get("producerDataSet"))):
            group = entry.get("groupName")
            if number == GROUPS_PER_HEARTBEAT_MAX:
                break
            if isinstance(group, str) and group:
                broker.producers.register(
                    group, ClientInfo(channel, client_id, language, request.version, now_ms)
                )
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={_HEARTBEAT_V2: "true", _SUB_CHANGE: "true" if changed else "false"},
        )

    def _register_consumer(
        self, client: ClientInfo, entry: Mapping[str, Any], now_ms: int, *, without_sub: bool
    ) -> bool:
        broker = self._broker
        group = entry.get("groupName")
        if not isinstance(group, str):
            return False
        group_config = broker.groups.find(group)
        if group_config is None:
            _LOG.warning("heartbeat of %s: group %.130r is not known", client.client_id, group)
            return False
        data = GroupData(
            enum_name(entry.get("consumeType"), CONSUME_TYPES, CONSUME_PASSIVELY),
            enum_name(entry.get("messageModel"), MESSAGE_MODELS, CLUSTERING),
            enum_name(entry.get("consumeFromWhere"), CONSUME_FROM_WHERES, CONSUME_FROM_LAST_OFFSET),
        )
        if broker.config.reject_pull_consumer_enable and data.consume_type == CONSUME_ACTIVELY:
            return False
        subscriptions = []
        for number, each in enumerate(_objects(entry.get("subscriptionDataSet"))):
            if number == SUBSCRIPTIONS_PER_GROUP_MAX:
                break
            try:
                subscriptions.append(read_subscription(each))
            except SubscriptionError as error:
                _LOG.warning("heartbeat of %s, group %s: %s", client.client_id, group, error)
        try:
            with broker.topics_written_soon:
                broker.topics.create_internal(
                    names.retry_topic(group),
                    max(group_config.retry_queue_nums, 0),
                    topic_sys_flag=FLAG_UNIT_SUB if entry.get("unitMode") is True else 0,
                )
        except IllegalNameError as error:
            _LOG.warning("heartbeat of %s: %s", client.client_id, error)
        changed = broker.consumers.register(
            group, client, data, subscriptions, now_ms, without_sub=without_sub
        )
        found = broker.consumers.get(group)
        if changed and found is not None and not found.is_broadcasting:
            self.notify_group(group)
        if broker.expressions is not None:
            broker.expressions.register(group, subscriptions)
        return changed

    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """35: a client leaves its groups."""
        header = request.header(UnregisterClientRequestHeader)
        broker = self._broker
        if header.producer_group:
            broker.producers.unregister(header.producer_group, channel)
        if header.consumer_group and broker.consumers.unregister(header.consumer_group, channel):
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
        expressions = self._broker.expressions
        if not self._broker.config.enable_property_filter or expressions is None:
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

    # ------------------------------------------------------------------------------- coming, going

    def notify_group(self, group: str) -> None:
        """40 to every client of a group: its members or topics changed."""
        broker = self._broker
        found = broker.consumers.get(group)
        if found is None or not broker.config.notify_consumer_ids_changed_enable:
            return
        group_config = broker.groups.get(group)
        if group_config is None or not group_config.notify_consumer_ids_changed_enable:
            return
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
        for client in found.clients.values():
            channel: Channel = client.channel  # type: ignore[assignment]
            try:
                channel.invoke_oneway(
                    create_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
                )
            except RemotingError as error:
                _LOG.debug("group %s changed, %s not told: %s", group, client.client_id, error)

    def connection_closed(self, channel: Channel) -> None:
        """A connection is gone: its clients leave their groups at once."""
        broker = self._broker
        broker.hold.connection_closed(channel)
        broker.pops.connection_closed(channel)
        broker.lite_pops.lite.connection_closed(channel)
        broker.producers.connection_closed(channel)
        for group in broker.consumers.connection_closed(channel):
            self.notify_group(group)

    def scan_expired(self, now_ms: int) -> None:
        """Clients whose heartbeats stopped are dropped, and their connections closed."""
        broker = self._broker
        config = broker.config
        timeout_ms = config.channel_expired_timeout_ms
        for client in broker.producers.scan_expired(now_ms, timeout_ms):
            client.channel.close()  # type: ignore[attr-defined]
        for expired in broker.consumers.scan_expired(
            now_ms, timeout_ms, config.subscription_expired_timeout_ms
        ):
            _LOG.info("group %s: %s sent no heartbeat", expired.group, expired.client)
            expired.client.channel.close()  # type: ignore[attr-defined]
            self.notify_group(expired.group)
        broker.locks.scan_expired(now_ms)
