"""``oberth topic``: topics of a cluster."""

from __future__ import annotations

import asyncio
import contextlib

import click

from oberth.cli.output import say
from oberth.cli.remote import ask, cluster_option, json_option, namesrv_option, show
from oberth.client.admin import Admin
from oberth.errors import MQBrokerError

ANNOUNCED_TIMEOUT_S = 3.0
ANNOUNCED_STEP_S = 0.02
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
