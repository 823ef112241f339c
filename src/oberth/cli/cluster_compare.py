"""``oberth cluster compare``: whether two copies of a log are equal."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click

from oberth.cli.output import say, write_json
from oberth.cli.remote import ask, broker_address, json_option, namesrv_option
from oberth.errors import MQBrokerError
from oberth.remoting.code import ResponseCode

if TYPE_CHECKING:
    from oberth.broker.log_comparison import Comparison, LogSide
    from oberth.client.admin import Admin
    from oberth.remoting.headers.replication import LogChecksumsRequestHeader

EXIT_DIFFERS: Final = 1


@click.command()
@click.argument("one")
@click.argument("other")
@click.option("--from", "start", type=click.IntRange(0), default=0, help="CommitLog offset.")
@click.option(
    "--read", "read_all", is_flag=True,
    help="Read all bytes, also where checksums say that they are equal.",
)  # fmt: skip
@namesrv_option
@json_option
def compare(one: str, other: str, start: int, read_all: bool, namesrv: str, as_json: bool) -> None:
    """Compare the logs of ONE and OTHER, and name the first offset that differs.

    Each is a broker's address, a broker's name (then its master), or the directory of a store.
    Brokers of ours tell checksums; from Apache's the log is read through the HA port, as a slave
    would, without acknowledging anything. What only one of the two has is not compared.

    Exit code 1 if they differ.

    Example: oberth cluster compare 10.0.0.1:10911 10.0.0.2:10911
    """
    from oberth.broker.log_comparison import compare as compare_logs

    are_directories = os.path.isdir(one), os.path.isdir(other)

    async def look(admin: Admin) -> tuple[str, str, Comparison]:
        with ExitStack() as stack:
            left = await side_of(admin, one, stack, is_directory=are_directories[0])
            right = await side_of(admin, other, stack, is_directory=are_directories[1])
            found = await compare_logs(left, right, start, read_all=read_all)
            return left.name, right.name, found

    left, right, found = ask(namesrv, look, names_broker=True)
    if as_json:
        write_json(
            {
                "one": left,
                "other": right,
                "start": found.start,
                "equalTo": found.equal_to,
                "differsAt": found.differs_at,
            }
        )
    elif found.differs_at is None:
        say(f"{left} and {right}: equal from {found.start} to {found.equal_to}")
    else:
        say(f"{left} and {right}: differ at {found.differs_at}, compared from {found.start} on")
    if found.differs_at is not None:
        sys.exit(EXIT_DIFFERS)


async def side_of(admin: Admin, name: str, stack: ExitStack, *, is_directory: bool) -> LogSide:
    """One of the two copies."""
    from oberth.broker.log_comparison import (
        BrokerLog,
        EpochSentLog,
        NoChecksumsError,
        SentLog,
        StoreLog,
    )

    if is_directory:
        from oberth.store.offline.reader import StoreReader

        return StoreLog(stack.enter_context(StoreReader(name)))
    address = await broker_address(admin, name)

    async def checksums(header: LogChecksumsRequestHeader) -> bytes:
        try:
            return await admin.log_checksums(address, header)
        except MQBrokerError as error:
            if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NoChecksumsError(f"{address}: no request for checksums") from error
            raise

    broker = BrokerLog(address, checksums)
    try:
        await broker.extent()
    except NoChecksumsError:
        figures = await admin.broker_runtime_info(address)
        settings = await admin.broker_config(address)
        is_controlled = settings.get("enableControllerMode", "").lower() == "true"
        sent = (EpochSentLog if is_controlled else SentLog)(
            settings.get("brokerIP2") or address.rpartition(":")[0],
            int(settings["haListenPort"]),
            int(figures["commitLogMinOffset"]),
            int(figures["commitLogMaxOffset"]),
        )
        stack.callback(sent.close)
        return sent
    return broker
