"""The options of a sink: of one that writes a store, and of one that sends to live brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from oberth.errors import OptionError
from oberth.formats.compression import Compression
from oberth.spark.connection import Connection
from oberth.spark.given_options import (
    CONNECTION,
    DELIVERY_TIMEOUT,
    Given,
    parse_connection,
    parse_paths,
)

DEFAULT_SEGMENT_SIZE: Final = 1 << 30
DEFAULT_QUEUES: Final = 8
DEFAULT_MAX_MESSAGE_SIZE: Final = 4 << 20
DEFAULT_HOST: Final = "127.0.0.1:10911"
DEFAULT_PRODUCER_GROUP: Final = "oberth-spark"
DEFAULT_SEND_BATCH_BYTES: Final = 256 << 10
QUEUES_MAX: Final = 65_536

_WRITE: Final[Mapping[str, tuple[str, ...]]] = {
    "path": ("paths",),
    **CONNECTION,
    "topic": (),
    "queues": ("defaultTopicQueueNums",),
    "storeHost": (),
    "bornHost": (),
    "uniqueKeys": (),
    "compression": (),
    "compressOver": ("compressMsgBodyOverHowmuch",),
    "maxMessageSize": (),
    "mappedFileSizeCommitLog": (),
    "mappedFileSizeConsumeQueue": (),
    "maxHashSlotNum": (),
    "maxIndexNum": (),
    "messageIndexEnable": (),
    "messageDelayLevel": (),
    "indexTags": (),
    "loadId": (),
    "rocketmq.producer.group": (),
    "rocketmq.send.batch.bytes": (),
    "rocketmq.send.status": (),
    DELIVERY_TIMEOUT: (),
    "receipts": (),
    # Spark's own, which it hands on to a stream's sink.
    "checkpointLocation": (),
    "queryName": (),
}
WRITE_OPTIONS: Final = tuple(_WRITE)
_WRITE_LIVE: Final = (
    *(n for n in CONNECTION if n != "rocketmq.namesrv.addr"),
    "rocketmq.producer.group",
    "rocketmq.send.batch.bytes",
    "rocketmq.send.status",
    DELIVERY_TIMEOUT,
    "receipts",
)
_WRITE_FILES: Final = (
    "path", "storeHost", "bornHost", "uniqueKeys", "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum", "messageIndexEnable",
    "messageDelayLevel", "indexTags", "loadId",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Everything the sink is told. None is taken from the store's files, or RocketMQ's default.

    Attributes:
        path: the store's directory.
        topic: where every row goes, "" for the column topic.
        queues: queues of a topic that rows without a partition are spread over.
        store_host, born_host: ``address:port`` where rows say none.
        unique_keys: give rows without one a UNIQ_KEY.
        index_tags: whether the Index has tags too; None: as the store has it, a new one does.
        compression: of bodies longer than ``compress_over``: "", zlib, lz4 or zstd.
        load_id: a load with an id that the store knows already is not written again.
    """

    path: str
    topic: str
    queues: int
    store_host: str
    born_host: str
    unique_keys: bool
    compression: str
    compress_over: int
    max_message_size: int
    segment_size: int | None
    queue_file_size: int | None
    index_slots: int | None
    index_entries: int | None
    index_enabled: bool
    index_tags: bool | None
    delay_levels: str
    load_id: str


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Checks and understands the options of a writer.

    Raises:
        OptionError: an unknown option, or a value out of range.
    """
    options = Given(given, _WRITE)
    wrong = options.has(*_WRITE_LIVE)
    if wrong:
        raise OptionError(f"{wrong[0]} goes with live brokers, not with path")
    paths = parse_paths(options.text("path"))
    if len(paths) != 1:
        raise OptionError(f"path: a sink writes one store, found {len(paths)}")
    if "://" in paths[0] and not paths[0].startswith("file://"):
        raise OptionError(f"path: {paths[0]!r}: a store is written to a file system, not to a URL")
    compress_over = options.size("compressOver", 4096, 0)
    most = options.size("maxMessageSize", DEFAULT_MAX_MESSAGE_SIZE, 10, 64 << 20)
    assert compress_over is not None
    assert most is not None
    return WriteOptions(
        path=paths[0].removeprefix("file://"),
        topic=options.text("topic"),
        queues=options.number("queues", high=QUEUES_MAX) or DEFAULT_QUEUES,
        store_host=options.text("storeHost", DEFAULT_HOST),
        born_host=options.text("bornHost", DEFAULT_HOST),
        unique_keys=options.flag("uniqueKeys", False),
        compression=options.choice("compression", ("none", "zlib", "lz4", "zstd"), "none"),
        compress_over=compress_over,
        max_message_size=most,
        segment_size=options.size("mappedFileSizeCommitLog", None, 1 << 10, (1 << 31) - 1),
        queue_file_size=options.size("mappedFileSizeConsumeQueue", None, 20, 1 << 31),
        index_slots=options.number("maxHashSlotNum", high=(1 << 31) - 1),
        index_entries=options.number("maxIndexNum", 2, (1 << 31) - 1),
        index_enabled=options.flag("messageIndexEnable", True),
        index_tags=options.flag("indexTags", True) if options.has("indexTags") else None,
        delay_levels=options.text("messageDelayLevel"),
        load_id=options.text("loadId"),
    )


@dataclass(frozen=True, slots=True)
class LiveWriteOptions:
    """Everything the sink is told that sends to brokers.

    Attributes:
        connection: how to reach them.
        topic: where every row goes, "" for the column topic.
        group: the producer group.
        queues: of topics that a send creates.
        batch_bytes: of bodies and properties that travel together.
        compression: of bodies longer than ``compress_over``; None: none.
        max_message_size: of a body.
        accept_stored: whether a message that was stored, but not as safely as the broker is told
            to, counts as sent.
        receipts: a directory for files of receipts, or "".
    """

    connection: Connection
    topic: str
    group: str
    queues: int
    batch_bytes: int
    compression: Compression | None
    compress_over: int
    max_message_size: int
    accept_stored: bool
    receipts: str


def writes_live(given: Mapping[str, str]) -> bool:
    """Whether a writer's options name brokers.

    Raises:
        OptionError: an unknown option.
    """
    return bool(Given(given, _WRITE).has("rocketmq.namesrv.addr"))


def parse_live_write_options(given: Mapping[str, str]) -> LiveWriteOptions:
    """Checks and understands the options of a writer to live topics.

    Raises:
        OptionError: an unknown option, one that only stores have, or a value out of range.
    """
    options = Given(given, _WRITE)
    wrong = options.has(*_WRITE_FILES)
    if wrong:
        raise OptionError(f"{wrong[0]} goes with a store, not with rocketmq.namesrv.addr")
    compress_over = options.size("compressOver", 4096, 0)
    most = options.size("maxMessageSize", DEFAULT_MAX_MESSAGE_SIZE, 10, 64 << 20)
    batch = options.size("rocketmq.send.batch.bytes", DEFAULT_SEND_BATCH_BYTES, 1, 64 << 20)
    assert compress_over is not None
    assert most is not None
    assert batch is not None
    compression = options.choice("compression", ("none", "zlib", "lz4", "zstd"), "none")
    return LiveWriteOptions(
        connection=parse_connection(options),
        topic=options.text("topic"),
        group=options.text("rocketmq.producer.group", DEFAULT_PRODUCER_GROUP),
        queues=options.number("queues", high=QUEUES_MAX) or DEFAULT_QUEUES,
        batch_bytes=min(batch, most),
        compression=None if compression == "none" else Compression[compression.upper()],
        compress_over=compress_over,
        max_message_size=most,
        accept_stored=options.choice("rocketmq.send.status", ("ok", "stored"), "ok") == "stored",
        receipts=options.text("receipts"),
    )
