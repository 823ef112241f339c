"""Groups: 200, 225, 201, 352, 353, 207, 203, 204, 328, 343, 345. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from oberth.broker import remarks
from oberth.broker.attributes import AttributeChangeError
from oberth.broker.clients import ClientInfo
from oberth.errors import ConfigFormatError, IllegalNameError, OptionError
from oberth.formats import names
from oberth.formats.config_json import Shown, config_in_slices, encode_config
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.remoting.bodies.admin import (
    ENTRIES_A_TURN,
    GROUPS_PER_LIST_MAX,
    GroupForbidden,
    beans_in_slices,
)
from oberth.remoting.bodies.base import render_in_slices
from oberth.remoting.bodies.clients import ProducerInfo, ProducerTableInfo
from oberth.remoting.bodies.route import TopicList
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import FRAME_SIZE_MAX, RemotingCommand, create_response
from oberth.remoting.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.consumers import ConsumerTable
    from oberth.broker.deletions import Deletions
    from oberth.broker.producers import ProducerTable
    from oberth.broker.subscription_groups import SubscriptionGroups
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel


CLIENTS_A_TURN: Final = 500


def client_address(client: ClientInfo) -> str:
    """Where a client sits, as bodies show it."""
    return str(client.channel.remote)  # type: ignore[attr-defined]


class GroupAdminProcessor:
    """Makes, changes, deletes and shows groups and their members."""

    def __init__(
        self,
        *,
        topics: TopicConfigs,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        producers: ProducerTable,
        deletions: Deletions,
        groups_written_once: AbstractContextManager[None],
        answer_when_on_disk: Callable[
            [Channel, RemotingCommand, RemotingCommand], RemotingCommand | None
        ],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._deletions = deletions
        self._groups_written_once = groups_written_once
        self._answer_when_on_disk = answer_when_on_disk

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """200: make a group, or change it."""
        try:
            group = SubscriptionGroupConfig.decode(
                request.body_bytes(), name="SubscriptionGroupConfig", is_body=True
            )
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        refusal = self._update(group)
        if refusal is not None:
            return create_response(request, *refusal)
        done = create_response(request, ResponseCode.SUCCESS)
        return self._answer_when_on_disk(channel, request, done)

    def update_list(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand | None]:
        """225: make or change several groups; the first that is wrong ends it."""
        try:
            body = yield from beans_in_slices(
                SubscriptionGroupConfig,
                request.body_bytes(),
                "SubscriptionGroupList",
                "groupConfigList",
                GROUPS_PER_LIST_MAX,
            )
        except ConfigFormatError as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        for start in range(0, len(body), ENTRIES_A_TURN):
            yield
            with self._groups_written_once:
                for group in body[start : start + ENTRIES_A_TURN]:
                    refusal = self._update(group)
                    if refusal is not None:
                        return create_response(request, *refusal)
        done = create_response(request, ResponseCode.SUCCESS)
        return self._answer_when_on_disk(channel, request, done)

    def _update(self, group: SubscriptionGroupConfig) -> tuple[int, str] | None:
        name = group.group_name or ""
        try:
            names.check_group(name)
        except IllegalNameError as error:
            return int(ResponseCode.INVALID_PARAMETER), remarks.illegal_group(name, error)
        try:
            self._groups.update(group)
        except OptionError as error:
            return int(ResponseCode.INVALID_PARAMETER), str(error)
        except (AttributeChangeError, IllegalNameError) as error:
            return int(ResponseCode.SYSTEM_ERROR), str(error)
        return None

    def all_configs(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """201: every group, or a page of them, for slaves and tools."""
        del channel
        count = len(self._groups)
        body = self._groups.to_body()
        if "groupSeq" in request.fields:
            header = request.header(GetAllSubscriptionGroupRequestHeader)
            table: Shown = body["subscriptionGroupTable"]
            body["subscriptionGroupTable"] = table.page(header.group_seq, header.max_group_num)
        raw = yield from config_in_slices(body)
        return create_response(
            request, ResponseCode.SUCCESS, ext_fields={"totalGroupNum": str(count)}, body=raw
        )

    def config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """352: one group."""
        del channel
        group = request.header(GetSubscriptionGroupConfigRequestHeader).group
        found = self._groups.get(group)
        if found is None:
            return create_response(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {group}",
            )
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(found.to_json(), pretty=False)
        )

    def forbidden(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """353: whether a group may read a topic; with ``readable`` that changes."""
        header = request.header(UpdateGroupForbiddenRequestHeader)
        if header.readable is not None:
            if header.topic not in self._topics:
                return create_response(
                    request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist"
                )
            try:
                self._groups.set_readable(header.group, header.topic, header.readable)
            except IllegalNameError as error:
                return create_response(request, ResponseCode.INVALID_PARAMETER, str(error))
        body = GroupForbidden(
            group=header.group,
            readable=self._groups.is_readable(header.group, header.topic),
            topic=header.topic,
        )
        done = create_response(request, ResponseCode.SUCCESS, body=body.encode())
        return self._answer_when_on_disk(channel, request, done)

    async def delete(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """207: forget a group, and its offsets if the request says so."""
        header = request.header(DeleteSubscriptionGroupRequestHeader)
        await self._deletions.delete_group(header.group_name, clean_offset=header.clean_offset)
        done = create_response(request, ResponseCode.SUCCESS)
        return self._answer_when_on_disk(channel, request, done)

    # Connections

    def consumers(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """203: the connected members of a group, and what it subscribes to."""
        del channel
        name = request.header(GetConsumerConnectionListRequestHeader).consumer_group
        consumers = self._consumers
        group = consumers.get(name)
        if group is None:
            return create_response(
                request,
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{name}] not online",
            )
        raw = yield from config_in_slices(
            consumers.connection_body(group, lambda each: str(each.remote)), FRAME_SIZE_MAX
        )
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def producers(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """204: the connected members of a producer group."""
        del channel
        name = request.header(GetProducerConnectionListRequestHeader).producer_group
        clients = self._producers.clients(name)
        if not clients:
            return create_response(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"the producer group[{name}] not exist",
            )

        def shown(client: ClientInfo) -> dict[str, Any]:
            return {
                "clientAddr": client_address(client),
                "clientId": client.client_id,
                "language": client.language,
                "version": client.version,
            }

        raw = yield from config_in_slices({"connectionSet": Shown(clients, shown)}, FRAME_SIZE_MAX)
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def all_producers(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """328: everybody of every producer group."""
        del channel
        table: dict[str, list[ProducerInfo]] = {}
        done = 0
        for group in self._producers.groups():
            shown = []
            for client in self._producers.clients(group):
                shown.append(
                    ProducerInfo(
                        client_id=client.client_id,
                        language=client.language,
                        last_update_timestamp=client.last_update_ms,
                        remote_ip=client_address(client),
                        version=client.version,
                    )
                )
                done += 1
                if done % CLIENTS_A_TURN == 0:
                    yield
            if shown:
                table[group] = shown
        raw = yield from render_in_slices(ProducerTableInfo(data=table))
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    # Subscriptions

    def topics_of_group(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """343: topics in which a group has offsets."""
        del channel
        group = request.header(QueryTopicsByConsumerRequestHeader).group
        topics = yield from self._offsets.topics_of_group_in_slices(group)
        raw = yield from render_in_slices(TopicList(topic_list=topics))
        return create_response(request, ResponseCode.SUCCESS, body=raw)

    def subscription(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """345: what a group wants of a topic."""
        del channel
        header = request.header(QuerySubscriptionByConsumerRequestHeader)
        topic = header.topic or ""
        found = self._consumers.find_subscription(header.group, topic)
        body = {
            "group": header.group,
            "subscriptionData": None if found is None else found.to_body(),
            "topic": topic,
        }
        raw = yield from config_in_slices(body)
        return create_response(request, ResponseCode.SUCCESS, body=raw)
