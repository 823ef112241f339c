"""How far a streaming query is behind: Kafka's three metrics from a query's progress, and times.

Spark has no custom metrics for Python sources, but it reports the end of every queue beside what a
query has read; the difference is the lag, in messages:

    minOffsetsBehindLatest  maxOffsetsBehindLatest  avgOffsetsBehindLatest

Of a batch's plan it knows more, which a listener with the session adds for the batch that a
progress is of, all sources of the query together:

    scanMs     time of the tasks of the stages that read, waiting for Python's decoding included

The bytes that Python tasks gave to Spark are not among them: of a worker that lives on, Spark 4.3
counts those of its earlier tasks too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from oberth.spark.plan import offsets_from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

Metrics = dict[str, float]


def lag_metrics(end_offset: Any, latest_offset: Any) -> Metrics:
    """Kafka's metrics from two offsets, each as text or as the parsed object.

    A queue that the query does not know yet counts from 0; without queues there are no metrics,
    nor for the offsets of other sources, which a listener of the session sees too.
    """
    try:
        end = offsets_from_json(_parsed(end_offset))
        latest = offsets_from_json(_parsed(latest_offset))
    except (AttributeError, TypeError, ValueError):
        return {}
    behind = [max(offset - end.get(key, 0), 0) for key, offset in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": float(min(behind)),
        "maxOffsetsBehindLatest": float(max(behind)),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def _parsed(offset: Any) -> Mapping[str, Any]:
    if isinstance(offset, str):
        offset = json.loads(offset) if offset.strip() not in ("", "null") else {}
    return offset if isinstance(offset, Mapping) else {}


def scan_metrics(session: SparkSession, run_id: str, batch: int) -> Metrics:
    """What Spark has counted for the scans of a batch; nothing where it keeps no such plan.

    Args:
        session: a classic one.
        run_id: of the query's run.
        batch: its number.
    """
    java: Any = session
    store = java._jsparkSession.sharedState().statusStore()
    found: Metrics = {}
    plans = store.executionsList().reverseIterator()
    for _ in range(_PLANS_MAX):
        if not plans.hasNext():
            break
        plan = plans.next()
        text = str(plan.description()).splitlines()
        if f"runId = {run_id}" not in text or f"batch = {batch}" not in text:
            continue
        values = store.executionMetrics(plan.executionId())
        nodes = store.planGraph(plan.executionId()).allNodes().iterator()
        while nodes.hasNext():
            metrics = nodes.next().metrics().iterator()
            while metrics.hasNext():
                metric = metrics.next()
                name = _SCAN_METRICS.get(str(metric.name()))
                value = values.get(metric.accumulatorId())
                if name is not None and value.isDefined():
                    found[name] = found.get(name, 0.0) + quantity(str(value.get()))
    return found


_COUNTED_WAIT_S: Final = 1.0
_COUNTED_LOOK_S: Final = 0.02
_PLANS_MAX: Final = 20
"""Plans that are looked at, the newest first; a batch has two or three."""
_SCAN_METRICS: Final = {"duration": "scanMs"}
_UNITS: Final = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000,
}  # fmt: skip


def quantity(text: str) -> float:
    """Milliseconds of a metric as Spark's page shows it.

    Either ``11.2 s``, or two lines of which the second begins with the total.
    """
    number, _, unit = text.splitlines()[-1].partition(" (")[0].strip().partition(" ")
    try:
        return float(number.replace(",", "")) * _UNITS[unit]
    except (ValueError, KeyError):
        return 0.0


class LagListener(StreamingQueryListener):
    """Keeps the newest metrics of every query, and calls back with them.

    Register with ``spark.streams.addListener(listener)``. Spark calls it on a thread of its own.

    Args:
        on_metrics: called with the query's id and its metrics, one dict per source.
        session: whose queries they are: for times, of a query with one source. Not one of
            Spark Connect, which does not show plans.
    """

    def __init__(
        self,
        on_metrics: Callable[[str, list[Metrics]], None] | None = None,
        *,
        session: SparkSession | None = None,
    ) -> None:
        super().__init__()
        self._on_metrics = on_metrics
        self._session = session
        self._metrics: dict[str, list[Metrics]] = {}
        self._lock = threading.Lock()  # guards _metrics

    def metrics(self, query_id: str) -> list[Metrics]:
        """The newest metrics of a query, one dict per source; empty before its first progress."""
        with self._lock:
            return list(self._metrics.get(str(query_id), ()))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Takes the offsets of a query's sources."""
        progress = event.progress
        found = [lag_metrics(s.endOffset, s.latestOffset) for s in progress.sources]
        if self._session is not None and len(found) == 1 and found[0]:
            # Spark counts on a thread of its own, a moment behind.
            deadline = time.monotonic() + _COUNTED_WAIT_S
            run, batch = str(progress.runId), progress.batchId
            while not (counted := scan_metrics(self._session, run, batch)):
                if not progress.numInputRows or time.monotonic() > deadline:
                    break
                time.sleep(_COUNTED_LOOK_S)
            found[0].update(counted)
        with self._lock:
            self._metrics[str(progress.id)] = found
        if self._on_metrics is not None:
            self._on_metrics(str(progress.id), found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing to do: the last metrics stay readable."""
