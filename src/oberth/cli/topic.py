"""``oberth topic``: topics of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import click

from oberth.cli.output import say
from oberth.cli.remote import ask, cluster_option, json_option, namesrv_option, show
from oberth.cli.store_query import TIME
from oberth.client.admin import Admin
from oberth.errors import MQBrokerError
from oberth.remoting.bodies.base import MessageQueue

ANNOUNCED_TIMEOUT_S = 3.0
ANNOUNCED_STEP_S = 0.02
EXIT_REFUSED = 1
PERMISSIONS = {"rw": 6, "r": 4, "w": 2, "none": 0}


@click.group()
def topic() -> None:
    """Make, list, show and delete topics, on our brokers and on Apache's.

    Example: oberth topic create Flights --queues 4
    """


@topic.command("list")
@namesrv_option
@cluster_option
@json_option
def list_(namesrv: str, cluster: str | None, as_json: bool) -> None:
    """List the topics that the name server knows."""
    names = ask(namesrv, lambda admin: admin.topic_list(cluster))
    show(as_json, ["topic"], [[name] for name in sorted(names)])


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
@click.option("--order", is_flag=True, help="An order topic.")
@click.option(
    "--attribute",
    "attributes",
    metavar="NAME=VALUE",
    multiple=True,
    help="For example message.type=FIFO. Repeatable.",
)
def create(
    name: str,
    namesrv: str,
    cluster: str | None,
    queues: int,
    perm: str,
    order: bool,
    attributes: tuple[str, ...],
) -> None:
    """Make a topic on every master, or change it there."""
    changes = {}
    for each in attributes:
        key, found, value = each.partition("=")
        if not found or not key:
            raise click.UsageError(f"--attribute {each!r} is not NAME=VALUE")
        changes[key.lstrip("+")] = value

    async def make(admin: Admin) -> None:
        await admin.create_topic(
            name,
            queue_nums=queues,
            cluster=cluster,
            perm=PERMISSIONS[perm],
            order=order,
            attributes=changes or None,
        )
        await _wait_announced(admin, name, queues, everywhere=cluster is None)

    ask(namesrv, make)
    say(f"topic {name}: {queues} queues on every broker, {perm}")


async def _wait_announced(admin: Admin, name: str, queues: int, *, everywhere: bool) -> None:
    """Until the name servers know it as it is now: brokers tell them after they have answered.

    Whoever sends before that is given the queues of the default topic, which may be more.
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
@click.option("--before", type=TIME, help="What was stored earlier: ms since 1970 or ISO 8601.")
@click.option(
    "--offset",
    "offsets",
    metavar="BROKER:QUEUE=OFFSET",
    multiple=True,
    help="What is below a queue offset. Repeatable.",
)
@click.option("--force", is_flag=True, help="Also what groups have not consumed.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
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
    """Purge a topic's past on every broker of it; Oberth's brokers only.

    Readers no longer find the messages, by queue, key or id; their bytes leave the disk with the
    segment they lie in. Refused with exit code 1 while a group has not consumed them, unless
    --force.

    Example: oberth topic purge Orders --before 2026-01-01 --dry-run
    """
    if (before is None) == (not offsets):
        raise click.UsageError("one of --before and --offset is needed")
    wanted = [(None, None)] if before is not None else [_place(name, text) for text in offsets]

    async def work(admin: Admin) -> list[list[Any]]:
        rows = []
        plans = [
            await admin.purge_topic(
                name, before_ms=before, queue=queue, offset=offset, dry_run=True
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
                    name, before_ms=before, queue=queue, offset=offset, force=force
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
        sys.exit(EXIT_REFUSED)
    show(as_json, ["broker", "queue", "min offset", "then" if dry_run else "now"], rows)


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
def delete(name: str, namesrv: str, cluster: str | None) -> None:
    """Delete a topic and every group's offsets in it."""
    ask(namesrv, lambda admin: admin.delete_topic(name, cluster))
    say(f"topic {name}: deleted")


@topic.command("show")
@click.argument("name")
@namesrv_option
@json_option
def show_(name: str, namesrv: str, as_json: bool) -> None:
    """Show both ends of a topic's queues."""
    from oberth.cli.output import time_text

    stats = ask(namesrv, lambda admin: admin.topic_stats(name))
    rows = [
        [
            queue.broker_name,
            queue.queue_id,
            found.min_offset,
            found.max_offset,
            time_text(found.last_update_timestamp) if found.last_update_timestamp else None,
        ]
        for queue, found in sorted(stats.offset_table.items(), key=lambda each: each[0])
    ]
    show(as_json, ["broker", "queue", "min offset", "max offset", "last message"], rows)
