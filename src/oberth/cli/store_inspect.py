"""`oberth store inspect`."""

from __future__ import annotations

from typing import Any

import click

from oberth.cli.output import say, size_text, tell, time_text, write_json, write_table
from oberth.cli.store_options import read_entries, store_options


@click.command(name="inspect")
@click.option(
    "--count",
    is_flag=True,
    help="Also count each queue's bytes and missing messages; reads all units.",
)
@store_options
def inspect_command(
    directory: str, config: str | None, settings: tuple[str, ...], as_json: bool, count: bool
) -> None:
    """Show files, positions, topics and queues, offsets, times and the checkpoint.

    Quick also on a large store: it reads the last segment and the ends of the queues. Also while a
    broker is writing.

    Example: oberth store inspect ~/store --json
    """
    from oberth.store.offline.inspect import inspect
    from oberth.store.offline.reader import StoreReader

    with StoreReader(directory, read_entries(config, settings)) as reader:
        result = inspect(reader, count=count)
        for finding in reader.layout.findings:
            say(str(finding))
    if as_json:
        write_json(result)
        return
    _print(result)


def _print(result: dict[str, Any]) -> None:
    _print_state(result)
    click.echo()
    write_table(
        ("segment", "first record", "first stored (UTC)"),
        (
            (each["file"], each["firstRecord"], time_text(each["firstStoreTimestamp"]))
            for each in result["commitLog"]["segments"]
        ),
    )
    _print_queues(result)
    _print_index(result)


def _print_state(result: dict[str, Any]) -> None:
    log = result["commitLog"]
    tell(f"store       {result['root']}")
    tell(f"written by  RocketMQ {result['line']} (or compatible)")
    if result["inUse"]:
        state = "in use by another process"
    else:
        state = "not closed cleanly" if result["abort"] else "closed cleanly"
    if result["abortProcessId"] is not None:
        state += f" (process {result['abortProcessId']})"
    tell(f"state       {state}")
    tell(
        f"CommitLog   {log['minOffset']} to {log['maxOffset']}, "
        f"{size_text(log['maxOffset'] - log['minOffset'])}, {len(log['segments'])} segments of "
        f"{size_text(result['sizes']['mappedFileSizeCommitLog']['value'])}"
    )
    if log["minStoreTimestamp"] is not None:
        tell(
            f"stored      {time_text(log['minStoreTimestamp'])} to "
            f"{time_text(log['maxStoreTimestamp'])} UTC"
        )
    if log["bytesBehindEnd"]:
        tell(f"behind it   {log['bytesBehindEnd']} bytes that are no record: {log['end']}")
    point = result["checkpoint"]
    if point is None:
        tell("checkpoint  none")
    else:
        for name, label in (
            ("physicMsgTimestamp", "CommitLog"),
            ("logicsMsgTimestamp", "ConsumeQueue"),
            ("indexMsgTimestamp", "Index"),
        ):
            value = f"{time_text(point[name])} UTC" if point[name] else "-"
            tell(f"checkpoint  {label} {value}")


def _print_queues(result: dict[str, Any]) -> None:
    log = result["commitLog"]
    if result["queues"]:
        click.echo()
        counted = "bytes" in result["queues"][0]
        write_table(
            ("topic", "queue", "type", "min", "max", "messages",
             *(("missing", "bytes") if counted else ()),
             "first stored (UTC)", "last stored (UTC)"),
            (
                (
                    each["topic"], each["queueId"], each["type"], each["minOffset"],
                    each["maxOffset"], each["messages"],
                    *((each["missing"], each["bytes"]) if counted else ()),
                    time_text(each["minStoreTimestamp"]), time_text(each["maxStoreTimestamp"]),
                )
                for each in result["queues"]
            ),
        )  # fmt: skip
        tell(f"{result['topics']} topics, {result['messages']} messages")
    elif log["maxOffset"] > log["minOffset"]:
        click.echo()
        tell("no ConsumeQueues; `oberth store rebuild` makes them from the CommitLog")


def _print_index(result: dict[str, Any]) -> None:
    if result["index"]:
        click.echo()
        write_table(
            ("index file", "entries", "first offset", "last offset", "begin (UTC)", "end (UTC)"),
            (
                (
                    each["file"], max(each["indexCount"], 1) - 1, each["beginPhyOffset"],
                    each["endPhyOffset"], time_text(each["beginTimestamp"]),
                    time_text(each["endTimestamp"]),
                )
                for each in result["index"]
            ),
        )  # fmt: skip
