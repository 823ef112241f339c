"""`oberth store rejoin`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import click

from oberth.cli.output import say, write_json
from oberth.cli.remote import ask, broker_address, json_option, namesrv_option

if TYPE_CHECKING:
    from oberth.client.admin import Admin


class Parting(NamedTuple):
    """Where a store's log leaves its master's.

    Attributes:
        at: where it is to be cut; None: nowhere.
        end: where it ends.
        common_end: up to where it is the master's, before its own begin perhaps; None: all of it,
            as far as the master can tell.
    """

    at: int | None
    end: int
    common_end: int | None = None


@click.command(name="rejoin")
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.argument("master")
@click.option("--dry-run", is_flag=True, help="Only say what would be cut off.")
@namesrv_option
@json_option
def rejoin_command(directory: str, master: str, dry_run: bool, namesrv: str, as_json: bool) -> None:
    """Cut the slave's store in DIR to what MASTER has, so that it can follow MASTER again.

    MASTER is a broker's name or address. For a slave that is ahead of its master, whose log has
    diverged from the master's, or that lacks what the master has deleted. The log is cut where the
    two differ, or emptied; what is cut off is kept in DIR.parted. Stop the slave before; it gets
    the rest when it starts. Under a controller the store gets MASTER's epochs, too, so this is also
    the way out when epochFileCheckpoint is lost or damaged.

    Example: oberth store rejoin /data/b 10.0.0.1:10911
    """
    from oberth.broker.log_comparison import StoreLog, compare
    from oberth.cli.cluster_compare import side_of
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.rejoin import cut_log, record_start, write_epochs

    async def find(admin: Admin) -> Parting:
        with ExitStack() as stack:
            reader = stack.enter_context(StoreReader(directory))
            own = StoreLog(reader)
            other = await side_of(admin, master, stack, is_directory=False)
            here, there = await own.extent(), await other.extent()
            if here.high <= here.low:
                return Parting(None, here.high)
            # Nothing in common that the master could join on to.
            if here.high < there.low:
                return Parting(here.low, here.high)
            if here.low > there.high:
                return Parting(here.low, here.high, there.high)
            found = await compare(own, other)
            if found.differs_at is not None:
                at = record_start(reader, found.differs_at)
                # Without a record in common they may have parted anywhere before.
                return Parting(at, here.high, at if at > found.start else 0)
            if here.high > there.high:
                at = record_start(reader, there.high)
                return Parting(at, here.high, at)
            return Parting(None, here.high)

    async def look(admin: Admin) -> tuple[Parting, list[tuple[int, int]] | None]:
        return await find(admin), await admin.epochs(await broker_address(admin, master))

    (at, end, common_end), epochs = ask(namesrv, look, names_broker=True)
    kept_in = None
    if at is not None and not dry_run:
        has_parted = common_end is not None
        kept_in = cut_log(directory, at, has_parted=has_parted, common_end=common_end).kept_in
    if epochs is not None and not dry_run:
        write_epochs(directory, epochs, end if at is None else at)
    if as_json:
        write_json({"store": directory, "cutAt": at, "end": end, "keptIn": kept_in})
    elif at is None:
        say(f"{directory}: its log, up to {end}, is one that the master goes on from")
    elif dry_run:
        say(f"{directory}: would be cut at {at}, it ends at {end}")
    else:
        say(f"{directory}: cut at {at}, it ended at {end}; what was cut off is in {kept_in}")
