"""Groups: 200, 225, 201, 352, 353, 207, 203, 204, 328, 343, 345. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oberth.broker import remarks
from oberth.broker.attributes import AttributeChangeError
from oberth.broker.clients import ClientInfo
from oberth.errors import ConfigFormatError, IllegalNameError, OptionError
from oberth.formats import names
from oberth.formats.config_json import encode_config
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.remoting.bodies.admin import GroupForbidden, SubscriptionGroupList
from oberth.remoting.bodies.clients import ProducerInfo, ProducerTableInfo
from oberth.remoting.bodies.route import TopicList
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel


def client_address(client: ClientInfo) -> str:
    """Where a client sits, as bodies show it."""
    return str(client.channel.remote)  # type: ignore[attr-defined]


class GroupAdminProcessor:
    """Makes, changes, deletes and shows groups and their members."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """200: make a group, or change it."""
        del channel
        try:
            group = SubscriptionGroupConfig.decode(
                request.body_bytes(), name="SubscriptionGroupConfig"
            )
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        refusal = self._update(group)
        if refusal is not None:
            return create_response(request, *refusal)
        return create_response(request, ResponseCode.SUCCESS)

    def update_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """225: make or change several groups; the first that is wrong ends it."""
        del channel
        try:
            body = SubscriptionGroupList.decode(request.body_bytes(), name="SubscriptionGroupList")
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        for group in body.group_config_list:
            refusal = self._update(group)
            if refusal is not None:
                return create_response(request, *refusal)
        return create_response(request, ResponseCode.SUCCESS)

    def _update(self, group: SubscriptionGroupConfig) -> tuple[int, str] | None:
        name = group.group_name or ""
        try:
            names.check_group(name)
        except IllegalNameError as error:
            return int(ResponseCode.INVALID_PARAMETER), remarks.illegal_group(name, error)
        try:
            self._broker.groups.update(group)
        except OptionError as error:
            return int(ResponseCode.INVALID_PARAMETER), str(error)
        except (AttributeChangeError, IllegalNameError) as error:
            return int(ResponseCode.SYSTEM_ERROR), str(error)
        return None

    def all_configs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """201: every group, for slaves and tools."""
        del channel
        groups = self._broker.groups
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={"totalGroupNum": str(len(groups))},
            body=encode_config(groups.to_body(), pretty=False),
        )

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """352: one group."""
        del channel
        group = request.header(GetSubscriptionGroupConfigRequestHeader).group
        found = self._broker.groups.get(group)
        if found is None:
            return create_response(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {group}",
            )
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(found.to_json(), pretty=False)
        )

    def forbidden(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """353: whether a group may read a topic; with ``readable`` that changes."""
        del channel
        header = request.header(UpdateGroupForbiddenRequestHeader)
        broker = self._broker
        if header.readable is not None:
            if header.topic not in broker.topics:
                return create_response(
                    request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist"
                )
            broker.groups.set_readable(header.group, header.topic, header.readable)
        body = GroupForbidden(
            group=header.group,
            readable=broker.groups.is_readable(header.group, header.topic),
            topic=header.topic,
        )
        return create_response(request, ResponseCode.SUCCESS, body=body.encode())

    def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """207: forget a group, and its offsets if the request says so."""
        del channel
        header = request.header(DeleteSubscriptionGroupRequestHeader)
        self._broker.delete_group(header.group_name, clean_offset=header.clean_offset)
        return create_response(request, ResponseCode.SUCCESS)

    # -------------------------------------------------------------------------------- connections

    def consumers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """203: who of a group is connected, and what it subscribes to."""
        del channel
        name = request.header(GetConsumerConnectionListRequestHeader).consumer_group
        consumers = self._broker.consumers
        group = consumers.get(name)
        if group is None:
            return create_response(
                request,
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{name}] not online",
            )
        body = consumers.connection_body(group, lambda each: str(each.remote))
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )

    def producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """204: who of a producer group is connected."""
        del channel
        name = request.header(GetProducerConnectionListRequestHeader).producer_group
        clients = self._broker.producers.clients(name)
        if not clients:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"the producer group[{name}] not exist",
            )
        body = {
            "connectionSet": [
                {
                    "clientAddr": client_address(client),
                    "clientId": client.client_id,
                    "language": client.language,
                    "version": client.version,
                }
                for client in clients
            ]
        }
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )

    def all_producers(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """328: everybody of every producer group."""
        del channel
        table = {
            group: [
                ProducerInfo(
                    client_id=client.client_id,
                    language=client.language,
                    last_update_timestamp=client.last_update_ms,
                    remote_ip=client_address(client),
                    version=client.version,
                )
                for client in clients
            ]
            for group, clients in self._broker.producers
        }
        return create_response(
            request, ResponseCode.SUCCESS, body=ProducerTableInfo(data=table).encode()
        )

    # ------------------------------------------------------------------------------ subscriptions

    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """343: topics in which a group has offsets."""
        del channel
        group = request.header(QueryTopicsByConsumerRequestHeader).group
        topics = self._broker.offsets.topics_of_group(group)
        return create_response(
            request, ResponseCode.SUCCESS, body=TopicList(topic_list=topics).encode()
        )

    def subscription(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """345: what a group wants of a topic."""
        del channel
        header = request.header(QuerySubscriptionByConsumerRequestHeader)
        topic = header.topic or ""
        found = self._broker.consumers.find_subscription(header.group, topic)
        body = {
            "group": header.group,
            "subscriptionData": None if found is None else found.to_body(),
            "topic": topic,
        }
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )
