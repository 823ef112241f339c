"""What is in a store or in live topics, in numbers: by topic, queue, tag, producer and hour.

One pass gives all of it but the duplicates; tables are small frames:

    topics, queues, tags, producers, hours
        messages, bytes, sizeAvg, sizeMax, first, last, perSecond, delayAvgMs, delayMaxMs
        (delay: from born to stored)
    gaps        topic, broker, partition, firstOffset, lastOffset, messages, missing: offsets without a message
    duplicates  topic, uniqueKeys, extra: unique keys that several messages have
"""  # noqa: E501 - the table

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLES: Final = ("topics", "queues", "tags", "producers", "hours", "gaps", "duplicates")
_COLUMNS: Final = (
    "topic,broker,partition,offset,tags,bornHost,timestamp,bornTimestamp,size,uniqueKey"
)
# What is there is counted; what is damaged is for `verify`.
_DEFAULTS: Final = {"failOnDataLoss": "false"}
# A store is read in the order of its log, live topics by their queues.
_STORE_DEFAULTS: Final = {**_DEFAULTS, "readOrder": "commitlog"}
_ROWS_SHOWN: Final = 200
_BARS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The tables, each a small frame."""

    topics: DataFrame
    queues: DataFrame
    tags: DataFrame
    producers: DataFrame
    hours: DataFrame
    gaps: DataFrame
    duplicates: DataFrame


def stats(session: SparkSession, path: str, options: Mapping[str, str] | None = None) -> StoreStats:
    """Counts a store, or live topics.

    Args:
        session: where the frames are made.
        path: the store; "" for live topics, with ``rocketmq.namesrv.addr`` among the options.
        options: further options of ``format("rocketmq")``, such as subscribe.
    """
    from pyspark.sql import functions as f

    reader = (
        session.read.format("rocketmq")
        .options(**{**(_STORE_DEFAULTS if path else _DEFAULTS), **(options or {})})
        .option("columns", _COLUMNS)
    )
    rows = reader.load(path) if path else reader.load()
    delay = f.unix_millis("timestamp") - f.unix_millis("bornTimestamp")
    # Messages of one producer's ports belong together.
    producer = f.regexp_replace("bornHost", ":[0-9]+$", "")
    base = (
        rows.groupBy(
            "topic", "broker", "partition", "tags", producer.alias("producer"),
            f.date_trunc("hour", "timestamp").alias("hour"),
        )
        .agg(
            f.count(f.lit(1)).alias("messages"),
            f.sum("size").alias("bytes"),
            f.max("size").alias("sizeMax"),
            f.min("timestamp").alias("first"),
            f.max("timestamp").alias("last"),
            f.sum(delay).alias("delaySum"),
            f.max(delay).alias("delayMaxMs"),
            f.min("offset").alias("firstOffset"),
            f.max("offset").alias("lastOffset"),
        )
        .cache()
    )  # fmt: skip

    def by(*names: str) -> DataFrame:
        return base.groupBy(*names).agg(*_measures()).orderBy(*names)

    return StoreStats(
        by("topic"), by("topic", "broker", "partition"), by("topic", "tags"),
        by("topic", "producer"), by("hour"), _gaps(base), _duplicates(rows),
    )  # fmt: skip


def _gaps(base: DataFrame) -> DataFrame:
    """Queues that lack offsets between their first and their last message."""
    from pyspark.sql import functions as f

    return (
        base.groupBy("topic", "broker", "partition")
        .agg(
            f.min("firstOffset").alias("firstOffset"),
            f.max("lastOffset").alias("lastOffset"),
            f.sum("messages").alias("messages"),
        )
        .withColumn("missing", f.expr("lastOffset - firstOffset + 1 - messages"))
        .where("missing <> 0")
        .orderBy("topic", "broker", "partition")
    )


def _duplicates(rows: DataFrame) -> DataFrame:
    """By topic, unique keys that several messages have."""
    from pyspark.sql import functions as f

    return (
        rows.where("uniqueKey is not null")
        .groupBy("topic", "uniqueKey")
        .count()
        .where("count > 1")
        .groupBy("topic")
        .agg(f.count(f.lit(1)).alias("uniqueKeys"), f.sum(f.expr("count - 1")).alias("extra"))
        .orderBy("topic")
    )


def _measures() -> list[Column]:
    from pyspark.sql import functions as f

    seconds = (f.unix_millis(f.max("last")) - f.unix_millis(f.min("first"))) / 1000
    return [
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.round(f.sum("bytes") / f.sum("messages"), 1).alias("sizeAvg"),
        f.max("sizeMax").alias("sizeMax"),
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.round(f.sum("messages") / f.greatest(seconds, f.lit(1.0)), 2).alias("perSecond"),
        f.round(f.sum("delaySum") / f.sum("messages"), 1).alias("delayAvgMs"),
        f.max("delayMaxMs").alias("delayMaxMs"),
    ]


Row = dict[str, Any]


def collect(found: StoreStats) -> dict[str, list[Row]]:
    """All tables as rows; times are texts in ISO 8601, UTC with milliseconds."""
    return {
        name: [
            {
                # Spark gives a time in the zone of this process, without saying so.
                column: value.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
                if isinstance(value, datetime)
                else value
                for column, value in row.asDict().items()
            }
            for row in getattr(found, name).collect()
        ]
        for name in TABLES
    }


# The report.

_STYLE: Final = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222;
background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:left}
td.n{text-align:right}svg{display:block;margin:.5rem 0}
text{font:11px system-ui,sans-serif;fill:#444}rect{fill:#3b6ea5}
"""


def report_html(title: str, tables: Mapping[str, Sequence[Row]]) -> str:
    """A page of its own, with plots; nothing is loaded from elsewhere.

    Args:
        title: what it is about.
        tables: as `collect` gives them.
    """
    topics = tables["topics"]
    messages = sum(row["messages"] for row in topics)
    size = sum(row["bytes"] for row in topics)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1>"
        f"<p>{messages:,} messages, {size:,} bytes of records, {len(topics)} topics.</p>",
        "<h2>Messages an hour</h2>",
        _columns([
            (str(row["hour"])[:16].replace("T", " "), row["messages"]) for row in tables["hours"]
        ]),
        "<h2>Messages by topic</h2>",
        _bars([(row["topic"], row["messages"]) for row in topics]),
        "<h2>Bytes by topic</h2>",
        _bars([(row["topic"], row["bytes"]) for row in topics]),
        "<h2>Delay from born to stored, average ms by producer</h2>",
        _bars([
            (f"{row['producer']} → {row['topic']}", row["delayAvgMs"] or 0)
            for row in tables["producers"]
        ]),
    ]  # fmt: skip
    parts += [f"<h2>{name.capitalize()}</h2>{_table(tables[name])}" for name in TABLES]
    return "".join(parts) + "</html>\n"


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(_cell(value) for value in row.values()) + "</tr>"
        for row in rows[:_ROWS_SHOWN]
    )
    more = f"<p>{len(rows) - _ROWS_SHOWN} more.</p>" if len(rows) > _ROWS_SHOWN else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"<td class='n'>{value:,}</td>"
    return f"<td>{'–' if value is None else escape(str(value))}</td>"


def _bars(pairs: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars, the longest first."""
    chosen = sorted(pairs, key=lambda pair: -pair[1])[:_BARS_MAX]
    if not chosen:
        return "<p>None.</p>"
    most = max(max(value for _, value in chosen), 1)
    lines = []
    for number, (label, value) in enumerate(chosen):
        y = 20 * number
        width = max(1.0, 480 * max(value, 0) / most)
        short = label if len(label) <= 36 else label[:35] + "…"
        lines.append(
            f"<text x='235' y='{y + 14}' text-anchor='end'>{escape(short)}</text>"
            f"<rect x='240' y='{y + 3}' width='{width:.1f}' height='14'>"
            f"<title>{escape(label)}: {value:,}</title></rect>"
            f"<text x='{245 + width:.1f}' y='{y + 14}'>{value:,}</text>"
        )
    return f"<svg width='820' height='{20 * len(chosen) + 4}' role='img'>{''.join(lines)}</svg>"


def _columns(pairs: Sequence[tuple[str, float]]) -> str:
    """Upright bars in the order of time."""
    if not pairs:
        return "<p>None.</p>"
    most = max(max(value for _, value in pairs), 1)
    width = max(1.0, 800 / len(pairs))
    bars = "".join(
        f"<rect x='{number * width:.2f}' y='{150 - 140 * value / most:.1f}' "
        f"width='{max(width - 1, 0.6):.2f}' height='{140 * value / most:.1f}'>"
        f"<title>{escape(label)}: {value:,}</title></rect>"
        for number, (label, value) in enumerate(pairs)
    )
    first, last = escape(pairs[0][0]), escape(pairs[-1][0])
    return (
        f"<svg width='820' height='172' role='img'>{bars}<text x='0' y='166'>{first}</text>"
        f"<text x='800' y='166' text-anchor='end'>{last}</text>"
        f"<text x='0' y='9'>{most:,}</text></svg>"
    )
