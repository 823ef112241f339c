"""What waits: timed messages, messages of delay levels, and transactions that are not ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.client.messages import MessageExt
from oberth.console.browse import Found, browse
from oberth.console.cluster import Part
from oberth.console.console import Console, Page, Write
from oberth.console.pages.messages import message_link, snippets
from oberth.errors import MQBrokerError, OberthError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.code import ResponseCode

SHOWN: Final = 50
LOOKED_MAX: Final = 2000
"""Half messages and ends of transactions that one page looks at, by queue."""

PULL_COUNT: Final = 32


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits.

    Attributes:
        topic: where it will go.
        until_ms: when it is due; 0: not known.
    """

    message: MessageExt
    topic: str
    until_ms: int
    link: str
    body: str = ""


async def waiting(console: Console, request: Request) -> Response:
    """The page."""
    state = await console.cluster.soon(Part.BROKERS)
    admin = console.admin_of(request)
    now_ms = console.now_ms()
    problems: list[str] = []
    silent: Silent = {}
    timed: list[Waiting] = []
    halves: list[Waiting] = []
    try:
        timed = await _timed(admin, now_ms, silent, problems)
    except OberthError as error:
        problems.append(f"timed messages: {error}")
    try:
        halves = await _halves(admin, silent, problems)
    except OberthError as error:
        problems.append(f"transactions: {error}")
    levels = []
    for key, table in sorted(state.brokers.items(), key=lambda each: each[0].name):
        if not key.is_master:
            continue
        for level in range(1, 65):
            done, _, end = table.get(f"scheduleMessageOffset_{level}", "").partition(",")
            if ever := _number(end):
                levels.append((key.name, level, ever, max(ever - _number(done), 0)))
    return console.render(
        request,
        "waiting.html",
        timed=timed,
        halves=halves,
        levels=levels,
        problems=problems,
        silent=silent,
    )


async def _timed(admin: Admin, now_ms: int, silent: Silent, problems: list[str]) -> list[Waiting]:
    """Timed messages that are not due yet, the next first."""
    found = await _newest(admin, names.TIMER_TOPIC, silent)
    if found.cursor:
        problems.append(
            f"timed messages: only the {found.looked} that were stored last were looked at"
        )
    made = [
        _waiting(each, until_ms, names.TIMER_TOPIC)
        for each, until_ms in still_timed(found.messages)
        if until_ms > now_ms
    ]
    made.sort(key=lambda each: each.until_ms)
    return await _with_bodies(made[:SHOWN])


def still_timed(newest_first: Sequence[MessageExt]) -> Iterator[tuple[MessageExt, int]]:
    """The records of the timer topic that stand for a message, and when it is due.

    A recall stores a marker with the time of the message that it names: neither of them waits. A
    message that is due behind the timer's window is stored again each time the window has passed.
    """
    gone: set[tuple[str, str, int]] = set()
    for each in newest_first:
        until_ms = _number(each.properties.get(p.TIMER_OUT_MS, ""))
        front = each.properties.get(p.REAL_TOPIC, "") + "+"
        marked = each.properties.get(p.TIMER_DEL_UNIQKEY)
        key = marked or each.properties.get(p.UNIQ_KEY)
        if key is None:
            yield each, until_ms
            continue
        # appendTopicForTimerDeleteKey has a marker's key begin with the topic.
        named = (each.broker_name, key if key.startswith(front) else front + key, until_ms)
        if marked is None and named not in gone:
            yield each, until_ms
        gone.add(named)


async def _newest(admin: Admin, topic: str, silent: Silent) -> Found:
    try:
        stats = await admin.topic_stats(topic, silent=silent)
    except MQBrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return Found()
        raise
    ends = {(q.broker_name, q.queue_id): end for q, end in stats.offset_table.items()}
    return await browse(admin, topic, ends, is_newest_first=True, cursor=None, limit=LOOKED_MAX)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _waiting(each: MessageExt, until_ms: int, topic: str) -> Waiting:
    real = each.properties.get(p.REAL_TOPIC, each.topic)
    return Waiting(each, real, until_ms, message_link(topic, each))


async def _with_bodies(waiting: list[Waiting]) -> list[Waiting]:
    lines = await snippets([each.message for each in waiting])
    return [replace(each, body=line) for each, line in zip(waiting, lines, strict=True)]


async def _halves(admin: Admin, silent: Silent, problems: list[str]) -> list[Waiting]:
    """Half messages that no end is known of: neither committed nor rolled back yet."""
    made = []
    try:
        queues = await admin.topic_stats(names.TRANS_HALF_TOPIC, silent=silent)
    except MQBrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        raise
    for queue, ends in queues.offset_table.items():
        done = await admin.consumer_offset(names.TRANS_GROUP, queue)
        start = max(done or 0, ends.min_offset)
        found = await _forward(admin, queue, start, ends.max_offset)
        if len(found) >= LOOKED_MAX and found[-1].queue_offset + 1 < ends.max_offset:
            problems.append(
                f"transactions: of {queue.broker_name} only the {len(found)} that were begun first "
                "were looked at"
            )
        ended = await _ended(admin, queue)
        made += [
            _waiting(each, 0, names.TRANS_HALF_TOPIC)
            for each in found
            if each.queue_offset not in ended
        ]
    made.sort(key=lambda each: each.message.store_timestamp)
    return await _with_bodies(made[:SHOWN])


async def _ended(admin: Admin, half: MessageQueue) -> set[int]:
    """Offsets of half messages whose end is noted, of one queue."""
    queue = MessageQueue(
        topic=names.TRANS_OP_HALF_TOPIC, broker_name=half.broker_name, queue_id=half.queue_id
    )
    try:
        low, high = await admin.min_offset(queue), await admin.max_offset(queue)
        done = await admin.consumer_offset(names.TRANS_GROUP, queue)
    except MQBrokerError:
        return set()  # no transaction has ended yet
    found = await _forward(admin, queue, max(low, done or 0), high)
    return {
        int(text)
        for each in found
        for text in each.stored_body.decode("ascii", "replace").split(",")
        if text.isascii() and text.isdigit() and len(text) < 19
    }


async def _forward(admin: Admin, queue: MessageQueue, start: int, end: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    while start < end and len(found) < LOOKED_MAX:
        result = await admin.pull(queue, start, max_num=PULL_COUNT)
        found += result.messages
        if result.next_begin_offset <= start:
            break
        start = result.next_begin_offset
    return found


ROUTES: Final[dict[str, Page]] = {"/waiting": waiting}
WRITES: Final[dict[str, Write]] = {}
