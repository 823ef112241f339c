"""`oberth store recover`."""

from __future__ import annotations

import time

import click

from oberth.cli.output import say, tell, write_json
from oberth.cli.store_options import read_entries, store_options


@click.command(name="recover")
@store_options
def recover_command(
    directory: str, config: str | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Recover as a broker's start would, and close cleanly.

    Finds the log's end, cuts off what is behind it, makes queues and index complete, and removes
    the mark of an unclean stop. Damage in the middle of the log stays; `salvage` deals with it. The
    store must not be in use.

    Example: oberth store recover ~/store
    """
    from oberth.formats.topic_config import BATCH_CQ, QUEUE_TYPE_ATTRIBUTE
    from oberth.store.message_store import MessageStore
    from oberth.store.offline.reader import StoreReader, require_messages
    from oberth.store.offline.rebuild import batch_topics

    started = time.perf_counter()
    with StoreReader(directory, read_entries(config, settings)) as reader:
        require_messages(reader)
        options = reader.engine_config()
        batch = {topic.decode() for topic in batch_topics(reader.layout)}
    store = MessageStore(
        options,
        topic_attributes=lambda topic: {QUEUE_TYPE_ATTRIBUTE: BATCH_CQ} if topic in batch else {},
    )
    try:
        report = store.load()
        store.start(reput_thread=False, background=False)
        log_start = store.min_phy_offset
    finally:
        store.shutdown()
    seconds = time.perf_counter() - started
    result = {
        "abnormal": report.abnormal,
        "minOffset": log_start,
        "maxOffset": report.log_end,
        "scannedFrom": report.scanned_from,
        "recordsScanned": report.records_scanned,
        "truncatedTo": None if report.truncated_to < 0 else report.truncated_to,
        "dispatchedFrom": report.dispatch_from,
        "reason": report.reason,
        "damages": [
            {"start": each.start, "end": each.end, "reason": each.reason} for each in report.damages
        ],
        "seconds": round(seconds, 3),
    }
    if as_json:
        write_json(result)
        return
    for damage in report.damages:
        say(f"CommitLog {damage.start} to {damage.end}: no record ({damage.reason})")
    tell(f"last stop      {'not clean' if report.abnormal else 'clean'}")
    tell(f"CommitLog      ends at {report.log_end}")
    if report.truncated_to >= 0:
        tell("behind it      bytes that are no record were given up")
    tell(f"dispatched     from {report.dispatch_from}: {report.reason}")
    tell(f"closed cleanly, {seconds:.1f} s")
