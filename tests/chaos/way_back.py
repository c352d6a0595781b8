"""The way back: hosts of a second processor, killed as well, read the log that Spark writes."""

from __future__ import annotations

import io
import time
from random import Random
from types import TracebackType
from typing import Self

import pyarrow.parquet as pq

from actorproc import JsonRows, Producer
from tests.chaos.fleet import Child, Fleet, State
from tests.chaos.journal import read_journal
from tests.chaos.place import Place
from tests.chaos.programs import host
from tests.chaos.table import check_table
from tests.chaos.verdict import Row, Verdict
from tests.chaos.workload import GROWN

PROCESSOR = "Back"
PARTITIONS = 4
HOSTS = 2
PACE = 12.0  # mean seconds between two blows
CATCH_UP = 300.0
"""Seconds in which the last host must process the remaining records."""


class BackHandler(JsonRows):
    """The rows as they were, and which record of the first processor they are of."""

    output_schema = f"{GROWN}, of_partition string, of_sequence long"


class WayBack:
    """Keeps hosts running on the log at `log`. As a context manager it leaves no process behind."""

    is_calm = True

    def __init__(self, log: str, place: Place, random: Random) -> None:
        self._log, self._place, self._random = log, place, random
        self._container = f"{place.container}-back"
        self._logs = place.folder / "back-logs"
        self._logs.mkdir()
        self._fleet = Fleet(self._logs)
        self._names = 0
        self._kills = 0
        self._next_kill = time.monotonic() + random.expovariate(1 / PACE)
        self._rows: list[Row] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.__exit__(kind, error, trace)

    async def open(self) -> None:
        """Create the log, so that hosts find it."""
        async with Producer(self._log, partitions=PARTITIONS, settings=self._place.settings):
            pass

    def tick(self, *, storm: bool) -> None:
        """See that there are hosts; in a storm kill one now and then."""
        self._fleet.reap()
        for slot in range(HOSTS):
            if not self._fleet.living([slot]):
                self._start(slot)
        if storm and time.monotonic() > self._next_kill:
            self._next_kill = time.monotonic() + self._random.expovariate(1 / PACE)
            self._random.choice(self._fleet.children).kill()
            self._kills += 1

    @property
    def had_enough(self) -> bool:
        return self._kills > 0

    async def finish(self) -> None:
        """Stop the hosts in good order, and let a last one process the remaining records."""
        for child in self._fleet.living(range(HOSTS), State.UP):
            child.stop()
        await self._fleet.end(CATCH_UP)
        self._start(0, "--until-end")
        await self._fleet.end(CATCH_UP)
        for key, body in (await self._place.read(self._container)).items():
            if key.startswith(f"{PROCESSOR}/output/"):
                self._rows += [_as_it_was(row) for row in pq.read_table(io.BytesIO(body)).to_pylist()]

    def judge(self, verdict: Verdict) -> list[str]:
        """The faults of the hosts and of their commits."""
        bugs = read_journal(sorted(self._logs.glob("*.log"))).bugs
        wrong = check_table(self._rows, verdict.rows)
        return [*self._fleet.faults, *bugs, *(fault.replace("the table", "the way back") for fault in wrong)]

    @property
    def line(self) -> str:
        return f"{self._kills} killed on the way back"

    @property
    def summary(self) -> str:
        return f"way back: {self._names} hosts, {self._kills} killed, {len(self._rows):,} rows"

    def _start(self, slot: int, *more: str) -> Child:
        self._names += 1
        name, place = f"b{self._names}", self._place
        arguments = ["--log-level", "debug", "serve", f"{__name__}:{BackHandler.__name__}", "--name", PROCESSOR]
        arguments += ["--host", name, "--source", self._log, "--container", self._container, *more]
        child = self._fleet.start(slot, name, host, place.folder, place.environment(), arguments)
        child.until_end = "--until-end" in more
        return child


def _as_it_was(row: Row) -> Row:
    """The row of the first processor that this one was made of."""
    theirs = {"_partition": row["of_partition"], "_sequence": row["of_sequence"]}
    return {name: value for name, value in row.items() if not name.startswith(("of_", "_"))} | theirs
