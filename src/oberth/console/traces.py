"""Traces: what clients wrote about one message, read back from the trace topic.

The records are those of `oberth.client.trace`, in the fields of RocketMQ's TraceDataEncoder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.client.trace import FIELD_SEPARATOR, RECORD_SEPARATOR
from oberth.console.decoding import head_of
from oberth.errors import MQBrokerError
from oberth.formats.names import TRACE_TOPIC

STEPS_MAX: Final = 500
TRACE_MAX: Final = 1024 * 1024
"""Bytes of a trace message that are looked at; clients write 128 000 into one."""
CODES: Final = {"0": "success", "1": "time-out", "2": "exception", "3": "null", "4": "failed"}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to a message.

    Attributes:
        time_ms: when; 0: not told.
        kind: ``sent``, ``consumed``, ``given``, ``transaction``.
        group: of producer or consumer.
        outcome: how it went, or "".
        cost_ms: how long it took; None: not told.
        detail: more, as the client wrote it.
    """

    time_ms: int
    kind: str
    group: str
    outcome: str = ""
    cost_ms: int | None = None
    detail: str = ""


def steps_of(bodies: Iterable[str], msg_id: str) -> list[Step]:
    """The steps of one message among trace records, by time."""
    found: list[Step] = []
    groups: dict[str, str] = {}
    for body in bodies:
        for record in body.split(RECORD_SEPARATOR):
            fields = record.split(FIELD_SEPARATOR)
            if msg_id not in fields:
                continue
            step = _step(fields, groups)
            if step is not None:
                found.append(step)
            if len(found) >= STEPS_MAX:
                break
    found.sort(key=lambda step: step.time_ms)
    return found


def _step(fields: list[str], groups: dict[str, str]) -> Step | None:
    kind, count = fields[0], len(fields)
    if kind == "Pub" and count >= 14:
        outcome = "success" if fields[13] == "true" else "failed"
        return Step(_int(fields[1]), "sent", fields[3], outcome, _int(fields[10]), fields[8])
    if kind == "SubBefore" and count >= 8:
        groups[fields[4]] = fields[3]
        tries = _int(fields[6])
        detail = f"attempt {tries + 1}" if tries else ""
        return Step(_int(fields[1]), "given", fields[3], detail=detail)
    if kind == "SubAfter" and count >= 5:
        group = fields[8] if count > 8 else groups.get(fields[1], "")
        code = CODES.get(fields[6], fields[6]) if count > 6 else ""
        outcome = "success" if fields[4] == "true" else code or "failed"
        time_ms = _int(fields[7]) if count > 7 else 0
        return Step(time_ms, "consumed", group, outcome, _int(fields[3]))
    if kind == "EndTransaction" and count >= 12:
        return Step(_int(fields[1]), "transaction", fields[3], fields[11])
    return None


def _int(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


async def trace(admin: Admin, msg_id: str, silent: Silent) -> list[Step]:
    """What became of a message; empty where nobody wrote of it or there is no trace topic.

    Brokers that do not answer are put into ``silent``; what clients wrote there is missing.
    """
    try:
        found = await admin.query_message(TRACE_TOPIC, msg_id, silent=silent)
    except MQBrokerError:
        return []
    # Anybody may write to the topic, with any key: what becomes long is looked at beside the loop.
    return await asyncio.to_thread(
        lambda: steps_of(
            (head_of(each, TRACE_MAX).decode("utf-8", "replace") for each in found), msg_id
        )
    )
