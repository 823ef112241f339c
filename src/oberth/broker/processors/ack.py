"""AckMessageProcessor: 200051, 200151 and 200053.

RocketMQ: AckMessageProcessor, ChangeInvisibleTimeProcessor.

Acknowledging twice is harmless, and so is acknowledging what was handed out again since: the ack
names the pop that it belongs to.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.broker import remarks
from oberth.broker.pop.check_point import (
    ORDER_REVIVE_QUEUE,
    CheckPointError,
    PopAck,
    PopCheckPoint,
    check_names,
    parse_receipt,
    real_topic,
)
from oberth.broker.pop.pop_service import OrderedAck, PopService, StoredAck
from oberth.broker.processors.pop import PopMessageProcessor
from oberth.broker.processors.pop_lite import PopLiteMessageProcessor
from oberth.broker.topic_configs import REVIVE_QUEUE_NUMS
from oberth.errors import IllegalNameError
from oberth.formats import names
from oberth.remoting.bodies.base import checked_list
from oberth.remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.base import HeaderError
from oberth.remoting.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.broker.topic_configs import TopicConfigs
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_Answer = tuple[int, str | None]
_OK: Final[_Answer] = (int(ResponseCode.SUCCESS), None)
_NOT_STORED: Final[_Answer] = (int(ResponseCode.SYSTEM_ERROR), "put ack msg error")

ACKS_A_TURN: Final = 50
_BITS_OF_ONE: Final = 64
"""Characters of a bit set that take about as long as the rest of an acknowledgement."""


class _Queue(NamedTuple):
    """What acknowledgements of a queue are checked with: the offsets it has, or why none is taken.

    A queue that none is taken of has no offsets: ``low`` is above ``high``.
    """

    low: int
    high: int
    refusal: _Answer | None


class AckMessageProcessor:
    """Takes acknowledgements of popped messages."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigs,
        offsets: ConsumerOffsets,
        now_ms: Callable[[], int],
        service: PopService,
        pops: PopMessageProcessor,
        lite: PopLiteMessageProcessor,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._now_ms = now_ms
        self._service = service
        self._pops = pops
        self._lite = lite

    def ack(
        self, channels: Sequence[Channel], requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        """200051: one message is consumed; the acks of one burst become one append.

        What a queue holds is looked up once for all of them.
        """
        del channels
        answers: list[_Answer] = []
        queues: dict[tuple[str, int], _Queue] = {}
        stored: list[StoredAck] = []
        waiting: list[int] = []
        for number, request in enumerate(requests):
            answer: _Answer | None
            try:
                header = request.header(AckMessageRequestHeader)
                receipt = parse_receipt(header.extra_info)
            except (HeaderError, CheckPointError) as error:
                answers.append((int(ResponseCode.SYSTEM_ERROR), f"{type(error).__name__}: {error}"))
                continue
            if header.lite_topic:
                answer = self._check_queue(header.topic, header.queue_id)
                answers.append(answer or self._lite.ack(header, receipt))
                continue
            queue = queues.get((header.topic, header.queue_id))
            if queue is None:
                queue = queues[header.topic, header.queue_id] = self._queue(
                    header.topic, header.queue_id
                )
            if queue.low <= header.offset <= queue.high:
                answer = None
            else:
                answer = queue.refusal or self._offset_illegal(header, queue)
            if answer is None:
                ack = PopAck(
                    (header.offset,),
                    receipt.start_offset,
                    receipt.pop_time,
                    header.queue_id,
                    header.topic,
                    header.consumer_group,
                    receipt.broker_name,
                )
                answer = self._ack_without_log(ack, receipt.revive_queue_id)
                if answer is None:
                    stored.append(StoredAck(ack, receipt.revive_queue_id, receipt.invisible_time))
                    waiting.append(number)
                    answer = _OK
            answers.append(answer)
        if stored:
            for number, ok in zip(waiting, self._service.put_acks(stored), strict=True):
                if not ok:
                    answers[number] = _NOT_STORED
        return [
            create_response(request, *answer)
            for request, answer in zip(requests, answers, strict=True)
        ]

    def batch_ack(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """200151: messages of several pops are consumed."""
        del channel
        body = BatchAckMessageRequestBody.decode(
            checked_list(request.body_bytes(), "BatchAckMessageRequestBody")
        )
        if not body.acks:
            return create_response(request, ResponseCode.NO_MESSAGE)
        answer = _OK
        done = 0
        for each in body.acks:
            done += 1 + len(each.b) // _BITS_OF_ONE
            if done >= ACKS_A_TURN:
                done = 0
                yield
            # Those behind one that is refused are acknowledged; the last refusal is the answer.
            entry = self._batch(each, body.broker_name)
            if entry != _OK:
                answer = entry
        return create_response(request, *answer)

    def _batch(self, batch: BatchAck, broker_name: str) -> _Answer:
        topic = real_topic(batch.t, batch.c, batch.r)
        topic_config = self._topics.get(topic)
        if topic_config is None:
            return self._topic_unknown(topic)
        if not 0 <= batch.q < topic_config.read_queue_nums:
            return self._queue_illegal(topic, batch.q, topic_config.read_queue_nums)
        store = self._store
        low = max(store.min_offset_in_queue(topic, batch.q), 0)
        high = store.max_offset_in_queue(topic, batch.q)
        offsets = tuple(offset for offset in batch.offsets() if low <= offset <= high)
        if not offsets:
            return int(ResponseCode.NO_MESSAGE), None
        ack = PopAck(
            offsets,
            batch.so,
            batch.pt,
            batch.q,
            topic,
            batch.c,
            broker_name or self._config.broker_name,
            is_batch=True,
        )
        return self._ack(ack, batch.rq, batch.it)

    def _ack(self, ack: PopAck, revive_queue_id: int, invisible_time: int) -> _Answer:
        answer = self._ack_without_log(ack, revive_queue_id)
        if answer is not None:
            return answer
        (ok,) = self._service.put_acks([StoredAck(ack, revive_queue_id, invisible_time)])
        return _OK if ok else _NOT_STORED

    def _ack_without_log(self, ack: PopAck, revive_queue_id: int) -> _Answer | None:
        """Acks of ordered consumption and of check points in memory; None: it must be stored."""
        if revive_queue_id == ORDER_REVIVE_QUEUE:
            return self._ack_in_order(ack)
        if not 0 <= revive_queue_id < REVIVE_QUEUE_NUMS:
            return int(ResponseCode.SYSTEM_ERROR), f"reviveQid {revive_queue_id} is illegal"
        if self._service.buffer.ack(ack):
            return _OK
        try:
            check_names(ack.topic, ack.group, ack.broker_name)
        except CheckPointError as error:
            return int(ResponseCode.INVALID_PARAMETER), str(error)
        return None

    def _ack_in_order(self, ack: PopAck) -> _Answer:
        answer = _OK
        for offset in ack.offsets:
            taken = self._service.ack_in_order(
                ack.topic, ack.group, ack.queue_id, offset, ack.pop_time
            )
            if taken is OrderedAck.NO_ROOM:
                answer = int(ResponseCode.SYSTEM_ERROR), remarks.OFFSETS_FULL
            elif taken is OrderedAck.UNKNOWN:
                answer = (
                    int(ResponseCode.MESSAGE_ILLEGAL),
                    f"offset is illegal, key:{ack.topic}@{ack.group}, old:"
                    f"{self._offsets.query(ack.group, ack.topic, ack.queue_id)}, "
                    f"commit:{offset}, next:-1",
                )
        if not self._service.orders.is_blocked(
            ack.topic, ack.group, ack.queue_id, None, self._now_ms()
        ):
            self._pops.queue_unlocked(ack.topic, ack.group, ack.queue_id)
        return answer

    def _check_queue(self, topic: str, queue_id: int) -> _Answer | None:
        topic_config = self._topics.get(topic)
        if topic_config is None:
            return self._topic_unknown(topic)
        if not 0 <= queue_id < topic_config.read_queue_nums:
            return self._queue_illegal(topic, queue_id, topic_config.read_queue_nums)
        return None

    def _queue(self, topic: str, queue_id: int) -> _Queue:
        refusal = self._check_queue(topic, queue_id)
        if refusal is not None:
            return _Queue(0, -1, refusal)
        store = self._store
        return _Queue(
            store.min_offset_in_queue(topic, queue_id),
            store.max_offset_in_queue(topic, queue_id),
            None,
        )

    @staticmethod
    def _offset_illegal(
        header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, queue: _Queue
    ) -> _Answer:
        return (
            int(ResponseCode.NO_MESSAGE),
            f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
            f"store:{queue.low}~{queue.high}",
        )

    @staticmethod
    def _topic_unknown(topic: str) -> _Answer:
        return int(ResponseCode.TOPIC_NOT_EXIST), remarks.topic_not_exist(topic)

    @staticmethod
    def _queue_illegal(topic: str, queue_id: int, queue_nums: int) -> _Answer:
        return (
            int(ResponseCode.MESSAGE_ILLEGAL),
            f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
            f"[{queue_nums}]",
        )

    # 200053

    def change_invisible_time(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """200053: a message is to stay invisible for another time, from now on."""
        del channel
        header = request.header(ChangeInvisibleTimeRequestHeader)
        try:
            receipt = parse_receipt(header.extra_info)
        except CheckPointError as error:
            raise HeaderError(str(error)) from None
        now_ms = self._now_ms()
        is_order = bool(header.lite_topic) or receipt.revive_queue_id == ORDER_REVIVE_QUEUE
        header.invisible_time = self._service.invisible_ms(
            header.invisible_time, now_ms, is_order=is_order
        )
        answer = ChangeInvisibleTimeResponseHeader(
            pop_time=now_ms,
            invisible_time=header.invisible_time,
            revive_qid=receipt.revive_queue_id,
        )
        if header.lite_topic:
            refusal = self._check_queue(header.topic, header.queue_id)
            if refusal is None:
                return self._lite.change_invisible_time(request, header, receipt, answer)
        else:
            queue = self._queue(header.topic, header.queue_id)
            refusal = queue.refusal
            if refusal is None and not queue.low <= header.offset <= queue.high:
                refusal = self._offset_illegal(header, queue)
        if refusal is not None:
            return create_response(request, *refusal, header=answer)
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        try:
            names.check_kept_group(group)  # the check point keeps it, and its retries an offset
        except IllegalNameError as error:
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, str(error), header=answer
            )
        if receipt.revive_queue_id == ORDER_REVIVE_QUEUE:
            visible_ms = now_ms + header.invisible_time
            # An order knows its pop by its time, so the handle keeps that: its end moves.
            answer.pop_time = receipt.pop_time
            answer.invisible_time = visible_ms - receipt.pop_time
            self._service.orders.set_next_visible(
                topic, group, queue_id, header.offset, receipt.pop_time, visible_ms
            )
            return create_response(request, ResponseCode.SUCCESS, header=answer)
        if not 0 <= receipt.revive_queue_id < REVIVE_QUEUE_NUMS:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "reviveQid is illegal", header=answer
            )
        check_point = PopCheckPoint(
            header.offset,
            now_ms,
            header.invisible_time,
            queue_id,
            topic,
            group,
            self._config.broker_name,
            (0,),
        )
        # First the new one: between the two the message is delivered twice rather than never.
        if not self._service.put_check_point(check_point, receipt.revive_queue_id):
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "append check point failed", header=answer
            )
        old = PopAck(
            (header.offset,),
            receipt.start_offset,
            receipt.pop_time,
            queue_id,
            topic,
            group,
            receipt.broker_name,
        )
        self._ack(old, receipt.revive_queue_id, receipt.invisible_time)
        return create_response(request, ResponseCode.SUCCESS, header=answer)
