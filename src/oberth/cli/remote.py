"""What the commands that talk to a cluster have in common: a loop, an Admin, --json."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oberth.cli.connection import client_config, namesrv_option
from oberth.cli.output import time_text, write_json, write_table

if TYPE_CHECKING:
    from oberth.client.admin import Admin
    from oberth.client.messages import MessageExt

__all__ = (
    "ask", "cluster_option", "json_option", "message_json", "namesrv_option", "run", "show",
)  # fmt: skip

T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
cluster_option = click.option("--cluster", metavar="NAME", help="Only brokers of this cluster.")


def run(main: Awaitable[T]) -> T:
    """Run one command's work."""

    async def work() -> T:
        return await main

    return asyncio.run(work())


def ask(namesrv: str, question: Callable[[Admin], Awaitable[T]]) -> T:
    """What an Admin of the cluster answers to a question."""
    config = client_config(namesrv)

    async def work() -> T:
        from oberth.client.admin import Admin

        async with Admin(config=config) as admin:
            return await question(admin)

    return asyncio.run(work())


def show(as_json: bool, header: list[str], rows: list[list[Any]]) -> None:
    """Rows as a table, or as JSON objects named by the header."""
    if as_json:
        write_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        write_table(header, rows)


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
        "storeTime": time_text(message.store_timestamp),
        "tags": message.tags,
        "keys": message.keys,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
        **body,
    }
