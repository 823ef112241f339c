"""`oberth store purge`."""

from __future__ import annotations

import sys
from typing import Final

import click

from oberth.cli.output import say, write_json, write_table
from oberth.cli.store_options import read_entries, store_options
from oberth.cli.store_query import TIME

EXIT_REFUSED: Final = 1


@click.command(name="purge")
@store_options
@click.argument("topic")
@click.option(
    "--before", type=TIME, help="Purge messages stored before: ms since 1970 or ISO 8601."
)
@click.option(
    "--offset",
    "offsets",
    metavar="QUEUE=OFFSET",
    multiple=True,
    help="Purge messages below a queue offset. Repeatable.",
)
@click.option("--force", is_flag=True, help="Delete also what groups have not consumed.")
def purge_command(
    directory: str,
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    topic: str,
    before: int | None,
    offsets: tuple[str, ...],
    force: bool,
) -> None:
    """Purge the past of TOPIC in a store that no broker has open.

    Readers no longer find the messages, by queue, key or id; their bytes leave the disk with the
    segment they lie in. Refused with exit code 1 while a group has not consumed them, unless
    --force. The same for a running broker: `oberth topic purge`.

    Example: oberth store purge ~/store Orders --before 2026-01-01
    """
    from oberth.formats.topic_config import BATCH_CQ, QUEUE_TYPE_ATTRIBUTE
    from oberth.store.message_store import MessageStore
    from oberth.store.offline.reader import StoreReader, require_messages
    from oberth.store.offline.rebuild import batch_topics
    from oberth.store.offline.retention import group_offsets, topic_attributes
    from oberth.store.retention_report import LeavingMessages, unread_of

    if (before is None) == (not offsets):
        raise click.UsageError("one of --before and --offset is needed")
    wanted = parse_offsets(offsets)
    with StoreReader(directory, read_entries(config, settings)) as reader:
        require_messages(reader)
        options = reader.engine_config()
        batch = {each.decode() for each in batch_topics(reader.layout)}
        attributes = topic_attributes(reader)
        groups = [each for each in group_offsets(reader) if each[0] == topic]
    for name in batch:
        attributes[name] = {**attributes.get(name, {}), QUEUE_TYPE_ATTRIBUTE: BATCH_CQ}
    store = MessageStore(options, topic_attributes=lambda name: attributes.get(name, {}))
    try:
        store.load()
        store.start(reput_thread=False, background=False)
        if not store.queue_ids(topic):
            raise click.ClickException(f"topic {topic!r} has no queue in {directory}")
        if before is not None:
            wanted = store.retention.offsets_before(topic, before)
        leaving = [
            LeavingMessages(topic, queue_id, store.min_offset_in_queue(topic, queue_id), end, "")
            for queue_id, end in wanted.items()
        ]
        unread = [
            each for _, group, queues in groups for each in unread_of(topic, group, queues, leaving)
        ]
        if unread and not force:
            names = ", ".join(sorted({each.group for each in unread}))
            say(f"not all consumed, nothing was purged: {names} (--force purges all the same)")
            sys.exit(EXIT_REFUSED)
        purged = store.retention.purge(topic, wanted)
    finally:
        store.shutdown()
    if as_json:
        write_json(
            [
                {
                    "queueId": each.queue_id,
                    "minOffset": each.min_offset,
                    "minOffsetAfter": each.min_offset_after,
                }
                for each in purged
            ]
        )
    else:
        write_table(["queue", "min offset", "now"], purged)


def parse_offsets(texts: tuple[str, ...]) -> dict[int, int]:
    """Queue offsets by queue from QUEUE=OFFSET.

    Raises:
        click.UsageError: a text of another form.
    """
    found: dict[int, int] = {}
    for text in texts:
        queue, _, offset = text.partition("=")
        if not (queue.isascii() and queue.isdigit() and offset.isascii() and offset.isdigit()):
            raise click.UsageError(f"--offset {text!r} is not QUEUE=OFFSET")
        found[int(queue)] = int(offset)
    return found
