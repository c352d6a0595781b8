"""Departures through the demo's handler, and the expected results computed from the CSV."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa

from actorproc import Processor
from actorproc.demo.data import events
from actorproc.demo.handler import Delays
from actorproc.testing.memory_source import MemorySource
from tests.spark.committing import QUICK

NAME = "delays"
_PARTITIONS = 3
_ROWS = 500  # in a file


class Window(NamedTuple):
    """An airport in an hour. `minutes`: mean; `late`: how many left more than 15 minutes late."""

    start: datetime
    origin: str
    flights: int
    minutes: float
    late: int


class Flights:
    """A processor over departures that the test adds."""

    def __init__(self, container: str) -> None:
        self.container = container
        self._source = MemorySource(_PARTITIONS)
        self._settings = {**QUICK, "max_batch_records": _ROWS, "commit_rows": _ROWS}

    async def commit(self, departures: pa.Table) -> None:
        """Handle these, too; cancelled flights become dead letters. Flight n goes to partition n modulo 3."""
        for n, event in enumerate(events(departures)):
            self._source.append(str(n % _PARTITIONS), [event.value], key=event.key)
        await Processor(
            Delays, name=NAME, source=self._source, container=self.container, host="a", **self._settings
        ).run(until_end=True)


def windows(departures: pa.Table) -> Mapping[tuple[datetime, str], Window]:
    """Every hour in which flights were scheduled that did leave, by hour and airport, in UTC without a time zone."""
    delays = defaultdict(list)
    for scheduled, origin, minutes in _columns(departures, "scheduled", "origin", "dep_delay"):
        if minutes is not None:
            delays[scheduled.replace(minute=0, second=0, tzinfo=None), origin].append(minutes)
    return {
        (hour, origin): Window(hour, origin, len(d), sum(d) / len(d), sum(m > 15 for m in d))
        for (hour, origin), d in delays.items()
    }


def closed(departures: pa.Table) -> set[Window]:
    """Windows that a watermark of two hours has passed."""
    mark = _newest(departures) - timedelta(hours=2)
    return {window for window in windows(departures).values() if window.start + timedelta(hours=1) <= mark}


def _newest(departures: pa.Table) -> datetime:
    departed = [at for at, minutes in _columns(departures, "scheduled", "dep_delay") if minutes is not None]
    newest: datetime = max(departed).replace(tzinfo=None)
    return newest


def _columns(departures: pa.Table, *names: str) -> list[tuple]:  # type: ignore[type-arg]
    return list(zip(*(departures[name].to_pylist() for name in names), strict=True))
