"""Exports of live topics: a batch is a range of queue offsets instead of a range of the log.

    batches/NNNNNNNN.json    {"start": 0, "end": 120, "offsets": {"start": …, "end": …, "before": …}}

``offsets`` are those of the source, ``{topic: {broker: {queue: offset}}}``; ``start`` and ``end`` count
the messages of all batches. ``before`` has the place in the log of the record before each end, which
tells a topic that was made again (`oberth.spark.plan.look_before`). Queues that appear later begin at their beginning. The rest is that of
`exporter`: a batch that was stopped is run again with the same offsets.
"""  # noqa: E501 - the example

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from oberth.client.instance import BROKER_NOT_EXIST
from oberth.errors import MQClientError, OptionError
from oberth.spark import plan as p
from oberth.spark.live_plan import LiveStores, LiveTopics
from oberth.spark.live_reading import LivePieceReader, PullSettings
from oberth.spark.options import ReadOptions, by_proper_names, parse_read_options
from oberth.spark.packing import Cut, pack
from oberth.spark.partitions import queue_cuts
from oberth.spark.pipelines.export.ledger import Batch
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.reading import ReadSettings


class LivePart(NamedTuple):
    """One task: ranges of queues; ``start`` and ``end`` are its place in the batch's count."""

    start: int
    end: int
    pieces: tuple[p.Piece, ...]


@dataclass(frozen=True, slots=True)
class LiveOrigin:
    """Where the tasks of a batch read.

    Attributes:
        broker: what files say of it: the brokers' names, with commas.
        brokers: what tasks know of each.
        pulls: how they pull.
    """

    broker: str
    brokers: tuple[LiveTopics, ...]
    pulls: PullSettings

    def reader(self, settings: ReadSettings, schema: pa.Schema) -> LivePieceReader:
        """What reads the pieces of a part."""
        return LivePieceReader(dict(enumerate(self.brokers)), settings, schema, self.pulls)


class LiveTopicsSource:
    """The topics of an export, and what of them comes next. ``close`` ends the connections."""

    def __init__(
        self, options: Mapping[str, str], settings: ExportSettings, *, skip_damage: bool
    ) -> None:
        given = dict(options)
        if settings.exact:
            raise OptionError("an exact export reads a store's log; brokers do not show all of it")
        if settings.topics:
            if "subscribe" in by_proper_names(given):
                raise OptionError("subscribe does not go with --topic: give one of them")
            given["subscribe"] = ",".join(settings.topics)
        if skip_damage:
            given["failOnDataLoss"] = "false"
        self.options: ReadOptions = parse_read_options(given, streaming=False)
        assert self.options.connection is not None
        self.stores = LiveStores(self.options)

    def close(self) -> None:
        """Ends the connections."""
        self.stores.close()

    def clusters(self, noted: Collection[str]) -> list[str]:
        """What tells it from other sources: its clusters, which keep their names.

        Args:
            noted: those of the export's first run, of which one is waited for; none for a first.

        Raises:
            MQClientError: there are none, for longer than is waited.
        """
        try:
            return self.stores.clusters(noted)
        except MQClientError as error:
            if not noted or error.response_code != BROKER_NOT_EXIST:
                raise
        return self.stores.clusters()

    def next_batch(self, last: Batch | None, lost: list[str]) -> Batch | None:
        """What is new in the queues, None for nothing.

        Raises:
            DataLossError: messages were deleted unexported, unless that is to be skipped.
        """
        already = len(self.stores.lost)
        keys = p.select_queues(self.options, self.stores, must_exist=last is None)
        known: p.Offsets = {}
        bounds = self.stores.bounds(keys)
        if last is None:
            start = p.bound_offsets(
                self.options.starting, "starting", self.options, self.stores, bounds
            )
        else:
            assert last.offsets is not None
            before = p.offsets_from_json(last.offsets["end"])
            self.stores.tell_away(before, bounds)
            # A queue that is not there now keeps its place.
            start = {key: before.get(key, low) for key, (low, _) in bounds.items()} | {
                key: offset for key, offset in before.items() if key not in bounds
            }
            known = p.offsets_from_json(last.offsets.get("before", {}))
            start |= p.made_again(self.stores, self.options, known, before, bounds)
        end = start | {key: high for key, (_, high) in bounds.items()}
        read = {key: end[key] for key in bounds}
        ranges = p.check_range(self.stores, self.options, start, read, bounds)
        lost += self.stores.lost[already:]
        count = sum(high - low for low, high in ranges.values())
        if not count:
            return None
        # What was skipped is not asked for again.
        start |= {key: low for key, (low, _) in ranges.items()}
        places = p.note_before(self.stores, known, start, end)
        offsets = {
            name: p.offsets_to_json(each)
            for name, each in (("start", start), ("end", end), ("before", places))
        }
        number, first = (0, 0) if last is None else (last.number + 1, last.end)
        return Batch(number, first, first + count, offsets)

    def parts(self, batch: Batch) -> tuple[LiveOrigin, list[LivePart]]:
        """The work of a batch, and where it is read.

        Raises:
            MQClientError: a broker that it names is not there, for longer than is waited, unless
                what is lost is to be skipped.
        """
        assert batch.offsets is not None
        assert self.options.connection is not None
        start = p.offsets_from_json(batch.offsets["start"])
        end = p.offsets_from_json(batch.offsets["end"])
        ranges = {key: (start.get(key, 0), last) for key, last in end.items()}
        ranges = {key: each for key, each in ranges.items() if each[0] < each[1]}
        away = self.stores.absent({key.broker for key in ranges})
        # Damage is what is lost at a broker; one that is away is lost if others are named.
        named = self.options.connection.brokers
        if away and (self.options.fail_on_data_loss or not named or not away.isdisjoint(named)):
            raise MQClientError(
                f"batch {batch.number} has messages of {', '.join(sorted(away))}, and "
                f"{self.stores.where} have no queues there; if they are gone for good, name the "
                "brokers that are left in rocketmq.brokers and skip damage",
                BROKER_NOT_EXIST,
            )
        lost = [
            f"{key}: offsets {low} to {high} of batch {batch.number} are at no broker now"
            for key, (low, high) in sorted(ranges.items()) if key.broker in away
        ]  # fmt: skip
        p.report_loss(self.stores, self.options, lost)
        ranges = {key: each for key, each in ranges.items() if key.broker not in away}
        self.stores.prepare(ranges)
        cuts: list[Cut] = []
        by_broker = p.by_broker(ranges)
        for number, broker in enumerate(self.stores.brokers):
            own = by_broker.get(broker.broker, {})
            cuts += queue_cuts(number, self.stores, own)
        plans = pack(cuts, self.options)
        parts, at = [], batch.start
        for plan in plans:
            rows = sum(
                piece.end - piece.start for piece in plan.pieces if isinstance(piece, p.QueueRange)
            )
            parts.append(LivePart(at, at + rows, plan.pieces))
            at += rows
        brokers = tuple(self.stores.for_tasks())
        pulls = PullSettings(
            self.options.connection, self.options.pull_group, self.options.pull_batch,
            self.options.pull_requests,
        )  # fmt: skip
        return LiveOrigin(",".join(b.broker for b in brokers), brokers, pulls), parts


def is_live(options: Mapping[str, Any]) -> bool:
    """Whether options name brokers."""
    return any(name.lower() in _NAMES for name in options)


_NAMES: Final = ("rocketmq.namesrv.addr", "nameserver", "namesrvaddr")
