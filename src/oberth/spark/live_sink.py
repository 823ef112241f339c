"""Rows sent to live topics: at least once, in order where a queue or a sharding key is given.

A task sends its rows and has succeeded when the brokers have acknowledged every one of them; a task
that is tried again sends them again. Rows travel in batches of one queue, up to `batch_bytes`:

    partition given       to that queue (of the broker in the column broker, or of the only one)
    shardingKey given     to the queue that Java's clients choose for it by hash
    neither               wherever, some batches at once
    delayLevel, deliverTime   one by one: brokers take no batches of delayed messages

Rows of one queue are sent one batch after the other, so their order in the task is their order in
the queue, unless a batch had to be sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from oberth.client.admin import Admin
from oberth.client.blocking_face import LOOP
from oberth.client.dead_letters import Shown
from oberth.client.instance import ClientInstance
from oberth.client.messages import Message, SendResult, SendStatus
from oberth.client.producer import Producer
from oberth.client.selectors import select_by_hash
from oberth.errors import MQBrokerError, MQClientError, OptionError, RecordError, RemotingError
from oberth.formats import properties as p
from oberth.formats.compression import Compression
from oberth.formats.names import RETRY_PREFIX
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import ResponseCode
from oberth.spark.connection import Patience, may_come_back, wait_for_brokers
from oberth.spark.encode import write_columns
from oberth.spark.runtime import settle_worker
from oberth.spark.write_options import LiveWriteOptions

BATCH_MESSAGES_MAX: Final = 1_024
"""Messages of one batch, and batches (or single messages) on their way at once."""
SPREAD_MESSAGES_MIN: Final = 32
SENDS_MAX: Final = 32
PAUSE_S: Final = 0.2
"""The pause before a batch is sent a second time, and the longest; each is twice the one before."""
PAUSE_MAX_S: Final = 1.0
_BATCH_TOPIC_MAX: Final = 127
"""Longer topics are not taken in batches. RocketMQ: SendMessageProcessor (Byte.MAX_VALUE)."""
_RAW: Final = ("storedBody", "storedProperties", "sysFlag", "preparedTransactionOffset")
_RETRIED: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY, ResponseCode.TOPIC_NOT_EXIST,
    }
)  # fmt: skip
_NAMED: Final = (
    (p.KEYS, "key"),
    (p.TAGS, "tags"),
    (p.UNIQ_KEY, "uniqueKey"),
    (p.SHARDING_KEY, "shardingKey"),
)

RECEIPTS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("uniqueKey", pa.string()),
        ("offsetMsgId", pa.string()),
    ]
)
"""One row per message that was sent; ``offset`` is null for delayed ones."""
_UNFINISHED: Final = ".unfinished"


class Sent(NamedTuple):
    """What a task sent.

    Attributes:
        messages: acknowledged ones.
        receipts: its file of receipts, not yet under its final name; "" for none.
    """

    messages: int
    receipts: str = ""


@dataclass(slots=True)
class _Lane:
    """Messages that go one after the other; ``queue`` None: any."""

    queue: MessageQueue | None
    messages: list[Message] = field(default_factory=list)
    single: bool = False


def live_columns(names: Sequence[str], options: LiveWriteOptions) -> dict[str, int]:
    """Which column of a frame is what.

    Raises:
        OptionError: an unknown column, one that only a store can have, or none that holds bodies
            or topics.
    """
    found = write_columns(names, live=True)
    for name in _RAW:
        if name in found:
            raise OptionError(f"column {name}: a broker makes its records itself; give value")
    if "topic" not in found and not options.topic:
        raise OptionError("a sink needs the column topic or the option topic")
    if "value" not in found:
        raise OptionError("a sink needs the column value (or body)")
    return found


def send_rows(batches: Iterator[pa.RecordBatch], options: LiveWriteOptions, name: str) -> Sent:
    """Sends a task's rows; returns when all of them are acknowledged.

    Args:
        batches: the rows.
        options: where to and how.
        name: what the file of receipts is called.

    Raises:
        RecordError: a row that cannot be a message.
        OptionError: a column that is not known, a queue that does not exist.
        MQBrokerError, RemotingError: a batch was not acknowledged; some rows may have been sent.
    """
    settle_worker()
    sender: LiveSender | None = None
    try:
        for batch in batches:
            if sender is None:
                sender = LiveSender(batch.schema.names, options, name)
            sender.send(batch)
    except BaseException:
        if sender is not None:
            sender.close(keep=False)
        raise
    return sender.close() if sender is not None else Sent(0)


def send_messages(
    batch: pa.RecordBatch, options: LiveWriteOptions, check: Callable[[], None] | None = None
) -> list[SendResult]:
    """Sends a few rows one by one; gives what the brokers say, in the rows' order.

    Args:
        batch: the rows.
        options: where to and how.
        check: called before each is sent; what it raises ends the sending.

    Raises:
        See `send_rows`.
    """
    sender = LiveSender(batch.schema.names, options, "")
    try:
        return sender.send_each(batch, check)
    finally:
        sender.close()


def sent_before(
    options: LiveWriteOptions, places: Sequence[tuple[str, str]], name: str
) -> set[str]:
    """The values that a property has among the messages of unique keys, by the brokers' index.

    It waits until the topics show what their brokers have of them, and with that the index.

    Args:
        options: where to look.
        places: topics and unique keys.
        name: the property.

    Raises:
        MQClientError: a topic does not within the delivery time-out.
    """
    config = options.connection.client_config()
    found: set[str] = set()

    async def look() -> None:
        room = asyncio.Semaphore(SENDS_MAX)
        async with Admin(config=config) as admin:
            # One that is away would not be asked, and what it has would be sent again.
            patience = Patience(options.connection.delivery_timeout_ms, PAUSE_S, PAUSE_MAX_S)
            await wait_for_brokers(admin, options.connection, patience)
            shown = Shown(admin, limit_s=options.connection.delivery_timeout_ms / 1000)
            for topic in dict.fromkeys(topic for topic, _ in places):
                await shown.wait(topic)

            async def one(topic: str, key: str) -> None:
                async with room:
                    try:
                        messages = await admin.query_message_by_unique_key(topic, key)
                    except MQBrokerError as error:
                        if error.response_code in (
                            ResponseCode.QUERY_NOT_FOUND,
                            ResponseCode.TOPIC_NOT_EXIST,
                        ):
                            return
                        raise
                    found.update(
                        each.properties[name] for each in messages if name in each.properties
                    )

            await asyncio.gather(*(one(*place) for place in dict.fromkeys(places)))

    LOOP.call(look)
    return found


class LiveSender:
    """Sends the rows of one task. Lifecycle: ``send`` each batch, then ``close``."""

    def __init__(self, names: Sequence[str], options: LiveWriteOptions, name: str) -> None:
        self._columns = live_columns(names, options)
        self._options = options
        self._count = 0
        self._queues: dict[str, list[MessageQueue]] = {}
        self._room = asyncio.Semaphore(SENDS_MAX)
        self._receipts: pq.ParquetWriter | None = None
        self._path = ""
        if options.receipts:
            os.makedirs(options.receipts, exist_ok=True)
            self._path = f"{options.receipts}/{name}-{uuid.uuid4().hex}.parquet{_UNFINISHED}"
        packs = options.compression is not None
        config = options.connection.client_config()

        async def start() -> tuple[Producer, ClientInstance]:
            if options.connection.brokers:
                async with Admin(config=config) as admin:
                    await wait_for_brokers(admin, options.connection, self._patience())
            producer = Producer(
                options.group,
                config=config,
                default_topic_queue_nums=options.queues,
                send_msg_timeout_ms=options.connection.timeout_ms,
                compression=options.compression or Compression.ZLIB,
                compress_msg_body_over_bytes=options.compress_over if packs else 1 << 31,
                max_message_size=options.max_message_size,
            )
            await producer.start()
            return producer, await ClientInstance.acquire(config)  # the producer's own

        self._producer, self._instance = LOOP.call(start)

    def send(self, batch: pa.RecordBatch) -> None:
        """Sends rows and waits for the acknowledgements."""
        if batch.num_rows == 0:
            return
        rows = MessageRows(
            batch, self._columns, self._options.topic, self._options.max_message_size
        )
        self._columns_known(rows)
        lanes = self._lanes(rows)
        results = LOOP.call(lambda: self._send_lanes(lanes))
        self._count += batch.num_rows
        if self._path:
            self._note(results)

    def send_each(
        self, batch: pa.RecordBatch, check: Callable[[], None] | None = None
    ) -> list[SendResult]:
        """Sends rows one by one, several at once; gives the answers in the rows' order."""
        rows = MessageRows(
            batch, self._columns, self._options.topic, self._options.max_message_size
        )
        self._columns_known(rows)
        messages = [rows.message(number) for number in range(rows.count)]
        queues = [self._queue_of(rows, number, each) for number, each in enumerate(messages)]

        async def one(message: Message, queue: MessageQueue | None) -> SendResult:
            async with self._room:
                if check is not None:
                    check()
                return await self._send([message], queue)

        async def send() -> list[SendResult]:
            return list(await asyncio.gather(*map(one, messages, queues)))

        return LOOP.call(send)

    def close(self, *, keep: bool = True) -> Sent:
        """Ends the connections; without ``keep`` the receipts are deleted."""
        LOOP.call(self._producer.shutdown)
        LOOP.call(self._instance.release)
        if self._receipts is not None:
            self._receipts.close()
            if not keep:
                os.unlink(self._path)
        return Sent(self._count, self._path if self._receipts is not None else "")

    # Where to

    def _columns_known(self, rows: MessageRows) -> None:
        """Asks for the queues of topics that are new."""
        for topic in dict.fromkeys(rows.topics):
            if topic not in self._queues:
                self._queues[topic] = LOOP.call(lambda t=topic: self._ask_queues(t))  # type: ignore[misc]

    async def _ask_queues(self, topic: str) -> list[MessageQueue]:
        patience = self._patience()
        while True:
            try:
                return await self._producer.fetch_publish_message_queues(topic)
            except (RemotingError, MQClientError) as error:
                if not may_come_back(error) or not await patience.wait():
                    raise

    def _patience(self) -> Patience:
        limit_ms = self._options.connection.delivery_timeout_ms
        return Patience(limit_ms, PAUSE_S, PAUSE_MAX_S)

    def _lanes(self, rows: MessageRows) -> list[_Lane]:
        fixed: dict[MessageQueue, _Lane] = {}
        free: dict[str, list[Message]] = {}
        lanes: list[_Lane] = []
        for number in range(rows.count):
            message = rows.message(number)
            queue = self._queue_of(rows, number, message)
            if rows.is_delayed(number):
                lanes.append(_Lane(queue, [message], single=True))
            elif queue is None:
                free.setdefault(message.topic, []).append(message)
            else:
                fixed.setdefault(queue, _Lane(queue)).messages.append(message)
        for topic, messages in free.items():
            share = -(-len(messages) // len(self._queues[topic]))
            step = max(share, SPREAD_MESSAGES_MIN)
            lanes += [_Lane(None, messages[at : at + step]) for at in range(0, len(messages), step)]
        return [*fixed.values(), *lanes]

    def _queue_of(self, rows: MessageRows, number: int, message: Message) -> MessageQueue | None:
        partition = rows.partitions[number] if rows.partitions is not None else None
        queues = self._queues[message.topic]
        if partition is None:
            key = message.properties.get(p.SHARDING_KEY)
            return select_by_hash(queues, message, key) if key else None
        broker = rows.brokers[number] if rows.brokers is not None else None
        names = {queue.broker_name for queue in queues}
        if broker is None:
            if len(names) > 1:
                raise OptionError(
                    f"row {number}: partition {partition} of topic {message.topic}: brokers "
                    f"{', '.join(sorted(names))} have one each; the column broker says which"
                )
            broker = next(iter(names))
        wanted = MessageQueue(topic=message.topic, broker_name=broker, queue_id=partition)
        if wanted not in queues:
            ids = sorted(q.queue_id for q in queues if q.broker_name == broker)
            raise OptionError(
                f"row {number}: topic {message.topic} has no queue {partition} on broker "
                f"{broker!r}; queues there: {ids}, brokers: {', '.join(sorted(names))}"
            )
        return wanted

    # Sending

    async def _send_lanes(self, lanes: list[_Lane]) -> list[tuple[list[Message], SendResult, bool]]:
        results: list[tuple[list[Message], SendResult, bool]] = []

        async def run(lane: _Lane) -> None:
            async with self._room:
                for messages in self._chunks(lane):
                    result = await self._send(messages, lane.queue)
                    results.append((messages, result, lane.single))

        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(run(lane))
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__
        return results

    def _chunks(self, lane: _Lane) -> Iterator[list[Message]]:
        """What travels together: batches, and alone what is compressed or no batch can have."""
        options = self._options
        chunk: list[Message] = []
        size = 0
        for message in lane.messages:
            alone = (
                (options.compression is not None and len(message.body) > options.compress_over)
                or message.topic.startswith(RETRY_PREFIX)
                or len(message.topic) > _BATCH_TOPIC_MAX
            )
            length = len(message.body) + 256 + 64 * len(message.properties)
            full = size + length > options.batch_bytes or len(chunk) >= BATCH_MESSAGES_MAX
            if chunk and (alone or full):
                yield chunk
                chunk, size = [], 0
            if alone:
                yield [message]
                continue
            chunk.append(message)
            size += length
        if chunk:
            yield chunk

    async def _send(self, messages: list[Message], queue: MessageQueue | None) -> SendResult:
        patience = self._patience()
        while True:
            try:
                result = await self._producer.send(
                    messages[0] if len(messages) == 1 else messages, mq=queue
                )
            except (RemotingError, MQClientError) as error:
                if not may_come_back(error):
                    raise
                failure: Exception = error
            except MQBrokerError as error:
                if error.response_code not in _RETRIED:
                    raise
                failure = error
            else:
                if result.status is SendStatus.SEND_OK or self._options.accept_stored:
                    return result
                failure = MQClientError(
                    f"{len(messages)} messages to {messages[0].topic} were stored, but "
                    f"{result.status.name}; rocketmq.send.status=stored would accept that"
                )
            if not await patience.wait():
                raise failure
            with contextlib.suppress(RemotingError):
                # The queue's broker may have moved.
                await self._instance.update_route(messages[0].topic)

    def _note(self, results: list[tuple[list[Message], SendResult, bool]]) -> None:
        columns: dict[str, list[Any]] = {name: [] for name in RECEIPTS.names}
        for messages, result, delayed in results:
            places = result.offset_msg_id.split(",")
            for number, message in enumerate(messages):
                columns["topic"].append(message.topic)
                columns["broker"].append(result.message_queue.broker_name)
                columns["partition"].append(result.message_queue.queue_id)
                columns["offset"].append(None if delayed else result.queue_offset + number)
                columns["key"].append(message.properties.get(p.KEYS))
                columns["uniqueKey"].append(message.properties.get(p.UNIQ_KEY))
                columns["offsetMsgId"].append(places[number] if number < len(places) else None)
        if self._receipts is None:
            self._receipts = pq.ParquetWriter(self._path, RECEIPTS, compression="zstd")
        self._receipts.write_table(pa.table(columns, schema=RECEIPTS))


class MessageRows:
    """The rows of an Arrow batch as messages."""

    def __init__(
        self, batch: pa.RecordBatch, columns: dict[str, int], topic: str, body_max: int
    ) -> None:
        self._batch = batch
        self._columns = columns
        self._body_max = body_max
        self.count: int = batch.num_rows
        topics = None if topic else self._list("topic", pa.string())
        self.topics: list[str] = [topic] * self.count if topics is None else topics
        for number, each in enumerate(self.topics):
            if each is None:
                raise RecordError(f"row {number}: topic is null")
        self.bodies = self._list("value", pa.binary())
        self.partitions = self._list("partition", pa.int64())
        self.brokers = self._list("broker", pa.string())
        self.flags = self._list("flag", pa.int32())
        self.levels = self._list("delayLevel", pa.int64())
        self.times = self._times("deliverTime")
        self._named = [
            (name, values)
            for name, column in _NAMED
            if (values := self._list(column, pa.string())) is not None
        ]
        self._maps = self._list("properties", None)

    def _list(self, name: str, kind: pa.DataType | None) -> Any:
        number = self._columns.get(name)
        if number is None:
            return None
        column = self._batch.column(number)
        try:
            return (column if kind is None else column.cast(kind)).to_pylist()
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise RecordError(f"column {name}: {error}") from None

    def _times(self, name: str) -> Any:
        number = self._columns.get(name)
        if number is None:
            return None
        column = self._batch.column(number)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        return column.cast(pa.int64()).to_pylist()

    def is_delayed(self, number: int) -> bool:
        """Whether the row is to be delivered later."""
        return bool(
            (self.levels is not None and (self.levels[number] or 0) > 0)
            or (self.times is not None and self.times[number] is not None)
        )

    def message(self, number: int) -> Message:
        """One row.

        Raises:
            RecordError: an empty or too long body, or text that properties cannot hold.
        """
        body = self.bodies[number]
        if not body:
            raise RecordError(f"row {number}: the body is empty, brokers take one byte at least")
        if len(body) > self._body_max:
            raise RecordError(
                f"row {number}: a body of {len(body)} bytes, "
                f"allowed are {self._body_max} (maxMessageSize)"
            )
        message = Message(self.topics[number], body)
        properties = message.properties
        if self._maps is not None and self._maps[number]:
            for entry in self._maps[number]:
                name, value = entry.values() if isinstance(entry, dict) else entry
                if name and value:
                    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                    properties[name] = text
        for name, values in self._named:
            if values[number]:
                properties[name] = values[number]
        if self.flags is not None and self.flags[number]:
            message.flag = self.flags[number]
        if self.levels is not None and (self.levels[number] or 0) > 0:
            properties[p.DELAY] = str(self.levels[number])
        elif self.times is not None and self.times[number] is not None:
            properties[p.TIMER_DELIVER_MS] = str(self.times[number])
        for name, text in properties.items():
            if "\x01" in name or "\x02" in name or "\x01" in text or "\x02" in text:
                raise RecordError(
                    f"row {number}: property {name!r} contains a separator (U+0001 or U+0002)"
                )
        return message


def publish_receipts(sent: Sequence[Sent]) -> None:
    """Gives the files of receipts their final names."""
    for each in sent:
        if each.receipts and os.path.exists(each.receipts):
            os.replace(each.receipts, each.receipts.removesuffix(_UNFINISHED))


def drop_receipts(sent: Sequence[Sent]) -> None:
    """Deletes the receipts of what Spark will send again."""
    for each in sent:
        if each.receipts and os.path.exists(each.receipts):
            os.unlink(each.receipts)
