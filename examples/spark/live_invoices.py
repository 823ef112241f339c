"""A stream from a live topic to another: paid orders become invoices, in order for each customer.

    python examples/spark/live_invoices.py NAMESRV CHECKPOINT [--continuous]

Orders are JSON with "id", "customer" and "total". Where the stream stands is in CHECKPOINT, and in
the consumer group `invoicing` for whoever watches lag. An invoice can come twice after a failure;
it has the same unique key then.
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions as f

from oberth.spark.runtime import build_session


def main(argv: list[str] | None = None) -> None:
    """Run until everything is invoiced, or until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("namesrv")
    parser.add_argument("checkpoint")
    parser.add_argument("--continuous", action="store_true")
    parser.add_argument("--master", default="local[*]")
    args = parser.parse_args(argv)
    spark = build_session(args.master, app_name="invoices", quick=True)
    orders = (
        spark.readStream.format("rocketmq")
        .option("rocketmq.namesrv.addr", args.namesrv)
        .option("subscribe", "orders")
        .option("filter.tag", "paid")
        .option("startingOffsets", "earliest")
        .option("commitOffsetsToGroup", "true")
        .option("rocketmq.consumer.group", "invoicing")
        .load()
    )
    body = f.from_json(f.col("value").cast("string"), "id long, customer string, total double")
    due = (f.col("order.total") * 1.19).alias("due")
    # Rows stay in the task that read their queue, so what was ordered there stays so.
    invoices = orders.select(body.alias("order")).select(
        f.col("order.customer").alias("shardingKey"),
        f.concat(f.lit("invoice-"), "order.id").alias("uniqueKey"),
        f.to_json(f.struct("order.id", due)).alias("value"),
    )
    writer = (
        invoices.writeStream.format("rocketmq")
        .option("rocketmq.namesrv.addr", args.namesrv)
        .option("topic", "invoices")
        .option("checkpointLocation", args.checkpoint)
    )
    if args.continuous:
        writer.trigger(processingTime="1 second").start().awaitTermination()
        return
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print(f"{sum(batch['numInputRows'] for batch in query.recentProgress)} paid orders read")


if __name__ == "__main__":
    main()
