"""What an export remembers, in the directory ``_oberth`` beside its tables.

    settings.json              how the tables are made; never changes
    batches/NNNNNNNN.json      a batch's range of the log, written before its data; of several
                               stores one for each: {"start": 0, "end": 900, "logs": {"broker-a":
                               {"start": 0, "end": 500, "tail": 7}, …}}
    batches/NNNNNNNN.done      its report, written when all its tables have it; ``total`` counts the
                               rows of this batch and of all before
    commits/NNNNNNNN.json      Parquet only: which staged files go where; from here on it counts;
                               removed when the batch is done

    config/                    exact exports only: the store's config/*.json at the last run

A batch without ``.done`` is run again with the same range; what it had written is removed or, where
a table has it already, kept. Of those that are done the newest `BATCHES_KEPT` stay, for who reads
the ledger meanwhile. Files appear whole, by renaming, and are on the disk before the next step
begins.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from zlib import crc32

from oberth.errors import NotFoundError, OptionError
from oberth.spark.pipelines.export.places import Place
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.store.store_lock import ProcessLock

if TYPE_CHECKING:
    from oberth.spark.store_files import StoreFiles

DIRECTORY: Final = "_oberth"
CLUSTERS: Final = "clusters "
"""Before the names of clusters where ``source`` has a broker: of an export of live topics."""
_LOG: Final = logging.getLogger(__name__)

BATCHES_KEPT: Final = 64
FORGOTTEN_MAX: Final = 1000
"""Files of older batches that a batch removes at most: ledgers from before have all of theirs."""
_TAIL_SIZE: Final = 4096
"""Bytes that tell the log from one that was cut and written on."""


class LogRange(NamedTuple):
    """A range of a store's log; ``tail`` is the CRC-32 of the last bytes before its end.

    None where it was not noted.
    """

    start: int
    end: int
    tail: int | None = None


def tail_of(store: StoreFiles, end: int) -> int | None:
    """The CRC-32 of a log's last bytes before a position; None where they are gone."""
    try:
        segment = store.segment_of(end - 1)
        if segment is None:
            return None
        start = max(segment.start, end - _TAIL_SIZE)
        return crc32(store.read_log(start, end - start))
    except NotFoundError:
        return None


def is_other_log(store: StoreFiles, end: int, noted: int | None) -> bool:
    """Whether a log is not the one that a tail was noted of, as far as that can be known."""
    if noted is None:
        return False
    found = tail_of(store, end)
    return found is not None and found != noted


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: its number, and its range of the log; of live topics, see `live`.

    Of several stores ``logs`` has the range of each by its broker's name, also where it is empty,
    and ``start`` and ``end`` count the bytes of all batches. ``tail`` is that of `LogRange`.
    """

    number: int
    start: int
    end: int
    offsets: dict[str, Any] | None = None
    tail: int | None = None
    logs: Mapping[str, LogRange] | None = None

    def ranges(self, broker: str) -> Mapping[str, LogRange]:
        """The range of each log by broker; of one store: of `Ledger.source`'s, which is given."""
        if self.logs is not None:
            return self.logs
        return {broker: LogRange(self.start, self.end, self.tail)}


class Ledger:
    """The memory of the export in one directory. One writer at a time: see `locked`."""

    _told: ClassVar[set[str]] = set()

    def __init__(self, place: Place) -> None:
        self.place = place
        self.into = place.root
        self.directory = os.path.join(place.root, DIRECTORY)

    @contextmanager
    def locked(self) -> Any:
        """Keeps other processes, and other threads of this one, away from the export.

        Raises:
            StoreLockedError: one has it already.
        """
        self.place.make(os.path.join(self.directory, "batches"))
        file = self.place.lock_file(f"{DIRECTORY}/lock")
        lock = ProcessLock(file, f"exports into {self.into}")
        lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def settings(self, wanted: ExportSettings | None) -> ExportSettings | None:
        """The settings of the first run; None before it.

        Raises:
            OptionError: other settings are wanted now.
        """
        values = self.read("settings.json")
        if values is None:
            return None
        present = ExportSettings.from_json(values["settings"])
        if wanted is not None:
            theirs = wanted.to_json()
            # A type of JSON bodies that was inferred stays what it was.
            if not theirs["body_schema"]:
                theirs["body_schema"] = present.body_schema
            # So do the columns of an exact export.
            theirs["odd_times"] = present.odd_times
            for name, value in present.to_json().items():
                if theirs[name] != value:
                    raise OptionError(
                        f"{self.into}: was begun with {name}={value!r}, not {theirs[name]!r}; "
                        "export into another directory"
                    )
        return present

    def begin(self, settings: ExportSettings, source: dict[str, Any]) -> None:
        """Notes the settings of a first run."""
        self.write("settings.json", {"settings": settings.to_json(), "source": source})

    def source(self) -> dict[str, Any] | None:
        """Where the first run read: ``broker`` and ``path``; None before it."""
        values = self.read("settings.json")
        return None if values is None else values["source"]

    def check_brokers(self, brokers: Sequence[str]) -> None:
        """Raises where stores of other brokers were exported here; further ones are welcome.

        Raises:
            OptionError: whose.
        """
        noted = self.brokers()
        if noted - set(brokers):
            raise OptionError(
                f"{self.into}: holds the export of broker {', '.join(map(repr, sorted(noted)))}, "
                f"not of {', '.join(map(repr, brokers))}"
            )

    def brokers(self) -> set[str]:
        """Whose logs were exported here: the first run's, and what came with later batches."""
        source = self.source()
        if source is None:
            return set()
        last, _ = self.last_batch()
        return {source["broker"]} if last is None or last.logs is None else {*last.logs}

    def clusters(self) -> set[str]:
        """The clusters of the first run; none for an export of stores, or one that begins."""
        noted = self.source()
        if noted is None or not noted["broker"].startswith(CLUSTERS):
            return set()
        return set(noted["broker"].removeprefix(CLUSTERS).split(", "))

    def check_clusters(self, clusters: Sequence[str]) -> None:
        """Raises where what was exported here is none of some clusters' live topics.

        One that is away, or that came later to the same name servers, is no other source.

        Args:
            clusters: those that there are; one at least.

        Raises:
            OptionError: what it was.
        """
        noted = self.source()
        if noted is None:
            return
        if self.clusters().isdisjoint(clusters):
            raise OptionError(
                f"{self.into}: holds the export of broker {noted['broker']!r}, "
                f"not of {CLUSTERS + ', '.join(clusters)!r}"
            )

    def last_batch(self) -> tuple[Batch | None, bool]:
        """The newest batch, and whether it is done."""
        numbers = sorted(
            int(name[:8])
            for name in self.names("batches")
            if name.endswith(".json") and name[:8].isdigit()
        )
        if not numbers:
            return None, True
        values = self.read(f"batches/{numbers[-1]:08d}.json")
        assert values is not None
        done = self.read(f"batches/{numbers[-1]:08d}.done") is not None
        return batch_of(numbers[-1], values), done

    def intend(self, batch: Batch) -> None:
        """Notes a batch before any of its data is written."""
        values: dict[str, Any] = {"start": batch.start, "end": batch.end}
        if batch.offsets is not None:
            values["offsets"] = batch.offsets
        if batch.tail is not None:
            values["tail"] = batch.tail
        if batch.logs is not None:
            values["logs"] = {name: each._asdict() for name, each in batch.logs.items()}
        self.write(f"batches/{batch.number:08d}.json", values)

    def finish(self, batch: Batch, report: dict[str, Any]) -> None:
        """Notes that all tables have a batch, and forgets what only older ones needed."""
        total = self.rows() + report["rows"] + report["quarantined"]
        self.write(f"batches/{batch.number:08d}.done", {**report, "total": total})
        try:
            self._forget(batch.number)
        except OSError as error:  # a role that may not delete: all but the room is as it should be
            if self.into not in self._told:
                _LOG.warning("%s: older batches stay in the ledger: %s", self.into, error)
                self._told.add(self.into)

    def _forget(self, newest: int) -> None:
        """Removes what a batch and those long before it needed; of very many, some at a time."""
        self._remove(f"commits/{newest:08d}.json")
        old = [
            name for name in self.names("batches")
            if name[:8].isdigit() and int(name[:8]) <= newest - BATCHES_KEPT
        ]  # fmt: skip
        for name in old[:FORGOTTEN_MAX]:
            if name.endswith(".json"):
                self._remove(f"commits/{name}")
            self._remove(f"batches/{name}")

    def _remove(self, name: str) -> None:
        self.place.remove(os.path.join(self.directory, name))

    def written_since_ms(self, batch: int) -> int:
        """A time after which all was written that is not durable when a batch is committed.

        What was written before the batch before was noted, that one waited for; 0 for the first.

        Returns:
            ms since 1970.
        """
        path = os.path.join(self.directory, f"batches/{batch - 1:08d}.json")
        return self.place.modified_ms(path) if self.place.read(path) is not None else 0

    def rows(self) -> int:
        """How many rows all batches that are done have together, quarantine included."""
        total = 0
        for name in reversed(self.names("batches")):
            if name.endswith(".done"):
                report = self.read(f"batches/{name}") or {}
                if "total" in report:
                    return total + int(report["total"])
                total += report["rows"] + report["quarantined"]
        return total

    def read(self, name: str) -> dict[str, Any] | None:
        """A file of the ledger, None where there is none."""
        data = self.place.read(os.path.join(self.directory, name))
        if data is None:
            return None
        values: dict[str, Any] = json.loads(data)
        return values

    def names(self, directory: str) -> list[str]:
        """What a directory of the ledger holds, sorted."""
        return [name for name, _ in self.place.names(os.path.join(self.directory, directory))]

    def write(self, name: str, values: dict[str, Any]) -> None:
        """Writes a file of the ledger, whole."""
        self.write_bytes(name, json.dumps(values, indent=1, sort_keys=True).encode())

    def write_bytes(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Writes a file of any bytes, whole; ``private``: for its owner alone."""
        self.place.write(os.path.join(self.directory, name), data, private=private)


def batch_of(number: int, values: dict[str, Any]) -> Batch:
    """A batch as ``batches/NNNNNNNN.json`` has it."""
    logs = values.get("logs")
    return Batch(
        number, values["start"], values["end"], values.get("offsets"), values.get("tail"),
        None if logs is None else {name: LogRange(**each) for name, each in logs.items()},
    )  # fmt: skip
