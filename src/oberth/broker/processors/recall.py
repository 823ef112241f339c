"""RecallMessageProcessor: 370. RocketMQ: RecallMessageProcessor.

A recalled message stays in the wheel; a further message in the same slot says that it is not to be
delivered. So recalling survives what the message itself survives, and comes too late once the
message's second is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oberth.broker import remarks
from oberth.broker.put_status import put_outcome
from oberth.broker.recall_handle import decode_recall_handle
from oberth.formats import properties as p
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.send import RecallMessageRequestHeader, RecallMessageResponseHeader
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel


class RecallMessageProcessor:
    """Takes timed messages back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def recall(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """370: a timed message is not to be delivered."""
        broker = self._broker
        header = request.header(RecallMessageRequestHeader)
        if not broker.config.recall_message_enable:
            return self._refuse(
                request, ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
            )
        if not broker.config.writable:
            return self._refuse(
                request, ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker is not writable"
            )
        if header.topic not in broker.topics:
            return self._refuse(
                request, ResponseCode.TOPIC_NOT_EXIST, remarks.topic_not_exist(header.topic)
            )
        try:
            handle = decode_recall_handle(header.recall_handle)
        except ValueError as error:
            return self._refuse(request, ResponseCode.ILLEGAL_OPERATION, str(error))
        if handle.topic != header.topic:
            return self._refuse(
                request, ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match"
            )
        if handle.broker_name != broker.config.broker_name:
            return self._refuse(
                request, ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not match"
            )
        left_ms = handle.deliver_ms - broker.now_ms()
        if not 0 < left_ms <= broker.store_config.timer_max_delay_sec * 1000:
            return self._refuse(
                request, ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid"
            )
        addresses = broker.send.addresses(channel)
        key = handle.unique_key
        if broker.store_config.append_topic_for_timer_delete_key:
            key = f"{handle.topic}+{key}"
        properties = {
            p.TIMER_DEL_UNIQKEY: key,
            p.TIMER_DELIVER_MS: str(handle.deliver_ms),
            p.UNIQ_KEY: handle.unique_key,
            p.CLUSTER: broker.config.broker_cluster_name,
        }
        if header.producer_group:
            properties[p.PRODUCER_GROUP] = header.producer_group
        message = MessageExtBrokerInner(
            header.topic,
            b"0",
            p.encode_properties(properties),
            0,
            born_timestamp=broker.now_ms(),
            born_host=addresses.born_host,
            store_host=addresses.store_host,
        )
        (result,) = broker.store.append_messages([message])
        broker.dispatch_soon()

        def answer(status: PutMessageStatus) -> None:
            outcome = put_outcome(status, body_max=broker.store_config.max_message_size)
            if not outcome.stored:
                response = self._refuse(request, outcome.code, outcome.remark)
            else:
                response = create_response(
                    request,
                    ResponseCode.SUCCESS,
                    header=RecallMessageResponseHeader(msg_id=handle.unique_key),
                    ext_fields=self._region(),
                )
            channel.reply(request, response)

        if broker.waits_for_disk and broker.store.needs_wait(message, result):
            broker.when_durable(result.end_offset, answer)
        else:
            answer(result.status)
        return None

    def _region(self) -> dict[str, str]:
        return {"MSG_REGION": self._broker.config.region_id}

    def _refuse(self, request: RemotingCommand, code: int, remark: str | None) -> RemotingCommand:
        return create_response(request, code, remark, ext_fields=self._region())
