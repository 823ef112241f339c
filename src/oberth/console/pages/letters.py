"""Dead letters: by group, picked, and sent to their origin topics again with receipts."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.client.dead_letters import (
    REASON,
    Shown,
    origin_message_id,
    origin_topic,
    redrive,
)
from oberth.client.messages import MessageExt
from oberth.client.producer import Producer
from oberth.client.redrive_claim import RedriveClaim
from oberth.console import texts
from oberth.console.browse import browse, cursor_text, parse_cursor
from oberth.console.cluster import Part
from oberth.console.console import Asker, Console, Page, Write
from oberth.console.pages.groups import known_group_name
from oberth.console.pages.messages import (
    PRODUCER_GROUP,
    message_link,
    read_message,
    snippets,
)
from oberth.console.pages.topics import known_stats
from oberth.console.security import Form
from oberth.console.writes import Outcome, Plan, required
from oberth.errors import MQBrokerError, OberthError, OptionError
from oberth.formats import names
from oberth.remoting.code import ResponseCode

PAGE_SIZE: Final = 50
PICKED_MAX: Final = 200
DONE: Final = frozenset({"redriven", "already"})


async def letters(console: Console, request: Request) -> Response:
    """Groups with dead letters, or those of one group, the newest first."""
    state = await console.cluster.soon(Part.TOPICS)
    name = request.query_params.get("group", "")
    topics = sorted(topic for topic in state.topics if topic.startswith(names.DLQ_PREFIX))
    if not name:
        await console.cluster.with_ends(state, topics[:200])
        ends_by_topic = state.ends
        rows = []
        for topic in topics:
            ends = ends_by_topic.get(topic, {}).values()
            count = sum(each.max_offset - each.min_offset for each in ends)
            last = max((each.last_update_timestamp for each in ends), default=0)
            rows.append((topic.removeprefix(names.DLQ_PREFIX), count, last))
        rows.sort(key=lambda row: (-row[1], row[0]))
        return console.render(request, "letter_groups.html", rows=rows[:500], left=len(rows) - 500)
    admin = console.admin_of(request)
    topic = names.dlq_topic(known_group_name(name))
    silent: Silent = {}
    found, more = await _page(admin, topic, request.query_params.get("cursor", ""), silent)
    return console.render(
        request,
        "letters.html",
        section="/letters",
        name=name,
        topic=topic,
        rows=[
            {
                "letter": each,
                "place": f"{each.broker_name}:{each.queue_id}:{each.queue_offset}",
                "link": message_link(topic, each),
                "origin": origin_topic(each),
                "origin_id": origin_message_id(each),
                "reason": each.properties.get(REASON),
                "body": text,
            }
            for each, text in zip(found, await snippets(found), strict=True)
        ],
        more=more and texts.href("/letters", group=name, cursor=more),
        silent=silent,
    )


async def _page(
    admin: Admin, topic: str, cursor: str, silent: Silent
) -> tuple[list[MessageExt], str]:
    try:
        stats = await known_stats(admin, topic, silent)
    except MQBrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return [], ""
        raise
    ends = {(q.broker_name, q.queue_id): end for q, end in stats.offset_table.items()}
    found = await browse(
        admin,
        topic,
        ends,
        is_newest_first=True,
        cursor=parse_cursor(cursor) if cursor else None,
        limit=PAGE_SIZE,
    )
    return found.messages, cursor_text(found.cursor)


async def _picked(asker: Asker, form: Form) -> tuple[str, list[MessageExt]]:
    group = known_group_name(required(form, "group", "the group"))
    places = list(dict.fromkeys(form.lists.get("letter", [])))
    if not places:
        raise OptionError("no letter is picked")
    if len(places) > PICKED_MAX:
        raise OptionError(f"{len(places)} letters are picked, at most {PICKED_MAX} at a time")
    topic = names.dlq_topic(group)
    found = []
    for place in places:
        queue, _, offset = place.rpartition(":")
        found.append(
            await read_message(asker.admin, {"topic": topic, "queue": queue, "offset": offset})
        )
    return group, found


async def _plan_redrive(asker: Asker, form: Form) -> Plan:
    group, found = await _picked(asker, form)
    changes = []
    shown = Shown(asker.admin)
    for letter in found:
        try:
            receipt = await redrive(asker.admin, None, letter, shown=shown)
        except OberthError as error:
            # What is wrong with one topic keeps the letters of no other from being sent.
            status = f"not sent now: {error}"
        else:
            status = receipt.status + (f": {receipt.origin_topic}" if receipt.origin_topic else "")
        changes.append(
            (
                letter.keys or letter.msg_id,
                f"dead since {texts.time_text(letter.store_timestamp)}",
                status,
            )
        )
    warnings = [
        "Every group of the origin topic gets them, not only this one; the dead letters stay where "
        "they are. One that its topic has already is not sent again."
    ]
    count = f"{len(found)} dead letter{'s' if len(found) != 1 else ''}"
    return Plan(f"Send {count} of {group} again", "Send them", changes, warnings)


async def _redrive(asker: Asker, form: Form, plan: Plan) -> Outcome:
    group, found = await _picked(asker, form)
    rows: list[tuple[str | int, ...]] = []
    config = asker.console.client_config_of(asker.session)
    async with (
        Producer(PRODUCER_GROUP, config=config) as producer,
        RedriveClaim(asker.admin, [names.dlq_topic(group)]) as claim,
    ):
        shown = Shown(asker.admin)
        for letter in found:
            try:
                receipt = await redrive(asker.admin, producer, letter, claim=claim, shown=shown)
            except OberthError as error:
                # One letter that fails does not hide the receipts of the others.
                rows.append(
                    (letter.offset_msg_id, origin_topic(letter), f"failed: {error}", "", "", "")
                )
                continue
            rows.append(
                (
                    receipt.dead_letter_id,
                    receipt.origin_topic,
                    receipt.status,
                    "" if receipt.queue_id is None else receipt.queue_id,
                    "" if receipt.queue_offset is None else receipt.queue_offset,
                    receipt.message_id or "",
                )
            )
    counts: dict[str, int] = {}
    for row in rows:
        status = str(row[2]).partition(":")[0]
        counts[status] = counts.get(status, 0) + 1
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    return Outcome(
        f"Dead letters of {group}: {said}.",
        is_done=counts.keys() <= DONE,
        header=("Dead letter", "Origin topic", "Outcome", "Queue", "Offset", "New message"),
        rows=rows,
        links=[("Its dead letters", texts.href("/letters", group=group))],
    )


ROUTES: Final[dict[str, Page]] = {"/letters": letters}
WRITES: Final = {"letters.redrive": Write(_plan_redrive, _redrive)}
