"""`oberth store`: commands for the files of a store, one module each."""

from __future__ import annotations

from typing import Final

import click

from oberth.cli.lazy import LazyGroup

COMMANDS: Final = {
    "inspect": (
        "oberth.cli.store_inspect:inspect_command",
        "Show files, positions, queues, times and the checkpoint.",
    ),
    "verify": (
        "oberth.cli.store_verify:verify_command",
        "Check CommitLog, ConsumeQueues, Index and config against each other.",
    ),
    "dump": ("oberth.cli.store_dump:dump_command", "Print messages as JSON lines."),
    "query": (
        "oberth.cli.store_query:query_command",
        "Find messages by key, by id or by time.",
    ),
    "retention": (
        "oberth.cli.store_retention:retention_command",
        "Show what the next cleaning would delete and who has not consumed it.",
    ),
    "purge": (
        "oberth.cli.store_purge:purge_command",
        "Purge a topic's older messages.",
    ),
    "rejoin": (
        "oberth.cli.store_rejoin:rejoin_command",
        "Cut a slave's store to what its master has, so that it can follow again.",
    ),
    "recover": (
        "oberth.cli.store_recover:recover_command",
        "Recover as a broker's start would, and close cleanly.",
    ),
    "rebuild": (
        "oberth.cli.store_rebuild:rebuild_command",
        "Build ConsumeQueues and Index from the CommitLog.",
    ),
    "salvage": (
        "oberth.cli.store_salvage:salvage_command",
        "Copy what is undamaged into a new store.",
    ),
}


@click.group(name="store", cls=LazyGroup, commands_by_name=COMMANDS)
def store() -> None:
    """Read, check and repair the files of a store.

    DIR is the store root (storePathRootDir). File sizes are taken from the files; -c and --set give
    what the files cannot tell. Only purge, rejoin, recover, rebuild and salvage write anything.

    Example: oberth store inspect ~/store
    """
