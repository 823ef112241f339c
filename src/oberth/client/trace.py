"""Trace messages: what became of each message, for ``mqadmin queryTrace`` and consoles.

A record is text: fields end with 0x01, the record with 0x02. Records go as bodies of ordinary
messages to the trace topic, with all message ids and business keys in KEYS. Nothing waits for them:
when the topic does not exist, or more come than can be sent, they are dropped and counted.
RocketMQ: TraceDataEncoder, AsyncTraceDispatcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from oberth.client.messages import Message, MessageExt
from oberth.formats import properties as p
from oberth.remoting.command import RemotingCommand

_LOG: Final = logging.getLogger(__name__)

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"

GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
QUEUE_MAX: Final = 2048
"""Records that wait; the oldest are dropped for new ones."""

BATCH_MAX: Final = 100
"""Records of one trace message."""

FLUSH_INTERVAL_S: Final = 0.5
SEND_TIMEOUT_MS: Final = 5000

MSG_TYPE_NORMAL: Final = 0
MSG_TYPE_TRANSACTION_HALF: Final = 1
MSG_TYPE_DELAY: Final = 3


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One record.

    Attributes:
        fields: as text, the first is the kind.
        keys: words by which the record can be found.
        region: where the broker is.
    """

    fields: tuple[str, ...]
    keys: tuple[str, ...]
    region: str = "DefaultRegion"

    def text(self) -> str:
        """As it stands in a trace message."""
        return FIELD_SEPARATOR.join(self.fields) + RECORD_SEPARATOR


def pub_record(
    *,
    group: str,
    message: Message,
    time_ms: int,
    region: str,
    store_host: str,
    cost_ms: int,
    offset_msg_id: str,
    success: bool,
    client_host: str,
) -> TraceRecord:
    """A message was sent, or could not be."""
    msg_type = MSG_TYPE_NORMAL
    if message.get_property(p.TRANSACTION_PREPARED) == "true":
        msg_type = MSG_TYPE_TRANSACTION_HALF
    elif message.delay_time_level or message.get_property(p.TIMER_DELIVER_MS):
        msg_type = MSG_TYPE_DELAY
    fields = (
        "Pub", str(time_ms), region, group, message.topic, message.msg_id, message.tags,
        message.keys, store_host, str(len(message.body)), str(cost_ms), str(msg_type),
        offset_msg_id, _bool(success), client_host,
    )  # fmt: skip
    return TraceRecord(fields, (message.msg_id, *message.keys.split()), region)


def sub_before_record(
    *, group: str, message: MessageExt, time_ms: int, request_id: str
) -> TraceRecord:
    """A message is about to be consumed."""
    region = message.get_property(p.MESSAGE_REGION, "DefaultRegion")
    fields = (
        "SubBefore", str(time_ms), region, group, request_id, message.msg_id,
        str(message.reconsume_times), message.keys,
    )  # fmt: skip
    return TraceRecord(fields, (message.msg_id, *message.keys.split()), region)


def sub_after_record(
    *,
    group: str,
    message: MessageExt,
    time_ms: int,
    request_id: str,
    cost_ms: int,
    success: bool,
    context_code: int,
) -> TraceRecord:
    """A message was consumed; ``context_code`` 0 success, 1 time-out, 2 exception, 4 failed."""
    fields = (
        "SubAfter", request_id, message.msg_id, str(cost_ms), _bool(success), message.keys,
        str(context_code), str(time_ms), group,
    )  # fmt: skip
    region = message.get_property(p.MESSAGE_REGION, "DefaultRegion")
    return TraceRecord(fields, (message.msg_id, *message.keys.split()), region)


def end_transaction_record(
    *,
    group: str,
    message: Message | MessageExt,
    time_ms: int,
    store_host: str,
    transaction_id: str,
    state: str,
    from_check: bool,
) -> TraceRecord:
    """A transaction was ended."""
    fields = (
        "EndTransaction", str(time_ms), "DefaultRegion", group, message.topic, message.msg_id,
        message.tags, message.keys, store_host, str(MSG_TYPE_TRANSACTION_HALF), transaction_id,
        state, _bool(from_check),
    )  # fmt: skip
    return TraceRecord(fields, (message.msg_id, *message.keys.split()))


def _bool(value: bool) -> str:
    return "true" if value else "false"


def trace_message(topic: str, records: Sequence[TraceRecord]) -> Message:
    """The message that carries records."""
    keys = dict.fromkeys(key for record in records for key in record.keys if key)
    body = "".join([record.text() for record in records]).encode()
    return Message(topic, body, keys=list(keys))


class TraceSender(Protocol):
    """What a producer of trace records can do."""

    @property
    def client_id(self) -> str:
        """Names the client; it has started."""

    async def start(self) -> None:
        """Join the cluster."""

    async def shutdown(self) -> None:
        """Leave it, after what is on its way."""

    async def leave(self) -> None:
        """Leave it at once."""

    async def send(self, msg: Message, /) -> object:
        """Send a message."""


class TraceDispatcher:
    """Sends records in the background, with a producer of its own.

    Args:
        topic: where they go.
        producer: sends them, and nothing else; it is started and shut down here.
    """

    def __init__(self, topic: str, producer: TraceSender) -> None:
        self._topic = topic
        self._producer = producer
        self._queue: deque[TraceRecord] = deque(maxlen=QUEUE_MAX)
        self._task: asyncio.Task[None] | None = None
        self._host = ""
        self.dropped = 0

    async def start(self) -> None:
        """Begin."""
        await self._producer.start()
        self._host = self._producer.client_id
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def shutdown(self) -> None:
        """Send what is left, once."""
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
                self._task = None
            await self.flush()
            await self._producer.shutdown()
        finally:
            await self.leave()

    async def leave(self) -> None:
        """End at once; what is left is dropped."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        await self._producer.leave()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Send all records that wait."""
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            try:
                await self._producer.send(trace_message(self._topic, batch))
            except Exception as error:  # noqa: BLE001 - traces end nothing else
                self.dropped += len(batch)
                _LOG.warning(
                    "%d records of traces could not be sent and are dropped: %s", len(batch), error
                )
                return

    def add(self, records: Iterable[TraceRecord]) -> None:
        """Records to be sent soon."""
        for record in records:
            if len(self._queue) == QUEUE_MAX:
                self.dropped += 1
            self._queue.append(record)

    def note_send(
        self,
        group: str,
        sent: Message | Sequence[Message],
        addr: str,
        time_ms: int,
        cost_ms: int,
        response: RemotingCommand | None,
    ) -> None:
        """An attempt to send; ``response`` is the broker's when it stored the message."""
        fields = response.fields if response is not None else {}
        if fields.get(p.TRACE_SWITCH) == "false":
            return
        messages = [sent] if isinstance(sent, Message) else sent
        ids = fields.get("msgId", "").split(",")
        self.add(
            pub_record(
                group=group,
                message=message,
                time_ms=time_ms,
                region=fields.get(p.MESSAGE_REGION, "DefaultRegion"),
                store_host=addr,
                cost_ms=cost_ms,
                offset_msg_id=ids[number] if number < len(ids) else "",
                success=response is not None,
                client_host=self._host,
            )
            for number, message in enumerate(messages)
        )
