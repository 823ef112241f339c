"""Where a log stood at a time: a position that cuts all topics at one moment.

What was stored at or before the time lies below the position. Store times are taken to be in order
from one CommitLog file to the next, as `startingTimestamp` takes them; inside the file that the
time falls into every record is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oberth.errors import NotFoundError
from oberth.formats.message import store_timestamp_at
from oberth.spark import plan as p
from oberth.spark.options import Selection, SelectionKind
from oberth.spark.predicates import Interval, Predicate
from oberth.spark.record_starts import RecordStarts
from oberth.spark.schemas import Field, arrow_schema, struct_type
from oberth.spark.segments import Segment
from oberth.spark.store_files import StoreFiles

if TYPE_CHECKING:
    from oberth.spark.lake import Lake

_HEADER_SIZE: Final = 76
_FIELDS: Final = (Field("physicalOffset", "physicalOffset", "bigint"),)


class _EveryTopic(p.TopicFilter):
    """The broker's own topics too."""

    def allows(self, topic: str) -> bool:
        return True


def position_after(store: StoreFiles, time_ms: int, lake: Lake | None = None) -> int:
    """The CommitLog offset of the first record stored after a time; the log's end for none.

    Args:
        store: whose log.
        time_ms: milliseconds since 1970.
        lake: what has the log's beginning, if that is elsewhere.
    """
    if lake is not None:
        from oberth.spark.lake import first_stored_after

        found = first_stored_after(lake, time_ms)
        if found is not None:
            return found
    behind = 0 if lake is None else lake.end
    segments = [segment for segment in store.segments() if segment.end > behind]
    candidates: list[Segment] = []
    for segment in reversed(segments):
        candidates.insert(0, segment)
        first = _first_time(store, segment)
        if first is not None and first <= time_ms:
            break
    for segment in candidates:
        found = _first_after(store, max(segment.start, behind), segment.end, time_ms)
        if found is not None:
            return found
    return max(store.log_end(), behind)


def _first_time(store: StoreFiles, segment: Segment) -> int | None:
    """When a segment's first record was stored, None where it has none."""
    try:
        at = RecordStarts(store).first(segment, segment.start).offset
        data = store.read_log(at, _HEADER_SIZE)
    except NotFoundError:
        return None
    return store_timestamp_at(data, 0) if len(data) == _HEADER_SIZE and any(data) else None


def _first_after(store: StoreFiles, start: int, end: int, time_ms: int) -> int | None:
    from oberth.spark.reading import PieceReader, ReadSettings

    settings = ReadSettings(
        _FIELDS,
        _EveryTopic(Selection(SelectionKind.ALL)),
        Predicate(times=Interval(low=time_ms + 1)),
        fail_on_data_loss=False,
        include_undelivered=True,
    )
    reader = PieceReader({0: store}, settings, arrow_schema(struct_type(_FIELDS)))
    for batch in reader.read([p.LogRange(0, start, end, continues=True)]):
        if batch.num_rows:
            return int(batch.column(0)[0].as_py())
    return None
