"""``oberth group``: consumer groups of a cluster."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import click

from oberth.cli.lazy import SuggestingGroup
from oberth.cli.output import Moment, iso_time, one_line, say, tell, write_json
from oberth.cli.remote import (
    UNCHANGED,
    ask,
    cluster_option,
    json_option,
    namesrv_option,
    show,
    system_option,
    tell_silent,
)
from oberth.cli.store_query import TIME
from oberth.client.admin import LATEST, Admin, GroupProgress
from oberth.client.admin.base import Silent
from oberth.formats.names import PREDEFINED_GROUPS, is_system_group
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.remoting.bodies.running_info import ConsumerRunningInfo

QUESTIONS_MAX: Final = 16
"""Requests on their way at the same time."""

EXIT_LAG: Final = 1
EXIT_NOTHING: Final = 1


@click.group(cls=SuggestingGroup)
def group() -> None:
    """Make, list, watch, reset and delete consumer groups.

    Example: oberth group progress G
    """


@group.command("list")
@namesrv_option
@cluster_option
@system_option
@json_option
def list_(namesrv: str, cluster: str | None, with_system: bool, as_json: bool) -> None:
    """List the groups that any broker knows; exit code 1 if one does not answer."""
    silent: Silent = {}
    names = ask(namesrv, lambda admin: _groups(admin, cluster, silent, with_system=with_system))
    show(as_json, ["group"], [[name] for name in names])
    tell_silent(silent)


async def _groups(
    admin: Admin, cluster: str | None, silent: Silent, *, with_system: bool
) -> list[str]:
    """Names of groups, sorted; brokers that do not answer are put into ``silent``."""
    return [
        name
        for name in await admin.group_list(cluster, silent=silent)
        if with_system or not (is_system_group(name) or name in PREDEFINED_GROUPS)
    ]


@group.command()
@click.argument("name")
@namesrv_option
@cluster_option
@click.option(
    "--retries",
    type=click.IntRange(0, 1000),
    default=16,
    show_default=True,
    help="Deliveries again before a message becomes a dead letter.",
)
@click.option("--disable", is_flag=True, help="The group may not consume.")
@json_option
def create(
    name: str, namesrv: str, cluster: str | None, retries: int, disable: bool, as_json: bool
) -> None:
    """Make a group on every master, or change it there; exit code 1 if one does not answer."""
    silent: Silent = {}
    config = SubscriptionGroupConfig(
        group_name=name, retry_max_times=retries, consume_enable=not disable
    )
    ask(namesrv, lambda admin: admin.create_group(config, cluster=cluster, silent=silent))
    if as_json:
        write_json({"group": name, "retries": retries, "enabled": not disable})
    else:
        say(f"group {name}: {retries} attempts before a dead letter")
    tell_silent(silent, UNCHANGED)


@group.command()
@click.argument("name")
@namesrv_option
@cluster_option
@click.option("--keep-offsets", is_flag=True, help="Keep how far the group has come.")
@json_option
def delete(name: str, namesrv: str, cluster: str | None, keep_offsets: bool, as_json: bool) -> None:
    """Delete a group, its retry topic and its dead letters; exit code 1 if there is none.

    Exit code 1, too, if a broker does not answer: it keeps the group.
    """
    silent: Silent = {}

    async def remove(admin: Admin) -> bool:
        if name not in await admin.group_list(cluster, silent=silent):
            return False
        await admin.delete_group(
            name, cluster=cluster, remove_offset=not keep_offsets, silent=silent
        )
        return True

    deleted = ask(namesrv, remove)
    if as_json:
        write_json({"group": name, "deleted": deleted})
    else:
        say(f"group {name}: {'deleted' if deleted else 'there is none, nothing was deleted'}")
    tell_silent(silent, UNCHANGED)
    if not deleted:
        sys.exit(EXIT_NOTHING)


@group.command()
@click.argument("name", required=False)
@click.option("--topic", help="Only this topic.")
@namesrv_option
@system_option
@json_option
@click.option("--check", is_flag=True, help="Exit code 1 if there is a lag.")
def progress(
    name: str | None,
    topic: str | None,
    namesrv: str,
    with_system: bool,
    as_json: bool,
    check: bool,
) -> None:
    """Show how far a group is in every queue; without NAME how far all groups are.

    Exit code 1 if a broker does not answer.

    Example: oberth group progress --check
    """
    silent: Silent = {}
    if name is None:
        lag = _progress_of_all(namesrv, topic, silent, with_system=with_system, as_json=as_json)
        tell_silent(silent)
        if check and lag:
            sys.exit(EXIT_LAG)
        return
    found = ask(namesrv, lambda admin: admin.consume_stats(name, topic, silent=silent))
    header = ["topic", "broker", "queue", "broker offset", "consumer offset", "lag", "last"]
    rows = [
        [
            each.queue.topic,
            each.queue.broker_name,
            each.queue.queue_id,
            each.broker_offset,
            each.consumer_offset,
            each.lag,
            Moment(each.last_timestamp) if each.last_timestamp else None,
        ]
        for each in found.queues
    ]
    show(as_json, header, rows)
    say(f"lag {found.lag}, {found.tps:.1f} messages a second")
    tell_silent(silent)
    if check and found.lag:
        sys.exit(EXIT_LAG)


def _progress_of_all(
    namesrv: str, topic: str | None, silent: Silent, *, with_system: bool, as_json: bool
) -> int:
    """Shows a line for each group; the lag of all."""

    async def look(admin: Admin) -> list[GroupProgress]:
        names = await _groups(admin, None, silent, with_system=with_system)
        masters = {name: at for name, at in (await admin.masters()).items() if name not in silent}
        room = asyncio.Semaphore(QUESTIONS_MAX)

        async def one(name: str) -> GroupProgress:
            async with room:
                made = await admin.consume_stats_at(masters, name, silent=silent)
            if topic is not None:
                made.queues = [each for each in made.queues if each.queue.topic == topic]
            return made

        made = list(await asyncio.gather(*map(one, names)))
        if topic is not None:
            made = [each for each in made if each.queues]
            if not made:
                await admin.topic_queues(topic)  # raises where there is no such topic
        return made

    found = ask(namesrv, look)
    rows: list[list[Any]] = []
    for each in found:
        last = max((queue.last_timestamp for queue in each.queues), default=0)
        topics = {queue.queue.topic for queue in each.queues}
        rows.append(
            [
                *(each.group, len(topics), len(each.queues), each.lag, round(each.tps, 1)),
                Moment(last) if last > 0 else None,
            ]
        )
    show(as_json, ["group", "topics", "queues", "lag", "tps", "last"], rows)
    lag = sum(each.lag for each in found)
    say(f"{len(found)} groups, lag {lag}")
    return lag


@group.command()
@click.argument("name")
@namesrv_option
@json_option
def members(name: str, namesrv: str, as_json: bool) -> None:
    """Show the connected members of a group."""
    found = ask(namesrv, lambda admin: admin.consumer_connection(name))
    rows = [
        [each.client_id, each.client_addr, each.language, each.version]
        for each in found.connection_set
    ]
    show(as_json, ["client", "address", "language", "version"], rows)


@group.command()
@click.argument("name")
@click.argument("client", required=False)
@click.option("--stack", is_flag=True, help="Show the stacks of its threads, too.")
@namesrv_option
@json_option
def running(name: str, client: str | None, stack: bool, namesrv: str, as_json: bool) -> None:
    """Show what members of a group report about themselves: all of them, or CLIENT.

    Example: oberth group running G --stack
    """

    async def look(admin: Admin) -> dict[str, ConsumerRunningInfo]:
        clients = [client] if client else await _client_ids(admin, name)
        return {
            each: await admin.consumer_running_info(name, each, jstack=stack) for each in clients
        }

    found = ask(namesrv, look)
    if as_json:
        write_json([_running_json(name, each, info) for each, info in found.items()])
        return
    for each, info in found.items():
        tell(one_line(each))
        show(False, ["property", "value"], [[k, v] for k, v in sorted(info.properties.items())])
        click.echo()
        rows = [
            [
                *(queue.topic, queue.broker_name, queue.queue_id),
                *(state.commit_offset, state.cached_msg_count, state.cached_msg_size_in_mi_b),
                Moment(state.last_consume_timestamp) if state.last_consume_timestamp else None,
            ]
            for queue, state in sorted(info.mq_table.items(), key=lambda item: item[0])
        ]
        show(
            False, ["topic", "broker", "queue", "committed", "cached", "MiB", "last consumed"], rows
        )
        click.echo()
        if info.jstack:
            tell(info.jstack)
        elif stack:
            say(f"{each} told no stack")


async def _client_ids(admin: Admin, name: str) -> list[str]:
    found = await admin.consumer_connection(name)
    return sorted(each.client_id for each in found.connection_set)


def _running_json(name: str, client: str, info: ConsumerRunningInfo) -> dict[str, Any]:
    return {
        "group": name,
        "clientId": client,
        "properties": info.properties,
        "subscriptions": [
            {"topic": each.topic, "type": each.expression_type, "expression": each.sub_string}
            for each in info.subscription_set
        ],
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "commitOffset": state.commit_offset,
                "cachedMessages": state.cached_msg_count,
                "cachedMiB": state.cached_msg_size_in_mi_b,
                "locked": state.locked,
                "lastPull": _time(state.last_pull_timestamp),
                "lastConsume": _time(state.last_consume_timestamp),
            }
            for queue, state in sorted(info.mq_table.items(), key=lambda item: item[0])
        ],
        "stack": info.jstack,
    }


def _time(timestamp_ms: int) -> str | None:
    return iso_time(timestamp_ms) if timestamp_ms else None


@group.command()
@click.argument("name")
@click.argument("topic")
@click.option("--to", "to", type=TIME, help="Go to a time: ms since 1970 or ISO 8601.")
@click.option("--earliest", is_flag=True, help="Go to the beginning.")
@click.option("--latest", is_flag=True, help="Go to the end.")
@namesrv_option
@json_option
def reset(
    name: str,
    topic: str,
    to: int | None,
    earliest: bool,
    latest: bool,
    namesrv: str,
    as_json: bool,
) -> None:
    """Move a group's offsets to a time, to the beginning or to the end of a topic.

    Exit code 1 if a broker does not answer: offsets in its queues stay.
    """
    if (to is not None) + earliest + latest != 1:
        raise click.UsageError("one of --to, --earliest and --latest is needed")
    timestamp_ms = LATEST if latest else 0 if to is None else to
    silent: Silent = {}

    async def move(admin: Admin) -> list[list[object]]:
        offsets = await admin.reset_offsets(name, topic, timestamp_ms, silent=silent)
        return [
            [queue.broker_name, queue.queue_id, offset]
            for queue, offset in sorted(offsets.items(), key=lambda each: each[0])
        ]

    show(as_json, ["broker", "queue", "offset"], ask(namesrv, move))
    tell_silent(silent, UNCHANGED)
