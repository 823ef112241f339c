"""Messages that could not be consumed: back to the broker, or to the retry topic by ourselves.

RocketMQ: DefaultMQPushConsumerImpl.sendMessageBack, ConsumeMessageOrderlyService.sendMessageBack.
"""

from __future__ import annotations

import logging
from typing import Final

from oberth.client.instance import ClientInstance
from oberth.client.messages import MessageExt, encode_message_properties
from oberth.client.namespace import with_namespace
from oberth.client.retry import RETRY_TIMES_DEFAULT, retry_delay_level
from oberth.errors import MQBrokerError, MQClientError, RemotingError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
)

_LOG: Final = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_S: Final = 5.0

_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)

_NOT_COPIED: Final = (
    p.TRANSACTION_PREPARED,
    p.MIN_OFFSET,
    p.MAX_OFFSET,
    p.CONSUME_START_TIME,
)


def retry_times_max(max_reconsume_times: int) -> int:
    """How often a concurrent consumer lets a message be tried again."""
    return RETRY_TIMES_DEFAULT if max_reconsume_times < 0 else max_reconsume_times


async def send_message_back(
    instance: ClientInstance,
    group: str,
    message: MessageExt,
    *,
    delay_level: int,
    max_reconsume_times: int,
) -> None:
    """Have the broker deliver a message again later, or move it to the dead letters.

    When the broker cannot (it does not have the record any more, say), the message goes to the
    retry topic as a new one.

    Raises:
        MQBrokerError, MQClientError, RemotingError: neither worked; the message is still ours.
    """
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.offset_msg_id,
        origin_topic=with_namespace(instance.config.namespace, message.topic),
        max_reconsume_times=retry_times_max(max_reconsume_times),
    )
    addr = instance.master_address(message.broker_name) or message.store_host
    try:
        await instance.ask(
            addr, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_s=SEND_BACK_TIMEOUT_S
        )
    except (MQBrokerError, RemotingError) as error:
        _LOG.warning("%s: %s is not taken back: %s", group, message.msg_id, error)
        await send_to_retry_topic(
            instance,
            group,
            message,
            reconsume_times=message.reconsume_times + 1,
            max_reconsume_times=retry_times_max(max_reconsume_times),
        )


async def send_to_retry_topic(
    instance: ClientInstance,
    group: str,
    message: MessageExt,
    *,
    reconsume_times: int,
    max_reconsume_times: int,
) -> None:
    """Send a copy of a message to its group's retry topic; the broker makes dead letters of some.

    Raises:
        MQBrokerError, MQClientError, RemotingError: it was not stored.
    """
    topic = names.retry_topic(group)
    info = await instance.publish_info(topic, template="")
    queue = info.select()
    addr = instance.master_address(queue.broker_name)
    if addr is None:
        raise MQClientError(f"broker {queue.broker_name} of {topic} has no master")
    properties = {
        name: value for name, value in message.properties.items() if name not in _NOT_COPIED
    }
    properties.setdefault(p.ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties[p.RETRY_TOPIC] = message.get_property(p.RETRY_TOPIC) or with_namespace(
        instance.config.namespace, message.topic
    )
    properties[p.DELAY] = str(retry_delay_level(message.reconsume_times))
    header = SendMessageRequestHeaderV2(
        producer_group=names.CLIENT_INNER_PRODUCER_GROUP,
        topic=topic,
        default_topic=names.AUTO_CREATE_TOPIC_KEY,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_timestamp=instance.now_ms(),
        flag=message.flag,
        properties=encode_message_properties(properties),
        reconsume_times=reconsume_times,
        unit_mode=False,
        max_reconsume_times=max_reconsume_times,
        batch=False,
        broker_name=queue.broker_name,
    )
    request = RemotingCommand(
        code=int(RequestCode.SEND_MESSAGE_V2),
        ext_fields=header.to_ext_fields(),
        body=message.body,
    )
    response = await instance.invoke(addr, request, SEND_BACK_TIMEOUT_S)
    if response.code not in _STORED:
        raise MQBrokerError(response.code, response.remark or "", addr)
