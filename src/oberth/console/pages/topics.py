"""Topics: the list, the page of one topic, and the changes that can be made to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.console import texts
from oberth.console.cluster import Part, State
from oberth.console.console import Asker, Console, Page, Write
from oberth.console.figures import Figures
from oberth.console.security import Form
from oberth.console.writes import Outcome, Plan, required, whole
from oberth.errors import MQBrokerError, OberthError, OptionError, RemotingError
from oberth.formats import names
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.bodies.stats import TopicStatsTable
from oberth.remoting.code import ResponseCode

PAGE_SIZE: Final = 50
QUEUES_MAX: Final = 1024
MESSAGE_TYPES: Final = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE")
PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}


async def topics(console: Console, request: Request) -> Response:
    """The list, searched and paged here."""
    query = request.query_params
    state = await console.cluster.soon(Part.TOPICS)
    with_system = query.get("system") == "1"
    text = query.get("q", "").strip()
    found = sorted(state.topics) if with_system else state.user_topics()
    if text:
        found = [name for name in found if text.lower() in name.lower()]
    sort = query.get("sort", "name")
    history = console.cluster.history
    if sort == "rate":
        found.sort(key=lambda name: (-(history.last(("topic", name)) or 0.0), name))
    elif sort == "kept":
        found.sort(key=lambda name: (-kept(state, name), name))
    page, page_count, rows = paged(found, query.get("page", "1"))
    await console.cluster.with_ends(state, rows)
    consumers: dict[str, int] | None = {} if state.has >= Part.OFFSETS else None
    if consumers is not None:
        for topics_of in state.offsets.values():
            for topic in topics_of:
                consumers[topic] = consumers.get(topic, 0) + 1
    return console.render(
        request,
        "topics.html",
        rows=[_row(console, state, name, consumers) for name in rows],
        count=len(found),
        page=page,
        page_count=page_count,
        text=text,
        sort=sort,
        with_system=with_system,
        clusters=sorted(state.clusters.cluster_addr_table),
        message_types=MESSAGE_TYPES,
    )


def paged(found: list[str], page_text: str) -> tuple[int, int, list[str]]:
    """The page that is meant, how many there are, and its rows."""
    page, count = paged_count(len(found), page_text)
    return page, count, found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]


def paged_count(rows: int, page_text: str) -> tuple[int, int]:
    """The page that is meant, and how many there are."""
    count = max((rows + PAGE_SIZE - 1) // PAGE_SIZE, 1)
    is_number = page_text.isascii() and page_text.isdigit() and len(page_text) < 20
    return min(max(int(page_text) if is_number else 1, 1), count), count


def kept(state: State, topic: str) -> int:
    """Messages of a topic that can be read, as far as it is known."""
    return sum(
        max(each.max_offset - each.min_offset, 0) for each in state.ends.get(topic, {}).values()
    )


def _row(
    console: Console, state: State, topic: str, consumers: dict[str, int] | None
) -> dict[str, Any]:
    configs = state.topics.get(topic, {})
    ends = state.ends.get(topic, {})
    return {
        "name": topic,
        "brokers": len(configs),
        "queues": sum(each.write_queue_nums for each in configs.values()),
        "perm": _common([texts.permission(each.perm) for each in configs.values()]),
        "type": _common([each.attributes.get("message.type", "") for each in configs.values()]),
        "rate": console.cluster.history.last(("topic", topic)),
        "kept": kept(state, topic) if topic in state.ends else None,
        "last": max((each.last_update_timestamp for each in ends.values()), default=0),
        "groups": None if consumers is None else consumers.get(topic, 0),
    }


def _common(values: list[str]) -> str:
    found = sorted(set(values))
    return found[0] if len(found) == 1 else "differs by broker" if found else ""


async def topic(console: Console, request: Request) -> Response:
    """One topic."""
    name = known_topic_name(request.query_params.get("name", ""))
    admin = console.admin_of(request)
    silent: Silent = {}
    stats = await known_stats(admin, name, silent)
    state = await console.cluster.soon(Part.OFFSETS)
    configs = await _configs(admin, state, name)
    await console.cluster.with_ends(state, [name])
    figures = Figures(console, request, state)
    figure = await figures.plot(
        "Messages in", [(name, ("topic", name))], value_text=texts.rate, unit="a second"
    )
    groups = await admin.topic_consumed_by(name, silent=silent)
    lags = {group: _lag_in(state, stats, group, name) for group in groups}
    producers, producers_problem = await _producers(admin, state, configs)
    return console.render(
        request,
        "topic.html",
        section="/topics",
        name=name,
        is_system=state.is_system_topic(name),
        queues=sorted(stats.offset_table.items(), key=lambda each: each[0]),
        kept=sum(each.max_offset - each.min_offset for each in stats.offset_table.values()),
        figures=figures,
        figure=figure,
        configs=sorted(configs.items()),
        groups=groups,
        lags=lags,
        members=state.members,
        producers=producers,
        producers_problem=producers_problem,
        silent=silent,
        can_purge=await _can_purge(admin, name),
    )


def known_topic_name(name: str) -> str:
    """A name that some broker may have stored.

    Raises:
        OptionError: none would.
    """
    if not names.is_stored_topic(name):
        raise OptionError(f"topic {name[:60]!r}: no name of a topic")
    return name


async def known_stats(admin: Admin, topic: str, silent: Silent) -> TopicStatsTable:
    """Both ends of the queues of those brokers that answer; the others are put into ``silent``.

    Raises:
        RemotingError: none answers.
    """
    stats = await admin.topic_stats(topic, silent=silent)
    if silent and not stats.offset_table:
        raise next(iter(silent.values()))
    return stats


async def _configs(admin: Admin, state: State, name: str) -> dict[str, TopicConfig]:
    found = {}
    for broker in state.topics.get(name, {}):
        try:
            found[broker] = await admin.topic_config(state.masters[broker], name)
        except (OberthError, KeyError):
            found[broker] = state.topics[name][broker]  # brokers before 5.0 do not tell one alone
    return found


def _lag_in(state: State, stats: TopicStatsTable, group: str, topic: str) -> int | None:
    offsets = state.offsets.get(group, {}).get(topic)
    if offsets is None:
        return None
    return sum(
        max(ends.max_offset - max(offsets.get((q.broker_name, q.queue_id), 0), ends.min_offset), 0)
        for q, ends in stats.offset_table.items()
    )


async def _producers(
    admin: Admin, state: State, configs: dict[str, TopicConfig]
) -> tuple[list[Any], str]:
    rows: dict[tuple[str, str], Any] = {}
    for broker in configs:
        address = state.masters.get(broker)
        if address is None:
            continue
        try:
            found = await admin.producers(address)
        except RemotingError:
            continue  # the page says so
        except OberthError as error:
            return [], str(error)
        for group, clients in found.items():
            for each in clients:
                rows[group, each.client_id] = (group, each)
    return [rows[key] for key in sorted(rows)][:200], ""


async def _can_purge(admin: Admin, name: str) -> bool:
    """Whether its brokers can purge a topic's past: Oberth's can."""
    try:
        return bool(await admin.purge_topic(name, before_ms=0, dry_run=True))
    except OberthError:
        return False


# Writes


async def _plan_create(asker: Asker, form: Form) -> Plan:
    name = names.check_topic(required(form, "name", "the topic's name"))
    queues = whole(form.fields, "queues", 8, 1, QUEUES_MAX)
    cluster = form.fields.get("cluster") or None
    masters = await asker.admin.masters(cluster)
    state = await asker.console.cluster.fresh()
    if name in state.topics:
        raise OptionError(f"topic {name} exists already; its page changes it")
    changes = [
        ("topic", "–", name),
        ("brokers", "–", ", ".join(sorted(masters)) or "none"),
        ("queues on each", "–", str(queues)),
        ("messages", "–", _type_of(form) or "of any type"),
    ]
    return Plan(f"Create topic {name}", "Create it", changes)


def _type_of(form: Form) -> str:
    kind = form.fields.get("type", "")
    if kind not in MESSAGE_TYPES:
        raise OptionError(f"message type {kind[:40]!r}, allowed {', '.join(MESSAGE_TYPES[1:])}")
    return kind


async def _create(asker: Asker, form: Form, plan: Plan) -> Outcome:
    name = required(form, "name", "the topic's name")
    kind = _type_of(form)
    await asker.admin.create_topic(
        name,
        queue_nums=whole(form.fields, "queues", 8, 1, QUEUES_MAX),
        cluster=form.fields.get("cluster") or None,
        attributes={"message.type": kind} if kind else None,
    )
    return Outcome(f"Topic {name} is there.", links=[_link(name)])


def _link(name: str) -> tuple[str, str]:
    return (f"Topic {texts.plain(name)}", texts.href("/topic", name=name))


async def _current(asker: Asker, name: str) -> dict[str, TopicConfig]:
    asker.console.cluster.forget()
    state = await asker.console.cluster.fresh()
    found = state.topics.get(name)
    if not found:
        raise MQBrokerError(ResponseCode.TOPIC_NOT_EXIST, f"no topic {name!r}")
    return found


def _wanted(form: Form, current: TopicConfig) -> TopicConfig:
    perm = form.fields.get("perm", "")
    if perm not in PERMISSIONS:
        raise OptionError(f"permission {perm[:20]!r}, allowed {', '.join(PERMISSIONS)}")
    return replace(
        current,
        read_queue_nums=whole(form.fields, "read_queues", current.read_queue_nums, 1, QUEUES_MAX),
        write_queue_nums=whole(
            form.fields, "write_queues", current.write_queue_nums, 1, QUEUES_MAX
        ),
        perm=PERMISSIONS[perm],
    )


async def _plan_change(asker: Asker, form: Form) -> Plan:
    name = names.check_topic(required(form, "name", "the topic's name"))
    changes, fewer = [], False
    for broker, config in sorted((await _current(asker, name)).items()):
        wanted = _wanted(form, config)
        for what, before, after in (
            ("queues to read", str(config.read_queue_nums), str(wanted.read_queue_nums)),
            ("queues to write", str(config.write_queue_nums), str(wanted.write_queue_nums)),
            ("allowed", texts.permission(config.perm), texts.permission(wanted.perm)),
        ):
            if before != after:
                changes.append((f"{broker}: {what}", before, after))
        fewer |= wanted.read_queue_nums < config.read_queue_nums
    if not changes:
        raise OptionError(f"topic {name} is so already")
    warnings = ["Messages in queues that nobody reads any more are not consumed."] if fewer else []
    return Plan(f"Change topic {name}", "Change it", changes, warnings, binding=repr(changes))


async def _change(asker: Asker, form: Form, plan: Plan) -> Outcome:
    name = required(form, "name", "the topic's name")
    masters = asker.console.cluster.state.masters
    for broker, config in sorted((await _current(asker, name)).items()):
        if broker in masters:
            await asker.admin.put_topic_config(masters[broker], _wanted(form, config), config)
    return Outcome(f"Topic {name} is changed.", links=[_link(name)])


async def _plan_delete(asker: Asker, form: Form) -> Plan:
    name = known_topic_name(required(form, "name", "the topic's name"))
    state = await asker.console.cluster.fresh()
    if names.is_system_topic(name) or name in state.own_topics():
        raise OptionError(f"topic {name} is the brokers' own")
    stats = await asker.admin.topic_stats(name)
    count = sum(each.max_offset - each.min_offset for each in stats.offset_table.values())
    groups = await asker.admin.topic_consumed_by(name)
    changes = [
        ("topic", name, "–"),
        ("messages kept", texts.number(count), "–"),
        ("offsets of groups", ", ".join(groups) or "none", "–"),
    ]
    warnings = ["The messages and how far groups have come in them are gone for good."]
    return Plan(
        f"Delete topic {name}", "Delete it", changes, warnings,
        binding=repr((count > 0, sorted(groups))), is_dangerous=True,
    )  # fmt: skip


async def _delete(asker: Asker, form: Form, plan: Plan) -> Outcome:
    name = required(form, "name", "the topic's name")
    await asker.admin.delete_topic(name)
    return Outcome(f"Topic {name} is deleted.", links=[("All topics", "/topics")])


def _purge_arguments(form: Form) -> tuple[str, int, bool]:
    name = known_topic_name(required(form, "name", "the topic's name"))
    before_ms = texts.parse_time(required(form, "before", "the time"))
    return name, before_ms, form.fields.get("force") == "1"


async def _plan_purge(asker: Asker, form: Form) -> Plan:
    name, before_ms, force = _purge_arguments(form)
    answers = await asker.admin.purge_topic(name, before_ms=before_ms, dry_run=True)
    changes, unread = [], set()
    for address, answer in sorted(answers.items()):
        unread |= {each["group"] for each in answer["unread"]}
        changes += [
            (
                f"{address} queue {each['queueId']}: first message",
                str(each["minOffset"]),
                str(each["minOffsetAfter"]),
            )
            for each in answer["queues"]
            if each["minOffset"] != each["minOffsetAfter"]
        ]
    if not changes:
        raise OptionError(f"topic {name} has no message from before {texts.time_text(before_ms)}")
    warnings = ["Readers no longer find these messages."]
    if unread:
        warnings.append(f"Not all consumed by: {', '.join(sorted(unread))}.")
        if not force:
            raise OptionError(
                f"{', '.join(sorted(unread))} has not consumed all of it; tick the box to purge it "
                "nevertheless"
            )
    return Plan(
        f"Purge topic {name}", "Purge it", changes, warnings,
        binding=repr(sorted(unread)), is_dangerous=True,
    )  # fmt: skip


async def _purge(asker: Asker, form: Form, plan: Plan) -> Outcome:
    name, before_ms, force = _purge_arguments(form)
    await asker.admin.purge_topic(name, before_ms=before_ms, force=force)
    return Outcome(f"Topic {name} begins later now.", links=[_link(name)])


ROUTES: Final[dict[str, Page]] = {"/topics": topics, "/topic": topic}
WRITES: Final = {
    "topic.create": Write(_plan_create, _create),
    "topic.change": Write(_plan_change, _change),
    "topic.delete": Write(_plan_delete, _delete),
    "topic.purge": Write(_plan_purge, _purge),
}
