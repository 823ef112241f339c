"""A store as a table: rows, SQL, filters and counts.

    python examples/spark/first_look.py STORE [TOPIC]

Needs no broker. The store may be in use by one; it is only read.
"""

from __future__ import annotations

import argparse

from oberth.spark.runtime import build_session
from oberth.spark.transforms import count_by_tag


def main(argv: list[str] | None = None) -> None:
    """Look at a store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("topic", nargs="?", default="")
    parser.add_argument("--master", default="local[*]")
    args = parser.parse_args(argv)
    spark = build_session(args.master, app_name="first look", quick=True)
    topics = {"subscribe": args.topic} if args.topic else {}

    messages = spark.read.format("rocketmq").options(**topics).load(args.store)
    messages.printSchema()
    messages.selectExpr(
        "topic", "partition", "offset", "timestamp", "tags", "left(cast(value as string), 60) text"
    ).show(5, truncate=False)

    messages.createOrReplaceTempView("messages")
    spark.sql(
        "select topic, count(*) as messages, sum(length(value)) as bytes, "
        "min(timestamp) as first, max(timestamp) as last "
        "from messages group by topic order by topic"
    ).show(truncate=False)

    print("the same counts by tag, from the ConsumeQueues alone:")
    count_by_tag(spark, args.store, **topics).orderBy("topic", "tags").show(20, truncate=False)


if __name__ == "__main__":
    main()
