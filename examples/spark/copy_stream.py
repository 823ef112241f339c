"""Copies topics of a store into another store, each message once, and goes on where it ended.

    python examples/spark/copy_stream.py FROM INTO CHECKPOINT [--pattern 'orders-.*']

Run it again after more messages have come, or after it was killed: the checkpoint says what was
read, the ledger inside the target store what was written.
"""

from __future__ import annotations

import argparse

from oberth.spark.runtime import build_session

#: Bodies and properties byte for byte, compressed ones too.
AS_STORED = "topic,partition,storedBody,storedProperties,sysFlag,timestamp,bornTimestamp"


def main(argv: list[str] | None = None) -> None:
    """Copy what is there and stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("checkpoint")
    parser.add_argument("--pattern", default=".*")
    parser.add_argument("--master", default="local[*]")
    args = parser.parse_args(argv)
    spark = build_session(args.master, app_name="copy", quick=True)
    query = (
        spark.readStream.format("rocketmq")
        .option("subscribePattern", args.pattern)
        .option("startingOffsets", "earliest")
        .option("columns", AS_STORED)
        .option("maxOffsetsPerTrigger", "200000")
        .load(args.source)
        .writeStream.format("rocketmq")
        .option("path", args.target)
        .option("mappedFileSizeCommitLog", "64m")
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = spark.read.format("rocketmq").load(args.target).count()
    print(f"{copied} messages in {args.target}")


if __name__ == "__main__":
    main()
