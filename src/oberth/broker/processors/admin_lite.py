"""Lite topics of RocketMQ 5.5: 200074 to 200079, asked of a broker that has none.

A lite topic is a light queue below a parent topic whose ``message.type`` is LITE, and a lite group
is bound to such a parent. Neither can be made here, so figures are those of a broker without them,
and questions about one name the reason. RocketMQ: LiteManagerProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oberth.formats import names
from oberth.formats.config_json import encode_config
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.aio.processors import ProcessorTable

LIGHT_QUEUES_MAX: Final = 20_000
"""RocketMQ's maxLmqConsumeQueueNum."""


class LiteAdminProcessor:
    """Answers for a broker without lite topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def register(self, table: ProcessorTable) -> None:
        """Serve the codes of this file."""
        table.sync([RequestCode.GET_BROKER_LITE_INFO], self.broker_info)
        table.sync(
            [
                RequestCode.GET_PARENT_TOPIC_INFO,
                RequestCode.GET_LITE_TOPIC_INFO,
                RequestCode.GET_LITE_CLIENT_INFO,
            ],
            self.of_topic,
        )
        table.sync(
            [RequestCode.GET_LITE_GROUP_INFO, RequestCode.TRIGGER_LITE_DISPATCH], self.of_group
        )

    def broker_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """200074: how much there is."""
        del channel
        broker = self._broker
        topics = broker.store.topics()
        body = {
            "storeType": "default",
            "maxLmqNum": LIGHT_QUEUES_MAX,
            "currentLmqNum": sum(1 for topic in topics if topic.startswith(names.LMQ_PREFIX)),
            "liteSubscriptionCount": 0,
            "orderInfoCount": len(broker.pop.orders),
            "cqTableSize": len(topics),
            "offsetTableSize": sum(1 for _ in broker.offsets),
            "eventMapSize": 0,
            "topicMeta": {},
            "groupMeta": {},
        }
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )

    def of_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """200075 to 200077: about one parent topic."""
        del channel
        topic = self._asked(request, "topic", "parentTopic")
        if self._broker.topics.get(topic) is None:
            return create_response(
                request, ResponseCode.TOPIC_NOT_EXIST, f"Topic [{topic}] not exist."
            )
        return create_response(
            request, ResponseCode.INVALID_PARAMETER, f"Topic [{topic}] type not match."
        )

    def of_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """200078 and 200079: about one group."""
        del channel
        group = self._asked(request, "group")
        if self._broker.groups.get(group) is None:
            return create_response(
                request, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist."
            )
        return create_response(
            request, ResponseCode.INVALID_PARAMETER, f"Group [{group}] is not a LITE group."
        )

    @staticmethod
    def _asked(request: RemotingCommand, *keys: str) -> str:
        fields = request.ext_fields or {}
        return next((fields[key] for key in keys if key in fields), "")
