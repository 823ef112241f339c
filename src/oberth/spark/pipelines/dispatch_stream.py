"""Dispatch as a Structured Streaming query: ``start_dispatch`` follows a growing CommitLog.

The query's source is a `TailDispatcher` in the process that Spark keeps for the query. A trigger
asks it for news: it dispatches what was written and answers with one row of what it did, so the
delay from the log to the queues is the time between two triggers and hardly depends on what Spark
does with the row. The query's checkpoint only counts; where dispatch stands is known by the store.

    position         bigint     CommitLog offset up to which was dispatched
    records          bigint     how many records this step took
    storeTimestamp   timestamp  of the newest of them; null where a damaged one names no time
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from oberth.errors import OptionError
from oberth.spark.calendar import moment
from oberth.spark.pipelines.tail_dispatch import TailDispatcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "rocketmq-dispatch"
SCHEMA: Final = "position bigint, records bigint, storeTimestamp timestamp"
IDLE_WAIT_S: Final = 0.2
"""How long a trigger waits for news, and how often it looks."""
IDLE_LOOK_S: Final = 0.003
_CONFIG_PREFIX: Final = "config."


class DispatchSource(DataSource):
    """The source behind `start_dispatch`. Options: path, and config.NAME for the broker's."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return NAME

    def schema(self) -> str:
        """The row of a step."""
        return SCHEMA

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        """What dispatches."""
        path = self.options.get("path")
        if not path:
            raise OptionError(f"{NAME}: option path names the store")
        # Spark hands names over in lower case; Apache's names are found again without regard to it.
        entries = {
            name[len(_CONFIG_PREFIX) :]: value
            for name, value in self.options.items()
            if name.startswith(_CONFIG_PREFIX)
        }
        return DispatchReader(path, _proper_names(entries))


def _proper_names(entries: Mapping[str, str]) -> dict[str, str]:
    from oberth.formats.broker_conf import MessageStoreConfig

    known = {name.lower(): name for name in MessageStoreConfig().to_properties()}
    return {known.get(name.lower(), name): value for name, value in entries.items()}


class DispatchReader(SimpleDataSourceStreamReader):
    """Dispatches when it is asked for news."""

    def __init__(self, path: str, entries: Mapping[str, str]) -> None:
        self._path = path
        self._entries = dict(entries)
        self._tail: TailDispatcher | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_entries": self._entries, "_tail": None}

    def initialOffset(self) -> dict[str, int]:
        """Where a new query counts from."""
        return {"step": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        """Dispatches what is new; the same offset where nothing is."""
        if self._tail is None:
            self._tail = TailDispatcher(self._path, self._entries).__enter__()
        deadline = time.monotonic() + IDLE_WAIT_S
        while True:
            done = self._tail.advance()
            if done.records:
                rows = [(done.position, done.records, moment(done.store_timestamp))]
                return iter(rows), {"step": start["step"] + 1}
            if time.monotonic() >= deadline:
                return iter([]), start
            time.sleep(IDLE_LOOK_S)

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        """After a restart: the step was done, or is done again by the next one."""
        return iter([])


def start_dispatch(
    session: SparkSession,
    root: str,
    checkpoint: str,
    *,
    entries: Mapping[str, str] | None = None,
    name: str = "oberth-dispatch",
) -> StreamingQuery:
    """Starts a query that keeps a store's queues and index up to date.

    Args:
        session: a classic session; the query runs in its driver.
        root: the store, whose broker does not dispatch itself.
        checkpoint: a directory of the query's own.
        entries: the broker's options by their Java names.
        name: of the query.
    """
    session.dataSource.register(DispatchSource)
    options = {f"{_CONFIG_PREFIX}{key}": value for key, value in (entries or {}).items()}
    frame = session.readStream.format(NAME).options(**options).load(root)
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.queryName(name).trigger(processingTime="0 seconds").start()
