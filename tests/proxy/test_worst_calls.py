"""No call of a gRPC client holds the broker's loop: the longest lists that a request may have.

Counted as in tests/broker/test_worst_frames.py. The client has a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hyperframe.frame import DataFrame
from tests.broker.test_worst_frames import OPERATIONS_MAX, Turns
from tests.proxy.client import SERVICE, framed
from tests.proxy.conftest import add_group, add_topic, client_of
from tests.proxy.test_http2 import Raw
from tests.proxy.test_http2_cases import until

from oberth.proxy import messages as m
from oberth.proxy import standard, turns
from oberth.proxy.codes import Code
from oberth.proxy.receiving import LITE_NAMES_MAX
from oberth.testing.embedded_broker import EmbeddedBroker

OTHER_FIELDS = 20
"""At least as many as a request has beside its list."""


@pytest.mark.parametrize(
    ("count", "code"),
    [
        (2000, Code.OK),
        (LITE_NAMES_MAX, Code.BAD_REQUEST),
        (m.FIELDS_MAX - OTHER_FIELDS, Code.BAD_REQUEST),
    ],
)
async def test_a_client_that_takes_very_many_lite_topics(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, count: int, code: Code
) -> None:
    """As many as a client may take, as one call may name, and as any call may have fields."""
    add_topic(mq, "L", "LITE")
    add_group(mq, "LG", attributes={"+lite.bind.topic": "L"})
    turns = Turns(monkeypatch)
    actions = m.enum_values("LiteSubscriptionAction")

    async def call(action: str) -> Any:
        names = [f"{'l' * 55}{number}" for number in range(count)]
        request = m.SyncLiteSubscriptionRequest(action=actions[action], lite_topic_set=names)
        request.topic.name, request.group.name = "L", "LG"
        async with client_of(mq) as client:
            return (await client.call("SyncLiteSubscription", request)).status

    for action in actions:
        turns.most = 0
        turns.counting = True
        status = await asyncio.to_thread(asyncio.run, call(action))
        turns.counting = False
        assert turns.most <= OPERATIONS_MAX, action
        assert status.code == code, (action, status.message)


async def test_calls_of_one_read_share_turns(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty reflection calls of 64 questions (0.5 s), twelve requests of 10 000 fields (0.1 s)."""
    monkeypatch.setattr(turns, "SLICE_S", 0.0)
    done: Counter[str] = Counter()
    most = at_work = 0

    def noted(what: str, original: Any) -> Any:
        def note(*args: Any) -> Any:
            nonlocal most, at_work
            if not at_work:
                asyncio.get_running_loop().call_soon(over)
            at_work += 1
            most = max(most, at_work)
            done[what] += 1
            return original(*args)

        return note

    def over() -> None:
        nonlocal at_work
        at_work = 0

    monkeypatch.setattr(standard, "_answer", noted("questions", standard._answer))
    monkeypatch.setattr(m, "count_fields", noted("requests", m.count_fields))
    package = m.REFLECTION_PACKAGES[0]
    question = m.message_class("ServerReflectionRequest", package)(
        file_containing_symbol="grpc.health.v1.Health"
    )
    questions = framed(question.SerializeToString()) * 64
    fields = framed(b"\x78\x00" * m.FIELDS_MAX)
    assert mq._front is not None
    assert mq._front.server is not None
    async with Raw(mq._front.server) as raw:
        pieces = []
        for number in range(50):
            stream_id = 2 * number + 1
            pieces.append(
                raw.headers(stream_id, f"/{package}.ServerReflection/ServerReflectionInfo")
                + DataFrame(stream_id, questions).serialize()
            )
        for number in range(50, 62):
            stream_id = 2 * number + 1
            pieces.append(
                raw.headers(stream_id, SERVICE + "QueryRoute")
                + DataFrame(stream_id, fields[:16_000]).serialize()
                + DataFrame(stream_id, fields[16_000:], flags=["END_STREAM"]).serialize()
            )
        raw.writer.write(b"".join(pieces))
        await until(lambda: done == {"questions": 3200, "requests": 12})
    assert most <= 2


def test_files_are_written_once() -> None:
    found = [standard._with_needed(m.FILES[0].name) for _ in range(2)]
    assert found[0] is found[1]
