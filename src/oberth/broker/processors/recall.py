"""RecallMessageProcessor: 370. RocketMQ: RecallMessageProcessor.

A recalled message stays in the wheel; a further message in the same slot says that it is not to be
delivered. So recalling survives what the message itself survives, and comes too late once the
message's second is over. It is answered as the send of that further message would be: RocketMQ
calls it a success where disk or replicas have not confirmed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oberth.broker import remarks
from oberth.broker.put_status import put_outcome
from oberth.broker.recall_handle import RecallHandle, decode_recall_handle
from oberth.formats import properties as p
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.send import RecallMessageRequestHeader, RecallMessageResponseHeader
from oberth.remoting.refusal import Refusal
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.dispatching import Dispatching
    from oberth.broker.processors.send import SendMessageProcessor
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore


class RecallMessageProcessor:
    """Takes timed messages back."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        store: MessageStore,
        topics: TopicConfigs,
        send: SendMessageProcessor,
        now_ms: Callable[[], int],
        dispatching: Dispatching,
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._store = store
        self._topics = topics
        self._send = send
        self._now_ms = now_ms
        self._dispatching = dispatching

    def recall(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """370: a timed message is not to be delivered."""
        header = request.header(RecallMessageRequestHeader)
        try:
            handle = self._checked(header)
            message = self._deletion(channel, header, handle)
        except Refusal as refusal:
            return refusal.answer(request, self._region())
        (result,) = self._store.append_messages([message])
        self._dispatching.soon()

        def answer(status: PutMessageStatus) -> None:
            outcome = put_outcome(status, body_max=self._store_config.max_message_size)
            recalled = RecallMessageResponseHeader(msg_id=handle.unique_key)
            response = create_response(
                request,
                outcome.code,
                outcome.remark,
                header=recalled if outcome.stored else None,
                ext_fields=self._region(),
            )
            channel.reply(request, response)

        if self._dispatching.waits_for_disk and self._store.needs_wait(message, result):
            self._dispatching.when_durable(result.end_offset, answer)
        else:
            answer(result.status)
        return None

    def _checked(self, header: RecallMessageRequestHeader) -> RecallHandle:
        if not self._config.recall_message_enable:
            raise Refusal(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if not self._config.writable:
            raise Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker is not writable"
            )
        if header.topic not in self._topics:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remarks.topic_not_exist(header.topic))
        try:
            handle = decode_recall_handle(header.recall_handle)
        except ValueError as error:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != header.topic:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._config.broker_name:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not match")
        left_ms = handle.deliver_ms - self._now_ms()
        if not 0 < left_ms <= self._store_config.timer_max_delay_sec * 1000:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _deletion(
        self, channel: Channel, header: RecallMessageRequestHeader, handle: RecallHandle
    ) -> MessageExtBrokerInner:
        """What takes the message back out of the timer wheel when its time comes."""
        addresses = self._send.addresses(channel)
        key = handle.unique_key
        if self._store_config.append_topic_for_timer_delete_key:
            key = f"{handle.topic}+{key}"
        properties = {
            p.TIMER_DEL_UNIQKEY: key,
            p.TIMER_DELIVER_MS: str(handle.deliver_ms),
            p.UNIQ_KEY: handle.unique_key,
            p.CLUSTER: self._config.broker_cluster_name,
        }
        if header.producer_group:
            properties[p.PRODUCER_GROUP] = header.producer_group
        flaw = p.check_properties(properties)
        if flaw is not None:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {flaw}")
        return MessageExtBrokerInner(
            header.topic,
            b"0",
            p.encode_properties(properties),
            0,
            born_timestamp=self._now_ms(),
            born_host=addresses.born_host,
            store_host=addresses.store_host,
        )

    def _region(self) -> dict[str, str]:
        return {"MSG_REGION": self._config.region_id}
