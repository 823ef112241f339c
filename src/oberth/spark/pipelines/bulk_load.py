"""A frame becomes part of a store, all of it in Spark's tasks.

``df.write.format("rocketmq")`` stages in tasks and places what was staged in Spark's driver, since a
sink's commit can start no tasks. Here the driver only adds up sizes, makes files and exchanges the
trees: one job stages, a second one places records and ConsumeQueue units, a third one writes the
index files. What is written, and when it counts, is the same (`oberth.spark.load`).
"""  # noqa: E501 - the first paragraph

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from oberth import errors
from oberth.errors import OberthError, OptionError
from oberth.spark.load import LoadReport, StoreLoader
from oberth.spark.load_plan import StagedPart, work_directory
from oberth.spark.pipelines.tasks import OnSpark, TaskRunner
from oberth.spark.sink import check_columns, stage
from oberth.spark.write_options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_PART_DDL: Final = "path string, size long, last long, kind string, error string"


def load(
    frame: DataFrame,
    path: str,
    options: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
    batch: tuple[str, int] | None = None,
    tasks: TaskRunner | None = None,
) -> LoadReport:
    """Builds a store from a frame, or adds the frame to a closed one; all of it or nothing.

    Args:
        frame: columns as ``format("rocketmq")`` writes them.
        path: the store. Every task has to reach it, and the directory that it lies in, there.
        options: of ``format("rocketmq")`` for writing to a store.
        overwrite: whether the store begins anew.
        batch: the id of a stream's query and the number of its batch, in ``foreachBatch``: a batch
            that the store knows is not written again.
        tasks: what places the records; None for tasks of the frame's session.

    Raises:
        OptionError: an unknown option or column, or a value out of range.
        StoreLockedError: a process has the store open.
        StoreError: it was not closed cleanly, is behind with dispatching, or is no store.
        RecordError: a row cannot be a message.
        SparkUnavailableError: the session is a Spark Connect client, which cannot run tasks.
    """
    chosen = parse_write_options({**(options or {}), "path": path})
    if batch is not None and chosen.load_id:
        raise OptionError("loadId is for loads that are no batch of a stream")
    tasks = tasks or OnSpark(frame.sparkSession)
    check_columns(frame.schema, chosen)
    work = work_directory(chosen.path, uuid.uuid4().hex)
    try:
        parts = _staged(frame, chosen, work)
        loader = StoreLoader(chosen, tasks=tasks)
        return loader.commit(parts, work, overwrite=overwrite, batch=batch)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _staged(frame: DataFrame, options: WriteOptions, work: str) -> list[StagedPart]:
    """Stages the rows of each partition; what was staged, in the order of the partitions."""

    def stage_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        part, kind, error = StagedPart("", 0, 0), "", ""
        try:
            part = stage(batches, options, work)
        except OberthError as found:  # an answer: it is not tried again
            kind, error = type(found).__name__, str(found)
        values = (part.path, part.size, part.last_store_timestamp, kind, error)
        yield pyarrow.RecordBatch.from_pylist(
            [dict(zip(("path", "size", "last", "kind", "error"), values, strict=True))]
        )

    parts = []
    for path, size, last, kind, error in frame.mapInArrow(stage_rows, _PART_DDL).collect():
        if kind:
            raise getattr(errors, kind, OberthError)(error)
        parts.append(StagedPart(path, size, last))
    return parts
