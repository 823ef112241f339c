"""Escape: an acting master gives other brokers what it may not put into its own log.

A slave that acts for its master delivers delayed and timed messages, brings POP messages back and
renews open transactions; but its log is a copy that ends where the master's does. With
``enableRemoteEscape`` it sends them to a master of another broker name that has the topic.

The services that deliver are machines that put and look at the result at once, and try again what
was not taken. So `Escape.append` answers "not now" for what it sees first, sends it, and answers
"stored" when it is offered again and another broker has it. What is on its way when the role or the
process ends may be sent once more by the next: nothing is left out. RocketMQ: EscapeBridge.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oberth.errors import OberthError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import java_long
from oberth.formats.sys_flag import TRANSACTION_PREPARED, with_transaction_type
from oberth.remoting.bodies.route import MASTER_ID
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.send import SendMessageRequestHeader
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.peer_brokers import PeerBrokers
    from oberth.broker.tasks import StartTask

_LOG: Final = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 512
"""Messages that are on their way or have arrived and were not asked for yet."""
INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""Whose message it is where it does not say."""
PERM_WRITE: Final = 2
DELIVERED: Final = (
    p.DELAY, p.TIMER_DELIVER_MS, p.TIMER_DELAY_MS, p.TIMER_DELAY_SEC,
)  # fmt: skip
"""What says that a message is to be delayed; it was."""
DEQUEUED: Final = p.TIMER_DEQUEUE_MS.encode()
STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)

_Key = tuple[str, int, bytes, bytes]


class Escape:
    """Sends messages to other brokers. On the broker's loop."""

    def __init__(self, *, config: BrokerConfig, peers: PeerBrokers, start_task: StartTask) -> None:
        self._config = config
        self._peers = peers
        self._start_task = start_task
        self._under_way: Counter[_Key] = Counter()
        self._arrived: Counter[_Key] = Counter()
        self._turn = itertools.count()
        self._said = ""
        self.sent = 0
        """Messages that other brokers have taken."""

    def append(self, messages: Sequence[MessageExtBrokerInner]) -> list[PutMessageResult]:
        """Takes messages as a store does; what is refused now is to be offered again."""
        results = []
        offered: Counter[_Key] = Counter()
        for message in messages:
            key = _key(message)
            status = PutMessageStatus.SERVICE_NOT_AVAILABLE
            if self._arrived[key] > 0:
                self._arrived[key] -= 1
                status = PutMessageStatus.PUT_OK
            elif self._config.enable_remote_escape:
                offered[key] += 1
                if offered[key] > self._under_way[key] and self._is_room:
                    self._under_way[key] += 1
                    self._start_task(self._send(key, message))
            results.append(PutMessageResult(status))
        self._arrived += Counter()  # drops what is zero
        return results

    @property
    def _is_room(self) -> bool:
        return self._under_way.total() + self._arrived.total() < UNDER_WAY_MAX

    def forget(self) -> None:
        """The broker acts no more: nobody asks what became of what was sent."""
        self._arrived.clear()

    async def _send(self, key: _Key, message: MessageExtBrokerInner) -> None:
        try:
            await self._send_once(message)
        except OberthError as error:
            if self._said != str(error):  # it is tried again with each tick
                self._said = str(error)
                _LOG.warning(
                    "a message for %s could not be sent to another broker: %s", message.topic, error
                )
        else:
            self._said = ""
            self.sent += 1
            self._arrived[key] += 1
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    async def _send_once(self, message: MessageExtBrokerInner) -> None:
        message = outbound(message)
        route = await self._peers.route(message.topic)
        own = self._config.broker_name
        masters = set()
        if route is not None:
            masters = {
                each.broker_name for each in route.broker_datas if MASTER_ID in each.broker_addrs
            }
        others = sorted(
            (each.broker_name or "", each.write_queue_nums)
            for each in (route.queue_datas if route is not None else [])
            if each.perm & PERM_WRITE and each.write_queue_nums > 0 and each.broker_name != own
            and each.broker_name in masters
        )  # fmt: skip
        if not others:
            raise NoOtherBrokerError(f"no other broker takes messages of topic {message.topic}")
        turn = next(self._turn)
        name, queues = others[turn % len(others)]
        request = create_request(
            RequestCode.SEND_MESSAGE,
            SendMessageRequestHeader(
                producer_group=_properties(message).get(p.PRODUCER_GROUP, INNER_PRODUCER),
                topic=message.topic,
                default_topic=names.AUTO_CREATE_TOPIC_KEY,
                default_topic_queue_nums=queues,
                queue_id=turn // len(others) % queues,
                sys_flag=message.sys_flag,
                born_timestamp=message.born_timestamp,
                flag=message.flag,
                properties=message.properties_raw.decode("utf-8", "replace"),
                reconsume_times=message.reconsume_times,
                unit_mode=False,
                batch=False,
            ),
        )
        answer = await self._peers.ask(
            name, RequestCode.SEND_MESSAGE, request.fields, body=bytes(message.body)
        )
        if answer.code not in STORED:
            raise NoOtherBrokerError(f"{name} answers {answer.code}: {answer.remark}")


class NoOtherBrokerError(OberthError):
    """No other broker takes a message now."""


def outbound(message: MessageExtBrokerInner) -> MessageExtBrokerInner:
    """A message as its sender sent it: another broker makes of it what this one has made."""
    properties = _properties(message)
    if message.topic == names.TRANS_HALF_TOPIC:
        topic = properties.get(p.REAL_TOPIC, "")
        if not names.is_stored_topic(topic):
            raise NoOtherBrokerError(f"a half message names topic {topic!r}")
        properties[p.TRANSACTION_PREPARED] = "true"
        return _changed(
            message, topic, java_long(properties.get(p.REAL_QUEUE_ID, "0"), 0), properties,
            with_transaction_type(message.sys_flag, TRANSACTION_PREPARED),
        )  # fmt: skip
    if message.convert:
        return message
    for name in DELIVERED:
        properties.pop(name, None)
    return _changed(message, message.topic, message.queue_id, properties, message.sys_flag)


def _changed(
    message: MessageExtBrokerInner,
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    sys_flag: int,
) -> MessageExtBrokerInner:
    return MessageExtBrokerInner(
        topic,
        message.body,
        p.encode_properties(properties),
        queue_id,
        message.flag,
        sys_flag,
        message.born_timestamp,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        wait_store_ok=False,
    )


def _properties(message: MessageExtBrokerInner) -> dict[str, str]:
    return p.decode_properties(message.properties_raw)


def _key(message: MessageExtBrokerInner) -> _Key:
    return (
        message.topic,
        message.queue_id,
        # The time of the attempt is none of the message.
        p.without_properties(message.properties_raw, (DEQUEUED,)),
        bytes(message.body),
    )
