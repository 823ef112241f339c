"""Messages: browsed, searched, one with all that is known of it, sent and sent again."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.client.messages import Message, MessageExt, SendResult
from oberth.client.producer import Producer
from oberth.console import texts
from oberth.console.browse import (
    Match,
    browse,
    cursor_text,
    matcher,
    parse_cursor,
    times_of,
)
from oberth.console.cluster import Part, Place, some_at_a_time
from oberth.console.console import Asker, Console, Page, Write
from oberth.console.decoding import VIEWS, Decoded, decode, message_snippet, snippet
from oberth.console.pages.topics import known_stats, known_topic_name
from oberth.console.schemas import PASTED
from oberth.console.security import Form, Session
from oberth.console.traces import trace
from oberth.console.writes import Outcome, Plan, required, whole
from oberth.errors import FormatError, MQBrokerError, OptionError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.stats import TopicOffset
from oberth.remoting.code import ResponseCode

PAGE_SIZE: Final = 32
COPY_MAX: Final = 16 * 1024
"""Bytes of a body that a command or a line of Python shows."""

PRODUCER_GROUP: Final = "OBERTH_CONSOLE"
BODY_MAX: Final = 4 * 1024 * 1024
OFFSET_MAX: Final = 2**63 - 1
DELAY_MS_MAX: Final = 40 * 24 * 3600 * 1000
FILTERS: Final = ("tag", "sql", "body")


async def messages(console: Console, request: Request) -> Response:
    """Messages of a topic, the newest first unless a time or an offset is given."""
    query = request.query_params
    topic = known_topic_name(query.get("topic", ""))
    admin = console.admin_of(request)
    if query.get("id", "").strip():
        return await _by_id(console, admin, topic, query["id"].strip())
    silent: Silent = {}
    stats = await known_stats(admin, topic, silent)
    ends = {(queue.broker_name, queue.queue_id): end for queue, end in stats.offset_table.items()}
    filters = {name: query.get(name, "") for name in FILTERS}
    key = query.get("key", "").strip()
    seen = _Seen()
    try:
        match = matcher(tag=filters["tag"], sql=filters["sql"], text=filters["body"])
        if key:
            seen.direction = "key"
            seen.messages = list(reversed(await admin.query_message(topic, key, silent=silent)))
            if match is not None:
                seen.messages = await asyncio.to_thread(_filtered, match, seen.messages)
        else:
            await _browse(seen, admin, topic, ends, query, match)
    except (OptionError, FormatError) as error:
        seen.problem = str(error)
    return console.render(
        request,
        "messages.html",
        section="/topics",
        topic=topic,
        ends=sorted(ends.items()),
        silent=silent,
        kept=sum(each.max_offset - each.min_offset for each in ends.values()),
        rows=[
            (each, text, message_link(topic, each))
            for each, text in zip(seen.messages, await snippets(seen.messages), strict=True)
        ],
        span=times_of(seen.messages),
        filters=filters,
        key=key,
        at=texts.time_field(query.get("at", "")),
        queue=query.get("queue", ""),
        offset=offset if (offset := query.get("offset", "").strip()).isdecimal() else "",
        direction=seen.direction,
        follows=query.get("follow") == "1" and seen.direction == "newest",
        is_first="cursor" not in query,
        problem=seen.problem,
        looked=seen.looked,
        more=seen.more,
    )


async def _by_id(console: Console, admin: Admin, topic: str, message_id: str) -> Response:
    """Leads to the page of one message."""
    found = await admin.view_message(topic, message_id)
    if not found.broker_name:  # an answer by offset id does not name the broker
        state = await console.cluster.soon(Part.BROKERS)
        hosts = {key.address: key.name for key in state.brokers}
        found.broker_name = hosts.get(found.store_host, "")
    return RedirectResponse(message_link(topic, found), 303)


@dataclass(slots=True)
class _Seen:
    """What a page of messages shows.

    Attributes:
        messages: in the order of the page.
        direction: newest, oldest, or key where a key was asked for.
        looked: how many messages were looked at for them.
        more: the address of what follows.
        problem: what was wrong with the question.
    """

    messages: list[MessageExt] = field(default_factory=list)
    direction: str = "newest"
    looked: int = 0
    more: str | None = None
    problem: str = ""


async def _browse(
    seen: _Seen,
    admin: Admin,
    topic: str,
    ends: dict[Place, TopicOffset],
    query: Mapping[str, str],
    match: Match | None,
) -> None:
    """Fills in what queues hold from where the question says on."""
    seen.direction, start, chosen = await _start(admin, topic, ends, query)
    found = await browse(
        admin, topic, chosen, is_newest_first=seen.direction == "newest", cursor=start,
        limit=PAGE_SIZE, match=match,
    )  # fmt: skip
    seen.messages, seen.looked = found.messages, found.looked
    if found.cursor:
        kept = {k: v for k, v in query.items() if k not in ("cursor", "at", "follow")}
        seen.more = texts.href(
            "/messages", **{**kept, "cursor": cursor_text(found.cursor), "order": seen.direction}
        )


def _filtered(match: Match, found: Sequence[MessageExt]) -> list[MessageExt]:
    return [each for each in found if match(each)]


async def snippets(found: Sequence[MessageExt]) -> list[str]:
    """The beginnings of bodies, each in one line."""
    return await asyncio.to_thread(lambda: [message_snippet(each) for each in found])


async def _start(
    admin: Admin, topic: str, ends: dict[Place, TopicOffset], query: Mapping[str, str]
) -> tuple[str, dict[Place, int] | None, dict[Place, TopicOffset]]:
    """Direction, where to begin, and the queues that are read."""
    chosen = ends
    if query.get("queue"):
        place = parse_place(query["queue"])
        if place not in ends:
            raise OptionError(f"topic {topic} has no queue {query['queue'][:60]}")
        chosen = {place: ends[place]}
    if query.get("cursor"):
        direction = "oldest" if query.get("order") == "oldest" else "newest"
        return direction, parse_cursor(query["cursor"]), chosen
    if query.get("offset", "").strip():
        if len(chosen) != 1:
            raise OptionError("an offset is one of a queue: choose the queue too")
        offset = whole(query, "offset", 0, 0, OFFSET_MAX)
        return "oldest", dict.fromkeys(chosen, offset), chosen
    if query.get("at", "").strip():
        time_ms = texts.parse_time(query["at"])
        places = list(chosen)
        offsets = await some_at_a_time(
            lambda place: admin.search_offset(_queue(topic, place), time_ms), places
        )
        return "oldest", dict(zip(places, offsets, strict=True)), chosen
    if query.get("order") == "oldest":
        return "oldest", {place: end.min_offset for place, end in chosen.items()}, chosen
    return "newest", None, chosen


def _queue(topic: str, place: Place) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=place[0], queue_id=place[1])


def parse_place(text: str) -> Place:
    """A broker's name and a queue from ``NAME:NUMBER``.

    Raises:
        OptionError: it is none.
    """
    broker, _, number = text.rpartition(":")
    if not (broker and number.isascii() and number.isdigit() and len(number) < 10):
        raise OptionError(f"{text[:60]!r} is no queue: BROKER:NUMBER")
    return broker, int(number)


def message_link(topic: str, found: MessageExt) -> str:
    """The page of a message."""
    return texts.href(
        "/message",
        topic=topic,
        queue=f"{found.broker_name}:{found.queue_id}",
        offset=found.queue_offset,
    )


async def read_message(admin: Admin, values: Mapping[str, str]) -> MessageExt:
    """The message at a topic's queue and offset.

    Raises:
        OptionError: the place is none.
        MQBrokerError: there is no message at it.
    """
    topic = known_topic_name(values.get("topic", ""))
    queue = _queue(topic, parse_place(values.get("queue", "")))
    offset = whole(values, "offset", -1, 0, OFFSET_MAX)
    result = await admin.pull(queue, offset, max_num=1)
    for each in result.messages:
        if each.queue_offset == offset:
            return each
    text = f"no message at {queue.broker_name} queue {queue.queue_id} offset {offset} of {topic}"
    raise MQBrokerError(ResponseCode.NO_MESSAGE, text)


async def message(console: Console, request: Request) -> Response:
    """One message."""
    admin, query = console.admin_of(request), request.query_params
    found = await read_message(admin, query)
    view = query.get("view", "auto")
    if view not in VIEWS:
        raise OptionError(f"view {view[:20]!r}, allowed {', '.join(VIEWS)}")
    schemas, topic = console.schemas, query["topic"]
    session: Session = request.state.session
    pasted = console.pasted.names(session.identifier)
    choices = [*pasted, *await asyncio.to_thread(schemas.names)]
    schema = query.get("schema", "") or (
        next((each for each in choices if Path(each).stem == topic), "") if view == "auto" else ""
    )

    def shown() -> tuple[Decoded, int, str | None, str, str]:
        whole = found.body  # up to 64 MiB, made of far fewer: in a thread, and not kept
        if schema.startswith(PASTED):
            body = console.pasted.decode(session.identifier, whole, schema)
        else:
            body = schemas.decode(whole, schema) if schema else decode(whole, view)
        command, python = as_command(topic, found, whole), as_python(topic, found, whole)
        return body, len(whole), found.body_error, command, python

    async with console.whole_bodies:
        body, size, flaw, command, python = await asyncio.to_thread(shown)
    state = await console.cluster.soon(Part.OFFSETS)
    silent: Silent = {}
    groups = await admin.topic_consumed_by(topic, silent=silent)
    steps = await trace(admin, found.msg_id, silent)
    return console.render(
        request,
        "message.html",
        section="/topics",
        topic=topic,
        found=found,
        body=body,
        size=size,
        flaw=flaw,
        view=view,
        views=VIEWS,
        schema=schema,
        schemas=choices,
        properties=sorted(found.properties.items()),
        steps=steps,
        silent=silent,
        groups=[(group, _standing(state.offsets.get(group, {}), found, topic)) for group in groups],
        members=state.members,
        command=command,
        python=python,
        here={
            "topic": topic,
            "queue": f"{found.broker_name}:{found.queue_id}",
            "offset": found.queue_offset,
        },
    )


def _standing(offsets: Mapping[str, Mapping[Place, int]], found: MessageExt, topic: str) -> str:
    """How far a group is from a message, by the offset that it has committed."""
    committed = offsets.get(topic, {}).get((found.broker_name, found.queue_id))
    if committed is None:
        return "has committed nothing in this queue"
    if committed > found.queue_offset:
        return "has committed it"
    return f"has {texts.number(found.queue_offset - committed + 1)} to go until behind it"


async def paste(console: Console, request: Request) -> Response:
    """Keeps a schema for the session, and shows the message by it."""
    form, session = request.state.form, request.state.session
    fields = form.fields
    names = await asyncio.to_thread(
        console.pasted.add, session.identifier, fields.get("kind", ""), fields.get("schema", "")
    )
    place = {name: fields.get(name, "") for name in ("topic", "queue", "offset")}
    return RedirectResponse(texts.href("/message", **place, schema=names[0]), 303)


async def body(console: Console, request: Request) -> Response:
    """The body of a message as a file."""
    found = await read_message(console.admin_of(request), request.query_params)
    async with console.whole_bodies:
        whole = await asyncio.to_thread(lambda: found.body)
    name = f"message-{found.queue_id}-{found.queue_offset}.bin"
    return Response(
        whole,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


def as_command(topic: str, found: MessageExt, body: bytes) -> str:
    """A command that sends a copy of the message; "" where its body is no text or too large."""
    if len(body) > COPY_MAX:
        return ""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return ""
    if "\0" in text:
        return ""
    words = ["oberth", "message", "send", topic, text]
    if text.startswith("-"):
        words.insert(4, "--")
    made = _application(found)
    options = [word for name, value in made.items() for word in ("--property", f"{name}={value}")]
    keys = [word for key in found.keys.split() for word in ("--key", key)]
    tags = ["--tag", found.tags] if found.tags else []
    return shlex.join([*words[:3], *tags, *keys, *options, *words[3:]])


def as_python(topic: str, found: MessageExt, body: bytes) -> str:
    """A Python program that sends a copy of the message; "" for a large body."""
    if len(body) > COPY_MAX:
        return ""
    arguments = [ascii(topic), repr(body)]
    arguments += [f"tags={found.tags!a}"] if found.tags else []
    arguments += [f"keys={found.keys.split()!a}"] if found.keys else []
    made = _application(found)
    arguments += [f"properties={made!a}"] if made else []
    return (
        "import asyncio\n\n"
        "from oberth.client.messages import Message\n"
        "from oberth.client.producer import Producer\n\n\n"
        "async def main() -> None:\n"
        '    async with Producer("console") as producer:\n'
        f"        await producer.send(Message({', '.join(arguments)}))\n\n\n"
        "asyncio.run(main())\n"
    )


def _application(found: MessageExt) -> dict[str, str]:
    """The application's own properties."""
    made = Message.of(found).properties
    return {name: value for name, value in made.items() if name not in (p.TAGS, p.KEYS, p.WAIT)}


# Writes


def new_message(form: Form) -> Message:
    """The message of a form.

    Raises:
        OptionError: a body or a property that cannot be read.
        MQClientError: a property that is RocketMQ's own.
    """
    topic = names.check_topic(required(form, "topic", "the topic"))
    text = form.fields.get("body", "").replace("\r\n", "\n")
    kind = form.fields.get("kind", "text")
    if kind == "hex":
        try:
            data = bytes.fromhex(text)
        except ValueError:
            raise OptionError("the body is not in hexadecimal") from None
    else:
        data = text.encode("utf-8", "replace")
    if not data:
        raise OptionError("the body is empty, at least one byte is needed")
    if len(data) > BODY_MAX:
        raise OptionError(f"a body of {len(data)} bytes, at most {BODY_MAX}")
    properties = {}
    for line in form.fields.get("properties", "").splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and not (equals and name.strip()):
            raise OptionError(f"property {line[:60]!r} is not NAME=VALUE")
        if line.strip():
            properties[name.strip()] = value.strip()
    delay_ms = whole(form.fields, "delay_ms", 0, 0, DELAY_MS_MAX)
    return Message(
        topic,
        data,
        tags=form.fields.get("tags", "").strip(),
        keys=form.fields.get("keys", "").split(),
        properties=properties,
        delay_ms=delay_ms or None,
    )


async def _plan_send(asker: Asker, form: Form) -> Plan:
    made = new_message(form)
    await asker.admin.topic_route(made.topic)
    changes = [("topic", "", made.topic), ("body", "", f"{snippet(made.body)}")]
    changes.append(("bytes", "", texts.number(len(made.body))))
    changes += [
        (name, "", value) for name, value in sorted(made.properties.items()) if name != p.WAIT
    ]
    return Plan(f"Send a message to {made.topic}", "Send it", changes)


async def _send(asker: Asker, form: Form, plan: Plan) -> Outcome:
    made = new_message(form)
    return _sent(made.topic, await send(asker, made))


async def send(asker: Asker, made: Message, *, queue: MessageQueue | None = None) -> SendResult:
    """Send as the session's user."""
    config = asker.console.client_config_of(asker.session)
    async with Producer(PRODUCER_GROUP, config=config) as producer:
        return await producer.send(made, mq=queue)


def _sent(topic: str, sent: SendResult) -> Outcome:
    queue = sent.message_queue
    rows = [
        ("status", sent.status.name),
        ("broker and queue", f"{queue.broker_name}, {queue.queue_id}"),
        ("queue offset", sent.queue_offset),
        ("message id", sent.msg_id),
        ("offset message id", sent.offset_msg_id),
    ]
    place = f"{queue.broker_name}:{queue.queue_id}"
    here = texts.href("/message", topic=topic, queue=place, offset=sent.queue_offset)
    return Outcome(
        "It is sent.",
        header=("What", "Value"),
        rows=rows,
        links=[("The message", here), ("Messages", texts.href("/messages", topic=topic))],
    )


async def _copy(asker: Asker, form: Form) -> tuple[MessageExt, Message]:
    found = await read_message(asker.admin, form.fields)
    async with asker.console.whole_bodies:
        made, flaw = await asyncio.to_thread(lambda: (Message.of(found), found.body_error))
    if flaw is not None:
        raise OptionError(f"its body cannot be read: {flaw}")
    if len(made.body) > BODY_MAX:
        raise OptionError(f"its body has {len(made.body)} bytes, at most {BODY_MAX} can be sent")
    made.topic = names.check_topic(form.fields.get("to", "").strip() or form.fields["topic"])
    return found, made


async def _plan_again(asker: Asker, form: Form) -> Plan:
    found, made = await _copy(asker, form)
    await asker.admin.topic_route(made.topic)
    changes = [
        ("a copy of", "", found.msg_id),
        ("to topic", "", made.topic),
        ("body", "", snippet(made.body)),
        ("keys", "", made.keys),
        ("tag", "", made.tags),
    ]
    warnings = ["Every group of the topic gets it, those too that have consumed the first one."]
    return Plan(f"Send {found.msg_id} again", "Send a copy", changes, warnings)


async def _again(asker: Asker, form: Form, plan: Plan) -> Outcome:
    _, made = await _copy(asker, form)
    return _sent(made.topic, await send(asker, made))


async def _plan_consume(asker: Asker, form: Form) -> Plan:
    found = await read_message(asker.admin, form.fields)
    group = names.check_group(required(form, "group", "the group"))
    members = await asker.admin.consumer_connection(group)
    ids = sorted(each.client_id for each in members.connection_set)
    changes = [("message", "", found.msg_id), ("to group", "", group), ("member", "", ids[0])]
    warnings = ["The member's listener is called with it once more; no offset changes."]
    return Plan(f"Have {group} consume {found.msg_id}", "Hand it over", changes, warnings,
                binding=ids[0])  # fmt: skip


async def _consume(asker: Asker, form: Form, plan: Plan) -> Outcome:
    found = await read_message(asker.admin, form.fields)
    group = required(form, "group", "the group")
    result = await asker.admin.consume_message_directly(
        group, plan.binding, found.offset_msg_id, form.fields["topic"]
    )
    is_done = result.consume_result.value in ("CR_SUCCESS", "CR_COMMIT")
    text = f"{plan.binding} said {result.consume_result.value} in {result.spent_time_mills} ms."
    if result.remark:
        text += f" {result.remark}"
    link = message_link(form.fields["topic"], found)
    return Outcome(text, is_done, links=[("The message", link)])


ROUTES: Final[dict[str, Page]] = {"/messages": messages, "/message": message, "/body": body}
POSTS: Final[dict[str, Page]] = {"/message/schema": paste}
WRITES: Final = {
    "message.send": Write(_plan_send, _send),
    "message.again": Write(_plan_again, _again),
    "message.consume": Write(_plan_consume, _consume),
}
