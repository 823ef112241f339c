"""A stored message as JSON, under the names that RocketMQ's tools and the golden listings use.

``body`` is the whole body as base64 after decompression, ``bodyLength`` and ``bodySha256`` are of
it; ``storedBodyLength`` and ``storedSysFlag`` are what the record holds. ``dispatch`` is what
ConsumeQueue and Index get from the record: RocketMQ gives up on a record that fails its CRC, hence
the empty values there. ``inner`` are the messages inside an inner batch.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from oberth.errors import FormatError
from oberth.formats import properties as names
from oberth.formats.batch_body import decode_batch
from oberth.formats.broker_conf import Line
from oberth.formats.compression import decompress_body
from oberth.formats.delay_level import deliver_time
from oberth.formats.java_string import java_hash
from oberth.formats.message import SCHEDULE_TOPIC, MessageExt, decode_host
from oberth.formats.message_id import offset_message_id
from oberth.formats.properties import decode_properties
from oberth.formats.sys_flag import COMPRESSED, INNER_BATCH, NEED_UNWRAP

_NOT_DISPATCHED: Final[Mapping[str, Any]] = {
    "tagsCode": 0, "keys": "", "uniqKey": None, "storeTimestamp": 0, "consumeQueueOffset": 0,
}  # fmt: skip
"""What stands under ``dispatch`` for a body that fails its CRC."""


def tags_code(message: MessageExt, delays_ms: Sequence[int]) -> int:
    """What a ConsumeQueue unit of this record holds: the hash of its tags, or when it is due."""
    properties = message.properties
    if message.topic == SCHEDULE_TOPIC:
        try:
            level = int(properties.get(names.DELAY, "0"))
        except ValueError:
            level = 0
        if level > 0:
            return deliver_time(level, message.store_timestamp, tuple(delays_ms))
    tags = properties.get(names.TAGS)
    return java_hash(tags) if tags else 0


def message_to_json(
    message: MessageExt,
    *,
    crc_ok: bool = True,
    line: Line = Line.V5,
    delays_ms: Sequence[int] = (0,),
) -> dict[str, Any]:
    """Every field of a stored message.

    Args:
        message: the record.
        crc_ok: whether its body passes the checksum.
        line: 5.x clears the compression bit of ``sysFlag`` once the body is decompressed.
        delays_ms: milliseconds by delay level, for the due times of the schedule topic.
    """
    properties = message.properties
    sys_flag = message.sys_flag
    plain: bytes | None = message.body or None
    failure: str | None = None
    if sys_flag & COMPRESSED and message.body:
        try:
            plain = decompress_body(message.body, sys_flag)
            if line is not Line.V4_9:
                sys_flag &= ~COMPRESSED
        except FormatError as error:
            failure = str(error)
            plain = message.body
    result: dict[str, Any] = {
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.record_size,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "sysFlag": sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": decode_host(message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": decode_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "msgId": offset_message_id(message.store_host, message.commit_log_offset),
        "magic": f"{message.magic & 0xFFFFFFFF:08x}",
        "storedSysFlag": message.sys_flag,
        "storedBodyLength": len(message.body),
        "propertiesText": message.properties_raw.decode("utf-8", "replace"),
        "properties": properties,
        **_body(plain),
        "crcOk": crc_ok,
    }
    if failure is not None:
        result["bodyError"] = failure
    result["dispatch"] = _dispatch(message, delays_ms) if crc_ok else dict(_NOT_DISPATCHED)
    if message.sys_flag & INNER_BATCH and message.sys_flag & NEED_UNWRAP and crc_ok:
        result["inner"] = _inner(message, result, plain or b"")
    return result


def _dispatch(message: MessageExt, delays_ms: Sequence[int]) -> dict[str, Any]:
    """What queue and index get of a message."""
    properties = message.properties
    return {
        "tagsCode": tags_code(message, delays_ms),
        "keys": properties.get(names.KEYS),
        "uniqKey": properties.get(names.UNIQ_KEY),
        "storeTimestamp": message.store_timestamp,
        "consumeQueueOffset": message.queue_offset,
    }


def _body(plain: bytes | None) -> dict[str, Any]:
    if plain is None:
        return {"bodyLength": None}
    return {
        "bodyLength": len(plain),
        "bodySha256": sha256(plain).hexdigest(),
        "body": base64.b64encode(plain).decode("ascii"),
    }


def _inner(message: MessageExt, outer: dict[str, Any], body: bytes) -> list[dict[str, Any]]:
    """The messages of an inner batch; their queue offsets count up from INNER_BASE."""
    try:
        items = decode_batch(body)
        base = int(outer["properties"].get(names.INNER_BASE, message.queue_offset))
    except (FormatError, ValueError):
        return []
    taken = (
        "commitLogOffset", "topic", "queueId", "sysFlag", "bornTimestamp", "bornHost",
        "storeTimestamp", "storeHost", "reconsumeTimes", "preparedTransactionOffset",
    )  # fmt: skip
    shared = {name: outer[name] for name in taken}
    messages = []
    for number, item in enumerate(items):
        properties = decode_properties(item.properties)
        messages.append(
            {
                **shared,
                "storeSize": 0,
                "queueOffset": base + number,
                "flag": item.flag,
                "bodyCRC": 0,
                "msgId": properties.get(names.UNIQ_KEY),
                "properties": properties,
                **_body(item.body or None),
            }
        )
    return messages
