"""``oberth group``: consumer groups of a cluster."""

from __future__ import annotations

import sys

import click

from oberth.cli.output import say, time_text
from oberth.cli.remote import ask, cluster_option, json_option, namesrv_option, show
from oberth.cli.store_query import TIME
from oberth.client.admin import LATEST, Admin
from oberth.formats.subscription_group import SubscriptionGroupConfig

EXIT_LAG = 1


@click.group()
def group() -> None:
    """Make, list, watch, reset and delete consumer groups.

    Example: oberth group progress G
    """


@group.command("list")
@namesrv_option
@cluster_option
@json_option
def list_(namesrv: str, cluster: str | None, as_json: bool) -> None:
    """List the groups that any broker knows."""
    names = ask(namesrv, lambda admin: admin.group_list(cluster))
    show(as_json, ["group"], [[name] for name in sorted(names)])


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
def create(name: str, namesrv: str, cluster: str | None, retries: int, disable: bool) -> None:
    """Make a group on every master, or change it there."""
    config = SubscriptionGroupConfig(
        group_name=name, retry_max_times=retries, consume_enable=not disable
    )
    ask(namesrv, lambda admin: admin.create_group(config, cluster=cluster))
    say(f"group {name}: {retries} attempts before a dead letter")


@group.command()
@click.argument("name")
@namesrv_option
@cluster_option
@click.option("--keep-offsets", is_flag=True, help="Keep how far the group has come.")
def delete(name: str, namesrv: str, cluster: str | None, keep_offsets: bool) -> None:
    """Delete a group, its retry topic and its dead letters."""
    ask(
        namesrv,
        lambda admin: admin.delete_group(name, cluster=cluster, remove_offset=not keep_offsets),
    )
    say(f"group {name}: deleted")


@group.command()
@click.argument("name")
@click.option("--topic", help="Only this topic.")
@namesrv_option
@json_option
@click.option("--check", is_flag=True, help="Exit code 1 if there is a lag.")
def progress(name: str, topic: str | None, namesrv: str, as_json: bool, check: bool) -> None:
    """Show how far a group is in every queue."""
    found = ask(namesrv, lambda admin: admin.consume_stats(name, topic))
    header = ["topic", "broker", "queue", "broker offset", "consumer offset", "lag", "last"]
    rows = [
        [
            each.queue.topic,
            each.queue.broker_name,
            each.queue.queue_id,
            each.broker_offset,
            each.consumer_offset,
            each.lag,
            time_text(each.last_timestamp) if each.last_timestamp else None,
        ]
        for each in found.queues
    ]
    show(as_json, header, rows)
    say(f"lag {found.lag}, {found.tps:.1f} messages a second")
    if check and found.lag:
        sys.exit(EXIT_LAG)


@group.command()
@click.argument("name")
@namesrv_option
@json_option
def members(name: str, namesrv: str, as_json: bool) -> None:
    """Show who of a group is connected."""
    found = ask(namesrv, lambda admin: admin.consumer_connection(name))
    rows = [
        [each.client_id, each.client_addr, each.language, each.version]
        for each in found.connection_set
    ]
    show(as_json, ["client", "address", "language", "version"], rows)


@group.command()
@click.argument("name")
@click.argument("topic")
@click.option("--to", "to", type=TIME, help="A time: ms since 1970 or ISO 8601.")
@click.option("--earliest", is_flag=True, help="The beginning.")
@click.option("--latest", is_flag=True, help="The end.")
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
    """Have a group go on at a time, at the beginning or at the end of a topic."""
    if (to is not None) + earliest + latest != 1:
        raise click.UsageError("one of --to, --earliest and --latest is needed")
    timestamp_ms = LATEST if latest else 0 if to is None else to

    async def move(admin: Admin) -> list[list[object]]:
        offsets = await admin.reset_offsets(name, topic, timestamp_ms)
        return [
            [queue.broker_name, queue.queue_id, offset]
            for queue, offset in sorted(offsets.items(), key=lambda each: each[0])
        ]

    show(as_json, ["broker", "queue", "offset"], ask(namesrv, move))
