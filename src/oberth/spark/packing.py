"""Cuts what a query reads into pieces, and packs the pieces into the partitions of a plan.

Queues of a store that grew at the same time lie between each other in its log. A partition gets the
parts of them that lie together, so that the log is read once and in its order; see `side_by_side`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from oberth.spark.options import ReadOptions
from oberth.spark.plan import (
    PARTITIONS_MAX,
    LogRange,
    Lookup,
    PartitionPlan,
    Piece,
    QueueRange,
    SideBySide,
)

# A remainder below this share of a partition stays with it.
_CRUMB: Final = 8


class Cut(NamedTuple):
    """A piece and how much it is.

    Attributes:
        piece: what is read.
        rows: of it, as far as that is known.
        size: bytes, as far as they are known.
        place: where in the log the first record lies and where the last, about; None: not told.
        in_window: whether it is read side by side with its neighbours of the same store.
        ends_window: whether the next one lies elsewhere in the log, so a partition may end here.
    """

    piece: Piece
    rows: int
    size: int
    place: tuple[int, int] | None = None
    in_window: bool = False
    ends_window: bool = False


def pack(
    cuts: Sequence[Cut], options: ReadOptions, *, together: bool = False
) -> list[PartitionPlan]:
    """Cuts and packs pieces into partitions of about targetPartitionBytes, keeping their order.

    Several small pieces share a partition and a large one becomes several; with minPartitions
    there are at least so many (as far as there are rows), with maxRecordsPerPartition none has
    more rows.

    Args:
        cuts: what is packed.
        options: of the read.
        together: whether queues may be read side by side, where there are several partitions and
            each has more than a batch.
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
    pieces = _Pieces()
    room, row_room = share, row_limit if row_limit is not None else max(rows, 1)
    for whole in side_by_side(cuts, share) if together and share >= options.batch_bytes else cuts:
        rest: Cut | None = whole
        while rest is not None:
            if room <= 0 or row_room <= 0:
                partitions.append(PartitionPlan(pieces.take()))
                room, row_room = share, row_limit if row_limit is not None else max(rows, 1)
            taken, rest = _split(rest, room, row_room)
            pieces.add(taken)
            room -= max(taken.size, 1)
            row_room -= taken.rows
        if whole.ends_window and room < share // _CRUMB:
            room = 0
    if last := pieces.take():
        partitions.append(PartitionPlan(last))
    return partitions


class _Pieces:
    """Those of one partition; windows of a store that follow each other are one piece."""

    def __init__(self) -> None:
        self._found: list[Piece] = []
        self._window: dict[tuple[str, int], QueueRange] = {}
        self._store = -1

    def add(self, cut: Cut) -> None:
        piece = cut.piece
        if not cut.in_window:
            self._end_window()
            self._found.append(piece)
            return
        assert isinstance(piece, QueueRange)
        if self._store != piece.store:
            self._end_window()
        self._store = piece.store
        before = self._window.get((piece.topic, piece.queue))
        self._window[piece.topic, piece.queue] = (
            piece if before is None else before._replace(end=piece.end)
        )

    def _end_window(self) -> None:
        if self._window:
            queues = tuple(self._window.values())
            self._found.append(SideBySide(self._store, queues))
            self._window.clear()

    def take(self) -> tuple[Piece, ...]:
        """What there is; nothing is left."""
        self._end_window()
        found = tuple(self._found)
        self._found.clear()
        return found


QUEUES_SIDE_BY_SIDE_MAX: Final = 64
"""Queues of a store that are read side by side; of more, each would have few records in a read."""
_WINDOWS_PER_PARTITION: Final = 4
_SLICES_MAX: Final = 65_536
"""Parts of queues that a plan may get by being read side by side."""


def side_by_side(cuts: Sequence[Cut], share: int) -> list[Cut]:
    """Cuts the queues of each store where others of it are cut too, by places in the log.

    Where exactly does not matter: each message stays in one part, and a part that lies elsewhere
    than its neighbours costs reads, not rows. So the records of a queue are taken to lie evenly
    between its first and its last.

    Args:
        cuts: whole pieces of queues, those of a store one after the other.
        share: bytes of a partition.
    """
    slices = _SLICES_MAX
    made: list[Cut] = []
    for _, group in groupby(cuts, lambda cut: cut.piece.store):
        of_store = list(group)
        queues = [each for each in of_store if each.place is not None]
        size = sum(each.size for each in queues)
        partitions = -(-size // share)
        room = slices // max(len(queues), 1)
        if not 2 <= len(queues) <= QUEUES_SIDE_BY_SIDE_MAX or not 2 <= partitions <= room:
            made += of_store
            continue
        count = min(partitions * _WINDOWS_PER_PARTITION, room)
        slices -= count * len(queues)
        made += _windows(queues, count)
        made += [each for each in of_store if each.place is None]
    return made


def _windows(queues: Sequence[Cut], count: int) -> Iterator[Cut]:
    """Parts of queues, those of one window of the log after those of the one before."""
    places = [cut.place for cut in queues if cut.place is not None]
    low = min(first for first, _ in places)
    width = max(max(last for _, last in places) + 1 - low, 1)
    done = [0] * len(queues)
    for window in range(1, count + 1):
        upto = low + width * window // count
        parts = []
        for number, (cut, (first, last)) in enumerate(zip(queues, places, strict=True)):
            piece, rows, size = cut[:3]
            assert isinstance(piece, QueueRange)
            total = piece.end - piece.start
            end = total
            if window < count:
                end = min(max(total * (upto - first) // max(last + 1 - first, 1), 0), total)
            begin = done[number]
            if begin < end:
                part = piece._replace(start=piece.start + begin, end=piece.start + end)
                weight = size * (end - begin) // total
                parts.append(Cut(part, rows * (end - begin) // total, weight, in_window=True))
                done[number] = end
        if parts:
            yield from parts[:-1]
            yield parts[-1]._replace(ends_window=True)


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
    assert isinstance(piece, QueueRange | Lookup)
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
    return (
        cut._replace(piece=first, rows=take, size=size),
        cut._replace(piece=rest, rows=count - take, size=cut.size - size),
    )
