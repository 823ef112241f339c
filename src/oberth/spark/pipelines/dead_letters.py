"""Dead letters as a table, and those that somebody picks sent on their way again.

They come from a store or from live brokers, and go into a store or to live topics.

Columns of `dead_letters`: those of the source, and

    consumerGroup     string   whose retries ran out
    originTopic       string   where the message was first: DLQ_ORIGIN_TOPIC, RETRY_TOPIC
    originMessageId   string   DLQ_ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID
    timesRetried      int      how often it was tried again
    reason            string   the property DLQ_REASON, where an application sets it

RocketMQ: SendMessageProcessor (consumerSendMsgBack).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from oberth.client.dead_letters import DROPPED, REDRIVEN_FROM, Receipt
from oberth.errors import OptionError, StoreLockedError
from oberth.formats.message_id import offset_message_id
from oberth.formats.names import DLQ_PREFIX
from oberth.store.offline.layout import local_directory
from oberth.store.offline.reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_KEYS_PUSHED_MAX: Final = 1_000
"""Unique keys that are asked for by name; of more letters all messages of their topics are read."""


def dead_letters(
    session: SparkSession, path: str, *, group: str = "", options: Mapping[str, str] | None = None
) -> DataFrame:
    """The dead letters of a store, or of live brokers.

    Args:
        session: where the frame is made.
        path: the store; "" where options name live brokers.
        group: only of this consumer group; "" for all.
        options: further options of ``format("rocketmq")``.
    """
    from pyspark.sql import functions as f

    chosen = {"subscribe": f"{DLQ_PREFIX}{group}"} if group else {
        "subscribePattern": f"{DLQ_PREFIX}.*"
    }  # fmt: skip
    frame = (
        session.read.format("rocketmq")
        .options(**{**(options or {}), **chosen})
        .option("columns", "*")
        .load(path or None)
    )
    properties = f.col("properties")
    origin = f.coalesce(properties["DLQ_ORIGIN_TOPIC"], properties["RETRY_TOPIC"])
    origin_id = f.coalesce(properties["DLQ_ORIGIN_MESSAGE_ID"], properties["ORIGIN_MESSAGE_ID"])
    return frame.select(
        f.expr(f"substring(topic, {len(DLQ_PREFIX) + 1})").alias("consumerGroup"),
        origin.alias("originTopic"),
        origin_id.alias("originMessageId"),
        f.col("reconsumeTimes").alias("timesRetried"),
        properties["DLQ_REASON"].alias("reason"),
        *frame.columns,
    )


def redrive(
    session: SparkSession,
    path: str,
    into: str,
    *,
    where: str = "true",
    group: str = "",
    options: Mapping[str, str] | None = None,
    write_options: Mapping[str, str] | None = None,
) -> list[Receipt]:
    """Writes dead letters to their origin topics again, in a store that no process has open.

    A letter that its origin topic has there with this REDRIVEN_FROM is not written again, and the
    store's ledger knows a call with the same letters, even when their messages are deleted. Keys,
    tags, unique key and the application's properties stay; REDRIVEN_FROM names the dead letter.

    Args:
        session: where the dead letters are read.
        path: the store that has them.
        into: the store that gets them; may be the same.
        where: which, in SQL over the columns of `dead_letters`.
        group: only of this consumer group; "" for all.
        options: of ``format("rocketmq")`` for reading.
        write_options: of ``format("rocketmq")`` for writing.

    Raises:
        OptionError: an option that is unknown or has a wrong value.
        StoreLockedError: a process has ``into`` open, or another redrive writes there.
    """
    into = local_directory(into, "into")
    chosen = (
        dead_letters(session, path, group=group, options=options)
        .where(where)
        .orderBy("topic", "partition", "offset")
    )
    rows = chosen.toArrow().to_pylist()
    receipts = {
        row["offsetMsgId"]: Receipt(
            row["offsetMsgId"], row["originTopic"] or "", _kept_because(row)
        )
        for row in rows
    }
    sent = [row for row in rows if not _kept_because(row)]
    if sent:
        with _alone(into):
            _write(session, sent, into, dict(write_options or {}), receipts)
    return list(receipts.values())


@contextmanager
def _alone(into: str) -> Iterator[None]:
    """Keeps other redrives away from a store, from the look at what it has to the commit.

    Raises:
        StoreLockedError: one writes there already.
    """
    import fcntl

    from oberth.spark.load_plan import work_directory

    path = work_directory(into, "redrive") + ".lock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(f"{into}: another redrive is writing here") from None
        if not os.fstat(file.fileno()).st_nlink:  # its holder removed it meanwhile
            raise StoreLockedError(f"{into}: another redrive was writing here")
        try:
            yield
        finally:
            os.remove(path)


def redrive_live(
    session: SparkSession,
    path: str,
    connection: Mapping[str, str],
    *,
    where: str = "true",
    group: str = "",
    options: Mapping[str, str] | None = None,
) -> list[Receipt]:
    """Sends dead letters to their origin topics again, at live brokers.

    A letter that its origin topic has with this REDRIVEN_FROM is not sent again; for letters
    without a unique key there is no such memory. Calls at the same time that have letters of the
    same group keep each other out. Otherwise as `redrive`.

    Args:
        session: where the dead letters are read.
        path: the store that has them; "" for the brokers that get them.
        connection: options of ``format("rocketmq")`` that say how to reach the brokers.
        where: which, in SQL over the columns of `dead_letters`.
        group: only of this consumer group; "" for all.
        options: of ``format("rocketmq")`` for reading.

    Raises:
        OptionError: an option that is unknown or has a wrong value.
        RemotingError, MQBrokerError: a letter could not be sent; those before it were.
        MQClientError: an origin topic does not show what its brokers have, as with
            ``dispatch=spark`` while no query runs; nothing was sent.
        RedriveHeldError: another redrive sends letters of one of the groups.
    """
    from oberth.spark.live_redrive import claimed
    from oberth.spark.live_sink import send_messages, sent_before
    from oberth.spark.write_options import parse_live_write_options

    target = parse_live_write_options(connection)
    source = {**(options or {}), **({} if path else connection)}
    chosen = (
        dead_letters(session, path, group=group, options=source)
        .where(where)
        .orderBy("topic", "partition", "offset")
    )
    receipts = []
    rows = chosen.toArrow().to_pylist()
    places = [
        (row["originTopic"], row["uniqueKey"])
        for row in rows
        if row["originTopic"] and row["uniqueKey"]
    ]
    with claimed(target, {row["topic"] for row in rows}) as check:
        known = sent_before(target, places, REDRIVEN_FROM)
        sent = [r for r in rows if not _kept_because(r) and r["offsetMsgId"] not in known]
        answers = send_messages(new_messages(sent), target, check) if sent else []
    results = dict(zip([row["offsetMsgId"] for row in sent], answers, strict=True))
    for row in rows:
        letter, topic = row["offsetMsgId"], row["originTopic"] or ""
        result = results.get(letter)
        if result is not None:
            receipts.append(
                Receipt(
                    letter,
                    topic,
                    "redriven",
                    result.message_queue.queue_id,
                    result.queue_offset,
                    result.offset_msg_id,
                )
            )
        else:
            receipts.append(Receipt(letter, topic, _kept_because(row) or "already"))
    return receipts


def _kept_because(row: dict[str, Any]) -> str:
    """Why a dead letter cannot be sent again, "" if it can."""
    if not row["originTopic"]:
        return "no origin topic"
    return "unreadable body" if row["bodyError"] is not None else ""


def _write(
    session: SparkSession,
    rows: list[dict[str, Any]],
    into: str,
    write_options: dict[str, str],
    receipts: dict[str, Receipt],
) -> None:
    from oberth.spark.load import StoreLoader
    from oberth.spark.load_plan import work_directory
    from oberth.spark.publish import is_known, read_ledger
    from oberth.spark.sink import stage
    from oberth.spark.write_options import parse_write_options

    # Two stores that were built alike have letters of the same ids.
    digests = [hashlib.sha256(row["value"]).hexdigest() for row in rows]
    named = [(row["offsetMsgId"], digest) for row, digest in zip(rows, digests, strict=True)]
    every = json.dumps([[*name, row["uniqueKey"]] for name, row in zip(named, rows, strict=True)])
    ids = hashlib.sha256(every.encode()).hexdigest()[:32]
    if "loadId" in write_options:
        raise OptionError("loadId: a redrive is known by its dead letters")
    options = parse_write_options({**write_options, "path": into, "loadId": f"redrive-{ids}"})
    loader = StoreLoader(options)
    loader.finish_exchange()
    missing = []
    if not is_known(read_ledger(into), None, options.load_id):
        present = _present(session, rows, into)
        for name, row in zip(named, rows, strict=True):
            keys = present.get(name)
            if keys is None or (row["uniqueKey"] is not None and row["uniqueKey"] not in keys):
                missing.append(row)
    for row in rows:
        known = receipts[row["offsetMsgId"]]
        receipts[row["offsetMsgId"]] = known._replace(status="already")
    if not missing:
        return
    work = work_directory(into, f"redrive-{ids}")
    shutil.rmtree(work, ignore_errors=True)
    part = stage(iter([new_messages(missing)]), options, work)
    report = loader.commit([part], work)
    with StoreReader(into) as reader:
        for message in reader.messages(report.log_start, report.log_end):
            letter = message.properties.get(REDRIVEN_FROM)
            if letter in receipts:
                receipts[letter] = Receipt(
                    letter,
                    message.topic,
                    "redriven",
                    message.queue_id,
                    message.queue_offset,
                    offset_message_id(message.store_host, message.commit_log_offset),
                )


def _present(
    session: SparkSession, rows: list[dict[str, Any]], into: str
) -> dict[tuple[str, str], set[str]]:
    """What a store has of letters: their unique keys, by id and the body's SHA-256."""
    from pyspark.sql import functions as f

    from oberth.spark.options import parse_read_options
    from oberth.spark.plan import open_stores
    from oberth.spark.storage import LocalStorage
    from oberth.spark.store_files import StoreFiles

    if not StoreFiles(LocalStorage(), into, "").segments():
        return {}
    known = open_stores(parse_read_options({"path": into}, streaming=False)).known_topics()
    topics = known & {row["originTopic"] for row in rows}
    if not topics:
        return {}
    options = {"columns": "properties,uniqueKey,value", "failOnDataLoss": "false"}
    frame = (
        session.read.format("rocketmq").options(**options)
        .option("subscribe", ",".join(sorted(topics))).load(into)
    )  # fmt: skip
    keys = {row["uniqueKey"] for row in rows}
    if None not in keys and len(keys) <= _KEYS_PUSHED_MAX:  # so the Index finds them
        frame = frame.where(f.col("uniqueKey").isin(sorted(keys)))
    letter = f.col("properties")[REDRIVEN_FROM]
    found = frame.where(letter.isNotNull()).select(
        letter.alias("letter"), "uniqueKey", f.sha2("value", 256).alias("digest")
    )
    present: dict[tuple[str, str], set[str]] = {}
    for row in found.collect():
        present.setdefault((row["letter"], row["digest"]), set()).add(row["uniqueKey"])
    return present


def new_messages(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """The letters as new messages."""
    maps = [
        [
            *((n, v) for n, v in dict(row["properties"]).items() if n not in DROPPED),
            (REDRIVEN_FROM, row["offsetMsgId"]),
        ]
        for row in rows
    ]
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([row["originTopic"] for row in rows], pa.string()),
            "value": pa.array([row["value"] for row in rows], pa.binary()),
            "key": pa.array([row["key"] for row in rows], pa.binary()),
            "tags": pa.array([row["tags"] for row in rows], pa.string()),
            "uniqueKey": pa.array([row["uniqueKey"] for row in rows], pa.string()),
            "shardingKey": pa.array([row["shardingKey"] for row in rows], pa.string()),
            "flag": pa.array([row["flag"] for row in rows], pa.int32()),
            "bornTimestamp": pa.array(
                [row["bornTimestamp"] for row in rows], pa.timestamp("us", "UTC")
            ),
            "bornHost": pa.array([row["bornHost"] for row in rows], pa.string()),
            "properties": pa.array(maps, pa.map_(pa.string(), pa.string())),
        }
    )
