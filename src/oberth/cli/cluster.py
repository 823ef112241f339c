"""``oberth cluster``: the brokers of a cluster."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any, Final

import click

from oberth.cli.cluster_compare import compare
from oberth.cli.cluster_config import config
from oberth.cli.cluster_dump import apply, dump
from oberth.cli.cluster_failover import failover
from oberth.cli.lazy import SuggestingGroup
from oberth.cli.output import say, write_json
from oberth.cli.remote import ask, broker_address, json_option, namesrv_option, show
from oberth.cli.retention_output import show_report
from oberth.cli.top_view import first_rate
from oberth.client.admin import Admin
from oberth.errors import MQBrokerError, MQClientError, RemotingError

EXIT_UNREAD: Final = 1
EXIT_NOTHING: Final = 1
EXIT_SILENT: Final = 1


@click.group(cls=SuggestingGroup)
def cluster() -> None:
    """Show the brokers that a name server knows, how they are doing, and change them.

    Example: oberth cluster list
    """


for each in (compare, config, dump, apply, failover):
    cluster.add_command(each)


@cluster.command("list")
@namesrv_option
@json_option
def list_(namesrv: str, as_json: bool) -> None:
    """List brokers with their rates; exit code 1 if one of them does not answer."""

    async def figures(admin: Admin, place: list[Any]) -> list[Any]:
        try:
            runtime = await admin.broker_runtime_info(place[-1])
        except RemotingError as error:
            say(f"{place[1]} {place[-1]}: {error}")
            return [*place, None, None, None]
        return [
            *place,
            runtime.get("brokerVersionDesc", ""),
            first_rate(runtime.get("putTps")),
            first_rate(runtime.get("getTransferredTps", runtime.get("getTransferedTps"))),
        ]

    async def look(admin: Admin) -> list[list[Any]]:
        places = [
            [data.cluster, name, int(broker_id), address]
            for name, data in sorted((await admin.cluster_info()).broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]
        return list(await asyncio.gather(*(figures(admin, place) for place in places)))

    rates = ["in tps", "out tps"] if as_json else ["in/s", "out/s"]
    header = ["cluster", "broker", "id", "address", "version", *rates]
    rows = ask(namesrv, look)
    show(as_json, header, rows)
    if any(version is None for *_, version, _, _ in rows):
        sys.exit(EXIT_SILENT)


@cluster.command()
@click.argument("broker")
@namesrv_option
@json_option
def status(broker: str, namesrv: str, as_json: bool) -> None:
    """Show a broker's runtime figures; BROKER is its name or its address.

    Under a controller these say the broker's role, epoch, and at the master which replicas are in
    sync.
    """

    async def look(admin: Admin) -> dict[str, str]:
        return await admin.broker_runtime_info(await broker_address(admin, broker))

    table = ask(namesrv, look, names_broker=True)
    if as_json:
        write_json({key: _number_or_text(text) for key, text in table.items()})
    else:
        show(False, ["key", "value"], [[key, table[key]] for key in sorted(table)])


@cluster.command()
@namesrv_option
@json_option
def retention(namesrv: str, as_json: bool) -> None:
    """Show what the next cleaning of each broker would delete, and who has not consumed it.

    Oberth's brokers only; what others answer is shown as it is. Exit code 1 if a group has not
    consumed all of it, or a broker does not answer. For a store's files alone: `oberth store
    retention`.

    Example: oberth cluster retention
    """
    silent = []

    async def look(admin: Admin) -> dict[str, dict[str, Any]]:
        info = await admin.cluster_info()
        found: dict[str, dict[str, Any]] = {}

        async def one(name: str, address: str) -> None:
            found[address] = {}  # keeps its place
            try:
                found[address] = {"broker": name, **await admin.retention(address)}
            except (MQBrokerError, RemotingError) as error:
                say(f"{name} {address}: {error}")
                if isinstance(error, RemotingError):
                    silent.append(address)

        await asyncio.gather(
            *(
                one(name, address)
                for name, data in sorted(info.broker_addr_table.items())
                for _, address in sorted(data.broker_addrs.items())
            )
        )
        return {address: report for address, report in found.items() if report}

    reports = ask(namesrv, look)
    if as_json:
        write_json(reports)
    else:
        for address, report in reports.items():
            say(f"{report['broker']} {address}")
            show_report(report)
    if silent or any(report["unread"] for report in reports.values()):
        sys.exit(EXIT_UNREAD)


@cluster.command()
@click.argument("broker_name")
@click.argument("state", metavar="on|off", type=click.Choice(["on", "off"]))
@click.option("--dry-run", is_flag=True, help="Only say which topics it would concern.")
@namesrv_option
@json_option
def writes(broker_name: str, state: str, dry_run: bool, namesrv: str, as_json: bool) -> None:
    """Keep producers away from BROKER_NAME (off), or let them back (on).

    The name servers take the write permission from all topics of the broker, or give it back;
    producers see that when they next ask for the routes (30 s). The broker itself still takes what
    is sent to it, and its messages stay readable. A broker that registers anew with a changed table
    of topics has its permissions back. Exit code 1 if the broker has no topic.

    Example: oberth cluster writes broker-a off
    """

    async def change(admin: Admin) -> int:
        info = await admin.cluster_info()
        if broker_name not in info.broker_addr_table:
            known = ", ".join(sorted(info.broker_addr_table)) or "none"
            raise MQClientError(f"no broker {broker_name!r} is known; there are: {known}")
        if dry_run:
            address = await broker_address(admin, broker_name)
            return len(await admin.all_topic_configs(address))
        say(f"{broker_name}: {'may be' if state == 'on' else 'is no longer'} written to")
        if state == "on":
            return await admin.add_write_perm(broker_name)
        return await admin.wipe_write_perm(broker_name)

    count = ask(namesrv, change)
    if as_json:
        write_json(
            {"broker": broker_name, "writable": state == "on", "topics": count, "dryRun": dry_run}
        )
    say(f"{count} topics{' would be concerned' if dry_run else ''}")
    if not count:
        sys.exit(EXIT_NOTHING)


@cluster.command()
@click.argument("broker")
@click.option(
    "--dry-run", is_flag=True, help="Only say what would be deleted; Oberth's brokers only."
)
@namesrv_option
@json_option
def clean(broker: str, dry_run: bool, namesrv: str, as_json: bool) -> None:
    """Have BROKER delete its expired files now, and not only at deleteWhen.

    CommitLog files whose last message is older than fileReservedTime hours go with the broker's
    next cleaning (cleanResourceInterval, 10 s), queue files of messages that are gone at once. The
    command does not wait for the cleaning; `oberth cluster retention` shows what it leaves.

    Example: oberth cluster clean broker-a --dry-run
    """

    async def work(admin: Admin) -> tuple[str, dict[str, Any] | None]:
        address = await broker_address(admin, broker)
        if dry_run:
            return address, await admin.retention(address)
        await admin.delete_expired_commit_log(address)
        await admin.clean_expired_consume_queue(address)
        return address, None

    address, report = ask(namesrv, work, names_broker=True)
    if as_json:
        write_json({"broker": address, "requested": not dry_run, "report": report})
    elif report is not None:
        show_report(report)
    else:
        say(f"{address}: cleaning was asked for")


_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?")


def _number_or_text(text: str) -> int | float | str:
    """A runtime figure; brokers send every one as text."""
    if _NUMBER.fullmatch(text) is None:
        return text
    return float(text) if "." in text else int(text)
