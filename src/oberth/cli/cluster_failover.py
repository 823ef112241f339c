"""`oberth cluster failover`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from oberth.cli.output import say, write_json
from oberth.cli.remote import ask, json_option, namesrv_option
from oberth.errors import MQClientError, OberthError

if TYPE_CHECKING:
    from oberth.client.admin import Admin
    from oberth.remoting.bodies.controller import ReplicasInfo

EXIT_NOBODY: Final = 1
LOOK_S: Final = 0.1
PATIENCE_S: Final = 60.0
"""Until the name servers know the new master."""


@click.command()
@click.argument("broker_name")
@click.option("--to", type=click.IntRange(1), metavar="ID", help="The replica that takes over.")
@click.option("--dry-run", is_flag=True, help="Only say who would take over.")
@namesrv_option
@json_option
def failover(broker_name: str, to: int | None, dry_run: bool, namesrv: str, as_json: bool) -> None:
    """Make another replica of BROKER_NAME the master, before its machine is stopped.

    The controller in the brokers' configuration elects the replica with --to, or the one in sync
    with the smallest id that is not the master. The old master follows it. Returns when the name
    servers know the new master. Exit code 1 if nobody can take over.

    Example: oberth cluster failover broker-a
    """

    async def move(admin: Admin) -> dict[str, Any]:
        groups = (await admin.cluster_info()).broker_addr_table
        group = groups.get(broker_name)
        if group is None:
            known = ", ".join(sorted(groups)) or "none"
            raise MQClientError(f"no broker {broker_name!r} is known; there are: {known}")
        controller = await _controller_of(admin, group.broker_addrs.values())
        found = None if controller is None else await admin.replicas(controller, broker_name)
        target = None if found is None else _target(found, to)
        shown: dict[str, Any] = {
            "broker": broker_name,
            "controller": controller,
            "from": None if found is None else found.master_address,
            "to": None if target is None else target[1],
            "epoch": None if found is None else found.master_epoch,
            "dryRun": dry_run,
        }
        if controller is not None and target is not None and not dry_run:
            number, address = target
            shown["epoch"] = await admin.elect_master(
                controller, group.cluster, broker_name, number
            )
            await _wait(admin, broker_name, address, shown["epoch"])
        return shown

    shown = ask(namesrv, move)
    if as_json:
        write_json(shown)
    elif shown["controller"] is None:
        say(f"{broker_name}: it is under no controller")
    elif shown["to"] is None:
        say(f"{broker_name}: no other replica lives and is in sync")
    else:
        would = "would be" if dry_run else "is"
        say(f"{broker_name}: master {would} {shown['to']}, it was {shown['from']}")
    if shown["to"] is None:
        sys.exit(EXIT_NOBODY)


async def _controller_of(admin: Admin, addresses: Any) -> str | None:
    """The controller that leads, by the configuration of the first broker that answers."""
    for address in addresses:
        try:
            config = await admin.broker_config(address)
        except OberthError:
            continue
        for each in config.get("controllerAddr", "").split(";"):
            if each.strip() and config.get("enableControllerMode") == "true":
                try:
                    return await admin.controller_leader(each.strip())
                except OberthError as error:
                    say(f"controller {each}: {error}")
    return None


def _target(found: ReplicasInfo, to: int | None) -> tuple[int, str] | None:
    """Id and address of who takes over; None if nobody can."""
    for each in sorted(found.in_sync_replicas, key=lambda each: each.broker_id):
        if each.alive and each.broker_id != found.master_broker_id and to in (None, each.broker_id):
            return each.broker_id, each.broker_address
    return None


async def _wait(admin: Admin, broker_name: str, address: str, epoch: int) -> None:
    """Until the name servers name the new master; they may be away meanwhile.

    Raises:
        MQClientError: they do not in PATIENCE_S: it is the master all the same.
    """
    why = "they do not answer"
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    named = (await admin.masters()).get(broker_name)
                except OberthError as error:
                    why = f"they do not answer: {error}"
                else:
                    if named == address:
                        return
                    why = f"they name {named or 'none'}"
                await asyncio.sleep(LOOK_S)
    raise MQClientError(
        f"{broker_name}: {address} was elected master, epoch {epoch}, but the name servers do not "
        f"name it after {PATIENCE_S:g} s; {why}"
    )
