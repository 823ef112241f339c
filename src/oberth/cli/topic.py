"""``oberth topic``: topics of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, Final

import click

from oberth.cli.lazy import SuggestingGroup
from oberth.cli.output import Moment, say, write_json
from oberth.cli.remote import (
    UNCHANGED,
    ask,
    broker_topics,
    cluster_option,
    json_option,
    namesrv_option,
    parse_pairs,
    show,
    system_option,
    tell_silent,
)
from oberth.cli.store_query import TIME
from oberth.client.admin import Admin
from oberth.client.admin.base import Silent, ask_each
from oberth.errors import MQBrokerError
from oberth.formats.names import is_system_topic
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.route import MASTER_ID
from oberth.remoting.bodies.stats import TopicStatsTable

ANNOUNCED_TIMEOUT_S: Final = 3.0
ANNOUNCED_STEP_S: Final = 0.02
EXIT_REFUSED: Final = 1
EXIT_NOTHING: Final = 1
PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}


@click.group(cls=SuggestingGroup)
def topic() -> None:
    """Make, list, show and delete topics, on Oberth's brokers and on Apache's.

    Example: oberth topic create Flights --queues 4
    """


@topic.command("list")
@namesrv_option
@cluster_option
@system_option
@json_option
def list_(namesrv: str, cluster: str | None, with_system: bool, as_json: bool) -> None:
    """List the topics that the name server knows."""

    async def look(admin: Admin) -> list[str]:
        if cluster is not None:
            await admin.masters(cluster)  # a name server answers with nothing for any name
        names = await admin.topic_list(cluster)
        if with_system:
            return names
        own = await broker_topics(admin)
        return [name for name in names if not (name in own or is_system_topic(name))]

    show(as_json, ["topic"], [[name] for name in ask(namesrv, look)])


@topic.command()
@click.argument("name")
@namesrv_option
@cluster_option
@click.option(
    "--queues",
    type=click.IntRange(1, 65536),
    default=8,
    show_default=True,
    help="Queues on each master.",
)
@click.option(
    "--perm",
    type=click.Choice(list(PERMISSIONS)),
    default="rw",
    show_default=True,
    help="What clients may do.",
)
@click.option("--order", is_flag=True, help="Make it an order topic.")
@click.option(
    "--attribute",
    "attributes",
    metavar="NAME=VALUE",
    multiple=True,
    help="For example message.type=FIFO. Repeatable.",
)
@json_option
def create(
    name: str,
    namesrv: str,
    cluster: str | None,
    queues: int,
    perm: str,
    order: bool,
    attributes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a topic on every master, or change it there; exit code 1 if one does not answer."""
    pairs = parse_pairs(attributes, "--attribute")
    changes = {key.lstrip("+"): value for key, value in pairs.items()}
    silent: Silent = {}

    async def make(admin: Admin) -> None:
        await admin.create_topic(
            name,
            queue_nums=queues,
            cluster=cluster,
            perm=PERMISSIONS[perm],
            order=order,
            attributes=changes or None,
            silent=silent,
        )
        everywhere = cluster is None and not silent
        await _wait_announced(admin, name, queues, everywhere=everywhere)

    ask(namesrv, make)
    if as_json:
        write_json({"topic": name, "queues": queues, "perm": perm})
    else:
        everywhere = "every broker that answers" if silent else "every broker"
        say(f"topic {name}: {queues} queues on {everywhere}, {perm}")
    tell_silent(silent, UNCHANGED)


async def _wait_announced(admin: Admin, name: str, queues: int, *, everywhere: bool) -> None:
    """Until the name servers know it as it is now: brokers tell them after they have answered.

    A message that is sent before gets the queues of the default topic, which may be more.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANNOUNCED_TIMEOUT_S):
            while True:
                with contextlib.suppress(MQBrokerError):
                    route = await admin.topic_route(name)
                    shown = [each.write_queue_nums == queues for each in route.queue_datas]
                    if all(shown) if everywhere else any(shown):
                        return
                await asyncio.sleep(ANNOUNCED_STEP_S)


@topic.command()
@click.argument("name")
@click.option(
    "--before", type=TIME, help="Purge messages stored before: ms since 1970 or ISO 8601."
)
@click.option(
    "--offset",
    "offsets",
    metavar="BROKER:QUEUE=OFFSET",
    multiple=True,
    help="Purge messages below a queue offset. Repeatable.",
)
@click.option("--force", is_flag=True, help="Delete also what groups have not consumed.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@namesrv_option
@json_option
def purge(
    name: str,
    before: int | None,
    offsets: tuple[str, ...],
    force: bool,
    dry_run: bool,
    namesrv: str,
    as_json: bool,
) -> None:
    """Purge a topic's older messages on all of its brokers; Oberth's brokers only.

    Readers no longer find the messages, by queue, key or id; their bytes leave the disk with the
    segment they lie in. Refused with exit code 1 while a group has not consumed them, unless
    --force. Exit code 1, too, if a broker does not answer: its messages stay.

    Example: oberth topic purge Orders --before 2026-01-01 --dry-run
    """
    if (before is None) == (not offsets):
        raise click.UsageError("one of --before and --offset is needed")
    wanted = [(None, None)] if before is not None else [_place(name, text) for text in offsets]
    silent: Silent = {}

    async def work(admin: Admin) -> list[list[Any]]:
        rows = []
        plans = [
            await admin.purge_topic(
                name, before_ms=before, queue=queue, offset=offset, dry_run=True, silent=silent
            )
            for queue, offset in wanted
        ]
        unread = {
            each["group"] for plan in plans for answer in plan.values() for each in answer["unread"]
        }
        if unread:
            say(f"not all consumed: {', '.join(sorted(unread))}")
            if not (force or dry_run):
                return []
        for (queue, offset), plan in zip(wanted, plans, strict=True):
            answers = plan
            if not dry_run:
                answers = await admin.purge_topic(
                    name, before_ms=before, queue=queue, offset=offset, force=force, silent=silent
                )
            for address, answer in answers.items():
                rows += [
                    [address, each["queueId"], each["minOffset"], each["minOffsetAfter"]]
                    for each in answer["queues"]
                ]
        return rows

    rows = ask(namesrv, work)
    if not rows:
        say("nothing was purged")
        tell_silent(silent)
        sys.exit(EXIT_REFUSED)
    after = "min offset after" if as_json else "then" if dry_run else "now"
    show(as_json, ["broker", "queue", "min offset", after], rows)
    tell_silent(silent, UNCHANGED)


def _place(topic_name: str, text: str) -> tuple[MessageQueue, int]:
    """A queue and an offset from BROKER:QUEUE=OFFSET."""
    broker, _, rest = text.rpartition(":")
    queue, _, offset = rest.partition("=")
    if not (
        broker and queue.isascii() and queue.isdigit() and offset.isascii() and offset.isdigit()
    ):
        raise click.UsageError(f"--offset {text!r} is not BROKER:QUEUE=OFFSET")
    queue_of = MessageQueue(topic=topic_name, broker_name=broker, queue_id=int(queue))
    return queue_of, int(offset)


@topic.command()
@click.argument("name")
@namesrv_option
@cluster_option
@json_option
def delete(name: str, namesrv: str, cluster: str | None, as_json: bool) -> None:
    """Delete a topic and every group's offsets in it; exit code 1 if there is none.

    Exit code 1, too, if a broker does not answer: it keeps the topic.
    """
    silent: Silent = {}

    async def remove(admin: Admin) -> bool:
        if not await _is_there(admin, name, cluster, silent):
            return False
        await admin.delete_topic(name, cluster, silent=silent)
        return True

    deleted = ask(namesrv, remove)
    if as_json:
        write_json({"topic": name, "deleted": deleted})
    else:
        say(f"topic {name}: {'deleted' if deleted else 'there is none, nothing was deleted'}")
    tell_silent(silent, UNCHANGED)
    if not deleted:
        sys.exit(EXIT_NOTHING)


async def _is_there(admin: Admin, name: str, cluster: str | None, silent: Silent) -> bool:
    """Whether a name server knows the topic, or a broker that has not announced it yet."""
    if name in await admin.topic_list(cluster):
        return True
    masters = await admin.masters(cluster)
    tables = await ask_each(masters, lambda _, addr: admin.all_topic_configs(addr), silent)
    return any(name in table for table in tables.values())


@topic.command("show")
@click.argument("name")
@namesrv_option
@json_option
def show_(name: str, namesrv: str, as_json: bool) -> None:
    """Show both ends of a topic's queues; exit code 1 if a broker of it does not answer."""
    silent: Silent = {}

    async def look(admin: Admin) -> TopicStatsTable:
        found = await admin.topic_stats(name, silent=silent)
        if silent and not found.offset_table:
            raise next(iter(silent.values()))
        return found

    stats = ask(namesrv, look)
    rows = [
        [
            queue.broker_name,
            queue.queue_id,
            found.min_offset,
            found.max_offset,
            Moment(found.last_update_timestamp) if found.last_update_timestamp else None,
        ]
        for queue, found in sorted(stats.offset_table.items(), key=lambda each: each[0])
    ]
    show(as_json, ["broker", "queue", "min offset", "max offset", "last message"], rows)
    tell_silent(silent)


@topic.command()
@click.argument("name")
@click.option("--group", help="Only producers of this group.")
@namesrv_option
@json_option
def producers(name: str, group: str | None, namesrv: str, as_json: bool) -> None:
    """Show the producers that the topic's brokers know; exit code 1 if there is none.

    Producers tell brokers their group, not their topics: those that send to other topics of the
    same brokers are among them.

    Example: oberth topic producers Flights
    """
    silent: Silent = {}

    async def look(admin: Admin) -> list[list[Any]]:
        masters = {
            data.broker_name: data.broker_addrs[MASTER_ID]
            for data in (await admin.topic_route(name)).broker_datas
            if MASTER_ID in data.broker_addrs
        }
        answers = await ask_each(masters, lambda _, addr: admin.producers(addr), silent)
        return [
            [
                *(broker, known, each.client_id, each.remote_ip),
                *(each.language, each.version),
                Moment(each.last_update_timestamp) if each.last_update_timestamp else None,
            ]
            for broker, found in sorted(answers.items())
            for known, clients in sorted(found.items())
            for each in clients
            if group in (None, known)
        ]

    rows = ask(namesrv, look)
    header = ["broker", "group", "client", "address", "language", "version", "last seen"]
    show(as_json, header, rows)
    tell_silent(silent)
    if not rows:
        say(f"topic {name}: no producer is connected")
        sys.exit(EXIT_NOTHING)
