"""Groups: how far each is, in messages and in time, its members, and resets with a preview."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from oberth.client.admin import LATEST, Admin, GroupProgress, QueueProgress
from oberth.client.admin.base import Silent
from oberth.console import texts
from oberth.console.cluster import Part, State, some_at_a_time
from oberth.console.console import Asker, Console, Page, Write
from oberth.console.figures import Figures
from oberth.console.pages.messages import parse_place
from oberth.console.pages.topics import known_topic_name, paged
from oberth.console.security import Form
from oberth.console.writes import Outcome, Plan, required, whole
from oberth.errors import MQBrokerError, OberthError, OptionError
from oberth.formats import names
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.clients import ConsumerConnection
from oberth.remoting.bodies.running_info import ConsumerRunningInfo

RETRIES_MAX: Final = 1000
MEMBERS_ASKED_MAX: Final = 32
"""Members that are asked for their subscriptions; each answers a request of its own."""

TOPICS_ASKED_MAX: Final = 64
GROUP_LENGTH_MAX: Final = names.GROUP_LENGTH_MAX_4_9


async def groups(console: Console, request: Request) -> Response:
    """The list, searched and paged here."""
    query = request.query_params
    state = await console.cluster.soon(Part.OFFSETS)
    text = query.get("q", "").strip()
    with_system = query.get("system") == "1"
    found = sorted({*state.groups, *state.offsets}) if with_system else state.user_groups()
    if text:
        found = [name for name in found if text.lower() in name.lower()]
    sort = query.get("sort", "name")
    if sort == "lag":
        found.sort(key=lambda name: (-(state.lag(name) or 0), name))
    page, page_count, rows = paged(found, query.get("page", "1"))
    topics = sorted({topic for name in rows for topic in state.offsets.get(name, {})})
    await console.cluster.with_ends(state, topics[:TOPICS_ASKED_MAX])
    await console.cluster.with_members(state, rows)
    now_ms = console.now_ms()
    admin = console.admin_of(request)
    silent: Silent = {}
    progress = await some_at_a_time(lambda group: _progress(admin, state, group, silent), rows)
    return console.render(
        request,
        "groups.html",
        rows=[
            {
                "name": name,
                "lag": None if found_one is None else positive_lag(found_one.queues),
                "behind_ms": None if found_one is None else behind_ms(found_one.queues, now_ms),
                "tps": None if found_one is None else found_one.tps,
                "topics": len(
                    [t for t in state.offsets.get(name, {}) if not t.startswith(names.RETRY_PREFIX)]
                ),
                "members": state.members.get(name),
                "retries": _retries(state.groups.get(name, {}).values()),
            }
            for name, found_one in zip(rows, progress, strict=True)
        ],
        count=len(found),
        page=page,
        page_count=page_count,
        text=text,
        sort=sort,
        with_system=with_system,
        silent=silent,
    )


async def _progress(admin: Admin, state: State, group: str, silent: Silent) -> GroupProgress | None:
    try:
        return await admin.consume_stats_at(state.masters, group, silent=silent)
    except OberthError:
        return None


def _retries(configs: Iterable[SubscriptionGroupConfig]) -> str:
    found = sorted({each.retry_max_times for each in configs})
    return str(found[0]) if len(found) == 1 else "differs by broker" if found else ""


def positive_lag(queues: Iterable[QueueProgress]) -> int:
    """Messages that are not committed."""
    return sum(max(each.lag, 0) for each in queues)


def behind_ms(queues: Iterable[QueueProgress], now_ms: int) -> int | None:
    """The age of the message consumed last, in the slowest queue with a lag.

    None: a queue has a lag of which nothing was consumed yet; 0: there is no lag.
    """
    worst = 0
    for each in queues:
        if each.lag > 0:
            if each.last_timestamp <= 0:
                return None
            worst = max(worst, now_ms - each.last_timestamp)
    return worst


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group.

    Attributes:
        told: its own words; None: it was not asked, or does not answer.
        problem: why it does not, or "".
        expressions: topic → the expression that this member subscribes with.
        differs: topics for which another member subscribes to something else.
    """

    client_id: str
    address: str
    language: str
    version: str
    told: ConsumerRunningInfo | None
    problem: str
    expressions: dict[str, str]
    differs: list[str]


async def group(console: Console, request: Request) -> Response:
    """One group."""
    name = known_group_name(request.query_params.get("name", ""))
    admin = console.admin_of(request)
    state = await console.cluster.soon(Part.OFFSETS)
    await console.cluster.with_members(state, [name])
    silent: Silent = {}
    progress = await admin.consume_stats_at(state.masters, name, silent=silent)
    connection = await _connection(admin, state, name)
    members = await _members(admin, name, connection)
    configs = state.groups.get(name, {})
    if not (configs or progress.queues or members or name in state.offsets):
        if silent:
            raise next(iter(silent.values()))
        raise MQBrokerError(26, f"no broker knows group {name!r}")
    now_ms = console.now_ms()
    figures = Figures(console, request, state)
    figure = await figures.plot(
        "Lag", [(name, ("lag", name))], value_text=texts.number, unit="messages"
    )
    times = await _times(admin, name, progress)
    topics = sorted(
        {each.queue.topic for each in progress.queues} | set(state.offsets.get(name, {}))
    )
    own = [topic for topic in topics if topic.startswith(names.RETRY_PREFIX)]
    return console.render(
        request,
        "group.html",
        section="/groups",
        name=name,
        queues=[
            (each, times.get(each.queue), now_ms - each.last_timestamp) for each in progress.queues
        ],
        lag=positive_lag(progress.queues),
        behind_ms=behind_ms(progress.queues, now_ms),
        tps=progress.tps,
        figures=figures,
        figure=figure,
        connection=connection,
        members=members,
        configs=sorted(configs.items()),
        topics=[topic for topic in topics if topic not in own],
        retry_lag=positive_lag(each for each in progress.queues if each.queue.topic in own),
        letters=await _letter_count(console, state, name),
        disagree=sorted({topic for each in members for topic in each.differs}),
        is_system=names.is_system_group(name) or name in names.PREDEFINED_GROUPS,
        silent=silent,
    )


def known_group_name(name: str) -> str:
    """A name that a group may have.

    Raises:
        IllegalNameError: none may.
    """
    return names.check_group(name, length_max=GROUP_LENGTH_MAX)


async def _connection(admin: Admin, state: State, name: str) -> ConsumerConnection | None:
    """What brokers know of the members; those of several brokers are put together."""
    made: ConsumerConnection | None = None
    for address in state.masters.values():
        try:
            found = await admin.consumer_connection(name, address)
        except OberthError:
            continue  # nobody of the group is connected there
        if made is None:
            made = found
        else:
            known = {each.client_id for each in made.connection_set}
            made.connection_set += [x for x in found.connection_set if x.client_id not in known]
    return made


async def _members(admin: Admin, name: str, connection: ConsumerConnection | None) -> list[Member]:
    if connection is None:
        return []
    clients = sorted(connection.connection_set, key=lambda each: each.client_id)

    async def ask(number: int, client_id: str) -> tuple[ConsumerRunningInfo | None, str]:
        if number >= MEMBERS_ASKED_MAX:
            return None, "not asked, there are many"
        try:
            return await admin.consumer_running_info(name, client_id), ""
        except OberthError as error:
            return None, str(error).splitlines()[0][:200]

    answers = await asyncio.gather(
        *(ask(*pair) for pair in enumerate(c.client_id for c in clients))
    )
    expressions = [
        {
            each.topic: f"{each.sub_string} ({each.expression_type})"
            for each in (told.subscription_set if told else [])
            if not each.topic.startswith(names.RETRY_PREFIX)
        }
        for told, _ in answers
    ]
    variants: dict[str, set[str]] = {}
    for mine, (told, _) in zip(expressions, answers, strict=True):
        for topic in {topic for each in expressions for topic in each} if told else ():
            variants.setdefault(topic, set()).add(mine.get(topic, ""))
    return [
        Member(
            client.client_id,
            client.client_addr,
            client.language,
            told.properties.get("PROP_CLIENT_VERSION", str(client.version)) if told
            else str(client.version),
            told,
            problem,
            mine,
            [topic for topic, found in variants.items() if len(found) > 1 and told is not None],
        )
        for client, (told, problem), mine in zip(clients, answers, expressions, strict=True)
    ]  # fmt: skip


async def _times(admin: Admin, name: str, progress: GroupProgress) -> dict[MessageQueue, int]:
    """By queue how long its next message has waited, in ms, by the brokers' clocks."""
    found: dict[MessageQueue, int] = {}
    topics = sorted({each.queue.topic for each in progress.queues})[:TOPICS_ASKED_MAX]

    async def ask(topic: str) -> None:
        try:
            spans = await admin.consume_time_span(topic, name)
        except OberthError:
            return  # the page goes by the last message that was consumed
        for each in spans.consume_time_span_set:
            found[each.message_queue] = each.delay_time

    await some_at_a_time(ask, topics)
    return found


async def _letter_count(console: Console, state: State, name: str) -> int:
    topic = names.dlq_topic(name)
    if topic not in state.topics:
        return 0
    await console.cluster.with_ends(state, [topic])
    ends = state.ends.get(topic, {})
    return sum(each.max_offset - each.min_offset for each in ends.values())


async def stack(console: Console, request: Request) -> Response:
    """Where the threads of a member are."""
    query = request.query_params
    name, client = known_group_name(query.get("name", "")), query.get("client", "")
    told = await console.admin_of(request).consumer_running_info(name, client, jstack=True)
    return console.render(
        request,
        "stack.html",
        section="/groups",
        name=name,
        client=client,
        properties=sorted(told.properties.items()),
        queues=sorted(told.mq_table.items(), key=lambda each: each[0]),
        stack=told.jstack,
    )


# Writes


def _config(form: Form, current: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
    name = names.check_group(required(form, "name", "the group's name"))
    made = current or SubscriptionGroupConfig(group_name=name)
    made.retry_max_times = whole(form.fields, "retries", 16, 0, RETRIES_MAX)
    made.consume_enable = form.fields.get("enabled") == "1"
    return made


async def _plan_save(asker: Asker, form: Form) -> Plan:
    name = names.check_group(required(form, "name", "the group's name"))
    state = await asker.console.cluster.fresh()
    configs = state.groups.get(name, {})
    changes = []
    for broker in sorted(state.masters):
        current = configs.get(broker)
        retries, is_enabled = (
            (None, None) if current is None else (current.retry_max_times, current.consume_enable)
        )
        wanted = _config(form, SubscriptionGroupConfig(group_name=name))
        for what, before, after in (
            ("attempts before a dead letter", retries, wanted.retry_max_times),
            ("may consume", is_enabled, wanted.consume_enable),
        ):
            if before != after:
                changes.append((f"{broker}: {what}", _word(before), _word(after)))
    if not changes:
        raise OptionError(f"group {name} is so already")
    verb = "Change" if configs else "Create"
    return Plan(f"{verb} group {name}", f"{verb} it", changes, binding=repr(changes))


def _word(value: object) -> str:
    return {None: "–", True: "yes", False: "no"}.get(value, str(value))  # type: ignore[call-overload,no-any-return]


async def _save(asker: Asker, form: Form, plan: Plan) -> Outcome:
    name = required(form, "name", "the group's name")
    for address in asker.console.cluster.state.masters.values():
        current = (await asker.admin.all_groups(address)).get(name)
        await asker.admin.create_group(_config(form, current), broker_addr=address)
    return Outcome(f"Group {name} is so now.", links=[_link(name)])


def _link(name: str) -> tuple[str, str]:
    return (f"Group {texts.plain(name)}", texts.href("/group", name=name))


async def _plan_delete(asker: Asker, form: Form) -> Plan:
    name = known_group_name(required(form, "name", "the group's name"))
    if names.is_system_group(name) or name in names.PREDEFINED_GROUPS:
        raise OptionError(f"group {name} is the brokers' own")
    asker.console.cluster.forget()
    state = await asker.console.cluster.fresh()
    if name not in state.groups and name not in state.offsets:
        raise MQBrokerError(26, f"no broker knows group {name!r}")
    letters = await _letter_count(asker.console, state, name)
    topics = sorted(state.offsets.get(name, {}))
    changes = [
        ("group", name, "–"),
        ("how far it is in", ", ".join(topics) or "nothing", "–"),
        ("dead letters", texts.number(letters), "–"),
    ]
    warnings = ["Its offsets, its retry topic and its dead letters are gone for good."]
    await asker.console.cluster.with_members(state, [name])
    has_members = bool(state.members.get(name))
    if has_members:
        warnings.append("It has members: they make it anew.")
    return Plan(
        f"Delete group {name}", "Delete it", changes, warnings,
        binding=repr((topics, letters > 0, has_members)), is_dangerous=True,
    )  # fmt: skip


async def _delete(asker: Asker, form: Form, plan: Plan) -> Outcome:
    name = required(form, "name", "the group's name")
    await asker.admin.delete_group(name)
    return Outcome(f"Group {name} is deleted.", links=[("All groups", "/groups")])


@dataclass(frozen=True, slots=True)
class _Reset:
    """The reset that a form asks for."""

    group: str
    topic: str
    timestamp_ms: int
    queue: MessageQueue | None
    offset: int | None


def _reset_of(form: Form) -> _Reset:
    group_name = known_group_name(required(form, "group", "the group"))
    topic = known_topic_name(required(form, "topic", "the topic"))
    to = form.fields.get("to", "")
    if to == "offset":
        place = parse_place(required(form, "queue", "the queue"))
        queue = MessageQueue(topic=topic, broker_name=place[0], queue_id=place[1])
        offset = whole(form.fields, "offset", -1, 0, 2**63 - 1)
        return _Reset(group_name, topic, LATEST, queue, offset)
    if to == "time":
        time_ms = texts.parse_time(required(form, "at", "the time"))
        return _Reset(group_name, topic, time_ms, None, None)
    if to in ("earliest", "latest"):
        return _Reset(group_name, topic, 0 if to == "earliest" else LATEST, None, None)
    raise OptionError(f"to {to[:20]!r}, allowed earliest, latest, time, offset")


async def _targets(admin: Admin, wanted: _Reset) -> dict[MessageQueue, int]:
    """Where each queue would go on."""
    stats = await admin.topic_stats(wanted.topic)
    made: dict[MessageQueue, int] = {}
    for queue, ends in sorted(stats.offset_table.items(), key=lambda each: each[0]):
        if wanted.queue is not None and queue != wanted.queue:
            continue
        if wanted.offset is not None:
            if not ends.min_offset <= wanted.offset <= ends.max_offset:
                raise OptionError(
                    f"offset {wanted.offset} is outside {ends.min_offset} to {ends.max_offset}"
                )
            made[queue] = wanted.offset
        elif wanted.timestamp_ms == LATEST:
            made[queue] = ends.max_offset
        elif wanted.timestamp_ms == 0:
            made[queue] = ends.min_offset
        else:
            made[queue] = await admin.search_offset(queue, wanted.timestamp_ms)
    if not made:
        raise OptionError(f"topic {wanted.topic} has no such queue")
    return made


async def _plan_reset(asker: Asker, form: Form) -> Plan:
    wanted = _reset_of(form)
    targets = await _targets(asker.admin, wanted)
    changes, skipped, repeated = [], 0, 0
    for queue, target in targets.items():
        current = await asker.admin.consumer_offset(wanted.group, queue)
        step = 0 if current is None else target - current
        skipped, repeated = skipped + max(step, 0), repeated + max(-step, 0)
        effect = "" if not step else f" ({abs(step)} {'skipped' if step > 0 else 'repeated'})"
        changes.append(
            (
                f"{queue.broker_name} queue {queue.queue_id}",
                "nothing committed" if current is None else str(current),
                f"{target}{effect}",
            )
        )
    warnings = []
    if skipped:
        warnings.append(f"{skipped} messages are skipped: the group never gets them.")
    if repeated:
        warnings.append(f"{repeated} messages are repeated: the group gets them once more.")
    # New messages move the end between preview and confirmation; a reset to the end allows it.
    moves = wanted.timestamp_ms == LATEST and wanted.offset is None
    binding = (
        "" if moves else repr(sorted((q.broker_name, q.queue_id, t) for q, t in targets.items()))
    )
    return Plan(
        f"Reset group {wanted.group} in {wanted.topic}", "Reset it", changes, warnings,
        binding=binding, is_dangerous=bool(skipped),
    )  # fmt: skip


async def _reset(asker: Asker, form: Form, plan: Plan) -> Outcome:
    wanted = _reset_of(form)
    offsets = await asker.admin.reset_offsets(
        wanted.group, wanted.topic, wanted.timestamp_ms, queue=wanted.queue, offset=wanted.offset
    )
    rows = [
        (each.broker_name, each.queue_id, offset)
        for each, offset in sorted(offsets.items(), key=lambda item: item[0])
    ]
    return Outcome(
        f"Group {wanted.group} goes on from here in {wanted.topic}.",
        header=("Broker", "Queue", "Offset"),
        rows=rows,
        links=[_link(wanted.group)],
    )


ROUTES: Final[dict[str, Page]] = {"/groups": groups, "/group": group, "/stack": stack}
WRITES: Final = {
    "group.save": Write(_plan_save, _save),
    "group.delete": Write(_plan_delete, _delete),
    "group.reset": Write(_plan_reset, _reset),
}
