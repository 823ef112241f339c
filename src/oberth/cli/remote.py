"""Shared by the commands that talk to a cluster: a loop, an Admin, --json."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from oberth.cli.connection import client_config, namesrv_option
from oberth.cli.output import Moment, iso_time, say, time_text, write_json, write_table
from oberth.errors import MQClientError
from oberth.formats.names import reply_topic

if TYPE_CHECKING:
    from oberth.client.admin import Admin
    from oberth.client.admin.base import Silent
    from oberth.client.messages import MessageExt
    from oberth.remoting.bodies.route import ClusterInfo

__all__ = (
    "UNCHANGED", "ask", "broker_address", "broker_topics", "cluster_option", "json_key",
    "json_option", "message_json", "named_after_brokers", "namesrv_option", "parse_pairs", "run",
    "show", "system_option", "tell_silent",
)  # fmt: skip

T = TypeVar("T")
EXIT_SILENT: Final = 1
"""Brokers have not answered, and the others have."""

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
cluster_option = click.option("--cluster", metavar="NAME", help="Only brokers of this cluster.")
system_option = click.option(
    "--system", "with_system", is_flag=True, help="Show the brokers' own, too."
)


MISSING: Final = "what it has is missing here"
UNCHANGED: Final = "nothing is known to have changed there, do it again when it answers"
"""What a broker that does not answer means for a list, and for a change."""


def tell_silent(silent: Silent, meaning: str = MISSING) -> None:
    """Say which brokers did not answer, after what the others did, and exit with EXIT_SILENT."""
    for name, error in sorted(silent.items()):
        say(f"{name} does not answer, {meaning}: {error}")
    if silent:
        sys.exit(EXIT_SILENT)


def run(main: Awaitable[T]) -> T:
    """Run one command's work."""

    async def work() -> T:
        return await main

    return asyncio.run(work())


def ask(
    namesrv: str, question: Callable[[Admin], Awaitable[T]], *, names_broker: bool = False
) -> T:
    """The answer to a question that is put to an Admin of the cluster.

    Args:
        namesrv: where the cluster's name servers are.
        question: what is asked.
        names_broker: it is put to a broker that may be given by an address alone.

    Raises:
        MQClientError: no broker is registered there that could answer.
    """
    config = client_config(namesrv)

    async def work() -> T:
        from oberth.client.admin import Admin

        async with Admin(config=config) as admin:
            if not names_broker and not (await admin.cluster_info()).broker_addr_table:
                raise MQClientError(
                    f"no broker is registered at {namesrv}; `oberth broker -n {namesrv}` starts one"
                )
            return await question(admin)

    return asyncio.run(work())


async def broker_address(admin: Admin, broker: str) -> str:
    """Where a broker is that was given by its name (then its master) or by its address.

    Raises:
        MQClientError: it is neither.
    """
    info = await admin.cluster_info()
    addresses = {
        address
        for data in info.broker_addr_table.values()
        for address in data.broker_addrs.values()
    }
    if broker in addresses:
        return broker
    found = info.broker_addr_table.get(broker)
    if found is not None and found.broker_addrs:
        return found.broker_addrs[min(found.broker_addrs, key=int)]
    if _ADDRESS.fullmatch(broker):
        return broker  # reachable, though no name server names it
    known = ", ".join(sorted({*info.broker_addr_table, *addresses})) or "none"
    raise MQClientError(f"no broker {broker!r} is known; there are: {known}")


async def broker_topics(admin: Admin) -> set[str]:
    """Topics that brokers make for themselves and name after themselves and their cluster."""
    return named_after_brokers(await admin.cluster_info())


def named_after_brokers(info: ClusterInfo) -> set[str]:
    """Topics that the brokers of a cluster make for themselves, after their and its names."""
    clusters = set(info.cluster_addr_table)
    return {*info.broker_addr_table, *clusters, *map(reply_topic, clusters)}


_ADDRESS: Final = re.compile(r".+:[0-9]{1,5}")


def parse_pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """NAME=VALUE texts.

    Raises:
        click.UsageError: a text of another form; ``what`` names it.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} {text!r} is not NAME=VALUE")
        found[name] = value
    return found


def show(as_json: bool, header: list[str], rows: list[list[Any]]) -> None:
    """Rows as a table, or as JSON objects whose keys are the header's words in camelCase."""
    if as_json:
        keys = [json_key(title) for title in header]
        write_json([dict(zip(keys, map(_json_cell, row), strict=True)) for row in rows])
    else:
        write_table(header, [[_table_cell(cell) for cell in row] for row in rows])


def json_key(title: str) -> str:
    """A column's title as JSON has it: ``min offset`` is ``minOffset``."""
    first, *rest = title.split()
    return first + "".join(word.capitalize() for word in rest)


def _json_cell(cell: Any) -> Any:
    return iso_time(cell) if isinstance(cell, Moment) else cell


def _table_cell(cell: Any) -> Any:
    if isinstance(cell, Moment):
        return time_text(cell)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.1f}"
    return ", ".join(map(str, cell)) if isinstance(cell, list) else cell


def message_json(message: MessageExt) -> dict[str, Any]:
    """A message as a JSON object; a body that is no text is in hexadecimal."""
    try:
        body: dict[str, str] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyHex": message.body.hex()}
    return {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "storeTime": iso_time(message.store_timestamp),
        "tags": message.tags,
        "keys": message.keys,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
        **body,
    }
