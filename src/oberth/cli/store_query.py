"""`oberth store query`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Final

import click

from oberth.cli.output import say, write_json_line
from oberth.cli.store_options import read_entries, store_options

EXIT_NOTHING: Final = 1


class TimeType(click.ParamType):  # type: ignore[type-arg]  # generic in newer stubs only
    """Milliseconds since 1970, or an ISO 8601 time; without an offset it is UTC.

    No message is older than 1970. To brokers a negative time is the end of a queue, which nobody
    means who writes `-3600000`.
    """

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parses one value."""
        if isinstance(value, int):
            return value
        text = str(value)
        try:
            time_ms = int(text)
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError:
                self.fail(
                    f"{text!r} is neither milliseconds nor like 2025-01-31T12:00:00", param, ctx
                )
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            time_ms = round(moment.timestamp() * 1000)
        if time_ms < 0:
            self.fail(f"{text!r} is before 1970", param, ctx)
        return time_ms


TIME: Final = TimeType()


@click.command(name="query")
@store_options
@click.option("--topic", help="The topic; not needed for --id.")
@click.option("--key", help="One of a message's KEYS, or its UNIQ_KEY.")
@click.option(
    "--id", "message_id", help="An offsetMsgId (the broker's) or UNIQ_KEY (the client's)."
)
@click.option("--time", "timestamp", type=TIME, help="The message stored at this time, per queue.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="With --time: this queue.")
@click.option(
    "--boundary",
    type=click.Choice(["LOWER", "UPPER"], case_sensitive=False),
    default="LOWER",
    show_default=True,
    help="With --time: the first at or after, or the last at or before.",
)
@click.option("--begin", type=TIME, default=0, help="With --key: stored at or after.")
@click.option("--end", type=TIME, default=2**63 - 1, help="With --key: stored at or before.")
@click.option("--max", "max_num", type=click.IntRange(1), default=32, show_default=True,
              help="With --key: at most N messages, the newest.", metavar="N")  # fmt: skip
@click.option(
    "--index-type",
    type=click.Choice(["K", "U", "T"]),
    help="With --key: only KEYS, only UNIQ_KEY, or TAGS (which 5.x indexes too).",
)
@click.option(
    "--collisions",
    is_flag=True,
    help="With --key: also what only shares the key's hash, as RocketMQ answers.",
)
def query_command(
    directory: str,
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    topic: str | None,
    key: str | None,
    message_id: str | None,
    timestamp: int | None,
    queue_id: int | None,
    boundary: str,
    begin: int,
    end: int,
    max_num: int,
    index_type: str | None,
    collisions: bool,
) -> None:
    """Find messages by key, by id or by time; prints JSON lines as `dump` does.

    Exit code 1 when nothing was found.

    Example: oberth store query ~/store --topic TopicTest --key order-17
    """
    from oberth.store.offline import query
    from oberth.store.offline.reader import StoreReader

    del as_json  # lines of JSON are all that this command prints
    asked = [
        name
        for name, value in (("--key", key), ("--id", message_id), ("--time", timestamp))
        if value is not None
    ]
    if len(asked) != 1:
        raise click.UsageError(
            "one of --key, --id and --time is needed"
            if not asked
            else f"{' and '.join(asked)} exclude each other"
        )
    if message_id is None and topic is None:
        raise click.UsageError(f"{asked[0]} needs --topic")
    with StoreReader(directory, read_entries(config, settings)) as reader:
        if message_id is not None:
            found = query.by_id(reader, message_id, topic)
        elif timestamp is not None and topic is not None:
            found = query.by_time(
                reader, topic, timestamp, queue_id=queue_id, boundary=boundary.upper()
            )
        else:
            assert topic is not None
            assert key is not None
            if not reader.index_files():
                say("no index files: the whole CommitLog is read")
            found = query.by_key(
                reader, topic, key, max_num=max_num, begin_ms=begin, end_ms=end,
                index_type=index_type, any_key=collisions,
            )  # fmt: skip
    for each in found:
        write_json_line(each)
    sys.stdout.flush()
    if not found:
        say("nothing found")
        sys.exit(EXIT_NOTHING)
