"""How far a streaming query is behind: Kafka's three metrics from a query's progress.

Spark has no custom metrics for Python sources, but it reports the end of every queue beside what a
query has read; the difference is the lag, in messages:

    minOffsetsBehindLatest  maxOffsetsBehindLatest  avgOffsetsBehindLatest
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from oberth.spark.plan import offsets_from_json

if TYPE_CHECKING:
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


class LagListener(StreamingQueryListener):
    """Keeps the newest metrics of every query, and calls back with them.

    Register with ``spark.streams.addListener(listener)``. Spark calls it on a thread of its own.

    Args:
        on_metrics: called with the query's id and its metrics, one dict per source.
    """

    def __init__(self, on_metrics: Callable[[str, list[Metrics]], None] | None = None) -> None:
        super().__init__()
        self._on_metrics = on_metrics
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
        with self._lock:
            self._metrics[str(progress.id)] = found
        if self._on_metrics is not None:
            self._on_metrics(str(progress.id), found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing to do: the last metrics stay readable."""
