"""Cuts what a query reads into pieces, and packs the pieces into the partitions of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from oberth.spark.options import ReadOptions
from oberth.spark.plan import PARTITIONS_MAX, LogRange, PartitionPlan, Piece, QueueRange


class Cut(NamedTuple):
    """A piece and how much it is: rows and bytes, as far as they are known."""

    piece: Piece
    rows: int
    size: int


def pack(cuts: Sequence[Cut], options: ReadOptions) -> list[PartitionPlan]:
    """Cuts and packs pieces into partitions of about targetPartitionBytes, keeping their order.

    Several small pieces share a partition and a large one becomes several; with minPartitions
    there are at least so many (as far as there are rows), with maxRecordsPerPartition none has
    more rows.
    """
    total = sum(cut.size for cut in cuts)
    rows = sum(cut.rows for cut in cuts)
    target = options.target_partition_bytes
    wanted = min(max(-(-total // target), 1), PARTITIONS_MAX)
    if options.min_partitions is not None:
        wanted = max(wanted, options.min_partitions)
    share = max(-(-total // wanted), 1)
    row_limit = options.max_records_per_partition
    partitions: list[PartitionPlan] = []
    pieces: list[Piece] = []
    room, row_room = share, row_limit if row_limit is not None else max(rows, 1)
    for whole in cuts:
        rest: Cut | None = whole
        while rest is not None:
            if room <= 0 or row_room <= 0:
                partitions.append(PartitionPlan(tuple(pieces)))
                pieces = []
                room, row_room = share, row_limit if row_limit is not None else max(rows, 1)
            taken, rest = _split(rest, room, row_room)
            pieces.append(taken.piece)
            room -= max(taken.size, 1)
            row_room -= taken.rows
    if pieces:
        partitions.append(PartitionPlan(tuple(pieces)))
    return partitions


# A remainder below this share of a partition stays with it.
_CRUMB: Final = 8


def _split(cut: Cut, room: int, row_room: int) -> tuple[Cut, Cut | None]:
    piece = cut.piece
    if isinstance(piece, LogRange):
        length = piece.end - piece.start
        if length <= room + room // _CRUMB:
            return cut, None
        take = max(room, 1)
        middle = piece.start + take
        return (
            Cut(piece._replace(end=middle), 0, take),
            Cut(piece._replace(start=middle, continues=True), 0, length - take),
        )
    count = piece.end - piece.start if isinstance(piece, QueueRange) else len(piece.positions)
    by_size = count if cut.size <= room + room // _CRUMB else count * room // cut.size
    take = max(min(by_size, row_room, count), 1)
    if take >= count:
        return cut, None
    size = cut.size * take // count
    first: Piece
    rest: Piece
    if isinstance(piece, QueueRange):
        middle = piece.start + take
        first, rest = piece._replace(end=middle), piece._replace(start=middle)
    else:
        first = piece._replace(positions=piece.positions[:take])
        rest = piece._replace(positions=piece.positions[take:])
    return Cut(first, take, size), Cut(rest, count - take, cut.size - size)
