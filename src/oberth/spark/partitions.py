"""Partitions of a query: what one task reads, how pieces of queues are cut, and what reads them.

For batch and streaming queries alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from oberth.errors import NotFoundError
from oberth.spark import plan as p
from oberth.spark.options import ReadOptions
from oberth.spark.packing import QUEUES_SIDE_BY_SIDE_MAX, Cut
from oberth.spark.predicates import EVERYTHING, Predicate
from oberth.spark.queue_files import QueueFiles
from oberth.spark.schemas import Field, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from oberth.spark.log_tail import TailMessage
    from oberth.spark.reading import PieceReader, ReadSettings


class RocketMQPartition(InputPartition):
    """What one task reads, and from where: Spark pickles readers before it asks for partitions.

    Attributes:
        stores: those that the pieces name, by their numbers; no others travel.
    """

    def __init__(
        self, pieces: tuple[p.Piece, ...], stores: Sequence[Any], predicate: Predicate
    ) -> None:
        super().__init__(pieces)
        self.pieces = pieces
        self.stores = {piece.store: stores[piece.store] for piece in pieces}
        self.predicate = predicate


def read_settings(
    options: ReadOptions, fields: tuple[Field, ...], predicate: Predicate = EVERYTHING
) -> ReadSettings:
    """What a task needs to know of the options."""
    from oberth.spark.reading import ReadSettings

    return ReadSettings(
        fields=fields,
        topics=p.TopicFilter(options.selection),
        predicate=predicate,
        tags=options.filter_tags,
        sql=options.filter_sql,
        batch_bytes=options.batch_bytes,
        fail_on_data_loss=options.fail_on_data_loss,
        verify_crc=options.verify_crc,
        include_undelivered=options.include_undelivered,
        bad_bodies=options.bad_bodies,
    )


def make_piece_reader(
    stores: Mapping[int, Any],
    options: ReadOptions,
    fields: tuple[Field, ...],
    schema: StructType,
    predicate: Predicate = EVERYTHING,
) -> PieceReader:
    """A reader of pieces with these options; of stores, or of live brokers."""
    from oberth.spark.reading import PieceReader

    if options.connection is not None:
        from oberth.spark.live_reading import LivePieceReader, PullSettings

        pulls = PullSettings(
            options.connection, options.pull_group, options.pull_batch, options.pull_requests
        )
        settings = read_settings(options, fields, predicate)
        return LivePieceReader(stores, settings, arrow_schema(schema), pulls)
    return PieceReader(stores, read_settings(options, fields, predicate), arrow_schema(schema))


def queue_cuts(
    number: int, stores: p.QueueStores, ranges: Mapping[p.QueueKey, tuple[int, int]]
) -> list[Cut]:
    """Pieces of queues of one store with their sizes; after their units they go on in the log."""
    cuts = []
    for key in sorted(ranges):
        start, end = ranges[key]
        if start >= end:
            continue
        tail: list[TailMessage] = []
        size, middle = 0, end
        with contextlib.suppress(NotFoundError):
            queue = stores.queue(key)
            if isinstance(queue, QueueFiles):
                tail, middle = queue.tail_within(start, end), queue.tail_begin(start, end)
            size = queue.record_bytes(start, end)
        behind = sum(each.size for each in tail)
        if start < middle:
            piece = p.QueueRange(number, key.topic, key.queue, start, middle)
            place = None
            if len(ranges) <= QUEUES_SIDE_BY_SIDE_MAX and isinstance(queue, QueueFiles):
                place = queue.about_where(start, end)
            cuts.append(Cut(piece, middle - start, max(size - behind, middle - start), place))
        if tail:
            places = p.Lookup(
                number, tuple(each.at for each in tail),
                ((key.topic, key.queue, middle, end),), joined=True,
            )  # fmt: skip
            cuts.append(Cut(places, len(tail), behind))
    return cuts
