"""``df.write.format("rocketmq")`` and ``writeStream``: rows become part of a store.

Tasks stage (`oberth.spark.encode`, `load_plan.StageWriter`), the commit on the driver loads
(`oberth.spark.load`). Nothing but commit messages connects the two: Spark makes a new writer object
for each of them. A batch of a stream is known to the store's ledger by its query and number, which
tasks find in their context.
"""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from oberth.errors import OptionError
from oberth.spark.runtime import settle_worker
from oberth.spark.write_options import LiveWriteOptions, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from oberth.spark.live_sink import Sent
    from oberth.spark.load_plan import StagedPart

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task staged, and for which query of a stream ("" for a batch)."""

    part: StagedPart
    work: str
    query_id: str = ""


def stage(batches: Iterator[pa.RecordBatch], options: WriteOptions, work: str) -> StagedPart:
    """Writes a task's rows as records to a staged file of a job.

    Raises:
        RecordError: a row that cannot be a message.
        OptionError: a column that is not known.
    """
    from oberth.spark.encode import RecordEncoder
    from oberth.spark.load_plan import StageWriter

    settle_worker()
    writer = StageWriter(f"{work}/staged/{uuid.uuid4().hex}.log")
    encoder: RecordEncoder | None = None
    keys = UniqueKeys() if options.unique_keys else None
    try:
        for batch in batches:
            if encoder is None:
                encoder = RecordEncoder(batch.schema.names, options, keys)
            for block in encoder.encode(batch, writer.size):
                writer.add(block.data, len(block.sizes), block.counts, block.last_store_timestamp)
    except BaseException:
        writer.discard()
        raise
    return writer.finish()


class UniqueKeys:
    """Makes UNIQ_KEYs that no other task makes: the class hash is drawn by lot."""

    def __init__(self) -> None:
        self._count = 0
        self._next_prefix()

    def _next_prefix(self) -> None:
        from oberth.formats.message_id import unique_id_prefix

        try:
            address = socket.inet_aton(socket.gethostbyname(socket.gethostname()))
        except OSError:
            address = b"\x7f\0\0\1"
        lot = int.from_bytes(os.urandom(8), "big")
        prefix = unique_id_prefix(address, os.getpid(), lot >> 32)
        self._prefix = prefix + f"{lot & 0xFFFFFFFF:08X}"

    def __call__(self, count: int) -> list[bytes]:
        """So many new keys."""
        made = []
        for _ in range(count):
            if self._count == 1 << 16:
                self._count = 0
                self._next_prefix()
            made.append(f"{self._prefix}{self._count:04X}".encode())
            self._count += 1
        return made


_TEXTS: Final = frozenset(
    ("topic", "value", "body", "key", "tags", "uniqueKey", "shardingKey", "storedBody",
     "storedProperties")
)  # fmt: skip


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises for columns that a sink does not know, before anything is run.

    Raises:
        OptionError: an unknown column, none that holds bodies or topics, or a number where text is.
    """
    from oberth.spark.encode import RecordEncoder

    RecordEncoder(schema.fieldNames(), options)
    check_texts(schema)


def check_texts(schema: StructType) -> None:
    """Raises for columns of messages' texts and bytes that hold something else.

    Raises:
        OptionError: one is neither text nor bytes.
    """
    from pyspark.sql.types import BinaryType, CharType, NullType, StringType, VarcharType

    for field in schema.fields:
        kind = field.dataType
        if field.name in _TEXTS and not isinstance(
            kind, BinaryType | CharType | NullType | StringType | VarcharType
        ):
            raise OptionError(
                f"column {field.name} is {kind.simpleString()}; wanted is text or bytes: "
                f"cast({field.name} as string)"
            )


class RocketMQWriter(DataSourceArrowWriter):
    """Writes a frame in one go, all of it or nothing."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        check_columns(schema, options)
        from oberth.spark.load_plan import work_directory

        self.options = options
        self.overwrite = overwrite
        self.work = work_directory(options.path, uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stages one task's rows."""
        return StagedMessage(stage(iterator, self.options, self.work), self.work)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Makes all of them part of the store."""
        from oberth.spark.load import StoreLoader

        StoreLoader(self.options).commit(_parts(messages), self.work, overwrite=self.overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes what was staged; the store was not touched."""
        shutil.rmtree(self.work, ignore_errors=True)


@dataclass
class SentMessage(WriterCommitMessage):
    """What a task sent to live topics."""

    sent: Sent


class RocketMQLiveWriter(DataSourceArrowWriter):
    """Sends a frame to live topics, at least once."""

    def __init__(self, options: LiveWriteOptions, schema: StructType, overwrite: bool) -> None:
        from oberth.spark.live_sink import live_columns

        if overwrite:
            raise OptionError("mode overwrite: topics are only appended to")
        live_columns(schema.fieldNames(), options)
        check_texts(schema)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessage:
        """Sends one task's rows."""
        from oberth.spark.live_sink import send_rows

        return SentMessage(send_rows(iterator, self.options, "part"))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is sent: receipts get their names."""
        from oberth.spark.live_sink import publish_receipts

        publish_receipts([m.sent for m in messages if isinstance(m, SentMessage)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays; its receipts are deleted."""
        from oberth.spark.live_sink import drop_receipts

        drop_receipts([m.sent for m in messages if isinstance(m, SentMessage)])


class RocketMQLiveStreamWriter(DataSourceStreamArrowWriter):
    """Sends the batches of a stream to live topics; one that is run again is sent again."""

    def __init__(self, options: LiveWriteOptions, schema: StructType) -> None:
        from oberth.spark.live_sink import live_columns

        live_columns(schema.fieldNames(), options)
        check_texts(schema)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessage:
        """Sends one task's rows."""
        from pyspark import TaskContext

        from oberth.spark.live_sink import send_rows

        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        return SentMessage(send_rows(iterator, self.options, f"batch-{batch or 'unknown'}"))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch is sent: receipts get their names."""
        from oberth.spark.live_sink import publish_receipts

        publish_receipts([m.sent for m in messages if isinstance(m, SentMessage)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays; its receipts are deleted."""
        from oberth.spark.live_sink import drop_receipts

        drop_receipts([m.sent for m in messages if isinstance(m, SentMessage)])


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each of them once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.load_id:
            raise OptionError("loadId is for batch writes; a stream's batches have their own ids")
        check_columns(schema, options)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stages one task's rows."""
        from pyspark import TaskContext

        from oberth.spark.load_plan import work_directory

        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if not query_id:
            raise OptionError("a stream's task was not told the id of its query")
        work = work_directory(self.options.path, query_id)
        return StagedMessage(stage(iterator, self.options, work), work, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Appends a batch, unless the store's ledger has it."""
        from oberth.spark.load import StoreLoader

        staged = [m for m in messages if isinstance(m, StagedMessage)]
        if staged:
            StoreLoader(self.options).commit(
                [m.part for m in staged], staged[0].work, batch=(staged[0].query_id, batchId)
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Removes what was staged; the store was not touched."""
        for message in messages:
            if isinstance(message, StagedMessage):
                shutil.rmtree(message.work, ignore_errors=True)


def _parts(messages: Sequence[Any]) -> list[StagedPart]:
    return [m.part for m in messages if isinstance(m, StagedMessage)]
