"""The group `oberth spark`: pipelines over whole stores, on this machine or a cluster."""

from __future__ import annotations

from typing import Final

import click

from oberth.cli.lazy import LazyGroup

COMMANDS: Final = {
    "sql": (
        "oberth.cli.spark_sql:sql_command",
        "Ask a store in SQL: each topic is a view.",
    ),
    "dispatch": (
        "oberth.cli.spark_dispatch:dispatch_command",
        "Build queues and index from the CommitLog, once or as it grows.",
    ),
    "verify": (
        "oberth.cli.spark_verify:verify_command",
        "Check CommitLog, queues, index and config against each other.",
    ),
    "audit": (
        "oberth.cli.spark_audit:audit_command",
        "Compare two stores, or a store with its export or a live cluster.",
    ),
    "export": (
        "oberth.cli.spark_export:export_command",
        "Export messages to Parquet, Delta or Iceberg tables.",
    ),
    "import": (
        "oberth.cli.spark_import:import_command",
        "Make a store of an exact export.",
    ),
    "stats": (
        "oberth.cli.spark_stats:stats_command",
        "Count messages by topic, queue, tag, producer and hour; a report with plots.",
    ),
    "dlq": (
        "oberth.cli.spark_dlq:dlq_command",
        "Show dead letters: origin topic, group, times retried.",
    ),
    "redrive": (
        "oberth.cli.spark_redrive:redrive_command",
        "Send dead letters on their way again, into a store.",
    ),
    "migrate": (
        "oberth.cli.spark_migrate:migrate_command",
        "Move a topic from Kafka to RocketMQ or back, with the offsets of groups.",
    ),
    "publish": (
        "oberth.cli.spark_publish:publish_command",
        "Send a table's rows to a topic, each exactly once.",
    ),
    "salvage": (
        "oberth.cli.spark_salvage:salvage_command",
        "Copy what is undamaged into a new store.",
    ),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def spark() -> None:
    """Pipelines over whole stores, on this machine or on a cluster.

    No broker has to run. DIR is a store's root; every machine that takes part has to see it under
    the same path. Exit codes: 0 done, 1 findings, 2 it could not be done.
    """
