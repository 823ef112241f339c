"""POP goes on in a store of RocketMQ: what was in its consumers' hands comes again here.

The golden store holds check points and acknowledgements of all ages, in the timer and in the revive
queues. What must come back is worked out from the log alone, then the clock is set forward.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from oberth.broker.pop.check_point import PopCheckPoint, decode_ack, decode_check_point
from oberth.formats.properties import decode_properties
from oberth.testing.embedded_broker import EmbeddedBroker
from oberth.testing.virtual_clock import VirtualClock

RETRY = "%RETRY%CG_pop_PopTopic"


def test_bodies_are_written_as_rocketmq_writes_them(
    golden_facts: Callable[[str], dict[str, Any]],
) -> None:
    kinds = set()
    for message in golden_facts("pop-5.5.0")["messages"]:
        properties = decode_properties(message["propertiesText"])
        if "REVIVE_LOG" not in properties.get("REAL_TOPIC", message["topic"]):
            continue
        body = base64.b64decode(message["body"])
        tag = properties["TAGS"]
        kinds.add(tag)
        ours = decode_check_point(body) if tag == "ck" else decode_ack(body, tag)
        assert ours.encode() == body
        assert ours.unique_key == properties["UNIQ_KEY"]
        if isinstance(ours, PopCheckPoint):
            assert int(properties["TIMER_DELIVER_MS"]) == ours.revive_time - 1000
    assert kinds >= {"ck", "ack"}


def still_due(facts: dict[str, Any]) -> set[bytes]:
    """Bodies of popped messages that nobody acknowledged."""
    check_points: dict[object, PopCheckPoint] = {}
    acks = []
    bodies: dict[tuple[str, int, int], bytes] = {}
    for message in facts["messages"]:
        body = base64.b64decode(message["body"] or "")
        properties = decode_properties(message["propertiesText"])
        bodies[message["topic"], message["queueId"], message["queueOffset"]] = body
        if "REVIVE_LOG" in properties.get("REAL_TOPIC", message["topic"]):
            if properties["TAGS"] == "ck":
                check_point = decode_check_point(body)
                check_points.setdefault(check_point.key, check_point)
            else:
                acks.append(decode_ack(body, properties["TAGS"]))
    for ack in acks:
        for offset in ack.offsets:
            check_points[ack.key].ack(offset)
    return {
        bodies[check_point.topic, check_point.queue_id, offset]
        for check_point in check_points.values()
        for offset in check_point.unacked()
    }


async def test_what_rocketmq_handed_out_comes_again(
    golden_store: Callable[[str], Any],
) -> None:
    golden = golden_store("pop-5.5.0")
    expected = still_due(golden.facts)
    last = max(message["storeTimestamp"] for message in golden.facts["messages"])
    settings = {
        "brokerName": "broker-golden",
        "brokerClusterName": "GoldenCluster",
        "mappedFileSizeTimerLog": str(100 << 20),
        **golden.config,
    }
    clock = VirtualClock(start_ms=last)
    async with EmbeddedBroker(settings, store=golden.root, clock=clock) as mq:
        before = set(mq.bodies(RETRY))
        assert before < expected
        clock.advance(seconds=620)
        await mq.wait_until(lambda: set(mq.bodies(RETRY)) >= expected, 10.0)
        for _ in range(5):
            clock.advance(seconds=1)
            await asyncio.sleep(0.02)
        found = mq.bodies(RETRY)
        assert set(found) == expected
        # Nothing that RocketMQ brought back is brought back once more.
        assert len(found) == len(expected)
