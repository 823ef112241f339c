"""Which options of the source an export heeds; all others are refused.

An export's tables have every message of their topics, and its settings say what a row is. An option
that would leave messages out, or make other rows of them, would be missed only by who reads the
tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from oberth.errors import OptionError
from oberth.spark.given_options import CONNECTION, READ_TIMEOUT
from oberth.spark.options import READ_OPTIONS, by_proper_names
from oberth.spark.pipelines.export.live import is_live
from oberth.spark.pipelines.export.places import STORAGE

_ALWAYS: Final = (
    *(name for name in READ_OPTIONS if name.startswith(STORAGE)),
    # How work is cut, of which rows know nothing.
    "targetPartitionBytes",
)
_OF_STORES: Final = frozenset({*_ALWAYS, "brokerName"})
_OF_LIVE_TOPICS: Final = frozenset(
    {
        *_ALWAYS, *CONNECTION, READ_TIMEOUT, "rocketmq.consumer.group", "rocketmq.pull.group",
        "rocketmq.pull.batch.size", "rocketmq.pull.requests", "failOnDataLoss",
        "minPartitions", "maxRecordsPerPartition",
        "subscribe", "subscribePattern", "assign",
        # Where a first run begins.
        "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy", "startingGroupFallback",
    }
)  # fmt: skip
_IN_THEIR_PLACE: Final[Mapping[str, str]] = {
    "path": "the store is the command's DIR", "subscribe": "--topic names topics",
    "columns": "--columns names columns", "includeProperties": "--columns names columns",
    "body": "--body decodes bodies", "bodySchema": "--schema is their schema",
    "bodyReaderSchema": "--reader-schema is the column's schema",
    "bodyMessage": "--message names the message", "failOnDataLoss": "--skip-damage goes on",
}  # fmt: skip


def taken_options(options: Mapping[str, str], topics: Collection[str]) -> dict[str, str]:
    """The options that an export heeds, by their proper names.

    Args:
        options: of ``format("rocketmq")``, without ``path``; live topics are those of
            ``rocketmq.namesrv.addr``. ``subscribe`` is left out where it names the same topics as
            the export's settings.
        topics: of those settings.

    Raises:
        OptionError: one that an export would not heed, or that is not known.
    """
    given = by_proper_names(options)
    live = is_live(given)
    taken = _OF_LIVE_TOPICS if live else _OF_STORES
    subscribed = {name.strip() for name in given.get("subscribe", "").split(",")} - {""}
    if topics and subscribed == set(topics):
        del given["subscribe"]
    for name in given:
        if name not in taken:
            source = "live topics" if live else "a store"
            instead = _IN_THEIR_PLACE.get(name)
            raise OptionError(
                f"{name} does not go with an export of {source}"
                + (f"; {instead}" if instead else "")
            )
    return given
