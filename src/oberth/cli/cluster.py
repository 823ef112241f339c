"""``oberth cluster``: the brokers of a cluster."""

from __future__ import annotations

import sys
from typing import Any

import click

from oberth.cli.output import say, write_json
from oberth.cli.remote import ask, json_option, namesrv_option, show
from oberth.cli.retention_output import show_report
from oberth.client.admin import Admin
from oberth.errors import MQBrokerError

EXIT_UNREAD = 1


@click.group()
def cluster() -> None:
    """Show the brokers that a name server knows, and how they are doing.

    Example: oberth cluster list
    """


@cluster.command("list")
@namesrv_option
@json_option
def list_(namesrv: str, as_json: bool) -> None:
    """List brokers with their rates."""

    async def look(admin: Admin) -> list[list[Any]]:
        info = await admin.cluster_info()
        rows: list[list[Any]] = []
        for name in sorted(info.broker_addr_table):
            data = info.broker_addr_table[name]
            for broker_id, address in sorted(data.broker_addrs.items()):
                runtime = await admin.broker_runtime_info(address)
                rows.append(
                    [
                        data.cluster,
                        name,
                        int(broker_id),
                        address,
                        runtime.get("brokerVersionDesc", ""),
                        _first(runtime.get("putTps")),
                        _first(runtime.get("getTransferredTps", runtime.get("getTransferedTps"))),
                    ]
                )
        return rows

    header = ["cluster", "broker", "id", "address", "version", "in/s", "out/s"]
    show(as_json, header, ask(namesrv, look))


@cluster.command()
@click.argument("address", metavar="BROKER_ADDRESS")
@namesrv_option
@json_option
def status(address: str, namesrv: str, as_json: bool) -> None:
    """Show a broker's runtime figures."""
    table = ask(namesrv, lambda admin: admin.broker_runtime_info(address))
    if as_json:
        write_json(table)
    else:
        show(False, ["key", "value"], [[key, table[key]] for key in sorted(table)])


@cluster.command()
@namesrv_option
@json_option
def retention(namesrv: str, as_json: bool) -> None:
    """Show what the next cleaning of each broker would delete, and who has not consumed it.

    Oberth's brokers only; of the others their answer is said. Exit code 1 if a group has not
    consumed all of it. For a store's files alone: `oberth store retention`.

    Example: oberth cluster retention
    """

    async def look(admin: Admin) -> dict[str, dict[str, Any]]:
        info = await admin.cluster_info()
        found = {}
        for name, data in sorted(info.broker_addr_table.items()):
            for _, address in sorted(data.broker_addrs.items()):
                try:
                    found[address] = {"broker": name, **await admin.retention(address)}
                except MQBrokerError as error:
                    say(f"{name} {address}: {error}")
        return found

    reports = ask(namesrv, look)
    if as_json:
        write_json(reports)
    else:
        for address, report in reports.items():
            say(f"{report['broker']} {address}")
            show_report(report)
    if any(report["unread"] for report in reports.values()):
        sys.exit(EXIT_UNREAD)


def _first(rates: str | None) -> str:
    """The first of several rates, with one digit."""
    try:
        return f"{float((rates or '').split()[0]):.1f}"
    except (ValueError, IndexError):
        return "-"
