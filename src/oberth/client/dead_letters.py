"""Dead letters of live brokers: found, and sent to their origin topics again.

A letter stays where it is; what is sent is a copy without what brokers and clients noted on the
way, with REDRIVEN_FROM naming the letter. By that a second call knows which letters were sent:
it asks the brokers' index for messages with the letter's unique key, once topics show all that was
sent to them (`Shown`). Letters without one have no such memory; calls at the same time keep each
other out by a `RedriveClaim`. RocketMQ: SendMessageProcessor (consumerSendMsgBack).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, Final, NamedTuple

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent, ask_each
from oberth.client.messages import RESERVED_PROPERTIES, Message, MessageExt
from oberth.client.producer import Producer
from oberth.client.redrive_claim import RedriveClaim
from oberth.client.route import publish_queues, subscribe_queues
from oberth.errors import MQBrokerError, MQClientError, OberthError, RemotingError
from oberth.formats import properties as p
from oberth.formats.names import DLQ_PREFIX, dlq_topic
from oberth.formats.sys_flag import COMPRESSED
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.route import MASTER_ID
from oberth.remoting.code import ResponseCode

REDRIVEN_FROM: Final = "REDRIVEN_FROM"
REASON: Final = "DLQ_REASON"
"""A property that applications may set."""

DROPPED: Final = RESERVED_PROPERTIES | p.BROKER_ONLY | {REASON, REDRIVEN_FROM}
"""Properties that a letter's copy does not have, but for its keys, tags, sharding and unique key:
a delay or a transaction that is over must not begin again."""

PULL_COUNT: Final = 32
COPIES_MAX: Final = 64
"""Messages with one unique key that are looked at for REDRIVEN_FROM."""
SHOWN_WITHIN_S: Final = 10.0
"""How long a redrive waits for messages that brokers have and do not show yet."""
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0


class Receipt(NamedTuple):
    """What became of one dead letter.

    Attributes:
        dead_letter_id: its offset message id among the dead letters.
        origin_topic: where it went again; "" where that is not known.
        status: ``redriven``, ``would be redriven`` (a dry run), ``already`` (by a call before),
            ``no origin topic``, ``unreadable body`` (it does not decompress), or ``broker silent``
            (a broker of its topic does not answer, so nobody knows whether it was sent before).
        queue_id: its new queue.
        queue_offset: its new queue offset.
        message_id: its new offset message id.
    """

    dead_letter_id: str
    origin_topic: str
    status: str
    queue_id: int | None = None
    queue_offset: int | None = None
    message_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The receipt under JSON names."""
        return {
            "deadLetterId": self.dead_letter_id,
            "originTopic": self.origin_topic,
            "status": self.status,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "messageId": self.message_id,
        }


def origin_topic(letter: MessageExt) -> str:
    """Where a letter was first; "" where nobody noted it."""
    properties = letter.properties
    return properties.get(p.DLQ_ORIGIN_TOPIC) or properties.get(p.RETRY_TOPIC) or ""


def origin_message_id(letter: MessageExt) -> str | None:
    """The offset message id that a letter had there."""
    properties = letter.properties
    return properties.get(p.DLQ_ORIGIN_MESSAGE_ID) or properties.get(p.ORIGIN_MESSAGE_ID)


def new_message(letter: MessageExt) -> Message:
    """The copy that is sent."""
    made = Message(origin_topic(letter), letter.body, flag=letter.flag)
    kept = (p.KEYS, p.TAGS, p.SHARDING_KEY, p.UNIQ_KEY)
    made.properties.update(
        (name, value)
        for name, value in letter.properties.items()
        if name in kept or not (name in DROPPED or name.startswith(p.TRANSIENT_PREFIX))
    )
    made.properties[REDRIVEN_FROM] = letter.offset_msg_id
    return made


async def groups_with_dead_letters(admin: Admin) -> list[str]:
    """Groups that have a topic of dead letters, sorted."""
    return [
        topic.removeprefix(DLQ_PREFIX)
        for topic in await admin.topic_list()
        if topic.startswith(DLQ_PREFIX)
    ]


async def dead_letters(
    admin: Admin, group: str, *, silent: Silent | None = None
) -> AsyncIterator[MessageExt]:
    """A group's dead letters by queue and offset; those that come meanwhile are left out.

    Args:
        admin: reads them.
        group: whose.
        silent: gets the error of each broker that does not answer, and those in it are not asked;
            None: such an error is raised.

    Raises:
        MQClientError: the topic of dead letters may not be read, as old brokers made it.
    """
    topic = dlq_topic(group)
    try:
        queues = await admin.topic_queues(topic)
    except MQBrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return
        raise
    if not queues:
        raise MQClientError(f"{topic} may not be read: its permission is write only")
    for queue in queues:
        if silent is not None and queue.broker_name in silent:
            continue
        offset = end = -1
        while offset < end or end < 0:
            try:
                if end < 0:
                    offset, end = await admin.min_offset(queue), await admin.max_offset(queue)
                result = await admin.pull(queue, offset, max_num=PULL_COUNT)
            except RemotingError as error:
                if silent is None:
                    raise
                silent[queue.broker_name] = error
                break
            for letter in result.messages:
                if letter.queue_offset < end:
                    yield letter
            if result.next_begin_offset <= offset:
                break
            offset = result.next_begin_offset


class Shown:
    """Waits until topics show what brokers have of them, so that the index knows it as well.

    With ``dispatch=spark`` a message is in queues and index later, or much later, than its sender
    is answered. A topic is looked at once: what comes afterwards is no copy of a redrive before
    this one.
    """

    def __init__(
        self, admin: Admin, *, limit_s: float | None = None, silent: Silent | None = None
    ) -> None:
        """Prepares to look.

        Args:
            admin: asks the brokers.
            limit_s: how long to wait, for all topics together; None: `SHOWN_WITHIN_S`. A topic that
                is asked for when they are over gets a pause of a second.
            silent: gets the error of each broker that does not answer, and those in it are not
                asked; None: such an error is raised.
        """
        self._admin = admin
        self._left_s = SHOWN_WITHIN_S if limit_s is None else limit_s
        self._silent = silent
        self._known: dict[str, OberthError | None] = {}

    async def wait(self, topic: str) -> None:
        """Returns when a topic shows all that its brokers had of it at the first call.

        Raises:
            MQClientError: it does not in time, so nobody knows whether a letter was sent to it.
            RemotingError, MQBrokerError: a broker cannot say. Later calls raise the same error.
        """
        if topic not in self._known:
            try:
                await self._look(topic)
                self._known[topic] = None
            except OberthError as error:
                self._known[topic] = error
        if (known := self._known[topic]) is not None:
            raise known

    async def _look(self, topic: str) -> None:
        ends = await self._ends(await self._queues(topic), is_shown=False)
        # What other topics do not show is no reason against one whose messages have just come.
        pause = _PAUSE_S if self._left_s > 0 else _PAUSE_MAX_S
        is_last = False
        while True:
            shown = await self._ends(ends, is_shown=True)
            ends = {queue: end for queue, end in ends.items() if shown.get(queue, end) < end}
            if not ends:
                return
            if is_last:
                queue = min(ends)
                raise MQClientError(
                    f"{queue}: shows messages up to {shown[queue]}, its log has them up to "
                    f"{ends[queue]}: whether dead letters were sent to it is not known"
                )
            await asyncio.sleep(pause)
            self._left_s -= pause
            pause = min(pause * 2, _PAUSE_MAX_S)
            is_last = self._left_s <= 0

    async def _queues(self, topic: str) -> set[MessageQueue]:
        """The queues of a topic that a copy may be in, of brokers whose index is asked."""
        try:
            route = await self._admin.topic_route(topic)
        except MQBrokerError as error:
            if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                return set()
            raise
        masters = {x.broker_name for x in route.broker_datas if MASTER_ID in x.broker_addrs}
        every = {*publish_queues(topic, route), *subscribe_queues(topic, route)}
        return {queue for queue in every if queue.broker_name in masters}

    async def _ends(
        self, queues: Collection[MessageQueue], *, is_shown: bool
    ) -> dict[MessageQueue, int]:
        """The ends of queues, without those of a broker that does not answer or has no such topic.

        Each broker is asked for one queue after the other.
        """
        of_broker: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            of_broker.setdefault(queue.broker_name, []).append(queue)

        async def ask(name: str, _: str) -> dict[MessageQueue, int]:
            try:
                return {
                    queue: await self._admin.max_offset(queue, is_shown=is_shown)
                    for queue in of_broker[name]
                }
            except MQBrokerError as error:
                if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                    return {}
                raise

        answers = await ask_each(dict.fromkeys(of_broker, ""), ask, self._silent)
        return {queue: end for each in answers.values() for queue, end in each.items()}


async def redrive(
    admin: Admin,
    producer: Producer | None,
    letter: MessageExt,
    *,
    silent: Silent | None = None,
    claim: RedriveClaim | None = None,
    shown: Shown | None = None,
) -> Receipt:
    """Send a letter to its origin topic again, unless that has it already.

    Args:
        admin: asks whether it was sent before.
        producer: sends it; None: a dry run.
        letter: of `dead_letters`.
        silent: gets the error of each broker that cannot say whether it has the letter already, and
            those in it are not asked; None: such an error is raised.
        claim: what keeps other redrives of the group out meanwhile.
        shown: the same for all letters of a redrive, with the same ``silent``; None: one for this
            letter.

    Raises:
        RemotingError, MQBrokerError, MQClientError: it could not be sent, or it is not known
            whether it was.
        RedriveHeldError: the claim has ended.
    """
    topic = origin_topic(letter)
    if not topic:
        return Receipt(letter.offset_msg_id, "", "no origin topic")
    if letter.sys_flag & COMPRESSED:  # it may become 64 MiB, which others need not wait for
        made, flaw = await asyncio.to_thread(lambda: (new_message(letter), letter.body_error))
    else:
        made, flaw = new_message(letter), letter.body_error
    if flaw is not None:
        return Receipt(letter.offset_msg_id, topic, "unreadable body")
    if made.msg_id:
        await (shown or Shown(admin, silent=silent)).wait(topic)
        if await _was_sent(admin, topic, made.msg_id, letter.offset_msg_id, silent):
            return Receipt(letter.offset_msg_id, topic, "already")
        if silent and await _is_among(admin, topic, silent):
            return Receipt(letter.offset_msg_id, topic, "broker silent")
    if producer is None:
        return Receipt(letter.offset_msg_id, topic, "would be redriven")
    if claim is not None:
        claim.check()
    sent = await producer.send(made)
    return Receipt(
        letter.offset_msg_id,
        topic,
        "redriven",
        sent.message_queue.queue_id,
        sent.queue_offset,
        sent.offset_msg_id,
    )


async def _is_among(admin: Admin, topic: str, silent: Silent) -> bool:
    """Whether a topic has one of the brokers that do not answer."""
    try:
        route = await admin.topic_route(topic)
    except MQBrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return False
        raise
    return any(data.broker_name in silent for data in route.broker_datas)


async def _was_sent(
    admin: Admin, topic: str, key: str, letter_id: str, silent: Silent | None
) -> bool:
    try:
        found = await admin.query_message_by_unique_key(
            topic, key, max_num=COPIES_MAX, silent=silent
        )
    except MQBrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return False
        raise
    return any(each.properties.get(REDRIVEN_FROM) == letter_id for each in found)
