"""``oberth dlq``: dead letters of a live cluster. Of a store's files: ``oberth spark dlq``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from oberth.cli.connection import client_config
from oberth.cli.lazy import SuggestingGroup
from oberth.cli.output import Moment, say, write_json_line
from oberth.cli.remote import (
    UNCHANGED,
    ask,
    json_option,
    message_json,
    namesrv_option,
    show,
    tell_silent,
)
from oberth.cli.store_query import TIME
from oberth.client.dead_letters import (
    REASON,
    Receipt,
    Shown,
    dead_letters,
    groups_with_dead_letters,
    origin_message_id,
    origin_topic,
)
from oberth.client.dead_letters import redrive as redrive_letter
from oberth.client.redrive_claim import RedriveClaim, RedriveHeldError
from oberth.errors import MQBrokerError
from oberth.formats.names import dlq_topic

if TYPE_CHECKING:
    from oberth.client.admin import Admin
    from oberth.client.admin.base import Silent
    from oberth.client.messages import MessageExt

EXIT_NOT_ALL: Final = 1
LIMIT: Final = 1000

limit_option = click.option(
    "--limit",
    type=click.IntRange(1),
    default=LIMIT,
    show_default=True,
    metavar="N",
    help="At most N dead letters.",
)
since_option = click.option(
    "--since", type=TIME, help="Only letters dead since this time: ms since 1970 or ISO 8601."
)
until_option = click.option(
    "--until", type=TIME, help="Only letters that were dead before this time."
)


@click.group(cls=SuggestingGroup)
def dlq() -> None:
    """Show dead letters of a live cluster, and send them to their topics again.

    Dead letters are messages that a group failed to consume more often than its --retries allow.

    Example: oberth dlq list G
    """


@dlq.command("list")
@click.argument("group", required=False)
@since_option
@until_option
@limit_option
@namesrv_option
@json_option
def list_(
    group: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    namesrv: str,
    as_json: bool,
) -> None:
    """Show the dead letters of GROUP, or of all groups.

    With --json an object a line, with body and properties. Exit code 1 if no broker knows GROUP, or
    one does not answer.

    Example: oberth dlq list G --since 2026-01-01
    """
    silent: Silent = {}

    async def look(admin: Admin) -> list[tuple[str, MessageExt]]:
        found: list[tuple[str, MessageExt]] = []
        for name in [group] if group else await groups_with_dead_letters(admin):
            async for letter in dead_letters(admin, name, silent=silent):
                if _is_within(letter, since, until):
                    found.append((name, letter))
                    if len(found) > limit:
                        return found
        return found

    found = ask(namesrv, look)
    if group is not None and not found and not silent:
        _expect_known(namesrv, group, silent)
    shown = found[:limit]
    if as_json:
        for name, letter in shown:
            write_json_line(
                {
                    "group": name,
                    "originTopic": origin_topic(letter),
                    "originMessageId": origin_message_id(letter),
                    "reason": letter.properties.get(REASON),
                    **message_json(letter),
                }
            )
    else:
        header = ["group", "origin topic", "tries", "reason", "dead since", "keys", "dead letter"]
        rows: list[list[Any]] = [
            [
                *(name, origin_topic(letter), letter.reconsume_times),
                letter.properties.get(REASON),
                *(Moment(letter.store_timestamp), letter.keys, letter.offset_msg_id),
            ]
            for name, letter in shown
        ]
        show(False, header, rows)
    more = f", and more (--limit {limit})" if len(found) > limit else ""
    say(f"{len(shown)} dead letters{more}")
    tell_silent(silent)


@dlq.command()
@click.argument("group")
@click.option(
    "--id",
    "ids",
    multiple=True,
    help="Only this letter, by its offsetMsgId or unique key. Repeatable.",
)
@since_option
@until_option
@limit_option
@click.option("--dry-run", is_flag=True, help="Send nothing, only say what would be sent.")
@namesrv_option
@json_option
def redrive(
    group: str,
    ids: tuple[str, ...],
    since: int | None,
    until: int | None,
    limit: int,
    dry_run: bool,
    namesrv: str,
    as_json: bool,
) -> None:
    """Send dead letters of GROUP to their origin topics again, with a receipt for each.

    Every group of the topic gets them. Keys, tags, unique key and the application's properties
    stay, and REDRIVEN_FROM names the dead letter; a letter that its topic has already is not sent
    again. The dead letters stay where they are. Exit code 1 if some were not sent, if there are
    none, if another redrive of GROUP is at work, or if a broker does not answer: its letters are
    left, and those of its topics, too.

    Example: oberth dlq redrive G --dry-run
    """
    connection = client_config(namesrv)
    receipts: list[Receipt] = []
    left: list[str] = []
    chosen = _chosen(ids, since, until)
    silent: Silent = {}

    async def work(admin: Admin) -> None:
        from oberth.client.producer import Producer

        async with (
            Producer("OBERTH_CLI", config=connection) as producer,
            AsyncExitStack() as claims,
        ):
            claim = None
            if not dry_run:
                claim = RedriveClaim(admin, [dlq_topic(group)], silent=silent)
                await claims.enter_async_context(claim)
            count = 0
            shown = Shown(admin, silent=silent)
            async for letter in dead_letters(admin, group, silent=silent):
                if not (_is_within(letter, since, until) and _is_named(letter, ids)):
                    continue
                if count == limit:
                    left.append(letter.offset_msg_id)
                    return
                count += 1
                receipt = await redrive_letter(
                    admin, None if dry_run else producer, letter, silent=silent, claim=claim,
                    shown=shown,
                )  # fmt: skip
                receipts.append(receipt)
                if as_json:
                    # Each at once: a later error or Ctrl-C loses no receipt.
                    write_json_line(receipt.to_json())
                    sys.stdout.flush()

    held: RedriveHeldError | None = None
    try:
        ask(namesrv, work)
    except RedriveHeldError as error:
        held = error
    finally:
        # Also where it ended with an error: what was sent by then was sent.
        if receipts:
            if not as_json:
                header = ["dead letter", "origin topic", "status", "queue", "offset", "message"]
                show(False, header, [list(each) for each in receipts])
            more = f"; more are left (--limit {limit})" if left else ""
            say(_summary(receipts) + more)
    if held is not None:
        say(str(held))
        sys.exit(EXIT_NOT_ALL)
    if not receipts and not silent:
        _expect_known(namesrv, group, silent)
    tell_silent(silent, UNCHANGED)
    if not receipts:
        say(f"group {group} has no dead letters{chosen}")
    done = {"redriven", "already", "would be redriven"}
    if not receipts or any(each.status not in done for each in receipts):
        sys.exit(EXIT_NOT_ALL)


def _summary(receipts: Sequence[Receipt]) -> str:
    counts: dict[str, int] = {}
    for each in receipts:
        counts[each.status] = counts.get(each.status, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _chosen(ids: Sequence[str], since: int | None, until: int | None) -> str:
    """What the options leave over, as the end of a sentence."""
    if ids:
        return f" with id {' or '.join(ids)}"
    return "" if since is None and until is None else " of that time"


def _expect_known(namesrv: str, group: str, silent: Silent) -> None:
    """Ends the command where no broker has the group, which then has no dead letters either."""
    if not ask(namesrv, partial(_is_known, group=group, silent=silent)):
        say(f"no broker knows group {group!r}; `oberth group list` shows what is there")
        sys.exit(EXIT_NOT_ALL)


async def _is_known(admin: Admin, group: str, silent: Silent) -> bool:
    """Whether a broker has the group, or a topic of its dead letters; True if nobody may say."""
    try:
        known = await admin.group_list(silent=silent)
        return group in known or group in await groups_with_dead_letters(admin) or bool(silent)
    except MQBrokerError:
        return True


def _is_within(letter: MessageExt, since: int | None, until: int | None) -> bool:
    stored = letter.store_timestamp
    return (since is None or stored >= since) and (until is None or stored < until)


def _is_named(letter: MessageExt, ids: tuple[str, ...]) -> bool:
    return not ids or letter.offset_msg_id in ids or letter.msg_id in ids
